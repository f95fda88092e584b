//! What has to change in a container, in no format in particular.

use crate::Quota;
use std::path::{Path, PathBuf};

/// Where the socket folder lies in a container; the shim has this path compiled in.
const SOCKET_FOLDER: &str = "/run/sluice/socket";
/// The file by which the loader finds the shim in every program of the container. Unlike
/// `LD_PRELOAD` it is also there for programs that an engine's `exec` starts.
const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// What a container is lent: the folders and files of the host that it gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The folder of the libraries, at the same path in the container.
    pub libraries: PathBuf,
    /// A file of the host that names the shim, to lie over `/etc/ld.so.preload`.
    pub preload: PathBuf,
    /// The folder of the socket that tenants attach to. The folder and not the socket, so that a
    /// new daemon's socket appears in it.
    pub socket: PathBuf,
    /// The program to call before the container starts, with its arguments after the name.
    pub hook: Option<Hook>,
}

/// A call of a program on the host, before the container starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hook {
    /// The program.
    pub path: PathBuf,
    /// Its arguments, its own name first.
    pub args: Vec<String>,
}

/// One bind mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// On the host.
    pub from: String,
    /// In the container.
    pub to: String,
    /// As for mount(8).
    pub options: Vec<&'static str>,
}

/// What has to change in a container.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Edits {
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Variables.
    pub env: Vec<(&'static str, String)>,
    /// Called on the host before the container starts.
    pub create_runtime: Option<Hook>,
}

/// A lease that no container can be given.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path {path:?} cannot be mounted; it has to be absolute, in UTF-8, and without `..`")]
pub struct LeaseError {
    /// The path.
    pub path: PathBuf,
}

/// What has to change in a container so that it runs under `quota` with `lease`.
pub fn edits(quota: &Quota, lease: &Lease) -> Result<Edits, LeaseError> {
    let libraries = text(&lease.libraries)?;
    if let Some(hook) = &lease.hook {
        text(&hook.path)?;
    }
    Ok(Edits {
        mounts: vec![
            mount(libraries, libraries),
            mount(text(&lease.preload)?, PRELOAD_FILE),
            mount(text(&lease.socket)?, SOCKET_FOLDER),
        ],
        env: quota.variables(),
        create_runtime: lease.hook.clone(),
    })
}

fn mount(from: &str, to: &str) -> Mount {
    Mount {
        from: from.to_owned(),
        to: to.to_owned(),
        // A socket can be connected to on a read-only mount; only making one needs to write.
        options: vec!["ro", "nosuid", "nodev", "rbind", "rprivate"],
    }
}

fn text(path: &Path) -> Result<&str, LeaseError> {
    path.to_str()
        .filter(|_| path.is_absolute())
        .filter(|_| !path.components().any(|part| part.as_os_str() == ".."))
        .ok_or_else(|| LeaseError {
            path: path.to_owned(),
        })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn lease() -> Lease {
        Lease {
            libraries: "/opt/sluice/lib/sluice".into(),
            preload: "/opt/sluice/etc/ld.so.preload".into(),
            socket: "/run/sluice/leases/a".into(),
            hook: Some(Hook {
                path: "/opt/sluice/bin/hook".into(),
                args: vec!["hook".into(), "create".into()],
            }),
        }
    }

    #[test]
    fn a_container_sees_libraries_preload_and_socket_and_can_change_none() {
        let edits = edits(&Quota::default(), &lease()).unwrap();
        let places: Vec<_> = edits.mounts.iter().map(|mount| mount.to.as_str()).collect();
        assert_eq!(
            places,
            [
                "/opt/sluice/lib/sluice",
                "/etc/ld.so.preload",
                "/run/sluice/socket"
            ]
        );
        assert!(
            edits
                .mounts
                .iter()
                .all(|mount| mount.options.contains(&"ro"))
        );
        assert!(edits.env.is_empty());
    }

    #[test]
    fn a_path_that_means_something_else_elsewhere_is_refused() {
        for path in ["lib", "/opt/../etc"] {
            let lease = Lease {
                libraries: path.into(),
                ..lease()
            };
            let error = edits(&Quota::default(), &lease).unwrap_err();
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
