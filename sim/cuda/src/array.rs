//! Arrays and mipmapped arrays: their sizes, their bytes, and what is mapped into them.
//!
//! A row of texels takes a multiple of 128 B, an array of two or three dimensions a multiple of 8 rows,
//! and each level of a mipmapped array, as each array, a multiple of 64 KiB. With
//! `CUDA_ARRAY3D_DEFERRED_MAPPING` or `CUDA_ARRAY3D_SPARSE` there is nothing behind it until a physical
//! handle is mapped into it. Bytes of sparse arrays cannot be copied; planes are not told apart.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::Arc;

use ffi::driver::{
    CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL, CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY_DESCRIPTOR_v1,
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY_SPARSE_PROPERTIES, CUDA_ARRAY3D_CUBEMAP,
    CUDA_ARRAY3D_DEFERRED_MAPPING, CUDA_ARRAY3D_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR_v1,
    CUDA_ARRAY3D_LAYERED, CUDA_ARRAY3D_SPARSE, CUarray, CUarrayMapInfo, CUdevice, CUmipmappedArray,
    CUresult, CUstream,
};
use ffi::driver::{
    CUDA_ARRAY_SPARSE_PROPERTIES_st__bindgen_ty_1 as TileExtent,
    CUarraySparseSubresourceType_enum as Part, CUmemHandleType_enum, CUmemOperationType_enum as Op,
    CUresourcetype_enum as Resource,
};
use ffi::texels;
use parking_lot::Mutex;

use crate::context::Context;
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::ranges::{Piece, Place};
use crate::registry::handle_of;
use crate::state::{self, Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain};
use crate::vmm::{self, Physical};

/// What a row of texels is rounded up to.
const ROW_BYTES: u64 = 128;

/// What the rows of a picture are rounded up to.
const ROWS: u64 = 8;

/// What an array, a level and a tile of a sparse array take at least; also their alignment.
const TILE_BYTES: u64 = 64 << 10;

/// Largest extents: width, height, depth. Source: the limits of recent devices for 2D and 3D textures.
const MAX_EXTENTS: [u64; 3] = [131_072, 65_536, 16_384];

/// Every flag of an array that there is.
const KNOWN_FLAGS: c_uint = 0x1ff;

/// How the bytes of an array lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Layout {
    /// Bytes of a row that hold texels.
    row: u64,
    /// Rows of texels.
    rows: u64,
    /// Slices or layers.
    slices: u64,
    /// From one row to the next.
    pitch: u64,
    /// From one slice to the next.
    slice: u64,
    /// All.
    bytes: u64,
}

impl Layout {
    /// Of level `level` of what `descriptor` describes.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a format that there is not, or a size beyond all bounds.
    fn of(descriptor: &CUDA_ARRAY3D_DESCRIPTOR, level: u32) -> Answer<Self> {
        let bits = texels::bits(descriptor.Format, descriptor.NumChannels).ok_or(INVALID_VALUE)?;
        let shrunk = |extent: usize| (extent as u64 >> level).max(1);
        let is_layered = descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
        let slices = match is_layered {
            true => (descriptor.Depth as u64).max(1),
            false => shrunk(descriptor.Depth),
        };
        let (width, height) = (shrunk(descriptor.Width), shrunk(descriptor.Height));
        let (row, rows) = if texels::is_by_blocks(descriptor.Format) {
            let square = bits * texels::BLOCK_TEXELS * texels::BLOCK_TEXELS / 8;
            let across = width.div_ceil(texels::BLOCK_TEXELS);
            (across * square, height.div_ceil(texels::BLOCK_TEXELS))
        } else {
            ((width * bits).div_ceil(8), height)
        };
        let pitch = row.next_multiple_of(ROW_BYTES);
        let padded = match descriptor.Height {
            0 => rows,
            _ => rows.next_multiple_of(ROWS),
        };
        let slice = pitch.checked_mul(padded).ok_or(INVALID_VALUE)?;
        let bytes = slice.checked_mul(slices).ok_or(INVALID_VALUE)?;
        Ok(Self {
            row,
            rows,
            slices,
            pitch,
            slice,
            bytes: bytes.next_multiple_of(TILE_BYTES),
        })
    }
}

