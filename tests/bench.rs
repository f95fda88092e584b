//! The benchmarks run, and what they measure does not grow with what is live or with who shares.
//!
//! How fast it is they say themselves (`docs/benchmarks.md`); a busy machine says nothing about that, so the
//! tests look at shape alone.

mod support;

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use support::{sluice, succeed};

/// More than noise on two busy cores ever made of it, and far less than a cost that grows with 100,000
/// allocations or with 256 processes would.
const FLAT: f64 = 20.0;

#[test]
fn an_allocation_costs_the_same_however_much_is_live_and_however_many_share() {
    let mut command = Command::new(sluice());
    command.args(["bench", "memory", "--json", "--rounds", "101"]);
    let text = succeed(&mut command, Duration::from_secs(120));
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    for key in ["plain_pair_ns", "pair_ns", "pair_ns_at_100k_live"] {
        assert!(report[key].as_f64().is_some_and(|ns| ns > 0.0), "{report}");
    }
    let crowds = report["crowds"].as_array().expect("a list");
    let processes: Vec<&Value> = crowds.iter().map(|crowd| &crowd["processes"]).collect();
    assert_eq!(processes, [1, 16, 256]);
    let alone = report["pair_ns"].as_f64().expect("a number");
    for crowd in crowds {
        for live in ["none_live", "many_live"] {
            let pair = crowd[live]["sluice_ns"].as_f64().expect("a number");
            assert!(pair <= alone * FLAT, "{live}: {crowd} beside {alone} ns");
        }
    }
}
