//! Mount: from what lies on the medium to a map.
//!
//! Owns: [`Sftl::mount`] and its steps. Promises: a segment has what was durable of it, in the order in
//! which it was appended, and nothing that was not; one that was trimmed is empty; a mount that is cut
//! itself changes nothing of that, as often as it happens. Never: programs anything but padding;
//! erases a chunk of which it could not read whose it is (`unreadable.rs` has those).
//!
//! 1. The page-mapped region is mounted, the ledger read.
//! 2. The chunk report. Where the medium has a read-back window or pairs, open chunks are padded: what
//!    lies in the window can be read behind that only, and what was found is durable then.
//! 3. The record of the first sector of each written chunk: (segment, generation). If it can't be read,
//!    the first of its chunk that can: a program may have failed before one that was acknowledged. Where
//!    there may be padding, all records of the chunk. Chunks of which none can be read are read again
//!    over time.
//! 4. Per segment the highest generation counts. Losers are erased.
//! 5. A chunk that was written and of which no record can be read stays as it is, and no segment gets
//!    it: its erase or its first program may have been torn, or it may hold a segment that can't be
//!    read at the moment. The user of the segments decides ([`Sftl::settle`]): a file system knows
//!    which segments must hold data.
//! 6. What is bad: offline chunks, the ledger's, and chunks that the device closed early.
//!
//! A block without a segment is free; a segment without a block is empty, and may have any.

use super::create::{CreateError, Division, SftlConfig};
use super::ledger::{Found, Ledger, Mark};
use super::map::{BlockState, Map, Phase};
use super::trim::Erased;
use super::unreadable::{Cause as Doubt, Unreadable, dead_pus};
use super::{Sftl, TRIES};
use crate::block::{BlockError, BlockResult};
use crate::kit::{self, DriveFtl};
use crate::log::format::{LBA_PADDING, Oob};
use crate::patience::read_again;
use flashlane_base::{Location, Ns, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{
    Cause, ChunkInfo, ChunkState, Device, Flags, Request, Scatter, Status,
};
use flashlane_rt::Cx;
use flashlane_rt::sync::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

/// Generation in the records of what a mount pads. The first block of all has it, too: its padding
/// says as little.
pub(super) const PADDED_BY_MOUNT: u64 = 1;

/// Why S-FTL can't be mounted. Nothing on the medium was changed but padding.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    #[error(transparent)]
    Create(#[from] CreateError),
    #[error("the page-mapped region: {0}")]
    Meta(#[from] kit::MountError),
    #[error("the list of bad blocks: {0}")]
    Ledger(BlockError),
    /// The ledger has no head, and there is data.
    #[error(
        "there is no S-FTL on this device, and {chunks} of its chunks hold something else: reset them \
         first, their data would be lost"
    )]
    Nothing { chunks: u64 },
    #[error(
        "the S-FTL on this device was created with other settings, on another device or by another \
         version"
    )]
    Other,
    #[error(
        "sector {sector} of chunk {chunk} on PU {pu} holds sector {lba}, which no segment there has: it \
         is another layer's"
    )]
    Foreign { pu: u32, chunk: u32, sector: u32, lba: u64 },
    #[error(
        "the host could not give sector {sector} of chunk {chunk} on PU {pu}: mount it again when it can"
    )]
    Host { pu: u32, chunk: u32, sector: u32 },
    #[error("segment {segment} of channel {channel} lies in two blocks of one generation")]
    Twice { channel: u32, segment: u32 },
}

/// What a mount did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// There was one; else the device was empty, and a new one is on it.
    pub found: bool,
    /// Segments that hold something.
    pub segments: u32,
    /// Sectors whose record was read.
    pub scanned_sectors: u64,
    /// Sectors of padding behind open chunks.
    pub padded_sectors: u64,
    /// Chunks erased, each of an older generation of a segment that is there.
    pub erased_chunks: u64,
    /// Chunks that were written and of which nothing can be read: they are kept as they are.
    pub unreadable: Vec<Unreadable>,
    /// How the page-mapped region was found.
    pub meta: Option<kit::Recovery>,
    pub steps: Vec<(&'static str, Ns)>,
}

