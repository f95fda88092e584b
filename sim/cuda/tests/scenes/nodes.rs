//! Scenes about nodes of every kind, copies of graphs, and what graphs hold of the program's.

use super::*;

use std::sync::atomic::AtomicUsize;

const BYTES: usize = 4096;

type Kind = CUgraphNodeType_enum;

fn graph() -> CUgraph {
    let mut graph = null_mut();
    ok!(cuGraphCreate(&mut graph, 0));
    graph
}

fn instantiated(graph: CUgraph) -> CUgraphExec {
    let mut exec = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

fn launched(exec: CUgraphExec) {
    ok!(cuGraphLaunch(exec, null_mut()));
    ok!(cuCtxSynchronize());
}

fn params(kind: Kind) -> CUgraphNodeParams {
    let mut params: CUgraphNodeParams = unsafe { std::mem::zeroed() };
    params.type_ = kind;
    params
}

fn fill(at: CUdeviceptr, value: u32) -> CUgraphNodeParams {
    let mut params = params(Kind::CU_GRAPH_NODE_TYPE_MEMSET);
    params.__bindgen_anon_1.memset = CUDA_MEMSET_NODE_PARAMS_v2 {
        dst: at,
        pitch: 0,
        value,
        elementSize: 1,
        width: BYTES,
        height: 1,
        ctx: null_mut(),
    };
    params
}

fn added(graph: CUgraph, after: &[CUgraphNode], params: &mut CUgraphNodeParams) -> CUgraphNode {
    let mut node = null_mut();
    let (list, count) = (after.as_ptr(), after.len());
    ok!(cuGraphAddNode_v2(
        &mut node,
        graph,
        list,
        null(),
        count,
        params
    ));
    let mut kind = Kind::CU_GRAPH_NODE_TYPE_EMPTY;
    ok!(cuGraphNodeGetType(node, &mut kind));
    assert_eq!(kind, params.type_);
    node
}

fn byte(at: CUdeviceptr) -> u8 {
    let mut byte = 0u8;
    ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), at, 1));
    byte
}

unsafe extern "C" fn count(argument: *mut c_void) {
    let counter = unsafe { &*argument.cast::<AtomicUsize>() };
    counter.fetch_add(1, Ordering::SeqCst);
}

fn counter() -> &'static AtomicUsize {
    Box::leak(Box::default())
}

fn address(counter: &'static AtomicUsize) -> *mut c_void {
    std::ptr::from_ref(counter).cast_mut().cast()
}

