//! Where data goes: lines, the open line of each stream, idle PUs, wear.
//!
//! Owns: the state of every line and chunk, the pools of free lines, the open line of each stream.
//! Promises: sectors of a chunk are handed out in the order of its write pointer, each once; a PU is
//! given one program at a time; the host gets no room that GC needs to finish what it has begun and
//! to take one more victim ([`Place::outlook`]); a line is Closed only when no program in it is in
//! flight. Never: touches content or the map, or says who tells of a chunk's erases (`tags.rs`).
//!
//! A line is a chunk on each of some PUs, on all of them where nothing else is said (a superblock).
//! Its sectors are numbered in stripe order: unit by unit over the channels first, then over the PUs
//! of a channel, then up the chunk, so a sequential write reaches every channel before it reaches a
//! second die of one ("PFTL stripes updates over different channels in a page size unit", ParaFS
//! 4.1; our unit is `ws_opt`, a page in each plane). A unit goes to the next *idle* PU in that
//! order: a slow die is overtaken and catches up before the line ends.
//!
//! Where a line is a single chunk (GC by block), a stream has one open on each PU: lines *abreast*.
//! The stripe is the same, unit by unit over the PUs. A PU gets its next chunk when the stripe comes
//! to it; one that has no free chunk is passed over, and GC makes room wherever garbage is.
//!
//! Each line belongs to a *pool*, and never to another. A pool says which stream the host writes in
//! it, which one GC does, and into which pool the live sectors of its victims go. Host data and data
//! moved by GC go to open lines of their own, so that what survives a victim is not mixed with what
//! is new (one stream where the device allows one open chunk per PU). A free line is chosen by
//! fewest erases, the lowest number among equals: dynamic wear leveling.

use flashlane_base::mutant;
use flashlane_ocssd::device::{CellMode, ChunkInfo, ChunkState, Status};
use std::collections::{BTreeSet, VecDeque};

use super::buffer::NIL;
use super::witness::tag_of;

mod layout;
mod spare;
mod tags;
pub(super) use layout::{Layout, Region, RegionSpec, unit_of};
pub(super) use spare::OpenChunk;

/// The pool where the host's data is at rest, and GC works.
pub(super) const MAIN: usize = 0;

/// Spare lines without which a device is refused. With three, whenever the host is denied a line
/// some closed line holds garbage: the host is denied when less than two lines are free or on their
/// way, GC's open line is the third, and what is valid fits the rest with room to spare.
pub(super) const SPARE_LINES_MIN: u64 = 3;
/// Below this a device whose chunks die becomes read-only.
const SPARE_LINES_STOP: u64 = 2;

/// A set of positions.
#[derive(Clone, Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(n: u32) -> Bits {
        Bits(vec![0; n.div_ceil(64) as usize])
    }

    #[inline]
    fn set(&mut self, i: u32, on: bool) {
        let bit = 1u64 << (i % 64);
        let word = &mut self.0[i as usize / 64];
        *word = if on { *word | bit } else { *word & !bit };
    }

    fn has(&self, i: u32) -> bool {
        self.0[i as usize / 64] >> (i % 64) & 1 == 1
    }

    /// The first member of both sets at or behind `from`, else from the start.
    #[inline]
    fn next_common(&self, other: &Bits, from: u32) -> Option<u32> {
        let words = self.0.len();
        let (first, shift) = (from as usize / 64, from % 64);
        for i in 0..=words {
            let w = (first + i) % words;
            let mut both = self.0[w] & other.0[w];
            if i == 0 {
                both &= u64::MAX << shift;
            }
            if both != 0 {
                return Some(w as u32 * 64 + both.trailing_zeros());
            }
        }
        None
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LineState {
    /// Erased.
    Free,
    /// A stream writes it, or its last programs are in flight.
    Open,
    /// Written: a possible victim.
    Closed,
    /// GC moves its live sectors out.
    Victim,
    /// Nothing in it is live; erased as soon as the last reader has left.
    Leaving,
    /// No chunk in it is good.
    Dead,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) state: LineState,
    /// Sectors that are the newest programmed copy of their logical sector.
    pub(super) valid: u32,
    /// Host reads that hold an address in it.
    pub(super) readers: u32,
    /// Programs in flight.
    flying: u32,
    /// GC reads in flight.
    pub(super) moving: u32,
    pub(super) chunks: u32,
    /// Of those, chunks that the next erase retires.
    pub(super) suspects: u32,
    /// Erases of its chunks, summed.
    erases: u64,
    /// What it counts in [`Place::promised`]: its good sectors while it is free or on its way.
    promised: u32,
    /// When it was opened, as a number.
    pub(super) sequence: u64,
    /// It may be erased when this barrier has ended.
    safe_after: u64,
    /// Records speak of each of its chunks, or it has only one.
    heard: bool,
}

/// Chunk flag: bad, never used again.
const RETIRED: u8 = 1;
/// Chunk flag: a program in it failed; the next erase retires it.
const SUSPECT: u8 = 2;
/// Chunk flag: something was programmed since its last erase.
const WRITTEN: u8 = 4;
/// Chunk flag: open, and nobody will write on: it has to be filled before it can be erased on every
/// device.
const UNFINISHED: u8 = 8;
/// Chunk flag: a record in another chunk of its line speaks of it (`witness.rs`).
const HEARD: u8 = 16;

/// The open lines of a stream.
#[derive(Clone, Debug)]
struct Stream {
    /// Where its lines are from.
    pool: usize,
    /// One, or one for each group of `width` positions; [`NIL`] where none is open.
    lines: Vec<u32>,
    width: u32,
    /// Positions whose chunk has sectors left.
    room: Bits,
    /// Next sector of its chunk per position.
    next: Vec<u32>,
    /// Position after the one used last.
    cursor: u32,
    /// Sectors that can still be programmed.
    left: u32,
}

impl Stream {
    fn new(pool: usize, width: u32, positions: u32) -> Stream {
        Stream {
            pool,
            lines: vec![NIL; (positions / width) as usize],
            width,
            room: Bits::new(positions),
            next: vec![0; positions as usize],
            cursor: 0,
            left: 0,
        }
    }

    /// Its lines lie side by side.
    #[inline]
    fn is_abreast(&self) -> bool {
        self.lines.len() > 1
    }

    /// Which of its lines has this position.
    #[inline]
    fn group(&self, position: u32) -> usize {
        if self.is_abreast() { (position / self.width) as usize } else { 0 }
    }

