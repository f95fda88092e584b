//! The symbols that are not implemented. Generated; see `build.rs`.

use std::sync::atomic::AtomicU8;

use ffi::driver::CUresult;

use crate::state;

/// The answer of the stub at `index` of [`STUBS`]. That each asks for its own name makes it a function of
/// its own, which no compiler folds into another: callers tell symbols apart by their addresses.
fn answer(index: u32) -> CUresult {
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
