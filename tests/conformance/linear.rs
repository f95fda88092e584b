//! Linear, pitched and managed memory, and what pointers say of themselves.

use crate::check::Checks;
use crate::tools::{MIB, allocate, context, free_bytes};
use ffi::driver::*;
use std::ptr::{null_mut, without_provenance_mut};

pub(crate) fn play(t: &Checks) {
    let primary = context(t);
    plain(t);
    pitched(t);
    managed(t);
    attributes(t, primary);
    whole_and_back(t);
    first_interface(t);
}

fn plain(t: &Checks) {
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemAlloc_v2(null_mut(), 1));
    let before = free_bytes(t);
    let blocks: Vec<u64> = [1, 511, 513, MIB, 64 * MIB]
        .map(|bytes| allocate(t, bytes))
        .into();
    t.holds(
        "aligned to 256 bytes at least",
        blocks.iter().all(|at| at % 256 == 0),
    );
    t.holds("free went down", free_bytes(t) <= before - 64 * MIB);
    let (mut base, mut size) = (0, 0);
    ok!(
        t,
        cuMemGetAddressRange_v2(&mut base, &mut size, blocks[4] + 1000)
    );
    t.is(
        "the block around a pointer",
        (base == blocks[4], size),
        (true, 64 * MIB),
    );
    ok!(t, cuMemGetAddressRange_v2(null_mut(), &mut size, blocks[3]));
    t.is("its size alone", size, MIB);
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(blocks[4] + 512));
    for at in &blocks {
        ok!(t, cuMemFree_v2(*at));
    }
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemFree_v2(blocks[4]));
    answers!(
        t,
        CUDA_ERROR_NOT_FOUND,
        cuMemGetAddressRange_v2(&mut base, &mut size, blocks[4])
    );
    t.holds("all is free again", free_bytes(t) >= before - 2 * MIB);
}

fn pitched(t: &Checks) {
    let (mut at, mut pitch) = (0, 0);
    for (width, height, element) in [(1, 1, 4), (700, 10, 4), (4096, 3, 8), (4097, 3, 16)] {
        ok!(
            t,
            cuMemAllocPitch_v2(&mut at, &mut pitch, width, height, element)
        );
        t.holds(
            "rows fit and are aligned",
            pitch >= width && pitch % 32 == 0,
        );
        let mut size = 0;
        ok!(t, cuMemGetAddressRange_v2(null_mut(), &mut size, at));
        t.holds("all rows are there", size >= pitch * (height - 1) + width);
        ok!(t, cuMemFree_v2(at));
    }
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAllocPitch_v2(&mut at, &mut pitch, 64, 1, 3)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAllocPitch_v2(&mut at, &mut pitch, 64, 0, 4)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAllocPitch_v2(&mut at, null_mut(), 64, 1, 4)
    );
}

fn managed(t: &Checks) {
    let mut at = 0;
    let global = CUmemAttach_flags_enum::CU_MEM_ATTACH_GLOBAL.0;
    ok!(t, cuMemAllocManaged(&mut at, MIB, global));
    let mut is_managed = 0u32;
    let attribute = CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_IS_MANAGED;
    ok!(
        t,
        cuPointerGetAttribute((&raw mut is_managed).cast(), attribute, at)
    );
    t.is("managed", is_managed, 1);
    let place: *mut u32 = without_provenance_mut(at as usize);
    // SAFETY: managed memory can be used by the host while no kernel runs.
    unsafe { place.write(0x0102_0304) };
    t.is(
        "its bytes",
        crate::tools::bytes_at(t, at, 4),
        0x0102_0304u32.to_ne_bytes().to_vec(),
    );
    ok!(t, cuMemFree_v2(at));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAllocManaged(null_mut(), MIB, global)
    );
}

fn attributes(t: &Checks, primary: CUcontext) {
    use CUpointer_attribute_enum as A;
    let (at, mut kind, mut owner, mut ordinal) = (allocate(t, MIB), 0u32, null_mut::<()>(), -7);
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut kind).cast(),
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            at
        )
    );
    t.is(
        "device memory",
        kind,
        CUmemorytype_enum::CU_MEMORYTYPE_DEVICE.0,
    );
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut owner).cast(),
            A::CU_POINTER_ATTRIBUTE_CONTEXT,
            at + 5
        )
    );
    t.holds("of the context that is current", owner.cast() == primary);
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut ordinal).cast(),
            A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            at
        )
    );
    t.is("on its device", ordinal, 0);
    let (mut start, mut size, mut first, mut second) = (0u64, 0usize, 0u64, 0u64);
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut start).cast(),
            A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
            at + 9
        )
    );
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut size).cast(),
            A::CU_POINTER_ATTRIBUTE_RANGE_SIZE,
            at + 9
        )
    );
    t.is("its range", (start == at, size), (true, MIB));
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut first).cast(),
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            at
        )
    );
    let again = allocate(t, MIB);
    ok!(
        t,
        cuPointerGetAttribute(
            (&raw mut second).cast(),
            A::CU_POINTER_ATTRIBUTE_BUFFER_ID,
            again
        )
    );
    t.holds("each allocation has a number of its own", first != second);
    let local = 7u32;
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute(
            (&raw mut kind).cast(),
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            &raw const local as u64
        )
    );
    ok!(t, cuMemFree_v2(at));
    ok!(t, cuMemFree_v2(again));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuPointerGetAttribute(
            (&raw mut kind).cast(),
            A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
            at
        )
    );
}

/// What is refused changes nothing, and what was given back can be had again.
fn whole_and_back(t: &Checks) {
    let free = free_bytes(t);
    let most = free - free / 16;
    for _ in 0..3 {
        let (at, mut more) = (allocate(t, most), 7);
        untouched!(
            t,
            CUDA_ERROR_OUT_OF_MEMORY,
            more,
            cuMemAlloc_v2(&mut more, most)
        );
        ok!(t, cuMemFree_v2(at));
    }
    t.is("free as before", free_bytes(t), free);
}

fn first_interface(t: &Checks) {
    let (mut at, mut free, mut total): (CUdeviceptr_v1, _, _) = (0, 0, 0);
    ok!(t, cuMemGetInfo(&mut free, &mut total));
    t.holds("in 32 bits", free <= total && total > 0);
    if call!(t, cuMemAlloc(&mut at, 4096)) == CUresult::CUDA_SUCCESS {
        ok!(t, cuMemsetD32(at, 0x0102_0304, 1024));
        let mut word = 0u32;
        ok!(t, cuMemcpyDtoH((&raw mut word).cast(), at + 4092, 4));
        t.is("what was set", word, 0x0102_0304);
        ok!(t, cuMemFree(at));
    }
}
