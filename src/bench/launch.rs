//! `sluice bench launch`: one kernel launch.

use super::turns::{Pair, measure};
use super::way::Way;
use super::{null_node, run_inside};
use crate::exit::Exit;
use anyhow::{Context, Result};
use serde::Serialize;
use std::io::{Read, Write};

/// Measures a kernel launch, with and without Sluice, alone and beside another tenant
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The driver is the stand-in without hardware, which answers at once. Both ways are taken in turns in one
process; figures are medians of batches of 400 launches, in nanoseconds for each launch. Beside another
tenant, a launch looks at its lease and is accounted for, and every 256th of such short ones has a marker.")]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Rounds of each measurement; a round takes about 100 microseconds
    #[arg(long, value_name = "N", default_value_t = 2001)]
    rounds: usize,
}

/// Is measured, as the program of a tenant
#[derive(Debug, clap::Args)]
pub(crate) struct InsideArguments {
    /// Rounds of each measurement
    #[arg(long, default_value_t = 2001)]
    rounds: usize,
    /// Only is there, until the end of its input
    #[arg(long)]
    idle: bool,
}

const CAP_BYTES: u64 = 1 << 30;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    plain_ns: f64,
    solo_ns: f64,
    contended_ns: f64,
    plain_p99_ns: f64,
    solo_p99_ns: f64,
    contended_p99_ns: f64,
    /// Medians of the differences between neighbouring turns.
    solo_added_ns: f64,
    contended_added_ns: f64,
}

/// Measures, and prints a table or an object.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let node = null_node()?;
    let rounds = arguments.rounds.to_string();
    let inside = ["bench-launch", "--rounds", &rounds];
    let figures = |text: String| -> Result<Pair> {
        serde_json::from_str(&text).context("the figures are no figures")
    };
    let solo = figures(run_inside(&node, CAP_BYTES, &inside)?)?;
    let mut neighbour =
        node.start_program("neighbour", CAP_BYTES, &[], &["bench-launch", "--idle"])?;
    let mut ready = [0];
    neighbour
        .0
        .stdout
        .as_mut()
        .context("was asked for a pipe")?
        .read_exact(&mut ready)
        .context("the other tenant does not start")?;
    let contended = figures(run_inside(&node, CAP_BYTES, &inside)?)?;
    drop(neighbour);
    let report = Report {
        plain_ns: solo.plain_ns,
        solo_ns: solo.sluice_ns,
        contended_ns: contended.sluice_ns,
        plain_p99_ns: solo.plain_p99_ns,
        solo_p99_ns: solo.sluice_p99_ns,
        contended_p99_ns: contended.sluice_p99_ns,
        solo_added_ns: solo.added_ns,
        contended_added_ns: contended.added_ns,
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        writeln!(
            out,
            "one launch, ns          MEDIAN     P99   ADDED\n\
             without Sluice         {:>7.1} {:>7.1}\n\
             alone on the device    {:>7.1} {:>7.1} {:>7.1}\n\
             beside another tenant  {:>7.1} {:>7.1} {:>7.1}",
            report.plain_ns,
            report.plain_p99_ns,
            report.solo_ns,
            report.solo_p99_ns,
            report.solo_added_ns,
            report.contended_ns,
            report.contended_p99_ns,
            report.contended_added_ns,
        )?;
    }
    Ok(Exit::Success)
}

/// Is a tenant's process: the one that measures, or one that is only there.
pub(crate) fn inside(arguments: &InsideArguments) -> Result<Exit> {
    let ways = [Way::plain()?, Way::sluice()?];
    let [plain, sluice] = &ways;
    sluice.prepare()?;
    if arguments.idle {
        println!("r");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(Exit::Success);
    }
    let kernel = sluice.kernel()?;
    let pair = measure(
        arguments.rounds,
        || plain.launch(&kernel, 1),
        || sluice.launch(&kernel, 1),
    )?;
    println!("{}", serde_json::to_string(&pair)?);
    Ok(Exit::Success)
}
