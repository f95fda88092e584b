//! Every interleaving of the protocol's loads and stores, as `loom` finds them.
//!
//! Run with `RUSTFLAGS="--cfg loom" cargo test --release -p sluice-ledger --test loom`.
#![cfg(loom)]

use ffi::sync::AtomicU64;
use ffi::wire::AccountEntry;
use ledger::{Account, Accounts, Books, TenantTotal};
use loom::sync::Arc;
use loom::thread;

/// A sum and an account for each thread, which stands for a process.
struct Shelf {
    total: TenantTotal,
    accounts: Vec<Account>,
}

struct Row<'s>(&'s [Account]);

impl Accounts for Row<'_> {
    fn account(&self, slot: u32) -> Option<&Account> {
        self.0.get(slot as usize)
    }
}

impl Shelf {
    fn new(slots: u32) -> Arc<Self> {
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
        (0..slots).for_each(|slot| shelf.books().settle(slot));
        Arc::new(shelf)
    }

    fn books(&self) -> Books<'_, Row<'_>> {
        Books::new(&self.total, Row(&self.accounts))
    }

    fn sum_of_slots(&self) -> u64 {
        (0..self.accounts.len() as u32)
            .map(|slot| self.books().slot_units(slot))
            .sum()
    }
}

/// All interleavings with at most three involuntary switches: where more are needed for a fault, loom's
/// authors have not seen one, and all of them take hours.
fn model(check: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(check);
}

#[test]
fn exactly_one_of_two_reservations_that_exclude_each_other_succeeds() {
    model(|| {
        let shelf = Shelf::new(2);
        let other = Arc::clone(&shelf);
        let racer = thread::spawn(move || other.books().reserve(1, 60, 100).is_ok());
        let is_ours = shelf.books().reserve(0, 60, 100).is_ok();
        let is_theirs = racer.join().expect("no panic in the model");
        assert!(is_ours != is_theirs);
        assert_eq!(shelf.books().held_units(), 60);
        assert_eq!(shelf.sum_of_slots(), 60);
    });
}

#[test]
fn the_sum_is_the_sum_of_the_slots_after_any_interleaving() {
    model(|| {
        let shelf = Shelf::new(2);
        let other = Arc::clone(&shelf);
        let racer = thread::spawn(move || {
            other.books().charge(1, 7);
            other.books().release(1, 3);
        });
        shelf.books().charge(0, 20);
        shelf.books().release(0, 20);
        racer.join().expect("no panic in the model");
        assert_eq!(shelf.books().held_units(), 4);
        assert_eq!(shelf.sum_of_slots(), 4);
    });
}

#[test]
fn a_reader_never_sees_a_process_hold_what_it_never_held() {
    model(|| {
        let shelf = Shelf::new(2);
        let other = Arc::clone(&shelf);
        let racer = thread::spawn(move || {
            other.books().charge(1, 5);
            other.books().release(1, 5);
        });
        shelf.books().charge(0, 1);
        assert!([0, 5].contains(&shelf.books().slot_units(1)));
        racer.join().expect("no panic in the model");
        assert_eq!(shelf.sum_of_slots(), 1);
    });
}
