//! Physical memory by handle: `cuMemCreate` and what keeps it alive.
//!
//! Charged by the handle's size, once, however often it is mapped. It lives as long as a reference to
//! the handle or a mapping does, in whatever order they go. Only memory on a device counts: the location
//! says which, so no current context is needed. Reserved addresses cost nothing.
//!
//! A descriptor that was exported holds the memory, too. While one that this process was given is open in
//! it, the charge stays; that it has been closed is seen at the next call that looks. What cannot be
//! seen: copies of descriptors under other numbers, those that other processes have, and what these have
//! imported. Such memory is charged to nobody once its maker has let go; an importer never pays.

use crate::account::{self, Request};
use crate::claim::Out;
use crate::device::{self, Index};
use crate::session::{self, Seat};
use ffi::driver::{
    CUarrayMapInfo, CUdeviceptr, CUmemAllocationHandleType, CUmemAllocationProp,
    CUmemGenericAllocationHandle, CUmemLocationType, CUmemOperationType_enum, CUresult,
};
use ffi::wire::Refusable;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

/// One piece of physical memory. The driver may give a handle's number again while the memory of the
/// former one is still mapped, so pieces have numbers of our own.
type Piece = u64;

/// What a part of an array is called: the words that name it in the call that maps it.
type PartName = [u32; 8];

#[derive(Debug)]
struct Charged {
    units: u64,
    device: Index,
    /// References to the handle: one from `cuMemCreate`, one from each retain.
    references: u64,
    /// Ranges mapped to it.
    mappings: u64,
    /// Descriptors that this process was given for it.
    exports: Vec<Descriptor>,
}

/// A descriptor of this process's, and what tells it from another that has its number later.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Descriptor {
    number: c_int,
    file: (u64, u64),
    /// All descriptors of one device node are the same file: only the number tells them apart.
    is_node: bool,
}

impl Descriptor {
    /// What is open under `number`.
    fn at(number: c_int) -> Option<Self> {
        // SAFETY: plain numbers, filled by the call below.
        let mut found: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: a place for the answer; any number may be asked about.
        if unsafe { libc::fstat(number, &mut found) } != 0 {
            return None;
        }
        Some(Self {
            number,
            file: (found.st_dev, found.st_ino),
            is_node: found.st_mode & libc::S_IFMT == libc::S_IFCHR,
        })
    }

    fn is_open(&self) -> bool {
        Self::at(self.number).as_ref() == Some(self)
    }

    fn is_same(&self, other: &Self) -> bool {
        self.file == other.file && (!self.is_node || self.number == other.number)
    }
}

/// Whether only descriptors hold a piece that is charged. Until then, looking costs one load.
static IS_LINGERING: AtomicBool = AtomicBool::new(false);

#[derive(Debug, Default)]
struct Pieces {
    next: Piece,
    charged: BTreeMap<Piece, Charged>,
    by_handle: BTreeMap<CUmemGenericAllocationHandle, Piece>,
    /// Start of a mapped range; its length and its piece.
    mapped: BTreeMap<CUdeviceptr, (u64, Piece)>,
    /// A part of an array, and the piece that is mapped into it.
    in_arrays: BTreeMap<(usize, PartName), Piece>,
}

/// What a piece gives back when its last holder goes.
type Gone = Option<(Index, u64)>;

impl Pieces {
    fn create(&mut self, handle: CUmemGenericAllocationHandle, device: Index, units: u64) {
        let piece = self.next;
        self.next += 1;
        self.charged.insert(
            piece,
            Charged {
                units,
                device,
                references: 1,
                mappings: 0,
                exports: Vec::new(),
            },
        );
        // A former piece under this number has no references left, or the driver would not give it.
        self.by_handle.insert(handle, piece);
    }

    fn of(&self, handle: CUmemGenericAllocationHandle) -> Option<Piece> {
        self.by_handle.get(&handle).copied()
    }

    fn retain(&mut self, handle: CUmemGenericAllocationHandle, piece: Piece) {
        if let Some(charged) = self.charged.get_mut(&piece) {
            charged.references += 1;
            self.by_handle.insert(handle, piece);
        }
    }

    fn release(&mut self, handle: CUmemGenericAllocationHandle, piece: Piece) -> Gone {
        let charged = self.charged.get_mut(&piece)?;
        charged.references = charged.references.saturating_sub(1);
        if charged.references == 0 && self.of(handle) == Some(piece) {
            self.by_handle.remove(&handle);
        }
        self.end(piece)
    }

