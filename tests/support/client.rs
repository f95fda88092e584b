//! The programs of `tests/client`, built once for each run of a test program.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// A program that knows nothing of Sluice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    /// Does what it is told, one step a line.
    Stepper,
    /// Goes through cudarc.
    Cudarc,
    /// Goes through nvml-wrapper.
    NvmlWrapper,
}

impl Program {
    /// The executable.
    ///
    /// # Panics
    /// With cargo's words, when the programs cannot be built.
    pub fn path(self) -> PathBuf {
        static FOLDER: OnceLock<PathBuf> = OnceLock::new();
        FOLDER.get_or_init(build).join(match self {
            Self::Stepper => "stepper",
            Self::Cudarc => "with-cudarc",
            Self::NvmlWrapper => "with-nvml-wrapper",
        })
    }
}

/// Builds into a target folder of their own, so that cargo's locks are those of this build alone.
/// Cargo itself finds out that there is nothing to do.
fn build() -> PathBuf {
    let target = super::kept("clients");
    let mut cargo = Command::new(env!("CARGO"));
    cargo
        .args(["build", "--quiet", "--locked", "-p", "sluice-test-client"])
        .arg("--manifest-path")
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"))
        .arg("--target-dir")
        .arg(&target)
        .env_remove("RUSTFLAGS")
        .env_remove("LD_PRELOAD");
    if let Err(reason) = super::once::run(&mut cargo) {
        panic!("the programs of tests/client cannot be built: {reason}");
    }
    target.join("debug")
}