/// A physical handle that is mapped into an array, held for as long as it is.
struct Mapped {
    physical: Arc<Physical>,
    reach: *mut u8,
}

// SAFETY: `reach` is an address that is used only to move bytes, as the host asks for it.
unsafe impl Send for Mapped {}

/// What a part of an array is called when something is mapped into it.
type PartName = [u32; 8];

/// The memory behind an array.
enum Backing {
    /// Its own.
    Block { id: u64, reach: *mut u8 },
    /// What is mapped into it, by part.
    Parts(Mutex<BTreeMap<PartName, Mapped>>),
    /// A level's: that of the mipmapped array, from this byte on.
    Level(Arc<Memory>, u64),
}

/// What an array or a mipmapped array as a whole stands on.
pub(crate) struct Memory {
    device: usize,
    bytes: u64,
    flags: c_uint,
    backing: Backing,
}

// SAFETY: the address in it is used only to move bytes, as the host asks for it.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(
        driver: &Driver,
        context: &Context,
        descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
        bytes: u64,
    ) -> Answer<Self> {
        let is_empty =
            descriptor.Flags & (CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_SPARSE) != 0;
        let backing = if is_empty {
            Backing::Parts(Mutex::default())
        } else {
            let (id, reach) = crate::memory::take_block(driver, context, bytes)?;
            Backing::Block { id, reach }
        };
        Ok(Self {
            device: context.device,
            bytes,
            flags: descriptor.Flags,
            backing,
        })
    }

    fn is_sparse(&self) -> bool {
        self.flags & CUDA_ARRAY3D_SPARSE != 0
    }

    /// Where its first byte lies.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where nothing is mapped, `CUDA_ERROR_NOT_SUPPORTED` for a sparse one.
    fn reach(&self) -> Answer<*mut u8> {
        match &self.backing {
            Backing::Block { reach, .. } => Ok(*reach),
            Backing::Level(whole, offset) => Ok(whole.reach()?.wrapping_add(*offset as usize)),
            Backing::Parts(_) if self.is_sparse() => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            Backing::Parts(parts) => {
                let parts = parts.lock();
                parts
                    .values()
                    .next()
                    .map(|mapped| mapped.reach)
                    .ok_or(INVALID_VALUE)
            }
        }
    }

    /// Gives everything back. `is_with_context`: the device has taken the context's blocks already.
    fn end(&self, driver: &Driver, is_with_context: bool) -> Answer {
        match &self.backing {
            Backing::Block { .. } if is_with_context => Ok(()),
            Backing::Block { id, .. } => driver.link.release(self.device, *id),
            Backing::Level(..) => Ok(()),
            Backing::Parts(parts) => {
                for mapped in std::mem::take(&mut *parts.lock()).into_values() {
                    mapped.physical.let_go(driver)?;
                }
                Ok(())
            }
        }
    }

    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for memory that is not mapped by the host, as documented.
    fn requirements(&self) -> Answer<CUDA_ARRAY_MEMORY_REQUIREMENTS> {
        if self.flags & CUDA_ARRAY3D_DEFERRED_MAPPING == 0 {
            return Err(INVALID_VALUE);
        }
        Ok(CUDA_ARRAY_MEMORY_REQUIREMENTS {
            size: self.bytes as usize,
            alignment: TILE_BYTES as usize,
            reserved: [0; 4],
        })
    }
}

/// An array, or a level of a mipmapped one.
pub(crate) struct Array {
    /// Number of the context that it belongs to.
    pub(crate) context_id: u64,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    layout: Layout,
    memory: Arc<Memory>,
}

