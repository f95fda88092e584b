//! The wait for the lease.

use crate::device::{self, Index};
use crate::session::{self, Seat};
use ffi::wire::{DeviceMoved, DeviceWork, Lease, UsageSlot, lease_state};
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Longest wait of one launch: then it goes through, and what it takes is owed.
///
/// 2 s: longer than any turn of others that the daemon plans, unless it says so; a program whose threads wait
/// for each other in ways that we cannot see gets on after it.
const LONGEST: Duration = Duration::from_secs(2);

/// How often a waiting thread looks whether the daemon still lives.
const LOOK: Duration = Duration::from_millis(50);

/// This process on one device.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) seat: Seat,
    pub(super) device: Index,
}

impl Place {
    /// Whether launches on the device have to look at the lease.
    pub(super) fn is_gated(self) -> bool {
        let gated = self.seat.pages.control.gated.load(Ordering::Relaxed);
        gated & (1 << self.device.get()) != 0
    }

    pub(super) fn lease(self) -> Option<&'static Lease> {
        device::control(self.seat.pages, self.device).map(|control| &control.lease)
    }

    pub(super) fn work(self) -> Option<&'static DeviceWork> {
        let slot: &UsageSlot = self.seat.pages.usage.slots.get(self.seat.slot as usize)?;
        slot.work.get(self.device.get())
    }

    /// Where copies and fills are counted.
    pub(super) fn moved(self) -> Option<&'static DeviceMoved> {
        let slot: &UsageSlot = self.seat.pages.usage.slots.get(self.seat.slot as usize)?;
        slot.moved.get(self.device.get())
    }

    /// What the device would have given the tenant by `at_ns`, a time not long ago, had it always had work;
    /// `None`: it is being written.
    pub(super) fn offered_ns(self, at_ns: u64) -> Option<u64> {
        let lease = self.lease()?;
        for _ in 0..4 {
            // Acquire; pairs with the Releases in the daemon's `Control::set_lease`.
            let sequence = lease.sequence.load(Ordering::Acquire);
            let rate_ppm = lease.rate_ppm.load(Ordering::Relaxed);
            let since_ns = lease.offered_at_ns.load(Ordering::Relaxed);
            let offered_ns = lease.offered_ns.load(Ordering::Relaxed);
            fence(Ordering::Acquire);
            if sequence % 2 == 0 && lease.sequence.load(Ordering::Relaxed) == sequence {
                let passed = i128::from(at_ns) - i128::from(since_ns);
                let more = passed * i128::from(rate_ppm) / 1_000_000;
                return u64::try_from(i128::from(offered_ns) + more).ok();
            }
        }
        None
    }

    /// The lease as one word: equal words are one turn.
    pub(super) fn word(self) -> u32 {
        // Acquire; pairs with the Release in the daemon's `Control::set_lease`.
        self.lease()
            .map_or(0, |lease| lease.word.load(Ordering::Acquire))
    }
}

fn is_open(word: u32) -> bool {
    matches!(
        word & lease_state::MASK,
        lease_state::OPEN | lease_state::LEASED | lease_state::EXEMPT
    )
}

/// How long one launch has waited, which is not for ever.
#[derive(Default)]
pub(super) struct Patience {
    since: Option<Instant>,
}

impl Patience {
    /// The launch waits, from now on if it has not before.
    pub(super) fn begin(&mut self, work: &DeviceWork) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            work.held.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn is_over(&self, place: Place) -> bool {
        self.since.is_some_and(|since| {
            let said_ms = place
                .lease()
                .map_or(0, |lease| lease.longest_wait_ms.load(Ordering::Relaxed));
            let longest = match said_ms {
                0 => LONGEST,
                ms => Duration::from_millis(ms.into()),
            };
            since.elapsed() >= longest
        })
    }
}

/// A turn that has too little left for a unit.
pub(super) struct Spent {
    /// The turn.
    pub(super) word: u32,
    /// When what is in flight is predicted to have ended: then the unit may go as the turn's first.
    pub(super) rest: Duration,
}

/// Returns when it is this tenant's turn, or has been another's for too long, or nobody says whose it is.
#[inline]
pub(super) fn wait(place: Place, patience: &mut Patience) {
    if !is_open(place.word()) {
        wait_long(place, patience, None);
    }
}

/// Returns when another turn has begun, or what is in flight should have ended.
#[cold]
pub(super) fn wait_for_next(place: Place, spent: Spent, patience: &mut Patience) {
    wait_long(place, patience, Some(spent));
}

#[cold]
fn wait_long(place: Place, patience: &mut Patience, spent: Option<Spent>) {
    if !session::is_beating(place.seat.pages.control) {
        return;
    }
    let Some(work) = place.work() else {
        return;
    };
    let begin = Instant::now();
    patience.begin(work);
    work.waiting.fetch_add(1, Ordering::Relaxed);
    session::ring();
    // Anew each time: the next daemon gives the process another page.
    while let Some(seat) = session::seat() {
        let place = Place { seat, ..place };
        let (Some(lease), word) = (place.lease(), place.word()) else {
            break;
        };
        let is_paused = word & lease_state::MASK == lease_state::PAUSED;
        let left = match &spent {
            None if is_open(word) => break,
            None => LOOK,
            Some(spent) if spent.word != word => break,
            Some(spent) => spent.rest.saturating_sub(begin.elapsed()).min(LOOK),
        };
        let is_over = !place.is_gated()
            || !session::is_beating(seat.pages.control)
            || left.is_zero()
            || (!is_paused && patience.is_over(place));
        if is_over {
            break;
        }
        sleep(lease, word, left);
    }
    work.waiting.fetch_sub(1, Ordering::Relaxed);
}

/// Sleeps until the lease changes, or `limit` has passed, which is below a second.
pub(super) fn sleep_at_most(place: Place, limit: Duration) {
    if let Some(lease) = place.lease() {
        sleep(lease, place.word(), limit);
    }
}

/// Sleeps until the lease changes from `word`, at most `limit`, which is below a second.
fn sleep(lease: &Lease, word: u32, limit: Duration) {
    let limit = libc::timespec {
        tv_sec: 0,
        tv_nsec: i64::from(limit.subsec_nanos()),
    };
    // SAFETY: the word lies in a page that stays mapped; the time is on the stack. Not a private futex:
    // the daemon wakes it.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            lease.word.as_ptr(),
            libc::FUTEX_WAIT,
            word,
            &raw const limit,
        )
    };
}
