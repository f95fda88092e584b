//! Arrays and mipmapped arrays: descriptors, requirements, copies to and from them.

use crate::check::Checks;
use crate::tools::{allocate, context, free_bytes, pattern, zeroed};
use ffi::driver::*;
use std::ptr::null_mut;

fn floats(width: usize, height: usize) -> CUDA_ARRAY_DESCRIPTOR {
    CUDA_ARRAY_DESCRIPTOR {
        Width: width,
        Height: height,
        Format: CUarray_format_enum::CU_AD_FORMAT_FLOAT,
        NumChannels: 1,
    }
}

fn solid(width: usize, height: usize, depth: usize, flags: u32) -> CUDA_ARRAY3D_DESCRIPTOR {
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: width,
        Height: height,
        Depth: depth,
        Format: CUarray_format_enum::CU_AD_FORMAT_UNSIGNED_INT8,
        NumChannels: 4,
        Flags: flags,
    }
}

pub(crate) fn play(t: &Checks) {
    context(t);
    let free = free_bytes(t);
    descriptors(t);
    copies(t);
    mipmapped(t);
    requirements(t);
    t.is("free as before", free_bytes(t), free);
}

fn descriptors(t: &Checks) {
    let mut array = null_mut();
    let mut seen = floats(0, 0);
    let mut seen_solid = solid(0, 0, 0, 0);
    ok!(t, cuArrayCreate_v2(&mut array, &floats(100, 50)));
    ok!(t, cuArrayGetDescriptor_v2(&mut seen, array));
    t.is(
        "its shape",
        (seen.Width, seen.Height, seen.Format.0, seen.NumChannels),
        (100, 50, 0x20, 1),
    );
    ok!(t, cuArray3DGetDescriptor_v2(&mut seen_solid, array));
    t.is(
        "in three dimensions",
        (seen_solid.Width, seen_solid.Height, seen_solid.Depth),
        (100, 50, 0),
    );
    ok!(t, cuArrayDestroy(array));
    ok!(t, cuArray3DCreate_v2(&mut array, &solid(16, 8, 4, 0)));
    ok!(t, cuArray3DGetDescriptor_v2(&mut seen_solid, array));
    t.is(
        "its shape",
        (
            seen_solid.Width,
            seen_solid.Height,
            seen_solid.Depth,
            seen_solid.NumChannels,
        ),
        (16, 8, 4, 4),
    );
    ok!(t, cuArrayDestroy(array));
    ok!(t, cuArrayCreate_v2(&mut array, &floats(100, 0)));
    ok!(t, cuArrayDestroy(array));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuArrayCreate_v2(null_mut(), &floats(1, 1))
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuArrayCreate_v2(&mut array, std::ptr::null())
    );
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuArrayCreate_v2(&mut array, &floats(0, 0))
    );
    let mut wrong = floats(8, 8);
    wrong.NumChannels = 3;
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuArrayCreate_v2(&mut array, &wrong)
    );
    wrong.NumChannels = 1;
    wrong.Format = CUarray_format_enum(0x7f);
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuArrayCreate_v2(&mut array, &wrong)
    );
}

fn copies(t: &Checks) {
    let (mut array, data, mut back) = (null_mut(), pattern(400 * 50), vec![0u8; 400 * 50]);
    ok!(t, cuArrayCreate_v2(&mut array, &floats(100, 50)));
    let mut copy: CUDA_MEMCPY2D = zeroed();
    copy.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    copy.srcHost = data.as_ptr().cast();
    copy.srcPitch = 400;
    copy.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_ARRAY;
    copy.dstArray = array;
    copy.WidthInBytes = 400;
    copy.Height = 50;
    ok!(t, cuMemcpy2D_v2(&copy));
    let mut out: CUDA_MEMCPY2D = zeroed();
    out.srcMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_ARRAY;
    out.srcArray = array;
    out.srcXInBytes = 8;
    out.srcY = 3;
    out.dstMemoryType = CUmemorytype_enum::CU_MEMORYTYPE_HOST;
    out.dstHost = back.as_mut_ptr().cast();
    out.dstPitch = 16;
    out.WidthInBytes = 16;
    out.Height = 4;
    ok!(t, cuMemcpy2D_v2(&out));
    for row in 0..4 {
        let from = (row + 3) * 400 + 8;
        t.is(
            "a row of texels",
            &back[row * 16..row * 16 + 16],
            &data[from..from + 16],
        );
    }
    ok!(t, cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, 0, 400));
    t.holds("its first row", back[..400] == data[..400]);
    let at = allocate(t, 400);
    ok!(t, cuMemcpyAtoD_v2(at, array, 0, 400));
    t.holds(
        "on the device",
        crate::tools::bytes_at(t, at, 400) == data[..400],
    );
    ok!(t, cuMemsetD8_v2(at, 1, 400));
    ok!(t, cuMemcpyDtoA_v2(array, 0, at, 40));
    ok!(t, cuMemcpyHtoA_v2(array, 40, data.as_ptr().cast(), 40));
    ok!(t, cuMemcpyAtoH_v2(back.as_mut_ptr().cast(), array, 0, 80));
    t.holds(
        "both, one behind the other",
        back[..40] == [1; 40] && back[40..80] == data[..40],
    );
    out.srcXInBytes = 396;
    answers!(t, CUDA_ERROR_INVALID_VALUE, cuMemcpy2D_v2(&out));
    ok!(t, cuMemFree_v2(at));
    ok!(t, cuArrayDestroy(array));
}

fn mipmapped(t: &Checks) {
    let (mut mipmapped, mut level, mut none) = (null_mut(), null_mut(), null_mut());
    let mut seen = floats(0, 0);
    ok!(
        t,
        cuMipmappedArrayCreate(&mut mipmapped, &solid(64, 32, 0, 0), 3)
    );
    for (number, shape) in [(0, (64, 32)), (1, (32, 16)), (2, (16, 8))] {
        ok!(t, cuMipmappedArrayGetLevel(&mut level, mipmapped, number));
        ok!(t, cuArrayGetDescriptor_v2(&mut seen, level));
        t.is("the shape of a level", (seen.Width, seen.Height), shape);
    }
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMipmappedArrayGetLevel(&mut none, mipmapped, 3)
    );
    t.holds("no such level", none.is_null());
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuMipmappedArrayCreate(null_mut(), &solid(64, 32, 0, 0), 3)
    );
    ok!(t, cuMipmappedArrayDestroy(mipmapped));
}

fn requirements(t: &Checks) {
    const DEFERRED: u32 = 0x80;
    let (mut array, mut needs) = (null_mut(), zeroed::<CUDA_ARRAY_MEMORY_REQUIREMENTS>());
    ok!(
        t,
        cuArray3DCreate_v2(&mut array, &solid(256, 256, 0, DEFERRED))
    );
    ok!(t, cuArrayGetMemoryRequirements(&mut needs, array, 0));
    t.holds(
        "room for its texels",
        needs.size >= 256 * 256 * 4 && needs.alignment > 0,
    );
    ok!(t, cuArrayDestroy(array));
    ok!(t, cuArray3DCreate_v2(&mut array, &solid(256, 256, 0, 0)));
    answers!(
        t,
        CUDA_ERROR_INVALID_VALUE,
        cuArrayGetMemoryRequirements(&mut needs, array, 0)
    );
    ok!(t, cuArrayDestroy(array));
}
