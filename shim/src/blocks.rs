//! Live linear allocations of this process, by address.
//!
//! Thirty-two maps with a lock each, so that threads meet rarely and a look-up costs the same with one
//! allocation or a hundred thousand.

use crate::device::Index;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::LazyLock;

/// What is known of one allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Block {
    /// Units charged for it.
    pub(crate) units: u64,
    /// Where.
    pub(crate) device: Index,
    /// The context whose end frees it.
    pub(crate) context: usize,
}

/// Addresses are multiples of 512 and often consecutive; one multiplication spreads them.
#[derive(Default)]
pub(crate) struct AddressHasher(u64);

impl Hasher for AddressHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = spread(self.0 ^ value);
    }
}

const fn spread(value: u64) -> u64 {
    // 2^64 divided by the golden ratio; the upper half decides, so it is brought down as well.
    let product = value.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    product ^ (product >> 32)
}

/// The allocations of one shard, and the number of the next one.
#[derive(Default)]
struct Shard {
    next: u64,
    live: HashMap<u64, (u64, Block), BuildHasherDefault<AddressHasher>>,
}

const SHARDS: usize = 32;

static LIVE: LazyLock<[Mutex<Shard>; SHARDS]> =
    LazyLock::new(|| std::array::from_fn(|_| Mutex::new(Shard::default())));

fn shard(address: u64) -> Option<&'static Mutex<Shard>> {
    LIVE.get((spread(address >> 9) >> 40) as usize % SHARDS)
}

/// One allocation among all that ever had its address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Number(u64);

/// Notes an allocation. Gives back what was known under this address before: the driver has handed it
/// out again, so the former allocation has been freed.
pub(crate) fn insert(address: u64, block: Block) -> Option<Block> {
    let mut shard = shard(address)?.lock();
    let number = shard.next;
    shard.next += 1;
    let former = shard.live.insert(address, (number, block));
    former.map(|(_, block)| block)
}

/// Which allocation has this address now; `None` for an address that we do not know.
pub(crate) fn at(address: u64) -> Option<Number> {
    let shard = shard(address)?.lock();
    shard.live.get(&address).map(|(number, _)| Number(*number))
}

/// Takes an allocation out, if it has not been taken and its address has not been given again.
pub(crate) fn take(address: u64, wanted: Number) -> Option<Block> {
    let mut shard = shard(address)?.lock();
    let (number, _) = shard.live.get(&address)?;
    if Number(*number) != wanted {
        return None;
    }
    shard.live.remove(&address).map(|(_, block)| block)
}

/// Takes out everything that `context` owned.
pub(crate) fn take_context(context: usize) -> Vec<Block> {
    let mut taken = Vec::new();
    for shard in LIVE.iter() {
        shard.lock().live.retain(|_, (_, block)| {
            let stays = block.context != context;
            if !stays {
                taken.push(*block);
            }
            stays
        });
    }
    taken
}
