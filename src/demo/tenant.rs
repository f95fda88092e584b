//! The programs that the demo runs: ordinary clients of the driver API, by way of `cudarc` and
//! `nvml-wrapper`. They know nothing of Sluice; what they see is what any program would.

use super::device::{Block, Device};
use super::event::{Event, View};
use crate::children::{self, Owned};
use crate::exit::Exit;
use anyhow::{Context, Result, bail};
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// Plays one tenant of the demo
#[derive(Debug, clap::Args)]
pub(crate) struct TenantArguments {
    /// Which part it plays
    #[arg(long)]
    role: Role,
}

/// What a tenant does over and over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Role {
    /// Stays below its cap: allocates, computes, frees, and looks whether anything is amiss.
    Web,
    /// Goes over its cap, is refused, frees something and tries again.
    Batch,
    /// Has a worker process that is killed while it holds memory; one for each line on the input.
    Jobs,
    /// That worker: takes three quarters of the cap and waits.
    Worker,
}

/// What a tenant's input says.
enum Order {
    /// Kill a worker (`Role::Jobs`).
    Kill,
    /// Come to an end.
    End,
}

/// Pause between two rounds: a demonstration, not a load test.
const PAUSE: Duration = Duration::from_millis(15);

/// How long a worker holds its memory before it is killed, and `batch` a quarter of that, so that
/// whoever looks ten times a second sees it.
const SHOWN_FOR: Duration = Duration::from_millis(250);

/// Bytes of each block that are written and read back. The stand-in's memory is real memory once it
/// is touched.
const TOUCHED_BYTES: usize = 64 << 10;

/// Running time of one kernel, in nanoseconds.
const KERNEL_NS: u64 = 1_000_000;

/// Longest wait for a killed process's memory before the tenant gives up on it.
const GIVE_BACK_WITHIN: Duration = Duration::from_secs(5);

/// Plays the role until the standard input ends.
pub(crate) fn run(arguments: &TenantArguments) -> Result<Exit> {
    let device = Device::open()?;
    let orders = orders();
    match arguments.role {
        Role::Web => rounds(&orders, &device, web)?,
        Role::Batch => rounds(&orders, &device, batch)?,
        Role::Jobs => rounds(&orders, &device, jobs)?,
        Role::Worker => worker(&device)?,
    }
    Ok(Exit::Success)
}

/// Reads the input on a thread of its own, so that a round is never late because of it.
fn orders() -> Receiver<Order> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for _ in stdin().lines().map_while(Result::ok) {
            // A tenant that no longer listens has ended.
            let _ = sender.send(Order::Kill);
        }
        let _ = sender.send(Order::End);
    });
    receiver
}

/// Repeats `round` until the input ends, and reports views and progress.
fn rounds(
    orders: &Receiver<Order>,
    device: &Device,
    round: fn(&Device, bool) -> Result<u64>,
) -> Result<()> {
    let view = device.view()?;
    tell(&Event::Sees(view))?;
    let (mut rounds, mut launches) = (0, 0);
    loop {
        let is_kill = match orders.recv_timeout(PAUSE) {
            Ok(Order::Kill) => true,
            Err(RecvTimeoutError::Timeout) => false,
            Ok(Order::End) | Err(RecvTimeoutError::Disconnected) => return Ok(()),
        };
        match round(device, is_kill) {
            Ok(launched) => launches += launched,
            Err(error) => tell(&Event::Trouble {
                what: format!("{error:#}"),
            })?,
        }
        rounds += 1;
        let now: View = device.view()?;
        if now != view {
            tell(&Event::SeesOtherwise(now))?;
        }
        tell(&Event::Progress { rounds, launches })?;
    }
}

