//! How Sluice gets into a container: a quota and a lease become [`Edits`], which writers render.
//!
//! [`mod@edits`] is pure. [`cdi`] writes a CDI specification, [`oci`] changes an OCI `config.json` and reads
//! what hooks are told, [`lease`] keeps the devices that were made for one quota, and [`shell`] prints exports. Nothing here speaks to the daemon; its readers of
//! quotas are used, so that what is accepted here is accepted there.
#![deny(unsafe_code)]

pub mod cdi;
mod edits;
pub mod lease;
pub mod oci;
mod peers;
mod quota;
pub mod shell;

pub use edits::{Edits, Hook, LIBRARIES, Lease, LeaseError, Mount, SHIM, Source, edits};
pub use quota::{EnvironmentError, Quota, gpus};
