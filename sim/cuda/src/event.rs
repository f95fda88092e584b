//! Events: marks in streams, with the time at which the device reached them.

use std::ffi::c_uint;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ffi::driver::{CUevent, CUresult, CUstream};
use parking_lot::Mutex;
use sim::proto::{Command, MAX_EVENTS};
use sim::shared::now_ns;

use crate::capture::{self, Mark};
use crate::context::Context;
use crate::event_sharing::Place;
use crate::guard::{Answer, INVALID_VALUE, Out};
use crate::link::Link;
use crate::state::{self, Driver, driver};
use crate::stream::{self, Flavour, Lane, PerThread, Plain, Stream};
use crate::watch::Condition;

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;
/// Every flag of `cuEventCreate`.
const KNOWN_FLAGS: c_uint = 7;
/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

/// Numbers of timed events that are free again, with the last record that each has seen.
static FREE: Mutex<Vec<(u32, u64)>> = Mutex::new(Vec::new());
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Where an event was recorded last.
#[derive(Clone)]
pub(crate) struct Record {
    /// In which lane.
    pub(crate) lane: Arc<Lane>,
    /// As which operation.
    pub(crate) sequence: u64,
    generation: u64,
    /// Which of the records of all processes it is; 0: none of those.
    ticket: u64,
    /// When it was recorded; its time where nothing takes time.
    at_ns: u64,
}

/// An event.
pub(crate) struct Event {
    /// Number of its context.
    pub(crate) context_id: u64,
    device: usize,
    /// Number of its time; `None` for an event without timing.
    timed: Option<u32>,
    /// Where other processes see it, if they may.
    pub(crate) place: Option<Place>,
    state: Mutex<State>,
}

/// Where an event stands.
pub(crate) enum Latest {
    /// Nothing is to be waited for.
    Over,
    /// It was recorded here last.
    Here(Record),
    /// It was recorded by another process last.
    Elsewhere(Condition),
}

struct State {
    generation: u64,
    record: Option<Record>,
    /// Where it was recorded last, if that was in a capture.
    mark: Option<Mark>,
}

impl Event {
    /// An event without timing.
    pub(crate) fn untimed(context: &Context, place: Option<Place>) -> Self {
        Self {
            context_id: context.id,
            device: context.device,
            timed: None,
            place,
            state: Mutex::new(State {
                generation: 0,
                record: None,
                mark: None,
            }),
        }
    }

    /// What whoever waits for it now waits for.
    pub(crate) fn latest(&self, driver: &Driver) -> Latest {
        let record = self.record();
        let ticket = self.place.as_ref().map_or(0, Place::last);
        if let Some(place) = &self.place
            && record.as_ref().map_or(0, |record| record.ticket) != ticket
        {
            let condition = place.is_reached(ticket);
            return match condition.holds() {
                true => Latest::Over,
                false => Latest::Elsewhere(condition),
            };
        }
        match record {
            Some(record) if !Self::is_over(Some(&record), driver) => Latest::Here(record),
            _ => Latest::Over,
        }
    }

    /// Sleeps until it is reached.
    pub(crate) fn wait_until_reached(&self, driver: &Driver) -> Answer {
        match self.latest(driver) {
            Latest::Here(record) => driver.finish(record.lane.slot, record.sequence),
            Latest::Elsewhere(condition) => crate::watch::wait(driver, condition),
            Latest::Over => {
                driver.settle();
                Ok(())
            }
        }
    }

    /// Where it was recorded last in this process.
    fn record(&self) -> Option<Record> {
        self.state.lock().record.clone()
    }

    /// Where it was recorded last, if that was in a capture that goes on.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let mark = self.state.lock().mark.clone();
        mark.filter(Mark::is_active)
    }

    /// Records it behind everything on a stream so far.
    pub(crate) fn record_in(&self, driver: &Driver, stream: &Stream) -> Answer {
        if stream.is_capturing() {
            self.state.lock().mark = capture::mark(stream);
            return Ok(());
        }
        let generation = {
            let mut state = self.state.lock();
            state.generation += 1;
            state.mark = None;
            state.generation
        };
        let mark = Command::Mark {
            event: self.timed.unwrap_or(u32::MAX),
            generation,
        };
        let (sequence, ticket) = self.submit(driver, stream, mark)?;
        let record = Record {
            lane: Arc::clone(&stream.lane),
            sequence,
            generation,
            ticket,
            at_ns: match driver.link {
                Link::Null(_) => now_ns(),
                Link::Gpu(..) => 0,
            },
        };
        let mut state = self.state.lock();
        let is_newest = state
            .record
            .as_ref()
            .is_none_or(|known| known.generation < generation);
        if is_newest {
            state.record = Some(record);
        }
        Ok(())
    }

    /// Submits a mark, and has other processes told when it is reached.
    fn submit(&self, driver: &Driver, stream: &Stream, mark: Command) -> Answer<(u64, u64)> {
        let Some(place) = &self.place else {
            return Ok((stream.submit(driver, mark)?, 0));
        };
        let ticket = place.request(driver);
        let reach = Box::new(place.reach(ticket));
        let slot = stream.lane.slot;
        let submitted = driver
            .deferred
            .submit_move(slot, reach, || stream.submit(driver, mark));
        if submitted.is_err() {
            place.reach(ticket)();
        }
        Ok((submitted?, ticket))
    }

    fn is_over(record: Option<&Record>, driver: &Driver) -> bool {
        record.is_none_or(|record| driver.link.done(record.lane.slot) >= record.sequence)
    }

    /// When it was reached.
    fn time(&self, driver: &Driver) -> Answer<u64> {
        let timed = self.timed.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        let record = self.record().ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
        if !Self::is_over(Some(&record), driver) {
            return Err(CUresult::CUDA_ERROR_NOT_READY);
        }
        match &driver.link {
            Link::Null(_) => Ok(record.at_ns),
            // Discarded with its context: it never was reached.
            link => link
                .event_time(timed, record.generation)
                .ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED),
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(timed) = self.timed {
            FREE.lock().push((timed, self.state.get_mut().generation));
        }
    }
}

