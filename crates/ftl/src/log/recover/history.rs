//! Reading the FTL log back: anchors, pairs, records.
//!
//! Owns: which pairs are the log, which of a block's copies counts, where the log ends. Promises:
//! gives the longest sequence of records that is intact in one copy or the other, block by block
//! (FORMAT.md, section 4); says whether something is missing that must be there: at the log's end
//! that is all but the one block that can have been in flight. Never: interprets a record beyond
//! the links between pairs; programs more than padding.

use super::super::flash::{Flash, RETRIES, Records};
use super::super::format::{
    Anchor, COUNT_MAX, FormatError, LBA_ANCHOR, LBA_LINE_FIRST, LBA_LOG, LBA_NONE, LBA_PADDING,
    LogBlock, LogBlockHeader as Header, LogEntry, Oob, Record, SegmentPair, Uuid, is_newer_minor,
};
use super::super::journal::{block_room, block_sectors};
use super::MountError;
use super::survey::{First, Firsts, Survey};
use flashlane_base::{OOB_BYTES, SECTOR_BYTES, VECTOR_MAX, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::Cx;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// How far this life's counters are above the newest anchor that could be read. There may be newer
/// ones that can be read again one day, and they must not be taken for the newest then. The log of
/// an anchor that so many followed is gone.
const UNSEEN: u64 = 1 << 20;

/// If no anchor could be read, this life's counters begin at so many times its generation. Each
/// mount adds [`UNSEEN`], and some are cut before a block of the log tells their generation.
const MOST_UNSEEN: u64 = UNSEEN << 8;

/// Sectors that are looked at together for the newest anchor.
const ANCHORS_AT_A_TIME: usize = 16;

/// A pair of the log with the first record that counts in it.
#[derive(Clone, Debug)]
pub(super) struct Part {
    pub(super) pair: SegmentPair,
    pub(super) first_sequence: u64,
}

/// The log as it was found.
pub(super) struct History {
    pub(super) uuid: Uuid,
    /// Largest generation seen anywhere, and largest id of a pair.
    pub(super) generation: u32,
    pub(super) last_pair: u64,
    /// Largest sequence in the first metadata of a line.
    pub(super) last_line: u64,
    /// Oldest first.
    pub(super) parts: Vec<Part>,
    /// In order, without a gap.
    pub(super) entries: Vec<LogEntry>,
    /// Chunks that are free once a newer anchor is durable: those that hold anchors, and those of
    /// the pair that the newest one names if it gives no block.
    pub(super) superseded: Vec<u32>,
    /// No anchor of before has a counter above this.
    pub(super) anchor_counter: u64,
    /// The pair that the newest anchor names.
    pub(super) named: Option<SegmentPair>,
    /// A later minor version wrote here: nothing may be changed.
    pub(super) is_newer: bool,
    /// Something that must be there is missing.
    pub(super) damage: Option<String>,
    /// Something behind the newest anchor or behind the log's last block can't be read. It may have
    /// been in flight when the power went.
    pub(super) is_torn: bool,
}

impl History {
    /// True when the log begins with the target's first record.
    pub(super) fn is_whole(&self) -> bool {
        self.entries.first().is_some_and(|e| e.sequence == 1)
    }

    /// The records of the last pair, which recovery copies; none when the pair is complete.
    pub(super) fn tail(&self) -> Option<(u64, &[LogEntry])> {
        let last = self.parts.last()?;
        if matches!(self.entries.last()?.record, Record::Segment { .. }) {
            return None;
        }
        let from = self.entries.partition_point(|e| e.sequence < last.first_sequence);
        Some((last.first_sequence, &self.entries[from..]))
    }

    pub(super) fn next_sequence(&self) -> u64 {
        self.entries.last().map_or(1, |e| e.sequence + 1)
    }
}

/// One block as one of its copies has it.
struct Block {
    first_sequence: u64,
    entries: Vec<LogEntry>,
    /// Every record that the header counts is intact.
    complete: bool,
    /// Sectors: those of its place, or of several.
    sectors: u32,
}

/// What a pair's copies hold.
#[derive(Default)]
struct Content {
    blocks: Vec<Block>,
    generation: u32,
    /// Something intact follows a block that neither copy has.
    gap: bool,
    /// The number of blocks after the last readable one that were written to both copies and that
    /// neither copy gives back. If the pair gives no block at all: the number of places of which
    /// nothing can be read. The last one may have been in flight when the power went; the others
    /// were complete.
    unread: u32,
    is_newer: bool,
}

impl Content {
    /// Is this record here, or a later one?
    fn reaches(&self, sequence: u64) -> bool {
        let last = self.blocks.last().and_then(|block| block.entries.last());
        last.is_some_and(|entry| entry.sequence >= sequence)
    }
}

/// Geometry of blocks in a chunk.
#[derive(Clone, Copy)]
struct Grid {
    sectors: u32,
    room: u32,
}

impl Grid {
    /// Blocks in a chunk that was written up to `pointer`.
    fn blocks(self, pointer: u32) -> u32 {
        (pointer + self.room - self.sectors) / self.room
    }
}

/// Reads the log of `wanted`, or of the target that the newest anchor belongs to.
pub(super) async fn read(
    cx: &Cx,
    survey: &mut Survey,
    wanted: Option<Uuid>,
    firsts: &Firsts,
) -> Result<History, MountError> {
    let grid = Grid {
        sectors: block_sectors(&survey.shape, survey.flash.geo.ws_min),
        room: block_room(&survey.shape, survey.flash.geo.ws_min),
    };
    let firsts = &firsts.read;
    let anchors = read_anchors(cx, survey, firsts, wanted).await?;
    let uuid = match (&anchors.newest, wanted) {
        (Some(anchor), _) => anchor.uuid,
        (None, Some(uuid)) => uuid,
        (None, None) => uuid_of_logs(cx, survey, grid, firsts).await.ok_or(MountError::NoTarget)?,
    };
    // Where each pair may lie: by what its sectors say, and by what anchors and other pairs say.
    let mut places: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let mut name = |pair: &SegmentPair| places.entry(pair.id).or_default().extend(pair.chunks);
    anchors.newest.iter().for_each(|a| [a.current, a.oldest].iter().for_each(&mut name));
    let is_log = |f: &&First| f.lba == LBA_LOG && f.stamp <= COUNT_MAX;
    claim(&mut places, firsts.iter().filter(is_log));
    // What a younger pair than the anchor's holds is the log's only if it leads on: a copy that
    // recovery had begun is none, but the newest anchors may be damaged.
    let range = match &anchors.newest {
        Some(a) => a.oldest.id..=a.current.id,
        None => 0..=0,
    };
    let mut found: BTreeMap<u64, (SegmentPair, Content)> = BTreeMap::new();
    let mut looked_at: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let pairs = survey.shape.pair_pads.div_ceil(grid.room);
    // For each pair the blocks at its end that no chunk gives, and how many a power cut explains.
    let mut unread: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
    loop {
        // All pairs at a time; then those that they say are before them, or in another chunk, too.
        // The mount skips pairs older than the oldest one that the anchor names.
        let new = places.range(*range.start()..);
        let new = new.filter(|(id, chunks)| looked_at.get(id) != Some(chunks));
        let new: BTreeMap<u64, BTreeSet<u32>> = new.map(|(id, c)| (*id, c.clone())).collect();
        if new.is_empty() {
            break;
        }
        let (read, others) = read_pairs(cx, survey, grid, uuid, &new, &range).await?;
        claim(&mut places, others.iter().filter(is_log));
        for (id, chunks, content) in read {
            for record in content.blocks.iter().flat_map(|b| &b.entries).map(|e| &e.record) {
                if let Record::Follows { previous } = record
                    && previous.id < id
                    && !mutant!("log.way-back-ignored")
                {
                    places.entry(previous.id).or_default().extend(previous.chunks);
                }
            }
            if range.contains(&id) && !mutant!("log.lost-pair-is-empty") {
                // A torn part of a first block may have taken page pairs of the same block along.
                let pairs = if content.blocks.is_empty() { pairs } else { 0 };
                unread.insert(id, (content.unread, 1 + pairs));
            }
            if let (Some(first), Some(last)) = (chunks.first(), chunks.last()) {
                found.insert(id, (SegmentPair { id, chunks: [*first, *last] }, content));
            }
        }
        looked_at.extend(new);
        // The last pair with a readable block names the next one. The mount looks for that pair,
        // too: perhaps none of its blocks can be read, or one of its copies shows no first record.
        let last =
            found.range(range.clone()).rev().find_map(|(_, (_, content))| content.blocks.last());
        if let Some(Record::Segment { next }) =
            last.and_then(|b| b.entries.last()).map(|e| &e.record)
            && next.id < *range.end()
            && !mutant!("log.way-on-ignored")
        {
            places.entry(next.id).or_default().extend(next.chunks);
        }
    }
    let generation = found.values().map(|(_, c)| c.generation).max().unwrap_or(0);
    let mut history = History {
        uuid,
        generation: generation.max(anchors.newest.as_ref().map_or(0, |a| a.generation)),
        last_pair: places.keys().next_back().copied().unwrap_or(0),
        last_line: last_line(cx, survey, firsts, uuid).await,
        parts: Vec::new(),
        entries: Vec::new(),
        superseded: anchors.chunks,
        named: anchors.newest.map(|a| a.current),
        anchor_counter: match anchors.newest {
            Some(a) if mutant!("log.anchor-counters-close") => a.counter,
            Some(a) => a.counter + UNSEEN,
            None if mutant!("log.unread-anchors-are-none") => 0,
            None => ((u64::from(generation) + 1) * MOST_UNSEEN).min(COUNT_MAX / 2),
        },
        is_newer: anchors.is_newer,
        damage: None,
        is_torn: anchors.is_torn,
    };
    let is_anchored = anchors.newest.is_some();
    for (id, (pair, content)) in found {
        let leads_on = id > *range.end() && content.reaches(history.next_sequence());
        let leads_on = leads_on && !mutant!("log.younger-pairs-ignored");
        let is_begun = id > *range.end() && mutant!("log.begun-copies-count");
        if range.contains(&id) || leads_on || is_begun {
            if !content.blocks.is_empty() {
                unread.insert(id, (content.unread, 1));
            }
            history.join(pair, content, is_anchored);
        }
    }
    if history.entries.is_empty() {
        return Err(MountError::LogLost);
    }
    history.check_end(&unread, *range.end());
    Ok(history)
}

impl History {
    /// Adds a younger pair. Its first block may begin again at a record that was read already: a block
    /// that one copy of an older pair could not take, or a copy of that pair's valid part (rule 22).
    fn join(&mut self, pair: SegmentPair, content: Content, is_anchored: bool) {
        self.is_newer |= content.is_newer;
        if content.gap && !mutant!("log.hole-unnoticed") {
            self.say(format!("the FTL log has a hole in segment {}", pair.id));
        }
        let Some(first) = content.blocks.first().map(|b| b.first_sequence) else { return };
        if first > self.next_sequence() && !self.entries.is_empty() {
            if is_anchored {
                let (from, to) = (self.next_sequence(), first - 1);
                self.say(format!("records {from} to {to} of the FTL log are missing"));
            }
            // Without an anchor what lies behind the hole may have been cut long ago.
            self.entries.clear();
            self.parts.clear();
        }
        for block in content.blocks {
            let keep = self.entries.partition_point(|e| e.sequence < block.first_sequence);
            self.entries.truncate(keep);
            self.entries.extend(block.entries);
        }
        // A pair whose records all came again later is no part of the log any more.
        self.parts.retain(|p| p.first_sequence < first);
        self.parts.push(Part { pair, first_sequence: first });
    }

    /// Notes damage if the end of the log, in the last pair that gives a block or in a younger one,
    /// lacks more blocks than a power cut explains. `unread`: for each pair, how many blocks at its
    /// end can't be read, and how many a power cut explains. `current`: the pair that the newest
    /// anchor names, which is empty only if the pair before it is complete.
    fn check_end(&mut self, unread: &BTreeMap<u64, (u32, u32)>, current: u64) {
        let last = self.parts.last().map_or(0, |part| part.pair.id);
        let at_end = || unread.range(last..).map(|(_, unread)| *unread);
        self.is_torn |=
            at_end().any(|(blocks, _)| blocks > 0) && !mutant!("log.first-block-trusted");
        let is_complete =
            self.entries.last().is_some_and(|e| matches!(e.record, Record::Segment { .. }));
        let missed =
            at_end().filter(|(blocks, torn)| blocks > torn).map(|(blocks, _)| blocks).max();
        if let Some(missed) = missed.filter(|_| !mutant!("log.end-of-any-length")) {
            self.say(format!("the last {missed} blocks of the FTL log can't be read"));
        }
        if last < current && !is_complete && !mutant!("log.end-before-anchor") {
            self.say(format!("the end of segment {last} of the FTL log can't be read"));
        }
    }

    fn say(&mut self, what: String) {
        self.damage.get_or_insert(what);
    }
}

/// Adds the pairs that first records name to the `places` of pairs. A chunk that is known as the
/// place of a younger pair holds no other: an older one there was given up before.
fn claim<'a>(
    places: &mut BTreeMap<u64, BTreeSet<u32>>,
    firsts: impl IntoIterator<Item = &'a First>,
) {
    let mut youngest: BTreeMap<u32, u64> = BTreeMap::new();
    for (id, chunks) in places.iter() {
        youngest.extend(chunks.iter().map(|chunk| (*chunk, *id)));
    }
    for First { chunk, stamp, .. } in firsts {
        let youngest = youngest.entry(*chunk).or_insert(*stamp);
        if *youngest <= *stamp || mutant!("log.given-up-pair-counts") {
            *youngest = *stamp;
            places.entry(*stamp).or_default().insert(*chunk);
        }
    }
}