/// A mipmapped array.
pub(crate) struct Mipmap {
    /// Number of the context that it belongs to.
    pub(crate) context_id: u64,
    descriptor: CUDA_ARRAY3D_DESCRIPTOR,
    levels: Vec<Arc<Array>>,
    memory: Arc<Memory>,
}

impl Array {
    /// What it was asked to be.
    pub(crate) fn descriptor(&self) -> &CUDA_ARRAY3D_DESCRIPTOR {
        &self.descriptor
    }

    fn is_level(&self) -> bool {
        matches!(self.memory.backing, Backing::Level(..))
    }

    /// `width` bytes of a row; `at`: byte in the row, row, slice.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` beyond its bounds.
    pub(crate) fn row(&self, at: [u64; 3], width: u64) -> Answer<Place> {
        let [first, row, slice] = at;
        let layout = &self.layout;
        let end = first.checked_add(width).ok_or(INVALID_VALUE)?;
        if end > layout.row || row >= layout.rows || slice >= layout.slices {
            return Err(INVALID_VALUE);
        }
        let offset = first + row * layout.pitch + slice * layout.slice;
        Ok(self.place(vec![(offset, width)], self.memory.reach()?))
    }

    /// `bytes` from byte `offset` on, row by row.
    ///
    /// # Errors
    /// As [`Array::row`].
    pub(crate) fn line(&self, offset: u64, bytes: u64) -> Answer<Place> {
        let layout = &self.layout;
        let end = offset.checked_add(bytes).ok_or(INVALID_VALUE)?;
        if end > layout.row * layout.rows * layout.slices {
            return Err(INVALID_VALUE);
        }
        let mut stretches = Vec::new();
        let mut at = offset;
        while at < end {
            let (row, first) = (at / layout.row, at % layout.row);
            let part = (layout.row - first).min(end - at);
            let (slice, row) = (row / layout.rows, row % layout.rows);
            stretches.push((first + row * layout.pitch + slice * layout.slice, part));
            at += part;
        }
        Ok(self.place(stretches, self.memory.reach()?))
    }

    fn place(&self, stretches: Vec<(u64, u64)>, reach: *mut u8) -> Place {
        let piece = |(offset, bytes)| Piece {
            at: reach.wrapping_add(offset as usize),
            bytes: bytes as usize,
        };
        Place {
            pieces: stretches.into_iter().map(piece).collect(),
            is_pageable: false,
            device: Some(self.memory.device),
        }
    }
}

/// Checks what the host asks for.
fn checked(descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Answer<CUDA_ARRAY3D_DESCRIPTOR> {
    let extents = [descriptor.Width, descriptor.Height, descriptor.Depth].map(|part| part as u64);
    let [width, height, depth] = extents;
    let flags = descriptor.Flags;
    let is = |flag: c_uint| flags & flag != 0;
    let is_within = extents
        .iter()
        .zip(MAX_EXTENTS)
        .all(|(extent, most)| *extent <= most);
    let is_plain = matches!(descriptor.Format.0, 0..=0x20);
    let channels = match is_plain {
        true => matches!(descriptor.NumChannels, 1 | 2 | 4),
        false => (1..=4).contains(&descriptor.NumChannels),
    };
    // Without a height there is no depth but that of layers.
    let is_shaped = width > 0 && (height > 0 || depth == 0 || is(CUDA_ARRAY3D_LAYERED));
    let is_cube = width == height
        && depth.is_multiple_of(6)
        && depth > 0
        && (depth == 6 || is(CUDA_ARRAY3D_LAYERED));
    let is_tiled = height > 0 && !is(CUDA_ARRAY3D_DEFERRED_MAPPING);
    let is_sound = is_within
        && channels
        && is_shaped
        && flags & !KNOWN_FLAGS == 0
        && (!is(CUDA_ARRAY3D_CUBEMAP) || is_cube)
        && (!is(CUDA_ARRAY3D_LAYERED) || depth > 0)
        && (!is(CUDA_ARRAY3D_SPARSE) || is_tiled);
    is_sound.then_some(descriptor).ok_or(INVALID_VALUE)
}

fn create(out: *mut CUarray, descriptor: CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let context = state::current()?;
    let descriptor = checked(descriptor)?;
    let layout = Layout::of(&descriptor, 0)?;
    let memory = Memory::new(driver, &context, &descriptor, layout.bytes)?;
    let array = Array {
        context_id: context.id,
        descriptor,
        layout,
        memory: Arc::new(memory),
    };
    out.write(driver.arrays.add(Arc::new(array)));
    Ok(())
}

fn create_2d(out: *mut CUarray, asked: *const CUDA_ARRAY_DESCRIPTOR) -> Answer {
    let asked = take(asked)?;
    create(
        out,
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: asked.Width,
            Height: asked.Height,
            Depth: 0,
            Format: asked.Format,
            NumChannels: asked.NumChannels,
            Flags: 0,
        },
    )
}

