//! The hook table: one row for each intercepted function.
//!
//! A row is the exported symbol, its arguments as the header has them, and the policy that sees the call
//! first. The policy takes the arguments and `forward`, which calls the real function once. From the
//! row come the export, the look-up by `dlsym` and `cuGetProcAddress` ([`swap`]) and the place of the
//! real function; the compiler compares the row with the header's prototype. Which CUDA version a symbol
//! belongs to is in `ffi::symbols`.

use crate::real::{Library, genuine, ordinal_of};
use crate::{
    array, context, gate, graph_memory, init, lookup, management, memory, neighbours, pool, query,
    vmm,
};
use ffi::driver::*;
use ffi::nvml::*;
use std::ffi::{c_char, c_int, c_uint, c_ulonglong, c_void};
use std::sync::OnceLock;

/// One function of a row's type, which lets the row's policy see the call.
macro_rules! hook {
    ($(#[$attribute:meta])* $visibility:vis fn $function:ident is $library:ident $name:ident(
        $($argument:ident: $type:ty),*
    ) gives $result:ty => $policy:path) => {
        $(#[$attribute])*
        #[allow(
            clippy::missing_safety_doc,
            reason = "the contract is the driver's own function of this name"
        )]
        $visibility unsafe extern "C" fn $function($($argument: $type),*) -> $result {
            const ORDINAL: usize = ordinal_of(Library::$library, stringify!($name));
            let forward = |$($argument: $type),*| {
                let real = crate::real::function(ORDINAL);
                type Real = unsafe extern "C" fn($($type),*) -> $result;
                // SAFETY: `real` is the driver's function of this name, or one of ours that
                // takes whatever arguments there are; the prototype is compared with the
                // header's below.
                let real = unsafe { std::mem::transmute::<*const (), Real>(real) };
                // SAFETY: the arguments are the host's or the policy's, under the contract of
                // the driver's function.
                unsafe { real($($argument),*) }
            };
            crate::guard::enter(|| $policy($($argument,)* forward))
        }
    };
}

/// Exports one function for each row. With `unless gated` the policy sees a call only while a launch on one of the
/// process's devices has to look at a lease: else the export is a jump to the real function.
macro_rules! hooks {
    ($library:ident from $abi:ident as $list:ident gives $result:ty;
     $($name:ident($($argument:ident: $type:ty),* $(,)?) => $policy:path;)*) => {
        $(hook! {
            #[unsafe(no_mangle)]
            pub(crate) fn $name is $library $name($($argument: $type),*) gives $result => $policy
        })*
        hooks! { @list $library from $abi as $list gives $result; $($name($($type),*);)* }
    };
    ($library:ident from $abi:ident as $list:ident gives $result:ty, unless gated;
     $($name:ident($($argument:ident: $type:ty),* $(,)?) => $policy:path;)*) => {
        $(
            #[allow(non_snake_case, reason = "the driver's own")]
            mod $name {
                use super::*;
                hook! {
                    pub(super) fn shared is $library $name($($argument: $type),*) gives $result => $policy
                }
            }

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            #[allow(
                clippy::missing_safety_doc,
                reason = "the contract is the driver's own function of this name"
            )]
            pub(crate) unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                crate::trampoline::jump_unless_gated!(
                    ordinal_of(Library::$library, stringify!($name)),
                    $name::shared
                )
            }
        )*
        hooks! { @list $library from $abi as $list gives $result; $($name($($type),*);)* }
    };
    (@list $library:ident from $abi:ident as $list:ident gives $result:ty;
     $($name:ident($($type:ty),*);)*) => {
        $(const _: unsafe extern "C" fn($($type),*) -> $result = ffi::$abi::$name;)*

        /// The rows, in their order.
        pub(super) static $list: &[Hook] = &[$(Hook {
            ordinal: ordinal_of(Library::$library, stringify!($name)),
            address: $name as *const (),
        }),*];
    };
}

mod copies;
mod launches;

/// A row, as the look-up sees it.
pub(crate) struct Hook {
    ordinal: usize,
    address: *const (),
}

// SAFETY: the address is a function's.
unsafe impl Sync for Hook {}

