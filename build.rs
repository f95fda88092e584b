//! Builds the shared libraries that the program preloads and lays down, and finds the revision.
//!
//! One `cargo build`, `cargo run` or `cargo test` has them all: a nested cargo call builds the shim
//! and the stand-in's two client libraries under the profile `libraries` into a folder of its own,
//! so that they stay optimised and unwinding whatever the outer profile is. What comes out is one
//! folder that is complete or untouched:
//!
//! ```text
//! <target>/libraries/sluice/
//!     libsluice.so                                   the shim
//!     libsluice-cuda.so     libsluice-cuda-1.so      aliases, see `ALIASES`
//!     libsluice-nvml.so     libsluice-nvml-1.so
//!     ld.so.preload                                  what a container gets over its own
//!     stand-in/libcuda.so.1        libcuda.so        the stand-in driver
//!     stand-in/libnvidia-ml.so.1   libnvidia-ml.so   the stand-in management library
//! ```
//!
//! `SLUICE_GLIBC=2.17` makes libraries that programs of old systems can load: the nested call is then
//! `cargo zigbuild`, which links for that version of glibc; `packaging/build` calls it so.
//!
//! It reaches the program as `env!("SLUICE_LIBRARIES")`, the revision as `option_env!("SLUICE_REVISION")`.
//! Silent unless something fails; then the nested build's whole output is shown. Needs no network
//! beyond what cargo needs, and no CUDA toolkit.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Output};
use std::time::SystemTime;

/// The empty libraries that make one preload answer to four names: file name, then SONAME.
///
/// glibc gives a later `dlopen("libcuda.so.1")` whatever is loaded under that SONAME. The file names
/// must differ from the SONAMEs, or a file in `LD_LIBRARY_PATH` is found first.
const ALIASES: [(&str, &str); 4] = [
    ("libsluice-cuda.so", "libcuda.so"),
    ("libsluice-cuda-1.so", "libcuda.so.1"),
    ("libsluice-nvml.so", "libnvidia-ml.so"),
    ("libsluice-nvml-1.so", "libnvidia-ml.so.1"),
];

/// Names the shim by its path in a container, `containers::SHIM`.
const PRELOAD: (&str, &str) = ("ld.so.preload", "/opt/sluice/lib/libsluice.so\n");

/// What the nested call builds: package, cdylib as cargo names it, its place in the folder.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("sluice-shim", "libsluice_shim.so", "libsluice.so"),
    ("sluice-sim-cuda", "libsim_cuda.so", "stand-in/libcuda.so.1"),
    (
        "sluice-sim-nvml",
        "libsim_nvml.so",
        "stand-in/libnvidia-ml.so.1",
    ),
];

/// Links beside the stand-in's libraries, for clients that ask for the name without a version.
const LINKS: [(&str, &str); 2] = [
    ("stand-in/libcuda.so", "libcuda.so.1"),
    ("stand-in/libnvidia-ml.so", "libnvidia-ml.so.1"),
];

/// Folders whose change makes other libraries.
const SOURCES: [&str; 6] = ["Cargo.toml", "Cargo.lock", "ffi", "ledger", "shim", "sim"];

/// Which version of glibc the libraries are for; not set: that of this machine.
const GLIBC: &str = "SLUICE_GLIBC";

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("cannot build the shared libraries: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let root = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
    for source in SOURCES {
        rerun_if_changed(&root.join(source));
    }
    rerun_if_changed(&root.join("build.rs"));
    println!("cargo:rerun-if-env-changed={GLIBC}");
    tell_revision(&root);

    tell_coverage(&root)?;

    let nested = nested_target()?;
    let folder = nested.join("sluice");
    build_libraries(&root, &nested)?;
    assemble(&nested, &folder)?;
    // A folder that somebody deleted is made again. The files are dated back (see `lay_down`), so
    // that this alone never calls for another run.
    rerun_if_changed(&folder.join("libsluice.so"));
    println!("cargo:rustc-env=SLUICE_LIBRARIES={}", folder.display());
    Ok(())
}

/// Writes down which symbols the stand-in's sources implement, for `sluice sim coverage`.
fn tell_coverage(root: &Path) -> Result<(), Failure> {
    let mut text = String::new();
    for (name, sources) in [
        ("IMPLEMENTED_DRIVER", "sim/cuda/src"),
        ("IMPLEMENTED_NVML", "sim/nvml/src"),
    ] {
        let symbols = exports::defined_in(&root.join(sources));
        text += &format!("static {name}: &[&str] = &{:?};\n", Vec::from_iter(symbols));
    }
    fs::write(
        PathBuf::from(variable("OUT_DIR")?).join("coverage.rs"),
        text,
    )?;
    Ok(())
}

