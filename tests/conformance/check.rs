//! A family's checks: calling the driver as its header spells it, and a record of what it answered.
//!
//! Each check becomes a line of the record. Two runs of a family are the same if their records are,
//! so nothing goes in that may differ: no addresses, no times.

use ffi::driver::CUresult;
use std::ffi::c_void;
use std::fmt::Debug;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// What every line of the record begins with, so that it is told from the test harness's own words.
pub(crate) const CHECK: &str = "check: ";
/// What the last line of a complete record begins with.
pub(crate) const DONE: &str = "checks made: ";

/// The driver that is looked at, and the record.
pub(crate) struct Checks {
    driver: libloading::Library,
    made: AtomicUsize,
    failed: AtomicUsize,
}

impl Checks {
    /// Opens the driver by this name, as any program does.
    pub(crate) fn open(driver: &str) -> Result<Self, libloading::Error> {
        // SAFETY: a driver's constructors are the driver's affair; a program that uses it runs them too.
        let driver = unsafe { libloading::Library::new(driver) }?;
        Ok(Self {
            driver,
            made: AtomicUsize::new(0),
            failed: AtomicUsize::new(0),
        })
    }

    /// The function of this name, of the type of its prototype, which is all that `_prototype` is for.
    ///
    /// # Panics
    /// When the driver lacks it.
    pub(crate) fn find<F: Copy>(&self, name: &str, _prototype: impl FnOnce() -> F) -> F {
        assert_eq!(size_of::<F>(), size_of::<*const c_void>());
        // SAFETY: nothing is called yet; only the address is taken.
        let found = unsafe { self.driver.get::<*const c_void>(name) };
        let address = *found.unwrap_or_else(|error| panic!("{name}: {error}"));
        // SAFETY: the address of the function whose prototype has the type `F`, a function pointer.
        unsafe { std::mem::transmute_copy(&address) }
    }

    /// A value must be what the documents say that it is.
    pub(crate) fn is<T: PartialEq + Debug>(&self, what: &str, seen: T, documented: T) {
        self.made.fetch_add(1, Relaxed);
        println!("{CHECK}{what}: {seen:?}");
        if seen != documented {
            self.failed.fetch_add(1, Relaxed);
            println!("{CHECK}WRONG: {what} is {seen:?} and should be {documented:?}");
        }
    }

    /// A statement must hold.
    pub(crate) fn holds(&self, what: &str, holds: bool) {
        self.is(what, holds, true);
    }

    /// The record's last line; whether all was right.
    pub(crate) fn finish(self) -> bool {
        println!("{DONE}{}", self.made.into_inner());
        self.failed.into_inner() == 0
    }
}

/// The name of a result, or its number.
pub(crate) fn named(code: CUresult) -> String {
    let row = ffi::symbols::ERRORS.iter().find(|row| row.0 == code.0);
    row.map_or_else(|| code.0.to_string(), |row| row.1.to_owned())
}

/// Stands for the type of an argument.
macro_rules! type_of {
    ($argument:expr) => {
        _
    };
}

/// Calls a function of the driver by its symbol; the compiler holds the call to the header's prototype.
macro_rules! call {
    ($t:expr, $name:ident($($argument:expr),* $(,)?)) => {{
        let function = $t.find(stringify!($name), || {
            let prototype: unsafe extern "C" fn($(type_of!($argument)),*) -> _ = ffi::driver::$name;
            prototype
        });
        // SAFETY: pointers are to locals of the check, or wrong in a way that has a documented answer.
        unsafe { function($($argument),*) }
    }};
}

/// The call must answer this code; its outputs are the caller's to look at.
macro_rules! answers {
    ($t:expr, $code:ident, $name:ident($($argument:expr),* $(,)?)) => {{
        let code = call!($t, $name($($argument),*));
        let place = format!("{}:{} {}", file!().rsplit('/').next().unwrap_or(""), line!(), stringify!($name));
        let documented = ffi::driver::CUresult::$code;
        $t.is(&place, $crate::check::named(code), $crate::check::named(documented));
    }};
}

/// The call must succeed.
macro_rules! ok {
    ($t:expr, $name:ident($($argument:expr),* $(,)?)) => {
        answers!($t, CUDA_SUCCESS, $name($($argument),*))
    };
}

/// The call must answer `CUDA_ERROR_` and this, and leave the place that it names as it was.
macro_rules! untouched {
    ($t:expr, $code:ident, $place:ident, $name:ident($($argument:expr),* $(,)?)) => {{
        let before = $place;
        answers!($t, $code, $name($($argument),*));
        $t.is(concat!(stringify!($name), " leaves its output"), $place == before, true);
    }};
}
