//! The arbiter's thread: what the usage pages say goes into the arbiters, and their leases into the control
//! pages.
//!
//! It sleeps until a bell rings or the next decision is due; with at most one tenant on each device it has
//! nothing to decide. A device that two tenants' processes share, or whose tenant has a ceiling or is
//! paused, is *gated*: launches there look at their lease, and say what they have running.
//!
//! Everything in a usage page is a claim. It can make its own tenant wait longer, never another: what is
//! said to be in flight counts for a bounded time ([`Claim::is_believed`]), and what is charged is wall
//! time on the daemon's clock.
//!
//! A tenant that keeps several devices busy at once is a *gang*: its kernels may wait for each other
//! across devices, so it is never held (`EXEMPT`), and what it uses is charged.
//!
//! Lock order: the turns' lock, then the state's.

use crate::arbiter::{Arbiter, Class, ClientId, Lease, Nanos, Settings, Terms};
use crate::pages;
use crate::state::{Pages, Shared, State, monotonic_ns};
use crate::tenants::Tenant;
use ffi::sync::Ordering;
use ffi::wire::{DeviceWork, lease_state};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

const MICROSECOND: Nanos = 1_000;
const MILLISECOND: Nanos = 1_000_000;

/// Work in flight of a `standard` tenant.
///
/// 4 ms: twice what hardware runs before it alternates, so that whoever comes next waits for little more
/// than that.
const BACKLOG: Nanos = 4 * MILLISECOND;

/// The same beside a `latency` tenant.
const BACKLOG_BESIDE_LATENCY: Nanos = 2 * MILLISECOND;

/// The same of a `batch` tenant beside a `latency` tenant, which then submits one unit after the other.
///
/// 500 µs: half of it is left when the next unit is launched, about what a thread needs to wake up and do so.
const BATCH_BACKLOG_BESIDE_LATENCY: Nanos = 500 * MICROSECOND;

/// From a lease to the first kernel on the device: two threads wake up and one launches.
const HAND_OVER: Nanos = 150 * MICROSECOND;

/// Work is believed to be in flight without any progress for so long, or four times what it was predicted
/// to take if that is more: a stopped process, or one that waits for another container, holds up nobody.
const BELIEVED: Nanos = 50 * MILLISECOND;

/// A thread that waits and may go says so no longer after this.
const GOING: Nanos = 5 * MILLISECOND;

/// Most that anything is predicted to take.
const LONGEST: Nanos = 10_000 * MILLISECOND;

/// A tenant with several devices is a gang for so long after two of them were busy at once.
const GANG_MEMORY: Nanos = 10_000 * MILLISECOND;

/// Time used is looked at in steps of this.
const STEP: Nanos = 50 * MILLISECOND;

/// Steps of the window in which a share is measured: one second.
const STEPS: usize = 20;

/// What a tenant has of a device's time, as of now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Standing {
    /// Charged in all.
    pub(crate) used_ns: u64,
    /// Charged in the last second, in permille of it.
    pub(crate) share_permille: u32,
    /// Its lease; `None`: nothing is shared, and nothing measured.
    pub(crate) state: Option<u32>,
}

/// A launch waits at most this much longer than all others' turns on an oversubscribed device.
const BEYOND_TURNS: Nanos = 2_000 * MILLISECOND;

/// Longest wait of a launch on an oversubscribed device.
const LONGEST_WAIT: Nanos = 600_000 * MILLISECOND;

/// All devices' turns.
#[derive(Debug)]
pub(crate) struct Turns {
    devices: Mutex<BTreeMap<String, Device>>,
    /// A turn's length while a device's tenants hold more than it has.
    oversubscribed_turn: Nanos,
}

#[derive(Debug)]
struct Device {
    arbiter: Arbiter,
    /// How long turns are because the device is oversubscribed.
    turn_length: Option<Nanos>,
    claims: BTreeMap<u64, Claim>,
}

