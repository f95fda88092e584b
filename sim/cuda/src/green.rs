//! Green contexts: parts of a device's multiprocessors, by number.
//!
//! Partitions are made and accounted as the driver does. What runs in them runs as in the device's primary
//! context, which is also what [`context_of`] gives: the stand-in's kernels have durations, not places.

use crate::context::{self, Context};
use crate::event::{self, Event};
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::registry::handle_of;
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, GREATEST_PRIORITY, Plain, Role, Stream};
use ffi::driver::{
    CUcontext, CUdevResource, CUdevResourceDesc, CUdevResourceType, CUdevSmResource, CUdevice,
    CUevent, CUgreenCtx, CUresult, CUstream,
};
use parking_lot::Mutex;
use std::ffi::{c_int, c_uint, c_ulonglong};
use std::sync::{Arc, Weak};

const SM: CUdevResourceType = CUdevResourceType::CU_DEV_RESOURCE_TYPE_SM;
const WRONG_TYPE: CUresult = CUresult::CUDA_ERROR_INVALID_RESOURCE_TYPE;

/// `CU_GREEN_CTX_DEFAULT_STREAM`; zero is `CU_GREEN_CTX_NONE`.
const DEFAULT_STREAM: c_uint = 1;

/// `CU_DEV_SM_RESOURCE_SPLIT_*`.
const SPLIT_FLAGS: c_uint = 1 | 2;

/// What a green context is to be made of.
pub(crate) struct Description {
    multiprocessors: u32,
}

/// A green context.
pub(crate) struct Green {
    ordinal: CUdevice,
    /// The device's primary context, which it retains.
    context: Weak<Context>,
    multiprocessors: u32,
    id: u64,
    /// Its streams, but for those that have been destroyed.
    streams: Mutex<Vec<(usize, Arc<Stream>)>>,
    /// Joins them where all of them are meant.
    joint: Arc<Stream>,
}

fn find(handle: CUgreenCtx) -> Answer<Arc<Green>> {
    driver()?
        .greens
        .find(handle)
        .ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)
}

/// Fewest multiprocessors of a partition, and what their number is a multiple of.
///
/// Source: CUDA driver API, `cuDevSmResourceSplitByCount`.
fn partition(major: u32) -> (u32, u32) {
    match major {
        0..=7 => (2, 2),
        8 => (4, 2),
        _ => (8, 8),
    }
}

fn resource(ordinal: CUdevice, multiprocessors: u32) -> Answer<CUdevResource> {
    let (least, step) = partition(driver()?.device(ordinal)?.info.profile.major);
    // SAFETY: plain data; what is not set below is zero.
    let mut resource: CUdevResource = unsafe { std::mem::zeroed() };
    resource.type_ = SM;
    resource.__bindgen_anon_1.sm = CUdevSmResource {
        smCount: multiprocessors,
        minSmPartitionSize: least,
        smCoscheduledAlignment: step,
        flags: 0,
        localityDomainId: 0,
    };
    Ok(resource)
}

/// The multiprocessors of a resource that the host gives.
fn multiprocessors(resource: &CUdevResource) -> Answer<CUdevSmResource> {
    if resource.type_ != SM {
        return Err(WRONG_TYPE);
    }
    // SAFETY: its type says that it is this one; all bit patterns are numbers.
    Ok(unsafe { resource.__bindgen_anon_1.sm })
}

fn whole(ordinal: CUdevice, out: *mut CUdevResource, kind: CUdevResourceType) -> Answer {
    let out = Out::claim(out)?;
    if kind != SM {
        return Err(WRONG_TYPE);
    }
    let all = driver()?.device(ordinal)?.info.profile.multiprocessors;
    out.write(resource(ordinal, all)?);
    Ok(())
}

fn of_context(given: CUcontext, out: *mut CUdevResource, kind: CUdevResourceType) -> Answer {
    let device = context::find_or_current(given)?.device;
    whole(device as CUdevice, out, kind)
}

