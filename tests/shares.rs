//! Promises C1 to C5: shares of GPU time hold, idle time goes to whoever has work, and nobody waits for
//! ever.
//!
//! How exactly shares hold is shown on the arbiter's own clock (`daemon/tests/arbiter.rs`) and measured by
//! `sluice bench fairness`; here real processes share a real stand-in, with margins for a busy machine.

mod support;

use serde_json::Value;
use std::time::{Duration, Instant};
use support::stepper::number;
use support::{Node, Setup, Stepper, eventually};

/// Longest that a step of a test may take, which is an error and no measurement.
const BOUND: Duration = Duration::from_secs(60);

const MS: u64 = 1_000_000;

/// Lets steppers work for `length` each with kernels of its own, and says what part of the time each got.
fn shares(node: &Node, programs: &mut [(&mut Stepper, u64)], length: Duration) -> Vec<f64> {
    let ms = length.as_millis() as u64 + 1_500;
    for (program, kernel_ns) in programs.iter_mut() {
        program.begin(&format!("work-for {ms} {kernel_ns} 20"));
    }
    // What kernels take is learned first.
    std::thread::sleep(Duration::from_secs(1));
    let account = |programs: &[(&mut Stepper, u64)]| -> Vec<Duration> {
        programs
            .iter()
            .map(|(program, _)| node.busy(program.pid()))
            .collect()
    };
    let (begin, before) = (Instant::now(), account(programs));
    std::thread::sleep(length);
    let (passed, after) = (begin.elapsed(), account(programs));
    for (program, _) in programs.iter_mut() {
        assert_eq!(number(&program.answer("work-for", BOUND), "rc"), 0);
    }
    after
        .iter()
        .zip(&before)
        .map(|(after, before)| (*after - *before).as_secs_f64() / passed.as_secs_f64())
        .collect()
}

fn waits(compute: &Value) -> bool {
    number(compute, "waiting") > 0
}

// C56, C59, C72
#[test]
fn saturating_tenants_get_their_weights_whatever_the_length_of_their_kernels() {
    let _alone = support::alone();
    let node = Node::start();
    let mut six = node.stepper_with("six", &["--weight", "600"]);
    let mut three = node.stepper_with("three", &["--weight", "300"]);
    let mut one = node.stepper_with("one", &["--weight", "100"]);
    let got = shares(
        &node,
        &mut [(&mut six, MS / 10), (&mut three, MS), (&mut one, 10 * MS)],
        Duration::from_secs(3),
    );
    let all: f64 = got.iter().sum();
    println!("{got:?}");
    assert!(all >= 0.8, "together they got only {all:.2} of the time");
    for (got, wanted) in got.iter().zip([0.6, 0.3, 0.1]) {
        assert!((got / all - wanted).abs() <= 0.08, "{got:.3} of {all:.3}");
    }
}

#[test]
fn a_guarantee_holds_against_a_heavier_neighbour() {
    let _alone = support::alone();
    let node = Node::start();
    let mut light = node.stepper_with("light", &["--compute", "40%", "--weight", "1"]);
    let mut heavy = node.stepper_with("heavy", &["--weight", "10000"]);
    let got = shares(
        &node,
        &mut [(&mut light, MS), (&mut heavy, MS)],
        Duration::from_secs(2),
    );
    let share = got[0] / (got[0] + got[1]);
    assert!((share - 0.4).abs() <= 0.1, "{got:?}");
}

// C58
#[test]
fn an_idle_neighbour_costs_a_busy_tenant_nothing() {
    let _alone = support::alone();
    let node = Node::start();
    let mut busy = node.stepper_with("busy", &["--weight", "1"]);
    let _idle = node.stepper_with("idle", &["--compute", "90%"]);
    let got = shares(&node, &mut [(&mut busy, MS)], Duration::from_secs(2));
    assert!(got[0] >= 0.85, "{got:?}");
}

// C57
#[test]
fn a_ceiling_holds_also_for_one_who_is_alone() {
    let _alone = support::alone();
    let node = Node::start();
    let mut capped = node.stepper_with("capped", &["--compute-max", "30%"]);
    let got = shares(&node, &mut [(&mut capped, MS)], Duration::from_secs(2));
    assert!((got[0] - 0.3).abs() <= 0.1, "{got:?}");
}

