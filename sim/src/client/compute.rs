//! The computing half of a connection: contexts, memory, streams.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use parking_lot::Mutex;

use super::{Gpu, GpuError, socket_from_environment};
use crate::proto::{
    ClientPage, Command, MAX_QUEUED, RING_COMMANDS, SharedEvents, Submission, operation,
};
use crate::shared::{Access, Mapping, futex_wait, now_ns};

/// Longest that a wait goes on without asking whether the `gpu` process is still there.
const LIVENESS: Duration = Duration::from_millis(100);

/// A block of device memory that this client holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Its name.
    pub id: u64,
    /// First byte in the device's file.
    pub offset: u64,
    /// Bytes charged.
    pub charged_bytes: u64,
}

/// What a descriptor stood for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Imported {
    /// Its device.
    pub device: usize,
    /// Its block, held from now on; 0: none.
    pub block: Block,
    /// The word that goes with it.
    pub word: u64,
}

/// A connection that computes.
///
/// Streams are numbered by the caller. A stream's operations are counted from where it was opened;
/// [`Compute::submit`] gives the number of the last one, and [`Compute::done`] says which is done.
#[derive(Debug)]
pub struct Compute {
    gpu: Gpu,
    page: Mapping,
    doorbell: OwnedFd,
    ring: Mutex<()>,
}

impl Compute {
    /// Connects to the process that the environment names.
    ///
    /// # Errors
    /// As [`Gpu::connect`].
    pub fn connect() -> Result<Self, GpuError> {
        Self::connect_to(&socket_from_environment()?)
    }

    /// Connects to the process behind `path`.
    ///
    /// # Errors
    /// As [`Gpu::connect_to`].
    pub fn connect_to(path: &Path) -> Result<Self, GpuError> {
        let (gpu, files) = Gpu::greet(path, 1)?;
        let [page, doorbell]: [OwnedFd; 2] = files.try_into().map_err(|_| GpuError::Version)?;
        let page = Mapping::new(page, size_of::<ClientPage>(), Access::Write)?;
        Ok(Self {
            gpu,
            page,
            doorbell,
            ring: Mutex::new(()),
        })
    }

    /// The looking half of the connection.
    pub fn gpu(&self) -> &Gpu {
        &self.gpu
    }

    /// The page shared with the `gpu` process.
    pub fn page(&self) -> &ClientPage {
        self.page.page()
    }

    /// The memory of `device`, mapped for moving bytes.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a device that there is not; what `mmap` says.
    pub fn map_device(&self, device: usize) -> Result<(OwnedFd, Mapping), GpuError> {
        let (reply, files) = self.gpu.call(operation::DEVICE_MEMORY, &[device as u64])?;
        let file = files.into_iter().next().ok_or(GpuError::Version)?;
        let bytes = usize::try_from(reply.values[0]).map_err(io::Error::other)?;
        let mapping = Mapping::new(&file, bytes, Access::Write)?;
        Ok((file, mapping))
    }

    /// Makes a context on `device` and yields its number.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`] when the context's own memory is not free.
    pub fn open_context(&self, device: usize) -> Result<u64, GpuError> {
        let (reply, _) = self.gpu.call(operation::CONTEXT_OPEN, &[device as u64])?;
        Ok(reply.values[0])
    }

    /// Ends a context with its work and its linear memory.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a context that this client has not.
    pub fn close_context(&self, context: u64) -> Result<(), GpuError> {
        self.gpu
            .call(operation::CONTEXT_CLOSE, &[context])
            .map(drop)
    }

    /// Takes `bytes` of `device`: linear memory of `context`, or physical memory if that is 0.
    ///
    /// # Errors
    /// [`GpuError::OutOfMemory`], or [`GpuError::Refused`] for a senseless size.
    pub fn allocate(&self, device: usize, bytes: u64, context: u64) -> Result<Block, GpuError> {
        self.allocate_as(&[device as u64, bytes, context])
    }

