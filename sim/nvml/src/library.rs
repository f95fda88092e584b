//! Initialisation, and what a device handle stands for.
//!
//! Initialisation counts: the library is up from the first `nvmlInit` to the last `nvmlShutdown`.
//! Shutting down what was never up succeeds; every other call then answers
//! `NVML_ERROR_UNINITIALIZED`, but for the error strings and the library's own version. Source:
//! genuine 535 to 555 without a GPU.
//!
//! A child of `fork` inherits the count, and connects anew with its first call: what the parent said
//! to the `gpu` process and what it heard must not mix with the child's.

use std::process;
use std::sync::Arc;

use ffi::nvml::nvmlReturn_t;
use parking_lot::Mutex;
use sim::client::Device;

use crate::guard::Answer;
use crate::hardware::Hardware;
use crate::utilisation::Meter;

/// Held for a few instructions and while a connection is made; never while the `gpu` process is
/// asked for anything else.
static LIBRARY: Mutex<Library> = Mutex::new(Library {
    users: 0,
    session: None,
});

/// Every flag of `nvmlInitWithFlags`: no GPUs, no attach, force.
const KNOWN_FLAGS: u32 = 0b111;

struct Library {
    /// How many initialisations have no shutdown yet.
    users: u32,
    session: Option<Arc<Session>>,
}

/// One connection to the hardware and what was measured over it.
pub(crate) struct Session {
    /// The process that made the connection.
    pid: u32,
    pub(crate) hardware: Hardware,
    /// One for each device.
    pub(crate) meters: Vec<Meter>,
}

impl Session {
    fn open() -> Result<Arc<Session>, nvmlReturn_t> {
        let hardware = Hardware::open()?;
        let meters = hardware.devices().iter().map(|_| Meter::new()).collect();
        let session = Arc::new(Session {
            pid: process::id(),
            hardware,
            meters,
        });
        for (index, meter) in session.meters.iter().enumerate() {
            meter.begin(&session.hardware, index);
        }
        Ok(session)
    }
}

/// Counts one user, the first of whom connects. Without a `gpu` process there is no driver:
/// `NVML_ERROR_DRIVER_NOT_LOADED`, and nothing is counted.
pub(crate) fn initialise() -> Answer {
    let mut library = LIBRARY.lock();
    if library.session.is_none() {
        library.session = Some(Session::open()?);
    }
    library.users = library.users.saturating_add(1);
    Ok(())
}

/// [`initialise`]. Devices are always found and never attached, so the flags change nothing.
pub(crate) fn initialise_with(flags: u32) -> Answer {
    match flags & !KNOWN_FLAGS {
        0 => initialise(),
        _ => Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT),
    }
}

/// Counts one user less; the last one disconnects.
pub(crate) fn shut_down() -> Answer {
    let mut library = LIBRARY.lock();
    library.users = library.users.saturating_sub(1);
    if library.users == 0 {
        library.session = None;
    }
    Ok(())
}

/// The connection, if the library is up.
pub(crate) fn session() -> Result<Arc<Session>, nvmlReturn_t> {
    let mut library = LIBRARY.lock();
    let session = library
        .session
        .clone()
        .ok_or(nvmlReturn_t::NVML_ERROR_UNINITIALIZED)?;
    if session.pid == process::id() {
        return Ok(session);
    }
    let own = Session::open()?;
    library.session = Some(own.clone());
    Ok(own)
}

/// What every function answers that only has to be there.
pub(crate) fn not_supported() -> nvmlReturn_t {
    crate::guard::answer(|| {
        session()?;
        Err(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED)
    })
}

/// A device as the caller names it; opaque, and checked at every use.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Handle(usize);

/// Handle of the first device. Far from null and from any mapping, so that neither an index nor a
/// pointer passes for a handle.
const FIRST_HANDLE: usize = 0x51C0_0000;

/// Distance between two handles: they look like pointers to something aligned.
const HANDLE_STEP: usize = 64;

impl Handle {
    /// The handle of the device with this index.
    pub(crate) fn new(index: usize) -> Handle {
        Handle(FIRST_HANDLE + index * HANDLE_STEP)
    }

    /// As the caller sees it.
    pub(crate) fn to_pointer(self) -> usize {
        self.0
    }

    /// The device, if the library is up, has handed out this handle, and the device is still there.
    pub(crate) fn resolve(self) -> Result<Target, nvmlReturn_t> {
        let target = self.resolve_lost()?;
        match target.session.hardware.lost_xid(target.index) {
            Some(_) => Err(nvmlReturn_t::NVML_ERROR_GPU_IS_LOST),
            None => Ok(target),
        }
    }

    /// As [`Handle::resolve`], also for a device that has fallen off the bus.
    fn resolve_lost(self) -> Result<Target, nvmlReturn_t> {
        let session = session()?;
        let offset = self.0.wrapping_sub(FIRST_HANDLE);
        let index = offset / HANDLE_STEP;
        match offset.is_multiple_of(HANDLE_STEP) && index < session.hardware.devices().len() {
            true => Ok(Target { session, index }),
            false => Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT),
        }
    }
}

/// A device that is really there.
pub(crate) struct Target {
    pub(crate) session: Arc<Session>,
    pub(crate) index: usize,
}

impl Target {
    /// What is fixed about it.
    pub(crate) fn description(&self) -> &Device {
        &self.session.hardware.devices()[self.index]
    }

    /// What it does over time.
    pub(crate) fn meter(&self) -> &Meter {
        &self.session.meters[self.index]
    }

    /// Where to ask about it.
    pub(crate) fn hardware(&self) -> &Hardware {
        &self.session.hardware
    }
}
