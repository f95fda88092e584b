//! `sluice hook`: what a container runtime calls on the host before a container starts.
//!
//! It reads the container's state from standard input and its configuration from the bundle, and
//! registers it with the daemon. Whatever goes wrong ends with a sentence and an exit code that stops
//! the container: a quota that cannot be kept never becomes "unlimited".
//!
//! Source: OCI runtime specification 1.0, `config.md`, POSIX-platform Hooks: `createRuntime`.

use crate::client::Client;
use crate::compute::ShareArguments;
use crate::exit::Exit;
use crate::lending;
use anyhow::{Context, Result, anyhow, bail};
use containers::oci::State;
use containers::{Quota, oci};
use daemon::api::{ContainerInfo, GpuName, RegisterRequest, Status, TenantInfo};
use daemon::config::WithoutDaemon;
use std::collections::BTreeMap;
use std::io::Read;
use std::time::{Duration, Instant};

/// Registers a container that a runtime has made with the daemon; called by the runtime
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    node: lending::Node,
    /// The lease that the container was started with
    #[arg(long)]
    lease: Option<String>,
    /// Reads the quota from the container's own variables
    #[arg(long, conflicts_with_all = ["memory"])]
    quota_from_environment: bool,
    /// The cap on each GPU
    #[arg(long, required_unless_present = "quota_from_environment", value_parser = crate::run::memory)]
    memory: Option<String>,
    /// Lets its memory lie in the host's where a GPU is full
    #[arg(long)]
    memory_overcommit: bool,
    #[command(flatten)]
    compute: ShareArguments,
}

/// How long a daemon is waited for: it may be restarting.
const DAEMON_WITHIN: Duration = Duration::from_secs(5);

/// Longest wait for an answer of a daemon that listens.
const ANSWER_WITHIN: Duration = Duration::from_secs(3);

/// How long the former container of this id may take to go: an engine that restarts one is faster than
/// the daemon that hears of its end.
const FORMER_WITHIN: Duration = Duration::from_secs(2);

/// Longest time for everything: less than what the runtime is told, so that the sentence is ours.
const ALL_WITHIN: Duration = Duration::from_secs(12);

/// Longest name that the daemon takes.
const LONGEST_NAME: usize = 63;

/// Longest configuration or state that is read: a thousand times what engines write.
const MOST_BYTES: u64 = 16 << 20;

/// Registers the container, or says why it cannot start.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    std::thread::spawn(|| {
        std::thread::sleep(ALL_WITHIN);
        let seconds = ALL_WITHIN.as_secs();
        eprintln!("sluice: the container could not be registered within {seconds} s");
        std::process::exit(125);
    });
    let mut text = String::new();
    std::io::stdin()
        .take(MOST_BYTES)
        .read_to_string(&mut text)
        .context("cannot read the container's state")?;
    let state: State = serde_json::from_str(&text).context(
        "standard input is not a container's state; container runtimes call this command",
    )?;
    match register(arguments, &state) {
        Ok(()) => Ok(Exit::Success),
        Err(error) => {
            Err(error.context(format!("container {} cannot start", short(&state.id, 12))))
        }
    }
}