hooks! {
    Driver from driver as DRIVER_HOOKS gives CUresult;

    // Getting in: attach, and stay in front.
    cuInit(flags: c_uint) => init::init;
    cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: cuuint64_t)
        => lookup::address;
    cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: cuuint64_t, status: *mut CUdriverProcAddressQueryResult)
        => lookup::address_v2;

    // Linear memory.
    cuMemAlloc(out: *mut CUdeviceptr_v1, bytes: c_uint) => memory::alloc_v1;
    cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize) => memory::alloc;
    cuMemAllocPitch(out: *mut CUdeviceptr_v1, pitch: *mut c_uint, width: c_uint, height: c_uint, element: c_uint)
        => memory::alloc_pitch_v1;
    cuMemAllocPitch_v2(out: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint)
        => memory::alloc_pitch;
    cuMemAllocManaged(out: *mut CUdeviceptr, bytes: usize, flags: c_uint) => memory::alloc_managed;
    cuMemFree(pointer: CUdeviceptr_v1) => memory::free_v1;
    cuMemFree_v2(pointer: CUdeviceptr) => memory::free;

    // Stream-ordered memory, and when it goes back.
    cuMemAllocAsync(out: *mut CUdeviceptr, bytes: usize, stream: CUstream) => pool::alloc_async;
    cuMemAllocAsync_ptsz(out: *mut CUdeviceptr, bytes: usize, stream: CUstream)
        => pool::alloc_async_per_thread;
    cuMemAllocFromPoolAsync(out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream)
        => pool::alloc_from;
    cuMemAllocFromPoolAsync_ptsz(out: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream)
        => pool::alloc_from_per_thread;
    cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream) => pool::free_async;
    cuMemFreeAsync_ptsz(pointer: CUdeviceptr, stream: CUstream) => pool::free_async;
    cuMemPoolCreate(out: *mut CUmemoryPool, properties: *const CUmemPoolProps) => pool::create;
    cuMemPoolDestroy(pool: CUmemoryPool) => pool::destroy;
    cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) => pool::trim_to;
    cuStreamSynchronize(stream: CUstream) => pool::synchronize_stream;
    cuStreamSynchronize_ptsz(stream: CUstream) => pool::synchronize_stream_per_thread;
    cuEventSynchronize(event: CUevent) => pool::synchronize_event;
    cuCtxSynchronize() => pool::synchronize_context;
    cuCtxSynchronize_v2(context: CUcontext) => pool::synchronize_named_context;

    // Memory of graphs; their launches are below.
    cuGraphInstantiate(out: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char, bytes: usize)
        => graph_memory::instantiate;
    cuGraphInstantiate_v2(out: *mut CUgraphExec, graph: CUgraph, node: *mut CUgraphNode, log: *mut c_char, bytes: usize)
        => graph_memory::instantiate;
    cuGraphInstantiateWithFlags(out: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong)
        => graph_memory::instantiate_with_flags;
    cuGraphInstantiateWithParams(out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS)
        => graph_memory::instantiate_with_params;
    cuGraphInstantiateWithParams_ptsz(out: *mut CUgraphExec, graph: CUgraph, params: *mut CUDA_GRAPH_INSTANTIATE_PARAMS)
        => graph_memory::instantiate_with_params;
    cuGraphExecDestroy(graph: CUgraphExec) => graph_memory::destroy;
    cuGraphUpload(graph: CUgraphExec, stream: CUstream) => graph_memory::upload;
    cuGraphUpload_ptsz(graph: CUgraphExec, stream: CUstream) => graph_memory::upload_per_thread;
    cuDeviceGraphMemTrim(device: CUdevice) => graph_memory::trim_device;

    // Physical memory by handle.
    cuMemCreate(out: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const CUmemAllocationProp, flags: c_ulonglong)
        => vmm::create;
    cuMemRetainAllocationHandle(out: *mut CUmemGenericAllocationHandle, address: *mut c_void)
        => vmm::retain;
    cuMemRelease(handle: CUmemGenericAllocationHandle) => vmm::release;
    cuMemMap(pointer: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong)
        => vmm::map;
    cuMemUnmap(pointer: CUdeviceptr, bytes: usize) => vmm::unmap;
    cuMemExportToShareableHandle(out: *mut c_void, handle: CUmemGenericAllocationHandle, kind: CUmemAllocationHandleType, flags: c_ulonglong)
        => vmm::export;
    cuMemImportFromShareableHandle(out: *mut CUmemGenericAllocationHandle, given: *mut c_void, kind: CUmemAllocationHandleType)
        => vmm::import;

    // Arrays: what they take, only the driver knows.
    cuArrayCreate(out: *mut CUarray, wanted: *const CUDA_ARRAY_DESCRIPTOR_v1) => array::create_v1;
    cuArrayCreate_v2(out: *mut CUarray, wanted: *const CUDA_ARRAY_DESCRIPTOR) => array::create;
    cuArray3DCreate(out: *mut CUarray, wanted: *const CUDA_ARRAY3D_DESCRIPTOR_v1)
        => array::create_3d_v1;
    cuArray3DCreate_v2(out: *mut CUarray, wanted: *const CUDA_ARRAY3D_DESCRIPTOR)
        => array::create_3d;
    cuArrayDestroy(array: CUarray) => array::destroy;
    cuMipmappedArrayCreate(out: *mut CUmipmappedArray, wanted: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint)
        => array::create_mipmapped;
    cuMipmappedArrayDestroy(array: CUmipmappedArray) => array::destroy_mipmapped;
    cuMemMapArrayAsync(list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream) => array::map;
    cuMemMapArrayAsync_ptsz(list: *mut CUarrayMapInfo, count: c_uint, stream: CUstream)
        => array::map;

    // Whose end frees everything in it.
    cuCtxCreate(out: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create;
    cuCtxCreate_v2(out: *mut CUcontext, flags: c_uint, device: CUdevice) => context::create;
    cuCtxCreate_v3(out: *mut CUcontext, affinities: *mut CUexecAffinityParam, count: c_int, flags: c_uint, device: CUdevice)
        => context::create_v3;
    cuCtxCreate_v4(out: *mut CUcontext, params: *mut CUctxCreateParams, flags: c_uint, device: CUdevice)
        => context::create_v4;
    cuDevicePrimaryCtxRetain(out: *mut CUcontext, device: CUdevice) => context::retain_primary;
    cuDevicePrimaryCtxRelease(device: CUdevice) => context::release_primary;
    cuDevicePrimaryCtxRelease_v2(device: CUdevice) => context::release_primary;
    cuDevicePrimaryCtxReset(device: CUdevice) => context::release_primary;
    cuDevicePrimaryCtxReset_v2(device: CUdevice) => context::release_primary;
    cuCtxAttach(out: *mut CUcontext, flags: c_uint) => context::attach;
    cuCtxDetach(context: CUcontext) => context::detach;
    cuCtxDestroy(context: CUcontext) => context::destroy;
    cuCtxDestroy_v2(context: CUcontext) => context::destroy;

    // GPU time: graphs; other launches are in `launches`.
    cuGraphExecUpdate(graph: CUgraphExec, by: CUgraph, node: *mut CUgraphNode, outcome: *mut CUgraphExecUpdateResult)
        => gate::update_graph;
    cuGraphExecUpdate_v2(graph: CUgraphExec, by: CUgraph, outcome: *mut CUgraphExecUpdateResultInfo)
        => gate::update_graph_v2;
    cuGraphLaunch(graph: CUgraphExec, stream: CUstream) => graph_memory::launch;
    cuGraphLaunch_ptsz(graph: CUgraphExec, stream: CUstream) => graph_memory::launch_per_thread;

    // Launches into a capturing stream are no work yet.
    cuStreamBeginCapture(stream: CUstream) => gate::capture::begin_v1;
    cuStreamBeginCapture_ptsz(stream: CUstream) => gate::capture::begin_v1;
    cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) => gate::capture::begin;
    cuStreamBeginCapture_v2_ptsz(stream: CUstream, mode: CUstreamCaptureMode) => gate::capture::begin;
    cuStreamBeginCaptureToGraph(stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode)
        => gate::capture::begin_to_graph;
    cuStreamBeginCaptureToGraph_ptsz(stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, data: *const CUgraphEdgeData, count: usize, mode: CUstreamCaptureMode)
        => gate::capture::begin_to_graph;
    cuStreamBeginRecaptureToGraph(stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void)
        => gate::capture::begin_again;
    cuStreamBeginRecaptureToGraph_ptsz(stream: CUstream, mode: CUstreamCaptureMode, graph: CUgraph, callback: CUgraphRecaptureCallback, data: *mut c_void)
        => gate::capture::begin_again;

    // The cap is the size of the GPU.
    cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) => query::mem_info_v1;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => query::mem_info;
    cuDeviceTotalMem(bytes: *mut c_uint, device: CUdevice) => query::total_mem_v1;
    cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice) => query::total_mem;
}

