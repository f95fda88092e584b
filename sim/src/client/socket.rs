//! Messages with descriptors on the control socket.

use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{ControlMessage, ControlMessageOwned, MsgFlags, UnixAddr, recvmsg, sendmsg};

use super::GpuError;
use crate::proto::{MESSAGE_BYTES, Reply, Request, from_bytes, to_bytes};
use crate::shared::now_ns;

/// Longest that an answer on the control socket may take.
///
/// 10 s: a thousand clients of one thread on a loaded machine; beyond, the process counts as gone.
const ANSWER_LIMIT_MS: u16 = 10_000;

/// One question, one answer, with its descriptors.
pub(super) fn exchange(
    socket: &OwnedFd,
    request: &Request,
    files: &[RawFd],
) -> Result<(Reply, Vec<OwnedFd>), GpuError> {
    send(socket, &to_bytes(&request.to_words()), files).map_err(|_| GpuError::Gone)?;
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
