//! Engines of what is to be the next Debian: containerd 2 with CDI over the Container Runtime Interface, as a kubelet
//! uses it, and apptainer.

use crate::bundle::ready;
use crate::support::{GIB, MIB, Node, PATIENCE, Stepper, eventually, python, sluice, succeed};
use crate::tree::{SID, Tree};
use crate::{Test, image, no_root};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// The tests, by promise.
pub(crate) const TESTS: &[Test] = &[
    ("containerd_holds_caps_of_cdi_devices_over_cri", over_cri),
    ("apptainer_holds_what_its_shell_was_given", apptainer),
];

/// Why they cannot run here.
pub(crate) fn missing() -> Option<String> {
    no_root().or_else(|| Tree::made(&SID).err())
}

fn enter() -> Tree {
    Tree::enter(&Tree::made(&SID).expect("looked for before"))
}

fn nobody_is_left(node: &Node) {
    eventually("no tenant is left", PATIENCE, || {
        (node.status()["tenants"] == json!([])).then_some(())
    });
    assert_eq!(node.hardware.truth(0), 0, "nothing is left behind");
}

/// How long an engine may take.
const BOUND: Duration = Duration::from_secs(90);

const IMAGE: &str = "localhost/sluice-test:latest";

/// A containerd of the tree.
struct Engine {
    folder: TempDir,
    daemon: Child,
    tree: Tree,
}

