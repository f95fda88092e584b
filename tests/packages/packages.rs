//! The packages, built once, and what is in them.

use crate::Test;
use crate::support::elf;
use crate::support::{finish, succeed};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// Longest that a build from nothing takes on two busy cores, twice over.
const BUILT_WITHIN: Duration = Duration::from_secs(1_200);

/// Longest that anything else takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

pub(crate) const TESTS: &[Test] = &[
    (
        "libraries_load_on_every_system_since_glibc_2_17",
        libraries_load_on_every_system_since_glibc_2_17,
    ),
    (
        "the_archive_runs_wherever_it_is_unpacked",
        the_archive_runs_wherever_it_is_unpacked,
    ),
];

/// Paths of the packages.
fn built() -> &'static Result<Vec<PathBuf>, String> {
    static BUILT: OnceLock<Result<Vec<PathBuf>, String>> = OnceLock::new();
    BUILT.get_or_init(|| {
        if !cfg!(target_arch = "x86_64") {
            return Err("packages are made for x86-64".to_owned());
        }
        eprintln!("builds the packages: about five minutes the first time");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging/build");
        let output = finish(&mut Command::new(script), BUILT_WITHIN);
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        match output.status.code() {
            Some(0) => Ok(String::from_utf8_lossy(&output.stdout)
                .lines()
                .map(PathBuf::from)
                .collect()),
            Some(3) => Err(words),
            _ => panic!("packaging/build: {words}"),
        }
    })
}

pub(crate) fn missing() -> Option<String> {
    built().as_ref().err().cloned()
}

/// The package with this end.
pub(crate) fn package(end: &str) -> PathBuf {
    let all = built().as_ref().expect("asked for before");
    let found = all
        .iter()
        .find(|path| path.to_string_lossy().ends_with(end));
    found
        .unwrap_or_else(|| panic!("no {end} in {all:?}"))
        .clone()
}

/// The archive, unpacked; the folder of the program and the libraries in it.
pub(crate) fn unpacked() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut tar = Command::new("tar");
    tar.arg("-xzf").arg(package(".tar.gz"));
    tar.arg("-C").arg(folder.path()).arg("--strip-components=1");
    succeed(&mut tar, PATIENCE);
    let path = folder.path().to_owned();
    (folder, path)
}

// C36
fn libraries_load_on_every_system_since_glibc_2_17() {
    let (_folder, prefix) = unpacked();
    let libraries = prefix.join("lib/sluice");
    for file in [
        "libsluice.so",
        "libsluice-cuda.so",
        "libsluice-cuda-1.so",
        "libsluice-nvml.so",
        "libsluice-nvml-1.so",
        "stand-in/libcuda.so.1",
        "stand-in/libnvidia-ml.so.1",
    ] {
        let library = libraries.join(file);
        for needed in elf::needed(&library) {
            let is_glibc = [
                "libc.so.6",
                "libdl.so.2",
                "libpthread.so.0",
                "ld-linux-x86-64.so.2",
            ];
            assert!(
                needed.starts_with("libsluice") || is_glibc.contains(&&*needed),
                "{file} needs {needed}"
            );
        }
        for symbol in elf::symbols(&library) {
            let version = symbol.version.trim_start_matches('@');
            let Some(number) = version.strip_prefix("GLIBC_") else {
                continue;
            };
            let parts: Vec<u32> = number.split('.').filter_map(|it| it.parse().ok()).collect();
            assert!(
                parts.len() >= 2 && (parts[0], parts[1]) <= (2, 17),
                "{file} wants {} of {version}",
                symbol.name
            );
        }
    }
}

fn the_archive_runs_wherever_it_is_unpacked() {
    let (_folder, prefix) = unpacked();
    let mut demo = Command::new(prefix.join("bin/sluice"));
    demo.args(["demo", "--device", "stand-in", "--seconds", "2", "--json"]);
    assert_held(&finish(&mut demo, PATIENCE));
}

/// A demo's report says that memory was held; a busy machine may spoil what it says of time, and so its exit code.
pub(crate) fn assert_held(output: &Output) {
    let report: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|error| panic!("{error}: {output:?}"));
    let promises = report["promises"].as_array().expect("a list");
    let memory: Vec<&serde_json::Value> = promises
        .iter()
        .filter(|promise| promise["id"].as_str().is_some_and(|id| id.starts_with('M')))
        .collect();
    assert!(!memory.is_empty(), "{report:#}");
    for promise in memory {
        assert_eq!(promise["held"], true, "{report:#}");
    }
}
