//! Work in flight on one device: batches of launches, and their ends.
//!
//! Launches on a stream gather in an *open* batch. It is closed, by a marker, when it is predicted to take
//! [`QUANTUM_NS`], when something in it is not yet known, or when nothing else in flight has a marker. A
//! thread (`sluice-gate`, one for each device, started with the first batch) waits for the oldest marker
//! and takes the batch off. A batch that is still open when everything else has ended (the program stopped
//! launching) counts as ended when its predicted time has passed; nobody records on a stream that its
//! program may have destroyed. A synchronisation that has returned ends what it waited for at once.
//!
//! The lock is never held across a call of the driver that waits for anything, and the thread holds nothing
//! while it waits.

use super::cost::{Costs, Key, Prediction};
use super::marker::{Marker, Spare, exchange_mode};
use super::turn::{Patience, Place, Spent};
use crate::device::Index;
use crate::log;
use crate::pool::Flavour;
use crate::session;
use ffi::driver::{CUcontext, CUstream, CUstreamCaptureMode};
use ffi::wire::{DeviceWork, MAX_DEVICES, lease_state};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Predicted time after which a batch gets its marker.
///
/// 250 µs: a marker costs some microseconds of the GPU's time, 1 to 2 % of it.
const QUANTUM_NS: u64 = 250_000;

/// Launches after which a batch gets its marker, however short they are.
const MOST_LAUNCHES: u32 = 256;

/// Open batches of one device; a program with more streams at once has the oldest counted as ended.
const MOST_OPEN: usize = 64;

/// Longest wait for room, after which the launch goes through.
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// Longest wait for the thread to leave a context that is about to end.
const LEAVING: Duration = Duration::from_secs(10);

/// A batch that had this part of the device, in millionths, had it to itself: that the work before it has
/// ended is noticed a little late.
const CLEAN_PPM: u64 = 900_000;

/// Of batches that begin on an idle stream and whose kernels are known, one of so many is measured.
const MEASURE_EVERY: u32 = 16;

/// Shortest sleep of a launch that waits for room: what waking up costs anyway.
const LEAST_REST_NS: u64 = 20_000;

/// What is presumed of a batch without a marker: a quarter more than predicted, and this.
const PRESUMED_EXTRA_NS: u64 = 100_000;

/// A stream, as something to compare.
///
/// The handle of the per-thread default stream is the same for all threads: the thread goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StreamKey {
    handle: usize,
    flavour: Flavour,
    thread: usize,
}

/// `CU_STREAM_PER_THREAD`.
const PER_THREAD_HANDLE: usize = 2;

impl StreamKey {
    pub(super) fn new(stream: CUstream, flavour: Flavour) -> Self {
        thread_local! {
            static HERE: u8 = const { 0 };
        }
        let handle = stream as usize;
        let is_per_thread =
            handle == PER_THREAD_HANDLE || (handle == 0 && flavour == Flavour::PerThread);
        let thread = if is_per_thread {
            HERE.try_with(|here| std::ptr::from_ref(here) as usize)
                .unwrap_or(0)
        } else {
            0
        };
        // The flavour says nothing of a handle that is a stream's own.
        let flavour = if handle == 0 {
            flavour
        } else {
            Flavour::Legacy
        };
        Self {
            handle,
            flavour,
            thread,
        }
    }

    pub(super) fn handle(self) -> CUstream {
        self.handle as CUstream
    }

    pub(super) fn flavour(self) -> Flavour {
        self.flavour
    }
}

/// Launches of one kind in a batch.
#[derive(Debug, Clone, Copy)]
struct Member {
    key: Key,
    count: u32,
    predicted_ns: u64,
}

/// Launches on one stream that end together, as far as anybody is told.
#[derive(Debug)]
struct Batch {
    id: u64,
    context: usize,
    stream: StreamKey,
    start: Option<Arc<Marker>>,
    end: Option<Arc<Marker>>,
    members: Vec<Member>,
    launches: u32,
    /// Those of them that were never seen before.
    unknown: u32,
    predicted_ns: u64,
    /// When it began at the earliest, and what the device would have given the tenant by then.
    since_ns: u64,
    offered_ns: Option<u64>,
}

// SAFETY: the context is only compared, and markers may go anywhere.
unsafe impl Send for Batch {}

