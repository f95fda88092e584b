//! Stream capture: what is submitted to a stream becomes nodes of a graph instead of work.
//!
//! A capture begins at one stream; others join it by waiting for an event that was recorded in it, and have
//! to be joined back in the same way before it ends. Each stream in it has a *frontier*: the nodes that the
//! next one will wait for. What must not be called meanwhile makes the capture invalid, and its end says so.
//!
//! Source: CUDA driver API, "Stream Management", and the codes 900 to 908 of `CUresult`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::ThreadId;

use ffi::driver::{
    CUgraph, CUgraphEdgeData, CUgraphNode, CUresult, CUstream, CUstreamCaptureMode,
    CUstreamCaptureMode_enum, CUstreamCaptureStatus, CUstreamCaptureStatus_enum, cuuint64_t,
};
use parking_lot::Mutex;

use crate::graph::{self, Graph, Node, Work};
use crate::graph_edges;
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::registry::handle_of;
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Role, Stream};

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
const INVALIDATED: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
const IMPLICIT: CUresult = CUresult::CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;

/// One capture.
pub(crate) struct Capture {
    number: u64,
    mode: CUstreamCaptureMode,
    thread: ThreadId,
    graph: Arc<Graph>,
    /// Whether the graph was there before, and stays whatever becomes of the capture.
    is_given: bool,
    /// Where it began.
    origin: usize,
    is_invalid: AtomicBool,
    members: Mutex<Vec<Weak<Stream>>>,
}

/// Captures that have not ended, and how many there are.
static ACTIVE: Mutex<Vec<Weak<Capture>>> = Mutex::new(Vec::new());
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// A stream's part in a capture.
#[derive(Default)]
pub(crate) struct Slot {
    is_capturing: AtomicBool,
    part: Mutex<Option<Part>>,
}

struct Part {
    capture: Arc<Capture>,
    frontier: Vec<Arc<Node>>,
    /// The frontier's handles, as `cuStreamGetCaptureInfo` shows them.
    shown: Vec<CUgraphNode>,
}

// SAFETY: handles are only shown, never followed.
unsafe impl Send for Part {}

impl Slot {
    /// Whether the stream is in a capture.
    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing.load(Ordering::Acquire)
    }

    fn enter(&self, part: Part) {
        *self.part.lock() = Some(part);
        self.is_capturing.store(true, Ordering::Release);
    }

    fn leave(&self) {
        *self.part.lock() = None;
        self.is_capturing.store(false, Ordering::Release);
    }
}

/// An event that was recorded in a capture.
#[derive(Clone)]
pub(crate) struct Mark {
    capture: Arc<Capture>,
    nodes: Vec<Arc<Node>>,
}

impl Mark {
    /// Whether its capture goes on.
    pub(crate) fn is_active(&self) -> bool {
        active().iter().any(|it| Arc::ptr_eq(it, &self.capture))
    }

    /// Somebody asked for the event, which nothing can answer.
    pub(crate) fn refuse(&self) -> CUresult {
        self.capture.invalidate();
        CUresult::CUDA_ERROR_CAPTURED_EVENT
    }
}

impl Capture {
    fn invalidate(&self) {
        self.is_invalid.store(true, Ordering::Release);
    }

    fn is_invalid(&self) -> bool {
        self.is_invalid.load(Ordering::Acquire)
    }

    fn members(&self) -> Vec<Arc<Stream>> {
        self.members
            .lock()
            .iter()
            .filter_map(Weak::upgrade)
            .collect()
    }

    fn concerns(&self, context: u64) -> bool {
        let members = self.members();
        members.iter().any(|stream| stream.context_id == context)
    }

    fn has_blocking(&self, context: u64) -> bool {
        let members = self.members();
        let mut own = members.iter().filter(|stream| stream.context_id == context);
        own.any(|stream| stream.role == Role::Blocking)
    }
}

fn active() -> Vec<Arc<Capture>> {
    if COUNT.load(Ordering::Acquire) == 0 {
        return Vec::new();
    }
    ACTIVE.lock().iter().filter_map(Weak::upgrade).collect()
}

