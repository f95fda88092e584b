//! What runs when: streams in order, contexts in turn.
//!
//! The engine is a discrete simulation. Its caller brings work with the time at which it was
//! submitted ([`Engine::submit`]) and lets time pass ([`Engine::advance`]); the start and the end of
//! everything follow from earlier ends and durations, never from the moment at which somebody looked.
//! So a late wake-up of the process around it stretches nothing.
//!
//! * One context of a device is *resident* at a time. Contexts with work alternate every
//!   [`Schedule::slice_ns`]; each change costs [`Schedule::switch_ns`]. A kernel that is running when
//!   its slice ends stops there and goes on in the context's next slice.
//! * A context without work is left at once; while only one has work it keeps the device.
//! * Within the resident context, kernels at the heads of its streams run side by side as long as
//!   their warps fit; else they start in order of priority, then of arrival.
//! * Where contexts share the device ([`Schedule::is_shared`]), all of them run at once: see [`together`].
//! * Copies run beside kernels, whichever context is resident. Marks and satisfied waits take no time.

mod together;

use std::collections::{BTreeSet, VecDeque};

use super::{ClientId, ContextId, NumberMap};

/// A stream of a client; clients number their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId {
    /// Whose.
    pub client: ClientId,
    /// The client's own number for it.
    pub slot: u32,
}

/// How contexts take turns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Schedule {
    /// Longest run of one context while others have work.
    pub slice_ns: u64,
    /// What it costs to make another context resident.
    pub switch_ns: u64,
    /// Whether contexts run side by side instead, as long as their kernels fit into the device.
    pub is_shared: bool,
}

/// One thing that a stream is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    /// A kernel: runs for `duration_ns` while its context is resident.
    Kernel {
        /// Running time without interruption.
        duration_ns: u64,
        /// Share of the device that it needs.
        warps: u64,
    },
    /// A transfer: runs for `duration_ns` beside everything else.
    Copy {
        /// Running time.
        duration_ns: u64,
    },
    /// Takes the time when everything before it is done (an event).
    Mark {
        /// Where the client wants it.
        event: u32,
        /// Which record of that event this is.
        generation: u64,
    },
    /// Waits until another stream of the same client has done its operation `sequence`.
    Wait {
        /// The other stream.
        on: u32,
        /// Its operation.
        sequence: u64,
    },
    /// Waits for the client to say that it has run a function of its own.
    Host,
    /// A kernel: runs, while its context is resident, until the client says that it is to end.
    Spin {
        /// Share of the device that it needs.
        warps: u64,
    },
    /// Ends the stream when everything before it is done.
    Close,
}

/// What the outside is to be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Everything up to `sequence` is done.
    Done {
        /// Where.
        stream: StreamId,
        /// Up to which operation.
        sequence: u64,
        /// When the last of them ended.
        at_ns: u64,
    },
    /// A [`Work::Mark`] was reached.
    Marked {
        /// Whose.
        client: ClientId,
        /// Its event.
        event: u32,
        /// Its record.
        generation: u64,
        /// When.
        at_ns: u64,
    },
    /// A [`Work::Host`] was reached, or a [`Work::Spin`] has begun to run: the client is to do its part.
    HostReady {
        /// Where.
        stream: StreamId,
        /// Which operation.
        sequence: u64,
    },
}

/// What a device has done so far, in nanoseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeviceTime {
    /// At least one kernel was running.
    pub busy_ns: u64,
    /// Contexts were being exchanged.
    pub switch_ns: u64,
}

/// Running time of a kernel that spins: none that ends. Half of what there is, so that sums stay in range.
const UNTIL_TOLD_NS: u64 = u64::MAX / 2;

