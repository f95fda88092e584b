//! Memory operations of streams: values written and waited for, alone, in batches and in graphs.

use crate::check::Checks;
use crate::tools::{allocate, context, spin, spinner, stream, zeroed};
use ffi::driver::*;
use std::ffi::{CString, c_int, c_void};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

/// How a wait compares, as flags.
const AT_LEAST: u32 = 0;
const EQUAL: u32 = 1;
const AND: u32 = 2;
const NOR: u32 = 3;

pub(crate) fn play(t: &Checks) {
    context(t);
    refusals(t);
    turns(t);
    waits(t);
    batches(t);
    graphs(t);
    kernels(t);
}

/// Page-locked words of the host's.
fn words(t: &Checks, count: usize) -> *mut u32 {
    let mut pinned: *mut c_void = null_mut();
    ok!(t, cuMemHostAlloc(&mut pinned, 4 * count, 2));
    let words: *mut u32 = pinned.cast();
    (0..count).for_each(|index| set(words.wrapping_add(index), 0));
    words
}

fn set(word: *mut u32, value: u32) {
    // SAFETY: one of the words above, which live until the process ends.
    unsafe { AtomicU32::from_ptr(word) }.store(value, Ordering::Release);
}

fn seen(word: *mut u32) -> u32 {
    // SAFETY: as above.
    unsafe { AtomicU32::from_ptr(word) }.load(Ordering::Acquire)
}

fn refusals(t: &Checks) {
    type A = CUdevice_attribute_enum;
    for attribute in [
        A::CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
        A::CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR,
    ] {
        let mut value: c_int = 7;
        ok!(t, cuDeviceGetAttribute(&mut value, attribute, 0));
        t.is("can do it", value, 1);
    }
    let lane = stream(t, 1);
    let at = allocate(t, 16);
    let mut managed = 0;
    ok!(t, cuMemAllocManaged(&mut managed, 16, 1));
    for wrong in [managed, 0] {
        answers!(
            t,
            CUDA_ERROR_INVALID_VALUE,
            cuStreamWriteValue32_v2(lane, wrong, 1, 0)
        );
        answers!(
            t,
            CUDA_ERROR_INVALID_VALUE,
            cuStreamWaitValue32_v2(lane, wrong, 1, 0)
        );
    }
    let mut many = vec![write(at, 3); 256];
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuStreamBatchMemOp_v2(lane, 256, many.as_mut_ptr(), 0)
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuStreamBatchMemOp_v2(lane, 1, many.as_mut_ptr(), 1)
    );
    ok!(t, cuMemFree_v2(managed));
    ok!(t, cuStreamSynchronize(lane));
}

fn turns(t: &Checks) {
    let (_, kernel) = spinner(t);
    let lane = stream(t, 1);
    let word = words(t, 4);
    let at = allocate(t, 8);
    spin(t, kernel, 200, lane);
    ok!(t, cuStreamWriteValue32_v2(lane, word as u64, 1, 0));
    let long = 3 + (4 << 32);
    ok!(t, cuStreamWriteValue64_v2(lane, word as u64 + 8, long, 0));
    ok!(t, cuStreamWriteValue32_v2(lane, at + 4, 5, 0));
    t.is("nothing before its turn", seen(word), 0);
    ok!(t, cuStreamSynchronize(lane));
    let all: Vec<u32> = (0..4).map(|at| seen(word.wrapping_add(at))).collect();
    t.is("all in its turn", all, vec![1, 0, 3, 4]);
    let mut back = 0u32;
    ok!(
        t,
        cuMemcpyDtoH_v2((&raw mut back).cast(), at + 4, size_of::<u32>())
    );
    t.is("on the device too", back, 5);
}

fn waits(t: &Checks) {
    let lane = stream(t, 1);
    let word = words(t, 2);
    for (test, wanted, wrong, right) in [
        (AT_LEAST, 5, 4, 6),
        (AT_LEAST, u32::MAX, u32::MAX - 1, 3),
        (EQUAL, 5, 6, 5),
        (AND, 6, 9, 4),
        (NOR, 0xffff, 0xffff_0000, 1),
    ] {
        set(word, wrong);
        ok!(t, cuStreamWaitValue32_v2(lane, word as u64, wanted, test));
        ok!(t, cuStreamWriteValue32_v2(lane, word as u64 + 4, 7, 0));
        answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(lane));
        t.is("behind the wait", seen(word.wrapping_add(1)), 0);
        set(word, right);
        ok!(t, cuStreamSynchronize(lane));
        t.is("after the wait", seen(word.wrapping_add(1)), 7);
        set(word.wrapping_add(1), 0);
    }
}

