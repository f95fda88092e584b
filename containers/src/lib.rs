//! How Sluice gets into a container: a quota and a lease become [`Edits`], which writers render.
//!
//! [`edits`] is pure. [`cdi`] writes a CDI specification, [`oci`] changes an OCI `config.json`, and
//! [`shell`] prints exports. Nothing here speaks to the daemon.
#![deny(unsafe_code)]

pub mod cdi;
mod edits;
pub mod oci;
mod peers;
mod quota;
pub mod shell;

pub use edits::{Edits, Hook, Lease, LeaseError, Mount, edits};
pub use quota::{EnvironmentError, Quota};