    fn map(&mut self, at: CUdeviceptr, bytes: u64, piece: Piece) {
        if let Some(charged) = self.charged.get_mut(&piece) {
            charged.mappings += 1;
            self.mapped.insert(at, (bytes, piece));
        }
    }

    /// The ranges that begin in `at .. at + bytes`, taken out.
    fn unmap(&mut self, at: CUdeviceptr, bytes: u64) -> Vec<(Index, u64)> {
        let end = at.saturating_add(bytes);
        let starts: Vec<CUdeviceptr> = self.mapped.range(at..end).map(|(at, _)| *at).collect();
        let pieces: Vec<Piece> = starts
            .iter()
            .filter_map(|start| self.mapped.remove(start))
            .map(|(_, piece)| piece)
            .collect();
        pieces
            .into_iter()
            .filter_map(|piece| {
                let charged = self.charged.get_mut(&piece)?;
                charged.mappings = charged.mappings.saturating_sub(1);
                self.end(piece)
            })
            .collect()
    }

    fn map_array(&mut self, part: (usize, PartName), piece: Piece) -> Gone {
        self.charged.get_mut(&piece)?.mappings += 1;
        let former = self.in_arrays.insert(part, piece)?;
        self.unhold(former)
    }

    fn unmap_array(&mut self, part: (usize, PartName)) -> Gone {
        let piece = self.in_arrays.remove(&part)?;
        self.unhold(piece)
    }

    /// Everything that is mapped into an array, taken out.
    fn end_array(&mut self, array: usize) -> Vec<(Index, u64)> {
        let all = (array, [0; 8])..=(array, [u32::MAX; 8]);
        let parts: Vec<_> = self.in_arrays.range(all).map(|(part, _)| *part).collect();
        parts
            .into_iter()
            .filter_map(|part| self.unmap_array(part))
            .collect()
    }

    /// The pieces that only closed descriptors held, taken out.
    fn end_lingering(&mut self) -> Vec<(Index, u64)> {
        let idle = |(piece, charged): (&Piece, &Charged)| {
            (charged.references == 0 && charged.mappings == 0).then_some(*piece)
        };
        let idle: Vec<Piece> = self.charged.iter().filter_map(idle).collect();
        idle.into_iter()
            .filter_map(|piece| self.end(piece))
            .collect()
    }

    fn exported(&self, descriptor: &Descriptor) -> Option<Piece> {
        self.charged.iter().find_map(|(piece, charged)| {
            let mut exports = charged.exports.iter();
            exports
                .any(|export| export.is_same(descriptor))
                .then_some(*piece)
        })
    }

    fn unhold(&mut self, piece: Piece) -> Gone {
        let charged = self.charged.get_mut(&piece)?;
        charged.mappings = charged.mappings.saturating_sub(1);
        self.end(piece)
    }

    fn mapped_at(&self, address: CUdeviceptr) -> Option<Piece> {
        let (start, (bytes, piece)) = self.mapped.range(..=address).next_back()?;
        (address - start < *bytes).then_some(*piece)
    }

    fn end(&mut self, piece: Piece) -> Gone {
        let charged = self.charged.get_mut(&piece)?;
        if charged.references > 0 || charged.mappings > 0 {
            return None;
        }
        charged.exports.retain(Descriptor::is_open);
        if !charged.exports.is_empty() {
            IS_LINGERING.store(true, Ordering::Relaxed);
            return None;
        }
        self.charged
            .remove(&piece)
            .map(|charged| (charged.device, charged.units))
    }
}

static PIECES: Mutex<Option<Pieces>> = Mutex::new(None);

fn pieces<R>(work: impl FnOnce(&mut Pieces) -> R) -> R {
    work(PIECES.lock().get_or_insert_default())
}