#[test]
fn alone_nothing_is_tracked() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    program.ok("work-launch cuLaunchKernel 1000 500");
    program.ok("work-wait");
    let compute = node.compute("web");
    assert_eq!(compute["lease"], "unshared");
    assert_eq!(number(&compute, "launches"), 0);
    assert_eq!(number(&compute, "used_ns"), 0);
}

// C63, C69
#[test]
fn every_form_of_launch_waits_for_its_turn_and_is_counted() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    // Loads the kernel, which is no launch.
    program.ok("work-launch cuLaunchKernel 1000 1");
    program.ok("work-wait");
    let mut counted = 0;
    for symbol in [
        "cuLaunchKernel",
        "cuLaunchKernel_ptsz",
        "cuLaunchKernelEx",
        "cuLaunchKernelEx_ptsz",
        "cuLaunchCooperativeKernel",
        "cuLaunchCooperativeKernel_ptsz",
        "cuLaunchCooperativeKernelMultiDevice",
        "cuLaunch",
        "cuLaunchGrid",
        "cuLaunchGridAsync",
    ] {
        let (is_done, text) = node.sluice(&["pause", "web"]);
        assert!(is_done, "{text}");
        let step = format!("work-launch {symbol} 100000 1");
        program.begin(&step);
        eventually(&format!("{symbol} waits"), BOUND, || {
            waits(&node.compute("web")).then_some(())
        });
        assert_eq!(node.compute("web")["lease"], "paused");
        let (is_done, text) = node.sluice(&["resume", "web"]);
        assert!(is_done && text.contains("runs on"), "{text}");
        let answer = program.answer(&step, BOUND);
        assert_eq!(number(&answer, "rc"), 0, "{symbol}");
        program.ok("work-wait");
        let compute = node.compute("web");
        counted += 1;
        assert_eq!(number(&compute, "held"), counted, "{symbol}");
        assert!(!waits(&compute), "{symbol}");
    }
}

#[test]
fn a_paused_tenant_is_held_and_its_neighbour_is_not() {
    let _alone = support::alone();
    let node = Node::start();
    let mut paused = node.stepper_with("paused", &[]);
    let mut other = node.stepper_with("other", &[]);
    paused.ok("work-launch cuLaunchKernel 1000 1");
    paused.ok("work-wait");
    let (is_done, text) = node.sluice(&["pause", "paused"]);
    assert!(is_done && text.contains("paused"), "{text}");
    paused.begin("work-launch cuLaunchKernel 1000 1");
    eventually("the launch is held", BOUND, || {
        waits(&node.compute("paused")).then_some(())
    });
    // Longer than any launch is held for another's sake.
    other.ok("work-for 2500 1000000 10");
    assert!(waits(&node.compute("paused")));
    let status = node.tenant_status("paused").expect("a tenant");
    assert_eq!(status["is_paused"], true);
    let (is_done, text) = node.sluice(&["resume", "paused"]);
    assert!(is_done, "{text}");
    assert_eq!(number(&paused.answer("work-launch", BOUND), "rc"), 0);
}

#[test]
fn a_share_is_changed_while_its_tenant_runs() {
    let _alone = support::alone();
    let node = Node::start();
    let mut one = node.stepper_with("one", &[]);
    let mut other = node.stepper_with("other", &[]);
    let (is_done, text) = node.sluice(&["set", "one", "--weight", "400"]);
    assert!(is_done && text.contains("weight 400"), "{text}");
    let got = shares(
        &node,
        &mut [(&mut one, MS), (&mut other, MS)],
        Duration::from_secs(2),
    );
    let share = got[0] / (got[0] + got[1]);
    assert!((share - 0.8).abs() <= 0.1, "{got:?}");
}

#[test]
fn a_guarantee_too_many_is_refused_with_what_is_free_and_who_holds_the_rest() {
    let _alone = support::alone();
    let node = Node::start();
    let _web = node.stepper_with("web", &["--compute", "70%"]);
    let (is_done, text) = node.sluice(&["set", "web", "--compute", "101%"]);
    assert!(!is_done && text.contains("101%"), "{text}");
    let (is_done, text) = node.sluice(&["set", "web", "--compute", "80%", "--compute-max", "50%"]);
    assert!(!is_done && text.contains("below the guarantee"), "{text}");
    let mut command = node.run("batch", "1GiB");
    command.arg("true");
    let (is_done, text) = node.sluice(&[
        "run",
        "--name",
        "batch",
        "--memory",
        "1GiB",
        "--compute",
        "40%",
        "true",
    ]);
    assert!(!is_done, "{text}");
    for word in ["40%", "30%", "web: 70%"] {
        assert!(text.contains(word), "{word} in {text}");
    }
}