fn write(address: CUdeviceptr, value: u32) -> CUstreamBatchMemOpParams {
    let mut asked: CUstreamBatchMemOpParams = zeroed();
    asked.writeValue.operation = CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WRITE_VALUE_32;
    asked.writeValue.address = address;
    asked.writeValue.__bindgen_anon_1.value = value;
    asked
}

fn wait(address: CUdeviceptr, value: u32) -> CUstreamBatchMemOpParams {
    let mut asked: CUstreamBatchMemOpParams = zeroed();
    asked.waitValue.operation = CUstreamBatchMemOpType_enum::CU_STREAM_MEM_OP_WAIT_VALUE_32;
    asked.waitValue.address = address;
    asked.waitValue.__bindgen_anon_1.value = value;
    asked.waitValue.flags = EQUAL;
    asked
}

fn batches(t: &Checks) {
    let lane = stream(t, 1);
    let word = words(t, 3);
    let at = |index: u64| word as u64 + 4 * index;
    let mut all = [write(at(0), 1), wait(at(1), 5), write(at(2), 2)];
    ok!(t, cuStreamBatchMemOp_v2(lane, 3, all.as_mut_ptr(), 0));
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(lane));
    t.is("behind the wait", seen(word.wrapping_add(2)), 0);
    set(word.wrapping_add(1), 5);
    ok!(t, cuStreamSynchronize(lane));
    t.is("all", (seen(word), seen(word.wrapping_add(2))), (1, 2));
}

fn graphs(t: &Checks) {
    let lane = stream(t, 1);
    let word = words(t, 2);
    let relaxed = CUstreamCaptureMode(2);
    ok!(t, cuStreamBeginCapture_v2(lane, relaxed));
    let mut all = [write(word as u64, 1), write(word as u64 + 4, 2)];
    ok!(t, cuStreamBatchMemOp_v2(lane, 2, all.as_mut_ptr(), 0));
    let (mut graph, mut exec) = (null_mut(), null_mut());
    ok!(t, cuStreamEndCapture(lane, &mut graph));
    let (mut node, mut count) = (null_mut(), 1);
    ok!(t, cuGraphGetNodes(graph, &mut node, &mut count));
    let mut kind = CUgraphNodeType_enum(99);
    ok!(t, cuGraphNodeGetType(node, &mut kind));
    let batch = CUgraphNodeType::CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    t.is("a node of its kind", kind, batch);
    t.is("nothing yet", seen(word), 0);
    ok!(t, cuGraphInstantiateWithFlags(&mut exec, graph, 0));
    for _ in 0..2 {
        set(word, 0);
        ok!(t, cuGraphLaunch(exec, lane));
        ok!(t, cuStreamSynchronize(lane));
        t.is("written", (seen(word), seen(word.wrapping_add(1))), (1, 2));
    }
    ok!(t, cuGraphExecDestroy(exec));
    ok!(t, cuGraphDestroy(graph));
}

/// A kernel that spins until a flag is set, by another stream.
fn kernels(t: &Checks) {
    let image = CString::new(sim::kernels::UNTIL_PTX).expect("no NUL in it");
    let (mut module, mut until) = (null_mut(), null_mut());
    ok!(t, cuModuleLoadData(&mut module, image.as_ptr().cast()));
    let name = c"spin_until";
    ok!(t, cuModuleGetFunction(&mut until, module, name.as_ptr()));
    let (spinning, other) = (stream(t, 1), stream(t, 1));
    let mut flag = allocate(t, 4);
    ok!(t, cuMemsetD8_v2(flag, 0, 4));
    ok!(t, cuCtxSynchronize());
    let mut value = 3u32;
    let mut parameters = [
        (&raw mut flag).cast::<c_void>(),
        (&raw mut value).cast::<c_void>(),
    ];
    let parameters = parameters.as_mut_ptr();
    ok!(
        t,
        cuLaunchKernel(
            until,
            1,
            1,
            1,
            32,
            1,
            1,
            0,
            spinning,
            parameters,
            null_mut()
        )
    );
    ok!(t, cuStreamWriteValue32_v2(other, flag, 2, 0));
    ok!(t, cuStreamSynchronize(other));
    answers!(t, CUDA_ERROR_NOT_READY, cuStreamQuery(spinning));
    ok!(t, cuStreamWriteValue32_v2(other, flag, 4, 0));
    ok!(t, cuStreamSynchronize(spinning));
}