fn create_2d_v1(out: *mut CUarray, asked: *const CUDA_ARRAY_DESCRIPTOR_v1) -> Answer {
    let asked = take(asked)?;
    let wide = CUDA_ARRAY_DESCRIPTOR {
        Width: asked.Width as usize,
        Height: asked.Height as usize,
        Format: asked.Format,
        NumChannels: asked.NumChannels,
    };
    create_2d(out, &raw const wide)
}

fn create_3d(out: *mut CUarray, asked: *const CUDA_ARRAY3D_DESCRIPTOR) -> Answer {
    create(out, take(asked)?)
}

fn create_3d_v1(out: *mut CUarray, asked: *const CUDA_ARRAY3D_DESCRIPTOR_v1) -> Answer {
    let asked = take(asked)?;
    create(
        out,
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: asked.Width as usize,
            Height: asked.Height as usize,
            Depth: asked.Depth as usize,
            Format: asked.Format,
            NumChannels: asked.NumChannels,
            Flags: asked.Flags,
        },
    )
}

/// The array behind a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) fn find(handle: CUarray) -> Answer<Arc<Array>> {
    let found = driver()?.arrays.find(handle);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// The mipmapped array behind a handle.
///
/// # Errors
/// As [`find`].
pub(crate) fn find_mipmap(handle: CUmipmappedArray) -> Answer<Arc<Mipmap>> {
    let found = driver()?.mipmaps.find(handle);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// As a free does, this waits for the work of the context that the array belongs to.
fn wait_for_users(driver: &Driver, context_id: u64) -> Answer {
    let owner = driver
        .contexts
        .find_where(|context| context.id == context_id);
    owner.map_or(Ok(()), |context| context.synchronize(driver))
}

fn destroy(handle: CUarray) -> Answer {
    let driver = driver()?;
    if find(handle)?.is_level() {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    let array = driver.arrays.remove(handle);
    let array = array.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    wait_for_users(driver, array.context_id)?;
    array.memory.end(driver, false)
}

/// As the first call of this name, with a depth and flags.
fn descriptor_3d(out: *mut CUDA_ARRAY3D_DESCRIPTOR, handle: CUarray) -> Answer {
    put(out, find(handle)?.descriptor)
}

fn descriptor_3d_v1(out: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, handle: CUarray) -> Answer {
    let known = find(handle)?.descriptor;
    put(
        out,
        CUDA_ARRAY3D_DESCRIPTOR_v1 {
            Width: known.Width as c_uint,
            Height: known.Height as c_uint,
            Depth: known.Depth as c_uint,
            Format: known.Format,
            NumChannels: known.NumChannels,
            Flags: known.Flags,
        },
    )
}

fn descriptor(out: *mut CUDA_ARRAY_DESCRIPTOR, handle: CUarray) -> Answer {
    let known = find(handle)?.descriptor;
    put(
        out,
        CUDA_ARRAY_DESCRIPTOR {
            Width: known.Width,
            Height: known.Height,
            Format: known.Format,
            NumChannels: known.NumChannels,
        },
    )
}

fn descriptor_v1(out: *mut CUDA_ARRAY_DESCRIPTOR_v1, handle: CUarray) -> Answer {
    let known = find(handle)?.descriptor;
    put(
        out,
        CUDA_ARRAY_DESCRIPTOR_v1 {
            Width: known.Width as c_uint,
            Height: known.Height as c_uint,
            Format: known.Format,
            NumChannels: known.NumChannels,
        },
    )
}

fn create_mipmap(
    out: *mut CUmipmappedArray,
    asked: *const CUDA_ARRAY3D_DESCRIPTOR,
    levels: c_uint,
) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let context = state::current()?;
    let descriptor = checked(take(asked)?)?;
    let is_layered = descriptor.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP) != 0;
    let deep = if is_layered { 0 } else { descriptor.Depth };
    let longest = descriptor.Width.max(descriptor.Height).max(deep).max(1);
    let mut layouts = Vec::new();
    let mut bytes = 0u64;
    for level in 0..levels.clamp(1, longest.ilog2() + 1) {
        let layout = Layout::of(&descriptor, level)?;
        layouts.push((bytes, layout));
        bytes = bytes.checked_add(layout.bytes).ok_or(INVALID_VALUE)?;
    }
    let memory = Arc::new(Memory::new(driver, &context, &descriptor, bytes)?);
    let level = |(level, (offset, layout)): (usize, (u64, Layout))| {
        let shrunk = |extent: usize| match extent {
            0 => 0,
            extent => (extent >> level).max(1),
        };
        let array = Arc::new(Array {
            context_id: context.id,
            descriptor: CUDA_ARRAY3D_DESCRIPTOR {
                Width: shrunk(descriptor.Width),
                Height: shrunk(descriptor.Height),
                Depth: match is_layered {
                    true => descriptor.Depth,
                    false => shrunk(descriptor.Depth),
                },
                ..descriptor
            },
            layout,
            memory: Arc::new(Memory {
                device: memory.device,
                bytes: layout.bytes,
                flags: memory.flags,
                backing: Backing::Level(Arc::clone(&memory), offset),
            }),
        });
        driver.arrays.add::<std::ffi::c_void>(Arc::clone(&array));
        array
    };
    let levels = layouts.into_iter().enumerate().map(level).collect();
    let mipmap = Mipmap {
        context_id: context.id,
        descriptor,
        levels,
        memory,
    };
    out.write(driver.mipmaps.add(Arc::new(mipmap)));
    Ok(())
}

