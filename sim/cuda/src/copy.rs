//! Copies. They really move bytes; their time at the device follows from their size.
//!
//! A synchronous copy waits for its stream and moves its bytes itself. An asynchronous one from
//! pageable memory takes the bytes at once; one to pageable memory waits, as drivers do. Arrays are
//! refused.

use std::ffi::{c_uint, c_void};

use ffi::driver::{
    CUDA_MEMCPY2D, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUcontext, CUdeviceptr, CUdeviceptr_v1,
    CUmemorytype, CUmemorytype_enum, CUresult, CUstream,
};
use sim::profile::Profile;
use sim::proto::Command;

use crate::guard::{Answer, INVALID_VALUE, take};
use crate::link::Link;
use crate::ranges::{Piece, Place};
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};

/// What any transfer costs before its first byte.
///
/// 2 µs: the order of a small copy's time on the device.
const BASE_NS: u64 = 2_000;

/// Bandwidth between host and device, in bytes per microsecond.
///
/// 25 GB/s: a PCIe 4.0 link with sixteen lanes, as it is reached.
const HOST_BYTES_PER_US: u64 = 25_000;

/// What the two ends must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ends {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
    Any,
}

/// Whether the call returns before the copy is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Synchronous,
    Asynchronous,
}

/// Time that the device needs for `bytes` at `bytes_per_us`.
pub(crate) fn transfer_ns(bytes: u64, bytes_per_us: u64) -> u64 {
    let moved = u128::from(bytes) * 1_000 / u128::from(bytes_per_us.max(1));
    BASE_NS.saturating_add(u64::try_from(moved).unwrap_or(u64::MAX))
}

/// Rows of one copy: where each goes, and where it comes from.
struct Rows {
    rows: Vec<(Place, Place)>,
    bytes: u64,
}

impl Rows {
    fn is_from_pageable(&self) -> bool {
        self.rows.iter().any(|(_, from)| from.is_pageable)
    }

    fn is_to_pageable(&self) -> bool {
        self.rows.iter().any(|(to, _)| to.is_pageable)
    }

    fn duration_ns(&self, profile: &Profile) -> u64 {
        let on_device = |place: &Place| place.device.is_some();
        let stays = self
            .rows
            .iter()
            .all(|(to, from)| on_device(to) && on_device(from));
        // A copy on the device reads and writes its memory.
        let bytes_per_us = if stays {
            profile.bytes_per_us / 2
        } else {
            HOST_BYTES_PER_US
        };
        transfer_ns(self.bytes, bytes_per_us)
    }

    fn move_now(&self) {
        for (to, from) in &self.rows {
            move_bytes(&to.pieces, &from.pieces);
        }
    }

    /// Replaces every source by a copy of its bytes, which the result carries along.
    fn staged(self) -> impl FnOnce() + Send {
        let rows: Vec<(Vec<Piece>, Vec<u8>)> = self
            .rows
            .into_iter()
            .map(|(to, from)| (to.pieces, bytes_of(&from.pieces)))
            .collect();
        move || {
            for (to, mut from) in rows {
                let from = Piece {
                    at: from.as_mut_ptr(),
                    bytes: from.len(),
                };
                move_bytes(&to, &[from]);
            }
        }
    }

    fn deferred(self) -> impl FnOnce() + Send {
        let rows: Vec<(Vec<Piece>, Vec<Piece>)> = self
            .rows
            .into_iter()
            .map(|(to, from)| (to.pieces, from.pieces))
            .collect();
        move || {
            for (to, from) in rows {
                move_bytes(&to, &from);
            }
        }
    }
}

/// Moves as many bytes as the shorter side has; the sides may overlap.
fn move_bytes(to: &[Piece], from: &[Piece]) {
    let (mut to, mut from) = (to.iter().copied(), from.iter().copied());
    let (mut next_to, mut next_from) = (to.next(), from.next());
    while let (Some(target), Some(source)) = (next_to, next_from) {
        let bytes = target.bytes.min(source.bytes);
        // SAFETY: both sides are what the host named, looked up in the table of allocations or
        // taken as its own memory; that they hold so many bytes is its duty by the CUDA contract.
        unsafe { std::ptr::copy(source.at, target.at, bytes) };
        next_to = rest(target, bytes).or_else(|| to.next());
        next_from = rest(source, bytes).or_else(|| from.next());
    }
}

