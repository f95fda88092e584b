//! What a control group's processes may hold of a device, set in the driver: from 615 on.
//!
//! # Safety
//! NVML's own functions are called here, which no crate of ours wraps yet. The library is the one that the
//! device thread has open already; the functions' types are the header's, which `ffi` has; what they are
//! given lives until they return.
#![allow(unsafe_code, reason = "functions of a C library")]

use ffi::nvml::{nvmlDevice_t, nvmlGetMemoryLimits_v1_t, nvmlReturn_t, nvmlSetMemoryLimits_v1_t};
use libloading::Library;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use tokio::sync::oneshot;

/// `NVML_DEVICE_MEMORY_LIMIT_MAX`: no limit.
const NONE: u64 = u64::MAX;

/// What a driver may round a limit up to: its largest page.
const ROUNDING: u64 = 2 << 20;

/// A limit that the driver is to have.
#[derive(Debug)]
pub(crate) struct Limit {
    /// UUID of the device.
    pub(crate) uuid: String,
    /// The control group, as its directory.
    pub(crate) directory: PathBuf,
    /// In bytes; `None`: none any more.
    pub(crate) bytes: Option<u64>,
    /// Whom to tell.
    pub(crate) answer: oneshot::Sender<Outcome>,
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The driver has it.
    Done,
    /// This driver never will: it is too old, or does not let us.
    Never(String),
    /// It said no for this group.
    Refused(String),
    /// It does not answer.
    Silent,
}

type Set = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlSetMemoryLimits_v1_t) -> nvmlReturn_t;
type Get = unsafe extern "C" fn(nvmlDevice_t, *mut nvmlGetMemoryLimits_v1_t) -> nvmlReturn_t;

/// The two functions.
#[derive(Debug)]
pub(crate) struct Functions {
    set: Set,
    get: Get,
    _library: Library,
}

impl Functions {
    /// Those of the library at `path`; `None` where it has none.
    pub(crate) fn find(path: &OsStr) -> Option<Self> {
        // SAFETY: it is loaded already, so nothing of it runs now.
        let library = unsafe { Library::new(path) }.ok()?;
        // SAFETY: the types are the header's.
        let set = unsafe { library.get::<Set>(b"nvmlDeviceSetMemoryLimits_v1\0") };
        let set = *set.ok()?;
        // SAFETY: as above.
        let get = unsafe { library.get::<Get>(b"nvmlDeviceGetMemoryLimits_v1\0") };
        let get = *get.ok()?;
        Some(Self {
            set,
            get,
            _library: library,
        })
    }

    /// Sets a limit, or takes it away, and looks whether it stands.
    pub(crate) fn apply(
        &self,
        device: &nvml_wrapper::Device<'_>,
        directory: &Path,
        bytes: Option<u64>,
    ) -> Outcome {
        let Ok(name) = CString::new(directory.as_os_str().as_bytes()) else {
            return Outcome::Refused("its name has a zero in it".to_owned());
        };
        let hard = bytes.unwrap_or(NONE);
        // SAFETY: the handle is used while its device is borrowed.
        let handle = unsafe { device.handle() }.cast();
        let mut wanted = nvmlSetMemoryLimits_v1_t {
            nameSpace: name.as_ptr(),
            // Nothing is guaranteed by it: nothing is left behind in the groups above when it goes.
            softLimit: 0,
            hardLimit: hard,
        };
        // SAFETY: the device is NVML's, and the structure and the name outlive the call.
        let code = unsafe { (self.set)(handle, &raw mut wanted) };
        if code != nvmlReturn_t::NVML_SUCCESS {
            return outcome(code);
        }
        let mut found = nvmlGetMemoryLimits_v1_t {
            nameSpace: name.as_ptr(),
            softLimit: 0,
            hardLimit: NONE,
            currentUsed: 0,
        };
        // SAFETY: as above.
        let code = unsafe { (self.get)(handle, &raw mut found) };
        match code {
            nvmlReturn_t::NVML_SUCCESS if found.hardLimit <= hard.saturating_add(ROUNDING) => {
                Outcome::Done
            }
            nvmlReturn_t::NVML_SUCCESS => {
                Outcome::Refused(format!("it has a limit of {} bytes now", found.hardLimit))
            }
            code => outcome(code),
        }
    }
}

fn outcome(code: nvmlReturn_t) -> Outcome {
    let text = format!("NVML answers {}", code.0);
    match code {
        nvmlReturn_t::NVML_ERROR_FUNCTION_NOT_FOUND
        | nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED
        | nvmlReturn_t::NVML_ERROR_NO_PERMISSION => Outcome::Never(text),
        _ => Outcome::Refused(text),
    }
}
