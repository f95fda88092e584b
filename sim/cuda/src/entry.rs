//! The way in: initialisation, versions, error texts, and the look-up of everything else.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use ffi::driver::{
    CUdriverProcAddressQueryResult, CUdriverProcAddressQueryResult_enum as Found, CUoutput_mode,
    CUresult, CUuuid, cuuint64_t,
};
use ffi::symbols::{DRIVER, Symbol};
use sim::profile::DriverVersion;

use crate::guard::{Answer, INVALID_VALUE, Out, put, text};
use crate::state;

/// A function, whatever its arguments.
type Address = unsafe extern "C" fn();

/// Flag of the look-up: answer with the variants for per-thread default streams.
const PER_THREAD: cuuint64_t = 2;
/// Every flag of the look-up that there is.
const KNOWN_FLAGS: cuuint64_t = 3;

mod generated {
    #![allow(
        clashing_extern_declarations,
        reason = "declared for their addresses; nobody calls them through these types"
    )]
    use super::{Address, CStr};

    include!(concat!(env!("OUT_DIR"), "/addresses.rs"));
    include!(concat!(env!("OUT_DIR"), "/errors.rs"));

    /// The function of row `index` of the symbol table.
    pub(super) fn address(index: usize) -> Option<Address> {
        ADDRESSES.get(index).copied().flatten()
    }

    /// Name and text of an error code.
    pub(super) fn error(code: u32) -> Option<(&'static CStr, &'static CStr)> {
        let at = ERRORS.binary_search_by_key(&code, |(known, _, _)| *known);
        let (_, name, text) = ERRORS.get(at.ok()?)?;
        Some((name, text))
    }
}

fn initialise(flags: c_uint) -> Answer {
    if flags != 0 {
        return Err(INVALID_VALUE);
    }
    state::initialise()
}

/// The version that is stood in for; known without a device as well.
fn version() -> u32 {
    state::driver().map_or_else(|_| DriverVersion::default().cuda, |driver| driver.version)
}

fn driver_version(out: *mut c_int) -> Answer {
    put(out, version_before_init() as c_int)
}

/// The version, asked of the `gpu` process where the library is not initialised yet.
fn version_before_init() -> u32 {
    static ASKED: OnceLock<u32> = OnceLock::new();
    if let Ok(driver) = state::driver() {
        return driver.version;
    }
    *ASKED.get_or_init(|| {
        sim::client::Gpu::connect().map_or_else(|_| version(), |gpu| gpu.driver_version().cuda)
    })
}

/// What a look-up came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum LookUp {
    Symbol(usize),
    Unknown,
    TooOld,
}

/// Rows of the symbol table by base name, in the order of their versions.
fn families() -> &'static HashMap<&'static str, Vec<usize>> {
    static FAMILIES: OnceLock<HashMap<&'static str, Vec<usize>>> = OnceLock::new();
    FAMILIES.get_or_init(|| {
        let mut families: HashMap<&'static str, Vec<usize>> = HashMap::new();
        for (index, symbol) in DRIVER.iter().enumerate() {
            if symbol.since > 0 {
                families.entry(symbol.base).or_default().push(index);
            }
        }
        for rows in families.values_mut() {
            rows.sort_by_key(|row| DRIVER[*row].since);
        }
        families
    })
}

/// The newest variant that `asked` may have and the driver has; source: the real drivers' answers to
/// every name at every version.
fn look_up(name: &str, asked: u32, flags: cuuint64_t, driver: u32) -> LookUp {
    let Some(rows) = families().get(name) else {
        return LookUp::Unknown;
    };
    let known: Vec<(usize, &Symbol)> = rows
        .iter()
        .map(|row| (*row, &DRIVER[*row]))
        .filter(|(_, symbol)| symbol.since <= driver && !sim::faults::is_absent(symbol.name))
        .collect();
    if known.is_empty() {
        return LookUp::Unknown;
    }
    let wants_own = flags & PER_THREAD != 0 && known.iter().any(|(_, symbol)| symbol.per_thread);
    let newest = known
        .iter()
        .rfind(|(_, symbol)| symbol.per_thread == wants_own && symbol.since <= asked);
    newest.map_or(LookUp::TooOld, |(row, _)| LookUp::Symbol(*row))
}

/// The second interface: what is not found is no error but a null pointer and a reason.
fn proc_address(
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
    reason: *mut CUdriverProcAddressQueryResult,
) -> Answer {
    let name = text(symbol)?;
    let out = Out::claim(out)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let reason = Out::claim_optional(reason)?;
    let found = look_up(name, version as u32, flags, version_before_init());
    let (address, why) = match found {
        LookUp::Symbol(row) => (
            generated::address(row)
                .map_or(std::ptr::null_mut(), |function| function as *mut c_void),
            Found::CU_GET_PROC_ADDRESS_SUCCESS,
        ),
        LookUp::Unknown => (
            std::ptr::null_mut(),
            Found::CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
        ),
        LookUp::TooOld => (
            std::ptr::null_mut(),
            Found::CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT,
        ),
    };
    out.write(address);
    if let Some(reason) = reason {
        reason.write(why);
    }
    Ok(())
}

