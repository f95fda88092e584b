//! Events that processes share: a page that all of them map, and whose each place is.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use crate::hardware::ClientId;
use crate::proto::{MAX_SHARED_EVENTS, SharedEvents};
use crate::shared::{Access, Mapping, memory_file};

/// The page, and the makers of the events in it.
pub(super) struct EventPage {
    pub(super) file: OwnedFd,
    mapping: Mapping,
    /// By place, as far as places have been used.
    makers: Vec<Option<ClientId>>,
    last_number: u64,
}

impl EventPage {
    pub(super) fn new() -> io::Result<Self> {
        let bytes = size_of::<SharedEvents>();
        let file = memory_file("sluice-sim-events", bytes as u64)?;
        let mapping = Mapping::new(&file, bytes, Access::Write)?;
        Ok(Self {
            file,
            mapping,
            makers: Vec::new(),
            last_number: 0,
        })
    }

    fn page(&self) -> &SharedEvents {
        self.mapping.page()
    }

    /// A place for an event of `maker`, and its number; `None`: all are taken.
    pub(super) fn take(&mut self, maker: ClientId) -> Option<(usize, u64)> {
        let free = self.makers.iter().position(Option::is_none);
        let index = free.unwrap_or(self.makers.len());
        if index >= MAX_SHARED_EVENTS {
            return None;
        }
        if index == self.makers.len() {
            self.makers.push(None);
        }
        self.makers[index] = Some(maker);
        self.last_number += 1;
        let number = self.last_number;
        let event = &self.page().events[index];
        event.wanted.store(0, Ordering::Relaxed);
        event.reached.store(0, Ordering::Relaxed);
        event.recorder.store(0, Ordering::Relaxed);
        event.number.store(number, Ordering::Release);
        Some((index, number))
    }

    /// Takes a place back from its maker; whoever waits for the event waits no more.
    pub(super) fn give(&mut self, maker: ClientId, index: usize, number: u64) -> bool {
        let is_own = self.makers.get(index) == Some(&Some(maker))
            && self.page().events[index].number.load(Ordering::Relaxed) == number;
        if is_own {
            self.free(index);
        }
        is_own
    }

    fn free(&mut self, index: usize) {
        self.makers[index] = None;
        let event = &self.page().events[index];
        event.number.store(0, Ordering::Relaxed);
        // Every record that anybody waits for, whatever its number.
        event.reached.store(u64::MAX / 2, Ordering::Release);
    }

    /// A client has gone, with its events and with the streams in which it has recorded others'.
    pub(super) fn end_client(&mut self, client: ClientId, slot: usize) {
        let recorder = u32::try_from(slot + 1).unwrap_or(0);
        for index in 0..self.makers.len() {
            if self.makers[index] == Some(client) {
                self.free(index);
                continue;
            }
            let event = &self.page().events[index];
            if self.makers[index].is_some() && event.recorder.load(Ordering::Acquire) == recorder {
                let wanted = event.wanted.load(Ordering::Acquire);
                event.reached.fetch_max(wanted, Ordering::AcqRel);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_s_end_frees_its_events_and_reaches_its_records_of_others() {
        let mut page = EventPage::new().unwrap();
        let (one, other) = (ClientId(1), ClientId(2));
        let (mine, number) = page.take(one).unwrap();
        let (theirs, _) = page.take(other).unwrap();
        let recorded = &page.page().events[theirs];
        recorded.recorder.store(7, Ordering::Relaxed);
        recorded.wanted.store(3, Ordering::Relaxed);
        page.end_client(one, 6);
        assert_eq!(
            page.page().events[theirs].reached.load(Ordering::Relaxed),
            3
        );
        assert_eq!(page.page().events[mine].number.load(Ordering::Relaxed), 0);
        // The place comes back under another number, which the last one's holders do not know.
        let (again, later) = page.take(other).unwrap();
        assert_eq!(again, mine);
        assert_ne!(later, number);
        assert!(!page.give(other, again, number));
        assert!(!page.give(one, again, later));
        assert!(page.give(other, again, later));
    }

    #[test]
    fn there_are_so_many_places_and_no_more() {
        let mut page = EventPage::new().unwrap();
        for _ in 0..MAX_SHARED_EVENTS {
            page.take(ClientId(1)).unwrap();
        }
        assert_eq!(page.take(ClientId(1)), None);
        page.end_client(ClientId(1), 0);
        assert!(page.take(ClientId(2)).is_some());
    }
}
