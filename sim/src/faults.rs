//! Faults on purpose: calls that fail, take longer, or kill their process, as `SLUICE_SIM_FAULTS` says.
//!
//! ```text
//! rules   = rule { (";" | newline) rule }          # "#" begins a comment
//! rule    = symbol [ "@" n ] effect                 # n: the nth call of this process alone; else every one
//! effect  = "=" code                                # answers this, a number or its name, and does nothing
//!         | "+" time                                # takes so much longer: 5ms, 2s, 10us, or "forever"
//!         | "!kill"                                 # SIGKILL at the call
//!         | "!absent"                               # the driver does not have it
//!         | "!lost"                                 # the device of the thread's context falls off the bus
//! ```
//!
//! A value that begins with `/` names a file with the rules. Symbols are the exported ones:
//! `cuMemAlloc_v2@3=CUDA_ERROR_OUT_OF_MEMORY; nvmlDeviceGetMemoryInfo+forever`. Rules that make no sense
//! end the process with a sentence: a fault that is not made proves nothing. Where the variable is not set,
//! a call costs one load more.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use ffi::symbols::{DRIVER, ERRORS, NVML, NVML_ERRORS};

/// Names the rules, or a file with them.
pub const ENV_FAULTS: &str = "SLUICE_SIM_FAULTS";

/// `CUDA_ERROR_NOT_FOUND`.
const NOT_FOUND: u32 = 500;
/// `NVML_ERROR_FUNCTION_NOT_FOUND`.
const FUNCTION_NOT_FOUND: u32 = 13;

/// What happens at a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    Answer(u32),
    /// `None`: for ever.
    Longer(Option<Duration>),
    Kill,
    Absent,
    Lost,
}

/// One rule, and how often its symbol has been called.
#[derive(Debug)]
struct Rule {
    symbol: String,
    nth: Option<u64>,
    effect: Effect,
    calls: AtomicU64,
}

/// Why rules make no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the fault \"{rule}\" makes no sense: {why}")]
pub struct FaultError {
    rule: String,
    why: String,
}

const UNREAD: u8 = 0;
const NONE: u8 = 1;
const SOME: u8 = 2;

/// What makes a device fall off the bus, once there is one.
static LOSE: OnceLock<fn()> = OnceLock::new();

/// Says what is to be done where a rule says `!lost`; the first word counts.
pub fn on_lost(lose: fn()) {
    // Whoever comes later is the same library, initialised again.
    let _ = LOSE.set(lose);
}

static STATE: AtomicU8 = AtomicU8::new(UNREAD);
static RULES: OnceLock<Vec<Rule>> = OnceLock::new();

/// What the call of `symbol` that begins now is to answer at once; `None`: what it always does, perhaps
/// after a while.
#[inline]
pub fn at(symbol: &str) -> Option<u32> {
    // Relaxed: the rules behind "some" are fetched through their own cell.
    match STATE.load(Ordering::Relaxed) {
        NONE => None,
        _ => meet(symbol),
    }
}

/// Whether the driver is to lack `symbol`.
pub fn is_absent(symbol: &str) -> bool {
    STATE.load(Ordering::Relaxed) != NONE
        && rules()
            .iter()
            .any(|rule| rule.symbol == symbol && rule.effect == Effect::Absent)
}

#[cold]
fn meet(symbol: &str) -> Option<u32> {
    let mut answer = None;
    for rule in rules().iter().filter(|rule| rule.symbol == symbol) {
        let call = rule.calls.fetch_add(1, Ordering::Relaxed) + 1;
        if rule.nth.is_some_and(|nth| nth != call) {
            continue;
        }
        match rule.effect {
            Effect::Answer(code) => answer = Some(code),
            Effect::Longer(Some(time)) => std::thread::sleep(time),
            Effect::Longer(None) => loop {
                std::thread::park();
            },
            // SAFETY: no memory is involved.
            Effect::Kill => unsafe {
                libc::raise(libc::SIGKILL);
            },
            Effect::Lost => {
                if let Some(lose) = LOSE.get() {
                    lose();
                }
            }
            Effect::Absent if symbol.starts_with("nvml") => answer = Some(FUNCTION_NOT_FOUND),
            Effect::Absent => answer = Some(NOT_FOUND),
        }
    }
    answer
}

fn rules() -> &'static [Rule] {
    RULES.get_or_init(|| {
        let rules = read().unwrap_or_else(|why| {
            eprintln!("sluice stand-in: {ENV_FAULTS}: {why}");
            std::process::abort();
        });
        let state = if rules.is_empty() { NONE } else { SOME };
        STATE.store(state, Ordering::Relaxed);
        rules
    })
}

