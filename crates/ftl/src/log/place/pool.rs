//! Lines and chunks: what is free, what is open, where the next unit goes.
//!
//! Owns: of the PUs of one pool (pblk: all there are, QBLK: a channel's) the free chunks, the state of
//! every line, the open lines with their write positions and read-back windows, the choice of PUs under
//! `active_pus`. Which pool a chunk or line belongs to is known to [`crate::log::pools`].
//! Promises: a chunk is in one place only (free list, a line, the log, a checkpoint, retired); a
//! position is given out once, in the order of the chunk; metadata keeps its reserved chunks.
//! Never: talks to the medium (that is `open`, `drain` and `gc`).

use crate::log::close::{OpenPair, PairStep};
use crate::log::format::{
    LBA_LIMIT, LBA_NONE, PACKED_BYTES, Record, closing_sectors, pack_entry, unpack_entry,
};
use crate::log::scrub::Decay;
use crate::log::unit::{Released, UNITS_INLINE, Unit};
use flashlane_base::{OOB_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::sync::{AtomicU64, Ordering};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// A line's life. Transitions are methods of [`PoolState`] that assert the state they leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LineState {
    /// The line id is not in use.
    Free,
    /// Chunks chosen, being erased, first metadata not yet written.
    Opening,
    /// Takes data.
    Open,
    /// No room for data; its closing metadata is being written.
    Closing,
    /// Full: a candidate for garbage collection.
    Closed,
    /// GC moves its live sectors.
    Victim,
    /// Nothing live; waits for the erase barrier.
    Freeing,
}

/// Where closing metadata lies: (chunk of the target, first sector, sectors).
pub(in crate::log) type Place = (u32, u32, u32);

pub(in crate::log) struct Line {
    pub(in crate::log) state: LineState,
    pub(in crate::log) sequence: u64,
    /// Its chunks from the moment on at which `opened` is in the log, durable or not.
    pub(in crate::log) chunks: Vec<u32>,
    pub(in crate::log) closing: Vec<Place>,
    /// A program failed in it: collected first, its failed chunks retired.
    pub(in crate::log) failed: bool,
    pub(in crate::log) retire: Vec<u32>,
    /// `closed` is in the log, durable or not: not before what its failed chunks held is programmed
    /// elsewhere, since its closing metadata does not name that.
    pub(in crate::log) logged: bool,
    /// `freed` is in the log, durable or not.
    pub(in crate::log) gone: bool,
    /// How far its chunks had been written when a recovery found it open; empty if none did.
    pub(in crate::log) frontier: Vec<u32>,
    /// Erases of its chunks when it was opened, summed.
    pub(in crate::log) wear: u64,
    /// What reads of it met.
    pub(in crate::log) decay: Decay,
    /// Entries of a closed line that the log does not call closed yet. Empty unless flushes tell
    /// what they have programmed.
    pub(in crate::log) unlogged: Entries,
    pub(in crate::log) open: Option<Box<OpenLine>>,
}

impl Line {
    /// Closed, and the log does not say so yet.
    pub(in crate::log) fn is_unlogged(&self) -> bool {
        self.state == LineState::Closed && !self.logged
    }

    const FREE: Line = Line {
        state: LineState::Free,
        sequence: 0,
        chunks: Vec::new(),
        closing: Vec::new(),
        failed: false,
        retire: Vec::new(),
        logged: false,
        gone: false,
        frontier: Vec::new(),
        wear: 0,
        decay: Decay::NONE,
        unlogged: Vec::new(),
        open: None,
    };
}

/// (lba, stamp) of every sector of a line, in stripe order.
pub(in crate::log) type Entries = Vec<[u8; PACKED_BYTES]>;

/// Entries of an open line, and where each chunk goes on (`None`: nowhere).
pub(in crate::log) type OpenParts = (Entries, Vec<Option<u32>>);

/// A line as recovery found it.
pub(in crate::log) struct Restored {
    pub(in crate::log) sequence: u64,
    pub(in crate::log) chunks: Vec<u32>,
    pub(in crate::log) closing: Vec<Place>,
    /// Chunks that take nothing more.
    pub(in crate::log) retire: Vec<u32>,
    pub(in crate::log) frontier: Vec<u32>,
    /// Of an open line: its entries, and where each chunk goes on, if it does.
    pub(in crate::log) open: Option<OpenParts>,
}

/// A chunk of an open line.
pub(in crate::log) struct OpenChunk {
    pub(in crate::log) chunk: u32,
    pub(in crate::log) pu: u32,
    /// Next sector to give out, next sector to complete.
    pub(in crate::log) next: u32,
    pub(in crate::log) done: u32,
    /// Up to here the log tells what the chunk holds.
    told: u32,
    pub(in crate::log) alive: bool,
    /// Units that have ended before one in front of them, with their first sectors: where several
    /// programs of a PU are in flight, whoever submitted them may hear of them in any order.
    early: Vec<(u32, Option<Box<Unit>>)>,
    /// Programmed but not yet readable; none for a unit of padding or metadata.
    pub(in crate::log) window: VecDeque<Option<Box<Unit>>>,
    /// End of the first unit in `window`.
    pub(in crate::log) window_end: u32,
}

/// What an open line needs beyond a closed one.
pub(in crate::log) struct OpenLine {
    pub(in crate::log) chunks: Vec<OpenChunk>,
    pub(in crate::log) cursor: usize,
    /// Units not yet given out, over all living chunks.
    pub(in crate::log) remaining: u32,
    /// Units kept for the closing metadata.
    pub(in crate::log) closing: u32,
    /// Units given out whose end is not yet in the map: a line closes only without any.
    pub(in crate::log) in_flight: u32,
    /// (lba, stamp) of every sector in stripe order. The closing metadata will hold them, but for
    /// those in `left`.
    pub(in crate::log) entries: Entries,
    /// Indices of entries that the log may tell of and that the closing metadata leaves out: a
    /// program of their chunk failed, and they are written again elsewhere. Until then only the log
    /// says that they were durable.
    left: Vec<usize>,
    pub(in crate::log) causes: [u32; Cause::ALL.len()],
    /// Its closing metadata is being built.
    closing_began: bool,
}