/// `<target>/libraries`: beside the outer profiles' folders, outside their locks, and kept between
/// builds. A build for another machine gets a folder of its own.
fn nested_target() -> Result<PathBuf, Failure> {
    let out = PathBuf::from(variable("OUT_DIR")?);
    // Cargo marks its target folder for backup programs; counting path components instead would
    // go wrong with `--target`.
    let target = out
        .ancestors()
        .find(|folder| folder.join("CACHEDIR.TAG").is_file())
        .or_else(|| out.ancestors().nth(4))
        .ok_or("OUT_DIR is not inside a target folder")?;
    let triple = cross_target()?.map(|triple| format!("-{triple}"));
    let glibc = env::var(GLIBC).map(|version| format!("-glibc-{version}"));
    Ok(target.join(format!(
        "libraries{}{}",
        triple.unwrap_or_default(),
        glibc.unwrap_or_default()
    )))
}

/// The outer build's target, where it isn't the machine that builds.
fn cross_target() -> Result<Option<String>, Failure> {
    let target = env::var("TARGET")?;
    Ok((target != env::var("HOST")?).then_some(target))
}

/// Runs the nested cargo call. Its own lock serialises two outer profiles that build at once.
fn build_libraries(root: &Path, nested: &Path) -> Result<(), Failure> {
    let mut cargo = Command::new(variable("CARGO")?);
    cargo.current_dir(root);
    let glibc = env::var(GLIBC).ok();
    let verb = if glibc.is_some() { "zigbuild" } else { "build" };
    cargo.args([verb, "--locked", "--profile", "libraries"]);
    for (package, ..) in LIBRARIES {
        cargo.args(["--package", package]);
    }
    cargo.arg("--target-dir").arg(nested);
    match (cross_target()?, glibc) {
        (None, None) => {}
        (Some(triple), None) => _ = cargo.args(["--target", &triple]),
        (_, Some(glibc)) => {
            let target = format!("{}.{glibc}", env::var("TARGET")?);
            cargo.args(["--target", &target]);
        }
    }
    cargo.arg("--jobs").arg(variable("NUM_JOBS")?);
    clean_environment(&mut cargo);
    succeed(&mut cargo)?;
    Ok(())
}

/// Leaves the nested call only what its user set: what the outer cargo says about *this* package,
/// its flags and wrappers (clippy's, a coverage tool's) is not for the libraries.
fn clean_environment(command: &mut Command) {
    const CARGO_KEEPS: [&str; 7] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTRIES_",
        "CARGO_REGISTRY_",
        "CARGO_SOURCE_",
        "CARGO_TARGET_",
    ];
    // CARGO_TARGET_<TRIPLE>_LINKER is the user's; these two are not meant here.
    const CARGO_DROPS: [&str; 2] = ["CARGO_TARGET_DIR", "CARGO_TARGET_TMPDIR"];
    const DROPS: [&str; 16] = [
        "CLIPPY_ARGS",
        "DEBUG",
        "HOST",
        "MAKEFLAGS",
        "MFLAGS",
        "NUM_JOBS",
        "OPT_LEVEL",
        "OUT_DIR",
        "PROFILE",
        "RUSTC",
        "RUSTC_LINKER",
        "RUSTC_WORKSPACE_WRAPPER",
        "RUSTC_WRAPPER",
        "RUSTDOC",
        "RUSTFLAGS",
        "TARGET",
    ];
    for (name, value) in env::vars_os() {
        let text = name.to_string_lossy();
        // The outer cargo-zigbuild's linker is for another version of glibc.
        let is_zigs = value.to_string_lossy().contains("cargo-zigbuild");
        let cargos = text.starts_with("CARGO")
            && (CARGO_DROPS.contains(&&*text)
                || text.ends_with("_RUSTFLAGS")
                || !CARGO_KEEPS.iter().any(|kept| text.starts_with(kept)));
        if cargos || is_zigs || text.starts_with("DEP_") || DROPS.contains(&&*text) {
            command.env_remove(&name);
        }
    }
}