    /// Takes `bytes` of managed memory for `context`, wherever there is room.
    ///
    /// # Errors
    /// As [`Compute::allocate`].
    pub fn allocate_managed(
        &self,
        device: usize,
        bytes: u64,
        context: u64,
    ) -> Result<Block, GpuError> {
        self.allocate_as(&[device as u64, bytes, context, 1])
    }

    fn allocate_as(&self, arguments: &[u64]) -> Result<Block, GpuError> {
        let (reply, _) = self.gpu.call(operation::ALLOCATE, arguments)?;
        Ok(Block {
            id: reply.values[0],
            offset: reply.values[1],
            charged_bytes: reply.values[2],
        })
    }

    /// Adds a reference to a block.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that this client has not.
    pub fn retain(&self, device: usize, block: u64) -> Result<(), GpuError> {
        let arguments = [device as u64, block];
        self.gpu.call(operation::RETAIN, &arguments).map(drop)
    }

    /// Drops a reference; the last one frees the block.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that this client has not.
    pub fn release(&self, device: usize, block: u64) -> Result<(), GpuError> {
        let arguments = [device as u64, block];
        self.gpu.call(operation::RELEASE, &arguments).map(drop)
    }

    /// Lets other clients open a block of this client's.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that this client has not.
    pub fn share(&self, device: usize, block: u64) -> Result<(), GpuError> {
        let arguments = [device as u64, block];
        self.gpu.call(operation::SHARE, &arguments).map(drop)
    }

    /// Takes a reference to another client's block.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that is not there, or not shared.
    pub fn open(&self, device: usize, block: u64) -> Result<Block, GpuError> {
        let arguments = [device as u64, block];
        let (reply, _) = self.gpu.call(operation::OPEN, &arguments)?;
        Ok(Block {
            id: block,
            offset: reply.values[0],
            charged_bytes: reply.values[1],
        })
    }

    /// The page of events that processes share, mapped.
    ///
    /// # Errors
    /// What `mmap` says.
    pub fn map_shared_events(&self) -> Result<Mapping, GpuError> {
        let (_, files) = self.gpu.call(operation::SHARED_EVENTS, &[])?;
        let file = files.into_iter().next().ok_or(GpuError::Version)?;
        Ok(Mapping::new(
            &file,
            size_of::<SharedEvents>(),
            Access::Write,
        )?)
    }

    /// Takes a place in that page, and the event's number.
    ///
    /// # Errors
    /// [`GpuError::Exhausted`] where every place is taken.
    pub fn make_shared_event(&self) -> Result<(usize, u64), GpuError> {
        let (reply, _) = self.gpu.call(operation::EVENT_MAKE, &[])?;
        let index = usize::try_from(reply.values[0]).map_err(io::Error::other)?;
        Ok((index, reply.values[1]))
    }

    /// Gives a place back.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a place that is not this client's, or not that event's.
    pub fn free_shared_event(&self, index: usize, number: u64) -> Result<(), GpuError> {
        let arguments = [index as u64, number];
        self.gpu.call(operation::EVENT_FREE, &arguments).map(drop)
    }

    /// Lets a device fall off the bus, for everybody and for good, under the number `xid`.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a device that there is not, or the number 0.
    pub fn lose(&self, device: usize, xid: u32) -> Result<(), GpuError> {
        let arguments = [device as u64, u64::from(xid)];
        self.gpu.call(operation::LOSE, &arguments).map(drop)
    }

    /// Moves a process on by `action`, one of [`checkpoint`](crate::proto::checkpoint); `process` is its pidfd.
    /// Yields its state, as `CUprocessState` numbers it, and the thread that works for it.
    ///
    /// # Errors
    /// [`GpuError::NoGroup`] for a process that does not compute, [`GpuError::Denied`] for another user's,
    /// [`GpuError::State`] where it does not stand so, [`GpuError::Shared`] where it shares memory,
    /// [`GpuError::OutOfMemory`] where what it held does not fit any more.
    pub fn checkpoint(&self, process: BorrowedFd<'_>, action: u64) -> Result<(u32, i32), GpuError> {
        let files = [process.as_raw_fd()];
        let (reply, _) = self
            .gpu
            .call_with(operation::CHECKPOINT, &[action], &files)?;
        Ok((reply.values[0] as u32, reply.values[1] as i32))
    }

