//! `sluice demo`: the whole path in ten seconds, on this machine's GPU or on the stand-in.
//!
//! It starts what a node has (a daemon, and tenants by `sluice run`), lets one tenant go over its cap,
//! kills a process that holds memory, kills the daemon and starts the next one, and then says of each
//! promise whether it held. Tenants are separate processes that use the driver as any program does.
//!
//! | file | |
//! |---|---|
//! | `node` | the processes and their folder |
//! | `tenant`, `device` | what runs in a tenant |
//! | `event` | what a tenant tells |
//! | `stage` | what happens when |
//! | `observed`, `verdict` | what was seen, and what follows from it |
//! | `screen` | the live table |

pub(crate) mod device;
mod event;
pub(crate) mod node;
mod observed;
pub(crate) mod processor;
mod screen;
mod shares;
mod stage;
mod tenant;
mod verdict;

pub(crate) use tenant::{TenantArguments, run as tenant};

use crate::choice::{Choice, settle};
use crate::exit::Exit;
use anyhow::{Context, Result};
use daemon::api::{DeviceInfo, DriverKind};
use observed::Observed;
use screen::Screen;
use serde_json::json;
use stage::{Ending, Stage};
use std::time::Duration;
use verdict::Promise;

/// Shows Sluice at work, and whether it keeps its promises here
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Ends with one line for each promise, and with exit code 0 only if every one held. Needs nothing
else: no GPU, no CUDA, no running daemon. What it starts and writes is gone when it ends.

Examples:
  sluice demo
  sluice demo --device real --seconds 30
  sluice demo --json | jq .promises")]
pub(crate) struct Arguments {
    /// How long it lasts
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u64).range(2..=3600))]
    seconds: u64,
    /// What it runs on; auto is a GPU if the driver answers, else the stand-in
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,
    /// Prints one JSON object instead of words
    #[arg(long)]
    json: bool,
}

/// Runs the demo and prints the verdict.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    // Where there is no GPU, a demo is still worth seeing.
    let kind = settle(arguments.device)?;
    let mut screen = Screen::new(!arguments.json);
    let mut stage = Stage::set_up(kind)?;
    // Memory first, then time: half of it each.
    let half = Duration::from_secs(arguments.seconds) / 2;
    let mut ending = stage.play(half.max(SHORTEST.0), &mut screen);
    if matches!(ending, Ok(Ending::Complete)) {
        ending = stage.play_shares(half.max(SHORTEST.1), &mut screen);
    }
    screen.erase();
    match ending? {
        // As a shell names the end by SIGINT.
        Ending::Interrupted => return Ok(Exit::Of(130)),
        Ending::Complete => {}
    }
    let (kind, device, seen) = stage.strike();
    let promises = verdict::judge(&seen);
    let held = promises.iter().all(|promise| promise.held);
    if arguments.json {
        println!(
            "{}",
            as_json(kind, &device, &seen, &promises).context("cannot spell the verdict")?
        );
    } else {
        print!("{}", as_text(kind, &device, &seen, &promises));
    }
    Ok(if held { Exit::Success } else { Exit::Broken })
}

/// Shortest length of each act: its figures say nothing after less.
const SHORTEST: (Duration, Duration) = (Duration::from_secs(3), Duration::from_secs(4));

fn as_text(kind: DriverKind, device: &DeviceInfo, seen: &Observed, promises: &[Promise]) -> String {
    let mut text = format!(
        "{}\n\n{}\n{}\n",
        screen::device_line(kind, device),
        screen::tenants(seen),
        screen::shares(&seen.shares)
    );
    for Promise {
        id, held, sentence, ..
    } in promises
    {
        let word = if *held { "held" } else { "BROKEN" };
        text += &format!("{id} {word}: {sentence}\n");
    }
    let broken = promises.iter().filter(|promise| !promise.held).count();
    text += &match broken {
        0 => "\nEvery promise held.\n".to_owned(),
        some => format!("\n{some} of {} promises did not hold.\n", promises.len()),
    };
    text
}

/// The object that `--json` prints. Its fields are a contract: some may come, none may go.
fn as_json(
    kind: DriverKind,
    device: &DeviceInfo,
    seen: &Observed,
    promises: &[Promise],
) -> serde_json::Result<String> {
    let tenants: Vec<_> = seen
        .tenants
        .iter()
        .map(|tenant| {
            json!({
                "name": tenant.name,
                "memory_limit_bytes": tenant.cap_bytes,
                "memory_peak_bytes": tenant.peak_bytes,
                "hardware_peak_bytes": tenant.hardware_peak_bytes,
                "oom_refusals": tenant.refused,
                "total_seen_bytes": tenant.view.map(|view| view.info_total_bytes),
                "rounds": tenant.rounds,
                "launches": tenant.launches,
            })
        })
        .chain(seen.shares.tenants.iter().map(|part| {
            json!({
                "name": part.name,
                "memory_limit_bytes": part.cap_bytes,
                "memory_peak_bytes": part.peak_bytes,
                "oom_refusals": 0,
                "total_seen_bytes": part.total_seen_bytes,
                "compute_guarantee": part.guarantee,
                "compute_measured": part.measured,
                "compute_wanted": part.wanted,
                "p99_ms_alone": part.p99_ms_alone,
                "p99_ms_shared": part.p99_ms_shared,
            })
        }))
        .collect();
    serde_json::to_string_pretty(&json!({
        "device": {
            "kind": kind,
            "name": device.name,
            "uuid": device.uuid,
            "memory_bytes": device.memory_bytes,
        },
        "tenants": tenants,
        "promises": promises,
        "held": promises.iter().all(|promise| promise.held),
    }))
}
