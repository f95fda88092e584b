//! Promises C1 and C3 beside neighbours that behave badly: what they do costs them, and not who is beside them.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{Node, Stepper};

/// Longest that a step of a test may take, which is an error and no measurement.
const BOUND: Duration = Duration::from_secs(60);

const MS: u64 = 1_000_000;

/// A launch waits at most two seconds for its turn; what is more is a busy machine's.
const LONGEST_LAUNCH_US: i64 = 3_500_000;

/// What a tenant gets that has 1 ms kernels without end, beside one that does `step`: of what both get, and of the
/// time that passes.
fn share_beside(step: &str, length: Duration) -> (f64, f64) {
    let node = Node::start();
    let mut rude = node.stepper_with("rude", &[]);
    let mut other = node.stepper_with("other", &[]);
    let ms = length.as_millis() as u64 + 1_500;
    rude.begin(&step.replace("MS", &ms.to_string()));
    other.begin(&format!("work-for {ms} {MS} 10"));
    std::thread::sleep(Duration::from_secs(1));
    let busy = |program: &Stepper| node.busy(program.pid());
    let before = [busy(&rude), busy(&other)];
    std::thread::sleep(length);
    let got = [busy(&rude) - before[0], busy(&other) - before[1]].map(|it| it.as_secs_f64());
    for program in [&mut rude, &mut other] {
        let answer = program.answer(step, BOUND);
        assert_eq!(number(&answer, "rc"), 0, "{answer}");
        let longest = number(&answer, "longest_launch_us");
        assert!(longest <= LONGEST_LAUNCH_US, "{step}: {answer}");
    }
    println!("{step}: {got:?}");
    (got[1] / (got[0] + got[1]), got[1] / length.as_secs_f64())
}

#[test]
fn who_never_waits_for_its_kernels_gets_its_share_and_no_more() {
    let _alone = support::alone();
    let (share, _) = share_beside("work-flood MS 300000", Duration::from_secs(3));
    assert!((share - 0.5).abs() <= 0.18, "{share}");
}

#[test]
fn a_million_empty_kernels_a_second_take_nobody_s_time() {
    let _alone = support::alone();
    let (_, part) = share_beside("work-flood MS 0", Duration::from_secs(3));
    assert!(part >= 0.35, "{part}");
}

#[test]
fn kernels_of_half_a_second_are_paid_back() {
    let _alone = support::alone();
    let (share, _) = share_beside("work-for MS 500000000 500", Duration::from_secs(8));
    assert!((share - 0.5).abs() <= 0.2, "{share}");
}

#[test]
fn who_waits_for_somebody_else_holds_up_nobody() {
    let _alone = support::alone();
    let node = Node::start();
    let mut blocked = node.stepper_with("blocked", &[]);
    let mut other = node.stepper_with("other", &[]);
    blocked.ok("work-block");
    other.begin("work-for 3000 1000000 10");
    std::thread::sleep(Duration::from_secs(1));
    let (begin, before) = (Instant::now(), node.busy(other.pid()));
    std::thread::sleep(Duration::from_secs(1));
    let part = (node.busy(other.pid()) - before).as_secs_f64() / begin.elapsed().as_secs_f64();
    assert!(part >= 0.6, "beside one who waits it got {part:.2}");
    blocked.ok("work-unblock");
    blocked.ok("work-wait");
    let answer = other.answer("work-for", BOUND);
    assert_eq!(number(&answer, "rc"), 0);
    assert!(
        number(&answer, "longest_launch_us") <= LONGEST_LAUNCH_US,
        "{answer}"
    );
}
