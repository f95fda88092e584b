//! Events of several processes.
//!
//! An event that was made for that has a place in a page that all clients of the `gpu` process map: how
//! often it has been recorded, by whomsoever, and up to which of these records it has been reached. The
//! library of whoever recorded it writes the latter when its stream has got there; the others look, as for
//! any value in memory ([`crate::watch`]). Records of a process that dies count as reached.

use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use ffi::driver::{CUevent, CUipcEventHandle, CUresult};
use sim::proto::{SharedEvent, SharedEvents};
use sim::shared::Mapping;

use crate::event::{self, Event};
use crate::guard::{Answer, INVALID_VALUE, Out};
use crate::state::{self, Driver, driver};
use crate::watch::{Condition, Test, Word};

/// First word of what is handed to other processes, so that other bytes are not believed.
const MAGIC: u64 = u64::from_le_bytes(*b"SLUICEev");

/// The page, mapped when the first event is shared.
static PAGE: OnceLock<Mapping> = OnceLock::new();

fn page(driver: &Driver) -> Answer<&'static SharedEvents> {
    if PAGE.get().is_none() {
        // Should two threads map it, the second mapping goes again.
        let _ = PAGE.set(driver.link.map_shared_events()?);
    }
    let mapping = PAGE.get().ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    Ok(mapping.page())
}

/// An event's place in the page.
pub(crate) struct Place {
    index: usize,
    /// The event's own number, which no other has at any time.
    number: u64,
    is_maker: bool,
    event: &'static SharedEvent,
}

impl Place {
    /// A place for a new event; `None` in null mode, where there is nobody else.
    pub(crate) fn new(driver: &Driver) -> Answer<Option<Self>> {
        let Some((index, number)) = driver.link.make_shared_event()? else {
            return Ok(None);
        };
        let event = page(driver)?.events.get(index);
        Ok(Some(Self {
            index,
            number,
            is_maker: true,
            event: event.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?,
        }))
    }

    /// One more record, to be reached later; its number.
    pub(crate) fn request(&self, driver: &Driver) -> u64 {
        // First, so that the record counts as reached should this process end.
        let recorder = driver.link.client_slot() + 1;
        self.event.recorder.store(recorder, Ordering::Release);
        self.event.wanted.fetch_add(1, Ordering::AcqRel) + 1
    }

    /// What says that record `ticket` has been reached.
    pub(crate) fn reach(&self, ticket: u64) -> impl FnOnce() + Send + use<> {
        let event = self.event;
        move || {
            event.reached.fetch_max(ticket, Ordering::AcqRel);
        }
    }

    /// The last record, by whomsoever; 0: none.
    pub(crate) fn last(&self) -> u64 {
        self.event.wanted.load(Ordering::Acquire)
    }

    /// That record `ticket` has been reached.
    pub(crate) fn is_reached(&self, ticket: u64) -> Condition {
        let word = Word::Long(self.event.reached.as_ptr());
        Condition::new(word, ticket, Test::AtLeast)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.is_maker
            && let Ok(driver) = driver()
        {
            driver.link.free_shared_event(self.index, self.number);
        }
    }
}

fn handle(out: *mut CUipcEventHandle, given: CUevent) -> Answer {
    let out = Out::claim(out)?;
    let event = event::find(given)?;
    let place = event.place.as_ref();
    let place = place.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let words = [
        MAGIC,
        place.index as u64,
        place.number,
        u64::from(std::process::id()),
        0,
        0,
        0,
        0,
    ];
    out.write(CUipcEventHandle {
        reserved: sim::proto::to_bytes(&words).map(|byte| byte as _),
    });
    Ok(())
}

fn open(out: *mut CUevent, handle: CUipcEventHandle) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let context = state::current()?;
    let bytes = handle.reserved.map(|byte| byte as u8);
    let [magic, index, number, maker, ..] = sim::proto::from_bytes(&bytes);
    if magic != MAGIC {
        return Err(INVALID_VALUE);
    }
    // As with memory: a process cannot open what it has made itself.
    if maker == u64::from(std::process::id()) {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let index = usize::try_from(index).map_err(|_| INVALID_VALUE)?;
    let event = page(driver)?.events.get(index);
    let event = event
        .filter(|event| event.number.load(Ordering::Acquire) == number)
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let place = Place {
        index,
        number,
        is_maker: false,
        event,
    };
    let event = Event::untimed(&context, Some(place));
    out.write(driver.events.add(Arc::new(event)));
    Ok(())
}

driver! {
    cuIpcGetEventHandle(p_handle: *mut CUipcEventHandle, event: CUevent) => handle;
    cuIpcOpenEventHandle(ph_event: *mut CUevent, handle: CUipcEventHandle) => open;
}
