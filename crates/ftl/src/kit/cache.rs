//! The demand-cached map: which entries the controller holds, and the translation pages on flash.
//!
//! Owns: the cache of entries ([`MapCache`]), the tasks that write it back, the reads of translation
//! pages. Promises: an entry that is used was in the cache, in the buffer, or its translation page was
//! read from flash first; an entry that leaves the cache changed is in a translation page that was
//! written before; at most [`MapCache::limit`] entries stay once the tasks have caught up, and the host
//! waits while they are far behind. Never: says where a sector lies. The table in memory does
//! (`map.rs`), and a mount rebuilds that from the records: what is emulated is the traffic, its place
//! on flash and its time, not a loss of entries.
//!
//! DFTL (Gupta et al., ASPLOS 2009) keeps the map in *translation pages* on flash and caches entries of
//! it on demand, the least recently used leaves first. *Lazy indexing* (Ma et al., SIGMOD 2011): new
//! places, by a write or by GC, are put into the cache and reach their translation page later, all that
//! have changed in one page at once. "a page-level FTL, named PFTL, based on DFTL with lazy indexing"
//! (ParaFS 4.1).
//!
//! A translation page is a sector behind the host's last one. It is written through the buffer, placed,
//! moved by GC, made durable by a barrier and found by a mount as any sector is; only its cause says what
//! it is. Where the translation pages lie is always in memory (DFTL's directory).

use flashlane_base::counters::Counters;
use flashlane_base::{OOB_BYTES, Ppa, VECTOR_MAX, counters, mutant};
use flashlane_ocssd::device::{Cause, Flags, Request, Scatter};
use flashlane_rt::{Cx, Waiter};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use super::map::{Entry, Map};
use super::{Controller, DriveFtl, Phase, Room, read};
use crate::layer::Counted;

/// Entries of a translation page: four bytes each in a sector.
pub(super) const SPAN: u32 = (flashlane_base::SECTOR_BYTES / 4) as u32;

/// Entries that are looked at, from the oldest, for one whose page is not being written already.
const LOOK: usize = 64;

/// Tasks that write back at most.
const TASKS_MAX: u32 = 32;

counters! {
    /// Traffic of the map, apart from that of data.
    pub struct MapStats {
        /// Entries that a read found in the cache.
        map_hits: u64, Sum, "entries", [];
        /// Entries that it did not.
        map_misses: u64, Sum, "entries", [];
        /// Translation pages read from flash, for a miss.
        map_read_sectors: u64, Sum, "sectors", [];
        /// Those read to be changed.
        map_update_read_sectors: u64, Sum, "sectors", [];
        /// Reads of them that failed.
        map_read_failures: u64, Sum, "sectors", [];
        /// Times that a translation page was written back; it may be changed again in the buffer.
        map_write_backs: u64, Sum, "times", [];
        /// Translation pages programmed for that.
        map_written_sectors: u64, Sum, "sectors", [];
        /// Changed entries that were written back.
        map_written_entries: u64, Sum, "entries", [];
        /// Translation pages that GC has moved.
        map_moved_sectors: u64, Sum, "sectors", [];
        /// Entries put into the cache because data was moved by GC.
        map_lazy_entries: u64, Sum, "entries", [];
    }
}

/// Translation pages of so many logical sectors.
pub(super) fn pages_for(capacity: u64) -> u64 {
    capacity.div_ceil(SPAN.into())
}

#[derive(Clone, Copy)]
struct Cached {
    /// When it was used last, as a number.
    age: u64,
    /// Its translation page does not say it yet.
    changed: bool,
}

/// The entries that a controller with little memory would hold.
pub(super) struct MapCache {
    /// Logical sector of the first translation page: the host's sectors are below.
    pub(super) first: u32,
    limit: usize,
    /// Entries beyond the limit at which the host waits.
    slack: usize,
    entries: BTreeMap<u32, Cached>,
    /// Least recently used first.
    order: BTreeMap<u64, u32>,
    clock: u64,
    /// Translation pages that a task writes back.
    in_hand: BTreeSet<u32>,
    tasks: Vec<Waiter>,
    stats: MapStats,
    /// What they were when the measured part of a run began.
    before: MapStats,
}

