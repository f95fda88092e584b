//! Memory of graphs: what allocation nodes take when their graph is launched.
//!
//! A node has addresses from the moment it is made and takes memory at a launch or an upload; the driver
//! keeps it afterwards, for the next launch, until it is told to trim. So what counts is what the driver has
//! *reserved* for this process's graphs on a device, and an attribute says that. What a launch may need is
//! reserved first, from the sizes of the nodes, which are read when the graph is instantiated; afterwards the
//! charge is set to the attribute. A graph that was launched since the last trim has its memory already.
//!
//! A graph that can never fit is refused when it is instantiated. One that does not fit now is refused at its
//! launch, with the answer that the driver itself gives there when the device is full.
//!
//! A launch into a capture makes a node of another graph and takes nothing now.

use crate::account::{self, Request};
use crate::claim::Out;
use crate::device::{self, Index};
use crate::gate;
use crate::pool::{self, Flavour};
use crate::session::{self, Seat};
use ffi::driver::{
    CUDA_GRAPH_INSTANTIATE_PARAMS, CUDA_MEM_ALLOC_NODE_PARAMS, CUdevice, CUgraph, CUgraphExec,
    CUgraphMem_attribute, CUgraphNode, CUgraphNodeType, CUmemLocationType, CUresult, CUstream,
};
use ffi::wire::Refusable;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ffi::{c_char, c_ulonglong};
use std::sync::atomic::{AtomicBool, Ordering};

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Drivers map memory in pages of this size, so a node takes whole ones.
const PAGE_BYTES: u64 = 2 << 20;

/// What the allocation nodes of one executable graph take on one device.
#[derive(Debug, Clone, Copy)]
struct Need {
    ordinal: CUdevice,
    device: Index,
    bytes: u64,
    /// [`Device::trims`] at its last launch: if it still is that, the memory is there.
    launched: Option<u64>,
}

/// What graphs of this process have on one device.
#[derive(Debug)]
struct Device {
    ordinal: CUdevice,
    /// Units charged for what the driver has reserved.
    charged: u64,
    /// Units charged for what launches that have not returned may need.
    pending: u64,
    /// Units that such launches count on finding unused.
    claimed: u64,
    /// Units that the driver had reserved when it was last asked.
    seen: u64,
    /// How often that had become less: some graph's memory is gone.
    trims: u64,
}

#[derive(Debug, Default)]
struct Graphs {
    needs: BTreeMap<usize, Vec<Need>>,
    devices: BTreeMap<usize, (Index, Device)>,
}

static GRAPHS: Mutex<Option<Graphs>> = Mutex::new(None);

/// Whether this process has instantiated a graph with memory. Until then a launch costs one load.
static IS_USED: AtomicBool = AtomicBool::new(false);

/// Whether graphs have grown beyond the cap: what they do not use goes back at the next synchronisation.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether this process has instantiated a graph with memory.
pub(crate) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

fn graphs<R>(work: impl FnOnce(&mut Graphs) -> R) -> R {
    work(GRAPHS.lock().get_or_insert_default())
}

impl Graphs {
    fn device(&mut self, device: Index, ordinal: CUdevice) -> &mut Device {
        let (_, known) = self.devices.entry(device.get()).or_insert_with(|| {
            let new = Device {
                ordinal,
                charged: 0,
                pending: 0,
                claimed: 0,
                seen: 0,
                trims: 0,
            };
            (device, new)
        });
        known
    }
}

/// `cuGraphInstantiate` of CUDA 10, and `_v2` of CUDA 11.
pub(crate) fn instantiate(
    out: *mut CUgraphExec,
    graph: CUgraph,
    node: *mut CUgraphNode,
    log: *mut c_char,
    bytes: usize,
    forward: impl FnOnce(*mut CUgraphExec, CUgraph, *mut CUgraphNode, *mut c_char, usize) -> CUresult,
) -> CUresult {
    instantiated(out, graph, |out| forward(out, graph, node, log, bytes))
}

