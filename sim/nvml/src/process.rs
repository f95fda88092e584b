//! Who uses a device.
//!
//! Every process with a context computes; none draws. Where contexts run side by side, each comes through a
//! multi-process server as well, as `nvidia-smi` shows by "M+C". Process numbers are those of the `gpu` process's own namespace: unlike a driver, it does
//! not translate them into the caller's.

use ffi::nvml::*;
use sim::client::Process;

use crate::guard::{Answer, Out, check_version, version_word, write_list};
use crate::library::Handle;

/// Stands for "no instance" where a device is not divided.
const NO_INSTANCE: u32 = u32::MAX;

/// Processes with a context, in the entries of the first version.
pub(crate) fn compute_v1(
    device: Handle,
    count: Out<u32>,
    infos: Out<nvmlProcessInfo_v1_t>,
) -> Answer {
    let entry = |process: &Process| nvmlProcessInfo_v1_t {
        pid: process.pid as u32,
        usedGpuMemory: process.used_bytes,
    };
    write_list(
        count,
        infos,
        &listed(device)?.iter().map(entry).collect::<Vec<_>>(),
    )
}

/// Processes with a context.
pub(crate) fn compute(device: Handle, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) -> Answer {
    let entry = |process: &Process| nvmlProcessInfo_v2_t {
        pid: process.pid as u32,
        usedGpuMemory: process.used_bytes,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
    };
    write_list(
        count,
        infos,
        &listed(device)?.iter().map(entry).collect::<Vec<_>>(),
    )
}

/// Processes that come through a server, in the entries of the first version.
pub(crate) fn mps_v1(device: Handle, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) -> Answer {
    match device.resolve()?.hardware().is_shared() {
        true => compute_v1(device, count, infos),
        false => none_v1(device, count, infos),
    }
}

/// Processes that come through a server.
pub(crate) fn mps(device: Handle, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) -> Answer {
    match device.resolve()?.hardware().is_shared() {
        true => compute(device, count, infos),
        false => none(device, count, infos),
    }
}

/// No process, in the entries of the first version.
pub(crate) fn none_v1(device: Handle, count: Out<u32>, infos: Out<nvmlProcessInfo_v1_t>) -> Answer {
    device.resolve()?;
    write_list(count, infos, &[])
}

/// No process.
pub(crate) fn none(device: Handle, count: Out<u32>, infos: Out<nvmlProcessInfo_v2_t>) -> Answer {
    device.resolve()?;
    write_list(count, infos, &[])
}

/// Processes that compute (mode 0), draw (1) or come through a server (2), in a versioned list.
pub(crate) fn details(device: Handle, list: Out<nvmlProcessDetailList_v1_t>) -> Answer {
    let processes = listed(device)?;
    let list = list.claim()?;
    let mut head = list.read();
    check_version(head.version, version_word::<nvmlProcessDetailList_v1_t>(1))?;
    let entry = |process: &Process| nvmlProcessDetail_v1_t {
        pid: process.pid as u32,
        usedGpuMemory: process.used_bytes,
        gpuInstanceId: NO_INSTANCE,
        computeInstanceId: NO_INSTANCE,
        usedGpuCcProtectedMemory: 0,
    };
    let entries: Vec<_> = match head.mode {
        0 => processes.iter().map(entry).collect(),
        2 if device.resolve()?.hardware().is_shared() => processes.iter().map(entry).collect(),
        1 | 2 => Vec::new(),
        _ => return Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT),
    };
    let mut count = head.numProcArrayEntries;
    let answer = write_list(
        Out::named(&raw mut count),
        Out::named(head.procArray),
        &entries,
    );
    head.numProcArrayEntries = count;
    list.write(head);
    answer
}

/// Nothing is kept about processes that have ended.
pub(crate) fn no_pids(device: Handle, count: Out<u32>, pids: Out<u32>) -> Answer {
    device.resolve()?;
    write_list(count, pids, &[])
}

/// Nobody encodes.
pub(crate) fn no_encoder_sessions(
    device: Handle,
    count: Out<u32>,
    infos: Out<nvmlEncoderSessionInfo_t>,
) -> Answer {
    device.resolve()?;
    write_list(count, infos, &[])
}

/// Nobody captures frames.
pub(crate) fn no_capture_sessions(
    device: Handle,
    count: Out<u32>,
    infos: Out<nvmlFBCSessionInfo_t>,
) -> Answer {
    device.resolve()?;
    write_list(count, infos, &[])
}

fn listed(device: Handle) -> Result<Vec<Process>, nvmlReturn_t> {
    let target = device.resolve()?;
    target.hardware().processes(target.index)
}
