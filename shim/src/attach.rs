//! The messages to the daemon: attach, come back, and "look for the dead".

use crate::log;
use crate::session;
use ffi::wire::{
    ATTACH_BYTES, AttachReply, AttachRequest, ControlPage, ENV_SOCKET, ENV_TOKEN, LAYOUT,
    MESSAGE_MAGIC, PageHeader, SYSTEM_ATTACH_SOCKET, Token, UsagePage, attach_flags, attach_status,
    page_kind,
};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, UnixAddr,
    connect, recvmsg, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::ffi::CString;
use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How often a daemon that is not there is looked for.
const PAUSE: Duration = Duration::from_millis(20);

/// Longest wait for the answer of a daemon that is there: it answers in well under a millisecond.
const ANSWER: Duration = Duration::from_secs(2);

/// Longest wait for the daemon's look at dead processes, before a refusal stands.
const SWEEP: Duration = Duration::from_millis(200);

/// What an attach brings.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The control page, mapped read-only for the rest of the process's life.
    pub(crate) control: NonNull<ControlPage>,
    /// The usage page, mapped for the rest of the process's life.
    pub(crate) usage: NonNull<UsagePage>,
    /// This process's slot; 0 for an observer.
    pub(crate) slot: u32,
    /// The slot's generation.
    pub(crate) generation: u32,
    /// The connection: its end is a death, ours or the daemon's.
    pub(crate) socket: OwnedFd,
    /// The usage page's memfd, to hand to the next daemon.
    pub(crate) usage_fd: OwnedFd,
    /// Wakes the daemon; an eventfd.
    pub(crate) bell: OwnedFd,
    /// Where the daemon was found.
    pub(crate) path: PathBuf,
}

// SAFETY: the pages are shared memory of atomics, mapped for the rest of the process's life.
unsafe impl Send for Attached {}

/// Why there is no attachment.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Nobody listens, or nobody answers.
    NoDaemon(Option<PathBuf>),
    /// The daemon knows no tenant for this process.
    Stranger(PathBuf),
    /// The daemon answered, but not with what this library needs.
    Refused(PathBuf, u32),
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::NoDaemon(Some(path)) => write!(
                out,
                "no daemon answers at {}; start one with `sluice daemon`; until then CUDA is not ready",
                path.display()
            ),
            Failure::NoDaemon(None) => write!(
                out,
                "no daemon: {SYSTEM_ATTACH_SOCKET} does not exist and {ENV_SOCKET} is not set; start programs with `sluice run`; until then CUDA is not ready"
            ),
            Failure::Stranger(path) => write!(
                out,
                "the daemon at {} knows no tenant for this process; start it with `sluice run`, or its container with a device of sluice.dev",
                path.display()
            ),
            Failure::Refused(path, attach_status::LAYOUT) => write!(
                out,
                "the daemon at {} is of another version than this library; restart it, or the program",
                path.display()
            ),
            Failure::Refused(path, attach_status::FULL) => write!(
                out,
                "the daemon at {} has no place for another process of this tenant",
                path.display()
            ),
            Failure::Refused(path, status) => {
                write!(
                    out,
                    "the daemon at {} refuses: status {status}",
                    path.display()
                )
            }
        }
    }
}

/// Descriptors of this process's attachment, for the child that has to close them.
static OPEN: [AtomicI32; 2] = [const { AtomicI32::new(-1) }; 2];

/// The bell's number, which stays the same over restarts of the daemon: threads may be ringing it.
static BELL: AtomicI32 = AtomicI32::new(-1);

/// What `fstat` says of the bell.
static BELL_INODE: AtomicU64 = AtomicU64::new(0);

/// Wakes the daemon, if it listens.
pub(crate) fn ring() {
    let number = BELL.load(Ordering::Relaxed);
    if number < 0 {
        return;
    }
    // A program may have closed every descriptor that it does not know, and the number may be another
    // file's by now.
    let is_ours = nix::sys::stat::fstat(Number(number))
        .is_ok_and(|found| found.st_ino == BELL_INODE.load(Ordering::Relaxed));
    if is_ours {
        let one = 1u64.to_ne_bytes();
        // SAFETY: eight bytes on the stack. A counter that is full has been noticed anyway.
        unsafe { libc::write(number, one.as_ptr().cast(), one.len()) };
    }
}

/// A descriptor by its number, for one question.
struct Number(RawFd);

