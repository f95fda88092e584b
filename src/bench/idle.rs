//! `sluice bench idle`: from one tenant's last work to the next one's first.

use super::load::{self, Done, Load, Under};
use super::turns::quantile;
use crate::choice::{Choice, settle};
use crate::demo::node::Node;
use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// Measures the time from a tenant going idle to the next one running
#[derive(Debug, clap::Args)]
#[command(after_help = "\
One tenant works for some milliseconds and rests, again and again; the other never rests. The time is from
the last work of the first until the other's next kernel runs, when it was held until then.")]
pub(crate) struct Arguments {
    /// How long the measurement takes
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Which device: the machine's GPU, or the stand-in
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Running time of one kernel of the tenant that never rests.
const KERNEL_US: u64 = 1000;

/// Kernels of one piece of work, and how long it takes.
const PIECE: u64 = 16;
const PIECE_KERNEL_US: u64 = 500;
const WORK_NS: u64 = PIECE * PIECE_KERNEL_US * 1000;

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// How often the other was held at the end of a piece of work.
    count: usize,
    idle_to_next_ms: f64,
    idle_to_next_p99_ms: f64,
}

/// Measures, and prints a line or an object.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let kind = settle(arguments.device)?;
    if arguments.seconds == 0 {
        bail!("it takes at least one second");
    }
    // Of class latency: while it works, the other is held, so that each end is one that counts.
    let worker = Load {
        name: "worker".to_owned(),
        kernel_us: PIECE_KERNEL_US,
        request_kernels: PIECE,
        interval_us: 40_000,
        options: ["--compute", "60%", "--class", "latency"]
            .map(str::to_owned)
            .to_vec(),
        ..Load::default()
    };
    let other = Load {
        name: "other".to_owned(),
        kernel_us: KERNEL_US,
        waits: true,
        ..Load::default()
    };
    let node = Node::start(kind)?;
    let length = Duration::from_secs(arguments.seconds);
    let done = load::start(&node, Under::Sluice, &[worker, other], length)?.finish(&node)?;
    let [worker, other] = &done[..] else {
        bail!("there are two loads");
    };
    let mut gaps = gaps(worker, other);
    let report = Report {
        count: gaps.len(),
        idle_to_next_ms: quantile(&mut gaps, 0.5) / 1000.0,
        idle_to_next_p99_ms: quantile(&mut gaps, 0.99) / 1000.0,
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        writeln!(
            out,
            "from idle to the next one running: {:.2} ms (median), {:.2} ms (p99), {} times",
            report.idle_to_next_ms, report.idle_to_next_p99_ms, report.count
        )?;
    }
    (report.count > 0)
        .then_some(Exit::Success)
        .context("the other tenant was never held; the measurement is too short")
}

/// From each end of the worker's work to the other's next kernel, in microseconds.
fn gaps(worker: &Done, other: &Done) -> Vec<f64> {
    let kernel_ns = KERNEL_US * 1000;
    let ends = worker.progress.iter().map(|(end_ns, _)| *end_ns);
    let next_ends = ends.clone().skip(1).chain([u64::MAX]);
    ends.zip(next_ends)
        // Where the next piece follows at once, the worker was not idle.
        .filter(|(end_ns, next_ns)| next_ns - end_ns > 2 * WORK_NS)
        .filter_map(|(end_ns, _)| {
            let after = other.progress.partition_point(|(when, _)| *when <= end_ns);
            let (ended_ns, _) = other.progress.get(after)?;
            // One that ended sooner than a kernel takes was running already.
            let gap_ns = (ended_ns - end_ns).checked_sub(kernel_ns)?;
            Some(gap_ns as f64 / 1000.0)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_was_running_already_is_no_gap() {
        let done = |times: &[u64]| Done {
            progress: times.iter().map(|us| (us * 1000, 0)).collect(),
            responses: Vec::new(),
            unserved: Vec::new(),
            total_seen_bytes: 0,
        };
        let gaps = gaps(&done(&[1_000, 50_000]), &done(&[900, 1_400, 51_300]));
        assert_eq!(gaps, [300.0]);
    }
}
