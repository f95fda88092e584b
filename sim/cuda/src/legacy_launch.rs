//! Launches as they were before CUDA 4: block shape and parameters are set on the function, one by one, and
//! stay there. And the cooperative launch on several devices, which CUDA 11.3 deprecated.

use std::ffi::{c_float, c_int, c_uint, c_void};

use ffi::driver::{CUDA_LAUNCH_PARAMS, CUfunction, CUresult, CUstream};

use crate::guard::{Answer, INVALID_VALUE, take};
use crate::launch::{Shape, launch_cooperative, submit};
use crate::module::{Function, find_function};
use crate::state::driver;
use crate::stream::Plain;

/// Most bytes of parameters that a kernel takes.
const MOST_PARAMETER_BYTES: usize = 4096;

/// What is set on a function for its next launches.
#[derive(Debug, Default)]
pub(crate) struct Settings {
    block: [c_uint; 3],
    shared: c_uint,
    parameters: Vec<u8>,
}

fn with<R>(handle: CUfunction, change: impl FnOnce(&mut Settings) -> Answer<R>) -> Answer<R> {
    let function: std::sync::Arc<Function> = find_function(driver()?, handle)?;
    change(&mut function.legacy.lock())
}

fn set_block_shape(function: CUfunction, x: c_int, y: c_int, z: c_int) -> Answer {
    let side = |length: c_int| match c_uint::try_from(length) {
        Ok(0) | Err(_) => Err(INVALID_VALUE),
        Ok(length) => Ok(length),
    };
    let block = [side(x)?, side(y)?, side(z)?];
    with(function, |settings| {
        settings.block = block;
        Ok(())
    })
}

fn set_shared_size(function: CUfunction, bytes: c_uint) -> Answer {
    with(function, |settings| {
        settings.shared = bytes;
        Ok(())
    })
}

fn set_parameter_size(function: CUfunction, bytes: c_uint) -> Answer {
    with(function, |settings| {
        if bytes as usize > MOST_PARAMETER_BYTES {
            return Err(INVALID_VALUE);
        }
        settings.parameters.resize(bytes as usize, 0);
        Ok(())
    })
}

fn set_parameter(function: CUfunction, offset: c_int, bytes: &[u8]) -> Answer {
    let begin = usize::try_from(offset).map_err(|_| INVALID_VALUE)?;
    let end = begin
        .checked_add(bytes.len())
        .filter(|end| *end <= MOST_PARAMETER_BYTES)
        .ok_or(INVALID_VALUE)?;
    with(function, |settings| {
        if settings.parameters.len() < end {
            settings.parameters.resize(end, 0);
        }
        if let Some(place) = settings.parameters.get_mut(begin..end) {
            place.copy_from_slice(bytes);
        }
        Ok(())
    })
}

fn set_integer(function: CUfunction, offset: c_int, value: c_uint) -> Answer {
    set_parameter(function, offset, &value.to_ne_bytes())
}

fn set_float(function: CUfunction, offset: c_int, value: c_float) -> Answer {
    set_parameter(function, offset, &value.to_ne_bytes())
}

fn set_bytes(function: CUfunction, offset: c_int, from: *mut c_void, count: c_uint) -> Answer {
    if from.is_null() || count as usize > MOST_PARAMETER_BYTES {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; that so many bytes are there is the caller's duty by the CUDA contract.
    let bytes = unsafe { std::slice::from_raw_parts(from.cast::<u8>(), count as usize) };
    set_parameter(function, offset, bytes)
}

fn launch_on(function: CUfunction, width: c_int, height: c_int, stream: CUstream) -> Answer {
    let side = |length: c_int| c_uint::try_from(length).map_err(|_| INVALID_VALUE);
    let (shape, mut parameters) = with(function, |settings| {
        let shape = Shape {
            grid: [side(width)?, side(height)?, 1],
            block: settings.block,
            shared: settings.shared,
        };
        Ok((shape, settings.parameters.clone()))
    })?;
    if parameters.is_empty() {
        return submit::<Plain>(
            function,
            shape,
            stream,
            std::ptr::null_mut(),
            std::ptr::null_mut(),
        );
    }
    let mut bytes = parameters.len();
    // `CU_LAUNCH_PARAM_BUFFER_POINTER`, `_BUFFER_SIZE` and `_END`, as `cuLaunchKernel` takes them.
    let mut extra: [*mut c_void; 5] = [
        std::ptr::without_provenance_mut(1),
        parameters.as_mut_ptr().cast(),
        std::ptr::without_provenance_mut(2),
        (&raw mut bytes).cast(),
        std::ptr::null_mut(),
    ];
    submit::<Plain>(
        function,
        shape,
        stream,
        std::ptr::null_mut(),
        extra.as_mut_ptr(),
    )
}

fn launch_once(function: CUfunction) -> Answer {
    launch_on(function, 1, 1, std::ptr::null_mut())
}

fn launch_grid(function: CUfunction, width: c_int, height: c_int) -> Answer {
    launch_on(function, width, height, std::ptr::null_mut())
}

fn launch_multi_device(list: *mut CUDA_LAUNCH_PARAMS, count: c_uint, _flags: c_uint) -> Answer {
    if list.is_null() || count == 0 || count as usize > driver()?.devices.len() {
        return Err(INVALID_VALUE);
    }
    for index in 0..count as usize {
        let one = take(list.wrapping_add(index))?;
        // The default streams are named as not allowed.
        if one.hStream as usize <= 2 {
            return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
        }
        launch_cooperative::<Plain>(
            one.function,
            one.gridDimX,
            one.gridDimY,
            one.gridDimZ,
            one.blockDimX,
            one.blockDimY,
            one.blockDimZ,
            one.sharedMemBytes,
            one.hStream,
            one.kernelParams,
        )?;
    }
    Ok(())
}

driver! {
    cuFuncSetBlockShape(hfunc: CUfunction, x: c_int, y: c_int, z: c_int) => set_block_shape;
    cuFuncSetSharedSize(hfunc: CUfunction, bytes: c_uint) => set_shared_size;
    cuParamSetSize(hfunc: CUfunction, numbytes: c_uint) => set_parameter_size;
    cuParamSeti(hfunc: CUfunction, offset: c_int, value: c_uint) => set_integer;
    cuParamSetf(hfunc: CUfunction, offset: c_int, value: c_float) => set_float;
    cuParamSetv(hfunc: CUfunction, offset: c_int, ptr: *mut c_void, numbytes: c_uint) => set_bytes;
    cuLaunch(f: CUfunction) => launch_once;
    cuLaunchGrid(f: CUfunction, grid_width: c_int, grid_height: c_int) => launch_grid;
    cuLaunchGridAsync(f: CUfunction, grid_width: c_int, grid_height: c_int, h_stream: CUstream) => launch_on;
    cuLaunchCooperativeKernelMultiDevice(launch_params_list: *mut CUDA_LAUNCH_PARAMS, num_devices: c_uint, flags: c_uint) => launch_multi_device;
}
