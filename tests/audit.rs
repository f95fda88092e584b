//! What cannot be held to a cap is seen: memory beside the account, and processes that are no tenant's.

mod support;

use serde_json::Value;
use std::process::Command;
use support::stepper::number;
use support::{GIB, MIB, Node, PATIENCE, Setup, sluice, succeed};

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