/// What was found of a written chunk.
struct Seen {
    pu: u32,
    chunk: u32,
    info: ChunkInfo,
    /// Number and generation of its segment.
    owner: Option<(u64, u64)>,
    padded: Vec<Range<u32>>,
    /// Behind its last sector that is not padding.
    data_end: u32,
    /// One past the last sector whose record was read, and that no mount has padded.
    read_end: u32,
    foreign: Option<(u32, u64)>,
    host_failed: Option<u32>,
    scanned: u64,
}

impl Seen {
    fn new(pu: u32, chunk: u32, info: ChunkInfo) -> Seen {
        Seen {
            pu,
            chunk,
            info,
            owner: None,
            padded: Vec::new(),
            data_end: 0,
            read_end: 0,
            foreign: None,
            host_failed: None,
            scanned: 0,
        }
    }

    /// Something was written to it, and no record says what.
    fn is_unreadable(&self) -> bool {
        self.owner.is_none()
            && self.foreign.is_none()
            && self.host_failed.is_none()
            && self.info.write_pointer > 0
    }
}

impl Sftl {
    /// Brings up what is on `device`; on an erased one a new one.
    ///
    /// # Errors
    /// What is there is not to be mounted, or can't be.
    pub async fn mount(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: SftlConfig,
    ) -> Result<Arc<Sftl>, MountError> {
        let began = cx.now();
        let mut division = Division::of(device.clone(), config.clone(), false)?;
        let meta_config = division.meta_config();
        let meta = DriveFtl::mount(cx, division.meta.clone(), meta_config, None).await?;
        // How many segments there are is on the medium: blocks may have gone bad since.
        let segments = match Ledger::segments(&meta, cx).await {
            Ok(segments) => segments,
            Err(error) => {
                meta.quiesce(cx).await;
                return Err(MountError::Ledger(error));
            }
        };
        if config.segments.is_none() {
            let config = SftlConfig { segments, ..config };
            division = match Division::of(device, config, segments.is_none()) {
                Ok(division) => division,
                Err(error) => {
                    meta.quiesce(cx).await;
                    return Err(error.into());
                }
            };
        }
        let mut recovery = Recovery { meta: meta.recovery(), ..Recovery::default() };
        recovery.steps.push(("page-mapped region", cx.now() - began));
        let found = bring_up(cx, division, meta.clone(), recovery).await;
        if found.is_err() {
            meta.quiesce(cx).await;
        }
        found
    }

    /// Sectors of padding behind which everything in an open chunk can be read, and nothing torn can harm
    /// it.
    fn behind(&self) -> u32 {
        let window = self.device.geometry().mw_cunits;
        window.max(self.info.pair_sectors).next_multiple_of(self.info.page_sectors)
    }

    /// Records of up to a vector of sectors of a PU, (chunk, sector) each: (number, generation). `Err` has
    /// one that the host could not give.
    async fn records(
        &self,
        cx: &Cx,
        pu: u32,
        ats: &[(u32, u32)],
    ) -> Result<Vec<Option<(u64, u64)>>, u32> {
        let mut records = vec![None; ats.len()];
        let mut left: Vec<usize> = (0..ats.len()).collect();
        for _ in 0..TRIES {
            let format = self.device.format();
            let place = |i: &usize| Location { pu, chunk: ats[*i].0, sector: ats[*i].1 };
            let addrs: Vec<Ppa> = left.iter().map(|i| format.pack(place(i))).collect();
            let index = [0; VECTOR_MAX];
            let mut oob = vec![[0; OOB_BYTES]; addrs.len()];
            let content = Scatter::new(&mut [], &index[..addrs.len()], 0);
            let flags = Flags { cause: Cause::Metadata, ..Flags::DEFAULT };
            let request = Request::read(&addrs, content, &mut oob).with(flags);
            let done = self.device.io(cx, request).await;
            let mut again = Vec::new();
            for (k, i) in left.iter().enumerate() {
                match done.status(k) {
                    status if status.is_ok() && oob[k] != [0xff; OOB_BYTES] => {
                        let (lba, generation, _) = Oob::decode_raw(&oob[k]);
                        records[*i] = Some((lba, generation));
                    }
                    Status::Uncorrectable => again.push(*i),
                    Status::HostFault => return Err(ats[*i].1),
                    _ => {}
                }
            }
            left = again;
            if left.is_empty() || mutant!("sftl.records-read-once") {
                break;
            }
        }
        Ok(records)
    }

