//! Memory beyond the device: what `cuMemAlloc` gives an overcommitted tenant.
//!
//! Managed memory instead of the device's: the driver moves it to the host where the device is full, and back
//! when a kernel uses it. The cap counts it in full wherever it lies. Pools, arrays, pitched and physical
//! memory and what graphs allocate cannot move; they stay as they are.

use crate::device::Index;
use crate::log;
use crate::memory::Place;
use crate::{device, real};
use ffi::driver::{CUdevice, CUdevice_attribute, CUdeviceptr, CUmemAttach_flags, CUresult};
use ffi::wire::MAX_DEVICES;
use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, Ordering};

const UNKNOWN: u8 = 0;
const CAN: u8 = 1;
const CANNOT: u8 = 2;

/// Whether managed memory on a device may be more than it has.
static DEVICES: [AtomicU8; MAX_DEVICES] = [const { AtomicU8::new(UNKNOWN) }; MAX_DEVICES];

/// Allocates `bytes` of managed memory; `None`: the tenant's memory is the device's own.
pub(crate) fn alloc(place: &Place, out: *mut CUdeviceptr, bytes: usize) -> Option<CUresult> {
    let control = device::control(place.seat.pages, place.device)?;
    // Relaxed: it is set before the tenant's first process, and stays.
    if control.is_overcommitted.load(Ordering::Relaxed) == 0 || !can_move(place.device) {
        return None;
    }
    let flags = CUmemAttach_flags::CU_MEM_ATTACH_GLOBAL.0;
    // SAFETY: the caller's place for an address, as it would be for `cuMemAlloc`.
    Some(unsafe { real::cuMemAllocManaged(out, bytes, flags) })
}

fn can_move(device: Index) -> bool {
    let Some(known) = DEVICES.get(device.get()) else {
        return false;
    };
    // Relaxed: the answer is the same whoever finds it.
    match known.load(Ordering::Relaxed) {
        UNKNOWN => {}
        answer => return answer == CAN,
    }
    let Some(found) = ask() else {
        return false;
    };
    known.store(if found { CAN } else { CANNOT }, Ordering::Relaxed);
    if !found {
        log::warn(format_args!(
            "this GPU cannot have more managed memory than its own: memory of this overcommitted tenant stays \
             on it, and may be refused by the driver below the cap"
        ));
    }
    found
}

fn ask() -> Option<bool> {
    let mut ordinal: CUdevice = 0;
    let mut value: c_int = 0;
    let attribute = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS;
    // SAFETY: a place for one number.
    let mut result = unsafe { real::cuCtxGetDevice(&mut ordinal) };
    if result == CUresult::CUDA_SUCCESS {
        // SAFETY: as above.
        result = unsafe { real::cuDeviceGetAttribute(&mut value, attribute, ordinal) };
    }
    (result == CUresult::CUDA_SUCCESS).then_some(value != 0)
}
