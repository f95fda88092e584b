//! A ceiling without a daemon: a token bucket, filled at the ceiling's rate, emptied by what launches are
//! predicted to take.
//!
//! The daemon holds a tenant to its ceiling by its lease. When its heartbeat is old, launches no longer look
//! at the lease, and who has a ceiling goes on at that rate by itself, as the control page last said it.
//! Processes of one tenant do not speak to each other: each takes an equal part of the rate. Nobody who
//! has no ceiling is slowed.

use super::turn::{self, Patience, Place};
use crate::session;
use ffi::wire::{MAX_DEVICES, slot_state};
use parking_lot::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What may be used at once, in nanoseconds of the device's time.
///
/// 10 ms: a slice, as with a daemon.
const BURST_NS: u64 = 10_000_000;

/// Once empty, it fills up to here before anything goes: work comes in bursts, as it does in turns, since what
/// a lone kernel takes is measured with all that is around it.
const REFILLED_NS: i64 = BURST_NS as i64 / 2;

/// How often it is looked at how many processes share the rate.
const COUNT_EVERY_NS: u64 = 100_000_000;

/// Longest sleep before it is looked again whether a daemon is there.
const LOOK_NS: u64 = 50_000_000;

/// The whole of a device, in permille.
const WHOLE: u64 = 1000;

/// What there is to use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Bucket {
    /// Filled up to this time of the monotonic clock.
    filled_ns: u64,
    /// May be below zero: what was used is owed.
    level_ns: i64,
    /// Whether it was empty and is not [`REFILLED_NS`] again.
    is_refilling: bool,
    /// Processes that share the rate, and when they were counted.
    sharers: u64,
    counted_ns: u64,
}

/// `None`: a daemon is there, or was when somebody last looked.
static BUCKETS: [Mutex<Option<Bucket>>; MAX_DEVICES] = [const { Mutex::new(None) }; MAX_DEVICES];

impl Bucket {
    /// A full one.
    fn new(now_ns: u64) -> Self {
        Self {
            filled_ns: now_ns,
            level_ns: BURST_NS as i64,
            is_refilling: false,
            sharers: 1,
            counted_ns: 0,
        }
    }

    /// Fills it up to `now_ns`, at `permille` of the device divided by the sharers.
    fn fill(&mut self, now_ns: u64, permille: u64) {
        let passed_ns = now_ns.saturating_sub(self.filled_ns);
        // Below a nanosecond's worth nothing is filled, and no time is lost.
        let more =
            u128::from(passed_ns) * u128::from(permille) / u128::from(WHOLE * self.sharers.max(1));
        if more > 0 {
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            self.level_ns = self.level_ns.saturating_add(more).min(BURST_NS as i64);
            self.filled_ns = now_ns;
        }
        self.is_refilling &= self.level_ns < REFILLED_NS;
    }

    /// Uses some of it, or all and more.
    fn take(&mut self, ns: u64) {
        let taken = i64::try_from(ns).unwrap_or(i64::MAX);
        self.level_ns = self.level_ns.saturating_sub(taken);
        self.is_refilling |= self.level_ns <= 0;
    }

    /// How long it takes until something can be used; zero: now.
    fn wait_ns(&self, permille: u64) -> u64 {
        if !self.is_refilling {
            return 0;
        }
        let missing = REFILLED_NS.saturating_sub(self.level_ns);
        let missing = u64::try_from(missing).unwrap_or(0).max(1);
        missing.saturating_mul(WHOLE * self.sharers.max(1)) / permille.max(1)
    }
}

/// Returns when the tenant's ceiling lets a launch through; at once with a daemon or without a ceiling.
#[inline]
pub(super) fn wait(place: Place, patience: &mut Patience) {
    if ceiling(place).is_some() {
        wait_long(place, patience);
    }
}

/// What a launch is predicted to take.
pub(super) fn spend(place: Place, predicted_ns: u64) {
    if ceiling(place).is_none() {
        return;
    }
    if let Some(bucket) = BUCKETS.get(place.device.get())
        && let Some(bucket) = bucket.lock().as_mut()
    {
        bucket.take(predicted_ns);
    }
}

