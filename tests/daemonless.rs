//! Promises R1 and C5 of GPU time: whatever becomes of the daemon, launches go on, ceilings hold, and shares
//! come back with the next daemon.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{Node, Stepper, eventually};

/// Longest that a step of a test may take, which is an error and no measurement.
const BOUND: Duration = Duration::from_secs(60);

/// After this a heartbeat is old.
const STALE: Duration = Duration::from_millis(1_500);

/// What part of the time from now on each gets.
fn shares(node: &Node, programs: &[&Stepper], length: Duration) -> Vec<f64> {
    let account = || -> Vec<Duration> { programs.iter().map(|it| node.busy(it.pid())).collect() };
    let (begin, before) = (Instant::now(), account());
    std::thread::sleep(length);
    let (passed, after) = (begin.elapsed(), account());
    let got = after
        .iter()
        .zip(&before)
        .map(|(after, before)| *after - *before);
    got.map(|got| got.as_secs_f64() / passed.as_secs_f64())
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Killed,
    Stopped,
}

/// A tenant with a ceiling runs on without a daemon, and beside it one that has none.
fn without_a_daemon(way: Way) {
    let mut node = Node::start();
    let mut capped = node.stepper_with("capped", &["--compute-max", "30%"]);
    let mut other = node.stepper_with("other", &[]);
    capped.begin("work-for 14000 1000000 10");
    // With a daemon, and what kernels take is learned.
    std::thread::sleep(Duration::from_millis(1_500));
    match way {
        Way::Killed => node.kill_daemon(),
        Way::Stopped => support::signal(node.daemon_pid(), libc::SIGSTOP),
    }
    std::thread::sleep(STALE);
    let got = shares(&node, &[&capped], Duration::from_secs(2));
    println!("alone without a daemon: {got:?}");
    assert!((got[0] - 0.3).abs() <= 0.1, "{way:?}: {got:?}");
    // Whoever has no ceiling takes what there is.
    other.begin("work-for 3500 1000000 10");
    std::thread::sleep(Duration::from_millis(500));
    let got = shares(&node, &[&capped, &other], Duration::from_secs(1));
    println!("beside another: {got:?}");
    assert!(got[0] <= 0.42, "{way:?}: {got:?}");
    assert!(got[0] >= 0.05, "{way:?}: {got:?}");
    assert!(got[1] >= 0.5, "{way:?}: {got:?}");
    match way {
        Way::Killed => node.start_daemon(),
        Way::Stopped => support::signal(node.daemon_pid(), libc::SIGCONT),
    }
    eventually("the daemon leads it again", BOUND, || {
        (node.compute("capped")["lease"] != "unshared").then_some(())
    });
    assert_eq!(number(&other.answer("work-for", BOUND), "rc"), 0);
    let got = shares(&node, &[&capped], Duration::from_secs(1));
    println!("with a daemon again: {got:?}");
    assert!((got[0] - 0.3).abs() <= 0.12, "{way:?}: {got:?}");
    let answer = capped.answer("work-for", BOUND);
    assert_eq!(number(&answer, "rc"), 0);
    let longest = number(&answer, "longest_launch_us");
    assert!(longest <= 4_500_000, "a launch took {longest} us");
}

// C77
#[test]
fn a_ceiling_holds_without_a_daemon_that_was_killed() {
    let _alone = support::alone();
    without_a_daemon(Way::Killed);
}

#[test]
fn a_ceiling_holds_without_a_daemon_that_is_stopped() {
    let _alone = support::alone();
    without_a_daemon(Way::Stopped);
}

#[test]
fn two_processes_of_one_tenant_hold_to_its_ceiling_together() {
    let _alone = support::alone();
    let mut node = Node::start();
    let tenant = node.tenant("capped", "2GiB");
    let (is_done, text) = node.sluice(&["set", "capped", "--compute-max", "40%"]);
    assert!(is_done, "{text}");
    let mut parts: Vec<Stepper> = (0..2)
        .map(|_| {
            let mut part = tenant.stepper();
            part.ok("init");
            part.ok("context 0");
            part
        })
        .collect();
    for part in &mut parts {
        part.begin("work-for 6000 1000000 10");
    }
    std::thread::sleep(Duration::from_millis(1_500));
    node.kill_daemon();
    std::thread::sleep(STALE);
    let got = shares(&node, &[&parts[0], &parts[1]], Duration::from_secs(2));
    println!("{got:?}");
    let together = got[0] + got[1];
    // Less where they get in each other's way: what that takes is measured as theirs.
    assert!(together <= 0.5, "{got:?}");
    assert!(together >= 0.15, "{got:?}");
    assert!((0.5..2.0).contains(&(got[0] / got[1])), "{got:?}");
    for part in &mut parts {
        assert_eq!(number(&part.answer("work-for", BOUND), "rc"), 0);
    }
}

#[test]
fn a_neighbour_without_a_ceiling_is_not_slowed_by_a_turn_that_no_daemon_ends() {
    let _alone = support::alone();
    let mut node = Node::start();
    let mut one = node.stepper_with("one", &[]);
    let mut other = node.stepper_with("other", &[]);
    for program in [&mut one, &mut other] {
        program.begin("work-for 4500 200000 10");
    }
    std::thread::sleep(Duration::from_millis(800));
    node.kill_daemon();
    std::thread::sleep(STALE);
    let got = shares(&node, &[&one, &other], Duration::from_secs(1));
    println!("{got:?}");
    assert!(got[0] + got[1] >= 0.7, "{got:?}");
    for program in [&mut one, &mut other] {
        assert_eq!(number(&program.answer("work-for", BOUND), "rc"), 0);
    }
}
