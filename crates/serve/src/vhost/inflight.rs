//! What is under way, in memory that outlives this process.
//!
//! Owns: the layout of that memory (vhost-user, "Inflight I/O tracking", split queues). Promises: a front end
//! that comes back after this process was killed has each request done that had not ended, once more, in the order
//! in which they were taken. Never: trusts what is in there more than what a guest writes.

use super::config::EVENT_IDX;
use super::ring::Broken;
use super::shared::Guard;
use super::{QUEUE_SIZE, QUEUES};
use flashlane_base::mutant;
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::cell::Cell;
use std::fs::File;
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use vm_memory::{Bytes, FileOffset, MmapRegion, VolatileMemory};

/// Features, version, places, the last that ended, how many have.
const HEAD_BYTES: usize = 16;
const VERSION_AT: usize = 8;
const PLACES_AT: usize = 10;
const LAST_AT: usize = 12;
const USED_AT: usize = 14;
/// Whether it is under way, the one that ended before it, its number.
const PLACE_BYTES: usize = 16;
const NEXT_AT: usize = 6;
const NUMBER_AT: usize = 8;
const VERSION: u16 = 1;
/// Queues begin at multiples of this.
const ALIGNMENT: usize = 64;

/// What is mapped of the file. The guard goes first.
struct Mapped {
    guard: Guard,
    map: MmapRegion,
}

/// The memory for all queues.
pub(super) struct Region {
    map: Rc<Mapped>,
    pub(super) file: File,
    pub(super) bytes: u64,
}

fn bytes_of(size: u16) -> usize {
    (HEAD_BYTES + PLACE_BYTES * usize::from(size)).next_multiple_of(ALIGNMENT)
}

impl Region {
    /// Fresh memory for so many queues of this size.
    pub(super) fn new(queues: u16, size: u16) -> io::Result<Region> {
        let bytes = usize::from(queues) * bytes_of(size);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(memfd_create("flashlane-inflight", flags)?);
        ftruncate(&file, bytes as u64)?;
        Region::of(file, 0, bytes as u64, queues, size)
    }

    /// What a front end has kept.
    pub(super) fn of(
        file: File,
        offset: u64,
        bytes: u64,
        queues: u16,
        size: u16,
    ) -> io::Result<Region> {
        let needs = usize::from(queues) * bytes_of(size);
        let is_sane = usize::from(queues) <= QUEUES && (1..=QUEUE_SIZE).contains(&size);
        if !is_sane || bytes < needs as u64 || bytes > (1 << 30) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // The front end has this file, too. What it cut off would end its connection, and what was
        // under way would be forgotten.
        if !mutant!("serve.inflight-shrinks") {
            let _ = fcntl_add_seals(&file, SealFlags::SHRINK);
        }
        if offset
            .checked_add(bytes)
            .is_none_or(|end| end > file.metadata().map_or(0, |of| of.len()))
        {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let place = FileOffset::new(file.try_clone()?, offset);
        let map = MmapRegion::from_file(place, bytes as usize).map_err(io::Error::other)?;
        let guard = Guard::new(map.as_ptr(), bytes as usize)?;
        Ok(Region { map: Rc::new(Mapped { guard, map }), file, bytes })
    }

    /// The part of one queue.
    pub(super) fn track(&self, index: usize, size: u16) -> Track {
        let at = index * bytes_of(size);
        Track {
            map: self.map.clone(),
            at,
            size,
            number: Cell::new(0),
            #[cfg(test)]
            left: Cell::new(u32::MAX),
        }
    }
}

/// What is under way of one queue.
pub(super) struct Track {
    map: Rc<Mapped>,
    at: usize,
    size: u16,
    /// Of the next one that is taken.
    number: Cell<u64>,
    /// Words that are written before the server dies.
    #[cfg(test)]
    pub(super) left: Cell<u32>,
}

impl Track {
    fn get<T: vm_memory::AtomicAccess>(&self, at: usize) -> Result<T, Broken> {
        let map = self.map.map.as_volatile_slice();
        let found = map.load(self.at + at, Ordering::Acquire).map_err(|_| Broken)?;
        if self.map.guard.is_lost() { Err(Broken) } else { Ok(found) }
    }

    fn set<T: vm_memory::AtomicAccess>(&self, at: usize, value: T) -> Result<(), Broken> {
        #[cfg(test)]
        self.left.set(self.left.get().checked_sub(1).ok_or(Broken)?);
        let map = self.map.map.as_volatile_slice();
        map.store(value, self.at + at, Ordering::Release).map_err(|_| Broken)?;
        if self.map.guard.is_lost() { Err(Broken) } else { Ok(()) }
    }

    fn place(&self, head: u16) -> Result<usize, Broken> {
        match head < self.size {
            true => Ok(HEAD_BYTES + PLACE_BYTES * usize::from(head)),
            false => Err(Broken),
        }
    }

    /// Those that were taken before and have not ended, in that order. `used` is how far the guest was told.
    pub(super) fn left(&self, size: u16, used: u16) -> Result<Vec<u16>, Broken> {
        if self.get::<u16>(VERSION_AT)? != VERSION {
            // Fresh memory.
            self.set(0, EVENT_IDX)?;
            self.set(PLACES_AT, self.size)?;
            self.set(LAST_AT, 0u16)?;
            self.set(USED_AT, used)?;
            self.set(VERSION_AT, VERSION)?;
            return Ok(Vec::new());
        }
        // The guest was told of the last one, and then it all ended.
        if self.get::<u16>(USED_AT)? != used {
            let last = self.get::<u16>(LAST_AT)?;
            self.set(self.place(last)?, 0u8)?;
            self.set(USED_AT, used)?;
        }
        let mut left = Vec::new();
        for head in 0..self.size.min(size) {
            let place = self.place(head)?;
            if self.get::<u8>(place)? == 1 {
                left.push((self.get::<u64>(place + NUMBER_AT)?, head));
            }
        }
        if !mutant!("serve.left-out-of-order") {
            left.sort_unstable();
        }
        self.number.set(left.last().map_or(0, |(number, _)| number.wrapping_add(1)));
        match mutant!("serve.left-forgotten") {
            true => Ok(Vec::new()),
            false => Ok(left.into_iter().map(|(_, head)| head).collect()),
        }
    }

    /// It is taken.
    pub(super) fn begin(&self, head: u16) -> Result<(), Broken> {
        let (place, number) = (self.place(head)?, self.number.get());
        self.number.set(number.wrapping_add(1));
        if mutant!("serve.taken-before-its-number") {
            self.set(place, 1u8)?;
        }
        self.set(place + NUMBER_AT, number)?;
        self.set(place, 1u8)
    }

    /// The guest is told next that it has ended.
    pub(super) fn ends(&self, head: u16) -> Result<(), Broken> {
        let last = self.get::<u16>(LAST_AT)?;
        self.set(self.place(head)? + NEXT_AT, last)?;
        self.set(LAST_AT, head)
    }

    /// The guest was told, of so many by now.
    pub(super) fn ended(&self, head: u16, used: u16) -> Result<(), Broken> {
        if mutant!("serve.told-before-it-ended") {
            self.set(USED_AT, used)?;
        }
        self.set(self.place(head)?, 0u8)?;
        self.set(USED_AT, used)
    }
}
