//! One device's books: the sum, and an account for each slot.

use crate::tag::{MAX_UNITS, Word};
use ffi::sync::Ordering;
use ffi::wire::{
    Account, AccountEntry, LastRefused, REFUSED_UP_TO, Refusable, TenantTotal, UsagePage,
};

/// Where the accounts of one device are.
pub trait Accounts {
    /// The account of `slot`; `None` for a slot that does not exist.
    fn account(&self, slot: u32) -> Option<&Account>;
}

/// The accounts of one device in a usage page.
#[derive(Debug, Clone, Copy)]
pub struct PageAccounts<'p> {
    page: &'p UsagePage,
    device: usize,
}

impl Accounts for PageAccounts<'_> {
    fn account(&self, slot: u32) -> Option<&Account> {
        self.page.slots.get(slot as usize)?.devices.get(self.device)
    }
}

/// A request did not fit under the cap; nothing has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused {
    /// Units that all processes of the tenant held at that instant.
    pub held_units: u64,
}

/// The sum and the accounts of one device of one tenant.
#[derive(Debug, Clone, Copy)]
pub struct Books<'p, A> {
    total: &'p TenantTotal,
    accounts: A,
}

impl<'p> Books<'p, PageAccounts<'p>> {
    /// The books of `device` (in the control page's order); `None` beyond the page's devices.
    pub fn of(page: &'p UsagePage, device: usize) -> Option<Self> {
        Some(Self {
            total: page.totals.get(device)?,
            accounts: PageAccounts { page, device },
        })
    }

    /// Counts a request of `bytes` that was refused to `function` for good.
    pub fn count_refusal_of(&self, function: Refusable, bytes: u64) {
        self.count_refusal(bytes);
        let Some(counts) = self.accounts.page.refusals.get(self.accounts.device) else {
            return;
        };
        let size = REFUSED_UP_TO.iter().position(|most| bytes <= *most);
        let words = [
            counts.by_function.get(function.place()),
            size.and_then(|size| counts.by_size.get(size)),
        ];
        for word in words.into_iter().flatten() {
            word.fetch_add(1, Ordering::Relaxed);
        }
        let last = LastRefused {
            place: function.place() as u8,
            bytes,
        };
        counts.last.store(last.pack(), Ordering::Relaxed);
    }
}

impl<'p, A: Accounts> Books<'p, A> {
    /// Books over a sum and accounts that lie elsewhere than in a page.
    pub fn new(total: &'p TenantTotal, accounts: A) -> Self {
        Self { total, accounts }
    }

    /// Units that all processes hold together.
    pub fn held_units(&self) -> u64 {
        self.word().units
    }

    /// Most units that were ever held together.
    pub fn peak_units(&self) -> u64 {
        self.total.peak_units.load(Ordering::Relaxed)
    }

    /// Units that `slot` holds. Exact for a dead process and for one's own; for a running one it is
    /// a value that it held a moment ago.
    pub fn slot_units(&self, slot: u32) -> u64 {
        let Some(account) = self.accounts.account(slot) else {
            return 0;
        };
        // A running owner may open its next operation under this reader; a few tries find a quiet
        // moment, and the last reading is good enough for a display.
        let mut units = 0;
        for _ in 0..8 {
            // Acquire; pairs with the Release in `settle`, so the entry is the open operation's.
            let open = account.open.load(Ordering::Acquire);
            let entry = entry_of(account, open);
            let base = entry.base_units.load(Ordering::Relaxed);
            let delta = entry.delta_units.load(Ordering::Relaxed);
            let is_committed = self.is_committed(account, slot, open);
            units = if is_committed {
                base.wrapping_add(delta)
            } else {
                base
            };
            if account.open.load(Ordering::Acquire) == open {
                break;
            }
        }
        units.min(MAX_UNITS)
    }

    /// Adds `units` to what `slot` holds, if all together then hold at most `limit_units`.
    ///
    /// The caller is the slot's only writer at this time.
    ///
    /// # Errors
    /// [`Refused`]: it does not fit, and nothing has changed.
    pub fn reserve(&self, slot: u32, units: u64, limit_units: u64) -> Result<(), Refused> {
        self.change(slot, units, |held| {
            held.checked_add(units)
                .filter(|sum| *sum <= limit_units.min(MAX_UNITS))
        })
    }

    /// Counts a request of `bytes` that was refused for good, after whatever was tried to make room.
    pub fn count_refusal(&self, bytes: u64) {
        self.total.refusals.fetch_add(1, Ordering::Relaxed);
        self.total
            .last_refused_bytes
            .store(bytes, Ordering::Relaxed);
    }

    /// Adds `units` to what `slot` holds whatever the cap says: for what the driver has given already.
    ///
    /// The caller is the slot's only writer at this time.
    pub fn charge(&self, slot: u32, units: u64) {
        // Cannot be refused: the closure never says no.
        let _ = self.change(slot, units, |held| {
            Some(held.saturating_add(units).min(MAX_UNITS))
        });
    }

