//! What must not be forgotten of bad blocks, in the first sectors of the page-mapped region.
//!
//! Owns: [`Ledger`], its layout, [`Behind`]: the region without it. Promises: what [`Ledger::mark`] has
//! returned from is durable; a change touches one sector, which is written whole or not at all; nothing
//! is written while no block is bad. Never: repeats what the chunk report says (an offline chunk), or
//! decides what becomes of a block.
//!
//! It is a stream of bytes over sectors of `content_bytes` each, since the `stamps` store keeps 8 of a
//! user's sector: a head of 64 bytes, whose first sector is written last; two bits for each block; a bit
//! for each segment. What was never written reads as zeros, and says that all is well. There are two
//! copies of each sector, side by side, since collecting garbage may lose a sector. Bits are set and never cleared, so of copies that
//! differ, behind a cut between their writes, both count.

use super::{SftlInfo, TRIES};
use crate::block::{
    BlockDev, BlockError, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Started,
};
use crate::kit::DriveFtl;
use flashlane_base::{Geometry, Lba, SECTOR_BYTES, mutant};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"FLSFTL\x001";
const VERSION: u32 = 1;
/// Bytes of the head.
const HEAD: usize = 64;
const COPIES: u64 = 2;

/// Where the head says how many segments a channel has.
const SEGMENTS_AT: usize = 8 + 4 * 7;

/// What is noted of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Mark {
    Good,
    /// A program in it failed. It may hold a segment, and is not used again.
    Failed,
    /// What it holds does not count, whatever that is; it is not used again.
    Void,
}

/// How large the ledger is, and of what.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    geo: Geometry,
    first_chunk: u32,
    info: SftlInfo,
}

impl Shape {
    /// Of the chunks of the segments, behind so many others on each PU.
    pub(super) fn new(geo: &Geometry, first_chunk: u32, info: &SftlInfo) -> Shape {
        Shape { geo: *geo, first_chunk, info: *info }
    }

    fn unit(&self) -> usize {
        self.info.content_bytes
    }

    fn blocks_at(&self) -> usize {
        HEAD.next_multiple_of(self.unit())
    }

    fn segments_at(&self) -> usize {
        let bytes = (self.geo.chunks() as usize).div_ceil(4);
        self.blocks_at() + bytes.next_multiple_of(self.unit())
    }

    fn bytes(&self) -> usize {
        let segments = (self.info.channels * self.info.segments) as usize;
        self.segments_at() + segments.div_ceil(8).next_multiple_of(self.unit())
    }

    /// Sectors of a copy.
    fn copy_sectors(&self) -> u64 {
        (self.bytes() / self.unit()) as u64
    }

    /// Sectors of the page-mapped region that it takes.
    pub(super) fn sectors(&self) -> u64 {
        COPIES * self.copy_sectors()
    }

    /// The same, at most, whatever the division of a device.
    pub(super) fn sectors_at_most(geo: &Geometry, content_bytes: usize) -> u64 {
        let chunks = geo.chunks() as usize;
        let bytes = HEAD + chunks.div_ceil(4) + chunks.div_ceil(8);
        COPIES * ((bytes / content_bytes) as u64 + 3)
    }

    fn head(&self) -> [u8; HEAD] {
        let (g, i) = (&self.geo, &self.info);
        let words = [
            VERSION,
            g.channels,
            g.pus_per_channel,
            g.chunks_per_pu,
            self.first_chunk,
            i.segment_sectors,
            i.page_sectors,
            i.segments,
            i.content_bytes as u32,
            i.pair_sectors,
        ];
        let mut head = [0; HEAD];
        head[..8].copy_from_slice(MAGIC);
        for (at, word) in words.into_iter().enumerate() {
            head[8 + 4 * at..][..4].copy_from_slice(&word.to_le_bytes());
        }
        let crc = flashlane_base::crc32c(&head[..HEAD - 4]);
        head[HEAD - 4..].copy_from_slice(&crc.to_le_bytes());
        head
    }
}

/// What was found of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Whole,
    /// Its first sector was never written: a create was cut, or there was none.
    Nothing,
    /// Of another device, other settings or another version.
    Other,
}

pub(super) struct Ledger {
    meta: Arc<DriveFtl>,
    shape: Shape,
    bytes: Mutex<Vec<u8>>,
}

