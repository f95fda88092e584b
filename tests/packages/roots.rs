//! Systems that are not this one: Debian 11, of 2021, and one that has nothing but the loader and libc.

use crate::Test;
use crate::packages::{PATIENCE, assert_held, package, unpacked};
use crate::support::{elf, finish, kept, succeed};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::Duration;
use tempfile::TempDir;

/// How long making the tree may take; where it takes longer its tests are not run.
const MADE_WITHIN: Duration = Duration::from_secs(175);

pub(crate) const TESTS: &[Test] = &[
    (
        "an_old_system_runs_what_was_built_here",
        an_old_system_runs_what_was_built_here,
    ),
    (
        "a_system_of_a_loader_and_libc_alone_runs_it_too",
        a_system_of_a_loader_and_libc_alone_runs_it_too,
    ),
    (
        "the_package_is_installed_used_and_removed_without_a_trace",
        the_package_is_installed_used_and_removed_without_a_trace,
    ),
];

/// Makes a tree of Debian 11, `$1`, from the machine's own mirror.
const MAKE: &str = r#"
set -eu
tree=$1
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
[ -n "$mirror" ] || { echo "apt names no mirror" >&2; exit 1; }
rm -rf "$tree.part"
mkdir -p "$tree.part"
debootstrap --variant=minbase bullseye "$tree.part" "$mirror" >&2
rm -rf "$tree.part/var/cache/apt/archives" "$tree.part/var/lib/apt/lists"
mv "$tree.part" "$tree"
"#;

/// Runs a script in a root of its own. `$1` is the root, `$2` a folder for what is written to it, which then stays as
/// it is; `$3` the script.
const INSIDE: &str = r#"
set -eu
root=$1
mkdir -p "$2/up" "$2/work" "$2/root"
mount -t overlay overlay -o "lowerdir=$root,upperdir=$2/up,workdir=$2/work" "$2/root"
root=$2/root
mkdir -p "$root/proc" "$root/dev" "$root/tmp"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
exec chroot "$root" $3
"#;

/// The tree, or why there is none.
fn tree() -> &'static Result<PathBuf, String> {
    static TREE: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    TREE.get_or_init(|| {
        if !nix::unistd::geteuid().is_root() {
            return Err("other systems need root".to_owned());
        }
        let tree = kept("packages").join("bullseye");
        if tree.is_dir() {
            return Ok(tree);
        }
        eprintln!("makes a tree of Debian 11, once: about a minute");
        fs::create_dir_all(kept("packages")).map_err(|error| error.to_string())?;
        let mut make = Command::new("timeout");
        make.arg(MADE_WITHIN.as_secs().to_string());
        make.args(["sh", "-c", MAKE, "sh"]).arg(&tree);
        let output = finish(&mut make, MADE_WITHIN * 2);
        if output.status.success() {
            return Ok(tree);
        }
        let words = String::from_utf8_lossy(&output.stderr);
        let last = words.lines().last().unwrap_or_default();
        Err(format!("no tree of Debian 11 can be made here: {last}"))
    })
}

pub(crate) fn missing() -> Option<String> {
    let reason = crate::packages::missing();
    reason.or_else(|| tree().as_ref().err().cloned())
}

/// A root in which nothing stays.
struct Root {
    lower: PathBuf,
    /// On a file system of its own, since this machine's may be an overlay already.
    scratch: TempDir,
}

impl Root {
    fn of(lower: &Path) -> Self {
        let scratch = tempfile::Builder::new()
            .prefix("sluice-root-")
            .tempdir()
            .expect("a temporary folder");
        Self {
            lower: lower.to_owned(),
            scratch,
        }
    }

    /// Runs words without spaces in them in it.
    fn run(&self, words: &str) -> Output {
        let mut command = Command::new("unshare");
        command.args([
            "--mount",
            "--pid",
            "--fork",
            "--kill-child",
            "sh",
            "-c",
            INSIDE,
            "sh",
        ]);
        command.arg(&self.lower).arg(self.scratch.path()).arg(words);
        finish(&mut command, PATIENCE)
    }

