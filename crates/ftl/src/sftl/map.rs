//! Which block each segment has, and what state both are in.
//!
//! Owns: [`Map`]: blocks, segments, wear, the counters. Promises: a block has one segment at most; as
//! many blocks are free as there are usable segments without one, so an append never finds none; the
//! least worn free block is taken. Never: waits, or talks to the device.

use super::unreadable::Unreadable;
use super::window::Window;
use crate::stats::FtlStats;
use flashlane_base::{Location, mutant};
use std::ops::Range;

/// Erases by which the least worn block with data must lag behind the least worn free block before
/// [`super::Sftl::lags`] names it.
///
/// A move costs one block of programs. At 16 a block of cold data moves at most once while each free
/// block is erased 16 times, so moves stay below a sixteenth of what is written even where nearly all
/// data is cold; and 16 erases are half a percent of the 3,000 that MLC is rated for.
pub const LAG: u32 = 16;

/// What can be done with a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// It holds nothing, and takes appends.
    Empty,
    /// It takes appends behind its write pointer.
    Open,
    /// Written to its end.
    Full,
    /// A program in it failed: it can be read, and trimmed.
    Failed,
    /// It is being erased.
    Trimming,
    /// It has no block any more.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Usable,
    Trimming,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockState {
    Free,
    /// It is this segment's.
    Holds(u32),
    /// It was written, and what it holds can't be read: no segment gets it.
    Unreadable,
    Retired,
}

/// A flash block: a chunk of the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) pu: u32,
    pub(super) chunk: u32,
    pub(super) erases: u32,
    pub(super) state: BlockState,
}

#[derive(Debug)]
pub(super) struct Segment {
    /// Index of its block in the channel.
    pub(super) block: Option<u32>,
    pub(super) phase: Phase,
    /// A program in its block failed.
    pub(super) failed: bool,
    /// Sectors that were sent, padding included.
    pub(super) written: u32,
    /// Behind its last sector that is not padding.
    pub(super) data_end: u32,
    /// Of its records.
    pub(super) generation: u64,
    /// Programs under way: first sector and the one behind the last, in order.
    pub(super) flights: Vec<(u32, u32)>,
    /// Reads under way.
    pub(super) readers: u32,
    pub(super) window: Window,
    pub(super) padded: Vec<Range<u32>>,
    /// Sectors from here on may have been torn by the power cut before this mount. None: no sector.
    pub(super) torn_from: Option<u32>,
}

impl Segment {
    pub(super) fn empty() -> Segment {
        Segment {
            block: None,
            phase: Phase::Usable,
            failed: false,
            written: 0,
            data_end: 0,
            generation: 0,
            flights: Vec::new(),
            readers: 0,
            window: Window::default(),
            padded: Vec::new(),
            torn_from: None,
        }
    }

    pub(super) fn pointer(&self) -> u32 {
        match self.phase {
            Phase::Trimming | Phase::Gone => 0,
            Phase::Usable => self.written,
        }
    }

    pub(super) fn state(&self, full: u32) -> SegmentState {
        match self.phase {
            Phase::Gone => SegmentState::Gone,
            Phase::Trimming => SegmentState::Trimming,
            Phase::Usable if self.failed => SegmentState::Failed,
            Phase::Usable if self.written == 0 => SegmentState::Empty,
            Phase::Usable if self.written < full => SegmentState::Open,
            Phase::Usable => SegmentState::Full,
        }
    }

    /// A program of some of these sectors is under way.
    pub(super) fn is_flying(&self, from: u32, end: u32) -> bool {
        self.flights.iter().any(|f| f.0 < end && from < f.1)
    }

    /// Lets go of what a chunk with this read-back window can give back.
    pub(super) fn advance_window(&mut self, window: u32, full: u32) {
        let landed = self.flights.first().map_or(self.written, |f| f.0);
        let keep = if landed == full { full } else { landed.saturating_sub(window) };
        self.window.forget_before(keep);
    }

    /// Sectors from here on were not programmed after all.
    pub(super) fn cut(&mut self, end: u32) {
        self.written = self.written.min(end);
        self.data_end = self.data_end.min(end);
        self.window.cut(end);
        self.padded.retain_mut(|r| {
            r.end = r.end.min(end);
            r.start < r.end
        });
    }

