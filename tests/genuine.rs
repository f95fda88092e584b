//! Held to the real thing: genuine drivers and CUDA runtimes, without a GPU.
//!
//! The genuine `libcuda` answers every look-up before and after a `cuInit` that finds no device, so
//! that what we export and what we hand out is compared with it, call by call. Genuine CUDA
//! runtimes run up to the point where they check the driver; what they answer there must be the
//! same with and without us.

mod support;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::genuine::{self, Genuine};
use support::stepper::number;
use support::{Node, PATIENCE, Program, Stepper, elf, libraries, shim};

/// The driver branches that are looked at.
const BRANCHES: [&str; 3] = ["535", "550", "555"];

/// A stepper on a genuine driver, in front of which we stand.
fn in_front_of(driver: &Genuine) -> Stepper {
    let mut command = Command::new(Program::Stepper.path());
    command
        .env("LD_PRELOAD", shim())
        .env("SLUICE_LIBCUDA", &driver.libcuda)
        .env("SLUICE_LIBNVML", &driver.libnvml)
        .env_remove("SLUICE_SOCKET");
    Stepper::start(&mut command)
}

/// A stepper on a genuine driver and nothing else.
fn alone_on(driver: &Genuine) -> Stepper {
    let mut command = Command::new(Program::Stepper.path());
    command
        .arg("--driver")
        .arg(&driver.libcuda)
        .arg("--nvml")
        .arg(&driver.libnvml)
        .env_remove("LD_PRELOAD");
    Stepper::start(&mut command)
}

/// Writes one name a line into a file that lives as long as `folder`.
fn list(folder: &Path, names: impl IntoIterator<Item = String>) -> PathBuf {
    let path = folder.join("names");
    let names: Vec<String> = names.into_iter().collect();
    std::fs::write(&path, names.join("\n")).expect("a writable folder");
    path
}

/// The driver symbols that the shim hooks, read from its own table.
fn hooked() -> BTreeSet<String> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("shim/src");
    let hooked: BTreeSet<String> = exports::defined_in(&sources)
        .into_iter()
        .filter(|name| name.starts_with("cu"))
        .collect();
    assert!(hooked.contains("cuMemAlloc_v2"), "{hooked:?}");
    hooked
}

#[test]
fn every_symbol_that_a_genuine_driver_exports_is_reached_through_us() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        for (library, prefix) in [(&driver.libcuda, "cu"), (&driver.libnvml, "nvml")] {
            let names = elf::exports(library, prefix);
            assert!(names.len() > 300, "{branch}: {} names", names.len());
            let names = list(folder.path(), names);
            let answer = in_front_of(&driver).ok(&format!("reach {}", names.display()));
            eprintln!("{branch}: {} symbols {prefix}*", answer["count"]);
            assert_eq!(answer["missing"], serde_json::json!([]), "{branch}");
            let files = answer["files"].as_array().expect("a list");
            assert_eq!(files.len(), 1, "{branch}: {files:?}");
            let file = files[0].as_str().expect("a path");
            assert!(file.ends_with("/libsluice.so"), "{branch}: {file}");
        }
    }
}

// C33
#[test]
fn every_look_up_of_a_genuine_driver_gives_our_hook_or_the_drivers_own_answer() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let hooked = list(folder.path(), hooked());
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        let mut program = in_front_of(&driver);
        let step = format!(
            "compare-lookups {} {}",
            driver.libcuda.display(),
            hooked.display()
        );
        for moment in ["before cuInit", "after a cuInit that found no device"] {
            let answer = program.step_within(&step, Duration::from_secs(300));
            eprintln!(
                "{branch}, {moment}: {} look-ups, {} of them of {} hooked symbols",
                answer["count"], answer["swapped"], answer["hooks_seen"]
            );
            assert_eq!(answer["wrong"], serde_json::json!([]), "{branch}, {moment}");
            assert!(number(&answer, "count") > 100_000, "{answer}");
            assert!(number(&answer, "hooks_seen") > 10, "{answer}");
            program.code("init");
        }
    }
}

#[test]
fn without_a_device_a_genuine_driver_answers_what_it_answers_without_us() {
    for branch in BRANCHES {
        let driver = genuine::driver(branch);
        let (mut with, mut without) = (in_front_of(&driver), alone_on(&driver));
        for step in [
            "version",
            "device-count",
            "init",
            "init",
            "device-count",
            "total 0",
            "info",
            "alloc a 1MiB",
            "free 0x1000",
            "error 100",
            "nvml-init",
            "nvml-count",
            "nvml-shutdown",
        ] {
            assert_eq!(with.step(step), without.step(step), "{branch}: \"{step}\"");
        }
        assert_eq!(with.code("init"), 100, "{branch}: CUDA_ERROR_NO_DEVICE");
    }
}

// C38
#[test]
fn genuine_cuda_runtimes_answer_the_same_with_and_without_us() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    for (version, library) in support::wheels::runtimes() {
        let step = format!("cudart {}", library.display());
        let with = tenant.stepper().step(&step);
        let without = node.hardware.stepper().step(&step);
        eprintln!("libcudart {version}: {with}");
        assert_eq!(with, without, "libcudart {version}");
    }
}

#[test]
fn what_runtimes_ask_for_comes_back_as_our_hook_or_as_the_stand_ins_own() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let hooked = list(node.folder(), hooked());
    let libcuda = libraries().join("stand-in/libcuda.so.1");
    let step = format!("compare-lookups {} {}", libcuda.display(), hooked.display());
    let answer = tenant.stepper().step_within(&step, PATIENCE * 10);
    assert_eq!(answer["wrong"], serde_json::json!([]));
    assert!(number(&answer, "hooks_seen") > 10, "{answer}");
}