fn level(out: *mut CUarray, handle: CUmipmappedArray, level: c_uint) -> Answer {
    let mipmap = find_mipmap(handle)?;
    let level = mipmap.levels.get(level as usize).ok_or(INVALID_VALUE)?;
    put(out, handle_of(level))
}

fn destroy_mipmap(handle: CUmipmappedArray) -> Answer {
    let driver = driver()?;
    let mipmap = driver.mipmaps.remove(handle);
    let mipmap = mipmap.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    wait_for_users(driver, mipmap.context_id)?;
    for level in &mipmap.levels {
        driver.arrays.remove::<std::ffi::c_void>(handle_of(level));
    }
    mipmap.memory.end(driver, false)
}

/// Forgets the arrays of a context that has ended; the device has taken their memory.
pub(crate) fn close_context(driver: &Driver, context: u64) {
    for array in driver.arrays.sweep(|array| array.context_id != context) {
        // What is mapped into it is a handle's, and goes back one by one; a device that is gone has
        // taken it already.
        let _ = array.memory.end(driver, true);
    }
    for mipmap in driver.mipmaps.sweep(|mipmap| mipmap.context_id != context) {
        let _ = mipmap.memory.end(driver, true);
    }
}

fn requirements(
    out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    handle: CUarray,
    ordinal: CUdevice,
) -> Answer {
    driver()?.device(ordinal)?;
    let array = find(handle)?;
    if array.is_level() {
        return Err(INVALID_VALUE);
    }
    put(out, array.memory.requirements()?)
}

