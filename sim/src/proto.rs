//! What the `gpu` process and its clients share: messages, pages, commands.
//!
//! * The control socket (`SOCK_SEQPACKET`): one [`Request`], one [`Reply`], both of fixed size, with
//!   descriptors where the operation hands out a page or a device's memory. For what is rare.
//! * The [`Board`]: one page for everybody, written by the `gpu` process alone: devices, what is held
//!   and how busy they are. Whoever only looks (NVML) needs nothing else.
//! * The [`ClientPage`]: one for each client that computes: a ring of [`Command`]s from the client,
//!   and the words that say how far its streams and events have come.
//!
//! Nothing here leaves the machine: integers are in its own byte order.

use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering, fence};

use crate::shared::Shared;

/// Names the socket of the `gpu` process to the client libraries.
pub const ENV_SOCKET: &str = "SLUICE_SIM_SOCKET";

/// Where the socket is when the variable is not set: root's daemon makes it there, and containers get it there.
pub const DEFAULT_SOCKET: &str = "/run/sluice/gpu.sock";

/// `1`: the client libraries stand alone, with one device in the process itself.
pub const ENV_NULL: &str = "SLUICE_SIM_NULL";

/// Devices of one `gpu` process. The node's own limit: 16 GPUs.
pub const MAX_DEVICES: usize = 16;

/// Clients of one `gpu` process at one time: several full containers and their tools.
pub const MAX_CLIENTS: usize = 4096;

/// Streams of one client, default streams included.
pub const MAX_STREAMS: usize = 8192;

/// Timed events of one client; the page is sparse, so unused ones cost nothing.
pub const MAX_EVENTS: usize = 1 << 18;

/// Events that all processes share, at one time.
pub const MAX_SHARED_EVENTS: usize = 4096;

/// Commands that fit into a client's ring.
///
/// 4096: several streams' worth of [`MAX_QUEUED`], so that the ring is rarely what blocks.
pub const RING_COMMANDS: usize = 4096;

/// Operations of one stream that are not done yet before the next submission blocks.
///
/// 1024: drivers take about a thousand launches before the call waits for one to retire.
pub const MAX_QUEUED: u64 = 1024;

/// First eight bytes of the board: `"SLUICEgp"`.
pub const BOARD_MAGIC: u64 = u64::from_le_bytes(*b"SLUICEgp");

/// Layout of everything in this module. Raised when something moves or changes its meaning.
pub const LAYOUT: u32 = 3;

/// Values of [`Request::operation`].
pub mod operation {
    /// First message. `arguments[0]`: [`super::LAYOUT`]; `[1]`: 1 for a client that computes.
    /// Answer: descriptors of the board and, for a client that computes, of its page, of the
    /// doorbell (an eventfd). `values[0]`: the client's slot on the board.
    pub const HELLO: u32 = 1;
    /// Asks for a device's memory file. `arguments[0]`: device. `values[0]`: its size.
    pub const DEVICE_MEMORY: u32 = 2;
    /// Makes a context. `arguments[0]`: device. `values[0]`: the context.
    pub const CONTEXT_OPEN: u32 = 3;
    /// Ends a context, its work and its linear memory. `arguments[0]`: context.
    pub const CONTEXT_CLOSE: u32 = 4;
    /// `arguments[0]`: device, `[1]`: bytes, `[2]`: context for linear memory, 0 for physical, `[3]`: 1 for
    /// managed memory of that context.
    /// `values[0]`: block, `[1]`: offset in the device's file, `[2]`: bytes charged.
    pub const ALLOCATE: u32 = 5;
    /// One more reference. `arguments[0]`: device, `[1]`: block.
    pub const RETAIN: u32 = 6;
    /// One reference less. `arguments[0]`: device, `[1]`: block.
    pub const RELEASE: u32 = 7;
    /// Lets other clients open a block. `arguments[0]`: device, `[1]`: block.
    pub const SHARE: u32 = 16;
    /// A reference to another client's block that is shared. `arguments[0]`: device, `[1]`: block.
    /// `values[0]`: offset in the device's file, `[1]`: bytes.
    pub const OPEN: u32 = 17;
    /// Makes a descriptor that stands for a block and holds it, until its last copy is closed.
    /// `arguments[0]`: device, `[1]`: block, or 0 for none, `[2]`: a word that goes with it.
    pub const EXPORT: u32 = 18;
    /// Takes such a descriptor, and a reference to its block. `values[0]`: device, `[1]`: block,
    /// `[2]`: its offset in the device's file, `[3]`: bytes, `[4]`: the word.
    pub const IMPORT: u32 = 19;
    /// A device falls off the bus, for everybody and for good. `arguments[0]`: device, `[1]`: the number
    /// (Xid) under which it is reported.
    pub const LOSE: u32 = 20;
    /// Sets a control group's limits; its directory comes along as a descriptor. `arguments[0]`: device,
    /// `[1]`: soft limit, `[2]`: hard limit, in bytes.
    pub const SET_GROUP_LIMITS: u32 = 21;
    /// Asks for them. `arguments[0]`: device. `values[0]`: soft limit, `[1]`: hard limit, `[2]`: bytes in use.
    pub const GROUP_LIMITS: u32 = 22;
    /// Asks for the page of events that processes share ([`super::SharedEvents`]).
    pub const SHARED_EVENTS: u32 = 23;
    /// Takes a place there. `values[0]`: place, `[1]`: the event's number.
    pub const EVENT_MAKE: u32 = 24;
    /// Gives it back. `arguments[0]`: place, `[1]`: number.
    pub const EVENT_FREE: u32 = 25;
    /// Moves a process on, or asks where it stands; its descriptor (`pidfd_open`) comes along.
    /// `arguments[0]`: one of [`super::checkpoint`]. `values[0]`: its state then, as `CUprocessState` numbers
    /// it, `[1]`: the thread of its library's that works for it, by its own pid namespace.
    pub const CHECKPOINT: u32 = 26;
}

