//! The second act: a service whose requests somebody waits for, and two tenants that never rest, on one
//! GPU. First the service alone, then all three.

use super::node::Node;
use super::processor::Waited;
use super::screen::Screen;
use crate::bench::latency::p99_ms;
use crate::bench::load::{self, CAP_BYTES, Done, Load, Running, Under, now_ns};
use crate::interrupt;
use anyhow::{Context, Result};
use daemon::api::{ComputeInfo, LeaseState, Status, TenantInfo};
use sim::client::Gpu;
use std::time::Duration;

/// The tenants: name, options, running time of a kernel, kernels of a request.
const CAST: [(&str, [&str; 4], u64, u64); 3] = [
    (
        "service",
        ["--compute", "30%", "--class", "latency"],
        500,
        8,
    ),
    (
        "training",
        ["--compute", "40%", "--class", "standard"],
        5_000,
        0,
    ),
    ("sweep", ["--compute", "20%", "--class", "batch"], 500, 0),
];

/// Interval of the service's requests: they take a sixth of the GPU.
const INTERVAL_US: u64 = 24_000;

/// Part of the act in which the service is alone, in permille.
const ALONE_PERMILLE: u32 = 350;

/// While kernels' running times are still being learned, shares are not measured.
const LEARNING: Duration = Duration::from_millis(500);

/// Between two drawings of the table.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// What was seen of the second act.
#[derive(Debug, Default, Clone)]
pub(crate) struct Shares {
    /// The tenants, in the order of their start.
    pub(crate) tenants: Vec<Part>,
    /// Part of the time in which kernels ran, all tenants together; where that is known.
    pub(crate) busy: Option<f64>,
    /// How long shares were measured.
    pub(crate) seconds: f64,
    /// Part of that time that a thread of those taking part had to wait for a processor; of the one that had
    /// to wait longest.
    pub(crate) unserved: f64,
    /// Launches that were tracked while the service was alone.
    pub(crate) tracked_alone: u64,
}

/// One tenant of it.
#[derive(Debug, Default, Clone)]
pub(crate) struct Part {
    pub(crate) name: &'static str,
    pub(crate) cap_bytes: u64,
    pub(crate) peak_bytes: u64,
    pub(crate) total_seen_bytes: u64,
    /// As a part of the device's time.
    pub(crate) guarantee: f64,
    /// The same, as it was measured.
    pub(crate) measured: f64,
    /// What it asks for of it; `None`: all that it can get.
    pub(crate) wanted: Option<f64>,
    pub(crate) p99_ms_alone: Option<f64>,
    pub(crate) p99_ms_shared: Option<f64>,
    /// The same, less what the program waited for a processor: alone, and beside the others.
    pub(crate) served_p99_ms: Option<(f64, f64)>,
    /// What the daemon last said.
    pub(crate) now: ComputeInfo,
}

impl Part {
    /// Whether it launches kernels without an end.
    pub(crate) fn is_saturating(&self) -> bool {
        self.wanted.is_none()
    }
}

