//! Copies and fills: counted always, held where the daemon says so.
//!
//! What the driver took is added to the process's slot, two words of its own: calls and bytes, on the
//! current context's device. Copies use other parts of a device than kernels do, so by default they are
//! never held and not charged. Where the control page says so ([`ControlPage::gates_copies`]), those that
//! are put on a stream wait for their turn and are charged as launches are; a blocking one waits for its
//! turn, and what it takes then is not charged: it has ended when it returns.
//!
//! What goes into a capturing stream is no copy yet: it goes through untouched. There is one policy for each
//! list of arguments, in two flavours of default stream.
//!
//! [`ControlPage::gates_copies`]: ffi::wire::ControlPage::gates_copies

use super::cost::Key;
use super::turn::{self, Patience, Place};
use super::{Unit, capture, here, in_turn};
use crate::claim::Out;
use crate::pool::{Flavour, is_capturing};
use crate::session;
use ffi::driver::{
    CUDA_FABRIC_COPY_BATCH_OP, CUDA_MEMCPY2D, CUDA_MEMCPY2D_v1, CUDA_MEMCPY3D,
    CUDA_MEMCPY3D_BATCH_OP, CUDA_MEMCPY3D_PEER, CUDA_MEMCPY3D_v1, CUmemDecompressParams, CUresult,
    CUstream,
};
use ffi::wire::DeviceMoved;
use std::ffi::c_uint;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number of bytes or elements, in either width that the driver had for them.
pub(crate) trait Amount: Copy {
    fn amount(self) -> u64;
}

impl Amount for usize {
    fn amount(self) -> u64 {
        self as u64
    }
}

impl Amount for c_uint {
    fn amount(self) -> u64 {
        u64::from(self)
    }
}

/// A copy that is described in memory.
pub(crate) trait Shape: Copy {
    fn bytes(&self) -> u64;
}

fn product(of: [u64; 3]) -> u64 {
    of.into_iter().fold(1, u64::saturating_mul)
}

macro_rules! shapes {
    ($($shape:ty => $($side:ident)*;)*) => {$(
        impl Shape for $shape {
            fn bytes(&self) -> u64 {
                [$(self.$side.amount()),*].into_iter().fold(1, u64::saturating_mul)
            }
        }
    )*};
}

shapes! {
    CUDA_MEMCPY2D_v1 => WidthInBytes Height;
    CUDA_MEMCPY2D => WidthInBytes Height;
    CUDA_MEMCPY3D_v1 => WidthInBytes Height Depth;
    CUDA_MEMCPY3D => WidthInBytes Height Depth;
    CUDA_MEMCPY3D_PEER => WidthInBytes Height Depth;
    CUDA_FABRIC_COPY_BATCH_OP => size;
    // What it writes.
    CUmemDecompressParams => dstNumBytes;
}

impl Shape for CUDA_MEMCPY3D_BATCH_OP {
    // Of an array it is elements, whose size the operation does not say: at least so many bytes.
    fn bytes(&self) -> u64 {
        let extent = self.extent;
        product([
            extent.width.amount(),
            extent.height.amount(),
            extent.depth.amount(),
        ])
    }
}

/// What `what` makes of each of `count` things that the host has in a row, together.
fn sum<T: Copy>(list: *const T, count: usize, what: impl Fn(&T) -> u64) -> u64 {
    let each = (0..count).map_while(|at| Out::claim(list.wrapping_add(at).cast_mut()));
    each.fold(0, |sum, it| sum.saturating_add(what(&it.read())))
}

/// One or none: what `place` points to.
fn one<T: Shape>(place: *const T) -> u64 {
    sum(place, 1, Shape::bytes)
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    Copy,
    Fill,
}

/// Lets one through; `bytes` is asked when the driver has taken it, or before it is held.
#[inline]
fn pass(
    kind: Kind,
    stream: Option<CUstream>,
    flavour: Flavour,
    bytes: impl Fn() -> u64,
    forward: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(seat) = session::seat() else {
        return forward();
    };
    let Some((context, device)) = here(seat) else {
        return forward();
    };
    if let Some(stream) = stream
        && capture::was_begun()
        && is_capturing(flavour, stream)
    {
        return forward();
    }
    let place = Place { seat, device };
    let is_held = seat.pages.control.gates_copies.load(Ordering::Relaxed) != 0 && place.is_gated();
    let result = match stream {
        _ if !is_held => forward(),
        Some(stream) => {
            let unit = Unit {
                key: Key::moved(matches!(kind, Kind::Fill), bytes()),
                stream,
                flavour,
            };
            in_turn(place, context, unit, forward)
        }
        None => {
            turn::wait(place, &mut Patience::default());
            forward()
        }
    };
    if result == CUresult::CUDA_SUCCESS
        && let Some(moved) = place.moved()
    {
        count(moved, kind, bytes());
    }
    result
}

