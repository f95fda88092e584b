//! The real libraries and their functions.
//!
//! One table of addresses for both libraries, filled as functions are first used. A library is opened
//! when the first of its functions is needed, by absolute path: a bare name would find us. It is never
//! closed.

use crate::discovery;
use crate::log;
use ffi::driver::{
    CUDA_ARRAY_MEMORY_REQUIREMENTS, CUDA_ARRAY3D_DESCRIPTOR, CUDA_MEM_ALLOC_NODE_PARAMS, CUarray,
    CUcontext, CUdevice, CUdevice_attribute, CUdeviceptr, CUdriverProcAddressQueryResult, CUevent,
    CUgraph, CUgraphMem_attribute, CUgraphNode, CUgraphNodeType, CUmemPool_attribute, CUmemoryPool,
    CUmipmappedArray, CUresult, CUstream, CUstreamCaptureMode, CUstreamCaptureStatus, CUuuid,
};
use ffi::nvml::{nvmlDevice_t, nvmlReturn_t};
use ffi::symbols::{DRIVER, NVML, Symbol};
use libloading::os::unix as loader;
use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};

/// One of the two libraries that we stand in front of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Library {
    /// `libcuda.so.1`.
    Driver,
    /// `libnvidia-ml.so.1`.
    Nvml,
}

impl Library {
    const fn symbols(self) -> &'static [Symbol] {
        match self {
            Library::Driver => DRIVER,
            Library::Nvml => NVML,
        }
    }

    /// The name under which the loader knows it.
    pub(crate) const fn soname(self) -> &'static str {
        match self {
            Library::Driver => "libcuda.so.1",
            Library::Nvml => "libnvidia-ml.so.1",
        }
    }

    /// How it is opened. NVML calls its own exports through its PLT, so without `RTLD_DEEPBIND` those
    /// calls would come back to us; libcuda is linked `-Bsymbolic` and binds to itself anyway.
    const fn flags(self) -> c_int {
        let flags = libc::RTLD_NOW | libc::RTLD_LOCAL;
        match self {
            Library::Driver => flags,
            Library::Nvml => flags | libc::RTLD_DEEPBIND,
        }
    }
}

/// Addresses of the real functions: the driver's, then NVML's; null until first used.
pub(crate) static TABLE: [AtomicPtr<()>; DRIVER.len() + NVML.len()] =
    [const { AtomicPtr::new(std::ptr::null_mut()) }; DRIVER.len() + NVML.len()];

/// Place of a symbol in [`TABLE`].
pub(crate) const fn ordinal(library: Library, index: usize) -> usize {
    match library {
        Library::Driver => index,
        Library::Nvml => DRIVER.len() + index,
    }
}

/// Place of the symbol `name` in [`TABLE`]; evaluated by the compiler.
///
/// # Panics
/// At compile time: `name` is in no table.
#[allow(
    clippy::panic,
    clippy::indexing_slicing,
    reason = "runs in the compiler alone; a failure there is an error message"
)]
pub(crate) const fn ordinal_of(library: Library, name: &str) -> usize {
    let symbols = library.symbols();
    let (mut low, mut high) = (0, symbols.len());
    while low < high {
        let middle = low + (high - low) / 2;
        if is_before(symbols[middle].name.as_bytes(), name.as_bytes()) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    assert!(
        low < symbols.len()
            && !is_before(name.as_bytes(), symbols[low].name.as_bytes())
            && !is_before(symbols[low].name.as_bytes(), name.as_bytes()),
        "no such symbol"
    );
    ordinal(library, low)
}

#[allow(
    clippy::indexing_slicing,
    reason = "both bounds are checked by the loop"
)]
const fn is_before(left: &[u8], right: &[u8]) -> bool {
    let mut at = 0;
    while at < left.len() && at < right.len() {
        if left[at] != right[at] {
            return left[at] < right[at];
        }
        at += 1;
    }
    left.len() < right.len()
}

/// A library that was opened, or the fact that there is none.
struct Opened(Option<loader::Library>);

static OPENED: [OnceLock<Opened>; 2] = [const { OnceLock::new() }; 2];

