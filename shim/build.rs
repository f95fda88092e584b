//! Links the shim as the loader needs it, and writes a trampoline for every symbol without a hook.
//!
//! The shim's DT_NEEDED entries are the *file* names of four alias libraries, whose SONAMEs are the
//! names that clients ask for. The aliases need the shim, and the shim needs the aliases; the circle is
//! opened by linking against four empty stand-bys whose SONAMEs are the aliases' file names.
#![allow(
    clippy::disallowed_macros,
    reason = "a build script talks to cargo by standard output; the ban is for the library"
)]

use std::env;
use std::error::Error;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// File names of the aliases; the program's build script makes the true ones.
const ALIASES: [&str; 4] = [
    "libsluice-cuda-1.so",
    "libsluice-cuda.so",
    "libsluice-nvml-1.so",
    "libsluice-nvml.so",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src");
    let out = PathBuf::from(env::var("OUT_DIR")?);
    link(&out)?;
    fs::write(out.join("trampolines.rs"), trampolines()?)?;
    Ok(())
}

fn link(out: &Path) -> Result<(), Box<dyn Error>> {
    let argument = |argument: &str| println!("cargo:rustc-cdylib-link-arg={argument}");
    argument("-Wl,-soname,libsluice.so");
    argument("-Wl,-rpath,$ORIGIN");
    // The hooks call each other by path, never by exported name.
    argument("-Wl,-Bsymbolic");
    argument("-Wl,--no-as-needed");
    for alias in ALIASES {
        let file = out.join(alias);
        // rustc links with `cc` on this target; the same one makes the stand-bys.
        let status = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()))
            .args(["-shared", "-nostdlib", "-x", "assembler", "/dev/null"])
            .arg(format!("-Wl,-soname,{alias}"))
            .arg("-o")
            .arg(&file)
            .status()?;
        if !status.success() {
            return Err(format!("the C compiler cannot make {}: {status}", file.display()).into());
        }
        argument(&file.display().to_string());
    }
    argument("-Wl,--as-needed");
    Ok(())
}

fn trampolines() -> Result<String, Box<dyn Error>> {
    let defined = exports::defined_in(Path::new("src"));
    let mut text = String::from("trampolines! {\n");
    for (library, symbols) in [
        ("Driver", ffi::symbols::DRIVER),
        ("Nvml", ffi::symbols::NVML),
    ] {
        for (index, symbol) in symbols.iter().enumerate() {
            // The debugger looks its data objects up in the genuine library's own symbol table.
            if symbol.data_bytes == 0 && !defined.contains(symbol.name) {
                writeln!(text, "    {library} {index} {};", symbol.name)?;
            }
        }
    }
    text.push_str("}\n");
    Ok(text)
}
