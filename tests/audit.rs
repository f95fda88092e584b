//! What cannot be held to a cap is seen: memory beside the account, and processes that are no tenant's.

mod support;

use serde_json::Value;
use std::process::Command;
use support::stepper::number;
use support::{GIB, MIB, Node, OUT_OF_MEMORY, PATIENCE, Setup, sluice, succeed};

/// The status's first device.
fn device(status: &Value) -> &Value {
    &status["devices"][0]
}

#[test]
fn the_account_stands_beside_what_the_hardware_says() {
    let node = Node::with(&Setup {
        gpu: vec!["--context-overhead", "300MiB"],
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "2GiB");
    program.ok("alloc a 512MiB");
    assert_eq!(node.figure("web", 0, "memory_used_bytes"), 512 * MIB);
    assert_eq!(node.figure("web", 0, "memory_truth_bytes"), 812 * MIB);
    assert_eq!(node.figure("web", 0, "memory_overhead_bytes"), 300 * MIB);
    assert_eq!(device(&node.status())["strangers"], serde_json::json!([]));
}

#[test]
fn a_process_that_is_no_tenant_s_is_named() {
    let node = Node::start();
    let mut tenant = node.ready_stepper("web", "1GiB");
    tenant.ok("alloc a 64MiB");
    let mut stranger = node.hardware.stepper();
    stranger.ok("init");
    stranger.ok("context 0");
    stranger.ok("alloc a 256MiB");
    assert_eq!(number(&stranger.ok("info"), "total") as u64, 8 * GIB);

    let status = node.status();
    let strangers = device(&status)["strangers"].as_array().expect("a list");
    assert_eq!(strangers.len(), 1, "{status}");
    assert_eq!(strangers[0]["pid"], stranger.pid());
    assert_eq!(strangers[0]["memory_used_bytes"], 256 * MIB);
    let mut command = Command::new(sluice());
    command.args(["status", "--runtime-dir"]).arg(node.folder());
    let table = succeed(&mut command, PATIENCE);
    assert!(table.contains("NO TENANT'S"), "{table}");
    stranger.quit();
    assert_eq!(device(&node.status())["strangers"], serde_json::json!([]));
}

// C80
#[test]
fn what_nvml_does_not_say_is_shown_as_unknown_and_never_as_nothing() {
    let mut node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc a 64MiB");
    node.kill_daemon();
    node.start_daemon_with(&[(
        "SLUICE_SIM_FAULTS",
        "nvmlDeviceGetComputeRunningProcesses_v3=999",
    )]);
    support::eventually("the program is back", PATIENCE, || {
        let tenant = node.tenant_status("web")?;
        (tenant["processes"].as_array()?.len() == 1).then_some(())
    });
    let tenant = node.tenant_status("web").expect("a tenant");
    assert_eq!(tenant["devices"][0]["memory_truth_bytes"], Value::Null);
    assert_eq!(tenant["devices"][0]["memory_overhead_bytes"], Value::Null);
    let status = node.status();
    assert_eq!(status["audit"]["is_stale"], false, "{status}");
    assert_eq!(device(&status)["memory_used_bytes"], 64 * MIB);
}

#[test]
fn an_nvml_that_hangs_leaves_no_old_number_standing() {
    let mut node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc a 64MiB");
    node.kill_daemon();
    // A look asks twice, for the number and for the list: the second look never ends.
    node.start_daemon_with(&[(
        "SLUICE_SIM_FAULTS",
        "nvmlDeviceGetComputeRunningProcesses_v3@3+forever",
    )]);
    let begin = std::time::Instant::now();
    let mut looks = 0;
    support::eventually("the numbers are stale", PATIENCE, || {
        looks += 1;
        (node.status()["audit"]["is_stale"] == true).then_some(())
    });
    assert!(begin.elapsed() < PATIENCE && looks > 1);
    let tenant = node.tenant_status("web").expect("a tenant");
    assert_eq!(tenant["devices"][0]["memory_truth_bytes"], Value::Null);
    // Caps and accounts do not need NVML.
    program.ok("alloc b 64MiB");
    assert_eq!(node.used("web", 0), 128 * MIB);
}

// M1, C44
// C21
#[test]
fn what_no_allocation_explains_is_taken_from_the_cap_in_every_view() {
    let node = Node::with(&Setup {
        gpu: vec!["--context-overhead", "300MiB"],
        ..Setup::default()
    });
    let tenant = node.tenant("web", "1GiB");
    let mut program = tenant.ready_stepper();
    let free_is = |program: &mut support::Stepper, mib: u64| {
        support::eventually(&format!("{mib} MiB are free"), PATIENCE, || {
            (program.info() == (mib * MIB, GIB)).then_some(())
        });
    };
    free_is(&mut program, 724);
    program.ok("nvml-init");
    let memory = program.ok("nvml-memory 0");
    assert_eq!(number(&memory, "used") as u64, 300 * MIB);
    assert_eq!(number(&memory, "total") as u64, GIB);
    assert_eq!(node.figure("web", 0, "memory_set_aside_bytes"), 300 * MIB);
    program.refused("alloc a 725MiB");
    program.ok("alloc a 724MiB");
    program.refused("alloc b 512");
    program.ok("free a");
    // A second process takes its own context's memory with it, and gives it back.
    let mut second = tenant.ready_stepper();
    free_is(&mut second, 424);
    program.refused("alloc a 500MiB");
    second.quit();
    free_is(&mut program, 724);
    program.ok("alloc a 724MiB");
    assert!(node.hardware.truth(0) <= GIB);
}

// C107
#[test]
fn what_a_limit_of_a_context_takes_is_taken_from_the_cap() {
    // `CU_LIMIT_MALLOC_HEAP_SIZE`, 8 MiB at first; `CU_LIMIT_STACK_SIZE`, for every thread there can be.
    const HEAP: u32 = 2;
    const STACK: u32 = 0;
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok(&format!("context-limit {HEAP} 208MiB"));
    let free_is = |program: &mut support::Stepper, mib: u64| {
        support::eventually(&format!("{mib} MiB are free"), PATIENCE, || {
            (program.info() == (mib * MIB, GIB)).then_some(())
        });
    };
    free_is(&mut program, 824);
    assert_eq!(node.figure("web", 0, "memory_overhead_bytes"), 200 * MIB);
    program.refused("alloc a 825MiB");
    // 16 multiprocessors of 2048 threads, 1 KiB more for each.
    program.ok(&format!("context-limit {STACK} 2048"));
    free_is(&mut program, 792);
    assert_eq!(
        program.code(&format!("context-limit {HEAP} 16GiB")),
        OUT_OF_MEMORY
    );
    program.ok(&format!("context-limit {HEAP} 8MiB"));
    free_is(&mut program, 992);
    program.ok("context-release 0");
    assert_eq!(node.hardware.truth(0), 0);
}

// C23
#[test]
fn a_cap_below_what_the_driver_takes_shows_nothing_free_and_adds_up() {
    let node = Node::with(&Setup {
        gpu: vec!["--context-overhead", "345MiB"],
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "300MiB");
    support::eventually("nothing is free", PATIENCE, || {
        (program.info() == (0, 300 * MIB)).then_some(())
    });
    program.ok("nvml-init");
    for step in ["nvml-memory 0", "nvml-memory-v2 0"] {
        let memory = program.ok(step);
        let figures = ["total", "used", "free"].map(|key| number(&memory, key) as u64);
        assert_eq!(figures, [300 * MIB, 300 * MIB, 0], "{step}");
    }
    program.refused("alloc a 1");
    assert_eq!(node.figure("web", 0, "memory_set_aside_bytes"), 345 * MIB);
}

// C107
#[test]
fn a_context_too_many_is_refused() {
    let node = Node::with(&Setup {
        gpu: vec!["--context-overhead", "100MiB"],
        ..Setup::default()
    });
    let tenant = node.tenant("web", "250MiB");
    let start = || {
        let mut program = tenant.stepper();
        program.ok("init");
        program
    };
    let set_aside = |mib: u64| {
        support::eventually(&format!("{mib} MiB are set aside"), PATIENCE, || {
            let bytes = node.figure("web", 0, "memory_set_aside_bytes");
            (bytes == mib * MIB).then_some(())
        });
    };
    // The third is more than the cap allows, which is known when it is there.
    let mut programs: Vec<support::Stepper> = (1..=3)
        .map(|count| {
            let mut program = start();
            program.ok("context 0");
            set_aside(count * 100);
            program
        })
        .collect();
    for way in ["context 0", "context-create own 0"] {
        let mut next = start();
        assert_eq!(next.code(way), OUT_OF_MEMORY, "{way}");
    }
    assert_eq!(node.figure("web", 0, "memory_truth_bytes"), 300 * MIB);
    // One more use of the context that there is takes nothing.
    programs[0].ok("context 0");
    programs.pop();
    set_aside(200);
    start().ok("context 0");
}

// C23
#[test]
fn who_holds_more_than_a_cap_that_was_lowered_is_marked_until_it_does_no_more() {
    let node = Node::with(&Setup {
        gpu: vec!["--context-overhead", "100MiB"],
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "1GiB");
    let is_over = |node: &Node| {
        let tenant = node.tenant_status("web").expect("a tenant");
        tenant["devices"][0]["is_over_limit"] == true
    };
    support::eventually("the context is set aside", PATIENCE, || {
        (program.info() == (924 * MIB, GIB)).then_some(())
    });
    program.ok("alloc a 600MiB");
    assert!(!is_over(&node));
    assert!(!node.sluice(&["status"]).1.contains("(over)"));
    // 600 and 100 MiB are more than 650.
    node.set_memory("web", "650MiB");
    assert!(is_over(&node));
    assert!(node.sluice(&["status"]).1.contains("600 MiB (over)"));
    assert_eq!(program.info(), (0, 650 * MIB));
    program.ok("nvml-init");
    for step in ["nvml-memory 0", "nvml-memory-v2 0"] {
        let memory = program.ok(step);
        let figures = ["total", "used", "free"].map(|key| number(&memory, key) as u64);
        assert_eq!(figures, [650 * MIB, 650 * MIB, 0], "{step}");
    }
    program.refused("alloc b 1");
    node.set_memory("web", "700MiB");
    assert!(!is_over(&node));
}