/// `cuGraphInstantiateWithFlags`.
pub(crate) fn instantiate_with_flags(
    out: *mut CUgraphExec,
    graph: CUgraph,
    flags: c_ulonglong,
    forward: impl FnOnce(*mut CUgraphExec, CUgraph, c_ulonglong) -> CUresult,
) -> CUresult {
    instantiated(out, graph, |out| forward(out, graph, flags))
}

/// `cuGraphInstantiateWithParams`, which uploads at once if it is told to.
pub(crate) fn instantiate_with_params(
    out: *mut CUgraphExec,
    graph: CUgraph,
    params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS,
    forward: impl FnOnce(*mut CUgraphExec, CUgraph, *mut CUDA_GRAPH_INSTANTIATE_PARAMS) -> CUresult,
) -> CUresult {
    const UPLOAD: c_ulonglong =
        ffi::driver::CUgraphInstantiate_flags::CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD.0 as c_ulonglong;
    let uploads = Out::claim(params).is_some_and(|place| place.read().flags & UPLOAD != 0);
    made(out, graph, uploads, |out| forward(out, graph, params))
}

fn instantiated(
    out: *mut CUgraphExec,
    graph: CUgraph,
    forward: impl FnOnce(*mut CUgraphExec) -> CUresult,
) -> CUresult {
    made(out, graph, false, forward)
}

fn made(
    out: *mut CUgraphExec,
    graph: CUgraph,
    uploads: bool,
    forward: impl FnOnce(*mut CUgraphExec) -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward(out);
    };
    let needs = needs_of(seat, graph);
    if needs.is_empty() {
        return forward(out);
    }
    let too_large = needs
        .iter()
        .find(|need| !account::can_ever_fit(seat, need.device, need.bytes));
    if let Some(need) = too_large {
        account::count_refusal(
            seat,
            need.device,
            Request::of(Refusable::GraphInstantiate, need.bytes),
        );
        return OUT_OF_MEMORY;
    }
    let begun = if uploads {
        match begin_all(seat, Refusable::GraphInstantiate, &needs) {
            Some(begun) => begun,
            None => return OUT_OF_MEMORY,
        }
    } else {
        Vec::new()
    };
    let result = forward(out);
    let place = Out::claim(out).filter(|_| result == SUCCESS);
    let exec = place.map_or(std::ptr::null_mut(), |place| place.read());
    if result == SUCCESS {
        IS_USED.store(true, Ordering::Relaxed);
        graphs(|all| all.needs.insert(exec as usize, needs.clone()));
    }
    end_all(seat, exec, &needs, &begun, result == SUCCESS);
    result
}

/// `cuGraphExecDestroy`: its memory stays with the driver until it is trimmed.
pub(crate) fn destroy(
    graph: CUgraphExec,
    forward: impl FnOnce(CUgraphExec) -> CUresult,
) -> CUresult {
    let result = forward(graph);
    if result == SUCCESS {
        gate::graph_destroyed(graph);
        if is_used() {
            graphs(|all| all.needs.remove(&(graph as usize)));
        }
    }
    result
}

/// `cuGraphLaunch`.
pub(crate) fn launch(
    graph: CUgraphExec,
    stream: CUstream,
    forward: impl FnOnce(CUgraphExec, CUstream) -> CUresult,
) -> CUresult {
    gate::launch_graph(graph, stream, |graph, stream| {
        with_memory(
            Refusable::GraphLaunch,
            graph,
            stream,
            Flavour::Legacy,
            || forward(graph, stream),
        )
    })
}

/// `cuGraphLaunch_ptsz`.
pub(crate) fn launch_per_thread(
    graph: CUgraphExec,
    stream: CUstream,
    forward: impl FnOnce(CUgraphExec, CUstream) -> CUresult,
) -> CUresult {
    gate::launch_graph_per_thread(graph, stream, |graph, stream| {
        with_memory(
            Refusable::GraphLaunch,
            graph,
            stream,
            Flavour::PerThread,
            || forward(graph, stream),
        )
    })
}

