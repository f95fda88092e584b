//! The stand-in's `gpu` process: how it is asked for, started, reused and ended.

use crate::children::{Owned, dies_with_us, lives_alone, wait_until_ready};
use crate::exit::Exit;
use crate::place::Place;
use anyhow::{Context, Result};
use daemon::quota::Memory;
use sim::client::Gpu;
use sim::gpu::Options;
use sim::profile::{DriverVersion, Profile};
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

pub(crate) use sim::proto::ENV_SOCKET;

/// Longest wait for the process to accept connections; it takes a few milliseconds.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// What the hardware is to be.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Hardware")]
pub(crate) struct GpuOptions {
    /// How many devices [default: 1]
    #[arg(long, value_name = "N")]
    pub(crate) devices: Option<usize>,
    /// What they stand in for: test, t4, l4, a100 or h200 [default: test]
    #[arg(long, value_name = "WORD", value_parser = profile)]
    pub(crate) profile: Option<String>,
    /// Memory of each device, such as 8GiB [default: the profile's]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) memory: Option<u64>,
    /// Microseconds between two switches of contexts that have work [default: 2000]
    #[arg(long, value_name = "N")]
    pub(crate) slice_us: Option<u64>,
    /// Microseconds that a switch costs [default: 100]
    #[arg(long, value_name = "N")]
    pub(crate) switch_us: Option<u64>,
    /// Contexts run side by side as long as their kernels fit, as under NVIDIA's MPS: no switches
    #[arg(long)]
    pub(crate) mps: bool,
    /// Device memory that each context takes, such as 300MiB [default: none]
    #[arg(long, value_name = "SIZE", value_parser = bytes)]
    pub(crate) context_overhead: Option<u64>,
    /// Driver that it says it is: 535, 550, 555, 570, 580 or 615 [default: 580]
    #[arg(long, value_name = "VERSION", value_parser = driver_version)]
    pub(crate) driver_version: Option<String>,
}

impl GpuOptions {
    /// The same as arguments.
    fn arguments(&self) -> Vec<String> {
        let flags = [
            ("--devices", self.devices.map(|n| n.to_string())),
            ("--profile", self.profile.clone()),
            ("--memory", self.memory.map(|n| n.to_string())),
            ("--slice-us", self.slice_us.map(|n| n.to_string())),
            ("--switch-us", self.switch_us.map(|n| n.to_string())),
            (
                "--context-overhead",
                self.context_overhead.map(|n| n.to_string()),
            ),
            ("--driver-version", self.driver_version.clone()),
        ];
        let valued = flags
            .into_iter()
            .filter_map(|(flag, value)| Some([flag.to_owned(), value?]))
            .flatten();
        let bare = self.mps.then(|| "--mps".to_owned());
        valued.chain(bare).collect()
    }
}

/// `sluice sim gpu` at `socket`, not started yet.
fn command(socket: &Path, options: &GpuOptions) -> Result<Command> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command
        .args(["sim", "gpu", "--socket"])
        .arg(socket)
        .args(options.arguments())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    Ok(command)
}

/// Is the hardware until its socket is taken away or a signal ends it.
///
/// # Errors
/// The options make no sense together, or another process answers at `socket`.
pub(crate) fn serve(socket: &Path, options: &GpuOptions) -> Result<Exit> {
    let default = Options::default();
    let profile = options.profile.as_deref().map(Profile::named).transpose()?;
    let driver = options
        .driver_version
        .as_deref()
        .map(DriverVersion::named)
        .transpose()?;
    sim::gpu::run(Options {
        socket: socket.to_owned(),
        devices: options.devices.unwrap_or(default.devices),
        profile: profile.unwrap_or(default.profile),
        memory_bytes: options.memory.or(default.memory_bytes),
        slice: options
            .slice_us
            .map_or(default.slice, Duration::from_micros),
        switch: options
            .switch_us
            .map_or(default.switch, Duration::from_micros),
        is_shared: options.mps,
        context_overhead_bytes: options
            .context_overhead
            .unwrap_or(default.context_overhead_bytes),
        driver: driver.unwrap_or(default.driver),
        die_with_parent: false,
    })?;
    Ok(Exit::Success)
}

