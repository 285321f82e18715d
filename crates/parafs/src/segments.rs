//! Segments: which pages of each are valid, which are free, what the heads fill.
//!
//! Owns: the segment table in memory, the heads, allocation. Promises: a page is given out once
//! between two trims of its segment; a segment that was valid at the last checkpoint is not given
//! out before the next one has forgotten it. Never: waits, or touches the medium.
//!
//! A region is a flash channel. Each has six heads (ParaFS paper, 3.2): hot, warm and cold, for
//! nodes and for data, with the hints of F2FS. Pages go over the regions one by one, to the one
//! whose channel has least to do ([`Channels`]).
//!
//! Where files have so much that not every region can have six heads any more, the regions share
//! the heads of each heat but [`Heat::WarmData`] ([`Segments::shares_heads`]).

use crate::channels::Channels;
use crate::error::FsError;
use crate::format::{Addr, HEADS, Heads, Layout, Owner, SegmentEntry, Share};
use crate::fs::bit;
use crate::medium::Written;
use crate::state::{Need, Step, Stop};
use flashlane_base::mutant;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// How soon a page is expected to be overwritten, and what it is (F2FS, FAST '15, table 1).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Heat {
    /// Inodes and direct nodes of directories.
    HotNode = 0,
    /// Inodes and direct nodes of files.
    WarmNode = 1,
    /// Indirect nodes.
    ColdNode = 2,
    /// Entries of directories.
    HotData = 3,
    /// Files.
    WarmData = 4,
    /// What cleaning moved in the background.
    ColdData = 5,
}

impl Heat {
    pub(crate) const ALL: [Heat; HEADS as usize] = [
        Heat::HotNode,
        Heat::WarmNode,
        Heat::ColdNode,
        Heat::HotData,
        Heat::WarmData,
        Heat::ColdData,
    ];

    /// Those that a checkpoint writes: nodes, and pages of directories.
    pub(crate) const OF_CHECKPOINT: [Heat; 4] =
        [Heat::HotNode, Heat::WarmNode, Heat::ColdNode, Heat::HotData];

    pub(crate) fn is_node(self) -> bool {
        self <= Heat::ColdNode
    }
}

/// Which region a page goes to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Allocation {
    /// Page by page over the regions (ParaFS paper, 3.2: 2-D allocation).
    #[default]
    Pages,
    /// A head fills a segment, then one of the next region (the paper's block stripe).
    Blocks,
}

/// What a segment is used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    Free,
    /// A head has it, and fills it later.
    Assigned,
    /// A head fills it.
    Open,
    /// It was filled, or its head was closed.
    Full,
    /// Nothing in it is valid; a checkpoint that says so is being written.
    Leaving,
    /// The checkpoint is durable: it is to be trimmed.
    Trimming,
    /// The medium can't give it any more.
    Dead,
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) used: Use,
    /// Valid pages.
    pub(crate) valid: u32,
    /// Units of pages that are in use: where nodes share pages, a valid page may be so in part.
    units: u64,
    /// Pages whose writes are under way.
    pub(crate) pending: u32,
    pub(crate) entry: SegmentEntry,
    /// Whose its pages are, where that is in memory.
    pub(crate) owners: Option<Vec<Owner>>,
    /// Its summary on the medium lacks owners.
    pub(crate) unsaved: bool,
    /// What the medium has of them is in `owners`, too.
    pub(crate) asked: bool,
    /// Something of it could not be read: it is no victim before the next mount, nor what else is in it
    /// moved for nothing again and again.
    pub(crate) unread: bool,
}

#[derive(Clone, Debug, Default)]
struct Head {
    /// Segments that it fills, and the next page of each.
    open: Vec<(u32, u32)>,
    next: VecDeque<u32>,
}

/// What was programmed in a segment, of this mount.
#[derive(Clone, Copy, Debug)]
struct Tail {
    /// Behind the last page that is not padding.
    content: u32,
    /// Behind the last page.
    programmed: u32,
    /// Somebody closes the pairs behind what a head has left.
    sealing: bool,
}

/// What it takes to close the pairs of a segment up to a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Close {
    /// They are closed.
    Nothing,
    /// Padding of so many pages from this one on, which no head gives to anybody any more.
    Pad(Addr, u32),
    /// What others write behind it.
    Wait,
    /// No head fills it any more: its block is padded.
    Seal,
}

pub(crate) struct Segments {
    layout: Layout,
    all: Vec<Segment>,
    /// Per region, six.
    heads: Vec<Head>,
    /// Free segments of each region.
    free: Vec<BTreeSet<u32>>,
    /// The same with those that heads have and have not begun.
    unwritten: Vec<u32>,
    /// Whose entries have changed since the table was written.
    pub(crate) changed: BTreeSet<u32>,
    /// Segments that hold nothing valid and are no head's: a checkpoint frees them.
    empty: BTreeSet<u32>,
    /// Of all segments.
    valid: u64,
    units: u64,
    /// Segments that the medium can't give any more.
    dead: u32,
    /// The region that comes next, per heat.
    turn: [u32; HEADS as usize],
    /// Seconds of the file system's life.
    pub(crate) age: u64,
    pub(crate) allocation: Allocation,
    /// Segments that a head fills at a time: on flash each PU of a channel has one.
    pub(crate) lanes: u32,
    /// Segments that are kept as long as files leave so many: heads of every region, and what is
    /// cleaned with. Nothing where files can't have them at all.
    pub(crate) full_reserve: Option<u32>,
    /// See [`crate::medium::Medium::pair_pages`].
    pub(crate) pair_pages: u32,
    /// What was programmed in segments since their last trim, where pages have pairs.
    tails: BTreeMap<u32, Tail>,
    channels: Arc<Channels>,
}

