//! Texture and surface objects: their descriptions, checked and kept. Kernels of the stand-in read nothing.
//!
//! Source: CUDA driver API, "Texture Object Management" and "Surface Object Management".

use std::collections::BTreeMap;

use ffi::driver::{
    CUDA_RESOURCE_DESC, CUDA_RESOURCE_VIEW_DESC, CUDA_TEXTURE_DESC, CUarray_format,
    CUresourcetype_enum as Resource, CUsurfObject, CUtexObject,
};
use ffi::texels;
use parking_lot::Mutex;

use crate::array;
use crate::guard::{Answer, INVALID_VALUE, Out, put, take};
use crate::state::{self, Driver, driver};

/// What a texture's memory must be a multiple of; `TEXTURE_ALIGNMENT`.
const ALIGN: u64 = 512;
/// What a texture's rows must be a multiple of; `TEXTURE_PITCH_ALIGNMENT`.
const PITCH_ALIGN: usize = 32;
/// Texels of linear memory, at most; `MAXIMUM_TEXTURE1D_LINEAR_WIDTH` of large devices.
const MAX_LINEAR: u64 = 1 << 28;
/// Flags of a texture: integers, normalised coordinates, sRGB, trilinear and cube maps.
const KNOWN_FLAGS: u32 = 1 | 2 | 16 | 32 | 64;
/// `CUDA_ARRAY3D_SURFACE_LDST`.
const FOR_SURFACES: u32 = 2;
/// The last of the formats of a view.
const LAST_VIEW_FORMAT: u32 = 0x22;

struct Texture {
    context: u64,
    resource: CUDA_RESOURCE_DESC,
    texture: CUDA_TEXTURE_DESC,
    view: Option<CUDA_RESOURCE_VIEW_DESC>,
}

struct Surface {
    context: u64,
    resource: CUDA_RESOURCE_DESC,
}

// SAFETY: handles and addresses in it are only shown, never followed.
unsafe impl Send for Texture {}
// SAFETY: as above.
unsafe impl Send for Surface {}

static TEXTURES: Mutex<BTreeMap<u64, Texture>> = Mutex::new(BTreeMap::new());
static SURFACES: Mutex<BTreeMap<u64, Surface>> = Mutex::new(BTreeMap::new());

/// A context has ended, and with it its objects.
pub(crate) fn close_context(context: u64) {
    TEXTURES.lock().retain(|_, it| it.context != context);
    SURFACES.lock().retain(|_, it| it.context != context);
}

/// Bytes of a texel.
fn texel_bytes(format: CUarray_format, channels: u32) -> Answer<u64> {
    let bits = texels::bits(format, channels).ok_or(INVALID_VALUE)?;
    if !matches!(channels, 1 | 2 | 4) || bits % 8 != 0 || texels::is_by_blocks(format) {
        return Err(INVALID_VALUE);
    }
    Ok(bits / 8)
}

/// Whether device memory lies there, as a texture needs it.
fn check_memory(driver: &Driver, address: u64, bytes: u64) -> Answer {
    if bytes == 0 || !address.is_multiple_of(ALIGN) {
        return Err(INVALID_VALUE);
    }
    let place = driver.ranges.resolve(address, bytes)?;
    match place.is_pageable {
        true => Err(INVALID_VALUE),
        false => Ok(()),
    }
}

fn check_resource(driver: &Driver, resource: &CUDA_RESOURCE_DESC) -> Answer {
    if resource.flags != 0 {
        return Err(INVALID_VALUE);
    }
    match resource.resType {
        Resource::CU_RESOURCE_TYPE_ARRAY => {
            // SAFETY: the type says that it is this member; every bit pattern is a handle.
            let asked = unsafe { resource.res.array };
            array::find(asked.hArray)
                .map(drop)
                .map_err(|_| INVALID_VALUE)
        }
        Resource::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY => {
            // SAFETY: as above.
            let asked = unsafe { resource.res.mipmap };
            let found = array::find_mipmap(asked.hMipmappedArray);
            found.map(drop).map_err(|_| INVALID_VALUE)
        }
        Resource::CU_RESOURCE_TYPE_LINEAR => {
            // SAFETY: the type says that it is this member; all its parts are numbers.
            let asked = unsafe { resource.res.linear };
            let texel = texel_bytes(asked.format, asked.numChannels)?;
            let bytes = asked.sizeInBytes as u64;
            if bytes / texel > MAX_LINEAR {
                return Err(INVALID_VALUE);
            }
            check_memory(driver, asked.devPtr, bytes)
        }
        Resource::CU_RESOURCE_TYPE_PITCH2D => {
            // SAFETY: as above.
            let asked = unsafe { resource.res.pitch2D };
            let texel = texel_bytes(asked.format, asked.numChannels)?;
            let row = texel.checked_mul(asked.width as u64).ok_or(INVALID_VALUE)?;
            let pitch = asked.pitchInBytes as u64;
            let is_possible = row > 0
                && row <= pitch
                && asked.height > 0
                && asked.pitchInBytes.is_multiple_of(PITCH_ALIGN);
            // The last row need not be a whole pitch long.
            let bytes = pitch
                .checked_mul(asked.height as u64)
                .filter(|_| is_possible)
                .ok_or(INVALID_VALUE)?
                - pitch
                + row;
            check_memory(driver, asked.devPtr, bytes)
        }
        _ => Err(INVALID_VALUE),
    }
}

