//! What a line holds: by its closing metadata, or sector by sector.
//!
//! Owns: reading closing metadata back, the scan of out-of-band records, the verdict on what can't
//! be read. Promises: a write unit at the frontier of which no sector verifies was never written,
//! in a chunk of which everything before can be read; elsewhere a record that the device vouches
//! for takes part in the order though its content is bad, and anything else is reported as lost
//! (FORMAT.md rule 7, holes 13, 16 and 36). What can't be read is read again over time before that
//! is decided. Never: decides which copy is the newest.

use super::super::flash::{Flash, RETRIES, Records};
use super::super::format::{
    ClosingView, LBA_LIMIT, LBA_LINE_CLOSING, LBA_NONE, Oob, PACKED_BYTES, Uuid, pack_entry,
    unpack_entry,
};
use super::super::pool::{PoolState, Shape};
use super::facts::{Told, Written};
use super::survey::first_program;
use crate::patience::read_again;
use flashlane_base::{OOB_BYTES, Ppa, SECTOR_BYTES, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, ChunkState};
use flashlane_rt::{Cx, Join};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

const NOTHING: [u8; PACKED_BYTES] = pack_entry(LBA_NONE, 0);

/// For whom lines are scanned.
const FOR: Cause = Cause::Metadata;

/// A place on the medium: chunk of the target, first sector.
pub type Place = (u32, u32);

/// A line as it was found, in stripe order.
#[derive(Default)]
pub(super) struct Content {
    pub(super) entries: Vec<[u8; PACKED_BYTES]>,
    /// Entries whose content can't be vouched for: reads of them fail.
    pub(super) unverified: BTreeSet<u32>,
    /// Units at the frontier that can't be read: power failed in their program.
    pub(super) torn: Vec<Place>,
    /// Units behind it that can't be.
    pub(super) lost: Vec<Place>,
    /// Units that can't be read, but the log tells what they held.
    pub(super) told: Vec<Place>,
    /// It was scanned: there is no closing metadata, or some of it is damaged.
    pub(super) scanned: bool,
}

impl Content {
    /// Takes the entries of lost units from the log where it tells them: their sectors take part in
    /// the order, and reads of them fail. With `all` the log tells every unit of this line that was
    /// flushed, so a unit that it does not tell is no loss.
    pub(super) fn take_told(
        &mut self,
        reader: &Reader,
        spans: &[Span],
        written: Option<&Written>,
        all: bool,
    ) {
        let unit = reader.shape.unit as usize;
        let column: BTreeMap<u32, usize> = spans.iter().map(|s| s.chunk).zip(0..).collect();
        for place in std::mem::take(&mut self.lost) {
            let first =
                PoolState::entry_index(&reader.shape, spans.len(), column[&place.0], place.1);
            let entries = &mut self.entries[first..first + unit];
            let told = written.and_then(|written| written.get(&place));
            match told.filter(|_| !mutant!("log.told-is-untold")) {
                // A sound part of damaged closing metadata speaks of all of it.
                _ if entries.iter().all(|entry| *entry != NOTHING) => {}
                Some(told) => {
                    let mut has_data = false;
                    for (i, (entry, told)) in (first..).zip(entries.iter_mut().zip(told)) {
                        let (lba, stamp) = unpack_entry(told);
                        has_data |= lba < LBA_LIMIT;
                        if *entry == NOTHING && reader.is_ours(lba, stamp) {
                            *entry = *told;
                            self.unverified.insert(i as u32);
                        }
                    }
                    if has_data {
                        self.told.push(place);
                    }
                }
                None if all => self.torn.push(place),
                None => self.lost.push(place),
            }
        }
    }
}

/// A chunk of a line that is scanned.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) chunk: u32,
    /// Sectors that were written when the power came back first.
    pub(super) end: u32,
    /// Sectors that were written when this mount began; beyond `end` they are padding of earlier
    /// mounts, which a cut may have torn.
    pub(super) pointer: u32,
    /// From here on what can't be read was never written, or was written again elsewhere.
    pub(super) frontier: u32,
    /// From here on it was never written, which is true of a whole write unit or of none of it.
    pub(super) written: u32,
    /// The chunk is offline, or does not hold any more what it held when an earlier mount looked:
    /// what was in it is lost.
    pub(super) is_gone: bool,
}

pub(super) struct Reader {
    pub(super) flash: Flash,
    pub(super) shape: Shape,
    pub(super) uuid: Uuid,
    /// Bytes of content per sector of user data.
    pub(super) content_bytes: usize,
    pub(super) capacity: u64,
    pub(super) ceiling: u64,
}

