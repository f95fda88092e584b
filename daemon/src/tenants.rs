//! The registry: who the tenants are, what they were promised, and which slots their processes hold.
//!
//! Pure: values in, values out. Pages, sockets, processes and the clock are the callers'.

mod admission;
mod refusal;

use crate::api::{ContainerInfo, GpuName};
use crate::arbiter::Terms;
use crate::quota::{Memory, Request};
use crate::terms::Wanted;
use admission::Asked;
use ffi::wire::{MAX_DEVICES, MAX_SLOTS, Token};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

pub use refusal::Refusal;

/// Longest name of a tenant, in bytes: what fits a host name.
const MAX_NAME_BYTES: usize = 63;

/// One device of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// NVML index.
    pub index: u32,
    /// UUID, as NVML spells it.
    pub uuid: String,
    /// Product name.
    pub name: String,
    /// Size, in bytes.
    pub memory_bytes: u64,
}

/// A process, told apart from a later one with the same number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessId {
    /// Process id in the daemon's PID namespace.
    pub pid: u32,
    /// Its start, in clock ticks since boot.
    pub start_ticks: u64,
}

/// A process that holds a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotHolder {
    /// The process.
    pub process: ProcessId,
    /// The slot's generation since it holds it.
    pub generation: u32,
}

/// What a tenant was promised on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// The device.
    pub device: Device,
    /// The cap, in bytes.
    pub limit_bytes: u64,
    /// What was asked for of its time.
    #[serde(default)]
    pub compute: Wanted,
}

impl Share {
    /// The terms of its time.
    pub fn terms(&self) -> Terms {
        // Checked when it was made; a ledger that says otherwise means "no promise".
        self.compute.terms().unwrap_or_default()
    }
}

/// One tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tenant {
    /// Its number; never used again.
    pub id: u64,
    /// Its name, unique among live tenants.
    pub name: String,
    /// What its processes prove themselves with.
    pub token: Token,
    /// What its pages carry.
    pub nonce: [u8; 16],
    /// The process that it was registered for.
    pub owner: ProcessId,
    /// Its devices, in the order of its pages.
    pub shares: Vec<Share>,
    /// Who holds which slot.
    pub slots: BTreeMap<u32, SlotHolder>,
    /// The generation that the next change of hands gets. One count for all slots, so that no two
    /// holders of any slot ever share a generation.
    pub next_generation: u32,
    /// The container that it is, if it is one.
    #[serde(default)]
    pub container: Option<Container>,
    /// Whether an operator holds all its launches.
    #[serde(default)]
    pub is_paused: bool,
    /// Whether its memory may lie in the host's where the device is full.
    #[serde(default)]
    pub is_overcommitted: bool,
    /// Whether the owner still lives.
    #[serde(skip)]
    pub is_owner_alive: bool,
    /// Connections that hold no slot.
    #[serde(skip)]
    pub observers: u32,
}

impl Tenant {
    /// Whether nobody is left: no owner and no process.
    pub fn is_over(&self) -> bool {
        !self.is_owner_alive && self.slots.is_empty() && self.observers == 0
    }

    /// Gives the lowest free slot to `process`; `None`: all are taken.
    pub fn take_slot(&mut self, process: ProcessId) -> Option<(u32, SlotHolder)> {
        // Both are in order, so the first that differ is the lowest free one.
        let mut free = 0;
        for slot in self.slots.keys() {
            if *slot != free {
                break;
            }
            free += 1;
        }
        if free as usize >= MAX_SLOTS {
            return None;
        }
        let holder = SlotHolder {
            process,
            generation: self.generation(),
        };
        self.slots.insert(free, holder);
        Some((free, holder))
    }

    /// A generation that no slot had before.
    pub fn generation(&mut self) -> u32 {
        let generation = self.next_generation;
        // Zero is left out: it is what a slot that was never used has.
        self.next_generation = generation.wrapping_add(1).max(1);
        generation
    }
}

/// A container, and by what its processes are told from others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Container {
    /// What its engine calls it.
    pub info: ContainerInfo,
    /// The control group of its first process; its other processes are in it or below.
    pub control_group: Option<String>,
    /// Inode of its PID namespace, where it has one of its own.
    pub pid_namespace: Option<u64>,
}

impl Container {
    /// Whether a process that stands there is one of its.
    pub fn has(&self, control_group: Option<&str>, pid_namespace: Option<u64>) -> bool {
        let is_inside = self
            .control_group
            .as_deref()
            .zip(control_group)
            .is_some_and(|(own, path)| {
                path.strip_prefix(own)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            });
        is_inside || (self.pid_namespace.is_some() && self.pid_namespace == pid_namespace)
    }
}

