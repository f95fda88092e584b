//! Stream-ordered allocation from pools.
//!
//! A pool reserves device memory in large chunks and gives it back at the next synchronisation, as
//! far as its release threshold allows. A freed piece is used again by the same stream at once, by
//! others when the free has been reached. Pools for the host and for managed
//! memory are refused.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ffi::driver::{
    CUdevice, CUdeviceptr, CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationType_enum,
    CUmemLocation, CUmemLocationType_enum, CUmemPool_attribute, CUmemPool_attribute_enum as A,
    CUmemPoolProps, CUmemoryPool, CUresult, CUstream,
};
use parking_lot::Mutex;
use sim::hardware::memory::{LARGE_PAGE_BYTES, UNIT_BYTES};
use sim::proto::Command;

use crate::capture;
use crate::graph::Work;
use crate::graph_memory::{self, Site};
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::ranges::{Kind, Range};
use crate::registry::handle_of;
use crate::state::{Device, Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};

/// What a pool reserves at once where that is free.
///
/// 32 MiB: what drivers are seen to do; a workload's many small pieces then cost one reservation.
const CHUNK_BYTES: u64 = 32 << 20;

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FILE: u32 = 1;

/// Pools that hold more than their threshold in chunks that may be unused.
static TRIMMABLE: AtomicU32 = AtomicU32::new(0);

struct Chunk {
    block: u64,
    bytes: u64,
    reach: *mut u8,
}

/// A piece that its stream has freed; others wait for that.
struct Freed {
    start: u64,
    end: u64,
    slot: u32,
    sequence: u64,
}

#[derive(Default)]
struct Contents {
    chunks: BTreeMap<u64, Chunk>,
    free: crate::spans::Spans,
    freed: Vec<Freed>,
    used: u64,
    used_high: u64,
    reserved: u64,
    reserved_high: u64,
    is_destroyed: bool,
}

// SAFETY: the chunks' addresses are used only to move bytes, as the host asks for it.
unsafe impl Send for Contents {}

/// Whether other processes may have a part in a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// None.
    Private,
    /// They may; the pool's word among all processes.
    Exportable(u64),
    /// It is another process's: its pieces can be imported, none can be allocated.
    Imported(u64),
}

/// A pool.
pub(crate) struct Pool {
    /// Its device.
    pub(crate) device: usize,
    /// Whether other processes may have a part in it.
    pub(crate) sharing: Sharing,
    is_default: bool,
    /// Other devices that have access to its memory, a bit for each.
    peers: AtomicU64,
    threshold: AtomicU64,
    reuse: [AtomicU32; 3],
    max_bytes: u64,
    contents: Mutex<Contents>,
}

impl Pool {
    /// A pool without memory yet.
    pub(crate) fn new(device: usize, is_default: bool, max_bytes: u64, sharing: Sharing) -> Self {
        Self {
            device,
            sharing,
            is_default,
            peers: AtomicU64::new(0),
            threshold: AtomicU64::new(0),
            reuse: [const { AtomicU32::new(1) }; 3],
            max_bytes,
            contents: Mutex::new(Contents::default()),
        }
    }

    fn allocate(self: &Arc<Self>, driver: &Driver, stream: &Stream, bytes: u64) -> Answer<u64> {
        if bytes == 0 || matches!(self.sharing, Sharing::Imported(_)) {
            return Err(INVALID_VALUE);
        }
        let rounded = bytes
            .checked_next_multiple_of(UNIT_BYTES)
            .ok_or(INVALID_VALUE)?;
        let start = match self.place(driver, Some(stream), rounded) {
            Ok(start) => start,
            Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {
                // Pieces that others have freed may be all that is missing.
                self.wait_for_freed(driver)?;
                self.trim(driver, 0)?;
                self.place(driver, None, rounded)?
            }
            Err(code) => return Err(code),
        };
        let mut contents = self.contents.lock();
        contents.used += rounded;
        contents.used_high = contents.used_high.max(contents.used);
        let chunk = contents.chunks.range(..=start).next_back();
        let (base, chunk) = chunk.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
        driver.ranges.add(Range {
            start,
            bytes: rounded,
            kind: Kind::Pool,
            reach: chunk.reach.wrapping_add((start - base) as usize),
            device: self.device,
            context: 0,
            block: 0,
            number: driver.number(),
            extra: handle_of::<Self, c_void>(self) as u64,
            is_accessible: true,
        });
        Ok(start)
    }

