//! Streams and events: order, priorities, the default streams, queries, times.

use crate::check::Checks;
use crate::tools::{context, event, number, spin, spinner, stream};
use ffi::driver::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// Long enough that what is asked while it runs is asked while it runs.
const LONG: u64 = 300;

pub(crate) fn play(t: &Checks) {
    let primary = context(t);
    properties(t, primary);
    let (_, kernel) = spinner(t);
    order(t, kernel);
    defaults(t, kernel);
    host_functions(t, kernel);
    events(t, kernel);
}

fn properties(t: &Checks, primary: CUcontext) {
    let (mut least, mut greatest, mut value) = (0, 0, 7);
    ok!(t, cuCtxGetStreamPriorityRange(&mut least, &mut greatest));
    let mut lane = null_mut();
    ok!(t, cuStreamCreateWithPriority(&mut lane, 1, greatest));
    ok!(t, cuStreamGetPriority(lane, &mut value));
    t.holds("the priority", value == greatest);
    let mut flags = 7;
    ok!(t, cuStreamGetFlags(lane, &mut flags));
    t.is("the flags", flags, 1);
    ok!(t, cuStreamDestroy_v2(lane));
    ok!(t, cuStreamCreateWithPriority(&mut lane, 0, greatest - 100));
    ok!(t, cuStreamGetPriority(lane, &mut value));
    t.holds("beyond the range: the nearest", value == greatest);
    let mut owner = null_mut();
    ok!(t, cuStreamGetCtx(lane, &mut owner));
    t.holds("its context", owner == primary);
    let (mut first, mut second) = (0, 0);
    ok!(t, cuStreamGetId(lane, &mut first));
    ok!(t, cuStreamGetId(null_mut(), &mut second));
    t.holds("numbers of their own", first != second);
    ok!(t, cuStreamDestroy_v2(lane));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuStreamCreate(null_mut(), 0));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuStreamCreate(&mut lane, 0x40));
    let mut status = CUstreamCaptureStatus_enum(7);
    let lane = stream(t, 1);
    ok!(t, cuStreamIsCapturing(lane, &mut status));
    t.is("not capturing", status.0, 0);
    ok!(t, cuStreamDestroy_v2(lane));
}

fn order(t: &Checks, kernel: CUfunction) {
    let (busy, apart, after) = (stream(t, 1), stream(t, 1), stream(t, 1));
    ok!(t, cuStreamQuery(busy));
    let gate = event(t, 0);
    spin(t, kernel, LONG, busy);
    ok!(t, cuEventRecord(gate, busy));
    ok!(t, cuStreamWaitEvent(after, gate, 0));
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(busy));
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(after));
    answers!(t, CUDA_ERROR_NOT_READY, cuEventQuery(gate));
    ok!(t, cuStreamQuery(apart));
    ok!(t, cuStreamSynchronize(after));
    ok!(t, cuStreamQuery(busy));
    ok!(t, cuEventQuery(gate));
    // A stream that is destroyed at work ends its work.
    spin(t, kernel, LONG, busy);
    ok!(t, cuEventRecord(gate, busy));
    ok!(t, cuStreamDestroy_v2(busy));
    answers!(t, CUDA_ERROR_NOT_READY, cuEventQuery(gate));
    ok!(t, cuEventSynchronize(gate));
    ok!(t, cuStreamDestroy_v2(apart));
    ok!(t, cuStreamDestroy_v2(after));
    ok!(t, cuEventDestroy_v2(gate));
}

fn defaults(t: &Checks, kernel: CUfunction) {
    let (blocking, free) = (stream(t, 0), stream(t, 1));
    let legacy: CUstream = number(1).cast();
    let thread: CUstream = number(2).cast();
    spin(t, kernel, LONG, null_mut());
    let done = event(t, 0);
    ok!(t, cuEventRecord(done, blocking));
    answers!(t, CUDA_ERROR_NOT_READY, cuEventQuery(done));
    ok!(t, cuEventRecord(done, free));
    ok!(t, cuEventSynchronize(done));
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(legacy));
    ok!(t, cuStreamSynchronize(null_mut()));
    ok!(t, cuStreamQuery(legacy));
    // The per-thread stream is a blocking stream of its own.
    spin(t, kernel, LONG, thread);
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(thread));
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery_ptsz(null_mut()));
    ok!(t, cuStreamQuery(blocking));
    ok!(t, cuEventRecord(done, legacy));
    answers!(t, CUDA_ERROR_NOT_READY, cuEventQuery(done));
    ok!(t, cuStreamSynchronize_ptsz(null_mut()));
    ok!(t, cuEventSynchronize(done));
    ok!(t, cuCtxSynchronize());
    ok!(t, cuStreamDestroy_v2(blocking));
    ok!(t, cuStreamDestroy_v2(free));
    ok!(t, cuEventDestroy_v2(done));
}

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn add(argument: *mut c_void) {
    CALLS.fetch_add(argument as usize as u32, Ordering::SeqCst);
}

fn host_functions(t: &Checks, kernel: CUfunction) {
    let lane = stream(t, 1);
    spin(t, kernel, LONG, lane);
    ok!(t, cuLaunchHostFunc(lane, Some(add), number(1)));
    ok!(t, cuLaunchHostFunc(lane, Some(add), number(10)));
    t.is("not before its turn", CALLS.load(Ordering::SeqCst), 0);
    ok!(t, cuStreamSynchronize(lane));
    t.is("each once", CALLS.load(Ordering::SeqCst), 11);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuLaunchHostFunc(lane, None, null_mut())
    );
    ok!(t, cuStreamDestroy_v2(lane));
}

fn events(t: &Checks, kernel: CUfunction) {
    let (begin, end, untimed, fresh) = (event(t, 0), event(t, 0), event(t, 2), event(t, 0));
    let mut milliseconds = 7.0;
    // An event that was never recorded is done.
    ok!(t, cuEventQuery(fresh));
    ok!(t, cuEventSynchronize(fresh));
    untouched!(
        t,
        CUDA_ERROR_INVALID_HANDLE,
        milliseconds,
        cuEventElapsedTime(&mut milliseconds, begin, end)
    );
    let lane = stream(t, 1);
    ok!(t, cuStreamWaitEvent(lane, fresh, 0));
    ok!(t, cuStreamSynchronize(lane));
    ok!(t, cuEventRecord(begin, lane));
    spin(t, kernel, 100, lane);
    ok!(t, cuEventRecord(end, lane));
    ok!(t, cuEventRecord(untimed, lane));
    answers!(
        t,
        CUDA_ERROR_NOT_READY,
        cuEventElapsedTime(&mut milliseconds, begin, end)
    );
    ok!(t, cuEventSynchronize(end));
    ok!(t, cuEventElapsedTime(&mut milliseconds, begin, end));
    t.holds("as long as the kernel", milliseconds >= 100.0);
    ok!(t, cuEventSynchronize(untimed));
    answers!(
        t,
        CUDA_ERROR_INVALID_HANDLE,
        cuEventElapsedTime(&mut milliseconds, begin, untimed)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuEventCreate(&mut null_mut(), 0x100)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuEventCreate(&mut null_mut(), 4)
    );
    for event in [begin, end, untimed, fresh] {
        ok!(t, cuEventDestroy_v2(event));
    }
    ok!(t, cuStreamDestroy_v2(lane));
}
