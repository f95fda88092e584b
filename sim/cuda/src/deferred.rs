//! What this process has to do when the device has got somewhere: move the bytes of copies and
//! fills, and run the host's functions.
//!
//! The device only takes the time of a copy; its bytes are moved here, after the copy's computed end
//! and before anybody can learn of it: every call that finds work done settles first. A thread does
//! the same for those who look at memory without a call, and runs host functions, one at a time.
//! It sleeps unless something is outstanding.
//!
//! Lock order: `moves` or `calls` alone; no lock is held while a host function runs.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use parking_lot::{Condvar, Mutex};
use sim::client::Compute;

use crate::link::Link;
use crate::state;

/// Longest sleep while something is outstanding; changes wake earlier.
const OUTSTANDING: Duration = Duration::from_millis(100);

/// Bytes to be moved, or anything else to be done at a stream's operation.
type Action = Box<dyn FnOnce() + Send>;

struct Move {
    number: u64,
    slot: u32,
    /// `u64::MAX` until the operation has been submitted.
    sequence: u64,
    action: Action,
}

/// By lane, in the order of their operations.
type Calls = HashMap<u32, VecDeque<(u64, HostCall)>>;

/// A function of the host's with its argument.
#[derive(Clone, Copy)]
pub(crate) struct HostCall {
    /// What to call.
    pub(crate) function: unsafe extern "C" fn(*mut c_void),
    /// What to hand over.
    pub(crate) argument: *mut c_void,
}

// SAFETY: the host gave function and argument to be used on a thread of the library's.
unsafe impl Send for HostCall {}
// SAFETY: as above.
unsafe impl Sync for HostCall {}

/// See the module.
pub(crate) struct Deferred {
    outstanding: AtomicUsize,
    numbers: AtomicU64,
    moves: Mutex<VecDeque<Move>>,
    calls: Mutex<Calls>,
    idle: Mutex<()>,
    woken: Condvar,
}

impl Deferred {
    /// Nothing to do yet.
    pub(crate) fn new() -> Self {
        Self {
            outstanding: AtomicUsize::new(0),
            numbers: AtomicU64::new(0),
            moves: Mutex::new(VecDeque::new()),
            calls: Mutex::new(HashMap::new()),
            idle: Mutex::new(()),
            woken: Condvar::new(),
        }
    }

    /// Submits through `submit`, which yields the operation's number, and has `action` done when
    /// the device has got there; in the order of these calls among what is done.
    ///
    /// No lock is held while `submit` runs: it may wait for the device, and the device for us.
    pub(crate) fn submit_move<E>(
        &self,
        slot: u32,
        action: Action,
        submit: impl FnOnce() -> Result<u64, E>,
    ) -> Result<u64, E> {
        // Counted before anybody can do it: else its end would take another's count away, and
        // whoever waits for that other would not look.
        self.outstanding.fetch_add(1, Ordering::SeqCst);
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        self.moves.lock().push_back(Move {
            number,
            slot,
            sequence: u64::MAX,
            action,
        });
        let submitted = submit();
        let mut moves = self.moves.lock();
        match &submitted {
            Ok(sequence) => {
                let own = moves.iter_mut().find(|waiting| waiting.number == number);
                if let Some(own) = own {
                    own.sequence = *sequence;
                }
            }
            Err(_) => {
                moves.retain(|waiting| waiting.number != number);
                self.outstanding.fetch_sub(1, Ordering::AcqRel);
            }
        }
        drop(moves);
        self.wake();
        submitted
    }

    /// As [`Deferred::submit_move`], for a function of the host's.
    pub(crate) fn submit_call<E>(
        &self,
        slot: u32,
        call: HostCall,
        submit: impl FnOnce() -> Result<u64, E>,
    ) -> Result<(), E> {
        let sequence = submit()?;
        self.outstanding.fetch_add(1, Ordering::SeqCst);
        let mut calls = self.calls.lock();
        let waiting = calls.entry(slot).or_default();
        let at = waiting.partition_point(|(earlier, _)| *earlier < sequence);
        waiting.insert(at, (sequence, call));
        drop(calls);
        self.wake();
        Ok(())
    }

