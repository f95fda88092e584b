//! Initialisation, versions, devices and their attributes.

use crate::check::Checks;
use ffi::driver::*;
use std::ffi::{CStr, c_char, c_int};
use std::ptr::null_mut;

const NO_SUCH: c_int = 1000;

pub(crate) fn play(t: &Checks) {
    before_initialisation(t);
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuInit(1));
    ok!(t, cuInit(0));
    ok!(t, cuInit(0));
    names(t);
    attributes(t);
}

fn before_initialisation(t: &Checks) {
    let (mut count, mut device, mut at, mut total) = (-7, -7, 7u64, 7usize);
    let mut version = 0;
    ok!(t, cuDriverGetVersion(&mut version));
    t.holds("a version of CUDA", (11_000..20_000).contains(&version));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuDriverGetVersion(null_mut()));
    untouched!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        count,
        cuDeviceGetCount(&mut count)
    );
    untouched!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        device,
        cuDeviceGet(&mut device, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        at,
        cuMemAlloc_v2(&mut at, 1024)
    );
    untouched!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        total,
        cuDeviceTotalMem_v2(&mut total, 0)
    );
    let mut context = null_mut();
    answers!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        cuDevicePrimaryCtxRetain(&mut context, 0)
    );
    t.holds("no context before initialisation", context.is_null());
    answers!(t, CUDA_ERROR_NOT_INITIALIZED, cuMemFree_v2(0x1000));
    answers!(t, CUDA_ERROR_NOT_INITIALIZED, cuCtxSynchronize());
    answers!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        cuStreamCreate(&mut null_mut(), 0)
    );
    answers!(
        t,
        CUDA_ERROR_NOT_INITIALIZED,
        cuEventCreate(&mut null_mut(), 0)
    );
}

fn names(t: &Checks) {
    let (mut count, mut device) = (0, -7);
    ok!(t, cuDeviceGetCount(&mut count));
    t.holds("a device", count > 0);
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuDeviceGetCount(null_mut()));
    untouched!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        device,
        cuDeviceGet(&mut device, count)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        device,
        cuDeviceGet(&mut device, -1)
    );
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuDeviceGet(null_mut(), 0));
    ok!(t, cuDeviceGet(&mut device, 0));
    let mut name = [7 as c_char; 256];
    answers!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        cuDeviceGetName(name.as_mut_ptr(), 256, NO_SUCH)
    );
    t.is("the name is not written", name[0], 7);
    ok!(t, cuDeviceGetName(name.as_mut_ptr(), 256, device));
    // SAFETY: written by the driver, with its NUL.
    let text = unsafe { CStr::from_ptr(name.as_ptr()) };
    t.holds("a name", !text.is_empty());
    let (mut first, mut second) = (CUuuid { bytes: [0; 16] }, CUuuid { bytes: [1; 16] });
    ok!(t, cuDeviceGetUuid(&mut first, device));
    ok!(t, cuDeviceGetUuid_v2(&mut second, device));
    t.holds(
        "one identity",
        first.bytes == second.bytes && first.bytes != [0; 16],
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        cuDeviceGetUuid_v2(&mut second, NO_SUCH)
    );
    let mut bus = [0 as c_char; 16];
    ok!(t, cuDeviceGetPCIBusId(bus.as_mut_ptr(), 16, device));
    let mut found = -7;
    ok!(t, cuDeviceGetByPCIBusId(&mut found, bus.as_ptr()));
    t.is("the device at its place", found, device);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuDeviceGetByPCIBusId(null_mut(), bus.as_ptr())
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        cuDeviceGetPCIBusId(bus.as_mut_ptr(), 16, NO_SUCH)
    );
    let (mut total, mut former) = (0usize, 0u32);
    ok!(t, cuDeviceTotalMem_v2(&mut total, device));
    t.is("its memory", total > 1 << 28, true);
    ok!(t, cuDeviceTotalMem(&mut former, device));
    t.holds(
        "as much as 32 bits say",
        former as usize == total.min(u32::MAX as usize),
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        cuDeviceTotalMem_v2(&mut total, NO_SUCH)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuDeviceTotalMem_v2(null_mut(), device)
    );
}

fn attributes(t: &Checks) {
    use CUdevice_attribute_enum as A;
    let mut value = -7;
    for (attribute, documented) in [
        (A::CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32),
        (A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024),
        (A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, i32::MAX),
        (A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65_535),
        (A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1),
    ] {
        ok!(t, cuDeviceGetAttribute(&mut value, attribute, 0));
        t.is(&format!("attribute {}", attribute.0), value, documented);
    }
    let (mut major, mut minor) = (0, 0);
    ok!(t, cuDeviceComputeCapability(&mut major, &mut minor, 0));
    for (attribute, documented) in [
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, major),
        (A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, minor),
    ] {
        ok!(t, cuDeviceGetAttribute(&mut value, attribute, 0));
        t.is("capability", value, documented);
    }
    let warp = A::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
    let none = CUdevice_attribute_enum(5000);
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        value,
        cuDeviceGetAttribute(&mut value, none, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_DEVICE,
        value,
        cuDeviceGetAttribute(&mut value, warp, NO_SUCH)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuDeviceGetAttribute(null_mut(), warp, 0)
    );
    let mut limits: CUdevprop = crate::tools::zeroed();
    ok!(t, cuDeviceGetProperties(&mut limits, 0));
    t.is("threads of a block", limits.maxThreadsPerBlock, 1024);
    t.is("width of a warp", limits.SIMDWidth, 32);
}