// C77, R1
#[test]
fn launches_go_on_without_a_daemon_and_shares_come_back_with_the_next() {
    let _alone = support::alone();
    let mut node = Node::start();
    let mut one = node.stepper_with("one", &["--weight", "300"]);
    let mut other = node.stepper_with("other", &["--weight", "100"]);
    for program in [&mut one, &mut other] {
        program.begin("work-for 2500 1000000 10");
    }
    std::thread::sleep(Duration::from_millis(700));
    node.kill_daemon();
    for program in [&mut one, &mut other] {
        let answer = program.answer("work-for", BOUND);
        assert_eq!(number(&answer, "rc"), 0);
        // A heartbeat's age, and two seconds that no launch waits longer than.
        let longest = number(&answer, "longest_launch_us");
        assert!(longest <= 5_000_000, "a launch took {longest} us");
    }
    node.start_daemon();
    eventually("both are back", BOUND, || {
        let is_back = |name| node.compute(name)["lease"] != "unshared";
        (is_back("one") && is_back("other")).then_some(())
    });
    let got = shares(
        &node,
        &mut [(&mut one, MS), (&mut other, MS)],
        Duration::from_secs(2),
    );
    let share = got[0] / (got[0] + got[1]);
    assert!((share - 0.75).abs() <= 0.1, "{got:?}");
}

// C73
#[test]
fn a_tenant_that_is_killed_or_stopped_in_its_turn_holds_up_nobody() {
    let _alone = support::alone();
    let node = Node::start();
    let mut one = node.stepper_with("one", &[]);
    let mut other = node.stepper_with("other", &[]);
    one.begin("work-for 60000 2000000 10");
    other.begin("work-for 3000 1000000 10");
    std::thread::sleep(Duration::from_millis(500));
    support::signal(one.pid(), libc::SIGSTOP);
    let before = node.busy(other.pid());
    std::thread::sleep(Duration::from_secs(1));
    let alone = node.busy(other.pid()) - before;
    assert!(
        alone >= Duration::from_millis(600),
        "beside a stopped tenant it got {alone:?} of a second"
    );
    support::signal(one.pid(), libc::SIGKILL);
    let answer = other.answer("work-for", BOUND);
    assert_eq!(number(&answer, "rc"), 0);
    let longest = number(&answer, "longest_launch_us");
    assert!(longest <= 3_500_000, "a launch took {longest} us");
    drop(one);
    eventually("nothing is shared any more", BOUND, || {
        (node.compute("other")["lease"] == "unshared").then_some(())
    });
}

// C59
#[test]
fn long_kernels_and_floods_of_short_ones_take_no_more_than_their_share() {
    let _alone = support::alone();
    let node = Node::start();
    let mut long = node.stepper_with("long", &[]);
    let mut short = node.stepper_with("short", &[]);
    let got = shares(
        &node,
        &mut [(&mut long, 200 * MS), (&mut short, MS / 50)],
        Duration::from_secs(5),
    );
    let share = got[0] / (got[0] + got[1]);
    assert!((share - 0.5).abs() <= 0.12, "{got:?}");
}

// C61, C71
#[test]
fn a_tenant_on_two_devices_at_once_is_never_held() {
    let _alone = support::alone();
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let tenant = node.tenant("gang", "1GiB");
    let mut parts: Vec<Stepper> = (0..2)
        .map(|device| {
            let mut part = tenant.stepper();
            part.ok("init");
            part.ok(&format!("context {device}"));
            part
        })
        .collect();
    let mut other = node.stepper_with("other", &["--gpu", "0"]);
    other.begin("work-for 3000 1000000 10");
    for part in &mut parts {
        part.begin("work-for 2000 1000000 10");
    }
    eventually("it is known as a gang", BOUND, || {
        (node.compute("gang")["lease"] == "exempt").then_some(())
    });
    // What it uses is charged all the same.
    eventually("it is charged", BOUND, || {
        (number(&node.compute("gang"), "used_ns") > 0).then_some(())
    });
    for part in &mut parts {
        assert_eq!(number(&part.answer("work-for", BOUND), "rc"), 0);
    }
    assert_eq!(number(&other.answer("work-for", BOUND), "rc"), 0);
}

