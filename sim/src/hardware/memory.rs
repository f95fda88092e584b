//! Who holds which bytes of one device.
//!
//! A device has two sizes. Its *capacity* is what can be held at one time: a plain sum, so that an
//! allocation fails only when the bytes are truly gone, as behind a GPU's page tables. Its *window*
//! is the sparse file that the bytes lie in; it is several times larger, so that holes between
//! blocks never refuse what the capacity allows.
//!
//! Managed memory lies on the device as far as there is room, and gives way to everything else: it is held,
//! but only the device's size bounds what of it is there, and the window how much there can be.
//!
//! Linear memory is charged in units of [`UNIT_BYTES`], whatever room it takes in the window.
//!
//! A client that is checkpointed holds nothing of the device, and keeps its ranges of the window: the bytes
//! wait there, which is the host's memory after all.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use thiserror::Error;

use super::{ClientId, ContextId, NumberMap};

/// What a linear request is rounded up to. Source: `cuMemAlloc` hands out multiples of 512 B.
pub const UNIT_BYTES: u64 = 512;

/// Granularity of physical handles (`cuMemCreate`), and what large blocks are aligned to.
pub const LARGE_PAGE_BYTES: u64 = 2 << 20;

/// Alignment in the window: a page of the file, so that a freed block can be punched out alone.
const PAGE_BYTES: u64 = 4096;

/// The window is this many times the capacity.
///
/// 16: even if every block left a hole as large as itself, seven eighths would still be there.
const WINDOW_TIMES: u64 = 16;

/// A block of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockId(pub u64);

/// What ends a block's life besides its last reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Belongs to a context and goes with it (`cuMemAlloc`, pitch).
    Linear(ContextId),
    /// The same, and need not be on the device (`cuMemAllocManaged`).
    Managed(ContextId),
    /// Outlives contexts (`cuMemCreate`, chunks of pools).
    Physical,
}

/// Where a new block lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placed {
    /// Its name.
    pub block: BlockId,
    /// First byte in the window.
    pub offset: u64,
    /// Bytes charged to the client.
    pub charged_bytes: u64,
}

/// Why memory was not handed out or given back.
#[derive(Debug, Error, PartialEq, Eq)]
#[non_exhaustive]
pub enum MemoryError {
    /// The device has not that much left.
    #[error("{asked} bytes asked, {free} bytes free")]
    OutOfMemory {
        /// Bytes asked, rounded.
        asked: u64,
        /// Bytes free.
        free: u64,
    },
    /// Zero bytes, or a physical size that is no multiple of the granularity.
    #[error("{0} is no size for a block")]
    Size(u64),
    /// No such block, or not the caller's.
    #[error("no such block")]
    NoBlock,
}

#[derive(Debug)]
struct Block {
    owner: ClientId,
    kind: Kind,
    range: Range<u64>,
    charged: u64,
    /// References of its owner.
    references: u32,
    /// References of others.
    guests: Vec<(ClientId, u32)>,
    /// Handles that no client holds: descriptors, wherever they are.
    exports: u32,
    /// Whether others may open it by its name.
    is_shared: bool,
}

impl Block {
    /// The references that `client` holds.
    fn of(&mut self, client: ClientId) -> Option<&mut u32> {
        if self.owner == client {
            return Some(&mut self.references).filter(|references| **references > 0);
        }
        let mut guests = self.guests.iter_mut();
        guests
            .find(|(guest, _)| *guest == client)
            .map(|(_, references)| references)
    }

    fn add(&mut self, client: ClientId) {
        if let Some(references) = self.of(client) {
            *references += 1;
        } else if self.owner == client {
            self.references = 1;
        } else {
            self.guests.push((client, 1));
        }
    }

    fn is_held(&self) -> bool {
        self.references > 0 || self.exports > 0 || !self.guests.is_empty()
    }
}

/// Who pays for what only descriptors hold: nobody has this name.
const NOBODY: ClientId = ClientId(u32::MAX);