/// The event behind a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`; `CUDA_ERROR_LAUNCH_FAILED` if its device is lost.
pub(crate) fn find(handle: CUevent) -> Answer<Arc<Event>> {
    let driver = driver()?;
    let event = driver.events.find(handle);
    let event = event.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    driver.link.check(event.device)?;
    Ok(event)
}

fn create(out: *mut CUevent, flags: c_uint) -> Answer {
    let out = Out::claim(out)?;
    let is_timed = flags & DISABLE_TIMING == 0;
    if flags & !KNOWN_FLAGS != 0 || (flags & INTERPROCESS != 0 && is_timed) {
        return Err(INVALID_VALUE);
    }
    let context = state::current()?;
    let driver = driver()?;
    let place = match flags & INTERPROCESS {
        0 => None,
        _ => Place::new(driver)?,
    };
    let mut event = Event::untimed(&context, place);
    if is_timed {
        let (number, generation) = timed_number()?;
        event.timed = Some(number);
        event.state.get_mut().generation = generation;
    }
    out.write(driver.events.add(Arc::new(event)));
    Ok(())
}

fn timed_number() -> Answer<(u32, u64)> {
    if let Some(free) = FREE.lock().pop() {
        return Ok(free);
    }
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    if (number as usize) < MAX_EVENTS {
        Ok((number, 0))
    } else {
        NEXT.fetch_sub(1, Ordering::Relaxed);
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }
}

fn destroy(handle: CUevent) -> Answer {
    let gone = driver()?.events.remove(handle);
    gone.map(drop).ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn record<F: Flavour>(handle: CUevent, given: CUstream) -> Answer {
    let driver = driver()?;
    let event = find(handle)?;
    let stream = stream::find::<F>(given)?;
    if stream.context_id != event.context_id {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    }
    event.record_in(driver, &stream)
}

fn record_with_flags<F: Flavour>(handle: CUevent, stream: CUstream, flags: c_uint) -> Answer {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    record::<F>(handle, stream)
}

fn query(handle: CUevent) -> Answer {
    let driver = driver()?;
    let event = find(handle)?;
    if let Some(mark) = event.mark() {
        return Err(mark.refuse());
    }
    capture::check_unsafe()?;
    match event.latest(driver) {
        Latest::Over => {
            driver.settle();
            Ok(())
        }
        _ if driver.link.is_alive() => Err(CUresult::CUDA_ERROR_NOT_READY),
        _ => Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE),
    }
}

fn synchronize(handle: CUevent) -> Answer {
    let event = find(handle)?;
    if let Some(mark) = event.mark() {
        return Err(mark.refuse());
    }
    event.wait_until_reached(driver()?)
}

/// Milliseconds between two events, from the device's own computed times.
fn elapsed(out: *mut f32, from: CUevent, to: CUevent) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let (from, to) = (find(from)?, find(to)?);
    let (begun, ended) = (from.time(driver)?, to.time(driver)?);
    let nanoseconds = ended as i64 - begun as i64;
    out.write((nanoseconds as f64 / 1e6) as f32);
    Ok(())
}

driver! {
    cuEventCreate(ph_event: *mut CUevent, flags: c_uint) => create;
    cuEventDestroy(h_event: CUevent) => destroy;
    cuEventDestroy_v2(h_event: CUevent) => destroy;
    cuEventRecord(h_event: CUevent, h_stream: CUstream) => record::<Plain>;
    cuEventRecord_ptsz(h_event: CUevent, h_stream: CUstream) => record::<PerThread>;
    cuEventRecordWithFlags(h_event: CUevent, h_stream: CUstream, flags: c_uint) => record_with_flags::<Plain>;
    cuEventRecordWithFlags_ptsz(h_event: CUevent, h_stream: CUstream, flags: c_uint) => record_with_flags::<PerThread>;
    cuEventQuery(h_event: CUevent) => query;
    cuEventSynchronize(h_event: CUevent) => synchronize;
    cuEventElapsedTime(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent) => elapsed;
    cuEventElapsedTime_v2(p_milliseconds: *mut f32, h_start: CUevent, h_end: CUevent) => elapsed;
}
