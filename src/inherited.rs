//! What this process was started with and Rust's runtime changes before `main`: the disposition of
//! SIGPIPE, which it ignores for itself. A program under `sluice run` has to get what Sluice got.

use nix::sys::signal::{SigHandler, Signal, signal};
use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether whoever started this process had it ignore SIGPIPE. Written once, before `main`.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

/// Runs before Rust's runtime does; source: ELF gABI, `DT_INIT_ARRAY`.
#[used]
#[unsafe(link_section = ".init_array")]
static REMEMBER: extern "C" fn() = remember;

extern "C" fn remember() {
    let mut present = std::mem::MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: a null pointer asks only; the other is to a local of the right type.
    let asked = unsafe { libc::sigaction(libc::SIGPIPE, std::ptr::null(), present.as_mut_ptr()) };
    // SAFETY: zeroed is a value of this type, whether or not the call has filled it.
    let present = unsafe { present.assume_init() };
    let ignores = asked == 0 && present.sa_sigaction == libc::SIG_IGN;
    // Relaxed: there are no other threads yet.
    IGNORES_PIPE.store(ignores, Ordering::Relaxed);
}

/// Lets `command` ignore SIGPIPE if this process was started so; the standard library alone would
/// give it the default.
pub(crate) fn pass_on(command: &mut Command) -> &mut Command {
    let ignore = || {
        // SAFETY: no handler of ours is involved.
        unsafe { signal(Signal::SIGPIPE, SigHandler::SigIgn) }
            .map(drop)
            .map_err(io::Error::from)
    };
    if IGNORES_PIPE.load(Ordering::Relaxed) {
        // SAFETY: the closure makes one system call; it neither allocates nor locks.
        unsafe { command.pre_exec(ignore) };
    }
    command
}

/// Lets a reader that goes away end this process quietly, as it ends other programs that print.
///
/// Not for what writes to sockets.
pub(crate) fn end_with_the_reader() {
    if !IGNORES_PIPE.load(Ordering::Relaxed) {
        // SAFETY: no handler of ours is involved. An error leaves a panic's message instead.
        let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    }
}