fn rest(piece: Piece, done: usize) -> Option<Piece> {
    (piece.bytes > done).then(|| Piece {
        at: piece.at.wrapping_add(done),
        bytes: piece.bytes - done,
    })
}

fn bytes_of(pieces: &[Piece]) -> Vec<u8> {
    let mut bytes = vec![0; pieces.iter().map(|piece| piece.bytes).sum()];
    let into = Piece {
        at: bytes.as_mut_ptr(),
        bytes: bytes.len(),
    };
    move_bytes(&[into], pieces);
    bytes
}

fn check(ends: Ends, to: &Place, from: &Place) -> Answer {
    let fits = match ends {
        Ends::HostToDevice => !to.is_pageable,
        Ends::DeviceToHost => !from.is_pageable,
        Ends::DeviceToDevice => !to.is_pageable && !from.is_pageable,
        Ends::Any => true,
    };
    if fits { Ok(()) } else { Err(INVALID_VALUE) }
}

/// Submits rows to a stream and has their bytes moved.
fn submit(driver: &'static Driver, stream: &Stream, rows: Rows, mode: Mode) -> Answer {
    if let Link::Null(_) = driver.link {
        rows.move_now();
        return Ok(());
    }
    let profile = driver.devices[stream.context()?.device].info.profile;
    let copy = Command::Copy {
        duration_ns: rows.duration_ns(profile),
    };
    if mode == Mode::Synchronous || rows.is_to_pageable() {
        let sequence = stream.submit(driver, copy)?;
        driver.finish(stream.lane.slot, sequence)?;
        rows.move_now();
        return Ok(());
    }
    let action: Box<dyn FnOnce() + Send> = if rows.is_from_pageable() {
        Box::new(rows.staged())
    } else {
        Box::new(rows.deferred())
    };
    let slot = stream.lane.slot;
    let submitted = driver
        .deferred
        .submit_move(slot, action, || stream.submit(driver, copy));
    submitted.map(drop)
}

fn copy<F: Flavour>(
    ends: Ends,
    mode: Mode,
    to: u64,
    from: u64,
    bytes: usize,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    if bytes == 0 {
        return Ok(());
    }
    let bytes = bytes as u64;
    let to = driver.ranges.resolve(to, bytes)?;
    let from = driver.ranges.resolve(from, bytes)?;
    check(ends, &to, &from)?;
    let rows = Rows {
        rows: vec![(to, from)],
        bytes,
    };
    submit(driver, &stream, rows, mode)
}

fn sync<F: Flavour>(ends: Ends, to: u64, from: u64, bytes: usize) -> Answer {
    copy::<F>(
        ends,
        Mode::Synchronous,
        to,
        from,
        bytes,
        std::ptr::null_mut(),
    )
}

fn later<F: Flavour>(ends: Ends, to: u64, from: u64, bytes: usize, stream: CUstream) -> Answer {
    copy::<F>(ends, Mode::Asynchronous, to, from, bytes, stream)
}

/// One end of a copy of rows and slices.
#[derive(Clone, Copy)]
struct Grid {
    start: u64,
    pitch: u64,
    slice: u64,
}

impl Grid {
    fn new(
        kind: CUmemorytype,
        host: u64,
        device: CUdeviceptr,
        at: [u64; 3],
        pitch: u64,
        height: u64,
    ) -> Answer<Self> {
        let base = match kind {
            CUmemorytype_enum::CU_MEMORYTYPE_HOST => host,
            CUmemorytype_enum::CU_MEMORYTYPE_DEVICE | CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED => {
                device
            }
            CUmemorytype_enum::CU_MEMORYTYPE_ARRAY => {
                return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
            }
            _ => return Err(INVALID_VALUE),
        };
        let slice = pitch.checked_mul(height).ok_or(INVALID_VALUE)?;
        let [x, y, z] = at;
        let down = y.checked_mul(pitch).ok_or(INVALID_VALUE)?;
        let deep = z.checked_mul(slice).ok_or(INVALID_VALUE)?;
        let sum = base.checked_add(x).and_then(|sum| sum.checked_add(down));
        let start = sum
            .and_then(|sum| sum.checked_add(deep))
            .ok_or(INVALID_VALUE)?;
        Ok(Self {
            start,
            pitch,
            slice,
        })
    }

