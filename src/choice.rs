//! Which driver to use: the machine's own or the stand-in.

use anyhow::{Result, anyhow, bail};
use daemon::api::DriverKind;
use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::Duration;

/// What a user asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Choice {
    /// Whatever answers.
    Auto,
    /// NVIDIA's driver and a GPU.
    Real,
    /// A process that takes a GPU's place.
    StandIn,
}

/// Longest wait for NVML, which hangs where a GPU has fallen off the bus.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);

/// Decides, by asking the NVML at `libnvml` (absent: the machine's own) for its devices.
///
/// # Errors
/// A real driver is wanted or needed, and there is none; the message says what to do.
pub(crate) fn resolve(choice: Choice, libnvml: Option<&Path>) -> Result<DriverKind> {
    if choice == Choice::StandIn {
        return Ok(DriverKind::StandIn);
    }
    match real_devices(libnvml.map(Path::to_owned)) {
        Ok(1..) => Ok(DriverKind::Real),
        found => {
            let why = match found {
                Ok(_) => "the GPU driver has no device".to_owned(),
                Err(error) => format!("the GPU driver does not answer: {error}"),
            };
            match choice {
                Choice::Real => bail!("{why}"),
                _ => bail!("{why}; to go on without a GPU, use `--device stand-in`"),
            }
        }
    }
}

/// [`resolve`], and the stand-in where `Auto` finds nothing else: for what is only looked at.
///
/// # Errors
/// A real driver is wanted, and there is none.
pub(crate) fn settle(choice: Choice) -> Result<DriverKind> {
    match (choice, resolve(choice, None)) {
        (_, Ok(kind)) => Ok(kind),
        (Choice::Auto, Err(_)) => Ok(DriverKind::StandIn),
        (_, Err(error)) => Err(error),
    }
}

fn real_devices(libnvml: Option<PathBuf>) -> Result<u32> {
    let (sender, answer) = channel();
    // Left behind if NVML hangs.
    std::thread::spawn(move || {
        let count = || -> Result<u32, NvmlError> {
            let mut builder = Nvml::builder();
            // The development link `libnvidia-ml.so`, which is the default name, is seldom there.
            let path = libnvml.unwrap_or_else(|| PathBuf::from("libnvidia-ml.so.1"));
            builder.lib_path(path.as_os_str()).init()?.device_count()
        };
        let _ = sender.send(count());
    });
    match answer.recv_timeout(ANSWER_WITHIN) {
        Ok(count) => Ok(count?),
        Err(_) => Err(anyhow!(
            "no answer from NVML within {} s",
            ANSWER_WITHIN.as_secs()
        )),
    }
}