fn register(arguments: &Arguments, state: &State) -> Result<()> {
    let path = state.bundle.join("config.json");
    let config =
        oci::read(&path).map_err(|error| anyhow!("cannot read {}: {error}", path.display()))?;
    let variables: BTreeMap<String, String> = oci::environment(&config)
        .map_err(|error| anyhow!("{}: {error}", path.display()))?
        .into_iter()
        .collect();
    let quota = quota(arguments, &variables)?;
    let memory = quota.memory.clone().context(
        "it names no cap on memory; set SLUICE_MEMORY (such as -e SLUICE_MEMORY=8GiB), or take a device \
         with a quota, such as sluice.dev/gpu=half",
    )?;
    let config = arguments.node.config()?;
    let place = arguments.node.place(&config)?;
    let client = Client::new(place.status_socket())?.with_patience(ANSWER_WITHIN);
    let Some(status) = ready(&client) else {
        let seconds = DAEMON_WITHIN.as_secs();
        match config.containers.without_daemon {
            WithoutDaemon::Refuse => bail!(
                "no daemon answers at {} (waited {seconds} s); start it with `sluice daemon`, or let \
                 containers start without GPU by `without_daemon = \"start\"` in the configuration",
                place.status_socket().display()
            ),
            WithoutDaemon::Start => {
                eprintln!(
                    "sluice: no daemon answers; container {} starts, and CUDA is not ready in it",
                    short(&state.id, 12)
                );
                return Ok(());
            }
        }
    };
    let request = RegisterRequest {
        name: Some(name(&quota, state, &status)),
        memory,
        memory_overcommit: quota.memory_overcommit,
        gpus: gpus(&variables),
        owner_pid: state.pid,
        container: Some(ContainerInfo {
            id: state.id.clone(),
            lease: arguments.lease.clone(),
        }),
        compute: daemon::api::ComputeRequest {
            compute: quota.compute,
            compute_max: quota.compute_max,
            weight: quota.weight,
            class: quota.class,
        },
    };
    let begin = Instant::now();
    loop {
        let Err(error) = client.register(&request) else {
            return Ok(());
        };
        let is_former_there = client.status().is_ok_and(|status| {
            let former = of_container(&status, &state.id);
            former.is_some_and(|former| former.owner_pid != state.pid)
        });
        if !is_former_there || begin.elapsed() > FORMER_WITHIN {
            return Err(error);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whose word counts was decided by whoever made the device; the container's own variables may name it only.
fn quota(arguments: &Arguments, variables: &BTreeMap<String, String>) -> Result<Quota> {
    let words = variables
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()));
    if arguments.quota_from_environment {
        return Ok(Quota::of_environment(words)?);
    }
    let name = Quota::of_environment(words.filter(|(name, _)| *name == "SLUICE_NAME"))?.name;
    let compute = arguments.compute.request();
    Ok(Quota {
        memory: arguments.memory.clone(),
        memory_overcommit: arguments.memory_overcommit,
        compute: compute.compute,
        compute_max: compute.compute_max,
        weight: compute.weight,
        class: compute.class,
        name,
    })
}

/// What the daemon says once it is ready; `None` when it is not in time.
fn ready(client: &Client) -> Option<Status> {
    let begin = Instant::now();
    loop {
        if client.is_ready()
            && let Ok(status) = client.status()
        {
            return Some(status);
        }
        if begin.elapsed() > DAEMON_WITHIN {
            return None;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn of_container<'a>(status: &'a Status, id: &str) -> Option<&'a TenantInfo> {
    status.tenants.iter().find(|tenant| {
        let container = tenant.container.as_ref();
        container.is_some_and(|container| container.id == id)
    })
}

/// The first of these that no other tenant has: the name that was asked for, and then with the id, since an
/// engine may start replicas; without one the short id, and then all of it.
fn name(quota: &Quota, state: &State, status: &Status) -> String {
    let id: String = state
        .id
        .chars()
        .map(|c| {
            if c.is_ascii_alphanumeric() || "._-".contains(c) {
                c
            } else {
                '-'
            }
        })
        .collect();
    let [first, second] = match &quota.name {
        Some(name) => [name.clone(), format!("{name}-{}", short(&id, 8))],
        None => [
            short(&id, 12).to_owned(),
            short(&id, LONGEST_NAME).to_owned(),
        ],
    };
    let is_others = |tenant: &TenantInfo| {
        let container = tenant.container.as_ref();
        tenant.name == first && container.is_none_or(|container| container.id != state.id)
    };
    if status.tenants.iter().any(is_others) {
        second
    } else {
        first
    }
}

/// The GPUs that the container gets to see, where a list says so.
fn gpus(variables: &BTreeMap<String, String>) -> Option<Vec<GpuName>> {
    let listed = containers::gpus(variables.get("NVIDIA_VISIBLE_DEVICES")?)?;
    Some(listed.iter().map(|name| GpuName::from(&**name)).collect())
}

fn short(id: &str, length: usize) -> &str {
    id.get(..length).unwrap_or(id)
}
