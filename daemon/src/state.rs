//! What the daemon's threads share: the registry, each tenant's pages, and whom the attach thread
//! watches.

use crate::Settings;
use crate::bells::Bells;
use crate::descriptors::{is_dead, pidfd};
use crate::ledger_file::{self, Ledger};
use crate::native::Written;
use crate::pages::{Control, Usage};
use crate::process;
use crate::tenants::{Device, NewTenant, ProcessId, Refusal, Registry, Tenant};
use crate::turns::Turns;
use ffi::sync::Ordering;
use ffi::wire::{DeviceMoved, DeviceWork, attach_status, slot_state};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::time::{ClockId, clock_gettime};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering as Memory};
use std::time::Instant;
use tokio::sync::Notify;

/// What an epoll event is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Watched {
    /// Somebody wants to attach.
    Listener,
    /// The daemon is to stop.
    Stop,
    /// A tenant's owner.
    Owner(u64),
    /// A client's socket.
    Socket(u64),
    /// A client's process.
    Process(u64),
}

impl Watched {
    /// Bits above the number.
    const KIND_SHIFT: u32 = 56;

    fn pack(self) -> u64 {
        let (kind, number) = match self {
            Self::Listener => (0, 0),
            Self::Stop => (1, 0),
            Self::Owner(number) => (2, number),
            Self::Socket(number) => (3, number),
            Self::Process(number) => (4, number),
        };
        (kind << Self::KIND_SHIFT) | number
    }

    pub(crate) fn unpack(word: u64) -> Self {
        let number = word & ((1 << Self::KIND_SHIFT) - 1);
        match word >> Self::KIND_SHIFT {
            0 => Self::Listener,
            2 => Self::Owner(number),
            3 => Self::Socket(number),
            4 => Self::Process(number),
            _ => Self::Stop,
        }
    }
}

/// A tenant's pages, and what tells that its owner has ended.
#[derive(Debug)]
pub(crate) struct Pages {
    pub(crate) control: Control,
    /// `None`: an earlier daemon made it, and no process has brought it back yet.
    pub(crate) usage: Option<Usage>,
    /// Slots whose processes still read an earlier daemon's control page.
    pub(crate) absent: BTreeSet<u32>,
    /// What the tenant's processes wake the arbiter with.
    pub(crate) bell: EventFd,
    owner: Option<OwnedFd>,
}

impl Pages {
    /// Whether what is held on device `place`, and what is set aside there, is more than `limit_bytes`.
    pub(crate) fn is_over_limit(&self, place: usize, limit_bytes: u64) -> bool {
        self.held_bytes(place) > limit_bytes
    }

    /// What is held on device `place`, and what is set aside there.
    pub(crate) fn held_bytes(&self, place: usize) -> u64 {
        let page = self.usage.as_ref().map(Usage::page);
        let books = page.and_then(|page| ledger::Books::of(page, place));
        let held = books.map_or(0, |books| ledger::bytes(books.held_units()));
        held.saturating_add(self.control.is_set_aside(place))
    }
}

/// What changes, all of it under one lock.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) registry: Registry,
    pub(crate) pages: BTreeMap<u64, Pages>,
    /// What was set in the driver, or is about to be.
    pub(crate) native: Written,
    /// Whether the devices are known.
    pub(crate) is_ready: bool,
    /// Whether the ledger's file is behind.
    pub(crate) is_unsaved: bool,
}

