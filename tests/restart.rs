//! The daemon can die, hang or be missing at any time: programs keep running, and caps are kept.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{GIB, MIB, Node, PATIENCE, Stepper, eventually, signal};

/// How soon memory of a dead process must be back.
const GIVEN_BACK: Duration = Duration::from_secs(1);

/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: i64 = 3;

/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const NOT_READY: i64 = 802;

/// Longest that a first `cuInit` waits for a daemon.
const WAIT_FOR_DAEMON: Duration = Duration::from_secs(10);

// C77
#[test]
fn a_killed_daemon_leaves_programs_running_and_capped_until_the_next_one_takes_over() {
    let mut node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut program = tenant.ready_stepper();
    let mut other = node.ready_stepper("other", "2GiB");
    program.ok("alloc a 600MiB");
    other.ok("alloc a 1GiB");
    for round in 0..3 {
        node.kill_daemon();
        program.ok("alloc b 400MiB");
        program.refused("alloc c 100MiB");
        assert_eq!(program.info(), (24 * MIB, GIB));
        other.refused("alloc b 1025MiB");
        program.ok("free b");
        let begin = Instant::now();
        node.start_daemon();
        eventually("both programs are attached again", PATIENCE, || {
            let attached = |name| {
                let tenant = node.tenant_status(name)?;
                let processes = tenant["processes"].as_array()?.len();
                (processes == 1).then_some(())
            };
            attached("web").and(attached("other"))
        });
        let took = begin.elapsed();
        eprintln!("round {round}: taken over {took:?} after the start of the new daemon");
        assert!(took < Duration::from_secs(1), "round {round}: {took:?}");
        assert_eq!(node.used("web", 0), 600 * MIB);
        assert_eq!(node.used("other", 0), GIB);
        let devices = node.status()["devices"].clone();
        assert_eq!(number(&devices[0], "memory_promised_bytes") as u64, 3 * GIB);
    }
    let mut newcomer = tenant.ready_stepper();
    assert_eq!(newcomer.used(), 600 * MIB);
    newcomer.refused("alloc a 500MiB");
    node.set_memory("web", "2GiB");
    assert_eq!(program.info(), (2 * GIB - 600 * MIB, 2 * GIB));
    newcomer.ok("alloc a 1GiB");
    newcomer.kill();
    node.wait_for_used("web", 600 * MIB, GIVEN_BACK);
}

#[test]
fn memory_of_a_process_that_dies_while_there_is_no_daemon_comes_back_with_the_next_one() {
    let mut node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut survivor = tenant.ready_stepper();
    let mut victim = tenant.ready_stepper();
    survivor.ok("alloc a 100MiB");
    victim.ok("alloc a 700MiB");
    node.kill_daemon();
    victim.kill();
    node.start_daemon();
    eventually(
        "the victim's memory is back",
        Duration::from_secs(4),
        || (survivor.used() == 100 * MIB).then_some(()),
    );
    survivor.ok("alloc b 924MiB");
}

#[test]
fn a_daemon_that_hangs_holds_up_nobody_who_is_attached() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut program = tenant.ready_stepper();
    let mut late = tenant.stepper();
    signal(node.daemon_pid(), libc::SIGSTOP);
    let begin = Instant::now();
    program.ok("alloc a 600MiB");
    program.ok("free a");
    program.ok("alloc a 600MiB");
    assert_eq!(program.info(), (424 * MIB, GIB));
    let attached = begin.elapsed();
    let refusal = Instant::now();
    program.refused("alloc b 600MiB");
    let refusal = refusal.elapsed();
    let begin = Instant::now();
    let code = number(&late.step("init"), "rc");
    let waited = begin.elapsed();
    signal(node.daemon_pid(), libc::SIGCONT);
    assert!(attached < GIVEN_BACK, "{attached:?}");
    assert!(refusal < Duration::from_secs(3), "{refusal:?}");
    assert_eq!(code, NOT_READY);
    assert!(
        waited < WAIT_FOR_DAEMON + Duration::from_secs(3),
        "{waited:?}"
    );
    late.ok("init");
    late.ok("context 0");
    late.refused("alloc a 600MiB");
}

#[test]
fn a_first_call_without_a_daemon_waits_then_says_not_ready_and_a_later_one_works() {
    let mut node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    node.kill_daemon();
    let mut program = tenant.stepper();
    let begin = Instant::now();
    assert_eq!(program.code("init"), NOT_READY);
    let waited = begin.elapsed();
    assert!(
        waited > WAIT_FOR_DAEMON / 2 && waited < WAIT_FOR_DAEMON + Duration::from_secs(3),
        "{waited:?}"
    );
    // The driver is initialised, and says what devices there are; memory waits for the daemon.
    program.ok("context 0");
    for step in [
        "total 0",
        "info",
        "alloc a 1MiB",
        "create h 2MiB device 0",
        "pool-alloc b 1MiB",
    ] {
        assert_eq!(program.code(step), NOT_INITIALIZED, "after \"{step}\"");
    }
    node.start_daemon();
    program.ok("init");
    program.ok("context 0");
    assert_eq!(program.info(), (GIB, GIB));
    program.refused("alloc a 2GiB");
}

#[test]
fn a_first_call_while_the_daemon_restarts_only_takes_longer() {
    let mut node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    node.kill_daemon();
    let mut programs: Vec<Stepper> = (0..5).map(|_| tenant.stepper()).collect();
    for program in &mut programs {
        program.begin("init");
    }
    std::thread::sleep(Duration::from_millis(700));
    node.start_daemon();
    for program in &mut programs {
        assert_eq!(number(&program.answer("init", PATIENCE), "rc"), 0);
        program.ok("context 0");
        program.refused("alloc a 1025MiB");
    }
}

// C103
#[test]
fn a_program_without_a_tenant_is_not_let_through_unlimited() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut stranger = Stepper::start(
        tenant
            .command(support::Program::Stepper.path())
            .env("SLUICE_TOKEN", "00112233445566778899aabbccddeeff"),
    );
    let code = number(&stranger.step_within("init", WAIT_FOR_DAEMON * 2), "rc");
    assert_eq!(code, NOT_READY);
    stranger.ok("context 0");
    assert_eq!(stranger.code("alloc a 1MiB"), NOT_INITIALIZED);
}
