//! What is given to others: built as `packaging/build` builds it, and run in systems that are not this one.
//!
//! What a test needs that this machine does not have (the tools of the build, root, debootstrap) makes it *ignored*,
//! with the reason on standard error: nothing that did not run counts as passed.

#[path = "../support/mod.rs"]
mod support;

mod packages;
mod roots;

use libtest_mimic::{Arguments, Trial};

/// One test.
type Test = (&'static str, fn());

/// Tests with what they need: why that is not there.
type Group = (fn() -> Option<String>, &'static [Test]);

const GROUPS: &[Group] = &[
    (packages::missing, packages::TESTS),
    (roots::missing, roots::TESTS),
];

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (missing, tests) in GROUPS {
        let is_asked_for = |name: &str| {
            let filter = arguments.filter.as_ref();
            filter.is_none_or(|filter| name.contains(filter.as_str()))
        };
        // Making what they need takes minutes.
        let is_asked_for = tests.iter().any(|(name, _)| is_asked_for(name)) && !arguments.list;
        let missing = is_asked_for.then(missing).flatten();
        if let Some(reason) = &missing {
            for (name, _) in *tests {
                eprintln!("NOT RUN: {name}: {reason}");
            }
        }
        trials.extend(tests.iter().map(|(name, test)| {
            let test = *test;
            Trial::test(*name, move || {
                test();
                Ok(())
            })
            .with_ignored_flag(missing.is_some())
        }));
    }
    libtest_mimic::run(&arguments, trials).exit();
}
