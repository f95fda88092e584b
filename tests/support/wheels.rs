//! Genuine CUDA runtime libraries, unpacked once from their wheels under `target/wheels`.
//!
//! They are used up to the point where they check the driver, and no further: on a stand-in that
//! check fails, and that is right.

use super::once;
use std::path::PathBuf;
use std::process::Command;

/// Runtime version, wheel that holds it, and the library's place inside.
const RUNTIMES: [(&str, &str, &str); 3] = [
    (
        "11.8",
        "nvidia-cuda-runtime-cu11==11.8.89",
        "nvidia/cuda_runtime/lib/libcudart.so.11.0",
    ),
    (
        "12.9",
        "nvidia-cuda-runtime-cu12==12.9.79",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
    ),
    (
        "13.5",
        "nvidia-cuda-runtime==13.5.37",
        "nvidia/cu13/lib/libcudart.so.13",
    ),
];

/// The versions that there are, each with its library.
///
/// # Panics
/// With the reason, when a wheel cannot be had.
pub fn runtimes() -> Vec<(&'static str, PathBuf)> {
    RUNTIMES
        .iter()
        .map(|(version, wheel, library)| {
            let name = format!("wheels-{version}");
            let folder = once::folder(&name, wheel, |folder| {
                let mut install = Command::new("python3");
                install.args(["-m", "pip", "install", "--no-input", "--quiet", "--no-deps"]);
                install.arg("--target").arg(folder).arg(wheel);
                once::run(&mut install)?;
                match folder.join(library).exists() {
                    true => Ok(()),
                    false => Err(format!("{wheel} holds no {library}")),
                }
            });
            (*version, folder.join(library))
        })
        .collect()
}
