//! Taking over what an earlier daemon left: its tenants, their pages, their processes.
//!
//! The ledger's file says who the tenants were and who held which slot; what they hold stands in the
//! usage pages, which the processes keep. Where `/proc` allows it the page is fetched from a process's
//! descriptors at once; else the first process that comes back brings it. A slot whose process is dead
//! is given back as soon as the page is there.

use crate::attach::Server;
use crate::clients::Client;
use crate::descriptors::{is_dead, pidfd};
use crate::pages::Usage;
use crate::process;
use crate::state::{Watched, reap_slot};
use crate::tenants::{ProcessId, SlotHolder, Tenant};
use ffi::sync::Ordering;
use ffi::wire::slot_state;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long processes that nobody knows of have to come back.
///
/// A shim notices the daemon's end at once and tries again every few milliseconds, so this is long; it
/// only holds up new processes of a tenant whose page nobody could fetch.
const PATIENCE: Duration = Duration::from_secs(2);

/// Added to a tenant's count of generations at each take-over: the ledger may be a moment behind, and
/// no generation may be given out twice. More than any daemon can give out in that moment.
const SKIPPED_GENERATIONS: u32 = 1 << 16;

/// Whether a take-over is going on.
#[derive(Debug, Default)]
pub(crate) struct Recovery {
    deadline: Option<Instant>,
}

impl Recovery {
    /// Time until it is over; `None`: there is none.
    pub(crate) fn remaining(&self) -> Option<Duration> {
        self.deadline
            .map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Whether its time is over, and it has to be finished.
    pub(crate) fn is_due(&self) -> bool {
        self.deadline
            .is_some_and(|deadline| deadline <= Instant::now())
    }
}

impl Server {
    /// Takes over all tenants of the ledger.
    pub(crate) fn take_over(&mut self) -> Recovery {
        let tenants: Vec<Tenant> = self.shared.state().registry.tenants().cloned().collect();
        for tenant in &tenants {
            if let Err(error) = self.shared.reopen(tenant.id) {
                tracing::error!(tenant = tenant.name, %error, "cannot take over");
                continue;
            }
            self.take_over_processes(tenant);
        }
        let is_waiting = tenants.iter().any(|tenant| self.lacks_usage(tenant.id));
        Recovery {
            deadline: is_waiting.then(|| Instant::now() + PATIENCE),
        }
    }

    /// Ends the wait for processes that nobody knows of.
    pub(crate) fn finish_recovery(&mut self) {
        let ids: Vec<u64> = self
            .shared
            .state()
            .registry
            .tenants()
            .map(|tenant| tenant.id)
            .collect();
        for id in ids {
            if !self.lacks_usage(id) || self.clients.has_holders(id) {
                continue;
            }
            let mut state = self.shared.state();
            if let Some(tenant) = state.registry.tenant_mut(id) {
                tenant.slots.clear();
            }
            state.remove_if_over(id);
        }
    }

    /// Makes `descriptor` the usage page of a tenant that has none, and settles its slots. False: it is
    /// not that tenant's page.
    ///
    /// Another tenant's page is nothing unusual where pages are looked for.
    pub(crate) fn adopt(&mut self, id: u64, descriptor: OwnedFd) -> bool {
        {
            let mut state = self.shared.state();
            let state = &mut *state;
            let Some(tenant) = state.registry.tenant(id) else {
                return false;
            };
            let usage = match Usage::adopt(descriptor, tenant) {
                Ok(usage) => usage,
                Err(error) => {
                    tracing::debug!(tenant = tenant.name, %error, "not the tenant's usage page");
                    return false;
                }
            };
            if let Some(pages) = state.pages.get_mut(&id) {
                pages.usage = Some(usage);
            }
        }
        self.settle_slots(id);
        true
    }

    fn lacks_usage(&self, id: u64) -> bool {
        let state = self.shared.state();
        state
            .pages
            .get(&id)
            .is_some_and(|pages| pages.usage.is_none())
    }

    /// Takes a tenant's usage page from the descriptors of the first of these processes that has it.
    fn fetch_usage(&mut self, id: u64, pids: impl Iterator<Item = u32>) {
        let mut pages = pids.flat_map(process::usage_pages);
        while self.lacks_usage(id) {
            let Some(page) = pages.next() else {
                return;
            };
            self.adopt(id, page);
        }
    }

