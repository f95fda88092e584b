//! Versions, error sentences, process names: what is asked without a device.

use std::ffi::{CStr, c_char, c_int};
use std::fs;

use ffi::nvml::*;

use crate::guard::{Answer, Out, check_version, text_field, version_word, write_list, write_text};
use crate::hardware;
use crate::library;

/// The driver's version, e.g. `580.65.06`.
pub(crate) fn driver_version(text: Out<c_char>, length: u32) -> Answer {
    write_text(text, length, &library::session()?.hardware.version().nvml)
}

/// The library's own version: the CUDA generation and then the driver's version. Needs no
/// initialisation.
pub(crate) fn library_version(text: Out<c_char>, length: u32) -> Answer {
    let version = match library::session() {
        Ok(session) => session.hardware.version().clone(),
        Err(_) => hardware::default_version(),
    };
    write_text(
        text,
        length,
        &format!("{}.{}", version.cuda / 1000, version.nvml),
    )
}

/// The highest CUDA version that the driver carries: 1000 × major + 10 × minor.
pub(crate) fn cuda_version(version: Out<c_int>) -> Answer {
    version.write(library::session()?.hardware.version().cuda as c_int)
}

/// The release branch, e.g. `r580_00`.
pub(crate) fn driver_branch(branch: Out<nvmlSystemDriverBranchInfo_v1_t>, length: u32) -> Answer {
    let session = library::session()?;
    let branch = branch.claim()?;
    let mut info = branch.read();
    check_version(
        info.version,
        version_word::<nvmlSystemDriverBranchInfo_v1_t>(1),
    )?;
    let version = session.hardware.version();
    let name = format!("r{}_00", version.nvml.split('.').next().unwrap_or_default());
    if (length as usize) <= name.len() {
        return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
    }
    info.branch = text_field(&name);
    branch.write(info);
    Ok(())
}

/// The path that a process was started by, cut to fit.
///
/// `NVML_ERROR_NOT_FOUND` where there is no such process, or no right to see it.
pub(crate) fn process_name(pid: u32, text: Out<c_char>, length: u32) -> Answer {
    library::session()?;
    let text = text.claim()?;
    let Some(longest) = (length as usize).checked_sub(1) else {
        return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
    };
    let command =
        fs::read(format!("/proc/{pid}/cmdline")).map_err(|_| nvmlReturn_t::NVML_ERROR_NOT_FOUND)?;
    let name = command.split(|byte| *byte == 0).next().unwrap_or_default();
    let mut characters: Vec<c_char> = name
        .iter()
        .take(longest)
        .map(|byte| *byte as c_char)
        .collect();
    characters.push(0);
    text.write_all(&characters);
    Ok(())
}

/// There are no host interface cards.
pub(crate) fn no_interface_cards(count: Out<u32>, entries: Out<nvmlHwbcEntry_t>) -> Answer {
    library::session()?;
    write_list(count, entries, &[])
}

/// There are none of these.
pub(crate) fn none(count: Out<u32>) -> Answer {
    library::session()?;
    count.write(0)
}

/// A sentence for a code.
pub(crate) fn sentence(code: nvmlReturn_t) -> &'static CStr {
    match code.0 {
        0 => c"Success",
        1 => c"The library was not initialised",
        2 => c"An argument is not valid",
        3 => c"Not Supported",
        4 => c"The caller may not do this",
        5 => c"The library was initialised before",
        6 => c"Nothing was found by that name",
        7 => c"The buffer is too small",
        8 => c"The power cables of a device are not attached",
        9 => c"The driver is not loaded",
        10 => c"The time is over",
        11 => c"The kernel found an interrupt problem with a device",
        12 => c"The library could not be found or loaded",
        13 => c"This version of the library lacks the function",
        14 => c"The information memory of a device is damaged",
        15 => c"The GPU has gone away",
        16 => c"The GPU needs a reset",
        17 => c"The operating system or a container blocks the device",
        18 => c"Driver and library have different versions",
        19 => c"The GPU is in use",
        20 => c"There is not enough memory",
        21 => c"There is no data",
        22 => c"The virtual GPU cannot have ECC",
        23 => c"A resource is exhausted",
        24 => c"The frequency is not supported",
        25 => c"The version of a structure is not supported",
        26 => c"The function is deprecated",
        27 => c"The system is not ready",
        28 => c"No GPU was found",
        29 => c"The object is not in a state for this",
        30 => c"The kind of reset is not supported",
        999 => c"An unknown error inside the library",
        _ => c"An error that this library does not know",
    }
}
