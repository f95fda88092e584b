//! The root file system that the containers run on: programs of this machine with the libraries that they
//! need, and nothing of Sluice.

use crate::support::{Program, finish, kept, shim, stand_in, succeed};
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

/// How long copying a few files may take.
const BOUND: Duration = Duration::from_secs(60);

/// What the containers can run; `sh` is the machine's own, usually dash.
const PROGRAMS: [&str; 6] = ["sh", "cat", "env", "id", "sleep", "true"];

/// The root file system, made once for each run of the tests.
pub(crate) fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = kept("containers").join("root");
        make(&root).unwrap_or_else(|error| panic!("no image in {}: {error}", root.display()));
        root
    })
}

/// A copy of the root in `to`.
pub(crate) fn copy(to: &Path) {
    let mut command = Command::new("cp");
    succeed(command.arg("-a").arg(root()).arg(to), BOUND);
}

fn make(root: &Path) -> std::io::Result<()> {
    if root.exists() {
        fs::remove_dir_all(root)?;
    }
    for folder in ["bin", "dev", "etc", "proc", "sys", "tmp", "run", "root"] {
        fs::create_dir_all(root.join(folder))?;
    }
    fs::write(
        root.join("etc/passwd"),
        "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/tmp:/bin/sh\n",
    )?;
    fs::write(root.join("etc/group"), "root:x:0:\nuser:x:1000:\n")?;
    let stepper = Program::Stepper.path();
    fs::copy(&stepper, root.join("bin/stepper"))?;
    let mut libraries = needed(&stepper);
    // What the shim and the driver need is what every image with a CUDA program has.
    libraries.extend(needed(&shim()));
    libraries.extend(needed(&stand_in().join("libcuda.so.1")));
    for program in PROGRAMS {
        let path = which(program);
        fs::copy(&path, root.join("bin").join(program))?;
        libraries.extend(needed(&path));
    }
    for library in libraries {
        let to = root.join(library.strip_prefix("/").expect("an absolute path"));
        fs::create_dir_all(to.parent().expect("it has a folder"))?;
        fs::copy(&library, to)?;
    }
    Ok(())
}

/// The libraries that the loader finds for a program, and the loader; not those that lie beside it.
fn needed(file: &Path) -> BTreeSet<PathBuf> {
    let output = finish(Command::new("ldd").arg(file), BOUND);
    String::from_utf8_lossy(&output.stdout)
        .split_whitespace()
        .filter(|word| word.starts_with("/lib") || word.starts_with("/usr/lib"))
        .map(PathBuf::from)
        .collect()
}

/// Where a program of this machine lies.
pub(crate) fn which(program: &str) -> PathBuf {
    find(program).unwrap_or_else(|| panic!("{program} is not in PATH"))
}

/// Where a program of this machine lies, if it has it.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(program))
        .find(|path| path.is_file())
}
