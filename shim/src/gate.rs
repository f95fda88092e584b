//! The gate: a launch goes through when it is the tenant's turn, and what it takes is charged.
//!
//! * [`launch`] and the rest: one policy for each form of launch.
//! * [`copies`]: copies and fills.
//! * [`turn`]: the wait for the lease.
//! * [`bucket`]: a ceiling without a daemon.
//! * [`flight`]: what is in flight, how it is bounded, and how its end is noticed.
//! * [`capture`]: whether anything was ever captured.
//! * [`cost`]: what a unit of work is predicted to take.
//! * [`marker`]: the events by which the end of work is noticed, and measured.
//!
//! Where nothing is shared, a launch reads one word of the control page and goes to the driver: no marker,
//! no system call, no store. Else it waits for the lease and for room in the backlog, is submitted, and
//! becomes part of a batch; one marker follows each batch of some 250 µs, on the program's own stream.
//!
//! Launches into a capturing stream are no work yet: they go through untouched. Events,
//! waits, frees and host functions are never held; copies and fills where the daemon says so. Holding delays and never forbids: every wait here is
//! bounded, except for an operator's pause, which ends with the daemon at the latest.

mod bucket;
pub(crate) mod capture;
pub(crate) mod copies;
mod cost;
mod flight;
mod marker;
mod turn;

pub(crate) use flight::{context_ended, context_ending, context_synchronised, stream_synchronised};

use crate::claim::Out;
use crate::device::{self, Index};
use crate::pool::{Flavour, is_capturing};
use crate::session::{self, Seat};
use cost::Key;
use ffi::driver::{
    CUDA_LAUNCH_PARAMS, CUcontext, CUfunction, CUgraph, CUgraphExec, CUgraphExecUpdateResult,
    CUgraphExecUpdateResultInfo, CUgraphNode, CUlaunchConfig, CUresult, CUstream,
};
use flight::{Flight, StreamKey};
use std::cell::Cell;
use std::ffi::{c_int, c_uint, c_void};
use turn::Place;

/// One thing that a program submits.
#[derive(Debug, Clone, Copy)]
struct Unit {
    /// Under what it is remembered.
    key: Key,
    stream: CUstream,
    flavour: Flavour,
}

/// Blocks of a grid, saturating.
fn blocks(x: c_uint, y: c_uint, z: c_uint) -> u64 {
    u64::from(x)
        .saturating_mul(u64::from(y))
        .saturating_mul(u64::from(z))
}

