//! The two pages of a tenant: made, sealed, mapped, checked.
//!
//! # Safety
//! Mapping shared memory is unsafe, and only this module and [`crate::descriptors`] may be. What makes
//! it sound here: both pages are memfds sealed against shrinking, checked before they are mapped, so a
//! mapping never loses its ground (no `SIGBUS`); every word behind the headers is an atomic, so what
//! the tenant's processes store at the same time is a race on atomics and nothing more; the headers,
//! which are not, are copied with volatile reads and never looked at through a reference. A mapping
//! lives as long as its owner here, and references into it borrow from that owner.
#![allow(unsafe_code, reason = "mapping shared memory has no safe form")]

use crate::tenants::{Share, Tenant};
use ffi::sync::Ordering;
use ffi::wire::{ControlPage, DeviceControl, PageHeader, UsagePage, lease_state, page_kind};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::fstat;
use nix::unistd::ftruncate;
use std::ffi::CStr;
use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::fence;

/// Size of a control page, in bytes.
pub(crate) const CONTROL_BYTES: u64 = size_of::<ControlPage>() as u64;

/// Size of a usage page, in bytes.
pub(crate) const USAGE_BYTES: u64 = size_of::<UsagePage>() as u64;

/// Name of a usage page in `/proc/PID/maps`, and of its descriptor in `/proc/PID/fd`.
pub(crate) const USAGE_NAME: &CStr = c"sluice-usage";

const CONTROL_NAME: &CStr = c"sluice-control";

/// Why a page that a process handed over is not its tenant's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PageError {
    /// An operation on it failed.
    #[error("it cannot be used: {0}")]
    Io(#[from] io::Error),
    /// It has another size.
    #[error("it has {0} bytes")]
    Size(i64),
    /// It is not sealed as it was made.
    #[error("its seals are {0:?}")]
    Seals(SealFlag),
    /// Its header is not this tenant's.
    #[error("its header is another's")]
    Header,
}

/// A page of type `T`, mapped for reading and writing.
#[derive(Debug)]
struct Mapping<T> {
    page: NonNull<T>,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl<T: Send> Send for Mapping<T> {}
// SAFETY: through a shared reference only atomics are reached, see the module.
unsafe impl<T: Sync> Sync for Mapping<T> {}

impl<T> Mapping<T> {
    /// Maps `fd`, which has the size of a `T` and cannot shrink.
    fn new(fd: OwnedFd) -> io::Result<Self> {
        let bytes = const { NonZeroUsize::new(size_of::<T>()).expect("pages are not empty") };
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at a place of the kernel's choice touches nothing of ours.
        let place = unsafe { mmap(None, bytes, access, MapFlags::MAP_SHARED, &fd, 0) }?;
        Ok(Self {
            page: place.cast(),
            fd,
        })
    }

    fn page(&self) -> &T {
        // SAFETY: mapped, page-aligned and large enough; every bit pattern is a `T`, since a page is
        // made of integers. See the module for what else writes there.
        unsafe { self.page.as_ref() }
    }

    /// The frozen header; every page begins with one.
    fn header(&self) -> PageHeader {
        // SAFETY: the mapping begins with a header, and every bit pattern is one. Volatile, because a
        // tenant may write it at the same time.
        unsafe { ptr::read_volatile(self.page.cast::<PageHeader>().as_ptr()) }
    }

    /// Writes the frozen header, before anybody else has the page.
    fn write_header(&self, header: PageHeader) {
        // SAFETY: the mapping begins with a header, and is ours alone until its descriptor is sent.
        unsafe { ptr::write_volatile(self.page.cast::<PageHeader>().as_ptr(), header) }
    }
}

impl<T> Drop for Mapping<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size; no reference outlives its owner.
        let unmapped = unsafe { munmap(self.page.cast(), size_of::<T>()) };
        debug_assert!(unmapped.is_ok());
    }
}

