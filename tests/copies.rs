//! Copies and fills: every form of them is counted, with its bytes, and none is held unless the daemon is
//! told to.

mod support;

use ffi::symbols::{Class, DRIVER};
use serde_json::Value;
use std::time::Duration;
use support::stepper::number;
use support::{Node, Setup, eventually};

/// Longest that a step of a test may take, which is an error and no measurement.
const BOUND: Duration = Duration::from_secs(60);

/// What `move` moves.
const BYTES: i64 = 4096;

fn counted(compute: &Value) -> [i64; 4] {
    ["copies", "copied_bytes", "fills", "filled_bytes"].map(|word| number(compute, word))
}

#[test]
fn every_copy_and_every_fill_that_the_driver_takes_is_counted_with_its_bytes() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    let mut before = counted(&node.compute("web"));
    assert_eq!(before, [0; 4]);
    let (mut taken, mut refused) = (0, Vec::new());
    let moves = DRIVER
        .iter()
        .filter(|symbol| matches!(symbol.class, Class::Copy | Class::Memset))
        // Before CUDA 3.2 addresses had 32 bits, which no memory here has.
        .filter(|symbol| symbol.until > 3020);
    for symbol in moves {
        let answer = program.step(&format!("move {}", symbol.name));
        let is_taken = number(&answer, "rc") == 0;
        let (calls, bytes) = if is_taken { (1, BYTES) } else { (0, 0) };
        let now = counted(&node.compute("web"));
        let more = match symbol.class {
            Class::Copy => [calls, bytes, 0, 0],
            _ => [0, 0, calls, bytes],
        };
        let wanted: Vec<i64> = before
            .iter()
            .zip(more)
            .map(|(was, more)| was + more)
            .collect();
        assert_eq!(now.to_vec(), wanted, "{}: {answer}", symbol.name);
        before = now;
        if is_taken {
            taken += 1;
        } else {
            refused.push(symbol.name);
        }
    }
    println!("refused: {refused:?}");
    assert!(taken >= 60, "{taken} were taken, not {refused:?}");
}

#[test]
fn a_copy_into_a_capturing_stream_is_no_copy_yet() {
    let _alone = support::alone();
    let node = Node::start();
    let mut program = node.stepper_with("web", &[]);
    program.ok("move-captured");
    assert_eq!(counted(&node.compute("web")), [0; 4]);
    program.ok("move cuMemcpyAsync");
    assert_eq!(counted(&node.compute("web")), [1, BYTES, 0, 0]);
}

#[test]
fn copies_are_held_where_the_daemon_is_told_so_and_nowhere_else() {
    let _alone = support::alone();
    let symbols = [
        "cuMemcpyAsync",
        "cuMemcpyHtoD_v2",
        "cuMemsetD8_v2",
        "cuMemsetD32Async_ptsz",
    ];
    let free = Node::start();
    let mut program = free.stepper_with("web", &[]);
    let (is_done, text) = free.sluice(&["pause", "web"]);
    assert!(is_done, "{text}");
    for symbol in symbols {
        program.ok(&format!("move {symbol}"));
    }
    drop(program);
    drop(free);
    let node = Node::with(&Setup {
        config: "[compute]\ngate_copies = true",
        ..Setup::default()
    });
    let mut program = node.stepper_with("web", &[]);
    for symbol in symbols {
        let (is_done, text) = node.sluice(&["pause", "web"]);
        assert!(is_done, "{text}");
        let step = format!("move {symbol}");
        program.begin(&step);
        eventually(&format!("{symbol} waits"), BOUND, || {
            (number(&node.compute("web"), "waiting") > 0).then_some(())
        });
        let (is_done, text) = node.sluice(&["resume", "web"]);
        assert!(is_done, "{text}");
        assert_eq!(number(&program.answer(&step, BOUND), "rc"), 0, "{symbol}");
    }
    let compute = node.compute("web");
    assert_eq!(number(&compute, "held"), symbols.len() as i64);
    assert_eq!(counted(&compute), [2, 2 * BYTES, 2, 2 * BYTES]);
}
