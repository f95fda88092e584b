//! A device, its clients and an arbiter on made-up time.
//!
//! The hardware alternates contexts that have work every `slice`, at a cost for each switch; a context
//! runs its queue in order. A client submits whenever its lease lets it and its backlog has room, and what
//! it has submitted cannot be taken back. The arbiter learns that a client has run dry a moment late, as it
//! does from markers.

use daemon::arbiter::{Arbiter, ClientId, Lease, Nanos, Settings, Terms};
use std::collections::VecDeque;

pub(crate) const US: Nanos = 1_000;
pub(crate) const MS: Nanos = 1_000_000;
pub(crate) const S: Nanos = 1_000_000_000;

/// How late the arbiter learns that the last of a client's work has ended.
const MARKER_DELAY: Nanos = 50 * US;

/// What a client does.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Load {
    /// Units of this length, without an end.
    Endless { unit: Nanos },
    /// Every `period`, units of this length that take `work` together, whether or not the last are done.
    Requests {
        period: Nanos,
        unit: Nanos,
        work: Nanos,
    },
    /// Endless for `on`, nothing for `off`, and so on.
    Bursts { unit: Nanos, on: Nanos, off: Nanos },
    /// Nothing.
    Idle,
}

#[derive(Debug)]
struct Client {
    load: Load,
    backlog: Nanos,
    /// Units submitted: what is left of each, and the request it ends.
    queue: VecDeque<(Nanos, Option<Nanos>)>,
    /// Units that wait to be submitted: length, and the arrival of the request that the last one ends.
    wanted: VecDeque<(Nanos, Option<Nanos>)>,
    next_request: Nanos,
    told_busy: bool,
    told_waiting: bool,
    dry_since: Option<Nanos>,
    served: Nanos,
    /// Response times of requests.
    responses: Vec<Nanos>,
    last_served: Nanos,
    longest_wait: Nanos,
}

/// The whole of it.
pub(crate) struct World {
    pub(crate) arbiter: Arbiter,
    clients: Vec<Client>,
    slice: Nanos,
    switch: Nanos,
    running: Option<usize>,
    slice_left: Nanos,
    switch_left: Nanos,
    pub(crate) now: Nanos,
    pub(crate) busy: Nanos,
    pub(crate) switching: Nanos,
    /// The last changes of who may submit.
    changes: VecDeque<(Nanos, Vec<Lease>)>,
}

/// Changes that are shown of a world that failed.
const SHOWN: usize = 40;

impl World {
    /// A device with 2 ms slices and switches of 100 µs.
    pub(crate) fn new(settings: Settings) -> Self {
        Self {
            arbiter: Arbiter::new(settings, 0),
            clients: Vec::new(),
            slice: 2 * MS,
            switch: 100 * US,
            running: None,
            slice_left: 0,
            switch_left: 0,
            now: 0,
            busy: 0,
            switching: 0,
            changes: VecDeque::new(),
        }
    }

    /// The last changes of leases, a line each: when, and for each client `o` open, `L` leased, `.` held.
    pub(crate) fn timeline(&self) -> String {
        let mut text = String::from("\n  time, ms  leases\n");
        for (at, leases) in &self.changes {
            let marks: String = leases
                .iter()
                .map(|lease| match lease {
                    Lease::Open => 'o',
                    Lease::Until(_) => 'L',
                    Lease::Hold => '.',
                })
                .collect();
            text += &format!("{:>10.3}  {marks}\n", *at as f64 / MS as f64);
        }
        text
    }

    fn note_leases(&mut self) {
        let leases: Vec<Lease> = self.arbiter.leases().map(|(_, lease)| lease).collect();
        if self.changes.back().is_some_and(|(_, last)| *last == leases) {
            return;
        }
        if self.changes.len() == SHOWN {
            self.changes.pop_front();
        }
        self.changes.push_back((self.now, leases));
    }

