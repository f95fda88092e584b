//! Modules, libraries, and the functions and variables in them.
//!
//! Code is not compiled: an image is read for its names and parameters. Variables take device memory
//! when they are first asked for. Linking is refused.

use std::collections::HashMap;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::atomic::{AtomicI32, Ordering};
use std::sync::{Arc, Weak};

use ffi::driver::{
    CUdevice, CUdeviceptr, CUdeviceptr_v1, CUfunc_cache, CUfunction, CUfunction_attribute,
    CUfunction_attribute_enum as A, CUfunctionLoadingState, CUjit_option, CUkernel, CUlibrary,
    CUlibraryOption, CUmodule, CUmoduleLoadingMode, CUmoduleLoadingMode_enum, CUresult,
    CUsharedconfig,
};
use parking_lot::Mutex;

use crate::context::Context;
use crate::device::{MAX_BLOCK_THREADS, SHARED_PER_BLOCK, shared_opt_in};
use crate::guard::{Answer, INVALID_VALUE, Out, put, text};
use crate::image::{self, Entry, Image};
use crate::legacy_launch;
use crate::memory::allocate_linear;
use crate::ranges::{Kind, Range};
use crate::registry::handle_of;
use crate::state::{self, Driver, driver};

/// Registers of a thread, for every kernel.
pub(crate) const REGISTERS_PER_THREAD: c_int = 32;

/// What is loaded into a context.
pub(crate) struct Module {
    /// Number of its context.
    pub(crate) context_id: u64,
    context: Weak<Context>,
    image: Arc<Image>,
    /// Set where it belongs to a library.
    library: Option<Weak<Library>>,
    functions: Mutex<HashMap<String, Arc<Function>>>,
    variables: Mutex<HashMap<String, Range>>,
}

/// What is loaded into the process.
pub(crate) struct Library {
    image: Arc<Image>,
    kernels: Mutex<HashMap<String, Arc<Function>>>,
    /// Its modules, by context.
    modules: Mutex<HashMap<u64, Arc<Module>>>,
}

enum Owner {
    Module(Weak<Module>),
    Library(Weak<Library>),
}

/// A function of a module, or a kernel of a library.
pub(crate) struct Function {
    /// What the image says about it.
    pub(crate) entry: Entry,
    /// How long it runs.
    pub(crate) timing: Timing,
    /// Its name, terminated.
    name: std::ffi::CString,
    context_id: Option<u64>,
    owner: Owner,
    shared: AtomicI32,
    carveout: AtomicI32,
    other: Mutex<HashMap<u32, c_int>>,
    /// What the launches of before CUDA 4 take.
    pub(crate) legacy: Mutex<legacy_launch::Settings>,
}

/// How long a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Timing {
    /// As long as its grid makes it.
    Modelled,
    /// As many nanoseconds as its first parameter says.
    For,
    /// Until the word at its first parameter is at least its second.
    Until,
}

impl Timing {
    fn of(entry: &Entry) -> Self {
        let sizes: Vec<u32> = entry.parameters.iter().map(|(_, bytes)| *bytes).collect();
        let is_named = |prefix| entry.name.starts_with(prefix);
        match sizes.as_slice() {
            [8, 4, ..] if is_named(sim::kernels::UNTIL_PREFIX) => Self::Until,
            [8, ..] if is_named(sim::kernels::SPIN_PREFIX) => Self::For,
            _ => Self::Modelled,
        }
    }
}

impl Function {
    fn new(entry: Entry, owner: Owner, context_id: Option<u64>) -> Answer<Self> {
        let name = std::ffi::CString::new(entry.name.as_str()).map_err(|_| INVALID_VALUE)?;
        Ok(Self {
            timing: Timing::of(&entry),
            entry,
            name,
            context_id,
            owner,
            shared: AtomicI32::new(SHARED_PER_BLOCK as c_int),
            carveout: AtomicI32::new(-1),
            other: Mutex::new(HashMap::new()),
            legacy: Mutex::default(),
        })
    }

    /// Number of its context; `None` for a kernel, which has none.
    pub(crate) fn context_id(&self) -> Option<u64> {
        self.context_id
    }

