//! The stand-in management library, `libnvidia-ml.so.1`.
//!
//! It answers for the devices of the `gpu` process (see `sim`): monitoring tools, and whatever else
//! asks NVML, see the stand-in as they would see a GPU. Where no such process can be reached,
//! initialisation answers `NVML_ERROR_DRIVER_NOT_LOADED`, as on a machine without the driver.
//!
//! * `table`: every function that is implemented, one row each. Every other symbol of
//!   `ffi::symbols::NVML` is exported too and answers `NVML_ERROR_NOT_SUPPORTED`; the build script
//!   writes those.
//! * `guard`: the C boundary. `library`: initialisation, handles. `hardware`: where truth comes from.
//! * `system`, `identity`, `memory`, `limits`, `process`, `utilisation`, `condition`, `events`: what is asked.
//! * `figures`: what a stand-in cannot know and a monitor wants to hear all the same.
//! * `private`: the undocumented table that `nvidia-smi` asks for.
//!
//! Locks: `library::LIBRARY` is never held across a call to the `gpu` process; a session's own locks
//! are taken one at a time.
//!
//! What it does not do: change anything but limits of control groups. Other setters are not supported, and so are MIG, vGPU, NVLink,
//! units and GPM.

mod condition;
mod events;
mod figures;
mod guard;
mod hardware;
mod identity;
mod library;
mod limits;
mod memory;
mod private;
mod process;
mod system;
mod table;
mod utilisation;

/// The functions that only have to be there.
mod rest {
    use crate::library;

    include!(concat!(env!("OUT_DIR"), "/rest.rs"));
}
