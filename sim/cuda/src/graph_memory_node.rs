//! Nodes that allocate and free memory, made by hand.

use ffi::driver::{
    CUDA_MEM_ALLOC_NODE_PARAMS, CUdeviceptr, CUgraph, CUgraphNode, CUmemAllocationType_enum,
    CUmemLocationType_enum, CUresult,
};

use crate::graph::{self, Work};
use crate::graph_memory::Site;
use crate::guard::{Answer, INVALID_VALUE, put, take};
use crate::state::driver;

/// Adds a node that allocates, and tells its address.
pub(crate) fn allocation(
    out: *mut CUgraphNode,
    graph: CUgraph,
    list: *const CUgraphNode,
    count: usize,
    params: *mut CUDA_MEM_ALLOC_NODE_PARAMS,
) -> Answer {
    let mut told = take(params.cast_const())?;
    let properties = &told.poolProps;
    let pinned = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    let on_device = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    if properties.allocType != pinned || properties.location.type_ != on_device {
        return Err(INVALID_VALUE);
    }
    // A graph's memory is nobody else's.
    if properties.handleTypes.0 != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: with this type the location holds an ordinal; every bit pattern is one.
    let ordinal = unsafe { properties.location.__bindgen_anon_1.id };
    let driver = driver()?;
    let device = driver.device(ordinal)?.info.index;
    let site = Site::new(driver, device, told.bytesize as u64)?;
    told.dptr = site.start();
    graph::add(out, graph, list, count, || Ok(Work::Allocate(site)))?;
    put(params, told)
}

/// The node's parameters as they were told, with the address that it was given.
fn allocation_params(node: CUgraphNode, out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) -> Answer {
    let node = graph::find_node(node)?;
    let work = node.work.lock();
    let Work::Allocate(site) = &*work else {
        return Err(INVALID_VALUE);
    };
    // SAFETY: plain integers and pointers, for which zeros are a value.
    let mut params: CUDA_MEM_ALLOC_NODE_PARAMS = unsafe { std::mem::zeroed() };
    params.poolProps.allocType = CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED;
    params.poolProps.location.type_ = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    params.poolProps.location.__bindgen_anon_1.id = driver()?.devices[site.device()].ordinal();
    params.bytesize = site.asked() as usize;
    params.dptr = site.start();
    put(out, params)
}

/// Adds a node that frees.
pub(crate) fn free(
    out: *mut CUgraphNode,
    graph: CUgraph,
    list: *const CUgraphNode,
    count: usize,
    address: CUdeviceptr,
) -> Answer {
    let site = crate::graph_memory::find(address).ok_or(INVALID_VALUE)?;
    graph::add(out, graph, list, count, || Ok(Work::Free(site)))
}

fn freed_address(node: CUgraphNode, out: *mut CUdeviceptr) -> Answer {
    let node = graph::find_node(node)?;
    let work = node.work.lock();
    match &*work {
        Work::Free(site) => put(out, site.start()),
        _ => Err(INVALID_VALUE),
    }
}

driver! {
    cuGraphAddMemAllocNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, node_params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) => allocation;
    cuGraphMemAllocNodeGetParams(h_node: CUgraphNode, params_out: *mut CUDA_MEM_ALLOC_NODE_PARAMS) => allocation_params;
    cuGraphAddMemFreeNode(ph_graph_node: *mut CUgraphNode, h_graph: CUgraph, dependencies: *const CUgraphNode, num_dependencies: usize, dptr: CUdeviceptr) => free;
    cuGraphMemFreeNodeGetParams(h_node: CUgraphNode, dptr_out: *mut CUdeviceptr) => freed_address;
}
