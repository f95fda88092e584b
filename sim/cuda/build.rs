//! Links the library as clients expect the driver to be linked, and writes what follows from the
//! symbol table: a stub for every symbol that the sources do not define, the table of all addresses
//! for `cuGetProcAddress`, and the names and texts of the error codes.

use std::collections::BTreeSet;
use std::env;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ffi::symbols::{DRIVER, ERRORS};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src");
    // What clients ask the loader for; and, like the genuine driver, its own calls stay inside.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // A thread of ours may be running in it for as long as the process lives.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    let sources = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or(io::ErrorKind::NotFound)?);
    let defined = exports::defined_in(&sources.join("src"));
    fs::write(out.join("stubs.rs"), stubs(&defined))?;
    fs::write(out.join("addresses.rs"), addresses())?;
    write_errors(&out)
}

/// Stubs for what is not defined, and their names.
fn stubs(defined: &BTreeSet<String>) -> String {
    let mut text = String::new();
    let mut names = Vec::new();
    for symbol in DRIVER {
        let name = symbol.name;
        // Its place in the list below: each stub is another one's equal but for this.
        let index = names.len();
        if symbol.data_bytes > 0 {
            let bytes = symbol.data_bytes;
            let _ = writeln!(
                text,
                "#[unsafe(no_mangle)]\nstatic {name}: [AtomicU8; {bytes}] = [const {{ AtomicU8::new(0) }}; {bytes}];"
            );
        } else if !defined.contains(name) {
            let _ = writeln!(
                text,
                "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> CUresult {{ answer({index}) }}"
            );
            names.push(name);
        }
    }
    let _ = writeln!(
        text,
        "/// Symbols that the library exports and does not implement, sorted.\npub static STUBS: &[&str] = &{names:?};"
    );
    text
}

/// The address of every function, in the order of the symbol table.
fn addresses() -> String {
    let mut declared = String::new();
    let mut listed = String::new();
    for symbol in DRIVER {
        if symbol.data_bytes > 0 {
            listed.push_str("None,\n");
        } else {
            let _ = writeln!(declared, "fn {}();", symbol.name);
            let _ = writeln!(listed, "Some({}),", symbol.name);
        }
    }
    format!(
        "unsafe extern \"C\" {{\n{declared}}}\nstatic ADDRESSES: [Option<Address>; {}] = [\n{listed}];\n",
        DRIVER.len()
    )
}

/// Names as the header spells them; texts are the names in plain words.
fn write_errors(out: &Path) -> io::Result<()> {
    let mut text = format!(
        "static ERRORS: [(u32, &CStr, &CStr); {}] = [\n",
        ERRORS.len()
    );
    for (code, name) in ERRORS {
        let words = match name.strip_prefix("CUDA_ERROR_") {
            Some(words) => words.to_lowercase().replace('_', " "),
            None => "no error".to_owned(),
        };
        let _ = writeln!(text, "({code}, c\"{name}\", c\"{words}\"),");
    }
    text.push_str("];\n");
    fs::write(out.join("errors.rs"), text)
}
