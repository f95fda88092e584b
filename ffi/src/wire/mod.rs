//! What the shim and the daemon share: two pages for each tenant, and the attach messages.
//!
//! * [`ControlPage`]: the daemon writes, the tenant maps it read-only (`F_SEAL_FUTURE_WRITE`).
//! * [`UsagePage`]: the tenant's processes write, the daemon reads it as untrusted input.
//! * [`AttachRequest`], [`AttachReply`]: fixed-size messages on a `SOCK_SEQPACKET` UNIX socket.
//!
//! Both pages are memfds, sealed against shrinking and growing, passed with `SCM_RIGHTS`. Every page
//! begins with a [`PageHeader`] whose layout never changes: a reader compares [`PageHeader::magic`]
//! and [`PageHeader::layout`] before it looks at anything behind it, and falls back as documented
//! (shim: `CUDA_ERROR_SYSTEM_NOT_READY`; daemon: a fresh page) where they differ.
//!
//! Integers are in the machine's own byte order: a page never leaves the machine.

mod control;
mod message;
mod refusal;
mod usage;

pub use control::{ControlPage, DeviceControl, Lease, lease_state};
pub use message::{
    ATTACH_BYTES, AttachReply, AttachRequest, MESSAGE_MAGIC, Token, attach_flags, attach_status,
};
pub use refusal::{LastRefused, REFUSED_UP_TO, Refusable, Refusals};
pub use usage::{
    Account, AccountEntry, DeviceMoved, DeviceUsage, DeviceWork, SlotHeader, TenantTotal,
    UsagePage, UsageSlot, slot_state,
};

/// Devices that one tenant can be given. The node's own limit: 16 GPUs (DESIGN numbers).
pub const MAX_DEVICES: usize = 16;

/// Processes that one tenant can have attached at one time.
pub const MAX_SLOTS: usize = 1024;

/// Memory is counted in units of this many bytes: what the driver rounds a request up to.
///
/// Source: `cuMemAlloc` hands out multiples of 512 B inside its blocks.
pub const UNIT_BYTES: u64 = 512;

/// First eight bytes of every page: `"SLUICEpg"`.
pub const PAGE_MAGIC: u64 = u64::from_le_bytes(*b"SLUICEpg");

/// Layout of everything behind the header. Raised whenever a field moves or changes its meaning.
pub const LAYOUT: u32 = 4;

/// Folder under the runtime folder that is mounted into containers.
pub const SOCKET_FOLDER: &str = "socket";

/// File name of the attach socket inside [`SOCKET_FOLDER`].
pub const ATTACH_SOCKET: &str = "attach.sock";

/// Where the shim looks for the daemon before it looks at [`ENV_SOCKET`]: a container cannot
/// redirect itself with a variable.
pub const SYSTEM_ATTACH_SOCKET: &str = "/run/sluice/socket/attach.sock";

/// Names the attach socket of a daemon that runs in a private runtime folder.
pub const ENV_SOCKET: &str = "SLUICE_SOCKET";

/// Proves that a process was started by `sluice run`: 32 hexadecimal digits.
pub const ENV_TOKEN: &str = "SLUICE_TOKEN";

/// Absolute path of the `libcuda.so.1` that the shim stands in front of.
pub const ENV_LIBCUDA: &str = "SLUICE_LIBCUDA";

/// Absolute path of the `libnvidia-ml.so.1` that the shim stands in front of.
pub const ENV_LIBNVML: &str = "SLUICE_LIBNVML";

/// What the shim may write to standard error: `off`, `error`, `warn` (the default) or `info`.
pub const ENV_LOG: &str = "SLUICE_LOG";

/// Which of the two pages a header belongs to.
pub mod page_kind {
    /// [`super::ControlPage`].
    pub const CONTROL: u32 = 1;
    /// [`super::UsagePage`].
    pub const USAGE: u32 = 2;
}

/// The frozen beginning of every page: 64 bytes, the same in every version of Sluice.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PageHeader {
    /// [`PAGE_MAGIC`].
    pub magic: u64,
    /// [`LAYOUT`] of the writer.
    pub layout: u32,
    /// One of [`page_kind`].
    pub kind: u32,
    /// Size of the whole page in bytes, as the writer sees it.
    pub page_bytes: u64,
    /// The tenant's number, unique in one daemon's ledger.
    pub tenant: u64,
    /// Random, the same in both pages of a tenant: a page that is handed back after a restart is
    /// the tenant's own only if this matches the ledger.
    pub nonce: [u8; 16],
    /// Zero; here so that the header can grow without moving.
    pub reserved: [u64; 2],
}

impl PageHeader {
    /// A header for a page of `page_bytes`.
    pub const fn new(kind: u32, page_bytes: u64, tenant: u64, nonce: [u8; 16]) -> Self {
        Self {
            magic: PAGE_MAGIC,
            layout: LAYOUT,
            kind,
            page_bytes,
            tenant,
            nonce,
            reserved: [0; 2],
        }
    }

    /// Whether this header announces the layout that this build knows, for a page of `kind`.
    pub const fn is_known(&self, kind: u32, page_bytes: u64) -> bool {
        self.magic == PAGE_MAGIC
            && self.layout == LAYOUT
            && self.kind == kind
            && self.page_bytes == page_bytes
    }
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<PageHeader>() == 64);
    assert!(offset_of!(PageHeader, layout) == 8);
    assert!(offset_of!(PageHeader, page_bytes) == 16);
    assert!(offset_of!(PageHeader, nonce) == 32);
};
