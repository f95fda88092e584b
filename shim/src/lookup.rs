//! `cuGetProcAddress`: the real one answers, and the address of a hooked function becomes ours.
//!
//! Nothing else is touched: names, versions, flags and statuses are the driver's business. Where there is
//! no driver, our own exports stand in, so that a runtime finds `cuInit` and hears "no device" from it.

use crate::claim::Out;
use crate::hooks;
use crate::real::SYMBOL_NOT_FOUND;
use ffi::driver::{CUdriverProcAddressQueryResult, CUresult, cuuint64_t};
use std::ffi::{CStr, c_char, c_int, c_void};

type Status = CUdriverProcAddressQueryResult;

/// `cuGetProcAddress` of CUDA 11.
pub(crate) fn address(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    forward: impl FnOnce(*const c_char, *mut *mut c_void, c_int, cuuint64_t) -> CUresult,
) -> CUresult {
    let result = forward(symbol, pfn, version, flags);
    swap(result, pfn);
    result
}

/// `cuGetProcAddress` of CUDA 12.
pub(crate) fn address_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut Status,
    forward: impl FnOnce(*const c_char, *mut *mut c_void, c_int, cuuint64_t, *mut Status) -> CUresult,
) -> CUresult {
    let result = forward(symbol, pfn, version, flags, status);
    swap(result, pfn);
    result
}

fn swap(result: CUresult, pfn: *mut *mut c_void) {
    if result != CUresult::CUDA_SUCCESS {
        return;
    }
    if let Some(place) = Out::claim(pfn)
        && let Some(own) = hooks::swap(place.read().cast_const().cast())
    {
        place.write(own.cast_mut().cast());
    }
}

/// `cuGetProcAddress` where there is no driver.
pub(crate) unsafe extern "C" fn without_driver(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> CUresult {
    match own_export(symbol, version, flags) {
        Some(own) => {
            write(pfn, own);
            CUresult::CUDA_SUCCESS
        }
        None => CUresult::CUDA_ERROR_NOT_FOUND,
    }
}

/// `cuGetProcAddress_v2` where there is no driver.
pub(crate) unsafe extern "C" fn without_driver_v2(
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    status: *mut Status,
) -> CUresult {
    let own = own_export(symbol, version, flags);
    write(pfn, own.unwrap_or(std::ptr::null()));
    if let Some(status) = Out::claim(status) {
        status.write(match own {
            Some(_) => Status::CU_GET_PROC_ADDRESS_SUCCESS,
            None => SYMBOL_NOT_FOUND,
        });
    }
    CUresult::CUDA_SUCCESS
}

fn write(pfn: *mut *mut c_void, address: *const ()) {
    if let Some(place) = Out::claim(pfn) {
        place.write(address.cast_mut().cast());
    }
}

/// Our own answer for the variant of `symbol` that a client of this version means.
fn own_export(symbol: *const c_char, version: c_int, flags: cuuint64_t) -> Option<*const ()> {
    if symbol.is_null() {
        return None;
    }
    // SAFETY: not null; that it is a C string is the caller's duty by the CUDA contract.
    let name = unsafe { CStr::from_ptr(symbol) }.to_str().ok()?;
    // Negative versions are very large ones to the driver, too.
    let version = version as u32;
    let wants_per_thread = flags & 2 != 0;
    let variant = |per_thread: bool| {
        ffi::symbols::DRIVER.iter().position(|candidate| {
            candidate.base == name
                && candidate.per_thread == per_thread
                && candidate.since != 0
                && candidate.since <= version
                && version < candidate.until
        })
    };
    let ordinal = wants_per_thread
        .then(|| variant(true))
        .flatten()
        .or_else(|| variant(false))?;
    hooks::export(ordinal).or_else(|| Some(crate::real::function(ordinal)))
}
