//! A process that is locked, taken off its devices, brought back and let go, by itself.

use crate::check::{Checks, named};
use crate::tools::{allocate, bytes_at, context};
use ffi::driver::*;
use std::ffi::c_int;
use std::ptr::null_mut;

pub(crate) fn play(t: &Checks) {
    context(t);
    let own = std::process::id() as c_int;
    let mut version = 0;
    ok!(t, cuDriverGetVersion(&mut version));
    if version < 12080 {
        println!("NOT RUN: checkpoints came with CUDA 12.8, and the driver is of {version}");
        return;
    }
    let at = allocate(t, 1 << 20);
    ok!(t, cuMemsetD8_v2(at, 42, 1 << 20));
    ok!(t, cuCtxSynchronize());
    state(t, own, "before", 0);
    let refused = CUresult::CUDA_ERROR_ILLEGAL_STATE;
    let code = call!(t, cuCheckpointProcessCheckpoint(own, null_mut()));
    t.is("only locked", named(code), named(refused));
    let code = call!(t, cuCheckpointProcessUnlock(own, null_mut()));
    t.is("not locked", named(code), named(refused));
    // SAFETY: numbers, for which zeros are a value.
    let mut args: CUcheckpointLockArgs = unsafe { std::mem::zeroed() };
    args.timeoutMs = 10_000;
    ok!(t, cuCheckpointProcessLock(own, &mut args));
    state(t, own, "locked", 1);
    ok!(t, cuCheckpointProcessCheckpoint(own, null_mut()));
    state(t, own, "off the device", 2);
    ok!(t, cuCheckpointProcessRestore(own, null_mut()));
    state(t, own, "back", 1);
    ok!(t, cuCheckpointProcessUnlock(own, null_mut()));
    state(t, own, "after", 0);
    t.is("its memory", bytes_at(t, at + 12345, 1), vec![42]);
    ok!(t, cuMemFree_v2(at));
}

fn state(t: &Checks, process: c_int, when: &str, documented: u32) {
    let mut state = CUprocessState_enum(77);
    ok!(t, cuCheckpointProcessGetState(process, &mut state));
    t.is(when, state.0, documented);
}
