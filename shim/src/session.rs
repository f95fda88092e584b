//! This process's place with the daemon: none yet, a view, a seat, or a parent's seat.
//!
//! A *view* has both pages and no slot: enough for a process that only asks NVML. A *seat* has a slot
//! of the usage page, and what the process allocates is counted there. Pages that were once mapped stay
//! mapped: another thread may be reading them, and a restart of the daemon costs 4 KiB of address space.

use crate::attach::{self, Attached, Failure};
use crate::{fork, link, log};
use ffi::wire::{ControlPage, UsagePage};
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Attached to nothing.
const NONE: u32 = 0;
/// Pages, no slot.
const VIEW: u32 = 1;
/// Pages and a slot.
const SEAT: u32 = 2;
/// A child of a process that has a seat: the driver serves no such child, and it counts nothing.
const INHERITED: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(NONE);
/// The control page of this process's seat; null: there is none. The exports of launches read it themselves.
pub(crate) static CONTROL: AtomicPtr<ControlPage> = AtomicPtr::new(std::ptr::null_mut());
static USAGE: AtomicPtr<UsagePage> = AtomicPtr::new(std::ptr::null_mut());
static SLOT: AtomicU32 = AtomicU32::new(0);
static ATTACHING: Gate = Gate::new();

/// How long `cuInit` waits for a daemon. Shortened by `SLUICE_ATTACH_WAIT_MS`, never lengthened.
///
/// 10 s: a daemon that is being restarted or upgraded is back by then, and a service manager that
/// starts both at once has had time. Source: DESIGN §4.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// How long an NVML query waits: tools like `nvidia-smi` are for looking, now.
const VIEW_WAIT: Duration = Duration::from_secs(1);

/// A heartbeat older than this means that the daemon is gone. It beats every 250 ms.
pub(crate) const HEARTBEAT_LIMIT: Duration = Duration::from_secs(1);

/// Whether the driver is initialised and the daemon is not there: everything else waits for it.
static IS_WAITING: AtomicBool = AtomicBool::new(false);

/// There is no daemon for this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Absent;

/// The two pages of this process's tenant.
#[derive(Clone, Copy)]
pub(crate) struct Pages {
    /// What the daemon says.
    pub(crate) control: &'static ControlPage,
    /// What the tenant's processes hold.
    pub(crate) usage: &'static UsagePage,
}

/// Pages and a slot of one's own.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    /// The tenant's pages.
    pub(crate) pages: Pages,
    /// Index of this process's slot in the usage page.
    pub(crate) slot: u32,
}

/// This process's seat, if it has one.
pub(crate) fn seat() -> Option<Seat> {
    // Acquire; pairs with the Release in `store`: who sees the state sees pages and slot.
    if STATE.load(Ordering::Acquire) != SEAT {
        return None;
    }
    Some(Seat {
        pages: pages()?,
        slot: SLOT.load(Ordering::Relaxed),
    })
}

/// This process's seat, if a launch on any of its devices has to look at a lease.
#[inline]
pub(crate) fn gated() -> Option<Seat> {
    // Acquire; pairs with the Release in `store`.
    let control = CONTROL.load(Ordering::Acquire);
    // SAFETY: either null or a mapping of `attach` that is never unmapped.
    let control = unsafe { control.as_ref() }?;
    if control.gated.load(Ordering::Relaxed) == 0 {
        return None;
    }
    seat()
}

/// Has the daemon look at what this process has running and what it waits for.
pub(crate) fn ring() {
    attach::ring();
}

/// Whether this is a child of a process with a seat.
pub(crate) fn is_inherited() -> bool {
    STATE.load(Ordering::Relaxed) == INHERITED
}

/// Whether `cuInit` has succeeded with the driver and not with us. Such a process is told that CUDA is
/// not initialised; before `cuInit`, the driver says so itself.
pub(crate) fn is_waiting() -> bool {
    IS_WAITING.load(Ordering::Relaxed)
}

fn pages() -> Option<Pages> {
    // Acquire; pairs with the Release in `store`.
    let control = CONTROL.load(Ordering::Acquire);
    let usage = USAGE.load(Ordering::Acquire);
    // SAFETY: either null or a mapping of `attach` that is never unmapped; its size and layout were
    // checked there.
    let control = unsafe { control.as_ref() }?;
    // SAFETY: as above.
    let usage = unsafe { usage.as_ref() }?;
    Some(Pages { control, usage })
}

/// Takes a seat, waiting for a daemon at most [`WAIT`]; at once where there is one already.
///
/// # Errors
/// [`Absent`]: no daemon, or one that does not know this process. Said once in the log.
pub(crate) fn take_seat() -> Result<(), Absent> {
    let _gate = ATTACHING.enter();
    if STATE.load(Ordering::Relaxed) == SEAT {
        return Ok(());
    }
    fork::watch();
    match attach::seat(Instant::now() + wait()) {
        Ok(attached) => {
            store(&attached, SEAT);
            IS_WAITING.store(false, Ordering::Relaxed);
            link::start(attached);
            Ok(())
        }
        Err(failure) => {
            IS_WAITING.store(true, Ordering::Relaxed);
            complain(&failure);
            Err(Absent)
        }
    }
}

