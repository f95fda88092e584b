//! Devices and what is known about them.

use std::ffi::{CString, c_char, c_int, c_uint};

use ffi::driver::{
    CUarray_format, CUdevice, CUdevice_attribute, CUdevice_attribute_enum as A, CUdevprop,
    CUexecAffinityType, CUresult, CUuuid,
};
use sim::profile::Profile;

use crate::guard::{Answer, INVALID_VALUE, Out, put, text};
use crate::state::{Device, driver};

/// Threads of a block, at most.
pub(crate) const MAX_BLOCK_THREADS: u32 = 1024;
/// Blocks of a grid along x, at most; along y and z [`MAX_GRID_YZ`].
pub(crate) const MAX_GRID_X: u32 = 0x7fff_ffff;
/// See [`MAX_GRID_X`].
pub(crate) const MAX_GRID_YZ: u32 = 65_535;
/// Shared memory that a block may use without asking.
pub(crate) const SHARED_PER_BLOCK: u32 = 48 << 10;
/// Registers of a multiprocessor.
pub(crate) const REGISTERS: u32 = 65_536;
/// Shared memory that the system keeps of each block's.
const RESERVED_SHARED: u32 = 1024;

/// Shared memory that a block may use when it asks for it.
pub(crate) fn shared_opt_in(profile: &Profile) -> u32 {
    profile.shared_bytes - RESERVED_SHARED
}

/// Blocks that a multiprocessor holds at once.
pub(crate) fn blocks_per_multiprocessor(profile: &Profile) -> u32 {
    match profile.threads_per_multiprocessor {
        2048 => 32,
        1536 => 24,
        _ => 16,
    }
}

fn get(out: *mut CUdevice, ordinal: c_int) -> Answer {
    let out = Out::claim(out)?;
    out.write(driver()?.device(ordinal)?.ordinal());
    Ok(())
}

fn count(out: *mut c_int) -> Answer {
    put(
        out,
        c_int::try_from(driver()?.devices.len()).unwrap_or(c_int::MAX),
    )
}

/// Copies as much of `value` as there is room for, terminated.
fn put_text(out: *mut c_char, room: c_int, value: &str) -> Answer {
    let room = usize::try_from(room).unwrap_or(0);
    if out.is_null() || room == 0 {
        return Err(INVALID_VALUE);
    }
    let value = CString::new(value).map_err(|_| CUresult::CUDA_ERROR_UNKNOWN)?;
    let bytes = &value.as_bytes()[..value.as_bytes().len().min(room - 1)];
    for (index, byte) in bytes.iter().chain(&[0]).enumerate() {
        let place = out.wrapping_add(index);
        // SAFETY: `index` is below `room`, and the caller has room for that many characters.
        unsafe { place.write(*byte as c_char) };
    }
    Ok(())
}

fn name(out: *mut c_char, room: c_int, ordinal: CUdevice) -> Answer {
    put_text(out, room, driver()?.device(ordinal)?.info.name)
}

fn uuid(out: *mut CUuuid, ordinal: CUdevice) -> Answer {
    let bytes = driver()?.device(ordinal)?.info.uuid;
    put(
        out,
        CUuuid {
            bytes: bytes.map(|byte| byte as c_char),
        },
    )
}

fn total_memory(out: *mut usize, ordinal: CUdevice) -> Answer {
    let bytes = driver()?.device(ordinal)?.info.memory_bytes;
    put(out, usize::try_from(bytes).unwrap_or(usize::MAX))
}

/// The first interface's sizes end at 4 GiB.
fn total_memory_v1(out: *mut c_uint, ordinal: CUdevice) -> Answer {
    let bytes = driver()?.device(ordinal)?.info.memory_bytes;
    put(out, c_uint::try_from(bytes).unwrap_or(c_uint::MAX))
}

fn compute_capability(major: *mut c_int, minor: *mut c_int, ordinal: CUdevice) -> Answer {
    let (major, minor) = (Out::claim(major)?, Out::claim(minor)?);
    let profile = driver()?.device(ordinal)?.info.profile;
    major.write(profile.major as c_int);
    minor.write(profile.minor as c_int);
    Ok(())
}

fn pci_bus_id(out: *mut c_char, room: c_int, ordinal: CUdevice) -> Answer {
    put_text(
        out,
        room,
        &driver()?.device(ordinal)?.info.pci_text().to_uppercase(),
    )
}

/// Accepts `domain:bus:device.function`, also without domain or function.
fn by_pci_bus_id(out: *mut CUdevice, id: *const c_char) -> Answer {
    let out = Out::claim(out)?;
    let asked = text(id)?.to_lowercase();
    let asked = asked.split('.').next().unwrap_or_default();
    let mut parts = asked.rsplit(':').map(|part| u32::from_str_radix(part, 16));
    let device = parts.next().and_then(Result::ok).ok_or(INVALID_VALUE)?;
    let bus = parts.next().and_then(Result::ok).ok_or(INVALID_VALUE)?;
    let domain = parts
        .next()
        .transpose()
        .map_err(|_| INVALID_VALUE)?
        .unwrap_or(0);
    let found = driver()?
        .devices
        .iter()
        .find(|known| known.info.pci == (domain, bus, device))
        .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
    out.write(found.ordinal());
    Ok(())
}

fn properties(out: *mut CUdevprop, ordinal: CUdevice) -> Answer {
    let device = driver()?.device(ordinal)?;
    let value = |attribute| attribute_of(device, attribute).unwrap_or(0);
    put(
        out,
        CUdevprop {
            maxThreadsPerBlock: value(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK),
            maxThreadsDim: [
                value(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X),
                value(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y),
                value(A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z),
            ],
            maxGridSize: [
                value(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X),
                value(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y),
                value(A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z),
            ],
            sharedMemPerBlock: value(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK),
            totalConstantMemory: value(A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY),
            SIMDWidth: value(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE),
            memPitch: value(A::CU_DEVICE_ATTRIBUTE_MAX_PITCH),
            regsPerBlock: value(A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK),
            clockRate: value(A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE),
            textureAlign: value(A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT),
        },
    )
}