/// What is to be done about a process, by [`operation::CHECKPOINT`].
pub mod checkpoint {
    /// Nothing: where does it stand?
    pub const LOOK: u64 = 0;
    /// Keep it from its next call. It is locked once it has none in progress and no work: ask until it is.
    pub const LOCK: u64 = 1;
    /// Let go of what could not be locked.
    pub const GIVE_UP: u64 = 2;
    /// Take what it holds off the devices.
    pub const TAKE_AWAY: u64 = 3;
    /// Bring it back.
    pub const BRING_BACK: u64 = 4;
    /// Let it go on.
    pub const UNLOCK: u64 = 5;
}

/// Values of [`Reply::status`].
pub mod status {
    /// Done.
    pub const OK: u32 = 0;
    /// The device has not that much left.
    pub const OUT_OF_MEMORY: u32 = 1;
    /// The request makes no sense.
    pub const INVALID: u32 = 2;
    /// Every slot is taken, or the process has no more resources.
    pub const EXHAUSTED: u32 = 3;
    /// The device has fallen off the bus.
    pub const LOST: u32 = 4;
    /// Only root may.
    pub const DENIED: u32 = 5;
    /// The descriptor is of no control group, or of no process that computes.
    pub const NOT_FOUND: u32 = 6;
    /// The process does not stand where that could be done.
    pub const STATE: u32 = 7;
    /// It holds what others hold too.
    pub const SHARED: u32 = 8;
}

/// A hard limit that limits nothing: `NVML_DEVICE_MEMORY_LIMIT_MAX`.
pub const NO_LIMIT: u64 = u64::MAX;

/// What a client asks on the control socket.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request {
    /// One of [`operation`].
    pub operation: u32,
    /// Zero.
    pub reserved: u32,
    /// As the operation says.
    pub arguments: [u64; 7],
}

/// What the `gpu` process answers.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reply {
    /// One of [`status`].
    pub status: u32,
    /// Zero.
    pub reserved: u32,
    /// As the operation says.
    pub values: [u64; 7],
}

/// Size of either message, in bytes.
pub const MESSAGE_BYTES: usize = 64;

const _: () = assert!(size_of::<Request>() == MESSAGE_BYTES);
const _: () = assert!(size_of::<Reply>() == MESSAGE_BYTES);

/// Eight words of a message, in its order; how [`Request`] and [`Reply`] travel.
pub type Words = [u64; 8];

impl Request {
    /// As it travels.
    pub fn to_words(&self) -> Words {
        let mut words = [0; 8];
        words[0] = u64::from(self.operation);
        words[1..].copy_from_slice(&self.arguments);
        words
    }

    /// From what travelled.
    pub fn from_words(words: &Words) -> Self {
        let mut arguments = [0; 7];
        arguments.copy_from_slice(&words[1..]);
        Self {
            operation: words[0] as u32,
            reserved: 0,
            arguments,
        }
    }
}

