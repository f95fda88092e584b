//! Modules, libraries, functions, the forms of launch, occupancy.

use crate::check::Checks;
use crate::tools::{context, image, spinner, stream, zeroed};
use ffi::driver::*;
use std::ffi::{CStr, c_void};
use std::ptr::{null, null_mut};

pub(crate) fn play(t: &Checks) {
    context(t);
    modules(t);
    libraries(t);
    launches(t);
    occupancy(t);
}

fn modules(t: &Checks) {
    let (mut module, mut function) = (null_mut(), null_mut());
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuModuleLoadData(&mut module, null())
    );
    answers!(
        t,
        CUDA_ERROR_FILE_NOT_FOUND,
        cuModuleLoad(&mut module, c"/nowhere/at/all".as_ptr())
    );
    let bad = c"no code at all".as_ptr().cast();
    let code = call!(t, cuModuleLoadData(&mut module, bad));
    t.holds("an image of no kind is refused", code.0 != 0);
    t.holds("no module from a bad image", module.is_null());
    ok!(
        t,
        cuModuleLoadDataEx(
            &mut module,
            image().as_ptr().cast(),
            0,
            null_mut(),
            null_mut()
        )
    );
    ok!(
        t,
        cuModuleGetFunction(&mut function, module, c"scale".as_ptr())
    );
    let (mut at, mut size) = (0, 0);
    ok!(
        t,
        cuModuleGetGlobal_v2(&mut at, &mut size, module, c"counters".as_ptr())
    );
    t.is("its variable", (at != 0, size), (true, 40));
    ok!(t, cuMemsetD32_v2(at, 7, 10));
    t.is(
        "can be set",
        crate::tools::bytes_at(t, at + 36, 4),
        vec![7, 0, 0, 0],
    );
    ok!(
        t,
        cuModuleGetGlobal_v2(null_mut(), &mut size, module, c"counters".as_ptr())
    );
    answers!(
        t,
        CUDA_ERROR_NOT_FOUND,
        cuModuleGetFunction(&mut function, module, c"none".as_ptr())
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuModuleGetFunction(null_mut(), module, c"scale".as_ptr())
    );
    let (mut owner, mut value, mut name) = (null_mut(), 0, null());
    ok!(t, cuFuncGetModule(&mut owner, function));
    t.holds("the function's module", owner == module);
    ok!(t, cuFuncGetName(&mut name, function));
    // SAFETY: the driver's own string, with its NUL.
    t.is(
        "its name",
        unsafe { CStr::from_ptr(name) }.to_owned(),
        c"scale".to_owned(),
    );
    let most = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK;
    ok!(t, cuFuncGetAttribute(&mut value, most, function));
    t.is("threads of a block", value, 1024);
    let shared = CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    ok!(t, cuFuncSetAttribute(function, shared, 1024));
    ok!(t, cuFuncGetAttribute(&mut value, shared, function));
    t.is("what was set", value, 1024);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuFuncGetAttribute(&mut value, CUfunction_attribute_enum(900), function)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuFuncSetAttribute(function, most, 10)
    );
    ok!(t, cuModuleUnload(module));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(at, 7, 10));
}

fn libraries(t: &Checks) {
    let (mut library, mut kernel, mut function, mut module) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    let none = null_mut();
    ok!(
        t,
        cuLibraryLoadData(
            &mut library,
            image().as_ptr().cast(),
            none,
            null_mut(),
            0,
            null_mut(),
            null_mut(),
            0
        )
    );
    ok!(
        t,
        cuLibraryGetKernel(&mut kernel, library, c"spin_ns".as_ptr())
    );
    ok!(t, cuKernelGetFunction(&mut function, kernel));
    ok!(t, cuLibraryGetModule(&mut module, library));
    answers!(
        t,
        CUDA_ERROR_NOT_FOUND,
        cuLibraryGetKernel(&mut kernel, library, c"none".as_ptr())
    );
    let (mut at, mut size) = (0, 0);
    ok!(
        t,
        cuLibraryGetGlobal(&mut at, &mut size, library, c"counters".as_ptr())
    );
    t.is("a variable", size, 40);
    let mut count = 0;
    ok!(t, cuLibraryGetKernelCount(&mut count, library));
    t.is("kernels", count, 2);
    let mut nanoseconds = 1000u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    // A kernel without a context may stand in a function's place.
    let lane = stream(t, 1);
    ok!(
        t,
        cuLaunchKernel(
            kernel.cast(),
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            lane,
            parameters,
            null_mut()
        )
    );
    ok!(t, cuStreamSynchronize(lane));
    ok!(t, cuLibraryUnload(library));
}

fn launches(t: &Checks) {
    let (_, kernel) = spinner(t);
    let lane = stream(t, 1);
    let mut nanoseconds = 1000u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    let none = null_mut;
    ok!(
        t,
        cuLaunchKernel(kernel, 3, 2, 1, 32, 2, 1, 0, lane, parameters, none())
    );
    ok!(
        t,
        cuLaunchKernel_ptsz(kernel, 1, 1, 1, 1, 1, 1, 0, null_mut(), parameters, none())
    );
    let mut size = size_of::<u64>();
    let mut extra = [
        std::ptr::without_provenance_mut::<c_void>(1),
        (&raw mut nanoseconds).cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut size).cast(),
        null_mut(),
    ];
    ok!(
        t,
        cuLaunchKernel(
            kernel,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            lane,
            null_mut(),
            extra.as_mut_ptr()
        )
    );
    ok!(
        t,
        cuLaunchCooperativeKernel(kernel, 1, 1, 1, 32, 1, 1, 0, lane, parameters)
    );
    let mut config: CUlaunchConfig = zeroed();
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (2, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (32, 1, 1);
    config.hStream = lane;
    ok!(t, cuLaunchKernelEx(&config, kernel, parameters, none()));
    ok!(t, cuStreamSynchronize(lane));
    for (grid, block, shared) in [(0, 1, 0), (1, 0, 0), (1, 1025, 0), (1, 1, 1 << 30)] {
        answers!(
            t,
            CUDA_ERROR_INVALID_VALUE,
            cuLaunchKernel(
                kernel,
                grid,
                1,
                1,
                block,
                1,
                1,
                shared,
                lane,
                parameters,
                none()
            )
        );
    }
    answers!(
        t,
        CUDA_ERROR_INVALID_HANDLE,
        cuLaunchKernel(null_mut(), 1, 1, 1, 1, 1, 1, 0, lane, parameters, none())
    );
    ok!(t, cuCtxSynchronize());
}

fn occupancy(t: &Checks) {
    let (_, kernel) = spinner(t);
    let (mut blocks, mut grid, mut block) = (0, 0, 0);
    ok!(
        t,
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel, 1024, 0)
    );
    t.holds(
        "at least one block of 1024 threads",
        (1..=2).contains(&blocks),
    );
    ok!(
        t,
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel, 32, 0)
    );
    t.holds("more small blocks", blocks >= 8);
    ok!(
        t,
        cuOccupancyMaxPotentialBlockSize(&mut grid, &mut block, kernel, None, 0, 0)
    );
    t.holds(
        "a grid and a block",
        grid > 0 && block > 0 && block % 32 == 0,
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuOccupancyMaxActiveBlocksPerMultiprocessor(&mut blocks, kernel, 0, 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuOccupancyMaxActiveBlocksPerMultiprocessor(null_mut(), kernel, 32, 0)
    );
}