    fn take_over_processes(&mut self, tenant: &Tenant) {
        for (slot, holder) in &tenant.slots {
            self.follow(tenant.id, *slot, holder.process);
        }
        let pids: Vec<u32> = self
            .clients
            .holders(tenant.id)
            .map(|(_, client)| client.pid)
            .collect();
        self.fetch_usage(tenant.id, pids.into_iter());
        if !tenant.slots.is_empty() && self.lacks_usage(tenant.id) {
            // Those in the ledger are dead, but one that came just after it was written may live.
            self.fetch_usage(tenant.id, process::all());
        }
        let mut state = self.shared.state();
        let state = &mut *state;
        if let Some(tenant) = state.registry.tenant_mut(tenant.id) {
            tenant.next_generation = tenant
                .next_generation
                .wrapping_add(SKIPPED_GENERATIONS)
                .max(1);
            tracing::info!(
                tenant = tenant.name,
                processes = tenant.slots.len(),
                "taken over"
            );
            if let (true, Some(pages)) = (tenant.slots.is_empty(), state.pages.get_mut(&tenant.id))
                && pages.usage.is_none()
            {
                // Nobody ever had a page of it: the first process is in the ledger before it has one.
                match Usage::create(tenant) {
                    Ok(usage) => pages.usage = Some(usage),
                    Err(error) => {
                        tracing::error!(tenant = tenant.name, %error, "cannot make a usage page");
                    }
                }
            }
        }
        state.remove_if_over(tenant.id);
    }

    /// Watches a process that holds a slot and has no connection yet. False: it is dead.
    fn follow(&mut self, tenant: u64, slot: u32, process: ProcessId) -> bool {
        let Ok(pidfd) = pidfd(process.pid) else {
            return false;
        };
        let is_it = process::identify(process.pid) == Some(process) && !is_dead(pidfd.as_fd());
        let number = self.number();
        let watched = Watched::Process(number);
        if !is_it || self.shared.watch(pidfd.as_fd(), watched).is_err() {
            return false;
        }
        let client = Client {
            tenant,
            slot: Some(slot),
            pid: process.pid,
            socket: None,
            pidfd: Some(pidfd),
        };
        self.clients.insert(number, client);
        if let Some(pages) = self.shared.state().pages.get_mut(&tenant) {
            pages.absent.insert(slot);
        }
        true
    }

    /// Goes through all slots of a page that has just come: live processes keep theirs, also those that
    /// the ledger does not know yet; what dead ones held is given back.
    fn settle_slots(&mut self, id: u64) {
        for (slot, claim) in self.claims(id).into_iter().enumerate() {
            let slot = slot as u32;
            let is_listed = {
                let state = self.shared.state();
                let tenant = state.registry.tenant(id);
                tenant.is_some_and(|tenant| tenant.slots.contains_key(&slot))
            };
            let holder = self.clients.holder(id, slot);
            let pid = holder
                .and_then(|number| self.clients.client(number))
                .map(|it| it.pid);
            match (holder, pid) {
                (Some(_), Some(pid)) if self.maps_usage(id, pid) => {}
                (Some(number), _) => self.gone_but_kept(number),
                (None, _) if is_listed => self.shared.state().reap(id, slot),
                (None, _) => self.settle_unlisted(id, slot, claim),
            }
        }
        self.shared.state().is_unsaved = true;
    }

    /// As [`Server::gone`], for a tenant that is only being taken over.
    fn gone_but_kept(&mut self, number: u64) {
        if let Some(client) = self.clients.remove(number)
            && let Some(slot) = client.slot
        {
            self.shared.state().reap(client.tenant, slot);
        }
    }

    /// What the slots' headers say: who holds each. The tenant's claim, no more.
    fn claims(&self, id: u64) -> Vec<Claim> {
        let state = self.shared.state();
        let usage = state.pages.get(&id).and_then(|pages| pages.usage.as_ref());
        let slots = usage.map(|usage| &usage.page().slots);
        slots
            .into_iter()
            .flatten()
            .map(|slot| Claim {
                state: slot.header.state.load(Ordering::Acquire),
                pid: slot.header.pid.load(Ordering::Relaxed),
                generation: slot.header.generation.load(Ordering::Relaxed),
            })
            .collect()
    }

    /// Settles a slot that the ledger does not know: a process attached just before the daemon's end,
    /// or nobody did.
    fn settle_unlisted(&mut self, id: u64, slot: u32, claim: Claim) {
        if claim.state == slot_state::FREE {
            return;
        }
        let process = (claim.state == slot_state::LIVE)
            .then(|| process::identify(claim.pid))
            .flatten()
            .filter(|process| self.maps_usage(id, process.pid));
        if let Some(process) = process
            && self.follow(id, slot, process)
        {
            let mut state = self.shared.state();
            if let Some(tenant) = state.registry.tenant_mut(id) {
                let holder = SlotHolder {
                    process,
                    generation: claim.generation,
                };
                tenant.slots.insert(slot, holder);
            }
            return;
        }
        let mut state = self.shared.state();
        let state = &mut *state;
        let usage = state.pages.get(&id).and_then(|pages| pages.usage.as_ref());
        if let (Some(tenant), Some(usage)) = (state.registry.tenant_mut(id), usage) {
            let generation = tenant.generation();
            reap_slot(usage, slot, tenant.shares.len(), generation);
        }
    }
}

/// What a slot's header says.
#[derive(Debug, Clone, Copy)]
struct Claim {
    state: u32,
    pid: u32,
    generation: u32,
}