    /// Finds room for a piece, in what is free or in a new chunk.
    fn place(&self, driver: &Driver, stream: Option<&Stream>, bytes: u64) -> Answer<u64> {
        let mut contents = self.contents.lock();
        if contents.is_destroyed {
            return Err(INVALID_VALUE);
        }
        contents.reclaim(|freed| {
            stream.is_some_and(|stream| stream.lane.slot == freed.slot)
                || driver.link.done(freed.slot) >= freed.sequence
        });
        if let Some(start) = contents.free.take(bytes, UNIT_BYTES) {
            return Ok(start);
        }
        let room = self.max_bytes.saturating_sub(contents.reserved);
        let sizes = [
            bytes.checked_next_multiple_of(CHUNK_BYTES),
            bytes.checked_next_multiple_of(LARGE_PAGE_BYTES),
        ];
        for chunk in sizes.into_iter().flatten().filter(|size| *size <= room) {
            match driver.link.allocate(self.device, chunk, 0) {
                Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY) => {}
                Err(code) => return Err(code),
                Ok(block) => {
                    let window = driver.devices[self.device].window(driver)?;
                    let start = window.reservation.span().start + block.offset;
                    let reach = window.bytes_at(block.offset, chunk)?;
                    contents.add_chunk(
                        start,
                        Chunk {
                            block: block.id,
                            bytes: chunk,
                            reach,
                        },
                    );
                    let placed = contents.free.take(bytes, UNIT_BYTES);
                    return placed.ok_or(CUresult::CUDA_ERROR_UNKNOWN);
                }
            }
        }
        Err(CUresult::CUDA_ERROR_OUT_OF_MEMORY)
    }

    fn wait_for_freed(&self, driver: &Driver) -> Answer {
        let waited: Vec<(u32, u64)> = {
            let contents = self.contents.lock();
            let freed = contents.freed.iter();
            freed.map(|freed| (freed.slot, freed.sequence)).collect()
        };
        for (slot, sequence) in waited {
            driver.finish(slot, sequence)?;
        }
        Ok(())
    }

    /// Takes a piece back that `slot` frees with operation `sequence`.
    fn take_back(&self, range: &Range, slot: u32, sequence: u64) {
        let mut contents = self.contents.lock();
        contents.used -= range.bytes;
        contents.freed.push(Freed {
            start: range.start,
            end: range.end(),
            slot,
            sequence,
        });
        drop(contents);
        TRIMMABLE.store(1, Ordering::Release);
    }

    /// Gives unused chunks back until no more than `keep` bytes are reserved.
    fn trim(&self, driver: &Driver, keep: u64) -> Answer {
        let mut contents = self.contents.lock();
        contents.reclaim(|freed| driver.link.done(freed.slot) >= freed.sequence);
        let starts: Vec<u64> = contents.chunks.keys().copied().collect();
        for start in starts {
            let Some(chunk) = contents.chunks.get(&start) else {
                continue;
            };
            let (block, bytes) = (chunk.block, chunk.bytes);
            if contents.reserved < keep.saturating_add(bytes) {
                continue;
            }
            if contents.free.take_whole(start, start + bytes) {
                contents.chunks.remove(&start);
                contents.reserved -= bytes;
                driver.link.release(self.device, block)?;
            }
        }
        Ok(())
    }

    /// The block that a piece lies in, and where.
    pub(crate) fn chunk_of(&self, address: u64) -> Option<(u64, u64)> {
        let contents = self.contents.lock();
        let (start, chunk) = contents.chunks.range(..=address).next_back()?;
        (address - start < chunk.bytes).then_some((chunk.block, address - start))
    }

    fn is_trimmable(&self) -> bool {
        let contents = self.contents.lock();
        let threshold = self.threshold.load(Ordering::Relaxed);
        !contents.freed.is_empty() || contents.reserved > threshold
    }
}

impl Contents {
    fn add_chunk(&mut self, start: u64, chunk: Chunk) {
        let end = start + chunk.bytes;
        self.reserved += chunk.bytes;
        self.reserved_high = self.reserved_high.max(self.reserved);
        self.chunks.insert(start, chunk);
        let chunks = &self.chunks;
        self.free.give(start, end, |at| is_wall(chunks, at));
    }

    /// Makes the freed pieces that `may` be used again free.
    fn reclaim(&mut self, may: impl Fn(&Freed) -> bool) {
        let (chunks, free) = (&self.chunks, &mut self.free);
        self.freed.retain(|freed| {
            let may = may(freed);
            if may {
                free.give(freed.start, freed.end, |at| is_wall(chunks, at));
            }
            !may
        });
    }
}

