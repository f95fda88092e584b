//! Advice about managed memory, and where it was prefetched to.
//!
//! Managed memory of the stand-in lies on its device in full and does not move: what is advised is kept
//! and answered, and a prefetch takes the time of the transfer that it would be. Advice is about ranges
//! of addresses, not allocations, so it is kept as stretches that split where something else is said of
//! a part; a stretch that ends with its allocation is forgotten.
//!
//! Source: CUDA driver API, "Unified Addressing".

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use ffi::driver::{
    CUdevice, CUdeviceptr, CUmem_advise, CUmem_advise_enum as Advise, CUmem_range_attribute,
    CUmem_range_attribute_enum as A, CUmemLocation, CUmemLocationType_enum as Kind, CUstream,
};
use parking_lot::Mutex;
use sim::proto::Command;

use crate::copy::{HOST_BYTES_PER_US, transfer_ns};
use crate::guard::{Answer, INVALID_VALUE, put, take};
use crate::ranges;
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Role};

/// `CU_DEVICE_CPU`.
const CPU: c_int = -1;
/// `CU_DEVICE_INVALID`.
const NOWHERE: c_int = -2;
/// `CU_MEM_ATTACH_GLOBAL`, `CU_MEM_ATTACH_HOST` and `CU_MEM_ATTACH_SINGLE`.
const ATTACHMENTS: [c_uint; 3] = [1, 2, 4];

/// Where memory may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Device(c_int),
    Host,
    Node(c_int),
}

impl Place {
    /// What a device number means, as the first interface spells it.
    fn of_device(driver: &Driver, ordinal: CUdevice) -> Answer<Self> {
        if ordinal == CPU {
            return Ok(Self::Host);
        }
        driver.device(ordinal)?;
        Ok(Self::Device(ordinal))
    }

    /// What a location means.
    fn of(driver: &Driver, location: &CUmemLocation) -> Answer<Self> {
        // SAFETY: every bit pattern is a number; with a type that has none it is not used.
        let id: c_int = unsafe { location.__bindgen_anon_1.id };
        match location.type_ {
            Kind::CU_MEM_LOCATION_TYPE_DEVICE => {
                driver.device(id)?;
                Ok(Self::Device(id))
            }
            Kind::CU_MEM_LOCATION_TYPE_HOST => Ok(Self::Host),
            // One node, as `HOST_NUMA_ID` says nothing of more.
            Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA if id == 0 => Ok(Self::Node(0)),
            Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT => Ok(Self::Node(0)),
            _ => Err(INVALID_VALUE),
        }
    }

    /// As the first interface spells it.
    fn number(self) -> c_int {
        match self {
            Self::Device(ordinal) => ordinal,
            Self::Host | Self::Node(_) => CPU,
        }
    }

    /// Type and number of the location.
    fn location(self) -> (c_uint, c_int) {
        match self {
            Self::Device(ordinal) => (Kind::CU_MEM_LOCATION_TYPE_DEVICE.0, ordinal),
            Self::Host => (Kind::CU_MEM_LOCATION_TYPE_HOST.0, 0),
            Self::Node(node) => (Kind::CU_MEM_LOCATION_TYPE_HOST_NUMA.0, node),
        }
    }
}

/// What is known of a stretch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Advice {
    is_read_mostly: bool,
    preferred: Option<Place>,
    accessed_by: Vec<c_int>,
    prefetched: Option<Place>,
}

/// By first address: the end of each stretch, and what is known of it. Stretches do not overlap.
struct Stretches(BTreeMap<u64, (u64, Advice)>);

static STRETCHES: Mutex<Stretches> = Mutex::new(Stretches(BTreeMap::new()));

impl Stretches {
    /// Makes a border at `at`.
    fn split(&mut self, at: u64) {
        let before = self.0.range(..at).next_back();
        if let Some((start, (end, advice))) = before.map(|(start, known)| (*start, known.clone()))
            && end > at
        {
            self.0.insert(start, (at, advice.clone()));
            self.0.insert(at, (end, advice));
        }
    }

