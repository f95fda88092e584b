//! Stream-ordered allocation: `cuMemAllocAsync` and its pools.
//!
//! A pool takes device memory in pieces of the driver's choice and keeps it when an allocation is freed,
//! so what counts is what the pool has *reserved*, and the driver says that at any time. A request that
//! may make a pool grow is reserved first; afterwards the charge is set to the pool's reserved bytes.
//! Memory goes back at synchronisation, so those calls look again, in processes that have pools.
//!
//! Where the driver cannot say, the requests themselves are the charge. A call inside a stream capture
//! makes a node of a graph and takes nothing now: it goes through untouched.
//!
//! The lock is held while the driver is asked for an attribute, unlike anywhere else: that call takes
//! no lock of ours and waits for no work, and between the reading and the charge nobody may come.

mod charge;

pub(crate) use charge::trim;

use crate::account::{self, Request};
use crate::claim::Out;
use crate::device::{self, Index};
use crate::gate;
use crate::graph_memory;
use crate::memory;
use crate::session::{self, Seat};
use charge::{begin, end, forget, look_again};
use ffi::driver::{
    CUcontext, CUdevice, CUdeviceptr, CUmemAllocationType, CUmemLocationType, CUmemPoolProps,
    CUmemoryPool, CUresult, CUstream, CUstreamCaptureStatus,
};
use ffi::wire::Refusable;
use std::ffi::c_int;

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Which of the two default streams handle 0 means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Flavour {
    Legacy,
    PerThread,
}

/// `cuMemAllocAsync`: from the current pool of the stream's device.
pub(crate) fn alloc_async(
    out: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    forward: impl FnOnce(*mut CUdeviceptr, usize, CUstream) -> CUresult,
) -> CUresult {
    alloc(Flavour::Legacy, out, bytes, None, stream, |out| {
        forward(out, bytes, stream)
    })
}

/// `cuMemAllocAsync_ptsz`.
pub(crate) fn alloc_async_per_thread(
    out: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
    forward: impl FnOnce(*mut CUdeviceptr, usize, CUstream) -> CUresult,
) -> CUresult {
    alloc(Flavour::PerThread, out, bytes, None, stream, |out| {
        forward(out, bytes, stream)
    })
}

