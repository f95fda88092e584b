//! A process that forks: the child cannot use the driver that its parent initialised, the parent goes on.

use crate::check::Checks;
use crate::tools::{MIB, allocate, bytes_at, context};
use ffi::driver::*;
use std::ptr::null_mut;

pub(crate) fn play(t: &Checks) {
    before_initialisation(t);
    context(t);
    let at = allocate(t, MIB);
    ok!(t, cuMemsetD8_v2(at, 7, MIB));
    after_initialisation(t, at);
    t.is("the parent's bytes", bytes_at(t, at, 2), vec![7, 7]);
    ok!(t, cuMemFree_v2(at));
}

/// Runs `body` in a child; what it returned.
fn in_a_child(body: impl FnOnce() -> u8) -> i32 {
    // SAFETY: the child calls the driver and `_exit` alone; this process has no other thread that allocates
    // just now.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let code = body();
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(code.into()) };
    }
    let mut status = 0;
    // SAFETY: our own child.
    unsafe { libc::waitpid(child, &mut status, 0) };
    if libc::WIFEXITED(status) {
        libc::WEXITSTATUS(status)
    } else {
        -1
    }
}

/// The child of a process that has not initialised yet is a process like any other.
fn before_initialisation(t: &Checks) {
    let checks = t;
    let code = in_a_child(|| {
        let (mut context, mut at) = (null_mut(), 0);
        let codes = [
            call!(checks, cuInit(0)),
            call!(checks, cuDevicePrimaryCtxRetain(&mut context, 0)),
            call!(checks, cuCtxSetCurrent(context)),
            call!(checks, cuMemAlloc_v2(&mut at, 4096)),
            call!(checks, cuMemFree_v2(at)),
        ];
        codes.iter().map(|code| code.0 as u8).max().unwrap_or(255)
    });
    t.is("a child before initialisation", code, 0);
}

fn after_initialisation(t: &Checks, at: CUdeviceptr) {
    let checks = t;
    let not_initialised = CUresult::CUDA_ERROR_NOT_INITIALIZED;
    let mut count_up = 0u64;
    let code = in_a_child(|| {
        let codes = [
            call!(checks, cuInit(0)),
            call!(checks, cuMemAlloc_v2(&mut count_up, 4096)),
            call!(checks, cuMemFree_v2(at)),
            call!(checks, cuCtxSynchronize()),
        ];
        codes
            .iter()
            .filter(|code| **code != not_initialised)
            .count() as u8
    });
    t.is("calls of the child that are not refused", code, 0);
}
