//! Scenes about values in memory: what streams write and wait for, and kernels that spin on a flag.

use super::*;

const EQUAL: c_uint = 1;
const AT_LEAST: c_uint = 0;
const AND: c_uint = 2;
const NOR: c_uint = 3;

/// Page-locked words of the host's.
pub(super) fn words(count: usize) -> *mut u32 {
    let mut pinned: *mut c_void = null_mut();
    ok!(cuMemHostAlloc(&mut pinned, 4 * count, 2));
    pinned.cast()
}

/// What the host sees there now.
fn seen(word: *mut u32) -> u32 {
    unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Acquire)
}

fn set(word: *mut u32, value: u32) {
    unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Release);
}

/// Holds a stream at its place until it is opened.
pub(super) struct Gate(*mut u32);

impl Gate {
    pub(super) fn close(stream: CUstream) -> Self {
        let word = words(1);
        ok!(cuStreamWaitValue32_v2(stream, word as u64, 1, EQUAL));
        Self(word)
    }

    pub(super) fn open(&self) {
        set(self.0, 1);
    }
}

/// The kernel that spins until a flag is set.
fn until() -> CUfunction {
    let image = CString::new(sim::kernels::UNTIL_PTX).unwrap();
    let (mut module, mut function) = (null_mut(), null_mut());
    ok!(cuModuleLoadData(&mut module, image.as_ptr().cast()));
    ok!(cuModuleGetFunction(
        &mut function,
        module,
        c"spin_until".as_ptr()
    ));
    function
}

fn spin_until(function: CUfunction, address: CUdeviceptr, value: u32, stream: CUstream) {
    let (mut address, mut value) = (address, value);
    let mut parameters = [
        (&raw mut address).cast::<c_void>(),
        (&raw mut value).cast::<c_void>(),
    ];
    let parameters = parameters.as_mut_ptr();
    let none = null_mut();
    ok!(cuLaunchKernel(
        function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, none
    ));
}