impl OpenLine {
    fn new(shape: &Shape, chunks: Vec<OpenChunk>, entries: Entries) -> Box<OpenLine> {
        let alive = chunks.iter().filter(|c| c.alive);
        Box::new(OpenLine {
            cursor: 0,
            remaining: alive.map(|c| (shape.chunk_sectors - c.next) / shape.unit).sum(),
            closing: shape.closing_units(chunks.len() as u32),
            chunks,
            in_flight: 0,
            entries,
            left: Vec::new(),
            causes: [0; Cause::ALL.len()],
            closing_began: false,
        })
    }
}

/// A position for one unit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::log) struct Spot {
    pub(in crate::log) line: u32,
    /// Index of the chunk in the line.
    pub(in crate::log) at: usize,
    pub(in crate::log) chunk: u32,
    pub(in crate::log) pu: u32,
    pub(in crate::log) sector: u32,
}

/// The units of a line that the log is to tell.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::log) enum Tell {
    /// Units that have been programmed since the log told of this line last.
    New,
    /// All units that have been programmed: a checkpoint cuts the log that told of them.
    Again,
    /// The line is full: every unit that the log does not tell yet, padding and metadata included.
    Closing,
}

/// Chunks that are to take a data unit each.
pub(in crate::log) struct Chosen {
    pub(in crate::log) line: u32,
    pub(in crate::log) sequence: u64,
    /// (index of the chunk in the line, its PU).
    pub(in crate::log) chunks: SmallVec<[(usize, u32); UNITS_INLINE]>,
}

/// Fixed numbers of a target.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct Shape {
    pub(in crate::log) pus: u32,
    pub(in crate::log) channels: u32,
    /// Pools that the PUs are divided into, in their order: one, or one per channel.
    pub(in crate::log) pools: u32,
    pub(in crate::log) chunks_per_pu: u32,
    pub(in crate::log) chunk_sectors: u32,
    /// Sectors per write unit (ws_opt).
    pub(in crate::log) unit: u32,
    /// Sectors that must be complete behind a unit before it can be read.
    pub(in crate::log) window: u32,
    /// Sectors of a chunk that may be in flight behind a unit, and be programmed although it fails.
    pub(in crate::log) behind: u32,
    /// Sectors that are padded in a chunk to close its page pairs: the window with `pair_damage`, 0
    /// without.
    pub(in crate::log) pair_pads: u32,
}

impl Shape {
    pub(in crate::log) fn pool_pus(&self) -> u32 {
        self.pus / self.pools
    }

    /// Line ids of a pool: more than it can have lines.
    pub(in crate::log) fn pool_lines(&self) -> u32 {
        self.pool_pus() * self.chunks_per_pu
    }

    /// Chunks of a line when `active_pus` of the target's PUs take new data; 0 is all.
    pub(in crate::log) fn width(&self, active_pus: u32) -> u32 {
        match active_pus.div_ceil(self.pools) {
            0 => self.pool_pus(),
            some => some.min(self.pool_pus()),
        }
    }

    /// The `i`-th PU of a pool in placement order: channels first, so that few active PUs use all
    /// channels (golden example: 4 of 4 × 8 are PUs 0, 8, 16, 24, then 1, 9, 17, 25).
    fn pu_in_order(&self, i: u32) -> u32 {
        let channels = self.channels / self.pools;
        let per_channel = self.pool_pus() / channels;
        let (lun, channel) = (i / channels, i % channels);
        channel * per_channel + lun
    }

    /// Units of closing metadata in a line of `width` chunks.
    pub(in crate::log) fn closing_units(&self, width: u32) -> u32 {
        (closing_sectors((width * self.chunk_sectors) as usize) as u32).div_ceil(self.unit)
    }

    pub(in crate::log) fn first_units(&self, width: u32) -> u32 {
        (crate::log::format::LineFirst::sectors_needed(width as usize) as u32).div_ceil(self.unit)
    }

    /// Data sectors of a line of `width` chunks.
    pub(in crate::log) fn line_data(&self, width: u32) -> u64 {
        let units = width * (self.chunk_sectors / self.unit);
        let meta = self.closing_units(width) + self.first_units(width);
        units.saturating_sub(meta) as u64 * self.unit as u64
    }
}

/// Lines that may be closing at a time, the one that just became full included.
pub(in crate::log) const MOST_CLOSING: usize = 2;

pub(in crate::log) struct PoolState {
    pub(in crate::log) shape: Shape,
    /// Of the target's PUs, chunks and line ids, the first that are this pool's.
    first_pu: u32,
    first_chunk: u32,
    first_line: u32,
    /// Free chunks per PU in the order in which they are taken: (erases, chunk of the PU, needs an
    /// erase), with 0 for the erases where wear is not looked at.
    free: Vec<BinaryHeap<Reverse<(u32, u32, bool)>>>,
    free_total: u64,
    /// The least worn free chunk of a PU is taken first; else the one with the lowest number.
    least_worn_first: bool,
    /// Erases of each chunk since the device was new, and their sum.
    erases: Vec<u32>,
    erases_sum: u64,
    /// Free chunks that only the log and checkpoints may take.
    pub(in crate::log) meta_reserve: u64,
    lines: Vec<Line>,
    free_lines: Vec<u32>,
    pub(in crate::log) current: Option<u32>,
    pub(in crate::log) spare: Option<u32>,
    pub(in crate::log) opens: bool,
    /// Chunks of the next line, if so many PUs have a free one.
    width: u32,
    rotation: u32,
    /// Sequence of the next line, over all pools.
    next_sequence: Arc<AtomicU64>,
    /// Memory of the next open line's entries.
    spare_entries: Entries,
    /// Lines that hold data of which neither closing metadata nor `freed` speaks.
    unsaid: Vec<u32>,
    /// Chunks that are never used again.
    pub(in crate::log) retired_chunks: Vec<u32>,
    /// Programmed sectors by cause, and erases: counted where positions are given out.
    pub(in crate::log) programmed: [u64; Cause::ALL.len()],
    pub(in crate::log) erases_total: u64,
}