#[derive(Debug)]
struct Operation {
    sequence: u64,
    work: Work,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Head {
    /// The head has not been looked at, or there is none.
    Fresh,
    /// The head is in its context's `ready` or `active`, in its device's `copies`, in another
    /// stream's `waiters`, or with the client.
    Begun,
}

#[derive(Debug)]
struct Stream {
    context: ContextId,
    priority: i32,
    queue: VecDeque<Operation>,
    head: Head,
    done: u64,
    /// Streams whose head waits for `done` to reach a number.
    waiters: Vec<(u64, StreamId)>,
}

#[derive(Debug)]
struct Ready {
    priority: i32,
    arrival: u64,
    stream: StreamId,
    remaining_ns: u64,
    warps: u64,
}

#[derive(Debug)]
struct Active {
    stream: StreamId,
    remaining_ns: u64,
    warps: u64,
}

#[derive(Debug)]
struct Context {
    client: ClientId,
    device: usize,
    ready: Vec<Ready>,
    active: Vec<Active>,
}

impl Context {
    fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.active.is_empty()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// The resident context, if any, may run; its slice began at `since`.
    Running { since: u64 },
    /// `to` becomes resident at `until`.
    Switching { to: ContextId, until: u64 },
}

#[derive(Debug)]
struct Device {
    capacity_warps: u64,
    /// Every context of the device, in the order of their turns.
    run_list: VecDeque<ContextId>,
    resident: Option<ContextId>,
    phase: Phase,
    /// Whether another context than the resident one had work when the device was last looked at.
    is_contended: bool,
    /// Ends of running copies, earliest first.
    copies: BTreeSet<(u64, StreamId)>,
    time: DeviceTime,
}

/// Every device, context and stream of one `gpu` process.
#[derive(Debug)]
pub struct Engine {
    schedule: Schedule,
    now: u64,
    arrivals: u64,
    devices: Vec<Device>,
    contexts: NumberMap<ContextId, Context>,
    streams: NumberMap<StreamId, Stream>,
    busy: NumberMap<(ClientId, usize), u64>,
    effects: Vec<Effect>,
}

impl Engine {
    /// An engine with a device for each entry of `capacities`, the warps that it holds at once.
    pub fn new(schedule: Schedule, capacities: &[u64], now_ns: u64) -> Self {
        let schedule = Schedule {
            slice_ns: schedule.slice_ns.max(1),
            ..schedule
        };
        let devices = capacities
            .iter()
            .map(|capacity| Device {
                capacity_warps: (*capacity).max(1),
                run_list: VecDeque::new(),
                resident: None,
                phase: Phase::Running { since: now_ns },
                is_contended: false,
                copies: BTreeSet::new(),
                time: DeviceTime::default(),
            })
            .collect();
        Self {
            schedule,
            now: now_ns,
            arrivals: 0,
            devices,
            contexts: NumberMap::default(),
            streams: NumberMap::default(),
            busy: NumberMap::default(),
            effects: Vec::new(),
        }
    }

    /// The time up to which everything is decided.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Adds a context of `client` on `device` to the run list; an unknown device is ignored.
    pub fn open_context(&mut self, client: ClientId, context: ContextId, device: usize) {
        let Some(known) = self.devices.get_mut(device) else {
            return;
        };
        known.run_list.push_back(context);
        self.contexts.insert(
            context,
            Context {
                client,
                device,
                ready: Vec::new(),
                active: Vec::new(),
            },
        );
    }

    /// Takes a context away with its streams; their work is discarded and counts as done, so that
    /// nobody waits for it.
    pub fn close_context(&mut self, context: ContextId) {
        let Some(gone) = self.contexts.remove(&context) else {
            return;
        };
        if let Some(device) = self.devices.get_mut(gone.device) {
            device.run_list.retain(|listed| *listed != context);
            if device.resident == Some(context) {
                device.resident = None;
            }
            if let Phase::Switching { to, .. } = device.phase
                && to == context
            {
                device.phase = Phase::Running { since: self.now };
            }
        }
        let doomed: Vec<StreamId> = self
            .streams
            .iter()
            .filter(|(_, stream)| stream.context == context)
            .map(|(id, _)| *id)
            .collect();
        let mut freed = Vec::new();
        for id in doomed {
            if let Some(device) = self.devices.get_mut(gone.device) {
                device.copies.retain(|(_, stream)| *stream != id);
            }
            if let Some(stream) = self.streams.remove(&id) {
                if let Some(last) = stream.queue.back() {
                    self.effects.push(Effect::Done {
                        stream: id,
                        sequence: last.sequence,
                        at_ns: self.now,
                    });
                }
                freed.extend(stream.waiters.into_iter().map(|(_, waiter)| waiter));
            }
            // The slot may come back as another stream: nobody may finish a wait of this one then.
            for stream in self.streams.values_mut() {
                stream.waiters.retain(|(_, waiter)| *waiter != id);
            }
        }
        for waiter in freed {
            self.finish_head(waiter);
        }
        self.schedule(gone.device);
    }

