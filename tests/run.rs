//! `sluice run`, `status`, `set` and `daemon` as a user meets them.

mod support;

use serde_json::Value;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use support::{GIB, MIB, Node, PATIENCE, Setup, eventually, finish, shim, signal, sluice, succeed};

/// `sluice run` on the node, to its end.
fn run(node: &Node, memory: &str, program: &[&str]) -> Output {
    let mut command = Command::new(sluice());
    command.args(["run", "--runtime-dir"]).arg(node.folder());
    finish(
        command.args(["--memory", memory, "--"]).args(program),
        PATIENCE,
    )
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn printed(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned()
}

fn status(node: &Node, arguments: &[&str]) -> String {
    let mut command = Command::new(sluice());
    command.args(["status", "--runtime-dir"]).arg(node.folder());
    succeed(command.args(arguments), PATIENCE)
}

#[test]
fn exit_codes_are_the_programs_own() {
    let node = Node::start();
    for code in [0, 1, 2, 42, 125, 255] {
        let output = run(&node, "1GiB", &["sh", "-c", &format!("exit {code}")]);
        assert_eq!(output.status.code(), Some(code), "{output:?}");
    }
}

#[test]
fn the_program_takes_the_process_and_so_its_signals() {
    let node = Node::start();
    let mut child = node
        .run("sleeper", "1GiB")
        .args(["sleep", "600"])
        .stdin(Stdio::null())
        .spawn()
        .expect("sluice");
    let name = format!("/proc/{}/comm", child.id());
    eventually("the program runs", PATIENCE, || {
        (std::fs::read_to_string(&name).ok()? == "sleep\n").then_some(())
    });
    signal(child.id(), libc::SIGTERM);
    let status = child.wait().expect("our own child");
    assert_eq!(status.signal(), Some(libc::SIGTERM));
    let output = run(&node, "1GiB", &["sh", "-c", "kill -USR1 $$"]);
    assert_eq!(output.status.signal(), Some(libc::SIGUSR1), "{output:?}");
}

#[test]
fn signals_stay_blocked_and_ignored_as_they_were() {
    let node = Node::start();
    let show = "grep Sig /proc/self/status | grep -v SigQ";
    for trap in ["", "trap '' PIPE USR1;"] {
        let plain = format!("{trap} exec env sh -c '{show}'");
        let expected = printed(&finish(Command::new("sh").args(["-c", &plain]), PATIENCE));
        let capped = format!("{trap} exec \"$@\" sh -c '{show}'");
        let mut shell = Command::new("sh");
        shell.args(["-c", &capped, "sh"]).arg(sluice());
        shell
            .args(["run", "--memory", "1GiB", "--runtime-dir"])
            .arg(node.folder())
            .arg("--");
        assert_eq!(printed(&finish(&mut shell, PATIENCE)), expected, "{trap}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_status_quietly() {
    let node = Node::start();
    let mut shell = Command::new("sh");
    shell.args(["-c", "\"$@\" | true", "sh"]).arg(sluice());
    let output = finish(
        shell.args(["status", "--runtime-dir"]).arg(node.folder()),
        PATIENCE,
    );
    assert_eq!(words(&output), "");
}

#[test]
fn a_program_that_cannot_be_started_is_told_from_one_that_fails() {
    let node = Node::start();
    let missing = run(&node, "1GiB", &["/nonexistent/program"]);
    assert_eq!(missing.status.code(), Some(127));
    assert!(
        words(&missing).contains("/nonexistent/program"),
        "{}",
        words(&missing)
    );
    let no_program = run(&node, "1GiB", &["/etc/passwd"]);
    assert_eq!(no_program.status.code(), Some(126));
}

#[test]
fn without_a_daemon_it_says_how_to_start_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for command in [
        &["run", "--memory", "1GiB", "true"][..],
        &["status"],
        &["set", "web", "--memory", "1GiB"],
    ] {
        let mut sluice = Command::new(sluice());
        sluice
            .args(&command[..1])
            .arg("--runtime-dir")
            .arg(folder.path())
            .args(&command[1..]);
        let output = finish(&mut sluice, PATIENCE);
        assert_eq!(output.status.code(), Some(125), "{output:?}");
        assert!(
            words(&output).contains("`sluice daemon`"),
            "{}",
            words(&output)
        );
    }
}

// C91
#[test]
fn every_documented_form_of_a_cap_is_the_size_that_the_program_sees() {
    let node = Node::start();
    for (form, bytes) in [
        ("2GiB", 2 * GIB),
        ("2Gi", 2 * GIB),
        ("2G", 2_000_000_000),
        ("1536MiB", 1536 * MIB),
        ("25%", 2 * GIB),
        ("max", 8 * GIB),
    ] {
        let mut stepper = node.ready_stepper("forms", form);
        let (_, total) = stepper.info();
        assert_eq!(total, bytes, "{form}");
        assert_eq!(
            node.figure("forms", 0, "memory_limit_bytes"),
            bytes,
            "{form}"
        );
        stepper.kill();
        eventually("the tenant is gone", PATIENCE, || {
            node.tenant_status("forms").is_none().then_some(())
        });
    }
}

// C92
#[test]
fn a_cap_that_makes_no_sense_is_refused_by_name_with_what_is_accepted() {
    let node = Node::start();
    for (form, code) in [
        ("0", 2),
        ("-1", 2),
        ("-2GiB", 2),
        ("lots", 2),
        ("4GG", 2),
        ("101%", 2),
        ("9GiB", 125),
    ] {
        let output = run(&node, form, &["true"]);
        let words = words(&output);
        assert_eq!(output.status.code(), Some(code), "{form}: {words}");
        assert!(words.contains(&format!("\"{form}\"")), "{form}: {words}");
        assert!(words.contains("accepted"), "{form}: {words}");
    }
}

#[test]
fn more_than_is_left_is_refused_with_what_is_free() {
    let node = Node::start();
    let _holder = node.tenant("holder", "6GiB");
    let output = run(&node, "3GiB", &["true"]);
    let words = words(&output);
    assert_eq!(output.status.code(), Some(125), "{words}");
    assert!(
        words.contains("2GiB") && words.contains("holder"),
        "{words}"
    );
}

#[test]
fn a_name_is_taken_as_long_as_its_tenant_lives() {
    let node = Node::start();
    let tenant = node.tenant("web", "1GiB");
    let second = finish(node.run("web", "1GiB").arg("true"), PATIENCE);
    assert_eq!(second.status.code(), Some(125), "{second:?}");
    assert!(words(&second).contains("web"), "{}", words(&second));
    drop(tenant);
    eventually("the name is free", PATIENCE, || {
        finish(node.run("web", "1GiB").arg("true"), PATIENCE)
            .status
            .success()
            .then_some(())
    });
}

#[test]
fn the_default_name_tells_the_program_and_its_process() {
    let node = Node::start();
    let mut command = Command::new(sluice());
    command.args(["run", "--runtime-dir"]).arg(node.folder());
    let mut child = command
        .args(["--memory", "1GiB", "--", "cat"])
        .stdin(Stdio::piped())
        .spawn()
        .expect("sluice");
    let name = format!("cat-{}", child.id());
    eventually("the tenant is registered", PATIENCE, || {
        node.tenant_status(&name)
    });
    drop(child.stdin.take());
    assert!(child.wait().expect("our own child").success());
}

// C84
#[test]
fn the_shim_goes_before_what_is_preloaded_already() {
    let node = Node::start();
    let mut command = node.run("preloads", "1GiB");
    command
        .args(["printenv", "LD_PRELOAD"])
        .env("LD_PRELOAD", "libm.so.6");
    let output = finish(&mut command, PATIENCE);
    assert_eq!(printed(&output), format!("{}:libm.so.6", shim().display()));
}

// C93
#[test]
fn a_chosen_gpu_is_the_only_one_that_the_program_sees() {
    let node = Node::with(&Setup {
        devices: 2,
        ..Setup::default()
    });
    let uuid = node.status()["devices"][1]["uuid"]
        .as_str()
        .expect("a UUID")
        .to_owned();
    for gpu in ["1", &uuid] {
        let mut command = Command::new(sluice());
        command.args(["run", "--runtime-dir"]).arg(node.folder());
        command.args([
            "--memory",
            "1GiB",
            "--gpu",
            gpu,
            "--",
            "printenv",
            "CUDA_VISIBLE_DEVICES",
        ]);
        assert_eq!(printed(&finish(&mut command, PATIENCE)), uuid);
        let mut client = Command::new(sluice());
        client
            .args(["run", "--runtime-dir"])
            .arg(node.folder())
            .args(["--memory", "1GiB", "--gpu", gpu, "--"])
            .arg(support::Program::Stepper.path());
        let mut stepper = support::Stepper::start(&mut client);
        stepper.ok("init");
        assert_eq!(stepper.ok("device-count")["count"], 1);
        // What the user set stays.
        command.env("CUDA_VISIBLE_DEVICES", "0");
        assert_eq!(printed(&finish(&mut command, PATIENCE)), "0");
    }
    let mut command = Command::new(sluice());
    command.args(["run", "--runtime-dir"]).arg(node.folder());
    let output = finish(
        command.args(["--memory", "1GiB", "--gpu", "7", "true"]),
        PATIENCE,
    );
    assert_eq!(output.status.code(), Some(125));
    assert!(words(&output).contains('7'), "{}", words(&output));
}

#[test]
fn set_changes_a_running_program_at_its_next_call() {
    let node = Node::start();
    let mut stepper = node.ready_stepper("web", "1GiB");
    assert_eq!(stepper.info().1, GIB);
    node.set_memory("web", "3GiB");
    assert_eq!(stepper.info().1, 3 * GIB);
    node.set_memory("web", "512MiB");
    assert_eq!(stepper.info().1, 512 * MIB);
    let mut set = Command::new(sluice());
    set.args(["set", "--runtime-dir"]).arg(node.folder());
    let output = finish(set.args(["nobody", "--memory", "1GiB"]), PATIENCE);
    assert_eq!(output.status.code(), Some(125));
    assert!(words(&output).contains("nobody"), "{}", words(&output));
}

#[test]
fn status_shows_devices_tenants_and_processes() {
    let node = Node::start();
    let stepper = node.ready_stepper("web", "2GiB");
    let table = status(&node, &[]);
    let pid = stepper.pid().to_string();
    for expected in ["stand-in", "8 GiB", "web", "2 GiB", &pid, "stepper"] {
        assert!(table.contains(expected), "{expected} is missing:\n{table}");
    }
    let json: Value = serde_json::from_str(&status(&node, &["--json"])).expect("JSON");
    assert_eq!(json["tenants"][0]["name"], "web");
    assert_eq!(json["tenants"][0]["processes"][0]["pid"], stepper.pid());
    assert_eq!(json["driver"]["kind"], "stand-in");
}

#[test]
fn curl_reads_what_status_prints() {
    let node = Node::start();
    if Command::new("curl").arg("--version").output().is_err() {
        eprintln!("there is no curl on this machine: only the socket's own tests read it");
        return;
    }
    let mut curl = Command::new("curl");
    curl.args(["--silent", "--fail", "--unix-socket"])
        .arg(node.folder().join("status.sock"));
    let body = succeed(curl.arg("http://sluice/v1/status"), PATIENCE);
    let mut read: Value = serde_json::from_str(&body).expect("JSON");
    let mut shown: Value = serde_json::from_str(&status(&node, &["--json"])).expect("JSON");
    for answer in [&mut read, &mut shown] {
        answer["daemon"]["uptime_seconds"] = Value::Null;
    }
    assert_eq!(read, shown);
}

#[test]
fn a_daemon_says_what_it_would_do() {
    let mut daemon = Command::new(sluice());
    daemon.args([
        "daemon",
        "--print-config",
        "--device",
        "stand-in",
        "--runtime-dir",
        "/tmp/x",
    ]);
    let printed = succeed(daemon.args(["--config", "/dev/null"]), PATIENCE);
    assert!(printed.contains("dir = \"/tmp/x\""), "{printed}");
    assert!(printed.contains("kind = \"stand-in\""), "{printed}");
}

// C55
#[test]
fn a_dead_socket_is_replaced_and_a_folder_in_its_place_is_left_and_named() {
    let mut node = Node::start();
    node.kill_daemon();
    for socket in [node.folder().join("status.sock"), node.attach_socket()] {
        // The killed daemon has left its sockets; the next one takes their place.
        assert!(socket.exists(), "{}", socket.display());
        std::fs::remove_file(&socket).expect("a dead socket");
        std::fs::create_dir(&socket).expect("a folder");
        std::fs::write(socket.join("kept"), "x").expect("a file");
        let mut daemon = Command::new(sluice());
        daemon.args(["daemon", "--device", "stand-in", "--config", "/dev/null"]);
        daemon.arg("--runtime-dir").arg(node.folder());
        let output = finish(&mut daemon, PATIENCE);
        assert!(!output.status.success(), "{output:?}");
        let said = words(&output);
        assert!(said.contains(&socket.display().to_string()), "{said}");
        assert!(socket.join("kept").exists());
        std::fs::remove_dir_all(&socket).expect("a folder");
    }
    node.start_daemon();
    node.kill_daemon();
    node.start_daemon();
}

#[test]
fn a_second_daemon_in_the_folder_names_the_first() {
    let node = Node::start();
    let mut daemon = Command::new(sluice());
    daemon.args([
        "daemon",
        "--device",
        "stand-in",
        "--config",
        "/dev/null",
        "--runtime-dir",
    ]);
    let output = finish(daemon.arg(node.folder()), PATIENCE);
    assert_eq!(output.status.code(), Some(125), "{output:?}");
    assert!(
        words(&output).contains(&node.daemon_pid().to_string()),
        "{}",
        words(&output)
    );
}

#[test]
fn an_unknown_key_of_the_configuration_is_an_error_with_its_line() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("sluice.toml");
    std::fs::write(&file, "[memory]\n\novercommit = 2\n").expect("a writable folder");
    let mut daemon = Command::new(sluice());
    daemon
        .args(["daemon", "--device", "stand-in", "--config"])
        .arg(&file);
    let output = finish(&mut daemon, PATIENCE);
    let words = words(&output);
    assert_eq!(output.status.code(), Some(125), "{words}");
    assert!(
        words.contains("line 3") && words.contains("overcommit"),
        "{words}"
    );
}

/// A daemon that started its own stand-in, and is stopped at the end of the test.
struct OwnDaemon(std::process::Child);

impl OwnDaemon {
    fn start(folder: &Path) -> Self {
        let mut daemon = Command::new(sluice());
        daemon.args([
            "daemon",
            "--device",
            "stand-in",
            "--config",
            "/dev/null",
            "--runtime-dir",
        ]);
        let child = daemon
            .arg(folder)
            .stderr(Stdio::null())
            .spawn()
            .expect("sluice");
        eventually("the daemon answers", PATIENCE, || {
            let mut status = Command::new(sluice());
            status.args(["status", "--runtime-dir"]).arg(folder);
            finish(&mut status, PATIENCE).status.success().then_some(())
        });
        Self(child)
    }

    fn stop(mut self) {
        signal(self.0.id(), libc::SIGTERM);
        assert!(self.0.wait().expect("our own child").success());
    }
}

#[test]
fn a_stand_in_outlives_a_killed_daemon_and_ends_with_a_clean_stop() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let socket = folder.path().join("gpu.sock");
    let mut first = OwnDaemon::start(folder.path());
    first.0.kill().expect("our own child");
    first.0.wait().expect("our own child");
    assert!(socket.exists());
    let second = OwnDaemon::start(folder.path());
    second.stop();
    assert!(!socket.exists(), "nobody used it any more");
}

#[test]
fn sim_run_gives_a_program_hardware_of_its_own_without_sluice() {
    let mut sim = Command::new(sluice());
    sim.args(["sim", "run", "--memory", "4GiB", "--devices", "2", "--"]);
    let mut stepper = support::Stepper::start(sim.arg(support::Program::Stepper.path()));
    stepper.ok("init");
    stepper.ok("context 1");
    assert_eq!(stepper.info().1, 4 * GIB);
    stepper.quit();
    let mut sim = Command::new(sluice());
    let output = finish(
        sim.args(["sim", "run", "--", "sh", "-c", "exit 9"]),
        PATIENCE,
    );
    assert_eq!(output.status.code(), Some(9));
}
