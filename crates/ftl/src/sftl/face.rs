//! The segments as logical sectors, for who has no other door: another process, a guest, `dd`.
//!
//! Owns: [`Face`], the order of its sectors ([`FaceLayout`]). Promises: what [`BlockDev`] promises,
//! but that a segment is written in order: a write elsewhere than at its write pointer is
//! [`BlockError::Invalid`] and changes nothing; a discard of a whole segment is a trim, of a part
//! of one nothing. Never: buffers, or writes anything twice; takes for empty what may hold data
//! that can't be read.
//!
//! No file system says which segments must hold data. So chunks that can't be read after a mount
//! are erased by the first change if a power cut can have left them so. If not, reads of segments
//! without a block are errors, and nothing can be changed; after a mount with `--accept-lost` the
//! first change gives the chunks up.
//!
//! First the page-mapped region, then the segments in a row, side by side over the channels: segment 0 of
//! each channel, then segment 1 of each. So who writes from the first sector to the last takes all
//! channels in turn.

use super::map::SegmentState;
use super::unreadable::Settle;
use super::{Sftl, SftlError};
use crate::block::{
    BlockDev, BlockError, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Sectors,
    SectorsMut, Started,
};
use flashlane_base::{Lba, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::Cx;
use std::ops::Range;
use std::sync::Arc;

const FAILED: &str = "a program failed: its segment takes no more until it is discarded as a whole";
const GONE: &str = "its segment has no good block left";
const OPEN: &str = "the device allows no more open segments: fill one";
const DOUBT: &str = "chunks that were written can't be read. Mount the target again when they can \
                     be read; or mount it with --accept-lost, and the first change gives them up";
const HOST: &str = "the host could not keep what was written: its disk is full or failing";

/// What lies where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FaceLayout {
    /// Sectors of the page-mapped region, which come first.
    pub meta_sectors: u64,
    pub channels: u32,
    /// Of each channel.
    pub segments: u32,
    pub segment_sectors: u32,
    /// Writes of segments are whole pages.
    pub page_sectors: u32,
}

impl FaceLayout {
    /// The first sector of a segment.
    pub fn segment_at(&self, channel: u32, segment: u32) -> u64 {
        let number = u64::from(segment) * u64::from(self.channels) + u64::from(channel);
        self.meta_sectors + number * u64::from(self.segment_sectors)
    }
}

/// A part of a request, in one segment.
#[derive(Clone, Copy, Debug)]
struct Part {
    channel: u32,
    segment: u32,
    /// Sector in the segment.
    first: u32,
    n: u32,
    /// Its first sector in the request.
    at: u32,
}

pub struct Face {
    sftl: Arc<Sftl>,
    meta: Arc<dyn BlockDev>,
    info: BlockInfo,
    layout: FaceLayout,
}

impl Face {
    pub(super) fn new(sftl: Arc<Sftl>) -> Face {
        let (meta, of) = (sftl.meta(), *sftl.info());
        let layout = FaceLayout {
            meta_sectors: meta.info().capacity,
            channels: of.channels,
            segments: of.segments,
            segment_sectors: of.segment_sectors,
            page_sectors: of.page_sectors,
        };
        let capacity = layout.meta_sectors + of.sectors();
        let info = BlockInfo { capacity, content_bytes: of.content_bytes, layer: "sftl" };
        Face { sftl, meta, info, layout }
    }

    /// Where metadata and segments lie: what a file system behind this door needs.
    pub fn layout(&self) -> FaceLayout {
        self.layout
    }

    /// The sectors of a request in the page-mapped region, and its parts in segments.
    fn divide(&self, lba: u64, sectors: u32) -> (u32, Vec<Part>) {
        let meta = self.layout.meta_sectors;
        let in_meta = meta.saturating_sub(lba).min(sectors.into()) as u32;
        let mut parts = Vec::new();
        let mut at = in_meta;
        while at < sectors {
            let sector = lba + u64::from(at) - meta;
            let full = u64::from(self.layout.segment_sectors);
            let (channel, segment) = self.sftl.info().of_number(sector / full);
            let first = (sector % full) as u32;
            let n = (sectors - at).min(self.layout.segment_sectors - first);
            parts.push(Part { channel, segment, first, n, at });
            at += n;
        }
        (in_meta, parts)
    }

    fn invalid(&self, op: BlockOp, lba: u64, sectors: u32) -> BlockError {
        BlockError::Invalid { op, lba: Lba::new(lba), sectors, capacity: self.info.capacity }
    }

