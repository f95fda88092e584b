//! The audit: what NVML sees of each tenant beside what its account says, and what of its cap is set aside for
//! the difference.
//!
//! Account and NVML cannot be read at one instant. So the account is read before and after NVML's answer, and
//! the difference is believed only if nothing was reserved or released in between and the tenant's processes
//! are the same: then an allocation that is under way can only make the difference smaller. Where the tenant
//! never rests so long, or NVML is silent, what was set aside before stays.

use crate::devices::{Watch, held_by};
use crate::native::Native;
use crate::quota::Size;
use crate::state::Shared;
use ffi::sync::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How often.
///
/// 500 ms: a context that is made is set aside for before much else can happen, and NVML's answer for a node
/// full of GPUs takes some milliseconds.
const PERIOD: Duration = Duration::from_millis(500);

/// An answer older than this is of before the account was read.
const FRESH: Duration = Duration::from_millis(250);

/// Everything that the audit thread has.
#[derive(Debug)]
pub(crate) struct Audit {
    shared: Arc<Shared>,
    devices: Arc<Watch>,
    native: Arc<Native>,
    runtime: tokio::runtime::Runtime,
}

/// A tenant's account on one device, so that any change of it shows.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Account {
    uuid: String,
    /// The sum, and who changed it last.
    word: u64,
    used_bytes: u64,
    pids: Vec<u32>,
}

/// By tenant and place of the device.
type Accounts = BTreeMap<(u64, usize), Account>;

impl Audit {
    pub(crate) fn new(
        shared: Arc<Shared>,
        devices: Arc<Watch>,
        native: Arc<Native>,
    ) -> io::Result<Self> {
        Ok(Self {
            shared,
            devices,
            native,
            runtime: tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build()?,
        })
    }

    /// Runs until the daemon stops.
    pub(crate) fn run(self) {
        let mut over = BTreeSet::new();
        while !self.shared.is_stopping() {
            self.runtime.block_on(self.native.settle());
            self.look();
            self.tell_over(&mut over);
            std::thread::park_timeout(PERIOD);
        }
    }

    /// Says once of each tenant that has come to hold more than its cap, and once when it does no more.
    fn tell_over(&self, former: &mut BTreeSet<(u64, usize)>) {
        let state = self.shared.state();
        let mut now = BTreeSet::new();
        for tenant in state.registry.tenants() {
            let Some(pages) = state.pages.get(&tenant.id) else {
                continue;
            };
            for (place, share) in tenant.shares.iter().enumerate() {
                let is_over = pages.is_over_limit(place, share.limit_bytes);
                let (name, gpu) = (&tenant.name, share.device.index);
                match (is_over, former.contains(&(tenant.id, place))) {
                    (true, false) => tracing::warn!(
                        tenant = name,
                        gpu,
                        cap = %Size(share.limit_bytes),
                        "more is held than the cap allows: nothing more is given, nothing is taken away"
                    ),
                    (false, true) => tracing::info!(tenant = name, gpu, "below the cap again"),
                    _ => {}
                }
                if is_over {
                    now.insert((tenant.id, place));
                }
            }
        }
        *former = now;
    }

    fn look(&self) {
        let before = self.accounts();
        if before.is_empty() {
            return;
        }
        let word = self.runtime.block_on(self.devices.sample());
        if word.age.is_none_or(|age| age > FRESH) {
            return;
        }
        let after = self.accounts();
        let state = self.shared.state();
        for (key, account) in &before {
            let seen = word.sample.get(&account.uuid);
            let listed = seen.and_then(|seen| seen.processes.as_ref());
            let truth = listed.and_then(|listed| held_by(listed, account.pids.iter().copied()));
            let (Some(truth), true) = (truth, after.get(key) == Some(account)) else {
                continue;
            };
            let overhead = truth.saturating_sub(account.used_bytes);
            let mut bytes = overhead.max(self.shared.overhead_reserve_bytes);
            let (tenant, place) = *key;
            if let Some(pages) = state.pages.get(&tenant) {
                let known = state.registry.tenant(tenant);
                if known.is_some_and(|tenant| tenant.is_overcommitted) && account.used_bytes > 0 {
                    // NVML does not count what lies in the host's memory: what is left seems too little.
                    bytes = bytes.max(pages.control.is_set_aside(place));
                }
                pages.control.set_aside(place, bytes);
            }
        }
    }

    fn accounts(&self) -> Accounts {
        let state = self.shared.state();
        let mut accounts = Accounts::new();
        for tenant in state.registry.tenants() {
            let pages = state.pages.get(&tenant.id);
            let Some(usage) = pages.and_then(|pages| pages.usage.as_ref()) else {
                continue;
            };
            let page = usage.page();
            let pids: Vec<u32> = tenant
                .slots
                .values()
                .map(|holder| holder.process.pid)
                .collect();
            for (place, share) in tenant.shares.iter().enumerate() {
                let (Some(total), Some(books)) =
                    (page.totals.get(place), ledger::Books::of(page, place))
                else {
                    continue;
                };
                let account = Account {
                    uuid: share.device.uuid.clone(),
                    word: total.word.load(Ordering::Acquire),
                    used_bytes: ledger::bytes(books.held_units()),
                    pids: pids.clone(),
                };
                accounts.insert((tenant.id, place), account);
            }
        }
        accounts
    }
}
