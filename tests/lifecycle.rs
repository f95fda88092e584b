//! Processes die, fork, come by the hundred; daemons die and come back. Memory follows the living.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{GIB, MIB, Node, PATIENCE, Stepper, Tenant, eventually, kill, signal};

/// How soon memory of a dead process must be back.
const GIVEN_BACK: Duration = Duration::from_secs(1);

/// `CUDA_ERROR_NOT_INITIALIZED`.
const NOT_INITIALIZED: i64 = 3;

/// `CUDA_ERROR_SYSTEM_NOT_READY`.
const NOT_READY: i64 = 802;

/// Longest that a first `cuInit` waits for a daemon.
const WAIT_FOR_DAEMON: Duration = Duration::from_secs(10);

#[test]
fn memory_of_a_killed_process_can_be_had_at_once_fifty_times() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut holder = tenant.ready_stepper();
    holder.ok("alloc a 900MiB");
    for round in 0..50 {
        let mut next = tenant.ready_stepper();
        holder.kill_and_leave();
        let asked = Instant::now();
        next.ok("alloc a 900MiB");
        let waited = asked.elapsed();
        assert!(waited < GIVEN_BACK, "round {round}: {waited:?}");
        holder = next;
    }
    holder.kill();
    node.wait_for_used("web", 0, GIVEN_BACK);
}

#[test]
fn a_zombie_holds_nothing() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut child = tenant.ready_stepper();
    child.ok("alloc a 900MiB");
    // Nobody waits for it: it stays in the process table, and `kill(pid, 0)` says that it is there.
    child.kill_and_leave();
    let mut sibling = tenant.ready_stepper();
    sibling.ok("alloc a 900MiB");
    node.wait_for_used("web", 900 * MIB, GIVEN_BACK);
}

#[test]
fn death_in_the_middle_of_a_call_leaves_an_exact_account_and_nobody_waiting() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut survivor = tenant.ready_stepper();
    survivor.ok("alloc a 128MiB");
    for round in 0..30 {
        let mut victim = tenant.ready_stepper();
        victim.ok("hammer 3 16MiB");
        // Somewhere inside an allocation, a query or a free, each time elsewhere.
        std::thread::sleep(Duration::from_micros(500 + 733 * round));
        victim.kill();
        let asked = Instant::now();
        survivor.ok("alloc b 1MiB");
        survivor.ok("free b");
        assert!(asked.elapsed() < GIVEN_BACK, "round {round}");
        eventually("only the survivor's memory is left", GIVEN_BACK, || {
            (survivor.used() == 128 * MIB).then_some(())
        });
    }
    survivor.ok("alloc rest 896MiB");
    survivor.refused("alloc more 1");
    assert_eq!(node.hardware.truth(0), GIB);
}

#[test]
fn a_forked_child_owns_nothing_and_takes_nothing_with_it() {
    let node = Node::start();
    let mut parent = node.ready_stepper("web", "1GiB");
    parent.ok("alloc a 500MiB");
    for ending in ["exit", "_exit", "crash"] {
        for _ in 0..3 {
            parent.step(&format!("fork {ending}"));
            assert_eq!(parent.used(), 500 * MIB, "after a child's {ending}");
        }
    }
    let child = parent.step("fork alloc b 100MiB");
    assert_eq!(
        number(&child["child"], "rc"),
        3,
        "CUDA_ERROR_NOT_INITIALIZED"
    );
    std::thread::sleep(GIVEN_BACK);
    assert_eq!(node.used("web", 0), 500 * MIB);
    parent.ok("alloc b 500MiB");
    parent.refused("alloc c 100MiB");
    parent.ok("free a");
    assert_eq!(node.used("web", 0), 500 * MIB);
}

#[test]
fn a_child_that_was_forked_before_the_first_call_is_a_process_of_its_own() {
    let node = Node::start();
    let mut parent = node.stepper("web", "1GiB");
    parent.step("child worker");
    for step in ["init", "context 0", "alloc a 600MiB"] {
        assert_eq!(number(&parent.tell("worker", step), "rc"), 0, "{step}");
    }
    parent.ok("init");
    parent.ok("context 0");
    parent.refused("alloc a 600MiB");
    parent.ok("alloc a 400MiB");
}

#[test]
fn children_forked_while_other_threads_allocate_never_hang() {
    let node = Node::start();
    let mut parent = node.ready_stepper("web", "1GiB");
    parent.ok("hammer 4 8MiB");
    for how in ["exec", "spawn"] {
        let storm = format!("fork-storm 200 {how}");
        let answer = parent.step_within(&storm, Duration::from_secs(120));
        assert_eq!(number(&answer, "stuck"), 0, "{storm}: {answer}");
        assert_eq!(number(&answer, "failed"), 0, "{storm}: {answer}");
    }
    let answer = parent.step("hammer stop");
    assert_eq!(number(&answer, "other"), 0, "{answer}");
    assert_eq!(parent.used(), 0);
}

#[test]
fn workers_that_outlive_the_first_process_stay_charged_to_their_container() {
    let node = Node::start();
    let mut tenant = node.tenant("web", "1GiB");
    let mut workers: Vec<Stepper> = (0..2).map(|_| tenant.ready_stepper()).collect();
    for worker in &mut workers {
        worker.ok("alloc a 300MiB");
    }
    tenant.kill_owner();
    std::thread::sleep(GIVEN_BACK);
    let status = node.tenant_status("web").expect("its workers live");
    assert_eq!(status["processes"].as_array().map(Vec::len), Some(2));
    assert_eq!(node.used("web", 0), 600 * MIB);
    workers[0].refused("alloc b 500MiB");
    workers.pop().expect("two").kill();
    node.wait_for_used("web", 300 * MIB, GIVEN_BACK);
    workers.pop().expect("one").kill();
    eventually("the tenant is gone with its last process", PATIENCE, || {
        node.tenant_status("web").is_none().then_some(())
    });
    assert_eq!(node.hardware.truth(0), 0);
}