impl MapCache {
    pub(super) fn new(first: u32, limit: u32) -> MapCache {
        let limit = limit as usize;
        MapCache {
            first,
            limit,
            slack: limit / 8 + SPAN as usize,
            entries: BTreeMap::new(),
            order: BTreeMap::new(),
            clock: 0,
            in_hand: BTreeSet::new(),
            tasks: Vec::new(),
            stats: MapStats::default(),
            before: MapStats::default(),
        }
    }

    fn use_now(&mut self, lba: u32, changed: bool) {
        self.clock += 1;
        let new = Cached { age: self.clock, changed };
        if let Some(old) = self.entries.insert(lba, new) {
            self.order.remove(&old.age);
            if let Some(entry) = self.entries.get_mut(&lba) {
                entry.changed |= old.changed;
            }
        }
        self.order.insert(self.clock, lba);
    }

    /// A sector has a new place, or none any more.
    pub(super) fn changed(&mut self, lba: u32, cause: Cause) {
        if lba < self.first {
            self.use_now(lba, true);
            self.stats.map_lazy_entries += u64::from(cause == Cause::Gc);
        }
    }

    /// A live sector was moved by GC.
    pub(super) fn note_move(&mut self, lba: u32) {
        self.stats.map_moved_sectors += u64::from(lba >= self.first);
    }

    fn forget(&mut self, lba: u32) {
        if let Some(entry) = self.entries.remove(&lba) {
            self.order.remove(&entry.age);
        }
    }

    fn is_over(&self) -> bool {
        self.entries.len() > self.limit
    }

    /// The tasks are far behind.
    fn is_far_over(&self) -> bool {
        self.entries.len() > self.limit + self.slack && !mutant!("kit.map-cache-unbounded")
    }

    /// Entries leave, the oldest first. One that has changed can't: its translation page is due then.
    fn next_due(&mut self) -> Option<u32> {
        while self.is_over() {
            let (_, lba) = self.order.first_key_value()?;
            let (lba, page) = (*lba, lba / SPAN);
            let changed = self.entries.get(&lba).is_some_and(|entry| entry.changed);
            if !changed || mutant!("kit.changed-entry-dropped") {
                self.forget(lba);
                continue;
            }
            if self.in_hand.insert(page) {
                return Some(page);
            }
            let of = self.order.values().take(LOOK).copied();
            let changed = |lba: &u32| self.entries.get(lba).is_some_and(|entry| entry.changed);
            let mut others = of.filter(changed).map(|lba| lba / SPAN);
            let other = others.find(|page| !self.in_hand.contains(page))?;
            self.in_hand.insert(other);
            return Some(other);
        }
        None
    }

    /// A translation page is about to be written with all that has changed in it.
    fn clean(&mut self, page: u32) {
        let of = page * SPAN..(page + 1) * SPAN;
        let changed = self.entries.range_mut(of).filter(|(_, entry)| entry.changed);
        for (_, entry) in changed {
            entry.changed = false;
            self.stats.map_written_entries += 1;
        }
        self.stats.map_write_backs += 1;
    }

    /// A translation page is programmed.
    pub(super) fn note_programmed(&mut self) {
        self.stats.map_written_sectors += 1;
    }

    /// Translation pages written back so far: they make garbage as the host's sectors do.
    pub(super) fn write_backs(&self) -> u64 {
        self.stats.map_write_backs
    }

    /// The content of a translation page; zeros where the store keeps less of a sector than that.
    fn content(map: &Map, page: u32, out: &mut [u8]) {
        if out.len() < flashlane_base::SECTOR_BYTES {
            return;
        }
        let entries = (page * SPAN..).take(SPAN as usize);
        for (to, lba) in out.chunks_exact_mut(4).zip(entries) {
            let word = match map.get(lba.min(map.capacity() - 1)) {
                Entry::Media(at) => at + 1,
                Entry::Unmapped | Entry::Slot(_) | Entry::Poisoned => 0,
            };
            to.copy_from_slice(&word.to_le_bytes());
        }
    }

    pub(super) fn measure(&mut self) {
        self.before = self.stats;
    }

