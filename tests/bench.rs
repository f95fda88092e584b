//! What Sluice adds to a call stays within its promise.

mod support;

use serde_json::Value;
use std::process::Command;
use std::time::Duration;
use support::{sluice, succeed};

/// What an allocation and its free may cost more, in nanoseconds.
const MAY_ADD_NS: f64 = 200.0;

#[test]
fn an_allocation_and_its_free_cost_little_more_however_much_is_live_and_however_many_share() {
    let mut command = Command::new(sluice());
    command.args(["bench", "memory", "--json", "--rounds", "101"]);
    let text = succeed(&mut command, Duration::from_secs(120));
    let report: Value = serde_json::from_str(&text).expect("one JSON object");
    for key in ["plain_pair_ns", "pair_ns", "pair_ns_at_100k_live"] {
        assert!(report[key].as_f64().is_some_and(|ns| ns > 0.0), "{report}");
    }
    let crowds = report["crowds"].as_array().expect("a list");
    assert_eq!(crowds.len(), 3);
    for crowd in crowds {
        for live in ["none_live", "many_live"] {
            let added = crowd[live]["added_ns"].as_f64().expect("a number");
            assert!(
                added <= MAY_ADD_NS,
                "{live} in a crowd of {}: {added} ns",
                crowd["processes"]
            );
        }
    }
}
