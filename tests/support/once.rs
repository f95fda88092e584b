//! Things that are made once and kept under `target/`, whatever number of test programs want them.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

/// The folder `target/<name>`, made by `make` unless a finished one with the same `recipe` is there.
///
/// `recipe` is the text that decides what the folder holds: another text makes it anew. One test
/// program makes it, the others wait. `make` gets the empty folder's final path, since some things
/// (Python environments) cannot be moved.
///
/// # Panics
/// With the reason, when it cannot be made.
pub fn folder(name: &str, recipe: &str, make: impl FnOnce(&Path) -> Result<(), String>) -> PathBuf {
    let folder = super::kept(name);
    let stamp = super::kept(&format!("{name}.recipe"));
    let attempt = || -> Result<(), String> {
        let io = |error: std::io::Error| format!("{}: {error}", folder.display());
        fs::create_dir_all(super::kept("")).map_err(io)?;
        let lock = File::create(super::kept(&format!("{name}.lock"))).map_err(io)?;
        lock.lock().map_err(io)?;
        if folder.is_dir() && fs::read_to_string(&stamp).is_ok_and(|found| found == recipe) {
            return Ok(());
        }
        eprintln!("making {} (once)", folder.display());
        for left in [&folder, &stamp] {
            let removed = match left.is_dir() {
                true => fs::remove_dir_all(left),
                false => fs::remove_file(left),
            };
            if let Err(error) = removed
                && error.kind() != std::io::ErrorKind::NotFound
            {
                return Err(io(error));
            }
        }
        fs::create_dir_all(&folder).map_err(io)?;
        make(&folder)?;
        fs::write(&stamp, recipe).map_err(io)
    };
    attempt().unwrap_or_else(|reason| panic!("{} cannot be made: {reason}", folder.display()));
    folder
}

/// Runs a command to its end; its own words if it fails.
pub fn run(command: &mut std::process::Command) -> Result<String, String> {
    let output = command
        .output()
        .map_err(|error| format!("{command:?}: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!(
            "{command:?} ended with {}: {}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
    }
}
