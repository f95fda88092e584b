//! Turns the C headers into Rust: `ffi::driver` and `ffi::nvml`.
//!
//! Comments are left out, since they are NVIDIA's text. What bindgen cannot evaluate (macros with
//! casts or `sizeof`) is read from the headers' lines here.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use bindgen::{Builder, EnumVariation, Formatter, RustEdition, RustTarget};

use crate::headers::Inputs;

/// `ffi::driver`, unformatted.
pub(crate) fn driver(inputs: &Inputs) -> Result<String> {
    let bound = bind(inputs, "driver.h", |builder| {
        builder
            .allowlist_function("cu.*")
            .allowlist_type("(CU|cu).*")
            .allowlist_var("(CU|cu).*")
    })?;
    let header = read(&inputs.include.join("cuda.h"))?;
    let title = "The CUDA driver API as the headers of CUDA 13.5 spell it, each variant of a function under the \
                 name that the library exports.";
    Ok(file(title, &bound, &cast_constants(&header)?))
}

/// `ffi::nvml`, unformatted.
pub(crate) fn nvml(inputs: &Inputs) -> Result<String> {
    let bound = bind(inputs, "management.h", |builder| {
        builder
            .allowlist_function("nvml.*")
            .allowlist_type("nvml.*")
            .allowlist_var("(NVML|nvml).*")
    })?;
    let header = read(&inputs.include.join("nvml.h"))?;
    let title = "The management library (NVML) as the header of CUDA 13.5 spells it, each variant of a function \
                 under the name that the library exports.";
    Ok(file(title, &bound, &version_words(&header)?))
}

fn bind(inputs: &Inputs, entry: &str, choose: impl FnOnce(Builder) -> Builder) -> Result<String> {
    let own = crate::package().join("include");
    let builder = Builder::default()
        .header(own.join(entry).display().to_string())
        // Our own few lines of libc headers alone: the output must not depend on this machine.
        .clang_args(["-nostdinc", "--target=x86_64-unknown-linux-gnu"])
        .clang_arg(format!("-I{}", own.display()))
        .clang_arg(format!("-I{}", inputs.include.display()))
        .default_enum_style(EnumVariation::NewType {
            is_bitfield: false,
            is_global: false,
        })
        .rust_target(
            RustTarget::stable(85, 0)
                .map_err(|error| anyhow::anyhow!("bindgen does not know Rust 1.85: {error}"))?,
        )
        .rust_edition(RustEdition::Edition2024)
        .use_core()
        .generate_comments(false)
        .layout_tests(true)
        .derive_debug(true)
        .derive_default(false)
        .disable_header_comment()
        .formatter(Formatter::None);
    let bindings = choose(builder)
        .generate()
        .with_context(|| format!("bindgen cannot read {entry}"))?;
    Ok(bindings.to_string())
}

/// One generated file: header line, lints, what bindgen made, what it could not.
fn file(title: &str, bound: &str, more: &str) -> String {
    format!(
        "// Made by `cargo run -p sluice-ffi-gen`; do not edit.\n\
         //! {title}\n\
         #![allow(\n\
             missing_docs,\n\
             reason = \"the documentation is NVIDIA's and stays in its headers\"\n\
         )]\n\
         #![allow(\n\
             non_camel_case_types,\n\
             non_snake_case,\n\
             non_upper_case_globals,\n\
             reason = \"the names are those of the C headers\"\n\
         )]\n\
         #![allow(\n\
             clippy::all,\n\
             clippy::allow_attributes_without_reason,\n\
             clippy::multiple_unsafe_ops_per_block,\n\
             clippy::undocumented_unsafe_blocks,\n\
             reason = \"generated code is judged by its generator\"\n\
         )]\n\n{bound}\n{more}"
    )
}

/// Constants that are an integer cast to a handle, as in `#define CU_STREAM_LEGACY ((CUstream)0x1)`.
fn cast_constants(header: &str) -> Result<String> {
    let mut text = String::new();
    for (name, value) in defines(header) {
        let Some((kind, number)) = value
            .strip_prefix("((")
            .and_then(|value| value.strip_suffix(')'))
            .and_then(|value| value.split_once(')'))
        else {
            continue;
        };
        match kind {
            "CUstream" => {
                let number = number.trim_start_matches("0x");
                writeln!(
                    text,
                    "pub const {name}: CUstream = ::core::ptr::without_provenance_mut({number});"
                )?;
            }
            "void*" => writeln!(
                text,
                "pub const {name}: *mut ::core::ffi::c_void = \
                 ::core::ptr::without_provenance_mut({number} as usize);"
            )?,
            "CUdevice" => writeln!(text, "pub const {name}: CUdevice = {number};")?,
            _ => {}
        }
    }
    Ok(text)
}

/// The version words of NVML's structs: size of the struct in the low 24 bits, version above.
fn version_words(header: &str) -> Result<String> {
    let mut text = String::new();
    let joined = header.replace("\\\n", " ");
    for (name, value) in defines(&joined) {
        let Some((data, version)) = value
            .strip_prefix("NVML_STRUCT_VERSION(")
            .and_then(|value| value.split_once(')'))
            .and_then(|(arguments, _)| arguments.split_once(','))
        else {
            continue;
        };
        let version = version.trim();
        writeln!(
            text,
            "pub const {name}: ::core::ffi::c_uint = \
             ::core::mem::size_of::<nvml{data}_v{version}_t>() as ::core::ffi::c_uint | ({version} << 24);"
        )?;
    }
    Ok(text)
}

/// Name and value of every macro without parameters, comments cut off.
fn defines(header: &str) -> impl Iterator<Item = (&str, &str)> {
    header.lines().filter_map(|line| {
        let define = line.trim_start().strip_prefix("#define ")?.trim_start();
        let (name, value) = define.split_once(char::is_whitespace)?;
        let value = value.split("//").next()?.split("/*").next()?.trim();
        (!name.contains('(')).then_some((name, value))
    })
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}
