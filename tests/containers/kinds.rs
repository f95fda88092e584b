//! Images and containers of all kinds, the same for every engine with docker's command line.

use crate::bundle::ready;
use crate::image;
use crate::support::{GIB, Node, PATIENCE, Stepper, eventually, finish, succeed};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output};
use std::time::Duration;

/// How long an engine may take.
const BOUND: Duration = Duration::from_secs(90);

/// An engine.
pub(crate) struct Engine<'e> {
    /// Its program with these arguments.
    pub(crate) command: &'e dyn Fn(&[&str]) -> Command,
    /// How a container is run whose quota is in its variables.
    pub(crate) run: &'e [&'e str],
    /// What goes before an image's name.
    pub(crate) prefix: &'e str,
}

impl Engine<'_> {
    fn import(&self, root: &Path, name: &str) {
        let archive = root.with_extension("tar");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(root).arg("-cf").arg(&archive).arg(".");
        succeed(&mut tar, BOUND);
        let image = format!("{}{name}", self.prefix);
        let archive = archive.display().to_string();
        succeed(&mut (self.command)(&["import", &archive, &image]), BOUND);
    }

    fn run(&self, image: &str, options: &[&str], program: &[&str]) -> Command {
        let image = format!("{}{image}", self.prefix);
        let mut words = self.run.to_vec();
        words.push("--env=SLUICE_MEMORY=1GiB");
        words.extend(options);
        words.push(&image);
        words.extend(program);
        (self.command)(&words)
    }

    fn output(&self, image: &str, options: &[&str], program: &[&str]) -> Output {
        finish(&mut self.run(image, options, program), BOUND)
    }
}

fn text(output: &Output) -> String {
    let both = [&output.stdout[..], &output.stderr[..]].concat();
    String::from_utf8_lossy(&both).into_owned()
}

/// A root file system with programs and files of all kinds.
fn rich(root: &Path) {
    image::copy(root);
    let source = root.with_extension("c");
    let hello = "#include <stdio.h>\nint main(void) { puts(\"hello\"); return 0; }\n";
    fs::write(&source, hello).expect("our own folder");
    let build = |compiler: &Path, options: &[&str], name: &str| {
        let mut cc = Command::new(compiler);
        cc.args(options).arg("-o").arg(root.join(name)).arg(&source);
        succeed(&mut cc, PATIENCE);
    };
    build(Path::new("cc"), &["-static"], "bin/static");
    fs::create_dir_all(root.join("lib")).expect("our own folder");
    if let Some(musl) = image::find("musl-gcc") {
        build(&musl, &[], "bin/musl");
        let loader = "lib/ld-musl-x86_64.so.1";
        fs::copy(Path::new("/").join(loader), root.join(loader)).expect("musl's loader");
    } else {
        eprintln!(
            "NOT RUN: a program of musl: there is no musl-gcc; `apt-get install musl-tools` has it"
        );
    }
    fs::copy("/lib/x86_64-linux-gnu/libm.so.6", root.join("lib/own.so")).expect("a copy");
    let program = root.join("bin/id");
    fs::set_permissions(program, fs::Permissions::from_mode(0o4755)).expect("our own file");
}

/// Everything that an image or its user may bring along: nothing is harmed, and what can be held is.
pub(crate) fn all(node: &mut Node, engine: &Engine<'_>) {
    let folder = tempfile::Builder::new()
        .prefix("sk-")
        .tempdir_in("/tmp")
        .expect("a temporary folder");
    let root = folder.path().join("rich");
    rich(&root);
    engine.import(&root, "sluice-rich:latest");

    // An image that preloads something itself.
    let maps = ["/bin/cat", "/proc/self/maps"];
    let said = text(&engine.output(
        "sluice-rich:latest",
        &["--env=LD_PRELOAD=/lib/own.so"],
        &maps,
    ));
    for library in ["/opt/sluice/lib/libsluice.so", "/lib/own.so"] {
        assert!(said.contains(&format!(" {library}\n")), "{library}: {said}");
    }
    // Programs that no library can be loaded into, or not ours.
    for program in ["static", "musl"] {
        let path = format!("/bin/{program}");
        if root.join(&path[1..]).exists() {
            let output = engine.output("sluice-rich:latest", &[], &[&path]);
            assert_eq!(text(&output), "hello\n", "{program}");
        }
    }
    let output = engine.output("sluice-rich:latest", &["--user=1000"], &["/bin/id"]);
    let said = text(&output);
    assert!(
        said.contains("uid=1000") && said.contains("euid=0"),
        "{said}"
    );
    assert!(!said.contains("ERROR"), "{said}");
    // Nothing can be written, and nothing executed from what can.
    let options = ["--read-only", "--tmpfs=/tmp:rw,noexec,size=1m"];
    let mut command = engine.run("sluice-rich:latest", &options, &["/bin/stepper"]);
    let mut stepper = ready(Stepper::start(&mut command));
    assert_eq!(stepper.info(), (GIB, GIB));
    stepper.refused("alloc a 1025MiB");
    drop(stepper);

    hostile(engine, folder.path());
    shares(node, engine);
    restart(node, engine);
}

