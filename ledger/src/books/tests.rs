//! Accounting on plain threads and values; `tests/kill.rs` kills real processes.

use super::*;
use ffi::wire::AccountEntry;
use proptest::prelude::*;
use std::sync::atomic::{AtomicU64, Ordering as Std};

/// A sum and some accounts on the heap.
struct Shelf {
    total: TenantTotal,
    accounts: Vec<Account>,
}

impl Accounts for &[Account] {
    fn account(&self, slot: u32) -> Option<&Account> {
        self.get(slot as usize)
    }
}

impl Shelf {
    fn new(slots: usize) -> Self {
        let zero = || AtomicU64::new(0);
        let entry = || AccountEntry {
            base_units: zero(),
            delta_units: zero(),
        };
        let shelf = Self {
            total: TenantTotal {
                word: zero(),
                peak_units: zero(),
                refusals: zero(),
                last_refused_bytes: zero(),
                reserved: [0; 4],
            },
            accounts: (0..slots)
                .map(|_| Account {
                    open: zero(),
                    entries: [entry(), entry()],
                    acknowledged: zero(),
                    reserved: [0; 2],
                })
                .collect(),
        };
        (0..slots as u32).for_each(|slot| shelf.books().settle(slot));
        shelf
    }

    fn books(&self) -> Books<'_, &[Account]> {
        Books::new(&self.total, self.accounts.as_slice())
    }

    fn sum_of_slots(&self) -> u64 {
        (0..self.accounts.len() as u32)
            .map(|slot| self.books().slot_units(slot))
            .sum()
    }
}

#[test]
fn a_reservation_beyond_the_cap_is_refused_and_reserves_nothing() {
    let shelf = Shelf::new(2);
    assert_eq!(shelf.books().reserve(0, 60, 100), Ok(()));
    assert_eq!(
        shelf.books().reserve(1, 41, 100),
        Err(Refused { held_units: 60 })
    );
    assert_eq!(shelf.books().reserve(1, 40, 100), Ok(()));
    assert_eq!(shelf.books().held_units(), 100);
    assert_eq!(shelf.books().slot_units(0), 60);
    assert_eq!(shelf.books().slot_units(1), 40);
}

#[test]
fn refusals_are_counted_with_the_size_of_the_last() {
    let shelf = Shelf::new(1);
    shelf.books().count_refusal(7);
    shelf.books().count_refusal(41);
    assert_eq!(shelf.total.refusals.load(Std::Relaxed), 2);
    assert_eq!(shelf.total.last_refused_bytes.load(Std::Relaxed), 41);
}

#[test]
fn the_largest_number_is_refused_like_any_other() {
    let shelf = Shelf::new(1);
    assert_eq!(shelf.books().reserve(0, 7, 100), Ok(()));
    assert!(shelf.books().reserve(0, u64::MAX, 100).is_err());
    assert!(shelf.books().reserve(0, u64::MAX, u64::MAX).is_err());
    assert_eq!(shelf.books().held_units(), 7);
}

#[test]
fn a_release_of_more_than_is_held_releases_what_is_held() {
    let shelf = Shelf::new(2);
    shelf.books().charge(0, 10);
    shelf.books().charge(1, 5);
    shelf.books().release(0, 11);
    assert_eq!(shelf.books().slot_units(0), 0);
    assert_eq!(shelf.books().held_units(), 5);
}

#[test]
fn reaping_gives_back_what_the_slot_held_and_only_once() {
    let shelf = Shelf::new(3);
    shelf.books().charge(1, 30);
    shelf.books().charge(2, 12);
    assert_eq!(shelf.books().reap(1), 30);
    assert_eq!(shelf.books().reap(1), 0);
    assert_eq!(shelf.books().held_units(), 12);
    assert_eq!(shelf.books().peak_units(), 42);
}

#[test]
fn a_cap_below_what_is_held_refuses_until_enough_is_released() {
    let shelf = Shelf::new(1);
    shelf.books().charge(0, 80);
    assert!(shelf.books().reserve(0, 1, 50).is_err());
    shelf.books().release(0, 31);
    assert_eq!(shelf.books().reserve(0, 1, 50), Ok(()));
}

/// Threads stand for processes, each with a slot of its own; every round asks for more than fits.
#[test]
fn as_many_racing_reservations_succeed_as_fit() {
    const SLOTS: u32 = 8;
    const FIT: u64 = 3;
    let shelf = Shelf::new(SLOTS as usize);
    let barrier = std::sync::Barrier::new(SLOTS as usize);
    let won = AtomicU64::new(0);
    let above = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for slot in 0..SLOTS {
            let (shelf, barrier, won, above) = (&shelf, &barrier, &won, &above);
            scope.spawn(move || {
                for _ in 0..500 {
                    barrier.wait();
                    let has_won = shelf.books().reserve(slot, 10, FIT * 10 + 9).is_ok();
                    won.fetch_add(u64::from(has_won), Std::Relaxed);
                    above.fetch_max(shelf.books().held_units(), Std::Relaxed);
                    barrier.wait();
                    if slot == 0 {
                        assert_eq!(won.swap(0, Std::Relaxed), FIT);
                        assert_eq!(shelf.sum_of_slots(), FIT * 10);
                    }
                    barrier.wait();
                    if has_won {
                        shelf.books().release(slot, 10);
                    }
                }
            });
        }
    });
    assert_eq!(above.load(Std::Relaxed), FIT * 10);
    assert_eq!(shelf.books().held_units(), 0);
    assert_eq!(shelf.sum_of_slots(), 0);
}

#[derive(Debug, Clone)]
enum Step {
    Reserve(u32, u64),
    Release(u32, u64),
    Reap(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u32..4, 0u64..60).prop_map(|(slot, units)| Step::Reserve(slot, units)),
        3 => (0u32..4, 0u64..60).prop_map(|(slot, units)| Step::Release(slot, units)),
        1 => (0u32..4).prop_map(Step::Reap),
    ]
}

proptest! {
    #[test]
    fn the_sum_is_always_the_sum_of_the_slots(steps in proptest::collection::vec(step(), 0..200)) {
        let shelf = Shelf::new(4);
        let mut model = [0u64; 4];
        for step in steps {
            match step {
                Step::Reserve(slot, units) => {
                    let fits = model.iter().sum::<u64>() + units <= 100;
                    prop_assert_eq!(shelf.books().reserve(slot, units, 100).is_ok(), fits);
                    model[slot as usize] += if fits { units } else { 0 };
                }
                Step::Release(slot, units) => {
                    shelf.books().release(slot, units);
                    model[slot as usize] -= units.min(model[slot as usize]);
                }
                Step::Reap(slot) => {
                    prop_assert_eq!(shelf.books().reap(slot), model[slot as usize]);
                    model[slot as usize] = 0;
                }
            }
            for (slot, held) in model.iter().enumerate() {
                prop_assert_eq!(shelf.books().slot_units(slot as u32), *held);
            }
            prop_assert_eq!(shelf.books().held_units(), model.iter().sum::<u64>());
        }
    }
}