struct State {
    /// With a marker, oldest first.
    closed: VecDeque<Batch>,
    /// Without one.
    open: Vec<Batch>,
    launches: u32,
    /// Those of them that were never seen before.
    unknown: u32,
    predicted_ns: u64,
    /// When something last ended, or the first of what is in flight began.
    progress: Option<Instant>,
    /// When that was, on the clock of the pages, and what the device would have given the tenant by then.
    head_since_ns: u64,
    head_offered_ns: Option<u64>,
    next_id: u64,
    /// Batches that began on an idle stream.
    unmeasured: u32,
    costs: Costs,
    spare: Spare,
    /// The context in which the thread waits for a marker.
    visited: Option<usize>,
    counters: Counters,
    place: Option<Place>,
}

/// What the usage page is told.
#[derive(Debug, Default, Clone, Copy)]
struct Counters {
    submitted_ns: u64,
    retired_ns: u64,
    launches: u64,
    longest_ns: u64,
}

/// Launches in flight of which nobody knows what they take.
///
/// 8: enough to keep a device busy with short ones until the first has ended and is known, and of long ones little
/// enough to be paid back.
const MOST_UNKNOWN: u32 = 8;

/// One device's.
pub(super) struct Flight {
    state: Mutex<State>,
    /// Something has ended.
    ended: Condvar,
    /// There is something to wait for.
    begun: Condvar,
    has_thread: AtomicBool,
}

static FLIGHTS: [Flight; MAX_DEVICES] = [const { Flight::new() }; MAX_DEVICES];

/// A launch that is about to be made.
pub(super) struct Begun {
    context: CUcontext,
    stream: StreamKey,
    key: Key,
    prediction: Option<Prediction>,
    start: Option<Arc<Marker>>,
}

impl Begun {
    /// What it is predicted to take; nothing where that is not known.
    pub(super) fn predicted_ns(&self) -> u64 {
        self.prediction.map_or(0, |known| known.ns)
    }
}

impl Flight {
    const fn new() -> Self {
        Self {
            state: Mutex::new(State::new()),
            ended: Condvar::new(),
            begun: Condvar::new(),
            has_thread: AtomicBool::new(false),
        }
    }

