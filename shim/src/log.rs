//! What the shim says on standard error: one line, one `write`, only at the level that `SLUICE_LOG` sets.
//!
//! Levels: `off`, `error`, `warn` (the default), `info`.

use std::env;
use std::fmt::{self, Write as _};
use std::sync::atomic::{AtomicU8, Ordering};

const UNREAD: u8 = 0;
const OFF: u8 = 1;
const ERROR: u8 = 2;
const WARN: u8 = 3;
const INFO: u8 = 4;

static LEVEL: AtomicU8 = AtomicU8::new(UNREAD);

fn level() -> u8 {
    // Relaxed: whoever reads it twice at first reads the same variable twice.
    let level = LEVEL.load(Ordering::Relaxed);
    if level != UNREAD {
        return level;
    }
    let level = match env::var(ffi::wire::ENV_LOG).as_deref() {
        Ok("off") => OFF,
        Ok("error") => ERROR,
        Ok("info") => INFO,
        _ => WARN,
    };
    LEVEL.store(level, Ordering::Relaxed);
    level
}

/// Something that the program's owner has to know: the program will not run as asked.
pub(crate) fn warn(text: fmt::Arguments<'_>) {
    if level() >= WARN {
        line(text);
    }
}

/// How things came to be, for whoever looks for a reason.
pub(crate) fn info(text: fmt::Arguments<'_>) {
    if level() >= INFO {
        line(text);
    }
}

/// A line on the stack; what does not fit is cut.
struct Line {
    bytes: [u8; 1024],
    used: usize,
}

impl fmt::Write for Line {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            // One byte stays for the line feed.
            if self.used + 1 < self.bytes.len()
                && let Some(place) = self.bytes.get_mut(self.used)
            {
                *place = byte;
                self.used += 1;
            }
        }
        Ok(())
    }
}

fn line(text: fmt::Arguments<'_>) {
    let mut line = Line {
        bytes: [0; 1024],
        used: 0,
    };
    // `Line` never fails.
    let _ = write!(line, "sluice[{}]: {text}", std::process::id());
    if let Some(place) = line.bytes.get_mut(line.used) {
        *place = b'\n';
    }
    // SAFETY: the buffer is ours and as long as said. Whether anybody reads it is not our business.
    unsafe { libc::write(2, line.bytes.as_ptr().cast(), line.used + 1) };
}