/// `cuGraphUpload`: takes the memory and runs nothing.
pub(crate) fn upload(
    graph: CUgraphExec,
    stream: CUstream,
    forward: impl FnOnce(CUgraphExec, CUstream) -> CUresult,
) -> CUresult {
    with_memory(
        Refusable::GraphUpload,
        graph,
        stream,
        Flavour::Legacy,
        || forward(graph, stream),
    )
}

/// `cuGraphUpload_ptsz`.
pub(crate) fn upload_per_thread(
    graph: CUgraphExec,
    stream: CUstream,
    forward: impl FnOnce(CUgraphExec, CUstream) -> CUresult,
) -> CUresult {
    with_memory(
        Refusable::GraphUpload,
        graph,
        stream,
        Flavour::PerThread,
        || forward(graph, stream),
    )
}

/// `cuDeviceGraphMemTrim`.
pub(crate) fn trim_device(
    device: CUdevice,
    forward: impl FnOnce(CUdevice) -> CUresult,
) -> CUresult {
    let result = forward(device);
    if result == SUCCESS
        && is_used()
        && let Some(seat) = session::seat()
    {
        graphs(|all| {
            for (index, known) in all.devices.values_mut() {
                if known.ordinal == device {
                    settle(seat, *index, known);
                }
            }
        });
    }
    result
}

/// Makes `call`, which takes what the nodes of `graph` need, if that fits.
fn with_memory(
    function: Refusable,
    graph: CUgraphExec,
    stream: CUstream,
    flavour: Flavour,
    call: impl FnOnce() -> CUresult,
) -> CUresult {
    if !is_used() {
        return call();
    }
    let needs = graphs(|all| all.needs.get(&(graph as usize)).cloned());
    let (Some(needs), Some(seat)) = (needs, session::seat()) else {
        return call();
    };
    if pool::is_capturing(flavour, stream) {
        return call();
    }
    let Some(begun) = begin_all(seat, function, &needs) else {
        return OUT_OF_MEMORY;
    };
    let result = call();
    end_all(seat, graph, &needs, &begun, result == SUCCESS);
    result
}

/// Sets aside what a launch may need on every device. `None`: it does not fit on one.
fn begin_all(seat: Seat, function: Refusable, needs: &[Need]) -> Option<Vec<Begun>> {
    let mut begun = Vec::with_capacity(needs.len());
    for need in needs {
        let Some(set_aside) = begin(seat, function, need) else {
            end_all(seat, std::ptr::null_mut(), needs, &begun, false);
            return None;
        };
        begun.push(set_aside);
    }
    Some(begun)
}

fn end_all(seat: Seat, graph: CUgraphExec, needs: &[Need], begun: &[Begun], is_launched: bool) {
    for (need, set_aside) in needs.iter().zip(begun) {
        end(seat, graph, need, *set_aside, is_launched);
    }
}

/// What a launch has set aside before the driver is asked.
#[derive(Debug, Clone, Copy)]
struct Begun {
    /// Units that the driver is to have unused.
    claimed: u64,
    /// Units reserved for its growth.
    reserved: u64,
    /// [`Device::trims`] when they were set aside.
    trims: u64,
}