/// Chunks are given back one by one, so free stretches never reach across their borders.
fn is_wall(chunks: &BTreeMap<u64, Chunk>, at: u64) -> bool {
    let before = chunks.range(..at).next_back();
    chunks.contains_key(&at) || before.is_some_and(|(start, chunk)| start + chunk.bytes == at)
}

/// After a synchronisation: pools give back what their thresholds do not keep.
pub(crate) fn trim_all(driver: &Driver) {
    if TRIMMABLE.swap(0, Ordering::AcqRel) == 0 {
        return;
    }
    let pools = driver.pools.all();
    for pool in pools {
        // A device that is gone has taken everything back already.
        let _ = pool.trim(driver, pool.threshold.load(Ordering::Relaxed));
        if pool.is_trimmable() {
            TRIMMABLE.store(1, Ordering::Release);
        }
    }
}

/// `cuMemFree` of a piece of a pool: waits for nobody, and nobody for it. That its uses have ended
/// is the caller's duty.
pub(crate) fn free_now(driver: &Driver, address: u64) -> Answer {
    give_back(driver, address, |_| Ok((0, 0)))
}

fn free(driver: &Driver, stream: &Stream, address: u64) -> Answer {
    give_back(driver, address, |driver| {
        let mark = Command::Mark {
            event: u32::MAX,
            generation: 0,
        };
        Ok((stream.lane.slot, stream.submit(driver, mark)?))
    })
}

/// Gives a piece back to its pool, to be used by others when the operation that `mark` names is done.
fn give_back(
    driver: &Driver,
    address: u64,
    mark: impl FnOnce(&Driver) -> Answer<(u32, u64)>,
) -> Answer {
    let is_piece = |range: &Range| range.kind == Kind::Pool;
    let range = driver.ranges.remove(address, is_piece);
    let range = range.ok_or(INVALID_VALUE)?;
    let pool = driver.pools.find(range.extra as usize as *mut c_void);
    let pool = pool.ok_or(CUresult::CUDA_ERROR_UNKNOWN)?;
    let (slot, sequence) = mark(driver)?;
    pool.take_back(&range, slot, sequence);
    if pool.contents.lock().is_destroyed {
        end_if_unused(driver, &pool)?;
    }
    Ok(())
}

/// A destroyed pool goes when its last piece has.
fn end_if_unused(driver: &Driver, pool: &Arc<Pool>) -> Answer {
    if pool.contents.lock().used == 0 {
        pool.wait_for_freed(driver)?;
        pool.trim(driver, 0)?;
        driver.pools.remove::<c_void>(handle_of(pool));
    }
    Ok(())
}

fn default_pool(driver: &Driver, device: &Device) -> Arc<Pool> {
    let new = || {
        let pool = Arc::new(Pool::new(
            device.info.index,
            true,
            u64::MAX,
            Sharing::Private,
        ));
        driver.pools.add::<c_void>(Arc::clone(&pool));
        pool
    };
    Arc::clone(device.default_pool.get_or_init(new))
}

fn current_pool(driver: &Driver, device: &Device) -> Arc<Pool> {
    let chosen = device.current_pool.lock().clone();
    chosen.unwrap_or_else(|| default_pool(driver, device))
}

/// The pool behind a handle, unless it has been destroyed.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) fn find(handle: CUmemoryPool) -> Answer<Arc<Pool>> {
    let pool = driver()?.pools.find(handle).ok_or(INVALID_VALUE)?;
    if pool.contents.lock().is_destroyed {
        return Err(INVALID_VALUE);
    }
    Ok(pool)
}

fn allocate_async<F: Flavour>(out: *mut CUdeviceptr, bytes: usize, given: CUstream) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    if stream.is_capturing() {
        let device = stream.context()?.device;
        return node(driver, &stream, device, bytes, out);
    }
    let device = &driver.devices[stream.context()?.device];
    let pool = current_pool(driver, device);
    out.write(pool.allocate(driver, &stream, bytes as u64)?);
    Ok(())
}

/// What an allocation in a capture comes to: memory of the graph's.
fn node(
    driver: &Driver,
    stream: &Stream,
    device: usize,
    bytes: usize,
    out: Out<CUdeviceptr>,
) -> Answer {
    let site = Site::new(driver, device, bytes as u64)?;
    let start = site.start();
    capture::add(driver, stream, Work::Allocate(site))?;
    out.write(start);
    Ok(())
}

