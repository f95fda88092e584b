//! `sluice set`: changes a running tenant.

use crate::client::Client;
use crate::compute;
use crate::exit::Exit;
use crate::place;
use crate::run::memory;
use crate::text::{printable, share, size};
use anyhow::{Result, bail};
use daemon::api::{ChangeRequest, GpuName};
use std::path::PathBuf;

/// Changes the cap and the share of a running tenant; its programs see it at their next call
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Below what the tenant holds already, nothing is taken away: it gets no more until it is below.

Examples:
  sluice set web --memory 3GiB
  sluice set web --memory 25% --gpu 1
  sluice set web --compute 40% --class latency
  sluice set train --compute-max 50%")]
pub(crate) struct Arguments {
    /// The tenant's name, as `sluice status` shows it
    name: String,
    /// The new cap: 3GiB, 1536MiB, 2G (decimal), 25% of the device, or max
    #[arg(long, value_name = "SIZE", value_parser = memory, allow_hyphen_values = true)]
    memory: Option<String>,
    #[command(flatten)]
    compute: compute::ShareArguments,
    /// The one GPU that it is for, by index or UUID [default: all of the tenant's]
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Asks for the change and prints what holds now.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    if arguments.memory.is_none() && arguments.compute.is_empty() {
        bail!("nothing to change; say --memory, --compute, --compute-max, --weight or --class");
    }
    let client = Client::new(place::of_daemon(arguments.runtime_dir.as_deref())?.status_socket())?;
    let change = ChangeRequest {
        memory: arguments.memory.clone(),
        gpu: arguments.gpu.as_deref().map(GpuName::from),
        compute: arguments.compute.request(),
    };
    let tenant = client.change(&arguments.name, &change)?;
    for device in &tenant.devices {
        if arguments.memory.is_some() {
            println!(
                "{}: at most {} on GPU {}, of which it holds {}",
                printable(&tenant.name),
                size(device.memory_limit_bytes),
                device.index,
                size(device.memory_used_bytes)
            );
        }
        if !arguments.compute.is_empty() {
            println!(
                "{}: on GPU {}, {}",
                printable(&tenant.name),
                device.index,
                share(&device.compute)
            );
        }
    }
    Ok(Exit::Success)
}