hooks! {
    Nvml from nvml as NVML_HOOKS gives nvmlReturn_t;

    nvmlInit_v2() => management::init;
    nvmlDeviceGetMemoryInfo(device: nvmlDevice_t, memory: *mut nvmlMemory_t)
        => management::memory_info;
    nvmlDeviceGetMemoryInfo_v2(device: nvmlDevice_t, memory: *mut nvmlMemory_v2_t)
        => management::memory_info_v2;

    // Only the tenant's own processes.
    nvmlDeviceGetComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t)
        => neighbours::running_v1;
    nvmlDeviceGetComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t)
        => neighbours::running_v2;
    nvmlDeviceGetComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t)
        => neighbours::running_v3;
    nvmlDeviceGetGraphicsRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t)
        => neighbours::running_v1;
    nvmlDeviceGetGraphicsRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t)
        => neighbours::running_v2;
    nvmlDeviceGetGraphicsRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t)
        => neighbours::running_v3;
    nvmlDeviceGetMPSComputeRunningProcesses(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v1_t)
        => neighbours::running_v1;
    nvmlDeviceGetMPSComputeRunningProcesses_v2(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_v2_t)
        => neighbours::running_v2;
    nvmlDeviceGetMPSComputeRunningProcesses_v3(device: nvmlDevice_t, count: *mut c_uint, infos: *mut nvmlProcessInfo_t)
        => neighbours::running_v3;
    nvmlDeviceGetRunningProcessDetailList(device: nvmlDevice_t, list: *mut nvmlProcessDetailList_t)
        => neighbours::detail_list;
    nvmlDeviceGetProcessUtilization(device: nvmlDevice_t, samples: *mut nvmlProcessUtilizationSample_t, count: *mut c_uint, since: c_ulonglong)
        => neighbours::utilization;
    nvmlDeviceGetProcessesUtilizationInfo(device: nvmlDevice_t, info: *mut nvmlProcessesUtilizationInfo_t)
        => neighbours::utilization_info;
}