    /// Begins a call of the program's, unless the process is locked: then it waits until that is over, or the
    /// `gpu` process gone. [`Compute::end_call`] ends it.
    pub fn begin_call(&self) {
        let page = self.page();
        loop {
            page.calls.fetch_add(1, Ordering::SeqCst);
            if page.is_locked.load(Ordering::SeqCst) == 0 || !self.gpu.is_alive() {
                return;
            }
            self.end_call();
            futex_wait(&page.is_locked, 1, LIVENESS);
        }
    }

    /// Ends a call of the program's.
    pub fn end_call(&self) {
        self.page().calls.fetch_sub(1, Ordering::SeqCst);
    }

    /// Makes a descriptor that stands for `block` (0: none) and holds it while a copy of it is open.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a block that this client has not.
    pub fn export(&self, device: usize, block: u64, word: u64) -> Result<OwnedFd, GpuError> {
        let arguments = [device as u64, block, word];
        let (_, files) = self.gpu.call(operation::EXPORT, &arguments)?;
        files.into_iter().next().ok_or(GpuError::Version)
    }

    /// Finds out what a descriptor stands for, and holds its block.
    ///
    /// # Errors
    /// [`GpuError::Refused`] for a descriptor that [`Compute::export`] has not made.
    pub fn import(&self, file: BorrowedFd<'_>) -> Result<Imported, GpuError> {
        let files = [file.as_raw_fd()];
        let (reply, _) = self.gpu.call_with(operation::IMPORT, &[], &files)?;
        let [device, id, offset, charged_bytes, word, ..] = reply.values;
        Ok(Imported {
            device: usize::try_from(device).map_err(io::Error::other)?,
            block: Block {
                id,
                offset,
                charged_bytes,
            },
            word,
        })
    }

    /// Submits `commands` to a stream, in order and with nothing between them, and yields the
    /// number of the last; `last` is the stream's counter, which only this function raises.
    ///
    /// Blocks while [`MAX_QUEUED`] operations of the stream are not done, as a driver does.
    ///
    /// # Errors
    /// [`GpuError::Gone`].
    pub fn submit(
        &self,
        stream: u32,
        last: &AtomicU64,
        commands: &[Command],
    ) -> Result<u64, GpuError> {
        let is_queue_full = || last.load(Ordering::Relaxed) >= self.done(stream) + MAX_QUEUED;
        if is_queue_full() {
            self.wait(|| !is_queue_full())?;
        }
        self.publish(stream, commands.len() as u64, |at_ns| {
            let before = last.load(Ordering::Relaxed);
            last.store(before + commands.len() as u64, Ordering::Release);
            let numbered = (before + 1..).zip(commands);
            numbered.map(move |(sequence, command)| Submission {
                stream,
                sequence,
                at_ns,
                command: *command,
            })
        })
    }

    /// Opens a stream in a context; its operations are counted on from `last`.
    ///
    /// # Errors
    /// [`GpuError::Gone`].
    pub fn open_stream(
        &self,
        stream: u32,
        last: &AtomicU64,
        context: u64,
        priority: i32,
    ) -> Result<(), GpuError> {
        self.publish(stream, 1, |at_ns| {
            std::iter::once(Submission {
                stream,
                sequence: last.load(Ordering::Relaxed),
                at_ns,
                command: Command::Open { context, priority },
            })
        })?;
        Ok(())
    }

    /// Says that the function of operation `sequence` has been run.
    ///
    /// # Errors
    /// [`GpuError::Gone`].
    pub fn host_done(&self, stream: u32, sequence: u64) -> Result<(), GpuError> {
        self.publish(stream, 1, |at_ns| {
            std::iter::once(Submission {
                stream,
                sequence,
                at_ns,
                command: Command::HostDone,
            })
        })?;
        Ok(())
    }