/// A scan that has begun: by chunk, the sectors up to one from which the other goes on.
pub(super) struct Ahead(Vec<Join<Scanned>>);

impl Ahead {
    /// Waits until nothing of it is under way.
    pub(super) async fn ended(self) {
        for task in self.0 {
            drop(task.await);
        }
    }
}

impl Reader {
    /// Begins to scan the chunks of a line that was left open, each up to the last write unit before
    /// `ends`, where they can be read by now.
    pub(super) fn scan_ahead(
        self: &Rc<Self>,
        cx: &Cx,
        spans: impl Iterator<Item = (Span, u32)>,
    ) -> Ahead {
        let tasks = spans.map(|(span, end)| {
            let (me, their_cx) = (self.clone(), cx.clone());
            let end = end.min(span.end) / self.shape.unit * self.shape.unit;
            cx.spawn_join(async move {
                let mut out = Scanned::default();
                me.scan_chunk(&their_cx, span, end, &mut out).await;
                out
            })
        });
        Ahead(tasks.collect())
    }

    /// What a line holds. `spans` are its chunks in stripe order, `ahead` is what was begun of a scan.
    pub(super) async fn read(
        self: &Rc<Self>,
        cx: &Cx,
        told: &Told,
        spans: &[Span],
        ahead: Option<Ahead>,
    ) -> Content {
        let closing = self.read_closing(cx, told).await;
        let view = closing.as_ref().and_then(|bytes| ClosingView::decode(bytes).ok());
        let width = told.chunks.len();
        let sectors = width * self.shape.chunk_sectors as usize;
        let view = view.filter(|(header, view)| {
            let is_its = (header.uuid, header.sequence) == (self.uuid, told.sequence);
            (is_its || mutant!("log.closing-of-others")) && view.len() == sectors
        });
        let Some((_, view)) = view else {
            return self.scan(cx, width, spans, ahead).await;
        };
        let good = |section: &usize| {
            view.check_section(*section).is_ok() || mutant!("log.closing-crc-skipped")
        };
        if (0..view.sections()).all(|section| good(&section)) {
            let entries = (0..view.sections()).flat_map(|s| view.section(s).1.iter().copied());
            return Content { entries: entries.collect(), ..Content::default() };
        }
        // A damaged section costs its own entries: closing metadata is believed before the records.
        let mut content = self.scan(cx, width, spans, ahead).await;
        for section in (0..view.sections()).filter(good) {
            let (first, entries) = view.section(section);
            content.entries[first..first + entries.len()].copy_from_slice(entries);
            let said = first as u32..(first + entries.len()) as u32;
            content.unverified.retain(|i| !said.contains(i));
        }
        content
    }

    /// The bytes of a line's closing metadata; what can't be read is zeros, which no section verifies.
    async fn read_closing(&self, cx: &Cx, told: &Told) -> Option<Vec<u8>> {
        let places = told.closed.as_ref().filter(|places| !places.is_empty())?;
        let most = self.shape.closing_units(told.chunks.len() as u32) * self.shape.unit;
        let sectors: u64 = places.iter().map(|p| u64::from(p.count)).sum();
        if sectors > u64::from(most) {
            return None;
        }
        let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
        let mut parts = Vec::new();
        let mut rest = bytes.as_mut_slice();
        for place in places {
            for from in (0..place.count).step_by(VECTOR_MAX) {
                let n = (place.count - from).min(VECTOR_MAX as u32);
                let (part, behind) = rest.split_at_mut(n as usize * SECTOR_BYTES);
                rest = behind;
                parts.push(((place.chunk, place.sector + from), part));
            }
        }
        // All of them at a time: they lie on all PUs of the line.
        let tasks: Vec<_> = parts
            .iter()
            .map(|((chunk, sector), part)| {
                let (flash, their_cx, at) = (self.flash.clone(), cx.clone(), (*chunk, *sector));
                let mut part = vec![0; part.len()];
                cx.spawn_join(async move {
                    let read =
                        flash.read_meta_over_time(&their_cx, at, LBA_LINE_CLOSING, &mut part);
                    if !read.await {
                        read_good_sectors(&flash, &their_cx, at, &mut part).await;
                    }
                    part
                })
            })
            .collect();
        for (task, (_, part)) in tasks.into_iter().zip(parts) {
            part.copy_from_slice(&task.await);
        }
        Some(bytes)
    }

