//! The `gpu` process: sockets, rings, deaths.
//!
//! One thread. It takes submissions from the clients' rings in the order of their times, lets the
//! [`Engine`] decide, writes what happened into the clients' pages, and sleeps until the engine's
//! next event, a doorbell, a request or a death.
//!
//! A client is gone when its connection or its process ends, whichever comes first: a forked child
//! that inherits the connection does not keep its parent's memory.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, connect,
    getsockopt, listen, recv, socket, sockopt,
};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use thiserror::Error;

use crate::client::{receive, send};
use crate::hardware::engine::{Effect, Engine, Schedule, StreamId, Work};
use crate::hardware::memory::{BlockId, Kind, Memory, MemoryError};
use crate::hardware::{ClientId, ContextId, NumberMap};
use crate::profile::{DriverVersion, PROFILES, Profile};
use crate::proto::{
    BOARD_MAGIC, Board, ClientPage, Command, LAYOUT, MAX_CLIENTS, MAX_DEVICES, RING_COMMANDS,
    Reply, Request, Submission, from_bytes, operation, status, to_bytes,
};
use crate::shared::{Access, Mapping, futex_wake, memory_file, now_ns, punch};

/// Longest run of one context while others have work. Flag: `--slice-us`.
///
/// 2 ms: the time slice that data-centre drivers use by default.
pub const DEFAULT_SLICE: Duration = Duration::from_millis(2);

/// What a change of contexts costs. Flag: `--switch-us`.
///
/// 100 µs: saving and loading a full context; native slicing loses 8 to 10 % by it.
pub const DEFAULT_SWITCH: Duration = Duration::from_micros(100);

/// Shortest time between two wake-ups for events of the engine.
///
/// 30 µs: kernels shorter than that are told of in batches, which halves what the process costs
/// under a stream of them; whoever waits for one alone is woken in time, since nothing came before.
const MIN_WAKE_NS: u64 = 30_000;

/// How often an idle process looks whether its socket is still there.
const SOCKET_CHECK: Duration = Duration::from_millis(500);

/// How the hardware is built.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where clients connect: `--socket`.
    pub socket: PathBuf,
    /// How many devices, at most [`MAX_DEVICES`]: `--devices`.
    pub devices: usize,
    /// What they are: `--profile`.
    pub profile: &'static Profile,
    /// Device memory, if other than the profile's: `--memory`.
    pub memory_bytes: Option<u64>,
    /// See [`DEFAULT_SLICE`].
    pub slice: Duration,
    /// See [`DEFAULT_SWITCH`].
    pub switch: Duration,
    /// Device memory that each context takes for itself: `--context-overhead`.
    pub context_overhead_bytes: u64,
    /// The driver that is reported: `--driver-version`.
    pub driver: DriverVersion,
    /// Whether the process is killed when the thread that started it ends.
    pub die_with_parent: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("gpu.sock"),
            devices: 1,
            profile: &PROFILES[0],
            memory_bytes: None,
            slice: DEFAULT_SLICE,
            switch: DEFAULT_SWITCH,
            context_overhead_bytes: 0,
            driver: DriverVersion::default(),
            die_with_parent: false,
        }
    }
}

/// Why the process did not start or had to stop.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another process answers on the socket.
    #[error("another process already answers at {0}")]
    InUse(PathBuf),
    /// No devices, or too many.
    #[error("{0} devices asked; from 1 to {MAX_DEVICES} are possible")]
    Devices(usize),
    /// No memory, or no whole number of MiB.
    #[error(
        "{0} bytes of device memory asked; a multiple of 1 MiB from 2 MiB to 1 TiB is possible"
    )]
    Memory(u64),
    /// The socket could not be made.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The operating system refused something else.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<nix::Error> for RunError {
    fn from(error: nix::Error) -> Self {
        Self::System(error.into())
    }
}

/// Is the hardware until the socket's file is taken away.
///
/// Prints nothing; it is ready when the socket accepts. A file left behind by a dead process is
/// replaced.
///
/// # Errors
/// [`RunError`]; once it serves, only what the operating system refuses to the process as a whole.
pub fn run(options: Options) -> Result<(), RunError> {
    if options.die_with_parent {
        nix::sys::prctl::set_pdeathsig(Some(nix::sys::signal::Signal::SIGKILL))?;
    }
    // A timer that is late by the default slack of 50 µs would show in every wake-up.
    nix::sys::prctl::set_timerslack(1)?;
    allow_many_files()?;
    let mut process = Process::new(options)?;
    process.serve()
}

