//! Scenes about changes of graphs.

use super::*;

const BYTES: usize = 4096;

/// A graph with a fill of each of two places, one after the other.
fn two_fills(places: [CUdeviceptr; 2]) -> (CUgraph, [CUgraphNode; 2]) {
    let (mut graph, mut nodes) = (null_mut(), [null_mut(); 2]);
    let context = current();
    ok!(cuGraphCreate(&mut graph, 0));
    ok!(cuGraphAddMemsetNode(
        &mut nodes[0],
        graph,
        null(),
        0,
        &fill(places[0], 1),
        context
    ));
    let first = nodes[0];
    ok!(cuGraphAddMemsetNode(
        &mut nodes[1],
        graph,
        &first,
        1,
        &fill(places[1], 2),
        context
    ));
    (graph, nodes)
}

fn current() -> CUcontext {
    let mut context = null_mut();
    ok!(cuCtxGetCurrent(&mut context));
    context
}

fn fill(at: CUdeviceptr, value: u32) -> CUDA_MEMSET_NODE_PARAMS {
    CUDA_MEMSET_NODE_PARAMS {
        dst: at,
        pitch: 0,
        value,
        elementSize: 1,
        width: BYTES,
        height: 1,
    }
}

fn instantiated(graph: CUgraph) -> CUgraphExec {
    let mut exec = null_mut();
    ok!(cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    exec
}

/// The first byte of each place, after a launch on zeros.
fn launched(exec: CUgraphExec, places: [CUdeviceptr; 2]) -> [u8; 2] {
    for place in places {
        ok!(cuMemsetD8_v2(place, 0, BYTES));
    }
    ok!(cuGraphLaunch(exec, null_mut()));
    ok!(cuCtxSynchronize());
    places.map(|place| {
        let mut byte = 0u8;
        ok!(cuMemcpyDtoH_v2((&raw mut byte).cast(), place, 1));
        byte
    })
}

#[test]
#[ignore = "a scene that another test plays"]
fn parameters_of_nodes_are_changed_in_a_graph_and_in_what_was_made_of_it() {
    context();
    let places = [allocate(BYTES), allocate(BYTES)];
    let (graph, [first, second]) = two_fills(places);
    let exec = instantiated(graph);
    assert_eq!(launched(exec, places), [1, 2]);
    // What was made of it stays as it was.
    ok!(cuGraphMemsetNodeSetParams(first, &fill(places[0], 3)));
    assert_eq!(launched(exec, places), [1, 2]);
    assert_eq!(launched(instantiated(graph), places), [3, 2]);
    ok!(cuGraphExecMemsetNodeSetParams(
        exec,
        second,
        &fill(places[1], 4),
        current()
    ));
    assert_eq!(launched(exec, places), [1, 4]);
    assert_eq!(launched(instantiated(graph), places), [3, 2]);
    // A node stays of its kind.
    let mut event = null_mut();
    ok!(cuEventCreate(&mut event, 0));
    fails!(
        cuGraphEventRecordNodeSetEvent(first, event),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut found = null_mut();
    fails!(
        cuGraphEventRecordNodeGetEvent(first, &mut found),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut record = null_mut();
    ok!(cuGraphAddEventRecordNode(
        &mut record,
        graph,
        null(),
        0,
        event
    ));
    ok!(cuGraphEventRecordNodeGetEvent(record, &mut found));
    assert_eq!(found, event);
    fails!(
        cuGraphEventWaitNodeGetEvent(record, &mut found),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut other = null_mut();
    ok!(cuEventCreate(&mut other, 0));
    ok!(cuGraphEventRecordNodeSetEvent(record, other));
    ok!(cuGraphEventRecordNodeGetEvent(record, &mut found));
    assert_eq!(found, other);
    // Nodes of a later time are none of the executable graph's.
    fails!(
        cuGraphExecEventRecordNodeSetEvent(exec, record, other),
        CUDA_ERROR_INVALID_VALUE
    );
    let mut is_enabled = 7;
    ok!(cuGraphNodeGetEnabled(exec, first, &mut is_enabled));
    assert_eq!(is_enabled, 1);
    ok!(cuGraphNodeSetEnabled(exec, first, 0));
    ok!(cuGraphNodeGetEnabled(exec, first, &mut is_enabled));
    assert_eq!(is_enabled, 0);
    assert_eq!(launched(exec, places), [0, 4]);
    ok!(cuGraphNodeSetEnabled(exec, first, 1));
    assert_eq!(launched(exec, places), [1, 4]);
    let exec = instantiated(graph);
    fails!(
        cuGraphNodeSetEnabled(exec, record, 0),
        CUDA_ERROR_INVALID_VALUE
    );
}

#[test]
#[ignore = "a scene that another test plays"]
fn edges_and_nodes_are_taken_away() {
    context();
    let places = [allocate(BYTES), allocate(BYTES)];
    let (graph, [first, second]) = two_fills(places);
    fails!(
        cuGraphRemoveDependencies(graph, &second, &first, 1),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuGraphRemoveDependencies(graph, &first, &second, 1));
    let mut count = 9;
    ok!(cuGraphGetEdges(graph, null_mut(), null_mut(), &mut count));
    assert_eq!(count, 0);
    fails!(
        cuGraphRemoveDependencies(graph, &first, &second, 1),
        CUDA_ERROR_INVALID_VALUE
    );
    ok!(cuGraphAddDependencies(graph, &first, &second, 1));
    ok!(cuGraphDestroyNode(first));
    ok!(cuGraphGetNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 1);
    ok!(cuGraphGetRootNodes(graph, null_mut(), &mut count));
    assert_eq!(count, 1, "what came after it comes after nothing");
    assert_eq!(launched(instantiated(graph), places), [0, 2]);
    fails!(cuGraphDestroyNode(first), CUDA_ERROR_INVALID_VALUE);
}

#[test]
#[ignore = "a scene that another test plays"]
fn launches_of_one_executable_graph_come_after_one_another() {
    context();
    let function = function(c"spin_ns");
    let (one, other) = (stream(1), stream(1));
    ok!(cuStreamBeginCapture_v2(
        one,
        CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED
    ));
    spin(function, 100_000_000, one);
    let mut graph = null_mut();
    ok!(cuStreamEndCapture(one, &mut graph));
    let exec = instantiated(graph);
    ok!(cuGraphLaunch(exec, one));
    ok!(cuGraphLaunch(exec, other));
    ok!(cuStreamSynchronize(other));
    // What it came after is over with it.
    ok!(cuStreamQuery(one));
}
