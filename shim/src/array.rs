//! Arrays and mipmapped arrays.
//!
//! What one takes is the driver's own affair: texels are padded and tiled. So the driver is asked: a
//! *twin* of the same shape that defers its mapping takes no memory, and says how much the real one
//! needs. Where a driver has no such twins (before CUDA 11.6, or on a device that cannot defer), the
//! texels themselves are the charge, which is a little too little. Arrays that defer their mapping, and
//! sparse ones, take nothing; what is mapped into them is charged by its handle, which they hold.

use crate::account::{self, Request};
use crate::claim::Out;
use crate::device::Index;
use crate::memory::{self, Elsewhere};
use crate::session;
use crate::vmm;
use ffi::driver::{
    CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1, CUDA_ARRAY_MEMORY_REQUIREMENTS,
    CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1,
    CUDA_ARRAY3D_SPARSE, CUarray, CUarrayMapInfo, CUmipmappedArray, CUresult, CUstream,
};
use ffi::wire::Refusable;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::c_uint;

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

/// A place for the driver's answer.
const NO_REQUIREMENTS: CUDA_ARRAY_MEMORY_REQUIREMENTS = CUDA_ARRAY_MEMORY_REQUIREMENTS {
    size: 0,
    alignment: 0,
    reserved: [0; 4],
};

/// A live array, of either kind.
#[derive(Debug, Clone, Copy)]
struct Live {
    /// Units charged for it.
    units: u64,
    device: Index,
    /// The context whose end frees it.
    context: usize,
}

/// Live arrays by their handles.
static LIVE: Mutex<BTreeMap<usize, Live>> = Mutex::new(BTreeMap::new());

/// `cuArrayCreate`.
pub(crate) fn create(
    out: *mut CUarray,
    wanted: *const CUDA_ARRAY_DESCRIPTOR,
    forward: impl FnOnce(*mut CUarray, *const CUDA_ARRAY_DESCRIPTOR) -> CUresult,
) -> CUresult {
    let shape = Out::claim(wanted.cast_mut()).map(|wanted| flat(&wanted.read()));
    counted(Refusable::ArrayCreate, out, shape, None, || {
        forward(out, wanted)
    })
}

/// `cuArrayCreate` of CUDA 2.
pub(crate) fn create_v1(
    out: *mut CUarray,
    wanted: *const CUDA_ARRAY_DESCRIPTOR_v1,
    forward: impl FnOnce(*mut CUarray, *const CUDA_ARRAY_DESCRIPTOR_v1) -> CUresult,
) -> CUresult {
    let shape = Out::claim(wanted.cast_mut()).map(|wanted| {
        let short = wanted.read();
        flat(&CUDA_ARRAY_DESCRIPTOR {
            Width: short.Width as usize,
            Height: short.Height as usize,
            Format: short.Format,
            NumChannels: short.NumChannels,
        })
    });
    counted(Refusable::ArrayCreate, out, shape, None, || {
        forward(out, wanted)
    })
}

/// `cuArray3DCreate`.
pub(crate) fn create_3d(
    out: *mut CUarray,
    wanted: *const CUDA_ARRAY3D_DESCRIPTOR,
    forward: impl FnOnce(*mut CUarray, *const CUDA_ARRAY3D_DESCRIPTOR) -> CUresult,
) -> CUresult {
    let shape = Out::claim(wanted.cast_mut()).map(|wanted| wanted.read());
    counted(Refusable::Array3DCreate, out, shape, None, || {
        forward(out, wanted)
    })
}

/// `cuArray3DCreate` of CUDA 2.
pub(crate) fn create_3d_v1(
    out: *mut CUarray,
    wanted: *const CUDA_ARRAY3D_DESCRIPTOR_v1,
    forward: impl FnOnce(*mut CUarray, *const CUDA_ARRAY3D_DESCRIPTOR_v1) -> CUresult,
) -> CUresult {
    let shape = Out::claim(wanted.cast_mut()).map(|wanted| {
        let short = wanted.read();
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: short.Width as usize,
            Height: short.Height as usize,
            Depth: short.Depth as usize,
            Format: short.Format,
            NumChannels: short.NumChannels,
            Flags: short.Flags,
        }
    });
    counted(Refusable::Array3DCreate, out, shape, None, || {
        forward(out, wanted)
    })
}