    /// Adds a client; most that it keeps in flight is `backlog`, but always two units.
    pub(crate) fn add(&mut self, terms: Terms, load: Load, backlog: Nanos) -> usize {
        let index = self.clients.len();
        self.arbiter
            .set_terms(ClientId(index as u64), terms, self.now);
        self.clients.push(Client {
            load,
            backlog,
            queue: VecDeque::new(),
            wanted: VecDeque::new(),
            next_request: self.now,
            told_busy: false,
            told_waiting: false,
            dry_since: None,
            served: 0,
            responses: Vec::new(),
            last_served: self.now,
            longest_wait: 0,
        });
        index
    }

    /// GPU time that each client has had.
    pub(crate) fn served(&self) -> Vec<Nanos> {
        self.clients.iter().map(|client| client.served).collect()
    }

    /// What a client was charged.
    pub(crate) fn charged(&self, client: usize) -> Nanos {
        self.arbiter.charged(ClientId(client as u64))
    }

    /// Longest time that a client with work had none of the device.
    pub(crate) fn longest_wait(&self, client: usize) -> Nanos {
        self.clients[client].longest_wait
    }

    /// Forgets how long anybody has waited so far.
    pub(crate) fn forget_waits(&mut self) {
        for client in &mut self.clients {
            client.longest_wait = 0;
        }
    }

    /// The response time that 99 of 100 requests keep.
    pub(crate) fn p99(&self, client: usize) -> Nanos {
        let mut responses = self.clients[client].responses.clone();
        responses.sort_unstable();
        responses[(responses.len() * 99 / 100).min(responses.len() - 1)]
    }

    /// Lets `length` pass.
    pub(crate) fn run(&mut self, length: Nanos) {
        let end = self.now + length;
        while self.now < end {
            self.step(end);
        }
    }

    fn step(&mut self, end: Nanos) {
        self.submit();
        let mut next = end;
        if let Some(at) = self.arbiter.next_decision() {
            next = next.min(at.max(self.now + 1));
        }
        let any_held = self.clients.iter().any(|client| client.told_waiting);
        let any_may = self.arbiter.leases().any(|(_, lease)| lease != Lease::Hold);
        assert!(
            !any_held || any_may || self.arbiter.next_decision().is_some(),
            "somebody waits, nobody may, and nothing will change at {}{}",
            self.now,
            self.timeline()
        );
        for (index, client) in self.clients.iter().enumerate() {
            if let Load::Requests { .. } = client.load {
                next = next.min(client.next_request.max(self.now + 1));
            }
            if let Load::Bursts { on, off, .. } = client.load {
                let into = self.now % (on + off);
                let edge = if into < on {
                    on - into
                } else {
                    on + off - into
                };
                next = next.min(self.now + edge);
            }
            if let Some(since) = client.dry_since {
                next = next.min((since + MARKER_DELAY).max(self.now + 1));
            }
            if let Lease::Until(until) = self.arbiter.lease(ClientId(index as u64)) {
                next = next.min(until.max(self.now + 1));
            }
        }
        self.serve(next);
        self.tell();
    }

    /// The hardware until `next`, or until something happens in it.
    fn serve(&mut self, next: Nanos) {
        let has_work = |clients: &[Client], index: usize| !clients[index].queue.is_empty();
        let is_over = self
            .running
            .is_none_or(|running| !has_work(&self.clients, running) || self.slice_left == 0);
        if is_over && self.switch_left == 0 {
            let count = self.clients.len();
            let from = self.running.map_or(0, |running| running + 1);
            let successor = (0..count)
                .map(|step| (from + step) % count)
                .find(|index| has_work(&self.clients, *index));
            if successor.is_some() && successor != self.running {
                self.switch_left = self.switch;
            }
            if successor.is_some() {
                self.running = successor;
            }
            self.slice_left = self.slice;
        }
        let room = next - self.now;
        if self.switch_left > 0 {
            let step = room.min(self.switch_left);
            self.switch_left -= step;
            self.switching += step;
            self.now += step;
            return;
        }
        let Some(running) = self
            .running
            .filter(|running| has_work(&self.clients, *running))
        else {
            self.now = next;
            return;
        };
        let client = &mut self.clients[running];
        let Some((left, ends)) = client.queue.front_mut() else {
            return;
        };
        let step = room.min(*left).min(self.slice_left);
        *left -= step;
        self.now += step;
        self.slice_left -= step;
        self.busy += step;
        client.served += step;
        client.longest_wait = client
            .longest_wait
            .max(self.now - step - client.last_served);
        client.last_served = self.now;
        if *left == 0 {
            if let Some(arrival) = ends {
                client.responses.push(self.now - *arrival);
            }
            client.queue.pop_front();
            if client.queue.is_empty() {
                client.dry_since = Some(self.now);
            }
        }
    }