fn allocate_from<F: Flavour>(
    out: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    given: CUstream,
) -> Answer {
    let out = Out::claim(out)?;
    let stream = stream::find::<F>(given)?;
    if stream.is_capturing() {
        return node(driver()?, &stream, find(pool)?.device, bytes, out);
    }
    out.write(find(pool)?.allocate(driver()?, &stream, bytes as u64)?);
    Ok(())
}

fn free_async<F: Flavour>(address: CUdeviceptr, given: CUstream) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    if let Some(site) = graph_memory::find(address) {
        if stream.is_capturing() {
            return capture::add(driver, &stream, Work::Free(site));
        }
        return site.free(driver, Some(&stream));
    }
    let stream = stream::find_for_now::<F>(given)?;
    // Memory of `cuMemAlloc` may be freed so, too.
    crate::memory::free_in_order(driver, &stream, address)
        .unwrap_or_else(|| free(driver, &stream, address))
}

fn device_default(out: *mut CUmemoryPool, ordinal: CUdevice) -> Answer {
    let driver = driver()?;
    let pool = default_pool(driver, driver.device(ordinal)?);
    put(out, handle_of(&pool))
}

fn device_pool(out: *mut CUmemoryPool, ordinal: CUdevice) -> Answer {
    let driver = driver()?;
    let pool = current_pool(driver, driver.device(ordinal)?);
    put(out, handle_of(&pool))
}

fn set_device_pool(ordinal: CUdevice, handle: CUmemoryPool) -> Answer {
    let device = driver()?.device(ordinal)?;
    let pool = find(handle)?;
    if pool.device != device.info.index {
        return Err(INVALID_VALUE);
    }
    *device.current_pool.lock() = Some(pool);
    Ok(())
}

fn create(out: *mut CUmemoryPool, properties: *const CUmemPoolProps) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let asked = take(properties)?;
    if asked.allocType.0 == 0 || asked.location.type_.0 == 0 {
        return Err(CUresult::CUDA_ERROR_INVALID_VALUE);
    }
    if asked.allocType != CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    let on_device = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
    if asked.location.type_ != on_device || asked.handleTypes.0 & !POSIX_FILE != 0 {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: with this type the location holds an ordinal; every bit pattern is one.
    let ordinal: c_int = unsafe { asked.location.__bindgen_anon_1.id };
    let device = driver.device(ordinal)?.info.index;
    let max_bytes = match asked.maxSize as u64 {
        0 => u64::MAX,
        bytes => bytes,
    };
    let sharing = match asked.handleTypes.0 {
        0 => Sharing::Private,
        // Process ids tell processes apart, and the number its pools.
        _ => Sharing::Exportable(u64::from(std::process::id()) << 32 | driver.number()),
    };
    let pool = Pool::new(device, false, max_bytes, sharing);
    out.write(driver.pools.add(Arc::new(pool)));
    Ok(())
}

fn destroy(handle: CUmemoryPool) -> Answer {
    let driver = driver()?;
    let pool = find(handle)?;
    if pool.is_default {
        return Err(CUresult::CUDA_ERROR_NOT_PERMITTED);
    }
    pool.contents.lock().is_destroyed = true;
    let mut current = driver.devices[pool.device].current_pool.lock();
    current.take_if(|chosen| Arc::ptr_eq(chosen, &pool));
    drop(current);
    end_if_unused(driver, &pool)
}

fn trim_to(handle: CUmemoryPool, keep: usize) -> Answer {
    find(handle)?.trim(driver()?, keep as u64)
}

fn reuse_index(attribute: CUmemPool_attribute) -> Option<usize> {
    match attribute {
        A::CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES => Some(0),
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC => Some(1),
        A::CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES => Some(2),
        _ => None,
    }
}

fn attribute(handle: CUmemoryPool, attribute: CUmemPool_attribute, out: *mut c_void) -> Answer {
    let pool = find(handle)?;
    if let Some(index) = reuse_index(attribute) {
        return put(out.cast(), pool.reuse[index].load(Ordering::Relaxed));
    }
    let contents = pool.contents.lock();
    let value = match attribute {
        A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold.load(Ordering::Relaxed),
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT => contents.reserved,
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH => contents.reserved_high,
        A::CU_MEMPOOL_ATTR_USED_MEM_CURRENT => contents.used,
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH => contents.used_high,
        _ => return Err(INVALID_VALUE),
    };
    drop(contents);
    put(out.cast(), value)
}

