//! Host memory: page-locked, registered, mapped.

use crate::check::Checks;
use crate::tools::{MIB, allocate, bytes_at, context, number, pattern};
use ffi::driver::*;
use std::ffi::c_void;
use std::ptr::null_mut;

pub(crate) fn play(t: &Checks) {
    context(t);
    let free = crate::tools::free_bytes(t);
    allocated(t);
    registered(t);
    t.is(
        "host memory takes none of the device's",
        crate::tools::free_bytes(t),
        free,
    );
}

fn allocated(t: &Checks) {
    let (mut place, mut at, mut flags): (*mut c_void, _, _) = (null_mut(), 0, 7);
    ok!(
        t,
        cuMemHostAlloc(
            &mut place,
            MIB,
            CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP
        )
    );
    ok!(t, cuMemHostGetDevicePointer_v2(&mut at, place, 0));
    t.holds("one address for both", at == place as u64);
    ok!(t, cuMemHostGetFlags(&mut flags, place));
    t.is("its flags", flags & 3, 3);
    let mut kind = 0u32;
    let attribute = CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    ok!(
        t,
        cuPointerGetAttribute((&raw mut kind).cast(), attribute, at)
    );
    t.is("host memory", kind, CUmemorytype_enum::CU_MEMORYTYPE_HOST.0);
    let data = pattern(MIB);
    // SAFETY: a mebibyte that was just allocated.
    unsafe {
        place
            .cast::<u8>()
            .copy_from_nonoverlapping(data.as_ptr(), MIB)
    };
    let device = allocate(t, MIB);
    ok!(t, cuMemcpyHtoD_v2(device, place, MIB));
    t.holds("bytes from it arrive", bytes_at(t, device, MIB) == data);
    ok!(t, cuMemFree_v2(device));
    let code = call!(t, cuMemHostUnregister(place));
    t.holds("what was allocated was not registered", code.0 != 0);
    ok!(t, cuMemFreeHost(place));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(place));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemHostAlloc(null_mut(), MIB, 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemHostAlloc(&mut place, MIB, 0x100)
    );
    ok!(t, cuMemAllocHost_v2(&mut place, 4096));
    ok!(t, cuMemFreeHost(place));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemFreeHost(number(0x1000)));
}

fn registered(t: &Checks) {
    let mut own = vec![0u8; 3 * MIB];
    // Whole pages of our own memory.
    let start = own
        .as_mut_ptr()
        .wrapping_add(own.as_ptr().align_offset(4096))
        .cast::<c_void>();
    answers!(
        t,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        cuMemHostUnregister(start)
    );
    ok!(
        t,
        cuMemHostRegister_v2(start, MIB, CU_MEMHOSTREGISTER_DEVICEMAP)
    );
    answers!(
        t,
        CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED,
        cuMemHostRegister_v2(start, MIB, 0)
    );
    let mut at = 0;
    ok!(t, cuMemHostGetDevicePointer_v2(&mut at, start, 0));
    let mut kind = 0u32;
    let attribute = CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    ok!(
        t,
        cuPointerGetAttribute((&raw mut kind).cast(), attribute, at)
    );
    t.is("host memory", kind, CUmemorytype_enum::CU_MEMORYTYPE_HOST.0);
    ok!(t, cuMemHostUnregister(start));
    answers!(
        t,
        CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED,
        cuMemHostUnregister(start)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemHostRegister_v2(null_mut(), MIB, 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemHostRegister_v2(start, 0, 0)
    );
}