fn count(moved: &DeviceMoved, kind: Kind, bytes: u64) {
    let add = |word: &AtomicU64, more| word.fetch_add(more, Ordering::Relaxed);
    let (calls, sum) = match kind {
        Kind::Copy => (&moved.copies, &moved.copied_bytes),
        Kind::Fill => (&moved.fills, &moved.filled_bytes),
    };
    add(calls, 1);
    add(sum, bytes);
}

/// `name(arguments) moves bytes [on stream];`, and those arguments in two flavours.
macro_rules! policies {
    ($($module:ident is $flavour:ident;)*) => {$(
        /// Policies for the variants that mean this default stream.
        pub(crate) mod $module {
            use super::*;
            use Kind::{Copy, Fill};

            const FLAVOUR: Flavour = Flavour::$flavour;

            pub(crate) fn linear<A, B, N: Amount>(
                to: A, from: B, bytes: N, forward: impl FnOnce(A, B, N) -> CUresult,
            ) -> CUresult {
                pass(Copy, None, FLAVOUR, || bytes.amount(), || forward(to, from, bytes))
            }

            pub(crate) fn linear_on<A, B, N: Amount>(
                to: A, from: B, bytes: N, stream: CUstream,
                forward: impl FnOnce(A, B, N, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || bytes.amount(), || forward(to, from, bytes, stream))
            }

            /// To or from somewhere in an array.
            pub(crate) fn offset<A, B, C, N: Amount>(
                a: A, b: B, c: C, bytes: N, forward: impl FnOnce(A, B, C, N) -> CUresult,
            ) -> CUresult {
                pass(Copy, None, FLAVOUR, || bytes.amount(), || forward(a, b, c, bytes))
            }

            pub(crate) fn offset_on<A, B, C, N: Amount>(
                a: A, b: B, c: C, bytes: N, stream: CUstream,
                forward: impl FnOnce(A, B, C, N, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || bytes.amount(), || forward(a, b, c, bytes, stream))
            }

            /// Between arrays, or between contexts.
            pub(crate) fn between<A, B, C, D, N: Amount>(
                a: A, b: B, c: C, d: D, bytes: N, forward: impl FnOnce(A, B, C, D, N) -> CUresult,
            ) -> CUresult {
                pass(Copy, None, FLAVOUR, || bytes.amount(), || forward(a, b, c, d, bytes))
            }

            pub(crate) fn between_on<A, B, C, D, N: Amount>(
                a: A, b: B, c: C, d: D, bytes: N, stream: CUstream,
                forward: impl FnOnce(A, B, C, D, N, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || bytes.amount(), || {
                    forward(a, b, c, d, bytes, stream)
                })
            }

            pub(crate) fn shaped<T: Shape>(
                shape: *const T, forward: impl FnOnce(*const T) -> CUresult,
            ) -> CUresult {
                pass(Copy, None, FLAVOUR, || one(shape), || forward(shape))
            }

            pub(crate) fn shaped_on<T: Shape>(
                shape: *const T, stream: CUstream,
                forward: impl FnOnce(*const T, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || one(shape), || forward(shape, stream))
            }

            pub(crate) fn as_told<A, B, T>(
                to: A, from: B, bytes: usize, attributes: *mut T, stream: CUstream,
                forward: impl FnOnce(A, B, usize, *mut T, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || bytes.amount(), || {
                    forward(to, from, bytes, attributes, stream)
                })
            }

            pub(crate) fn shaped_as_told<T: Shape, F>(
                shape: *mut T, flags: F, stream: CUstream,
                forward: impl FnOnce(*mut T, F, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || one(shape), || forward(shape, flags, stream))
            }

            /// Many at once count as one.
            #[allow(clippy::too_many_arguments, reason = "the driver's own")]
            pub(crate) fn batch<A, B, T>(
                to: A, from: B, sizes: *mut usize, count: usize, attributes: *mut T,
                indices: *mut usize, kinds: usize, stream: CUstream,
                forward: impl FnOnce(
                    A, B, *mut usize, usize, *mut T, *mut usize, usize, CUstream,
                ) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || sum(sizes, count, |bytes| bytes.amount()), || {
                    forward(to, from, sizes, count, attributes, indices, kinds, stream)
                })
            }

            /// As CUDA 12.8 has it.
            #[allow(clippy::too_many_arguments, reason = "the driver's own")]
            pub(crate) fn batch_v1<A, B, T>(
                to: A, from: B, sizes: *mut usize, count: usize, attributes: *mut T,
                indices: *mut usize, kinds: usize, failed: *mut usize, stream: CUstream,
                forward: impl FnOnce(
                    A, B, *mut usize, usize, *mut T, *mut usize, usize, *mut usize, CUstream,
                ) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || sum(sizes, count, |bytes| bytes.amount()), || {
                    forward(to, from, sizes, count, attributes, indices, kinds, failed, stream)
                })
            }

            pub(crate) fn batch_3d<T: Shape, F>(
                count: usize, list: *mut T, flags: F, stream: CUstream,
                forward: impl FnOnce(usize, *mut T, F, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || sum(list, count, Shape::bytes), || {
                    forward(count, list, flags, stream)
                })
            }

            /// As CUDA 12.8 has it.
            pub(crate) fn batch_3d_v1<T: Shape, F>(
                count: usize, list: *mut T, failed: *mut usize, flags: F, stream: CUstream,
                forward: impl FnOnce(usize, *mut T, *mut usize, F, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || sum(list, count, Shape::bytes), || {
                    forward(count, list, failed, flags, stream)
                })
            }

            pub(crate) fn decompress<T: Shape, F>(
                list: *mut T, count: usize, flags: F, failed: *mut usize, stream: CUstream,
                forward: impl FnOnce(*mut T, usize, F, *mut usize, CUstream) -> CUresult,
            ) -> CUresult {
                pass(Copy, Some(stream), FLAVOUR, || sum(list, count, Shape::bytes), || {
                    forward(list, count, flags, failed, stream)
                })
            }

            /// So many values, as wide as their type.
            pub(crate) fn fill<A, V, N: Amount>(
                to: A, value: V, count: N, forward: impl FnOnce(A, V, N) -> CUresult,
            ) -> CUresult {
                let bytes = || count.amount().saturating_mul(size_of::<V>() as u64);
                pass(Fill, None, FLAVOUR, bytes, || forward(to, value, count))
            }

            pub(crate) fn fill_on<A, V, N: Amount>(
                to: A, value: V, count: N, stream: CUstream,
                forward: impl FnOnce(A, V, N, CUstream) -> CUresult,
            ) -> CUresult {
                let bytes = || count.amount().saturating_mul(size_of::<V>() as u64);
                pass(Fill, Some(stream), FLAVOUR, bytes, || forward(to, value, count, stream))
            }

            pub(crate) fn fill_rows<A, V, N: Amount>(
                to: A, pitch: N, value: V, width: N, height: N,
                forward: impl FnOnce(A, N, V, N, N) -> CUresult,
            ) -> CUresult {
                let bytes = || product([width.amount(), height.amount(), size_of::<V>() as u64]);
                pass(Fill, None, FLAVOUR, bytes, || forward(to, pitch, value, width, height))
            }

            pub(crate) fn fill_rows_on<A, V, N: Amount>(
                to: A, pitch: N, value: V, width: N, height: N, stream: CUstream,
                forward: impl FnOnce(A, N, V, N, N, CUstream) -> CUresult,
            ) -> CUresult {
                let bytes = || product([width.amount(), height.amount(), size_of::<V>() as u64]);
                pass(Fill, Some(stream), FLAVOUR, bytes, || {
                    forward(to, pitch, value, width, height, stream)
                })
            }
        }
    )*};
}