macro_rules! kernel_launches {
    ($($(#[$text:meta])* $name:ident in $flavour:ident;)*) => {$(
        $(#[$text])*
        #[allow(clippy::too_many_arguments, reason = "the driver's own")]
        pub(crate) fn $name(
            function: CUfunction,
            x: c_uint,
            y: c_uint,
            z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: CUstream,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
            forward: impl FnOnce(
                CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
                *mut *mut c_void, *mut *mut c_void,
            ) -> CUresult,
        ) -> CUresult {
            pass(
                || Unit {
                    key: Key::kernel(function, blocks(x, y, z)),
                    stream,
                    flavour: Flavour::$flavour,
                },
                || forward(
                    function, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra,
                ),
            )
        }
    )*};
}

kernel_launches! {
    /// `cuLaunchKernel`.
    launch in Legacy;
    /// `cuLaunchKernel_ptsz`.
    launch_per_thread in PerThread;
}

macro_rules! extended_launches {
    ($($(#[$text:meta])* $name:ident in $flavour:ident;)*) => {$(
        $(#[$text])*
        pub(crate) fn $name(
            config: *const CUlaunchConfig,
            function: CUfunction,
            parameters: *mut *mut c_void,
            extra: *mut *mut c_void,
            forward: impl FnOnce(
                *const CUlaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void,
            ) -> CUresult,
        ) -> CUresult {
            // What is no configuration is the driver's to refuse.
            let Some(asked) = Out::claim(config.cast_mut()) else {
                return forward(config, function, parameters, extra);
            };
            pass(
                || {
                    let asked = asked.read();
                    Unit {
                        key: Key::kernel(
                            function,
                            blocks(asked.gridDimX, asked.gridDimY, asked.gridDimZ),
                        ),
                        stream: asked.hStream,
                        flavour: Flavour::$flavour,
                    }
                },
                || forward(config, function, parameters, extra),
            )
        }
    )*};
}

extended_launches! {
    /// `cuLaunchKernelEx`.
    launch_extended in Legacy;
    /// `cuLaunchKernelEx_ptsz`.
    launch_extended_per_thread in PerThread;
}

macro_rules! cooperative_launches {
    ($($(#[$text:meta])* $name:ident in $flavour:ident;)*) => {$(
        $(#[$text])*
        #[allow(clippy::too_many_arguments, reason = "the driver's own")]
        pub(crate) fn $name(
            function: CUfunction,
            x: c_uint,
            y: c_uint,
            z: c_uint,
            block_x: c_uint,
            block_y: c_uint,
            block_z: c_uint,
            shared_bytes: c_uint,
            stream: CUstream,
            parameters: *mut *mut c_void,
            forward: impl FnOnce(
                CUfunction, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, CUstream,
                *mut *mut c_void,
            ) -> CUresult,
        ) -> CUresult {
            pass(
                || Unit {
                    key: Key::kernel(function, blocks(x, y, z)),
                    stream,
                    flavour: Flavour::$flavour,
                },
                || forward(
                    function, x, y, z, block_x, block_y, block_z, shared_bytes, stream, parameters,
                ),
            )
        }
    )*};
}

cooperative_launches! {
    /// `cuLaunchCooperativeKernel`.
    launch_cooperative in Legacy;
    /// `cuLaunchCooperativeKernel_ptsz`.
    launch_cooperative_per_thread in PerThread;
}

/// `cuLaunchCooperativeKernelMultiDevice`: waits for the turn on the current context's device.
///
/// Its parts wait for each other, so none of them may be held alone; the first one's stream says when it
/// ends.
pub(crate) fn launch_multi_device(
    list: *mut CUDA_LAUNCH_PARAMS,
    count: c_uint,
    flags: c_uint,
    forward: impl FnOnce(*mut CUDA_LAUNCH_PARAMS, c_uint, c_uint) -> CUresult,
) -> CUresult {
    let Some(first) = Out::claim(list).filter(|_| count > 0) else {
        return forward(list, count, flags);
    };
    pass(
        || {
            let first = first.read();
            Unit {
                key: Key::kernel(
                    first.function,
                    blocks(first.gridDimX, first.gridDimY, first.gridDimZ),
                ),
                stream: first.hStream,
                flavour: Flavour::Legacy,
            }
        },
        || forward(list, count, flags),
    )
}

/// `cuLaunch`: one block, on the legacy stream.
pub(crate) fn launch_once(
    function: CUfunction,
    forward: impl FnOnce(CUfunction) -> CUresult,
) -> CUresult {
    pass(|| on_grid(function, 1, 1), || forward(function))
}

/// `cuLaunchGrid`: on the legacy stream.
pub(crate) fn launch_grid(
    function: CUfunction,
    width: c_int,
    height: c_int,
    forward: impl FnOnce(CUfunction, c_int, c_int) -> CUresult,
) -> CUresult {
    pass(
        || on_grid(function, width, height),
        || forward(function, width, height),
    )
}

/// `cuLaunchGridAsync`.
pub(crate) fn launch_grid_async(
    function: CUfunction,
    width: c_int,
    height: c_int,
    stream: CUstream,
    forward: impl FnOnce(CUfunction, c_int, c_int, CUstream) -> CUresult,
) -> CUresult {
    pass(
        || Unit {
            stream,
            ..on_grid(function, width, height)
        },
        || forward(function, width, height, stream),
    )
}

fn on_grid(function: CUfunction, width: c_int, height: c_int) -> Unit {
    let side = |length: c_int| c_uint::try_from(length).unwrap_or(0);
    Unit {
        key: Key::kernel(function, blocks(side(width), side(height), 1)),
        stream: std::ptr::null_mut(),
        flavour: Flavour::Legacy,
    }
}

/// `cuGraphLaunch`: the whole graph is one unit.
pub(crate) fn launch_graph(
    graph: CUgraphExec,
    stream: CUstream,
    forward: impl FnOnce(CUgraphExec, CUstream) -> CUresult,
) -> CUresult {
    pass(
        || graph_unit(graph, stream, Flavour::Legacy),
        || forward(graph, stream),
    )
}

/// `cuGraphLaunch_ptsz`.
pub(crate) fn launch_graph_per_thread(
    graph: CUgraphExec,
    stream: CUstream,
    forward: impl FnOnce(CUgraphExec, CUstream) -> CUresult,
) -> CUresult {
    pass(
        || graph_unit(graph, stream, Flavour::PerThread),
        || forward(graph, stream),
    )
}

fn graph_unit(graph: CUgraphExec, stream: CUstream, flavour: Flavour) -> Unit {
    Unit {
        key: Key::graph(graph),
        stream,
        flavour,
    }
}

/// `cuGraphExecUpdate`: what was learned of the graph is of another.
pub(crate) fn update_graph(
    graph: CUgraphExec,
    by: CUgraph,
    node: *mut CUgraphNode,
    outcome: *mut CUgraphExecUpdateResult,
    forward: impl FnOnce(
        CUgraphExec,
        CUgraph,
        *mut CUgraphNode,
        *mut CUgraphExecUpdateResult,
    ) -> CUresult,
) -> CUresult {
    let result = forward(graph, by, node, outcome);
    graph_changed(graph, result)
}

/// `cuGraphExecUpdate` of CUDA 12.
pub(crate) fn update_graph_v2(
    graph: CUgraphExec,
    by: CUgraph,
    outcome: *mut CUgraphExecUpdateResultInfo,
    forward: impl FnOnce(CUgraphExec, CUgraph, *mut CUgraphExecUpdateResultInfo) -> CUresult,
) -> CUresult {
    let result = forward(graph, by, outcome);
    graph_changed(graph, result)
}

/// A graph is gone, and its handle may become another's.
pub(crate) fn graph_destroyed(graph: CUgraphExec) {
    flight::forget(Key::graph(graph));
}

fn graph_changed(graph: CUgraphExec, result: CUresult) -> CUresult {
    if result == CUresult::CUDA_SUCCESS {
        flight::forget(Key::graph(graph));
    }
    result
}

/// Lets one launch through: at once where nothing is shared.
#[inline]
fn pass(unit: impl FnOnce() -> Unit, forward: impl FnOnce() -> CUresult) -> CUresult {
    match session::gated() {
        None => forward(),
        Some(seat) => shared(seat, unit(), forward),
    }
}

#[inline(never)]
fn shared(seat: Seat, unit: Unit, forward: impl FnOnce() -> CUresult) -> CUresult {
    // Without a context, on another's device, or while a capture forbids the question: the driver knows.
    let Some((context, device)) = here(seat) else {
        return forward();
    };
    let place = Place { seat, device };
    let is_captured = || capture::was_begun() && is_capturing(unit.flavour, unit.stream);
    if !place.is_gated() || is_captured() {
        return forward();
    }
    in_turn(place, context, unit, forward)
}

/// Submits one unit in its turn, and follows it until it has ended.
fn in_turn(
    place: Place,
    context: CUcontext,
    unit: Unit,
    forward: impl FnOnce() -> CUresult,
) -> CUresult {
    let Some(flight) = Flight::on(place.device) else {
        return forward();
    };
    let stream = StreamKey::new(unit.stream, unit.flavour);
    let mut patience = turn::Patience::default();
    let begun = loop {
        turn::wait(place, &mut patience);
        bucket::wait(place, &mut patience);
        match flight.begin(place, context, stream, unit.key, &patience) {
            Ok(begun) => break begun,
            // What is left of the turn is too short for it.
            Err(spent) => turn::wait_for_next(place, spent, &mut patience),
        }
    };
    bucket::spend(place, begun.predicted_ns());
    let result = forward();
    flight.launched(place, begun, result == CUresult::CUDA_SUCCESS);
    result
}

/// The current context and its device, if that is one of the tenant's.
fn here(seat: Seat) -> Option<(CUcontext, Index)> {
    thread_local! {
        /// The last answer, with what it is good for: a context is of one device for as long as it lives,
        /// and [`context_ended`] makes all answers void.
        static LAST: Cell<(usize, u64, Option<Index>)> = const { Cell::new((0, 0, None)) };
    }
    let mut context: CUcontext = std::ptr::null_mut();
    // SAFETY: a place for one handle.
    if unsafe { crate::real::cuCtxGetCurrent(&mut context) } != CUresult::CUDA_SUCCESS
        || context.is_null()
    {
        return None;
    }
    let ended = flight::contexts_ended();
    let known = LAST.try_with(Cell::get).ok();
    if let Some((last, at, device)) = known
        && (last, at) == (context as usize, ended)
    {
        return device.map(|device| (context, device));
    }
    let device = device::current(seat.pages).ok()?;
    let _ = LAST.try_with(|place| place.set((context as usize, ended, device)));
    device.map(|device| (context, device))
}
