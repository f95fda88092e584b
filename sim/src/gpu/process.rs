//! The loop: rings in, engine, pages out; clients that come and go.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::fd::{AsFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{SockFlag, accept4, getsockopt, sockopt};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};

use super::checkpoint::Standing;
use super::events::EventPage;
use super::groups::{Group, GroupLimits, groups_of};
use super::setup::{describe, listen_at, seal};
use super::{Options, RunError};
use crate::hardware::engine::{Effect, Engine, Schedule, StreamId, Work};
use crate::hardware::memory::Memory;
use crate::hardware::{ClientId, ContextId, NumberMap};
use crate::proto::{
    Board, ClientPage, Command, MAX_CLIENTS, MAX_DEVICES, NO_LIMIT, RING_COMMANDS, Submission,
};
use crate::shared::{Access, Mapping, futex_wake, memory_file, now_ns, punch};

/// Shortest time between two wake-ups for events of the engine.
///
/// 30 µs: kernels shorter than that are told of in batches, which halves what the process costs
/// under a stream of them; whoever waits for one alone is woken in time, since nothing came before.
const MIN_WAKE_NS: u64 = 30_000;

/// How often an idle process looks whether its socket is still there.
const SOCKET_CHECK: Duration = Duration::from_millis(500);

/// What a descriptor in the epoll set stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Listener,
    Doorbell,
    Timer,
    Socket(ClientId),
    Death(ClientId),
    Export(u32),
}

impl Token {
    fn to_word(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Doorbell => 1,
            Self::Timer => 2,
            Self::Socket(client) => (1 << 32) | u64::from(client.0),
            Self::Death(client) => (2 << 32) | u64::from(client.0),
            Self::Export(number) => (3 << 32) | u64::from(number),
        }
    }

    fn from_word(word: u64) -> Self {
        let client = ClientId(word as u32);
        match (word >> 32, word) {
            (0, 0) => Self::Listener,
            (0, 1) => Self::Doorbell,
            (0, _) => Self::Timer,
            (1, _) => Self::Socket(client),
            (3, _) => Self::Export(client.0),
            _ => Self::Death(client),
        }
    }
}

/// A device: its bytes, and who holds them.
pub(super) struct Device {
    pub(super) file: OwnedFd,
    pub(super) memory: Memory,
    pub(super) limits: GroupLimits,
}

/// What a descriptor of a client's stands for.
pub(super) struct Export {
    /// Our end of the pipe; kept for the epoll set.
    pub(super) _end: OwnedFd,
    /// What tells the pipe from others.
    pub(super) inode: (u64, u64),
    pub(super) device: u64,
    /// 0: none.
    pub(super) block: u64,
    pub(super) word: u64,
}

/// A connected client.
pub(super) struct Client {
    pub(super) socket: OwnedFd,
    /// Kept for the epoll set; `None` where the process is not visible from here.
    _death: Option<OwnedFd>,
    pub(super) slot: usize,
    pub(super) page: Option<Mapping>,
    /// Commands taken from the ring.
    pub(super) head: u64,
    pub(super) contexts: Vec<(ContextId, usize)>,
    /// Where its process stood when it connected.
    pub(super) groups: Vec<Group>,
    /// `None` where it is not known.
    pub(super) user: Option<u32>,
    pub(super) standing: Standing,
    has_news: bool,
}

impl Client {
    pub(super) fn page(&self) -> Option<&ClientPage> {
        self.page.as_ref().map(Mapping::page)
    }
}

/// Everything that the process holds.
pub(super) struct Process {
    pub(super) options: Options,
    listener: OwnedFd,
    socket_inode: u64,
    epoll: Epoll,
    timer: TimerFd,
    pub(super) doorbell: EventFd,
    pub(super) board_file: OwnedFd,
    board: Mapping,
    pub(super) devices: Vec<Device>,
    pub(super) engine: Engine,
    pub(super) clients: NumberMap<ClientId, Client>,
    next_client: u32,
    pub(super) next_context: u64,
    pub(super) exports: BTreeMap<u32, Export>,
    pub(super) next_export: u32,
    pub(super) events: EventPage,
    free_slots: Vec<usize>,
    /// When the timer fired last.
    last_wake_ns: u64,
}

