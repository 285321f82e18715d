//! Whole-sector programs and reads of metadata: lines' own, log, anchor, checkpoints.
//!
//! Owns: splitting a block into vectors, its out-of-band records, its counting by cause.
//! Promises: a failed program is a `false`, never a partial success; a read verifies every sector.
//! Never: decides where a block goes.

use super::HostFtl;
use super::format::Oob;
use flashlane_base::{OOB_BYTES, Ppa, SECTOR_BYTES, VECTOR_MAX};
use flashlane_ocssd::device::{
    Cause, CellMode, Completion, Data, Flags, Gather, Op, Request, Scatter, Status, Ticket,
};
use flashlane_rt::Cx;

/// 0, 1, 2, ...: sectors of a block that lie one behind the other.
pub(super) const IN_ORDER: [u32; VECTOR_MAX] = {
    let mut a = [0; VECTOR_MAX];
    let mut i = 0;
    while i < VECTOR_MAX {
        a[i] = i as u32;
        i += 1;
    }
    a
};

impl HostFtl {
    /// Addresses of `n` sectors from `sector` of a chunk.
    #[inline]
    pub(super) fn addresses(&self, chunk: u32, sector: u32, n: usize) -> [Ppa; VECTOR_MAX] {
        let base = self.chunk_base[chunk as usize];
        let mut out = [Ppa(0); VECTOR_MAX];
        for (i, a) in out[..n].iter_mut().enumerate() {
            *a = self.format.in_chunk(base, sector + i as u32);
        }
        out
    }

    /// Submits one write unit of metadata: whole sectors typed `lba`, stamped with `stamp`.
    pub(super) fn submit_meta(
        &self,
        cx: &Cx,
        (chunk, sector): (u32, u32),
        bytes: &[u8],
        (lba, stamp): (u64, u64),
        cause: Cause,
    ) -> Ticket {
        let n = bytes.len() / SECTOR_BYTES;
        let addrs = self.addresses(chunk, sector, n);
        let mut oob = [[0u8; OOB_BYTES]; VECTOR_MAX];
        for (o, content) in oob.iter_mut().zip(bytes.chunks_exact(SECTOR_BYTES)) {
            *o = Oob::encode_raw(lba, stamp, Oob::content_crc(content));
        }
        self.pool.lock().programmed[cause as usize] += n as u64;
        let content = Gather { base: bytes, index: &IN_ORDER[..n], unit: SECTOR_BYTES };
        let causes = [cause; VECTOR_MAX];
        self.device.submit(
            cx,
            Request {
                op: Op::Write,
                flags: Flags::default(),
                addrs: &addrs[..n],
                data: Data::Write { content, oob: &oob[..n], cause: &causes[..n] },
                whole_sectors: true,
            },
        )
    }

    /// Programs a block of whole write units into one chunk, unit after unit. False when one
    /// failed.
    pub(super) async fn program_meta(
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
            let done = self.device.wait(cx, ticket).await;
            if done.failed != 0 {
                self.note_meta_failure(&done, cause);
                return false;
            }
            at += (unit.len() / SECTOR_BYTES) as u32;
        }
        true
    }

    pub(super) fn note_program_failure(&self, done: &Completion) {
        super::add(&self.counters.program_failures, done.failed.count_ones() as u64);
    }

    /// A unit of metadata failed: what the medium did not begin is taken back from the counters.
    pub(super) fn note_meta_failure(&self, done: &Completion, cause: Cause) {
        self.note_program_failure(done);
        let refused = done.status.iter().filter(|s| !s.moved_pointer()).count() as u64;
        self.pool.lock().programmed[cause as usize] -= refused;
    }

    /// Reads whole sectors of one chunk into `bytes` and verifies each. False when any of them is not
    /// what was written there under this type.
    pub(super) async fn read_meta(
        &self,
        cx: &Cx,
        (chunk, sector): (u32, u32),
        lba: u64,
        bytes: &mut [u8],
    ) -> bool {
        let n = bytes.len() / SECTOR_BYTES;
        let mut done = 0;
        while done < n {
            let m = (n - done).min(VECTOR_MAX);
            let addrs = self.addresses(chunk, sector + done as u32, m);
            let mut oob = [[0u8; OOB_BYTES]; VECTOR_MAX];
            let part = &mut bytes[done * SECTOR_BYTES..(done + m) * SECTOR_BYTES];
            let ticket = self.device.submit(
                cx,
                Request {
                    op: Op::Read,
                    flags: Flags::default(),
                    addrs: &addrs[..m],
                    data: Data::Read {
                        content: Scatter {
                            base: &mut *part,
                            index: &IN_ORDER[..m],
                            unit: SECTOR_BYTES,
                        },
                        oob: &mut oob[..m],
                    },
                    whole_sectors: true,
                },
            );
            let completion = self.device.wait(cx, ticket).await;
            let good = (0..m).all(|i| {
                completion.status(i).is_ok()
                    && Oob::verify_for(
                        &oob[i],
                        lba,
                        &bytes[(done + i) * SECTOR_BYTES..(done + i + 1) * SECTOR_BYTES],
                    )
            });
            if !good {
                return false;
            }
            done += m;
        }
        true
    }

    /// Erases a chunk. False when it is bad now.
    pub(super) async fn erase(&self, cx: &Cx, chunk: u32) -> bool {
        {
            let mut p = self.pool.lock();
            p.erases[chunk as usize] += 1;
            p.erases_total += 1;
        }
        let addrs = [self.chunk_base[chunk as usize]];
        let flags = Flags { cell: CellMode::Native, ..Flags::default() };
        let request =
            Request { op: Op::Reset, flags, addrs: &addrs, data: Data::None, whole_sectors: false };
        let ticket = self.device.submit(cx, request);
        let done = self.device.wait(cx, ticket).await;
        let ok = done.status(0) == Status::Ok;
        if !ok {
            super::add(&self.counters.erase_failures, 1);
        }
        ok
    }

    /// Takes, and erases where needed, a chunk for metadata, on another PU than `not`.
    pub(super) async fn fresh_meta_chunk(&self, cx: &Cx, not: Option<u32>) -> Option<u32> {
        loop {
            let (chunk, dirty) = self.pool.lock().take_meta_chunk(not)?;
            if !dirty || self.erase(cx, chunk).await {
                return Some(chunk);
            }
            self.retire(chunk);
            self.pool.lock().meta_reserve += 1;
        }
    }

    /// The chunk is bad: recorded, never used again. Its share of the reserve has to come from
    /// the free chunks.
    pub(super) fn retire(&self, chunk: u32) {
        self.journal.append(super::format::Record::Retired { chunk });
        self.pool.lock().retired_chunks.push(chunk);
    }
}
