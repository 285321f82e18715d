//! Cleaning: room for what is to come.
//!
//! Owns: when somebody cleans, which segments, how their pages are moved. Promises: a page is moved
//! only as long as something names it; a segment is free only when a checkpoint has forgotten it;
//! what a checkpoint needs is there before anybody may make anything dirty. Never: changes a file.
//!
//! **When room is short** (the paper's foreground paraGC, 3.3) the segments with the fewest valid
//! pages are taken, their pages go to heads of their heat, and one checkpoint frees all of them;
//! their erases are not waited for. With [`Cleaners::PerRegion`] each region that is short has a
//! cleaner of its own, all at a time, and they begin before anybody has to wait for room.
//!
//! **In idle time** (background paraGC, `idle.rs`) segments are taken by cost and benefit, their
//! pages go to cold heads, and neither a checkpoint nor an erase follows.

use crate::error::{FsError, Result};
use crate::format::{Addr, Nid, Owner};
use crate::fs::{Cleaners, Fs, Options};
use crate::mkfs::shared_heads;
use crate::nodes::is_dir;
use crate::segments::Heat;
use crate::state::{Need, State, Step, Stop};
use crate::write::{By, FilePage};
use flashlane_base::mutant;
use flashlane_rt::{Cx, Join};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

/// Segments that a cleaner of a region empties before a checkpoint frees them.
const VICTIMS_OF_REGION: usize = 8;
/// Cleaners of regions begin when so many segments of each are left beside those that others wait
/// for, and go on until there are so many more. Less of either costs throughput, more does not
/// win any (`bench/runs/2026-11-28-parafs-policies`).
const BEGIN_AHEAD: u32 = 3;
const WON_AT_ONCE: u32 = 6;
/// Nodes of fsyncs that a mount reads at most, per region, and of so many regions: they are in memory
/// then.
const NODES_FOUND: u64 = 512;
const REGIONS_FOUND: u32 = 32;
/// Pages of a victim that are looked at, and read, at a time.
const AT_ONCE: usize = 8;

/// A page of a segment that is being emptied.
enum Moved {
    /// Nothing names it any more.
    Gone,
    /// A node: it is written by the next checkpoint.
    Node,
    /// Several nodes share it, which lie in it: they are taken out one by one.
    Shared(Addr),
    /// A page of a file, which is dirty now.
    Page(Nid, u64),
}

/// Cleaning ends after so many rounds in a row that win nothing.
const VAIN_ROUNDS: u32 = 8;

/// Tells cleaning that wins room from one that goes in circles: where pages have pairs, the padding
/// of a round's checkpoint can take all that the round has won.
#[derive(Default)]
struct Progress {
    /// The most free pages after any round since a write or an fsync was last given one.
    best: u64,
    /// [`State::taken`] at the last round that counted as progress.
    taken: u64,
    /// Rounds without progress since then.
    vain: u32,
}

impl Progress {
    /// Counts a round of cleaning that leaves `free` pages. `taken` is [`State::taken`] now. True if
    /// the last [`VAIN_ROUNDS`] rounds have won nothing.
    fn is_in_vain(&mut self, free: u64, taken: u64) -> bool {
        if free > self.best || taken != self.taken {
            *self = Progress { best: free, taken, vain: 0 };
        } else {
            self.vain += 1;
        }
        self.vain >= VAIN_ROUNDS && !mutant!("parafs.cleans-in-circles")
    }
}

impl State {
    /// Nodes that fsyncs have written since the last checkpoint. A mount behind a power cut makes all
    /// of them dirty, and its checkpoint has to have room for them.
    fn nodes_of_mount(&self) -> u64 {
        if mutant!("parafs.mount-unprovided") { 0 } else { self.synced.len() as u64 }
    }

    /// Pages of directories that the next checkpoint writes.
    fn dirty_entries(&self) -> u64 {
        if mutant!("parafs.entries-unprovided") { 0 } else { self.pages.dirty_entries() as u64 }
    }

