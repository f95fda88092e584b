//! Which symbols of a table a source tree already defines.
//!
//! The build scripts of the shim and of the stand-in use it: what the sources define by hand is left
//! alone, and every other symbol of `ffi::symbols` gets a generated stand-by. It reads text, not
//! syntax trees, so that a build script stays a matter of milliseconds; it does not expand macros,
//! follow `mod` declarations or heed `cfg`.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Macros whose rows define one symbol each.
const TABLES: [&str; 3] = ["hooks", "driver", "nvml"];

/// Collects the driver and NVML symbols that the `*.rs` files below `folder` define.
///
/// Two forms count, outside comments and string literals:
///
/// * a function under `#[unsafe(no_mangle)]` or `#[no_mangle]`;
/// * a row of a `hooks! { .. }`, `driver! { .. }` or `nvml! { .. }` table: a line that begins with
///   the symbol and its arguments, as in `cuMemFree_v2(ptr: CUdeviceptr) .. => memory::free;`.
///
/// Names that begin with neither `cu` nor `nvml` are left out.
///
/// # Panics
/// Where the folder or a file in it cannot be read: a build script has nothing better to do.
pub fn defined_in(folder: &Path) -> BTreeSet<String> {
    let mut defined = BTreeSet::new();
    visit(folder, &mut defined);
    defined
}

/// The names of `all` that are not in `defined`, in the order of `all`.
pub fn missing(all: &[&str], defined: &BTreeSet<String>) -> Vec<String> {
    all.iter()
        .filter(|name| !defined.contains(**name))
        .map(|name| (*name).to_owned())
        .collect()
}

fn visit(folder: &Path, defined: &mut BTreeSet<String>) {
    let entries = fs::read_dir(folder)
        .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()));
    for entry in entries {
        let path = entry
            .unwrap_or_else(|error| panic!("cannot list {}: {error}", folder.display()))
            .path();
        if path.is_dir() {
            visit(&path, defined);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path)
                .unwrap_or_else(|error| panic!("cannot read {}: {error}", path.display()));
            defined.extend(defined_by(&text));
        }
    }
}

/// The symbols that one file's text defines.
fn defined_by(text: &str) -> BTreeSet<String> {
    let code = without_comments_and_literals(text);
    let mut defined = BTreeSet::new();
    for (at, word) in words(&code) {
        let rest = code[at + word.len()..].trim_start();
        if word == "no_mangle" {
            defined.extend(function_after(rest));
        } else if TABLES.contains(&word) {
            let body = rest.strip_prefix('!').map(str::trim_start);
            if let Some(body) = body.and_then(|body| body.strip_prefix('{')) {
                rows(body, &mut defined);
            }
        }
    }
    defined
}

/// The name behind the first `fn`, if it is one of ours.
fn function_after(code: &str) -> Option<String> {
    let mut words = words(code).skip_while(|(_, word)| *word != "fn").skip(1);
    let (_, name) = words.next()?;
    is_symbol(name).then(|| name.to_owned())
}

/// Adds the rows of a table whose text begins right behind its opening brace.
fn rows(body: &str, defined: &mut BTreeSet<String>) {
    let mut depth = 0_usize;
    for line in body.split('\n') {
        let row = line.trim_start();
        if let Some((0, name)) = words(row).next()
            && depth == 0
            && is_symbol(name)
            && row[name.len()..].trim_start().starts_with('(')
        {
            defined.insert(name.to_owned());
        }
        for sign in line.chars() {
            match sign {
                '(' | '[' | '{' => depth += 1,
                ')' | ']' | '}' if depth == 0 => return,
                ')' | ']' | '}' => depth -= 1,
                _ => {}
            }
        }
    }
}

fn is_symbol(name: &str) -> bool {
    name.starts_with("cu") || name.starts_with("nvml")
}

/// Identifiers, keywords and numbers with the offset that each begins at.
fn words(code: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_part = |sign: char| sign.is_alphanumeric() || sign == '_';
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at + code[at..].find(is_part)?;
        let length = code[start..]
            .find(|sign| !is_part(sign))
            .unwrap_or(code.len() - start);
        at = start + length;
        Some((start, &code[start..at]))
    })
}

