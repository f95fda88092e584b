//! Gives the library its SONAME and writes the functions that only have to be there.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs};

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=src");
    // No `-Bsymbolic`: the genuine library is linked without it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");

    let defined = exports::defined_in(Path::new("src"));
    let known: Vec<&str> = ffi::symbols::NVML
        .iter()
        .map(|symbol| symbol.name)
        .collect();
    for name in &defined {
        assert!(
            known.contains(&name.as_str()),
            "{name} is implemented and no driver exports it"
        );
    }
    let mut rest = String::new();
    for name in exports::missing(&known, &defined) {
        let written = write!(
            rest,
            "#[unsafe(no_mangle)]\nextern \"C\" fn {name}() -> ffi::nvml::nvmlReturn_t {{\n    \
             match sim::faults::at(\"{name}\") {{\n        \
             Some(code) => ffi::nvml::nvmlReturn_t(code),\n        \
             None => library::not_supported(),\n    }}\n}}\n"
        );
        written.expect("a string takes whatever is written to it");
    }
    let folder = env::var("OUT_DIR").expect("cargo names the output folder");
    fs::write(Path::new(&folder).join("rest.rs"), rest).expect("the output folder can be written");
}
