//! Devices for one quota: a CDI specification of its own for each, in the folder for what does not last.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Where engines look for specifications that a restart of the machine may take away.
///
/// Source: Container Device Interface, SPEC.md.
pub const FOLDER: &str = "/var/run/cdi";

/// How every lease's name begins.
pub const PREFIX: &str = "lease-";

const FILE_PREFIX: &str = "sluice-";
const FILE_SUFFIX: &str = ".json";

/// The file of the lease `name`.
#[must_use]
pub fn file(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{FILE_PREFIX}{name}{FILE_SUFFIX}"))
}

/// The lease whose file this is, if it is one's.
#[must_use]
pub fn name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    let name = name.strip_prefix(FILE_PREFIX)?.strip_suffix(FILE_SUFFIX)?;
    name.starts_with(PREFIX).then(|| name.to_owned())
}

/// Removes the leases in `folder` that are not `used` and have not been for `age`; returns their names.
///
/// A lease's time is its file's, which is set anew while a container uses it: an engine may start the same
/// container again later, and then needs its device.
///
/// # Errors
/// The folder cannot be read, or a file neither changed nor removed.
pub fn prune(folder: &Path, used: &BTreeSet<String>, age: Duration) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let now = SystemTime::now();
    let mut removed = Vec::new();
    for entry in entries {
        let path = entry?.path();
        let Some(name) = name(&path) else {
            continue;
        };
        if used.contains(&name) {
            File::options().write(true).open(&path)?.set_modified(now)?;
            continue;
        }
        let since = now.duration_since(fs::metadata(&path)?.modified()?);
        if since.is_ok_and(|since| since > age) {
            fs::remove_file(&path)?;
            removed.push(name);
        }
    }
    Ok(removed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn what_is_used_or_new_stays_and_nothing_else_is_touched() {
        let folder = tempfile::tempdir().unwrap();
        let old = SystemTime::now() - 2 * HOUR;
        for name in ["lease-used", "lease-old", "lease-new", "half"] {
            let file = File::create(file(folder.path(), name)).unwrap();
            if name != "lease-new" {
                file.set_modified(old).unwrap();
            }
        }
        let other = File::create(folder.path().join("nvidia.json")).unwrap();
        other.set_modified(old).unwrap();

        let used = BTreeSet::from(["lease-used".to_owned()]);
        let removed = prune(folder.path(), &used, HOUR).unwrap();
        assert_eq!(removed, ["lease-old"]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
        // It was in use a moment ago.
        assert!(
            prune(folder.path(), &BTreeSet::new(), HOUR)
                .unwrap()
                .is_empty()
        );
        assert!(
            prune(Path::new("/nowhere"), &used, HOUR)
                .unwrap()
                .is_empty()
        );
    }
}
