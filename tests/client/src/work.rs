//! Steps that keep the GPU busy.

use crate::answer::Answer;
use crate::steps::{Stepper, number};
use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Does one.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        // Launches so many kernels of so many nanoseconds, by this symbol, without waiting for them.
        ["work-launch", symbol, ns, count] => launch(stepper, symbol, number(ns)?, number(count)?),
        // Launches kernels of so many nanoseconds for so many milliseconds, so much time of them ahead.
        ["work-for", ms, ns, ahead_ms] => {
            work(stepper, number(ms)?, number(ns)?, number(ahead_ms)?)
        }
        // Launches kernels of so many nanoseconds for so many milliseconds and waits for none of them.
        ["work-flood", ms, ns] => flood(stepper, number(ms)?, number(ns)?),
        // Has a stream wait for a value that nobody writes, and a kernel behind it.
        ["work-block"] => block(stepper),
        // Writes it.
        ["work-unblock"] => {
            let word = stepper.value("blocked")?;
            // SAFETY: page-locked memory of `work-block`, which is never freed.
            unsafe { AtomicU32::from_ptr(word as *mut u32) }.store(1, Ordering::SeqCst);
            Ok(Answer::code(Some(0)))
        }
        // Captures so many kernels into a graph, in this mode (0 global, 1 local, 2 relaxed).
        ["work-capture", mode, ns, count] => {
            capture(stepper, number(mode)?, number(ns)?, number(count)?)
        }
        // Launches that graph so many times, by this symbol.
        ["work-graph", symbol, count] => launch_graph(stepper, symbol, number(count)?),
        // Launches it for so many milliseconds, two of them ahead.
        ["work-graph-for", ms] => graphs(stepper, number(ms)?),
        // Launches so many kernels, each with a host function behind it, and waits; says how many host
        // functions have run, and whether in their order.
        ["work-host", count, ns] => host_functions(stepper, number(count)?, number(ns)?),
        // Launches one kernel on a thread of its own, which may have to wait; and waits for that thread.
        ["work-beside", ns] => {
            let driver = stepper.driver()?;
            let (kernel, context, ns) = (stepper.kernel(&driver)?, stepper.context, number(ns)?);
            let thread = std::thread::spawn(move || {
                driver.call("cuCtxSetCurrent", &[context]);
                let mut ns = ns;
                let mut parameters = [&raw mut ns as u64];
                let parameters = &raw mut parameters as u64;
                let words = [kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0];
                driver.call("cuLaunchKernel", &words)
            });
            stepper.beside = Some(thread);
            Ok(Answer::code(Some(0)))
        }
        ["work-join"] => {
            let thread = stepper.beside.take().ok_or("nothing runs beside")?;
            let code = thread.join().map_err(|_| "the thread panicked")?;
            Ok(Answer::code(code))
        }
        // A loop that launches, waits and rests, for so many milliseconds.
        ["work-loop", ms, ns, rest_us] => {
            let driver = stepper.driver()?;
            let (begin, mut rounds) = (Instant::now(), 0u64);
            let (ms, ns) = (number(ms)?, number(ns)?);
            let rest = Duration::from_micros(number(rest_us)?);
            while begin.elapsed() < Duration::from_millis(ms) {
                let answer = launch(stepper, "cuLaunchKernel", ns, 1)?;
                let code = driver.call("cuCtxSynchronize", &[]);
                if code != Some(0) {
                    return Ok(answer);
                }
                rounds += 1;
                std::thread::sleep(rest);
            }
            Ok(took(Answer::code(Some(0)).number("rounds", rounds), begin))
        }
        ["work-wait"] => {
            let driver = stepper.driver()?;
            let begin = Instant::now();
            let answer = Answer::code(driver.call("cuCtxSynchronize", &[]));
            Ok(took(answer, begin))
        }
        _ => Err("no such step".to_owned()),
    }
}

fn took(answer: Answer, begin: Instant) -> Answer {
    answer.number("took_us", begin.elapsed().as_micros() as u64)
}

