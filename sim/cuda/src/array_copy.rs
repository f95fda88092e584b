//! Copies between memory and arrays, byte by byte of their rows; see `copy` for those of rows and slices.

use std::ffi::{c_uint, c_void};

use ffi::driver::{CUarray, CUdeviceptr, CUdeviceptr_v1, CUstream};

use crate::copy::{Line, copy_line};
use crate::guard::Answer;
use crate::stream::{Flavour, PerThread, Plain};

fn now<F: Flavour>(to: Line, from: Line, bytes: usize) -> Answer {
    copy_line::<F>(to, from, bytes, true, std::ptr::null_mut())
}

fn later<F: Flavour>(to: Line, from: Line, bytes: usize, stream: CUstream) -> Answer {
    copy_line::<F>(to, from, bytes, false, stream)
}

fn host(pointer: *const c_void) -> Line {
    Line::Memory(pointer as u64)
}

fn short(pointer: CUdeviceptr_v1) -> Line {
    Line::Memory(u64::from(pointer))
}

fn part(array: CUarray, offset: usize) -> Line {
    Line::Array(array, offset as u64)
}

driver! {
    cuMemcpyAtoA(dst_array: CUarray, dst_offset: c_uint, src_array: CUarray, src_offset: c_uint, byte_count: c_uint) => |to, at, from, from_at, bytes| now::<Plain>(part(to, at as usize), part(from, from_at as usize), bytes as usize);
    cuMemcpyAtoD(dst_device: CUdeviceptr_v1, src_array: CUarray, src_offset: c_uint, byte_count: c_uint) => |to, from, at, bytes| now::<Plain>(short(to), part(from, at as usize), bytes as usize);
    cuMemcpyDtoA(dst_array: CUarray, dst_offset: c_uint, src_device: CUdeviceptr_v1, byte_count: c_uint) => |to, at, from, bytes| now::<Plain>(part(to, at as usize), short(from), bytes as usize);
    cuMemcpyAtoH(dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint) => |to, from, at, bytes| now::<Plain>(host(to), part(from, at as usize), bytes as usize);
    cuMemcpyHtoA(dst_array: CUarray, dst_offset: c_uint, src_host: *const c_void, byte_count: c_uint) => |to, at, from, bytes| now::<Plain>(part(to, at as usize), host(from), bytes as usize);
    cuMemcpyAtoHAsync(dst_host: *mut c_void, src_array: CUarray, src_offset: c_uint, byte_count: c_uint, h_stream: CUstream) => |to, from, at, bytes, stream| later::<Plain>(host(to), part(from, at as usize), bytes as usize, stream);
    cuMemcpyHtoAAsync(dst_array: CUarray, dst_offset: c_uint, src_host: *const c_void, byte_count: c_uint, h_stream: CUstream) => |to, at, from, bytes, stream| later::<Plain>(part(to, at as usize), host(from), bytes as usize, stream);
    cuMemcpyAtoA_v2(dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize) => |to, at, from, from_at, bytes| now::<Plain>(part(to, at), part(from, from_at), bytes);
    cuMemcpyAtoD_v2(dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize) => |to, from, at, bytes| now::<Plain>(Line::Memory(to), part(from, at), bytes);
    cuMemcpyDtoA_v2(dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize) => |to, at, from, bytes| now::<Plain>(part(to, at), Line::Memory(from), bytes);
    cuMemcpyAtoH_v2(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize) => |to, from, at, bytes| now::<Plain>(host(to), part(from, at), bytes);
    cuMemcpyHtoA_v2(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize) => |to, at, from, bytes| now::<Plain>(part(to, at), host(from), bytes);
    cuMemcpyAtoHAsync_v2(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, h_stream: CUstream) => |to, from, at, bytes, stream| later::<Plain>(host(to), part(from, at), bytes, stream);
    cuMemcpyHtoAAsync_v2(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, h_stream: CUstream) => |to, at, from, bytes, stream| later::<Plain>(part(to, at), host(from), bytes, stream);
    cuMemcpyAtoA_v2_ptds(dst_array: CUarray, dst_offset: usize, src_array: CUarray, src_offset: usize, byte_count: usize) => |to, at, from, from_at, bytes| now::<PerThread>(part(to, at), part(from, from_at), bytes);
    cuMemcpyAtoD_v2_ptds(dst_device: CUdeviceptr, src_array: CUarray, src_offset: usize, byte_count: usize) => |to, from, at, bytes| now::<PerThread>(Line::Memory(to), part(from, at), bytes);
    cuMemcpyDtoA_v2_ptds(dst_array: CUarray, dst_offset: usize, src_device: CUdeviceptr, byte_count: usize) => |to, at, from, bytes| now::<PerThread>(part(to, at), Line::Memory(from), bytes);
    cuMemcpyAtoH_v2_ptds(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize) => |to, from, at, bytes| now::<PerThread>(host(to), part(from, at), bytes);
    cuMemcpyHtoA_v2_ptds(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize) => |to, at, from, bytes| now::<PerThread>(part(to, at), host(from), bytes);
    cuMemcpyAtoHAsync_v2_ptsz(dst_host: *mut c_void, src_array: CUarray, src_offset: usize, byte_count: usize, h_stream: CUstream) => |to, from, at, bytes, stream| later::<PerThread>(host(to), part(from, at), bytes, stream);
    cuMemcpyHtoAAsync_v2_ptsz(dst_array: CUarray, dst_offset: usize, src_host: *const c_void, byte_count: usize, h_stream: CUstream) => |to, at, from, bytes, stream| later::<PerThread>(part(to, at), host(from), bytes, stream);
}
