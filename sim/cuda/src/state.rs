//! What the process holds between two calls.

use std::cell::RefCell;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use ffi::driver::CUresult;
use parking_lot::Mutex;
use sim::shared::Mapping;

use crate::array::{Array, Mipmap};
use crate::context::{Context, Primary};
use crate::deferred::Deferred;
use crate::event::Event;
use crate::graph::{Exec, Graph, Node};
use crate::green::{Description, Green};
use crate::guard::Answer;
use crate::link::Link;
use crate::linker::Linker;
use crate::module::{Function, Library, Module};
use crate::pool::Pool;
use crate::ranges::{Ranges, Reservation};
use crate::registry::Registry;
use crate::sharing::External;
use crate::stream::{Lanes, Stream};
use crate::user_object::UserObject;
use crate::vmm::Physical;
use crate::watch::Watches;

const NEW: u8 = 0;
const READY: u8 = 1;
const FORKED: u8 = 2;

/// How far the library has come. Release and Acquire, around [`DRIVER`].
static STAGE: AtomicU8 = AtomicU8::new(NEW);
static DRIVER: OnceLock<Driver> = OnceLock::new();
/// Held while `cuInit` works, so that a second thread waits for the first.
static INITIALISING: Mutex<()> = Mutex::new(());

thread_local! {
    /// The thread's stack of contexts, the current one last.
    static CONTEXTS: RefCell<Vec<Arc<Context>>> = const { RefCell::new(Vec::new()) };
}

/// A device and what the process has there.
pub(crate) struct Device {
    /// What is known about it.
    pub(crate) info: sim::client::Device,
    /// Its memory as this process sees it.
    window: OnceLock<Window>,
    mapping: Mutex<()>,
    /// Its primary context.
    pub(crate) primary: Mutex<Primary>,
    /// The pool that it came with.
    pub(crate) default_pool: OnceLock<Arc<Pool>>,
    /// The pool that allocations without a pool come from; `None`: the default pool.
    pub(crate) current_pool: Mutex<Option<Arc<Pool>>>,
}

/// Addresses for a device's memory, and the mapping through which the library moves its bytes.
///
/// The two are apart on purpose: the addresses that the host is given are not accessible to it, as on
/// a real device.
pub(crate) struct Window {
    /// Reserved addresses, as many as the device's file has bytes.
    pub(crate) reservation: Reservation,
    /// The bytes.
    pub(crate) mapping: Mapping,
    /// The file behind them.
    pub(crate) file: std::os::fd::OwnedFd,
}

/// Everything.
pub(crate) struct Driver {
    /// The device behind.
    pub(crate) link: Link,
    /// The CUDA version that is stood in for.
    pub(crate) version: u32,
    /// The devices.
    pub(crate) devices: Vec<Device>,
    /// What lies at which address.
    pub(crate) ranges: Ranges,
    /// Streams as the device knows them.
    pub(crate) lanes: Lanes,
    /// What is to be done when the device has got there.
    pub(crate) deferred: Arc<Deferred>,
    /// What streams wait for in memory.
    pub(crate) watches: Arc<Watches>,
    /// Contexts.
    pub(crate) contexts: Registry<Context>,
    /// Streams that the host has made.
    pub(crate) streams: Registry<Stream>,
    /// Events.
    pub(crate) events: Registry<Event>,
    /// Graphs.
    pub(crate) graphs: Registry<Graph>,
    /// Nodes of graphs.
    pub(crate) graph_nodes: Registry<Node>,
    /// Executable graphs.
    pub(crate) graph_execs: Registry<Exec>,
    /// What graphs hold of the program's.
    pub(crate) user_objects: Registry<UserObject>,
    /// Green contexts.
    pub(crate) greens: Registry<Green>,
    /// What green contexts are to be made of.
    pub(crate) green_descriptions: Registry<Description>,
    /// Modules.
    pub(crate) modules: Registry<Module>,
    /// Functions of modules.
    pub(crate) functions: Registry<Function>,
    /// Libraries.
    pub(crate) libraries: Registry<Library>,
    /// Kernels of libraries.
    pub(crate) kernels: Registry<Function>,
    /// Pools.
    pub(crate) pools: Registry<Pool>,
    /// Physical memory handles.
    pub(crate) physicals: Registry<Physical>,
    /// Arrays, levels of mipmapped ones among them.
    pub(crate) arrays: Registry<Array>,
    /// Mipmapped arrays.
    pub(crate) mipmaps: Registry<Mipmap>,
    /// Links of device code that go on.
    pub(crate) linkers: Registry<Linker>,
    /// External memory.
    pub(crate) externals: Registry<External>,
    /// The last number given to a context, stream or allocation.
    numbers: AtomicU64,
}

/// Whether `cuInit` has succeeded in this process.
pub(crate) fn is_ready() -> bool {
    STAGE.load(Ordering::Acquire) == READY
}

/// Everything that the process holds.
///
/// # Errors
/// `CUDA_ERROR_NOT_INITIALIZED` before `cuInit`, and in a child of an initialised process.
pub(crate) fn driver() -> Answer<&'static Driver> {
    if !is_ready() {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    DRIVER.get().ok_or(CUresult::CUDA_ERROR_NOT_INITIALIZED)
}

