//! From writes to loops.
//!
//! Owns: which track a write belongs to, and when a track becomes a run, a loop, or nothing again.
//! Promises: as the crate does; a write looks at the heads near it alone. Never: holds anything
//! that can't be learned again.

use crate::Config;
use crate::table::{NOWHERE, Table};
use crate::track::{Kind, Track};
use flashlane_base::{Lba, mutant};

/// What a write is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// One at the head of a journal or log.
    Journal,
    Normal,
}

/// A loop that was found, or that the host has told of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub first: Lba,
    /// Behind its last block.
    pub end: Lba,
    /// Where it is written next.
    pub head: Lba,
    /// How often it was gone round.
    pub laps: u32,
    /// Blocks that were written at its head since it is known.
    pub blocks: u64,
    /// The host has told of it.
    pub told: bool,
}

/// Highest block that is told apart from others: sums of two stay within 64 bits.
const BLOCK_MAX: u64 = 1 << 62;
/// Regions that a host may tell of: a file system's journal, and some databases' logs.
const TOLD_MAX: usize = 16;
/// Tells journal writes from others. See the crate.
#[derive(Clone, Debug)]
pub struct Detector {
    config: Config,
    table: Table,
    /// The track of the last write.
    last: usize,
    /// Blocks that were written so far: the time by which tracks age.
    clock: u64,
    told: Vec<Region>,
}

impl Detector {
    /// Knows nothing. Numbers that can't be are taken as the nearest that can.
    pub fn new(config: Config) -> Detector {
        let tracks = config.tracks.clamp(8, 1 << 12);
        let fresh = config.fresh.clamp(4, tracks / 2);
        let loops = config.loops.clamp(1, tracks - fresh);
        let Config { gap, back, header, region_min, confirm, .. } = config;
        let near = |blocks: u64| blocks.min(1 << 16);
        let config = Config {
            tracks,
            fresh,
            loops,
            gap: near(gap),
            back: near(back),
            header: near(header),
            confirm: near(confirm),
            region_min: region_min.max(1),
            stray_part: config.stray_part.max(1),
            ..config
        };
        let told = Vec::with_capacity(TOLD_MAX);
        Detector { config, table: Table::new(config), last: 0, clock: 0, told }
    }

    /// A write of so many blocks, in the order in which the drive gets them.
    pub fn write(&mut self, lba: Lba, blocks: u32) -> Class {
        let (first, blocks) = (lba.get().min(BLOCK_MAX), u64::from(blocks));
        if blocks == 0 {
            return Class::Normal;
        }
        self.clock = self.clock.saturating_add(blocks);
        if !self.told.is_empty() && self.is_told(first, blocks) {
            return Class::Journal;
        }
        let found = match self.table.head(self.last) == first {
            true => Some(self.last),
            false => self.table.find(first),
        };
        match found {
            Some(at) => self.go_on(at, first, blocks),
            None => self.begin(first, blocks),
        }
    }

    /// A write where the host says that its journal is.
    fn is_told(&mut self, first: u64, blocks: u64) -> bool {
        let holds = |told: &&mut Region| (told.first.get()..told.end.get()).contains(&first);
        let Some(told) = self.told.iter_mut().find(holds) else { return false };
        told.head = Lba::new(first + blocks);
        told.blocks = told.blocks.saturating_add(blocks);
        true
    }

    /// What was written there is worth nothing any more: a log that was removed ends.
    pub fn discard(&mut self, lba: Lba, blocks: u64) {
        let first = lba.get().min(BLOCK_MAX);
        let end = first.saturating_add(blocks).min(BLOCK_MAX);
        for at in self.table.known() {
            let t = self.table.at(at);
            if t.kind == Kind::Loop && t.first < end && first < t.end {
                self.stray(at, end.min(t.end) - first.max(t.first));
            }
        }
    }

    /// The loops that are known, by place.
    pub fn regions(&self) -> Vec<Region> {
        let region = |at: usize| {
            let t = self.table.at(at);
            let (first, end, head) = (t.first, t.end, self.table.head(at));
            let [first, end, head] =
                [first, end, if head == NOWHERE { first } else { head }].map(Lba::new);
            let laps = t.laps.max(t.bulk_laps);
            Region { first, end, head, laps, blocks: t.blocks, told: false }
        };
        let loops = self.table.of(Kind::Loop);
        let mut all: Vec<Region> = loops.map(region).chain(self.told.iter().copied()).collect();
        all.sort_by_key(|region| (region.first.get(), region.end.get()));
        all
    }

