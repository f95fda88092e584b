//! `sluice bench launch`: one kernel launch, and one copy.

use super::turns::{Pair, measure, measure_between};
use super::way::Way;
use super::{null_node, run_inside};
use crate::demo::node::Node;
use crate::exit::Exit;
use anyhow::{Context, Result};
use daemon::api::DriverKind;
use serde::Serialize;
use std::io::{Read, Write};

/// Measures a kernel launch, with and without Sluice, alone and beside another tenant
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Both ways are taken in turns in one process; figures are of batches of 400 launches, in nanoseconds for each
launch. Alone on the device, the driver is the stand-in without hardware, which answers at once. Beside
another tenant, a launch looks at its lease and is accounted for, and one in some hundred has a marker; that
is measured on the stand-in's hardware, while it is busy, so that no launch has to wait.")]
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
    /// Keeps the device busy while launches are timed
    #[arg(long)]
    busy: bool,
    /// Times copies instead
    #[arg(long)]
    copies: bool,
}

/// What a copy that is timed moves.
const COPY_BYTES: usize = 4096;

const CAP_BYTES: u64 = 1 << 30;

/// Running time of a kernel whose launch is timed: the shortest that a GPU has.
const KERNEL_NS: u64 = 2_000;

/// Running time of the kernel that keeps the device busy meanwhile.
const BUSY_NS: u64 = 2_000_000;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    plain_ns: f64,
    solo_ns: f64,
    contended_ns: f64,
    /// Without Sluice, where `contended_ns` was measured.
    contended_plain_ns: f64,
    plain_p99_ns: f64,
    solo_p99_ns: f64,
    contended_p99_ns: f64,
    /// Medians of the differences between neighbouring turns.
    solo_added_ns: f64,
    contended_added_ns: f64,
    /// The same of a copy to the device, alone.
    copy_plain_ns: f64,
    copy_ns: f64,
    copy_added_ns: f64,
}

/// Measures, and prints a table or an object.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let rounds = arguments.rounds.to_string();
    let inside = ["bench-launch", "--rounds", &rounds];
    // The second node before the first: the environment of null mode stays once it is set.
    let busy_node = Node::start(DriverKind::StandIn)?;
    let figures = |text: String| -> Result<Pair> {
        serde_json::from_str(&text).context("the figures are no figures")
    };
    // A round waits for the device: fewer of them.
    let fewer = (arguments.rounds / 10).max(1).to_string();
    let busy = ["bench-launch", "--busy", "--rounds", &fewer];
    let mut neighbour =
        busy_node.start_program("neighbour", CAP_BYTES, &[], &["bench-launch", "--idle"])?;
    let mut ready = [0];
    neighbour
        .0
        .stdout
        .as_mut()
        .context("was asked for a pipe")?
        .read_exact(&mut ready)
        .context("the other tenant does not start")?;
    let contended = figures(run_inside(&busy_node, CAP_BYTES, &busy)?)?;
    drop(neighbour);
    drop(busy_node);
    let node = null_node()?;
    let solo = figures(run_inside(&node, CAP_BYTES, &inside)?)?;
    let copies = ["bench-launch", "--copies", "--rounds", &rounds];
    let copy = figures(run_inside(&node, CAP_BYTES, &copies)?)?;
    let report = Report {
        plain_ns: solo.plain_ns,
        solo_ns: solo.sluice_ns,
        contended_ns: contended.sluice_ns,
        contended_plain_ns: contended.plain_ns,
        plain_p99_ns: solo.plain_p99_ns,
        solo_p99_ns: solo.sluice_p99_ns,
        contended_p99_ns: contended.sluice_p99_ns,
        solo_added_ns: solo.added_ns,
        contended_added_ns: contended.added_ns,
        copy_plain_ns: copy.plain_ns,
        copy_ns: copy.sluice_ns,
        copy_added_ns: copy.added_ns,
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
             busy, without Sluice   {:>7.1} {:>7.1}\n\
             beside another tenant  {:>7.1} {:>7.1} {:>7.1}\n\n\
             one copy of 4 KiB, without Sluice {:.1}; with it {:.1}, {:.1} added",
            report.plain_ns,
            report.plain_p99_ns,
            report.solo_ns,
            report.solo_p99_ns,
            report.solo_added_ns,
            report.contended_plain_ns,
            contended.plain_p99_ns,
            report.contended_ns,
            report.contended_p99_ns,
            report.contended_added_ns,
            report.copy_plain_ns,
            report.copy_ns,
            report.copy_added_ns,
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
    if arguments.copies {
        let (to, from) = (sluice.allocate(COPY_BYTES)?, [0; COPY_BYTES]);
        let one = |way: &Way| way.copy(to, &from);
        let pair = measure(arguments.rounds, || one(plain), || one(sluice))?;
        println!("{}", serde_json::to_string(&pair)?);
        return Ok(Exit::Success);
    }
    let kernel = sluice.kernel()?;
    let one = |way: &Way| way.launch(&kernel, 1, KERNEL_NS);
    let pair = if arguments.busy {
        measure_between(
            arguments.rounds,
            || one(plain),
            || one(sluice),
            |is_plain| {
                let way = if is_plain { plain } else { sluice };
                way.finish()?;
                // Of another size, so that it is another kernel to whoever predicts.
                way.launch(&kernel, 64, BUSY_NS)
            },
        )?
    } else {
        measure(arguments.rounds, || one(plain), || one(sluice))?
    };
    println!("{}", serde_json::to_string(&pair)?);
    Ok(Exit::Success)
}
