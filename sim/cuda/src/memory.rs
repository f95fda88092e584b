//! Linear, pitched and managed memory.
//!
//! Managed memory lies on the device in full and is accessible to the host; it does not migrate.
//! The first interface has 32-bit addresses: its allocations lie in a low stretch of addresses.

use std::ffi::c_uint;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;

use ffi::driver::{CUdeviceptr, CUdeviceptr_v1, CUresult};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, mmap_anonymous};
use parking_lot::Mutex;
use sim::client::Block;
use sim::hardware::ContextId;
use sim::hardware::memory::Kind as Held;
use sim::proto::Command;

use crate::context::Context;
use crate::guard::{Answer, INVALID_VALUE, Out, put};
use crate::link::Link;
use crate::ranges::{Kind, Range, Ranges};
use crate::spans::Spans;
use crate::state::{self, Driver, driver};
use crate::stream::Stream;

/// What a row of pitched memory is rounded up to.
const PITCH_ALIGN: u64 = 512;

/// Step in which addresses for the first interface are reserved.
///
/// 256 MiB: whatever a program has mapped below 4 GiB costs one or two of the sixteen.
const LOW_STEP: u64 = 256 << 20;

/// Free addresses for the first interface, reserved at the first call.
static LOW: Mutex<Option<Spans>> = Mutex::new(None);

/// Pages, in whose multiples low addresses are given.
const PAGE: u64 = 4096;

/// Takes `bytes` in the current context and makes them known.
pub(crate) fn allocate_linear(
    driver: &Driver,
    bytes: u64,
    kind: Kind,
    is_low: bool,
) -> Answer<Range> {
    crate::capture::check_unsafe()?;
    let context = state::current()?;
    let device = &driver.devices[context.device];
    let window = device.window(driver)?;
    let context_id = ContextId(context.id);
    let held = match kind {
        Kind::Managed => Held::Managed(context_id),
        _ => Held::Linear(context_id),
    };
    let block = allocate_block(driver, &context, held, bytes)?;
    let placed = window.bytes_at(block.offset, bytes).and_then(|reach| {
        let start = if is_low {
            low_address(&driver.ranges, bytes)?
        } else {
            window.reservation.span().start + block.offset
        };
        Ok((start, reach))
    });
    let (start, reach) = match placed {
        Ok(placed) => placed,
        Err(code) => {
            driver.link.release(context.device, block.id)?;
            return Err(code);
        }
    };
    let range = Range {
        start,
        bytes,
        kind,
        reach,
        device: context.device,
        context: context.id,
        block: block.id,
        number: driver.number(),
        extra: 0,
        is_accessible: true,
    };
    if kind == Kind::Managed {
        let file = window.file.as_fd();
        if let Err(code) = open_to_host(file, block.offset, start, bytes) {
            driver.link.release(context.device, block.id)?;
            return Err(code);
        }
    }
    driver.ranges.add(range);
    Ok(range)
}

/// A block of the context's.
fn allocate_block(driver: &Driver, context: &Context, kind: Held, bytes: u64) -> Answer<Block> {
    let allocate = || driver.link.allocate_as(kind, context.device, bytes);
    allocate().or_else(|code| {
        // Frees that streams have reached may be all that is missing.
        driver.settle();
        if code == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            allocate()
        } else {
            Err(code)
        }
    })
}

/// Takes `bytes` of a context's memory that have no address: the block, and where its bytes lie.
pub(crate) fn take_block(driver: &Driver, context: &Context, bytes: u64) -> Answer<(u64, *mut u8)> {
    let window = driver.devices[context.device].window(driver)?;
    let kind = Held::Linear(ContextId(context.id));
    let block = allocate_block(driver, context, kind, bytes)?;
    match window.bytes_at(block.offset, bytes) {
        Ok(reach) => Ok((block.id, reach)),
        Err(code) => {
            driver.link.release(context.device, block.id)?;
            Err(code)
        }
    }
}

/// Reserves what is free below 4 GiB.
fn reserve_low(ranges: &Ranges) -> Spans {
    let mut spans = Spans::default();
    let length = NonZeroUsize::new(LOW_STEP as usize);
    for step in 1..(1u64 << 32) / LOW_STEP - 1 {
        let start = step * LOW_STEP;
        let at = NonZeroUsize::new(start as usize);
        let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_NORESERVE | MapFlags::MAP_FIXED_NOREPLACE;
        let Some(length) = length else { break };
        // SAFETY: the kernel refuses a place where anything is mapped already.
        let reserved = unsafe { mmap_anonymous(at, length, ProtFlags::PROT_NONE, flags) };
        // A kernel that does not know the flag takes the address as a mere wish.
        if reserved.is_ok_and(|base| base.as_ptr() as u64 == start) {
            spans.give(start, start + LOW_STEP, |_| false);
            ranges.add_reserved(start, start + LOW_STEP);
        }
    }
    spans
}

