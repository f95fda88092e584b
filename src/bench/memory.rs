//! `sluice bench memory`: an allocation and its end.

use super::turns::{Pair, measure};
use super::way::Way;
use super::{null_node, run_inside};
use crate::children::{Owned, dies_with_us};
use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

/// Measures an allocation and its end, with and without Sluice
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The driver is the stand-in without hardware, which answers at once. Both ways are taken in turns in one
process; figures are medians, in nanoseconds for each allocation with its free.")]
pub(crate) struct Arguments {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Rounds of each measurement; a round takes about a millisecond
    #[arg(long, value_name = "N", default_value_t = 301)]
    rounds: usize,
}

/// Is measured, as the program of a tenant
#[derive(Debug, clap::Args)]
pub(crate) struct InsideArguments {
    /// Processes of the tenant, this one among them
    #[arg(long, default_value_t = 1)]
    processes: usize,
    /// Rounds of each measurement
    #[arg(long, default_value_t = 301)]
    rounds: usize,
    /// Holds memory and waits for the end of its input
    #[arg(long)]
    idle: bool,
}

/// The tenant's cap: more than everything here together.
const CAP_BYTES: u64 = 4 << 30;
/// Size of an allocation that is timed.
const BYTES: usize = 4096;
/// Size of an allocation that is only there.
const LIVE_BYTES: usize = 512;
/// Allocations that are there while others are timed.
const LIVE: usize = 100_000;
/// Processes of the container, one after the other.
const CROWDS: [usize; 3] = [1, 16, 256];

/// The figures of one crowd.
#[derive(Debug, Serialize, Deserialize)]
struct Figures {
    processes: usize,
    none_live: Pair,
    many_live: Pair,
    /// A live allocation, picked at random, is freed and replaced.
    many_live_any: Pair,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    plain_pair_ns: f64,
    pair_ns: f64,
    plain_pair_ns_at_100k_live: f64,
    pair_ns_at_100k_live: f64,
    crowds: Vec<Figures>,
}

/// Measures, and prints a table or an object.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let node = null_node()?;
    let rounds = arguments.rounds.to_string();
    let mut crowds = Vec::new();
    for processes in CROWDS {
        let processes = processes.to_string();
        let inside = [
            "bench-memory",
            "--processes",
            &processes,
            "--rounds",
            &rounds,
        ];
        let text = run_inside(&node, CAP_BYTES, &inside)?;
        crowds.push(serde_json::from_str(&text).context("the figures are no figures")?);
    }
    drop(node);
    let mut out = std::io::stdout().lock();
    if arguments.json {
        let report = report(crowds).context("there is always one process")?;
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}", table(&crowds))?;
    }
    Ok(Exit::Success)
}

fn report(crowds: Vec<Figures>) -> Option<Report> {
    let alone = crowds.first()?;
    Some(Report {
        plain_pair_ns: alone.none_live.plain_ns,
        pair_ns: alone.none_live.sluice_ns,
        plain_pair_ns_at_100k_live: alone.many_live.plain_ns,
        pair_ns_at_100k_live: alone.many_live.sluice_ns,
        crowds,
    })
}

fn table(crowds: &[Figures]) -> String {
    let mut text = String::from(
        "an allocation and its free, ns (median; added: quartiles)\n\
         PROCESSES  LIVE ALLOCATIONS        PLAIN   SLUICE   ADDED\n",
    );
    for crowd in crowds {
        for (live, pair) in [
            ("none", crowd.none_live),
            ("100000", crowd.many_live),
            ("100000, any of them", crowd.many_live_any),
        ] {
            let [low, high] = pair.added_quartiles_ns;
            text.push_str(&format!(
                "{:>9}  {live:<21} {:>7.0}  {:>7.0}  {:>6.0}  ({low:.0} to {high:.0})\n",
                crowd.processes, pair.plain_ns, pair.sluice_ns, pair.added_ns,
            ));
        }
    }
    text
}

/// Is one of the tenant's processes: the one that measures, or one that is only there.
pub(crate) fn inside(arguments: &InsideArguments) -> Result<Exit> {
    let ways = [Way::plain()?, Way::sluice()?];
    let [plain, sluice] = &ways;
    sluice.prepare()?;
    if arguments.idle {
        sluice.allocate(LIVE_BYTES)?;
        println!("ready");
        std::io::stdin().read_to_end(&mut Vec::new())?;
        return Ok(Exit::Success);
    }
    let crowd = (1..arguments.processes)
        .map(|_| neighbour())
        .collect::<Result<Vec<Owned>>>()?;
    let rounds = arguments.rounds;
    let pair = |way: &Way| way.free(way.allocate(BYTES)?);
    let none_live = measure(rounds, || pair(plain), || pair(sluice))?;
    let mut live = Live::of(sluice)?;
    let many_live = measure(rounds, || pair(plain), || pair(sluice))?;
    let mut live_plain = Live::of(plain)?;
    let many_live_any = measure(
        rounds,
        || live_plain.replace(plain),
        || live.replace(sluice),
    )?;
    drop(crowd);
    let figures = Figures {
        processes: arguments.processes,
        none_live,
        many_live,
        many_live_any,
    };
    println!("{}", serde_json::to_string(&figures)?);
    Ok(Exit::Success)
}

/// Starts another process of the tenant and waits until it holds something.
fn neighbour() -> Result<Owned> {
    let program = std::env::current_exe().context("cannot tell where this program lies")?;
    let mut command = Command::new(program);
    command
        .args(["bench-memory", "--idle"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = Owned(
        dies_with_us(&mut command)
            .spawn()
            .context("cannot start another process")?,
    );
    let output = child.0.stdout.take().context("was asked for a pipe")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() != "ready" {
        bail!("another process of the tenant does not start");
    }
    Ok(child)
}

/// Allocations that are there, and a way to pick any of them.
struct Live {
    pointers: Vec<u64>,
    state: u64,
}

impl Live {
    fn of(way: &Way) -> Result<Self> {
        let pointers = (0..LIVE).map(|_| way.allocate(LIVE_BYTES));
        Ok(Self {
            pointers: pointers.collect::<Result<_>>()?,
            state: 0x9E37_79B9_7F4A_7C15,
        })
    }

    /// Frees one of them and allocates another in its place.
    fn replace(&mut self, way: &Way) -> Result<()> {
        // Xorshift: repeatable, and good enough to pick.
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        let at = self.state as usize % self.pointers.len();
        way.free(self.pointers[at])?;
        self.pointers[at] = way.allocate(LIVE_BYTES)?;
        Ok(())
    }
}