    /// Takes a client away: its contexts and their work. Its effects are not told any more.
    pub fn close_client(&mut self, client: ClientId) {
        let doomed: Vec<ContextId> = self
            .contexts
            .iter()
            .filter(|(_, context)| context.client == client)
            .map(|(id, _)| *id)
            .collect();
        for context in doomed {
            self.close_context(context);
        }
        self.busy.retain(|(owner, _), _| *owner != client);
        self.effects.retain(|effect| effect.client() != client);
    }

    /// Whether a client has no work, done or to be done.
    pub fn is_idle(&self, client: ClientId) -> bool {
        let mut own = self.streams.iter().filter(|(id, _)| id.client == client);
        own.all(|(_, stream)| stream.queue.is_empty())
    }

    /// Adds a stream; lower `priority` goes first. An unknown or foreign context is ignored.
    pub fn open_stream(&mut self, id: StreamId, context: ContextId, priority: i32, done: u64) {
        let is_own = self
            .contexts
            .get(&context)
            .is_some_and(|known| known.client == id.client);
        if is_own {
            self.streams.entry(id).or_insert(Stream {
                context,
                priority,
                queue: VecDeque::new(),
                head: Head::Fresh,
                done,
                waiters: Vec::new(),
            });
        }
    }

    /// Adds work to a stream at the present time; sequences of a stream must rise. Work for an
    /// unknown stream, such as one whose context has ended, counts as done: nobody may wait for it.
    pub fn submit(&mut self, id: StreamId, sequence: u64, work: Work) {
        let Some(stream) = self.streams.get_mut(&id) else {
            self.effects.push(Effect::Done {
                stream: id,
                sequence,
                at_ns: self.now,
            });
            return;
        };
        stream.queue.push_back(Operation { sequence, work });
        if stream.queue.len() == 1 {
            self.look_at(id);
            if let Some(device) = self.device_of(id) {
                self.schedule(device);
            }
        }
    }

    /// The client has done its part of operation `sequence`: a function has been run, or a kernel that
    /// spins sees what it has spun for and ends as soon as it runs again.
    pub fn host_done(&mut self, id: StreamId, sequence: u64) {
        let Some(stream) = self.streams.get(&id) else {
            return;
        };
        let head = stream.queue.front();
        let Some(head) = head.filter(|head| head.sequence == sequence) else {
            return;
        };
        let device = self.device_of(id);
        match head.work {
            Work::Host if stream.head == Head::Begun => self.finish_head(id),
            Work::Spin { .. } => {
                let context = self.contexts.get_mut(&stream.context);
                let active = context.and_then(|context| {
                    let mut active = context.active.iter_mut();
                    active.find(|active| active.stream == id)
                });
                if let Some(active) = active {
                    active.remaining_ns = 1;
                }
            }
            _ => return,
        }
        if let Some(device) = device {
            self.schedule(device);
        }
    }

    /// Lets time pass until `to_ns`; earlier times are ignored.
    pub fn advance(&mut self, to_ns: u64) {
        while let Some(next) = self.next_event() {
            if next > to_ns {
                break;
            }
            self.step(next);
        }
        if to_ns > self.now {
            self.step(to_ns);
        }
    }

    /// When something will happen next, if nothing is submitted until then.
    pub fn next_event(&self) -> Option<u64> {
        self.devices
            .iter()
            .filter_map(|device| self.next_event_of(device))
            .min()
    }

    /// Takes what has happened since the last call, in order.
    pub fn take_effects(&mut self) -> Vec<Effect> {
        std::mem::take(&mut self.effects)
    }

    /// What `device` has done.
    pub fn device_time(&self, device: usize) -> DeviceTime {
        self.devices
            .get(device)
            .map_or_else(DeviceTime::default, |device| device.time)
    }

    /// How long kernels of `client` have run on `device`, in nanoseconds.
    pub fn client_busy_ns(&self, client: ClientId, device: usize) -> u64 {
        self.busy.get(&(client, device)).copied().unwrap_or(0)
    }