fn launch(stepper: &mut Stepper, symbol: &str, ns: u64, count: u64) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let kernel = stepper.kernel(&driver)?;
    let begin = Instant::now();
    let mut ns = ns;
    for _ in 0..count {
        let mut parameters = [&raw mut ns as u64];
        let parameters = &raw mut parameters as u64;
        // Grid and block, shared memory, stream.
        let shape = [1, 1, 1, 1, 1, 1, 0, 0];
        // The first members of `CUlaunchConfig`: grid, block and shared bytes as 32-bit numbers, a hole,
        // the stream, attributes and their number.
        let config: [u64; 7] = [1 | 1 << 32, 1 | 1 << 32, 1 | 1 << 32, 0, 0, 0, 0];
        let code = match symbol {
            "cuLaunchKernel" | "cuLaunchKernel_ptsz" => {
                let words = [&[kernel][..], &shape, &[parameters, 0]].concat();
                driver.call(symbol, &words)
            }
            "cuLaunchCooperativeKernel" | "cuLaunchCooperativeKernel_ptsz" => {
                let words = [&[kernel][..], &shape, &[parameters]].concat();
                driver.call(symbol, &words)
            }
            "cuLaunchKernelEx" | "cuLaunchKernelEx_ptsz" => {
                let words = [config.as_ptr() as u64, kernel, parameters, 0];
                driver.call(symbol, &words)
            }
            "cuLaunchCooperativeKernelMultiDevice" => {
                // One entry of `CUDA_LAUNCH_PARAMS`: function, grid, block, shared bytes, stream,
                // parameters. The default streams are not for it.
                let mut stream = 0u64;
                driver.call("cuStreamCreate", &[&raw mut stream as u64, 0]);
                let ones = 1 | 1 << 32;
                let entry = [kernel, ones, ones, ones, 0, stream, parameters];
                driver.call(symbol, &[entry.as_ptr() as u64, 1, 0])
            }
            "cuLaunch" => {
                set_parameter(&driver, kernel, ns);
                driver.call(symbol, &[kernel])
            }
            "cuLaunchGrid" => {
                set_parameter(&driver, kernel, ns);
                driver.call(symbol, &[kernel, 1, 1])
            }
            "cuLaunchGridAsync" => {
                set_parameter(&driver, kernel, ns);
                driver.call(symbol, &[kernel, 1, 1, 0])
            }
            other => return Err(format!("no way to launch by {other}")),
        };
        if code != Some(0) {
            return Ok(took(Answer::code(code), begin));
        }
    }
    Ok(took(Answer::code(Some(0)), begin))
}

fn capture(stepper: &mut Stepper, mode: u64, ns: u64, count: u64) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let kernel = stepper.kernel(&driver)?;
    let begin = Instant::now();
    let (mut stream, mut graph, mut exec, mut nodes) = (0u64, 0u64, 0u64, 0u64);
    // Not ordered with the legacy stream, which others may use meanwhile.
    driver.call("cuStreamCreate", &[&raw mut stream as u64, 1]);
    let mut ns = ns;
    let mut parameters = [&raw mut ns as u64];
    let parameters = &raw mut parameters as u64;
    let mut code = driver.call("cuStreamBeginCapture_v2", &[stream, mode]);
    for _ in 0..count {
        if code == Some(0) {
            let words = [kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0];
            code = driver.call("cuLaunchKernel", &words);
        }
    }
    let ended = driver.call("cuStreamEndCapture", &[stream, &raw mut graph as u64]);
    if code == Some(0) {
        code = ended;
    }
    if code == Some(0) {
        driver.call("cuGraphGetNodes", &[graph, 0, &raw mut nodes as u64]);
        let words = [&raw mut exec as u64, graph, 0];
        code = driver.call("cuGraphInstantiateWithFlags", &words);
    }
    stepper.values.insert("graph".to_owned(), exec);
    Ok(took(Answer::code(code).number("nodes", nodes), begin))
}

/// Where host functions note that they have run: how many have, and whether one was out of its order.
static HOST_FUNCTIONS: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];

extern "C" fn host_function(number: *mut c_void) {
    let [count, out_of_order] = &HOST_FUNCTIONS;
    if count.fetch_add(1, Ordering::Relaxed) != number as u64 {
        out_of_order.store(1, Ordering::Relaxed);
    }
}

fn host_functions(stepper: &mut Stepper, count: u64, ns: u64) -> Result<Answer, String> {
    HOST_FUNCTIONS
        .iter()
        .for_each(|it| it.store(0, Ordering::Relaxed));
    let driver = stepper.driver()?;
    let mut stream = 0u64;
    driver.call("cuStreamCreate", &[&raw mut stream as u64, 1]);
    let kernel = stepper.kernel(&driver)?;
    let mut ns = ns;
    let mut parameters = [&raw mut ns as u64];
    let parameters = &raw mut parameters as u64;
    for number in 0..count {
        let words = [kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0];
        let launched = driver.call("cuLaunchKernel", &words);
        let words = [stream, host_function as *const () as u64, number];
        let behind = driver.call("cuLaunchHostFunc", &words);
        if (launched, behind) != (Some(0), Some(0)) {
            return Err(format!("{launched:?} {behind:?}"));
        }
    }
    let code = driver.call("cuStreamSynchronize", &[stream]);
    let [ran, out_of_order] = &HOST_FUNCTIONS;
    Ok(Answer::code(code)
        .number("ran", ran.load(Ordering::Relaxed))
        .number("out_of_order", out_of_order.load(Ordering::Relaxed)))
}

fn launch_graph(stepper: &mut Stepper, symbol: &str, count: u64) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let exec = stepper.value("graph")?;
    let begin = Instant::now();
    for _ in 0..count {
        let code = driver.call(symbol, &[exec, 0]);
        if code != Some(0) {
            return Ok(took(Answer::code(code), begin));
        }
    }
    Ok(took(Answer::code(Some(0)), begin))
}

