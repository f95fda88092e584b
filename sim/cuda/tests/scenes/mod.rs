//! What the processes of the tests do; see `driver.rs`.
//!
//! The library is linked in, so that its functions are called by their exported names.
#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::undocumented_unsafe_blocks,
    reason = "every call of a driver function is unsafe; its pointers are locals of the scene"
)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::io::Write as _;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ffi::driver::*;
// Linked for the functions that it exports.
use sim_cuda as _;

/// The call must succeed.
macro_rules! ok {
    ($call:expr) => {
        assert_eq!(unsafe { $call }, Code::CUDA_SUCCESS, stringify!($call))
    };
}

/// The call must fail so.
macro_rules! fails {
    ($call:expr, $code:ident) => {
        assert_eq!(unsafe { $call }, Code::$code, stringify!($call))
    };
}

mod batches;
mod checkpoints;
mod edits;
mod graphs;
mod green;
mod managed;
mod nodes;
mod peers;
mod values;

use values::Gate;

type Code = CUresult;

const GIB: usize = 1 << 30;
const MIB: usize = 1 << 20;

fn context() -> CUcontext {
    ok!(cuInit(0));
    let mut context = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut context, 0));
    ok!(cuCtxSetCurrent(context));
    context
}

fn free_bytes() -> usize {
    let (mut free, mut total) = (0, 0);
    ok!(cuMemGetInfo_v2(&mut free, &mut total));
    assert_eq!(total, 8 * GIB);
    free
}

fn allocate(bytes: usize) -> CUdeviceptr {
    let mut at = 0;
    ok!(cuMemAlloc_v2(&mut at, bytes));
    at
}

fn stream(flags: c_uint) -> CUstream {
    let mut stream = null_mut();
    ok!(cuStreamCreate(&mut stream, flags));
    stream
}

fn event() -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, 0));
    event
}

fn image() -> CString {
    let other = ".visible .global .align 4 .u32 counters[10];
        .visible .entry scale(.param .u64 data, .param .u32 count) { ret; }";
    CString::new(format!("{}\n{other}", sim::kernels::SPIN_PTX)).unwrap()
}

fn module() -> CUmodule {
    let mut module = null_mut();
    ok!(cuModuleLoadData(&mut module, image().as_ptr().cast()));
    module
}

fn function(name: &CStr) -> CUfunction {
    let mut function = null_mut();
    ok!(cuModuleGetFunction(&mut function, module(), name.as_ptr()));
    function
}

/// Launches a kernel of `nanoseconds` that needs the whole device.
fn spin(function: CUfunction, nanoseconds: u64, stream: CUstream) {
    let mut nanoseconds = nanoseconds;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    ok!(cuLaunchKernel(
        function,
        4096,
        1,
        1,
        1024,
        1,
        1,
        0,
        stream,
        parameters,
        null_mut()
    ));
}

/// A number where the interface wants a pointer.
fn number(value: usize) -> *mut c_void {
    std::ptr::without_provenance_mut(value)
}