fn memfd(name: &CStr, bytes: u64) -> io::Result<OwnedFd> {
    let fd = memfd_create(name, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?;
    let bytes = i64::try_from(bytes).map_err(io::Error::other)?;
    ftruncate(&fd, bytes)?;
    Ok(fd)
}

fn seal(fd: &OwnedFd, seals: SealFlag) -> io::Result<()> {
    fcntl(fd, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(())
}

/// Seals of both pages: a mapping of either never loses its ground.
const SIZE_SEALS: SealFlag = SealFlag::F_SEAL_SHRINK.union(SealFlag::F_SEAL_GROW);

/// A control page: only this mapping can ever write it.
#[derive(Debug)]
pub(crate) struct Control(Mapping<ControlPage>);

impl Control {
    /// Makes the page of `tenant` and seals it; its heartbeat is `now_ns`, and of each cap `reserve_bytes`
    /// are set aside.
    pub(crate) fn create(tenant: &Tenant, now_ns: u64, reserve_bytes: u64) -> io::Result<Self> {
        let map = Mapping::<ControlPage>::new(memfd(CONTROL_NAME, CONTROL_BYTES)?)?;
        map.write_header(PageHeader::new(
            page_kind::CONTROL,
            CONTROL_BYTES,
            tenant.id,
            tenant.nonce,
        ));
        // Only now: the seal spares mappings that are there already, and there is just this one.
        seal(
            &map.fd,
            SIZE_SEALS | SealFlag::F_SEAL_FUTURE_WRITE | SealFlag::F_SEAL_SEAL,
        )?;
        let page = map.page();
        page.daemon_pid.store(std::process::id(), Ordering::Relaxed);
        page.device_count
            .store(tenant.shares.len() as u32, Ordering::Relaxed);
        for (device, share) in page.devices.iter().zip(&tenant.shares) {
            let [first, last] = uuid_words(&share.device.uuid);
            device.uuid[0].store(first, Ordering::Relaxed);
            device.uuid[1].store(last, Ordering::Relaxed);
            device
                .physical_bytes
                .store(share.device.memory_bytes, Ordering::Relaxed);
        }
        let control = Self(map);
        control.beat(now_ns);
        control.set_limits(&tenant.shares);
        for place in 0..tenant.shares.len() {
            control.set_aside(place, reserve_bytes);
        }
        Ok(control)
    }

    /// Says that the daemon lives, at `now_ns` of `CLOCK_MONOTONIC`.
    pub(crate) fn beat(&self, now_ns: u64) {
        // Release; a reader that sees this beat sees all limits of before.
        self.0.page().heartbeat_ns.store(now_ns, Ordering::Release);
    }

    /// Sets the caps; the tenant's processes see them at their next call.
    pub(crate) fn set_limits(&self, shares: &[Share]) {
        let page = self.0.page();
        let set = |device: &DeviceControl, limit_bytes| {
            device
                .memory_limit_bytes
                .store(limit_bytes, Ordering::Relaxed);
        };
        for (device, share) in page.devices.iter().zip(shares) {
            set(device, share.limit_bytes);
        }
        // Release; who sees the new generation sees the new limits.
        page.generation.fetch_add(1, Ordering::Release);
    }

    /// Sets what of the cap on device `place` is not for allocations; the tenant's processes see it at their
    /// next call.
    pub(crate) fn set_aside(&self, place: usize, bytes: u64) {
        if let Some(device) = self.0.page().devices.get(place) {
            device.set_aside_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    /// What is set aside on device `place`, in bytes.
    pub(crate) fn is_set_aside(&self, place: usize) -> u64 {
        let device = self.0.page().devices.get(place);
        device.map_or(0, |device| device.set_aside_bytes.load(Ordering::Relaxed))
    }

    /// Says whether the driver itself holds the cap on device `place`.
    pub(crate) fn set_held_by_driver(&self, place: usize, is_held: bool) {
        if let Some(device) = self.0.page().devices.get(place) {
            let word = &device.is_held_by_driver;
            word.store(u32::from(is_held), Ordering::Relaxed);
        }
    }

    /// Whether the driver itself holds the cap on device `place`.
    pub(crate) fn is_held_by_driver(&self, place: usize) -> bool {
        let device = self.0.page().devices.get(place);
        device.is_some_and(|device| device.is_held_by_driver.load(Ordering::Relaxed) != 0)
    }

    /// Says whether what the tenant allocates may lie in the host's memory, and whether what others do may.
    pub(crate) fn set_overcommitted(&self, is_overcommitted: bool, others_give_way: bool) {
        for device in &self.0.page().devices {
            let words = [
                (&device.is_overcommitted, is_overcommitted),
                (&device.others_give_way, others_give_way),
            ];
            for (word, is_so) in words {
                word.store(u32::from(is_so), Ordering::Relaxed);
            }
        }
    }

    /// Sets the lease on device `place`, and wakes whoever waits for a change of it.
    pub(crate) fn set_lease(&self, place: usize, new: Lease) {
        let page = self.0.page();
        let Some(device) = page.devices.get(place) else {
            return;
        };
        let lease = &device.lease;
        let is_next_turn = new.expires_ns > lease.expires_ns.load(Ordering::Relaxed);
        lease.expires_ns.store(new.expires_ns, Ordering::Relaxed);
        lease.backlog_ns.store(new.backlog_ns, Ordering::Relaxed);
        lease.least_units.store(new.least_units, Ordering::Relaxed);
        lease
            .ceiling_permille
            .store(new.ceiling_permille, Ordering::Relaxed);
        lease
            .longest_wait_ms
            .store(new.longest_wait_ms, Ordering::Relaxed);
        if lease.rate_ppm.load(Ordering::Relaxed) != new.rate_ppm {
            let sequence = lease.sequence.load(Ordering::Relaxed);
            lease
                .sequence
                .store(sequence.wrapping_add(1), Ordering::Relaxed);
            // Release; the words below are not seen before the odd number.
            fence(Ordering::Release);
            lease.rate_ppm.store(new.rate_ppm, Ordering::Relaxed);
            lease
                .offered_at_ns
                .store(new.offered_at_ns, Ordering::Relaxed);
            lease.offered_ns.store(new.offered_ns, Ordering::Relaxed);
            // Release; who sees the even number sees all three.
            lease
                .sequence
                .store(sequence.wrapping_add(2), Ordering::Release);
        }
        let former = lease.word.load(Ordering::Relaxed);
        if former & lease_state::MASK == new.state && !is_next_turn {
            return;
        }
        let generation = (former >> lease_state::GENERATION_SHIFT).wrapping_add(1);
        let word = (generation << lease_state::GENERATION_SHIFT) | new.state;
        // Release; who sees the word sees the bounds that go with it.
        lease.word.store(word, Ordering::Release);
        let is_wait_over = !matches!(new.state, lease_state::HOLD | lease_state::PAUSED);
        if is_wait_over {
            // SAFETY: the word lies in this mapping; waking reads and writes nothing.
            unsafe {
                nix::libc::syscall(
                    nix::libc::SYS_futex,
                    lease.word.as_ptr(),
                    nix::libc::FUTEX_WAKE,
                    i32::MAX,
                )
            };
        }
    }

    /// Sets on which devices launches have to look at their lease, a bit for each.
    pub(crate) fn set_gated(&self, gated: u32) {
        // Release; who sees the bit sees the lease.
        self.0.page().gated.store(gated, Ordering::Release);
    }

    /// Sets whether copies and fills look at the lease as launches do.
    pub(crate) fn set_gates_copies(&self, gates_copies: bool) {
        let word = &self.0.page().gates_copies;
        word.store(u32::from(gates_copies), Ordering::Relaxed);
    }

    /// The descriptor that processes get.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }
}

/// A lease, as it is to stand in a control page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lease {
    /// One of [`lease_state`].
    pub(crate) state: u32,
    /// When the turn is to end; 0 where that is not known.
    pub(crate) expires_ns: u64,
    /// Predicted work that may be in flight; 0 is "no bound".
    pub(crate) backlog_ns: u64,
    /// Launches that may be in flight whatever they take.
    pub(crate) least_units: u32,
    /// What it may have at most, in permille.
    pub(crate) ceiling_permille: u32,
    /// How long a launch waits at most; zero: two seconds.
    pub(crate) longest_wait_ms: u32,
    /// What part of its time the device gives it now, in millionths.
    pub(crate) rate_ppm: u32,
    /// Since when.
    pub(crate) offered_at_ns: u64,
    /// What it would have given it until then.
    pub(crate) offered_ns: u64,
}

/// A usage page. All that it says is the tenant's claim.
#[derive(Debug)]
pub(crate) struct Usage(Mapping<UsagePage>);

impl Usage {
    /// Makes an empty page for `tenant` and seals it.
    pub(crate) fn create(tenant: &Tenant) -> io::Result<Self> {
        let fd = memfd(USAGE_NAME, USAGE_BYTES)?;
        seal(&fd, SIZE_SEALS | SealFlag::F_SEAL_SEAL)?;
        let map = Mapping::<UsagePage>::new(fd)?;
        map.write_header(PageHeader::new(
            page_kind::USAGE,
            USAGE_BYTES,
            tenant.id,
            tenant.nonce,
        ));
        Ok(Self(map))
    }

    /// Takes over the page that a daemon before this one made for `tenant`, after checking that it is.
    ///
    /// # Errors
    /// It is something else; it is then left alone.
    pub(crate) fn adopt(fd: OwnedFd, tenant: &Tenant) -> Result<Self, PageError> {
        let found = fstat(&fd).map_err(io::Error::from)?;
        if found.st_size != USAGE_BYTES as i64 {
            return Err(PageError::Size(found.st_size));
        }
        let seals = fcntl(&fd, FcntlArg::F_GET_SEALS).map_err(io::Error::from)?;
        let seals = SealFlag::from_bits_retain(seals);
        if !seals.contains(SIZE_SEALS) {
            return Err(PageError::Seals(seals));
        }
        let map = Mapping::<UsagePage>::new(fd)?;
        let header: PageHeader = map.header();
        let is_ours = header.is_known(page_kind::USAGE, USAGE_BYTES)
            && header.tenant == tenant.id
            && header.nonce == tenant.nonce;
        if !is_ours {
            return Err(PageError::Header);
        }
        Ok(Self(map))
    }

    /// The page; its header is not to be looked at.
    pub(crate) fn page(&self) -> &UsagePage {
        self.0.page()
    }

    /// The descriptor that processes get.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.0.fd.as_fd()
    }

    /// What tells this page from every other one.
    pub(crate) fn inode(&self) -> io::Result<u64> {
        inode(self.fd())
    }
}

/// The inode behind a descriptor; memfds all lie on one file system.
pub(crate) fn inode(fd: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(fstat(fd)?.st_ino)
}

/// The sixteen bytes of a UUID as two words, in memory in the order that `cuDeviceGetUuid_v2` gives.
///
/// `GPU-` in front and dashes do not count; what is no hexadecimal digit ends it, and what is missing
/// is zero.
pub(crate) fn uuid_words(uuid: &str) -> [u64; 2] {
    let digits = uuid.strip_prefix("GPU-").unwrap_or(uuid).chars();
    let mut bytes = [0u8; 16];
    let digits = digits
        .filter(|c| *c != '-')
        .map_while(|c| c.to_digit(16))
        .take(2 * bytes.len());
    for (place, digit) in digits.enumerate() {
        if let Some(byte) = bytes.get_mut(place / 2) {
            *byte = (*byte << 4) | digit as u8;
        }
    }
    let (first, last) = bytes.split_at(8);
    [first, last].map(|half| half.try_into().map_or(0, u64::from_ne_bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::{Device, ProcessId};
    use std::collections::BTreeMap;
    use std::os::fd::AsRawFd;

    fn tenant() -> Tenant {
        Tenant {
            id: 5,
            name: "web".to_owned(),
            token: [1; 16],
            nonce: [2; 16],
            owner: ProcessId {
                pid: 1,
                start_ticks: 1,
            },
            shares: vec![Share {
                device: Device {
                    index: 0,
                    uuid: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f".to_owned(),
                    name: "test device".to_owned(),
                    memory_bytes: 8 << 30,
                },
                limit_bytes: 1 << 30,
                compute: crate::terms::Wanted::default(),
            }],
            slots: BTreeMap::new(),
            next_generation: 1,
            container: None,
            is_paused: false,
            is_overcommitted: false,
            is_owner_alive: true,
            observers: 0,
        }
    }

    fn duplicate(fd: BorrowedFd<'_>) -> OwnedFd {
        fd.try_clone_to_owned().expect("a copy")
    }

    #[test]
    fn nobody_else_can_write_a_control_page_and_everybody_sees_its_limits() {
        let control = Control::create(&tenant(), 7, 0).expect("made");
        let fd = duplicate(control.fd());
        assert!(nix::unistd::write(&fd, b"more").is_err());
        assert!(ftruncate(&fd, 0).is_err());
        assert!(Mapping::<ControlPage>::new(fd).is_err(), "mapped writable");
        let path = format!("/proc/self/fd/{}", control.fd().as_raw_fd());
        let bytes = std::fs::read(path).expect("readable");
        assert_eq!(bytes.len() as u64, CONTROL_BYTES);
        let word = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!(word(64), 7, "heartbeat");
        assert_eq!(&bytes[128..144], &(0..16).collect::<Vec<u8>>()[..], "uuid");
        assert_eq!(word(144), 8 << 30, "size");
        assert_eq!(word(152), 1 << 30, "cap");
    }

    #[test]
    fn a_usage_page_is_taken_over_only_if_it_is_the_tenants_own() {
        let usage = Usage::create(&tenant()).expect("made");
        let again = Usage::adopt(duplicate(usage.fd()), &tenant()).expect("its own");
        assert_eq!(again.inode().ok(), usage.inode().ok());
        let other = Tenant {
            nonce: [3; 16],
            ..tenant()
        };
        assert!(matches!(
            Usage::adopt(duplicate(usage.fd()), &other),
            Err(PageError::Header)
        ));
        let control = Control::create(&tenant(), 0, 0).expect("made");
        assert!(matches!(
            Usage::adopt(duplicate(control.fd()), &tenant()),
            Err(PageError::Size(_))
        ));
        let unsealed = memfd(USAGE_NAME, USAGE_BYTES).expect("made");
        assert!(matches!(
            Usage::adopt(unsealed, &tenant()),
            Err(PageError::Seals(_))
        ));
        let file = tempfile::tempfile().expect("a file");
        file.set_len(USAGE_BYTES).expect("sized");
        assert!(Usage::adopt(file.into(), &tenant()).is_err());
    }

    #[test]
    fn an_odd_uuid_is_cut_and_never_a_panic() {
        assert_eq!(uuid_words(""), [0, 0]);
        assert_eq!(uuid_words("GPU-zz"), [0, 0]);
        let ones = "f".repeat(99);
        assert_eq!(uuid_words(&ones), [u64::MAX, u64::MAX]);
    }
}
