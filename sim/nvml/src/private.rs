//! The undocumented table of functions that `nvidia-smi` asks for by name.
//!
//! What its slots do is not known to us, and nothing is made up: every one says that it is not
//! supported, and the tool shows `N/A` in those places. Slots are the same in 535, 550 and 555.
//! This table belongs to the management library alone; the driver library of the stand-in has none.

use std::ffi::c_void;

use ffi::nvml::nvmlReturn_t;

use crate::guard::{Answer, In, Out};

/// The one table that is known by name, c4fe3e6c-c98f-6c4e-a327-ee696e12f7c4.
const TABLE_NAME: [u8; 16] = 0xC4FE_3E6C_C98F_6C4E_A327_EE69_6E12_F7C4_u128.to_be_bytes();

/// Slots beyond those that any of the three versions uses; the highest seen is 249.
const SLOTS: usize = 512;

static TABLE: [extern "C" fn() -> nvmlReturn_t; SLOTS] = [slot; SLOTS];

/// Hands out the table by its name, and no other.
pub(crate) fn table(table: Out<*const c_void>, name: In<[u8; 16]>) -> Answer {
    let table = table.claim()?;
    match name.read()? == TABLE_NAME {
        true => {
            table.write((&raw const TABLE).cast());
            Ok(())
        }
        false => Err(nvmlReturn_t::NVML_ERROR_NOT_FOUND),
    }
}

/// Takes any arguments: by the calling convention what is not read does no harm.
extern "C" fn slot() -> nvmlReturn_t {
    nvmlReturn_t::NVML_ERROR_NOT_SUPPORTED
}
