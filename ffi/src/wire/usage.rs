//! The usage page: what a tenant's processes hold, a slot for each.
//!
//! How the words are used is the crate `ledger`; here is only their layout.

use super::{MAX_DEVICES, MAX_SLOTS, PageHeader, Refusals};
use crate::sync::{AtomicU32, AtomicU64};

/// Written by the tenant's processes, read by the daemon as untrusted input.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct UsagePage {
    /// Frozen header, kind [`super::page_kind::USAGE`].
    pub header: PageHeader,
    /// The tenant's sums, one for each device, in the control page's order.
    pub totals: [TenantTotal; MAX_DEVICES],
    /// What was refused, in the same order.
    pub refusals: [Refusals; MAX_DEVICES],
    /// One slot for each attached process.
    pub slots: [UsageSlot; MAX_SLOTS],
}

/// What all processes of a tenant hold together on one device.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct TenantTotal {
    /// Units held, and who changed it last: see `ledger::Total`.
    pub word: AtomicU64,
    /// Most units ever held.
    pub peak_units: AtomicU64,
    /// Requests refused because of the cap.
    pub refusals: AtomicU64,
    /// Size of the last refused request, in bytes.
    pub last_refused_bytes: AtomicU64,
    /// Zero.
    pub reserved: [u64; 4],
}

/// States of [`SlotHeader::state`].
pub mod slot_state {
    /// Nobody's; every account in it is settled.
    pub const FREE: u32 = 0;
    /// A live process's.
    pub const LIVE: u32 = 1;
    /// Its process is dead, and what it held is being given back.
    pub const REAPING: u32 = 2;
}

/// One process of a tenant.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct UsageSlot {
    /// Who owns it.
    pub header: SlotHeader,
    /// What the process holds, by device in the control page's order.
    pub devices: [DeviceUsage; MAX_DEVICES],
    /// What the process has running, by device in the same order.
    pub work: [DeviceWork; MAX_DEVICES],
    /// What the process has copied and filled, by device in the same order.
    pub moved: [DeviceMoved; MAX_DEVICES],
}

/// What one process has copied and filled on one device, in all; written always.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceMoved {
    /// Copies that the driver took.
    pub copies: AtomicU64,
    /// Their bytes.
    pub copied_bytes: AtomicU64,
    /// Fills (`cuMemset…`) that the driver took.
    pub fills: AtomicU64,
    /// Their bytes.
    pub filled_bytes: AtomicU64,
}

/// What one process has running on one device; written while the device's bit in
/// [`super::ControlPage::gated`] is set.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct DeviceWork {
    /// 1 while something is in flight.
    pub is_busy: AtomicU32,
    /// Threads that wait for the lease.
    pub waiting: AtomicU32,
    /// Predicted time of all work submitted so far, in nanoseconds.
    pub submitted_ns: AtomicU64,
    /// The part of it that has retired.
    pub retired_ns: AtomicU64,
    /// Launches so far that a lease let through.
    pub launches: AtomicU64,
    /// Launches so far that had to wait for the lease.
    pub held: AtomicU64,
    /// Longest unit seen, in nanoseconds.
    pub longest_ns: AtomicU64,
    /// What the oldest work in flight was predicted to take, in nanoseconds.
    pub head_ns: AtomicU64,
    /// `CLOCK_MONOTONIC` in nanoseconds when that became the oldest.
    pub head_since_ns: AtomicU64,
}

/// Who owns a slot. Written by the daemon; the process only reads it.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct SlotHeader {
    /// One of [`slot_state`].
    pub state: AtomicU32,
    /// Process id in the daemon's PID namespace.
    pub pid: AtomicU32,
    /// Raised each time that the slot changes hands.
    pub generation: AtomicU32,
    /// Zero.
    pub reserved: [u32; 13],
}

/// One process's account on one device: what it held before its open operation, and that operation.
///
/// Two entries, so that a process can die between any two stores and still leave one whole account
/// behind. `open` names the operation that is being made; its entry is `entries[open % 2]`.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Account {
    /// Number of the open operation. Starts at 1.
    pub open: AtomicU64,
    /// The two entries.
    pub entries: [AccountEntry; 2],
    /// The last operation of this process that others have seen committed.
    pub acknowledged: AtomicU64,
    /// Zero.
    pub reserved: [u64; 2],
}

/// One half of an [`Account`].
#[repr(C)]
#[derive(Debug)]
pub struct AccountEntry {
    /// Units held before the operation.
    pub base_units: AtomicU64,
    /// Units that the operation adds, as two's complement.
    pub delta_units: AtomicU64,
}

/// A process's account and its counters on one device.
pub type DeviceUsage = Account;

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(size_of::<TenantTotal>() == 64);
    assert!(size_of::<SlotHeader>() == 64);
    assert!(size_of::<Account>() == 64);
    assert!(offset_of!(Account, entries) == 8);
    assert!(offset_of!(Account, acknowledged) == 40);
    assert!(size_of::<DeviceWork>() == 64);
    assert!(size_of::<DeviceMoved>() == 32);
    assert!(size_of::<UsageSlot>() == 64 + MAX_DEVICES * 160);
    assert!(offset_of!(UsagePage, totals) == 64);
    assert!(offset_of!(UsagePage, slots) == 64 + MAX_DEVICES * (64 + 128));
};