/// Starts the process at `socket` as a child that ends with this one.
///
/// # Errors
/// It does not start.
pub(crate) fn start(socket: &Path, options: &GpuOptions) -> Result<Owned> {
    let mut command = command(socket, options)?;
    // A terminal's Ctrl-C is not for it: its programs may want to end in order.
    let child = dies_with_us(command.process_group(0))
        .spawn()
        .context("cannot start the stand-in")?;
    let mut child = Owned(child);
    wait_until_ready(&mut child.0, "the stand-in", READY_WITHIN, || {
        answers(socket)
    })?;
    Ok(child)
}

/// Sees to it that a process answers in `place`: the one that does already, else a new one that
/// outlives this process.
///
/// # Errors
/// A new one does not start.
pub(crate) fn ensure(place: &Place) -> Result<()> {
    let socket = place.gpu_socket();
    if answers(&socket) {
        tracing::info!(socket = %socket.display(), "uses the stand-in that runs already");
        return Ok(());
    }
    place.make()?;
    let log = place.folder().join("gpu.log");
    let output = File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut command = command(&socket, &GpuOptions::default())?;
    let mut child = lives_alone(command.stderr(output))
        .spawn()
        .context("cannot start the stand-in")?;
    wait_until_ready(&mut child, "the stand-in", READY_WITHIN, || {
        answers(&socket)
    })
    .with_context(|| format!("{} says why", log.display()))?;
    // Says to the next daemon that this one may be ended, and was not started by somebody else.
    let mark = inode(&socket)
        .map(|inode| inode.to_string())
        .unwrap_or_default();
    fs::write(mark_file(place), mark).context("cannot write gpu.started")?;
    tracing::info!(pid = child.id(), "started the stand-in");
    // Whoever waits for it lets it vanish when it ends while this process lives.
    std::thread::spawn(move || child.wait());
    Ok(())
}

/// Ends the process that a daemon started in `place`, unless some program still uses it: then the
/// next daemon finds it.
pub(crate) fn end_if_idle(place: &Place) {
    let socket = place.gpu_socket();
    let mark = fs::read_to_string(mark_file(place)).ok();
    let is_ours = mark.and_then(|mark| mark.parse().ok()) == inode(&socket);
    let Ok(gpu) = Gpu::connect_to(&socket) else {
        return;
    };
    if !is_ours {
        return;
    }
    let devices = gpu.devices();
    let users: usize = devices
        .iter()
        .map(|device| gpu.processes(device.index).len())
        .sum();
    if users > 0 {
        tracing::info!(users, "leaves the stand-in running for its programs");
        return;
    }
    // It ends when its socket is gone. What fails here is tried again by the next daemon.
    let _ = fs::remove_file(&socket);
    let _ = fs::remove_file(mark_file(place));
}

fn answers(socket: &Path) -> bool {
    Gpu::connect_to(socket).is_ok()
}

fn inode(path: &Path) -> Option<u64> {
    fs::symlink_metadata(path).ok().map(|found| found.ino())
}

fn mark_file(place: &Place) -> PathBuf {
    place.folder().join("gpu.started")
}

fn profile(word: &str) -> Result<String, sim::profile::UnknownWord> {
    Profile::named(word).map(|_| word.to_owned())
}

fn driver_version(word: &str) -> Result<String, sim::profile::UnknownWord> {
    DriverVersion::named(word).map(|_| word.to_owned())
}

fn bytes(text: &str) -> Result<u64, String> {
    match Memory::parse(text) {
        Ok(Memory::Bytes(bytes)) => Ok(bytes),
        Ok(_) => Err(format!("\"{text}\" is not a size such as 8GiB")),
        Err(error) => Err(error.to_string()),
    }
}