/// The memory of one device.
#[derive(Debug)]
pub struct Memory {
    capacity: u64,
    window: u64,
    /// Held by everybody, managed memory included.
    used: u64,
    /// The managed part of it.
    managed: u64,
    next: u64,
    blocks: NumberMap<BlockId, Block>,
    /// Free ranges of the window: start to end.
    free: BTreeMap<u64, u64>,
    held: NumberMap<ClientId, u64>,
    held_managed: NumberMap<ClientId, u64>,
    overhead: NumberMap<ContextId, (ClientId, u64)>,
    /// Clients that are checkpointed: what they hold is counted for them, and is not on the device.
    away: BTreeSet<ClientId>,
}

impl Memory {
    /// Memory of `capacity` bytes, all free.
    pub fn new(capacity: u64) -> Self {
        let window = Self::window_for(capacity);
        Self {
            capacity,
            window,
            used: 0,
            managed: 0,
            next: 1,
            blocks: NumberMap::default(),
            free: BTreeMap::from([(0, window)]),
            held: NumberMap::default(),
            held_managed: NumberMap::default(),
            overhead: NumberMap::default(),
            away: BTreeSet::new(),
        }
    }

    /// Size of the sparse file behind `capacity` bytes.
    pub fn window_for(capacity: u64) -> u64 {
        capacity
            .saturating_mul(WINDOW_TIMES)
            .next_multiple_of(LARGE_PAGE_BYTES)
    }

    /// What can be held at one time, in bytes.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Size of the file that the blocks lie in.
    pub fn window(&self) -> u64 {
        self.window
    }

    /// Bytes held by everybody, as far as they are on the device.
    pub fn used(&self) -> u64 {
        self.used.min(self.capacity)
    }

    /// What is free, or would be if managed memory gave way.
    fn free_bytes(&self) -> u64 {
        self.capacity - (self.used - self.managed)
    }

    /// Bytes held by `client`, its contexts' overhead included; none while it is checkpointed.
    pub fn held_by(&self, client: ClientId) -> u64 {
        if self.away.contains(&client) {
            return 0;
        }
        self.account(client).0
    }

    /// The same without managed memory.
    pub fn fixed_by(&self, client: ClientId) -> u64 {
        if self.away.contains(&client) {
            return 0;
        }
        let (held, managed) = self.account(client);
        held - managed
    }

    /// All that `client` holds, wherever it is, and the managed part of it.
    fn account(&self, client: ClientId) -> (u64, u64) {
        let of = |held: &NumberMap<ClientId, u64>| held.get(&client).copied().unwrap_or(0);
        (of(&self.held), of(&self.held_managed))
    }

    /// Whether [`Memory::take_away`] is possible: nothing that `client` holds is another's as well.
    pub fn is_alone(&self, client: ClientId) -> bool {
        self.blocks.values().all(|block| {
            let is_guest = block.guests.iter().any(|(guest, _)| *guest == client);
            let is_lent = block.exports > 0 || !block.guests.is_empty();
            !is_guest && (block.owner != client || !is_lent)
        })
    }

    /// What `client` holds leaves the device, and stays where it is in the window.
    pub fn take_away(&mut self, client: ClientId) {
        let (held, managed) = self.account(client);
        if self.away.insert(client) {
            self.used -= held;
            self.managed -= managed;
        }
    }

    /// Whether it would find room again, within `room` bytes.
    pub fn has_room_again(&self, room: u64, client: ClientId) -> bool {
        let (held, managed) = self.account(client);
        !self.away.contains(&client) || held - managed <= room.min(self.free_bytes())
    }

    /// What `client` holds comes back; that there is room has been asked.
    pub fn bring_back(&mut self, client: ClientId) {
        let (held, managed) = self.account(client);
        if self.away.remove(&client) {
            self.used += held;
            self.managed += managed;
        }
    }

    /// Gives `bytes` to `client`, with one reference.
    ///
    /// # Errors
    /// [`MemoryError::Size`] for no bytes, or for a physical block that is no multiple of
    /// [`LARGE_PAGE_BYTES`]; [`MemoryError::OutOfMemory`] when the rounded size is not free.
    pub fn allocate(
        &mut self,
        client: ClientId,
        kind: Kind,
        bytes: u64,
    ) -> Result<Placed, MemoryError> {
        self.allocate_within(u64::MAX, client, kind, bytes)
    }

