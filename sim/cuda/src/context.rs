//! Primary and ordinary contexts, and each thread's stack of them.
//!
//! Contexts take no device memory but what the `gpu` process charges for one. Limits and
//! configurations are kept and answered; they change nothing.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use ffi::driver::{
    CUcontext, CUctxCreateParams, CUdevice, CUexecAffinityParam, CUfunc_cache, CUlimit, CUresult,
    CUsharedconfig,
};
use parking_lot::Mutex;

use crate::capture;
use crate::guard::{Answer, INVALID_VALUE, Out, put};
use crate::limits::Limits;
use crate::peers::Peers;
use crate::ranges::Kind;
use crate::registry::handle_of;
use crate::state::{self, Driver, driver};
use crate::stream::{GREATEST_PRIORITY, Lane, Role, Stream};

/// What `cuCtxGetApiVersion` answers: the version of the context interface, not of CUDA.
const API_VERSION: c_uint = 3020;

/// Flags that a context may have.
const KNOWN_FLAGS: c_uint = 0x1ff;

/// A context.
pub(crate) struct Context {
    /// Its number at the device.
    pub(crate) id: u64,
    /// Its device.
    pub(crate) device: usize,
    flags: AtomicU32,
    is_primary: bool,
    is_alive: AtomicBool,
    /// How often it was attached to: so many detachments do not end it.
    attached: AtomicU32,
    own: Weak<Self>,
    legacy: OnceLock<Arc<Stream>>,
    opening: Mutex<()>,
    lanes: Mutex<Vec<(Role, Arc<Lane>)>>,
    limits: Mutex<Limits>,
    /// Whose memory it has access to.
    pub(crate) peers: Peers,
    cache: AtomicU32,
    shared: AtomicU32,
}

/// A device's primary context.
#[derive(Default)]
pub(crate) struct Primary {
    context: Option<Arc<Context>>,
    retained: u32,
    flags: c_uint,
}

impl Context {
    fn open(
        driver: &Driver,
        ordinal: CUdevice,
        flags: c_uint,
        is_primary: bool,
    ) -> Answer<Arc<Self>> {
        let device = driver.device(ordinal)?;
        // Mapped here, so that running out of addresses is an error of this call.
        device.window(driver)?;
        let id = driver.link.open_context(device.info.index)?;
        let context = Arc::new_cyclic(|own| Self {
            id,
            device: device.info.index,
            flags: AtomicU32::new(flags),
            is_primary,
            is_alive: AtomicBool::new(true),
            attached: AtomicU32::new(0),
            own: Weak::clone(own),
            legacy: OnceLock::new(),
            opening: Mutex::new(()),
            lanes: Mutex::new(Vec::new()),
            limits: Mutex::default(),
            peers: Peers::default(),
            cache: AtomicU32::new(0),
            shared: AtomicU32::new(0),
        });
        driver.contexts.add::<c_void>(Arc::clone(&context));
        Ok(context)
    }

    /// Whether it has not been destroyed.
    pub(crate) fn is_alive(&self) -> bool {
        self.is_alive.load(Ordering::Acquire)
    }

    /// Its legacy default stream.
    pub(crate) fn legacy(&self, driver: &Driver) -> Answer<Arc<Stream>> {
        if let Some(stream) = self.legacy.get() {
            return Ok(Arc::clone(stream));
        }
        let _one_at_a_time = self.opening.lock();
        if self.legacy.get().is_none() {
            let stream = self.new_stream(driver, Role::Legacy, 0)?;
            // Nobody else sets it while we hold the lock.
            let _ = self.legacy.set(stream);
        }
        self.legacy
            .get()
            .cloned()
            .ok_or(CUresult::CUDA_ERROR_UNKNOWN)
    }

    /// The lane of its legacy default stream, if that has been used.
    pub(crate) fn legacy_lane(&self) -> Option<&Arc<Lane>> {
        self.legacy.get().map(|stream| &stream.lane)
    }

    /// The lanes that the legacy stream waits for.
    pub(crate) fn blocking_lanes(&self) -> Vec<Arc<Lane>> {
        let lanes = self.lanes.lock();
        let blocking = lanes.iter().filter(|(role, _)| *role == Role::Blocking);
        blocking.map(|(_, lane)| Arc::clone(lane)).collect()
    }

    /// Makes a stream.
    pub(crate) fn new_stream(
        &self,
        driver: &Driver,
        role: Role,
        priority: c_int,
    ) -> Answer<Arc<Stream>> {
        let stream = Stream::new(driver, &self.own, self, role, priority)?;
        self.lanes.lock().push((role, Arc::clone(&stream.lane)));
        Ok(Arc::new(stream))
    }