fn of_green(given: CUgreenCtx, out: *mut CUdevResource, kind: CUdevResourceType) -> Answer {
    let green = find(given)?;
    let out = Out::claim(out)?;
    if kind != SM {
        return Err(WRONG_TYPE);
    }
    out.write(resource(green.ordinal, green.multiprocessors)?);
    Ok(())
}

fn split(
    result: *mut CUdevResource,
    count: *mut c_uint,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: c_uint,
    least: c_uint,
) -> Answer {
    let groups = Out::claim(count)?;
    let input = take(input)?;
    let sm = multiprocessors(&input)?;
    if flags & !SPLIT_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let step = sm.smCoscheduledAlignment.max(1);
    let each = least
        .max(sm.minSmPartitionSize)
        .max(1)
        .next_multiple_of(step);
    let possible = sm.smCount / each;
    if possible == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    if result.is_null() {
        groups.write(possible);
        return Ok(());
    }
    let made = possible.min(take(count)?);
    let part = |multiprocessors: u32| {
        let mut part = input;
        part.__bindgen_anon_1.sm = CUdevSmResource {
            smCount: multiprocessors,
            ..sm
        };
        part
    };
    for index in 0..made {
        put(result.wrapping_add(index as usize), part(each))?;
    }
    if !remainder.is_null() {
        let mut rest = part(sm.smCount - made * each);
        if sm.smCount == made * each {
            rest.type_ = CUdevResourceType::CU_DEV_RESOURCE_TYPE_INVALID;
        }
        put(remainder, rest)?;
    }
    groups.write(made);
    Ok(())
}

fn describe(out: *mut CUdevResourceDesc, list: *mut CUdevResource, count: c_uint) -> Answer {
    let out = Out::claim(out)?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let mut sum = 0u32;
    for index in 0..count as usize {
        sum = sum.saturating_add(multiprocessors(&take(list.wrapping_add(index))?)?.smCount);
    }
    let description = Arc::new(Description {
        multiprocessors: sum,
    });
    out.write(driver()?.green_descriptions.add(description));
    Ok(())
}

