//! The libraries of an installation: a folder for each version, and a link to the one that is in force.
//!
//! ```text
//! lib/sluice -> sluice-libraries/0.1.0-5f3c9a2e41d07b86
//! lib/sluice-libraries/0.1.0-5f3c9a2e41d07b86/libsluice.so …
//! ```
//!
//! Containers have the folder of a version mounted, not the link: an upgrade changes nothing in those that run,
//! also for programs that start in them later. A version that nobody uses any more is removed by the next
//! installation.

use super::item::{State, is_same, parent, remove_folder, sync, write_whole};
use super::users;
use crate::libraries::{FILES, LINKS, Libraries};
use anyhow::{Context, Result, bail};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The folder of the versions, beside the link.
const FOLDER: &str = "sluice-libraries";

/// The link.
const LINK: &str = "sluice";

/// What an earlier layout had in the link's place.
const FORMER: &str = "former";

/// The libraries, as they are to be or as they are.
pub(super) struct Versions {
    lib: PathBuf,
    link: PathBuf,
    /// Where they come from, and what the version is called.
    new: Option<(PathBuf, String)>,
}

impl Versions {
    /// The version of `libraries`, below `lib`.
    pub(super) fn new(libraries: &Libraries, lib: PathBuf) -> Result<Self> {
        let from = libraries.folder().to_owned();
        let name = name(&from)?;
        Ok(Self {
            new: Some((from, name)),
            ..Self::present(lib)
        })
    }

    /// Whatever versions are below `lib`.
    pub(super) fn present(lib: PathBuf) -> Self {
        Self {
            link: lib.join(LINK),
            lib,
            new: None,
        }
    }

    pub(super) fn link(&self) -> &Path {
        &self.link
    }

    pub(super) fn state(&self) -> Result<State> {
        let Ok(found) = fs::symlink_metadata(&self.link) else {
            return Ok(State::Missing);
        };
        if !found.is_symlink() && !is_ours(&self.link)? {
            return Ok(State::Theirs);
        }
        let target = fs::read_link(&self.link).unwrap_or_default();
        if found.is_symlink() && !target.starts_with(FOLDER) {
            return Ok(State::Theirs);
        }
        let Some((from, name)) = &self.new else {
            return Ok(State::Other);
        };
        let is_there = target == Path::new(FOLDER).join(name) && is_whole(from, &self.link);
        Ok(if is_there {
            State::UpToDate
        } else {
            State::Other
        })
    }

    /// Writes the version aside, lets it take its place, and turns the link to it.
    pub(super) fn lay_down(&self) -> Result<()> {
        let Some((from, name)) = &self.new else {
            bail!("there is nothing to install");
        };
        let versions = self.lib.join(FOLDER);
        let to = versions.join(name);
        if !is_whole(from, &to) {
            let aside = versions.join(format!("{name}.new"));
            let cannot = || format!("cannot write {}", aside.display());
            remove_folder(&aside).with_context(cannot)?;
            fs::create_dir_all(aside.join("stand-in")).with_context(cannot)?;
            for file in FILES {
                let content = fs::read(from.join(file))
                    .with_context(|| format!("cannot read {}", from.join(file).display()))?;
                write_whole(&content, &aside.join(file), 0o644)?;
            }
            for (link, target) in LINKS {
                symlink(target, aside.join(link)).with_context(cannot)?;
            }
            sync(&aside.join("stand-in"))?;
            sync(&aside)?;
            // A damaged one of the same name gives way under another, for whoever uses it.
            if to.exists() {
                let damaged = free_name(&versions, name);
                fs::rename(&to, &damaged)
                    .with_context(|| format!("cannot move {} away", to.display()))?;
            }
            fs::rename(&aside, &to)
                .with_context(|| format!("cannot put {} into place", to.display()))?;
            sync(&versions)?;
        }
        self.turn_link(name)
    }