    /// Changes what is known between `start` and `end`.
    fn change(&mut self, start: u64, end: u64, change: impl Fn(&mut Advice)) {
        self.split(start);
        self.split(end);
        let mut at = start;
        while at < end {
            let next = self.0.range(at..end).next();
            let next = next.map(|(start, (end, _))| (*start, *end));
            match next {
                Some((first, until)) if first == at => {
                    if let Some((_, advice)) = self.0.get_mut(&at) {
                        change(advice);
                    }
                    at = until;
                }
                gap => {
                    let until = gap.map_or(end, |(first, _)| first);
                    let mut advice = Advice::default();
                    change(&mut advice);
                    self.0.insert(at, (until, advice));
                    at = until;
                }
            }
        }
    }

    /// What is known between `start` and `end`, stretch by stretch, also where nothing is.
    fn look(&self, start: u64, end: u64) -> Vec<Advice> {
        let mut found = Vec::new();
        let first = self.0.range(..=start).next_back();
        let first = first.filter(|(_, (until, _))| *until > start);
        let mut at = start;
        let from = first.map_or(start, |(start, _)| *start);
        for (begins, (until, advice)) in self.0.range(from..end) {
            if *begins > at {
                found.push(Advice::default());
            }
            found.push(advice.clone());
            at = *until;
        }
        if at < end {
            found.push(Advice::default());
        }
        found
    }

    /// Forgets what is known between `start` and `end`.
    fn forget(&mut self, start: u64, end: u64) {
        self.split(start);
        self.split(end);
        self.0.retain(|begins, _| !(start..end).contains(begins));
    }
}

/// Managed memory has been freed.
pub(crate) fn forget(start: u64, bytes: u64) {
    STRETCHES.lock().forget(start, start + bytes);
}

/// The end of a stretch that is managed memory from the first to the last byte.
fn check(driver: &Driver, start: u64, bytes: usize) -> Answer<u64> {
    let end = start.checked_add(bytes as u64).ok_or(INVALID_VALUE)?;
    if bytes == 0 {
        return Err(INVALID_VALUE);
    }
    let mut at = start;
    while at < end {
        let range = driver.ranges.find(at);
        let range = range.filter(|range| range.kind == ranges::Kind::Managed);
        at = range.ok_or(INVALID_VALUE)?.end();
    }
    Ok(end)
}

fn advise(
    driver: &Driver,
    start: u64,
    bytes: usize,
    advice: CUmem_advise,
    place: impl Fn() -> Answer<Place>,
) -> Answer {
    let end = check(driver, start, bytes)?;
    let mut stretches = STRETCHES.lock();
    match advice {
        // The place is not looked at.
        Advise::CU_MEM_ADVISE_SET_READ_MOSTLY => {
            stretches.change(start, end, |known| known.is_read_mostly = true);
        }
        Advise::CU_MEM_ADVISE_UNSET_READ_MOSTLY => {
            stretches.change(start, end, |known| known.is_read_mostly = false);
        }
        Advise::CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION => {
            stretches.change(start, end, |known| known.preferred = None);
        }
        Advise::CU_MEM_ADVISE_SET_PREFERRED_LOCATION => {
            let place = place()?;
            stretches.change(start, end, |known| known.preferred = Some(place));
        }
        Advise::CU_MEM_ADVISE_SET_ACCESSED_BY => {
            let number = place()?.number();
            stretches.change(start, end, |known| {
                if !known.accessed_by.contains(&number) {
                    known.accessed_by.push(number);
                }
            });
        }
        Advise::CU_MEM_ADVISE_UNSET_ACCESSED_BY => {
            let number = place()?.number();
            stretches.change(start, end, |known| {
                known.accessed_by.retain(|known| *known != number);
            });
        }
        _ => return Err(INVALID_VALUE),
    }
    Ok(())
}

