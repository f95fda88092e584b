//! Memory that two processes see, futexes in it, and the clock that both read.
//!
//! A [`Mapping`] hands out references to types that consist of atomics only (or that nobody writes
//! any more), so what the other side does to them is never undefined here.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap, munmap};
use nix::time::{ClockId, clock_gettime};

/// A type that may lie in memory which another process writes.
///
/// # Safety
/// Every bit pattern is a value, and every field that is written after the page has been handed out
/// is an atomic.
pub unsafe trait Shared {}

/// What a mapping may be used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reads only.
    Read,
    /// Reads and writes.
    Write,
}

/// A shared mapping of a file, for as long as it lives.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<libc::c_void>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread; what lies in it is `Shared`.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `bytes` of `file`.
    ///
    /// The pages cost nothing until they are touched, stay out of core dumps, and are not there in a
    /// forked child, which has no business with the device.
    ///
    /// # Errors
    /// What `mmap` says; `InvalidInput` for no bytes.
    pub fn new(file: impl AsFd, bytes: usize, access: Access) -> io::Result<Self> {
        let length =
            NonZeroUsize::new(bytes).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
        let protection = match access {
            Access::Read => ProtFlags::PROT_READ,
            Access::Write => ProtFlags::PROT_READ | ProtFlags::PROT_WRITE,
        };
        let flags = MapFlags::MAP_SHARED | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap(None, length, protection, flags, file, 0) }?;
        for advice in [MmapAdvise::MADV_DONTDUMP, MmapAdvise::MADV_DONTFORK] {
            // SAFETY: the range is the mapping that was just made.
            unsafe { madvise(base, bytes, advice) }?;
        }
        Ok(Self { base, bytes })
    }

    /// Size of the mapping.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Address of byte `offset`, if `bytes` from there on lie inside.
    pub fn pointer(&self, offset: u64, bytes: u64) -> Option<*mut u8> {
        let end = offset.checked_add(bytes)?;
        if end > self.bytes as u64 {
            return None;
        }
        let offset = usize::try_from(offset).ok()?;
        Some(self.base.as_ptr().cast::<u8>().wrapping_add(offset))
    }

    /// The `T` that the mapping begins with.
    ///
    /// # Panics
    /// If the mapping is smaller than a `T`.
    pub fn page<T: Shared>(&self) -> &T {
        assert!(
            size_of::<T>() <= self.bytes,
            "the mapping holds a whole page"
        );
        // SAFETY: inside the mapping (checked), aligned (a mapping begins on a page), and any bit
        // pattern is a `T` by its `Shared`.
        unsafe { self.base.cast::<T>().as_ref() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range is ours and references into it cannot outlive `self`.
        let unmapped = unsafe { munmap(self.base, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}

/// An anonymous file of `bytes`, all holes.
///
/// # Errors
/// What `memfd_create` or `ftruncate` say.
pub fn memory_file(name: &str, bytes: u64) -> io::Result<OwnedFd> {
    let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
    let file = memfd_create(name, flags)?;
    let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
    nix::unistd::ftruncate(&file, bytes)?;
    Ok(file)
}

/// Gives the pages of a range of `file` back to the machine; it reads as zeros afterwards.
///
/// # Errors
/// What `fallocate` says.
pub fn punch(file: impl AsFd, offset: u64, bytes: u64) -> io::Result<()> {
    let offset = i64::try_from(offset).map_err(io::Error::other)?;
    let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    Ok(fallocate(file, flags, offset, bytes)?)
}

/// Sleeps while `word` is `expected`, at most for `limit`; may return early.
pub fn futex_wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: libc::time_t::try_from(limit.as_secs()).unwrap_or(libc::time_t::MAX),
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: the kernel reads the word and the time, both of which live through the call.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            &raw const limit,
        )
    };
}

/// Wakes everybody who sleeps on `word`.
pub fn futex_wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
}

/// Nanoseconds of the monotonic clock, which is the same for all processes of a machine.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}