    /// The host says that its journal is there: all writes in it are a journal's, from now on.
    /// False where it has told of too many, or of none.
    pub fn hint(&mut self, first: Lba, end: Lba) -> bool {
        let (from, to) = (first.get().min(BLOCK_MAX), end.get().min(BLOCK_MAX));
        if from >= to || self.told.len() == TOLD_MAX {
            return false;
        }
        let (first, end) = (Lba::new(from), Lba::new(to));
        self.told.push(Region { first, end, head: first, laps: 0, blocks: 0, told: true });
        true
    }

    /// Nothing is known any more of what touches this range, the host's hints included.
    pub fn forget(&mut self, first: Lba, end: Lba) {
        let (first, end) = (first.get(), end.get());
        self.told.retain(|told| told.first.get() >= end || told.end.get() <= first);
        for at in 0..self.config.tracks {
            if self.table.touches(at, first, end) {
                self.table.free(at);
            }
        }
    }

    /// After a power cut: blocks that lie where journals are kept, in ascending order, say which
    /// loops there were. Where their heads are is learned again, and a loop that is none any more
    /// ends as any other.
    pub fn rebuild(&mut self, blocks: impl IntoIterator<Item = Lba>) {
        let mut range: Option<(u64, u64)> = None;
        for block in blocks.into_iter().map(|lba| lba.get().min(BLOCK_MAX)) {
            match &mut range {
                Some((first, end)) if block >= *first && block <= *end + self.config.gap => {
                    *end = (*end).max(block + 1);
                }
                _ => {
                    self.believe(range.replace((block, block + 1)));
                }
            }
        }
        self.believe(range);
    }

    /// Takes a range as a loop that was gone round once.
    fn believe(&mut self, range: Option<(u64, u64)>) {
        let Some((first, end)) = range.filter(|(first, end)| end - first >= self.config.region_min)
        else {
            return;
        };
        let at = self.table.room();
        let (reach, reach_before) = (end, end);
        let known = Track { first, end, reach, reach_before, laps: 1, ..Track::FREE };
        *self.table.at_mut(at) = Track { kind: Kind::Run, touched: self.clock, ..known };
        self.table.moved(at);
        self.close(at);
    }

    /// A write at the head of a track.
    #[inline(never)]
    fn go_on(&mut self, at: usize, first: u64, blocks: u64) -> Class {
        let at = self.table.keep(at);
        let (head, end) = (self.table.head(at), first + blocks);
        let t = self.table.at_mut(at);
        let pass = &mut t.pass;
        if t.kind == Kind::Fresh && pass.blocks < self.config.confirm {
            // Headers that were written long ago, and now what comes behind them.
            pass.began = self.clock - blocks;
        }
        pass.add(blocks, &self.config);
        self.last = at;
        match () {
            () if first > head => pass.holes += 1,
            // Its last block was not full: a record ended there.
            () if first < head && end > head => pass.transactions += 1,
            // What was overtaken fills the gap.
            () if end < head => pass.holes = pass.holes.saturating_sub(1),
            () => {}
        }
        t.touched = self.clock;
        if end > head {
            pass.blocks += end - head;
            t.reach = t.reach.max(end);
            self.table.set_head(at, end);
        } else if t.kind == Kind::Fresh && first <= pass.start {
            // The same block again and again: what comes behind it begins now.
            *t = Track::begin(first, blocks.max(head - first), self.clock, &self.config);
        }
        match self.table.at(at).kind {
            Kind::Loop => self.go_on_round(at, first, blocks),
            Kind::Run => {
                let t = self.table.at(at);
                // Another round, of which its beginning did not say whose it is.
                if t.is_proven && first < t.end && t.pass.may_go_on(&self.config) {
                    self.close(at);
                    return Class::Journal;
                }
                self.table.grown(at, end);
                let closed = end > self.table.limit(at) && self.run_into(at, blocks);
                if closed { Class::Journal } else { Class::Normal }
            }
            _ => self.grow(at, first, blocks),
        }
    }

    /// A write at the head of a loop.
    fn go_on_round(&mut self, at: usize, first: u64, blocks: u64) -> Class {
        let t = self.table.at_mut(at);
        // Behind its end there may be other things: that it has grown is known after the round.
        if first >= t.end {
            if first + blocks > self.table.limit(at) {
                self.run_into(at, blocks);
            }
            return Class::Normal;
        }
        t.blocks = t.blocks.saturating_add(blocks);
        Class::Journal
    }