/// `cuMipmappedArrayCreate`.
pub(crate) fn create_mipmapped(
    out: *mut CUmipmappedArray,
    wanted: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
    forward: impl FnOnce(*mut CUmipmappedArray, *const CUDA_ARRAY3D_DESCRIPTOR, c_uint) -> CUresult,
) -> CUresult {
    let shape = Out::claim(wanted.cast_mut()).map(|wanted| wanted.read());
    let function = Refusable::MipmappedArrayCreate;
    counted(function, out, shape, Some(levels), || {
        forward(out, wanted, levels)
    })
}

fn flat(wanted: &CUDA_ARRAY_DESCRIPTOR) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: wanted.Width,
        Height: wanted.Height,
        Depth: 0,
        Format: wanted.Format,
        NumChannels: wanted.NumChannels,
        Flags: 0,
    }
}

/// Creates under a reservation; `levels` for a mipmapped array.
fn counted<H: Copy + Into<Handle>>(
    function: Refusable,
    out: *mut H,
    shape: Option<CUDA_ARRAY3D_DESCRIPTOR>,
    levels: Option<c_uint>,
    forward: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(shape) = shape.filter(|shape| shape.Width > 0 && !out.is_null()) else {
        return forward();
    };
    let place = match memory::place() {
        Ok(place) => place,
        Err(Elsewhere::Forward) => return forward(),
        Err(Elsewhere::Refuse(code)) => return code,
    };
    let bytes = needed(&shape, levels);
    let units = ledger::units(bytes);
    let Ok(reservation) = account::reserve(
        place.seat,
        place.device,
        Request::of(function, bytes),
        units,
    ) else {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    };
    let result = forward();
    if result == SUCCESS
        && let Some(out) = Out::claim(out)
    {
        let live = Live {
            units: reservation.commit(),
            device: place.device,
            context: place.context,
        };
        let Handle(handle) = out.read().into();
        let former = LIVE.lock().insert(handle, live);
        // The driver has given the handle again, so the former one ended on a way that we do not see.
        give_back(handle, former);
    }
    result
}

/// An array's handle of either kind, as a number.
#[derive(Clone, Copy)]
struct Handle(usize);

impl From<CUarray> for Handle {
    fn from(array: CUarray) -> Self {
        Self(array as usize)
    }
}

impl From<CUmipmappedArray> for Handle {
    fn from(array: CUmipmappedArray) -> Self {
        Self(array as usize)
    }
}

/// The bytes that an array of this shape takes.
fn needed(shape: &CUDA_ARRAY3D_DESCRIPTOR, levels: Option<c_uint>) -> u64 {
    if shape.Flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE) != 0 {
        return 0;
    }
    let twin = CUDA_ARRAY3D_DESCRIPTOR {
        Flags: shape.Flags | CUDA_ARRAY3D_DEFERRED_MAPPING,
        ..*shape
    };
    let asked = match levels {
        None => needed_by_twin(&twin),
        Some(levels) => needed_by_mipmapped_twin(&twin, levels),
    };
    asked.unwrap_or_else(|| {
        let texels = ffi::texels::nominal_bytes(shape).unwrap_or(0);
        match levels {
            // All levels together are at most a third larger than the first, of a picture.
            Some(levels) if levels > 1 => texels.saturating_add(texels / 3),
            _ => texels,
        }
    })
}