fn mipmap_requirements(
    out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS,
    handle: CUmipmappedArray,
    ordinal: CUdevice,
) -> Answer {
    driver()?.device(ordinal)?;
    put(out, find_mipmap(handle)?.memory.requirements()?)
}

/// Texels of one tile: as square as the powers of two allow, the longer side across.
fn tile(descriptor: &CUDA_ARRAY3D_DESCRIPTOR) -> Answer<[u64; 2]> {
    let bits = texels::bits(descriptor.Format, descriptor.NumChannels).ok_or(INVALID_VALUE)?;
    if !bits.is_power_of_two() {
        return Err(INVALID_VALUE);
    }
    let power = (TILE_BYTES * 8 / bits).ilog2();
    Ok([1 << power.div_ceil(2), 1 << (power / 2)])
}

/// The first level that is smaller than a tile, and what it and those after it take together.
fn tail(mipmap: &Mipmap) -> Answer<(u32, u64)> {
    let [across, down] = tile(&mipmap.descriptor)?;
    let is_small = |level: &Arc<Array>| {
        (level.descriptor.Width as u64) < across || (level.descriptor.Height as u64) < down
    };
    let levels = &mipmap.levels;
    let first = levels.iter().position(is_small).unwrap_or(levels.len());
    let bytes = levels[first..].iter().map(|level| level.layout.bytes).sum();
    Ok((first as u32, bytes))
}

fn sparse_properties(
    descriptor: &CUDA_ARRAY3D_DESCRIPTOR,
    first: u32,
    bytes: u64,
) -> Answer<CUDA_ARRAY_SPARSE_PROPERTIES> {
    if descriptor.Flags & CUDA_ARRAY3D_SPARSE == 0 {
        return Err(INVALID_VALUE);
    }
    let [across, down] = tile(descriptor)?;
    Ok(CUDA_ARRAY_SPARSE_PROPERTIES {
        tileExtent: TileExtent {
            width: across as c_uint,
            height: down as c_uint,
            depth: 1,
        },
        miptailFirstLevel: first,
        miptailSize: bytes,
        flags: CU_ARRAY_SPARSE_PROPERTIES_SINGLE_MIPTAIL,
        reserved: [0; 4],
    })
}

fn array_sparse(out: *mut CUDA_ARRAY_SPARSE_PROPERTIES, handle: CUarray) -> Answer {
    put(out, sparse_properties(&find(handle)?.descriptor, 1, 0)?)
}

fn mipmap_sparse(out: *mut CUDA_ARRAY_SPARSE_PROPERTIES, handle: CUmipmappedArray) -> Answer {
    let mipmap = find_mipmap(handle)?;
    let (first, bytes) = tail(&mipmap)?;
    put(out, sparse_properties(&mipmap.descriptor, first, bytes)?)
}

/// What a request maps into, the part's name, and the bytes of it.
struct Target {
    memory: Arc<Memory>,
    name: PartName,
    bytes: u64,
}

