//! The device model: pure state, driven by calls that carry the time.
//!
//! [`memory`] decides who holds which bytes; [`engine`] decides what runs when. Neither reads a
//! clock, opens a file or takes a lock, so both are tested on a fake clock.

pub mod engine;
pub mod memory;

/// A client process, as long as it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// A context, unique while the `gpu` process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u64);
