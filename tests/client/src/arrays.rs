//! Steps about arrays. All have texels of 16 bytes: four channels of `float`.

use crate::answer::Answer;
use crate::memory::{alloc, call};
use crate::steps::{Stepper, number};

/// `CU_AD_FORMAT_FLOAT`.
const FLOAT: u32 = 0x20;

/// `CUDA_ARRAY3D_DESCRIPTOR`.
#[repr(C)]
#[derive(Debug)]
struct Descriptor3d {
    width: u64,
    height: u64,
    depth: u64,
    format: u32,
    channels: u32,
    flags: u32,
}

/// `CUarrayMapInfo`, for an array that is mapped as a whole.
#[repr(C)]
#[derive(Debug, Default)]
struct MapInfo {
    resource_type: u32,
    resource: u64,
    part_type: u32,
    part: [u64; 4],
    operation: u32,
    handle_type: u32,
    handle: u64,
    offset: u64,
    device_mask: u32,
    flags: u32,
    reserved: [u32; 2],
}

const _: () = assert!(size_of::<MapInfo>() == 96);

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        ["array", name, width, height] => {
            let shape = [number(width)?, number(height)?, u64::from(FLOAT) | 4 << 32];
            alloc(stepper, "cuArrayCreate_v2", name, &[shape.as_ptr() as u64])
        }
        ["array-v1", name, width, height] => {
            let shape = [number(width)? as u32, number(height)? as u32, FLOAT, 4];
            alloc(stepper, "cuArrayCreate", name, &[shape.as_ptr() as u64])
        }
        ["array-3d", name, width, height, depth, flags] => {
            let shape = shape(width, height, depth, flags)?;
            alloc(
                stepper,
                "cuArray3DCreate_v2",
                name,
                &[&raw const shape as u64],
            )
        }
        ["array-mipmapped", name, width, height, levels] => {
            let shape = shape(width, height, "0", "0")?;
            let words = [&raw const shape as u64, number(levels)?];
            alloc(stepper, "cuMipmappedArrayCreate", name, &words)
        }
        ["array-destroy", name] => call(stepper, "cuArrayDestroy", name, &[]),
        ["array-mipmapped-destroy", name] => call(stepper, "cuMipmappedArrayDestroy", name, &[]),
        ["array-map", name, handle] => {
            let info = MapInfo {
                resource: stepper.value(name)?,
                operation: 1,
                handle: stepper.value(handle)?,
                device_mask: 1,
                ..MapInfo::default()
            };
            map(stepper, &info)
        }
        ["array-unmap", name] => {
            let info = MapInfo {
                resource: stepper.value(name)?,
                operation: 2,
                device_mask: 1,
                ..MapInfo::default()
            };
            map(stepper, &info)
        }
        _ => Err("no such step".into()),
    }
}

fn map(stepper: &mut Stepper, info: &MapInfo) -> Result<Answer, String> {
    let words = [info as *const MapInfo as u64, 1, 0];
    Ok(Answer::code(
        stepper.driver()?.call("cuMemMapArrayAsync", &words),
    ))
}

fn shape(width: &str, height: &str, depth: &str, flags: &str) -> Result<Descriptor3d, String> {
    Ok(Descriptor3d {
        width: number(width)?,
        height: number(height)?,
        depth: number(depth)?,
        format: FLOAT,
        channels: 4,
        flags: number(flags)? as u32,
    })
}
