//! A control group of a test's own, for what goes by where a process stands.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

/// Where hierarchies are mounted, in the order in which the daemon prefers them, and what names them in
/// `/proc/self/cgroup`.
const HIERARCHIES: [(&str, &str); 4] = [
    ("/sys/fs/cgroup", ""),
    ("/sys/fs/cgroup/unified", ""),
    ("/sys/fs/cgroup/systemd", "name=systemd"),
    ("/sys/fs/cgroup/pids", "pids"),
];

/// A control group; removed when it is dropped, after its processes have ended.
#[derive(Debug)]
pub struct ControlGroup(PathBuf);

impl ControlGroup {
    /// A new one below the test's own; `None`, and a word about it, where this machine does not let us.
    pub fn make() -> Option<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("sluice-test-{}-{number}", std::process::id());
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        for (mount, controllers) in HIERARCHIES {
            let mount = Path::new(mount);
            let path = own.lines().find_map(|line| {
                let mut fields = line.splitn(3, ':').skip(1);
                (fields.next()? == controllers).then(|| fields.next())?
            });
            let Some(path) = path.filter(|_| mount.join("cgroup.procs").exists()) else {
                continue;
            };
            let folder = mount.join(path.trim_start_matches('/')).join(&name);
            if fs::create_dir(&folder).is_err() {
                continue;
            }
            let group = Self(folder);
            if group
                .command("true")
                .status()
                .is_ok_and(|end| end.success())
            {
                return Some(group);
            }
        }
        eprintln!("NOT RUN: this machine lets nobody here make a control group");
        None
    }

    /// Its directory.
    pub fn folder(&self) -> &Path {
        &self.0
    }

    /// A program that begins inside it.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// Removes it now; its processes have ended.
    pub fn remove(&self) {
        // The kernel takes a moment to see that the last process is gone.
        for _ in 0..200 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        self.remove();
    }
}
