//! Opening a library the way a CUDA program does, and calling what is in it.
//!
//! Every driver and NVML function takes integers and pointers, so one way of calling serves them
//! all: words in registers, further words on the stack. Nothing here links to CUDA.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Mutex;

/// How many words every call passes; functions that take fewer ignore the rest.
const WORDS: usize = 12;

/// A function that takes up to [`WORDS`] integers or pointers.
type Native =
    unsafe extern "C" fn(u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64, u64) -> i32;

/// How functions of the driver are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    /// `dlsym` on the library's handle.
    Handle,
    /// `dlsym(RTLD_DEFAULT)`.
    Default,
    /// `cuGetProcAddress_v2`, itself found by `dlsym` on the handle.
    ProcAddress,
}

/// An opened library.
#[derive(Debug)]
pub(crate) struct Library {
    handle: usize,
    via: Via,
    found: Mutex<HashMap<String, usize>>,
}

impl Library {
    /// Opens `name` as `dlopen(name, RTLD_NOW | more_flags)` does; the loader's sentence if it fails.
    pub(crate) fn open(name: &str, more_flags: i32, via: Via) -> Result<Self, String> {
        let c_name = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a NUL-terminated name; what the library's constructors do is the library's affair.
        let handle = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | more_flags) };
        if handle.is_null() {
            return Err(loader_error());
        }
        Ok(Self {
            handle: handle as usize,
            via,
            found: Mutex::default(),
        })
    }

    /// Address of `symbol` by `dlsym` on the handle, 0 if there is none.
    pub(crate) fn by_handle(&self, symbol: &str) -> usize {
        address_in(self.handle as *mut c_void, symbol)
    }

    /// Address of `symbol` by the way that was chosen at the opening, 0 if there is none.
    pub(crate) fn address(&self, symbol: &str) -> usize {
        if let Ok(found) = self.found.lock()
            && let Some(address) = found.get(symbol)
        {
            return *address;
        }
        let address = match self.via {
            Via::Handle => self.by_handle(symbol),
            Via::Default => address_in(libc::RTLD_DEFAULT, symbol),
            Via::ProcAddress => self.by_proc_address(symbol),
        };
        if let Ok(mut found) = self.found.lock() {
            found.insert(symbol.to_owned(), address);
        }
        address
    }

    /// Calls `symbol`; `None` if the library lacks it.
    pub(crate) fn call(&self, symbol: &str, words: &[u64]) -> Option<i32> {
        let address = self.address(symbol);
        (address != 0).then(|| call(address, words))
    }

    fn by_proc_address(&self, symbol: &str) -> usize {
        let Some(row) = ffi::symbols::DRIVER.iter().find(|row| row.name == symbol) else {
            return 0;
        };
        let Ok(base) = CString::new(row.base) else {
            return 0;
        };
        let mut address = 0u64;
        let mut status = 0u32;
        let flags = if row.per_thread { 2 } else { 0 };
        let words = [
            base.as_ptr() as u64,
            &raw mut address as u64,
            u64::from(row.since),
            flags,
            &raw mut status as u64,
        ];
        match call(self.by_handle("cuGetProcAddress_v2"), &words) {
            0 => address as usize,
            _ => 0,
        }
    }
}

/// Calls the function at `address` with `words`, and zeros after them.
pub(crate) fn call(address: usize, words: &[u64]) -> i32 {
    let mut all = [0u64; WORDS];
    all[..words.len()].copy_from_slice(words);
    // SAFETY: the address came from the loader or from the driver under a name whose arguments are
    // all of integer class, which this signature passes in the same places.
    let function = unsafe { std::mem::transmute::<usize, Native>(address) };
    let [a, b, c, d, e, f, g, h, i, j, k, l] = all;
    // SAFETY: the steps pass what the named function's documentation asks for; where one passes
    // something wrong on purpose, the driver documents an error for it.
    unsafe { function(a, b, c, d, e, f, g, h, i, j, k, l) }
}

/// The file and the symbol that `address` belongs to, as the loader knows them.
pub(crate) fn owner(address: usize) -> (String, String) {
    // SAFETY: plain data, filled by the call below.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked about; `info` is writable.
    if unsafe { libc::dladdr(address as *const c_void, &mut info) } == 0 {
        return (String::new(), String::new());
    }
    (text(info.dli_fname), text(info.dli_sname))
}

/// The C string at `pointer` as text, empty for null.
pub(crate) fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null; loader, driver and NVML hand out NUL-terminated strings.
    unsafe { CStr::from_ptr(pointer) }
        .to_string_lossy()
        .into_owned()
}

fn address_in(handle: *mut c_void, symbol: &str) -> usize {
    let Ok(symbol) = CString::new(symbol) else {
        return 0;
    };
    // SAFETY: a handle that `dlopen` gave or a pseudo handle, and a NUL-terminated name.
    unsafe { libc::dlsym(handle, symbol.as_ptr()) as usize }
}

fn loader_error() -> String {
    // SAFETY: takes no argument; the string lives until the thread's next loader call.
    text(unsafe { libc::dlerror() })
}
