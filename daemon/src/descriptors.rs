//! Descriptors from outside: what a message brought, who is at the other end, and whose a process is.
//!
//! # Safety
//! The kernel hands over descriptors as bare numbers, in a message or as a result; each is fresh and
//! nobody else's, so it becomes an [`OwnedFd`] on the spot. What is asked of one by `ioctl` has no safe form.
#![allow(unsafe_code, reason = "the kernel's new descriptors are bare numbers")]

use ffi::wire::ATTACH_BYTES;
use nix::errno::Errno;
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockFlag, accept4, getsockopt, recvmsg};
use std::fs::File;
use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `SO_PEERPIDFD`, since Linux 6.5; 77 on every architecture that has CUDA.
///
/// Source: Linux, `include/uapi/asm-generic/socket.h`.
const SO_PEERPIDFD: libc::c_int = 77;

/// Receives one message of at most [`ATTACH_BYTES`] and the descriptors that came with it: its length
/// (0 is the end) and those. Does not wait.
///
/// A message that is longer, or brings more than one descriptor, is `InvalidData`.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    message: &mut [u8; ATTACH_BYTES],
) -> io::Result<(usize, Option<OwnedFd>)> {
    // Room for one descriptor; the kernel drops those that find none.
    let mut space = nix::cmsg_space!(RawFd);
    let mut parts = [IoSliceMut::new(message)];
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<()>(socket.as_raw_fd(), &mut parts, Some(&mut space), flags)?;
    let mut descriptors = Vec::new();
    for control in received.cmsgs()? {
        if let ControlMessageOwned::ScmRights(numbers) = control {
            for number in numbers {
                // SAFETY: the kernel has just made it for us.
                descriptors.push(unsafe { OwnedFd::from_raw_fd(number) });
            }
        }
    }
    let cut = MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC;
    if received.flags.intersects(cut) || descriptors.len() > 1 {
        return Err(io::ErrorKind::InvalidData.into());
    }
    Ok((received.bytes, descriptors.pop()))
}

/// Takes the next connection; does not wait for one.
pub(crate) fn accept(listener: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    Ok(accept4(listener, flags)?)
}

/// Who is at the other end of a connection, by the kernel's word.
#[derive(Debug)]
pub(crate) struct Peer {
    /// Its process id, as we see it.
    pub(crate) pid: u32,
    /// Tells when it has ended.
    pub(crate) pidfd: OwnedFd,
}

/// Who connected `socket`; `None`: it has ended already, or its PID namespace is not ours or below.
pub(crate) fn peer(socket: BorrowedFd<'_>) -> Option<Peer> {
    let credentials = getsockopt(&socket, PeerCredentials).ok()?;
    let pid = u32::try_from(credentials.pid())
        .ok()
        .filter(|pid| *pid > 0)?;
    let pidfd = peer_pidfd(socket, pid).ok()?;
    Some(Peer { pid, pidfd })
}

/// A pidfd of the process that connected `socket`, whose process id is `pid`.
///
/// From the socket where the kernel can, so that it is that very process; else by its number.
///
/// # Errors
/// The process is gone.
fn peer_pidfd(socket: BorrowedFd<'_>, pid: u32) -> io::Result<OwnedFd> {
    let mut number: RawFd = -1;
    let mut bytes = size_of::<RawFd>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `bytes` bytes to `number`, and knows the length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            SO_PEERPIDFD,
            (&raw mut number).cast(),
            &raw mut bytes,
        )
    };
    match Errno::result(result) {
        // SAFETY: the kernel has just made it for us.
        Ok(_) => Ok(unsafe { OwnedFd::from_raw_fd(number) }),
        Err(Errno::ENOPROTOOPT | Errno::EINVAL) => pidfd(pid),
        Err(errno) => Err(errno.into()),
    }
}

/// A pidfd of the process with this number.
///
/// # Errors
/// There is none.
pub(crate) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes two integers and touches no memory of ours.
    let number = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let number = RawFd::try_from(Errno::result(number)?).map_err(io::Error::other)?;
    // SAFETY: the kernel has just made it for us.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Whether the process behind a pidfd has ended; a zombie has.
pub(crate) fn is_dead(pidfd: BorrowedFd<'_>) -> bool {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut polled = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
    matches!(poll(&mut polled, PollTimeout::ZERO), Ok(1..))
}

/// Who made the user namespace that a process is in: for a container of a user, that user, whoever it is
/// inside.
///
/// Source: ioctl_ns(2), `NS_GET_OWNER_UID`.
pub(crate) fn namespace_owner(pid: u32) -> Option<u32> {
    const NS_GET_OWNER_UID: libc::Ioctl = 0xb704;
    let namespace = File::open(format!("/proc/{pid}/ns/user")).ok()?;
    let mut owner: libc::uid_t = 0;
    // SAFETY: a descriptor of a namespace, and a place for the answer.
    let status = unsafe { libc::ioctl(namespace.as_raw_fd(), NS_GET_OWNER_UID, &raw mut owner) };
    (status == 0).then_some(owner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_zombie_is_dead() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("sleep");
        let pidfd = pidfd(child.id()).expect("alive");
        assert!(!is_dead(pidfd.as_fd()));
        child.kill().expect("killed");
        while !is_dead(pidfd.as_fd()) {
            std::thread::yield_now();
        }
        child.wait().expect("a zombie until now");
    }
}