    /// Looks again, over time, at chunks of which no record could be read.
    async fn look_again(&self, cx: &Cx, found: &mut [Seen], all: bool) {
        let left = (0..found.len()).filter(|i| found[*i].is_unreadable()).collect();
        if mutant!("sftl.mount-has-no-patience") {
            return;
        }
        read_again(cx, left, async |left: Vec<usize>| {
            let mut still = Vec::new();
            for at in left {
                let seen = &mut found[at];
                (seen.data_end, seen.read_end, seen.padded) = (0, 0, Vec::new());
                self.look_at(cx, seen, all).await;
                if seen.is_unreadable() {
                    still.push(at);
                }
            }
            still
        })
        .await;
    }

    /// Sectors of a chunk, from its first, that can be read; what is behind them was padded here.
    fn readable(&self, info: &ChunkInfo) -> u32 {
        match info.state {
            ChunkState::Open => info.write_pointer.saturating_sub(self.device.geometry().mw_cunits),
            _ => info.write_pointer,
        }
    }

    /// What the records of a chunk say, from its first on; only until one says whose it is, unless `all`.
    async fn look_at(&self, cx: &Cx, seen: &mut Seen, all: bool) {
        let end = self.readable(&seen.info);
        let mut from = 0;
        while from < end {
            let n = match from == 0 && !all {
                true => self.info.page_sectors,
                false => (end - from).min(VECTOR_MAX as u32),
            };
            let ats: Vec<(u32, u32)> = (from..from + n).map(|s| (seen.chunk, s)).collect();
            let records = self.records(cx, seen.pu, &ats).await;
            seen.scanned += u64::from(n);
            match records {
                Ok(records) => (from..).zip(records).for_each(|(s, r)| self.note(seen, s, r)),
                Err(sector) => seen.host_failed = Some(sector),
            }
            from += n;
            let known = seen.owner.is_some() && !all || seen.host_failed.is_some();
            if known || seen.foreign.is_some() || mutant!("sftl.first-record-only") {
                return;
            }
        }
    }

    /// Takes in the record of a sector; nothing where it can't be read.
    fn note(&self, seen: &mut Seen, sector: u32, record: Option<(u64, u64)>) {
        match record {
            Some((LBA_PADDING, generation)) => {
                // What was before it was programmed. A mount pads behind what a cut has torn.
                if generation != PADDED_BY_MOUNT && !mutant!("sftl.padding-tells-nothing") {
                    seen.read_end = sector + 1;
                }
                match seen.padded.last_mut() {
                    Some(last) if last.end == sector => last.end = sector + 1,
                    _ => seen.padded.push(sector..sector + 1),
                }
            }
            Some((lba, generation)) => {
                (seen.data_end, seen.read_end) = (sector + 1, sector + 1);
                let full = u64::from(self.info.segment_sectors);
                let (number, at) = (lba / full, lba % full);
                let channel = self.device.geometry().channel_of(seen.pu);
                let (of, segment) = self.info.of_number(number);
                let ours = at == u64::from(sector) && of == channel && segment < self.info.segments;
                let same = seen.owner.is_none_or(|o| o == (number, generation));
                match ours && same && generation > 0 {
                    true => seen.owner = Some((number, generation)),
                    false => seen.foreign = Some((sector, lba)),
                }
            }
            None => seen.data_end = sector + 1,
        }
    }
}

