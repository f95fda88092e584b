//! NVML's lists of processes, reduced to the tenant's own.
//!
//! Who is the tenant's stands in the usage page, by the daemon's process numbers. They mean something here
//! only where this process and the daemon count alike; in a PID namespace of its own the kernel's driver
//! filters by itself, and the lists pass as they are. Entries are moved together in place; with a layout
//! that we do not know, nothing is.

use crate::claim::Out;
use crate::real::{self, Library, ordinal_of};
use crate::session::{self, Pages};
use ffi::nvml::{
    nvmlDevice_t, nvmlProcessDetail_v1_t, nvmlProcessDetailList_t, nvmlProcessDetailList_v1,
    nvmlProcessInfo_t, nvmlProcessInfo_v1_t, nvmlProcessInfo_v2_t, nvmlProcessUtilizationInfo_v1_t,
    nvmlProcessUtilizationSample_t, nvmlProcessesUtilizationInfo_t,
    nvmlProcessesUtilizationInfo_v1, nvmlReturn_t,
};
use ffi::sync::Ordering;
use ffi::wire::slot_state;
use std::ffi::{c_uint, c_ulonglong};
use std::sync::OnceLock;
use std::sync::atomic::AtomicBool;

const SUCCESS: nvmlReturn_t = nvmlReturn_t::NVML_SUCCESS;

/// An entry that says whose it is.
trait OfProcess: Copy {
    fn pid(&self) -> u32;
}

macro_rules! of_process {
    ($($entry:ty),*) => {
        $(impl OfProcess for $entry {
            fn pid(&self) -> u32 {
                self.pid
            }
        })*
    };
}

of_process!(
    nvmlProcessInfo_v1_t,
    nvmlProcessInfo_v2_t,
    nvmlProcessDetail_v1_t,
    nvmlProcessUtilizationSample_t,
    nvmlProcessUtilizationInfo_v1_t,
    WideProcessInfo
);

/// Version 3 of the list's entry as the first drivers of branch 535 had it: with a word for protected
/// memory, taken back in the next.
///
/// Source: nvitop tells the two apart by which functions there are, as [`is_wide`] does.
#[repr(C)]
#[derive(Clone, Copy)]
struct WideProcessInfo {
    pid: c_uint,
    rest: [c_ulonglong; 3],
}

fn is_wide() -> bool {
    static IS_WIDE: OnceLock<bool> = OnceLock::new();
    *IS_WIDE.get_or_init(|| {
        let has = |ordinal| real::genuine(Library::Nvml, ordinal).is_some();
        has(const { ordinal_of(Library::Nvml, "nvmlDeviceGetConfComputeMemSizeInfo") })
            && !has(const { ordinal_of(Library::Nvml, "nvmlDeviceGetRunningProcessDetailList") })
    })
}

/// The process numbers of the tenant, sorted; `None` where they mean nothing here.
fn own_pids() -> Option<Vec<u32>> {
    let pages = session::view().ok()?;
    if !counts_like_the_daemon(pages) {
        return None;
    }
    let mut pids: Vec<u32> = pages
        .usage
        .slots
        .iter()
        .filter(|slot| slot.header.state.load(Ordering::Acquire) == slot_state::LIVE)
        .map(|slot| slot.header.pid.load(Ordering::Relaxed))
        .collect();
    pids.sort_unstable();
    Some(pids)
}

/// Whether this process and the daemon see the same process numbers.
fn counts_like_the_daemon(pages: Pages) -> bool {
    // A process stays in its PID namespace, so a yes holds; a no may only mean that the daemon is just away.
    static DOES: AtomicBool = AtomicBool::new(false);
    if DOES.load(Ordering::Relaxed) {
        return true;
    }
    let does = match session::seat() {
        Some(seat) => {
            let slot = pages.usage.slots.get(seat.slot as usize);
            slot.is_some_and(|slot| slot.header.pid.load(Ordering::Relaxed) == std::process::id())
        }
        None => {
            let daemon = pages.control.daemon_pid.load(Ordering::Relaxed);
            std::fs::read_to_string(format!("/proc/{daemon}/comm"))
                .is_ok_and(|name| name.starts_with("sluice"))
        }
    };
    DOES.store(does, Ordering::Relaxed);
    does
}

