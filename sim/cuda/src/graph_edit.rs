//! Changes of graphs: nodes taken away, parameters of nodes, and the same of executable graphs.
//!
//! A node stays of its kind, whatever its parameters become.

use crate::event::Event;
use crate::graph::{
    Exec, Work, copy_work, event_node, fill_work, find_exec, find_node, host_work, kernel, widened,
};
use crate::guard::{Answer, INVALID_VALUE, put, take};
use crate::registry::handle_of;
use crate::state::driver;
use ffi::driver::{
    CUDA_HOST_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS, CUDA_KERNEL_NODE_PARAMS_v1, CUDA_MEMCPY3D,
    CUDA_MEMSET_NODE_PARAMS, CUcontext, CUevent, CUgraphExec, CUgraphNode,
};
use std::ffi::{c_uint, c_void};
use std::sync::Arc;

fn destroy_node(node: CUgraphNode) -> Answer {
    let node = find_node(node)?;
    let graph = node.graph.upgrade().ok_or(INVALID_VALUE)?;
    graph.refuse_memory()?;
    let mut nodes = graph.nodes.lock();
    nodes.retain(|it| !Arc::ptr_eq(it, &node));
    for other in nodes.iter() {
        other.after.lock().retain(|it| !Arc::ptr_eq(it, &node));
    }
    node.after.lock().clear();
    node.work.lock().end(driver()?);
    driver()?.graph_nodes.remove::<c_void>(handle_of(&node));
    Ok(())
}

/// Puts `new` into the place of what a node does.
pub(crate) fn set(node: CUgraphNode, new: Answer<Work>) -> Answer {
    let node = find_node(node)?;
    replace(&mut node.work.lock(), new?)
}

/// The same in an executable graph, where `node` is the one that it was made of.
pub(crate) fn set_in(exec: CUgraphExec, node: CUgraphNode, new: Answer<Work>) -> Answer {
    let exec = find_exec(exec)?;
    let mut steps = exec.steps.lock();
    let step = steps.iter_mut().find(|step| step.node == node as usize);
    replace(&mut step.ok_or(INVALID_VALUE)?.work, new?)
}

fn replace(work: &mut Work, new: Work) -> Answer {
    if work.kind() != new.kind() {
        return Err(INVALID_VALUE);
    }
    std::mem::replace(work, new).end(driver()?);
    Ok(())
}

/// The event of a node of which `of` says that it has one.
fn event_of(node: CUgraphNode, out: *mut CUevent, of: fn(&Work) -> Option<&Arc<Event>>) -> Answer {
    let node = find_node(node)?;
    let work = node.work.lock();
    put(out, handle_of(of(&work).ok_or(INVALID_VALUE)?))
}

fn recorded(work: &Work) -> Option<&Arc<Event>> {
    match work {
        Work::Record(event) => Some(event),
        _ => None,
    }
}

fn awaited(work: &Work) -> Option<&Arc<Event>> {
    match work {
        Work::Wait(event) => Some(event),
        _ => None,
    }
}

/// Whether a launch does a step. Only kernels, copies and fills can be left out.
fn enabled<R>(
    exec: CUgraphExec,
    node: CUgraphNode,
    look: impl FnOnce(&mut bool) -> R,
) -> Answer<R> {
    let exec: Arc<Exec> = find_exec(exec)?;
    let mut steps = exec.steps.lock();
    let step = steps.iter_mut().find(|step| step.node == node as usize);
    let step = step.ok_or(INVALID_VALUE)?;
    match step.work {
        Work::Kernel(_) | Work::Copy(..) | Work::Fill(..) => Ok(look(&mut step.is_enabled)),
        _ => Err(INVALID_VALUE),
    }
}

driver! {
    cuGraphDestroyNode(h_node: CUgraphNode) => destroy_node;
    cuGraphKernelNodeSetParams(h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1) => |node, params| set(node, kernel(&widened(params)?));
    cuGraphKernelNodeSetParams_v2(h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS) => |node, params| set(node, kernel(&take(params)?));
    cuGraphMemcpyNodeSetParams(h_node: CUgraphNode, node_params: *const CUDA_MEMCPY3D) => |node, params| set(node, copy_work(params));
    cuGraphMemsetNodeSetParams(h_node: CUgraphNode, node_params: *const CUDA_MEMSET_NODE_PARAMS) => |node, params| set(node, fill_work(params));
    cuGraphHostNodeSetParams(h_node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS) => |node, params| set(node, host_work(params));
    cuGraphEventRecordNodeGetEvent(h_node: CUgraphNode, event_out: *mut CUevent) => |node, out| event_of(node, out, recorded);
    cuGraphEventRecordNodeSetEvent(h_node: CUgraphNode, event: CUevent) => |node, event| set(node, event_node(event, Work::Record));
    cuGraphEventWaitNodeGetEvent(h_node: CUgraphNode, event_out: *mut CUevent) => |node, out| event_of(node, out, awaited);
    cuGraphEventWaitNodeSetEvent(h_node: CUgraphNode, event: CUevent) => |node, event| set(node, event_node(event, Work::Wait));
    cuGraphExecKernelNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS_v1) => |exec, node, params| set_in(exec, node, kernel(&widened(params)?));
    cuGraphExecKernelNodeSetParams_v2(h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_KERNEL_NODE_PARAMS) => |exec, node, params| set_in(exec, node, kernel(&take(params)?));
    cuGraphExecMemcpyNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, copy_params: *const CUDA_MEMCPY3D, ctx: CUcontext) => |exec, node, params, _| set_in(exec, node, copy_work(params));
    cuGraphExecMemsetNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, memset_params: *const CUDA_MEMSET_NODE_PARAMS, ctx: CUcontext) => |exec, node, params, _| set_in(exec, node, fill_work(params));
    cuGraphExecHostNodeSetParams(h_graph_exec: CUgraphExec, h_node: CUgraphNode, node_params: *const CUDA_HOST_NODE_PARAMS) => |exec, node, params| set_in(exec, node, host_work(params));
    cuGraphExecEventRecordNodeSetEvent(h_graph_exec: CUgraphExec, h_node: CUgraphNode, event: CUevent) => |exec, node, event| set_in(exec, node, event_node(event, Work::Record));
    cuGraphExecEventWaitNodeSetEvent(h_graph_exec: CUgraphExec, h_node: CUgraphNode, event: CUevent) => |exec, node, event| set_in(exec, node, event_node(event, Work::Wait));
    cuGraphNodeSetEnabled(h_graph_exec: CUgraphExec, h_node: CUgraphNode, is_enabled: c_uint) => |exec, node, is_enabled| enabled(exec, node, |now| *now = is_enabled != 0);
    cuGraphNodeGetEnabled(h_graph_exec: CUgraphExec, h_node: CUgraphNode, is_enabled: *mut c_uint) => |exec, node, out| put(out, c_uint::from(enabled(exec, node, |now| *now)?));
}
