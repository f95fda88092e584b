//! Whether this process has ever captured a stream: until then, no launch has to ask for it.

use ffi::driver::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUgraphRecaptureCallback, CUresult, CUstream,
    CUstreamCaptureMode,
};
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

static HAS_CAPTURED: AtomicBool = AtomicBool::new(false);

/// Whether a capture was ever begun.
pub(super) fn was_begun() -> bool {
    // Relaxed: a launch into a stream that another thread captures follows that thread's word of it.
    HAS_CAPTURED.load(Ordering::Relaxed)
}

fn begins(forward: impl FnOnce() -> CUresult) -> CUresult {
    // Before the driver hears of it, so that no launch comes between.
    HAS_CAPTURED.store(true, Ordering::Relaxed);
    forward()
}

/// `cuStreamBeginCapture` of CUDA 10.0.
pub(crate) fn begin_v1(stream: CUstream, forward: impl FnOnce(CUstream) -> CUresult) -> CUresult {
    begins(|| forward(stream))
}

/// `cuStreamBeginCapture`.
pub(crate) fn begin(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    forward: impl FnOnce(CUstream, CUstreamCaptureMode) -> CUresult,
) -> CUresult {
    begins(|| forward(stream, mode))
}

/// `cuStreamBeginCaptureToGraph`.
pub(crate) fn begin_to_graph(
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
    forward: impl FnOnce(
        CUstream,
        CUgraph,
        *const CUgraphNode,
        *const CUgraphEdgeData,
        usize,
        CUstreamCaptureMode,
    ) -> CUresult,
) -> CUresult {
    begins(|| forward(stream, graph, dependencies, data, count, mode))
}

/// `cuStreamBeginRecaptureToGraph`.
pub(crate) fn begin_again(
    stream: CUstream,
    mode: CUstreamCaptureMode,
    graph: CUgraph,
    callback: CUgraphRecaptureCallback,
    data: *mut c_void,
    forward: impl FnOnce(
        CUstream,
        CUstreamCaptureMode,
        CUgraph,
        CUgraphRecaptureCallback,
        *mut c_void,
    ) -> CUresult,
) -> CUresult {
    begins(|| forward(stream, mode, graph, callback, data))
}
