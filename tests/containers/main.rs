//! Containers, run by real engines, on one stand-in GPU.
//!
//! What an engine needs that this machine does not have (root, the engine itself) makes its tests *ignored*,
//! with the reason on standard error: nothing that did not run counts as passed.

#[path = "../support/mod.rs"]
mod support;

mod bundle;
mod docker;
mod image;
mod podman;
mod runc;

use libtest_mimic::{Arguments, Trial};

/// One test.
pub(crate) type Test = (&'static str, fn());

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (engine, missing, tests) in [
        ("runc", runc::missing(), runc::TESTS),
        ("podman", podman::missing(), podman::TESTS),
        ("docker", docker::missing(), docker::TESTS),
    ] {
        if let Some(reason) = &missing
            && !arguments.list
        {
            eprintln!("NOT RUN: containers of {engine}: {reason}");
        }
        trials.extend(tests.iter().map(|(name, test)| {
            let test = *test;
            Trial::test(format!("{engine}::{name}"), move || {
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
