//! Who uses a folder of libraries: programs that have one mapped, and containers that have it mounted.

use anyhow::{Result, bail};
use nix::sys::statvfs::{FsFlags, statvfs};
use std::fs;
use std::path::Path;

/// Most processes that are named.
const MOST_NAMED: usize = 3;

/// Who uses what is in `folder`, in words; `None`: nobody of whom this user may know.
pub(super) fn of(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let mapped = format!("{}/", folder.to_str()?);
    // A mount says where in its file system its root is, which may be mounted elsewhere than at `/`.
    let (versions, name) = (folder.parent()?.file_name()?, folder.file_name()?);
    let mounted = format!("/{}/{} ", versions.to_str()?, name.to_str()?);
    let in_folder = format!("/{}/{}/", versions.to_str()?, name.to_str()?);
    let uses = |process: &Path| {
        let has = |file: &str, words: &[&str]| {
            let text = fs::read_to_string(process.join(file)).unwrap_or_default();
            words.iter().any(|word| text.contains(word))
        };
        has("maps", &[&mapped]) || has("mountinfo", &[&mounted, &in_folder])
    };
    let processes = fs::read_dir("/proc").ok()?.flatten();
    let mut found: Vec<u32> = processes
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid: &u32| uses(Path::new(&format!("/proc/{pid}"))))
        .collect();
    found.sort_unstable();
    let named: Vec<String> = found.iter().take(MOST_NAMED).map(u32::to_string).collect();
    let more = found.len().saturating_sub(MOST_NAMED);
    match (&named[..], more) {
        ([], _) => None,
        ([one], 0) => Some(format!("process {one}")),
        (some, 0) => Some(format!("processes {}", some.join(", "))),
        (some, more) => Some(format!("processes {} and {more} more", some.join(", "))),
    }
}

/// Refuses a folder from which the loader could load nothing.
pub(super) fn refuse_noexec(folder: &Path) -> Result<()> {
    let there = folder.ancestors().find(|path| path.exists());
    let flags = there.and_then(|path| statvfs(path).ok());
    if flags.is_some_and(|found| found.flags().contains(FsFlags::ST_NOEXEC)) {
        bail!(
            "{} is on a file system that is mounted noexec: no program could load the libraries from there; \
             choose another folder",
            folder.display()
        );
    }
    Ok(())
}