/// A stretch of low addresses.
fn low_address(ranges: &Ranges, bytes: u64) -> Answer<u64> {
    let mut low = LOW.lock();
    if low.is_none() {
        *low = Some(reserve_low(ranges));
    }
    low.as_mut()
        .and_then(|spans| spans.take(bytes.next_multiple_of(PAGE), PAGE))
        .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
}

/// Gives a stretch of low addresses back, if it is one.
fn give_low(range: &Range) {
    if range.end() <= u64::from(u32::MAX)
        && let Some(spans) = LOW.lock().as_mut()
    {
        spans.give(
            range.start,
            range.start + range.bytes.next_multiple_of(PAGE),
            |_| false,
        );
    }
}

/// Maps device memory where the host may touch it.
pub(crate) fn open_to_host(file: impl AsFd, offset: u64, start: u64, bytes: u64) -> Answer {
    let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let at = usize::try_from(start).ok().and_then(NonZeroUsize::new);
    let length = usize::try_from(bytes.next_multiple_of(PAGE));
    let length = length.ok().and_then(NonZeroUsize::new).ok_or(refused)?;
    let offset = i64::try_from(offset).map_err(|_| refused)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_SHARED | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    // SAFETY: the place lies inside our own reservation, where nothing else is mapped.
    unsafe { mmap(at, length, protection, flags, file, offset) }
        .map(drop)
        .map_err(|_| refused)
}

/// Makes addresses inaccessible to the host again.
fn close_to_host(start: u64, bytes: u64) {
    let at = usize::try_from(start).ok().and_then(NonZeroUsize::new);
    let length = usize::try_from(bytes.next_multiple_of(PAGE));
    let Some(length) = length.ok().and_then(NonZeroUsize::new) else {
        return;
    };
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    // SAFETY: the place lies inside our own reservation and was mapped by `open_to_host`.
    let closed = unsafe { mmap_anonymous(at, length, ProtFlags::PROT_NONE, flags) };
    debug_assert!(closed.is_ok());
}

fn allocate(out: *mut CUdeviceptr, bytes: usize) -> Answer {
    let out = Out::claim(out)?;
    let range = allocate_linear(driver()?, bytes as u64, Kind::Linear, false)?;
    out.write(range.start);
    Ok(())
}

fn allocate_v1(out: *mut CUdeviceptr_v1, bytes: c_uint) -> Answer {
    let out = Out::claim(out)?;
    let range = allocate_linear(driver()?, u64::from(bytes), Kind::Linear, true)?;
    out.write(CUdeviceptr_v1::try_from(range.start).unwrap_or(0));
    Ok(())
}