    /// Sectors that were written as padding.
    pub(super) fn note_padding(&mut self, range: Range<u32>) {
        match self.padded.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => self.padded.push(range),
        }
    }

    pub(super) fn is_padding(&self, sector: u32) -> bool {
        self.padded.iter().any(|r| r.contains(&sector))
    }
}

#[derive(Debug)]
pub(super) struct Channel {
    pub(super) blocks: Vec<Block>,
    pub(super) segments: Vec<Segment>,
}

/// Open chunks that the segments may have: in all, and of each PU.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenLimit {
    pub(super) all: u32,
    pub(super) per_pu: u32,
}

/// Why no block was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoBlock {
    None,
    TooManyOpen,
    /// It is not known what some chunks hold ([`Map::doubts`]).
    InDoubt,
}

#[derive(Debug)]
pub(super) struct Map {
    pub(super) channels: Vec<Channel>,
    pub(super) segment_sectors: u32,
    /// Of the block that is taken next.
    pub(super) generation: u64,
    /// Chunks of which a mount could not read what they hold, until that is settled. Meanwhile no
    /// segment changes: an older block of it may be among them.
    pub(super) doubts: Vec<Unreadable>,
    pub(super) limit: OpenLimit,
    pub(super) stats: FtlStats,
}

impl Map {
    pub(super) fn segment(&self, channel: u32, segment: u32) -> Option<&Segment> {
        self.channels.get(channel as usize)?.segments.get(segment as usize)
    }

    /// A segment that there is.
    pub(super) fn segment_mut(&mut self, channel: u32, segment: u32) -> &mut Segment {
        &mut self.channels[channel as usize].segments[segment as usize]
    }

    /// The block of a segment, which has one.
    pub(super) fn block_of(&self, channel: u32, segment: u32) -> (u32, Block) {
        let c = &self.channels[channel as usize];
        let at =
            c.segments[segment as usize].block.expect("a segment that was written has a block");
        (at, c.blocks[at as usize])
    }

    /// Open chunks by PU: how many segments on it are written in part.
    fn open(&self, channel: u32) -> impl Iterator<Item = u32> {
        let c = &self.channels[channel as usize];
        let open = |s: &&Segment| s.block.is_some() && s.written < self.segment_sectors;
        c.segments.iter().filter(open).filter_map(|s| Some(c.blocks[s.block? as usize].pu))
    }

    /// Gives a segment the least worn free block of its channel; among equals one on the PU with the
    /// fewest open ones, then the fewest in use.
    pub(super) fn take_block(&mut self, channel: u32, segment: u32) -> Result<(), NoBlock> {
        if !self.doubts.is_empty() && !mutant!("sftl.taken-in-doubt") {
            return Err(NoBlock::InDoubt);
        }
        let open: Vec<u32> = self.open(channel).collect();
        if self.limit.all != 0 {
            let others = (0..self.channels.len() as u32).filter(|c| *c != channel);
            let elsewhere: usize = others.map(|c| self.open(c).count()).sum();
            if elsewhere + open.len() >= self.limit.all as usize {
                return Err(NoBlock::TooManyOpen);
            }
        }
        let c = &mut self.channels[channel as usize];
        // By PU of the channel: open blocks, blocks in use.
        let first = c.blocks.first().map_or(0, |b| b.pu);
        let pus = c.blocks.last().map_or(0, |b| b.pu - first + 1);
        let mut counts = vec![(0u32, 0u32); pus as usize];
        open.iter().for_each(|pu| counts[(pu - first) as usize].0 += 1);
        let held = c.blocks.iter().filter(|b| matches!(b.state, BlockState::Holds(_)));
        held.for_each(|b| counts[(b.pu - first) as usize].1 += 1);
        let on = |b: &Block| counts[(b.pu - first) as usize];
        let free = || (0u32..).zip(&c.blocks).filter(|(_, b)| b.state == BlockState::Free);
        if free().next().is_none() {
            return Err(NoBlock::None);
        }
        let room = |b: &Block| self.limit.per_pu == 0 || on(b).0 < self.limit.per_pu;
        let order = |b: &Block| (b.erases, on(b), b.chunk, b.pu);
        let best = free().filter(|(_, b)| room(b)).min_by_key(|(_, b)| order(b));
        let (at, _) = best.ok_or(NoBlock::TooManyOpen)?;
        c.blocks[at as usize].state = BlockState::Holds(segment);
        let s = &mut c.segments[segment as usize];
        (s.block, s.generation) = (Some(at), self.generation);
        self.generation += 1;
        Ok(())
    }