/// Two descriptors for each client are more than the usual soft limit of 1024 allows.
fn allow_many_files() -> nix::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
}

/// What a descriptor in the epoll set stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    Listener,
    Doorbell,
    Timer,
    Socket(ClientId),
    Death(ClientId),
}

impl Token {
    fn to_word(self) -> u64 {
        match self {
            Self::Listener => 0,
            Self::Doorbell => 1,
            Self::Timer => 2,
            Self::Socket(client) => (1 << 32) | u64::from(client.0),
            Self::Death(client) => (2 << 32) | u64::from(client.0),
        }
    }

    fn from_word(word: u64) -> Self {
        let client = ClientId(word as u32);
        match (word >> 32, word) {
            (0, 0) => Self::Listener,
            (0, 1) => Self::Doorbell,
            (0, _) => Self::Timer,
            (1, _) => Self::Socket(client),
            _ => Self::Death(client),
        }
    }
}

struct Device {
    file: OwnedFd,
    memory: Memory,
}

struct Client {
    socket: OwnedFd,
    /// Kept for the epoll set; `None` where the process is not visible from here.
    _death: Option<OwnedFd>,
    slot: usize,
    page: Option<Mapping>,
    /// Commands taken from the ring.
    head: u64,
    contexts: Vec<(ContextId, usize)>,
    has_news: bool,
}

impl Client {
    fn page(&self) -> Option<&ClientPage> {
        self.page.as_ref().map(Mapping::page)
    }
}

struct Process {
    options: Options,
    listener: OwnedFd,
    socket_inode: u64,
    epoll: Epoll,
    timer: TimerFd,
    doorbell: EventFd,
    board_file: OwnedFd,
    board: Mapping,
    devices: Vec<Device>,
    engine: Engine,
    clients: NumberMap<ClientId, Client>,
    next_client: u32,
    next_context: u64,
    free_slots: Vec<usize>,
    /// When the timer fired last.
    last_wake_ns: u64,
}

impl Process {
    fn new(options: Options) -> Result<Self, RunError> {
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
            devices.push(Device { file, memory });
        }
        describe(board.page(), &options, memory_bytes);
        seal(&board_file)?;
        let schedule = Schedule {
            slice_ns: nanoseconds(options.slice),
            switch_ns: nanoseconds(options.switch),
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

    fn board(&self) -> &Board {
        self.board.page()
    }

    fn serve(&mut self) -> Result<(), RunError> {
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
    fn advance(&mut self) {
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
    fn tell(&mut self) {
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
                self.update_device(board, index, &device.memory);
            }
        });
    }

    fn update_device(&self, board: &Board, index: usize, memory: &Memory) {
        let now = self.engine.now();
        let until = self.engine.next_event().unwrap_or(u64::MAX);
        let row = &board.device[index];
        let time = self.engine.device_time(index);
        let running = self.engine.running_client(index);
        row.used_bytes.store(memory.used(), Ordering::Relaxed);
        row.busy_ns.store(time.busy_ns, Ordering::Relaxed);
        row.switch_ns.store(time.switch_ns, Ordering::Relaxed);
        let since = running.map_or(0, |_| now);
        row.busy_since_ns.store(since, Ordering::Relaxed);
        row.busy_until_ns.store(until, Ordering::Relaxed);
        for (id, client) in &self.clients {
            if client.page.is_none() {
                continue;
            }
            let holding = &board.client[client.slot].holdings[index];
            let since = if running == Some(*id) { now } else { 0 };
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
        let pid = getsockopt(&socket, sockopt::PeerCredentials).map_or(0, |peer| peer.pid());
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
            has_news: false,
        };
        self.clients.insert(id, client);
    }