fn word_at(at: CUdeviceptr) -> u32 {
    let mut word = 0u32;
    ok!(cuMemcpyDtoH_v2((&raw mut word).cast(), at, 4));
    word
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_stream_writes_values_in_its_turn() {
    context();
    let (at, lane) = (allocate(16), stream(1));
    let pinned = words(4);
    let mut own = [0u32; 1024];
    ok!(cuMemHostRegister_v2(own.as_mut_ptr().cast(), 4096, 2));
    let mut registered = 0;
    ok!(cuMemHostGetDevicePointer_v2(
        &mut registered,
        own.as_mut_ptr().cast(),
        0
    ));
    ok!(cuMemsetD8_v2(at, 0, 16));
    let gate = Gate::close(lane);
    ok!(cuStreamWriteValue32_v2(lane, pinned as u64, 1, 0));
    ok!(cuStreamWriteValue32(lane, pinned as u64 + 4, 2, 1));
    ok!(cuStreamWriteValue64_v2(
        lane,
        pinned as u64 + 8,
        0x0000_0004_0000_0003,
        0
    ));
    ok!(cuStreamWriteValue32_v2_ptsz(lane, at + 4, 5, 0));
    ok!(cuStreamWriteValue64(lane, at + 8, 6 << 32, 0));
    ok!(cuStreamWriteValue32_v2(lane, registered + 8, 7, 0));
    fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
    let all: Vec<u32> = (0..4).map(|at| seen(pinned.wrapping_add(at))).collect();
    assert_eq!(all, [0; 4]);
    assert_eq!(word_at(at + 4), 0);
    gate.open();
    ok!(cuStreamSynchronize(lane));
    let all: Vec<u32> = (0..4).map(|at| seen(pinned.wrapping_add(at))).collect();
    assert_eq!(all, [1, 2, 3, 4]);
    let all = [0, 4, 8, 12].map(|offset| word_at(at + offset));
    assert_eq!(all, [0, 5, 0, 6]);
    assert_eq!(own[..4], [0, 0, 7, 0]);
    // Without any call that looks, the value arrives as well.
    ok!(cuStreamWriteValue32_v2(lane, pinned as u64, 9, 0));
    let deadline = Instant::now() + Duration::from_secs(5);
    while seen(pinned) != 9 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    ok!(cuMemHostUnregister(own.as_mut_ptr().cast()));
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_stream_waits_until_a_value_is_there() {
    context();
    let lane = stream(1);
    let word = words(2);
    // Not there, not there either, there; by what test.
    for (test, wanted, wrong, right) in [
        (AT_LEAST, 5, 4, 6),
        (AT_LEAST, u32::MAX, u32::MAX - 1, 3),
        (EQUAL, 5, 6, 5),
        (AND, 6, 9, 4),
        (NOR, 0xffff, 0xffff_0000, 1),
    ] {
        set(word, wrong);
        ok!(cuStreamWaitValue32_v2(lane, word as u64, wanted, test));
        ok!(cuStreamWriteValue32_v2(lane, word as u64 + 4, 7, 0));
        std::thread::sleep(Duration::from_millis(2));
        fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
        assert_ne!(seen(word.wrapping_add(1)), 7);
        set(word, right);
        ok!(cuStreamSynchronize(lane));
        assert_eq!(seen(word.wrapping_add(1)), 7);
        set(word.wrapping_add(1), 0);
    }
    // What is longer is compared in full.
    set(word, 0);
    set(word.wrapping_add(1), 1);
    let wanted = (1u64 << 32) + 1;
    ok!(cuStreamWaitValue64_v2(lane, word as u64, wanted, AT_LEAST));
    std::thread::sleep(Duration::from_millis(2));
    fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
    set(word, 1);
    ok!(cuStreamSynchronize(lane));
    // What is there already holds nobody.
    ok!(cuStreamWaitValue32(lane, word as u64, 1, EQUAL));
    ok!(cuStreamSynchronize(lane));
}

#[test]
#[ignore = "a scene that another test plays"]
fn streams_wait_for_each_other_by_memory_alone() {
    context();
    let (one, other) = (stream(1), stream(1));
    let (flags, data) = (allocate(8), allocate(4));
    ok!(cuMemsetD8_v2(flags, 0, 8));
    ok!(cuCtxSynchronize());
    let kernel = function(c"spin_ns");
    // Each hands the other what it has written, a hundred times.
    for round in 1..=100u32 {
        ok!(cuStreamWaitValue32_v2(other, flags, round, AT_LEAST));
        ok!(cuMemcpyDtoDAsync_v2(flags + 4, data, 4, other));
        if round == 1 {
            spin(kernel, 3_000_000, one);
        }
        ok!(cuMemsetD32Async(data, round, 1, one));
        ok!(cuStreamWriteValue32_v2(one, flags, round, 0));
        ok!(cuStreamWaitValue32_v2(one, flags + 4, round, EQUAL));
    }
    ok!(cuStreamSynchronize(one));
    ok!(cuStreamSynchronize(other));
    assert_eq!((word_at(flags), word_at(flags + 4)), (100, 100));
}

fn write(address: CUdeviceptr, value: u32) -> CUstreamBatchMemOpParams {
    let mut asked: CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    asked.writeValue.operation = CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WRITE_VALUE_32;
    asked.writeValue.address = address;
    asked.writeValue.__bindgen_anon_1.value = value;
    asked
}

fn wait(address: CUdeviceptr, value: u32) -> CUstreamBatchMemOpParams {
    let mut asked: CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    asked.waitValue.operation = CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WAIT_VALUE_32;
    asked.waitValue.address = address;
    asked.waitValue.__bindgen_anon_1.value = value;
    asked.waitValue.flags = EQUAL;
    asked
}

fn barrier() -> CUstreamBatchMemOpParams {
    let mut asked: CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    asked.memoryBarrier.operation = CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_BARRIER;
    asked
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_batch_is_done_in_order_or_not_at_all() {
    context();
    let lane = stream(1);
    let word = words(3);
    let at = |index: u64| word as u64 + 4 * index;
    let mut all = [write(at(0), 1), wait(at(1), 5), barrier(), write(at(2), 2)];
    ok!(cuStreamBatchMemOp_v2(lane, 4, all.as_mut_ptr(), 0));
    let deadline = Instant::now() + Duration::from_secs(5);
    while seen(word) != 1 {
        assert!(Instant::now() < deadline);
        std::thread::yield_now();
    }
    assert_eq!(seen(word.wrapping_add(2)), 0);
    set(word.wrapping_add(1), 5);
    ok!(cuStreamSynchronize(lane));
    assert_eq!(seen(word.wrapping_add(2)), 2);
    // The last is wrong: the first is not done.
    let mut all = [write(at(0), 8), write(0, 9)];
    fails!(
        cuStreamBatchMemOp_v2(lane, 2, all.as_mut_ptr(), 0),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuStreamSynchronize(lane));
    assert_eq!(seen(word), 1);
    let mut many = vec![write(at(0), 3); 256];
    fails!(
        cuStreamBatchMemOp_v2(lane, 256, many.as_mut_ptr(), 0),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuStreamBatchMemOp_v2(lane, 1, many.as_mut_ptr(), 1),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuStreamBatchMemOp(lane, 255, many.as_mut_ptr(), 0));
    // The first version has no barriers.
    fails!(
        cuStreamBatchMemOp(lane, 1, &mut barrier(), 0),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuStreamSynchronize(lane));
    assert_eq!(seen(word), 3);
}

#[test]
#[ignore = "a scene that another test plays"]
fn memory_operations_refuse_what_they_cannot_do() {
    context();
    let lane = stream(1);
    let at = allocate(16);
    let mut managed = 0;
    ok!(cuMemAllocManaged(&mut managed, 16, 1));
    let pageable = Box::new(0u64);
    let pageable = (&raw const *pageable) as u64;
    for wrong in [managed, pageable, at + 2, 0] {
        fails!(
            cuStreamWriteValue32_v2(lane, wrong, 1, 0),
            CUDA_ERROR_INVALID_VALUE
        );
        fails!(
            cuStreamWaitValue32_v2(lane, wrong, 1, 0),
            CUDA_ERROR_INVALID_VALUE
        );
    }
    fails!(
        cuStreamWriteValue64_v2(lane, at + 4, 1, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuStreamWaitValue32_v2(lane, at, 1, 4),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuStreamWriteValue32_v2(lane, at, 1, 2),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuStreamWriteValue32_v2(lane, at, 1, 1),
        CUDA_ERROR_NOT_SUPPORTED
    );
    fails!(
        cuStreamWaitValue32_v2(lane, at, 1, 1 << 30),
        CUDA_ERROR_NOT_SUPPORTED
    );
    fails!(
        cuStreamWriteValue32_v2(number(0x1234).cast(), at, 1, 0),
        CUDA_ERROR_INVALID_HANDLE
    );
    let mut value = 7;
    type A = CUdevice_attribute_enum;
    for (attribute, expected) in [
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1),
        (A::CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES, 0),
    ] {
        ok!(cuDeviceGetAttribute(&mut value, attribute, 0));
        assert_eq!(value, expected);
    }
    ok!(cuStreamQuery(lane));
}

#[test]
#[ignore = "a scene that another test plays"]
fn memory_operations_become_nodes_of_a_graph() {
    context();
    let lane = stream(1);
    let word = words(3);
    let at = |index: u64| word as u64 + 4 * index;
    ok!(cuStreamBeginCapture_v2(lane, CUstreamCaptureMode(2)));
    let mut all = [write(at(0), 1), wait(at(1), 5)];
    ok!(cuStreamBatchMemOp_v2(lane, 2, all.as_mut_ptr(), 0));
    ok!(cuStreamWriteValue32_v2(lane, at(2), 2, 0));
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(lane, &mut graph));
    assert_eq!(seen(word), 0);
    let (mut nodes, mut count) = ([null_mut(); 4], 4);
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    assert_eq!(count, 2);
    let mut kind = CUgraphNodeType_enum(99);
    ok!(cuGraphNodeGetType(nodes[0], &mut kind));
    assert_eq!(kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    let mut exec = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    for round in 0..2 {
        (0..3).for_each(|index| set(word.wrapping_add(index), 0));
        ok!(cuGraphLaunch(exec, lane));
        std::thread::sleep(Duration::from_millis(2));
        fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
        assert_eq!(seen(word.wrapping_add(2)), 0, "round {round}");
        set(word.wrapping_add(1), 5);
        ok!(cuStreamSynchronize(lane));
        assert_eq!((seen(word), seen(word.wrapping_add(2))), (1, 2));
    }
    // The first version is none that a capture takes.
    ok!(cuStreamBeginCapture_v2(lane, CUstreamCaptureMode(2)));
    fails!(
        cuStreamWriteValue32(lane, at(0), 1, 0),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    fails!(
        cuStreamEndCapture(lane, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_host_function_may_wait_for_what_a_stream_writes() {
    unsafe extern "C" fn wait_for_it(word: *mut c_void) {
        let deadline = Instant::now() + Duration::from_secs(10);
        while seen(word.cast()) != 2 {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
    context();
    let (called, other) = (stream(1), stream(1));
    let word = words(2);
    ok!(cuLaunchHostFunc(called, Some(wait_for_it), word.cast()));
    let gate = Gate::close(other);
    ok!(cuStreamWriteValue32_v2(other, word as u64, 2, 0));
    gate.open();
    ok!(cuStreamSynchronize(called));
    ok!(cuStreamSynchronize(other));
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_kernel_spins_until_another_stream_sets_its_flag() {
    context();
    let (spinning, other) = (stream(1), stream(1));
    let flag = allocate(8);
    ok!(cuMemsetD8_v2(flag, 0, 8));
    ok!(cuCtxSynchronize());
    let (until, timed) = (until(), function(c"spin_ns"));
    spin_until(until, flag, 3, spinning);
    ok!(cuStreamWriteValue32_v2(spinning, flag + 4, 1, 0));
    // Beside it there is room for others, and none of them is what it waits for.
    ok!(cuStreamWriteValue32_v2(other, flag, 2, 0));
    let mut nanoseconds = 3_000_000u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    ok!(cuLaunchKernel(
        timed,
        1,
        1,
        1,
        32,
        1,
        1,
        0,
        other,
        parameters.as_mut_ptr(),
        null_mut()
    ));
    ok!(cuStreamSynchronize(other));
    fails!(cuStreamQuery(spinning), CUDA_ERROR_NOT_READY);
    assert_eq!(word_at(flag + 4), 0);
    ok!(cuStreamWriteValue32_v2(other, flag, 3, 0));
    ok!(cuStreamSynchronize(spinning));
    assert_eq!(word_at(flag + 4), 1);
    // A flag that is set already lets it pass; so do nodes of a graph, again and again.
    ok!(cuStreamBeginCapture_v2(spinning, CUstreamCaptureMode(2)));
    spin_until(until, flag, 3, spinning);
    let (mut graph, mut exec) = (null_mut(), null_mut());
    ok!(cuStreamEndCapture(spinning, &mut graph));
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(cuGraphLaunch(exec, spinning));
    ok!(cuGraphLaunch(exec, spinning));
    ok!(cuStreamSynchronize(spinning));
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_context_that_ends_takes_its_waits_along() {
    context();
    let word = words(1);
    let until = CString::new(sim::kernels::UNTIL_PTX).unwrap();
    for _ in 0..20 {
        let mut own = null_mut();
        ok!(cuCtxCreate_v2(&mut own, 0, 0));
        let (waiting, spinning) = (stream(1), stream(1));
        ok!(cuStreamWaitValue32_v2(waiting, word as u64, 1, EQUAL));
        let (mut module, mut kernel) = (null_mut(), null_mut());
        ok!(cuModuleLoadData(&mut module, until.as_ptr().cast()));
        let name = c"spin_until";
        ok!(cuModuleGetFunction(&mut kernel, module, name.as_ptr()));
        spin_until(kernel, word as u64, 1, spinning);
        ok!(cuCtxDestroy_v2(own));
    }
    // Lanes that come back wait for nothing of before.
    let lanes: Vec<CUstream> = (0..40).map(|_| stream(1)).collect();
    for lane in lanes {
        ok!(cuStreamSynchronize(lane));
        spin(function(c"spin_ns"), 1000, lane);
        ok!(cuStreamSynchronize(lane));
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn spins_for_ever() {
    context();
    let flag = allocate(4);
    ok!(cuMemsetD8_v2(flag, 0, 4));
    ok!(cuCtxSynchronize());
    spin_until(until(), flag, 1, stream(1));
    say_ready();
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
#[ignore = "a scene that another test plays"]
fn spins_until_somebody_sets_its_flag() {
    context();
    let flag = allocate(4);
    ok!(cuMemsetD8_v2(flag, 0, 4));
    ok!(cuCtxSynchronize());
    let mut handle: CUipcMemHandle = unsafe { std::mem::zeroed() };
    ok!(cuIpcGetMemHandle(&mut handle, flag));
    let bytes: Vec<u8> = handle.reserved.iter().map(|byte| *byte as u8).collect();
    std::fs::write(notes(), bytes).unwrap();
    let lane = stream(1);
    spin_until(until(), flag, 7, lane);
    fails!(cuStreamQuery(lane), CUDA_ERROR_NOT_READY);
    say_ready();
    ok!(cuStreamSynchronize(lane));
    assert_eq!(word_at(flag), 7);
}

#[test]
#[ignore = "a scene that another test plays"]
fn sets_the_flag_of_another() {
    context();
    let bytes = std::fs::read(notes()).unwrap();
    let mut handle: CUipcMemHandle = unsafe { std::mem::zeroed() };
    for (place, byte) in handle.reserved.iter_mut().zip(bytes) {
        *place = byte as c_char;
    }
    let mut flag = 0;
    ok!(cuIpcOpenMemHandle_v2(&mut flag, handle, 1));
    let lane = stream(1);
    // Both have work at once: the one that spins is made to stop for it.
    spin(function(c"spin_ns"), 5_000_000, lane);
    ok!(cuStreamWriteValue32_v2(lane, flag, 7, 0));
    ok!(cuStreamSynchronize(lane));
    ok!(cuIpcCloseMemHandle(flag));
}

#[test]
#[ignore = "a scene that another test plays"]
fn takes_its_time_beside_another() {
    context();
    let (mut shared, mut nanoseconds) = (0, 20_000_000u64);
    let attribute = CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_MPS_ENABLED;
    ok!(cuDeviceGetAttribute(&mut shared, attribute, 0));
    assert_eq!(shared, 1);
    let (kernel, lane) = (function(c"spin_ns"), stream(1));
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    let parameters = parameters.as_mut_ptr();
    let (from, to, none) = (event(), event(), null_mut());
    let gate = Gate::close(lane);
    ok!(cuEventRecord(from, lane));
    ok!(cuLaunchKernel(
        kernel, 1, 1, 1, 32, 1, 1, 0, lane, parameters, none
    ));
    ok!(cuEventRecord(to, lane));
    gate.open();
    ok!(cuStreamSynchronize(lane));
    let mut milliseconds = 0f32;
    ok!(cuEventElapsedTime(&mut milliseconds, from, to));
    // In turns with the other it would be nearly twice that.
    assert!((milliseconds - 20.0).abs() < 0.001, "{milliseconds} ms");
}
