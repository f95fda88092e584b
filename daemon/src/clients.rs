//! The clients that the attach thread watches: each has a socket, a process, or both.

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};

/// One client of one tenant.
#[derive(Debug)]
pub(crate) struct Client {
    /// Its tenant.
    pub(crate) tenant: u64,
    /// Its slot; `None`: it only looks.
    pub(crate) slot: Option<u32>,
    /// Its process.
    pub(crate) pid: u32,
    /// Its connection; `None`: it has closed it, or has not come back to this daemon yet.
    pub(crate) socket: Option<OwnedFd>,
    /// Tells when the process has ended; only a slot needs that.
    pub(crate) pidfd: Option<OwnedFd>,
}

/// All clients, by a number that is never used again.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    by_number: BTreeMap<u64, Client>,
    by_slot: BTreeMap<(u64, u32), u64>,
}

impl Clients {
    /// Adds a client under `number`.
    pub(crate) fn insert(&mut self, number: u64, client: Client) {
        if let Some(slot) = client.slot {
            self.by_slot.insert((client.tenant, slot), number);
        }
        self.by_number.insert(number, client);
    }

    /// The client with this number.
    pub(crate) fn client(&self, number: u64) -> Option<&Client> {
        self.by_number.get(&number)
    }

    /// The client with this number, to be changed.
    pub(crate) fn client_mut(&mut self, number: u64) -> Option<&mut Client> {
        self.by_number.get_mut(&number)
    }

    /// Removes a client; its descriptors are closed with it, which ends their watches.
    pub(crate) fn remove(&mut self, number: u64) -> Option<Client> {
        let client = self.by_number.remove(&number)?;
        if let Some(slot) = client.slot {
            self.by_slot.remove(&(client.tenant, slot));
        }
        Some(client)
    }

    /// Who holds a slot.
    pub(crate) fn holder(&self, tenant: u64, slot: u32) -> Option<u64> {
        self.by_slot.get(&(tenant, slot)).copied()
    }

    /// Whether anybody holds a slot of `tenant`.
    pub(crate) fn has_holders(&self, tenant: u64) -> bool {
        self.holders(tenant).next().is_some()
    }

    /// Everybody who holds a slot of `tenant`.
    pub(crate) fn holders(&self, tenant: u64) -> impl Iterator<Item = (u64, &Client)> {
        let slots = self.by_slot.range((tenant, 0)..=(tenant, u32::MAX));
        slots.filter_map(|(_, number)| Some((*number, self.by_number.get(number)?)))
    }

    /// Those holders of a slot of `tenant` whose process has ended. One system call, no waiting.
    pub(crate) fn dead(&self, tenant: u64) -> Vec<u64> {
        let (numbers, mut polled): (Vec<u64>, Vec<PollFd<'_>>) = self
            .holders(tenant)
            .filter_map(|(number, client)| {
                let pidfd = client.pidfd.as_ref()?;
                Some((number, PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)))
            })
            .unzip();
        if poll(&mut polled, PollTimeout::ZERO).is_err() {
            return Vec::new();
        }
        let ended = numbers.into_iter().zip(polled);
        ended
            .filter(|(_, polled)| polled.any() == Some(true))
            .map(|(number, _)| number)
            .collect()
    }
}
