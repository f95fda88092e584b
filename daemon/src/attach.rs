//! The attach thread: processes come, hold a slot, and end.
//!
//! It owns the listener, every client's socket and pidfd. A process is gone when its pidfd says so
//! (zombies are), or when its socket has ended *and* it no longer maps the usage page: a program may
//! close all its descriptors and still hold memory, and one that has called `exec` lives on without.
//!
//! What it does not do: it never waits for a client. A message that is not there yet is an event later.

use crate::clients::{Client, Clients};
use crate::descriptors::{Peer, accept, peer, receive};
use crate::messages::{attached, read_request, reply, send, send_pages};
use crate::pages::{Usage, inode};
use crate::process;
use crate::recovery::Recovery;
use crate::state::{Shared, Watched};
use crate::sweep::KeptBack;
use ffi::wire::{ATTACH_BYTES, AttachRequest, LAYOUT, attach_flags, attach_status};
use nix::errno::Errno;
use nix::sys::epoll::{EpollEvent, EpollTimeout};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

/// Connections that may be open without having said anything; the oldest goes when one more comes.
///
/// As many as the listener's backlog: an honest process speaks right after it connects.
const MAX_UNSPOKEN: usize = 1024;

/// Connections of one tenant that only look: as many as may hold a slot.
const MAX_OBSERVERS: u32 = ffi::wire::MAX_SLOTS as u32;

/// Connections taken at once before other events get their turn.
const ACCEPT_BATCH: usize = 64;

/// How long the thread rests when the system has no descriptor left for one more connection.
const NO_DESCRIPTORS_REST: Duration = Duration::from_millis(10);

/// Everything that the attach thread has.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) clients: Clients,
    pub(crate) kept_back: Vec<KeptBack>,
    listener: OwnedFd,
    unspoken: BTreeMap<u64, OwnedFd>,
    next_number: u64,
    recovery: Recovery,
}

/// The kind of "no" that a process gets.
type Status = u32;

impl Server {
    /// A server on `listener`, which has taken over the tenants in the shared state.
    pub(crate) fn new(shared: Arc<Shared>, listener: OwnedFd) -> io::Result<Self> {
        shared.watch(listener.as_fd(), Watched::Listener)?;
        let mut server = Self {
            shared,
            clients: Clients::default(),
            kept_back: Vec::new(),
            listener,
            unspoken: BTreeMap::new(),
            next_number: 1,
            recovery: Recovery::default(),
        };
        server.recovery = server.take_over();
        Ok(server)
    }

    /// Runs until the daemon stops.
    pub(crate) fn run(mut self) {
        let mut events = [EpollEvent::empty(); 64];
        while !self.shared.is_stopping() {
            let waits = [self.recovery.remaining(), self.answer_overdue()];
            let timeout = match waits.into_iter().flatten().min() {
                // Rounded up, so that the deadline has passed when the time is over.
                Some(left) => EpollTimeout::try_from(left + Duration::from_millis(1))
                    .unwrap_or(EpollTimeout::ZERO),
                None => EpollTimeout::NONE,
            };
            let count = match self.shared.epoll().wait(&mut events, timeout) {
                Ok(count) => count,
                Err(Errno::EINTR) => 0,
                Err(errno) => {
                    tracing::error!(%errno, "cannot wait for clients");
                    return;
                }
            };
            for event in events.iter().take(count) {
                self.handle(Watched::unpack(event.data()));
            }
            if self.recovery.is_due() {
                self.finish_recovery();
                self.recovery = Recovery::default();
            }
        }
    }

    /// The number of the next client.
    pub(crate) fn number(&mut self) -> u64 {
        self.next_number += 1;
        self.next_number
    }

    fn handle(&mut self, what: Watched) {
        match what {
            Watched::Listener => self.accept_some(),
            Watched::Stop => {}
            Watched::Owner(tenant) => self.shared.owner_gone(tenant),
            Watched::Process(number) => self.gone(number),
            Watched::Socket(number) => match self.unspoken.remove(&number) {
                Some(socket) => self.hear(number, socket),
                None => self.socket_ended(number),
            },
        }
    }

