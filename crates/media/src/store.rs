//! What is kept of a sector's content: everything, or eight bytes.
//!
//! Owns: the records of programmed sectors (content and out-of-band record side by side) and the
//! memory they lie in. Promises: a chunk that was never written costs nothing; in steady state
//! nothing is allocated, since an erased chunk's memory goes to the next one that is written;
//! under `stamps` a sector costs 24 bytes, a metadata sector its real bytes more; only contents that
//! are kept [`elsewhere`] (a pool, an image) can fail. Never: asks whether a sector may be read or
//! written.

mod elsewhere;
mod save;

pub use elsewhere::{Elsewhere, Trouble};

use crate::image::sectors::Owner;
use crate::payload::{Gather, Scatter};
use flashlane_base::{OOB_BYTES, SECTOR_BYTES, prefetch};
use serde::Deserialize;

/// Which store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StoreKind {
    /// All 4096 bytes.
    Memory,
    /// Eight bytes per sector of user data; metadata in full, without its trailing zeros.
    #[default]
    Stamps,
    /// All 4096 bytes, equal ones once, in bounded memory; the rest in a file of the process.
    Compact,
    /// All 4096 bytes in an image file, which outlives the process.
    File,
}

impl StoreKind {
    /// Content bytes per sector of user data.
    pub const fn content_bytes(self) -> usize {
        match self {
            StoreKind::Memory | StoreKind::Compact | StoreKind::File => SECTOR_BYTES,
            StoreKind::Stamps => STAMP,
        }
    }
}

const STAMP: usize = 8;
/// Name of the full content that is zeros, as padding is: kept once, never given up.
const ZEROS: u32 = 0;
/// Bytes of a segment, about: with stamps a whole chunk of most devices, so that a sector is one
/// step away from its chunk; small enough that a chunk which is only begun costs little.
const SEGMENT_BYTES: usize = 128 << 10;

/// The content of one chunk.
#[derive(Debug, Default)]
pub struct Body {
    /// The first segment; empty while nothing is written.
    first: Box<[u8]>,
    more: Option<Box<More>>,
}

/// What few chunks have.
#[derive(Debug, Default)]
struct More {
    /// Segments behind the first.
    segments: Vec<Box<[u8]>>,
    /// `stamps` only: which sectors hold the name of full content instead of a stamp; empty when
    /// none does.
    whole: Box<[u64]>,
    /// `file` only: where in the image the chunk's content is.
    slot: Option<u32>,
    /// `file` only: whose it is.
    owner: Owner,
}

impl Body {
    /// The slot of the image that holds the content.
    pub(crate) fn slot(&self) -> Option<u32> {
        self.more.as_ref().and_then(|m| m.slot)
    }

    /// In an image, what is written from now on is this chunk's.
    pub(crate) fn set_owner(&mut self, owner: Owner) {
        self.more.get_or_insert_default().owner = owner;
    }

    fn owner(&self) -> Owner {
        self.more.as_ref().map_or(Owner::default(), |m| m.owner)
    }

    /// The content lies in this slot of the image.
    pub(crate) fn set_slot(&mut self, slot: u32) {
        self.more.get_or_insert_default().slot = Some(slot);
    }

    #[inline]
    fn is_whole(&self, sector: u32) -> bool {
        let Some(more) = &self.more else {
            return false;
        };
        let word = more.whole.get(sector as usize / 64);
        word.is_some_and(|w| w >> (sector % 64) & 1 == 1)
    }

    #[inline]
    fn has_whole(&self) -> bool {
        self.more.as_ref().is_some_and(|m| !m.whole.is_empty())
    }

    /// A segment; empty when nothing was written there, which a torn erase's pointer does not say.
    #[inline]
    fn segment(&self, i: usize) -> &[u8] {
        match (i, &self.more) {
            (0, _) => &self.first,
            (i, Some(more)) => more.segments.get(i - 1).map_or(&[], |s| s),
            (_, None) => &[],
        }
    }

    /// Segments that exist.
    fn segments(&self) -> usize {
        let more = self.more.as_ref().map_or(0, |m| m.segments.len());
        more + usize::from(!self.first.is_empty())
    }
}

