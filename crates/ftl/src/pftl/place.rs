//! Where data goes: lines, the open line of each stream, idle PUs, wear.
//!
//! Owns: the state of every line and chunk, the stripe order, the free lines. Promises: units of a
//! chunk are handed out in the order of its write pointer, each once; a PU is given one unit at a
//! time; the host gets no room that GC needs to finish what it has begun and to take one more
//! victim ([`Place::outlook`]); a line is Closed only when no program in it is in flight. Never:
//! touches content or the map.
//!
//! A line is the chunk of one number on every PU (a superblock). Its sectors are numbered in stripe
//! order: unit by unit over the channels first, then over the PUs of a channel, then up the chunk,
//! so a sequential write reaches every channel before it reaches a second die of one ("PFTL stripes
//! updates over different channels in a page size unit", ParaFS 4.1; our unit is `ws_opt`, a page
//! in each plane). A unit goes to the next *idle* PU in that order: a slow die is overtaken and
//! catches up before the line ends.
//!
//! Host data and data moved by GC go to open lines of their own, so that what survives a victim is
//! not mixed with what is new (one stream where the device allows one open chunk per PU). A free
//! line is chosen by fewest erases, the lowest number among equals: dynamic wear leveling.

use flashlane_base::mutant;
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Status};
use std::collections::{BTreeSet, VecDeque};

use super::buffer::{Kind, NIL};

mod layout;
mod spare;
pub(super) use layout::Layout;
pub(super) use spare::OpenChunk;

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

/// The open line of a stream.
#[derive(Clone, Debug)]
struct Stream {
    line: u32,
    /// Positions whose chunk has units left.
    room: Bits,
    /// Next unit per position.
    row: Vec<u32>,
    /// Position after the one used last.
    cursor: u32,
    units_left: u32,
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
    /// Flags per line × position.
    chunks: Vec<u8>,
    free: Vec<u32>,
    streams: Vec<Stream>,
    idle: Bits,
    /// Lines to be erased, oldest first.
    leaving: VecDeque<u32>,
    /// Lines on their way from victim to free: all live sectors found, not yet erased.
    pub(super) coming: u32,
    /// Lines of which GC moves live sectors out.
    victims: Vec<u32>,
    /// Good sectors of lines that are free, victims, or leaving.
    promised: u64,
    /// The last unit of the host found no room that GC can spare.
    pub(super) host_denied: bool,
    /// Chunks that are neither retired nor suspect.
    good_chunks: u64,
    retired: u64,
    opened: u64,
    /// Sectors beyond a line that the host leaves to GC.
    reserve: u32,
    /// A barrier is under way: what it waits for may go to the host's line, because the lines that
    /// are on their way wait for it.
    pub(super) lend: bool,
}

impl Place {
    /// Takes stock of a blank device: `report` gives the chunks of a PU. `open_limits` as in the
    /// traits: device, per PU, 0 for none; at least one open chunk per PU is needed. The error is
    /// the number of chunks that are not blank.
    pub(super) fn new(
        layout: Layout,
        open_limits: (u32, u32),
        report: impl Fn(u32) -> Vec<ChunkInfo>,
    ) -> Result<Place, u64> {
        let mut place = Place::empty(layout, open_limits);
        let pus: Vec<u32> = (0..place.layout.positions).map(|p| place.layout.pu(p)).collect();
        match place.take_stock(|position| report(pus[position as usize])) {
            0 => Ok(place),
            used => Err(used),
        }
    }

    /// The host leaves so many sectors to GC, beyond a line.
    pub(super) fn set_reserve(&mut self, sectors: u32) {
        self.reserve = sectors;
    }

