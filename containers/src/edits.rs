//! What has to change in a container, in no format in particular.

use crate::Quota;
use std::path::{Path, PathBuf};

/// Where the libraries lie in a container. Not below `/run`, over which some images mount one of their own.
pub const LIBRARIES: &str = "/opt/sluice/lib";
/// The shim in a container; a lease's preload file names it.
pub const SHIM: &str = "/opt/sluice/lib/libsluice.so";
/// Where the socket folder lies in a container; the shim has this path compiled in.
const SOCKET_FOLDER: &str = "/run/sluice/socket";
/// The file by which the loader finds the shim in every program of the container. Unlike
/// `LD_PRELOAD` it is also there for programs that an engine's `exec` starts.
const PRELOAD_FILE: &str = "/etc/ld.so.preload";
/// Where the container toolkit of NVIDIA puts a driver for images that bring none; the shim looks here.
const DRIVER_FOLDER: &str = "/usr/local/nvidia/lib64";
/// Where the stand-in's libraries look for their hardware when no variable says.
const GPU_SOCKET: &str = "/run/sluice/gpu.sock";

/// What a container is lent: the folders and files of the host that it gets to see.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The folder of the libraries.
    pub libraries: PathBuf,
    /// A file of the host that names the shim, to lie over `/etc/ld.so.preload`.
    pub preload: PathBuf,
    /// The folder of the socket that tenants attach to. The folder and not the socket, so that a
    /// new daemon's socket appears in it.
    pub socket: PathBuf,
    /// Where tenants get the stand-in: the socket of its hardware.
    pub stand_in: Option<PathBuf>,
    /// The program to call before the container starts.
    pub hook: Hook,
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Edits {
    /// Bind mounts.
    pub mounts: Vec<Mount>,
    /// Variables, for the container's programs to read: nobody believes them.
    pub env: Vec<(&'static str, String)>,
    /// Called on the host before the container starts.
    pub create_runtime: Hook,
}

/// A lease that no container can be given.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the path {path:?} cannot be mounted; it has to be absolute, in UTF-8, and without `..`")]
pub struct LeaseError {
    /// The path.
    pub path: PathBuf,
}

/// Whose word counts for a container's quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Whoever made the device: the container's variables do not count.
    Device(Quota),
    /// Whoever starts the container, by its variables.
    Environment,
}

/// What has to change in a container so that it runs under the quota with `lease`.
///
/// # Errors
/// A path of the lease cannot be mounted.
pub fn edits(source: &Source, lease: &Lease) -> Result<Edits, LeaseError> {
    let mut mounts = vec![
        mount(&lease.libraries, LIBRARIES, true)?,
        mount(&lease.preload, PRELOAD_FILE, true)?,
        mount(&lease.socket, SOCKET_FOLDER, true)?,
    ];
    if let Some(socket) = &lease.stand_in {
        mounts.push(mount(
            &lease.libraries.join("stand-in"),
            DRIVER_FOLDER,
            true,
        )?);
        mounts.push(mount(socket, GPU_SOCKET, false)?);
    }
    text(&lease.hook.path)?;
    let mut hook = lease.hook.clone();
    let env = match source {
        Source::Device(quota) => {
            hook.args.extend(quota.arguments());
            quota.variables()
        }
        Source::Environment => {
            hook.args.push("--quota-from-environment".to_owned());
            Vec::new()
        }
    };
    Ok(Edits {
        mounts,
        env,
        create_runtime: hook,
    })
}

fn mount(from: &Path, to: &str, is_read_only: bool) -> Result<Mount, LeaseError> {
    // A socket can be connected to on a read-only mount; only making one needs to write.
    let access = if is_read_only { "ro" } else { "rw" };
    Ok(Mount {
        from: text(from)?.to_owned(),
        to: to.to_owned(),
        options: vec![access, "nosuid", "nodev", "rbind", "rprivate"],
    })
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
            libraries: "/usr/lib/sluice".into(),
            preload: "/usr/lib/sluice/ld.so.preload".into(),
            socket: "/run/sluice/socket".into(),
            stand_in: None,
            hook: Hook {
                path: "/usr/bin/sluice".into(),
                args: vec!["sluice".into(), "hook".into()],
            },
        }
    }

    #[test]
    fn a_container_sees_libraries_preload_and_socket_and_can_change_none() {
        let edits = edits(&Source::Environment, &lease()).unwrap();
        let places: Vec<_> = edits.mounts.iter().map(|mount| mount.to.as_str()).collect();
        assert_eq!(
            places,
            [
                "/opt/sluice/lib",
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
        assert_eq!(
            edits.create_runtime.args,
            ["sluice", "hook", "--quota-from-environment"]
        );
    }

    #[test]
    fn the_quota_of_a_device_is_told_to_the_hook_and_not_left_to_the_container() {
        let quota = Quota {
            memory: Some("8GiB".to_owned()),
            compute: Some("30%".to_owned()),
            ..Quota::default()
        };
        let edits = edits(&Source::Device(quota), &lease()).unwrap();
        assert_eq!(
            edits.create_runtime.args,
            ["sluice", "hook", "--memory", "8GiB", "--compute", "30%"]
        );
        assert!(edits.env.contains(&("SLUICE_MEMORY", "8GiB".to_owned())));
    }

    #[test]
    fn the_stand_in_lies_where_a_driver_would() {
        let lease = Lease {
            stand_in: Some("/run/sluice/gpu.sock".into()),
            ..lease()
        };
        let edits = edits(&Source::Environment, &lease).unwrap();
        assert_eq!(edits.mounts[3].from, "/usr/lib/sluice/stand-in");
        assert_eq!(edits.mounts[4].to, "/run/sluice/gpu.sock");
    }

    #[test]
    fn a_path_that_means_something_else_elsewhere_is_refused() {
        for path in ["lib", "/opt/../etc"] {
            let lease = Lease {
                libraries: path.into(),
                ..lease()
            };
            let error = edits(&Source::Environment, &lease).unwrap_err();
            assert!(error.to_string().contains(path), "{error}");
        }
    }
}