/// What a new tenant is to be; made by the caller, since names, tokens and processes are the world's.
#[derive(Debug, Clone)]
pub struct NewTenant {
    /// Its name; `None`: `tenant-<number>`.
    pub name: Option<String>,
    /// Its caps.
    pub memory: Request,
    /// Whether its memory may lie in the host's where the device is full.
    pub is_overcommitted: bool,
    /// Its share of GPU time, the same on each device.
    pub compute: Wanted,
    /// Its devices; `None`: those that `memory` names, else all.
    pub gpus: Option<Vec<GpuName>>,
    /// What it lives as long as.
    pub owner: ProcessId,
    /// The container that it is, if it is one.
    pub container: Option<Container>,
    /// Sixteen random bytes.
    pub token: Token,
    /// Sixteen random bytes.
    pub nonce: [u8; 16],
}

/// All tenants and all devices.
#[derive(Debug, Clone)]
pub struct Registry {
    devices: Vec<Device>,
    overcommit_ratio: f64,
    host_budget_bytes: u64,
    tenants: BTreeMap<u64, Tenant>,
    next_id: u64,
}

impl Registry {
    /// A registry without devices or tenants. `overcommit_ratio` is above zero; caps of overcommitted tenants
    /// may be more than that by `host_budget_bytes`, all devices together.
    pub fn new(overcommit_ratio: f64, host_budget_bytes: u64) -> Self {
        Self {
            devices: Vec::new(),
            overcommit_ratio,
            host_budget_bytes,
            tenants: BTreeMap::new(),
            next_id: 1,
        }
    }

    /// Takes over the tenants of the daemon before; their promises stand, whatever the ratio is now.
    pub fn restore(&mut self, tenants: Vec<Tenant>, next_id: u64) {
        for tenant in tenants {
            self.next_id = self.next_id.max(tenant.id.saturating_add(1));
            self.tenants.insert(tenant.id, tenant);
        }
        self.next_id = self.next_id.max(next_id);
    }

    /// Sets what devices there are.
    pub fn set_devices(&mut self, devices: Vec<Device>) {
        self.devices = devices;
    }

    /// All devices, by index.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The number of the next tenant.
    pub fn next_id(&self) -> u64 {
        self.next_id
    }

    /// All tenants, oldest first.
    pub fn tenants(&self) -> impl Iterator<Item = &Tenant> {
        self.tenants.values()
    }

    /// The tenant with this number.
    pub fn tenant(&self, id: u64) -> Option<&Tenant> {
        self.tenants.get(&id)
    }

    /// The tenant with this number, to be changed.
    pub fn tenant_mut(&mut self, id: u64) -> Option<&mut Tenant> {
        self.tenants.get_mut(&id)
    }

    /// The tenant with this name.
    ///
    /// # Errors
    /// [`Refusal::NoSuchTenant`], which names those that there are.
    pub fn named(&self, name: &str) -> Result<&Tenant, Refusal> {
        self.tenants()
            .find(|tenant| tenant.name == name)
            .ok_or_else(|| Refusal::NoSuchTenant {
                name: name.to_owned(),
                known: self.tenants().map(|tenant| tenant.name.clone()).collect(),
            })
    }

    /// The tenant whose token this is. Takes equally long for every wrong token.
    pub fn by_token(&self, token: &Token) -> Option<&Tenant> {
        self.tenants().fold(None, |found, tenant| {
            if is_equal(&tenant.token, token) {
                Some(tenant)
            } else {
                found
            }
        })
    }

    /// The container in which a process stands; the innermost where one is in another.
    pub fn by_place(
        &self,
        control_group: Option<&str>,
        pid_namespace: Option<u64>,
    ) -> Option<&Tenant> {
        let depth = |tenant: &&Tenant| {
            let container = tenant.container.as_ref();
            container
                .and_then(|container| container.control_group.as_ref())
                .map_or(0, String::len)
        };
        self.tenants()
            .filter(|tenant| {
                let container = tenant.container.as_ref();
                container.is_some_and(|container| container.has(control_group, pid_namespace))
            })
            .max_by_key(depth)
    }

    /// Removes a tenant and so frees its promise and its name.
    pub fn remove(&mut self, id: u64) -> Option<Tenant> {
        self.tenants.remove(&id)
    }

