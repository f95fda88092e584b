//! How every call comes in: the table rows, the check that the library is initialised, the end of
//! every panic, and what a host's pointer must pass before it is written through.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;

use ffi::driver::CUresult;

use crate::state;

/// What a policy answers.
pub(crate) type Answer<T = ()> = Result<T, CUresult>;

/// `CUDA_ERROR_INVALID_VALUE`, by far the most frequent refusal.
pub(crate) const INVALID_VALUE: CUresult = CUresult::CUDA_ERROR_INVALID_VALUE;

/// Exports one function for each row: `symbol(arguments) => policy;`.
///
/// Rows after `early;` may be called before `cuInit`; those after `aside;` go on in a process that is locked
/// for a checkpoint, and do not count as calls in progress.
macro_rules! driver {
    (aside; $( $name:ident ( $( $argument:ident : $type:ty ),* $(,)? ) => $policy:expr; )*) => {
        $( driver!(@one enter_aside $name ( $( $argument : $type ),* ) $policy); )*
    };
    (early; $( $name:ident ( $( $argument:ident : $type:ty ),* $(,)? ) => $policy:expr; )*) => {
        $( driver!(@one enter_early $name ( $( $argument : $type ),* ) $policy); )*
    };
    (@one $enter:ident $name:ident ( $( $argument:ident : $type:ty ),* ) $policy:expr) => {
        #[doc = concat!("`", stringify!($name), "` as the driver API documents it.")]
        ///
        /// # Safety
        /// Pointers are null or good for what the call does with them.
        #[allow(non_snake_case, reason = "the name is the header's")]
        #[unsafe(no_mangle)]
        pub(crate) unsafe extern "C" fn $name( $( $argument: $type ),* ) -> ffi::driver::CUresult {
            if let Some(code) = sim::faults::at(stringify!($name)) {
                return ffi::driver::CUresult(code);
            }
            $crate::guard::$enter(move || ($policy)( $( $argument ),* ))
        }
    };
    ($( $name:ident ( $( $argument:ident : $type:ty ),* $(,)? ) => $policy:expr; )*) => {
        $( driver!(@one enter $name ( $( $argument : $type ),* ) $policy); )*
    };
}

/// Runs a policy once the library is initialised, and while the process is not locked.
pub(crate) fn enter(policy: impl FnOnce() -> Answer) -> CUresult {
    let Ok(driver) = state::driver() else {
        return CUresult::CUDA_ERROR_NOT_INITIALIZED;
    };
    driver.link.begin_call();
    let code = enter_early(policy);
    driver.link.end_call();
    code
}

/// Runs a policy once the library is initialised.
pub(crate) fn enter_aside(policy: impl FnOnce() -> Answer) -> CUresult {
    if state::is_ready() {
        enter_early(policy)
    } else {
        CUresult::CUDA_ERROR_NOT_INITIALIZED
    }
}

/// Runs a policy; a panic in it ends here.
pub(crate) fn enter_early(policy: impl FnOnce() -> Answer) -> CUresult {
    // What a panicking policy leaves behind is consistent at every lock's release, or the process's
    // own: the host learns of an unknown error and decides.
    match catch_unwind(AssertUnwindSafe(policy)) {
        Ok(Ok(())) => CUresult::CUDA_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => CUresult::CUDA_ERROR_UNKNOWN,
    }
}

/// A place for one `T` that the host named: not null and aligned, no more is known.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Checks what the host named.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for null or a place that is not aligned.
    pub(crate) fn claim(place: *mut T) -> Answer<Self> {
        NonNull::new(place)
            .filter(|place| place.is_aligned())
            .map(Self)
            .ok_or(INVALID_VALUE)
    }

    /// As [`Out::claim`] for a place that may be null.
    pub(crate) fn claim_optional(place: *mut T) -> Answer<Option<Self>> {
        if place.is_null() {
            return Ok(None);
        }
        Self::claim(place).map(Some)
    }

    /// Writes `value` there.
    pub(crate) fn write(self, value: T) {
        // SAFETY: null and alignment are checked; that there is writable room for one `T` is the
        // caller's duty by the CUDA contract.
        unsafe { self.0.write(value) }
    }
}

/// Writes `value` where the host named, or refuses.
pub(crate) fn put<T>(place: *mut T, value: T) -> Answer {
    Out::claim(place)?.write(value);
    Ok(())
}

/// Reads what the host named.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for null or a place that is not aligned.
pub(crate) fn take<T: Copy>(place: *const T) -> Answer<T> {
    if place.is_null() || !place.is_aligned() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: null and alignment are checked; that a `T` lies there is the caller's duty by the CUDA
    // contract.
    Ok(unsafe { place.read() })
}

/// Reads the C string that the host named.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE` for null or for what is not UTF-8.
pub(crate) fn text<'a>(place: *const std::ffi::c_char) -> Answer<&'a str> {
    if place.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: not null; that a terminated string lies there is the caller's duty by the CUDA contract.
    let text = unsafe { std::ffi::CStr::from_ptr(place) };
    text.to_str().map_err(|_| INVALID_VALUE)
}
