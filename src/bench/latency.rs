//! `sluice bench latency`: requests that somebody waits for, beside a neighbour that never rests.

use super::load::{self, Load, Under};
use crate::choice::{Choice, settle};
use crate::demo::node::Node;
use crate::exit::Exit;
use crate::text::{Column, table};
use anyhow::{Context, Result, bail};
use serde::Serialize;
use std::io::Write;
use std::time::Duration;

/// Measures response times beside a saturating neighbour, with and without Sluice
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Requests come at random times, whether or not the last one is done, and take a tenth of the GPU. With
Sluice, their tenant is of class latency with half of the GPU guaranteed, and the neighbour of class batch.
Figures are the response times that 99 of 100 requests keep; of a few hundred requests, that is chance.
Nothing else should run on the machine meanwhile.")]
pub(crate) struct Arguments {
    /// GPU time of one request
    #[arg(long, value_name = "MS", default_value_t = 4)]
    request_ms: u64,
    /// Running times of the neighbour's kernels, one measurement each
    #[arg(long, value_delimiter = ',', default_value = "250,1000,20000")]
    neighbour_us: Vec<u64>,
    /// How long each measurement takes
    #[arg(long, value_name = "N", default_value_t = 30)]
    seconds: u64,
    /// Which device: the machine's GPU, or the stand-in
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,
    /// Print one JSON array
    #[arg(long)]
    json: bool,
}

/// Kernels of one request.
const KERNELS: u64 = 8;

/// Requests take this part of the GPU: one of so many intervals' worth.
const INTERVALS: u64 = 10;

/// One row of what is printed.
#[derive(Debug, Serialize)]
struct Row {
    neighbour_us: u64,
    alone_p99_ms: f64,
    native_p99_ms: f64,
    shared_p99_ms: f64,
    /// The neighbour's kernels that ended, with Sluice, as a part of those without.
    neighbour_kept: f64,
}

/// Measures, and prints a table or an array.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let kind = settle(arguments.device)?;
    if arguments.request_ms == 0 || arguments.seconds == 0 || arguments.neighbour_us.contains(&0) {
        bail!("times are at least 1");
    }
    let length = Duration::from_secs(arguments.seconds);
    let requests = Load {
        name: "requests".to_owned(),
        kernel_us: (arguments.request_ms * 1000 / KERNELS).max(1),
        request_kernels: KERNELS,
        interval_us: arguments.request_ms * 1000 * INTERVALS,
        options: ["--compute", "50%", "--class", "latency"]
            .map(str::to_owned)
            .to_vec(),
        ..Load::default()
    };
    let node = Node::start(kind)?;
    let measure = |under, loads: &[Load]| -> Result<(f64, u64)> {
        let done = load::start(&node, under, loads, length)?.finish(&node)?;
        let first = done.first().context("there is one load at least")?;
        let kernels = done
            .get(1)
            .and_then(|neighbour| neighbour.progress.last())
            .map_or(0, |(_, kernels)| *kernels);
        Ok((p99_ms(&first.responses), kernels))
    };
    let (alone_p99_ms, _) = measure(Under::Nothing, std::slice::from_ref(&requests))?;
    let mut rows = Vec::new();
    for neighbour_us in &arguments.neighbour_us {
        let neighbour = Load {
            name: "neighbour".to_owned(),
            kernel_us: *neighbour_us,
            options: ["--class", "batch"].map(str::to_owned).to_vec(),
            ..Load::default()
        };
        let loads = [requests.clone(), neighbour];
        let (native_p99_ms, native) = measure(Under::Nothing, &loads)?;
        let (shared_p99_ms, shared) = measure(Under::Sluice, &loads)?;
        rows.push(Row {
            neighbour_us: *neighbour_us,
            alone_p99_ms,
            native_p99_ms,
            shared_p99_ms,
            neighbour_kept: shared as f64 / native.max(1) as f64,
        });
    }
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&rows)?)?;
    } else {
        write!(out, "{}", shown(&rows))?;
    }
    Ok(Exit::Success)
}

fn shown(rows: &[Row]) -> String {
    const HEADING: [Column; 6] = [
        Column::right("NEIGHBOUR, US"),
        Column::right("ALONE, MS"),
        Column::right("WITHOUT"),
        Column::right("SLUICE"),
        Column::right("TIMES ALONE"),
        Column::right("NEIGHBOUR KEPT"),
    ];
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.neighbour_us.to_string(),
                format!("{:.2}", row.alone_p99_ms),
                format!("{:.2}", row.native_p99_ms),
                format!("{:.2}", row.shared_p99_ms),
                format!("{:.2}", row.shared_p99_ms / row.alone_p99_ms),
                format!("{:.0}%", row.neighbour_kept * 100.0),
            ]
        })
        .collect();
    table(&HEADING, &rows)
}

/// The time that 99 of 100 keep.
pub(crate) fn p99_ms(responses_ns: &[u64]) -> f64 {
    let mut sorted = responses_ns.to_vec();
    sorted.sort_unstable();
    let at = (sorted.len() * 99).div_ceil(100).saturating_sub(1);
    sorted.get(at).map_or(0.0, |ns| *ns as f64 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_hundred_requests_one_may_take_longer() {
        let responses: Vec<u64> = (1..=100).map(|ms| ms * 1_000_000).collect();
        assert_eq!(p99_ms(&responses), 99.0);
        assert_eq!(p99_ms(&[5_000_000]), 5.0);
        assert_eq!(p99_ms(&[]), 0.0);
    }
}
