//! Fills (`cuMemset*`): the time at the device follows from the size, the bytes are really written.
//!
//! Also the functions without `Async` return before the fill is done, as drivers do for device memory.

use std::ffi::{c_uchar, c_uint, c_ushort};
use std::sync::Arc;

use ffi::driver::{CUDA_MEMSET_NODE_PARAMS, CUdeviceptr, CUdeviceptr_v1, CUstream};
use sim::proto::Command;

use crate::capture;
use crate::copy::transfer_ns;
use crate::graph::{Action, Work};
use crate::guard::{Answer, INVALID_VALUE};
use crate::link::Link;
use crate::ranges::Piece;
use crate::state::{self, driver};
use crate::stream::{self, Flavour, PerThread, Plain};

/// A value and how often it is written.
#[derive(Debug, Clone, Copy)]
struct Pattern {
    bytes: [u8; 4],
    width: usize,
}

impl Pattern {
    fn of_8(value: c_uchar) -> Self {
        Self {
            bytes: [value; 4],
            width: 1,
        }
    }

    fn of_16(value: c_ushort) -> Self {
        let [low, high] = value.to_ne_bytes();
        Self {
            bytes: [low, high, low, high],
            width: 2,
        }
    }

    fn of_32(value: c_uint) -> Self {
        Self {
            bytes: value.to_ne_bytes(),
            width: 4,
        }
    }

    /// Writes itself over `pieces`, whose borders may cut a value.
    fn write(self, pieces: &[Piece]) {
        let mut offset = 0;
        for piece in pieces {
            if self.bytes.iter().all(|byte| *byte == self.bytes[0]) {
                // SAFETY: the piece was found in the table of allocations.
                unsafe { piece.at.write_bytes(self.bytes[0], piece.bytes) };
                continue;
            }
            for index in 0..piece.bytes {
                let byte = self.bytes[(offset + index) % 4];
                let place = piece.at.wrapping_add(index);
                // SAFETY: inside the piece, which was found in the table of allocations.
                unsafe { place.write(byte) };
            }
            offset += piece.bytes;
        }
    }
}

fn fill_rows<F: Flavour>(
    start: u64,
    pattern: Pattern,
    pitch: u64,
    count: usize,
    height: usize,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    let width = (count as u64)
        .checked_mul(pattern.width as u64)
        .ok_or(INVALID_VALUE)?;
    let is_aligned = start.is_multiple_of(pattern.width as u64);
    if !is_aligned || (height > 1 && pitch < width) {
        return Err(INVALID_VALUE);
    }
    if width == 0 || height == 0 {
        return Ok(());
    }
    let mut rows = Vec::with_capacity(height);
    for row in 0..height as u64 {
        let at = row
            .checked_mul(pitch)
            .and_then(|down| start.checked_add(down));
        let place = driver.ranges.resolve(at.ok_or(INVALID_VALUE)?, width)?;
        if place.is_pageable {
            return Err(INVALID_VALUE);
        }
        rows.push(place.pieces);
    }
    let write = move || rows.iter().for_each(|pieces| pattern.write(pieces));
    let profile = driver.devices[stream.context()?.device].info.profile;
    let bytes = width.saturating_mul(height as u64);
    let duration_ns = transfer_ns(bytes, profile.bytes_per_us);
    if stream.is_capturing() {
        return capture::add(driver, &stream, Work::Fill(duration_ns, Arc::new(write)));
    }
    if let Link::Null(_) = driver.link {
        write();
        return Ok(());
    }
    let copy = Command::Copy { duration_ns };
    let slot = stream.lane.slot;
    let submitted = driver
        .deferred
        .submit_move(slot, Box::new(write), || stream.submit(driver, copy));
    submitted.map(drop)
}