/// Stays below its cap: nothing may fail, and what is written is what is read.
fn web(device: &Device, _: bool) -> Result<u64> {
    let total = device.total_bytes()?;
    let mut blocks = Vec::new();
    for (index, part) in [4, 8, 16, 16].into_iter().enumerate() {
        let block = device.allocate(total / part)?;
        let mark = u8::try_from(index + 1).context("few blocks")?;
        block.fill(mark, TOUCHED_BYTES)?;
        device.spin(KERNEL_NS)?;
        blocks.push((block, mark));
    }
    device.finish()?;
    for (block, mark) in &blocks {
        let read = block.read(TOUCHED_BYTES)?;
        if read.iter().any(|byte| byte != mark) {
            bail!("a block of {} bytes came back changed", block.bytes());
        }
    }
    Ok(4)
}

/// Fills its memory until it is refused, frees half, and asks for the same again.
fn batch(device: &Device, _: bool) -> Result<u64> {
    let total = device.total_bytes()?;
    let chunk = total / 8;
    let mut held: Vec<Block<'_>> = Vec::new();
    loop {
        let free_before = device.free_bytes()?;
        match device.try_allocate(chunk) {
            Ok(block) => held.push(block),
            Err(refusal) => {
                let is_clean = refusal.output_is_untouched && device.free_bytes()? == free_before;
                tell(&Event::Refused {
                    asked_bytes: chunk,
                    code: refusal.code,
                    is_clean,
                })?;
                break;
            }
        }
        if held.iter().map(Block::bytes).sum::<u64>() > total {
            bail!("it holds more than the {total} bytes that it sees");
        }
    }
    held.truncate(held.len() / 2);
    held.push(
        device
            .allocate(chunk)
            .context("the retry after a free failed")?,
    );
    tell(&Event::Retried { asked_bytes: chunk })?;
    device.spin(KERNEL_NS)?;
    device.finish()?;
    std::thread::sleep(SHOWN_FOR / 4);
    Ok(1)
}

/// Does little, but where `is_kill`, kills a worker that holds memory and takes that memory itself.
fn jobs(device: &Device, is_kill: bool) -> Result<u64> {
    let total = device.total_bytes()?;
    let small = device.allocate(total / 8)?;
    small.fill(7, TOUCHED_BYTES)?;
    device.spin(KERNEL_NS)?;
    device.finish()?;
    drop(small);
    if is_kill {
        kill_a_worker(device)?;
    }
    Ok(1)
}

fn kill_a_worker(device: &Device) -> Result<()> {
    let mut command = Command::new("/proc/self/exe");
    command
        .args(["demo-tenant", "--role", "worker"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut worker = Owned(
        children::dies_with_us(&mut command)
            .spawn()
            .context("cannot start a worker")?,
    );
    let output = worker.0.stdout.take().context("the worker has no output")?;
    let mut line = String::new();
    BufReader::new(output).read_line(&mut line)?;
    let Ok(Event::Holding { bytes }) = serde_json::from_str(&line) else {
        bail!("the worker said {line:?} instead of what it holds");
    };
    if device.try_allocate(bytes).is_ok() {
        bail!("the worker holds {bytes} bytes, and they could be had a second time");
    }
    std::thread::sleep(SHOWN_FOR);
    let killed = Instant::now();
    drop(worker);
    while device.try_allocate(bytes).is_err() {
        if killed.elapsed() > GIVE_BACK_WITHIN {
            bail!("a killed worker's {bytes} bytes did not come back");
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let after_us = u64::try_from(killed.elapsed().as_micros())?;
    tell(&Event::GaveBack { bytes, after_us })
}

fn worker(device: &Device) -> Result<()> {
    // Of what is free: contexts take a part of the cap, too.
    let block = device.allocate(device.free_bytes()? / 4 * 3)?;
    tell(&Event::Holding {
        bytes: block.bytes(),
    })?;
    // Until it is killed; or until its parent is gone.
    std::io::copy(&mut stdin(), &mut std::io::sink())?;
    Ok(())
}

fn tell(event: &Event) -> Result<()> {
    let mut line = serde_json::to_vec(event)?;
    line.push(b'\n');
    let mut output = stdout().lock();
    output
        .write_all(&line)
        .and_then(|()| output.flush())
        .context("nobody listens")
}