    /// Free segments that are kept for the next checkpoint: twice what it takes for the nodes that are
    /// dirty now, because more become dirty until then, and what it takes for directories, and for the
    /// nodes of a mount.
    pub(crate) fn free_for_nodes(&self) -> u32 {
        let pages = u64::from(self.layout.shape.segment_pages);
        let nodes = 2 * (self.pages_of_dirty() + 16) + self.nodes_of_mount();
        (nodes + self.dirty_entries()).div_ceil(pages) as u32
    }

    /// Free segments that nobody takes who is not cleaning: those, and what cleaning moves to.
    pub(crate) fn kept_from_all(&self) -> u32 {
        self.free_for_nodes() + 4
    }

    /// The same where only cleaning goes on: what it takes for what is dirty, and for a few nodes that
    /// cleaning makes dirty.
    pub(crate) fn free_for_checkpoint(&self) -> u32 {
        let pages = u64::from(self.layout.shape.segment_pages);
        let nodes = self.pages_of_dirty() + 32 + self.nodes_of_mount();
        1 + (nodes + self.dirty_entries()).div_ceil(pages) as u32
    }

    /// There is room for what the next checkpoint writes, and for one node more. A heat that has a
    /// part of a segment only takes a whole one.
    pub(crate) fn is_sure_of_checkpoint(&self) -> bool {
        let pages = u64::from(self.layout.shape.segment_pages);
        let nodes = 1 + self.pages_of_dirty() + self.pages_in_flight;
        let dirty = nodes + self.along.len() as u64 + self.dirty_entries();
        let lacks = |heat: &Heat| self.segments.heat_keeps(*heat) < dirty;
        let lacking = Heat::OF_CHECKPOINT.iter().filter(|heat| lacks(heat)).count() as u64;
        let segments = match lacking {
            0 => 0,
            _ => dirty.div_ceil(pages) + lacking - 1,
        };
        segments <= u64::from(self.segments.free()) || mutant!("parafs.moves-without-checkpoint")
    }

    /// Free segments that must be there before anything else is made dirty: what a checkpoint writes
    /// of what is dirty, a segment for each head to go on with, and what cleaning moves to.
    pub(crate) fn free_min(&self) -> u32 {
        self.layout.shape.regions.min(8) + 4 + self.free_for_nodes()
    }

    /// Dirty pages of files that somebody will have to write: those on their way have their places, and
    /// what cleaners have taken out they write themselves.
    pub(crate) fn pages_waiting(&self) -> usize {
        let others = self.pages_in_flight as usize + self.pages_moving;
        self.pages.dirty_count().saturating_sub(others)
    }

    /// Free segments for the pages of files that are dirty, and as many again: their places are given
    /// when they are written, and whoever made them dirty has been let in.
    fn free_for_pages(&self) -> u32 {
        let segments = 2 * self.pages_waiting() as u32 / self.layout.shape.segment_pages;
        segments.min(self.part_of_reserve())
    }

    /// Segments of the reserve that one purpose of cleaning may take: a quarter. If the regions
    /// share heads, segments of heads and those that only cleaning takes don't count: they are most
    /// of the reserve then, and are never all free at the same time.
    fn part_of_reserve(&self) -> u32 {
        if !self.segments.shares_heads() {
            return self.reserve() / 4;
        }
        let shape = &self.layout.shape;
        let heads = shared_heads(shape.regions, self.segments.lanes);
        (self.reserve().saturating_sub(heads + shape.regions.min(8) + 4) / 4).max(1)
    }

    /// Free segments from which on everybody may go on while others clean.
    fn free_enough(&self) -> u32 {
        self.free_min() + self.free_for_pages()
    }

    /// Free segments from which on cleaners of regions begin: each region has some to write to while
    /// they are at it.
    fn free_low(&self) -> u32 {
        self.free_enough() + self.per_region(BEGIN_AHEAD)
    }

    /// Free segments that cleaners of regions want: a checkpoint costs as much for one as for many.
    fn free_wanted(&self) -> u32 {
        self.free_low() + self.per_region(WON_AT_ONCE)
    }

    /// Free segments that cleaners want.
    fn free_wanted_by(&self, cleaners: Cleaners) -> u32 {
        match cleaners {
            Cleaners::One => self.free_min() + 2,
            Cleaners::PerRegion => self.free_wanted() + 2,
        }
    }

