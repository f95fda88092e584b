//! `sluice daemon`: shares this machine's GPUs, in the foreground.

use crate::cdi;
use crate::choice::{Choice, resolve};
use crate::exit::Exit;
use crate::gpu;
use crate::lending::Node;
use crate::libraries::Libraries;
use crate::place::Place;
use anyhow::{Context, Result};
use daemon::api::{DriverInfo, DriverKind};
use daemon::config::{Class, Config, Kind, WithoutDaemon};
use daemon::{Settings, runtime};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing_subscriber::EnvFilter;

/// Shares this machine's GPUs; runs in the foreground
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Stop it with Ctrl-C or SIGTERM. Programs under a cap go on, with their caps; the next daemon in the
same folder takes them over.

Examples:
  sluice daemon
  sluice daemon --device stand-in --runtime-dir /tmp/try
  sluice daemon --print-config")]
pub(crate) struct Arguments {
    /// Configuration file [default: /etc/sluice/sluice.toml for root, else ~/.config/sluice/sluice.toml]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Folder of its sockets [default: /run/sluice for root, else $XDG_RUNTIME_DIR/sluice or /tmp/sluice-UID]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
    /// Which driver programs get; auto is the machine's own [default: what the configuration says]
    #[arg(long, value_enum)]
    device: Option<Choice>,
    /// Prints what it would do, as a configuration file, and ends
    #[arg(long)]
    print_config: bool,
}

/// Runs a daemon until it is told to stop.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let mut config = Config::load(arguments.config.as_deref())?;
    if let Some(folder) = &arguments.runtime_dir {
        // The folder's sockets are named to other programs, which run elsewhere.
        config.runtime.dir = std::path::absolute(folder)
            .with_context(|| format!("cannot tell where {} lies", folder.display()))?;
    } else if config.runtime.dir.as_os_str().is_empty() {
        config.runtime.dir = runtime::default_folder();
    }
    if let Some(choice) = arguments.device {
        config.driver.kind = match choice {
            Choice::Auto => Kind::Auto,
            Choice::Real => Kind::Real,
            Choice::StandIn => Kind::StandIn,
        };
    }
    if arguments.print_config {
        print!("{}", as_toml(&config));
        return Ok(Exit::Success);
    }
    log(&config.log.level);
    let place = Place::new(&config.runtime.dir);
    let driver = driver(&config, &place)?;
    let is_stand_in = driver.kind == DriverKind::StandIn;
    tidy_leases(arguments, &config);
    let outcome = daemon::run(Settings::new(&config, config.runtime.dir.clone(), driver));
    if is_stand_in {
        gpu::end_if_idle(&place);
    }
    outcome?;
    Ok(Exit::Success)
}

/// How often leases that no container uses are looked for.
const TIDY_EVERY: Duration = Duration::from_secs(600);

/// Removes old leases for as long as this process lives; root's daemon alone, since the folder is the engines'.
fn tidy_leases(arguments: &Arguments, config: &Config) {
    if !nix::unistd::geteuid().is_root() || config.runtime.dir != Path::new("/run/sluice") {
        return;
    }
    let node = Node {
        runtime_dir: Some(config.runtime.dir.clone()),
        config: arguments.config.clone(),
    };
    std::thread::spawn(move || {
        loop {
            std::thread::sleep(TIDY_EVERY);
            match cdi::tidy(&node, Path::new(containers::lease::FOLDER)) {
                Ok(removed) if removed.is_empty() => {}
                Ok(removed) => tracing::info!(?removed, "removed leases that nobody uses"),
                Err(error) => tracing::warn!("{error:#}"),
            }
        }
    });
}

