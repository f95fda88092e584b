//! Trees of later Debians with their engines, made once, and the namespace in which their programs run.

use crate::support::{finish, kept, libraries, sluice};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long making the tree may take; where it takes longer its tests are not run.
const MADE_WITHIN: Duration = Duration::from_secs(175);

/// How the namespace is set up: `$1` is the tree, what follows up to `--` has to be seen in it as well.
///
/// The root is changed for the kernel and not by `chroot`, or an engine's containers would be in the machine's.
const ENTER: &str = r#"
set -e
tree=$1
shift
mount --rbind "$tree" "$tree"
mount -t proc proc "$tree/proc"
mount --rbind /sys "$tree/sys"
mount --rbind /dev "$tree/dev"
mount --rbind /tmp "$tree/tmp"
mount -t tmpfs tmpfs "$tree/run"
while [ "$1" != -- ]; do
    case $1 in
    /tmp/*) ;;
    *)
        mkdir -p "$tree$1"
        mount --rbind "$1" "$tree$1"
        ;;
    esac
    shift
done
mkdir -p "$tree/old" "$tree/etc/cdi"
mount -t tmpfs tmpfs "$tree/etc/cdi"
cd "$tree"
pivot_root . old
umount -l /old
echo ready
exec cat
"#;

/// A release of Debian, and the engines that are taken of it.
#[derive(Debug)]
pub(crate) struct Release {
    name: &'static str,
    packages: &'static [&'static str],
}

/// Debian 13.
pub(crate) const TRIXIE: Release = Release {
    name: "trixie",
    packages: &[
        "docker.io",
        "docker-cli",
        "containerd",
        "runc",
        "podman",
        "crun",
    ],
};

/// What is to be the next Debian.
pub(crate) const SID: Release = Release {
    name: "sid",
    packages: &["containerd", "runc", "apptainer"],
};

/// A namespace in which the tree is the root; gone with this value.
#[derive(Debug)]
pub(crate) struct Tree {
    holder: Child,
}

impl Tree {
    /// The tree, made if it is not there.
    pub(crate) fn made(release: &Release) -> Result<PathBuf, String> {
        let name = release.name;
        let tree = kept("containers").join(name);
        if tree.is_dir() {
            return Ok(tree);
        }
        if crate::image::find("debootstrap").is_none() {
            return Err("there is no debootstrap; `apt-get install debootstrap` has it".to_owned());
        }
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/containers/tree.sh");
        eprintln!("makes a tree of Debian {name} with its engines, once: about a minute");
        let mut command = Command::new("timeout");
        command
            .args([
                "--kill-after=5",
                &MADE_WITHIN.as_secs().to_string(),
                "sh",
                script,
            ])
            .arg(&tree)
            .arg(name)
            .args(release.packages);
        let output = finish(&mut command, MADE_WITHIN * 2);
        if output.status.success() {
            return Ok(tree);
        }
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let last: Vec<&str> = said.lines().rev().take(2).collect();
        Err(format!(
            "no tree of Debian {name} can be had within {} s: {}",
            MADE_WITHIN.as_secs(),
            last.join("; ")
        ))
    }

    /// Enters it.
    pub(crate) fn enter(tree: &Path) -> Self {
        let folder = |path: PathBuf| path.parent().expect("a folder").to_owned();
        let mut command = Command::new("unshare");
        let mut holder = command
            .args(["--mount", "sh", "-c", ENTER, "sh"])
            .arg(tree)
            .args([folder(sluice()), libraries()])
            .arg("--")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let mut word = [0; 6];
        let output = holder.stdout.as_mut().expect("was asked for above");
        std::io::Read::read_exact(output, &mut word).expect("the namespace is set up");
        Self { holder }
    }

    /// A program of the tree.
    pub(crate) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("nsenter");
        command
            .args(["--target", &self.holder.id().to_string()])
            .args(["--mount", "--root", "--wd"])
            .arg(program);
        command
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        // Its `cat` ends with its input.
        drop(self.holder.stdin.take());
        let begin = Instant::now();
        while self.holder.try_wait().is_ok_and(|ended| ended.is_none()) {
            if begin.elapsed() > Duration::from_secs(5) {
                _ = self.holder.kill();
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
