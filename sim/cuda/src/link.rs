//! The device behind the library: the `gpu` process, or nothing at all.
//!
//! In null mode (`SLUICE_SIM_NULL=1`) there is one device in the process itself and all work is done
//! as soon as it is submitted: what remains is what the library's own calls cost.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ffi::driver::CUresult;
use parking_lot::Mutex;
use sim::client::{Block, Compute, Device, GpuError, Imported, MemoryState};
use sim::hardware::memory::{BlockId, Kind, Memory, MemoryError};
use sim::hardware::{ClientId, ContextId};
use sim::profile::{DriverVersion, PROFILES};
use sim::proto::{Command, ENV_NULL};
use sim::shared::{Access, Mapping, memory_file, now_ns, punch};

use crate::guard::Answer;

/// What the library stands on.
pub(crate) enum Link {
    /// The `gpu` process, and which of its devices this process sees, by their ordinals here.
    Gpu(Box<Compute>, Vec<usize>),
    /// Nothing: see the module.
    Null(Box<Null>),
}

/// The device of null mode.
pub(crate) struct Null {
    memory: Mutex<Memory>,
    file: OwnedFd,
    contexts: AtomicU64,
}

/// Names the devices that a process is to see: indices or UUIDs, whole or by their beginnings.
const ENV_VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Xid 79: the GPU has fallen off the bus.
const FALLEN_OFF_THE_BUS: u32 = 79;

/// The only client that there is in null mode.
const SELF: ClientId = ClientId(0);

impl Link {
    /// Connects to what the environment names.
    ///
    /// # Errors
    /// `CUDA_ERROR_NO_DEVICE`, as a driver without a device says.
    pub(crate) fn connect() -> Answer<Self> {
        if std::env::var_os(ENV_NULL).is_some_and(|value| value == "1") {
            return Null::new().map(|null| Self::Null(Box::new(null)));
        }
        let compute = Compute::connect().map_err(|_| CUresult::CUDA_ERROR_NO_DEVICE)?;
        let devices = compute.gpu().devices();
        let visible = match std::env::var(ENV_VISIBLE) {
            Ok(list) => visible(&list, &devices),
            Err(_) => (0..devices.len()).collect(),
        };
        if visible.is_empty() {
            return Err(CUresult::CUDA_ERROR_NO_DEVICE);
        }
        Ok(Self::Gpu(Box::new(compute), visible))
    }

    /// Every device.
    pub(crate) fn devices(&self) -> Vec<Device> {
        match self {
            Self::Gpu(compute, visible) => {
                let all = compute.gpu().devices();
                let seen = visible.iter().filter_map(|index| all.get(*index));
                let numbered = seen.cloned().enumerate();
                numbered
                    .map(|(index, device)| Device { index, ..device })
                    .collect()
            }
            Self::Null(_) => vec![Device {
                index: 0,
                profile: &PROFILES[0],
                name: PROFILES[0].name,
                uuid: *b"\x5c\x1c\xe0\0\0\0\x40\0\x80\0\0\0\0\0\0\0",
                memory_bytes: PROFILES[0].memory_bytes,
                pci: (0, 1, 0),
            }],
        }
    }

    /// The driver that is stood in for.
    pub(crate) fn driver_version(&self) -> DriverVersion {
        match self {
            Self::Gpu(compute, _) => compute.gpu().driver_version(),
            Self::Null(_) => DriverVersion::default(),
        }
    }

    /// Memory of a device now.
    ///
    /// # Errors
    /// `CUDA_ERROR_DEVICE_UNAVAILABLE` when the `gpu` process is gone.
    pub(crate) fn memory(&self, device: usize) -> Answer<MemoryState> {
        match self {
            Self::Gpu(compute, visible) if compute.gpu().is_alive() => {
                Ok(compute.gpu().memory_within(visible[device]))
            }
            Self::Gpu(..) => Err(CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE),
            Self::Null(null) => {
                let memory = null.memory.lock();
                let (total, used) = (memory.capacity(), memory.used());
                Ok(MemoryState {
                    total,
                    used,
                    free: total - used,
                })
            }
        }
    }

    /// The file and the mapping of a device's memory.
    pub(crate) fn map_device(&self, device: usize) -> Answer<(OwnedFd, Mapping)> {
        match self {
            Self::Gpu(compute, visible) => compute
                .map_device(visible[device])
                .map_err(|error| code(&error)),
            Self::Null(null) => {
                let bytes = usize::try_from(null.memory.lock().window()).unwrap_or(usize::MAX);
                let file = null.file.try_clone().map_err(|_| exhausted())?;
                let mapping = Mapping::new(&file, bytes, Access::Write).map_err(|_| exhausted())?;
                Ok((file, mapping))
            }
        }
    }