fn read() -> Result<Vec<Rule>, String> {
    let text = std::env::var(ENV_FAULTS).unwrap_or_default();
    let text = if text.starts_with('/') {
        std::fs::read_to_string(&text).map_err(|error| format!("{text}: {error}"))?
    } else {
        text
    };
    parse(&text).map_err(|error| error.to_string())
}

fn parse(text: &str) -> Result<Vec<Rule>, FaultError> {
    text.lines()
        .map(|line| line.split('#').next().unwrap_or(""))
        .flat_map(|line| line.split(';'))
        .map(str::trim)
        .filter(|rule| !rule.is_empty())
        .map(|rule| {
            one(rule).map_err(|why| FaultError {
                rule: rule.to_owned(),
                why,
            })
        })
        .collect()
}

fn one(rule: &str) -> Result<Rule, String> {
    let at = rule
        .find(['=', '+', '!'])
        .ok_or("it has no effect (=CODE, +TIME, !kill, !absent or !lost)")?;
    let (call, effect) = rule.split_at(at);
    let (symbol, nth) = match call.trim().split_once('@') {
        None => (call.trim(), None),
        Some((symbol, nth)) => {
            let nth = nth.trim().parse().ok().filter(|nth| *nth > 0);
            let nth = nth.ok_or("after \"@\" comes the number of a call, from 1")?;
            (symbol.trim(), Some(nth))
        }
    };
    let is_known = DRIVER.iter().chain(NVML).any(|known| known.name == symbol);
    if !is_known {
        return Err("no driver exports such a symbol (mind the version: cuMemAlloc_v2)".to_owned());
    }
    let effect = match effect.split_at(1) {
        ("=", code) => Effect::Answer(code_of(symbol, code.trim())?),
        ("+", "forever") => Effect::Longer(None),
        ("+", time) => Effect::Longer(Some(time_of(time.trim())?)),
        (_, "kill") => Effect::Kill,
        (_, "absent") => Effect::Absent,
        (_, "lost") if symbol.starts_with("cu") => Effect::Lost,
        _ => {
            return Err(
                "the effect is =CODE, +TIME, !kill, !absent or, of cu..., !lost".to_owned(),
            );
        }
    };
    Ok(Rule {
        symbol: symbol.to_owned(),
        nth,
        effect,
        calls: AtomicU64::new(0),
    })
}

fn code_of(symbol: &str, text: &str) -> Result<u32, String> {
    let names = if symbol.starts_with("nvml") {
        NVML_ERRORS
    } else {
        ERRORS
    };
    let named = names.iter().find(|(_, name)| *name == text);
    named
        .map(|(code, _)| *code)
        .or_else(|| text.parse().ok())
        .ok_or_else(|| format!("\"{text}\" is no code"))
}

fn time_of(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("\"{text}\" is no time; write 10us, 5ms, 2s or forever");
    let number: u64 = number.parse().map_err(|_| wrong())?;
    match unit {
        "us" => Ok(Duration::from_micros(number)),
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn effects(text: &str) -> Vec<(String, Option<u64>, Effect)> {
        let rules = parse(text).unwrap();
        rules
            .into_iter()
            .map(|rule| (rule.symbol, rule.nth, rule.effect))
            .collect()
    }

    #[test]
    fn every_form_of_a_rule_is_read() {
        let text = "cuMemAlloc_v2@3=CUDA_ERROR_OUT_OF_MEMORY; cuInit = 999 # why not\n\
                    nvmlInit_v2+5ms;nvmlShutdown+forever\n\ncuLaunchKernel@10!kill;cuStreamQuery@2!lost;cuMemPoolCreate!absent";
        let name = str::to_owned;
        assert_eq!(
            effects(text),
            [
                (name("cuMemAlloc_v2"), Some(3), Effect::Answer(2)),
                (name("cuInit"), None, Effect::Answer(999)),
                (
                    name("nvmlInit_v2"),
                    None,
                    Effect::Longer(Some(Duration::from_millis(5)))
                ),
                (name("nvmlShutdown"), None, Effect::Longer(None)),
                (name("cuLaunchKernel"), Some(10), Effect::Kill),
                (name("cuStreamQuery"), Some(2), Effect::Lost),
                (name("cuMemPoolCreate"), None, Effect::Absent),
            ]
        );
        assert_eq!(effects(" ; \n# nothing"), []);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for rule in [
            "cuMemAlloc_v9=2",
            "cuInit",
            "cuInit@0=2",
            "cuInit=NONSENSE",
            "cuInit+5",
            "cuInit+fast",
            "cuInit!explode",
            "nvmlInit_v2!lost",
        ] {
            let error = parse(rule).unwrap_err();
            assert!(error.to_string().contains(rule), "{error}");
        }
    }
}
