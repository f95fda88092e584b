//! Memory that processes share: IPC handles, descriptors of pools and their pieces, external memory.
//!
//! Descriptors of physical handles are `vmm`'s. Whoever opens memory holds it: it lives until its maker
//! and everybody else have let go, and its maker pays meanwhile. External memory is whatever a
//! descriptor of a physical handle stands for; there is no other interface to import from. Events are
//! shared in `event_sharing`.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_ulonglong, c_void};
use std::os::fd::{BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use ffi::driver::{
    CUDA_EXTERNAL_MEMORY_BUFFER_DESC, CUDA_EXTERNAL_MEMORY_HANDLE_DESC, CUdeviceptr,
    CUexternalMemory, CUexternalMemoryHandleType_enum, CUipcMem_flags_enum, CUipcMemHandle,
    CUmemAllocationHandleType, CUmemAllocationHandleType_enum, CUmemPoolPtrExportData,
    CUmemoryPool, CUresult,
};
use parking_lot::Mutex;
use sim::client::Imported;
use sim::hardware::memory::LARGE_PAGE_BYTES;

use crate::guard::{Answer, INVALID_VALUE, Out, take};
use crate::pool::{self, Pool, Sharing};
use crate::ranges::{Kind, Range, Reservation};
use crate::registry::handle_of;
use crate::state::{self, Driver, driver};

/// First word of what is handed to other processes, so that other bytes are not believed.
const MAGIC: u64 = u64::from_le_bytes(*b"SLUICEsh");

/// The words of an IPC handle or of a piece's export data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Shared {
    /// As all clients of the `gpu` process number it.
    device: u64,
    block: u64,
    /// Where in the block.
    offset: u64,
    bytes: u64,
    /// Process id of the maker, or the word of the pool.
    word: u64,
}

impl Shared {
    fn to_bytes(self) -> [u8; 64] {
        let words = [
            MAGIC,
            self.device,
            self.block,
            self.offset,
            self.bytes,
            self.word,
            0,
            0,
        ];
        sim::proto::to_bytes(&words)
    }

    fn from_bytes(bytes: &[u8; 64]) -> Answer<Self> {
        let [magic, device, block, offset, bytes, word, ..] = sim::proto::from_bytes(bytes);
        (magic == MAGIC)
            .then_some(Self {
                device,
                block,
                offset,
                bytes,
                word,
            })
            .ok_or(INVALID_VALUE)
    }

    /// Takes a reference to the block and says where it lies: device, first address, bytes.
    fn open(&self, driver: &Driver) -> Answer<(usize, u64, *mut u8)> {
        let device = usize::try_from(self.device).map_err(|_| INVALID_VALUE)?;
        let (device, block) = driver.link.open(device, self.block)?;
        let end = self.offset.checked_add(self.bytes);
        let placed = || {
            let window = driver.devices[device].window(driver)?;
            end.filter(|end| *end <= block.charged_bytes)
                .ok_or(INVALID_VALUE)?;
            let at = block.offset + self.offset;
            let reach = window.bytes_at(at, self.bytes)?;
            Ok((device, window.reservation.span().start + at, reach))
        };
        placed().or_else(|code| {
            driver.link.release(device, self.block)?;
            Err(code)
        })
    }
}

/// Opened IPC handles: first address, and how often each is open.
static OPENED: Mutex<BTreeMap<u64, u32>> = Mutex::new(BTreeMap::new());

fn ipc_handle(out: *mut CUipcMemHandle, address: CUdeviceptr) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let range = driver.ranges.find(address);
    let range = range
        .filter(|range| range.kind == Kind::Linear)
        .ok_or(INVALID_VALUE)?;
    let device = driver.link.share(range.device, range.block)?;
    let shared = Shared {
        device: device as u64,
        block: range.block,
        offset: 0,
        bytes: range.bytes,
        word: u64::from(std::process::id()),
    };
    out.write(CUipcMemHandle {
        reserved: shared.to_bytes().map(|byte| byte as _),
    });
    Ok(())
}