/// Decides on the driver, and sees to it that the stand-in's hardware runs.
fn driver(config: &Config, place: &Place) -> Result<DriverInfo> {
    let named = |path: &Path| (!path.as_os_str().is_empty()).then(|| path.display().to_string());
    let (libcuda, libnvml) = (named(&config.driver.libcuda), named(&config.driver.libnvml));
    let choice = match config.driver.kind {
        Kind::Auto => Choice::Auto,
        Kind::Real => Choice::Real,
        Kind::StandIn => Choice::StandIn,
    };
    match resolve(choice, libnvml.as_deref().map(Path::new))? {
        DriverKind::Real => Ok(DriverInfo {
            kind: DriverKind::Real,
            libcuda,
            libnvml,
            gpu_socket: None,
        }),
        DriverKind::StandIn => {
            let folder = Libraries::find()?.stand_in();
            let library = |file: &str| folder.join(file).display().to_string();
            let socket = place.gpu_socket().display().to_string();
            // SAFETY: no other thread runs yet that could read the environment meanwhile.
            unsafe { std::env::set_var(gpu::ENV_SOCKET, &socket) };
            gpu::ensure(place)?;
            Ok(DriverInfo {
                kind: DriverKind::StandIn,
                libcuda: Some(libcuda.unwrap_or_else(|| library("libcuda.so.1"))),
                libnvml: Some(libnvml.unwrap_or_else(|| library("libnvidia-ml.so.1"))),
                gpu_socket: Some(socket),
            })
        }
    }
}

/// Logs to standard error, at `level` unless `SLUICE_DAEMON_LOG` says otherwise.
fn log(level: &str) {
    let filter =
        EnvFilter::try_from_env("SLUICE_DAEMON_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .init();
}

/// The configuration in the form of its file.
fn as_toml(config: &Config) -> String {
    // Debug spells a string as TOML does, but for what neither path nor level contains.
    let quoted = |path: &Path| format!("{:?}", path.display().to_string());
    let kind = match config.driver.kind {
        Kind::Auto => "auto",
        Kind::Real => "real",
        Kind::StandIn => "stand-in",
    };
    let without_daemon = match config.containers.without_daemon {
        WithoutDaemon::Refuse => "refuse",
        WithoutDaemon::Start => "start",
    };
    let classes: String = config
        .containers
        .classes
        .iter()
        .map(|(name, class)| format!("classes.{name:?} = {}\n", inline(class)))
        .collect();
    format!(
        "[runtime]\ndir = {}\n\n[driver]\nkind = {kind:?}\nlibcuda = {}\nlibnvml = {}\n\n[memory]\n\
         overcommit_ratio = {:?}\nhost_budget_mib = {}\noversubscribed_turn_ms = {}\noverhead_reserve_mib = {}\nnative_limits = {}\n\n[compute]\n\
         gate_copies = {}\n\n[containers]\nwithout_daemon = {without_daemon:?}\n\
         runtime = {:?}\nlease_hours = {}\n{classes}\n[log]\nlevel = {:?}\n\n[status]\ngroup = {:?}\n",
        quoted(&config.runtime.dir),
        quoted(&config.driver.libcuda),
        quoted(&config.driver.libnvml),
        config.memory.overcommit_ratio,
        config.memory.host_budget_mib,
        config.memory.oversubscribed_turn_ms,
        config.memory.overhead_reserve_mib,
        config.memory.native_limits,
        config.compute.gate_copies,
        config.containers.runtime,
        config.containers.lease_hours,
        config.log.level,
        config.status.group,
    )
}

fn inline(class: &Class) -> String {
    let text =
        |key: &str, value: &Option<String>| value.as_ref().map(|it| format!("{key} = {it:?}"));
    let keys = [
        text("memory", &Some(class.memory.clone())),
        text("compute", &class.compute),
        text("compute_max", &class.compute_max),
        class.weight.map(|weight| format!("weight = {weight}")),
        text("class", &class.class),
        class
            .memory_overcommit
            .then(|| "memory_overcommit = true".to_owned()),
    ];
    let keys: Vec<String> = keys.into_iter().flatten().collect();
    format!("{{ {} }}", keys.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_configuration_reads_back_as_itself() {
        let mut config = Config::default();
        assert_eq!(Config::parse(&as_toml(&config)), Ok(config.clone()));
        config.runtime.dir = PathBuf::from("/tmp/a \"b\"");
        config.driver.kind = Kind::StandIn;
        config.memory.overcommit_ratio = 1.5;
        config.memory.overhead_reserve_mib = 512;
        config.memory.host_budget_mib = 4096;
        config.memory.oversubscribed_turn_ms = 500;
        config.memory.native_limits = false;
        assert_eq!(Config::parse(&as_toml(&config)), Ok(config.clone()));
    }
}
