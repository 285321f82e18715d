//! A mount after a clean stop: its snapshot, or the reason why there is none to take.
//!
//! Owns: finding a root, comparing it with the device, reading what it names, the mark. Promises: a
//! snapshot is taken only if nothing was programmed or erased behind it, and never again once a life
//! has begun: the first thing that a life programs is one unit of padding behind the root (the
//! mark), before it programs or erases anything else. What is damaged, or can't be true, is not
//! taken. Never: changes anything before a snapshot is known to be good, or takes a part of one.
//!
//! What can't deceive it: a program moves its chunk's pointer, torn or not, and one that the power
//! cut undid never was; an erase counts, a torn one too. Where a device does not count erases (its
//! medium needs none) the mark alone tells: to remove it its chunk must be erased, which removes the
//! root. An image comes back as a whole as it was at one moment.

use flashlane_base::{VECTOR_MAX, mutant};
use flashlane_ocssd::device::ChunkState;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::map::{Entry, Map};
use super::super::pages::Pages;
use super::super::place::{Layout, Place, Plan, Stock};
use super::super::snapshot::{self, Part, Root, Shape, Words};
use super::super::{Controller, Room};
use super::sectors::{read_records, read_snapshot};
use super::{Mount, pad};
use crate::log::format::LBA_SNAPSHOT;

/// The state that a clean stop has left.
pub(super) struct Rest {
    root: Root,
    words: Words,
}

impl Rest {
    /// The highest stamp of the life before.
    pub(super) fn stamp(&self) -> u64 {
        self.root.stamp
    }

    /// Where the pages lie, and which units are void: the root's unit too, and its copies. The last of
    /// them may be torn, the root whole in a unit that is not. A pointer does not say, and data will be
    /// written behind it.
    pub(super) fn tell_pages(&self, pages: &mut Pages, units: u32, layout: &Layout) {
        self.words.pages().for_each(|(page, at)| pages.found(page, at));
        self.words.voids(units).for_each(|unit| pages.found_void(unit));
        let root = &self.root;
        let unit = layout.main().unit;
        for row in root.row..=root.row + root.behind {
            let at = layout.sector_at(root.line, root.position, row * unit);
            if !mutant!("kit.root-not-void") {
                pages.set_void(layout.grain_of(at), true);
            }
        }
    }

    /// Lines and chunks as they were left.
    pub(super) fn place(&self, mount: &Mount<'_>, plan: Plan) -> Place {
        let open: BTreeSet<u32> = self.root.open.iter().copied().collect();
        let stamps = self.words.sequences();
        let stock =
            Stock { chunks: &mount.chunks, open: Some(&open), leaving: None, stamps: &stamps };
        Place::adopt(plan, stock)
    }
}

