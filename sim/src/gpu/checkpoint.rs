//! Processes that are locked, and taken off the devices for a while.
//!
//! A process that is to be locked may begin no call; it *is* locked once those that had begun are over and
//! its work is done. Whoever wants it locked asks until then, and lets go by itself when it dies: what is
//! only half done blocks nobody. Once it is locked it stays so, whoever did it: until it is unlocked.

use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;

use super::process::Process;
use crate::hardware::ClientId;
use crate::proto::{checkpoint as action, status};
use crate::shared::futex_wake;

/// Where a process stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Standing {
    /// It calls as it likes.
    #[default]
    Running,
    /// Somebody waits for it to be idle; it begins no call meanwhile.
    Locking(ClientId),
    /// It begins no call, and has no work.
    Locked,
    /// The same, and it holds nothing of any device.
    Away,
}

impl Standing {
    /// As `CUprocessState` numbers it.
    fn number(self) -> u64 {
        match self {
            Self::Running | Self::Locking(_) => 0,
            Self::Locked => 1,
            Self::Away => 2,
        }
    }
}

impl Process {
    /// Does `what` about the process behind a pidfd; its state and its working thread.
    pub(super) fn checkpoint(
        &mut self,
        asks: ClientId,
        what: u64,
        process: &OwnedFd,
    ) -> Result<[u64; 2], u32> {
        let id = self.computing(process).ok_or(status::NOT_FOUND)?;
        let asking = self.clients.get(&asks).and_then(|client| client.user);
        let client = self.clients.get(&id).ok_or(status::NOT_FOUND)?;
        if asking != Some(0) && (asking.is_none() || asking != client.user) {
            return Err(status::DENIED);
        }
        let standing = client.standing;
        match (what, standing) {
            (action::LOOK, _) => {}
            (action::LOCK, Standing::Running) => {
                self.stand(id, Standing::Locking(asks));
                self.lock(id);
            }
            (action::LOCK, Standing::Locking(own)) if own == asks => self.lock(id),
            (action::GIVE_UP, Standing::Locking(own)) if own == asks => {
                self.stand(id, Standing::Running);
            }
            (action::TAKE_AWAY, Standing::Locked) => self.take_away(id)?,
            (action::BRING_BACK, Standing::Away) => self.bring_back(id)?,
            (action::UNLOCK, Standing::Locked) => self.stand(id, Standing::Running),
            _ => return Err(status::STATE),
        }
        let client = self.clients.get(&id).ok_or(status::NOT_FOUND)?;
        let worker = client
            .page()
            .map_or(0, |page| page.worker.load(Ordering::Acquire));
        Ok([client.standing.number(), u64::try_from(worker).unwrap_or(0)])
    }

    /// The client that computes in a process.
    fn computing(&self, process: &OwnedFd) -> Option<ClientId> {
        let path = format!("/proc/self/fdinfo/{}", process.as_raw_fd());
        let text = fs::read_to_string(path).ok()?;
        let pid = text.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        let pid: i32 = pid.trim().parse().ok().filter(|pid| *pid > 0)?;
        let board = self.board();
        let is_own = |slot: usize| board.client[slot].pid.load(Ordering::Relaxed) == pid;
        let mut clients = self.clients.iter();
        let found = clients.find(|(_, client)| client.page.is_some() && is_own(client.slot));
        found.map(|(id, _)| *id)
    }

    fn stand(&mut self, id: ClientId, standing: Standing) {
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.standing = standing;
        let Some(page) = client.page() else {
            return;
        };
        let is_locked = u32::from(standing != Standing::Running);
        page.is_locked.store(is_locked, Ordering::SeqCst);
        if is_locked == 0 {
            futex_wake(&page.is_locked);
        }
    }

    /// It is locked if nothing of it goes on.
    fn lock(&mut self, id: ClientId) {
        // What its calls have submitted before they ended.
        self.advance();
        let is_over = self.clients.get(&id).and_then(|client| {
            let page = client.page()?;
            // The calls first: what they have submitted is in the ring by their end.
            let has_calls = page.calls.load(Ordering::SeqCst) > 0;
            let is_taken = page.tail.load(Ordering::Acquire) == client.head;
            Some(!has_calls && is_taken)
        });
        if is_over == Some(true) && self.engine.is_idle(id) {
            self.stand(id, Standing::Locked);
        }
    }

    fn take_away(&mut self, id: ClientId) -> Result<(), u32> {
        if !self.devices.iter().all(|device| device.memory.is_alone(id)) {
            return Err(status::SHARED);
        }
        for device in &mut self.devices {
            device.memory.take_away(id);
        }
        self.stand(id, Standing::Away);
        self.show_contexts(id);
        Ok(())
    }

    fn bring_back(&mut self, id: ClientId) -> Result<(), u32> {
        for index in 0..self.devices.len() {
            let room = self.room(id, index as u64);
            if !self.devices[index].memory.has_room_again(room, id) {
                return Err(status::OUT_OF_MEMORY);
            }
        }
        for device in &mut self.devices {
            device.memory.bring_back(id);
        }
        self.stand(id, Standing::Locked);
        self.show_contexts(id);
        Ok(())
    }

    /// A process that is away has no context on any device.
    fn show_contexts(&self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        for (index, holding) in self.board().client[client.slot].holdings.iter().enumerate() {
            let own = client.contexts.iter().filter(|(_, on)| *on == index);
            let shown = match client.standing {
                Standing::Away => 0,
                _ => u32::try_from(own.count()).unwrap_or(u32::MAX),
            };
            holding.contexts.store(shown, Ordering::Relaxed);
        }
    }

    /// Who was to be locked by a client that is gone goes on.
    pub(super) fn give_up_locks_of(&mut self, gone: ClientId) {
        let waiting: Vec<ClientId> = self
            .clients
            .iter()
            .filter(|(_, client)| client.standing == Standing::Locking(gone))
            .map(|(id, _)| *id)
            .collect();
        for id in waiting {
            self.stand(id, Standing::Running);
        }
    }
}
