//! Graphs that are built by hand: copies, children, edges, and what they hold of the program's.

use crate::check::Checks;
use crate::tools::{allocate, bytes_at, context};
use ffi::driver::*;
use std::ffi::c_void;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

const BYTES: usize = 4096;

pub(crate) fn play(t: &Checks) {
    context(t);
    let at = allocate(t, BYTES);
    children(t, at);
    edges(t);
    objects(t);
    ok!(t, cuMemFree_v2(at));
}

fn graph(t: &Checks) -> CUgraph {
    let mut graph = null_mut();
    ok!(t, cuGraphCreate(&mut graph, 0));
    graph
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

fn launched(t: &Checks, graph: CUgraph) {
    let mut exec = null_mut();
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(t, cuGraphLaunch(exec, null_mut()));
    ok!(t, cuCtxSynchronize());
    ok!(t, cuGraphExecDestroy(exec));
}

/// The graph of a node is a copy of what was given, and the node's own.
fn children(t: &Checks, at: CUdeviceptr) {
    let (inner, outer) = (graph(t), graph(t));
    let (mut first, mut child, mut current) = (null_mut(), null_mut(), null_mut());
    ok!(t, cuCtxGetCurrent(&mut current));
    let params = fill(at, 1);
    ok!(
        t,
        cuGraphAddMemsetNode(&mut first, inner, null(), 0, &params, current)
    );
    ok!(
        t,
        cuGraphAddChildGraphNode(&mut child, outer, null(), 0, inner)
    );
    ok!(t, cuGraphMemsetNodeSetParams(first, &fill(at, 2)));
    launched(t, outer);
    t.is("as it was when it was given", bytes_at(t, at, 1), vec![1]);
    let (mut held, mut twin) = (null_mut(), null_mut());
    ok!(t, cuGraphChildGraphNodeGetGraph(child, &mut held));
    t.holds("it is another graph", held != inner);
    let mut count = 1;
    ok!(t, cuGraphGetNodes(held, &mut twin, &mut count));
    ok!(t, cuGraphMemsetNodeSetParams(twin, &fill(at, 3)));
    launched(t, outer);
    t.is("what was changed in it", bytes_at(t, at, 1), vec![3]);
    let (mut copy, mut found) = (null_mut(), null_mut());
    ok!(t, cuGraphClone(&mut copy, inner));
    ok!(t, cuGraphNodeFindInClone(&mut found, first, copy));
    count = 1;
    ok!(t, cuGraphGetNodes(copy, &mut twin, &mut count));
    t.holds("the node of the copy", found == twin);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuGraphNodeFindInClone(&mut found, child, copy)
    );
    for graph in [copy, outer, inner] {
        ok!(t, cuGraphDestroy(graph));
    }
}

fn edges(t: &Checks) {
    let graph = graph(t);
    let mut nodes = [null_mut(); 3];
    for node in &mut nodes {
        ok!(t, cuGraphAddEmptyNode(node, graph, null(), 0));
    }
    let (from, to) = ([nodes[0], nodes[0]], [nodes[1], nodes[2]]);
    ok!(
        t,
        cuGraphAddDependencies(graph, from.as_ptr(), to.as_ptr(), 2)
    );
    let (mut begins, mut ends, mut count) = ([null_mut(); 2], [null_mut(); 2], 2);
    ok!(
        t,
        cuGraphGetEdges(graph, begins.as_mut_ptr(), ends.as_mut_ptr(), &mut count)
    );
    t.is("edges", count, 2);
    t.holds("they begin", begins == from);
    let mut roots = 0;
    ok!(t, cuGraphGetRootNodes(graph, null_mut(), &mut roots));
    t.is("roots", roots, 1);
    ok!(
        t,
        cuGraphNodeGetDependentNodes(nodes[0], null_mut(), &mut count)
    );
    t.is("behind the first", count, 2);
    ok!(t, cuGraphRemoveDependencies(graph, &nodes[0], &nodes[2], 1));
    ok!(
        t,
        cuGraphNodeGetDependentNodes(nodes[0], null_mut(), &mut count)
    );
    t.is("behind it now", count, 1);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuGraphRemoveDependencies(graph, &nodes[0], &nodes[2], 1)
    );
    ok!(t, cuGraphDestroy(graph));
}

static ENDED: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn ends(_: *mut c_void) {
    ENDED.fetch_add(1, Ordering::SeqCst);
}

/// An object lives as long as a graph that it was moved into.
fn objects(t: &Checks) {
    let (graph, mut object) = (graph(t), null_mut());
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuUserObjectCreate(&mut object, null_mut(), Some(ends), 1, 0)
    );
    ok!(
        t,
        cuUserObjectCreate(&mut object, null_mut(), Some(ends), 1, 1)
    );
    ok!(t, cuGraphRetainUserObject(graph, object, 1, 1));
    t.is("held by the graph", ENDED.load(Ordering::SeqCst), 0);
    ok!(t, cuGraphDestroy(graph));
    let deadline = Instant::now() + Duration::from_secs(10);
    while ENDED.load(Ordering::SeqCst) == 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(1));
    }
    t.is("ended with it", ENDED.load(Ordering::SeqCst), 1);
}
