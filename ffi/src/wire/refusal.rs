//! Requests refused because of the cap: which function asked, and for how much.

use crate::sync::{AtomicU32, AtomicU64};

/// A function that can be refused, in all its versions. Its number is its place in a page's counts; zero is
/// for what a newer shim may know.
#[repr(u8)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusable {
    /// `cuMemAlloc`.
    MemAlloc = 1,
    /// `cuMemAllocPitch`.
    MemAllocPitch = 2,
    /// `cuMemAllocManaged`.
    MemAllocManaged = 3,
    /// `cuMemAllocAsync`.
    MemAllocAsync = 4,
    /// `cuMemAllocFromPoolAsync`.
    MemAllocFromPool = 5,
    /// `cuMemCreate`.
    MemCreate = 6,
    /// `cuArrayCreate`.
    ArrayCreate = 7,
    /// `cuArray3DCreate`.
    Array3DCreate = 8,
    /// `cuMipmappedArrayCreate`.
    MipmappedArrayCreate = 9,
    /// `cuGraphInstantiate`.
    GraphInstantiate = 10,
    /// `cuGraphLaunch`.
    GraphLaunch = 11,
    /// `cuGraphUpload`.
    GraphUpload = 12,
    /// `cuCtxCreate`, of no known size.
    CtxCreate = 13,
    /// `cuDevicePrimaryCtxRetain`, of no known size.
    PrimaryCtxRetain = 14,
}

impl Refusable {
    /// How many a page has room for, zero among them.
    pub const PLACES: usize = 16;

    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::MemAlloc,
        Self::MemAllocPitch,
        Self::MemAllocManaged,
        Self::MemAllocAsync,
        Self::MemAllocFromPool,
        Self::MemCreate,
        Self::ArrayCreate,
        Self::Array3DCreate,
        Self::MipmappedArrayCreate,
        Self::GraphInstantiate,
        Self::GraphLaunch,
        Self::GraphUpload,
        Self::CtxCreate,
        Self::PrimaryCtxRetain,
    ];

    /// The one at this place of a page's counts.
    pub fn at(place: usize) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.place() == place)
    }

    /// Its place in a page's counts.
    pub const fn place(self) -> usize {
        self as usize
    }

    /// Its name without a version.
    pub const fn name(self) -> &'static str {
        match self {
            Self::MemAlloc => "cuMemAlloc",
            Self::MemAllocPitch => "cuMemAllocPitch",
            Self::MemAllocManaged => "cuMemAllocManaged",
            Self::MemAllocAsync => "cuMemAllocAsync",
            Self::MemAllocFromPool => "cuMemAllocFromPoolAsync",
            Self::MemCreate => "cuMemCreate",
            Self::ArrayCreate => "cuArrayCreate",
            Self::Array3DCreate => "cuArray3DCreate",
            Self::MipmappedArrayCreate => "cuMipmappedArrayCreate",
            Self::GraphInstantiate => "cuGraphInstantiate",
            Self::GraphLaunch => "cuGraphLaunch",
            Self::GraphUpload => "cuGraphUpload",
            Self::CtxCreate => "cuCtxCreate",
            Self::PrimaryCtxRetain => "cuDevicePrimaryCtxRetain",
        }
    }
}

/// Sizes up to which refused requests are counted together, in bytes; the last is for all above.
pub const REFUSED_UP_TO: [u64; 8] = [
    1 << 20,
    8 << 20,
    64 << 20,
    512 << 20,
    4 << 30,
    32 << 30,
    256 << 30,
    u64::MAX,
];

/// What was refused to all processes of a tenant on one device.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Refusals {
    /// By function: [`Refusable::place`].
    pub by_function: [AtomicU32; Refusable::PLACES],
    /// By size: [`REFUSED_UP_TO`].
    pub by_size: [AtomicU32; REFUSED_UP_TO.len()],
    /// The last one, function and size in one word: [`LastRefused`]. Zero: none yet.
    pub last: AtomicU64,
    /// Zero.
    pub reserved: [u64; 3],
}

/// The last refusal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastRefused {
    /// [`Refusable::place`] of the function that asked.
    pub place: u8,
    /// What was asked for, in bytes; beyond 2^56 - 1 that.
    pub bytes: u64,
}

impl LastRefused {
    /// Where the function begins in the word.
    const FUNCTION_SHIFT: u32 = 56;
    const BYTES: u64 = (1 << Self::FUNCTION_SHIFT) - 1;

    /// As it stands in the page.
    pub const fn pack(self) -> u64 {
        let bytes = if self.bytes < Self::BYTES {
            self.bytes
        } else {
            Self::BYTES
        };
        ((self.place as u64) << Self::FUNCTION_SHIFT) | bytes
    }

    /// From the page, where every bit pattern is one.
    pub const fn unpack(word: u64) -> Self {
        Self {
            place: (word >> Self::FUNCTION_SHIFT) as u8,
            bytes: word & Self::BYTES,
        }
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<Refusals>() == 128);
    assert!(offset_of!(Refusals, by_size) == 64);
    assert!(offset_of!(Refusals, last) == 96);
};