impl PoolState {
    /// The `pool`-th of a target's pools, whose lines have `width` chunks.
    pub(in crate::log) fn new(
        shape: Shape,
        pool: u32,
        width: u32,
        least_worn_first: bool,
        next_sequence: Arc<AtomicU64>,
    ) -> PoolState {
        let chunks = shape.pool_pus() * shape.chunks_per_pu;
        PoolState {
            shape,
            first_pu: pool * shape.pool_pus(),
            first_chunk: pool * chunks,
            first_line: pool * shape.pool_lines(),
            free: (0..shape.pool_pus()).map(|_| BinaryHeap::new()).collect(),
            free_total: 0,
            least_worn_first,
            erases: vec![0; chunks as usize],
            erases_sum: 0,
            meta_reserve: 0,
            lines: Vec::new(),
            free_lines: Vec::new(),
            current: None,
            spare: None,
            opens: true,
            width,
            rotation: 0,
            next_sequence,
            spare_entries: Vec::new(),
            unsaid: Vec::new(),
            retired_chunks: Vec::new(),
            programmed: [0; Cause::ALL.len()],
            erases_total: 0,
        }
    }

    pub(in crate::log) fn line(&self, id: u32) -> &Line {
        &self.lines[(id - self.first_line) as usize]
    }

    pub(in crate::log) fn line_mut(&mut self, id: u32) -> &mut Line {
        &mut self.lines[(id - self.first_line) as usize]
    }

    /// Every line with its id, those that are not in use, too.
    pub(in crate::log) fn lines(&self) -> impl Iterator<Item = (u32, &Line)> {
        (self.first_line..).zip(&self.lines)
    }

    /// How often a chunk was erased.
    fn erases(&self, chunk: u32) -> u32 {
        self.erases[(chunk - self.first_chunk) as usize]
    }

    /// Of a PU of this pool, the free chunks.
    fn free_of(&self, pu: u32) -> &BinaryHeap<Reverse<(u32, u32, bool)>> {
        &self.free[(pu - self.first_pu) as usize]
    }

    pub(in crate::log) fn next_sequence(&self) -> u64 {
        self.next_sequence.load(Ordering::SeqCst)
    }

    /// A chunk becomes free; `dirty` ones are erased before use.
    pub(in crate::log) fn put_chunk(&mut self, chunk: u32, dirty: bool) {
        let pu = chunk / self.shape.chunks_per_pu;
        let erases = if self.least_worn_first { self.erases(chunk) } else { 0 };
        self.free[(pu - self.first_pu) as usize].push(Reverse((erases, chunk, dirty)));
        self.free_total += 1;
    }

    /// How often a chunk was erased before this life.
    pub(in crate::log) fn set_erases(&mut self, chunk: u32, erases: u32) {
        let chunk = (chunk - self.first_chunk) as usize;
        let before = std::mem::replace(&mut self.erases[chunk], erases);
        self.erases_sum = self.erases_sum + u64::from(erases) - u64::from(before);
    }

    /// A chunk is about to be erased.
    pub(in crate::log) fn note_erase(&mut self, chunk: u32) {
        self.set_erases(chunk, self.erases(chunk) + 1);
        self.erases_total += 1;
    }

    /// How many erases the chunks of a line lag behind the average chunk, per chunk.
    pub(in crate::log) fn lag(&self, line: &Line) -> u64 {
        let chunks = self.erases.len() as u128;
        let width = line.chunks.len().max(1) as u128;
        let ahead = u128::from(self.erases_sum) * width;
        (ahead.saturating_sub(u128::from(line.wear) * chunks) / (width * chunks)) as u64
    }

    /// Erases of every chunk.
    pub(in crate::log) fn wear(&self) -> &[u32] {
        &self.erases
    }

    fn wear_of(&self, chunks: &[u32]) -> u64 {
        chunks.iter().map(|c| u64::from(self.erases(*c))).sum()
    }

    fn pop_chunk(&mut self, pu: u32) -> Option<(u32, bool)> {
        let Reverse((_, chunk, dirty)) = self.free[(pu - self.first_pu) as usize].pop()?;
        self.free_total -= 1;
        Some((chunk, dirty))
    }

    /// The free chunks, in no order.
    pub(in crate::log) fn free_list(&self) -> impl Iterator<Item = u32> {
        self.free.iter().flatten().map(|Reverse((_, chunk, _))| *chunk)
    }

    /// Free chunks that lines may take.
    pub(in crate::log) fn free_chunks(&self) -> u64 {
        self.free_total.saturating_sub(self.meta_reserve)
    }

    /// A free chunk for metadata, on the PU that has most, apart from `not` unless only that one has
    /// any left: two copies on one die are better than none. (chunk, needs an erase).
    pub(in crate::log) fn take_meta_chunk(&mut self, not: Option<u32>) -> Option<(u32, bool)> {
        let free = |pu: &u32| self.free_of(*pu).len();
        let most = |pus: &mut dyn Iterator<Item = u32>| {
            pus.filter(|pu| free(pu) > 0).max_by_key(|pu| (free(pu), Reverse(*pu)))
        };
        let pus = self.pus();
        let elsewhere = most(&mut pus.clone().filter(|pu| Some(*pu) != not));
        let pu = elsewhere.or_else(|| most(&mut pus.clone()))?;
        let got = self.pop_chunk(pu)?;
        self.meta_reserve = self.meta_reserve.saturating_sub(1);
        Some(got)
    }

    /// A metadata chunk comes back, and with it its share of the reserve.
    pub(in crate::log) fn put_meta_chunk(&mut self, chunk: u32, dirty: bool) {
        self.put_chunk(chunk, dirty);
        self.meta_reserve += 1;
    }

    /// Has it a free chunk on another PU than `not`?
    pub(in crate::log) fn has_chunk_off(&self, not: Option<u32>) -> bool {
        self.pus().any(|pu| Some(pu) != not && !self.free_of(pu).is_empty())
    }

    pub(in crate::log) fn pus(&self) -> Range<u32> {
        self.first_pu..self.first_pu + self.shape.pool_pus()
    }

    /// Width of the next line.
    pub(in crate::log) fn width(&self) -> u32 {
        self.width
    }