impl Engine {
    fn start(tree: Tree) -> Self {
        // A path of a socket is at most 107 bytes long.
        let folder = tempfile::Builder::new()
            .prefix("sc-")
            .tempdir_in("/tmp")
            .expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let config = format!(
            "version = 3\nroot = {root:?}\nstate = {state:?}\n\
             disabled_plugins = [\"io.containerd.internal.v1.opt\"]\n\
             [grpc]\naddress = {socket:?}\n\
             [plugins.\"io.containerd.cri.v1.images\"]\nsnapshotter = \"native\"\n\
             [plugins.\"io.containerd.cri.v1.images\".pinned_images]\nsandbox = \"{IMAGE}\"\n\
             [plugins.\"io.containerd.cri.v1.runtime\"]\n\
             enable_cdi = true\ncdi_spec_dirs = [\"/etc/cdi\"]\n\
             disable_apparmor = true\ndisable_hugetlb_controller = true\nrestrict_oom_score_adj = true\n",
            root = path("root"),
            state = path("state"),
            socket = path("s"),
        );
        fs::write(path("config.toml"), config).expect("our own folder");
        let log = fs::File::create(path("log")).expect("our own folder");
        let mut command = tree.command("containerd");
        command
            .arg("--config")
            .arg(path("config.toml"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let daemon = command.spawn().expect("containerd");
        let engine = Self {
            folder,
            daemon,
            tree,
        };
        let archive = oci_archive(engine.folder.path());
        eventually("containerd takes the image", BOUND, || {
            let mut import = engine.tree.command("ctr");
            import.arg("--address").arg(engine.socket());
            import.args(["--namespace=k8s.io", "images", "import"]);
            import.args(["--snapshotter=native", "--local"]);
            let done = import.arg(&archive).output().expect("ctr");
            done.status.success().then_some(())
        });
        engine
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let pid = i32::try_from(self.daemon.id()).expect("a process id");
        // SAFETY: a signal to our own child.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        _ = self.daemon.wait();
    }
}

fn digest(file: &Path) -> String {
    let printed = succeed(Command::new("sha256sum").arg(file), BOUND);
    printed.split(' ').next().expect("a sum").to_owned()
}

/// The image as an OCI archive.
fn oci_archive(folder: &Path) -> PathBuf {
    let layout = folder.join("layout");
    let blobs = layout.join("blobs/sha256");
    fs::create_dir_all(&blobs).expect("our own folder");
    let blob = |content: &Path, kind: &str| -> Value {
        let sum = digest(content);
        let size = fs::metadata(content).expect("a file").len();
        fs::rename(content, blobs.join(&sum)).expect("our own folder");
        json!({"mediaType": kind, "digest": format!("sha256:{sum}"), "size": size})
    };
    let write = |value: &Value| {
        let file = layout.join("new");
        fs::write(&file, value.to_string()).expect("our own folder");
        file
    };
    let layer = layout.join("layer");
    let mut tar = Command::new("tar");
    tar.arg("-C")
        .arg(image::root())
        .arg("-cf")
        .arg(&layer)
        .arg(".");
    succeed(&mut tar, BOUND);
    let layer = blob(&layer, "application/vnd.oci.image.layer.v1.tar");
    let config = json!({
        "architecture": "amd64",
        "os": "linux",
        "config": {"Cmd": ["/bin/sleep", "600"], "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    });
    let config = blob(&write(&config), "application/vnd.oci.image.config.v1+json");
    let manifest = json!({"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
                          "config": config, "layers": [layer]});
    let mut manifest = blob(
        &write(&manifest),
        "application/vnd.oci.image.manifest.v1+json",
    );
    manifest["annotations"] = json!({"io.containerd.image.name": IMAGE,
                                     "org.opencontainers.image.ref.name": "latest"});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(layout.join("index.json"), index.to_string()).expect("our own folder");
    fs::write(
        layout.join("oci-layout"),
        r#"{"imageLayoutVersion": "1.0.0"}"#,
    )
    .expect("our own folder");
    let archive = folder.join("image.tar");
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(&layout).arg("-cf").arg(&archive);
    tar.args(["blobs", "index.json", "oci-layout"]);
    succeed(&mut tar, BOUND);
    archive
}

/// A pod's container of the class `quarter`, and what its program does.
fn over_cri() {
    let node = Node::start();
    let tree = enter();
    let mut generate = tree.command(sluice());
    generate.args([
        "cdi",
        "generate",
        "--output=/etc/cdi/sluice.json",
        "--runtime-dir",
    ]);
    succeed(generate.arg(node.folder()), BOUND);
    let engine = Engine::start(tree);
    let script = format!(
        "printf 'init\\ncontext 0\\ninfo\\nalloc a {GIB}\\nalloc b {}\\n' | /bin/stepper",
        1100 * MIB
    );
    let mut client = Command::new(python::interpreter());
    client
        .arg(python::script("cri.py"))
        .arg(engine.socket())
        .args([
            IMAGE,
            "sluice.dev/gpu=quarter",
            "SLUICE_MEMORY=7GiB",
            "SLUICE_NAME=web",
        ])
        .args(["--", "/bin/sh", "-c", &script]);
    let running = client.stdout(Stdio::piped()).spawn().expect("the client");
    // As long as the container is there, the tenant is it.
    let known = eventually("the container is a tenant", BOUND, || {
        let tenant = node.tenant_status("web")?;
        tenant["container"]["id"].as_str().map(str::to_owned)
    });
    let output = running.wait_with_output().expect("our own child");
    assert!(output.status.success(), "{output:?}");
    let printed = String::from_utf8_lossy(&output.stdout).into_owned();
    let first = printed.lines().next().expect("the container's id");
    assert_eq!(first, format!("container {known}"));
    let answers: Vec<Value> = printed
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let codes: Vec<i64> = answers
        .iter()
        .filter_map(|answer| answer["rc"].as_i64())
        .collect();
    // The last one goes over a quarter of 8 GiB.
    assert_eq!(codes, [0, 0, 0, 0, 2], "{printed}");
    assert_eq!(answers[2]["total"], 2 * GIB, "{printed}");
    nobody_is_left(&node);
}

/// `sluice env` in a shell, and a container that the shell starts.
fn apptainer() {
    let node = Node::start();
    let tree = enter();
    let folder = tempfile::Builder::new()
        .prefix("sa-")
        .tempdir_in("/tmp")
        .expect("a temporary folder");
    let root = folder.path().join("root");
    image::copy(&root);
    let script = format!(
        "eval \"$({sluice} env --memory 2GiB --name web --runtime-dir {node})\" && \
         exec apptainer --quiet exec --no-privs --no-home --no-eval {root} /bin/stepper",
        sluice = sluice().display(),
        node = node.folder().display(),
        root = root.display(),
    );
    let mut command = tree.command("sh");
    command.args(["-c", &script]).env("HOME", folder.path());
    let mut first = ready(Stepper::start(&mut command));
    assert_eq!(first.info(), (2 * GIB, 2 * GIB));
    first.ok(&format!("alloc a {GIB}"));
    first.refused(&format!("alloc b {}", 1100 * MIB));
    assert_eq!(node.used("web", 0), GIB);
    first.kill();
    nobody_is_left(&node);
}