    fn row(&self, y: u64, z: u64) -> u64 {
        self.start + y * self.pitch + z * self.slice
    }
}

/// Copies `size` (bytes of a row, rows, slices) from one grid to another.
fn copy_grid<F: Flavour>(
    to: Grid,
    from: Grid,
    size: [usize; 3],
    mode: Mode,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    let [width, height, depth] = size.map(|part| part as u64);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(());
    }
    let is_narrow = |grid: &Grid| height > 1 && grid.pitch < width;
    if is_narrow(&to) || is_narrow(&from) {
        return Err(INVALID_VALUE);
    }
    let mut rows = Vec::new();
    for z in 0..depth {
        for y in 0..height {
            let target = driver.ranges.resolve(to.row(y, z), width)?;
            rows.push((target, driver.ranges.resolve(from.row(y, z), width)?));
        }
    }
    let bytes = width * height * depth;
    submit(driver, &stream, Rows { rows, bytes }, mode)
}

fn copy_2d<F: Flavour>(asked: *const CUDA_MEMCPY2D, mode: Mode, stream: CUstream) -> Answer {
    let asked = take(asked)?;
    let tight = |pitch: usize| if pitch == 0 { asked.WidthInBytes } else { pitch } as u64;
    let from = Grid::new(
        asked.srcMemoryType,
        asked.srcHost as u64,
        asked.srcDevice,
        [asked.srcXInBytes as u64, asked.srcY as u64, 0],
        tight(asked.srcPitch),
        0,
    )?;
    let to = Grid::new(
        asked.dstMemoryType,
        asked.dstHost as u64,
        asked.dstDevice,
        [asked.dstXInBytes as u64, asked.dstY as u64, 0],
        tight(asked.dstPitch),
        0,
    )?;
    copy_grid::<F>(
        to,
        from,
        [asked.WidthInBytes, asked.Height, 1],
        mode,
        stream,
    )
}

fn copy_3d<F: Flavour>(asked: *const CUDA_MEMCPY3D, mode: Mode, stream: CUstream) -> Answer {
    let asked = take(asked)?;
    let tight = |pitch: usize| if pitch == 0 { asked.WidthInBytes } else { pitch } as u64;
    let tall = |height: usize| if height == 0 { asked.Height } else { height } as u64;
    let from = Grid::new(
        asked.srcMemoryType,
        asked.srcHost as u64,
        asked.srcDevice,
        [
            asked.srcXInBytes as u64,
            asked.srcY as u64,
            asked.srcZ as u64,
        ],
        tight(asked.srcPitch),
        tall(asked.srcHeight),
    )?;
    let to = Grid::new(
        asked.dstMemoryType,
        asked.dstHost as u64,
        asked.dstDevice,
        [
            asked.dstXInBytes as u64,
            asked.dstY as u64,
            asked.dstZ as u64,
        ],
        tight(asked.dstPitch),
        tall(asked.dstHeight),
    )?;
    let size = [asked.WidthInBytes, asked.Height, asked.Depth];
    copy_grid::<F>(to, from, size, mode, stream)
}

