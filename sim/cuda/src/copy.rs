//! Copies. They really move bytes; their time at the device follows from their size.
//!
//! A synchronous copy waits for its stream and moves its bytes itself. An asynchronous one from
//! pageable memory takes the bytes at once; one to pageable memory waits, as drivers do.

use std::ffi::{c_uint, c_void};
use std::sync::Arc;

use ffi::driver::{
    CUDA_MEMCPY2D, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D, CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_v1, CUarray,
    CUcontext, CUdeviceptr, CUdeviceptr_v1, CUmemorytype, CUmemorytype_enum, CUstream,
};
use sim::profile::Profile;
use sim::proto::Command;

use crate::array::{self, Array};
use crate::capture;
use crate::graph::{Action, Work};
use crate::guard::{Answer, INVALID_VALUE, take};
use crate::link::Link;
use crate::ranges::{Piece, Place};
use crate::state::{self, Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};

/// What any transfer costs before its first byte.
///
/// 2 µs: the order of a small copy's time on the device.
const BASE_NS: u64 = 2_000;

/// Bandwidth between host and device, in bytes per microsecond.
///
/// 25 GB/s: a PCIe 4.0 link with sixteen lanes, as it is reached.
pub(crate) const HOST_BYTES_PER_US: u64 = 25_000;

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
pub(crate) struct Rows {
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

