//! The runtime folder: where it is, who may enter it, and who is its daemon.
//!
//! ```text
//! socket/attach.sock   0666  processes attach here; `socket/` is what containers get mounted
//! status.sock          0660  HTTP and JSON
//! ledger.json          0600  what the next daemon takes over
//! daemon.lock          0600  held by the daemon, and says its process id
//! ```
//!
//! Nothing that is not a socket is ever removed to make room for one.

use ffi::wire::{ATTACH_SOCKET, SOCKET_FOLDER};
use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{self, AddressFamily, Backlog, SockFlag, SockType, UnixAddr};
use nix::unistd::{Group, chown, geteuid};
use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// File name of the status socket in the runtime folder.
pub const STATUS_SOCKET: &str = "status.sock";

/// File name of the restart ledger in the runtime folder.
pub const LEDGER_FILE: &str = "ledger.json";

/// File name of the lock in the runtime folder.
pub const LOCK_FILE: &str = "daemon.lock";

/// File name of the stand-in hardware's socket in the runtime folder.
pub const GPU_SOCKET: &str = "gpu.sock";

/// Connections that may wait for the attach thread: all processes that one tenant can have.
const BACKLOG: i32 = 1024;

/// How long a daemon waits for the lock of one that is just going.
///
/// A killed process holds its lock until the kernel has taken it apart: a few milliseconds.
const LOCK_PATIENCE: Duration = Duration::from_millis(200);

/// Why a runtime folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// An operation on a path failed.
    #[error("cannot {what} {path}: {source}", path = path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// Somebody else's folder.
    #[error(
        "the runtime folder {path} belongs to user {owner}, not to this one; remove it, or name \
         another with --runtime-dir", path = path.display()
    )]
    Owner {
        /// The folder.
        path: PathBuf,
        /// Its owner.
        owner: u32,
    },
    /// Something else is where the folder should be.
    #[error("{path} is not a folder", path = path.display())]
    NotAFolder {
        /// The path.
        path: PathBuf,
    },
    /// Something else is where a socket should be.
    #[error(
        "{path} should be a socket, but is {found}; it is not removed: move it away, then start again",
        path = path.display()
    )]
    NotASocket {
        /// The path.
        path: PathBuf,
        /// What is there.
        found: &'static str,
    },
    /// Another daemon runs in this folder.
    #[error(
        "another daemon (process {pid}) runs in {path}; stop it first, or name another folder with \
         --runtime-dir", path = path.display()
    )]
    Taken {
        /// Process id of the other daemon, as it wrote it down; `?` where it is unreadable.
        pid: String,
        /// The folder.
        path: PathBuf,
    },
}

/// The runtime folder of this user when nobody names one: `/run/sluice` for root, else
/// `$XDG_RUNTIME_DIR/sluice`, else `/tmp/sluice-UID`.
pub fn default_folder() -> PathBuf {
    if geteuid().is_root() {
        return PathBuf::from("/run/sluice");
    }
    std::env::var_os("XDG_RUNTIME_DIR")
        .map(PathBuf::from)
        .filter(|folder| folder.is_absolute())
        .map_or_else(
            || PathBuf::from(format!("/tmp/sluice-{}", geteuid())),
            |folder| folder.join("sluice"),
        )
}

/// The attach socket in the runtime folder `folder`.
pub fn attach_socket(folder: &Path) -> PathBuf {
    folder.join(SOCKET_FOLDER).join(ATTACH_SOCKET)
}

/// The status socket in the runtime folder `folder`.
pub fn status_socket(folder: &Path) -> PathBuf {
    folder.join(STATUS_SOCKET)
}

/// A runtime folder that this process is the daemon of, for as long as it holds this.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    _lock: Flock<File>,
}

impl Folder {
    /// Makes the folder where it is missing, checks who owns it, and takes its lock.
    ///
    /// # Errors
    /// It is somebody else's, or another daemon runs in it.
    pub(crate) fn take(path: &Path) -> Result<Self, RuntimeError> {
        let is_root = geteuid().is_root();
        let mode = if is_root { 0o755 } else { 0o700 };
        make_folder(path, mode)?;
        let lock = lock(path)?;
        // Whatever a container's user is to this one: the folder itself is what it gets mounted, and on the
        // host the folder above decides who comes here.
        let sockets = path.join(SOCKET_FOLDER);
        make_folder(&sockets, 0o755)?;
        fs::set_permissions(&sockets, Permissions::from_mode(0o755)).map_err(|source| {
            RuntimeError::Io {
                what: "open",
                path: sockets,
                source,
            }
        })?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// The restart ledger's file.
    pub(crate) fn ledger(&self) -> PathBuf {
        self.path.join(LEDGER_FILE)
    }

    /// Opens the attach socket, over a dead one if there is one.
    pub(crate) fn listen_attach(&self) -> Result<OwnedFd, RuntimeError> {
        let path = attach_socket(&self.path);
        listen(&path, SockType::SeqPacket, 0o666)
    }

    /// Opens the status socket, over a dead one if there is one; `group` may use it, where it exists.
    pub(crate) fn listen_status(&self, group: &str) -> Result<OwnedFd, RuntimeError> {
        let path = status_socket(&self.path);
        let listener = listen(&path, SockType::Stream, 0o660)?;
        if let (true, Ok(Some(group))) = (geteuid().is_root(), Group::from_name(group)) {
            chown(&path, None, Some(group.gid)).map_err(|errno| RuntimeError::Io {
                what: "give the group of",
                path,
                source: errno.into(),
            })?;
        }
        Ok(listener)
    }

    /// Removes both sockets, at a clean end.
    pub(crate) fn remove_sockets(&self) {
        for path in [attach_socket(&self.path), status_socket(&self.path)] {
            // Where it fails, the next daemon replaces the dead socket.
            let _ = fs::remove_file(path);
        }
    }
}

fn make_folder(path: &Path, mode: u32) -> Result<(), RuntimeError> {
    let failed = |what| {
        move |source| RuntimeError::Io {
            what,
            path: path.to_owned(),
            source,
        }
    };
    match DirBuilder::new().mode(mode).recursive(true).create(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            return Err(failed("make the folder")(error));
        }
        _ => {}
    }
    // Not through a link: in /tmp anybody can put one there.
    let found = fs::symlink_metadata(path).map_err(failed("look at"))?;
    if !found.is_dir() {
        return Err(RuntimeError::NotAFolder {
            path: path.to_owned(),
        });
    }
    if found.uid() != geteuid().as_raw() {
        return Err(RuntimeError::Owner {
            path: path.to_owned(),
            owner: found.uid(),
        });
    }
    fs::set_permissions(path, Permissions::from_mode(mode)).map_err(failed("set the mode of"))
}