/// Adds what was submitted to a capturing stream to its graph.
pub(crate) fn add(driver: &Driver, stream: &Stream, work: Work) -> Answer {
    let mut part = stream.capture.part.lock();
    let part = part.as_mut().ok_or(INVALID_VALUE)?;
    if part.capture.is_invalid() {
        return Err(INVALIDATED);
    }
    let after = std::mem::take(&mut part.frontier);
    part.frontier = vec![part.capture.graph.add(driver, work, after)];
    Ok(())
}

/// A call that a capturing stream does not allow.
pub(crate) fn refuse(stream: &Stream) -> CUresult {
    if let Some(part) = stream.capture.part.lock().as_ref() {
        part.capture.invalidate();
    }
    UNSUPPORTED
}

/// What an event that is recorded in a capturing stream stands for.
pub(crate) fn mark(stream: &Stream) -> Option<Mark> {
    let part = stream.capture.part.lock();
    part.as_ref().map(|part| Mark {
        capture: Arc::clone(&part.capture),
        nodes: part.frontier.clone(),
    })
}

/// A stream waits for an event; `mark` is what that stands for if it was recorded in a capture that goes on.
/// Says whether it is done with.
pub(crate) fn wait(stream: &Arc<Stream>, mark: Option<&Mark>) -> Answer<bool> {
    let mut part = stream.capture.part.lock();
    match (part.as_mut(), mark) {
        (None, None) => Ok(false),
        (None, Some(mark)) => {
            drop(part);
            if stream.role == Role::Legacy {
                mark.capture.invalidate();
                return Err(IMPLICIT);
            }
            mark.capture.members.lock().push(Arc::downgrade(stream));
            stream.capture.enter(Part {
                capture: Arc::clone(&mark.capture),
                frontier: mark.nodes.clone(),
                shown: Vec::new(),
            });
            Ok(true)
        }
        (Some(part), None) => {
            // Work outside the capture is nothing that a graph could wait for.
            part.capture.invalidate();
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_ISOLATION)
        }
        (Some(part), Some(mark)) if Arc::ptr_eq(&part.capture, &mark.capture) => {
            for node in &mark.nodes {
                if !part.frontier.iter().any(|known| Arc::ptr_eq(known, node)) {
                    part.frontier.push(Arc::clone(node));
                }
            }
            Ok(true)
        }
        (Some(part), Some(mark)) => {
            part.capture.invalidate();
            mark.capture.invalidate();
            Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_MERGE)
        }
    }
}

/// The legacy stream of a context is about to be used, which every blocking stream is ordered with.
pub(crate) fn check_legacy(context: u64) -> Answer {
    let conflicting: Vec<_> = active()
        .into_iter()
        .filter(|capture| capture.has_blocking(context))
        .collect();
    if conflicting.is_empty() {
        return Ok(());
    }
    conflicting.iter().for_each(|capture| capture.invalidate());
    Err(IMPLICIT)
}

/// A context is about to be waited for.
pub(crate) fn check_context(context: u64) -> Answer {
    let conflicting: Vec<_> = active()
        .into_iter()
        .filter(|capture| capture.concerns(context))
        .collect();
    if conflicting.is_empty() {
        return Ok(());
    }
    conflicting.iter().for_each(|capture| capture.invalidate());
    Err(UNSUPPORTED)
}

thread_local! {
    /// How this thread stands to others' captures.
    static MODE: Cell<CUstreamCaptureMode> =
        const { Cell::new(CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL) };
}

/// A call that may be unsafe while anybody captures: it is refused where a capture forbids it.
pub(crate) fn check_unsafe() -> Answer {
    let captures = active();
    if captures.is_empty() {
        return Ok(());
    }
    let own_mode = MODE.get();
    if own_mode == CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED {
        return Ok(());
    }
    let here = std::thread::current().id();
    let forbids = |capture: &Arc<Capture>| {
        let is_own = capture.thread == here
            && capture.mode != CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED;
        let is_global = capture.mode == CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL
            && own_mode == CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;
        is_own || is_global
    };
    let conflicting: Vec<_> = captures.into_iter().filter(forbids).collect();
    if conflicting.is_empty() {
        return Ok(());
    }
    conflicting.iter().for_each(|capture| capture.invalidate());
    Err(UNSUPPORTED)
}

