//! Real CUDA and NVML programs, unmodified: each on the stand-in alone, and under a cap.

mod support;

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use support::{GIB, MIB, Node, Program, finish, libraries, python, stand_in, succeed};

/// Importing and compiling takes its time on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// The cap of whoever has one.
const CAP: u64 = 3 * GIB;

/// The size of the device.
const DEVICE: u64 = 8 * GIB;

/// Runs what `program` makes, once on the bare stand-in and once under [`CAP`]; calls `check` with
/// what it printed and the size that it must have seen.
fn with_and_without(
    program: impl Fn(&mut Command),
    path: std::path::PathBuf,
    check: impl Fn(&str, u64),
) {
    let node = Node::start();
    let mut without = node.hardware.command(&path);
    program(&mut without);
    check(&succeed(&mut without, BOUND), DEVICE);
    let tenant = node.tenant("web", "3GiB");
    let mut with = tenant.command(&path);
    program(&mut with);
    check(&succeed(&mut with, BOUND), CAP);
    assert_eq!(node.hardware.truth(0), 0, "nothing is left behind");
    assert_eq!(node.used("web", 0), 0);
}

/// The last line of what a program printed, as JSON.
fn json(printed: &str) -> Value {
    let line = printed.lines().last().expect("it printed something");
    serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {printed}"))
}

#[test]
fn cuda_bindings_run_and_see_the_cap() {
    let spin = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/client/src/spin.ptx");
    with_and_without(
        |command| {
            command
                .arg(python::script("cuda_bindings_driver.py"))
                .arg(spin);
        },
        python::interpreter(),
        |printed, size| {
            let seen = json(printed);
            assert_eq!(seen["total"], size, "{seen}");
            assert_eq!(seen["device_total"], size, "{seen}");
            assert_eq!(seen["free"], size, "{seen}");
            assert_eq!(seen["used_while_held"], 64 * MIB, "{seen}");
            assert_eq!(seen["used_at_the_end"], 0, "{seen}");
            for truth in [
                "memset_read_back",
                "copy_read_back",
                "mapped_read_back",
                "refused_as_out_of_memory",
                "second_half_refused",
            ] {
                assert_eq!(seen[truth], true, "{truth}: {seen}");
            }
            assert!(seen["kernel_ms"].as_f64() >= Some(2.0), "{seen}");
        },
    );
}

#[test]
fn numba_compiles_launches_and_sees_the_cap() {
    with_and_without(
        |command| {
            command.arg(python::script("numba_jit.py"));
        },
        python::interpreter(),
        |printed, size| {
            let seen = json(printed);
            assert_eq!(seen["total"], size, "{seen}");
            assert_eq!(seen["launched"], true, "{seen}");
            assert_eq!(seen["copy_read_back"], true, "{seen}");
            assert_eq!(seen["refused"], true, "{seen}");
        },
    );
}

#[test]
fn tinygrad_runs_kernels_and_graphs_and_sees_the_cap() {
    with_and_without(
        |command| {
            command.arg(python::script("tinygrad_cuda.py"));
            command.env("DEV", "CUDA:PTX");
            // It looks for a file, and in a container ours lies where the driver's was.
            let mut set = command.get_envs();
            let is_capped = set.any(|(name, value)| name == "LD_PRELOAD" && value.is_some());
            let library = match is_capped {
                true => libraries().join("libsluice-cuda-1.so"),
                false => stand_in().join("libcuda.so.1"),
            };
            command.env("CUDA_PATH", library);
            // What it has compiled it keeps in a cache, which is to be nobody else's.
            command.env("CACHELEVEL", "0");
        },
        python::interpreter(),
        |printed, size| {
            let seen = json(printed);
            assert_eq!(seen["total"], size, "{seen}");
            assert_eq!(seen["copy_read_back"], true, "{seen}");
            assert_eq!(seen["refused"], true, "{seen}");
            assert!(seen["graph_launches"].as_u64() >= Some(2), "{seen}");
        },
    );
}

// C78, C109
#[test]
fn nvidia_ml_py_sees_the_cap_in_both_forms() {
    with_and_without(
        |command| {
            command.arg(python::script("ml_py_memory.py"));
        },
        python::interpreter(),
        |printed, size| {
            let seen = &json(printed)[0];
            assert_eq!(seen["total"], size, "{seen}");
            assert_eq!(seen["v2_total"], size, "{seen}");
            assert_eq!(seen["free"], size, "{seen}");
            assert_eq!(seen["used"], 0, "{seen}");
        },
    );
}

// C109
#[test]
fn gpustat_shows_the_cap_as_the_size() {
    with_and_without(
        |command| {
            command.arg("--json");
        },
        python::tool("gpustat"),
        |printed, size| {
            let seen: Value = serde_json::from_str(printed).expect("gpustat prints JSON");
            let gpu = &seen["gpus"][0];
            assert_eq!(gpu["memory.total"], size / MIB, "{seen}");
            assert_eq!(gpu["memory.used"], 0, "{seen}");
        },
    );
}

// C109
#[test]
fn nvitop_shows_the_cap_as_the_size() {
    with_and_without(
        |command| {
            command
                .args(["--once", "--no-unicode", "--ascii"])
                .env("TERM", "dumb");
            command.env("COLUMNS", "120").env("LINES", "50");
        },
        python::tool("nvitop"),
        |printed, size| {
            let size = match size {
                CAP => "3072MiB",
                _ => "8192MiB",
            };
            assert!(printed.contains(size), "no {size} in:\n{printed}");
        },
    );
}

#[test]
fn cudarc_runs_and_sees_the_cap() {
    with_and_without(
        |_| (),
        Program::Cudarc.path(),
        |printed, size| assert_eq!(printed.trim(), format!("{size} {size} true true")),
    );
}

#[test]
fn nvml_wrapper_sees_the_cap() {
    with_and_without(
        |_| (),
        Program::NvmlWrapper.path(),
        |printed, size| assert_eq!(printed.trim(), format!("{size} 0 {size}")),
    );
}

#[test]
fn two_programs_of_different_kinds_share_one_cap() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut holder = tenant.ready_stepper();
    holder.ok("alloc a 512MiB");
    let printed = succeed(&mut tenant.command(Program::Cudarc.path()), BOUND);
    let expected = format!("{GIB} {} true true", 512 * MIB);
    assert_eq!(printed.trim(), expected);
}

// C97
#[test]
fn a_program_that_runs_well_hears_nothing_from_us() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    for program in [Program::Cudarc, Program::NvmlWrapper] {
        let output = finish(&mut tenant.command(program.path()), BOUND);
        assert!(output.status.success(), "{output:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{program:?}");
        assert_eq!(
            output.stdout.iter().filter(|byte| **byte == b'\n').count(),
            1
        );
    }
}
