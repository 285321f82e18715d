//! What a stop leaves behind: a snapshot, and nothing in a window or an open pair.
//!
//! Owns: the writing of a snapshot (`snapshot.rs` has its bytes), stage by stage. Promises: the root
//! is programmed last, when all that it speaks of is on the medium and can be read, and says which
//! chunk report that is; where anything else happened meanwhile there is no snapshot, and the next
//! mount scans; GC loses no room that it counts on. Never: makes a stop fail, or a device read-only.
//!
//! The device is drained: no program flies, GC rests, pages are saved. Then
//!
//! 1. the body, then the lists, go where the host's data goes, each unit a second time to another PU.
//!    A body sector of zeros is left out.
//! 2. Padding behind everything that an open chunk could not give back, or that a torn program of
//!    the next life could take along: `reach` units.
//! 3. The infos and the root, in two open chunks on different PUs with room for both, for `reach` copies of
//!    the root, and for one unit more. The copies are the padding behind it, so the root is the last
//!    thing in its chunk that can be read: that is how it is found. The unit more is where the next
//!    life marks that it has begun (`resume.rs`).
//!
//! A mount takes the snapshot if the chunk report is what the root says, but for chunks that have
//! gone offline. A program moves a pointer, an erase counts; a program that the power cut undid
//! never was. So it is equal only while nothing was written. Where there is no room for two copies
//! on two PUs, and GC can't make any, there is one.

use flashlane_base::{Ns, mutant};
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Completion, Device};
use flashlane_rt::Cx;

use super::buffer::Stage as SlotStage;
use super::drain::Load;
use super::map::Entry;
use super::pages::PAGE_BYTES;
use super::place::{MAIN, OpenChunk};
use super::snapshot::{self, LISTS_MAX, Part, Root, SPAN, Shape};
use super::{Controller, DriveFtl, NO_SPARE, Phase, Room, buffer::Kind};

/// Snapshots begun before a stop goes without: each that fails has cost a chunk, or somebody
/// discarded meanwhile.
const TRIES: u32 = 8;

/// Victims over all PUs that a stop takes at most to make room for a snapshot.
const VICTIMS_MAX: u32 = 8;

/// How often a stop looks whether a device without spare has come to rest, and how long it waits in
/// between: nobody else says so.
const LOOKS: u32 = 300;
const LOOK: Ns = Ns::from_ms(1);

/// What is being programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Body,
    Lists,
    Seal,
    Root,
}

/// A unit on its way: its PU, the numbers of its sectors, their bytes.
#[derive(Clone)]
struct Unit {
    position: u32,
    /// Where its first copy went, if this is the second.
    first: Option<u32>,
    numbers: Vec<u32>,
    bytes: Vec<u8>,
}

/// A root, what is to be programmed in front of it, and how many units of both are on their way.
struct RootAt {
    chunk: OpenChunk,
    root: Root,
    begun: u32,
}

/// A chunk to be padded, and by how many units.
struct Pad {
    chunk: OpenChunk,
    left: u32,
}

/// A snapshot that is being written.
pub(super) struct Writer {
    stage: Stage,
    failed: bool,
    shape: Shape,
    /// Names the snapshot.
    stamp: u64,
    /// What changes when something else happens.
    quiet: (u64, u64),
    /// Sector of the stage to look at next.
    next: u32,
    /// Made, and not yet given to a PU.
    ready: Option<Unit>,
    flying: Vec<Unit>,
    /// Of everything: one or two.
    copies: u32,
    /// With a root on one PU alone it has failed, for GC may make room for another.
    insists: bool,
    /// That is how it has failed.
    is_short: bool,
    /// Units of padding that were programmed because only the PU of a first copy had room.
    skipped: u32,
    /// A second copy went to the PU of the first one all the same.
    is_on_one: bool,
    /// Where the copies of the sectors lie, + 1.
    body: Vec<[u32; 2]>,
    lists: Vec<[u32; 2]>,
    pads: Vec<Pad>,
    roots: Vec<RootAt>,
    /// The words of the infos; none where chunks are too short for them.
    infos: Vec<u32>,
}

