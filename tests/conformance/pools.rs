//! Stream-ordered memory: pools, their attributes, reuse and release.

use crate::check::Checks;
use crate::physical::{access, property};
use crate::tools::{MIB, bytes_at, context, free_bytes, spin, spinner, stream, zeroed};
use ffi::driver::*;
use std::ptr::null_mut;

use CUmemPool_attribute_enum as A;

fn value(t: &Checks, pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(
        t,
        cuMemPoolGetAttribute(pool, attribute, (&raw mut value).cast())
    );
    value
}

fn set(t: &Checks, pool: CUmemoryPool, attribute: CUmemPool_attribute, value: u64) {
    let mut value = value;
    ok!(
        t,
        cuMemPoolSetAttribute(pool, attribute, (&raw mut value).cast())
    );
}

pub(crate) fn play(t: &Checks) {
    context(t);
    default_pool(t);
    own_pool(t);
    order(t);
    attributes(t);
}

fn default_pool(t: &Checks) {
    let (mut default, mut current, lane) = (null_mut(), null_mut(), stream(t, 1));
    ok!(t, cuDeviceGetDefaultMemPool(&mut default, 0));
    ok!(t, cuDeviceGetMemPool(&mut current, 0));
    t.holds("the default is current at first", default == current);
    t.is(
        "keeps nothing by default",
        value(t, default, A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD),
        0,
    );
    let (mut first, mut second) = (0, 0);
    ok!(t, cuMemAllocAsync(&mut first, 1000, lane));
    ok!(t, cuMemAllocAsync(&mut second, MIB, lane));
    t.holds("two places", first != second);
    let used = value(t, default, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
    let reserved = value(t, default, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    t.holds(
        "used is reserved",
        (1000 + MIB as u64..=reserved).contains(&used),
    );
    ok!(t, cuMemsetD8Async(second, 3, MIB, lane));
    ok!(t, cuStreamSynchronize(lane));
    t.is("it is memory", bytes_at(t, second, 2), vec![3, 3]);
    ok!(t, cuMemFreeAsync(first, lane));
    ok!(t, cuMemFree_v2(second));
    ok!(t, cuStreamSynchronize(lane));
    t.is(
        "nothing used",
        value(t, default, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT),
        0,
    );
    t.is(
        "nothing reserved",
        value(t, default, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        0,
    );
    t.holds(
        "the most that was",
        value(t, default, A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH) >= reserved,
    );
    answers!(t, CUDA_ERROR_NOT_PERMITTED, cuMemPoolDestroy(default));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(first, lane));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemAllocAsync(null_mut(), 10, lane)
    );
    ok!(t, cuStreamDestroy_v2(lane));
}

fn own_pool(t: &Checks) {
    let (mut pool, mut current, mut default, lane) =
        (null_mut(), null_mut(), null_mut(), stream(t, 1));
    let free = free_bytes(t);
    let mut wanted: CUmemPoolProps = zeroed();
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemPoolCreate(&mut pool, &wanted)
    );
    wanted.allocType = property().type_;
    wanted.location = property().location;
    ok!(t, cuMemPoolCreate(&mut pool, &wanted));
    set(t, pool, A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, u64::MAX);
    let mut at = 0;
    ok!(t, cuMemAllocFromPoolAsync(&mut at, 10 * MIB, pool, lane));
    ok!(t, cuMemFreeAsync(at, lane));
    ok!(t, cuStreamSynchronize(lane));
    let kept = value(t, pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    t.holds("what the threshold keeps", kept >= 10 * MIB as u64);
    ok!(t, cuMemPoolTrimTo(pool, usize::MAX));
    t.is(
        "a trim to more changes nothing",
        value(t, pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        kept,
    );
    ok!(t, cuMemPoolTrimTo(pool, 0));
    t.is(
        "trimmed",
        value(t, pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        0,
    );
    t.is("free as before", free_bytes(t), free);
    ok!(t, cuDeviceSetMemPool(0, pool));
    ok!(t, cuDeviceGetMemPool(&mut current, 0));
    t.holds("current", current == pool);
    ok!(t, cuMemAllocAsync(&mut at, MIB, lane));
    t.holds(
        "from the current pool",
        value(t, pool, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT) >= MIB as u64,
    );
    let mut owner: CUmemoryPool = null_mut();
    let attribute = CUpointer_attribute_enum::CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE;
    ok!(
        t,
        cuPointerGetAttribute((&raw mut owner).cast(), attribute, at)
    );
    t.holds("the pointer knows its pool", owner == pool);
    let (mut flags, mut location) = (CUmemAccess_flags_enum(7), property().location);
    ok!(t, cuMemPoolGetAccess(&mut flags, pool, &mut location));
    t.is("access from its own device", flags.0, 3);
    ok!(t, cuMemPoolSetAccess(pool, &access(), 1));
    // With memory in use the pool goes when that goes; the default one is current again.
    ok!(t, cuMemPoolDestroy(pool));
    ok!(t, cuDeviceGetMemPool(&mut current, 0));
    ok!(t, cuDeviceGetDefaultMemPool(&mut default, 0));
    t.holds("the default is current", current == default);
    ok!(t, cuMemsetD8_v2(at, 1, MIB));
    ok!(t, cuMemFreeAsync(at, lane));
    ok!(t, cuStreamSynchronize(lane));
    t.is("free as before", free_bytes(t), free);
    ok!(t, cuStreamDestroy_v2(lane));
}

fn order(t: &Checks) {
    let (_, kernel) = spinner(t);
    let (lane, mut first, mut second) = (stream(t, 1), 0, 0);
    ok!(t, cuMemAllocAsync(&mut first, MIB, lane));
    spin(t, kernel, 100, lane);
    ok!(t, cuMemFreeAsync(first, lane));
    // Its own stream may have it again at once, though the free is still to come.
    ok!(t, cuMemAllocAsync(&mut second, MIB, lane));
    t.holds("reused in its stream", first == second);
    ok!(t, cuMemFreeAsync(second, lane));
    ok!(t, cuStreamSynchronize(lane));
    ok!(t, cuStreamDestroy_v2(lane));
}

fn attributes(t: &Checks) {
    let mut pool = null_mut();
    ok!(t, cuDeviceGetDefaultMemPool(&mut pool, 0));
    for attribute in [
        A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES,
    ] {
        let mut flag = 7i32;
        ok!(
            t,
            cuMemPoolGetAttribute(pool, attribute, (&raw mut flag).cast())
        );
        t.is("on by default", flag, 1);
        flag = 0;
        ok!(
            t,
            cuMemPoolSetAttribute(pool, attribute, (&raw mut flag).cast())
        );
        ok!(
            t,
            cuMemPoolGetAttribute(pool, attribute, (&raw mut flag).cast())
        );
        t.is("off", flag, 0);
    }
    for attribute in [
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH,
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH,
    ] {
        set(t, pool, attribute, 0);
        t.is("a mark that was reset", value(t, pool, attribute), 0);
        let mut wrong = 5u64;
        answers!(
            t,
            CUDA_ERROR_INVALID_VALUE,
            cuMemPoolSetAttribute(pool, attribute, (&raw mut wrong).cast())
        );
    }
    let mut word = 0u64;
    let none = CUmemPool_attribute_enum(900);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemPoolGetAttribute(pool, none, (&raw mut word).cast())
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemPoolSetAttribute(
            pool,
            A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT,
            (&raw mut word).cast()
        )
    );
}