/// Sets aside what a launch may need. `None`: it does not fit.
fn begin(seat: Seat, function: Refusable, need: &Need) -> Option<Begun> {
    let units = ledger::units(need.bytes);
    let (claimed, growth, trims) = graphs(|all| {
        let known = all.device(need.device, need.ordinal);
        if need.launched == Some(known.trims) {
            return (0, 0, known.trims);
        }
        let (reserved, used) = units_of(need.ordinal).unwrap_or_default();
        let spoken_for = used + known.claimed + known.pending;
        let claimed = reserved.saturating_sub(spoken_for).min(units);
        known.claimed += claimed;
        (claimed, units - claimed, known.trims)
    });
    let reserved = if growth == 0 {
        Some(0)
    } else {
        let reservation =
            account::reserve(seat, need.device, Request::of(function, need.bytes), growth);
        reservation.ok().map(account::Reservation::commit)
    };
    graphs(|all| {
        let known = all.device(need.device, need.ordinal);
        known.pending += reserved.unwrap_or(0);
        if reserved.is_none() {
            known.claimed = known.claimed.saturating_sub(claimed);
            settle(seat, need.device, known);
        }
    });
    reserved.map(|reserved| Begun {
        claimed,
        reserved,
        trims,
    })
}

/// Sets the charge to what the driver has now.
fn end(seat: Seat, graph: CUgraphExec, need: &Need, begun: Begun, is_launched: bool) {
    graphs(|all| {
        let known = all.device(need.device, need.ordinal);
        known.claimed = known.claimed.saturating_sub(begun.claimed);
        known.pending = known.pending.saturating_sub(begun.reserved);
        known.charged += begun.reserved;
        settle(seat, need.device, known);
        // A trim meanwhile may have come before the launch or after it.
        let is_there = is_launched && known.trims == begun.trims;
        for each in all.needs.get_mut(&(graph as usize)).into_iter().flatten() {
            if each.device == need.device && is_there {
                each.launched = Some(begun.trims);
            }
        }
    });
}

/// Brings the charge to what the driver has reserved for graphs.
fn settle(seat: Seat, device: Index, known: &mut Device) {
    let Some((reserved, used)) = units_of(known.ordinal) else {
        return;
    };
    if reserved < known.seen {
        known.trims += 1;
    }
    known.seen = reserved;
    let least = reserved.max(used + known.claimed);
    if known.charged > least {
        account::release(seat, device, known.charged - least);
        known.charged = least;
        return;
    }
    let more = reserved.saturating_sub(known.charged + known.pending);
    known.charged += more;
    if more > 0 && !account::try_reserve(seat, device, more) {
        // It is taken all the same.
        account::charge(seat, device, more);
        IS_OVER.store(true, Ordering::Relaxed);
    }
}

fn look_again(seat: Seat) {
    graphs(|all| {
        for (index, known) in all.devices.values_mut() {
            settle(seat, *index, known);
        }
    });
}

/// The driver has waited for work: if graphs have grown beyond the cap, they give back what they can.
pub(crate) fn synchronised(seat: Seat) {
    if !is_used() {
        return;
    }
    if IS_OVER.swap(false, Ordering::Relaxed) {
        trim(seat);
    } else {
        look_again(seat);
    }
}

/// Has the driver give back what this process's graphs do not use. False: they have nothing.
pub(crate) fn trim(seat: Seat) -> bool {
    if !is_used() {
        return false;
    }
    let ordinals: Vec<CUdevice> = graphs(|all| {
        let devices = all.devices.values();
        devices
            .filter(|(_, known)| known.charged > 0)
            .map(|(_, known)| known.ordinal)
            .collect()
    });
    for ordinal in &ordinals {
        // SAFETY: a number that the driver has for one of its devices.
        unsafe { crate::real::cuDeviceGraphMemTrim(*ordinal) };
    }
    look_again(seat);
    !ordinals.is_empty()
}

/// What the driver has reserved for this process's graphs, and what of it is used; `None` where it cannot say.
fn units_of(device: CUdevice) -> Option<(u64, u64)> {
    let reserved = CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT;
    let used = CUgraphMem_attribute::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT;
    Some((
        ledger::units(attribute(device, reserved)?),
        ledger::units(attribute(device, used)?),
    ))
}

