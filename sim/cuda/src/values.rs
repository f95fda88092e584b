//! Memory operations of streams: values that a stream writes, and values that it waits for.
//!
//! A write happens like a copy's bytes: the device passes over it in no time, and the library writes when
//! it has got there, before any call can tell that it has. A wait holds the stream until the library has
//! seen the value ([`crate::watch`]). Both reach device memory and page-locked host memory; managed
//! memory is refused. In a capture they become nodes.
//!
//! Source: CUDA driver API, "Stream Memory Operations". What is called the first version there must be
//! switched on by an administrator; here it is.

use std::ffi::c_uint;
use std::sync::Arc;

use ffi::driver::{
    CUdeviceptr, CUresult, CUstream, CUstreamBatchMemOpParams, CUstreamBatchMemOpType_enum as Kind,
    cuuint32_t, cuuint64_t,
};
use sim::proto::Command;

use crate::capture;
use crate::graph::Work;
use crate::guard::{Answer, INVALID_VALUE, take};
use crate::link::Link;
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Stream};
use crate::watch::{Condition, Test, Word};

/// Operations of one batch, at most.
const MAX_BATCH: c_uint = 255;

/// `CU_STREAM_WAIT_VALUE_FLUSH`: needs what this platform has not, as `CAN_FLUSH_REMOTE_WRITES` says.
const FLUSH: c_uint = 1 << 30;

/// `CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER`.
const NO_BARRIER: c_uint = 1;

const UNSUPPORTED: CUresult = CUresult::CUDA_ERROR_NOT_SUPPORTED;

/// One memory operation, checked.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Operation {
    /// Writes a value.
    Write(Word, u64),
    /// Waits for a value.
    Wait(Condition),
    /// Orders what is before with what is after, which streams of the stand-in always do.
    Barrier,
}

/// Which of the two versions of the interface is used.
trait Version {
    /// Whether it is the later one.
    const IS_SECOND: bool;
}

struct First;
struct Second;

impl Version for First {
    const IS_SECOND: bool = false;
}

impl Version for Second {
    const IS_SECOND: bool = true;
}

fn wait(
    driver: &Driver,
    address: u64,
    value: u64,
    flags: c_uint,
    is_long: bool,
) -> Answer<Operation> {
    let test = match flags & !FLUSH {
        0 => Test::AtLeast,
        1 => Test::Equal,
        2 => Test::And,
        3 => Test::Nor,
        _ => return Err(INVALID_VALUE),
    };
    let place = Word::at(driver, address, is_long, false)?;
    if flags & FLUSH != 0 {
        return Err(UNSUPPORTED);
    }
    Ok(Operation::Wait(Condition::new(place, value, test)))
}

fn write<V: Version>(
    driver: &Driver,
    address: u64,
    value: u64,
    flags: c_uint,
    is_long: bool,
) -> Answer<Operation> {
    match flags {
        0 => {}
        NO_BARRIER if V::IS_SECOND => return Err(UNSUPPORTED),
        NO_BARRIER => {}
        _ => return Err(INVALID_VALUE),
    }
    Ok(Operation::Write(
        Word::at(driver, address, is_long, false)?,
        value,
    ))
}

/// What one entry of a batch asks for.
fn parsed<V: Version>(driver: &Driver, asked: &CUstreamBatchMemOpParams) -> Answer<Operation> {
    // SAFETY: every member begins with the operation.
    let kind = unsafe { asked.operation };
    match kind {
        Kind::CU_STREAM_MEM_OP_WAIT_VALUE_32 | Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64 => {
            // SAFETY: the operation says that it is this member; all its parts are numbers.
            let asked = unsafe { asked.waitValue };
            let is_long = kind == Kind::CU_STREAM_MEM_OP_WAIT_VALUE_64;
            // SAFETY: both readings are numbers.
            let value = unsafe { asked.__bindgen_anon_1.value64 };
            wait(
                driver,
                asked.address,
                cut(value, is_long),
                asked.flags,
                is_long,
            )
        }
        Kind::CU_STREAM_MEM_OP_WRITE_VALUE_32 | Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64 => {
            // SAFETY: the operation says that it is this member; all its parts are numbers.
            let asked = unsafe { asked.writeValue };
            let is_long = kind == Kind::CU_STREAM_MEM_OP_WRITE_VALUE_64;
            // SAFETY: both readings are numbers.
            let value = unsafe { asked.__bindgen_anon_1.value64 };
            write::<V>(
                driver,
                asked.address,
                cut(value, is_long),
                asked.flags,
                is_long,
            )
        }
        Kind::CU_STREAM_MEM_OP_BARRIER if V::IS_SECOND => {
            // SAFETY: the operation says that it is this member; all its parts are numbers.
            let asked = unsafe { asked.memoryBarrier };
            if asked.flags > 1 {
                return Err(INVALID_VALUE);
            }
            Ok(Operation::Barrier)
        }
        Kind::CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES | Kind::CU_STREAM_MEM_OP_ATOMIC_REDUCTION => {
            Err(UNSUPPORTED)
        }
        _ => Err(INVALID_VALUE),
    }
}

/// The lower half, which is where the shorter value of the union lies.
fn cut(value: u64, is_long: bool) -> u64 {
    if is_long {
        value
    } else {
        u64::from(value as u32)
    }
}

