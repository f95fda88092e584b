//! Memory of one process in another: IPC handles, and physical memory and pools by descriptors.

use crate::check::Checks;
use crate::physical::{access, property};
use crate::tools::{MIB, allocate, bytes_at, context, pattern, zeroed};
use ffi::driver::*;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::{null_mut, without_provenance_mut};

const FILE: CUmemAllocationHandleType =
    CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

/// The maker is this process; whoever opens is a child that was forked before anything was initialised.
pub(crate) fn play(t: &Checks) {
    let (mut near, far) = UnixStream::pair().expect("a pair of sockets");
    // SAFETY: nothing is initialised yet and no other thread of ours runs; the child ends by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        drop(near);
        let opened = open(t, far);
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(i32::from(!opened)) };
    }
    drop(far);
    make(t, &mut near);
    let mut status = -1;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    t.is("the other process", status, 0);
}

fn make(t: &Checks, other: &mut UnixStream) {
    context(t);
    let at = allocate(t, MIB);
    ok!(t, cuMemcpyHtoD_v2(at, pattern(MIB).as_ptr().cast(), MIB));
    let mut handle: CUipcMemHandle = zeroed();
    ok!(t, cuIpcGetMemHandle(&mut handle, at));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuIpcGetMemHandle(null_mut(), at)
    );
    let mut own = 7;
    let code = call!(t, cuIpcOpenMemHandle_v2(&mut own, handle, 1));
    t.holds("its maker cannot open it", code.0 != 0);
    // SAFETY: plain bytes.
    let bytes: [u8; 64] = unsafe { std::mem::transmute(handle.reserved) };
    other.write_all(&bytes).expect("the other process reads");
    let mut wanted = property();
    wanted.requestedHandleTypes = FILE;
    let (mut physical, mut file, unit) = (0, -1i32, 2 * MIB);
    ok!(t, cuMemCreate(&mut physical, unit, &wanted, 0));
    let place = map(t, physical, unit);
    ok!(t, cuMemsetD8_v2(place, 9, unit));
    // A fill may return before it is done, and the other process does not wait for it.
    ok!(t, cuCtxSynchronize());
    ok!(
        t,
        cuMemExportToShareableHandle((&raw mut file).cast(), physical, FILE, 0)
    );
    let number = file.to_ne_bytes();
    let pid = std::process::id().to_ne_bytes();
    other
        .write_all(&[number, pid].concat())
        .expect("the other process reads");
    let mut done = [0u8; 1];
    t.holds(
        "the other process is done",
        other.read_exact(&mut done).is_ok(),
    );
    t.is("what the other wrote", bytes_at(t, at, 1), vec![77]);
    t.is(
        "what the other wrote there",
        bytes_at(t, place, 2),
        vec![78, 9],
    );
    // SAFETY: made for us by the export.
    drop(unsafe { OwnedFd::from_raw_fd(file) });
    ok!(t, cuMemUnmap(place, unit));
    ok!(t, cuMemAddressFree(place, unit));
    ok!(t, cuMemRelease(physical));
    ok!(t, cuMemFree_v2(at));
}

fn map(t: &Checks, handle: u64, bytes: usize) -> CUdeviceptr {
    let mut place = 0;
    ok!(t, cuMemAddressReserve(&mut place, bytes, 0, 0, 0));
    ok!(t, cuMemMap(place, bytes, 0, handle, 0));
    ok!(t, cuMemSetAccess(place, bytes, &access(), 1));
    place
}

/// The child's part: silent, so that there is one record; whether all was right.
fn open(t: &Checks, mut other: UnixStream) -> bool {
    let good = |code: CUresult| code == CUresult::CUDA_SUCCESS;
    let (mut context, mut at, mut word) = (null_mut(), 0, [0u8; 8]);
    let mut handle = [0u8; 64];
    let begun = good(call!(t, cuInit(0)))
        && good(call!(t, cuDevicePrimaryCtxRetain(&mut context, 0)))
        && good(call!(t, cuCtxSetCurrent(context)))
        && other.read_exact(&mut handle).is_ok();
    // SAFETY: plain bytes.
    let reserved = unsafe { std::mem::transmute::<[u8; 64], [std::ffi::c_char; 64]>(handle) };
    let handle = CUipcMemHandle { reserved };
    let first = good(call!(t, cuIpcOpenMemHandle_v2(&mut at, handle, 1)))
        && good(call!(t, cuMemcpyDtoH_v2(word.as_mut_ptr().cast(), at, 8)))
        && word[..] == pattern(8)
        && good(call!(t, cuMemsetD8_v2(at, 77, 1)))
        && good(call!(t, cuCtxSynchronize()))
        // Memory of another is closed, not freed.
        && !good(call!(t, cuMemFree_v2(at)))
        && good(call!(t, cuIpcCloseMemHandle(at)))
        && !good(call!(t, cuIpcCloseMemHandle(at)));
    let mut number = [0u8; 8];
    if !begun || !first || other.read_exact(&mut number).is_err() {
        return false;
    }
    let [file, pid] =
        [0, 4].map(|from| i32::from_ne_bytes([0, 1, 2, 3].map(|byte| number[from + byte])));
    // SAFETY: numbers alone.
    let parent = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    // SAFETY: as above; the parent is ours.
    let copy = unsafe { libc::syscall(libc::SYS_pidfd_getfd, parent, file, 0) };
    let Ok(copy @ 0..) = i32::try_from(copy) else {
        return false;
    };
    // SAFETY: just made for us.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    let (mut physical, mut place, unit) = (0, 0, 2 * MIB);
    let wanted = without_provenance_mut(copy.as_raw_fd() as usize);
    good(call!(
        t,
        cuMemImportFromShareableHandle(&mut physical, wanted, FILE)
    )) && good(call!(t, cuMemAddressReserve(&mut place, unit, 0, 0, 0)))
        && good(call!(t, cuMemMap(place, unit, 0, physical, 0)))
        && good(call!(t, cuMemSetAccess(place, unit, &access(), 1)))
        && good(call!(
            t,
            cuMemcpyDtoH_v2(word.as_mut_ptr().cast(), place, 8)
        ))
        && word == [9; 8]
        && good(call!(t, cuMemsetD8_v2(place, 78, 1)))
        && good(call!(t, cuCtxSynchronize()))
        && good(call!(t, cuMemUnmap(place, unit)))
        && good(call!(t, cuMemRelease(physical)))
        && other.write_all(&[1]).is_ok()
}