fn attribute(out: *mut c_int, attribute: CUdevice_attribute, ordinal: CUdevice) -> Answer {
    let out = Out::claim(out)?;
    let device = driver()?.device(ordinal)?;
    let value = match attribute {
        A::CU_DEVICE_ATTRIBUTE_MPS_ENABLED => c_int::from(driver()?.link.is_shared()),
        _ => attribute_of(device, attribute).ok_or(INVALID_VALUE)?,
    };
    out.write(value);
    Ok(())
}

/// An attribute's value; `None` where the header has no such attribute.
///
/// What is not listed is 0: the device has not that feature, or the limit means nothing here.
fn attribute_of(device: &Device, attribute: CUdevice_attribute) -> Option<c_int> {
    let profile = device.info.profile;
    if attribute.0 == 0 || attribute.0 >= A::CU_DEVICE_ATTRIBUTE_MAX.0 {
        return None;
    }
    let (domain, bus, number) = device.info.pci;
    let value = match attribute {
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK
        | A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X
        | A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y => MAX_BLOCK_THREADS,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z => 64,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X | A::CU_DEVICE_ATTRIBUTE_MAX_PITCH => MAX_GRID_X,
        A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y | A::CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z => {
            MAX_GRID_YZ
        }
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => SHARED_PER_BLOCK,
        A::CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY => 65_536,
        A::CU_DEVICE_ATTRIBUTE_WARP_SIZE => 32,
        A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK
        | A::CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR => REGISTERS,
        A::CU_DEVICE_ATTRIBUTE_CLOCK_RATE => profile.clock_khz,
        A::CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT | A::CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT => 512,
        A::CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT => 32,
        A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT => profile.multiprocessors,
        A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID => bus,
        A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID => number,
        A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID => domain,
        A::CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE => profile.memory_clock_khz,
        A::CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH => profile.bus_bits,
        A::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE => profile.l2_bytes,
        A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR => profile.threads_per_multiprocessor,
        A::CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT => 3,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR => profile.major,
        A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR => profile.minor,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR => profile.shared_bytes,
        A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN => shared_opt_in(profile),
        A::CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK => RESERVED_SHARED,
        A::CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR => blocks_per_multiprocessor(profile),
        A::CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO => 2,
        A::CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH => u32::from(profile.major >= 9),
        A::CU_DEVICE_ATTRIBUTE_MEM_SYNC_DOMAIN_COUNT => 1,
        A::CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID | A::CU_DEVICE_ATTRIBUTE_NUMA_ID => return Some(-1),
        A::CU_DEVICE_ATTRIBUTE_GPU_OVERLAP
        | A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS
        | A::CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING
        | A::CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY
        | A::CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS
        | A::CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM
        | A::CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH
        | A::CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_MEM_OPS_V1
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS_V1
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR_V1
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS
        | A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR => 1,
        _ => 0,
    };
    Some(c_int::try_from(value).unwrap_or(c_int::MAX))
}

fn luid(_: *mut c_char, _: *mut c_uint, ordinal: CUdevice) -> Answer {
    driver()?.device(ordinal)?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

fn affinity(out: *mut c_int, _kind: CUexecAffinityType, ordinal: CUdevice) -> Answer {
    driver()?.device(ordinal)?;
    put(out, 0)
}

fn texture_width(
    out: *mut usize,
    _format: CUarray_format,
    _channels: c_uint,
    ordinal: CUdevice,
) -> Answer {
    driver()?.device(ordinal)?;
    put(out, 1 << 28)
}

driver! {
    cuDeviceGet(device: *mut CUdevice, ordinal: c_int) => get;
    cuDeviceGetCount(out: *mut c_int) => count;
    cuDeviceGetName(out: *mut c_char, len: c_int, dev: CUdevice) => name;
    cuDeviceGetUuid(out: *mut CUuuid, dev: CUdevice) => uuid;
    cuDeviceGetUuid_v2(out: *mut CUuuid, dev: CUdevice) => uuid;
    cuDeviceGetLuid(out: *mut c_char, device_node_mask: *mut c_uint, dev: CUdevice) => luid;
    cuDeviceTotalMem(bytes: *mut c_uint, dev: CUdevice) => total_memory_v1;
    cuDeviceTotalMem_v2(bytes: *mut usize, dev: CUdevice) => total_memory;
    cuDeviceGetAttribute(pi: *mut c_int, attrib: CUdevice_attribute, dev: CUdevice) => attribute;
    cuDeviceComputeCapability(major: *mut c_int, minor: *mut c_int, dev: CUdevice) => compute_capability;
    cuDeviceGetProperties(prop: *mut CUdevprop, dev: CUdevice) => properties;
    cuDeviceGetPCIBusId(out: *mut c_char, len: c_int, dev: CUdevice) => pci_bus_id;
    cuDeviceGetByPCIBusId(dev: *mut CUdevice, pci_bus_id: *const c_char) => by_pci_bus_id;
    cuDeviceGetExecAffinitySupport(pi: *mut c_int, kind: CUexecAffinityType, dev: CUdevice) => affinity;
    cuDeviceGetTexture1DLinearMaxWidth(max_width_in_elements: *mut usize, format: CUarray_format, num_channels: c_uint, dev: CUdevice) => texture_width;
}
