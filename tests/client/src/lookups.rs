//! Steps that ask the loader and the driver where functions are.

use crate::answer::Answer;
use crate::native::{self, Library, Via};
use crate::steps::{POISON, Stepper, number};
use std::collections::{BTreeSet, HashMap};
use std::ffi::CString;

/// At most so many differences are spelled out.
const SHOWN: usize = 20;

/// Names that no header declares as a base name, and that programs ask for all the same.
const ODD_NAMES: [&str; 8] = [
    "",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuLaunchKernel_ptsz",
    "cuSubgridCreate",
    "cuGraphInstantiateWithParams_ptsz",
    "cuMemGetAttribute_v2",
    "cuNoSuchFunction",
];

/// What one look-up call answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Found {
    code: i32,
    address: u64,
    status: u32,
}

/// Does one step of this family.
pub(crate) fn step(stepper: &mut Stepper, words: &[&str]) -> Result<Answer, String> {
    match words {
        ["open", name] => Ok(match Library::open(name, 0, Via::Handle) {
            Ok(library) => {
                let (file, _) = native::owner(library.by_handle("cuInit"));
                Answer::code(Some(0)).text("file", &file)
            }
            Err(reason) => Answer::code(None).text("reason", &reason),
        }),
        ["where", symbol] => {
            let library = match symbol.starts_with("nvml") {
                true => stepper.management()?,
                false => stepper.driver()?,
            };
            let address = library.address(symbol);
            let (file, name) = native::owner(address);
            Ok(Answer::default()
                .number("address", address as i128)
                .text("file", &file)
                .text("name", &name))
        }
        ["lookup", name, version, flags] => {
            let name = if *name == "-" { "" } else { name };
            let driver = stepper.driver()?;
            let found = ask(
                driver.by_handle("cuGetProcAddress_v2"),
                &CString::new(name).map_err(|error| error.to_string())?,
                number(version)?,
                number(flags)?,
            );
            let (file, symbol) = native::owner(found.address as usize);
            Ok(Answer::code(Some(found.code))
                .number("status", found.status)
                .flag("untouched", found.address == POISON)
                .number("address", found.address)
                .text("file", &file)
                .text("name", &symbol))
        }
        ["lookup-briefly", name] => {
            // Without a place for the status: callers may leave it out.
            let name = CString::new(*name).map_err(|error| error.to_string())?;
            let mut address = POISON;
            let words = [name.as_ptr() as u64, &raw mut address as u64, 13000, 0, 0];
            let function = stepper.driver()?.by_handle("cuGetProcAddress_v2");
            let code = native::call(function, &words);
            Ok(Answer::code(Some(code)).number("address", address))
        }
        ["reach", list] => reach(stepper, list),
        ["compare-lookups", real, hooked] => compare(stepper, real, hooked),
        ["cudart", path] => cudart(path),
        _ => Err("no such step".into()),
    }
}

/// Which of the symbols that the file `list` names cannot be reached, and which files hold the rest.
fn reach(stepper: &mut Stepper, list: &str) -> Result<Answer, String> {
    let names = std::fs::read_to_string(list).map_err(|error| error.to_string())?;
    let (mut missing, mut files) = (BTreeSet::new(), BTreeSet::new());
    let mut count = 0;
    for name in names.split_whitespace() {
        let library = match name.starts_with("nvml") {
            true => stepper.management()?,
            false => stepper.driver()?,
        };
        count += 1;
        match library.by_handle(name) {
            0 => _ = missing.insert(name.to_owned()),
            address => _ = files.insert(native::owner(address).0),
        }
    }
    Ok(Answer::code(Some(0))
        .number("count", count)
        .list("missing", &missing)
        .list("files", &files))
}

