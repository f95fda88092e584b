//! The device model: pure state, driven by calls that carry the time.
//!
//! [`memory`] decides who holds which bytes; [`engine`] decides what runs when. Neither reads a
//! clock, opens a file or takes a lock, so both are tested on a fake clock.

pub mod engine;
pub mod memory;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// 2^64 over the golden ratio: multiplying by it mixes (Fibonacci hashing).
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// Hashes numbers that we have made ourselves, so that nobody can choose them to collide.
#[derive(Debug, Clone, Copy, Default)]
pub struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, value: u32) {
        self.write_u64(u64::from(value));
    }

    fn write_u64(&mut self, value: u64) {
        // The map finds the place by the lower bits, which stay as they are: numbers are given out in
        // order, so what is made together lies together in the cache. It tells neighbours apart by
        // the seven upper bits, which are mixed.
        const TAG: u64 = 0x7f << 57;
        let number = self.0.rotate_left(24) ^ value;
        let mixed = number.wrapping_mul(GOLDEN);
        self.0 = (number & !TAG) | (mixed & TAG);
    }

    fn write_usize(&mut self, value: usize) {
        // An address: no two neighbours are in use, and the lowest bits are zero. Both ends of the
        // product are wanted, so they change places.
        let mixed = (self.0 ^ value as u64).wrapping_mul(GOLDEN);
        self.0 = mixed.rotate_left(32);
    }
}

/// A map whose keys are numbers of our own.
pub type NumberMap<K, V> = HashMap<K, V, BuildHasherDefault<NumberHasher>>;

/// A client process, as long as it is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ClientId(pub u32);

/// A context, unique while the `gpu` process lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ContextId(pub u64);
