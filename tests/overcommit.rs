//! Memory beyond the device, for tenants that ask for it: `--memory-overcommit`.

mod support;

use std::process::Command;
use std::time::Duration;
use support::stepper::number;
use support::{GIB, MIB, Node, Program, Setup, Stepper, sluice};

/// Longest that a step of a test may take, which is an error and no measurement.
const BOUND: Duration = Duration::from_secs(60);

/// A device of 8 GiB, a host that lends 4, and turns of half a second.
fn lending() -> Node {
    Node::with(&Setup {
        config: "host_budget_mib = 4096\noversubscribed_turn_ms = 500",
        ..Setup::default()
    })
}

fn run(node: &Node, name: &str, memory: &str, options: &[&str]) -> Command {
    let mut command = Command::new(sluice());
    command
        .args(["run", "--runtime-dir"])
        .arg(node.folder())
        .args(["--name", name, "--memory", memory])
        .args(options)
        .arg("--")
        .arg(Program::Stepper.path());
    command
}

fn overcommitted(node: &Node, name: &str, memory: &str) -> Stepper {
    let mut program = Stepper::start(&mut run(node, name, memory, &["--memory-overcommit"]));
    program.ok("init");
    program.ok("context 0");
    program
}

/// What `sluice run` says when it does not start.
fn refusal(node: &Node, name: &str, memory: &str, options: &[&str]) -> String {
    let output = run(node, name, memory, options)
        .output()
        .expect("it can be run");
    assert!(!output.status.success(), "{name} started");
    assert!(node.tenant_status(name).is_none());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn nobody_is_overcommitted_unless_the_host_lends_memory() {
    let node = Node::start();
    let words = refusal(&node, "web", "1GiB", &["--memory-overcommit"]);
    assert!(words.contains("memory.host_budget_mib"), "{words}");
}

// C06, C14, C16
#[test]
fn two_tenants_hold_more_than_the_device_and_nobody_more_than_its_cap() {
    let node = lending();
    let mut one = overcommitted(&node, "one", "6GiB");
    let mut other = overcommitted(&node, "other", "6GiB");
    for (program, byte) in [(&mut one, "1"), (&mut other, "2")] {
        assert_eq!(program.info(), (6 * GIB, 6 * GIB));
        program.ok("alloc a 3GiB");
        program.ok("alloc b 3GiB");
        program.refused("alloc c 1");
        program.ok(&format!("fill b {byte} 1MiB"));
    }
    assert_eq!(node.used("one", 0) + node.used("other", 0), 12 * GIB);
    for (program, byte) in [(&mut one, 1), (&mut other, 2)] {
        let answer = program.ok("read b");
        assert_eq!(number(&answer, "byte"), byte, "{answer}");
        // The driver's own word, which programs can act on.
        assert_eq!(number(&program.ok("attributes a"), "managed"), 1);
        program.ok("free a");
        program.ok("free b");
        assert_eq!(program.used(), 0);
    }
    assert_eq!(node.hardware.truth(0), 0);
    for name in ["one", "other"] {
        let status = node.tenant_status(name).expect("a tenant");
        assert_eq!(status["is_overcommitted"], true);
    }
}

#[test]
fn what_is_promised_is_bounded_by_the_device_and_the_host_s_budget() {
    let node = lending();
    let _one = overcommitted(&node, "one", "8GiB");
    let words = refusal(&node, "two", "5GiB", &["--memory-overcommit"]);
    assert!(words.contains("4GiB"), "{words}");
    let _two = overcommitted(&node, "two", "3GiB");
    // What is overcommitted gives way, but the budget is for all together.
    let words = refusal(&node, "plain", "2GiB", &[]);
    assert!(words.contains("1GiB"), "{words}");
    let (is_done, text) = node.sluice(&["set", "two", "--memory", "5GiB"]);
    assert!(!is_done && text.contains("4GiB"), "{text}");
    let (is_done, text) = node.sluice(&["set", "two", "--memory", "4GiB"]);
    assert!(is_done, "{text}");
    let (is_done, text) = node.sluice(&["set", "two", "--class", "latency"]);
    assert!(!is_done && text.contains("latency"), "{text}");
}

#[test]
fn a_tenant_that_is_not_overcommitted_always_gets_its_memory() {
    let node = lending();
    let mut plain = node.ready_stepper("plain", "4GiB");
    let mut other = overcommitted(&node, "other", "8GiB");
    other.ok("alloc a 8GiB");
    assert_eq!(plain.info(), (4 * GIB, 4 * GIB));
    plain.ok("alloc a 4GiB");
    assert_eq!(number(&plain.ok("attributes a"), "managed"), 0);
    let words = refusal(&node, "more", "5GiB", &[]);
    assert!(words.contains("cannot promise"), "{words}");
}

/// What part of the intervals of 50 ms both tenants worked in, while both want all of the device.
fn intervals_of_both(node: &Node, programs: &mut [Stepper; 2]) -> f64 {
    for program in programs.iter_mut() {
        program.begin("work-for 4500 1000000 10");
    }
    std::thread::sleep(Duration::from_secs(1));
    let busy = || [0, 1].map(|at: usize| node.busy(programs[at].pid()));
    let (mut both, mut all, mut former) = (0, 0, busy());
    for _ in 0..60 {
        std::thread::sleep(Duration::from_millis(50));
        let now = busy();
        let worked = [0, 1].map(|at: usize| now[at] - former[at] >= Duration::from_millis(5));
        all += u32::from(worked[0] || worked[1]);
        both += u32::from(worked[0] && worked[1]);
        former = now;
    }
    for program in programs.iter_mut() {
        assert_eq!(number(&program.answer("work-for", BOUND), "rc"), 0);
    }
    f64::from(both) / f64::from(all)
}

#[test]
fn turns_are_long_while_more_is_held_than_there_is() {
    let _alone = support::alone();
    let node = lending();
    let mut programs = ["one", "other"].map(|name| overcommitted(&node, name, "6GiB"));
    for program in &mut programs {
        program.ok("alloc a 3GiB");
    }
    let fitting = intervals_of_both(&node, &mut programs);
    for program in &mut programs {
        program.ok("alloc b 3GiB");
    }
    let beyond = intervals_of_both(&node, &mut programs);
    println!("both worked in {fitting:.2} of the intervals, then in {beyond:.2}");
    assert!(fitting >= 0.5, "{fitting}");
    assert!(beyond <= 0.4, "{beyond}");
    // They still share it.
    let shares = programs
        .each_ref()
        .map(|program| node.busy(program.pid()).as_secs_f64());
    let share = shares[0] / (shares[0] + shares[1]);
    assert!((share - 0.5).abs() <= 0.2, "{shares:?}");
}

#[test]
fn an_overcommitted_tenant_stays_so_with_the_next_daemon() {
    let mut node = lending();
    let mut one = overcommitted(&node, "one", "6GiB");
    one.ok("alloc a 6GiB");
    node.kill_daemon();
    node.start_daemon();
    let mut other = overcommitted(&node, "other", "6GiB");
    other.ok("alloc a 6GiB");
    one.ok("free a");
    one.ok("alloc b 6GiB");
    assert_eq!(number(&one.ok("attributes b"), "managed"), 1);
    one.refused("alloc c 2MiB");
    assert_eq!(node.used("one", 0), 6 * GIB);
    assert!(node.used("other", 0) >= 6 * GIB - MIB);
}
