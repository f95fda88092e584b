//! Scenes about stream capture and graphs.

use super::*;

const MODE_GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL;
const MODE_LOCAL: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
const MODE_RELAXED: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;

const NONE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
const ACTIVE: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE;
const INVALID: CUstreamCaptureStatus = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED;

const BYTES: usize = 4096;

fn begin(stream: CUstream, mode: CUstreamCaptureMode) {
    ok!(cuStreamBeginCapture_v2(stream, mode));
}

fn end(stream: CUstream) -> CUgraph {
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(stream, &mut graph));
    assert!(!graph.is_null());
    graph
}

fn status(stream: CUstream) -> CUstreamCaptureStatus {
    let mut status = NONE;
    ok!(cuStreamIsCapturing(stream, &mut status));
    status
}

fn instantiated(graph: CUgraph) -> CUgraphExec {
    let mut exec = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn event() -> CUevent {
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, 0));
    event
}

fn first_byte(at: CUdeviceptr) -> u8 {
    let mut byte = 0u8;
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), at, 1));
    byte
}

fn nodes(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0;
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    let mut nodes = vec![null_mut(); count];
    ok!(cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count));
    nodes
}

/// What `launches` launches of a graph take on the device, in nanoseconds.
fn device_ns(exec: CUgraphExec, stream: CUstream, launches: u32) -> u64 {
    let (from, to) = (event(), event());
    // The stream is held until all of it is queued: how long that takes is not measured then.
    let gate = Gate::close(stream);
    ok!(cuEventRecord(from, stream));
    for _ in 0..launches {
        ok!(cuGraphLaunch(exec, stream));
    }
    ok!(cuEventRecord(to, stream));
    gate.open();
    ok!(cuStreamSynchronize(stream));
    let mut milliseconds = 0f32;
    ok!(cuEventElapsedTime(&mut milliseconds, from, to));
    (f64::from(milliseconds) * 1e6).round() as u64
}