impl Segments {
    /// All are free.
    pub(crate) fn new(layout: Layout, channels: Arc<Channels>) -> Segments {
        let shape = layout.shape;
        let entry = SegmentEntry::empty(&layout);
        let segment = Segment {
            used: Use::Free,
            valid: 0,
            units: 0,
            pending: 0,
            entry,
            owners: None,
            unsaved: false,
            asked: false,
            unread: false,
        };
        let of_region = |region: u32| {
            let first = region * shape.region_segments;
            (first..first + shape.region_segments).collect()
        };
        (0..shape.regions).for_each(|r| channels.set_free(r, shape.region_segments));
        Segments {
            layout,
            all: vec![segment; shape.segments() as usize],
            heads: vec![Head::default(); (shape.regions * HEADS) as usize],
            free: (0..shape.regions).map(of_region).collect(),
            unwritten: vec![shape.region_segments; shape.regions as usize],
            changed: BTreeSet::new(),
            empty: BTreeSet::new(),
            valid: 0,
            units: 0,
            dead: 0,
            turn: [0; HEADS as usize],
            age: 0,
            allocation: Allocation::default(),
            lanes: 1,
            full_reserve: None,
            pair_pages: 0,
            tails: BTreeMap::new(),
            channels,
        }
    }

    /// As a checkpoint has them. `heads` go on where they were.
    pub(crate) fn load(
        layout: Layout,
        channels: Arc<Channels>,
        entries: Vec<SegmentEntry>,
        heads: &[Heads],
    ) -> Result<Segments, FsError> {
        let mut s = Segments::new(layout, channels);
        for (number, entry) in entries.into_iter().enumerate() {
            let valid = (0..layout.shape.segment_pages).filter(|p| bit(&entry.valid, *p)).count();
            s.all[number].valid = valid as u32;
            // Of a segment without anything valid the summary tells of an earlier use.
            s.all[number].asked = valid == 0;
            s.valid += valid as u64;
            s.all[number].units = entry.all_units();
            s.units += entry.all_units();
            s.all[number].entry = entry;
            if valid > 0 {
                s.set_used(number as u32, Use::Full);
            }
        }
        for (at, found) in heads.iter().enumerate() {
            let region = at as u32 / HEADS;
            let mut given = |segment: u32, from: u32, used: Use| {
                let here = layout.region_of(segment) == region;
                let is = &s.all[segment as usize];
                // A head would overwrite what is valid.
                let valid = (from..layout.shape.segment_pages).any(|p| bit(&is.entry.valid, p));
                match is.used {
                    Use::Free | Use::Full if here && !valid => {
                        s.set_used(segment, used);
                        Ok(())
                    }
                    _ => Err(FsError::Damaged(format!(
                        "the checkpoint gives segment {segment} to a head that can't have it"
                    ))),
                }
            };
            for (segment, from) in &found.open {
                given(*segment, *from, Use::Open)?;
            }
            for segment in &found.next {
                given(*segment, 0, Use::Assigned)?;
            }
            s.heads[at] =
                Head { open: found.open.clone(), next: found.next.iter().copied().collect() };
        }
        Ok(s)
    }

    /// What the medium says of its segments: those that were written to and hold nothing are erased
    /// before they are used, and a head goes on only where it stopped.
    pub(crate) fn compare(&mut self, written: impl Fn(u32) -> Option<Written>) {
        for segment in 0..self.all.len() as u32 {
            let used = self.all[segment as usize].used;
            match (written(segment), used) {
                (Some(Written::Gone), _) if self.all[segment as usize].valid == 0 => {
                    self.set_used(segment, Use::Dead);
                }
                (Some(Written::Pages(1..)), Use::Free) => self.set_used(segment, Use::Full),
                _ => {}
            }
        }
        for head in 0..self.heads.len() {
            for (segment, page) in self.heads[head].open.clone() {
                if written(segment).is_some_and(|found| found != Written::Pages(page)) {
                    self.close(head, segment);
                }
            }
            let next = std::mem::take(&mut self.heads[head].next);
            for segment in next {
                match written(segment) {
                    None | Some(Written::Pages(0)) => self.heads[head].next.push_back(segment),
                    Some(Written::Gone) => self.set_used(segment, Use::Dead),
                    Some(Written::Pages(_)) => self.set_used(segment, Use::Full),
                }
            }
        }
    }

    /// Segments of which pages are valid that are not there: (segment, such pages). `there` says
    /// how many pages the medium has of each, where it knows.
    pub(crate) fn missing(&self, there: impl Fn(u32) -> Option<u32>) -> Vec<(u32, u32)> {
        let pages = self.layout.shape.segment_pages;
        let lacks = |segment: u32| {
            let s = &self.all[segment as usize];
            let from = if s.valid > 0 { there(segment)? } else { pages };
            let count = (from..pages).filter(|page| bit(&s.entry.valid, *page)).count();
            (count > 0).then_some((segment, count as u32))
        };
        (0..self.all.len() as u32).filter_map(lacks).collect()
    }

    fn set_used(&mut self, segment: u32, used: Use) {
        let region = self.layout.region_of(segment) as usize;
        match used {
            Use::Free => self.free[region].insert(segment),
            _ => self.free[region].remove(&segment),
        };
        let s = &mut self.all[segment as usize];
        let was = std::mem::replace(&mut s.used, used);
        // What a head has and has not begun is free flash, too.
        let empty = |used: Use| u32::from(matches!(used, Use::Free | Use::Assigned));
        self.unwritten[region] = self.unwritten[region] + empty(used) - empty(was);
        if empty(used) != empty(was) {
            self.channels.set_free(region as u32, self.unwritten[region]);
        }
        self.dead = self.dead + u32::from(used == Use::Dead) - u32::from(was == Use::Dead);
        match used == Use::Full && s.valid == 0 && s.pending == 0 {
            true => self.empty.insert(segment),
            false => self.empty.remove(&segment),
        };
    }

