//! What can still be promised of a device: memory, its own and the host's, and time.

use super::{Device, Refusal, Registry, Tenant};
use crate::arbiter::Class;
use crate::quota::Size;
use crate::terms::{Part, WHOLE_PERMILLE};

/// A cap that is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked {
    pub(super) bytes: u64,
    /// The cap that it takes the place of.
    pub(super) instead_of_bytes: u64,
    pub(super) is_overcommitted: bool,
    /// What other devices take of the host's budget by the same request.
    pub(super) lent_bytes: u64,
}

impl Registry {
    /// Sum of all caps on the device with this UUID, in bytes.
    pub fn promised_bytes(&self, uuid: &str) -> u64 {
        self.holdings(uuid)
            .fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// Whether `asked` permille of the time of `device`, in place of `instead_of`, can be guaranteed.
    pub(super) fn admit_time(
        &self,
        device: &Device,
        asked: u32,
        instead_of: u32,
    ) -> Result<(), Refusal> {
        let guarantees = || {
            self.tenants().flat_map(|tenant| {
                let shares = tenant.shares.iter();
                shares
                    .filter(|share| share.device.uuid == device.uuid)
                    .map(|share| (tenant.name.as_str(), share.compute.guarantee()))
                    .filter(|(_, guarantee)| *guarantee > 0)
            })
        };
        let all: u32 = guarantees().map(|(_, guarantee)| guarantee).sum();
        let free = WHOLE_PERMILLE.saturating_sub(all.saturating_sub(instead_of));
        if asked <= free {
            return Ok(());
        }
        let holders: Vec<String> = guarantees()
            .map(|(name, guarantee)| format!("{name}: {}", Part(guarantee)))
            .collect();
        Err(Refusal::NoTime {
            device: device.index,
            asked: Part(asked),
            free: Part(free),
            holders: holders.join(", "),
        })
    }

    /// Whether a tenant of this class may be overcommitted.
    pub(super) fn check_overcommitment(&self, class: Class) -> Result<(), Refusal> {
        if self.host_budget_bytes == 0 {
            return Err(Refusal::NoHostBudget);
        }
        if class == Class::Latency {
            return Err(Refusal::OvercommittedLatency);
        }
        Ok(())
    }

    /// Whether a cap can be promised on `device`; says how much more of the host's budget it takes.
    pub(super) fn admit(&self, device: &Device, asked: Asked) -> Result<u64, Refusal> {
        let promisable_bytes = self.promisable_bytes(device);
        let instead_of_bytes = asked.instead_of_bytes;
        // What an overcommitted tenant has gives way, so it takes nothing from whoever is not.
        let fixed_bytes = self.fixed_bytes(&device.uuid);
        let all_bytes = self.promised_bytes(&device.uuid) - instead_of_bytes;
        let lent_elsewhere: u64 = self
            .devices
            .iter()
            .filter(|other| other.uuid != device.uuid)
            .map(|other| self.lent_bytes(other))
            .sum();
        let budget_bytes = self
            .host_budget_bytes
            .saturating_sub(lent_elsewhere + asked.lent_bytes);
        let mut free_bytes = promisable_bytes
            .saturating_add(budget_bytes)
            .saturating_sub(all_bytes);
        if !asked.is_overcommitted {
            let fixed_free = promisable_bytes.saturating_sub(fixed_bytes - instead_of_bytes);
            free_bytes = free_bytes.min(fixed_free);
        }
        if asked.bytes <= free_bytes {
            let lent_bytes = (all_bytes + asked.bytes).saturating_sub(promisable_bytes);
            return Ok(lent_bytes.saturating_sub(self.lent_bytes(device)));
        }
        let holders: Vec<String> = self
            .holdings(&device.uuid)
            .map(|(tenant, bytes)| format!("{}: {}", tenant.name, Size(bytes)))
            .collect();
        Err(Refusal::NoRoom {
            device: device.index,
            asked_bytes: asked.bytes,
            free_bytes,
            promisable_bytes,
            budget: if asked.is_overcommitted {
                format!(" and {} of the host's memory", Size(self.host_budget_bytes))
            } else {
                String::new()
            },
            holders: if holders.is_empty() {
                String::new()
            } else {
                format!("; held by {}", holders.join(", "))
            },
        })
    }

    /// What may be promised of a device without the host's memory.
    fn promisable_bytes(&self, device: &Device) -> u64 {
        // Exact up to 2^53 bytes, and a float beyond the largest integer becomes that.
        (device.memory_bytes as f64 * self.overcommit_ratio) as u64
    }

    /// Sum of the caps on a device of those that are not overcommitted.
    fn fixed_bytes(&self, uuid: &str) -> u64 {
        let fixed = self
            .holdings(uuid)
            .filter(|(tenant, _)| !tenant.is_overcommitted);
        fixed.fold(0, |sum, (_, bytes)| sum.saturating_add(bytes))
    }

    /// What of the host's budget a device's tenants may take.
    fn lent_bytes(&self, device: &Device) -> u64 {
        self.promised_bytes(&device.uuid)
            .saturating_sub(self.promisable_bytes(device))
    }

    /// Who was promised how much of the device with this UUID.
    fn holdings<'r>(&'r self, uuid: &'r str) -> impl Iterator<Item = (&'r Tenant, u64)> {
        self.tenants().flat_map(move |tenant| {
            let shares = tenant.shares.iter();
            shares
                .filter(move |share| share.device.uuid == uuid)
                .map(move |share| (tenant, share.limit_bytes))
        })
    }
}
