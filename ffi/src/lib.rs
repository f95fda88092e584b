//! Every contract that crosses a library or process boundary.
//!
//! * [`driver`] and [`nvml`]: the two C interfaces, as the headers of CUDA 13.5 spell them.
//! * [`symbols`]: every name that any known driver exports, with what it does.
//! * [`texels`]: how large the texels of arrays are.
//! * [`wire`]: the pages and messages that the shim and the daemon share.
//!
//! No logic and no allocation lives here: types, constants, tables and layout assertions only.
#![cfg_attr(not(loom), no_std)]

pub mod driver;
pub mod nvml;
pub mod symbols;
pub mod sync;
pub mod texels;
pub mod wire;
