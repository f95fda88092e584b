//! Places that the host names: claims until they are checked.

use std::ptr::NonNull;

/// A place for one `T` that the host named: not null and aligned; no more is known.
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// Checks both; `None` where the host named no such place.
    pub(crate) fn claim(place: *mut T) -> Option<Self> {
        NonNull::new(place)
            .filter(|place| place.is_aligned())
            .map(Self)
    }

    /// Writes there.
    pub(crate) fn write(self, value: T) {
        // SAFETY: null and alignment are checked; that there is writable room for one `T` is the
        // caller's duty by the CUDA contract.
        unsafe { self.0.write(value) }
    }

    /// Reads what is there.
    pub(crate) fn read(&self) -> T
    where
        T: Copy,
    {
        // SAFETY: as in `write`; that the place is initialised is the duty of whoever wrote it, the
        // driver after a call that succeeded, or the host for what it passes in.
        unsafe { self.0.read() }
    }
}