    pub(crate) fn get(&self, segment: u32) -> &Segment {
        &self.all[segment as usize]
    }

    /// Segments that the medium can't give any more.
    pub(crate) fn dead(&self) -> u32 {
        self.dead
    }

    /// Segments of which something could not be read.
    pub(crate) fn unread(&self) -> usize {
        self.all.iter().filter(|s| s.unread).count()
    }

    /// Units of pages in use, of all segments.
    pub(crate) fn units(&self) -> u64 {
        self.units
    }

    /// Pages that the content of a segment takes when it is moved. Of a page that nodes share only the
    /// units in use are moved.
    pub(crate) fn cost(&self, segment: u32) -> u32 {
        self.all[segment as usize].units.div_ceil(u64::from(Share::PAGE)) as u32
    }

    pub(crate) fn is_valid(&self, addr: Addr) -> bool {
        let (segment, page) = self.layout.segment_of(addr);
        bit(&self.all[segment as usize].entry.valid, page)
    }

    /// Free segments, of all regions.
    pub(crate) fn free(&self) -> u32 {
        self.free.iter().map(|free| free.len() as u32).sum()
    }

    /// Free segments of a region.
    pub(crate) fn free_of(&self, region: u32) -> u32 {
        self.free[region as usize].len() as u32
    }

    /// Pages that heads can give without another segment, of all heads.
    pub(crate) fn heads_have(&self) -> u64 {
        self.heads.iter().map(|head| self.head_has(head)).sum()
    }

    /// Pages in segments that the heads of a heat fill.
    pub(crate) fn heat_has_begun(&self, heat: Heat) -> u64 {
        let regions = 0..self.layout.shape.regions;
        regions.map(|region| self.head_has_begun(&self.heads[self.head(region, heat)])).sum()
    }

    /// The same without what an fsync may pad there before somebody takes it.
    pub(crate) fn heat_keeps(&self, heat: Heat) -> u64 {
        let pages = self.layout.shape.segment_pages;
        let keeps =
            |(_, next): &(u32, u32)| u64::from((pages - next).saturating_sub(self.pair_pages));
        let regions = 0..self.layout.shape.regions;
        let heads = regions.map(|region| &self.heads[self.head(region, heat)]);
        heads.flat_map(|head| &head.open).map(keeps).sum()
    }

    /// Segments without content, of all regions.
    pub(crate) fn unwritten(&self) -> u32 {
        self.unwritten.iter().sum()
    }

    /// Segments in which nothing is valid.
    pub(crate) fn without_content(&self) -> BTreeSet<u32> {
        (0..).zip(&self.all).filter(|(_, s)| s.valid == 0).map(|(number, _)| number).collect()
    }

    /// Segments that the next checkpoint frees.
    pub(crate) fn empty(&self) -> u32 {
        self.empty.len() as u32
    }

    /// Pages that a head can give without another segment.
    fn head_has(&self, head: &Head) -> u64 {
        self.head_has_begun(head)
            + head.next.len() as u64 * u64::from(self.layout.shape.segment_pages)
    }

    /// Those of them that are in segments that it fills.
    fn head_has_begun(&self, head: &Head) -> u64 {
        let pages = u64::from(self.layout.shape.segment_pages);
        head.open.iter().map(|(_, page)| pages - u64::from(*page)).sum()
    }

    fn head(&self, region: u32, heat: Heat) -> usize {
        (region * HEADS) as usize + heat as usize
    }

    /// The next page for content of this heat, in the region whose turn it is. It counts as pending
    /// until its write has ended ([`Segments::arrived`]). Of the free segments `kept` are for others.
    pub(crate) fn allocate(&mut self, heat: Heat, owner: Owner, kept: u32) -> Step<Addr> {
        match self.next_able(heat, kept) {
            Some(region) if self.has(region, heat) > 0 => Ok(self.give(region, heat, owner)),
            Some(region) => Err(Stop::Need(Need::Segments { region, heat, each: 0 })),
            None => Err(Stop::Need(Need::Room { kept })),
        }
    }

    /// Pages that the head of a region and a heat can give without another segment.
    fn has(&self, region: u32, heat: Heat) -> u64 {
        self.head_has(&self.heads[self.head(region, heat)])
    }

    /// Files have segments that heads of every region would take.
    pub(crate) fn shares_heads(&self) -> bool {
        let Some(full) = self.full_reserve else { return false };
        let most = self.layout.shape.segments().saturating_sub(full + self.dead);
        let pages = u64::from(self.layout.shape.segment_pages);
        self.valid > u64::from(most) * pages && !mutant!("parafs.heads-never-shared")
    }

    /// The regions share the heads of this heat: none gets a segment as long as one has a page.
    fn shares(&self, heat: Heat) -> bool {
        heat != Heat::WarmData && self.shares_heads()
    }

    /// The region that content of this heat goes to next: its head has a page, or may get a segment.
    fn next_able(&self, heat: Heat, kept: u32) -> Option<u32> {
        if self.shares(heat)
            && let Some(region) = self.next_region(heat, |region| self.has(region, heat) > 0)
        {
            return Some(region);
        }
        let may_get = self.free() > kept;
        let may_get = |region: u32| may_get && !self.free[region as usize].is_empty();
        self.next_region(heat, |region| self.has(region, heat) > 0 || may_get(region))
    }

    /// The region that content of this heat goes to next, of those that are able to take it: the one
    /// whose channel has least to do, and of equals, or where that does not count, the one whose turn
    /// it is.
    fn next_region(&self, heat: Heat, able: impl Fn(u32) -> bool) -> Option<u32> {
        let (regions, turn) = (self.layout.shape.regions, self.turn[heat as usize]);
        let mut in_turn = (0..regions).map(|i| (turn + i) % regions).filter(|r| able(*r));
        match self.channels.loads() {
            Some(loads) if self.allocation == Allocation::Pages => {
                in_turn.min_by_key(|region| loads[*region as usize])
            }
            _ => in_turn.next(),
        }
    }