policies! {
    legacy is Legacy;
    per_thread is PerThread;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_host_names_in_a_row_is_summed_and_nothing_is_read_where_there_is_nothing() {
        let sizes = [1usize, 20, 300];
        let bytes = |list: *const usize| sum(list, sizes.len(), |bytes| bytes.amount());
        assert_eq!(bytes(sizes.as_ptr()), 321);
        assert_eq!(bytes(std::ptr::null()), 0);
    }

    #[test]
    fn a_size_beyond_any_memory_is_no_overflow() {
        assert_eq!(product([u64::MAX, 2, 2]), u64::MAX);
        assert_eq!(product([3, 4, 5]), 60);
    }

    #[test]
    fn copies_and_fills_are_counted_apart() {
        let zero = AtomicU64::default;
        let moved = DeviceMoved {
            copies: zero(),
            copied_bytes: zero(),
            fills: zero(),
            filled_bytes: zero(),
        };
        count(&moved, Kind::Copy, 7);
        count(&moved, Kind::Fill, 11);
        count(&moved, Kind::Fill, 13);
        let words = [
            &moved.copies,
            &moved.copied_bytes,
            &moved.fills,
            &moved.filled_bytes,
        ];
        assert_eq!(
            words.map(|word| word.load(Ordering::Relaxed)),
            [1, 7, 2, 24]
        );
    }
}
