//! What the stand-in's client libraries are built on.
//!
//! [`Gpu`] is a connection that only looks: devices, memory, processes, how busy they are. It reads
//! the board and never asks, so it costs no device memory and cannot hang. [`Compute`] adds what a
//! CUDA process needs: contexts, memory, streams.
//!
//! A `gpu` process that has gone away turns every call into [`GpuError::Gone`]; every wait here looks
//! for that at least ten times a second.
//!
//! Lock order: the control socket's and the ring's locks are never held together, and neither while
//! something waits for work to be done.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, recvmsg, sendmsg, socket,
};
use parking_lot::Mutex;
use thiserror::Error;

use crate::profile::{PROFILES, Profile};
use crate::proto::{
    BOARD_MAGIC, Board, ClientPage, Command, DeviceBoard, ENV_SOCKET, LAYOUT, MAX_DEVICES,
    MAX_QUEUED, MESSAGE_BYTES, RING_COMMANDS, Reply, Request, Submission, from_bytes, operation,
    status, to_bytes,
};
use crate::shared::{Access, Mapping, futex_wait, now_ns};

/// Longest that a wait goes on without asking whether the `gpu` process is still there.
const LIVENESS: Duration = Duration::from_millis(100);

/// Longest that an answer on the control socket may take.
///
/// 10 s: a thousand clients of one thread on a loaded machine; beyond, the process counts as gone.
const ANSWER_LIMIT_MS: u16 = 10_000;

/// Why the stand-in did not do what was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The environment names no socket.
    #[error("{ENV_SOCKET} is not set")]
    NoSocket,
    /// Nobody listens there.
    #[error("no `gpu` process answers at {path}: {source}")]
    Unreachable {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The process speaks another layout than this library.
    #[error("the `gpu` process is of another version")]
    Version,
    /// The process has gone away.
    #[error("the `gpu` process is gone")]
    Gone,
    /// The device has not that much memory left.
    #[error("the device has not that much memory left")]
    OutOfMemory,
    /// The process has no room for another client, context, stream or event.
    #[error("the `gpu` process has no room for more")]
    Exhausted,
    /// The process refused the request as senseless.
    #[error("the `gpu` process refused the request")]
    Refused,
    /// The operating system refused something.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<nix::Error> for GpuError {
    fn from(error: nix::Error) -> Self {
        Self::System(error.into())
    }
}

/// A device as a client sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its number.
    pub index: usize,
    /// What is fixed about its kind.
    pub profile: &'static Profile,
    /// Product name.
    pub name: &'static str,
    /// UUID, as sixteen bytes.
    pub uuid: [u8; 16],
    /// Device memory in bytes; may differ from the profile's.
    pub memory_bytes: u64,
    /// PCI domain, bus and device number.
    pub pci: (u32, u32, u32),
}

impl Device {
    /// The UUID as tools write it: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    pub fn uuid_text(&self) -> String {
        let hex: String = self.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "GPU-{}-{}-{}-{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..]
        )
    }

    /// The PCI address as the CUDA driver writes it: `0000:01:00.0`.
    pub fn pci_text(&self) -> String {
        let (domain, bus, device) = self.pci;
        format!("{domain:04x}:{bus:02x}:{device:02x}.0")
    }
}

/// Device memory at one moment, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryState {
    /// All.
    pub total: u64,
    /// Held by anybody.
    pub used: u64,
    /// The rest.
    pub free: u64,
}

/// A process that has a context on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its number in the `gpu` process's pid namespace.
    pub pid: i32,
    /// Device memory that it holds there.
    pub used_bytes: u64,
    /// How long its kernels have run there.
    pub busy_ns: u64,
}

/// What [`DriverVersion`](crate::profile::DriverVersion) the `gpu` process stands in for.
pub type DriverVersion = crate::profile::DriverVersion;

/// A connection to the `gpu` process that only looks.
#[derive(Debug)]
pub struct Gpu {
    control: Mutex<()>,
    socket: OwnedFd,
    board: Mapping,
    is_gone: AtomicBool,
}

impl Gpu {
    /// Connects to the process that the environment names, to look.
    ///
    /// # Errors
    /// [`GpuError::NoSocket`] where `SLUICE_SIM_SOCKET` is not set, else as [`Gpu::connect_to`].
    pub fn connect() -> Result<Self, GpuError> {
        Self::connect_to(&socket_from_environment()?)
    }

