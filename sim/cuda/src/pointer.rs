//! What the library knows about an address.

use std::ffi::{c_int, c_uint, c_void};

use ffi::driver::{CUdeviceptr, CUpointer_attribute, CUpointer_attribute_enum as A, CUresult};

use crate::guard::{Answer, INVALID_VALUE, put, take};
use crate::ranges::{Kind, Range};
use crate::registry::handle_of;
use crate::state::driver;

/// `CU_MEMORYTYPE_HOST`.
const HOST: c_uint = 1;
/// `CU_MEMORYTYPE_DEVICE`.
const DEVICE: c_uint = 2;
/// `CU_DEVICE_INVALID`.
const NO_DEVICE: c_int = -2;

fn write(range: &Range, attribute: CUpointer_attribute, address: u64, out: *mut c_void) -> Answer {
    let driver = driver()?;
    match attribute {
        A::CU_POINTER_ATTRIBUTE_CONTEXT => {
            let owner = driver
                .contexts
                .find_where(|context| context.id == range.context);
            let handle = owner.map_or(std::ptr::null_mut(), |owner| handle_of::<_, c_void>(&owner));
            put(out.cast(), handle)
        }
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE => {
            put(out.cast(), if range.is_host() { HOST } else { DEVICE })
        }
        A::CU_POINTER_ATTRIBUTE_DEVICE_POINTER => put(out.cast(), address),
        A::CU_POINTER_ATTRIBUTE_HOST_POINTER => {
            if range.is_host() || range.kind == Kind::Managed {
                put(out.cast(), address)
            } else {
                Err(INVALID_VALUE)
            }
        }
        A::CU_POINTER_ATTRIBUTE_BUFFER_ID | A::CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID => {
            put(out.cast(), range.number)
        }
        A::CU_POINTER_ATTRIBUTE_IS_MANAGED => {
            put(out.cast(), c_uint::from(range.kind == Kind::Managed))
        }
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(out.cast(), range.device as c_int),
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR | A::CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR => {
            put(out.cast(), range.start)
        }
        A::CU_POINTER_ATTRIBUTE_RANGE_SIZE | A::CU_POINTER_ATTRIBUTE_MAPPING_SIZE => {
            put(out.cast(), range.bytes)
        }
        A::CU_POINTER_ATTRIBUTE_MAPPED => put(out.cast(), c_uint::from(range.is_accessible)),
        A::CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES => put(out.cast(), 0u64),
        A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => {
            let flags: c_uint = if range.is_accessible { 3 } else { 0 };
            put(out.cast(), flags)
        }
        A::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE => {
            let handle = if range.kind == Kind::Pool {
                range.extra
            } else {
                0
            };
            put(out.cast(), handle)
        }
        A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE => put(out.cast(), 0 as c_uint),
        A::CU_POINTER_ATTRIBUTE_P2P_TOKENS => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

fn attribute(out: *mut c_void, attribute: CUpointer_attribute, address: CUdeviceptr) -> Answer {
    let range = driver()?.ranges.find(address).ok_or(INVALID_VALUE)?;
    write(&range, attribute, address, out)
}

/// Unlike the call for one, this does not fail for an address that it does not know.
fn attributes(
    count: c_uint,
    wanted: *mut CUpointer_attribute,
    out: *mut *mut c_void,
    address: CUdeviceptr,
) -> Answer {
    let range = driver()?.ranges.find(address);
    for index in 0..count as usize {
        let attribute = take(wanted.wrapping_add(index))?;
        let place = take(out.wrapping_add(index))?;
        let written = match &range {
            Some(range) => write(range, attribute, address, place),
            None => Err(INVALID_VALUE),
        };
        if written.is_err() {
            write_unknown(attribute, place)?;
        }
    }
    Ok(())
}

fn write_unknown(attribute: CUpointer_attribute, out: *mut c_void) -> Answer {
    match attribute {
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL => put(out.cast(), NO_DEVICE),
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        | A::CU_POINTER_ATTRIBUTE_IS_MANAGED
        | A::CU_POINTER_ATTRIBUTE_MAPPED
        | A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS
        | A::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE
        | A::CU_POINTER_ATTRIBUTE_ACCESS_FLAGS => put(out.cast(), 0 as c_uint),
        _ => put(out.cast(), 0u64),
    }
}

fn set_attribute(
    value: *const c_void,
    attribute: CUpointer_attribute,
    address: CUdeviceptr,
) -> Answer {
    driver()?.ranges.find(address).ok_or(INVALID_VALUE)?;
    if value.is_null() || attribute != A::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS {
        return Err(INVALID_VALUE);
    }
    Ok(())
}

driver! {
    cuPointerGetAttribute(data: *mut c_void, given: CUpointer_attribute, ptr: CUdeviceptr) => attribute;
    cuPointerGetAttributes(num_attributes: c_uint, out: *mut CUpointer_attribute, data: *mut *mut c_void, ptr: CUdeviceptr) => attributes;
    cuPointerSetAttribute(value: *const c_void, attribute: CUpointer_attribute, ptr: CUdeviceptr) => set_attribute;
}