    fn empty(layout: Layout, open_limits: (u32, u32)) -> Place {
        let unlimited = |n: u32| if n == 0 { u32::MAX } else { n };
        let positions = layout.positions;
        let two = unlimited(open_limits.0) >= 2 * positions && unlimited(open_limits.1) >= 2;
        let stream = Stream {
            line: NIL,
            room: Bits::new(positions),
            row: vec![0; positions as usize],
            cursor: 0,
            units_left: 0,
        };
        Place {
            lines: Vec::new(),
            chunks: vec![0; (layout.lines * positions) as usize],
            free: Vec::new(),
            streams: vec![stream; if two { 2 } else { 1 }],
            idle: Bits::new(positions),
            leaving: VecDeque::new(),
            coming: 0,
            victims: Vec::new(),
            promised: 0,
            host_denied: false,
            good_chunks: 0,
            retired: 0,
            opened: 0,
            reserve: 0,
            lend: false,
            layout,
        }
    }

    /// Takes over what is on the device. Lines that were open are written on, as many as there are
    /// streams; where nobody knows which they were, those with open chunks. GC gets the one with
    /// most room: all that it needs to go on may be there.
    pub(super) fn adopt(layout: Layout, open_limits: (u32, u32), stock: Stock<'_>) -> Place {
        let mut place = Place::empty(layout, open_limits);
        let positions = place.layout.positions;
        let chunk =
            |line: u32, position: u32| &stock.chunks[(line * positions + position) as usize];
        let lines = place.layout.lines;
        place.take_stock(|position| (0..lines).map(|line| *chunk(line, position)).collect());
        let mut order: Vec<u32> = (0..lines).collect();
        order.sort_by_key(|line| stock.stamps[*line as usize]);
        let mut open = Vec::new();
        for line in order {
            let chunks = (0..positions).map(|p| chunk(line, p));
            if place.line(line).chunks == 0 || !place.mark_written(line, chunks) {
                continue;
            }
            place.opened += 1;
            let sequence = place.opened;
            place.free.retain(|free| *free != line);
            let l = &mut place.lines[line as usize];
            (l.state, l.sequence) = (LineState::Closed, sequence);
            place.promised -= std::mem::take(&mut l.promised) as u64;
            if stock.leaving.is_some_and(|leaving| leaving.contains(&line)) {
                place.await_erase(line);
                continue;
            }
            let any_open = || (0..positions).any(|p| chunk(line, p).state == ChunkState::Open);
            if stock.open.map_or_else(any_open, |open| open.contains(&line)) {
                open.push(line);
            }
        }
        place.resume(open, chunk);
        place
    }

