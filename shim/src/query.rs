//! The cap shown as the size of the GPU: `cuMemGetInfo` and `cuDeviceTotalMem`.
//!
//! The driver answers first; a failure is its own. Total is the cap, but never more than the device has.
//! Free is what the cap leaves, but never more than the driver could give.

use crate::claim::Out;
use crate::device::{self, Index};
use crate::session::{self, Seat};
use crate::vmm;
use ffi::driver::{CUdevice, CUresult};
use ffi::sync::Ordering;
use ffi::wire::DeviceControl;
use ledger::Books;
use std::ffi::c_uint;

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

/// A tenant's view of one device, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct View {
    /// The cap, or the device where that is smaller.
    pub(crate) total: u64,
    /// What can still be allocated.
    pub(crate) free: u64,
}

impl View {
    /// Nothing at all: of a device that is not the tenant's.
    pub(crate) const NOTHING: Self = Self { total: 0, free: 0 };

    /// Under what the daemon says, with so much held, on a device with so much.
    pub(crate) fn under(
        control: &DeviceControl,
        held: u64,
        real_total: u64,
        real_free: u64,
    ) -> Self {
        // Acquire: a cap that was lowered is seen at the next question.
        let limit = control.memory_limit_bytes.load(Ordering::Acquire);
        let set_aside = control.set_aside_bytes.load(Ordering::Relaxed);
        let taken = held.saturating_add(set_aside);
        let real_free = match control.others_give_way.load(Ordering::Relaxed) {
            0 => real_free,
            _ => u64::MAX,
        };
        Self::new(limit, taken, real_total, real_free)
    }

    /// Under a cap of which so much is taken, on a device with so much.
    fn new(limit: u64, taken: u64, real_total: u64, real_free: u64) -> Self {
        // Whole units alone can be allocated, so a rest of the cap is never free.
        let allocatable = ledger::bytes(ledger::cap_units(limit));
        let free = ledger::bytes(ledger::cap_units(allocatable.saturating_sub(taken)));
        Self {
            total: limit.min(real_total),
            free: free.min(real_free),
        }
    }
}

fn view(seat: Seat, device: Option<Index>, real_total: u64, real_free: u64) -> View {
    let Some((device, control)) =
        device.and_then(|device| Some((device, device::control(seat.pages, device)?)))
    else {
        return View::NOTHING;
    };
    vmm::look_again(seat);
    let held = Books::of(seat.pages.usage, device.get()).map_or(0, |books| books.held_units());
    View::under(control, ledger::bytes(held), real_total, real_free)
}

/// Who asks, and so who answers.
enum Asking {
    /// A tenant's process: the driver, then the cap.
    Seat(Seat),
    /// One that the driver does not serve: the driver alone.
    Forward,
    /// One whose `cuInit` succeeded with the driver and failed with us: never the whole GPU.
    Refuse,
}

fn asking() -> Asking {
    match session::seat() {
        Some(seat) => Asking::Seat(seat),
        None if session::is_waiting() => Asking::Refuse,
        None => Asking::Forward,
    }
}

/// `cuMemGetInfo`: of the current context's device.
pub(crate) fn mem_info(
    free: *mut usize,
    total: *mut usize,
    forward: impl FnOnce(*mut usize, *mut usize) -> CUresult,
) -> CUresult {
    info(free, total, forward)
}

/// `cuMemGetInfo` of CUDA 2.
pub(crate) fn mem_info_v1(
    free: *mut c_uint,
    total: *mut c_uint,
    forward: impl FnOnce(*mut c_uint, *mut c_uint) -> CUresult,
) -> CUresult {
    info(free, total, forward)
}

/// A size as some version of the driver counts it.
trait Size: Copy + Default {
    fn widen(self) -> u64;
    /// As much of `bytes` as fits.
    fn narrow(bytes: u64) -> Self;
}

impl Size for usize {
    fn widen(self) -> u64 {
        self as u64
    }

    fn narrow(bytes: u64) -> Self {
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

impl Size for c_uint {
    fn widen(self) -> u64 {
        u64::from(self)
    }

    fn narrow(bytes: u64) -> Self {
        c_uint::try_from(bytes).unwrap_or(c_uint::MAX)
    }
}

/// The driver writes into the host's places, and they are edited after success: what it does to them on
/// failure, and with the nulls that clients pass for what they do not want, is its own affair.
fn info<T: Size>(
    free: *mut T,
    total: *mut T,
    forward: impl FnOnce(*mut T, *mut T) -> CUresult,
) -> CUresult {
    let seat = match asking() {
        Asking::Forward => return forward(free, total),
        Asking::Refuse => return CUresult::CUDA_ERROR_NOT_INITIALIZED,
        Asking::Seat(seat) => seat,
    };
    let result = forward(free, total);
    if result != SUCCESS {
        return result;
    }
    let Ok(device) = device::current(seat.pages) else {
        return result;
    };
    if let Some(total) = Out::claim(total) {
        let view = view(seat, device, total.read().widen(), 0);
        total.write(T::narrow(view.total));
    }
    if let Some(free) = Out::claim(free) {
        let view = view(seat, device, 0, free.read().widen());
        free.write(T::narrow(view.free));
    }
    result
}

/// `cuDeviceTotalMem`: by device, without a context.
pub(crate) fn total_mem(
    bytes: *mut usize,
    device: CUdevice,
    forward: impl FnOnce(*mut usize, CUdevice) -> CUresult,
) -> CUresult {
    total(bytes, device, forward)
}

/// `cuDeviceTotalMem` of CUDA 2.
pub(crate) fn total_mem_v1(
    bytes: *mut c_uint,
    device: CUdevice,
    forward: impl FnOnce(*mut c_uint, CUdevice) -> CUresult,
) -> CUresult {
    total(bytes, device, forward)
}

fn total<T: Size>(
    bytes: *mut T,
    device: CUdevice,
    forward: impl FnOnce(*mut T, CUdevice) -> CUresult,
) -> CUresult {
    let seat = match asking() {
        Asking::Forward => return forward(bytes, device),
        Asking::Refuse => return CUresult::CUDA_ERROR_NOT_INITIALIZED,
        Asking::Seat(seat) => seat,
    };
    let result = forward(bytes, device);
    if result == SUCCESS
        && let Some(bytes) = Out::claim(bytes)
    {
        let device = device::by_ordinal(seat.pages, device);
        let view = view(seat, device, bytes.read().widen(), 0);
        bytes.write(T::narrow(view.total));
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cap_is_the_total_and_the_rest_of_it_is_free() {
        let view = View::new(3 << 30, 1 << 30, 8 << 30, 8 << 30);
        assert_eq!((view.total, view.free), (3 << 30, 2 << 30));
    }

    #[test]
    fn a_cap_beyond_the_device_shows_the_device() {
        let view = View::new(10 << 30, 0, 8 << 30, 7 << 30);
        assert_eq!((view.total, view.free), (8 << 30, 7 << 30));
    }

    #[test]
    fn nothing_is_free_where_more_is_held_than_the_cap_allows() {
        let view = View::new(1 << 30, 2 << 30, 8 << 30, 6 << 30);
        assert_eq!((view.total, view.free), (1 << 30, 0));
    }

    #[test]
    fn what_is_free_can_be_had_in_one_piece_under_an_odd_cap() {
        let view = View::new((1 << 30) - 1, 0, 8 << 30, 8 << 30);
        assert_eq!(view.total, (1 << 30) - 1);
        assert!(ledger::units(view.free) <= ledger::cap_units(view.total));
        assert_eq!(view.free, (1 << 30) - ledger::UNIT_BYTES);
    }
}