    /// A segment's block is erased, or bad: the segment is empty. True when the channel has a free block
    /// for each usable segment without one.
    pub(super) fn let_go(&mut self, channel: u32, segment: u32, to: BlockState) -> bool {
        let (at, _) = self.block_of(channel, segment);
        let c = &mut self.channels[channel as usize];
        c.blocks[at as usize].state = to;
        c.segments[segment as usize] = Segment::empty();
        self.is_backed(channel)
    }

    /// There is a block for each usable segment that has none: a free one, or one that is free, or
    /// that segment's, when it is known what it holds.
    pub(super) fn is_backed(&self, channel: u32) -> bool {
        let c = &self.channels[channel as usize];
        let is_free = |b: &&Block| matches!(b.state, BlockState::Free | BlockState::Unreadable);
        let free = c.blocks.iter().filter(is_free).count();
        let wanting = |s: &&Segment| s.block.is_none() && s.phase != Phase::Gone;
        free >= c.segments.iter().filter(wanting).count()
    }

    pub(super) fn lags(&self, channel: u32) -> Option<u32> {
        let c = self.channels.get(channel as usize)?;
        let free = c.blocks.iter().filter(|b| b.state == BlockState::Free);
        let least_free = free.map(|b| b.erases).min()?;
        let holding = |(at, s): (u32, &Segment)| {
            let block = s.block.filter(|_| s.phase != Phase::Trimming && s.written > 0)?;
            Some((c.blocks[block as usize].erases, at))
        };
        let (erases, at) = (0..).zip(&c.segments).filter_map(holding).min()?;
        (erases + LAG <= least_free).then_some(at)
    }

    pub(super) fn free_blocks(&self) -> (u64, u64) {
        let all = || self.channels.iter().flat_map(|c| &c.blocks);
        let free = all().filter(|b| b.state == BlockState::Free).count();
        (free as u64, all().count() as u64)
    }

    pub(super) fn wear(&self, channel: u32) -> Vec<u32> {
        let blocks = self.channels[channel as usize].blocks.iter();
        let good = blocks.filter(|b| b.state != BlockState::Retired);
        let mut all: Vec<u32> = good.map(|b| b.erases).collect();
        all.sort_unstable();
        all
    }

    pub(super) fn retired(&self, channel: u32) -> u32 {
        let blocks = self.channels[channel as usize].blocks.iter();
        blocks.filter(|b| b.state == BlockState::Retired).count() as u32
    }

    /// Where a sector of a segment lies, if it was written.
    pub(super) fn locate(&self, channel: u32, segment: u32, sector: u32) -> Option<Location> {
        let s = self.segment(channel, segment).filter(|s| sector < s.pointer())?;
        let block = self.channels[channel as usize].blocks[s.block? as usize];
        Some(Location { pu: block.pu, chunk: block.chunk, sector })
    }

    pub(super) fn is_still(&self) -> bool {
        let all = || self.channels.iter().flat_map(|c| &c.segments);
        all().all(|s| s.flights.is_empty() && s.readers == 0 && s.phase != Phase::Trimming)
    }