/// Connects to the device and makes everything that calls need; once is enough.
///
/// # Errors
/// `CUDA_ERROR_NO_DEVICE` where there is none; `CUDA_ERROR_NOT_INITIALIZED` in a forked child.
pub(crate) fn initialise() -> Answer {
    let stage = STAGE.load(Ordering::Acquire);
    if stage == FORKED {
        return Err(CUresult::CUDA_ERROR_NOT_INITIALIZED);
    }
    let _one_at_a_time = INITIALISING.lock();
    if is_ready() {
        return Ok(());
    }
    let driver = Driver::new(Link::connect()?);
    let driver = DRIVER.get_or_init(|| driver);
    let worker = crate::deferred::start(&driver.deferred);
    let worker = worker.map_err(|_| CUresult::CUDA_ERROR_OPERATING_SYSTEM)?;
    driver.link.set_worker(worker);
    // SAFETY: the handler is a function of this library that does what a fork handler may.
    let registered = unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
    if registered != 0 {
        return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
    }
    STAGE.store(READY, Ordering::Release);
    sim::faults::on_lost(lose);
    Ok(())
}

/// In a forked child: the device's pages are not mapped and the threads are not there.
extern "C" fn after_fork() {
    STAGE.store(FORKED, Ordering::Release);
}

impl Driver {
    fn new(link: Link) -> Self {
        let devices = link.devices().into_iter().map(Device::new).collect();
        Self {
            version: link.driver_version().cuda,
            link,
            devices,
            ranges: Ranges::new(),
            lanes: Lanes::new(),
            deferred: Arc::new(Deferred::new()),
            watches: Arc::new(Watches::new()),
            contexts: Registry::new(),
            streams: Registry::new(),
            events: Registry::new(),
            graphs: Registry::new(),
            graph_nodes: Registry::new(),
            graph_execs: Registry::new(),
            user_objects: Registry::new(),
            greens: Registry::new(),
            green_descriptions: Registry::new(),
            modules: Registry::new(),
            functions: Registry::new(),
            libraries: Registry::new(),
            kernels: Registry::new(),
            pools: Registry::new(),
            physicals: Registry::new(),
            arrays: Registry::new(),
            mipmaps: Registry::new(),
            linkers: Registry::new(),
            externals: Registry::new(),
            numbers: AtomicU64::new(0),
        }
    }

    /// A number that nothing else has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The device with that ordinal.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE`.
    pub(crate) fn device(&self, ordinal: i32) -> Answer<&Device> {
        usize::try_from(ordinal)
            .ok()
            .and_then(|index| self.devices.get(index))
            .ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)
    }

    /// Sleeps until operation `sequence` of a lane is done and everything that follows from it in
    /// this process has happened.
    pub(crate) fn finish(&self, slot: u32, sequence: u64) -> Answer {
        self.link.wait(slot, sequence)?;
        self.settle();
        match current_or_none() {
            Some(context) => self.link.check(context.device),
            None => Ok(()),
        }
    }

    /// Does what has come due in this process: moves bytes, gives unused pool memory back.
    pub(crate) fn settle(&self) {
        self.deferred.settle(&self.link);
        crate::pool::trim_all(self);
    }
}

impl Device {
    fn new(info: sim::client::Device) -> Self {
        Self {
            info,
            window: OnceLock::new(),
            mapping: Mutex::new(()),
            primary: Mutex::new(Primary::default()),
            default_pool: OnceLock::new(),
            current_pool: Mutex::new(None),
        }
    }

    /// The device's number.
    pub(crate) fn ordinal(&self) -> i32 {
        i32::try_from(self.info.index).unwrap_or(i32::MAX)
    }

    /// The device's memory, mapped at the first call.
    pub(crate) fn window(&self, driver: &Driver) -> Answer<&Window> {
        if let Some(window) = self.window.get() {
            return Ok(window);
        }
        let _one_at_a_time = self.mapping.lock();
        if self.window.get().is_none() {
            let (file, mapping) = driver.link.map_device(self.info.index)?;
            let window =
                Window::new(file, mapping).map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
            driver.ranges.add_window(&window.reservation);
            // Nobody else sets it while we hold the lock.
            let _ = self.window.set(window);
        }
        self.window.get().ok_or(CUresult::CUDA_ERROR_UNKNOWN)
    }
}

impl Window {
    fn new(file: std::os::fd::OwnedFd, mapping: Mapping) -> io::Result<Self> {
        let reservation = Reservation::new(mapping.bytes(), 1 << 21)?;
        Ok(Self {
            reservation,
            mapping,
            file,
        })
    }

    /// Where the bytes at `offset` of the device's file lie in this process.
    pub(crate) fn bytes_at(&self, offset: u64, bytes: u64) -> Answer<*mut u8> {
        self.mapping
            .pointer(offset, bytes)
            .ok_or(CUresult::CUDA_ERROR_UNKNOWN)
    }
}

/// The thread's current context, alive or not.
pub(crate) fn current_or_none() -> Option<Arc<Context>> {
    CONTEXTS.with_borrow(|stack| stack.last().cloned())
}

/// The thread's current context.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` without one; `CUDA_ERROR_CONTEXT_IS_DESTROYED` if it is;
/// `CUDA_ERROR_LAUNCH_FAILED` if its device is lost.
pub(crate) fn current() -> Answer<Arc<Context>> {
    let context = current_or_none().ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    if !context.is_alive() {
        return Err(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED);
    }
    driver()?.link.check(context.device)?;
    Ok(context)
}

/// The device of the thread's context, or the first one, falls off the bus.
fn lose() {
    if let Ok(driver) = driver() {
        let device = current_or_none().map_or(0, |context| context.device);
        driver.link.lose(device);
    }
}

/// Changes the thread's stack of contexts.
pub(crate) fn with_stack<T>(change: impl FnOnce(&mut Vec<Arc<Context>>) -> T) -> T {
    CONTEXTS.with_borrow_mut(change)
}