/// Plays it for `length`; `None`: interrupted.
pub(crate) fn play(node: &Node, screen: &mut Screen, length: Duration) -> Result<Option<Shares>> {
    let loads = CAST.map(|(name, options, kernel_us, request_kernels)| Load {
        name: name.to_owned(),
        kernel_us,
        request_kernels,
        interval_us: INTERVAL_US,
        is_regular: true,
        options: options.map(str::to_owned).to_vec(),
        ..Load::default()
    });
    let mut shares = Shares {
        tenants: CAST
            .map(|(name, _, kernel_us, request_kernels)| Part {
                name,
                cap_bytes: CAP_BYTES,
                wanted: (request_kernels > 0)
                    .then(|| (kernel_us * request_kernels) as f64 / INTERVAL_US as f64),
                ..Part::default()
            })
            .to_vec(),
        ..Shares::default()
    };
    let alone = length * ALONE_PERMILLE / 1000;
    let running = load::start(node, Under::Sluice, &loads[..1], alone)?;
    if !watch(node, screen, &running, &mut shares, "the service is alone")? {
        return Ok(None);
    }
    shares.tracked_alone = shares.tenants[0].now.launches;
    let before = running.finish(node)?;
    let together = (length - alone).max(2 * LEARNING);
    let running = load::start(node, Under::Sluice, &loads, together)?;
    let hardware = node
        .gpu_socket()
        .map(|at| Gpu::connect_to(&at))
        .transpose()?;
    let pids = running.pids();
    let begin_ns = running.begin_ns + LEARNING.as_nanos() as u64;
    if !watch_until(node, screen, &running, &mut shares, begin_ns)? {
        return Ok(None);
    }
    let account = || hardware.as_ref().map(|hardware| busy(hardware, &pids));
    let waited = || Waited::of(node.pids().chain(pids.iter().copied()));
    let (from_ns, from, waited_before) = (now_ns(), account(), waited());
    if !watch(node, screen, &running, &mut shares, "all three want it")? {
        return Ok(None);
    }
    let (to_ns, to) = (now_ns(), account());
    let waited_ns = waited().longest_since_ns(&waited_before);
    let done = running.finish(node)?;
    let passed_ns = (to_ns - from_ns).max(1) as f64;
    shares.seconds = passed_ns / 1e9;
    shares.unserved = (waited_ns as f64 / passed_ns).min(1.0);
    let got: Vec<f64> = match from.zip(to) {
        Some((from, to)) => to
            .iter()
            .zip(&from)
            .map(|(to, from)| (to - from) as f64)
            .collect(),
        None => kernels(&done, &loads, from_ns, to_ns),
    };
    shares.busy = hardware
        .is_some()
        .then(|| got.iter().sum::<f64>() / passed_ns);
    for ((part, got), done) in shares.tenants.iter_mut().zip(&got).zip(&done) {
        part.measured = got / passed_ns;
        part.total_seen_bytes = done.total_seen_bytes;
        part.p99_ms_shared = (!done.responses.is_empty()).then(|| p99_ms(&done.responses));
    }
    let service = before.first().context("the service was alone")?;
    let shared = done.first().context("it was beside the others")?;
    let served = |done: &Done| p99_ms(&done.served_responses());
    shares.tenants[0].p99_ms_alone = Some(p99_ms(&service.responses));
    shares.tenants[0].served_p99_ms = Some((served(service), served(shared)));
    Ok(Some(shares))
}

/// How long kernels of each process have run, in nanoseconds.
fn busy(hardware: &Gpu, pids: &[u32]) -> Vec<u64> {
    let processes = hardware.processes(0);
    pids.iter()
        .map(|pid| {
            let mut found = processes
                .iter()
                .filter(|process| process.pid as u32 == *pid);
            found.next().map_or(0, |process| process.busy_ns)
        })
        .collect()
}

/// The same by what ended between two times, on a device that keeps no account.
fn kernels(done: &[Done], loads: &[Load], from_ns: u64, to_ns: u64) -> Vec<f64> {
    done.iter()
        .zip(loads)
        .map(|(done, load)| {
            let kernels = done.kernels_at(to_ns) - done.kernels_at(from_ns);
            kernels * load.kernel_us as f64 * 1000.0
        })
        .collect()
}

fn watch(
    node: &Node,
    screen: &mut Screen,
    running: &Running,
    shares: &mut Shares,
    note: &str,
) -> Result<bool> {
    // A little before the end, while all are still there.
    let last_look_ns = running.end_ns - 50_000_000;
    while now_ns() < last_look_ns {
        if interrupt::last().is_some() {
            return Ok(false);
        }
        shares.see(&node.status()?);
        screen.draw_shares(shares, note);
        let left = Duration::from_nanos(last_look_ns.saturating_sub(now_ns()));
        std::thread::sleep(left.min(LOOK_EVERY));
    }
    shares.see(&node.status()?);
    Ok(!running.is_over() || interrupt::last().is_none())
}

fn watch_until(
    node: &Node,
    screen: &mut Screen,
    running: &Running,
    shares: &mut Shares,
    at_ns: u64,
) -> Result<bool> {
    while now_ns() < at_ns.min(running.end_ns) {
        if interrupt::last().is_some() {
            return Ok(false);
        }
        shares.see(&node.status()?);
        screen.draw_shares(shares, "the others have come");
        let left = Duration::from_nanos(at_ns.saturating_sub(now_ns()));
        std::thread::sleep(left.min(LOOK_EVERY));
    }
    Ok(true)
}

impl Shares {
    fn see(&mut self, status: &Status) {
        for part in &mut self.tenants {
            let told = status.tenants.iter().find(|told| told.name == part.name);
            let device = told.and_then(|told: &TenantInfo| told.devices.first());
            match device {
                Some(device) => {
                    part.now = device.compute.clone();
                    part.guarantee = f64::from(device.compute.guarantee_permille) / 1000.0;
                    part.peak_bytes = part.peak_bytes.max(device.memory_peak_bytes);
                }
                None => part.now.lease = LeaseState::Unshared,
            }
        }
    }
}
