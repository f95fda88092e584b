//! Between a policy and the host: no panic crosses the C boundary.

use ffi::driver::CUresult;
use ffi::nvml::nvmlReturn_t;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};

/// A code that a hook can answer when its policy has failed.
pub(crate) trait Answer {
    /// "Something went wrong that has no name."
    const UNKNOWN: Self;
}

impl Answer for CUresult {
    const UNKNOWN: Self = CUresult::CUDA_ERROR_UNKNOWN;
}

impl Answer for nvmlReturn_t {
    const UNKNOWN: Self = nvmlReturn_t::NVML_ERROR_UNKNOWN;
}

/// Panics caught so far in this process.
static CAUGHT: AtomicU64 = AtomicU64::new(0);

/// Runs a policy. A panic in it is counted and answered with "unknown"; the call is not forwarded
/// again, since the policy may have forwarded it already.
pub(crate) fn enter<R: Answer>(policy: impl FnOnce() -> R) -> R {
    match catch_unwind(AssertUnwindSafe(policy)) {
        Ok(answer) => answer,
        Err(payload) => {
            // Dropping a payload may panic again; a few leaked bytes cannot.
            std::mem::forget(payload);
            CAUGHT.fetch_add(1, Ordering::Relaxed);
            R::UNKNOWN
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::panic, reason = "is what is caught")]
    fn a_panic_in_a_policy_is_answered_and_counted() {
        let before = CAUGHT.load(Ordering::Relaxed);
        let answer: CUresult = enter(|| panic!("caught"));
        assert_eq!(answer, CUresult::CUDA_ERROR_UNKNOWN);
        assert!(CAUGHT.load(Ordering::Relaxed) > before);
    }
}
