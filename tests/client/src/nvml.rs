//! Steps that ask the management library.

use crate::answer::Answer;
use crate::native::Library;
use crate::steps::{POISON, Stepper, number};
use std::ffi::CString;

/// `nvmlMemory_v2_t` announces itself by this word: version 2, 40 bytes.
const MEMORY_V2: u32 = 0x0200_0028;

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    let library = stepper.management()?;
    match words {
        ["nvml-init"] => Ok(Answer::code(library.call("nvmlInit_v2", &[]))),
        ["nvml-shutdown"] => Ok(Answer::code(library.call("nvmlShutdown", &[]))),
        ["nvml-count"] => {
            let mut count = 0u32;
            let code = library.call("nvmlDeviceGetCount_v2", &[&raw mut count as u64]);
            Ok(Answer::code(code).number("count", count))
        }
        ["nvml-memory", device] => Ok(memory(&library, handle(&library, number(device)?)?)),
        ["nvml-memory-v2", device] => Ok(memory_v2(&library, handle(&library, number(device)?)?)),
        ["nvml-limits", device, group] => {
            limits(&library, handle(&library, number(device)?)?, group)
        }
        ["nvml-limit", device, group, soft, hard] => {
            let name = directory(group)?;
            let all = [name.as_ptr() as u64, limit(soft)?, limit(hard)?];
            let words = [handle(&library, number(device)?)?, all.as_ptr() as u64];
            Ok(Answer::code(
                library.call("nvmlDeviceSetMemoryLimits_v1", &words),
            ))
        }
        ["nvml-uuid", device] => {
            let mut uuid = [0u8; 96];
            let handle = handle(&library, number(device)?)?;
            let words = [handle, uuid.as_mut_ptr() as u64, uuid.len() as u64];
            let code = library.call("nvmlDeviceGetUUID", &words);
            let end = uuid.iter().position(|byte| *byte == 0).unwrap_or(0);
            Ok(Answer::code(code).text("uuid", &String::from_utf8_lossy(&uuid[..end])))
        }
        _ => Err("no such step".into()),
    }
}

/// Soft limit, hard limit and use of the control group in a directory.
fn limits(library: &Library, device: u64, group: &str) -> Result<Answer, String> {
    let name = directory(group)?;
    let mut all = [name.as_ptr() as u64, POISON, POISON, POISON];
    let words = [device, all.as_mut_ptr() as u64];
    let code = library.call("nvmlDeviceGetMemoryLimits_v1", &words);
    let [_, soft, hard, used] = all;
    Ok(Answer::code(code)
        .number("soft", soft)
        .number("hard", hard)
        .number("used", used))
}

fn directory(path: &str) -> Result<CString, String> {
    CString::new(path).map_err(|error| error.to_string())
}

/// A size, or `max`.
fn limit(word: &str) -> Result<u64, String> {
    match word {
        "max" => Ok(u64::MAX),
        size => number(size),
    }
}

fn handle(library: &Library, device: u64) -> Result<u64, String> {
    let mut handle = 0u64;
    let words = [device, &raw mut handle as u64];
    match library.call("nvmlDeviceGetHandleByIndex_v2", &words) {
        Some(0) => Ok(handle),
        other => Err(format!("nvmlDeviceGetHandleByIndex_v2 answers {other:?}")),
    }
}

fn memory(library: &Library, device: u64) -> Answer {
    let mut all = [POISON; 3];
    let words = [device, all.as_mut_ptr() as u64];
    let code = library.call("nvmlDeviceGetMemoryInfo", &words);
    let [total, free, used] = all;
    Answer::code(code)
        .number("total", total)
        .number("free", free)
        .number("used", used)
}

fn memory_v2(library: &Library, device: u64) -> Answer {
    let mut all = [POISON; 5];
    all[0] = u64::from(MEMORY_V2);
    let words = [device, all.as_mut_ptr() as u64];
    let code = library.call("nvmlDeviceGetMemoryInfo_v2", &words);
    let [_, total, reserved, free, used] = all;
    Answer::code(code)
        .number("total", total)
        .number("reserved", reserved)
        .number("free", free)
        .number("used", used)
}
