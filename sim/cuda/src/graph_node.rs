//! Nodes of every kind through one interface, their numbers, and the graphs that they hold.

use std::ffi::{c_uint, c_ulonglong};
use std::sync::Arc;

use ffi::driver::{
    CUDA_BATCH_MEM_OP_NODE_PARAMS, CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS,
    CUDA_MEMSET_NODE_PARAMS, CUgraph, CUgraphChildGraphNodeOwnership_enum as Ownership,
    CUgraphEdgeData, CUgraphExec, CUgraphNode, CUgraphNodeParams, CUgraphNodeType_enum as Kind,
    CUresult, cuuint64_t,
};

use crate::graph::{self, Work};
use crate::graph_edges::check_plain;
use crate::graph_edit::{set, set_in};
use crate::graph_memory_node;
use crate::guard::{Answer, INVALID_VALUE, put, take};
use crate::registry::handle_of;
use crate::values;

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// What the host says about a node; the parts that are nobody's must be zero.
fn told(params: *const CUgraphNodeParams) -> Answer<CUgraphNodeParams> {
    let told = take(params)?;
    match (told.reserved0, told.reserved2) {
        ([0, 0, 0], 0) => Ok(told),
        _ => Err(INVALID_VALUE),
    }
}

/// What a node does by such parameters; not for memory, which has an address of its own.
fn work_of(told: &CUgraphNodeParams) -> Answer<Work> {
    let all = &told.__bindgen_anon_1;
    match told.type_ {
        Kind::CU_GRAPH_NODE_TYPE_KERNEL => {
            // SAFETY: the kind says that it is this member; all its parts are numbers and pointers.
            let told = unsafe { all.kernel };
            graph::kernel(&CUDA_KERNEL_NODE_PARAMS {
                func: told.func,
                gridDimX: told.gridDimX,
                gridDimY: told.gridDimY,
                gridDimZ: told.gridDimZ,
                blockDimX: told.blockDimX,
                blockDimY: told.blockDimY,
                blockDimZ: told.blockDimZ,
                sharedMemBytes: told.sharedMemBytes,
                kernelParams: told.kernelParams,
                extra: told.extra,
                kern: told.kern,
                ctx: told.ctx,
            })
        }
        Kind::CU_GRAPH_NODE_TYPE_MEMCPY => {
            // SAFETY: as above.
            let told = unsafe { all.memcpy };
            match (told.flags, told.reserved) {
                (0, 0) => graph::copy_work(&told.copyParams),
                _ => Err(INVALID_VALUE),
            }
        }
        Kind::CU_GRAPH_NODE_TYPE_MEMSET => {
            // SAFETY: as above.
            let told = unsafe { all.memset };
            graph::fill_work(&CUDA_MEMSET_NODE_PARAMS {
                dst: told.dst,
                pitch: told.pitch,
                value: told.value,
                elementSize: told.elementSize,
                width: told.width,
                height: told.height,
            })
        }
        Kind::CU_GRAPH_NODE_TYPE_HOST => {
            // SAFETY: as above.
            let told = unsafe { all.host };
            graph::host_work(&CUDA_HOST_NODE_PARAMS {
                fn_: told.fn_,
                userData: told.userData,
            })
        }
        Kind::CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above.
            let told = unsafe { all.graph };
            match told.ownership {
                Ownership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE => graph::child_work(told.graph),
                Ownership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => Err(UNSUPPORTED),
                _ => Err(INVALID_VALUE),
            }
        }
        Kind::CU_GRAPH_NODE_TYPE_EMPTY => Ok(Work::Empty),
        Kind::CU_GRAPH_NODE_TYPE_WAIT_EVENT => {
            // SAFETY: as above.
            let told = unsafe { all.eventWait };
            graph::event_node(told.event, Work::Wait)
        }
        Kind::CU_GRAPH_NODE_TYPE_EVENT_RECORD => {
            // SAFETY: as above.
            let told = unsafe { all.eventRecord };
            graph::event_node(told.event, Work::Record)
        }
        Kind::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP => {
            // SAFETY: as above.
            let told = unsafe { all.memOp };
            values::node_work(told.count, told.paramArray, told.flags)
        }
        Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC
        | Kind::CU_GRAPH_NODE_TYPE_MEM_FREE
        | Kind::CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL
        | Kind::CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT
        | Kind::CU_GRAPH_NODE_TYPE_CONDITIONAL => Err(UNSUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

fn add(
    out: *mut CUgraphNode,
    graph: CUgraph,
    list: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
    params: *mut CUgraphNodeParams,
) -> Answer {
    check_plain(data, count)?;
    let mut given = told(params)?;
    let members = &mut given.__bindgen_anon_1;
    match given.type_ {
        Kind::CU_GRAPH_NODE_TYPE_MEM_ALLOC => {
            let place = (&raw mut members.alloc).cast();
            graph_memory_node::allocation(out, graph, list, count, place)?;
            put(params, given)
        }
        Kind::CU_GRAPH_NODE_TYPE_MEM_FREE => {
            // SAFETY: the kind says that it is this member, an address.
            let address = unsafe { members.free.dptr };
            graph_memory_node::free(out, graph, list, count, address)
        }
        Kind::CU_GRAPH_NODE_TYPE_GRAPH => {
            // SAFETY: as above, all of whose parts are numbers and pointers.
            let told = unsafe { members.graph };
            match told.ownership {
                Ownership::CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE => {
                    let work = || graph::moved_work(told.graph, graph);
                    graph::add(out, graph, list, count, work)
                }
                _ => graph::add(out, graph, list, count, || work_of(&given)),
            }
        }
        _ => graph::add(out, graph, list, count, || work_of(&given)),
    }
}

fn batch(params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) -> Answer<Work> {
    let told = take(params)?;
    values::node_work(told.count, told.paramArray, told.flags)
}

/// The host function of a node.
fn host(node: CUgraphNode, out: *mut CUDA_HOST_NODE_PARAMS) -> Answer {
    let node = graph::find_node(node)?;
    let work = node.work.lock();
    let Work::Host(call) = &*work else {
        return Err(INVALID_VALUE);
    };
    put(
        out,
        CUDA_HOST_NODE_PARAMS {
            fn_: Some(call.function),
            userData: call.argument,
        },
    )
}

/// The graph that a node holds: itself, not a copy.
fn child(node: CUgraphNode, out: *mut CUgraph) -> Answer {
    let node = graph::find_node(node)?;
    let work = node.work.lock();
    match &*work {
        Work::Child(graph) => put(out, handle_of(graph)),
        _ => Err(INVALID_VALUE),
    }
}

/// Puts another graph of the same form into the place of the one that a node held.
fn set_child(exec: CUgraphExec, node: CUgraphNode, by: CUgraph) -> Answer {
    let exec = graph::find_exec(exec)?;
    let new = graph::find(by)?.works().ok_or(INVALID_VALUE)?;
    let mut steps = exec.steps.lock();
    let step = steps.iter_mut().find(|step| step.node == node as usize);
    let step = step.ok_or(INVALID_VALUE)?;
    let Work::Nested(old) = &step.work else {
        return Err(INVALID_VALUE);
    };
    let kinds = |works: &[Work]| works.iter().map(Work::kind).collect::<Vec<_>>();
    if kinds(old) != kinds(&new) {
        return Err(INVALID_VALUE);
    }
    step.work = Work::Nested(Arc::new(new));
    Ok(())
}

/// New parameters of a node in an executable graph, of whatever kind it is.
fn set_any_in(exec: CUgraphExec, node: CUgraphNode, params: *mut CUgraphNodeParams) -> Answer {
    let told = told(params)?;
    if told.type_ == Kind::CU_GRAPH_NODE_TYPE_GRAPH {
        // SAFETY: the kind says that it is this member.
        return set_child(exec, node, unsafe { told.__bindgen_anon_1.graph.graph });
    }
    set_in(exec, node, work_of(&told))
}

/// The node of a copy that stands for one of the original.
fn twin(out: *mut CUgraphNode, original: CUgraphNode, copy: CUgraph) -> Answer {
    let (original, copy) = (graph::find_node(original)?, graph::find(copy)?);
    let nodes = copy.nodes.lock();
    let mut nodes = nodes.iter();
    let twin = nodes.find(|node| node.original == original.number);
    put(out, handle_of(twin.ok_or(INVALID_VALUE)?))
}

fn containing(node: CUgraphNode, out: *mut CUgraph) -> Answer {
    let graph = graph::find_node(node)?.graph.upgrade();
    put(out, handle_of(&graph.ok_or(INVALID_VALUE)?))
}

driver! {
    cuGraphAddNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *mut CUgraphNodeParams) => |out, graph, list, count, params| add(out, graph, list, std::ptr::null(), count, params);
    cuGraphAddNode_v2(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, node_params: *mut CUgraphNodeParams) => add;
    cuGraphAddNode_v3(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, dependency_data: *const CUgraphEdgeData, num_dependencies: usize, node_params: *mut CUgraphNodeParams) => add;
    cuGraphNodeSetParams(h_node: CUgraphNode, node_params: *mut CUgraphNodeParams) => |node, params| set(node, told(params).and_then(|told| work_of(&told)));
    cuGraphNodeSetParams_v2(h_node: CUgraphNode, node_params: *mut CUgraphNodeParams) => |node, params| set(node, told(params).and_then(|told| work_of(&told)));
    cuGraphExecNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *mut CUgraphNodeParams) => set_any_in;
    cuGraphAddBatchMemOpNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) => |out, graph, list, count, params| graph::add(out, graph, list, count, || batch(params));
    cuGraphBatchMemOpNodeSetParams(h_node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) => |node, params| set(node, batch(params));
    cuGraphExecBatchMemOpNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_BATCH_MEM_OP_NODE_PARAMS) => |exec, node, params| set_in(exec, node, batch(params));
    cuGraphHostNodeGetParams(h_node: CUgraphNode, node_params: *mut CUDA_HOST_NODE_PARAMS) => host;
    cuGraphChildGraphNodeGetGraph(h_node: CUgraphNode, ph_graph: *mut CUgraph) => child;
    cuGraphExecChildGraphNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, child_graph: CUgraph) => set_child;
    cuGraphNodeFindInClone(ph_node: *mut CUgraphNode, h_original_node: CUgraphNode, h_cloned_graph: CUgraph) => twin;
    cuGraphNodeGetContainingGraph(h_node: CUgraphNode, ph_graph: *mut CUgraph) => containing;
    cuGraphNodeGetLocalId(h_node: CUgraphNode, node_id: *mut c_uint) => |node, out| put(out, graph::find_node(node)?.number as c_uint);
    cuGraphNodeGetToolsId(h_node: CUgraphNode, tools_node_id: *mut c_ulonglong) => |node, out| put(out, graph::find_node(node)?.number);
    cuGraphGetId(h_graph: CUgraph, graph_id: *mut c_uint) => |graph, out| put(out, graph::find(graph)?.number as c_uint);
    cuGraphExecGetId(h_graph_exec: CUgraphExec, graph_id: *mut c_uint) => |exec, out| put(out, graph::find_exec(exec)?.number as c_uint);
    cuGraphExecGetFlags(h_graph_exec: CUgraphExec, flags: *mut cuuint64_t) => |exec, out| put(out, graph::find_exec(exec)?.flags);
}