/// High-water marks can be set to 0 only: they begin anew.
fn set_attribute(
    handle: CUmemoryPool,
    attribute: CUmemPool_attribute,
    value: *mut c_void,
) -> Answer {
    let pool = find(handle)?;
    if let Some(index) = reuse_index(attribute) {
        let value = take(value.cast::<u32>())?;
        pool.reuse[index].store(value, Ordering::Relaxed);
        return Ok(());
    }
    let value = take(value.cast::<u64>())?;
    let mut contents = pool.contents.lock();
    match attribute {
        A::CU_MEMPOOL_ATTR_RELEASE_THRESHOLD => pool.threshold.store(value, Ordering::Relaxed),
        A::CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH if value == 0 => {
            contents.reserved_high = contents.reserved;
        }
        A::CU_MEMPOOL_ATTR_USED_MEM_HIGH if value == 0 => contents.used_high = contents.used,
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

fn set_access(handle: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) -> Answer {
    let pool = find(handle)?;
    let driver = driver()?;
    let mut peers = pool.peers.load(Ordering::Relaxed);
    for index in 0..count {
        let asked = take(map.wrapping_add(index))?;
        // SAFETY: every bit pattern is an ordinal; another type of location is refused below.
        let ordinal: c_int = unsafe { asked.location.__bindgen_anon_1.id };
        let on_device = CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE;
        if asked.location.type_ != on_device {
            return Err(INVALID_VALUE);
        }
        let device = driver.device(ordinal)?.info.index;
        let bit = 1 << device;
        match asked.flags {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE if device == pool.device => {}
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE => {
                peers |= bit;
            }
            // The pool's own device always has access.
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE if device != pool.device => {
                peers &= !bit;
            }
            _ => return Err(INVALID_VALUE),
        }
    }
    pool.peers.store(peers, Ordering::Relaxed);
    Ok(())
}

fn access(
    out: *mut CUmemAccess_flags,
    handle: CUmemoryPool,
    location: *mut CUmemLocation,
) -> Answer {
    let pool = find(handle)?;
    let asked = take(location)?;
    // SAFETY: every bit pattern is an ordinal.
    let ordinal: c_int = unsafe { asked.__bindgen_anon_1.id };
    let device = driver()?.device(ordinal)?.info.index;
    let is_peer = pool.peers.load(Ordering::Relaxed) & (1 << device) != 0;
    put(
        out,
        if device == pool.device || is_peer {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_NONE
        },
    )
}

driver! {
    cuMemAllocAsync(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream) => allocate_async::<Plain>;
    cuMemAllocAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, h_stream: CUstream) => allocate_async::<PerThread>;
    cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream) => allocate_from::<Plain>;
    cuMemAllocFromPoolAsync_ptsz(dptr: *mut CUdeviceptr, bytesize: usize, pool: CUmemoryPool, h_stream: CUstream) => allocate_from::<PerThread>;
    cuMemFreeAsync(dptr: CUdeviceptr, h_stream: CUstream) => free_async::<Plain>;
    cuMemFreeAsync_ptsz(dptr: CUdeviceptr, h_stream: CUstream) => free_async::<PerThread>;
    cuDeviceGetDefaultMemPool(pool_out: *mut CUmemoryPool, dev: CUdevice) => device_default;
    cuDeviceGetMemPool(pool: *mut CUmemoryPool, dev: CUdevice) => device_pool;
    cuDeviceSetMemPool(dev: CUdevice, pool: CUmemoryPool) => set_device_pool;
    cuMemPoolCreate(pool: *mut CUmemoryPool, pool_props: *const CUmemPoolProps) => create;
    cuMemPoolDestroy(pool: CUmemoryPool) => destroy;
    cuMemPoolTrimTo(pool: CUmemoryPool, min_bytes_to_keep: usize) => trim_to;
    cuMemPoolGetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) => attribute;
    cuMemPoolSetAttribute(pool: CUmemoryPool, attr: CUmemPool_attribute, value: *mut c_void) => set_attribute;
    cuMemPoolSetAccess(pool: CUmemoryPool, map: *const CUmemAccessDesc, count: usize) => set_access;
    cuMemPoolGetAccess(flags: *mut CUmemAccess_flags, mem_pool: CUmemoryPool, location: *mut CUmemLocation) => access;
}
