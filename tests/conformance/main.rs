//! Any driver answers what NVIDIA's documents say, and Sluice in front of it changes nothing of that.
//!
//! A family of functions is played in a process of its own, twice: on the driver alone, and under
//! `sluice run` with a cap of the whole device. Both must be as documented, and both the same.
//! The driver is the one that `SLUICE_LIBCUDA` names or that the loader finds, if it has a device;
//! else the stand-in. What a driver is free to choose is not checked, so that the same checks hold a
//! GPU, the stand-in and us.

#[path = "../support/mod.rs"]
mod support;

#[macro_use]
mod check;
mod arrays;
mod captures;
mod checkpoints;
mod contexts;
mod copies;
mod devices;
mod errors;
mod forks;
mod graphs;
mod host;
mod kernels;
mod linear;
mod lookups;
mod physical;
mod pools;
mod sharing;
mod streams;
mod tools;
mod values;

use check::{CHECK, Checks, DONE};
use std::ffi::OsString;
use std::process::Command;
use std::sync::OnceLock;
use support::{Node, PATIENCE, Setup, StandIn, finish};

/// Says to [`plays_a_family`] which one.
const FAMILY: &str = "SLUICE_CONFORMANCE_FAMILY";
/// Says to [`plays_a_family`] which library is the driver.
const DRIVER: &str = "SLUICE_CONFORMANCE_DRIVER";

/// The two tests of each family: `tests::<family>::...`.
macro_rules! families {
    ($($family:ident),* $(,)?) => {
        fn family(name: &str) -> Option<fn(&Checks)> {
            match name {
                $(stringify!($family) => Some($family::play),)*
                _ => None,
            }
        }

        mod tests {
            $(mod $family {
                #[test]
                fn are_as_documented_on_the_driver() {
                    crate::on_the_driver(stringify!($family));
                }

                #[test]
                fn are_the_same_under_sluice() {
                    crate::under_sluice(stringify!($family));
                }
            })*
        }
    };
}

families! {
    arrays, captures, checkpoints, contexts, copies, devices, errors, forks, graphs, host, kernels, linear, lookups,
    physical, pools, sharing, streams, values,
}

/// The child's part: one family, on the driver that the environment names.
#[test]
#[ignore = "played by the others, in a process of its own"]
fn plays_a_family() {
    let Ok(name) = std::env::var(FAMILY) else {
        return;
    };
    let driver = std::env::var(DRIVER).expect("the parent says it");
    let checks = Checks::open(&driver).expect("the driver can be opened");
    if name == "probe" {
        let mut count = 0;
        let code = call!(checks, cuInit(0));
        let counted = call!(checks, cuDeviceGetCount(&mut count));
        checks.is("devices", code.0 == 0 && counted.0 == 0 && count > 0, true);
    } else {
        family(&name).expect("a family")(&checks);
    }
    assert!(checks.finish(), "not as documented");
}

/// Names a driver with a device, if the machine has one.
fn genuine() -> Option<&'static OsString> {
    static FOUND: OnceLock<Option<OsString>> = OnceLock::new();
    let find = || {
        let named = std::env::var_os("SLUICE_LIBCUDA");
        let driver = named.unwrap_or_else(|| "libcuda.so.1".into());
        let mut command = Command::new(myself());
        command.env_remove("LD_PRELOAD");
        play(&mut command, "probe", &driver).ok().map(|_| driver)
    };
    FOUND.get_or_init(find).as_ref()
}

/// A family on the driver alone; its record.
fn on_the_driver(name: &str) -> Vec<String> {
    let record = match genuine() {
        Some(driver) => play(
            Command::new(myself()).env_remove("LD_PRELOAD"),
            name,
            driver,
        ),
        None => {
            let hardware = StandIn::start(&Setup::default());
            play(
                &mut hardware.command(myself()),
                name,
                &"libcuda.so.1".into(),
            )
        }
    };
    told(name, "on the driver", record)
}

/// A family under Sluice; its record must be that of the driver alone.
fn under_sluice(name: &str) {
    let alone = on_the_driver(name);
    let genuine = genuine().is_some();
    let node = Node::with(&Setup {
        driver: if genuine { "real" } else { "stand-in" },
        ..Setup::default()
    });
    let mut run = node.run("whole", "100%");
    run.arg(myself());
    let record = play(&mut run, name, &"libcuda.so.1".into());
    let under = told(name, "under Sluice", record);
    let pairs = alone.iter().zip(&under);
    let different: Vec<_> = pairs.filter(|(alone, under)| alone != under).collect();
    assert!(different.is_empty(), "{name}: {different:#?}");
    assert_eq!(alone.len(), under.len(), "{name}");
}

/// Plays a family with `command` to its end; its record, or all that it said if it failed.
fn play(command: &mut Command, name: &str, driver: &OsString) -> Result<Vec<String>, String> {
    command.args(["plays_a_family", "--exact", "--ignored", "--nocapture"]);
    command.arg("--test-threads=1");
    command.env(FAMILY, name).env(DRIVER, driver);
    let output = finish(command, 3 * PATIENCE);
    let said = String::from_utf8_lossy(&output.stdout);
    let kept = |line: &&str| line.starts_with(CHECK) || line.starts_with(DONE);
    let record: Vec<String> = said.lines().filter(kept).map(str::to_owned).collect();
    let is_complete = record.last().is_some_and(|line| line.starts_with(DONE));
    if output.status.success() && is_complete {
        return Ok(record);
    }
    let wrong = |line: &&String| line.contains("WRONG");
    let wrong: Vec<&String> = record.iter().filter(wrong).collect();
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(format!("{}: {wrong:#?}\n{reason}", output.status))
}

#[track_caller]
fn told(name: &str, place: &str, record: Result<Vec<String>, String>) -> Vec<String> {
    let record = record.unwrap_or_else(|reason| panic!("{name} {place}: {reason}"));
    let last = record.last().expect("a record has a last line");
    println!("{name} {place}: {last}");
    record
}

fn myself() -> std::path::PathBuf {
    std::env::current_exe().expect("a running program has a file")
}