    pub(super) fn counted(&self) -> Vec<Counted> {
        let names = MapStats::SCHEMA.iter().map(|field| field.name);
        let since = self.stats.since(&self.before).numbers();
        names.zip(since).map(|(name, value)| Counted { name, value }).collect()
    }

    #[cfg(test)]
    pub(super) fn stats(&self) -> MapStats {
        self.stats
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}

/// Writes translation pages back while the cache is too full, until the device stops.
pub(super) async fn mapper(ftl: Arc<DriveFtl>, cx: Cx) {
    loop {
        let next = poll_fn(|_| {
            let mut c = ftl.controller.lock();
            let runs = c.phase == Phase::Running && c.read_only.is_none();
            let stopped = c.phase == Phase::Stopped;
            let Some(cache) = &mut c.cache else {
                return Poll::Ready(None);
            };
            if stopped {
                return Poll::Ready(None);
            }
            match runs.then(|| cache.next_due()).flatten() {
                Some(page) => Poll::Ready(Some(page)),
                None => {
                    cache.tasks.push(cx.waiter());
                    drop(c);
                    // Entries that had not changed may have left: a host that waits need not any more.
                    if !mutant!("kit.map-task-tells-nobody") {
                        ftl.mapped.wake(&cx);
                    }
                    Poll::Pending
                }
            }
        });
        let Some(page) = next.await else {
            return;
        };
        ftl.write_back(&cx, page).await;
        ftl.mapped.wake(&cx);
    }
}

impl DriveFtl {
    /// How many tasks write back.
    pub(super) fn mappers(&self) -> u32 {
        if self.has_cached_map { self.layout.positions.min(TASKS_MAX) } else { 0 }
    }

    /// Waits until the cache is not far beyond its size.
    pub(super) async fn wait_for_map(&self, cx: &Cx) {
        let over = || !self.map_is_behind();
        self.mapped.wait(cx, over).await;
    }

    /// The host has to wait for translation pages to be written.
    pub(super) fn map_is_behind(&self) -> bool {
        let c = self.controller.lock();
        let works = c.phase == Phase::Running && c.read_only.is_none();
        works && c.cache.as_ref().is_some_and(|cache| cache.is_far_over())
    }

    /// Has the entries of these sectors in the cache: reads the translation pages of those that are not.
    pub(super) async fn translate(&self, cx: &Cx, lba: u32, sectors: u32) {
        let pages: Vec<u32> = {
            let mut c = self.controller.lock();
            let missing = c.look_up_entries(lba, sectors);
            missing.into_iter().collect()
        };
        let read = self.read_map(cx, &pages).await;
        let mut c = self.controller.lock();
        if let Some(cache) = &mut c.cache {
            cache.stats.map_read_sectors += read;
            let in_pages = |lba: &u32| pages.contains(&(lba / SPAN));
            (lba..lba + sectors).filter(in_pages).for_each(|lba| cache.use_now(lba, false));
        }
        c.call_mappers(cx);
    }

    /// Some entry of these sectors is neither in the cache nor in the buffer.
    pub(super) fn misses_entries(&self, lba: u32, sectors: u32) -> bool {
        let mut c = self.controller.lock();
        if mutant!("kit.map-read-unpaid") {
            return false;
        }
        let missing = (lba..lba + sectors).any(|lba| c.misses_entry(lba));
        if !missing && let Some(cache) = &mut c.cache {
            for lba in lba..lba + sectors {
                if cache.entries.contains_key(&lba) {
                    cache.stats.map_hits += 1;
                    cache.use_now(lba, false);
                }
            }
        }
        missing
    }