/// What is known of a tenant's claims on one device.
#[derive(Debug)]
struct Claim {
    terms: Terms,
    /// What the counters last said, and since when they say so.
    progress: (u64, u64),
    progress_since: Nanos,
    last_busy: Nanos,
    /// `None`: nothing is gated.
    state: Option<u32>,
    state_since: Nanos,
    /// What was charged in all at the end of each step; the oldest is a second old.
    charged: [Nanos; STEPS],
    step: u64,
}

/// What the processes of a tenant say together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Said {
    is_busy: bool,
    is_waiting: bool,
    submitted_ns: u64,
    retired_ns: u64,
    /// What the oldest of it was predicted to take, and since when it is that; of the process with the
    /// most of it.
    head: (Nanos, Nanos),
}

impl Said {
    fn add(&mut self, work: &DeviceWork) {
        // Acquire; pairs with the Release in the shim's `set_busy`.
        self.is_busy |= work.is_busy.load(Ordering::Acquire) != 0;
        self.is_waiting |= work.waiting.load(Ordering::Relaxed) != 0;
        let submitted_ns = work.submitted_ns.load(Ordering::Relaxed);
        let retired_ns = work.retired_ns.load(Ordering::Relaxed);
        self.submitted_ns = self.submitted_ns.wrapping_add(submitted_ns);
        self.retired_ns = self.retired_ns.wrapping_add(retired_ns);
        let head = (
            work.head_ns.load(Ordering::Relaxed),
            work.head_since_ns.load(Ordering::Relaxed),
        );
        self.head = self.head.max(head);
    }

    /// What is left of it at `now`, if the device gives it `rate_ppm` of its time.
    fn remaining_ns(&self, now: Nanos, rate_ppm: u32) -> Nanos {
        let (head_ns, since) = self.head;
        let passed = now.saturating_sub(since).min(LONGEST) * u64::from(rate_ppm) / 1_000_000;
        self.in_flight_ns().saturating_sub(passed.min(head_ns))
    }

    fn in_flight_ns(&self) -> Nanos {
        if self.is_busy {
            self.submitted_ns
                .saturating_sub(self.retired_ns)
                .min(LONGEST)
        } else {
            0
        }
    }
}

impl Claim {
    fn new(terms: Terms, now: Nanos) -> Self {
        Self {
            terms,
            progress: (0, 0),
            progress_since: now,
            last_busy: 0,
            state: None,
            state_since: now,
            charged: [0; STEPS],
            step: now / STEP,
        }
    }

    /// Whether what is said to be in flight can still be.
    fn is_believed(&mut self, said: &Said, now: Nanos) -> bool {
        let progress = (said.submitted_ns, said.retired_ns);
        if !said.is_busy || progress != self.progress {
            self.progress = progress;
            self.progress_since = now;
        }
        said.is_busy && now < self.doubted_at(said)
    }

    fn doubted_at(&self, said: &Said) -> Nanos {
        let patience = said.in_flight_ns().saturating_mul(4).max(BELIEVED);
        self.progress_since.saturating_add(patience)
    }

    /// Slides the window to `now`, with `charged` in all.
    fn measure(&mut self, charged: Nanos, now: Nanos) {
        let step = now / STEP;
        for missed in self.step + 1..=step.min(self.step + STEPS as u64) {
            if let Some(place) = self.charged.get_mut(missed as usize % STEPS) {
                *place = charged;
            }
        }
        self.step = step;
    }

    fn share_permille(&self, charged: Nanos, now: Nanos) -> u32 {
        let oldest = self.charged.get((self.step + 1) as usize % STEPS);
        let window = (STEPS as u64 - 1) * STEP + now % STEP;
        let used = charged.saturating_sub(oldest.copied().unwrap_or(charged));
        (u128::from(used) * 1000 / u128::from(window.max(1))).min(1000) as u32
    }
}

/// A tenant on a device, for one pass.
struct Present<'s> {
    tenant: &'s Tenant,
    pages: &'s Pages,
    place: usize,
    said: Said,
    is_gang: bool,
}