    /// Heads have so many pages of this heat, so that [`Segments::allocate_reserved`] gives them. As long
    /// as more segments are free than `kept`, they go over the regions as those of
    /// [`Segments::allocate`] do: the pages that one head has left do not do for all.
    pub(crate) fn reserve(&self, heat: Heat, pages: u64, kept: u32) -> Step<()> {
        if let Some(region) = self.next_able(heat, kept)
            && self.has(region, heat) == 0
            && !mutant!("parafs.one-head-for-nodes")
        {
            return Err(Stop::Need(Need::Segments { region, heat, each: 0 }));
        }
        let regions = 0..self.layout.shape.regions;
        if regions.clone().map(|region| self.has(region, heat)).sum::<u64>() >= pages {
            return Ok(());
        }
        let least = regions
            .filter(|region| !self.free[*region as usize].is_empty())
            .min_by_key(|region| (self.has(*region, heat), *region));
        match least {
            Some(region) => Err(Stop::Need(Need::Segments { region, heat, each: 0 })),
            None => Err(Stop::Need(Need::Room { kept: 0 })),
        }
    }

    /// Every head of this heat has its share of so many pages, so that they take all channels as long as
    /// each other: as far as that leaves `kept` free segments. A channel whose head has less is done sooner,
    /// and the others have its pages, too.
    pub(crate) fn level(&self, heat: Heat, pages: u64, kept: u32) -> Step<()> {
        if self.shares(heat) {
            return Ok(());
        }
        let regions = 0..self.layout.shape.regions;
        let each = pages / u64::from(self.layout.shape.regions);
        let lacks = |region: u32| each.saturating_sub(self.has(region, heat));
        let segments = |pages: u64| pages.div_ceil(u64::from(self.layout.shape.segment_pages));
        let lacking: u64 = regions.clone().map(|region| segments(lacks(region))).sum();
        let has_one = |region: &u32| !self.free[*region as usize].is_empty();
        match regions.filter(has_one).max_by_key(|region| lacks(*region)) {
            Some(region)
                if lacks(region) > 0
                    && lacking + u64::from(kept) <= u64::from(self.free())
                    && !mutant!("parafs.checkpoint-on-few-channels") =>
            {
                Err(Stop::Need(Need::Segments { region, heat, each }))
            }
            _ => Ok(()),
        }
    }

    /// There are so many pages of each heat, with the free segments and those that heads have not begun.
    pub(crate) fn has_for_all(&self, wanted: &[(Heat, u64)]) -> bool {
        let segment = u64::from(self.layout.shape.segment_pages);
        let lacks = |&(heat, pages): &(Heat, u64)| {
            pages.saturating_sub(self.heat_has_begun(heat)).div_ceil(segment)
        };
        let next: usize = self.heads.iter().map(|head| head.next.len()).sum();
        wanted.iter().map(lacks).sum::<u64>() <= u64::from(self.free()) + next as u64
    }

    /// The next page, of those that were reserved.
    pub(crate) fn allocate_reserved(&mut self, heat: Heat, owner: Owner) -> Addr {
        let has = |region: u32| self.has(region, heat) > 0;
        let region = self.next_region(heat, has).expect("they were reserved");
        self.give(region, heat, owner)
    }

    /// The next page of a head that has one.
    fn give(&mut self, region: u32, heat: Heat, owner: Owner) -> Addr {
        let at = self.head(region, heat);
        if self.heads[at].open.len() < self.lanes as usize
            && let Some(segment) = self.heads[at].next.pop_front()
        {
            self.set_used(segment, Use::Open);
            let s = &mut self.all[segment as usize];
            s.entry.kind = heat as u8;
            (s.owners, s.asked) = (Some(Vec::new()), true);
            // A checkpoint may name the head before anything here is valid.
            self.changed.insert(segment);
            self.heads[at].open.push((segment, 0));
        }
        // The PU that has least to do with this head's pages.
        let busy = |open: &&mut (u32, u32)| (self.all[open.0 as usize].pending, open.1);
        let open = self.heads[at].open.iter_mut().min_by_key(busy).expect("it has one");
        let (segment, page) = *open;
        open.1 += 1;
        let s = &mut self.all[segment as usize];
        let owners = s.owners.get_or_insert_default();
        owners.resize(page as usize, Owner::default());
        owners.push(owner);
        s.unsaved = true;
        s.pending += 1;
        let is_full = page + 1 == self.layout.shape.segment_pages;
        if is_full {
            self.close(at, segment);
        }
        self.turn[heat as usize] = match self.allocation == Allocation::Pages || is_full {
            true => (region + 1) % self.layout.shape.regions,
            false => region,
        };
        let addr = self.layout.addr(segment, page);
        self.channels.place(addr);
        addr
    }

    /// Pages were programmed, padding or not, and all before them in their segment. Who writes them may
    /// say so in any order. It is called where pages have pairs only.
    pub(crate) fn programmed(&mut self, addr: Addr, pages: u32, padding: bool) {
        let (segment, page) = self.layout.segment_of(addr);
        let end = page + pages;
        let none = Tail { content: 0, programmed: 0, sealing: false };
        let tail = self.tails.entry(segment).or_insert(none);
        tail.programmed = tail.programmed.max(end);
        if !padding {
            tail.content = tail.content.max(end);
        }
    }

    /// Segments with content in open page pairs, and behind which page of each that is.
    pub(crate) fn in_open_pairs(&self) -> BTreeMap<u32, u32> {
        let all = self.tails.iter().map(|(segment, tail)| (*segment, tail.content));
        all.filter(|(segment, end)| !self.is_closed(*segment, *end)).collect()
    }

