//! Addresses and physical memory: granularity, references, mappings, access.

use crate::check::Checks;
use crate::tools::{bytes_at, context, free_bytes, zeroed};
use ffi::driver::*;
use std::ptr::{null_mut, without_provenance_mut};

/// Pinned memory of device 0.
pub(crate) fn property() -> CUmemAllocationProp {
    let mut property: CUmemAllocationProp = zeroed();
    property.type_ = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    property
}

/// Reading and writing from device 0.
pub(crate) fn access() -> CUmemAccessDesc {
    let mut access: CUmemAccessDesc = zeroed();
    access.location = property().location;
    access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    access
}

pub(crate) fn play(t: &Checks) {
    context(t);
    let unit = granularity(t);
    addresses(t, unit);
    lifetimes(t, unit);
    several_maps(t, unit);
    outlives_its_context(t, unit);
    exports(t, unit);
}

fn granularity(t: &Checks) -> usize {
    use CUmemAllocationGranularity_flags_enum as G;
    let (mut least, mut best) = (0, 0);
    let property = property();
    ok!(
        t,
        cuMemGetAllocationGranularity(&mut least, &property, G::CU_MEM_ALLOC_GRANULARITY_MINIMUM)
    );
    ok!(
        t,
        cuMemGetAllocationGranularity(
            &mut best,
            &property,
            G::CU_MEM_ALLOC_GRANULARITY_RECOMMENDED
        )
    );
    t.holds("a multiple of the least", least > 0 && best % least == 0);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemGetAllocationGranularity(null_mut(), &property, G::CU_MEM_ALLOC_GRANULARITY_MINIMUM)
    );
    let mut handle = 7;
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        handle,
        cuMemCreate(&mut handle, least / 2, &property, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        handle,
        cuMemCreate(&mut handle, 0, &property, 0)
    );
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        handle,
        cuMemCreate(&mut handle, least, &property, 1)
    );
    untouched!(
        t,
        CUDA_ERROR_OUT_OF_MEMORY,
        handle,
        cuMemCreate(&mut handle, 1 << 44, &property, 0)
    );
    let mut nowhere = property;
    nowhere.location.__bindgen_anon_1.id = 1000;
    let code = call!(t, cuMemCreate(&mut handle, least, &nowhere, 0));
    t.holds("on no such device", code.0 != 0 && handle == 7);
    least
}

fn addresses(t: &Checks, unit: usize) {
    let (mut first, mut second) = (0, 0);
    ok!(t, cuMemAddressReserve(&mut first, 4 * unit, 0, 0, 0));
    ok!(t, cuMemAddressReserve(&mut second, unit, 8 * unit, 0, 0));
    t.is("as aligned as was asked for", second % (8 * unit as u64), 0);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAddressReserve(&mut second, 0, 0, 0, 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAddressReserve(&mut second, unit, 0, 0, 1)
    );
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(first, unit));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(first, 0, 1));
    ok!(t, cuMemAddressFree(first, 4 * unit));
    ok!(t, cuMemAddressFree(second, unit));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAddressFree(first, 4 * unit)
    );
}

fn lifetimes(t: &Checks, unit: usize) {
    let free = free_bytes(t);
    let (mut handle, mut again, mut at) = (0, 0, 0);
    ok!(t, cuMemCreate(&mut handle, 2 * unit, &property(), 0));
    t.is("taken when it is made", free_bytes(t), free - 2 * unit);
    ok!(t, cuMemAddressReserve(&mut at, 4 * unit, 0, 0, 0));
    ok!(t, cuMemMap(at, 2 * unit, 0, handle, 0));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemMap(at, 2 * unit, 0, handle, 0)
    );
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(at, 1, 1));
    let mut flags = 7;
    let location = property().location;
    ok!(t, cuMemGetAccess(&mut flags, &location, at));
    t.is("no access at first", flags, 0);
    ok!(t, cuMemSetAccess(at, 2 * unit, &access(), 1));
    ok!(t, cuMemGetAccess(&mut flags, &location, at));
    t.is("access", flags, 3);
    ok!(t, cuMemsetD8_v2(at, 5, 2 * unit));
    let mut seen = property();
    ok!(t, cuMemGetAllocationPropertiesFromHandle(&mut seen, handle));
    t.is(
        "its properties",
        (seen.type_.0, seen.location.type_.0),
        (1, 1),
    );
    ok!(
        t,
        cuMemRetainAllocationHandle(&mut again, without_provenance_mut(at as usize + 3))
    );
    ok!(t, cuMemRelease(handle));
    ok!(t, cuMemRelease(again));
    t.is("the mapping holds it", free_bytes(t), free - 2 * unit);
    t.is("and its bytes", bytes_at(t, at + unit as u64, 1), vec![5]);
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(at, 4 * unit));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, unit));
    ok!(t, cuMemUnmap(at, 2 * unit));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemUnmap(at, 2 * unit));
    t.is("nothing holds it", free_bytes(t), free);
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemRelease(handle));
    ok!(t, cuMemAddressFree(at, 4 * unit));
}