    /// What clients do, and what the arbiter hears of it.
    fn submit(&mut self) {
        let now = self.now;
        for index in 0..self.clients.len() {
            let id = ClientId(index as u64);
            let client = &mut self.clients[index];
            client.arrive(now);
            loop {
                let may = match self.arbiter.lease(id) {
                    Lease::Open => true,
                    Lease::Until(until) => now < until,
                    Lease::Hold => false,
                };
                let client = &mut self.clients[index];
                let Some(unit) = client.next_unit(now) else {
                    break;
                };
                if !may {
                    if !client.told_waiting {
                        client.told_waiting = true;
                        self.arbiter.set_waiting(id, true, now);
                        // The answer may be "go on".
                        continue;
                    }
                    break;
                }
                if !client.has_room(unit.0) {
                    break;
                }
                if client.queue.is_empty() && !client.told_waiting {
                    // It had nothing to wait for until now, however long ago the last step was.
                    client.last_served = now;
                }
                client.submit(unit);
                if !client.told_busy {
                    client.told_busy = true;
                    self.arbiter.set_busy(id, true, now);
                }
                let client = &mut self.clients[index];
                if client.told_waiting {
                    client.told_waiting = false;
                    self.arbiter.set_waiting(id, false, now);
                }
            }
            let client = &mut self.clients[index];
            if client.told_waiting && client.next_unit(now).is_none() {
                client.told_waiting = false;
                self.arbiter.set_waiting(id, false, now);
            }
            let client = &mut self.clients[index];
            if !client.told_waiting && client.queue.is_empty() {
                client.last_served = now;
            }
        }
    }

    fn tell(&mut self) {
        for index in 0..self.clients.len() {
            let now = self.now;
            let client = &mut self.clients[index];
            if let Some(since) = client.dry_since
                && now >= since + MARKER_DELAY
            {
                client.dry_since = None;
                if client.queue.is_empty() && client.told_busy {
                    client.told_busy = false;
                    self.arbiter.set_busy(ClientId(index as u64), false, now);
                }
            }
        }
        for (index, client) in self.clients.iter().enumerate() {
            let in_flight = client.queue.iter().map(|(left, _)| left).sum();
            self.arbiter
                .set_in_flight(ClientId(index as u64), in_flight);
        }
        self.arbiter.advance(self.now);
        self.note_leases();
    }
}

impl Client {
    /// Requests that have come.
    fn arrive(&mut self, now: Nanos) {
        if let Load::Requests { period, unit, work } = self.load {
            while self.next_request <= now {
                let arrival = self.next_request;
                let count = (work / unit).max(1);
                for step in 0..count {
                    let ends = (step + 1 == count).then_some(arrival);
                    self.wanted.push_back((unit, ends));
                }
                self.next_request += period;
            }
        }
    }

    fn next_unit(&self, now: Nanos) -> Option<(Nanos, Option<Nanos>)> {
        match self.load {
            Load::Endless { unit } => Some((unit, None)),
            Load::Bursts { unit, on, off } => (now % (on + off) < on).then_some((unit, None)),
            Load::Requests { .. } => self.wanted.front().copied(),
            Load::Idle => None,
        }
    }

    fn has_room(&self, unit: Nanos) -> bool {
        let in_flight: Nanos = self.queue.iter().map(|(left, _)| left).sum();
        self.queue.len() < 2 || in_flight + unit <= self.backlog
    }

    fn submit(&mut self, unit: (Nanos, Option<Nanos>)) {
        self.queue.push_back(unit);
        self.dry_since = None;
        if let Load::Requests { .. } = self.load {
            self.wanted.pop_front();
        }
    }
}