    fn accept_some(&mut self) {
        for _ in 0..ACCEPT_BATCH {
            match accept(self.listener.as_fd()) {
                Ok(socket) => {
                    let number = self.number();
                    // Most have sent their request by now, and need no watch for it.
                    self.hear(number, socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    let is_room_made = self.unspoken.pop_first().is_some();
                    if !is_room_made {
                        tracing::warn!(%error, "cannot take a connection");
                        std::thread::sleep(NO_DESCRIPTORS_REST);
                        return;
                    }
                }
            }
        }
    }

    /// Reads a request, if it is there, and answers it.
    fn hear(&mut self, number: u64, socket: OwnedFd) {
        let mut message = [0; ATTACH_BYTES];
        match receive(socket.as_fd(), &mut message) {
            Ok((0, _)) => {}
            Ok((length, descriptor)) => {
                let request = message.get(..length).and_then(read_request);
                self.answer(number, socket, request, descriptor);
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let watched = Watched::Socket(number);
                if self.shared.watch(socket.as_fd(), watched).is_ok() {
                    self.unspoken.insert(number, socket);
                }
                if self.unspoken.len() > MAX_UNSPOKEN {
                    self.unspoken.pop_first();
                }
            }
            Err(_) => {
                let _ = send(socket.as_fd(), &reply(attach_status::MALFORMED), &[]);
            }
        }
    }

    fn answer(
        &mut self,
        number: u64,
        socket: OwnedFd,
        request: Option<AttachRequest>,
        descriptor: Option<OwnedFd>,
    ) {
        let served = match request {
            None => Err(attach_status::MALFORMED),
            Some(request) if request.layout != LAYOUT => Err(attach_status::LAYOUT),
            Some(request) => self.serve(number, &socket, &request, descriptor),
        };
        match served {
            Ok(Some(client)) => self.keep(client, socket),
            Ok(None) => {}
            Err(status) => {
                tracing::debug!(status, "attach refused");
                // Whoever does not read the answer finds the end of the connection.
                let _ = send(socket.as_fd(), &reply(status), &[]);
            }
        }
    }

    /// Does what a request asks; says whose the connection is from now on, if anybody's.
    fn serve(
        &mut self,
        number: u64,
        socket: &OwnedFd,
        request: &AttachRequest,
        descriptor: Option<OwnedFd>,
    ) -> Result<Option<u64>, Status> {
        let peer = peer(socket.as_fd()).ok_or(attach_status::STRANGER)?;
        let tenant = self
            .identify(request, &peer)
            .ok_or(attach_status::STRANGER)?;
        if request.flags & attach_flags::SWEEP != 0 {
            self.sweep_and_answer(tenant, socket);
            return Ok(None);
        }
        if request.flags & attach_flags::OBSERVER != 0 {
            self.observe(number, socket, tenant, &peer)?;
            return Ok(Some(number));
        }
        if request.flags & attach_flags::REJOIN != 0 {
            return self
                .rejoin(number, socket, tenant, peer, request, descriptor)
                .map(Some);
        }
        self.join(number, socket, tenant, peer)?;
        Ok(Some(number))
    }

    /// Whose process sent a request.
    ///
    /// Where it stands says so first, which the kernel knows: a process in a registered container is that
    /// container's, whatever token it shows.
    fn identify(&self, request: &AttachRequest, peer: &Peer) -> Option<u64> {
        let has_containers = {
            let state = self.shared.state();
            state
                .registry
                .tenants()
                .any(|tenant| tenant.container.is_some())
        };
        let place = has_containers.then(|| {
            // Files of /proc, so not under the lock.
            (
                process::control_group(peer.pid),
                process::pid_namespace(peer.pid),
            )
        });
        let state = self.shared.state();
        let by_place = place
            .and_then(|(group, namespace)| state.registry.by_place(group.as_deref(), namespace));
        by_place
            .or_else(|| state.registry.by_token(&request.token))
            .map(|tenant| tenant.id)
    }

    fn observe(
        &mut self,
        number: u64,
        socket: &OwnedFd,
        id: u64,
        peer: &Peer,
    ) -> Result<(), Status> {
        self.need_usage(id)?;
        let mut state = self.shared.state();
        let tenant = state
            .registry
            .tenant_mut(id)
            .ok_or(attach_status::STRANGER)?;
        if tenant.observers >= MAX_OBSERVERS {
            return Err(attach_status::FULL);
        }
        tenant.observers += 1;
        let client = Client {
            tenant: id,
            slot: None,
            pid: peer.pid,
            socket: None,
            pidfd: None,
        };
        self.clients.insert(number, client);
        // Where it fails, the socket's end is the next event.
        let _ = send_pages(socket.as_fd(), &attached(id, 0, 0), state.pages.get(&id));
        Ok(())
    }

    fn join(&mut self, number: u64, socket: &OwnedFd, id: u64, peer: Peer) -> Result<(), Status> {
        self.need_usage(id)?;
        let process = process::identify(peer.pid).ok_or(attach_status::STRANGER)?;
        self.forget_former_life(id, peer.pid);
        let mut state = self.shared.state();
        let mut taken = state.take_slot(id, process);
        if taken == Err(attach_status::FULL) {
            drop(state);
            self.sweep(id);
            state = self.shared.state();
            taken = state.take_slot(id, process);
        }
        let (slot, generation, is_first) = taken?;
        drop(state);
        self.shared
            .watch(peer.pidfd.as_fd(), Watched::Process(number))
            .map_err(|_| attach_status::LATER)
            .inspect_err(|_| self.shared.state().reap(id, slot))?;
        let client = Client {
            tenant: id,
            slot: Some(slot),
            pid: peer.pid,
            socket: None,
            pidfd: Some(peer.pidfd),
        };
        self.clients.insert(number, client);
        if is_first {
            // Before the process has its pages: a successor must know that there are some to look for.
            self.shared.save();
        }
        let state = self.shared.state();
        let answer = attached(id, slot, generation);
        // Where it fails, the socket's end is the next event.
        let _ = send_pages(socket.as_fd(), &answer, state.pages.get(&id));
        drop(state);
        self.shared.bells.ring();
        tracing::debug!(tenant = id, pid = peer.pid, slot, "process attached");
        Ok(())
    }

    /// A process that holds a slot comes back, after a daemon's end or with a new connection; says which
    /// client it is.
    fn rejoin(
        &mut self,
        number: u64,
        socket: &OwnedFd,
        id: u64,
        peer: Peer,
        request: &AttachRequest,
        descriptor: Option<OwnedFd>,
    ) -> Result<u64, Status> {
        self.accept_usage(id, descriptor)?;
        let slot = request.slot;
        {
            let state = self.shared.state();
            let tenant = state.registry.tenant(id).ok_or(attach_status::STRANGER)?;
            let is_its_own = tenant.slots.get(&slot).is_some_and(|holder| {
                holder.process.pid == peer.pid && holder.generation == request.slot_generation
            });
            if !is_its_own {
                return Err(attach_status::MALFORMED);
            }
        }
        let known = self.clients.holder(id, slot);
        let number = match known {
            Some(known) => known,
            None => {
                let client = Client {
                    tenant: id,
                    slot: Some(slot),
                    pid: peer.pid,
                    socket: None,
                    pidfd: None,
                };
                self.clients.insert(number, client);
                number
            }
        };
        self.shared
            .watch(peer.pidfd.as_fd(), Watched::Process(number))
            .map_err(|_| attach_status::LATER)?;
        if let Some(client) = self.clients.client_mut(number) {
            client.pidfd = Some(peer.pidfd);
        }
        let answer = attached(id, slot, request.slot_generation);
        let mut state = self.shared.state();
        if let Some(pages) = state.pages.get_mut(&id) {
            pages.absent.remove(&slot);
        }
        let _ = send_pages(socket.as_fd(), &answer, state.pages.get(&id));
        drop(state);
        self.shared.bells.ring();
        tracing::debug!(tenant = id, pid = peer.pid, slot, "process came back");
        Ok(number)
    }

    /// Gives `socket` to the client with this number, and watches it.
    fn keep(&mut self, number: u64, socket: OwnedFd) {
        // It may be watched already, from before it said anything and under another number.
        let _ = self.shared.epoll().delete(&socket);
        let watched = self.shared.watch(socket.as_fd(), Watched::Socket(number));
        if let Some(client) = self.clients.client_mut(number) {
            client.socket = Some(socket);
        }
        if watched.is_err() {
            self.socket_ended(number);
        }
    }

    /// A client's socket has ended, or says what no client says.
    fn socket_ended(&mut self, number: u64) {
        let Some(client) = self.clients.client_mut(number) else {
            return;
        };
        // Closing it ends the watch.
        client.socket = None;
        let (tenant, pid, is_observer) = (client.tenant, client.pid, client.slot.is_none());
        if is_observer || !self.maps_usage(tenant, pid) {
            self.gone(number);
        } else {
            tracing::debug!(
                tenant,
                pid,
                "process closed its connection and still holds memory"
            );
        }
    }

    /// Whether a process still maps its tenant's usage page; yes, where nobody can tell.
    pub(crate) fn maps_usage(&self, tenant: u64, pid: u32) -> bool {
        let inode = {
            let state = self.shared.state();
            let usage = state
                .pages
                .get(&tenant)
                .and_then(|pages| pages.usage.as_ref());
            usage.and_then(|usage| usage.inode().ok())
        };
        inode.is_none_or(|inode| process::maps_usage(pid, inode).unwrap_or(true))
    }

    /// A client is gone: what it held is given back.
    pub(crate) fn gone(&mut self, number: u64) {
        let Some(client) = self.clients.remove(number) else {
            return;
        };
        let mut state = self.shared.state();
        match client.slot {
            Some(slot) => state.reap(client.tenant, slot),
            None => {
                if let Some(tenant) = state.registry.tenant_mut(client.tenant) {
                    tenant.observers = tenant.observers.saturating_sub(1);
                }
            }
        }
        state.remove_if_over(client.tenant);
        drop(state);
        self.shared.bells.ring();
        self.answer_kept_back(client.tenant);
    }

    /// A process that attaches anew has called `exec` since it held a slot without a connection.
    fn forget_former_life(&mut self, tenant: u64, pid: u32) {
        let former: Vec<u64> = self
            .clients
            .holders(tenant)
            .filter(|(_, client)| client.pid == pid && client.socket.is_none())
            .map(|(number, _)| number)
            .collect();
        for number in former {
            if !self.maps_usage(tenant, pid) {
                self.gone(number);
            }
        }
    }

    /// Sees to it that a tenant has a usage page: its own of before if anybody may still hold it.
    fn need_usage(&mut self, id: u64) -> Result<(), Status> {
        let mut state = self.shared.state();
        let state = &mut *state;
        let pages = state.pages.get_mut(&id).ok_or(attach_status::LATER)?;
        if pages.usage.is_some() {
            return Ok(());
        }
        if self.recovery.remaining().is_some() || self.clients.has_holders(id) {
            return Err(attach_status::LATER);
        }
        let tenant = state
            .registry
            .tenant_mut(id)
            .ok_or(attach_status::STRANGER)?;
        tenant.slots.clear();
        pages.usage = Some(Usage::create(tenant).map_err(|_| attach_status::LATER)?);
        Ok(())
    }

    /// Takes the usage page that a process brings back, or checks that it is the one at hand.
    fn accept_usage(&mut self, id: u64, descriptor: Option<OwnedFd>) -> Result<(), Status> {
        let brought = descriptor
            .as_ref()
            .and_then(|descriptor| inode(descriptor.as_fd()).ok());
        let known = {
            let state = self.shared.state();
            let pages = state.pages.get(&id).ok_or(attach_status::LATER)?;
            pages.usage.as_ref().map(|usage| usage.inode().ok())
        };
        match (known, descriptor) {
            (Some(known), _) if brought.is_none() || brought == known => Ok(()),
            (None, Some(descriptor)) => self
                .adopt(id, descriptor)
                .then_some(())
                .ok_or(attach_status::MALFORMED),
            _ => Err(attach_status::MALFORMED),
        }
    }
}
