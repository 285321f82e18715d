//! A mount after a clean stop: its snapshot, or the reason why there is none to take.
//!
//! Owns: finding roots, comparing them with the device, reading what they name, the marks.
//! Promises: a snapshot is taken only if nothing was programmed or erased behind it, and never
//! again once a life has begun: the first thing that a life programs is one unit of padding behind
//! each root (the marks), before it programs or erases anything else. Chunks that have gone offline
//! since, all of a die for example, change nothing: what was in them is mapped there, and reads of
//! it fail. What is damaged, or can't be true, is not taken. Never: changes anything before a
//! snapshot is known to be good, or takes a part of one.
//!
//! **Two dies.** Everything is there twice, so a die may be dead. A root that is on a dead die
//! can't be marked; should that die come back, and another one be dead then, the chunk report must
//! tell. So marks are on two PUs at least, where there are two: with one root alone, another open
//! chunk gets one.
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

use super::super::buffer::NIL;
use super::super::map::{Entry, Map};
use super::super::pages::Pages;
use super::super::place::{Layout, Place, Plan, Stock};
use super::super::snapshot::{self, Part, Root, Shape, Words};
use super::super::{Controller, Room};
use super::sectors::{Record, read_records, read_snapshot};
use super::{Mount, pad};
use crate::log::format::LBA_SNAPSHOT;
use crate::patience::read_again;

/// The state that a clean stop has left.
pub(super) struct Rest {
    /// Those that could be read: they differ in their places only.
    roots: Vec<Root>,
    words: Words,
}

impl Rest {
    /// The highest stamp of the life before.
    pub(super) fn stamp(&self) -> u64 {
        self.roots[0].stamp
    }

    /// Where the pages lie, and which units are void: the root's unit too, and its copies. The last of
    /// them may be torn, the root whole in a unit that is not. A pointer does not say, and data will be
    /// written behind it.
    pub(super) fn tell_pages(&self, pages: &mut Pages, units: u32, layout: &Layout) {
        self.words.pages().for_each(|(number, at)| pages.found_place(number, at));
        pages.leave_stamps_unread();
        self.words.voids(units).for_each(|unit| pages.found_void(unit));
        let unit = layout.main().unit;
        // The other root's program may have failed in its last unit, which moves the pointer all
        // the same.
        let other =
            self.roots.iter().filter_map(|root| Some((root.other.checked_sub(1)?, root.behind)));
        let other =
            other.filter(|(at, _)| *at < layout.sectors && !mutant!("kit.other-root-not-void"));
        let other = other.map(|(at, behind)| (layout.in_chunk(at), behind));
        let other = other.map(|((line, position, s), behind)| (line, position, s / unit, behind));
        let main = layout.main();
        let rows = main.chunk_sectors / unit;
        let other = other.filter(|(line, _, row, behind)| {
            main.lines.contains(line) && row.saturating_add(*behind) < rows
        });
        let own = self.roots.iter().map(|root| (root.line, root.position, root.row, root.behind));
        for (line, position, row, behind) in own.chain(other) {
            for row in row..=row + behind {
                let at = layout.sector_at(line, position, row * unit);
                if !mutant!("kit.root-not-void") {
                    let grains = layout.grains_of(at, unit);
                    grains.for_each(|grain| pages.set_void(grain, true));
                }
            }
        }
    }

    /// Lines and chunks as they were left.
    pub(super) fn place(&self, mount: &Mount<'_>, plan: Plan) -> Place {
        let open: BTreeSet<u32> = self.roots[0].open.iter().copied().collect();
        let stamps = self.words.sequences();
        let stock =
            Stock { chunks: &mount.chunks, open: Some(&open), leaving: None, stamps: &stamps };
        Place::adopt(plan, stock)
    }
}

