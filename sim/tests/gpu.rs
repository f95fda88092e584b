//! The `gpu` process over its real sockets and pages: what clients see of it.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicU64;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sim::client::{Compute, Gpu, GpuError};
use sim::gpu::{Options, RunError, run};
use sim::proto::Command;

/// A `gpu` process in a thread; taking its socket away ends it.
struct Hardware {
    folder: PathBuf,
    thread: Option<JoinHandle<Result<(), RunError>>>,
}

impl Hardware {
    fn start(name: &str, change: impl FnOnce(&mut Options)) -> Self {
        let folder = std::env::temp_dir().join(format!("sluice-sim-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut options = Options {
            socket: folder.join("gpu.sock"),
            ..Options::default()
        };
        change(&mut options);
        let thread = std::thread::spawn(move || run(options));
        let hardware = Self {
            folder,
            thread: Some(thread),
        };
        eventually(|| Gpu::connect_to(&hardware.socket()).is_ok());
        hardware
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("gpu.sock")
    }
}

impl Drop for Hardware {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.folder).unwrap();
        let ended = self.thread.take().map(|thread| thread.join());
        assert!(matches!(ended, Some(Ok(Ok(())))));
    }
}

fn eventually(mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "it did not come true in 10 s");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A stream of `client` and its counter.
fn stream(client: &Compute, context: u64, slot: u32) -> AtomicU64 {
    let last = AtomicU64::new(0);
    client.open_stream(slot, &last, context, 0).unwrap();
    last
}

fn kernel(duration_ns: u64) -> Command {
    Command::Kernel {
        duration_ns,
        warps: u64::MAX,
    }
}

fn mark(event: u32) -> Command {
    Command::Mark {
        event,
        generation: 1,
    }
}

fn used(path: &Path) -> u64 {
    Gpu::connect_to(path).unwrap().memory(0).used
}

#[test]
fn whoever_only_looks_sees_the_devices_and_holds_nothing() {
    let hardware = Hardware::start("looks", |options| options.devices = 2);
    let gpu = Gpu::connect_to(&hardware.socket()).unwrap();
    let devices = gpu.devices();
    assert_eq!(devices.len(), 2);
    assert_ne!(devices[0].uuid, devices[1].uuid);
    assert_eq!(devices[1].pci_text(), "0000:02:00.0");
    assert_eq!(gpu.memory(0).free, 8 << 30);
    assert_eq!(gpu.driver_version().nvml, "580.65.06");
    assert!(gpu.processes(0).is_empty());
}

#[test]
fn every_profile_can_be_run() {
    for profile in sim::profile::PROFILES {
        let hardware = Hardware::start(profile.word, |options| options.profile = profile);
        let gpu = Gpu::connect_to(&hardware.socket()).unwrap();
        assert_eq!(gpu.memory(0).total, profile.memory_bytes);
        assert_eq!(gpu.devices()[0].name, profile.name);
    }
}

#[test]
fn kernels_take_exactly_their_time_and_events_tell_it() {
    let hardware = Hardware::start("exact", |_| {});
    let client = Compute::connect_to(&hardware.socket()).unwrap();
    let context = client.open_context(0).unwrap();
    let last = stream(&client, context, 0);
    client.submit(0, &last, &[mark(0)]).unwrap();
    for _ in 0..200 {
        client.submit(0, &last, &[kernel(100_000)]).unwrap();
    }
    let end = client.submit(0, &last, &[mark(1)]).unwrap();
    client.wait(|| client.done(0) >= end).unwrap();
    let begun = client.event_time(0, 1).unwrap();
    let ended = client.event_time(1, 1).unwrap();
    assert_eq!(client.gpu().busy_ns(0), 20_000_000);
    assert!(ended - begun >= 20_000_000);
    assert!(ended - begun < 40_000_000, "{} ns", ended - begun);
}

#[test]
fn a_full_queue_makes_the_submission_wait_and_loses_nothing() {
    let hardware = Hardware::start("queue", |_| {});
    let client = Compute::connect_to(&hardware.socket()).unwrap();
    let context = client.open_context(0).unwrap();
    let last = stream(&client, context, 0);
    let mut end = 0;
    for _ in 0..6_000 {
        end = client.submit(0, &last, &[kernel(5_000)]).unwrap();
    }
    client.wait(|| client.done(0) >= end).unwrap();
    assert_eq!(client.gpu().busy_ns(0), 30_000_000);
}

