//! Graphs: nodes with their dependencies, and executables that are launched again and again.
//!
//! A graph is built by hand or by capture ([`crate::capture`]). An executable is a copy of it in an order
//! that respects every dependency; a launch submits that order to the one stream that it is launched in.
//! So nodes that a device could run side by side run one after the other: see `docs/stand-in.md`.

use std::collections::HashMap;
use std::ffi::{c_char, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ffi::driver::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D, CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent,
    CUfunction, CUgraph, CUgraphExec, CUgraphExecUpdateResult, CUgraphExecUpdateResult_enum,
    CUgraphExecUpdateResultInfo, CUgraphInstantiateResult_enum, CUgraphNode, CUgraphNodeType,
    CUgraphNodeType_enum, CUresult, CUstream,
};
use parking_lot::Mutex;
use sim::proto::Command;

use crate::capture;
use crate::copy;
use crate::deferred::HostCall;
use crate::event::{self, Event};
use crate::fill;
use crate::graph_memory::Site;
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::launch::{Kernel, Shape};
use crate::link::Link;
use crate::registry::handle_of;
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};
use crate::user_object::{self, Reference};
use crate::values;

/// Moves bytes; may be done any number of times.
pub(crate) type Action = Arc<dyn Fn() + Send + Sync>;

/// What a node does.
#[derive(Clone)]
pub(crate) enum Work {
    /// Runs a kernel.
    Kernel(Kernel),
    /// Copies bytes, in so many nanoseconds.
    Copy(u64, Action),
    /// Writes a pattern, in so many nanoseconds.
    Fill(u64, Action),
    /// Calls a function of the host's.
    Host(HostCall),
    /// Everything of another graph, which is this node's own.
    Child(Arc<Graph>),
    /// The same in an executable graph: as it was.
    Nested(Arc<Vec<Work>>),
    /// Nothing.
    Empty,
    /// Records an event.
    Record(Arc<Event>),
    /// Waits for an event.
    Wait(Arc<Event>),
    /// Writes values to memory and waits for others.
    Values(Arc<Vec<values::Operation>>),
    /// Takes memory, which a launch has done before anything else.
    Allocate(Arc<Site>),
    /// Frees it.
    Free(Arc<Site>),
}