fn attribute(device: CUdevice, which: CUgraphMem_attribute) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: both attributes are 64 bits wide.
    let result = unsafe {
        crate::real::cuDeviceGetGraphMemAttribute(device, which, (&raw mut value).cast())
    };
    (result == SUCCESS).then_some(value)
}

/// What the allocation nodes of a graph take, by device; of the tenant's devices alone.
fn needs_of(seat: Seat, graph: CUgraph) -> Vec<Need> {
    let mut needs: Vec<Need> = Vec::new();
    for node in all_nodes_of(graph) {
        let Some((ordinal, bytes)) = allocation(node) else {
            continue;
        };
        let Some(device) = device::by_ordinal(seat.pages, ordinal) else {
            continue;
        };
        let bytes = bytes.checked_next_multiple_of(PAGE_BYTES).unwrap_or(bytes);
        match needs.iter_mut().find(|need| need.device == device) {
            Some(need) => need.bytes = need.bytes.saturating_add(bytes),
            None => needs.push(Need {
                ordinal,
                device,
                bytes,
                launched: None,
            }),
        }
    }
    needs
}

/// The nodes of a graph and of those that its nodes have taken over: only copies have no memory of their own.
fn all_nodes_of(graph: CUgraph) -> Vec<CUgraphNode> {
    let (mut open, mut all) = (vec![graph], Vec::new());
    while let Some(graph) = open.pop() {
        let nodes = nodes_of(graph);
        open.extend(nodes.iter().filter_map(|node| child(*node)));
        all.extend(nodes);
    }
    all
}

/// The graph that a node holds; `None` for nodes of other kinds.
fn child(node: CUgraphNode) -> Option<CUgraph> {
    if kind_of(node)? != CUgraphNodeType::CU_GRAPH_NODE_TYPE_GRAPH {
        return None;
    }
    let mut graph = std::ptr::null_mut();
    // SAFETY: the driver's own handle, and a place for one.
    let result = unsafe { crate::real::cuGraphChildGraphNodeGetGraph(node, &mut graph) };
    (result == SUCCESS).then_some(graph)
}

fn kind_of(node: CUgraphNode) -> Option<CUgraphNodeType> {
    let mut kind = CUgraphNodeType::CU_GRAPH_NODE_TYPE_EMPTY;
    // SAFETY: the driver's own handle, and a place for one number.
    let result = unsafe { crate::real::cuGraphNodeGetType(node, &mut kind) };
    (result == SUCCESS).then_some(kind)
}

fn nodes_of(graph: CUgraph) -> Vec<CUgraphNode> {
    let mut count = 0usize;
    // SAFETY: without a place for nodes, the driver says how many there are.
    let result = unsafe { crate::real::cuGraphGetNodes(graph, std::ptr::null_mut(), &mut count) };
    if result != SUCCESS {
        return Vec::new();
    }
    let mut nodes = vec![std::ptr::null_mut(); count];
    // SAFETY: a place for as many nodes as `count` says.
    let result = unsafe { crate::real::cuGraphGetNodes(graph, nodes.as_mut_ptr(), &mut count) };
    if result != SUCCESS {
        return Vec::new();
    }
    nodes.truncate(count);
    nodes
}

/// Device and size of an allocation node; `None` for any other.
fn allocation(node: CUgraphNode) -> Option<(CUdevice, u64)> {
    if kind_of(node)? != CUgraphNodeType::CU_GRAPH_NODE_TYPE_MEM_ALLOC {
        return None;
    }
    // SAFETY: plain integers and pointers, for which zeros are a value.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    // SAFETY: the driver's own handle, and a place for its parameters.
    if unsafe { crate::real::cuGraphMemAllocNodeGetParams(node, &mut params) } != SUCCESS {
        return None;
    }
    let location = params.poolProps.location;
    if location.type_ != CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE {
        return None;
    }
    // SAFETY: every member of the union is an int, or begins with one.
    let ordinal = unsafe { location.__bindgen_anon_1.id };
    Some((ordinal, params.bytesize as u64))
}
