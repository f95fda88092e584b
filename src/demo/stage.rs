//! What happens when: the tenants start, one of their processes is killed, the daemon is killed and
//! replaced, another process is killed, the tenants end.

use super::event::Event;
use super::node::Node;
use super::observed::{Observed, Tenant};
use super::screen::{Moment, Screen, device_line};
use super::shares;
use super::tenant::Role;
use crate::children::Owned;
use crate::interrupt;
use anyhow::{Context, Result, bail};
use daemon::api::{DeviceInfo, DriverKind, Status};
use sim::client::{Gpu, Process};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::ChildStdin;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The tenants: name, part, and cap on a device that has at least [`ROOM_BYTES`].
const CAST: [(&str, Role, u64); 3] = [
    ("web", Role::Web, 2 * GIB),
    ("batch", Role::Batch, GIB),
    ("jobs", Role::Jobs, GIB),
];
const GIB: u64 = 1 << 30;

/// A device with less than this gives the tenants proportionally less, and a real one with more than this
/// more, up to four times.
const ROOM_BYTES: u64 = 8 * GIB;

/// Longest time that the tenants may take to come up; a real driver takes a second or two.
const UP_WITHIN: Duration = Duration::from_secs(30);

/// Longest time that the tenants may take to end.
const DOWN_WITHIN: Duration = Duration::from_secs(5);

/// Between two looks at the daemon, and two drawings of the table.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Shortest time without a daemon, and the longest that the demo waits meanwhile for a refusal and a whole round.
const WITHOUT_DAEMON: (Duration, Duration) = (Duration::from_millis(300), Duration::from_secs(3));

/// Longest time that the demo waits for the next daemon to take everything over, before it calls it
/// a failure: several times the promise, so that a miss is measured.
const TAKE_OVER_WITHIN: Duration = Duration::from_secs(5);

/// How the play ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ending {
    /// To the last line.
    Complete,
    /// By Ctrl-C or SIGTERM.
    Interrupted,
}

/// A started node with its tenants.
#[derive(Debug)]
pub(crate) struct Stage {
    tenants: Vec<Started>,
    events: Receiver<(usize, Told)>,
    node: Node,
    hardware: Option<Hardware>,
    kind: DriverKind,
    device: DeviceInfo,
    baseline_bytes: u64,
    seen: Observed,
    note: Note,
}

#[derive(Debug)]
struct Started {
    // Kills it when it goes; after the input, whose end asks it to end.
    orders: Option<ChildStdin>,
    _process: Owned,
    has_ended: bool,
}

#[derive(Debug)]
enum Told {
    Event(Event),
    Nonsense(String),
    End,
}

/// What the plot does at a part of the time, in permille.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    KillWorker,
    KillDaemon,
}

const PLOT: [(u32, Act); 3] = [
    (150, Act::KillWorker),
    (400, Act::KillDaemon),
    (750, Act::KillWorker),
];

impl Stage {
    /// Starts the node and the tenants, and waits until each has said what it sees.
    ///
    /// # Errors
    /// Something does not come up.
    pub(crate) fn set_up(kind: DriverKind) -> Result<Self> {
        interrupt::watch()?;
        let node = Node::start(kind)?;
        let status = node.status()?;
        let device = status
            .devices
            .first()
            .context("the daemon has no device")?
            .clone();
        let hardware = node
            .gpu_socket()
            .map(|socket| Hardware::connect(&socket))
            .transpose()?;
        let (sender, events) = channel();
        let mut stage = Self {
            tenants: Vec::new(),
            events,
            node,
            hardware,
            kind: status.driver.kind,
            baseline_bytes: device.memory_used_bytes,
            device,
            seen: Observed::default(),
            note: Note::routine("the tenants have started".to_owned()),
        };
        for (name, role, cap_bytes) in CAST {
            // A real context takes some hundred MiB of its tenant's cap.
            let most = match stage.kind {
                DriverKind::Real => 4 * ROOM_BYTES,
                DriverKind::StandIn => ROOM_BYTES,
            };
            let room_bytes = stage.device.memory_bytes.min(most);
            let cap_bytes = cap_bytes / 1024 * (room_bytes / (ROOM_BYTES / 1024));
            stage.start(name, role, cap_bytes, &sender)?;
        }
        stage.wait_until_up()?;
        Ok(stage)
    }

