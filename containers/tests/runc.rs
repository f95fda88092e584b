//! A container of `runc` whose configuration was edited sees what the lease lends, and cannot change it.
//!
//! Where there is no `runc`, or it cannot start even the unedited container, the test says so and
//! shows nothing.

use containers::{Lease, Quota, edits, oci};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

#[test]
fn an_edited_container_sees_what_it_is_lent() {
    let folder = tempfile::tempdir().unwrap();
    let bundle = folder.path();
    let script = "cat /etc/ld.so.preload /run/sluice/socket/mark; echo $SLUICE_MEMORY; \
                  echo x >/run/sluice/socket/new || echo refused";
    if let Err(why) = make_bundle(bundle, script) {
        eprintln!("NOT TESTED: no bundle can be made: {why}");
        return;
    }
    let plain = match run(bundle) {
        Ok(plain) => plain,
        Err(why) => {
            eprintln!("NOT TESTED: runc cannot be called: {why}");
            return;
        }
    };
    let said = String::from_utf8_lossy(&plain.stdout);
    if !said.contains("refused") {
        let why = String::from_utf8_lossy(&plain.stderr);
        eprintln!("NOT TESTED: runc starts no container here: {why}");
        return;
    }
    assert!(!said.contains("lent"), "{said}");

    for name in ["libraries", "socket"] {
        fs::create_dir(bundle.join(name)).unwrap();
    }
    fs::write(bundle.join("preload"), "/lent/preload.so\n").unwrap();
    fs::write(bundle.join("socket/mark"), "lent socket\n").unwrap();
    let lease = Lease {
        libraries: bundle.join("libraries"),
        preload: bundle.join("preload"),
        socket: bundle.join("socket"),
        hook: None,
    };
    let quota = Quota::of_environment([("SLUICE_MEMORY", "2GiB")]).unwrap();
    let edits = edits(&quota, &lease).unwrap();
    oci::edit_file(&bundle.join("config.json"), &edits).unwrap();

    let edited = run(bundle).unwrap();
    let said = String::from_utf8_lossy(&edited.stdout);
    let expected = "/lent/preload.so\nlent socket\n2GiB\nrefused\n";
    assert_eq!(
        said,
        expected,
        "{}",
        String::from_utf8_lossy(&edited.stderr)
    );
    assert!(!bundle.join("socket/new").exists());
}

/// A root of this machine's `sh` and `cat`, and runc's own configuration.
fn make_bundle(bundle: &Path, script: &str) -> Result<(), String> {
    let root = bundle.join("rootfs");
    for program in ["/bin/sh", "/bin/cat"] {
        let needs = Command::new("ldd")
            .arg(program)
            .output()
            .map_err(|error| error.to_string())?;
        let needs = String::from_utf8_lossy(&needs.stdout).into_owned();
        let paths = needs
            .split_whitespace()
            .filter(|word| word.starts_with('/'));
        for path in paths.chain([program]) {
            let to = root.join(path.trim_start_matches('/'));
            fs::create_dir_all(to.parent().unwrap()).map_err(|error| error.to_string())?;
            fs::copy(path, to).map_err(|error| format!("{path}: {error}"))?;
        }
    }
    let made = Command::new("runc")
        .arg("spec")
        .current_dir(bundle)
        .output();
    made.map_err(|error| format!("runc: {error}"))?;
    let path = bundle.join("config.json");
    let text = fs::read(&path).map_err(|error| error.to_string())?;
    let mut config: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    config["process"]["terminal"] = json!(false);
    config["process"]["args"] = json!(["/bin/sh", "-c", script]);
    // runc makes the places of mounts itself, for which the root must not be read-only.
    config["root"]["readonly"] = json!(false);
    fs::write(path, config.to_string()).map_err(|error| error.to_string())
}

fn run(bundle: &Path) -> std::io::Result<Output> {
    let name = format!("sluice-test-{}", std::process::id());
    Command::new("timeout")
        .args(["--kill-after=5", "30", "runc", "--root"])
        .arg(bundle.join("state"))
        .args(["run", "--bundle"])
        .arg(bundle)
        .arg(name)
        .output()
}
