//! Turns `ffi/gen/tables/*.tsv` into the constant tables of `ffi::symbols`.
//!
//! The tables are ours, edited by hand: first line the names of the columns, then a row for each
//! symbol, `-` for "none". Rows may stand in any order; the output is sorted.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};

/// First line of every generated table.
const HEADER: &str = "// Made by `cargo run -p sluice-ffi-gen`; do not edit.\n";

/// What stands for "every later version".
const FOREVER: &str = "u32::MAX";

/// `ffi::symbols::DRIVER`.
pub(crate) fn driver(folder: &Path) -> Result<String> {
    let rows = rows(&folder.join("driver.tsv"))?;
    let mut text = head(
        "DRIVER",
        "Action, Class, StreamArg, Symbol",
        "Every symbol that a known `libcuda.so.1` exports or the headers declare",
    );
    for row in rows {
        let [
            name,
            base,
            since,
            until,
            per_thread,
            class,
            action,
            stream,
            header,
            data,
        ] = row.as_slice()
        else {
            bail!(
                "driver.tsv: a row of {} columns instead of 10: {row:?}",
                row.len()
            );
        };
        let is_found = since != "-";
        let until = if until == "-" && is_found {
            FOREVER
        } else {
            until
        };
        writeln!(
            text,
            "    Symbol {{ name: {name:?}, base: {base:?}, since: {}, until: {}, per_thread: {}, class: Class::{}, \
             action: Action::{}, stream_arg: {}, header: {header}, data_bytes: {} }},",
            or_zero(since),
            or_zero(until),
            per_thread == "yes",
            camel(class),
            camel(action),
            stream_argument(stream)?,
            or_zero(data),
            base = if base == "-" { name } else { base },
        )?;
    }
    text.push_str("];\n");
    Ok(text)
}

/// `ffi::symbols::NVML`.
pub(crate) fn nvml(folder: &Path) -> Result<String> {
    let rows = rows(&folder.join("nvml.tsv"))?;
    let mut text = head(
        "NVML",
        "Action, Class, Symbol",
        "Every symbol that a known `libnvidia-ml.so.1` exports or the headers declare",
    );
    for row in rows {
        let [name, base, class, action, header] = row.as_slice() else {
            bail!(
                "nvml.tsv: a row of {} columns instead of 5: {row:?}",
                row.len()
            );
        };
        writeln!(
            text,
            "    Symbol {{ name: {name:?}, base: {base:?}, since: {header}, until: {FOREVER}, per_thread: false, \
             class: Class::{}, action: Action::{}, stream_arg: None, header: {header}, data_bytes: 0 }},",
            camel(class),
            camel(action),
        )?;
    }
    text.push_str("];\n");
    Ok(text)
}

/// `ffi::symbols::ERRORS` and `ffi::symbols::NVML_ERRORS`.
pub(crate) fn codes(folder: &Path) -> Result<String> {
    let mut text = HEADER.to_owned();
    for (constant, table, kind) in [
        ("ERRORS", "curesult.tsv", "CUresult"),
        ("NVML_ERRORS", "nvmlreturn.tsv", "nvmlReturn_t"),
    ] {
        let mut codes = rows(&folder.join(table))?
            .into_iter()
            .map(|row| match row.as_slice() {
                [name, value] => Ok((value.parse::<u32>()?, name.clone())),
                _ => bail!(
                    "{table}: a row of {} columns instead of 2: {row:?}",
                    row.len()
                ),
            })
            .collect::<Result<Vec<_>>>()?;
        codes.sort();
        write!(
            text,
            "/// Code and name of every `{kind}`, sorted by code.\n pub static {constant}: &[(u32, &str)] = &["
        )?;
        for (value, name) in codes {
            writeln!(text, "({value}, {name:?}),")?;
        }
        text.push_str("];\n");
    }
    Ok(text)
}

/// Up to the opening bracket of a table; `imports` are the types that its rows name.
fn head(constant: &str, imports: &str, title: &str) -> String {
    format!(
        "{HEADER}use super::{{{imports}}};\n\n/// {title}, sorted by name.\n\
         #[rustfmt::skip] // A row is a line.\n\
         pub static {constant}: &[Symbol] = &[\n"
    )
}

/// The rows of a table, sorted by their first column, without the line of column names.
fn rows(path: &Path) -> Result<Vec<Vec<String>>> {
    let text =
        fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let mut rows: Vec<Vec<String>> = text
        .lines()
        .skip(1)
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect();
    rows.sort();
    Ok(rows)
}

fn or_zero(value: &str) -> &str {
    if value == "-" { "0" } else { value }
}

/// `CTX_CREATE` and `release` as Rust spells variants: `CtxCreate`, `Release`.
fn camel(name: &str) -> String {
    name.split('_')
        .flat_map(|word| {
            let mut letters = word.chars();
            letters
                .next()
                .map(|first| first.to_ascii_uppercase())
                .into_iter()
                .chain(letters.map(|letter| letter.to_ascii_lowercase()))
        })
        .collect()
}

fn stream_argument(stream: &str) -> Result<String> {
    Ok(match stream {
        "-" => "None".to_owned(),
        "config0" => "Some(StreamArg::LaunchConfig(0))".to_owned(),
        index => format!("Some(StreamArg::Handle({}))", index.parse::<u8>()?),
    })
}
