//! The rows of copies and of memory that is filled: counted always, and held where the daemon says so.
//!
//! See [`crate::gate::copies`] for the policies, one for each list of arguments.

use super::*;
use crate::gate::copies;
use std::ffi::{c_uchar, c_ushort};

hooks! {
    Driver from driver as COPY_HOOKS gives CUresult;

    // Memory that is copied.
    cuMemcpy(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copies::legacy::linear;
    cuMemcpy_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copies::per_thread::linear;
    cuMemcpy2D(shape: *const CUDA_MEMCPY2D_v1) => copies::legacy::shaped;
    cuMemcpy2D_v2(shape: *const CUDA_MEMCPY2D) => copies::legacy::shaped;
    cuMemcpy2D_v2_ptds(shape: *const CUDA_MEMCPY2D) => copies::per_thread::shaped;
    cuMemcpy2DAsync(shape: *const CUDA_MEMCPY2D_v1, stream: CUstream) => copies::legacy::shaped_on;
    cuMemcpy2DAsync_v2(shape: *const CUDA_MEMCPY2D, stream: CUstream) => copies::legacy::shaped_on;
    cuMemcpy2DAsync_v2_ptsz(shape: *const CUDA_MEMCPY2D, stream: CUstream) => copies::per_thread::shaped_on;
    cuMemcpy2DUnaligned(shape: *const CUDA_MEMCPY2D_v1) => copies::legacy::shaped;
    cuMemcpy2DUnaligned_v2(shape: *const CUDA_MEMCPY2D) => copies::legacy::shaped;
    cuMemcpy2DUnaligned_v2_ptds(shape: *const CUDA_MEMCPY2D) => copies::per_thread::shaped;
    cuMemcpy3D(shape: *const CUDA_MEMCPY3D_v1) => copies::legacy::shaped;
    cuMemcpy3D_v2(shape: *const CUDA_MEMCPY3D) => copies::legacy::shaped;
    cuMemcpy3D_v2_ptds(shape: *const CUDA_MEMCPY3D) => copies::per_thread::shaped;
    cuMemcpy3DAsync(shape: *const CUDA_MEMCPY3D_v1, stream: CUstream) => copies::legacy::shaped_on;
    cuMemcpy3DAsync_v2(shape: *const CUDA_MEMCPY3D, stream: CUstream) => copies::legacy::shaped_on;
    cuMemcpy3DAsync_v2_ptsz(shape: *const CUDA_MEMCPY3D, stream: CUstream) => copies::per_thread::shaped_on;
    cuMemcpy3DBatchAsync(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, failed: *mut usize, flags: c_ulonglong, stream: CUstream)
        => copies::legacy::batch_3d_v1;
    cuMemcpy3DBatchAsync_ptsz(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, failed: *mut usize, flags: c_ulonglong, stream: CUstream)
        => copies::per_thread::batch_3d_v1;
    cuMemcpy3DBatchAsync_v2(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        => copies::legacy::batch_3d;
    cuMemcpy3DBatchAsync_v2_ptsz(count: usize, list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        => copies::per_thread::batch_3d;
    cuMemcpy3DPeer(shape: *const CUDA_MEMCPY3D_PEER) => copies::legacy::shaped;
    cuMemcpy3DPeer_ptds(shape: *const CUDA_MEMCPY3D_PEER) => copies::per_thread::shaped;
    cuMemcpy3DPeerAsync(shape: *const CUDA_MEMCPY3D_PEER, stream: CUstream) => copies::legacy::shaped_on;
    cuMemcpy3DPeerAsync_ptsz(shape: *const CUDA_MEMCPY3D_PEER, stream: CUstream) => copies::per_thread::shaped_on;
    cuMemcpy3DWithAttributesAsync(list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        => copies::legacy::shaped_as_told;
    cuMemcpy3DWithAttributesAsync_ptsz(list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        => copies::per_thread::shaped_as_told;
    cuMemcpyAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream) => copies::legacy::linear_on;
    cuMemcpyAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => copies::per_thread::linear_on;
    cuMemcpyAtoA(to: CUarray, at: c_uint, from: CUarray, offset: c_uint, bytes: c_uint) => copies::legacy::between;
    cuMemcpyAtoA_v2(to: CUarray, at: usize, from: CUarray, offset: usize, bytes: usize) => copies::legacy::between;
    cuMemcpyAtoA_v2_ptds(to: CUarray, at: usize, from: CUarray, offset: usize, bytes: usize)
        => copies::per_thread::between;
    cuMemcpyAtoD(to: CUdeviceptr_v1, from: CUarray, offset: c_uint, bytes: c_uint) => copies::legacy::offset;
    cuMemcpyAtoD_v2(to: CUdeviceptr, from: CUarray, offset: usize, bytes: usize) => copies::legacy::offset;
    cuMemcpyAtoD_v2_ptds(to: CUdeviceptr, from: CUarray, offset: usize, bytes: usize) => copies::per_thread::offset;
    cuMemcpyAtoH(to: *mut c_void, from: CUarray, offset: c_uint, bytes: c_uint) => copies::legacy::offset;
    cuMemcpyAtoH_v2(to: *mut c_void, from: CUarray, offset: usize, bytes: usize) => copies::legacy::offset;
    cuMemcpyAtoH_v2_ptds(to: *mut c_void, from: CUarray, offset: usize, bytes: usize) => copies::per_thread::offset;
    cuMemcpyAtoHAsync(to: *mut c_void, from: CUarray, offset: c_uint, bytes: c_uint, stream: CUstream)
        => copies::legacy::offset_on;
    cuMemcpyAtoHAsync_v2(to: *mut c_void, from: CUarray, offset: usize, bytes: usize, stream: CUstream)
        => copies::legacy::offset_on;
    cuMemcpyAtoHAsync_v2_ptsz(to: *mut c_void, from: CUarray, offset: usize, bytes: usize, stream: CUstream)
        => copies::per_thread::offset_on;
    cuMemcpyBatchAsync(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, kinds: usize, failed: *mut usize, stream: CUstream)
        => copies::legacy::batch_v1;
    cuMemcpyBatchAsync_ptsz(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, kinds: usize, failed: *mut usize, stream: CUstream)
        => copies::per_thread::batch_v1;
    cuMemcpyBatchAsync_v2(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, kinds: usize, stream: CUstream)
        => copies::legacy::batch;
    cuMemcpyBatchAsync_v2_ptsz(to: *mut CUdeviceptr, from: *mut CUdeviceptr, sizes: *mut usize, count: usize, attributes: *mut CUmemcpyAttributes, indices: *mut usize, kinds: usize, stream: CUstream)
        => copies::per_thread::batch;
    cuMemcpyDtoA(to: CUarray, at: c_uint, from: CUdeviceptr_v1, bytes: c_uint) => copies::legacy::offset;
    cuMemcpyDtoA_v2(to: CUarray, at: usize, from: CUdeviceptr, bytes: usize) => copies::legacy::offset;
    cuMemcpyDtoA_v2_ptds(to: CUarray, at: usize, from: CUdeviceptr, bytes: usize) => copies::per_thread::offset;
    cuMemcpyDtoD(to: CUdeviceptr_v1, from: CUdeviceptr_v1, bytes: c_uint) => copies::legacy::linear;
    cuMemcpyDtoD_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copies::legacy::linear;
    cuMemcpyDtoD_v2_ptds(to: CUdeviceptr, from: CUdeviceptr, bytes: usize) => copies::per_thread::linear;
    cuMemcpyDtoDAsync(to: CUdeviceptr_v1, from: CUdeviceptr_v1, bytes: c_uint, stream: CUstream)
        => copies::legacy::linear_on;
    cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => copies::legacy::linear_on;
    cuMemcpyDtoDAsync_v2_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => copies::per_thread::linear_on;
    cuMemcpyDtoH(to: *mut c_void, from: CUdeviceptr_v1, bytes: c_uint) => copies::legacy::linear;
    cuMemcpyDtoH_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize) => copies::legacy::linear;
    cuMemcpyDtoH_v2_ptds(to: *mut c_void, from: CUdeviceptr, bytes: usize) => copies::per_thread::linear;
    cuMemcpyDtoHAsync(to: *mut c_void, from: CUdeviceptr_v1, bytes: c_uint, stream: CUstream)
        => copies::legacy::linear_on;
    cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => copies::legacy::linear_on;
    cuMemcpyDtoHAsync_v2_ptsz(to: *mut c_void, from: CUdeviceptr, bytes: usize, stream: CUstream)
        => copies::per_thread::linear_on;
    cuMemcpyHtoA(to: CUarray, at: c_uint, from: *const c_void, bytes: c_uint) => copies::legacy::offset;
    cuMemcpyHtoA_v2(to: CUarray, at: usize, from: *const c_void, bytes: usize) => copies::legacy::offset;
    cuMemcpyHtoA_v2_ptds(to: CUarray, at: usize, from: *const c_void, bytes: usize) => copies::per_thread::offset;
    cuMemcpyHtoAAsync(to: CUarray, at: c_uint, from: *const c_void, bytes: c_uint, stream: CUstream)
        => copies::legacy::offset_on;
    cuMemcpyHtoAAsync_v2(to: CUarray, at: usize, from: *const c_void, bytes: usize, stream: CUstream)
        => copies::legacy::offset_on;
    cuMemcpyHtoAAsync_v2_ptsz(to: CUarray, at: usize, from: *const c_void, bytes: usize, stream: CUstream)
        => copies::per_thread::offset_on;
    cuMemcpyHtoD(to: CUdeviceptr_v1, from: *const c_void, bytes: c_uint) => copies::legacy::linear;
    cuMemcpyHtoD_v2(to: CUdeviceptr, from: *const c_void, bytes: usize) => copies::legacy::linear;
    cuMemcpyHtoD_v2_ptds(to: CUdeviceptr, from: *const c_void, bytes: usize) => copies::per_thread::linear;
    cuMemcpyHtoDAsync(to: CUdeviceptr_v1, from: *const c_void, bytes: c_uint, stream: CUstream)
        => copies::legacy::linear_on;
    cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream)
        => copies::legacy::linear_on;
    cuMemcpyHtoDAsync_v2_ptsz(to: CUdeviceptr, from: *const c_void, bytes: usize, stream: CUstream)
        => copies::per_thread::linear_on;
    cuMemcpyPeer(to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, owner: CUcontext, bytes: usize)
        => copies::legacy::between;
    cuMemcpyPeer_ptds(to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, owner: CUcontext, bytes: usize)
        => copies::per_thread::between;
    cuMemcpyPeerAsync(to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, owner: CUcontext, bytes: usize, stream: CUstream)
        => copies::legacy::between_on;
    cuMemcpyPeerAsync_ptsz(to: CUdeviceptr, context: CUcontext, from: CUdeviceptr, owner: CUcontext, bytes: usize, stream: CUstream)
        => copies::per_thread::between_on;
    cuMemcpyWithAttributesAsync(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut CUmemcpyAttributes, stream: CUstream)
        => copies::legacy::as_told;
    cuMemcpyWithAttributesAsync_ptsz(to: CUdeviceptr, from: CUdeviceptr, bytes: usize, attributes: *mut CUmemcpyAttributes, stream: CUstream)
        => copies::per_thread::as_told;
    cuFabricCpyBatchAsync(count: usize, list: *mut CUDA_FABRIC_COPY_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        => copies::legacy::batch_3d;
    cuFabricCpyBatchAsync_ptsz(count: usize, list: *mut CUDA_FABRIC_COPY_BATCH_OP, flags: c_ulonglong, stream: CUstream)
        => copies::per_thread::batch_3d;
    cuMemBatchDecompressAsync(list: *mut CUmemDecompressParams, count: usize, flags: c_uint, failed: *mut usize, stream: CUstream)
        => copies::legacy::decompress;
    cuMemBatchDecompressAsync_ptsz(list: *mut CUmemDecompressParams, count: usize, flags: c_uint, failed: *mut usize, stream: CUstream)
        => copies::per_thread::decompress;

    // Memory that is filled.
    cuMemsetD16(to: CUdeviceptr_v1, value: c_ushort, count: c_uint) => copies::legacy::fill;
    cuMemsetD16_v2(to: CUdeviceptr, value: c_ushort, count: usize) => copies::legacy::fill;
    cuMemsetD16_v2_ptds(to: CUdeviceptr, value: c_ushort, count: usize) => copies::per_thread::fill;
    cuMemsetD16Async(to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) => copies::legacy::fill_on;
    cuMemsetD16Async_ptsz(to: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream)
        => copies::per_thread::fill_on;
    cuMemsetD2D16(to: CUdeviceptr_v1, pitch: c_uint, value: c_ushort, width: c_uint, height: c_uint)
        => copies::legacy::fill_rows;
    cuMemsetD2D16_v2(to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize)
        => copies::legacy::fill_rows;
    cuMemsetD2D16_v2_ptds(to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize)
        => copies::per_thread::fill_rows;
    cuMemsetD2D16Async(to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream)
        => copies::legacy::fill_rows_on;
    cuMemsetD2D16Async_ptsz(to: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream)
        => copies::per_thread::fill_rows_on;
    cuMemsetD2D32(to: CUdeviceptr_v1, pitch: c_uint, value: c_uint, width: c_uint, height: c_uint)
        => copies::legacy::fill_rows;
    cuMemsetD2D32_v2(to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize)
        => copies::legacy::fill_rows;
    cuMemsetD2D32_v2_ptds(to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize)
        => copies::per_thread::fill_rows;
    cuMemsetD2D32Async(to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream)
        => copies::legacy::fill_rows_on;
    cuMemsetD2D32Async_ptsz(to: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream)
        => copies::per_thread::fill_rows_on;
    cuMemsetD2D8(to: CUdeviceptr_v1, pitch: c_uint, value: c_uchar, width: c_uint, height: c_uint)
        => copies::legacy::fill_rows;
    cuMemsetD2D8_v2(to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize)
        => copies::legacy::fill_rows;
    cuMemsetD2D8_v2_ptds(to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize)
        => copies::per_thread::fill_rows;
    cuMemsetD2D8Async(to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream)
        => copies::legacy::fill_rows_on;
    cuMemsetD2D8Async_ptsz(to: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream)
        => copies::per_thread::fill_rows_on;
    cuMemsetD32(to: CUdeviceptr_v1, value: c_uint, count: c_uint) => copies::legacy::fill;
    cuMemsetD32_v2(to: CUdeviceptr, value: c_uint, count: usize) => copies::legacy::fill;
    cuMemsetD32_v2_ptds(to: CUdeviceptr, value: c_uint, count: usize) => copies::per_thread::fill;
    cuMemsetD32Async(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) => copies::legacy::fill_on;
    cuMemsetD32Async_ptsz(to: CUdeviceptr, value: c_uint, count: usize, stream: CUstream)
        => copies::per_thread::fill_on;
    cuMemsetD8(to: CUdeviceptr_v1, value: c_uchar, count: c_uint) => copies::legacy::fill;
    cuMemsetD8_v2(to: CUdeviceptr, value: c_uchar, count: usize) => copies::legacy::fill;
    cuMemsetD8_v2_ptds(to: CUdeviceptr, value: c_uchar, count: usize) => copies::per_thread::fill;
    cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) => copies::legacy::fill_on;
    cuMemsetD8Async_ptsz(to: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream)
        => copies::per_thread::fill_on;
}
