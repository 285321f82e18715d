//! The medium as the power came back: what was written how far, and what begins where.
//!
//! Owns: the chunk report of that moment, the scan of first sectors, padding that makes the end of an
//! open chunk readable. Promises: padding holds nothing that a later recovery could take for data, and
//! goes only behind what was written; a chunk of which nothing can be read is named as such, and is
//! never taken for one that was not written. Never: decides what a chunk means.

use super::super::flash::{Flash, RETRIES, Records};
use super::super::format::{LBA_ANCHOR, LBA_LOG, LBA_NONE, LBA_PADDING, Oob};
use super::super::journal::block_room;
use super::super::pool::Shape;
use flashlane_base::{OOB_BYTES, Ppa, SECTOR_BYTES, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, ChunkInfo, ChunkState, Status};
use flashlane_rt::Cx;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The first record of a chunk: unverified, so a claim.
#[derive(Clone, Copy, Debug)]
pub(super) struct First {
    pub(super) chunk: u32,
    /// A logical sector or a type.
    pub(super) lba: u64,
    pub(super) stamp: u64,
}

/// The first records of the written chunks.
#[derive(Default)]
pub(in super::super) struct Firsts {
    pub(in super::super) read: Vec<First>,
    /// Written chunks whose first record can't be read.
    pub(super) unread: Vec<u32>,
    /// Written chunks whose first record the device does not give yet: they need more programs, or
    /// padding, after it (`mw_cunits`).
    early: Vec<u32>,
}

impl Firsts {
    /// Takes in what was read since. Only an open chunk can need more programs.
    fn take_in(&mut self, other: Firsts, is_open: impl Fn(&u32) -> bool) {
        self.read.extend(other.read);
        self.unread.extend(other.unread);
        let (early, unread): (Vec<u32>, Vec<u32>) = other.early.into_iter().partition(is_open);
        self.early.extend(early);
        self.unread.extend(unread);
    }
}

pub(in super::super) struct Survey {
    pub(super) flash: Flash,
    pub(super) shape: Shape,
    pub(super) chunks: Vec<ChunkInfo>,
    /// Chunks that were padded already.
    readable: BTreeSet<u32>,
    /// Sectors that were padded before there was a target to count them.
    pub(super) padded: u64,
    /// Nothing may be written.
    pub(super) read_only: bool,
}

impl Survey {
    pub(super) fn take(flash: Flash, shape: Shape, read_only: bool) -> Survey {
        let report = |pu| flash.device.chunk_report(pu, 0, shape.chunks_per_pu);
        let chunks = (0..shape.pus).flat_map(report).collect();
        Survey { flash, shape, chunks, readable: BTreeSet::new(), padded: 0, read_only }
    }

    /// True when something is written in a chunk that could be read back.
    pub(super) fn is_written(&self, chunk: u32) -> bool {
        let info = self.chunks.get(chunk as usize);
        info.is_some_and(|c| c.write_pointer > 0 && c.state != ChunkState::Offline)
    }

    /// Takes the chunk report again: chunks that went offline since the first one are noted, with
    /// how far they had been written then.
    pub(super) fn look_again(&mut self) {
        let report = |pu| self.flash.device.chunk_report(pu, 0, self.shape.chunks_per_pu);
        let now: Vec<ChunkInfo> = (0..self.shape.pus).flat_map(report).collect();
        for (i, (chunk, now)) in (0..).zip(self.chunks.iter_mut().zip(now)) {
            if now.state == ChunkState::Offline {
                chunk.state = ChunkState::Offline;
                self.flash.give_up_on(i);
            }
        }
    }

    fn is_open(&self, chunk: u32) -> bool {
        self.chunks.get(chunk as usize).is_some_and(|c| c.state == ChunkState::Open)
    }

    pub(super) fn is_offline(&self, chunk: u32) -> bool {
        let info = self.chunks.get(chunk as usize);
        info.is_none_or(|c| c.state == ChunkState::Offline)
    }

    /// The PUs all chunks of which are offline.
    pub(super) fn dead_pus(&self) -> Vec<u32> {
        let per_pu = self.shape.chunks_per_pu;
        let is_dead = |pu: &u32| (pu * per_pu..(pu + 1) * per_pu).all(|c| self.is_offline(c));
        (0..self.shape.pus).filter(is_dead).collect()
    }