    /// The open line at a position.
    #[inline]
    fn line_at(&self, position: u32) -> u32 {
        self.lines[self.group(position)]
    }

    /// Nothing more fits the chunk at this position; with its last chunk its line is full.
    #[inline]
    fn fill(&mut self, position: u32) {
        self.room.set(position, false);
        let group = self.group(position);
        let full = match self.is_abreast() {
            true => (0..self.width).all(|i| !self.room.has(group as u32 * self.width + i)),
            false => self.left == 0,
        };
        if full {
            self.lines[group] = NIL;
        }
    }
}

/// What a pool is to be.
#[derive(Clone, Copy, Debug)]
pub(super) struct PoolSpec {
    /// The pool whose room the live sectors of its victims are counted against.
    pub(super) into: usize,
    /// Streams that the host and GC write. The same one where there is one, or GC writes none.
    pub(super) host: usize,
    pub(super) own: usize,
    /// Positions that an open line has to itself: all of them, or those of a line where lines lie
    /// abreast.
    pub(super) width: u32,
}

/// Lines that take each other's place.
#[derive(Clone, Debug)]
struct Pool {
    spec: PoolSpec,
    /// By group of positions.
    free: Vec<Vec<u32>>,
    free_lines: u32,
    /// Lines of which GC moves live sectors out.
    victims: Vec<u32>,
    /// Lines on their way from victim to free: all live sectors found, not yet erased.
    coming: u32,
    /// Good sectors of lines that are free, victims, or leaving.
    promised: u64,
    /// The last unit of the host found no room that GC can spare.
    host_denied: bool,
    /// Sectors beyond a line that the host leaves to GC.
    reserve: u32,
    /// Of its longest line.
    line_sectors: u32,
    unit: u32,
    /// Chunks that are neither retired nor suspect, in sectors.
    good: u64,
}

impl Pool {
    /// The group of a line whose first position this is.
    fn group(&self, first: u32) -> usize {
        if self.free.len() > 1 { (first / self.spec.width) as usize } else { 0 }
    }

    fn put(&mut self, line: u32, first: u32) {
        let group = self.group(first);
        self.free[group].push(line);
        self.free_lines += 1;
    }

    /// A line that was thought to be free is not.
    fn withdraw(&mut self, line: u32, first: u32) {
        let group = self.group(first);
        let before = self.free[group].len();
        self.free[group].retain(|free| *free != line);
        self.free_lines -= (before - self.free[group].len()) as u32;
    }

    /// Lines that are side by side.
    fn abreast(&self) -> u32 {
        self.free.len() as u32
    }
}

/// What a mount has found, for [`Place::adopt`].
pub(super) struct Stock<'a> {
    /// The chunk report, per line × position.
    pub(super) chunks: &'a [ChunkInfo],
    /// The lines that were open, if it is known.
    pub(super) open: Option<&'a BTreeSet<u32>>,
    /// The lines that were to be erased, if it is known.
    pub(super) leaving: Option<&'a BTreeSet<u32>>,
    /// Largest stamp in each line: their order.
    pub(super) stamps: &'a [u64],
}

/// All lines and chunks.
pub(super) struct Place {
    pub(super) layout: Layout,
    lines: Vec<Line>,
    /// Flags per chunk number × position.
    chunks: Vec<u8>,
    /// Likewise, what other chunks of its line say of it (`witness.rs`); 0: nothing.
    tags: Vec<u8>,
    pools: Vec<Pool>,
    streams: Vec<Stream>,
    idle: Bits,
    /// Positions that count as busy, see [`Place::set_aside`].
    aside: Vec<u32>,
    /// Lines to be erased, oldest first.
    leaving: VecDeque<u32>,
    retired: u64,
    opened: u64,
    /// A barrier is under way: what it waits for may go to the host's line, because the lines that
    /// are on their way wait for it.
    pub(super) lend: bool,
    /// A chunk that needs pages of counts was opened, or lost its witness, after
    /// [`Place::tell_erases`] (`tags.rs`): the next barrier writes them.
    untold: bool,
    /// A chunk of which the pages of counts speak, or the only good one of a line, was erased after
    /// [`Place::tell_erases`].
    erased_untold: bool,
    /// Tags as [`Place::tell_erases`] told them last.
    told: Vec<u8>,
    /// Barriers write pages of counts.
    tells: bool,
    /// [`Place::bad_chunks`] says something else than when it was asked last.
    stock_changed: bool,
    /// A bit per chunk by [`Layout::chunk_index`]: it has gone offline in this life. None before a
    /// stop asks.
    offline: Vec<u64>,
}

/// How a device is divided.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    pub(super) layout: Layout,
    pub(super) pools: Vec<PoolSpec>,
    /// The pool of each stream.
    pub(super) streams: Vec<usize>,
}

impl Place {
    /// Takes stock of a blank device: `report` gives the chunks of a PU. The error is the number of
    /// chunks that are not blank.
    pub(super) fn new(plan: Plan, report: impl Fn(u32) -> Vec<ChunkInfo>) -> Result<Place, u64> {
        let mut place = Place::empty(plan);
        let chunks = place.layout.by_number(report);
        match place.take_stock(&chunks) {
            0 => Ok(place),
            used => Err(used),
        }
    }

    /// The host leaves so many sectors of the main pool to GC, beyond a line.
    pub(super) fn set_reserve(&mut self, sectors: u32) {
        self.pools[MAIN].reserve = sectors;
    }

    /// What [`Place::set_reserve`] has set.
    pub(super) fn reserve(&self) -> u32 {
        self.pools[MAIN].reserve
    }

    fn empty(plan: Plan) -> Place {
        let Plan { layout, pools, streams } = plan;
        let positions = layout.positions;
        let widths: Vec<u32> = pools.iter().map(|spec| spec.width).collect();
        let stream = |pool: usize| Stream::new(pool, widths[pool], positions);
        let pool = |(i, spec): (usize, PoolSpec)| {
            let of = || layout.regions.iter().filter(|r| r.pool == i);
            Pool {
                spec,
                free: vec![Vec::new(); (positions / spec.width) as usize],
                free_lines: 0,
                victims: Vec::new(),
                coming: 0,
                promised: 0,
                host_denied: false,
                reserve: 0,
                line_sectors: of().map(|r| r.line_sectors).max().unwrap_or(0),
                unit: of().map(|r| r.unit).max().unwrap_or(0),
                good: 0,
            }
        };
        Place {
            lines: Vec::new(),
            chunks: vec![0; (layout.chunk_numbers() * positions) as usize],
            tags: vec![0; (layout.chunk_numbers() * positions) as usize],
            untold: false,
            erased_untold: false,
            told: vec![0; layout.chunk_count() as usize],
            tells: false,
            pools: pools.into_iter().enumerate().map(pool).collect(),
            streams: streams.into_iter().map(stream).collect(),
            idle: Bits::new(positions),
            aside: Vec::new(),
            leaving: VecDeque::new(),
            retired: 0,
            opened: 0,
            lend: false,
            stock_changed: true,
            offline: Vec::new(),
            layout,
        }
    }

