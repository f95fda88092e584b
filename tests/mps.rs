//! Shares where kernels of several tenants may run at once, as under NVIDIA's MPS.

mod support;

use std::time::{Duration, Instant};
use support::stepper::number;
use support::{Node, Setup, Stepper};

/// Longest that a step of a test may take, which is an error and no measurement.
const BOUND: Duration = Duration::from_secs(60);

fn side_by_side() -> Node {
    Node::with(&Setup {
        gpu: vec!["--mps"],
        ..Setup::default()
    })
}

/// What part of the time the kernels of each run, while all want all of it.
fn shares(node: &Node, programs: &mut [(&mut Stepper, u64)]) -> Vec<f64> {
    for (program, kernel_ns) in programs.iter_mut() {
        program.begin(&format!("work-for 3500 {kernel_ns} 20"));
    }
    std::thread::sleep(Duration::from_secs(1));
    let account = |programs: &[(&mut Stepper, u64)]| -> Vec<Duration> {
        let all = programs.iter();
        all.map(|(program, _)| node.busy(program.pid())).collect()
    };
    let (begin, before) = (Instant::now(), account(programs));
    std::thread::sleep(Duration::from_secs(2));
    let (passed, after) = (begin.elapsed(), account(programs));
    for (program, _) in programs.iter_mut() {
        assert_eq!(number(&program.answer("work-for", BOUND), "rc"), 0);
    }
    let got = after.iter().zip(&before);
    got.map(|(after, before)| (*after - *before).as_secs_f64() / passed.as_secs_f64())
        .collect()
}

#[test]
fn tenants_get_their_weights_also_where_kernels_may_run_at_once() {
    let _alone = support::alone();
    let node = side_by_side();
    let mut three = node.stepper_with("three", &["--weight", "300"]);
    let mut one = node.stepper_with("one", &["--weight", "100"]);
    for kernels in [(1_000_000, 1_000_000), (100_000, 10_000_000)] {
        let got = shares(&node, &mut [(&mut three, kernels.0), (&mut one, kernels.1)]);
        let sum = got[0] + got[1];
        println!("{kernels:?}: {got:?}");
        assert!((got[0] / sum - 0.75).abs() <= 0.15, "{kernels:?}: {got:?}");
        // Without turns each would have all of its time, side by side.
        assert!((0.7..=1.5).contains(&sum), "{kernels:?}: {got:?}");
    }
}

#[test]
fn a_ceiling_holds_also_where_kernels_may_run_at_once() {
    let _alone = support::alone();
    let node = side_by_side();
    let mut capped = node.stepper_with("capped", &["--compute-max", "30%"]);
    let mut other = node.stepper_with("other", &[]);
    let got = shares(
        &node,
        &mut [(&mut capped, 1_000_000), (&mut other, 1_000_000)],
    );
    println!("{got:?}");
    assert!(got[0] <= 0.45, "{got:?}");
    assert!(got[1] >= 0.4, "{got:?}");
}
