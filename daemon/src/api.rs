//! What the status socket speaks: the JSON bodies, shared by the daemon and by its clients.
//!
//! Fields are only ever added; a client ignores those that it does not know.

use crate::arbiter::Class;
use crate::terms::{TermsError, Wanted};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Body of `GET /v1/status`: everything at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Version of the daemon.
    pub version: String,
    /// The daemon itself.
    pub daemon: DaemonInfo,
    /// The driver that tenants get.
    pub driver: DriverInfo,
    /// What NVML says beside the tenants' own numbers.
    #[serde(default)]
    pub audit: AuditInfo,
    /// The node's devices, by index.
    pub devices: Vec<DeviceInfo>,
    /// All tenants, oldest first.
    pub tenants: Vec<TenantInfo>,
}

/// How current NVML's numbers are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditInfo {
    /// Age of its last answer, in milliseconds; absent: there is none.
    pub age_ms: Option<u64>,
    /// Whether it has been silent for so long that its numbers are not shown any more.
    pub is_stale: bool,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DaemonInfo {
    /// Its process id.
    pub pid: u32,
    /// Whole seconds since it started.
    pub uptime_seconds: u64,
    /// Its runtime folder.
    pub runtime_dir: String,
}

/// The driver that tenants get, and where it lies.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverInfo {
    /// `real` or `stand-in`.
    pub kind: DriverKind,
    /// Absolute path of `libcuda.so.1`, where the daemon knows it.
    pub libcuda: Option<String>,
    /// Absolute path of `libnvidia-ml.so.1`, where the daemon knows it.
    pub libnvml: Option<String>,
    /// With the stand-in: the socket of the process that is the hardware.
    pub gpu_socket: Option<String>,
}

/// Which of the two drivers it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DriverKind {
    /// NVIDIA's own.
    Real,
    /// The one that needs no hardware.
    StandIn,
}

/// One device of the node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceInfo {
    /// Its NVML index.
    pub index: u32,
    /// Its UUID, as NVML spells it.
    pub uuid: String,
    /// Its product name.
    pub name: String,
    /// Its size, in bytes.
    pub memory_bytes: u64,
    /// Sum of all tenants' caps on it, in bytes.
    pub memory_promised_bytes: u64,
    /// What is in use on it by NVML's account, in bytes; by the tenants' own where NVML is silent.
    pub memory_used_bytes: u64,
    /// Processes on it that are no tenant's, by NVML's account: nobody holds them to a cap.
    #[serde(default)]
    pub strangers: Vec<StrangerInfo>,
}

/// One tenant. Also the body of `GET /v1/tenants/{name}` and the answer to `PATCH`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantInfo {
    /// Its name, unique among live tenants.
    pub name: String,
    /// Its number, unique in this daemon's ledger.
    pub id: u64,
    /// The process that it was registered for.
    pub owner_pid: u32,
    /// Its devices, in the order of its pages.
    pub devices: Vec<TenantDeviceInfo>,
    /// Its attached processes.
    pub processes: Vec<ProcessInfo>,
    /// The container that it is, if it is one.
    #[serde(default)]
    pub container: Option<ContainerInfo>,
    /// Whether an operator holds all its launches.
    #[serde(default)]
    pub is_paused: bool,
    /// Whether its memory may lie in the host's where a device is full.
    #[serde(default)]
    pub is_overcommitted: bool,
}

/// A container, as its engine knows it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ContainerInfo {
    /// Its id.
    pub id: String,
    /// The lease that it was started with, as `sluice cdi lease` named it.
    #[serde(default)]
    pub lease: Option<String>,
}

/// A tenant's part of one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TenantDeviceInfo {
    /// NVML index of the device.
    pub index: u32,
    /// UUID of the device.
    pub uuid: String,
    /// The cap, in bytes.
    pub memory_limit_bytes: u64,
    /// What its processes hold together, in bytes.
    pub memory_used_bytes: u64,
    /// Whether that and what is set aside is more than the cap.
    #[serde(default)]
    pub is_over_limit: bool,
    /// Most that they ever held together, in bytes.
    pub memory_peak_bytes: u64,
    /// Requests refused because of the cap.
    pub oom_refusals: u64,
    /// Size of the last refused request, in bytes.
    pub last_refused_bytes: u64,
    /// What was refused, by function and by size, and the last of it.
    #[serde(default)]
    pub refusals: RefusalsInfo,
    /// What its processes hold by NVML's account, in bytes; absent where NVML is silent.
    #[serde(default)]
    pub memory_truth_bytes: Option<u64>,
    /// What of that no allocation explains, in bytes: contexts, code, what is not counted.
    #[serde(default)]
    pub memory_overhead_bytes: Option<u64>,
    /// Who holds the cap: `shim`, the library in the tenant's processes, or `driver`, the driver as well.
    #[serde(default)]
    pub enforced_by: Enforcer,
    /// What of the cap is set aside for that, in bytes: not for allocations.
    #[serde(default)]
    pub memory_set_aside_bytes: u64,
    /// Its share of the device's time.
    #[serde(default)]
    pub compute: ComputeInfo,
}

/// Requests refused because of the cap.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusalsInfo {
    /// How many, by the function that asked; only those that were refused.
    pub by_function: BTreeMap<String, u32>,
    /// How many, by size; only sizes that were refused.
    pub by_size: Vec<RefusedSize>,
    /// The last one.
    pub last: Option<LastRefusal>,
}

