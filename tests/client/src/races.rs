//! Steps in which several threads of this process are in the driver at once.

use crate::answer::Answer;
use crate::native::Library;
use crate::steps::{Stepper, number};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;

/// What the threads of a race saw, added up.
#[derive(Debug, Default)]
struct Tally {
    granted: AtomicU64,
    refused: AtomicU64,
    other: AtomicU64,
    holders: AtomicU64,
    most_holders: AtomicU64,
}

impl Tally {
    fn answer(&self) -> Answer {
        Answer::default()
            .number("rc", 0)
            .number("granted", self.granted.load(Relaxed))
            .number("refused", self.refused.load(Relaxed))
            .number("other", self.other.load(Relaxed))
            .number("most_holders", self.most_holders.load(Relaxed))
    }

    fn count(&self, code: Option<i32>) {
        match code {
            Some(0) => &self.granted,
            Some(OUT_OF_MEMORY) => &self.refused,
            _ => &self.other,
        }
        .fetch_add(1, Relaxed);
    }
}

/// Threads that allocate, ask and free until they are told to stop.
#[derive(Debug)]
pub(crate) struct Hammer {
    stop: Arc<AtomicBool>,
    tally: Arc<Tally>,
    threads: Vec<JoinHandle<()>>,
}

/// How memory is asked for in a race.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// `cuMemAlloc`.
    Linear,
    /// A handle.
    Physical,
    /// A mapping whose handle has been released.
    Mapped,
    /// In stream order, on the default stream.
    Ordered,
}

impl Kind {
    fn named(name: &str) -> Result<Self, String> {
        match name {
            "linear" => Ok(Self::Linear),
            "physical" => Ok(Self::Physical),
            "mapped" => Ok(Self::Mapped),
            "ordered" => Ok(Self::Ordered),
            other => Err(format!("unknown kind: {other}")),
        }
    }
}

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let context = stepper.context;
    match words {
        ["hammer", "stop"] => {
            let hammer = stepper.hammer.take().ok_or("nothing is hammering")?;
            hammer.stop.store(true, Relaxed);
            for thread in hammer.threads {
                thread.join().map_err(|_| "a hammering thread panicked")?;
            }
            Ok(hammer.tally.answer())
        }
        ["hammer", threads, bytes] => {
            let (threads, bytes) = (number(threads)?, number(bytes)?);
            stepper.hammer = Some(hammer(&driver, context, threads, bytes));
            Ok(Answer::code(Some(0)))
        }
        ["race", threads, rounds, bytes, hold_us, kind] => {
            let kind = Kind::named(kind)?;
            let hold = Duration::from_micros(number(hold_us)?);
            let counts = [number(threads)?, number(rounds)?, number(bytes)?];
            Ok(race(&driver, context, counts, hold, kind))
        }
        ["churn", seed, rounds, most] => Ok(churn(
            &driver,
            number(seed)?,
            number(rounds)?,
            number(most)?,
        )),
        ["rounds", rounds, bytes] => {
            let (tally, bytes) = (Tally::default(), number(bytes)?);
            for _ in 0..number(rounds)? {
                let (code, value) = take(&driver, Kind::Linear, bytes);
                tally.count(code);
                if code == Some(0) {
                    give_back(&driver, Kind::Linear, value, bytes);
                }
            }
            Ok(tally.answer())
        }
        ["init-together", threads] => Ok(init_together(&driver, number(threads)?)),
        _ => Err("no such step".into()),
    }
}

fn take(driver: &Library, kind: Kind, bytes: u64) -> (Option<i32>, u64) {
    let mut out = 0u64;
    let code = match kind {
        Kind::Linear => driver.call("cuMemAlloc_v2", &[&raw mut out as u64, bytes]),
        Kind::Ordered => driver.call("cuMemAllocAsync", &[&raw mut out as u64, bytes, 0]),
        Kind::Physical | Kind::Mapped => {
            // `CUmemAllocationProp`: pinned, on device 0.
            let prop: [u32; 8] = [1, 0, 1, 0, 0, 0, 0, 0];
            let words = [&raw mut out as u64, bytes, prop.as_ptr() as u64, 0];
            driver.call("cuMemCreate", &words)
        }
    };
    match kind {
        Kind::Mapped if code == Some(0) => map_and_release(driver, out, bytes),
        _ => (code, out),
    }
}