    /// Shared memory that a launch may ask for.
    pub(crate) fn max_dynamic_shared(&self) -> c_int {
        self.shared.load(Ordering::Relaxed)
    }

    fn attribute(&self, device: usize, attribute: CUfunction_attribute) -> Answer<c_int> {
        let profile = driver()?.devices[device].info.profile;
        let version = (profile.major * 10 + profile.minor) as c_int;
        Ok(match attribute {
            A::CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK => MAX_BLOCK_THREADS as c_int,
            A::CU_FUNC_ATTRIBUTE_NUM_REGS => REGISTERS_PER_THREAD,
            A::CU_FUNC_ATTRIBUTE_PTX_VERSION | A::CU_FUNC_ATTRIBUTE_BINARY_VERSION => version,
            A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => self.max_dynamic_shared(),
            A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                self.carveout.load(Ordering::Relaxed)
            }
            other if other.0 < A::CU_FUNC_ATTRIBUTE_MAX.0 => {
                self.other.lock().get(&other.0).copied().unwrap_or(0)
            }
            _ => return Err(INVALID_VALUE),
        })
    }

    fn set_attribute(
        &self,
        device: usize,
        attribute: CUfunction_attribute,
        value: c_int,
    ) -> Answer {
        let profile = driver()?.devices[device].info.profile;
        match attribute {
            A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES => {
                if !(0..=shared_opt_in(profile) as c_int).contains(&value) {
                    return Err(INVALID_VALUE);
                }
                self.shared.store(value, Ordering::Relaxed);
            }
            A::CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT => {
                if !(-1..=100).contains(&value) {
                    return Err(INVALID_VALUE);
                }
                self.carveout.store(value, Ordering::Relaxed);
            }
            A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH
            | A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT
            | A::CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH
            | A::CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            | A::CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE => {
                self.other.lock().insert(attribute.0, value);
            }
            _ => return Err(INVALID_VALUE),
        }
        Ok(())
    }
}

impl Image {
    /// The kernel of that name; an opaque image has every one, without parameters.
    fn entry(&self, name: &str) -> Option<Entry> {
        let found = self.entries.iter().find(|entry| entry.name == name);
        found.cloned().or_else(|| {
            self.is_opaque.then(|| Entry {
                name: name.to_owned(),
                parameters: Vec::new(),
            })
        })
    }
}

impl Module {
    fn load(
        driver: &Driver,
        context: &Arc<Context>,
        image: Arc<Image>,
        library: Option<Weak<Library>>,
    ) -> Arc<Self> {
        let module = Arc::new(Self {
            context_id: context.id,
            context: Arc::downgrade(context),
            image,
            library,
            functions: Mutex::new(HashMap::new()),
            variables: Mutex::new(HashMap::new()),
        });
        driver.modules.add::<c_void>(Arc::clone(&module));
        module
    }

    fn function(self: &Arc<Self>, driver: &Driver, name: &str) -> Answer<Arc<Function>> {
        let mut functions = self.functions.lock();
        if let Some(function) = functions.get(name) {
            return Ok(Arc::clone(function));
        }
        let entry = self
            .image
            .entry(name)
            .ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let owner = Owner::Module(Arc::downgrade(self));
        let function = Arc::new(Function::new(entry, owner, Some(self.context_id))?);
        driver.functions.add::<c_void>(Arc::clone(&function));
        functions.insert(name.to_owned(), Arc::clone(&function));
        Ok(function)
    }

    fn variable(&self, driver: &Driver, name: &str) -> Answer<Range> {
        let mut variables = self.variables.lock();
        if let Some(range) = variables.get(name) {
            return Ok(*range);
        }
        let mut known = self.image.variables.iter();
        let found = known.find(|variable| variable.name == name);
        let bytes = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?.bytes;
        let context = self.context.upgrade().filter(|context| context.is_alive());
        if context.map(|context| context.id) != Some(state::current()?.id) {
            return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
        }
        let range = allocate_linear(driver, bytes, Kind::Linear, false)?;
        variables.insert(name.to_owned(), range);
        Ok(range)
    }

