//! `sluice install`, and the libraries that it lays down.

mod support;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use support::{PATIENCE, elf, finish, libraries, sluice, succeed};

/// Every file of a complete folder of libraries, and the SONAME of each.
const LIBRARIES: [(&str, &str); 7] = [
    ("libsluice.so", "libsluice.so"),
    ("libsluice-cuda.so", "libcuda.so"),
    ("libsluice-cuda-1.so", "libcuda.so.1"),
    ("libsluice-nvml.so", "libnvidia-ml.so"),
    ("libsluice-nvml-1.so", "libnvidia-ml.so.1"),
    ("stand-in/libcuda.so.1", "libcuda.so.1"),
    ("stand-in/libnvidia-ml.so.1", "libnvidia-ml.so.1"),
];

fn prefix() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

fn install(into: &Path) -> String {
    succeed(Command::new(sluice()).arg("install").arg(into), PATIENCE)
}

/// How many versions of the libraries an installation has.
fn versions(prefix: &Path) -> usize {
    let folder = prefix.join("lib/sluice-libraries");
    fs::read_dir(folder).expect("installed").count()
}

/// Everything below a folder, sorted.
fn tree(folder: &Path) -> Vec<String> {
    let mut command = Command::new("find");
    command.current_dir(folder).args([".", "-mindepth", "1"]);
    let listing = succeed(&mut command, PATIENCE);
    let mut all: Vec<String> = listing
        .lines()
        .map(|line| line.trim_start_matches("./").to_owned())
        .collect();
    all.sort();
    all
}

fn tags(library: &Path, tag: &str) -> Vec<String> {
    let listing = succeed(Command::new("readelf").arg("-dW").arg(library), PATIENCE);
    let lines = listing.lines().filter(|line| line.contains(tag));
    lines
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect()
}

#[test]
fn one_preload_answers_to_all_four_names_of_the_drivers() {
    for (file, soname) in LIBRARIES {
        assert_eq!(
            tags(&libraries().join(file), "(SONAME)"),
            [soname],
            "{file}"
        );
    }
    let shim = libraries().join("libsluice.so");
    for (alias, _) in &LIBRARIES[1..5] {
        let path = libraries().join(alias);
        assert_eq!(elf::needed(&path), ["libsluice.so"], "{alias}");
        assert_eq!(tags(&path, "(RUNPATH)"), ["$ORIGIN"], "{alias}");
        assert!(
            elf::needed(&shim).iter().any(|needed| needed == alias),
            "the shim needs {alias}"
        );
    }
    assert_eq!(tags(&shim, "(RUNPATH)"), ["$ORIGIN"]);
}

#[test]
fn no_library_asks_for_an_executable_stack() {
    for (file, _) in LIBRARIES {
        let headers = succeed(
            Command::new("readelf")
                .arg("-lW")
                .arg(libraries().join(file)),
            PATIENCE,
        );
        let stack = headers
            .lines()
            .find(|line| line.contains("GNU_STACK"))
            .expect(file);
        assert!(!stack.contains("RWE"), "{file}: {stack}");
    }
}

#[test]
fn what_is_laid_down_is_complete_and_needs_no_source_tree() {
    let prefix = prefix();
    install(prefix.path());
    let folder = prefix.path().join("lib/sluice");
    for (file, _) in LIBRARIES {
        let (ours, theirs) = (libraries().join(file), folder.join(file));
        assert_eq!(
            fs::read(&theirs).expect(file),
            fs::read(ours).expect(file),
            "{file}"
        );
        let mode = fs::metadata(&theirs).expect(file).permissions().mode();
        assert_eq!(mode & 0o777, 0o644, "{file}");
    }
    for link in ["stand-in/libcuda.so", "stand-in/libnvidia-ml.so"] {
        assert!(folder.join(link).exists(), "{link}");
    }
    let version = succeed(
        Command::new(prefix.path().join("bin/sluice")).arg("version"),
        PATIENCE,
    );
    assert!(version.contains(&*folder.to_string_lossy()), "{version}");
}