/// What the anchors of a target say.
struct Anchors {
    newest: Option<Anchor>,
    /// Chunks with a copy of the newest anchor, or of the one before it, as a power cut may have
    /// left the newest one without all its copies. Chunks of older anchors are not listed and so
    /// are free: otherwise mounts that are refused again and again would use up all chunks, as
    /// each writes an anchor.
    chunks: Vec<u32>,
    is_newer: bool,
    /// Something behind the newest one of a chunk can't be read.
    is_torn: bool,
}

async fn read_anchors(
    cx: &Cx,
    survey: &mut Survey,
    firsts: &[First],
    wanted: Option<Uuid>,
) -> Result<Anchors, MountError> {
    let chunks = firsts.iter().filter(|f| f.lba == LBA_ANCHOR).map(|f| f.chunk);
    let chunks: Vec<u32> = chunks.collect();
    survey.make_readable(cx, chunks.iter().copied()).await;
    let tasks: Vec<_> = chunks
        .iter()
        .map(|chunk| {
            let (flash, their_cx, at) = (survey.flash.clone(), cx.clone(), *chunk);
            let end = survey.pointer(at);
            cx.spawn_join(async move { newest_anchor(&flash, &their_cx, (at, end), wanted).await })
        })
        .collect();
    let mut read = Vec::new();
    for task in tasks {
        read.push(task.await);
    }
    let mut all: Vec<(u32, Anchor, bool)> = Vec::new();
    let mut is_torn = false;
    for (chunk, read) in chunks.into_iter().zip(read) {
        let (newest, torn) = read?;
        is_torn |= torn;
        all.extend(newest.map(|(anchor, newer)| (chunk, anchor, newer)));
    }
    let sign = if mutant!("log.any-anchor") { -1 } else { 1 };
    let newest = all.iter().max_by_key(|(_, a, _)| sign * a.counter as i64).map(|(_, a, _)| *a);
    let ours = |a: &Anchor| newest.is_some_and(|n| n.uuid == a.uuid);
    all.retain(|(_, a, _)| ours(a));
    let is_newer = all.iter().any(|(_, _, newer)| *newer);
    let counters: BTreeSet<u64> = all.iter().map(|(_, a, _)| a.counter).collect();
    // The lowest counter that is kept, if there are two.
    let before = counters.iter().rev().nth(1).filter(|_| !mutant!("log.anchors-pile-up"));
    all.retain(|(_, a, _)| before.is_none_or(|before| a.counter >= *before));
    let chunks = all.into_iter().map(|(chunk, ..)| chunk).collect();
    Ok(Anchors { newest, is_newer, is_torn, chunks })
}