fn graphs(stepper: &mut Stepper, ms: u64) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let exec = stepper.value("graph")?;
    let mut events = [0u64; 2];
    for event in &mut events {
        driver.call("cuEventCreate", &[std::ptr::from_mut(event) as u64, 1]);
    }
    let (begin, mut launched) = (Instant::now(), 0usize);
    while begin.elapsed() < Duration::from_millis(ms) {
        let event = events[launched % 2];
        // The one before the last must have ended: two at a time.
        driver.call("cuEventSynchronize", &[event]);
        let code = driver.call("cuGraphLaunch", &[exec, 0]);
        if code != Some(0) {
            return Ok(Answer::code(code));
        }
        driver.call("cuEventRecord", &[event, 0]);
        launched += 1;
    }
    let code = driver.call("cuCtxSynchronize", &[]);
    Ok(took(
        Answer::code(code).number("launched", launched as u64),
        begin,
    ))
}

/// The parameter as the launches of before CUDA 4 take it.
fn set_parameter(driver: &crate::native::Library, kernel: u64, ns: u64) {
    driver.call("cuFuncSetBlockShape", &[kernel, 1, 1, 1]);
    driver.call("cuParamSetSize", &[kernel, 8]);
    driver.call("cuParamSetv", &[kernel, 0, &raw const ns as u64, 8]);
}

fn flood(stepper: &mut Stepper, ms: u64, ns: u64) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let kernel = stepper.kernel(&driver)?;
    let mut ns = ns;
    let mut parameters = [&raw mut ns as u64];
    let parameters = &raw mut parameters as u64;
    let words = [kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0];
    let (begin, mut launched) = (Instant::now(), 0u64);
    let mut longest = Duration::ZERO;
    while begin.elapsed() < Duration::from_millis(ms) {
        let before = Instant::now();
        let code = driver.call("cuLaunchKernel", &words);
        longest = longest.max(before.elapsed());
        if code != Some(0) {
            return Ok(Answer::code(code).number("launched", launched));
        }
        launched += 1;
    }
    let code = driver.call("cuCtxSynchronize", &[]);
    Ok(took(
        Answer::code(code)
            .number("launched", launched)
            .number("longest_launch_us", longest.as_micros() as u64),
        begin,
    ))
}

fn block(stepper: &mut Stepper) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let kernel = stepper.kernel(&driver)?;
    let (mut stream, mut word, mut ns) = (0u64, 0u64, 1_000_000u64);
    driver.call("cuStreamCreate", &[&raw mut stream as u64, 1]);
    let code = driver.call("cuMemHostAlloc", &[&raw mut word as u64, 4096, 2]);
    if code != Some(0) {
        return Ok(Answer::code(code));
    }
    stepper.values.insert("blocked".to_owned(), word);
    // 0: waits until the value is at least this.
    let waits = driver.call("cuStreamWaitValue32_v2", &[stream, word, 1, 0]);
    let mut parameters = [&raw mut ns as u64];
    let parameters = &raw mut parameters as u64;
    let words = [kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, 0];
    let launched = driver.call("cuLaunchKernel", &words);
    Ok(Answer::code(if waits == Some(0) {
        launched
    } else {
        waits
    }))
}

fn work(stepper: &mut Stepper, ms: u64, ns: u64, ahead_ms: u64) -> Result<Answer, String> {
    let driver = stepper.driver()?;
    let kernel = stepper.kernel(&driver)?;
    let mut ns = ns;
    let group = (1_000_000 / ns.max(1)).max(1);
    let depth = (ahead_ms * 1_000_000 / (group * ns).max(1)).max(1) as usize;
    let (mut ahead, mut spare) = (VecDeque::new(), Vec::new());
    let (begin, mut launched) = (Instant::now(), 0u64);
    let mut longest = Duration::ZERO;
    while begin.elapsed() < Duration::from_millis(ms) {
        for _ in 0..group {
            let mut parameters = [&raw mut ns as u64];
            let parameters = &raw mut parameters as u64;
            let words = [kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0];
            let before = Instant::now();
            let code = driver.call("cuLaunchKernel", &words);
            longest = longest.max(before.elapsed());
            if code != Some(0) {
                return Ok(Answer::code(code).number("launched", launched));
            }
            launched += 1;
        }
        let mut event = spare.pop().unwrap_or(0u64);
        if event == 0 {
            driver.call("cuEventCreate", &[&raw mut event as u64, 1]);
        }
        driver.call("cuEventRecord", &[event, 0]);
        ahead.push_back(event);
        if ahead.len() >= depth
            && let Some(event) = ahead.pop_front()
        {
            let code = driver.call("cuEventSynchronize", &[event]);
            if code != Some(0) {
                return Ok(Answer::code(code).number("launched", launched));
            }
            spare.push(event);
        }
    }
    let code = driver.call("cuCtxSynchronize", &[]);
    Ok(took(
        Answer::code(code)
            .number("launched", launched)
            .number("longest_launch_us", longest.as_micros() as u64),
        begin,
    ))
}
