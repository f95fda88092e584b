//! The symbol tables and the bindings speak of the same functions.

use std::collections::BTreeSet;

use ffi::driver::CUresult;
use ffi::nvml::nvmlReturn_t;
use ffi::symbols::{DRIVER, ERRORS, NVML, NVML_ERRORS, Symbol};

/// Newest CUDA that the tables know.
const NEWEST: u32 = ffi::driver::CUDA_VERSION;

/// Functions of NVML that the header of CUDA 13.5 no longer declares.
const GONE: [&str; 5] = [
    "nvmlDeviceCcuGetStreamState",
    "nvmlDeviceCcuSetStreamState",
    "nvmlDeviceGetPowerMode",
    "nvmlDeviceGetSupportedPowerModes",
    "nvmlDeviceSetPowerMode",
];

/// Names of the functions that generated bindings declare.
fn declared(bindings: &str) -> BTreeSet<&str> {
    bindings
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("pub fn "))
        .filter_map(|line| line.split('(').next())
        .collect()
}

/// Names of the functions that a table says some header declares.
fn listed(table: &[Symbol]) -> BTreeSet<&str> {
    table
        .iter()
        .filter(|symbol| symbol.header > 0)
        .map(|symbol| symbol.name)
        .collect()
}

#[test]
fn the_driver_table_lists_exactly_what_the_headers_declare() {
    let declared = declared(include_str!("../src/driver.rs"));
    assert_eq!(declared.len(), 723);
    assert_eq!(listed(DRIVER), declared);
}

#[test]
fn the_nvml_table_lists_what_the_header_declares_and_what_older_ones_did() {
    let declared = declared(include_str!("../src/nvml.rs"));
    let mut listed = listed(NVML);
    for name in GONE {
        assert!(listed.remove(name), "{name}");
    }
    assert_eq!(listed, declared);
}

#[test]
fn no_symbol_is_newer_than_the_headers() {
    for symbol in DRIVER.iter().chain(NVML) {
        assert!(symbol.header <= NEWEST, "{}", symbol.name);
        assert!(symbol.since <= NEWEST, "{}", symbol.name);
    }
}

#[test]
fn the_code_tables_agree_with_the_constants() {
    assert_eq!(ERRORS[0], (CUresult::CUDA_SUCCESS.0, "CUDA_SUCCESS"));
    let out_of_memory = CUresult::CUDA_ERROR_OUT_OF_MEMORY.0;
    assert!(ERRORS.contains(&(out_of_memory, "CUDA_ERROR_OUT_OF_MEMORY")));
    let unknown = nvmlReturn_t::NVML_ERROR_UNKNOWN.0;
    assert!(NVML_ERRORS.contains(&(unknown, "NVML_ERROR_UNKNOWN")));
    for (table, bindings) in [
        (ERRORS, include_str!("../src/driver.rs")),
        (NVML_ERRORS, include_str!("../src/nvml.rs")),
    ] {
        for (code, name) in table {
            let constant = bindings
                .split_once(&format!("pub const {name}: "))
                .and_then(|(_, rest)| rest.split_once('('))
                .and_then(|(_, rest)| rest.split_once(')'));
            assert_eq!(
                constant.map(|(value, _)| value),
                Some(code.to_string().as_str()),
                "{name}"
            );
        }
    }
}