    /// Gives back what it holds.
    fn close(self: &Arc<Self>, driver: &Driver) -> Answer {
        driver.modules.remove::<c_void>(handle_of(self));
        if let Some(context) = self.context.upgrade().filter(|context| context.is_alive()) {
            context.synchronize(driver)?;
        }
        for (_, function) in self.functions.lock().drain() {
            driver.functions.remove::<c_void>(handle_of(&function));
        }
        for (_, range) in self.variables.lock().drain() {
            if driver.ranges.remove(range.start, |_| true).is_some() {
                driver.link.release(range.device, range.block)?;
            }
        }
        Ok(())
    }
}

impl Library {
    fn kernel(self: &Arc<Self>, driver: &Driver, name: &str) -> Answer<Arc<Function>> {
        let mut kernels = self.kernels.lock();
        if let Some(kernel) = kernels.get(name) {
            return Ok(Arc::clone(kernel));
        }
        let entry = self
            .image
            .entry(name)
            .ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
        let owner = Owner::Library(Arc::downgrade(self));
        let kernel = Arc::new(Function::new(entry, owner, None)?);
        driver.kernels.add::<c_void>(Arc::clone(&kernel));
        kernels.insert(name.to_owned(), Arc::clone(&kernel));
        Ok(kernel)
    }

    /// Its module in the current context, loaded at the first call.
    fn module(self: &Arc<Self>, driver: &Driver) -> Answer<Arc<Module>> {
        let context = state::current()?;
        let mut modules = self.modules.lock();
        let module = modules.entry(context.id).or_insert_with(|| {
            let image = Arc::clone(&self.image);
            Module::load(driver, &context, image, Some(Arc::downgrade(self)))
        });
        Ok(Arc::clone(module))
    }
}

/// Reads the image that the host names by its address.
fn image_at(address: *const c_void) -> Answer<Arc<Image>> {
    if address.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; that an image lies there is the caller's duty by the CUDA contract.
    let image = unsafe { image::read_at(address.cast()) };
    image
        .map(Arc::new)
        .ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)
}

fn image_in(path: *const c_char) -> Answer<Arc<Image>> {
    let bytes = std::fs::read(text(path)?).map_err(|_| CUresult::CUDA_ERROR_FILE_NOT_FOUND)?;
    let image = image::read(&bytes);
    image
        .map(Arc::new)
        .ok_or(CUresult::CUDA_ERROR_INVALID_IMAGE)
}

fn load(out: *mut CUmodule, image: Answer<Arc<Image>>) -> Answer {
    let out = Out::claim(out)?;
    let context = state::current()?;
    let module = Module::load(driver()?, &context, image?, None);
    out.write(handle_of(&module));
    Ok(())
}