/// The pages, for a process that only looks; attaches as an observer where there is no seat.
///
/// # Errors
/// [`Absent`]: as in [`take_seat`], after at most [`VIEW_WAIT`].
pub(crate) fn view() -> Result<Pages, Absent> {
    if let Some(pages) = current_view() {
        return Ok(pages);
    }
    let _gate = ATTACHING.enter();
    if let Some(pages) = current_view() {
        return Ok(pages);
    }
    fork::watch();
    // A view whose daemon has gone is still good for an answer: one look for the next daemon, no wait.
    let patience = match STATE.load(Ordering::Relaxed) {
        VIEW => Duration::ZERO,
        _ => wait().min(VIEW_WAIT),
    };
    match attach::observer(Instant::now() + patience) {
        Ok(attached) => {
            store(&attached, VIEW);
            pages().ok_or(Absent)
        }
        Err(failure) => {
            // With the daemon gone, the caps stand as it last set them.
            if STATE.load(Ordering::Relaxed) == VIEW {
                return pages().ok_or(Absent);
            }
            complain(&failure);
            Err(Absent)
        }
    }
}

/// A seat's pages, or a view's whose daemon is alive.
fn current_view() -> Option<Pages> {
    match STATE.load(Ordering::Acquire) {
        SEAT => pages(),
        VIEW => pages().filter(|pages| is_beating(pages.control)),
        _ => None,
    }
}

/// Whether the daemon that wrote this page has been heard of lately.
pub(crate) fn is_beating(control: &ControlPage) -> bool {
    let last = control.heartbeat_ns.load(Ordering::Relaxed);
    monotonic_ns().saturating_sub(last) <= HEARTBEAT_LIMIT.as_nanos() as u64
}

/// Runs `start` with all signals blocked, so that a thread which it starts takes none of the program's.
pub(crate) fn without_signals<T>(start: impl FnOnce() -> T) -> T {
    let mut former = SigSet::empty();
    let masked = pthread_sigmask(
        SigmaskHow::SIG_SETMASK,
        Some(&SigSet::all()),
        Some(&mut former),
    );
    let started = start();
    if masked.is_ok() {
        // The mask came from this thread a moment ago.
        let _ = pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&former), None);
    }
    started
}

/// `CLOCK_MONOTONIC`, in nanoseconds.
pub(crate) fn monotonic_ns() -> u64 {
    match nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC) {
        Ok(now) => Duration::from(now).as_nanos() as u64,
        // Cannot fail for this clock; "now is the beginning" reads as "the daemon is alive".
        Err(_) => 0,
    }
}

/// Points the process at pages: after an attach, and after a daemon's restart.
pub(crate) fn store(attached: &Attached, state: u32) {
    CONTROL.store(attached.control.as_ptr(), Ordering::Release);
    USAGE.store(attached.usage.as_ptr(), Ordering::Release);
    SLOT.store(attached.slot, Ordering::Relaxed);
    STATE.store(state, Ordering::Release);
}

/// Follows the next daemon: its control page, the same account.
pub(crate) fn follow(attached: &Attached) {
    // The usage page is the same memory under another address; the old mapping is as good, and
    // pointers into it may be in use, but a later attach of a child should see the new one.
    store(attached, SEAT);
}

fn wait() -> Duration {
    let asked = std::env::var("SLUICE_ATTACH_WAIT_MS")
        .ok()
        .and_then(|text| text.parse().ok())
        .map_or(WAIT, Duration::from_millis);
    asked.min(WAIT)
}

fn complain(failure: &Failure) {
    static SAID: AtomicU32 = AtomicU32::new(0);
    if SAID.swap(1, Ordering::Relaxed) == 0 {
        log::warn(format_args!("{failure}"));
    }
}

/// In a child right after `fork`, with only this thread left: atomics and `close` alone.
pub(crate) fn forget_in_child() {
    match STATE.load(Ordering::Relaxed) {
        SEAT => STATE.store(INHERITED, Ordering::Relaxed),
        VIEW => STATE.store(NONE, Ordering::Relaxed),
        _ => {}
    }
    // Another thread of the parent may have been inside; it does not exist here.
    ATTACHING.reset();
    attach::close_in_child();
}

/// A lock that a forked child can open: one word, no owner, no queue.
struct Gate(AtomicU32);

/// Holds the gate until it is dropped.
struct Inside<'g>(&'g Gate);

impl Gate {
    const fn new() -> Self {
        Self(AtomicU32::new(0))
    }

    fn enter(&self) -> Inside<'_> {
        // Attaching takes milliseconds, or seconds where there is no daemon: waiting threads sleep,
        // and look again at least every 20 ms, so that no wake-up can be lost.
        while self
            .0
            .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            let tick = libc::timespec {
                tv_sec: 0,
                tv_nsec: 20_000_000,
            };
            // SAFETY: the word lives as long as the program; the time is on the stack.
            unsafe {
                libc::syscall(
                    libc::SYS_futex,
                    self.0.as_ptr(),
                    libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                    1,
                    &raw const tick,
                )
            };
        }
        Inside(self)
    }

    fn reset(&self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let gate = &self.0.0;
        // Release; pairs with the Acquire in `enter`.
        gate.store(0, Ordering::Release);
        // SAFETY: the word lives as long as the program.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                gate.as_ptr(),
                libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG,
                i32::MAX,
            )
        };
    }
}