/// A memset node's work: how long it takes, and what it does.
pub(crate) fn prepared(params: &CUDA_MEMSET_NODE_PARAMS) -> Answer<(u64, Action)> {
    let pattern = match params.elementSize {
        1 => Pattern::of_8(params.value as c_uchar),
        2 => Pattern::of_16(params.value as c_ushort),
        4 => Pattern::of_32(params.value),
        _ => return Err(INVALID_VALUE),
    };
    let driver = driver()?;
    let width = (params.width as u64)
        .checked_mul(pattern.width as u64)
        .filter(|width| *width > 0 && params.height > 0)
        .ok_or(INVALID_VALUE)?;
    let mut rows = Vec::new();
    for row in 0..params.height as u64 {
        let down = row.checked_mul(params.pitch as u64).ok_or(INVALID_VALUE)?;
        let at = params.dst.checked_add(down).ok_or(INVALID_VALUE)?;
        let place = driver.ranges.resolve(at, width)?;
        if place.is_pageable {
            return Err(INVALID_VALUE);
        }
        rows.push(place.pieces);
    }
    let device = state::current()?.device;
    let bytes = width.saturating_mul(params.height as u64);
    let duration_ns = transfer_ns(bytes, driver.devices[device].info.profile.bytes_per_us);
    let write = move || rows.iter().for_each(|pieces| pattern.write(pieces));
    Ok((duration_ns, Arc::new(write)))
}

fn fill<F: Flavour>(start: u64, pattern: Pattern, count: usize, stream: CUstream) -> Answer {
    fill_rows::<F>(start, pattern, 0, count, 1, stream)
}

/// The default stream of the flavour.
fn default_stream() -> CUstream {
    std::ptr::null_mut()
}

fn fill_v1(start: CUdeviceptr_v1, pattern: Pattern, count: c_uint) -> Answer {
    fill::<Plain>(u64::from(start), pattern, count as usize, default_stream())
}

fn fill_rows_v1(
    start: CUdeviceptr_v1,
    pitch: c_uint,
    pattern: Pattern,
    width: c_uint,
    height: c_uint,
) -> Answer {
    let (width, height) = (width as usize, height as usize);
    fill_rows::<Plain>(
        u64::from(start),
        pattern,
        u64::from(pitch),
        width,
        height,
        default_stream(),
    )
}

