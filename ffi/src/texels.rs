//! How large the texels of CUDA arrays are.
//!
//! Source: the formats of `CUarray_format` and their descriptions in the headers of CUDA 11.8 to 13.5.

use crate::driver::{CUDA_ARRAY3D_DESCRIPTOR, CUarray_format};

/// Texels of the block-compressed formats lie in squares of so many by so many.
pub const BLOCK_TEXELS: u64 = 4;

/// Bits of one texel; `None` for a format that no known header has.
///
/// The plain formats say how large a channel is; the others describe the whole texel, with planes that
/// are smaller than the picture counted by their share.
pub const fn bits(format: CUarray_format, channels: u32) -> Option<u64> {
    let channels = channels as u64;
    Some(match format.0 {
        0x01 | 0x08 => 8 * channels,
        0x02 | 0x09 | 0x10 => 16 * channels,
        0x03 | 0x0a | 0x20 => 32 * channels,
        0x91 | 0x92 | 0x97 | 0x98 => 4,
        0x93..=0x96 | 0x99..=0x9e | 0xc0 | 0xc6 => 8,
        0xb0 | 0x53 | 0x59 => 12,
        0xa2 | 0xa5 | 0x51 | 0x55 | 0x5b | 0xc1 | 0xc3 | 0xc7 | 0xc9 => 16,
        0x9f | 0xa1 | 0xb2 | 0xb4 | 0x54 | 0x57 | 0x5a | 0x5d => 24,
        0xa3 | 0xa4 | 0xa6..=0xa9 | 0x50 | 0x52 | 0x56 | 0x5c | 0xc2 | 0xc4 | 0xc8 | 0xca => 32,
        0xb3 | 0xb5 | 0x58 | 0x5e => 48,
        0xb1 | 0xc5 | 0xcb => 64,
        _ => return None,
    })
}

/// Whether texels of this format are stored by the square: BC1 to BC7.
pub const fn is_by_blocks(format: CUarray_format) -> bool {
    matches!(format.0, 0x91..=0x9e)
}

/// Bytes of the texels alone, without what a driver pads them with; `None` for an unknown format.
/// Saturates.
pub fn nominal_bytes(array: &CUDA_ARRAY3D_DESCRIPTOR) -> Option<u64> {
    let bits = bits(array.Format, array.NumChannels)?;
    let square = |extent: usize| {
        let extent = (extent as u64).max(1);
        if is_by_blocks(array.Format) {
            extent.saturating_add(BLOCK_TEXELS - 1) / BLOCK_TEXELS * BLOCK_TEXELS
        } else {
            extent
        }
    };
    let texels = square(array.Width)
        .saturating_mul(square(array.Height))
        .saturating_mul((array.Depth as u64).max(1));
    Some(texels.saturating_mul(bits).div_ceil(8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::CUarray_format_enum as F;

    fn array(format: CUarray_format, channels: u32, size: [usize; 3]) -> CUDA_ARRAY3D_DESCRIPTOR {
        CUDA_ARRAY3D_DESCRIPTOR {
            Width: size[0],
            Height: size[1],
            Depth: size[2],
            Format: format,
            NumChannels: channels,
            Flags: 0,
        }
    }

    #[test]
    fn texels_are_as_large_as_the_header_says() {
        let float4 = array(F::CU_AD_FORMAT_FLOAT, 4, [1024, 1024, 0]);
        assert_eq!(nominal_bytes(&float4), Some(16 << 20));
        let line = array(F::CU_AD_FORMAT_UNSIGNED_INT8, 1, [1000, 0, 0]);
        assert_eq!(nominal_bytes(&line), Some(1000));
        let video = array(F::CU_AD_FORMAT_NV12, 3, [1920, 1080, 0]);
        assert_eq!(nominal_bytes(&video), Some(1920 * 1080 * 3 / 2));
        let squares = array(F::CU_AD_FORMAT_BC1_UNORM, 4, [5, 5, 0]);
        assert_eq!(nominal_bytes(&squares), Some(32));
    }

    #[test]
    fn an_unknown_format_has_no_size_and_an_absurd_one_saturates() {
        assert_eq!(bits(CUarray_format(0xfff), 1), None);
        let absurd = array(F::CU_AD_FORMAT_FLOAT, 4, [usize::MAX, usize::MAX, 2]);
        assert_eq!(nominal_bytes(&absurd), Some(u64::MAX.div_ceil(8)));
    }
}
