//! Mount: from what lies on the medium, and what capacitors saved, to a running device.
//!
//! Owns: [`Pftl::mount`] and its steps. Promises: whatever the power did, each sector is what was
//! durable, or younger; what was trimmed stays so; a mount that is cut itself changes nothing of
//! that, as often as it happens. Never: erases, or programs user data; all it programs are padding
//! and, without capacitors, pages.
//!
//! 1. The chunk report. Without a dump, open chunks are padded from their write pointers: what lies
//!    in a read-back window or an open pair can be read behind that only.
//! 2. The records of all written sectors, PUs side by side. A sector that fails is tried
//!    [`TRIES`] times.
//! 3. The newest copy of each page (`pages.rs`); a dump's are newer than the medium's.
//! 4. Per logical sector the highest stamp counts, whether it is a copy's, a page's or a dump's. At
//!    equal stamps the contents are equal: a dump's, else a copy that verifies.
//! 5. What could not be read. It is no loss where a program was cut or had failed, or is behind
//!    everything that its chunk holds (a torn program), or a whole chunk (a torn erase). Such units
//!    are marked void from now on, because data will be written behind them. Anything else once was
//!    good: nobody knows whose it was, so an older copy of it would pass for its content. The mount
//!    is refused ([`MountError::Lost`]) unless [`PftlConfig::accept_lost_sectors`].
//! 6. Open lines are written on; what a dump holds of their windows stands there, unless a cut
//!    program may have harmed it, and is not programmed again; nor is what a chunk has that was full, or
//!    that a cut program has filled: it can be read. The stamps of this life are above
//!    all that were ever given out.
//! 7. Without capacitors: void units and the new life are made durable. Then the host may write.

use flashlane_base::{OOB_BYTES, Ppa, VECTOR_MAX};
use flashlane_ocssd::device::{Cause, ChunkInfo, ChunkState, Completion, Data, Device, Flags};
use flashlane_ocssd::device::{Gather, Op, Request, Scatter, Status};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::buffer::{NIL, Sizes};
use super::dump::Dump;
use super::map::Entry;
use super::pages::{PAGE_BYTES, Pages, Said};
use super::place::{Layout, Place, Stock};
use super::{
    Controller, CreateError, Frame, LIFE_SHIFT, Parts, Pftl, PftlConfig, Phase, Room, STAMP_LAST,
    read, sync,
};
use crate::log::format::{LBA_LIMIT, LBA_PADDING, Oob};

/// Reads of a sector before it counts as unreadable: a fault that comes and goes must not decide
/// what a device holds.
const TRIES: u32 = 8;

/// Why a device can't be mounted. Nothing on it was changed but padding behind open chunks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The device or the configuration would not do for a new one either.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// What lies there is not of a device FTL of this capacity.
    #[error(
        "pftl: sector {sector} of chunk {chunk} on PU {pu} holds logical sector {lba}, the device \
         has {capacity} and {pages} pages: it was created with another configuration"
    )]
    OtherDevice {
        /// PU.
        pu: u32,
        /// Chunk on it.
        chunk: u32,
        /// Sector in it.
        sector: u32,
        /// What its record says.
        lba: u64,
        /// Logical sectors, by the configuration.
        capacity: u64,
        /// Pages behind them.
        pages: u32,
    },
    /// The dump is of a device of another capacity or with a larger buffer.
    #[error("pftl: the dump is not of a device of {capacity} logical sectors with this buffer")]
    OtherDump {
        /// Logical sectors, by the configuration.
        capacity: u64,
    },
    /// Sectors that were good once can't be read, and nothing says whose they were.
    /// [`PftlConfig::accept_lost_sectors`] mounts it all the same.
    #[error(
        "pftl: {sectors} sectors can't be read, the first is sector {sector} of chunk {chunk} on \
         PU {pu}; older copies of what they held would be taken for it"
    )]
    Lost {
        /// How many.
        sectors: u64,
        /// PU of the first.
        pu: u32,
        /// Chunk on it.
        chunk: u32,
        /// Sector in it.
        sector: u32,
    },
}

/// The newest copy of a logical sector that was found.
#[derive(Clone, Copy, Debug)]
struct Claim {
    stamp: u64,
    /// Physical sector; [`NIL`]: it reads as zeros from this stamp on.
    at: u32,
}

