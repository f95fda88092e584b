//! The accounting protocol on the usage page: how the processes of one tenant share its memory cap
//! without a lock, and what is left to do when one of them dies.
//!
//! # What it holds
//!
//! * The sum of what all processes hold never exceeds the cap, at any instant.
//! * Of several reservations that do not all fit, as many succeed as fit: the decision is one
//!   compare-and-swap on the sum, so nobody is refused because of somebody who was refused too.
//! * A process may be killed between any two instructions. What it held is afterwards known exactly,
//!   and giving it back is one ordinary release, made in its name.
//! * Nobody ever waits for anybody: a stopped process holds up nothing.
//! * The cost does not depend on how many processes or allocations there are.
//!
//! # How
//!
//! The sum is one word: units held, and a *tag* that says whose operation put it there, as slot and
//! operation number. A process keeps an [`Account`] of its own: what it held before its open
//! operation, and what that operation adds. It writes down the operation, then swaps the sum. From
//! that instant the operation is *committed*: the tag says so. Whoever swaps the sum next first
//! writes into the former one's account that its operation was seen committed, since the tag is about
//! to go. So of every operation, also of one whose process died in its middle, the account and the
//! tag together say whether it counts:
//!
//! ```text
//!   committed(slot, n)  =  acknowledged >= n  or  tag == (slot, n)
//!   held(slot)          =  base + (committed(slot, open) ? delta : 0)
//! ```
//!
//! The account has two entries, used by turns, so that opening the next operation never overwrites the
//! one that is being closed.
//!
//! # Lock order
//!
//! No locks. An account has one writer at a time: the threads of its process take turns by a mutex of
//! the process's own (which dies with it), and after its death the daemon is the writer.
//!
//! # What it does not do
//!
//! It knows nothing of pointers, devices or drivers, and it does not defend one process of a tenant
//! against another that scribbles on the page: they are one tenant.
#![cfg_attr(not(any(test, loom)), no_std)]
#![deny(
    unsafe_code,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod books;
mod tag;

pub use books::{Accounts, Books, PageAccounts, Refused};
pub use ffi::wire::{Account, TenantTotal, UNIT_BYTES};

/// Units that `bytes` take, rounded up; saturates at the largest number of whole units.
pub const fn units(bytes: u64) -> u64 {
    bytes.div_ceil(UNIT_BYTES)
}

/// Bytes of `units`; saturates.
pub const fn bytes(units: u64) -> u64 {
    units.saturating_mul(UNIT_BYTES)
}

/// Whole units that fit under a cap of `bytes`, rounded down.
pub const fn cap_units(bytes: u64) -> u64 {
    bytes / UNIT_BYTES
}