/// The newest anchor in a chunk that was written up to `end`, with whether a newer minor version
/// wrote it; and whether anything behind it can't be read.
async fn newest_anchor(
    flash: &Flash,
    cx: &Cx,
    (chunk, end): (u32, u32),
    wanted: Option<Uuid>,
) -> Result<(Option<(Anchor, bool)>, bool), MountError> {
    let mut is_torn = false;
    // From the end. Sectors between two anchors are no anchor, which their records say.
    let step = flash.geo.ws_min;
    let sectors: Vec<u32> = (0..end).step_by(step as usize).rev().collect();
    let mut bytes = vec![0; SECTOR_BYTES];
    for some in sectors.chunks(ANCHORS_AT_A_TIME) {
        let addrs = some.iter().map(|s| flash.addresses(chunk, *s, 1)[0]);
        let addrs: Vec<_> = addrs.collect();
        let mut content = vec![0; some.len() * SECTOR_BYTES];
        let mut oob: Records = [[0; OOB_BYTES]; VECTOR_MAX];
        let kind = (SECTOR_BYTES, true);
        let done = flash.read(cx, &addrs, &mut content, kind, &mut oob, Cause::Log).await;
        for (i, sector) in some.iter().enumerate() {
            let content = &content[i * SECTOR_BYTES..][..SECTOR_BYTES];
            if done.status(i).is_ok() && Oob::verify_for(&oob[i], LBA_PADDING, content) {
                continue;
            }
            if !flash.read_meta_again(cx, (chunk, *sector), LBA_ANCHOR, &mut bytes).await {
                is_torn = true;
                continue;
            }
            match Anchor::decode(&bytes) {
                Ok(a) if wanted.is_none_or(|uuid| uuid == a.uuid) && goes_on(&a) => {
                    return Ok((Some((a, is_newer_minor(&bytes))), is_torn));
                }
                Err(error @ FormatError::NewerMajor { .. }) => {
                    return Err(MountError::Newer(error));
                }
                _ => {}
            }
        }
    }
    Ok((None, is_torn))
}