#[test]
fn a_tenant_ends_with_its_program() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc a 512MiB");
    assert!(node.tenant_status("web").is_some());
    program.kill();
    eventually("the tenant is gone", PATIENCE, || {
        node.tenant_status("web").is_none().then_some(())
    });
    let devices = node.status()["devices"].clone();
    assert_eq!(number(&devices[0], "memory_promised_bytes"), 0);
    node.ready_stepper("web", "1GiB").ok("alloc a 1GiB");
}

#[test]
fn every_process_that_comes_later_is_counted_as_the_first_was() {
    let node = Node::start();
    let tenant = node.tenant("web", "2GiB");
    let see = |others: u64| {
        let mut program = tenant.ready_stepper();
        assert_eq!(program.used(), others);
        program.ok("alloc a 256MiB");
        assert_eq!(program.used(), others + 256 * MIB);
        program
    };
    for _ in 0..50 {
        see(0).quit();
        node.wait_for_used("web", 0, GIVEN_BACK);
    }
    let together: Vec<Stepper> = (0..5).map(|count| see(count * 256 * MIB)).collect();
    assert_eq!(node.used("web", 0), together.len() as u64 * 256 * MIB);
}

#[test]
fn more_processes_than_a_tenant_has_slots_may_come_and_go() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let count = ffi::wire::MAX_SLOTS + 76;
    let times: Vec<Duration> = std::thread::scope(|scope| {
        let halves: Vec<_> = (0..2)
            .map(|half| {
                let tenant = &tenant;
                scope.spawn(move || {
                    let rounds = (0..count / 2).map(|round| {
                        let begin = Instant::now();
                        let mut program = tenant.ready_stepper();
                        let time = begin.elapsed();
                        program.ok("alloc a 1MiB");
                        match (round + half) % 2 {
                            0 => program.quit(),
                            _ => program.kill(),
                        }
                        time
                    });
                    rounds.collect::<Vec<_>>()
                })
            })
            .collect();
        let done = halves
            .into_iter()
            .map(|half| half.join().expect("no panic"));
        let [first, second] = done.collect::<Vec<_>>().try_into().expect("two halves");
        first
            .into_iter()
            .zip(second)
            .flat_map(|(a, b)| [a, b])
            .collect()
    });
    let median = |times: &[Duration]| {
        let mut times = times.to_vec();
        times.sort();
        times[times.len() / 2]
    };
    let (early, late) = (median(&times[..200]), median(&times[times.len() - 200..]));
    assert!(
        late < early * 3,
        "a start took {early:?} early and {late:?} late"
    );
    node.wait_for_used("web", 0, GIVEN_BACK);
    tenant.ready_stepper().ok("alloc a 1GiB");
}

#[test]
fn two_hundred_processes_attach_at_once_in_under_two_seconds() {
    let node = Node::start();
    let tenants: Vec<Tenant> = (0..10)
        .map(|index| node.tenant(&format!("web{index}"), "256MiB"))
        .collect();
    let mut programs: Vec<Stepper> = tenants
        .iter()
        .flat_map(|tenant| (0..20).map(|_| tenant.stepper()))
        .collect();
    for program in &mut programs {
        // All of them are up and wait for their next step.
        program.step("pid");
    }
    let begin = Instant::now();
    for program in &mut programs {
        program.begin("init");
    }
    for program in &mut programs {
        assert_eq!(number(&program.answer("init", PATIENCE), "rc"), 0);
    }
    let took = begin.elapsed();
    eprintln!("200 processes attached in {took:?}");
    assert!(took < Duration::from_secs(2), "{took:?}");
    for program in programs.iter_mut().step_by(20) {
        program.ok("context 0");
        program.refused("alloc a 257MiB");
        program.ok("alloc a 256MiB");
    }
    for (index, _) in tenants.iter().enumerate() {
        let tenant = node
            .tenant_status(&format!("web{index}"))
            .expect("it lives");
        assert_eq!(tenant["processes"].as_array().map(Vec::len), Some(20));
    }
}

#[test]
fn a_neighbours_death_never_changes_ones_own_account() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let mut left = tenant.ready_stepper();
    left.ok("alloc a 100MiB");
    for round in 0..30 {
        let mut middle = tenant.ready_stepper();
        let mut right = tenant.ready_stepper();
        middle.ok("alloc a 50MiB");
        right.ok("alloc a 25MiB");
        middle.ok("hammer 2 4MiB");
        middle.kill();
        node.wait_for_used("web", 125 * MIB, GIVEN_BACK);
        let mut own: Vec<(u64, u64)> = node.tenant_status("web").expect("it lives")["processes"]
            .as_array()
            .expect("a list")
            .iter()
            .map(|process| {
                let used = number(process, "memory_used_bytes") as u64;
                (number(process, "pid") as u64, used)
            })
            .collect();
        own.sort_unstable();
        let mut right_answer = vec![
            (u64::from(left.pid()), 100 * MIB),
            (u64::from(right.pid()), 25 * MIB),
        ];
        right_answer.sort_unstable();
        assert_eq!(own, right_answer, "round {round}");
        left.ok("free a");
        left.ok("alloc a 100MiB");
    }
}

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

#[test]
fn the_hardware_going_away_is_an_error_and_not_a_hang() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc a 64MiB");
    kill(node.hardware.pid());
    let begin = Instant::now();
    assert_ne!(program.code("alloc b 64MiB"), 0);
    assert!(begin.elapsed() < PATIENCE / 2);
}
