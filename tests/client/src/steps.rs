//! The steps, and what they remember between one another.

use crate::Options;
use crate::answer::Answer;
use crate::native::{self, Library};
use crate::processes::Child;
use crate::{
    arrays, bare, graphs, lookups, memory, moves, nvml, pools, processes, races, sharing, work,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What out-parameters hold before a call, so that a write into one shows.
pub(crate) const POISON: u64 = 0xaaaa_aaaa_aaaa_aaaa;

/// A kernel that runs for as many nanoseconds as its argument says.
const SPIN: &str = concat!(include_str!("spin.ptx"), "\0");

/// The program's state: libraries once they are open, and values by the names that steps gave them.
#[derive(Debug)]
pub(crate) struct Stepper {
    options: Options,
    driver: Option<Arc<Library>>,
    nvml: Option<Arc<Library>>,
    /// Pointers, handles and addresses by name.
    pub(crate) values: HashMap<String, u64>,
    /// The context that threads made by steps set current.
    pub(crate) context: u64,
    /// Threads that hammer the driver in the background.
    pub(crate) hammer: Option<races::Hammer>,
    /// Steppers started by this one.
    pub(crate) children: HashMap<String, Child>,
    /// A thread that launches.
    pub(crate) beside: Option<std::thread::JoinHandle<Option<i32>>>,
    kernel: u64,
}

impl Stepper {
    /// A program that has not opened anything yet.
    pub(crate) fn new(options: Options) -> Self {
        Self {
            options,
            driver: None,
            nvml: None,
            values: HashMap::new(),
            context: 0,
            hammer: None,
            children: HashMap::new(),
            beside: None,
            kernel: 0,
        }
    }

    /// The driver library, opened at its first use.
    pub(crate) fn driver(&mut self) -> Result<Arc<Library>, String> {
        let options = &self.options;
        if self.driver.is_none() {
            let library = Library::open(&options.driver, options.flags, options.via)?;
            self.driver = Some(Arc::new(library));
        }
        self.driver.clone().ok_or_else(String::new)
    }

    /// The management library, opened at its first use.
    pub(crate) fn management(&mut self) -> Result<Arc<Library>, String> {
        let options = &self.options;
        if self.nvml.is_none() {
            let library = Library::open(&options.nvml, options.flags, native::Via::Handle)?;
            self.nvml = Some(Arc::new(library));
        }
        self.nvml.clone().ok_or_else(String::new)
    }

    /// Does one step.
    pub(crate) fn step(&mut self, words: &[&str]) -> Answer {
        self.dispatch(words)
            .unwrap_or_else(|reason| Answer::failure(&format!("{}: {reason}", words.join(" "))))
    }

    /// The value called `name`: a remembered one, or a number.
    pub(crate) fn value(&self, name: &str) -> Result<u64, String> {
        match self.values.get(name) {
            Some(value) => Ok(*value),
            None => number(name),
        }
    }

    fn dispatch(&mut self, words: &[&str]) -> Result<Answer, String> {
        match words {
            ["pid"] => Ok(Answer::default().number("pid", std::process::id())),
            ["name", name, value] => {
                self.values.insert((*name).to_owned(), number(value)?);
                Ok(Answer::code(Some(0)))
            }
            ["nap", ms] => {
                std::thread::sleep(std::time::Duration::from_millis(number(ms)?));
                Ok(Answer::default())
            }
            ["hammer" | "race" | "churn" | "rounds" | "init-together", ..] => {
                races::step(self, words)
            }
            ["fork" | "fork-storm" | "child" | "tell" | "thread", ..] => {
                processes::step(self, words)
            }
            [
                "where" | "lookup" | "lookup-briefly" | "compare-lookups" | "reach" | "cudart"
                | "open",
                ..,
            ] => lookups::step(self, words),
            [verb, ..] if verb.starts_with("pool") => pools::step(self, words),
            [verb, ..] if verb.starts_with("graph") => graphs::step(self, words),
            [verb, ..] if verb.starts_with("array") => arrays::step(self, words),
            [verb, ..] if verb.starts_with("share") => sharing::step(self, words),
            [verb, ..] if verb.starts_with("nvml") => nvml::step(self, words),
            ["move" | "move-captured", ..] => moves::step(self, words),
            ["bare", ..] => bare::step(self, words),
            [verb, ..] if verb.starts_with("work") => work::step(self, words),
            _ => match self.general(words)? {
                Some(answer) => Ok(answer),
                None => memory::step(self, words),
            },
        }
    }

    fn general(&mut self, words: &[&str]) -> Result<Option<Answer>, String> {
        let driver = self.driver()?;
        let answer = match words {
            ["init"] => Answer::code(driver.call("cuInit", &[0])),
            ["version"] => {
                let mut version = 0u32;
                let code = driver.call("cuDriverGetVersion", &[&raw mut version as u64]);
                Answer::code(code).number("version", version)
            }
            ["device-count"] => {
                let mut count = 0u32;
                let code = driver.call("cuDeviceGetCount", &[&raw mut count as u64]);
                Answer::code(code).number("count", count)
            }
            ["context", device] => self.retain(&driver, number(device)?),
            ["context-reset", device] => {
                Answer::code(driver.call("cuDevicePrimaryCtxReset_v2", &[number(device)?]))
            }
            ["context-create", name, device] => {
                let mut context = 0u64;
                let words = [&raw mut context as u64, 0, number(device)?];
                let code = driver.call("cuCtxCreate_v2", &words);
                self.values.insert((*name).to_owned(), context);
                Answer::code(code)
            }
            ["context-destroy", name] => {
                Answer::code(driver.call("cuCtxDestroy_v2", &[self.value(name)?]))
            }
            ["context-limit", limit, value] => {
                let words = [number(limit)?, number(value)?];
                Answer::code(driver.call("cuCtxSetLimit", &words))
            }
            ["context-attach"] => {
                let mut context = POISON;
                let words = [&raw mut context as u64, 0];
                Answer::code(driver.call("cuCtxAttach", &words))
            }
            ["context-detach", name] => {
                Answer::code(driver.call("cuCtxDetach", &[self.value(name)?]))
            }
            ["context-none"] => Answer::code(driver.call("cuCtxSetCurrent", &[0])),
            ["context-release", device] => {
                Answer::code(driver.call("cuDevicePrimaryCtxRelease_v2", &[number(device)?]))
            }
            ["launch", ns] => self.launch(&driver, number(ns)?),
            ["synchronize"] => Answer::code(driver.call("cuCtxSynchronize", &[])),
            ["error", code] => {
                let (mut name, mut sentence) = (0u64, 0u64);
                let code = number(code)?;
                let answer = driver.call("cuGetErrorName", &[code, &raw mut name as u64]);
                driver.call("cuGetErrorString", &[code, &raw mut sentence as u64]);
                Answer::code(answer)
                    .text("name", &native::text(name as *const _))
                    .text("sentence", &native::text(sentence as *const _))
            }
            _ => return Ok(None),
        };
        Ok(Some(answer))
    }

    fn retain(&mut self, driver: &Library, device: u64) -> Answer {
        let mut context = 0u64;
        let words = [&raw mut context as u64, device];
        let code = driver.call("cuDevicePrimaryCtxRetain", &words);
        if code != Some(0) {
            return Answer::code(code);
        }
        self.context = context;
        Answer::code(driver.call("cuCtxSetCurrent", &[context]))
    }

    /// The kernel that runs for as long as its argument says, loaded at its first use.
    pub(crate) fn kernel(&mut self, driver: &Library) -> Result<u64, String> {
        if self.kernel == 0 {
            let (mut module, mut kernel) = (0u64, 0u64);
            let words = [&raw mut module as u64, SPIN.as_ptr() as u64];
            let code = driver.call("cuModuleLoadData", &words);
            if code != Some(0) {
                return Err(format!("cuModuleLoadData answers {code:?}"));
            }
            let words = [&raw mut kernel as u64, module, c"spin_ns".as_ptr() as u64];
            let code = driver.call("cuModuleGetFunction", &words);
            if code != Some(0) {
                return Err(format!("cuModuleGetFunction answers {code:?}"));
            }
            self.kernel = kernel;
        }
        Ok(self.kernel)
    }

    fn launch(&mut self, driver: &Library, ns: u64) -> Answer {
        let kernel = match self.kernel(driver) {
            Ok(kernel) => kernel,
            Err(reason) => return Answer::failure(&reason),
        };
        let mut ns = ns;
        let mut parameters = [&raw mut ns as u64];
        let parameters = &raw mut parameters as u64;
        let words = [kernel, 1, 1, 1, 1, 1, 1, 0, 0, parameters, 0];
        Answer::code(driver.call("cuLaunchKernel", &words))
    }
}

/// A whole number, plain or hexadecimal, or with one of the suffixes KiB, MiB, GiB.
pub(crate) fn number(text: &str) -> Result<u64, String> {
    let parsed = if let Some(digits) = text.strip_prefix("0x") {
        u64::from_str_radix(digits, 16).ok()
    } else {
        let units = [("KiB", 1u64 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30)];
        let (digits, unit) = units
            .iter()
            .find_map(|(suffix, unit)| Some((text.strip_suffix(suffix)?, *unit)))
            .unwrap_or((text, 1));
        digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit))
    };
    parsed.ok_or(format!("neither a known name nor a number: {text}"))
}