/// The contexts say what the addresses say already.
fn copy_3d_peer<F: Flavour>(
    asked: *const CUDA_MEMCPY3D_PEER,
    mode: Mode,
    stream: CUstream,
) -> Answer {
    let asked = take(asked)?;
    let plain = CUDA_MEMCPY3D {
        srcXInBytes: asked.srcXInBytes,
        srcY: asked.srcY,
        srcZ: asked.srcZ,
        srcLOD: asked.srcLOD,
        srcMemoryType: asked.srcMemoryType,
        srcHost: asked.srcHost,
        srcDevice: asked.srcDevice,
        srcArray: asked.srcArray,
        reserved0: std::ptr::null_mut(),
        srcPitch: asked.srcPitch,
        srcHeight: asked.srcHeight,
        dstXInBytes: asked.dstXInBytes,
        dstY: asked.dstY,
        dstZ: asked.dstZ,
        dstLOD: asked.dstLOD,
        dstMemoryType: asked.dstMemoryType,
        dstHost: asked.dstHost,
        dstDevice: asked.dstDevice,
        dstArray: asked.dstArray,
        reserved1: std::ptr::null_mut(),
        dstPitch: asked.dstPitch,
        dstHeight: asked.dstHeight,
        WidthInBytes: asked.WidthInBytes,
        Height: asked.Height,
        Depth: asked.Depth,
    };
    copy_3d::<F>(&raw const plain, mode, stream)
}

fn peer<F: Flavour>(
    to: u64,
    to_context: CUcontext,
    from: u64,
    from_context: CUcontext,
    bytes: usize,
) -> Answer {
    check_contexts(to_context, from_context)?;
    sync::<F>(Ends::DeviceToDevice, to, from, bytes)
}

fn check_contexts(first: CUcontext, second: CUcontext) -> Answer {
    crate::context::find(first)?;
    crate::context::find(second).map(drop)
}

fn address(pointer: *const c_void) -> u64 {
    pointer as u64
}

fn size(bytes: c_uint) -> usize {
    bytes as usize
}

fn wide(pointer: CUdeviceptr_v1) -> u64 {
    u64::from(pointer)
}