    fn ok(&self, words: &str) -> String {
        let output = self.run(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{words}: {said}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Puts a file into it.
    fn put(&self, path: &str, content: &[u8]) {
        let to = self
            .scratch
            .path()
            .join("up")
            .join(path.trim_start_matches('/'));
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::write(to, content).expect("a file");
    }

    /// Files and links that were changed or made, but for what a package manager notes.
    fn changed(&self) -> Vec<String> {
        let up = self.scratch.path().join("up");
        let mut find = Command::new("find");
        find.current_dir(&up)
            .args([
                ".",
                "-not",
                "-type",
                "d",
                "-not",
                "-path",
                "./var/lib/dpkg/*",
            ])
            .args(["-not", "-path", "./var/log/*", "-not", "-path", "./root/*"]);
        let listing = succeed(&mut find, PATIENCE);
        let mut all: Vec<String> = listing.lines().map(|line| line[1..].to_owned()).collect();
        all.sort();
        all
    }
}

const DEMO: &str = "demo --device stand-in --seconds 2 --json";

/// The archive's content at `to` in a root.
fn unpack_into(root: &Root, to: &str) {
    let (_folder, prefix) = unpacked();
    let folder = root
        .scratch
        .path()
        .join("up")
        .join(to.trim_start_matches('/'));
    fs::create_dir_all(folder.parent().expect("a folder")).expect("a folder");
    succeed(
        Command::new("cp").arg("-a").arg(&prefix).arg(&folder),
        PATIENCE,
    );
}

// C36
fn an_old_system_runs_what_was_built_here() {
    let root = Root::of(tree().as_ref().expect("asked for before"));
    unpack_into(&root, "/opt/sluice");
    assert_held(&root.run(&format!("/opt/sluice/bin/sluice {DEMO}")));
}

// C36, C86
fn a_system_of_a_loader_and_libc_alone_runs_it_too() {
    let tree = tree().as_ref().expect("asked for before");
    let empty = tempfile::tempdir().expect("a temporary folder");
    let root = Root::of(empty.path());
    unpack_into(&root, "/opt/sluice");
    let program = root.scratch.path().join("up/opt/sluice/bin/sluice");
    let mut needed = elf::needed(&program);
    // What the libraries need, which the program may not.
    needed.extend(["libdl.so.2", "libpthread.so.0"].map(str::to_owned));
    let libc = [
        "ld-linux-x86-64.so.2",
        "libc.so.6",
        "libdl.so.2",
        "libm.so.6",
        "libpthread.so.0",
        "librt.so.1",
        "libutil.so.1",
    ];
    for library in needed {
        assert!(libc.contains(&&*library), "the program needs {library}");
        let from = ["lib/x86_64-linux-gnu", "lib64"].map(|folder| tree.join(folder).join(&library));
        let content = from.iter().find_map(|path| fs::read(path).ok());
        let to = if library.starts_with("ld-") {
            "lib64"
        } else {
            "lib"
        };
        root.put(&format!("/{to}/{library}"), &content.expect(&library));
    }
    let loader = root.scratch.path().join("up/lib64/ld-linux-x86-64.so.2");
    succeed(Command::new("chmod").arg("755").arg(loader), PATIENCE);
    assert_held(&root.run(&format!("/opt/sluice/bin/sluice {DEMO}")));
}

// C110
fn the_package_is_installed_used_and_removed_without_a_trace() {
    let root = Root::of(tree().as_ref().expect("asked for before"));
    let package = fs::read(package(".deb")).expect("built");
    root.put("/root/sluice.deb", &package);
    root.ok("dpkg -i /root/sluice.deb");
    let installed = root.changed();
    for path in [
        "/etc/cdi/sluice.json",
        "/etc/sluice/sluice.toml",
        "/usr/bin/sluice",
        "/usr/bin/sluice-runtime",
        "/usr/lib/sluice",
        "/usr/lib/systemd/system/sluice.service",
        "/usr/lib/tmpfiles.d/sluice.conf",
    ] {
        assert!(
            installed.contains(&path.to_owned()),
            "{path}: {installed:?}"
        );
    }
    let version = root.ok("sluice version");
    assert!(version.contains("/usr/lib/sluice"), "{version}");
    assert_held(&root.run(&format!("sluice {DEMO}")));
    // The same once more, as an upgrade does it.
    root.ok("dpkg -i /root/sluice.deb");
    assert_eq!(root.changed(), installed);

    // While a program has the libraries mapped they are not taken away.
    root.put(
        "/root/used",
        b"LD_PRELOAD=/usr/lib/sluice/libsluice.so sleep 60 & sleep 0.5; dpkg -r sluice; code=$?; kill $!; exit $code\n",
    );
    let output = root.run("sh /root/used");
    assert!(!output.status.success(), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(said.contains("are used by process"), "{said}");
    root.ok("sluice version");

    root.ok("dpkg -r sluice");
    assert_eq!(root.changed(), ["/etc/sluice/sluice.toml"]);
    root.ok("dpkg --purge sluice");
    assert_eq!(root.changed(), Vec::<String>::new());
}