    /// Makes a context.
    pub(crate) fn open_context(&self, device: usize) -> Answer<u64> {
        match self {
            Self::Gpu(compute, visible) => {
                compute
                    .open_context(visible[device])
                    .map_err(|error| match error {
                        GpuError::Lost => CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
                        other => code(&other),
                    })
            }
            Self::Null(null) => Ok(null.contexts.fetch_add(1, Ordering::Relaxed) + 1),
        }
    }

    /// Ends a context.
    pub(crate) fn close_context(&self, context: u64) -> Answer {
        match self {
            Self::Gpu(compute, _) => compute.close_context(context).map_err(|error| code(&error)),
            Self::Null(null) => {
                for range in null.memory.lock().end_context(ContextId(context)) {
                    // The pages stay until they are used again should the machine refuse.
                    let _ = punch(&null.file, range.start, range.end - range.start);
                }
                Ok(())
            }
        }
    }

    /// Takes memory: linear memory of `context`, or physical memory if that is 0.
    pub(crate) fn allocate(&self, device: usize, bytes: u64, context: u64) -> Answer<Block> {
        let kind = match context {
            0 => Kind::Physical,
            context => Kind::Linear(ContextId(context)),
        };
        self.allocate_as(kind, device, bytes)
    }

    /// Takes memory of a kind.
    pub(crate) fn allocate_as(&self, kind: Kind, device: usize, bytes: u64) -> Answer<Block> {
        match self {
            Self::Gpu(compute, visible) => {
                let device = visible[device];
                let taken = match kind {
                    Kind::Physical => compute.allocate(device, bytes, 0),
                    Kind::Linear(context) => compute.allocate(device, bytes, context.0),
                    Kind::Managed(context) => compute.allocate_managed(device, bytes, context.0),
                };
                taken.map_err(|error| code(&error))
            }
            Self::Null(null) => {
                let placed = null.memory.lock().allocate(SELF, kind, bytes);
                placed
                    .map(|placed| Block {
                        id: placed.block.0,
                        offset: placed.offset,
                        charged_bytes: placed.charged_bytes,
                    })
                    .map_err(|error| match error {
                        MemoryError::OutOfMemory { .. } => exhausted(),
                        _ => CUresult::CUDA_ERROR_INVALID_VALUE,
                    })
            }
        }
    }

