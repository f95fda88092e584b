//! The thread that says in each control page that the daemon lives, and keeps the ledger's file up to
//! date.

use crate::state::{Shared, monotonic_ns};
use std::time::Duration;

/// How often; readers take a daemon for gone after 1 s, so three beats may be late.
const PERIOD: Duration = Duration::from_millis(250);

/// Runs until the daemon stops.
pub(crate) fn run(shared: &Shared) {
    while !shared.is_stopping() {
        let is_unsaved = {
            let state = shared.state();
            let now_ns = monotonic_ns();
            for pages in state.pages.values() {
                pages.control.beat(now_ns);
            }
            state.is_unsaved
        };
        if is_unsaved {
            shared.save();
        }
        std::thread::park_timeout(PERIOD);
    }
}