impl Ledger {
    pub(super) fn new(meta: Arc<DriveFtl>, shape: Shape) -> Ledger {
        Ledger { meta, shape, bytes: Mutex::new(vec![0; shape.bytes()]) }
    }

    /// Writes the head of a new one.
    pub(super) async fn write_new(&self, cx: &Cx) -> BlockResult {
        self.bytes.lock()[..HEAD].copy_from_slice(&self.shape.head());
        let last = (self.shape.blocks_at() / self.shape.unit()) as u64;
        for sector in (0..last).rev() {
            self.write(cx, sector).await?;
        }
        Ok(())
    }

    /// How many segments each channel has, by the head of what there is.
    pub(super) async fn segments(meta: &DriveFtl, cx: &Cx) -> Result<Option<u32>, BlockError> {
        let unit = BlockDev::info(meta).content_bytes;
        let sectors = HEAD.div_ceil(unit) as u64;
        let (bytes, _) = read_both(meta, cx, sectors, unit).await?;
        let crc = flashlane_base::crc32c(&bytes[..HEAD - 4]);
        let good = bytes[..8] == *MAGIC && bytes[HEAD - 4..HEAD] == crc.to_le_bytes();
        let word = bytes[SEGMENTS_AT..].first_chunk().copied().map(u32::from_le_bytes);
        Ok(word.filter(|_| good))
    }

    /// Reads what there is, and mends a copy by the other.
    pub(super) async fn read(&self, cx: &Cx) -> Result<Found, BlockError> {
        let (unit, sectors) = (self.shape.unit(), self.shape.copy_sectors());
        let (bytes, mend) = read_both(&self.meta, cx, sectors, unit).await?;
        let found = match bytes[..HEAD] {
            _ if bytes[..unit.min(HEAD)].iter().all(|b| *b == 0) => Found::Nothing,
            _ if bytes[..HEAD] == self.shape.head() => Found::Whole,
            _ => Found::Other,
        };
        *self.bytes.lock() = bytes;
        if found == Found::Whole {
            for sector in mend {
                match self.write(cx, sector).await {
                    // There is no way to mend it any more, and one copy will do.
                    Ok(()) | Err(BlockError::ReadOnly(_)) => {}
                    Err(other) => return Err(other),
                }
            }
        }
        Ok(found)
    }

    /// Writes a sector of each copy, one after the other.
    async fn write(&self, cx: &Cx, sector: u64) -> BlockResult {
        let unit = self.shape.unit();
        let at = sector as usize * unit;
        for copy in 0..COPIES {
            // As it is now: of two changes of a sector the later one has both.
            let content = self.bytes.lock()[at..at + unit].to_vec();
            let lba = Lba::new(sector * COPIES + copy);
            self.meta.start(cx, Io::write(lba, 1, true, &content)).await?;
        }
        Ok(())
    }

    fn index(&self, pu: u32, chunk: u32) -> (usize, u32) {
        let block = (pu * self.shape.geo.chunks_per_pu + chunk) as usize;
        (self.shape.blocks_at() + block / 4, 2 * (block % 4) as u32)
    }

    /// What is noted of a block.
    pub(super) fn marked(&self, pu: u32, chunk: u32) -> Mark {
        let (at, shift) = self.index(pu, chunk);
        match self.bytes.lock()[at] >> shift & 3 {
            0 => Mark::Good,
            1 => Mark::Failed,
            _ => Mark::Void,
        }
    }

    /// Notes something of a block, for good, and of a block that is void nothing else.
    pub(super) async fn mark(&self, cx: &Cx, (pu, chunk): (u32, u32), mark: Mark) -> BlockResult {
        let (at, shift) = self.index(pu, chunk);
        {
            let mut bytes = self.bytes.lock();
            let before = bytes[at] >> shift & 3;
            bytes[at] = bytes[at] & !(3 << shift) | before.max(mark as u8) << shift;
        }
        if mutant!("sftl.bad-blocks-not-durable") {
            return Ok(());
        }
        self.write(cx, (at / self.shape.unit()) as u64).await
    }

    /// Notes the same of many blocks: a write of each sector.
    pub(super) async fn mark_all(&self, cx: &Cx, all: &[(u32, u32)], mark: Mark) -> BlockResult {
        let mut sectors = BTreeSet::new();
        for (pu, chunk) in all {
            let (at, shift) = self.index(*pu, *chunk);
            let mut bytes = self.bytes.lock();
            let before = bytes[at] >> shift & 3;
            bytes[at] = bytes[at] & !(3 << shift) | before.max(mark as u8) << shift;
            if before < mark as u8 {
                sectors.insert((at / self.shape.unit()) as u64);
            }
        }
        for sector in sectors {
            self.write(cx, sector).await?;
        }
        Ok(())
    }

