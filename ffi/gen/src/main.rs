//! Makes the checked-in bindings and symbol tables of `ffi` anew.
//!
//! `ffi-gen --out ffi/src` writes them, `ffi-gen --check` says which of the checked-in files differ from
//! what would be written now, and exits 1 if any does. Headers and libclang come from the Python
//! package index, once, into `target/headers/`; nothing of theirs is checked in. A plain build never
//! runs this: it is for whoever raises the CUDA version or edits `ffi/gen/tables/`.

mod bindings;
mod headers;
mod rustfmt;
mod tables;

use std::collections::{BTreeMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Parser;

/// Makes the checked-in bindings and symbol tables of `ffi` anew.
#[derive(Parser)]
struct Options {
    /// Folder to write to, or to compare with: the `src` of `ffi`.
    #[arg(long, default_value_os_t = sources())]
    out: PathBuf,
    /// Write nothing; say what differs and exit 1 if anything does.
    #[arg(long)]
    check: bool,
    /// Folder that headers and libclang are kept in, filled where it is empty.
    #[arg(long, default_value_os_t = workspace().join("target/headers"))]
    headers: PathBuf,
}

fn main() -> Result<ExitCode> {
    let options = Options::parse();
    let files = generate(&options.headers)?;
    if options.check {
        return check(&files, &options.out);
    }
    for (name, text) in &files {
        let path = options.out.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)
                .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Every generated file: path below `ffi/src`, and text.
fn generate(headers: &Path) -> Result<BTreeMap<&'static str, String>> {
    let inputs = headers::fetch(headers)?;
    headers::use_libclang(&inputs);
    let tables = package().join("tables");
    let made = [
        ("driver.rs", bindings::driver(&inputs)?),
        ("nvml.rs", bindings::nvml(&inputs)?),
        ("symbols/driver.rs", tables::driver(&tables)?),
        ("symbols/nvml.rs", tables::nvml(&tables)?),
        ("symbols/codes.rs", tables::codes(&tables)?),
    ];
    made.into_iter()
        .map(|(name, text)| Ok((name, rustfmt::format(&text)?)))
        .collect()
}

/// Prints one line for each file that differs.
fn check(files: &BTreeMap<&'static str, String>, out: &Path) -> Result<ExitCode> {
    let mut code = ExitCode::SUCCESS;
    for (name, made) in files {
        let path = out.join(name);
        let kept = fs::read_to_string(&path).unwrap_or_default();
        if kept == *made {
            continue;
        }
        code = ExitCode::FAILURE;
        let (made, kept): (HashSet<_>, HashSet<_>) =
            (made.lines().collect(), kept.lines().collect());
        let (added, removed) = (
            made.difference(&kept).count(),
            kept.difference(&made).count(),
        );
        println!(
            "{} is stale: {added} new lines, {removed} gone",
            path.display()
        );
    }
    if code == ExitCode::FAILURE {
        println!("run `cargo run -p sluice-ffi-gen` and commit what it changes");
    }
    Ok(code)
}

/// The folder of this package.
fn package() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn sources() -> PathBuf {
    package().with_file_name("src")
}

fn workspace() -> PathBuf {
    package().ancestors().nth(2).unwrap_or(package()).to_owned()
}
