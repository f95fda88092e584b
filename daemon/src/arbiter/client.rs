//! One client, and what is charged to it.

use super::share::{Meter, Terms, VirtualTime};
use super::{Lease, Nanos};

/// What is known of a client.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) terms: Terms,
    pub(super) lease: Lease,
    /// Has work in flight.
    pub(super) is_busy: bool,
    /// Has work that it may not submit.
    pub(super) is_waiting: bool,
    /// Since when it has had work without an end, and what it was charged since.
    pub(super) backlog: Option<Backlog>,
    pub(super) virtual_time: VirtualTime,
    pub(super) meter: Meter,
    /// Charged in the present latency period.
    pub(super) spent_of_budget: Nanos,
    /// When its work last ended.
    pub(super) quiet_since: Nanos,
    /// Turns in a row that it did not take up, and until when it gets no other.
    pub(super) no_shows: u32,
    pub(super) passed_over_until: Nanos,
    /// How long it usually was without work before it had some again: a mean of the last gaps.
    pub(super) usual_gap: Nanos,
    pub(super) charged: Nanos,
    /// What the device would have given it so far, had it always had work.
    pub(super) offered: Nanos,
    /// What its work in flight is predicted to take.
    pub(super) in_flight: Nanos,
    /// What it left running at the end of its turn.
    pub(super) leftover: Option<Leftover>,
}

/// Work that goes on after its client's turn.
#[derive(Debug, Clone, Copy)]
pub(super) struct Leftover {
    pub(super) predicted: Nanos,
    pub(super) charged: Nanos,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Backlog {
    pub(super) since: Nanos,
    pub(super) charged: Nanos,
}

impl Client {
    pub(super) fn is_active(&self) -> bool {
        self.is_busy || self.is_waiting
    }

    /// A gap in its work is over.
    pub(super) fn note_gap(&mut self, gap: Nanos, longest: Nanos) {
        self.usual_gap = (self.usual_gap * 3 + gap.min(longest)) / 4;
    }

    /// Charges time of the present.
    pub(super) fn charge(&mut self, time: Nanos, now: Nanos) {
        if let Some(leftover) = &mut self.leftover {
            leftover.charged += time;
        }
        self.charge_beside(time, now);
    }

    /// Charges what was charged too little.
    pub(super) fn charge_beside(&mut self, time: Nanos, now: Nanos) {
        self.charged += time;
        self.spent_of_budget += time;
        self.virtual_time = self
            .virtual_time
            .plus(VirtualTime::of(time, self.terms.weight));
        if let Some(backlog) = &mut self.backlog {
            backlog.charged += time;
        }
        self.meter.add(time, now);
    }

    /// Takes back what was charged too much.
    pub(super) fn refund(&mut self, time: Nanos) {
        self.charged = self.charged.saturating_sub(time);
        self.spent_of_budget = self.spent_of_budget.saturating_sub(time);
        self.virtual_time = self
            .virtual_time
            .minus(VirtualTime::of(time, self.terms.weight));
        if let Some(backlog) = &mut self.backlog {
            backlog.charged = backlog.charged.saturating_sub(time);
        }
        self.meter.take_back(time);
    }
}
