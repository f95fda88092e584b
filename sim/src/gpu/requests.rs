//! Requests on the control socket, and their answers.

use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use nix::fcntl::OFlag;
use nix::sys::socket::{MsgFlags, recv};

use super::process::{Device, Export, Process, punch_all};
use crate::client::{receive, send};
use crate::hardware::memory::{BlockId, Kind, MemoryError};
use crate::hardware::{ClientId, ContextId};
use crate::proto::{ClientPage, LAYOUT, Reply, Request, from_bytes, operation, status, to_bytes};
use crate::shared::{Access, Mapping, memory_file};

impl Process {
    /// Reads one request and answers it; a client that is gone or speaks nonsense is ended.
    pub(super) fn answer(&mut self, id: ClientId) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let mut peek = [0; 1];
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        if let Err(nix::Error::EAGAIN) = recv(client.socket.as_raw_fd(), &mut peek, flags) {
            return;
        }
        let Ok(Some((bytes, given))) = receive(&client.socket) else {
            return self.end(id);
        };
        let request = Request::from_words(&from_bytes(&bytes));
        // What was submitted before the request happened before it.
        self.advance();
        let mut files = Vec::new();
        let reply = match self.perform(id, &request, &given, &mut files) {
            Ok(values) => Reply {
                status: status::OK,
                reserved: 0,
                values,
            },
            Err(refusal) => Reply {
                status: refusal,
                ..Reply::default()
            },
        };
        self.tell();
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let numbers: Vec<RawFd> = files.iter().map(AsRawFd::as_raw_fd).collect();
        if send(&client.socket, &to_bytes(&reply.to_words()), &numbers).is_err() {
            self.end(id);
        }
    }

    fn perform(
        &mut self,
        id: ClientId,
        request: &Request,
        given: &[OwnedFd],
        files: &mut Vec<OwnedFd>,
    ) -> Result<[u64; 7], u32> {
        let [first, second, third, fourth, ..] = request.arguments;
        let mut values = [0; 7];
        match request.operation {
            operation::HELLO => values[0] = self.hello(id, first, second == 1, files)?,
            operation::DEVICE_MEMORY => {
                let device = self.device(first)?;
                files.push(copy_of(&device.file)?);
                values[0] = device.memory.window();
            }
            operation::CONTEXT_OPEN => {
                self.check_there(first)?;
                values[0] = self.open_context(id, first)?;
            }
            operation::CONTEXT_CLOSE => self.close_context(id, ContextId(first))?,
            operation::ALLOCATE => {
                self.check_there(first)?;
                let kind = self.kind(id, first, third, fourth == 1)?;
                let room = self.room(id, first);
                let memory = &mut self.device(first)?.memory;
                let placed = memory.allocate_within(room, id, kind, second);
                let placed = placed.map_err(|error| refusal(&error))?;
                values[..3].copy_from_slice(&[placed.block.0, placed.offset, placed.charged_bytes]);
            }
            operation::RETAIN => self
                .device(first)?
                .memory
                .retain(id, BlockId(second))
                .map_err(|error| refusal(&error))?,
            operation::RELEASE => {
                let device = self.device(first)?;
                let freed = device.memory.release(id, BlockId(second));
                if let Some(range) = freed.map_err(|error| refusal(&error))? {
                    punch_all(&device.file, &[range]);
                }
            }
            operation::SHARE => self
                .device(first)?
                .memory
                .share(id, BlockId(second))
                .map_err(|error| refusal(&error))?,
            operation::OPEN => {
                let opened = self.device(first)?.memory.open(id, BlockId(second));
                let placed = opened.map_err(|error| refusal(&error))?;
                values[..2].copy_from_slice(&[placed.offset, placed.charged_bytes]);
            }
            operation::SHARED_EVENTS => files.push(copy_of(&self.events.file)?),
            operation::EVENT_MAKE => {
                let (index, number) = self.events.take(id).ok_or(status::EXHAUSTED)?;
                values[..2].copy_from_slice(&[index as u64, number]);
            }
            operation::EVENT_FREE => {
                let index = usize::try_from(first).map_err(|_| status::INVALID)?;
                if !self.events.give(id, index, second) {
                    return Err(status::INVALID);
                }
            }
            operation::LOSE => self.lose(first, second)?,
            operation::EXPORT => files.push(self.export(id, first, second, third)?),
            operation::SET_GROUP_LIMITS => {
                let file = given.first().ok_or(status::INVALID)?;
                self.set_limits(id, first, second, third, file)?;
            }
            operation::GROUP_LIMITS => {
                let file = given.first().ok_or(status::INVALID)?;
                values[..3].copy_from_slice(&self.limits(first, file)?);
            }
            operation::CHECKPOINT => {
                let process = given.first().ok_or(status::INVALID)?;
                values[..2].copy_from_slice(&self.checkpoint(id, first, process)?);
            }
            operation::IMPORT => {
                let file = given.first().ok_or(status::INVALID)?;
                values[..5].copy_from_slice(&self.import(id, file)?);
            }
            _ => return Err(status::INVALID),
        }
        Ok(values)
    }

    /// A pipe: its reading end stays here and says when the last copy of the other is closed.
    fn export(&mut self, id: ClientId, device: u64, block: u64, word: u64) -> Result<OwnedFd, u32> {
        let (here, there) = nix::unistd::pipe2(OFlag::O_CLOEXEC).map_err(|_| status::EXHAUSTED)?;
        let inode = inode_of(&here).ok_or(status::EXHAUSTED)?;
        let number = self.next_export;
        self.watch_end(&here, number)
            .map_err(|_| status::EXHAUSTED)?;
        let memory = &mut self.device(device)?.memory;
        if block != 0 {
            let exported = memory.export(id, BlockId(block));
            exported.map_err(|error| refusal(&error))?;
        }
        self.next_export = number.wrapping_add(1);
        self.exports.insert(
            number,
            Export {
                _end: here,
                inode,
                device,
                block,
                word,
            },
        );
        Ok(there)
    }

    fn import(&mut self, id: ClientId, file: &OwnedFd) -> Result<[u64; 5], u32> {
        let inode = inode_of(file).ok_or(status::INVALID)?;
        let mut exports = self.exports.values();
        let export = exports.find(|export| export.inode == inode);
        let export = export.ok_or(status::INVALID)?;
        let (device, block, word) = (export.device, export.block, export.word);
        if block == 0 {
            return Ok([device, 0, 0, 0, word]);
        }
        let opened = self.device(device)?.memory.open(id, BlockId(block));
        let placed = opened.map_err(|error| refusal(&error))?;
        Ok([device, block, placed.offset, placed.charged_bytes, word])
    }

    /// The last copy of a descriptor is closed.
    pub(super) fn end_export(&mut self, number: u32) {
        let Some(export) = self.exports.remove(&number) else {
            return;
        };
        if let Ok(device) = self.device(export.device)
            && let Some(range) = device.memory.end_export(BlockId(export.block))
        {
            punch_all(&device.file, &[range]);
        }
        self.tell();
    }

    fn hello(
        &mut self,
        id: ClientId,
        layout: u64,
        computes: bool,
        files: &mut Vec<OwnedFd>,
    ) -> Result<u64, u32> {
        if layout != u64::from(LAYOUT) {
            return Err(status::INVALID);
        }
        files.push(copy_of(&self.board_file)?);
        let client = self.clients.get_mut(&id).ok_or(status::INVALID)?;
        if computes {
            let bytes = size_of::<ClientPage>();
            let page = memory_file("sluice-sim-client", bytes as u64)
                .and_then(|file| Ok((Mapping::new(&file, bytes, Access::Write)?, file)));
            let (page, file) = page.map_err(|_| status::EXHAUSTED)?;
            client.page = Some(page);
            client.head = 0;
            files.push(file);
            files.push(copy_of(&self.doorbell)?);
        }
        Ok(client.slot as u64)
    }

    pub(super) fn device(&mut self, index: u64) -> Result<&mut Device, u32> {
        usize::try_from(index)
            .ok()
            .and_then(|index| self.devices.get_mut(index))
            .ok_or(status::INVALID)
    }

    fn check_there(&self, device: u64) -> Result<(), u32> {
        let index = usize::try_from(device).map_err(|_| status::INVALID)?;
        match self.board().device.get(index) {
            Some(row) if row.lost_xid.load(Ordering::Relaxed) != 0 => Err(status::LOST),
            _ => Ok(()),
        }
    }

    /// A device falls off the bus. Its work ends where it is, and nobody waits for it any more; who holds
    /// what stays as it is until its holders give it back.
    fn lose(&mut self, device: u64, xid: u64) -> Result<(), u32> {
        self.device(device)?;
        let index = usize::try_from(device).map_err(|_| status::INVALID)?;
        let xid = u32::try_from(xid).ok().filter(|xid| *xid != 0);
        let xid = xid.ok_or(status::INVALID)?;
        // Before its work is told done: whoever wakes for that must find it lost.
        let row = &self.board().device[index];
        row.lost_xid.store(xid, Ordering::Release);
        let contexts = self.clients.values().flat_map(|client| &client.contexts);
        let doomed: Vec<ContextId> = contexts
            .filter(|(_, on)| *on == index)
            .map(|(context, _)| *context)
            .collect();
        for context in doomed {
            self.engine.close_context(context);
        }
        Ok(())
    }

    fn kind(&self, id: ClientId, device: u64, context: u64, is_managed: bool) -> Result<Kind, u32> {
        if context == 0 {
            return Ok(Kind::Physical);
        }
        let context = ContextId(context);
        let is_own = self.clients.get(&id).is_some_and(|client| {
            let mut contexts = client.contexts.iter();
            contexts.any(|(own, on)| *own == context && *on as u64 == device)
        });
        match (is_own, is_managed) {
            (true, true) => Ok(Kind::Managed(context)),
            (true, false) => Ok(Kind::Linear(context)),
            (false, _) => Err(status::INVALID),
        }
    }

    fn open_context(&mut self, id: ClientId, device: u64) -> Result<u64, u32> {
        let overhead = self.options.context_overhead_bytes;
        let context = ContextId(self.next_context);
        if overhead > self.room(id, device) {
            return Err(status::OUT_OF_MEMORY);
        }
        let memory = &mut self.device(device)?.memory;
        memory
            .charge_context(id, context, overhead)
            .map_err(|error| refusal(&error))?;
        let index = usize::try_from(device).map_err(|_| status::INVALID)?;
        self.next_context += 1;
        self.engine.open_context(id, context, index);
        let client = self.clients.get_mut(&id).ok_or(status::INVALID)?;
        client.contexts.push((context, index));
        let slot = client.slot;
        self.board().client[slot].holdings[index]
            .contexts
            .fetch_add(1, Ordering::Relaxed);
        Ok(context.0)
    }

    fn close_context(&mut self, id: ClientId, context: ContextId) -> Result<(), u32> {
        let client = self.clients.get_mut(&id).ok_or(status::INVALID)?;
        let at = client.contexts.iter().position(|(own, _)| *own == context);
        let (_, index) = client.contexts.remove(at.ok_or(status::INVALID)?);
        let slot = client.slot;
        self.engine.close_context(context);
        let device = &mut self.devices[index];
        let freed = device.memory.end_context(context);
        punch_all(&device.file, &freed);
        self.board().client[slot].holdings[index]
            .contexts
            .fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Tells pipes apart: both ends of one have the same.
fn inode_of(file: &OwnedFd) -> Option<(u64, u64)> {
    let found = nix::sys::stat::fstat(file).ok()?;
    Some((found.st_dev, found.st_ino))
}

fn copy_of(file: &impl AsFd) -> Result<OwnedFd, u32> {
    file.as_fd()
        .try_clone_to_owned()
        .map_err(|_| status::EXHAUSTED)
}

fn refusal(error: &MemoryError) -> u32 {
    match error {
        MemoryError::OutOfMemory { .. } => status::OUT_OF_MEMORY,
        MemoryError::Size(_) | MemoryError::NoBlock => status::INVALID,
    }
}