    /// A track that is new has grown.
    fn grow(&mut self, at: usize, first: u64, blocks: u64) -> Class {
        let (t, config) = (*self.table.at(at), self.config);
        let around = self.table.around(t.pass.start);
        if t.pass.blocks < config.confirm {
            return self.header(around, first, blocks);
        }
        if let Some(known) = around {
            let k = self.table.at(known);
            if k.is_start(t.pass.start, &config) && k.touched <= t.pass.began {
                return self.go_round(known, at);
            }
            if k.kind == Kind::Loop {
                if !t.pass.goes_on(&config) {
                    self.stray(known, blocks);
                    return Class::Normal;
                }
                self.take_over(known, at);
                let k = self.table.at_mut(known);
                k.stray = k.stray.saturating_sub(t.pass.written);
                k.blocks = k.blocks.saturating_add(blocks);
                return Class::Journal;
            }
        }
        if t.pass.blocks >= config.region_min {
            return self.become_run(at);
        }
        let closed = self.table.head(at) > self.table.limit_of(at) && self.run_into(at, blocks);
        if closed { Class::Journal } else { Class::Normal }
    }

    /// A new track at the start of a known one is long enough: another round.
    fn go_round(&mut self, known: usize, new: usize) -> Class {
        let (config, pass) = (self.config, self.table.pass(new));
        let k = self.table.at_mut(known);
        if k.kind != Kind::Loop && pass.requests < 2 && !mutant!("detect.one-request-is-round") {
            return Class::Normal;
        }
        // Who writes a file again as a whole does something else, too, before he does it once more.
        let pause = pass.began.saturating_sub(k.touched);
        let at_once = pause <= k.len();
        let sparse = k.pass.is_sparse(&config);
        k.judge(&config);
        k.prove(pause, &config);
        let closed = match k.kind {
            Kind::Loop => !sparse,
            _ if k.is_proven => pass.may_go_on(&config) || at_once,
            _ => k.bulk_laps >= config.bulk_laps && at_once,
        };
        let was_loop = k.kind == Kind::Loop;
        self.take_over(known, new);
        let k = self.table.at_mut(known);
        if !closed || k.len() < config.region_min {
            if was_loop {
                self.table.free(known);
            }
            return Class::Normal;
        }
        if was_loop {
            k.blocks = k.blocks.saturating_add(pass.written);
        } else {
            self.close(known);
        }
        Class::Journal
    }

    /// The head of a known track is where a new one is.
    fn take_over(&mut self, known: usize, new: usize) {
        let (pass, head, config) = (self.table.pass(new), self.table.head(new), self.config);
        let k = self.table.at_mut(known);
        if k.is_start(pass.start, &config) {
            k.next_pass(pass, head);
        } else {
            k.reach = k.reach.max(head);
        }
        k.touched = self.clock;
        self.table.set_head(known, head);
        self.table.moved(known);
        self.table.free(new);
        self.last = known;
    }

    /// A new track is long enough to be a run. Where it lies in another one, that one ends where
    /// this begins: its rest was gone round, if both look like a log's.
    fn become_run(&mut self, new: usize) -> Class {
        let config = self.config;
        let around = self.table.around(self.table.at(new).pass.start);
        let at = self.table.promote(new);
        self.last = at;
        let t = self.table.at_mut(at);
        (t.kind, t.end) = (Kind::Run, t.reach);
        let pass = t.pass;
        let mut closed = false;
        // It may just have made room for this.
        if let Some(known) = around.filter(|known| *known != at)
            && let k = *self.table.at(known)
            && k.kind == Kind::Run
            && k.first < pass.start
        {
            let before = k.pass.blocks >= config.region_min && k.touched <= pass.began;
            let again = before && k.pass.is_log(&config);
            closed = again && pass.is_log(&config) && k.end - pass.start >= config.small;
            let head = self.table.head(known).min(pass.start);
            let t = self.table.at_mut(at);
            t.end = t.end.max(k.end);
            t.reach_before = t.end;
            t.laps = u32::from(again);
            t.is_proven = again && t.len() >= config.small;
            let k = self.table.at_mut(known);
            k.end = pass.start;
            (k.reach, k.reach_before) = (k.reach.min(k.end), k.reach_before.min(k.end));
            self.table.set_head(known, head);
            match self.table.at(known).len() < config.region_min {
                true => self.table.free(known),
                false => self.table.moved(known),
            }
        }
        self.table.moved(at);
        if closed {
            self.close(at);
            return Class::Journal;
        }
        Class::Normal
    }