fn ipc_open(out: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let context = state::current()?;
    if flags != CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS.0 {
        return Err(INVALID_VALUE);
    }
    let shared = Shared::from_bytes(&handle.reserved.map(|byte| byte as u8))?;
    // As drivers do: a process cannot open what it has made itself.
    if shared.word == u64::from(std::process::id()) {
        return Err(CUresult::CUDA_ERROR_INVALID_CONTEXT);
    }
    let mut opened = OPENED.lock();
    let (device, start, reach) = shared.open(driver)?;
    let is_open = driver
        .ranges
        .find(start)
        .is_some_and(|range| range.kind == Kind::Opened && range.block == shared.block);
    if is_open {
        // One reference is held already.
        driver.link.release(device, shared.block)?;
    }
    if !is_open {
        driver.ranges.add(Range {
            start,
            bytes: shared.bytes,
            kind: Kind::Opened,
            reach,
            device,
            context: context.id,
            block: shared.block,
            number: driver.number(),
            extra: 0,
            is_accessible: true,
        });
        opened.insert(start, 0);
    }
    *opened.entry(start).or_insert(0) += 1;
    out.write(start);
    Ok(())
}

fn ipc_close(address: CUdeviceptr) -> Answer {
    let driver = driver()?;
    let context = state::current()?;
    let mut opened = OPENED.lock();
    let count = opened.get_mut(&address).ok_or(INVALID_VALUE)?;
    *count -= 1;
    if *count > 0 {
        return Ok(());
    }
    opened.remove(&address);
    drop(opened);
    context.synchronize(driver)?;
    let is_opened = |range: &Range| range.kind == Kind::Opened;
    let range = driver.ranges.remove(address, is_opened);
    let range = range.ok_or(INVALID_VALUE)?;
    driver.link.release(range.device, range.block)
}

/// A context that ends closes what was opened in it.
pub(crate) fn close_context(driver: &Driver, ranges: &[Range]) {
    for range in ranges.iter().filter(|range| range.kind == Kind::Opened) {
        OPENED.lock().remove(&range.start);
        // A device that is gone has taken everything back already.
        let _ = driver.link.release(range.device, range.block);
    }
}

/// # Errors
/// `CUDA_ERROR_NOT_SUPPORTED` for other kinds of handles than descriptors.
pub(crate) fn check_kind(kind: CUmemAllocationHandleType, flags: c_ulonglong) -> Answer {
    let posix = CUmemAllocationHandleType_enum::CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    match (kind, flags) {
        (kind, 0) if kind == posix => Ok(()),
        (_, 0) => Err(CUresult::CUDA_ERROR_NOT_SUPPORTED),
        _ => Err(INVALID_VALUE),
    }
}

/// Writes a descriptor where the host named; it is the host's from now on.
pub(crate) fn put_file(out: *mut c_void, file: OwnedFd) -> Answer {
    let out = Out::claim(out.cast::<c_int>())?;
    out.write(file.into_raw_fd());
    Ok(())
}

/// What a descriptor of the host's stands for, which it keeps.
pub(crate) fn import(driver: &Driver, file: c_int) -> Answer<Imported> {
    if file < 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the host says that it is open while the call lasts; what it is, is asked.
    let file = unsafe { BorrowedFd::borrow_raw(file) };
    driver.link.import(file)
}

/// The number of a descriptor that is passed as a pointer.
pub(crate) fn file_in(handle: *mut c_void) -> Answer<c_int> {
    c_int::try_from(handle as usize).map_err(|_| INVALID_VALUE)
}

fn export_pool(
    out: *mut c_void,
    handle: CUmemoryPool,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    check_kind(kind, flags)?;
    let driver = driver()?;
    let pool = pool::find(handle)?;
    let Sharing::Exportable(word) = pool.sharing else {
        return Err(INVALID_VALUE);
    };
    put_file(out, driver.link.export(pool.device, 0, word)?)
}