    /// Sector by sector, all chunks at a time.
    async fn scan(
        self: &Rc<Self>,
        cx: &Cx,
        width: usize,
        spans: &[Span],
        ahead: Option<Ahead>,
    ) -> Content {
        let begun = ahead.into_iter().flat_map(|ahead| ahead.0).map(Some);
        let begun = begun.chain(std::iter::repeat_with(|| None));
        let tasks: Vec<_> = spans
            .iter()
            .zip(begun)
            .map(|(span, begun)| {
                let (me, their_cx, span) = (self.clone(), cx.clone(), *span);
                cx.spawn_join(async move {
                    let mut out = match begun {
                        Some(begun) => begun.await,
                        None => Scanned::default(),
                    };
                    me.scan_chunk(&their_cx, span, span.end, &mut out).await;
                    me.doubt(&their_cx, span, &mut out).await;
                    out
                })
            })
            .collect();
        let sectors = width * self.shape.chunk_sectors as usize;
        let mut content =
            Content { entries: vec![NOTHING; sectors], scanned: true, ..Content::default() };
        for (at, task) in tasks.into_iter().enumerate() {
            let chunk = task.await;
            for (sector, (entry, verified)) in chunk.sectors.iter().enumerate() {
                let i = PoolState::entry_index(&self.shape, width, at, sector as u32);
                content.entries[i] = *entry;
                if !verified {
                    content.unverified.insert(i as u32);
                }
            }
            content.torn.extend(chunk.torn);
            // The line's first metadata holds nothing of the host's.
            let first = if at == 0 { self.shape.first_units(width as u32) } else { 0 };
            let is_data = |unit: &Place| unit.1 >= first * self.shape.unit;
            content.lost.extend(chunk.lost.into_iter().filter(is_data));
        }
        content
    }

    /// Scans a chunk from where `out` ends, at a write unit, up to `end`.
    async fn scan_chunk(&self, cx: &Cx, span: Span, end: u32, out: &mut Scanned) {
        let unit = self.shape.unit;
        let step = VECTOR_MAX as u32 / unit * unit;
        for from in (out.sectors.len() as u32..end).step_by(step as usize) {
            let n = step.min(end - from);
            if span.is_gone && !mutant!("log.gone-is-torn") {
                out.sectors.extend((0..n).map(|_| (NOTHING, true)));
                out.lost.extend((from..from + n).step_by(unit as usize).map(|s| (span.chunk, s)));
                continue;
            }
            let seen = self.look_often(cx, span, from, n).await;
            for first in (0..n).step_by(unit as usize) {
                let sectors = first as usize..(first + unit).min(n) as usize;
                self.judge(out, (span.chunk, from + first), &seen[sectors], span);
            }
        }
        // Where what was complete can't be read, what can't be read at the end was not torn,
        // either.
        if !out.lost.is_empty() && !mutant!("log.torn-among-lost") {
            out.lost.append(&mut out.torn);
            out.lost.sort_unstable();
        }
    }

    /// What can't be read at the end of a chunk is torn only if the chunk can be read: its
    /// beginning, or the padding behind its end, which this mount wrote and the chunk took. Before
    /// and after that the same units fail. Else what they hold is unknown, so it counts as lost.
    async fn doubt(&self, cx: &Cx, span: Span, out: &mut Scanned) {
        const ROUNDS: u32 = 4;
        if mutant!("log.torn-undoubted") {
            return;
        }
        for _ in 0..ROUNDS {
            if out.torn.is_empty() {
                return;
            }
            let witnesses = self.witnesses(span, out);
            if witnesses.is_empty() {
                return;
            }
            let mut is_readable = false;
            for sector in witnesses {
                for _ in 0..=RETRIES {
                    let seen = self.look(cx, span.chunk, sector, 1, false);
                    is_readable = is_readable || seen.await[0].sure;
                }
                if is_readable {
                    break;
                }
            }
            if !is_readable {
                break;
            }
            let before = std::mem::take(out);
            self.scan_chunk(cx, span, span.end, out).await;
            if out.torn == before.torn {
                return;
            }
        }
        out.lost.append(&mut out.torn);
        out.lost.sort_unstable();
    }

