//! `sluice bench fairness`: saturating tenants, and what each gets of the GPU.

use super::load::{self, Done, Load, Under, sleep_until};
use crate::choice::{Choice, settle};
use crate::demo::node::Node;
use crate::exit::Exit;
use crate::text::{Column, table};
use anyhow::{Result, bail};
use serde::Serialize;
use sim::client::Gpu;
use std::io::Write;
use std::time::Duration;

/// Measures how GPU time is divided among saturating tenants, with and without Sluice
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Each tenant launches kernels without an end. What it got is read from the stand-in's own account, and on a
real GPU from the kernels that ended. The aggregate is the sum of all, as a part of what one alone gets.")]
pub(crate) struct Arguments {
    /// Weight of each tenant
    #[arg(long, value_delimiter = ',', default_value = "6,3,1")]
    weights: Vec<u32>,
    /// So many tenants of equal weight instead
    #[arg(long, value_name = "N", conflicts_with = "weights")]
    tenants: Option<usize>,
    /// Running time of each tenant's kernels; the last one's is for all that have none
    #[arg(long, value_delimiter = ',', default_value = "100,1000,10000")]
    kernel_us: Vec<u64>,
    /// How long each of the three measurements takes
    #[arg(long, value_name = "N", default_value_t = 10)]
    seconds: u64,
    /// Which device: the machine's GPU, or the stand-in
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The object that `--json` prints.
#[derive(Debug, Serialize)]
struct Report {
    /// What each is to get, and got: parts of the sum.
    target: Vec<f64>,
    measured: Vec<f64>,
    /// Largest distance of a tenant from its target over the whole, and over the worst second, in
    /// percentage points.
    max_error_pp: f64,
    max_error_pp_1s: f64,
    aggregate_vs_exclusive: f64,
    /// Time of the arbiter and everything else in the daemon, as a part of one core.
    daemon_cpu: f64,
    native: Native,
}

#[derive(Debug, Serialize)]
struct Native {
    measured: Vec<f64>,
    aggregate_vs_exclusive: f64,
}

/// GPU time of each load at the beginning and after each second, in nanoseconds.
type Account = Vec<Vec<f64>>;

/// Measures, and prints a table or an object.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let kind = settle(arguments.device)?;
    let Some(last) = arguments.kernel_us.last() else {
        bail!("there is no kernel length");
    };
    let weights = arguments
        .tenants
        .map_or_else(|| arguments.weights.clone(), |count| vec![1; count]);
    if weights.len() < 2 || weights.contains(&0) || arguments.seconds == 0 {
        bail!("it takes at least two weights above 0, and at least one second");
    }
    let loads: Vec<Load> = weights
        .iter()
        .enumerate()
        .map(|(index, weight)| Load {
            name: format!("tenant-{}", index + 1),
            kernel_us: *arguments.kernel_us.get(index).unwrap_or(last),
            options: vec![
                "--weight".to_owned(),
                (weight * 100).min(10_000).to_string(),
            ],
            ..Load::default()
        })
        .collect();
    let length = Duration::from_secs(arguments.seconds);
    let node = Node::start(kind)?;
    let measure = |under, loads: &[Load]| measure(&node, under, loads, length);
    let alone = measure(Under::Nothing, &loads[..1])?.account;
    let native = measure(Under::Nothing, &loads)?.account;
    let Measured {
        account: shared,
        daemon_cpu,
        ..
    } = measure(Under::Sluice, &loads)?;
    let exclusive = sum(&whole(&alone));
    let target = parts(&weights.iter().map(|w| f64::from(*w)).collect::<Vec<_>>());
    let measured = parts(&whole(&shared));
    let report = Report {
        max_error_pp: error_pp(&measured, &target),
        max_error_pp_1s: seconds(&shared)
            .iter()
            .map(|second| error_pp(&parts(second), &target))
            .fold(0.0, f64::max),
        aggregate_vs_exclusive: sum(&whole(&shared)) / exclusive,
        daemon_cpu,
        native: Native {
            measured: parts(&whole(&native)),
            aggregate_vs_exclusive: sum(&whole(&native)) / exclusive,
        },
        target,
        measured,
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        write!(out, "{}", shown(&report, &loads))?;
    }
    Ok(Exit::Success)
}