    pub(super) fn on(device: Index) -> Option<&'static Self> {
        FLIGHTS.get(device.get())
    }

    /// Waits for room in the backlog, and prepares to measure where that is worth its cost.
    ///
    /// # Errors
    /// [`Spent`]: the turn has too little left for it. Nothing has changed.
    pub(super) fn begin(
        &'static self,
        place: Place,
        context: CUcontext,
        stream: StreamKey,
        key: Key,
        patience: &Patience,
    ) -> Result<Begun, Spent> {
        let mut state = self.state.lock();
        self.wait_to_learn(&mut state, place, key);
        let prediction = state.costs.predict(key);
        self.make_room(&mut state, place);
        if !patience.is_over(place)
            && let Err(spent) = state.check_turn(place, prediction.map_or(0, |known| known.ns))
        {
            // Nothing more comes into the open batch for now: its end is to be noticed.
            let open = state.open_batch(context, stream);
            let closing = open.and_then(|at| state.take_for_closing(at));
            self.close(state, closing);
            return Err(spent);
        }
        let mut begun = Begun {
            context,
            stream,
            key,
            prediction,
            start: None,
        };
        if state.open_batch(context, stream).is_some() {
            return Ok(begun);
        }
        // Right behind other work of the same stream its end is our beginning.
        let former = state.closed.iter().rev();
        let former = former
            .filter(|batch| batch.stream == stream && batch.context == context as usize)
            .find_map(|batch| batch.end.clone());
        if former.is_some() {
            begun.start = former;
            return Ok(begun);
        }
        // A marker of its own is worth it while there is much to learn, and now and then.
        state.unmeasured += 1;
        if prediction.is_some_and(|known| known.is_settled)
            && !state.unmeasured.is_multiple_of(MEASURE_EVERY)
        {
            return Ok(begun);
        }
        let Some(marker) = state.spare.take(context) else {
            return Ok(begun);
        };
        drop(state);
        if marker.record(stream) {
            begun.start = Some(marker);
        } else {
            self.state.lock().spare.give(marker);
        }
        Ok(begun)
    }

    /// The launch has been made, or refused by the driver.
    pub(super) fn launched(&'static self, place: Place, begun: Begun, is_accepted: bool) {
        let mut state = self.state.lock();
        if !is_accepted {
            state.spare.give_all(begun.start);
            return;
        }
        state.place = Some(place);
        let was_idle = state.launches == 0;
        let closes = state.add(place, begun);
        if was_idle {
            state.new_head();
        }
        let closing = closes.and_then(|at| state.take_for_closing(at));
        if was_idle {
            state.publish();
            set_busy(place, true);
        }
        self.close(state, closing);
        if was_idle {
            session::ring();
        }
    }

    /// Puts a marker behind a batch; on a stream that this thread uses now, so it is alive.
    fn close(&'static self, state: MutexGuard<'_, State>, closing: Option<(Batch, Arc<Marker>)>) {
        let Some((mut batch, marker)) = closing else {
            return;
        };
        drop(state);
        let is_recorded = marker.record(batch.stream);
        let mut state = self.state.lock();
        if is_recorded {
            batch.end = Some(marker);
            state.closed.push_back(batch);
        } else {
            // It ends when its predicted time has passed.
            state.spare.give(marker);
            state.open.push(batch);
        }
        state.publish();
        drop(state);
        self.start_thread();
        self.begun.notify_one();
    }

    /// Waits while too much is in flight of which nobody knows what it takes: it may be seconds.
    fn wait_to_learn(&'static self, state: &mut MutexGuard<'_, State>, place: Place, key: Key) {
        let is_bounded = || {
            let lease = place.lease();
            lease.is_some_and(|lease| lease.backlog_ns.load(Ordering::Relaxed) > 0)
        };
        if state.unknown < MOST_UNKNOWN {
            return;
        }
        let deadline = Instant::now() + LONGEST_WAIT;
        while state.unknown >= MOST_UNKNOWN
            && state.costs.predict(key).is_none()
            && is_bounded()
            && Instant::now() < deadline
        {
            let _ = self.ended.wait_until(state, deadline);
        }
    }

    /// Waits while the lease allows no more in flight.
    fn make_room(&'static self, state: &mut MutexGuard<'_, State>, place: Place) {
        let bound = |place: Place| {
            let lease = place.lease()?;
            let bound_ns = lease.backlog_ns.load(Ordering::Relaxed);
            let least = lease.least_units.load(Ordering::Relaxed).max(1);
            (bound_ns > 0).then_some((bound_ns, least))
        };
        match bound(place) {
            Some((bound_ns, least))
                // The clock is looked at only where it can make a difference.
                if state.launches >= least
                    && state.predicted_ns > bound_ns
                    && state.remaining_ns() > bound_ns => {}
            _ => return,
        }
        let deadline = Instant::now() + LONGEST_WAIT;
        // Once full, down to half, so that not every end wakes a thread for one launch.
        while let Some((bound_ns, least)) = bound(place) {
            let over_ns = state.remaining_ns().saturating_sub(bound_ns / 2);
            if state.launches < least || over_ns == 0 || Instant::now() >= deadline {
                return;
            }
            // What is left shrinks with time, also without anybody's word.
            let rest = Duration::from_nanos(over_ns.max(LEAST_REST_NS));
            let until = deadline.min(Instant::now() + rest);
            let _ = self.ended.wait_until(state, until);
        }
    }

    fn start_thread(&'static self) {
        if self.has_thread.swap(true, Ordering::Relaxed) {
            return;
        }
        let started = session::without_signals(|| {
            std::thread::Builder::new()
                .name("sluice-gate".into())
                .stack_size(256 << 10)
                .spawn(|| self.watch())
        });
        if let Err(error) = started {
            self.has_thread.store(false, Ordering::Relaxed);
            log::warn(format_args!(
                "cannot start the thread that watches GPU work: {error}; shares of GPU time are by estimate"
            ));
        }
    }

    /// The thread: takes off what has ended.
    fn watch(&'static self) {
        // Waiting for an event is forbidden to everybody while anybody captures, but for the relaxed.
        exchange_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
        let mut current: CUcontext = std::ptr::null_mut();
        loop {
            let mut state = self.state.lock();
            let oldest = state
                .closed
                .front()
                .and_then(|batch| Some((batch.id, batch.end.clone()?)));
            let Some((id, marker)) = oldest else {
                self.rest(state);
                continue;
            };
            state.visited = Some(marker.context() as usize);
            drop(state);
            if current != marker.context() {
                current = marker.context();
                // SAFETY: a context that lives until `context_ending` has seen us leave it.
                unsafe { crate::real::cuCtxSetCurrent(current) };
            }
            marker.wait();
            let mut state = self.state.lock();
            let at = state.closed.iter().position(|batch| batch.id == id);
            if let Some(batch) = at.and_then(|at| state.closed.remove(at)) {
                let taken_ns = batch.start.as_ref().and_then(|start| {
                    // Both were reached: the answer is a look at memory, not a wait.
                    marker.since_ns(start)
                });
                state.end(batch, taken_ns);
            }
            state.spare.give(marker);
            state.visited = None;
            self.tell(state);
        }
    }

    /// Nothing has a marker: waits for work, or for the presumed end of what is open.
    fn rest(&self, mut state: MutexGuard<'_, State>) {
        if state.open.is_empty() {
            self.begun.wait(&mut state);
            return;
        }
        let predicted_ns: u64 = state.open.iter().map(|batch| batch.predicted_ns).sum();
        let patience = Duration::from_nanos(predicted_ns + predicted_ns / 4 + PRESUMED_EXTRA_NS);
        let until = state.progress.unwrap_or_else(Instant::now) + patience;
        if Instant::now() < until {
            let _ = self.begun.wait_until(&mut state, until);
            return;
        }
        for batch in std::mem::take(&mut state.open) {
            state.end(batch, None);
        }
        self.tell(state);
    }

    /// Something has ended: tells the usage page, who waits for room, and where nothing is left the daemon.
    fn tell(&self, mut state: MutexGuard<'_, State>) {
        state.new_head();
        state.publish();
        let is_dry = state.launches == 0;
        if let (true, Some(place)) = (is_dry, state.place) {
            set_busy(place, false);
        }
        drop(state);
        self.ended.notify_all();
        if is_dry {
            session::ring();
        }
    }

    /// Ends at once every batch that `is_over`.
    fn end_those(&self, is_over: impl Fn(&Batch) -> bool) {
        let mut state = self.state.lock();
        if state.launches == 0 {
            return;
        }
        let before = state.launches;
        let (over, open) = std::mem::take(&mut state.open)
            .into_iter()
            .partition::<Vec<_>, _>(&is_over);
        state.open = open;
        let (mut done, closed) = std::mem::take(&mut state.closed)
            .into_iter()
            .partition::<VecDeque<_>, _>(&is_over);
        state.closed = closed;
        done.extend(over);
        for mut batch in done {
            let taken_ns = batch
                .end
                .as_ref()
                .zip(batch.start.as_ref())
                .and_then(|(end, start)| end.since_ns(start));
            let end = batch.end.take();
            state.end(batch, taken_ns);
            state.spare.give_all(end);
        }
        if state.launches != before {
            self.tell(state);
        }
    }
}

