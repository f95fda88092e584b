//! This process's account: reserve before the driver is asked, release after it has freed.

use crate::attach;
use crate::device::{self, Index};
use crate::graph_memory;
use crate::pool;
use crate::session::Seat;
use crate::vmm;
use ffi::sync::Ordering;
use ffi::wire::{MAX_DEVICES, Refusable};
use ledger::{Books, PageAccounts};
use parking_lot::Mutex;

/// The account has one writer at a time; the threads of the process take turns, for some nanoseconds.
static TURNS: [Mutex<()>; MAX_DEVICES] = [const { Mutex::new(()) }; MAX_DEVICES];

/// It does not fit under the cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OverCap;

/// Memory that is counted but not yet allocated; given back where it is dropped.
pub(crate) struct Reservation {
    seat: Seat,
    device: Index,
    request: Request,
    units: u64,
}

impl Reservation {
    /// The driver has allocated: the charge stays until [`release`].
    pub(crate) fn commit(self) -> u64 {
        let units = self.units;
        std::mem::forget(self);
        units
    }

    /// The driver has allocated, but `units`: corrects the charge.
    ///
    /// # Errors
    /// [`OverCap`]: the larger size does not fit; the reservation stands as it was.
    pub(crate) fn adjust(&mut self, units: u64) -> Result<(), OverCap> {
        if let Some(more) = units.checked_sub(self.units) {
            let request = Request {
                bytes: ledger::bytes(units),
                ..self.request
            };
            reserve(self.seat, self.device, request, more)?.commit();
        } else {
            release(self.seat, self.device, self.units - units);
        }
        self.units = units;
        Ok(())
    }

    /// The driver has allocated `units`, more than was reserved, and does not take them back: counts them
    /// whatever the cap says.
    pub(crate) fn insist(&mut self, units: u64) {
        charge(self.seat, self.device, units.saturating_sub(self.units));
        self.units = self.units.max(units);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        release(self.seat, self.device, self.units);
    }
}

/// What a program asked for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request {
    function: Refusable,
    bytes: u64,
}

impl Request {
    /// `bytes`, asked of `function`.
    pub(crate) fn of(function: Refusable, bytes: u64) -> Self {
        Self { function, bytes }
    }

    /// How much.
    pub(crate) fn bytes(self) -> u64 {
        self.bytes
    }
}

/// Counts a request against the cap of `device`, of which `units` are new.
///
/// Before it refuses, this process's own pools and graphs give back what they only keep, and the daemon looks once
/// for processes of the tenant that have died.
///
/// # Errors
/// [`OverCap`]: it does not fit, and nothing has changed but the count of refusals.
pub(crate) fn reserve(
    seat: Seat,
    device: Index,
    request: Request,
    units: u64,
) -> Result<Reservation, OverCap> {
    let is_reserved = try_reserve(seat, device, units)
        || (vmm::look_again(seat) && try_reserve(seat, device, units))
        || (pool::trim(seat) && try_reserve(seat, device, units))
        || (graph_memory::trim(seat) && try_reserve(seat, device, units))
        || (attach::sweep(seat) && try_reserve(seat, device, units));
    if is_reserved {
        return Ok(Reservation {
            seat,
            device,
            request,
            units,
        });
    }
    count_refusal(seat, device, request);
    Err(OverCap)
}

/// Whether `bytes` fit under the cap of `device` if nothing else is there.
pub(crate) fn can_ever_fit(seat: Seat, device: Index, bytes: u64) -> bool {
    ledger::units(bytes) <= ledger::cap_units(room_bytes(seat, device))
}

/// Counts a request that was refused for good.
pub(crate) fn count_refusal(seat: Seat, device: Index, request: Request) {
    let Request { function, bytes } = request;
    if let Some(books) = books(seat, device) {
        books.count_refusal_of(function, bytes);
    }
}

/// As [`reserve`], without making room, counting, or a value that gives back.
pub(crate) fn try_reserve(seat: Seat, device: Index, units: u64) -> bool {
    let (Some(books), Some(turn)) = (books(seat, device), TURNS.get(device.get())) else {
        return false;
    };
    let limit = ledger::cap_units(room_bytes(seat, device));
    let _turn = turn.lock();
    books.reserve(seat.slot, units, limit).is_ok()
}

/// Counts `units` whatever the cap says: for what the driver has given already.
pub(crate) fn charge(seat: Seat, device: Index, units: u64) {
    if let (Some(books), Some(turn)) = (books(seat, device), TURNS.get(device.get())) {
        let _turn = turn.lock();
        books.charge(seat.slot, units);
    }
}

/// Gives `units` back, after the driver has freed them.
pub(crate) fn release(seat: Seat, device: Index, units: u64) {
    if let (Some(books), Some(turn)) = (books(seat, device), TURNS.get(device.get())) {
        let _turn = turn.lock();
        books.release(seat.slot, units);
    }
}

/// What of the tenant's cap on `device` is for allocations, in bytes, as it is now.
fn room_bytes(seat: Seat, device: Index) -> u64 {
    device::control(seat.pages, device).map_or(0, |device| {
        // Acquire: a cap that was lowered counts from the next request on.
        let cap = device.memory_limit_bytes.load(Ordering::Acquire);
        if device.is_held_by_driver.load(Ordering::Relaxed) != 0 {
            // It counts contexts and code itself, and later than it the audit would refuse what it gives.
            return cap;
        }
        cap.saturating_sub(device.set_aside_bytes.load(Ordering::Relaxed))
    })
}

/// Whether contexts and code, as they were measured, and allocations are more than the cap of `device` allows.
///
/// Nothing where contexts take nothing, or where the driver counts them itself.
pub(crate) fn is_over(seat: Seat, device: Index) -> bool {
    let Some(control) = device::control(seat.pages, device) else {
        return false;
    };
    let set_aside = control.set_aside_bytes.load(Ordering::Relaxed);
    if set_aside == 0 || control.is_held_by_driver.load(Ordering::Relaxed) != 0 {
        return false;
    }
    let held = books(seat, device).map_or(0, |books| ledger::bytes(books.held_units()));
    // Acquire: a cap that was lowered counts from the next request on.
    held.saturating_add(set_aside) > control.memory_limit_bytes.load(Ordering::Acquire)
}

fn books(seat: Seat, device: Index) -> Option<Books<'static, PageAccounts<'static>>> {
    Books::of(seat.pages.usage, device.get())
}
