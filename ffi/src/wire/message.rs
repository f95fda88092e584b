//! The attach messages, on a `SOCK_SEQPACKET` UNIX socket.
//!
//! A process connects and sends one [`AttachRequest`]; the daemon answers with one [`AttachReply`],
//! with the control page, the usage page and the bell as `SCM_RIGHTS` (in that order) where the status is
//! [`attach_status::OK`]. The bell is an eventfd: a process rings it when the daemon is to look at what it
//! has running. The connection then stays open and silent: its end tells the daemon that
//! the process is gone, and the process that the daemon is.
//!
//! After the end of a daemon, a process connects again with [`attach_flags::REJOIN`], names the slot
//! that it holds, and passes its usage page back, so that the next daemon goes on with the same
//! account.

/// First four bytes of every message: `"SLU1"`.
pub const MESSAGE_MAGIC: u32 = u32::from_le_bytes(*b"SLU1");

/// What `sluice run` hands to the program that it starts; sixteen random bytes.
pub type Token = [u8; 16];

/// Size of either message, in bytes.
pub const ATTACH_BYTES: usize = 64;

/// Bits of [`AttachRequest::flags`].
pub mod attach_flags {
    /// Only looks (an NVML client): takes no slot.
    pub const OBSERVER: u32 = 1;
    /// Comes back after a daemon's death: `slot` and `slot_generation` are set, and the usage page
    /// comes along as the message's one `SCM_RIGHTS` descriptor.
    pub const REJOIN: u32 = 2;
    /// Was refused memory: the daemon looks for dead processes of the tenant at once, gives back what
    /// they held, answers without pages, and the connection is over.
    pub const SWEEP: u32 = 4;
}

/// What a process says first.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachRequest {
    /// [`MESSAGE_MAGIC`].
    pub magic: u32,
    /// [`super::LAYOUT`] of the shim.
    pub layout: u32,
    /// Bits of [`attach_flags`].
    pub flags: u32,
    /// With [`attach_flags::REJOIN`]: the slot that the process holds.
    pub slot: u32,
    /// With [`attach_flags::REJOIN`]: that slot's generation.
    pub slot_generation: u32,
    /// Zero.
    pub reserved: [u32; 7],
    /// From [`super::ENV_TOKEN`]; zeros where there is none.
    pub token: Token,
}

/// Values of [`AttachReply::status`].
pub mod attach_status {
    /// The pages are attached.
    pub const OK: u32 = 0;
    /// The daemon knows no tenant for this process; another socket may.
    pub const STRANGER: u32 = 1;
    /// Shim and daemon speak different layouts.
    pub const LAYOUT: u32 = 2;
    /// Every slot of the tenant is taken.
    pub const FULL: u32 = 3;
    /// The request made no sense.
    pub const MALFORMED: u32 = 4;
    /// The daemon is not ready yet (it has just started and still looks for its devices): ask again.
    pub const LATER: u32 = 5;
}

/// What the daemon answers.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttachReply {
    /// [`MESSAGE_MAGIC`].
    pub magic: u32,
    /// [`super::LAYOUT`] of the daemon.
    pub layout: u32,
    /// One of [`attach_status`].
    pub status: u32,
    /// The slot that the process now owns; meaningless for an observer.
    pub slot: u32,
    /// That slot's generation.
    pub slot_generation: u32,
    /// Zero.
    pub reserved: [u32; 3],
    /// The tenant's number.
    pub tenant: u64,
    /// Sizes of the two pages, in bytes.
    pub control_bytes: u64,
    /// See `control_bytes`.
    pub usage_bytes: u64,
    /// Zero.
    pub reserved_tail: u64,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::size_of;
    assert!(size_of::<AttachRequest>() == ATTACH_BYTES);
    assert!(size_of::<AttachReply>() == ATTACH_BYTES);
};