    /// Whether kernels of `client` are running on `device` now.
    pub fn is_running(&self, client: ClientId, device: usize) -> bool {
        let runs = |context: &Context| context.client == client && !context.active.is_empty();
        let Some(device) = self.devices.get(device) else {
            return false;
        };
        if self.schedule.is_shared {
            let mut listed = device.run_list.iter();
            return listed.any(|context| self.contexts.get(context).is_some_and(runs));
        }
        self.running_context(device).is_some_and(runs)
    }

    fn running_context(&self, device: &Device) -> Option<&Context> {
        match device.phase {
            Phase::Running { .. } => self.contexts.get(&device.resident?),
            Phase::Switching { .. } => None,
        }
    }

    fn next_event_of(&self, device: &Device) -> Option<u64> {
        let copy = device.copies.first().map(|(end, _)| *end);
        let compute = match device.phase {
            _ if self.schedule.is_shared => self.next_end_together(device),
            Phase::Switching { until, .. } => Some(until),
            Phase::Running { since } => {
                let ends = self.running_context(device).and_then(|context| {
                    let ends = context.active.iter().map(|active| active.remaining_ns);
                    ends.min().map(|least| self.now.saturating_add(least))
                });
                let slice = (ends.is_some() && device.is_contended)
                    .then_some(since + self.schedule.slice_ns);
                [ends, slice].into_iter().flatten().min()
            }
        };
        [copy, compute].into_iter().flatten().min()
    }

    /// Moves to `to`, before which nothing happens.
    fn step(&mut self, to: u64) {
        let elapsed = to - self.now;
        self.now = to;
        for index in 0..self.devices.len() {
            self.run(index, elapsed);
        }
        for index in 0..self.devices.len() {
            self.retire(index);
        }
        for index in 0..self.devices.len() {
            self.schedule(index);
        }
    }

    /// Accounts for `elapsed` nanoseconds in which the device's state did not change.
    fn run(&mut self, index: usize, elapsed: u64) {
        if self.schedule.is_shared {
            return self.run_together(index, elapsed);
        }
        let device = &mut self.devices[index];
        match device.phase {
            Phase::Switching { .. } => device.time.switch_ns += elapsed,
            Phase::Running { .. } => {
                let Some(context) = device
                    .resident
                    .and_then(|resident| self.contexts.get_mut(&resident))
                    .filter(|context| !context.active.is_empty())
                else {
                    return;
                };
                device.time.busy_ns += elapsed;
                *self.busy.entry((context.client, index)).or_insert(0) += elapsed;
                for active in &mut context.active {
                    active.remaining_ns -= elapsed;
                }
            }
        }
    }

    /// Ends the kernels and copies whose time is over.
    fn retire(&mut self, index: usize) {
        let device = &mut self.devices[index];
        let mut ended = Vec::new();
        while let Some(first) = device.copies.first().copied()
            && first.0 <= self.now
        {
            device.copies.remove(&first);
            ended.push(first.1);
        }
        let running: Vec<ContextId> = match device.phase {
            _ if self.schedule.is_shared => device.run_list.iter().copied().collect(),
            Phase::Running { .. } => device.resident.into_iter().collect(),
            Phase::Switching { .. } => Vec::new(),
        };
        for id in running {
            let Some(context) = self.contexts.get_mut(&id) else {
                continue;
            };
            context.active.retain(|active| {
                let is_over = active.remaining_ns == 0;
                if is_over {
                    ended.push(active.stream);
                }
                !is_over
            });
        }
        for stream in ended {
            self.finish_head(stream);
        }
    }

    /// Decides who is resident and starts what may start.
    fn schedule(&mut self, index: usize) {
        if self.schedule.is_shared {
            return self.start_together(index);
        }
        let device = &self.devices[index];
        if let Phase::Switching { to, until } = device.phase {
            if self.now < until {
                return;
            }
            let device = &mut self.devices[index];
            device.resident = Some(to);
            device.phase = Phase::Running { since: self.now };
            device.is_contended = false;
        }
        let device = &self.devices[index];
        let Phase::Running { since } = device.phase else {
            return;
        };
        let others = self.next_in_turn(device);
        let resident_works = self.running_context(device).is_some_and(Context::has_work);
        let slice = self.schedule.slice_ns;
        let now = self.now;
        if !resident_works {
            match others {
                Some(next) => self.make_resident(index, next),
                None => self.devices[index].is_contended = false,
            }
            return;
        }
        let device = &mut self.devices[index];
        let was_contended = std::mem::replace(&mut device.is_contended, others.is_some());
        // Alone, slices follow each other unnoticed: whoever comes waits for the present one's end.
        let since = if was_contended {
            since
        } else {
            now - (now - since) % slice
        };
        device.phase = Phase::Running { since };
        match others {
            Some(next) if now >= since + slice => self.make_resident(index, next),
            _ => self.start_ready(index),
        }
    }