    /// [`Memory::allocate`], at most `room` bytes.
    ///
    /// # Errors
    /// The same.
    pub fn allocate_within(
        &mut self,
        room: u64,
        client: ClientId,
        kind: Kind,
        bytes: u64,
    ) -> Result<Placed, MemoryError> {
        let unit = match kind {
            Kind::Linear(_) | Kind::Managed(_) => UNIT_BYTES,
            Kind::Physical => LARGE_PAGE_BYTES,
        };
        let is_exact = kind == Kind::Physical;
        if bytes == 0 || (is_exact && !bytes.is_multiple_of(unit)) {
            return Err(MemoryError::Size(bytes));
        }
        let free = match kind {
            Kind::Managed(_) => self.window,
            _ => room.min(self.free_bytes()),
        };
        let refused = |asked| MemoryError::OutOfMemory { asked, free };
        let charged = bytes
            .checked_next_multiple_of(unit)
            .filter(|charged| *charged <= free)
            .ok_or_else(|| refused(bytes))?;
        let range = self.place(charged).ok_or_else(|| refused(charged))?;
        let block = BlockId(self.next);
        self.next += 1;
        let placed = Placed {
            block,
            offset: range.start,
            charged_bytes: charged,
        };
        self.blocks.insert(
            block,
            Block {
                owner: client,
                kind,
                range,
                charged,
                references: 1,
                guests: Vec::new(),
                exports: 0,
                is_shared: false,
            },
        );
        self.charge(client, charged, kind);
        Ok(placed)
    }

    /// Adds a reference of `client` to one of its blocks (a mapping, another handle).
    ///
    /// # Errors
    /// [`MemoryError::NoBlock`] if it has no such block.
    pub fn retain(&mut self, client: ClientId, block: BlockId) -> Result<(), MemoryError> {
        *self.held_block(client, block)? += 1;
        Ok(())
    }

    /// Lets others open a block of `client`'s by its name; yields its bytes.
    ///
    /// # Errors
    /// [`MemoryError::NoBlock`] if it has no such block.
    pub fn share(&mut self, client: ClientId, block: BlockId) -> Result<(), MemoryError> {
        self.held_block(client, block)?;
        let shared = self.blocks.get_mut(&block).ok_or(MemoryError::NoBlock)?;
        shared.is_shared = true;
        Ok(())
    }

    /// Gives `client` a reference to a block that is shared, whoever owns it: the owner keeps paying.
    ///
    /// # Errors
    /// [`MemoryError::NoBlock`] if there is none, or it is not shared.
    pub fn open(&mut self, client: ClientId, block: BlockId) -> Result<Placed, MemoryError> {
        let shared = self.blocks.get_mut(&block);
        let shared = shared.filter(|held| held.is_shared);
        let held = shared.ok_or(MemoryError::NoBlock)?;
        held.add(client);
        Ok(Placed {
            block,
            offset: held.range.start,
            charged_bytes: held.charged,
        })
    }

    /// Lets a descriptor hold a block of `client`'s.
    ///
    /// # Errors
    /// [`MemoryError::NoBlock`] if it has no such block.
    pub fn export(&mut self, client: ClientId, block: BlockId) -> Result<(), MemoryError> {
        self.share(client, block)?;
        let held = self.blocks.get_mut(&block).ok_or(MemoryError::NoBlock)?;
        held.exports += 1;
        Ok(())
    }

    /// The descriptor is gone; yields the range to punch out if it was the last to hold the block.
    pub fn end_export(&mut self, block: BlockId) -> Option<Range<u64>> {
        let held = self.blocks.get_mut(&block)?;
        held.exports = held.exports.saturating_sub(1);
        self.free_unheld(block)
    }

    /// Drops a reference; the last one frees the block and yields the range to punch out.
    ///
    /// # Errors
    /// [`MemoryError::NoBlock`] if `client` has no such block.
    pub fn release(
        &mut self,
        client: ClientId,
        block: BlockId,
    ) -> Result<Option<Range<u64>>, MemoryError> {
        *self.held_block(client, block)? -= 1;
        Ok(self.free_unheld(block))
    }

    /// Charges `bytes` to `client` for the life of `context`: what a context itself takes.
    ///
    /// # Errors
    /// [`MemoryError::OutOfMemory`] when they are not free; then nothing changes.
    pub fn charge_context(
        &mut self,
        client: ClientId,
        context: ContextId,
        bytes: u64,
    ) -> Result<(), MemoryError> {
        let free = self.free_bytes();
        if bytes > free {
            return Err(MemoryError::OutOfMemory { asked: bytes, free });
        }
        self.charge(client, bytes, Kind::Physical);
        self.overhead.insert(context, (client, bytes));
        Ok(())
    }