    /// Adds a tenant, if its name is free and its caps can be promised. Its owner counts as alive.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn register(&mut self, new: NewTenant) -> Result<&Tenant, Refusal> {
        let id = self.next_id;
        let name = new.name.unwrap_or_else(|| format!("tenant-{id}"));
        if !is_name(&name) {
            return Err(Refusal::BadName { name });
        }
        if let Some(container) = &new.container {
            let id = &container.info.id;
            let is_it = |tenant: &&Tenant| {
                let container = tenant.container.as_ref();
                container.is_some_and(|container| container.info.id == *id)
            };
            if let Some(holder) = self.tenants().find(is_it) {
                return Err(Refusal::ContainerTaken {
                    id: id.clone(),
                    name: holder.name.clone(),
                });
            }
        }
        if let Some(holder) = self.tenants().find(|tenant| tenant.name == name) {
            let owner = holder.owner.pid;
            return Err(Refusal::NameTaken { name, owner });
        }
        let mut shares = self.shares(&new.memory, new.gpus.as_deref())?;
        let class = new.compute.terms()?.class;
        if new.is_overcommitted {
            self.check_overcommitment(class)?;
        }
        // Devices share the budget, so each is judged with what the ones before it take of that.
        let mut lent_bytes = 0;
        for share in &mut shares {
            share.compute = new.compute;
            let asked = Asked {
                bytes: share.limit_bytes,
                instead_of_bytes: 0,
                is_overcommitted: new.is_overcommitted,
                lent_bytes,
            };
            lent_bytes += self.admit(&share.device, asked)?;
            self.admit_time(&share.device, new.compute.guarantee(), 0)?;
        }
        self.next_id = id.saturating_add(1);
        Ok(self.tenants.entry(id).or_insert(Tenant {
            id,
            name,
            token: new.token,
            nonce: new.nonce,
            owner: new.owner,
            shares,
            slots: BTreeMap::new(),
            next_generation: 1,
            container: new.container,
            is_paused: false,
            is_overcommitted: new.is_overcommitted,
            is_owner_alive: true,
            observers: 0,
        }))
    }

    /// Changes a tenant's caps, on `gpu` alone or on each device that `memory` is for, and its share of GPU
    /// time, on `gpu` alone or on each device. A cap may fall below what is in use.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn change(
        &mut self,
        name: &str,
        memory: Option<&Request>,
        compute: Wanted,
        gpu: Option<&GpuName>,
    ) -> Result<&Tenant, Refusal> {
        let tenant = self.named(name)?;
        let id = tenant.id;
        let is_overcommitted = tenant.is_overcommitted;
        let mut shares = tenant.shares.clone();
        if let Some(memory) = memory {
            self.change_memory(&mut shares, memory, gpu, is_overcommitted)?;
        }
        if !compute.is_empty() {
            self.change_time(&mut shares, compute, gpu)?;
            for share in shares.iter().filter(|_| is_overcommitted) {
                self.check_overcommitment(share.compute.terms()?.class)?;
            }
        }
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.shares = shares;
        }
        self.named(name)
    }

    /// Holds all launches of a tenant, or lets them go.
    ///
    /// # Errors
    /// There is no such tenant.
    pub fn pause(&mut self, name: &str, is_paused: bool) -> Result<&Tenant, Refusal> {
        let id = self.named(name)?.id;
        if let Some(tenant) = self.tenants.get_mut(&id) {
            tenant.is_paused = is_paused;
        }
        self.named(name)
    }

    fn change_time(
        &self,
        shares: &mut [Share],
        compute: Wanted,
        gpu: Option<&GpuName>,
    ) -> Result<(), Refusal> {
        let own: Vec<Device> = shares.iter().map(|share| share.device.clone()).collect();
        let only = gpu.map(|gpu| find(&own, gpu)).transpose()?;
        for (place, share) in shares.iter_mut().enumerate() {
            if only.is_some_and(|only| only != place) {
                continue;
            }
            let new = compute.over(share.compute);
            new.terms()?;
            if new.guarantee() > share.compute.guarantee() {
                self.admit_time(&share.device, new.guarantee(), share.compute.guarantee())?;
            }
            share.compute = new;
        }
        Ok(())
    }

    fn change_memory(
        &self,
        shares: &mut [Share],
        memory: &Request,
        gpu: Option<&GpuName>,
        is_overcommitted: bool,
    ) -> Result<(), Refusal> {
        let own: Vec<Device> = shares.iter().map(|share| share.device.clone()).collect();
        let mut changes: Vec<(usize, Memory)> = Vec::new();
        match (memory, gpu) {
            (Request::Every(memory), Some(gpu)) => changes.push((find(&own, gpu)?, *memory)),
            (Request::Every(memory), None) => {
                changes.extend((0..own.len()).map(|place| (place, *memory)));
            }
            (Request::Each(caps), None) => {
                for (device, memory) in caps {
                    changes.push((find(&own, &GpuName::from(device.as_str()))?, *memory));
                }
            }
            (Request::Each(_), Some(_)) => {
                return Err(Refusal::BadDevices(
                    "a list of caps by device names its devices itself; leave the device out"
                        .to_owned(),
                ));
            }
        }
        let mut lent_bytes = 0;
        for (place, memory) in changes {
            let Some(share) = shares.get_mut(place) else {
                continue;
            };
            let limit_bytes = memory.on(share.device.index, share.device.memory_bytes)?;
            if limit_bytes > share.limit_bytes {
                let asked = Asked {
                    bytes: limit_bytes,
                    instead_of_bytes: share.limit_bytes,
                    is_overcommitted,
                    lent_bytes,
                };
                lent_bytes += self.admit(&share.device, asked)?;
            }
            share.limit_bytes = limit_bytes;
        }
        Ok(())
    }

    /// The shares that a new tenant asks for, each within its device.
    fn shares(&self, memory: &Request, gpus: Option<&[GpuName]>) -> Result<Vec<Share>, Refusal> {
        let mut places: Vec<(usize, Option<Memory>)> = Vec::new();
        if let Request::Each(caps) = memory {
            for (device, cap) in caps {
                let place = find(&self.devices, &GpuName::from(device.as_str()))?;
                places.push((place, Some(*cap)));
            }
        }
        let named = match gpus {
            Some(gpus) => gpus
                .iter()
                .map(|gpu| find(&self.devices, gpu))
                .collect::<Result<_, _>>()?,
            None if places.is_empty() => (0..self.devices.len()).collect::<Vec<_>>(),
            None => places.iter().map(|(place, _)| *place).collect(),
        };
        let mut shares = Vec::new();
        for place in &named {
            let cap = match memory {
                Request::Every(cap) => Some(*cap),
                Request::Each(_) => {
                    let listed = places.iter().find(|(listed, _)| listed == place);
                    listed.and_then(|(_, cap)| *cap)
                }
            };
            let (Some(device), Some(cap)) = (self.devices.get(*place), cap) else {
                return Err(Refusal::BadDevices(format!(
                    "the list of caps says nothing about device {place}, which was asked for"
                )));
            };
            shares.push(Share {
                device: device.clone(),
                limit_bytes: cap.on(device.index, device.memory_bytes)?,
                compute: Wanted::default(),
            });
        }
        if places.iter().any(|(place, _)| !named.contains(place)) {
            return Err(Refusal::BadDevices(
                "the list of caps names a device that was not asked for".to_owned(),
            ));
        }
        let mut once = named.clone();
        once.sort_unstable();
        once.dedup();
        if once.len() != named.len() || once.is_empty() || once.len() > MAX_DEVICES {
            return Err(Refusal::BadDevices(format!(
                "a tenant has from 1 to {MAX_DEVICES} different devices; {} were asked for",
                once.len()
            )));
        }
        Ok(shares)
    }
}