#[test]
#[ignore = "a scene that another test plays"]
fn nodes_of_every_kind_are_added_through_one_interface() {
    context();
    let (from, to, word) = (allocate(BYTES), allocate(BYTES), allocate(4));
    let (graph, calls, event) = (graph(), counter(), event());
    let first = added(graph, &[], &mut fill(from, 7));

    let mut copy = params(Kind::CU_GRAPH_NODE_TYPE_MEMCPY);
    let mut shape: CUDA_MEMCPY3D = unsafe { std::mem::zeroed() };
    shape.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
    shape.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
    (shape.srcDevice, shape.dstDevice) = (from, to);
    (shape.WidthInBytes, shape.Height, shape.Depth) = (BYTES, 1, 1);
    copy.__bindgen_anon_1.memcpy = CUDA_MEMCPY_NODE_PARAMS {
        flags: 0,
        reserved: 0,
        copyCtx: null_mut(),
        copyParams: shape,
    };
    let copy = added(graph, &[first], &mut copy);

    let mut kernel = params(Kind::CU_GRAPH_NODE_TYPE_KERNEL);
    let mut nanoseconds = 1000u64;
    let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
    kernel.__bindgen_anon_1.kernel = CUDA_KERNEL_NODE_PARAMS_v3 {
        func: function(c"spin_ns"),
        gridDimX: 1,
        gridDimY: 1,
        gridDimZ: 1,
        blockDimX: 32,
        blockDimY: 1,
        blockDimZ: 1,
        sharedMemBytes: 0,
        kernelParams: parameters.as_mut_ptr(),
        extra: null_mut(),
        kern: null_mut(),
        ctx: null_mut(),
    };
    let kernel = added(graph, &[copy], &mut kernel);

    let mut host = params(Kind::CU_GRAPH_NODE_TYPE_HOST);
    host.__bindgen_anon_1.host.fn_ = Some(count);
    host.__bindgen_anon_1.host.userData = address(calls);
    let host = added(graph, &[kernel], &mut host);
    let mut found: CUDA_HOST_NODE_PARAMS = unsafe { std::mem::zeroed() };
    ok!(cuGraphHostNodeGetParams(host, &mut found));
    assert_eq!(found.userData, address(calls));
    fails!(
        cuGraphHostNodeGetParams(copy, &mut found),
        CUDA_ERROR_INVALID_VALUE
    );

    let mut record = params(Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD);
    record.__bindgen_anon_1.eventRecord.event = event;
    let record = added(graph, &[host], &mut record);
    let mut wait = params(Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT);
    wait.__bindgen_anon_1.eventWait.event = event;
    let wait = added(graph, &[record], &mut wait);

    let mut write: CUstreamBatchMemOpParams = unsafe { std::mem::zeroed() };
    write.writeValue.operation = CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WRITE_VALUE_32;
    write.writeValue.address = word;
    write.writeValue.__bindgen_anon_1.value = 99;
    let mut batch = params(Kind::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP);
    batch.__bindgen_anon_1.memOp = CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 {
        ctx: null_mut(),
        count: 1,
        paramArray: &mut write,
        flags: 0,
    };
    let batch = added(graph, &[wait], &mut batch);
    let empty = added(graph, &[batch], &mut params(Kind::CU_GRAPH_NODE_TYPE_EMPTY));

    let mut memory = params(Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    let alloc = unsafe { &mut memory.__bindgen_anon_1.alloc };
    alloc.poolProps.allocType = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    alloc.bytesize = 2 * MIB;
    let node = added(graph, &[empty], &mut memory);
    let at = unsafe { memory.__bindgen_anon_1.alloc.dptr };
    assert_ne!(at, 0);
    let inside = added(graph, &[node], &mut fill(at, 3));
    let mut gone = params(Kind::CU_GRAPH_NODE_TYPE_MEM_FREE);
    gone.__bindgen_anon_1.free.dptr = at;
    added(graph, &[inside], &mut gone);

    let exec = instantiated(graph);
    launched(exec);
    assert_eq!((byte(from), byte(to), byte(word)), (7, 7, 99));
    assert_eq!(calls.load(Ordering::SeqCst), 1);

    // Parameters are changed through it as well, in the graph and in what was made of it.
    ok!(cuGraphExecNodeSetParams(exec, first, &mut fill(from, 8)));
    launched(exec);
    assert_eq!((byte(from), byte(to)), (8, 8));
    write.writeValue.__bindgen_anon_1.value = 98;
    let mut plain = CUDA_BATCH_MEM_OP_NODE_PARAMS {
        ctx: null_mut(),
        count: 1,
        paramArray: &mut write,
        flags: 0,
    };
    ok!(cuGraphExecBatchMemOpNodeSetParams(exec, batch, &plain));
    launched(exec);
    assert_eq!(byte(word), 98);
    ok!(cuGraphNodeSetParams(first, &mut fill(from, 9)));
    plain.flags = 1;
    fails!(
        cuGraphBatchMemOpNodeSetParams(batch, &plain),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuGraphNodeSetParams(copy, &mut fill(from, 9)),
        CUDA_ERROR_INVALID_VALUE
    );
    launched(instantiated(graph));
    assert_eq!(byte(to), 9);

    // What is nobody's must be zero, and a refused node is no node.
    let nodes = |graph| {
        let mut count = 0;
        ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
        count
    };
    let before = nodes(graph);
    let mut none = null_mut();
    let mut odd = fill(from, 1);
    odd.reserved0[1] = 1;
    fails!(
        cuGraphAddNode(&mut none, graph, null(), 0, &mut odd),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut conditional = params(Kind::CU_GRAPH_NODE_TYPE_CONDITIONAL);
    fails!(
        cuGraphAddNode(&mut none, graph, null(), 0, &mut conditional),
        CUDA_ERROR_NOT_SUPPORTED
    );
    let mut unknown = params(CUgraphNodeType_enum(77));
    fails!(
        cuGraphAddNode(&mut none, graph, null(), 0, &mut unknown),
        CUDA_ERROR_INVALID_VALUE
    );
    assert_eq!(nodes(graph), before);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_copy_knows_what_it_is_of_and_a_node_s_graph_is_its_own() {
    context();
    let at = allocate(BYTES);
    let (inner, outer) = (graph(), graph());
    let first = added(inner, &[], &mut fill(at, 1));
    let mut nested = params(Kind::CU_GRAPH_NODE_TYPE_GRAPH);
    nested.__bindgen_anon_1.graph.graph = inner;
    let child = added(outer, &[], &mut nested);
    let mut held = null_mut();
    ok!(cuGraphChildGraphNodeGetGraph(child, &mut held));
    assert_ne!(held, inner);
    fails!(
        cuGraphChildGraphNodeGetGraph(first, &mut held),
        CUDA_ERROR_INVALID_VALUE
    );
    // It was copied: what becomes of the first one is nothing to it.
    ok!(cuGraphNodeSetParams(first, &mut fill(at, 2)));
    launched(instantiated(outer));
    assert_eq!(byte(at), 1);
    // It is the node's own: what becomes of it shows there.
    let mut twin = null_mut();
    ok!(cuGraphNodeFindInClone(&mut twin, first, held));
    ok!(cuGraphNodeSetParams(twin, &mut fill(at, 3)));
    let exec = instantiated(outer);
    launched(exec);
    assert_eq!(byte(at), 3);
    fails!(cuGraphDestroy(held), CUDA_ERROR_INVALID_VALUE);
    ok!(cuGraphExecChildGraphNodeSetParams(exec, child, inner));
    launched(exec);
    assert_eq!(byte(at), 2);
    added(inner, &[], &mut fill(at, 4));
    fails!(
        cuGraphExecChildGraphNodeSetParams(exec, child, inner),
        CUDA_ERROR_INVALID_VALUE
    );
    // A copy of the whole has one of it.
    let (mut copy, mut there, mut other) = (null_mut(), null_mut(), null_mut());
    ok!(cuGraphClone(&mut copy, outer));
    ok!(cuGraphNodeFindInClone(&mut there, child, copy));
    ok!(cuGraphChildGraphNodeGetGraph(there, &mut other));
    assert!(other != held && other != inner);
    fails!(
        cuGraphNodeFindInClone(&mut there, first, copy),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut of = null_mut();
    ok!(cuGraphNodeGetContainingGraph(twin, &mut of));
    assert_eq!(of, held);
    let (mut one, mut two, mut flags) = (0, 0, 7);
    ok!(cuGraphGetId(copy, &mut one));
    ok!(cuGraphGetId(outer, &mut two));
    assert_ne!(one, two);
    ok!(cuGraphExecGetFlags(exec, &mut flags));
    assert_eq!(flags, 0);
    // It goes with what holds it.
    ok!(cuGraphDestroy(outer));
    let mut count = 0;
    fails!(
        cuGraphGetNodes(held, null_mut(), &mut count),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuGraphGetNodes(other, null_mut(), &mut count));
    assert_eq!(count, 1);
    // A launch that is captured becomes a node with a graph of its own.
    let stream = stream(1);
    let relaxed = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(cuStreamBeginCapture_v2(stream, relaxed));
    ok!(cuGraphLaunch(exec, stream));
    let (mut graph, mut node) = (null_mut(), null_mut());
    ok!(cuStreamEndCapture(stream, &mut graph));
    count = 1;
    ok!(cuGraphGetNodes(graph, &mut node, &mut count));
    ok!(cuGraphChildGraphNodeGetGraph(node, &mut held));
    ok!(cuGraphGetNodes(held, &mut node, &mut count));
    ok!(cuGraphChildGraphNodeGetGraph(node, &mut held));
    ok!(cuGraphGetNodes(held, &mut node, &mut count));
    ok!(cuGraphNodeSetParams(node, &mut fill(at, 5)));
    launched(instantiated(graph));
    assert_eq!(byte(at), 5);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_graph_is_moved_into_another_with_its_memory() {
    context();
    let free = free_bytes();
    let (inner, outer) = (graph(), graph());
    let mut memory = params(Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC);
    let alloc = unsafe { &mut memory.__bindgen_anon_1.alloc };
    alloc.poolProps.allocType = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    alloc.poolProps.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    alloc.bytesize = 2 * MIB;
    let node = added(inner, &[], &mut memory);
    let mut gone = params(Kind::CU_GRAPH_NODE_TYPE_MEM_FREE);
    gone.__bindgen_anon_1.free.dptr = unsafe { memory.__bindgen_anon_1.alloc.dptr };
    added(inner, &[node], &mut gone);
    let mut nested = params(Kind::CU_GRAPH_NODE_TYPE_GRAPH);
    nested.__bindgen_anon_1.graph.graph = inner;
    let mut none = null_mut();
    // A copy would have the same addresses.
    fails!(
        cuGraphAddNode(&mut none, outer, null(), 0, &mut nested),
        CUDA_ERROR_NOT_SUPPORTED
    );
    let moved = CUgraphChildGraphNodeOwnership_enum::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
    nested.__bindgen_anon_1.graph.ownership = moved;
    fails!(
        cuGraphAddNode(&mut none, inner, null(), 0, &mut nested),
        CUDA_ERROR_INVALID_VALUE
    );
    let child = added(outer, &[], &mut nested);
    let mut held = null_mut();
    ok!(cuGraphChildGraphNodeGetGraph(child, &mut held));
    assert_eq!(held, inner);
    fails!(
        cuGraphAddNode(&mut none, outer, null(), 0, &mut nested),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut around = params(Kind::CU_GRAPH_NODE_TYPE_GRAPH);
    around.__bindgen_anon_1.graph.graph = outer;
    around.__bindgen_anon_1.graph.ownership = moved;
    fails!(
        cuGraphAddNode(&mut none, inner, null(), 0, &mut around),
        CUDA_ERROR_INVALID_VALUE
    );
    let exec = instantiated(outer);
    assert_eq!(free_bytes(), free);
    for _ in 0..2 {
        launched(exec);
        assert_eq!(free_bytes(), free - 2 * MIB);
    }
    ok!(cuGraphExecDestroy(exec));
    ok!(cuGraphDestroy(outer));
    ok!(cuDeviceGraphMemTrim(0));
    assert_eq!(free_bytes(), free);
}

#[test]
#[ignore = "a scene that another test plays"]
fn edges_are_plain_and_say_so() {
    context();
    let at = allocate(BYTES);
    let graph = graph();
    let [a, b, c] = [1, 2, 3].map(|value| added(graph, &[], &mut fill(at, value)));
    let plain: CUgraphEdgeData = unsafe { std::mem::zeroed() };
    let (from, to) = ([a, a], [b, c]);
    let mut early = [plain; 2];
    early[1].type_ = 1;
    fails!(
        cuGraphAddDependencies_v2(graph, from.as_ptr(), to.as_ptr(), early.as_ptr(), 2),
        CUDA_ERROR_NOT_SUPPORTED
    );
    early[1].type_ = 9;
    fails!(
        cuGraphAddDependencies_v2(graph, from.as_ptr(), to.as_ptr(), early.as_ptr(), 2),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut count = 0;
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count));
    assert_eq!(count, 0, "a refused edge is no edge");
    let both = [plain; 2];
    ok!(cuGraphAddDependencies_v2(
        graph,
        from.as_ptr(),
        to.as_ptr(),
        both.as_ptr(),
        2
    ));
    let (mut begins, mut ends) = ([null_mut(); 2], [null_mut(); 2]);
    let mut data = [CUgraphEdgeData { type_: 7, ..plain }; 2];
    count = 2;
    ok!(cuGraphGetEdges_v2(
        graph,
        begins.as_mut_ptr(),
        ends.as_mut_ptr(),
        data.as_mut_ptr(),
        &mut count
    ));
    assert_eq!((begins, ends, count), (from, to, 2));
    assert_eq!(data.map(|edge| edge.type_), [0, 0]);
    ok!(cuGraphNodeGetDependentNodes(a, null_mut(), &mut count));
    assert_eq!(count, 2);
    let mut behind = [null_mut(); 2];
    ok!(cuGraphNodeGetDependentNodes_v2(
        a,
        behind.as_mut_ptr(),
        data.as_mut_ptr(),
        &mut count
    ));
    assert_eq!(behind, [b, c]);
    let mut before = null_mut();
    count = 1;
    ok!(cuGraphNodeGetDependencies_v2(
        c,
        &mut before,
        null_mut(),
        &mut count
    ));
    assert_eq!((before, count), (a, 1));
    fails!(
        cuGraphNodeGetDependencies_v2(c, null_mut(), data.as_mut_ptr(), &mut count),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuGraphRemoveDependencies_v2(graph, &a, &c, null(), 1));
    ok!(cuGraphNodeGetDependentNodes(a, null_mut(), &mut count));
    assert_eq!(count, 1);
}

#[test]
#[ignore = "a scene that another test plays"]
fn an_object_goes_with_its_last_reference() {
    context();
    let ended = counter();
    let object = |count_of: c_uint| {
        let mut object = null_mut();
        let destroy = Some(count as unsafe extern "C" fn(*mut c_void));
        ok!(cuUserObjectCreate(
            &mut object,
            address(ended),
            destroy,
            count_of,
            1
        ));
        object
    };
    let reaches = |times| {
        let deadline = Instant::now() + Duration::from_secs(10);
        while ended.load(Ordering::SeqCst) != times {
            assert!(Instant::now() < deadline, "not ended {times} times in 10 s");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let mut none = null_mut();
    fails!(
        cuUserObjectCreate(&mut none, null_mut(), Some(count), 1, 0),
        CUDA_ERROR_INVALID_VALUE
    );
    fails!(
        cuUserObjectCreate(&mut none, null_mut(), Some(count), 0, 1),
        CUDA_ERROR_INVALID_VALUE
    );
    let plain = object(2);
    ok!(cuUserObjectRetain(plain, 1));
    ok!(cuUserObjectRelease(plain, 1));
    fails!(cuUserObjectRelease(plain, 3), CUDA_ERROR_INVALID_VALUE);
    ok!(cuUserObjectRelease(plain, 2));
    reaches(1);
    fails!(cuUserObjectRelease(plain, 1), CUDA_ERROR_INVALID_VALUE);

    // The graph's, its copy's, and that of a launch which goes on.
    let (held, graph) = (object(1), graph());
    ok!(cuGraphRetainUserObject(graph, held, 1, 1));
    ok!(cuGraphRetainUserObject(graph, held, 1, 0));
    ok!(cuGraphReleaseUserObject(graph, held, 1));
    fails!(
        cuGraphReleaseUserObject(graph, held, 2),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut spin = params(Kind::CU_GRAPH_NODE_TYPE_HOST);
    unsafe extern "C" fn sleep(_: *mut c_void) {
        std::thread::sleep(Duration::from_millis(100));
    }
    spin.__bindgen_anon_1.host.fn_ = Some(sleep);
    added(graph, &[], &mut spin);
    let mut copy = null_mut();
    ok!(cuGraphClone(&mut copy, graph));
    let exec = instantiated(copy);
    ok!(cuGraphDestroy(graph));
    ok!(cuGraphDestroy(copy));
    let stream = stream(1);
    ok!(cuGraphLaunch(exec, stream));
    ok!(cuGraphExecDestroy(exec));
    assert_eq!(ended.load(Ordering::SeqCst), 1);
    ok!(cuStreamSynchronize(stream));
    reaches(2);
}

#[test]
#[ignore = "a scene that another test plays"]
fn a_capture_adds_to_a_graph_that_is_there() {
    context();
    let at = allocate(BYTES);
    let (graph, stream) = (graph(), stream(1));
    let first = added(graph, &[], &mut fill(at, 1));
    let relaxed = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
    ok!(cuStreamBeginCaptureToGraph(
        stream,
        graph,
        &first,
        null(),
        1,
        relaxed
    ));
    ok!(cuMemsetD8Async(at, 2, BYTES, stream));
    let mut ended = null_mut();
    ok!(cuStreamEndCapture(stream, &mut ended));
    assert_eq!(ended, graph);
    let (mut behind, mut count) = (null_mut(), 1);
    ok!(cuGraphNodeGetDependentNodes(first, &mut behind, &mut count));
    assert_eq!(count, 1);
    launched(instantiated(graph));
    assert_eq!(byte(at), 2);
    // A capture that fails leaves the graph.
    ok!(cuStreamBeginCaptureToGraph(
        stream,
        graph,
        null(),
        null(),
        0,
        relaxed
    ));
    fails!(
        cuStreamSynchronize(stream),
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
    );
    fails!(
        cuStreamEndCapture(stream, &mut ended),
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
    );
    launched(instantiated(graph));
    let other = self::graph();
    fails!(
        cuStreamBeginCaptureToGraph(stream, other, &first, null(), 1, relaxed),
        CUDA_ERROR_INVALID_VALUE
    );
}
