//! `podman` with a CDI device: what a user adds is one flag.

use crate::bundle::{ready, runtime_script};
use crate::support::{GIB, MIB, Node, PATIENCE, Stepper, eventually, finish, sluice, succeed};
use crate::{Test, image, missing_program, no_root};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// The tests, by promise.
pub(crate) const TESTS: &[Test] = &[
    ("caps_hold_for_classes_and_variables", caps_hold),
    (
        "no_variable_raises_the_quota_of_a_class",
        no_variable_raises,
    ),
    ("what_exec_starts_is_held_too", exec_is_held),
    ("users_and_rights_of_all_kinds", users_and_rights),
    ("leases_are_for_one_quota", leases),
    ("two_vendors_compose_in_either_order", two_vendors),
    ("two_devices_are_refused", two_devices),
    ("a_restarted_container_is_held_again", restarted_container),
    ("a_killed_container_leaves_nothing", killed),
    ("missing_libraries_stop_the_container", missing_libraries),
    (
        "rootless_containers_are_held_by_the_user_s_daemon",
        rootless,
    ),
    ("crun_is_as_good_as_runc", crun),
    ("the_runtime_is_as_good_as_a_device", by_runtime),
    ("images_of_all_kinds", kinds),
];

/// Why they cannot run here.
pub(crate) fn missing() -> Option<String> {
    no_root()
        .or_else(|| missing_program(&["podman", "runc", "crun"]))
        .or_else(|| {
            // What else this machine may lack shows with the plainest container that there is.
            let engine = Engine::new();
            let output = engine.podman(&["run", "--rm", IMAGE, "/bin/true"]);
            (!output.status.success())
                .then(|| format!("podman starts no container here: {}", text(&output)))
        })
}

/// What every container here is made of.
const IMAGE: &str = "localhost/sluice-test:latest";

/// How long an engine may take.
const BOUND: Duration = Duration::from_secs(60);

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A podman with storage, devices and state of its own.
///
/// It runs in a mount namespace in which the folder of CDI devices is its own, and for a user the tables of
/// users are: nothing of the machine's is changed.
#[derive(Debug)]
struct Engine {
    folder: TempDir,
    user: Option<u32>,
}

/// Enters the namespace: `$0` is the engine's folder, the rest is the program.
const ENTER: &str = r#"
mkdir -p /run/cdi && mount --bind "$0/cdi" /run/cdi || exit 125
for file in passwd group subuid subgid; do
    [ -e "$0/etc/$file" ] || continue
    [ -e "/etc/$file" ] || touch "/etc/$file"
    mount --bind "$0/etc/$file" "/etc/$file" || exit 125
done
# crun refuses a machine with both kinds of control groups, where they are as a system manager left them.
if [ -e "$0/unified" ]; then
    umount -R /sys/fs/cgroup && mount -t cgroup2 none /sys/fs/cgroup || exit 125
fi
cd "$0" && exec "$@"
"#;

impl Engine {
    fn new() -> Self {
        Self::of(None)
    }

