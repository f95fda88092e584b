//! Copies and fills in all their forms; the bytes are compared.

use crate::check::Checks;
use crate::tools::{MIB, allocate, bytes_at, context, pattern, stream, zeroed};
use ffi::driver::*;
use std::ptr::null_mut;

const SIZE: usize = 2 * MIB;

pub(crate) fn play(t: &Checks) {
    let primary = context(t);
    plain(t, primary);
    rectangles(t);
    boxes(t);
    fills(t);
    wrong(t);
}

fn plain(t: &Checks, primary: CUcontext) {
    let (data, lane) = (pattern(SIZE), stream(t, 1));
    let (first, second) = (allocate(t, SIZE), allocate(t, SIZE));
    let (host, mut back) = (data.as_ptr(), vec![0u8; SIZE]);
    ok!(t, cuMemcpyHtoD_v2(first, host.cast(), SIZE));
    t.holds("host to device", bytes_at(t, first, SIZE) == data);
    ok!(t, cuMemcpyDtoD_v2(second + 3, first + 1, SIZE - 3));
    t.holds(
        "device to device, unaligned",
        bytes_at(t, second + 3, SIZE - 3) == data[1..SIZE - 2],
    );
    ok!(t, cuMemcpy(back.as_mut_ptr() as u64, first + 100, 1000));
    t.holds("by address alone", back[..1000] == data[100..1100]);
    ok!(t, cuMemcpy(second, host as u64, SIZE));
    t.holds(
        "by address alone, to the device",
        bytes_at(t, second, SIZE) == data,
    );
    ok!(t, cuMemsetD8_v2(second, 0, SIZE));
    ok!(t, cuMemcpyHtoDAsync_v2(second, host.cast(), SIZE, lane));
    ok!(t, cuMemcpyDtoDAsync_v2(first, second + 8, SIZE - 8, lane));
    ok!(
        t,
        cuMemcpyDtoHAsync_v2(back.as_mut_ptr().cast(), first, SIZE - 8, lane)
    );
    ok!(t, cuStreamSynchronize(lane));
    t.holds(
        "three copies in a stream's order",
        back[..SIZE - 8] == data[8..],
    );
    back.fill(0);
    ok!(
        t,
        cuMemcpyAsync(back.as_mut_ptr() as u64, second, SIZE, lane)
    );
    ok!(t, cuStreamSynchronize(lane));
    t.holds("by address alone, in a stream", back == data);
    ok!(t, cuMemcpyPeer(first, primary, second, primary, SIZE));
    t.holds("between contexts", bytes_at(t, first, SIZE) == data);
    ok!(
        t,
        cuMemcpyPeerAsync(first, primary, second + 1, primary, 10, lane)
    );
    ok!(t, cuStreamSynchronize(lane));
    t.holds(
        "between contexts, in a stream",
        bytes_at(t, first, 10) == data[1..11],
    );
    ok!(
        t,
        cuMemcpyHtoD_v2_ptds(second, host.wrapping_add(5).cast(), 100)
    );
    t.holds(
        "by the per-thread stream",
        bytes_at(t, second, 100) == data[5..105],
    );
    ok!(t, cuMemcpyHtoD_v2(first, host.cast(), 0));
    for at in [first, second] {
        ok!(t, cuMemFree_v2(at));
    }
    ok!(t, cuStreamDestroy_v2(lane));
}

fn rectangles(t: &Checks) {
    let (data, mut back, lane) = (pattern(SIZE), vec![0u8; 4096], stream(t, 1));
    let at = allocate(t, SIZE);
    ok!(t, cuMemcpyHtoD_v2(at, data.as_ptr().cast(), SIZE));
    let mut copy: CUDA_MEMCPY2D = zeroed();
    copy.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = at;
    copy.srcPitch = 1024;
    copy.srcXInBytes = 5;
    copy.srcY = 2;
    copy.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    copy.dstHost = back.as_mut_ptr().cast();
    copy.dstPitch = 40;
    copy.dstXInBytes = 3;
    copy.dstY = 1;
    copy.WidthInBytes = 10;
    copy.Height = 4;
    let documented = |row: usize| data[(row + 2) * 1024 + 5..][..10].to_vec();
    let seen = |back: &[u8], row: usize| back[(row + 1) * 40 + 3..][..10].to_vec();
    for form in 0..3 {
        back.fill(0);
        match form {
            0 => ok!(t, cuMemcpy2D_v2(&copy)),
            1 => ok!(t, cuMemcpy2DUnaligned_v2(&copy)),
            _ => {
                ok!(t, cuMemcpy2DAsync_v2(&copy, lane));
                ok!(t, cuStreamSynchronize(lane));
            }
        }
        for row in 0..4 {
            t.is("a row", seen(&back, row), documented(row));
        }
        let outside = back.iter().filter(|byte| **byte != 0).count();
        t.holds("nothing beside it", outside <= 40);
    }
    copy.srcPitch = 8;
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
    copy.srcPitch = 1024;
    copy.dstPitch = 12;
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&copy));
    copy.dstPitch = 40;
    copy.WidthInBytes = 0;
    ok!(t, cuMemcpy2D_v2(&copy));
    ok!(t, cuMemFree_v2(at));
}