/// Maps `handle` somewhere and lets go of it: the mapping alone keeps the memory.
fn map_and_release(driver: &Library, handle: u64, bytes: u64) -> (Option<i32>, u64) {
    let mut range = 0u64;
    let words = [&raw mut range as u64, bytes, 0, 0, 0];
    let reserved = driver.call("cuMemAddressReserve", &words);
    let mapped = driver.call("cuMemMap", &[range, bytes, 0, handle, 0]);
    let released = driver.call("cuMemRelease", &[handle]);
    let all = [reserved, mapped, released];
    let worst = all.into_iter().find(|code| *code != Some(0));
    (worst.unwrap_or(Some(0)), range)
}

fn give_back(driver: &Library, kind: Kind, value: u64, bytes: u64) -> Option<i32> {
    match kind {
        Kind::Linear => driver.call("cuMemFree_v2", &[value]),
        Kind::Ordered => {
            let code = driver.call("cuMemFreeAsync", &[value, 0]);
            driver.call("cuStreamSynchronize", &[0]);
            code
        }
        Kind::Physical => driver.call("cuMemRelease", &[value]),
        Kind::Mapped => {
            let code = driver.call("cuMemUnmap", &[value, bytes]);
            driver.call("cuMemAddressFree", &[value, bytes]);
            code
        }
    }
}

fn race(driver: &Library, context: u64, counts: [u64; 3], hold: Duration, kind: Kind) -> Answer {
    let [threads, rounds, bytes] = counts;
    let tally = Tally::default();
    let barrier = Barrier::new(threads as usize);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                driver.call("cuCtxSetCurrent", &[context]);
                for _ in 0..rounds {
                    barrier.wait();
                    let (code, value) = take(driver, kind, bytes);
                    tally.count(code);
                    if code == Some(0) {
                        let holders = tally.holders.fetch_add(1, Relaxed) + 1;
                        tally.most_holders.fetch_max(holders, Relaxed);
                        std::thread::sleep(hold);
                        tally.holders.fetch_sub(1, Relaxed);
                        if give_back(driver, kind, value, bytes) != Some(0) {
                            tally.other.fetch_add(1, Relaxed);
                        }
                    }
                }
            });
        }
    });
    tally.answer()
}

fn hammer(driver: &Arc<Library>, context: u64, threads: u64, bytes: u64) -> Hammer {
    let stop = Arc::new(AtomicBool::new(false));
    let tally = Arc::new(Tally::default());
    let threads = (0..threads)
        .map(|_| {
            let (driver, stop, tally) = (driver.clone(), stop.clone(), tally.clone());
            std::thread::spawn(move || {
                driver.call("cuCtxSetCurrent", &[context]);
                while !stop.load(Relaxed) {
                    let (code, value) = take(&driver, Kind::Linear, bytes);
                    tally.count(code);
                    let (mut free, mut total) = (0u64, 0u64);
                    let words = [&raw mut free as u64, &raw mut total as u64];
                    driver.call("cuMemGetInfo_v2", &words);
                    if code == Some(0) {
                        give_back(&driver, Kind::Linear, value, bytes);
                    }
                }
            })
        })
        .collect();
    Hammer {
        stop,
        tally,
        threads,
    }
}

/// Allocates and frees at random, at most `most` bytes at one time, and gives everything back.
fn churn(driver: &Library, seed: u64, rounds: u64, most: u64) -> Answer {
    let tally = Tally::default();
    let mut state = seed | 1;
    let mut held: Vec<(u64, u64)> = Vec::new();
    let mut sum = 0;
    for _ in 0..rounds {
        // Xorshift: repeatable, and good enough to shuffle.
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let bytes = 1 + state % (most / 8);
        if state.is_multiple_of(3) && !held.is_empty() || sum + bytes > most {
            if let Some((value, bytes)) =
                (!held.is_empty()).then(|| held.swap_remove((state >> 32) as usize % held.len()))
            {
                sum -= bytes;
                if give_back(driver, Kind::Linear, value, bytes) != Some(0) {
                    tally.other.fetch_add(1, Relaxed);
                }
            }
            continue;
        }
        let (code, value) = take(driver, Kind::Linear, bytes);
        tally.count(code);
        if code == Some(0) {
            held.push((value, bytes));
            sum += bytes;
        }
    }
    for (value, bytes) in held {
        if give_back(driver, Kind::Linear, value, bytes) != Some(0) {
            tally.other.fetch_add(1, Relaxed);
        }
    }
    tally.answer()
}

fn init_together(driver: &Library, threads: u64) -> Answer {
    let barrier = Barrier::new(threads as usize);
    let worst = AtomicU64::new(0);
    let begin = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                barrier.wait();
                let code = driver.call("cuInit", &[0]).unwrap_or(-1);
                worst.fetch_max(u64::from(code.unsigned_abs()), Relaxed);
            });
        }
    });
    Answer::default()
        .number("rc", worst.load(Relaxed))
        .number("ms", begin.elapsed().as_millis() as i128)
}
