//! Contexts: their end frees the linear memory and the arrays in them.
//!
//! `cuMemCreate` memory belongs to no context and stays.

use crate::claim::Out;
use crate::session;
use crate::{account, array, blocks, gate, pool};
use ffi::driver::{CUcontext, CUdevice, CUresult};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Primary contexts by CUDA's device number, as `cuDevicePrimaryCtxRetain` gave them.
static PRIMARY: [AtomicUsize; 64] = [const { AtomicUsize::new(0) }; 64];

fn primary(device: CUdevice) -> Option<&'static AtomicUsize> {
    PRIMARY.get(usize::try_from(device).ok()?)
}

/// `cuDevicePrimaryCtxRetain`: remembers which context is the device's primary one.
pub(crate) fn retain_primary(
    out: *mut CUcontext,
    device: CUdevice,
    forward: impl FnOnce(*mut CUcontext, CUdevice) -> CUresult,
) -> CUresult {
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

fn ended(context: usize) {
    if context == 0 {
        return;
    }
    gate::context_ended(context);
    if let Some(seat) = session::seat() {
        for block in blocks::take_context(context) {
            account::release(seat, block.device, block.units);
        }
        array::context_ended(context);
        pool::synchronised(seat);
    }
}