    /// Forgets a lane that has been closed.
    pub(crate) fn forget_lane(&self, lane: &Arc<Lane>) {
        self.lanes
            .lock()
            .retain(|(_, known)| !Arc::ptr_eq(known, lane));
    }

    /// Sleeps until everything submitted so far is done.
    pub(crate) fn synchronize(&self, driver: &Driver) -> Answer {
        let lanes: Vec<Arc<Lane>> = {
            let lanes = self.lanes.lock();
            lanes.iter().map(|(_, lane)| Arc::clone(lane)).collect()
        };
        for lane in lanes {
            driver.link.wait(lane.slot, lane.last())?;
        }
        driver.settle();
        driver.link.check(self.device)
    }

    /// Destroys it with everything that belongs to it.
    fn close(self: &Arc<Self>, driver: &Driver) -> Answer {
        driver.contexts.remove::<c_void>(handle_of(self));
        self.is_alive.store(false, Ordering::Release);
        let id = self.id;
        driver.streams.sweep(|stream| stream.context_id != id);
        driver.events.sweep(|event| event.context_id != id);
        driver.modules.sweep(|module| module.context_id != id);
        driver
            .functions
            .sweep(|function| function.context_id() != Some(id));
        let gone = driver
            .ranges
            .sweep(|range| range.context == id && !range.is_host());
        crate::sharing::close_context(driver, &gone);
        for range in gone.iter().filter(|range| range.kind == Kind::Managed) {
            crate::managed::forget(range.start, range.bytes);
        }
        crate::host::close_context(driver, id);
        crate::array::close_context(driver, id);
        crate::texture::close_context(id);
        let closed = driver.link.close_context(id);
        // The device has told every waiting operation done with the context.
        for (_, lane) in self.lanes.lock().drain(..) {
            driver.deferred.forget(lane.slot);
            driver.watches.forget(lane.slot);
            driver.lanes.retire(lane);
        }
        closed
    }
}

fn handle(context: &Arc<Context>) -> CUcontext {
    handle_of(context)
}