    /// How far a chunk had been written; 0 of one that was offline before this mount.
    pub(super) fn pointer(&self, chunk: u32) -> u32 {
        self.chunks.get(chunk as usize).map_or(0, |c| c.write_pointer.min(self.shape.chunk_sectors))
    }

    /// The out-of-band record of the first sector of every written chunk, all PUs at a time.
    pub(in super::super) async fn first_records(&self, cx: &Cx) -> Firsts {
        let all = (0..self.chunks.len() as u32).filter(|c| self.is_written(*c));
        let mut firsts = Firsts { unread: all.collect(), ..Firsts::default() };
        self.read_unread(cx, &mut firsts).await;
        firsts
    }

    /// Tries those again that could not be read.
    pub(super) async fn read_unread(&self, cx: &Cx, firsts: &mut Firsts) {
        let unread = std::mem::take(&mut firsts.unread);
        let tasks: Vec<_> = (0..self.shape.pus)
            .map(|pu| {
                let of_pu = |c: &u32| c / self.shape.chunks_per_pu == pu && self.is_written(*c);
                let chunks: Vec<u32> = unread.iter().copied().filter(of_pu).collect();
                let (flash, their_cx) = (self.flash.clone(), cx.clone());
                cx.spawn_join(async move { read_first(&flash, &their_cx, &chunks).await })
            })
            .collect();
        for task in tasks {
            firsts.take_in(task.await, |c| self.is_open(*c));
        }
        firsts.read.sort_by_key(|first| first.chunk);
    }

    /// Reads those that this mount has padded since the device did not give them yet.
    pub(super) async fn read_padded(&self, cx: &Cx, firsts: &mut Firsts) {
        if mutant!("log.padded-pair-is-early") {
            return;
        }
        let early = std::mem::take(&mut firsts.early).into_iter();
        let (padded, early): (Vec<u32>, Vec<u32>) = early.partition(|c| self.readable.contains(c));
        firsts.early = early;
        let read = read_first(&self.flash, cx, &padded).await;
        firsts.take_in(read, |c| self.is_open(*c));
        firsts.read.sort_by_key(|first| first.chunk);
    }

    /// Reads the first records of the log and of anchors once more. If one fails now, all chunks
    /// of its PU are tried, and those that fail count as unread: the mount could not read what else
    /// they hold.
    pub(super) async fn doubt(&self, cx: &Cx, firsts: &mut Firsts) {
        let pu = |first: &First| first.chunk / self.shape.chunks_per_pu;
        let is_log = |first: &&First| matches!(first.lba, LBA_LOG | LBA_ANCHOR);
        let mut now = self.firsts_of(cx, &chunks_of(firsts.read.iter().filter(is_log))).await;
        let is_gone = |f: &&First| is_log(f) && !now.contains_key(&f.chunk);
        let pus: BTreeSet<u32> = firsts.read.iter().filter(is_gone).map(pu).collect();
        let is_doubted = |f: &&First| !is_log(f) && pus.contains(&pu(f));
        let doubted = chunks_of(firsts.read.iter().filter(is_doubted));
        now.extend(self.firsts_of(cx, &doubted).await);
        let is_read = |f: &First| !pus.contains(&pu(f)) || now.contains_key(&f.chunk);
        let read = std::mem::take(&mut firsts.read).into_iter();
        let (read, gone): (Vec<First>, Vec<First>) = read.partition(is_read);
        firsts.read = read;
        firsts.unread.extend(chunks_of(&gone));
    }

    /// The first records of some chunks, by chunk; what can't be read is left out.
    pub(super) async fn firsts_of(&self, cx: &Cx, chunks: &[u32]) -> BTreeMap<u32, First> {
        let firsts = read_first(&self.flash, cx, chunks).await.read;
        firsts.into_iter().map(|first| (first.chunk, first)).collect()
    }

