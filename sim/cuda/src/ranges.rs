//! What lies at which address.
//!
//! Addresses of device memory are reserved in this process, so that they never coincide with the
//! host's own, and are not accessible: the library moves bytes through another mapping of the same
//! memory. An address that no reservation covers is the host's own memory.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range as Span;
use std::ptr::NonNull;

use nix::sys::mman::{MapFlags, MmapAdvise, ProtFlags, madvise, mmap_anonymous, munmap};
use parking_lot::RwLock;

use crate::guard::{Answer, INVALID_VALUE};

/// What a range is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `cuMemAlloc` and its like, or a module's variable.
    Linear,
    /// `cuMemAllocManaged`: the host may touch it, too.
    Managed,
    /// A piece of a pool.
    Pool,
    /// Memory of a graph's.
    Graph,
    /// Another process's linear memory, opened by its IPC handle.
    Opened,
    /// A piece of another process's pool.
    ImportedPiece,
    /// A buffer in external memory.
    External,
    /// A physical handle, mapped.
    Mapped,
    /// Page-locked memory of the library's own making.
    HostAllocated,
    /// Memory of the host's own, page-locked afterwards.
    HostRegistered,
}

/// One allocation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Range {
    /// First address.
    pub(crate) start: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    /// What it is.
    pub(crate) kind: Kind,
    /// Where the library reaches the bytes.
    pub(crate) reach: *mut u8,
    /// Device that it belongs to.
    pub(crate) device: usize,
    /// Number of the context that it goes with; 0: none.
    pub(crate) context: u64,
    /// The block behind it; 0 for host memory and for pieces of a pool.
    pub(crate) block: u64,
    /// Number of its own, never used twice.
    pub(crate) number: u64,
    /// Flags of host memory; the pool of a piece of one; of a mapped handle, the other devices that have
    /// access, a bit for each.
    pub(crate) extra: u64,
    /// Whether its bytes may be moved: a mapped range only after access has been given.
    pub(crate) is_accessible: bool,
}

// SAFETY: `reach` is an address that is used only to move bytes, as the host asks for it.
unsafe impl Send for Range {}
// SAFETY: as above.
unsafe impl Sync for Range {}

impl Range {
    /// One past the last address.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Whether a device has access to it, a mapped handle.
    pub(crate) fn is_accessible_from(&self, device: usize) -> bool {
        if self.device == device {
            self.is_accessible
        } else {
            self.extra & (1 << device) != 0
        }
    }

    /// Whether it is the host's memory.
    pub(crate) fn is_host(&self) -> bool {
        matches!(self.kind, Kind::HostAllocated | Kind::HostRegistered)
    }
}

/// Bytes that lie together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Where.
    pub(crate) at: *mut u8,
    /// How many.
    pub(crate) bytes: usize,
}

// SAFETY: an address that is used only to move bytes, as the host asks for it.
unsafe impl Send for Piece {}
// SAFETY: as above; who reads and writes there at one time is the host's duty by the CUDA contract.
unsafe impl Sync for Piece {}

/// An address and length of the host's, found out.
pub(crate) struct Place {
    /// Its bytes, in order.
    pub(crate) pieces: Vec<Piece>,
    /// Whether it is host memory that was never page-locked.
    pub(crate) is_pageable: bool,
    /// The device whose memory it is.
    pub(crate) device: Option<usize>,
}

/// Every allocation of the process.
pub(crate) struct Ranges {
    table: RwLock<BTreeMap<u64, Range>>,
    /// Reserved spans: start to end. Inside them only what is in the table exists.
    reserved: RwLock<BTreeMap<u64, u64>>,
}

