//! Loads: programs that keep a GPU busy, as tenants or without Sluice, and what they measured.
//!
//! A load says `ready`, hears on its input when to begin and when to end (nanoseconds of
//! `CLOCK_MONOTONIC`), and prints what it did as one JSON object.

use crate::children::Owned;
use crate::demo::device::Device;
use crate::demo::node::Node;
use crate::demo::processor::waited_here_ns;
use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use nix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read, Write, stdin};
use std::process::ChildStdout;
use std::time::Duration;

/// Memory of a load that is a tenant, or an equal part of the device where that is less.
pub(crate) const CAP_BYTES: u64 = 1 << 30;

/// What it takes of that.
const HELD_BYTES: u64 = 64 << 20;

/// How much time of work a saturating load keeps in flight at most.
///
/// 20 ms: more than any turn, so that it never runs dry by itself.
const AHEAD: Duration = Duration::from_millis(20);

/// Time of work between two looks at how far it has come.
const GROUP: Duration = Duration::from_millis(1);

/// Between the order to begin and the beginning: every load has read it by then.
const LEAD: Duration = Duration::from_millis(100);

/// Is one of the programs that a bench runs
#[derive(Debug, clap::Args)]
pub(crate) struct LoadArguments {
    /// Running time of one kernel
    #[arg(long)]
    kernel_us: u64,
    /// Kernels of one request; 0: no requests, kernels without an end
    #[arg(long, default_value_t = 0)]
    request_kernels: u64,
    /// Waits for each group of kernels before it launches the next
    #[arg(long)]
    waits: bool,
    /// Requests come one interval after the other, instead of at random
    #[arg(long)]
    regular: bool,
    /// Requests come in this interval on average, whether or not the last ones are done
    #[arg(long, default_value_t = 20_000)]
    interval_us: u64,
}

/// What a load did.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Done {
    /// Kernels that had ended at a time, in order: nanoseconds of the monotonic clock, and how many.
    pub(crate) progress: Vec<(u64, u64)>,
    /// Response times of requests, in nanoseconds.
    pub(crate) responses: Vec<u64>,
    /// What of each the program waited for a processor.
    pub(crate) unserved: Vec<u64>,
    /// How large it saw the device to be, in bytes.
    pub(crate) total_seen_bytes: u64,
}

impl Done {
    /// Response times, less what the program waited for a processor.
    pub(crate) fn served_responses(&self) -> Vec<u64> {
        let pairs = self.responses.iter().zip(&self.unserved);
        pairs
            .map(|(response, unserved)| response.saturating_sub(*unserved))
            .collect()
    }
}

/// [`Done::progress`], [`Done::responses`] and [`Done::unserved`].
type Deeds = (Vec<(u64, u64)>, Vec<u64>, Vec<u64>);

/// One load of a bench.
#[derive(Debug, Clone, Default)]
pub(crate) struct Load {
    /// What to call it.
    pub(crate) name: String,
    /// Running time of one kernel.
    pub(crate) kernel_us: u64,
    /// Kernels of one request; 0: kernels without an end.
    pub(crate) request_kernels: u64,
    /// Mean interval of requests.
    pub(crate) interval_us: u64,
    /// Whether requests come one interval after the other, instead of at random.
    pub(crate) is_regular: bool,
    /// Whether it waits for each group of kernels before it launches the next.
    pub(crate) waits: bool,
    /// Options of `sluice run`.
    pub(crate) options: Vec<String>,
}

impl Load {
    fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![
            "bench-load".to_owned(),
            "--kernel-us".to_owned(),
            self.kernel_us.to_string(),
        ];
        if self.is_regular {
            arguments.push("--regular".to_owned());
        }
        if self.waits {
            arguments.push("--waits".to_owned());
        }
        if self.request_kernels > 0 {
            arguments.extend([
                "--request-kernels".to_owned(),
                self.request_kernels.to_string(),
                "--interval-us".to_owned(),
                self.interval_us.to_string(),
            ]);
        }
        arguments
    }
}

/// Whether loads run as tenants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Under {
    /// Each a tenant of its own.
    Sluice,
    /// The driver alone.
    Nothing,
}

/// Loads that have started and wait.
pub(crate) struct Running {
    loads: Vec<(String, Owned, BufReader<ChildStdout>)>,
    /// When they began.
    pub(crate) begin_ns: u64,
    /// When they are to end.
    pub(crate) end_ns: u64,
}

/// Starts loads, and has them all begin at one time.
pub(crate) fn start(
    node: &Node,
    under: Under,
    loads: &[Load],
    length: Duration,
) -> Result<Running> {
    let mut running = Vec::new();
    let devices = node.status()?.devices;
    let device_bytes = devices.first().map_or(0, |device| device.memory_bytes);
    let cap_bytes = CAP_BYTES.min(device_bytes / loads.len().max(1) as u64);
    for load in loads {
        let arguments = load.arguments();
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let options: Vec<&str> = load.options.iter().map(String::as_str).collect();
        let mut child = match under {
            Under::Sluice => node.start_program(&load.name, cap_bytes, &options, &arguments)?,
            Under::Nothing => node.start_plain(&load.name, &arguments)?,
        };
        let output = child.0.stdout.take().context("was asked for a pipe")?;
        running.push((load.name.clone(), child, BufReader::new(output)));
    }
    for (name, _, output) in &mut running {
        let mut line = String::new();
        output.read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("a load does not start; {}", node.last_words(name));
        }
    }
    let begin_ns = now_ns() + LEAD.as_nanos() as u64;
    let end_ns = begin_ns + length.as_nanos() as u64;
    for (_, child, _) in &mut running {
        let input = child.0.stdin.as_mut().context("was asked for a pipe")?;
        writeln!(input, "{begin_ns} {end_ns}")?;
    }
    Ok(Running {
        loads: running,
        begin_ns,
        end_ns,
    })
}