impl State {
    const fn new() -> Self {
        Self {
            closed: VecDeque::new(),
            open: Vec::new(),
            launches: 0,
            unknown: 0,
            predicted_ns: 0,
            progress: None,
            head_since_ns: 0,
            head_offered_ns: None,
            next_id: 0,
            unmeasured: 0,
            costs: Costs::new(),
            spare: Spare::new(),
            visited: None,
            counters: Counters {
                submitted_ns: 0,
                retired_ns: 0,
                launches: 0,
                longest_ns: 0,
            },
            place: None,
        }
    }

    fn open_batch(&mut self, context: CUcontext, stream: StreamKey) -> Option<usize> {
        self.open
            .iter()
            .position(|batch| batch.stream == stream && batch.context == context as usize)
    }

    fn head(&self) -> Option<&Batch> {
        self.closed.front().or(self.open.first())
    }

    /// Something has ended, or the first of what is in flight begins: there is a new head.
    fn new_head(&mut self) {
        self.progress = Some(Instant::now());
        self.head_since_ns = session::monotonic_ns();
        self.head_offered_ns = self
            .place
            .and_then(|place| place.offered_ns(self.head_since_ns));
    }

    /// What is predicted to be left of what is in flight.
    fn remaining_ns(&self) -> u64 {
        let head_ns = self.head().map_or(0, |batch| batch.predicted_ns);
        let passed_ns = self
            .progress
            .map_or(0, |since| since.elapsed().as_nanos() as u64);
        self.predicted_ns.saturating_sub(passed_ns.min(head_ns))
    }

    /// Whether a unit that is predicted to take `unit_ns` still belongs into the turn: at least half of it
    /// is to fit. With nothing in flight it goes in any case, else it would never run.
    fn check_turn(&self, place: Place, unit_ns: u64) -> Result<(), Spent> {
        let word = place.word();
        if word & lease_state::MASK != lease_state::LEASED || self.launches == 0 {
            return Ok(());
        }
        let expires_ns = place
            .lease()
            .map_or(0, |lease| lease.expires_ns.load(Ordering::Relaxed));
        let rest_ns = self.remaining_ns();
        let left_ns = expires_ns.saturating_sub(session::monotonic_ns());
        // Without a daemon no turn ends, and none follows.
        if rest_ns + unit_ns / 2 <= left_ns || !session::is_beating(place.seat.pages.control) {
            return Ok(());
        }
        Err(Spent {
            word,
            rest: Duration::from_nanos(rest_ns + LEAST_REST_NS),
        })
    }