    /// Which operation of `stream` is the last one that is done.
    pub fn done(&self, stream: u32) -> u64 {
        // Acquire; pairs with the Release in `gpu`: what an event's word says is there by then.
        self.page()
            .streams
            .get(stream as usize)
            .map_or(u64::MAX, |word| word.done.load(Ordering::Acquire))
    }

    /// When the record `generation` of event slot `event` was reached, if it was.
    pub fn event_time(&self, event: u32, generation: u64) -> Option<u64> {
        let word = self.page().events.get(event as usize)?;
        let is_reached = word.generation.load(Ordering::Acquire) >= generation;
        is_reached.then(|| word.at_ns.load(Ordering::Relaxed))
    }

    /// Sleeps until `is_over` holds.
    ///
    /// # Errors
    /// [`GpuError::Gone`] if the `gpu` process goes away meanwhile.
    pub fn wait(&self, is_over: impl Fn() -> bool) -> Result<(), GpuError> {
        while !is_over() {
            self.wait_for_change(&is_over, LIVENESS);
            if !is_over() && !self.gpu.is_alive() {
                return Err(GpuError::Gone);
            }
        }
        Ok(())
    }

    /// Sleeps until `is_over` holds, something has changed, or `limit` has passed.
    pub fn wait_for_change(&self, is_over: impl Fn() -> bool, limit: Duration) {
        let page = self.page();
        // SeqCst; pairs with the fence in `gpu::publish`: either it sees us, or we see its change.
        page.waiters.fetch_add(1, Ordering::SeqCst);
        let generation = page.generation.load(Ordering::SeqCst);
        if !is_over() {
            futex_wait(&page.generation, generation, limit);
        }
        page.waiters.fetch_sub(1, Ordering::SeqCst);
    }

    /// Writes `count` submissions into the ring under its lock and rings where nobody would look.
    fn publish<I: Iterator<Item = Submission>>(
        &self,
        stream: u32,
        count: u64,
        submissions: impl FnOnce(u64) -> I,
    ) -> Result<u64, GpuError> {
        let page = self.page();
        let mut ring = self.ring.lock();
        let has_room = || {
            let taken = page.head.load(Ordering::Acquire);
            page.tail.load(Ordering::Relaxed) - taken + count <= RING_COMMANDS as u64
        };
        while !has_room() {
            drop(ring);
            self.ring_doorbell();
            self.wait(has_room)?;
            ring = self.ring.lock();
        }
        if self.gpu.is_gone.load(Ordering::Relaxed) {
            return Err(GpuError::Gone);
        }
        let mut tail = page.tail.load(Ordering::Relaxed);
        let mut last = 0;
        let mut must_ring = false;
        let done = self.done(stream);
        for submission in submissions(now_ns()) {
            let slot = (tail % RING_COMMANDS as u64) as usize;
            page.ring[slot].write(&submission.to_words());
            // While an earlier operation of the stream is not done, the `gpu` process will wake for
            // it by itself and then find this one; the answer to a host function has no such herald.
            must_ring |= submission.sequence <= done + 1 || submission.command == Command::HostDone;
            last = submission.sequence;
            tail += 1;
        }
        page.tail.store(tail, Ordering::Release);
        drop(ring);
        // Pairs with the fence in `gpu` before it sleeps: it sees the tail, or we see it sleeping.
        fence(Ordering::SeqCst);
        // What was not done above may be by now, with the process asleep again: look once more.
        must_ring |= last > 0 && self.done(stream) + count >= last;
        if must_ring && self.gpu.board().is_sleeping.load(Ordering::Relaxed) == 1 {
            self.ring_doorbell();
        }
        Ok(last)
    }

    fn ring_doorbell(&self) {
        // A full counter means that it has been rung and not heard yet.
        let _ = nix::unistd::write(&self.doorbell, &1u64.to_ne_bytes());
    }
}