fn advise_v1(start: CUdeviceptr, bytes: usize, advice: CUmem_advise, ordinal: CUdevice) -> Answer {
    let driver = driver()?;
    advise(driver, start, bytes, advice, || {
        Place::of_device(driver, ordinal)
    })
}

fn advise_v2(
    start: CUdeviceptr,
    bytes: usize,
    advice: CUmem_advise,
    location: CUmemLocation,
) -> Answer {
    let driver = driver()?;
    advise(driver, start, bytes, advice, || {
        Place::of(driver, &location)
    })
}

/// Takes the time of the transfer in stream order, unless the memory was prefetched there already.
fn prefetch<F: Flavour>(start: u64, bytes: usize, place: Place, given: CUstream) -> Answer {
    let driver = driver()?;
    let stream = stream::find_for_now::<F>(given)?;
    let end = check(driver, start, bytes)?;
    let is_there = {
        let stretches = STRETCHES.lock();
        let known = stretches.look(start, end);
        known.iter().all(|known| known.prefetched == Some(place))
    };
    let moved = if is_there { 0 } else { bytes as u64 };
    let duration_ns = transfer_ns(moved, HOST_BYTES_PER_US);
    stream.submit(driver, Command::Copy { duration_ns })?;
    let mut stretches = STRETCHES.lock();
    stretches.change(start, end, |known| known.prefetched = Some(place));
    Ok(())
}

fn prefetch_v1<F: Flavour>(
    start: CUdeviceptr,
    bytes: usize,
    ordinal: CUdevice,
    stream: CUstream,
) -> Answer {
    let place = Place::of_device(driver()?, ordinal)?;
    prefetch::<F>(start, bytes, place, stream)
}

fn prefetch_v2<F: Flavour>(
    start: CUdeviceptr,
    bytes: usize,
    location: CUmemLocation,
    flags: c_uint,
    stream: CUstream,
) -> Answer {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    let place = Place::of(driver()?, &location)?;
    prefetch::<F>(start, bytes, place, stream)
}

/// The ranges of a batch; all of them are looked at before anything is done with one.
fn batch(
    driver: &Driver,
    starts: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: c_ulonglong,
) -> Answer<Vec<(u64, usize)>> {
    if flags != 0 || count == 0 {
        return Err(INVALID_VALUE);
    }
    (0..count)
        .map(|index| {
            let start = take(starts.wrapping_add(index))?;
            let bytes = take(sizes.wrapping_add(index))?;
            check(driver, start, bytes)?;
            Ok((start, bytes))
        })
        .collect()
}

/// Where each range of a batch goes: `locations` with the first range that each is for, in rising order.
fn places(
    driver: &Driver,
    locations: *mut CUmemLocation,
    indices: *mut usize,
    known: usize,
    count: usize,
) -> Answer<Vec<Place>> {
    if known == 0 || known > count || take(indices)? != 0 {
        return Err(INVALID_VALUE);
    }
    let mut all = Vec::with_capacity(count);
    for index in 0..known {
        let place = Place::of(driver, &take(locations.wrapping_add(index))?)?;
        let until = match index + 1 {
            next if next == known => count,
            next => take(indices.wrapping_add(next))?,
        };
        if until <= all.len() || until > count {
            return Err(INVALID_VALUE);
        }
        all.resize(until, place);
    }
    Ok(all)
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments are the driver API's"
)]
fn prefetch_batch<F: Flavour>(
    starts: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    locations: *mut CUmemLocation,
    indices: *mut usize,
    known: usize,
    flags: c_ulonglong,
    stream: CUstream,
) -> Answer {
    let driver = driver()?;
    let ranges = batch(driver, starts, sizes, count, flags)?;
    let places = places(driver, locations, indices, known, count)?;
    let mut all = ranges.into_iter().zip(places);
    all.try_for_each(|((start, bytes), place)| prefetch::<F>(start, bytes, place, stream))
}

