//! Copies in batches, and copies with attributes.
//!
//! All copies of a batch are looked at before the first is submitted, so that a wrong one leaves nothing
//! half done; then they run one after the other, which is one of the orders that a driver may choose.
//! Hints of places change nothing: an address says where it is.

use std::ffi::{c_uint, c_ulonglong};

use ffi::driver::{
    CUDA_MEMCPY3D_BATCH_OP, CUdeviceptr, CUmemcpy3DOperand, CUmemcpy3DOperandType_enum as Operand,
    CUmemcpyAttributes, CUmemcpySrcAccessOrder, CUmemcpySrcAccessOrder_enum as Order, CUstream,
};
use ffi::texels;

use crate::array;
use crate::copy::{self, Grid, Rows, Side};
use crate::guard::{Answer, INVALID_VALUE, Out, take};
use crate::state::{Driver, driver};
use crate::stream::{self, Flavour, PerThread, Plain, Role, Stream};

/// Flags of a copy: default, or that it rather runs beside kernels.
const KNOWN_FLAGS: c_uint = 1;

/// One copy, looked at: its rows, and when its source is read.
type Copy = (Rows, CUmemcpySrcAccessOrder);

fn check_order(order: CUmemcpySrcAccessOrder, flags: c_uint) -> Answer {
    let is_known = matches!(
        order,
        Order::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM
            | Order::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL
            | Order::CU_MEMCPY_SRC_ACCESS_ORDER_ANY
    );
    if is_known && flags & !KNOWN_FLAGS == 0 {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

/// The stream of a batch: not the legacy one, and none that captures.
fn target<F: Flavour>(given: CUstream) -> Answer<std::sync::Arc<Stream>> {
    let stream = stream::find_for_now::<F>(given)?;
    match stream.role {
        Role::Legacy => Err(INVALID_VALUE),
        _ => Ok(stream),
    }
}

fn submit(driver: &'static Driver, stream: &Stream, copies: Vec<Copy>) -> Answer {
    copies.into_iter().try_for_each(|(rows, order)| {
        let is_read_now = order == Order::CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
        copy::submit_in_order(driver, stream, rows, is_read_now)
    })
}

/// Looks at `count` copies; a wrong one's number goes where the host wants it.
fn look(
    failed: Option<Out<usize>>,
    count: usize,
    one: impl Fn(usize) -> Answer<Copy>,
) -> Answer<Vec<Copy>> {
    let mut copies = Vec::new();
    for index in 0..count {
        match one(index) {
            Ok(copy) => copies.push(copy),
            Err(code) => {
                if let Some(failed) = failed {
                    failed.write(index);
                }
                return Err(code);
            }
        }
    }
    Ok(copies)
}

/// Attributes of a batch, with the number of the first copy that each is for.
fn attributes_of(
    list: *mut CUmemcpyAttributes,
    indices: *mut usize,
    known: usize,
    count: usize,
) -> Answer<Vec<CUmemcpyAttributes>> {
    if known == 0 || known > count || take(indices)? != 0 {
        return Err(INVALID_VALUE);
    }
    let mut all = Vec::with_capacity(count);
    for index in 0..known {
        let attributes = take(list.wrapping_add(index))?;
        check_order(attributes.srcAccessOrder, attributes.flags)?;
        let until = match index + 1 {
            next if next == known => count,
            next => take(indices.wrapping_add(next))?,
        };
        if until <= all.len() || until > count {
            return Err(INVALID_VALUE);
        }
        all.resize(until, attributes);
    }
    Ok(all)
}

/// No copy in particular is wrong.
fn nothing_failed(place: *mut usize) -> Answer<Option<Out<usize>>> {
    if !place.is_null() {
        Out::claim(place)?.write(usize::MAX);
    }
    Out::claim_optional(place)
}

#[allow(
    clippy::too_many_arguments,
    reason = "the arguments are the driver API's"
)]
fn batch<F: Flavour>(
    to: *mut CUdeviceptr,
    from: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    list: *mut CUmemcpyAttributes,
    indices: *mut usize,
    known: usize,
    failed: *mut usize,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let failed = nothing_failed(failed)?;
    if count == 0 {
        return Err(INVALID_VALUE);
    }
    let stream = target::<F>(given)?;
    let attributes = attributes_of(list, indices, known, count)?;
    let copies = look(failed, count, |index| {
        let to = take(to.wrapping_add(index))?;
        let from = take(from.wrapping_add(index))?;
        let bytes = take(sizes.wrapping_add(index))?;
        let rows = copy::line_rows(driver, to, from, bytes)?;
        Ok((rows, attributes[index].srcAccessOrder))
    })?;
    submit(driver, &stream, copies)
}

fn one<F: Flavour>(
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: usize,
    attributes: *mut CUmemcpyAttributes,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let attributes = take(attributes)?;
    check_order(attributes.srcAccessOrder, attributes.flags)?;
    let stream = target::<F>(given)?;
    let rows = copy::line_rows(driver, to, from, bytes)?;
    submit(driver, &stream, vec![(rows, attributes.srcAccessOrder)])
}

/// Bytes of a texel where an operand is an array.
fn texel_of(operand: &CUmemcpy3DOperand) -> Answer<Option<u64>> {
    if operand.type_ != Operand::CU_MEMCPY_OPERAND_TYPE_ARRAY {
        return Ok(None);
    }
    // SAFETY: the type says that it is this member; every bit pattern is a handle.
    let asked = unsafe { operand.op.array };
    let array = array::find(asked.array).map_err(|_| INVALID_VALUE)?;
    let descriptor = array.descriptor();
    let bits = texels::bits(descriptor.Format, descriptor.NumChannels);
    let bits = bits.filter(|bits| bits % 8 == 0 && !texels::is_by_blocks(descriptor.Format));
    Ok(Some(bits.ok_or(INVALID_VALUE)? / 8))
}