/// Can a life come behind this one? An anchor that leaves no number for it was not written by us.
fn goes_on(a: &Anchor) -> bool {
    a.generation < u32::MAX && a.counter.max(a.current.id).max(a.oldest.id) <= COUNT_MAX
}

/// The largest sequence that a line of this target has in its first metadata.
async fn last_line(cx: &Cx, survey: &Survey, firsts: &[First], uuid: Uuid) -> u64 {
    let is_claim = |f: &&First| f.lba == LBA_LINE_FIRST && f.stamp <= COUNT_MAX;
    let mut claims: Vec<&First> = firsts.iter().filter(is_claim).collect();
    claims.sort_by_key(|f| std::cmp::Reverse(f.stamp));
    for claim in claims {
        let mut bytes = vec![0; SECTOR_BYTES];
        let at = (claim.chunk, 0);
        let good = survey.flash.read_meta_again(cx, at, LBA_LINE_FIRST, &mut bytes).await;
        // Of a line with very many chunks this is the beginning: the record vouches for it.
        let ours = bytes.get(16..32) == Some(uuid.as_slice());
        if good && ours {
            return claim.stamp;
        }
    }
    0
}

/// Without any anchor: the target of the newest block of a log.
async fn uuid_of_logs(cx: &Cx, survey: &Survey, grid: Grid, firsts: &[First]) -> Option<Uuid> {
    let mut newest: Option<(u32, u64, Uuid)> = None;
    for first in firsts.iter().filter(|f| f.lba == LBA_LOG) {
        let mut bytes = vec![0; grid.sectors as usize * SECTOR_BYTES];
        if survey.flash.read_meta(cx, (first.chunk, 0), LBA_LOG, &mut bytes).await
            && let Ok(block) = LogBlock::decode(&bytes)
        {
            let h = block.header();
            newest = newest.max(Some((h.generation, h.segment, h.uuid)));
        }
    }
    newest.map(|(_, _, uuid)| uuid)
}