fn find_module(handle: CUmodule) -> Answer<Arc<Module>> {
    let found = driver()?.modules.find(handle);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn unload(handle: CUmodule) -> Answer {
    let module = find_module(handle)?;
    if module.library.is_some() {
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    module.close(driver()?)
}

fn function(out: *mut CUfunction, module: CUmodule, name: *const c_char) -> Answer {
    let out = Out::claim(out)?;
    let function = find_module(module)?.function(driver()?, text(name)?)?;
    out.write(handle_of(&function));
    Ok(())
}

fn function_count(out: *mut c_uint, module: CUmodule) -> Answer {
    put(out, find_module(module)?.image.entries.len() as c_uint)
}

/// Writes the first `room` functions of a module.
fn functions(out: *mut CUfunction, room: c_uint, module: CUmodule) -> Answer {
    let (driver, module) = (driver()?, find_module(module)?);
    let entries = module.image.entries.iter().take(room as usize);
    for (index, entry) in entries.enumerate() {
        let function = module.function(driver, &entry.name)?;
        put(out.wrapping_add(index), handle_of(&function))?;
    }
    Ok(())
}

fn put_variable(out: *mut CUdeviceptr, bytes: *mut usize, range: &Range) -> Answer {
    let (out, bytes) = (Out::claim_optional(out)?, Out::claim_optional(bytes)?);
    if let Some(out) = out {
        out.write(range.start);
    }
    if let Some(bytes) = bytes {
        bytes.write(range.bytes as usize);
    }
    Ok(())
}

fn global(
    out: *mut CUdeviceptr,
    bytes: *mut usize,
    module: CUmodule,
    name: *const c_char,
) -> Answer {
    let range = find_module(module)?.variable(driver()?, text(name)?)?;
    put_variable(out, bytes, &range)
}

/// Variables lie above what the first interface can address.
fn global_v1(_: *mut CUdeviceptr_v1, _: *mut c_uint, module: CUmodule, _: *const c_char) -> Answer {
    find_module(module)?;
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

fn loading_mode(out: *mut CUmoduleLoadingMode) -> Answer {
    let is_eager = std::env::var("CUDA_MODULE_LOADING").is_ok_and(|mode| mode == "EAGER");
    put(
        out,
        if is_eager {
            CUmoduleLoadingMode_enum::CU_MODULE_EAGER_LOADING
        } else {
            CUmoduleLoadingMode_enum::CU_MODULE_LAZY_LOADING
        },
    )
}

fn load_library(out: *mut CUlibrary, image: Answer<Arc<Image>>) -> Answer {
    let out = Out::claim(out)?;
    let library = Library {
        image: image?,
        kernels: Mutex::new(HashMap::new()),
        modules: Mutex::new(HashMap::new()),
    };
    out.write(driver()?.libraries.add(Arc::new(library)));
    Ok(())
}

fn find_library(handle: CUlibrary) -> Answer<Arc<Library>> {
    let found = driver()?.libraries.find(handle);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn unload_library(handle: CUlibrary) -> Answer {
    let driver = driver()?;
    let library = find_library(handle)?;
    driver.libraries.remove(handle);
    for (_, kernel) in library.kernels.lock().drain() {
        driver.kernels.remove::<c_void>(handle_of(&kernel));
    }
    let modules: Vec<Arc<Module>> = library
        .modules
        .lock()
        .drain()
        .map(|(_, module)| module)
        .collect();
    modules.iter().try_for_each(|module| module.close(driver))
}

fn library_kernel(out: *mut CUkernel, library: CUlibrary, name: *const c_char) -> Answer {
    let out = Out::claim(out)?;
    let kernel = find_library(library)?.kernel(driver()?, text(name)?)?;
    out.write(handle_of(&kernel));
    Ok(())
}

fn library_kernel_count(out: *mut c_uint, library: CUlibrary) -> Answer {
    put(out, find_library(library)?.image.entries.len() as c_uint)
}

fn library_kernels(out: *mut CUkernel, room: c_uint, library: CUlibrary) -> Answer {
    let (driver, library) = (driver()?, find_library(library)?);
    let entries = library.image.entries.iter().take(room as usize);
    for (index, entry) in entries.enumerate() {
        let kernel = library.kernel(driver, &entry.name)?;
        put(out.wrapping_add(index), handle_of(&kernel))?;
    }
    Ok(())
}

fn library_module(out: *mut CUmodule, library: CUlibrary) -> Answer {
    let out = Out::claim(out)?;
    let module = find_library(library)?.module(driver()?)?;
    out.write(handle_of(&module));
    Ok(())
}

fn library_global(
    out: *mut CUdeviceptr,
    bytes: *mut usize,
    library: CUlibrary,
    name: *const c_char,
) -> Answer {
    let driver = driver()?;
    let module = find_library(library)?.module(driver)?;
    put_variable(out, bytes, &module.variable(driver, text(name)?)?)
}

fn find_kernel(handle: CUkernel) -> Answer<Arc<Function>> {
    let found = driver()?.kernels.find(handle);
    found.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

/// The function, or the kernel that was handed over in the place of one.
///
/// # Errors
/// `CUDA_ERROR_INVALID_HANDLE`.
pub(crate) fn find_function(driver: &Driver, handle: CUfunction) -> Answer<Arc<Function>> {
    driver
        .functions
        .find(handle)
        .or_else(|| driver.kernels.find(handle))
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)
}

fn kernel_function(out: *mut CUfunction, kernel: CUkernel) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let kernel = find_kernel(kernel)?;
    let Owner::Library(library) = &kernel.owner else {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    };
    let library = library
        .upgrade()
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let function = library
        .module(driver)?
        .function(driver, &kernel.entry.name)?;
    out.write(handle_of(&function));
    Ok(())
}

fn kernel_library(out: *mut CUlibrary, kernel: CUkernel) -> Answer {
    let kernel = find_kernel(kernel)?;
    let Owner::Library(library) = &kernel.owner else {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    };
    let library = library
        .upgrade()
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    put(out, handle_of(&library))
}

fn kernel_attribute(
    out: *mut c_int,
    attribute: CUfunction_attribute,
    kernel: CUkernel,
    ordinal: CUdevice,
) -> Answer {
    let device = driver()?.device(ordinal)?.info.index;
    put(out, find_kernel(kernel)?.attribute(device, attribute)?)
}

fn set_kernel_attribute(
    attribute: CUfunction_attribute,
    value: c_int,
    kernel: CUkernel,
    ordinal: CUdevice,
) -> Answer {
    let device = driver()?.device(ordinal)?.info.index;
    find_kernel(kernel)?.set_attribute(device, attribute, value)
}

fn put_name(out: *mut *const c_char, function: &Function) -> Answer {
    put(out, function.name.as_ptr())
}

fn put_parameter(
    function: &Function,
    index: usize,
    offset: *mut usize,
    bytes: *mut usize,
) -> Answer {
    let parameter = function.entry.parameters.get(index);
    let (at, size) = parameter.copied().ok_or(INVALID_VALUE)?;
    let bytes = Out::claim_optional(bytes)?;
    put(offset, at as usize)?;
    if let Some(bytes) = bytes {
        bytes.write(size as usize);
    }
    Ok(())
}

fn function_attribute(
    out: *mut c_int,
    attribute: CUfunction_attribute,
    function: CUfunction,
) -> Answer {
    let driver = driver()?;
    let function = find_function(driver, function)?;
    put(
        out,
        function.attribute(state::current()?.device, attribute)?,
    )
}

fn set_function_attribute(
    function: CUfunction,
    attribute: CUfunction_attribute,
    value: c_int,
) -> Answer {
    let driver = driver()?;
    let function = find_function(driver, function)?;
    function.set_attribute(state::current()?.device, attribute, value)
}

fn function_module(out: *mut CUmodule, function: CUfunction) -> Answer {
    let function = find_function(driver()?, function)?;
    let Owner::Module(module) = &function.owner else {
        return Err(CUresult::CUDA_ERROR_INVALID_HANDLE);
    };
    let module = module
        .upgrade()
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    put(out, handle_of(&module))
}

fn exists(function: CUfunction) -> Answer {
    find_function(driver()?, function).map(drop)
}

fn set_function_cache(function: CUfunction, _config: CUfunc_cache) -> Answer {
    exists(function)
}

fn set_function_shared(function: CUfunction, _config: CUsharedconfig) -> Answer {
    exists(function)
}

/// Options of a load tell a compiler what to do; there is none.
type Options = *mut CUjit_option;

driver! {
    cuModuleLoad(module: *mut CUmodule, fname: *const c_char) => |out, path| load(out, image_in(path));
    cuModuleLoadData(module: *mut CUmodule, image: *const c_void) => |out, image| load(out, image_at(image));
    cuModuleLoadDataEx(module: *mut CUmodule, image: *const c_void, num_options: c_uint, options: *mut CUjit_option, option_values: *mut *mut c_void) => |out, image, _, _: Options, _| load(out, image_at(image));
    cuModuleLoadFatBinary(module: *mut CUmodule, fat_cubin: *const c_void) => |out, image| load(out, image_at(image));
    cuModuleUnload(hmod: CUmodule) => unload;
    cuModuleGetLoadingMode(mode: *mut CUmoduleLoadingMode) => loading_mode;
    cuModuleGetFunction(hfunc: *mut CUfunction, hmod: CUmodule, name: *const c_char) => function;
    cuModuleGetFunctionCount(count: *mut c_uint, module: CUmodule) => function_count;
    cuModuleEnumerateFunctions(out: *mut CUfunction, num_functions: c_uint, module: CUmodule) => functions;
    cuModuleGetGlobal(dptr: *mut CUdeviceptr_v1, bytes: *mut c_uint, hmod: CUmodule, name: *const c_char) => global_v1;
    cuModuleGetGlobal_v2(dptr: *mut CUdeviceptr, bytes: *mut usize, hmod: CUmodule, name: *const c_char) => global;
    cuLibraryLoadData(library: *mut CUlibrary, code: *const c_void, jit_options: *mut CUjit_option, jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void, num_library_options: c_uint) => |out, image, _: Options, _, _, _: *mut CUlibraryOption, _, _| load_library(out, image_at(image));
    cuLibraryLoadFromFile(library: *mut CUlibrary, file_name: *const c_char, jit_options: *mut CUjit_option, jit_options_values: *mut *mut c_void, num_jit_options: c_uint, library_options: *mut CUlibraryOption, library_option_values: *mut *mut c_void, num_library_options: c_uint) => |out, path, _: Options, _, _, _: *mut CUlibraryOption, _, _| load_library(out, image_in(path));
    cuLibraryUnload(library: CUlibrary) => unload_library;
    cuLibraryGetKernel(p_kernel: *mut CUkernel, library: CUlibrary, name: *const c_char) => library_kernel;
    cuLibraryGetKernelCount(count: *mut c_uint, lib: CUlibrary) => library_kernel_count;
    cuLibraryEnumerateKernels(kernels: *mut CUkernel, num_kernels: c_uint, lib: CUlibrary) => library_kernels;
    cuLibraryGetModule(p_mod: *mut CUmodule, library: CUlibrary) => library_module;
    cuLibraryGetGlobal(dptr: *mut CUdeviceptr, bytes: *mut usize, library: CUlibrary, name: *const c_char) => library_global;
    cuKernelGetFunction(p_func: *mut CUfunction, kernel: CUkernel) => kernel_function;
    cuKernelGetLibrary(p_lib: *mut CUlibrary, kernel: CUkernel) => kernel_library;
    cuKernelGetAttribute(pi: *mut c_int, attrib: CUfunction_attribute, kernel: CUkernel, dev: CUdevice) => kernel_attribute;
    cuKernelSetAttribute(attrib: CUfunction_attribute, val: c_int, kernel: CUkernel, dev: CUdevice) => set_kernel_attribute;
    cuKernelSetCacheConfig(kernel: CUkernel, config: CUfunc_cache, dev: CUdevice) => |kernel, _, _| find_kernel(kernel).map(drop);
    cuKernelGetName(name: *mut *const c_char, hfunc: CUkernel) => |out, kernel| put_name(out, &*find_kernel(kernel)?);
    cuKernelGetParamInfo(kernel: CUkernel, param_index: usize, param_offset: *mut usize, param_size: *mut usize) => |kernel, index, offset, bytes| put_parameter(&*find_kernel(kernel)?, index, offset, bytes);
    cuFuncGetAttribute(pi: *mut c_int, attrib: CUfunction_attribute, hfunc: CUfunction) => function_attribute;
    cuFuncSetAttribute(hfunc: CUfunction, attrib: CUfunction_attribute, value: c_int) => set_function_attribute;
    cuFuncGetModule(hmod: *mut CUmodule, hfunc: CUfunction) => function_module;
    cuFuncGetName(name: *mut *const c_char, hfunc: CUfunction) => |out, function| put_name(out, &*find_function(driver()?, function)?);
    cuFuncGetParamCount(func: CUfunction, param_count: *mut usize) => |function, out| put(out, find_function(driver()?, function)?.entry.parameters.len());
    cuKernelGetParamCount(kernel: CUkernel, param_count: *mut usize) => |kernel, out| put(out, find_kernel(kernel)?.entry.parameters.len());
    cuFuncGetParamInfo(func: CUfunction, param_index: usize, param_offset: *mut usize, param_size: *mut usize) => |function, index, offset, bytes| put_parameter(&*find_function(driver()?, function)?, index, offset, bytes);
    cuFuncSetCacheConfig(hfunc: CUfunction, config: CUfunc_cache) => set_function_cache;
    cuFuncSetSharedMemConfig(hfunc: CUfunction, config: CUsharedconfig) => set_function_shared;
    cuFuncIsLoaded(state: *mut CUfunctionLoadingState, function: CUfunction) => |out, function| {
        exists(function)?;
        put(out, ffi::driver::CUfunctionLoadingState_enum::CU_FUNCTION_LOADING_STATE_LOADED)
    };
    cuFuncLoad(function: CUfunction) => exists;
}
