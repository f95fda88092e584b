//! `sluice sim`: the stand-in on its own.
//!
//! `sim gpu` is the process that is the hardware; `sim run` runs a program on hardware of its own,
//! without Sluice in front: what the program does there is what it would do without us.

use crate::children::dies_with_us;
use crate::coverage;
use crate::exit::Exit;
use crate::gpu::{self, GpuOptions};
use crate::interrupt;
use crate::libraries::Libraries;
use anyhow::{Context, Result};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::env;
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::Duration;

/// Uses the stand-in GPU without Sluice in front of it
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Sim,
}

#[derive(Debug, clap::Subcommand)]
enum Sim {
    Gpu(GpuArguments),
    Run(RunArguments),
    Coverage(coverage::Arguments),
}

/// Is the hardware, until it is told to stop
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Example:
  sluice sim gpu --socket /tmp/gpu.sock --devices 2 --profile h200")]
struct GpuArguments {
    /// Where client libraries find it
    #[arg(long, value_name = "PATH")]
    socket: PathBuf,
    #[command(flatten)]
    options: GpuOptions,
}

/// Runs a program on hardware of its own
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sluice sim run -- python my.py
  sluice sim run --profile a100 --devices 4 -- nvidia-smi")]
struct RunArguments {
    #[command(flatten)]
    options: GpuOptions,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// Does one of them.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    match &arguments.command {
        Sim::Gpu(arguments) => gpu::serve(&arguments.socket, &arguments.options),
        Sim::Run(arguments) => run_on(arguments),
        Sim::Coverage(arguments) => coverage::run(arguments),
    }
}

/// Starts the hardware and the program, waits for the program, and ends the hardware.
///
/// The program does not take this process's place: somebody has to end the hardware after it.
fn run_on(arguments: &RunArguments) -> Result<Exit> {
    let libraries = Libraries::find()?;
    let folder = tempfile::Builder::new()
        .prefix("sluice-sim-")
        .tempdir()
        .context("cannot make a temporary folder")?;
    let socket = folder.path().join("gpu.sock");
    // Before the first child, so that none outlives a signal.
    interrupt::watch()?;
    let _hardware = gpu::start(&socket, &arguments.options)?;

    let (program, rest) = arguments
        .command
        .split_first()
        .context("there is no program to run")?;
    let mut command = Command::new(program);
    command
        .args(rest)
        .env("LD_LIBRARY_PATH", search_path(&libraries.stand_in()))
        .env(gpu::ENV_SOCKET, &socket);
    match dies_with_us(&mut command).spawn() {
        Ok(child) => Ok(exit_of(wait_for(child)?)),
        Err(error) => {
            eprintln!("sluice: cannot run {}: {error}", program.display());
            Ok(Exit::of_failed_start(&error))
        }
    }
}

/// Waits for the program; what this process is told to do, it is told as well.
///
/// A terminal's Ctrl-C reaches it directly and here as well; a second SIGINT would be one too many,
/// so only SIGTERM's kind goes on, as SIGTERM.
fn wait_for(mut child: Child) -> Result<ExitStatus> {
    let pid = Pid::from_raw(i32::try_from(child.id()).context("a process id fits")?);
    let mut is_told = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for the program")? {
            return Ok(status);
        }
        if let (Some(signal), false) = (interrupt::last(), is_told) {
            is_told = true;
            if signal != Signal::SIGINT {
                // It may have ended meanwhile.
                let _ = kill(pid, signal);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As shells name it: the program's code, or 128 and the signal's number.
fn exit_of(status: ExitStatus) -> Exit {
    let code = status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    Exit::Of(u8::try_from(code).unwrap_or(u8::MAX))
}

/// The stand-in's folder before what is searched already.
fn search_path(folder: &Path) -> OsString {
    let mut path = folder.as_os_str().to_owned();
    if let Some(present) = env::var_os("LD_LIBRARY_PATH").filter(|present| !present.is_empty()) {
        path.push(":");
        path.push(present);
    }
    path
}