/// The context behind a handle of the host's.
///
/// # Errors
/// `CUDA_ERROR_INVALID_CONTEXT`.
pub(crate) fn find(handle: CUcontext) -> Answer<Arc<Context>> {
    driver()?
        .contexts
        .find(handle)
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// The context behind a handle, or the current one for null.
pub(crate) fn find_or_current(handle: CUcontext) -> Answer<Arc<Context>> {
    if handle.is_null() {
        state::current()
    } else {
        find(handle)
    }
}

fn create(out: *mut CUcontext, flags: c_uint, ordinal: CUdevice) -> Answer {
    let out = Out::claim(out)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let context = Context::open(driver()?, ordinal, flags, false)?;
    out.write(handle(&context));
    state::with_stack(|stack| stack.push(context));
    Ok(())
}

/// Affinity and graphics parameters ask for what the device has not.
fn create_v4(
    out: *mut CUcontext,
    parameters: *mut CUctxCreateParams,
    flags: c_uint,
    ordinal: CUdevice,
) -> Answer {
    if !parameters.is_null() {
        let asked = crate::guard::take(parameters)?;
        if asked.numExecAffinityParams != 0 || !asked.cigParams.is_null() {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        }
    }
    create(out, flags, ordinal)
}

fn destroy(given: CUcontext) -> Answer {
    let context = find(given)?;
    if context.is_primary {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    state::with_stack(|stack| stack.pop_if(|top| Arc::ptr_eq(top, &context)));
    context.close(driver()?)
}

fn push(given: CUcontext) -> Answer {
    let context = find(given)?;
    state::with_stack(|stack| stack.push(context));
    Ok(())
}

fn pop(out: *mut CUcontext) -> Answer {
    let out = Out::claim_optional(out)?;
    let context = state::with_stack(Vec::pop).ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    if let Some(out) = out {
        out.write(handle(&context));
    }
    Ok(())
}

fn set_current(given: CUcontext) -> Answer {
    let context = if given.is_null() {
        None
    } else {
        Some(find(given)?)
    };
    state::with_stack(|stack| {
        stack.pop();
        stack.extend(context);
    });
    Ok(())
}

fn current(out: *mut CUcontext) -> Answer {
    let context = state::current_or_none();
    put(
        out,
        context.map_or(std::ptr::null_mut(), |context| handle(&context)),
    )
}

fn device(out: *mut CUdevice, given: CUcontext) -> Answer {
    let context = find_or_current(given)?;
    put(out, c_int::try_from(context.device).unwrap_or(c_int::MAX))
}

fn flags(out: *mut c_uint) -> Answer {
    put(out, state::current()?.flags.load(Ordering::Relaxed))
}

fn set_flags(flags: c_uint) -> Answer {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    state::current()?.flags.store(flags, Ordering::Relaxed);
    Ok(())
}

fn id(given: CUcontext, out: *mut c_ulonglong) -> Answer {
    put(out, find_or_current(given)?.id)
}

fn api_version(given: CUcontext, out: *mut c_uint) -> Answer {
    find_or_current(given)?;
    put(out, API_VERSION)
}

fn priority_range(least: *mut c_int, greatest: *mut c_int) -> Answer {
    state::current()?;
    let (least, greatest) = (Out::claim_optional(least)?, Out::claim_optional(greatest)?);
    if let Some(least) = least {
        least.write(0);
    }
    if let Some(greatest) = greatest {
        greatest.write(GREATEST_PRIORITY);
    }
    Ok(())
}

fn synchronize(given: CUcontext) -> Answer {
    let context = find_or_current(given)?;
    capture::check_context(context.id)?;
    context.synchronize(driver()?)
}

fn set_limit(limit: CUlimit, value: usize) -> Answer {
    let driver = driver()?;
    let context = state::current()?;
    let device = &driver.devices[context.device].info;
    let mut limits = context.limits.lock();
    limits.set(driver, device, context.id, limit, value)
}

fn limit(out: *mut usize, limit: CUlimit) -> Answer {
    let value = state::current()?.limits.lock().value(limit)?;
    put(out, value)
}

fn cache_config(out: *mut CUfunc_cache) -> Answer {
    let value = state::current()?.cache.load(Ordering::Relaxed);
    put(out, CUfunc_cache(value))
}

fn set_cache_config(config: CUfunc_cache) -> Answer {
    state::current()?.cache.store(config.0, Ordering::Relaxed);
    Ok(())
}

fn shared_config(out: *mut CUsharedconfig) -> Answer {
    let value = state::current()?.shared.load(Ordering::Relaxed);
    put(out, CUsharedconfig(value))
}

fn set_shared_config(config: CUsharedconfig) -> Answer {
    state::current()?.shared.store(config.0, Ordering::Relaxed);
    Ok(())
}

fn attach(out: *mut CUcontext, flags: c_uint) -> Answer {
    let out = Out::claim(out)?;
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let context = state::current()?;
    context.attached.fetch_add(1, Ordering::Relaxed);
    out.write(handle(&context));
    Ok(())
}

fn detach(given: CUcontext) -> Answer {
    let context = find(given)?;
    if !Arc::ptr_eq(&context, &state::current()?) {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let one_less = |count: u32| count.checked_sub(1);
    let (order, again) = (Ordering::Relaxed, Ordering::Relaxed);
    match context.attached.fetch_update(order, again, one_less) {
        Ok(_) => Ok(()),
        Err(_) => destroy(given),
    }
}

pub(crate) fn retain_primary(out: *mut CUcontext, ordinal: CUdevice) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let mut primary = driver.device(ordinal)?.primary.lock();
    let context = match &primary.context {
        Some(context) => Arc::clone(context),
        None => {
            let context = Context::open(driver, ordinal, primary.flags, true)?;
            primary.context = Some(Arc::clone(&context));
            context
        }
    };
    primary.retained += 1;
    out.write(handle(&context));
    Ok(())
}

pub(crate) fn release_primary(ordinal: CUdevice) -> Answer {
    let driver = driver()?;
    let mut primary = driver.device(ordinal)?.primary.lock();
    match primary.retained {
        0 => Err(CUresult::CUDA_ERROR_INVALID_CONTEXT),
        1 => {
            primary.retained = 0;
            let context = primary.context.take();
            drop(primary);
            context.map_or(Ok(()), |context| context.close(driver))
        }
        _ => {
            primary.retained -= 1;
            Ok(())
        }
    }
}

/// Ends the context; whoever has retained it has still to release it, and may.
fn reset_primary(ordinal: CUdevice) -> Answer {
    let driver = driver()?;
    let mut primary = driver.device(ordinal)?.primary.lock();
    primary.flags = 0;
    let context = primary.context.take();
    drop(primary);
    context.map_or(Ok(()), |context| context.close(driver))
}

fn primary_state(ordinal: CUdevice, flags: *mut c_uint, active: *mut c_int) -> Answer {
    let (flags, active) = (Out::claim(flags)?, Out::claim(active)?);
    let primary = driver()?.device(ordinal)?.primary.lock();
    flags.write(primary.flags);
    active.write(c_int::from(primary.context.is_some()));
    Ok(())
}

fn set_primary_flags(ordinal: CUdevice, flags: c_uint) -> Answer {
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let mut primary = driver()?.device(ordinal)?.primary.lock();
    primary.flags = flags;
    if let Some(context) = &primary.context {
        context.flags.store(flags, Ordering::Relaxed);
    }
    Ok(())
}

driver! {
    cuCtxCreate(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) => create;
    cuCtxCreate_v2(pctx: *mut CUcontext, flags: c_uint, dev: CUdevice) => create;
    cuCtxCreate_v3(pctx: *mut CUcontext, params_array: *mut CUexecAffinityParam, num_params: c_int, flags: c_uint, dev: CUdevice) => |out, _, count, flags, device| match count {
        0 => create(out, flags, device),
        _ => Err(CUresult::CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY),
    };
    cuCtxCreate_v4(pctx: *mut CUcontext, ctx_create_params: *mut CUctxCreateParams, flags: c_uint, dev: CUdevice) => create_v4;
    cuCtxDestroy(ctx: CUcontext) => destroy;
    cuCtxDestroy_v2(ctx: CUcontext) => destroy;
    cuCtxPushCurrent(ctx: CUcontext) => push;
    cuCtxPushCurrent_v2(ctx: CUcontext) => push;
    cuCtxPopCurrent(pctx: *mut CUcontext) => pop;
    cuCtxPopCurrent_v2(pctx: *mut CUcontext) => pop;
    cuCtxSetCurrent(ctx: CUcontext) => set_current;
    cuCtxGetCurrent(pctx: *mut CUcontext) => current;
    cuCtxGetDevice(out: *mut CUdevice) => |out| device(out, std::ptr::null_mut());
    cuCtxGetDevice_v2(out: *mut CUdevice, ctx: CUcontext) => device;
    cuCtxGetFlags(out: *mut c_uint) => flags;
    cuCtxSetFlags(flags: c_uint) => set_flags;
    cuCtxGetId(ctx: CUcontext, ctx_id: *mut c_ulonglong) => id;
    cuCtxGetApiVersion(ctx: CUcontext, version: *mut c_uint) => api_version;
    cuCtxGetStreamPriorityRange(least_priority: *mut c_int, greatest_priority: *mut c_int) => priority_range;
    cuCtxSynchronize() => || synchronize(std::ptr::null_mut());
    cuCtxSynchronize_v2(ctx: CUcontext) => synchronize;
    cuCtxSetLimit(limit: CUlimit, value: usize) => set_limit;
    cuCtxGetLimit(pvalue: *mut usize, given: CUlimit) => limit;
    cuCtxGetCacheConfig(pconfig: *mut CUfunc_cache) => cache_config;
    cuCtxSetCacheConfig(config: CUfunc_cache) => set_cache_config;
    cuCtxGetSharedMemConfig(p_config: *mut CUsharedconfig) => shared_config;
    cuCtxSetSharedMemConfig(config: CUsharedconfig) => set_shared_config;
    cuCtxResetPersistingL2Cache() => || state::current().map(drop);
    cuCtxAttach(pctx: *mut CUcontext, flags: c_uint) => attach;
    cuCtxDetach(ctx: CUcontext) => detach;
    cuDevicePrimaryCtxRetain(pctx: *mut CUcontext, dev: CUdevice) => retain_primary;
    cuDevicePrimaryCtxRelease(dev: CUdevice) => release_primary;
    cuDevicePrimaryCtxRelease_v2(dev: CUdevice) => release_primary;
    cuDevicePrimaryCtxReset(dev: CUdevice) => reset_primary;
    cuDevicePrimaryCtxReset_v2(dev: CUdevice) => reset_primary;
    cuDevicePrimaryCtxGetState(dev: CUdevice, flags: *mut c_uint, active: *mut c_int) => primary_state;
    cuDevicePrimaryCtxSetFlags(dev: CUdevice, flags: c_uint) => set_primary_flags;
    cuDevicePrimaryCtxSetFlags_v2(dev: CUdevice, flags: c_uint) => set_primary_flags;
}