fn opened(library: Library) -> Option<&'static loader::Library> {
    let [driver, nvml] = &OPENED;
    let cell = match library {
        Library::Driver => driver,
        Library::Nvml => nvml,
    };
    cell.get_or_init(|| Opened(open(library))).0.as_ref()
}

/// Whether the machine has the library.
pub(crate) fn is_there(library: Library) -> bool {
    opened(library).is_some()
}

fn open(library: Library) -> Option<loader::Library> {
    for path in discovery::candidates(library) {
        // SAFETY: loading a driver runs its constructors; that is what the program asked for when it
        // called its first function.
        let handle = match unsafe { loader::Library::open(Some(&path), library.flags()) } {
            Ok(handle) => handle,
            Err(error) => {
                log::info(format_args!("cannot open {}: {error}", path.display()));
                continue;
            }
        };
        if is_us(&handle, library, &path) {
            continue;
        }
        log::info(format_args!("{} is {}", library.soname(), path.display()));
        return Some(handle);
    }
    log::info(format_args!("no {} on this machine", library.soname()));
    None
}

/// Whether a library that we opened is ourselves under another name (a bind mount, a copy).
fn is_us(handle: &loader::Library, library: Library, path: &Path) -> bool {
    let own = match library {
        Library::Driver => (
            c"cuInit",
            crate::hooks::export(ordinal_of(Library::Driver, "cuInit")),
        ),
        Library::Nvml => (
            c"nvmlInit_v2",
            crate::hooks::export(ordinal_of(Library::Nvml, "nvmlInit_v2")),
        ),
    };
    let is_us = own.1.is_some() && symbol(handle, own.0) == own.1;
    // A copy of ours has other addresses, but nobody else exports this name.
    let is_copy = symbol(handle, c"sluice_shim").is_some();
    if is_us || is_copy {
        log::info(format_args!(
            "{} is Sluice itself; not used",
            path.display()
        ));
    }
    is_us || is_copy
}

/// Marks this library as ours, for the check above.
#[unsafe(no_mangle)]
extern "C" fn sluice_shim() {}

fn symbol(handle: &loader::Library, name: &CStr) -> Option<*const ()> {
    // SAFETY: only the address is taken; its type is the caller's business.
    let found = unsafe { handle.get::<*const ()>(name) }.ok()?;
    let address = found.as_raw_ptr().cast_const().cast();
    (!std::ptr::eq(address, std::ptr::null())).then_some(address)
}

/// The address of the symbol with this ordinal: the real function, or what answers where the machine
/// has none. Fills [`TABLE`].
pub(crate) fn function(ordinal: usize) -> *const () {
    let Some(slot) = TABLE.get(ordinal) else {
        return unknown as *const ();
    };
    // Relaxed: the address of a function that was there before anybody could ask.
    let known = slot.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    let (library, symbol) = match ordinal.checked_sub(DRIVER.len()) {
        None => (Library::Driver, DRIVER.get(ordinal)),
        Some(index) => (Library::Nvml, NVML.get(index)),
    };
    let address = symbol.map_or(unknown as *const (), |symbol| find(library, symbol));
    slot.store(address.cast_mut(), Ordering::Relaxed);
    address
}

/// The real function with this ordinal, and only a real one.
pub(crate) fn genuine(library: Library, ordinal: usize) -> Option<*const ()> {
    let index = match library {
        Library::Driver => ordinal,
        Library::Nvml => ordinal.checked_sub(DRIVER.len())?,
    };
    genuine_named(library, library.symbols().get(index)?.name)
}

fn genuine_named(library: Library, name: &str) -> Option<*const ()> {
    symbol(opened(library)?, &CString::new(name).ok()?)
}