    /// The first context after the resident one that has work and is not it.
    fn next_in_turn(&self, device: &Device) -> Option<ContextId> {
        let after = device
            .run_list
            .iter()
            .position(|listed| Some(*listed) == device.resident)
            .map_or(0, |at| at + 1);
        let turns = device.run_list.iter().skip(after);
        turns
            .chain(device.run_list.iter().take(after))
            .copied()
            .find(|listed| {
                Some(*listed) != device.resident
                    && self.contexts.get(listed).is_some_and(Context::has_work)
            })
    }

    fn make_resident(&mut self, index: usize, next: ContextId) {
        let switch = self.schedule.switch_ns;
        let device = &mut self.devices[index];
        if device.resident.is_some() && switch > 0 {
            device.phase = Phase::Switching {
                to: next,
                until: self.now + switch,
            };
            return;
        }
        device.resident = Some(next);
        device.phase = Phase::Running { since: self.now };
        device.is_contended = false;
        self.schedule(index);
    }

    /// Starts the resident context's ready kernels in order, as long as their warps fit.
    fn start_ready(&mut self, index: usize) {
        let device = &self.devices[index];
        let capacity = device.capacity_warps;
        let Some(resident) = device.resident else {
            return;
        };
        let Some(context) = self.contexts.get_mut(&resident) else {
            return;
        };
        let mut taken: u64 = context.active.iter().map(|active| active.warps).sum();
        context
            .ready
            .sort_by_key(|ready| (ready.priority, ready.arrival));
        let fitting = context
            .ready
            .iter()
            .take_while(|ready| {
                let fits = taken + ready.warps <= capacity;
                taken += ready.warps;
                fits
            })
            .count();
        let started: Vec<Ready> = context.ready.drain(..fitting).collect();
        for ready in started {
            self.start(resident, ready);
        }
    }

    fn device_of(&self, id: StreamId) -> Option<usize> {
        let stream = self.streams.get(&id)?;
        Some(self.contexts.get(&stream.context)?.device)
    }

    /// The head of `id` is done: tells so and looks at what that sets free.
    fn finish_head(&mut self, id: StreamId) {
        let mut pending = vec![id];
        while let Some(id) = pending.pop() {
            let Some(stream) = self.streams.get_mut(&id) else {
                continue;
            };
            let Some(done) = stream.queue.pop_front() else {
                continue;
            };
            stream.head = Head::Fresh;
            stream.done = done.sequence;
            let reached = stream.done;
            self.effects.push(Effect::Done {
                stream: id,
                sequence: reached,
                at_ns: self.now,
            });
            stream.waiters.retain(|(sequence, waiter)| {
                let is_over = *sequence <= reached;
                if is_over {
                    pending.push(*waiter);
                }
                !is_over
            });
            self.look_at(id);
        }
    }

    /// Begins the head of `id`, and passes over what takes no time.
    fn look_at(&mut self, id: StreamId) {
        while let Some(stream) = self.streams.get(&id)
            && stream.head == Head::Fresh
            && let Some(head) = stream.queue.front()
        {
            let (sequence, context, priority) = (head.sequence, stream.context, stream.priority);
            let work = head.work;
            match work {
                Work::Kernel { duration_ns, warps } => {
                    self.begin_kernel(id, context, priority, duration_ns, warps);
                    return;
                }
                Work::Spin { warps } => {
                    self.begin_kernel(id, context, priority, UNTIL_TOLD_NS, warps);
                    return;
                }
                Work::Copy { duration_ns } => {
                    self.begin_copy(id, context, duration_ns);
                    return;
                }
                Work::Host => {
                    self.begin(id);
                    self.effects.push(Effect::HostReady {
                        stream: id,
                        sequence,
                    });
                    return;
                }
                Work::Wait { on, sequence } if self.must_wait(id, on, sequence) => {
                    self.begin(id);
                    return;
                }
                Work::Wait { .. } => {}
                Work::Mark { event, generation } => self.effects.push(Effect::Marked {
                    client: id.client,
                    event,
                    generation,
                    at_ns: self.now,
                }),
                Work::Close => {
                    self.close_stream(id, sequence);
                    return;
                }
            }
            // What is left took no time. Its own waiters are looked at here and not by recursion
            // into this stream: `finish_head` of another stream never touches this one's head.
            self.pass(id);
        }
    }

