//! What checks of several families need first.

use crate::check::Checks;
use ffi::driver::*;
use std::ffi::{CString, c_uint, c_void};
use std::ptr::null_mut;

/// Bytes in a MiB.
pub(crate) const MIB: usize = 1 << 20;

/// A second kernel beside the spinning one, and a variable.
const MORE: &str = "
.visible .global .align 4 .u32 counters[10];
.visible .entry scale(.param .u64 data, .param .u32 count) { ret; }
";

/// Initialises, and makes the primary context of device 0 current.
pub(crate) fn context(t: &Checks) -> CUcontext {
    let mut context = null_mut();
    ok!(t, cuInit(0));
    ok!(t, cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(t, cuCtxSetCurrent(context));
    context
}

/// Free bytes of the current context's device.
pub(crate) fn free_bytes(t: &Checks) -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(t, cuMemGetInfo_v2(&mut free, &mut total));
    t.holds("no more is free than there is", free <= total);
    free
}

/// Linear memory.
pub(crate) fn allocate(t: &Checks, bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(t, cuMemAlloc_v2(&mut at, bytes));
    at
}

/// A stream; 0 for a blocking one, 1 for another.
pub(crate) fn stream(t: &Checks, flags: c_uint) -> CUstream {
    let mut stream = null_mut();
    ok!(t, cuStreamCreate(&mut stream, flags));
    stream
}

/// An event.
pub(crate) fn event(t: &Checks, flags: c_uint) -> CUevent {
    let mut event = null_mut();
    ok!(t, cuEventCreate(&mut event, flags));
    event
}

/// Two kernels and a variable, as PTX.
pub(crate) fn image() -> CString {
    CString::new(format!("{}\n{MORE}", sim::kernels::SPIN_PTX)).expect("no NUL in it")
}

/// The module of [`image`], and its kernel that spins.
pub(crate) fn spinner(t: &Checks) -> (CUmodule, CUfunction) {
    let (mut module, mut function) = (null_mut(), null_mut());
    ok!(t, cuModuleLoadData(&mut module, image().as_ptr().cast()));
    ok!(
        t,
        cuModuleGetFunction(&mut function, module, c"spin_ns".as_ptr())
    );
    (module, function)
}

/// Launches one block that spins so long.
pub(crate) fn spin(t: &Checks, function: CUfunction, milliseconds: u64, stream: CUstream) {
    let mut nanoseconds = milliseconds * 1_000_000;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    let none = null_mut();
    ok!(
        t,
        cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, none)
    );
}

/// The bytes that lie at `at`.
pub(crate) fn bytes_at(t: &Checks, at: CUdeviceptr, count: usize) -> Vec<u8> {
    let mut bytes = vec![0u8; count];
    ok!(t, cuMemcpyDtoH_v2(bytes.as_mut_ptr().cast(), at, count));
    bytes
}

/// Bytes that differ from their neighbours.
pub(crate) fn pattern(count: usize) -> Vec<u8> {
    (0..count).map(|index| (index * 7 % 251) as u8).collect()
}

/// A structure of the interface, all zeros.
pub(crate) fn zeroed<T: Copy>() -> T {
    // SAFETY: used for the header's plain structures, of numbers and pointers alone.
    unsafe { std::mem::zeroed() }
}

/// A number where the interface wants a pointer.
pub(crate) fn number(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}