fn say_ready() {
    println!("ready");
    std::io::stdout().flush().unwrap();
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_device_says_what_it_is() {
    fails!(cuDeviceGetCount(&mut 0), CUDA_ERROR_NOT_INITIALIZED);
    fails!(cuInit(1), CUDA_ERROR_INVALID_VALUE);
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!(version, 13000);
    ok!(cuInit(0));
    ok!(cuInit(0));
    let (mut count, mut device) = (0, -1);
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 1);
    ok!(cuDeviceGet(&mut device, 0));
    fails!(cuDeviceGet(&mut device, 1), CUDA_ERROR_INVALID_DEVICE);
    let mut name = [0 as c_char; 64];
    ok!(cuDeviceGetName(name.as_mut_ptr(), 64, device));
    let name = unsafe { CStr::from_ptr(name.as_ptr()) }.to_str().unwrap();
    assert!(name.contains("stand-in"), "{name}");
    let mut total = 0;
    ok!(cuDeviceTotalMem_v2(&mut total, device));
    assert_eq!(total, 8 * GIB);
    let mut id = [0 as c_char; 13];
    ok!(cuDeviceGetPCIBusId(id.as_mut_ptr(), 13, device));
    let mut same = -1;
    ok!(cuDeviceGetByPCIBusId(&mut same, id.as_ptr()));
    assert_eq!(same, device);
    let mut value = 0;
    let warp = CUdevice_attribute::CU_DEVICE_ATTRIBUTE_WARP_SIZE;
    ok!(cuDeviceGetAttribute(&mut value, warp, device));
    assert_eq!(value, 32);
    for number in 1..CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MAX.0 {
        ok!(cuDeviceGetAttribute(
            &mut value,
            CUdevice_attribute_enum(number),
            device
        ));
    }
    let unknown = CUdevice_attribute_enum(5000);
    fails!(
        cuDeviceGetAttribute(&mut value, unknown, device),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuMemGetInfo_v2(&mut total, &mut total),
        CUDA_ERROR_INVALID_CONTEXT
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn contexts_stack_up_and_primary_ones_are_counted() {
    let primary = context();
    let (mut own, mut seen) = (null_mut(), null_mut());
    ok!(cuCtxCreate_v2(&mut own, 0, 0));
    ok!(cuCtxGetCurrent(&mut seen));
    assert_eq!(seen, own);
    ok!(cuCtxPushCurrent_v2(primary));
    ok!(cuCtxPopCurrent_v2(&mut seen));
    assert_eq!(seen, primary);
    std::thread::spawn(|| {
        let mut seen = std::ptr::dangling_mut();
        ok!(cuCtxGetCurrent(&mut seen));
        assert!(seen.is_null());
        fails!(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
    })
    .join()
    .unwrap();
    ok!(cuCtxDestroy_v2(own));
    ok!(cuCtxGetCurrent(&mut seen));
    assert_eq!(seen, primary);
    let mut again = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut again, 0));
    assert_eq!(again, primary);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    let (mut flags, mut active) = (0, 0);
    ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 1);
    ok!(cuDevicePrimaryCtxRelease_v2(0));
    ok!(cuDevicePrimaryCtxGetState(0, &mut flags, &mut active));
    assert_eq!(active, 0);
    fails!(cuDevicePrimaryCtxRelease_v2(0), CUDA_ERROR_INVALID_CONTEXT);
    fails!(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
}

#[test]
#[ignore = "a scene that another test plays"]
fn memory_is_counted_by_512_bytes_and_over_it_nothing_changes() {
    context();
    assert_eq!(free_bytes(), 8 * GIB);
    let small = allocate(1);
    assert_eq!(free_bytes(), 8 * GIB - 512);
    let (mut at, mut pitch) = (0, 0);
    ok!(cuMemAllocPitch_v2(&mut at, &mut pitch, 700, 10, 4));
    assert_eq!(pitch, 1024);
    assert_eq!(free_bytes(), 8 * GIB - 512 - 10 * 1024);
    let mut untouched = 0xaaaa;
    fails!(
        cuMemAlloc_v2(&mut untouched, 8 * GIB),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    fails!(cuMemAlloc_v2(&mut untouched, 0), CUDA_ERROR_INVALID_VALUE);
    fails!(cuMemAlloc_v2(null_mut(), 1), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(untouched, 0xaaaa);
    ok!(cuMemFree_v2(at));
    ok!(cuMemFree_v2(small));
    fails!(cuMemFree_v2(small), CUDA_ERROR_INVALID_VALUE);
    assert_eq!(free_bytes(), 8 * GIB);
    let whole = allocate(8 * GIB);
    assert_eq!(free_bytes(), 0);
    ok!(cuMemFree_v2(whole));
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_context_frees_its_memory_but_no_physical_handle() {
    context();
    let mut own = null_mut();
    ok!(cuCtxCreate_v2(&mut own, 0, 0));
    allocate(GIB);
    let handle = physical(2 * MIB).unwrap();
    ok!(cuCtxDestroy_v2(own));
    assert_eq!(free_bytes(), 8 * GIB - 2 * MIB);
    ok!(cuMemRelease(handle));
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn the_first_interface_has_addresses_of_32_bits() {
    context();
    let mut at: CUdeviceptr_v1 = 0;
    ok!(cuMemAlloc(&mut at, 4096));
    let mut total = 0;
    let mut free = 0;
    ok!(cuMemGetInfo(&mut free, &mut total));
    assert_eq!(total, c_uint::MAX);
    ok!(cuMemsetD32(at, 0x0102_0304, 1024));
    let mut word = 0u32;
    ok!(cuMemcpyDtoH((&raw mut word).cast(), at + 4092, 4));
    assert_eq!(word, 0x0102_0304);
    assert_eq!(free_bytes(), 8 * GIB - 4096);
    ok!(cuMemFree(at));
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn bytes_arrive_wherever_they_are_sent() {
    context();
    let data: Vec<u8> = (0..3 * MIB).map(|index| (index * 7 % 251) as u8).collect();
    let mut back = vec![0u8; data.len()];
    let (first, second) = (allocate(data.len()), allocate(data.len()));
    ok!(cuMemcpyHtoD_v2(first, data.as_ptr().cast(), data.len()));
    ok!(cuMemcpyDtoD_v2(second, first, data.len()));
    ok!(cuMemcpyDtoH_v2(
        back.as_mut_ptr().cast(),
        second,
        data.len()
    ));
    assert!(data == back);
    back.fill(0);
    ok!(cuMemcpy(back.as_mut_ptr() as u64, second + 100, 1000));
    assert_eq!(data[100..1100], back[..1000]);
    let mut copy: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
    copy.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = first;
    copy.srcPitch = 1000;
    copy.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    copy.dstHost = back.as_mut_ptr().cast();
    copy.dstPitch = 20;
    copy.srcXInBytes = 5;
    copy.srcY = 2;
    copy.WidthInBytes = 10;
    copy.Height = 3;
    ok!(cuMemcpy2D_v2(&copy));
    for row in 0..3 {
        let from = (row + 2) * 1000 + 5;
        assert_eq!(back[row * 20..row * 20 + 10], data[from..from + 10]);
    }
    let beyond = first + data.len() as u64 - 1;
    fails!(
        cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), beyond, 2 * MIB),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuMemcpyHtoD_v2(back.as_ptr() as u64, data.as_ptr().cast(), 4),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn fills_write_their_pattern_and_nothing_beside_it() {
    context();
    let at = allocate(4096);
    let mut back = [0u8; 4096];
    ok!(cuMemsetD8_v2(at, 9, 4096));
    ok!(cuMemsetD16_v2(at + 2, 0x0201, 3));
    ok!(cuMemsetD2D32_v2(at + 100, 64, 0xdead_beef, 2, 2));
    ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), at, 4096));
    assert_eq!(back[..10], [9, 9, 1, 2, 1, 2, 1, 2, 9, 9]);
    for start in [100, 164] {
        assert_eq!(back[start..start + 4], 0xdead_beefu32.to_ne_bytes());
        assert_eq!(back[start + 8..start + 12], [9; 4]);
    }
    fails!(cuMemsetD32_v2(at + 1, 0, 1), CUDA_ERROR_INVALID_VALUE);
    fails!(cuMemsetD8_v2(at, 0, 1 << 20), CUDA_ERROR_INVALID_VALUE);
}

#[test]
#[ignore = "a scene that another test plays"]
fn an_asynchronous_copy_happens_in_its_stream_s_turn() {
    context();
    let kernel = function(c"spin_ns");
    let (at, lane) = (allocate(4), stream(1));
    let mut pinned: *mut c_void = null_mut();
    ok!(cuMemAllocHost_v2(&mut pinned, 8));
    let words: *mut u32 = pinned.cast();
    unsafe { words.write(1) };
    unsafe { words.add(1).write(0) };
    spin(kernel, 50_000_000, lane);
    ok!(cuMemcpyHtoDAsync_v2(at, pinned, 4, lane));
    ok!(cuMemcpyDtoHAsync_v2(
        words.wrapping_add(1).cast(),
        at,
        4,
        lane
    ));
    // Both are still to come: the source may be changed, the target has not been.
    unsafe { words.write(2) };
    assert_eq!(unsafe { words.add(1).read_volatile() }, 0);
    fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
    ok!(cuStreamSynchronize(lane));
    assert_eq!(unsafe { words.add(1).read_volatile() }, 2);
    // Without any call that looks, the bytes arrive as well.
    unsafe { words.write(3) };
    ok!(cuMemcpyHtoDAsync_v2(at, pinned, 4, lane));
    ok!(cuMemcpyDtoHAsync_v2(
        words.wrapping_add(1).cast(),
        at,
        4,
        lane
    ));
    let deadline = Instant::now() + Duration::from_secs(5);
    while unsafe { words.add(1).read_volatile() } != 3 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    ok!(cuMemFreeHost(pinned));
}

#[test]
#[ignore = "a scene that another test plays"]
fn pageable_memory_may_be_changed_once_the_call_is_back() {
    context();
    let kernel = function(c"spin_ns");
    let (at, lane) = (allocate(4), stream(1));
    let mut word = 1u32;
    spin(kernel, 20_000_000, lane);
    ok!(cuMemcpyHtoDAsync_v2(at, (&raw const word).cast(), 4, lane));
    word = 2;
    assert_eq!(word, 2);
    ok!(cuMemcpyDtoHAsync_v2((&raw mut word).cast(), at, 4, lane));
    assert_eq!(word, 1);
}

fn property() -> CUmemAllocationProp {
    let mut property: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    property.type_ = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    property
}

fn physical(bytes: usize) -> Result<CUmemGenericAllocationHandle, CUresult> {
    let mut handle = 0;
    match unsafe { cuMemCreate(&mut handle, bytes, &property(), 0) } {
        Code::CUDA_SUCCESS => Ok(handle),
        code => Err(code),
    }
}

fn access() -> CUmemAccessDesc {
    let mut access: CUmemAccessDesc = unsafe { std::mem::zeroed() };
    access.location = property().location;
    access.flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    access
}

#[test]
#[ignore = "a scene that another test plays"]
fn physical_memory_lives_until_its_last_handle_and_mapping() {
    context();
    let granularity = 2 * MIB;
    assert_eq!(physical(MIB), Err(Code::CUDA_ERROR_INVALID_VALUE));
    assert_eq!(physical(16 * GIB), Err(Code::CUDA_ERROR_OUT_OF_MEMORY));
    let handle = physical(granularity).unwrap();
    let mut start = 0;
    ok!(cuMemAddressReserve(&mut start, 4 * granularity, 0, 0, 0));
    ok!(cuMemMap(start, granularity, 0, handle, 0));
    ok!(cuMemMap(
        start + granularity as u64,
        granularity,
        0,
        handle,
        0
    ));
    fails!(
        cuMemMap(start, granularity, 0, handle, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuMemSetAccess(start, 2 * granularity, &access(), 1));
    // Both are the same bytes; a copy may cross from one to the other.
    ok!(cuMemsetD8_v2(start, 5, 2 * granularity));
    ok!(cuMemsetD8_v2(start, 6, 1));
    let mut byte = 0u8;
    ok!(cuMemcpyDtoH_v2(
        (&raw mut byte).cast(),
        start + granularity as u64,
        1
    ));
    assert_eq!(byte, 6);
    assert_eq!(free_bytes(), 8 * GIB - granularity);
    ok!(cuMemRelease(handle));
    let mut again = 0;
    ok!(cuMemRetainAllocationHandle(
        &mut again,
        start as *mut c_void
    ));
    ok!(cuMemUnmap(start, granularity));
    fails!(
        cuMemAddressFree(start, 4 * granularity),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(cuMemUnmap(start, granularity), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemUnmap(start + granularity as u64, granularity));
    assert_eq!(free_bytes(), 8 * GIB - granularity);
    ok!(cuMemRelease(again));
    assert_eq!(free_bytes(), 8 * GIB);
    fails!(cuMemRelease(again), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemAddressFree(start, 4 * granularity));
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_mapping_without_access_is_not_touched() {
    context();
    let handle = physical(2 * MIB).unwrap();
    let mut start = 0;
    ok!(cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0));
    fails!(cuMemsetD8_v2(start, 1, 1), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemMap(start, 2 * MIB, 0, handle, 0));
    fails!(cuMemsetD8_v2(start, 1, 1), CUDA_ERROR_INVALID_VALUE);
    ok!(cuMemSetAccess(start, 2 * MIB, &access(), 1));
    ok!(cuMemsetD8_v2(start, 1, 1));
}

fn pool_value(pool: CUmemoryPool, attribute: CUmemPool_attribute) -> u64 {
    let mut value = 0u64;
    ok!(cuMemPoolGetAttribute(
        pool,
        attribute,
        (&raw mut value).cast()
    ));
    value
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_pool_reserves_in_steps_and_gives_back_what_it_may() {
    use CUmemPool_attribute_enum as A;
    context();
    let lane = stream(1);
    let mut pool = null_mut();
    ok!(cuDeviceGetDefaultMemPool(&mut pool, 0));
    let (mut first, mut second) = (0, 0);
    ok!(cuMemAllocAsync(&mut first, 1000, lane));
    ok!(cuMemAllocAsync(&mut second, MIB, lane));
    assert_ne!(first, second);
    let used = 1024 + MIB as u64;
    assert_eq!(pool_value(pool, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), used);
    let reserved = pool_value(pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
    assert_eq!(free_bytes(), 8 * GIB - reserved as usize);
    let mut threshold = u64::MAX;
    let release = A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD;
    ok!(cuMemPoolSetAttribute(
        pool,
        release,
        (&raw mut threshold).cast()
    ));
    ok!(cuMemFreeAsync(first, lane));
    ok!(cuMemFree_v2(second));
    ok!(cuStreamSynchronize(lane));
    assert_eq!(pool_value(pool, A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT), 0);
    assert_eq!(
        pool_value(pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT),
        reserved
    );
    ok!(cuMemPoolTrimTo(pool, 0));
    assert_eq!(pool_value(pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), 0);
    assert_eq!(
        pool_value(pool, A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH),
        reserved
    );
    assert_eq!(free_bytes(), 8 * GIB);
    threshold = 0;
    ok!(cuMemPoolSetAttribute(
        pool,
        release,
        (&raw mut threshold).cast()
    ));
    ok!(cuMemAllocAsync(&mut first, 7 * GIB, lane));
    fails!(
        cuMemAllocAsync(&mut second, 7 * GIB, lane),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    ok!(cuMemFreeAsync(first, lane));
    // What its own stream has freed, it may have again at once.
    ok!(cuMemAllocAsync(&mut second, 7 * GIB, lane));
    ok!(cuMemFreeAsync(second, lane));
    ok!(cuStreamSynchronize(lane));
    assert_eq!(free_bytes(), 8 * GIB);
    fails!(cuMemPoolDestroy(pool), CUDA_ERROR_NOT_PERMITTED);
    // Memory that is no pool's is freed in the stream's turn as well.
    let plain = allocate(GIB);
    spin(function(c"spin_ns"), 50_000_000, lane);
    ok!(cuMemFreeAsync(plain, lane));
    assert_eq!(free_bytes(), 7 * GIB);
    fails!(cuMemFree_v2(plain), CUDA_ERROR_INVALID_VALUE);
    ok!(cuStreamSynchronize(lane));
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn queued_kernels_take_exactly_their_time() {
    context();
    let (kernel, lane) = (function(c"spin_ns"), stream(1));
    let (begin, end) = (event(), event());
    // Long enough that everything below is queued before it ends, also on a loaded machine.
    spin(kernel, 500_000_000, lane);
    ok!(cuEventRecord(begin, lane));
    for _ in 0..100 {
        spin(kernel, 1_234_567, lane);
    }
    ok!(cuEventRecord(end, lane));
    let mut milliseconds = 0.0f32;
    fails!(
        cuEventElapsedTime(&mut milliseconds, begin, end),
        CUDA_ERROR_NOT_READY
    );
    ok!(cuEventSynchronize(end));
    ok!(cuEventElapsedTime_v2(&mut milliseconds, begin, end));
    assert_eq!(milliseconds, 123.4567);
}

#[test]
#[ignore = "a scene that another test plays"]
fn streams_wait_for_events_and_for_the_legacy_stream() {
    context();
    let kernel = function(c"spin_ns");
    let (first, second, apart) = (stream(1), stream(1), stream(1));
    let gate = event();
    spin(kernel, 40_000_000, first);
    ok!(cuEventRecord(gate, first));
    ok!(cuStreamWaitEvent(second, gate, 0));
    ok!(cuStreamQuery(apart));
    fails!(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
    ok!(cuStreamSynchronize(second));
    ok!(cuStreamQuery(first));
    // Blocking streams and the legacy stream wait for each other; others do not.
    let (blocking, free) = (stream(0), stream(1));
    let (before, middle, after) = (event(), event(), event());
    spin(kernel, 10_000_000, blocking);
    ok!(cuEventRecord(before, blocking));
    spin(kernel, 10_000_000, null_mut());
    ok!(cuEventRecord(middle, null_mut()));
    ok!(cuEventRecord(after, blocking));
    ok!(cuStreamQuery(free));
    fails!(cuStreamQuery(null_mut()), CUDA_ERROR_NOT_READY);
    ok!(cuStreamSynchronize(blocking));
    let mut milliseconds = 0.0;
    ok!(cuEventElapsedTime(&mut milliseconds, before, middle));
    assert_eq!(milliseconds, 10.0);
    ok!(cuEventElapsedTime(&mut milliseconds, middle, after));
    assert_eq!(milliseconds, 0.0);
}

static CALLS: AtomicU32 = AtomicU32::new(0);

unsafe extern "C" fn count_up(argument: *mut c_void) {
    std::thread::sleep(Duration::from_millis(30));
    CALLS.fetch_add(argument as usize as u32, Ordering::SeqCst);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_host_function_runs_in_its_turn_and_holds_its_stream() {
    context();
    let (kernel, lane, other) = (function(c"spin_ns"), stream(1), stream(1));
    spin(kernel, 20_000_000, lane);
    ok!(cuLaunchHostFunc(lane, Some(count_up), number(1)));
    ok!(cuLaunchHostFunc(lane, Some(count_up), number(10)));
    let done = event();
    ok!(cuEventRecord(done, lane));
    ok!(cuStreamWaitEvent(other, done, 0));
    assert_eq!(CALLS.load(Ordering::SeqCst), 0);
    let begun = Instant::now();
    ok!(cuStreamSynchronize(other));
    assert_eq!(CALLS.load(Ordering::SeqCst), 11);
    assert!(begun.elapsed() >= Duration::from_millis(60));
    fails!(
        cuLaunchHostFunc(lane, None, null_mut()),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn the_launch_call_blocks_when_a_thousand_wait() {
    context();
    let (kernel, lane) = (function(c"spin_ns"), stream(1));
    spin(kernel, 300_000_000, lane);
    let begun = Instant::now();
    let mut launched = 0;
    while begun.elapsed() < Duration::from_millis(150) && launched < 3000 {
        spin(kernel, 1_000, lane);
        launched += 1;
    }
    assert!((1000..1100).contains(&launched), "{launched}");
    ok!(cuStreamSynchronize(lane));
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_launch_that_cannot_be_is_refused() {
    context();
    let kernel = function(c"scale");
    let mut words = [0u64; 2];
    let mut places = words
        .each_mut()
        .map(|word| (&raw mut *word).cast::<c_void>());
    let places = places.as_mut_ptr();
    let launch = |grid: c_uint, block: c_uint, shared: c_uint, stream: CUstream, places| unsafe {
        cuLaunchKernel(
            kernel,
            grid,
            1,
            1,
            block,
            1,
            1,
            shared,
            stream,
            places,
            null_mut(),
        )
    };
    assert_eq!(launch(1, 1, 0, null_mut(), places), Code::CUDA_SUCCESS);
    assert_eq!(
        launch(0, 1, 0, null_mut(), places),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        launch(1, 1025, 0, null_mut(), places),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        launch(1, 1, 49_153, null_mut(), places),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(
        launch(1, 1, 0, null_mut(), null_mut()),
        Code::CUDA_ERROR_INVALID_VALUE
    );
    let mut missing = null_mut();
    fails!(
        cuModuleGetFunction(&mut missing, module(), c"nothing".as_ptr()),
        CUDA_ERROR_NOT_FOUND
    );
    let bad = c"no code at all";
    fails!(
        cuModuleLoadData(&mut null_mut(), bad.as_ptr().cast()),
        CUDA_ERROR_INVALID_IMAGE
    );
    let mut other = null_mut();
    ok!(cuCtxCreate_v2(&mut other, 0, 0));
    assert_eq!(
        launch(1, 1, 0, null_mut(), places),
        Code::CUDA_ERROR_INVALID_HANDLE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn kernels_of_libraries_launch_like_functions() {
    context();
    let mut library = null_mut();
    let (none, many) = (null_mut(), null_mut());
    ok!(cuLibraryLoadData(
        &mut library,
        image().as_ptr().cast(),
        null_mut(),
        none,
        0,
        null_mut(),
        many,
        0
    ));
    let (mut kernel, mut count) = (null_mut(), 0);
    ok!(cuLibraryGetKernelCount(&mut count, library));
    assert_eq!(count, 2);
    ok!(cuLibraryGetKernel(
        &mut kernel,
        library,
        c"spin_ns".as_ptr()
    ));
    let mut function = null_mut();
    ok!(cuKernelGetFunction(&mut function, kernel));
    let (mut offset, mut bytes) = (9, 0);
    ok!(cuKernelGetParamInfo(kernel, 0, &mut offset, &mut bytes));
    assert_eq!((offset, bytes), (0, 8));
    let lane = stream(1);
    spin(function, 1_000_000, lane);
    spin(kernel.cast(), 1_000_000, lane);
    let mut config: CUlaunchConfig = unsafe { std::mem::zeroed() };
    (config.gridDimX, config.gridDimY, config.gridDimZ) = (1, 1, 1);
    (config.blockDimX, config.blockDimY, config.blockDimZ) = (32, 1, 1);
    config.hStream = lane;
    let mut nanoseconds = 1_000_000u64;
    let mut size = size_of::<u64>();
    let mut extra = [
        number(1),
        (&raw mut nanoseconds).cast(),
        number(2),
        (&raw mut size).cast(),
        null_mut(),
    ];
    ok!(cuLaunchKernelEx(
        &config,
        function,
        null_mut(),
        extra.as_mut_ptr()
    ));
    ok!(cuStreamSynchronize(lane));
    let (mut at, mut bytes) = (0, 0);
    ok!(cuLibraryGetGlobal(
        &mut at,
        &mut bytes,
        library,
        c"counters".as_ptr()
    ));
    assert_eq!(bytes, 40);
    ok!(cuMemsetD8_v2(at, 1, bytes));
    ok!(cuLibraryUnload(library));
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_pointer_says_what_it_is() {
    use CUpointer_attribute_enum as A;
    let own = context();
    let at = allocate(100);
    let (mut kind, mut device, mut start) = (0u32, -1 as c_int, 0u64);
    let mut owner: CUcontext = null_mut();
    ok!(cuPointerGetAttribute(
        (&raw mut kind).cast(),
        A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
        at + 5
    ));
    ok!(cuPointerGetAttribute(
        (&raw mut device).cast(),
        A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        at
    ));
    ok!(cuPointerGetAttribute(
        (&raw mut start).cast(),
        A::CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        at + 9
    ));
    ok!(cuPointerGetAttribute(
        (&raw mut owner).cast(),
        A::CU_POINTER_ATTRIBUTE_CONTEXT,
        at
    ));
    assert_eq!((kind, device, start, owner), (2, 0, at, own));
    let local = 0u32;
    let local = (&raw const local) as u64;
    let attribute = A::CU_POINTER_ATTRIBUTE_MEMORY_TYPE;
    fails!(
        cuPointerGetAttribute((&raw mut kind).cast(), attribute, local),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut wanted = [attribute, A::CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL];
    let mut places = [(&raw mut kind).cast::<c_void>(), (&raw mut device).cast()];
    ok!(cuPointerGetAttributes(
        2,
        wanted.as_mut_ptr(),
        places.as_mut_ptr(),
        local
    ));
    assert_eq!((kind, device), (0, -2));
    let (mut base, mut bytes) = (0, 0);
    ok!(cuMemGetAddressRange_v2(&mut base, &mut bytes, at + 99));
    assert_eq!((base, bytes), (at, 100));
}

#[test]
#[ignore = "a scene that another test plays"]
fn made_up_and_stale_handles_are_errors() {
    context();
    let lane = stream(0);
    ok!(cuStreamDestroy_v2(lane));
    fails!(cuStreamSynchronize(lane), CUDA_ERROR_INVALID_HANDLE);
    fails!(
        cuStreamDestroy_v2(0xdead_beef as CUstream),
        CUDA_ERROR_INVALID_HANDLE
    );
    fails!(cuEventQuery(0x10 as CUevent), CUDA_ERROR_INVALID_HANDLE);
    fails!(cuModuleUnload(0x10 as CUmodule), CUDA_ERROR_INVALID_HANDLE);
    fails!(
        cuCtxPushCurrent_v2(0x10 as CUcontext),
        CUDA_ERROR_INVALID_CONTEXT
    );
    fails!(cuMemRelease(0x10), CUDA_ERROR_INVALID_VALUE);
    fails!(cuMemFree_v2(0x10), CUDA_ERROR_INVALID_VALUE);
    // Slots of streams and events come back.
    for _ in 0..20_000 {
        let (lane, mark) = (stream(1), event());
        ok!(cuEventRecord(mark, lane));
        ok!(cuEventSynchronize(mark));
        ok!(cuEventDestroy_v2(mark));
        ok!(cuStreamDestroy_v2(lane));
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_forked_child_is_not_initialised() {
    context();
    let at = allocate(MIB);
    let child = unsafe { libc_fork() };
    if child == 0 {
        let codes = unsafe { [cuMemFree_v2(at), cuInit(0), cuCtxSynchronize()] };
        let is_right = codes
            .iter()
            .all(|code| *code == Code::CUDA_ERROR_NOT_INITIALIZED);
        unsafe { libc_exit(if is_right { 0 } else { 1 }) };
    }
    assert_eq!(wait_for(child), 0);
    ok!(cuMemFree_v2(at));
}

unsafe extern "C" {
    #[link_name = "fork"]
    fn libc_fork() -> c_int;
    #[link_name = "_exit"]
    fn libc_exit(code: c_int) -> !;
    #[link_name = "waitpid"]
    fn libc_waitpid(pid: c_int, status: *mut c_int, options: c_int) -> c_int;
    #[link_name = "sleep"]
    fn libc_sleep(seconds: c_uint) -> c_uint;
    #[link_name = "kill"]
    fn libc_kill(pid: c_int, signal: c_int) -> c_int;
    #[link_name = "getpid"]
    fn libc_getpid() -> c_int;
}

fn wait_for(child: c_int) -> c_int {
    let mut status = 0;
    assert_eq!(unsafe { libc_waitpid(child, &mut status, 0) }, child);
    status
}

#[test]
#[ignore = "a scene that another test plays"]
fn forks_a_child_that_outlives_it() {
    context();
    allocate(GIB);
    if unsafe { libc_fork() } == 0 {
        // Long after the parent has been killed.
        unsafe { libc_sleep(5) };
        unsafe { libc_exit(0) };
    }
    say_ready();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "a scene that another test plays"]
fn managed_memory_is_the_host_s_as_well() {
    context();
    let mut at = 0;
    ok!(cuMemAllocManaged(&mut at, 3 * MIB, 1));
    assert_eq!(free_bytes(), 8 * GIB - 3 * MIB);
    let words = at as *mut u32;
    unsafe { words.write_volatile(17) };
    let mut word = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), at, 4));
    assert_eq!(word, 17);
    ok!(cuMemsetD32_v2(at, 18, 1));
    ok!(cuCtxSynchronize());
    assert_eq!(unsafe { words.read_volatile() }, 18);
    ok!(cuMemFree_v2(at));
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn no_private_table_is_handed_out() {
    for seed in 0..=255u8 {
        let id = CUuuid {
            bytes: [seed as c_char; 16],
        };
        let mut table = 0xaa as *const c_void;
        fails!(cuGetExportTable(&mut table, &id), CUDA_ERROR_NOT_FOUND);
        assert_eq!(table as usize, 0xaa);
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn signals_stay_with_the_program() {
    static CAUGHT: AtomicU32 = AtomicU32::new(0);
    extern "C" fn catch(_: c_int) {
        CAUGHT.fetch_add(1, Ordering::SeqCst);
    }
    unsafe extern "C" {
        fn signal(number: c_int, handler: extern "C" fn(c_int)) -> usize;
    }
    unsafe { signal(10, catch) };
    context();
    let (kernel, lane) = (function(c"spin_ns"), stream(1));
    spin(kernel, 100_000_000, lane);
    let pid = unsafe { libc_getpid() };
    let sender = std::thread::spawn(move || {
        for _ in 0..50 {
            unsafe { libc_kill(pid, 10) };
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    ok!(cuStreamSynchronize(lane));
    allocate(MIB);
    sender.join().unwrap();
    assert!(CAUGHT.load(Ordering::SeqCst) > 0);
}

/// Numbers that look random; the same for the same seed.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}

/// One of many things that a program does, chosen by `numbers`, with everything cleaned up.
fn do_something(numbers: &mut Numbers, kernel: CUfunction) {
    let bytes = 4 + numbers.below(300_000) as usize;
    let lane = stream(numbers.below(2) as c_uint);
    let value = numbers.below(256) as u8;
    match numbers.below(5) {
        0 => {
            let at = allocate(bytes);
            ok!(cuMemsetD8Async(at, value, bytes, lane));
            let mut back = vec![0u8; bytes];
            ok!(cuMemcpyDtoHAsync_v2(
                back.as_mut_ptr().cast(),
                at,
                bytes,
                lane
            ));
            assert!(back.iter().all(|byte| *byte == value));
            ok!(cuMemFree_v2(at));
        }
        1 => {
            let mut at = 0;
            ok!(cuMemAllocAsync(&mut at, bytes, lane));
            ok!(cuMemsetD8Async(at, value, bytes, lane));
            let (mut first, mut last) = (0u8, 0u8);
            let end = at + bytes as u64 - 1;
            ok!(cuMemcpyDtoH_v2((&raw mut first).cast(), at, 0));
            ok!(cuStreamSynchronize(lane));
            ok!(cuMemcpyDtoH_v2((&raw mut first).cast(), at, 1));
            ok!(cuMemcpyDtoH_v2((&raw mut last).cast(), end, 1));
            assert_eq!((first, last), (value, value));
            ok!(cuMemFreeAsync(at, lane));
        }
        2 => {
            let (begin, end) = (event(), event());
            ok!(cuEventRecord(begin, lane));
            for _ in 0..numbers.below(20) {
                spin(kernel, numbers.below(50_000), lane);
            }
            ok!(cuEventRecord(end, lane));
            ok!(cuEventSynchronize(end));
            let mut milliseconds = -1.0;
            ok!(cuEventElapsedTime(&mut milliseconds, begin, end));
            assert!(milliseconds >= 0.0);
            ok!(cuEventDestroy_v2(begin));
            ok!(cuEventDestroy_v2(end));
        }
        3 => {
            let handle = physical(2 * MIB).unwrap();
            let mut start = 0;
            ok!(cuMemAddressReserve(&mut start, 2 * MIB, 0, 0, 0));
            ok!(cuMemMap(start, 2 * MIB, 0, handle, 0));
            ok!(cuMemSetAccess(start, 2 * MIB, &access(), 1));
            ok!(cuMemRelease(handle));
            ok!(cuMemsetD8_v2(start, value, 2 * MIB));
            ok!(cuMemUnmap(start, 2 * MIB));
            ok!(cuMemAddressFree(start, 2 * MIB));
        }
        _ => {
            spin(kernel, numbers.below(500_000), null_mut());
            spin(kernel, numbers.below(500_000), lane);
            let mut other = null_mut();
            ok!(cuCtxCreate_v2(&mut other, 0, 0));
            allocate(bytes);
            ok!(cuCtxDestroy_v2(other));
            ok!(cuStreamSynchronize(lane));
        }
    }
    ok!(cuStreamDestroy_v2(lane));
}

#[test]
#[ignore = "a scene that another test plays"]
fn eight_threads_do_not_disturb_each_other() {
    let own = context() as usize;
    let kernel = function(c"spin_ns") as usize;
    let threads: Vec<_> = (1..=8u64)
        .map(|seed| {
            std::thread::spawn(move || {
                ok!(cuCtxSetCurrent(own as CUcontext));
                let mut numbers = Numbers(seed * 0x9e37_79b9);
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(2) {
                    do_something(&mut numbers, kernel as CUfunction);
                }
            })
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
    ok!(cuCtxSynchronize());
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn does_this_and_that_until_it_is_killed() {
    context();
    let kernel = function(c"spin_ns");
    let mut numbers = Numbers(u64::from(std::process::id()) * 0x9e37_79b9);
    say_ready();
    loop {
        do_something(&mut numbers, kernel);
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn holds_three_gibibytes_and_computes() {
    context();
    allocate(GIB);
    physical(2 * GIB).unwrap();
    spin(function(c"spin_ns"), u64::MAX / 4, stream(1));
    say_ready();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "a scene that another test plays"]
fn its_device_falls_off_the_bus() {
    let own = context();
    let mut second = null_mut();
    ok!(cuDevicePrimaryCtxRetain(&mut second, 1));
    let kernel = function(c"spin_ns");
    let (lane, done) = (stream(1), event());
    let at = allocate(MIB);
    spin(kernel, u64::MAX / 4, lane);
    spin(kernel, 1000, lane);
    ok!(cuEventRecord(done, lane));
    let waiting = [lane as usize, 0].map(|lane| {
        let (own, done) = (own as usize, done as usize);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(own as CUcontext));
            if lane == 0 {
                fails!(
                    cuEventSynchronize(done as CUevent),
                    CUDA_ERROR_LAUNCH_FAILED
                );
            } else {
                fails!(
                    cuStreamSynchronize(lane as CUstream),
                    CUDA_ERROR_LAUNCH_FAILED
                );
            }
        })
    });
    std::thread::sleep(Duration::from_millis(20));
    // The third launch finds the device gone, and so does whatever comes after.
    fails!(
        cuLaunchKernel(
            kernel,
            1,
            1,
            1,
            1,
            1,
            1,
            0,
            lane,
            [(&raw mut *Box::leak(Box::new(1u64))).cast::<c_void>()].as_mut_ptr(),
            null_mut()
        ),
        CUDA_ERROR_LAUNCH_FAILED
    );
    for thread in waiting {
        thread.join().unwrap();
    }
    let (mut out, mut free, mut total) = (7, 7, 7);
    fails!(cuMemAlloc_v2(&mut out, 512), CUDA_ERROR_LAUNCH_FAILED);
    fails!(
        cuMemGetInfo_v2(&mut free, &mut total),
        CUDA_ERROR_LAUNCH_FAILED
    );
    assert_eq!((out, free, total), (7, 7, 7));
    fails!(cuMemFree_v2(at), CUDA_ERROR_LAUNCH_FAILED);
    fails!(cuCtxSynchronize(), CUDA_ERROR_LAUNCH_FAILED);
    fails!(cuStreamQuery(lane), CUDA_ERROR_LAUNCH_FAILED);
    fails!(cuEventQuery(done), CUDA_ERROR_LAUNCH_FAILED);
    fails!(
        cuMemcpyDtoH_v2((&raw mut out).cast(), at, 8),
        CUDA_ERROR_LAUNCH_FAILED
    );
    assert_eq!(physical(2 * MIB), Err(Code::CUDA_ERROR_LAUNCH_FAILED));
    // The device is counted still, and nobody gets a context on it.
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 2);
    let mut other = null_mut();
    fails!(
        cuCtxCreate_v2(&mut other, 0, 0),
        CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    // The other one goes on.
    ok!(cuCtxSetCurrent(second));
    let lane = stream(1);
    spin(function(c"spin_ns"), 1000, lane);
    ok!(cuStreamSynchronize(lane));
    let at = allocate(MIB);
    ok!(cuMemFree_v2(at));
}

#[test]
#[ignore = "a scene that another test plays"]
fn waits_until_its_device_is_lost() {
    context();
    let lane = stream(1);
    spin(function(c"spin_ns"), u64::MAX / 4, lane);
    say_ready();
    fails!(cuStreamSynchronize(lane), CUDA_ERROR_LAUNCH_FAILED);
    fails!(cuMemAlloc_v2(&mut 0, 512), CUDA_ERROR_LAUNCH_FAILED);
    // What is lost can be left.
    ok!(cuStreamDestroy_v2(lane));
    ok!(cuDevicePrimaryCtxRelease_v2(0));
}

#[test]
#[ignore = "a scene that another test plays"]
fn finds_its_device_lost() {
    ok!(cuInit(0));
    let (mut count, mut own) = (0, null_mut());
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 2);
    fails!(
        cuDevicePrimaryCtxRetain(&mut own, 0),
        CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    ok!(cuDevicePrimaryCtxRetain(&mut own, 1));
}

#[test]
#[ignore = "a scene that another test plays"]
fn finds_five_gibibytes_free() {
    context();
    assert_eq!(free_bytes(), 5 * GIB);
    fails!(cuMemAlloc_v2(&mut 0, 5 * GIB + 1), CUDA_ERROR_OUT_OF_MEMORY);
    allocate(5 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn meets_the_end_of_the_gpu_process() {
    context();
    let lane = stream(1);
    let kernel = function(c"spin_ns");
    spin(kernel, u64::MAX / 4, lane);
    say_ready();
    fails!(cuStreamSynchronize(lane), CUDA_ERROR_DEVICE_UNAVAILABLE);
    fails!(cuMemAlloc_v2(&mut 0, 1), CUDA_ERROR_DEVICE_UNAVAILABLE);
    fails!(
        cuMemGetInfo_v2(&mut 0, &mut 0),
        CUDA_ERROR_DEVICE_UNAVAILABLE
    );
    fails!(cuCtxSynchronize(), CUDA_ERROR_DEVICE_UNAVAILABLE);
    let mut nanoseconds = 1u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    fails!(
        cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, lane, parameters, null_mut()),
        CUDA_ERROR_DEVICE_UNAVAILABLE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn finds_no_device() {
    fails!(cuInit(0), CUDA_ERROR_NO_DEVICE);
    fails!(cuInit(0), CUDA_ERROR_NO_DEVICE);
    fails!(cuDeviceGetCount(&mut 0), CUDA_ERROR_NOT_INITIALIZED);
    let mut name = null();
    ok!(cuGetErrorName(Code::CUDA_ERROR_NO_DEVICE, &mut name));
    assert_eq!(unsafe { CStr::from_ptr(name) }, c"CUDA_ERROR_NO_DEVICE");
}

#[test]
#[ignore = "a scene that another test plays"]
fn sees_the_second_device_only() {
    context();
    let mut count = 0;
    ok!(cuDeviceGetCount(&mut count));
    assert_eq!(count, 1);
    let mut uuid = CUuuid { bytes: [0; 16] };
    ok!(cuDeviceGetUuid_v2(&mut uuid, 0));
    assert_eq!(uuid.bytes[15], 2);
    let at = allocate(GIB);
    ok!(cuMemsetD8_v2(at, 1, 100));
    ok!(cuCtxSynchronize());
    let gpu = sim::client::Gpu::connect().unwrap();
    assert_eq!((gpu.memory(0).used, gpu.memory(1).used), (0, 1 << 30));
}

#[test]
#[ignore = "a scene that another test plays"]
fn pays_300_mebibytes_for_each_context() {
    context();
    assert_eq!(free_bytes(), 8 * GIB - 300 * MIB);
    let mut other = null_mut();
    ok!(cuCtxCreate_v2(&mut other, 0, 0));
    assert_eq!(free_bytes(), 8 * GIB - 600 * MIB);
    ok!(cuCtxDestroy_v2(other));
    assert_eq!(free_bytes(), 8 * GIB - 300 * MIB);
}

fn look_up(name: &CStr, version: c_int, flags: u64) -> (CUresult, usize, u32) {
    let (mut address, mut why) = (0xaa as *mut c_void, CUdriverProcAddressQueryResult_enum(77));
    let code =
        unsafe { cuGetProcAddress_v2(name.as_ptr(), &mut address, version, flags, &mut why) };
    (code, address as usize, why.0)
}

#[test]
#[ignore = "a scene that another test plays"]
fn finds_nothing_newer_than_12_2() {
    let mut version = 0;
    ok!(cuDriverGetVersion(&mut version));
    assert_eq!(version, 12020);
    assert_eq!(
        look_up(c"cuGreenCtxCreate", 13000, 0),
        (Code::CUDA_SUCCESS, 0, 1)
    );
    ok!(cuInit(0));
    assert_eq!(
        look_up(c"cuGreenCtxCreate", 13000, 0),
        (Code::CUDA_SUCCESS, 0, 1)
    );
    assert_eq!(look_up(c"cuInit", 13000, 0).2, 0);
}

#[test]
#[ignore = "a scene that another test plays"]
fn look_ups_agree_with_the_loader() {
    let path = std::env::var_os("SIM_CUDA_LIBRARY").unwrap();
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    let address = |name: &str| {
        let symbol = unsafe { library.get::<*const c_void>(name.as_bytes()) };
        let symbol = symbol.unwrap_or_else(|_| panic!("{name} is not exported"));
        unsafe { symbol.try_as_raw_ptr() }.unwrap()
    };
    type LookUp = unsafe extern "C" fn(
        *const c_char,
        *mut *mut c_void,
        c_int,
        u64,
        *mut CUdriverProcAddressQueryResult,
    ) -> CUresult;
    let look_up: LookUp = unsafe { std::mem::transmute(address("cuGetProcAddress_v2")) };
    let mut seen = std::collections::HashSet::new();
    for symbol in ffi::symbols::DRIVER {
        let exported = address(symbol.name);
        assert!(seen.insert(exported), "{} shares its address", symbol.name);
        if symbol.since == 0 || symbol.since > 13000 {
            continue;
        }
        let name = CString::new(symbol.base).unwrap();
        let flags = if symbol.per_thread { 2 } else { 0 };
        let mut found = null_mut();
        let code = unsafe {
            look_up(
                name.as_ptr(),
                &mut found,
                symbol.since as c_int,
                flags,
                null_mut(),
            )
        };
        assert_eq!(code, Code::CUDA_SUCCESS);
        assert_eq!(found, exported, "{}", symbol.name);
    }
    let mut untouched = 0xaa as *mut c_void;
    fails!(
        cuGetProcAddress(c"cuNothing".as_ptr(), &mut untouched, 13000, 0),
        CUDA_ERROR_NOT_FOUND
    );
    fails!(
        cuGetProcAddress(c"cuInit".as_ptr(), &mut untouched, 13000, 4),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(untouched as usize, 0xaa);
    assert_eq!(
        super::scenes::look_up(c"", 0, 0),
        (Code::CUDA_SUCCESS, 0, 1)
    );
    assert_eq!(
        super::scenes::look_up(c"cuMemAlloc", 1, 0),
        (Code::CUDA_SUCCESS, 0, 2)
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn null_mode_is_quick() {
    context();
    let (kernel, lane) = (function(c"spin_ns"), stream(1));
    let time = |what: &str, count: u32, mut call: Box<dyn FnMut()>| {
        let mut best = f64::MAX;
        for _ in 0..20 {
            let begun = Instant::now();
            (0..count).for_each(|_| call());
            best = best.min(begun.elapsed().as_nanos() as f64 / f64::from(count));
        }
        println!("{what}: {best:.1} ns");
    };
    time(
        "launch",
        20_000,
        Box::new(move || spin(kernel, 1_000_000_000, lane)),
    );
    time(
        "allocate and free",
        20_000,
        Box::new(|| {
            let at = allocate(4096);
            ok!(cuMemFree_v2(at));
        }),
    );
    let at = allocate(16);
    ok!(cuMemsetD8_v2(at, 3, 16));
    let mut back = [0u8; 16];
    ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), at, 16));
    assert_eq!(back, [3; 16]);
    ok!(cuStreamSynchronize(lane));
    let (begin, end) = (event(), event());
    ok!(cuEventRecord(begin, lane));
    ok!(cuEventRecord(end, lane));
    let mut milliseconds = -1.0;
    ok!(cuEventElapsedTime(&mut milliseconds, begin, end));
    assert!(milliseconds >= 0.0);
}

#[test]
#[ignore = "a scene that another test plays"]
fn cudarc_computes() {
    use cudarc::driver::{CudaContext, result, sys};
    let context = CudaContext::new(0).unwrap();
    let lane = context.new_stream().unwrap();
    let data: Vec<f32> = (0..10_000).map(|index| index as f32).collect();
    let there = lane.clone_htod(&data).unwrap();
    let copy = lane.clone_dtod(&there).unwrap();
    assert_eq!(lane.clone_dtoh(&copy).unwrap(), data);
    let zeros = lane.alloc_zeros::<u32>(1000).unwrap();
    assert_eq!(lane.clone_dtoh(&zeros).unwrap(), [0; 1000]);
    let image = CString::new(sim::kernels::SPIN_PTX).unwrap();
    let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.unwrap();
    let name = CString::new("spin_ns").unwrap();
    let kernel = unsafe { result::module::get_function(module, name) }.unwrap();
    let flags = Some(sys::CUevent_flags::CU_EVENT_DEFAULT);
    let begin = lane.record_event(flags).unwrap();
    let mut nanoseconds = 5_000_000u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let one = (1, 1, 1);
    for _ in 0..4 {
        let stream = lane.cu_stream();
        unsafe { result::launch_kernel(kernel, one, one, 0, stream, &mut parameters) }.unwrap();
    }
    let end = lane.record_event(flags).unwrap();
    end.synchronize().unwrap();
    let milliseconds = begin.elapsed_ms(&end).unwrap();
    assert!((20.0..30.0).contains(&milliseconds), "{milliseconds}");
    assert!(lane.alloc_zeros::<u8>(9 << 30).is_err());
    lane.synchronize().unwrap();
}

fn picture(size: [usize; 3], flags: c_uint) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: size[0],
        Height: size[1],
        Depth: size[2],
        Format: CUarray_format_enum::CU_AD_FORMAT_FLOAT,
        NumChannels: 4,
        Flags: flags,
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn arrays_take_their_padded_size_and_move_bytes() {
    context();
    let mut array = null_mut();
    ok!(cuArray3DCreate_v2(&mut array, &picture([100, 10, 3], 0)));
    // 1600 B are 13 times 128 B; 10 rows are 16; three slices of 26,624 B are two tiles of 64 KiB.
    assert_eq!(free_bytes(), 8 * GIB - (128 << 10));
    let mut known = picture([0; 3], 0);
    ok!(cuArray3DGetDescriptor_v2(&mut known, array));
    assert_eq!((known.Width, known.Height, known.Depth), (100, 10, 3));
    let data: Vec<u8> = (0..1600 * 30)
        .map(|index| (index * 7 % 251) as u8)
        .collect();
    let mut copy: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    copy.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    copy.srcHost = data.as_ptr().cast();
    copy.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    (copy.WidthInBytes, copy.Height, copy.Depth) = (1600, 10, 3);
    ok!(cuMemcpy3D_v2(&copy));
    let mut back = vec![0u8; data.len()];
    ok!(cuMemcpyAtoH_v2(
        back.as_mut_ptr().cast(),
        array,
        0,
        data.len()
    ));
    assert!(data == back);
    let line = allocate(4000);
    ok!(cuMemcpyAtoD_v2(line, array, 1000, 4000));
    back.fill(0);
    ok!(cuMemcpyDtoH_v2(back.as_mut_ptr().cast(), line, 4000));
    assert_eq!(back[..4000], data[1000..5000]);
    ok!(cuMemcpyHtoA_v2(array, 1599, c"xy".as_ptr().cast(), 2));
    let mut two: CUDA_MEMCPY2D = unsafe { std::mem::zeroed() };
    two.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_ARRAY;
    two.srcArray = array;
    two.srcY = 1;
    two.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    two.dstHost = back.as_mut_ptr().cast();
    (two.WidthInBytes, two.Height) = (2, 1);
    ok!(cuMemcpy2D_v2(&two));
    assert_eq!(back[..2], [b'y', data[1601]]);
    two.srcXInBytes = 1599;
    fails!(cuMemcpy2D_v2(&two), CUDA_ERROR_INVALID_VALUE);
    fails!(
        cuMemcpyAtoD_v2(line, array, 1600 * 30 - 1, 2),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut untouched = number(0xaaaa).cast();
    let huge = picture([131_072, 65_536, 0], 0);
    fails!(
        cuArray3DCreate_v2(&mut untouched, &huge),
        CUDA_ERROR_OUT_OF_MEMORY
    );
    assert_eq!(untouched, number(0xaaaa).cast());
    ok!(cuArrayDestroy(array));
    fails!(cuArrayDestroy(array), CUDA_ERROR_INVALID_HANDLE);
    ok!(cuMemFree_v2(line));
    assert_eq!(free_bytes(), 8 * GIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn an_array_without_backing_takes_nothing_until_it_is_mapped() {
    context();
    let mut array = null_mut();
    let deferred = picture([256, 256, 0], CUDA_ARRAY3D_DEFERRED_MAPPING);
    ok!(cuArray3DCreate_v2(&mut array, &deferred));
    assert_eq!(free_bytes(), 8 * GIB);
    let mut needed: CUDA_ARRAY_MEMORY_REQUIREMENTS = unsafe { std::mem::zeroed() };
    ok!(cuArrayGetMemoryRequirements(&mut needed, array, 0));
    assert_eq!(needed.size, MIB);
    let byte = [7u8];
    let put = || unsafe { cuMemcpyHtoA_v2(array, 5, byte.as_ptr().cast(), 1) };
    assert_eq!(put(), Code::CUDA_ERROR_INVALID_VALUE);
    let handle = physical(2 * MIB).unwrap();
    let mut info: CUarrayMapInfo = unsafe { std::mem::zeroed() };
    info.resource.array = array;
    info.memOperationType = CUmemOperationType_enum::CU_MEM_OPERATION_TYPE_MAP;
    info.memHandle.memHandle = handle;
    info.deviceBitMask = 1;
    ok!(cuMemMapArrayAsync(&mut info, 1, null_mut()));
    assert_eq!(put(), Code::CUDA_SUCCESS);
    ok!(cuMemRelease(handle));
    assert_eq!(free_bytes(), 8 * GIB - 2 * MIB);
    ok!(cuArrayDestroy(array));
    assert_eq!(free_bytes(), 8 * GIB);
    let mut plain = null_mut();
    ok!(cuArray3DCreate_v2(&mut plain, &picture([256, 256, 0], 0)));
    fails!(
        cuArrayGetMemoryRequirements(&mut needed, plain, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuArray3DCreate_v2(
        &mut array,
        &picture([256, 256, 0], CUDA_ARRAY3D_SPARSE)
    ));
    let mut tiles: CUDA_ARRAY_SPARSE_PROPERTIES = unsafe { std::mem::zeroed() };
    ok!(cuArrayGetSparseProperties(&mut tiles, array));
    assert_eq!((tiles.tileExtent.width, tiles.tileExtent.height), (64, 64));
    assert_eq!(free_bytes(), 8 * GIB - MIB);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_mipmapped_array_has_its_levels_until_its_context_ends() {
    context();
    let mut own = null_mut();
    ok!(cuCtxCreate_v2(&mut own, 0, 0));
    let mut mipmap = null_mut();
    ok!(cuMipmappedArrayCreate(
        &mut mipmap,
        &picture([256, 256, 0], 0),
        99
    ));
    // 1 MiB, 256 KiB, and seven levels of a tile each.
    assert_eq!(free_bytes(), 8 * GIB - MIB - (256 << 10) - 7 * (64 << 10));
    let (mut level, mut known) = (null_mut(), picture([0; 3], 0));
    ok!(cuMipmappedArrayGetLevel(&mut level, mipmap, 8));
    ok!(cuArray3DGetDescriptor_v2(&mut known, level));
    assert_eq!((known.Width, known.Height), (1, 1));
    fails!(
        cuMipmappedArrayGetLevel(&mut level, mipmap, 9),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(cuArrayDestroy(level), CUDA_ERROR_INVALID_HANDLE);
    let (texel, mut back) = ([3u8; 16], [0u8; 16]);
    ok!(cuMemcpyHtoA_v2(level, 0, texel.as_ptr().cast(), 16));
    ok!(cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), level, 0, 16));
    assert_eq!(back, texel);
    ok!(cuCtxDestroy_v2(own));
    assert_eq!(free_bytes(), 8 * GIB);
    fails!(cuMipmappedArrayDestroy(mipmap), CUDA_ERROR_INVALID_HANDLE);
}

/// Physical memory that other processes may have.
fn shareable(bytes: usize) -> CUmemGenericAllocationHandle {
    let mut property: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    property.type_ = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    property.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    property.requestedHandleTypes = POSIX_FILE;
    let mut handle = 0;
    ok!(cuMemCreate(&mut handle, bytes, &property, 0));
    handle
}

const POSIX_FILE: CUmemAllocationHandleType =
    CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;

fn export(handle: CUmemGenericAllocationHandle) -> c_int {
    let mut file: c_int = -1;
    ok!(cuMemExportToShareableHandle(
        (&raw mut file).cast(),
        handle,
        POSIX_FILE,
        0
    ));
    file
}

fn eventually_free(bytes: usize) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while free_bytes() != bytes {
        assert!(Instant::now() < deadline, "{} bytes free", free_bytes());
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_descriptor_holds_physical_memory_until_it_is_closed() {
    context();
    let handle = shareable(4 * MIB);
    let file = export(handle);
    ok!(cuMemRelease(handle));
    assert_eq!(free_bytes(), 8 * GIB - 4 * MIB);
    let mut again = 0;
    let given = number(file as usize);
    ok!(cuMemImportFromShareableHandle(
        &mut again, given, POSIX_FILE
    ));
    assert_eq!(unsafe { libc::close(file) }, 0);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(free_bytes(), 8 * GIB - 4 * MIB);
    ok!(cuMemRelease(again));
    eventually_free(8 * GIB);
    let private = physical(2 * MIB).unwrap();
    let mut none: c_int = -1;
    fails!(
        cuMemExportToShareableHandle((&raw mut none).cast(), private, POSIX_FILE, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuMemImportFromShareableHandle(&mut again, number(1), POSIX_FILE),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(none, -1);
}

#[test]
#[ignore = "a scene that another test plays"]
fn external_memory_is_mapped_and_freed_without_ending_it() {
    context();
    let handle = shareable(4 * MIB);
    let mut asked: CUDA_EXTERNAL_MEMORY_HANDLE_DESC = unsafe { std::mem::zeroed() };
    asked.type_ = CUexternalMemoryHandleType_enum::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD;
    asked.handle.fd = export(handle);
    asked.size = 4 << 20;
    let mut memory = null_mut();
    ok!(cuImportExternalMemory(&mut memory, &asked));
    ok!(cuMemRelease(handle));
    let mut buffer: CUDA_EXTERNAL_MEMORY_BUFFER_DESC = unsafe { std::mem::zeroed() };
    (buffer.offset, buffer.size) = (1 << 20, 1 << 20);
    let (mut first, mut second) = (0, 0);
    ok!(cuExternalMemoryGetMappedBuffer(&mut first, memory, &buffer));
    ok!(cuExternalMemoryGetMappedBuffer(
        &mut second,
        memory,
        &buffer
    ));
    ok!(cuMemsetD8_v2(first, 9, MIB));
    let mut byte = 0u8;
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), second + 77, 1));
    assert_eq!(byte, 9);
    ok!(cuMemFree_v2(first));
    ok!(cuDestroyExternalMemory(memory));
    assert_eq!(free_bytes(), 8 * GIB - 4 * MIB);
    ok!(cuMemFree_v2(second));
    eventually_free(8 * GIB);
    fails!(cuMemFree_v2(second), CUDA_ERROR_INVALID_VALUE);
    fails!(cuDestroyExternalMemory(memory), CUDA_ERROR_INVALID_HANDLE);
}

fn notes() -> std::path::PathBuf {
    std::env::var_os("SIM_NOTES").unwrap().into()
}

fn shareable_pool() -> CUmemoryPool {
    let mut asked: CUmemPoolProps = unsafe { std::mem::zeroed() };
    asked.allocType = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    asked.handleTypes = POSIX_FILE;
    asked.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    let mut pool = null_mut();
    ok!(cuMemPoolCreate(&mut pool, &asked));
    pool
}

/// Linear memory, physical memory and a piece of a pool, each full of its own number.
#[test]
#[ignore = "a scene that another test plays"]
fn shares_what_it_has() {
    context();
    let linear = allocate(4 * MIB);
    ok!(cuMemsetD8_v2(linear, 1, 4 * MIB));
    let mut handle: CUipcMemHandle = unsafe { std::mem::zeroed() };
    ok!(cuIpcGetMemHandle(&mut handle, linear));
    let mut own = 0;
    fails!(
        cuIpcOpenMemHandle_v2(&mut own, handle, 1),
        CUDA_ERROR_INVALID_CONTEXT
    );
    let file = export(shareable(2 * MIB));
    let pool = shareable_pool();
    let mut piece = 0;
    ok!(cuMemAllocFromPoolAsync(&mut piece, MIB, pool, null_mut()));
    ok!(cuMemsetD8_v2(piece, 3, MIB));
    // A fill need not have been done when its call returns, and nothing orders it before another process.
    ok!(cuCtxSynchronize());
    let mut data: CUmemPoolPtrExportData = unsafe { std::mem::zeroed() };
    ok!(cuMemPoolExportPointer(&mut data, piece));
    let mut pool_file: c_int = -1;
    ok!(cuMemPoolExportToShareableHandle(
        (&raw mut pool_file).cast(),
        pool,
        POSIX_FILE,
        0
    ));
    let mut note: Vec<u8> = handle.reserved.map(|byte| byte as u8).to_vec();
    note.extend(data.reserved);
    let process = std::process::id();
    note.extend(format!("/proc/{process}/fd/{file} /proc/{process}/fd/{pool_file}").bytes());
    std::fs::write(notes(), note).unwrap();
    say_ready();
    std::thread::sleep(Duration::from_secs(60));
}

/// What the notes say: the IPC handle, the piece, descriptors of the physical memory and of the pool.
fn read_notes() -> (CUipcMemHandle, CUmemPoolPtrExportData, [c_int; 2]) {
    let note = std::fs::read(notes()).unwrap();
    let mut handle: CUipcMemHandle = unsafe { std::mem::zeroed() };
    let mut data: CUmemPoolPtrExportData = unsafe { std::mem::zeroed() };
    for index in 0..64 {
        handle.reserved[index] = note[index] as c_char;
        data.reserved[index] = note[64 + index];
    }
    let paths = String::from_utf8(note[128..].to_vec()).unwrap();
    let mut files = paths.split(' ').map(|path| {
        use std::os::fd::IntoRawFd as _;
        let file = std::fs::OpenOptions::new().write(true).open(path);
        file.unwrap().into_raw_fd()
    });
    (handle, data, [files.next().unwrap(), files.next().unwrap()])
}

#[test]
#[ignore = "a scene that another test plays"]
fn takes_what_is_shared() {
    context();
    let before = free_bytes();
    let (handle, mut data, [file, pool_file]) = read_notes();
    let (mut first, mut second, mut byte) = (0, 0, 0u8);
    ok!(cuIpcOpenMemHandle_v2(&mut first, handle, 1));
    ok!(cuIpcOpenMemHandle_v2(&mut second, handle, 1));
    assert_eq!(first, second);
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), first + 4321, 1));
    assert_eq!(byte, 1);
    fails!(cuMemFree_v2(first), CUDA_ERROR_INVALID_VALUE);
    ok!(cuIpcCloseMemHandle(first));
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), first, 1));
    ok!(cuIpcCloseMemHandle(first));
    fails!(cuIpcCloseMemHandle(first), CUDA_ERROR_INVALID_VALUE);
    let mut physical = 0;
    let given = number(file as usize);
    ok!(cuMemImportFromShareableHandle(
        &mut physical,
        given,
        POSIX_FILE
    ));
    ok!(cuMemRelease(physical));
    let mut pool = null_mut();
    let given = number(pool_file as usize);
    ok!(cuMemPoolImportFromShareableHandle(
        &mut pool, given, POSIX_FILE, 0
    ));
    let mut piece = 0;
    fails!(
        cuMemAllocFromPoolAsync(&mut piece, MIB, pool, null_mut()),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuMemPoolImportPointer(&mut piece, pool, &mut data));
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), piece + 99, 1));
    assert_eq!(byte, 3);
    ok!(cuMemFreeAsync(piece, null_mut()));
    ok!(cuCtxSynchronize());
    data.reserved[0] = 0;
    fails!(
        cuMemPoolImportPointer(&mut piece, pool, &mut data),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(free_bytes(), before);
}

#[test]
#[ignore = "a scene that another test plays"]
fn holds_what_is_shared() {
    context();
    let (handle, _, files) = read_notes();
    for file in files {
        assert_eq!(unsafe { libc::close(file) }, 0);
    }
    let mut at = 0;
    ok!(cuIpcOpenMemHandle_v2(&mut at, handle, 1));
    say_ready();
    std::thread::sleep(Duration::from_secs(60));
}