impl Running {
    /// Whether all have come to their end.
    pub(crate) fn is_over(&self) -> bool {
        now_ns() >= self.end_ns
    }

    /// Process ids, in the loads' order.
    pub(crate) fn pids(&self) -> Vec<u32> {
        self.loads
            .iter()
            .map(|(_, child, _)| child.0.id())
            .collect()
    }

    /// Waits for all of them, and takes what they did, in their order.
    pub(crate) fn finish(self, node: &Node) -> Result<Vec<Done>> {
        let mut all = Vec::new();
        for (name, mut child, mut output) in self.loads {
            let mut text = String::new();
            output.read_to_string(&mut text)?;
            let status = child.0.wait().context("cannot wait for a load")?;
            if !status.success() {
                bail!("a load ended with {status}; {}", node.last_words(&name));
            }
            all.push(serde_json::from_str(&text).context("a load says nonsense")?);
        }
        Ok(all)
    }
}

/// Sleeps until `at_ns` of the monotonic clock.
pub(crate) fn sleep_until(at_ns: u64) {
    std::thread::sleep(Duration::from_nanos(at_ns.saturating_sub(now_ns())));
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) fn now_ns() -> u64 {
    // Cannot fail for this clock.
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |now| Duration::from(now).as_nanos() as u64)
}

/// Is a load.
pub(crate) fn inside(arguments: &LoadArguments) -> Result<Exit> {
    let device = Device::open()?;
    let total_seen_bytes = device.total_bytes()?;
    let held = device.allocate(HELD_BYTES)?;
    // The first kernel loads code and makes room; that is no part of any measurement.
    device.spin(arguments.kernel_us * 1000)?;
    device.finish()?;
    println!("ready");
    let mut line = String::new();
    stdin().read_line(&mut line)?;
    let times: Vec<u64> = line
        .split_whitespace()
        .map(str::parse)
        .collect::<Result<_, _>>()
        .context("the order makes no sense")?;
    let [begin_ns, end_ns] = times[..] else {
        bail!("the order makes no sense");
    };
    sleep_until(begin_ns);
    let (progress, responses, unserved) = if arguments.request_kernels > 0 {
        requests(&device, arguments, begin_ns, end_ns)?
    } else {
        let ahead = if arguments.waits {
            Duration::ZERO
        } else {
            AHEAD
        };
        saturate(&device, arguments.kernel_us * 1000, ahead, end_ns)?
    };
    drop(held);
    let done = Done {
        progress,
        responses,
        unserved,
        total_seen_bytes,
    };
    println!("{}", serde_json::to_string(&done)?);
    Ok(Exit::Success)
}

/// Kernels without an end, so much time of them `ahead`: at least two groups, or, where that is zero, one.
fn saturate(device: &Device, kernel_ns: u64, ahead: Duration, end_ns: u64) -> Result<Deeds> {
    let group = (GROUP.as_nanos() as u64 / kernel_ns.max(1)).max(1);
    let groups = (ahead.as_nanos() as u64 / (group * kernel_ns).max(1)) as usize;
    let depth = groups.max(if ahead.is_zero() { 1 } else { 2 });
    let mut ahead = VecDeque::new();
    let mut spare = Vec::new();
    let mut progress = vec![(now_ns(), 0)];
    let mut done = 0;
    while now_ns() < end_ns {
        for _ in 0..group {
            device.spin(kernel_ns)?;
        }
        let event = spare.pop().map_or_else(|| device.event(), Ok)?;
        device.record(event)?;
        ahead.push_back(event);
        if ahead.len() >= depth
            && let Some(event) = ahead.pop_front()
        {
            device.wait_for(event)?;
            spare.push(event);
            done += group;
            progress.push((now_ns(), done));
        }
    }
    Ok((progress, Vec::new(), Vec::new()))
}

/// Requests that come at random times, whether or not the last ones are done.
fn requests(
    device: &Device,
    arguments: &LoadArguments,
    begin_ns: u64,
    end_ns: u64,
) -> Result<Deeds> {
    // Xorshift: the same arrivals in every run.
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut interval_ns = || {
        if arguments.regular {
            return arguments.interval_us * 1000;
        }
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        // Exponential, as of many independent callers.
        let part = ((state >> 11) as f64 + 0.5) / (1u64 << 53) as f64;
        (-part.ln() * arguments.interval_us as f64 * 1000.0) as u64
    };
    let (mut responses, mut unserved, mut progress) = (Vec::new(), Vec::new(), Vec::new());
    let mut arrival_ns = begin_ns + interval_ns();
    while arrival_ns < end_ns {
        let waited_ns = waited_here_ns();
        sleep_until(arrival_ns);
        for _ in 0..arguments.request_kernels {
            device.spin(arguments.kernel_us * 1000)?;
        }
        device.finish()?;
        let end_ns = now_ns();
        responses.push(end_ns - arrival_ns);
        unserved.push(waited_here_ns() - waited_ns);
        progress.push((end_ns, (responses.len() as u64) * arguments.request_kernels));
        arrival_ns += interval_ns();
    }
    Ok((progress, responses, unserved))
}