impl AsFd for Number {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the kernel says whether there is such a descriptor, and nothing is kept.
        unsafe { BorrowedFd::borrow_raw(self.0) }
    }
}

/// Puts the bell of a new attachment where the last one's was.
fn hang_up(attached: &mut Attached) {
    let Ok(found) = nix::sys::stat::fstat(&attached.bell) else {
        return;
    };
    BELL_INODE.store(found.st_ino, Ordering::Relaxed);
    let former = BELL.load(Ordering::Relaxed);
    let new = attached.bell.as_raw_fd();
    // SAFETY: the former number is the former bell's, which is never closed.
    if former >= 0 && unsafe { libc::dup3(new, former, libc::O_CLOEXEC) } == former {
        return;
    }
    // SAFETY: a copy that belongs to the rest of the process's life.
    let copy = unsafe { libc::fcntl(new, libc::F_DUPFD_CLOEXEC, 3) };
    BELL.store(copy, Ordering::Relaxed);
}

/// Closes a parent's descriptors in a child right after `fork`.
pub(crate) fn close_in_child() {
    for place in &OPEN {
        let descriptor = place.swap(-1, Ordering::Relaxed);
        if descriptor >= 0 {
            // SAFETY: the child's own copy; its owner in the parent's memory is never dropped here,
            // since the thread that has it does not exist in the child.
            unsafe { libc::close(descriptor) };
        }
    }
    let bell = BELL.swap(-1, Ordering::Relaxed);
    if bell >= 0 {
        // SAFETY: as above.
        unsafe { libc::close(bell) };
    }
}

fn remember(attached: &mut Attached) {
    hang_up(attached);
    let [socket, usage] = &OPEN;
    socket.store(attached.socket.as_raw_fd(), Ordering::Relaxed);
    usage.store(attached.usage_fd.as_raw_fd(), Ordering::Relaxed);
}

/// Attaches with a slot; tries until `deadline` while no daemon answers.
pub(crate) fn seat(deadline: Instant) -> Result<Attached, Failure> {
    let mut attached = anywhere(0, deadline)?;
    remember(&mut attached);
    Ok(attached)
}

/// Attaches without a slot; tries until `deadline` while no daemon answers.
///
/// The connection is not kept: an observer is nobody's business.
pub(crate) fn observer(deadline: Instant) -> Result<Attached, Failure> {
    anywhere(attach_flags::OBSERVER, deadline)
}

fn anywhere(flags: u32, deadline: Instant) -> Result<Attached, Failure> {
    loop {
        let failure = match once(flags) {
            Ok(attached) => return Ok(attached),
            Err(failure) => failure,
        };
        let is_worth_waiting = match &failure {
            Failure::NoDaemon(_) => true,
            Failure::Refused(_, status) => *status == attach_status::LATER,
            Failure::Stranger(_) => false,
        };
        if !is_worth_waiting || Instant::now() >= deadline {
            return Err(failure);
        }
        std::thread::sleep(PAUSE);
    }
}

/// One round over the places where a daemon may be.
fn once(flags: u32) -> Result<Attached, Failure> {
    let mut failure = Failure::NoDaemon(None);
    for path in sockets() {
        let request = request(flags, 0, 0);
        match ask(&path, &request, None, ANSWER) {
            Ok((reply, socket, descriptors)) if reply.status == attach_status::OK => {
                return accept(path, &reply, socket, descriptors);
            }
            // The daemon of the machine does not know us: another one, that the variable names, may.
            Ok((reply, ..)) if reply.status == attach_status::STRANGER => {
                failure = Failure::Stranger(path);
            }
            Ok((reply, ..)) => return Err(Failure::Refused(path, reply.status)),
            Err(error) => {
                log::info(format_args!("{}: {error}", path.display()));
                if !matches!(failure, Failure::Stranger(_)) {
                    failure = Failure::NoDaemon(Some(path));
                }
            }
        }
    }
    Err(failure)
}

/// The machine's own socket where it exists, then the one that the variable names.
///
/// In a container the former is the only one, whether it is there at the moment or not: a variable is the
/// tenant's to set, and could name a daemon of its own.
fn sockets() -> impl Iterator<Item = PathBuf> {
    let system = Path::new(SYSTEM_ATTACH_SOCKET);
    let is_lent = system.parent().is_some_and(is_mount);
    let named = std::env::var_os(ENV_SOCKET)
        .filter(|_| !is_lent)
        .map(PathBuf::from);
    (is_lent || system.exists())
        .then(|| system.to_owned())
        .into_iter()
        .chain(named)
}

