//! The demo's own node: a temporary runtime folder, the stand-in's `gpu` process where there is one,
//! a daemon, and tenants. All of it goes when the value goes.

use super::tenant::Role;
use crate::children::{Owned, dies_with_us, wait_until_ready};
use crate::client::Client;
use crate::gpu::{self, GpuOptions};
use crate::libraries::Libraries;
use crate::place::Place;
use anyhow::{Context, Result, anyhow};
use daemon::api::{DriverKind, Status};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longest wait for a daemon to answer; a real driver may take seconds to come up.
const READY_WITHIN: Duration = Duration::from_secs(20);

/// A node that lasts as long as the demo.
///
/// Fields go in their order: daemon and `gpu` process end before their folder is removed.
#[derive(Debug)]
pub(crate) struct Node {
    daemon: Option<Owned>,
    gpu: Option<Owned>,
    client: Client,
    place: Place,
    kind: DriverKind,
    folder: TempDir,
}

impl Node {
    /// Starts what tenants on `kind` of driver need.
    ///
    /// # Errors
    /// Something does not start; the message has its last words.
    pub(crate) fn start(kind: DriverKind) -> Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix("sluice-demo-")
            .tempdir()
            .context("cannot make a temporary folder")?;
        let place = Place::new(folder.path().join("run"));
        place.make()?;
        let gpu = match kind {
            DriverKind::StandIn => Some(gpu::start(&place.gpu_socket(), &GpuOptions::default())?),
            DriverKind::Real => None,
        };
        let mut node = Self {
            daemon: None,
            gpu,
            client: Client::new(place.status_socket())?,
            place,
            kind,
            folder,
        };
        node.start_daemon()?;
        Ok(node)
    }

    /// Starts a daemon and waits until it answers.
    pub(crate) fn start_daemon(&mut self) -> Result<()> {
        let device = match self.kind {
            DriverKind::Real => "real",
            DriverKind::StandIn => "stand-in",
        };
        let mut command = this_program()?;
        command
            .args([
                "daemon",
                "--device",
                device,
                "--config",
                "/dev/null",
                "--runtime-dir",
            ])
            .arg(self.place.folder())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log("daemon")?);
        let mut child = Owned(
            dies_with_us(&mut command)
                .spawn()
                .context("cannot start the daemon")?,
        );
        // A socket may be left from the daemon before; only an answer counts.
        let is_ready = || self.client.is_ready();
        wait_until_ready(&mut child.0, "the daemon", READY_WITHIN, is_ready)
            .map_err(|error| anyhow!("{error:#}; {}", self.last_words("daemon")))?;
        self.daemon = Some(child);
        Ok(())
    }

    /// Kills the daemon, as `kill -9` does.
    pub(crate) fn kill_daemon(&mut self) {
        self.daemon = None;
    }

    /// Processor time of the daemon so far; nothing where it cannot be told.
    pub(crate) fn daemon_cpu(&self) -> Duration {
        let pid = self.daemon.as_ref().map_or(0, |daemon| daemon.0.id());
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name in parentheses may have spaces; user and system time are the 12th and 13th after it.
        let fields = text.rsplit_once(')').map_or("", |(_, rest)| rest);
        let ticks = fields.split_whitespace().skip(11).take(2);
        let ticks: u64 = ticks.filter_map(|field| field.parse::<u64>().ok()).sum();
        // 100 a second on every Linux that there is for these machines.
        Duration::from_millis(ticks * 10)
    }

    /// Process ids of the daemon and of the `gpu` process.
    pub(crate) fn pids(&self) -> impl Iterator<Item = u32> {
        [&self.daemon, &self.gpu]
            .into_iter()
            .flatten()
            .map(|child| child.0.id())
    }

    /// What the daemon says.
    pub(crate) fn status(&self) -> Result<Status> {
        self.client.status()
    }

    /// Starts a tenant the way a user does, with `sluice run`.
    pub(crate) fn start_tenant(&self, name: &str, cap_bytes: u64, role: Role) -> Result<Owned> {
        let role = match role {
            Role::Web => "web",
            Role::Batch => "batch",
            Role::Jobs => "jobs",
            Role::Worker => "worker",
        };
        self.start_program(name, cap_bytes, &[], &["demo-tenant", "--role", role])
    }

    /// Starts this program as a tenant with these `options` of `sluice run`, and these `arguments`.
    pub(crate) fn start_program(
        &self,
        name: &str,
        cap_bytes: u64,
        options: &[&str],
        arguments: &[&str],
    ) -> Result<Owned> {
        let mut command = this_program()?;
        command
            .arg("run")
            .arg("--runtime-dir")
            .arg(self.place.folder())
            .args([
                "--name",
                name,
                "--memory",
                &cap_bytes.to_string(),
                "--gpu",
                "0",
            ])
            .args(options)
            .arg("--")
            .arg(std::env::current_exe().context("cannot tell where this program lies")?)
            .args(arguments)
            .env_remove("CUDA_VISIBLE_DEVICES")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.log(name)?);
        let child = dies_with_us(&mut command)
            .spawn()
            .with_context(|| format!("cannot start the tenant {name}"))?;
        Ok(Owned(child))
    }

    /// Starts this program without Sluice, on the same device, with these `arguments`.
    pub(crate) fn start_plain(&self, name: &str, arguments: &[&str]) -> Result<Owned> {
        let mut command = this_program()?;
        command
            .args(arguments)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(self.log(name)?);
        if let Some(socket) = self.gpu_socket() {
            command
                .env(gpu::ENV_SOCKET, socket)
                .env("LD_LIBRARY_PATH", Libraries::find()?.stand_in());
        }
        let child = dies_with_us(&mut command)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Owned(child))
    }

    /// The last lines that the daemon, the `gpu` process or a tenant wrote to its standard error.
    pub(crate) fn last_words(&self, of: &str) -> String {
        let text = std::fs::read_to_string(log_path(self.folder.path(), of)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let tail = &lines[lines.len().saturating_sub(10)..];
        if tail.is_empty() {
            format!("{of} said nothing")
        } else {
            format!("{of} said:\n{}", tail.join("\n"))
        }
    }

    /// Where the stand-in's `gpu` process answers, where there is one.
    pub(crate) fn gpu_socket(&self) -> Option<std::path::PathBuf> {
        self.gpu.as_ref().map(|_| self.place.gpu_socket())
    }

    fn log(&self, of: &str) -> Result<File> {
        let path = log_path(self.folder.path(), of);
        File::options()
            .append(true)
            .create(true)
            .open(&path)
            .with_context(|| format!("cannot write {}", path.display()))
    }
}

/// This program, in a process group of its own: a terminal's Ctrl-C is for the demo, which ends its
/// children itself.
fn this_program() -> Result<Command> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command.process_group(0);
    Ok(command)
}

fn log_path(folder: &Path, of: &str) -> std::path::PathBuf {
    folder.join(format!("{of}.log"))
}