/// Moves the tenant's entries to the front; says how many there are.
fn keep_own<T: OfProcess>(entries: *mut T, count: c_uint, own: &[u32]) -> c_uint {
    let mut kept = 0;
    for index in 0..count as usize {
        // SAFETY: the library has just written `count` entries there.
        let Some(entry) = Out::claim(unsafe { entries.add(index) }).map(|entry| entry.read())
        else {
            return count;
        };
        if own.binary_search(&entry.pid()).is_ok() {
            // SAFETY: `kept` is at most `index`.
            if let Some(place) = Out::claim(unsafe { entries.add(kept) }) {
                place.write(entry);
            }
            kept += 1;
        }
    }
    kept as c_uint
}

/// A list that the caller gave room for: the library's answer, reduced.
fn reduced<T: OfProcess>(
    result: nvmlReturn_t,
    count: *mut c_uint,
    entries: *mut T,
) -> nvmlReturn_t {
    // Without room, the count alone was asked, or is what is needed; too much room harms nobody.
    if result == SUCCESS
        && !entries.is_null()
        && let Some(count) = Out::claim(count)
        && let Some(own) = own_pids()
    {
        let kept = keep_own(entries, count.read(), &own);
        count.write(kept);
    }
    result
}

/// `nvmlDeviceGet{Compute,Graphics,MPSCompute}RunningProcesses`.
pub(crate) fn running_v1(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v1_t,
    forward: impl FnOnce(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v1_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    reduced(forward(device, count, infos), count, infos)
}

/// The same, version 2.
pub(crate) fn running_v2(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_v2_t,
    forward: impl FnOnce(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_v2_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    reduced(forward(device, count, infos), count, infos)
}

/// The same, version 3.
pub(crate) fn running_v3(
    device: nvmlDevice_t,
    count: *mut c_uint,
    infos: *mut nvmlProcessInfo_t,
    forward: impl FnOnce(nvmlDevice_t, *mut c_uint, *mut nvmlProcessInfo_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let result = forward(device, count, infos);
    if is_wide() {
        return reduced(result, count, infos.cast::<WideProcessInfo>());
    }
    reduced(result, count, infos)
}

/// `nvmlDeviceGetRunningProcessDetailList`.
pub(crate) fn detail_list(
    device: nvmlDevice_t,
    list: *mut nvmlProcessDetailList_t,
    forward: impl FnOnce(nvmlDevice_t, *mut nvmlProcessDetailList_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let result = forward(device, list);
    if result == SUCCESS
        && let Some(place) = Out::claim(list)
    {
        let mut list = place.read();
        if list.version == nvmlProcessDetailList_v1
            && !list.procArray.is_null()
            && let Some(own) = own_pids()
        {
            list.numProcArrayEntries = keep_own(list.procArray, list.numProcArrayEntries, &own);
            place.write(list);
        }
    }
    result
}

/// `nvmlDeviceGetProcessUtilization`.
pub(crate) fn utilization(
    device: nvmlDevice_t,
    samples: *mut nvmlProcessUtilizationSample_t,
    count: *mut c_uint,
    since: c_ulonglong,
    forward: impl FnOnce(
        nvmlDevice_t,
        *mut nvmlProcessUtilizationSample_t,
        *mut c_uint,
        c_ulonglong,
    ) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let result = forward(device, samples, count, since);
    reduced(result, count, samples)
}

/// `nvmlDeviceGetProcessesUtilizationInfo`.
pub(crate) fn utilization_info(
    device: nvmlDevice_t,
    info: *mut nvmlProcessesUtilizationInfo_t,
    forward: impl FnOnce(nvmlDevice_t, *mut nvmlProcessesUtilizationInfo_t) -> nvmlReturn_t,
) -> nvmlReturn_t {
    let result = forward(device, info);
    if result == SUCCESS
        && let Some(place) = Out::claim(info)
    {
        let mut info = place.read();
        if info.version == nvmlProcessesUtilizationInfo_v1
            && !info.procUtilArray.is_null()
            && let Some(own) = own_pids()
        {
            info.processSamplesCount = keep_own(info.procUtilArray, info.processSamplesCount, &own);
            place.write(info);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_entries_move_to_the_front_and_others_go() {
        let entry = |pid| nvmlProcessInfo_v2_t {
            pid,
            usedGpuMemory: u64::from(pid) << 20,
            gpuInstanceId: 7,
            computeInstanceId: 8,
        };
        let mut entries = [5, 9, 2, 7].map(entry);
        let kept = keep_own(entries.as_mut_ptr(), 4, &[2, 9]);
        assert_eq!(kept, 2);
        assert_eq!((entries[0].pid, entries[1].pid), (9, 2));
        assert_eq!(entries[1].usedGpuMemory, 2 << 20);
        assert_eq!(keep_own(entries.as_mut_ptr(), 2, &[]), 0);
    }
}