// C67
#[test]
fn a_capture_is_not_held_and_no_call_of_ours_comes_into_it() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    program.ok("work-launch cuLaunchKernel 1000 1");
    program.ok("work-wait");
    for mode in [0, 1, 2] {
        let (is_done, text) = node.sluice(&["pause", "web"]);
        assert!(is_done, "{text}");
        // Held launches would make this wait for the resumption below.
        let step = format!("work-capture {mode} 100000 50");
        let captured = program.ok(&step);
        assert_eq!(number(&captured, "nodes"), 50, "mode {mode}");
        assert!(!waits(&node.compute("web")));
        let (is_done, text) = node.sluice(&["resume", "web"]);
        assert!(is_done, "{text}");
    }
    // The same beside a tenant that never rests: nothing of ours breaks it.
    let mut other = node.stepper_with("other", &[]);
    other.begin("work-for 2000 1000000 10");
    program.begin("work-for 1500 100000 5");
    assert_eq!(number(&program.answer("work-for", BOUND), "rc"), 0);
    for mode in [0, 1, 2] {
        let captured = program.ok(&format!("work-capture {mode} 100000 50"));
        assert_eq!(number(&captured, "nodes"), 50, "mode {mode}");
        program.ok("work-graph cuGraphLaunch 2");
        program.ok("work-wait");
    }
    assert_eq!(number(&other.answer("work-for", BOUND), "rc"), 0);
}

#[test]
fn a_graph_s_launch_waits_for_its_turn_and_is_counted() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    program.ok("work-capture 2 100000 10");
    for (index, symbol) in ["cuGraphLaunch", "cuGraphLaunch_ptsz"].iter().enumerate() {
        let (is_done, text) = node.sluice(&["pause", "web"]);
        assert!(is_done, "{text}");
        let step = format!("work-graph {symbol} 1");
        program.begin(&step);
        eventually(&format!("{symbol} waits"), BOUND, || {
            waits(&node.compute("web")).then_some(())
        });
        let (is_done, text) = node.sluice(&["resume", "web"]);
        assert!(is_done, "{text}");
        assert_eq!(number(&program.answer(&step, BOUND), "rc"), 0, "{symbol}");
        program.ok("work-wait");
        assert_eq!(number(&node.compute("web"), "held"), index as i64 + 1);
    }
}

// C40, C60
#[test]
fn graphs_are_charged_by_what_they_take() {
    let _alone = support::alone();
    let node = Node::start();
    let mut graphs = node.stepper_with("graphs", &["--weight", "200"]);
    let mut plain = node.stepper_with("plain", &["--weight", "800"]);
    // 20 ms each.
    graphs.ok("work-capture 2 100000 200");
    graphs.begin("work-graph-for 4500");
    plain.begin("work-for 4500 1000000 20");
    std::thread::sleep(Duration::from_secs(1));
    let before = [node.busy(graphs.pid()), node.busy(plain.pid())];
    std::thread::sleep(Duration::from_secs(3));
    let after = [node.busy(graphs.pid()), node.busy(plain.pid())];
    assert_eq!(number(&graphs.answer("work-graph-for", BOUND), "rc"), 0);
    assert_eq!(number(&plain.answer("work-for", BOUND), "rc"), 0);
    let got = [0, 1].map(|at| (after[at] - before[at]).as_secs_f64());
    let share = got[0] / (got[0] + got[1]);
    assert!((share - 0.2).abs() <= 0.1, "{got:?}");
}

// C65
#[test]
fn a_loop_that_needs_less_than_its_share_keeps_its_rate() {
    let _alone = support::alone();
    let node = Node::start();
    let mut looping = node.stepper_with("looping", &["--compute", "50%"]);
    let mut other = node.stepper_with("other", &["--compute", "50%", "--class", "batch"]);
    let alone = number(
        &looping.step_within("work-loop 1500 200000 4000", BOUND),
        "rounds",
    );
    other.begin("work-for 2500 500000 10");
    std::thread::sleep(Duration::from_millis(500));
    let beside = number(
        &looping.step_within("work-loop 1500 200000 4000", BOUND),
        "rounds",
    );
    assert_eq!(number(&other.answer("work-for", BOUND), "rc"), 0);
    // It may have to wait for what runs: twice its own time at most, with margins.
    assert!(
        beside * 3 >= alone,
        "{beside} rounds beside a neighbour, {alone} alone"
    );
}