/// A chunk that holds a pair, or might.
struct Holder {
    chunk: u32,
    /// Up to where it was written.
    pointer: u32,
    /// Its first sector says so. Where that can't be read, its blocks may.
    is_sure: bool,
}

/// Reads pairs, all at a time. Returns each with the chunks that hold it, and the first records of
/// all these chunks: padding may have shown that one holds another pair. `range`: the pairs that
/// the anchor names. First one copy of each is made readable to its end, and the others only where
/// that one does not give all: a power cut tears the padding of one copy at most, so a block that
/// neither gives was never complete.
async fn read_pairs(
    cx: &Cx,
    survey: &mut Survey,
    grid: Grid,
    uuid: Uuid,
    pairs: &BTreeMap<u64, BTreeSet<u32>>,
    range: &RangeInclusive<u64>,
) -> Result<(Vec<(u64, Vec<u32>, Content)>, Vec<First>), MountError> {
    let (mut read, mut others) = (Vec::new(), Vec::new());
    let mut left = pairs.clone();
    for copies in [1, usize::MAX] {
        let (held, found) = holders(cx, survey, grid, &left, range, copies).await;
        others.extend(found);
        let tasks: Vec<_> = held
            .into_iter()
            .map(|(id, holders)| {
                let (flash, their_cx) = (survey.flash.clone(), cx.clone());
                let of = (uuid, id);
                let pair = async move { read_pair(&flash, &their_cx, grid, of, holders).await };
                (id, cx.spawn_join(pair))
            })
            .collect();
        let mut ended = Vec::new();
        for (id, task) in tasks {
            ended.push((id, task.await));
        }
        for (id, pair) in ended {
            let (chunks, content) = pair?;
            let is_whole = content.unread == 0 && !content.gap && !chunks.is_empty();
            if is_whole || copies > 1 {
                left.remove(&id);
                read.push((id, chunks, content));
            }
        }
    }
    read.sort_by_key(|(id, ..)| *id);
    Ok((read, others))
}