/// Fills `folder` from what the nested call built, one build at a time.
fn assemble(nested: &Path, folder: &Path) -> Result<(), Failure> {
    let work = nested.join("work");
    fs::create_dir_all(folder.join("stand-in"))?;
    fs::create_dir_all(&work)?;
    let lock = File::create(nested.join("assemble.lock"))?;
    lock.lock()?;

    let is_named = cross_target()?.is_some() || env::var_os(GLIBC).is_some();
    let built = if is_named {
        nested.join(env::var("TARGET")?).join("libraries")
    } else {
        nested.join("libraries")
    };
    for (_, artifact, place) in LIBRARIES {
        lay_down(&built.join(artifact), &folder.join(place))?;
    }
    let stub = work.join("libsluice.so");
    link_empty(&stub, &[OsStr::new("-Wl,-soname,libsluice.so")])?;
    for (file, soname) in ALIASES {
        let alias = work.join(file);
        link_empty(
            &alias,
            &[
                OsStr::new(&format!("-Wl,-soname,{soname}")),
                OsStr::new("-Wl,--enable-new-dtags,-rpath,$ORIGIN"),
                OsStr::new("-Wl,--no-as-needed"),
                stub.as_os_str(),
            ],
        )?;
        lay_down(&alias, &folder.join(file))?;
    }
    let (file, content) = PRELOAD;
    fs::write(work.join(file), content)?;
    lay_down(&work.join(file), &folder.join(file))?;
    for (link, to) in LINKS {
        let link = folder.join(link);
        if fs::read_link(&link).ok().as_deref() != Some(Path::new(to)) {
            let aside = aside(&link);
            remove_if_there(&aside)?;
            symlink(to, &aside)?;
            fs::rename(&aside, &link)?;
        }
    }
    Ok(())
}

/// Makes a shared object without code, with the C compiler that rustc links with.
///
/// From an empty C source, not an empty assembler source: only a compiler's output says that it
/// needs no executable stack.
fn link_empty(output: &Path, arguments: &[&OsStr]) -> Result<(), Failure> {
    let linker = env::var_os("RUSTC_LINKER").unwrap_or_else(|| OsString::from("cc"));
    let mut link = Command::new(linker);
    link.args(["-shared", "-nostdlib", "-Wl,-z,noexecstack", "-o"]);
    link.arg(output);
    link.args(["-x", "c", "/dev/null", "-x", "none"]);
    link.args(arguments);
    succeed(&mut link)?;
    Ok(())
}

/// Puts a copy of `from` at `to` by rename: a process that has the old file mapped keeps it whole.
/// Does nothing where the content is the same.
fn lay_down(from: &Path, to: &Path) -> Result<(), Failure> {
    let content = fs::read(from).map_err(|error| format!("{}: {error}", from.display()))?;
    if fs::read(to).is_ok_and(|present| present == content) {
        return Ok(());
    }
    let aside = aside(to);
    fs::write(&aside, content)?;
    // Cargo runs this script again when a watched file is newer than the script's last *start*;
    // a file that the script itself writes always is, unless it is dated back.
    File::options()
        .write(true)
        .open(&aside)?
        .set_modified(SystemTime::UNIX_EPOCH)?;
    fs::rename(&aside, to)?;
    Ok(())
}

fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Tells the program which commit it was built from, where this is a checkout of its own.
fn tell_revision(root: &Path) {
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(root)
            .args(arguments)
            .output()
            .ok()
            .filter(|output| output.status.success())?;
        Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
    };
    // A source tree that lies in somebody else's repository has no revision of its own.
    let top = git(&["rev-parse", "--show-toplevel"]).map(PathBuf::from);
    if top.and_then(|top| top.canonicalize().ok()) != root.canonicalize().ok() {
        return;
    }
    // The log of HEAD grows with every commit and every checkout.
    for file in ["HEAD", "logs/HEAD"] {
        if let Some(path) = git(&["rev-parse", "--git-path", file]) {
            let path = root.join(path);
            if path.exists() {
                rerun_if_changed(&path);
            }
        }
    }
    if let Some(revision) = git(&["rev-parse", "--short=12", "HEAD"]) {
        println!("cargo:rustc-env=SLUICE_REVISION={revision}");
    }
}

/// Runs `command` quietly; where it fails, the error holds all that it said.
fn succeed(command: &mut Command) -> Result<Output, Failure> {
    let output = command
        .output()
        .map_err(|error| format!("{}: {error}", command.get_program().display()))?;
    if output.status.success() {
        return Ok(output);
    }
    Err(format!(
        "{command:?} ended with {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    )
    .into())
}

fn variable(name: &str) -> Result<OsString, Failure> {
    env::var_os(name).ok_or_else(|| format!("cargo did not set {name}").into())
}

fn rerun_if_changed(path: &Path) {
    println!("cargo:rerun-if-changed={}", path.display());
}
