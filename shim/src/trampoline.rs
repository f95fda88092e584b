//! The exports of every symbol that has no hook: a jump to the real function, found on first use.
//!
//! A trampoline loads its symbol's slot in the table of [`crate::real`] and jumps there with every
//! register as the caller left it, so it needs to know neither arguments nor result. An empty slot
//! leads through `sluice_resolve`, which fills it.

use crate::real::{self, Library};

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
pub(crate) use aarch64::jump_unless_gated;
#[cfg(target_arch = "aarch64")]
use aarch64::{jump_through_resolver, jump_to_slot};
#[cfg(target_arch = "x86_64")]
pub(crate) use x86_64::jump_unless_gated;
#[cfg(target_arch = "x86_64")]
use x86_64::{jump_through_resolver, jump_to_slot};

/// Exports one function for each row: library, index in its symbol table, name.
macro_rules! trampolines {
    ($($library:ident $index:literal $name:ident;)*) => {
        $(
            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                jump_to_slot!(Library::$library, $index, sluice_resolve)
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/trampolines.rs"));

/// Saves the argument registers, asks [`resolve`] for the function, and jumps there.
#[unsafe(naked)]
unsafe extern "C" fn sluice_resolve() {
    jump_through_resolver!(resolve)
}

/// The address that a trampoline jumps to: the real function, or what answers in its place.
///
/// `ordinal` counts through both tables, the driver's first. Called from assembly.
extern "C" fn resolve(ordinal: usize) -> *const () {
    // A panic here would unwind into assembly: nothing below can raise one, and this makes sure.
    std::panic::catch_unwind(|| real::function(ordinal)).unwrap_or(real::unknown as *const ())
}
