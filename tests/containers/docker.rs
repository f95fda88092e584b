//! docker 20.10 and containerd 1.6, which know no CDI, with `sluice runtime`.

use crate::bundle::{ready, runtime_script};
use crate::support::{GIB, MIB, Node, PATIENCE, Stepper, eventually, finish, succeed};
use crate::tree::Tree;
use crate::{Test, image, missing_program, no_root};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The tests, by promise.
pub(crate) const TESTS: &[Test] = &[
    ("docker_holds_caps_and_what_exec_starts", caps_hold),
    (
        "docker_shows_why_a_container_cannot_start",
        reasons_are_shown,
    ),
    ("docker_restarts_a_container_under_its_cap", restarted),
    ("docker_without_the_runtime_is_let_alone", let_alone),
    ("containerd_holds_caps", containerd),
    ("docker_images_of_all_kinds", kinds),
];

/// Why they cannot run here.
pub(crate) fn missing() -> Option<String> {
    no_root()
        .or_else(|| missing_program(&["dockerd", "containerd", "ctr"]))
        .or_else(|| {
            let node = Node::start();
            match Engine::start(&node, None) {
                Err(reason) => Some(reason),
                Ok(engine) => {
                    let output =
                        engine.docker(&["run", "--rm", "--network=none", IMAGE, "/bin/true"]);
                    (!output.status.success())
                        .then(|| format!("docker starts no container here: {}", text(&output)))
                }
            }
        })
}

const IMAGE: &str = "sluice-test:latest";

/// How long an engine may take.
const BOUND: Duration = Duration::from_secs(60);

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A dockerd, with the containerd that it starts, and everything of theirs in one folder.
#[derive(Debug)]
pub(crate) struct Engine {
    folder: TempDir,
    daemon: Child,
    tree: Option<Tree>,
}

impl Engine {
    fn new(node: &Node) -> Self {
        Self::start(node, None).unwrap_or_else(|reason| panic!("{reason}"))
    }

