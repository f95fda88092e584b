//! The rows of launches. Where nothing is shared they cost a look at one word.

use super::*;

hooks! {
    Driver from driver as LAUNCH_HOOKS gives CUresult, unless gated;

    cuLaunchKernel(function: CUfunction, x: c_uint, y: c_uint, z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void)
        => gate::launch;
    cuLaunchKernel_ptsz(function: CUfunction, x: c_uint, y: c_uint, z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void, extra: *mut *mut c_void)
        => gate::launch_per_thread;
    cuLaunchKernelEx(config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void)
        => gate::launch_extended;
    cuLaunchKernelEx_ptsz(config: *const CUlaunchConfig, function: CUfunction, parameters: *mut *mut c_void, extra: *mut *mut c_void)
        => gate::launch_extended_per_thread;
    cuLaunchCooperativeKernel(function: CUfunction, x: c_uint, y: c_uint, z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void)
        => gate::launch_cooperative;
    cuLaunchCooperativeKernel_ptsz(function: CUfunction, x: c_uint, y: c_uint, z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, parameters: *mut *mut c_void)
        => gate::launch_cooperative_per_thread;
    cuLaunchCooperativeKernelMultiDevice(list: *mut CUDA_LAUNCH_PARAMS, count: c_uint, flags: c_uint)
        => gate::launch_multi_device;
    cuLaunch(function: CUfunction) => gate::launch_once;
    cuLaunchGrid(function: CUfunction, width: c_int, height: c_int) => gate::launch_grid;
    cuLaunchGridAsync(function: CUfunction, width: c_int, height: c_int, stream: CUstream)
        => gate::launch_grid_async;
}