    /// No torn program can take a page along that lies before this one in the segment.
    pub(crate) fn is_closed(&self, segment: u32, end: u32) -> bool {
        let full = self.layout.shape.segment_pages;
        let behind = |tail: &Tail| (end.min(tail.content) + self.pair_pages).min(full);
        self.tails.get(&segment).is_none_or(|tail| tail.programmed >= behind(tail))
    }

    /// Behind which page padding must reach so that no torn program can take a page along that lies
    /// before `end`; nothing where none can.
    fn pairs_end(&self, segment: u32, end: u32) -> Option<u32> {
        // What leaves with a checkpoint nobody relies on.
        let in_use = matches!(self.all[segment as usize].used, Use::Open | Use::Full);
        let tail = self.tails.get(&segment).filter(|_| in_use && !self.is_closed(segment, end))?;
        let full = self.layout.shape.segment_pages;
        Some((end.min(tail.content) + self.pair_pages).min(full))
    }

    /// What is to be done so that no torn program can take a page along that lies before `end` in the
    /// segment. `broken`: it takes no more pages.
    pub(crate) fn close_pairs(&mut self, segment: u32, end: u32, broken: bool) -> Close {
        let Some(target) = self.pairs_end(segment, end) else { return Close::Nothing };
        if broken {
            self.give_up(self.layout.addr(segment, 0));
        }
        let place = |head: &Head| head.open.iter().position(|(open, _)| *open == segment);
        let mut heads = self.heads.iter().enumerate();
        let found = heads.find_map(|(head, of)| Some((head, place(of)?)));
        let Some((head, at)) = found else {
            if !self.may_seal(segment, broken) {
                return Close::Wait;
            }
            self.tails.entry(segment).and_modify(|tail| tail.sealing = true);
            self.all[segment as usize].pending += 1;
            return Close::Seal;
        };
        let next = self.heads[head].open[at].1;
        if next >= target {
            return Close::Wait;
        }
        self.heads[head].open[at].1 = target;
        self.all[segment as usize].pending += 1;
        if target == self.layout.shape.segment_pages {
            self.close(head, segment);
        }
        let addr = self.layout.addr(segment, next);
        self.channels.place(addr);
        Close::Pad(addr, target - next)
    }

    /// Nobody writes to it any more, or closes its pairs. Of one that is full the rest may be on its
    /// way.
    fn may_seal(&self, segment: u32, broken: bool) -> bool {
        let sealing = self.tails.get(&segment).is_some_and(|tail| tail.sealing);
        !sealing && (broken || self.all[segment as usize].pending == 0)
    }

    /// Something has changed for who was told to wait ([`Close::Wait`]).
    pub(crate) fn goes_on(&self, segment: u32, end: u32, broken: bool) -> bool {
        self.pairs_end(segment, end).is_none() || self.may_seal(segment, broken)
    }

    /// The block of a segment was padded behind all that it has, if that worked.
    pub(crate) fn sealed(&mut self, segment: u32, worked: bool) {
        let full = self.layout.shape.segment_pages;
        if let Some(tail) = self.tails.get_mut(&segment) {
            tail.sealing = false;
            tail.programmed = if worked { full } else { tail.programmed };
        }
        self.arrived(self.layout.addr(segment, 0));
    }

    /// A head lets go of a segment that it fills.
    fn close(&mut self, head: usize, segment: u32) {
        self.heads[head].open.retain(|(open, _)| *open != segment);
        self.set_used(segment, Use::Full);
    }

    /// Nothing more is written to this segment: a write to it failed.
    pub(crate) fn give_up(&mut self, addr: Addr) {
        let (segment, _) = self.layout.segment_of(addr);
        let is = |head: &Head| head.open.iter().any(|(open, _)| *open == segment);
        if let Some(head) = self.heads.iter().position(is) {
            self.close(head, segment);
        }
    }

    /// No head writes to it any more; whether it holds something that can be moved.
    pub(crate) fn end_use(&mut self, segment: u32) -> bool {
        let s = &self.all[segment as usize];
        if s.used == Use::Open && s.pending == 0 {
            self.give_up(self.layout.addr(segment, 0));
        }
        self.is_full(segment)
    }

    /// Nothing more is written to any segment that is open now, as its end is not known.
    pub(crate) fn close_all(&mut self) {
        for head in 0..self.heads.len() {
            let Head { open, next } = std::mem::take(&mut self.heads[head]);
            // The next ones may hold what nobody knows of.
            for segment in open.into_iter().map(|(segment, _)| segment).chain(next) {
                self.set_used(segment, Use::Full);
            }
        }
    }

    /// The write of a page has ended.
    pub(crate) fn arrived(&mut self, addr: Addr) {
        let (segment, _) = self.layout.segment_of(addr);
        let s = &mut self.all[segment as usize];
        s.pending -= 1;
        // It may be empty now.
        let used = s.used;
        self.set_used(segment, used);
    }

    /// Something names a page that was written.
    pub(crate) fn set_valid(&mut self, addr: Addr) {
        self.set_units(addr, |_| Share::PAGE);
        let (segment, _) = self.layout.segment_of(addr);
        self.all[segment as usize].entry.changed = self.age;
    }

    /// A node has a share of a page now.
    pub(crate) fn add_share(&mut self, addr: Addr, share: Share) {
        self.set_units(addr, |units| (units + share.units()).min(Share::PAGE));
        let (segment, _) = self.layout.segment_of(addr);
        self.all[segment as usize].entry.changed = self.age;
    }

    /// A node has its share of a page no more.
    pub(crate) fn release(&mut self, addr: Addr, share: Share) {
        if self.layout.has(addr) {
            let all = mutant!("parafs.share-is-page");
            self.set_units(addr, |units| if all { 0 } else { units.saturating_sub(share.units()) });
        }
    }

