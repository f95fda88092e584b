//! Devices: CUDA's numbers, NVML's handles, and the daemon's order, matched by UUID.
//!
//! CUDA's order follows `CUDA_VISIBLE_DEVICES` and differs between processes; the control page's does not.

use crate::session::Pages;
use ffi::driver::{CUdevice, CUresult, CUuuid};
use ffi::nvml::{nvmlDevice_t, nvmlReturn_t};
use ffi::wire::DeviceControl;
use std::ffi::{CStr, c_char, c_uint};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// An index into the pages' arrays of devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Index(u32);

impl Index {
    /// As an index.
    pub(crate) fn get(self) -> usize {
        self.0 as usize
    }
}

/// Numbers that CUDA gave so far: index + 1, 0 for "not asked yet", `NOT_OURS`.
static BY_ORDINAL: [AtomicU32; 64] = [const { AtomicU32::new(0) }; 64];
const NOT_OURS: u32 = u32::MAX;

/// The tenant's device behind CUDA's number; `None` for one that it may not use.
pub(crate) fn by_ordinal(pages: Pages, device: CUdevice) -> Option<Index> {
    let place = usize::try_from(device)
        .ok()
        .and_then(|at| BY_ORDINAL.get(at));
    // Relaxed: the answer is the same whoever finds it.
    match place.map_or(0, |place| place.load(Ordering::Relaxed)) {
        0 => {}
        NOT_OURS => return None,
        known => return Some(Index(known - 1)),
    }
    let index = by_uuid(pages, uuid(device)?);
    if let Some(place) = place {
        place.store(
            index.map_or(NOT_OURS, |index| index.0 + 1),
            Ordering::Relaxed,
        );
    }
    index
}

/// The current context's device, and whether the tenant may use it.
///
/// # Errors
/// The driver's own answer where there is no current context.
pub(crate) fn current(pages: Pages) -> Result<Option<Index>, CUresult> {
    let mut device: CUdevice = 0;
    // SAFETY: a place for one number.
    let result = unsafe { crate::real::cuCtxGetDevice(&mut device) };
    if result != CUresult::CUDA_SUCCESS {
        return Err(result);
    }
    Ok(by_ordinal(pages, device))
}

/// What the daemon says of a device.
pub(crate) fn control(pages: Pages, index: Index) -> Option<&'static DeviceControl> {
    pages.control.devices.get(index.get())
}

fn uuid(device: CUdevice) -> Option<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: a place for one UUID.
    let mut result = unsafe { crate::real::cuDeviceGetUuid_v2(&mut uuid, device) };
    if result == CUresult::CUDA_ERROR_NOT_FOUND {
        // Before CUDA 11.4 there is only the older form.
        // SAFETY: as above.
        result = unsafe { crate::real::cuDeviceGetUuid(&mut uuid, device) };
    }
    (result == CUresult::CUDA_SUCCESS).then(|| uuid.bytes.map(|byte| byte as u8))
}

fn by_uuid(pages: Pages, uuid: [u8; 16]) -> Option<Index> {
    let [first, second] = halves(uuid);
    let count = pages.control.device_count.load(Ordering::Relaxed) as usize;
    let devices = pages.control.devices.iter().take(count);
    devices
        .enumerate()
        .find(|(_, device)| {
            let [left, right] = &device.uuid;
            left.load(Ordering::Relaxed) == first && right.load(Ordering::Relaxed) == second
        })
        .map(|(index, _)| Index(index as u32))
}

fn halves(uuid: [u8; 16]) -> [u64; 2] {
    let number = u128::from_ne_bytes(uuid);
    if cfg!(target_endian = "little") {
        [number as u64, (number >> 64) as u64]
    } else {
        [(number >> 64) as u64, number as u64]
    }
}

/// NVML handles seen so far, and their indices; a handle is good for as long as NVML is initialised.
static BY_HANDLE: [(AtomicUsize, AtomicU32); 64] =
    [const { (AtomicUsize::new(0), AtomicU32::new(0)) }; 64];

/// Forgets NVML's handles: the next initialisation may give others.
pub(crate) fn forget_handles() {
    for (handle, _) in &BY_HANDLE {
        handle.store(0, Ordering::Relaxed);
    }
}

/// The tenant's device behind NVML's handle; `None` for one that it may not use.
pub(crate) fn by_handle(pages: Pages, device: nvmlDevice_t) -> Option<Index> {
    let wanted = device as usize;
    for (handle, index) in &BY_HANDLE {
        // Acquire; pairs with the Release below: who sees the handle sees its index.
        if handle.load(Ordering::Acquire) == wanted {
            return match index.load(Ordering::Relaxed) {
                NOT_OURS => None,
                index => Some(Index(index)),
            };
        }
    }
    let index = by_uuid(pages, nvml_uuid(device)?);
    // A full table costs a question each time, nothing else.
    for (handle, place) in &BY_HANDLE {
        if handle.load(Ordering::Relaxed) == 0 {
            place.store(index.map_or(NOT_OURS, |index| index.0), Ordering::Relaxed);
            handle.store(wanted, Ordering::Release);
            break;
        }
    }
    index
}

fn nvml_uuid(device: nvmlDevice_t) -> Option<[u8; 16]> {
    let mut text: [c_char; 96] = [0; 96];
    // SAFETY: a place for 96 characters, as said; NVML documents 96 as enough for every kind.
    let result =
        unsafe { crate::real::nvmlDeviceGetUUID(device, text.as_mut_ptr(), text.len() as c_uint) };
    if result != nvmlReturn_t::NVML_SUCCESS {
        return None;
    }
    let text = text.map(|character| character as u8);
    parse_uuid(CStr::from_bytes_until_nul(&text).ok()?.to_str().ok()?)
}

/// Reads `GPU-8-4-4-4-12`.
fn parse_uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.strip_prefix("GPU-")?;
    let mut uuid = [0u8; 16];
    let mut nibbles = digits
        .chars()
        .filter(|character| *character != '-')
        .map(|character| character.to_digit(16));
    for byte in &mut uuid {
        let high = nibbles.next()??;
        let low = nibbles.next()??;
        *byte = (high << 4 | low) as u8;
    }
    nibbles.next().is_none().then_some(uuid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_in_nvml_s_form_and_no_other() {
        let uuid = parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff");
        let bytes = [
            0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd,
            0xee, 0xff,
        ];
        assert_eq!(uuid, Some(bytes));
        for text in [
            "",
            "GPU-",
            "MIG-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-0g",
        ] {
            assert_eq!(parse_uuid(text), None);
        }
        assert_eq!(
            parse_uuid("GPU-00112233-4455-6677-8899-aabbccddeeff00"),
            None
        );
    }
}