impl Reply {
    /// As it travels.
    pub fn to_words(&self) -> Words {
        let mut words = [0; 8];
        words[0] = u64::from(self.status);
        words[1..].copy_from_slice(&self.values);
        words
    }

    /// From what travelled.
    pub fn from_words(words: &Words) -> Self {
        let mut values = [0; 7];
        values.copy_from_slice(&words[1..]);
        Self {
            status: words[0] as u32,
            reserved: 0,
            values,
        }
    }
}

/// Words to bytes.
pub fn to_bytes(words: &Words) -> [u8; MESSAGE_BYTES] {
    let mut bytes = [0; MESSAGE_BYTES];
    for (chunk, word) in bytes.chunks_exact_mut(8).zip(words) {
        chunk.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

/// Bytes to words.
pub fn from_bytes(bytes: &[u8; MESSAGE_BYTES]) -> Words {
    let mut words = [0; 8];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_ne_bytes(eight);
    }
    words
}

/// What is fixed about a device, and what is counted about it.
#[repr(C)]
#[derive(Debug)]
pub struct DeviceBoard {
    /// Index into [`crate::profile::PROFILES`].
    pub profile: AtomicU32,
    /// PCI domain.
    pub pci_domain: AtomicU32,
    /// PCI bus.
    pub pci_bus: AtomicU32,
    /// PCI device.
    pub pci_device: AtomicU32,
    /// UUID, first half, as big-endian bytes.
    pub uuid_high: AtomicU64,
    /// UUID, second half, as big-endian bytes.
    pub uuid_low: AtomicU64,
    /// Device memory.
    pub total_bytes: AtomicU64,
    /// Size of the file that stands for it.
    pub window_bytes: AtomicU64,
    /// Bytes held by all clients.
    pub used_bytes: AtomicU64,
    /// Kernels have run for so long, up to the last change.
    pub busy_ns: AtomicU64,
    /// Since when kernels have been running without interruption; 0: none is.
    pub busy_since_ns: AtomicU64,
    /// Until when they will run at least.
    pub busy_until_ns: AtomicU64,
    /// Contexts have been exchanged for so long.
    pub switch_ns: AtomicU64,
    /// Number (Xid) under which its loss is reported; 0: it is there.
    pub lost_xid: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// A client's share of a device.
#[repr(C)]
#[derive(Debug)]
pub struct HoldingBoard {
    /// Bytes held.
    pub used_bytes: AtomicU64,
    /// Its kernels have run for so long, up to the last change.
    pub busy_ns: AtomicU64,
    /// Since when its kernels have been running; 0: none is.
    pub busy_since_ns: AtomicU64,
    /// Until when they will run at least.
    pub busy_until_ns: AtomicU64,
    /// Contexts that it has there.
    pub contexts: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
    /// Hard limit of its control group; [`NO_LIMIT`]: none.
    pub limit_bytes: AtomicU64,
    /// What that group holds.
    pub group_used_bytes: AtomicU64,
}

/// A client as everybody may see it.
#[repr(C)]
#[derive(Debug)]
pub struct ClientBoard {
    /// Process number in the `gpu` process's own pid namespace; 0: the slot is free.
    pub pid: AtomicI32,
    /// Zero.
    pub reserved: AtomicU32,
    /// By device.
    pub holdings: [HoldingBoard; MAX_DEVICES],
}

/// The page that everybody may read and the `gpu` process alone writes.
#[repr(C)]
#[derive(Debug)]
pub struct Board {
    /// [`BOARD_MAGIC`].
    pub magic: AtomicU64,
    /// [`LAYOUT`].
    pub layout: AtomicU32,
    /// Devices that there are.
    pub devices: AtomicU32,
    /// CUDA version of the driver that is stood in for.
    pub cuda_version: AtomicU32,
    /// 1 while the `gpu` process sleeps: a submission must ring the doorbell.
    pub is_sleeping: AtomicU32,
    /// Full driver version: characters, zeros after them.
    pub driver_version: [AtomicU32; 32],
    /// Client slots from 0 up to here have been used at least once.
    pub client_slots: AtomicU32,
    /// 1: contexts run side by side, as under a multi-process server.
    pub is_shared: AtomicU32,
    /// Odd while the rows below are being changed; a reader that sees two values reads again.
    pub sequence: AtomicU64,
    /// The devices.
    pub device: [DeviceBoard; MAX_DEVICES],
    /// The clients.
    pub client: [ClientBoard; MAX_CLIENTS],
}

// SAFETY: atomics only.
unsafe impl Shared for Board {}

/// How far a stream has come.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct StreamWord {
    /// Every operation up to this one is done.
    pub done: AtomicU64,
    /// Operation that has come to what the client is to do or to watch for: a host function, a wait for
    /// memory, a kernel that spins until it is told.
    pub host_ready: AtomicU64,
}

/// When an event was reached.
#[repr(C)]
#[derive(Debug)]
pub struct EventWord {
    /// Which of its records it was.
    pub generation: AtomicU64,
    /// When: nanoseconds of the monotonic clock, computed.
    pub at_ns: AtomicU64,
}

/// An event that processes share.
#[repr(C)]
#[derive(Debug)]
pub struct SharedEvent {
    /// Its own number; 0: the place is free.
    pub number: AtomicU64,
    /// How often it has been recorded.
    pub wanted: AtomicU64,
    /// Up to which of these records it has been reached.
    pub reached: AtomicU64,
    /// Slot on the board, plus one, of the client that has recorded it last.
    pub recorder: AtomicU32,
    /// Zero.
    pub reserved: AtomicU32,
}

/// The page of events that processes share; every client writes it.
#[repr(C)]
#[derive(Debug)]
pub struct SharedEvents {
    /// The places.
    pub events: [SharedEvent; MAX_SHARED_EVENTS],
}

// SAFETY: atomics only.
unsafe impl Shared for SharedEvents {}

/// A command in the ring: the words of a [`Command`].
#[repr(C, align(64))]
#[derive(Debug)]
pub struct CommandSlot {
    /// See [`Submission::to_words`].
    pub words: [AtomicU64; 8],
}

/// The page that one client and the `gpu` process share.
#[repr(C)]
#[derive(Debug)]
pub struct ClientPage {
    /// Commands taken by the `gpu` process so far.
    pub head: AtomicU64,
    /// Commands published by the client so far. Release; pairs with the Acquire in `gpu`.
    pub tail: AtomicU64,
    /// Raised after each change to the words below; a futex.
    pub generation: AtomicU32,
    /// Threads of the client that sleep on `generation`.
    pub waiters: AtomicU32,
    /// Raised with each host function that has become ready.
    pub host_calls: AtomicU32,
    /// 1: no call may begin; a futex. SeqCst with `calls`: the `gpu` process sees the call, or the call sees
    /// that it may not begin.
    pub is_locked: AtomicU32,
    /// Calls that are in progress.
    pub calls: AtomicU32,
    /// The thread of the library's that works for the process.
    pub worker: AtomicI32,
    /// The ring; command `n` lies at `n % RING_COMMANDS`.
    pub ring: [CommandSlot; RING_COMMANDS],
    /// The streams.
    pub streams: [StreamWord; MAX_STREAMS],
    /// The events.
    pub events: [EventWord; MAX_EVENTS],
}

// SAFETY: atomics only.
unsafe impl Shared for ClientPage {}

/// What a client submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Opens a stream in a context; a slot's sequence numbers go on when it is used again.
    Open {
        /// Context.
        context: u64,
        /// Lower goes first.
        priority: i32,
    },
    /// A kernel.
    Kernel {
        /// Running time.
        duration_ns: u64,
        /// Share of the device.
        warps: u64,
    },
    /// A transfer.
    Copy {
        /// Running time.
        duration_ns: u64,
    },
    /// Takes the time.
    Mark {
        /// Event slot.
        event: u32,
        /// Record.
        generation: u64,
    },
    /// Waits for another stream.
    Wait {
        /// Its slot.
        on: u32,
        /// Its operation.
        sequence: u64,
    },
    /// A function of the client's own.
    Host,
    /// The function of this operation has been run.
    HostDone,
    /// A kernel that runs until the client says with [`Command::HostDone`] that it is to end.
    Spin {
        /// Share of the device.
        warps: u64,
    },
    /// Ends the stream when it is done.
    Close,
}

