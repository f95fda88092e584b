//! Contexts: each thread's stack, the primary ones, limits, what a destroyed one answers.

use crate::check::Checks;
use crate::tools::{allocate, context};
use ffi::driver::*;
use std::ptr::null_mut;

pub(crate) fn play(t: &Checks) {
    without_one(t);
    primary(t);
    stack(t);
    threads(t);
    settings(t);
    destroyed(t);
}

fn without_one(t: &Checks) {
    ok!(t, cuInit(0));
    let mut current = null_mut();
    ok!(t, cuCtxGetCurrent(&mut current));
    t.holds("no context at first", current.is_null());
    let (mut at, mut free, mut total, mut device) = (7u64, 7usize, 7usize, -7);
    untouched!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        at,
        cuMemAlloc_v2(&mut at, 512)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        free,
        cuMemGetInfo_v2(&mut free, &mut total)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        device,
        cuCtxGetDevice(&mut device)
    );
    answers!(t, CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
    answers!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        cuStreamCreate(&mut null_mut(), 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        cuEventCreate(&mut null_mut(), 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        cuCtxPopCurrent_v2(&mut current)
    );
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuCtxGetCurrent(null_mut()));
    ok!(t, cuCtxSetCurrent(null_mut()));
}

fn primary(t: &Checks) {
    let (mut flags, mut active) = (7, 7);
    ok!(t, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    t.is("inactive at first", (flags, active), (0, 0));
    answers!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        cuDevicePrimaryCtxRelease_v2(0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuDevicePrimaryCtxRetain(null_mut(), 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        cuDevicePrimaryCtxRetain(&mut null_mut(), 1000)
    );
    ok!(t, cuDevicePrimaryCtxSetFlags_v2(0, 4));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuDevicePrimaryCtxSetFlags_v2(0, 0xf000)
    );
    let first = context(t);
    let mut second = null_mut();
    ok!(t, cuDevicePrimaryCtxRetain(&mut second, 0));
    t.holds("one primary context", first == second);
    ok!(t, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    t.is("active, with its flags", (flags & 7, active), (4, 1));
    ok!(t, cuDevicePrimaryCtxRelease_v2(0));
    allocate(t, 4096);
    ok!(t, cuDevicePrimaryCtxRelease_v2(0));
    ok!(t, cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    t.is("inactive after the last release", active, 0);
    answers!(
        t,
        CUDA_ERROR_INVALID_CONTEXT,
        cuDevicePrimaryCtxRelease_v2(0)
    );
    ok!(t, cuCtxSetCurrent(null_mut()));
    context(t);
    ok!(t, cuDevicePrimaryCtxReset_v2(0));
    ok!(t, cuDevicePrimaryCtxRelease_v2(0));
    ok!(t, cuCtxSetCurrent(null_mut()));
}

fn stack(t: &Checks) {
    let primary = context(t);
    let (mut first, mut second, mut seen) = (null_mut(), null_mut(), null_mut());
    ok!(t, cuCtxCreate_v2(&mut first, 0, 0));
    ok!(t, cuCtxCreate_v2(&mut second, 0, 0));
    t.holds("contexts of their own", first != second && first != primary);
    ok!(t, cuCtxGetCurrent(&mut seen));
    t.holds("a new context is current", seen == second);
    ok!(t, cuCtxPushCurrent_v2(primary));
    ok!(t, cuCtxPushCurrent_v2(first));
    ok!(t, cuCtxPopCurrent_v2(&mut seen));
    t.holds("the last pushed is popped first", seen == first);
    ok!(t, cuCtxPopCurrent_v2(null_mut()));
    ok!(t, cuCtxGetCurrent(&mut seen));
    t.holds("what lay below is current again", seen == second);
    // The current one is taken off the stack as well.
    ok!(t, cuCtxDestroy_v2(second));
    ok!(t, cuCtxGetCurrent(&mut seen));
    t.holds("below it lay the first", seen == first);
    ok!(t, cuCtxSetCurrent(primary));
    ok!(t, cuCtxGetCurrent(&mut seen));
    t.holds("setting replaces the top", seen == primary);
    ok!(t, cuCtxDestroy_v2(first));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuCtxCreate_v2(null_mut(), 0, 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        cuCtxCreate_v2(&mut first, 0, 1000)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuCtxCreate_v2(&mut first, 0xffff_0000, 0)
    );
    ok!(t, cuCtxGetCurrent(&mut seen));
    t.holds("a context that is refused pushes nothing", seen == primary);
    let mut device = -7;
    ok!(t, cuCtxGetDevice(&mut device));
    t.is("its device", device, 0);
}

fn threads(t: &Checks) {
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let mut seen = null_mut();
            ok!(t, cuCtxGetCurrent(&mut seen));
            t.holds("a thread begins with an empty stack", seen.is_null());
            answers!(t, CUDA_ERROR_INVALID_CONTEXT, cuCtxSynchronize());
        });
        other.join().expect("the checks of another thread");
    });
}