/// `cuMemAllocFromPoolAsync`.
pub(crate) fn alloc_from(
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
    forward: impl FnOnce(*mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> CUresult,
) -> CUresult {
    alloc(Flavour::Legacy, out, bytes, Some(pool), stream, |out| {
        forward(out, bytes, pool, stream)
    })
}

/// `cuMemAllocFromPoolAsync_ptsz`.
pub(crate) fn alloc_from_per_thread(
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
    forward: impl FnOnce(*mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> CUresult,
) -> CUresult {
    alloc(Flavour::PerThread, out, bytes, Some(pool), stream, |out| {
        forward(out, bytes, pool, stream)
    })
}

fn alloc(
    flavour: Flavour,
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: Option<CUmemoryPool>,
    stream: CUstream,
    forward: impl FnOnce(*mut CUdeviceptr) -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return if session::is_waiting() {
            CUresult::CUDA_ERROR_NOT_INITIALIZED
        } else {
            forward(out)
        };
    };
    let Some(place) = Out::claim(out) else {
        return forward(out);
    };
    if bytes == 0 || is_capturing(flavour, stream) {
        return forward(out);
    }
    let function = match pool {
        Some(_) => Refusable::MemAllocFromPool,
        None => Refusable::MemAllocAsync,
    };
    let Some(pool) = pool.or_else(|| current_pool(stream)) else {
        return forward(out);
    };
    let Some(device) = device_of(seat, pool, stream) else {
        // Not the tenant's device, or none: the driver refuses nonsense, we the rest.
        return if pool.is_null() {
            forward(out)
        } else {
            OUT_OF_MEMORY
        };
    };
    let request = Request::of(function, bytes as u64);
    let Some(begun) = begin(seat, pool, device, request) else {
        return OUT_OF_MEMORY;
    };
    let mut address = 0;
    let result = forward(&mut address);
    let fits = end(seat, pool, begun, (result == SUCCESS).then_some(address));
    if result != SUCCESS {
        return result;
    }
    if !fits {
        // The stream may have to get to the free first: then a later synchronisation trims.
        give_back(flavour, address, stream);
        trim(seat);
        account::count_refusal(seat, device, request);
        return OUT_OF_MEMORY;
    }
    place.write(address);
    SUCCESS
}

fn give_back(flavour: Flavour, address: CUdeviceptr, stream: CUstream) {
    // The driver gave this address a moment ago, for this stream, and nobody else knows it.
    let result = match flavour {
        // SAFETY: see above.
        Flavour::Legacy => unsafe { crate::real::cuMemFreeAsync(address, stream) },
        // SAFETY: see above.
        Flavour::PerThread => unsafe { crate::real::cuMemFreeAsync_ptsz(address, stream) },
    };
    if result == SUCCESS {
        forget(address);
    }
}

/// `cuMemFreeAsync`: of a pool's allocation, or of one that `cuMemAlloc` made.
pub(crate) fn free_async(
    pointer: CUdeviceptr,
    stream: CUstream,
    forward: impl FnOnce(CUdeviceptr, CUstream) -> CUresult,
) -> CUresult {
    memory::freed(pointer, || forward(pointer, stream))
}

/// A free has succeeded: it may have been of a pool's allocation.
pub(crate) fn after_free(seat: Seat, pointer: CUdeviceptr) {
    if forget(pointer) {
        look_again(seat);
    }
}

/// `cuMemPoolCreate`.
pub(crate) fn create(
    out: *mut CUmemoryPool,
    properties: *const CUmemPoolProps,
    forward: impl FnOnce(*mut CUmemoryPool, *const CUmemPoolProps) -> CUresult,
) -> CUresult {
    let result = forward(out, properties);
    if result == SUCCESS
        && let (Some(seat), Some(out)) = (session::seat(), Out::claim(out))
        && let Some(properties) = Out::claim(properties.cast_mut()).map(|place| place.read())
        && properties.location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE
        && properties.allocType == CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED
    {
        // SAFETY: every member of the union is an int, or begins with one.
        let ordinal = unsafe { properties.location.__bindgen_anon_1.id };
        if let Some(device) = device::by_ordinal(seat.pages, ordinal) {
            charge::created(out.read(), device);
        }
    }
    result
}

/// `cuMemPoolDestroy`: the pool goes at once, its memory with its last allocation.
pub(crate) fn destroy(
    pool: CUmemoryPool,
    forward: impl FnOnce(CUmemoryPool) -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward(pool);
    };
    let result = forward(pool);
    if result == SUCCESS {
        charge::destroyed(pool);
        look_again(seat);
    }
    result
}

/// `cuMemPoolTrimTo`.
pub(crate) fn trim_to(
    pool: CUmemoryPool,
    keep: usize,
    forward: impl FnOnce(CUmemoryPool, usize) -> CUresult,
) -> CUresult {
    let result = forward(pool, keep);
    after_synchronisation(result);
    result
}

/// `cuStreamSynchronize`.
pub(crate) fn synchronize_stream(
    stream: CUstream,
    forward: impl FnOnce(CUstream) -> CUresult,
) -> CUresult {
    let result = forward(stream);
    if result == SUCCESS {
        gate::stream_synchronised(stream, Flavour::Legacy);
    }
    after_synchronisation(result);
    result
}

/// `cuStreamSynchronize_ptsz`.
pub(crate) fn synchronize_stream_per_thread(
    stream: CUstream,
    forward: impl FnOnce(CUstream) -> CUresult,
) -> CUresult {
    let result = forward(stream);
    if result == SUCCESS {
        gate::stream_synchronised(stream, Flavour::PerThread);
    }
    after_synchronisation(result);
    result
}

/// `cuEventSynchronize`.
pub(crate) fn synchronize_event(
    event: ffi::driver::CUevent,
    forward: impl FnOnce(ffi::driver::CUevent) -> CUresult,
) -> CUresult {
    let result = forward(event);
    after_synchronisation(result);
    result
}

/// `cuCtxSynchronize`.
pub(crate) fn synchronize_context(forward: impl FnOnce() -> CUresult) -> CUresult {
    let result = forward();
    if result == SUCCESS {
        gate::context_synchronised(std::ptr::null_mut());
    }
    after_synchronisation(result);
    result
}

