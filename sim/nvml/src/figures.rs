//! What a stand-in cannot know and a monitor wants to hear all the same.
//!
//! Constants of the device's profile and of the generation it belongs to; nothing here follows from
//! what the device does. They are for tools to show, not for anything to decide by.

use sim::client::Device;
use sim::profile::Profile;

/// A few degrees above the air around it.
pub(crate) const TEMPERATURE_CELSIUS: u32 = 33;

/// Where a device would slow down; it would switch off a little above that.
pub(crate) const SLOWDOWN_CELSIUS: u32 = 87;

/// See [`SLOWDOWN_CELSIUS`].
pub(crate) const SHUTDOWN_CELSIUS: u32 = 92;

/// Through this window the host sees device memory: as large as the memory of any profile.
pub(crate) const BAR1_BYTES: u64 = 256 << 30;

/// Lanes of the PCI Express link of every profile.
pub(crate) const LINK_WIDTH: u32 = 16;

/// What an idle device draws, as a fraction of its limit: one tenth, as data sheets have it.
const IDLE_POWER_FRACTION: u32 = 10;

/// Constants of one device.
pub(crate) struct Figures {
    profile: &'static Profile,
    generation: Generation,
}

/// What devices of one architecture have in common.
struct Generation {
    architecture: u32,
    cores_per_multiprocessor: u32,
    link_generation: u32,
}

impl Figures {
    /// The figures for a device, by its profile; an unknown compute capability counts as the newest.
    pub(crate) fn of(device: &Device) -> Figures {
        let profile = device.profile;
        let (architecture, cores_per_multiprocessor, link_generation) =
            match (profile.major, profile.minor) {
                (7, _) => (6, 64, 3),
                (8, 0) => (7, 64, 4),
                (8, 9) => (8, 128, 4),
                (8, _) => (7, 128, 4),
                _ => (9, 128, 5),
            };
        let generation = Generation {
            architecture,
            cores_per_multiprocessor,
            link_generation,
        };
        Figures {
            profile,
            generation,
        }
    }

    /// Architecture number as in the header: 6 Turing, 7 Ampere, 8 Ada, 9 Hopper.
    pub(crate) fn architecture(&self) -> u32 {
        self.generation.architecture
    }

    /// CUDA cores.
    pub(crate) fn cores(&self) -> u32 {
        self.profile.multiprocessors * self.generation.cores_per_multiprocessor
    }

    /// Width of the memory interface in bits.
    pub(crate) fn memory_bus_bits(&self) -> u32 {
        self.profile.bus_bits
    }

    /// Clock of the multiprocessors, and of the video engines too.
    pub(crate) fn sm_clock_mhz(&self) -> u32 {
        self.profile.clock_khz / 1000
    }

    /// Clock of the memory.
    pub(crate) fn memory_clock_mhz(&self) -> u32 {
        self.profile.memory_clock_khz / 1000
    }

    /// Power limit; default, highest and enforced are one.
    pub(crate) fn power_limit_mw(&self) -> u32 {
        self.profile.power_limit_mw
    }

    /// What it always draws.
    pub(crate) fn power_usage_mw(&self) -> u32 {
        self.profile.power_limit_mw / IDLE_POWER_FRACTION
    }

    /// Generation of the PCI Express link.
    pub(crate) fn link_generation(&self) -> u32 {
        self.generation.link_generation
    }
}