    /// With fewer free segments cleaners take back what heads have and have not begun.
    pub(crate) fn takes_back_below(&self, cleaners: Cleaners) -> u32 {
        self.free_wanted_by(cleaners) / 2
    }

    /// So many segments of each region, as far as files leave them.
    fn per_region(&self, segments: u32) -> u32 {
        (segments * self.layout.shape.regions).min(self.part_of_reserve())
    }

    /// Something may be changed without a look at the room first ([`Fs::balance`]).
    pub(crate) fn has_room_at_once(&self, options: &Options) -> bool {
        self.segments.free() >= self.free_low()
            && !self.is_due(options.dirty_nodes)
            && self.pages_waiting() < options.dirty_pages
    }

    /// A checkpoint would write more than may be lost for want of room, or a mount would have to read
    /// more than a part of a second.
    fn is_due(&self, dirty_nodes: usize) -> bool {
        let shares = self.segments.shares_heads();
        let part = self.reserve() / if shares { 16 } else { 8 };
        let pages = part * self.layout.shape.segment_pages;
        let found = u64::from(self.layout.shape.regions.min(REGIONS_FOUND)) * NODES_FOUND;
        // What fsyncs have written has room in a mount's checkpoint, of the same part.
        let found = if shares { found.min(pages.into()) } else { found };
        self.dirty_nodes.len() > dirty_nodes
            || self.pages_of_dirty() > u64::from(pages)
            || self.batch_nodes > found
    }

    /// Whose the valid pages of a segment are.
    fn owners(&mut self, segment: u32) -> Step<Vec<(u32, Owner)>> {
        let layout = self.layout;
        let s = self.segments.get(segment);
        let Some(owners) = &s.owners else { return Err(Stop::Need(Need::Summary(segment))) };
        let valid = |page: u32| self.segments.is_valid(layout.addr(segment, page));
        let known = (0..layout.shape.segment_pages).filter(|page| valid(*page));
        let of = |page: u32| (page, owners.get(page as usize).copied().unwrap_or_default());
        let found: Vec<(u32, Owner)> = known.map(of).collect();
        // Of a segment that was begun before a mount the first ones may lie on the medium only.
        if found.iter().any(|(_, owner)| *owner == Owner::default()) && !s.asked {
            return Err(Stop::Need(Need::Summary(segment)));
        }
        Ok(found)
    }

    /// Makes dirty what a page of a victim holds.
    fn take_out(&mut self, segment: u32, page: u32, owner: Owner, by: By) -> Step<Moved> {
        let addr = self.layout.addr(segment, page);
        if !self.segments.is_valid(addr) {
            return Ok(Moved::Gone);
        }
        if owner == Owner::SHARED {
            return Ok(Moved::Shared(addr));
        }
        let entry = self.nat.get(owner.nid)?;
        if owner.slot == Owner::NODE {
            return self.take_node_out(addr, owner.nid, by);
        }
        if entry.ino == 0 {
            return Ok(Moved::Gone);
        }
        let tree = self.tree;
        let node = self.node(owner.nid)?;
        let (ino, ofs, is_inode) = (node.ino, node.ofs, node.is_inode());
        let named = tree.addr(&node.bytes, is_inode, owner.slot);
        if named != addr || node.inode.as_ref().is_some_and(|inode| inode.inline) {
            return Ok(Moved::Gone);
        }
        let Some((_, first)) = self.tree.kind(ofs) else { return Ok(Moved::Gone) };
        let index = first + u64::from(owner.slot);
        let of_directory = is_dir(self.inode(ino)?.mode);
        // Whoever cuts it short takes the page away.
        if self.cuts.contains(&ino) {
            return Ok(Moved::Gone);
        }
        if !self.pages.has(ino, index) {
            return Err(Stop::Need(Need::Pages(ino, vec![index])));
        }
        let bytes = self.layout.shape.page_bytes();
        match of_directory {
            true => self.pages.change_entries(ino, index, bytes),
            false => self.pages.change(ino, index, bytes),
        };
        Ok(Moved::Page(ino, index))
    }

