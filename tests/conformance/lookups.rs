//! `cuGetProcAddress`: every name, versions, flags; what is not there.

use crate::check::Checks;
use ffi::driver::*;
use std::ffi::{CStr, CString, c_void};
use std::ptr::null_mut;

pub(crate) fn play(t: &Checks) {
    // All of this works before initialisation.
    let mut version = 0;
    ok!(t, cuDriverGetVersion(&mut version));
    names(t, version as u32);
    missing(t);
    flags(t);
    itself(t);
}

/// What the second form finds: the address and the status.
fn find(t: &Checks, name: &CStr, version: u32, flags: u64) -> (u32, usize, u32) {
    let mut place: *mut c_void = null_mut();
    let mut status = CUdriverProcAddressQueryResult_enum(77);
    let code = call!(
        t,
        cuGetProcAddress_v2(
            name.as_ptr(),
            &mut place,
            version as i32,
            flags,
            &mut status
        )
    );
    (code.0, place as usize, status.0)
}

/// Every name of the header that the driver is new enough for is found, and exported.
fn names(t: &Checks, version: u32) {
    let rows = ffi::symbols::DRIVER.iter();
    // Newer than the oldest driver that is looked at, or of another platform: not everywhere.
    let rows = rows.filter(|row| row.since != 0 && row.header <= 12_020 && row.since <= version);
    let (mut asked, mut wrong) = (0, Vec::new());
    for row in rows.filter(|row| !row.name.contains("EGL")) {
        let base = CString::new(row.base).expect("a name");
        let flags = if row.per_thread { 2 } else { 0 };
        let (code, place, status) = find(t, &base, row.since, flags);
        let exported = t.find(row.name, || -> Option<unsafe extern "C" fn()> { None });
        asked += 1;
        if (code, status) != (0, 0) || place == 0 || exported.is_none() {
            wrong.push(row.name);
        }
    }
    t.holds("hundreds of names", asked > 500);
    t.is("names that lead nowhere", wrong, Vec::new());
}

fn missing(t: &Checks) {
    for name in [
        c"",
        c"cuNothing",
        c"cuMemAlloc_v2",
        c"cuMemcpyHtoD_v2_ptds",
        c"cuStreamQuery_ptsz",
    ] {
        t.is("a name that is none", find(t, name, 12_000, 0), (0, 0, 1));
    }
    t.is(
        "before the first version",
        find(t, c"cuMemAlloc", 1000, 0),
        (0, 0, 2),
    );
    t.is(
        "before its birth",
        find(t, c"cuMemAllocAsync", 11_010, 0),
        (0, 0, 2),
    );
    let mut place: *mut c_void = std::ptr::dangling_mut();
    untouched!(
        t,
        CUDA_ERROR_NOT_FOUND,
        place,
        cuGetProcAddress(c"cuNothing".as_ptr(), &mut place, 12_000, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_NOT_FOUND,
        place,
        cuGetProcAddress(c"cuMemAlloc".as_ptr(), &mut place, 1000, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        place,
        cuGetProcAddress(c"cuMemAlloc".as_ptr(), &mut place, 12_000, 4)
    );
    t.is(
        "flags beyond all",
        find(t, c"cuMemAlloc", 12_000, 4),
        (1, 0, 77),
    );
    let none: *mut CUdriverProcAddressQueryResult = null_mut();
    ok!(
        t,
        cuGetProcAddress_v2(c"cuInit".as_ptr(), &mut place, 12_000, 0, none)
    );
}

fn flags(t: &Checks) {
    let legacy = find(t, c"cuStreamQuery", 12_000, 0);
    let thread = find(t, c"cuStreamQuery", 12_000, 2);
    t.holds("a variant for each default stream", legacy.1 != thread.1);
    t.holds(
        "1 is the legacy one",
        find(t, c"cuStreamQuery", 12_000, 1) == legacy,
    );
    t.holds(
        "3 is the per-thread one",
        find(t, c"cuStreamQuery", 12_000, 3) == thread,
    );
    t.is(
        "too old for the per-thread one",
        find(t, c"cuStreamQuery", 6000, 2),
        (0, 0, 2),
    );
    t.holds(
        "no variants: the only one",
        find(t, c"cuInit", 12_000, 2) == find(t, c"cuInit", 12_000, 0),
    );
    let (first, second) = (
        find(t, c"cuMemAlloc", 3010, 0),
        find(t, c"cuMemAlloc", 3020, 0),
    );
    t.holds(
        "a variant for each version",
        first.1 != second.1 && first.1 != 0,
    );
    t.holds(
        "the newest for a version to come",
        find(t, c"cuMemAlloc", 99_999, 0) == second,
    );
}

fn itself(t: &Checks) {
    let (first, second) = (
        find(t, c"cuGetProcAddress", 11_030, 0),
        find(t, c"cuGetProcAddress", 12_000, 0),
    );
    t.holds(
        "itself, in two forms",
        first.1 != second.1 && first.1 != 0 && second.1 != 0,
    );
    let mut place: *mut c_void = null_mut();
    ok!(
        t,
        cuGetProcAddress(c"cuGetProcAddress".as_ptr(), &mut place, 11_030, 0)
    );
    t.holds("the same by either", place as usize == first.1);
}