impl Mount<'_> {
    /// The snapshot, when it is the state of the device, and the marks are set; or why it is not.
    pub(super) async fn find_rest(&mut self, shape: Shape) -> Result<Rest, &'static str> {
        let mut roots = self.roots(&shape, true).await;
        // Chunks of a die that has died meanwhile are offline.
        self.take_stock();
        let Some(newest) = roots.last().map(|root| root.stamp) else {
            return Err("there is none");
        };
        roots.retain(|root| root.stamp == newest);
        let root = roots[0].clone();
        let (numbers, positions) = (self.layout.chunk_numbers(), self.layout.positions);
        let in_order = (0..positions).flat_map(|p| (0..numbers).map(move |n| n * positions + p));
        let chunks = in_order.map(|at| &self.chunks[at as usize]);
        let mut same = snapshot::digest(chunks) == root.digest;
        for root in &roots {
            same = same || self.is_as_noted(root).await;
        }
        if !same && !mutant!("kit.digest-unchecked") {
            return Err("something was written behind it");
        }
        self.step("find the snapshot");
        let physical = self.layout.sectors as u64;
        let shape = shape.of(root.major, &self.new_pages());
        let words = self.words_of(&root, shape).await.ok_or("it can't be read")?;
        if !words.is_possible(physical, |at| self.is_written(at)) {
            return Err("it contradicts the device");
        }
        self.step("read the snapshot");
        let marked = mutant!("kit.snapshot-unmarked") || self.mark(&roots, true).await;
        self.take_stock();
        if !marked {
            return Err("the program that is to mark it as taken failed");
        }
        self.step("mark it");
        self.report.from_snapshot = true;
        Ok(Rest { roots, words })
    }

    /// Outdates the roots that some mount could take for the state of the device.
    pub(super) async fn outdate_roots(&mut self) {
        let shape = Shape::new(self.capacity as u32, &self.new_pages(), &self.layout);
        let roots = self.roots(&shape, false).await;
        self.mark(&roots, false).await;
        self.take_stock();
    }

    /// Each chunk is as the infos in front of this root say, or has gone offline since.
    async fn is_as_noted(&self, root: &Root) -> bool {
        let unit = self.layout.main().unit;
        let Some(first) = root.row.checked_sub(root.infos.div_ceil(unit)) else {
            return false;
        };
        if root.infos == 0 || mutant!("kit.offline-not-forgiven") {
            return false;
        }
        let at = |i: u32| self.layout.sector_at(root.line, root.position, first * unit + i);
        let sectors: Vec<(u32, [u32; 2])> = (0..root.infos).map(|i| (i, [at(i) + 1, 0])).collect();
        let words = Arc::new(Mutex::new(vec![0u32; root.infos as usize * snapshot::SPAN]));
        let put = {
            let words = words.clone();
            move |number: u32, bytes: &[u8]| {
                let from = number as usize * snapshot::SPAN;
                let mut words = words.lock();
                words[from..].iter_mut().zip(snapshot::words(bytes)).for_each(|(to, w)| *to = w);
            }
        };
        if !self.read_part(Part::Info, root, sectors, put).await {
            return false;
        }
        let words = words.lock();
        let mut then = words.chunks_exact(2);
        let mut now = self.chunks.iter();
        now.all(|now| then.next().is_some_and(|w| snapshot::is_as_it_was([w[0], w[1]], now)))
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

    /// Roots with all their copies, and nothing behind them, in open chunks; the newest last. With
    /// `patience`, where none can be read, places are read again over time that could not be read.
    async fn roots(&self, shape: &Shape, patience: bool) -> Vec<Root> {
        let unit = self.layout.main().unit;
        let mut places = Vec::new();
        for line in self.layout.main().lines.clone() {
            for position in self.layout.positions_of(line) {
                let info = &self.chunks[self.chunk_index(line, position)];
                let row = (info.write_pointer / unit).checked_sub(self.reach + 1);
                let whole = info.write_pointer.is_multiple_of(unit);
                if let Some(row) = row.filter(|_| whole && info.state == ChunkState::Open) {
                    places.push(self.layout.sector_at(line, position, row * unit));
                }
            }
        }
        // A die that is dead shows only when it is asked.
        let asked: BTreeSet<u32> = places.iter().map(|at| self.layout.in_chunk(*at).1).collect();
        let unasked = (0..self.layout.positions).filter(|p| patience && !asked.contains(p));
        places.extend(unasked.filter_map(|position| self.any_at(position)));
        let (mut roots, failed) = self.roots_at(shape, places).await;
        if patience && roots.is_empty() && !mutant!("kit.mount-without-patience") {
            read_again(self.cx, failed, async |left: Vec<u32>| {
                let (found, still) = self.roots_at(shape, left).await;
                roots.extend(found);
                if roots.is_empty() { still } else { Vec::new() }
            })
            .await;
        }
        roots.sort_by_key(|root| (root.stamp, root.line, root.position));
        roots
    }

    /// Some sector at this position that can be read.
    fn any_at(&self, position: u32) -> Option<u32> {
        let readable = |line: &u32| {
            let info = &self.chunks[self.chunk_index(*line, position)];
            self.readable(*line, info) > 0
        };
        let line = self.layout.lines_at(position).find(readable)?;
        Some(self.layout.sector_at(line, position, 0))
    }

    /// Roots at these physical sectors, PUs side by side, and those of them that could not be read.
    async fn roots_at(&self, shape: &Shape, places: Vec<u32>) -> (Vec<Root>, Vec<u32>) {
        let mut per_position = vec![Vec::new(); self.layout.positions as usize];
        for at in places {
            per_position[self.layout.in_chunk(at).1 as usize].push(at);
        }
        let mut joins = Vec::new();
        for places in per_position.into_iter().filter(|places| !places.is_empty()) {
            let (cx, medium) = (self.cx.clone(), self.medium.clone());
            let (capacity, shape, reach) = (self.capacity, *shape, self.reach);
            let pages = self.new_pages();
            joins.push(self.cx.spawn_join(async move {
                let (mut roots, mut failed) = (Vec::new(), Vec::new());
                for part in places.chunks(VECTOR_MAX) {
                    let records = read_records(&cx, &medium, part).await;
                    let of = part.iter().zip(&records);
                    failed.extend(of.filter(|(_, record)| record.is_none()).map(|(at, _)| *at));
                    let is_typed = |r: Option<Record>| r.is_some_and(|r| r.lba == LBA_SNAPSHOT);
                    let typed = part.iter().zip(records).filter(|(_, record)| is_typed(*record));
                    let typed: Vec<u32> = typed.map(|(at, _)| *at).collect();
                    let sectors = read_snapshot(&cx, &medium, &typed).await;
                    for (at, bytes) in typed.iter().zip(sectors) {
                        let root = bytes.and_then(|b| Root::decode(capacity, &shape, &pages, &b));
                        let (line, position, sector) = medium.layout.in_chunk(*at);
                        let row = sector / medium.layout.main().unit;
                        let here = |r: &Root| {
                            (r.line, r.position, r.row, r.behind) == (line, position, row, reach)
                        };
                        roots.extend(root.filter(here));
                    }
                }
                (roots, failed)
            }));
        }
        let (mut roots, mut failed) = (Vec::new(), Vec::new());
        for join in joins {
            let (some, left) = join.await;
            roots.extend(some);
            failed.extend(left);
        }
        (roots, failed)
    }

    /// Everything that a root names; `None` if any of it is not there.
    async fn words_of(&self, root: &Root, shape: Shape) -> Option<Words> {
        let n = shape.lists();
        let second = |i: usize| root.lists.get(n + i).map_or(0, |at| at + 1);
        let lists: Vec<(u32, [u32; 2])> =
            (0..n).map(|i| (i as u32, [root.lists[i] + 1, second(i)])).collect();
        let places = Arc::new(Mutex::new(vec![0u32; n * snapshot::SPAN]));
        let lists = {
            let places = places.clone();
            self.read_part(Part::List, root, lists, move |number, bytes| {
                let from = number as usize * snapshot::SPAN;
                let mut places = places.lock();
                places[from..].iter_mut().zip(snapshot::words(bytes)).for_each(|(to, w)| *to = w);
            })
        };
        if !lists.await {
            return None;
        }
        let places = Arc::into_inner(places)?.into_inner();
        let (single, listed) = (root.major == snapshot::SINGLE, shape.listed());
        let copies = |i: usize| match single {
            true => [places[i], 0],
            false => {
                let at = i / listed * snapshot::SPAN + i % listed * 2;
                [places[at], places[at + 1]]
            }
        };
        let body = (0..shape.body()).map(|i| (i as u32, copies(i)));
        let body: Vec<(u32, [u32; 2])> = body.filter(|(_, at)| *at != [0, 0]).collect();
        let words = Arc::new(Mutex::new(Words::new(shape)));
        let all = {
            let words = words.clone();
            self.read_part(Part::Body, root, body, move |number, bytes| {
                words.lock().put(number, bytes);
            })
        };
        if !all.await {
            return None;
        }
        Some(Arc::into_inner(words)?.into_inner())
    }

    /// Reads sectors of a snapshot, (number, places of its copies + 1) each, PUs side by side, over
    /// time where no copy can be read; false if one is not what it should be.
    async fn read_part(
        &self,
        part: Part,
        root: &Root,
        sectors: Vec<(u32, [u32; 2])>,
        take: impl Fn(u32, &[u8]) + Clone + 'static,
    ) -> bool {
        let physical = self.layout.sectors as u64;
        let can_be = |at: &u32| *at == 0 || *at as u64 <= physical && self.is_written(at - 1);
        if !sectors.iter().all(|(_, places)| places.iter().all(can_be)) {
            return false;
        }
        let name = (part, root.stamp, root.major);
        let mut left = sectors;
        for turn in [0, 1] {
            left = self.read_copies(name, left, turn, take.clone()).await;
        }
        if mutant!("kit.mount-without-patience") {
            return left.is_empty();
        }
        let left = read_again(self.cx, left, async |mut left| {
            for turn in [0, 1] {
                left = self.read_copies(name, left, turn, take.clone()).await;
            }
            left
        });
        left.await.is_empty()
    }

    /// Reads a copy of each of these sectors, in the second `turn` the other one; returns those of
    /// which it is not what it should be. Copies are chosen so that all PUs have as much to read.
    async fn read_copies(
        &self,
        (part, stamp, major): (Part, u64, u16),
        sectors: Vec<(u32, [u32; 2])>,
        turn: usize,
        take: impl Fn(u32, &[u8]) + Clone + 'static,
    ) -> Vec<(u32, [u32; 2])> {
        let mut per_position = vec![Vec::new(); self.layout.positions as usize];
        let mut left = Vec::new();
        // Of the unit that was chosen from last: its first copy, and which one was taken.
        let mut last = (NIL, 0);
        for sector in sectors {
            let readable = |at: &u32| *at > 0 && !self.is_offline(at - 1);
            let position = |at: u32| self.layout.in_chunk(at - 1).1 as usize;
            let copies: Vec<u32> = sector.1.iter().copied().filter(readable).collect();
            // A unit is sensed at once: all of it from one copy.
            let unit = copies.first().map_or(NIL, |at| self.layout.unit_around(at - 1).0);
            if unit != last.0 {
                let load = |i: &usize| per_position[position(copies[*i])].len();
                last = (unit, (0..copies.len()).min_by_key(load).unwrap_or(0));
            }
            match copies.get((last.1 + turn) % copies.len().max(1)) {
                Some(at) => per_position[position(*at)].push((sector, at - 1)),
                None => left.push(sector),
            }
        }
        let mut joins = Vec::new();
        for sectors in per_position.into_iter().filter(|sectors| !sectors.is_empty()) {
            let (cx, medium) = (self.cx.clone(), self.medium.clone());
            let (capacity, take) = (self.capacity, take.clone());
            joins.push(self.cx.spawn_join(async move {
                let mut left = Vec::new();
                for some in sectors.chunks(VECTOR_MAX) {
                    let ats: Vec<u32> = some.iter().map(|(_, at)| *at).collect();
                    let read = read_snapshot(&cx, &medium, &ats).await;
                    for ((sector, _), bytes) in some.iter().zip(read) {
                        let whole = |b: &Vec<u8>| {
                            let found = snapshot::check(part, sector.0, capacity, b);
                            found == Some((stamp, major))
                                || found.is_some() && mutant!("kit.snapshot-of-another-life")
                        };
                        match bytes.filter(whole) {
                            Some(bytes) => take(sector.0, &bytes),
                            None => left.push(*sector),
                        }
                    }
                }
                left
            }));
        }
        for join in joins {
            left.extend(join.await);
        }
        left
    }

    /// Programs a unit of padding behind each root and its copies, so that no later mount takes
    /// them. With `all`, where that are roots on one PU only, one goes to another open chunk. False
    /// if none was programmed.
    async fn mark(&mut self, roots: &[Root], all: bool) -> bool {
        let unit = self.layout.main().unit;
        let live = |root: &&Root| {
            let info = &self.chunks[self.chunk_index(root.line, root.position)];
            info.state != ChunkState::Offline
        };
        let behind = |root: &Root| (root.line, root.position, (root.row + root.behind + 1) * unit);
        let mut places: Vec<(u32, u32, u32)> = roots.iter().filter(live).map(behind).collect();
        let positions: BTreeSet<u32> = places.iter().map(|place| place.1).collect();
        if all && positions.len() == 1 && !mutant!("kit.marked-on-one-die") {
            places.extend(self.open_elsewhere(&roots[0].open, &positions));
        }
        let flights = places.iter().map(|(line, position, from)| {
            let (cx, device, layout) = (self.cx.clone(), self.device.clone(), self.layout.clone());
            let (line, position, from) = (*line, *position, *from);
            self.cx.spawn_join(async move {
                pad(&cx, &*device, &layout, line, position, from, unit).await
            })
        });
        let mut any = false;
        for (join, (line, position, from)) in flights.collect::<Vec<_>>().into_iter().zip(places) {
            let done = join.await;
            let status = |i: &u32| done.status(*i as usize);
            self.padded.0 += (0..unit).filter(|i| status(i).moved_pointer()).count() as u64;
            let bad: Vec<u32> = (0..unit).filter(|i| !status(i).is_ok()).collect();
            any |= bad.is_empty();
            let at = |i: u32| self.layout.sector_at(line, position, from + i);
            self.medium.note_refusal(&done, &(0..unit).map(at).collect::<Vec<_>>());
            self.failed.extend(bad.into_iter().map(at));
        }
        any
    }

    /// Where a unit can be programmed in one of these lines, at another position than these.
    fn open_elsewhere(&self, lines: &[u32], not: &BTreeSet<u32>) -> Option<(u32, u32, u32)> {
        let main = self.layout.main();
        let of_main = lines.iter().copied().filter(|line| main.lines.contains(line));
        let chunks =
            of_main.flat_map(|line| self.layout.positions_of(line).map(move |p| (line, p)));
        let place = |(line, position): (u32, u32)| {
            let info = &self.chunks[self.chunk_index(line, position)];
            let open = matches!(info.state, ChunkState::Open | ChunkState::Free);
            let whole = open && info.write_pointer.is_multiple_of(main.unit);
            let fits = whole && main.is_mode_of(info) && !not.contains(&position);
            fits.then_some((line, position, info.write_pointer))
        };
        chunks.filter_map(place).next()
    }

    fn is_offline(&self, at: u32) -> bool {
        let (line, position, _) = self.layout.in_chunk(at);
        self.chunks[self.chunk_index(line, position)].state == ChunkState::Offline
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
        self.take_seconds();
        // Pages must name lost sectors, else a later scan would take older copies for them.
        if !mutant!("kit.gone-not-noted") {
            self.touch_gone();
        }
        self.place.erase_empty_lines(self.barrier_after_now());
        Room::default()
    }

    /// Counts the second copies of pages of stamps as valid sectors of their lines.
    pub(super) fn take_seconds(&mut self) {
        let seconds: Vec<(u32, u32)> = self.pages.seconds().collect();
        for (page, at) in seconds {
            self.take_copy(at, self.pages.lba(page));
        }
    }

    /// The copy of a sector that counts lies at `at`.
    fn take_copy(&mut self, at: u32, lba: u32) {
        self.map.take(at, lba);
        let line = self.place.layout.line_of(at);
        self.place.line_mut(line).valid += 1;
    }
}