/// The first interface: what is not found is an error, and leaves the output as it was.
fn proc_address_v1(
    symbol: *const c_char,
    out: *mut *mut c_void,
    version: c_int,
    flags: cuuint64_t,
) -> Answer {
    let name = text(symbol)?;
    let out = Out::claim(out)?;
    if flags & !KNOWN_FLAGS != 0 {
        return Err(INVALID_VALUE);
    }
    let found = look_up(name, version as u32, flags, version_before_init());
    let address = match found {
        LookUp::Symbol(row) => generated::address(row),
        LookUp::Unknown | LookUp::TooOld => None,
    };
    let address = address.ok_or(CUresult::CUDA_ERROR_NOT_FOUND)?;
    out.write(address as *mut c_void);
    Ok(())
}

/// There are no private tables here, whoever asks.
fn export_table(out: *mut *const c_void, _id: *const CUuuid) -> Answer {
    if out.is_null() {
        return Err(INVALID_VALUE);
    }
    Err(CUresult::CUDA_ERROR_NOT_FOUND)
}

fn error_name(code: CUresult, out: *mut *const c_char) -> Answer {
    put_error(out, generated::error(code.0).map(|(name, _)| name))
}

fn error_text(code: CUresult, out: *mut *const c_char) -> Answer {
    put_error(out, generated::error(code.0).map(|(_, text)| text))
}

fn put_error(out: *mut *const c_char, found: Option<&'static CStr>) -> Answer {
    let out = Out::claim(out)?;
    match found {
        Some(found) => {
            out.write(found.as_ptr());
            Ok(())
        }
        None => {
            out.write(std::ptr::null());
            Err(INVALID_VALUE)
        }
    }
}

/// Profiling is not there, so it can be started and stopped at will.
fn profiler() -> Answer {
    state::current().map(drop)
}

fn profiler_initialise(_: *const c_char, _: *const c_char, _: CUoutput_mode) -> Answer {
    Err(CUresult::CUDA_ERROR_NOT_SUPPORTED)
}

driver! {
    early;
    cuInit(flags: c_uint) => initialise;
    cuDriverGetVersion(out: *mut c_int) => driver_version;
    cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t) => proc_address_v1;
    cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, cuda_version: c_int, flags: cuuint64_t, symbol_status: *mut CUdriverProcAddressQueryResult) => proc_address;
    cuGetExportTable(pp_export_table: *mut *const c_void, p_export_table_id: *const CUuuid) => export_table;
    cuGetErrorName(error: CUresult, p_str: *mut *const c_char) => error_name;
    cuGetErrorString(error: CUresult, p_str: *mut *const c_char) => error_text;
}

driver! {
    cuProfilerStart() => profiler;
    cuProfilerStop() => profiler;
    cuProfilerInitialize(config_file: *const c_char, output_file: *const c_char, output_mode: CUoutput_mode) => profiler_initialise;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(name: &str, asked: u32, flags: u64, driver: u32) -> Result<&'static str, LookUp> {
        match look_up(name, asked, flags, driver) {
            LookUp::Symbol(row) => Ok(DRIVER[row].name),
            other => Err(other),
        }
    }

    #[test]
    fn the_newest_variant_that_the_caller_can_know_is_found() {
        assert_eq!(found("cuMemAlloc", 2000, 0, 13000), Ok("cuMemAlloc"));
        assert_eq!(found("cuMemAlloc", 12999, 0, 13000), Ok("cuMemAlloc_v2"));
        assert_eq!(found("cuMemAlloc", u32::MAX, 0, 13000), Ok("cuMemAlloc_v2"));
        assert_eq!(found("cuMemAlloc", 1, 0, 13000), Err(LookUp::TooOld));
        assert_eq!(
            found("cuGetProcAddress", 11030, 0, 13000),
            Ok("cuGetProcAddress")
        );
        assert_eq!(
            found("cuGetProcAddress", 12000, 0, 13000),
            Ok("cuGetProcAddress_v2")
        );
    }

    #[test]
    fn per_thread_variants_are_found_only_where_asked_and_where_there_are_any() {
        let name = "cuMemcpyHtoD";
        assert_eq!(found(name, 12000, 2, 13000), Ok("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(found(name, 12000, 3, 13000), Ok("cuMemcpyHtoD_v2_ptds"));
        assert_eq!(found(name, 12000, 1, 13000), Ok("cuMemcpyHtoD_v2"));
        assert_eq!(found(name, 4000, 2, 13000), Err(LookUp::TooOld));
        assert_eq!(found("cuMemAlloc", 12000, 2, 13000), Ok("cuMemAlloc_v2"));
    }

    #[test]
    fn abi_names_empty_names_and_what_a_driver_does_not_have_yet_are_unknown() {
        for name in ["", "cuMemAlloc_v2", "cuLaunchKernel_ptsz", "cudbgApiInit"] {
            assert_eq!(found(name, 13000, 0, 13000), Err(LookUp::Unknown), "{name}");
        }
        assert_eq!(
            found("cuGreenCtxCreate", 13000, 0, 12020),
            Err(LookUp::Unknown)
        );
        assert!(found("cuGreenCtxCreate", 13000, 0, 12040).is_ok());
    }

    #[test]
    fn every_error_has_its_name_and_a_text() {
        for (code, name) in ffi::symbols::ERRORS {
            let (known, text) = generated::error(*code).unwrap();
            assert_eq!(known.to_str(), Ok(*name));
            assert!(!text.is_empty());
        }
        assert_eq!(generated::error(123_456), None);
    }
}
