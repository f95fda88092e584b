//! Processes die, fork, and come by the hundred. Memory follows the living.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{GIB, MIB, Node, PATIENCE, Stepper, Tenant, eventually, kill};

/// How soon memory of a dead process must be back.
const GIVEN_BACK: Duration = Duration::from_secs(1);

// C45
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

// C48
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

// C44
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

// C46
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

// C47
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

// C49
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

// C50
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

// C51
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

// C52
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

// C53
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
fn the_hardware_going_away_is_an_error_and_not_a_hang() {
    let node = Node::start();
    let mut program = node.ready_stepper("web", "1GiB");
    program.ok("alloc a 64MiB");
    kill(node.hardware.pid());
    let begin = Instant::now();
    assert_ne!(program.code("alloc b 64MiB"), 0);
    assert!(begin.elapsed() < PATIENCE / 2);
}

#[test]
fn a_crowd_that_comes_and_dies_at_random_leaves_every_account_exact() {
    let node = Node::start();
    let caps = [GIB, 2 * GIB, 4 * GIB];
    let tenants = caps.map(|cap| node.tenant(&format!("of{cap}"), &cap.to_string()));
    let mut crowd: Vec<Stepper> = Vec::new();
    let mut state = 0x9e37_79b9_u64;
    for _ in 0..120 {
        // Xorshift: repeatable, and good enough to shuffle.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let leaves = crowd.len() > 8 || state.is_multiple_of(3) && !crowd.is_empty();
        if leaves {
            let gone = crowd.swap_remove((state >> 8) as usize % crowd.len());
            match state >> 16 & 1 {
                0 => gone.quit(),
                _ => gone.kill(),
            }
        } else {
            let mut program = tenants[(state >> 8) as usize % 3].ready_stepper();
            program.step(&format!("alloc a {}MiB", 1 + (state >> 20) % 700));
            program.step(&format!(
                "create h {}MiB device 0",
                2 * (1 + (state >> 30) % 300)
            ));
            program.ok("hammer 2 64MiB");
            crowd.push(program);
        }
        for cap in caps {
            assert!(node.used(&format!("of{cap}"), 0) <= cap);
        }
        assert!(node.hardware.truth(0) <= caps.iter().sum());
    }
    drop(crowd);
    for cap in caps {
        node.wait_for_used(&format!("of{cap}"), 0, GIVEN_BACK);
    }
    eventually("the hardware is empty", GIVEN_BACK, || {
        (node.hardware.truth(0) == 0).then_some(())
    });
}