impl Mount<'_> {
    /// The snapshot, when it is the state of the device, and the mark is set; or why it is not.
    pub(super) async fn find_rest(&mut self, shape: Shape) -> Result<Rest, &'static str> {
        let Some(root) = self.roots(&shape).await.pop() else {
            return Err("there is none");
        };
        let (numbers, positions) = (self.layout.chunk_numbers(), self.layout.positions);
        let in_order = (0..positions).flat_map(|p| (0..numbers).map(move |n| n * positions + p));
        let chunks = in_order.map(|at| &self.chunks[at as usize]);
        let same = snapshot::digest(chunks) == root.digest;
        if !same && !mutant!("kit.digest-unchecked") {
            return Err("something was written behind it");
        }
        self.step("find the snapshot");
        let physical = self.layout.sectors as u64;
        let words = self.words_of(&root, shape).await.ok_or("it can't be read")?;
        if !words.is_possible(physical, |at| self.is_written(at)) {
            return Err("it contradicts the device");
        }
        self.step("read the snapshot");
        let marked = mutant!("kit.snapshot-unmarked") || self.mark(&root).await;
        self.take_stock();
        if !marked {
            return Err("the program that is to mark it as taken failed");
        }
        self.step("mark it");
        self.report.from_snapshot = true;
        Ok(Rest { root, words })
    }

    /// Outdates the roots that some mount could take for the state of the device.
    pub(super) async fn outdate_roots(&mut self) {
        let pages = Pages::new(self.capacity as u32, self.layout.grains()).count();
        let shape = Shape::new(self.capacity as u32, pages, &self.layout);
        for root in self.roots(&shape).await {
            self.mark(&root).await;
        }
        self.take_stock();
    }

    /// True where a sector may have been programmed.
    fn is_written(&self, at: u32) -> bool {
        let (line, position, sector) = self.layout.in_chunk(at);
        let info = &self.chunks[self.chunk_index(line, position)];
        match info.state {
            ChunkState::Free => false,
            ChunkState::Open | ChunkState::Closed => sector < info.write_pointer,
            // A dead die may hold the newest copy: reads of it fail.
            ChunkState::Offline => true,
        }
    }

    /// Roots with all their copies, and nothing behind them, in open chunks; the newest last.
    async fn roots(&self, shape: &Shape) -> Vec<Root> {
        let unit = self.layout.main().unit;
        let mut joins = Vec::new();
        for position in 0..self.layout.positions {
            // Where a root would be: (line, unit).
            let mut places = Vec::new();
            for line in self.layout.lines_at(position) {
                let info = &self.chunks[self.chunk_index(line, position)];
                let row = (info.write_pointer / unit).checked_sub(self.reach + 1);
                let whole = info.write_pointer.is_multiple_of(unit);
                if let Some(row) = row
                    && info.state == ChunkState::Open
                    && whole
                {
                    places.push((line, row));
                }
            }
            let (cx, medium) = (self.cx.clone(), self.medium.clone());
            let layout = self.layout.clone();
            let (capacity, shape, reach) = (self.capacity, *shape, self.reach);
            joins.push(self.cx.spawn_join(async move {
                let mut roots = Vec::new();
                for part in places.chunks(VECTOR_MAX) {
                    let at =
                        |(line, row): &(u32, u32)| layout.sector_at(*line, position, *row * unit);
                    let ats: Vec<u32> = part.iter().map(at).collect();
                    let records = read_records(&cx, &medium, &ats).await;
                    let is_typed = |r: &Option<(u64, u64)>| r.is_some_and(|r| r.0 == LBA_SNAPSHOT);
                    let typed = part.iter().zip(records).filter(|(_, record)| is_typed(record));
                    let typed: Vec<(u32, u32)> = typed.map(|(place, _)| *place).collect();
                    let ats: Vec<u32> = typed.iter().map(at).collect();
                    let sectors = read_snapshot(&cx, &medium, &ats).await;
                    for ((line, row), bytes) in typed.iter().zip(sectors) {
                        let root = bytes.and_then(|b| Root::decode(capacity, &shape, &b));
                        let here = |r: &Root| {
                            (r.line, r.position, r.row, r.behind) == (*line, position, *row, reach)
                        };
                        roots.extend(root.filter(here));
                    }
                }
                roots
            }));
        }
        let mut roots = Vec::new();
        for join in joins {
            roots.extend(join.await);
        }
        roots.sort_by_key(|root| root.stamp);
        roots
    }

    /// Everything that a root names; `None` if any of it is not there.
    async fn words_of(&self, root: &Root, shape: Shape) -> Option<Words> {
        let numbered = |places: &[u32]| (0u32..).zip(places.iter().copied()).collect::<Vec<_>>();
        let places = Arc::new(Mutex::new(vec![0u32; shape.lists() * snapshot::SPAN]));
        let lists = {
            let places = places.clone();
            self.read_part(Part::List, root.stamp, numbered(&root.lists), move |number, bytes| {
                let from = number as usize * snapshot::SPAN;
                let mut places = places.lock();
                places[from..].iter_mut().zip(snapshot::words(bytes)).for_each(|(to, w)| *to = w);
            })
        };
        if !lists.await {
            return None;
        }
        let places = Arc::into_inner(places)?.into_inner();
        let body: Vec<(u32, u32)> = numbered(&places[..shape.body()]);
        let body = body.into_iter().filter_map(|(i, at)| Some((i, at.checked_sub(1)?))).collect();
        let words = Arc::new(Mutex::new(Words::new(shape)));
        let all = {
            let words = words.clone();
            self.read_part(Part::Body, root.stamp, body, move |number, bytes| {
                words.lock().put(number, bytes);
            })
        };
        if !all.await {
            return None;
        }
        Some(Arc::into_inner(words)?.into_inner())
    }

    /// Reads sectors of a snapshot, (number, physical sector) each, PUs side by side; false if one
    /// is not what it should be.
    async fn read_part(
        &self,
        part: Part,
        stamp: u64,
        sectors: Vec<(u32, u32)>,
        take: impl Fn(u32, &[u8]) + Clone + 'static,
    ) -> bool {
        let physical = self.layout.sectors as u64;
        if sectors.iter().any(|(_, at)| *at as u64 >= physical || !self.is_written(*at)) {
            return false;
        }
        let mut per_position = vec![Vec::new(); self.layout.positions as usize];
        for (number, at) in sectors {
            per_position[self.layout.in_chunk(at).1 as usize].push((number, at));
        }
        let mut joins = Vec::new();
        for sectors in per_position.into_iter().filter(|sectors| !sectors.is_empty()) {
            let (cx, medium) = (self.cx.clone(), self.medium.clone());
            let (capacity, take) = (self.capacity, take.clone());
            joins.push(self.cx.spawn_join(async move {
                for some in sectors.chunks(VECTOR_MAX) {
                    let ats: Vec<u32> = some.iter().map(|(_, at)| *at).collect();
                    let read = read_snapshot(&cx, &medium, &ats).await;
                    for ((number, _), bytes) in some.iter().zip(read) {
                        let whole = |b: &Vec<u8>| {
                            let found = snapshot::check(part, *number, capacity, b);
                            found == Some(stamp)
                                || found.is_some() && mutant!("kit.snapshot-of-another-life")
                        };
                        let Some(bytes) = bytes.filter(whole) else {
                            return false;
                        };
                        take(*number, &bytes);
                    }
                }
                true
            }));
        }
        let mut all = true;
        for join in joins {
            all &= join.await;
        }
        all
    }

    /// Programs a unit of padding behind a root and its copies: no mount takes it from then on.
    async fn mark(&mut self, root: &Root) -> bool {
        let (layout, unit) = (&self.layout, self.layout.main().unit);
        let from = (root.row + root.behind + 1) * unit;
        let (line, position) = (root.line, root.position);
        let done = pad(self.cx, &*self.device, layout, line, position, from, unit).await;
        let status = |i: &u32| done.status(*i as usize);
        self.padded.0 += (0..unit).filter(|i| status(i).moved_pointer()).count() as u64;
        let bad: Vec<u32> = (0..unit).filter(|i| !status(i).is_ok()).collect();
        let good = bad.is_empty();
        self.failed.extend(bad.iter().map(|i| layout.sector_at(line, position, from + i)));
        good
    }
}

impl Controller {
    /// Fills map and lines with what the snapshot says.
    pub(super) fn take_rest(&mut self, rest: Rest, physical: u64) -> Room {
        self.map = Map::of(rest.words.into_entries(), physical);
        for lba in 0..self.map.capacity() {
            if let Entry::Media(at) = self.map.get(lba) {
                self.take_copy(at, lba);
            }
        }
        for page in 0..self.pages.count() {
            if let Some(at) = self.pages.at(page) {
                self.take_copy(at, self.pages.lba(page));
            }
        }
        self.place.erase_empty_lines();
        Room::default()
    }

    /// The copy of a sector that counts lies at `at`.
    fn take_copy(&mut self, at: u32, lba: u32) {
        self.map.take(at, lba);
        let line = self.place.layout.line_of(at);
        self.place.line_mut(line).valid += 1;
    }
}
