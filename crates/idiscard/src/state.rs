//! What is followed, who is at it, and what is to be discarded next.
//!
//! Owns: the file systems that are followed, the requests under way on what says something of them, the
//! discard under way; what else than inodes waits for one is in `pending.rs`. Promises: a sector is
//! discarded only while no request is at it; what two writes at once, or one that failed, have left there
//! is not known; what was read counts only where nobody has written since. Never: waits; touches the drive.

use crate::Ghosts;
use crate::partitions::{self, Tables};
use crate::pending::{Pending, Why};
use flashlane_base::mutant;
use flashlane_ext4::{Change, Content, Ext4Error, Found, SECTOR, Shadow, Superblock};
use flashlane_ftl::block::BlockOp;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Sectors of the first tables of partitions.
pub(crate) const HEAD: u64 = (partitions::HEAD / SECTOR) as u64;
/// Sentences that are kept until somebody asks.
const SAID_MOST: usize = 100;

/// Sectors side by side that may hold a file system.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) sectors: Range<u64>,
    pub(crate) shadow: Option<Shadow>,
    /// Everything of it was read once, while nobody used it.
    is_complete: bool,
    /// It was unmounted, and is to be read: whether the host has flushed since.
    flush: Flushed,
}

/// Whether the host has flushed since something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Flushed {
    Not,
    Begun,
    /// It has, or it does not matter.
    #[default]
    Yes,
}

/// Requests at a sector.
#[derive(Clone, Copy, Debug, Default)]
struct Busy {
    requests: u32,
    writes: u32,
    /// Two writes were at it at once.
    clash: bool,
}

/// How many times something happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) discards: u64,
    /// Of inodes.
    pub(crate) discarded_sectors: u64,
    /// By [`Why`].
    pub(crate) others: [u64; Why::ALL.len()],
    /// Sectors with metadata of file systems that are followed, which the host has written.
    pub(crate) seen_sectors: u64,
    /// Requests that waited for a discard.
    pub(crate) waits: u64,
    pub(crate) failed: u64,
}

/// What the task in the background does next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Task {
    /// Looks for file systems anew: tables of partitions have changed.
    Scan,
    /// Reads the descriptors of the file system in these sectors.
    Learn(Range<u64>),
    /// Reads what nobody has seen of it: it was unmounted.
    Complete(Range<u64>),
    /// Discards these sectors.
    Discard(Range<u64>),
    /// Has what waits for a flush wait no more.
    Flush,
    End,
}

#[derive(Debug)]
pub(crate) struct State {
    ghosts: Ghosts,
    capacity: u64,
    pub(crate) volumes: Vec<Volume>,
    /// Sectors with tables of partitions, if the drive is not one file system.
    tables: BTreeSet<u64>,
    has_table: bool,
    busy: BTreeMap<u64, Busy>,
    discarding: Range<u64>,
    /// They hold no inodes.
    why: Option<Why>,
    pending: Pending,
    /// Nobody is expected to flush: the layer does.
    flush: bool,
    /// A flush is looked at.
    is_flushing: bool,
    /// What was written since a reading began.
    touched: Option<BTreeSet<u64>>,
    scan: bool,
    /// Volumes whose descriptors, or all, are to be read.
    learn: Vec<Range<u64>>,
    complete: Vec<Range<u64>>,
    said: Vec<String>,
    said_last: String,
    pub(crate) stops: bool,
    pub(crate) ended: bool,
    pub(crate) counts: Counts,
}

/// Why there is nothing to follow; silence where there is just nothing.
fn words(why: &Ext4Error) -> Option<String> {
    match why {
        Ext4Error::None(_) => None,
        other => Some(other.to_string()),
    }
}

impl State {
    pub(crate) fn new(capacity: u64, ghosts: Ghosts) -> State {
        State {
            ghosts,
            capacity,
            volumes: Vec::new(),
            tables: BTreeSet::new(),
            has_table: false,
            busy: BTreeMap::new(),
            discarding: 0..0,
            why: None,
            pending: Pending::default(),
            flush: false,
            is_flushing: false,
            touched: None,
            scan: false,
            learn: Vec::new(),
            complete: Vec::new(),
            said: Vec::new(),
            said_last: String::new(),
            stops: false,
            ended: false,
            counts: Counts::default(),
        }
    }

