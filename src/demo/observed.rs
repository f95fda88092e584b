//! What the demo has seen so far: figures only, from which the verdict follows.

use super::event::{Event, View};
use super::shares::Shares;
use daemon::api::Status;
use std::collections::BTreeMap;

/// Everything seen, of all tenants.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    /// The tenants, in the order of their start.
    pub(crate) tenants: Vec<Tenant>,
    /// The daemon's death and what followed.
    pub(crate) restart: Restart,
    /// Whether nothing was left on the device when the tenants had ended; where that is known.
    pub(crate) left_bytes: Option<u64>,
    /// The second act.
    pub(crate) shares: Shares,
}

/// One tenant.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tenant {
    /// Its name.
    pub(crate) name: &'static str,
    /// Its cap.
    pub(crate) cap_bytes: u64,
    /// What it held when last asked.
    pub(crate) used_bytes: u64,
    /// The most that the daemon knows it to have held.
    pub(crate) peak_bytes: u64,
    /// The most that the hardware was ever seen to hold for it, where it tells.
    pub(crate) hardware_peak_bytes: Option<u64>,
    /// How often the daemon knows it to have been refused.
    pub(crate) refused: u64,
    /// What it saw at its start.
    pub(crate) view: Option<View>,
    /// Whether it ever saw anything else.
    pub(crate) saw_otherwise: bool,
    /// Refusals that it told of.
    pub(crate) refusals: u64,
    /// Those that were not the driver's out-of-memory, or that changed something.
    pub(crate) unclean_refusals: u64,
    /// Retries that went through.
    pub(crate) retries: u64,
    /// Deaths of its processes: bytes held, microseconds until they were usable.
    pub(crate) gave_back: Vec<(u64, u64)>,
    /// Rounds finished.
    pub(crate) rounds: u64,
    /// Kernels launched.
    pub(crate) launches: u64,
    /// What should not have happened.
    pub(crate) troubles: Vec<String>,
}

/// A daemon that dies and is replaced.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Restart {
    /// Whether the next daemon was started.
    pub(crate) happened: bool,
    /// Milliseconds from its start until it had taken over every tenant.
    pub(crate) taken_over_ms: Option<u64>,
    /// Rounds that the tenants finished while there was none.
    pub(crate) rounds_without: u64,
    /// Requests over a cap that were refused while there was none.
    pub(crate) refusals_without: u64,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: u32 = ffi::driver::CUresult::CUDA_ERROR_OUT_OF_MEMORY.0;

impl Tenant {
    /// A tenant of which nothing is known yet.
    pub(crate) fn new(name: &'static str, cap_bytes: u64) -> Self {
        Self {
            name,
            cap_bytes,
            ..Self::default()
        }
    }

    /// Takes in what the tenant says.
    pub(crate) fn hear(&mut self, event: Event) {
        match event {
            Event::Sees(view) => self.view = Some(view),
            Event::SeesOtherwise(_) => self.saw_otherwise = true,
            Event::Progress { rounds, launches } => {
                self.rounds = rounds;
                self.launches = launches;
            }
            Event::Refused { code, is_clean, .. } => {
                self.refusals += 1;
                self.unclean_refusals += u64::from(code != OUT_OF_MEMORY || !is_clean);
            }
            Event::Retried { .. } => self.retries += 1,
            Event::GaveBack { bytes, after_us } => self.gave_back.push((bytes, after_us)),
            Event::Trouble { what } => self.troubles.push(what),
            // A worker speaks to its own parent only.
            Event::Holding { .. } => {}
        }
    }
}

impl Observed {
    /// Takes in what the daemon says, and what the hardware says that each process holds.
    pub(crate) fn see(&mut self, status: &Status, by_process: Option<&BTreeMap<u32, u64>>) {
        for tenant in &mut self.tenants {
            let Some(told) = status.tenants.iter().find(|told| told.name == tenant.name) else {
                tenant.used_bytes = 0;
                continue;
            };
            for device in &told.devices {
                tenant.used_bytes = device.memory_used_bytes;
                tenant.peak_bytes = tenant.peak_bytes.max(device.memory_peak_bytes);
                tenant.refused = tenant.refused.max(device.oom_refusals);
            }
            if let Some(by_process) = by_process {
                let pids = told.processes.iter().map(|process| process.pid);
                let held = pids.filter_map(|pid| by_process.get(&pid)).sum();
                tenant.hardware_peak_bytes = tenant.hardware_peak_bytes.max(Some(held));
            }
        }
    }

    /// Whether `status` has every tenant, each with a process.
    pub(crate) fn are_all_in(&self, status: &Status) -> bool {
        self.tenants.iter().all(|tenant| {
            let told = status.tenants.iter().find(|told| told.name == tenant.name);
            told.is_some_and(|told| !told.processes.is_empty())
        })
    }

    /// Rounds of all tenants together.
    pub(crate) fn rounds(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.rounds).sum()
    }

    /// Refusals of all tenants together.
    pub(crate) fn refusals(&self) -> u64 {
        self.tenants.iter().map(|tenant| tenant.refusals).sum()
    }
}