/// What the scan has found.
struct Found {
    /// Logical sectors of the host.
    capacity: u64,
    /// Per logical sector, pages included.
    newest: Vec<Claim>,
    /// Further copies with the stamp of the newest: (logical sector, stamp, physical sector).
    equal: Vec<(u32, u64, u32)>,
    unreadable: BTreeSet<u32>,
    /// Per chunk: its last sector that is a copy of a host's sector, + 1. Pages do not count: those
    /// that say what is void are programmed before anything else, maybe behind a torn unit.
    data_end: Vec<u32>,
    /// Per chunk: something of it could be read.
    any: Vec<bool>,
    /// Per line: largest stamp.
    stamp_of_line: Vec<u64>,
    /// The first record that can't be ours: (physical sector, logical sector).
    foreign: Option<(u32, u64)>,
}

/// Units that a former life has programmed and the medium can't give back yet.
#[derive(Default)]
struct Standing {
    /// Unit → its window, and its first sector in that.
    units: BTreeMap<u32, (usize, u32)>,
    /// (window, units in it), those that do not stand included.
    windows: Vec<(usize, u32)>,
}

/// What all steps need.
struct Mount<'a> {
    cx: &'a Cx,
    device: Arc<dyn Device>,
    layout: Layout,
    capacity: u64,
    /// Sectors behind which one can be read in an open chunk, in whole units.
    window: u32,
    content_bytes: usize,
    chunks: Vec<ChunkInfo>,
    /// Padding programmed, in sectors.
    padded: u64,
    /// Sectors of padding whose program failed.
    failed: Vec<u32>,
}

impl Pftl {
    /// Brings up the FTL that was created on `device` with this configuration, after a stop or a
    /// power cut. `dump` is what the capacitors saved at that cut ([`Pftl::power_lost`]); after a
    /// stop, and for a device without capacitors, there is none. A blank device is an empty one.
    ///
    /// The future may be dropped at any time, as a power cut does; mount again with the same dump.
    pub async fn mount(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: PftlConfig,
        dump: Option<&Dump>,
    ) -> Result<Arc<Pftl>, MountError> {
        let (geo, traits) = (*device.geometry(), *device.traits());
        let Frame { config, layout, sizes, capacity } = Frame::of(&*device, config)?;
        check_dump(dump, capacity, &sizes)?;
        let mut mount = Mount {
            cx,
            window: geo.mw_cunits.div_ceil(layout.unit) * layout.unit,
            content_bytes: traits.content_bytes,
            chunks: Vec::new(),
            padded: 0,
            failed: Vec::new(),
            device: device.clone(),
            layout: layout.clone(),
            capacity,
        };
        mount.take_stock();
        mount.close_windows(dump).await;
        let units = (geo.sectors() / layout.unit as u64) as u32;
        let mut pages = Pages::new(capacity as u32, units);
        let mut found = mount.scan(pages.count(), dump).await;
        if let Some((at, lba)) = found.foreign {
            let place = layout.location(at);
            let (pu, chunk, sector) = (place.pu, place.chunk, place.sector);
            let pages = pages.count();
            return Err(MountError::OtherDevice { pu, chunk, sector, lba, capacity, pages });
        }
        mount.choose_equal(&mut found).await;
        let lost = mount.read_pages(&mut pages, &mut found, dump).await;
        let readable = mount.readable_of(&found, dump).await;
        let stamp = mount.last_stamp(&found, dump);
        let slack = if traits.pair_damage { mount.window + layout.unit } else { 0 };
        mount.judge_unreadable(&mut pages, &found, dump, slack, config.accept_lost_sectors)?;
        let stock = Stock {
            chunks: &mount.chunks,
            open: dump.map(|d| &d.open),
            leaving: dump.map(|d| &d.leaving),
            stamps: &found.stamp_of_line,
        };
        let mut place = Place::adopt(layout.clone(), traits.max_open, stock);
        if !config.capacitors {
            place.set_reserve(sync::reserve(&layout, &sizes));
        }
        let standing = mount.standing(&place, dump, traits.pair_sectors);
        mount.void_the_rest(&mut pages, dump, &standing);
        let parts = Parts { layout, sizes, place, capacity };
        let (ftl, movers) = parts.assemble(device, &config);
        {
            let mut c = ftl.controller.lock();
            c.stamp = ((stamp >> LIFE_SHIFT) + 1) << LIFE_SHIFT;
            c.pages = pages;
            c.stats.ftl.programmed[Cause::PaddingPair as usize] = mount.padded;
            c.stats.ftl.program_failures = mount.failed.len() as u64;
            let room = c.take_in(&found, &lost, (dump, &readable), &standing);
            let taken = ftl.room.try_acquire(room.user as u64);
            assert!(taken, "the dump was checked against the buffer");
            c.check_spare();
            if !config.capacitors {
                c.phase = Phase::Mounting;
                c.pages.touch(0);
            }
        }
        let ftl = Arc::new(ftl);
        ftl.start_tasks(cx, movers);
        if !config.capacitors {
            ftl.sync(cx).await;
            ftl.controller.lock().phase = Phase::Running;
        }
        ftl.go_on(cx, ftl.controller.lock(), None, Room::default());
        Ok(ftl)
    }
}

