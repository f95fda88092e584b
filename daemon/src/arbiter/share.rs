//! What a client is owed, and what it has had: terms, virtual time, a sliding window.

use super::{MILLISECOND, Nanos};
use serde::{Deserialize, Serialize};

/// What kind of work a client does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Class {
    /// Requests that somebody waits for: prompt, as long as its budget lasts.
    Latency,
    /// Everything else.
    #[default]
    Standard,
    /// Work that nobody waits for: long slices.
    Batch,
}

/// A client's terms on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// Time that it is owed while it has work, in permille of the device.
    pub guarantee_permille: u32,
    /// Time that it may have at most, in permille; 1000 and more is "all of it".
    pub ceiling_permille: u32,
    /// What is left is shared by weight: 1..=10000, as in cgroup v2.
    pub weight: u32,
    /// See [`Class`].
    pub class: Class,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            guarantee_permille: 0,
            ceiling_permille: 1000,
            weight: 100,
            class: Class::Standard,
        }
    }
}

/// Time divided by weight: clients that have had the same of it have had their shares.
///
/// In nanoseconds at the largest weight, 10,000, so that a nanosecond at any weight is a whole number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct VirtualTime(u128);

/// The largest weight.
const UNIT_WEIGHT: u128 = 10_000;

impl VirtualTime {
    /// What `time` is to a client of `weight`; rounds up, so that nothing is free.
    pub(super) fn of(time: Nanos, weight: u32) -> Self {
        Self((u128::from(time) * UNIT_WEIGHT).div_ceil(u128::from(weight.max(1))))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }

    pub(super) fn minus(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// The mean by weight; `None` of nobody.
    pub(super) fn mean(all: impl Iterator<Item = (Self, u32)>) -> Option<Self> {
        let (sum, weights) = all.fold((0u128, 0u128), |(sum, weights), (time, weight)| {
            let weight = u128::from(weight.max(1));
            (
                sum.saturating_add(time.0.saturating_mul(weight)),
                weights + weight,
            )
        });
        // Rounded up: one who is exactly at the mean is not ahead of it.
        (weights > 0).then(|| Self(sum.div_ceil(weights)))
    }
}

/// Buckets of the window.
const BUCKETS: usize = 20;
/// Length of a bucket.
const BUCKET: Nanos = 50 * MILLISECOND;

/// Time used in the last second, in steps of 50 ms.
#[derive(Debug)]
pub(super) struct Meter {
    used: [Nanos; BUCKETS],
    sum: Nanos,
    /// The present bucket, counted from time 0.
    bucket: u64,
    born: Nanos,
    now: Nanos,
}

impl Meter {
    pub(super) fn new(now: Nanos) -> Self {
        Self {
            used: [0; BUCKETS],
            sum: 0,
            bucket: now / BUCKET,
            born: now,
            now,
        }
    }

    /// Adds `time` used just before `now`.
    pub(super) fn add(&mut self, time: Nanos, now: Nanos) {
        self.slide(now);
        if let Some(place) = self.used.get_mut(self.bucket as usize % BUCKETS) {
            *place += time;
            self.sum += time;
        }
    }

    /// Takes back time that was added too much, from the present bucket as far as it has any.
    pub(super) fn take_back(&mut self, time: Nanos) {
        if let Some(place) = self.used.get_mut(self.bucket as usize % BUCKETS) {
            let back = time.min(*place);
            *place -= back;
            self.sum -= back;
        }
    }

    /// Forgets what is older than the window at `now`.
    pub(super) fn slide(&mut self, now: Nanos) {
        self.now = self.now.max(now);
        let bucket = now / BUCKET;
        let steps = bucket.saturating_sub(self.bucket).min(BUCKETS as u64);
        for step in 1..=steps {
            if let Some(place) = self.used.get_mut((self.bucket + step) as usize % BUCKETS) {
                self.sum -= *place;
                *place = 0;
            }
        }
        self.bucket = self.bucket.max(bucket);
    }

    /// The used part of the window, in permille, rounded up; of at least a tenth of a second.
    pub(super) fn permille(&self) -> u32 {
        let into = self.now % BUCKET;
        let whole = (BUCKETS as u64 - 1) * BUCKET + into;
        let window = whole.min((self.now - self.born).max(2 * BUCKET));
        (u128::from(self.sum) * 1000).div_ceil(u128::from(window.max(1))) as u32
    }

    /// When the next change without use comes.
    pub(super) fn next_slide(&self) -> Nanos {
        // Also within a bucket the window grows, and the part shrinks: look again soon.
        self.now + MILLISECOND
    }
}
