//! What `/proc` says about a process.

use crate::pages::USAGE_NAME;
use crate::tenants::ProcessId;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The process that has this number now; `None`: there is none.
pub(crate) fn identify(pid: u32) -> Option<ProcessId> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    Some(ProcessId {
        pid,
        start_ticks: start_ticks(&stat)?,
    })
}

fn start_ticks(stat: &str) -> Option<u64> {
    stat_field(stat, 22)?.parse().ok()
}

/// A field of `/proc/PID/stat`, from the third on, by its number in proc(5). The second is the command,
/// in parentheses, and may hold anything, also parentheses: fields are counted from the last one.
fn stat_field(stat: &str, number: usize) -> Option<&str> {
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(number.checked_sub(3)?)
}

/// Whether a process has been killed or is exiting, and is not yet dead.
///
/// A first thread that has ended by itself is no sign: its process may go on without it.
pub(crate) fn is_dying(pid: u32) -> bool {
    let file = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_default();
    is_exiting(&file("stat")) || is_killed(&file("status"))
}

/// Whether the flags in `/proc/PID/stat` say that the first thread is just ending.
fn is_exiting(stat: &str) -> bool {
    /// `PF_EXITING`. Source: Linux, `include/linux/sched.h`.
    const EXITING: u64 = 4;
    let flags = stat_field(stat, 9).and_then(|flags| flags.parse::<u64>().ok());
    stat_field(stat, 3) != Some("Z") && flags.is_some_and(|flags| flags & EXITING != 0)
}

/// Whether `/proc/PID/status` shows a `SIGKILL` on its way; any other deadly signal becomes one.
fn is_killed(status: &str) -> bool {
    let pending = status.lines().filter_map(|line| {
        let mask = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"))?;
        u64::from_str_radix(mask.trim(), 16).ok()
    });
    let kill = 1 << (libc::SIGKILL - 1);
    pending.fold(0, |all, mask| all | mask) & kill != 0
}

/// Where a process stands among control groups: by which a container's processes are told.
///
/// The unified hierarchy's path, else systemd's, else that of the `pids` controller; `None` for the root, which
/// tells nothing.
pub(crate) fn control_group(pid: u32) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
    control_group_in(&text)
}

fn control_group_in(text: &str) -> Option<String> {
    // hierarchy, controllers, path
    let path_of = |controllers: &str| {
        text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let is_it = fields.next()? == controllers;
            let path = fields.next().filter(|path| path.len() > 1)?;
            is_it.then(|| path.to_owned())
        })
    };
    ["", "name=systemd", "pids"].into_iter().find_map(path_of)
}

/// The directory of a control group that [`control_group`] names.
pub(crate) fn control_group_directory(path: &str) -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mut found = directories_in(&mounts, path).into_iter();
    found.find(|directory| directory.is_dir())
}

/// Where a control group may be mounted, in the order of [`control_group`].
fn directories_in(mounts: &str, path: &str) -> Vec<PathBuf> {
    // id, parent, device, root, place, options, ... - kind, source, options
    let of_kind = |kind: &str, option: &str| {
        mounts.lines().find_map(|line| {
            let (place, file_system) = line.split_once(" - ")?;
            let mut place = place.split(' ').skip(3);
            let (root, at) = (place.next()?, place.next()?);
            let mut file_system = file_system.split(' ');
            let is_it = file_system.next()? == kind
                && (option.is_empty() || file_system.nth(1)?.split(',').any(|it| it == option));
            let rest = path.strip_prefix(root.trim_end_matches('/'))?;
            is_it.then(|| Path::new(at).join(rest.trim_start_matches('/')))
        })
    };
    let hierarchies = [
        ("cgroup2", ""),
        ("cgroup", "name=systemd"),
        ("cgroup", "pids"),
    ];
    let hierarchies = hierarchies.into_iter();
    hierarchies
        .filter_map(|(kind, option)| of_kind(kind, option))
        .collect()
}

/// The PID namespace of a process, as its inode.
pub(crate) fn pid_namespace(pid: u32) -> Option<u64> {
    fs::metadata(format!("/proc/{pid}/ns/pid"))
        .ok()
        .map(|it| it.ino())
}

/// Short name of the command that a process runs; empty where it is gone.
pub(crate) fn command(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .map(|name| name.trim_end_matches('\n').to_owned())
        .unwrap_or_default()
}