    /// Passes over a head that took no time, and finishes the waits that were for it.
    fn pass(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(done) = stream.queue.pop_front() else {
            return;
        };
        stream.done = done.sequence;
        let mut over = Vec::new();
        stream.waiters.retain(|(sequence, waiter)| {
            let is_over = *sequence <= done.sequence;
            if is_over {
                over.push(*waiter);
            }
            !is_over
        });
        self.effects.push(Effect::Done {
            stream: id,
            sequence: done.sequence,
            at_ns: self.now,
        });
        for waiter in over {
            self.finish_head(waiter);
        }
    }

    fn begin(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.head = Head::Begun;
        }
    }

    fn begin_kernel(
        &mut self,
        id: StreamId,
        context: ContextId,
        priority: i32,
        duration_ns: u64,
        warps: u64,
    ) {
        self.begin(id);
        self.arrivals += 1;
        let arrival = self.arrivals;
        if let Some(context) = self.contexts.get_mut(&context) {
            let capacity = self.devices[context.device].capacity_warps;
            context.ready.push(Ready {
                priority,
                arrival,
                stream: id,
                remaining_ns: duration_ns.max(1),
                warps: warps.clamp(1, capacity),
            });
        }
    }

    fn begin_copy(&mut self, id: StreamId, context: ContextId, duration_ns: u64) {
        self.begin(id);
        if let Some(context) = self.contexts.get(&context) {
            let end = self.now + duration_ns.max(1);
            self.devices[context.device].copies.insert((end, id));
        }
    }

    /// Registers `id` with the stream that it waits for, unless that has got there already.
    fn must_wait(&mut self, id: StreamId, on: u32, sequence: u64) -> bool {
        let other = StreamId {
            client: id.client,
            slot: on,
        };
        match self.streams.get_mut(&other) {
            Some(stream) if other != id && stream.done < sequence => {
                stream.waiters.push((sequence, id));
                true
            }
            _ => false,
        }
    }

    fn close_stream(&mut self, id: StreamId, sequence: u64) {
        if let Some(stream) = self.streams.remove(&id) {
            self.effects.push(Effect::Done {
                stream: id,
                sequence,
                at_ns: self.now,
            });
            for (_, waiter) in stream.waiters {
                self.finish_head(waiter);
            }
        }
    }
}