fn lock(folder: &Path) -> Result<Flock<File>, RuntimeError> {
    let path = folder.join(LOCK_FILE);
    let failed = |what| {
        let path = path.clone();
        move |source| RuntimeError::Io { what, path, source }
    };
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&path)
        .map_err(failed("open"))?;
    let deadline = Instant::now() + LOCK_PATIENCE;
    loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(mut lock) => {
                lock.set_len(0).map_err(failed("write"))?;
                lock.rewind().map_err(failed("write"))?;
                writeln!(lock, "{}", std::process::id()).map_err(failed("write"))?;
                return Ok(lock);
            }
            Err((mut same, nix::errno::Errno::EWOULDBLOCK)) if Instant::now() >= deadline => {
                let mut pid = String::new();
                let _ = same.read_to_string(&mut pid);
                let pid = pid.trim();
                return Err(RuntimeError::Taken {
                    pid: if pid.is_empty() { "?" } else { pid }.to_owned(),
                    path: folder.to_owned(),
                });
            }
            Err((same, nix::errno::Errno::EWOULDBLOCK)) => {
                file = same;
                std::thread::sleep(Duration::from_millis(10));
            }
            Err((_, errno)) => return Err(failed("lock")(errno.into())),
        }
    }
}

/// A listening socket at `path`, non-blocking. Made under another name and renamed, so that nobody
/// ever meets it with the wrong mode, and a dead socket is replaced in one step.
fn listen(path: &Path, kind: SockType, mode: u32) -> Result<OwnedFd, RuntimeError> {
    match fs::symlink_metadata(path) {
        Ok(found) if !found.file_type().is_socket() => {
            return Err(RuntimeError::NotASocket {
                path: path.to_owned(),
                found: if found.is_dir() { "a folder" } else { "a file" },
            });
        }
        _ => {}
    }
    let failed = |what| {
        move |source| RuntimeError::Io {
            what,
            path: path.to_owned(),
            source,
        }
    };
    let new = path.with_extension("new");
    match fs::remove_file(&new) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(failed("make room for")(error));
        }
        _ => {}
    }
    let try_listen = || -> nix::Result<OwnedFd> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let listener = socket::socket(AddressFamily::Unix, kind, flags, None)?;
        socket::bind(listener.as_raw_fd(), &UnixAddr::new(&new)?)?;
        socket::listen(&listener, Backlog::new(BACKLOG)?)?;
        Ok(listener)
    };
    let listener = try_listen().map_err(|errno| failed("listen on")(errno.into()))?;
    fs::set_permissions(&new, Permissions::from_mode(mode)).map_err(failed("set the mode of"))?;
    fs::rename(&new, path).map_err(failed("put into place"))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> tempfile::TempDir {
        tempfile::tempdir().expect("a temporary folder")
    }

    #[test]
    fn a_second_daemon_in_a_folder_is_refused_with_the_first_ones_pid() {
        let dir = folder();
        let _first = Folder::take(dir.path()).expect("first");
        let error = Folder::take(dir.path()).expect_err("second").to_string();
        let pid = format!("process {}", std::process::id());
        assert!(error.contains(&pid), "{error}");
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_folder_in_its_place_is_an_error() {
        let dir = folder();
        let first = Folder::take(dir.path()).expect("taken");
        drop(first.listen_attach().expect("first"));
        first.listen_attach().expect("over the dead one");
        let path = attach_socket(dir.path());
        fs::remove_file(&path).expect("removed");
        fs::create_dir(&path).expect("made");
        let error = first.listen_attach().expect_err("a folder").to_string();
        assert!(error.contains("a folder") && path.is_dir(), "{error}");
    }

    #[test]
    fn a_link_is_no_runtime_folder() {
        let dir = folder();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/tmp", &link).expect("link");
        assert!(matches!(
            Folder::take(&link),
            Err(RuntimeError::NotAFolder { .. })
        ));
    }

    #[test]
    fn sockets_have_their_documented_modes() {
        let dir = folder();
        let taken = Folder::take(dir.path()).expect("taken");
        let _attach = taken.listen_attach().expect("attach");
        let _status = taken.listen_status("no-such-group").expect("status");
        let mode = |path| fs::metadata(path).expect("there").mode() & 0o777;
        assert_eq!(mode(attach_socket(dir.path())), 0o666);
        assert_eq!(mode(status_socket(dir.path())), 0o660);
        assert_eq!(mode(dir.path().join(SOCKET_FOLDER)), 0o755);
    }
}