impl DriveFtl {
    /// Leaves a snapshot on a drained device, if it can.
    pub(super) async fn leave_snapshot(&self, cx: &Cx) {
        self.rest_without_spare(cx).await;
        let mut victims = VICTIMS_MAX * self.controller.lock().place.abreast(MAIN);
        let mut insists = true;
        for n in 0..TRIES {
            insists &= n < TRIES / 2;
            while !self.begin_snapshot(cx, insists) {
                match victims.checked_sub(1).filter(|_| self.make_room(cx)) {
                    Some(left) => victims = left,
                    None if insists => {
                        insists = false;
                        continue;
                    }
                    None => return,
                }
                self.settle(cx).await;
            }
            let (left, is_short) = loop {
                self.settled.wait(cx, || self.controller.lock().stage_is_over()).await;
                let mut c = self.controller.lock();
                if let Some(left) = c.next_stage(&*self.device) {
                    let writer = c.writer.take();
                    let apart = writer.as_ref().filter(|w| left && !w.is_on_one);
                    (c.at_rest, c.roots_left) = (left, apart.map_or(0, |w| w.roots.len()));
                    self.go_on(cx, c, None, Room::default());
                    break (left, writer.is_some_and(|w| w.is_short));
                }
                self.go_on(cx, c, None, Room::default());
            };
            if left {
                return;
            }
            if is_short {
                match victims.checked_sub(1).filter(|_| self.make_room(cx)) {
                    Some(left) => victims = left,
                    None => insists = false,
                }
            }
            self.settle(cx).await;
        }
    }

    /// Waits for a while until a device comes to rest that takes no writes for want of spare: what
    /// it has goes on being read, so its next mount should know where it is.
    pub(super) async fn rest_without_spare(&self, cx: &Cx) {
        for _ in 0..LOOKS {
            if !self.controller.lock().is_busy_without_spare() {
                return;
            }
            cx.sleep(LOOK).await;
        }
    }

    /// Starts on a snapshot, if it can be had now; as it `insists`, on two PUs.
    fn begin_snapshot(&self, cx: &Cx, insists: bool) -> bool {
        let mut c = self.controller.lock();
        let begun = c.begin_snapshot(insists);
        self.go_on(cx, c, None, Room::default());
        begun
    }

    /// Has GC take a victim where room is all that a snapshot wants; false if it is not, or there is
    /// no victim.
    fn make_room(&self, cx: &Cx) -> bool {
        let mut c = self.controller.lock();
        let begun = c.may_have_snapshot() && c.begin_victim().is_some();
        self.go_on(cx, c, None, Room::default());
        begun
    }
}

impl Controller {
    /// It takes no writes for want of spare, and something is under way all the same.
    fn is_busy_without_spare(&self) -> bool {
        let busy = self.is_barrier_asked() || self.barrier_is_active() || !self.no_program_flies();
        let erases = self.gc.is_erasing() || !self.place.is_settled();
        let erases = self.phase != Phase::Mounting && erases;
        self.read_only == Some(NO_SPARE) && (busy || erases)
    }

    /// Whether there can be a snapshot, if there is room.
    fn may_have_snapshot(&self) -> bool {
        let main = self.place.layout.main();
        let fits = main.chunk_sectors >= (self.reach + 2) * main.unit;
        let calm = self.phase == Phase::Draining && self.can_write() && self.is_quiet();
        // A blank device is found blank at once.
        let any = self.place.opened() > 0;
        let named = 2 * self.shape().lists() + self.place.open_lines_max().saturating_sub(2);
        any && fits && calm && named <= LISTS_MAX
    }

    /// What waits can be programmed: the device takes writes, or only lacks spare for more of them.
    fn can_write(&self) -> bool {
        self.read_only.is_none_or(|why| why == NO_SPARE)
    }

