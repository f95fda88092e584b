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
    /// Zero.
    pub reserved: [u32; 11],
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
    /// Zero.
    pub reserved: [u64; 8],
}

/// The right of one tenant to submit work to one device.
#[repr(C)]
#[derive(Debug)]
pub struct Lease {
    /// State in the low byte, generation above it. Zero is "open".
    pub word: AtomicU64,
    /// `CLOCK_MONOTONIC` in nanoseconds after which the word no longer binds.
    pub expires_ns: AtomicU64,
    /// How much predicted work may be in flight, in nanoseconds; 0 is "no bound".
    pub backlog_ns: AtomicU64,
    /// Zero.
    pub reserved: u64,
}

#[cfg(not(loom))]
const _: () = {
    use core::mem::{offset_of, size_of};
    assert!(offset_of!(ControlPage, heartbeat_ns) == 64);
    assert!(offset_of!(ControlPage, devices) == 128);
    assert!(size_of::<DeviceControl>() == 128);
    assert!(offset_of!(DeviceControl, memory_limit_bytes) == 24);
    assert!(offset_of!(DeviceControl, lease) == 32);
    assert!(size_of::<ControlPage>() == 128 + MAX_DEVICES * 128);
};