fn boxes(t: &Checks) {
    let (data, mut back, lane) = (pattern(SIZE), vec![0u8; 4096], stream(t, 1));
    let at = allocate(t, SIZE);
    ok!(t, cuMemcpyHtoD_v2(at, data.as_ptr().cast(), SIZE));
    let mut copy: CUDA_MEMCPY3D = zeroed();
    copy.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_DEVICE;
    copy.srcDevice = at;
    (copy.srcPitch, copy.srcHeight) = (256, 16);
    (copy.srcXInBytes, copy.srcY, copy.srcZ) = (7, 3, 2);
    copy.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    copy.dstHost = back.as_mut_ptr().cast();
    (copy.dstPitch, copy.dstHeight) = (32, 4);
    (copy.WidthInBytes, copy.Height, copy.Depth) = (20, 3, 2);
    for form in 0..2 {
        back.fill(0);
        match form {
            0 => ok!(t, cuMemcpy3D_v2(&copy)),
            _ => {
                ok!(t, cuMemcpy3DAsync_v2(&copy, lane));
                ok!(t, cuStreamSynchronize(lane));
            }
        }
        for (layer, row) in [(0, 0), (0, 2), (1, 1)] {
            let from = ((layer + 2) * 16 + row + 3) * 256 + 7;
            let to = (layer * 4 + row) * 32;
            t.is(
                "a row of a layer",
                &back[to..to + 20],
                &data[from..from + 20],
            );
        }
    }
    ok!(t, cuMemFree_v2(at));
}

fn fills(t: &Checks) {
    let (at, lane) = (allocate(t, 8192), stream(t, 1));
    let mut documented = vec![9u8; 8192];
    ok!(t, cuMemsetD8_v2(at, 9, 8192));
    ok!(t, cuMemsetD16_v2(at + 2, 0x0201, 3));
    documented[2..8].copy_from_slice(&[1, 2, 1, 2, 1, 2]);
    ok!(t, cuMemsetD32_v2(at + 16, 0x0403_0201, 2));
    documented[16..24].copy_from_slice(&[1, 2, 3, 4, 1, 2, 3, 4]);
    ok!(t, cuMemsetD2D8_v2(at + 1000, 100, 5, 3, 2));
    ok!(t, cuMemsetD2D16_v2(at + 2000, 100, 0x0605, 2, 2));
    ok!(t, cuMemsetD2D32_v2(at + 3000, 100, 0x0a09_0807, 1, 2));
    for row in [0, 100] {
        documented[1000 + row..1003 + row].fill(5);
        documented[2000 + row..2004 + row].copy_from_slice(&[5, 6, 5, 6]);
        documented[3000 + row..3004 + row].copy_from_slice(&[7, 8, 9, 10]);
    }
    ok!(t, cuMemsetD8Async(at + 4000, 1, 10, lane));
    ok!(t, cuMemsetD16Async(at + 4100, 0x0101, 5, lane));
    ok!(t, cuMemsetD32Async(at + 4200, 0x0101_0101, 2, lane));
    ok!(t, cuMemsetD2D8Async(at + 5000, 64, 1, 2, 2, lane));
    ok!(t, cuMemsetD2D16Async(at + 6000, 64, 0x0101, 2, 2, lane));
    ok!(
        t,
        cuMemsetD2D32Async(at + 7000, 64, 0x0101_0101, 2, 2, lane)
    );
    ok!(t, cuStreamSynchronize(lane));
    for (place, count) in [
        (4000, 10),
        (4100, 10),
        (4200, 8),
        (5000, 2),
        (5064, 2),
        (6000, 4),
        (6064, 4),
        (7000, 8),
        (7064, 8),
    ] {
        documented[place..place + count].fill(1);
    }
    t.holds(
        "every fill, and nothing beside it",
        bytes_at(t, at, 8192) == documented,
    );
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemsetD32_v2(at + 1, 0, 1));
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemsetD16_v2(at + 1, 0, 1));
    ok!(t, cuMemsetD8_v2(at, 0, 0));
    ok!(t, cuMemFree_v2(at));
}

fn wrong(t: &Checks) {
    let (at, mut word) = (allocate(t, MIB), [7u8; 8]);
    ok!(t, cuMemFree_v2(at));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemcpyDtoH_v2(word.as_mut_ptr().cast(), at, 8)
    );
    t.is("nothing is written", word, [7; 8]);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemcpyHtoD_v2(at, word.as_ptr().cast(), 8)
    );
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemsetD8_v2(at, 0, 8));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMemcpyDtoH_v2(null_mut(), at, 8)
    );
}
