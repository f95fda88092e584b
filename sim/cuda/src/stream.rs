//! Streams.
//!
//! A *lane* is a stream as the device knows it: a number and a counter. Every context has a lane for
//! its legacy default stream, one for each thread that uses the per-thread default stream, and one
//! for each stream that the host makes. The order that the legacy stream demands (it waits for every
//! blocking stream, and each of them for it) becomes waits between lanes, put in front of the
//! operation that needs them. What a stream that is being captured gets becomes nodes of a graph, see
//! [`crate::capture`].

use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use ffi::driver::{
    CUcontext, CUdevice, CUevent, CUgreenCtx, CUhostFn, CUresult, CUstream, CUstreamCallback,
};
use parking_lot::Mutex;
use sim::proto::{Command, MAX_STREAMS};

use crate::capture;
use crate::context::Context;
use crate::deferred::HostCall;
use crate::event::{Event, Latest};
use crate::graph::Work;
use crate::guard::{Answer, INVALID_VALUE, put};
use crate::registry::handle_of;
use crate::state::{self, Driver, driver};
use crate::stream_attributes::Attributes;

/// `CU_STREAM_LEGACY`, as a handle.
const LEGACY: usize = 1;
/// `CU_STREAM_PER_THREAD`, as a handle.
const PER_THREAD: usize = 2;
/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: c_uint = 1;
/// Range of priorities: greatest first, as the API spells it.
pub(crate) const GREATEST_PRIORITY: c_int = -5;

/// Which default stream the handle 0 means.
pub(crate) trait Flavour {
    /// Whether it is the thread's own.
    const IS_PER_THREAD: bool;
}

/// Functions without suffix.
pub(crate) struct Plain;

/// Functions with `_ptds` or `_ptsz`.
pub(crate) struct PerThread;

impl Flavour for Plain {
    const IS_PER_THREAD: bool = false;
}

impl Flavour for PerThread {
    const IS_PER_THREAD: bool = true;
}

/// A stream as the device knows it.
#[derive(Debug)]
pub(crate) struct Lane {
    /// Its number there.
    pub(crate) slot: u32,
    /// Its last operation that was submitted.
    pub(crate) last: AtomicU64,
}

impl Lane {
    /// Its last operation that was submitted.
    pub(crate) fn last(&self) -> u64 {
        self.last.load(Ordering::Acquire)
    }

    fn is_idle(&self, driver: &Driver) -> bool {
        driver.link.done(self.slot) >= self.last()
    }
}

/// Numbers for lanes; one is used again when all its operations are done.
pub(crate) struct Lanes(Mutex<LaneNumbers>);

struct LaneNumbers {
    retired: Vec<Arc<Lane>>,
    next: u32,
}

impl Lanes {
    /// None yet.
    pub(crate) fn new() -> Self {
        Self(Mutex::new(LaneNumbers {
            retired: Vec::new(),
            next: 0,
        }))
    }

    /// A lane in `context`, opened at the device.
    pub(crate) fn open(&self, driver: &Driver, context: u64, priority: i32) -> Answer<Arc<Lane>> {
        let lane = {
            let mut numbers = self.0.lock();
            let idle = numbers.retired.iter().position(|lane| lane.is_idle(driver));
            if let Some(at) = idle {
                numbers.retired.swap_remove(at)
            } else if (numbers.next as usize) < MAX_STREAMS {
                let slot = numbers.next;
                numbers.next += 1;
                Arc::new(Lane {
                    slot,
                    last: AtomicU64::new(0),
                })
            } else {
                return Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY);
            }
        };
        driver
            .link
            .open_stream(lane.slot, &lane.last, context, priority)?;
        Ok(lane)
    }

    /// Takes a lane back that nobody will submit to any more.
    pub(crate) fn retire(&self, lane: Arc<Lane>) {
        self.0.lock().retired.push(lane);
    }
}

/// How a stream stands to the legacy default stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// It is it.
    Legacy,
    /// It is ordered with it.
    Blocking,
    /// It is not.
    NonBlocking,
}