fn begin<F: Flavour>(handle: CUstream, mode: CUstreamCaptureMode) -> Answer {
    begin_in::<F>(handle, mode, None)
}

/// Captures into a graph that is there, behind some of its nodes.
fn begin_to_graph<F: Flavour>(
    handle: CUstream,
    graph: CUgraph,
    list: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    mode: CUstreamCaptureMode,
) -> Answer {
    let graph = graph::find(graph)?;
    graph_edges::check_plain(data, count)?;
    let after = graph::dependencies(&graph, list, count)?;
    begin_in::<F>(handle, mode, Some((graph, after)))
}

fn begin_in<F: Flavour>(
    handle: CUstream,
    mode: CUstreamCaptureMode,
    given: Option<(Arc<Graph>, Vec<Arc<Node>>)>,
) -> Answer {
    if mode.0 > CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(INVALID_VALUE);
    }
    let driver = driver()?;
    let stream = stream::find::<F>(handle)?;
    if stream.role == Role::Legacy {
        return Err(UNSUPPORTED);
    }
    if stream.is_capturing() {
        return Err(CUresult::CUDA_ERROR_ILLEGAL_STATE);
    }
    let is_given = given.is_some();
    let (graph, frontier) = given.unwrap_or_else(|| (Graph::new(driver), Vec::new()));
    let capture = Arc::new(Capture {
        number: driver.number(),
        mode,
        thread: std::thread::current().id(),
        graph,
        is_given,
        origin: Arc::as_ptr(&stream) as usize,
        is_invalid: AtomicBool::new(false),
        members: Mutex::new(vec![Arc::downgrade(&stream)]),
    });
    let mut active = ACTIVE.lock();
    active.push(Arc::downgrade(&capture));
    COUNT.store(active.len(), Ordering::Release);
    drop(active);
    stream.capture.enter(Part {
        capture,
        frontier,
        shown: Vec::new(),
    });
    Ok(())
}

/// Whether `node` is among `frontier`, or something there waits for it.
fn is_reached(node: &Arc<Node>, frontier: &[Arc<Node>]) -> bool {
    let mut open: Vec<Arc<Node>> = frontier.to_vec();
    let mut seen: Vec<Arc<Node>> = Vec::new();
    while let Some(next) = open.pop() {
        if Arc::ptr_eq(&next, node) {
            return true;
        }
        if !seen.iter().any(|known| Arc::ptr_eq(known, &next)) {
            open.extend(next.after());
            seen.push(next);
        }
    }
    false
}

