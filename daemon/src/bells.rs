//! What wakes the arbiter: a bell for each tenant, one of the daemon's own, and a timer.
//!
//! A bell is an eventfd that only its tenant has, so no tenant can silence another's. All are watched
//! edge-triggered: each ring is an event, nobody has to read the counter, and one that is full has rung.

use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// All bells.
#[derive(Debug)]
pub(crate) struct Bells {
    epoll: Epoll,
    own: EventFd,
    timer: TimerFd,
}

impl Bells {
    pub(crate) fn new() -> io::Result<Self> {
        let bells = Self {
            epoll: Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?,
            own: bell()?,
            timer: TimerFd::new(
                ClockId::CLOCK_MONOTONIC,
                TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK,
            )?,
        };
        bells.watch(&bells.own)?;
        bells.watch(&bells.timer)?;
        Ok(bells)
    }

    /// A new tenant's bell; it is listened to until its last copy is closed.
    pub(crate) fn hang(&self) -> io::Result<EventFd> {
        let bell = bell()?;
        self.watch(&bell)?;
        Ok(bell)
    }

    fn watch(&self, what: &impl AsFd) -> io::Result<()> {
        let event = EpollEvent::new(EpollFlags::EPOLLIN | EpollFlags::EPOLLET, 0);
        Ok(self.epoll.add(what, event)?)
    }

    /// Wakes the arbiter.
    pub(crate) fn ring(&self) {
        // A counter that is full has been noticed.
        let _ = self.own.write(1);
    }

    /// Sleeps until a bell rings, or for `limit`; without a limit, until a bell rings.
    pub(crate) fn wait(&self, limit: Option<Duration>) -> io::Result<()> {
        match limit {
            // A timer of zero would be none.
            Some(limit) => self.timer.set(
                Expiration::OneShot(TimeSpec::from_duration(limit.max(Duration::from_nanos(1)))),
                TimerSetTimeFlags::empty(),
            )?,
            None => self.timer.unset()?,
        }
        let mut events = [EpollEvent::empty(); 64];
        match self.epoll.wait(&mut events, EpollTimeout::NONE) {
            Ok(_) | Err(nix::Error::EINTR) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }
}

fn bell() -> io::Result<EventFd> {
    let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
    Ok(EventFd::from_flags(flags)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn every_ring_is_heard_though_nobody_reads_the_counter() {
        let bells = Bells::new().expect("bells");
        let bell = bells.hang().expect("a bell");
        for _ in 0..3 {
            bell.write(1).expect("rung");
            // A ring that was lost would make this wait for ever; the timer makes that a failure.
            let begin = Instant::now();
            bells.wait(Some(Duration::from_secs(60))).expect("woken");
            assert!(begin.elapsed() < Duration::from_secs(30));
        }
        bells.ring();
        bells.wait(None).expect("woken");
    }

    #[test]
    fn a_time_limit_ends_a_wait() {
        let bells = Bells::new().expect("bells");
        bells.wait(Some(Duration::from_micros(100))).expect("over");
        bells.wait(Some(Duration::ZERO)).expect("over");
    }
}