    /// Takes everything back that a client held.
    fn end(&mut self, id: ClientId) {
        let Some(client) = self.clients.remove(&id) else {
            return;
        };
        self.engine.close_client(id);
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

    /// Reads one request and answers it; a client that is gone or speaks nonsense is ended.
    fn answer(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let mut peek = [0; 1];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        if let Err(nix::Error::EAGAIN) = recv(client.socket.as_raw_fd(), &mut peek, flags) {
            return;
        }
        let Ok(Some((bytes, _))) = receive(&client.socket) else {
            return self.end(id);
        };
        let request = Request::from_words(&from_bytes(&bytes));
        // What was submitted before the request happened before it.
        self.advance();
        let mut files = Vec::new();
        let reply = match self.perform(id, &request, &mut files) {
            Ok(values) => Reply {
                status: status::OK,
                reserved: 0,
                values,
            },
            Err(refusal) => Reply {
                status: refusal,
                ..Reply::default()
            },
        };
        self.tell();
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        if send(&client.socket, &to_bytes(&reply.to_words()), &numbers).is_err() {
            self.end(id);
        }
    }

    fn perform(
        &mut self,
        id: ClientId,
        request: &Request,
        files: &mut Vec<OwnedFd>,
    ) -> Result<[u64; 7], u32> {
        let [first, second, third, ..] = request.arguments;
        let mut values = [0; 7];
        match request.operation {
            operation::HELLO => values[0] = self.hello(id, first, second == 1, files)?,
            operation::DEVICE_MEMORY => {
                let device = self.device(first)?;
                files.push(copy_of(&device.file)?);
                values[0] = device.memory.window();
            }
            operation::CONTEXT_OPEN => values[0] = self.open_context(id, first)?,
            operation::CONTEXT_CLOSE => self.close_context(id, ContextId(first))?,
            operation::ALLOCATE => {
                let kind = self.kind(id, first, third)?;
                let placed = self.device(first)?.memory.allocate(id, kind, second);
                let placed = placed.map_err(|error| refusal(&error))?;
                values[..3].copy_from_slice(&[placed.block.0, placed.offset, placed.charged_bytes]);
            }
            operation::RETAIN => self
                .device(first)?
                .memory
                .retain(id, BlockId(second))
                .map_err(|error| refusal(&error))?,
            operation::RELEASE => {
                let device = self.device(first)?;
                let freed = device.memory.release(id, BlockId(second));
                if let Some(range) = freed.map_err(|error| refusal(&error))? {
                    punch_all(&device.file, &[range]);
                }
            }
            _ => return Err(status::INVALID),
        }
        Ok(values)
    }

    fn hello(
        &mut self,
        id: ClientId,
        layout: u64,
        computes: bool,
        files: &mut Vec<OwnedFd>,
    ) -> Result<u64, u32> {
        if layout != u64::from(LAYOUT) {
            return Err(status::INVALID);
        }
        files.push(copy_of(&self.board_file)?);
        let client = self.clients.get_mut(&id).ok_or(status::INVALID)?;
        if computes {
            let bytes = size_of::<ClientPage>();
            let page = memory_file("sluice-sim-client", bytes as u64)
                .and_then(|file| Ok((Mapping::new(&file, bytes, Access::Write)?, file)));
            let (page, file) = page.map_err(|_| status::EXHAUSTED)?;
            client.page = Some(page);
            client.head = 0;
            files.push(file);
            files.push(copy_of(&self.doorbell)?);
        }
        Ok(client.slot as u64)
    }

    fn device(&mut self, index: u64) -> Result<&mut Device, u32> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.devices.get_mut(index))
            .ok_or(status::INVALID)
    }

    fn kind(&self, id: ClientId, device: u64, context: u64) -> Result<Kind, u32> {
        if context == 0 {
            return Ok(Kind::Physical);
        }
        let context = ContextId(context);
        let is_own = self.clients.get(&id).is_some_and(|client| {
            let mut contexts = client.contexts.iter();
            contexts.any(|(own, on)| *own == context && *on as u64 == device)
        });
        is_own
            .then_some(Kind::Linear(context))
            .ok_or(status::INVALID)
    }

    fn open_context(&mut self, id: ClientId, device: u64) -> Result<u64, u32> {
        let overhead = self.options.context_overhead_bytes;
        let context = ContextId(self.next_context);
        let memory = &mut self.device(device)?.memory;
        memory
            .charge_context(id, context, overhead)
            .map_err(|error| refusal(&error))?;
        let index = usize::try_from(device).map_err(|_| status::INVALID)?;
        self.next_context += 1;
        self.engine.open_context(id, context, index);
        let client = self.clients.get_mut(&id).ok_or(status::INVALID)?;
        client.contexts.push((context, index));
        let slot = client.slot;
        self.board().client[slot].holdings[index]
            .contexts
            .fetch_add(1, Ordering::Relaxed);
        Ok(context.0)
    }

    fn close_context(&mut self, id: ClientId, context: ContextId) -> Result<(), u32> {
        let client = self.clients.get_mut(&id).ok_or(status::INVALID)?;
        let at = client.contexts.iter().position(|(own, _)| *own == context);
        let (_, index) = client.contexts.remove(at.ok_or(status::INVALID)?);
        let slot = client.slot;
        self.engine.close_context(context);
        let device = &mut self.devices[index];
        let freed = device.memory.end_context(context);
        punch_all(&device.file, &freed);
        self.board().client[slot].holdings[index]
            .contexts
            .fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn copy_of(file: &impl AsFd) -> Result<OwnedFd, u32> {
    file.as_fd()
        .try_clone_to_owned()
        .map_err(|_| status::EXHAUSTED)
}

fn refusal(error: &MemoryError) -> u32 {
    match error {
        MemoryError::OutOfMemory { .. } => status::OUT_OF_MEMORY,
        MemoryError::Size(_) | MemoryError::NoBlock => status::INVALID,
    }
}

/// Punches `ranges` out of `file`. Should the machine refuse, their pages stay until they are used
/// again: nobody's account is wrong by it.
fn punch_all(file: &OwnedFd, ranges: &[Range<u64>]) {
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

/// From now on nobody but this process can write the board, and nobody can resize it.
fn seal(file: &OwnedFd) -> io::Result<()> {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    /// `F_SEAL_FUTURE_WRITE`, Linux 5.1: existing writable mappings stay, new ones are refused.
    const FUTURE_WRITE: i32 = 0x10;
    let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
    let seals = SealFlag::from_bits_retain(FUTURE_WRITE);
    fcntl(file, FcntlArg::F_ADD_SEALS(seals))?;
    Ok(())
}

/// Fills in what never changes.
fn describe(board: &Board, options: &Options, memory_bytes: u64) {
    let profile = PROFILES
        .iter()
        .position(|known| known.word == options.profile.word)
        .and_then(|index| u32::try_from(index).ok())
        .unwrap_or(0);
    let devices = u32::try_from(options.devices).unwrap_or(0);
    for (index, row) in (0..devices).zip(&board.device) {
        row.profile.store(profile, Ordering::Relaxed);
        row.pci_bus.store(index + 1, Ordering::Relaxed);
        row.uuid_high
            .store(0x5c1c_e000_0000_4000, Ordering::Relaxed);
        row.uuid_low
            .store(0x8000_0000_0000_0001 + u64::from(index), Ordering::Relaxed);
        row.total_bytes.store(memory_bytes, Ordering::Relaxed);
        let window = Memory::window_for(memory_bytes);
        row.window_bytes.store(window, Ordering::Relaxed);
    }
    board
        .cuda_version
        .store(options.driver.cuda, Ordering::Relaxed);
    board.set_driver_version(&options.driver.nvml);
    board.devices.store(devices, Ordering::Relaxed);
    board.layout.store(LAYOUT, Ordering::Relaxed);
    board.magic.store(BOARD_MAGIC, Ordering::Release);
}

/// Listens at the socket; a file that a dead process has left is replaced.
fn listen_at(options: &Options) -> Result<OwnedFd, RunError> {
    let path = &options.socket;
    let failed = |source: nix::Error| RunError::Listen {
        path: path.clone(),
        source: source.into(),
    };
    let address = UnixAddr::new(path).map_err(failed)?;
    let new = || {
        let flags = SockFlag::SOCK_CLOEXEC;
        socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)
    };
    if path.exists() {
        let probe = new().map_err(failed)?;
        if connect(probe.as_raw_fd(), &address).is_ok() {
            return Err(RunError::InUse(path.clone()));
        }
        // Somebody else may have taken the file away meanwhile; binding shows what is there now.
        let _ = std::fs::remove_file(path);
    }
    let listener = new().map_err(failed)?;
    bind(listener.as_raw_fd(), &address).map_err(failed)?;
    // Clients are other users' processes in containers; what guards the socket is its folder.
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666))?;
    let backlog = Backlog::new(1024).unwrap_or(Backlog::MAXCONN);
    listen(&listener, backlog).map_err(failed)?;
    Ok(listener)
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