    /// Plays for `length`.
    ///
    /// # Errors
    /// A tenant ends early, or the next daemon does not start.
    pub(crate) fn play(&mut self, length: Duration, screen: &mut Screen) -> Result<Ending> {
        let begin = Instant::now();
        let mut plot = PLOT.iter().peekable();
        let mut next_look = begin;
        while begin.elapsed() < length {
            if interrupt::last().is_some() {
                return Ok(Ending::Interrupted);
            }
            if let Some((_, act)) =
                plot.next_if(|(permille, _)| begin.elapsed() >= length * *permille / 1000)
            {
                match act {
                    Act::KillWorker => self.kill_worker()?,
                    Act::KillDaemon => self.replace_daemon(screen, begin, length)?,
                }
            }
            if Instant::now() >= next_look {
                next_look = Instant::now() + LOOK_EVERY;
                self.look();
                self.draw(screen, begin, length);
            }
            self.listen(LOOK_EVERY / 4)?;
        }
        self.look();
        self.send_home()?;
        Ok(Ending::Complete)
    }

    /// Plays the second act, on the same node, for `length`.
    ///
    /// # Errors
    /// A tenant does not come up, or ends early.
    pub(crate) fn play_shares(&mut self, length: Duration, screen: &mut Screen) -> Result<Ending> {
        match shares::play(&self.node, screen, length)? {
            Some(seen) => self.seen.shares = seen,
            None => return Ok(Ending::Interrupted),
        }
        Ok(Ending::Complete)
    }

    /// Ends everything and hands out what was seen.
    pub(crate) fn strike(self) -> (DriverKind, DeviceInfo, Observed) {
        (self.kind, self.device, self.seen)
    }

    /// Waits until each tenant has said what it sees; an interruption ends the wait as well.
    fn wait_until_up(&mut self) -> Result<()> {
        let deadline = Instant::now() + UP_WITHIN;
        loop {
            let mut tenants = self.seen.tenants.iter();
            let Some(late) = tenants.find(|tenant| tenant.view.is_none()) else {
                return Ok(());
            };
            if interrupt::last().is_some() {
                return Ok(());
            }
            if Instant::now() > deadline {
                let (name, seconds) = (late.name, UP_WITHIN.as_secs());
                let words = self.node.last_words(name);
                bail!("tenant {name} is not up after {seconds} s; {words}");
            }
            self.listen(LOOK_EVERY)?;
        }
    }

