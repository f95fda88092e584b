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

mod compute;
mod socket;

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};
use parking_lot::Mutex;
use thiserror::Error;

pub use self::compute::{Block, Compute, Imported};
use self::socket::exchange;
pub(crate) use self::socket::{receive, send};
use crate::profile::{PROFILES, Profile};
use crate::proto::{
    BOARD_MAGIC, Board, DEFAULT_SOCKET, DeviceBoard, ENV_SOCKET, LAYOUT, MAX_DEVICES, NO_LIMIT,
    Reply, Request, operation, status,
};
use crate::shared::{Access, Mapping, now_ns};

/// Why the stand-in did not do what was asked.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GpuError {
    /// The environment names no socket.
    #[error("{ENV_SOCKET} is not set, and there is no {DEFAULT_SOCKET}")]
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
    /// The device has fallen off the bus.
    #[error("the device is lost")]
    Lost,
    /// Only root may ask that.
    #[error("only root may do this")]
    Denied,
    /// The directory is of no control group.
    #[error("the directory is of no control group")]
    NoGroup,
    /// The process does not stand where that could be done.
    #[error("the process is not in the state that this needs")]
    State,
    /// It holds what others hold too.
    #[error("the process shares memory with others")]
    Shared,
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
    /// Ours on the board.
    slot: usize,
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
        let (reply, mut files) = exchange(&socket, &request, &[])?;
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
            slot: reply.values[0] as usize,
            is_gone: AtomicBool::new(false),
        };
        Ok((gpu, files))
    }

    /// The client's slot on the board.
    pub fn slot(&self) -> u32 {
        u32::try_from(self.slot).unwrap_or(u32::MAX)
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

    /// Memory of `device` as this process may have it: where its control group has a limit, that is all
    /// there is.
    pub fn memory_within(&self, device: usize) -> MemoryState {
        let all = self.memory(device);
        let own = self.board().client.get(self.slot);
        let Some(holding) = own.and_then(|own| own.holdings.get(device)) else {
            return all;
        };
        let limit = holding.limit_bytes.load(Ordering::Relaxed);
        if limit == NO_LIMIT {
            return all;
        }
        let total = limit.min(all.total);
        let used = holding.group_used_bytes.load(Ordering::Relaxed).min(total);
        MemoryState {
            total,
            used,
            free: all.free.min(total - used),
        }
    }

    /// Limits of the control group whose directory `group` is, on `device`: soft, hard, and what is in use.
    ///
    /// # Errors
    /// [`GpuError::NoGroup`] for another directory.
    pub fn group_limits(&self, device: usize, group: &OwnedFd) -> Result<[u64; 3], GpuError> {
        let (operation, files) = (operation::GROUP_LIMITS, [group.as_raw_fd()]);
        let (reply, _) = self.call_with(operation, &[device as u64], &files)?;
        let [soft, hard, used, ..] = reply.values;
        Ok([soft, hard, used])
    }

    /// Sets them: soft and hard.
    ///
    /// # Errors
    /// [`GpuError::Denied`] for everybody but root; [`GpuError::NoGroup`] for another directory.
    pub fn set_group_limits(
        &self,
        device: usize,
        group: &OwnedFd,
        [soft, hard]: [u64; 2],
    ) -> Result<(), GpuError> {
        let (operation, files) = (operation::SET_GROUP_LIMITS, [group.as_raw_fd()]);
        self.call_with(operation, &[device as u64, soft, hard], &files)
            .map(drop)
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

    /// Whether contexts run side by side, as under a multi-process server.
    pub fn is_shared(&self) -> bool {
        self.board().is_shared.load(Ordering::Relaxed) == 1
    }

    /// Under which number (Xid) the loss of `device` is reported, if it has fallen off the bus.
    pub fn lost_xid(&self, device: usize) -> Option<u32> {
        let row = self.board().device.get(device)?;
        // Acquire; pairs with the Release in `gpu`: whoever sees its work ended sees this.
        Some(row.lost_xid.load(Ordering::Acquire)).filter(|xid| *xid != 0)
    }

    fn device_boards(&self) -> &[DeviceBoard] {
        let board = self.board();
        let devices = board.devices.load(Ordering::Relaxed) as usize;
        &board.device[..devices.min(MAX_DEVICES)]
    }

    fn call(&self, operation: u32, given: &[u64]) -> Result<(Reply, Vec<OwnedFd>), GpuError> {
        self.call_with(operation, given, &[])
    }

    fn call_with(
        &self,
        operation: u32,
        given: &[u64],
        files: &[RawFd],
    ) -> Result<(Reply, Vec<OwnedFd>), GpuError> {
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
        let answer = exchange(&self.socket, &request, files);
        if matches!(answer, Err(GpuError::Gone)) {
            self.is_gone.store(true, Ordering::Relaxed);
        }
        let (reply, files) = answer?;
        checked(&reply)?;
        Ok((reply, files))
    }
}

/// The socket that the variable names; without one, where it lies in a container.
fn socket_from_environment() -> Result<PathBuf, GpuError> {
    std::env::var_os(ENV_SOCKET)
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(DEFAULT_SOCKET)).filter(|path| path.exists()))
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
        status::LOST => Err(GpuError::Lost),
        status::DENIED => Err(GpuError::Denied),
        status::NOT_FOUND => Err(GpuError::NoGroup),
        status::STATE => Err(GpuError::State),
        status::SHARED => Err(GpuError::Shared),
        _ => Err(GpuError::Refused),
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