fn settings(t: &Checks) {
    use CUlimit_enum as L;
    let mut value = 0;
    for limit in [
        L::CU_LIMIT_STACK_SIZE,
        L::CU_LIMIT_PRINTF_FIFO_SIZE,
        L::CU_LIMIT_MALLOC_HEAP_SIZE,
    ] {
        ok!(t, cuCtxGetLimit(&mut value, limit));
        t.holds("a limit", value > 0);
    }
    ok!(t, cuCtxSetLimit(L::CU_LIMIT_MALLOC_HEAP_SIZE, 16 << 20));
    ok!(t, cuCtxGetLimit(&mut value, L::CU_LIMIT_MALLOC_HEAP_SIZE));
    t.holds("at least what was set", value >= 16 << 20);
    answers!(
        t,
        CUDA_ERROR_UNSUPPORTED_LIMIT,
        cuCtxGetLimit(&mut value, CUlimit_enum(900))
    );
    answers!(
        t,
        CUDA_ERROR_UNSUPPORTED_LIMIT,
        cuCtxSetLimit(CUlimit_enum(900), 1)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuCtxGetLimit(null_mut(), L::CU_LIMIT_STACK_SIZE)
    );
    let (mut least, mut greatest) = (-100, 100);
    ok!(t, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    t.holds(
        "the greatest priority is the lowest number",
        greatest <= least,
    );
    ok!(t, cuCtxGetStreamPriorityRange(null_mut(), null_mut()));
    let (mut context, mut version) = (null_mut(), 0);
    ok!(t, cuCtxGetCurrent(&mut context));
    ok!(t, cuCtxGetApiVersion(context, &mut version));
    t.holds("a version of the interface", version >= 3010);
    let (mut first, mut second, mut other) = (0, 0, null_mut());
    ok!(t, cuCtxGetId(context, &mut first));
    ok!(t, cuCtxCreate_v2(&mut other, 0, 0));
    ok!(t, cuCtxGetId(null_mut(), &mut second));
    t.holds("each context has a number of its own", first != second);
    ok!(t, cuCtxDestroy_v2(other));
}

fn destroyed(t: &Checks) {
    let mut gone = null_mut();
    ok!(t, cuCtxCreate_v2(&mut gone, 0, 0));
    allocate(t, 1 << 20);
    std::thread::scope(|scope| {
        let address = gone as usize;
        let other = scope.spawn(move || ok!(t, cuCtxDestroy_v2(address as CUcontext)));
        other.join().expect("the checks of another thread");
    });
    // It stays on this thread's stack, and cannot be used.
    let mut at = 7u64;
    untouched!(
        t,
        CUDA_ERROR_CONTEXT_IS_DESTROYED,
        at,
        cuMemAlloc_v2(&mut at, 512)
    );
    answers!(t, CUDA_ERROR_CONTEXT_IS_DESTROYED, cuCtxSynchronize());
    ok!(t, cuCtxPopCurrent_v2(&mut gone));
    answers!(t, CUDA_ERROR_INVALID_CONTEXT, cuCtxDestroy_v2(null_mut()));
    ok!(t, cuCtxSynchronize());
}
