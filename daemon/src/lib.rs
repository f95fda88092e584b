//! The node's daemon: who may hold how much memory of which device, and who holds how much now.
//!
//! * [`config`], [`quota`], [`terms`], [`api`]: what people and programs say to it.
//! * [`tenants`]: the registry; pure.
//! * [`runtime`]: the folder of its sockets, its lock and its ledger.
//! * [`run`], [`start`]: the daemon itself.
//!
//! # Threads and lock order
//!
//! The turns' thread decides whose turn it is on each device ([`arbiter`] is pure and does not know of it);
//! the attach thread owns all clients' sockets; the heartbeat thread says that the daemon lives and
//! writes the ledger; the status thread answers HTTP; the device thread asks NVML, and may hang there
//! without holding up anybody. They share one state under one lock, held for microseconds and never
//! across a system call that can wait. The ledger's
//! lock and the turns' lock are taken before it, never after.
#![deny(unsafe_code)]

pub mod api;
pub mod arbiter;
mod attach;
mod audit;
mod bells;
mod clients;
pub mod config;
mod descriptors;
mod devices;
mod group_limits;
mod heartbeat;
mod ledger_file;
mod messages;
mod native;
mod pages;
mod process;
pub mod quota;
mod recovery;
pub mod runtime;
mod state;
mod status;
mod sweep;
pub mod tenants;
pub mod terms;
mod turns;

use api::DriverInfo;
use config::Config;
pub use devices::DeviceError;
use runtime::{Folder, RuntimeError};
use state::Shared;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;
use tenants::Device;
use tokio::signal::unix::{SignalKind, signal};

/// What a daemon is to do; made from a [`Config`] and what the program found out.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// The runtime folder.
    pub runtime_dir: PathBuf,
    /// The driver that tenants get. Its `libnvml` is where this daemon asks for its devices; with the
    /// stand-in, the caller has set `SLUICE_SIM_SOCKET` before any thread started.
    pub driver: DriverInfo,
    /// Sum of all caps on a device, as a multiple of its size.
    pub overcommit_ratio: f64,
    /// What all overcommitted tenants' caps may be more than the devices have.
    pub host_budget_bytes: u64,
    /// The length of a turn while a device's tenants hold more than it has.
    pub oversubscribed_turn: std::time::Duration,
    /// What is set aside of each cap at least, for memory that no allocation explains.
    pub overhead_reserve_bytes: u64,
    /// Whether copies and fills wait for their turn as launches do.
    pub gates_copies: bool,
    /// Whether a driver that can is to hold containers' caps itself.
    pub native_limits: bool,
    /// Group that may read the status socket, where it exists.
    pub status_group: String,
    /// The devices; `None`: those that NVML knows.
    pub devices: Option<Vec<Device>>,
}

impl Settings {
    /// What `config` says, in the folder and with the driver that the program settled on.
    pub fn new(config: &Config, runtime_dir: PathBuf, driver: DriverInfo) -> Self {
        Self {
            runtime_dir,
            driver,
            overcommit_ratio: config.memory.overcommit_ratio,
            host_budget_bytes: config.memory.host_budget_mib << 20,
            oversubscribed_turn: std::time::Duration::from_millis(
                config.memory.oversubscribed_turn_ms,
            ),
            overhead_reserve_bytes: config.memory.overhead_reserve_mib << 20,
            gates_copies: config.compute.gate_copies,
            native_limits: config.memory.native_limits,
            status_group: config.status.group.clone(),
            devices: None,
        }
    }
}

/// Why a daemon did not start, or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DaemonError {
    /// Its runtime folder cannot be used.
    #[error(transparent)]
    Runtime(#[from] RuntimeError),
    /// There are no devices.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// One of its threads came to an unforeseen end. Clients go on with their caps, and the next daemon
    /// takes them over.
    #[error("the daemon's {thread} thread has failed; start the daemon again")]
    Thread {
        /// Its name.
        thread: String,
    },
    /// The system refused something that it needs.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
}

impl DaemonError {
    fn system(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| Self::System { what, source }
    }
}

/// A running daemon.
#[derive(Debug)]
pub struct Daemon {
    shared: Arc<Shared>,
    folder: Folder,
    threads: Vec<JoinHandle<()>>,
}

/// Runs a daemon until `SIGTERM` or `SIGINT`. Clients keep running, with their caps; the ledger stays,
/// so that the next daemon takes them over.
///
/// # Errors
/// It could not start.
pub fn run(settings: Settings) -> Result<(), DaemonError> {
    let system = DaemonError::system("wait for signals");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(&system)?;
    // Before anything starts, so that no signal finds the default handler later on.
    let (mut terminate, mut interrupt) = runtime
        .block_on(async {
            Ok((
                signal(SignalKind::terminate())?,
                signal(SignalKind::interrupt())?,
            ))
        })
        .map_err(&system)?;
    let outcome = runtime.block_on(async {
        // Aside, since NVML may take its time, or for ever, and signals count meanwhile.
        let starting = tokio::task::spawn_blocking(|| start(settings));
        let daemon = tokio::select! {
            started = starting => match started {
                Ok(started) => started?,
                Err(_) => return Err(DaemonError::Thread { thread: "start".to_owned() }),
            },
            _ = terminate.recv() => return Ok(()),
            _ = interrupt.recv() => return Ok(()),
        };
        let outcome = tokio::select! {
            _ = terminate.recv() => Ok("SIGTERM"),
            _ = interrupt.recv() => Ok("SIGINT"),
            thread = daemon.shared.failed() => Err(DaemonError::Thread { thread }),
        };
        let outcome = outcome.map(|signal| tracing::info!(signal, "stopping"));
        daemon.stop();
        outcome
    });
    runtime.shutdown_background();
    outcome
}