/// The user that a process runs as.
pub(crate) fn user(pid: u32) -> Option<u32> {
    // Not the owner of the folder in /proc, which is root where a process may not be dumped.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    // real, effective, saved, of the file system
    line.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// Whether a process maps the usage page with this inode; an error where `/proc` does not say.
pub(crate) fn maps_usage(pid: u32, inode: u64) -> io::Result<bool> {
    let inode = inode.to_string();
    let name = USAGE_NAME.to_string_lossy();
    for line in BufReader::new(File::open(format!("/proc/{pid}/maps"))?).lines() {
        // address, access, offset, device, inode, name
        let line = line?;
        let mut fields = line.split_ascii_whitespace().skip(4);
        let is_it = fields.next() == Some(inode.as_str())
            && fields.next().is_some_and(|path| path.ends_with(&*name));
        if is_it {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Opens each usage page that a process has a descriptor of; there is seldom more than one.
///
/// What comes may be anything that bears the name: the caller checks it.
pub(crate) fn usage_pages(pid: u32) -> impl Iterator<Item = OwnedFd> {
    let prefix = format!("/memfd:{} ", USAGE_NAME.to_string_lossy());
    let folder = fs::read_dir(format!("/proc/{pid}/fd"));
    folder
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(move |entry| {
            let target = fs::read_link(entry.path()).ok()?;
            if !target.to_string_lossy().starts_with(&prefix) {
                return None;
            }
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).open(entry.path()).ok()?;
            Some(OwnedFd::from(file))
        })
}

/// All processes of the machine that this one may see.
pub(crate) fn all() -> impl Iterator<Item = u32> {
    let folder = fs::read_dir("/proc");
    let entries = folder.into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Tells this run of the machine from every other one: process ids mean nothing in another.
pub(crate) fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|id| id.trim().to_owned())
        .unwrap_or_default()
}

/// Sixteen bytes that nobody can guess.
pub(crate) fn random() -> io::Result<[u8; 16]> {
    let mut bytes = [0; 16];
    io::Read::read_exact(&mut File::open("/dev/urandom")?, &mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_full_of_parentheses_does_not_shift_the_fields() {
        let rest = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>();
        let stat = format!("17 (a) b (c) {}", rest.join(" "));
        assert_eq!(start_ticks(&stat), Some(22));
        assert_eq!(start_ticks("17 (a"), None);
    }

    #[test]
    fn a_control_group_is_the_unified_one_where_that_says_anything() {
        let v2 = "0::/system.slice/docker-1f.scope\n";
        assert_eq!(
            control_group_in(v2).as_deref(),
            Some("/system.slice/docker-1f.scope")
        );
        let hybrid = "8:pids:/p\n1:name=systemd:/machine/x\n0::/\n";
        assert_eq!(control_group_in(hybrid).as_deref(), Some("/machine/x"));
        assert_eq!(control_group_in("8:pids:/p:q\n").as_deref(), Some("/p:q"));
        assert_eq!(control_group_in("0::/\n"), None);
        assert_eq!(control_group_in(""), None);
    }

    #[test]
    fn a_control_group_lies_where_its_hierarchy_is_mounted() {
        let mounts = "30 1 0:2 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n\
                      31 1 0:3 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
                      32 1 0:4 /pod /sys/fs/cgroup/unified rw shared:1 - cgroup2 cgroup2 rw\n";
        let found = |path| {
            let found = directories_in(mounts, path).into_iter();
            found
                .map(|path| path.display().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            found("/pod/a"),
            [
                "/sys/fs/cgroup/unified/a",
                "/sys/fs/cgroup/systemd/pod/a",
                "/sys/fs/cgroup/pids/pod/a"
            ]
        );
        assert_eq!(found("/b").len(), 2, "it is not below what is mounted");
        assert!(directories_in("", "/b").is_empty());
    }

    #[test]
    fn who_is_killed_or_exiting_is_dying_and_nobody_else() {
        let stat = |state: &str, flags: u32| format!("17 (a) {state} 1 1 1 0 -1 {flags} 0");
        assert!(is_exiting(&stat("R", 0x40_0004)));
        assert!(!is_exiting(&stat("R", 0x40_0000)));
        assert!(!is_exiting(&stat("Z", 4)), "others may go on");
        assert!(is_killed(
            "Name:\ta\nSigPnd:\t0000000000000000\nShdPnd:\t0000000000000100\n"
        ));
        assert!(!is_killed(
            "SigPnd:\t0000000000004000\nShdPnd:\t0000000000000000\n"
        ));
        assert!(!is_dying(std::process::id()));
        assert!(!is_dying(u32::MAX));
    }

    #[test]
    fn this_process_is_identified_the_same_way_twice() {
        let this = identify(std::process::id()).expect("alive");
        assert_eq!(Some(this), identify(this.pid));
        assert_eq!(identify(u32::MAX), None);
    }
}