// C66
#[test]
fn a_share_is_the_container_s_whatever_the_number_of_its_processes() {
    let _alone = support::alone();
    let node = Node::start();
    let tenant = node.tenant("many", "1GiB");
    let mut many: Vec<Stepper> = (0..3).map(|_| tenant.ready_stepper()).collect();
    let mut one = node.stepper_with("one", &["--weight", "100"]);
    for program in &mut many {
        program.begin("work-for 3500 1000000 10");
    }
    one.begin("work-for 3500 1000000 10");
    std::thread::sleep(Duration::from_secs(1));
    let of_many = |many: &[Stepper]| -> Duration {
        many.iter().map(|program| node.busy(program.pid())).sum()
    };
    let before = (of_many(&many), node.busy(one.pid()));
    std::thread::sleep(Duration::from_secs(2));
    let after = (of_many(&many), node.busy(one.pid()));
    for program in &mut many {
        assert_eq!(number(&program.answer("work-for", BOUND), "rc"), 0);
    }
    assert_eq!(number(&one.answer("work-for", BOUND), "rc"), 0);
    let (many, one) = (
        (after.0 - before.0).as_secs_f64(),
        (after.1 - before.1).as_secs_f64(),
    );
    let share = one / (one + many);
    assert!(
        (share - 0.5).abs() <= 0.08,
        "one process got {share:.2} beside three"
    );
}

// C63
#[test]
fn a_flood_of_what_was_never_seen_does_not_go_ahead_of_its_turns() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &["--weight", "100"]);
    let mut other = node.stepper_with("other", &["--weight", "300"]);
    other.begin("work-for 3500 1000000 10");
    std::thread::sleep(Duration::from_millis(700));
    // Half a second of work, which a quarter of the device takes two seconds to do. A launch that waits for its
    // turn holds up its program, so the last one is let through when most are done.
    let answer = program.ok("work-launch cuLaunchKernel 5000000 100");
    let took_us = number(&answer, "took_us");
    assert!(took_us >= 500_000, "all were let through in {took_us} us");
    assert_eq!(number(&other.answer("work-for", BOUND), "rc"), 0);
}

// C74
#[test]
fn host_functions_keep_their_order_and_number_on_a_shared_device() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    let mut other = node.stepper_with("other", &[]);
    other.begin("work-for 2000 1000000 10");
    std::thread::sleep(Duration::from_millis(500));
    let answer = program.ok("work-host 300 200000");
    assert_eq!(number(&answer, "ran"), 300, "{answer}");
    assert_eq!(number(&answer, "out_of_order"), 0, "{answer}");
    assert!(
        number(&node.compute("web"), "held") > 0,
        "nothing was shared"
    );
    assert_eq!(number(&other.answer("work-for", BOUND), "rc"), 0);
}

// C70
#[test]
fn while_a_launch_is_held_every_other_call_goes_on() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    program.ok("work-launch cuLaunchKernel 1000 1");
    program.ok("work-wait");
    let (is_done, text) = node.sluice(&["pause", "web"]);
    assert!(is_done, "{text}");
    program.ok("work-beside 1000");
    eventually("the launch is held", BOUND, || {
        waits(&node.compute("web")).then_some(())
    });
    // None of these may wait for the other thread, which nobody lets go.
    for step in [
        "alloc a 1MiB",
        "fill a 7 4096",
        "read a",
        "info",
        "synchronize",
        "free a",
    ] {
        program.ok(step);
        assert!(waits(&node.compute("web")), "after {step}");
    }
    let (is_done, text) = node.sluice(&["resume", "web"]);
    assert!(is_done, "{text}");
    program.ok("work-join");
}

// C75
#[test]
fn a_tenant_starts_though_another_saturates_the_device_or_is_stopped() {
    let _alone = support::alone();
    let node = Node::start();
    let mut first = node.stepper_with("first", &[]);
    first.begin("work-for 60000 2000000 10");
    for round in 0..2 {
        let mut second = node.stepper_with(&format!("second-{round}"), &[]);
        second.ok("alloc a 64MiB");
        second.ok("work-launch cuLaunchKernel 100000 10");
        second.ok("work-wait");
        support::signal(first.pid(), libc::SIGSTOP);
    }
    support::signal(first.pid(), libc::SIGKILL);
}