/// Measures what it costs to give the GPU from one tenant to the next
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Two tenants of equal weight launch kernels of 1 ms without an end. What is lost is the time in which no
kernel ran, divided by the number of turns.")]
pub(crate) struct HandoverArguments {
    /// How long the measurement takes
    #[arg(long, value_name = "N", default_value_t = 5)]
    seconds: u64,
    /// Which device: the machine's GPU, or the stand-in
    #[arg(long, value_enum, default_value_t = Choice::Auto)]
    device: Choice,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// The object that `bench handover --json` prints.
#[derive(Debug, Serialize)]
struct Handover {
    /// Turns that began with a launch that had waited.
    turns: u64,
    lost_us_per_turn: f64,
    used: f64,
}

/// Measures, and prints a line or an object.
pub(crate) fn handover(arguments: &HandoverArguments) -> Result<Exit> {
    let kind = settle(arguments.device)?;
    if arguments.seconds == 0 {
        bail!("it takes at least one second");
    }
    let loads = ["one", "other"].map(|name| Load {
        name: name.to_owned(),
        kernel_us: 1000,
        ..Load::default()
    });
    let length = Duration::from_secs(arguments.seconds);
    let node = Node::start(kind)?;
    let measured = measure(&node, Under::Sluice, &loads, length)?;
    let used_ns = sum(&whole(&measured.account));
    let lost_ns = (length.as_nanos() as f64 - used_ns).max(0.0);
    let report = Handover {
        turns: measured.turns,
        lost_us_per_turn: lost_ns / 1000.0 / measured.turns.max(1) as f64,
        used: used_ns / length.as_nanos() as f64,
    };
    let mut out = std::io::stdout().lock();
    if arguments.json {
        writeln!(out, "{}", serde_json::to_string(&report)?)?;
    } else {
        writeln!(
            out,
            "a turn costs {:.0} us of the GPU's time ({} turns; kernels ran {:.1}% of the time)",
            report.lost_us_per_turn,
            report.turns,
            report.used * 100.0
        )?;
    }
    Ok(Exit::Success)
}

fn shown(report: &Report, loads: &[Load]) -> String {
    const HEADING: [Column; 5] = [
        Column::left("TENANT"),
        Column::right("KERNEL, US"),
        Column::right("TARGET"),
        Column::right("SLUICE"),
        Column::right("WITHOUT"),
    ];
    let percent = |part: f64| format!("{:.1}%", part * 100.0);
    let rows: Vec<Vec<String>> = loads
        .iter()
        .enumerate()
        .map(|(index, load)| {
            vec![
                load.name.clone(),
                load.kernel_us.to_string(),
                percent(report.target[index]),
                percent(report.measured[index]),
                percent(report.native.measured[index]),
            ]
        })
        .collect();
    format!(
        "{}\nlargest error: {:.2} points over the whole, {:.2} in the worst second\n\
         all together, of what one alone gets: {:.3} with Sluice, {:.3} without\n\
         the daemon took {:.1}% of a core\n",
        table(&HEADING, &rows),
        report.max_error_pp,
        report.max_error_pp_1s,
        report.aggregate_vs_exclusive,
        report.native.aggregate_vs_exclusive,
        report.daemon_cpu * 100.0,
    )
}

/// What a run of loads brought.
struct Measured {
    account: Account,
    /// The daemon's time, as a part of one core.
    daemon_cpu: f64,
    /// Launches that had to wait for the lease: one for each turn.
    turns: u64,
}

/// Runs loads for `length`, and accounts for each second.
fn measure(node: &Node, under: Under, loads: &[Load], length: Duration) -> Result<Measured> {
    let running = load::start(node, under, loads, length)?;
    let hardware = node
        .gpu_socket()
        .map(|socket| Gpu::connect_to(&socket))
        .transpose()?;
    let pids = running.pids();
    let begin_ns = running.begin_ns;
    let marks: Vec<u64> = (0..=length.as_secs())
        .map(|second| begin_ns + second * 1_000_000_000)
        .collect();
    let mut account = Account::new();
    let mut cpu = Vec::new();
    for mark in &marks {
        // At the very end the loads are gone, and their accounts with them.
        sleep_until(mark.min(&(running.end_ns - 20_000_000)).to_owned());
        cpu.push(node.daemon_cpu());
        if let Some(hardware) = &hardware {
            let processes = hardware.processes(0);
            let busy_ns = |pid: &u32| {
                processes
                    .iter()
                    .find(|process| process.pid as u32 == *pid)
                    .map_or(0.0, |process| process.busy_ns as f64)
            };
            account.push(pids.iter().map(busy_ns).collect());
        }
    }
    let turns = node
        .status()?
        .tenants
        .iter()
        .flat_map(|tenant| &tenant.devices)
        .map(|device| device.compute.held)
        .sum();
    let done = running.finish(node)?;
    if hardware.is_none() {
        account = marks
            .iter()
            .map(|mark| {
                let ended = done.iter().zip(loads);
                ended
                    .map(|(done, load)| done.kernels_at(*mark) * load.kernel_us as f64 * 1000.0)
                    .collect()
            })
            .collect();
    }
    let first = cpu.first().copied().unwrap_or_default();
    let last = cpu.last().copied().unwrap_or_default();
    let daemon_cpu = last.saturating_sub(first).as_secs_f64() / length.as_secs_f64();
    Ok(Measured {
        account,
        daemon_cpu,
        turns,
    })
}

impl Done {
    /// Kernels that had ended at `at_ns`, between two looks in proportion.
    pub(crate) fn kernels_at(&self, at_ns: u64) -> f64 {
        let after = self.progress.partition_point(|(when, _)| *when <= at_ns);
        match (
            self.progress.get(after.wrapping_sub(1)),
            self.progress.get(after),
        ) {
            (Some((from, had)), Some((to, has))) => {
                let part = (at_ns - from) as f64 / (to - from).max(1) as f64;
                *had as f64 + (has - had) as f64 * part
            }
            (Some((_, had)), None) => *had as f64,
            _ => 0.0,
        }
    }
}

fn whole(account: &Account) -> Vec<f64> {
    match (account.first(), account.last()) {
        (Some(first), Some(last)) => last
            .iter()
            .zip(first)
            .map(|(last, first)| last - first)
            .collect(),
        _ => Vec::new(),
    }
}

/// What each got in each second.
fn seconds(account: &Account) -> Vec<Vec<f64>> {
    account
        .windows(2)
        .map(|pair| {
            pair[1]
                .iter()
                .zip(&pair[0])
                .map(|(now, before)| now - before)
                .collect()
        })
        .collect()
}

fn sum(values: &[f64]) -> f64 {
    values.iter().sum()
}

/// Values as parts of their sum.
fn parts(values: &[f64]) -> Vec<f64> {
    let all = sum(values).max(f64::MIN_POSITIVE);
    values.iter().map(|value| value / all).collect()
}

/// Largest distance, in percentage points.
fn error_pp(measured: &[f64], target: &[f64]) -> f64 {
    measured
        .iter()
        .zip(target)
        .map(|(measured, target)| (measured - target).abs() * 100.0)
        .fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_points_of_the_whole() {
        let measured = parts(&[590.0, 310.0, 100.0]);
        let error = error_pp(&measured, &parts(&[6.0, 3.0, 1.0]));
        assert!((error - 1.0).abs() < 1e-9, "{error}");
    }

    #[test]
    fn kernels_between_two_looks_count_in_proportion() {
        let done = Done {
            progress: vec![(100, 0), (200, 10), (400, 20)],
            responses: Vec::new(),
            unserved: Vec::new(),
            total_seen_bytes: 0,
        };
        for (at, kernels) in [(0, 0.0), (150, 5.0), (200, 10.0), (300, 15.0), (900, 20.0)] {
            assert_eq!(done.kernels_at(at), kernels);
        }
    }
}