    /// Lines have another width from the next one on.
    pub(in crate::log) fn set_width(&mut self, width: u32) {
        self.width = width;
    }

    /// How many chunks the next line gets; `None` when they could not hold any data.
    pub(in crate::log) fn next_width(&self, narrow: bool) -> Option<u32> {
        let (free, width) = (self.free_chunks(), self.width() as u64);
        let pus = self.free.iter().filter(|chunks| !chunks.is_empty()).count() as u64;
        let chunks = width.min(pus).min(free) as u32;
        ((narrow || free >= width) && self.shape.line_data(chunks) > 0).then_some(chunks)
    }

    /// A line may be opened ahead of the one in use; `cornered`: nothing takes data in any pool.
    pub(in crate::log) fn may_open(&self, cornered: bool) -> bool {
        self.opens && self.spare.is_none() && self.next_width(cornered).is_some()
    }

    /// Chooses the chunks of the next line: (line id, chunks with "needs an erase"). PUs without a
    /// free chunk are left out; `None` when what is left could not hold any data. `narrow`: what is
    /// in the ring has nowhere to go, a line of whatever is free will do.
    pub(in crate::log) fn begin_line(&mut self, narrow: bool) -> Option<(u32, Vec<(u32, bool)>)> {
        let width = self.next_width(narrow)?;
        let start = self.rotation;
        let pus = self.shape.pool_pus();
        self.rotation = (self.rotation + width) % pus;
        let mut chunks = Vec::with_capacity(width as usize);
        for i in 0..pus {
            if chunks.len() == width as usize {
                break;
            }
            let pu = self.first_pu + self.shape.pu_in_order((start + i) % pus);
            if let Some(c) = self.pop_chunk(pu) {
                chunks.push(c);
            }
        }
        let id = self.free_lines.pop().unwrap_or_else(|| {
            self.lines.push(Line::FREE);
            self.first_line + (self.lines.len() - 1) as u32
        });
        let sequence = self.next_sequence.fetch_add(1, Ordering::SeqCst);
        let line = self.line_mut(id);
        assert_eq!(line.state, LineState::Free, "line {id} is in use");
        *line = Line { state: LineState::Opening, sequence, ..Line::FREE };
        Some((id, chunks))
    }

    /// No line takes data any more: (lines to close, lines in which nothing but their first metadata is,
    /// which are to be freed).
    pub(in crate::log) fn take_open_lines(&mut self) -> (Vec<u32>, Vec<u32>) {
        let open: Vec<u32> = self.current.into_iter().chain(self.spare).collect();
        let is_untouched = |line: &u32| {
            let line = self.line(*line);
            let width = line.chunks.len() as u32;
            let units = width * (self.shape.chunk_sectors / self.shape.unit);
            let first = self.shape.first_units(width);
            line.open.as_ref().is_some_and(|o| o.in_flight == 0 && o.remaining == units - first)
        };
        let (untouched, to_close): (Vec<u32>, Vec<u32>) = open.into_iter().partition(is_untouched);
        untouched.iter().chain(&to_close).for_each(|line| self.stop_filling(*line));
        for line in &untouched {
            let line = self.line_mut(*line);
            line.state = LineState::Freeing;
            line.open = None;
        }
        (to_close, untouched)
    }

    /// The chunks are erased (those that failed are gone): the line can take its first metadata.
    pub(in crate::log) fn opened(&mut self, id: u32) {
        let shape = self.shape;
        let chunks = self.line(id).chunks.clone();
        let width = chunks.len() as u32;
        let mut entries = std::mem::take(&mut self.spare_entries);
        entries.clear();
        entries.resize((width * shape.chunk_sectors) as usize, pack_entry(LBA_NONE, 0));
        let wear = self.wear_of(&chunks);
        let line = self.line_mut(id);
        assert_eq!(line.state, LineState::Opening);
        line.state = LineState::Open;
        let chunks = chunks.iter().map(|c| OpenChunk::new(&shape, *c, Some(0))).collect();
        line.wear = wear;
        line.open = Some(OpenLine::new(&shape, chunks, entries));
        self.unsaid.push(id);
    }

    /// A line that recovery found; [`PoolState::restored`] follows the last one.
    pub(in crate::log) fn restore_line(&mut self, id: u32, found: Restored) {
        let shape = self.shape;
        let needed = (id - self.first_line) as usize + 1;
        if self.lines.len() < needed {
            self.lines.resize_with(needed, || Line::FREE);
        }
        let open = found.open.map(|(entries, pointers)| {
            let chunks = found.chunks.iter().zip(pointers);
            let chunks = chunks.map(|(chunk, next)| OpenChunk::new(&shape, *chunk, next));
            OpenLine::new(&shape, chunks.collect(), entries)
        });
        let wear = self.wear_of(&found.chunks);
        let line = self.line_mut(id);
        assert_eq!(line.state, LineState::Free, "line {id} was restored twice");
        *line = Line {
            state: if open.is_some() { LineState::Open } else { LineState::Closed },
            sequence: found.sequence,
            chunks: found.chunks,
            closing: found.closing,
            failed: !found.retire.is_empty(),
            retire: found.retire,
            logged: open.is_none(),
            gone: false,
            frontier: found.frontier,
            wear,
            decay: Decay::NONE,
            unlogged: Vec::new(),
            open,
        };
        if !self.line(id).logged {
            self.unsaid.push(id);
        }
    }

    /// All lines are restored: the other ids are free.
    pub(in crate::log) fn restored(&mut self) {
        let free = self.lines().filter(|(_, l)| l.state == LineState::Free);
        let mut ids: Vec<u32> = free.map(|(id, _)| id).collect();
        ids.reverse();
        self.free_lines = ids;
    }

    /// A line that lost too many chunks while it was opened: its id is free again.
    pub(in crate::log) fn give_up_opening(&mut self, id: u32) {
        let line = self.line_mut(id);
        assert_eq!(line.state, LineState::Opening);
        line.state = LineState::Free;
        self.free_lines.push(id);
    }

    fn open_mut(&mut self, line: u32) -> &mut OpenLine {
        self.line_mut(line).open.as_mut().expect("only open lines have positions")
    }