    /// Returns those of `chunks` in which a power cut tore the first program, or one of the others
    /// that its block takes: nothing was acknowledged there. No first record of `chunks` can be
    /// read. The sign: the last sector before a mount's padding, or before the write pointer, can't
    /// be read, or not yet, and no second block can be.
    pub(super) async fn torn_at_first(&self, cx: &Cx, chunks: &[u32]) -> BTreeSet<u32> {
        let room = block_room(&self.shape, self.flash.geo.ws_min);
        let mut torn = BTreeSet::new();
        for chunk in chunks {
            let (end, most) = (self.pointer(*chunk), first_program(&self.shape));
            let sectors: Vec<u32> = (1..end.min(most + 1)).collect();
            let (mut last_is_torn, mut ends_there) = (true, end <= most);
            for (sector, seen) in sectors.iter().zip(self.look(cx, *chunk, &sectors).await) {
                match seen {
                    Seen::Record(LBA_PADDING, OF_MOUNT) => {
                        ends_there = true;
                        break;
                    }
                    Seen::Record(LBA_LOG | LBA_ANCHOR, _) if *sector >= room => {
                        ends_there = false;
                        break;
                    }
                    Seen::Record(..) if mutant!("log.part-of-a-block-is-a-block") => {
                        ends_there = false;
                        break;
                    }
                    Seen::Record(..) => last_is_torn = mutant!("log.whole-first-block-is-torn"),
                    Seen::Nothing | Seen::Early => last_is_torn = true,
                }
            }
            if last_is_torn && ends_there {
                torn.insert(*chunk);
            }
        }
        torn
    }

    /// The records of these sectors of a chunk.
    async fn look(&self, cx: &Cx, chunk: u32, sectors: &[u32]) -> Vec<Seen> {
        let at = |sector: &u32| self.flash.addresses(chunk, *sector, 1)[0];
        look(&self.flash, cx, &sectors.iter().map(at).collect::<Vec<_>>()).await
    }

    /// Would [`Survey::make_readable`] write this chunk to its end, although the medium gives its
    /// first sector back already?
    pub(super) fn padding_fills(&self, chunk: u32) -> bool {
        let (pointer, shape) = (self.pointer(chunk), &self.shape);
        let info = self.chunks.get(chunk as usize);
        let is_open = info.is_some_and(|c| c.state == ChunkState::Open);
        is_open && pointer > shape.window && padded_end(shape, pointer) >= shape.chunk_sectors
    }

    /// Pads open chunks behind what was written, until the medium gives all of that back.
    pub(super) async fn make_readable(&mut self, cx: &Cx, chunks: impl IntoIterator<Item = u32>) {
        let mut tasks = Vec::new();
        for chunk in chunks {
            let state = self.chunks.get(chunk as usize).map(|c| c.state);
            let wanted = state == Some(ChunkState::Open) && self.shape.window > 0;
            let wanted = wanted && (!self.read_only || mutant!("log.read-only-pads"));
            if !wanted || !self.readable.insert(chunk) {
                continue;
            }
            let range = (self.pointer(chunk), padded_end(&self.shape, self.pointer(chunk)));
            let (flash, their_cx, unit) = (self.flash.clone(), cx.clone(), self.shape.unit);
            tasks.push(
                cx.spawn_join(async move { pad(&flash, &their_cx, chunk, range, unit).await }),
            );
        }
        for task in tasks {
            self.padded += task.await;
        }
    }
}

fn chunks_of<'a>(firsts: impl IntoIterator<Item = &'a First>) -> Vec<u32> {
    firsts.into_iter().map(|first| first.chunk).collect()
}

/// Sectors at the beginning of a chunk that one program can take along when the power cut tears it:
/// its own unit, and its page pairs.
pub(super) fn first_program(shape: &Shape) -> u32 {
    shape.unit + shape.pair_pads
}

/// Up to where a chunk that was written up to `pointer` is padded: whole units, and as many as the
/// medium needs to give back what is before them. Where that may be one torn program, a unit more:
/// of that unit the record can be read, by which a later mount knows that the chunk holds nothing
/// else.
pub(in super::super) fn padded_end(shape: &Shape, pointer: u32) -> u32 {
    let window = if mutant!("log.padded-too-little") { 1 } else { shape.window };
    let is_first = pointer <= first_program(shape);
    let more = if is_first && !mutant!("log.torn-first-unmarked") { shape.unit } else { 0 };
    (pointer + more + window).next_multiple_of(shape.unit).min(shape.chunk_sectors)
}