    /// Adds a launch to its stream's open batch; says which one that is if it is to be closed.
    fn add(&mut self, place: Place, mut begun: Begun) -> Option<usize> {
        let at = self.open_batch(begun.context, begun.stream);
        if at.is_some() {
            self.spare.give_all(begun.start.take());
        }
        let predicted_ns = begun.predicted_ns();
        let at = at.unwrap_or_else(|| {
            let now_ns = session::monotonic_ns();
            if self.open.len() >= MOST_OPEN {
                let oldest = self.open.swap_remove(0);
                self.end(oldest, None);
            }
            self.next_id += 1;
            self.open.push(Batch {
                id: self.next_id,
                context: begun.context as usize,
                stream: begun.stream,
                start: begun.start,
                end: None,
                members: Vec::new(),
                launches: 0,
                unknown: 0,
                predicted_ns: 0,
                since_ns: now_ns,
                offered_ns: place.offered_ns(now_ns),
            });
            self.open.len() - 1
        });
        let batch = self.open.get_mut(at)?;
        match batch.members.last_mut() {
            Some(last) if last.key == begun.key => {
                last.count += 1;
                last.predicted_ns += predicted_ns;
            }
            _ => batch.members.push(Member {
                key: begun.key,
                count: 1,
                predicted_ns,
            }),
        }
        let unknown = u32::from(begun.prediction.is_none());
        batch.launches += 1;
        batch.unknown += unknown;
        batch.predicted_ns += predicted_ns;
        self.launches += 1;
        self.unknown += unknown;
        self.predicted_ns += predicted_ns;
        self.counters.submitted_ns += predicted_ns;
        self.counters.launches += 1;
        let is_full = batch.predicted_ns >= QUANTUM_NS || batch.launches >= MOST_LAUNCHES;
        (is_full || begun.prediction.is_none() || self.closed.is_empty()).then_some(at)
    }

    /// Takes a batch out to be closed, with the marker for it; `None`: there is no marker.
    fn take_for_closing(&mut self, at: usize) -> Option<(Batch, Arc<Marker>)> {
        let context = self.open.get(at)?.context as CUcontext;
        let marker = self.spare.take(context)?;
        Some((self.open.swap_remove(at), marker))
    }

    /// A batch has ended, after `taken_ns` where that is known.
    fn end(&mut self, batch: Batch, taken_ns: Option<u64>) {
        self.launches = self.launches.saturating_sub(batch.launches);
        self.unknown = self.unknown.saturating_sub(batch.unknown);
        self.predicted_ns = self.predicted_ns.saturating_sub(batch.predicted_ns);
        self.counters.retired_ns += batch.predicted_ns;
        if let Some(taken_ns) = taken_ns {
            let given = self.given(&batch);
            self.learn(&batch, taken_ns, given);
        }
        self.spare.give_all(batch.start);
        self.spare.give_all(batch.end);
    }

    /// The part of the device that a batch had while it ran, which ends now, in millionths.
    fn given(&self, batch: &Batch) -> Option<u64> {
        let now_ns = session::monotonic_ns();
        // It began when it was submitted, or when what was before it ended.
        let (since_ns, offered_ns) = if self.head_since_ns > batch.since_ns {
            (self.head_since_ns, self.head_offered_ns)
        } else {
            (batch.since_ns, batch.offered_ns)
        };
        let given_ns = self.place?.offered_ns(now_ns)?.checked_sub(offered_ns?)?;
        let lasted_ns = now_ns.checked_sub(since_ns).filter(|ns| *ns > 0)?;
        Some((u128::from(given_ns) * 1_000_000 / u128::from(lasted_ns)).min(1_000_000) as u64)
    }