fn import_pool(
    out: *mut CUmemoryPool,
    handle: *mut c_void,
    kind: CUmemAllocationHandleType,
    flags: c_ulonglong,
) -> Answer {
    let out = Out::claim(out)?;
    check_kind(kind, flags)?;
    let driver = driver()?;
    let found = import(driver, file_in(handle)?)?;
    if found.block.id != 0 {
        driver.link.release(found.device, found.block.id)?;
        return Err(INVALID_VALUE);
    }
    let pool = Pool::new(found.device, false, 0, Sharing::Imported(found.word));
    out.write(driver.pools.add(Arc::new(pool)));
    Ok(())
}

fn export_piece(out: *mut CUmemPoolPtrExportData, address: CUdeviceptr) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let is_piece = |range: &Range| range.kind == Kind::Pool && range.start == address;
    let range = driver.ranges.find(address).filter(is_piece);
    let range = range.ok_or(INVALID_VALUE)?;
    let pool: Option<Arc<Pool>> = driver.pools.find(range.extra as usize as *mut c_void);
    let pool = pool.ok_or(INVALID_VALUE)?;
    let Sharing::Exportable(word) = pool.sharing else {
        return Err(INVALID_VALUE);
    };
    let (block, offset) = pool.chunk_of(address).ok_or(INVALID_VALUE)?;
    let device = driver.link.share(pool.device, block)?;
    let shared = Shared {
        device: device as u64,
        block,
        offset,
        bytes: range.bytes,
        word,
    };
    out.write(CUmemPoolPtrExportData {
        reserved: shared.to_bytes(),
    });
    Ok(())
}

fn import_piece(
    out: *mut CUdeviceptr,
    handle: CUmemoryPool,
    data: *mut CUmemPoolPtrExportData,
) -> Answer {
    let out = Out::claim(out)?;
    let driver = driver()?;
    let pool = pool::find(handle)?;
    let shared = Shared::from_bytes(&take(data.cast_const())?.reserved)?;
    if pool.sharing != Sharing::Imported(shared.word) {
        return Err(INVALID_VALUE);
    }
    let (device, start, reach) = shared.open(driver)?;
    if driver.ranges.find(start).is_some() {
        driver.link.release(device, shared.block)?;
        return Err(INVALID_VALUE);
    }
    driver.ranges.add(Range {
        start,
        bytes: shared.bytes,
        kind: Kind::ImportedPiece,
        reach,
        device,
        context: 0,
        block: shared.block,
        number: driver.number(),
        extra: handle_of::<Pool, c_void>(&pool) as u64,
        is_accessible: true,
    });
    out.write(start);
    Ok(())
}

/// Memory of another interface's.
pub(crate) struct External {
    device: usize,
    block: u64,
    offset: u64,
    bytes: u64,
}

/// The addresses of buffers in external memory.
static BUFFERS: Mutex<BTreeMap<u64, Reservation>> = Mutex::new(BTreeMap::new());