    /// Units of infos before a root, where a chunk has room for them.
    fn info_units(&self) -> u32 {
        let main = self.place.layout.main();
        let units = (self.shape().infos() as u32).div_ceil(main.unit);
        let fits = main.chunk_sectors >= (units + self.reach + 2) * main.unit;
        if fits { units } else { 0 }
    }

    /// Starts on a snapshot; false if there is no room for one (where it `insists` and there are
    /// two PUs, for one on both), or nothing to be gained.
    fn begin_snapshot(&mut self, insists: bool) -> bool {
        let shape = self.shape();
        let layout = &self.place.layout;
        let units = |sectors: usize| (sectors as u32).div_ceil(layout.main().unit);
        let sealing = (self.reach + 1) * layout.positions;
        let root = self.info_units() + self.reach + 2;
        let each = units(shape.body()) + units(shape.lists()) + root;
        let alive = self.positions_alive();
        let fits = |copies: &u32| {
            let copies = *copies;
            copies <= alive && self.place.can_spare(copies * each + sealing, sealing + root)
        };
        let most = if mutant!("kit.snapshot-once") { 1 } else { 2 };
        let least = if insists { most.min(alive).max(1) } else { 1 };
        let copies = (least..=most).rev().find(fits).filter(|_| self.may_have_snapshot());
        let Some(copies) = copies else {
            return false;
        };
        self.stamp += 1;
        self.writer = Some(Writer {
            stage: Stage::Body,
            failed: false,
            shape,
            stamp: self.stamp,
            quiet: self.events(),
            next: 0,
            ready: None,
            flying: Vec::new(),
            copies,
            insists,
            is_short: false,
            skipped: 0,
            is_on_one: false,
            body: vec![[0; 2]; shape.body()],
            lists: vec![[0; 2]; shape.lists()],
            pads: Vec::new(),
            roots: Vec::new(),
            infos: Vec::new(),
        });
        true
    }

    /// PUs that are not dead, as far as erases and mounts have shown.
    fn positions_alive(&self) -> u32 {
        (0..self.place.layout.positions).filter(|p| !self.place.is_dead(*p)).count() as u32
    }

    /// How many words a snapshot of this device has.
    fn shape(&self) -> Shape {
        Shape::new(self.map.capacity(), &self.pages, &self.place.layout)
    }

    /// Nothing but a snapshot is being written.
    fn is_quiet(&self) -> bool {
        let barrier = self.barrier_is_active();
        let waiting = Kind::ALL.iter().any(|kind| self.buffer.waiting(*kind) > 0);
        let still = self.gc.is_quiet() && self.place.is_settled() && !waiting && !barrier;
        still && self.pages.waiting() == 0
    }

    /// What counts on when a map entry changes or a page is programmed.
    fn events(&self) -> (u64, u64) {
        (self.stats.ftl.host_discarded, self.stats.ftl.gc_victims)
    }

    /// All that the stage has to program is programmed, or the snapshot has failed.
    fn stage_is_over(&self) -> bool {
        let Some(w) = &self.writer else {
            return true;
        };
        let given = w.ready.is_none()
            && match w.stage {
                Stage::Body => w.next as usize == w.body.len(),
                Stage::Lists => w.next as usize == w.lists.len(),
                Stage::Seal => w.pads.iter().all(|pad| pad.left == 0),
                Stage::Root => w.roots.iter().all(|at| at.begun == self.units_of(&at.root)),
            };
        (given || w.failed) && self.no_program_flies()
    }

