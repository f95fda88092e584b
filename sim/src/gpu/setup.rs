//! What happens once, before the process serves.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::Ordering;

use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, connect, listen, socket,
};

use super::{Options, RunError};
use crate::hardware::memory::Memory;
use crate::profile::PROFILES;
use crate::proto::{BOARD_MAGIC, Board, LAYOUT};

/// Two descriptors for each client are more than the usual soft limit of 1024 allows.
pub(super) fn allow_many_files() -> nix::Result<()> {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
}

/// From now on nobody but this process can write the board, and nobody can resize it.
pub(super) fn seal(file: &OwnedFd) -> io::Result<()> {
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
pub(super) fn describe(board: &Board, options: &Options, memory_bytes: u64) {
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
    let is_shared = u32::from(options.is_shared);
    board.is_shared.store(is_shared, Ordering::Relaxed);
    board.devices.store(devices, Ordering::Relaxed);
    board.layout.store(LAYOUT, Ordering::Relaxed);
    board.magic.store(BOARD_MAGIC, Ordering::Release);
}

/// Listens at the socket; a file that a dead process has left is replaced.
pub(super) fn listen_at(options: &Options) -> Result<OwnedFd, RunError> {
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