fn check_dump(dump: Option<&Dump>, capacity: u64, sizes: &Sizes) -> Result<(), MountError> {
    use super::buffer::Kind;
    let Some(dump) = dump else {
        return Ok(());
    };
    let fits = |kind, room: u32| {
        let of = || dump.sectors.iter().filter(|s| s.kind == kind);
        let held = of().filter(|s| s.holds_room).count();
        held <= room as usize && of().count() <= (room + sizes.windows) as usize
    };
    let all = fits(Kind::User, sizes.user_room) && fits(Kind::Gc, sizes.gc_room);
    if dump.capacity == capacity && all {
        return Ok(());
    }
    Err(MountError::OtherDump { capacity })
}

impl Mount<'_> {
    fn chunk_index(&self, line: u32, position: u32) -> usize {
        (line * self.layout.positions + position) as usize
    }

    fn take_stock(&mut self) {
        let (lines, positions) = (self.layout.lines, self.layout.positions);
        let per_position: Vec<Vec<ChunkInfo>> =
            (0..positions).map(|p| self.device.chunk_report(self.layout.pu(p), 0, lines)).collect();
        let of = |line: u32| per_position.iter().map(move |chunks| chunks[line as usize]);
        self.chunks = (0..lines).flat_map(of).collect();
    }

    /// Pads open chunks: to the end of a unit whose program was cut in parts and, without a dump,
    /// until everything in them can be read.
    async fn close_windows(&mut self, dump: Option<&Dump>) {
        let unit = self.layout.unit;
        let mut joins = Vec::new();
        for position in 0..self.layout.positions {
            let mut work = Vec::new();
            for line in 0..self.layout.lines {
                let info = self.chunks[self.chunk_index(line, position)];
                let resumed = dump.is_none_or(|d| d.open.contains(&line));
                if info.state != ChunkState::Open || !resumed {
                    continue;
                }
                let window = if dump.is_some() { 0 } else { self.window };
                let end = info.write_pointer.next_multiple_of(unit) + window;
                let end = end.min(self.layout.chunk_sectors);
                if end > info.write_pointer {
                    work.push((line, info.write_pointer, end));
                }
            }
            if !work.is_empty() {
                let (device, layout) = (self.device.clone(), self.layout.clone());
                let job = pad_chunks(self.cx.clone(), device, layout, position, work);
                joins.push(self.cx.spawn_join(job));
            }
        }
        for join in joins {
            let (padded, failed) = join.await;
            self.padded += padded;
            self.failed.extend(failed);
        }
        self.take_stock();
    }

    /// Sectors of a chunk, from its first, that can be read.
    fn readable(&self, info: &ChunkInfo) -> u32 {
        match info.state {
            ChunkState::Free | ChunkState::Offline => 0,
            ChunkState::Closed => info.write_pointer,
            ChunkState::Open => {
                let behind = info.write_pointer.saturating_sub(self.window);
                behind / self.layout.unit * self.layout.unit
            }
        }
    }

    /// Reads the records of all written sectors.
    async fn scan(&self, pages: u32, dump: Option<&Dump>) -> Found {
        let chunks = self.chunks.len();
        let none = Claim { stamp: 0, at: NIL };
        let found = Arc::new(Mutex::new(Found {
            capacity: self.capacity,
            newest: vec![none; self.capacity as usize + pages as usize],
            equal: Vec::new(),
            unreadable: BTreeSet::new(),
            data_end: vec![0; chunks],
            any: vec![false; chunks],
            stamp_of_line: vec![0; self.layout.lines as usize],
            foreign: None,
        }));
        let mut joins = Vec::new();
        for position in 0..self.layout.positions {
            let mut work = Vec::new();
            for line in 0..self.layout.lines {
                let info = &self.chunks[self.chunk_index(line, position)];
                let leaving = dump.is_some_and(|d| d.leaving.contains(&line));
                let end = if leaving { 0 } else { self.readable(info) };
                if end > 0 {
                    work.push((line, end));
                }
            }
            let (device, layout) = (self.device.clone(), self.layout.clone());
            let job = scan_chunks(
                self.cx.clone(),
                device,
                layout,
                self.content_bytes,
                self.capacity,
                position,
                work,
                found.clone(),
            );
            joins.push(self.cx.spawn_join(job));
        }
        for join in joins {
            join.await;
        }
        let found = Arc::into_inner(found).expect("all readers have ended");
        found.into_inner()
    }

    /// Where several copies have the highest stamp, one that verifies.
    async fn choose_equal(&self, found: &mut Found) {
        let equal = std::mem::take(&mut found.equal);
        let user = |lba: u32| (lba as u64) < self.capacity;
        let at_top = |(lba, stamp, _): &(u32, u64, u32)| {
            user(*lba) && found.newest[*lba as usize].stamp == *stamp
        };
        let equal: Vec<_> = equal.into_iter().filter(at_top).collect();
        let first: BTreeSet<(u32, u32)> =
            equal.iter().map(|e| (e.0, found.newest[e.0 as usize].at)).collect();
        let first: Vec<(u32, u32)> = first.into_iter().collect();
        let good = verify(self.cx, &*self.device, &self.layout, self.content_bytes, &first).await;
        let mut bad: BTreeSet<u32> =
            first.iter().zip(good).filter(|(_, good)| !good).map(|((lba, _), _)| *lba).collect();
        for (lba, _, at) in equal {
            if !bad.contains(&lba) {
                continue;
            }
            let other = [(lba, at)];
            let good = verify(self.cx, &*self.device, &self.layout, self.content_bytes, &other);
            if good.await[0] {
                found.newest[lba as usize].at = at;
                bad.remove(&lba);
            }
        }
    }

    /// Physical sectors that a dump holds the content of because they could not be read back yet, and
    /// that can be read now. To program them again would take the room that GC counts on: where
    /// windows are long, most of a chunk.
    async fn readable_of(&self, found: &Found, dump: Option<&Dump>) -> BTreeSet<u32> {
        let newest = |lba: u32, stamp: u64, at: u32| {
            let claim = found.newest[lba as usize];
            (claim.stamp, claim.at) == (stamp, at)
        };
        let saved = dump.iter().flat_map(|d| &d.sectors);
        let there =
            saved.filter_map(|s| Some((s.lba, s.at.filter(|at| newest(s.lba, s.stamp, *at))?)));
        let there: Vec<(u32, u32)> = there.collect();
        let good = verify(self.cx, &*self.device, &self.layout, self.content_bytes, &there).await;
        there.iter().zip(good).filter(|(_, good)| *good).map(|((_, at), _)| *at).collect()
    }

    /// Takes in what the newest pages say; returns the sectors whose content is lost. A page that
    /// can't be read counts as unreadable like any other sector.
    async fn read_pages(
        &self,
        pages: &mut Pages,
        found: &mut Found,
        dump: Option<&Dump>,
    ) -> Vec<u32> {
        let mut lost = Vec::new();
        for page in 0..pages.count() {
            let claim = found.newest[pages.lba(page) as usize];
            let saved = dump.and_then(|d| d.pages.iter().find(|(of, _)| *of == page));
            let mut bytes = None;
            if claim.at != NIL {
                let whole = read_page(self.cx, &*self.device, &self.layout, claim.at).await;
                let whole = whole.filter(|bytes| pages.check(page, bytes).is_some());
                match whole {
                    Some(_) => pages.found(page, claim.at),
                    None => drop(found.unreadable.insert(claim.at)),
                }
                bytes = whole;
            }
            if let Some((_, saved)) = saved {
                bytes = Some(saved.clone());
                pages.touch(page);
            }
            let Some(bytes) = bytes else {
                continue;
            };
            let Some(stamp) = pages.check(page, &bytes) else {
                continue;
            };
            pages.read(page, &bytes, |lba, said| {
                let claim = &mut found.newest[lba as usize];
                if said == Said::Nothing || claim.stamp > stamp {
                    return;
                }
                *claim = Claim { stamp, at: NIL };
                if said == Said::Lost {
                    lost.push(lba);
                }
            });
        }
        lost
    }

    /// The highest stamp that is known of.
    fn last_stamp(&self, found: &Found, dump: Option<&Dump>) -> u64 {
        let seen = found.newest.iter().map(|claim| claim.stamp).max().unwrap_or(0);
        let lines = found.stamp_of_line.iter().copied().max().unwrap_or(0);
        seen.max(lines).max(dump.map_or(0, |d| d.stamp))
    }

    /// Was this unit's program cut, or one that may have taken it along? Either way the dump holds
    /// what was in it: a buffer lets go of a unit when the window behind it is programmed.
    fn was_cut(&self, dump: &Dump, line: u32, position: u32, row: u32, reach: u32) -> bool {
        let last = self.layout.rows.min(row + reach.div_ceil(self.layout.unit) + 1);
        let mut behind = (row..last).map(|row| self.layout.unit_at(line, row, position));
        behind.any(|at| dump.cut.contains(&self.layout.unit_of(at)))
    }

    /// Decides whether what could not be read is a loss; marks what is none as void.
    fn judge_unreadable(
        &self,
        pages: &mut Pages,
        found: &Found,
        dump: Option<&Dump>,
        slack: u32,
        accept: bool,
    ) -> Result<(), MountError> {
        let layout = &self.layout;
        let mut lost = Vec::new();
        for at in &found.unreadable {
            let unit = layout.unit_of(*at);
            let (line, position, sector) = layout.in_chunk(*at);
            let chunk = self.chunk_index(line, position);
            // A unit may fail in parts; nothing is behind it then but the rest of itself.
            let end = sector / layout.unit * layout.unit + layout.unit;
            let torn = dump.is_none() && end + slack >= found.data_end[chunk];
            let row = sector / layout.unit;
            let cut = dump.is_some_and(|d| self.was_cut(d, line, position, row, self.window));
            if !(torn || cut || !found.any[chunk] || pages.is_void(unit)) {
                lost.push(*at);
            }
        }
        if let Some(first) = lost.first()
            && !accept
        {
            let place = layout.location(*first);
            return Err(MountError::Lost {
                sectors: lost.len() as u64,
                pu: place.pu,
                chunk: place.chunk,
                sector: place.sector,
            });
        }
        let void = found.unreadable.iter().chain(&self.failed);
        void.for_each(|at| pages.set_void(layout.unit_of(*at), true));
        Ok(())
    }

    /// Units in the windows of chunks that are written on, which no cut program can have harmed:
    /// what the dump holds of them is programmed already. Not to program it again is more than
    /// thrift: where windows are long it would take the room that GC needs. `reach`: sectors that
    /// a program may take along.
    fn standing(&self, place: &Place, dump: Option<&Dump>, reach: u32) -> Standing {
        let (unit, keep) = (self.layout.unit, self.window / self.layout.unit);
        let mut standing = Standing::default();
        let Some(dump) = dump else {
            return standing;
        };
        for line in &dump.open {
            let Some(stream) = place.stream_of(*line) else {
                continue;
            };
            for position in 0..self.layout.positions {
                let info = &self.chunks[self.chunk_index(*line, position)];
                let whole = info.write_pointer.is_multiple_of(unit);
                if info.state != ChunkState::Open || !whole {
                    continue;
                }
                let end = info.write_pointer / unit;
                let first = end.saturating_sub(keep);
                let window = stream * self.layout.positions as usize + position as usize;
                standing.windows.push((window, end - first));
                for row in first..end {
                    if self.was_cut(dump, *line, position, row, reach) {
                        continue;
                    }
                    let at = self.layout.unit_at(*line, row, position);
                    let place = (window, (row - first) * unit);
                    standing.units.insert(self.layout.unit_of(at), place);
                }
            }
        }
        standing
    }

    /// What could not be read yet and does not stand is in the dump, and will be programmed again.
    fn void_the_rest(&self, pages: &mut Pages, dump: Option<&Dump>, standing: &Standing) {
        for line in dump.iter().flat_map(|d| &d.open) {
            for position in 0..self.layout.positions {
                let info = &self.chunks[self.chunk_index(*line, position)];
                let written = info.write_pointer.min(self.layout.chunk_sectors);
                let unit = self.layout.unit;
                for row in self.readable(info) / unit..written.div_ceil(unit) {
                    let unit = self.layout.unit_of(self.layout.unit_at(*line, row, position));
                    if !standing.units.contains_key(&unit) {
                        pages.set_void(unit, true);
                    }
                }
            }
        }
    }
}