    /// Frees what belongs to `context`; yields the ranges to punch out.
    pub fn end_context(&mut self, context: ContextId) -> Vec<Range<u64>> {
        if let Some((client, bytes)) = self.overhead.remove(&context) {
            self.uncharge(client, bytes, Kind::Physical);
        }
        let ends = |block: &mut Block| {
            let ends = [Kind::Linear(context), Kind::Managed(context)].contains(&block.kind);
            if ends {
                block.references = 0;
            }
            ends
        };
        self.free_where(ends)
    }

    /// Frees everything that `client` holds; yields the ranges to punch out.
    pub fn end_client(&mut self, client: ClientId) -> Vec<Range<u64>> {
        let ranges = self.free_where(|block| {
            let is_guest = block.of(client).is_some() && block.owner != client;
            block.guests.retain(|(guest, _)| *guest != client);
            if block.owner == client {
                block.references = 0;
            }
            is_guest || block.owner == client
        });
        self.hand_over(client);
        let mut overhead = 0;
        self.overhead.retain(|_, (owner, bytes)| {
            let stays = *owner != client;
            if !stays {
                overhead += *bytes;
            }
            stays
        });
        self.uncharge(client, overhead, Kind::Physical);
        self.held.remove(&client);
        self.held_managed.remove(&client);
        self.away.remove(&client);
        ranges
    }

    /// What `client` holds of a block.
    fn held_block(&mut self, client: ClientId, block: BlockId) -> Result<&mut u32, MemoryError> {
        let held = self.blocks.get_mut(&block).ok_or(MemoryError::NoBlock)?;
        held.of(client).ok_or(MemoryError::NoBlock)
    }

    /// What a client leaves behind that others hold, the first of them pays from now on.
    fn hand_over(&mut self, client: ClientId) {
        let mut moved = Vec::new();
        for block in self.blocks.values_mut() {
            if block.owner != client {
                continue;
            }
            let first = (!block.guests.is_empty()).then(|| block.guests.remove(0));
            (block.owner, block.references) = first.unwrap_or((NOBODY, 0));
            let kind = std::mem::replace(&mut block.kind, Kind::Physical);
            moved.push((block.owner, block.charged, kind));
        }
        for (owner, bytes, kind) in moved {
            self.uncharge(client, bytes, kind);
            self.charge(owner, bytes, Kind::Physical);
        }
    }

    /// Lets `goes` change every block and say which may have become free.
    fn free_where(&mut self, mut goes: impl FnMut(&mut Block) -> bool) -> Vec<Range<u64>> {
        let mut doomed: Vec<BlockId> = self
            .blocks
            .iter_mut()
            .filter_map(|(id, block)| goes(block).then_some(*id))
            .collect();
        doomed.sort_unstable();
        doomed
            .into_iter()
            .filter_map(|id| self.free_unheld(id))
            .collect()
    }

    fn free_unheld(&mut self, id: BlockId) -> Option<Range<u64>> {
        let block = self.blocks.get_mut(&id)?;
        block.guests.retain(|(_, references)| *references > 0);
        if block.is_held() {
            return None;
        }
        self.free_block(id)
    }

    fn free_block(&mut self, id: BlockId) -> Option<Range<u64>> {
        let block = self.blocks.remove(&id)?;
        self.uncharge(block.owner, block.charged, block.kind);
        self.give_back(block.range.clone());
        Some(block.range)
    }

    fn charge(&mut self, client: ClientId, bytes: u64, kind: Kind) {
        let is_managed = matches!(kind, Kind::Managed(_));
        *self.held.entry(client).or_insert(0) += bytes;
        if is_managed {
            *self.held_managed.entry(client).or_insert(0) += bytes;
        }
        if !self.away.contains(&client) {
            self.used += bytes;
            self.managed += if is_managed { bytes } else { 0 };
        }
    }

