//! Where a daemon lies: its runtime folder, and the sockets in it.

use anyhow::{Context, Result, bail};
use daemon::runtime;
use nix::unistd::geteuid;
use std::fs::{self, DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A runtime folder.
#[derive(Debug, Clone)]
pub(crate) struct Place(PathBuf);

impl Place {
    /// The folder `folder`, which need not exist.
    pub(crate) fn new(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// The folder itself.
    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    /// Where the daemon answers requests.
    pub(crate) fn status_socket(&self) -> PathBuf {
        runtime::status_socket(&self.0)
    }

    /// Where the stand-in's `gpu` process answers.
    pub(crate) fn gpu_socket(&self) -> PathBuf {
        self.0.join(runtime::GPU_SOCKET)
    }

    /// Makes the folder where it is missing, so that something can be put into it before the daemon
    /// takes it.
    ///
    /// # Errors
    /// It cannot be made, or somebody else could change what is in it.
    pub(crate) fn make(&self) -> Result<()> {
        let mode = if geteuid().is_root() { 0o755 } else { 0o700 };
        let folder = self.0.display();
        DirBuilder::new()
            .recursive(true)
            .mode(mode)
            .create(&self.0)
            .with_context(|| format!("cannot make the runtime folder {folder}"))?;
        // Not through a link: in /tmp anybody can put one there.
        let found = fs::symlink_metadata(&self.0)
            .with_context(|| format!("cannot look at the runtime folder {folder}"))?;
        be_ours(&self.0, &found)
    }
}

/// Where a client looks for the daemon: the folder that was asked for; else the user's own, where a
/// daemon has been; else the system's.
///
/// # Errors
/// The user's own folder is somebody else's. Whoever made it in `/tmp` could answer for a daemon, and
/// a daemon names the libraries that a program loads.
pub(crate) fn of_daemon(asked: Option<&Path>) -> Result<Place> {
    if let Some(folder) = asked {
        return Ok(Place::new(folder));
    }
    let own = Place::new(runtime::default_folder());
    let system = Place::new("/run/sluice");
    if let Ok(found) = fs::symlink_metadata(own.folder()) {
        be_ours(own.folder(), &found)?;
    }
    if !own.status_socket().exists() && system.status_socket().exists() {
        return Ok(system);
    }
    Ok(own)
}

/// Refuses a runtime folder that is a link, no folder, or another user's.
fn be_ours(folder: &Path, found: &Metadata) -> Result<()> {
    if !found.is_dir() || found.uid() != geteuid().as_raw() {
        bail!(
            "the runtime folder {} is not a folder of this user; remove it, or name another with \
             --runtime-dir",
            folder.display()
        );
    }
    Ok(())
}
