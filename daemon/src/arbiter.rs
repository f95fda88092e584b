//! Who may submit work to a device, and until when: a pure state machine.
//!
//! Time and events go in, leases come out. There is no clock here, no I/O and no thread, so exact
//! behaviour is proved on made-up time; whoever drives it stores the leases where clients read them.
//!
//! # States of a device
//!
//! * **Solo**: one client. It may do as it likes.
//! * **Quiet**: several clients, at most one active. All may submit at once: whoever becomes active does
//!   not wait for anybody's decision.
//! * **Contended**: two are active. One at a time holds the lease, for a [slice](Settings::slice); the
//!   others hold back. It ends when for [`Settings::calm`] at most one has been active.
//!
//! # Charge of record
//!
//! Time is charged as the hardware spends it: contexts with work alternate equally, so at any time every
//! client with work in flight is charged an equal part. A client that holds the lease and has a gap in its
//! work is charged for the gap as well, up to [`Settings::grace`]; then its turn is over. What a client
//! leaves running when its turn ends (nobody can take it back) is charged to it by what it was predicted to
//! take ([`Arbiter::set_in_flight`]), since a short rest waits for whole slices of others; the difference
//! goes to whoever holds the lease. By virtual time a client that overran waits the longer for its next turn.
//!
//! # Order of choice
//!
//! 1. `latency` clients whose budget lasts: they hold a standing lease, and while they have work everybody
//!    else holds back. The budget is their guarantee of each [`Settings::latency_period`].
//! 2. Clients that have had less than their guarantee since they have had work, the largest part first.
//! 3. By weight: earliest virtual deadline first among those who are not ahead (EEVDF).
//!
//! Clients over their ceiling are left out until the window has slid on.
//!
//! # What it does not do
//!
//! It knows nothing of processes, markers or futexes, and does not measure: that a client is busy or
//! wants to submit is what it is told, by the turns' thread (`crate::turns`).

mod client;
mod share;

pub use share::{Class, Terms};

use client::{Backlog, Client, Leftover};
use share::{Meter, VirtualTime};
use std::collections::BTreeMap;

/// Nanoseconds since some beginning; never goes back.
pub type Nanos = u64;

const MICROSECOND: Nanos = 1_000;
const MILLISECOND: Nanos = 1_000_000;

/// A container on a device, by a number of the caller's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

/// A client's right to submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lease {
    /// Until further notice.
    Open,
    /// Until a time.
    Until(Nanos),
    /// Not now.
    Hold,
}

/// How long things take. The defaults are what the design asks for; tests choose others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Longest run of a `standard` client before the next choice.
    ///
    /// 10 ms: a hand-over of 0.1 ms costs 1 %, and each of four clients runs every 40 ms.
    pub slice: Nanos,
    /// The same for a `batch` client; a quarter of it where a `latency` client is registered.
    pub batch_slice: Nanos,
    /// All that are active should have had a turn within this: with many of them, slices are shorter.
    ///
    /// 750 ms: well below what a launch waits at most, so that many with long kernels get round as well.
    pub round: Nanos,
    /// Shortest slice for that reason.
    ///
    /// 4 ms: a hand-over of 0.15 ms costs 4 %.
    pub least_slice: Nanos,
    /// Longest gap in the holder's work before its turn is over: a loop that waits for each result
    /// keeps the device, one that waits for the network loses it.
    pub grace: Nanos,
    /// The same for one whose gaps are usually longer: time for what follows at once.
    pub short_grace: Nanos,
    /// Shortest turn that is ended early for somebody who comes back.
    pub least_turn: Nanos,
    /// A turn that its holder does not take up within this is over: a thread that is to wake up does so
    /// in much less, unless it is stopped.
    pub no_show: Nanos,
    /// One that does not come, again and again, gets no turn for up to this.
    pub longest_pass_over: Nanos,
    /// Contention is over when at most one client has been active for so long.
    pub calm: Nanos,
    /// A `latency` client's guarantee is its budget in each of these.
    pub latency_period: Nanos,
    /// What is left running after a turn counts by its prediction where it is at most this long.
    ///
    /// 4 ms: twice what hardware runs before it alternates.
    pub short: Nanos,
    /// Most that a client can owe, as time of its own: an overrun beyond that is forgiven.
    pub longest_debt: Nanos,
}

