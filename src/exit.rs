//! Exit codes: those of `env` and `nice`, so that scripts can tell Sluice's failures from a program's.

use std::process::ExitCode;

/// How the program ends. A command line that makes no sense ends with 2, which `clap` does itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It worked.
    Success,
    /// A promise did not hold (`demo`).
    Broken,
    /// Sluice itself failed.
    Sluice,
    /// The program to run cannot be executed.
    CannotExecute,
    /// The program to run was not found.
    NotFound,
    /// Another program's own code, or 128 and the number of the signal that ended it.
    Of(u8),
}

impl Exit {
    /// For a program that could not be started.
    pub(crate) fn of_failed_start(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NotFound,
            _ => Self::CannotExecute,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Success => 0,
            Exit::Broken => 1,
            Exit::Sluice => 125,
            Exit::CannotExecute => 126,
            Exit::NotFound => 127,
            Exit::Of(code) => code,
        })
    }
}