fn needed_by_twin(twin: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<u64> {
    let mut array: CUarray = std::ptr::null_mut();
    let mut found = NO_REQUIREMENTS;
    let device = current_device()?;
    // SAFETY: a place for one handle and a descriptor of ours.
    if unsafe { crate::real::cuArray3DCreate_v2(&mut array, twin) } != SUCCESS {
        return None;
    }
    // SAFETY: a place for the answer, and the handle that was just made.
    let asked = unsafe { crate::real::cuArrayGetMemoryRequirements(&mut found, array, device) };
    // SAFETY: the handle that was just made, which nobody else knows.
    unsafe { crate::real::cuArrayDestroy(array) };
    (asked == SUCCESS).then_some(found.size as u64)
}

fn needed_by_mipmapped_twin(twin: &CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> Option<u64> {
    let mut array: CUmipmappedArray = std::ptr::null_mut();
    let mut found = NO_REQUIREMENTS;
    let device = current_device()?;
    // SAFETY: a place for one handle and a descriptor of ours.
    if unsafe { crate::real::cuMipmappedArrayCreate(&mut array, twin, levels) } != SUCCESS {
        return None;
    }
    // SAFETY: a place for the answer, and the handle that was just made.
    let asked =
        unsafe { crate::real::cuMipmappedArrayGetMemoryRequirements(&mut found, array, device) };
    // SAFETY: the handle that was just made, which nobody else knows.
    unsafe { crate::real::cuMipmappedArrayDestroy(array) };
    (asked == SUCCESS).then_some(found.size as u64)
}

fn current_device() -> Option<ffi::driver::CUdevice> {
    let mut device = 0;
    // SAFETY: a place for one number.
    (unsafe { crate::real::cuCtxGetDevice(&mut device) } == SUCCESS).then_some(device)
}

/// `cuArrayDestroy`.
pub(crate) fn destroy(array: CUarray, forward: impl FnOnce(CUarray) -> CUresult) -> CUresult {
    ended(array as usize, || forward(array))
}

/// `cuMipmappedArrayDestroy`.
pub(crate) fn destroy_mipmapped(
    array: CUmipmappedArray,
    forward: impl FnOnce(CUmipmappedArray) -> CUresult,
) -> CUresult {
    ended(array as usize, || forward(array))
}

/// Taken out before the driver destroys it: afterwards, another thread may be given the same handle.
fn ended(handle: usize, forward: impl FnOnce() -> CUresult) -> CUresult {
    let live = LIVE.lock().remove(&handle);
    let result = forward();
    if result == SUCCESS {
        give_back(handle, live);
    } else if let Some(live) = live {
        LIVE.lock().insert(handle, live);
    }
    result
}

fn give_back(handle: usize, live: Option<Live>) {
    if let (Some(seat), Some(live)) = (session::seat(), live) {
        account::release(seat, live.device, live.units);
        vmm::array_ended(seat, handle);
    }
}

/// Gives back the arrays of a context that has ended.
pub(crate) fn context_ended(context: usize) {
    let mut gone = Vec::new();
    LIVE.lock().retain(|handle, live| {
        let stays = live.context != context;
        if !stays {
            gone.push((*handle, *live));
        }
        stays
    });
    for (handle, live) in gone {
        give_back(handle, Some(live));
    }
}

/// `cuMemMapArrayAsync`: charges nothing, and holds the memory.
pub(crate) fn map(
    list: *mut CUarrayMapInfo,
    count: c_uint,
    stream: CUstream,
    forward: impl FnOnce(*mut CUarrayMapInfo, c_uint, CUstream) -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward(list, count, stream);
    };
    // Read before: the list is the host's, and the memory's handle may be released at once.
    let wanted: Vec<vmm::ArrayMap> = (0..count as usize)
        .filter_map(|index| Out::claim(list.wrapping_add(index)))
        .map(|info| vmm::ArrayMap::of(&info.read()))
        .collect();
    let result = forward(list, count, stream);
    if result == SUCCESS {
        for map in wanted {
            vmm::array_mapped(seat, map);
        }
    }
    result
}
