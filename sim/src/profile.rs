//! The devices that the stand-in can stand in for, and the driver versions that it can report.
//!
//! Figures are the makers' public ones; every name says that the device is a stand-in.

use thiserror::Error;

/// What is fixed about a kind of device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Profile {
    /// Word that chooses it: `--profile`.
    pub word: &'static str,
    /// Product name as both libraries report it.
    pub name: &'static str,
    /// Device memory in bytes.
    pub memory_bytes: u64,
    /// Compute capability, major part.
    pub major: u32,
    /// Compute capability, minor part.
    pub minor: u32,
    /// Streaming multiprocessors.
    pub multiprocessors: u32,
    /// Threads that one multiprocessor holds at once.
    pub threads_per_multiprocessor: u32,
    /// Highest clock of the multiprocessors, in kHz.
    pub clock_khz: u32,
    /// Highest clock of the memory, in kHz.
    pub memory_clock_khz: u32,
    /// Width of the memory bus, in bits.
    pub bus_bits: u32,
    /// Second-level cache, in bytes.
    pub l2_bytes: u32,
    /// Shared memory of one multiprocessor, in bytes.
    pub shared_bytes: u32,
    /// Memory bandwidth in bytes per microsecond (GB/s × 1000).
    pub bytes_per_us: u64,
    /// Board power limit in milliwatts.
    pub power_limit_mw: u32,
}

const MIB: u64 = 1 << 20;

/// Every profile, the default first.
pub static PROFILES: &[Profile] = &[
    Profile {
        word: "test",
        name: "Sluice stand-in test GPU",
        memory_bytes: 8192 * MIB,
        major: 9,
        minor: 0,
        multiprocessors: 16,
        threads_per_multiprocessor: 2048,
        clock_khz: 1_500_000,
        memory_clock_khz: 2_000_000,
        bus_bits: 1024,
        l2_bytes: 16 << 20,
        shared_bytes: 228 << 10,
        bytes_per_us: 500_000,
        power_limit_mw: 100_000,
    },
    Profile {
        word: "t4",
        name: "Sluice stand-in T4",
        memory_bytes: 15360 * MIB,
        major: 7,
        minor: 5,
        multiprocessors: 40,
        threads_per_multiprocessor: 1024,
        clock_khz: 1_590_000,
        memory_clock_khz: 5_001_000,
        bus_bits: 256,
        l2_bytes: 4 << 20,
        shared_bytes: 64 << 10,
        bytes_per_us: 320_000,
        power_limit_mw: 70_000,
    },
    Profile {
        word: "l4",
        name: "Sluice stand-in L4",
        memory_bytes: 23034 * MIB,
        major: 8,
        minor: 9,
        multiprocessors: 58,
        threads_per_multiprocessor: 1536,
        clock_khz: 2_040_000,
        memory_clock_khz: 6_251_000,
        bus_bits: 192,
        l2_bytes: 48 << 20,
        shared_bytes: 100 << 10,
        bytes_per_us: 300_000,
        power_limit_mw: 72_000,
    },
    Profile {
        word: "a100",
        name: "Sluice stand-in A100-SXM4-80GB",
        memory_bytes: 81920 * MIB,
        major: 8,
        minor: 0,
        multiprocessors: 108,
        threads_per_multiprocessor: 2048,
        clock_khz: 1_410_000,
        memory_clock_khz: 1_593_000,
        bus_bits: 5120,
        l2_bytes: 40 << 20,
        shared_bytes: 164 << 10,
        bytes_per_us: 2_039_000,
        power_limit_mw: 400_000,
    },
    Profile {
        word: "h200",
        name: "Sluice stand-in H200",
        memory_bytes: 143_771 * MIB,
        major: 9,
        minor: 0,
        multiprocessors: 132,
        threads_per_multiprocessor: 2048,
        clock_khz: 1_980_000,
        memory_clock_khz: 3_201_000,
        bus_bits: 6144,
        l2_bytes: 50 << 20,
        shared_bytes: 228 << 10,
        bytes_per_us: 4_800_000,
        power_limit_mw: 700_000,
    },
];

/// Why a word names neither a profile nor a driver version.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum UnknownWord {
    /// No such profile.
    #[error("unknown device profile `{0}`; known are test, t4, l4, a100, h200")]
    Profile(String),
    /// No such driver.
    #[error("unknown driver version `{0}`; known are 535, 550, 555, 570, 580, 615")]
    Driver(String),
}

impl Profile {
    /// The profile that `word` names; case does not matter.
    pub fn named(word: &str) -> Result<&'static Self, UnknownWord> {
        PROFILES
            .iter()
            .find(|profile| profile.word.eq_ignore_ascii_case(word))
            .ok_or_else(|| UnknownWord::Profile(word.to_owned()))
    }

    /// Warps that the device holds at once.
    pub fn warps(&self) -> u64 {
        u64::from(self.multiprocessors) * u64::from(self.threads_per_multiprocessor)
            / crate::kernels::WARP_THREADS
    }
}

/// A driver version as both interfaces report it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DriverVersion {
    /// What `cuDriverGetVersion` answers: 1000 major + 10 minor.
    pub cuda: u32,
    /// What `nvmlSystemGetDriverVersion` answers.
    pub nvml: String,
}

/// Branch, CUDA version, full version: pairs that belong together.
const DRIVERS: &[(&str, u32, &str)] = &[
    ("535", 12020, "535.261.03"),
    ("550", 12040, "550.163.01"),
    ("555", 12050, "555.58.02"),
    ("570", 12080, "570.211.01"),
    ("580", 13000, "580.65.06"),
    ("615", 13040, "615.71.09"),
];

impl DriverVersion {
    /// The version that `word` names: a branch (`580`) or a full version (`580.65.06`), whose branch
    /// then chooses the CUDA version.
    pub fn named(word: &str) -> Result<Self, UnknownWord> {
        let branch = word.split('.').next().unwrap_or(word);
        let (_, cuda, full) = DRIVERS
            .iter()
            .find(|(known, _, _)| *known == branch)
            .ok_or_else(|| UnknownWord::Driver(word.to_owned()))?;
        let nvml = if word.contains('.') { word } else { full };
        Ok(Self {
            cuda: *cuda,
            nvml: nvml.to_owned(),
        })
    }
}

impl DriverVersion {
    /// First branch with limits of control groups. Source: change log of NVML.
    const GROUP_LIMITS_SINCE: u32 = 615;

    /// Whether it limits what a control group holds.
    pub fn has_group_limits(&self) -> bool {
        let branch = self.nvml.split('.').next();
        let branch = branch.and_then(|branch| branch.parse::<u32>().ok());
        branch.is_some_and(|branch| branch >= Self::GROUP_LIMITS_SINCE)
    }
}

impl Default for DriverVersion {
    fn default() -> Self {
        Self {
            cuda: 13000,
            nvml: "580.65.06".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_profile_says_that_it_is_a_stand_in() {
        for profile in PROFILES {
            assert!(profile.name.contains("stand-in"), "{}", profile.name);
            assert_eq!(Profile::named(profile.word), Ok(profile));
        }
    }

    #[test]
    fn an_unknown_word_is_refused_with_the_words_that_are_known() {
        let refusal = DriverVersion::named("9000").unwrap_err().to_string();
        assert!(refusal.contains("9000") && refusal.contains("580"));
        assert!(Profile::named("tpu").is_err());
    }

    #[test]
    fn the_default_driver_is_one_of_the_known_pairs() {
        assert_eq!(DriverVersion::named("580"), Ok(DriverVersion::default()));
    }
}