    /// Sectors that show whether this chunk can be read: one that can be gives back at least one of
    /// them, whatever a cut tore. They are this mount's padding; if there is none, the padding of
    /// earlier mounts and what the chunk held. Empty if the chunk holds too little.
    fn witnesses(&self, span: Span, out: &Scanned) -> Vec<u32> {
        let per_pu = self.shape.chunks_per_pu;
        let (pu, chunk) = (span.chunk / per_pu, span.chunk % per_pu);
        let Some(info) = self.flash.device.chunk_report(pu, chunk, 1).first().copied() else {
            return Vec::new();
        };
        let readable = match info.state {
            ChunkState::Open => info.write_pointer.saturating_sub(self.shape.window),
            _ => info.write_pointer,
        };
        let failed = self.flash.has_failed_padding(span.chunk);
        let is_own = !mutant!("log.torn-padding-decides");
        let own = if is_own { span.end.max(span.pointer) } else { span.end };
        if readable > own && !failed {
            return vec![own];
        }
        let earlier = if failed { span.end..span.end } else { span.end..readable };
        let good = out.sectors.iter().position(|(entry, verified)| *verified && *entry != NOTHING);
        // It died while the mount was at work, or more units than the first can't be read.
        let is_gone = info.state == ChunkState::Offline;
        let held = if failed { readable.min(span.end) } else { readable };
        let is_more = is_gone || held > first_program(&self.shape);
        let good = good.map(|sector| sector as u32).or(is_more.then_some(0));
        earlier.step_by(self.shape.unit as usize).chain(good).collect()
    }

    /// Looks at sectors of a chunk, from the beginning of a unit on, and again at units that are
    /// not all good: at once, and over time.
    async fn look_often(&self, cx: &Cx, span: Span, from: u32, n: u32) -> Vec<Seen> {
        let unit = self.shape.unit;
        // Behind the frontier a record counts whatever its content is: reads verify it.
        let verify = from + n > span.frontier && !mutant!("log.scan-crc-skipped");
        let mut seen = self.look(cx, span.chunk, from, n, verify).await;
        let mut again = async |first: u32| {
            let sectors = first as usize..(first + unit).min(n) as usize;
            for _ in 0..RETRIES {
                if seen[sectors.clone()].iter().all(|s| s.good) || mutant!("log.scanned-once") {
                    break;
                }
                let (at, n) = (from + first, sectors.len() as u32);
                let again = self.look(cx, span.chunk, at, n, verify).await;
                for (old, new) in seen[sectors.clone()].iter_mut().zip(again) {
                    if !old.good && (new.good || new.sure) {
                        *old = new;
                    }
                }
            }
            seen[sectors].iter().all(|s| s.good)
        };
        let mut left = Vec::new();
        for first in (0..n).step_by(unit as usize) {
            if !again(first).await {
                left.push(first);
            }
        }
        if left.is_empty() || self.flash.is_hopeless(span.chunk) || mutant!("log.scanned-at-once") {
            return seen;
        }
        let left = read_again(cx, left, async |left| {
            let mut still = Vec::new();
            for first in left {
                if !again(first).await {
                    still.push(first);
                }
            }
            still
        });
        if !left.await.is_empty() {
            self.flash.give_up_on(span.chunk);
        }
        seen
    }

    /// One unit, or the beginning of one.
    fn judge(&self, out: &mut Scanned, place: Place, seen: &[Seen], span: Span) {
        let (mut torn, mut lost) = (false, false);
        // The device tears `ws_min` sectors as a whole: where one of them verifies, all were programmed,
        // and another one has decayed since (FORMAT.md, hole 36).
        let piece = self.flash.geo.ws_min as usize;
        let pieces = seen.chunks(piece).zip((place.1..).step_by(piece));
        for (sectors, from) in pieces {
            let was_written = from >= span.written && sectors.iter().any(|s| s.good);
            let was_written = was_written && !mutant!("log.part-of-unit-torn");
            let at_frontier = from >= span.frontier && !mutant!("log.torn-is-lost");
            let at_frontier = at_frontier || mutant!("log.lost-is-torn");
            let is_frontier = at_frontier && !was_written;
            for s in sectors {
                let (lba, ..) = Oob::decode_raw(&s.oob);
                let mut packed = NOTHING;
                packed.copy_from_slice(&s.oob[..PACKED_BYTES]);
                let plausible = self.is_plausible(&s.oob);
                let entry = match (s.good, is_frontier) {
                    (true, _) if lba < LBA_LIMIT && !plausible => (NOTHING, true),
                    (true, _) => (packed, true),
                    (false, true) => {
                        torn = true;
                        (NOTHING, true)
                    }
                    (false, false) if s.sure && plausible => (packed, false),
                    (false, false) => {
                        lost = true;
                        (NOTHING, true)
                    }
                };
                out.sectors.push(entry);
            }
        }
        if torn {
            out.torn.push(place);
        }
        if lost && !mutant!("log.lost-unsaid") {
            out.lost.push(place);
        }
    }

