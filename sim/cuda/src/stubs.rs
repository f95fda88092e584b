//! The symbols that are not implemented. Generated; see `build.rs`.

use std::sync::atomic::{AtomicU8, AtomicU32, Ordering};

use ffi::driver::CUresult;

use crate::state;

/// Which stub was called last; makes every stub a function of its own, which no linker folds into
/// another: callers tell symbols apart by their addresses.
static LAST_CALLED: AtomicU32 = AtomicU32::new(0);

fn answer(index: u32) -> CUresult {
    LAST_CALLED.store(index, Ordering::Relaxed);
    let name = STUBS.get(index as usize);
    if let Some(code) = name.and_then(|name| sim::faults::at(name)) {
        return CUresult(code);
    }
    if state::is_ready() {
        CUresult::CUDA_ERROR_NOT_SUPPORTED
    } else {
        CUresult::CUDA_ERROR_NOT_INITIALIZED
    }
}

#[allow(
    non_snake_case,
    non_upper_case_globals,
    reason = "the names are the header's"
)]
mod generated {
    use super::{AtomicU8, CUresult, answer};

    include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
}

pub use generated::STUBS;
