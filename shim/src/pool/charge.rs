//! What is charged for pools: set aside before a call, settled after it, looked at again after others.

use crate::account::{self, Request};
use crate::device::Index;
use crate::session::Seat;
use ffi::driver::{CUdeviceptr, CUmemPool_attribute, CUmemoryPool, CUresult};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const SUCCESS: CUresult = CUresult::CUDA_SUCCESS;

/// What is known of one pool.
#[derive(Debug)]
struct Pool {
    device: Index,
    /// Units charged for what it has.
    charged: u64,
    /// Units charged for what calls that have not returned may make it grow by.
    pending: u64,
    /// Units that such calls count on finding unused in it.
    claimed: u64,
    /// Allocations of it that have not been freed.
    live: u64,
    /// The application has destroyed it; it goes with its last allocation.
    is_destroyed: bool,
}

#[derive(Debug, Default)]
struct Pools {
    pools: BTreeMap<usize, Pool>,
    /// Live allocations and their pools.
    blocks: BTreeMap<CUdeviceptr, usize>,
}

static POOLS: Mutex<Option<Pools>> = Mutex::new(None);

/// The least that a pool of this process was seen to grow by for a request less than half as large, in
/// units; `u64::MAX`: not seen yet.
///
/// Drivers take 32 MiB or so at once. To refuse what would grow beyond the cap *before* the driver grows,
/// that has to be known, and no attribute says it.
static STEP_UNITS: AtomicU64 = AtomicU64::new(u64::MAX);

/// Whether a pool has grown beyond the cap: what it does not use goes back at the next synchronisation,
/// whatever its release threshold.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether this process has ever used a pool. Until then, synchronising costs one load.
static IS_USED: AtomicBool = AtomicBool::new(false);

fn pools<R>(work: impl FnOnce(&mut Pools) -> R) -> R {
    work(POOLS.lock().get_or_insert_default())
}

impl Pool {
    fn new(device: Index) -> Self {
        Self {
            device,
            charged: 0,
            pending: 0,
            claimed: 0,
            live: 0,
            is_destroyed: false,
        }
    }
}

/// Whether this process has ever used a pool.
pub(super) fn is_used() -> bool {
    IS_USED.load(Ordering::Relaxed)
}

/// Whether a pool has grown beyond the cap since this was asked last.
pub(super) fn was_over() -> bool {
    IS_OVER.load(Ordering::Relaxed) && IS_OVER.swap(false, Ordering::Relaxed)
}

/// The application has made a pool on `device`.
pub(super) fn created(pool: CUmemoryPool, device: Index) {
    IS_USED.store(true, Ordering::Relaxed);
    pools(|all| all.pools.insert(pool as usize, Pool::new(device)));
}

/// The application has destroyed a pool.
pub(super) fn destroyed(pool: CUmemoryPool) {
    pools(|all| {
        if let Some(pool) = all.pools.get_mut(&(pool as usize)) {
            pool.is_destroyed = true;
        }
    });
}

/// The device that a pool lies on, if it is known.
pub(super) fn device(pool: CUmemoryPool) -> Option<Index> {
    pools(|all| all.pools.get(&(pool as usize)).map(|pool| pool.device))
}

/// What a call has set aside before the driver is asked.
#[derive(Debug, Clone, Copy)]
pub(super) struct Begun {
    /// Units asked.
    asked: u64,
    /// Units that the pool is to have unused; nobody else may count on them meanwhile.
    claimed: u64,
    /// Units reserved for its growth.
    reserved: u64,
}

/// Sets aside what the pool may need. `None`: it does not fit.
pub(super) fn begin(
    seat: Seat,
    pool: CUmemoryPool,
    device: Index,
    request: Request,
) -> Option<Begun> {
    IS_USED.store(true, Ordering::Relaxed);
    let units = ledger::units(request.bytes());
    let claimed = pools(|all| {
        let known = all
            .pools
            .entry(pool as usize)
            .or_insert_with(|| Pool::new(device));
        let (reserved, used) = units_of(pool).unwrap_or_default();
        // What calls that have not returned take may be reserved already and not yet used.
        let spoken_for = used + known.claimed + known.pending;
        let claimed = reserved.saturating_sub(spoken_for).min(units);
        known.claimed += claimed;
        claimed
    });
    let growth = match units - claimed {
        0 => 0,
        needed => match STEP_UNITS.load(Ordering::Relaxed) {
            u64::MAX => needed,
            step => needed.max(step),
        },
    };
    let reservation = account::reserve(seat, device, request, growth);
    let reserved = reservation.ok().map(account::Reservation::commit);
    pools(|all| {
        if let Some(known) = all.pools.get_mut(&(pool as usize)) {
            known.pending += reserved.unwrap_or(0);
            if reserved.is_none() {
                known.claimed = known.claimed.saturating_sub(claimed);
                settle(seat, pool, known);
            }
        }
    });
    reserved.map(|reserved| Begun {
        asked: units,
        claimed,
        reserved,
    })
}