impl Ranges {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self {
            table: RwLock::new(BTreeMap::new()),
            reserved: RwLock::new(BTreeMap::new()),
        }
    }

    /// Makes a reservation known.
    pub(crate) fn add_window(&self, reservation: &Reservation) {
        let span = reservation.span();
        self.add_reserved(span.start, span.end);
    }

    /// Makes known that nothing of the host's lies between `start` and `end`.
    pub(crate) fn add_reserved(&self, start: u64, end: u64) {
        self.reserved.write().insert(start, end);
    }

    /// Forgets a reservation.
    pub(crate) fn remove_window(&self, start: u64) {
        self.reserved.write().remove(&start);
    }

    /// Adds an allocation.
    pub(crate) fn add(&self, range: Range) {
        self.table.write().insert(range.start, range);
    }

    /// Takes away the allocation that begins at `start`, if it is one that `fits`.
    pub(crate) fn remove(&self, start: u64, fits: impl Fn(&Range) -> bool) -> Option<Range> {
        match self.table.write().entry(start) {
            Entry::Occupied(range) if fits(range.get()) => Some(range.remove()),
            _ => None,
        }
    }

    /// Takes away everything that `goes`.
    pub(crate) fn sweep(&self, goes: impl Fn(&Range) -> bool) -> Vec<Range> {
        let mut gone = Vec::new();
        self.table.write().retain(|_, range| {
            let goes = goes(range);
            if goes {
                gone.push(*range);
            }
            !goes
        });
        gone
    }

    /// The allocation that contains `address`.
    pub(crate) fn find(&self, address: u64) -> Option<Range> {
        let table = self.table.read();
        let (_, range) = table.range(..=address).next_back()?;
        (address < range.end()).then_some(*range)
    }

    /// Gives a device access to what begins between `start` and `end`, or takes it.
    pub(crate) fn set_accessible(&self, start: u64, end: u64, device: usize, is_accessible: bool) {
        for (_, range) in self.table.write().range_mut(start..end) {
            if range.device == device {
                range.is_accessible = is_accessible;
            } else if is_accessible {
                range.extra |= 1 << device;
            } else {
                range.extra &= !(1 << device);
            }
        }
    }

    /// Whether anything lies between `start` and `end`.
    pub(crate) fn is_taken(&self, start: u64, end: u64) -> bool {
        let table = self.table.read();
        let before = table.range(..end).next_back();
        before.is_some_and(|(_, range)| range.end() > start)
    }

    /// The allocations that begin between `start` and `end`.
    pub(crate) fn within(&self, start: u64, end: u64) -> Vec<Range> {
        let table = self.table.read();
        table.range(start..end).map(|(_, range)| *range).collect()
    }

    /// Finds `bytes` from `address` on, across neighbouring allocations.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` where a part is reserved for devices and not allocated.
    pub(crate) fn resolve(&self, address: u64, bytes: u64) -> Answer<Place> {
        let end = address.checked_add(bytes).ok_or(INVALID_VALUE)?;
        let first = self.find(address);
        let Some(first) = first else {
            return self.resolve_host(address, end);
        };
        let mut place = Place {
            pieces: Vec::new(),
            is_pageable: false,
            device: (!first.is_host()).then_some(first.device),
        };
        let (mut at, mut range) = (address, first);
        loop {
            if !range.is_accessible {
                return Err(INVALID_VALUE);
            }
            let until = range.end().min(end);
            place.pieces.push(Piece {
                at: range.reach.wrapping_add((at - range.start) as usize),
                bytes: (until - at) as usize,
            });
            at = until;
            if at >= end {
                return Ok(place);
            }
            range = self
                .find(at)
                .filter(|next| next.is_host() == range.is_host())
                .ok_or(INVALID_VALUE)?;
        }
    }

    fn resolve_host(&self, address: u64, end: u64) -> Answer<Place> {
        let reserved = self.reserved.read();
        let before = reserved.range(..end.max(address + 1)).next_back();
        if address == 0 || before.is_some_and(|(_, until)| *until > address) {
            return Err(INVALID_VALUE);
        }
        Ok(Place {
            pieces: vec![Piece {
                at: address as *mut u8,
                bytes: (end - address) as usize,
            }],
            is_pageable: true,
            device: None,
        })
    }
}

/// Addresses that belong to nobody else in the process; touching them is an error.
#[derive(Debug)]
pub(crate) struct Reservation {
    base: NonNull<libc::c_void>,
    bytes: usize,
    start: u64,
    usable: u64,
}

// SAFETY: addresses belong to the process, not to a thread.
unsafe impl Send for Reservation {}
// SAFETY: as above.
unsafe impl Sync for Reservation {}

impl Reservation {
    /// Reserves `bytes` at a multiple of `align`, a power of two.
    ///
    /// # Errors
    /// What `mmap` says.
    pub(crate) fn new(bytes: usize, align: usize) -> io::Result<Self> {
        let refused = || io::Error::from(io::ErrorKind::InvalidInput);
        let room = bytes.checked_add(align).ok_or_else(refused)?;
        let length = NonZeroUsize::new(room).ok_or_else(refused)?;
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing that exists.
        let base = unsafe { mmap_anonymous(None, length, ProtFlags::PROT_NONE, flags) }?;
        // SAFETY: the range is the mapping that was just made.
        unsafe { madvise(base, room, MmapAdvise::MADV_DONTDUMP) }?;
        let start = (base.as_ptr() as u64).next_multiple_of(align as u64);
        Ok(Self {
            base,
            bytes: room,
            start,
            usable: bytes as u64,
        })
    }

    /// The addresses.
    pub(crate) fn span(&self) -> Span<u64> {
        self.start..self.start + self.usable
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        // SAFETY: the range is ours, and what lay in it has been taken out of the table before.
        let unmapped = unsafe { munmap(self.base, self.bytes) };
        debug_assert!(unmapped.is_ok());
    }
}