/// A stream as the host knows it.
pub(crate) struct Stream {
    /// As the device knows it.
    pub(crate) lane: Arc<Lane>,
    /// Its context.
    pub(crate) context: Weak<Context>,
    /// Number of its context.
    pub(crate) context_id: u64,
    /// Its device.
    device: usize,
    /// How it stands to the legacy default stream.
    pub(crate) role: Role,
    /// Its part in a capture.
    pub(crate) capture: capture::Slot,
    /// What the host has set of it.
    pub(crate) attributes: Attributes,
    priority: c_int,
    id: u64,
    /// The last operation of the legacy stream that this one has been made to wait for.
    waited: AtomicU64,
}

impl Stream {
    /// A stream on a new lane.
    pub(crate) fn new(
        driver: &Driver,
        context: &Weak<Context>,
        owner: &Context,
        role: Role,
        priority: c_int,
    ) -> Answer<Self> {
        Ok(Self {
            lane: driver.lanes.open(driver, owner.id, priority)?,
            context: context.clone(),
            context_id: owner.id,
            device: owner.device,
            role,
            capture: capture::Slot::default(),
            attributes: Attributes::default(),
            priority,
            id: driver.number(),
            waited: AtomicU64::new(0),
        })
    }

    /// Its priority, lower goes first.
    pub(crate) fn priority(&self) -> c_int {
        self.priority
    }

    /// Its context.
    ///
    /// # Errors
    /// `CUDA_ERROR_CONTEXT_IS_DESTROYED`.
    pub(crate) fn context(&self) -> Answer<Arc<Context>> {
        self.context
            .upgrade()
            .filter(|context| context.is_alive())
            .ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Whether what is submitted becomes nodes of a graph.
    pub(crate) fn is_capturing(&self) -> bool {
        self.capture.is_capturing()
    }

    /// Submits one operation, behind the waits that the legacy stream demands.
    ///
    /// # Errors
    /// 906 for the legacy stream while a stream that is ordered with it captures.
    pub(crate) fn submit(&self, driver: &Driver, command: Command) -> Answer<u64> {
        if self.role == Role::Legacy {
            capture::check_legacy(self.context_id)?;
        }
        let waits = match self.role {
            Role::NonBlocking => Vec::new(),
            Role::Blocking => self.wait_for_legacy(driver)?,
            Role::Legacy => self.waits_for_blocking(driver)?,
        };
        if waits.is_empty() {
            return driver
                .link
                .submit(self.lane.slot, &self.lane.last, &[command]);
        }
        let mut commands = waits;
        commands.push(command);
        driver
            .link
            .submit(self.lane.slot, &self.lane.last, &commands)
    }

    fn wait_for_legacy(&self, driver: &Driver) -> Answer<Vec<Command>> {
        let context = self.context()?;
        let Some(legacy) = context.legacy_lane() else {
            return Ok(Vec::new());
        };
        let last = legacy.last();
        if self.waited.load(Ordering::Relaxed) >= last || driver.link.done(legacy.slot) >= last {
            return Ok(Vec::new());
        }
        self.waited.store(last, Ordering::Relaxed);
        Ok(vec![Command::Wait {
            on: legacy.slot,
            sequence: last,
        }])
    }

    fn waits_for_blocking(&self, driver: &Driver) -> Answer<Vec<Command>> {
        let lanes = self.context()?.blocking_lanes();
        let busy = lanes.iter().filter(|lane| !lane.is_idle(driver));
        Ok(busy
            .map(|lane| Command::Wait {
                on: lane.slot,
                sequence: lane.last(),
            })
            .collect())
    }

    /// The lanes and operations that are to be done when everything submitted so far is.
    fn targets(&self) -> Answer<Vec<(u32, u64)>> {
        let mut targets = vec![(self.lane.slot, self.lane.last())];
        if self.role == Role::Legacy {
            let lanes = self.context()?.blocking_lanes();
            targets.extend(lanes.iter().map(|lane| (lane.slot, lane.last())));
        }
        Ok(targets)
    }

    /// Sleeps until everything submitted so far is done.
    pub(crate) fn synchronize(&self, driver: &Driver) -> Answer {
        self.check_waitable()?;
        for (slot, sequence) in self.targets()? {
            driver.link.wait(slot, sequence)?;
        }
        driver.settle();
        driver.link.check(self.device)
    }

    /// Whether it may be waited for: not while it captures, nor while another does that it is ordered with.
    fn check_waitable(&self) -> Answer {
        if self.is_capturing() {
            return Err(capture::refuse(self));
        }
        if self.role == Role::Legacy {
            capture::check_legacy(self.context_id)?;
        }
        Ok(())
    }

    fn query(&self, driver: &Driver) -> Answer {
        self.check_waitable()?;
        let mut targets = self.targets()?.into_iter();
        if targets.all(|(slot, sequence)| driver.link.done(slot) >= sequence) {
            driver.settle();
            Ok(())
        } else if driver.link.is_alive() {
            Err(CUresult::CUDA_ERROR_NOT_READY)
        } else {
            Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE)
        }
    }
}

