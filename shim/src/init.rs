//! `cuInit`: the moment at which a process takes its place with the daemon.

use crate::session;
use ffi::driver::CUresult;
use std::ffi::c_uint;

/// The driver first: where it has no device there is nothing to share, and its answer stands. Then the
/// daemon; without one `CUDA_ERROR_SYSTEM_NOT_READY`, and a later `cuInit` tries again.
pub(crate) fn init(flags: c_uint, forward: impl FnOnce(c_uint) -> CUresult) -> CUresult {
    let result = forward(flags);
    if result != CUresult::CUDA_SUCCESS || session::is_inherited() {
        return result;
    }
    match session::take_seat() {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(session::Absent) => CUresult::CUDA_ERROR_SYSTEM_NOT_READY,
    }
}