impl Work {
    pub(crate) fn kind(&self) -> CUgraphNodeType {
        match self {
            Self::Kernel(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_KERNEL,
            Self::Copy(..) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEMCPY,
            Self::Fill(..) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEMSET,
            Self::Host(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_HOST,
            Self::Child(_) | Self::Nested(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_GRAPH,
            Self::Empty => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EMPTY,
            Self::Record(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_EVENT_RECORD,
            Self::Wait(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_WAIT_EVENT,
            Self::Values(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP,
            Self::Allocate(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_ALLOC,
            Self::Free(_) => CUgraphNodeType_enum::CU_GRAPH_NODE_TYPE_MEM_FREE,
        }
    }

    /// As an executable graph has it; `None`: there is a cycle.
    pub(crate) fn frozen(&self) -> Option<Self> {
        match self {
            Self::Child(graph) => Some(Self::Nested(Arc::new(graph.works()?))),
            other => Some(other.clone()),
        }
    }

    /// Takes away what it has of its own.
    pub(crate) fn end(&self, driver: &Driver) {
        if let Self::Child(graph) = self {
            graph.destroy(driver);
        }
    }

    /// Whether it has to do with memory of the graph's own.
    fn is_memory(&self) -> bool {
        match self {
            Self::Allocate(_) | Self::Free(_) => true,
            Self::Child(graph) => graph.refuse_memory().is_err(),
            Self::Nested(all) => all.iter().any(Self::is_memory),
            _ => false,
        }
    }

    /// What it allocates.
    fn sites(&self) -> Vec<Arc<Site>> {
        match self {
            Self::Allocate(site) => vec![Arc::clone(site)],
            Self::Nested(all) => all.iter().flat_map(Self::sites).collect(),
            _ => Vec::new(),
        }
    }

    /// Submits it to a stream.
    fn run(&self, driver: &'static Driver, stream: &Arc<Stream>) -> Answer {
        match self {
            Self::Kernel(kernel) => kernel.run(driver, stream),
            Self::Copy(duration_ns, action) | Self::Fill(duration_ns, action) => {
                if let Link::Null(_) = driver.link {
                    action();
                    return Ok(());
                }
                let copy = Command::Copy {
                    duration_ns: *duration_ns,
                };
                let action = Arc::clone(action);
                let submitted = driver.deferred.submit_move(
                    stream.lane.slot,
                    Box::new(move || action()),
                    || stream.submit(driver, copy),
                );
                submitted.map(drop)
            }
            Self::Host(call) => stream::submit_call(stream, *call),
            Self::Child(graph) => {
                let all = graph.works().ok_or(INVALID_VALUE)?;
                all.iter().try_for_each(|work| work.run(driver, stream))
            }
            Self::Nested(all) => all.iter().try_for_each(|work| work.run(driver, stream)),
            Self::Empty | Self::Allocate(_) => Ok(()),
            Self::Free(site) => site.free(driver, Some(stream)),
            Self::Record(event) => event.record_in(driver, stream),
            Self::Wait(event) => stream::wait_for_event(driver, stream, event),
            Self::Values(all) => values::submit(driver, stream, all),
        }
    }
}

/// One node of a graph.
pub(crate) struct Node {
    /// Its own number.
    pub(crate) number: u64,
    /// The number of the node that it is a copy of; 0: none.
    pub(crate) original: u64,
    /// What it does.
    pub(crate) work: Mutex<Work>,
    pub(crate) after: Mutex<Vec<Arc<Node>>>,
    pub(crate) graph: Weak<Graph>,
}

impl Node {
    /// What it waits for.
    pub(crate) fn after(&self) -> Vec<Arc<Node>> {
        self.after.lock().clone()
    }
}

/// A graph.
pub(crate) struct Graph {
    /// Its own number.
    pub(crate) number: u64,
    pub(crate) nodes: Mutex<Vec<Arc<Node>>>,
    /// What it holds of the program's.
    pub(crate) objects: Mutex<Vec<Reference>>,
    /// Whether a node holds it, with which it goes.
    pub(crate) is_child: AtomicBool,
}

impl Graph {
    /// An empty one, with a handle.
    pub(crate) fn new(driver: &Driver) -> Arc<Self> {
        let graph = Arc::new(Self {
            number: driver.number(),
            nodes: Mutex::default(),
            objects: Mutex::default(),
            is_child: AtomicBool::new(false),
        });
        driver.graphs.add::<c_void>(Arc::clone(&graph));
        graph
    }

    /// One that does `works` one after the other, for a node to hold.
    fn chain(driver: &Driver, works: &[Work]) -> Arc<Self> {
        let graph = Self::new(driver);
        graph.is_child.store(true, Ordering::Relaxed);
        let mut after = Vec::new();
        for work in works {
            let work = match work {
                Work::Nested(inner) => Work::Child(Self::chain(driver, inner)),
                other => other.clone(),
            };
            after = vec![graph.add(driver, work, after)];
        }
        graph
    }

    /// Another one like it.
    ///
    /// # Errors
    /// `CUDA_ERROR_NOT_SUPPORTED` with memory of its own; `CUDA_ERROR_INVALID_VALUE` with a cycle.
    pub(crate) fn copied(&self, driver: &Driver) -> Answer<Arc<Self>> {
        self.refuse_memory()?;
        let order = self.in_order().ok_or(INVALID_VALUE)?;
        let copy = Self::new(driver);
        *copy.objects.lock() = self.objects.lock().clone();
        let mut twins: HashMap<u64, Arc<Node>> = HashMap::new();
        for node in order {
            let after = node.after();
            let after = after
                .iter()
                .filter_map(|it| twins.get(&it.number).cloned())
                .collect();
            let work = node.work.lock().clone();
            let work = match work {
                Work::Child(inner) => inner.copied(driver).map(|inner| {
                    inner.is_child.store(true, Ordering::Relaxed);
                    Work::Child(inner)
                }),
                other => Ok(other),
            };
            let work = work.inspect_err(|_| copy.destroy(driver))?;
            let twin = copy.add_copy(driver, work, after, node.number);
            twins.insert(node.number, twin);
        }
        Ok(copy)
    }

    /// Whether it is `other`, or holds it.
    fn has(&self, other: &Self) -> bool {
        let holds = |node: &Arc<Node>| match &*node.work.lock() {
            Work::Child(inner) => inner.has(other),
            _ => false,
        };
        std::ptr::eq(self, other) || self.nodes.lock().iter().any(holds)
    }

    /// Everything of the program's that it and its children hold.
    pub(crate) fn all_objects(&self) -> Vec<Reference> {
        let mut all = self.objects.lock().clone();
        for node in self.nodes.lock().iter() {
            if let Work::Child(inner) = &*node.work.lock() {
                all.extend(inner.all_objects());
            }
        }
        all
    }

    /// Adds a node that waits for `after`.
    pub(crate) fn add(
        self: &Arc<Self>,
        driver: &Driver,
        work: Work,
        after: Vec<Arc<Node>>,
    ) -> Arc<Node> {
        self.add_copy(driver, work, after, 0)
    }

    fn add_copy(
        self: &Arc<Self>,
        driver: &Driver,
        work: Work,
        after: Vec<Arc<Node>>,
        original: u64,
    ) -> Arc<Node> {
        let node = Arc::new(Node {
            number: driver.number(),
            original,
            work: Mutex::new(work),
            after: Mutex::new(after),
            graph: Arc::downgrade(self),
        });
        self.nodes.lock().push(Arc::clone(&node));
        driver.graph_nodes.add::<c_void>(Arc::clone(&node));
        node
    }

    /// Takes it away with its nodes.
    pub(crate) fn destroy(self: &Arc<Self>, driver: &Driver) {
        driver.graphs.remove::<c_void>(handle_of(self));
        let nodes: Vec<_> = self.nodes.lock().drain(..).collect();
        self.objects.lock().clear();
        for node in nodes {
            node.after.lock().clear();
            node.work.lock().end(driver);
            driver.graph_nodes.remove::<c_void>(handle_of(&node));
        }
    }

    /// The nodes in an order in which each comes after what it waits for; `None`: there is a cycle.
    fn in_order(&self) -> Option<Vec<Arc<Node>>> {
        let nodes = self.nodes.lock().clone();
        let address = |node: &Arc<Node>| Arc::as_ptr(node) as usize;
        let mut open: HashMap<usize, usize> = nodes
            .iter()
            .map(|node| (address(node), node.after.lock().len()))
            .collect();
        let mut order: Vec<Arc<Node>> = Vec::new();
        while order.len() < nodes.len() {
            let ready: Vec<Arc<Node>> = nodes
                .iter()
                .filter(|node| open.get(&address(node)) == Some(&0))
                .cloned()
                .collect();
            if ready.is_empty() {
                return None;
            }
            for node in &ready {
                open.remove(&address(node));
                for other in &nodes {
                    let waits = other
                        .after
                        .lock()
                        .iter()
                        .filter(|it| Arc::ptr_eq(it, node))
                        .count();
                    if let Some(count) = open.get_mut(&address(other)) {
                        *count -= waits;
                    }
                }
            }
            order.extend(ready);
        }
        Some(order)
    }

    /// Refuses what memory of a graph's own is not allowed in.
    pub(crate) fn refuse_memory(&self) -> Answer {
        let nodes = self.nodes.lock();
        match nodes.iter().any(|node| node.work.lock().is_memory()) {
            true => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
            false => Ok(()),
        }
    }

    pub(crate) fn works(&self) -> Option<Vec<Work>> {
        let order = self.in_order()?;
        order.iter().map(|node| node.work.lock().frozen()).collect()
    }
}

/// A node in an executable graph.
pub(crate) struct Step {
    /// Address of the node that it comes from.
    pub(crate) node: usize,
    pub(crate) work: Work,
    /// Whether a launch does it.
    pub(crate) is_enabled: bool,
    /// Places of the steps that it comes after, in their order.
    after: Vec<usize>,
}

/// An executable graph.
pub(crate) struct Exec {
    pub(crate) flags: u64,
    /// Its own number.
    pub(crate) number: u64,
    /// What it holds of the program's.
    objects: Mutex<Vec<Reference>>,
    pub(crate) steps: Mutex<Vec<Step>>,
    /// The end of the last launch, in whatever stream: the next one comes after it.
    last: Arc<Event>,
}

/// The graph behind a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) fn find(handle: CUgraph) -> Answer<Arc<Graph>> {
    driver()?.graphs.find(handle).ok_or(INVALID_VALUE)
}

/// The node behind a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) fn find_node(handle: CUgraphNode) -> Answer<Arc<Node>> {
    driver()?.graph_nodes.find(handle).ok_or(INVALID_VALUE)
}

pub(crate) fn find_exec(handle: CUgraphExec) -> Answer<Arc<Exec>> {
    driver()?.graph_execs.find(handle).ok_or(INVALID_VALUE)
}

fn create(out: *mut CUgraph, flags: c_uint) -> Answer {
    let out = Out::claim(out)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    out.write(handle_of(&Graph::new(driver()?)));
    Ok(())
}

fn destroy(handle: CUgraph) -> Answer {
    let graph = find(handle)?;
    if graph.is_child.load(Ordering::Relaxed) {
        return Err(INVALID_VALUE);
    }
    graph.destroy(driver()?);
    Ok(())
}

fn clone(out: *mut CUgraph, original: CUgraph) -> Answer {
    let out = Out::claim(out)?;
    let copy = find(original)?.copied(driver()?)?;
    out.write(handle_of(&copy));
    Ok(())
}

/// The nodes that a new one is to wait for; each must be of the same graph.
pub(crate) fn dependencies(
    graph: &Arc<Graph>,
    list: *const CUgraphNode,
    count: usize,
) -> Answer<Vec<Arc<Node>>> {
    (0..count)
        .map(|index| {
            let node = find_node(take(list.wrapping_add(index))?)?;
            let is_own = node
                .graph
                .upgrade()
                .is_some_and(|own| Arc::ptr_eq(&own, graph));
            if is_own { Ok(node) } else { Err(INVALID_VALUE) }
        })
        .collect()
}

/// Adds a node that the host describes.
pub(crate) fn add(
    out: *mut CUgraphNode,
    graph: CUgraph,
    list: *const CUgraphNode,
    count: usize,
    work: impl FnOnce() -> Answer<Work>,
) -> Answer {
    let out = Out::claim(out)?;
    let graph = find(graph)?;
    let after = dependencies(&graph, list, count)?;
    let node = graph.add(driver()?, work()?, after);
    out.write(handle_of(&node));
    Ok(())
}

/// The later interface's parameters from the first one's.
pub(crate) fn widened(
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Answer<CUDA_KERNEL_NODE_PARAMS> {
    let params = take(params)?;
    Ok(CUDA_KERNEL_NODE_PARAMS {
        func: params.func,
        gridDimX: params.gridDimX,
        gridDimY: params.gridDimY,
        gridDimZ: params.gridDimZ,
        blockDimX: params.blockDimX,
        blockDimY: params.blockDimY,
        blockDimZ: params.blockDimZ,
        sharedMemBytes: params.sharedMemBytes,
        kernelParams: params.kernelParams,
        extra: params.extra,
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    })
}

pub(crate) fn kernel(params: &CUDA_KERNEL_NODE_PARAMS) -> Answer<Work> {
    let function = if params.func.is_null() {
        params.kern as CUfunction
    } else {
        params.func
    };
    let shape = Shape {
        grid: [params.gridDimX, params.gridDimY, params.gridDimZ],
        block: [params.blockDimX, params.blockDimY, params.blockDimZ],
        shared: params.sharedMemBytes,
    };
    let context = crate::context::find_or_current(params.ctx)?;
    Kernel::new(
        driver()?,
        function,
        context.device,
        shape,
        params.kernelParams,
        params.extra,
    )
    .map(Work::Kernel)
}

pub(crate) fn fill_work(params: *const CUDA_MEMSET_NODE_PARAMS) -> Answer<Work> {
    let (duration_ns, action) = fill::prepared(&take(params)?)?;
    Ok(Work::Fill(duration_ns, action))
}

pub(crate) fn copy_work(params: *const CUDA_MEMCPY3D) -> Answer<Work> {
    let (duration_ns, action) = copy::prepared(&take(params)?)?;
    Ok(Work::Copy(duration_ns, action))
}

pub(crate) fn host_work(params: *const CUDA_HOST_NODE_PARAMS) -> Answer<Work> {
    let params = take(params)?;
    Ok(Work::Host(HostCall {
        function: params.fn_.ok_or(INVALID_VALUE)?,
        argument: params.userData,
    }))
}

/// A node that holds a copy of a graph.
pub(crate) fn child_work(graph: CUgraph) -> Answer<Work> {
    let copy = find(graph)?.copied(driver()?)?;
    copy.is_child.store(true, Ordering::Relaxed);
    Ok(Work::Child(copy))
}

/// A node that takes over a graph, which is to be no part of another and have no part in `outer`.
pub(crate) fn moved_work(graph: CUgraph, outer: CUgraph) -> Answer<Work> {
    let (graph, outer) = (find(graph)?, find(outer)?);
    if graph.has(&outer) || graph.in_order().is_none() {
        return Err(INVALID_VALUE);
    }
    if graph.is_child.swap(true, Ordering::AcqRel) {
        return Err(INVALID_VALUE);
    }
    Ok(Work::Child(graph))
}

/// Writes a list as the API does: the count alone where there is no place, else as many as fit.
pub(crate) fn list(nodes: &[Arc<Node>], out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let room = Out::claim(count)?;
    if out.is_null() {
        room.write(nodes.len());
        return Ok(());
    }
    let asked = take(count)?;
    for index in 0..asked {
        let handle = nodes.get(index).map_or(std::ptr::null_mut(), handle_of);
        put(out.wrapping_add(index), handle)?;
    }
    room.write(asked.min(nodes.len()));
    Ok(())
}

fn all_nodes(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let nodes = find(graph)?.nodes.lock().clone();
    list(&nodes, out, count)
}

fn roots(graph: CUgraph, out: *mut CUgraphNode, count: *mut usize) -> Answer {
    let nodes = find(graph)?.nodes.lock().clone();
    let roots: Vec<_> = nodes
        .into_iter()
        .filter(|node| node.after.lock().is_empty())
        .collect();
    list(&roots, out, count)
}

fn node_kind(node: CUgraphNode, out: *mut CUgraphNodeType) -> Answer {
    let kind = find_node(node)?.work.lock().kind();
    put(out, kind)
}

fn kernel_params(node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS) -> Answer {
    let node = find_node(node)?;
    let work = node.work.lock();
    let Work::Kernel(kernel) = &*work else {
        return Err(INVALID_VALUE);
    };
    put(out, kernel.params())
}

fn kernel_params_v1(node: CUgraphNode, out: *mut CUDA_KERNEL_NODE_PARAMS_v1) -> Answer {
    let mut wide = CUDA_KERNEL_NODE_PARAMS {
        func: std::ptr::null_mut(),
        gridDimX: 0,
        gridDimY: 0,
        gridDimZ: 0,
        blockDimX: 0,
        blockDimY: 0,
        blockDimZ: 0,
        sharedMemBytes: 0,
        kernelParams: std::ptr::null_mut(),
        extra: std::ptr::null_mut(),
        kern: std::ptr::null_mut(),
        ctx: std::ptr::null_mut(),
    };
    kernel_params(node, &mut wide)?;
    put(
        out,
        CUDA_KERNEL_NODE_PARAMS_v1 {
            func: wide.func,
            gridDimX: wide.gridDimX,
            gridDimY: wide.gridDimY,
            gridDimZ: wide.gridDimZ,
            blockDimX: wide.blockDimX,
            blockDimY: wide.blockDimY,
            blockDimZ: wide.blockDimZ,
            sharedMemBytes: wide.sharedMemBytes,
            kernelParams: wide.kernelParams,
            extra: wide.extra,
        },
    )
}

/// `CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH`.
const AUTO_FREE: u64 = 1;

/// Flags of an instantiation that are known; the others of them change nothing here.
const KNOWN_FLAGS: u64 = 1 | 2 | 8;

pub(crate) fn steps(graph: &Graph) -> Option<Vec<Step>> {
    let order = graph.in_order()?;
    let address = |node: &Arc<Node>| Arc::as_ptr(node) as usize;
    let places: HashMap<usize, usize> = order.iter().map(address).zip(0..).collect();
    order
        .iter()
        .map(|node| {
            let before = node.after();
            let mut after: Vec<usize> = before
                .iter()
                .filter_map(|it| places.get(&address(it)).copied())
                .collect();
            after.sort_unstable();
            Some(Step {
                node: address(node),
                work: node.work.lock().frozen()?,
                is_enabled: true,
                after,
            })
        })
        .collect()
}

fn instantiate(out: *mut CUgraphExec, graph: CUgraph, flags: u64) -> Answer {
    let out = Out::claim(out)?;
    let graph = find(graph)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let steps = steps(&graph).ok_or(INVALID_VALUE)?;
    let exec = Exec {
        flags,
        number: driver()?.number(),
        objects: Mutex::new(graph.all_objects()),
        steps: Mutex::new(steps),
        last: Arc::new(Event::untimed(&*crate::state::current()?, None)),
    };
    out.write(driver()?.graph_execs.add(Arc::new(exec)));
    Ok(())
}

fn instantiate_with_params(
    out: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
) -> Answer {
    let mut asked = take(params)?;
    let done = instantiate(out, graph, asked.flags);
    asked.hErrNode_out = std::ptr::null_mut();
    asked.result_out = match done {
        Ok(()) => CUgraphInstantiateResult_enum::CUDA_GRAPH_INSTANTIATE_SUCCESS,
        Err(_) => CUgraphInstantiateResult_enum::CUDA_GRAPH_INSTANTIATE_ERROR,
    };
    put(params, asked)?;
    done
}

fn destroy_exec(exec: CUgraphExec) -> Answer {
    let driver = driver()?;
    let gone = driver.graph_execs.remove(exec).ok_or(INVALID_VALUE)?;
    let held = std::mem::take(&mut *gone.objects.lock());
    user_object::release_after(driver, held, &gone.last)
}

fn launch<F: Flavour>(exec: CUgraphExec, given: CUstream) -> Answer {
    let driver = driver()?;
    let exec = find_exec(exec)?;
    let stream = stream::find::<F>(given)?;
    let works: Vec<Work> = exec
        .steps
        .lock()
        .iter()
        .filter(|step| step.is_enabled)
        .map(|step| step.work.clone())
        .collect();
    if stream.is_capturing() {
        if works.iter().any(Work::is_memory) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
        let graph = Graph::chain(driver, &works);
        *graph.objects.lock() = exec.objects.lock().clone();
        return capture::add(driver, &stream, Work::Child(graph));
    }
    take_memory(driver, &stream, &works, exec.flags & AUTO_FREE != 0)?;
    stream::wait_for_event(driver, &stream, &exec.last)?;
    works
        .iter()
        .try_for_each(|work| work.run(driver, &stream))?;
    exec.last.record_in(driver, &stream)
}

/// Allocates what the nodes of a launch want: all of it, or nothing.
fn take_memory(driver: &Driver, stream: &Stream, works: &[Work], does_free: bool) -> Answer {
    let sites: Vec<Arc<Site>> = works.iter().flat_map(Work::sites).collect();
    if sites.is_empty() {
        return Ok(());
    }
    let used: Vec<_> = sites.iter().filter(|site| site.is_used()).collect();
    if !used.is_empty() && !does_free {
        return Err(INVALID_VALUE);
    }
    for site in used {
        site.free(driver, Some(stream))?;
    }
    for (index, site) in sites.iter().enumerate() {
        if let Err(code) = site.allocate(driver) {
            for taken in sites.iter().take(index) {
                taken.free(driver, None)?;
            }
            return Err(code);
        }
    }
    Ok(())
}

fn upload<F: Flavour>(exec: CUgraphExec, given: CUstream) -> Answer {
    find_exec(exec)?;
    stream::find::<F>(given).map(drop)
}

/// Replaces what every node does by what `by` says, if the two have the same form.
fn update(exec: CUgraphExec, by: CUgraph) -> Answer<(CUgraphExecUpdateResult, usize)> {
    let exec = find_exec(exec)?;
    let by = find(by)?;
    let new = steps(&by).ok_or(INVALID_VALUE)?;
    let mut old = exec.steps.lock();
    let changed = CUgraphExecUpdateResult_enum::CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
    if old.len() != new.len() {
        return Ok((changed, 0));
    }
    let mut pairs = old.iter().zip(&new);
    if let Some((_, new)) = pairs.find(|(old, new)| old.after != new.after) {
        return Ok((changed, new.node));
    }
    let differing = old
        .iter()
        .zip(&new)
        .find(|(old, new)| old.work.kind() != new.work.kind());
    if let Some((_, new)) = differing {
        let changed = CUgraphExecUpdateResult_enum::CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED;
        return Ok((changed, new.node));
    }
    for (old, new) in old.iter_mut().zip(new) {
        old.work = new.work;
    }
    exec.objects.lock().extend(by.all_objects());
    Ok((
        CUgraphExecUpdateResult_enum::CU_GRAPH_EXEC_UPDATE_SUCCESS,
        0,
    ))
}

fn told(result: CUgraphExecUpdateResult) -> Answer {
    if result == CUgraphExecUpdateResult_enum::CU_GRAPH_EXEC_UPDATE_SUCCESS {
        Ok(())
    } else {
        Err(CUresult::CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE)
    }
}

fn update_v1(
    exec: CUgraphExec,
    by: CUgraph,
    node: *mut CUgraphNode,
    out: *mut CUgraphExecUpdateResult,
) -> Answer {
    let (result, at) = update(exec, by)?;
    put(out, result)?;
    if !node.is_null() {
        put(node, at as CUgraphNode)?;
    }
    told(result)
}

fn update_v2(exec: CUgraphExec, by: CUgraph, out: *mut CUgraphExecUpdateResultInfo) -> Answer {
    let (result, at) = update(exec, by)?;
    put(
        out,
        CUgraphExecUpdateResultInfo {
            result,
            errorNode: at as CUgraphNode,
            errorFromNode: std::ptr::null_mut(),
        },
    )?;
    told(result)
}

pub(crate) fn event_node(event: CUevent, work: fn(Arc<Event>) -> Work) -> Answer<Work> {
    event::find(event).map(work)
}

driver! {
    cuGraphCreate(ph_graph: *mut CUgraph, flags: c_uint) => create;
    cuGraphDestroy(h_graph: CUgraph) => destroy;
    cuGraphClone(ph_graph_clone: *mut CUgraph, original_graph: CUgraph) => clone;
    cuGraphAddKernelNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1) => |out, graph, list, count, params| add(out, graph, list, count, || kernel(&widened(params)?));
    cuGraphAddKernelNode_v2(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_KERNEL_NODE_PARAMS) => |out, graph, list, count, params| add(out, graph, list, count, || kernel(&take(params)?));
    cuGraphAddMemcpyNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext) => |out, graph, list, count, params, _| add(out, graph, list, count, || copy_work(params));
    cuGraphAddMemsetNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) => |out, graph, list, count, params, _| add(out, graph, list, count, || fill_work(params));
    cuGraphAddHostNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_HOST_NODE_PARAMS) => |out, graph, list, count, params| add(out, graph, list, count, || host_work(params));
    cuGraphAddChildGraphNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, child_graph: CUgraph) => |out, graph, list, count, child| add(out, graph, list, count, || child_work(child));
    cuGraphAddEmptyNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize) => |out, graph, list, count| add(out, graph, list, count, || Ok(Work::Empty));
    cuGraphAddEventRecordNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent) => |out, graph, list, count, event| add(out, graph, list, count, || event_node(event, Work::Record));
    cuGraphAddEventWaitNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, event: CUevent) => |out, graph, list, count, event| add(out, graph, list, count, || event_node(event, Work::Wait));
    cuGraphGetNodes(h_graph: CUgraph, nodes: *mut CUgraphNode, num_nodes: *mut usize) => all_nodes;
    cuGraphGetRootNodes(h_graph: CUgraph, root_nodes: *mut CUgraphNode, num_root_nodes: *mut usize) => roots;
    cuGraphNodeGetType(h_node: CUgraphNode, type_: *mut CUgraphNodeType) => node_kind;
    cuGraphKernelNodeGetParams(h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS_v1) => kernel_params_v1;
    cuGraphKernelNodeGetParams_v2(h_node: CUgraphNode, node_params: *mut CUDA_KERNEL_NODE_PARAMS) => kernel_params;
    cuGraphInstantiate(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode, log_buffer: *mut c_char, buffer_size: usize) => |out, graph, _, _, _| instantiate(out, graph, 0);
    cuGraphInstantiate_v2(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, ph_error_node: *mut CUgraphNode, log_buffer: *mut c_char, buffer_size: usize) => |out, graph, _, _, _| instantiate(out, graph, 0);
    cuGraphInstantiateWithFlags(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, flags: c_ulonglong) => instantiate;
    cuGraphInstantiateWithParams(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) => instantiate_with_params;
    cuGraphInstantiateWithParams_ptsz(ph_graph_exec: *mut CUgraphExec, h_graph: CUgraph, instantiate_params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS) => instantiate_with_params;
    cuGraphExecDestroy(h_graph_exec: CUgraphExec) => destroy_exec;
    cuGraphExecUpdate(h_graph_exec: CUgraphExec, h_graph: CUgraph, h_error_node_out: *mut CUgraphNode, update_result_out: *mut CUgraphExecUpdateResult) => update_v1;
    cuGraphExecUpdate_v2(h_graph_exec: CUgraphExec, h_graph: CUgraph, result_info: *mut CUgraphExecUpdateResultInfo) => update_v2;
    cuGraphLaunch(h_graph: CUgraphExec, h_stream: CUstream) => launch::<Plain>;
    cuGraphLaunch_ptsz(h_graph: CUgraphExec, h_stream: CUstream) => launch::<PerThread>;
    cuGraphUpload(h_graph: CUgraphExec, h_stream: CUstream) => upload::<Plain>;
    cuGraphUpload_ptsz(h_graph: CUgraphExec, h_stream: CUstream) => upload::<PerThread>;
}