    fn turn_link(&self, name: &str) -> Result<()> {
        let cannot = || format!("cannot put {} into place", self.link.display());
        let aside = super::item::aside(&self.link);
        _ = fs::remove_file(&aside);
        symlink(Path::new(FOLDER).join(name), &aside).with_context(cannot)?;
        let is_folder =
            fs::symlink_metadata(&self.link).is_ok_and(|found| found.file_type().is_dir());
        if is_folder {
            // An earlier layout: the folder itself was here.
            let former = free_name(&self.lib.join(FOLDER), FORMER);
            fs::rename(&self.link, former).with_context(cannot)?;
        }
        fs::rename(&aside, &self.link).with_context(cannot)?;
        sync(parent(&self.link)?)
    }

    /// Removes the link; [`tidy`] then removes what it led to.
    pub(super) fn remove(&self) -> Result<()> {
        let cannot = || format!("cannot remove {}", self.link.display());
        let is_folder =
            fs::symlink_metadata(&self.link).is_ok_and(|found| found.file_type().is_dir());
        if is_folder {
            return remove_folder(&self.link).with_context(cannot);
        }
        fs::remove_file(&self.link).with_context(cannot)
    }
}

/// Versions below `lib` that somebody uses, and who.
pub(super) fn used(lib: &Path) -> Result<Vec<(PathBuf, String)>> {
    let folders = folders(lib)?;
    Ok(folders
        .into_iter()
        .filter_map(|folder| Some((folder.clone(), users::of(&folder)?)))
        .collect())
}

/// Removes the versions below `lib` that are not in force and that nobody uses; gives those that somebody does.
pub(super) fn tidy(lib: &Path) -> Result<Vec<(PathBuf, String)>> {
    let current = fs::canonicalize(lib.join(LINK)).ok();
    let mut kept = Vec::new();
    for folder in folders(lib)? {
        if current.is_some() && fs::canonicalize(&folder).ok() == current {
            continue;
        }
        match users::of(&folder) {
            Some(who) => kept.push((folder, who)),
            None => remove_folder(&folder)
                .with_context(|| format!("cannot remove {}", folder.display()))?,
        }
    }
    // Whatever is left in it keeps it.
    _ = fs::remove_dir(lib.join(FOLDER));
    Ok(kept)
}

fn folders(lib: &Path) -> Result<Vec<PathBuf>> {
    let folder = lib.join(FOLDER);
    let entries = match fs::read_dir(&folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.with_context(|| format!("cannot look into {}", folder.display()))?,
    };
    let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    found.sort();
    Ok(found)
}

fn free_name(folder: &Path, name: &str) -> PathBuf {
    let names = (0u32..).map(|number| folder.join(format!("{name}.old-{number}")));
    let free = names.take(10_000).find(|path| !path.exists());
    free.unwrap_or_else(|| folder.join(name))
}

/// The version, and what tells two builds of it apart.
fn name(from: &Path) -> Result<String> {
    let mut hash = DefaultHasher::new();
    for file in FILES {
        let content = fs::read(from.join(file))
            .with_context(|| format!("cannot read {}", from.join(file).display()))?;
        (file, content).hash(&mut hash);
    }
    Ok(format!(
        "{}-{:016x}",
        env!("CARGO_PKG_VERSION"),
        hash.finish()
    ))
}

fn is_whole(from: &Path, to: &Path) -> bool {
    let is_link = |link: &str, target: &str| {
        fs::read_link(to.join(link)).is_ok_and(|present| present == Path::new(target))
    };
    FILES
        .iter()
        .all(|file| is_same(&from.join(file), &to.join(file)))
        && LINKS.iter().all(|(link, target)| is_link(link, target))
}

/// Whether a folder is an earlier installation, or empty.
fn is_ours(folder: &Path) -> Result<bool> {
    let mut entries =
        fs::read_dir(folder).with_context(|| format!("cannot look into {}", folder.display()))?;
    Ok(folder.join(FILES[0]).is_file() || entries.next().is_none())
}
