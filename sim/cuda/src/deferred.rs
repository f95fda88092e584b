//! What this process has to do when the device has got somewhere: move the bytes of copies and
//! fills, and run the host's functions.
//!
//! The device only takes the time of a copy; its bytes are moved here, after the copy's computed end
//! and before anybody can learn of it: every call that finds work done settles first. A thread does
//! the same for those who look at memory without a call; it sleeps unless something is outstanding.
//! Another runs host functions, one at a time, and begins with the first of them: a host function may look
//! at memory that a stream writes meanwhile.
//!
//! Lock order: `moves` or `calls` alone; no lock is held while a host function runs.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use ffi::driver::CUresult;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use parking_lot::{Condvar, Mutex};
use sim::client::Compute;

use crate::guard::Answer;
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
    /// Moves that have not been done.
    outstanding: AtomicUsize,
    numbers: AtomicU64,
    moves: Mutex<VecDeque<Move>>,
    calls: Mutex<Calls>,
    idle: Mutex<()>,
    woken: Condvar,
    called: Condvar,
    does_call: AtomicBool,
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
            called: Condvar::new(),
            does_call: AtomicBool::new(false),
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
    ///
    /// # Errors
    /// What `submit` says; `CUDA_ERROR_OPERATING_SYSTEM` if there is no thread for host functions.
    pub(crate) fn submit_call(
        self: &Arc<Self>,
        slot: u32,
        call: HostCall,
        submit: impl FnOnce() -> Answer<u64>,
    ) -> Answer {
        self.start_calling()?;
        let sequence = submit()?;
        let mut calls = self.calls.lock();
        let waiting = calls.entry(slot).or_default();
        let at = waiting.partition_point(|(earlier, _)| *earlier < sequence);
        waiting.insert(at, (sequence, call));
        drop(calls);
        self.called.notify_one();
        Ok(())
    }

    fn start_calling(self: &Arc<Self>) -> Answer {
        if self.does_call.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        let own = Arc::clone(self);
        start_thread("sluice-sim-host", move || own.run_calls()).map_err(|_| {
            self.does_call.store(false, Ordering::Release);
            CUresult::CUDA_ERROR_OPERATING_SYSTEM
        })
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
        self.calls.lock().remove(&slot);
    }

    /// The next host function that the device waits for.
    fn next_call(&self, compute: &Compute) -> Option<(u32, u64, HostCall)> {
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

    /// Waits for a change and moves what has come due.
    fn work(&self, link: &Link) {
        self.settle(link);
        let has_news = || {
            let moves = self.moves.lock();
            let mut moves = moves.iter();
            moves.any(|waiting| link.done(waiting.slot) >= waiting.sequence)
        };
        if self.outstanding.load(Ordering::Acquire) > 0 {
            wait_for_news(link, has_news);
        }
    }

    /// Runs host functions as the device comes to them.
    fn run_calls(&self) {
        loop {
            let mut calls = self.calls.lock();
            while calls.is_empty() {
                self.called.wait(&mut calls);
            }
            drop(calls);
            let Ok(driver) = state::driver() else { return };
            let Link::Gpu(compute, _) = &driver.link else {
                return;
            };
            while let Some((slot, sequence, call)) = self.next_call(compute) {
                self.settle(&driver.link);
                // SAFETY: the host gave the function to be called once with this argument.
                unsafe { (call.function)(call.argument) };
                // Should the device be gone, everybody who waits learns it by himself.
                let _ = compute.host_done(slot, sequence);
            }
            let has_news = || {
                let calls = self.calls.lock();
                calls.is_empty() || ready_slot(&calls, compute).is_some()
            };
            wait_for_news(&driver.link, has_news);
        }
    }
}

/// Sleeps until something has changed, for a while at most.
fn wait_for_news(link: &Link, has_news: impl Fn() -> bool) {
    link.wait_for_change(has_news, OUTSTANDING);
    if !link.is_alive() {
        // Nothing will be done any more; the host's calls say so.
        std::thread::sleep(OUTSTANDING);
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

/// Starts the thread of deferred work.
pub(crate) fn start(deferred: &Arc<Deferred>) -> io::Result<i32> {
    let deferred = Arc::clone(deferred);
    let (tell, told) = std::sync::mpsc::channel();
    start_thread("sluice-sim", move || {
        // Nobody listens where the start is given up.
        let _ = tell.send(nix::unistd::gettid().as_raw());
        deferred.run();
    })?;
    told.recv().map_err(io::Error::other)
}

/// Starts a thread with every signal blocked: they are the host's.
pub(crate) fn start_thread(name: &str, run: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let mut before = SigSet::empty();
    pthread_sigmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::all()),
        Some(&mut before),
    )?;
    let started = std::thread::Builder::new().name(name.to_owned()).spawn(run);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    started.map(drop)
}
