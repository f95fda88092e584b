//! Where truth comes from: the `gpu` process's board, or nothing but constants in null mode.
//!
//! The board is a page in memory: to ask is to read, so no question here can hang. A process that
//! has gone away has lost its devices: `NVML_ERROR_GPU_IS_LOST`, until the library is shut down and
//! initialised again. So has one that lets a device fall off the bus, of that device and for good.

use std::env;

use ffi::nvml::nvmlReturn_t;
use sim::client::{Device, DriverVersion, Gpu, MemoryState, Process};
use sim::profile::PROFILES;
use sim::proto::ENV_NULL;

/// Reported in place of the version that the `gpu` process states.
///
/// Takes a branch (`550`) or a full version; one without a known branch changes nothing.
const ENV_DRIVER_VERSION: &str = "SLUICE_SIM_DRIVER_VERSION";

/// UUID of the one device of null mode; the driver library says the same.
const NULL_UUID: u128 = 0x5C1C_E000_0000_4000_8000_0000_0000_0000;

/// The devices and their driver.
pub(crate) struct Hardware {
    /// Nobody to ask in null mode.
    gpu: Option<Gpu>,
    devices: Vec<Device>,
    version: DriverVersion,
}

impl Hardware {
    /// Connects to the `gpu` process that the environment names, or to none in null mode.
    pub(crate) fn open() -> Result<Hardware, nvmlReturn_t> {
        if is_null_mode() {
            let devices = vec![null_device()];
            return Ok(Hardware {
                gpu: None,
                devices,
                version: reported(DriverVersion::default()),
            });
        }
        let gpu = Gpu::connect().map_err(|_| nvmlReturn_t::NVML_ERROR_DRIVER_NOT_LOADED)?;
        let version = reported(gpu.driver_version());
        Ok(Hardware {
            devices: gpu.devices(),
            version,
            gpu: Some(gpu),
        })
    }

    /// Every device, in the order that the driver library has too.
    pub(crate) fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The driver that is stood in for.
    pub(crate) fn version(&self) -> &DriverVersion {
        &self.version
    }

    /// Memory of a device now.
    pub(crate) fn memory(&self, index: usize) -> Result<MemoryState, nvmlReturn_t> {
        let total = self.devices[index].memory_bytes;
        let untouched = MemoryState {
            total,
            used: 0,
            free: total,
        };
        Ok(self.alive()?.map_or(untouched, |gpu| gpu.memory(index)))
    }

    /// [`Hardware::memory`], as this process may have it.
    pub(crate) fn memory_within(&self, index: usize) -> Result<MemoryState, nvmlReturn_t> {
        match self.alive()? {
            Some(gpu) => Ok(gpu.memory_within(index)),
            None => self.memory(index),
        }
    }

    /// Whom to ask for limits of control groups, which there are from 615 on.
    pub(crate) fn with_limits(&self) -> Result<&Gpu, nvmlReturn_t> {
        if !self.version.has_group_limits() {
            return Err(nvmlReturn_t::NVML_ERROR_FUNCTION_NOT_FOUND);
        }
        self.alive()?.ok_or(nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED)
    }

    /// Processes with a context on a device; none is known of in null mode.
    pub(crate) fn processes(&self, index: usize) -> Result<Vec<Process>, nvmlReturn_t> {
        Ok(self
            .alive()?
            .map_or_else(Vec::new, |gpu| gpu.processes(index)))
    }

    /// How long a device has worked so far.
    pub(crate) fn busy_ns(&self, index: usize) -> Result<u64, nvmlReturn_t> {
        Ok(self.alive()?.map_or(0, |gpu| gpu.busy_ns(index)))
    }

    /// Whether contexts run side by side, as under a multi-process server.
    pub(crate) fn is_shared(&self) -> bool {
        self.gpu.as_ref().is_some_and(Gpu::is_shared)
    }

    /// Under which number a device's loss is reported, if it has fallen off the bus.
    pub(crate) fn lost_xid(&self, index: usize) -> Option<u32> {
        self.gpu.as_ref()?.lost_xid(index)
    }

    /// Whom to ask, if anybody; refuses where he has gone away.
    fn alive(&self) -> Result<Option<&Gpu>, nvmlReturn_t> {
        match &self.gpu {
            Some(gpu) if !gpu.is_alive() => Err(nvmlReturn_t::NVML_ERROR_GPU_IS_LOST),
            gpu => Ok(gpu.as_ref()),
        }
    }
}

/// The version to report where there is nothing to connect to: the library's own is always known.
pub(crate) fn default_version() -> DriverVersion {
    reported(DriverVersion::default())
}

fn is_null_mode() -> bool {
    env::var_os(ENV_NULL).is_some_and(|value| value == "1")
}

fn reported(stated: DriverVersion) -> DriverVersion {
    let wanted = env::var(ENV_DRIVER_VERSION).ok();
    wanted
        .and_then(|word| DriverVersion::named(&word).ok())
        .unwrap_or(stated)
}

fn null_device() -> Device {
    let profile = &PROFILES[0];
    Device {
        index: 0,
        profile,
        name: profile.name,
        uuid: NULL_UUID.to_be_bytes(),
        memory_bytes: profile.memory_bytes,
        pci: (0, 1, 0),
    }
}