    /// Can it be the record of a user's sector? (FORMAT.md, hole 13)
    fn is_plausible(&self, oob: &[u8; OOB_BYTES]) -> bool {
        let (lba, stamp, _) = Oob::decode_raw(oob);
        self.is_ours(lba, stamp)
    }

    fn is_ours(&self, lba: u64, stamp: u64) -> bool {
        lba < self.capacity
            && ((1..=self.ceiling).contains(&stamp) || mutant!("log.implausible-taken"))
    }

    /// Reads the records of sectors of a chunk and, with `verify`, their content.
    async fn look(&self, cx: &Cx, chunk: u32, sector: u32, n: u32, verify: bool) -> Vec<Seen> {
        let addrs = self.flash.addresses(chunk, sector, n as usize);
        let addrs = &addrs[..n as usize];
        let mut oob: Records = [[0; OOB_BYTES]; VECTOR_MAX];
        let unit = self.content_bytes;
        if verify && unit == SECTOR_BYTES {
            // All sectors are of one kind: one read gives everything.
            let mut content = vec![0; addrs.len() * SECTOR_BYTES];
            let read = self.flash.read(cx, addrs, &mut content, (unit, false), &mut oob, FOR);
            let done = read.await;
            let sectors = content.chunks_exact(SECTOR_BYTES).zip(&oob).enumerate();
            return sectors
                .map(|(i, (content, oob))| {
                    let sure = done.status(i).is_ok();
                    let good = sure && (is_typed(oob) || Oob::verify(oob, content));
                    Seen { oob: *oob, sure, good }
                })
                .collect();
        }
        let done = self.flash.read(cx, addrs, &mut [], (0, false), &mut oob, FOR).await;
        let mut seen: Vec<Seen> = oob[..addrs.len()]
            .iter()
            .enumerate()
            .map(|(i, oob)| {
                let sure = done.status(i).is_ok();
                let believed = !verify && self.is_plausible(oob);
                Seen { oob: *oob, sure, good: sure && (is_typed(oob) || believed) }
            })
            .collect();
        if !verify {
            return seen;
        }
        let user: Vec<usize> = (0..seen.len())
            .filter(|i| seen[*i].sure && Oob::decode_raw(&seen[*i].oob).0 < LBA_LIMIT)
            .collect();
        if user.is_empty() {
            return seen;
        }
        let addrs: Vec<Ppa> = user.iter().map(|i| addrs[*i]).collect();
        let mut content = vec![0; user.len() * unit];
        let done = self.flash.read(cx, &addrs, &mut content, (unit, false), &mut oob, FOR).await;
        for (k, i) in user.into_iter().enumerate() {
            let content = &content[k * unit..(k + 1) * unit];
            seen[i].good = done.status(k).is_ok() && Oob::verify(&seen[i].oob, content);
        }
        seen
    }
}

/// Is it no user data? Nobody reads the content of other types by this record, so it need not be good.
fn is_typed(oob: &[u8; OOB_BYTES]) -> bool {
    let (lba, ..) = Oob::decode_raw(oob);
    lba >= LBA_LIMIT && lba != LBA_NONE
}

/// A sector as the device gives it.
#[derive(Clone, Copy)]
struct Seen {
    oob: [u8; OOB_BYTES],
    /// The device vouches for the record.
    sure: bool,
    /// Content and record agree, as far as that was looked at.
    good: bool,
}

/// What a chunk's scan found.
#[derive(Default)]
struct Scanned {
    /// Per sector: its entry, and whether its content verified.
    sectors: Vec<([u8; PACKED_BYTES], bool)>,
    torn: Vec<Place>,
    lost: Vec<Place>,
}

/// Sectors of metadata one by one, after one of them failed: the others still count.
async fn read_good_sectors(flash: &Flash, cx: &Cx, (chunk, sector): Place, bytes: &mut [u8]) {
    for (at, part) in (sector..).zip(bytes.chunks_mut(SECTOR_BYTES)) {
        if !flash.read_meta_again(cx, (chunk, at), LBA_LINE_CLOSING, part).await {
            part.fill(0);
        }
    }
}
