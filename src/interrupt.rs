//! Ctrl-C and its like as a question, so that whoever started processes can end them in order.

use anyhow::{Context, Result};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, sigaction};
use std::sync::atomic::{AtomicI32, Ordering};

static LAST: AtomicI32 = AtomicI32::new(0);

/// From now on SIGINT, SIGTERM and SIGHUP only change what [`last`] says. Programs started later
/// have their own handlers.
///
/// # Errors
/// The kernel refuses a handler, which it has no reason to.
pub(crate) fn watch() -> Result<()> {
    let note = SigAction::new(
        SigHandler::Handler(note),
        SaFlags::SA_RESTART,
        SigSet::empty(),
    );
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        // SAFETY: the handler stores to one atomic, which is allowed in a handler.
        unsafe { sigaction(signal, &note) }.with_context(|| format!("cannot catch {signal}"))?;
    }
    Ok(())
}

/// The last of the signals that has come.
pub(crate) fn last() -> Option<Signal> {
    // Relaxed: the number guards nothing else.
    Signal::try_from(LAST.load(Ordering::Relaxed)).ok()
}

extern "C" fn note(signal: i32) {
    // Relaxed: see `last`.
    LAST.store(signal, Ordering::Relaxed);
}