    /// Takes `units` off what `slot` holds, but never more than it holds.
    ///
    /// The caller is the slot's only writer at this time.
    pub fn release(&self, slot: u32, units: u64) {
        let units = units.min(self.slot_units(slot));
        if units > 0 {
            // Cannot be refused: the closure never says no.
            let _ = self.change(slot, units.wrapping_neg(), |held| {
                Some(held.saturating_sub(units))
            });
        }
    }

    /// Gives back all that a dead process held in `slot`, in its name; says how much.
    ///
    /// The caller knows that the process is dead, and is the only one who reaps. May be cut off at
    /// any instruction and called again by another: it then does what is left, and only that.
    pub fn reap(&self, slot: u32) -> u64 {
        self.settle(slot);
        let units = self.slot_units(slot);
        self.release(slot, units);
        units
    }

    /// Closes an operation of `slot` that was committed but not settled, because its process died
    /// there. The next owner of a slot, and whoever reaps it, calls this first.
    ///
    /// The caller is the slot's only writer at this time.
    pub fn settle(&self, slot: u32) {
        let Some(account) = self.accounts.account(slot) else {
            return;
        };
        let open = account.open.load(Ordering::Acquire);
        if self.is_committed(account, slot, open) {
            open_next(account, open);
        }
    }

    /// Makes one operation: `delta` (two's complement) on the slot's account and, by `decide`, a new
    /// sum from the old one. `decide` may be asked several times; `None` refuses.
    fn change(
        &self,
        slot: u32,
        delta: u64,
        decide: impl Fn(u64) -> Option<u64>,
    ) -> Result<(), Refused> {
        let Some(account) = self.accounts.account(slot) else {
            return Err(Refused {
                held_units: self.held_units(),
            });
        };
        // This process wrote it last, or took the slot over from the daemon, through a socket.
        let open = account.open.load(Ordering::Relaxed);
        let entry = entry_of(account, open);
        let mut seen = self.total.word.load(Ordering::Acquire);
        loop {
            let word = Word::unpack(seen);
            let Some(sum) = decide(word.units) else {
                // The operation stays open and uncommitted; a later one writes over it.
                entry.delta_units.store(0, Ordering::Relaxed);
                return Err(Refused {
                    held_units: word.units,
                });
            };
            if word.slot != slot && !self.acknowledge_last(seen) {
                seen = self.total.word.load(Ordering::Acquire);
                continue;
            }
            entry.delta_units.store(delta, Ordering::Relaxed);
            // Release: who sees the tag sees the entry. Acquire: pairs with the Release of the one
            // before, whose account `acknowledge_last` of a later turn reads.
            match self.total.word.compare_exchange_weak(
                seen,
                Word::new(sum, slot, open).pack(),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => {
                    self.raise_peak(sum);
                    open_next(account, open);
                    return Ok(());
                }
                Err(now) => seen = now,
            }
        }
    }

    /// Writes into the account of the slot that the tag in `seen` names that its operation was
    /// committed, if it has not settled that itself. False: the sum has changed, look again.
    ///
    /// Why the number's low bits are enough: the second look at the sum finds the same tag *after*
    /// `open` was read. All operations below `open` are committed, so the last committed one is `open`
    /// or the one before; with equal low bits it can only be `open` itself.
    fn acknowledge_last(&self, seen: u64) -> bool {
        let word = Word::unpack(seen);
        let Some(account) = self.accounts.account(word.slot) else {
            return true;
        };
        let open = account.open.load(Ordering::Acquire);
        if !word.names(word.slot, open) {
            return true;
        }
        if self.total.word.load(Ordering::Acquire) != seen {
            return false;
        }
        // Release; pairs with the Acquire in `is_committed`. Before the swap that removes the tag, so
        // at every instant one of the two says that the operation counts.
        account.acknowledged.fetch_max(open, Ordering::AcqRel);
        true
    }

    /// Whether operation `number` of `slot` counts. The tag is read first: it goes only after the
    /// acknowledgement has come.
    fn is_committed(&self, account: &Account, slot: u32, number: u64) -> bool {
        self.word().names(slot, number) || account.acknowledged.load(Ordering::Acquire) >= number
    }

    fn word(&self) -> Word {
        Word::unpack(self.total.word.load(Ordering::Acquire))
    }

    fn raise_peak(&self, units: u64) {
        // The load spares the line an atomic write on every call after the peak.
        if self.total.peak_units.load(Ordering::Relaxed) < units {
            self.total.peak_units.fetch_max(units, Ordering::Relaxed);
        }
    }
}

/// Opens the operation after `open`, which is committed.
fn open_next(account: &Account, open: u64) {
    let closed = entry_of(account, open);
    let next = entry_of(account, open.wrapping_add(1));
    let held = closed
        .base_units
        .load(Ordering::Relaxed)
        .wrapping_add(closed.delta_units.load(Ordering::Relaxed));
    next.base_units.store(held, Ordering::Relaxed);
    next.delta_units.store(0, Ordering::Relaxed);
    // Release: who sees the number sees its entry. Pairs with the Acquire loads of `open`.
    account.open.store(open.wrapping_add(1), Ordering::Release);
}

fn entry_of(account: &Account, number: u64) -> &AccountEntry {
    let [even, odd] = &account.entries;
    if number.is_multiple_of(2) { even } else { odd }
}

#[cfg(all(test, not(loom)))]
mod tests;