/// A command with its stream, its number there, and when it was submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submission {
    /// Stream slot.
    pub stream: u32,
    /// Number of the operation in its stream.
    pub sequence: u64,
    /// Monotonic clock of the client.
    pub at_ns: u64,
    /// What.
    pub command: Command,
}

impl Submission {
    /// As it lies in the ring.
    pub fn to_words(&self) -> Words {
        let (kind, first, second) = match self.command {
            Command::Open { context, priority } => (1, context, i64::from(priority) as u64),
            Command::Kernel { duration_ns, warps } => (2, duration_ns, warps),
            Command::Copy { duration_ns } => (3, duration_ns, 0),
            Command::Mark { event, generation } => (4, u64::from(event), generation),
            Command::Wait { on, sequence } => (5, u64::from(on), sequence),
            Command::Host => (6, 0, 0),
            Command::HostDone => (7, 0, 0),
            Command::Close => (8, 0, 0),
            Command::Spin { warps } => (9, warps, 0),
        };
        [
            kind,
            u64::from(self.stream),
            self.sequence,
            self.at_ns,
            first,
            second,
            0,
            0,
        ]
    }

    /// From the ring; `None` for words that mean nothing.
    pub fn from_words(words: &Words) -> Option<Self> {
        let [kind, stream, sequence, at_ns, first, second, ..] = *words;
        let command = match kind {
            1 => Command::Open {
                context: first,
                priority: i32::try_from(second as i64).ok()?,
            },
            2 => Command::Kernel {
                duration_ns: first,
                warps: second,
            },
            3 => Command::Copy { duration_ns: first },
            4 => Command::Mark {
                event: u32::try_from(first).ok()?,
                generation: second,
            },
            5 => Command::Wait {
                on: u32::try_from(first).ok()?,
                sequence: second,
            },
            6 => Command::Host,
            7 => Command::HostDone,
            8 => Command::Close,
            9 => Command::Spin { warps: first },
            _ => return None,
        };
        Some(Self {
            stream: u32::try_from(stream).ok()?,
            sequence,
            at_ns,
            command,
        })
    }
}