/// The pitch of rows of `width` bytes, and the bytes of `height` of them.
fn pitched(width: u64, height: u64, element: c_uint) -> Answer<(u64, u64)> {
    if width == 0 || height == 0 || !matches!(element, 4 | 8 | 16) {
        return Err(INVALID_VALUE);
    }
    let pitch = width
        .checked_next_multiple_of(PITCH_ALIGN)
        .ok_or(INVALID_VALUE)?;
    let bytes = pitch
        .checked_mul(height)
        .ok_or(CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    Ok((pitch, bytes))
}

fn allocate_pitch(
    out: *mut CUdeviceptr,
    pitch_out: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Answer {
    let (out, pitch_out) = (Out::claim(out)?, Out::claim(pitch_out)?);
    let (pitch, bytes) = pitched(width as u64, height as u64, element)?;
    let range = allocate_linear(driver()?, bytes, Kind::Linear, false)?;
    out.write(range.start);
    pitch_out.write(pitch as usize);
    Ok(())
}

fn allocate_pitch_v1(
    out: *mut CUdeviceptr_v1,
    pitch_out: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
) -> Answer {
    let (out, pitch_out) = (Out::claim(out)?, Out::claim(pitch_out)?);
    let (pitch, bytes) = pitched(u64::from(width), u64::from(height), element)?;
    let pitch = c_uint::try_from(pitch).map_err(|_| INVALID_VALUE)?;
    let range = allocate_linear(driver()?, bytes, Kind::Linear, true)?;
    out.write(CUdeviceptr_v1::try_from(range.start).unwrap_or(0));
    pitch_out.write(pitch);
    Ok(())
}

fn allocate_managed(out: *mut CUdeviceptr, bytes: usize, flags: c_uint) -> Answer {
    let out = Out::claim(out)?;
    // CU_MEM_ATTACH_GLOBAL or CU_MEM_ATTACH_HOST, and nothing else.
    if !matches!(flags, 1 | 2) {
        return Err(INVALID_VALUE);
    }
    let range = allocate_linear(driver()?, bytes as u64, Kind::Managed, false)?;
    out.write(range.start);
    Ok(())
}

fn free(address: u64) -> Answer {
    let driver = driver()?;
    state::current()?;
    if let Some(site) = crate::graph_memory::find(address) {
        return site.free(driver, None);
    }
    let Some(range) = driver.ranges.remove(address, is_linear) else {
        let elsewhere = crate::sharing::free(driver, address);
        return elsewhere.unwrap_or_else(|| crate::pool::free_now(driver, address));
    };
    if let Link::Gpu(..) = driver.link {
        wait_for_users(driver, &range)?;
    }
    if range.kind == Kind::Managed {
        close_to_host(range.start, range.bytes);
        crate::managed::forget(range.start, range.bytes);
    }
    give_low(&range);
    driver.link.release(range.device, range.block)
}

/// Frees linear memory when `stream` gets there; `None` if there is none at `address`.
pub(crate) fn free_in_order(
    driver: &'static Driver,
    stream: &Stream,
    address: u64,
) -> Option<Answer> {
    let fits = |range: &Range| is_linear(range) || range.kind == Kind::ImportedPiece;
    let range = driver.ranges.remove(address, fits)?;
    let release = move || {
        if range.kind == Kind::Managed {
            close_to_host(range.start, range.bytes);
            crate::managed::forget(range.start, range.bytes);
        }
        give_low(&range);
        driver.link.release(range.device, range.block)
    };
    if let Link::Null(_) = driver.link {
        return Some(release());
    }
    let mark = Command::Mark {
        event: u32::MAX,
        generation: 0,
    };
    // Should its context end first, the block has gone with that.
    let action = Box::new(move || {
        let _ = release();
    });
    let slot = stream.lane.slot;
    let submitted = driver
        .deferred
        .submit_move(slot, action, || stream.submit(driver, mark));
    Some(submitted.map(drop))
}

fn is_linear(range: &Range) -> bool {
    matches!(range.kind, Kind::Linear | Kind::Managed)
}

/// As drivers do, a free waits for the work of the context that the memory belongs to.
fn wait_for_users(driver: &Driver, range: &Range) -> Answer {
    let owner = driver
        .contexts
        .find_where(|context| context.id == range.context);
    owner.map_or(Ok(()), |context| context.synchronize(driver))
}

fn info(free: *mut usize, total: *mut usize) -> Answer {
    let (free, total) = (Out::claim_optional(free)?, Out::claim_optional(total)?);
    let memory = driver()?.link.memory(state::current()?.device)?;
    if let Some(free) = free {
        free.write(memory.free as usize);
    }
    if let Some(total) = total {
        total.write(memory.total as usize);
    }
    Ok(())
}

/// The first interface's sizes end at 4 GiB.
fn info_v1(free: *mut c_uint, total: *mut c_uint) -> Answer {
    let memory = driver()?.link.memory(state::current()?.device)?;
    let short = |bytes| c_uint::try_from(bytes).unwrap_or(c_uint::MAX);
    put(free, short(memory.free))?;
    put(total, short(memory.total))
}

fn address_range(base: *mut CUdeviceptr, bytes: *mut usize, address: CUdeviceptr) -> Answer {
    let (base, bytes) = (Out::claim_optional(base)?, Out::claim_optional(bytes)?);
    let found = driver()?.ranges.find(address);
    let range = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    if let Some(base) = base {
        base.write(range.start);
    }
    if let Some(bytes) = bytes {
        bytes.write(range.bytes as usize);
    }
    Ok(())
}

fn address_range_v1(
    base: *mut CUdeviceptr_v1,
    bytes: *mut c_uint,
    address: CUdeviceptr_v1,
) -> Answer {
    let found = driver()?.ranges.find(u64::from(address));
    let range = found.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    put(base, CUdeviceptr_v1::try_from(range.start).unwrap_or(0))?;
    put(bytes, c_uint::try_from(range.bytes).unwrap_or(c_uint::MAX))
}

driver! {
    cuMemAlloc(dptr: *mut CUdeviceptr_v1, bytesize: c_uint) => allocate_v1;
    cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize) => allocate;
    cuMemAllocPitch(dptr: *mut CUdeviceptr_v1, p_pitch: *mut c_uint, width_in_bytes: c_uint, height: c_uint, element_size_bytes: c_uint) => allocate_pitch_v1;
    cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, p_pitch: *mut usize, width_in_bytes: usize, height: usize, element_size_bytes: c_uint) => allocate_pitch;
    cuMemAllocManaged(dptr: *mut CUdeviceptr, bytesize: usize, flags: c_uint) => allocate_managed;
    cuMemFree(dptr: CUdeviceptr_v1) => |address| free(u64::from(address));
    cuMemFree_v2(dptr: CUdeviceptr) => free;
    cuMemGetInfo(free: *mut c_uint, total: *mut c_uint) => info_v1;
    cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => info;
    cuMemGetAddressRange(pbase: *mut CUdeviceptr_v1, psize: *mut c_uint, dptr: CUdeviceptr_v1) => address_range_v1;
    cuMemGetAddressRange_v2(pbase: *mut CUdeviceptr, psize: *mut usize, dptr: CUdeviceptr) => address_range;
}
