//! Linear memory: `cuMemAlloc`, `cuMemAllocPitch`, `cuMemAllocManaged` and their frees.
//!
//! Reserve, call the driver, commit or roll back. What is charged: the request rounded up to
//! [`ledger::UNIT_BYTES`]; for pitched memory what the driver made of it; managed memory in full, though
//! it may lie elsewhere. Everything here may be called while a stream is captured, so it is arithmetic
//! and nothing more.

use crate::account::{self, OverCap, Request, Reservation};
use crate::blocks::{self, Block};
use crate::claim::Out;
use crate::device::{self, Index};
use crate::overcommit;
use crate::pool;
use crate::session::{self, Seat};
use ffi::driver::{CUcontext, CUdeviceptr, CUdeviceptr_v1, CUresult};
use ffi::wire::Refusable;
use std::ffi::c_uint;

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;
const OUT_OF_MEMORY: CUresult = CUresult::CUDA_ERROR_OUT_OF_MEMORY;

/// Where an allocation of this thread goes.
pub(crate) struct Place {
    /// Our seat.
    pub(crate) seat: Seat,
    /// The context's device.
    pub(crate) device: Index,
    /// The current context, 0 where the driver cannot say.
    pub(crate) context: usize,
}

impl Place {
    /// Ends a reservation that the driver has honoured at `address`.
    fn settle(&self, reservation: Reservation, address: u64) {
        let block = Block {
            units: reservation.commit(),
            device: self.device,
            context: self.context,
        };
        if let Some(former) = blocks::insert(address, block) {
            account::release(self.seat, former.device, former.units);
        }
    }
}

/// Why an allocation is not counted here.
pub(crate) enum Elsewhere {
    /// The driver has an answer of its own: not initialised, no context, a child that it does not serve.
    Forward,
    /// This is ours to refuse.
    Refuse(CUresult),
}

/// Where an allocation of this thread is to be counted.
pub(crate) fn place() -> Result<Place, Elsewhere> {
    let Some(seat) = session::seat() else {
        return Err(if session::is_waiting() {
            Elsewhere::Refuse(CUresult::CUDA_ERROR_NOT_INITIALIZED)
        } else {
            Elsewhere::Forward
        });
    };
    match device::current(seat.pages) {
        Ok(Some(device)) => Ok(Place {
            seat,
            device,
            context: current_context(),
        }),
        // A device that is not the tenant's: its cap there is nothing.
        Ok(None) => Err(Elsewhere::Refuse(OUT_OF_MEMORY)),
        Err(_) => Err(Elsewhere::Forward),
    }
}

fn current_context() -> usize {
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: a place for one handle.
    match unsafe { crate::real::cuCtxGetCurrent(&mut context) } {
        SUCCESS => context as usize,
        _ => 0,
    }
}

/// Allocates under a reservation of `bytes`. `forward` asks the driver, `address` says what it gave; there is a
/// place where it is counted.
fn counted(
    function: Refusable,
    bytes: u64,
    forward: impl FnOnce(Option<&Place>) -> CUresult,
    address: impl FnOnce() -> Option<u64>,
) -> CUresult {
    let place = match place() {
        Ok(place) => place,
        Err(Elsewhere::Forward) => return forward(None),
        Err(Elsewhere::Refuse(code)) => return code,
    };
    let Ok(reservation) = account::reserve(
        place.seat,
        place.device,
        Request::of(function, bytes),
        ledger::units(bytes),
    ) else {
        return OUT_OF_MEMORY;
    };
    let result = forward(Some(&place));
    if result == SUCCESS
        && let Some(address) = address()
    {
        place.settle(reservation, address);
    }
    result
}

/// `cuMemAlloc`: managed memory where the tenant is overcommitted.
pub(crate) fn alloc(
    out: *mut CUdeviceptr,
    bytes: usize,
    forward: impl FnOnce(*mut CUdeviceptr, usize) -> CUresult,
) -> CUresult {
    linear(Refusable::MemAlloc, out, bytes, |place, out, bytes| {
        place
            .and_then(|place| overcommit::alloc(place, out, bytes))
            .unwrap_or_else(|| forward(out, bytes))
    })
}

fn linear(
    function: Refusable,
    out: *mut CUdeviceptr,
    bytes: usize,
    forward: impl FnOnce(Option<&Place>, *mut CUdeviceptr, usize) -> CUresult,
) -> CUresult {
    // A request for nothing, or to nowhere, is the driver's to refuse.
    if bytes == 0 || out.is_null() {
        return forward(None, out, bytes);
    }
    counted(
        function,
        bytes as u64,
        |place| forward(place, out, bytes),
        || Out::claim(out).map(|out| out.read()),
    )
}

/// `cuMemAlloc` of CUDA 2, with addresses of 32 bits.
pub(crate) fn alloc_v1(
    out: *mut CUdeviceptr_v1,
    bytes: c_uint,
    forward: impl FnOnce(*mut CUdeviceptr_v1, c_uint) -> CUresult,
) -> CUresult {
    if bytes == 0 || out.is_null() {
        return forward(out, bytes);
    }
    counted(
        Refusable::MemAlloc,
        u64::from(bytes),
        |_| forward(out, bytes),
        || Out::claim(out).map(|out| u64::from(out.read())),
    )
}