/// The chunks of a PU that are not free: padded where they have to be, and looked at.
async fn look(me: Arc<Sftl>, cx: Cx, pu: u32) -> Vec<Seen> {
    let chunks = me.device.geometry().chunks_per_pu;
    let behind = me.behind();
    let is_void = |chunk: u32| me.ledger.marked(pu, chunk) == Mark::Void;
    let mut found = Vec::new();
    for (chunk, info) in (0..).zip(me.device.chunk_report(pu, 0, chunks)) {
        if is_void(chunk) || matches!(info.state, ChunkState::Free | ChunkState::Offline) {
            continue;
        }
        if info.state == ChunkState::Open && behind > 0 && !mutant!("sftl.window-not-padded") {
            // One that can't be read is left as it is: each mount would pad it, until it is as full
            // as a torn erase.
            let mut first = Seen::new(pu, chunk, info);
            if me.readable(&info) > 0 {
                me.look_at(&cx, &mut first, false).await;
            }
            if me.readable(&info) == 0
                || !first.is_unreadable()
                || mutant!("sftl.unreadable-padded")
            {
                me.pad(&cx, (pu, chunk), behind, Cause::PaddingPair).await;
            }
        }
        // What it is now.
        let info = me.device.chunk_report(pu, chunk, 1).first().copied().unwrap_or(info);
        found.push(Seen::new(pu, chunk, info));
    }
    if behind == 0 {
        // The first sectors of many chunks at once.
        for part in found.chunks_mut(VECTOR_MAX) {
            let written: Vec<usize> =
                (0..part.len()).filter(|i| part[*i].info.write_pointer > 0).collect();
            let ats: Vec<(u32, u32)> = written.iter().map(|i| (part[*i].chunk, 0)).collect();
            if ats.is_empty() {
                continue;
            }
            let Ok(records) = me.records(&cx, pu, &ats).await else { continue };
            for (i, record) in written.into_iter().zip(records) {
                let seen = &mut part[i];
                seen.scanned += 1;
                if record.is_some() {
                    me.note(seen, 0, record);
                }
            }
        }
    }
    for seen in &mut found {
        if seen.owner.is_none() && seen.foreign.is_none() {
            me.look_at(&cx, seen, behind > 0).await;
        }
    }
    me.look_again(&cx, &mut found, behind > 0).await;
    for seen in &mut found {
        let end = me.readable(&seen.info);
        match (behind, seen.padded.last_mut()) {
            // There is no padding on such a medium.
            (0, _) => {
                let end = seen.info.write_pointer;
                (seen.data_end, seen.read_end, seen.padded) = (end, end, Vec::new());
            }
            (_, Some(last)) if last.end == end => last.end = seen.info.write_pointer,
            (_, _) if end < seen.info.write_pointer => {
                seen.padded.push(end..seen.info.write_pointer)
            }
            _ => {}
        }
    }
    found
}

/// Erases chunks of a PU; those that could not be.
async fn erase_all(me: Arc<Sftl>, cx: Cx, pu: u32, chunks: Vec<u32>) -> (Vec<u32>, Option<u32>) {
    let mut bad = Vec::new();
    for chunk in chunks {
        match me.erase(&cx, (pu, chunk)).await {
            Erased::Well => {}
            Erased::Bad => bad.push(chunk),
            Erased::Host => return (bad, Some(chunk)),
        }
    }
    (bad, None)
}

async fn bring_up(
    cx: &Cx,
    division: Division,
    meta: Arc<DriveFtl>,
    mut recovery: Recovery,
) -> Result<Arc<Sftl>, MountError> {
    let (channels, _) = division.blocks();
    let (info, pus) = (division.info, division.data.geometry().pus());
    let ledger = Ledger::new(meta.clone(), division.shape);
    let found = ledger.read(cx).await.map_err(MountError::Ledger)?;
    let map = Map {
        channels,
        segment_sectors: info.segment_sectors,
        generation: 1,
        doubts: Vec::new(),
        limit: division.limit,
        stats: Default::default(),
    };
    let me = Arc::new(Sftl::assemble(division, meta, ledger, map));
    match found {
        Found::Whole => recovery.found = true,
        Found::Other => return Err(MountError::Other),
        Found::Nothing => {
            let report = |pu| me.device.chunk_report(pu, 0, me.device.geometry().chunks_per_pu);
            let all = (0..pus).flat_map(report);
            let used = |i: &ChunkInfo| matches!(i.state, ChunkState::Open | ChunkState::Closed);
            let chunks = all.filter(used).count() as u64;
            if chunks > 0 {
                return Err(MountError::Nothing { chunks });
            }
            me.ledger.write_new(cx).await.map_err(MountError::Ledger)?;
        }
    }
    let mut began = cx.now();
    let mut seen = Vec::new();
    let tasks: Vec<_> =
        (0..pus).map(|pu| cx.spawn_join(look(me.clone(), cx.clone(), pu))).collect();
    for task in tasks {
        seen.extend(task.await);
    }
    for s in &seen {
        let (pu, chunk) = (s.pu, s.chunk + me.first_chunk);
        if let Some(sector) = s.host_failed {
            return Err(MountError::Host { pu, chunk, sector });
        }
        if let Some((sector, lba)) = s.foreign {
            return Err(MountError::Foreign { pu, chunk, sector, lba });
        }
    }
    recovery.scanned_sectors = seen.iter().map(|s| s.scanned).sum();
    recovery.steps.push(("records", cx.now() - began));
    began = cx.now();
    let winners = choose(&me, &seen)?;
    recovery.segments = winners.len() as u32;
    clear(cx, &me, &seen, &winners).await?;
    fill(&me, seen, &winners);
    me.settle_gone(cx).await.map_err(MountError::Ledger)?;
    recovery.unreadable = me.unreadable();
    me.in_doubt.store(!recovery.unreadable.is_empty(), Ordering::Relaxed);
    recovery.steps.push(("erases", cx.now() - began));
    let stats = me.map.lock().stats;
    recovery.padded_sectors = stats.programmed_for(Cause::PaddingPair);
    recovery.erased_chunks = stats.erases;
    let _ = me.recovery.set(recovery);
    Ok(me)
}

