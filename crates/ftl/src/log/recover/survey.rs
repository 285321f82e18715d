//! The medium as the power came back: what was written how far, and what begins where.
//!
//! Owns: the chunk report of that moment, the scan of first sectors, padding that makes the end of an
//! open chunk readable. Promises: padding holds nothing that a later recovery could take for data, and
//! goes only behind what was written. Never: decides what a chunk means.

use super::super::flash::{Flash, RETRIES, Records};
use super::super::format::{LBA_PADDING, Oob};
use super::super::pool::Shape;
use flashlane_base::{OOB_BYTES, SECTOR_BYTES, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Cause, ChunkInfo, ChunkState};
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

    /// How far a chunk had been written.
    pub(super) fn pointer(&self, chunk: u32) -> u32 {
        self.chunks.get(chunk as usize).map_or(0, |c| c.write_pointer.min(self.shape.chunk_sectors))
    }

    /// The out-of-band record of the first sector of every written chunk, all PUs at a time. What can't
    /// be read, or not yet (`mw_cunits`), is left out.
    pub(in super::super) async fn first_records(&self, cx: &Cx) -> Vec<First> {
        let tasks: Vec<_> = (0..self.shape.pus)
            .map(|pu| {
                let chunks = pu * self.shape.chunks_per_pu..(pu + 1) * self.shape.chunks_per_pu;
                let chunks: Vec<u32> = chunks.filter(|c| self.is_written(*c)).collect();
                let (flash, their_cx) = (self.flash.clone(), cx.clone());
                cx.spawn_join(async move { read_first(&flash, &their_cx, &chunks).await })
            })
            .collect();
        let mut all = Vec::new();
        for task in tasks {
            all.extend(task.await);
        }
        all
    }

    /// The first records of some chunks, by chunk; what can't be read is left out.
    pub(super) async fn firsts_of(&self, cx: &Cx, chunks: &[u32]) -> BTreeMap<u32, First> {
        let firsts = read_first(&self.flash, cx, chunks).await;
        firsts.into_iter().map(|first| (first.chunk, first)).collect()
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
                cx.spawn_join(async move { pad(&flash, &their_cx, chunk, range, 0, unit).await }),
            );
        }
        for task in tasks {
            self.padded += task.await;
        }
    }
}

/// Up to where a chunk that was written up to `pointer` is padded: whole units, and as many as the medium
/// needs to give back what is before them.
pub(in super::super) fn padded_end(shape: &Shape, pointer: u32) -> u32 {
    let window = if mutant!("log.padded-too-little") { 1 } else { shape.window };
    (pointer + window).next_multiple_of(shape.unit).min(shape.chunk_sectors)
}

/// Programs padding over `from .. end` of a chunk, stamped with a line's sequence, as far as the chunk
/// takes it. Returns the sectors that the medium counts.
pub(in super::super) async fn pad(
    flash: &Flash,
    cx: &Cx,
    chunk: u32,
    (from, end): (u32, u32),
    sequence: u64,
    unit: u32,
) -> u64 {
    let zeros = Arc::new(vec![0u8; unit as usize * SECTOR_BYTES]);
    let (mut at, mut counted) = (from, 0);
    while at < end {
        // The first piece may only complete a unit whose beginning was programmed.
        let n = (unit - at % unit).min(end - at);
        let tag = (LBA_PADDING, sequence);
        let bytes = &zeros[..n as usize * SECTOR_BYTES];
        let ticket = flash.submit_meta(cx, (chunk, at), bytes, tag, Cause::PaddingGc);
        let done = flash.device.wait(cx, ticket).await;
        let moved = (0..n as usize).filter(|i| done.status(*i).moved_pointer()).count();
        counted += moved as u64;
        if moved < n as usize {
            break;
        }
        at += n;
    }
    counted
}

async fn read_first(flash: &Flash, cx: &Cx, chunks: &[u32]) -> Vec<First> {
    let mut found = Vec::new();
    for some in chunks.chunks(VECTOR_MAX) {
        let mut some = some.to_vec();
        for _ in 0..=RETRIES {
            let addrs: Vec<_> = some.iter().map(|c| flash.chunk_base[*c as usize]).collect();
            let mut oob: Records = [[0; OOB_BYTES]; VECTOR_MAX];
            let read = flash.read(cx, &addrs, &mut [], (0, true), &mut oob, Cause::Metadata);
            let done = read.await;
            let mut again = Vec::new();
            for (i, chunk) in some.into_iter().enumerate() {
                if !done.status(i).is_ok() {
                    again.push(chunk);
                    continue;
                }
                let (lba, stamp, _) = Oob::decode_raw(&oob[i]);
                found.push(First { chunk, lba, stamp });
            }
            some = again;
            if some.is_empty() {
                break;
            }
        }
    }
    found
}