    /// The line that takes data, after moving on to the spare where the current one is full.
    ///
    /// At most [`MOST_CLOSING`] - 1 lines before it may still be closing: what lies in the read-back windows of open
    /// and closing lines is in slots, and their number is fixed.
    fn data_line(&mut self) -> Option<u32> {
        if self.current.is_none() && self.count(LineState::Closing) < MOST_CLOSING {
            self.current = self.spare.take();
        }
        self.current
    }

    /// Can it take a data unit now?
    pub(in crate::log) fn has_room(&mut self) -> bool {
        let len = self.shape.chunk_sectors;
        self.data_line().is_some_and(|line| self.open_mut(line).next_chunk(len).is_some())
    }

    /// The chunks that are to take the next `want` data units, one each, in the order of the stripe;
    /// `None` when there is room for none. Nothing is taken yet, but who chooses next gets others.
    pub(in crate::log) fn choose(&mut self, want: usize) -> Option<Chosen> {
        let line = self.data_line()?;
        let (sequence, len) = (self.line(line).sequence, self.shape.chunk_sectors);
        let open = self.open_mut(line);
        let room = open.remaining.saturating_sub(open.closing) as usize;
        let mut chunks: SmallVec<[(usize, u32); UNITS_INLINE]> = SmallVec::new();
        while chunks.len() < want.min(room)
            && let Some(at) = open.next_chunk(len)
            && chunks.iter().all(|(other, _)| *other != at)
        {
            chunks.push((at, open.chunks[at].pu));
            open.cursor = if at + 1 < open.chunks.len() { at + 1 } else { 0 };
        }
        (!chunks.is_empty()).then_some(Chosen { line, sequence, chunks })
    }

    /// What was chosen is not needed: the stripe goes on where it was.
    pub(in crate::log) fn unchoose(&mut self, chosen: &Chosen) {
        if self.current == Some(chosen.line) {
            self.open_mut(chosen.line).cursor = chosen.chunks[0].0;
        }
    }

    /// Takes the position that a chosen chunk has now; `None` when the line has moved on meanwhile.
    pub(in crate::log) fn take_chosen(&mut self, line: u32, at: usize) -> Option<Spot> {
        if self.current != Some(line) {
            return None;
        }
        let open = self.open_mut(line);
        if open.remaining <= open.closing {
            return None;
        }
        let spot = self.take_at(line, at)?;
        self.stop_if_full(line);
        Some(spot)
    }

    /// Takes the next position of a chunk for the padding of a flush, which counts as data does: the
    /// last positions belong to the closing metadata. `None` when no padding is wanted any more.
    pub(in crate::log) fn take_padding(&mut self, pair: &OpenPair) -> Option<Spot> {
        let wanted = matches!(self.pair_step(pair), PairStep::Pad);
        let spot = wanted.then(|| self.take_at(pair.line, pair.at)).flatten()?;
        self.stop_if_full(pair.line);
        Some(spot)
    }

    /// Without room for another data unit a line is closed.
    fn stop_if_full(&mut self, line: u32) {
        let len = self.shape.chunk_sectors;
        if self.open_mut(line).next_chunk(len).is_none() {
            self.stop_filling(line);
        }
    }

    /// Takes the next position of a given chunk, whosever it is.
    pub(in crate::log) fn take_at(&mut self, line: u32, at: usize) -> Option<Spot> {
        let (unit, len) = (self.shape.unit, self.shape.chunk_sectors);
        let open = self.line_mut(line).open.as_mut()?;
        let c = &mut open.chunks[at];
        if !c.alive || c.next + unit > len {
            return None;
        }
        let spot = Spot { line, at, chunk: c.chunk, pu: c.pu, sector: c.next };
        c.next += unit;
        open.remaining -= 1;
        open.in_flight += 1;
        Some(spot)
    }

    /// No more data into this line.
    pub(in crate::log) fn stop_filling(&mut self, line: u32) {
        if self.current == Some(line) {
            self.current = None;
        }
        if self.spare == Some(line) {
            self.spare = None;
        }
        let l = self.line_mut(line);
        if l.state == LineState::Open {
            l.state = LineState::Closing;
        }
    }

    /// Index of a sector in its line's entries: stripe order, `unit` sectors per chunk and row.
    #[inline]
    pub(in crate::log) fn entry_index(
        shape: &Shape,
        width: usize,
        at: usize,
        sector: u32,
    ) -> usize {
        let row = (sector / shape.unit) as usize;
        (row * width + at) * shape.unit as usize + (sector % shape.unit) as usize
    }

    /// The program at a position has ended well; `unit` is what it holds, unless that is padding or
    /// metadata. Adds what the medium can now give back. Returns the slots that must go elsewhere
    /// nevertheless: those of a unit in a chunk that another program has ended meanwhile; and how many
    /// units have come to their end, which is behind those in front of them: only then may as many
    /// others be in flight, or more than `behind` could follow one that fails.
    pub(in crate::log) fn completed(
        &mut self,
        spot: &Spot,
        unit: Option<Box<Unit>>,
        released: &mut Released,
    ) -> (Vec<u32>, u64) {
        let shape = self.shape;
        let open = self.open_mut(spot.line);
        let c = &mut open.chunks[spot.at];
        if !c.alive {
            return self.unit_failed(spot, unit, u64::MAX, released);
        }
        let before = c.done;
        c.end(&shape, spot.sector, unit);
        c.release(&shape, released);
        (Vec::new(), u64::from((c.done - before) / shape.unit))
    }

