//! `sluice version`: what this is, and from which sources.

use crate::exit::Exit;
use crate::libraries::Libraries;
use std::env::consts::{ARCH, OS};

/// Prints version, revision, machine and the library folder that `sluice run` would use.
pub(crate) fn run() -> anyhow::Result<Exit> {
    let revision = option_env!("SLUICE_REVISION").unwrap_or("no revision");
    println!(
        "sluice {} ({revision}, {ARCH}-{OS})",
        env!("CARGO_PKG_VERSION")
    );
    match Libraries::find() {
        Ok(libraries) => println!("libraries: {}", libraries.folder().display()),
        Err(error) => println!("libraries: {error:#}"),
    }
    Ok(Exit::Success)
}