impl Turns {
    /// Of no device yet.
    pub(crate) fn new(oversubscribed_turn: Duration) -> Self {
        Self {
            devices: Mutex::default(),
            oversubscribed_turn: oversubscribed_turn.as_nanos() as Nanos,
        }
    }

    /// Looks at everything once; says when to look again without a bell.
    pub(crate) fn pass(&self, state: &Mutex<State>, clock: fn() -> Nanos) -> Option<Nanos> {
        let mut turns = self.devices.lock();
        let state = &*state.lock();
        // Only now: it never goes back from one pass to the next.
        let now = clock();
        let mut next: Option<Nanos> = None;
        let mut gated: BTreeMap<u64, u32> = BTreeMap::new();
        let gangs = gangs(&turns, state, now);
        let devices = state.registry.devices();
        let all: Vec<Vec<Present<'_>>> = devices
            .iter()
            .map(|device| present(state, &device.uuid, &gangs).collect())
            .collect();
        let shared: Vec<bool> = all.iter().map(|present| is_shared(present)).collect();
        // Whether a tenant works on several devices at once is seen only where it is tracked: on all of them
        // if on one.
        let is_tracked = |id: u64| {
            let mut devices = all.iter().zip(&shared);
            devices.any(|(present, is_shared)| {
                *is_shared && present.iter().any(|it| it.tenant.id == id)
            })
        };
        for ((device, present), is_shared) in devices.iter().zip(&all).zip(&shared) {
            let is_gated = *is_shared || present.iter().any(|it| is_tracked(it.tenant.id));
            if present.is_empty() && !turns.contains_key(&device.uuid) {
                continue;
            }
            let turn = turns.entry(device.uuid.clone()).or_insert_with(|| Device {
                arbiter: Arbiter::new(Settings::default(), now),
                turn_length: None,
                claims: BTreeMap::new(),
            });
            turn.turn_length = is_oversubscribed(state, &device.uuid, device.memory_bytes)
                .then_some(self.oversubscribed_turn);
            let at = turn.pass(present, is_gated, now);
            next = [next, at].into_iter().flatten().min();
            for it in present {
                let bit = if is_gated { 1 << it.place } else { 0 };
                *gated.entry(it.tenant.id).or_default() |= bit;
            }
        }
        for (id, bits) in gated {
            if let Some(pages) = state.pages.get(&id) {
                pages.control.set_gated(bits);
            }
        }
        next
    }

    /// What a tenant has of a device's time.
    pub(crate) fn standing(&self, tenant: u64, uuid: &str, now: Nanos) -> Standing {
        let turns = self.devices.lock();
        let Some(device) = turns.get(uuid) else {
            return Standing::default();
        };
        let used_ns = device.arbiter.charged(ClientId(tenant));
        device
            .claims
            .get(&tenant)
            .map_or_else(Standing::default, |claim| Standing {
                used_ns,
                share_permille: claim.share_permille(used_ns, now),
                state: claim.state,
            })
    }
}

/// Whether tenants hold more of a device than it has, which is so only where one of them is overcommitted.
fn is_oversubscribed(state: &State, uuid: &str, memory_bytes: u64) -> bool {
    let here = || {
        state.registry.tenants().filter_map(move |tenant| {
            let mut shares = tenant.shares.iter();
            let place = shares.position(|share| share.device.uuid == uuid)?;
            Some((tenant, place))
        })
    };
    let held = |(tenant, place): (&Tenant, usize)| {
        let pages = state.pages.get(&tenant.id);
        pages.map_or(0, |pages| pages.held_bytes(place))
    };
    here().any(|(tenant, _)| tenant.is_overcommitted)
        && here().map(held).fold(0, u64::saturating_add) > memory_bytes
}

/// Whether somebody may have to wait on a device.
fn is_shared(present: &[Present<'_>]) -> bool {
    let is_limited = |it: &Present<'_>| {
        it.tenant.is_paused || it.terms().ceiling_permille < crate::terms::WHOLE_PERMILLE
    };
    present.len() >= 2 || present.iter().any(is_limited)
}

