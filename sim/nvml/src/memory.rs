//! How much memory a device has, and how much of it is taken.

use ffi::nvml::{nvmlBAR1Memory_t, nvmlMemory_t, nvmlMemory_v2_t};

use crate::figures;
use crate::guard::{Answer, Out, check_version, version_word};
use crate::library::Handle;

/// Total, free and used; what the driver reserves counts as used.
pub(crate) fn info(device: Handle, memory: Out<nvmlMemory_t>) -> Answer {
    let target = device.resolve()?;
    let memory = memory.claim()?;
    let truth = target.hardware().memory(target.index)?;
    memory.write(nvmlMemory_t {
        total: truth.total,
        free: truth.free,
        used: truth.total.saturating_sub(truth.free),
    });
    Ok(())
}

/// [`info`] with what the driver reserves apart: total is the sum of the other three. Under a limit of the
/// caller's control group the device is as large as that.
pub(crate) fn info_v2(device: Handle, memory: Out<nvmlMemory_v2_t>) -> Answer {
    let target = device.resolve()?;
    let memory = memory.claim()?;
    let version = version_word::<nvmlMemory_v2_t>(2);
    check_version(memory.read().version, version)?;
    let truth = target.hardware().memory_within(target.index)?;
    let taken = truth.total.saturating_sub(truth.free);
    memory.write(nvmlMemory_v2_t {
        version,
        total: truth.total,
        reserved: taken.saturating_sub(truth.used),
        free: truth.free,
        used: taken.min(truth.used),
    });
    Ok(())
}

/// Nobody looks through the window.
pub(crate) fn bar1(device: Handle, memory: Out<nvmlBAR1Memory_t>) -> Answer {
    device.resolve()?;
    memory.write(nvmlBAR1Memory_t {
        bar1Total: figures::BAR1_BYTES,
        bar1Free: figures::BAR1_BYTES,
        bar1Used: 0,
    })
}