    fn start(
        &mut self,
        name: &'static str,
        role: Role,
        cap_bytes: u64,
        to: &Sender<(usize, Told)>,
    ) -> Result<()> {
        let mut process = self.node.start_tenant(name, cap_bytes, role)?;
        let orders = process.0.stdin.take();
        let output = process
            .0
            .stdout
            .take()
            .context("the tenant has no output")?;
        let (index, to) = (self.tenants.len(), to.clone());
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let told = match serde_json::from_str(&line) {
                    Ok(event) => Told::Event(event),
                    Err(_) => Told::Nonsense(line),
                };
                // A stage that no longer listens has ended.
                let _ = to.send((index, told));
            }
            let _ = to.send((index, Told::End));
        });
        self.tenants.push(Started {
            orders,
            _process: process,
            has_ended: false,
        });
        self.seen.tenants.push(Tenant::new(name, cap_bytes));
        Ok(())
    }

    /// Takes in what tenants say, for at most `bound`, and at least everything that waits.
    fn listen(&mut self, bound: Duration) -> Result<()> {
        let mut next = self.events.recv_timeout(bound);
        loop {
            match next {
                Ok((index, told)) => self.hear(index, told)?,
                Err(RecvTimeoutError::Timeout) => return Ok(()),
                Err(RecvTimeoutError::Disconnected) => bail!("every tenant has gone"),
            }
            next = self
                .events
                .try_recv()
                .map_err(|_| RecvTimeoutError::Timeout);
        }
    }

    fn hear(&mut self, index: usize, told: Told) -> Result<()> {
        let tenant = &mut self.seen.tenants[index];
        match told {
            Told::Event(event) => {
                if let Some(note) = note(tenant.name, &event) {
                    self.note.give_way_to(note);
                }
                tenant.hear(event);
            }
            Told::Nonsense(line) => bail!("tenant {} said {line:?}", tenant.name),
            Told::End if self.tenants[index].orders.is_none() => {
                self.tenants[index].has_ended = true;
            }
            Told::End => {
                bail!(
                    "tenant {} ended early; {}",
                    tenant.name,
                    self.node.last_words(tenant.name)
                );
            }
        }
        Ok(())
    }

    /// Asks daemon and hardware. Without a daemon nothing is learnt, and that is all right.
    fn look(&mut self) -> Option<Status> {
        let by_process = self.hardware.as_ref().and_then(Hardware::by_process);
        let status = self.node.status().ok()?;
        self.seen.see(&status, by_process.as_ref());
        Some(status)
    }

    fn draw(&self, screen: &mut Screen, begin: Instant, length: Duration) {
        let moment = Moment {
            second: begin.elapsed().as_secs_f64(),
            seconds: length.as_secs(),
            note: &self.note.text,
        };
        screen.draw(&device_line(self.kind, &self.device), &self.seen, moment);
    }

    fn kill_worker(&mut self) -> Result<()> {
        let jobs = CAST.iter().position(|(_, role, _)| *role == Role::Jobs);
        let orders = jobs.and_then(|index| self.tenants[index].orders.as_mut());
        orders
            .context("nobody has workers")?
            .write_all(b"kill a worker\n")
            .context("the tenant with workers does not listen")
    }

    fn replace_daemon(
        &mut self,
        screen: &mut Screen,
        begin: Instant,
        length: Duration,
    ) -> Result<()> {
        self.node.kill_daemon();
        // What was told before the kill does not count.
        self.listen(Duration::ZERO)?;
        let (rounds, refusals) = (self.seen.rounds(), self.seen.refusals());
        let killed = Instant::now();
        let is_shown = |seen: &Observed| seen.refusals() > refusals && seen.rounds() > rounds;
        while killed.elapsed() < WITHOUT_DAEMON.0
            || (!is_shown(&self.seen) && killed.elapsed() < WITHOUT_DAEMON.1)
        {
            self.listen(LOOK_EVERY / 4)?;
            let text = "the daemon was killed; the caps hold without it";
            self.note.give_way_to(Note::news(text.to_owned()));
            self.draw(screen, begin, length);
        }
        self.seen.restart.rounds_without = self.seen.rounds() - rounds;
        self.seen.restart.refusals_without = self.seen.refusals() - refusals;

        let started = Instant::now();
        self.node.start_daemon()?;
        self.seen.restart.happened = true;
        while started.elapsed() < TAKE_OVER_WITHIN {
            if self
                .look()
                .is_some_and(|status| self.seen.are_all_in(&status))
            {
                let ms = u64::try_from(started.elapsed().as_millis())?;
                self.seen.restart.taken_over_ms = Some(ms);
                let text = format!("the next daemon took every tenant over after {ms} ms");
                self.note.give_way_to(Note::news(text));
                return Ok(());
            }
            self.listen(Duration::from_millis(5))?;
        }
        Ok(())
    }

    /// Lets the tenants end, and looks at what they leave.
    fn send_home(&mut self) -> Result<()> {
        for tenant in &mut self.tenants {
            tenant.orders = None;
        }
        let deadline = Instant::now() + DOWN_WITHIN;
        while self.tenants.iter().any(|tenant| !tenant.has_ended) {
            self.listen(LOOK_EVERY / 4)?;
            if Instant::now() > deadline {
                bail!("a tenant does not end within {} s", DOWN_WITHIN.as_secs());
            }
        }
        // Other programs of the machine come and go on a real device: it proves nothing there.
        let Some(hardware) = &self.hardware else {
            return Ok(());
        };
        loop {
            let left = hardware.by_process().map(|by| by.values().sum::<u64>());
            self.seen.left_bytes = left.map(|left| left.saturating_sub(self.baseline_bytes));
            if left.is_none_or(|left| left <= self.baseline_bytes) || Instant::now() > deadline {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A line under the table.
#[derive(Debug)]
struct Note {
    text: String,
    since: Instant,
    is_news: bool,
}

impl Note {
    /// How long news stay before what happens all the time may take their place.
    const NEWS_STAY: Duration = Duration::from_secs(1);

    fn news(text: String) -> Self {
        Self {
            is_news: true,
            ..Self::routine(text)
        }
    }

    fn routine(text: String) -> Self {
        Self {
            text,
            since: Instant::now(),
            is_news: false,
        }
    }

    fn give_way_to(&mut self, other: Self) {
        if other.is_news || !self.is_news || self.since.elapsed() > Self::NEWS_STAY {
            *self = other;
        }
    }
}

/// What is worth a line under the table.
fn note(name: &str, event: &Event) -> Option<Note> {
    use crate::text::{milliseconds, size};
    Some(match event {
        Event::Refused { asked_bytes, .. } => {
            let asked = size(*asked_bytes);
            Note::routine(format!("{name} asked for {asked} over its cap: refused"))
        }
        Event::GaveBack { bytes, after_us } => Note::news(format!(
            "a process of {name} was killed; its {} were usable again after {} ms",
            size(*bytes),
            milliseconds(*after_us)
        )),
        Event::Trouble { what } => Note::news(format!("{name}: {what}")),
        _ => return None,
    })
}

/// The stand-in's own account of what each process holds: the truth that caps are held against.
#[derive(Debug)]
struct Hardware(Gpu);

impl Hardware {
    fn connect(socket: &Path) -> Result<Self> {
        Ok(Self(Gpu::connect_to(socket)?))
    }

    /// Bytes by process on the first device; `None` when the hardware is gone.
    fn by_process(&self) -> Option<BTreeMap<u32, u64>> {
        let of = |process: Process| Some((u32::try_from(process.pid).ok()?, process.used_bytes));
        self.0
            .is_alive()
            .then(|| self.0.processes(0).into_iter().filter_map(of).collect())
    }
}