/// `cuMemCreate`.
pub(crate) fn create(
    out: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const CUmemAllocationProp,
    flags: c_ulonglong,
    forward: impl FnOnce(
        *mut CUmemGenericAllocationHandle,
        usize,
        *const CUmemAllocationProp,
        c_ulonglong,
    ) -> CUresult,
) -> CUresult {
    let Some(ordinal) = device_of(properties) else {
        return forward(out, bytes, properties, flags);
    };
    let Some(seat) = session::seat() else {
        return if session::is_waiting() {
            CUresult::CUDA_ERROR_NOT_INITIALIZED
        } else {
            forward(out, bytes, properties, flags)
        };
    };
    if out.is_null() || bytes == 0 {
        return forward(out, bytes, properties, flags);
    }
    let Some(device) = device::by_ordinal(seat.pages, ordinal) else {
        return not_ours(seat, ordinal, || forward(out, bytes, properties, flags));
    };
    let Ok(reservation) = account::reserve(
        seat,
        device,
        Request::of(Refusable::MemCreate, bytes as u64),
        ledger::units(bytes as u64),
    ) else {
        return CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    };
    let result = forward(out, bytes, properties, flags);
    if result == SUCCESS
        && let Some(out) = Out::claim(out)
    {
        let units = reservation.commit();
        pieces(|pieces| pieces.create(out.read(), device, units));
    }
    result
}

/// A number that is no device is the driver's to refuse; a device that is not the tenant's is ours.
fn not_ours(_seat: Seat, ordinal: i32, forward: impl FnOnce() -> CUresult) -> CUresult {
    let mut uuid = ffi::driver::CUuuid { bytes: [0; 16] };
    // SAFETY: a place for one UUID.
    match unsafe { crate::real::cuDeviceGetUuid(&mut uuid, ordinal) } {
        SUCCESS => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        _ => forward(),
    }
}

/// CUDA's number of the device that the memory is to lie on; `None` for host memory and nonsense.
fn device_of(properties: *const CUmemAllocationProp) -> Option<i32> {
    let properties = Out::claim(properties.cast_mut())?.read();
    let location = properties.location;
    let is_on_device = location.type_ == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE
        // The locality domains of CUDA 13: parts of a device.
        || location.type_.0 == 6;
    // SAFETY: every member of the union is an int, or begins with one.
    let id = unsafe { location.__bindgen_anon_1.id };
    is_on_device.then_some(id)
}

/// `cuMemRetainAllocationHandle`.
pub(crate) fn retain(
    out: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
    forward: impl FnOnce(*mut CUmemGenericAllocationHandle, *mut c_void) -> CUresult,
) -> CUresult {
    let result = forward(out, address);
    if result == SUCCESS
        && session::seat().is_some()
        && let Some(out) = Out::claim(out)
    {
        let handle = out.read();
        pieces(|pieces| {
            if let Some(piece) = pieces.mapped_at(address as CUdeviceptr) {
                pieces.retain(handle, piece);
            }
        });
    }
    result
}

/// `cuMemRelease`.
pub(crate) fn release(
    handle: CUmemGenericAllocationHandle,
    forward: impl FnOnce(CUmemGenericAllocationHandle) -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward(handle);
    };
    // Looked up before: once released, another thread may be given the same number.
    let piece = pieces(|pieces| pieces.of(handle));
    let result = forward(handle);
    if result == SUCCESS
        && let Some(piece) = piece
    {
        give_back(seat, pieces(|pieces| pieces.release(handle, piece)));
    }
    result
}

/// `cuMemMap`: charges nothing, and holds the memory.
pub(crate) fn map(
    pointer: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
    forward: impl FnOnce(
        CUdeviceptr,
        usize,
        usize,
        CUmemGenericAllocationHandle,
        c_ulonglong,
    ) -> CUresult,
) -> CUresult {
    let piece = session::seat().and_then(|_| pieces(|pieces| pieces.of(handle)));
    let result = forward(pointer, bytes, offset, handle, flags);
    if result == SUCCESS
        && let Some(piece) = piece
    {
        pieces(|pieces| pieces.map(pointer, bytes as u64, piece));
    }
    result
}

/// `cuMemUnmap`.
pub(crate) fn unmap(
    pointer: CUdeviceptr,
    bytes: usize,
    forward: impl FnOnce(CUdeviceptr, usize) -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward(pointer, bytes);
    };
    let result = forward(pointer, bytes);
    if result == SUCCESS {
        for gone in pieces(|pieces| pieces.unmap(pointer, bytes as u64)) {
            give_back(seat, Some(gone));
        }
    }
    result
}

fn give_back(seat: Seat, gone: Gone) {
    if let Some((device, units)) = gone {
        account::release(seat, device, units);
    }
}