    fn uncharge(&mut self, client: ClientId, bytes: u64, kind: Kind) {
        let is_managed = matches!(kind, Kind::Managed(_));
        if let Some(held) = self.held.get_mut(&client) {
            *held -= bytes;
            if *held == 0 {
                self.held.remove(&client);
            }
        }
        if is_managed && let Some(held) = self.held_managed.get_mut(&client) {
            *held -= bytes;
        }
        if !self.away.contains(&client) {
            self.used -= bytes;
            self.managed -= if is_managed { bytes } else { 0 };
        }
    }

    /// First fit, lowest address: small blocks on pages, large ones on large pages.
    fn place(&mut self, bytes: u64) -> Option<Range<u64>> {
        let align = if bytes >= LARGE_PAGE_BYTES / 2 {
            LARGE_PAGE_BYTES
        } else {
            PAGE_BYTES
        };
        let room = bytes.next_multiple_of(PAGE_BYTES);
        let (start, end, at) = self.free.iter().find_map(|(start, end)| {
            let at = start.next_multiple_of(align);
            (at < *end && *end - at >= room).then_some((*start, *end, at))
        })?;
        self.free.remove(&start);
        if start < at {
            self.free.insert(start, at);
        }
        if at + room < end {
            self.free.insert(at + room, end);
        }
        Some(at..at + room)
    }

