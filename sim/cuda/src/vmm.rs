//! Virtual memory management: reserved addresses, physical handles, and mappings between them.
//!
//! Physical memory lives until its last handle and its last mapping are gone. Other processes
//! have it by descriptor. Memory on the host is refused.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_ulonglong, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use ffi::driver::{
    CUdeviceptr, CUmemAccessDesc, CUmemAllocationGranularity_flags, CUmemAllocationHandleType,
    CUmemAllocationProp, CUmemAllocationType_enum, CUmemGenericAllocationHandle, CUmemLocation,
    CUmemLocationType_enum, CUresult,
};
use parking_lot::Mutex;
use sim::hardware::memory::LARGE_PAGE_BYTES;

use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::ranges::{Kind, Range, Reservation};
use crate::registry::handle_of;
use crate::sharing;
use crate::state::{self, Driver, driver};

/// `CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR`.
const POSIX_FILE: u32 = 1;

/// Access that reads and writes; the only kind that there is besides none.
const READ_WRITE: u32 = 3;

/// Physical memory.
pub(crate) struct Physical {
    /// Its device.
    pub(crate) device: usize,
    block: u64,
    /// Bytes.
    pub(crate) bytes: u64,
    /// Where it lies in the device's file.
    pub(crate) offset: u64,
    property: Property,
    /// Handles that the host holds.
    handles: AtomicU32,
}

impl Physical {
    /// Keeps it alive, as a mapping does.
    pub(crate) fn hold(&self, driver: &Driver) -> Answer {
        driver.link.retain(self.device, self.block)
    }

    /// Ends what [`Physical::hold`] began.
    pub(crate) fn let_go(&self, driver: &Driver) -> Answer {
        driver.link.release(self.device, self.block)
    }
}

/// What the host asked for, as it is given back.
struct Property(CUmemAllocationProp);

// SAFETY: the pointer in it is null: what is not is refused.
unsafe impl Send for Property {}
// SAFETY: as above.
unsafe impl Sync for Property {}

/// Reserved addresses by their first.
static RESERVED: Mutex<BTreeMap<u64, Reservation>> = Mutex::new(BTreeMap::new());

/// What is mapped where.
static MAPPED: Mutex<BTreeMap<u64, Arc<Physical>>> = Mutex::new(BTreeMap::new());