    /// What there is to say since it was asked last.
    pub(crate) fn said(&mut self) -> Vec<String> {
        std::mem::take(&mut self.said)
    }

    fn say(&mut self, at: u64, what: String) {
        let what = match at {
            0 => what,
            at => format!("partition at byte {}: {what}", at * SECTOR as u64),
        };
        // Who writes the same superblock every second is told once.
        if self.said.len() < SAID_MOST && self.said_last != what {
            self.said_last.clone_from(&what);
            self.said.push(what);
        }
    }

    /// Sectors of the drive that are looked at, in runs.
    pub(crate) fn watched_runs(&self) -> Vec<Range<u64>> {
        let of = |volume: &Volume| -> Vec<Range<u64>> {
            let first = volume.sectors.start;
            let places = volume.shadow.iter().flat_map(|shadow| shadow.places());
            let shifted = places.map(|run| run.start + first..run.end + first);
            std::iter::once(first..first + 1).chain(shifted).collect()
        };
        let tables = self.tables.iter().map(|sector| *sector..sector + 1);
        // Also where its file system is followed no more.
        let discarding = std::iter::once(self.discarding.clone());
        tables.chain(discarding).chain(self.volumes.iter().flat_map(of)).collect()
    }

    /// Of these sectors, those that are looked at.
    pub(crate) fn watched(&self, sectors: &Range<u64>) -> Vec<u64> {
        let mut all: Vec<u64> = self.tables.range(sectors.clone()).copied().collect();
        let taken = sectors.start.max(self.discarding.start)..sectors.end.min(self.discarding.end);
        if !mutant!("idiscard.ended-discard-forgotten") {
            all.extend(taken);
        }
        for volume in &self.volumes {
            let of = &volume.sectors;
            let (from, to) = (sectors.start.max(of.start), sectors.end.min(of.end));
            if from >= to {
                continue;
            }
            let here = from - of.start..to - of.start;
            match &volume.shadow {
                Some(shadow) => all.extend(shadow.watched(here).map(|sector| of.start + sector)),
                None => all.extend((here.start == 0).then_some(of.start)),
            }
        }
        all.sort_unstable();
        all.dedup();
        all
    }

    /// A discard of ours is at one of these sectors.
    pub(crate) fn is_discarding(&self, sectors: &[u64]) -> bool {
        let any = sectors.iter().any(|sector| self.discarding.contains(sector));
        any && !mutant!("idiscard.discard-in-flight-ignored")
    }

    /// A request for `all` is at these sectors, which say something, from now on.
    pub(crate) fn begin(&mut self, op: BlockOp, all: &Range<u64>, sectors: &[u64]) {
        let writes = u32::from(op != BlockOp::Read);
        if self.ghosts.follows_all() {
            self.pending.begin(all, writes > 0, !sectors.is_empty());
        }
        for sector in sectors {
            let busy = self.busy.entry(*sector).or_default();
            busy.requests += 1;
            busy.writes += writes;
            busy.clash |= busy.writes > 1;
        }
    }

