//! What a tenant of the demo tells the demo: one JSON object a line, on its standard output.

use serde::{Deserialize, Serialize};

/// One thing that happened in a tenant.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum Event {
    /// It is up, and this is how large each interface says that its GPU is.
    Sees(View),
    /// It finished so many rounds and launches since it began.
    Progress {
        /// Rounds.
        rounds: u64,
        /// Kernel launches.
        launches: u64,
    },
    /// An interface gave another size than at the start.
    SeesOtherwise(View),
    /// It asked for more than its cap leaves, and was refused.
    Refused {
        /// Size of the request, in bytes.
        asked_bytes: u64,
        /// What the driver answered.
        code: u32,
        /// Whether the output pointer and the free memory are what they were before.
        is_clean: bool,
    },
    /// After it freed something, the same request went through.
    Retried {
        /// Size of the request, in bytes.
        asked_bytes: u64,
    },
    /// A process of it was killed while it held memory, and the tenant could use that memory again.
    GaveBack {
        /// What the process had held, in bytes.
        bytes: u64,
        /// Microseconds between the kill and the first allocation that needed the memory.
        after_us: u64,
    },
    /// A call failed that should not have, or did not fail that should have.
    Trouble {
        /// What happened, as a sentence.
        what: String,
    },
    /// A worker holds its memory and waits to be killed.
    Holding {
        /// How much, in bytes.
        bytes: u64,
    },
}

/// How large each interface says that the GPU is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct View {
    /// `cuDeviceTotalMem`, in bytes.
    pub(crate) device_total_bytes: u64,
    /// `cuMemGetInfo`, in bytes.
    pub(crate) info_total_bytes: u64,
    /// `nvmlDeviceGetMemoryInfo`, in bytes.
    pub(crate) nvml_total_bytes: u64,
}

impl View {
    /// Whether every interface shows `cap_bytes`.
    pub(crate) fn is(&self, cap_bytes: u64) -> bool {
        [
            self.device_total_bytes,
            self.info_total_bytes,
            self.nvml_total_bytes,
        ]
        .iter()
        .all(|total| *total == cap_bytes)
    }
}