/// Whether something is mounted at `folder`.
///
/// Source: statx(2), `STATX_ATTR_MOUNT_ROOT`, since Linux 5.8; before that two file systems tell.
fn is_mount(folder: &Path) -> bool {
    let Some(found) = statx(folder) else {
        return false;
    };
    let root = libc::STATX_ATTR_MOUNT_ROOT as u64;
    if found.stx_attributes_mask & root != 0 {
        return found.stx_attributes & root != 0;
    }
    let device = |found: &libc::statx| (found.stx_dev_major, found.stx_dev_minor);
    let above = folder.parent().and_then(statx);
    above.is_some_and(|above| device(&above) != device(&found))
}

/// By its number: glibc has a function of this name since 2.28 only.
fn statx(path: &Path) -> Option<libc::statx> {
    let path = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: plain integers, for which zeros are a value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: a text that ends with zero, and a place for the answer.
    let status = unsafe {
        libc::syscall(
            libc::SYS_statx,
            libc::AT_FDCWD,
            path.as_ptr(),
            0,
            libc::STATX_BASIC_STATS,
            &raw mut found,
        )
    };
    (status == 0).then_some(found)
}

/// Comes back to the next daemon at the same place, with the same account.
pub(crate) fn rejoin(former: &Attached) -> Result<Attached, Failure> {
    let request = request(attach_flags::REJOIN, former.slot, former.generation);
    let (reply, socket, descriptors) = ask(
        &former.path,
        &request,
        Some(former.usage_fd.as_raw_fd()),
        ANSWER,
    )
    .map_err(|_| Failure::NoDaemon(Some(former.path.clone())))?;
    match reply.status {
        attach_status::OK => {
            let mut attached = accept(former.path.clone(), &reply, socket, descriptors)?;
            remember(&mut attached);
            Ok(attached)
        }
        attach_status::STRANGER => Err(Failure::Stranger(former.path.clone())),
        status => Err(Failure::Refused(former.path.clone(), status)),
    }
}

/// Asks the daemon to give back what dead processes of this tenant held. True: it has looked.
///
/// Nobody is asked whose heart does not beat, so a refusal without a daemon stands at once.
pub(crate) fn sweep(seat: session::Seat) -> bool {
    if !session::is_beating(seat.pages.control) {
        return false;
    }
    let request = request(attach_flags::SWEEP, seat.slot, 0);
    sockets().any(|path| {
        ask(&path, &request, None, SWEEP).is_ok_and(|(reply, ..)| reply.status == attach_status::OK)
    })
}

fn request(flags: u32, slot: u32, slot_generation: u32) -> AttachRequest {
    AttachRequest {
        magic: MESSAGE_MAGIC,
        layout: LAYOUT,
        flags,
        slot,
        slot_generation,
        reserved: [0; 7],
        token: token(),
    }
}

/// The token from the environment; zeros where there is none or it is not one.
fn token() -> Token {
    let text = std::env::var(ENV_TOKEN).unwrap_or_default();
    let mut token = Token::default();
    if text.len() != 2 * token.len() {
        return token;
    }
    for (byte, digits) in token.iter_mut().zip(text.as_bytes().chunks(2)) {
        let digits = std::str::from_utf8(digits).unwrap_or("");
        match u8::from_str_radix(digits, 16) {
            Ok(value) => *byte = value,
            Err(_) => return Token::default(),
        }
    }
    token
}

type Answered = (AttachReply, OwnedFd, Vec<OwnedFd>);

/// One request, one reply; every step bounded by `limit`.
fn ask(
    path: &Path,
    request: &AttachRequest,
    descriptor: Option<RawFd>,
    limit: Duration,
) -> nix::Result<Answered> {
    let socket = socket(
        AddressFamily::Unix,
        SockType::SeqPacket,
        SockFlag::SOCK_CLOEXEC,
        None,
    )?;
    let limit = TimeVal::milliseconds(limit.as_millis() as i64);
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    // SAFETY: `AttachRequest` is plain integers without padding, `ATTACH_BYTES` of them.
    let bytes: [u8; ATTACH_BYTES] = unsafe { std::mem::transmute(*request) };
    let descriptors: Vec<RawFd> = descriptor.into_iter().collect();
    let control = [ControlMessage::ScmRights(&descriptors)];
    let control = if descriptors.is_empty() {
        [].as_slice()
    } else {
        control.as_slice()
    };
    sendmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &[IoSlice::new(&bytes)],
        control,
        MsgFlags::MSG_NOSIGNAL,
        None,
    )?;
    let (reply, descriptors) = receive(&socket)?;
    Ok((reply, socket, descriptors))
}

