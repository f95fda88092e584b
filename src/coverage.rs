//! `sluice sim coverage`: which functions of the driver and of NVML the stand-in implements.
//!
//! The build script reads it from the stand-in's sources, as the stand-in's own build does to write the
//! stubs: what is listed here as implemented is what has code behind it.

use crate::exit::Exit;
use crate::text::{Column, table};
use anyhow::{Context, Result};
use ffi::symbols::{DRIVER, NVML, Symbol};
use serde::Serialize;
use std::collections::BTreeMap;

include!(concat!(env!("OUT_DIR"), "/coverage.rs"));

/// Shows which functions the stand-in implements, by family
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A function that is not implemented is there, and answers CUDA_ERROR_NOT_SUPPORTED or
NVML_ERROR_NOT_SUPPORTED.

Examples:
  sluice sim coverage
  sluice sim coverage --json | jq '.driver.families[] | {family, missing: .stubs}'")]
pub(crate) struct Arguments {
    /// Prints one JSON object, with the names
    #[arg(long, conflicts_with = "markdown")]
    json: bool,
    /// Prints the page of the documentation
    #[arg(long)]
    markdown: bool,
}

#[derive(Debug, Serialize)]
struct Coverage {
    driver: Library,
    nvml: Library,
}

#[derive(Debug, Serialize)]
struct Library {
    functions: usize,
    implemented: usize,
    families: Vec<Family>,
}

#[derive(Debug, Serialize)]
struct Family {
    family: String,
    implemented: Vec<&'static str>,
    stubs: Vec<&'static str>,
}

/// Prints it.
pub(crate) fn run(arguments: &Arguments) -> Result<Exit> {
    let coverage = Coverage {
        driver: library(DRIVER, IMPLEMENTED_DRIVER),
        nvml: library(NVML, IMPLEMENTED_NVML),
    };
    if arguments.json {
        let text = serde_json::to_string(&coverage).context("cannot write JSON")?;
        println!("{text}");
    } else if arguments.markdown {
        print!("{}", markdown(&coverage));
    } else {
        for (name, library) in named(&coverage) {
            let (implemented, functions) = (library.implemented, library.functions);
            println!("{name}: {implemented} of {functions} functions implemented\n");
            println!("{}", families(library));
        }
    }
    Ok(Exit::Success)
}

fn named(coverage: &Coverage) -> [(&'static str, &Library); 2] {
    [
        ("libcuda.so.1", &coverage.driver),
        ("libnvidia-ml.so.1", &coverage.nvml),
    ]
}

fn library(symbols: &'static [Symbol], implemented: &[&str]) -> Library {
    let mut families: BTreeMap<String, Family> = BTreeMap::new();
    // The debugger's data objects are no functions.
    for symbol in symbols.iter().filter(|symbol| symbol.data_bytes == 0) {
        let name = family_name(&format!("{:?}", symbol.class));
        let family = families.entry(name.clone()).or_insert_with(|| Family {
            family: name,
            implemented: Vec::new(),
            stubs: Vec::new(),
        });
        // Sorted by the build script.
        match implemented.binary_search(&symbol.name) {
            Ok(_) => family.implemented.push(symbol.name),
            Err(_) => family.stubs.push(symbol.name),
        }
    }
    let families: Vec<Family> = families.into_values().collect();
    let implemented = families.iter().map(|family| family.implemented.len()).sum();
    let stubs: usize = families.iter().map(|family| family.stubs.len()).sum();
    Library {
        functions: implemented + stubs,
        implemented,
        families,
    }
}

/// `DeviceQuery` as `device query`.
fn family_name(class: &str) -> String {
    let mut name = String::new();
    for character in class.chars() {
        if character.is_uppercase() && !name.is_empty() {
            name.push(' ');
        }
        name.extend(character.to_lowercase());
    }
    name
}

fn families(library: &Library) -> String {
    let heading = [
        Column::left("FAMILY"),
        Column::right("IMPLEMENTED"),
        Column::right("STUBS"),
    ];
    let rows: Vec<Vec<String>> = library
        .families
        .iter()
        .map(|family| {
            vec![
                family.family.clone(),
                family.implemented.len().to_string(),
                family.stubs.len().to_string(),
            ]
        })
        .collect();
    table(&heading, &rows)
}

fn markdown(coverage: &Coverage) -> String {
    let mut text = String::from(
        "# What the stand-in implements\n\nMade by `sluice sim coverage --markdown`; a test keeps it true. \
         Every other function is there and\nanswers `CUDA_ERROR_NOT_SUPPORTED` or \
         `NVML_ERROR_NOT_SUPPORTED`.\n",
    );
    for (name, library) in named(coverage) {
        text += &format!(
            "\n## {name}: {} of {} functions\n\n| family | implemented | not implemented |\n|---|---|---|\n",
            library.implemented, library.functions
        );
        for family in &library.families {
            text += &format!(
                "| {} | {} | {} |\n",
                family.family,
                family.implemented.len(),
                names(&family.stubs)
            );
        }
    }
    text
}

fn names(stubs: &[&str]) -> String {
    let names: Vec<String> = stubs.iter().map(|name| format!("`{name}`")).collect();
    match names.len() {
        0 => "–".to_owned(),
        _ => names.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_implemented_or_a_stub_and_both_exist() {
        for (symbols, implemented) in [(DRIVER, IMPLEMENTED_DRIVER), (NVML, IMPLEMENTED_NVML)] {
            let library = library(symbols, implemented);
            let functions = symbols.iter().filter(|symbol| symbol.data_bytes == 0);
            assert_eq!(library.functions, functions.count());
            assert_eq!(library.implemented, implemented.len());
            assert!(library.implemented > 50 && library.implemented < library.functions);
        }
    }

    #[test]
    fn the_page_is_what_the_command_prints() {
        let coverage = Coverage {
            driver: library(DRIVER, IMPLEMENTED_DRIVER),
            nvml: library(NVML, IMPLEMENTED_NVML),
        };
        let page = include_str!("../docs/stand-in-coverage.md");
        assert!(
            page == markdown(&coverage),
            "stale: `cargo run -- sim coverage --markdown > docs/stand-in-coverage.md`"
        );
    }
}