/// Why content was not copied out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// The caller's content unit is not what the sector holds.
    WrongUnit,
    /// The host could not give it.
    Host,
}

/// The host did not take a content: its disk is full, or failed. Nothing was programmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostFailed;

/// Memory of a channel's chunks.
#[derive(Debug)]
pub struct Store {
    kind: StoreKind,
    record: usize,
    shift: u32,
    chunk_sectors: u32,
    pool: Vec<Box<[u8]>>,
    wholes: Vec<Box<[u8]>>,
    free_wholes: Vec<u32>,
    segments: usize,
    whole_bytes: usize,
    /// Contents are not in the records.
    elsewhere: Option<Box<Elsewhere>>,
}

impl Store {
    /// A store in memory for chunks of that many sectors: `memory` or `stamps`.
    pub fn new(kind: StoreKind, chunk_sectors: u32) -> Store {
        Store::of(kind, kind.content_bytes() + OOB_BYTES, chunk_sectors)
    }

    fn of(kind: StoreKind, record: usize, chunk_sectors: u32) -> Store {
        let fit = (SEGMENT_BYTES / record).max(8) as u32;
        let sectors = chunk_sectors.next_power_of_two().min(fit.next_power_of_two());
        Store {
            kind,
            record,
            shift: sectors.trailing_zeros(),
            chunk_sectors,
            pool: Vec::new(),
            wholes: vec![Box::default()],
            free_wholes: Vec::new(),
            segments: 0,
            whole_bytes: 0,
            elsewhere: None,
        }
    }

    /// Which store this is.
    pub fn kind(&self) -> StoreKind {
        self.kind
    }

    /// Bytes that contents take in this channel's memory, free pieces included.
    pub fn bytes(&self) -> usize {
        self.segments * (self.record << self.shift) + self.whole_bytes
    }

    /// True when `unit` is what a program of this kind of content carries.
    #[inline]
    pub fn takes(&self, unit: usize, whole: bool) -> bool {
        unit == if whole { SECTOR_BYTES } else { self.kind.content_bytes() }
    }

    /// Records `oob.len()` sectors from `sector` on; their content is `content`'s from `first`.
    #[inline]
    pub fn write(
        &mut self,
        body: &mut Body,
        sector: u32,
        content: &Gather<'_>,
        first: usize,
        oob: &[[u8; OOB_BYTES]],
    ) -> Result<(), HostFailed> {
        debug_assert_eq!(content.unit(), self.kind.content_bytes());
        if self.elsewhere.is_some() {
            return self.write_elsewhere(body, sector, content, first, oob);
        }
        let (mut done, n) = (0, oob.len());
        while done < n {
            let (records, span) = self.span(body, sector + done as u32, n - done);
            let (first, oob) = (first + done, &oob[done..done + span]);
            if self.kind == StoreKind::Stamps {
                write_records::<STAMP, { STAMP + OOB_BYTES }>(records, content, first, oob);
            } else {
                const RECORD: usize = SECTOR_BYTES + OOB_BYTES;
                write_records::<SECTOR_BYTES, RECORD>(records, content, first, oob);
            }
            done += span;
        }
        Ok(())
    }

    /// Like `write`, for content of 4096 bytes under every store.
    pub fn write_whole(
        &mut self,
        body: &mut Body,
        sector: u32,
        content: &Gather<'_>,
        first: usize,
        oob: &[[u8; OOB_BYTES]],
    ) -> Result<(), HostFailed> {
        if self.kind != StoreKind::Stamps {
            return self.write(body, sector, content, first, oob);
        }
        for (k, oob) in oob.iter().enumerate() {
            self.put_whole(body, sector + k as u32, content.sector(first + k), oob);
        }
        Ok(())
    }

    /// Keeps a full content (`stamps`).
    fn put_whole(&mut self, body: &mut Body, at: u32, content: &[u8], oob: &[u8; OOB_BYTES]) {
        let name = self.keep_whole(content) as u64;
        let (record, _) = self.span(body, at, 1);
        record[..STAMP].copy_from_slice(&name.to_le_bytes());
        record[STAMP..].copy_from_slice(oob);
        let words = self.chunk_sectors.div_ceil(64) as usize;
        let more = body.more.get_or_insert_default();
        if more.whole.is_empty() {
            more.whole = vec![0; words].into();
        }
        more.whole[at as usize / 64] |= 1 << (at % 64);
    }