/// Looks whether descriptors have been closed that alone held what is charged. Says whether that has
/// given anything back.
pub(crate) fn look_again(seat: Seat) -> bool {
    if !IS_LINGERING.swap(false, Ordering::Relaxed) {
        return false;
    }
    let gone = pieces(Pieces::end_lingering);
    let is_any = !gone.is_empty();
    for gone in gone {
        give_back(seat, Some(gone));
    }
    is_any
}

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FILE: u32 = 1;

/// `cuMemExportToShareableHandle`: the descriptor holds the charge.
pub(crate) fn export(
    out: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
    forward: impl FnOnce(
        *mut c_void,
        CUmemGenericAllocationHandle,
        CUmemAllocationHandleType,
        c_ulonglong,
    ) -> CUresult,
) -> CUresult {
    let result = forward(out, handle, kind, flags);
    if result == SUCCESS
        && kind.0 == POSIX_FILE
        && session::seat().is_some()
        && let Some(number) = Out::claim(out.cast::<c_int>()).map(|out| out.read())
        && let Some(descriptor) = Descriptor::at(number)
    {
        pieces(|pieces| {
            let piece = pieces.of(handle);
            if let Some(charged) = piece.and_then(|piece| pieces.charged.get_mut(&piece)) {
                charged.exports.push(descriptor);
            }
        });
    }
    result
}

/// `cuMemImportFromShareableHandle`: charges nothing; of this process's own memory, one more reference.
pub(crate) fn import(
    out: *mut CUmemGenericAllocationHandle,
    given: *mut c_void,
    kind: CUmemAllocationHandleType,
    forward: impl FnOnce(
        *mut CUmemGenericAllocationHandle,
        *mut c_void,
        CUmemAllocationHandleType,
    ) -> CUresult,
) -> CUresult {
    let number = c_int::try_from(given as usize).ok();
    let piece = number
        .filter(|_| kind.0 == POSIX_FILE && session::seat().is_some())
        .and_then(Descriptor::at)
        .and_then(|descriptor| pieces(|pieces| pieces.exported(&descriptor)));
    let result = forward(out, given, kind);
    if result == SUCCESS
        && let (Some(piece), Some(out)) = (piece, Out::claim(out))
    {
        pieces(|pieces| pieces.retain(out.read(), piece));
    }
    result
}

/// One entry of a call that maps memory into arrays, or takes it out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ArrayMap {
    part: (usize, PartName),
    piece: Option<Piece>,
    is_map: bool,
}

impl ArrayMap {
    /// Of what the host asks for.
    pub(crate) fn of(info: &CUarrayMapInfo) -> Self {
        // SAFETY: both members are one pointer.
        let array = unsafe { info.resource.array } as usize;
        let name = if info.subresourceType.0 == 0 {
            // SAFETY: with this type the union holds a level: plain numbers.
            let level = unsafe { info.subresource.sparseLevel };
            [
                level.level,
                level.layer,
                level.offsetX,
                level.offsetY,
                level.offsetZ,
                level.extentWidth,
                level.extentHeight,
                level.extentDepth,
            ]
        } else {
            // SAFETY: with the other type it holds a mip tail: plain numbers.
            let tail = unsafe { info.subresource.miptail };
            let (low, high) = (tail.offset as u32, (tail.offset >> 32) as u32);
            [u32::MAX, tail.layer, low, high, 0, 0, 0, 0]
        };
        // SAFETY: the only member.
        let handle = unsafe { info.memHandle.memHandle };
        Self {
            part: (array, name),
            piece: pieces(|pieces| pieces.of(handle)),
            is_map: info.memOperationType == CUmemOperationType_enum::CU_MEM_OPERATION_TYPE_MAP,
        }
    }
}

/// The driver has done what `map` says.
pub(crate) fn array_mapped(seat: Seat, map: ArrayMap) {
    let gone = pieces(|pieces| match map.piece {
        Some(piece) if map.is_map => pieces.map_array(map.part, piece),
        // Memory that is another process's takes the place of what was there.
        _ => pieces.unmap_array(map.part),
    });
    give_back(seat, gone);
}

/// The driver has destroyed an array, and let go of what was mapped into it.
pub(crate) fn array_ended(seat: Seat, array: usize) {
    for gone in pieces(|pieces| pieces.end_array(array)) {
        give_back(seat, Some(gone));
    }
}
