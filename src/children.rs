//! Processes that this program starts, and how long they live.

use anyhow::{Context, Result, bail};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd;
use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

/// Lets the kernel kill the child when this thread ends, however it ends. Call it, and start the
/// child, from the main thread: the kernel watches the thread, not the process.
pub(crate) fn dies_with_us(command: &mut Command) -> &mut Command {
    let us = unistd::getpid();
    let tie = move || {
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        // We may have died before the tie held.
        if unistd::getppid() != us {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure makes two system calls; it neither allocates nor
    // locks.
    unsafe { command.pre_exec(tie) }
}

/// Gives the child a session of its own: no terminal's Ctrl-C reaches it, and it outlives us.
pub(crate) fn lives_alone(command: &mut Command) -> &mut Command {
    let leave = || Ok(unistd::setsid().map(drop)?);
    // SAFETY: between fork and exec the closure makes one system call; it neither allocates nor
    // locks.
    unsafe { command.pre_exec(leave) }
}

/// Waits until `child`, which is `what`, is ready.
///
/// # Errors
/// It ended first, or is not ready within `bound`.
pub(crate) fn wait_until_ready(
    child: &mut Child,
    what: &str,
    bound: Duration,
    is_ready: impl Fn() -> bool,
) -> Result<()> {
    let deadline = Instant::now() + bound;
    loop {
        if is_ready() {
            return Ok(());
        }
        if let Some(status) = child
            .try_wait()
            .with_context(|| format!("cannot watch {what}"))?
        {
            bail!("{what} ended at once with {status}");
        }
        if Instant::now() > deadline {
            bail!("{what} is not ready after {} s", bound.as_secs());
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A child that is killed when this value goes away.
#[derive(Debug)]
pub(crate) struct Owned(pub(crate) Child);

impl Drop for Owned {
    fn drop(&mut self) {
        // An error means that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
