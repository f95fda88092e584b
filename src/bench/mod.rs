//! `sluice bench`: what Sluice adds to a call, measured here and now.
//!
//! Each figure stands beside the same call without Sluice, taken in the same process and in turns with
//! it, so that whatever else the machine does reaches both. The driver is the stand-in in null mode: it
//! answers within the process, at once, so that what is added can be seen.

mod fairness;
mod idle;
pub(crate) mod latency;
mod launch;
pub(crate) mod load;
mod memory;
mod turns;
mod way;

use crate::demo::node::Node;
use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use daemon::api::DriverKind;
use std::io::Read;
use std::process::ChildStdout;

pub(crate) use launch::{InsideArguments as LaunchInside, inside as launch_inside};
pub(crate) use load::{LoadArguments, inside as load_inside};
pub(crate) use memory::{InsideArguments, inside as memory_inside};

/// Measures what Sluice adds to a call
#[derive(Debug, clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    bench: Bench,
}

#[derive(Debug, clap::Subcommand)]
enum Bench {
    Launch(launch::Arguments),
    Memory(memory::Arguments),
    Fairness(fairness::Arguments),
    Latency(latency::Arguments),
    Idle(idle::Arguments),
    Handover(fairness::HandoverArguments),
}

/// Does one.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    match &arguments.bench {
        Bench::Launch(arguments) => launch::run(arguments),
        Bench::Memory(arguments) => memory::run(arguments),
        Bench::Fairness(arguments) => fairness::run(arguments),
        Bench::Latency(arguments) => latency::run(arguments),
        Bench::Idle(arguments) => idle::run(arguments),
        Bench::Handover(arguments) => fairness::handover(arguments),
    }
}

/// A node in null mode.
fn null_node() -> Result<Node> {
    // The daemon and all tenants inherit it: they must know the same device.
    // SAFETY: no other thread runs yet that could read the environment meanwhile.
    unsafe { std::env::set_var(sim::proto::ENV_NULL, "1") };
    Node::start(DriverKind::StandIn)
}

/// Runs this program as a tenant of `node` with `arguments`, and returns what it prints.
fn run_inside(node: &Node, cap_bytes: u64, arguments: &[&str]) -> Result<String> {
    let mut tenant = node.start_program("bench", cap_bytes, &[], arguments)?;
    let mut text = String::new();
    let output: Option<ChildStdout> = tenant.0.stdout.take();
    output
        .context("was asked for a pipe")?
        .read_to_string(&mut text)
        .context("cannot read the figures")?;
    let status = tenant
        .0
        .wait()
        .context("cannot wait for the measured program")?;
    if !status.success() {
        bail!(
            "the measured program ended with {status}; {}",
            node.last_words("bench")
        );
    }
    Ok(text)
}