    /// Divides the time of a batch among its launches, as they were predicted.
    ///
    /// While neighbours had work as well, it was `given` only a part of the time that it lasted.
    fn learn(&mut self, batch: &Batch, lasted_ns: u64, given_ppm: Option<u64>) {
        let Some(given_ppm) = given_ppm else {
            return;
        };
        let is_clean = given_ppm >= CLEAN_PPM;
        let taken_ns = if is_clean {
            lasted_ns
        } else {
            (u128::from(lasted_ns) * u128::from(given_ppm) / 1_000_000) as u64
        };
        for member in &batch.members {
            let count = u64::from(member.count.max(1));
            let part_ns = if batch.predicted_ns == 0 {
                u128::from(taken_ns) * u128::from(count) / u128::from(batch.launches.max(1))
            } else {
                u128::from(taken_ns) * u128::from(member.predicted_ns)
                    / u128::from(batch.predicted_ns)
            };
            let each_ns = (part_ns as u64 / count).max(1);
            self.costs.learn(member.key, each_ns, is_clean);
            self.counters.longest_ns = self.counters.longest_ns.max(each_ns);
        }
    }

    /// Brings the usage page up to date.
    fn publish(&self) {
        if let Some(work) = self.place.and_then(Place::work) {
            let counters = self.counters;
            work.submitted_ns
                .store(counters.submitted_ns, Ordering::Relaxed);
            work.retired_ns
                .store(counters.retired_ns, Ordering::Relaxed);
            work.launches.store(counters.launches, Ordering::Relaxed);
            work.longest_ns
                .store(counters.longest_ns, Ordering::Relaxed);
            let head_ns = self.head().map_or(0, |batch| batch.predicted_ns);
            work.head_ns.store(head_ns, Ordering::Relaxed);
            work.head_since_ns
                .store(self.head_since_ns, Ordering::Relaxed);
        }
    }
}

/// To be followed by a ring, without the lock.
fn set_busy(place: Place, is_busy: bool) {
    if let Some(work) = place.work() {
        let work: &DeviceWork = work;
        // Release; who sees the change sees the counters of before.
        work.is_busy.store(u32::from(is_busy), Ordering::Release);
    }
}

/// A stream has been waited for: what was on it has ended.
pub(crate) fn stream_synchronised(stream: CUstream, flavour: Flavour) {
    if session::gated().is_none() {
        return;
    }
    let stream = StreamKey::new(stream, flavour);
    for flight in &FLIGHTS {
        flight.end_those(|batch| batch.stream == stream);
    }
}

/// A context, the current one where it is null, has been waited for.
pub(crate) fn context_synchronised(context: CUcontext) {
    if session::gated().is_none() {
        return;
    }
    let mut context = context;
    if context.is_null() {
        // SAFETY: a place for one handle.
        unsafe { crate::real::cuCtxGetCurrent(&mut context) };
    }
    for flight in &FLIGHTS {
        flight.end_those(|batch| batch.context == context as usize);
    }
}

/// A context is about to end: sees to it that nobody waits for a marker in it.
///
/// Its end waits for its work anyway, and so does this.
pub(crate) fn context_ending(context: usize) {
    let deadline = Instant::now() + LEAVING;
    for flight in &FLIGHTS {
        if !flight.has_thread.load(Ordering::Relaxed) {
            continue;
        }
        flight.end_those(|batch| {
            // The one that the thread waits for stays until it has come back.
            batch.context == context && batch.end.is_none()
        });
        let mut state = flight.state.lock();
        while state.concerns(context) && Instant::now() < deadline {
            let _ = flight.ended.wait_until(&mut state, deadline);
        }
        state.closed.retain(|batch| batch.context != context);
    }
}

impl State {
    fn concerns(&self, context: usize) -> bool {
        self.visited == Some(context) || self.closed.iter().any(|batch| batch.context == context)
    }
}

/// Starts at 1, so that it differs from what nobody has asked yet.
static CONTEXTS_ENDED: AtomicU64 = AtomicU64::new(1);

/// How many contexts have ended so far; their handles may come back as other contexts.
pub(super) fn contexts_ended() -> u64 {
    CONTEXTS_ENDED.load(Ordering::Acquire)
}

/// A context has ended.
pub(crate) fn context_ended(context: usize) {
    // Release; pairs with the Acquire above.
    CONTEXTS_ENDED.fetch_add(1, Ordering::Release);
    for flight in &FLIGHTS {
        if flight.has_thread.load(Ordering::Relaxed) {
            flight.state.lock().spare.forget(context as CUcontext);
        }
    }
}

/// Forgets what was learned of one unit.
pub(super) fn forget(key: Key) {
    for flight in &FLIGHTS {
        if flight.has_thread.load(Ordering::Relaxed) {
            flight.state.lock().costs.forget(key);
        }
    }
}