/// The text with comments, strings and character literals blanked out; lines stay lines.
fn without_comments_and_literals(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(sign) = rest.chars().next() {
        let length = comment(rest).or_else(|| literal(rest));
        if let Some(length) = length {
            code.extend(
                rest[..length]
                    .chars()
                    .map(|sign| if sign == '\n' { '\n' } else { ' ' }),
            );
            rest = &rest[length..];
        } else if sign.is_alphanumeric() || sign == '_' {
            // A whole word at once, so that the `r` at the end of a name never starts a raw string.
            let length = rest
                .find(|sign: char| !(sign.is_alphanumeric() || sign == '_'))
                .unwrap_or(rest.len());
            code.push_str(&rest[..length]);
            rest = &rest[length..];
        } else {
            code.push(sign);
            rest = &rest[sign.len_utf8()..];
        }
    }
    code
}

/// Length of the comment that `rest` begins with.
fn comment(rest: &str) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if !rest.starts_with("/*") {
        return None;
    }
    let mut depth = 0_usize;
    let mut at = 0;
    while at < rest.len() {
        if rest[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if rest[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return Some(at);
            }
        } else {
            at += rest[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    Some(rest.len())
}

/// Length of the string or character literal that `rest` begins with, its prefix included.
fn literal(rest: &str) -> Option<usize> {
    let prefix = ["br", "cr", "r", "b", "c", ""]
        .into_iter()
        .find(|prefix| rest.starts_with(prefix))?;
    let body = &rest[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = body.bytes().take_while(|byte| *byte == b'#').count();
        let inside = body[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let length = inside.find(&end).map_or(inside.len(), |at| at + end.len());
        return Some(prefix.len() + hashes + 1 + length);
    }
    let quote = body
        .chars()
        .next()
        .filter(|sign| ['"', '\''].contains(sign))?;
    if quote == '\'' {
        let mut inside = body.chars().skip(1);
        let first = inside.next()?;
        // Not escaped and not closed right behind one character: a lifetime.
        if first != '\\' && inside.next() != Some('\'') {
            return None;
        }
    }
    let mut is_escaped = false;
    for (at, sign) in body.char_indices().skip(1) {
        match sign {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            _ if sign == quote => return Some(prefix.len() + at + 1),
            _ => {}
        }
    }
    Some(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        defined_by(text).into_iter().collect()
    }

    #[test]
    fn a_function_without_mangling_counts_in_both_spellings() {
        let text = r#"
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn cuInit(flags: u32) -> u32 { 0 }
            #[no_mangle]
            #[inline(never)]
            extern "C" fn nvmlShutdown() -> u32 { 0 }
            #[unsafe(no_mangle)]
            extern "C" fn dlsym() {}
            fn cuHelper() {}
        "#;
        assert_eq!(names(text), ["cuInit", "nvmlShutdown"]);
    }

    #[test]
    fn a_row_of_a_table_counts_even_when_it_spans_lines() {
        let text = r#"
            hooks! {
                cuMemAlloc_v2(out: *mut CUdeviceptr, bytes: usize) as "cuMemAlloc" since 3020 => memory::alloc;
                cuMemcpy3D_v2(
                    cuParameter: *const CUDA_MEMCPY3D,
                    callback: extern "C" fn(u32) -> u32
                ) as "cuMemcpy3D" since 3020 => copy::three;
            }
            driver!{ cuIgnored => 1; }
            nvml! {
                nvmlInit_v2() => init::init;
            }
            cuAfter(1);
        "#;
        assert_eq!(
            names(text),
            ["cuMemAlloc_v2", "cuMemcpy3D_v2", "nvmlInit_v2"]
        );
    }

    #[test]
    fn comments_and_literals_define_nothing() {
        let text = r##"
            // hooks! { cuA() => a; }
            /* #[no_mangle] /* nested */ fn cuB() {} */
            const S: &str = "#[no_mangle] fn cuC() { // \" ";
            const R: &str = r#"hooks! {
                cuD() => d;
            }"#;
            const Q: char = '"';
            fn of<'a>(x: &'a str) -> char { '\'' }
            hooks! {
                // cuE() => e;
                cuF() => f; // "
                cuG() => g;
            }
        "##;
        assert_eq!(names(text), ["cuF", "cuG"]);
    }

    #[test]
    fn a_call_in_a_table_is_no_row() {
        let text = "hooks! {\n cuX(a: u32) => {\n cuY(a)\n };\n }\n macro_rules! hooks {\n }\n";
        assert_eq!(names(text), ["cuX"]);
    }

    #[test]
    fn missing_keeps_the_order_of_the_table() {
        let defined = BTreeSet::from(["cuB".to_owned()]);
        assert_eq!(missing(&["cuC", "cuB", "cuA"], &defined), ["cuC", "cuA"]);
    }

    #[test]
    fn a_folder_is_read_with_the_folders_in_it() {
        let defined = defined_in(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"));
        assert!(defined.is_empty(), "{defined:?}");
    }
}