    /// Makes a node dirty if it lies in this page of a victim.
    fn take_node_out(&mut self, addr: Addr, nid: Nid, by: By) -> Step<Moved> {
        if self.nat.get(nid)?.addr != addr {
            return Ok(Moved::Gone);
        }
        self.measure();
        if !self.is_sure_of_checkpoint() {
            return Err(FsError::NoSpace.into());
        }
        let dirty = self.dirty_nodes.len();
        self.node_mut(nid)?;
        self.stats.moved_nodes += (self.dirty_nodes.len() - dirty) as u64;
        if by == By::IdleCleaner {
            self.cold_nodes.insert(nid);
        }
        Ok(Moved::Node)
    }

    /// Valid pages that there is room to move when `kept` free segments stay. A page takes its place, and
    /// with the checkpoint that of its node; what is dirty already goes with that, too.
    pub(crate) fn movable(&self, kept: u32) -> u64 {
        let pages = u64::from(self.layout.shape.segment_pages);
        let free = u64::from(self.segments.free().saturating_sub(kept)) * pages;
        let dirty = self.pages_of_dirty() + self.dirty_entries();
        free.saturating_sub(dirty + self.nodes_of_mount()) / 2
    }

    /// Of the regions that have less than their share of `wanted` free segments, those that are cleaned
    /// soonest, by region: as many as win `lacking` segments, and as there is room to move their
    /// pages to. Where no such region has any, the one of all that is.
    fn victims(&self, wanted: u32, lacking: u32) -> Vec<Vec<u32>> {
        let pages = u64::from(self.layout.shape.segment_pages);
        let share = wanted.div_ceil(self.layout.shape.regions);
        let short = |region: &u32| self.segments.free_of(*region) < share;
        let regions = (0..self.layout.shape.regions).filter(short);
        let of_region = |region| self.segments.victims(region, VICTIMS_OF_REGION);
        let valid = |victim: u32| u64::from(self.segments.cost(victim));
        let mut found: Vec<u32> = regions.flat_map(of_region).collect();
        found.sort_by_key(|victim| valid(*victim));
        let anything = mutant!("parafs.moves-without-checkpoint");
        let mut room = if anything { u64::MAX } else { self.movable(1) };
        let mut lacking = u64::from(lacking) * pages;
        let mut by_region: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for victim in found {
            let valid = valid(victim);
            if valid <= room && lacking > 0 {
                room -= valid;
                lacking = lacking.saturating_sub(pages - valid);
                by_region.entry(self.layout.region_of(victim)).or_default().push(victim);
            }
        }
        if by_region.is_empty() {
            let victim = self.segments.victim(&BTreeSet::new());
            return victim.map(|victim| vec![victim]).into_iter().collect();
        }
        by_region.into_values().collect()
    }
}

impl Fs {
    /// Has room for an operation: called before anything is changed, and by nobody who cleans.
    pub(crate) async fn balance(self: &Arc<Fs>, cx: &Cx) -> Result<()> {
        self.lock().asks += 1;
        let due = |s: &State| s.is_due(self.options.dirty_nodes);
        let is_due = due(&self.lock());
        if is_due {
            self.checkpoint_if(cx, due).await?;
        }
        let (free, min, low, cleaning) = {
            let s = self.lock();
            (s.segments.free(), s.free_min(), s.free_low(), s.cleaning)
        };
        if free < min {
            self.lock().stats.room_waits += 1;
            return self.make_room(cx, 0).await;
        }
        if free < low && !cleaning && self.options.cleaners == Cleaners::PerRegion {
            self.clean_aside(cx);
        }
        let may_go_on = || {
            let s = self.lock();
            !s.cleaning || s.segments.free() >= s.free_enough()
        };
        if !may_go_on() {
            self.lock().stats.room_waits += 1;
            self.changed.wait(cx, may_go_on).await;
        }
        Ok(())
    }