    /// Connects to the process behind `path`, to look.
    ///
    /// # Errors
    /// [`GpuError::Unreachable`] where nobody listens; [`GpuError::Version`] where it is another
    /// build's process; [`GpuError::Exhausted`] where every client slot is taken.
    pub fn connect_to(path: &Path) -> Result<Self, GpuError> {
        Ok(Self::greet(path, 0)?.0)
    }

    fn greet(path: &Path, role: u64) -> Result<(Self, Vec<OwnedFd>), GpuError> {
        let unreachable = |source: nix::Error| GpuError::Unreachable {
            path: path.to_owned(),
            source: source.into(),
        };
        let socket = socket(
            AddressFamily::Unix,
            SockType::SeqPacket,
            SockFlag::SOCK_CLOEXEC,
            None,
        )?;
        let address = UnixAddr::new(path).map_err(unreachable)?;
        connect(socket.as_raw_fd(), &address).map_err(unreachable)?;
        let mut arguments = [0; 7];
        arguments[0] = u64::from(LAYOUT);
        arguments[1] = role;
        let request = Request {
            operation: operation::HELLO,
            reserved: 0,
            arguments,
        };
        let (reply, mut files) = exchange(&socket, &request)?;
        checked(&reply).map_err(|error| match error {
            GpuError::Refused => GpuError::Version,
            other => other,
        })?;
        if files.is_empty() {
            return Err(GpuError::Version);
        }
        let board = Mapping::new(files.remove(0), size_of::<Board>(), Access::Read)?;
        let page: &Board = board.page();
        let is_known = page.magic.load(Ordering::Acquire) == BOARD_MAGIC
            && page.layout.load(Ordering::Relaxed) == LAYOUT;
        if !is_known {
            return Err(GpuError::Version);
        }
        let gpu = Self {
            control: Mutex::new(()),
            socket,
            board,
            is_gone: AtomicBool::new(false),
        };
        Ok((gpu, files))
    }

    /// The board, as it is now.
    pub fn board(&self) -> &Board {
        self.board.page()
    }