    pub(super) fn walk(&self) -> Result<(), String> {
        for (channel, c) in self.channels.iter().enumerate() {
            for (at, s) in (0u32..).zip(&c.segments) {
                let place = format!("segment {at} of channel {channel}");
                let Some(block) = s.block else {
                    if s.written > 0 {
                        return Err(format!("{place} has {} sectors and no block", s.written));
                    }
                    continue;
                };
                let state = c.blocks.get(block as usize).map(|b| b.state);
                if state != Some(BlockState::Holds(at)) {
                    return Err(format!("{place} has block {block}, which is {state:?}"));
                }
                if s.written > self.segment_sectors || s.data_end > s.written {
                    return Err(format!("{place} holds {} and {}", s.data_end, s.written));
                }
                if s.phase == Phase::Gone {
                    return Err(format!("{place} is gone and has block {block}"));
                }
            }
            for (at, b) in (0u32..).zip(&c.blocks) {
                if let BlockState::Holds(segment) = b.state {
                    let owner = c.segments.get(segment as usize);
                    if owner.and_then(|s| s.block) != Some(at) {
                        return Err(format!("block {at} of channel {channel} is nobody's: {b:?}"));
                    }
                }
            }
            if !self.is_backed(channel as u32) {
                return Err(format!("channel {channel} has segments without a block to take"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel of two PUs with two blocks each, erased that often, and three segments.
    fn map(erases: [u32; 4], limit: OpenLimit) -> Map {
        let block = |at: usize| Block {
            pu: at as u32 / 2,
            chunk: at as u32 % 2,
            erases: erases[at],
            state: BlockState::Free,
        };
        let blocks = (0..4).map(block).collect();
        let segments = (0..3).map(|_| Segment::empty()).collect();
        Map {
            channels: vec![Channel { blocks, segments }],
            segment_sectors: 8,
            generation: 1,
            doubts: Vec::new(),
            limit,
            stats: FtlStats::default(),
        }
    }

    const NONE: OpenLimit = OpenLimit { all: 0, per_pu: 0 };

    #[test]
    fn the_least_worn_free_block_is_taken_then_the_pu_that_is_open_least() {
        let mut m = map([5, 3, 4, 4], NONE);
        assert_eq!(m.take_block(0, 0), Ok(()));
        assert_eq!(m.channels[0].segments[0].block, Some(1));
        let mut m = map([2; 4], NONE);
        for (segment, block) in [(0, 0), (1, 2), (2, 1)] {
            assert_eq!(m.take_block(0, segment), Ok(()));
            assert_eq!(m.channels[0].segments[segment as usize].block, Some(block));
        }
        let generations: Vec<u64> = m.channels[0].segments.iter().map(|s| s.generation).collect();
        assert_eq!(generations, [1, 2, 3]);
        assert_eq!(m.walk(), Ok(()));
    }

    #[test]
    fn the_limit_of_open_segments_is_kept_by_pu_and_in_all() {
        let mut m = map([0, 0, 9, 9], OpenLimit { all: 0, per_pu: 1 });
        assert_eq!(m.take_block(0, 0), Ok(()));
        assert_eq!(m.take_block(0, 1), Ok(()));
        assert_eq!(m.block_of(0, 1).1.pu, 1, "more worn, but its PU has none open");
        assert_eq!(m.take_block(0, 2), Err(NoBlock::TooManyOpen));
        m.segment_mut(0, 0).written = 8;
        assert_eq!(m.take_block(0, 2), Ok(()));
        let mut m = map([0; 4], OpenLimit { all: 1, per_pu: 0 });
        assert_eq!(m.take_block(0, 0), Ok(()));
        assert_eq!(m.take_block(0, 1), Err(NoBlock::TooManyOpen));
    }

    #[test]
    fn who_runs_out_of_blocks_is_told() {
        let mut m = map([0; 4], NONE);
        for segment in [0, 1, 2] {
            assert_eq!(m.take_block(0, segment), Ok(()));
        }
        assert!(m.let_go(0, 0, BlockState::Retired), "the spare one is left");
        assert!(!m.let_go(0, 1, BlockState::Retired));
        assert!(m.walk().is_err());
        m.segment_mut(0, 1).phase = Phase::Gone;
        assert_eq!(m.walk(), Ok(()));
        assert_eq!((m.free_blocks(), m.retired(0)), ((1, 4), 2));
    }

    #[test]
    fn cold_data_lags_behind_the_free_blocks() {
        for (erases, lags) in [(LAG, Some(0)), (LAG - 1, None)] {
            let mut m = map([0, erases, erases, erases + 3], NONE);
            assert_eq!(m.take_block(0, 0), Ok(()));
            assert_eq!(m.lags(0), None, "it holds nothing");
            m.segment_mut(0, 0).written = 2;
            assert_eq!(m.lags(0), lags, "{erases}");
            m.segment_mut(0, 0).phase = Phase::Trimming;
            assert_eq!(m.lags(0), None);
        }
    }

    #[test]
    fn what_was_not_programmed_is_taken_back() {
        let mut s = Segment::empty();
        (s.written, s.data_end) = (8, 4);
        s.note_padding(4..6);
        s.note_padding(6..8);
        assert_eq!((s.padded.first(), s.padded.len()), (Some(&(4..8)), 1));
        s.cut(5);
        assert_eq!((s.written, s.data_end, s.padded.first()), (5, 4, Some(&(4..5))));
        s.cut(2);
        assert_eq!((s.written, s.data_end, s.padded.len()), (2, 2, 0));
    }
}