/// `cuMemAllocManaged`: charged in full, wherever its pages lie.
pub(crate) fn alloc_managed(
    out: *mut CUdeviceptr,
    bytes: usize,
    flags: c_uint,
    forward: impl FnOnce(*mut CUdeviceptr, usize, c_uint) -> CUresult,
) -> CUresult {
    linear(Refusable::MemAllocManaged, out, bytes, |_, out, bytes| {
        forward(out, bytes, flags)
    })
}

/// `cuMemAllocPitch`: charged by the pitch that the driver chose.
pub(crate) fn alloc_pitch(
    out: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
    forward: impl FnOnce(*mut CUdeviceptr, *mut usize, usize, usize, c_uint) -> CUresult,
) -> CUresult {
    if out.is_null() || pitch.is_null() {
        return forward(out, pitch, width, height, element);
    }
    pitched(width as u64, height as u64, |found, row| {
        let result = forward(found, row, width, height, element);
        (result, move |address: u64, row: usize| {
            if let (Some(out), Some(pitch)) = (Out::claim(out), Out::claim(pitch)) {
                out.write(address);
                pitch.write(row);
            }
        })
    })
}

/// `cuMemAllocPitch` of CUDA 2, with addresses and sizes of 32 bits.
pub(crate) fn alloc_pitch_v1(
    out: *mut CUdeviceptr_v1,
    pitch: *mut c_uint,
    width: c_uint,
    height: c_uint,
    element: c_uint,
    forward: impl FnOnce(*mut CUdeviceptr_v1, *mut c_uint, c_uint, c_uint, c_uint) -> CUresult,
) -> CUresult {
    if out.is_null() || pitch.is_null() {
        return forward(out, pitch, width, height, element);
    }
    pitched(u64::from(width), u64::from(height), |found, row| {
        let (mut short, mut short_row) = (0, 0);
        let result = forward(&mut short, &mut short_row, width, height, element);
        *found = u64::from(short);
        *row = short_row as usize;
        (result, move |_: u64, _: usize| {
            if let (Some(out), Some(pitch)) = (Out::claim(out), Out::claim(pitch)) {
                out.write(short);
                pitch.write(short_row);
            }
        })
    })
}

/// Allocates `height` rows of at least `width` bytes. `call` asks the driver into places of ours and
/// says how the host's are written, which happens only if what the driver made fits under the cap.
fn pitched<Write: FnOnce(u64, usize)>(
    width: u64,
    height: u64,
    call: impl FnOnce(&mut CUdeviceptr, &mut usize) -> (CUresult, Write),
) -> CUresult {
    let (mut address, mut row) = (0, 0);
    let place = match place() {
        Ok(place) => place,
        Err(Elsewhere::Refuse(code)) => return code,
        Err(Elsewhere::Forward) => {
            let (result, write) = call(&mut address, &mut row);
            if result == SUCCESS {
                write(address, row);
            }
            return result;
        }
    };
    let least = width.saturating_mul(height);
    let Ok(mut reservation) = account::reserve(
        place.seat,
        place.device,
        Request::of(Refusable::MemAllocPitch, least),
        ledger::units(least),
    ) else {
        return OUT_OF_MEMORY;
    };
    let (result, write) = call(&mut address, &mut row);
    if result != SUCCESS {
        return result;
    }
    let truth = ledger::units((row as u64).saturating_mul(height));
    if let Err(OverCap) = reservation.adjust(truth) {
        // SAFETY: the driver gave this address a moment ago, and nobody else knows it.
        if unsafe { crate::real::cuMemFree_v2(address) } != SUCCESS {
            // It is held until its context ends, and so is its charge.
            reservation.insist(truth);
            place.settle(reservation, address);
        }
        return OUT_OF_MEMORY;
    }
    place.settle(reservation, address);
    write(address, row);
    SUCCESS
}

/// `cuMemFree`.
pub(crate) fn free(
    pointer: CUdeviceptr,
    forward: impl FnOnce(CUdeviceptr) -> CUresult,
) -> CUresult {
    freed(pointer, || forward(pointer))
}

/// `cuMemFree` of CUDA 2.
pub(crate) fn free_v1(
    pointer: CUdeviceptr_v1,
    forward: impl FnOnce(CUdeviceptr_v1) -> CUresult,
) -> CUresult {
    freed(u64::from(pointer), || forward(pointer))
}

/// What the driver has freed is released, once: by whoever finds it under the number that it had before
/// the call. Of two who free the same address at once the driver serves one; and once freed, the address
/// may be another allocation's before we look again. An address that we do not know is the driver's
/// business.
pub(crate) fn freed(address: u64, forward: impl FnOnce() -> CUresult) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward();
    };
    let number = blocks::at(address);
    let result = forward();
    if result != SUCCESS {
        return result;
    }
    match number {
        Some(number) => {
            if let Some(block) = blocks::take(address, number) {
                account::release(seat, block.device, block.units);
            }
            pool::synchronised(seat);
        }
        None => pool::after_free(seat, address),
    }
    result
}