    /// Adds a reference to a block.
    pub(crate) fn retain(&self, device: usize, block: u64) -> Answer {
        match self {
            Self::Gpu(compute, visible) => compute
                .retain(visible[device], block)
                .map_err(|error| code(&error)),
            Self::Null(null) => null
                .memory
                .lock()
                .retain(SELF, BlockId(block))
                .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Drops a reference to a block.
    pub(crate) fn release(&self, device: usize, block: u64) -> Answer {
        match self {
            Self::Gpu(compute, visible) => compute
                .release(visible[device], block)
                .map_err(|error| code(&error)),
            // The pages stay until they are used again: nothing but the call itself is to cost.
            Self::Null(null) => null
                .memory
                .lock()
                .release(SELF, BlockId(block))
                .map(drop)
                .map_err(|_| CUresult::CUDA_ERROR_INVALID_VALUE),
        }
    }

    /// Lets other processes open a block; yields the device's number that they have for it.
    pub(crate) fn share(&self, device: usize, block: u64) -> Answer<usize> {
        let Self::Gpu(compute, visible) = self else {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        };
        let shared = compute.share(visible[device], block);
        shared.map_err(|error| code(&error))?;
        Ok(visible[device])
    }

    /// Takes a reference to another process's block; yields the device's number here.
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_DEVICE` for a device that this process does not see.
    pub(crate) fn open(&self, device: usize, block: u64) -> Answer<(usize, Block)> {
        let Self::Gpu(compute, visible) = self else {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        };
        let here = visible.iter().position(|seen| *seen == device);
        let here = here.ok_or(CUresult::CUDA_ERROR_INVALID_DEVICE)?;
        let opened = compute.open(device, block);
        Ok((here, opened.map_err(|error| code(&error))?))
    }

    /// Makes a descriptor that stands for a block, or for `word` alone where that is 0.
    pub(crate) fn export(&self, device: usize, block: u64, word: u64) -> Answer<OwnedFd> {
        let Self::Gpu(compute, visible) = self else {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        };
        let exported = compute.export(visible[device], block, word);
        exported.map_err(|error| code(&error))
    }

    /// What a descriptor of [`Link::export`] stands for; its block is held from now on.
    ///
    /// # Errors
    /// As [`Link::open`]; `CUDA_ERROR_INVALID_VALUE` for another descriptor.
    pub(crate) fn import(&self, file: BorrowedFd<'_>) -> Answer<Imported> {
        let Self::Gpu(compute, visible) = self else {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        };
        let found = compute.import(file).map_err(|error| code(&error))?;
        match visible.iter().position(|seen| *seen == found.device) {
            Some(device) => Ok(Imported { device, ..found }),
            None => {
                if found.block.id != 0 {
                    let released = compute.release(found.device, found.block.id);
                    released.map_err(|error| code(&error))?;
                }
                Err(CUresult::CUDA_ERROR_INVALID_DEVICE)
            }
        }
    }

    /// Opens a stream; see [`Compute::open_stream`].
    pub(crate) fn open_stream(
        &self,
        slot: u32,
        last: &AtomicU64,
        context: u64,
        priority: i32,
    ) -> Answer {
        match self {
            Self::Gpu(compute, _) => compute
                .open_stream(slot, last, context, priority)
                .map_err(|error| code(&error)),
            Self::Null(_) => Ok(()),
        }
    }

    /// Submits to a stream; see [`Compute::submit`].
    pub(crate) fn submit(&self, slot: u32, last: &AtomicU64, commands: &[Command]) -> Answer<u64> {
        match self {
            Self::Gpu(compute, _) => compute
                .submit(slot, last, commands)
                .map_err(|error| code(&error)),
            Self::Null(_) => {
                let count = commands.len() as u64;
                Ok(last.fetch_add(count, Ordering::Relaxed) + count)
            }
        }
    }

    /// Which operation of a stream is the last one that is done.
    pub(crate) fn done(&self, slot: u32) -> u64 {
        match self {
            Self::Gpu(compute, _) => compute.done(slot),
            Self::Null(_) => u64::MAX,
        }
    }

    /// Sleeps until operation `sequence` of a stream is done.
    pub(crate) fn wait(&self, slot: u32, sequence: u64) -> Answer {
        match self {
            Self::Gpu(compute, _) => compute
                .wait(|| compute.done(slot) >= sequence)
                .map_err(|error| code(&error)),
            Self::Null(_) => Ok(()),
        }
    }

    /// When an event was reached.
    pub(crate) fn event_time(&self, event: u32, generation: u64) -> Option<u64> {
        match self {
            Self::Gpu(compute, _) => compute.event_time(event, generation),
            Self::Null(_) => Some(now_ns()),
        }
    }

    /// The page of events that processes share; see [`Compute::map_shared_events`].
    pub(crate) fn map_shared_events(&self) -> Answer<Mapping> {
        match self {
            Self::Gpu(compute, _) => compute.map_shared_events().map_err(|error| code(&error)),
            Self::Null(_) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        }
    }

    /// Takes a place there: place and number; `None` in null mode.
    pub(crate) fn make_shared_event(&self) -> Answer<Option<(usize, u64)>> {
        match self {
            Self::Gpu(compute, _) => compute
                .make_shared_event()
                .map(Some)
                .map_err(|error| code(&error)),
            Self::Null(_) => Ok(None),
        }
    }

    /// Gives a place back.
    pub(crate) fn free_shared_event(&self, index: usize, number: u64) {
        if let Self::Gpu(compute, _) = self {
            // A `gpu` process that has gone away has taken it back already.
            let _ = compute.free_shared_event(index, number);
        }
    }

    /// This process's slot on the board.
    pub(crate) fn client_slot(&self) -> u32 {
        match self {
            Self::Gpu(compute, _) => compute.gpu().slot(),
            Self::Null(_) => 0,
        }
    }

    /// Whether processes run side by side, as under a multi-process server.
    pub(crate) fn is_shared(&self) -> bool {
        match self {
            Self::Gpu(compute, _) => compute.gpu().is_shared(),
            Self::Null(_) => false,
        }
    }

    /// Lets a device fall off the bus; there is none to lose in null mode.
    pub(crate) fn lose(&self, device: usize) {
        if let Self::Gpu(compute, visible) = self {
            // A `gpu` process that has gone away has lost them all.
            let _ = compute.lose(visible[device], FALLEN_OFF_THE_BUS);
        }
    }

    /// Refuses where a device has fallen off the bus.
    ///
    /// # Errors
    /// `CUDA_ERROR_LAUNCH_FAILED`, from then on for every call that has to do with the device.
    pub(crate) fn check(&self, device: usize) -> Answer {
        match self {
            Self::Gpu(compute, visible) if compute.gpu().lost_xid(visible[device]).is_some() => {
                Err(CUresult::CUDA_ERROR_LAUNCH_FAILED)
            }
            _ => Ok(()),
        }
    }

    /// Begins a call of the program's; see [`Compute::begin_call`].
    #[inline]
    pub(crate) fn begin_call(&self) {
        if let Self::Gpu(compute, _) = self {
            compute.begin_call();
        }
    }

    /// Ends it.
    #[inline]
    pub(crate) fn end_call(&self) {
        if let Self::Gpu(compute, _) = self {
            compute.end_call();
        }
    }

    /// Names the thread that works for this process.
    pub(crate) fn set_worker(&self, thread: i32) {
        if let Self::Gpu(compute, _) = self {
            compute.page().worker.store(thread, Ordering::Release);
        }
    }

    /// See [`Compute::checkpoint`].
    ///
    /// # Errors
    /// `CUDA_ERROR_INVALID_VALUE` for a process that does not compute, `CUDA_ERROR_NOT_PERMITTED` for
    /// another user's, `CUDA_ERROR_ILLEGAL_STATE` where it does not stand so, `CUDA_ERROR_NOT_SUPPORTED`
    /// where it shares memory, and in null mode.
    pub(crate) fn checkpoint(&self, process: BorrowedFd<'_>, action: u64) -> Answer<(u32, i32)> {
        let Self::Gpu(compute, _) = self else {
            return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
        };
        let done = compute.checkpoint(process, action);
        done.map_err(|error| match error {
            GpuError::NoGroup => CUresult::CUDA_ERROR_INVALID_VALUE,
            GpuError::Denied => CUresult::CUDA_ERROR_NOT_PERMITTED,
            GpuError::State => CUresult::CUDA_ERROR_ILLEGAL_STATE,
            GpuError::Shared => CUresult::CUDA_ERROR_NOT_SUPPORTED,
            other => code(&other),
        })
    }

    /// Whether the device behind is there.
    pub(crate) fn is_alive(&self) -> bool {
        match self {
            Self::Gpu(compute, _) => compute.gpu().is_alive(),
            Self::Null(_) => true,
        }
    }

    /// Sleeps until something has changed or `limit` has passed, unless `is_over` holds.
    pub(crate) fn wait_for_change(&self, is_over: impl Fn() -> bool, limit: Duration) {
        match self {
            Self::Gpu(compute, _) => compute.wait_for_change(is_over, limit),
            Self::Null(_) => {}
        }
    }
}

impl Null {
    fn new() -> Answer<Self> {
        let memory = Memory::new(PROFILES[0].memory_bytes);
        let file = memory_file("sluice-sim-null", memory.window()).map_err(|_| exhausted())?;
        Ok(Self {
            memory: Mutex::new(memory),
            file,
            contexts: AtomicU64::new(0),
        })
    }
}

/// The devices that `list` names, in its order; the first word that names none ends it, and so does
/// one that names a device again.
fn visible(list: &str, devices: &[Device]) -> Vec<usize> {
    let mut seen = Vec::new();
    for word in list.split(',').map(str::trim) {
        let named = match word.parse::<usize>() {
            Ok(index) => devices.get(index).map(|device| device.index),
            Err(_) => by_uuid(word, devices),
        };
        match named {
            Some(index) if !seen.contains(&index) => seen.push(index),
            _ => break,
        }
    }
    seen
}

/// The only device whose UUID begins with `word`.
fn by_uuid(word: &str, devices: &[Device]) -> Option<usize> {
    let begins = |device: &&Device| word.len() > 4 && device.uuid_text().starts_with(word);
    let mut matching = devices.iter().filter(begins);
    let only = matching.next()?;
    matching.next().is_none().then_some(only.index)
}

fn exhausted() -> CUresult {
    CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// What the host is told of a failure.
fn code(error: &GpuError) -> CUresult {
    match error {
        GpuError::OutOfMemory | GpuError::Exhausted => CUresult::CUDA_ERROR_OUT_OF_MEMORY,
        GpuError::Refused => CUresult::CUDA_ERROR_INVALID_VALUE,
        GpuError::Lost => CUresult::CUDA_ERROR_LAUNCH_FAILED,
        GpuError::System(_) => CUresult::CUDA_ERROR_OPERATING_SYSTEM,
        _ => CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_visible_devices_ends_with_the_first_word_that_names_none() {
        let devices: Vec<Device> = (0..3)
            .map(|index| Device {
                index,
                profile: &PROFILES[0],
                name: PROFILES[0].name,
                uuid: [index as u8 * 16 + 1; 16],
                memory_bytes: 1,
                pci: (0, 0, 0),
            })
            .collect();
        let second = devices[1].uuid_text();
        for (list, seen) in [
            ("0,1,2", vec![0, 1, 2]),
            ("2,0", vec![2, 0]),
            (" 1 ", vec![1]),
            ("0,-1,1", vec![0]),
            ("1,7,0", vec![1]),
            ("1,1", vec![1]),
            ("", vec![]),
            ("NoDevFiles", vec![]),
            ("GPU-", vec![]),
            (second.as_str(), vec![1]),
            (&second[..8], vec![1]),
        ] {
            assert_eq!(visible(list, &devices), seen, "{list}");
        }
    }
}