/// The contents may be anything afterwards; here they stay.
fn discard_batch<F: Flavour>(
    starts: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    flags: c_ulonglong,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    batch(driver, starts, sizes, count, flags)?;
    let stream = stream::find_for_now::<F>(given)?;
    let duration_ns = transfer_ns(0, HOST_BYTES_PER_US);
    stream
        .submit(driver, Command::Copy { duration_ns })
        .map(drop)
}

/// Writes one attribute of a stretch.
fn attribute(
    out: *mut c_void,
    room: usize,
    attribute: CUmem_range_attribute,
    start: CUdeviceptr,
    bytes: usize,
) -> Answer {
    let driver = driver()?;
    let end = check(driver, start, bytes)?;
    let known = STRETCHES.lock().look(start, end);
    let same = |place: fn(&Advice) -> Option<Place>| {
        let first = known.first().and_then(place);
        first.filter(|first| known.iter().all(|known| place(known) == Some(*first)))
    };
    let (preferred, prefetched) = (same(|it| it.preferred), same(|it| it.prefetched));
    let number = |place: Option<Place>| place.map_or(NOWHERE, Place::number);
    let kind = |place: Option<Place>| place.map_or(0, |place| place.location().0 as c_int);
    let id = |place: Option<Place>| place.map_or(NOWHERE, |place| place.location().1);
    if attribute == A::CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY {
        return accessed_by(out.cast(), room, &known);
    }
    if room != size_of::<c_int>() {
        return Err(INVALID_VALUE);
    }
    let value = match attribute {
        A::CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY => {
            c_int::from(known.iter().all(|known| known.is_read_mostly))
        }
        A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION => number(preferred),
        A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION => number(prefetched),
        A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE => kind(preferred),
        A::CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID => id(preferred),
        A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE => kind(prefetched),
        A::CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID => id(prefetched),
        _ => return Err(INVALID_VALUE),
    };
    put(out.cast(), value)
}

/// Those who access the whole stretch, and `CU_DEVICE_INVALID` in the places that are left.
fn accessed_by(out: *mut c_int, room: usize, known: &[Advice]) -> Answer {
    if room == 0 || !room.is_multiple_of(size_of::<c_int>()) {
        return Err(INVALID_VALUE);
    }
    let candidates = known.first().map_or(&[][..], |first| &first.accessed_by);
    let mut everywhere = candidates
        .iter()
        .filter(|number| known.iter().all(|known| known.accessed_by.contains(number)));
    for index in 0..room / size_of::<c_int>() {
        let number = everywhere.next().copied().unwrap_or(NOWHERE);
        put(out.wrapping_add(index), number)?;
    }
    Ok(())
}

fn attributes(
    places: *mut *mut c_void,
    rooms: *mut usize,
    wanted: *mut CUmem_range_attribute,
    count: usize,
    start: CUdeviceptr,
    bytes: usize,
) -> Answer {
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    (0..count).try_for_each(|index| {
        let place = take(places.wrapping_add(index))?;
        let room = take(rooms.wrapping_add(index))?;
        let wanted = take(wanted.wrapping_add(index))?;
        attribute(place, room, wanted, start, bytes)
    })
}

/// Who may touch managed memory; here everybody may, always.
fn attach<F: Flavour>(given: CUstream, start: CUdeviceptr, bytes: usize, flags: c_uint) -> Answer {
    let driver = driver()?;
    let stream = stream::find_for_now::<F>(given)?;
    let range = driver.ranges.find(start);
    let range = range
        .filter(|range| range.kind == ranges::Kind::Managed && range.start == start)
        .ok_or(INVALID_VALUE)?;
    let is_whole = bytes == 0 || bytes as u64 == range.bytes;
    // A single stream is one that has been made, not one that is shared by all.
    let is_single = flags == ATTACHMENTS[2];
    if !is_whole || !ATTACHMENTS.contains(&flags) || (is_single && stream.role == Role::Legacy) {
        return Err(INVALID_VALUE);
    }
    let mark = Command::Mark {
        event: u32::MAX,
        generation: 0,
    };
    stream.submit(driver, mark).map(drop)
}

