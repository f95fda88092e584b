//! Tenants and devices, as clients see them.

use crate::api::{
    ComputeInfo, Enforcer, LastRefusal, ProcessInfo, RefusalsInfo, RefusedSize, StrangerInfo,
    TenantDeviceInfo, TenantInfo,
};
use crate::devices::{Sample, held_by};
use crate::process;
use crate::state::Pages;
use crate::tenants::{Share, Tenant};
use ffi::sync::{AtomicU64, Ordering};
use ffi::wire::{LastRefused, REFUSED_UP_TO, Refusable, Refusals, TenantTotal, UsagePage};

/// A tenant as clients see it, but for its processes' commands, which are not to be had under the lock.
///
/// The usage page is the tenant's claim: nothing of it is shown beyond the size of its device.
pub(super) fn describe(tenant: &Tenant, pages: Option<&Pages>) -> TenantInfo {
    let page = pages
        .and_then(|pages| pages.usage.as_ref())
        .map(|usage| usage.page());
    let books = |place| page.and_then(|page| ledger::Books::of(page, place));
    let devices = tenant.shares.iter().enumerate().map(|(place, share)| {
        let most = share.device.memory_bytes;
        let bytes = |units: u64| ledger::bytes(units).min(most);
        let books = books(place);
        let total = page.and_then(|page| page.totals.get(place));
        let count = |word: fn(&TenantTotal) -> &AtomicU64| {
            total.map_or(0, |total| word(total).load(Ordering::Relaxed))
        };
        TenantDeviceInfo {
            index: share.device.index,
            uuid: share.device.uuid.clone(),
            memory_limit_bytes: share.limit_bytes,
            is_over_limit: pages.is_some_and(|pages| pages.is_over_limit(place, share.limit_bytes)),
            memory_used_bytes: books.map_or(0, |books| bytes(books.held_units())),
            memory_peak_bytes: books.map_or(0, |books| bytes(books.peak_units())),
            oom_refusals: count(|total| &total.refusals),
            last_refused_bytes: count(|total| &total.last_refused_bytes),
            refusals: page
                .and_then(|page| page.refusals.get(place))
                .map_or_else(RefusalsInfo::default, refusals),
            memory_truth_bytes: None,
            memory_overhead_bytes: None,
            enforced_by: match pages {
                Some(pages) if pages.control.is_held_by_driver(place) => Enforcer::Driver,
                _ => Enforcer::Shim,
            },
            memory_set_aside_bytes: pages.map_or(0, |pages| pages.control.is_set_aside(place)),
            compute: describe_compute(tenant, page, place, share),
        }
    });
    let processes = tenant.slots.iter().map(|(slot, holder)| {
        let held = tenant.shares.iter().enumerate().map(|(place, share)| {
            let units = books(place).map_or(0, |books| books.slot_units(*slot));
            ledger::bytes(units).min(share.device.memory_bytes)
        });
        ProcessInfo {
            pid: holder.process.pid,
            command: String::new(),
            memory_used_bytes: held.fold(0, u64::saturating_add),
        }
    });
    TenantInfo {
        name: tenant.name.clone(),
        id: tenant.id,
        owner_pid: tenant.owner.pid,
        devices: devices.collect(),
        processes: processes.collect(),
        container: tenant.container.as_ref().map(|it| it.info.clone()),
        is_paused: tenant.is_paused,
        is_overcommitted: tenant.is_overcommitted,
    }
}

/// What was refused, as the tenant's processes say.
fn refusals(page: &Refusals) -> RefusalsInfo {
    let function = |place: usize| {
        let known = Refusable::at(place);
        known.map_or("other", Refusable::name).to_owned()
    };
    let counts = page.by_function.iter().enumerate();
    let by_function = counts
        .map(|(place, count)| (function(place), count.load(Ordering::Relaxed)))
        .filter(|(_, count)| *count > 0)
        .collect();
    let sizes = REFUSED_UP_TO.iter().zip(&page.by_size);
    let by_size = sizes
        .map(|(most, count)| RefusedSize {
            up_to_bytes: (*most != u64::MAX).then_some(*most),
            count: count.load(Ordering::Relaxed),
        })
        .filter(|size| size.count > 0)
        .collect();
    let last = page.last.load(Ordering::Relaxed);
    let last = (last != 0).then(|| LastRefused::unpack(last));
    RefusalsInfo {
        by_function,
        by_size,
        last: last.map(|last| LastRefusal {
            function: function(usize::from(last.place)),
            bytes: last.bytes,
        }),
    }
}