    fn give_back(&mut self, range: Range<u64>) {
        let (mut start, mut end) = (range.start, range.end);
        if let Some((before, until)) = self.free.range(..start).next_back()
            && *until == start
        {
            start = *before;
        }
        if let Some(until) = self.free.remove(&end) {
            end = until;
        }
        self.free.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ME: ClientId = ClientId(1);
    const OTHER: ClientId = ClientId(2);
    const CONTEXT: ContextId = ContextId(1);
    const LINEAR: Kind = Kind::Linear(CONTEXT);

    #[test]
    fn a_linear_request_is_charged_in_units_of_512_bytes() {
        let mut memory = Memory::new(8 << 30);
        for (asked, charged) in [(1, 512), (512, 512), (513, 1024), (1 << 20, 1 << 20)] {
            let placed = memory.allocate(ME, LINEAR, asked).unwrap();
            assert_eq!(placed.charged_bytes, charged);
        }
        assert_eq!(memory.used(), memory.held_by(ME));
    }

    #[test]
    fn everything_that_is_free_can_be_had_and_not_one_byte_more() {
        let mut memory = Memory::new(8 << 30);
        let half = memory.allocate(ME, LINEAR, 4 << 30).unwrap();
        memory.allocate(OTHER, LINEAR, 4 << 30).unwrap();
        assert!(matches!(
            memory.allocate(ME, LINEAR, 1),
            Err(MemoryError::OutOfMemory { free: 0, .. })
        ));
        memory.release(ME, half.block).unwrap();
        assert!(memory.allocate(OTHER, LINEAR, (4 << 30) + 1).is_err());
        assert!(memory.allocate(OTHER, LINEAR, 4 << 30).is_ok());
    }

    #[test]
    fn holes_never_refuse_what_the_capacity_allows() {
        let mut memory = Memory::new(64 << 20);
        let small: Vec<_> = (0..64)
            .map(|_| memory.allocate(ME, LINEAR, 1 << 20).unwrap())
            .collect();
        for placed in small.iter().step_by(2) {
            memory.release(ME, placed.block).unwrap();
        }
        assert!(memory.allocate(ME, LINEAR, 32 << 20).is_ok());
    }

    #[test]
    fn a_physical_block_lives_until_its_last_reference() {
        let mut memory = Memory::new(8 << 30);
        let placed = memory.allocate(ME, Kind::Physical, 4 << 20).unwrap();
        memory.retain(ME, placed.block).unwrap();
        assert_eq!(memory.release(ME, placed.block), Ok(None));
        assert_eq!(memory.used(), 4 << 20);
        assert!(memory.release(ME, placed.block).unwrap().is_some());
        assert_eq!(memory.used(), 0);
        assert_eq!(memory.release(ME, placed.block), Err(MemoryError::NoBlock));
    }

    #[test]
    fn a_context_takes_its_linear_memory_along_but_no_physical_one() {
        let mut memory = Memory::new(8 << 30);
        memory.charge_context(ME, CONTEXT, 100 << 20).unwrap();
        memory.allocate(ME, LINEAR, 1 << 20).unwrap();
        memory.allocate(ME, Kind::Physical, 2 << 20).unwrap();
        assert_eq!(memory.end_context(CONTEXT).len(), 1);
        assert_eq!(memory.used(), 2 << 20);
    }

    #[test]
    fn shared_memory_lives_as_long_as_anybody_holds_it_and_its_maker_pays() {
        let mut memory = Memory::new(8 << 30);
        let placed = memory.allocate(ME, LINEAR, 4096).unwrap();
        assert_eq!(memory.open(OTHER, placed.block), Err(MemoryError::NoBlock));
        memory.share(ME, placed.block).unwrap();
        assert_eq!(memory.open(OTHER, placed.block), Ok(placed));
        assert_eq!(memory.release(ME, placed.block), Ok(None));
        assert_eq!((memory.held_by(ME), memory.held_by(OTHER)), (4096, 0));
        assert_eq!(memory.end_client(ME), []);
        assert_eq!((memory.held_by(ME), memory.held_by(OTHER)), (0, 4096));
        assert!(memory.release(OTHER, placed.block).unwrap().is_some());
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn a_descriptor_holds_memory_even_when_its_makers_process_is_gone() {
        let mut memory = Memory::new(8 << 30);
        let placed = memory.allocate(ME, Kind::Physical, 2 << 20).unwrap();
        memory.export(ME, placed.block).unwrap();
        assert_eq!(memory.end_client(ME), []);
        assert_eq!((memory.used(), memory.held_by(ME)), (2 << 20, 0));
        memory.open(OTHER, placed.block).unwrap();
        assert_eq!(memory.end_export(placed.block), None);
        assert_eq!(memory.end_client(OTHER).len(), 1);
        assert_eq!(memory.used(), 0);
    }

    #[test]
    fn nobody_frees_what_another_client_holds() {
        let mut memory = Memory::new(8 << 30);
        let placed = memory.allocate(ME, LINEAR, 512).unwrap();
        assert_eq!(
            memory.release(OTHER, placed.block),
            Err(MemoryError::NoBlock)
        );
        assert_eq!(memory.end_client(OTHER), []);
        assert_eq!(memory.held_by(ME), 512);
    }

    proptest! {
        #[test]
        fn whatever_is_done_blocks_are_apart_and_the_sums_agree(
            steps in proptest::collection::vec((0u8..6, 1u64..(3 << 20), 0usize..16), 1..200)
        ) {
            let mut memory = Memory::new(32 << 20);
            let mut mine: Vec<(ClientId, Placed)> = Vec::new();
            let mut away: Vec<ClientId> = Vec::new();
            for (what, bytes, which) in steps {
                let client = ClientId(u32::try_from(which % 3).unwrap());
                match what {
                    0 | 1 if !away.contains(&client) => if let Ok(placed) = memory.allocate(client, LINEAR, bytes) {
                        mine.push((client, placed));
                    },
                    2 if !mine.is_empty() => {
                        let (owner, placed) = mine.swap_remove(which % mine.len());
                        prop_assert!(memory.release(owner, placed.block).unwrap().is_some());
                    }
                    3 if which == 0 => {
                        memory.end_client(client);
                        mine.retain(|(owner, _)| *owner != client);
                        away.retain(|gone| *gone != client);
                    }
                    4 if !away.contains(&client) => {
                        memory.take_away(client);
                        away.push(client);
                    }
                    5 if memory.has_room_again(u64::MAX, client) => {
                        memory.bring_back(client);
                        away.retain(|gone| *gone != client);
                    }
                    _ => {}
                }
                let there = mine.iter().filter(|(owner, _)| !away.contains(owner));
                let sum: u64 = there.map(|(_, placed)| placed.charged_bytes).sum();
                prop_assert_eq!(memory.used(), sum);
                prop_assert!(sum <= memory.capacity());
                let mut ranges: Vec<_> = mine
                    .iter()
                    .map(|(_, placed)| (placed.offset, placed.offset + placed.charged_bytes))
                    .collect();
                ranges.sort_unstable();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].1 <= pair[1].0));
            }
            for client in 0..3 {
                memory.end_client(ClientId(client));
            }
            prop_assert_eq!(memory.used(), 0);
            prop_assert_eq!(memory.free.len(), 1);
        }
    }
}