/// What all threads have.
#[derive(Debug)]
pub(crate) struct Shared {
    state: Mutex<State>,
    epoll: Epoll,
    stop: EventFd,
    is_stopping: AtomicBool,
    stopped: Notify,
    /// Name of the thread that failed first, and word of it.
    failed: (Mutex<Option<&'static str>>, Notify),
    /// The ledger's file; its lock is taken before the state's.
    ledger: Mutex<PathBuf>,
    /// What wakes the arbiter.
    pub(crate) bells: Bells,
    /// Whose turn it is on which device; its lock is taken before the state's.
    pub(crate) turns: Turns,
    boot_id: String,
    /// What is set aside of each cap at least.
    pub(crate) overhead_reserve_bytes: u64,
    /// Whether copies and fills wait for their turn as launches do.
    gates_copies: bool,
    /// Whether tenants may be overcommitted.
    lends_host_memory: bool,
    pub(crate) started: Instant,
}

/// Why a tenant could not be registered.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RegisterError {
    /// The registry said no.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The system did.
    #[error("cannot make a tenant: {0}")]
    System(#[from] io::Error),
}

impl Shared {
    /// An empty state, or what an earlier daemon left in the ledger `file`; those tenants have a
    /// control page at once, and wait for their usage page.
    pub(crate) fn new(settings: &Settings, file: PathBuf) -> io::Result<Self> {
        let boot_id = process::boot_id();
        let mut registry = Registry::new(settings.overcommit_ratio, settings.host_budget_bytes);
        let mut native = Written::new();
        if let Some(ledger) = ledger_file::read(&file, &boot_id) {
            registry.restore(ledger.tenants, ledger.next_id);
            native = ledger.native;
        }
        let stop = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = Self {
            state: Mutex::new(State {
                registry,
                pages: BTreeMap::new(),
                native,
                is_ready: false,
                is_unsaved: true,
            }),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            stop,
            is_stopping: AtomicBool::new(false),
            stopped: Notify::new(),
            failed: (Mutex::new(None), Notify::new()),
            ledger: Mutex::new(file),
            bells: Bells::new()?,
            turns: Turns::new(settings.oversubscribed_turn),
            boot_id,
            overhead_reserve_bytes: settings.overhead_reserve_bytes,
            gates_copies: settings.gates_copies,
            lends_host_memory: settings.host_budget_bytes > 0,
            started: Instant::now(),
        };
        shared.watch(shared.stop.as_fd(), Watched::Stop)?;
        Ok(shared)
    }

    /// A control page for `tenant`.
    fn new_control(&self, tenant: &Tenant) -> io::Result<Control> {
        let control = Control::create(tenant, monotonic_ns(), self.overhead_reserve_bytes)?;
        control.set_gates_copies(self.gates_copies);
        control.set_overcommitted(tenant.is_overcommitted, self.lends_host_memory);
        Ok(control)
    }

    /// The state; held for microseconds.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// What the attach thread waits on.
    pub(crate) fn epoll(&self) -> &Epoll {
        &self.epoll
    }

    /// Has the attach thread told when `fd` is readable or at its end.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, what: Watched) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, what.pack());
        Ok(self.epoll.add(fd, event)?)
    }

    /// Tells all threads to end.
    pub(crate) fn stop(&self) {
        self.is_stopping.store(true, Memory::Release);
        self.stopped.notify_one();
        // A counter that is full wakes the attach thread just as well.
        let _ = self.stop.write(1);
        self.bells.ring();
    }

    /// Ends when the daemon stops; for the status thread.
    pub(crate) async fn stopped(&self) {
        self.stopped.notified().await;
    }

    /// Takes note that a thread has failed.
    pub(crate) fn fail(&self, thread: &'static str) {
        self.failed.0.lock().get_or_insert(thread);
        self.failed.1.notify_one();
    }

    /// Ends when a thread has failed, with its name.
    pub(crate) async fn failed(&self) -> String {
        self.failed.1.notified().await;
        self.failed.0.lock().unwrap_or("unknown").to_owned()
    }