    /// Has so many units of a page in use, by how many were.
    fn set_units(&mut self, addr: Addr, units: impl FnOnce(u8) -> u8) {
        let (segment, page) = self.layout.segment_of(addr);
        let s = &mut self.all[segment as usize];
        let before = s.entry.units(page);
        let now = units(before);
        s.entry.set(page, now);
        s.valid = s.valid + u32::from(now > 0) - u32::from(before > 0);
        self.valid = self.valid + u64::from(now > 0) - u64::from(before > 0);
        s.units = s.units + u64::from(now) - u64::from(before);
        self.units = self.units + u64::from(now) - u64::from(before);
        let used = s.used;
        self.set_used(segment, used);
        self.changed.insert(segment);
    }

    /// A mount looks at them: they are not used before its checkpoint has what it has found.
    pub(crate) fn seen(&mut self, segments: &[u32]) {
        for segment in segments {
            if self.all.get(*segment as usize).is_some_and(|s| s.used == Use::Free) {
                self.set_used(*segment, Use::Full);
            }
        }
    }

    /// A page that a mount has found, and whose it is.
    pub(crate) fn found(&mut self, addr: Addr, owner: Owner) {
        let (segment, page) = self.layout.segment_of(addr);
        let s = &mut self.all[segment as usize];
        if s.valid == 0 {
            s.entry.kind = Heat::WarmData as u8;
        }
        // What is valid by the checkpoint keeps its owner, though a mount has taken it away.
        if s.owners.is_none() && mutant!("parafs.summary-forgotten") {
            s.asked = s.valid == 0;
        }
        let owners = s.owners.get_or_insert_default();
        owners.resize(owners.len().max(page as usize + 1), Owner::default());
        owners[page as usize] = owner;
        s.unsaved = true;
        // All of it was on the way when the checkpoint was taken, so nothing there names it.
        if s.used == Use::Free && !mutant!("parafs.found-in-free") {
            self.set_used(segment, Use::Full);
        }
        self.set_valid(addr);
    }

    /// Nothing names the page any more.
    pub(crate) fn invalidate(&mut self, addr: Addr) {
        if self.layout.has(addr) {
            self.set_units(addr, |_| 0);
        }
    }

    /// Free segments for a head, as many as it gets at a time, and for all others of its heat that
    /// have none beside those they fill: (segment, region). One write of the window names them all, and
    /// who comes to those heads need not wait for another. Where few are left, or fewer than `keep` would
    /// be, it is one for that head and for others that have nearly run out: a cleaner would take more back,
    /// and nobody would get anywhere. Where that leaves fewer than `least`, or for a checkpoint, it is one
    /// for that head, and for those that have fewer than `each` pages ([`Segments::level`]): what one head
    /// does not need another one may. Heads that the regions share get one.
    pub(crate) fn choose(
        &self,
        (region, heat, each): (u32, Heat, u64),
        for_checkpoint: bool,
        (keep, least): (u32, u32),
    ) -> Vec<(u32, u32)> {
        let (regions, pages) = (self.layout.shape.regions, self.layout.shape.segment_pages);
        let for_checkpoint = for_checkpoint && !mutant!("parafs.checkpoint-takes-many");
        let alone = mutant!("parafs.heads-run-out-one-by-one");
        let is_last = |other: u32| self.heads[self.head(other, heat)].next.is_empty();
        let is_nearly_out = |other: u32| self.has(other, heat) <= u64::from(pages / 4);
        let take = |most: u32, others: &dyn Fn(u32) -> bool| -> Vec<(u32, u32)> {
            let whose = |other: &u32| *other == region || !alone && others(*other);
            let of = |other: u32| self.free[other as usize].iter().map(move |s| (*s, other));
            (0..regions).filter(whose).flat_map(|other| of(other).take(most as usize)).collect()
        };
        if self.shares(heat) {
            return take(1, &|_| false);
        }
        let leaves = |chosen: &[(u32, u32)], keep: u32| self.free() - chosen.len() as u32 >= keep;
        if !for_checkpoint && self.free() >= 4 * regions.max(4) {
            let many = take(self.layout.assigned(), &is_last);
            if leaves(&many, keep) || mutant!("parafs.heads-take-what-cleaners-want") {
                return many;
            }
        }
        if !for_checkpoint {
            let few = take(1, &is_nearly_out);
            if leaves(&few, least) || mutant!("parafs.heads-take-the-last") {
                return few;
            }
        }
        take(1, &|other| self.has(other, heat) < each)
    }

    /// They are for heads, and not theirs yet: nothing names them on the medium.
    pub(crate) fn promise(&mut self, chosen: &[(u32, u32)]) {
        chosen.iter().for_each(|(segment, _)| self.set_used(*segment, Use::Assigned));
    }

    /// Heads have segments that were promised, if the window names them.
    pub(crate) fn assign(&mut self, heat: Heat, chosen: &[(u32, u32)], recorded: bool) {
        for (segment, region) in chosen {
            let at = self.head(*region, heat);
            match recorded {
                true => self.heads[at].next.push_back(*segment),
                false => self.set_used(*segment, Use::Free),
            }
        }
    }

    /// What the heads have, for a checkpoint.
    pub(crate) fn heads(&self) -> Vec<Heads> {
        let of = |head: &Head| Heads {
            open: head.open.clone(),
            next: head.next.iter().copied().collect(),
        };
        self.heads.iter().map(of).collect()
    }

    /// A checkpoint is taken: segments without anything valid leave with it.
    pub(crate) fn leave(&mut self) -> Vec<u32> {
        let leaving: Vec<u32> = self.empty.iter().copied().collect();
        leaving.iter().for_each(|segment| self.set_used(*segment, Use::Leaving));
        leaving
    }