    /// Fills in sectors that hold nothing (their program failed), so that later ones have a place.
    pub fn write_nothing(&mut self, body: &mut Body, sector: u32, n: u32) {
        if self.kind == StoreKind::File {
            return; // places in a file need no filling
        }
        let mut done = 0;
        while done < n as usize {
            let (record, span) = self.span(body, sector + done as u32, n as usize - done);
            record.fill(0xff);
            done += span;
        }
    }

    /// The records from `sector` on that lie in one segment, `n` at most.
    #[inline]
    fn span<'b>(&mut self, body: &'b mut Body, sector: u32, n: usize) -> (&'b mut [u8], usize) {
        let (segment, at) = ((sector >> self.shift) as usize, sector & ((1 << self.shift) - 1));
        if segment >= body.segments() {
            self.grow(body, segment);
        }
        let span = n.min((1usize << self.shift) - at as usize);
        let from = at as usize * self.record;
        let memory = match (segment, &mut body.more) {
            (0, _) | (_, None) => &mut body.first,
            (i, Some(more)) => &mut more.segments[i - 1],
        };
        (&mut memory[from..from + span * self.record], span)
    }

    /// Adds segments up to number `segment`.
    #[cold]
    fn grow(&mut self, body: &mut Body, segment: usize) {
        while body.segments() <= segment {
            let sectors = (1usize << self.shift).min(self.chunk_sectors as usize);
            let mut fresh = self.pool.pop().unwrap_or_else(|| {
                self.segments += 1;
                vec![0; self.record * sectors].into()
            });
            if self.kind == StoreKind::Compact {
                fresh.fill(0); // no names of the chunk before
            }
            match body.first.is_empty() {
                true => body.first = fresh,
                false => body.more.get_or_insert_default().segments.push(fresh),
            }
        }
    }

    fn keep_whole(&mut self, content: &[u8]) -> u32 {
        let kept: Box<[u8]> = without_zeros(content).into();
        if kept.is_empty() {
            return ZEROS;
        }
        self.whole_bytes += kept.len();
        match self.free_wholes.pop() {
            Some(id) => {
                self.wholes[id as usize] = kept;
                id
            }
            None => {
                self.wholes.push(kept);
                (self.wholes.len() - 1) as u32
            }
        }
    }

    /// The record of a programmed sector: (content as kept, out-of-band record).
    #[inline]
    fn record<'b>(&self, body: &'b Body, sector: u32) -> (&'b [u8], &'b [u8]) {
        let segment = body.segment((sector >> self.shift) as usize);
        let at = (sector & ((1 << self.shift) - 1)) as usize * self.record;
        segment[at..at + self.record].split_at(self.record - OOB_BYTES)
    }

    /// Asks the memory for the records of `n` sectors from `sector` on, where they are short. Whole
    /// sectors are streams, which the processor follows by itself, and would only push out others.
    #[inline]
    pub fn prefetch(&self, body: &Body, sector: u32, n: u32) {
        if self.kind == StoreKind::Memory {
            return;
        }
        let segment = body.segment((sector >> self.shift) as usize);
        let from = (sector & ((1 << self.shift) - 1)) as usize * self.record;
        let to = (from + n as usize * self.record).min(segment.len());
        for line in segment.get(from..to).into_iter().flat_map(|records| records.chunks(64)) {
            prefetch(line);
        }
    }

    /// Copies out a programmed sector. An empty `content` asks for the out-of-band record alone.
    #[inline]
    pub fn read(
        &self,
        body: &Body,
        sector: u32,
        whole: bool,
        content: &mut [u8],
        oob: &mut [u8; OOB_BYTES],
    ) -> Result<(), Unread> {
        if self.elsewhere.is_some() {
            return self.read_elsewhere(body, sector, content, oob);
        }
        let (kept, kept_oob) = self.record(body, sector);
        oob.copy_from_slice(kept_oob);
        if content.is_empty() {
            return Ok(());
        }
        if self.kind == StoreKind::Memory {
            content.copy_from_slice(kept);
            return Ok(());
        }
        let is_whole = body.is_whole(sector);
        if is_whole != whole {
            content.fill(0);
            return Err(Unread::WrongUnit);
        }
        if is_whole {
            let full = &self.wholes[name_of(kept) as usize];
            content[..full.len()].copy_from_slice(full);
            content[full.len()..].fill(0);
        } else {
            content.copy_from_slice(kept);
        }
        Ok(())
    }

    /// A sector as it is kept: (bytes of content in `into`, whether they are a whole sector under
    /// a store that tells, out-of-band record).
    pub fn extract(
        &self,
        body: &Body,
        sector: u32,
        into: &mut [u8; SECTOR_BYTES],
    ) -> Result<(usize, bool, [u8; OOB_BYTES]), Unread> {
        let whole = body.is_whole(sector);
        let unit = match whole {
            true => SECTOR_BYTES,
            false => self.kind.content_bytes(),
        };
        let mut oob = [0; OOB_BYTES];
        self.read(body, sector, whole, &mut into[..unit], &mut oob)?;
        Ok((unit, whole, oob))
    }

    /// Takes a chunk's memory back.
    pub fn free(&mut self, mut body: Body) {
        if self.elsewhere.is_some() {
            self.free_elsewhere(&body);
        }
        if body.has_whole() {
            self.free_wholes_of(&body);
        }
        if let Some(mut more) = body.more.take() {
            self.pool.append(&mut more.segments);
        }
        if !body.first.is_empty() {
            self.pool.push(body.first);
        }
    }
}

