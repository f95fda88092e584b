//! Checkpoints: another process, or this one, is locked, taken off the devices, brought back, let go.
//!
//! A locked process begins no call; these calls are the exception, so that a process can do it to itself.
//! What is taken off a device stays at its addresses.
//!
//! Source: CUDA driver API, "CUDA Checkpointing".

use std::ffi::c_int;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

use ffi::driver::{
    CUcheckpointCheckpointArgs, CUcheckpointLockArgs, CUcheckpointRestoreArgs,
    CUcheckpointUnlockArgs, CUprocessState, CUprocessState_enum, CUresult,
};
use sim::proto::checkpoint as action;
use sim::shared::now_ns;

use crate::guard::{Answer, INVALID_VALUE, Out, take};
use crate::state::driver;

/// How often it is asked whether a process has become idle.
const ASK: Duration = Duration::from_micros(200);

/// The process with that number here.
fn open(pid: c_int) -> Answer<OwnedFd> {
    if pid <= 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: a system call on plain numbers.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let file = RawFd::try_from(opened).ok().filter(|file| *file >= 0);
    let file = file.ok_or_else(|| match nix::errno::Errno::last() {
        nix::errno::Errno::ENOSYS => CUresult::CUDA_ERROR_NOT_SUPPORTED,
        _ => INVALID_VALUE,
    })?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
    Ok(unsafe { OwnedFd::from_raw_fd(file) })
}

/// What the host says about a step; null stands for nothing.
fn arguments<T: Copy>(given: *mut T) -> Answer<Option<T>> {
    if given.is_null() {
        return Ok(None);
    }
    take(given).map(Some)
}

fn step(pid: c_int, what: u64) -> Answer<(u32, i32)> {
    driver()?.link.checkpoint(open(pid)?.as_fd(), what)
}

/// Locks a process, within the time that the host gives; 0: however long it takes.
fn lock(pid: c_int, given: *mut CUcheckpointLockArgs) -> Answer {
    let limit_ms = arguments(given)?.map_or(0, |given| given.timeoutMs);
    let driver = driver()?;
    let process = open(pid)?;
    let ask = |what| driver.link.checkpoint(process.as_fd(), what);
    let deadline = match limit_ms {
        0 => u64::MAX,
        limit => now_ns() + u64::from(limit) * 1_000_000,
    };
    let locked = CUprocessState_enum::CU_PROCESS_STATE_LOCKED.0;
    while ask(action::LOCK)?.0 != locked {
        if now_ns() >= deadline {
            ask(action::GIVE_UP)?;
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        std::thread::sleep(ASK);
    }
    Ok(())
}

fn take_away(pid: c_int, given: *mut CUcheckpointCheckpointArgs) -> Answer {
    let has_storage = |given: CUcheckpointCheckpointArgs| !given.customStorageInfo_out.is_null();
    if arguments(given)?.is_some_and(has_storage) {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    step(pid, action::TAKE_AWAY).map(drop)
}

/// Brings a process back to the devices that it was on.
fn bring_back(pid: c_int, given: *mut CUcheckpointRestoreArgs) -> Answer {
    if let Some(given) = arguments(given)? {
        if !given.customStorageInfo_out.is_null() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        for index in 0..given.gpuPairsCount as usize {
            let pair = take(given.gpuPairs.wrapping_add(index))?;
            if pair.oldUuid.bytes != pair.newUuid.bytes {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
        }
    }
    step(pid, action::BRING_BACK).map(drop)
}

fn unlock(pid: c_int, given: *mut CUcheckpointUnlockArgs) -> Answer {
    arguments(given)?;
    step(pid, action::UNLOCK).map(drop)
}

fn state_of(pid: c_int, out: *mut CUprocessState) -> Answer {
    let out = Out::claim(out)?;
    out.write(CUprocessState_enum(step(pid, action::LOOK)?.0));
    Ok(())
}

fn restore_thread(pid: c_int, out: *mut c_int) -> Answer {
    let out = Out::claim(out)?;
    out.write(step(pid, action::LOOK)?.1);
    Ok(())
}

driver! { aside;
    cuCheckpointProcessLock(pid: c_int, args: *mut CUcheckpointLockArgs) => lock;
    cuCheckpointProcessCheckpoint(pid: c_int, args: *mut CUcheckpointCheckpointArgs) => take_away;
    cuCheckpointProcessRestore(pid: c_int, args: *mut CUcheckpointRestoreArgs) => bring_back;
    cuCheckpointProcessUnlock(pid: c_int, args: *mut CUcheckpointUnlockArgs) => unlock;
    cuCheckpointProcessGetState(pid: c_int, state: *mut CUprocessState) => state_of;
    cuCheckpointProcessGetRestoreThreadId(pid: c_int, tid: *mut c_int) => restore_thread;
}