/// The descriptor is the library's once this has succeeded, and is closed: the memory is held without.
fn import_external(
    out: *mut CUexternalMemory,
    asked: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC,
) -> Answer {
    let out = Out::claim(out)?;
    let asked = take(asked)?;
    let driver = driver()?;
    if asked.type_ != CUexternalMemoryHandleType_enum::CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD {
        return Err(CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }
    // SAFETY: with this type the union holds a descriptor's number; every bit pattern is one.
    let file: RawFd = unsafe { asked.handle.fd };
    let found = import(driver, file)?;
    if asked.size == 0 || found.block.id == 0 || asked.size > found.block.charged_bytes {
        if found.block.id != 0 {
            driver.link.release(found.device, found.block.id)?;
        }
        return Err(INVALID_VALUE);
    }
    // SAFETY: the call has succeeded, and with that the host has given the descriptor away.
    drop(unsafe { OwnedFd::from_raw_fd(file) });
    let external = External {
        device: found.device,
        block: found.block.id,
        offset: found.block.offset,
        bytes: asked.size,
    };
    out.write(driver.externals.add(Arc::new(external)));
    Ok(())
}

fn external_buffer(
    out: *mut CUdeviceptr,
    handle: CUexternalMemory,
    asked: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC,
) -> Answer {
    let out = Out::claim(out)?;
    let asked = take(asked)?;
    let driver = driver()?;
    let external = driver.externals.find(handle);
    let external = external.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    let end = asked.offset.checked_add(asked.size).ok_or(INVALID_VALUE)?;
    if asked.size == 0 || end > external.bytes || asked.flags != 0 {
        return Err(INVALID_VALUE);
    }
    let window = driver.devices[external.device].window(driver)?;
    let reach = window.bytes_at(external.offset + asked.offset, asked.size)?;
    let addresses = Reservation::new(asked.size as usize, LARGE_PAGE_BYTES as usize);
    let addresses = addresses.map_err(|_| CUresult::CUDA_ERROR_OUT_OF_MEMORY)?;
    driver.link.retain(external.device, external.block)?;
    driver.ranges.add_window(&addresses);
    let start = addresses.span().start;
    BUFFERS.lock().insert(start, addresses);
    driver.ranges.add(Range {
        start,
        bytes: asked.size,
        kind: Kind::External,
        reach,
        device: external.device,
        context: 0,
        block: external.block,
        number: driver.number(),
        extra: 0,
        is_accessible: true,
    });
    out.write(start);
    Ok(())
}

fn destroy_external(handle: CUexternalMemory) -> Answer {
    let driver = driver()?;
    let external = driver.externals.remove(handle);
    let external = external.ok_or(CUresult::CUDA_ERROR_INVALID_HANDLE)?;
    driver.link.release(external.device, external.block)
}

/// `cuMemFree` of a buffer in external memory or of an imported piece of a pool; `None` for others.
pub(crate) fn free(driver: &Driver, address: u64) -> Option<Answer> {
    let fits = |range: &Range| matches!(range.kind, Kind::External | Kind::ImportedPiece);
    let range = driver.ranges.remove(address, fits)?;
    if range.kind == Kind::External {
        driver.ranges.remove_window(range.start);
        BUFFERS.lock().remove(&range.start);
    }
    Some(driver.link.release(range.device, range.block))
}

driver! {
    cuIpcGetMemHandle(handle: *mut CUipcMemHandle, dptr: CUdeviceptr) => ipc_handle;
    cuIpcOpenMemHandle(dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) => ipc_open;
    cuIpcOpenMemHandle_v2(dptr: *mut CUdeviceptr, handle: CUipcMemHandle, flags: c_uint) => ipc_open;
    cuIpcCloseMemHandle(dptr: CUdeviceptr) => ipc_close;
    cuMemPoolExportToShareableHandle(out: *mut c_void, pool: CUmemoryPool, kind: CUmemAllocationHandleType, flags: c_ulonglong) => export_pool;
    cuMemPoolImportFromShareableHandle(out: *mut CUmemoryPool, handle: *mut c_void, kind: CUmemAllocationHandleType, flags: c_ulonglong) => import_pool;
    cuMemPoolExportPointer(data: *mut CUmemPoolPtrExportData, dptr: CUdeviceptr) => export_piece;
    cuMemPoolImportPointer(dptr: *mut CUdeviceptr, pool: CUmemoryPool, data: *mut CUmemPoolPtrExportData) => import_piece;
    cuImportExternalMemory(out: *mut CUexternalMemory, desc: *const CUDA_EXTERNAL_MEMORY_HANDLE_DESC) => import_external;
    cuExternalMemoryGetMappedBuffer(dptr: *mut CUdeviceptr, memory: CUexternalMemory, desc: *const CUDA_EXTERNAL_MEMORY_BUFFER_DESC) => external_buffer;
    cuDestroyExternalMemory(memory: CUexternalMemory) => destroy_external;
}
