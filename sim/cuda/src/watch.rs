//! What streams wait for in memory: a word that somebody else sets.
//!
//! The word may be set by another stream, by the host itself, or by another process that has the same
//! memory; nobody tells when. So a thread reads it again and again, but only while the device stands at
//! an operation that waits for it, and the longer it waits the more rarely. It is not the thread that runs
//! host functions: one of those may itself wait for what a stream writes behind such a wait.
//!
//! Lock order: `waiting` alone.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ffi::driver::CUresult;
use parking_lot::{Condvar, Mutex};
use sim::client::Compute;
use sim::proto::Command;

use crate::deferred::start_thread;
use crate::guard::{Answer, INVALID_VALUE};
use crate::link::Link;
use crate::ranges::Kind;
use crate::state::{self, Driver};
use crate::stream::Stream;

/// First pause between two looks at memory.
const SHORTEST: Duration = Duration::from_micros(20);

/// Longest pause between two looks at memory that a stream stands at.
///
/// 200 µs: five thousand looks a second cost a percent of a core.
const LONGEST: Duration = Duration::from_micros(200);

/// Longest sleep while no stream has come to its wait; changes wake earlier.
const AHEAD: Duration = Duration::from_millis(100);

/// How a word is compared with a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Test {
    /// It is at least the value, in the cyclic sense: their difference is not negative.
    AtLeast,
    /// It is the value.
    Equal,
    /// They have a bit in common.
    And,
    /// There is a bit that neither has.
    Nor,
}

/// A word in memory that a stream waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Condition {
    place: Word,
    value: u64,
    test: Test,
}

/// Where a word lies, and how long it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Word {
    /// Four bytes.
    Short(*mut u32),
    /// Eight bytes.
    Long(*mut u64),
}

// SAFETY: the place is read and written with atomic operations only; that it lives as long as it is used
// is the host's duty by the CUDA contract.
unsafe impl Send for Word {}
// SAFETY: as above.
unsafe impl Sync for Word {}

impl Word {
    /// The word at an address of the host's.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for an address that is not a multiple of its size, or at which the
    /// device reaches nothing.
    pub(crate) fn at(
        driver: &Driver,
        address: u64,
        is_long: bool,
        takes_managed: bool,
    ) -> Answer<Self> {
        let bytes = if is_long { 8 } else { 4 };
        let known = driver.ranges.find(address);
        let is_fit = known.is_some_and(|range| takes_managed || range.kind != Kind::Managed);
        if !is_fit || !address.is_multiple_of(bytes) {
            return Err(INVALID_VALUE);
        }
        let place = driver.ranges.resolve(address, bytes)?;
        match place.pieces.as_slice() {
            [piece] if is_long => Ok(Self::Long(piece.at.cast())),
            [piece] => Ok(Self::Short(piece.at.cast())),
            _ => Err(INVALID_VALUE),
        }
    }

    /// Acquire; pairs with [`Word::write`], here or in another process.
    fn read(self) -> u64 {
        match self {
            Self::Short(at) => {
                // SAFETY: aligned and found in the table of allocations when it was submitted.
                let word = unsafe { AtomicU32::from_ptr(at) };
                u64::from(word.load(Ordering::Acquire))
            }
            Self::Long(at) => {
                // SAFETY: as above.
                let word = unsafe { AtomicU64::from_ptr(at) };
                word.load(Ordering::Acquire)
            }
        }
    }

    /// Writes a value; everything that the stream has written before is seen by whoever sees it.
    pub(crate) fn write(self, value: u64) {
        match self {
            Self::Short(at) => {
                // SAFETY: aligned and found in the table of allocations when it was submitted.
                let word = unsafe { AtomicU32::from_ptr(at) };
                word.store(value as u32, Ordering::Release);
            }
            Self::Long(at) => {
                // SAFETY: as above.
                let word = unsafe { AtomicU64::from_ptr(at) };
                word.store(value, Ordering::Release);
            }
        }
    }
}

impl Condition {
    /// The word compared with a value of its size.
    pub(crate) fn new(place: Word, value: u64, test: Test) -> Self {
        Self { place, value, test }
    }

    /// The word of four bytes at `address` is at least `value`.
    ///
    /// # Errors
    /// As [`Word::at`].
    pub(crate) fn at_least(driver: &Driver, address: u64, value: u32) -> Answer<Self> {
        let place = Word::at(driver, address, false, true)?;
        Ok(Self::new(place, u64::from(value), Test::AtLeast))
    }

    /// Whether it holds now.
    pub(crate) fn holds(&self) -> bool {
        let (word, value) = (self.place.read(), self.value);
        let is_long = matches!(self.place, Word::Long(_));
        match self.test {
            Test::AtLeast if is_long => word.wrapping_sub(value) as i64 >= 0,
            Test::AtLeast => (word as u32).wrapping_sub(value as u32) as i32 >= 0,
            Test::Equal => word == value,
            Test::And => word & value != 0,
            Test::Nor if is_long => !(word | value) != 0,
            Test::Nor => !((word | value) as u32) != 0,
        }
    }
}

/// By lane, in the order of their operations.
type Waiting = HashMap<u32, VecDeque<(u64, Condition)>>;

/// See the module.
pub(crate) struct Watches {
    waiting: Mutex<Waiting>,
    woken: Condvar,
    is_running: AtomicBool,
}

impl Watches {
    /// Nobody waits yet, and there is no thread.
    pub(crate) fn new() -> Self {
        Self {
            waiting: Mutex::new(HashMap::new()),
            woken: Condvar::new(),
            is_running: AtomicBool::new(false),
        }
    }