    /// A program failed for the sectors of `failed`. The chunk takes nothing more. Returns the slots
    /// whose content must go elsewhere: the failed ones, and where the medium needs a window, all
    /// that are not readable yet (FORMAT.md rule 9); and how many units have come to their end.
    pub(in crate::log) fn unit_failed(
        &mut self,
        spot: &Spot,
        unit: Option<Box<Unit>>,
        failed: u64,
        released: &mut Released,
    ) -> (Vec<u32>, u64) {
        let shape = self.shape;
        let width = self.line(spot.line).chunks.len();
        self.line_mut(spot.line).failed = true;
        let open = self.open_mut(spot.line);
        let c = &mut open.chunks[spot.at];
        if c.alive {
            c.alive = false;
            open.remaining -= (shape.chunk_sectors - c.next) / shape.unit;
        }
        let chunk = c.chunk;
        let lost = |i: usize| shape.window > 0 || failed >> i & 1 != 0;
        let mut again = Vec::new();
        // Units that are still in flight here speak for themselves when they end.
        let waiting = c.window_end - shape.unit;
        let waiting = waiting..waiting + c.window.len() as u32 * shape.unit;
        let early = std::mem::take(&mut c.early);
        let units = 1 + early.len() as u64;
        let early_sectors = early.iter().flat_map(|(first, _)| *first..first + shape.unit);
        let may_be_told = waiting.clone().filter(|sector| *sector < c.told);
        let may_be_told: Vec<u32> = may_be_told.chain(early_sectors).collect();
        let mut never_told: Vec<u32> = waiting.filter(|sector| *sector >= c.told).collect();
        let early = early.into_iter().filter_map(|(_, unit)| unit);
        for waiting in c.window.drain(..).flatten().chain(early) {
            match mutant!("log.window-kept") {
                true => released.push(waiting),
                false => waiting.give_slots_to(&mut again),
            }
        }
        never_told.extend((0..shape.unit).filter(|i| lost(*i as usize)).map(|i| spot.sector + i));
        if let Some(mut unit) = unit {
            again.extend(unit.tear(lost));
            released.push(unit);
        }
        if !mutant!("log.failed-stay-entered") {
            let index = |sector| PoolState::entry_index(&shape, width, spot.at, sector);
            open.left.extend(may_be_told.into_iter().map(index));
            if mutant!("log.told-until-it-fails") {
                open.left.drain(..).for_each(|i| open.entries[i] = pack_entry(LBA_NONE, 0));
            }
            never_told
                .into_iter()
                .map(index)
                .for_each(|i| open.entries[i] = pack_entry(LBA_NONE, 0));
        }
        let full = open.remaining <= open.closing;
        let line = self.line_mut(spot.line);
        if !line.retire.contains(&chunk) {
            line.retire.push(chunk);
        }
        if full {
            self.stop_filling(spot.line);
        }
        (again, units)
    }

    /// What a unit's end made readable is in the map, so the valid count of its line is right. True
    /// when it is time to close the line.
    pub(in crate::log) fn published(&mut self, line: u32) -> bool {
        self.open_mut(line).in_flight -= 1;
        self.ready_to_close(line)
    }

    /// True when a line that takes no more data has nothing in flight: time to close it.
    pub(in crate::log) fn ready_to_close(&self, line: u32) -> bool {
        let l = self.line(line);
        let ended = |o: &OpenLine| o.in_flight == 0 || mutant!("log.closed-in-flight");
        let idle = |o: &OpenLine| !o.closing_began && ended(o);
        l.state == LineState::Closing && l.open.as_ref().is_some_and(|o| idle(o))
    }

    /// The closing metadata is built from now on.
    pub(in crate::log) fn begin_closing(&mut self, line: u32) {
        self.open_mut(line).closing_began = true;
    }