impl Process {
    pub(super) fn new(options: Options) -> Result<Self, RunError> {
        if !(1..=MAX_DEVICES).contains(&options.devices) {
            return Err(RunError::Devices(options.devices));
        }
        let memory_bytes = options.memory_bytes.unwrap_or(options.profile.memory_bytes);
        let is_possible = (2 << 20..=1 << 40).contains(&memory_bytes);
        if !is_possible || !memory_bytes.is_multiple_of(1 << 20) {
            return Err(RunError::Memory(memory_bytes));
        }
        let board_file = memory_file("sluice-sim-board", size_of::<Board>() as u64)?;
        let board = Mapping::new(&board_file, size_of::<Board>(), Access::Write)?;
        let mut devices = Vec::new();
        for index in 0..options.devices {
            let memory = Memory::new(memory_bytes);
            let file = memory_file(&format!("sluice-sim-gpu{index}"), memory.window())?;
            devices.push(Device {
                file,
                memory,
                limits: GroupLimits::default(),
            });
        }
        describe(board.page(), &options, memory_bytes);
        seal(&board_file)?;
        let schedule = Schedule {
            slice_ns: nanoseconds(options.slice),
            switch_ns: nanoseconds(options.switch),
            is_shared: options.is_shared,
        };
        let capacities = vec![options.profile.warps(); options.devices];
        let listener = listen_at(&options)?;
        let socket_inode = std::fs::metadata(&options.socket)?.ino();
        let process = Self {
            engine: Engine::new(schedule, &capacities, now_ns()),
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            timer: TimerFd::new(
                ClockId::CLOCK_MONOTONIC,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
            doorbell: EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?,
            options,
            listener,
            socket_inode,
            board_file,
            board,
            devices,
            clients: NumberMap::default(),
            next_client: 1,
            next_context: 1,
            exports: BTreeMap::new(),
            next_export: 0,
            events: EventPage::new()?,
            free_slots: (0..MAX_CLIENTS).rev().collect(),
            last_wake_ns: 0,
        };
        process.watch(&process.listener, Token::Listener)?;
        process.watch(&process.doorbell, Token::Doorbell)?;
        process.watch(&process.timer, Token::Timer)?;
        Ok(process)
    }

    fn watch(&self, file: impl AsFd, token: Token) -> nix::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN, token.to_word());
        self.epoll.add(file, event)
    }

    /// Listens for the end of the other end of a pipe, and for nothing else.
    pub(super) fn watch_end(&self, file: &OwnedFd, number: u32) -> nix::Result<()> {
        let event = EpollEvent::new(EpollFlags::empty(), Token::Export(number).to_word());
        self.epoll.add(file, event)
    }

    pub(super) fn board(&self) -> &Board {
        self.board.page()
    }

    pub(super) fn serve(&mut self) -> Result<(), RunError> {
        let mut events = vec![EpollEvent::empty(); 256];
        let check = u16::try_from(SOCKET_CHECK.as_millis()).unwrap_or(u16::MAX);
        loop {
            self.advance();
            self.set_timer()?;
            self.board().is_sleeping.store(1, Ordering::Relaxed);
            // Pairs with the fence in `Compute::publish`: it sees us asleep, or we see its tail.
            fence(Ordering::SeqCst);
            let timeout = if self.has_submissions() { 0 } else { check };
            let ready = match self.epoll.wait(&mut events, timeout) {
                Err(nix::Error::EINTR) => 0,
                other => other?,
            };
            self.board().is_sleeping.store(0, Ordering::Relaxed);
            if ready == 0 && timeout > 0 && !self.is_socket_there() {
                return Ok(());
            }
            for event in events.iter().take(ready) {
                self.handle(Token::from_word(event.data()));
            }
        }
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Listener => self.accept(),
            Token::Doorbell => {
                // What it rings for lies in the rings.
                let _ = self.doorbell.read();
            }
            Token::Timer => {
                self.last_wake_ns = now_ns();
                // It is set anew before the next sleep; that it had fired is all there was to know.
                let _ = self.timer.wait();
            }
            Token::Death(client) => self.end(client),
            Token::Export(number) => self.end_export(number),
            Token::Socket(client) => self.answer(client),
        }
    }

    fn is_socket_there(&self) -> bool {
        std::fs::metadata(&self.options.socket).is_ok_and(|found| found.ino() == self.socket_inode)
    }

    fn set_timer(&self) -> nix::Result<()> {
        let Some(next) = self.engine.next_event() else {
            return self.timer.unset();
        };
        let next = next.max(self.last_wake_ns + MIN_WAKE_NS);
        let when = TimeSpec::from_duration(Duration::from_nanos(next));
        self.timer.set(
            Expiration::OneShot(when),
            TimerSetTimeFlags::TFD_TIMER_ABSTIME,
        )
    }

    fn has_submissions(&self) -> bool {
        self.clients.values().any(|client| {
            client
                .page()
                .is_some_and(|page| page.tail.load(Ordering::Acquire) != client.head)
        })
    }

    /// Takes what was submitted, lets time pass until now, and tells what happened.
    pub(super) fn advance(&mut self) {
        let mut taken = Vec::new();
        for (id, client) in &mut self.clients {
            take_submissions(*id, client, &mut taken);
        }
        // Stable: what one client has submitted at the same moment stays in its order.
        taken.sort_by_key(|(_, submission)| submission.at_ns);
        let now = now_ns();
        for (client, submission) in taken {
            self.engine.advance(submission.at_ns.min(now));
            self.submit(client, &submission);
        }
        self.engine.advance(now);
        self.tell();
    }

    /// The board first: whoever learns that work is done must find it counted.
    pub(super) fn tell(&mut self) {
        self.update_board();
        self.publish();
    }

    fn submit(&mut self, client: ClientId, submission: &Submission) {
        let id = StreamId {
            client,
            slot: submission.stream,
        };
        let sequence = submission.sequence;
        let work = match submission.command {
            Command::Open { context, priority } => {
                // The opening is no operation: it has the number of the last one before it.
                let context = ContextId(context);
                self.engine.open_stream(id, context, priority, sequence);
                return;
            }
            Command::HostDone => return self.engine.host_done(id, sequence),
            Command::Kernel { duration_ns, warps } => Work::Kernel { duration_ns, warps },
            Command::Copy { duration_ns } => Work::Copy { duration_ns },
            Command::Mark { event, generation } => Work::Mark { event, generation },
            Command::Wait { on, sequence } => Work::Wait { on, sequence },
            Command::Host => Work::Host,
            Command::Spin { warps } => Work::Spin { warps },
            Command::Close => Work::Close,
        };
        self.engine.submit(id, sequence, work);
    }

    /// Writes the engine's effects into the pages of whom they concern, and wakes who waits.
    fn publish(&mut self) {
        for effect in self.engine.take_effects() {
            let Some(client) = self.clients.get_mut(&effect.client()) else {
                continue;
            };
            client.has_news = true;
            let Some(page) = client.page() else {
                continue;
            };
            write(page, effect);
        }
        for client in self.clients.values_mut() {
            let has_news = std::mem::take(&mut client.has_news);
            let Some(page) = client.page().filter(|_| has_news) else {
                continue;
            };
            page.generation.fetch_add(1, Ordering::SeqCst);
            // SeqCst; pairs with `Compute::wait_for_change`: we see the waiter, or it sees the news.
            if page.waiters.load(Ordering::SeqCst) > 0 {
                futex_wake(&page.generation);
            }
        }
    }

    fn update_board(&self) {
        self.board().change(|board| {
            for (index, device) in self.devices.iter().enumerate() {
                self.update_device(board, index, device);
            }
        });
    }

    fn update_device(&self, board: &Board, index: usize, device: &Device) {
        let memory = &device.memory;
        let now = self.engine.now();
        let until = self.engine.next_event().unwrap_or(u64::MAX);
        let row = &board.device[index];
        let time = self.engine.device_time(index);
        row.used_bytes.store(memory.used(), Ordering::Relaxed);
        row.busy_ns.store(time.busy_ns, Ordering::Relaxed);
        row.switch_ns.store(time.switch_ns, Ordering::Relaxed);
        let is_running = |id| self.engine.is_running(id, index);
        let since = if self.clients.keys().copied().any(is_running) {
            now
        } else {
            0
        };
        row.busy_since_ns.store(since, Ordering::Relaxed);
        row.busy_until_ns.store(until, Ordering::Relaxed);
        for (id, client) in &self.clients {
            let holding = &board.client[client.slot].holdings[index];
            let seen = self.seen(*id, device);
            let (limit, group) = seen.map_or((NO_LIMIT, 0), |seen| (seen.limit, seen.used));
            holding.limit_bytes.store(limit, Ordering::Relaxed);
            holding.group_used_bytes.store(group, Ordering::Relaxed);
            if client.page.is_none() {
                continue;
            }
            let since = if is_running(*id) { now } else { 0 };
            let held = memory.held_by(*id);
            let busy = self.engine.client_busy_ns(*id, index);
            holding.used_bytes.store(held, Ordering::Relaxed);
            holding.busy_ns.store(busy, Ordering::Relaxed);
            holding.busy_since_ns.store(since, Ordering::Relaxed);
            holding.busy_until_ns.store(until, Ordering::Relaxed);
        }
    }

    fn accept(&mut self) {
        let flags = SockFlag::SOCK_CLOEXEC;
        let Ok(socket) = accept4(&self.listener, flags) else {
            // Out of descriptors, most likely: the client still waits, so do not spin on it.
            std::thread::sleep(Duration::from_millis(1));
            return;
        };
        let peer = getsockopt(&socket, sockopt::PeerCredentials).ok();
        let pid = peer.map_or(0, |peer| peer.pid());
        let Some(slot) = self.free_slots.pop() else {
            // The client sees the end of the connection instead of an answer.
            return;
        };
        let id = ClientId(self.next_client);
        self.next_client = self.next_client.wrapping_add(1).max(1);
        let death = open_pid(pid);
        let is_watched = self.watch(&socket, Token::Socket(id)).is_ok()
            && death
                .as_ref()
                .is_none_or(|death| self.watch(death, Token::Death(id)).is_ok());
        if !is_watched {
            self.free_slots.push(slot);
            return;
        }
        let board = self.board();
        board.client[slot].pid.store(pid, Ordering::Release);
        let used = u32::try_from(slot + 1).unwrap_or(u32::MAX);
        board.client_slots.fetch_max(used, Ordering::AcqRel);
        let client = Client {
            socket,
            _death: death,
            slot,
            page: None,
            head: 0,
            contexts: Vec::new(),
            groups: groups_of(pid),
            user: peer.map(|peer| peer.uid()),
            standing: Standing::default(),
            has_news: false,
        };
        self.clients.insert(id, client);
        self.forget_groups();
    }

    /// Takes everything back that a client held.
    pub(super) fn end(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.engine.close_client(id);
        self.give_up_locks_of(id);
        self.events.end_client(id, client.slot);
        for device in &mut self.devices {
            let freed = device.memory.end_client(id);
            punch_all(&device.file, &freed);
        }
        self.board().change(|board| {
            let row = &board.client[client.slot];
            row.pid.store(0, Ordering::Relaxed);
            for holding in &row.holdings {
                holding.contexts.store(0, Ordering::Relaxed);
                holding.used_bytes.store(0, Ordering::Relaxed);
                holding.busy_ns.store(0, Ordering::Relaxed);
                holding.busy_since_ns.store(0, Ordering::Relaxed);
            }
        });
        self.free_slots.push(client.slot);
        self.tell();
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Punches `ranges` out of `file`. Should the machine refuse, their pages stay until they are used
/// again: nobody's account is wrong by it.
pub(super) fn punch_all(file: &OwnedFd, ranges: &[Range<u64>]) {
    for range in ranges {
        let _ = punch(file, range.start, range.end - range.start);
    }
}

/// A descriptor that becomes readable when process `pid` ends.
///
/// `None` where the process is not visible from here (another pid namespace) or the kernel has no
/// such descriptors; the end of the connection then is the only sign.
fn open_pid(pid: i32) -> Option<OwnedFd> {
    if pid <= 0 {
        return None;
    }
    // SAFETY: a system call on plain numbers.
    let opened = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let opened = RawFd::try_from(opened).ok().filter(|file| *file >= 0)?;
    // SAFETY: the kernel has just made this descriptor for us; nobody else knows it.
    Some(unsafe { OwnedFd::from_raw_fd(opened) })
}

/// Moves a client's new commands out of its ring.
fn take_submissions(id: ClientId, client: &mut Client, taken: &mut Vec<(ClientId, Submission)>) {
    let Some(page) = client.page.as_ref().map(Mapping::page::<ClientPage>) else {
        return;
    };
    // Acquire; pairs with the Release in `Compute::publish`.
    let tail = page.tail.load(Ordering::Acquire);
    // A tail that makes no sense is the client's own harm: at most one ring of it is read.
    let count = tail.wrapping_sub(client.head).min(RING_COMMANDS as u64);
    for number in 0..count {
        let at = client.head.wrapping_add(number) % RING_COMMANDS as u64;
        let words = page.ring[at as usize].read();
        taken.extend(Submission::from_words(&words).map(|submission| (id, submission)));
    }
    if count > 0 {
        client.head = tail;
        client.has_news = true;
        page.head.store(tail, Ordering::Release);
    }
}

/// Writes one effect into the page of whom it concerns.
fn write(page: &ClientPage, effect: Effect) {
    match effect {
        Effect::Done {
            stream, sequence, ..
        } => {
            if let Some(word) = page.streams.get(stream.slot as usize) {
                word.done.store(sequence, Ordering::Release);
            }
        }
        Effect::Marked {
            event,
            generation,
            at_ns,
            ..
        } => {
            if let Some(word) = page.events.get(event as usize)
                && word.generation.load(Ordering::Relaxed) < generation
            {
                word.at_ns.store(at_ns, Ordering::Relaxed);
                word.generation.store(generation, Ordering::Release);
            }
        }
        Effect::HostReady { stream, sequence } => {
            if let Some(word) = page.streams.get(stream.slot as usize) {
                word.host_ready.store(sequence, Ordering::Release);
                page.host_calls.fetch_add(1, Ordering::Release);
            }
        }
    }
}