/// Tenants whose processes are on the device.
fn present<'s>(
    state: &'s State,
    uuid: &'s str,
    gangs: &'s [u64],
) -> impl Iterator<Item = Present<'s>> {
    state.registry.tenants().filter_map(move |tenant| {
        let mut shares = tenant.shares.iter();
        let place = shares.position(|share| share.device.uuid == uuid)?;
        if tenant.slots.is_empty() {
            return None;
        }
        let pages = state.pages.get(&tenant.id)?;
        Some(Present {
            tenant,
            pages,
            place,
            said: said(tenant, pages, place),
            is_gang: gangs.contains(&tenant.id),
        })
    })
}

fn said(tenant: &Tenant, pages: &Pages, place: usize) -> Said {
    let mut said = Said::default();
    let Some(usage) = &pages.usage else {
        return said;
    };
    let page = usage.page();
    for slot in tenant.slots.keys() {
        let work = page
            .slots
            .get(*slot as usize)
            .and_then(|slot| slot.work.get(place));
        if let Some(work) = work {
            said.add(work);
        }
    }
    said
}

/// Tenants that had work on several devices at once, lately.
fn gangs(turns: &BTreeMap<String, Device>, state: &State, now: Nanos) -> Vec<u64> {
    let is_gang = |tenant: &&Tenant| {
        let busy = tenant.shares.iter().filter(|share| {
            let claim = turns
                .get(&share.device.uuid)
                .and_then(|device| device.claims.get(&tenant.id));
            claim.is_some_and(|claim| {
                claim.last_busy > 0 && now.saturating_sub(claim.last_busy) < GANG_MEMORY
            })
        });
        tenant.shares.len() > 1 && busy.count() > 1
    };
    let tenants = state.registry.tenants().filter(is_gang);
    tenants.map(|tenant| tenant.id).collect()
}

impl Present<'_> {
    fn terms(&self) -> Terms {
        self.tenant
            .shares
            .get(self.place)
            .map_or_else(Terms::default, |share| share.terms())
    }
}