#[test]
fn a_client_that_goes_gives_its_memory_back() {
    let hardware = Hardware::start("goes", |_| {});
    let client = Compute::connect_to(&hardware.socket()).unwrap();
    let context = client.open_context(0).unwrap();
    client.allocate(0, 3 << 30, context).unwrap();
    client.allocate(0, 2 << 30, 0).unwrap();
    assert_eq!(used(&hardware.socket()), 5 << 30);
    assert!(matches!(
        client.allocate(0, 4 << 30, context),
        Err(GpuError::OutOfMemory)
    ));
    let seen = client.gpu().processes(0);
    assert_eq!(seen.len(), 1);
    assert_eq!(seen[0].used_bytes, 5 << 30);
    assert_eq!(seen[0].pid, std::process::id() as i32);
    drop(client);
    eventually(|| used(&hardware.socket()) == 0);
}

#[test]
fn two_busy_clients_share_the_device_and_the_sum_is_exact() {
    let hardware = Hardware::start("share", |_| {});
    let path = hardware.socket();
    let run = |path: PathBuf| {
        std::thread::spawn(move || {
            let client = Compute::connect_to(&path).unwrap();
            let context = client.open_context(0).unwrap();
            let last = stream(&client, context, 0);
            let mut end = 0;
            for _ in 0..100 {
                end = client.submit(0, &last, &[kernel(1_000_000)]).unwrap();
            }
            client.wait(|| client.done(0) >= end).unwrap();
            client
        })
    };
    let clients = [run(path.clone()), run(path.clone())];
    let clients = clients.map(|client| client.join().unwrap());
    assert_eq!(clients[0].gpu().busy_ns(0), 200_000_000);
    let each: Vec<u64> = clients[0]
        .gpu()
        .processes(0)
        .iter()
        .map(|process| process.busy_ns)
        .collect();
    assert_eq!(each.iter().sum::<u64>(), 200_000_000);
}

#[test]
fn a_context_frees_its_linear_memory_and_nobody_waits_for_its_work() {
    let hardware = Hardware::start("context", |options| {
        options.context_overhead_bytes = 64 << 20;
    });
    let client = Compute::connect_to(&hardware.socket()).unwrap();
    let context = client.open_context(0).unwrap();
    let last = stream(&client, context, 0);
    client.allocate(0, 1 << 20, context).unwrap();
    assert_eq!(used(&hardware.socket()), 65 << 20);
    let end = client.submit(0, &last, &[kernel(1 << 60)]).unwrap();
    client.close_context(context).unwrap();
    client.wait(|| client.done(0) >= end).unwrap();
    assert_eq!(used(&hardware.socket()), 0);
}

#[test]
fn a_process_that_goes_away_ends_every_wait() {
    let hardware = Hardware::start("away", |_| {});
    let client = Compute::connect_to(&hardware.socket()).unwrap();
    let context = client.open_context(0).unwrap();
    let last = stream(&client, context, 0);
    let end = client.submit(0, &last, &[kernel(1 << 60)]).unwrap();
    drop(hardware);
    let waited = client.wait(|| client.done(0) >= end);
    assert!(matches!(waited, Err(GpuError::Gone)));
    assert!(client.open_context(0).is_err());
    assert!(client.submit(0, &last, &[kernel(1)]).is_err());
}

#[test]
fn a_second_process_does_not_take_the_socket_of_a_living_one() {
    let hardware = Hardware::start("second", |_| {});
    let options = Options {
        socket: hardware.socket(),
        ..Options::default()
    };
    assert!(matches!(run(options), Err(RunError::InUse(_))));
}

/// Prints how late a host thread learns of the end of a kernel; the computed end is exact anyway.
#[test]
fn a_wake_up_is_late_by_little() {
    let hardware = Hardware::start("late", |_| {});
    let client = Compute::connect_to(&hardware.socket()).unwrap();
    let context = client.open_context(0).unwrap();
    let last = stream(&client, context, 0);
    let mut late = Vec::new();
    for round in 0..200 {
        let commands = [
            kernel(300_000),
            Command::Mark {
                event: 0,
                generation: round + 1,
            },
        ];
        let end = client.submit(0, &last, &commands).unwrap();
        client.wait(|| client.done(0) >= end).unwrap();
        late.push(sim::shared::now_ns() - client.event_time(0, round + 1).unwrap());
    }
    late.sort_unstable();
    println!(
        "late by {} ns (median), {} ns (worst)",
        late[100], late[199]
    );
    assert!(late[100] < 2_000_000);
}
