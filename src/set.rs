//! `sluice set`: changes a running tenant.

use crate::client::Client;
use crate::exit::Exit;
use crate::place;
use crate::run::memory;
use crate::text::{printable, size};
use anyhow::Result;
use daemon::api::{ChangeRequest, GpuName};
use std::path::PathBuf;

/// Changes the cap of a running tenant; its programs see it at their next call
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Below what the tenant holds already, nothing is taken away: it gets no more until it is below.

Examples:
  sluice set web --memory 3GiB
  sluice set web --memory 25% --gpu 1")]
pub(crate) struct Arguments {
    /// The tenant's name, as `sluice status` shows it
    name: String,
    /// The new cap: 3GiB, 1536MiB, 2G (decimal), 25% of the device, or max
    #[arg(long, value_name = "SIZE", value_parser = memory, allow_hyphen_values = true)]
    memory: String,
    /// The one GPU that it is for, by index or UUID [default: all of the tenant's]
    #[arg(long, value_name = "GPU")]
    gpu: Option<String>,
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Asks for the change and prints what holds now.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let client = Client::new(place::of_daemon(arguments.runtime_dir.as_deref())?.status_socket())?;
    let change = ChangeRequest {
        memory: arguments.memory.clone(),
        gpu: arguments.gpu.as_deref().map(GpuName::from),
    };
    let tenant = client.change(&arguments.name, &change)?;
    for device in &tenant.devices {
        println!(
            "{}: at most {} on GPU {}, of which it holds {}",
            printable(&tenant.name),
            size(device.memory_limit_bytes),
            device.index,
            size(device.memory_used_bytes)
        );
    }
    Ok(Exit::Success)
}
