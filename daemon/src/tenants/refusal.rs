//! Why the registry says no, in sentences for people.

use crate::quota::{QuotaError, Size};
use crate::terms::{Part, TermsError};

/// Why the registry said no.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The cap itself is wrong.
    #[error("{0}")]
    Quota(#[from] QuotaError),
    /// The share of GPU time itself is wrong.
    #[error("{0}")]
    Terms(#[from] TermsError),
    /// The guarantee would be one too many.
    #[error(
        "device {device} cannot guarantee {asked} of its time: {free} are free; held by {holders}"
    )]
    NoTime {
        /// Index of the device.
        device: u32,
        /// What was asked for.
        asked: Part,
        /// What is still free.
        free: Part,
        /// Who holds the rest: `a: 60%, b: 30%`.
        holders: String,
    },
    /// The name cannot be one.
    #[error(
        "\"{name}\" cannot name a tenant; accepted are 1 to 63 letters, digits, dots, dashes and \
         underscores, beginning with a letter or digit"
    )]
    BadName {
        /// The name.
        name: String,
    },
    /// The name is in use.
    #[error(
        "a tenant named \"{name}\" is alive already (owner: process {owner}); choose another name"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Process id of the tenant's owner.
        owner: u32,
    },
    /// The container is a tenant.
    #[error(
        "container {id} is the tenant \"{name}\" already; give it one device of sluice.dev, not several"
    )]
    ContainerTaken {
        /// The container's id.
        id: String,
        /// The tenant's name.
        name: String,
    },
    /// No device has this index or UUID.
    #[error("there is no device \"{name}\"; this node has {known}")]
    UnknownDevice {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The two lists of devices do not fit, or one is empty, too long or repeats itself.
    #[error("{0}")]
    BadDevices(String),
    /// The promise would be one too many.
    #[error(
        "device {device} cannot promise another {} ({asked_bytes} bytes): {} ({free_bytes} bytes) of \
         {}{budget} are free{holders}", Size(*asked_bytes), Size(*free_bytes), Size(*promisable_bytes)
    )]
    NoRoom {
        /// Index of the device.
        device: u32,
        /// What was asked for.
        asked_bytes: u64,
        /// What is still free.
        free_bytes: u64,
        /// What may be promised at most.
        promisable_bytes: u64,
        /// What may be promised beyond that: ` and 8GiB of the host's memory`.
        budget: String,
        /// Who holds the rest: `; held by a: 2GiB, b: 1GiB`.
        holders: String,
    },
    /// No memory of the host may be used.
    #[error(
        "memory cannot be overcommitted here: the daemon may not use the host's memory; set \
         memory.host_budget_mib in its configuration to what it may"
    )]
    NoHostBudget,
    /// The two contradict each other.
    #[error(
        "an overcommitted tenant cannot be of class latency: its memory may have to come from the host \
         first; accepted are standard and batch"
    )]
    OvercommittedLatency,
    /// No tenant has this name.
    #[error("there is no tenant named \"{name}\"; {}", known_tenants(known))]
    NoSuchTenant {
        /// What was asked for.
        name: String,
        /// Names of all tenants.
        known: Vec<String>,
    },
}

fn known_tenants(names: &[String]) -> String {
    if names.is_empty() {
        "there are none".to_owned()
    } else {
        format!("there are {}", names.join(", "))
    }
}