    /// The checkpoint that these left with was not completed.
    pub(crate) fn stay(&mut self, segments: &[u32]) {
        segments.iter().for_each(|segment| self.set_used(*segment, Use::Full));
    }

    /// The checkpoint is durable: what left with it may be trimmed.
    pub(crate) fn left(&mut self, segments: &[u32]) {
        segments.iter().for_each(|segment| self.set_used(*segment, Use::Trimming));
    }

    /// A segment was trimmed; it is gone for good where the medium could not.
    pub(crate) fn trimmed(&mut self, segment: u32, worked: bool) {
        let s = &mut self.all[segment as usize];
        (s.owners, s.unsaved, s.asked, s.unread) = (None, false, false, false);
        self.tails.remove(&segment);
        self.set_used(segment, if worked { Use::Free } else { Use::Dead });
    }

    /// The segment that is cleaned soonest: the one with the fewest valid pages (paper, 3.3:
    /// "foreground paraGC employs greedy algorithm"), if that wins a page. None of `but`: what is left in
    /// those are nodes, which go with the next checkpoint.
    pub(crate) fn victim(&self, but: &BTreeSet<u32>) -> Option<u32> {
        let again = mutant!("parafs.victim-again");
        (0..self.all.len() as u32)
            .filter(|segment| self.is_victim(*segment) && (again || !but.contains(segment)))
            .min_by_key(|segment| self.cost(*segment))
    }

    /// The segments of a region that are cleaned soonest, up to `most`.
    pub(crate) fn victims(&self, region: u32, most: usize) -> Vec<u32> {
        let first = region * self.layout.shape.region_segments;
        let all = first..first + self.layout.shape.region_segments;
        let mut found: Vec<u32> = all.filter(|segment| self.is_victim(*segment)).collect();
        found.sort_by_key(|segment| self.cost(*segment));
        found.truncate(most);
        found
    }

    /// The segment that is worth most: what it frees, times how long nothing in it has changed, by what
    /// it costs to read it and to write what is valid ("The Design and Implementation of a
    /// Log-Structured File System", 3.6: `(1 - u) * age / (1 + u)`).
    pub(crate) fn victim_by_cost(&self, but: &BTreeSet<u32>) -> Option<u32> {
        let pages = u64::from(self.layout.shape.segment_pages);
        let worth = |segment: &u32| {
            let s = &self.all[*segment as usize];
            let age = u128::from(1 + self.age.saturating_sub(s.entry.changed));
            let valid = u64::from(self.cost(*segment));
            ((age * u128::from(pages - valid)) << 32) / u128::from(pages + valid)
        };
        let all = 0..self.all.len() as u32;
        // Of equals the first one.
        let may = |segment: &u32| self.is_victim(*segment) && !but.contains(segment);
        all.filter(may).rev().max_by_key(worth)
    }

    /// It was filled, and its pages may be moved.
    pub(crate) fn is_full(&self, segment: u32) -> bool {
        let s = &self.all[segment as usize];
        s.used == Use::Full && s.pending == 0 && s.valid > 0
    }

    /// Cleaning it wins at least a page.
    fn is_victim(&self, segment: u32) -> bool {
        let s = &self.all[segment as usize];
        self.is_full(segment) && self.cost(segment) < self.layout.shape.segment_pages && !s.unread
    }

    /// See [`Segment::unread`].
    pub(crate) fn can_not_be_read(&mut self, segment: u32) {
        self.all[segment as usize].unread = !mutant!("parafs.victim-unread");
    }

    /// Its owners have come from the medium.
    pub(crate) fn bring_owners(&mut self, segment: u32, mut owners: Vec<Owner>) {
        let s = &mut self.all[segment as usize];
        for (page, owner) in s.owners.iter().flatten().enumerate() {
            if *owner != Owner::default() {
                owners[page] = *owner;
            }
        }
        (s.owners, s.asked) = (Some(owners), true);
    }

    /// All owners of a segment, whose summary is to be written anew.
    pub(crate) fn rewrite_owners(&mut self, segment: u32, owners: Vec<Owner>) {
        let s = &mut self.all[segment as usize];
        (s.owners, s.unsaved, s.asked) = (Some(owners), true, true);
        self.changed.insert(segment);
    }

    /// Segments whose summaries are not on the medium, with what belongs there.
    pub(crate) fn unsaved(&self) -> impl Iterator<Item = (u32, &[Owner])> {
        (0..).zip(&self.all).filter(|(_, s)| s.unsaved).filter_map(|(number, s)| {
            let owners = s.owners.as_deref()?;
            Some((number, owners))
        })
    }

    /// A segment whose summary may be written, and of which only a part is in memory: it was begun
    /// before a mount, and the rest is on the medium.
    pub(crate) fn known_in_part(&self) -> Option<u32> {
        let open = self.heads.iter().flat_map(|head| &head.open).map(|(segment, _)| *segment);
        let asked = |segment: u32| self.all[segment as usize].asked;
        let unsaved = (0..).zip(&self.all).filter(|(_, s)| s.unsaved).map(|(number, _)| number);
        open.chain(unsaved).find(|segment| !asked(*segment))
    }

    /// Takes segments back that heads have and have not begun: how many.
    pub(crate) fn take_back(&mut self) -> u32 {
        let mut count = 0;
        for head in 0..self.heads.len() {
            for segment in std::mem::take(&mut self.heads[head].next) {
                self.set_used(segment, Use::Free);
                count += 1;
            }
        }
        count
    }