fn target(info: &CUarrayMapInfo) -> Answer<Target> {
    let (memory, descriptor, tail_bytes) = match info.resourceType {
        Resource::CU_RESOURCE_TYPE_ARRAY => {
            // SAFETY: with this type the union holds an array; every bit pattern is looked up.
            let array = find(unsafe { info.resource.array })?;
            (Arc::clone(&array.memory), array.descriptor, 0)
        }
        Resource::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
            // SAFETY: as above, a mipmapped array.
            let mipmap = find_mipmap(unsafe { info.resource.mipmap })?;
            let bytes = tail(&mipmap).map_or(0, |(_, bytes)| bytes);
            (Arc::clone(&mipmap.memory), mipmap.descriptor, bytes)
        }
        _ => return Err(INVALID_VALUE),
    };
    if !matches!(memory.backing, Backing::Parts(_)) {
        return Err(INVALID_VALUE);
    }
    if !memory.is_sparse() {
        let bytes = memory.bytes;
        return Ok(Target {
            memory,
            name: [0; 8],
            bytes,
        });
    }
    let [across, down] = tile(&descriptor)?;
    let (name, bytes) = match info.subresourceType {
        Part::CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_SPARSE_LEVEL => {
            // SAFETY: with this type the union holds a level; every bit pattern is one.
            let part = unsafe { info.subresource.sparseLevel };
            let tiles = u64::from(part.extentWidth).div_ceil(across)
                * u64::from(part.extentHeight).div_ceil(down)
                * u64::from(part.extentDepth.max(1));
            let is_aligned = u64::from(part.offsetX).is_multiple_of(across)
                && u64::from(part.offsetY).is_multiple_of(down);
            if tiles == 0 || !is_aligned {
                return Err(INVALID_VALUE);
            }
            let place = [
                part.level,
                part.layer,
                part.offsetX,
                part.offsetY,
                part.offsetZ,
            ];
            let extent = [part.extentWidth, part.extentHeight, part.extentDepth];
            let mut name = [0; 8];
            name[..5].copy_from_slice(&place);
            name[5..].copy_from_slice(&extent);
            (name, tiles * TILE_BYTES)
        }
        Part::CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL => {
            // SAFETY: as above, a mip tail.
            let part = unsafe { info.subresource.miptail };
            if part.size == 0 || part.size > tail_bytes {
                return Err(INVALID_VALUE);
            }
            let offset = part.offset as u32;
            ([u32::MAX, part.layer, offset, 0, 0, 0, 0, 0], part.size)
        }
        _ => return Err(INVALID_VALUE),
    };
    Ok(Target {
        memory,
        name,
        bytes,
    })
}

fn map_one(driver: &Driver, info: &CUarrayMapInfo) -> Answer {
    let target = target(info)?;
    let Backing::Parts(parts) = &target.memory.backing else {
        return Err(INVALID_VALUE);
    };
    let is_generic = info.memHandleType == CUmemHandleType_enum::CU_MEM_HANDLE_TYPE_GENERIC;
    if !is_generic || info.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let former = match info.memOperationType {
        Op::CU_MEM_OPERATION_TYPE_MAP => {
            // SAFETY: the only member; every bit pattern is looked up.
            let physical = vmm::find(driver, unsafe { info.memHandle.memHandle })?;
            let end = info.offset.checked_add(target.bytes).ok_or(INVALID_VALUE)?;
            let is_sound = info.offset.is_multiple_of(TILE_BYTES)
                && end <= physical.bytes
                && physical.device == target.memory.device;
            if !is_sound {
                return Err(INVALID_VALUE);
            }
            let window = driver.devices[physical.device].window(driver)?;
            let reach = window.bytes_at(physical.offset + info.offset, target.bytes)?;
            physical.hold(driver)?;
            parts.lock().insert(target.name, Mapped { physical, reach })
        }
        Op::CU_MEM_OPERATION_TYPE_UNMAP => {
            let former = parts.lock().remove(&target.name);
            Some(former.ok_or(INVALID_VALUE)?)
        }
        _ => return Err(INVALID_VALUE),
    };
    former.map_or(Ok(()), |mapped| mapped.physical.let_go(driver))
}

/// Maps when it is called, before the stream gets there: nothing that the host may do tells the two
/// apart, since it must not touch the array before.
fn map<F: Flavour>(list: *mut CUarrayMapInfo, count: c_uint, given: CUstream) -> Answer {
    let driver = driver()?;
    stream::find_for_now::<F>(given)?;
    for index in 0..count as usize {
        map_one(driver, &take(list.wrapping_add(index).cast_const())?)?;
    }
    Ok(())
}