#[test]
#[ignore = "a scene that another test plays"]
fn what_is_captured_is_done_at_each_launch_and_not_before() {
    context();
    let function = function(c"spin_ns");
    let stream = stream(1);
    let (a, b) = (allocate(BYTES), allocate(BYTES));
    ok!(cuMemsetD8_v2(a, 7, BYTES));
    ok!(cuMemsetD8_v2(b, 8, BYTES));
    ok!(cuCtxSynchronize());
    assert_eq!(status(stream), NONE);
    begin(stream, MODE_GLOBAL);
    assert_eq!(status(stream), ACTIVE);
    ok!(cuMemsetD8Async(a, 1, BYTES, stream));
    ok!(cuMemcpyDtoDAsync_v2(b, a, BYTES, stream));
    spin(function, 3_000_000, stream);
    ok!(cuMemsetD8Async(a, 2, BYTES, stream));
    let (mut state, mut number, mut graph, mut count) = (NONE, 0, null_mut(), 0);
    let mut last: *const CUgraphNode = null();
    ok!(cuStreamGetCaptureInfo_v2(
        stream,
        &mut state,
        &mut number,
        &mut graph,
        &mut last,
        &mut count
    ));
    assert_eq!((state, count), (ACTIVE, 1));
    assert!(number > 0);
    assert_eq!(graph, end(stream));
    assert_eq!(status(stream), NONE);
    assert_eq!(nodes(graph).len(), 4);
    assert_eq!(
        (first_byte(a), first_byte(b)),
        (7, 8),
        "nothing was done yet"
    );
    let exec = instantiated(graph);
    ok!(cuGraphDestroy(graph));
    for _ in 0..2 {
        ok!(cuMemsetD8_v2(a, 9, BYTES));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!((first_byte(a), first_byte(b)), (2, 1));
    }
    // Two kernels of 3 ms, and copies that take some microseconds.
    let took = device_ns(exec, stream, 2);
    assert!((6_000_000..9_000_000).contains(&took), "{took} ns");
    ok!(cuGraphExecDestroy(exec));
    fails!(cuGraphLaunch(exec, stream), CUDA_ERROR_INVALID_VALUE);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_kernel_s_parameters_are_taken_when_it_is_captured() {
    context();
    let function = function(c"spin_ns");
    let stream = stream(1);
    begin(stream, MODE_RELAXED);
    // The parameter lies on the stack of `spin`, which is gone afterwards.
    spin(function, 2_000_000, stream);
    let graph = end(stream);
    let node = nodes(graph)[0];
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    ok!(cuGraphNodeGetType(node, &mut kind));
    assert_eq!(kind, CUgraphNodeType::CU_GRAPH_NODE_TYPE_KERNEL);
    // SAFETY: plain data, which the call fills.
    let mut params: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    ok!(cuGraphKernelNodeGetParams_v2(node, &mut params));
    assert_eq!(
        (params.func, params.gridDimX, params.blockDimX),
        (function, 4096, 1024)
    );
    // SAFETY: the first parameter's place, which the node keeps.
    let value = unsafe { (*params.kernelParams).cast::<u64>().read() };
    assert_eq!(value, 2_000_000);
    let exec = instantiated(graph);
    let took = device_ns(exec, stream, 1);
    assert!((2_000_000..3_000_000).contains(&took), "{took} ns");
}

#[test]
#[ignore = "a scene that another test plays"]
fn streams_join_a_capture_by_events_and_must_be_joined_back() {
    context();
    let (one, other) = (stream(1), stream(1));
    let (forked, joined) = (event(), event());
    let at = allocate(BYTES);

    begin(one, MODE_GLOBAL);
    ok!(cuMemsetD8Async(at, 1, BYTES, one));
    ok!(cuEventRecord(forked, one));
    ok!(cuStreamWaitEvent(other, forked, 0));
    assert_eq!(status(other), ACTIVE);
    ok!(cuMemsetD8Async(at, 2, BYTES, other));
    ok!(cuMemsetD8Async(at, 3, BYTES, one));
    ok!(cuEventRecord(joined, other));
    ok!(cuStreamWaitEvent(one, joined, 0));
    ok!(cuMemsetD8Async(at, 4, BYTES, one));
    let graph = end(one);
    assert_eq!(status(other), NONE);
    let mut count = 0;
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count));
    assert_eq!(count, 4, "a diamond");
    ok!(cuGraphGetRootNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 1);
    ok!(cuGraphLaunch(instantiated(graph), one));
    ok!(cuStreamSynchronize(one));
    assert_eq!(first_byte(at), 4);

    let mut graph = 1 as CUgraph;
    begin(one, MODE_GLOBAL);
    ok!(cuEventRecord(forked, one));
    ok!(cuStreamWaitEvent(other, forked, 0));
    ok!(cuMemsetD8Async(at, 2, BYTES, other));
    fails!(
        cuStreamEndCapture(one, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_UNJOINED
    );
    assert!(graph.is_null());
    assert_eq!((status(one), status(other)), (NONE, NONE));

    begin(one, MODE_GLOBAL);
    ok!(cuEventRecord(forked, one));
    ok!(cuStreamWaitEvent(other, forked, 0));
    fails!(
        cuStreamEndCapture(other, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_UNMATCHED
    );
    fails!(
        cuStreamEndCapture(one, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );

    let outside = event();
    ok!(cuEventRecord(outside, other));
    begin(one, MODE_GLOBAL);
    fails!(
        cuStreamWaitEvent(one, outside, 0),
        CUDA_ERROR_STREAM_CAPTURE_ISOLATION
    );
    fails!(
        cuStreamEndCapture(one, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );

    begin(one, MODE_GLOBAL);
    begin(other, MODE_GLOBAL);
    ok!(cuEventRecord(forked, one));
    fails!(
        cuStreamWaitEvent(other, forked, 0),
        CUDA_ERROR_STREAM_CAPTURE_MERGE
    );
    fails!(
        cuStreamEndCapture(one, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    fails!(
        cuStreamEndCapture(other, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    fails!(
        cuStreamEndCapture(one, &mut graph),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn what_a_capture_forbids_makes_it_invalid_and_its_end_says_so() {
    context();
    let one = stream(1);
    let at = allocate(BYTES);
    let marked = event();
    let mut graph = 1 as CUgraph;
    let forbidden: [&dyn Fn() -> (Code, Code); 5] = [
        &|| {
            (
                unsafe { cuStreamSynchronize(one) },
                Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            )
        },
        &|| {
            (
                unsafe { cuStreamQuery(one) },
                Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            )
        },
        &|| {
            (
                unsafe { cuCtxSynchronize() },
                Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
            )
        },
        &|| {
            (
                unsafe { cuEventQuery(marked) },
                Code::CUDA_ERROR_CAPTURED_EVENT,
            )
        },
        &|| {
            (
                unsafe { cuEventSynchronize(marked) },
                Code::CUDA_ERROR_CAPTURED_EVENT,
            )
        },
    ];
    for call in forbidden {
        begin(one, MODE_RELAXED);
        ok!(cuMemsetD8Async(at, 1, BYTES, one));
        ok!(cuEventRecord(marked, one));
        let (got, wanted) = call();
        assert_eq!(got, wanted);
        assert_eq!(status(one), INVALID);
        fails!(
            cuMemsetD8Async(at, 1, BYTES, one),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        );
        fails!(
            cuStreamEndCapture(one, &mut graph),
            CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
        );
        assert!(graph.is_null());
        // The stream is as good as before.
        assert_eq!(status(one), NONE);
        ok!(cuMemsetD8Async(at, 1, BYTES, one));
        ok!(cuStreamSynchronize(one));
    }
    begin(one, MODE_GLOBAL);
    fails!(
        cuStreamBeginCapture_v2(one, MODE_GLOBAL),
        CUDA_ERROR_ILLEGAL_STATE
    );
    let one_address = one as usize;
    std::thread::spawn(move || {
        let mut graph = null_mut();
        let one = one_address as CUstream;
        fails!(
            cuStreamEndCapture(one, &mut graph),
            CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD
        );
    })
    .join()
    .unwrap();
    end(one);
    fails!(
        cuStreamBeginCapture_v2(null_mut(), MODE_GLOBAL),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_capture_forbids_unsafe_calls_to_whom_its_mode_says() {
    let context = context() as usize;
    let one = stream(1);
    let mut at = 0;
    let mut graph = null_mut();
    // On the capturing thread.
    for (mode, is_refused) in [
        (MODE_GLOBAL, true),
        (MODE_LOCAL, true),
        (MODE_RELAXED, false),
    ] {
        begin(one, mode);
        if is_refused {
            at = 17;
            fails!(
                cuMemAlloc_v2(&mut at, BYTES),
                CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
            );
            assert_eq!(at, 17, "untouched");
            fails!(
                cuStreamEndCapture(one, &mut graph),
                CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
            );
        } else {
            ok!(cuMemAlloc_v2(&mut at, BYTES));
            end(one);
        }
    }
    // On another one.
    for (mode, is_refused) in [
        (MODE_GLOBAL, true),
        (MODE_LOCAL, false),
        (MODE_RELAXED, false),
    ] {
        begin(one, mode);
        std::thread::spawn(move || {
            ok!(cuCtxSetCurrent(context as CUcontext));
            let mut at = 0;
            let mut own = MODE_RELAXED;
            ok!(cuThreadExchangeStreamCaptureMode(&mut own));
            assert_eq!(own, MODE_GLOBAL);
            ok!(cuMemAlloc_v2(&mut at, BYTES));
            ok!(cuThreadExchangeStreamCaptureMode(&mut own));
            assert_eq!(own, MODE_RELAXED);
            let code = unsafe { cuMemAlloc_v2(&mut at, BYTES) };
            assert_eq!(code != Code::CUDA_SUCCESS, is_refused, "{code:?}");
        })
        .join()
        .unwrap();
        let code = unsafe { cuStreamEndCapture(one, &mut graph) };
        assert_eq!(code != Code::CUDA_SUCCESS, is_refused, "{code:?}");
    }
}

#[test]
#[ignore = "a scene that another test plays"]
fn the_legacy_stream_and_a_capture_exclude_each_other() {
    context();
    let at = allocate(BYTES);
    let (blocking, free) = (stream(0), stream(1));
    let mut state = NONE;
    let mut graph = null_mut();
    begin(blocking, MODE_RELAXED);
    // The question is refused, and harms nothing.
    fails!(
        cuStreamIsCapturing(null_mut(), &mut state),
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    );
    assert_eq!(status(blocking), ACTIVE);
    fails!(
        cuMemsetD8Async(at, 1, BYTES, null_mut()),
        CUDA_ERROR_STREAM_CAPTURE_IMPLICIT
    );
    assert_eq!(status(blocking), INVALID);
    fails!(
        cuStreamEndCapture(blocking, &mut graph),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    // A stream that is not ordered with it may be captured beside it.
    begin(free, MODE_RELAXED);
    ok!(cuStreamIsCapturing(null_mut(), &mut state));
    ok!(cuMemsetD8Async(at, 1, BYTES, null_mut()));
    end(free);
    // So may the thread's own.
    ok!(cuStreamBeginCapture_v2_ptsz(null_mut(), MODE_RELAXED));
    ok!(cuMemsetD8Async_ptsz(at, 5, BYTES, null_mut()));
    ok!(cuStreamEndCapture_ptsz(null_mut(), &mut graph));
    assert_eq!(nodes(graph).len(), 1);
}

unsafe extern "C" fn count(argument: *mut c_void) {
    // SAFETY: the scene hands over its counter.
    unsafe { &*argument.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_graph_built_by_hand_runs_in_the_order_of_its_edges() {
    let context = context();
    let function = function(c"spin_ns");
    let stream = stream(1);
    let (a, b) = (allocate(BYTES), allocate(BYTES));
    let calls = AtomicU32::new(0);
    let mut graph = null_mut();
    ok!(cuGraphCreate(&mut graph, 0));
    // Added last first: the edges alone make the order.
    let (mut host, mut copy, mut fill, mut kernel) =
        (null_mut(), null_mut(), null_mut(), null_mut());
    let host_params = CUDA_HOST_NODE_PARAMS {
        fn_: Some(count),
        userData: (&raw const calls).cast_mut().cast(),
    };
    ok!(cuGraphAddHostNode(
        &mut host,
        graph,
        null(),
        0,
        &host_params
    ));
    // SAFETY: plain data; what is not set below is zero.
    let mut copy_params: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    copy_params.srcMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    copy_params.srcDevice = a;
    copy_params.dstMemoryType = CUmemorytype::CU_MEMORYTYPE_DEVICE;
    copy_params.dstDevice = b;
    copy_params.WidthInBytes = BYTES;
    copy_params.Height = 1;
    copy_params.Depth = 1;
    ok!(cuGraphAddMemcpyNode(
        &mut copy,
        graph,
        null(),
        0,
        &copy_params,
        context
    ));
    let fill_params = CUDA_MEMSET_NODE_PARAMS {
        dst: a,
        pitch: 0,
        value: 6,
        elementSize: 1,
        width: BYTES,
        height: 1,
    };
    ok!(cuGraphAddMemsetNode(
        &mut fill,
        graph,
        null(),
        0,
        &fill_params,
        context
    ));
    let mut nanoseconds = 1_000_000u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    // SAFETY: plain data; what is not set below is zero.
    let mut kernel_params: CUDA_KERNEL_NODE_PARAMS = unsafe { std::mem::zeroed() };
    kernel_params.func = function;
    (
        kernel_params.gridDimX,
        kernel_params.gridDimY,
        kernel_params.gridDimZ,
    ) = (1, 1, 1);
    (
        kernel_params.blockDimX,
        kernel_params.blockDimY,
        kernel_params.blockDimZ,
    ) = (1, 1, 1);
    kernel_params.kernelParams = parameters.as_mut_ptr();
    ok!(cuGraphAddKernelNode_v2(
        &mut kernel,
        graph,
        &fill,
        1,
        &kernel_params
    ));
    let (from, to) = ([fill, kernel, copy], [copy, copy, host]);
    ok!(cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 3));
    fails!(
        cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 1),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut waits = 0;
    ok!(cuGraphNodeGetDependencies(copy, null_mut(), &mut waits));
    assert_eq!(waits, 2);
    let exec = instantiated(graph);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!((first_byte(a), first_byte(b)), (6, 6));
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    // As a part of another graph, twice.
    let (mut outer, mut child, mut again) = (null_mut(), null_mut(), null_mut());
    ok!(cuGraphCreate(&mut outer, 0));
    ok!(cuGraphAddChildGraphNode(
        &mut child,
        outer,
        null(),
        0,
        graph
    ));
    ok!(cuGraphAddChildGraphNode(
        &mut again, outer, &child, 1, graph
    ));
    ok!(cuGraphLaunch(instantiated(outer), stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(calls.load(Ordering::SeqCst), 3);
    let mut twin = null_mut();
    ok!(cuGraphClone(&mut twin, graph));
    assert_eq!(nodes(twin).len(), 4);
    // Nothing runs in a circle, nor with another graph's nodes.
    ok!(cuGraphAddDependencies(graph, &host, &fill, 1));
    let mut none = 3 as CUgraphExec;
    fails!(
        cuGraphInstantiateWithFlags(&mut none, graph, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(none as usize, 3, "untouched");
    fails!(
        cuGraphAddDependencies(graph, &child, &fill, 1),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn an_executable_graph_is_updated_if_the_form_is_the_same() {
    context();
    let function = function(c"spin_ns");
    let stream = stream(1);
    let at = allocate(BYTES);
    let captured = |nanoseconds: u64, value: u8| {
        begin(stream, MODE_RELAXED);
        spin(function, nanoseconds, stream);
        ok!(cuMemsetD8Async(at, value, BYTES, stream));
        end(stream)
    };
    let exec = instantiated(captured(1_000_000, 1));
    // SAFETY: plain data, which the call fills.
    let mut info: CUgraphExecUpdateResultInfo = unsafe { std::mem::zeroed() };
    ok!(cuGraphExecUpdate_v2(
        exec,
        captured(4_000_000, 2),
        &mut info
    ));
    assert_eq!(
        info.result,
        CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_SUCCESS
    );
    let took = device_ns(exec, stream, 1);
    assert!((4_000_000..6_000_000).contains(&took), "{took} ns");
    assert_eq!(first_byte(at), 2);
    begin(stream, MODE_RELAXED);
    ok!(cuMemsetD8Async(at, 3, BYTES, stream));
    let shorter = end(stream);
    fails!(
        cuGraphExecUpdate_v2(exec, shorter, &mut info),
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    );
    assert_eq!(
        info.result,
        CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    );
    // The same two nodes, and nothing says which comes first.
    let loose = captured(1_000_000, 4);
    let [kernel, fill] = nodes(loose)[..] else {
        panic!("two nodes");
    };
    ok!(cuGraphRemoveDependencies(loose, &kernel, &fill, 1));
    fails!(
        cuGraphExecUpdate_v2(exec, loose, &mut info),
        CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE
    );
    assert_eq!(
        info.result,
        CUgraphExecUpdateResult::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED
    );
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuStreamSynchronize(stream));
    assert_eq!(first_byte(at), 2, "as before the update that failed");
}

fn graph_bytes(which: CUgraphMem_attribute) -> usize {
    let mut bytes = 0u64;
    ok!(cuDeviceGetGraphMemAttribute(
        0,
        which,
        (&raw mut bytes).cast()
    ));
    bytes as usize
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_graph_s_memory_is_held_from_its_launch_until_it_is_trimmed() {
    use CUgraphMem_attribute_enum as A;
    context();
    let stream = stream(1);
    let kept = allocate(BYTES);
    let before = free_bytes();
    let used = || graph_bytes(A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    let reserved = || graph_bytes(A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT);
    begin(stream, MODE_RELAXED);
    let mut at = 0;
    ok!(cuMemAllocAsync(&mut at, 64 * MIB, stream));
    ok!(cuMemsetD8Async(at, 5, BYTES, stream));
    ok!(cuMemcpyDtoDAsync_v2(kept, at, BYTES, stream));
    ok!(cuMemFreeAsync(at, stream));
    let exec = instantiated(end(stream));
    assert_eq!((used(), reserved(), before - free_bytes()), (0, 0, 0));
    for _ in 0..2 {
        ok!(cuMemsetD8_v2(kept, 0, BYTES));
        ok!(cuCtxSynchronize());
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(first_byte(kept), 5);
        assert_eq!((used(), reserved()), (0, 64 * MIB));
        assert_eq!(before - free_bytes(), 64 * MIB);
    }
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!((reserved(), before - free_bytes()), (0, 0));
    let high = A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH;
    assert_eq!(graph_bytes(high), 64 * MIB);
    let mut zero = 0u64;
    ok!(cuDeviceSetGraphMemAttribute(
        0,
        high,
        (&raw mut zero).cast()
    ));
    assert_eq!(graph_bytes(high), 0);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_graph_s_memory_that_no_node_frees_stays_and_hinders_the_next_launch() {
    use CUgraphMem_attribute_enum as A;
    context();
    let stream = stream(1);
    let before = free_bytes();
    let used = || graph_bytes(A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    let auto_free = 1;
    for (flags, again) in [
        (0, Code::CUDA_ERROR_INVALID_VALUE),
        (auto_free, Code::CUDA_SUCCESS),
    ] {
        let (mut graph, mut node, mut exec) = (null_mut(), null_mut(), null_mut());
        ok!(cuGraphCreate(&mut graph, 0));
        // SAFETY: plain data; what is not set below is zero.
        let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
        params.poolProps.allocType = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
        params.poolProps.location.type_ = CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE;
        params.bytesize = 64 * MIB;
        ok!(cuGraphAddMemAllocNode(
            &mut node,
            graph,
            null(),
            0,
            &mut params
        ));
        let at = params.dptr;
        fails!(
            cuGraphClone(&mut null_mut(), graph),
            CUDA_ERROR_NOT_SUPPORTED
        );
        ok!(cuGraphInstantiateWithFlags(&mut exec, graph, flags));
        ok!(cuGraphLaunch(exec, stream));
        ok!(cuMemsetD8Async(at, 6, BYTES, stream));
        ok!(cuStreamSynchronize(stream));
        assert_eq!(first_byte(at), 6);
        assert_eq!(unsafe { cuGraphLaunch(exec, stream) }, again);
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!((used(), before - free_bytes()), (64 * MIB, 64 * MIB));
        // Neither graph nor executable holds it.
        ok!(cuGraphExecDestroy(exec));
        ok!(cuGraphDestroy(graph));
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!(before - free_bytes(), 64 * MIB);
        ok!(cuMemFreeAsync(at, stream));
        fails!(cuMemFreeAsync(at, stream), CUDA_ERROR_INVALID_VALUE);
        ok!(cuStreamSynchronize(stream));
        ok!(cuDeviceGraphMemTrim(0));
        assert_eq!((used(), before - free_bytes()), (0, 0));
    }
    // Of more than there is, nothing is taken.
    begin(stream, MODE_RELAXED);
    let (mut small, mut large) = (0, 0);
    ok!(cuMemAllocAsync(&mut small, 64 * MIB, stream));
    ok!(cuMemAllocAsync(&mut large, 16 * GIB, stream));
    let exec = instantiated(end(stream));
    fails!(cuGraphLaunch(exec, stream), CUDA_ERROR_OUT_OF_MEMORY);
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!((used(), before - free_bytes()), (0, 0));
}