    fn bit(&self, channel: u32, segment: u32) -> (usize, u8) {
        let number = self.shape.info.number(channel, segment) as usize;
        (self.shape.segments_at() + number / 8, 1 << (number % 8))
    }

    pub(super) fn is_gone(&self, channel: u32, segment: u32) -> bool {
        let (at, bit) = self.bit(channel, segment);
        self.bytes.lock()[at] & bit != 0
    }

    /// A segment has no block any more, for good.
    pub(super) async fn mark_gone(&self, cx: &Cx, channel: u32, segment: u32) -> BlockResult {
        let (at, bit) = self.bit(channel, segment);
        self.bytes.lock()[at] |= bit;
        if mutant!("sftl.gone-not-durable") {
            return Ok(());
        }
        self.write(cx, (at / self.shape.unit()) as u64).await
    }
}

/// The first sectors of the ledger, of both copies together, and in which of them one copy needs the other.
async fn read_both(
    meta: &DriveFtl,
    cx: &Cx,
    sectors: u64,
    unit: usize,
) -> Result<(Vec<u8>, Vec<u64>), BlockError> {
    let (mut all, mut mend) = (Vec::new(), Vec::new());
    let mut both = vec![0; COPIES as usize * unit];
    for sector in 0..sectors {
        let first = sector * COPIES;
        let mut lost = Vec::new();
        for _ in 0..TRIES {
            let io = Io::read(Lba::new(first), COPIES as u32, &mut both);
            match meta.start(cx, io).await {
                Ok(()) => lost.clear(),
                Err(BlockError::Uncorrectable(which)) => lost = which,
                Err(other) => return Err(other),
            }
            if lost.is_empty() {
                break;
            }
        }
        if lost.len() as u64 == COPIES {
            return Err(BlockError::Uncorrectable(lost));
        }
        let copies: Vec<&[u8]> = both.chunks(unit).collect();
        if copies.windows(2).any(|c| c[0] != c[1]) {
            mend.push(sector);
        }
        // What can't be read was handed out as zeros.
        let at = all.len();
        all.resize(at + unit, 0);
        for copy in copies {
            all[at..].iter_mut().zip(copy).for_each(|(b, o)| *b |= o);
        }
    }
    Ok((all, mend))
}

/// A block device from some sector on.
pub(super) struct Behind {
    inner: Arc<DriveFtl>,
    skip: u64,
    info: BlockInfo,
}

impl Behind {
    pub(super) fn new(inner: Arc<DriveFtl>, skip: u64) -> Behind {
        let info = BlockDev::info(&*inner).clone();
        Behind {
            info: BlockInfo { capacity: info.capacity - skip, layer: "sftl", ..info },
            inner,
            skip,
        }
    }
}

impl BlockDev for Behind {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        if let Err(error) = io.check(&self.info) {
            return Started::Done(Err(error));
        }
        let reads = matches!(io.payload, Payload::Read(_));
        let started = self.inner.start(cx, Io { lba: Lba::new(io.lba.get() + self.skip), ..io });
        match started {
            Started::Later(work) if reads => {
                Started::later(async move { self.outside(work.await) })
            }
            Started::Done(result) => Started::Done(self.outside(result)),
            started => started,
        }
    }

    fn expect(&self, op: BlockOp, lba: Lba) {
        self.inner.expect(op, Lba::new(lba.get().saturating_add(self.skip)));
    }

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.inner.extent(Lba::new(lba.get().saturating_add(self.skip)), most)
    }
}

impl Behind {
    /// Sectors that others have.
    pub(super) fn skip(&self) -> u64 {
        self.skip
    }

    /// Sectors of an error as they are called from outside.
    fn outside(&self, result: BlockResult) -> BlockResult {
        result.map_err(|error| match error {
            BlockError::Uncorrectable(lost) => {
                let ours = |lba: &Lba| Lba::new(lba.get() - self.skip);
                BlockError::Uncorrectable(lost.iter().map(ours).collect())
            }
            other => other,
        })
    }
}

const _: () = assert!(HEAD.is_multiple_of(8) && SECTOR_BYTES >= HEAD);
