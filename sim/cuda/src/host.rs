//! Page-locked host memory. The stand-in locks nothing; it remembers what is registered, so that
//! asynchronous copies know what they may read later.

use std::ffi::{c_uint, c_void};
use std::num::NonZeroUsize;
use std::ptr::NonNull;

use ffi::driver::{CUdeviceptr, CUdeviceptr_v1, CUresult};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous, munmap};

use crate::guard::{Answer, INVALID_VALUE, Out, put};
use crate::ranges::{Kind, Range};
use crate::state::{self, Driver, driver};

/// Flags of `cuMemHostAlloc`.
const KNOWN_FLAGS: c_uint = 7;
/// `CU_MEMHOSTALLOC_DEVICEMAP`.
const DEVICE_MAP: c_uint = 2;
/// Flags of `cuMemHostRegister`.
const KNOWN_REGISTER_FLAGS: c_uint = 15;

fn allocate(out: *mut *mut c_void, bytes: usize, flags: c_uint) -> Answer {
    let out = Out::claim(out)?;
    let length = NonZeroUsize::new(bytes).ok_or(INVALID_VALUE)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let driver = driver()?;
    let context = state::current()?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let kind = MapFlags::MAP_PRIVATE;
    // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
    let base = unsafe { mmap_anonymous(None, length, protection, kind) };
    let base = base.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    driver.ranges.add(Range {
        start: base.as_ptr() as u64,
        bytes: bytes as u64,
        kind: Kind::HostAllocated,
        reach: base.as_ptr().cast(),
        device: context.device,
        context: context.id,
        block: 0,
        number: driver.number(),
        extra: u64::from(flags | DEVICE_MAP),
        is_accessible: true,
    });
    out.write(base.as_ptr());
    Ok(())
}

fn unmap(range: &Range) {
    if let Some(base) = NonNull::new(range.start as *mut c_void) {
        // SAFETY: mapped by `allocate` and taken out of the table; nobody may use it any more.
        let unmapped = unsafe { munmap(base, range.bytes as usize) };
        debug_assert!(unmapped.is_ok());
    }
}

fn free(address: *mut c_void) -> Answer {
    let driver = driver()?;
    let context = state::current()?;
    let is_own = |range: &Range| range.kind == Kind::HostAllocated;
    let range = driver.ranges.find(address as u64).filter(is_own);
    range
        .filter(|range| range.start == address as u64)
        .ok_or(INVALID_VALUE)?;
    context.synchronize(driver)?;
    let range = driver.ranges.remove(address as u64, is_own);
    unmap(&range.ok_or(INVALID_VALUE)?);
    Ok(())
}

/// Frees the host memory that belongs to a context.
pub(crate) fn close_context(driver: &Driver, context: u64) {
    let gone = driver
        .ranges
        .sweep(|range| range.context == context && range.is_host());
    for range in gone
        .iter()
        .filter(|range| range.kind == Kind::HostAllocated)
    {
        unmap(range);
    }
}

fn register(address: *mut c_void, bytes: usize, flags: c_uint) -> Answer {
    let driver = driver()?;
    let context = state::current()?;
    let start = address as u64;
    let end = start.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
    if address.is_null() || bytes == 0 || flags & !KNOWN_REGISTER_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    if driver.ranges.is_taken(start, end) {
        return Err(CUresult::CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    }
    driver.ranges.resolve(start, bytes as u64)?;
    driver.ranges.add(Range {
        start,
        bytes: bytes as u64,
        kind: Kind::HostRegistered,
        reach: address.cast(),
        device: context.device,
        context: context.id,
        block: 0,
        number: driver.number(),
        extra: u64::from(flags | DEVICE_MAP),
        is_accessible: true,
    });
    Ok(())
}

fn unregister(address: *mut c_void) -> Answer {
    let driver = driver()?;
    state::current()?.synchronize(driver)?;
    let is_registered = |range: &Range| range.kind == Kind::HostRegistered;
    let gone = driver.ranges.remove(address as u64, is_registered);
    gone.map(drop)
        .ok_or(CUresult::CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED)
}

/// Host and device share one space of addresses.
fn device_pointer(address: *mut c_void, flags: c_uint) -> Answer<u64> {
    let found = driver()?.ranges.find(address as u64);
    let is_known = found.is_some_and(|range| range.is_host() || range.kind == Kind::Managed);
    if flags == 0 && is_known {
        Ok(address as u64)
    } else {
        Err(INVALID_VALUE)
    }
}

fn flags(out: *mut c_uint, address: *mut c_void) -> Answer {
    let found = driver()?.ranges.find(address as u64);
    let range = found.filter(Range::is_host).ok_or(INVALID_VALUE)?;
    put(out, range.extra as c_uint)
}

driver! {
    cuMemAllocHost(pp: *mut *mut c_void, bytesize: c_uint) => |out, bytes| allocate(out, bytes as usize, 0);
    cuMemAllocHost_v2(pp: *mut *mut c_void, bytesize: usize) => |out, bytes| allocate(out, bytes, 0);
    cuMemHostAlloc(pp: *mut *mut c_void, bytesize: usize, flags: c_uint) => allocate;
    cuMemFreeHost(p: *mut c_void) => free;
    cuMemHostRegister(p: *mut c_void, bytesize: usize, flags: c_uint) => register;
    cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint) => register;
    cuMemHostUnregister(p: *mut c_void) => unregister;
    cuMemHostGetDevicePointer(pdptr: *mut CUdeviceptr_v1, p: *mut c_void, flags: c_uint) => |out: *mut CUdeviceptr_v1, address, flags| {
        let found = CUdeviceptr_v1::try_from(device_pointer(address, flags)?);
        put(out, found.map_err(|_| INVALID_VALUE)?)
    };
    cuMemHostGetDevicePointer_v2(pdptr: *mut CUdeviceptr, p: *mut c_void, flags: c_uint) => |out: *mut CUdeviceptr, address, flags| {
        put(out, device_pointer(address, flags)?)
    };
    cuMemHostGetFlags(p_flags: *mut c_uint, p: *mut c_void) => flags;
}
