//! Memory of graphs.
//!
//! The addresses of an allocation node are fixed when it is made. A launch puts device memory behind
//! them, which stays there when it is freed, for the next launch, until `cuDeviceGraphMemTrim`. Nodes do
//! not share it. What touches the addresses at another time, which is an error that drivers need not
//! find, touches nothing.

use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::sync::{Arc, Weak};

use ffi::driver::{CUdevice, CUgraphMem_attribute, CUgraphMem_attribute_enum as A, CUresult};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use parking_lot::Mutex;
use sim::hardware::memory::LARGE_PAGE_BYTES;
use sim::proto::{Command, MAX_DEVICES};

use crate::guard::{Answer, INVALID_VALUE, put, take};
use crate::memory::open_to_host;
use crate::ranges::{Kind, Range, Reservation};
use crate::state::{Driver, driver};
use crate::stream::Stream;

/// An allocation node's memory.
pub(crate) struct Site {
    device: usize,
    /// What was asked for, and whole pages of it.
    asked: u64,
    bytes: u64,
    /// What the host is given.
    addresses: Reservation,
    /// Where the library reaches the bytes.
    reach: Reservation,
    backing: Mutex<Backing>,
}

#[derive(Default)]
struct Backing {
    block: Option<u64>,
    is_used: bool,
    /// The lane and the operation that it was freed by.
    freed: (u32, u64),
}

/// Bytes of one device's graphs: now, and at most.
#[derive(Clone, Copy, Default)]
struct Counts {
    used: [u64; 2],
    reserved: [u64; 2],
}

#[derive(Default)]
struct All {
    sites: Vec<Weak<Site>>,
    /// Those with device memory, which outlives graph and executable.
    backed: Vec<Arc<Site>>,
}

static ALL: Mutex<All> = Mutex::new(All {
    sites: Vec::new(),
    backed: Vec::new(),
});
static COUNTS: Mutex<[Counts; MAX_DEVICES]> = Mutex::new(
    [Counts {
        used: [0; 2],
        reserved: [0; 2],
    }; MAX_DEVICES],
);

/// Raises or lowers a count, and keeps the highest.
fn change(count: &mut [u64; 2], by: i64) {
    count[0] = count[0].saturating_add_signed(by);
    count[1] = count[1].max(count[0]);
}

/// Lets what touches a stretch of addresses touch nothing.
fn blank(at: u64, bytes: u64) -> Answer {
    let refused = CUresult::CUDA_ERROR_OUT_OF_MEMORY;
    let at = NonZeroUsize::new(at as usize);
    let length = NonZeroUsize::new(bytes as usize).ok_or(refused)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    let flags = MapFlags::MAP_PRIVATE | MapFlags::MAP_FIXED | MapFlags::MAP_NORESERVE;
    // SAFETY: the place lies inside a reservation of our own, where nothing else is mapped.
    let mapped = unsafe { mmap_anonymous(at, length, protection, flags) };
    mapped.map(drop).map_err(|_| refused)
}