    async fn read(
        &self,
        cx: &Cx,
        lba: u64,
        (in_meta, parts): (u32, Vec<Part>),
        mut to: SectorsMut<'_>,
    ) -> BlockResult {
        let unit = self.info.content_bytes;
        let mut lost: Vec<Lba> = Vec::new();
        if in_meta > 0 {
            let mut bytes = vec![0; in_meta as usize * unit];
            let io = Io::read(Lba::new(lba), in_meta, &mut bytes);
            match self.meta.start(cx, io).await {
                Err(BlockError::Uncorrectable(all)) => lost.extend(all),
                other => other?,
            }
            copy(&mut to, 0, &bytes, unit);
        }
        for part in parts {
            let Part { channel, segment, first, n, at } = part;
            let there = self.sftl.write_pointer(channel, segment).saturating_sub(first).min(n);
            if self.may_be_lost(channel, segment) {
                lost.extend((0..u64::from(n)).map(|s| Lba::new(lba + u64::from(at) + s)));
                continue;
            }
            let mut bytes = vec![0; n as usize * unit];
            let into = SectorsMut::One(&mut bytes[..there as usize * unit]);
            let read = self.sftl.read(cx, channel, segment, first, into, false).await;
            match read {
                // It was trimmed meanwhile.
                Ok(()) | Err(SftlError::Invalid { .. }) => {}
                Err(SftlError::Uncorrectable { sectors, .. }) => {
                    let lbas = |r: Range<u32>| r.map(|s| lba + u64::from(at + s - first));
                    lost.extend(sectors.into_iter().flat_map(lbas).map(Lba::new));
                }
                Err(other) => return Err(self.outside(BlockOp::Read, lba, n, other)),
            }
            copy(&mut to, at, &bytes, unit);
        }
        if lost.is_empty() { Ok(()) } else { Err(BlockError::Uncorrectable(lost)) }
    }

    /// Whether each part is at a write pointer, in whole pages.
    fn check_write(&self, parts: &[Part]) -> Result<(), Option<SftlError>> {
        for part in parts {
            let (channel, segment) = (part.channel, part.segment);
            match self.sftl.state(channel, segment) {
                SegmentState::Failed => return Err(Some(SftlError::Failed { channel, segment })),
                SegmentState::Gone => return Err(Some(SftlError::Gone { channel, segment })),
                SegmentState::Trimming => return Err(None),
                SegmentState::Empty | SegmentState::Open | SegmentState::Full => {}
            }
            let pointer = self.sftl.write_pointer(channel, segment);
            let whole = part.n.is_multiple_of(self.layout.page_sectors);
            if (pointer != part.first || !whole) && !mutant!("sftl.face-order-unchecked") {
                return Err(None);
            }
        }
        Ok(())
    }

    /// Starts a write: what goes to segments is sent in this call.
    fn write<'a>(
        &'a self,
        cx: &'a Cx,
        io: Io<'a>,
        (in_meta, parts): (u32, Vec<Part>),
        content: Sectors<'a>,
    ) -> Started<'a> {
        let (lba, sectors, fua, unit) = (io.lba.get(), io.sectors, io.fua, self.info.content_bytes);
        if let Err(why) = self.check_write(&parts) {
            let error = match why {
                Some(why) => self.outside(BlockOp::Write, lba, sectors, why),
                None => self.invalid(BlockOp::Write, lba, sectors),
            };
            return Started::Done(Err(error));
        }
        let bytes_of = |first: u32, n: u32| -> Vec<u8> {
            content.from(first, unit).take(n as usize).flatten().copied().collect()
        };
        let mut appends = Vec::with_capacity(parts.len());
        for part in &parts {
            let bytes = bytes_of(part.at, part.n);
            let (channel, segment, content) = (part.channel, part.segment, Sectors::One(&bytes));
            let sftl: &'a Sftl = &self.sftl;
            appends.push(sftl.append(
                cx,
                channel,
                segment,
                part.first,
                content,
                Cause::User,
                false,
            ));
        }
        let meta = (in_meta > 0).then(|| bytes_of(0, in_meta));
        Started::later(async move {
            if let Some(bytes) = &meta {
                self.meta.start(cx, Io::write(Lba::new(lba), in_meta, fua, bytes)).await?;
            }
            let mut result = Ok(());
            for append in appends {
                let done = append.await;
                result =
                    result.and(done.map_err(|e| self.outside(BlockOp::Write, lba, sectors, e)));
            }
            result?;
            if fua {
                for part in &parts {
                    let closed = self.sftl.close_pairs(cx, part.channel, part.segment).await;
                    closed.map_err(|e| self.outside(BlockOp::Write, lba, sectors, e))?;
                }
                self.settle(cx).await?;
            }
            Ok(())
        })
    }

    async fn settle(&self, cx: &Cx) -> BlockResult {
        if self.sftl.flush(cx).await { Ok(()) } else { Err(BlockError::ReadOnly(HOST)) }
    }

    async fn flush(&self, cx: &Cx) -> BlockResult {
        self.meta.start(cx, Io::flush()).await?;
        if self.sftl.info().pair_sectors > 0 {
            let mut closing = Vec::new();
            for channel in 0..self.layout.channels {
                for segment in 0..self.layout.segments {
                    if self.sftl.state(channel, segment) == SegmentState::Open {
                        closing.push(self.sftl.close_pairs(cx, channel, segment));
                    }
                }
            }
            for closed in closing {
                closed.await.map_err(|e| self.outside(BlockOp::Flush, 0, 0, e))?;
            }
        }
        self.settle(cx).await
    }

    async fn discard(&self, cx: &Cx, lba: u64, (in_meta, parts): (u32, Vec<Part>)) -> BlockResult {
        if in_meta > 0 {
            self.meta.start(cx, Io::discard(Lba::new(lba), in_meta)).await?;
        }
        let full = self.layout.segment_sectors;
        let trims: Vec<_> = parts
            .iter()
            .filter(|part| part.n == full)
            .map(|part| self.sftl.trim(cx, part.channel, part.segment))
            .collect();
        for trim in trims {
            match trim.await {
                // It is empty all the same.
                Ok(()) | Err(SftlError::Gone { .. } | SftlError::Invalid { .. }) => {}
                Err(other) => return Err(self.outside(BlockOp::Discard, lba, 0, other)),
            }
        }
        Ok(())
    }

    /// An error as a block device has it.
    fn outside(&self, op: BlockOp, lba: u64, sectors: u32, error: SftlError) -> BlockError {
        match error {
            SftlError::Invalid { .. } => self.invalid(op, lba, sectors),
            SftlError::Uncorrectable { channel, segment, sectors } => {
                let base = self.layout.segment_at(channel, segment);
                let lbas = sectors.into_iter().flatten().map(|s| Lba::new(base + u64::from(s)));
                BlockError::Uncorrectable(lbas.collect())
            }
            SftlError::ProgramFailed { .. } | SftlError::Failed { .. } => {
                BlockError::ReadOnly(FAILED)
            }
            SftlError::Gone { .. } => BlockError::ReadOnly(GONE),
            SftlError::TooManyOpen { .. } => BlockError::ReadOnly(OPEN),
            SftlError::InDoubt { .. } => BlockError::ReadOnly(DOUBT),
            SftlError::Host { .. } => BlockError::ReadOnly(HOST),
            SftlError::Ledger(error) => error,
        }
    }
}

