//! Files of an installation.

use super::versions::Versions;
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

/// One thing that an installation has.
pub(super) enum Item {
    /// The folder of the libraries.
    Libraries(Versions),
    /// This program.
    Program(PathBuf),
    /// A link.
    Link { at: PathBuf, target: PathBuf },
    /// A text of ours, which says so by the line that it begins with or by `mark` anywhere in it.
    Text {
        at: PathBuf,
        content: String,
        mark: &'static str,
    },
    /// A text that its users change: it is made where there is none.
    Sample { at: PathBuf, content: String },
}

/// What is in an item's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    Missing,
    /// An earlier one of ours.
    Other,
    UpToDate,
    /// Somebody else's, which is not touched.
    Theirs,
}

impl Item {
    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Libraries(versions) => versions.link(),
            Self::Program(at)
            | Self::Link { at, .. }
            | Self::Text { at, .. }
            | Self::Sample { at, .. } => at,
        }
    }

    /// What there is, compared with what there is to be.
    ///
    /// # Errors
    /// Something stands in the way that cannot be left there.
    pub(super) fn state(&self) -> Result<State> {
        let state = self.state_now()?;
        if state == State::Theirs && !matches!(self, Self::Sample { .. }) {
            bail!(
                "{} is there and is not ours; move it away or install into another folder",
                self.path().display()
            );
        }
        Ok(state)
    }

    /// The same without a judgement.
    pub(super) fn state_now(&self) -> Result<State> {
        if let Self::Libraries(versions) = self {
            return versions.state();
        }
        let at = self.path();
        let Ok(found) = fs::symlink_metadata(at) else {
            return Ok(State::Missing);
        };
        if found.is_dir() {
            return Ok(State::Theirs);
        }
        Ok(match self {
            Self::Libraries(_) => State::Theirs,
            // By way of the link, not of its target's name: the file may have been replaced meanwhile.
            Self::Program(_) if is_same(Path::new("/proc/self/exe"), at) => {
                let is_executable = found.permissions().mode() & 0o111 == 0o111;
                if is_executable {
                    State::UpToDate
                } else {
                    State::Other
                }
            }
            Self::Program(_) => State::Other,
            Self::Link { target, .. } => match fs::read_link(at) {
                Ok(present) if present == *target => State::UpToDate,
                _ => State::Theirs,
            },
            Self::Text { content, mark, .. } => match fs::read_to_string(at) {
                Ok(present) if present == *content => State::UpToDate,
                Ok(present) if present.contains(mark) => State::Other,
                _ => State::Theirs,
            },
            Self::Sample { .. } => State::Theirs,
        })
    }

    /// Puts it into its place, in one step.
    pub(super) fn lay_down(&self) -> Result<()> {
        let at = self.path();
        let folder = parent(at)?;
        fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        let aside = aside(at);
        match self {
            Self::Libraries(versions) => return versions.lay_down(),
            Self::Program(_) => {
                let this = fs::read("/proc/self/exe").context("cannot read this program")?;
                write_whole(&this, &aside, 0o755)?;
            }
            Self::Link { target, .. } => {
                _ = fs::remove_file(&aside);
                symlink(target, &aside)
                    .with_context(|| format!("cannot write {}", aside.display()))?;
            }
            Self::Text { content, .. } | Self::Sample { content, .. } => {
                write_whole(content.as_bytes(), &aside, 0o644)?;
            }
        }
        fs::rename(&aside, at)
            .with_context(|| format!("cannot put {} into place", at.display()))?;
        sync(folder)
    }

    /// Takes it away, and folders of ours that are empty then.
    pub(super) fn remove(&self) -> Result<()> {
        let at = self.path();
        if let Self::Libraries(versions) = self {
            return versions.remove();
        }
        fs::remove_file(at).with_context(|| format!("cannot remove {}", at.display()))?;
        if let Some(folder) = at.parent()
            && folder.ends_with("sluice")
        {
            // Whatever else is in it keeps it.
            _ = fs::remove_dir(folder);
        }
        Ok(())
    }
}

/// Writes a file and waits until it is on the disk.
pub(super) fn write_whole(content: &[u8], to: &Path, mode: u32) -> Result<()> {
    let cannot = || format!("cannot write {}", to.display());
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(mode)
        .open(to)
        .with_context(cannot)?;
    file.write_all(content).with_context(cannot)?;
    // Whatever the umask: what is installed is for everybody.
    file.set_permissions(fs::Permissions::from_mode(mode))
        .with_context(cannot)?;
    file.sync_all().with_context(cannot)
}

pub(super) fn is_same(one: &Path, other: &Path) -> bool {
    match (fs::read(one), fs::read(other)) {
        (Ok(one), Ok(other)) => one == other,
        _ => false,
    }
}

pub(super) fn remove_folder(folder: &Path) -> io::Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// Makes the names in a folder last.
pub(super) fn sync(folder: &Path) -> Result<()> {
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(|| format!("cannot write {}", folder.display()))
}

pub(super) fn parent(path: &Path) -> Result<&Path> {
    path.parent()
        .with_context(|| format!("{} lies nowhere", path.display()))
}

pub(super) fn aside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    PathBuf::from(name)
}
