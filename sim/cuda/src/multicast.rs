//! Multicast objects, which no device of the stand-in has: `MULTICAST_SUPPORTED` is 0.
//!
//! Arguments that no driver would take are refused as such, everything else as not supported; handles of
//! multicast objects cannot exist.

use std::ffi::c_ulonglong;

use ffi::driver::{
    CUdevice, CUdeviceptr, CUmemGenericAllocationHandle, CUmulticastGranularity_flags,
    CUmulticastObjectProp, CUresult,
};

use crate::guard::{Answer, INVALID_VALUE, Out, take};
use crate::state::driver;

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

fn create(
    out: *mut CUmemGenericAllocationHandle,
    property: *const CUmulticastObjectProp,
) -> Answer {
    Out::claim(out)?;
    check(property)
}

fn check(property: *const CUmulticastObjectProp) -> Answer {
    let property = take(property)?;
    if property.numDevices == 0 || property.flags != 0 {
        return Err(INVALID_VALUE);
    }
    Err(UNSUPPORTED)
}

fn on_device(ordinal: CUdevice) -> Answer {
    driver()?.device(ordinal)?;
    Err(UNSUPPORTED)
}

fn granularity(
    out: *mut usize,
    property: *const CUmulticastObjectProp,
    option: CUmulticastGranularity_flags,
) -> Answer {
    Out::claim(out)?;
    if option.0 > 1 {
        return Err(INVALID_VALUE);
    }
    check(property)
}

driver! {
    cuMulticastCreate(mc_handle: *mut CUmemGenericAllocationHandle, prop: *const CUmulticastObjectProp) => create;
    cuMulticastAddDevice(mc_handle: CUmemGenericAllocationHandle, dev: CUdevice) => |_, device| on_device(device);
    cuMulticastBindMem(mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong) => |_, _, _, _, _, _| Err(UNSUPPORTED);
    cuMulticastBindMem_v2(mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, mem_handle: CUmemGenericAllocationHandle, mem_offset: usize, size: usize, flags: c_ulonglong) => |_, device, _, _, _, _, _| on_device(device);
    cuMulticastBindAddr(mc_handle: CUmemGenericAllocationHandle, mc_offset: usize, memptr: CUdeviceptr, size: usize, flags: c_ulonglong) => |_, _, _, _, _| Err(UNSUPPORTED);
    cuMulticastBindAddr_v2(mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, memptr: CUdeviceptr, size: usize, flags: c_ulonglong) => |_, device, _, _, _, _| on_device(device);
    cuMulticastUnbind(mc_handle: CUmemGenericAllocationHandle, dev: CUdevice, mc_offset: usize, size: usize) => |_, device, _, _| on_device(device);
    cuMulticastGetGranularity(out: *mut usize, prop: *const CUmulticastObjectProp, option: CUmulticastGranularity_flags) => granularity;
}