    fn of(user: Option<u32>) -> Self {
        // Where a user may go as well.
        let folder = tempfile::Builder::new().prefix("sluice-podman-").tempdir();
        let engine = Self {
            folder: folder.expect("a temporary folder"),
            user,
        };
        for folder in ["cdi", "run", "tmp"] {
            fs::create_dir_all(engine.path().join(folder)).expect("our own folder");
        }
        // Settings that a small machine, without systemd or a network of its own for containers, needs.
        let write = |name: &str, text: &str| {
            fs::write(engine.path().join(name), text).expect("our own folder");
        };
        // podman would raise the limits, which root without CAP_SYS_RESOURCE may not.
        let limits = if user.is_some() {
            "\"nofile=512:512\""
        } else {
            "\"nofile=1024:1024\", \"nproc=32768:32768\""
        };
        write(
            "containers.conf",
            &format!(
                "[containers]\nnetns = \"none\"\ndefault_ulimits = [{limits}]\n\
                 [engine]\ncgroup_manager = \"cgroupfs\"\nevents_logger = \"file\"\nruntime = \"runc\"\n"
            ),
        );
        if let Some(user) = user {
            fs::create_dir_all(engine.path().join("etc")).expect("our own folder");
            let home = engine.path().display();
            write(
                "etc/passwd",
                &format!("root:x:0:0::/root:/bin/sh\ntester:x:{user}:{user}::{home}:/bin/sh\n"),
            );
            write("etc/group", &format!("root:x:0:\ntester:x:{user}:\n"));
            write("etc/subuid", "tester:200000:65536\n");
            write("etc/subgid", "tester:200000:65536\n");
        } else {
            fs::create_dir_all(engine.path().join("etc")).expect("our own folder");
            // For --userns=auto.
            write("etc/subuid", "containers:2147483647:2147483648\n");
            write("etc/subgid", "containers:2147483647:2147483648\n");
        }
        engine.own();
        let archive = archive().display().to_string();
        let imported = engine.podman(&["import", &archive, IMAGE]);
        assert!(imported.status.success(), "{}", text(&imported));
        engine
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Makes everything in its folder the user's.
    fn own(&self) {
        if let Some(user) = self.user {
            let mut chown = Command::new("chown");
            chown
                .args(["-R", &format!("{user}:{user}")])
                .arg(self.path());
            succeed(&mut chown, BOUND);
        }
    }

    /// A program where this engine is.
    fn inside(&self, program: &Path) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "sh", "-c", ENTER])
            .arg(self.path());
        if let Some(user) = self.user {
            let id = user.to_string();
            command.args(["setpriv", "--reuid", &id, "--regid", &id, "--clear-groups"]);
        }
        command
            .arg(program)
            .env("CONTAINERS_CONF", self.path().join("containers.conf"))
            .env("HOME", self.path())
            .env("XDG_RUNTIME_DIR", self.path().join("run"));
        command
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.inside(Path::new("podman"));
        command
            .arg("--root")
            .arg(self.path().join("storage"))
            .arg("--runroot")
            .arg(self.path().join("run/podman"))
            .arg("--storage-driver=vfs")
            .args(arguments);
        command
    }

    fn podman(&self, arguments: &[&str]) -> Output {
        finish(&mut self.command(arguments), BOUND)
    }

    #[track_caller]
    fn succeed(&self, arguments: &[&str]) -> String {
        succeed(&mut self.command(arguments), BOUND)
    }

    /// Removes all containers; one that is just removing itself makes podman fail for a moment.
    #[track_caller]
    fn clear(&self) {
        eventually("no container is left", BOUND, || {
            _ = self.podman(&["rm", "--all", "--force", "--time=0"]);
            let left = self.podman(&["ps", "--all", "--quiet"]);
            (left.status.success() && left.stdout.is_empty()).then_some(())
        });
    }

    /// Makes the devices of the daemon of `node`.
    #[track_caller]
    fn devices_of(&self, node: &Node) {
        let file = self.path().join("cdi/sluice.json");
        let (is_ok, said) = node.sluice_of(
            &["cdi", "generate"],
            &["--output", &file.display().to_string()],
        );
        assert!(is_ok, "{said}");
    }

    /// A stepper in a container with these further arguments of `podman run`, with a context on device 0.
    #[track_caller]
    fn stepper(&self, arguments: &[&str]) -> Stepper {
        let mut all = vec!["run", "--rm", "--interactive", "--pull=never"];
        all.extend(arguments);
        all.extend([IMAGE, "/bin/stepper"]);
        ready(Stepper::start(&mut self.command(&all)))
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        _ = self
            .command(&["rm", "--all", "--force", "--time=0"])
            .output();
        if self.user.is_some() {
            // Ends the process that keeps the user's namespace.
            _ = self.command(&["system", "migrate"]).output();
        }
    }
}

/// The image as an archive.
fn archive() -> &'static Path {
    static ARCHIVE: OnceLock<PathBuf> = OnceLock::new();
    ARCHIVE.get_or_init(|| {
        let file = std::env::temp_dir().join(format!("sluice-image-{}.tar", std::process::id()));
        let mut tar = Command::new("tar");
        tar.arg("-C")
            .arg(image::root())
            .arg("-cf")
            .arg(&file)
            .arg(".");
        succeed(&mut tar, BOUND);
        file
    })
}

/// Removes what no value owns.
pub(crate) fn tidy() {
    let file = std::env::temp_dir().join(format!("sluice-image-{}.tar", std::process::id()));
    _ = fs::remove_file(file);
}

fn nobody_is_left(node: &Node) {
    eventually("no tenant is left", PATIENCE, || {
        (node.status()["tenants"] == json!([])).then_some(())
    });
    assert_eq!(node.hardware.truth(0), 0, "nothing is left behind");
}

