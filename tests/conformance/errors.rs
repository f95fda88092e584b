//! Names and texts of errors, and outputs that a failed call leaves as they were.

use crate::check::Checks;
use crate::tools::{MIB, context};
use ffi::driver::*;
use std::ffi::{CStr, c_char};
use std::ptr::{null, null_mut};

pub(crate) fn play(t: &Checks) {
    texts(t);
    context(t);
    outputs(t);
}

/// Works before initialisation as well.
fn texts(t: &Checks) {
    let mut version = 0;
    ok!(t, cuDriverGetVersion(&mut version));
    // All codes that a driver of CUDA 12.2 knows; newer ones depend on the driver.
    let known = |code: u32| !matches!(code, 36 | 47 | 227 | 325 | 721 | 815 | 910 | 911 | 916.. | 226 | 718..=720 | 721..=724);
    for (code, name) in ffi::symbols::ERRORS.iter().filter(|row| known(row.0)) {
        let (mut text, mut long): (*const c_char, *const c_char) = (null(), null());
        ok!(t, cuGetErrorName(cudaError_enum(*code), &mut text));
        t.holds("a name", !text.is_null());
        if !text.is_null() {
            // SAFETY: the driver's own string, with its NUL.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
            t.is("the name of the code", &*text, *name);
        }
        ok!(t, cuGetErrorString(cudaError_enum(*code), &mut long));
        t.holds("a text", !long.is_null());
    }
    for code in [9_999, u32::MAX] {
        let mut text: *const c_char = c"before".as_ptr();
        answers!(
            t,
            CUDA_ERROR_INVALID_VALUE,
            cuGetErrorName(cudaError_enum(code), &mut text)
        );
        t.holds("no name for what is no code", text.is_null());
        text = c"before".as_ptr();
        answers!(
            t,
            CUDA_ERROR_INVALID_VALUE,
            cuGetErrorString(cudaError_enum(code), &mut text)
        );
        t.holds("no text for what is no code", text.is_null());
    }
}

fn outputs(t: &Checks) {
    let (mut at, mut size, mut handle) = (7u64, 7usize, 7u64);
    let huge = 1usize << 46;
    untouched!(
        t,
        CUDA_ERROR_OUT_OF_MEMORY,
        at,
        cuMemAlloc_v2(&mut at, huge)
    );
    untouched!(t, CUDA_ERROR_INVALID_VALUE, at, cuMemAlloc_v2(&mut at, 0));
    untouched!(
        t,
        CUDA_ERROR_OUT_OF_MEMORY,
        at,
        cuMemAllocPitch_v2(&mut at, &mut size, 1 << 20, 1 << 26, 4)
    );
    t.is("the pitch, too", size, 7);
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        at,
        cuMemAllocPitch_v2(&mut at, &mut size, 0, 1, 4)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        at,
        cuMemAllocManaged(&mut at, 0, 1)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        at,
        cuMemAllocManaged(&mut at, MIB, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_OUT_OF_MEMORY,
        at,
        cuMemAllocAsync(&mut at, huge, null_mut())
    );
    untouched!(
        t,
        CUDA_ERROR_NOT_FOUND,
        at,
        cuMemGetAddressRange_v2(&mut at, &mut size, 0x1234)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        handle,
        cuMemRetainAllocationHandle(&mut handle, 0x1234 as *mut _)
    );
    let mut array = 7 as CUarray;
    let shape = CUDA_ARRAY_DESCRIPTOR {
        Width: 1 << 30,
        Height: 1 << 30,
        Format: CUarray_format_enum::CU_AD_FORMAT_FLOAT,
        NumChannels: 4,
    };
    let code = call!(t, cuArrayCreate_v2(&mut array, &shape));
    t.holds(
        "an array beyond all limits is refused",
        code != CUresult::CUDA_SUCCESS,
    );
    t.is("and its place left", array as usize, 7);
    let mut function = 7 as CUfunction;
    let (module, _) = crate::tools::spinner(t);
    untouched!(
        t,
        CUDA_ERROR_NOT_FOUND,
        function,
        cuModuleGetFunction(&mut function, module, c"nowhere".as_ptr())
    );
    untouched!(
        t,
        CUDA_ERROR_NOT_FOUND,
        at,
        cuModuleGetGlobal_v2(&mut at, &mut size, module, c"nowhere".as_ptr())
    );
}