    /// Takes over what is on the device. Lines that were open are written on, as many as there are
    /// streams; where nobody knows which they were, those with open chunks. GC gets the one with
    /// most room: all that it needs to go on may be there.
    pub(super) fn adopt(plan: Plan, stock: Stock<'_>) -> Place {
        let mut place = Place::empty(plan);
        place.take_stock(stock.chunks);
        let mut order: Vec<u32> = (0..place.layout.lines).collect();
        order.sort_by_key(|line| stock.stamps[*line as usize]);
        let mut open = Vec::new();
        for line in order {
            if place.line(line).chunks == 0 || !place.mark_written(line, stock.chunks) {
                continue;
            }
            place.opened += 1;
            let sequence = place.opened;
            let pool = place.pool_of(line);
            let first = place.layout.positions_of(line).start;
            place.pools[pool].withdraw(line, first);
            let l = &mut place.lines[line as usize];
            let leaves = l.state == LineState::Leaving;
            (l.state, l.sequence) = (LineState::Closed, sequence);
            if leaves {
                // Not in the mode of its region yet, which its erase brings.
                l.state = LineState::Leaving;
                continue;
            }
            place.pools[pool].promised -= std::mem::take(&mut l.promised) as u64;
            if stock.leaving.is_some_and(|leaving| leaving.contains(&line)) {
                place.await_erase(line);
                continue;
            }
            let mut positions = place.layout.positions_of(line);
            let any_open = positions.any(|p| place.info(&stock, line, p).state == ChunkState::Open);
            if stock.open.map_or(any_open, |open| open.contains(&line)) {
                open.push(line);
            }
        }
        for pool in 0..place.pools.len() {
            let of_pool = open.iter().copied().filter(|line| place.pool_of(*line) == pool);
            let of_pool = of_pool.collect();
            place.resume(pool, of_pool, &stock);
        }
        place
    }