    /// Has more free segments than those that are `kept` for others, as far as there is any to win. One
    /// cleans at a time, and the others wait for it; what it has won may be somebody else's by then,
    /// so the next one cleans again.
    pub(crate) async fn make_room(self: &Arc<Fs>, cx: &Cx, kept: u32) -> Result<()> {
        loop {
            while self.lock().cleaning {
                // Whoever cleans may go on for the sake of others.
                let over = || {
                    let s = self.lock();
                    !s.cleaning || s.segments.free() > kept.max(s.free_min() - 1)
                };
                self.changed.wait(cx, over).await;
                if self.lock().segments.free() > kept {
                    return Ok(());
                }
            }
            let before = {
                let mut s = self.lock();
                s.cleaning = true;
                s.taken
            };
            let outcome = self.clean(cx, kept).await;
            let taken = {
                let mut s = self.lock();
                s.cleaning = false;
                s.taken
            };
            self.changed.wake(cx);
            // What was won others have taken: there may be more.
            if outcome != Err(FsError::NoSpace) || taken == before {
                return outcome;
            }
        }
    }

    /// Cleaners begin, and nobody waits for them.
    fn clean_aside(self: &Arc<Fs>, cx: &Cx) {
        self.lock().cleaning = true;
        let (fs, theirs) = (self.clone(), cx.clone());
        cx.spawn(async move {
            // What went wrong is said to whoever needs the room.
            let _ = fs.clean(&theirs, 0).await;
            fs.lock().cleaning = false;
            fs.changed.wake(&theirs);
        });
    }

    /// Cleans until there is enough for all, or nothing more is won: then at least more than `kept`.
    async fn clean(self: &Arc<Fs>, cx: &Cx, kept: u32) -> Result<()> {
        let one = self.options.cleaners == Cleaners::One;
        let mut before = None;
        let mut progress = Progress::default();
        loop {
            let (free, wanted, low, empty, trims) = {
                let s = self.lock();
                let by = self.options.cleaners;
                let (wanted, low) = (s.free_wanted_by(by), s.takes_back_below(by));
                (s.segments.free(), wanted, low, s.segments.empty(), s.trims)
            };
            if free >= wanted {
                return Ok(());
            }
            // What is being erased comes without another victim.
            if trims > 0 && (one || free + trims >= wanted || free < 2) {
                self.changed.wait(cx, || self.lock().trims < trims).await;
                continue;
            }
            // Segments that heads have and have not begun.
            if free < low && self.lock().segments.take_back() > 0 {
                continue;
            }
            self.lock().segments.close_shared();
            // Each time round something must be won, if only a few pages that heads have more.
            let (now, taken) = {
                let s = self.lock();
                ((free + trims, s.segments.units(), s.segments.heads_have()), s.taken)
            };
            let is_idle = before.replace(now) == Some(now) && empty == 0;
            let pages = u64::from(self.sb.layout.shape.segment_pages);
            let room = u64::from(free + trims) * pages + now.2;
            if is_idle || progress.is_in_vain(room, taken) {
                return if free > kept { Ok(()) } else { Err(FsError::NoSpace) };
            }
            let emptied = match one {
                true => self.empty_one_by_one(cx, empty).await,
                // What a checkpoint alone frees comes before another victim.
                false if free + trims + empty >= wanted => Ok(()),
                false => self.empty_by_region(cx, wanted, wanted - free - trims - empty).await,
            };
            // It frees what was won, though something went wrong.
            self.checkpoint(cx).await?;
            self.changed.wake(cx);
            emptied?;
        }
    }

