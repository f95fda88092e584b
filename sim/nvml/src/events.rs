//! Event sets: they can be made, filled and waited on, and nothing ever happens.
//!
//! A wait ends when its time is over, or when its set is freed.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use ffi::nvml::{nvmlEventData_t, nvmlReturn_t};
use parking_lot::{Condvar, Mutex};

use crate::guard::{Answer, Out};
use crate::library::{self, Handle};

/// Sets that exist. Held for a few instructions; a wait gives it up while it sleeps.
static SETS: Mutex<Sets> = Mutex::new(Sets {
    last: 0,
    live: BTreeSet::new(),
});

/// Signalled when a set is freed.
static FREED: Condvar = Condvar::new();

/// What a device could tell about: its performance state, critical errors, its clocks.
const SUPPORTED: u64 = 0x4 | 0x8 | 0x10;

struct Sets {
    last: usize,
    live: BTreeSet<usize>,
}

/// A set as the caller names it: a number that is never used again.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct EventSet(usize);

/// Makes an empty set.
pub(crate) fn create(set: Out<EventSet>) -> Answer {
    library::session()?;
    let set = set.claim()?;
    let mut sets = SETS.lock();
    sets.last += 1;
    let number = sets.last;
    sets.live.insert(number);
    set.write(EventSet(number));
    Ok(())
}

/// Frees a set and ends the waits on it.
pub(crate) fn free(set: EventSet) -> Answer {
    library::session()?;
    let was_live = SETS.lock().live.remove(&set.0);
    FREED.notify_all();
    match was_live {
        true => Ok(()),
        false => Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT),
    }
}

/// Which kinds of events can be asked for.
pub(crate) fn supported(device: Handle, kinds: Out<u64>) -> Answer {
    device.resolve()?;
    kinds.write(SUPPORTED)
}

/// Asks for kinds of events; those that a device does not have are refused as not supported.
pub(crate) fn register(device: Handle, kinds: u64, set: EventSet) -> Answer {
    device.resolve()?;
    if !SETS.lock().live.contains(&set.0) {
        return Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT);
    }
    match kinds & !SUPPORTED {
        0 => Ok(()),
        _ => Err(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED),
    }
}

/// Waits for an event that never comes: `NVML_ERROR_TIMEOUT` when the time is over.
pub(crate) fn wait(set: EventSet, event: Out<nvmlEventData_t>, timeout_ms: u32) -> Answer {
    library::session()?;
    event.claim()?;
    let end = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    let mut sets = SETS.lock();
    while sets.live.contains(&set.0) {
        if FREED.wait_until(&mut sets, end).timed_out() {
            return Err(nvmlReturn_t::NVML_ERROR_TIMEOUT);
        }
    }
    Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT)
}
