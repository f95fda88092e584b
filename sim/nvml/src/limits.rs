//! Limits on what a control group's processes hold of a device.
//!
//! A group is named by its directory. Source: NVIDIA's guide to memory partitioning: only root sets,
//! everybody may ask; a directory that is no control group is "not found"; soft limit 0 and hard limit
//! `NVML_DEVICE_MEMORY_LIMIT_MAX` is "none". Drivers before 615 do not have the functions.

use std::fs::OpenOptions;
use std::os::fd::OwnedFd;
use std::os::unix::fs::OpenOptionsExt;

use ffi::nvml::{nvmlGetMemoryLimits_v1_t, nvmlReturn_t, nvmlSetMemoryLimits_v1_t};
use sim::client::GpuError;

use crate::guard::{Answer, In, Out};
use crate::library::Handle;

/// What is set, and what is in use.
pub(crate) fn get(device: Handle, limits: Out<nvmlGetMemoryLimits_v1_t>) -> Answer {
    let target = device.resolve()?;
    let gpu = target.hardware().with_limits()?;
    let place = limits.claim()?;
    let asked = place.read();
    let group = directory(asked.nameSpace)?;
    let [soft, hard, used] = gpu
        .group_limits(target.index, &group)
        .map_err(|error| code(&error))?;
    place.write(nvmlGetMemoryLimits_v1_t {
        softLimit: soft,
        hardLimit: hard,
        currentUsed: used,
        ..asked
    });
    Ok(())
}

/// Sets both.
pub(crate) fn set(device: Handle, limits: In<nvmlSetMemoryLimits_v1_t>) -> Answer {
    let target = device.resolve()?;
    let gpu = target.hardware().with_limits()?;
    let limits = limits.read()?;
    let group = directory(limits.nameSpace)?;
    let wanted = [limits.softLimit, limits.hardLimit];
    gpu.set_group_limits(target.index, &group, wanted)
        .map_err(|error| code(&error))
}

fn directory(path: *const std::ffi::c_char) -> Result<OwnedFd, nvmlReturn_t> {
    let path = In::named(path).path()?;
    let mut options = OpenOptions::new();
    options
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY | libc::O_CLOEXEC);
    let file = options.open(path);
    file.map(OwnedFd::from)
        .map_err(|_| nvmlReturn_t::NVML_ERROR_NOT_FOUND)
}

fn code(error: &GpuError) -> nvmlReturn_t {
    match error {
        GpuError::Denied => nvmlReturn_t::NVML_ERROR_NO_PERMISSION,
        GpuError::NoGroup => nvmlReturn_t::NVML_ERROR_NOT_FOUND,
        GpuError::Refused => nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT,
        GpuError::Gone => nvmlReturn_t::NVML_ERROR_GPU_IS_LOST,
        _ => nvmlReturn_t::NVML_ERROR_UNKNOWN,
    }
}
