//! A Python environment with the real CUDA and NVML clients, made once under `target/python`.
//!
//! Its packages and their versions stand in `tests/clients/requirements.txt`. Making it needs
//! `python3` with `venv` and `pip`, and a package index; about 800 MB.

use super::once;
use std::path::PathBuf;
use std::process::Command;

/// What is installed; a change makes the environment anew.
const REQUIREMENTS: &str = include_str!("../clients/requirements.txt");

/// The interpreter of the environment.
///
/// # Panics
/// With the reason, when the environment cannot be made.
pub fn interpreter() -> PathBuf {
    let folder = once::folder("python", REQUIREMENTS, |folder| {
        once::run(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
        let requirements = concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/tests/clients/requirements.txt"
        );
        let mut install = Command::new(folder.join("bin/python"));
        install.args(["-m", "pip", "install", "--no-input", "--quiet", "-r"]);
        once::run(install.arg(requirements)).map(drop)
    });
    folder.join("bin/python")
}

/// A program that comes with one of the packages.
pub fn tool(name: &str) -> PathBuf {
    interpreter().with_file_name(name)
}

/// The path of `tests/clients/<name>`.
pub fn script(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/clients")).join(name)
}
