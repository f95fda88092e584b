//! A CUDA and NVML program that does what it is told, one step a line.
//!
//! It reads steps from standard input and prints one line of JSON for each, so that a test decides
//! what happens in which process and when. It uses the driver API alone and knows nothing of
//! Sluice: whatever it sees, any program sees.
//!
//! ```text
//! stepper [--driver NAME] [--nvml NAME] [--deepbind] [--via handle|default|proc-address]
//! ```
//!
//! It ends with its input, and gives nothing back by itself.

mod answer;
mod arrays;
mod bare;
mod graphs;
mod lookups;
mod memory;
mod moves;
mod native;
mod nvml;
mod pools;
mod processes;
mod races;
mod sharing;
mod steps;
mod work;

use native::Via;
use std::io::{BufRead, Write};

fn main() {
    // A crash that a test asks for must not leave a core file behind.
    let none = libc::rlimit {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: a valid limit for this process alone.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    let options = match Options::parse(std::env::args().skip(1)) {
        Ok(options) => options,
        Err(reason) => {
            eprintln!("stepper: {reason}");
            std::process::exit(2);
        }
    };
    let mut stepper = steps::Stepper::new(options);
    let mut out = std::io::stdout();
    for line in std::io::stdin().lock().lines() {
        let Ok(line) = line else { break };
        let words: Vec<&str> = line.split_whitespace().collect();
        if words.is_empty() {
            continue;
        }
        if words == ["quit"] {
            return;
        }
        let answer = stepper.step(&words);
        if writeln!(out, "{}", answer.json()).is_err() || out.flush().is_err() {
            break;
        }
    }
}

/// How the program finds its libraries.
#[derive(Debug, Clone)]
pub(crate) struct Options {
    /// Name or path of the driver library.
    pub(crate) driver: String,
    /// Name or path of the management library.
    pub(crate) nvml: String,
    /// Further `dlopen` flags.
    pub(crate) flags: i32,
    /// How driver functions are found.
    pub(crate) via: Via,
}

impl Options {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self {
            driver: "libcuda.so.1".into(),
            nvml: "libnvidia-ml.so.1".into(),
            flags: 0,
            via: Via::Handle,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or(format!("{word} needs a value"));
            match word.as_str() {
                "--driver" => options.driver = value()?,
                "--nvml" => options.nvml = value()?,
                "--deepbind" => options.flags |= libc::RTLD_DEEPBIND,
                "--global" => options.flags |= libc::RTLD_GLOBAL,
                "--via" => {
                    options.via = match value()?.as_str() {
                        "handle" => Via::Handle,
                        "default" => Via::Default,
                        "proc-address" => Via::ProcAddress,
                        other => return Err(format!("unknown way of look-up: {other}")),
                    }
                }
                other => return Err(format!("unknown option: {other}")),
            }
        }
        Ok(options)
    }
}