driver! {
    cuArrayCreate(handle: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR_v1) => create_2d_v1;
    cuArrayCreate_v2(handle: *mut CUarray, desc: *const CUDA_ARRAY_DESCRIPTOR) => create_2d;
    cuArray3DCreate(handle: *mut CUarray, desc: *const CUDA_ARRAY3D_DESCRIPTOR_v1) => create_3d_v1;
    cuArray3DCreate_v2(handle: *mut CUarray, desc: *const CUDA_ARRAY3D_DESCRIPTOR) => create_3d;
    cuArrayDestroy(array: CUarray) => destroy;
    cuArrayGetDescriptor(out: *mut CUDA_ARRAY_DESCRIPTOR_v1, array: CUarray) => descriptor_v1;
    cuArrayGetDescriptor_v2(out: *mut CUDA_ARRAY_DESCRIPTOR, array: CUarray) => descriptor;
    cuArray3DGetDescriptor(out: *mut CUDA_ARRAY3D_DESCRIPTOR_v1, array: CUarray) => descriptor_3d_v1;
    cuArray3DGetDescriptor_v2(out: *mut CUDA_ARRAY3D_DESCRIPTOR, array: CUarray) => descriptor_3d;
    cuArrayGetMemoryRequirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice) => requirements;
    cuArrayGetSparseProperties(out: *mut CUDA_ARRAY_SPARSE_PROPERTIES, array: CUarray) => array_sparse;
    cuMipmappedArrayCreate(handle: *mut CUmipmappedArray, desc: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) => create_mipmap;
    cuMipmappedArrayGetLevel(out: *mut CUarray, mipmap: CUmipmappedArray, index: c_uint) => level;
    cuMipmappedArrayDestroy(mipmap: CUmipmappedArray) => destroy_mipmap;
    cuMipmappedArrayGetMemoryRequirements(out: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, mipmap: CUmipmappedArray, device: CUdevice) => mipmap_requirements;
    cuMipmappedArrayGetSparseProperties(out: *mut CUDA_ARRAY_SPARSE_PROPERTIES, mipmap: CUmipmappedArray) => mipmap_sparse;
    cuMemMapArrayAsync(list: *mut CUarrayMapInfo, count: c_uint, h_stream: CUstream) => map::<Plain>;
    cuMemMapArrayAsync_ptsz(list: *mut CUarrayMapInfo, count: c_uint, h_stream: CUstream) => map::<PerThread>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use ffi::driver::CUarray_format_enum as F;

    fn array(size: [usize; 3], flags: c_uint) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: size[0],
            Height: size[1],
            Depth: size[2],
            Format: F::CU_AD_FORMAT_FLOAT,
            NumChannels: 4,
            Flags: flags,
        }
    }

    #[test]
    fn sizes_are_padded_by_row_by_eight_rows_and_by_tile() {
        let bytes = |size| Layout::of(&array(size, 0), 0).unwrap().bytes;
        assert_eq!(bytes([1024, 1024, 0]), 16 << 20);
        assert_eq!(bytes([1, 0, 0]), 64 << 10);
        assert_eq!(
            bytes([1001, 1001, 0]),
            (1008u64 * 16 * 1008).next_multiple_of(64 << 10)
        );
        assert_eq!(bytes([64, 64, 64]), 4 << 20);
    }

    #[test]
    fn shapes_that_cannot_be_are_refused() {
        for (size, flags) in [
            ([0, 1, 0], 0),
            ([16, 0, 16], 0),
            ([16, 8, 6], CUDA_ARRAY3D_CUBEMAP),
            ([16, 16, 5], CUDA_ARRAY3D_CUBEMAP),
            ([16, 16, 0], CUDA_ARRAY3D_LAYERED),
            ([1 << 20, 1, 0], 0),
            ([16, 16, 0], 1 << 20),
        ] {
            assert_eq!(checked(array(size, flags)).err(), Some(INVALID_VALUE));
        }
        assert!(checked(array([16, 16, 6], CUDA_ARRAY3D_CUBEMAP)).is_ok());
        assert!(checked(array([16, 0, 16], CUDA_ARRAY3D_LAYERED)).is_ok());
    }

    #[test]
    fn a_tile_has_as_many_texels_as_fit_into_64_kib() {
        assert_eq!(tile(&array([1, 1, 0], 0)), Ok([64, 64]));
    }
}