/// The place of the device that `name` names. A UUID may be cut short where it stays unique, as
/// `CUDA_VISIBLE_DEVICES` allows.
fn find(devices: &[Device], name: &GpuName) -> Result<usize, Refusal> {
    let mut found = devices.iter().enumerate().filter(|(_, device)| match name {
        GpuName::Index(index) => device.index == *index,
        GpuName::Text(text) => match text.parse::<u32>() {
            Ok(index) => device.index == index,
            Err(_) => {
                text.len() > "GPU-".len()
                    && device
                        .uuid
                        .to_ascii_lowercase()
                        .starts_with(&text.to_ascii_lowercase())
            }
        },
    });
    match (found.next(), found.next()) {
        (Some((place, _)), None) => Ok(place),
        _ => Err(Refusal::UnknownDevice {
            name: match name {
                GpuName::Index(index) => index.to_string(),
                GpuName::Text(text) => text.clone(),
            },
            known: devices
                .iter()
                .map(|device| format!("{} ({})", device.index, device.uuid))
                .collect::<Vec<_>>()
                .join(", "),
        }),
    }
}

fn is_name(name: &str) -> bool {
    (1..=MAX_NAME_BYTES).contains(&name.len())
        && name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_'))
}

/// Whether two tokens are equal, in a time that does not tell where they differ.
fn is_equal(one: &Token, other: &Token) -> bool {
    let differing = one
        .iter()
        .zip(other)
        .fold(0u8, |bits, (one, other)| bits | (one ^ other));
    std::hint::black_box(differing) == 0
}

#[cfg(test)]
mod tests;
