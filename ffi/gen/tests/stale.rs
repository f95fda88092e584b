//! The checked-in bindings and tables are what the generator makes today.
//!
//! The first run downloads the headers and libclang through pip into `target/headers/`, about 27 MB.
//! Where that cannot be done the test fails and says what to do: silence would look like a pass.

use std::path::Path;
use std::process::Command;

#[test]
fn the_checked_in_files_are_what_the_generator_makes() {
    let output = Command::new(env!("CARGO_BIN_EXE_ffi-gen"))
        .arg("--check")
        .output()
        .expect("cargo built the generator for this test");
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_changed_file_is_found_stale_and_named() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stale");
    let made = Command::new(env!("CARGO_BIN_EXE_ffi-gen"))
        .arg("--out")
        .arg(&folder)
        .output()
        .expect("cargo built the generator for this test");
    assert!(
        made.status.success(),
        "{}",
        String::from_utf8_lossy(&made.stderr)
    );
    std::fs::write(folder.join("nvml.rs"), "pub fn gone();\n")
        .expect("the generator made the folder");

    let checked = Command::new(env!("CARGO_BIN_EXE_ffi-gen"))
        .arg("--check")
        .arg("--out")
        .arg(&folder)
        .output()
        .expect("cargo built the generator for this test");
    let said = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{said}");
    assert!(said.contains("nvml.rs is stale"), "{said}");
    assert!(!said.contains("driver.rs"), "{said}");
}

#[test]
fn without_pip_it_fails_and_says_what_to_do() {
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-headers");
    let output = Command::new(env!("CARGO_BIN_EXE_ffi-gen"))
        .args(["--check", "--headers"])
        .arg(&empty)
        .env("PATH", "/nowhere")
        .output()
        .expect("cargo built the generator for this test");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success(), "{said}");
    assert!(said.contains("install python3 with pip"), "{said}");
}
