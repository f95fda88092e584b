//! Event sets: they can be made, filled and waited on. The one thing that ever happens to a device is that
//! it falls off the bus, a critical error (Xid); each set that has asked for those is told once.
//!
//! A wait ends with an event, when its time is over, or when its set is freed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use ffi::nvml::{nvmlDevice_t, nvmlEventData_t, nvmlEventTypeXidCriticalError, nvmlReturn_t};
use parking_lot::{Condvar, Mutex};

use crate::guard::{Answer, Out};
use crate::library::{self, Handle, Session};

/// How often a wait looks at its devices: nobody tells this library.
const LOOK: Duration = Duration::from_millis(10);

/// Sets that exist. Held for a few instructions; a wait gives it up while it sleeps.
static SETS: Mutex<Sets> = Mutex::new(Sets {
    last: 0,
    live: BTreeMap::new(),
});

/// Signalled when a set is freed.
static FREED: Condvar = Condvar::new();

/// Critical errors of the device.
const XID: u64 = nvmlEventTypeXidCriticalError as u64;

/// What a device could tell about: its performance state, critical errors, its clocks.
const SUPPORTED: u64 = 0x4 | XID | 0x10;

/// The device has no instances of its own to name.
const NO_INSTANCE: u32 = u32::MAX;

struct Sets {
    last: usize,
    /// By set: the devices whose critical errors it has still to be told of.
    live: BTreeMap<usize, Vec<usize>>,
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
    sets.live.insert(number, Vec::new());
    set.write(EventSet(number));
    Ok(())
}

/// Frees a set and ends the waits on it.
pub(crate) fn free(set: EventSet) -> Answer {
    library::session()?;
    let was_live = SETS.lock().live.remove(&set.0).is_some();
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
    let device = device.resolve()?.index;
    let mut sets = SETS.lock();
    let asked = sets.live.get_mut(&set.0);
    let asked = asked.ok_or(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT)?;
    if kinds & !SUPPORTED != 0 {
        return Err(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED);
    }
    if kinds & XID != 0 && !asked.contains(&device) {
        asked.push(device);
    }
    Ok(())
}

/// Takes the first of the devices that has an error to be told of.
fn take(session: &Session, asked: &mut Vec<usize>) -> Option<nvmlEventData_t> {
    let error = |device: &usize| session.hardware.lost_xid(*device);
    let at = asked.iter().position(|device| error(device).is_some())?;
    let device = asked.remove(at);
    Some(nvmlEventData_t {
        device: Handle::new(device).to_pointer() as nvmlDevice_t,
        eventType: XID,
        eventData: u64::from(error(&device)?),
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    })
}

/// Waits for an event: `NVML_ERROR_TIMEOUT` when the time is over.
pub(crate) fn wait(set: EventSet, event: Out<nvmlEventData_t>, timeout_ms: u32) -> Answer {
    let session = library::session()?;
    let event = event.claim()?;
    let end = Instant::now() + Duration::from_millis(u64::from(timeout_ms));
    let mut sets = SETS.lock();
    while let Some(asked) = sets.live.get_mut(&set.0) {
        if let Some(told) = take(&session, asked) {
            event.write(told);
            return Ok(());
        }
        let now = Instant::now();
        if now >= end {
            return Err(nvmlReturn_t::NVML_ERROR_TIMEOUT);
        }
        FREED.wait_until(&mut sets, end.min(now + LOOK));
    }
    Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT)
}
