//! Contexts: their end frees the linear memory and the arrays in them.
//!
//! `cuMemCreate` memory belongs to no context and stays. What a context itself takes only measuring knows, when it
//! is there; so one may be more than the cap allows, and the next one is refused.

use crate::account::{self, Request};
use crate::claim::Out;
use crate::{array, blocks, device, gate, pool, session};
use ffi::driver::{CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUresult};
use ffi::wire::Refusable;
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Primary contexts by CUDA's device number, as `cuDevicePrimaryCtxRetain` gave them.
static PRIMARY: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn primary(device: CUdevice) -> Option<&'static AtomicUsize> {
    PRIMARY.get(usize::try_from(device).ok()?)
}

/// Contexts are measured twice a second; what has gone is seen after this in any case.
const MEASURED_WITHIN: Duration = Duration::from_millis(1_200);

/// Between two looks meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Counts and says whether a context on `device` is one too many.
fn is_refused(function: Refusable, device: CUdevice) -> bool {
    let Some(seat) = session::seat() else {
        return false;
    };
    let Some(device) = device::by_ordinal(seat.pages, device) else {
        return false;
    };
    // What a process that has just died had is still measured for a moment.
    let begin = Instant::now();
    while account::is_over(seat, device) {
        if begin.elapsed() > MEASURED_WITHIN {
            account::count_refusal(seat, device, Request::of(function, 0));
            return true;
        }
        std::thread::sleep(LOOK);
    }
    false
}

/// `cuCtxCreate` and `_v2`.
pub(crate) fn create(
    out: *mut CUcontext,
    flags: c_uint,
    device: CUdevice,
    forward: impl FnOnce(*mut CUcontext, c_uint, CUdevice) -> CUresult,
) -> CUresult {
    if is_refused(Refusable::CtxCreate, device) {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    forward(out, flags, device)
}

/// `cuCtxCreate` of CUDA 11.4.
pub(crate) fn create_v3(
    out: *mut CUcontext,
    affinities: *mut CUexecAffinityParam,
    count: c_int,
    flags: c_uint,
    device: CUdevice,
    forward: impl FnOnce(*mut CUcontext, *mut CUexecAffinityParam, c_int, c_uint, CUdevice) -> CUresult,
) -> CUresult {
    if is_refused(Refusable::CtxCreate, device) {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    forward(out, affinities, count, flags, device)
}

/// `cuCtxCreate` of CUDA 12.5.
pub(crate) fn create_v4(
    out: *mut CUcontext,
    params: *mut CUctxCreateParams,
    flags: c_uint,
    device: CUdevice,
    forward: impl FnOnce(*mut CUcontext, *mut CUctxCreateParams, c_uint, CUdevice) -> CUresult,
) -> CUresult {
    if is_refused(Refusable::CtxCreate, device) {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    forward(out, params, flags, device)
}

/// `cuDevicePrimaryCtxRetain`: remembers which context is the device's primary one.
pub(crate) fn retain_primary(
    out: *mut CUcontext,
    device: CUdevice,
    forward: impl FnOnce(*mut CUcontext, CUdevice) -> CUresult,
) -> CUresult {
    // One more use of what is there takes nothing.
    if !has_primary(device) && is_refused(Refusable::PrimaryCtxRetain, device) {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    }
    let result = forward(out, device);
    if result == CUresult::CUDA_SUCCESS
        && let (Some(out), Some(place)) = (Out::claim(out), primary(device))
    {
        place.store(out.read() as usize, Ordering::Relaxed);
    }
    result
}

/// `cuDevicePrimaryCtxRelease` and `Reset`: where the context is gone afterwards, so is its memory.
pub(crate) fn release_primary(
    device: CUdevice,
    forward: impl FnOnce(CUdevice) -> CUresult,
) -> CUresult {
    if let Some(place) = primary(device) {
        gate::context_ending(place.load(Ordering::Relaxed));
    }
    let result = forward(device);
    if result == CUresult::CUDA_SUCCESS
        && !is_active(device)
        && let Some(place) = primary(device)
    {
        ended(place.swap(0, Ordering::Relaxed));
    }
    result
}

fn has_primary(device: CUdevice) -> bool {
    primary(device).is_some_and(|place| place.load(Ordering::Relaxed) != 0) || is_active(device)
}

fn is_active(device: CUdevice) -> bool {
    let (mut flags, mut is_active) = (0, 0);
    // SAFETY: places for two numbers.
    let result =
        unsafe { crate::real::cuDevicePrimaryCtxGetState(device, &mut flags, &mut is_active) };
    // A driver that cannot say: believe the charge until the process ends.
    result != CUresult::CUDA_SUCCESS || is_active != 0
}

/// `cuCtxDestroy`.
pub(crate) fn destroy(context: CUcontext, forward: impl FnOnce(CUcontext) -> CUresult) -> CUresult {
    gate::context_ending(context as usize);
    let result = forward(context);
    if result == CUresult::CUDA_SUCCESS {
        ended(context as usize);
    }
    result
}

/// Contexts that were attached to, and how often: so many detachments do not end them.
static ATTACHED: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// `cuCtxAttach`: one more use of the context.
pub(crate) fn attach(
    out: *mut CUcontext,
    flags: c_uint,
    forward: impl FnOnce(*mut CUcontext, c_uint) -> CUresult,
) -> CUresult {
    let result = forward(out, flags);
    if result == CUresult::CUDA_SUCCESS
        && let Some(out) = Out::claim(out)
    {
        let context = out.read() as usize;
        let mut attached = ATTACHED.lock();
        match attached.iter_mut().find(|(known, _)| *known == context) {
            Some((_, count)) => *count += 1,
            None => attached.push((context, 1)),
        }
    }
    result
}

/// `cuCtxDetach`: one use less; the last ends the context.
pub(crate) fn detach(context: CUcontext, forward: impl FnOnce(CUcontext) -> CUresult) -> CUresult {
    let result = forward(context);
    if result == CUresult::CUDA_SUCCESS && !was_attached(context as usize) {
        gate::context_ending(context as usize);
        ended(context as usize);
    }
    result
}

/// Takes one attachment of the context, if there is one.
fn was_attached(context: usize) -> bool {
    let mut attached = ATTACHED.lock();
    let Some(index) = attached.iter().position(|(known, _)| *known == context) else {
        return false;
    };
    if let Some((_, count)) = attached.get_mut(index) {
        *count -= 1;
        if *count == 0 {
            attached.swap_remove(index);
        }
    }
    true
}

fn ended(context: usize) {
    if context == 0 {
        return;
    }
    gate::context_ended(context);
    ATTACHED.lock().retain(|(known, _)| *known != context);
    if let Some(seat) = session::seat() {
        for block in blocks::take_context(context) {
            account::release(seat, block.device, block.units);
        }
        array::context_ended(context);
        pool::synchronised(seat);
    }
}
