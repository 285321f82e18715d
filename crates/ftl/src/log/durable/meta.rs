//! Metadata of a running target: programs, erases and chunks for lines' own, log, anchor, checkpoints.
//!
//! Owns: splitting a block into write units, its counting by cause. Promises: a failed program is a
//! `false`, never a partial success. Never: decides where a block goes.

use crate::log::HostFtl;
use crate::log::format::LBA_PADDING;
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_ocssd::device::{Cause, ChunkInfo, ChunkState, Completion, Status, Ticket};
use flashlane_rt::Cx;
use std::collections::BTreeSet;
use std::sync::Arc;

/// Why nothing can be made durable on an image.
pub(in crate::log) const HOST_TROUBLE: &str =
    "the host could not keep what was written: its disk is full or failing";

impl HostFtl {
    /// Submits one write unit of metadata: whole sectors typed `lba`, stamped with `stamp`.
    pub(in crate::log) fn submit_meta(
        &self,
        cx: &Cx,
        at: (u32, u32),
        bytes: &[u8],
        tag: (u64, u64),
        cause: Cause,
    ) -> Ticket {
        let mut p = self.pools.of_chunk(at.0).lock();
        p.programmed[cause as usize] += (bytes.len() / SECTOR_BYTES) as u64;
        drop(p);
        self.flash.submit_meta(cx, at, bytes, tag, cause)
    }

    /// Programs a block of whole write units into one chunk, unit after unit. False when one
    /// failed.
    pub(in crate::log) async fn program_meta(
        &self,
        cx: &Cx,
        (chunk, sector): (u32, u32),
        bytes: &[u8],
        tag: (u64, u64),
        cause: Cause,
    ) -> bool {
        let mut at = sector;
        for unit in bytes.chunks(self.shape.unit as usize * SECTOR_BYTES) {
            let ticket = self.submit_meta(cx, (chunk, at), unit, tag, cause);
            let done = self.flash.device.wait(cx, ticket).await;
            if done.failed != 0 {
                self.note_meta_failure(cx, chunk, &done, cause);
                if mutant!("log.meta-failure-ignored") {
                    return true;
                }
                return false;
            }
            at += (unit.len() / SECTOR_BYTES) as u32;
        }
        true
    }

    /// [`HostFtl::program_meta`] of one block into two chunks at a time; which of them took it.
    pub(in crate::log) async fn program_both(
        &self,
        cx: &Cx,
        places: [(u32, u32); 2],
        bytes: Arc<[u8]>,
        tag: (u64, u64),
        cause: Cause,
    ) -> [bool; 2] {
        let me = self.me.upgrade().expect("whoever writes metadata holds the target");
        let copies = places.map(|at| {
            let (me, cx2, bytes) = (me.clone(), cx.clone(), bytes.clone());
            cx.spawn_join(async move { me.program_meta(&cx2, at, &bytes, tag, cause).await })
        });
        let [a, b] = copies;
        [a.await, b.await]
    }

    /// Pads the open chunks of log, anchor and newest checkpoint as far as the medium needs to give back
    /// what is in them: the next mount may be read-only, and can't. Where a program fails, that mount
    /// is all it costs. One chunk at a time: a power cut tears one copy at most.
    pub(in crate::log) async fn pad_metadata(&self, cx: &Cx) {
        if self.shape.window == 0 || mutant!("log.ends-unpadded") {
            return;
        }
        let checkpoint = {
            let kept = self.checkpoints.kept.lock();
            kept.last().map_or(BTreeSet::new(), |c| c.chunks.clone())
        };
        for chunk in self.journal.chunks().into_iter().chain(checkpoint) {
            let info = self.chunk_info(chunk);
            if info.state == ChunkState::Open {
                let from = info.write_pointer;
                let end = crate::log::recover::padded_end(&self.shape, from);
                let zeros = vec![0u8; (end - from) as usize * SECTOR_BYTES];
                let tag = (LBA_PADDING, 0);
                self.program_meta(cx, (chunk, from), &zeros, tag, Cause::PaddingGc).await;
            }
        }
    }

    /// Some of a program failed. Where the host failed it, no chunk is bad, but nothing can be made
    /// durable either: the target becomes read-only until it is mounted again.
    pub(in crate::log) fn note_program_failure(&self, cx: &Cx, done: &Completion) {
        crate::log::add(&self.counters.program_failures, done.failed.count_ones() as u64);
        if done.status.contains(&Status::HostFault) {
            self.give_up(cx, HOST_TROUBLE);
        }
    }