driver! {
    cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) => |to, from, bytes| sync::<Plain>(Ends::Any, to, from, bytes);
    cuMemcpy_ptds(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize) => |to, from, bytes| sync::<PerThread>(Ends::Any, to, from, bytes);
    cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::Any, to, from, bytes, stream);
    cuMemcpyAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<PerThread>(Ends::Any, to, from, bytes, stream);
    cuMemcpyHtoD(dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: c_uint) => |to, from, bytes| sync::<Plain>(Ends::HostToDevice, wide(to), address(from), size(bytes));
    cuMemcpyHtoD_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize) => |to, from, bytes| sync::<Plain>(Ends::HostToDevice, to, address(from), bytes);
    cuMemcpyHtoD_v2_ptds(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize) => |to, from, bytes| sync::<PerThread>(Ends::HostToDevice, to, address(from), bytes);
    cuMemcpyHtoDAsync(dst_device: CUdeviceptr_v1, src_host: *const c_void, byte_count: c_uint, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::HostToDevice, wide(to), address(from), size(bytes), stream);
    cuMemcpyHtoDAsync_v2(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::HostToDevice, to, address(from), bytes, stream);
    cuMemcpyHtoDAsync_v2_ptsz(dst_device: CUdeviceptr, src_host: *const c_void, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<PerThread>(Ends::HostToDevice, to, address(from), bytes, stream);
    cuMemcpyDtoH(dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: c_uint) => |to, from, bytes| sync::<Plain>(Ends::DeviceToHost, address(to), wide(from), size(bytes));
    cuMemcpyDtoH_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize) => |to, from, bytes| sync::<Plain>(Ends::DeviceToHost, address(to), from, bytes);
    cuMemcpyDtoH_v2_ptds(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize) => |to, from, bytes| sync::<PerThread>(Ends::DeviceToHost, address(to), from, bytes);
    cuMemcpyDtoHAsync(dst_host: *mut c_void, src_device: CUdeviceptr_v1, byte_count: c_uint, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::DeviceToHost, address(to), wide(from), size(bytes), stream);
    cuMemcpyDtoHAsync_v2(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::DeviceToHost, address(to), from, bytes, stream);
    cuMemcpyDtoHAsync_v2_ptsz(dst_host: *mut c_void, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<PerThread>(Ends::DeviceToHost, address(to), from, bytes, stream);
    cuMemcpyDtoD(dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: c_uint) => |to, from, bytes| sync::<Plain>(Ends::DeviceToDevice, wide(to), wide(from), size(bytes));
    cuMemcpyDtoD_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize) => |to, from, bytes| sync::<Plain>(Ends::DeviceToDevice, to, from, bytes);
    cuMemcpyDtoD_v2_ptds(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize) => |to, from, bytes| sync::<PerThread>(Ends::DeviceToDevice, to, from, bytes);
    cuMemcpyDtoDAsync(dst_device: CUdeviceptr_v1, src_device: CUdeviceptr_v1, byte_count: c_uint, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::DeviceToDevice, wide(to), wide(from), size(bytes), stream);
    cuMemcpyDtoDAsync_v2(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<Plain>(Ends::DeviceToDevice, to, from, bytes, stream);
    cuMemcpyDtoDAsync_v2_ptsz(dst_device: CUdeviceptr, src_device: CUdeviceptr, byte_count: usize, h_stream: CUstream) => |to, from, bytes, stream| later::<PerThread>(Ends::DeviceToDevice, to, from, bytes, stream);
    cuMemcpyPeer(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize) => peer::<Plain>;
    cuMemcpyPeer_ptds(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize) => peer::<PerThread>;
    cuMemcpyPeerAsync(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream) => |to, to_context, from, from_context, bytes, stream| {
        check_contexts(to_context, from_context)?;
        later::<Plain>(Ends::DeviceToDevice, to, from, bytes, stream)
    };
    cuMemcpyPeerAsync_ptsz(dst_device: CUdeviceptr, dst_context: CUcontext, src_device: CUdeviceptr, src_context: CUcontext, byte_count: usize, h_stream: CUstream) => |to, to_context, from, from_context, bytes, stream| {
        check_contexts(to_context, from_context)?;
        later::<PerThread>(Ends::DeviceToDevice, to, from, bytes, stream)
    };
    cuMemcpy2D_v2(p_copy: *const CUDA_MEMCPY2D) => |asked| copy_2d::<Plain>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy2D_v2_ptds(p_copy: *const CUDA_MEMCPY2D) => |asked| copy_2d::<PerThread>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy2DUnaligned_v2(p_copy: *const CUDA_MEMCPY2D) => |asked| copy_2d::<Plain>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy2DUnaligned_v2_ptds(p_copy: *const CUDA_MEMCPY2D) => |asked| copy_2d::<PerThread>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy2DAsync_v2(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream) => |asked, stream| copy_2d::<Plain>(asked, Mode::Asynchronous, stream);
    cuMemcpy2DAsync_v2_ptsz(p_copy: *const CUDA_MEMCPY2D, h_stream: CUstream) => |asked, stream| copy_2d::<PerThread>(asked, Mode::Asynchronous, stream);
    cuMemcpy3D_v2(p_copy: *const CUDA_MEMCPY3D) => |asked| copy_3d::<Plain>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy3D_v2_ptds(p_copy: *const CUDA_MEMCPY3D) => |asked| copy_3d::<PerThread>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy3DAsync_v2(p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream) => |asked, stream| copy_3d::<Plain>(asked, Mode::Asynchronous, stream);
    cuMemcpy3DAsync_v2_ptsz(p_copy: *const CUDA_MEMCPY3D, h_stream: CUstream) => |asked, stream| copy_3d::<PerThread>(asked, Mode::Asynchronous, stream);
    cuMemcpy3DPeer(p_copy: *const CUDA_MEMCPY3D_PEER) => |asked| copy_3d_peer::<Plain>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy3DPeer_ptds(p_copy: *const CUDA_MEMCPY3D_PEER) => |asked| copy_3d_peer::<PerThread>(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy3DPeerAsync(p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream) => |asked, stream| copy_3d_peer::<Plain>(asked, Mode::Asynchronous, stream);
    cuMemcpy3DPeerAsync_ptsz(p_copy: *const CUDA_MEMCPY3D_PEER, h_stream: CUstream) => |asked, stream| copy_3d_peer::<PerThread>(asked, Mode::Asynchronous, stream);
}
