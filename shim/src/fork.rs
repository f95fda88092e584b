//! Children: a forked child starts without its parent's place.

use crate::session;
use std::sync::Once;

/// Has the child's side of every later `fork` forget the parent's place.
pub(crate) fn watch() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler is a plain function of this library, which is never unloaded. Where
        // there is no memory for it, a child's calls go to the driver, which refuses them.
        unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Atomics and `close` only.
unsafe extern "C" fn in_child() {
    session::forget_in_child();
}