/// The stream that a handle means, as flavour `F` reads it.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT` for a default stream without a current context;
/// `CUDA_ERROR_INVALID_HANDLE` for what is no stream; `CUDA_ERROR_LAUNCH_FAILED` if its device is lost.
pub(crate) fn find<F: Flavour>(handle: CUstream) -> Answer<Arc<Stream>> {
    let driver = driver()?;
    match handle as usize {
        0 if F::IS_PER_THREAD => of_thread(driver),
        0 | LEGACY => state::current()?.legacy(driver),
        PER_THREAD => of_thread(driver),
        _ => {
            let stream = driver.streams.find(handle);
            let stream = stream.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
            driver.link.check(stream.device)?;
            Ok(stream)
        }
    }
}

/// As [`find`], for what cannot become a node of a graph.
///
/// # Errors
/// 900 where the stream captures; the capture is then invalid.
pub(crate) fn find_for_now<F: Flavour>(handle: CUstream) -> Answer<Arc<Stream>> {
    let stream = find::<F>(handle)?;
    if stream.is_capturing() {
        return Err(capture::refuse(&stream));
    }
    Ok(stream)
}

thread_local! {
    /// The thread's own default stream in each context, by the context's number.
    static OWN: std::cell::RefCell<HashMap<u64, Arc<Stream>>> =
        std::cell::RefCell::new(HashMap::new());
}

fn of_thread(driver: &Driver) -> Answer<Arc<Stream>> {
    let context = state::current()?;
    if let Some(stream) = OWN.with_borrow(|own| own.get(&context.id).cloned()) {
        return Ok(stream);
    }
    let stream = context.new_stream(driver, Role::Blocking, 0)?;
    OWN.with_borrow_mut(|own| {
        own.retain(|_, stream| stream.context().is_ok());
        own.insert(context.id, Arc::clone(&stream));
    });
    Ok(stream)
}

fn create(out: *mut CUstream, flags: c_uint, priority: c_int) -> Answer {
    if out.is_null() || flags > NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    let driver = driver()?;
    let role = if flags == NON_BLOCKING {
        Role::NonBlocking
    } else {
        Role::Blocking
    };
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let stream = state::current()?.new_stream(driver, role, priority)?;
    put(out, driver.streams.add(stream))
}

fn destroy(handle: CUstream) -> Answer {
    let driver = driver()?;
    let stream = driver
        .streams
        .remove(handle)
        .ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    capture::stream_gone(&stream);
    // Work that was submitted goes on; the lane is used again when it is done.
    stream.submit(driver, Command::Close)?;
    if let Ok(context) = stream.context() {
        context.forget_lane(&stream.lane);
    }
    driver.lanes.retire(Arc::clone(&stream.lane));
    Ok(())
}