/// Learns [`STEP_UNITS`] from a pool that grew by so much for a request of so much.
fn learn_step(asked: u64, growth: u64) {
    if growth > 0 && growth >= asked.saturating_mul(2) {
        STEP_UNITS.fetch_min(growth, Ordering::Relaxed);
    }
}

/// Sets the charge to what the pool has now. False: it grew by more than fits, and the allocation has
/// to go.
pub(super) fn end(
    seat: Seat,
    pool: CUmemoryPool,
    begun: Begun,
    address: Option<CUdeviceptr>,
) -> bool {
    pools(|all| {
        let Some(known) = all.pools.get_mut(&(pool as usize)) else {
            return true;
        };
        known.claimed = known.claimed.saturating_sub(begun.claimed);
        known.pending = known.pending.saturating_sub(begun.reserved);
        // With other calls in flight, their growth cannot be told from this one's.
        if known.pending == 0
            && known.claimed == 0
            && let Some((reserved, _)) = units_of(pool)
        {
            learn_step(begun.asked, reserved.saturating_sub(known.charged));
        }
        known.charged += begun.reserved;
        if let Some(address) = address {
            known.live += 1;
            all.blocks.insert(address, pool as usize);
        } else if units_of(pool).is_none() {
            // The driver cannot say what the pool has: requests that were honoured stay charged as they
            // were asked, the others do not.
            known.charged = known.charged.saturating_sub(begun.reserved);
            account::release(seat, known.device, begun.reserved);
        }
        let fits = settle(seat, pool, known);
        if !fits {
            IS_OVER.store(true, Ordering::Relaxed);
        }
        fits
    })
}

/// Brings the charge to what the pool has. False: it rose, and the rise does not fit.
///
/// Calls that have not returned may have made the pool grow already, within what is pending for them;
/// and what they count on finding unused they may have to take anew, if it has been trimmed away.
fn settle(seat: Seat, pool: CUmemoryPool, known: &mut Pool) -> bool {
    let Some((reserved, used)) = units_of(pool) else {
        return true;
    };
    let least = reserved.max(used + known.claimed);
    if known.charged > least {
        account::release(seat, known.device, known.charged - least);
        known.charged = least;
        return true;
    }
    let more = reserved.saturating_sub(known.charged + known.pending);
    known.charged += more;
    if more == 0 || account::try_reserve(seat, known.device, more) {
        return true;
    }
    // It is taken all the same, until the allocation has been given back.
    account::charge(seat, known.device, more);
    false
}

/// Looks at all pools again: after a synchronisation, a trim, a free.
pub(super) fn look_again(seat: Seat) {
    pools(|all| {
        all.pools.retain(|handle, pool| {
            if pool.is_destroyed {
                if pool.live == 0 {
                    account::release(seat, pool.device, pool.charged);
                }
                return pool.live > 0;
            }
            settle(seat, *handle as CUmemoryPool, pool);
            true
        });
    });
}

/// Has the driver give back what this process's pools do not use. False: there are no pools.
pub(crate) fn trim(seat: Seat) -> bool {
    if !IS_USED.load(Ordering::Relaxed) {
        return false;
    }
    let handles: Vec<usize> = pools(|all| {
        let pools = all.pools.iter();
        pools
            .filter(|(_, pool)| !pool.is_destroyed)
            .map(|(handle, _)| *handle)
            .collect()
    });
    for handle in handles {
        // SAFETY: a pool that this process has used and not destroyed.
        unsafe { crate::real::cuMemPoolTrimTo(handle as CUmemoryPool, 0) };
    }
    look_again(seat);
    true
}

/// Takes an allocation off its pool. False: it is of no pool that we know.
pub(super) fn forget(address: CUdeviceptr) -> bool {
    IS_USED.load(Ordering::Relaxed)
        && pools(|all| {
            let Some(pool) = all.blocks.remove(&address) else {
                return false;
            };
            if let Some(pool) = all.pools.get_mut(&pool) {
                pool.live = pool.live.saturating_sub(1);
            }
            true
        })
}

/// What the pool has reserved and what of it is used; `None` where the driver cannot say.
fn units_of(pool: CUmemoryPool) -> Option<(u64, u64)> {
    let reserved = CUmemPool_attribute::CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT;
    let used = CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_CURRENT;
    Some((
        ledger::units(attribute(pool, reserved)?),
        ledger::units(attribute(pool, used)?),
    ))
}

fn attribute(pool: CUmemoryPool, which: CUmemPool_attribute) -> Option<u64> {
    let mut value = 0u64;
    // SAFETY: both attributes are 64 bits wide; a pool that is none is the driver's to refuse.
    let result =
        unsafe { crate::real::cuMemPoolGetAttribute(pool, which, (&raw mut value).cast()) };
    (result == SUCCESS).then_some(value)
}