/// Refused requests of about one size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefusedSize {
    /// Largest size that counts here, in bytes; absent: all above the size before.
    pub up_to_bytes: Option<u64>,
    /// How many.
    pub count: u32,
}

/// A refused request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRefusal {
    /// The function that asked.
    pub function: String,
    /// What it asked for, in bytes.
    pub bytes: u64,
}

/// Who holds a tenant to its cap.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Enforcer {
    /// The library in the tenant's processes.
    #[default]
    Shim,
    /// The driver as well: also programs without our library, contexts and code.
    Driver,
}

/// A tenant's share of one device's time.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeInfo {
    /// What it is owed while it has work, in permille of the device.
    pub guarantee_permille: u32,
    /// What it may have at most, in permille; 1000: all of it.
    pub ceiling_permille: u32,
    /// What is left is shared by weight.
    pub weight: u32,
    /// `latency`, `standard` or `batch`.
    pub class: Class,
    /// What it was charged while it had to share, in nanoseconds.
    pub used_ns: u64,
    /// The same of the last second, in permille of it.
    pub share_permille: u32,
    /// `unshared`: nobody else is on the device. Else its lease: `open`, `leased`, `held`, `exempt`, `paused`.
    pub lease: LeaseState,
    /// Threads that wait for the lease now.
    pub waiting: u32,
    /// Launches that a lease let through, and those of them that had to wait for it.
    pub launches: u64,
    /// See `launches`.
    pub held: u64,
    /// Longest unit of work seen, in nanoseconds: what a neighbour may have to wait for.
    pub longest_ns: u64,
    /// Copies that its processes made so far, shared or not.
    pub copies: u64,
    /// Their bytes.
    pub copied_bytes: u64,
    /// The same of fills, `cuMemset…`.
    pub fills: u64,
    /// Their bytes.
    pub filled_bytes: u64,
}

/// A tenant's right to submit work to a device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LeaseState {
    /// Nobody else is on the device, and nothing is measured.
    #[default]
    Unshared,
    /// It may submit at will.
    Open,
    /// It is its turn.
    Leased,
    /// It is another's turn.
    Held,
    /// It is never held: its devices may wait for each other.
    Exempt,
    /// An operator holds it.
    Paused,
}

/// An attached process of a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its process id, as the daemon sees it.
    pub pid: u32,
    /// The command's short name; empty where the process has just gone.
    pub command: String,
    /// What it holds on all devices together, in bytes.
    pub memory_used_bytes: u64,
}

/// A process on a device that is no tenant's.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StrangerInfo {
    /// Its process id, as the daemon sees it.
    pub pid: u32,
    /// The command's short name; empty where the process has just gone.
    pub command: String,
    /// What it holds on the device, in bytes; absent where NVML does not say.
    #[serde(default)]
    pub memory_used_bytes: Option<u64>,
}

/// Body of `POST /v1/tenants`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// What to call it; absent: `tenant-<number>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Cap on each device, in the forms of [`crate::quota::Request::parse`].
    pub memory: String,
    /// Whether its memory may lie in the host's where a device is full.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub memory_overcommit: bool,
    /// Which devices; absent: those that `memory` names, else all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<GpuName>>,
    /// The process that the tenant lives as long as.
    pub owner_pid: u32,
    /// The container whose first process `owner_pid` is; its processes are known by where they stand and
    /// need no token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<ContainerInfo>,
    /// Its share of GPU time.
    #[serde(flatten)]
    pub compute: ComputeRequest,
}

/// A share of GPU time, in the forms of [`crate::terms`]; what is absent stays as it is, or is the default.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ComputeRequest {
    /// The guarantee, such as `30%`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute: Option<String>,
    /// The ceiling, such as `50%`, or `max`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compute_max: Option<String>,
    /// The weight, 1 to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<u32>,
    /// The class: `latency`, `standard` or `batch`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
}

impl ComputeRequest {
    /// What it asks for.
    ///
    /// # Errors
    /// A sentence that names the value and what is accepted.
    pub fn parse(&self) -> Result<Wanted, TermsError> {
        Wanted::parse(
            self.compute.as_deref(),
            self.compute_max.as_deref(),
            self.weight,
            self.class.as_deref(),
        )
    }
}

/// A device as a user names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum GpuName {
    /// By NVML index.
    Index(u32),
    /// By UUID, or by index in digits.
    Text(String),
}

impl From<&str> for GpuName {
    /// Digits are an index, all else a UUID.
    fn from(text: &str) -> Self {
        text.parse()
            .map_or_else(|_| Self::Text(text.to_owned()), Self::Index)
    }
}

/// Answer to `POST /v1/tenants`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Registered {
    /// Its name.
    pub name: String,
    /// Its number.
    pub id: u64,
    /// What its processes prove themselves with: 32 hexadecimal digits.
    pub token: String,
    /// Where they attach.
    pub attach_socket: String,
    /// Its devices with their caps.
    pub devices: Vec<TenantDeviceInfo>,
}

/// Body of `PATCH /v1/tenants/{name}`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ChangeRequest {
    /// The new cap, in the forms of [`crate::quota::Request::parse`]; absent: as it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<String>,
    /// Which of the tenant's devices it is for; absent: those that `memory` names, else all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuName>,
    /// The new share of GPU time.
    #[serde(flatten)]
    pub compute: ComputeRequest,
}

/// Body of `GET /v1/health`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Whether the daemon has found its devices and takes registrations.
    pub is_ready: bool,
    /// Version of the daemon.
    pub version: String,
}

/// Body of every answer that is not a success.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// One sentence.
    pub error: String,
}