fn receive(socket: &OwnedFd) -> nix::Result<(AttachReply, Vec<OwnedFd>)> {
    let mut bytes = [0u8; ATTACH_BYTES];
    let mut space = nix::cmsg_space!([RawFd; 3]);
    let mut slices = [IoSliceMut::new(&mut bytes)];
    let message = recvmsg::<UnixAddr>(
        socket.as_raw_fd(),
        &mut slices,
        Some(&mut space),
        MsgFlags::MSG_CMSG_CLOEXEC,
    )?;
    let mut descriptors = Vec::new();
    for part in message.cmsgs()? {
        if let ControlMessageOwned::ScmRights(received) = part {
            descriptors.extend(received.into_iter().map(|descriptor| {
                // SAFETY: the kernel has just made it for this process, and nobody else knows it.
                unsafe { OwnedFd::from_raw_fd(descriptor) }
            }));
        }
    }
    if message.bytes != ATTACH_BYTES {
        return Err(nix::Error::EPROTO);
    }
    // SAFETY: plain integers; every bit pattern is a reply.
    let reply: AttachReply = unsafe { std::mem::transmute(bytes) };
    if reply.magic != MESSAGE_MAGIC {
        return Err(nix::Error::EPROTO);
    }
    Ok((reply, descriptors))
}

/// Maps the pages of a reply, if they are what this library knows.
fn accept(
    path: PathBuf,
    reply: &AttachReply,
    socket: OwnedFd,
    descriptors: Vec<OwnedFd>,
) -> Result<Attached, Failure> {
    let mut descriptors = descriptors.into_iter();
    let (Some(control), Some(usage_fd), Some(bell)) =
        (descriptors.next(), descriptors.next(), descriptors.next())
    else {
        return Err(Failure::Refused(path, reply.status));
    };
    let are_known = reply.layout == LAYOUT
        && reply.control_bytes == size_of::<ControlPage>() as u64
        && reply.usage_bytes == size_of::<UsagePage>() as u64
        && (reply.slot as usize) < ffi::wire::MAX_SLOTS;
    if !are_known {
        return Err(Failure::Refused(path, attach_status::LAYOUT));
    }
    let control = map::<ControlPage>(&control, libc::PROT_READ, page_kind::CONTROL);
    let usage = map::<UsagePage>(
        &usage_fd,
        libc::PROT_READ | libc::PROT_WRITE,
        page_kind::USAGE,
    );
    let (Some(control), Some(usage)) = (control, usage) else {
        return Err(Failure::Refused(path, attach_status::LAYOUT));
    };
    Ok(Attached {
        control,
        usage,
        slot: reply.slot,
        generation: reply.slot_generation,
        socket,
        usage_fd,
        bell,
        path,
    })
}

/// Maps a whole page and checks its header; `None` for a file too short or of another layout.
fn map<Page>(file: &OwnedFd, protection: i32, kind: u32) -> Option<NonNull<Page>> {
    let size = size_of::<Page>();
    let length = nix::sys::stat::fstat(file).ok()?.st_size;
    if length < 0 || (length as u64) < size as u64 {
        return None;
    }
    // SAFETY: a fresh mapping at an address of the kernel's choice, of a file that is long enough
    // and sealed against shrinking by the daemon that made it.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            protection,
            libc::MAP_SHARED,
            file.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return None;
    }
    let page = NonNull::new(address.cast::<Page>())?;
    // SAFETY: every page begins with a header, and the mapping is at least that long.
    let header = unsafe { page.cast::<PageHeader>().read() };
    if !header.is_known(kind, size as u64) {
        // SAFETY: mapped above, and nobody else knows the address.
        unsafe { libc::munmap(address, size) };
        return None;
    }
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_told_from_a_folder() {
        for (folder, is) in [("/proc", true), ("/proc/self", false), ("/nowhere", false)] {
            assert_eq!(is_mount(Path::new(folder)), is, "{folder}");
        }
    }
}
