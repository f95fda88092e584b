//! The `gpu` process: sockets, rings, deaths.
//!
//! One thread. It takes submissions from the clients' rings in the order of their times, lets the
//! [`Engine`](crate::hardware::engine::Engine) decide, writes what happened into the clients' pages,
//! and sleeps until the engine's next event, a doorbell, a request or a death.
//!
//! A client is gone when its connection or its process ends, whichever comes first: a forked child
//! that inherits the connection does not keep its parent's memory.

mod checkpoint;
mod events;
mod groups;
mod process;
mod requests;
mod setup;

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use self::process::Process;
use self::setup::allow_many_files;
use crate::profile::{DriverVersion, PROFILES, Profile};
use crate::proto::MAX_DEVICES;

/// Longest run of one context while others have work. Flag: `--slice-us`.
///
/// 2 ms: the time slice that data-centre drivers use by default.
pub const DEFAULT_SLICE: Duration = Duration::from_millis(2);

/// What a change of contexts costs. Flag: `--switch-us`.
///
/// 100 µs: saving and loading a full context; native slicing loses 8 to 10 % by it.
pub const DEFAULT_SWITCH: Duration = Duration::from_micros(100);

/// How the hardware is built.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where clients connect: `--socket`.
    pub socket: PathBuf,
    /// How many devices, at most [`MAX_DEVICES`]: `--devices`.
    pub devices: usize,
    /// What they are: `--profile`.
    pub profile: &'static Profile,
    /// Device memory, if other than the profile's: `--memory`.
    pub memory_bytes: Option<u64>,
    /// See [`DEFAULT_SLICE`].
    pub slice: Duration,
    /// See [`DEFAULT_SWITCH`].
    pub switch: Duration,
    /// Whether contexts run side by side, as under a multi-process server: `--mps`.
    pub is_shared: bool,
    /// Device memory that each context takes for itself: `--context-overhead`.
    pub context_overhead_bytes: u64,
    /// The driver that is reported: `--driver-version`.
    pub driver: DriverVersion,
    /// Whether the process is killed when the thread that started it ends.
    pub die_with_parent: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            socket: PathBuf::from("gpu.sock"),
            devices: 1,
            profile: &PROFILES[0],
            memory_bytes: None,
            slice: DEFAULT_SLICE,
            switch: DEFAULT_SWITCH,
            is_shared: false,
            context_overhead_bytes: 0,
            driver: DriverVersion::default(),
            die_with_parent: false,
        }
    }
}

/// Why the process did not start or had to stop.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum RunError {
    /// Another process answers on the socket.
    #[error("another process already answers at {0}")]
    InUse(PathBuf),
    /// No devices, or too many.
    #[error("{0} devices asked; from 1 to {MAX_DEVICES} are possible")]
    Devices(usize),
    /// No memory, or no whole number of MiB.
    #[error(
        "{0} bytes of device memory asked; a multiple of 1 MiB from 2 MiB to 1 TiB is possible"
    )]
    Memory(u64),
    /// The socket could not be made.
    #[error("cannot listen at {path}: {source}")]
    Listen {
        /// Where.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The operating system refused something else.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<nix::Error> for RunError {
    fn from(error: nix::Error) -> Self {
        Self::System(error.into())
    }
}

/// Is the hardware until the socket's file is taken away.
///
/// Prints nothing; it is ready when the socket accepts. A file left behind by a dead process is
/// replaced.
///
/// # Errors
/// [`RunError`]; once it serves, only what the operating system refuses to the process as a whole.
pub fn run(options: Options) -> Result<(), RunError> {
    if options.die_with_parent {
        nix::sys::prctl::set_pdeathsig(Some(nix::sys::signal::Signal::SIGKILL))?;
    }
    // A timer that is late by the default slack of 50 µs would show in every wake-up.
    nix::sys::prctl::set_timerslack(1)?;
    allow_many_files()?;
    let mut process = Process::new(options)?;
    process.serve()
}
