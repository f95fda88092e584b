//! Stream-ordered pools count against the cap by what they reserve, whatever the application does with it.

mod support;

use std::time::Duration;
use support::stepper::number;
use support::{GIB, MIB, Node, Setup, Stepper};

fn reserved(program: &mut Stepper, pool: &str) -> u64 {
    number(&program.ok(&format!("pool-reserved {pool}")), "bytes") as u64
}

// C09
#[test]
fn an_explicit_pool_is_held_to_the_cap() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "512MiB");
    program.ok("pool-create p 0");
    program.ok("pool-alloc a 300MiB p");
    program.refused("pool-alloc b 300MiB p");
    assert!(node.used("web", 0) <= 512 * MIB);
    program.ok("pool-free a");
    program.ok("pool-alloc c 300MiB p");
    assert_eq!(node.used("web", 0), node.hardware.truth(0));
    program.ok("pool-free c");
    program.ok("synchronize");
    program.ok("pool-destroy p");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn what_a_pool_keeps_is_charged_until_it_gives_it_back() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("pool-current p 0");
    program.ok("pool-keep-all p");
    program.ok("pool-alloc a 200MiB");
    program.ok("pool-free a");
    program.ok("synchronize");
    let kept = reserved(&mut program, "p");
    assert!(kept >= 200 * MIB);
    assert_eq!(node.used("web", 0), kept);
    assert_eq!(program.info().0, GIB - kept);
    program.ok("pool-trim p 0");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

// C10
#[test]
fn churn_in_a_pool_never_drifts_into_a_refusal() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "256MiB");
    program.ok("pool-current p 0");
    for keep in [false, true] {
        if keep {
            program.ok("pool-keep-all p");
        }
        let answer = program.step_within(
            "pool-churn 2000 64MiB 32MiB 96MiB",
            Duration::from_secs(120),
        );
        assert_eq!(number(&answer, "refused"), 0, "keeping all: {keep}");
        let held = reserved(&mut program, "p");
        assert_eq!(node.used("web", 0), held, "keeping all: {keep}");
        assert_eq!(node.hardware.truth(0), held, "keeping all: {keep}");
    }
}

// C07
#[test]
fn either_free_frees_what_the_other_family_allocated() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "256MiB");
    for _ in 0..100 {
        program.ok("pool-alloc p 64MiB");
        program.ok("synchronize");
        program.ok("free p");
        program.ok("alloc q 64MiB");
        program.ok("pool-free q");
        program.ok("synchronize");
    }
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn a_refusal_first_takes_back_what_the_process_s_own_pools_only_keep() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "512MiB");
    program.ok("pool-current p 0");
    program.ok("pool-keep-all p");
    program.ok("pool-alloc a 400MiB");
    program.ok("pool-free a");
    program.ok("synchronize");
    assert!(node.used("web", 0) >= 400 * MIB);
    program.ok("alloc b 400MiB");
    assert_eq!(node.figure("web", 0, "oom_refusals"), 0);
    assert_eq!(node.used("web", 0), 400 * MIB);
}

#[test]
fn a_destroyed_pool_s_live_allocations_stay_charged() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "512MiB");
    program.ok("pool-create p 0");
    program.ok("pool-alloc a 100MiB p");
    program.ok("pool-destroy p");
    assert!(node.used("web", 0) >= 100 * MIB);
    program.ok("pool-free a");
    program.ok("synchronize");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn a_pool_is_charged_on_its_own_device_whatever_the_streams_device_is() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("pool-current other 1");
    program.ok("pool-alloc a 8MiB other");
    assert_eq!(node.used("web", 0), 0);
    assert_eq!(node.used("web", 1), node.hardware.truth(1));
    assert!(node.used("web", 1) >= 8 * MIB);
}

#[test]
fn a_pool_that_grew_beyond_the_cap_keeps_nothing_of_it() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "48MiB");
    program.ok("pool-current pool 0");
    program.ok("pool-keep-all pool");
    program.ok("alloc a 40MiB");
    for _ in 0..3 {
        // The driver takes more at once than is left.
        program.refused("pool-alloc b 64KiB");
        program.ok("synchronize");
        assert_eq!(program.used(), 40 * MIB);
        assert_eq!(node.hardware.truth(0), 40 * MIB);
    }
    program.ok("free a");
    program.ok("pool-alloc b 64KiB");
}
