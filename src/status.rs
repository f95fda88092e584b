//! `sluice status`: devices, tenants and processes, at one instant.

use crate::client::Client;
use crate::exit::Exit;
use crate::inherited;
use crate::place;
use crate::text::{Column, printable, size, table};
use anyhow::Result;
use daemon::api::{DriverKind, Enforcer, Status};
use std::path::PathBuf;

/// Shows who holds how much of which GPU
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  sluice status
  sluice status --json | jq '.tenants[].name'
  curl --unix-socket /run/sluice/status.sock http://sluice/v1/status")]
pub(crate) struct Arguments {
    /// Prints the daemon's own answer, as JSON
    #[arg(long)]
    json: bool,
    /// Folder of the daemon's sockets [default: this user's, else /run/sluice]
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

/// Asks and prints.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let client = Client::new(place::of_daemon(arguments.runtime_dir.as_deref())?.status_socket())?;
    let text = if arguments.json {
        client.status_text()?.trim_end().to_owned() + "\n"
    } else {
        shown(&client.status()?)
    };
    inherited::end_with_the_reader();
    print!("{text}");
    Ok(Exit::Success)
}

/// `status` for people.
fn shown(status: &Status) -> String {
    let driver = match status.driver.kind {
        DriverKind::Real => "the GPU driver of this machine",
        DriverKind::StandIn => "a stand-in: no GPU computes anything",
    };
    let mut text = format!(
        "sluice {}, daemon {} in {}, on {driver}\n\n{}",
        status.version,
        status.daemon.pid,
        status.daemon.runtime_dir,
        devices(status)
    );
    if status.tenants.is_empty() {
        text.push_str("\nNo tenants. `sluice run --memory 2GiB -- COMMAND` starts one.\n");
    } else {
        text.push('\n');
        text.push_str(&tenants(status));
    }
    let processes = processes(status);
    let strangers = strangers(status);
    if !processes.is_empty() {
        const HEADING: [Column; 4] = [
            Column::left("TENANT"),
            Column::right("PID"),
            Column::left("COMMAND"),
            Column::right("USED"),
        ];
        text.push('\n');
        text.push_str(&table(&HEADING, &processes));
    }
    if !strangers.is_empty() {
        const HEADING: [Column; 4] = [
            Column::left("NO TENANT'S, GPU"),
            Column::right("PID"),
            Column::left("COMMAND"),
            Column::right("USED"),
        ];
        text.push('\n');
        text.push_str(&table(&HEADING, &strangers));
    }
    text
}

/// Processes that nobody holds to a cap.
fn strangers(status: &Status) -> Vec<Vec<String>> {
    let devices = status.devices.iter();
    devices
        .flat_map(|device| {
            device.strangers.iter().map(|process| {
                vec![
                    device.index.to_string(),
                    process.pid.to_string(),
                    printable(&process.command),
                    process
                        .memory_used_bytes
                        .map_or_else(|| "?".to_owned(), size),
                ]
            })
        })
        .collect()
}

fn devices(status: &Status) -> String {
    const HEADING: [Column; 6] = [
        Column::left("GPU"),
        Column::left("NAME"),
        Column::right("MEMORY"),
        Column::right("USED"),
        Column::right("PROMISED"),
        Column::left("UUID"),
    ];
    let rows: Vec<_> = status
        .devices
        .iter()
        .map(|device| {
            vec![
                device.index.to_string(),
                printable(&device.name),
                size(device.memory_bytes),
                size(device.memory_used_bytes),
                size(device.memory_promised_bytes),
                printable(&device.uuid),
            ]
        })
        .collect();
    table(&HEADING, &rows)
}

fn tenants(status: &Status) -> String {
    const HEADING: [Column; 9] = [
        Column::left("TENANT"),
        Column::left("GPU"),
        Column::right("CAP"),
        Column::left("HELD BY"),
        Column::right("USED"),
        Column::right("BESIDES"),
        Column::right("PEAK"),
        Column::right("REFUSED"),
        Column::right("OWNER"),
    ];
    let rows: Vec<_> = status
        .tenants
        .iter()
        .flat_map(|tenant| {
            tenant.devices.iter().map(|device| {
                vec![
                    printable(&tenant.name),
                    device.index.to_string(),
                    size(device.memory_limit_bytes),
                    match device.enforced_by {
                        Enforcer::Shim => "shim".to_owned(),
                        Enforcer::Driver => "driver".to_owned(),
                    },
                    match device.is_over_limit {
                        true => format!("{} (over)", size(device.memory_used_bytes)),
                        false => size(device.memory_used_bytes),
                    },
                    device
                        .memory_overhead_bytes
                        .map_or_else(|| "?".to_owned(), size),
                    size(device.memory_peak_bytes),
                    device.oom_refusals.to_string(),
                    tenant.owner_pid.to_string(),
                ]
            })
        })
        .collect();
    table(&HEADING, &rows)
}

fn processes(status: &Status) -> Vec<Vec<String>> {
    status
        .tenants
        .iter()
        .flat_map(|tenant| {
            tenant.processes.iter().map(|process| {
                vec![
                    printable(&tenant.name),
                    process.pid.to_string(),
                    printable(&process.command),
                    size(process.memory_used_bytes),
                ]
            })
        })
        .collect()
}