    /// Lba and stamp of every sector of an open line, as its closing metadata says them.
    pub(in crate::log) fn closing_entries(&self, line: u32) -> Cow<'_, [[u8; PACKED_BYTES]]> {
        let open = self.line(line).open.as_ref().expect("a closing line is open");
        let mut entries = Cow::Borrowed(&open.entries[..]);
        if !open.left.is_empty() {
            let entries = entries.to_mut();
            open.left.iter().for_each(|i| entries[*i] = pack_entry(LBA_NONE, 0));
        }
        entries
    }

    /// The PU of a chunk of an open line.
    pub(in crate::log) fn pu_of(&self, line: u32, at: usize) -> Option<u32> {
        let open = self.line(line).open.as_ref()?;
        Some(open.chunks[at].pu)
    }

    /// Notes what a unit holds, for the line's closing metadata.
    pub(in crate::log) fn note_entries(
        &mut self,
        spot: &Spot,
        entries: &[(u64, u64)],
        cause: &[Cause],
    ) {
        let shape = self.shape;
        let width = self.line(spot.line).chunks.len();
        let open = self.open_mut(spot.line);
        let first = PoolState::entry_index(&shape, width, spot.at, spot.sector);
        for (e, (lba, stamp)) in open.entries[first..].iter_mut().zip(entries) {
            *e = pack_entry(*lba, *stamp);
        }
        for c in cause {
            open.causes[*c as usize] += 1;
        }
    }

    /// A data unit is about to be submitted: noted and counted. Its out-of-band records begin with
    /// what the closing metadata says of each sector.
    pub(in crate::log) fn programmed_unit(
        &mut self,
        spot: &Spot,
        oob: &[[u8; OOB_BYTES]],
        causes: &[(Cause, u32)],
    ) {
        let shape = self.shape;
        let width = self.line(spot.line).chunks.len();
        for (cause, n) in causes {
            self.programmed[*cause as usize] += u64::from(*n);
        }
        let open = self.open_mut(spot.line);
        for (cause, n) in causes {
            open.causes[*cause as usize] += n;
        }
        let first = PoolState::entry_index(&shape, width, spot.at, spot.sector);
        for (entry, record) in open.entries[first..first + oob.len()].iter_mut().zip(oob) {
            entry.copy_from_slice(&record[..PACKED_BYTES]);
        }
    }

    /// The closing metadata is on the medium (or could not be written): the line is closed. `keep`
    /// its entries until [`PoolState::logged`].
    pub(in crate::log) fn closed(&mut self, line: u32, places: Vec<Place>, keep: bool) {
        let l = self.line_mut(line);
        assert_eq!(l.state, LineState::Closing);
        l.state = LineState::Closed;
        l.closing = places;
        match l.open.take() {
            Some(open) if keep => l.unlogged = open.entries,
            Some(open) => self.spare_entries = open.entries,
            None => {}
        }
    }

    /// `closed` is in the log.
    pub(in crate::log) fn logged(&mut self, line: u32) {
        let l = self.line_mut(line);
        l.logged = true;
        let entries = std::mem::take(&mut l.unlogged);
        if !entries.is_empty() {
            self.spare_entries = entries;
        }
        self.unsaid.retain(|unsaid| *unsaid != line);
    }

    /// Lines whose units the log has to tell.
    pub(in crate::log) fn unsaid(&self) -> Vec<u32> {
        self.unsaid.clone()
    }

    /// Records of what units of a line hold, `most` sectors in each at most.
    pub(in crate::log) fn tell(&mut self, id: u32, what: Tell, most: u32) -> Vec<Record> {
        let shape = self.shape;
        let line = self.line_mut(id);
        let (sequence, chunks) = (line.sequence, line.chunks.clone());
        let is_open = line.open.is_some();
        let mut out = Vec::new();
        for (at, chunk) in chunks.iter().enumerate() {
            let mut units: SmallVec<[u32; 64]> = SmallVec::new();
            let (entries, told) = match line.open.as_mut() {
                Some(open) => {
                    let c = &mut open.chunks[at];
                    let told = c.told;
                    let (from, to) = match what {
                        Tell::Closing => (0, shape.chunk_sectors),
                        // Of a failed unit sectors may stay that are behind `done`.
                        _ if !c.alive => (0, c.next),
                        Tell::New => (told, c.done),
                        Tell::Again => (0, c.done),
                    };
                    let early = c.early.iter().map(|(first, _)| *first);
                    units.extend((from..to).step_by(shape.unit as usize).chain(early));
                    c.told = to.max(told);
                    (&open.entries, told)
                }
                None if what == Tell::Again => {
                    units.extend((0..shape.chunk_sectors).step_by(shape.unit as usize));
                    (&line.unlogged, 0)
                }
                None => continue,
            };
            for sector in units {
                let i = PoolState::entry_index(&shape, chunks.len(), at, sector);
                let Some(unit) = entries.get(i..i + shape.unit as usize) else { continue };
                let has_data = unit.iter().any(|entry| unpack_entry(entry).0 < LBA_LIMIT);
                // Of an open line what holds no data need not be told, of a closed one all must be.
                let is_wanted = match what {
                    Tell::Closing => sector >= told || !has_data,
                    Tell::New => sector >= told && has_data,
                    Tell::Again => has_data || !is_open,
                };
                if !is_wanted {
                    continue;
                }
                match out.last_mut() {
                    Some(Record::Written { chunk: c, sector: first, entries, .. })
                        if *c == *chunk
                            && *first + entries.len() as u32 == sector
                            && entries.len() as u32 + shape.unit <= most =>
                    {
                        entries.extend_from_slice(unit);
                    }
                    _ => {
                        let (line, chunk, entries) = (id, *chunk, unit.to_vec());
                        out.push(Record::Written { line, sequence, chunk, sector, entries });
                    }
                }
            }
        }
        out
    }

    /// Takes a closed line for collection.
    pub(in crate::log) fn make_victim(&mut self, line: u32) {
        let l = self.line_mut(line);
        assert_eq!(l.state, LineState::Closed, "only closed lines are collected");
        l.state = LineState::Victim;
    }

    /// Nothing lives in the victim any more.
    pub(in crate::log) fn make_freeing(&mut self, line: u32) {
        let l = self.line_mut(line);
        assert_eq!(l.state, LineState::Victim);
        l.state = LineState::Freeing;
    }

    /// A victim that could not be emptied goes back.
    pub(in crate::log) fn back_to_closed(&mut self, line: u32) {
        let l = self.line_mut(line);
        assert_eq!(l.state, LineState::Victim);
        l.state = LineState::Closed;
    }

    /// The `freed` record is durable: the chunks are free, the retired ones never again. `dirty`: which
    /// of them need an erase.
    pub(in crate::log) fn freed(&mut self, line: u32, dirty: &[bool]) {
        let l = self.line_mut(line);
        assert_eq!(l.state, LineState::Freeing);
        l.state = LineState::Free;
        let (chunks, retire) = (std::mem::take(&mut l.chunks), std::mem::take(&mut l.retire));
        l.unlogged = Vec::new();
        self.unsaid.retain(|unsaid| *unsaid != line);
        self.free_lines.push(line);
        for (chunk, dirty) in chunks.into_iter().zip(dirty) {
            if retire.contains(&chunk) && !mutant!("log.bad-chunk-reused") {
                self.retired_chunks.push(chunk);
            } else {
                self.put_chunk(chunk, *dirty);
            }
        }
    }

    /// Lines by state, in the order of [`LineState`].
    pub(in crate::log) fn count(&self, state: LineState) -> usize {
        self.lines.iter().filter(|l| l.state == state).count()
    }

    /// A line is on its way to take data, its first metadata included.
    pub(in crate::log) fn is_opening(&self) -> bool {
        let serves = |id: u32| [self.current, self.spare].contains(&Some(id));
        self.lines().any(|(id, l)| match l.state {
            LineState::Opening => true,
            LineState::Open => !serves(id),
            _ => false,
        })
    }

    /// Units are given out whose end is not yet in the map.
    pub(in crate::log) fn is_programmed(&self) -> bool {
        self.lines.iter().any(|l| l.open.as_ref().is_some_and(|o| o.in_flight > 0))
    }

    /// Nothing takes data, and nothing is about to be given back without some being taken: lines
    /// that wait to be freed wait for the ring to be programmed.
    pub(in crate::log) fn is_cornered(&self) -> bool {
        self.current.is_none()
            && self.spare.is_none()
            && !self.is_opening()
            && self.count(LineState::Closing) == 0
    }

    /// Data sectors that free chunks and open lines can still take.
    pub(in crate::log) fn room(&self) -> u64 {
        let rest = |l: u32| {
            let open = self.line(l).open.as_ref();
            open.map_or(0, |o| o.remaining.saturating_sub(o.closing) as u64)
        };
        let open: u64 = self.current.into_iter().chain(self.spare).map(rest).sum();
        let (width, unit) = (self.width(), self.shape.unit as u64);
        self.free_chunks() / width as u64 * self.shape.line_data(width) + open * unit
    }

    /// Lowest sequence of a line that is being opened, or not closed in the log; the largest number if
    /// there is none. One that recovery found
    /// open is neither: all that it holds is in the map, and it takes nothing any more.
    pub(in crate::log) fn lowest_open_sequence(&self) -> u64 {
        let is = |l: &&Line| l.state != LineState::Free && !l.logged && l.frontier.is_empty();
        self.lines.iter().filter(is).map(|l| l.sequence).min().unwrap_or(u64::MAX)
    }
}