    fn info<'a>(&self, stock: &Stock<'a>, line: u32, position: u32) -> &'a ChunkInfo {
        &stock.chunks[self.layout.chunk_index(line, position)]
    }

    fn pool_of(&self, line: u32) -> usize {
        self.layout.of(line).pool
    }

    /// Notes what is written in a line, and which chunks failed. False if nothing is.
    fn mark_written(&mut self, line: u32, chunks: &[ChunkInfo]) -> bool {
        let (full, pool) = (self.layout.of(line).chunk_sectors, self.pool_of(line));
        let mut any = self.line(line).state == LineState::Leaving;
        for position in self.layout.positions_of(line) {
            let at = self.layout.chunk_index(line, position);
            let info = &chunks[at];
            if info.state == ChunkState::Free || self.chunks[at] & RETIRED != 0 {
                continue;
            }
            any = true;
            self.chunks[at] |= WRITTEN;
            let early = info.state == ChunkState::Closed && info.write_pointer < full;
            if early && !mutant!("kit.suspect-forgotten") {
                self.chunks[at] |= SUSPECT;
                self.lines[line as usize].suspects += 1;
                self.pools[pool].good -= full as u64;
            }
            if info.state == ChunkState::Open {
                self.chunks[at] |= UNFINISHED;
            }
        }
        any
    }

    /// A line that nobody needs waits for its erase.
    fn await_erase(&mut self, line: u32) {
        let region = self.layout.of(line);
        let pool = &mut self.pools[region.pool];
        let l = &mut self.lines[line as usize];
        l.state = LineState::Leaving;
        l.promised = (l.chunks - l.suspects) * region.chunk_sectors;
        pool.promised += l.promised as u64;
        pool.coming += 1;
        self.leaving.push_back(line);
    }

    /// Closed lines without anything valid wait for their erase behind barrier `safe_after`.
    pub(super) fn erase_empty_lines(&mut self, safe_after: u64) {
        let empty = self.lines().filter(|(_, l)| l.state == LineState::Closed && l.valid == 0);
        let empty: Vec<u32> = empty.map(|(line, _)| line).collect();
        let after = if mutant!("kit.erased-unnoted") { 0 } else { safe_after };
        empty.into_iter().for_each(|line| self.leave_empty(line, after));
    }

    /// Chunks have become bad since [`Place::bad_chunks`] was asked.
    pub(super) fn stock_changed(&self) -> bool {
        self.stock_changed
    }

    /// The chunks that are bad, a bit each by [`Layout::chunk_index`]: nothing in them is missed,
    /// for what they held is noted as lost, or elsewhere.
    pub(super) fn bad_chunks(&mut self) -> Vec<u64> {
        self.stock_changed = false;
        let mut bad = self.bits(|_, flags| flags & RETIRED != 0);
        bad.iter_mut().zip(&self.offline).for_each(|(bad, offline)| *bad |= offline);
        bad
    }

    /// Takes note of chunks that have gone offline in this life, in a device that is being stopped:
    /// what they hold is lost. `report`: all chunks by [`Layout::chunk_index`]. False if there are
    /// none.
    pub(super) fn take_offline(&mut self, report: &[ChunkInfo]) -> bool {
        self.offline = vec![0; self.chunks.len().div_ceil(64)];
        let fresh =
            |at: usize| report[at].state == ChunkState::Offline && self.chunks[at] & RETIRED == 0;
        let fresh: Vec<usize> = (0..report.len()).filter(|at| fresh(*at)).collect();
        fresh.iter().for_each(|at| self.offline[at / 64] |= 1 << (at % 64));
        for line in 0..self.layout.lines {
            let mut chunks = self.layout.chunks_of(line);
            if chunks.any(|(line, p)| self.is_offline(self.layout.chunk_index(line, p))) {
                self.forget_heard(line);
            }
        }
        self.stock_changed |= !fresh.is_empty();
        !fresh.is_empty()
    }

    /// The chunks in which nothing is missed, likewise: bad ones, free ones, and those that wait
    /// for an erase.
    pub(super) fn unmissed(&self) -> Vec<u64> {
        use LineState::{Dead, Free, Leaving};
        self.bits(|l, flags| matches!(l.state, Free | Dead | Leaving) || flags & RETIRED != 0)
    }

    fn bits(&self, is: impl Fn(&Line, u8) -> bool) -> Vec<u64> {
        let mut bits = vec![0u64; self.chunks.len().div_ceil(64)];
        for (line, position) in self.layout.chunks() {
            let at = self.layout.chunk_index(line, position);
            if is(&self.lines[line as usize], self.chunks[at]) {
                bits[at / 64] |= 1 << (at % 64);
            }
        }
        bits
    }

    /// This chunk has gone offline in this life, as far as a stop has looked.
    fn is_offline(&self, at: usize) -> bool {
        self.offline.get(at / 64).is_some_and(|w| w >> (at % 64) & 1 == 1)
    }

    /// The copy at this place is in a chunk that is bad.
    pub(super) fn is_gone(&self, at: u32) -> bool {
        let (line, position, _) = self.layout.in_chunk(at);
        let chunk = self.layout.chunk_index(line, position);
        self.is_offline(chunk) || self.retired > 0 && self.is_retired(line, position)
    }

    /// All chunks at this position are bad.
    pub(super) fn is_dead(&self, position: u32) -> bool {
        self.layout.lines_at(position).all(|line| self.is_retired(line, position))
    }

    /// What is programmed next finds a place without these positions.
    pub(super) fn can_do_without(&self, positions: &[u32]) -> bool {
        let others = || (0..self.layout.positions).filter(|p| !positions.contains(p));
        let has_room = |s: &Stream| s.left == 0 || others().any(|p| s.room.has(p));
        self.retired == 0 && others().count() > 1 && self.streams.iter().all(has_room)
    }

    /// No program goes to these positions until [`Place::use_again`].
    pub(super) fn set_aside(&mut self, positions: Vec<u32>) {
        positions.iter().for_each(|position| self.idle.set(*position, false));
        self.aside = positions;
    }

    /// Programs go to the positions again that were set aside; false if none is.
    pub(super) fn use_again(&mut self) -> bool {
        let aside = std::mem::take(&mut self.aside);
        aside.iter().for_each(|position| self.idle.set(*position, true));
        !aside.is_empty()
    }

    /// A closed line without anything valid waits for its erase behind barrier `safe_after`.
    pub(super) fn leave_empty(&mut self, line: u32, safe_after: u64) {
        self.await_erase(line);
        self.lines[line as usize].safe_after = safe_after;
    }

    /// Streams of a pool go on in those of these lines that have most room.
    fn resume(&mut self, pool: usize, open: Vec<u32>, stock: &Stock<'_>) {
        let layout = &self.layout;
        let next_of = |line: u32, position: u32| {
            let (region, info) = (layout.of(line), self.info(stock, line, position));
            match info.state {
                _ if !region.is_mode_of(info) => region.chunk_sectors,
                ChunkState::Free | ChunkState::Open => {
                    info.write_pointer.next_multiple_of(region.grain)
                }
                ChunkState::Closed | ChunkState::Offline => region.chunk_sectors,
            }
        };
        let room = |line: u32| {
            let all = layout.of(line).chunk_sectors;
            layout.positions_of(line).map(|p| all - next_of(line, p)).sum::<u32>()
        };
        let mut open: Vec<(u32, u32)> = open.into_iter().map(|line| (room(line), line)).collect();
        open.retain(|(room, _)| *room > 0);
        open.sort_by_key(|(room, line)| (std::cmp::Reverse(*room), *line));
        let found: Vec<_> = open
            .into_iter()
            .map(|(left, line)| {
                let next = layout.positions_of(line).map(|p| (p, next_of(line, p)));
                (left, line, next.collect::<Vec<_>>())
            })
            .collect();
        for (left, line, next) in found {
            let first = self.layout.positions_of(line).start;
            let takes = |s: &usize| {
                let stream = &self.streams[*s];
                stream.pool == pool && stream.line_at(first) == NIL
            };
            let Some(s) = (0..self.streams.len()).rev().find(takes) else {
                continue;
            };
            self.lines[line as usize].state = LineState::Open;
            let full = self.layout.of(line).chunk_sectors;
            for (position, next) in next {
                let at = self.layout.chunk_index(line, position);
                self.chunks[at] &= !UNFINISHED;
                self.streams[s].next[position as usize] = next;
                self.streams[s].room.set(position, next < full);
            }
            let group = self.streams[s].group(first);
            self.streams[s].lines[group] = line;
            self.streams[s].left += left;
        }
    }

    /// Counts chunks. Returns how many are not blank. A blank one in another cell mode than its
    /// region's is to be erased first; in the native mode that is not blank.
    fn take_stock(&mut self, chunks: &[ChunkInfo]) -> u64 {
        let blank = Line {
            state: LineState::Dead,
            valid: 0,
            readers: 0,
            flying: 0,
            moving: 0,
            chunks: 0,
            suspects: 0,
            erases: 0,
            promised: 0,
            sequence: 0,
            safe_after: 0,
            heard: false,
        };
        self.lines = vec![blank; self.layout.lines as usize];
        (0..self.layout.positions).for_each(|position| self.idle.set(position, true));
        let mut used = 0;
        for line in 0..self.layout.lines {
            let region = self.layout.of(line);
            let (pool, mut formatted, mut written) = (region.pool, true, false);
            let (full, slc) = (region.chunk_sectors, region.mode == CellMode::Slc);
            let l = &mut self.lines[line as usize];
            for position in self.layout.positions_of(line) {
                let at = self.layout.chunk_index(line, position);
                let info = &chunks[at];
                l.erases += info.erases as u64;
                self.tags[at] = tag_of(info.erases);
                if info.state == ChunkState::Offline {
                    self.chunks[at] = RETIRED;
                    self.retired += 1;
                    continue;
                }
                let fits = region.is_mode_of(info);
                used += (info.state != ChunkState::Free || !fits && !slc) as u64;
                written |= info.state != ChunkState::Free;
                if !fits {
                    self.chunks[at] |= WRITTEN;
                    formatted = false;
                }
                l.chunks += 1;
                self.pools[pool].good += full as u64;
            }
            match (l.chunks > 0, formatted || written) {
                (false, _) => {}
                (true, true) => {
                    l.state = LineState::Free;
                    l.promised = l.chunks * full;
                    self.pools[pool].promised += l.promised as u64;
                    let first = self.layout.positions_of(line).start;
                    self.pools[pool].put(line, first);
                }
                (true, false) => self.await_erase(line),
            }
        }
        used
    }

    #[inline]
    pub(super) fn line(&self, line: u32) -> &Line {
        &self.lines[line as usize]
    }

    #[inline]
    pub(super) fn line_mut(&mut self, line: u32) -> &mut Line {
        &mut self.lines[line as usize]
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = (u32, &Line)> {
        (0u32..).zip(&self.lines)
    }

    /// How many lines are in each state.
    pub(super) fn line_states(&self) -> impl Iterator<Item = (LineState, u64)> + use<> {
        use LineState::{Closed, Dead, Free, Leaving, Open, Victim};
        let states = [Free, Open, Closed, Victim, Leaving, Dead];
        let count = |of: LineState| self.lines.iter().filter(|line| line.state == of).count();
        states.map(|state| (state, count(state) as u64)).into_iter()
    }

    /// A pool in words; `None` without lines.
    pub(super) fn lines_said(&self, pool: usize, name: &str) -> Option<String> {
        let region = self.layout.regions.iter().find(|region| region.pool == pool)?;
        let mut states: Vec<(LineState, u32)> = Vec::new();
        let (mut lines, mut live, mut of) = (0, 0, 0u64);
        for line in self.layout.lines_of(pool).map(|line| self.line(line)) {
            match states.iter_mut().find(|(state, _)| *state == line.state) {
                Some((_, count)) => *count += 1,
                None => states.push((line.state, 1)),
            }
            lines += 1;
            live += u64::from(line.valid);
            of += u64::from(line.chunks) * u64::from(region.chunk_sectors);
        }
        states.sort_by_key(|(state, _)| *state as u8);
        let states =
            states.iter().map(|(state, n)| format!("{n} {}", format!("{state:?}").to_lowercase()));
        let states = states.collect::<Vec<_>>().join(", ");
        let slc = if region.mode == CellMode::Slc { " of SLC" } else { "" };
        Some(format!("{name}: {lines} lines{slc} ({states}), {live} of {of} sectors live\n"))
    }

    /// Sectors that one program holds at most in a pool.
    #[inline]
    pub(super) fn unit(&self, pool: usize) -> u32 {
        self.pools[pool].unit
    }

    pub(super) fn free_lines(&self, pool: usize) -> u32 {
        self.pools[pool].free_lines
    }

    /// Lines of a pool that are side by side: as many have what one over all PUs has.
    #[inline]
    pub(super) fn abreast(&self, pool: usize) -> u32 {
        self.pools[pool].abreast()
    }

    /// Lines of a pool that are on their way from victim to free: all live sectors are found, they
    /// are not erased yet.
    pub(super) fn coming(&self, pool: usize) -> u32 {
        self.pools[pool].coming
    }

    /// All live sectors of a victim have been found: it will be free.
    pub(super) fn will_come(&mut self, line: u32) {
        let pool = self.pool_of(line);
        self.pools[pool].coming += 1;
    }

    /// As if a line were not on its way.
    #[cfg(test)]
    pub(super) fn will_not_come(&mut self, line: u32) {
        let pool = self.pool_of(line);
        self.pools[pool].coming -= 1;
    }

    /// The last unit of the host found no room in a pool that GC can spare.
    pub(super) fn is_host_denied(&self, pool: usize) -> bool {
        self.pools[pool].host_denied
    }

    /// Forgets that the host was denied room, and says whether it was.
    pub(super) fn forgive_host(&mut self, pool: usize) -> bool {
        std::mem::take(&mut self.pools[pool].host_denied)
    }

    /// Each pool in a few words; `moving` sectors wait for the main one.
    pub(super) fn standing(&self, moving: u32) -> String {
        let of = |pool: usize| {
            let p = &self.pools[pool];
            let outlook = self.outlook(pool, if pool == MAIN { moving } else { 0 });
            let (free, coming, denied) = (p.free_lines, p.coming, p.host_denied);
            let now = self.room_now(pool);
            format!(
                "({free} free, {coming} coming, denied {denied}, room {now}, outlook {outlook})"
            )
        };
        (0..self.pools.len()).map(of).collect()
    }

    /// Is this chunk bad?
    pub(super) fn is_retired(&self, line: u32, position: u32) -> bool {
        self.chunks[self.layout.chunk_index(line, position)] & RETIRED != 0
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired
    }

    /// Sectors of all good chunks of the main pool.
    pub(super) fn usable(&self) -> u64 {
        self.pools[MAIN].good
    }

    /// True when the good chunks hold `capacity` and what GC needs to keep going.
    pub(super) fn has_spare_for(&self, capacity: u64) -> bool {
        let main = &self.pools[MAIN];
        let unit_each = (self.layout.positions * main.unit + main.reserve) as u64;
        main.good
            >= capacity + SPARE_LINES_STOP * self.layout.main().stripe_sectors() as u64 + unit_each
    }

    pub(super) fn lines_in(&self, state: LineState) -> BTreeSet<u32> {
        self.lines().filter(|(_, l)| l.state == state).map(|(line, _)| line).collect()
    }

    /// No program is to come to the line of this sector, nor under way in it.
    pub(super) fn is_closed_at(&self, at: u32) -> bool {
        !matches!(self.line(self.layout.line_of(at)).state, LineState::Open)
    }

    /// Number of the line opened last.
    pub(super) fn opened(&self) -> u64 {
        self.opened
    }

    pub(super) fn streams(&self) -> usize {
        self.streams.len()
    }

    /// Where the next program of the host goes in a pool: a stream, and an idle position with room
    /// in its open line, which is opened here if need be. `None`: wait for a program, or for a free
    /// line. `moving` sectors of GC wait for a place in it.
    #[inline]
    pub(super) fn next_of_host(&mut self, pool: usize, moving: u32) -> Option<(usize, u32)> {
        let denied = !self.host_may_go_on(pool, moving);
        self.pools[pool].host_denied = denied;
        let stream = self.pools[pool].spec.host;
        let may_open = !self.streams[stream].is_abreast()
            || self.host_may_open(pool, moving)
            || mutant!("kit.chunk-opened-unasked");
        (!denied).then(|| self.next(stream, may_open))?
    }

    /// The same for sectors that GC has moved.
    #[inline]
    pub(super) fn next_of_gc(&mut self, pool: usize) -> Option<(usize, u32)> {
        let stream = self.stream_for_gc(pool)?;
        self.next(stream, true)
    }

    #[inline]
    fn next(&mut self, stream: usize, may_open: bool) -> Option<(usize, u32)> {
        if self.streams[stream].is_abreast() {
            return self.next_abreast(stream, may_open);
        }
        if self.streams[stream].left == 0 {
            self.open(stream, 0);
        }
        let s = &self.streams[stream];
        let position = self.idle.next_common(&s.room, s.cursor)?;
        Some((stream, position))
    }

    /// The same where each PU has an open line of its own, or gets one if one `may_open`.
    fn next_abreast(&mut self, stream: usize, may_open: bool) -> Option<(usize, u32)> {
        let (s, positions) = (&self.streams[stream], self.layout.positions);
        let free = &self.pools[s.pool].free;
        let opens = |p: u32| may_open && s.line_at(p) == NIL && !free[s.group(p)].is_empty();
        let mut in_order = (0..positions).map(|i| (s.cursor + i) % positions);
        let fits = |p: &u32| self.idle.has(*p) && (s.room.has(*p) || opens(*p));
        let position = in_order.find(fits)?;
        let group = s.group(position);
        if s.lines[group] == NIL {
            self.open(stream, group);
        }
        // A bad chunk of the new line may be just this one.
        self.streams[stream].room.has(position).then_some((stream, position))
    }

    /// True when a unit of the host takes no room that GC will need.
    #[inline]
    pub(super) fn host_may_go_on(&self, pool: usize, moving: u32) -> bool {
        let p = &self.pools[pool];
        let opens = self.streams[p.spec.host].left == 0;
        let shared = p.spec.own == p.spec.host;
        match opens || shared && p.spec.into == pool {
            true => (!opens || p.free_lines > 0) && self.host_may_take(pool, moving),
            false => true,
        }
    }

    /// The host may open another line beside those that it has open.
    fn host_may_open(&self, pool: usize, moving: u32) -> bool {
        self.pools[pool].free_lines > 0 && self.host_may_take(pool, moving)
    }

    fn host_may_take(&self, pool: usize, moving: u32) -> bool {
        let goes = self.pools[pool].spec.into != pool || mutant!("kit.host-takes-all");
        goes || self.leaves_room(pool, moving)
    }

    /// What the host takes next leaves GC a line, and the reserve.
    fn leaves_room(&self, pool: usize, moving: u32) -> bool {
        let p = &self.pools[pool];
        let takes = if p.spec.own == p.spec.host { p.unit } else { p.line_sectors };
        self.outlook(pool, moving) >= (takes + self.for_victims(pool) + p.reserve) as i64
            && self.leaves_barrier(pool, takes, moving)
    }

    /// Blocks that are on their way come behind a barrier: the host leaves room for that in what is free
    /// now. Lines over all PUs are few, and counted in the reserve.
    fn leaves_barrier(&self, pool: usize, takes: u32, moving: u32) -> bool {
        let p = &self.pools[pool];
        if p.reserve == 0 || p.abreast() == 1 || mutant!("kit.host-takes-what-barriers-need") {
            return true;
        }
        let now = self.streams[p.spec.own].left + p.free_lines * p.line_sectors;
        p.coming == 0 || i64::from(now) >= i64::from(takes + p.reserve) + self.owed(pool, moving)
    }

    /// What victims may need before any of them is free: a line, or one for each that is being read where
    /// lines lie abreast.
    fn for_victims(&self, pool: usize) -> u32 {
        let p = &self.pools[pool];
        let at_once = p.abreast() > 1 && !mutant!("kit.room-for-one-victim");
        let victims = if at_once { p.victims.len().max(1) as u32 } else { 1 };
        victims * p.line_sectors
    }

    /// True when the host's data has room that nobody needs.
    pub(super) fn host_has_room(&mut self, pool: usize, moving: u32) -> bool {
        let denied = !self.host_may_go_on(pool, moving);
        self.pools[pool].host_denied = denied;
        !denied
    }

    /// Sectors that GC can write to in a pool now, before anything is erased.
    pub(super) fn room_now(&self, pool: usize) -> u32 {
        let p = &self.pools[pool];
        let free: u32 = p.free.iter().flatten().map(|line| self.line(*line).promised).sum();
        self.streams[p.spec.own].left + free
    }

    /// Nothing more is programmed at this position of the line.
    pub(super) fn is_over(&self, stream: usize, line: u32, position: u32) -> bool {
        let s = &self.streams[stream];
        s.line_at(position) != line || !s.room.has(position)
    }

    /// May a unit be programmed at this position of the line now?
    pub(super) fn is_ready(&self, stream: usize, line: u32, position: u32) -> bool {
        !self.is_over(stream, line, position) && self.idle.has(position)
    }

    /// The stream that writes this line.
    pub(super) fn stream_of(&self, line: u32) -> Option<usize> {
        self.streams.iter().position(|s| s.lines.contains(&line))
    }

    /// Number of lines that wait for an erase.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// The barrier that covers all lines that wait for an erase.
    pub(super) fn barrier_wanted(&self) -> u64 {
        self.leaving.iter().map(|line| self.line(*line).safe_after).max().unwrap_or(0)
    }

    /// Some pool has no free line, and one over all PUs, or what makes one, that is to be erased: a
    /// single chunk is worth no barrier that pads chunks on all PUs.
    pub(super) fn is_short_of_lines(&self) -> bool {
        self.pools.iter().any(|p| p.free_lines == 0 && p.coming >= p.abreast())
    }

    /// GC's own stream; where failed chunks or a power cut have taken the room it counted on and no
    /// line is on its way, the host's.
    fn stream_for_gc(&self, pool: usize) -> Option<usize> {
        let p = &self.pools[pool];
        let PoolSpec { own, host, .. } = p.spec;
        if self.streams[own].left > 0 || p.free_lines > 0 {
            return Some(own);
        }
        ((p.coming == 0 || self.lend) && self.streams[host].left > 0).then_some(host)
    }

    /// Sectors that GC will have left to write to in a pool when all it has begun is done: its open
    /// line, the free lines, the victims and the lines to be erased, less what is still to be moved
    /// there.
    ///
    /// A victim of the pool adds more than it takes (it holds garbage), so GC never lowers this; only
    /// the host does, and victims of other pools. Both must leave a line: the most that the next
    /// victim can need before it is free.
    pub(super) fn outlook(&self, pool: usize, moving: u32) -> i64 {
        let p = &self.pools[pool];
        self.streams[p.spec.own].left as i64 + p.promised as i64 - self.owed(pool, moving)
    }

    /// Sectors that GC still moves into a pool: of its victims, and those that it has read.
    fn owed(&self, pool: usize, moving: u32) -> i64 {
        let valid = |line: &u32| i64::from(self.lines[*line as usize].valid);
        let into = self.pools.iter().filter(|other| other.spec.into == pool);
        into.flat_map(|other| &other.victims).map(valid).sum::<i64>() + i64::from(moving)
    }

    /// True when a victim of another pool may send so many sectors to this one.
    pub(super) fn can_take(&self, pool: usize, sectors: u32, moving: u32) -> bool {
        let p = &self.pools[pool];
        self.outlook(pool, moving) >= (sectors + p.line_sectors + p.reserve) as i64
    }

    /// True when GC has no room in an open line of the main pool and none to open or to come: only
    /// the death of chunks leads here.
    pub(super) fn is_out_of_room(&self) -> bool {
        let p = &self.pools[MAIN];
        let none_open = self.streams.iter().all(|s| s.pool != MAIN || s.left == 0);
        none_open && p.free_lines == 0 && p.coming == 0
    }

    /// No line of the main pool is on its way from closed to free.
    pub(super) fn reclaims_nothing(&self) -> bool {
        let p = &self.pools[MAIN];
        p.victims.is_empty() && p.coming == 0
    }

    /// Makes a closed line the victim.
    pub(super) fn take_victim(&mut self, line: u32) {
        let region = self.layout.of(line);
        let (cs, pool) = (region.chunk_sectors, &mut self.pools[region.pool]);
        let l = &mut self.lines[line as usize];
        assert_eq!(l.state, LineState::Closed);
        l.state = LineState::Victim;
        l.promised = (l.chunks - l.suspects) * cs;
        pool.promised += l.promised as u64;
        pool.victims.push(line);
    }

    /// Opens the least-worn free line of a group of positions for stream `s`.
    fn open(&mut self, s: usize, group: usize) {
        let pool = &mut self.pools[self.streams[s].pool];
        let free = &mut pool.free[group];
        let least = (0..free.len())
            .min_by_key(|i| {
                let line = free[*i];
                (self.lines[line as usize].erases, line)
            })
            .expect("the caller saw a free line");
        let line = free.swap_remove(least);
        pool.free_lines -= 1;
        self.opened += 1;
        let l = &mut self.lines[line as usize];
        assert_eq!(l.state, LineState::Free);
        l.state = LineState::Open;
        pool.promised -= std::mem::take(&mut l.promised) as u64;
        l.sequence = self.opened;
        let stream = &mut self.streams[s];
        stream.lines[group] = line;
        let full = self.layout.of(line).chunk_sectors;
        let before = stream.left;
        if self.lines[line as usize].chunks == 1 {
            let chunks = self.layout.positions_of(line).map(|p| self.layout.chunk_index(line, p));
            let differs = |at: usize| self.told[at] != self.tags[at];
            self.untold |= chunks.filter(|at| self.chunks[*at] & RETIRED == 0).any(differs);
        }
        // A line before may have had other positions: it has no room left anywhere.
        self.lines[line as usize].heard = false;
        for position in self.layout.positions_of(line) {
            self.chunks[self.layout.chunk_index(line, position)] &= !HEARD;
            let usable = self.chunks[self.layout.chunk_index(line, position)] & RETIRED == 0;
            stream.room.set(position, usable);
            stream.next[position as usize] = 0;
            stream.left += full * usable as u32;
        }
        assert!(stream.left > before, "a line without a good chunk is dead, not free");
    }

    /// Takes the next `want` sectors of a stream at a position, as [`Place::next`] named them, in
    /// whole grains, or as many as the unit has left. Returns (line, first sector of the chunk,
    /// sectors). The PU is busy until [`Place::landed`].
    pub(super) fn claim(&mut self, stream: usize, position: u32, want: u32) -> (u32, u32, u32) {
        let stream = &mut self.streams[stream];
        let (line, from) = (stream.line_at(position), stream.next[position as usize]);
        assert!(line != NIL, "a stream without a line has no position");
        let region = self.layout.of(line);
        assert!(from < region.chunk_sectors);
        let n = want.next_multiple_of(region.grain).min(region.unit - region.in_unit(from));
        stream.next[position as usize] = from + n;
        stream.cursor = (position + 1) % self.layout.positions;
        stream.left -= n;
        if from + n == region.chunk_sectors {
            stream.fill(position);
        }
        self.idle.set(position, false);
        let at = self.layout.chunk_index(line, position);
        self.chunks[at] |= WRITTEN;
        self.lines[line as usize].flying += 1;
        (line, from, n)
    }

    /// A program has ended; the PU is idle again and the line closes behind its last one. Returns
    /// whether it does.
    pub(super) fn landed(&mut self, line: u32, position: u32) -> bool {
        self.idle.set(position, true);
        let open = self.streams.iter().any(|s| s.line_at(position) == line);
        let l = &mut self.lines[line as usize];
        l.flying -= 1;
        let closes = l.flying == 0 && !open;
        if closes {
            assert_eq!(l.state, LineState::Open);
            l.state = LineState::Closed;
            if !l.heard {
                self.untold |= self.is_unheard_untold(self.layout.chunks_of(line));
            }
        }
        closes
    }

    /// A program in this chunk failed with `status`: its next erase retires it. Returns whether it
    /// is over at once. It is when the device closed it (F1h) or the die is dead; after F0h it is
    /// written on behind the failed unit, as one may: there is no other way to close it, and an
    /// open chunk can't be erased on every device. With `abandon` it is left as it is, to be filled
    /// before its erase. Called before [`Place::landed`].
    pub(super) fn program_failed(
        &mut self,
        line: u32,
        position: u32,
        status: Status,
        abandon: bool,
    ) -> bool {
        let region = self.layout.of(line);
        let full = region.chunk_sectors;
        let at = self.layout.chunk_index(line, position);
        if self.chunks[at] & SUSPECT == 0 {
            self.chunks[at] |= SUSPECT;
            self.untold = true;
            self.lines[line as usize].suspects += 1;
            self.pools[region.pool].good -= full as u64;
        }
        let open = status == Status::WriteNextUnit;
        if open && !abandon {
            return false;
        }
        self.chunks[at] |= if open { UNFINISHED } else { 0 };
        if let Some(stream) = self.streams.iter_mut().find(|s| s.line_at(position) == line) {
            stream.left -= full - stream.next[position as usize];
            stream.next[position as usize] = full;
            stream.fill(position);
        }
        true
    }

    /// The closed line of a pool that costs least: fewest valid sectors, as a share of what it will
    /// hold after its erase, so that a line with bad chunks is not taken for a cheap one. The oldest
    /// among equals.
    pub(super) fn greediest(&self, pool: usize) -> Option<u32> {
        // (valid, good sectors, sequence, line)
        let mut best: Option<(u32, u32, u64, u32)> = None;
        for region in self.layout.regions.iter().filter(|r| r.pool == pool) {
            for line in region.lines.clone() {
                let l = &self.lines[line as usize];
                if l.state != LineState::Closed {
                    continue;
                }
                let good = (l.chunks - l.suspects) * region.chunk_sectors;
                if l.valid >= good && self.pools[pool].spec.into == pool {
                    continue;
                }
                let better = best.is_none_or(|(valid, of, sequence, _)| {
                    let (ours, theirs) = (l.valid as u64 * of as u64, valid as u64 * good as u64);
                    ours < theirs || (ours == theirs && l.sequence < sequence)
                });
                if better {
                    best = Some((l.valid, good, l.sequence, line));
                }
            }
        }
        best.map(|(.., line)| line)
    }

    /// All live sectors of a victim have left: it may be erased when barrier `safe_after` has ended.
    pub(super) fn leave(&mut self, line: u32, safe_after: u64) {
        let pool = self.pool_of(line);
        let l = &mut self.lines[line as usize];
        assert_eq!(l.valid, 0, "line {line} is to be erased with live sectors");
        l.safe_after = safe_after;
        l.state = LineState::Leaving;
        self.pools[pool].victims.retain(|v| *v != line);
        self.leaving.push_back(line);
    }

    /// A line that was to be erased now waits for barrier `safe_after`.
    pub(super) fn leave_later(&mut self, line: u32, safe_after: u64) {
        self.lines[line as usize].safe_after = safe_after;
        self.leaving.push_back(line);
    }

    /// Some line may be erased after `barrier`, as soon as nobody reads it.
    pub(super) fn has_erase(&self, barrier: u64) -> bool {
        self.leaving.iter().any(|line| self.line(*line).safe_after <= barrier)
    }

    /// The same of a pool, or it is being erased.
    pub(super) fn has_erase_of(&self, pool: usize, barrier: u64) -> bool {
        let mut lines = self.layout.lines_of(pool).map(|line| self.line(line));
        lines.any(|l| l.state == LineState::Leaving && l.safe_after <= barrier)
    }

    /// Takes the oldest leaving line that nobody reads, and nobody needs after `barrier`.
    pub(super) fn next_erase(&mut self, barrier: u64) -> Option<u32> {
        let free = |line: &u32| {
            let l = &self.lines[*line as usize];
            let idle = l.readers == 0 || mutant!("kit.erase-under-readers");
            idle && l.safe_after <= barrier
        };
        let at = self.leaving.iter().position(free)?;
        self.leaving.remove(at)
    }

    /// Positions of `line` whose chunk has all of these flags and none of those.
    fn flagged(&self, line: u32, with: u8, without: u8) -> Vec<u32> {
        let flags = |p: &u32| self.chunks[self.layout.chunk_index(line, *p)];
        let positions = self.layout.positions_of(line);
        positions.filter(|p| flags(p) & with == with && flags(p) & without == 0).collect()
    }

    /// Positions whose chunk in `line` has to be erased.
    pub(super) fn to_erase(&self, line: u32) -> Vec<u32> {
        self.flagged(line, WRITTEN, RETIRED)
    }

    /// Positions whose chunk in `line` has to be filled first.
    pub(super) fn unfinished(&self, line: u32) -> Vec<u32> {
        self.flagged(line, UNFINISHED, 0)
    }

    /// The chunks of `line` were erased; those at `failed` positions could not be. Where one has
    /// become bad the line is used again behind barrier `safe_after`, which notes that: else a
    /// mount would miss what was in that chunk as soon as the others hold something new.
    pub(super) fn erased(&mut self, line: u32, erased: &[u32], failed: &[u32], safe_after: u64) {
        let (full, pool) = (self.layout.of(line).chunk_sectors, self.pool_of(line));
        for position in erased {
            let at = self.layout.chunk_index(line, *position);
            let suspect = self.chunks[at] & SUSPECT != 0;
            let bad = suspect && !mutant!("kit.suspect-used-again") || failed.contains(position);
            self.chunks[at] = if bad { RETIRED } else { 0 };
            self.retired += bad as u64;
            self.stock_changed |= bad;
            self.pools[pool].good -= (bad && !suspect) as u64 * full as u64;
            self.lines[line as usize].chunks -= bad as u32;
        }
        let bad = erased.iter().any(|p| self.is_retired(line, *p));
        let (l, pool) = (&mut self.lines[line as usize], &mut self.pools[pool]);
        l.suspects = 0;
        l.erases += erased.len() as u64;
        let good = l.chunks * full;
        pool.promised = pool.promised - l.promised as u64 + good as u64;
        l.promised = good;
        if bad && l.chunks > 0 && safe_after > 0 && !mutant!("kit.used-before-noted") {
            l.safe_after = safe_after;
            self.leaving.push_back(line);
            return;
        }
        pool.coming -= 1;
        if l.chunks == 0 {
            l.state = LineState::Dead;
        } else {
            l.state = LineState::Free;
            let first = self.layout.positions_of(line).start;
            pool.put(line, first);
        }
    }

    /// Nothing waits for an erase, and none is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.pools.iter().all(|p| p.coming == 0)
    }

    /// Erases of the least and of the most worn line of a pool, averaged over its chunks.
    pub(super) fn wear(&self, pool: usize) -> (u64, u64) {
        let per_line = || {
            let of = self.layout.lines_of(pool);
            of.map(|line| self.line(line).erases / self.layout.of(line).width as u64)
        };
        (per_line().min().unwrap_or(0), per_line().max().unwrap_or(0))
    }
}