/// Submits operations, in order.
pub(crate) fn submit(driver: &'static Driver, stream: &Stream, all: &[Operation]) -> Answer {
    for operation in all {
        match *operation {
            Operation::Write(place, value) => submit_write(driver, stream, place, value)?,
            Operation::Wait(condition) => {
                crate::watch::submit(driver, stream, condition, Command::Host)?;
            }
            Operation::Barrier => {}
        }
    }
    Ok(())
}

fn submit_write(driver: &Driver, stream: &Stream, place: Word, value: u64) -> Answer {
    if let Link::Null(_) = driver.link {
        place.write(value);
        return Ok(());
    }
    let mark = Command::Mark {
        event: u32::MAX,
        generation: 0,
    };
    let submitted = driver.deferred.submit_move(
        stream.lane.slot,
        Box::new(move || place.write(value)),
        || stream.submit(driver, mark),
    );
    submitted.map(drop)
}

/// Submits operations, or adds a node where the stream captures.
fn place<F: Flavour, V: Version>(
    given: CUstream,
    parse: impl FnOnce(&Driver) -> Answer<Vec<Operation>>,
) -> Answer {
    let driver = driver()?;
    let stream = stream::find::<F>(given)?;
    let all = parse(driver)?;
    if !stream.is_capturing() {
        return submit(driver, &stream, &all);
    }
    if V::IS_SECOND {
        capture::add(driver, &stream, Work::Values(Arc::new(all)))
    } else {
        Err(capture::refuse(&stream))
    }
}

fn wait_one<F: Flavour, V: Version>(
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
    is_long: bool,
) -> Answer {
    place::<F, V>(stream, |driver| {
        Ok(vec![wait(driver, address, value, flags, is_long)?])
    })
}

fn write_one<F: Flavour, V: Version>(
    stream: CUstream,
    address: CUdeviceptr,
    value: u64,
    flags: c_uint,
    is_long: bool,
) -> Answer {
    place::<F, V>(stream, |driver| {
        Ok(vec![write::<V>(driver, address, value, flags, is_long)?])
    })
}

/// All or nothing: what is wrong with one operation is found before the first is submitted.
fn batch<F: Flavour, V: Version>(
    stream: CUstream,
    count: c_uint,
    list: *mut CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Answer {
    if count > MAX_BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    place::<F, V>(stream, |driver| all_of::<V>(driver, count, list))
}

fn all_of<V: Version>(
    driver: &Driver,
    count: c_uint,
    list: *const CUstreamBatchMemOpParams,
) -> Answer<Vec<Operation>> {
    (0..count as usize)
        .map(|index| parsed::<V>(driver, &take(list.wrapping_add(index))?))
        .collect()
}

/// A node that does a batch.
pub(crate) fn node_work(
    count: c_uint,
    list: *const CUstreamBatchMemOpParams,
    flags: c_uint,
) -> Answer<Work> {
    if count > MAX_BATCH || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let all = all_of::<Second>(driver()?, count, list)?;
    Ok(Work::Values(Arc::new(all)))
}

driver! {
    cuStreamWaitValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| wait_one::<Plain, First>(stream, at, u64::from(value), flags, false);
    cuStreamWaitValue32_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| wait_one::<PerThread, First>(stream, at, u64::from(value), flags, false);
    cuStreamWaitValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| wait_one::<Plain, Second>(stream, at, u64::from(value), flags, false);
    cuStreamWaitValue32_v2_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| wait_one::<PerThread, Second>(stream, at, u64::from(value), flags, false);
    cuStreamWaitValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| wait_one::<Plain, First>(stream, at, value, flags, true);
    cuStreamWaitValue64_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| wait_one::<PerThread, First>(stream, at, value, flags, true);
    cuStreamWaitValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| wait_one::<Plain, Second>(stream, at, value, flags, true);
    cuStreamWaitValue64_v2_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| wait_one::<PerThread, Second>(stream, at, value, flags, true);
    cuStreamWriteValue32(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| write_one::<Plain, First>(stream, at, u64::from(value), flags, false);
    cuStreamWriteValue32_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| write_one::<PerThread, First>(stream, at, u64::from(value), flags, false);
    cuStreamWriteValue32_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| write_one::<Plain, Second>(stream, at, u64::from(value), flags, false);
    cuStreamWriteValue32_v2_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint32_t, flags: c_uint) => |stream, at, value, flags| write_one::<PerThread, Second>(stream, at, u64::from(value), flags, false);
    cuStreamWriteValue64(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| write_one::<Plain, First>(stream, at, value, flags, true);
    cuStreamWriteValue64_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| write_one::<PerThread, First>(stream, at, value, flags, true);
    cuStreamWriteValue64_v2(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| write_one::<Plain, Second>(stream, at, value, flags, true);
    cuStreamWriteValue64_v2_ptsz(stream: CUstream, addr: CUdeviceptr, value: cuuint64_t, flags: c_uint) => |stream, at, value, flags| write_one::<PerThread, Second>(stream, at, value, flags, true);
    cuStreamBatchMemOp(stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint) => batch::<Plain, First>;
    cuStreamBatchMemOp_ptsz(stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint) => batch::<PerThread, First>;
    cuStreamBatchMemOp_v2(stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint) => batch::<Plain, Second>;
    cuStreamBatchMemOp_v2_ptsz(stream: CUstream, count: c_uint, param_array: *mut CUstreamBatchMemOpParams, flags: c_uint) => batch::<PerThread, Second>;
}