fn synchronize<F: Flavour>(handle: CUstream) -> Answer {
    find::<F>(handle)?.synchronize(driver()?)
}

fn query<F: Flavour>(handle: CUstream) -> Answer {
    find::<F>(handle)?.query(driver()?)
}

fn wait_event<F: Flavour>(handle: CUstream, event: CUevent, flags: c_uint) -> Answer {
    if flags > 1 {
        return Err(INVALID_VALUE);
    }
    let driver = driver()?;
    let stream = find::<F>(handle)?;
    let event = crate::event::find(event)?;
    if capture::wait(&stream, event.mark().as_ref())? {
        return Ok(());
    }
    wait_for_event(driver, &stream, &event)
}

/// Has a stream wait for where an event was recorded last.
pub(crate) fn wait_for_event(driver: &'static Driver, stream: &Stream, event: &Event) -> Answer {
    let record = match event.latest(driver) {
        Latest::Over => return Ok(()),
        Latest::Elsewhere(condition) => {
            return crate::watch::submit(driver, stream, condition, Command::Host);
        }
        Latest::Here(record) => record,
    };
    if record.lane.slot == stream.lane.slot {
        return Ok(());
    }
    let wait = Command::Wait {
        on: record.lane.slot,
        sequence: record.sequence,
    };
    stream.submit(driver, wait).map(drop)
}

fn flags<F: Flavour>(handle: CUstream, out: *mut c_uint) -> Answer {
    let stream = find::<F>(handle)?;
    put(out, c_uint::from(stream.role == Role::NonBlocking))
}

fn priority<F: Flavour>(handle: CUstream, out: *mut c_int) -> Answer {
    put(out, find::<F>(handle)?.priority)
}

fn id<F: Flavour>(handle: CUstream, out: *mut c_ulonglong) -> Answer {
    put(out, find::<F>(handle)?.id)
}

fn context<F: Flavour>(handle: CUstream, out: *mut CUcontext) -> Answer {
    let context = find::<F>(handle)?.context()?;
    put(out, handle_of(&context))
}

fn context_v2<F: Flavour>(handle: CUstream, out: *mut CUcontext, green: *mut CUgreenCtx) -> Answer {
    context::<F>(handle, out)?;
    if green.is_null() {
        return Ok(());
    }
    put(green, crate::green::of_stream(driver()?, handle))
}

fn device<F: Flavour>(handle: CUstream, out: *mut CUdevice) -> Answer {
    let context = find::<F>(handle)?.context()?;
    put(out, c_int::try_from(context.device).unwrap_or(c_int::MAX))
}

fn launch_host_function<F: Flavour>(
    handle: CUstream,
    function: CUhostFn,
    argument: *mut c_void,
) -> Answer {
    let function = function.ok_or(INVALID_VALUE)?;
    let stream = find::<F>(handle)?;
    let call = HostCall { function, argument };
    if stream.is_capturing() {
        return capture::add(driver()?, &stream, Work::Host(call));
    }
    submit_call(&stream, call)
}

/// Has a function called when the stream has got there.
pub(crate) fn submit_call(stream: &Stream, call: HostCall) -> Answer {
    let driver = driver()?;
    if matches!(driver.link, crate::link::Link::Null(_)) {
        // SAFETY: the host gave the function to be called once with this argument.
        unsafe { (call.function)(call.argument) };
        return Ok(());
    }
    let deferred = &driver.deferred;
    deferred.submit_call(stream.lane.slot, call, || {
        stream.submit(driver, Command::Host)
    })
}

/// What `cuStreamAddCallback` was given.
struct Callback {
    function: unsafe extern "C" fn(CUstream, CUresult, *mut c_void),
    stream: CUstream,
    argument: *mut c_void,
}

unsafe extern "C" fn run_callback(boxed: *mut c_void) {
    // SAFETY: made by `add_callback` from a box, and handed over once.
    let callback = unsafe { Box::from_raw(boxed.cast::<Callback>()) };
    // SAFETY: the host gave the function to be called once with these arguments.
    unsafe { (callback.function)(callback.stream, CUresult::CUDA_SUCCESS, callback.argument) };
}

