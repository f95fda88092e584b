//! The thread that watches the connection to the daemon, and finds the next one.
//!
//! It starts with the seat, sleeps in `poll` and wakes at the daemon's end only. It takes no signals, so
//! the program's handlers run where they would without us. Where the system allows no thread, the
//! process stays capped by its pages, and a later daemon does not take it over.

use crate::attach::{self, Attached, Failure};
use crate::{log, session};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

/// How often the next daemon is looked for at first, so that a restart goes unnoticed.
const EAGER: Duration = Duration::from_millis(10);
/// How often it is looked for later.
const PATIENT: Duration = Duration::from_millis(500);
/// When "later" begins.
const EAGER_FOR: Duration = Duration::from_secs(5);

/// Starts the thread.
pub(crate) fn start(attached: Attached) {
    let started = session::without_signals(|| {
        thread::Builder::new()
            .name("sluice-link".into())
            .stack_size(256 << 10)
            .spawn(move || watch(attached))
    });
    if let Err(error) = started {
        log::warn(format_args!(
            "cannot start the thread that watches the daemon: {error}; the cap holds, but a later daemon will not know this process"
        ));
    }
}

fn watch(mut attached: Attached) {
    loop {
        wait_for_the_end(&attached);
        log::info(format_args!("the daemon has gone; caps stay as they are"));
        attached = find_the_next(attached);
        session::follow(&attached);
        log::info(format_args!("a daemon has taken this process over"));
    }
}

fn wait_for_the_end(attached: &Attached) {
    loop {
        let mut places = [PollFd::new(attached.socket.as_fd(), PollFlags::POLLIN)];
        match poll(&mut places, PollTimeout::NONE) {
            // Nothing is ever sent here, so "readable" is the end.
            Ok(_) => return,
            Err(nix::Error::EINTR) => {}
            Err(_) => return,
        }
    }
}

fn find_the_next(former: Attached) -> Attached {
    let since = Instant::now();
    let mut has_complained = false;
    loop {
        match attach::rejoin(&former) {
            Ok(attached) => return attached,
            Err(Failure::NoDaemon(_)) => {}
            Err(failure) if !has_complained => {
                has_complained = true;
                log::warn(format_args!("{failure}; the cap stays as it is"));
            }
            Err(_) => {}
        }
        let is_eager = since.elapsed() < EAGER_FOR && !has_complained;
        thread::sleep(if is_eager { EAGER } else { PATIENT });
    }
}
