//! `sluice demo`: the whole path, on the stand-in.

mod support;

use serde_json::Value;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use support::{eventually, finish, signal, sluice, succeed};

/// A demo of three seconds takes five; the rest is for a machine that does other things.
const BOUND: Duration = Duration::from_secs(60);

fn demo(folder: &std::path::Path) -> Command {
    let mut command = Command::new(sluice());
    command
        .args(["demo", "--device", "stand-in"])
        .env("TMPDIR", folder);
    command
}

fn is_empty(folder: &std::path::Path) -> bool {
    std::fs::read_dir(folder)
        .expect("a folder")
        .next()
        .is_none()
}

#[test]
fn every_promise_holds_and_the_object_says_so() {
    let _alone = support::alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = finish(
        demo(folder.path()).args(["--seconds", "4", "--json"]),
        BOUND,
    );
    let said = String::from_utf8_lossy(&output.stdout);
    let verdict: Value = serde_json::from_str(&said).unwrap_or_else(|error| {
        panic!("{error}: {said}{}", String::from_utf8_lossy(&output.stderr))
    });
    assert_eq!(verdict["held"], true, "{said}");
    assert!(output.status.success(), "{said}");
    assert_eq!(verdict["device"]["kind"], "stand-in");
    assert!(verdict["device"]["memory_bytes"].as_u64() > Some(0));
    let tenants = verdict["tenants"].as_array().expect("a list");
    assert!(tenants.len() >= 2);
    for tenant in tenants {
        assert!(tenant["name"].is_string(), "{tenant}");
        let cap = tenant["memory_limit_bytes"].as_u64().expect("a cap");
        let peak = tenant["memory_peak_bytes"].as_u64().expect("a peak");
        assert!(0 < peak && peak <= cap, "{tenant}");
        assert_eq!(tenant["total_seen_bytes"], cap, "{tenant}");
    }
    assert!(
        tenants
            .iter()
            .any(|tenant| tenant["oom_refusals"].as_u64() > Some(0)),
        "{said}"
    );
    let shared: Vec<&Value> = tenants
        .iter()
        .filter(|tenant| tenant["compute_guarantee"].is_number())
        .collect();
    assert_eq!(shared.len(), 3, "{said}");
    assert!(
        shared
            .iter()
            .all(|tenant| tenant["compute_measured"].as_f64() > Some(0.0)),
        "{said}"
    );
    assert!(shared[0]["p99_ms_alone"].as_f64() > Some(0.0), "{said}");
    assert!(shared[0]["p99_ms_shared"].as_f64() > Some(0.0), "{said}");
    for promise in verdict["promises"].as_array().expect("a list") {
        assert_eq!(promise["held"], true, "{promise}");
        assert!(
            promise["id"].is_string() && !promise["measured"].is_null(),
            "{promise}"
        );
    }
    assert!(
        is_empty(folder.path()),
        "it left something in its temporary folder"
    );
}

#[test]
fn piped_it_says_only_the_verdict() {
    let _alone = support::alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let output = finish(demo(folder.path()).args(["--seconds", "3"]), BOUND);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success(),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert!(!said.contains('\x1b'), "{said}");
    for promise in [
        "M1 held", "M2 held", "M3 held", "M4 held", "R1 held", "C1 held", "C2 held", "C3 held",
        "C4 held",
    ] {
        assert_eq!(said.matches(promise).count(), 1, "{said}");
    }
}

#[test]
fn interrupted_it_leaves_no_process_and_no_file() {
    let _alone = support::alone();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut child = demo(folder.path())
        .args(["--seconds", "600"])
        .stdout(Stdio::null())
        .spawn()
        .expect("sluice");
    eventually("it has begun", BOUND, || {
        let run = std::fs::read_dir(folder.path()).ok()?.next()?.ok()?.path();
        run.join("jobs.log").exists().then_some(())
    });
    signal(child.id(), libc::SIGINT);
    let begin = Instant::now();
    let status = child.wait().expect("our own child");
    assert_eq!(status.code(), Some(130), "{status}");
    assert!(begin.elapsed() < BOUND);
    assert!(
        is_empty(folder.path()),
        "it left something in its temporary folder"
    );
    let named = folder.path().to_string_lossy().into_owned();
    eventually("its processes are gone", BOUND, || {
        let processes = std::fs::read_dir("/proc").expect("procfs").flatten();
        let lines = processes.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
        let mut lines = lines.map(|line| String::from_utf8_lossy(&line).into_owned());
        (!lines.any(|line| line.contains(&named))).then_some(())
    });
}

#[test]
fn where_nothing_holds_the_caps_the_verdict_says_so() {
    let _alone = support::alone();
    // An installation whose shim and aliases are empty: tenants meet the bare stand-in.
    let prefix = tempfile::tempdir().expect("a temporary folder");
    succeed(
        Command::new(sluice()).arg("install").arg(prefix.path()),
        BOUND,
    );
    let folder = prefix.path().join("lib/sluice");
    let empty = prefix.path().join("empty.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-nostdlib", "-x", "c", "/dev/null", "-o"]);
    succeed(cc.arg(&empty), BOUND);
    for file in [
        "libsluice.so",
        "libsluice-cuda.so",
        "libsluice-cuda-1.so",
        "libsluice-nvml.so",
        "libsluice-nvml-1.so",
    ] {
        std::fs::copy(&empty, folder.join(file)).expect("a writable folder");
    }
    let mut demo = Command::new(prefix.path().join("bin/sluice"));
    demo.args(["demo", "--device", "stand-in", "--seconds", "2", "--json"])
        .env("LD_LIBRARY_PATH", folder.join("stand-in"));
    let output = finish(&mut demo, BOUND);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let verdict: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(verdict["held"], false);
    // The other two may hold by luck: the bare device refuses and frees as a driver does.
    for id in ["M1", "M4", "R1"] {
        let promises = verdict["promises"].as_array().expect("a list");
        let promise = promises.iter().find(|promise| promise["id"] == id);
        assert_eq!(promise.expect(id)["held"], false, "{promise:?}");
    }
}