    /// Whether threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.is_stopping.load(Memory::Acquire)
    }

    /// Sets what devices there are; from now on tenants can be registered.
    pub(crate) fn set_devices(&self, devices: Vec<Device>) {
        let mut state = self.state();
        for share in state.registry.tenants().flat_map(|tenant| &tenant.shares) {
            let is_known = devices
                .iter()
                .any(|device| device.uuid == share.device.uuid);
            if !is_known {
                tracing::warn!(
                    uuid = share.device.uuid,
                    "a tenant was promised memory of a device that is not there any more"
                );
            }
        }
        state.registry.set_devices(devices);
        state.is_ready = true;
        drop(state);
        self.bells.ring();
    }

    /// Makes a tenant: its place in the registry, its pages, the watch on its owner.
    pub(crate) fn register(&self, new: NewTenant) -> Result<Tenant, RegisterError> {
        let owner = pidfd(new.owner.pid)?;
        let tenant = {
            let mut state = self.state();
            let tenant = state.registry.register(new)?.clone();
            let made = self.open_pages(&tenant, owner);
            match made {
                Ok(pages) => state.pages.insert(tenant.id, pages),
                Err(error) => {
                    state.registry.remove(tenant.id);
                    return Err(error.into());
                }
            };
            tenant
        };
        self.save();
        tracing::info!(tenant = tenant.name, owner = tenant.owner.pid, "registered");
        Ok(tenant)
    }

    fn open_pages(&self, tenant: &Tenant, owner: OwnedFd) -> io::Result<Pages> {
        let pages = Pages {
            control: self.new_control(tenant)?,
            usage: Some(Usage::create(tenant)?),
            absent: BTreeSet::new(),
            bell: self.bells.hang()?,
            owner: None,
        };
        self.watch(owner.as_fd(), Watched::Owner(tenant.id))?;
        Ok(Pages {
            owner: Some(owner),
            ..pages
        })
    }

    /// Gives a tenant of an earlier daemon its new control page, and watches its owner if it lives.
    pub(crate) fn reopen(&self, id: u64) -> io::Result<()> {
        let mut state = self.state();
        let Some(tenant) = state.registry.tenant_mut(id) else {
            return Ok(());
        };
        let owner = pidfd(tenant.owner.pid)
            .ok()
            .filter(|_| process::identify(tenant.owner.pid) == Some(tenant.owner))
            .filter(|owner| !is_dead(owner.as_fd()));
        tenant.is_owner_alive = owner.is_some();
        let pages = Pages {
            control: self.new_control(tenant)?,
            usage: None,
            absent: BTreeSet::new(),
            bell: self.bells.hang()?,
            owner,
        };
        if let Some(owner) = &pages.owner {
            self.watch(owner.as_fd(), Watched::Owner(id))?;
        }
        state.pages.insert(id, pages);
        Ok(())
    }

    /// Brings all leases up to date; says when that is due again without a bell.
    pub(crate) fn look_at_turns(&self) -> Option<u64> {
        self.turns.pass(&self.state, monotonic_ns)
    }

    /// Whether every process of a tenant reads this daemon's control page.
    pub(crate) fn are_all_back(&self, id: u64) -> bool {
        let state = self.state();
        state
            .pages
            .get(&id)
            .is_none_or(|pages| pages.absent.is_empty())
    }

    /// Takes note of an owner's end.
    pub(crate) fn owner_gone(&self, id: u64) {
        let mut state = self.state();
        if let Some(pages) = state.pages.get_mut(&id) {
            // Closing it ends the watch.
            pages.owner = None;
        }
        if let Some(tenant) = state.registry.tenant_mut(id) {
            tenant.is_owner_alive = false;
        }
        state.is_unsaved = true;
        state.remove_if_over(id);
    }

    /// Writes the ledger's file as the state is now.
    pub(crate) fn save(&self) {
        let file = self.ledger.lock();
        let ledger = {
            let mut state = self.state();
            state.is_unsaved = false;
            Ledger::new(
                self.boot_id.clone(),
                state.registry.next_id(),
                state.registry.tenants().cloned().collect(),
                state.native.clone(),
            )
        };
        if let Err(error) = ledger_file::write(&file, &ledger) {
            // The daemon itself goes on; only its successor would miss it. Tried again by the heartbeat.
            tracing::error!(file = %file.display(), %error, "cannot write the restart ledger");
            self.state().is_unsaved = true;
        }
    }
}

impl State {
    /// Removes a tenant with nobody left, and drops its pages.
    pub(crate) fn remove_if_over(&mut self, id: u64) {
        if self
            .registry
            .tenant(id)
            .is_none_or(|tenant| !tenant.is_over())
        {
            return;
        }
        self.pages.remove(&id);
        self.is_unsaved = true;
        if let Some(tenant) = self.registry.remove(id) {
            tracing::info!(tenant = tenant.name, "removed: nobody is left");
        }
    }

