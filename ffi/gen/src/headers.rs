//! Gets the headers of CUDA 13.5 and a libclang, once.
//!
//! All of it comes as wheels from the Python package index through `pip`, so neither a CUDA toolkit
//! nor a clang has to be installed. The versions are pinned; a new one is an edit of [`WHEELS`].

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

/// What is downloaded: the release whose ABI `ffi` spells out, and the libclang that reads it.
const WHEELS: [&str; 4] = [
    "nvidia-cuda-runtime==13.5.37",
    "nvidia-nvml-dev==13.5.37",
    "nvidia-cuda-profiler-api==13.5.25",
    "libclang==18.1.1",
];

/// Where things lie inside the unpacked wheels.
const INCLUDE: &str = "nvidia/cu13/include";

/// What the binding generator reads.
pub(crate) struct Inputs {
    /// Folder that holds `cuda.h` and `nvml.h`.
    pub(crate) include: PathBuf,
    /// Folder that holds the shared library of libclang.
    libclang: PathBuf,
}

/// Finds the unpacked wheels below `folder`, after downloading them if they are not there.
pub(crate) fn fetch(folder: &Path) -> Result<Inputs> {
    let kept = folder.join(WHEELS.join("+").replace("==", "-"));
    if !kept.is_dir() {
        eprintln!(
            "downloading {} into {} (once, about 27 MB)",
            WHEELS.join(", "),
            folder.display()
        );
        // Made aside and renamed: whoever finds the folder finds it complete.
        let aside = folder.join(format!("partial-{}", std::process::id()));
        let downloaded = download(&aside);
        if downloaded.is_ok() && fs::rename(&aside, &kept).is_err() && !kept.is_dir() {
            bail!("cannot rename {} to {}", aside.display(), kept.display());
        }
        if aside.is_dir() {
            fs::remove_dir_all(&aside)
                .with_context(|| format!("cannot remove {}", aside.display()))?;
        }
        downloaded?;
    }
    let include = kept.join(INCLUDE);
    if !include.join("cuda.h").is_file() {
        bail!(
            "there is no cuda.h in {}; remove {} and run this again",
            include.display(),
            kept.display()
        );
    }
    Ok(Inputs {
        include,
        libclang: find(&kept, "libclang.so")
            .with_context(|| format!("there is no libclang.so below {}", kept.display()))?,
    })
}

/// Tells the binding generator, in this process alone, where libclang is.
///
/// Call it before any thread is started.
pub(crate) fn use_libclang(inputs: &Inputs) {
    // SAFETY: `main` has started no thread yet, so nobody reads the environment meanwhile.
    unsafe { std::env::set_var("LIBCLANG_PATH", &inputs.libclang) };
}

fn download(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)
        .with_context(|| format!("cannot make the folder {}", folder.display()))?;
    let wheels = folder.join("wheels");
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "download", "--quiet", "--no-deps"])
        .args(["--disable-pip-version-check", "--only-binary", ":all:"])
        .arg("--dest")
        .arg(&wheels)
        .args(WHEELS);
    run(&mut pip)?;
    for entry in fs::read_dir(&wheels)? {
        let wheel = entry?.path();
        // `zipfile` is in every Python that has pip; a wheel is a zip archive.
        run(Command::new("python3")
            .args(["-m", "zipfile", "--extract"])
            .arg(&wheel)
            .arg(folder))?;
    }
    fs::remove_dir_all(&wheels)?;
    Ok(())
}

fn run(command: &mut Command) -> Result<()> {
    let advice = "the headers come through Python's pip: install python3 with pip, and let it reach a \
                  package index (or set PIP_FIND_LINKS to a folder that holds the wheels)";
    let status = command.status().with_context(|| {
        format!(
            "cannot start `{}`; {advice}",
            command.get_program().display()
        )
    })?;
    if !status.success() {
        bail!("`{command:?}` ended with {status}; {advice}");
    }
    Ok(())
}

/// The folder below `folder` that holds a file of this name.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries: Vec<PathBuf> = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    if entries.iter().any(|path| path.ends_with(name)) {
        return Some(folder.to_owned());
    }
    entries.iter().find_map(|path| find(path, name))
}
