//! How long processes had something to do and no processor to do it on.
//!
//! A program that the machine keeps from running submits no work, and a daemon that does not run grants no
//! turn. On a machine that has more to do than processors, that is no property of Sluice; the verdict says
//! how much of it there was, and allows for it.

use std::collections::BTreeMap;
use std::fs;

/// What each thread had waited for a processor at some time, in nanoseconds.
#[derive(Debug, Default, Clone)]
pub(crate) struct Waited(BTreeMap<(u32, u32), u64>);

impl Waited {
    /// Of all threads of these processes, as of now; what cannot be told is left out.
    pub(crate) fn of(pids: impl IntoIterator<Item = u32>) -> Self {
        let threads = pids.into_iter().flat_map(|pid| {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter();
            tasks.flatten().flatten().filter_map(move |task| {
                let thread = task.file_name().to_str()?.parse().ok()?;
                let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
                Some(((pid, thread), second_number(&text)?))
            })
        });
        Self(threads.collect())
    }

    /// The longest that one thread has waited since `former`, in nanoseconds.
    pub(crate) fn longest_since_ns(&self, former: &Self) -> u64 {
        let waited = self.0.iter().map(|(thread, now)| {
            let before = former.0.get(thread).copied().unwrap_or(0);
            now.saturating_sub(before)
        });
        waited.max().unwrap_or(0)
    }
}

/// How long this thread has waited so far, in nanoseconds; 0 where that cannot be told.
pub(crate) fn waited_here_ns() -> u64 {
    let text = fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    second_number(&text).unwrap_or(0)
}

/// Of `schedstat`: time on a processor, time of waiting for one, turns on it.
fn second_number(text: &str) -> Option<u64> {
    text.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_wait_of_one_thread_counts_and_no_sum() {
        let at = |waits: &[((u32, u32), u64)]| Waited(waits.iter().copied().collect());
        let before = at(&[((1, 1), 100), ((1, 2), 0), ((2, 2), 7)]);
        let after = at(&[((1, 1), 150), ((2, 2), 40), ((2, 9), 45)]);
        assert_eq!(after.longest_since_ns(&before), 50);
        assert_eq!(Waited::default().longest_since_ns(&before), 0);
    }

    #[test]
    fn waiting_is_the_second_of_three() {
        assert_eq!(second_number("12 34 5\n"), Some(34));
        assert_eq!(second_number(""), None);
    }

    #[test]
    fn there_is_something_to_read_of_ourselves() {
        assert!(!Waited::of([std::process::id()]).0.is_empty());
        assert!(Waited::of([u32::MAX]).0.is_empty());
    }
}