fn caps_hold() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    let mut quarter = engine.stepper(&["--device", "sluice.dev/gpu=quarter"]);
    let mut managed = engine.stepper(&[
        "--device=sluice.dev/gpu=managed",
        "--env=SLUICE_MEMORY=3GiB",
        "--env=SLUICE_NAME=web",
    ]);
    assert_eq!(quarter.info(), (2 * GIB, 2 * GIB));
    assert_eq!(managed.info(), (3 * GIB, 3 * GIB));
    quarter.ok(&format!("alloc a {}", 1800 * MIB));
    quarter.refused(&format!("alloc b {}", 300 * MIB));
    managed.ok(&format!("alloc a {}", 2800 * MIB));
    managed.refused(&format!("alloc b {}", 300 * MIB));
    assert_eq!(node.hardware.truth(0), 4600 * MIB);
    let web = node
        .tenant_status("web")
        .expect("it has the name that was asked for");
    assert_eq!(web["container"]["id"].as_str().map(str::len), Some(64));
    let pid = web["processes"][0]["pid"].as_u64().expect("a number");
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("a process of the host");
    assert!(status.contains("stepper"), "{status}");
    let status = node.status();
    let classes: Vec<&Value> = status["tenants"]
        .as_array()
        .expect("a list")
        .iter()
        .collect();
    let of_class = classes
        .iter()
        .find(|tenant| tenant["name"] != "web")
        .expect("the other");
    assert_eq!(of_class["devices"][0]["compute"]["guarantee_permille"], 250);
    drop((quarter, managed));
    engine.clear();
    nobody_is_left(&node);
}

/// How podman runs a container whose quota is in its variables.
pub(crate) const RUN: [&str; 5] = [
    "run",
    "--rm",
    "--interactive",
    "--pull=never",
    "--device=sluice.dev/gpu=managed",
];

fn kinds() {
    let (mut node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    let kinds = crate::kinds::Engine {
        command: &|arguments| engine.command(arguments),
        run: &RUN,
        prefix: "localhost/",
    };
    crate::kinds::all(&mut node, &kinds);
    engine.clear();
}

fn no_variable_raises() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    let mut stepper = engine.stepper(&[
        "--env=SLUICE_MEMORY=7GiB",
        "--device=sluice.dev/gpu=quarter",
        "--env=SLUICE_COMPUTE=100%",
        "--env=SLUICE_WEIGHT=10000",
        "--env=SLUICE_CLASS=latency",
        "--env=CUDA_DEVICE_MEMORY_LIMIT=7g",
    ]);
    assert_eq!(stepper.info(), (2 * GIB, 2 * GIB));
    let compute = node.status()["tenants"][0]["devices"][0]["compute"].clone();
    assert_eq!(compute["guarantee_permille"], 250, "{compute}");
    assert_eq!(compute["weight"], 250, "{compute}");
    assert_eq!(compute["class"], "standard", "{compute}");
}

fn exec_is_held() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    engine.succeed(&[
        "run",
        "--detach",
        "--name=held",
        "--device=sluice.dev/gpu=quarter",
        IMAGE,
        "/bin/sleep",
        "600",
    ]);
    let mut stepper = ready(Stepper::start(&mut engine.command(&[
        "exec",
        "--interactive",
        "held",
        "/bin/stepper",
    ])));
    assert_eq!(stepper.info(), (2 * GIB, 2 * GIB));
    stepper.refused(&format!("alloc a {}", 3 * GIB));
    let mut second = ready(Stepper::start(&mut engine.command(&[
        "exec",
        "--interactive",
        "--user=1000",
        "held",
        "/bin/env",
        "-i",
        "/bin/stepper",
    ])));
    stepper.ok(&format!("alloc a {GIB}"));
    assert_eq!(second.info(), (GIB, 2 * GIB));
}

// C86, C87.
fn users_and_rights() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    for kind in [
        &["--read-only"][..],
        &["--user=1000"],
        &["--cap-drop=all", "--security-opt=no-new-privileges"],
        &["--privileged"],
        &["--userns=auto"],
        &["--userns=auto", "--user=1000", "--read-only"],
        &["--env=LD_PRELOAD=/nowhere.so"],
    ] {
        let mut all = vec!["--device=sluice.dev/gpu=quarter"];
        all.extend(kind);
        let mut stepper = engine.stepper(&all);
        assert_eq!(stepper.info(), (2 * GIB, 2 * GIB), "{kind:?}");
        stepper.ok(&format!("alloc a {GIB}"));
        stepper.refused(&format!("alloc b {}", 1100 * MIB));
        drop(stepper);
        engine.clear();
    }
    nobody_is_left(&node);
}