impl Settings {
    /// The same for a device whose clients hold more than it has: turns of `slice`, however many there are and
    /// whoever they are of, which short gaps do not end.
    ///
    /// At each turn memory comes back from the host, which takes seconds (12 GB: 47 s page by page, less than
    /// one in bulk), and two working sets that alternate faster than that get nowhere.
    #[must_use]
    pub fn oversubscribed(self, slice: Nanos) -> Self {
        let grace = slice / 100;
        Self {
            slice,
            batch_slice: slice,
            least_slice: slice,
            grace: self.grace.max(grace),
            short_grace: self.short_grace.max(grace),
            calm: self.calm.max(2 * grace),
            no_show: self.no_show.max(grace),
            longest_debt: self.longest_debt.max(4 * slice),
            ..self
        }
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            slice: 10 * MILLISECOND,
            batch_slice: 20 * MILLISECOND,
            round: 750 * MILLISECOND,
            least_slice: 4 * MILLISECOND,
            grace: 300 * MICROSECOND,
            short_grace: 150 * MICROSECOND,
            least_turn: MILLISECOND,
            no_show: 2 * MILLISECOND,
            longest_pass_over: 1_000 * MILLISECOND,
            calm: 50 * MILLISECOND,
            latency_period: 100 * MILLISECOND,
            short: 4 * MILLISECOND,
            longest_debt: 2_000 * MILLISECOND,
        }
    }
}

/// The turn that goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Turn {
    holder: ClientId,
    begin: Nanos,
    until: Nanos,
    /// Whether the holder has had work in flight in it.
    is_taken_up: bool,
}

/// One device's arbiter.
#[derive(Debug)]
pub struct Arbiter {
    settings: Settings,
    clients: BTreeMap<ClientId, Client>,
    /// How many of them have work in flight.
    busy: u32,
    turn: Option<Turn>,
    is_contended: bool,
    /// Whether two clients are active, and when they last were.
    are_two_active: bool,
    last_contention: Nanos,
    period_begin: Nanos,
    now: Nanos,
}

impl Arbiter {
    /// A device without clients, at time `now`.
    pub fn new(settings: Settings, now: Nanos) -> Self {
        Self {
            settings,
            clients: BTreeMap::new(),
            busy: 0,
            turn: None,
            is_contended: false,
            are_two_active: false,
            last_contention: 0,
            period_begin: now,
            now,
        }
    }

    /// How long things take from now on. A turn that goes on ends no later than one that begins now.
    pub fn set_settings(&mut self, settings: Settings, now: Nanos) {
        self.pass_time(now);
        if settings == self.settings {
            return;
        }
        self.settings = settings;
        if let Some(turn) = self.turn {
            let until = self.now + self.slice_of(turn.holder);
            self.turn = Some(Turn {
                until: turn.until.min(until),
                ..turn
            });
        }
        self.decide();
    }

    /// A client comes, or its terms change; what it owes and is owed stays.
    pub fn set_terms(&mut self, id: ClientId, terms: Terms, now: Nanos) {
        self.pass_time(now);
        let start = self.fair_time();
        self.clients
            .entry(id)
            .and_modify(|client| client.terms = terms)
            .or_insert_with(|| Client {
                terms,
                lease: Lease::Hold,
                is_busy: false,
                is_waiting: false,
                backlog: None,
                virtual_time: start,
                meter: Meter::new(now),
                spent_of_budget: 0,
                quiet_since: now,
                usual_gap: 0,
                no_shows: 0,
                passed_over_until: 0,
                charged: 0,
                offered: 0,
                in_flight: 0,
                leftover: None,
            });
        self.decide();
    }

    /// A client goes, and with it all that it owed.
    pub fn remove(&mut self, id: ClientId, now: Nanos) {
        self.pass_time(now);
        self.clients.remove(&id);
        self.count_busy();
        self.decide();
    }

    /// A client has work in flight, or the last of it has ended; nothing happens where that is no news.
    pub fn set_busy(&mut self, id: ClientId, is_busy: bool, now: Nanos) {
        let client = self.clients.get(&id);
        // With many clients most of what is said is what was said before.
        if client.is_some_and(|client| client.is_busy != is_busy) {
            self.note(id, now, |client| client.is_busy = is_busy);
        }
    }