#[test]
fn a_second_installation_changes_nothing() {
    let prefix = prefix();
    let first = install(prefix.path());
    assert!(
        first.lines().all(|line| line.starts_with("made")),
        "{first}"
    );
    let second = install(prefix.path());
    assert!(
        second.lines().all(|line| line.contains("up to date")),
        "{second}"
    );
    let dry = succeed(
        Command::new(sluice())
            .args(["install", "--dry-run"])
            .arg(prefix.path().join("other")),
        PATIENCE,
    );
    assert!(
        dry.lines().all(|line| line.starts_with("would make")),
        "{dry}"
    );
    assert!(!prefix.path().join("other").exists());
}

#[test]
fn an_installed_program_installs_itself_elsewhere() {
    let (first, second) = (prefix(), prefix());
    install(first.path());
    let program = first.path().join("bin/sluice");
    succeed(
        Command::new(&program).arg("install").arg(second.path()),
        PATIENCE,
    );
    let there = second.path().join("bin/sluice");
    assert_eq!(
        fs::read(there).expect("installed"),
        fs::read(program).expect("installed")
    );
}

#[test]
fn a_program_that_runs_keeps_the_libraries_that_it_started_with() {
    let prefix = prefix();
    install(prefix.path());
    let shim = prefix.path().join("lib/sluice/libsluice.so");
    // An older version, as far as the installer can tell: other bytes behind the end.
    let mut older = fs::read(&shim).expect("installed");
    older.extend_from_slice(b"older");
    fs::remove_file(&shim).expect("installed");
    fs::write(&shim, older).expect("a writable folder");

    let mut program = Command::new("cat")
        .env("LD_PRELOAD", &shim)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("cat");
    support::eventually("the library is mapped", PATIENCE, || {
        let maps = fs::read_to_string(format!("/proc/{}/maps", program.id())).ok()?;
        maps.contains("libsluice.so").then_some(())
    });
    let said = install(prefix.path());
    assert!(said.contains("replaced"), "{said}");
    let pid = program.id().to_string();
    assert!(
        said.contains(&format!("is kept for process {pid}")),
        "{said}"
    );
    assert_eq!(versions(prefix.path()), 2);
    // Not taken from under it either.
    let mut uninstall = Command::new(sluice());
    let output = finish(uninstall.arg("uninstall").arg(prefix.path()), PATIENCE);
    let words = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        !output.status.success() && words.contains(&pid),
        "{output:?}"
    );
    drop(program.stdin.take());
    assert!(program.wait().expect("our own child").success());
    let new = fs::read(&shim).expect("installed");
    assert_eq!(
        new,
        fs::read(libraries().join("libsluice.so")).expect("built")
    );
    // The next installation sees that nobody uses it any more.
    install(prefix.path());
    assert_eq!(versions(prefix.path()), 1);
    let mut uninstall = Command::new(sluice());
    succeed(uninstall.arg("uninstall").arg(prefix.path()), PATIENCE);
    assert_eq!(tree(prefix.path()), ["bin", "lib"]);
}

#[test]
fn somebody_elses_folder_is_left_alone() {
    let prefix = prefix();
    let folder = prefix.path().join("lib/sluice");
    fs::create_dir_all(&folder).expect("a writable folder");
    fs::write(folder.join("notes.txt"), "mine").expect("a writable folder");
    let output = finish(
        Command::new(sluice()).arg("install").arg(prefix.path()),
        PATIENCE,
    );
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{words}");
    assert!(words.contains(&*folder.to_string_lossy()), "{words}");
    assert_eq!(
        fs::read(folder.join("notes.txt")).expect("still there"),
        b"mine"
    );
}

#[test]
fn a_missing_library_is_named() {
    let prefix = prefix();
    install(prefix.path());
    let missing = prefix.path().join("lib/sluice/libsluice-cuda.so");
    fs::remove_file(&missing).expect("installed");
    let mut run = Command::new(prefix.path().join("bin/sluice"));
    let output = finish(
        run.args(["run", "--memory", "1GiB", "--", "true"]),
        PATIENCE,
    );
    let words = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{words}");
    assert!(words.contains(&*missing.to_string_lossy()), "{words}");
}