    fn wake(&self) {
        let _idle = self.idle.lock();
        self.woken.notify_one();
    }

    /// Does every move whose operation is done.
    pub(crate) fn settle(&self, link: &Link) {
        if self.outstanding.load(Ordering::Acquire) == 0 {
            return;
        }
        let mut moves = self.moves.lock();
        // From the back: what a later move depends on is then seen as done whenever that is.
        let mut due: Vec<bool> = moves
            .iter()
            .rev()
            .map(|waiting| link.done(waiting.slot) >= waiting.sequence)
            .collect();
        due.reverse();
        let mut left = VecDeque::new();
        for (waiting, is_due) in moves.drain(..).zip(due) {
            if is_due {
                (waiting.action)();
                self.outstanding.fetch_sub(1, Ordering::AcqRel);
            } else {
                left.push_back(waiting);
            }
        }
        *moves = left;
    }

    /// Forgets the host functions of a lane whose context has ended.
    pub(crate) fn forget(&self, slot: u32) {
        if let Some(gone) = self.calls.lock().remove(&slot) {
            self.outstanding.fetch_sub(gone.len(), Ordering::AcqRel);
        }
    }

    /// The next host function that the device waits for.
    fn next_call(&self, link: &Link) -> Option<(u32, u64, HostCall)> {
        let Link::Gpu(compute, _) = link else {
            return None;
        };
        let mut calls = self.calls.lock();
        let slot = ready_slot(&calls, compute)?;
        let waiting = calls.get_mut(&slot)?;
        let (sequence, call) = waiting.pop_front()?;
        if waiting.is_empty() {
            calls.remove(&slot);
        }
        Some((slot, sequence, call))
    }

    fn run(&self) {
        loop {
            let mut idle = self.idle.lock();
            while self.outstanding.load(Ordering::SeqCst) == 0 {
                self.woken.wait(&mut idle);
            }
            drop(idle);
            let Ok(driver) = state::driver() else {
                // `cuInit` is about to finish; there is nothing to do before that.
                std::thread::sleep(Duration::from_millis(1));
                continue;
            };
            self.work(&driver.link);
        }
    }

    /// Waits for a change and does what has come due.
    fn work(&self, link: &Link) {
        self.settle(link);
        while let Some((slot, sequence, call)) = self.next_call(link) {
            self.settle(link);
            // SAFETY: the host gave the function to be called once with this argument.
            unsafe { (call.function)(call.argument) };
            self.outstanding.fetch_sub(1, Ordering::AcqRel);
            if let Link::Gpu(compute, _) = link {
                // Should the device be gone, everybody who waits learns it by himself.
                let _ = compute.host_done(slot, sequence);
            }
        }
        let has_news = || {
            let is_called = match link {
                Link::Gpu(compute, _) => ready_slot(&self.calls.lock(), compute).is_some(),
                Link::Null(_) => false,
            };
            let moves = self.moves.lock();
            let mut moves = moves.iter();
            is_called || moves.any(|waiting| link.done(waiting.slot) >= waiting.sequence)
        };
        if self.outstanding.load(Ordering::Acquire) > 0 {
            link.wait_for_change(has_news, OUTSTANDING);
            if !link.is_alive() {
                // Nothing will be done any more; the host's calls say so.
                std::thread::sleep(OUTSTANDING);
            }
        }
    }
}

/// A lane whose next host function the device waits for.
fn ready_slot(calls: &Calls, compute: &Compute) -> Option<u32> {
    let lanes = &compute.page().streams;
    calls.iter().find_map(|(slot, waiting)| {
        let ready = lanes
            .get(*slot as usize)?
            .host_ready
            .load(Ordering::Acquire);
        let (first, _) = waiting.front()?;
        (ready >= *first).then_some(*slot)
    })
}

/// Starts the thread of deferred work, with every signal blocked: they are the host's.
pub(crate) fn start(deferred: &Arc<Deferred>) -> io::Result<()> {
    let mut before = SigSet::empty();
    pthread_sigmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::all()),
        Some(&mut before),
    )?;
    let deferred = Arc::clone(deferred);
    let started = std::thread::Builder::new()
        .name("sluice-sim".to_owned())
        .spawn(move || deferred.run());
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    started.map(drop)
}