impl Store {
    /// Forgets the sectors `from .. end`, which are going to be programmed again without an erase:
    /// their program never was.
    pub fn forget(&mut self, body: &mut Body, from: u32, end: u32) {
        if self.elsewhere.is_some() {
            return self.forget_elsewhere(body, from, end);
        }
        for sector in from..end {
            if body.is_whole(sector) {
                self.free_whole(body, sector);
                if let Some(more) = &mut body.more {
                    more.whole[sector as usize / 64] &= !(1 << (sector % 64));
                }
            }
        }
    }

    /// Gives up the full contents that a chunk names.
    fn free_wholes_of(&mut self, body: &Body) {
        let words = body.more.as_ref().map_or(0, |m| m.whole.len());
        for sector in (0..words as u32 * 64).filter(|s| body.is_whole(*s)) {
            self.free_whole(body, sector);
        }
    }

    /// Gives up the full content that a sector names.
    fn free_whole(&mut self, body: &Body, sector: u32) {
        let id = name_of(self.record(body, sector).0) as u32;
        if id == ZEROS {
            return;
        }
        self.whole_bytes -= self.wholes[id as usize].len();
        self.wholes[id as usize] = Box::default();
        self.free_wholes.push(id);
    }

    /// Copies out user data, `oob.len()` sectors that lie among the `span` sectors from `sector`
    /// on: the `k`-th at `place(k)`. False, and nothing done, when not all of them are user data,
    /// their content unit is not the store's, or they are not side by side in memory.
    #[inline]
    pub fn read_places(
        &self,
        body: &Body,
        (sector, span): (u32, u32),
        place: impl Fn(usize) -> usize,
        content: &mut Scatter<'_>,
        first: usize,
        oob: &mut [[u8; OOB_BYTES]],
    ) -> bool {
        if self.kind == StoreKind::File {
            return self.read_file(body, sector, place, content, first, oob);
        }
        let (segment, at) = (sector >> self.shift, sector & ((1 << self.shift) - 1));
        let end = at as usize + span as usize;
        let plain = self.kind == StoreKind::Stamps && content.unit == STAMP && !body.has_whole();
        let index = &content.index[first..first + oob.len()];
        let Some(row) = content.side_by_side().filter(|_| plain && end <= 1 << self.shift) else {
            return false;
        };
        let (records, _) = body.segment(segment as usize).as_chunks::<{ STAMP + OOB_BYTES }>();
        let (units, _) = row.as_chunks_mut::<STAMP>();
        let records = &records[at as usize..end];
        for (k, (oob, i)) in oob.iter_mut().zip(index).enumerate() {
            let record = &records[place(k)];
            units[*i as usize].copy_from_slice(&record[..STAMP]);
            oob.copy_from_slice(&record[STAMP..]);
        }
        true
    }
}