driver! {
    cuMemsetD8(dst_device: CUdeviceptr_v1, uc: c_uchar, n: c_uint) => |at, value, count| fill_v1(at, Pattern::of_8(value), count);
    cuMemsetD8_v2(dst_device: CUdeviceptr, uc: c_uchar, n: usize) => |at, value, count| fill::<Plain>(at, Pattern::of_8(value), count, default_stream());
    cuMemsetD8_v2_ptds(dst_device: CUdeviceptr, uc: c_uchar, n: usize) => |at, value, count| fill::<PerThread>(at, Pattern::of_8(value), count, default_stream());
    cuMemsetD8Async(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream) => |at, value, count, stream| fill::<Plain>(at, Pattern::of_8(value), count, stream);
    cuMemsetD8Async_ptsz(dst_device: CUdeviceptr, uc: c_uchar, n: usize, h_stream: CUstream) => |at, value, count, stream| fill::<PerThread>(at, Pattern::of_8(value), count, stream);
    cuMemsetD16(dst_device: CUdeviceptr_v1, us: c_ushort, n: c_uint) => |at, value, count| fill_v1(at, Pattern::of_16(value), count);
    cuMemsetD16_v2(dst_device: CUdeviceptr, us: c_ushort, n: usize) => |at, value, count| fill::<Plain>(at, Pattern::of_16(value), count, default_stream());
    cuMemsetD16_v2_ptds(dst_device: CUdeviceptr, us: c_ushort, n: usize) => |at, value, count| fill::<PerThread>(at, Pattern::of_16(value), count, default_stream());
    cuMemsetD16Async(dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream) => |at, value, count, stream| fill::<Plain>(at, Pattern::of_16(value), count, stream);
    cuMemsetD16Async_ptsz(dst_device: CUdeviceptr, us: c_ushort, n: usize, h_stream: CUstream) => |at, value, count, stream| fill::<PerThread>(at, Pattern::of_16(value), count, stream);
    cuMemsetD32(dst_device: CUdeviceptr_v1, ui: c_uint, n: c_uint) => |at, value, count| fill_v1(at, Pattern::of_32(value), count);
    cuMemsetD32_v2(dst_device: CUdeviceptr, ui: c_uint, n: usize) => |at, value, count| fill::<Plain>(at, Pattern::of_32(value), count, default_stream());
    cuMemsetD32_v2_ptds(dst_device: CUdeviceptr, ui: c_uint, n: usize) => |at, value, count| fill::<PerThread>(at, Pattern::of_32(value), count, default_stream());
    cuMemsetD32Async(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream) => |at, value, count, stream| fill::<Plain>(at, Pattern::of_32(value), count, stream);
    cuMemsetD32Async_ptsz(dst_device: CUdeviceptr, ui: c_uint, n: usize, h_stream: CUstream) => |at, value, count, stream| fill::<PerThread>(at, Pattern::of_32(value), count, stream);
    cuMemsetD2D8(dst_device: CUdeviceptr_v1, dst_pitch: c_uint, uc: c_uchar, width: c_uint, height: c_uint) => |at, pitch, value, width, height| fill_rows_v1(at, pitch, Pattern::of_8(value), width, height);
    cuMemsetD2D8_v2(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize) => |at, pitch, value, width, height| fill_rows::<Plain>(at, Pattern::of_8(value), pitch as u64, width, height, default_stream());
    cuMemsetD2D8_v2_ptds(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize) => |at, pitch, value, width, height| fill_rows::<PerThread>(at, Pattern::of_8(value), pitch as u64, width, height, default_stream());
    cuMemsetD2D8Async(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream) => |at, pitch, value, width, height, stream| fill_rows::<Plain>(at, Pattern::of_8(value), pitch as u64, width, height, stream);
    cuMemsetD2D8Async_ptsz(dst_device: CUdeviceptr, dst_pitch: usize, uc: c_uchar, width: usize, height: usize, h_stream: CUstream) => |at, pitch, value, width, height, stream| fill_rows::<PerThread>(at, Pattern::of_8(value), pitch as u64, width, height, stream);
    cuMemsetD2D16(dst_device: CUdeviceptr_v1, dst_pitch: c_uint, us: c_ushort, width: c_uint, height: c_uint) => |at, pitch, value, width, height| fill_rows_v1(at, pitch, Pattern::of_16(value), width, height);
    cuMemsetD2D16_v2(dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize) => |at, pitch, value, width, height| fill_rows::<Plain>(at, Pattern::of_16(value), pitch as u64, width, height, default_stream());
    cuMemsetD2D16_v2_ptds(dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize) => |at, pitch, value, width, height| fill_rows::<PerThread>(at, Pattern::of_16(value), pitch as u64, width, height, default_stream());
    cuMemsetD2D16Async(dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize, h_stream: CUstream) => |at, pitch, value, width, height, stream| fill_rows::<Plain>(at, Pattern::of_16(value), pitch as u64, width, height, stream);
    cuMemsetD2D16Async_ptsz(dst_device: CUdeviceptr, dst_pitch: usize, us: c_ushort, width: usize, height: usize, h_stream: CUstream) => |at, pitch, value, width, height, stream| fill_rows::<PerThread>(at, Pattern::of_16(value), pitch as u64, width, height, stream);
    cuMemsetD2D32(dst_device: CUdeviceptr_v1, dst_pitch: c_uint, ui: c_uint, width: c_uint, height: c_uint) => |at, pitch, value, width, height| fill_rows_v1(at, pitch, Pattern::of_32(value), width, height);
    cuMemsetD2D32_v2(dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize) => |at, pitch, value, width, height| fill_rows::<Plain>(at, Pattern::of_32(value), pitch as u64, width, height, default_stream());
    cuMemsetD2D32_v2_ptds(dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize) => |at, pitch, value, width, height| fill_rows::<PerThread>(at, Pattern::of_32(value), pitch as u64, width, height, default_stream());
    cuMemsetD2D32Async(dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize, h_stream: CUstream) => |at, pitch, value, width, height, stream| fill_rows::<Plain>(at, Pattern::of_32(value), pitch as u64, width, height, stream);
    cuMemsetD2D32Async_ptsz(dst_device: CUdeviceptr, dst_pitch: usize, ui: c_uint, width: usize, height: usize, h_stream: CUstream) => |at, pitch, value, width, height, stream| fill_rows::<PerThread>(at, Pattern::of_32(value), pitch as u64, width, height, stream);
}