    /// This machine's, or that of a tree.
    pub(crate) fn start(node: &Node, tree: Option<Tree>) -> Result<Self, String> {
        // A path of a socket is at most 107 bytes long, and containerd's are deep in here.
        let folder = tempfile::Builder::new()
            .prefix("sd-")
            .tempdir_in("/tmp")
            .expect("a temporary folder");
        let path = folder.path();
        let script = runtime_script(path, node);
        let log = fs::File::create(path.join("log")).expect("our own folder");
        // docker before 28.2 has to be told; before 25 it does not know what.
        let settings = if tree.is_some() {
            r#"{"features": {"cdi": true}}"#
        } else {
            "{}"
        };
        fs::write(path.join("daemon.json"), settings).expect("our own folder");
        let mut command = match &tree {
            None => Command::new(image::which("dockerd")),
            Some(tree) => tree.command("dockerd"),
        };
        command
            .arg("--config-file")
            .arg(path.join("daemon.json"))
            .arg("--data-root")
            .arg(path.join("data"))
            .arg("--exec-root")
            .arg(path.join("x"))
            .arg("--pidfile")
            .arg(path.join("pid"))
            .arg("--host")
            .arg(format!("unix://{}", path.join("s").display()))
            .args(["--bridge=none", "--iptables=false", "--ip6tables=false"])
            .args([
                "--ip-forward=false",
                "--ip-masq=false",
                "--storage-driver=vfs",
            ])
            .arg(format!("--add-runtime=sluice={}", script.display()))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let daemon = command.spawn().map_err(|error| error.to_string())?;
        let mut engine = Self {
            folder,
            daemon,
            tree,
        };
        let begin = std::time::Instant::now();
        while !engine.docker(&["version"]).status.success() {
            let ended = engine.daemon.try_wait().expect("our own child").is_some();
            if ended || begin.elapsed() > BOUND {
                let log = fs::read_to_string(engine.path().join("log")).unwrap_or_default();
                let last: Vec<&str> = log.lines().rev().take(3).collect();
                return Err(format!("dockerd does not start here: {}", last.join("; ")));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let archive = engine.path().join("image.tar");
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(image::root())
            .arg("-cf")
            .arg(&archive)
            .arg(".");
        succeed(&mut tar, BOUND);
        engine.succeed(&["import", &archive.display().to_string(), IMAGE]);
        Ok(engine)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        // The one that belongs to the daemon, whatever else is in PATH.
        let beside = PathBuf::from("/usr/bin/docker");
        let mut command = match &self.tree {
            Some(tree) => tree.command("docker"),
            None if beside.is_file() => Command::new(beside),
            None => Command::new("docker"),
        };
        command
            .arg("--host")
            .arg(format!("unix://{}", self.path().join("s").display()))
            .args(arguments)
            .env("DOCKER_CONFIG", self.path());
        command
    }

    fn docker(&self, arguments: &[&str]) -> Output {
        finish(&mut self.command(arguments), BOUND)
    }

    #[track_caller]
    fn succeed(&self, arguments: &[&str]) -> String {
        succeed(&mut self.command(arguments), BOUND)
    }

    fn ctr(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("ctr");
        command
            .arg("--address")
            .arg(self.path().join("x/containerd/containerd.sock"))
            .args(arguments);
        command
    }

    /// A stepper in a container of the runtime, with a context on device 0.
    #[track_caller]
    fn stepper(&self, arguments: &[&str]) -> Stepper {
        let mut all = vec![
            "run",
            "--rm",
            "--interactive",
            "--network=none",
            "--runtime=sluice",
        ];
        all.extend(arguments);
        all.extend([IMAGE, "/bin/stepper"]);
        ready(Stepper::start(&mut self.command(&all)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let all = self.docker(&["ps", "--all", "--quiet"]);
        let listed = String::from_utf8_lossy(&all.stdout).into_owned();
        let ids: Vec<&str> = listed.split_whitespace().collect();
        if !ids.is_empty() {
            let mut words = vec!["rm", "--force"];
            words.extend(ids);
            _ = self.docker(&words);
        }
        let pid = i32::try_from(self.daemon.id()).expect("a process id");
        // SAFETY: a signal to our own child, which ends its containerd.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        _ = self.daemon.wait();
        // What it leaves mounted would keep the folder.
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let own = self.path().display().to_string();
        for place in mounts.lines().filter_map(|line| line.split(' ').nth(1)) {
            if place.starts_with(&own) {
                _ = Command::new("umount").args(["--lazy", place]).output();
            }
        }
    }
}

fn nobody_is_left(node: &Node) {
    eventually("no tenant is left", PATIENCE, || {
        (node.status()["tenants"] == json!([])).then_some(())
    });
    assert_eq!(node.hardware.truth(0), 0, "nothing is left behind");
}

fn caps_hold() {
    let node = Node::start();
    let engine = Engine::new(&node);
    let mut one = engine.stepper(&[
        "--name=one",
        "--env=SLUICE_MEMORY=1GiB",
        "--env=SLUICE_NAME=web",
    ]);
    let mut two = engine.stepper(&[
        "--env=SLUICE_MEMORY=3GiB",
        "--read-only",
        "--user=1000",
        "--cap-drop=all",
        "--security-opt=no-new-privileges",
    ]);
    assert_eq!(one.info(), (GIB, GIB));
    assert_eq!(two.info(), (3 * GIB, 3 * GIB));
    one.ok(&format!("alloc a {}", 600 * MIB));
    two.ok(&format!("alloc a {}", 2900 * MIB));
    two.refused(&format!("alloc b {}", 200 * MIB));
    // Without any of the container's variables.
    let mut third = ready(Stepper::start(&mut engine.command(&[
        "exec",
        "--interactive",
        "one",
        "/bin/env",
        "-i",
        "/bin/stepper",
    ])));
    assert_eq!(third.info(), (GIB - 600 * MIB, GIB));
    third.refused(&format!("alloc a {}", 500 * MIB));
    let web = node
        .tenant_status("web")
        .expect("it has the name that was asked for");
    let id = engine.succeed(&["inspect", "--format={{.Id}}", "one"]);
    assert_eq!(web["container"]["id"], id.trim());
    let pid = engine.succeed(&["inspect", "--format={{.State.Pid}}", "one"]);
    assert_eq!(web["owner_pid"].to_string(), pid.trim());
    assert_eq!(web["processes"].as_array().map(Vec::len), Some(2));
    engine.succeed(&["kill", "one"]);
    drop((one, two, third));
    drop(engine);
    nobody_is_left(&node);
}

fn reasons_are_shown() {
    let node = Node::start();
    let engine = Engine::new(&node);
    for (variable, word) in [
        ("--env=SLUICE_MEMORY=lots", "lots"),
        ("--env=SLUICE_MEMORY=9GiB", "9GiB"),
        ("--env=SLUICE_COMPUTE=30%", "SLUICE_MEMORY"),
    ] {
        let output = engine.docker(&[
            "run",
            "--rm",
            "--network=none",
            "--runtime=sluice",
            variable,
            IMAGE,
            "/bin/true",
        ]);
        assert!(!output.status.success(), "{variable}");
        assert!(
            text(&output).contains(word),
            "{variable}: {}",
            text(&output)
        );
    }
    nobody_is_left(&node);
}

fn restarted() {
    let node = Node::start();
    let engine = Engine::new(&node);
    engine.succeed(&[
        "run",
        "--detach",
        "--name=again",
        "--network=none",
        "--runtime=sluice",
        "--env=SLUICE_MEMORY=5GiB",
        IMAGE,
        "/bin/sleep",
        "600",
    ]);
    for _ in 0..2 {
        let mut stepper = ready(Stepper::start(&mut engine.command(&[
            "exec",
            "--interactive",
            "again",
            "/bin/stepper",
        ])));
        assert_eq!(stepper.info(), (5 * GIB, 5 * GIB));
        stepper.ok(&format!("alloc a {}", 4 * GIB));
        engine.succeed(&["restart", "--time=0", "again"]);
    }
    engine.succeed(&["rm", "--force", "again"]);
    nobody_is_left(&node);
}

fn let_alone() {
    let node = Node::start();
    let engine = Engine::new(&node);
    for runtime in ["--runtime=runc", "--runtime=sluice"] {
        let said = engine.succeed(&[
            "run",
            "--rm",
            "--network=none",
            runtime,
            IMAGE,
            "/bin/cat",
            "/proc/self/maps",
        ]);
        assert!(!said.contains("sluice"), "{runtime}: {said}");
    }
}

/// How docker runs a container whose quota is in its variables, by the runtime.
pub(crate) const RUN: [&str; 5] = [
    "run",
    "--rm",
    "--interactive",
    "--network=none",
    "--runtime=sluice",
];

fn kinds() {
    let mut node = Node::start();
    let engine = Engine::new(&node);
    let engine = crate::kinds::Engine {
        command: &|arguments| engine.command(arguments),
        run: &RUN,
        prefix: "",
    };
    crate::kinds::all(&mut node, &engine);
}

fn containerd() {
    let node = Node::start();
    let engine = Engine::new(&node);
    let archive = engine.path().join("saved.tar").display().to_string();
    engine.succeed(&["save", "--output", &archive, IMAGE]);
    succeed(&mut engine.ctr(&["image", "import", &archive]), BOUND);
    let runtime = engine.path().join("runtime").display().to_string();
    let listed = succeed(&mut engine.ctr(&["image", "list", "--quiet"]), BOUND);
    let image = listed.lines().find(|name| name.ends_with(IMAGE));
    let image = image.expect("imported just now").to_owned();
    let mut stepper = ready(Stepper::start(&mut engine.ctr(&[
        "run",
        "--rm",
        "--snapshotter=native",
        "--runc-binary",
        &runtime,
        "--env=SLUICE_MEMORY=2GiB",
        &image,
        "held",
        "/bin/stepper",
    ])));
    assert_eq!(stepper.info(), (2 * GIB, 2 * GIB));
    stepper.ok(&format!("alloc a {GIB}"));
    stepper.refused(&format!("alloc b {}", 1100 * MIB));
    let tenant = node.tenant_status("held").expect("by its id");
    assert_eq!(tenant["container"]["id"], "held");
    succeed(
        &mut engine.ctr(&["task", "kill", "--signal=KILL", "held"]),
        BOUND,
    );
    nobody_is_left(&node);
    // `ctr run` removes it by itself, if it is left to; else what watches over the container stays.
    eventually("the container is gone", PATIENCE, || {
        let listed = finish(&mut engine.ctr(&["container", "list", "--quiet"]), BOUND);
        (!text(&listed).contains("held")).then_some(())
    });
    drop(stepper);
}