/// Contents and records side by side, of sizes that are known here, so that a stamp is two loads, two stores and
/// one bounds check.
#[inline]
fn write_records<const CONTENT: usize, const RECORD: usize>(
    records: &mut [u8],
    content: &Gather<'_>,
    first: usize,
    oob: &[[u8; OOB_BYTES]],
) {
    let (records, _) = records.as_chunks_mut::<RECORD>();
    let contents = content.arrays::<CONTENT>(first, records.len());
    for ((record, content), oob) in records.iter_mut().zip(contents).zip(oob) {
        record[..CONTENT].copy_from_slice(content);
        record[CONTENT..].copy_from_slice(oob);
    }
}

/// Content without its trailing zeros.
fn without_zeros(content: &[u8]) -> &[u8] {
    // From the end in large steps, then in cache lines: most metadata fills little of its sector.
    let blank = |bytes: &&[u8]| bytes.iter().fold(0, |all, b| all | b) == 0;
    let mut used = content.len();
    for step in [512, 64] {
        used -= content[..used].rchunks_exact(step).take_while(blank).count() * step;
    }
    used = content[..used].iter().rposition(|b| *b != 0).map_or(0, |last| last + 1);
    &content[..used]
}

/// The name of full content, kept where a stamp would be.
fn name_of(kept: &[u8]) -> u64 {
    let mut name = [0; STAMP];
    name.copy_from_slice(&kept[..STAMP]);
    u64::from_le_bytes(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A power cut takes back metadata that was on its way; what is programmed there afterwards
    /// is read as what it is.
    #[test]
    fn a_forgotten_sector_takes_either_kind_of_content() {
        let mut store = Store::new(StoreKind::Stamps, 4 << 13);
        let mut body = Body::default();
        let full = [7; SECTOR_BYTES];
        let oob = [[1; OOB_BYTES]; 2];
        let meta = Gather::new(&full, &[0, 0], SECTOR_BYTES);
        store.write_whole(&mut body, 2, &meta, 0, &oob).unwrap();
        store.forget(&mut body, 2, 4);
        assert_eq!(store.whole_bytes, 0);
        let user = Gather::new(&[9; STAMP], &[0, 0], STAMP);
        store.write(&mut body, 2, &user, 0, &oob).unwrap();
        let mut content = [0; STAMP];
        let read = store.read(&body, 3, false, &mut content, &mut [0; OOB_BYTES]);
        assert_eq!((read, content), (Ok(()), [9; STAMP]));
    }

    /// Padding costs its record and no more, however much of it there is.
    #[test]
    fn zeros_are_kept_once() {
        let mut store = Store::new(StoreKind::Stamps, 256);
        let mut body = Body::default();
        let base = [[0; SECTOR_BYTES], [5; SECTOR_BYTES]].concat();
        let meta = Gather::new(&base, &[0, 1, 0, 0], SECTOR_BYTES);
        for sector in (0..256).step_by(4) {
            store.write_whole(&mut body, sector, &meta, 0, &[[1; OOB_BYTES]; 4]).unwrap();
        }
        assert_eq!((store.wholes.len(), store.whole_bytes), (1 + 64, 64 * SECTOR_BYTES));
        let mut content = [9; SECTOR_BYTES];
        for (sector, byte) in [(4, 0), (5, 5), (255, 0)] {
            let read = store.read(&body, sector, true, &mut content, &mut [0; OOB_BYTES]);
            assert_eq!((read, content), (Ok(()), [byte; SECTOR_BYTES]));
        }
        store.free(body);
        assert_eq!((store.free_wholes.len(), store.whole_bytes), (64, 0));
    }

    /// The pointer of a chunk whose erase was torn lies behind everything that it holds.
    #[test]
    fn what_was_never_written_may_be_asked_for() {
        let mut store = Store::new(StoreKind::Stamps, 4 << 13);
        let mut body = Body::default();
        store.prefetch(&body, 3 << 13, 1);
        let user = Gather::new(&[9; STAMP], &[0], STAMP);
        store.write(&mut body, 1 << 13, &user, 0, &[[1; OOB_BYTES]]).unwrap();
        store.prefetch(&body, 3 << 13, 1);
    }
}