/// The chunk that counts of each segment's, by number: index in `seen`.
fn choose(me: &Sftl, seen: &[Seen]) -> Result<BTreeMap<u64, usize>, MountError> {
    let mut winners: BTreeMap<u64, usize> = BTreeMap::new();
    for (i, s) in seen.iter().enumerate() {
        let Some((number, generation)) = s.owner else { continue };
        let best = winners.get(&number).and_then(|at| seen[*at].owner).map_or(0, |o| o.1);
        if best == generation {
            let (channel, segment) = me.info.of_number(number);
            return Err(MountError::Twice { channel, segment });
        }
        if generation > best || mutant!("sftl.generation-ignored") {
            winners.insert(number, i);
        }
    }
    let highest = seen.iter().filter_map(|s| s.owner).map(|o| o.1).max();
    me.map.lock().generation = highest.unwrap_or(0) + 1;
    Ok(winners)
}

/// Erases what counts for nothing, and notes what is bad.
async fn clear(
    cx: &Cx,
    me: &Arc<Sftl>,
    seen: &[Seen],
    winners: &BTreeMap<u64, usize>,
) -> Result<(), MountError> {
    let mut by_pu: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for (i, s) in seen.iter().enumerate() {
        let early =
            s.info.state == ChunkState::Closed && s.info.write_pointer < me.info.segment_sectors;
        if early && me.ledger.marked(s.pu, s.chunk) == Mark::Good {
            let mark = me.ledger.mark(cx, (s.pu, s.chunk), Mark::Failed).await;
            kept(mark)?;
        }
        // It holds a segment, and there is a newer block of that: or nothing was programmed at all.
        let loses = s.owner.is_some_and(|(number, _)| winners.get(&number) != Some(&i))
            && !mutant!("sftl.loser-left");
        let is_blank = s.info.write_pointer == 0;
        let erased = s.is_unreadable() && mutant!("sftl.unreadable-erased");
        if loses || is_blank || erased {
            by_pu.entry(s.pu).or_default().push(s.chunk);
        }
    }
    let tasks: Vec<_> = by_pu
        .into_iter()
        .map(|(pu, chunks)| (pu, cx.spawn_join(erase_all(me.clone(), cx.clone(), pu, chunks))))
        .collect();
    for (pu, task) in tasks {
        let (bad, host_failed) = task.await;
        if let Some(chunk) = host_failed {
            return Err(MountError::Host { pu, chunk: chunk + me.first_chunk, sector: 0 });
        }
        for chunk in bad {
            kept(me.forget(cx, (pu, chunk)).await)?;
        }
    }
    Ok(())
}

/// What a mount notes it would find again. So where the page-mapped region takes nothing any more, what
/// there is can be read all the same.
fn kept(noted: BlockResult) -> Result<(), MountError> {
    kept_or_found_again(noted).map_err(MountError::Ledger)
}