/// Which of these chunks hold each pair: those whose first sector says so, or can't be read. What
/// can't be read to its end, or not yet at all, is padded where it may be that pair, of each pair
/// in so many `copies`: in one that the anchor names also a chunk whose first sector can't be read,
/// in a younger one only a chunk that says so, in an older one none. What else a chunk may be by
/// now is left alone. A chunk whose first sector can't be read, and of which no block says that it
/// is that pair, is never padded to its end: the next mount would take it for one whose erase was
/// cut. Also gives the first records of all these chunks, as they are after that.
async fn holders(
    cx: &Cx,
    survey: &mut Survey,
    grid: Grid,
    pairs: &BTreeMap<u64, BTreeSet<u32>>,
    range: &RangeInclusive<u64>,
    copies: usize,
) -> (Vec<(u64, Vec<Holder>)>, Vec<First>) {
    let is_it = |f: &First, id: u64| (f.lba, f.stamp) == (LBA_LOG, id);
    let all: BTreeSet<u32> = pairs.values().flatten().copied().collect();
    let all: Vec<u32> = all.into_iter().filter(|c| survey.is_written(*c)).collect();
    let before = survey.firsts_of(cx, &all).await;
    let may_be = |chunk: &u32, id: u64| {
        let first = before.get(chunk);
        let is_other = |f: &First| !is_it(f, id) && f.lba != LBA_NONE;
        let is_others = first.is_some_and(is_other) && !mutant!("log.any-chunk-padded");
        all.binary_search(chunk).is_ok() && !is_others
    };
    let mut padded = BTreeSet::new();
    for (id, chunks) in pairs {
        let mut left = copies;
        for chunk in chunks.iter().copied().filter(|c| may_be(c, *id)) {
            let is_sure = before.get(&chunk).is_some_and(|f| is_it(f, *id));
            let is_named = range.contains(id) || id > range.end() && is_sure;
            if left == 0 {
                break;
            }
            if !is_named {
                continue;
            }
            if !is_sure && survey.padding_fills(chunk) && !mutant!("log.unread-copies-filled") {
                let which = (0..grid.blocks(survey.pointer(chunk))).collect();
                if blocks_by_record(&survey.flash, cx, chunk, grid, *id, which)
                    .await
                    .found
                    .is_empty()
                {
                    continue;
                }
            }
            padded.insert(chunk);
            left -= 1;
        }
    }
    if !mutant!("log.log-ends-unpadded") {
        survey.make_readable(cx, padded).await;
    }
    let after = survey.firsts_of(cx, &all).await;
    let holders = pairs.iter().map(|(id, chunks)| {
        let chunks = chunks.iter().filter(|c| may_be(c, *id));
        let chunks = chunks.filter(|c| after.get(c).is_none_or(|f| is_it(f, *id)));
        let holder = |chunk: &u32| Holder {
            chunk: *chunk,
            pointer: survey.pointer(*chunk),
            is_sure: after.contains_key(chunk),
        };
        (*id, chunks.map(holder).collect())
    });
    let holders = holders.collect();
    let shown = after.into_values().filter(|_| !mutant!("log.shown-pair-unread"));
    (holders, shown.collect())
}