    /// A unit of metadata failed: what the medium did not begin is taken back from the counters.
    pub(in crate::log) fn note_meta_failure(
        &self,
        cx: &Cx,
        chunk: u32,
        done: &Completion,
        cause: Cause,
    ) {
        self.note_program_failure(cx, done);
        let refused = done.status.iter().filter(|s| !s.moved_pointer()).count() as u64;
        self.pools.of_chunk(chunk).lock().programmed[cause as usize] -= refused;
    }

    /// Erases a chunk. False when it is bad now.
    pub(in crate::log) async fn erase(&self, cx: &Cx, chunk: u32) -> bool {
        self.pools.of_chunk(chunk).lock().note_erase(chunk);
        let done = self.flash.reset(cx, chunk).await;
        let ok = done.status(0) == Status::Ok || mutant!("log.erase-failure-ignored");
        if !ok {
            crate::log::add(&self.counters.erase_failures, 1);
        }
        if done.status(0) == Status::HostFault {
            self.give_up(cx, HOST_TROUBLE);
        }
        ok
    }

    /// A chunk of the target as the device reports it now.
    pub(in crate::log) fn chunk_info(&self, chunk: u32) -> ChunkInfo {
        let per_pu = self.shape.chunks_per_pu;
        self.flash.device.chunk_report(chunk / per_pu, chunk % per_pu, 1)[0]
    }

    /// Takes, and erases where needed, a chunk for metadata, on another PU than `not`.
    pub(in crate::log) async fn fresh_meta_chunk(&self, cx: &Cx, not: Option<u32>) -> Option<u32> {
        loop {
            let taken = self.pools.take_meta_chunk(not)?;
            if let Some(chunk) = self.erased_meta_chunk(cx, taken).await {
                return Some(chunk);
            }
        }
    }

    /// Two such chunks on two PUs, erased at a time.
    pub(in crate::log) async fn fresh_meta_pair(&self, cx: &Cx) -> Option<[u32; 2]> {
        let per_pu = self.shape.chunks_per_pu;
        let a = self.pools.take_meta_chunk(None)?;
        let b = self.pools.take_meta_chunk(Some(a.0 / per_pu));
        let me = self.me.upgrade().expect("whoever writes metadata holds the target");
        let their_cx = cx.clone();
        let first = cx.spawn_join(async move { me.erased_meta_chunk(&their_cx, a).await });
        let b = match b {
            Some(b) => self.erased_meta_chunk(cx, b).await,
            None => None,
        };
        // One that is bad is replaced by one on another PU than the one that is good.
        let a = match first.await {
            Some(a) => a,
            None => self.fresh_meta_chunk(cx, b.map(|b| b / per_pu)).await?,
        };
        let b = match b {
            Some(b) => b,
            None => self.fresh_meta_chunk(cx, Some(a / per_pu)).await?,
        };
        Some([a, b])
    }

    /// Erases a chunk that was taken where that is needed; a bad one is retired.
    async fn erased_meta_chunk(&self, cx: &Cx, (chunk, dirty): (u32, bool)) -> Option<u32> {
        if !dirty || self.erase(cx, chunk).await {
            return Some(chunk);
        }
        self.retire(chunk);
        self.pools.of_chunk(chunk).lock().meta_reserve += 1;
        None
    }

    /// Chunks of metadata that nothing names any more are free. A pair of the log that nothing was
    /// written to needs no erase, and a strict device refuses one.
    pub(in crate::log) fn give_meta_back(&self, chunks: &[u32]) {
        for chunk in chunks {
            let dirty = self.chunk_info(*chunk).state != ChunkState::Free;
            self.pools.of_chunk(*chunk).lock().put_meta_chunk(*chunk, dirty);
        }
    }

    /// The chunk is bad: recorded, never used again. Its share of the reserve has to come from
    /// the free chunks.
    pub(in crate::log) fn retire(&self, chunk: u32) {
        // One step, as everything that a checkpoint carries (FORMAT.md, hole 40).
        let mut p = self.pools.of_chunk(chunk).lock();
        p.retired_chunks.push(chunk);
        if mutant!("log.bad-chunk-unrecorded") {
            return;
        }
        self.journal.append(crate::log::format::Record::Retired { chunk });
        self.note_changes(1);
    }
}
