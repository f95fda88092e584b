//! Edges of graphs, with and without their data.
//!
//! An edge makes a node wait for the end of another. The other kind that edge data can name, of kernels that
//! begin before the one before them has ended, is not there.

use std::ffi::c_uchar;
use std::sync::Arc;

use ffi::driver::{CUgraph, CUgraphEdgeData, CUgraphNode, CUresult};

use crate::graph::{Node, dependencies, find, find_node, list};
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};

/// `CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC`.
const PROGRAMMATIC: c_uchar = 1;

const PLAIN: CUgraphEdgeData = CUgraphEdgeData {
    from_port: 0,
    to_port: 0,
    type_: 0,
    reserved: [0; 5],
};

/// Refuses data of edges that are not plain ones; null stands for plain ones.
pub(crate) fn check_plain(data: *const CUgraphEdgeData, count: usize) -> Answer {
    if data.is_null() {
        return Ok(());
    }
    for index in 0..count {
        let data = take(data.wrapping_add(index))?;
        if data.reserved != [0; 5] || data.type_ > PROGRAMMATIC {
            return Err(INVALID_VALUE);
        }
        if (data.from_port, data.to_port, data.type_) != (0, 0, 0) {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    Ok(())
}

/// Writes the data of as many edges as the host has room for; `places` says whether it wants them.
fn list_data(places: bool, data: *mut CUgraphEdgeData, count: *mut usize) -> Answer {
    if data.is_null() {
        return Ok(());
    }
    if !places {
        return Err(INVALID_VALUE);
    }
    (0..take(count)?).try_for_each(|index| put(data.wrapping_add(index), PLAIN))
}

fn edges(
    graph: CUgraph,
    from: *mut CUgraphNode,
    to: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    let nodes = find(graph)?.nodes.lock().clone();
    let (mut begins, mut ends) = (Vec::new(), Vec::new());
    for node in &nodes {
        for before in node.after() {
            begins.push(before);
            ends.push(Arc::clone(node));
        }
    }
    if from.is_null() != to.is_null() {
        return Err(INVALID_VALUE);
    }
    list_data(!from.is_null(), data, count)?;
    if !from.is_null() {
        let asked = take(count)?;
        list(&begins, from, count)?;
        put(count, asked)?;
    }
    list(&ends, to, count)
}

/// What a node waits for.
fn before(
    node: CUgraphNode,
    out: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    let before = find_node(node)?.after();
    Out::claim(count)?;
    list_data(!out.is_null(), data, count)?;
    list(&before, out, count)
}

/// What waits for a node.
fn behind(
    node: CUgraphNode,
    out: *mut CUgraphNode,
    data: *mut CUgraphEdgeData,
    count: *mut usize,
) -> Answer {
    let node = find_node(node)?;
    let graph = node.graph.upgrade().ok_or(INVALID_VALUE)?;
    let nodes = graph.nodes.lock().clone();
    let behind: Vec<_> = nodes
        .into_iter()
        .filter(|other| is_edge(&node, other))
        .collect();
    Out::claim(count)?;
    list_data(!out.is_null(), data, count)?;
    list(&behind, out, count)
}

fn is_edge(from: &Arc<Node>, to: &Arc<Node>) -> bool {
    let after = to.after.lock();
    after.iter().any(|it| Arc::ptr_eq(it, from))
}

/// The edges that the host names, between nodes of one graph.
fn named(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer<Vec<(Arc<Node>, Arc<Node>)>> {
    let graph = find(graph)?;
    check_plain(data, count)?;
    let from = dependencies(&graph, from, count)?;
    let to = dependencies(&graph, to, count)?;
    Ok(from.into_iter().zip(to).collect())
}

fn add(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer {
    let named = named(graph, from, to, data, count)?;
    if named.iter().any(|(from, to)| is_edge(from, to)) {
        return Err(INVALID_VALUE);
    }
    for (from, to) in named {
        to.after.lock().push(from);
    }
    Ok(())
}

fn remove(
    graph: CUgraph,
    from: *const CUgraphNode,
    to: *const CUgraphNode,
    data: *const CUgraphEdgeData,
    count: usize,
) -> Answer {
    find(graph)?.refuse_memory()?;
    let named = named(graph, from, to, data, count)?;
    if !named.iter().all(|(from, to)| is_edge(from, to)) {
        return Err(INVALID_VALUE);
    }
    for (from, to) in named {
        to.after.lock().retain(|it| !Arc::ptr_eq(it, &from));
    }
    Ok(())
}

const NONE: *mut CUgraphEdgeData = std::ptr::null_mut();

driver! {
    cuGraphGetEdges(h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, num_edges: *mut usize) => |graph, from, to, count| edges(graph, from, to, NONE, count);
    cuGraphGetEdges_v2(h_graph: CUgraph, from: *mut CUgraphNode, to: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_edges: *mut usize) => edges;
    cuGraphNodeGetDependencies(h_node: CUgraphNode, dependencies: *mut CUgraphNode, num_dependencies: *mut usize) => |node, out, count| before(node, out, NONE, count);
    cuGraphNodeGetDependencies_v2(h_node: CUgraphNode, dependencies: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_dependencies: *mut usize) => before;
    cuGraphNodeGetDependentNodes(h_node: CUgraphNode, dependent_nodes: *mut CUgraphNode, num_dependent_nodes: *mut usize) => |node, out, count| behind(node, out, NONE, count);
    cuGraphNodeGetDependentNodes_v2(h_node: CUgraphNode, dependent_nodes: *mut CUgraphNode, edge_data: *mut CUgraphEdgeData, num_dependent_nodes: *mut usize) => behind;
    cuGraphAddDependencies(h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize) => |graph, from, to, count| add(graph, from, to, NONE, count);
    cuGraphAddDependencies_v2(h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData, num_dependencies: usize) => add;
    cuGraphRemoveDependencies(h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, num_dependencies: usize) => |graph, from, to, count| remove(graph, from, to, NONE, count);
    cuGraphRemoveDependencies_v2(h_graph: CUgraph, from: *const CUgraphNode, to: *const CUgraphNode, edge_data: *const CUgraphEdgeData, num_dependencies: usize) => remove;
}
