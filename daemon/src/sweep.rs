//! A process that was refused memory asks for a look at the dead.
//!
//! The dead are given back on the spot. The *dying* (killed a moment ago, and not yet taken apart by the
//! kernel) are waited for, by their pidfd's event and not by standing still, and not for long: what they
//! hold is about to be free, so a refusal would be wrong by a few milliseconds.

use crate::attach::Server;
use crate::messages::{reply, send};
use crate::process;
use ffi::wire::attach_status;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// How long an answer is kept back for the dying. Less than the 200 ms that a shim waits for it.
const PATIENCE: Duration = Duration::from_millis(150);

/// Processes of a tenant that are looked at for signs of dying: each costs two files of `/proc`, some
/// tens of microseconds. A tenant with more gets its answer at once.
const MOST_LOOKED_AT: usize = 64;

/// Answers that are kept back at one time; beyond it they go out at once.
const MOST_KEPT_BACK: usize = 1024;

/// An answer that is kept back.
#[derive(Debug)]
pub(crate) struct KeptBack {
    socket: OwnedFd,
    tenant: u64,
    deadline: Instant,
}

impl Server {
    /// Gives back what dead processes of a tenant held, without waiting for their events.
    pub(crate) fn sweep(&mut self, tenant: u64) {
        for number in self.clients.dead(tenant) {
            self.gone(number);
        }
    }

    /// Sweeps, and answers when nobody of the tenant is dying any more.
    pub(crate) fn sweep_and_answer(&mut self, tenant: u64, socket: &OwnedFd) {
        self.sweep(tenant);
        if self.kept_back.len() < MOST_KEPT_BACK
            && self.is_anybody_dying(tenant)
            && let Ok(copy) = socket.try_clone()
        {
            // It may be watched from before it said anything, and nothing it does matters any more.
            let _ = self.shared.epoll().delete(socket);
            self.kept_back.push(KeptBack {
                socket: copy,
                tenant,
                deadline: Instant::now() + PATIENCE,
            });
            return;
        }
        answer(socket);
    }

    /// Somebody of this tenant has gone: answers those who waited for it, unless others are dying.
    pub(crate) fn answer_kept_back(&mut self, tenant: u64) {
        let is_waited_for = self.kept_back.iter().any(|kept| kept.tenant == tenant);
        if is_waited_for && !self.is_anybody_dying(tenant) {
            let answered = self.kept_back.extract_if(.., |kept| kept.tenant == tenant);
            answered.for_each(|kept| answer(&kept.socket));
        }
    }

    /// Answers those whose patience is at its end; says when the next one's is.
    pub(crate) fn answer_overdue(&mut self) -> Option<Duration> {
        let now = Instant::now();
        let overdue = self.kept_back.extract_if(.., |kept| kept.deadline <= now);
        overdue.for_each(|kept| answer(&kept.socket));
        let deadlines = self.kept_back.iter().map(|kept| kept.deadline);
        Some(deadlines.min()?.saturating_duration_since(now))
    }

    fn is_anybody_dying(&self, tenant: u64) -> bool {
        let holders = self.clients.holders(tenant);
        let mut pids = holders.map(|(_, client)| client.pid).take(MOST_LOOKED_AT);
        pids.any(process::is_dying)
    }
}

fn answer(socket: &OwnedFd) {
    // Whoever does not wait for it any more does not need it.
    let _ = send(socket.as_fd(), &reply(attach_status::OK), &[]);
}
