//! Limits on what a control group's processes hold of a device, as drivers from 615 on enforce them.
//!
//! A group is a directory of the kernel's cgroup file system, of either version, and a client is in the
//! groups that its process was in when it connected, and in those above. What it allocates, whatever it
//! is for, has to fit under the hard limit of each: limits nest, as the kernel's `dmem` controller has it.
//! What a client sees as its device is by the limit of its own groups alone, not of those above.
//!
//! Managed memory does not count: the driver tracks it in system memory alone.
//!
//! A limit ends with its directory; one that is made anew under the same name has none.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::process::{Device, Process};
use crate::hardware::ClientId;
use crate::proto::{NO_LIMIT, status};

/// A control group, as `/proc/PID/cgroup` names it: which hierarchy, and where in it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group {
    /// Empty for the unified hierarchy.
    controllers: String,
    path: String,
}

impl Group {
    /// Whether `other` is this group or one below it.
    fn has(&self, other: &Self) -> bool {
        let rest = other.path.strip_prefix(self.path.trim_end_matches('/'));
        self.controllers == other.controllers
            && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The group that a directory is.
    fn of_directory(directory: &Path) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
        let hierarchies = fs::read_to_string("/proc/self/cgroup").ok()?;
        let mounts = mounts.lines().filter_map(Mount::parse);
        // Of two on the same place the later one lies on top.
        let mount = mounts
            .filter(|mount| directory.starts_with(&mount.at))
            .max_by_key(|mount| mount.at.components().count())?;
        let path = Path::new(&mount.root).join(directory.strip_prefix(&mount.at).ok()?);
        Some(Self {
            controllers: mount.controllers(&hierarchies)?,
            path: path.to_str()?.trim_end_matches('/').to_owned(),
        })
    }
}

/// A mounted hierarchy.
struct Mount {
    root: String,
    at: PathBuf,
    is_unified: bool,
    options: String,
}

impl Mount {
    /// A line of `/proc/PID/mountinfo`; `None` for other file systems.
    fn parse(line: &str) -> Option<Self> {
        let (place, kind) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, at) = (place.next()?, place.next()?);
        let mut kind = kind.split(' ');
        let is_unified = match kind.next()? {
            "cgroup2" => true,
            "cgroup" => false,
            _ => return None,
        };
        Some(Self {
            root: root.to_owned(),
            at: PathBuf::from(at),
            is_unified,
            options: kind.nth(1)?.to_owned(),
        })
    }

    /// Its controllers as the lines of `/proc/PID/cgroup` have them.
    fn controllers(&self, lines: &str) -> Option<String> {
        if self.is_unified {
            return Some(String::new());
        }
        let mut listed = lines.lines().filter_map(|line| line.split(':').nth(1));
        let is_own = |names: &&str| {
            let mut names = names.split(',');
            names.all(|name| self.options.split(',').any(|option| option == name))
        };
        listed
            .find(|names| !names.is_empty() && is_own(names))
            .map(str::to_owned)
    }
}

/// The groups that a process is in; none where it cannot be seen from here.
pub(super) fn groups_of(pid: i32) -> Vec<Group> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    parse(&text)
}

fn parse(text: &str) -> Vec<Group> {
    // hierarchy, controllers, path
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        Some(Group {
            controllers: fields.next()?.to_owned(),
            path: fields.next()?.trim_end_matches('/').to_owned(),
        })
    });
    lines.collect()
}

/// The limits of one group on one device, in bytes.
#[derive(Debug, Clone)]
struct Limits {
    soft: u64,
    hard: u64,
    directory: PathBuf,
    inode: u64,
}

impl Limits {
    fn is_standing(&self) -> bool {
        fs::metadata(&self.directory).is_ok_and(|found| found.ino() == self.inode)
    }
}

/// The limits on one device.
#[derive(Debug, Default)]
pub(super) struct GroupLimits(BTreeMap<Group, Limits>);

/// What a client sees of its device, where its own group has a limit.
pub(super) struct Seen {
    pub(super) limit: u64,
    pub(super) used: u64,
}

impl Process {
    /// What a client may still allocate on a device because of its groups' limits.
    pub(super) fn room(&self, id: ClientId, device: u64) -> u64 {
        let device = usize::try_from(device).ok();
        let device = device.and_then(|index| self.devices.get(index));
        let (Some(device), Some(client)) = (device, self.clients.get(&id)) else {
            return u64::MAX;
        };
        let limits = device.limits.0.iter();
        limits
            .filter(|(group, _)| client.groups.iter().any(|own| group.has(own)))
            .map(|(group, limits)| limits.hard.saturating_sub(self.held(device, group)))
            .fold(u64::MAX, u64::min)
    }