    /// Goes on behind a stage that is over. When nothing is left to do: whether there is a snapshot.
    fn next_stage(&mut self, device: &(dyn Device + 'static)) -> Option<bool> {
        let quiet = self.is_quiet() && self.can_write();
        let events = self.events();
        let w = self.writer.as_mut()?;
        let disturbed = !quiet || events != w.quiet;
        if w.failed || disturbed && !mutant!("kit.snapshot-of-the-past") {
            return Some(false);
        }
        match w.stage {
            Stage::Body => (w.stage, w.next) = (Stage::Lists, 0),
            Stage::Lists if mutant!("kit.root-before-seal") => {
                if !self.begin_root(device) {
                    return Some(false);
                }
            }
            Stage::Lists => self.begin_sealing(),
            Stage::Seal => {
                if !self.begin_root(device) {
                    return Some(false);
                }
            }
            // Whether the device is what the root says, the next mount will see.
            Stage::Root => return Some(true),
        }
        None
    }

    /// Units of a root, its infos and its copies.
    fn units_of(&self, root: &Root) -> u32 {
        root.infos.div_ceil(self.place.layout.main().unit) + root.behind + 1
    }

    /// The open chunks where roots go: the first in the host's line, the second one on another PU.
    fn places_of_roots(&self) -> Vec<OpenChunk> {
        let main = self.place.layout.main();
        let room = |chunk: &OpenChunk| main.chunk_sectors - chunk.next;
        let needed = (self.info_units() + self.reach + 2) * main.unit;
        let of_main = |chunk: &OpenChunk| self.place.is_of_main(chunk.stream);
        let fits = |chunk: &OpenChunk| of_main(chunk) && room(chunk) >= needed;
        let mut all: Vec<OpenChunk> = self.place.open_chunks().filter(fits).collect();
        all.sort_by_key(|chunk| (chunk.stream, chunk.next, chunk.position));
        let Some(first) = all.first().copied().filter(|chunk| chunk.stream == 0) else {
            return Vec::new();
        };
        let copies = self.writer.as_ref().map_or(1, |w| w.copies);
        let second = all.into_iter().find(|chunk| chunk.position != first.position);
        std::iter::once(first).chain(second.filter(|_| copies > 1)).collect()
    }

    /// Padding is due behind what open chunks hold; where the host's line has no room for a root it
    /// is filled, to go on in another.
    fn begin_sealing(&mut self) {
        let roots = self.places_of_roots();
        let main = self.place.layout.main();
        let (rows, reach) = (main.chunk_sectors / main.unit, self.reach);
        let left = |chunk: &OpenChunk| rows - chunk.next / main.unit;
        let host = || self.place.open_chunks().filter(|chunk| chunk.stream == 0);
        let fewer = self.writer.as_ref().is_some_and(|w| roots.len() < w.copies as usize);
        let cost = host().map(|chunk| left(&chunk)).sum::<u32>() + main.width * reach;
        let fill = roots.is_empty() || fewer && self.place.can_spare(cost, cost);
        if let Some(w) = self.writer.as_mut().filter(|w| w.insists && fewer && !fill) {
            (w.failed, w.is_short) = (true, true);
            return;
        }
        let mut pads = Vec::new();
        for chunk in self.place.open_chunks().filter(|chunk| self.place.is_of_main(chunk.stream)) {
            let fill = fill && chunk.stream == 0;
            let reach = if mutant!("kit.snapshot-unsealed") { 0 } else { reach };
            let most = if fill { rows } else { reach };
            let is_root = roots.contains(&chunk) && !fill;
            if !is_root && (chunk.next > 0 || fill) {
                pads.push(Pad { chunk, left: most.min(left(&chunk)) });
            }
        }
        if let Some(w) = &mut self.writer {
            (w.stage, w.pads) = (Stage::Seal, pads);
        }
    }

    /// The roots are due, and say what the device will be when they are programmed. False: they
    /// have no place.
    fn begin_root(&mut self, device: &(dyn Device + 'static)) -> bool {
        let mut chunks = self.places_of_roots();
        if chunks.is_empty() {
            self.place_for_snapshot(None);
            chunks = self.places_of_roots();
        }
        if chunks.is_empty() {
            return false;
        }
        let infos = if self.info_units() > 0 { self.shape().infos() as u32 } else { 0 };
        let report = self.report_to_be(device, &chunks);
        let digest = snapshot::digest(report.iter().flatten());
        let numbers = self.place.layout.chunk_numbers() as usize;
        let in_order = (0..numbers).flat_map(|n| report.iter().map(move |chunks| &chunks[n]));
        let words = in_order.flat_map(snapshot::words_of).collect();
        let mut open: Vec<u32> = self.place.open_chunks().map(|c| c.line).collect();
        open.dedup();
        let (unit, behind) = (self.place.layout.main().unit, self.reach);
        let before = infos.div_ceil(unit);
        let Some(w) = &mut self.writer else {
            return false;
        };
        let copy = |i: usize| w.lists.iter().map(move |at| at[i] - 1);
        let lists = match w.copies {
            1 => copy(0).collect::<Vec<u32>>(),
            _ => copy(0).chain(copy(1)).collect(),
        };
        let first = |chunk: &OpenChunk| (chunk.next / unit + before) * unit;
        let layout = &self.place.layout;
        let at = |c: &OpenChunk| layout.sector_at(c.line, c.position, first(c)) + 1;
        let places: Vec<u32> = chunks.iter().map(at).collect();
        let other = |at: u32| places.iter().copied().find(|other| *other != at).unwrap_or(0);
        let root = |chunk: OpenChunk| Root {
            major: w.shape.major,
            stamp: w.stamp,
            line: chunk.line,
            position: chunk.position,
            row: chunk.next / unit + before,
            behind,
            digest,
            body: w.body.len() as u32,
            open: open.clone(),
            infos,
            lists: lists.clone(),
            copies: w.copies,
            other: other(at(&chunk)),
        };
        let roots =
            chunks.iter().map(|chunk| RootAt { chunk: *chunk, root: root(*chunk), begun: 0 });
        w.roots = roots.collect();
        (w.stage, w.infos) = (Stage::Root, words);
        true
    }

    /// The chunk report, PU by PU, with infos, roots and their copies still to be written in these
    /// chunks.
    fn report_to_be(
        &self,
        device: &(dyn Device + 'static),
        chunks: &[OpenChunk],
    ) -> Vec<Vec<ChunkInfo>> {
        let layout = &self.place.layout;
        let numbers = layout.chunk_numbers();
        let report = |p: u32| device.chunk_report(layout.pu(p), 0, numbers);
        let mut all: Vec<_> = (0..layout.positions).map(report).collect();
        let units = self.info_units() + self.reach + 1;
        for chunk in chunks {
            let number = layout.chunk_number(chunk.line);
            let info = &mut all[chunk.position as usize][number as usize];
            info.state = ChunkState::Open;
            info.write_pointer = chunk.next + units * layout.main().unit;
        }
        all
    }

    /// A stream and an idle position where the host's data would go; without one the snapshot has
    /// failed, unless it will come. What the host is denied here must not call for GC. A second
    /// copy goes elsewhere than to the position of the `first` one, if there is another place or
    /// will be one.
    pub(super) fn place_for_snapshot(&mut self, first: Option<u32>) -> Option<(usize, u32)> {
        let next = self.place.next_of_host(MAIN, 0);
        if self.place.forgive_host(MAIN) {
            self.fail_snapshot();
        }
        let Some(first) = first.filter(|_| !mutant!("kit.snapshot-on-one-die")) else {
            return next;
        };
        let elsewhere = next.filter(|(_, position)| *position != first);
        let elsewhere = elsewhere
            .or_else(|| self.place.next_open_that(|p| p != first).filter(|(s, _)| *s == 0));
        elsewhere.or_else(|| next.filter(|_| self.no_program_flies()))
    }

    /// The next unit of the stage, with the stream and position it goes to.
    #[cold]
    pub(super) fn next_of_snapshot(&mut self) -> Option<(Load, usize, u32)> {
        let w = self.writer.as_mut().filter(|w| !w.failed)?;
        match w.stage {
            Stage::Body | Stage::Lists => {
                self.make_ready();
                let first = self.writer.as_ref()?.ready.as_ref()?.first;
                let (stream, position) = self.place_for_snapshot(first)?;
                // All that is left of the host's line is on the PU of the first copy: that is
                // filled, for the next line has room elsewhere.
                match first == Some(position) && self.may_skip() {
                    true => Some((Load::Padding, stream, position)),
                    false => Some((Load::Snapshot, stream, position)),
                }
            }
            Stage::Seal => {
                let place = &self.place;
                let due = |pad: &&mut Pad| {
                    let chunk = &pad.chunk;
                    pad.left > 0 && place.is_ready(chunk.stream, chunk.line, chunk.position)
                };
                let pad = w.pads.iter_mut().find(due)?;
                pad.left -= 1;
                Some((Load::Padding, pad.chunk.stream, pad.chunk.position))
            }
            Stage::Root => self.next_of_root(),
        }
    }

    /// May a unit be filled with padding, so that a second copy comes to another PU than the first
    /// one? Not more of them than a chunk has.
    fn may_skip(&mut self) -> bool {
        let main = self.place.layout.main();
        let rows = main.chunk_sectors / main.unit;
        let elsewhere = self.place.abreast(MAIN) == 1 && self.positions_alive() > 1;
        let Some(w) = self.writer.as_mut().filter(|w| elsewhere && w.skipped < rows) else {
            return false;
        };
        w.skipped += 1;
        true
    }

    /// The next unit of a root whose PU is idle: of its infos, or a copy of it.
    fn next_of_root(&mut self) -> Option<(Load, usize, u32)> {
        let (main, place) = (self.place.layout.main(), &self.place);
        let w = self.writer.as_ref()?;
        let due = |at: &RootAt| {
            let chunk = &at.chunk;
            let ready = place.is_ready(chunk.stream, chunk.line, chunk.position);
            ready && at.begun < self.units_of(&at.root)
        };
        let i = w.roots.iter().position(due)?;
        let (at, name) = (&w.roots[i], (w.shape.capacity as u64, w.stamp));
        let mut bytes = vec![0; main.unit as usize * PAGE_BYTES];
        let before = at.root.infos.div_ceil(main.unit);
        let numbers: Vec<u32> = match at.begun.checked_sub(before) {
            Some(_) => vec![0; main.unit as usize],
            None => {
                let first = at.begun * main.unit;
                (first..at.root.infos.min(first + main.unit)).collect()
            }
        };
        for (number, sector) in numbers.iter().zip(bytes.chunks_exact_mut(PAGE_BYTES)) {
            match at.begun < before {
                true => {
                    let words = w.infos.iter().copied().skip(*number as usize * SPAN).take(SPAN);
                    snapshot::encode(Part::Info, *number, name, words, sector);
                }
                false => at.root.encode(name.0, sector),
            }
        }
        let (stream, position) = (at.chunk.stream, at.chunk.position);
        let w = self.writer.as_mut()?;
        w.ready = Some(Unit { position, first: None, numbers, bytes });
        w.roots[i].begun += 1;
        Some((Load::Snapshot, stream, position))
    }

    /// Makes the next unit of body or lists, if there is one left.
    fn make_ready(&mut self) {
        let unit = self.place.layout.main().unit as usize;
        let Some(mut w) = self.writer.take() else {
            return;
        };
        let end = match w.stage {
            Stage::Body => w.body.len() as u32,
            _ => w.lists.len() as u32,
        };
        if w.ready.is_none() && w.next < end {
            let mut made = Unit {
                position: 0,
                first: None,
                numbers: Vec::new(),
                bytes: vec![0; unit * PAGE_BYTES],
            };
            while made.numbers.len() < unit && w.next < end {
                let from = made.numbers.len() * PAGE_BYTES;
                if self.make_sector(&w, &mut made.bytes[from..from + PAGE_BYTES]) {
                    made.numbers.push(w.next);
                }
                w.next += 1;
            }
            w.ready = Some(made).filter(|made| !made.numbers.is_empty());
        }
        self.writer = Some(w);
    }

    /// The bytes of the stage's next sector; false for a body sector of zeros.
    fn make_sector(&self, w: &Writer, out: &mut [u8]) -> bool {
        let name = (w.shape.capacity as u64, w.stamp);
        let from = w.next as usize * SPAN;
        if w.stage == Stage::Lists {
            let from = w.next as usize * w.shape.listed();
            let places = w.body.iter().skip(from).take(w.shape.listed()).flatten().copied();
            snapshot::encode(Part::List, w.next, name, places, out);
            return true;
        }
        let end = w.shape.words().min(from + SPAN);
        let any = (from..end).any(|i| self.word(&w.shape, i) != 0);
        if any {
            let words = (from..end).map(|i| self.word(&w.shape, i));
            snapshot::encode(Part::Body, w.next, name, words, out);
        }
        any
    }

    /// A word of the snapshot, as the device is now.
    fn word(&self, shape: &Shape, i: usize) -> u32 {
        let Some(i) = i.checked_sub(shape.capacity) else {
            return self.entry(i as u32);
        };
        let Some(i) = i.checked_sub(shape.pages) else {
            return self.pages.place(i as u32).map_or(0, |at| at + 1);
        };
        let Some(i) = i.checked_sub(2 * shape.lines) else {
            let sequence = self.place.line(i as u32 / 2).sequence;
            return (sequence >> (i % 2 * 32)) as u32;
        };
        let units = (32 * i as u32..).take(32).enumerate();
        let void = |unit: &(usize, u32)| self.pages.is_void(unit.1);
        units.filter(void).map(|(bit, _)| 1 << bit).sum()
    }

    /// What the map will say of a sector when the windows are closed. Nothing waits in the buffer.
    fn entry(&self, lba: u32) -> u32 {
        match self.map.get(lba) {
            Entry::Slot(slot) if self.buffer.slot(slot).stage == SlotStage::Window => {
                self.buffer.slot(slot).at + 1
            }
            _ => self.map.word(lba),
        }
    }

    /// A program failed: what a snapshot says may not be true any more.
    pub(super) fn fail_snapshot(&mut self) {
        if mutant!("kit.snapshot-with-holes") {
            return;
        }
        if let Some(w) = &mut self.writer {
            w.failed = true;
        }
    }

    /// Gives the unit that is ready to a PU.
    pub(super) fn take_snapshot_unit(&mut self, position: u32) {
        if let Some(w) = &mut self.writer
            && let Some(unit) = w.ready.take()
        {
            w.is_on_one |= unit.first == Some(position);
            let twice = w.copies > 1 && unit.first.is_none();
            if twice && matches!(w.stage, Stage::Body | Stage::Lists) {
                w.ready = Some(Unit { first: Some(position), ..unit.clone() });
            }
            w.flying.push(Unit { position, ..unit });
        }
    }

    /// The bytes of a sector of a unit on its way, and its stamp; `None` behind the last.
    pub(super) fn snapshot_sector(
        &self,
        position: u32,
        i: usize,
        sector: &mut [u8],
    ) -> Option<u64> {
        let w = self.writer.as_ref()?;
        let unit = w.flying.iter().find(|unit| unit.position == position)?;
        unit.numbers.get(i)?;
        sector.copy_from_slice(&unit.bytes[i * PAGE_BYTES..(i + 1) * PAGE_BYTES]);
        Some(w.stamp)
    }

    /// A unit's program has ended; one that failed in any part fails the snapshot. Returns how many
    /// of its sectors are not padding.
    pub(super) fn settle_snapshot(&mut self, position: u32, base: u32, done: &Completion) -> usize {
        let Some(w) = &mut self.writer else {
            return 0;
        };
        let Some(i) = w.flying.iter().position(|unit| unit.position == position) else {
            return 0;
        };
        let unit = w.flying.swap_remove(i);
        w.failed |= done.failed != 0 && !mutant!("kit.snapshot-with-holes");
        let places = match w.stage {
            Stage::Body => &mut w.body,
            Stage::Lists => &mut w.lists,
            Stage::Seal | Stage::Root => return unit.numbers.len(),
        };
        for (at, number) in (base..).zip(&unit.numbers) {
            places[*number as usize][usize::from(unit.first.is_some())] = at + 1;
        }
        unit.numbers.len()
    }
}