impl OpenLine {
    /// The chunk that takes the next data unit: the next living one with room, in rotation; none
    /// when only the room of the closing metadata is left.
    fn next_chunk(&self, chunk_sectors: u32) -> Option<usize> {
        if self.remaining <= self.closing {
            return None;
        }
        let (ahead, behind) = (self.cursor..self.chunks.len(), 0..self.cursor);
        let takes = |i: &usize| self.chunks[*i].alive && self.chunks[*i].next < chunk_sectors;
        ahead.chain(behind).find(takes)
    }
}

impl OpenChunk {
    /// A chunk that goes on at a sector; at none: it takes nothing more.
    fn new(shape: &Shape, chunk: u32, next: Option<u32>) -> OpenChunk {
        let at = next.unwrap_or(shape.chunk_sectors);
        OpenChunk {
            chunk,
            pu: chunk / shape.chunks_per_pu,
            next: at,
            done: at,
            told: 0,
            alive: next.is_some(),
            early: Vec::new(),
            window: VecDeque::new(),
            window_end: at + shape.unit,
        }
    }

    /// A unit has ended before one in front of it.
    pub(in crate::log) fn holds_early(&self) -> bool {
        !self.early.is_empty()
    }

    /// Content is programmed here that can't be read yet.
    pub(in crate::log) fn holds_unreadable(&self) -> bool {
        let early = self.early.iter().map(|(_, unit)| unit);
        self.window.iter().chain(early).any(Option::is_some)
    }

    /// Behind the last unit that has ended.
    pub(in crate::log) fn ended(&self, unit: u32) -> u32 {
        let early = self.early.iter().map(|(first, _)| first + unit);
        early.fold(self.done, u32::max)
    }

    /// The unit that begins at `sector` has ended.
    fn end(&mut self, shape: &Shape, sector: u32, unit: Option<Box<Unit>>) {
        if sector != self.done {
            self.early.push((sector, unit));
            return;
        }
        self.window.push_back(unit);
        self.done += shape.unit;
        while let Some(i) = self.early.iter().position(|(first, _)| *first == self.done) {
            self.window.push_back(self.early.swap_remove(i).1);
            self.done += shape.unit;
        }
    }

    /// Moves units that have become readable out of the window.
    pub(in crate::log) fn release(&mut self, shape: &Shape, out: &mut Released) {
        let readable = |end: u32| {
            end + shape.window <= self.done
                || self.done == shape.chunk_sectors
                || mutant!("log.window-ignored")
        };
        while !self.window.is_empty() && readable(self.window_end) {
            out.extend(self.window.pop_front().flatten());
            self.window_end += shape.unit;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(channels: u32, per_channel: u32) -> Shape {
        Shape {
            pus: channels * per_channel,
            channels,
            pools: 1,
            chunks_per_pu: 4,
            chunk_sectors: 64,
            unit: 4,
            window: 0,
            behind: 0,
            pair_pads: 0,
        }
    }

    fn pool(shape: Shape, width: u32) -> PoolState {
        let width = shape.width(width);
        PoolState::new(shape, 0, width, true, Arc::new(AtomicU64::new(1)))
    }

    /// The paper's example (LightNVM 4.2.1): 4 active PUs of 4 channels × 8: PU 0, 8, 16, 24
    /// first; when the block on PU 0 is full, PU 1 follows.
    #[test]
    fn four_active_of_four_by_eight() {
        let mut p = pool(shape(4, 8), 4);
        for c in 0..32 * 4 {
            p.put_chunk(c, false);
        }
        let pus = |p: &mut PoolState| -> Vec<u32> {
            let (id, chunks) = p.begin_line(false).unwrap();
            p.line_mut(id).chunks = chunks.iter().map(|c| c.0).collect();
            p.opened(id);
            p.spare = Some(id);
            let mut seen = Vec::new();
            while let Some(Chosen { line, chunks, .. }) = p.choose(1) {
                let spot = p.take_chosen(line, chunks[0].0).unwrap();
                seen.push(chunks[0].1);
                p.completed(&spot, None, &mut Released::default());
                p.published(line);
            }
            seen
        };
        let first = pus(&mut p);
        assert_eq!(first[..8], [0, 8, 16, 24, 0, 8, 16, 24], "page stripe over the active PUs");
        assert!(first.iter().all(|pu| [0, 8, 16, 24].contains(pu)));
        assert_eq!(pus(&mut p)[..4], [1, 9, 17, 25], "then the next PU of each");
    }

    /// Chunks that could only hold a line's metadata are no line, however many are free.
    #[test]
    fn what_holds_no_data_is_no_line() {
        let mut p = pool(Shape { chunk_sectors: 8, ..shape(2, 1) }, 0);
        for c in 0..3 {
            p.put_chunk(c, false);
        }
        assert_eq!((p.next_width(false), p.next_width(true)), (None, None), "one PU, two units");
        p.put_chunk(4, false);
        assert_eq!(p.next_width(false), Some(2));
        assert_eq!(p.begin_line(false).unwrap().1.len(), 2);
        assert!(p.begin_line(true).is_none());
    }

    /// Metadata keeps its reserve: lines stop before they take it.
    #[test]
    fn lines_leave_the_metadata_reserve() {
        let mut p = pool(shape(2, 2), 0);
        for c in 0..16 {
            p.put_chunk(c, false);
        }
        p.meta_reserve = 6;
        assert!(p.begin_line(false).is_some() && p.begin_line(false).is_some());
        assert!(p.begin_line(false).is_none(), "8 left, 6 reserved, a line takes 4");
        assert!(p.take_meta_chunk(None).is_some());
    }
}