    /// What a client's work in flight is predicted to take; changes nothing until its turn ends.
    pub fn set_in_flight(&mut self, id: ClientId, predicted: Nanos) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.in_flight = predicted;
        }
    }

    /// A client has work that it may not submit, or has it no more; nothing happens where that is no news.
    pub fn set_waiting(&mut self, id: ClientId, is_waiting: bool, now: Nanos) {
        let client = self.clients.get(&id);
        if client.is_some_and(|client| client.is_waiting != is_waiting) {
            self.note(id, now, |client| client.is_waiting = is_waiting);
        }
    }

    /// The holder has nothing more that would fit into its turn: that ends at `at`, if not earlier.
    pub fn end_turn(&mut self, id: ClientId, at: Nanos) {
        if let Some(turn) = &mut self.turn
            && turn.holder == id
        {
            turn.until = turn.until.min(at.max(self.now));
        }
    }

    /// Time has passed; to be called at [`Arbiter::next_decision`] at the latest.
    pub fn advance(&mut self, now: Nanos) {
        self.pass_time(now);
        self.decide();
    }

    /// The client's right to submit, as it is now; an unknown client has none.
    pub fn lease(&self, id: ClientId) -> Lease {
        self.clients
            .get(&id)
            .map_or(Lease::Hold, |client| client.lease)
    }

    /// All leases.
    pub fn leases(&self) -> impl Iterator<Item = (ClientId, Lease)> {
        self.clients.iter().map(|(id, client)| (*id, client.lease))
    }

    /// Time that a client has been charged in all.
    pub fn charged(&self, id: ClientId) -> Nanos {
        self.clients.get(&id).map_or(0, |client| client.charged)
    }

    /// What the device would have given a client so far, had it always had work, and what part of its time,
    /// in millionths, it would give it now: contexts with work take equal turns.
    pub fn offer(&self, id: ClientId) -> (Nanos, u32) {
        self.clients.get(&id).map_or((0, 1_000_000), |client| {
            let sharers = self.busy - u32::from(client.is_busy) + 1;
            (client.offered, 1_000_000 / sharers)
        })
    }

    fn count_busy(&mut self) {
        let busy = self.clients.values().filter(|client| client.is_busy);
        self.busy = busy.count() as u32;
    }

    /// When something changes without an event; `None`: never.
    pub fn next_decision(&self) -> Option<Nanos> {
        let turn = self.turn.map(|turn| turn.until);
        let grace = self.turn.and_then(|turn| {
            let holder = self.clients.get(&turn.holder)?;
            (!holder.is_active()).then(|| holder.quiet_since + self.settings.grace)
        });
        let no_show = self
            .turn
            .filter(|turn| !turn.is_taken_up)
            .map(|turn| turn.begin + self.settings.no_show);
        let passed_over = self
            .clients
            .values()
            .filter(|client| client.is_active() && client.passed_over_until > self.now)
            .map(|client| client.passed_over_until)
            .min();
        let calm = self
            .is_contended
            .then(|| self.last_contention + self.settings.calm);
        // A budget or a ceiling that is used up comes back with time.
        let throttled = self
            .clients
            .values()
            .filter(|client| client.is_active() && self.is_limited(client))
            .map(|client| client.meter.next_slide())
            .min();
        let period = self
            .clients
            .values()
            .any(|client| client.terms.class == Class::Latency && client.is_active())
            .then(|| self.budget_end());
        let leave = self
            .clients
            .values()
            .filter(|client| client.terms.class == Class::Latency && !client.is_active())
            .filter(|client| self.is_here(client))
            .map(|client| client.quiet_since + self.grace_of(client))
            .min();
        [
            turn,
            grace,
            leave,
            no_show,
            passed_over,
            calm,
            throttled,
            period,
        ]
        .into_iter()
        .flatten()
        .map(|at| at.max(self.now + 1))
        .min()
    }

    fn note(&mut self, id: ClientId, now: Nanos, change: impl FnOnce(&mut Client)) {
        self.pass_time(now);
        let fair = self.fair_time();
        let settings = self.settings;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let was_active = client.is_active();
        change(client);
        self.count_busy();
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if client.is_active() && !was_active {
            let gap = now.saturating_sub(client.quiet_since);
            client.note_gap(gap, 32 * settings.grace);
            let is_new_backlog = client
                .backlog
                .is_none_or(|_| now > client.quiet_since + settings.grace);
            if is_new_backlog {
                client.backlog = Some(Backlog {
                    since: now,
                    charged: 0,
                });
                // Idling earns at most one slice. A short gap is no idling: what it is owed stays owed.
                let credit = VirtualTime::of(settings.slice, client.terms.weight);
                client.virtual_time = client.virtual_time.max(fair.minus(credit));
                self.cut_in(id);
            }
        }
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        if was_active && !client.is_active() {
            client.quiet_since = now;
        }
        if !client.is_busy {
            self.settle(id);
        }
        self.decide();
    }

    /// Whoever comes back and has had less than it is entitled to of the last second does not wait for the
    /// end of another's turn: that ends now, or when it has lasted for [`Settings::least_turn`].
    fn cut_in(&mut self, id: ClientId) {
        let Some(turn) = self.turn.filter(|turn| turn.holder != id) else {
            return;
        };
        let is_entitled = |id: ClientId| {
            let client = self.clients.get(&id);
            client.is_some_and(|client| client.meter.permille() * 10 < self.entitlement(client) * 9)
        };
        if is_entitled(id) && !is_entitled(turn.holder) {
            let soonest = turn.begin + self.settings.least_turn;
            self.turn = Some(Turn {
                until: turn.until.min(soonest.max(self.now)),
                ..turn
            });
        }
    }

    /// What a client may expect of the device while all who have work want it, in permille.
    fn entitlement(&self, client: &Client) -> u32 {
        let active = self.clients.values().filter(|other| other.is_active());
        let weights: u64 = active.map(|other| u64::from(other.terms.weight)).sum();
        let by_weight = u64::from(client.terms.weight) * 1000 / weights.max(1);
        (by_weight.min(1000) as u32).max(client.terms.guarantee_permille)
    }

    /// Brings the charge of what `id` had running after its turn to what that was predicted to take, at
    /// the expense or in favour of whoever holds the lease meanwhile.
    fn settle(&mut self, id: ClientId) {
        let holder = self.turn.map(|turn| turn.holder);
        let now = self.now;
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        let left = if client.is_busy { client.in_flight } else { 0 };
        let Some(leftover) = client.leftover.take() else {
            return;
        };
        if left > 0 {
            client.leftover = Some(Leftover {
                predicted: left,
                charged: 0,
            });
        }
        // A long rest alternates with the holder's work many times: equal parts are right for it.
        if holder.is_none() || holder == Some(id) || leftover.predicted > self.settings.short {
            return;
        }
        let done = leftover.predicted.saturating_sub(left);
        let more = done.saturating_sub(leftover.charged);
        let less = leftover.charged.saturating_sub(done);
        client.charge_beside(more, now);
        client.refund(less);
        if let Some(holder) = holder.and_then(|holder| self.clients.get_mut(&holder)) {
            holder.charge_beside(less, now);
            holder.refund(more);
        }
    }

    /// Charges the time since the last call to those who used it.
    fn pass_time(&mut self, now: Nanos) {
        let passed = now.saturating_sub(self.now);
        let former = self.now;
        self.now = self.now.max(now);
        if passed == 0 {
            return;
        }
        if self.are_two_active {
            // They were until now, however long ago the last event was.
            self.last_contention = self.now;
        }
        let busy = u64::from(self.busy);
        for client in self.clients.values_mut() {
            client.offered += passed / (busy - u64::from(client.is_busy) + 1);
        }
        let holder = self.turn.map(|turn| turn.holder);
        let users: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(id, client)| {
                let is_in_gap =
                    Some(**id) == holder && former < client.quiet_since + self.grace_of(client);
                client.is_busy || is_in_gap
            })
            .map(|(id, _)| *id)
            .collect();
        let count = users.len() as u64;
        for (index, id) in users.iter().enumerate() {
            // The remainder goes to the first ones, so that no nanosecond is lost.
            let part = passed / count + u64::from((index as u64) < passed % count);
            if let Some(client) = self.clients.get_mut(id) {
                client.charge(part, now);
            }
        }
        for client in self.clients.values_mut() {
            client.meter.slide(now);
        }
        if now >= self.budget_end() {
            let periods = (now - self.period_begin) / self.settings.latency_period;
            self.period_begin += periods * self.settings.latency_period;
            for client in self.clients.values_mut() {
                client.spent_of_budget = 0;
            }
        }
        self.forgive();
    }

    fn budget_end(&self) -> Nanos {
        self.period_begin + self.settings.latency_period
    }

    /// Cuts off what a client owes beyond the longest debt.
    fn forgive(&mut self) {
        let fair = self.fair_time();
        for client in self.clients.values_mut() {
            let debt = VirtualTime::of(self.settings.longest_debt, client.terms.weight);
            client.virtual_time = client.virtual_time.min(fair.plus(debt));
        }
    }

    /// Virtual time that a client neither ahead nor behind has: the mean of the active ones by weight.
    fn fair_time(&self) -> VirtualTime {
        let active = self.clients.values().filter(|client| client.is_active());
        let mean =
            VirtualTime::mean(active.map(|client| (client.virtual_time, client.terms.weight)));
        mean.unwrap_or_else(|| {
            let all = self.clients.values().map(|client| client.virtual_time);
            all.max().unwrap_or_default()
        })
    }

    /// Whether a client may have no more for now, whoever else wants.
    fn is_limited(&self, client: &Client) -> bool {
        client.meter.permille() >= client.terms.ceiling_permille
            && client.terms.ceiling_permille < 1000
    }

    /// Whether a client holds a standing lease.
    fn is_prompt(&self, client: &Client) -> bool {
        let budget =
            self.settings.latency_period / 1000 * u64::from(client.terms.guarantee_permille);
        client.terms.class == Class::Latency
            && client.spent_of_budget < budget
            && !self.is_limited(client)
    }

    /// How long a gap in a client's work is waited out: shorter for one whose gaps are longer than that
    /// anyway.
    fn grace_of(&self, client: &Client) -> Nanos {
        if client.usual_gap > self.settings.grace {
            self.settings.short_grace
        } else {
            self.settings.grace
        }
    }

    /// Whether a `latency` client has work, or had until a moment ago: its next request often follows the
    /// last one at once, and should not find the device taken.
    fn is_here(&self, client: &Client) -> bool {
        client.is_active()
            || (client.backlog.is_some() && self.now < client.quiet_since + self.grace_of(client))
    }

    fn decide(&mut self) {
        let active = self
            .clients
            .values()
            .filter(|client| client.is_active())
            .count();
        self.are_two_active = active >= 2;
        if self.are_two_active {
            self.is_contended = true;
            self.last_contention = self.now;
        } else if self.now >= self.last_contention + self.settings.calm {
            self.is_contended = false;
        }
        if self.clients.len() < 2 {
            self.is_contended = false;
        }
        if self.is_contended {
            self.take_turns();
        } else {
            self.turn = None;
        }
        self.write_leases();
    }

    /// Ends the turn that is over, and chooses the next.
    fn take_turns(&mut self) {
        let is_prompt_active = self
            .clients
            .values()
            .any(|client| self.is_here(client) && self.is_prompt(client));
        let former = self.turn.map(|turn| turn.holder);
        self.look_at_holder();
        if is_prompt_active || self.turn.is_some_and(|turn| self.is_over(turn)) {
            let ids: Vec<ClientId> = self.clients.keys().copied().collect();
            ids.into_iter().for_each(|id| self.settle(id));
            self.turn = None;
        }
        if is_prompt_active || self.turn.is_some() {
            return;
        }
        let next = self.choose(former);
        if next != former
            && let Some(client) = former.and_then(|former| self.clients.get_mut(&former))
            && client.is_busy
        {
            client.leftover = Some(Leftover {
                predicted: client.in_flight,
                charged: 0,
            });
        }
        if let Some(client) = next.and_then(|next| self.clients.get_mut(&next)) {
            client.leftover = None;
        }
        self.turn = next.map(|holder| Turn {
            holder,
            begin: self.now,
            until: self.now + self.slice_of(holder),
            is_taken_up: false,
        });
    }

    /// Takes note of whether the holder makes use of its turn.
    fn look_at_holder(&mut self) {
        let settings = self.settings;
        let now = self.now;
        let Some(turn) = &mut self.turn else {
            return;
        };
        let Some(client) = self.clients.get_mut(&turn.holder) else {
            return;
        };
        if client.is_busy {
            turn.is_taken_up = true;
            client.no_shows = 0;
        } else if !turn.is_taken_up && client.is_waiting && now >= turn.begin + settings.no_show {
            let wait = settings.no_show << client.no_shows.min(16);
            client.passed_over_until = now + wait.min(settings.longest_pass_over);
            client.no_shows = client.no_shows.saturating_add(1);
            turn.until = now;
        }
    }

    fn is_over(&self, turn: Turn) -> bool {
        let Some(holder) = self.clients.get(&turn.holder) else {
            return true;
        };
        self.now >= turn.until
            || self.is_limited(holder)
            || (!holder.is_active() && self.now >= holder.quiet_since + self.settings.grace)
    }

    fn slice_of(&self, id: ClientId) -> Nanos {
        let class = self.clients.get(&id).map(|client| client.terms.class);
        let has_latency = self
            .clients
            .values()
            .any(|client| client.terms.class == Class::Latency);
        let slice = match class {
            Some(Class::Batch) if has_latency => self.settings.batch_slice / 4,
            Some(Class::Batch) => self.settings.batch_slice,
            _ => self.settings.slice,
        };
        let active = self.clients.values().filter(|client| client.is_active());
        let in_round = self.settings.round / (active.count() as u64).max(1);
        slice.min(in_round.max(self.settings.least_slice))
    }

    fn choose(&self, former: Option<ClientId>) -> Option<ClientId> {
        let candidates: Vec<(ClientId, &Client)> = self
            .clients
            .iter()
            .filter(|(_, client)| client.is_active() && !self.is_limited(client))
            .filter(|(_, client)| self.now >= client.passed_over_until)
            .map(|(id, client)| (*id, client))
            .collect();
        // Those who want to submit first, and whoever could until now: work that is in flight goes on by
        // itself.
        let waiting = || {
            let wants =
                |(id, client): &&(ClientId, &Client)| client.is_waiting || Some(*id) == former;
            candidates.iter().filter(wants)
        };
        let choice = |pool: &mut dyn Iterator<Item = &(ClientId, &Client)>| {
            let pool: Vec<_> = pool.collect();
            self.furthest_below_guarantee(&pool)
                .or_else(|| self.earliest_deadline(&pool))
        };
        choice(&mut waiting()).or_else(|| choice(&mut candidates.iter()))
    }

    fn furthest_below_guarantee(&self, pool: &[&(ClientId, &Client)]) -> Option<ClientId> {
        pool.iter()
            .filter_map(|(id, client)| {
                let backlog = client.backlog?;
                let guarantee = u64::from(client.terms.guarantee_permille);
                let owed = (self.now - backlog.since) / 1000 * guarantee;
                let missing = owed.checked_sub(backlog.charged).filter(|ns| *ns > 0)?;
                // As a part of the guarantee, in permille of it.
                Some((u128::from(missing) * 1000 / u128::from(owed.max(1)), *id))
            })
            .max_by_key(|(part, id)| (*part, std::cmp::Reverse(*id)))
            .map(|(_, id)| id)
    }

    fn earliest_deadline(&self, pool: &[&(ClientId, &Client)]) -> Option<ClientId> {
        let fair = self.fair_time();
        let deadline = |(_, client): &(ClientId, &Client)| {
            let slice = VirtualTime::of(self.settings.slice, client.terms.weight);
            client.virtual_time.plus(slice)
        };
        let eligible = pool
            .iter()
            .filter(|(_, client)| client.virtual_time <= fair)
            .min_by_key(|entry| deadline(entry));
        // All ahead of the mean: whoever is so least.
        let least = || pool.iter().min_by_key(|(_, client)| client.virtual_time);
        eligible.or_else(least).map(|(id, _)| *id)
    }

    fn write_leases(&mut self) {
        let leases: Vec<(ClientId, Lease)> = self
            .clients
            .iter()
            .map(|(id, client)| (*id, self.lease_of(*id, client)))
            .collect();
        for (id, lease) in leases {
            if let Some(client) = self.clients.get_mut(&id) {
                client.lease = lease;
            }
        }
    }

    fn lease_of(&self, id: ClientId, client: &Client) -> Lease {
        if self.is_limited(client) {
            return Lease::Hold;
        }
        if !self.is_contended || self.is_prompt(client) {
            return Lease::Open;
        }
        match self.turn {
            Some(turn) if turn.holder == id => Lease::Until(turn.until),
            _ => Lease::Hold,
        }
    }
}