    /// Reads translation pages, those that are on flash; returns how many that were.
    async fn read_map(&self, cx: &Cx, pages: &[u32]) -> u64 {
        let mut read = 0;
        for pages in pages.chunks(VECTOR_MAX) {
            let places = self.controller.lock().pin_map(pages);
            if places.is_empty() {
                continue;
            }
            let format = self.device.format();
            let place = |(_, at): &(u32, u32)| format.pack(self.layout.location(*at));
            let addrs: Vec<Ppa> = places.iter().map(place).collect();
            let index: Vec<u32> = (0..addrs.len() as u32).collect();
            let unit = self.unit();
            let mut bytes = vec![0; addrs.len() * unit];
            let mut oob = vec![[0; OOB_BYTES]; addrs.len()];
            let flags = Flags { cause: Cause::Metadata, ..Flags::READ };
            let content = Scatter::new(&mut bytes, &index, unit);
            let request = Request::read(&addrs, content, &mut oob).with(flags);
            let done = self.device.io(cx, request).await;
            let mut c = self.controller.lock();
            for (i, (lba, at)) in places.iter().enumerate() {
                let good = read::is_of(&oob[i], *lba, &bytes[i * unit..(i + 1) * unit]);
                if let Some(cache) = &mut c.cache {
                    cache.stats.map_read_failures += u64::from(!(done.status(i).is_ok() && good));
                }
                c.unpin(cx, *at);
            }
            drop(c);
            read += places.len() as u64;
        }
        read
    }

    /// Writes a translation page with all that has changed in it: what it was is read first, what it is
    /// now takes its way through the buffer as the host's sectors do.
    async fn write_back(&self, cx: &Cx, page: u32) {
        let read = self.read_map(cx, &[page]).await;
        let lba = {
            let mut c = self.controller.lock();
            let Some(cache) = &mut c.cache else { return };
            cache.stats.map_update_read_sectors += read;
            cache.first + page
        };
        if !self.room.try_acquire(1) {
            self.wait_for_room(cx, lba, 1).await;
        }
        let mut content = vec![0; self.unit()];
        let mut c = self.controller.lock();
        if c.phase != Phase::Running || c.read_only.is_some() {
            if let Some(cache) = &mut c.cache {
                cache.in_hand.remove(&page);
            }
            drop(c);
            self.room.release(cx, 1);
            return;
        }
        MapCache::content(&c.map, page, &mut content);
        if let Some(cache) = &mut c.cache {
            cache.clean(page);
            cache.in_hand.remove(&page);
        }
        c.note_admitted(1);
        let mut left = Room::default();
        c.admit(super::buffer::Kind::User, lba, &content, &mut left);
        self.go_on(cx, c, None, left);
    }
}

impl Controller {
    /// An entry has to be read from its translation page.
    fn misses_entry(&self, lba: u32) -> bool {
        let Some(cache) = &self.cache else {
            return false;
        };
        !cache.entries.contains_key(&lba) && !matches!(self.map.get(lba), Entry::Slot(_))
    }

    /// Counts hits and misses; returns the translation pages of what is missing.
    fn look_up_entries(&mut self, lba: u32, sectors: u32) -> BTreeSet<u32> {
        let mut pages = BTreeSet::new();
        for lba in lba..lba + sectors {
            let missing = self.misses_entry(lba);
            let Some(cache) = &mut self.cache else {
                break;
            };
            if missing {
                cache.stats.map_misses += 1;
                pages.insert(lba / SPAN);
            } else if cache.entries.contains_key(&lba) {
                cache.stats.map_hits += 1;
                cache.use_now(lba, false);
            }
        }
        pages
    }

    /// Where translation pages lie, (logical, physical) each, of those that are on flash; their lines are
    /// not erased until they are unpinned.
    fn pin_map(&mut self, pages: &[u32]) -> Vec<(u32, u32)> {
        let Some(first) = self.cache.as_ref().map(|cache| cache.first) else {
            return Vec::new();
        };
        let mut places = Vec::new();
        for lba in pages.iter().map(|page| first + page) {
            if let Entry::Media(at) = self.map.get(lba) {
                let line = self.place.layout.line_of(at);
                self.place.line_mut(line).readers += 1;
                places.push((lba, at));
            }
        }
        places
    }

    /// Wakes tasks that write back, if there is work for them, and hosts that wait for nothing any more.
    #[inline]
    pub(super) fn call_mappers(&mut self, cx: &Cx) {
        if let Some(cache) = &mut self.cache
            && cache.is_over()
        {
            cache.tasks.drain(..).for_each(|task| cx.wake(task));
        }
    }

    /// Wakes them all: the device has stopped.
    pub(super) fn wake_mappers(&mut self, cx: &Cx) {
        if let Some(cache) = &mut self.cache {
            cache.tasks.drain(..).for_each(|task| cx.wake(task));
        }
    }
}