fn driver_hooks() -> impl Iterator<Item = &'static Hook> {
    DRIVER_HOOKS
        .iter()
        .chain(copies::COPY_HOOKS)
        .chain(launches::LAUNCH_HOOKS)
}

/// Our export for the symbol with this ordinal, if it has a hook.
pub(crate) fn export(ordinal: usize) -> Option<*const ()> {
    driver_hooks()
        .chain(NVML_HOOKS)
        .find(|hook| hook.ordinal == ordinal)
        .map(|hook| hook.address)
}

/// For the address of a real function, our export where it has a hook.
///
/// The driver's `cuGetProcAddress` answers with the addresses of its exports, so no table of names
/// and versions is needed. Source: over 850,000 look-ups on drivers 535, 550 and 555.
pub(crate) fn swap(real: *const ()) -> Option<*const ()> {
    static BY_ADDRESS: OnceLock<Vec<(usize, usize)>> = OnceLock::new();
    let hooked = BY_ADDRESS.get_or_init(|| {
        let mut hooked: Vec<(usize, usize)> = driver_hooks()
            .filter_map(|hook| {
                let real = genuine(Library::Driver, hook.ordinal)?;
                Some((real as usize, hook.address as usize))
            })
            .collect();
        hooked.sort_unstable();
        hooked
    });
    let at = hooked
        .binary_search_by_key(&(real as usize), |(real, _)| *real)
        .ok()?;
    hooked.get(at).map(|(_, own)| *own as *const ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_row_is_another_symbol() {
        let ordinals: BTreeSet<usize> = driver_hooks()
            .chain(NVML_HOOKS)
            .map(|hook| hook.ordinal)
            .collect();
        assert_eq!(ordinals.len(), driver_hooks().count() + NVML_HOOKS.len());
    }

    #[test]
    fn every_form_of_launch_goes_through_the_gate() {
        use ffi::symbols::Class;
        let hooked: BTreeSet<usize> = driver_hooks().map(|hook| hook.ordinal).collect();
        let gated = ffi::symbols::DRIVER
            .iter()
            .enumerate()
            .filter(|(_, symbol)| matches!(symbol.class, Class::Launch | Class::GraphLaunch));
        let mut count = 0;
        for (ordinal, symbol) in gated {
            assert!(hooked.contains(&ordinal), "{} has no hook", symbol.name);
            count += 1;
        }
        assert_eq!(count, 12, "forms of launch in the driver's tables");
    }

    #[test]
    fn every_copy_and_every_fill_is_counted() {
        use ffi::symbols::Class;
        let counted: BTreeSet<usize> = copies::COPY_HOOKS.iter().map(|hook| hook.ordinal).collect();
        let of = |class: Class| {
            let symbols = ffi::symbols::DRIVER.iter().enumerate();
            symbols.filter(move |(_, symbol)| symbol.class == class)
        };
        let mut missing = Vec::new();
        for (ordinal, symbol) in of(Class::Copy).chain(of(Class::Memset)) {
            if !counted.contains(&ordinal) {
                missing.push(symbol.name);
            }
        }
        assert_eq!(missing, [""; 0]);
        assert_eq!(
            of(Class::Copy).chain(of(Class::Memset)).count(),
            counted.len()
        );
    }

    #[test]
    fn a_hooked_base_name_has_hooks_for_all_its_variants() {
        // A client gets whichever variant its CUDA version asks for, so a base name with a hole in it
        // is a way around the cap.
        let hooked: BTreeSet<usize> = driver_hooks().map(|hook| hook.ordinal).collect();
        let symbols = ffi::symbols::DRIVER;
        for (ordinal, symbol) in symbols.iter().enumerate() {
            let base_is_hooked = hooked.iter().any(|hook| symbols[*hook].base == symbol.base);
            assert!(
                !base_is_hooked || hooked.contains(&ordinal),
                "{} has no hook",
                symbol.name
            );
        }
    }
}