    /// It has ended; a write has left this at the sector `content` is asked for. True if other sectors are to be looked at
    /// now, or somebody has work.
    pub(crate) fn end<'c>(
        &mut self,
        op: BlockOp,
        all: &Range<u64>,
        sectors: &[u64],
        mut content: impl FnMut(u64) -> Content<'c>,
    ) -> bool {
        let mut moved = false;
        let writes = op != BlockOp::Read;
        if self.ghosts.follows_all() {
            self.pending.end(all, writes);
        }
        for sector in sectors {
            let Some(busy) = self.busy.get_mut(sector) else { continue };
            busy.requests -= 1;
            busy.writes -= u32::from(op != BlockOp::Read);
            let busy = *busy;
            if busy.requests == 0 {
                self.busy.remove(sector);
            }
            if op == BlockOp::Read {
                continue;
            }
            if let Some(touched) = &mut self.touched {
                touched.insert(*sector);
            }
            self.counts.seen_sectors += 1;
            let clash = busy.clash && !mutant!("idiscard.clash-ignored");
            let content = if clash { Content::Unsure } else { content(*sector) };
            moved |= self.holds(*sector, content);
        }
        if writes && !sectors.is_empty() {
            self.take_found();
            self.end_deciding();
        }
        moved
    }

    /// What writes have said of blocks that hold no inodes.
    fn take_found(&mut self) {
        for volume in &mut self.volumes {
            let found = volume.shadow.iter_mut().flat_map(|shadow| shadow.take_found());
            if self.ghosts.follows_all() {
                found.for_each(|found| self.pending.found(&volume.sectors, found));
            } else {
                found.for_each(drop);
            }
        }
    }

    /// Nothing is known of what was found in a file system.
    fn forget(&mut self, at: usize) {
        self.pending.forget(&self.volumes[at].sectors);
    }

    /// A write that may decide about sectors has come, and waits: it was sent by now.
    pub(crate) fn begin_deciding(&mut self) {
        if self.ghosts.follows_all() {
            self.pending.begin_deciding();
        }
    }

    /// It has ended.
    pub(crate) fn end_deciding(&mut self) {
        if self.ghosts.follows_all() {
            self.pending.end_deciding();
        }
    }

    /// A flush begins; true if its end is to be told.
    pub(crate) fn begin_flush(&mut self) -> bool {
        let begins = self.waits_for_flush();
        if begins {
            self.pending.begin_flush();
            self.is_flushing = true;
            let unmounted = self.volumes.iter_mut().filter(|v| v.flush == Flushed::Not);
            unmounted.for_each(|volume| volume.flush = Flushed::Begun);
        }
        begins
    }

    /// It has ended.
    pub(crate) fn end_flush(&mut self, good: bool) {
        self.pending.end_flush(good);
        self.is_flushing = false;
        let begun = self.volumes.iter_mut().filter(|v| v.flush == Flushed::Begun);
        begun.for_each(|volume| volume.flush = if good { Flushed::Yes } else { Flushed::Not });
        if !good && self.stops {
            // There will be no other one.
            self.pending.give_up();
            self.volumes.iter_mut().for_each(|volume| volume.flush = Flushed::Yes);
        }
    }

    /// Something waits for a flush.
    pub(crate) fn waits_for_flush(&self) -> bool {
        let waits = || self.volumes.iter().any(|volume| volume.flush == Flushed::Not);
        !self.is_flushing && (self.pending.waits_for_flush() || waits())
    }

    /// The sector holds something else now.
    fn holds(&mut self, sector: u64, content: Content<'_>) -> bool {
        if self.tables.contains(&sector) {
            self.table_is(sector, content);
        }
        let mut moved = self.scan;
        for at in 0..self.volumes.len() {
            let Range { start: first, end } = self.volumes[at].sectors;
            if !(first..end).contains(&sector) {
                continue;
            }
            if sector == first {
                moved |= self.superblock_is(at, content);
            }
            if let Some(shadow) = &mut self.volumes[at].shadow
                && shadow.holds(sector - first, content)
            {
                // Of what lies elsewhere nobody has seen anything.
                self.volumes[at].is_complete = false;
                moved = true;
            }
        }
        moved
    }

    /// Whether there may be a table now, or is no more.
    fn table_is(&mut self, sector: u64, content: Content<'_>) {
        let may_be = match content {
            Content::Written(bytes) => {
                let efi = |at: usize| bytes.get(at..at + 8) == Some(b"EFI PART");
                let superblock = bytes.get(1080..1082) == Some(&[0x53, 0xef]);
                let mbr = bytes.get(510..512) == Some(&[0x55, 0xaa]);
                efi(0) || efi(512) || sector == 0 && (mbr || superblock)
            }
            Content::Gone => false,
            Content::Unsure => true,
        };
        self.scan |= may_be || self.has_table;
    }

    fn superblock_is(&mut self, at: usize, content: Content<'_>) -> bool {
        let volume = &mut self.volumes[at];
        let (first, bytes) = (volume.sectors.start, volume_bytes(volume));
        if let Some(shadow) = &mut volume.shadow {
            return match shadow.superblock_is(content, bytes) {
                Change::None => false,
                Change::Unmounted => {
                    shadow.sweep();
                    // Whoever unmounts has waited for all that it wrote.
                    match volume.is_complete {
                        true => shadow.find_all(),
                        false => self.complete_later(at),
                    }
                    true
                }
                Change::Other(sb) => {
                    self.follow(at, *sb, true);
                    true
                }
                Change::Ended(why) => {
                    volume.shadow = None;
                    self.forget(at);
                    self.say(first, format!("nothing is discarded any more: {why}"));
                    // Something else may begin there: partitions.
                    self.scan |= first == 0;
                    true
                }
            };
        }
        let Content::Written(bytes_of) = content else { return false };
        let Some(sb) = bytes_of.get(1024..2048).and_then(|b| b.try_into().ok()) else {
            return false;
        };
        match Superblock::parse(sb, bytes) {
            Ok(sb) => self.follow(at, sb, true),
            Err(why) => {
                self.cannot(first, &why);
                // It may be a table of partitions.
                self.scan |= self.tables.is_empty();
            }
        }
        true
    }

    /// A file system is followed from now on; with `learn`, its descriptors are to be read.
    pub(crate) fn follow(&mut self, at: usize, sb: Superblock, learn: bool) {
        let Range { start, end } = self.volumes[at].sectors;
        let overlaps = |v: &Volume| v.sectors.start < end && start < v.sectors.end;
        let others = self.volumes.iter().enumerate().filter(|(other, _)| *other != at);
        if others.into_iter().any(|(_, v)| v.shadow.is_some() && overlaps(v)) {
            self.say(start, "ext4 is not followed: it lies within another one".into());
            return;
        }
        self.forget(at);
        let volume = &mut self.volumes[at];
        volume.is_complete = false;
        let (first, old) = (volume.sectors.start, volume.shadow.take());
        let uuid = old.as_ref().map(|old| old.superblock().uuid);
        if sb.bytes() > (end - start) * SECTOR as u64 {
            return;
        }
        let what = format!("ext4 with {} inodes in {} groups", sb.inodes, sb.groups);
        let again = uuid == Some(sb.uuid);
        let says = match Shadow::new(sb, self.ghosts.wanted) {
            Ok(mut shadow) => {
                old.iter().for_each(|old| shadow.inherit(old));
                if learn && shadow.has_sums() {
                    self.learn.push(start..end);
                }
                let kib = shadow.bytes().div_ceil(1024);
                volume.shadow = Some(shadow);
                let verb = if again { "changed, and is followed on" } else { "is followed" };
                format!("{what} {verb}, in {kib} KiB of memory")
            }
            Err(why) => format!("ext4 is not followed: {why}"),
        };
        self.say(first, says);
    }

    /// The drive is divided so now. What is followed already, and lies where it lay, is followed on.
    pub(crate) fn divide(&mut self, tables: Option<(Tables, BTreeSet<u64>)>) {
        let mut old = std::mem::take(&mut self.volumes);
        let mut add = |volumes: &mut Vec<Volume>, sectors: Range<u64>| {
            let same = old.iter().position(|volume| volume.sectors == sectors);
            let same = same.map(|at| old.swap_remove(at));
            let (shadow, complete) = same.map_or((None, false), |v| (v.shadow, v.is_complete));
            let is_complete = shadow.is_some() && complete;
            let flush = Flushed::Yes;
            volumes.push(Volume { sectors, shadow, is_complete, flush });
        };
        let mut volumes = Vec::new();
        self.has_table = false;
        let mut odd = Vec::new();
        match tables {
            None => {
                self.tables.clear();
                add(&mut volumes, 0..self.capacity);
            }
            Some((tables, at)) => {
                self.has_table = tables.any;
                self.tables = at;
                for (part, _) in tables.parts {
                    let bytes = SECTOR as u64;
                    match part.start.is_multiple_of(bytes) {
                        true => add(&mut volumes, part.start / bytes..part.end / bytes),
                        false => odd.push(part.start),
                    }
                }
            }
        }
        // What was found in one that is no more.
        old.iter().for_each(|volume| self.pending.forget(&volume.sectors));
        self.volumes = volumes;
        self.volumes.retain(|volume| !volume.sectors.is_empty());
        for byte in odd {
            self.say(
                0,
                format!("the partition at byte {byte} is not followed: it begins within a sector"),
            );
        }
    }

    /// A reading begins: what is written meanwhile counts.
    pub(crate) fn begin_reading(&mut self) {
        self.touched = Some(BTreeSet::new());
    }

    /// This was read of sectors of a file system, or there is nothing. True if others are of interest since.
    pub(crate) fn was_read(
        &mut self,
        volume: &Range<u64>,
        at: Range<u64>,
        bytes: Option<&[u8]>,
    ) -> bool {
        let (first, mut moved) = (volume.start, false);
        let touched = self.touched.take().unwrap_or_default();
        let busy = &self.busy;
        let Some(volume) = self.volumes.iter_mut().find(|v| v.sectors == *volume) else {
            return false;
        };
        let Some(shadow) = &mut volume.shadow else { return false };
        for (i, sector) in at.enumerate() {
            let content = match bytes {
                Some(bytes) => Content::Written(&bytes[i * SECTOR..][..SECTOR]),
                None => Content::Gone,
            };
            let is_mine =
                touched.contains(&sector) || busy.get(&sector).is_some_and(|b| b.writes > 0);
            if !is_mine || mutant!("idiscard.reading-wins") {
                shadow.note(sector - first, content);
            }
        }
        moved |= shadow.settle();
        // What was read may be older than what is on its way: it frees nothing.
        let taken = shadow.take_found().into_iter().filter(|f| matches!(f, Found::Taken(_)));
        taken.for_each(|taken| self.pending.found(&volume.sectors, taken));
        moved
    }

    /// Nobody uses the file system there, and nothing of it waits for a replay; nor does the drive end.
    pub(crate) fn is_quiet(&mut self, volume: &Range<u64>) -> bool {
        !self.stops && self.shadow(volume).is_some_and(|shadow| shadow.is_clean())
    }

    /// All of a file system was read, at the start or while it was unmounted. What is dead in one that was not
    /// unmounted at the start waits until somebody writes.
    pub(crate) fn completed(&mut self, volume: &Range<u64>) {
        let Some(volume) = self.volumes.iter_mut().find(|v| v.sectors == *volume) else {
            return;
        };
        let Some(shadow) = &mut volume.shadow else { return };
        // Of one that was not unmounted a bitmap may be older than its checksum: it is read again.
        volume.is_complete = shadow.is_clean();
        shadow.doubt_bitmaps();
        match shadow.is_clean() {
            true => {
                shadow.sweep();
                shadow.find_all();
                // Where the host has not flushed yet, more may be on its way.
                self.flush |= volume.flush == Flushed::Yes;
                volume.flush = Flushed::Yes;
                self.take_found();
            }
            false => shadow.wait_for_writes(),
        }
    }

    /// All of a file system is to be read. What is written from now on is not what was found then.
    fn complete_later(&mut self, at: usize) {
        self.complete.push(self.volumes[at].sectors.clone());
        self.begin_deciding();
        if self.ghosts.follows_all() {
            self.volumes[at].flush = Flushed::Not;
        }
    }

    /// What is to be done next, if anything: a discard is under way from then on.
    pub(crate) fn next(&mut self, most: u64) -> Option<Task> {
        if self.scan && !self.stops {
            self.scan = false;
            return Some(Task::Scan);
        }
        if let Some(volume) = self.learn.pop()
            && !self.stops
        {
            return Some(Task::Learn(volume));
        }
        if let Some(volume) = self.complete.pop()
            && !self.stops
        {
            return Some(Task::Complete(volume));
        }
        if self.flush && self.waits_for_flush() {
            self.flush = false;
            return Some(Task::Flush);
        }
        if self.ghosts.watch {
            return self.stops.then_some(Task::End);
        }
        if let Some((why, sectors)) = self.pending.take(most) {
            (self.discarding, self.why) = (sectors.clone(), Some(why));
            return Some(Task::Discard(sectors));
        }
        let busy = &self.busy;
        for volume in &mut self.volumes {
            let first = volume.sectors.start;
            let is_busy = |sector: u64| {
                busy.contains_key(&(first + sector)) && !mutant!("idiscard.write-in-flight-ignored")
            };
            if let Some(shadow) = &mut volume.shadow
                && let Some((sector, n)) = shadow.take_dead(most, is_busy)
            {
                self.discarding = first + sector..first + sector + n;
                self.why = None;
                return Some(Task::Discard(self.discarding.clone()));
            }
        }
        if self.stops && self.waits_for_flush() {
            return Some(Task::Flush);
        }
        self.stops.then_some(Task::End)
    }

    /// Nothing is followed.
    pub(crate) fn say_if_none(&mut self, at_start: bool) {
        if at_start && self.volumes.iter().all(|volume| volume.shadow.is_none()) {
            self.say(0, "there is no ext4: nothing is discarded until there is one".into());
        }
    }

    /// Nothing is discarded any more.
    pub(crate) fn end_all(&mut self) {
        let Counts { discards, discarded_sectors, others, .. } = self.counts;
        let named = ["free blocks", "the journal's log", "bitmaps of zeros"];
        let each = std::iter::once((discarded_sectors, "dead inodes"));
        let each = each.chain(others.into_iter().zip(named)).filter(|(n, _)| *n > 0);
        let each: Vec<String> = each.map(|(n, what)| format!("{n} of {what}")).collect();
        if !each.is_empty() {
            let all = each.join(", ");
            self.say(0, format!("sectors discarded: {all}, in {discards} requests"));
        }
        self.ended = true;
    }

    pub(crate) fn shadow(&mut self, volume: &Range<u64>) -> Option<&mut Shadow> {
        self.volumes.iter_mut().find(|v| v.sectors == *volume)?.shadow.as_mut()
    }

    /// What begins there is no file system that can be followed.
    pub(crate) fn cannot(&mut self, first: u64, why: &Ext4Error) {
        if let Some(why) = words(why) {
            self.say(first, format!("ext4 is not followed: {why}"));
        }
    }

    /// These of the sectors that are being discarded held something, and were asked to be discarded.
    pub(crate) fn discarded(&mut self, sectors: Range<u64>, good: bool) {
        self.counts.discards += 1;
        let n = sectors.end - sectors.start;
        match (good, self.why) {
            (false, _) => self.counts.failed += 1,
            (true, None) => self.counts.discarded_sectors += n,
            (true, Some(why)) => self.counts.others[why as usize] += n,
        }
        if self.why.is_some() {
            return; // of free blocks and the log nothing is known; a bitmap reads the same
        }
        let content = if good { Content::Gone } else { Content::Unsure };
        for volume in &mut self.volumes {
            let first = volume.sectors.start;
            if let Some(shadow) = &mut volume.shadow
                && volume.sectors.contains(&sectors.start)
            {
                sectors.clone().for_each(|sector| _ = shadow.holds(sector - first, content));
            }
        }
    }

    /// The discard has ended.
    pub(crate) fn end_discard(&mut self) {
        self.discarding = 0..0;
    }
}

/// Bytes of a volume.
pub(crate) fn volume_bytes(volume: &Volume) -> u64 {
    (volume.sectors.end - volume.sectors.start) * SECTOR as u64
}