/// The blocks of a pair, each from the copy that has it whole, up to the first that neither has, and the
/// chunks that turn out to hold it.
async fn read_pair(
    flash: &Flash,
    cx: &Cx,
    grid: Grid,
    (uuid, id): (Uuid, u64),
    mut chunks: Vec<Holder>,
) -> Result<(Vec<u32>, Content), MountError> {
    let mut content = Content::default();
    let mut blocks: Vec<Option<Block>> = Vec::new();
    let mut padding = u32::MAX;
    // Places of which some copy gives a sector back.
    let mut seen = BTreeSet::new();
    let copies = if mutant!("log.one-log-copy-read") { 1 } else { usize::MAX };
    for Holder { chunk, pointer, is_sure } in chunks.iter_mut().take(copies) {
        let count = grid.blocks(*pointer);
        blocks.resize_with(blocks.len().max(count as usize), || None);
        let missing = |i: &u32| !blocks[*i as usize].as_ref().is_some_and(|b| b.complete);
        let mut missing: Vec<u32> = (0..count).filter(missing).collect();
        if !*is_sure && mutant!("log.unsure-copies-ignored") {
            continue;
        }
        if !*is_sure {
            let records = blocks_by_record(flash, cx, *chunk, grid, id, missing).await;
            missing = records.found;
            seen.extend(records.seen);
        }
        // As many blocks as one vector holds; what fails once more.
        for some in missing.chunks((VECTOR_MAX / grid.sectors as usize).max(1)) {
            let mut some = some.to_vec();
            let retries = if mutant!("log.log-read-once") { 0 } else { RETRIES };
            for _ in 0..=retries {
                let (bytes, firsts) = read_blocks(flash, cx, *chunk, grid, &some).await;
                for (i, first) in some.iter().zip(firsts) {
                    seen.extend(first.map(|_| *i));
                    if first == Some(IsPadding(true)) {
                        padding = padding.min(*i);
                    }
                }
                let sectors = grid.sectors as usize * SECTOR_BYTES;
                for (i, bytes) in some.iter().zip(bytes.chunks(sectors)) {
                    let Some(mut block) = decode(bytes, uuid, id, &mut content)? else { continue };
                    if block.sectors > grid.sectors {
                        let all = Grid { sectors: block.sectors, ..grid };
                        let end = (i * grid.room).saturating_add(block.sectors);
                        if end > *pointer {
                            continue; // it was never programmed to its end
                        }
                        let (bytes, _) = read_blocks(flash, cx, *chunk, all, &[*i]).await;
                        let Some(whole) = decode(&bytes, uuid, id, &mut content)? else { continue };
                        block = whole;
                    }
                    *is_sure = true;
                    let old = &mut blocks[*i as usize];
                    if old.as_ref().is_none_or(|old| old.entries.len() < block.entries.len()) {
                        *old = Some(block);
                    }
                }
                some.retain(|i| blocks[*i as usize].as_ref().is_none_or(|b| !b.complete));
                if some.is_empty() {
                    break;
                }
            }
        }
    }
    // What a mount padded in one copy was never written there; what only one copy was written with
    // may have been in flight. All that is before that was complete in both.
    let is_sure = chunks.iter().any(|holder| holder.is_sure);
    let counts = chunks.iter().filter(|holder| holder.is_sure || !is_sure);
    let count = |holder: &Holder| grid.blocks(holder.pointer);
    let complete = counts.map(count).min().unwrap_or(0).min(padding);
    chunks.retain(|holder| holder.is_sure);
    let (mut ended, mut behind) = (false, 0);
    for (at, block) in (0u32..).step_by(grid.room as usize).zip(blocks) {
        match block {
            // The place lies within a block that takes several.
            _ if at < behind => {}
            Some(_) if ended => content.gap = true,
            Some(block) => {
                ended = !block.complete;
                behind = at + block.sectors;
                content.blocks.push(block);
            }
            None => ended = true,
        }
    }
    let end = content.blocks.last().map_or(0, |_| behind.div_ceil(grid.room));
    let last = content.blocks.last().is_some_and(|block| !block.complete);
    content.unread = match content.blocks.is_empty() {
        // If its first block was in flight, then that may have taken any number of places.
        true => (0..complete).filter(|place| !seen.contains(place)).count() as u32,
        false => complete.saturating_sub(end) + u32::from(last && complete >= end),
    };
    Ok((chunks.into_iter().map(|holder| holder.chunk).collect(), content))
}

/// Places of a chunk by their first records.
struct ByRecord {
    /// A block of the pair lies there.
    found: Vec<u32>,
    /// The record can be read.
    seen: Vec<u32>,
}