    /// Empties some segments, one after the other. `empty` ones a checkpoint frees already.
    async fn empty_one_by_one(self: &Arc<Fs>, cx: &Cx, empty: u32) -> Result<()> {
        let mut emptied = BTreeSet::new();
        for _ in empty..self.options.victims {
            let Some(victim) = self.lock().segments.victim(&emptied) else { break };
            // What it holds has to go somewhere.
            let (free, pages) = {
                let s = self.lock();
                (s.segments.free(), s.layout.shape.segment_pages)
            };
            if free == 0 && self.lock().segments.cost(victim) > pages / 2 {
                break;
            }
            match self.empty(cx, victim, By::Cleaner).await {
                Ok(()) => {
                    emptied.insert(victim);
                    self.lock().stats.foreground_victims += 1;
                }
                // A checkpoint frees what was won so far.
                Err(FsError::NoSpace) => break,
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Empties some segments of each region that is short of free ones, all regions at a time.
    async fn empty_by_region(self: &Arc<Fs>, cx: &Cx, wanted: u32, lacking: u32) -> Result<()> {
        let victims = self.lock().victims(wanted, lacking);
        let cleaners: Vec<Join<Result<()>>> = victims
            .into_iter()
            .map(|of_region| {
                let (fs, theirs) = (self.clone(), cx.clone());
                cx.spawn_join(async move {
                    for victim in of_region {
                        fs.empty(&theirs, victim, By::Cleaner).await?;
                        fs.lock().stats.foreground_victims += 1;
                    }
                    Ok(())
                })
            })
            .collect();
        let mut outcome = Ok(());
        for cleaner in cleaners {
            match cleaner.await {
                // A checkpoint frees what was won so far.
                Ok(()) | Err(FsError::NoSpace) => {}
                Err(e) => outcome = Err(e),
            }
        }
        outcome
    }

    /// Makes all nodes dirty that lie in a shared page.
    async fn take_shared_out(self: &Arc<Fs>, cx: &Cx, addr: Addr, by: By) -> Result<Moved> {
        for nid in self.bring_shared(cx, addr).await? {
            self.with(cx, |s| s.take_node_out(addr, nid, by)).await?;
        }
        Ok(Moved::Node)
    }

    /// Moves all pages out of a segment; nodes go with the next checkpoint. What can't be read stays where
    /// it is, and the segment is no victim any more.
    pub(crate) async fn empty(self: &Arc<Fs>, cx: &Cx, segment: u32, by: By) -> Result<()> {
        let is_unread = |e: &FsError| matches!(e, FsError::Io(_) | FsError::Damaged(_));
        let owners = match self.with(cx, |s| s.owners(segment)).await {
            Err(e) if is_unread(&e) => {
                self.lock().segments.can_not_be_read(segment);
                return Ok(());
            }
            owners => owners?,
        };
        let valid = owners.len() as u64;
        let mut files: Vec<FilePage> = Vec::new();
        let mut taken: VecDeque<Join<Result<Moved>>> = VecDeque::new();
        let mut owners = owners.into_iter();
        let mut outcome = Ok(());
        loop {
            while taken.len() < AT_ONCE
                && let Some((page, owner)) = owners.next()
            {
                let (fs, theirs) = (self.clone(), cx.clone());
                taken.push_back(cx.spawn_join(async move {
                    match fs.with(&theirs, |s| s.take_out(segment, page, owner, by)).await? {
                        Moved::Shared(addr) => fs.take_shared_out(&theirs, addr, by).await,
                        moved => Ok(moved),
                    }
                }));
            }
            let Some(first) = taken.pop_front() else { break };
            match first.await {
                Ok(Moved::Page(ino, index)) => {
                    self.lock().pages_moving += 1;
                    files.push((ino, index));
                }
                Ok(Moved::Gone | Moved::Node | Moved::Shared(_)) => {}
                // A file that was deleted meanwhile has no page here any more.
                Err(FsError::Stale) => {}
                Err(e) if is_unread(&e) => self.lock().segments.can_not_be_read(segment),
                Err(e) => outcome = Err(e),
            }
        }
        files.sort_unstable();
        if outcome.is_ok() {
            outcome = self.write_back(cx, &files, by).await;
        }
        let mut s = self.lock();
        s.pages_moving -= files.len();
        if outcome.is_ok() {
            s.stats.victim_valid_pages += valid;
        }
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The round at which cleaning ends; 0 if it goes on. Each round gives the pages that are free
    /// after it, and the pages that writes and fsyncs were given until then.
    fn ends(rounds: impl IntoIterator<Item = (u64, u64)>) -> usize {
        let mut progress = Progress::default();
        let vain = |(free, taken)| progress.is_in_vain(free, taken);
        rounds.into_iter().map(vain).position(|ends| ends).map_or(0, |at| at + 1)
    }

    #[test]
    fn cleaning_in_circles_ends() {
        let circle = (0..100).map(|round| (20 + 7 * (round % 3), 0));
        assert_eq!(ends(circle), 3 + VAIN_ROUNDS as usize);
    }

    #[test]
    fn cleaning_goes_on_while_it_wins_or_others_take() {
        assert_eq!(ends((0..100).map(|round| (20 + round / 5, 0))), 0);
        assert_eq!(ends((0..100).map(|round| (20 - round % 3, round / 5))), 0);
    }
}