fn ask(function: usize, name: &CString, version: u64, flags: u64) -> Found {
    let (mut address, mut status) = (POISON, POISON as u32);
    let words = [
        name.as_ptr() as u64,
        &raw mut address as u64,
        version,
        flags,
        &raw mut status as u64,
    ];
    let code = native::call(function, &words);
    Found {
        code,
        address,
        status,
    }
}

/// Makes every look-up that the tables know of both at the driver in front and at the real one
/// behind it (`real`, an absolute path). A symbol that the file `hooked` names must come back as
/// the front's own export of it, everything else exactly as the real driver gave it.
fn compare(stepper: &mut Stepper, real: &str, hooked: &str) -> Result<Answer, String> {
    let front = stepper.driver()?;
    let real = Library::open(real, 0, Via::Handle)?;
    let hooked = std::fs::read_to_string(hooked).map_err(|error| error.to_string())?;
    let hooked: BTreeSet<&str> = hooked.split_whitespace().collect();

    let mut real_names: HashMap<u64, Vec<&str>> = HashMap::new();
    let mut bases: BTreeSet<&str> = ODD_NAMES.into_iter().collect();
    let mut versions: BTreeSet<u64> = [0, 12999, 99999, 0x7fff_ffff, 0xffff_ffff].into();
    for row in ffi::symbols::DRIVER {
        let address = real.by_handle(row.name) as u64;
        if address != 0 {
            real_names.entry(address).or_default().push(row.name);
        }
        bases.insert(row.base);
        versions.insert(u64::from(row.since));
        versions.insert(u64::from(row.since).saturating_sub(1));
    }
    let forms = ["cuGetProcAddress_v2", "cuGetProcAddress"]
        .map(|form| (form, front.by_handle(form), real.by_handle(form)))
        .into_iter()
        .filter(|(_, _, real)| *real != 0);

    let (mut count, mut swapped, mut wrong) = (0u64, 0u64, Vec::new());
    let mut hooks_seen: BTreeSet<&str> = BTreeSet::new();
    for (form, front_form, real_form) in forms {
        for base in &bases {
            let name = CString::new(*base).map_err(|error| error.to_string())?;
            for version in &versions {
                for flags in 0..=4 {
                    let theirs = ask(real_form, &name, *version, flags);
                    let ours = ask(front_form, &name, *version, flags);
                    count += 1;
                    let hook = real_names
                        .get(&theirs.address)
                        .into_iter()
                        .flatten()
                        .find(|name| hooked.contains(**name));
                    let mut right = theirs;
                    if let Some(symbol) = hook {
                        right.address = front.by_handle(symbol) as u64;
                        swapped += 1;
                        hooks_seen.insert(symbol);
                    }
                    if ours != right && wrong.len() < SHOWN {
                        wrong.push(format!(
                            "{form}(\"{base}\", {version}, {flags}): {ours:x?} instead of {right:x?}"
                        ));
                    }
                }
            }
        }
    }
    Ok(Answer::code(Some(0))
        .number("count", count)
        .number("swapped", swapped)
        .number("hooks_seen", hooks_seen.len() as i128)
        .list("wrong", &wrong))
}

/// What a genuine CUDA runtime answers to its first calls.
fn cudart(path: &str) -> Result<Answer, String> {
    let runtime = Library::open(path, 0, Via::Handle)?;
    let mut value = POISON;
    let word = &raw mut value as u64;
    let mut answer = Answer::default();
    for (symbol, words) in [
        ("cudaRuntimeGetVersion", vec![word]),
        ("cudaDriverGetVersion", vec![word]),
        ("cudaGetDeviceCount", vec![word]),
        ("cudaMalloc", vec![word, 1 << 20]),
        ("cudaSetDevice", vec![0]),
        ("cudaDeviceSynchronize", vec![]),
    ] {
        value = POISON;
        let code = runtime.call(symbol, &words);
        answer = answer
            .number(symbol, code.unwrap_or(-1))
            .text(&format!("{symbol} out"), &format!("{value:x}"));
    }
    Ok(answer)
}
