//! The two ways to the driver: directly, and through the shim.

use crate::libraries::Libraries;
use anyhow::{Context, Result, bail};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr;

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Retain = unsafe extern "C" fn(*mut *mut c_void, c_int) -> c_int;
type SetCurrent = unsafe extern "C" fn(*mut c_void) -> c_int;
type Allocate = unsafe extern "C" fn(*mut u64, usize) -> c_int;
type Free = unsafe extern "C" fn(u64) -> c_int;

type Finish = unsafe extern "C" fn() -> c_int;
type Load = unsafe extern "C" fn(*mut *mut c_void, *const c_void) -> c_int;
type Find = unsafe extern "C" fn(*mut *mut c_void, *mut c_void, *const c_char) -> c_int;
type Copy = unsafe extern "C" fn(u64, *const c_void, usize, *mut c_void) -> c_int;
type Launch = unsafe extern "C" fn(
    *mut c_void,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_void,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// One way to the driver's functions.
pub(crate) struct Way {
    library: Library,
    allocate: Allocate,
    free: Free,
    copy: Copy,
    launch: Launch,
}

impl Way {
    /// The driver itself, by its path.
    pub(crate) fn plain() -> Result<Self> {
        Self::open(
            Libraries::find()?
                .stand_in()
                .join("libcuda.so.1")
                .into_os_string(),
        )
    }

    /// Whatever answers to the driver's name: the shim, in a program that is preloaded with it.
    pub(crate) fn sluice() -> Result<Self> {
        Self::open("libcuda.so.1".into())
    }

    fn open(path: std::ffi::OsString) -> Result<Self> {
        // SAFETY: the stand-in and the shim have no constructors.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) }
            .with_context(|| format!("cannot open {}", path.display()))?;
        let allocate = function(&library, "cuMemAlloc_v2")?;
        let free = function(&library, "cuMemFree_v2")?;
        let copy = function(&library, "cuMemcpyHtoDAsync_v2")?;
        let launch = function(&library, "cuLaunchKernel")?;
        Ok(Self {
            library,
            allocate,
            free,
            copy,
            launch,
        })
    }

    /// Initialises the driver and makes a context of its first device current.
    pub(crate) fn prepare(&self) -> Result<()> {
        let init: Init = function(&self.library, "cuInit")?;
        // SAFETY: no pointers.
        must("cuInit", unsafe { init(0) })?;
        let mut context = ptr::null_mut();
        let retain: Retain = function(&self.library, "cuDevicePrimaryCtxRetain")?;
        // SAFETY: a place for one handle.
        let retained = unsafe { retain(&mut context, 0) };
        must("cuDevicePrimaryCtxRetain", retained)?;
        let set_current: SetCurrent = function(&self.library, "cuCtxSetCurrent")?;
        // SAFETY: retained above.
        must("cuCtxSetCurrent", unsafe { set_current(context) })
    }

    /// Loads the kernel whose running time its caller chooses; it is for both ways.
    pub(crate) fn kernel(&self) -> Result<Kernel> {
        let load: Load = function(&self.library, "cuModuleLoadData")?;
        let find: Find = function(&self.library, "cuModuleGetFunction")?;
        let image = CString::new(sim::kernels::SPIN_PTX)?;
        let name = CString::new(sim::kernels::SPIN_PREFIX)?;
        let (mut module, mut kernel) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: a place for one handle, and PTX that ends with a zero byte.
        let loaded = unsafe { load(&mut module, image.as_ptr().cast()) };
        must("cuModuleLoadData", loaded)?;
        // SAFETY: a place for one handle, a module of a moment ago, and a C string.
        let found = unsafe { find(&mut kernel, module, name.as_ptr()) };
        must("cuModuleGetFunction", found)?;
        Ok(Kernel(kernel))
    }

    /// Launches it on the default stream, in so many blocks.
    pub(crate) fn launch(
        &self,
        kernel: &Kernel,
        blocks: c_uint,
        mut nanoseconds: u64,
    ) -> Result<()> {
        let mut parameters = [(&raw mut nanoseconds).cast::<c_void>()];
        // SAFETY: the kernel takes one u64, which the driver copies before the call returns.
        let launched = unsafe {
            (self.launch)(
                kernel.0,
                blocks,
                1,
                1,
                1,
                1,
                1,
                0,
                ptr::null_mut(),
                parameters.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        must("cuLaunchKernel", launched)
    }

    /// Copies `from` to the device, on the default stream; to memory that is as large.
    pub(crate) fn copy(&self, to: u64, from: &[u8]) -> Result<()> {
        let (place, bytes) = (from.as_ptr().cast(), from.len());
        // SAFETY: memory of this program, which the driver has read when the call returns: it is pageable.
        let copied = unsafe { (self.copy)(to, place, bytes, ptr::null_mut()) };
        must("cuMemcpyHtoDAsync", copied)
    }

    /// Waits until everything has run.
    pub(crate) fn finish(&self) -> Result<()> {
        let finish: Finish = function(&self.library, "cuCtxSynchronize")?;
        // SAFETY: no pointers.
        must("cuCtxSynchronize", unsafe { finish() })
    }

    /// Allocates.
    pub(crate) fn allocate(&self, bytes: usize) -> Result<u64> {
        let mut pointer = 0;
        // SAFETY: a place for one address.
        must("cuMemAlloc", unsafe {
            (self.allocate)(&mut pointer, bytes)
        })?;
        Ok(pointer)
    }

    /// Frees.
    pub(crate) fn free(&self, pointer: u64) -> Result<()> {
        // SAFETY: an address is no pointer of this program; what is none is the driver's to refuse.
        must("cuMemFree", unsafe { (self.free)(pointer) })
    }
}

/// A kernel that is loaded.
pub(crate) struct Kernel(*mut c_void);

/// The function `name`, whose type the caller knows.
fn function<T: std::marker::Copy>(library: &Library, name: &str) -> Result<T> {
    // SAFETY: the types above are the header's.
    let found = unsafe { library.get::<T>(name.as_bytes()) };
    Ok(*found.with_context(|| format!("no {name}"))?)
}

fn must(what: &str, code: c_int) -> Result<()> {
    if code != 0 {
        bail!("{what} answers {code}");
    }
    Ok(())
}