    /// Closes heads that regions had of their own before they came to share them, and returns how
    /// many. The heads of a heat have at most a segment's pages left then, and cleaning wins the
    /// rest. Heads with the fewest pages in use are closed first.
    pub(crate) fn close_shared(&mut self) -> u32 {
        let (pages, mut count) = (self.layout.shape.segment_pages, 0);
        let shared = Heat::ALL.into_iter().filter(|heat| self.shares(*heat));
        for heat in shared.collect::<Vec<_>>() {
            let heads = (0..self.layout.shape.regions).map(|region| self.head(region, heat));
            let open = |head: usize| self.heads[head].open.iter().map(move |open| (head, *open));
            let mut open: Vec<(usize, (u32, u32))> = heads.flat_map(open).collect();
            open.sort_by_key(|(_, (_, next))| *next);
            let mut left: u32 = open.iter().map(|(_, (_, next))| pages - next).sum();
            for (head, (segment, next)) in open {
                let is_idle = self.all[segment as usize].pending == 0;
                if left > pages && is_idle && !mutant!("parafs.shared-heads-stay") {
                    self.close(head, segment);
                    (left, count) = (left - (pages - next), count + 1);
                }
            }
        }
        count
    }

    /// Its summary is on the medium as far as `owners` pages.
    pub(crate) fn saved(&mut self, segment: u32, owners: usize) {
        let s = &mut self.all[segment as usize];
        if s.owners.as_ref().is_some_and(|now| now.len() == owners) {
            s.unsaved = false;
            if s.used == Use::Full {
                (s.owners, s.asked) = (None, false);
            }
        }
    }

    /// Looks through the table.
    pub(crate) fn walk(&self) -> Result<(), String> {
        let (mut valid, mut units) = (0, 0);
        for (number, s) in self.all.iter().enumerate() {
            let found = s.entry.valid.iter().map(|b| b.count_ones()).sum::<u32>();
            if found != s.valid {
                return Err(format!("segment {number} counts {} pages and has {found}", s.valid));
            }
            let free =
                self.free[self.layout.region_of(number as u32) as usize].contains(&(number as u32));
            if free != (s.used == Use::Free) || free && (found > 0 || s.pending > 0) {
                return Err(format!("segment {number} is {:?} with {found} pages", s.used));
            }
            if s.entry.all_units() != s.units || (found > 0) != (s.units > 0) {
                let counted = s.units;
                return Err(format!("segment {number} counts {counted} units of {found} pages"));
            }
            (valid, units) = (valid + u64::from(found), units + s.units);
        }
        match (valid, units) == (self.valid, self.units) {
            true => Ok(()),
            false => Err(format!("{} pages are counted, {valid} are valid", self.valid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Medium;
    use crate::channels::Schedule;
    use crate::format::Shape;
    use flashlane_base::{Ns, SECTOR_BYTES};
    use flashlane_testkit::Ram;

    const PAGES: u64 = 16;

    /// A page of this heat that is written and valid.
    fn place(s: &mut Segments, heat: Heat) {
        loop {
            match s.allocate(heat, Owner::default(), 0) {
                Ok(addr) => {
                    s.arrived(addr);
                    return s.set_valid(addr);
                }
                Err(Stop::Need(Need::Segments { region, heat, each })) => {
                    let chosen = s.choose((region, heat, each), false, (0, 0));
                    s.promise(&chosen);
                    s.assign(heat, &chosen, true);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Four regions of 40 segments. Heads of all regions and what is cleaned with take 100; a file
    /// has as many pages.
    fn with_file(pages: u64) -> Segments {
        let layout = Layout::plan(Shape {
            regions: 4,
            region_segments: 40,
            segment_pages: PAGES as u32,
            page_sectors: 1,
            meta_sectors: 1 << 20,
        });
        let layout = layout.expect("it fits");
        let medium = Medium::Linear(Arc::new(Ram::new(16, SECTOR_BYTES, Ns::ZERO, 0)));
        let channels = Arc::new(Channels::new(Schedule::default(), layout, medium));
        let mut s = Segments::new(layout, channels);
        s.full_reserve = Some(100);
        (0..pages).for_each(|_| place(&mut s, Heat::WarmData));
        s
    }

    fn open(s: &Segments, heat: Heat) -> usize {
        (0..4).map(|region| s.heads[s.head(region, heat)].open.len()).sum()
    }

    /// As long as files leave what heads of all regions take, each has its own. Beyond that one
    /// segment is begun for all of a heat, but for contents of files.
    #[test]
    fn regions_share_heads_where_files_have_their_room() {
        let mut s = with_file(60 * PAGES - 8);
        (0..4).for_each(|_| place(&mut s, Heat::HotNode));
        assert_eq!((s.shares_heads(), open(&s, Heat::HotNode)), (false, 4));
        let mut s = with_file(60 * PAGES + 1);
        for count in 1..100 {
            place(&mut s, Heat::HotNode);
            assert!(s.shares_heads() && open(&s, Heat::HotNode) <= 1, "{count}");
        }
        (0..3).for_each(|_| place(&mut s, Heat::WarmData));
        assert!(open(&s, Heat::WarmData) > 1, "files go to several channels");
    }

    /// Heads of regions that come to share them are closed, the ones with the fewest pages in use
    /// first, until they have no more than a segment's pages: what they have left cleaning wins.
    #[test]
    fn heads_that_come_to_be_shared_are_closed() {
        let mut s = with_file(59 * PAGES);
        (0..6).for_each(|_| place(&mut s, Heat::HotNode));
        assert_eq!((s.close_shared(), open(&s, Heat::HotNode)), (0, 4));
        (0..2 * PAGES).for_each(|_| place(&mut s, Heat::WarmData));
        let of_files = open(&s, Heat::WarmData);
        assert_eq!((s.close_shared(), open(&s, Heat::HotNode)), (3, 1));
        assert!(s.heat_has_begun(Heat::HotNode) <= PAGES);
        assert_eq!(open(&s, Heat::WarmData), of_files);
        assert!(s.victim(&BTreeSet::new()).is_some_and(|victim| s.get(victim).valid <= 2));
        s.walk().expect("the table agrees");
    }
}
