//! The restart ledger: what a daemon leaves to the next one.
//!
//! Written aside and renamed, so that it is whole at any instant. It holds the tenants' tokens, so only
//! the daemon's own user may read it. Memory in use is not in it: that stands in the usage pages, which
//! the clients keep.

use crate::native::Written;
use crate::tenants::Tenant;
use ffi::wire::MAX_DEVICES;
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Layout of the file; another one is not read.
const VERSION: u32 = 1;

/// Everything in the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ledger {
    version: u32,
    /// Which run of the machine it is of.
    pub(crate) boot_id: String,
    /// Number of the next tenant.
    pub(crate) next_id: u64,
    /// All tenants.
    pub(crate) tenants: Vec<Tenant>,
    /// What was set in the driver, or was about to be.
    #[serde(default)]
    pub(crate) native: Written,
}

impl Ledger {
    /// A ledger of this version's layout.
    pub(crate) fn new(
        boot_id: String,
        next_id: u64,
        tenants: Vec<Tenant>,
        native: Written,
    ) -> Self {
        Self {
            version: VERSION,
            boot_id,
            next_id,
            tenants,
            native,
        }
    }
}

#[derive(Deserialize)]
struct Version {
    version: u32,
}

/// What an earlier daemon left; `None` where there is nothing of use. A file that makes no sense is
/// renamed aside, and said so.
pub(crate) fn read(file: &Path, boot_id: &str) -> Option<Ledger> {
    let text = match fs::read(file) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
        Err(error) => {
            set_aside(file, &error);
            return None;
        }
    };
    let ledger = match parse(&text) {
        Ok(ledger) => ledger,
        Err(error) => {
            set_aside(file, &error);
            return None;
        }
    };
    if ledger.boot_id != boot_id {
        tracing::info!(
            "the restart ledger is of an earlier run of this machine: nothing to take over"
        );
        return None;
    }
    Some(ledger)
}

fn parse(text: &[u8]) -> Result<Ledger, String> {
    // The version first: another one may have other fields.
    let said: Version = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    if said.version != VERSION {
        return Err(format!("it has version {}, not {VERSION}", said.version));
    }
    let ledger: Ledger = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    for tenant in &ledger.tenants {
        if tenant.shares.is_empty() || tenant.shares.len() > MAX_DEVICES {
            return Err(format!(
                "tenant {} has {} devices",
                tenant.name,
                tenant.shares.len()
            ));
        }
    }
    Ok(ledger)
}

fn set_aside(file: &Path, error: &dyn std::fmt::Display) {
    let aside = file.with_extension("corrupt");
    let renamed = fs::rename(file, &aside);
    tracing::error!(
        file = %file.display(),
        aside = %aside.display(),
        is_renamed = renamed.is_ok(),
        %error,
        "the restart ledger makes no sense and is set aside; its tenants must be registered anew"
    );
}

/// Writes the file, whole or not at all.
pub(crate) fn write(file: &Path, ledger: &Ledger) -> io::Result<()> {
    let aside = file.with_extension("new");
    let text = serde_json::to_vec(ledger)?;
    let mut new: File = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(&aside)?;
    // Not synchronised to the disk: a ledger does not outlive the machine's run anyway.
    new.write_all(&text)?;
    fs::rename(&aside, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tenants::{Device, ProcessId, Share, SlotHolder};
    use std::os::unix::fs::PermissionsExt;

    fn ledger() -> Ledger {
        let process = ProcessId {
            pid: 17,
            start_ticks: 4711,
        };
        let holder = SlotHolder {
            process,
            generation: 3,
        };
        let tenant = Tenant {
            id: 6,
            name: "web".to_owned(),
            token: [1; 16],
            nonce: [2; 16],
            owner: process,
            shares: vec![Share {
                device: Device {
                    index: 0,
                    uuid: "GPU-0".to_owned(),
                    name: "test device".to_owned(),
                    memory_bytes: u64::MAX,
                },
                limit_bytes: u64::MAX,
                compute: crate::terms::Wanted::default(),
            }],
            slots: [(0, holder), (1023, holder)].into(),
            next_generation: 4,
            container: None,
            is_paused: true,
            is_overcommitted: true,
            is_owner_alive: false,
            observers: 0,
        };
        Ledger::new("boot".to_owned(), 7, vec![tenant], Written::new())
    }

    #[test]
    fn what_is_written_is_read_back_and_private() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ledger.json");
        write(&file, &ledger()).expect("written");
        assert_eq!(read(&file, "boot"), Some(ledger()));
        let mode = fs::metadata(&file).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn another_run_of_the_machine_leaves_nothing_to_take_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ledger.json");
        write(&file, &ledger()).expect("written");
        assert_eq!(read(&file, "another"), None);
    }

    #[test]
    fn a_corrupt_ledger_is_set_aside() {
        let dir = tempfile::tempdir().expect("a folder");
        let file = dir.path().join("ledger.json");
        for text in ["", "{", "{\"version\":2}", "{\"version\":1}", "[]", "\u{0}"] {
            fs::write(&file, text).expect("written");
            assert_eq!(read(&file, "boot"), None);
            assert!(!file.exists());
            let aside = fs::read_to_string(dir.path().join("ledger.corrupt")).expect("kept");
            assert_eq!(aside, text);
        }
    }
}