    /// Whether the `gpu` process still holds the other end of the connection.
    pub fn is_alive(&self) -> bool {
        if self.is_gone.load(Ordering::Relaxed) {
            return false;
        }
        let mut ask = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
        let hung_up = PollFlags::POLLHUP | PollFlags::POLLERR;
        let is_gone = poll(&mut ask, PollTimeout::ZERO).is_ok()
            && ask[0]
                .revents()
                .is_some_and(|events| events.intersects(hung_up));
        if is_gone {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        !is_gone
    }

    /// Sleeps until the `gpu` process is gone.
    pub fn wait_for_end(&self) {
        while self.is_alive() {
            let mut ask = [PollFd::new(self.socket.as_fd(), PollFlags::empty())];
            // A signal or a spurious return only brings the question above once more.
            let _ = poll(&mut ask, PollTimeout::NONE);
        }
    }

    /// Every device, in order.
    pub fn devices(&self) -> Vec<Device> {
        self.device_boards()
            .iter()
            .enumerate()
            .map(|(index, board)| device_from(index, board))
            .collect()
    }

    /// The driver that is stood in for.
    pub fn driver_version(&self) -> DriverVersion {
        let board = self.board();
        DriverVersion {
            cuda: board.cuda_version.load(Ordering::Relaxed),
            nvml: board.driver_version(),
        }
    }

    /// Memory of `device` now; zeros for a device that there is not.
    pub fn memory(&self, device: usize) -> MemoryState {
        let Some(board) = self.device_boards().get(device) else {
            return MemoryState {
                total: 0,
                used: 0,
                free: 0,
            };
        };
        let total = board.total_bytes.load(Ordering::Relaxed);
        let used = board.used_bytes.load(Ordering::Acquire).min(total);
        MemoryState {
            total,
            used,
            free: total - used,
        }
    }

    /// Processes that have a context on `device`, in order of their process numbers.
    pub fn processes(&self, device: usize) -> Vec<Process> {
        let mut found: Vec<Process> = Vec::new();
        for seen in self.board().read(|board| holders(board, device)) {
            match found.iter_mut().find(|process| process.pid == seen.pid) {
                Some(process) => {
                    process.used_bytes += seen.used_bytes;
                    process.busy_ns += seen.busy_ns;
                }
                None => found.push(seen),
            }
        }
        found.sort_by_key(|process| process.pid);
        found
    }

    /// How long kernels have run on `device`, in nanoseconds; rises with the monotonic clock while
    /// one is running. Utilisation is the difference of two readings over the time between them.
    pub fn busy_ns(&self, device: usize) -> u64 {
        let now = now_ns();
        self.board().read(|board| {
            board.device.get(device).map_or(0, |row| {
                running_total(now, &row.busy_ns, &row.busy_since_ns, &row.busy_until_ns)
            })
        })
    }

    fn device_boards(&self) -> &[DeviceBoard] {
        let board = self.board();
        let devices = board.devices.load(Ordering::Relaxed) as usize;
        &board.device[..devices.min(MAX_DEVICES)]
    }

    fn call(&self, operation: u32, given: &[u64]) -> Result<(Reply, Vec<OwnedFd>), GpuError> {
        let mut arguments = [0; 7];
        arguments[..given.len()].copy_from_slice(given);
        let request = Request {
            operation,
            reserved: 0,
            arguments,
        };
        if self.is_gone.load(Ordering::Relaxed) {
            return Err(GpuError::Gone);
        }
        let _one_at_a_time = self.control.lock();
        let answer = exchange(&self.socket, &request);
        if matches!(answer, Err(GpuError::Gone)) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        let (reply, files) = answer?;
        checked(&reply)?;
        Ok((reply, files))
    }
}

fn socket_from_environment() -> Result<PathBuf, GpuError> {
    std::env::var_os(ENV_SOCKET)
        .map(PathBuf::from)
        .ok_or(GpuError::NoSocket)
}

fn device_from(index: usize, board: &DeviceBoard) -> Device {
    let profile = board.profile.load(Ordering::Relaxed) as usize;
    let profile = PROFILES.get(profile).unwrap_or(&PROFILES[0]);
    let mut uuid = [0; 16];
    uuid[..8].copy_from_slice(&board.uuid_high.load(Ordering::Relaxed).to_be_bytes());
    uuid[8..].copy_from_slice(&board.uuid_low.load(Ordering::Relaxed).to_be_bytes());
    Device {
        index,
        profile,
        name: profile.name,
        uuid,
        memory_bytes: board.total_bytes.load(Ordering::Relaxed),
        pci: (
            board.pci_domain.load(Ordering::Relaxed),
            board.pci_bus.load(Ordering::Relaxed),
            board.pci_device.load(Ordering::Relaxed),
        ),
    }
}

/// Every client that has a context on `device`, as the board says.
fn holders(board: &Board, device: usize) -> Vec<Process> {
    let now = now_ns();
    let slots = board.client_slots.load(Ordering::Relaxed) as usize;
    let clients = board.client.iter().take(slots);
    let rows = clients.filter_map(|client| {
        let row = client.holdings.get(device)?;
        let pid = client.pid.load(Ordering::Relaxed);
        let has_context = row.contexts.load(Ordering::Relaxed) > 0;
        (pid != 0 && has_context).then(|| Process {
            pid,
            used_bytes: row.used_bytes.load(Ordering::Relaxed),
            busy_ns: running_total(now, &row.busy_ns, &row.busy_since_ns, &row.busy_until_ns),
        })
    });
    rows.collect()
}

/// What has been counted, and what has passed since of what is running.
fn running_total(now: u64, total: &AtomicU64, since: &AtomicU64, until: &AtomicU64) -> u64 {
    let total = total.load(Ordering::Relaxed);
    match since.load(Ordering::Relaxed) {
        0 => total,
        since => {
            let reached = now.min(until.load(Ordering::Relaxed));
            total + reached.saturating_sub(since)
        }
    }
}

fn checked(reply: &Reply) -> Result<(), GpuError> {
    match reply.status {
        status::OK => Ok(()),
        status::OUT_OF_MEMORY => Err(GpuError::OutOfMemory),
        status::EXHAUSTED => Err(GpuError::Exhausted),
        _ => Err(GpuError::Refused),
    }
}

/// One question, one answer, with its descriptors.
fn exchange(socket: &OwnedFd, request: &Request) -> Result<(Reply, Vec<OwnedFd>), GpuError> {
    send(socket, &to_bytes(&request.to_words()), &[]).map_err(|_| GpuError::Gone)?;
    let deadline = now_ns() + u64::from(ANSWER_LIMIT_MS) * 1_000_000;
    loop {
        let mut ask = [PollFd::new(socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut ask, PollTimeout::from(ANSWER_LIMIT_MS)) {
            Err(nix::Error::EINTR) if now_ns() < deadline => continue,
            Ok(ready) if ready > 0 => break,
            _ => return Err(GpuError::Gone),
        }
    }
    let (bytes, files) = receive(socket)?.ok_or(GpuError::Gone)?;
    Ok((Reply::from_words(&from_bytes(&bytes)), files))
}

/// Sends one message with descriptors.
///
/// # Errors
/// What `sendmsg` says; a full socket is an error, since an answer must never block the sender.
pub(crate) fn send(
    socket: &OwnedFd,
    bytes: &[u8; MESSAGE_BYTES],
    files: &[RawFd],
) -> nix::Result<()> {
    let parts = [IoSlice::new(bytes)];
    let rights = [ControlMessage::ScmRights(files)];
    let control: &[ControlMessage<'_>] = if files.is_empty() { &[] } else { &rights };
    let flags = MsgFlags::MSG_NOSIGNAL;
    loop {
        match sendmsg::<UnixAddr>(socket.as_raw_fd(), &parts, control, flags, None) {
            Err(nix::Error::EINTR) => {}
            other => return other.map(drop),
        }
    }
}

/// A message and the descriptors that came with it.
pub(crate) type Received = ([u8; MESSAGE_BYTES], Vec<OwnedFd>);

/// Receives one message; `None` at the end of the connection.
///
/// # Errors
/// What `recvmsg` says; `InvalidData` for a message of another size.
pub(crate) fn receive(socket: &OwnedFd) -> io::Result<Option<Received>> {
    let mut bytes = [0; MESSAGE_BYTES];
    let mut control = nix::cmsg_space!([RawFd; 8]);
    let mut files = Vec::new();
    let length = {
        let mut parts = [IoSliceMut::new(&mut bytes)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        // Interrupted only where a handler without SA_RESTART ran: the caller has waited for input.
        let received =
            recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut control), flags);
        let message = match received {
            Err(nix::Error::ECONNRESET) => return Ok(None),
            other => other?,
        };
        for part in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(received) = part {
                for file in received {
                    // SAFETY: the kernel has just made this descriptor; nobody else knows it.
                    files.push(unsafe { OwnedFd::from_raw_fd(file) });
                }
            }
        }
        message.bytes
    };
    match length {
        0 => Ok(None),
        MESSAGE_BYTES => Ok(Some((bytes, files))),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// A block of device memory that this client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its name.
    pub id: u64,
    /// First byte in the device's file.
    pub offset: u64,
    /// Bytes charged.
    pub charged_bytes: u64,
}

/// A connection that computes.
///
/// Streams are numbered by the caller. A stream's operations are counted from where it was opened;
/// [`Compute::submit`] gives the number of the last one, and [`Compute::done`] says which is done.
#[derive(Debug)]
pub struct Compute {
    gpu: Gpu,
    page: Mapping,
    doorbell: OwnedFd,
    ring: Mutex<()>,
}

impl Compute {
    /// Connects to the process that the environment names.
    ///
    /// # Errors
    /// As [`Gpu::connect`].
    pub fn connect() -> Result<Self, GpuError> {
        Self::connect_to(&socket_from_environment()?)
    }

    /// Connects to the process behind `path`.
    ///
    /// # Errors
    /// As [`Gpu::connect_to`].
    pub fn connect_to(path: &Path) -> Result<Self, GpuError> {
        let (gpu, files) = Gpu::greet(path, 1)?;
        let [page, doorbell]: [OwnedFd; 2] = files.try_into().map_err(|_| GpuError::Version)?;
        let page = Mapping::new(page, size_of::<ClientPage>(), Access::Write)?;
        Ok(Self {
            gpu,
            page,
            doorbell,
            ring: Mutex::new(()),
        })
    }

    /// The looking half of the connection.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The page shared with the `gpu` process.
    pub fn page(&self) -> &ClientPage {
        self.page.page()
    }

    /// The memory of `device`, mapped for moving bytes.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a device that there is not; what `mmap` says.
    pub fn map_device(&self, device: usize) -> Result<(OwnedFd, Mapping), GpuError> {
        let (reply, files) = self.gpu.call(operation::DEVICE_MEMORY, &[device as u64])?;
        let file = files.into_iter().next().ok_or(GpuError::Version)?;
        let bytes = usize::try_from(reply.values[0]).map_err(io::Error::other)?;
        let mapping = Mapping::new(&file, bytes, Access::Write)?;
        Ok((file, mapping))
    }

    /// Makes a context on `device` and yields its number.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when the context's own memory is not free.
    pub fn open_context(&self, device: usize) -> Result<u64, GpuError> {
        let (reply, _) = self.gpu.call(operation::CONTEXT_OPEN, &[device as u64])?;
        Ok(reply.values[0])
    }

    /// Ends a context with its work and its linear memory.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a context that this client has not.
    pub fn close_context(&self, context: u64) -> Result<(), GpuError> {
        self.gpu
            .call(operation::CONTEXT_CLOSE, &[context])
            .map(drop)
    }

    /// Takes `bytes` of `device`: linear memory of `context`, or physical memory if that is 0.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or [`GpuError::Refused`] for a senseless size.
    pub fn allocate(&self, device: usize, bytes: u64, context: u64) -> Result<Block, GpuError> {
        let arguments = [device as u64, bytes, context];
        let (reply, _) = self.gpu.call(operation::ALLOCATE, &arguments)?;
        Ok(Block {
            id: reply.values[0],
            offset: reply.values[1],
            charged_bytes: reply.values[2],
        })
    }

    /// Adds a reference to a block.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that this client has not.
    pub fn retain(&self, device: usize, block: u64) -> Result<(), GpuError> {
        let arguments = [device as u64, block];
        self.gpu.call(operation::RETAIN, &arguments).map(drop)
    }

    /// Drops a reference; the last one frees the block.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that this client has not.
    pub fn release(&self, device: usize, block: u64) -> Result<(), GpuError> {
        let arguments = [device as u64, block];
        self.gpu.call(operation::RELEASE, &arguments).map(drop)
    }

    /// Submits `commands` to a stream, in order and with nothing between them, and yields the
    /// number of the last; `last` is the stream's counter, which only this function raises.
    ///
    /// Blocks while [`MAX_QUEUED`] operations of the stream are not done, as a driver does.
    ///
    /// # Errors
    /// [`GpuError::Gone`].
    pub fn submit(
        &self,
        stream: u32,
        last: &AtomicU64,
        commands: &[Command],
    ) -> Result<u64, GpuError> {
        let is_queue_full = || last.load(Ordering::Relaxed) >= self.done(stream) + MAX_QUEUED;
        if is_queue_full() {
            self.wait(|| !is_queue_full())?;
        }
        self.publish(stream, commands.len() as u64, |at_ns| {
            let before = last.load(Ordering::Relaxed);
            last.store(before + commands.len() as u64, Ordering::Release);
            let numbered = (before + 1..).zip(commands);
            numbered.map(move |(sequence, command)| Submission {
                stream,
                sequence,
                at_ns,
                command: *command,
            })
        })
    }

    /// Opens a stream in a context; its operations are counted on from `last`.
    ///
    /// # Errors
    /// [`GpuError::Gone`].
    pub fn open_stream(
        &self,
        stream: u32,
        last: &AtomicU64,
        context: u64,
        priority: i32,
    ) -> Result<(), GpuError> {
        self.publish(stream, 1, |at_ns| {
            std::iter::once(Submission {
                stream,
                sequence: last.load(Ordering::Relaxed),
                at_ns,
                command: Command::Open { context, priority },
            })
        })?;
        Ok(())
    }

    /// Says that the function of operation `sequence` has been run.
    ///
    /// # Errors
    /// [`GpuError::Gone`].
    pub fn host_done(&self, stream: u32, sequence: u64) -> Result<(), GpuError> {
        self.publish(stream, 1, |at_ns| {
            std::iter::once(Submission {
                stream,
                sequence,
                at_ns,
                command: Command::HostDone,
            })
        })?;
        Ok(())
    }

    /// Which operation of `stream` is the last one that is done.
    pub fn done(&self, stream: u32) -> u64 {
        // Acquire; pairs with the Release in `gpu`: what an event's word says is there by then.
        self.page()
            .streams
            .get(stream as usize)
            .map_or(u64::MAX, |word| word.done.load(Ordering::Acquire))
    }

    /// When the record `generation` of event slot `event` was reached, if it was.
    pub fn event_time(&self, event: u32, generation: u64) -> Option<u64> {
        let word = self.page().events.get(event as usize)?;
        let is_reached = word.generation.load(Ordering::Acquire) >= generation;
        is_reached.then(|| word.at_ns.load(Ordering::Relaxed))
    }

    /// Sleeps until `is_over` holds.
    ///
    /// # Errors
    /// [`GpuError::Gone`] if the `gpu` process goes away meanwhile.
    pub fn wait(&self, is_over: impl Fn() -> bool) -> Result<(), GpuError> {
        while !is_over() {
            self.wait_for_change(&is_over, LIVENESS);
            if !is_over() && !self.gpu.is_alive() {
                return Err(GpuError::Gone);
            }
        }
        Ok(())
    }

    /// Sleeps until `is_over` holds, something has changed, or `limit` has passed.
    pub fn wait_for_change(&self, is_over: impl Fn() -> bool, limit: Duration) {
        let page = self.page();
        // SeqCst; pairs with the fence in `gpu::publish`: either it sees us, or we see its change.
        page.waiters.fetch_add(1, Ordering::SeqCst);
        let generation = page.generation.load(Ordering::SeqCst);
        if !is_over() {
            futex_wait(&page.generation, generation, limit);
        }
        page.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Writes `count` submissions into the ring under its lock and rings where nobody would look.
    fn publish<I: Iterator<Item = Submission>>(
        &self,
        stream: u32,
        count: u64,
        submissions: impl FnOnce(u64) -> I,
    ) -> Result<u64, GpuError> {
        let page = self.page();
        let mut ring = self.ring.lock();
        let has_room = || {
            let taken = page.head.load(Ordering::Acquire);
            page.tail.load(Ordering::Relaxed) - taken + count <= RING_COMMANDS as u64
        };
        while !has_room() {
            drop(ring);
            self.ring_doorbell();
            self.wait(has_room)?;
            ring = self.ring.lock();
        }
        if self.gpu.is_gone.load(Ordering::Relaxed) {
            return Err(GpuError::Gone);
        }
        let mut tail = page.tail.load(Ordering::Relaxed);
        let mut last = 0;
        let mut must_ring = false;
        let done = self.done(stream);
        for submission in submissions(now_ns()) {
            let slot = (tail % RING_COMMANDS as u64) as usize;
            page.ring[slot].write(&submission.to_words());
            // While an earlier operation of the stream is not done, the `gpu` process will wake for
            // it by itself and then find this one; the answer to a host function has no such herald.
            must_ring |= submission.sequence <= done + 1 || submission.command == Command::HostDone;
            last = submission.sequence;
            tail += 1;
        }
        page.tail.store(tail, Ordering::Release);
        drop(ring);
        // Pairs with the fence in `gpu` before it sleeps: it sees the tail, or we see it sleeping.
        fence(Ordering::SeqCst);
        // What was not done above may be by now, with the process asleep again: look once more.
        must_ring |= last > 0 && self.done(stream) + count >= last;
        if must_ring && self.gpu.board().is_sleeping.load(Ordering::Relaxed) == 1 {
            self.ring_doorbell();
        }
        Ok(last)
    }

    fn ring_doorbell(&self) {
        // A full counter means that it has been rung and not heard yet.
        let _ = nix::unistd::write(&self.doorbell, &1u64.to_ne_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_writes_its_names_as_the_tools_do() {
        let device = Device {
            index: 0,
            profile: &PROFILES[0],
            name: PROFILES[0].name,
            uuid: *b"\x5c\x1c\xe0\0\0\0\x40\0\x80\0\0\0\0\0\0\x01",
            memory_bytes: 1,
            pci: (0, 1, 0),
        };
        assert_eq!(
            device.uuid_text(),
            "GPU-5c1ce000-0000-4000-8000-000000000001"
        );
        assert_eq!(device.pci_text(), "0000:01:00.0");
    }

    #[test]
    fn a_socket_that_nobody_listens_on_is_said_so_with_its_path() {
        let refusal = Gpu::connect_to(Path::new("/nonexistent/gpu.sock")).unwrap_err();
        assert!(refusal.to_string().contains("/nonexistent/gpu.sock"));
    }
}
