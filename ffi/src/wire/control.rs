//! The control page: what the daemon tells a tenant.

use super::{MAX_DEVICES, PageHeader};
use crate::sync::{AtomicU32, AtomicU64};

/// Written by the daemon alone; every field is one atomic word, so no reader ever sees half a value.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct ControlPage {
    /// Frozen header, kind [`super::page_kind::CONTROL`].
    pub header: PageHeader,
    /// `CLOCK_MONOTONIC` in nanoseconds when the daemon last said that it lives (every 250 ms).
    /// Older than 1 s: the daemon is gone, and caps go on as they stand here.
    pub heartbeat_ns: AtomicU64,
    /// Raised by every change of a limit; a futex for whoever waits for one.
    pub generation: AtomicU32,
    /// How many entries of [`Self::devices`] are in use.
    pub device_count: AtomicU32,
    /// Process id of the daemon that made this page, in the daemon's own PID namespace.
    pub daemon_pid: AtomicU32,
    /// A bit for each device whose [`Lease`] a launch has to look at. Zero: nothing is shared, and a
    /// launch goes straight to the driver.
    pub gated: AtomicU32,
    /// 1: on those devices copies and fills look at it as well.
    pub gates_copies: AtomicU32,
    /// Zero.
    pub reserved: [u32; 9],
    /// The devices that this tenant may use, in the daemon's order (not CUDA's).
    pub devices: [DeviceControl; MAX_DEVICES],
}

/// One device of a tenant.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct DeviceControl {
    /// The device's UUID, first eight bytes then last eight, as `cuDeviceGetUuid_v2` gives them.
    pub uuid: [AtomicU64; 2],
    /// Size of the device, in bytes.
    pub physical_bytes: AtomicU64,
    /// What the tenant may hold on it, in bytes; never more than the device has.
    pub memory_limit_bytes: AtomicU64,
    /// The right to submit work; the GPU-time gate reads it.
    pub lease: Lease,
    /// What of the cap is set aside for memory that no allocation explains: contexts, code. In bytes.
    pub set_aside_bytes: AtomicU64,
    /// 1: the driver holds the cap too, and counts contexts and code itself; a request then has to fit under
    /// the cap alone, without what is set aside.
    pub is_held_by_driver: AtomicU32,
    /// 1: what `cuMemAlloc` gives is managed memory, which may lie in the host's; see the daemon's
    /// `memory.host_budget_mib`.
    pub is_overcommitted: AtomicU32,
    /// 1: there may be overcommitted tenants on the device. Theirs gives way to whatever is allocated, so what the
    /// driver calls free is less than what can be had.
    pub others_give_way: AtomicU32,
    /// Zero.
    pub reserved: [u32; 3],
}

/// The right of one tenant to submit work to one device.
#[repr(C)]
#[derive(Debug)]
pub struct Lease {
    /// One of [`lease_state`] in the low byte, a generation above it; a futex for threads that wait.
    pub word: AtomicU32,
    /// Launches that may be in flight whatever they take; at least one always may.
    pub least_units: AtomicU32,
    /// `CLOCK_MONOTONIC` in nanoseconds when the turn is to end; what binds is the word.
    pub expires_ns: AtomicU64,
    /// How much predicted work may be in flight, in nanoseconds; 0 is "no bound".
    pub backlog_ns: AtomicU64,
    /// Odd while the three words below are being changed; a reader that sees two values reads again.
    pub sequence: AtomicU32,
    /// What part of its time the device gives this tenant's work now, if it has any, in millionths: contexts
    /// with work take equal turns. With this a process tells what its work takes from how long it lasts.
    pub rate_ppm: AtomicU32,
    /// `CLOCK_MONOTONIC` in nanoseconds since when the rate holds.
    pub offered_at_ns: AtomicU64,
    /// What the device would have given it until then, had it always had work, in nanoseconds.
    pub offered_ns: AtomicU64,
    /// What the tenant may have of the device's time at most, in permille; 1000: all of it. Without a
    /// daemon each process holds to it by itself.
    pub ceiling_permille: AtomicU32,
    /// How long a launch waits at most before it goes through, in milliseconds; zero: two seconds.
    pub longest_wait_ms: AtomicU32,
    /// Zero.
    pub reserved_tail: u64,
}

/// States of [`Lease::word`].
pub mod lease_state {
    /// Submit at will.
    pub const OPEN: u32 = 0;
    /// It is this tenant's turn.
    pub const LEASED: u32 = 1;
    /// It is another's turn: wait, not for ever.
    pub const HOLD: u32 = 2;
    /// Submit at will; what it takes is charged. For containers whose devices wait for each other.
    pub const EXEMPT: u32 = 3;
    /// An operator holds the tenant: wait until he lets it go, or the daemon is gone.
    pub const PAUSED: u32 = 4;
    /// Bits of the state in the word.
    pub const MASK: u32 = 0xff;
    /// Where the generation begins.
    pub const GENERATION_SHIFT: u32 = 8;
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(ControlPage, heartbeat_ns) == 64);
    assert!(offset_of!(ControlPage, devices) == 128);
    assert!(size_of::<DeviceControl>() == 128);
    assert!(offset_of!(DeviceControl, memory_limit_bytes) == 24);
    assert!(offset_of!(DeviceControl, lease) == 32);
    assert!(offset_of!(DeviceControl, is_held_by_driver) == 104);
    assert!(size_of::<Lease>() == 64);
    assert!(offset_of!(ControlPage, gated) == 84);
    assert!(size_of::<ControlPage>() == 128 + MAX_DEVICES * 128);
};
