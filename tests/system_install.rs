//! `sluice install --system` and `sluice uninstall --system`: a node is made ready, upgraded and left as it was.

mod support;

use serde_json::Value;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use support::{PATIENCE, finish, sluice, succeed};

/// Files and links below a folder, sorted; folders are not told from each other.
fn files(root: &Path) -> Vec<String> {
    let mut command = Command::new("find");
    command.current_dir(root).args([".", "-not", "-type", "d"]);
    let listing = succeed(&mut command, PATIENCE);
    let mut all: Vec<String> = listing.lines().map(|line| line[1..].to_owned()).collect();
    all.sort();
    all
}

fn system(verb: &str, root: &Path) -> Command {
    let mut command = Command::new(sluice());
    command.args([verb, "--system", "--root"]).arg(root);
    command
}

/// What it says where it refuses.
fn refused(command: &mut Command) -> String {
    let output = finish(command, PATIENCE);
    assert!(!output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn root() -> tempfile::TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

/// A shell with mounts of its own; who is not root is it in there.
fn shell_with_mounts(script: &str) -> Command {
    let mut command = Command::new("unshare");
    if !nix::unistd::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--mount", "sh", "-c", script]);
    command
}

// C110
#[test]
fn a_node_is_made_ready_twice_alike_and_left_as_it_was() {
    let root = root();
    let theirs = root.path().join("etc/cdi/nvidia.yaml");
    fs::create_dir_all(root.path().join("etc/cdi")).expect("a folder");
    fs::write(&theirs, "cdiVersion: 0.5.0\n").expect("a file");
    let before = files(root.path());

    let dry = succeed(system("install", root.path()).arg("--dry-run"), PATIENCE);
    assert!(dry.contains("would make"), "{dry}");
    assert_eq!(files(root.path()), before);

    succeed(&mut system("install", root.path()), PATIENCE);
    let installed = files(root.path());
    for path in [
        "/etc/cdi/sluice.json",
        "/etc/sluice/sluice.toml",
        "/usr/local/bin/sluice",
        "/usr/local/bin/sluice-runtime",
        "/usr/local/lib/sluice",
        "/usr/local/lib/systemd/system/sluice.service",
        "/usr/local/lib/tmpfiles.d/sluice.conf",
    ] {
        assert!(
            installed.contains(&path.to_owned()),
            "{path}: {installed:?}"
        );
    }
    let again = succeed(&mut system("install", root.path()), PATIENCE);
    assert!(
        again
            .lines()
            .all(|line| line.contains("up to date") || line.contains("sluice.toml")),
        "{again}"
    );
    assert_eq!(files(root.path()), installed);

    let dry = succeed(system("uninstall", root.path()).arg("--dry-run"), PATIENCE);
    assert!(dry.contains("would remove"), "{dry}");
    assert_eq!(files(root.path()), installed);
    succeed(&mut system("uninstall", root.path()), PATIENCE);
    assert_eq!(
        files(root.path()),
        ["/etc/cdi/nvidia.yaml", "/etc/sluice/sluice.toml"]
    );
    succeed(system("uninstall", root.path()).arg("--purge"), PATIENCE);
    assert_eq!(files(root.path()), before);
}

#[test]
fn devices_name_the_places_of_the_installed_system() {
    let root = root();
    let config = root.path().join("etc/sluice/sluice.toml");
    fs::create_dir_all(config.parent().expect("a folder")).expect("a folder");
    let words = "[containers]\nclasses.tiny = { memory = \"1GiB\", memory_overcommit = true }\n";
    fs::write(&config, words).expect("a file");
    succeed(system("install", root.path()).arg("/usr"), PATIENCE);
    assert_eq!(fs::read_to_string(&config).expect("it is kept"), words);

    let text = fs::read_to_string(root.path().join("etc/cdi/sluice.json")).expect("installed");
    let devices: Value = serde_json::from_str(&text).expect("JSON");
    let names: Vec<&str> = devices["devices"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|device| device["name"].as_str())
        .collect();
    assert_eq!(names, ["tiny", "managed"]);
    let edits = &devices["devices"][0]["containerEdits"];
    let mounts = edits["mounts"].as_array().expect("a list");
    assert!(
        mounts
            .iter()
            .any(|mount| mount["hostPath"] == "/usr/lib/sluice"),
        "{edits:#}"
    );
    let hook = &edits["hooks"][0];
    assert_eq!(hook["path"], "/usr/bin/sluice");
    let arguments: Vec<&str> = hook["args"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    assert!(arguments.contains(&"--memory-overcommit"), "{hook:#}");
    assert!(!text.contains(&*root.path().to_string_lossy()), "{text}");
}

#[test]
fn what_is_not_ours_is_found_before_anything_is_changed() {
    let root = root();
    let unit = root
        .path()
        .join("usr/local/lib/systemd/system/sluice.service");
    fs::create_dir_all(unit.parent().expect("a folder")).expect("a folder");
    fs::write(&unit, "[Unit]\nDescription=mine\n").expect("a file");
    let before = files(root.path());
    let words = refused(&mut system("install", root.path()));
    assert!(words.contains(&*unit.to_string_lossy()), "{words}");
    assert_eq!(files(root.path()), before);
    let said = succeed(&mut system("uninstall", root.path()), PATIENCE);
    assert!(said.contains("left as it is"), "{said}");
    assert_eq!(files(root.path()), before);
    let words = refused(&mut system("install", &root.path().join("nowhere")));
    assert!(words.contains("is no folder"), "{words}");
}

/// What an engine does: the libraries mounted into a mount namespace of its own, and a program in it.
fn container(libraries: &Path, inside: &Path) -> Child {
    fs::create_dir_all(inside).expect("a folder");
    let script = format!(
        "mount --bind {} {} && echo ready && read line && test -s {}/libsluice.so && echo whole && read line",
        libraries.display(),
        inside.display(),
        inside.display()
    );
    shell_with_mounts(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("unshare")
}

fn next_line(container: &mut Child) -> String {
    use std::io::Read;
    let output = container.stdout.as_mut().expect("a pipe");
    let mut line = String::new();
    let mut byte = [0];
    while output.read(&mut byte).expect("a pipe") == 1 && byte != *b"\n" {
        line.push(byte[0].into());
    }
    line
}

fn go_on(container: &mut Child) {
    use std::io::Write;
    let input = container.stdin.as_mut().expect("a pipe");
    input.write_all(b"\n").expect("it runs");
}

// C54, C110
#[test]
fn an_upgrade_leaves_running_containers_theirs_and_uninstalling_waits_for_them() {
    let root = root();
    succeed(&mut system("install", root.path()), PATIENCE);
    let lib = root.path().join("usr/local/lib");
    // An older version, as far as the installer can tell.
    let current = fs::canonicalize(lib.join("sluice")).expect("installed");
    let older = current.with_file_name("0.0.1-0000000000000000");
    fs::rename(&current, &older).expect("ours");
    fs::write(older.join("libsluice-nvml.so"), "older").expect("ours");
    fs::remove_file(lib.join("sluice")).expect("ours");
    symlink(
        "sluice-libraries/0.0.1-0000000000000000",
        lib.join("sluice"),
    )
    .expect("ours");

    let mut running = container(&lib.join("sluice"), &root.path().join("inside"));
    assert_eq!(next_line(&mut running), "ready");
    let said = succeed(&mut system("install", root.path()), PATIENCE);
    assert!(said.contains("is kept for process"), "{said}");
    assert_eq!(fs::canonicalize(lib.join("sluice")).expect("new"), current);
    go_on(&mut running);
    assert_eq!(next_line(&mut running), "whole");

    let words = refused(&mut system("uninstall", root.path()));
    assert!(words.contains(&running.id().to_string()), "{words}");
    assert!(lib.join("sluice/libsluice.so").exists());
    succeed(system("uninstall", root.path()).arg("--force"), PATIENCE);
    assert!(!lib.join("sluice").exists() && !current.exists());
    assert!(older.exists());
    go_on(&mut running);
    running.wait().expect("our own child");
    succeed(system("uninstall", root.path()).arg("--purge"), PATIENCE);
    assert_eq!(files(root.path()), Vec::<String>::new());
}

#[test]
fn a_folder_from_which_nothing_can_be_loaded_is_refused() {
    let root = root();
    let script = format!(
        "mount -t tmpfs -o noexec none {0} && exec {1} install --system --root {0}",
        root.path().display(),
        sluice().display()
    );
    let words = refused(&mut shell_with_mounts(&script));
    assert!(words.contains("noexec"), "{words}");
}