    /// As it is done again and again, from wherever the bytes are each time.
    fn repeatable(self) -> Action {
        let rows: Vec<(Vec<Piece>, Vec<Piece>)> = self
            .rows
            .into_iter()
            .map(|(to, from)| (to.pieces, from.pieces))
            .collect();
        Arc::new(move || {
            for (to, from) in &rows {
                move_bytes(to, from);
            }
        })
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
    if stream.is_capturing() {
        // A copy that is waited for is nothing that could be captured.
        if mode == Mode::Synchronous {
            return Err(capture::refuse(stream));
        }
        let profile = driver.devices[stream.context()?.device].info.profile;
        let duration_ns = rows.duration_ns(profile);
        return capture::add(driver, stream, Work::Copy(duration_ns, rows.repeatable()));
    }
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

/// Submits rows to a stream that does not capture. Unless they are read now, the bytes of the source are
/// those that it has when the stream has got there, pageable or not.
pub(crate) fn submit_in_order(
    driver: &'static Driver,
    stream: &Stream,
    rows: Rows,
    is_read_now: bool,
) -> Answer {
    if let Link::Null(_) = driver.link {
        rows.move_now();
        return Ok(());
    }
    let profile = driver.devices[stream.context()?.device].info.profile;
    let copy = Command::Copy {
        duration_ns: rows.duration_ns(profile),
    };
    let action: Box<dyn FnOnce() + Send> = match is_read_now {
        true => Box::new(rows.staged()),
        false => Box::new(rows.deferred()),
    };
    let slot = stream.lane.slot;
    let submitted = driver
        .deferred
        .submit_move(slot, action, || stream.submit(driver, copy));
    submitted.map(drop)
}

/// The one row of a copy of bytes.
pub(crate) fn line_rows(driver: &Driver, to: u64, from: u64, bytes: usize) -> Answer<Rows> {
    let bytes = bytes as u64;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let to = driver.ranges.resolve(to, bytes)?;
    let from = driver.ranges.resolve(from, bytes)?;
    Ok(Rows {
        rows: vec![(to, from)],
        bytes,
    })
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

/// One end of a copy of rows and slices in memory.
#[derive(Clone, Copy)]
pub(crate) struct Grid {
    /// Where the first row of the copy begins.
    pub(crate) start: u64,
    /// Where in its row a row of the copy begins.
    pub(crate) indent: u64,
    /// From one row to the next.
    pub(crate) pitch: u64,
    /// From one slice to the next.
    pub(crate) slice: u64,
}

/// One end of a copy of rows and slices.
pub(crate) enum Side {
    /// Rows in memory.
    Memory(Grid),
    /// From this byte, row and slice of an array on.
    Array(Arc<Array>, [u64; 3]),
}

/// What a descriptor of a copy says about one end.
struct End {
    kind: CUmemorytype,
    host: u64,
    device: CUdeviceptr,
    array: CUarray,
    at: [u64; 3],
    pitch: u64,
    height: u64,
}

impl End {
    fn side(&self) -> Answer<Side> {
        let base = match self.kind {
            CUmemorytype_enum::CU_MEMORYTYPE_HOST => self.host,
            CUmemorytype_enum::CU_MEMORYTYPE_DEVICE | CUmemorytype_enum::CU_MEMORYTYPE_UNIFIED => {
                self.device
            }
            CUmemorytype_enum::CU_MEMORYTYPE_ARRAY => {
                return Ok(Side::Array(array::find(self.array)?, self.at));
            }
            _ => return Err(INVALID_VALUE),
        };
        let (pitch, [x, y, z]) = (self.pitch, self.at);
        let slice = pitch.checked_mul(self.height).ok_or(INVALID_VALUE)?;
        let down = y.checked_mul(pitch).ok_or(INVALID_VALUE)?;
        let deep = z.checked_mul(slice).ok_or(INVALID_VALUE)?;
        let sum = base.checked_add(x).and_then(|sum| sum.checked_add(down));
        let start = sum
            .and_then(|sum| sum.checked_add(deep))
            .ok_or(INVALID_VALUE)?;
        Ok(Side::Memory(Grid {
            start,
            indent: x,
            pitch,
            slice,
        }))
    }
}

impl Side {
    /// Whether rows of `width` bytes would run into the next ones.
    fn is_narrow(&self, width: u64) -> bool {
        matches!(self, Self::Memory(grid) if grid.pitch < grid.indent.saturating_add(width))
    }

    /// The bytes of one row.
    fn row(&self, driver: &Driver, y: u64, z: u64, width: u64) -> Answer<Place> {
        match self {
            Self::Memory(grid) => {
                let start = y
                    .checked_mul(grid.pitch)
                    .and_then(|down| grid.start.checked_add(down))
                    .and_then(|sum| sum.checked_add(z.checked_mul(grid.slice)?))
                    .ok_or(INVALID_VALUE)?;
                driver.ranges.resolve(start, width)
            }
            Self::Array(array, [first, down, deep]) => {
                let at = [*first, down.saturating_add(y), deep.saturating_add(z)];
                array.row(at, width)
            }
        }
    }
}

/// Copies `size` (bytes of a row, rows, slices) from one side to another.
fn copy_grid<F: Flavour>(
    to: &Side,
    from: &Side,
    size: [usize; 3],
    mode: Mode,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    match grid_rows(driver, to, from, size)? {
        Some(rows) => submit(driver, &stream, rows, mode),
        None => Ok(()),
    }
}

/// The rows of such a copy; `None`: there are none.
pub(crate) fn grid_rows(
    driver: &Driver,
    to: &Side,
    from: &Side,
    size: [usize; 3],
) -> Answer<Option<Rows>> {
    let [width, height, depth] = size.map(|part| part as u64);
    if width == 0 || height == 0 || depth == 0 {
        return Ok(None);
    }
    if height > 1 && (to.is_narrow(width) || from.is_narrow(width)) {
        return Err(INVALID_VALUE);
    }
    let mut rows = Vec::new();
    for z in 0..depth {
        for y in 0..height {
            let target = to.row(driver, y, z, width)?;
            rows.push((target, from.row(driver, y, z, width)?));
        }
    }
    let bytes = width * height * depth;
    Ok(Some(Rows { rows, bytes }))
}

/// Copies bytes between memory and an array, whose bytes are counted row by row.
pub(crate) fn copy_line<F: Flavour>(
    to: Line,
    from: Line,
    bytes: usize,
    is_synchronous: bool,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    let bytes = bytes as u64;
    if bytes == 0 {
        return Ok(());
    }
    let place = |line: Line| match line {
        Line::Memory(address) => driver.ranges.resolve(address, bytes),
        Line::Array(array, offset) => array::find(array)?.line(offset, bytes),
    };
    let rows = vec![(place(to)?, place(from)?)];
    let mode = match is_synchronous {
        true => Mode::Synchronous,
        false => Mode::Asynchronous,
    };
    submit(driver, &stream, Rows { rows, bytes }, mode)
}

/// One end of a copy of bytes.
#[derive(Clone, Copy)]
pub(crate) enum Line {
    /// From this address on.
    Memory(u64),
    /// From this byte of an array on.
    Array(CUarray, u64),
}

fn copy_2d<F: Flavour>(asked: *const CUDA_MEMCPY2D, mode: Mode, stream: CUstream) -> Answer {
    copy_2d_of::<F>(&take(asked)?, mode, stream)
}

fn copy_2d_of<F: Flavour>(asked: &CUDA_MEMCPY2D, mode: Mode, stream: CUstream) -> Answer {
    let tight = |pitch: usize| if pitch == 0 { asked.WidthInBytes } else { pitch } as u64;
    let from = End {
        kind: asked.srcMemoryType,
        host: asked.srcHost as u64,
        device: asked.srcDevice,
        array: asked.srcArray,
        at: [asked.srcXInBytes as u64, asked.srcY as u64, 0],
        pitch: tight(asked.srcPitch),
        height: 0,
    };
    let to = End {
        kind: asked.dstMemoryType,
        host: asked.dstHost as u64,
        device: asked.dstDevice,
        array: asked.dstArray,
        at: [asked.dstXInBytes as u64, asked.dstY as u64, 0],
        pitch: tight(asked.dstPitch),
        height: 0,
    };
    let size = [asked.WidthInBytes, asked.Height, 1];
    copy_grid::<F>(&to.side()?, &from.side()?, size, mode, stream)
}

/// The first interface's sizes and addresses have 32 bits.
fn copy_2d_v1(asked: *const CUDA_MEMCPY2D_v1, mode: Mode, stream: CUstream) -> Answer {
    let asked = take(asked)?;
    let plain = CUDA_MEMCPY2D {
        srcXInBytes: size(asked.srcXInBytes),
        srcY: size(asked.srcY),
        srcMemoryType: asked.srcMemoryType,
        srcHost: asked.srcHost,
        srcDevice: wide(asked.srcDevice),
        srcArray: asked.srcArray,
        srcPitch: size(asked.srcPitch),
        dstXInBytes: size(asked.dstXInBytes),
        dstY: size(asked.dstY),
        dstMemoryType: asked.dstMemoryType,
        dstHost: asked.dstHost,
        dstDevice: wide(asked.dstDevice),
        dstArray: asked.dstArray,
        dstPitch: size(asked.dstPitch),
        WidthInBytes: size(asked.WidthInBytes),
        Height: size(asked.Height),
    };
    copy_2d_of::<Plain>(&plain, mode, stream)
}

/// The two sides of such a copy, and its size.
fn sides(asked: &CUDA_MEMCPY3D) -> Answer<(Side, Side, [usize; 3])> {
    let tight = |pitch: usize| if pitch == 0 { asked.WidthInBytes } else { pitch } as u64;
    let tall = |height: usize| if height == 0 { asked.Height } else { height } as u64;
    let at = |x: usize, y: usize, z: usize| [x as u64, y as u64, z as u64];
    let from = End {
        kind: asked.srcMemoryType,
        host: asked.srcHost as u64,
        device: asked.srcDevice,
        array: asked.srcArray,
        at: at(asked.srcXInBytes, asked.srcY, asked.srcZ),
        pitch: tight(asked.srcPitch),
        height: tall(asked.srcHeight),
    };
    let to = End {
        kind: asked.dstMemoryType,
        host: asked.dstHost as u64,
        device: asked.dstDevice,
        array: asked.dstArray,
        at: at(asked.dstXInBytes, asked.dstY, asked.dstZ),
        pitch: tight(asked.dstPitch),
        height: tall(asked.dstHeight),
    };
    let size = [asked.WidthInBytes, asked.Height, asked.Depth];
    Ok((to.side()?, from.side()?, size))
}

fn copy_3d<F: Flavour>(asked: *const CUDA_MEMCPY3D, mode: Mode, stream: CUstream) -> Answer {
    let (to, from, size) = sides(&take(asked)?)?;
    copy_grid::<F>(&to, &from, size, mode, stream)
}

/// A copy node's work: how long it takes, and what it does.
pub(crate) fn prepared(asked: &CUDA_MEMCPY3D) -> Answer<(u64, Action)> {
    let driver = driver()?;
    let (to, from, size) = sides(asked)?;
    let rows = grid_rows(driver, &to, &from, size)?.ok_or(INVALID_VALUE)?;
    let device = state::current()?.device;
    let duration_ns = rows.duration_ns(driver.devices[device].info.profile);
    Ok((duration_ns, rows.repeatable()))
}

/// The first interface's sizes and addresses have 32 bits.
fn copy_3d_v1(asked: *const CUDA_MEMCPY3D_v1, mode: Mode, stream: CUstream) -> Answer {
    let asked = take(asked)?;
    let plain = CUDA_MEMCPY3D {
        srcXInBytes: size(asked.srcXInBytes),
        srcY: size(asked.srcY),
        srcZ: size(asked.srcZ),
        srcLOD: size(asked.srcLOD),
        srcMemoryType: asked.srcMemoryType,
        srcHost: asked.srcHost,
        srcDevice: wide(asked.srcDevice),
        srcArray: asked.srcArray,
        reserved0: std::ptr::null_mut(),
        srcPitch: size(asked.srcPitch),
        srcHeight: size(asked.srcHeight),
        dstXInBytes: size(asked.dstXInBytes),
        dstY: size(asked.dstY),
        dstZ: size(asked.dstZ),
        dstLOD: size(asked.dstLOD),
        dstMemoryType: asked.dstMemoryType,
        dstHost: asked.dstHost,
        dstDevice: wide(asked.dstDevice),
        dstArray: asked.dstArray,
        reserved1: std::ptr::null_mut(),
        dstPitch: size(asked.dstPitch),
        dstHeight: size(asked.dstHeight),
        WidthInBytes: size(asked.WidthInBytes),
        Height: size(asked.Height),
        Depth: size(asked.Depth),
    };
    copy_3d::<Plain>(&raw const plain, mode, stream)
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
    cuMemcpy2D(p_copy: *const CUDA_MEMCPY2D_v1) => |asked| copy_2d_v1(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy2DUnaligned(p_copy: *const CUDA_MEMCPY2D_v1) => |asked| copy_2d_v1(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy2DAsync(p_copy: *const CUDA_MEMCPY2D_v1, h_stream: CUstream) => |asked, stream| copy_2d_v1(asked, Mode::Asynchronous, stream);
    cuMemcpy3D(p_copy: *const CUDA_MEMCPY3D_v1) => |asked| copy_3d_v1(asked, Mode::Synchronous, std::ptr::null_mut());
    cuMemcpy3DAsync(p_copy: *const CUDA_MEMCPY3D_v1, h_stream: CUstream) => |asked, stream| copy_3d_v1(asked, Mode::Asynchronous, stream);
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