    /// Forgets the waits of a lane whose context has ended.
    pub(crate) fn forget(&self, slot: u32) {
        self.waiting.lock().remove(&slot);
    }

    fn start(self: &Arc<Self>) -> Answer {
        if self.is_running.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let own = Arc::clone(self);
        start_thread("sluice-sim-wait", move || own.run()).map_err(|_| {
            self.is_running.store(false, Ordering::Release);
            CUresult::CUDA_ERROR_OPERATING_SYSTEM
        })
    }

    fn run(&self) {
        let mut pause = SHORTEST;
        loop {
            let mut waiting = self.waiting.lock();
            while waiting.is_empty() {
                self.woken.wait(&mut waiting);
                pause = SHORTEST;
            }
            drop(waiting);
            let Ok(driver) = state::driver() else { return };
            let Link::Gpu(compute, _) = &driver.link else {
                return;
            };
            // What streams of this process have written is there before it is looked for.
            driver.deferred.settle(&driver.link);
            if self.pass(compute) {
                pause = SHORTEST;
                continue;
            }
            let is_reached = self.look(compute, |_| true).is_some();
            let limit = if is_reached { pause } else { AHEAD };
            let has_news = || self.look(compute, Condition::holds).is_some();
            driver.link.wait_for_change(has_news, limit);
            pause = (pause * 2).min(LONGEST);
            if pause == LONGEST && !driver.link.is_alive() {
                // Nothing will be done any more; the host's calls say so.
                std::thread::sleep(AHEAD);
            }
        }
    }

    /// Ends every wait that is over. Says whether there was one.
    fn pass(&self, compute: &Compute) -> bool {
        let mut has_passed = false;
        while let Some((slot, sequence)) = self.look(compute, Condition::holds) {
            let mut waiting = self.waiting.lock();
            if let Some(lane) = waiting.get_mut(&slot) {
                lane.pop_front();
                if lane.is_empty() {
                    waiting.remove(&slot);
                }
            }
            drop(waiting);
            // Should the device be gone, everybody who waits learns it by himself.
            let _ = compute.host_done(slot, sequence);
            has_passed = true;
        }
        has_passed
    }

    /// A wait that a stream stands at and that `fits`.
    fn look(&self, compute: &Compute, fits: impl Fn(&Condition) -> bool) -> Option<(u32, u64)> {
        let lanes = &compute.page().streams;
        let waiting = self.waiting.lock();
        waiting.iter().find_map(|(slot, lane)| {
            let (sequence, condition) = lane.front()?;
            let lane = lanes.get(*slot as usize)?;
            // Acquire; pairs with the Release in `gpu`.
            let is_reached = lane.host_ready.load(Ordering::Acquire) >= *sequence;
            (is_reached && fits(condition)).then_some((*slot, *sequence))
        })
    }
}

/// Submits an operation that ends when a condition holds.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` in null mode, where nothing takes time.
pub(crate) fn submit(
    driver: &'static Driver,
    stream: &Stream,
    condition: Condition,
    command: Command,
) -> Answer {
    if let Link::Null(_) = driver.link {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    driver.watches.start()?;
    let sequence = stream.submit(driver, command)?;
    let mut waiting = driver.watches.waiting.lock();
    let lane = waiting.entry(stream.lane.slot).or_default();
    let at = lane.partition_point(|(earlier, _)| *earlier < sequence);
    lane.insert(at, (sequence, condition));
    drop(waiting);
    driver.watches.woken.notify_one();
    Ok(())
}

/// Sleeps until a condition holds that streams of this process or of others bring about.
///
/// # Errors
/// `CUDA_ERROR_DEVICE_UNAVAILABLE` if the device behind goes away meanwhile.
pub(crate) fn wait(driver: &Driver, condition: Condition) -> Answer {
    let mut pause = SHORTEST;
    loop {
        driver.settle();
        if condition.holds() {
            return Ok(());
        }
        if !driver.link.is_alive() {
            return Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE);
        }
        driver.link.wait_for_change(|| condition.holds(), pause);
        pause = (pause * 2).min(LONGEST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(word: u32, value: u32, test: Test) -> bool {
        let mut word = word;
        Condition::new(Word::Short(&raw mut word), u64::from(value), test).holds()
    }

    fn holds_long(word: u64, value: u64, test: Test) -> bool {
        let mut word = word;
        Condition::new(Word::Long(&raw mut word), value, test).holds()
    }

    #[test]
    fn words_are_compared_as_the_interface_says() {
        assert!(holds(5, 5, Test::AtLeast) && holds(6, 5, Test::AtLeast));
        assert!(!holds(4, 5, Test::AtLeast));
        // Cyclic: what has gone round once is later, not earlier.
        assert!(holds(3, u32::MAX, Test::AtLeast) && !holds(u32::MAX, 3, Test::AtLeast));
        assert!(holds_long(3, u64::MAX, Test::AtLeast));
        assert!(!holds_long(1 << 32, (1 << 32) + 1, Test::AtLeast));
        assert!(holds(7, 7, Test::Equal) && !holds(7, 8, Test::Equal));
        assert!(holds(6, 2, Test::And) && !holds(6, 9, Test::And));
        assert!(holds(1, 2, Test::Nor) && !holds(0xffff_0000, 0xffff, Test::Nor));
        assert!(holds_long(0xffff_0000, 0xffff, Test::Nor));
        assert!(!holds_long(u64::MAX - 1, 1, Test::Nor));
    }
}