/// The device that a location names.
///
/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` for the host, `CUDA_ERROR_INVALID_DEVICE` for no device.
fn device_of(driver: &Driver, location: &CUmemLocation) -> Answer<usize> {
    match location.type_ {
        CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE => {
            // SAFETY: with this type the location holds an ordinal; every bit pattern is one.
            let ordinal: c_int = unsafe { location.__bindgen_anon_1.id };
            Ok(driver.device(ordinal)?.info.index)
        }
        CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST
        | CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA
        | CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT
        | CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN => {
            Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
        }
        _ => Err(INVALID_VALUE),
    }
}

fn checked(
    driver: &Driver,
    property: *const CUmemAllocationProp,
) -> Answer<(CUmemAllocationProp, usize)> {
    let property = take(property)?;
    if property.type_ != CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED {
        return Err(INVALID_VALUE);
    }
    let device = device_of(driver, &property.location)?;
    if property.requestedHandleTypes.0 & !POSIX_FILE != 0 || !property.win32HandleMetaData.is_null()
    {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    Ok((property, device))
}

fn is_granular(value: u64) -> bool {
    value != 0 && value.is_multiple_of(LARGE_PAGE_BYTES)
}

fn create(
    out: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    property: *const CUmemAllocationProp,
    flags: c_ulonglong,
) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let bytes = bytes as u64;
    let (property, device) = checked(driver, property)?;
    if flags != 0 || !is_granular(bytes) {
        return Err(INVALID_VALUE);
    }
    let block = driver.link.allocate(device, bytes, 0)?;
    let physical = Physical {
        device,
        block: block.id,
        bytes,
        offset: block.offset,
        property: Property(property),
        handles: AtomicU32::new(1),
    };
    let handle: *mut c_void = driver.physicals.add(Arc::new(physical));
    out.write(handle as u64);
    Ok(())
}

/// The memory behind a handle.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) fn find(driver: &Driver, handle: CUmemGenericAllocationHandle) -> Answer<Arc<Physical>> {
    driver
        .physicals
        .find(handle as usize as *mut c_void)
        .ok_or(INVALID_VALUE)
}

fn release(handle: CUmemGenericAllocationHandle) -> Answer {
    let driver = driver()?;
    let physical = find(driver, handle)?;
    if physical.handles.fetch_sub(1, Ordering::AcqRel) > 1 {
        return Ok(());
    }
    driver.physicals.remove(handle as usize as *mut c_void);
    driver.link.release(physical.device, physical.block)
}

/// Another handle to what is mapped at an address; equal to the first while that is held.
fn retain(out: *mut CUmemGenericAllocationHandle, address: *mut c_void) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let is_mapped = |range: &Range| range.kind == Kind::Mapped;
    let range = driver.ranges.find(address as u64).filter(is_mapped);
    let start = range.ok_or(INVALID_VALUE)?.start;
    let mapped = MAPPED.lock();
    let physical = mapped.get(&start).ok_or(INVALID_VALUE)?;
    if physical.handles.fetch_add(1, Ordering::AcqRel) == 0 {
        driver.link.retain(physical.device, physical.block)?;
        driver.physicals.add::<c_void>(Arc::clone(physical));
    }
    out.write(handle_of::<Physical, c_void>(physical) as u64);
    Ok(())
}

fn reserve(
    out: *mut CUdeviceptr,
    bytes: usize,
    align: usize,
    _wish: CUdeviceptr,
    flags: c_ulonglong,
) -> Answer {
    let out = Out::claim(out)?;
    let align = align.max(LARGE_PAGE_BYTES as usize);
    if flags != 0 || !is_granular(bytes as u64) || !align.is_power_of_two() {
        return Err(INVALID_VALUE);
    }
    let reservation = Reservation::new(bytes, align);
    let reservation = reservation.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    driver()?.ranges.add_window(&reservation);
    let start = reservation.span().start;
    RESERVED.lock().insert(start, reservation);
    out.write(start);
    Ok(())
}

fn free_address(start: CUdeviceptr, bytes: usize) -> Answer {
    let driver = driver()?;
    let mut reserved = RESERVED.lock();
    let span = reserved.get(&start).ok_or(INVALID_VALUE)?.span();
    if span.end - span.start != bytes as u64 || driver.ranges.is_taken(span.start, span.end) {
        return Err(INVALID_VALUE);
    }
    driver.ranges.remove_window(start);
    reserved.remove(&start);
    Ok(())
}

/// Whether one reservation contains all of these addresses.
fn is_reserved(start: u64, end: u64) -> bool {
    let reserved = RESERVED.lock();
    let before = reserved.range(..=start).next_back();
    before.is_some_and(|(_, reservation)| end <= reservation.span().end)
}

fn map(
    start: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> Answer {
    let driver = driver()?;
    let bytes = bytes as u64;
    let physical = find(driver, handle)?;
    let is_sound = is_granular(start) && is_granular(bytes) && flags == 0 && offset == 0;
    let end = start.checked_add(bytes).ok_or(INVALID_VALUE)?;
    if !is_sound || bytes > physical.bytes || !is_reserved(start, end) {
        return Err(INVALID_VALUE);
    }
    let mut mapped = MAPPED.lock();
    if driver.ranges.is_taken(start, end) {
        return Err(INVALID_VALUE);
    }
    let window = driver.devices[physical.device].window(driver)?;
    let reach = window.bytes_at(physical.offset, bytes)?;
    driver.link.retain(physical.device, physical.block)?;
    driver.ranges.add(Range {
        start,
        bytes,
        kind: Kind::Mapped,
        reach,
        device: physical.device,
        context: 0,
        block: physical.block,
        number: driver.number(),
        extra: 0,
        is_accessible: false,
    });
    mapped.insert(start, physical);
    Ok(())
}

/// The mappings that fill `start..end` exactly.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` if there is a hole, or one reaches beyond.
fn mappings(driver: &Driver, start: u64, bytes: usize) -> Answer<Vec<Range>> {
    let end = start.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
    let found = driver.ranges.within(start, end);
    let mut at = start;
    for range in &found {
        if range.kind != Kind::Mapped || range.start != at {
            return Err(INVALID_VALUE);
        }
        at = range.end();
    }
    if at == end && bytes > 0 {
        Ok(found)
    } else {
        Err(INVALID_VALUE)
    }
}

fn unmap(start: CUdeviceptr, bytes: usize) -> Answer {
    let driver = driver()?;
    mappings(driver, start, bytes)?;
    if let Some(context) = state::current_or_none().filter(|context| context.is_alive()) {
        context.synchronize(driver)?;
    }
    let mut mapped = MAPPED.lock();
    for range in mappings(driver, start, bytes)? {
        driver.ranges.remove(range.start, |_| true);
        mapped.remove(&range.start);
        driver.link.release(range.device, range.block)?;
    }
    Ok(())
}

