//! Engines of a later Debian, which know CDI: docker 26 and podman 5.

use crate::bundle::ready;
use crate::docker::Engine;
use crate::support::{GIB, MIB, Node, PATIENCE, Stepper, eventually, finish, sluice, succeed};
use crate::tree::{TRIXIE, Tree};
use crate::{Test, image, no_root};
use serde_json::json;
use std::fs;
use std::process::Command;
use std::time::Duration;

/// The tests, by promise.
pub(crate) const TESTS: &[Test] = &[
    ("docker_holds_caps_of_cdi_devices", docker),
    ("podman_holds_caps_of_cdi_devices", podman),
];

/// Why they cannot run here.
pub(crate) fn missing() -> Option<String> {
    no_root().or_else(|| Tree::made(&TRIXIE).err())
}

/// How long an engine may take.
const BOUND: Duration = Duration::from_secs(60);

const IMAGE: &str = "localhost/sluice-test:latest";

fn enter() -> Tree {
    Tree::enter(&Tree::made(&TRIXIE).expect("looked for before"))
}

/// Makes the devices in the tree's `/etc/cdi`, as an administrator does.
#[track_caller]
fn devices_of(node: &Node, tree: &Tree) {
    let mut command = tree.command(sluice());
    command
        .args([
            "cdi",
            "generate",
            "--output=/etc/cdi/sluice.json",
            "--runtime-dir",
        ])
        .arg(node.folder());
    succeed(&mut command, BOUND);
}

/// What holds in a container of the class `quarter`, and in what `exec` starts in it.
#[track_caller]
fn is_held(node: &Node, mut first: Stepper, exec: &mut Command) {
    assert_eq!(first.info(), (2 * GIB, 2 * GIB), "no variable raises it");
    first.ok(&format!("alloc a {GIB}"));
    let mut second = ready(Stepper::start(exec));
    assert_eq!(second.info(), (GIB, 2 * GIB));
    second.refused(&format!("alloc a {}", 1100 * MIB));
    let tenant = node
        .tenant_status("web")
        .expect("it has the name that was asked for");
    assert_eq!(tenant["processes"].as_array().map(Vec::len), Some(2));
    assert_eq!(tenant["devices"][0]["compute"]["guarantee_permille"], 250);
}

fn nobody_is_left(node: &Node) {
    eventually("no tenant is left", PATIENCE, || {
        (node.status()["tenants"] == json!([])).then_some(())
    });
    assert_eq!(node.hardware.truth(0), 0, "nothing is left behind");
}

/// A container that tries to get more than its class has.
const RUN: [&str; 7] = [
    "run",
    "--rm",
    "--interactive",
    "--name=held",
    "--device=sluice.dev/gpu=quarter",
    "--env=SLUICE_MEMORY=7GiB",
    "--env=SLUICE_NAME=web",
];

fn docker() {
    let mut node = Node::start();
    let tree = enter();
    devices_of(&node, &tree);
    let engine = Engine::start(&node, Some(tree)).unwrap_or_else(|reason| panic!("{reason}"));
    let mut words = RUN.to_vec();
    words.extend(["--network=none", "sluice-test:latest", "/bin/stepper"]);
    let first = ready(Stepper::start(&mut engine.command(&words)));
    let exec = [
        "exec",
        "--interactive",
        "held",
        "/bin/env",
        "-i",
        "/bin/stepper",
    ];
    is_held(&node, first, &mut engine.command(&exec));
    let kinds = crate::kinds::Engine {
        command: &|arguments| engine.command(arguments),
        run: &[
            "run",
            "--rm",
            "--interactive",
            "--network=none",
            "--device=sluice.dev/gpu=managed",
        ],
        prefix: "",
    };
    crate::kinds::all(&mut node, &kinds);
    drop(engine);
    nobody_is_left(&node);
}

fn podman() {
    let mut node = Node::start();
    let tree = enter();
    devices_of(&node, &tree);
    let folder = tempfile::Builder::new()
        .prefix("sluice-podman-")
        .tempdir_in("/tmp")
        .expect("a temporary folder");
    let path = |name: &str| folder.path().join(name);
    fs::write(
        path("containers.conf"),
        "[containers]\nnetns = \"none\"\ndefault_ulimits = [\"nofile=1024:1024\", \"nproc=32768:32768\"]\n\
         [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n",
    )
    .expect("our own folder");
    let podman = |arguments: &[&str]| {
        let mut command = tree.command("podman");
        command
            .arg("--root")
            .arg(path("storage"))
            .arg("--runroot")
            .arg(path("run"))
            .arg("--storage-driver=vfs")
            .args(arguments)
            .env("CONTAINERS_CONF", path("containers.conf"))
            .env("PODMAN_IGNORE_CGROUPSV1_WARNING", "1");
        command
    };
    let archive = path("image.tar").display().to_string();
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(image::root())
        .args(["-cf", &archive, "."]);
    succeed(&mut tar, BOUND);
    succeed(&mut podman(&["import", &archive, IMAGE]), BOUND);
    let mut words = RUN.to_vec();
    words.extend(["--pull=never", IMAGE, "/bin/stepper"]);
    let first = ready(Stepper::start(&mut podman(&words)));
    let exec = [
        "exec",
        "--interactive",
        "held",
        "/bin/env",
        "-i",
        "/bin/stepper",
    ];
    is_held(&node, first, &mut podman(&exec));
    let kinds = crate::kinds::Engine {
        command: &podman,
        run: &crate::podman::RUN,
        prefix: "localhost/",
    };
    crate::kinds::all(&mut node, &kinds);
    eventually("no container is left", BOUND, || {
        _ = finish(&mut podman(&["rm", "--all", "--force", "--time=0"]), BOUND);
        let left = finish(&mut podman(&["ps", "--all", "--quiet"]), BOUND);
        (left.status.success() && left.stdout.is_empty()).then_some(())
    });
    nobody_is_left(&node);
}