fn end<F: Flavour>(handle: CUstream, out: *mut CUgraph) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let stream = stream::find::<F>(handle)?;
    let (capture, frontier) = {
        let part = stream.capture.part.lock();
        let part = part.as_ref().ok_or(INVALID_VALUE)?;
        (Arc::clone(&part.capture), part.frontier.clone())
    };
    if capture.mode != CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED
        && capture.thread != std::thread::current().id()
    {
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    }
    if capture.origin != Arc::as_ptr(&stream) as usize {
        capture.invalidate();
        return Err(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    }
    let is_joined = capture.members().iter().all(|member| {
        let part = member.capture.part.lock();
        part.as_ref().is_none_or(|part| {
            let mut nodes = part.frontier.iter();
            nodes.all(|node| is_reached(node, &frontier))
        })
    });
    close(&capture);
    let failure = if capture.is_invalid() {
        Some(INVALIDATED)
    } else if !is_joined {
        Some(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
    } else {
        None
    };
    match failure {
        Some(code) => {
            if !capture.is_given {
                capture.graph.destroy(driver);
            }
            out.write(std::ptr::null_mut());
            Err(code)
        }
        None => {
            out.write(handle_of(&capture.graph));
            Ok(())
        }
    }
}

/// All streams leave it, and it is no more.
fn close(capture: &Arc<Capture>) {
    for member in capture.members() {
        member.capture.leave();
    }
    let mut active = ACTIVE.lock();
    active.retain(|it| it.upgrade().is_some_and(|it| !Arc::ptr_eq(&it, capture)));
    COUNT.store(active.len(), Ordering::Release);
}

/// A stream that is in a capture is destroyed: the capture has lost a part.
pub(crate) fn stream_gone(stream: &Stream) {
    let capture = {
        let part = stream.capture.part.lock();
        part.as_ref().map(|part| Arc::clone(&part.capture))
    };
    if let Some(capture) = capture {
        capture.invalidate();
        if capture.origin == std::ptr::from_ref(stream) as usize {
            close(&capture);
        }
    }
}

fn status_of(stream: &Stream) -> (CUstreamCaptureStatus, u64) {
    match stream.capture.part.lock().as_ref() {
        None => (CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE, 0),
        Some(part) if part.capture.is_invalid() => (
            CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_INVALIDATED,
            part.capture.number,
        ),
        Some(part) => (
            CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_ACTIVE,
            part.capture.number,
        ),
    }
}

/// The stream to be asked about.
///
/// # Errors
/// 906: it is the legacy stream of a context in which a blocking stream captures. The capture stays valid.
fn asked<F: Flavour>(handle: CUstream) -> Answer<Arc<Stream>> {
    let stream = stream::find::<F>(handle)?;
    let is_implicit = stream.role == Role::Legacy
        && active()
            .iter()
            .any(|capture| capture.has_blocking(stream.context_id));
    if is_implicit {
        Err(IMPLICIT)
    } else {
        Ok(stream)
    }
}

fn is_capturing<F: Flavour>(handle: CUstream, out: *mut CUstreamCaptureStatus) -> Answer {
    put(out, status_of(&*asked::<F>(handle)?).0)
}

/// Where `cuStreamGetCaptureInfo` writes; all but the status may be null.
struct Places {
    status: *mut CUstreamCaptureStatus,
    number: *mut cuuint64_t,
    graph: *mut CUgraph,
    nodes: *mut *const CUgraphNode,
    edges: *mut *const CUgraphEdgeData,
    count: *mut usize,
}

fn info<F: Flavour>(handle: CUstream, places: &Places) -> Answer {
    let stream = asked::<F>(handle)?;
    let (status, number) = status_of(&stream);
    put(places.status, status)?;
    if status != CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_ACTIVE {
        return Ok(());
    }
    let mut part = stream.capture.part.lock();
    let Some(part) = part.as_mut() else {
        return Ok(());
    };
    part.shown = part.frontier.iter().map(handle_of).collect();
    let optional =
        |is_null: bool, write: &dyn Fn() -> Answer| if is_null { Ok(()) } else { write() };
    optional(places.number.is_null(), &|| put(places.number, number))?;
    optional(places.graph.is_null(), &|| {
        put(places.graph, handle_of(&part.capture.graph))
    })?;
    optional(places.nodes.is_null(), &|| {
        put(places.nodes, part.shown.as_ptr())
    })?;
    optional(places.edges.is_null(), &|| {
        put(places.edges, std::ptr::null())
    })?;
    optional(places.count.is_null(), &|| {
        put(places.count, part.shown.len())
    })
}

fn exchange_mode(place: *mut CUstreamCaptureMode) -> Answer {
    let new = take(place)?;
    if new.0 > CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_RELAXED.0 {
        return Err(INVALID_VALUE);
    }
    put(place, MODE.replace(new))
}

/// What `cuStreamUpdateCaptureDependencies` does: replaces the frontier, or adds to it.
fn update_dependencies<F: Flavour>(
    handle: CUstream,
    list: *mut CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    flags: u32,
) -> Answer {
    const SET: u32 = 1;
    graph_edges::check_plain(data, count)?;
    let driver = driver()?;
    let stream = stream::find::<F>(handle)?;
    let nodes = (0..count)
        .map(|index| {
            let node = take(list.wrapping_add(index))?;
            driver.graph_nodes.find(node).ok_or(INVALID_VALUE)
        })
        .collect::<Answer<Vec<_>>>()?;
    let mut part = stream.capture.part.lock();
    let part = part.as_mut().ok_or(CUresult::CUDA_ERROR_ILLEGAL_STATE)?;
    match flags {
        SET => part.frontier = nodes,
        0 => part.frontier.extend(nodes),
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

const GLOBAL: CUstreamCaptureMode = CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_GLOBAL;

fn places_v1(status: *mut CUstreamCaptureStatus, number: *mut cuuint64_t) -> Places {
    Places {
        status,
        number,
        graph: std::ptr::null_mut(),
        nodes: std::ptr::null_mut(),
        edges: std::ptr::null_mut(),
        count: std::ptr::null_mut(),
    }
}

driver! {
    cuStreamBeginCapture(h_stream: CUstream) => |stream| begin::<Plain>(stream, GLOBAL);
    cuStreamBeginCapture_ptsz(h_stream: CUstream) => |stream| begin::<PerThread>(stream, GLOBAL);
    cuStreamBeginCapture_v2(h_stream: CUstream, mode: CUstreamCaptureMode) => begin::<Plain>;
    cuStreamBeginCapture_v2_ptsz(h_stream: CUstream, mode: CUstreamCaptureMode) => begin::<PerThread>;
    cuStreamEndCapture(h_stream: CUstream, ph_graph: *mut CUgraph) => end::<Plain>;
    cuStreamEndCapture_ptsz(h_stream: CUstream, ph_graph: *mut CUgraph) => end::<PerThread>;
    cuStreamIsCapturing(h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus) => is_capturing::<Plain>;
    cuStreamIsCapturing_ptsz(h_stream: CUstream, capture_status: *mut CUstreamCaptureStatus) => is_capturing::<PerThread>;
    cuStreamGetCaptureInfo(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t) => |stream, status, id| info::<Plain>(stream, &places_v1(status, id));
    cuStreamGetCaptureInfo_ptsz(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t) => |stream, status, id| info::<PerThread>(stream, &places_v1(status, id));
    cuStreamGetCaptureInfo_v2(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize) => |stream, status, id, graph, nodes, count| info::<Plain>(stream, &Places { graph, nodes, count, ..places_v1(status, id) });
    cuStreamGetCaptureInfo_v2_ptsz(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, num_dependencies_out: *mut usize) => |stream, status, id, graph, nodes, count| info::<PerThread>(stream, &Places { graph, nodes, count, ..places_v1(status, id) });
    cuStreamGetCaptureInfo_v3(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize) => |stream, status, id, graph, nodes, edges, count| info::<Plain>(stream, &Places { graph, nodes, edges, count, ..places_v1(status, id) });
    cuStreamGetCaptureInfo_v3_ptsz(h_stream: CUstream, capture_status_out: *mut CUstreamCaptureStatus, id_out: *mut cuuint64_t, graph_out: *mut CUgraph, dependencies_out: *mut *const CUgraphNode, edge_data_out: *mut *const CUgraphEdgeData, num_dependencies_out: *mut usize) => |stream, status, id, graph, nodes, edges, count| info::<PerThread>(stream, &Places { graph, nodes, edges, count, ..places_v1(status, id) });
    cuStreamUpdateCaptureDependencies(h_stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: u32) => |stream, list, count, flags| update_dependencies::<Plain>(stream, list, std::ptr::null(), count, flags);
    cuStreamUpdateCaptureDependencies_ptsz(h_stream: CUstream, dependencies: *mut CUgraphNode, num_dependencies: usize, flags: u32) => |stream, list, count, flags| update_dependencies::<PerThread>(stream, list, std::ptr::null(), count, flags);
    cuStreamUpdateCaptureDependencies_v2(h_stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: u32) => update_dependencies::<Plain>;
    cuStreamUpdateCaptureDependencies_v2_ptsz(h_stream: CUstream, dependencies: *mut CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, flags: u32) => update_dependencies::<PerThread>;
    cuStreamBeginCaptureToGraph(h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode) => begin_to_graph::<Plain>;
    cuStreamBeginCaptureToGraph_ptsz(h_stream: CUstream, h_graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, mode: CUstreamCaptureMode) => begin_to_graph::<PerThread>;
    cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) => exchange_mode;
}
