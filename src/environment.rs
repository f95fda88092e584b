//! `sluice env`: a tenant for a shell, a Slurm step or an apptainer, as variables.

use crate::client::Client;
use crate::compute;
use crate::exit::Exit;
use crate::libraries::Libraries;
use crate::place;
use anyhow::{Context, Result};
use containers::shell;
use daemon::api::RegisterRequest;
use std::path::PathBuf;

/// Prints the variables with which programs run under a cap, for a shell to read
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The tenant lives as long as the shell that called this, or whichever process --owner names, and every program
that still runs in it. Apptainer gets what its containers need by APPTAINER_BIND and APPTAINERENV_*.

Examples:
  eval \"$(sluice env --memory 8GiB)\"
  eval \"$(sluice env --memory 8GiB --compute 30% --name job-$SLURM_JOB_ID)\"; srun ./train")]
pub(crate) struct Arguments {
    /// The cap on each GPU, as for `sluice run`
    #[arg(long, value_name = "SIZE", value_parser = crate::run::memory, allow_hyphen_values = true)]
    memory: String,
    /// Let its memory lie in the host's where the GPU is full: cuMemAlloc gives managed memory then, and
    /// tenants whose memory does not fit together take long turns
    #[arg(long)]
    memory_overcommit: bool,
    /// What to call it [default: shell- and the process id of the owner]
    #[arg(long)]
    name: Option<String>,
    /// A GPU that it may use, by index or UUID; may be given several times [default: all]
    #[arg(long, value_name = "GPU")]
    gpu: Vec<String>,
    /// Process that it lives as long as [default: the one that calls this]
    #[arg(long, value_name = "PID")]
    owner: Option<u32>,
    #[command(flatten)]
    compute: compute::ShareArguments,
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Registers a tenant and prints its variables.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let libraries = Libraries::find()?;
    let place = place::of_daemon(arguments.runtime_dir.as_deref())?;
    let client = Client::new(place.status_socket())?;
    let owner = match arguments.owner {
        Some(owner) => owner,
        None => u32::try_from(nix::unistd::getppid().as_raw())
            .context("cannot tell which process calls this")?,
    };
    let preload = crate::run::preload(&libraries)?;
    let driver = client.status()?.driver;
    let tenant = client.register(&RegisterRequest {
        name: Some(
            arguments
                .name
                .clone()
                .unwrap_or_else(|| format!("shell-{owner}")),
        ),
        memory: arguments.memory.clone(),
        memory_overcommit: arguments.memory_overcommit,
        gpus: crate::run::gpus(&arguments.gpu),
        owner_pid: owner,
        container: None,
        compute: arguments.compute.request(),
    })?;
    let mut variables = vec![("LD_PRELOAD", preload.clone())];
    variables.extend(crate::run::variables(&driver, &tenant));
    if !arguments.gpu.is_empty() {
        let uuids: Vec<&str> = tenant.devices.iter().map(|device| &*device.uuid).collect();
        variables.push(("CUDA_VISIBLE_DEVICES", uuids.join(",")));
    }
    // Apptainer brings every other variable of the caller along, but not this one.
    variables.push(("APPTAINERENV_LD_PRELOAD", preload));
    variables.push(("APPTAINER_BIND", binds(&libraries, &driver, &tenant)));
    print!("{}", shell::exports(&variables));
    Ok(Exit::Success)
}

/// What a container has to see at the paths that the variables name.
fn binds(
    libraries: &Libraries,
    driver: &daemon::api::DriverInfo,
    tenant: &daemon::api::Registered,
) -> String {
    let socket = PathBuf::from(&tenant.attach_socket);
    let folders = [
        Some(libraries.folder().to_owned()),
        socket.parent().map(PathBuf::from),
        driver.gpu_socket.as_ref().map(PathBuf::from),
    ];
    let own = std::env::var("APPTAINER_BIND").ok();
    let binds = folders
        .into_iter()
        .flatten()
        .map(|path| path.display().to_string());
    own.into_iter()
        .filter(|own| !own.is_empty())
        .chain(binds)
        .collect::<Vec<_>>()
        .join(",")
}
