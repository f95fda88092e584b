//! Containers, run by real engines, on one stand-in GPU.
//!
//! What an engine needs that this machine does not have (root, the engine itself) makes its tests *ignored*,
//! with the reason on standard error: nothing that did not run counts as passed.

#[path = "../support/mod.rs"]
mod support;

mod bundle;
mod docker;
mod image;
mod kinds;
mod modern;
mod next;
mod podman;
mod runc;
mod tree;

use libtest_mimic::{Arguments, Trial};

/// One test.
pub(crate) type Test = (&'static str, fn());

/// An engine: its name, why its tests cannot run here, and the tests.
type Engine = (&'static str, fn() -> Option<String>, &'static [Test]);

const ENGINES: &[Engine] = &[
    ("runc", runc::missing, runc::TESTS),
    ("podman", podman::missing, podman::TESTS),
    ("docker", docker::missing, docker::TESTS),
    ("modern", modern::missing, modern::TESTS),
    ("next", next::missing, next::TESTS),
];

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (engine, missing, tests) in ENGINES {
        let names: Vec<String> = tests
            .iter()
            .map(|(name, _)| format!("{engine}::{name}"))
            .collect();
        // Looking for an engine may take a minute.
        let is_asked_for = arguments
            .filter
            .as_ref()
            .is_none_or(|filter| names.iter().any(|name| name.contains(filter)));
        let missing = (is_asked_for && !arguments.list).then(missing).flatten();
        if let Some(reason) = &missing {
            eprintln!("NOT RUN: containers of {engine}: {reason}");
        }
        trials.extend(names.into_iter().zip(*tests).map(|(name, (_, test))| {
            let test = *test;
            Trial::test(name, move || {
                test();
                Ok(())
            })
            .with_ignored_flag(missing.is_some())
        }));
    }
    let conclusion = libtest_mimic::run(&arguments, trials);
    podman::tidy();
    conclusion.exit();
}

/// Why no engine at all can run here.
pub(crate) fn no_root() -> Option<String> {
    // SAFETY: asks a number of the kernel.
    (unsafe { libc::geteuid() } != 0).then(|| "this is not root".to_owned())
}

/// Why an engine cannot run here: a program is missing.
pub(crate) fn missing_program(programs: &[&str]) -> Option<String> {
    let program = programs
        .iter()
        .find(|program| image::find(program).is_none())?;
    Some(format!(
        "there is no {program}; `apt-get install {program}` has it"
    ))
}