/// Of these places those whose record says that a block of this pair lies there. Of a chunk whose first
/// sector can't be read nothing else tells: it may be a line's by now, and hold users' sectors.
async fn blocks_by_record(
    flash: &Flash,
    cx: &Cx,
    chunk: u32,
    grid: Grid,
    id: u64,
    which: Vec<u32>,
) -> ByRecord {
    let (mut found, mut seen) = (Vec::new(), Vec::new());
    for some in which.chunks(VECTOR_MAX) {
        let mut left = some.to_vec();
        for _ in 0..=RETRIES {
            let first = |i: &u32| flash.addresses(chunk, i * grid.room, 1)[0];
            let addrs: Vec<_> = left.iter().map(first).collect();
            let mut oob: Records = [[0; OOB_BYTES]; VECTOR_MAX];
            let done = flash.read(cx, &addrs, &mut [], (0, false), &mut oob, Cause::Log).await;
            let mut again = Vec::new();
            for (k, i) in left.iter().enumerate() {
                if !done.status(k).is_ok() {
                    again.push(*i);
                    continue;
                }
                seen.push(*i);
                let (lba, stamp, _) = Oob::decode_raw(&oob[k]);
                if (lba, stamp) == (LBA_LOG, id) {
                    found.push(*i);
                }
            }
            left = again;
            if left.is_empty() {
                break;
            }
        }
    }
    found.sort_unstable();
    ByRecord { found, seen }
}

/// Whether a place holds a mount's padding, if its first sector could be read.
#[derive(Clone, Copy, PartialEq, Eq)]
struct IsPadding(bool);

/// Reads blocks of a chunk. Returns their bytes, and for each block whose first sector could be
/// read whether it is a mount's padding.
async fn read_blocks(
    flash: &Flash,
    cx: &Cx,
    chunk: u32,
    grid: Grid,
    which: &[u32],
) -> (Vec<u8>, Vec<Option<IsPadding>>) {
    // A block that takes several places may be longer than a vector.
    let parts = |i: &u32| {
        let (from, end) = (i * grid.room, i * grid.room + grid.sectors);
        (from..end).step_by(VECTOR_MAX).map(move |at| (at, (end - at).min(VECTOR_MAX as u32)))
    };
    let addrs: Vec<_> = which
        .iter()
        .flat_map(parts)
        .flat_map(|(at, n)| flash.addresses(chunk, at, n as usize).into_iter().take(n as usize))
        .collect();
    let mut bytes = vec![0; addrs.len() * SECTOR_BYTES];
    let mut firsts = Vec::new();
    for (addrs, bytes) in addrs.chunks(VECTOR_MAX).zip(bytes.chunks_mut(VECTOR_MAX * SECTOR_BYTES))
    {
        let mut oob: Records = [[0; OOB_BYTES]; VECTOR_MAX];
        let done = flash.read(cx, addrs, bytes, (SECTOR_BYTES, true), &mut oob, Cause::Log).await;
        let sectors = bytes.chunks(SECTOR_BYTES).zip(&oob).enumerate();
        firsts.extend(sectors.map(|(i, (content, oob))| {
            let is_padding = || IsPadding(Oob::verify_for(oob, LBA_PADDING, content));
            done.status(i).is_ok().then(is_padding)
        }));
    }
    // By its first sector.
    (bytes, firsts.into_iter().step_by(grid.sectors as usize).collect())
}

/// A block of this pair; `None` when it is none, or has no intact record.
fn decode(
    bytes: &[u8],
    uuid: Uuid,
    id: u64,
    content: &mut Content,
) -> Result<Option<Block>, MountError> {
    let mut records = match LogBlock::decode(bytes) {
        Ok(block)
            if block.header().uuid == uuid
                && (block.header().segment == id || mutant!("log.blocks-of-others")) =>
        {
            block
        }
        Err(error @ FormatError::NewerMajor { .. }) => return Err(MountError::Newer(error)),
        _ => return Ok(None),
    };
    let header = *records.header();
    // Nothing could follow it: no block of ours, whatever its checksum says.
    if header.generation == u32::MAX || header.first_sequence > COUNT_MAX {
        return Ok(None);
    }
    content.generation = content.generation.max(header.generation);
    content.is_newer |= is_newer_minor(bytes);
    let mut entries = Vec::new();
    let mut complete = true;
    for entry in &mut records {
        match entry {
            Ok(entry) => entries.push(entry),
            Err(error) => {
                content.is_newer |= matches!(error, FormatError::UnknownRecord { .. });
                complete = false;
            }
        }
    }
    if entries.is_empty() {
        return Ok(None);
    }
    let Header { first_sequence, sectors, .. } = header;
    Ok(Some(Block { first_sequence, entries, complete, sectors }))
}