impl CommandSlot {
    /// Writes `words`; the tail that publishes them is stored afterwards with Release.
    pub fn write(&self, words: &Words) {
        for (cell, word) in self.words.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
    }

    /// Reads the words; the tail that published them was loaded before with Acquire.
    pub fn read(&self) -> Words {
        let mut words = [0; 8];
        for (word, cell) in words.iter_mut().zip(&self.words) {
            *word = cell.load(Ordering::Relaxed);
        }
        words
    }
}

impl Board {
    /// Writes the driver's full version; characters beyond the field are cut off.
    pub fn set_driver_version(&self, version: &str) {
        for (cell, character) in self.driver_version.iter().zip(version.bytes()) {
            cell.store(u32::from(character), Ordering::Relaxed);
        }
    }

    /// What `read` yields while nothing below [`Board::sequence`] changes.
    ///
    /// Gives up after a while and yields what it has: a `gpu` process that died in the middle of a
    /// change must not hang its readers.
    pub fn read<T>(&self, read: impl Fn(&Self) -> T) -> T {
        for _ in 0..10_000 {
            // Acquire; pairs with the Release in `Board::change`.
            let before = self.sequence.load(Ordering::Acquire);
            let value = read(self);
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && self.sequence.load(Ordering::Relaxed) == before {
                return value;
            }
            std::hint::spin_loop();
        }
        read(self)
    }

    /// Makes what `change` writes visible to [`Board::read`] as one change. For the one writer.
    pub fn change(&self, change: impl FnOnce(&Self)) {
        let before = self.sequence.load(Ordering::Relaxed);
        self.sequence.store(before + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change(self);
        self.sequence.store(before + 2, Ordering::Release);
    }

    /// Reads the driver's full version.
    pub fn driver_version(&self) -> String {
        self.driver_version
            .iter()
            .map(|cell| cell.load(Ordering::Relaxed))
            .take_while(|character| *character != 0)
            .filter_map(char::from_u32)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_comes_out_of_the_ring_as_it_went_in() {
        let commands = [
            Command::Open {
                context: 7,
                priority: -5,
            },
            Command::Kernel {
                duration_ns: 1,
                warps: 2,
            },
            Command::Copy { duration_ns: 3 },
            Command::Mark {
                event: 4,
                generation: 5,
            },
            Command::Wait { on: 6, sequence: 7 },
            Command::Host,
            Command::HostDone,
            Command::Spin { warps: 8 },
            Command::Close,
        ];
        for command in commands {
            let sent = Submission {
                stream: 3,
                sequence: 4,
                at_ns: 5,
                command,
            };
            assert_eq!(Submission::from_words(&sent.to_words()), Some(sent));
        }
        assert_eq!(Submission::from_words(&[99; 8]), None);
    }
}