/// Sectors side by side into room for sectors.
fn copy(to: &mut SectorsMut<'_>, at: u32, bytes: &[u8], unit: usize) {
    for (i, sector) in (0..).zip(bytes.chunks_exact(unit)) {
        to.sector(at + i, unit).copy_from_slice(sector);
    }
}

impl BlockDev for Face {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if let Err(error) = io.check(&self.info) {
            return Started::Done(Err(error));
        }
        let changes = matches!(io.op, BlockOp::Write | BlockOp::Discard);
        if changes && self.sftl.is_in_doubt() {
            return Started::later(async move {
                self.end_doubt(cx).await?;
                self.begin(cx, io).await
            });
        }
        self.begin(cx, io)
    }

    fn expect(&self, op: BlockOp, lba: Lba) {
        if lba.get() < self.layout.meta_sectors {
            self.meta.expect(op, lba);
        }
    }

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        if lba.get() < self.layout.meta_sectors {
            return self.meta.extent(lba, most.min(self.layout.meta_sectors - lba.get()));
        }
        Extent::of(&self.info, lba, most, |lba| {
            let (_, parts) = self.divide(lba, 1);
            let part = parts.first();
            part.is_some_and(|p| {
                p.first < self.sftl.write_pointer(p.channel, p.segment)
                    || self.may_be_lost(p.channel, p.segment)
            })
        })
    }
}

impl Face {
    /// Starts a request that fits the device.
    fn begin<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        let (lba, divided) = (io.lba.get(), self.divide(io.lba.get(), io.sectors));
        match io.payload {
            Payload::Read(to) => Started::later(self.read(cx, lba, divided, to)),
            Payload::Write(content) => {
                let io = Io { payload: Payload::None, ..io };
                self.write(cx, io, divided, content)
            }
            Payload::None if io.op == BlockOp::Flush => Started::later(self.flush(cx)),
            Payload::None => Started::later(self.discard(cx, lba, divided)),
        }
    }

    /// Erases chunks that can't be read if a power cut alone can have left them so, or if the mount
    /// accepts their loss.
    async fn end_doubt(&self, cx: &Cx) -> BlockResult {
        let how = match self.sftl.accepts_lost {
            true => Settle::GiveUp,
            false => Settle::NothingIsMissing,
        };
        if self.sftl.is_in_doubt() && !self.sftl.may_be_torn() && how != Settle::GiveUp {
            return Err(BlockError::ReadOnly(DOUBT));
        }
        let settled = self.sftl.settle(cx, how).await;
        settled.map(drop).map_err(|e| self.outside(BlockOp::Write, 0, 0, e))
    }

    /// A segment without a block of which a chunk that can't be read may be the block, other than
    /// by a power cut.
    fn may_be_lost(&self, channel: u32, segment: u32) -> bool {
        self.sftl.is_in_doubt()
            && self.sftl.write_pointer(channel, segment) == 0
            && self.sftl.unreadable().iter().any(|doubt| doubt.channel == channel)
            && !self.sftl.may_be_torn()
            && !mutant!("sftl.face-unreadable-is-empty")
    }
}