    /// Notes what is written in a line, and which chunks failed. False if nothing is.
    fn mark_written<'a>(&mut self, line: u32, chunks: impl Iterator<Item = &'a ChunkInfo>) -> bool {
        let mut any = false;
        for (position, info) in (0u32..).zip(chunks) {
            let at = self.chunk_index(line, position);
            if info.state == ChunkState::Free || self.chunks[at] & RETIRED != 0 {
                continue;
            }
            any = true;
            self.chunks[at] |= WRITTEN;
            let early =
                info.state == ChunkState::Closed && info.write_pointer < self.layout.chunk_sectors;
            if early && !mutant!("pftl.suspect-forgotten") {
                self.chunks[at] |= SUSPECT;
                self.lines[line as usize].suspects += 1;
                self.good_chunks -= 1;
            }
            if info.state == ChunkState::Open {
                self.chunks[at] |= UNFINISHED;
            }
        }
        any
    }

    /// A line that nobody needs waits for its erase.
    fn await_erase(&mut self, line: u32) {
        let l = &mut self.lines[line as usize];
        l.state = LineState::Leaving;
        l.promised = (l.chunks - l.suspects) * self.layout.chunk_sectors;
        self.promised += l.promised as u64;
        self.coming += 1;
        self.leaving.push_back(line);
    }

    /// Closed lines without anything valid wait for their erase.
    pub(super) fn erase_empty_lines(&mut self) {
        let empty = self.lines().filter(|(_, l)| l.state == LineState::Closed && l.valid == 0);
        let empty: Vec<u32> = empty.map(|(line, _)| line).collect();
        empty.into_iter().for_each(|line| self.await_erase(line));
    }

    /// Streams go on in those of these lines that have most room.
    fn resume<'a>(&mut self, open: Vec<u32>, chunk: impl Fn(u32, u32) -> &'a ChunkInfo) {
        let (positions, unit, rows) = (self.layout.positions, self.layout.unit, self.layout.rows);
        let row_of = |info: &ChunkInfo| match info.state {
            ChunkState::Free | ChunkState::Open => info.write_pointer.div_ceil(unit),
            ChunkState::Closed | ChunkState::Offline => rows,
        };
        let room = |line: u32| (0..positions).map(|p| rows - row_of(chunk(line, p))).sum::<u32>();
        let mut open: Vec<(u32, u32)> = open.into_iter().map(|line| (room(line), line)).collect();
        open.retain(|(room, _)| *room > 0);
        open.sort_by_key(|(room, line)| (std::cmp::Reverse(*room), *line));
        for (s, (units_left, line)) in (0..self.streams.len()).rev().zip(open) {
            let l = &mut self.lines[line as usize];
            l.state = LineState::Open;
            for position in 0..positions {
                let at = self.chunk_index(line, position);
                self.chunks[at] &= !UNFINISHED;
                let row = row_of(chunk(line, position));
                self.streams[s].row[position as usize] = row;
                self.streams[s].room.set(position, row < rows);
            }
            (self.streams[s].line, self.streams[s].units_left) = (line, units_left);
        }
    }

    /// Counts chunks, `report` gives those of a position. Returns how many are not blank.
    fn take_stock(&mut self, report: impl Fn(u32) -> Vec<ChunkInfo>) -> u64 {
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
        };
        self.lines = vec![blank; self.layout.lines as usize];
        let mut used = 0;
        for position in 0..self.layout.positions {
            self.idle.set(position, true);
            for (line, info) in (0u32..).zip(report(position)) {
                self.lines[line as usize].erases += info.erases as u64;
                if info.state == ChunkState::Offline {
                    let at = self.chunk_index(line, position);
                    self.chunks[at] = RETIRED;
                    self.retired += 1;
                    continue;
                }
                let native = info.length == self.layout.chunk_sectors;
                used += (info.state != ChunkState::Free || !native) as u64;
                self.lines[line as usize].chunks += 1;
                self.good_chunks += 1;
            }
        }
        for (line, l) in (0u32..).zip(&mut self.lines) {
            if l.chunks > 0 {
                l.state = LineState::Free;
                l.promised = l.chunks * self.layout.chunk_sectors;
                self.promised += l.promised as u64;
                self.free.push(line);
            }
        }
        used
    }

    #[inline]
    fn chunk_index(&self, line: u32, position: u32) -> usize {
        (line * self.layout.positions + position) as usize
    }

    fn flags_of(&self, line: u32) -> &[u8] {
        let from = self.chunk_index(line, 0);
        &self.chunks[from..from + self.layout.positions as usize]
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

    pub(super) fn free_lines(&self) -> u32 {
        self.free.len() as u32
    }

    /// Is this chunk bad?
    pub(super) fn is_retired(&self, line: u32, position: u32) -> bool {
        self.chunks[self.chunk_index(line, position)] & RETIRED != 0
    }

    pub(super) fn retired(&self) -> u64 {
        self.retired
    }

    /// Sectors of all good chunks.
    pub(super) fn usable(&self) -> u64 {
        self.good_chunks * self.layout.chunk_sectors as u64
    }

    /// True when the good chunks hold `capacity` and what GC needs to keep going.
    pub(super) fn has_spare_for(&self, capacity: u64) -> bool {
        let unit_each = (self.layout.positions * self.layout.unit + self.reserve) as u64;
        self.usable() >= capacity + SPARE_LINES_STOP * self.layout.line_sectors as u64 + unit_each
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

    /// Where the next unit of `kind` goes: a stream, and an idle position with room in its open
    /// line, which is opened here if need be. `None`: wait for a program, or for a free line.
    /// `moving` sectors of GC wait for a place.
    pub(super) fn next(&mut self, kind: Kind, moving: u32) -> Option<(usize, u32)> {
        let stream = match kind {
            Kind::User => {
                self.host_denied = !self.host_may_go_on(moving);
                (!self.host_denied).then_some(0)?
            }
            Kind::Gc => self.stream_for_gc()?,
        };
        if self.streams[stream].line == NIL {
            self.open(stream);
        }
        let s = &self.streams[stream];
        let position = self.idle.next_common(&s.room, s.cursor)?;
        Some((stream, position))
    }

    /// True when a unit of the host takes no room that GC will need.
    #[inline]
    pub(super) fn host_may_go_on(&self, moving: u32) -> bool {
        let shared = self.streams.len() == 1;
        let opens = self.streams[0].line == NIL;
        if !shared && !opens || mutant!("pftl.host-takes-all") {
            return !opens || !self.free.is_empty();
        }
        if opens && self.free.is_empty() {
            return false;
        }
        let line = self.layout.line_sectors;
        let takes = if shared { self.layout.unit } else { line };
        self.outlook(moving) >= (takes + line + self.reserve) as i64
    }

    /// True when the host's data has room that nobody needs.
    pub(super) fn host_has_room(&mut self, moving: u32) -> bool {
        self.host_denied = !self.host_may_go_on(moving);
        !self.host_denied
    }

    /// Sectors that GC can write to now, before anything is erased.
    pub(super) fn room_now(&self) -> u32 {
        let own = &self.streams[self.streams.len() - 1];
        let free: u32 = self.free.iter().map(|line| self.line(*line).promised).sum();
        own.units_left * self.layout.unit + free
    }

    /// Nothing more is programmed at this position of the line.
    pub(super) fn is_over(&self, stream: usize, line: u32, position: u32) -> bool {
        let s = &self.streams[stream];
        s.line != line || !s.room.has(position)
    }

    /// May a unit be programmed at this position of the line now?
    pub(super) fn is_ready(&self, stream: usize, line: u32, position: u32) -> bool {
        !self.is_over(stream, line, position) && self.idle.has(position)
    }

    /// The stream that writes this line.
    pub(super) fn stream_of(&self, line: u32) -> Option<usize> {
        self.streams.iter().position(|s| s.line == line)
    }

    /// Number of lines that wait for an erase.
    pub(super) fn leaving(&self) -> usize {
        self.leaving.len()
    }

    /// The barrier that covers all lines that wait for an erase.
    pub(super) fn barrier_wanted(&self) -> u64 {
        self.leaving.iter().map(|line| self.line(*line).safe_after).max().unwrap_or(0)
    }

    /// GC's own stream; where failed chunks or a power cut have taken the room it counted on and no
    /// line is on its way, the host's.
    fn stream_for_gc(&self) -> Option<usize> {
        let own = self.streams.len() - 1;
        if self.streams[own].line != NIL || !self.free.is_empty() {
            return Some(own);
        }
        ((self.coming == 0 || self.lend) && self.streams[0].line != NIL).then_some(0)
    }

    /// Sectors that GC will have left to write to when all it has begun is done: its open line, the
    /// free lines, the victims and the lines to be erased, less what is still to be moved.
    ///
    /// A victim adds more than it takes (it holds garbage), so GC never lowers this; only the host
    /// does, and it must leave a line: the most that the next victim can need before it is free.
    fn outlook(&self, moving: u32) -> i64 {
        let own = &self.streams[self.streams.len() - 1];
        let open = own.units_left as i64 * self.layout.unit as i64;
        let valid = |line: &u32| self.lines[*line as usize].valid as i64;
        let to_move: i64 = self.victims.iter().map(valid).sum();
        open + self.promised as i64 - to_move - moving as i64
    }

    /// True when GC has no room in an open line and none to open or to come: only the death of
    /// chunks leads here.
    pub(super) fn is_out_of_room(&self) -> bool {
        let none_open = self.streams.iter().all(|s| s.line == NIL);
        none_open && self.free.is_empty() && self.coming == 0
    }

    pub(super) fn reclaims_nothing(&self) -> bool {
        self.victims.is_empty() && self.coming == 0
    }

    /// Makes a closed line the victim.
    pub(super) fn take_victim(&mut self, line: u32) {
        let cs = self.layout.chunk_sectors;
        let l = &mut self.lines[line as usize];
        assert_eq!(l.state, LineState::Closed);
        l.state = LineState::Victim;
        l.promised = (l.chunks - l.suspects) * cs;
        self.promised += l.promised as u64;
        self.victims.push(line);
    }

    /// Opens the least-worn free line for stream `s`.
    fn open(&mut self, s: usize) {
        let least = (0..self.free.len())
            .min_by_key(|i| {
                let line = self.free[*i];
                (self.lines[line as usize].erases, line)
            })
            .expect("the caller saw a free line");
        let line = self.free.swap_remove(least);
        self.opened += 1;
        let l = &mut self.lines[line as usize];
        assert_eq!(l.state, LineState::Free);
        l.state = LineState::Open;
        self.promised -= std::mem::take(&mut l.promised) as u64;
        l.sequence = self.opened;
        let from = self.chunk_index(line, 0);
        let stream = &mut self.streams[s];
        stream.line = line;
        stream.units_left = 0;
        for position in 0..self.layout.positions {
            let usable = self.chunks[from + position as usize] & RETIRED == 0;
            stream.room.set(position, usable);
            stream.row[position as usize] = 0;
            stream.units_left += self.layout.rows * usable as u32;
        }
        assert!(stream.units_left > 0, "a line without a good chunk is dead, not free");
    }

    /// Takes the next unit of a stream at a position, as [`Place::next`] named them. Returns
    /// (line, row). The PU is busy until [`Place::landed`].
    pub(super) fn claim(&mut self, stream: usize, position: u32) -> (u32, u32) {
        let stream = &mut self.streams[stream];
        let (line, row) = (stream.line, stream.row[position as usize]);
        assert!(line != NIL && row < self.layout.rows);
        stream.row[position as usize] = row + 1;
        stream.cursor = (position + 1) % self.layout.positions;
        stream.units_left -= 1;
        if row + 1 == self.layout.rows {
            stream.room.set(position, false);
        }
        if stream.units_left == 0 {
            stream.line = NIL;
        }
        self.idle.set(position, false);
        let at = self.chunk_index(line, position);
        self.chunks[at] |= WRITTEN;
        self.lines[line as usize].flying += 1;
        (line, row)
    }

    /// A program has ended; the PU is idle again and the line closes behind its last one.
    pub(super) fn landed(&mut self, line: u32, position: u32) {
        self.idle.set(position, true);
        let open = self.streams.iter().any(|s| s.line == line);
        let l = &mut self.lines[line as usize];
        l.flying -= 1;
        if l.flying == 0 && !open {
            assert_eq!(l.state, LineState::Open);
            l.state = LineState::Closed;
        }
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
        let at = self.chunk_index(line, position);
        if self.chunks[at] & SUSPECT == 0 {
            self.chunks[at] |= SUSPECT;
            self.lines[line as usize].suspects += 1;
            self.good_chunks -= 1;
        }
        let open = status == Status::WriteNextUnit;
        if open && !abandon {
            return false;
        }
        self.chunks[at] |= if open { UNFINISHED } else { 0 };
        let rows = self.layout.rows;
        if let Some(stream) = self.streams.iter_mut().find(|s| s.line == line) {
            stream.units_left -= rows - stream.row[position as usize];
            stream.row[position as usize] = rows;
            stream.room.set(position, false);
            if stream.units_left == 0 {
                stream.line = NIL;
            }
        }
        true
    }

    /// The closed line that costs least: fewest valid sectors, as a share of what it will hold
    /// after its erase, so that a line with bad chunks is not taken for a cheap one. The oldest
    /// among equals.
    pub(super) fn greediest(&self) -> Option<u32> {
        // (valid, good sectors, sequence, line)
        let mut best: Option<(u32, u32, u64, u32)> = None;
        for (line, l) in self.lines() {
            if l.state != LineState::Closed {
                continue;
            }
            let good = (l.chunks - l.suspects) * self.layout.chunk_sectors;
            if l.valid >= good {
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
        best.map(|(.., line)| line)
    }

    /// All live sectors of a victim have left: it may be erased when barrier `safe_after` has ended.
    pub(super) fn leave(&mut self, line: u32, safe_after: u64) {
        let l = &mut self.lines[line as usize];
        assert_eq!(l.valid, 0, "line {line} is to be erased with live sectors");
        l.safe_after = safe_after;
        l.state = LineState::Leaving;
        self.victims.retain(|v| *v != line);
        self.leaving.push_back(line);
    }

    /// Some line may be erased after `barrier`, as soon as nobody reads it.
    pub(super) fn has_erase(&self, barrier: u64) -> bool {
        self.leaving.iter().any(|line| self.line(*line).safe_after <= barrier)
    }

    /// Takes the oldest leaving line that nobody reads, and nobody needs after `barrier`.
    pub(super) fn next_erase(&mut self, barrier: u64) -> Option<u32> {
        let free = |line: &u32| {
            let l = &self.lines[*line as usize];
            let idle = l.readers == 0 || mutant!("pftl.erase-under-readers");
            idle && l.safe_after <= barrier
        };
        let at = self.leaving.iter().position(free)?;
        self.leaving.remove(at)
    }

    /// Positions whose chunk in `line` has to be erased.
    pub(super) fn to_erase(&self, line: u32) -> Vec<u32> {
        let needs = |f: &u8| f & RETIRED == 0 && f & WRITTEN != 0;
        let flags = (0u32..).zip(self.flags_of(line));
        flags.filter(|(_, f)| needs(f)).map(|(p, _)| p).collect()
    }

    /// Positions whose chunk in `line` has to be filled first.
    pub(super) fn unfinished(&self, line: u32) -> Vec<u32> {
        let flags = (0u32..).zip(self.flags_of(line));
        flags.filter(|(_, f)| **f & UNFINISHED != 0).map(|(p, _)| p).collect()
    }

    /// The chunks of `line` were erased; those at `failed` positions could not be.
    pub(super) fn erased(&mut self, line: u32, erased: &[u32], failed: &[u32]) {
        for position in erased {
            let at = self.chunk_index(line, *position);
            let suspect = self.chunks[at] & SUSPECT != 0;
            let bad = suspect && !mutant!("pftl.suspect-used-again") || failed.contains(position);
            self.chunks[at] = if bad { RETIRED } else { 0 };
            self.retired += bad as u64;
            self.good_chunks -= (bad && !suspect) as u64;
            self.lines[line as usize].chunks -= bad as u32;
        }
        let l = &mut self.lines[line as usize];
        l.suspects = 0;
        l.erases += erased.len() as u64;
        self.coming -= 1;
        let good = l.chunks * self.layout.chunk_sectors;
        self.promised = self.promised - l.promised as u64 + good as u64;
        l.promised = good;
        if l.chunks == 0 {
            l.state = LineState::Dead;
        } else {
            l.state = LineState::Free;
            self.free.push(line);
        }
    }

    /// Nothing waits for an erase, and none is under way.
    pub(super) fn is_settled(&self) -> bool {
        self.coming == 0
    }

    /// Erases of the least and of the most worn line, averaged over its chunks.
    pub(super) fn wear(&self) -> (u64, u64) {
        let each = self.layout.positions as u64;
        let per_line = || self.lines.iter().map(|l| l.erases / each);
        (per_line().min().unwrap_or(0), per_line().max().unwrap_or(0))
    }
}