/// One end of a copy; lengths are in elements of `texel` bytes, and 0 means as long as the copy.
fn side(operand: &CUmemcpy3DOperand, texel: u64, size: [u64; 3]) -> Answer<Side> {
    let product = |a: u64, b: u64| a.checked_mul(b).ok_or(INVALID_VALUE);
    match operand.type_ {
        Operand::CU_MEMCPY_OPERAND_TYPE_POINTER => {
            // SAFETY: the type says that it is this member; all its parts are numbers.
            let asked = unsafe { operand.op.ptr };
            let or = |asked: usize, tight: u64| if asked == 0 { tight } else { asked as u64 };
            let (row, layer) = (or(asked.rowLength, size[0]), or(asked.layerHeight, size[1]));
            if row < size[0] || layer < size[1] {
                return Err(INVALID_VALUE);
            }
            let pitch = product(row, texel)?;
            Ok(Side::Memory(Grid {
                start: asked.ptr,
                indent: 0,
                pitch,
                slice: product(pitch, layer)?,
            }))
        }
        Operand::CU_MEMCPY_OPERAND_TYPE_ARRAY => {
            // SAFETY: the type says that it is this member; every bit pattern is a handle or a number.
            let asked = unsafe { operand.op.array };
            let array = array::find(asked.array).map_err(|_| INVALID_VALUE)?;
            let first = product(asked.offset.x as u64, texel)?;
            let at = [first, asked.offset.y as u64, asked.offset.z as u64];
            Ok(Side::Array(array, at))
        }
        _ => Err(INVALID_VALUE),
    }
}

/// Looks at one copy of rows and slices. Without an array an element is a byte.
fn boxed(driver: &Driver, asked: &CUDA_MEMCPY3D_BATCH_OP) -> Answer<Copy> {
    check_order(asked.srcAccessOrder, asked.flags)?;
    let (to, from) = (texel_of(&asked.dst)?, texel_of(&asked.src)?);
    let texel = to.or(from).unwrap_or(1);
    if from.is_some_and(|from| from != texel) {
        return Err(INVALID_VALUE);
    }
    let extent = asked.extent;
    let size = [extent.width, extent.height, extent.depth];
    if size.contains(&0) {
        return Err(INVALID_VALUE);
    }
    let elements = size.map(|part| part as u64);
    let to = side(&asked.dst, texel, elements)?;
    let from = side(&asked.src, texel, elements)?;
    let width = size[0].checked_mul(texel as usize).ok_or(INVALID_VALUE)?;
    let rows = copy::grid_rows(driver, &to, &from, [width, size[1], size[2]])?;
    Ok((rows.ok_or(INVALID_VALUE)?, asked.srcAccessOrder))
}

fn batch_3d<F: Flavour>(
    count: usize,
    list: *mut CUDA_MEMCPY3D_BATCH_OP,
    failed: *mut usize,
    flags: c_ulonglong,
    given: CUstream,
) -> Answer {
    let driver = driver()?;
    let failed = nothing_failed(failed)?;
    if count == 0 || flags != 0 {
        return Err(INVALID_VALUE);
    }
    let stream = target::<F>(given)?;
    let copies = look(failed, count, |index| {
        boxed(driver, &take(list.wrapping_add(index))?)
    })?;
    submit(driver, &stream, copies)
}

const NOWHERE: *mut usize = std::ptr::null_mut();

driver! {
    cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, h_stream: CUstream) => batch::<Plain>;
    cuMemcpyBatchAsync_ptsz(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, fail_idx: *mut usize, h_stream: CUstream) => batch::<PerThread>;
    cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, h_stream: CUstream) => |to, from, sizes, count, list, indices, known, stream| batch::<Plain>(to, from, sizes, count, list, indices, known, NOWHERE, stream);
    cuMemcpyBatchAsync_v2_ptsz(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut CUmemcpyAttributes, attrs_idxs: *mut usize, num_attrs: usize, h_stream: CUstream) => |to, from, sizes, count, list, indices, known, stream| batch::<PerThread>(to, from, sizes, count, list, indices, known, NOWHERE, stream);
    cuMemcpy3DBatchAsync(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, h_stream: CUstream) => batch_3d::<Plain>;
    cuMemcpy3DBatchAsync_ptsz(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, fail_idx: *mut usize, flags: c_ulonglong, h_stream: CUstream) => batch_3d::<PerThread>;
    cuMemcpy3DBatchAsync_v2(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) => |count, list, flags, stream| batch_3d::<Plain>(count, list, NOWHERE, flags, stream);
    cuMemcpy3DBatchAsync_v2_ptsz(num_ops: usize, op_list: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) => |count, list, flags, stream| batch_3d::<PerThread>(count, list, NOWHERE, flags, stream);
    cuMemcpyWithAttributesAsync(dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, h_stream: CUstream) => one::<Plain>;
    cuMemcpyWithAttributesAsync_ptsz(dst: CUdeviceptr, src: CUdeviceptr, size: usize, attr: *mut CUmemcpyAttributes, h_stream: CUstream) => one::<PerThread>;
    cuMemcpy3DWithAttributesAsync(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) => |op, flags, stream| batch_3d::<Plain>(1, op, NOWHERE, flags, stream);
    cuMemcpy3DWithAttributesAsync_ptsz(op: *mut CUDA_MEMCPY3D_BATCH_OP, flags: c_ulonglong, h_stream: CUstream) => |op, flags, stream| batch_3d::<PerThread>(1, op, NOWHERE, flags, stream);
}