/// `cuCtxSynchronize` of CUDA 13, of a named context.
pub(crate) fn synchronize_named_context(
    context: CUcontext,
    forward: impl FnOnce(CUcontext) -> CUresult,
) -> CUresult {
    let result = forward(context);
    if result == SUCCESS {
        gate::context_synchronised(context);
    }
    after_synchronisation(result);
    result
}

fn after_synchronisation(result: CUresult) {
    if result == SUCCESS
        && (charge::is_used() || graph_memory::is_used())
        && let Some(seat) = session::seat()
    {
        synchronised(seat);
    }
}

/// The driver has waited for work, and pools may have given memory back: after a synchronisation, and
/// after a free or the end of a context, which wait as well.
pub(crate) fn synchronised(seat: Seat) {
    graph_memory::synchronised(seat);
    if !charge::is_used() {
        return;
    }
    if charge::was_over() {
        trim(seat);
    } else {
        look_again(seat);
    }
}

pub(crate) fn is_capturing(flavour: Flavour, stream: CUstream) -> bool {
    let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
    let result = match flavour {
        // SAFETY: a place for one status; a handle that is none is the driver's to refuse.
        Flavour::Legacy => unsafe { crate::real::cuStreamIsCapturing(stream, &mut status) },
        // SAFETY: as above.
        Flavour::PerThread => unsafe { crate::real::cuStreamIsCapturing_ptsz(stream, &mut status) },
    };
    // 906 says that a capture elsewhere forbids the question; the call itself will hear the same.
    result == CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
        || (result == SUCCESS && status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE)
}

/// CUDA's number of the stream's device: a default stream's is the current context's.
fn ordinal_of(stream: CUstream) -> Option<CUdevice> {
    let mut device: CUdevice = 0;
    // The handles 0, 1 and 2 are names of default streams.
    if stream as usize <= 2 {
        // SAFETY: a place for one number.
        let result = unsafe { crate::real::cuCtxGetDevice(&mut device) };
        return (result == SUCCESS).then_some(device);
    }
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: a place for one handle; a stream that is none is the driver's to refuse.
    if unsafe { crate::real::cuStreamGetCtx(stream, &mut context) } != SUCCESS {
        return None;
    }
    // SAFETY: the driver's own handle.
    if unsafe { crate::real::cuCtxPushCurrent_v2(context) } != SUCCESS {
        return None;
    }
    // SAFETY: a place for one number.
    let result = unsafe { crate::real::cuCtxGetDevice(&mut device) };
    // SAFETY: a place for one handle; takes off what was pushed above.
    unsafe { crate::real::cuCtxPopCurrent_v2(&mut context) };
    (result == SUCCESS).then_some(device)
}

fn current_pool(stream: CUstream) -> Option<CUmemoryPool> {
    let device = ordinal_of(stream)?;
    let mut pool: CUmemoryPool = std::ptr::null_mut();
    // SAFETY: a place for one handle.
    let result = unsafe { crate::real::cuDeviceGetMemPool(&mut pool, device) };
    // Without its pool, the requests themselves are counted under no pool's name.
    (result == SUCCESS).then_some(pool)
}

/// The tenant's device that a pool lies on: as it was created, or the device that came with it.
fn device_of(seat: Seat, pool: CUmemoryPool, stream: CUstream) -> Option<Index> {
    let known = charge::device(pool);
    known.or_else(|| {
        let ordinal = owner_of(pool, ordinal_of(stream)?);
        device::by_ordinal(seat.pages, ordinal)
    })
}

/// CUDA's number of the device whose default pool this is: of all of them, the likely one first, which
/// it also is where the driver cannot say.
fn owner_of(pool: CUmemoryPool, likely: CUdevice) -> CUdevice {
    let is_default_of = |device: CUdevice| {
        let mut default: CUmemoryPool = std::ptr::null_mut();
        // SAFETY: a place for one handle.
        let result = unsafe { crate::real::cuDeviceGetDefaultMemPool(&mut default, device) };
        result == SUCCESS && default == pool
    };
    let mut count: c_int = 0;
    // SAFETY: a place for one number.
    if is_default_of(likely) || unsafe { crate::real::cuDeviceGetCount(&mut count) } != SUCCESS {
        return likely;
    }
    (0..count)
        .find(|device| is_default_of(*device))
        .unwrap_or(likely)
}
