//! NVML's view: the cap as the size of the GPU, what the tenant holds as used.
//!
//! The real library answers first; only layouts that we know are edited, in place. A process that never
//! calls `cuInit` attaches as an observer at its first question; without a daemon the answer is
//! `NVML_ERROR_NOT_READY`, never the whole GPU.

use crate::claim::Out;
use crate::device;
use crate::query::View;
use crate::session;
use ffi::nvml::{nvmlDevice_t, nvmlMemory_t, nvmlMemory_v2_t, nvmlReturn_t};
use ledger::Books;

const SUCCESS: nvmlReturn_t = nvmlReturn_t::NVML_SUCCESS;

/// `version` of the one layout of `nvmlMemory_v2_t` that there has been: 40 bytes, version 2.
const MEMORY_V2: u32 = size_of::<nvmlMemory_v2_t>() as u32 | 2 << 24;

/// `nvmlInit`: handles of a former initialisation are void.
pub(crate) fn init(forward: impl FnOnce() -> nvmlReturn_t) -> nvmlReturn_t {
    device::forget_handles();
    forward()
}

fn view(device: nvmlDevice_t, real_total: u64, real_free: u64) -> Result<View, nvmlReturn_t> {
    let pages = session::view().map_err(|_| nvmlReturn_t::NVML_ERROR_NOT_READY)?;
    let index = device::by_handle(pages, device);
    let known = index.and_then(|index| Some((index, device::control(pages, index)?)));
    let Some((index, control)) = known else {
        return Ok(View::NOTHING);
    };
    let held = Books::of(pages.usage, index.get()).map_or(0, |books| books.held_units());
    Ok(View::under(
        control,
        ledger::bytes(held),
        real_total,
        real_free,
    ))
}

/// `nvmlDeviceGetMemoryInfo`: total, free, used.
pub(crate) fn memory_info(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_t,
    forward: impl FnOnce(nvmlDevice_t, *mut nvmlMemory_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    edited(device, memory, forward, |real| {
        let view = view(device, real.total, real.free)?;
        Ok(nvmlMemory_t {
            total: view.total,
            free: view.free,
            used: view.total.saturating_sub(view.free),
        })
    })
}

/// `nvmlDeviceGetMemoryInfo_v2`: as above, with the part that the driver keeps for itself.
///
/// That part is the node's and lies outside every cap, so a tenant sees none: total is used and free.
pub(crate) fn memory_info_v2(
    device: nvmlDevice_t,
    memory: *mut nvmlMemory_v2_t,
    forward: impl FnOnce(nvmlDevice_t, *mut nvmlMemory_v2_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    // Another version may be another size: that is between the host and the library.
    if Out::claim(memory).is_none_or(|memory| memory.read().version != MEMORY_V2) {
        return forward(device, memory);
    }
    edited(device, memory, forward, |real| {
        let view = view(device, real.total, real.free)?;
        Ok(nvmlMemory_v2_t {
            version: real.version,
            total: view.total,
            reserved: 0,
            free: view.free,
            used: view.total.saturating_sub(view.free),
        })
    })
}

/// The library writes into the host's struct, which is edited after success; where we have no answer, it
/// is put back as it was.
fn edited<T: Copy>(
    device: nvmlDevice_t,
    memory: *mut T,
    forward: impl FnOnce(nvmlDevice_t, *mut T) -> nvmlReturn_t,
    edit: impl FnOnce(T) -> Result<T, nvmlReturn_t>,
) -> nvmlReturn_t {
    let Some(place) = Out::claim(memory) else {
        return forward(device, memory);
    };
    let former = place.read();
    let result = forward(device, memory);
    if result != SUCCESS {
        return result;
    }
    match edit(place.read()) {
        Ok(memory) => {
            place.write(memory);
            result
        }
        Err(code) => {
            place.write(former);
            code
        }
    }
}