fn leases() {
    let (node, engine) = (Node::start(), Engine::new());
    let folder = engine.path().join("cdi").display().to_string();
    let (is_ok, flag) = node.sluice_of(
        &["cdi", "lease"],
        &[
            "--memory=3GiB",
            "--compute=30%",
            "--print",
            "--folder",
            &folder,
        ],
    );
    assert!(is_ok, "{flag}");
    let words: Vec<&str> = flag.split_whitespace().collect();
    let mut stepper = engine.stepper(&words);
    assert_eq!(stepper.info(), (3 * GIB, 3 * GIB));
    let tenant = node.status()["tenants"][0].clone();
    let lease = tenant["container"]["lease"].as_str().expect("its lease");
    assert!(words[1].ends_with(lease), "{words:?} {lease}");
    assert_eq!(tenant["devices"][0]["compute"]["guarantee_permille"], 300);
    // Old, but in use.
    let file = engine.path().join(format!("cdi/sluice-{lease}.json"));
    let age = |file: &Path| {
        let long_ago = std::time::SystemTime::now() - Duration::from_secs(48 * 3600);
        let file = fs::File::options()
            .write(true)
            .open(file)
            .expect("the lease");
        file.set_modified(long_ago).expect("our own file");
    };
    age(&file);
    let (is_ok, said) = node.sluice_of(&["cdi", "prune"], &["--folder", &folder]);
    assert!(is_ok && said.is_empty(), "{said}");
    drop(stepper);
    engine.clear();
    nobody_is_left(&node);
    // It was used until now.
    let (_, said) = node.sluice_of(&["cdi", "prune"], &["--folder", &folder]);
    assert!(said.is_empty() && file.exists(), "{said}");
    age(&file);
    let (_, said) = node.sluice_of(&["cdi", "prune"], &["--folder", &folder]);
    assert!(said.contains(lease) && !file.exists(), "{said}");
}

fn two_vendors() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    // What NVIDIA's own specification does, as far as it matters here.
    let other = json!({
        "cdiVersion": "0.5.0", "kind": "nvidia.com/gpu",
        "devices": [{"name": "0", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "hooks": [{"hookName": "createContainer", "path": "/bin/true", "args": ["true"]}],
        },
    });
    fs::write(engine.path().join("cdi/nvidia.json"), other.to_string()).expect("our own folder");
    let ours = "--device=sluice.dev/gpu=half";
    let theirs = "--device=nvidia.com/gpu=0";
    for order in [[ours, theirs], [theirs, ours]] {
        let mut stepper = engine.stepper(&order);
        assert_eq!(stepper.info(), (4 * GIB, 4 * GIB), "{order:?}");
    }
}

fn two_devices() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    let output = engine.podman(&[
        "run",
        "--rm",
        "--device=sluice.dev/gpu=half",
        "--device=sluice.dev/gpu=quarter",
        IMAGE,
        "/bin/true",
    ]);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        text(&output).contains("one device of sluice.dev"),
        "{}",
        text(&output)
    );
    nobody_is_left(&node);
}

fn restarted_container() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    engine.succeed(&[
        "run",
        "--detach",
        "--name=again",
        "--device=sluice.dev/gpu=half",
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
        assert_eq!(stepper.info(), (4 * GIB, 4 * GIB));
        stepper.ok(&format!("alloc a {}", 3 * GIB));
        engine.succeed(&["restart", "--time=0", "again"]);
    }
    engine.succeed(&["rm", "--force", "--time=0", "again"]);
    nobody_is_left(&node);
}

fn killed() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    let mut stepper = engine.stepper(&["--name=doomed", "--device=sluice.dev/gpu=half"]);
    stepper.ok(&format!("alloc a {}", 3 * GIB));
    engine.succeed(&["kill", "--signal=KILL", "doomed"]);
    nobody_is_left(&node);
}