fn kept_or_found_again(noted: BlockResult) -> BlockResult {
    match noted {
        Ok(()) | Err(BlockError::ReadOnly(_)) => Ok(()),
        Err(other) => Err(other),
    }
}

/// The map that follows.
fn fill(me: &Sftl, seen: Vec<Seen>, winners: &BTreeMap<u64, usize>) {
    let geo = *me.device.geometry();
    // A program that the power cut tore is the last one, and takes along what it was paired with.
    let torn = me.info.page_sectors.max(me.info.pair_sectors);
    let mut map = me.map.lock();
    for c in &mut map.channels {
        for b in &mut c.blocks {
            let info = me.device.chunk_report(b.pu, b.chunk, 1)[0];
            b.erases = info.erases;
            let bad =
                info.state == ChunkState::Offline || me.ledger.marked(b.pu, b.chunk) != Mark::Good;
            b.state = if bad { BlockState::Retired } else { BlockState::Free };
        }
    }
    let dead = dead_pus(&*me.device, &me.ledger);
    map.doubts = dead.into_iter().map(|pu| me.doubt(pu, 0, 0, Doubt::DeadPu)).collect();
    // Those of a PU follow each other, as PUs were looked at in their order.
    for (i, s) in seen.into_iter().enumerate() {
        if s.is_unreadable() && !mutant!("sftl.unreadable-erased") {
            let channel = geo.channel_of(s.pu);
            let block = (s.pu - channel * geo.pus_per_channel) * geo.chunks_per_pu + s.chunk;
            let c = &mut map.channels[channel as usize];
            c.blocks[block as usize].state = match mutant!("sftl.torn-erase-left") {
                true => BlockState::Free,
                false => BlockState::Unreadable,
            };
            let failed = me.ledger.marked(s.pu, s.chunk) == Mark::Failed;
            let cause = if failed { Doubt::Failed } else { Doubt::Unread };
            // Padding that no mount has written says that what is before it was programmed.
            map.doubts.push(me.doubt(s.pu, s.chunk, s.data_end.max(s.read_end), cause));
            continue;
        }
        let Some((number, generation)) = s.owner.filter(|o| winners.get(&o.0) == Some(&i)) else {
            continue;
        };
        let (channel, segment) = me.info.of_number(number);
        let block = (s.pu - channel * geo.pus_per_channel) * geo.chunks_per_pu + s.chunk;
        let c = &mut map.channels[channel as usize];
        c.blocks[block as usize].state = BlockState::Holds(segment);
        let held = &mut c.segments[segment as usize];
        held.block = Some(block);
        (held.written, held.data_end) = (s.info.write_pointer, s.data_end);
        held.generation = generation;
        held.failed = me.ledger.marked(s.pu, s.chunk) == Mark::Failed;
        held.padded = s.padded;
        held.torn_from = Some(s.read_end.saturating_sub(torn));
    }
}

impl Sftl {
    /// Segments without a block to take: those of before, and others if more blocks are bad. As
    /// long as chunks can't be read nothing of that is noted: they may be had another time.
    pub(super) async fn settle_gone(&self, cx: &Cx) -> BlockResult {
        let mut more = Vec::new();
        let unsettled = {
            let mut map = self.map.lock();
            for channel in 0..self.info.channels {
                for segment in 0..self.info.segments {
                    let s = map.segment_mut(channel, segment);
                    if s.block.is_none() && self.ledger.is_gone(channel, segment) {
                        s.phase = Phase::Gone;
                    }
                }
                while !map.is_backed(channel) {
                    let last = (0..self.info.segments).rev().find(|segment| {
                        let s = map.segment(channel, *segment);
                        s.is_some_and(|s| s.block.is_none() && s.phase == Phase::Usable)
                    });
                    let Some(segment) = last else { break };
                    map.segment_mut(channel, segment).phase = Phase::Gone;
                    more.push((channel, segment));
                }
            }
            !map.doubts.is_empty()
        };
        if unsettled {
            return Ok(());
        }
        for (channel, segment) in more {
            kept_or_found_again(self.ledger.mark_gone(cx, channel, segment).await)?;
        }
        Ok(())
    }
}
