//! The C boundary: what comes in is a claim until it is checked, and no panic goes out.
//!
//! Policies return an [`Answer`]; [`answer`] turns it into the code that the caller sees.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use ffi::nvml::nvmlReturn_t;

/// What a policy says: nothing more to tell, or the code that it refuses with.
pub(crate) type Answer = Result<(), nvmlReturn_t>;

/// Runs one call. A panic is a defect of ours and answers `NVML_ERROR_UNKNOWN`.
pub(crate) fn answer(policy: impl FnOnce() -> Answer) -> nvmlReturn_t {
    match catch_unwind(AssertUnwindSafe(policy)) {
        Ok(Ok(())) => nvmlReturn_t::NVML_SUCCESS,
        Ok(Err(code)) => code,
        Err(_) => nvmlReturn_t::NVML_ERROR_UNKNOWN,
    }
}

/// Where the caller wants a `T`, or several of them: as it came in, nothing is known about it yet.
#[repr(transparent)]
pub(crate) struct Out<T>(*mut T);

impl<T: Copy> Out<T> {
    /// A pointer that the caller put into a structure of its own.
    pub(crate) fn named(pointer: *mut T) -> Out<T> {
        Out(pointer)
    }

    /// Whether the caller named no place at all, which some calls take for a question of its own.
    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// Refuses null and misaligned pointers.
    ///
    /// A call with several outputs claims them all before it writes the first: a refused call
    /// leaves every output as it was.
    pub(crate) fn claim(self) -> Result<Place<T>, nvmlReturn_t> {
        if self.0.is_null() || !self.0.is_aligned() {
            return Err(nvmlReturn_t::NVML_ERROR_INVALID_ARGUMENT);
        }
        Ok(Place(self.0))
    }

    /// Claims the place and writes `value`.
    pub(crate) fn write(self, value: T) -> Answer {
        self.claim()?.write(value);
        Ok(())
    }
}

/// A place for at least one `T`: not null and aligned; that it can be read and written is the
/// caller's duty by the C contract.
pub(crate) struct Place<T>(*mut T);

impl<T: Copy> Place<T> {
    /// Stores `value`.
    pub(crate) fn write(&self, value: T) {
        // SAFETY: not null and aligned (`Out::claim`); room for one `T` is the caller's duty.
        unsafe { self.0.write(value) }
    }

    /// Loads what the caller put there.
    pub(crate) fn read(&self) -> T {
        // SAFETY: not null and aligned (`Out::claim`); a valid `T` there is the caller's duty. Only
        // plain C structures are read: every bit pattern is a value of them.
        unsafe { self.0.read() }
    }

    /// The place `at` places further on; that there are so many, the caller has said in a count.
    pub(crate) fn nth(&self, at: usize) -> Place<T> {
        Place(self.0.wrapping_add(at))
    }

    /// Stores `values` one after the other; that there is room for them all, the caller has said in
    /// a count of its own.
    pub(crate) fn write_all(&self, values: &[T]) {
        // SAFETY: not null and aligned (`Out::claim`); room for `values.len()` is the caller's duty,
        // and every policy compares the two numbers first. Ours and the caller's never overlap.
        unsafe {
            self.0
                .copy_from_nonoverlapping(values.as_ptr(), values.len())
        }
    }
}

/// What the caller hands in to be read: an [`Out`] that is never written.
#[repr(transparent)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    /// Refuses null and misaligned pointers, else loads the value.
    pub(crate) fn read(self) -> Result<T, nvmlReturn_t> {
        Out(self.0.cast_mut()).claim().map(|place| place.read())
    }
}

impl<T> In<T> {
    /// A pointer that the caller put into a structure of its own.
    pub(crate) fn named(pointer: *const T) -> In<T> {
        In(pointer)
    }
}

impl In<c_char> {
    /// The path up to its end.
    pub(crate) fn path(self) -> Result<PathBuf, nvmlReturn_t> {
        Out(self.0.cast_mut()).claim()?;
        // SAFETY: not null; the caller promises a text with an end.
        let path = unsafe { CStr::from_ptr(self.0) };
        Ok(PathBuf::from(OsStr::from_bytes(path.to_bytes())))
    }

    /// The text up to its end, or the first `LONGEST` characters of it.
    ///
    /// Characters outside ASCII become question marks: identifiers have none.
    pub(crate) fn text(self) -> Result<String, nvmlReturn_t> {
        /// Longer than any UUID, serial number or bus address.
        const LONGEST: usize = 128;
        Out(self.0.cast_mut()).claim()?;
        let mut text = String::new();
        for at in 0..LONGEST {
            // SAFETY: the caller promises a text with an end, and this loop stops there.
            let character = unsafe { self.0.wrapping_add(at).read() };
            match u8::try_from(character) {
                Ok(0) => break,
                Ok(byte) if byte.is_ascii() => text.push(char::from(byte)),
                _ => text.push('?'),
            }
        }
        Ok(text)
    }
}

/// Writes `text` and its closing zero into a buffer of `length` characters.
///
/// Too short a buffer is refused with `NVML_ERROR_INSUFFICIENT_SIZE` and stays as it was.
pub(crate) fn write_text(buffer: Out<c_char>, length: u32, text: &str) -> Answer {
    let buffer = buffer.claim()?;
    if (length as usize) <= text.len() {
        return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
    }
    let mut characters: Vec<c_char> = text.bytes().map(|byte| byte as c_char).collect();
    characters.push(0);
    buffer.write_all(&characters);
    Ok(())
}

/// A text in a field of fixed size: cut to fit, closed and filled with zeros.
pub(crate) fn text_field<const SIZE: usize>(text: &str) -> [c_char; SIZE] {
    let mut field = [0; SIZE];
    for (place, byte) in field
        .iter_mut()
        .zip(text.bytes())
        .take(SIZE.saturating_sub(1))
    {
        *place = byte as c_char;
    }
    field
}

/// Hands out a list by the rules that all lists of this library share.
///
/// `count` says how many places there are and then how many were filled. Too few: the number that
/// is needed goes into `count`, the places stay as they were, and the answer is
/// `NVML_ERROR_INSUFFICIENT_SIZE`. With nothing to hand out the places may be null.
pub(crate) fn write_list<T: Copy>(count: Out<u32>, places: Out<T>, values: &[T]) -> Answer {
    let count = count.claim()?;
    let needed = u32::try_from(values.len()).unwrap_or(u32::MAX);
    if count.read() < needed {
        count.write(needed);
        return Err(nvmlReturn_t::NVML_ERROR_INSUFFICIENT_SIZE);
    }
    if needed > 0 {
        places.claim()?.write_all(values);
    }
    count.write(needed);
    Ok(())
}

/// The word that opens a versioned structure: its size, and above it its version.
pub(crate) const fn version_word<T>(version: u32) -> u32 {
    size_of::<T>() as u32 | (version << 24)
}

/// Refuses a structure whose opening word is not the one that this library knows.
pub(crate) fn check_version(said: u32, known: u32) -> Answer {
    match said == known {
        true => Ok(()),
        false => Err(nvmlReturn_t::NVML_ERROR_ARGUMENT_VERSION_MISMATCH),
    }
}