fn find(library: Library, wanted: &Symbol) -> *const () {
    if let Some(address) = genuine_named(library, wanted.name) {
        return address;
    }
    let is_there = is_there(library);
    match (library, wanted.name) {
        (Library::Nvml, "nvmlErrorString") => no_error_string as *const (),
        (Library::Nvml, _) if is_there => nvml_function_not_found as *const (),
        (Library::Nvml, name) if name.starts_with("nvmlInit") => {
            nvml_library_not_found as *const ()
        }
        (Library::Nvml, _) => nvml_uninitialized as *const (),
        (Library::Driver, _) if is_there => not_found as *const (),
        (Library::Driver, "cuInit") => no_device as *const (),
        (Library::Driver, "cuDriverGetVersion") => no_version as *const (),
        (Library::Driver, "cuGetProcAddress") => crate::lookup::without_driver as *const (),
        (Library::Driver, "cuGetProcAddress_v2") => crate::lookup::without_driver_v2 as *const (),
        (Library::Driver, "cuGetErrorName" | "cuGetErrorString") => no_error_name as *const (),
        (Library::Driver, _) => not_initialized as *const (),
    }
}

// What answers where the real function is missing. A caller passes more arguments than these take; on
// both calling conventions that we know the callee may leave them alone.

/// The table has no such symbol.
pub(crate) extern "C" fn unknown() -> CUresult {
    CUresult::CUDA_ERROR_UNKNOWN
}

/// The driver is older than the function.
extern "C" fn not_found() -> CUresult {
    CUresult::CUDA_ERROR_NOT_FOUND
}

/// `cuInit` where there is no driver.
extern "C" fn no_device(_flags: c_uint) -> CUresult {
    CUresult::CUDA_ERROR_NO_DEVICE
}

/// Everything else where there is no driver: `cuInit` cannot have succeeded.
extern "C" fn not_initialized() -> CUresult {
    CUresult::CUDA_ERROR_NOT_INITIALIZED
}

/// `cuDriverGetVersion` where there is no driver: version 0, as the runtime documents "no driver".
unsafe extern "C" fn no_version(version: *mut c_int) -> CUresult {
    match crate::claim::Out::claim(version) {
        Some(out) => {
            out.write(0);
            CUresult::CUDA_SUCCESS
        }
        None => CUresult::CUDA_ERROR_INVALID_VALUE,
    }
}

/// `cuGetErrorName` and `cuGetErrorString` where there is no driver: no code is known.
unsafe extern "C" fn no_error_name(_error: CUresult, text: *mut *const c_char) -> CUresult {
    if let Some(out) = crate::claim::Out::claim(text) {
        out.write(std::ptr::null());
    }
    CUresult::CUDA_ERROR_INVALID_VALUE
}

/// NVML is older than the function.
extern "C" fn nvml_function_not_found() -> nvmlReturn_t {
    nvmlReturn_t::NVML_ERROR_FUNCTION_NOT_FOUND
}

/// `nvmlInit` where there is no NVML.
extern "C" fn nvml_library_not_found() -> nvmlReturn_t {
    nvmlReturn_t::NVML_ERROR_LIBRARY_NOT_FOUND
}

/// Everything else where there is no NVML.
extern "C" fn nvml_uninitialized() -> nvmlReturn_t {
    nvmlReturn_t::NVML_ERROR_UNINITIALIZED
}

/// `nvmlErrorString` where there is no NVML.
extern "C" fn no_error_string(error: nvmlReturn_t) -> *const c_char {
    match error {
        nvmlReturn_t::NVML_SUCCESS => c"Success".as_ptr(),
        nvmlReturn_t::NVML_ERROR_UNINITIALIZED => c"Uninitialized".as_ptr(),
        nvmlReturn_t::NVML_ERROR_LIBRARY_NOT_FOUND => c"NVML shared library not found".as_ptr(),
        _ => c"Unknown error".as_ptr(),
    }
}

/// `symbolStatus` of `cuGetProcAddress_v2` for a name that nobody knows.
pub(crate) const SYMBOL_NOT_FOUND: CUdriverProcAddressQueryResult =
    CUdriverProcAddressQueryResult::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;

