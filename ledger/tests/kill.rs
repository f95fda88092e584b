//! A process is killed after every single instruction of an operation, and nothing is lost.
//!
//! The child is stepped by `ptrace`, so "every instruction" is meant as the processor means it.
#![cfg(target_os = "linux")]
#![allow(
    unsafe_code,
    reason = "fork, ptrace and a shared mapping are what is tested with"
)]

use ffi::wire::UsagePage;
use ledger::Books;
use std::ptr;

const VICTIM: u32 = 3;
const OTHER: u32 = 5;
const HELD: u64 = 40;
const DELTA: u64 = 25;
const LIMIT: u64 = 100;

/// A usage page in shared anonymous memory, as two processes see it.
fn shared_page() -> &'static UsagePage {
    // SAFETY: a fresh anonymous mapping; no address is asked for.
    let at = unsafe {
        libc::mmap(
            ptr::null_mut(),
            size_of::<UsagePage>(),
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_ANONYMOUS,
            -1,
            0,
        )
    };
    assert_ne!(at, libc::MAP_FAILED);
    // SAFETY: mapped above, large enough, never unmapped; all-zero bytes are a valid page.
    unsafe { &*at.cast::<UsagePage>() }
}

fn books(page: &UsagePage) -> Books<'_, ledger::PageAccounts<'_>> {
    Books::of(page, 0).expect("device 0 is in every page")
}

fn fresh() -> &'static UsagePage {
    let page = shared_page();
    for slot in [VICTIM, OTHER] {
        books(page).settle(slot);
    }
    books(page).charge(OTHER, 10);
    books(page).charge(VICTIM, HELD);
    page
}

fn unmap(page: &'static UsagePage) {
    // SAFETY: the mapping is `shared_page`'s own and no reference to it is used after this.
    unsafe {
        libc::munmap(
            ptr::from_ref(page).cast_mut().cast(),
            size_of::<UsagePage>(),
        )
    };
}

/// Runs `operation` in a child that dies after `steps` instructions of it. False: it got to its end.
fn dies_after(steps: usize, operation: impl Fn()) -> bool {
    // SAFETY: the child makes only calls that are allowed after a fork: `ptrace`, `raise`, `_exit`,
    // and the operation, which is arithmetic on shared memory.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        // SAFETY: see above.
        unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        // SAFETY: see above.
        unsafe { libc::raise(libc::SIGSTOP) };
        operation();
        // SAFETY: see above. The stop tells the parent that the operation is over.
        unsafe { libc::raise(libc::SIGUSR1) };
        // SAFETY: see above.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    let mut wait = || {
        // SAFETY: `child` is ours, `status` is a place for an int.
        let got = unsafe { libc::waitpid(child, &mut status, 0) };
        assert_eq!(got, child);
        status
    };
    assert!(libc::WIFSTOPPED(wait()));
    let mut is_over = false;
    for _ in 0..steps {
        // SAFETY: the child is stopped and traced by this process.
        unsafe { libc::ptrace(libc::PTRACE_SINGLESTEP, child, 0, 0) };
        let status = wait();
        if !libc::WIFSTOPPED(status) || libc::WSTOPSIG(status) == libc::SIGUSR1 {
            is_over = true;
            break;
        }
    }
    // SAFETY: ends a process that this function started.
    unsafe { libc::kill(child, libc::SIGKILL) };
    wait();
    !is_over
}

/// Kills at every instruction; `after` is what others do before the dead one is reaped.
fn killed_everywhere(
    operation: impl Fn(&UsagePage) + Copy,
    possible: [u64; 2],
    after: impl Fn(&UsagePage),
) {
    // Unoptimised, an operation and the end of `raise` around it take a few thousand instructions;
    // every third one keeps the test short there. Optimised, it is every one.
    let stride = if cfg!(debug_assertions) { 3 } else { 1 };
    let mut seen = [0usize; 2];
    for steps in (0..40_000).step_by(stride) {
        let page = fresh();
        let was_killed = dies_after(steps, || operation(page));
        after(page);
        let held = books(page).slot_units(VICTIM);
        let which = possible.iter().position(|units| *units == held);
        let which = which.unwrap_or_else(|| panic!("after {steps} steps: {held} units"));
        seen[which] += 1;
        assert_eq!(
            books(page).held_units(),
            held + books(page).slot_units(OTHER),
            "after {steps} steps the sum and the slots differ"
        );
        assert_eq!(books(page).reap(VICTIM), held);
        assert_eq!(books(page).reap(VICTIM), 0);
        assert_eq!(books(page).held_units(), books(page).slot_units(OTHER));
        unmap(page);
        if !was_killed {
            println!("killed at each of {steps} steps; before and after: {seen:?}");
            assert!(seen.iter().all(|count| *count > 0), "{seen:?}");
            return;
        }
    }
    panic!("the operation did not end");
}

#[test]
fn a_process_killed_anywhere_in_a_reservation_leaves_nothing_behind() {
    let reserve = |page: &UsagePage| {
        let _ = books(page).reserve(VICTIM, DELTA, LIMIT);
    };
    killed_everywhere(reserve, [HELD, HELD + DELTA], |_| ());
}

#[test]
fn a_process_killed_anywhere_in_a_release_leaves_nothing_behind() {
    let release = |page: &UsagePage| books(page).release(VICTIM, DELTA);
    killed_everywhere(release, [HELD, HELD - DELTA], |_| ());
}

#[test]
fn an_operation_of_another_process_after_the_kill_keeps_the_dead_one_s_account() {
    let reserve = |page: &UsagePage| {
        let _ = books(page).reserve(VICTIM, DELTA, LIMIT);
    };
    killed_everywhere(reserve, [HELD, HELD + DELTA], |page| {
        for _ in 0..3 {
            books(page).charge(OTHER, 2);
        }
    });
}
