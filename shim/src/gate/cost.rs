//! What a unit of work is predicted to take, by what it took before.
//!
//! A kernel is remembered by function and by the order of magnitude of its grid, a graph by its
//! executable. A *clean* measurement is of a time in which no other tenant had work. While others had, what
//! a unit took is *estimated* from how long it lasted and the part of the device that it was given.

use ffi::driver::{CUfunction, CUgraphExec};
use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// Most units that are remembered; beyond it everything is learned anew.
///
/// 16,384: some hundred times what a large model launches, half a MiB.
const MOST: usize = 16_384;

/// Clean measurements after which a prediction counts as settled.
const SETTLED: u32 = 8;

/// Estimates that are passed over after a clean measurement.
const PATIENCE: u32 = 32;

/// Clean measurements that are too few to pass over an estimate.
const FEW: u32 = 4;

/// An estimate this many times larger or smaller than what is known is far off.
const FAR: u64 = 2;

/// So many of them in a row are of another unit.
const FAR_IN_A_ROW: u32 = 2;

/// Moves `known` a part of the way to `new`: one `step`th.
fn blend(known: u64, new: u64, step: u64) -> u64 {
    known - known / step + new / step
}

/// One kernel at one size, or one executable graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key(u64);

impl Key {
    pub(super) fn kernel(function: CUfunction, blocks: u64) -> Self {
        // Addresses are even, so the two kinds never meet.
        let size = u64::from(u64::BITS - blocks.leading_zeros());
        Self((function as u64) ^ (size << 56))
    }

    /// A copy, or memory that is filled, of so many bytes.
    pub(super) fn moved(is_fill: bool, bytes: u64) -> Self {
        // No function lies at so low an address.
        let size = u64::from(u64::BITS - bytes.leading_zeros());
        Self((2 + 2 * u64::from(is_fill)) ^ (size << 56))
    }

    pub(super) fn graph(graph: CUgraphExec) -> Self {
        Self(graph as u64 | 1)
    }
}

/// What is known of one unit.
#[derive(Debug, Clone, Copy)]
struct Cost {
    ns: u64,
    /// Clean measurements so far.
    clean: u32,
    /// Estimates since the last of them.
    estimates: u32,
    /// Those in a row that were far off.
    far: u32,
}

/// A hash of one word, which is an address and well spread by one multiplication.
#[derive(Default)]
pub(super) struct Mix(u64);

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }

    fn write_u64(&mut self, word: u64) {
        // The upper half of the product is the well-mixed one.
        let product = u128::from(self.0 ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = (product >> 64) as u64 ^ product as u64;
    }
}

/// Everything that has been learned.
pub(super) struct Costs(HashMap<Key, Cost, BuildHasherDefault<Mix>>);

/// A prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Prediction {
    pub(super) ns: u64,
    /// Whether it rests on enough clean measurements.
    pub(super) is_settled: bool,
}

impl Costs {
    pub(super) const fn new() -> Self {
        Self(HashMap::with_hasher(BuildHasherDefault::new()))
    }

    /// What the unit is predicted to take; `None`: never seen.
    pub(super) fn predict(&self, key: Key) -> Option<Prediction> {
        self.0.get(&key).map(|cost| Prediction {
            ns: cost.ns,
            is_settled: cost.clean >= SETTLED,
        })
    }

    /// Takes note of what a unit took, by a clean measurement or an estimate.
    pub(super) fn learn(&mut self, key: Key, ns: u64, is_clean: bool) {
        if self.0.len() >= MOST && !self.0.contains_key(&key) {
            self.0.clear();
        }
        let known = self.0.entry(key).or_insert(Cost {
            ns,
            clean: 0,
            estimates: 0,
            far: 0,
        });
        if is_clean {
            known.ns = if known.clean == 0 {
                ns
            } else {
                blend(known.ns, ns, 4)
            };
            known.clean = known.clean.saturating_add(1);
            known.estimates = 0;
            known.far = 0;
            return;
        }
        known.estimates = known.estimates.saturating_add(1);
        // An estimate is right on average, and seldom each time. It counts where nothing better came for
        // long, and where several in a row say that the unit has become another.
        let is_far = ns / FAR > known.ns || known.ns / FAR > ns;
        known.far = if is_far { known.far + 1 } else { 0 };
        if known.far >= FAR_IN_A_ROW {
            known.ns = blend(known.ns, ns, 2);
        } else if known.clean < FEW || known.estimates > PATIENCE {
            known.ns = blend(known.ns, ns, 4);
        }
    }

    /// Forgets one unit.
    pub(super) fn forget(&mut self, key: Key) {
        self.0.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(address: usize, blocks: u64) -> Key {
        Key::kernel(address as CUfunction, blocks)
    }

    #[test]
    fn an_estimate_counts_where_there_is_nothing_better() {
        let mut costs = Costs::new();
        let unit = key(0x1000, 7);
        assert_eq!(costs.predict(unit), None);
        costs.learn(unit, 900, false);
        assert_eq!(costs.predict(unit).map(|it| it.ns), Some(900));
        for _ in 0..FEW {
            costs.learn(unit, 400, true);
        }
        costs.learn(unit, 700, false);
        assert_eq!(costs.predict(unit).map(|it| it.ns), Some(400));
        for _ in 0..200 {
            costs.learn(unit, 800, false);
        }
        assert!(costs.predict(unit).is_some_and(|it| it.ns > 700));
    }

    #[test]
    fn a_unit_that_has_become_another_is_noticed_at_once() {
        let mut costs = Costs::new();
        let unit = key(0x1000, 7);
        costs.learn(unit, 5_000, true);
        for _ in 0..8 {
            costs.learn(unit, 10_000_000, false);
        }
        assert!(costs.predict(unit).is_some_and(|it| it.ns > 2_500_000));
    }

    #[test]
    fn a_prediction_settles_and_follows_a_change() {
        let mut costs = Costs::new();
        let unit = key(0x1000, 1);
        for _ in 0..SETTLED {
            costs.learn(unit, 1_000, true);
        }
        assert!(costs.predict(unit).is_some_and(|it| it.is_settled));
        for _ in 0..20 {
            costs.learn(unit, 4_000, true);
        }
        assert!(costs.predict(unit).is_some_and(|it| it.ns > 3_900));
    }

    #[test]
    fn sizes_of_one_kernel_and_graphs_are_told_apart() {
        assert_eq!(key(0x1000, 5), key(0x1000, 7));
        assert_ne!(key(0x1000, 5), key(0x1000, 50));
        assert_eq!(Key::moved(false, 5), Key::moved(false, 7));
        assert_ne!(Key::moved(false, 5), Key::moved(true, 5));
        assert_ne!(Key::moved(false, 5), Key::moved(false, 50));
        assert_ne!(key(0x1000, 0), Key::graph(0x1000 as CUgraphExec));
    }

    #[test]
    fn memory_for_units_is_bounded() {
        let mut costs = Costs::new();
        for address in 0..3 * MOST {
            costs.learn(key(address * 16, 1), 1, true);
        }
        assert!(costs.0.len() <= MOST);
    }
}
