//! The sum's word: units held, and whose operation put them there.

/// Bits for the units: 2^34 × 512 B = 8 TiB on one device, forty times the largest one sold.
const UNIT_BITS: u32 = 34;
/// Bits for the slot: as many as `MAX_SLOTS` needs.
const SLOT_BITS: u32 = 10;
/// Bits for the operation's number, taken modulo this. No two operations that could be confused are
/// this far apart: see `Books::acknowledge_last`.
const NUMBER_BITS: u32 = 20;

const _: () = assert!(UNIT_BITS + SLOT_BITS + NUMBER_BITS == u64::BITS);
const _: () = assert!(1 << SLOT_BITS == ffi::wire::MAX_SLOTS);

/// Most units that the word can hold.
pub(crate) const MAX_UNITS: u64 = (1 << UNIT_BITS) - 1;

/// The sum's word, taken apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    /// Units held by all slots together.
    pub(crate) units: u64,
    /// Slot of the last operation.
    pub(crate) slot: u32,
    /// Number of the last operation, modulo 2^20.
    number: u64,
}

impl Word {
    /// The word after operation `number` of `slot` has left `units`.
    pub(crate) const fn new(units: u64, slot: u32, number: u64) -> Self {
        Self {
            units,
            slot,
            number: number % (1 << NUMBER_BITS),
        }
    }

    /// Takes a word apart; every bit pattern is a valid one.
    pub(crate) const fn unpack(word: u64) -> Self {
        Self {
            units: word & MAX_UNITS,
            slot: ((word >> UNIT_BITS) & ((1 << SLOT_BITS) - 1)) as u32,
            number: word >> (UNIT_BITS + SLOT_BITS),
        }
    }

    /// The word as it stands in the page.
    pub(crate) const fn pack(self) -> u64 {
        self.units | ((self.slot as u64) << UNIT_BITS) | (self.number << (UNIT_BITS + SLOT_BITS))
    }

    /// Whether the tag names operation `number` of `slot`.
    pub(crate) const fn names(self, slot: u32, number: u64) -> bool {
        self.slot == slot && self.number == number % (1 << NUMBER_BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_word_survives_packing(units in 0..=MAX_UNITS, slot in 0u32..1024, number: u64) {
            let word = Word::new(units, slot, number);
            prop_assert_eq!(Word::unpack(word.pack()), word);
            prop_assert!(word.names(slot, number));
            prop_assert!(!word.names(slot, number.wrapping_add(1)));
        }

        #[test]
        fn every_bit_pattern_is_a_word(word: u64) {
            prop_assert_eq!(Word::unpack(word).pack(), word);
        }
    }
}