/// The sector up to which a mount pads an open chunk. Its data ends at `end`, and padding of
/// earlier mounts at `from`. Returns [`padded_end`] of `end`. But if the data may be one torn
/// program and no unit of the earlier padding gives a record, as power cuts tore them, the result
/// leaves room for one more unit after `from` that a later mount can read.
pub(super) async fn repadded_end(
    flash: &Flash,
    cx: &Cx,
    shape: &Shape,
    (chunk, end, from): (u32, u32, u32),
) -> u32 {
    let to = padded_end(shape, end);
    if from <= end || end > first_program(shape) || mutant!("log.torn-padding-kept") {
        return to;
    }
    let units = (end..from.saturating_sub(shape.window)).step_by(shape.unit as usize);
    let addrs: Vec<Ppa> = units.map(|sector| flash.addresses(chunk, sector, 1)[0]).collect();
    match look(flash, cx, &addrs).await.iter().any(|seen| matches!(seen, Seen::Record(..))) {
        true => to,
        false => to.max(padded_end(shape, from + shape.unit)),
    }
}

/// The stamp of padding that a mount or a stop writes; any other padding has one above.
const OF_MOUNT: u64 = 0;

/// Programs a mount's padding over `from .. end` of a chunk, as far as the chunk takes it. Returns
/// the sectors that the medium counts.
pub(in super::super) async fn pad(
    flash: &Flash,
    cx: &Cx,
    chunk: u32,
    (from, end): (u32, u32),
    unit: u32,
) -> u64 {
    let zeros = Arc::new(vec![0u8; unit as usize * SECTOR_BYTES]);
    let (mut at, mut counted) = (from, 0);
    while at < end {
        // The first piece may only complete a unit whose beginning was programmed.
        let n = (unit - at % unit).min(end - at);
        let tag = (LBA_PADDING, OF_MOUNT);
        let bytes = &zeros[..n as usize * SECTOR_BYTES];
        let ticket = flash.submit_meta(cx, (chunk, at), bytes, tag, Cause::PaddingGc);
        let done = flash.device.wait(cx, ticket).await;
        let moved = (0..n as usize).filter(|i| done.status(*i).moved_pointer()).count();
        counted += moved as u64;
        if !done.status.iter().take(n as usize).all(|status| status.is_ok()) {
            flash.note_failed_padding(chunk);
        }
        if moved < n as usize || done.status.contains(&Status::HostFault) {
            // What is before it stays unreadable, which says nothing of the medium then.
            if done.status.contains(&Status::HostFault) && !mutant!("log.host-takes-no-padding") {
                flash.note_host_failure((chunk, at));
            }
            break;
        }
        at += n;
    }
    counted
}

/// The record of a sector, as a mount reads it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// Its lba and stamp.
    Record(u64, u64),
    /// The device does not give it yet: it needs more programs after it.
    Early,
    /// It can't be read.
    Nothing,
}

/// Reads the records of these sectors. What fails is read [`RETRIES`] times more.
async fn look(flash: &Flash, cx: &Cx, addrs: &[Ppa]) -> Vec<Seen> {
    let mut seen = vec![Seen::Nothing; addrs.len()];
    let mut left: Vec<usize> = (0..addrs.len()).collect();
    for _ in 0..=RETRIES {
        for some in std::mem::take(&mut left).chunks(VECTOR_MAX) {
            let some_addrs: Vec<_> = some.iter().map(|i| addrs[*i]).collect();
            let mut oob: Records = [[0; OOB_BYTES]; VECTOR_MAX];
            let read = flash.read(cx, &some_addrs, &mut [], (0, true), &mut oob, Cause::Metadata);
            let done = read.await;
            for (k, i) in some.iter().enumerate() {
                let (lba, stamp, _) = Oob::decode_raw(&oob[k]);
                seen[*i] = match done.status(k) {
                    Status::Empty => Seen::Early,
                    status if !status.is_ok() => {
                        left.push(*i);
                        continue;
                    }
                    _ if lba == LBA_NONE => Seen::Early,
                    _ => Seen::Record(lba, stamp),
                };
            }
        }
        if left.is_empty() {
            break;
        }
    }
    seen
}

/// The first records of some chunks.
async fn read_first(flash: &Flash, cx: &Cx, chunks: &[u32]) -> Firsts {
    let mut firsts = Firsts::default();
    let addrs: Vec<_> = chunks.iter().map(|c| flash.chunk_base[*c as usize]).collect();
    for (chunk, seen) in chunks.iter().copied().zip(look(flash, cx, &addrs).await) {
        match seen {
            Seen::Record(lba, stamp) => firsts.read.push(First { chunk, lba, stamp }),
            Seen::Early => firsts.early.push(chunk),
            Seen::Nothing => firsts.unread.push(chunk),
        }
    }
    firsts
}