impl Controller {
    /// Fills map and buffer with what was found. Returns the room that the dump's sectors hold.
    fn take_in(
        &mut self,
        found: &Found,
        lost: &[u32],
        (dump, readable): (Option<&Dump>, &BTreeSet<u32>),
        standing: &Standing,
    ) -> Room {
        let mut room = Room::default();
        let unit = self.place.layout.unit;
        for (window, units) in &standing.windows {
            self.windows[*window].resize((units * unit) as usize, NIL);
        }
        for lba in lost {
            if found.newest[*lba as usize].at == NIL {
                self.map.set(*lba, Entry::Poisoned);
            }
        }
        for saved in dump.iter().flat_map(|d| &d.sectors) {
            let claim = found.newest[saved.lba as usize];
            let is_readable = saved.at.is_some_and(|at| readable.contains(&at));
            if claim.stamp > saved.stamp || is_readable {
                continue;
            }
            let (kind, lba, stamp) = (saved.kind, saved.lba, saved.stamp);
            let stands = saved.at.and_then(|at| {
                let (window, first) = standing.units.get(&self.place.layout.unit_of(at))?;
                Some((at, *window, (first + at % unit) as usize))
            });
            let slot = match stands {
                Some((at, window, i)) => {
                    let slot = self.buffer.restore_window(kind, lba, stamp, at);
                    self.windows[window][i] = slot;
                    self.map.take(at, lba);
                    let line = self.place.layout.line_of(at);
                    self.place.line_mut(line).valid += 1;
                    slot
                }
                None => self.buffer.restore(kind, lba, stamp, saved.holds_room),
            };
            if saved.holds_room {
                room.add(kind);
            }
            self.buffer.content_mut(slot).copy_from_slice(&saved.content);
            self.map.set(saved.lba, Entry::Slot(slot));
        }
        let taken = self.buffer.take_gc_room(room.gc);
        assert!(taken, "the dump was checked against the buffer");
        for (lba, claim) in (0u32..).zip(&found.newest) {
            if claim.at == NIL {
                continue;
            }
            let host = lba < self.map.capacity();
            if !host && self.pages.at(lba - self.map.capacity()) != Some(claim.at) {
                continue;
            }
            if host {
                if self.map.get(lba) != Entry::Unmapped {
                    continue;
                }
                self.map.set(lba, Entry::Media(claim.at));
            }
            self.map.take(claim.at, lba);
            let line = self.place.layout.line_of(claim.at);
            self.place.line_mut(line).valid += 1;
        }
        // All that counts was found elsewhere, on the medium: such lines may be all the room there is.
        self.place.erase_empty_lines();
        room
    }
}