/// Starts a daemon and returns when it has found its devices and takes registrations. Processes of
/// tenants that an earlier daemon left are served at once, while it still looks for its devices.
///
/// # Errors
/// The folder is unusable or taken, or there are no devices.
pub fn start(settings: Settings) -> Result<Daemon, DaemonError> {
    let folder = Folder::take(&settings.runtime_dir)?;
    let attach_listener = folder.listen_attach()?;
    let status_listener = folder.listen_status(&settings.status_group)?;
    let shared = Arc::new(
        Shared::new(&settings, folder.ledger()).map_err(DaemonError::system("start to watch"))?,
    );
    raise_descriptor_limit();
    let mut daemon = Daemon {
        shared: Arc::clone(&shared),
        folder,
        threads: Vec::new(),
    };
    let started = daemon.start_threads(&settings, attach_listener, status_listener);
    if let Err(error) = started {
        daemon.stop();
        return Err(error);
    }
    let (devices, tenants) = {
        let state = shared.state();
        (
            state.registry.devices().len(),
            state.registry.tenants().count(),
        )
    };
    tracing::info!(folder = %settings.runtime_dir.display(), devices, tenants, "ready");
    Ok(daemon)
}

impl Daemon {
    /// Ends the daemon as `SIGTERM` does.
    pub fn stop(self) {
        self.shared.stop();
        for thread in self.threads {
            thread.thread().unpark();
            // One that panicked has said so already.
            let _ = thread.join();
        }
        self.shared.save();
        self.folder.remove_sockets();
    }

    fn start_threads(
        &mut self,
        settings: &Settings,
        attach_listener: std::os::fd::OwnedFd,
        status_listener: std::os::fd::OwnedFd,
    ) -> Result<(), DaemonError> {
        let system = DaemonError::system("start a thread");
        let attach = attach::Server::new(Arc::clone(&self.shared), attach_listener)
            .map_err(DaemonError::system("watch the attach socket"))?;
        self.threads
            .push(spawn(&self.shared, "attach", || attach.run()).map_err(&system)?);
        let shared = Arc::clone(&self.shared);
        self.threads.push(
            spawn(&self.shared, "heartbeat", move || heartbeat::run(&shared)).map_err(&system)?,
        );
        let shared = Arc::clone(&self.shared);
        self.threads
            .push(spawn(&self.shared, "turns", move || turns::run(&shared)).map_err(&system)?);
        let devices = devices::Watch::new(settings).map_err(&system)?;
        let devices = Arc::new(devices);
        let native = native::Native::new(
            Arc::clone(&self.shared),
            Arc::clone(&devices),
            settings.native_limits,
        );
        let native = Arc::new(native);
        let status = status::Server::new(
            Arc::clone(&self.shared),
            Arc::clone(&devices),
            Arc::clone(&native),
            settings,
            status_listener,
        )
        .map_err(DaemonError::system("serve the status socket"))?;
        self.threads
            .push(spawn(&self.shared, "status", || status.run()).map_err(&system)?);
        let audit = audit::Audit::new(Arc::clone(&self.shared), Arc::clone(&devices), native)
            .map_err(DaemonError::system("start the audit"))?;
        self.threads
            .push(spawn(&self.shared, "audit", || audit.run()).map_err(&system)?);
        let found = devices.discover()?;
        for device in &found {
            tracing::info!(
                index = device.index,
                uuid = device.uuid,
                name = device.name,
                memory = %quota::Size(device.memory_bytes),
                "device"
            );
        }
        self.shared.set_devices(found);
        Ok(())
    }
}

/// Starts a thread that the daemon cannot do without: if it panics, the daemon ends.
fn spawn(
    shared: &Arc<Shared>,
    name: &'static str,
    run: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    let alarm = Alarm {
        shared: Arc::clone(shared),
        name,
    };
    let run = move || {
        let _alarm = alarm;
        run();
    };
    std::thread::Builder::new().name(name.to_owned()).spawn(run)
}

/// Goes off when its thread unwinds.
struct Alarm {
    shared: Arc<Shared>,
    name: &'static str,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.shared.fail(self.name);
        }
    }
}

/// A client costs two descriptors; the usual soft limit of 1,024 is there for `select`, which is not
/// used here.
fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((_, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        // Where it fails, fewer clients can attach, and they are told.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, hard, hard);
    }
}