/// Real functions that the policies call on their own account, under the driver's names.
macro_rules! real_functions {
    ($($library:ident $name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(
            /// The real function of this name, or what answers where the machine has none.
            ///
            /// # Safety
            /// The driver's own contract.
            #[allow(non_snake_case, reason = "the header's spelling")]
            pub(crate) unsafe fn $name($($argument: $type),*) -> $result {
                const ORDINAL: usize = ordinal_of(Library::$library, stringify!($name));
                let address = function(ORDINAL);
                type Real = unsafe extern "C" fn($($type),*) -> $result;
                // SAFETY: the driver's function of this name, or one of ours that takes whatever
                // arguments there are.
                let real = unsafe { std::mem::transmute::<*const (), Real>(address) };
                // SAFETY: the caller's duty.
                unsafe { real($($argument),*) }
            }
        )*
    };
}

real_functions! {
    Driver cuArray3DCreate_v2(array: *mut CUarray, wanted: *const CUDA_ARRAY3D_DESCRIPTOR) -> CUresult;
    Driver cuArrayDestroy(array: CUarray) -> CUresult;
    Driver cuArrayGetMemoryRequirements(found: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUarray, device: CUdevice) -> CUresult;
    Driver cuMipmappedArrayCreate(array: *mut CUmipmappedArray, wanted: *const CUDA_ARRAY3D_DESCRIPTOR, levels: c_uint) -> CUresult;
    Driver cuMipmappedArrayDestroy(array: CUmipmappedArray) -> CUresult;
    Driver cuMipmappedArrayGetMemoryRequirements(found: *mut CUDA_ARRAY_MEMORY_REQUIREMENTS, array: CUmipmappedArray, device: CUdevice) -> CUresult;
    Driver cuCtxGetCurrent(context: *mut CUcontext) -> CUresult;
    Driver cuCtxGetDevice(device: *mut CUdevice) -> CUresult;
    Driver cuCtxSetCurrent(context: CUcontext) -> CUresult;
    Driver cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult;
    Driver cuEventDestroy_v2(event: CUevent) -> CUresult;
    Driver cuEventElapsedTime(milliseconds: *mut f32, begin: CUevent, end: CUevent) -> CUresult;
    Driver cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
    Driver cuEventRecord_ptsz(event: CUevent, stream: CUstream) -> CUresult;
    Driver cuEventSynchronize(event: CUevent) -> CUresult;
    Driver cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult;
    Driver cuCtxPopCurrent_v2(context: *mut CUcontext) -> CUresult;
    Driver cuCtxPushCurrent_v2(context: CUcontext) -> CUresult;
    Driver cuDeviceGetCount(count: *mut c_int) -> CUresult;
    Driver cuDeviceGetDefaultMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult;
    Driver cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice) -> CUresult;
    Driver cuDeviceGetUuid(uuid: *mut CUuuid, device: CUdevice) -> CUresult;
    Driver cuDeviceGetUuid_v2(uuid: *mut CUuuid, device: CUdevice) -> CUresult;
    Driver cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, is_active: *mut c_int) -> CUresult;
    Driver cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) -> CUresult;
    Driver cuMemAllocManaged(pointer: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> CUresult;
    Driver cuMemFree_v2(pointer: CUdeviceptr) -> CUresult;
    Driver cuMemFreeAsync(pointer: CUdeviceptr, stream: CUstream) -> CUresult;
    Driver cuMemFreeAsync_ptsz(pointer: CUdeviceptr, stream: CUstream) -> CUresult;
    Driver cuMemPoolGetAttribute(pool: CUmemoryPool, which: CUmemPool_attribute, value: *mut c_void) -> CUresult;
    Driver cuDeviceGetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) -> CUresult;
    Driver cuDeviceGraphMemTrim(device: CUdevice) -> CUresult;
    Driver cuGraphGetNodes(graph: CUgraph, nodes: *mut CUgraphNode, count: *mut usize) -> CUresult;
    Driver cuGraphChildGraphNodeGetGraph(node: CUgraphNode, graph: *mut CUgraph) -> CUresult;
    Driver cuGraphNodeGetType(node: CUgraphNode, kind: *mut CUgraphNodeType) -> CUresult;
    Driver cuGraphMemAllocNodeGetParams(node: CUgraphNode, params: *mut CUDA_MEM_ALLOC_NODE_PARAMS) -> CUresult;
    Driver cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize) -> CUresult;
    Driver cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CUresult;
    Driver cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult;
    Driver cuStreamIsCapturing_ptsz(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult;
    Nvml nvmlDeviceGetUUID(device: nvmlDevice_t, text: *mut c_char, length: c_uint) -> nvmlReturn_t;
}