/// Programs padding on one PU: (line, from sector, to sector) each. Returns how many sectors were
/// programmed, and the physical sectors that failed.
async fn pad_chunks(
    cx: Cx,
    device: Arc<dyn Device>,
    layout: Layout,
    position: u32,
    work: Vec<(u32, u32, u32)>,
) -> (u64, Vec<u32>) {
    let (mut padded, mut failed) = (0, Vec::new());
    for (line, from, end) in work {
        let mut at = from;
        while at < end {
            let n = (layout.unit - at % layout.unit).min(end - at);
            let done = pad(&cx, &*device, &layout, line, position, at, n).await;
            let status = |i: u32| done.status(i as usize);
            padded += (0..n).filter(|i| status(*i).moved_pointer()).count() as u64;
            let bad = (0..n).filter(|i| !status(*i).is_ok());
            failed.extend(bad.map(|i| layout.sector_at(line, position, at + i)));
            if !(0..n).all(|i| status(i).moved_pointer()) {
                break;
            }
            at += n;
        }
    }
    (padded, failed)
}

/// Programs `n` sectors of padding at the write pointer of a chunk.
pub(super) async fn pad(
    cx: &Cx,
    device: &(dyn Device + 'static),
    layout: &Layout,
    line: u32,
    position: u32,
    from: u32,
    n: u32,
) -> Completion {
    let content_bytes = device.traits().content_bytes;
    let zeros = vec![0; content_bytes];
    let format = device.format();
    let chunk = format.pack(layout.chunk(line, position));
    let addrs: Vec<Ppa> = (from..from + n).map(|s| format.in_chunk(chunk, s)).collect();
    let oob = Oob::encode_raw(LBA_PADDING, 0, read::content_crc(&zeros));
    let request = Request {
        op: Op::Write,
        flags: Flags::DURABLE,
        addrs: &addrs,
        data: Data::Write {
            content: Gather { base: &zeros, index: &vec![0; n as usize], unit: content_bytes },
            oob: &vec![oob; n as usize],
            cause: &vec![Cause::PaddingPair; n as usize],
        },
        whole_sectors: false,
    };
    device.io(cx, request).await
}

/// Reads the records of one PU's chunks, (line, sectors) each.
#[allow(clippy::too_many_arguments)]
async fn scan_chunks(
    cx: Cx,
    device: Arc<dyn Device>,
    layout: Layout,
    content_bytes: usize,
    capacity: u64,
    position: u32,
    work: Vec<(u32, u32)>,
    found: Arc<Mutex<Found>>,
) {
    for (line, end) in work {
        let last = (end - 1) / layout.unit * layout.unit;
        let mut from = 0;
        while from < end {
            let n = (end - from).min(VECTOR_MAX as u32);
            let place = |s: u32| layout.sector_at(line, position, s);
            let ats: Vec<u32> = (from..from + n).map(place).collect();
            let records = read_records(&cx, &*device, &layout, &ats).await;
            // At the frontier a record is believed with its content only.
            let doubtful = |at: u32| layout.in_chunk(at).2 >= last;
            let mut suspects = Vec::new();
            for (at, record) in ats.iter().zip(&records) {
                if let Some((lba, _)) = record
                    && *lba < capacity
                    && doubtful(*at)
                {
                    suspects.push((*lba as u32, *at));
                }
            }
            let good = verify(&cx, &*device, &layout, content_bytes, &suspects).await;
            let torn: BTreeSet<u32> =
                suspects.iter().zip(good).filter(|(_, g)| !g).map(|((_, at), _)| *at).collect();
            let mut found = found.lock();
            for (at, record) in ats.iter().zip(records) {
                let record = record.filter(|_| !torn.contains(at));
                found.note(&layout, *at, record);
            }
            drop(found);
            from += n;
        }
    }
}

impl Found {
    /// Takes in the record of a sector; `None`: it can't be read.
    fn note(&mut self, layout: &Layout, at: u32, record: Option<(u64, u64)>) {
        let (line, position, sector) = layout.in_chunk(at);
        let chunk = (line * layout.positions + position) as usize;
        // Of another FTL, or damaged: no copy of ours has such a stamp.
        let is_ours = |(lba, stamp): &(u64, u64)| *lba >= LBA_LIMIT || *stamp <= STAMP_LAST;
        let Some((lba, stamp)) = record.filter(is_ours) else {
            self.unreadable.insert(at);
            return;
        };
        self.any[chunk] = true;
        if lba >= LBA_LIMIT {
            return;
        }
        let host = lba < self.capacity;
        let Some(newest) = self.newest.get_mut(lba as usize) else {
            self.foreign.get_or_insert((at, lba));
            return;
        };
        if host {
            self.data_end[chunk] = self.data_end[chunk].max(sector + 1);
        }
        let of_line = &mut self.stamp_of_line[line as usize];
        *of_line = (*of_line).max(stamp);
        if newest.at == NIL || stamp > newest.stamp {
            *newest = Claim { stamp, at };
        } else if stamp == newest.stamp {
            self.equal.push((lba as u32, stamp, at));
        }
    }
}

/// Reads up to a vector of physical sectors, `unit` bytes of content each (0: records alone), `whole` as
/// pages are kept: completion, contents, records.
async fn read_sectors(
    cx: &Cx,
    device: &(dyn Device + 'static),
    layout: &Layout,
    ats: impl Iterator<Item = u32>,
    (unit, whole): (usize, bool),
) -> (Completion, Vec<u8>, Vec<[u8; OOB_BYTES]>) {
    let addrs: Vec<Ppa> = ats.map(|at| device.format().pack(layout.location(at))).collect();
    let index: Vec<u32> = (0..addrs.len() as u32).collect();
    let mut oob = vec![[0; OOB_BYTES]; addrs.len()];
    let mut bytes = vec![0; addrs.len() * unit];
    let content = Scatter { base: &mut bytes, index: &index, unit };
    let request = Request {
        op: Op::Read,
        flags: Flags { cause: Cause::Metadata, ..Flags::default() },
        addrs: &addrs,
        data: Data::Read { content, oob: &mut oob },
        whole_sectors: whole,
    };
    let done = device.io(cx, request).await;
    (done, bytes, oob)
}

/// Records of up to a vector of sectors: (lba or type, stamp), `None` where it can't be read.
async fn read_records(
    cx: &Cx,
    device: &(dyn Device + 'static),
    layout: &Layout,
    ats: &[u32],
) -> Vec<Option<(u64, u64)>> {
    let mut records = vec![None; ats.len()];
    let mut left: Vec<usize> = (0..ats.len()).collect();
    for _ in 0..TRIES {
        let now = left.iter().map(|i| ats[*i]);
        let (done, _, oob) = read_sectors(cx, device, layout, now, (0, false)).await;
        let mut again = Vec::new();
        for (k, i) in left.iter().enumerate() {
            let unwritten = oob[k] == [0xff; OOB_BYTES];
            match done.status(k).is_ok() && !unwritten {
                true => records[*i] = Some(record_of(&oob[k])),
                false if done.status(k) == Status::Uncorrectable => again.push(*i),
                false => {}
            }
        }
        left = again;
        if left.is_empty() {
            break;
        }
    }
    records
}

fn record_of(oob: &[u8; OOB_BYTES]) -> (u64, u64) {
    let (lba, stamp, _) = Oob::decode_raw(oob);
    (lba, stamp)
}

/// Which of these copies of host sectors, (logical, physical) each, are what their records say.
async fn verify(
    cx: &Cx,
    device: &(dyn Device + 'static),
    layout: &Layout,
    content_bytes: usize,
    copies: &[(u32, u32)],
) -> Vec<bool> {
    let mut good = vec![false; copies.len()];
    for (part, good) in copies.chunks(VECTOR_MAX).zip(good.chunks_mut(VECTOR_MAX)) {
        for _ in 0..TRIES {
            let ats = part.iter().map(|(_, at)| *at);
            let unit = (content_bytes, false);
            let (done, bytes, oob) = read_sectors(cx, device, layout, ats, unit).await;
            for (i, (lba, _)) in part.iter().enumerate() {
                let content = &bytes[i * content_bytes..(i + 1) * content_bytes];
                good[i] |= done.status(i).is_ok() && read::is_of(&oob[i], *lba, content);
            }
            if good.iter().all(|good| *good) {
                break;
            }
        }
    }
    good
}

/// The bytes of a page, if they and its record are whole.
async fn read_page(
    cx: &Cx,
    device: &(dyn Device + 'static),
    layout: &Layout,
    at: u32,
) -> Option<Vec<u8>> {
    for _ in 0..TRIES {
        let ats = std::iter::once(at);
        let (done, bytes, oob) = read_sectors(cx, device, layout, ats, (PAGE_BYTES, true)).await;
        if done.status(0).is_ok() && Oob::verify_crc(&oob[0], read::content_crc(&bytes)) {
            return Some(bytes);
        }
    }
    None
}
