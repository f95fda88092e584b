//! Memory that processes share is charged once, to whoever made it.

mod support;

use support::stepper::number;
use support::{MIB, Node, PATIENCE, eventually};

#[track_caller]
fn wait_for_truth(node: &Node, bytes: u64) {
    eventually(
        "the hardware has seen the last descriptor close",
        PATIENCE,
        || (node.hardware.truth(0) == bytes).then_some(()),
    );
}

#[test]
fn a_descriptor_that_is_open_here_keeps_the_charge() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "8MiB");
    program.ok("share-create h 8MiB");
    program.ok("share-export file h");
    program.ok("release h");
    assert_eq!(node.hardware.truth(0), 8 * MIB);
    assert_eq!(program.used(), 8 * MIB, "the descriptor is open");
    program.refused("create other 2MiB device 0");
    program.ok("share-import again file");
    program.ok("share-close file");
    assert_eq!(program.used(), 8 * MIB, "the second handle holds it");
    program.ok("release again");
    wait_for_truth(&node, 0);
    assert_eq!(program.used(), 0);
    assert_eq!(node.used("web", 0), 0);
}

#[test]
fn what_a_closed_descriptor_held_can_be_had_again_without_asking_first() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "8MiB");
    program.ok("share-create h 8MiB");
    program.ok("share-export file h");
    program.ok("release h");
    program.ok("share-close file");
    wait_for_truth(&node, 0);
    program.ok("alloc a 8MiB");
    assert_eq!(node.used("web", 0), 8 * MIB);
    assert_eq!(node.figure("web", 0, "oom_refusals"), 0);
}

#[test]
fn physical_memory_of_another_tenant_is_charged_to_its_maker_alone() {
    let node = Node::start();
    let mut maker = node.ready_stepper("maker", "8MiB");
    let mut taker = node.ready_stepper("taker", "2MiB");
    maker.ok("share-create h 8MiB");
    let file = number(&maker.ok("share-export file h"), "file");
    let pid = number(&maker.step("pid"), "pid");
    taker.ok(&format!("share-fetch file {pid} {file}"));
    taker.ok("share-import h file");
    taker.ok("share-close file");
    taker.ok("reserve va 8MiB");
    taker.ok("map va 0 h 8MiB");
    taker.ok("access va 0 8MiB 0");
    taker.ok("fill va 90 4096");
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (8 * MIB, 0));
    assert_eq!(node.hardware.truth(0), 8 * MIB);
    taker.ok("release h");
    taker.ok("unmap va 0 8MiB");
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (8 * MIB, 0));
    maker.ok("share-close file");
    maker.ok("release h");
    wait_for_truth(&node, 0);
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (0, 0));
}

// C08
#[test]
fn external_memory_is_mapped_and_freed_by_the_driver_s_own_word_and_charged_to_its_maker() {
    let node = Node::start();
    let mut maker = node.ready_stepper("maker", "64MiB");
    let mut taker = node.ready_stepper("taker", "2MiB");
    maker.ok("share-create h 64MiB");
    let file = number(&maker.ok("share-export file h"), "file");
    let pid = number(&maker.step("pid"), "pid");
    taker.ok(&format!("share-fetch file {pid} {file}"));
    taker.ok("share-external buffer file 64MiB");
    taker.ok("fill buffer 7 1MiB");
    assert_eq!(
        (node.used("maker", 0), node.used("taker", 0)),
        (64 * MIB, 0)
    );
    // It never was an allocation of ours, and the driver frees it.
    taker.ok("free buffer");
    taker.ok("share-external-end buffer");
    assert_eq!(
        (node.used("maker", 0), node.used("taker", 0)),
        (64 * MIB, 0)
    );
    taker.ok("alloc a 2MiB");
    taker.refused("alloc b 1");
    maker.ok("share-close file");
    maker.ok("release h");
    wait_for_truth(&node, 2 * MIB);
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (0, 2 * MIB));
}

#[test]
fn linear_memory_of_another_process_is_charged_to_its_maker_alone() {
    let node = Node::start();
    let mut maker = node.ready_stepper("maker", "8MiB");
    let mut taker = node.ready_stepper("taker", "2MiB");
    maker.ok("alloc a 8MiB");
    maker.ok("fill a 77 4096");
    // A fill need not have been done when its call returns, and nothing orders it before another process.
    maker.ok("synchronize");
    let handle = maker.ok("share-ipc a")["handle"].clone();
    let handle = handle.as_str().expect("digits");
    taker.ok(&format!("share-ipc-open a {handle}"));
    assert_eq!(number(&taker.ok("read a"), "byte"), 77);
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (8 * MIB, 0));
    assert_ne!(
        taker.code("free a"),
        0,
        "what was opened is closed, not freed"
    );
    taker.ok("share-ipc-close a");
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (8 * MIB, 0));
    maker.ok("free a");
    assert_eq!((node.used("maker", 0), node.used("taker", 0)), (0, 0));
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn a_refusal_of_a_handle_is_the_drivers_own() {
    let node = Node::start();
    let mut with = node.ready_stepper("web", "8MiB");
    let mut without = node.hardware.stepper();
    without.ok("init");
    without.ok("context 0");
    for step in [
        "share-export file 0x1234",
        "share-import h 0",
        "share-import h 9999",
        "share-ipc 0x1000",
        &format!("share-ipc-open a {}", "0".repeat(128)),
        "share-ipc-close 0x1000",
    ] {
        assert_eq!(with.code(step), without.code(step), "\"{step}\"");
        assert_ne!(with.code(step), 0, "\"{step}\"");
    }
    assert_eq!(node.used("web", 0), 0);
}