/// The last ceiling, in permille, where it is one.
fn ceiling(place: Place) -> Option<u64> {
    let permille = u64::from(place.lease()?.ceiling_permille.load(Ordering::Relaxed));
    (1..WHOLE).contains(&permille).then_some(permille)
}

fn wait_long(place: Place, patience: &mut Patience) {
    let Some(bucket) = BUCKETS.get(place.device.get()) else {
        return;
    };
    let mut is_counted = false;
    // Anew each time: the next daemon gives the process another page.
    while let Some(seat) = session::seat() {
        let place = Place { seat, ..place };
        let (Some(permille), Some(work)) = (ceiling(place), place.work()) else {
            return;
        };
        if session::is_beating(seat.pages.control) {
            *bucket.lock() = None;
            break;
        }
        let now_ns = session::monotonic_ns();
        let wait_ns = {
            let mut bucket = bucket.lock();
            let bucket = bucket.get_or_insert_with(|| Bucket::new(now_ns));
            if now_ns.saturating_sub(bucket.counted_ns) >= COUNT_EVERY_NS {
                bucket.sharers = sharers(place);
                bucket.counted_ns = now_ns;
            }
            bucket.fill(now_ns, permille);
            bucket.wait_ns(permille)
        };
        if wait_ns == 0 || patience.is_over(place) {
            break;
        }
        if !is_counted {
            is_counted = true;
            patience.begin(work);
            work.waiting.fetch_add(1, Ordering::Relaxed);
        }
        turn::sleep_at_most(place, Duration::from_nanos(wait_ns.min(LOOK_NS)));
    }
    if is_counted && let Some(work) = place.work() {
        work.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Processes of the tenant that have launched something on the device.
fn sharers(place: Place) -> u64 {
    let slots = place.seat.pages.usage.slots.iter();
    let launching = slots.filter(|slot| {
        let is_live = slot.header.state.load(Ordering::Relaxed) == slot_state::LIVE;
        let work = slot.work.get(place.device.get());
        is_live && work.is_some_and(|work| work.launches.load(Ordering::Relaxed) > 0)
    });
    launching.count().max(1) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// What is used in `length_ns` by who launches units of `unit_ns` whenever it may.
    fn used(permille: u64, sharers: u64, unit_ns: u64, length_ns: u64) -> u64 {
        let mut bucket = Bucket {
            sharers,
            ..Bucket::new(0)
        };
        let (mut now_ns, mut used_ns) = (0, 0);
        while now_ns < length_ns {
            bucket.fill(now_ns, permille);
            match bucket.wait_ns(permille) {
                0 => {
                    bucket.take(unit_ns);
                    used_ns += unit_ns;
                    // A launch takes a moment.
                    now_ns += 1_000;
                }
                wait_ns => now_ns += wait_ns,
            }
        }
        used_ns
    }

    #[test]
    fn whatever_the_length_of_units_the_rate_is_the_ceiling() {
        for (permille, unit_ns) in [(300, 50_000), (300, 5 * MS), (50, 40 * MS), (999, MS)] {
            let used_ns = used(permille, 1, unit_ns, 10_000 * MS);
            let owed_ns = 10_000 * MS * permille / WHOLE;
            let slack_ns = BURST_NS + 2 * unit_ns;
            assert!(
                used_ns.abs_diff(owed_ns) <= slack_ns,
                "{permille} {unit_ns}: {used_ns}"
            );
        }
    }

    #[test]
    fn processes_of_one_tenant_take_equal_parts_of_the_rate() {
        let used_ns = used(300, 3, MS, 10_000 * MS);
        assert!(
            used_ns.abs_diff(1_000 * MS) <= BURST_NS + 2 * MS,
            "{used_ns}"
        );
    }

    #[test]
    fn what_is_not_used_is_not_saved_beyond_the_burst() {
        let mut bucket = Bucket::new(0);
        bucket.fill(60_000 * MS, 500);
        assert_eq!(bucket.level_ns, BURST_NS as i64);
    }
}
