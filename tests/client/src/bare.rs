//! Steps on a thread that may make no system call: `SECCOMP_MODE_STRICT` ends the thread at the first one.

use crate::answer::Answer;
use crate::native::Library;
use crate::steps::{Stepper, number};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// States of the thread; what is none of these is its number, and it runs.
const BEGINS: u32 = 0;
const DONE: u32 = u32::MAX;
const FAILED: u32 = u32::MAX - 1;

/// Longest that a thread may take.
const LIMIT: Duration = Duration::from_secs(30);

/// Does one.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        // Makes each of these calls so many times: cuLaunchKernel, cuEventRecord, cuPointerGetAttribute,
        // cuMemAlloc and its free.
        ["bare", call, count] => bare(stepper, call, number(count)?),
        _ => Err("no such step".to_owned()),
    }
}

/// What a call needs, made beforehand.
struct Prepared {
    driver: Arc<Library>,
    kernel: u64,
    event: u64,
    pointer: u64,
}

impl Prepared {
    fn call(&self, call: &str) -> bool {
        let driver = &self.driver;
        let mut found = 0u64;
        let code = match call {
            "launch" => {
                let mut ns = 0u64;
                let mut parameters = [&raw mut ns as u64];
                let parameters = &raw mut parameters as u64;
                let words = [self.kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0];
                driver.call("cuLaunchKernel", &words)
            }
            "record" => driver.call("cuEventRecord", &[self.event, 0]),
            // 2: `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
            "attribute" => {
                let words = [&raw mut found as u64, 2, self.pointer];
                driver.call("cuPointerGetAttribute", &words)
            }
            _ => {
                let place = &raw mut found as u64;
                match driver.call("cuMemAlloc_v2", &[place, 1 << 20]) {
                    Some(0) => driver.call("cuMemFree_v2", &[found]),
                    refused => refused,
                }
            }
        };
        code == Some(0)
    }
}

fn bare(stepper: &mut Stepper, call: &str, count: u64) -> Result<Answer, String> {
    if !["launch", "record", "attribute", "alloc"].contains(&call) {
        return Err(format!("no such call: {call}"));
    }
    let driver = stepper.driver()?;
    let (mut event, mut pointer) = (0u64, 0u64);
    driver.call("cuEventCreate", &[&raw mut event as u64, 2]);
    driver.call("cuMemAlloc_v2", &[&raw mut pointer as u64, 1 << 20]);
    let prepared = Prepared {
        kernel: stepper.kernel(&driver)?,
        driver,
        event,
        pointer,
    };
    let (context, call) = (stepper.context, call.to_owned());
    let state = Arc::new(AtomicU32::new(BEGINS));
    let told = state.clone();
    // Not joined: it ends by the one call that is left to it, and so returns nothing.
    std::thread::spawn(move || {
        prepared.driver.call("cuCtxSetCurrent", &[context]);
        // What is done once is done: symbols are found, this thread is known.
        let is_warm = (0..100).all(|_| prepared.call(&call));
        // SAFETY: cannot fail.
        told.store(unsafe { libc::gettid() } as u32, Ordering::Release);
        // SAFETY: takes no pointer; binds this thread alone.
        let is_bare = unsafe { libc::prctl(libc::PR_SET_SECCOMP, 1, 0, 0, 0) } == 0;
        let is_well = is_warm && is_bare && (0..count).all(|_| prepared.call(&call));
        told.store(if is_well { DONE } else { FAILED }, Ordering::Release);
        loop {
            // SAFETY: ends this thread, whose stack nobody else uses.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
    });
    let begin = Instant::now();
    while begin.elapsed() < LIMIT {
        match state.load(Ordering::Acquire) {
            DONE => return Ok(Answer::code(Some(0)).flag("is_bare", true)),
            FAILED => return Err("a call was refused".to_owned()),
            BEGINS => {}
            thread => {
                let is_there = std::fs::exists(format!("/proc/self/task/{thread}"));
                if !is_there.unwrap_or(true) && state.load(Ordering::Acquire) == thread {
                    return Ok(Answer::code(Some(0)).flag("is_bare", false));
                }
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err("it does not end".to_owned())
}