fn check_texture(texture: &CUDA_TEXTURE_DESC) -> Answer {
    let is_possible = texture.addressMode.iter().all(|mode| mode.0 <= 3)
        && texture.filterMode.0 <= 1
        && texture.mipmapFilterMode.0 <= 1
        && texture.flags & !KNOWN_FLAGS == 0
        && texture.maxAnisotropy <= 16;
    if is_possible {
        Ok(())
    } else {
        Err(INVALID_VALUE)
    }
}

fn create_texture(
    out: *mut CUtexObject,
    resource: *const CUDA_RESOURCE_DESC,
    texture: *const CUDA_TEXTURE_DESC,
    view: *const CUDA_RESOURCE_VIEW_DESC,
) -> Answer {
    let out = Out::claim(out)?;
    let (resource, texture) = (take(resource)?, take(texture)?);
    let driver = driver()?;
    let context = state::current()?;
    check_resource(driver, &resource)?;
    check_texture(&texture)?;
    let view = if view.is_null() {
        None
    } else {
        let view = take(view)?;
        let is_of_array = matches!(
            resource.resType,
            Resource::CU_RESOURCE_TYPE_ARRAY | Resource::CU_RESOURCE_TYPE_MIPMAPPED_ARRAY
        );
        let is_in_order =
            view.firstMipmapLevel <= view.lastMipmapLevel && view.firstLayer <= view.lastLayer;
        if !is_of_array || !is_in_order || view.format.0 > LAST_VIEW_FORMAT {
            return Err(INVALID_VALUE);
        }
        Some(view)
    };
    let number = driver.number();
    let object = Texture {
        context: context.id,
        resource,
        texture,
        view,
    };
    TEXTURES.lock().insert(number, object);
    out.write(number);
    Ok(())
}

/// Reads something of a texture.
fn of_texture<T>(object: CUtexObject, read: impl FnOnce(&Texture) -> Option<T>) -> Answer<T> {
    state::current()?;
    let textures = TEXTURES.lock();
    textures.get(&object).and_then(read).ok_or(INVALID_VALUE)
}

fn destroy_texture(object: CUtexObject) -> Answer {
    state::current()?;
    let gone = TEXTURES.lock().remove(&object);
    gone.map(drop).ok_or(INVALID_VALUE)
}

fn create_surface(out: *mut CUsurfObject, resource: *const CUDA_RESOURCE_DESC) -> Answer {
    let out = Out::claim(out)?;
    let resource = take(resource)?;
    let driver = driver()?;
    let context = state::current()?;
    if resource.resType != Resource::CU_RESOURCE_TYPE_ARRAY {
        return Err(INVALID_VALUE);
    }
    check_resource(driver, &resource)?;
    // SAFETY: the type says that it is this member; every bit pattern is a handle.
    let asked = unsafe { resource.res.array };
    let array = array::find(asked.hArray).map_err(|_| INVALID_VALUE)?;
    if array.descriptor().Flags & FOR_SURFACES == 0 {
        return Err(INVALID_VALUE);
    }
    let number = driver.number();
    let object = Surface {
        context: context.id,
        resource,
    };
    SURFACES.lock().insert(number, object);
    out.write(number);
    Ok(())
}

fn surface_resource(out: *mut CUDA_RESOURCE_DESC, object: CUsurfObject) -> Answer {
    state::current()?;
    let surfaces = SURFACES.lock();
    let surface = surfaces.get(&object).ok_or(INVALID_VALUE)?;
    put(out, surface.resource)
}

fn destroy_surface(object: CUsurfObject) -> Answer {
    state::current()?;
    let gone = SURFACES.lock().remove(&object);
    gone.map(drop).ok_or(INVALID_VALUE)
}

driver! {
    cuTexObjectCreate(p_tex_object: *mut CUtexObject, p_res_desc: *const CUDA_RESOURCE_DESC, p_tex_desc: *const CUDA_TEXTURE_DESC, p_res_view_desc: *const CUDA_RESOURCE_VIEW_DESC) => create_texture;
    cuTexObjectDestroy(tex_object: CUtexObject) => destroy_texture;
    cuTexObjectGetResourceDesc(p_res_desc: *mut CUDA_RESOURCE_DESC, tex_object: CUtexObject) => |out, object| put(out, of_texture(object, |it| Some(it.resource))?);
    cuTexObjectGetTextureDesc(p_tex_desc: *mut CUDA_TEXTURE_DESC, tex_object: CUtexObject) => |out, object| put(out, of_texture(object, |it| Some(it.texture))?);
    cuTexObjectGetResourceViewDesc(p_res_view_desc: *mut CUDA_RESOURCE_VIEW_DESC, tex_object: CUtexObject) => |out, object| put(out, of_texture(object, |it| it.view)?);
    cuSurfObjectCreate(p_surf_object: *mut CUsurfObject, p_res_desc: *const CUDA_RESOURCE_DESC) => create_surface;
    cuSurfObjectDestroy(surf_object: CUsurfObject) => destroy_surface;
    cuSurfObjectGetResourceDesc(p_res_desc: *mut CUDA_RESOURCE_DESC, surf_object: CUsurfObject) => surface_resource;
}
