//! `sluice pause` and `sluice resume`: hold all launches of a tenant, and let them go.

use crate::client::Client;
use crate::exit::Exit;
use crate::place;
use crate::text::printable;
use anyhow::Result;
use std::path::PathBuf;

/// Holds all GPU launches of a tenant until `resume`
///
/// What it has submitted still runs, and its memory stays. Its programs wait in their next launch; nothing
/// fails. If the daemon goes away, they go on.
#[derive(Debug, clap::Args)]
pub(crate) struct PauseArguments {
    #[command(flatten)]
    tenant: TenantName,
}

/// Lets the launches of a paused tenant go on
#[derive(Debug, clap::Args)]
pub(crate) struct ResumeArguments {
    #[command(flatten)]
    tenant: TenantName,
}

#[derive(Debug, clap::Args)]
struct TenantName {
    /// The tenant's name, as `sluice status` shows it
    name: String,
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// `sluice pause`.
pub(crate) fn pause(arguments: &PauseArguments) -> Result<Exit> {
    set(&arguments.tenant, true)
}

/// `sluice resume`.
pub(crate) fn resume(arguments: &ResumeArguments) -> Result<Exit> {
    set(&arguments.tenant, false)
}

fn set(arguments: &TenantName, is_paused: bool) -> Result<Exit> {
    let client = Client::new(place::of_daemon(arguments.runtime_dir.as_deref())?.status_socket())?;
    let tenant = client.set_paused(&arguments.name, is_paused)?;
    let waiting: u32 = tenant
        .devices
        .iter()
        .map(|device| device.compute.waiting)
        .sum();
    println!(
        "{}: {}, {waiting} of its threads wait in a launch",
        printable(&tenant.name),
        if is_paused { "paused" } else { "runs on" },
    );
    Ok(Exit::Success)
}
