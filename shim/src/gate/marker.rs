//! Events that we put behind the program's work: when they are reached, it has ended.
//!
//! An event belongs to a context, and is recorded on the program's own stream by the thread that has just
//! launched there, so the stream is alive. They are used again and again.

use super::flight::StreamKey;
use crate::pool::Flavour;
use ffi::driver::{CUcontext, CUevent, CUresult, CUstreamCaptureMode};
use std::sync::Arc;

/// `CU_EVENT_BLOCKING_SYNC`: who waits for it sleeps. With time stamps, which measure the work.
const FLAGS: u32 = 1;

/// Unused events that are kept for each context.
const MOST_SPARE: usize = 64;

/// One event.
#[derive(Debug)]
pub(super) struct Marker {
    event: CUevent,
    context: CUcontext,
}

// SAFETY: handles of the driver's, which may be used by any thread.
unsafe impl Send for Marker {}
// SAFETY: as above.
unsafe impl Sync for Marker {}

impl Marker {
    /// Whether it belongs to this context.
    pub(super) fn is_of(&self, context: CUcontext) -> bool {
        self.context == context
    }

    /// The context that it belongs to.
    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// Puts it behind everything on the stream so far.
    pub(super) fn record(&self, stream: StreamKey) -> bool {
        let handle = stream.handle();
        let result = match stream.flavour() {
            // SAFETY: an event of ours in the current context, on a stream that the program has just
            // used in it.
            Flavour::Legacy => unsafe { crate::real::cuEventRecord(self.event, handle) },
            // SAFETY: as above.
            Flavour::PerThread => unsafe { crate::real::cuEventRecord_ptsz(self.event, handle) },
        };
        result == CUresult::CUDA_SUCCESS
    }

    /// Waits until it is reached, or cannot be any more.
    pub(super) fn wait(&self) {
        // SAFETY: an event of ours; its context is kept alive by `flight::context_ending`.
        unsafe { crate::real::cuEventSynchronize(self.event) };
    }

    /// Time from `earlier` to this one on the device, if both were reached.
    pub(super) fn since_ns(&self, earlier: &Marker) -> Option<u64> {
        let mut milliseconds = 0f32;
        // SAFETY: a place for one number, and two events of ours.
        let result = unsafe {
            crate::real::cuEventElapsedTime(&mut milliseconds, earlier.event, self.event)
        };
        // No time at all is below what the clock can tell.
        (result == CUresult::CUDA_SUCCESS && milliseconds >= 0.0)
            .then(|| (f64::from(milliseconds) * 1e6) as u64)
    }
}

/// Unused events.
#[derive(Debug)]
pub(super) struct Spare(Vec<Marker>);

impl Spare {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    /// As [`Self::give`], where there is one.
    pub(super) fn give_all(&mut self, marker: Option<Arc<Marker>>) {
        if let Some(marker) = marker {
            self.give(marker);
        }
    }

    /// An event of the current context, which is `context`; a new one where none is left.
    pub(super) fn take(&mut self, context: CUcontext) -> Option<Arc<Marker>> {
        if let Some(at) = self.0.iter().rposition(|marker| marker.is_of(context)) {
            return Some(Arc::new(self.0.swap_remove(at)));
        }
        create(context).map(Arc::new)
    }

    /// Takes one back, if nobody else has it.
    pub(super) fn give(&mut self, marker: Arc<Marker>) {
        let Ok(marker) = Arc::try_unwrap(marker) else {
            return;
        };
        let context = marker.context;
        let count = self.0.iter().filter(|spare| spare.is_of(context)).count();
        if count < MOST_SPARE {
            self.0.push(marker);
        } else {
            // SAFETY: an event of ours that nobody has any more.
            unsafe { crate::real::cuEventDestroy_v2(marker.event) };
        }
    }

    /// The context has ended, and its events with it.
    pub(super) fn forget(&mut self, context: CUcontext) {
        self.0.retain(|marker| !marker.is_of(context));
    }
}

fn create(context: CUcontext) -> Option<Marker> {
    // Another thread may be capturing in a mode that forbids this call to everybody who is not relaxed.
    let former = exchange_mode(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED);
    let mut event: CUevent = std::ptr::null_mut();
    // SAFETY: a place for one handle.
    let result = unsafe { crate::real::cuEventCreate(&mut event, FLAGS) };
    if let Some(former) = former {
        exchange_mode(former);
    }
    (result == CUresult::CUDA_SUCCESS).then_some(Marker { event, context })
}

/// Sets this thread's capture mode, and says what it was; `None`: the driver has no such thing.
pub(super) fn exchange_mode(mode: CUstreamCaptureMode) -> Option<CUstreamCaptureMode> {
    let mut mode = mode;
    // SAFETY: a place for one mode.
    let result = unsafe { crate::real::cuThreadExchangeStreamCaptureMode(&mut mode) };
    (result == CUresult::CUDA_SUCCESS).then_some(mode)
}