fn add_callback<F: Flavour>(
    handle: CUstream,
    function: CUstreamCallback,
    argument: *mut c_void,
    flags: c_uint,
) -> Answer {
    let function = function.filter(|_| flags == 0).ok_or(INVALID_VALUE)?;
    let stream = find::<F>(handle)?;
    if stream.is_capturing() {
        return Err(capture::refuse(&stream));
    }
    let callback = Box::new(Callback {
        function,
        stream: handle,
        argument,
    });
    let call = HostCall {
        function: run_callback,
        argument: Box::into_raw(callback).cast(),
    };
    submit_call(&stream, call)
}

driver! {
    cuStreamCreate(ph_stream: *mut CUstream, flags: c_uint) => |out, flags| create(out, flags, 0);
    cuStreamCreateWithPriority(ph_stream: *mut CUstream, flags: c_uint, priority: c_int) => create;
    cuStreamDestroy(h_stream: CUstream) => destroy;
    cuStreamDestroy_v2(h_stream: CUstream) => destroy;
    cuStreamSynchronize(h_stream: CUstream) => synchronize::<Plain>;
    cuStreamSynchronize_ptsz(h_stream: CUstream) => synchronize::<PerThread>;
    cuStreamQuery(h_stream: CUstream) => query::<Plain>;
    cuStreamQuery_ptsz(h_stream: CUstream) => query::<PerThread>;
    cuStreamWaitEvent(h_stream: CUstream, h_event: CUevent, flags: c_uint) => wait_event::<Plain>;
    cuStreamWaitEvent_ptsz(h_stream: CUstream, h_event: CUevent, flags: c_uint) => wait_event::<PerThread>;
    cuStreamGetFlags(h_stream: CUstream, out: *mut c_uint) => flags::<Plain>;
    cuStreamGetFlags_ptsz(h_stream: CUstream, out: *mut c_uint) => flags::<PerThread>;
    cuStreamGetPriority(h_stream: CUstream, out: *mut c_int) => priority::<Plain>;
    cuStreamGetPriority_ptsz(h_stream: CUstream, out: *mut c_int) => priority::<PerThread>;
    cuStreamGetId(h_stream: CUstream, stream_id: *mut c_ulonglong) => id::<Plain>;
    cuStreamGetId_ptsz(h_stream: CUstream, stream_id: *mut c_ulonglong) => id::<PerThread>;
    cuStreamGetCtx(h_stream: CUstream, pctx: *mut CUcontext) => context::<Plain>;
    cuStreamGetCtx_ptsz(h_stream: CUstream, pctx: *mut CUcontext) => context::<PerThread>;
    cuStreamGetCtx_v2(h_stream: CUstream, p_ctx: *mut CUcontext, p_green_ctx: *mut CUgreenCtx) => context_v2::<Plain>;
    cuStreamGetCtx_v2_ptsz(h_stream: CUstream, p_ctx: *mut CUcontext, p_green_ctx: *mut CUgreenCtx) => context_v2::<PerThread>;
    cuStreamGetDevice(h_stream: CUstream, out: *mut CUdevice) => device::<Plain>;
    cuStreamGetDevice_ptsz(h_stream: CUstream, out: *mut CUdevice) => device::<PerThread>;
    cuStreamAddCallback(h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint) => add_callback::<Plain>;
    cuStreamAddCallback_ptsz(h_stream: CUstream, callback: CUstreamCallback, user_data: *mut c_void, flags: c_uint) => add_callback::<PerThread>;
    cuLaunchHostFunc(h_stream: CUstream, function: CUhostFn, user_data: *mut c_void) => launch_host_function::<Plain>;
    cuLaunchHostFunc_ptsz(h_stream: CUstream, function: CUhostFn, user_data: *mut c_void) => launch_host_function::<PerThread>;
}
