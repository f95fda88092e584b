//! What the whole-system tests stand on: a node with a stand-in GPU and a daemon, and the programs
//! that run on it.
//!
//! Everything is a real process: [`StandIn`] is a `gpu` process, [`Node`] adds a daemon in a
//! runtime folder of its own, [`Tenant`] is what `sluice run` registers, [`Stepper`] a CUDA program
//! that does what it is told. Each is ended, by its own pid, when its value is dropped. Every wait
//! has a bound, and says what it waited for when it is over.

#![allow(
    dead_code,
    unused_imports,
    unreachable_pub,
    reason = "every test program takes its own part of this module"
)]

pub mod client;
pub mod control_group;
pub mod elf;
pub mod genuine;
pub mod node;
pub mod once;
pub mod python;
pub mod stepper;
pub mod wheels;

pub use client::Program;
pub use control_group::ControlGroup;
pub use node::{Node, Setup, StandIn, Tenant};
pub use stepper::Stepper;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// Bytes in a GiB.
pub const GIB: u64 = 1 << 30;

/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub const OUT_OF_MEMORY: i64 = 2;

/// How long anything may take that normally takes milliseconds, on a machine that does other
/// things as well.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The program under test.
pub fn sluice() -> PathBuf {
    PathBuf::from(env!("CARGO_BIN_EXE_sluice"))
}

/// The folder of libraries that the build made.
pub fn libraries() -> PathBuf {
    PathBuf::from(env!("SLUICE_LIBRARIES"))
}

/// The preloaded library.
pub fn shim() -> PathBuf {
    libraries().join("libsluice.so")
}

/// The folder of the stand-in's client libraries.
pub fn stand_in() -> PathBuf {
    libraries().join("stand-in")
}

/// Where tests keep what they make or fetch once.
pub fn kept(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("target")
        .join(name)
}

/// Waits until `holds` gives a value, and returns it.
///
/// # Panics
/// With `what`, when `bound` is over.
#[track_caller]
pub fn eventually<T>(what: &str, bound: Duration, mut holds: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(value) = holds() {
            return value;
        }
        assert!(begin.elapsed() < bound, "not within {bound:?}: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Holds back the other tests of the same file: what is measured in time needs the machine for itself, as
/// far as a test can have it.
pub fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    // One that failed has nothing to hide from the others.
    ONE.lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// Runs `command` to its end and returns what it printed.
///
/// # Panics
/// When it cannot be started, or runs longer than `bound`.
#[track_caller]
pub fn finish(command: &mut Command, bound: Duration) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?} cannot be started: {error}"));
    let pid = child.id();
    let (done, ended) = std::sync::mpsc::channel();
    let waiting = std::thread::spawn(move || {
        let output = child.wait_with_output();
        _ = done.send(());
        output
    });
    if ended.recv_timeout(bound).is_err() {
        kill(pid);
        let output = waiting.join().expect("the waiting thread cannot panic");
        panic!("{command:?} ran longer than {bound:?}: {output:?}");
    }
    waiting
        .join()
        .expect("the waiting thread cannot panic")
        .expect("a started program can be waited for")
}

/// As [`finish`], for a program that must succeed; returns its standard output.
#[track_caller]
pub fn succeed(command: &mut Command, bound: Duration) -> String {
    let output = finish(command, bound);
    assert!(
        output.status.success(),
        "{command:?} ended with {}\n{}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    String::from_utf8(output.stdout).expect("text")
}

/// `kill -9` for a process that this test started.
pub fn kill(pid: u32) {
    signal(pid, libc::SIGKILL);
}

/// Sends `signal` to a process that this test started.
pub fn signal(pid: u32, signal: i32) {
    // SAFETY: no memory is involved; the pid is that of a process of this test.
    unsafe { libc::kill(pid as libc::pid_t, signal) };
}