impl Device {
    fn pass(&mut self, present: &[Present<'_>], is_gated: bool, now: Nanos) -> Option<Nanos> {
        let here: BTreeSet<u64> = present.iter().map(|it| it.tenant.id).collect();
        let gone: Vec<u64> = self
            .claims
            .keys()
            .copied()
            .filter(|id| !here.contains(id))
            .collect();
        for id in gone {
            self.claims.remove(&id);
            self.arbiter.remove(ClientId(id), now);
        }
        // First of all: whoever's turn ends in this pass leaves behind what it has in flight now.
        for it in present {
            let id = ClientId(it.tenant.id);
            let (_, rate_ppm) = self.arbiter.offer(id);
            self.arbiter
                .set_in_flight(id, it.said.remaining_ns(now, rate_ppm));
        }
        let mut next: Option<Nanos> = None;
        for it in present {
            let at = self.hear(it, is_gated, now);
            next = [next, at].into_iter().flatten().min();
        }
        let usual = Settings::default();
        let settings = self
            .turn_length
            .map_or(usual, |length| usual.oversubscribed(length));
        self.arbiter.set_settings(settings, now);
        self.arbiter.advance(now);
        self.write(present, is_gated, now);
        if !is_gated {
            return None;
        }
        [next, self.arbiter.next_decision()]
            .into_iter()
            .flatten()
            .min()
    }

    /// Tells the arbiter what a tenant says; says until when that is believed.
    fn hear(&mut self, it: &Present<'_>, is_gated: bool, now: Nanos) -> Option<Nanos> {
        let id = ClientId(it.tenant.id);
        let terms = it.terms();
        let claims = &mut self.claims;
        let is_new = !claims.contains_key(&id.0);
        let claim = claims.entry(id.0).or_insert_with(|| Claim::new(terms, now));
        if is_new || claim.terms != terms {
            claim.terms = terms;
            self.arbiter.set_terms(id, terms, now);
        }
        // Where nothing is gated nothing is said any more, and what was said last is old.
        let said = if is_gated { it.said } else { Said::default() };
        let is_busy = claim.is_believed(&said, now);
        if is_busy {
            claim.last_busy = now;
        }
        let until = [
            is_busy.then(|| claim.doubted_at(&said)),
            said.is_waiting
                .then(|| claim.state_since + GOING)
                .filter(|at| *at > now),
        ]
        .into_iter()
        .flatten()
        .min();
        if said.is_waiting && claim.state == Some(lease_state::LEASED) {
            // What it has does not fit into the rest of its turn. The next one gets to know just before
            // the device runs dry.
            let (_, rate_ppm) = self.arbiter.offer(id);
            let remaining_ns = said.remaining_ns(now, rate_ppm);
            let at = now + remaining_ns.saturating_sub(HAND_OVER);
            self.arbiter.end_turn(id, at);
        }
        let is_free = matches!(
            claim.state,
            Some(lease_state::OPEN | lease_state::EXEMPT | lease_state::PAUSED)
        );
        // Who may go and still says that it waits has been stopped on its way.
        let is_stuck = is_free && now >= claim.state_since + GOING;
        self.arbiter.set_waiting(
            id,
            said.is_waiting && !is_stuck && !it.tenant.is_paused,
            now,
        );
        self.arbiter.set_busy(id, is_busy, now);
        until
    }

    /// Writes all leases.
    fn write(&mut self, present: &[Present<'_>], is_gated: bool, now: Nanos) {
        let is_latency = |it: &&Present<'_>| it.terms().class == Class::Latency;
        let has_latency = present.iter().any(|it| is_latency(&it));
        let longest_wait = self.turn_length.map_or(0, |length| {
            (BEYOND_TURNS + length * present.len() as u64).min(LONGEST_WAIT)
        });
        for it in present {
            let id = it.tenant.id;
            let Some(claim) = self.claims.get_mut(&id) else {
                continue;
            };
            let charged = self.arbiter.charged(ClientId(id));
            claim.measure(charged, now);
            let (state, expires_ns) = match self.arbiter.lease(ClientId(id)) {
                _ if it.tenant.is_paused => (lease_state::PAUSED, 0),
                _ if it.is_gang || !is_gated => (lease_state::EXEMPT, 0),
                Lease::Open => (lease_state::OPEN, 0),
                Lease::Until(until) => (lease_state::LEASED, until),
                Lease::Hold => (lease_state::HOLD, 0),
            };
            let state_now = is_gated.then_some(state);
            if claim.state != state_now {
                claim.state = state_now;
                claim.state_since = now;
            }
            let (backlog_ns, least_units) = match claim.terms.class {
                Class::Latency => (0, 2),
                Class::Batch if has_latency => (BATCH_BACKLOG_BESIDE_LATENCY, 1),
                Class::Standard if has_latency => (BACKLOG_BESIDE_LATENCY, 2),
                _ => (BACKLOG, 2),
            };
            let (offered_ns, rate_ppm) = self.arbiter.offer(ClientId(id));
            it.pages.control.set_lease(
                it.place,
                pages::Lease {
                    state,
                    expires_ns,
                    backlog_ns,
                    least_units,
                    ceiling_permille: claim.terms.ceiling_permille,
                    longest_wait_ms: (longest_wait / MILLISECOND) as u32,
                    rate_ppm,
                    offered_at_ns: now,
                    offered_ns,
                },
            );
        }
    }
}

/// Runs until the daemon stops.
pub(crate) fn run(shared: &Arc<Shared>) {
    while !shared.is_stopping() {
        let next = shared.look_at_turns();
        let limit = next.map(|at| Duration::from_nanos(at.saturating_sub(monotonic_ns())));
        if let Err(error) = shared.bells.wait(limit) {
            tracing::error!(%error, "cannot wait for tenants' bells");
            return;
        }
    }
}
