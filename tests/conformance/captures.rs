//! Stream capture, and the graphs that come of it or are built by hand.

use crate::check::Checks;
use crate::tools::{allocate, bytes_at, context, event, spin, spinner, stream};
use ffi::driver::*;
use std::ptr::{null, null_mut};

use CUstreamCaptureMode_enum as Mode;

pub(crate) fn play(t: &Checks) {
    context(t);
    let (_, kernel) = spinner(t);
    captured(t, kernel);
    joined(t);
    violated(t);
    by_hand(t);
}

fn status(t: &Checks, lane: CUstream) -> u32 {
    let mut status = CUstreamCaptureStatus_enum(7);
    ok!(t, cuStreamIsCapturing(lane, &mut status));
    status.0
}

fn count(t: &Checks, graph: CUgraph) -> usize {
    let mut count = 77;
    ok!(t, cuGraphGetNodes(graph, null_mut(), &mut count));
    count
}

fn captured(t: &Checks, kernel: CUfunction) {
    let (lane, at) = (stream(t, 1), allocate(t, 4096));
    ok!(t, cuMemsetD8_v2(at, 0, 4096));
    ok!(t, cuCtxSynchronize());
    let (mut graph, mut exec) = (null_mut(), null_mut());
    t.is("not capturing", status(t, lane), 0);
    ok!(
        t,
        cuStreamBeginCapture_v2(lane, Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)
    );
    t.is("capturing", status(t, lane), 1);
    ok!(t, cuMemsetD8Async(at, 5, 4096, lane));
    spin(t, kernel, 1, lane);
    ok!(t, cuStreamEndCapture(lane, &mut graph));
    t.is("not capturing any more", status(t, lane), 0);
    t.is("a node for each call", count(t, graph), 2);
    t.is("nothing has run", bytes_at(t, at, 1), vec![0]);
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    ok!(t, cuGraphLaunch(exec, lane));
    ok!(t, cuStreamSynchronize(lane));
    t.is("it has run", bytes_at(t, at + 4095, 1), vec![5]);
    ok!(t, cuMemsetD8_v2(at, 0, 4096));
    // What was instantiated does not need its graph any more.
    ok!(t, cuGraphDestroy(graph));
    ok!(t, cuGraphLaunch(exec, lane));
    ok!(t, cuStreamSynchronize(lane));
    t.is("it has run again", bytes_at(t, at, 1), vec![5]);
    ok!(t, cuGraphExecDestroy(exec));
    ok!(t, cuStreamDestroy_v2(lane));
    ok!(t, cuMemFree_v2(at));
}

/// Another stream enters a capture through an event, and must come back.
fn joined(t: &Checks) {
    let (first, second, at) = (stream(t, 1), stream(t, 1), allocate(t, 64));
    let (fork, join) = (event(t, 2), event(t, 2));
    for comes_back in [true, false] {
        let mut graph = null_mut();
        ok!(
            t,
            cuStreamBeginCapture_v2(first, Mode::CU_STREAM_CAPTURE_MODE_RELAXED)
        );
        ok!(t, cuEventRecord(fork, first));
        ok!(t, cuStreamWaitEvent(second, fork, 0));
        t.is("the other captures, too", status(t, second), 1);
        ok!(t, cuMemsetD8Async(at, 1, 64, second));
        if comes_back {
            ok!(t, cuEventRecord(join, second));
            ok!(t, cuStreamWaitEvent(first, join, 0));
            ok!(t, cuStreamEndCapture(first, &mut graph));
            t.is("what the other did", count(t, graph), 1);
            ok!(t, cuGraphDestroy(graph));
        } else {
            answers!(
                t,
                CUDA_ERROR_STREAM_CAPTURE_UNJOINED,
                cuStreamEndCapture(first, &mut graph)
            );
            t.holds("no graph", graph.is_null());
        }
        t.is("over for the other, too", status(t, second), 0);
    }
    ok!(t, cuMemFree_v2(at));
}

fn violated(t: &Checks) {
    let lane = stream(t, 1);
    let mut graph = null_mut();
    let mode = Mode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    ok!(t, cuStreamBeginCapture_v2(lane, mode));
    answers!(
        t,
        CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
        cuStreamSynchronize(lane)
    );
    t.is("invalidated", status(t, lane), 2);
    answers!(
        t,
        CUDA_ERROR_STREAM_CAPTURE_INVALIDATED,
        cuStreamEndCapture(lane, &mut graph)
    );
    t.holds("no graph", graph.is_null());
    ok!(t, cuStreamSynchronize(lane));
    let code = call!(t, cuStreamBeginCapture_v2(null_mut(), mode));
    t.holds("the legacy stream does not capture", code.0 != 0);
    let code = call!(t, cuStreamEndCapture(lane, &mut graph));
    t.holds("what was not begun does not end", code.0 != 0);
    ok!(t, cuStreamBeginCapture_v2(lane, mode));
    let address = lane as usize;
    std::thread::scope(|scope| {
        let other = scope.spawn(move || {
            let mut graph = null_mut();
            answers!(
                t,
                CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD,
                cuStreamEndCapture(address as CUstream, &mut graph)
            );
        });
        other.join().expect("the checks of another thread");
    });
    ok!(t, cuStreamEndCapture(lane, &mut graph));
    t.is("an empty graph", count(t, graph), 0);
    ok!(t, cuGraphDestroy(graph));
    ok!(t, cuStreamDestroy_v2(lane));
}

fn by_hand(t: &Checks) {
    let (mut graph, mut copy) = (null_mut(), null_mut());
    let (mut first, mut second) = (null_mut(), null_mut());
    ok!(t, cuGraphCreate(&mut graph, 0));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuGraphCreate(null_mut(), 0));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuGraphCreate(&mut copy, 1));
    ok!(t, cuGraphAddEmptyNode(&mut first, graph, null(), 0));
    ok!(t, cuGraphAddEmptyNode(&mut second, graph, &first, 1));
    let (mut roots, mut dependencies) = (77, 77);
    ok!(t, cuGraphGetRootNodes(graph, null_mut(), &mut roots));
    ok!(
        t,
        cuGraphNodeGetDependencies(second, null_mut(), &mut dependencies)
    );
    t.is("a root and a dependency", (roots, dependencies), (1, 1));
    let mut kind = CUgraphNodeType_enum(77);
    ok!(t, cuGraphNodeGetType(first, &mut kind));
    t.is(
        "an empty node",
        kind.0,
        CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EMPTY.0,
    );
    ok!(t, cuGraphClone(&mut copy, graph));
    t.is("nodes", (count(t, graph), count(t, copy)), (2, 2));
    let mut exec = null_mut();
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, copy, 0));
    ok!(t, cuGraphLaunch(exec, null_mut()));
    ok!(t, cuCtxSynchronize());
    ok!(t, cuGraphExecDestroy(exec));
    ok!(t, cuGraphDestroy(copy));
    ok!(t, cuGraphDestroy(graph));
}