/// The daemon is away for a while: the cap holds, and the next one knows the container.
fn restart(node: &mut Node, engine: &Engine<'_>) {
    let options = ["--env=SLUICE_NAME=stays"];
    let mut command = engine.run("sluice-rich:latest", &options, &["/bin/stepper"]);
    let mut stepper = ready(Stepper::start(&mut command));
    stepper.ok("alloc a 512MiB");
    let container = |node: &Node| {
        node.tenant_status("stays")
            .map(|it| it["container"]["id"].clone())
    };
    let before = container(node).expect("a tenant");
    node.kill_daemon();
    stepper.refused("alloc b 513MiB");
    node.start_daemon();
    assert_eq!(container(node), Some(before));
    eventually("the next daemon has its account", PATIENCE, || {
        (node.used("stays", 0) == GIB / 2).then_some(())
    });
    stepper.ok("alloc b 512MiB");
    stepper.refused("alloc c 1");
    drop(stepper);
    eventually("no tenant is left", PATIENCE, || {
        (node.status()["tenants"] == json!([])).then_some(())
    });
}

/// Links of the image to the host's files are followed in the container, or refused.
fn hostile(engine: &Engine<'_>, folder: &Path) {
    let victim = folder.join("victim");
    fs::write(&victim, "mine\n").expect("a file");
    let root = folder.join("hostile");
    image::copy(&root);
    let up = "../../../../../../../../../..";
    symlink(
        format!("{up}{}", victim.display()),
        root.join("etc/ld.so.preload"),
    )
    .expect("a link");
    engine.import(&root, "sluice-hostile:latest");
    let output = engine.output(
        "sluice-hostile:latest",
        &[],
        &["/bin/cat", "/etc/ld.so.preload"],
    );
    if output.status.success() {
        assert_eq!(text(&output), "/opt/sluice/lib/libsluice.so\n");
    }
    assert_eq!(fs::read_to_string(&victim).expect("our own file"), "mine\n");
}

/// Two containers that want all of the device get their parts of it.
fn shares(node: &Node, engine: &Engine<'_>) {
    let start = |name: &str, part: &str| {
        let (name, part) = (
            format!("--env=SLUICE_NAME={name}"),
            format!("--env=SLUICE_COMPUTE={part}"),
        );
        let mut command = engine.run("sluice-rich:latest", &[&name, &part], &["/bin/stepper"]);
        ready(Stepper::start(&mut command))
    };
    let mut programs = [start("more", "75%"), start("less", "25%")];
    for program in &mut programs {
        program.begin("work-for 4000 1000000 10");
    }
    std::thread::sleep(Duration::from_secs(1));
    let busy = || {
        ["more", "less"].map(|name| {
            let tenant = node.tenant_status(name).expect("a tenant");
            let pid = tenant["processes"][0]["pid"].as_u64().expect("a number");
            node.busy(u32::try_from(pid).expect("a process id"))
        })
    };
    let before = busy();
    std::thread::sleep(Duration::from_secs(2));
    let after = busy();
    let got = [0, 1].map(|at| (after[at] - before[at]).as_secs_f64());
    let part = got[0] / (got[0] + got[1]);
    assert!((0.6..0.9).contains(&part), "{got:?}");
    for program in &mut programs {
        let answer: Value = program.answer("work-for", BOUND);
        assert_eq!(answer["rc"], 0);
    }
    drop(programs);
    eventually("no tenant is left", PATIENCE, || {
        (node.status()["tenants"] == json!([])).then_some(())
    });
}