    /// The head of a track has come to where another one begins. Is it the same log, known from
    /// somewhere in its middle? Then the round is closed here. Whatever else runs over a loop ends
    /// it.
    fn run_into(&mut self, at: usize, blocks: u64) -> bool {
        let (config, head, t) = (self.config, self.table.head(at), *self.table.at(at));
        let holds = |o: &Track| o.first > t.first && (o.first..o.end).contains(&(head - 1));
        let into = self.table.known().find(|o| {
            let other = self.table.at(*o);
            *o != at && other.is_known() && holds(other)
        });
        let Some(other) = into else {
            self.table.look_up(at);
            return false;
        };
        let (o, end) = (*self.table.at(other), self.table.head(other));
        // What is missing of a round may be a single transaction: an eighth of it says nothing.
        let short = o.first.saturating_sub(t.pass.start) <= o.len() / 8;
        let that = o.pass.is_log(&config);
        let this = t.pass.may_go_on(&config) || (that && short && !t.pass.is_sparse(&config));
        // It was written to its end, then this began; or something else was, where logs have more
        // than one extent.
        let idle = o.touched.saturating_add(config.region_min) <= self.clock;
        let before = (o.touched <= t.pass.began || (idle && this && that))
            && end != NOWHERE
            && end + config.gap >= o.end.min(o.reach);
        // The start of a loop may have been missed when it was new.
        let near = o.kind == Kind::Loop && short;
        // A part of a round may be a single transaction.
        let at_once = t.pass.began.saturating_sub(o.touched) <= o.len()
            && !t.pass.is_sparse(&config)
            && !o.pass.is_sparse(&config);
        let logs = match o.kind {
            Kind::Loop => this || near,
            _ => (this && that) || (at_once && (this || that)),
        };
        let one_log = before && logs;
        if o.kind == Kind::Loop && !one_log {
            if t.kind != Kind::Loop {
                self.stray(other, blocks);
            }
            return false;
        }
        let closed = one_log && o.pass.blocks + t.pass.blocks >= config.small;
        self.table.free(other);
        let at = if t.is_known() { at } else { self.table.promote(at) };
        self.last = at;
        let k = self.table.at_mut(at);
        if !t.is_known() {
            k.kind = Kind::Run;
        }
        k.end = o.end.max(head);
        (k.reach, k.reach_before) = (head, k.end);
        k.laps = k.laps.max(o.laps).max(u32::from(closed));
        k.blocks = k.blocks.saturating_add(o.blocks);
        self.table.moved(at);
        if closed {
            self.close(at);
        }
        closed
    }

    /// A write where no head is.
    #[inline]
    fn begin(&mut self, first: u64, blocks: u64) -> Class {
        self.last = self.table.see(first, blocks, self.clock);
        match self.table.around(first) {
            Some(known) => self.begin_in(known, first, blocks),
            None => Class::Normal,
        }
    }

    /// The same within what is known.
    #[inline(never)]
    fn begin_in(&mut self, known: usize, first: u64, blocks: u64) -> Class {
        let (k, config) = (self.table.at(known), &self.config);
        match k.kind == Kind::Loop && k.is_start(first, config) && blocks >= config.confirm {
            true => self.go_round(known, self.last),
            false => self.header(Some(known), first, blocks),
        }
    }

    /// A short write in a loop which is not at its head.
    fn header(&mut self, around: Option<usize>, first: u64, blocks: u64) -> Class {
        let Some(known) = around else { return Class::Normal };
        let t = self.table.at_mut(known);
        if t.kind != Kind::Loop {
            return Class::Normal;
        }
        if first < t.first + self.config.header {
            t.blocks = t.blocks.saturating_add(blocks);
            return Class::Journal;
        }
        self.stray(known, blocks);
        Class::Normal
    }

    /// Somebody else wrote in a loop.
    fn stray(&mut self, at: usize, blocks: u64) {
        let t = self.table.at_mut(at);
        t.stray = t.stray.saturating_add(blocks);
        if t.stray >= t.len() / self.config.stray_part && !mutant!("detect.strays-are-ignored") {
            self.table.free(at);
        }
    }

    /// A run is a loop from now on. If there are enough of them, the oldest is none any more.
    fn close(&mut self, at: usize) {
        if self.table.of(Kind::Loop).filter(|known| *known != at).count() >= self.config.loops {
            let oldest = self.table.of(Kind::Loop).filter(|known| *known != at);
            if let Some(oldest) = oldest.min_by_key(|known| self.table.at(*known).touched) {
                self.table.free(oldest);
            }
        }
        let t = self.table.at_mut(at);
        (t.kind, t.stray) = (Kind::Loop, 0);
    }

    /// Its bounds, for tests.
    #[cfg(test)]
    pub(crate) fn check(&self) {
        assert!(self.told.len() <= TOLD_MAX);
        self.table.check();
    }
}
