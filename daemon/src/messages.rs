//! The attach messages: read without trust, written whole, sent without waiting.

use crate::state::Pages;
use ffi::wire::{
    ATTACH_BYTES, AttachReply, AttachRequest, LAYOUT, MESSAGE_MAGIC, Token, attach_status,
};
use nix::errno::Errno;
use nix::sys::socket::{ControlMessage, MsgFlags, sendmsg};
use std::io::IoSlice;
use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// Reads a request; `None` for what is none. The layout is for the caller to compare.
pub(crate) fn read_request(bytes: &[u8]) -> Option<AttachRequest> {
    let bytes: &[u8; ATTACH_BYTES] = bytes.try_into().ok()?;
    let word = |at: usize| {
        let word = bytes.get(at..at + size_of::<u32>())?;
        word.try_into().ok().map(u32::from_ne_bytes)
    };
    let token = offset_of!(AttachRequest, token);
    let token: Token = bytes
        .get(token..token + size_of::<Token>())?
        .try_into()
        .ok()?;
    let request = AttachRequest {
        magic: word(offset_of!(AttachRequest, magic))?,
        layout: word(offset_of!(AttachRequest, layout))?,
        flags: word(offset_of!(AttachRequest, flags))?,
        slot: word(offset_of!(AttachRequest, slot))?,
        slot_generation: word(offset_of!(AttachRequest, slot_generation))?,
        reserved: [0; 7],
        token,
    };
    (request.magic == MESSAGE_MAGIC).then_some(request)
}

/// An answer with this status and nothing else in it.
pub(crate) fn reply(status: u32) -> AttachReply {
    AttachReply {
        magic: MESSAGE_MAGIC,
        layout: LAYOUT,
        status,
        slot: 0,
        slot_generation: 0,
        reserved: [0; 3],
        tenant: 0,
        control_bytes: 0,
        usage_bytes: 0,
        reserved_tail: 0,
    }
}

/// The answer with which a process gets `slot` of `tenant`.
pub(crate) fn attached(tenant: u64, slot: u32, slot_generation: u32) -> AttachReply {
    AttachReply {
        slot,
        slot_generation,
        tenant,
        control_bytes: crate::pages::CONTROL_BYTES,
        usage_bytes: crate::pages::USAGE_BYTES,
        ..reply(attach_status::OK)
    }
}

/// The bytes of an answer.
pub(crate) fn write_reply(reply: &AttachReply) -> [u8; ATTACH_BYTES] {
    let mut bytes = [0; ATTACH_BYTES];
    let mut put = |at: usize, value: &[u8]| {
        if let Some(place) = bytes.get_mut(at..at + value.len()) {
            place.copy_from_slice(value);
        }
    };
    for (at, word) in [
        (offset_of!(AttachReply, magic), reply.magic),
        (offset_of!(AttachReply, layout), reply.layout),
        (offset_of!(AttachReply, status), reply.status),
        (offset_of!(AttachReply, slot), reply.slot),
        (
            offset_of!(AttachReply, slot_generation),
            reply.slot_generation,
        ),
    ] {
        put(at, &word.to_ne_bytes());
    }
    for (at, word) in [
        (offset_of!(AttachReply, tenant), reply.tenant),
        (offset_of!(AttachReply, control_bytes), reply.control_bytes),
        (offset_of!(AttachReply, usage_bytes), reply.usage_bytes),
    ] {
        put(at, &word.to_ne_bytes());
    }
    bytes
}

/// Sends an answer with a tenant's two pages and its bell; does not wait.
pub(crate) fn send_pages(
    socket: BorrowedFd<'_>,
    answer: &AttachReply,
    pages: Option<&Pages>,
) -> nix::Result<()> {
    let Some((pages, usage)) = pages.and_then(|pages| Some((pages, pages.usage.as_ref()?))) else {
        return Err(Errno::ENOENT);
    };
    let numbers = [
        pages.control.fd().as_raw_fd(),
        usage.fd().as_raw_fd(),
        pages.bell.as_fd().as_raw_fd(),
    ];
    send(socket, answer, &numbers)
}

/// Sends an answer, and these descriptors with it; does not wait.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    answer: &AttachReply,
    numbers: &[RawFd],
) -> nix::Result<()> {
    let bytes = write_reply(answer);
    let rights = [ControlMessage::ScmRights(numbers)];
    let controls = if numbers.is_empty() { &[][..] } else { &rights };
    let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
    sendmsg::<()>(
        socket.as_raw_fd(),
        &[IoSlice::new(&bytes)],
        controls,
        flags,
        None,
    )?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let request = read_request(&bytes);
            prop_assert!(request.is_none() || bytes.len() == ATTACH_BYTES);
        }
    }

    #[test]
    fn a_request_without_the_magic_is_none() {
        assert_eq!(read_request(&[0; ATTACH_BYTES]), None);
        let mut bytes = [0; ATTACH_BYTES];
        bytes[..4].copy_from_slice(&MESSAGE_MAGIC.to_ne_bytes());
        bytes[48..].copy_from_slice(&[9; 16]);
        let request = read_request(&bytes).expect("a request");
        assert_eq!(request.token, [9; 16]);
    }
}