impl Site {
    /// Addresses for `bytes` of a device's memory.
    pub(crate) fn new(driver: &Driver, device: usize, bytes: u64) -> Answer<Arc<Self>> {
        let asked = bytes;
        let rounded = bytes.checked_next_multiple_of(LARGE_PAGE_BYTES);
        let bytes = rounded.filter(|bytes| *bytes > 0).ok_or(INVALID_VALUE)?;
        let reserve = || {
            Reservation::new(bytes as usize, LARGE_PAGE_BYTES as usize)
                .map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)
        };
        let (addresses, reach) = (reserve()?, reserve()?);
        blank(reach.span().start, bytes)?;
        driver.ranges.add_window(&addresses);
        driver.ranges.add(Range {
            start: addresses.span().start,
            bytes,
            kind: Kind::Graph,
            reach: reach.span().start as *mut u8,
            device,
            context: 0,
            block: 0,
            number: driver.number(),
            extra: 0,
            is_accessible: true,
        });
        let site = Arc::new(Self {
            device,
            asked,
            bytes,
            addresses,
            reach,
            backing: Mutex::new(Backing::default()),
        });
        let mut all = ALL.lock();
        all.sites.retain(|site| site.strong_count() > 0);
        all.sites.push(Arc::downgrade(&site));
        Ok(site)
    }

    /// The first address.
    pub(crate) fn start(&self) -> u64 {
        self.addresses.span().start
    }

    /// Number of its device, as the hardware counts.
    pub(crate) fn device(&self) -> usize {
        self.device
    }

    /// The size that was asked for.
    pub(crate) fn asked(&self) -> u64 {
        self.asked
    }

    /// Whether a launch has allocated it and nobody freed it.
    pub(crate) fn is_used(&self) -> bool {
        self.backing.lock().is_used
    }

    /// Allocates it for a launch.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if it is allocated; `CUDA_ERROR_OUT_OF_MEMORY`.
    pub(crate) fn allocate(self: &Arc<Self>, driver: &Driver) -> Answer {
        let mut backing = self.backing.lock();
        if backing.is_used {
            return Err(INVALID_VALUE);
        }
        if backing.block.is_none() {
            let window = driver.devices[self.device].window(driver)?;
            let block = driver.link.allocate(self.device, self.bytes, 0)?;
            let start = self.reach.span().start;
            let mapped = open_to_host(window.file.as_fd(), block.offset, start, self.bytes);
            if let Err(code) = mapped {
                driver.link.release(self.device, block.id)?;
                return Err(code);
            }
            backing.block = Some(block.id);
            change(
                &mut COUNTS.lock()[self.device].reserved,
                self.bytes.cast_signed(),
            );
            ALL.lock().backed.push(Arc::clone(self));
        }
        backing.is_used = true;
        change(
            &mut COUNTS.lock()[self.device].used,
            self.bytes.cast_signed(),
        );
        Ok(())
    }

    /// Frees it, when `stream` gets there if one is named.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` if it is not allocated.
    pub(crate) fn free(&self, driver: &Driver, stream: Option<&Stream>) -> Answer {
        let mark = Command::Mark {
            event: u32::MAX,
            generation: 0,
        };
        if !self.is_used() {
            return Err(INVALID_VALUE);
        }
        let freed = match stream {
            Some(stream) => Some((stream.lane.slot, stream.submit(driver, mark)?)),
            None => None,
        };
        let mut backing = self.backing.lock();
        if !std::mem::take(&mut backing.is_used) {
            return Err(INVALID_VALUE);
        }
        // Without a stream, an earlier use may still go on behind the earlier free.
        if let Some(freed) = freed {
            backing.freed = freed;
        }
        change(
            &mut COUNTS.lock()[self.device].used,
            -self.bytes.cast_signed(),
        );
        Ok(())
    }

    /// Gives its device memory back if nobody uses it; says whether it has none any more.
    fn trim(&self, driver: &Driver) -> Answer<bool> {
        let mut backing = self.backing.lock();
        let (slot, sequence) = backing.freed;
        if backing.is_used || driver.link.done(slot) < sequence {
            return Ok(false);
        }
        if let Some(block) = backing.block.take() {
            blank(self.reach.span().start, self.bytes)?;
            change(
                &mut COUNTS.lock()[self.device].reserved,
                -self.bytes.cast_signed(),
            );
            driver.link.release(self.device, block)?;
        }
        Ok(true)
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        if let Ok(driver) = driver() {
            let start = self.start();
            driver
                .ranges
                .remove(start, |range| range.kind == Kind::Graph);
            driver.ranges.remove_window(start);
        }
    }
}

/// The site that begins at `address`.
pub(crate) fn find(address: u64) -> Option<Arc<Site>> {
    let sites: Vec<_> = {
        let all = ALL.lock();
        all.sites.iter().filter_map(Weak::upgrade).collect()
    };
    sites.into_iter().find(|site| site.start() == address)
}

fn attribute(device: CUdevice, which: CUgraphMem_attribute, out: *mut c_void) -> Answer {
    let index = driver()?.device(device)?.info.index;
    let counts = COUNTS.lock()[index];
    let value = match which {
        A::CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT => counts.used[0],
        A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => counts.used[1],
        A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT => counts.reserved[0],
        A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => counts.reserved[1],
        _ => return Err(INVALID_VALUE),
    };
    put(out.cast::<u64>(), value)
}

/// Only the highest counts can be set, and only to zero: they begin anew at what is now.
fn set_attribute(device: CUdevice, which: CUgraphMem_attribute, value: *mut c_void) -> Answer {
    let index = driver()?.device(device)?.info.index;
    if take(value.cast::<u64>())? != 0 {
        return Err(INVALID_VALUE);
    }
    let counts = &mut COUNTS.lock()[index];
    let count = match which {
        A::CU_GRAPH_MEM_ATTR_USED_MEM_HIGH => &mut counts.used,
        A::CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH => &mut counts.reserved,
        _ => return Err(INVALID_VALUE),
    };
    count[1] = count[0];
    Ok(())
}

fn trim(device: CUdevice) -> Answer {
    let driver = driver()?;
    let index = driver.device(device)?.info.index;
    driver.settle();
    let backed = ALL.lock().backed.clone();
    for site in backed.iter().filter(|site| site.device == index) {
        if site.trim(driver)? {
            ALL.lock().backed.retain(|known| !Arc::ptr_eq(known, site));
        }
    }
    Ok(())
}

driver! {
    cuDeviceGetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) => attribute;
    cuDeviceSetGraphMemAttribute(device: CUdevice, attr: CUgraphMem_attribute, value: *mut c_void) => set_attribute;
    cuDeviceGraphMemTrim(device: CUdevice) => trim;
}
