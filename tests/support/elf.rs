//! What a shared library says about itself, as `readelf` of binutils prints it.

use super::succeed;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

const BOUND: Duration = Duration::from_secs(60);

/// One line of the table of dynamic symbols.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// Name without version.
    pub name: String,
    /// Version behind the name, empty if there is none.
    pub version: String,
    /// Whether the library has it, rather than wants it.
    pub defined: bool,
    /// Whether it is a function, rather than data.
    pub is_function: bool,
}

/// The dynamic symbols of `library`.
pub fn symbols(library: &Path) -> Vec<Symbol> {
    let mut readelf = Command::new("readelf");
    let table = succeed(readelf.args(["--dyn-syms", "-W"]).arg(library), BOUND);
    table
        .lines()
        .filter_map(|line| {
            let kind = line.split_whitespace().nth(3)?;
            let mut words = line.split_whitespace().skip(6);
            let section = words.next()?;
            let (name, version) = match words.next()?.split_once('@') {
                Some((name, version)) => (name, version.trim_start_matches('@')),
                None => (line.split_whitespace().nth(7)?, ""),
            };
            Some(Symbol {
                name: name.to_owned(),
                version: version.to_owned(),
                defined: section != "UND",
                is_function: matches!(kind, "FUNC" | "IFUNC"),
            })
        })
        .collect()
}

/// Names of the functions that `library` exports and that begin with `prefix`.
///
/// Data is left out: what a genuine driver exports of it is for debuggers, which read it out of the
/// driver's own file.
pub fn exports(library: &Path, prefix: &str) -> Vec<String> {
    symbols(library)
        .into_iter()
        .filter(|symbol| symbol.defined && symbol.is_function && symbol.name.starts_with(prefix))
        .map(|symbol| symbol.name)
        .collect()
}

/// Libraries that `library` needs.
pub fn needed(library: &Path) -> Vec<String> {
    let mut readelf = Command::new("readelf");
    succeed(readelf.arg("-dW").arg(library), BOUND)
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter_map(|line| Some(line.split_once('[')?.1.trim_end_matches(']').to_owned()))
        .collect()
}
