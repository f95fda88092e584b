//! Every view agrees: whoever asks for the size of the GPU is told the cap.

mod support;

use serde_json::Value;
use std::process::Command;
use support::stepper::number;
use support::{GIB, MIB, Node, PATIENCE, Program, Setup, Stepper, python, succeed};

/// What a process sees of device `device`: total and used by each way to ask.
#[track_caller]
fn views(program: &mut Stepper, device: u32) -> Vec<(String, u64, u64)> {
    let mut seen = Vec::new();
    for step in ["info".to_owned(), "info-v1".to_owned()] {
        let answer = program.ok(&step);
        let (free, total) = (number(&answer, "free"), number(&answer, "total"));
        seen.push((step, total as u64, (total - free) as u64));
    }
    for step in ["nvml-memory", "nvml-memory-v2"] {
        let step = format!("{step} {device}");
        let answer = program.ok(&step);
        let used = number(&answer, "used") as u64;
        let (free, total) = (number(&answer, "free"), number(&answer, "total"));
        let reserved = answer["reserved"].as_u64().unwrap_or(0);
        assert!(
            free as u64 + used == total as u64 || free as u64 + used + reserved == total as u64,
            "{step} adds up: {answer}"
        );
        seen.push((step, total as u64, used));
    }
    seen
}

// C26
#[test]
fn all_ways_to_ask_for_the_memory_agree_with_the_cap_and_with_one_another() {
    let node = Node::start();
    let tenant = node.tenant("web", "3GiB");
    let mut program = tenant.ready_stepper();
    program.ok("nvml-init");
    let mut sibling = tenant.ready_stepper();
    for held in [0, GIB] {
        if held > 0 {
            sibling.ok("alloc a 1GiB");
        }
        for (step, total, used) in views(&mut program, 0) {
            assert_eq!(total, 3 * GIB, "{step}");
            assert_eq!(used, held, "{step}");
        }
        for step in ["total 0", "total-v1 0"] {
            let total = number(&program.ok(step), "total") as u64;
            assert_eq!(total, 3 * GIB, "{step}");
        }
    }
}

#[test]
fn each_device_shows_its_own_cap() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "0:1GiB,1:512MiB");
    program.ok("nvml-init");
    for (device, cap) in [(0, GIB), (1, 512 * MIB)] {
        program.ok(&format!("context {device}"));
        program.ok(&format!("alloc on{device} 100MiB"));
        let totals = [format!("total {device}"), format!("total-v1 {device}")];
        for step in totals {
            assert_eq!(number(&program.ok(&step), "total") as u64, cap, "{step}");
        }
        for (step, total, used) in views(&mut program, device) {
            assert_eq!(total, cap, "{step}");
            assert_eq!(used, 100 * MIB, "{step}");
        }
    }
}

// C81
#[test]
fn what_neighbours_use_is_nobody_elses_business() {
    let node = Node::start();
    let mut web = node.ready_stepper("web", "2GiB");
    let mut batch = node.ready_stepper("batch", "4GiB");
    batch.ok("alloc a 4GiB");
    assert_eq!(web.info(), (2 * GIB, 2 * GIB));
    web.ok("nvml-init");
    for (step, total, used) in views(&mut web, 0) {
        assert_eq!((total, used), (2 * GIB, 0), "{step}");
    }
}

#[test]
fn the_identity_of_a_device_is_never_changed() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut with = node.ready_stepper("web", "1GiB");
    let mut without = node.hardware.stepper();
    without.ok("init");
    for program in [&mut with, &mut without] {
        program.ok("nvml-init");
    }
    for step in [
        "version",
        "device-count",
        "uuid 0",
        "uuid 1",
        "nvml-count",
        "nvml-uuid 0",
        "nvml-uuid 1",
    ] {
        assert_eq!(with.ok(step), without.ok(step), "{step}");
    }
}

#[test]
fn a_monitor_that_never_calls_cuda_sees_the_cap_and_takes_no_part() {
    let node = Node::start();
    let tenant = node.tenant("web", "3GiB");
    let mut holder = tenant.ready_stepper();
    holder.ok("alloc a 1GiB");
    let seen = support::succeed(&mut tenant.command(Program::NvmlWrapper.path()), PATIENCE);
    assert_eq!(seen.trim(), format!("{} {GIB} {}", 3 * GIB, 2 * GIB));
    let mut monitor = tenant.stepper();
    monitor.ok("nvml-init");
    let status = node.tenant_status("web").expect("it lives");
    assert_eq!(
        status["processes"].as_array().map(Vec::len),
        Some(1),
        "who only looks is no client: {status}"
    );
    holder.ok("alloc b 1GiB");
    let seen = monitor.ok("nvml-memory 0");
    assert_eq!(number(&seen, "used") as u64, 2 * GIB);
}

// C79, C81
#[test]
fn a_tenant_sees_its_own_processes_and_nobody_else_s() {
    let node = Node::start();
    let web = node.tenant("web", "1GiB");
    let mut own = web.ready_stepper();
    own.ok("alloc a 64MiB");
    let mut other = node.ready_stepper("batch", "1GiB");
    other.ok("alloc a 64MiB");
    let mut both = [own.pid(), other.pid()];
    both.sort_unstable();

    let script = python::script("ml_py_processes.py");
    let list = |command: &mut Command| -> Value {
        let printed = succeed(command.arg(&script), PATIENCE);
        serde_json::from_str(&printed).expect("the script prints JSON")
    };
    let inside = list(&mut web.command(python::interpreter()));
    let outside = list(&mut node.hardware.command(python::interpreter()));
    let forms = [
        "v1",
        "v2",
        "v3",
        "detail",
        "utilization",
        "utilization info",
    ];
    for form in forms {
        assert_eq!(inside[form], serde_json::json!([own.pid()]), "{form}");
        assert_eq!(outside[form], serde_json::json!(both), "{form}");
    }
}
