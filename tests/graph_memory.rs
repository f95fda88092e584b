//! Memory of graphs under a cap: what a launch takes, what stays, and what is refused.

mod support;

use support::stepper::number;
use support::{GIB, MIB, Node, Setup, Stepper};

/// What the driver has for the graphs of this program on device 0.
#[track_caller]
fn reserved(stepper: &mut Stepper) -> u64 {
    number(&stepper.ok("graph-reserved 0"), "bytes") as u64
}

#[test]
fn a_graph_is_charged_what_the_driver_has_for_it_until_a_trim() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} free", 256 * MIB));
    assert_eq!(node.used("web", 0), 0, "a node has addresses only");
    for _ in 0..3 {
        stepper.ok("graph-launch g");
        stepper.ok("graph-wait");
        assert_eq!(node.used("web", 0), 256 * MIB, "the driver keeps it");
        assert_eq!(node.hardware.truth(0), 256 * MIB);
    }
    assert_eq!(stepper.used(), 256 * MIB);
    stepper.ok("graph-destroy g");
    assert_eq!(node.used("web", 0), 256 * MIB, "also for no graph");
    stepper.ok("graph-trim 0");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn a_graph_in_another_is_charged_as_well_and_refused_over_the_cap() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} nested", 256 * MIB));
    assert_eq!(node.used("web", 0), 0);
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), 256 * MIB);
    assert_eq!(node.hardware.truth(0), 256 * MIB);
    // What is over the cap is known before the driver takes it.
    let answer = stepper.step(&format!("graph-make h 0 {} nested", 1100 * MIB));
    let launched = stepper.step("graph-launch h");
    let codes = [number(&answer, "rc"), number(&launched, "rc")];
    assert!(codes.contains(&2), "{answer} {launched}");
    assert_eq!(node.hardware.truth(0), 256 * MIB);
    assert_eq!(node.used("web", 0), 256 * MIB);
    stepper.ok("graph-destroy g");
    stepper.ok("graph-trim 0");
    assert_eq!(node.used("web", 0), 0);
}

#[test]
fn a_captured_allocation_counts_as_the_graph_s_and_not_as_a_pool_s() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    for symbol in [
        "cuGraphInstantiate",
        "cuGraphInstantiate_v2",
        "cuGraphInstantiateWithFlags",
        "cuGraphInstantiateWithParams",
        "cuGraphInstantiateWithParams_ptsz",
    ] {
        stepper.ok(&format!("graph-capture g {} {symbol}", 64 * MIB));
        // One that is told to upload may have it already.
        let kept = reserved(&mut stepper);
        assert!(kept == 0 || symbol.contains("Params"), "{symbol}: {kept}");
        assert_eq!(node.used("web", 0), kept, "{symbol}");
        stepper.ok("graph-launch g");
        stepper.ok("graph-wait");
        assert_eq!(node.used("web", 0), 64 * MIB, "{symbol}");
        stepper.ok("graph-destroy g");
        stepper.ok("graph-trim 0");
        assert_eq!(node.used("web", 0), 0, "{symbol}");
    }
}

// C67, C68
#[test]
fn beside_a_capture_memory_is_allocated_asked_for_and_refused_without_harm_to_it() {
    let node = Node::start();
    let mut with = node.ready_stepper("web", "1GiB");
    let answer = with.step("graph-beside 64MiB 2GiB");
    assert_eq!(
        (number(&answer, "rc"), &answer["untouched"]),
        (2, &true.into()),
        "{answer}"
    );
    assert_eq!(node.figure("web", 0, "last_refused_bytes"), 2 << 30);
    let mut without = node.hardware.stepper();
    without.ok("init");
    without.ok("context 0");
    let answer = without.step("graph-beside 64MiB 9GiB");
    assert_eq!(number(&answer, "rc"), 2, "{answer}");
}

#[test]
fn an_upload_takes_what_a_launch_takes() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} free", 128 * MIB));
    stepper.ok("graph-upload g");
    let uploaded = reserved(&mut stepper);
    assert_eq!(node.used("web", 0), uploaded);
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), reserved(&mut stepper));
    assert_eq!(node.hardware.truth(0), 128 * MIB);
}

#[test]
fn a_graph_that_can_never_fit_is_refused_when_it_is_made() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.refused(&format!("graph-make g 0 {} free", 2 * GIB));
    assert_eq!(node.figure("web", 0, "oom_refusals"), 1);
    assert_eq!(node.figure("web", 0, "last_refused_bytes"), 2 * GIB);
    stepper.ok(&format!("graph-make g 0 {GIB} free"));
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), GIB);
}

#[test]
fn a_launch_that_does_not_fit_is_refused_and_takes_nothing() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} free", 512 * MIB));
    stepper.ok(&format!("alloc a {}", 600 * MIB));
    assert_eq!(stepper.code("graph-launch g"), 2);
    assert_eq!(node.used("web", 0), 600 * MIB);
    assert_eq!(node.hardware.truth(0), 600 * MIB);
    assert_eq!(node.figure("web", 0, "oom_refusals"), 1);
    stepper.ok("free a");
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), 512 * MIB);
}

#[test]
fn an_allocation_gets_what_graphs_only_keep() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} free", 800 * MIB));
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), 800 * MIB);
    stepper.ok(&format!("alloc a {}", 900 * MIB));
    assert_eq!(node.used("web", 0), 900 * MIB, "no need to refuse");
    assert_eq!(node.figure("web", 0, "oom_refusals"), 0);
    // And the graph takes it back.
    stepper.ok("free a");
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), 800 * MIB);
}

#[test]
fn a_graph_close_to_the_cap_can_be_launched_again_and_again() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} auto", 900 * MIB));
    for _ in 0..20 {
        // Not waited for: the memory of the launch before is in use.
        stepper.ok("graph-launch g");
    }
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), 900 * MIB);
    stepper.ok("graph-free g");
    stepper.ok("graph-wait");
    stepper.ok("graph-trim 0");
    assert_eq!(node.used("web", 0), 0);
}

#[test]
fn what_a_program_frees_itself_stays_charged_until_the_driver_gives_it_back() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 0 {} keep", 300 * MIB));
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    stepper.ok("graph-trim 0");
    assert_eq!(node.used("web", 0), 300 * MIB, "it is in use");
    stepper.ok("graph-free g");
    stepper.ok("graph-wait");
    assert_eq!(node.used("web", 0), reserved(&mut stepper));
    stepper.ok("graph-trim 0");
    assert_eq!(node.used("web", 0), 0);
}

#[test]
fn graphs_are_charged_on_the_device_of_their_nodes() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut stepper = node.ready_stepper("web", "1GiB");
    stepper.ok(&format!("graph-make g 1 {} free", 256 * MIB));
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    assert_eq!((node.used("web", 0), node.used("web", 1)), (0, 256 * MIB));
    assert_eq!(node.hardware.truth(1), 256 * MIB);
    stepper.refused(&format!("graph-make h 1 {} free", 2 * GIB));
}

#[test]
fn a_killed_program_leaves_no_graph_s_memory() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut stepper = tenant.ready_stepper();
    stepper.ok(&format!("graph-make g 0 {} keep", 700 * MIB));
    stepper.ok("graph-launch g");
    stepper.ok("graph-wait");
    stepper.kill();
    let mut next = tenant.ready_stepper();
    next.ok(&format!("alloc a {}", 900 * MIB));
    assert_eq!(node.hardware.truth(0), 900 * MIB);
}