fn missing_libraries() {
    let (node, engine) = (Node::start(), Engine::new());
    engine.devices_of(&node);
    let file = engine.path().join("cdi/sluice.json");
    let specification = fs::read_to_string(&file).expect("just written");
    let libraries = crate::support::libraries().display().to_string();
    fs::write(
        &file,
        specification.replace(&format!("\"{libraries}\""), "\"/nowhere/sluice\""),
    )
    .expect("our own file");
    let output = engine.podman(&[
        "run",
        "--rm",
        "--device=sluice.dev/gpu=half",
        IMAGE,
        "/bin/true",
    ]);
    assert!(!output.status.success(), "{output:?}");
    assert!(
        text(&output).contains("/nowhere/sluice"),
        "{}",
        text(&output)
    );
    nobody_is_left(&node);
}

fn crun() {
    let (node, engine) = (Node::start(), Engine::new());
    fs::write(engine.path().join("unified"), "").expect("our own folder");
    engine.devices_of(&node);
    let mut stepper = ready(Stepper::start(&mut engine.command(&[
        "--runtime=crun",
        "run",
        "--rm",
        "--interactive",
        "--pull=never",
        "--cgroups=disabled",
        "--device=sluice.dev/gpu=half",
        "--name=held",
        IMAGE,
        "/bin/stepper",
    ])));
    assert_eq!(stepper.info(), (4 * GIB, 4 * GIB));
    stepper.ok(&format!("alloc a {}", 3 * GIB));
    let mut second = ready(Stepper::start(&mut engine.command(&[
        "--runtime=crun",
        "exec",
        "--interactive",
        "held",
        "/bin/env",
        "-i",
        "/bin/stepper",
    ])));
    assert_eq!(
        second.info(),
        (GIB, 4 * GIB),
        "by its PID namespace, without a control group"
    );
    second.refused(&format!("alloc a {}", 2 * GIB));
    engine.succeed(&["--runtime=crun", "kill", "--signal=KILL", "held"]);
    nobody_is_left(&node);
}

fn by_runtime() {
    let (node, engine) = (Node::start(), Engine::new());
    let script = runtime_script(engine.path(), &node);
    let runtime = format!("--runtime={}", script.display());
    let mut command = engine.command(&[
        &runtime,
        "run",
        "--rm",
        "--interactive",
        "--pull=never",
        "--env=SLUICE_MEMORY=3GiB",
        IMAGE,
        "/bin/stepper",
    ]);
    let mut stepper = ready(Stepper::start(&mut command));
    assert_eq!(stepper.info(), (3 * GIB, 3 * GIB));
    stepper.refused(&format!("alloc a {}", 4 * GIB));
}

/// A user that no machine has.
const USER: u32 = 424_242;

fn rootless() {
    let engine = Engine::of(Some(USER));
    // Where this program was built a user may not be let in.
    let installed = finish(
        Command::new(sluice())
            .arg("install")
            .arg(engine.path().join("sluice")),
        BOUND,
    );
    assert!(installed.status.success(), "{}", text(&installed));
    engine.own();
    let program = engine.path().join("sluice/bin/sluice");
    let folder = engine.path().join("node");
    let mut daemon = engine.inside(&program);
    daemon
        .args(["daemon", "--device=stand-in", "--runtime-dir"])
        .arg(&folder);
    let daemon = Daemon(
        daemon
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("it starts"),
    );
    let file = engine.path().join("cdi/sluice.json");
    let sluice_of = |arguments: &[&str]| {
        let mut command = engine.inside(&program);
        command.args(arguments).arg("--runtime-dir").arg(&folder);
        finish(&mut command, BOUND)
    };
    eventually("the user's daemon answers", PATIENCE, || {
        sluice_of(&["status"]).status.success().then_some(())
    });
    let made = sluice_of(&["cdi", "generate", "--output", &file.display().to_string()]);
    assert!(made.status.success(), "{}", text(&made));
    for kind in [&[][..], &["--user=1000"], &["--userns=keep-id"]] {
        let mut all = vec!["--device=sluice.dev/gpu=half"];
        all.extend(kind);
        let mut stepper = engine.stepper(&all);
        assert_eq!(stepper.info(), (4 * GIB, 4 * GIB), "{kind:?}");
        stepper.ok(&format!("alloc a {}", 3 * GIB));
        stepper.refused(&format!("alloc b {}", 2 * GIB));
        let status = text(&sluice_of(&["status", "--json"]));
        assert!(status.contains("\"container\""), "{status}");
        drop(stepper);
        engine.clear();
    }
    drop(daemon);
}

/// A daemon that ends in order, and takes its stand-in with it.
struct Daemon(std::process::Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let pid = i32::try_from(self.0.id()).expect("a process id");
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        _ = self.0.wait();
    }
}