    /// What a client sees as its device; `None`: all of it.
    pub(super) fn seen(&self, id: ClientId, device: &Device) -> Option<Seen> {
        let client = self.clients.get(&id)?;
        let mut limits = device.limits.0.iter();
        let (group, limits) = limits.find(|(group, limits)| {
            limits.hard != NO_LIMIT && client.groups.iter().any(|own| own == *group)
        })?;
        Some(Seen {
            limit: limits.hard,
            used: self.held(device, group),
        })
    }

    /// What the processes of a group, and of those below it, hold of a device.
    fn held(&self, device: &Device, group: &Group) -> u64 {
        let members = self
            .clients
            .iter()
            .filter(|(_, client)| client.groups.iter().any(|own| group.has(own)));
        members.fold(0, |sum, (id, _)| sum + device.memory.fixed_by(*id))
    }

    /// Forgets the limits of directories that are gone.
    pub(super) fn forget_groups(&mut self) {
        for device in &mut self.devices {
            device.limits.0.retain(|_, limits| limits.is_standing());
        }
    }

    /// Sets the limits of the group whose directory `file` is. Root alone may.
    pub(super) fn set_limits(
        &mut self,
        id: ClientId,
        device: u64,
        soft: u64,
        hard: u64,
        file: &OwnedFd,
    ) -> Result<(), u32> {
        let is_root = self
            .clients
            .get(&id)
            .is_some_and(|client| client.user == Some(0));
        if !is_root {
            return Err(status::DENIED);
        }
        let (group, directory, inode) = named(file)?;
        if soft > hard {
            return Err(status::INVALID);
        }
        self.forget_groups();
        let limits = &mut self.device(device)?.limits.0;
        if (soft, hard) == (0, NO_LIMIT) {
            limits.remove(&group);
        } else {
            let new = Limits {
                soft,
                hard,
                directory,
                inode,
            };
            limits.insert(group, new);
        }
        Ok(())
    }

    /// Soft limit, hard limit, and what is in use.
    pub(super) fn limits(&mut self, device: u64, file: &OwnedFd) -> Result<[u64; 3], u32> {
        let (group, ..) = named(file)?;
        self.forget_groups();
        self.device(device)?;
        let device = &self.devices[device as usize];
        let limits = device.limits.0.get(&group);
        let (soft, hard) = limits.map_or((0, NO_LIMIT), |limits| (limits.soft, limits.hard));
        Ok([soft, hard, self.held(device, &group)])
    }
}

/// The group that a descriptor of its directory names, with the directory and its inode.
fn named(file: &OwnedFd) -> Result<(Group, PathBuf, u64), u32> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let directory = fs::read_link(link).map_err(|_| status::NOT_FOUND)?;
    let found = fs::metadata(&directory).map_err(|_| status::NOT_FOUND)?;
    let group = Group::of_directory(&directory).ok_or(status::NOT_FOUND)?;
    Ok((group, directory, found.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(controllers: &str, path: &str) -> Group {
        Group {
            controllers: controllers.to_owned(),
            path: path.to_owned(),
        }
    }

    #[test]
    fn a_process_is_in_a_group_of_each_hierarchy() {
        let groups = parse("5:cpu,cpuacct:/a:b\n1:name=systemd:/\n0::/x/y\n");
        let wanted = [
            group("cpu,cpuacct", "/a:b"),
            group("name=systemd", ""),
            group("", "/x/y"),
        ];
        assert_eq!(groups, wanted);
    }

    #[test]
    fn a_group_has_what_is_below_it_in_its_own_hierarchy() {
        let parent = group("", "/x");
        assert!(parent.has(&group("", "/x")) && parent.has(&group("", "/x/y")));
        assert!(!parent.has(&group("", "/xy")) && !parent.has(&group("pids", "/x")));
        assert!(!group("", "/x/y").has(&parent));
        assert!(group("", "").has(&parent), "the root has all");
    }

    #[test]
    fn a_mount_is_known_by_its_controllers() {
        let line =
            "30 20 0:25 /pod /sys/fs/cgroup/cpu rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct";
        let mount = Mount::parse(line).expect("a hierarchy");
        assert_eq!(mount.root, "/pod");
        let lines = "6:cpuset:/\n5:cpu,cpuacct:/pod/a\n0::/\n";
        assert_eq!(mount.controllers(lines).as_deref(), Some("cpu,cpuacct"));
        assert_eq!(mount.controllers("6:cpuset:/\n0::/\n"), None);
        let unified =
            Mount::parse("1 2 0:3 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw").expect("one");
        assert_eq!(unified.controllers("").as_deref(), Some(""));
        assert!(Mount::parse("1 2 0:3 / / rw - ext4 /dev/sda rw").is_none());
    }
}