fn several_maps(t: &Checks, unit: usize) {
    let free = free_bytes(t);
    let (mut handle, mut at) = (0, 0);
    ok!(t, cuMemCreate(&mut handle, unit, &property(), 0));
    ok!(t, cuMemAddressReserve(&mut at, 2 * unit, 0, 0, 0));
    ok!(t, cuMemMap(at, unit, 0, handle, 0));
    ok!(t, cuMemMap(at + unit as u64, unit, 0, handle, 0));
    ok!(t, cuMemSetAccess(at, 2 * unit, &access(), 1));
    ok!(t, cuMemsetD8_v2(at, 1, unit));
    ok!(t, cuMemsetD8_v2(at + unit as u64, 2, 1));
    t.is("the same bytes at both", bytes_at(t, at, 2), vec![2, 1]);
    ok!(t, cuMemRelease(handle));
    // One call may take several whole mappings.
    ok!(t, cuMemUnmap(at, 2 * unit));
    t.is("free as before", free_bytes(t), free);
    ok!(t, cuMemAddressFree(at, 2 * unit));
}

fn outlives_its_context(t: &Checks, unit: usize) {
    let free = free_bytes(t);
    let (mut context, mut handle) = (null_mut(), 0);
    ok!(t, cuCtxCreate_v2(&mut context, 0, 0));
    ok!(t, cuMemCreate(&mut handle, unit, &property(), 0));
    ok!(t, cuCtxDestroy_v2(context));
    t.is("still taken", free_bytes(t), free - unit);
    ok!(t, cuMemRelease(handle));
    t.is("free as before", free_bytes(t), free);
}

/// Within one process; [`crate::sharing`] is about several.
fn exports(t: &Checks, unit: usize) {
    let kind = CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    let free = free_bytes(t);
    let (mut plain, mut shared, mut again, mut file) = (0, 0, 0, -7);
    ok!(t, cuMemCreate(&mut plain, unit, &property(), 0));
    untouched!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        file,
        cuMemExportToShareableHandle((&raw mut file).cast(), plain, kind, 0)
    );
    ok!(t, cuMemRelease(plain));
    let mut wanted = property();
    wanted.requestedHandleTypes = kind;
    ok!(t, cuMemCreate(&mut shared, unit, &wanted, 0));
    ok!(
        t,
        cuMemExportToShareableHandle((&raw mut file).cast(), shared, kind, 0)
    );
    t.holds("a descriptor", file >= 0);
    let place = without_provenance_mut(file as usize);
    ok!(t, cuMemImportFromShareableHandle(&mut again, place, kind));
    ok!(t, cuMemRelease(shared));
    t.is("the import holds it", free_bytes(t), free - unit);
    ok!(t, cuMemRelease(again));
    // SAFETY: the descriptor was made for us, and nobody else uses it.
    t.is("closed", unsafe { libc::close(file) }, 0);
    // An export is not tied to any call: it ends when the driver sees the descriptor closed.
    let begin = std::time::Instant::now();
    while free_bytes_quietly(t) != free && begin.elapsed().as_secs() < 5 {
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    t.is("free as before", free_bytes(t), free);
    t.holds("a closed descriptor is none", {
        let code = call!(t, cuMemImportFromShareableHandle(&mut again, place, kind));
        code.0 != 0
    });
}

fn free_bytes_quietly(t: &Checks) -> usize {
    let (mut free, mut total) = (0, 0);
    _ = call!(t, cuMemGetInfo_v2(&mut free, &mut total));
    free
}