driver! {
    cuMemAdvise(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, device: CUdevice) => advise_v1;
    cuMemAdvise_v2(dev_ptr: CUdeviceptr, count: usize, advice: CUmem_advise, location: CUmemLocation) => advise_v2;
    cuMemPrefetchAsync(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream) => prefetch_v1::<Plain>;
    cuMemPrefetchAsync_ptsz(dev_ptr: CUdeviceptr, count: usize, dst_device: CUdevice, h_stream: CUstream) => prefetch_v1::<PerThread>;
    cuMemPrefetchAsync_v2(dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, h_stream: CUstream) => prefetch_v2::<Plain>;
    cuMemPrefetchAsync_v2_ptsz(dev_ptr: CUdeviceptr, count: usize, location: CUmemLocation, flags: c_uint, h_stream: CUstream) => prefetch_v2::<PerThread>;
    cuMemPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) => prefetch_batch::<Plain>;
    cuMemPrefetchBatchAsync_ptsz(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) => prefetch_batch::<PerThread>;
    cuMemDiscardBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: c_ulonglong, h_stream: CUstream) => discard_batch::<Plain>;
    cuMemDiscardBatchAsync_ptsz(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, flags: c_ulonglong, h_stream: CUstream) => discard_batch::<PerThread>;
    cuMemDiscardAndPrefetchBatchAsync(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) => prefetch_batch::<Plain>;
    cuMemDiscardAndPrefetchBatchAsync_ptsz(dptrs: *mut CUdeviceptr, sizes: *mut usize, count: usize, prefetch_locs: *mut CUmemLocation, prefetch_loc_idxs: *mut usize, num_prefetch_locs: usize, flags: c_ulonglong, h_stream: CUstream) => prefetch_batch::<PerThread>;
    cuMemRangeGetAttribute(data: *mut c_void, data_size: usize, given: CUmem_range_attribute, dev_ptr: CUdeviceptr, count: usize) => attribute;
    cuMemRangeGetAttributes(data: *mut *mut c_void, data_sizes: *mut usize, given: *mut CUmem_range_attribute, num_attributes: usize, dev_ptr: CUdeviceptr, count: usize) => attributes;
    cuStreamAttachMemAsync(h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint) => attach::<Plain>;
    cuStreamAttachMemAsync_ptsz(h_stream: CUstream, dptr: CUdeviceptr, length: usize, flags: c_uint) => attach::<PerThread>;
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn stretches_say_of_every_byte_what_was_said_of_it_last() {
        let mut stretches = Stretches(BTreeMap::new());
        let mut bytes: HashMap<u64, Advice> = HashMap::new();
        let mut seed = 7u64;
        let mut random = |below: u64| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (seed >> 33) % below
        };
        for _ in 0..400 {
            let start = random(60);
            let end = start + 1 + random(20);
            let device = random(3) as c_int;
            if random(8) == 0 {
                stretches.forget(start, end);
                (start..end).for_each(|at| drop(bytes.remove(&at)));
                continue;
            }
            let change = |known: &mut Advice| known.preferred = Some(Place::Device(device));
            stretches.change(start, end, change);
            (start..end).for_each(|at| change(bytes.entry(at).or_default()));
            for at in 0..90 {
                let expected = bytes.get(&at).cloned().unwrap_or_default();
                assert_eq!(stretches.look(at, at + 1), [expected]);
            }
            let mut last = 0;
            for (start, (end, _)) in &stretches.0 {
                assert!(*start >= last && end > start);
                last = *end;
            }
        }
    }
}