impl Effect {
    /// Whom it concerns.
    pub fn client(&self) -> ClientId {
        match self {
            Self::Done { stream, .. } | Self::HostReady { stream, .. } => stream.client,
            Self::Marked { client, .. } => *client,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLICE: u64 = 2_000_000;
    const SWITCH: u64 = 100_000;
    const FULL: u64 = 100;

    fn engine() -> Engine {
        let schedule = Schedule {
            slice_ns: SLICE,
            switch_ns: SWITCH,
            is_shared: false,
        };
        Engine::new(schedule, &[FULL], 0)
    }

    fn stream(client: u32, slot: u32) -> StreamId {
        StreamId {
            client: ClientId(client),
            slot,
        }
    }

    fn open(engine: &mut Engine, client: u32, slots: u32) {
        let context = ContextId(u64::from(client));
        engine.open_context(ClientId(client), context, 0);
        for slot in 0..slots {
            engine.open_stream(stream(client, slot), context, 0, 0);
        }
    }

    fn kernel(duration_ns: u64) -> Work {
        Work::Kernel {
            duration_ns,
            warps: FULL,
        }
    }

    fn done_at(effects: &[Effect], id: StreamId, wanted: u64) -> Option<u64> {
        effects.iter().find_map(|effect| match effect {
            Effect::Done {
                stream,
                sequence,
                at_ns,
            } if *stream == id && *sequence == wanted => Some(*at_ns),
            _ => None,
        })
    }

    #[test]
    fn kernels_of_a_stream_follow_each_other_without_a_gap_however_late_one_looks() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        for sequence in 1..=100 {
            engine.submit(stream(1, 0), sequence, kernel(1_000));
        }
        engine.advance(1_000_000_000);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(1, 0), 100), Some(100_000));
        assert_eq!(engine.device_time(0).busy_ns, 100_000);
    }

    #[test]
    fn two_busy_contexts_alternate_every_slice_and_pay_for_each_change() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, kernel(2 * SLICE));
        engine.submit(stream(2, 0), 1, kernel(SLICE));
        engine.advance(10 * SLICE);
        let effects = engine.take_effects();
        // 1 runs a slice, 2 runs and ends in its own, then 1 goes on where it stopped.
        assert_eq!(done_at(&effects, stream(2, 0), 1), Some(2 * SLICE + SWITCH));
        assert_eq!(
            done_at(&effects, stream(1, 0), 1),
            Some(3 * SLICE + 2 * SWITCH)
        );
        let time = engine.device_time(0);
        assert_eq!((time.busy_ns, time.switch_ns), (3 * SLICE, 2 * SWITCH));
    }

    #[test]
    fn whoever_comes_to_a_busy_device_waits_no_longer_than_a_slice_and_a_change() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, kernel(1_000 * SLICE));
        let arrival = 7 * SLICE + 1;
        engine.advance(arrival);
        engine.submit(stream(2, 0), 1, kernel(1_000));
        engine.advance(100 * SLICE);
        let end = done_at(&engine.take_effects(), stream(2, 0), 1).unwrap();
        assert_eq!(end, 8 * SLICE + SWITCH + 1_000);
    }

    #[test]
    fn a_spinning_kernel_takes_its_turns_until_it_is_told() {
        let mut engine = engine();
        open(&mut engine, 1, 2);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, Work::Spin { warps: FULL });
        engine.submit(stream(1, 0), 2, kernel(1_000));
        let begun = Effect::HostReady {
            stream: stream(1, 0),
            sequence: 1,
        };
        assert_eq!(engine.take_effects(), [begun]);
        engine.submit(stream(2, 0), 1, kernel(3 * SLICE));
        engine.advance(100 * SLICE);
        let effects = engine.take_effects();
        // The other gets every second slice as from any busy kernel.
        let end = done_at(&effects, stream(2, 0), 1).unwrap();
        assert_eq!(end, 6 * SLICE + 5 * SWITCH);
        assert_eq!(done_at(&effects, stream(1, 0), 1), None);
        assert!(engine.is_running(ClientId(1), 0));
        engine.host_done(stream(1, 0), 7);
        engine.host_done(stream(1, 0), 1);
        engine.advance(200 * SLICE);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(1, 0), 1), Some(100 * SLICE + 1));
        let next = done_at(&effects, stream(1, 0), 2);
        assert_eq!(next, Some(100 * SLICE + 1_001));
    }

    #[test]
    fn a_client_that_goes_away_takes_its_spinning_kernel_along() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, Work::Spin { warps: FULL });
        engine.submit(stream(2, 0), 1, kernel(1_000));
        engine.close_client(ClientId(1));
        engine.advance(SLICE);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(2, 0), 1), Some(1_000));
        assert_eq!(engine.next_event(), None);
    }

    #[test]
    fn work_for_a_stream_that_has_ended_is_done_at_once() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        engine.close_context(ContextId(1));
        engine.submit(stream(1, 0), 5, kernel(1_000));
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(1, 0), 5), Some(0));
    }

    #[test]
    fn a_context_without_work_is_left_at_once() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, kernel(1_000));
        engine.submit(stream(2, 0), 1, kernel(1_000));
        engine.advance(SLICE);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(2, 0), 1), Some(2_000 + SWITCH));
    }

    #[test]
    fn small_kernels_of_one_context_run_side_by_side_and_large_ones_do_not() {
        let mut engine = engine();
        open(&mut engine, 1, 3);
        let small = Work::Kernel {
            duration_ns: 1_000,
            warps: FULL / 2,
        };
        for slot in 0..3 {
            engine.submit(stream(1, slot), 1, small);
        }
        engine.advance(SLICE);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(1, 1), 1), Some(1_000));
        assert_eq!(done_at(&effects, stream(1, 2), 1), Some(2_000));
    }

    #[test]
    fn a_wait_holds_a_stream_until_the_other_has_got_there() {
        let mut engine = engine();
        open(&mut engine, 1, 2);
        engine.submit(stream(1, 0), 1, kernel(5_000));
        engine.submit(stream(1, 1), 1, Work::Wait { on: 0, sequence: 1 });
        let mark = Work::Mark {
            event: 9,
            generation: 1,
        };
        engine.submit(stream(1, 1), 2, mark);
        engine.advance(4_999);
        assert_eq!(done_at(&engine.take_effects(), stream(1, 1), 2), None);
        engine.advance(5_000);
        assert!(engine.take_effects().contains(&Effect::Marked {
            client: ClientId(1),
            event: 9,
            generation: 1,
            at_ns: 5_000
        }));
    }

    #[test]
    fn a_host_function_holds_its_stream_until_the_client_has_run_it() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        engine.submit(stream(1, 0), 1, Work::Host);
        engine.submit(stream(1, 0), 2, kernel(1_000));
        engine.advance(10_000);
        assert_eq!(
            engine.take_effects(),
            [Effect::HostReady {
                stream: stream(1, 0),
                sequence: 1
            }]
        );
        engine.host_done(stream(1, 0), 1);
        engine.advance(20_000);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(1, 0), 2), Some(11_000));
    }

    #[test]
    fn a_copy_runs_beside_the_kernels_of_another_context() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, kernel(SLICE));
        engine.submit(stream(2, 0), 1, Work::Copy { duration_ns: 700 });
        engine.advance(SLICE);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(2, 0), 1), Some(700));
        assert_eq!(done_at(&effects, stream(1, 0), 1), Some(SLICE));
    }

    #[test]
    fn a_client_that_dies_leaves_the_device_to_the_others_at_once() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        open(&mut engine, 2, 1);
        engine.submit(stream(1, 0), 1, kernel(1_000 * SLICE));
        engine.submit(stream(2, 0), 1, kernel(1_000));
        engine.advance(500);
        engine.close_client(ClientId(1));
        engine.advance(SLICE);
        let effects = engine.take_effects();
        assert_eq!(done_at(&effects, stream(2, 0), 1), Some(1_500));
        assert!(effects.iter().all(|effect| effect.client() == ClientId(2)));
    }

    #[test]
    fn a_context_that_ends_sets_free_whoever_waits_for_its_streams() {
        let mut engine = engine();
        open(&mut engine, 1, 1);
        engine.open_context(ClientId(1), ContextId(50), 0);
        engine.open_stream(stream(1, 7), ContextId(50), 0, 0);
        engine.submit(stream(1, 7), 1, kernel(1_000 * SLICE));
        engine.submit(stream(1, 0), 1, Work::Wait { on: 7, sequence: 1 });
        engine.close_context(ContextId(50));
        assert!(done_at(&engine.take_effects(), stream(1, 0), 1).is_some());
    }

    proptest! {
        #[test]
        fn busy_time_is_the_sum_of_durations_however_the_clock_is_cut(
            work in proptest::collection::vec((1u32..4, 1u64..5_000_000, 0u64..3_000_000), 1..60),
            looks in proptest::collection::vec(1u64..7_000_000, 0..40),
        ) {
            let run = |looks: &[u64]| {
                let mut engine = engine();
                for client in 1..4 {
                    open(&mut engine, client, 1);
                }
                let mut looks = looks.iter();
                let (mut now, mut look) = (0, 0);
                let mut sequences = [0u64; 4];
                for (client, duration, gap) in &work {
                    now += gap;
                    while look < now {
                        engine.advance(look);
                        look += looks.next().copied().unwrap_or(u64::MAX / 2);
                    }
                    engine.advance(now);
                    let sequence = &mut sequences[*client as usize];
                    *sequence += 1;
                    engine.submit(stream(*client, 0), *sequence, kernel(*duration));
                }
                engine.advance(now + 1_000 * SLICE);
                let mut effects = engine.take_effects();
                effects.sort_by_key(|effect| format!("{effect:?}"));
                (engine.device_time(0), effects)
            };
            let (time, effects) = run(&looks);
            prop_assert_eq!(time.busy_ns, work.iter().map(|(_, duration, _)| duration).sum::<u64>());
            prop_assert_eq!(run(&[]), (time, effects));
        }
    }
}