fn set_access(
    start: CUdeviceptr,
    bytes: usize,
    descriptions: *const CUmemAccessDesc,
    count: usize,
) -> Answer {
    let driver = driver()?;
    mappings(driver, start, bytes)?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let mut changes = Vec::with_capacity(count);
    for index in 0..count {
        let description = take(descriptions.wrapping_add(index))?;
        let device = device_of(driver, &description.location)?;
        if !matches!(description.flags.0, 0 | 1 | READ_WRITE) {
            return Err(INVALID_VALUE);
        }
        changes.push((device, description.flags.0 != 0));
    }
    for (device, is_accessible) in changes {
        let end = start + bytes as u64;
        driver
            .ranges
            .set_accessible(start, end, device, is_accessible);
    }
    Ok(())
}

fn access(out: *mut c_ulonglong, location: *const CUmemLocation, address: CUdeviceptr) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let device = device_of(driver, &take(location)?)?;
    let is_mapped = |range: &Range| range.kind == Kind::Mapped;
    let range = driver.ranges.find(address).filter(is_mapped);
    let range = range.ok_or(INVALID_VALUE)?;
    let has_access = range.is_accessible_from(device);
    out.write(if has_access { u64::from(READ_WRITE) } else { 0 });
    Ok(())
}

fn granularity(
    out: *mut usize,
    property: *const CUmemAllocationProp,
    option: CUmemAllocationGranularity_flags,
) -> Answer {
    let out = Out::claim(out)?;
    checked(driver()?, property)?;
    if option.0 > 1 {
        return Err(INVALID_VALUE);
    }
    out.write(LARGE_PAGE_BYTES as usize);
    Ok(())
}

fn property(out: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) -> Answer {
    put(out, find(driver()?, handle)?.property.0)
}

fn export(
    out: *mut c_void,
    handle: CUmemGenericAllocationHandle,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let driver = driver()?;
    let physical = find(driver, handle)?;
    sharing::check_kind(kind, flags)?;
    if physical.property.0.requestedHandleTypes.0 & POSIX_FILE == 0 {
        return Err(INVALID_VALUE);
    }
    let file = driver.link.export(physical.device, physical.block, 0)?;
    sharing::put_file(out, file)
}

/// A handle of this process's own to what a descriptor stands for; the descriptor stays the host's.
fn import(
    out: *mut CUmemGenericAllocationHandle,
    given: *mut c_void,
    kind: CUmemAllocationHandleType,
) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    sharing::check_kind(kind, 0)?;
    let found = sharing::import(driver, sharing::file_in(given)?)?;
    if found.block.id == 0 {
        return Err(INVALID_VALUE);
    }
    let mut property = CUmemAllocationProp {
        type_: CUmemAllocationType_enum::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: kind,
        location: CUmemLocation {
            type_: CUmemLocationType_enum::CU_MEM_LOCATION_TYPE_DEVICE,
            // SAFETY: plain numbers; the ordinal is written below.
            ..unsafe { std::mem::zeroed() }
        },
        win32HandleMetaData: std::ptr::null_mut(),
        // SAFETY: plain numbers, of which zero says "nothing special".
        allocFlags: unsafe { std::mem::zeroed() },
    };
    property.location.__bindgen_anon_1.id = driver.devices[found.device].ordinal();
    let physical = Physical {
        device: found.device,
        block: found.block.id,
        bytes: found.block.charged_bytes,
        offset: found.block.offset,
        property: Property(property),
        handles: AtomicU32::new(1),
    };
    let handle: *mut c_void = driver.physicals.add(Arc::new(physical));
    out.write(handle as u64);
    Ok(())
}

driver! {
    cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong) => create;
    cuMemRelease(handle: CUmemGenericAllocationHandle) => release;
    cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, addr: *mut c_void) => retain;
    cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong) => reserve;
    cuMemAddressFree(ptr: CUdeviceptr, size: usize) => free_address;
    cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) => map;
    cuMemUnmap(ptr: CUdeviceptr, size: usize) => unmap;
    cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize) => set_access;
    cuMemGetAccess(flags: *mut c_ulonglong, location: *const CUmemLocation, ptr: CUdeviceptr) => access;
    cuMemGetAllocationGranularity(out: *mut usize, prop: *const CUmemAllocationProp, option: CUmemAllocationGranularity_flags) => granularity;
    cuMemGetAllocationPropertiesFromHandle(prop: *mut CUmemAllocationProp, handle: CUmemGenericAllocationHandle) => property;
    cuMemExportToShareableHandle(shareable_handle: *mut c_void, handle: CUmemGenericAllocationHandle, handle_type: CUmemAllocationHandleType, flags: c_ulonglong) => export;
    cuMemImportFromShareableHandle(handle: *mut CUmemGenericAllocationHandle, os_handle: *mut c_void, sh_handle_type: CUmemAllocationHandleType) => import;
}