    /// Gives a slot to a process, and writes its header: slot, generation, whether it is the only one.
    ///
    /// # Errors
    /// One of [`attach_status`].
    pub(crate) fn take_slot(
        &mut self,
        id: u64,
        process: ProcessId,
    ) -> Result<(u32, u32, bool), u32> {
        let tenant = self
            .registry
            .tenant_mut(id)
            .ok_or(attach_status::STRANGER)?;
        let usage = self.pages.get(&id).and_then(|pages| pages.usage.as_ref());
        let page = usage.ok_or(attach_status::LATER)?.page();
        let devices = tenant.shares.len();
        let (slot, holder) = tenant.take_slot(process).ok_or(attach_status::FULL)?;
        let is_first = tenant.slots.len() == 1;
        for books in (0..devices).filter_map(|device| ledger::Books::of(page, device)) {
            books.settle(slot);
        }
        if let Some(place) = page.slots.get(slot as usize) {
            place.work.iter().for_each(forget_work);
            place.moved.iter().for_each(forget_moved);
            let header = &place.header;
            header.pid.store(process.pid, Ordering::Relaxed);
            header
                .generation
                .store(holder.generation, Ordering::Relaxed);
            // Release; who finds the slot live finds its owner.
            header.state.store(slot_state::LIVE, Ordering::Release);
        }
        self.is_unsaved = true;
        Ok((slot, holder.generation, is_first))
    }

    /// Gives back what a dead process held in `slot`, and frees the slot.
    pub(crate) fn reap(&mut self, id: u64, slot: u32) {
        let Some(tenant) = self.registry.tenant_mut(id) else {
            return;
        };
        if tenant.slots.remove(&slot).is_none() {
            return;
        }
        let generation = tenant.generation();
        let devices = tenant.shares.len();
        self.is_unsaved = true;
        let Some(pages) = self.pages.get_mut(&id) else {
            return;
        };
        pages.absent.remove(&slot);
        let Some(usage) = &pages.usage else {
            return;
        };
        let units = reap_slot(usage, slot, devices, generation);
        tracing::debug!(
            tenant = tenant.name,
            slot,
            bytes = ledger::bytes(units),
            "process gone"
        );
    }
}

/// Gives back what `slot` holds on each of `devices`; says how many units. The slot is free after it.
pub(crate) fn reap_slot(usage: &Usage, slot: u32, devices: usize, generation: u32) -> u64 {
    let page = usage.page();
    let Some(place) = page.slots.get(slot as usize) else {
        return 0;
    };
    place
        .header
        .state
        .store(slot_state::REAPING, Ordering::Release);
    let units = (0..devices)
        .filter_map(|device| ledger::Books::of(page, device))
        .fold(0u64, |sum, books| sum.saturating_add(books.reap(slot)));
    place.work.iter().for_each(forget_work);
    place.moved.iter().for_each(forget_moved);
    place.header.pid.store(0, Ordering::Relaxed);
    place.header.generation.store(generation, Ordering::Relaxed);
    // Release; who finds the slot free finds it settled.
    place
        .header
        .state
        .store(slot_state::FREE, Ordering::Release);
    units
}

/// A process has gone: nothing of it runs or waits any more.
fn forget_work(work: &DeviceWork) {
    for word in [&work.is_busy, &work.waiting] {
        word.store(0, Ordering::Relaxed);
    }
    for word in [
        &work.submitted_ns,
        &work.retired_ns,
        &work.launches,
        &work.held,
        &work.longest_ns,
        &work.head_ns,
        &work.head_since_ns,
    ] {
        word.store(0, Ordering::Relaxed);
    }
}

fn forget_moved(moved: &DeviceMoved) {
    for word in [
        &moved.copies,
        &moved.copied_bytes,
        &moved.fills,
        &moved.filled_bytes,
    ] {
        word.store(0, Ordering::Relaxed);
    }
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    // Cannot fail for this clock; zero would only read as "no daemon".
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| {
        let seconds = u64::try_from(now.tv_sec()).unwrap_or(0);
        let rest = u64::try_from(now.tv_nsec()).unwrap_or(0);
        seconds.saturating_mul(1_000_000_000).saturating_add(rest)
    })
}