fn create(
    out: *mut CUgreenCtx,
    description: CUdevResourceDesc,
    ordinal: CUdevice,
    flags: c_uint,
) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let all = driver.device(ordinal)?.info.profile.multiprocessors;
    if flags & !DEFAULT_STREAM != 0 {
        return Err(INVALID_VALUE);
    }
    let description = driver.green_descriptions.find(description);
    let multiprocessors = description.ok_or(INVALID_VALUE)?.multiprocessors;
    if multiprocessors > all {
        return Err(CUresult::CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let mut primary = std::ptr::null_mut();
    context::retain_primary(&mut primary, ordinal)?;
    let context = context::find(primary)?;
    let joint = context
        .new_stream(driver, Role::NonBlocking, 0)
        .inspect_err(|_| _ = context::release_primary(ordinal))?;
    let green = Arc::new(Green {
        ordinal,
        context: Arc::downgrade(&context),
        multiprocessors,
        id: driver.number(),
        streams: Mutex::default(),
        joint,
    });
    out.write(driver.greens.add(green));
    Ok(())
}

fn destroy(given: CUgreenCtx) -> Answer {
    let gone = driver()?.greens.remove(given);
    let green = gone.ok_or(CUresult::CUDA_ERROR_INVALID_CONTEXT)?;
    green.streams.lock().clear();
    context::release_primary(green.ordinal)
}

/// The primary context: there are no other places for kernels to run.
fn context_of(out: *mut CUcontext, given: CUgreenCtx) -> Answer {
    put(out, handle_of(&find(given)?.context()?))
}

fn new_stream(out: *mut CUstream, given: CUgreenCtx, flags: c_uint, priority: c_int) -> Answer {
    let out = Out::claim(out)?;
    let green = find(given)?;
    if flags != stream::NON_BLOCKING {
        return Err(INVALID_VALUE);
    }
    let driver = driver()?;
    let priority = priority.clamp(GREATEST_PRIORITY, 0);
    let stream = green
        .context()?
        .new_stream(driver, Role::NonBlocking, priority)?;
    let handle: CUstream = driver.streams.add(Arc::clone(&stream));
    green.streams.lock().push((handle as usize, stream));
    out.write(handle);
    Ok(())
}

impl Green {
    fn context(&self) -> Answer<Arc<Context>> {
        let context = self.context.upgrade().filter(|context| context.is_alive());
        context.ok_or(CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED)
    }

    /// Its streams that are still there.
    fn live(&self, driver: &Driver) -> Vec<Arc<Stream>> {
        let mut streams = self.streams.lock();
        streams.retain(|(handle, _)| driver.streams.find(*handle as CUstream).is_some());
        streams
            .iter()
            .map(|(_, stream)| Arc::clone(stream))
            .collect()
    }
}

fn green_of<F: Flavour>(given: CUstream, out: *mut CUgreenCtx) -> Answer {
    stream::find::<F>(given)?;
    let handle = of_stream(driver()?, given);
    put(out, handle)
}

/// The green context that a stream was made in; null: none.
pub(crate) fn of_stream(driver: &Driver, given: CUstream) -> CUgreenCtx {
    let has = |green: &Green| {
        let streams = green.streams.lock();
        streams.iter().any(|(handle, _)| *handle == given as usize)
    };
    let found = driver.greens.find_where(has);
    found.map_or(std::ptr::null_mut(), |green| handle_of(&green))
}

/// Records the end of everything that its streams have now.
fn record(given: CUgreenCtx, event: CUevent) -> Answer {
    let (green, event, driver) = (find(given)?, event::find(event)?, driver()?);
    let context = green.context()?;
    for stream in green.live(driver) {
        let end = Event::untimed(&context, None);
        end.record_in(driver, &stream)?;
        stream::wait_for_event(driver, &green.joint, &end)?;
    }
    event.record_in(driver, &green.joint)
}

/// Has everything that its streams get from now on wait.
fn wait(given: CUgreenCtx, event: CUevent) -> Answer {
    let (green, event, driver) = (find(given)?, event::find(event)?, driver()?);
    for stream in green.live(driver) {
        stream::wait_for_event(driver, &stream, &event)?;
    }
    Ok(())
}

driver! {
    cuDeviceGetDevResource(device: CUdevice, resource: *mut CUdevResource, type_: CUdevResourceType) => whole;
    cuCtxGetDevResource(h_ctx: CUcontext, resource: *mut CUdevResource, type_: CUdevResourceType) => of_context;
    cuGreenCtxGetDevResource(h_ctx: CUgreenCtx, resource: *mut CUdevResource, type_: CUdevResourceType) => of_green;
    cuDevSmResourceSplitByCount(result: *mut CUdevResource, nb_groups: *mut c_uint, input: *const CUdevResource, remainder: *mut CUdevResource, flags: c_uint, min_count: c_uint) => split;
    cuDevResourceGenerateDesc(ph_desc: *mut CUdevResourceDesc, resources: *mut CUdevResource, nb_resources: c_uint) => describe;
    cuGreenCtxCreate(ph_ctx: *mut CUgreenCtx, desc: CUdevResourceDesc, dev: CUdevice, flags: c_uint) => create;
    cuGreenCtxDestroy(h_ctx: CUgreenCtx) => destroy;
    cuGreenCtxGetId(green_ctx: CUgreenCtx, green_ctx_id: *mut c_ulonglong) => |green, out| put(out, find(green)?.id);
    cuCtxFromGreenCtx(p_context: *mut CUcontext, h_ctx: CUgreenCtx) => context_of;
    cuGreenCtxStreamCreate(ph_stream: *mut CUstream, green_ctx: CUgreenCtx, flags: c_uint, priority: c_int) => new_stream;
    cuStreamGetGreenCtx(h_stream: CUstream, ph_ctx: *mut CUgreenCtx) => green_of::<Plain>;
    cuGreenCtxRecordEvent(h_ctx: CUgreenCtx, h_event: CUevent) => record;
    cuGreenCtxWaitEvent(h_ctx: CUgreenCtx, h_event: CUevent) => wait;
}