/// What a tenant was promised of a device's time, and what its processes say; the lease and what was
/// charged are the arbiter's to add, see `Context::stand` of `status`.
fn describe_compute(
    tenant: &Tenant,
    page: Option<&UsagePage>,
    place: usize,
    share: &Share,
) -> ComputeInfo {
    let terms = share.terms();
    let mut info = ComputeInfo {
        guarantee_permille: terms.guarantee_permille,
        ceiling_permille: terms.ceiling_permille,
        weight: terms.weight,
        class: terms.class,
        ..ComputeInfo::default()
    };
    let slots = tenant
        .slots
        .keys()
        .filter_map(|slot| page?.slots.get(*slot as usize));
    let each = slots.filter_map(|slot| slot.work.get(place).zip(slot.moved.get(place)));
    for (work, moved) in each {
        let waiting = work.waiting.load(Ordering::Relaxed);
        info.waiting = info.waiting.saturating_add(waiting);
        let launches = work.launches.load(Ordering::Relaxed);
        info.launches = info.launches.saturating_add(launches);
        info.held = info.held.saturating_add(work.held.load(Ordering::Relaxed));
        info.longest_ns = info.longest_ns.max(work.longest_ns.load(Ordering::Relaxed));
        for (sum, word) in [
            (&mut info.copies, &moved.copies),
            (&mut info.copied_bytes, &moved.copied_bytes),
            (&mut info.fills, &moved.fills),
            (&mut info.filled_bytes, &moved.filled_bytes),
        ] {
            *sum = sum.saturating_add(word.load(Ordering::Relaxed));
        }
    }
    info
}

/// Puts NVML's account beside the tenant's own.
pub(super) fn compare(mut tenant: TenantInfo, sample: &Sample) -> TenantInfo {
    for device in &mut tenant.devices {
        let seen = sample.get(&device.uuid);
        let Some(listed) = seen.and_then(|seen| seen.processes.as_ref()) else {
            continue;
        };
        let pids = tenant.processes.iter().map(|process| process.pid);
        let truth = held_by(listed, pids);
        device.memory_truth_bytes = truth;
        device.memory_overhead_bytes =
            truth.map(|truth| truth.saturating_sub(device.memory_used_bytes));
    }
    tenant
}

/// Processes on a device that are no tenant's.
pub(super) fn strangers(sample: &Sample, tenants: &[TenantInfo], uuid: &str) -> Vec<StrangerInfo> {
    let is_known = |pid: u32| {
        let mut processes = tenants.iter().flat_map(|tenant| &tenant.processes);
        processes.any(|process| process.pid == pid)
    };
    let seen = sample.get(uuid);
    seen.and_then(|seen| seen.processes.as_ref())
        .into_iter()
        .flatten()
        .filter(|(pid, _)| !is_known(**pid))
        .map(|(pid, bytes)| StrangerInfo {
            pid: *pid,
            command: process::command(*pid),
            memory_used_bytes: *bytes,
        })
        .collect()
}

pub(super) fn name_commands(mut tenant: TenantInfo) -> TenantInfo {
    for process in &mut tenant.processes {
        process.command = process::command(process.pid);
    }
    tenant
}

/// NVML's number for a device, else the sum of the tenants' own.
pub(super) fn used_bytes(sample: &Sample, tenants: &[TenantInfo], uuid: &str) -> u64 {
    let seen = sample.get(uuid).map(|seen| seen.used_bytes);
    seen.unwrap_or_else(|| {
        let devices = tenants.iter().flat_map(|tenant| &tenant.devices);
        devices
            .filter(|device| device.uuid == uuid)
            .fold(0, |sum, device| {
                sum.saturating_add(device.memory_used_bytes)
            })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::devices::{Processes, Seen};

    #[test]
    fn what_a_stranger_holds_is_unknown_where_nvml_does_not_say() {
        let seen = Seen {
            used_bytes: 9,
            processes: Some(Processes::from([(u32::MAX, None), (u32::MAX - 1, Some(7))])),
        };
        let sample = Sample::from([("GPU-1".to_owned(), seen)]);
        let held: Vec<_> = strangers(&sample, &[], "GPU-1")
            .into_iter()
            .map(|stranger| (stranger.pid, stranger.memory_used_bytes))
            .collect();
        assert_eq!(held, [(u32::MAX - 1, Some(7)), (u32::MAX, None)]);
        assert!(strangers(&sample, &[], "GPU-2").is_empty());
    }
}
