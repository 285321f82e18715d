//! The medium as a target addresses it: chunks by number, whole sectors of metadata.
//!
//! Owns: the device with the address of each chunk's first sector, and the vector commands that
//! carry no user data. Promises: a read that says *good* has verified type, content and record of
//! every sector. Never: counts, chooses a place, or knows what the bytes mean.

use crate::log::format::{LBA_ANCHOR, LBA_LOG, Oob};
use crate::patience::read_again;
use flashlane_base::{
    Geometry, Location, OOB_BYTES, Ppa, PpaFormat, SECTOR_BYTES, VECTOR_MAX, mutant,
};
use flashlane_ocssd::device::{
    Cause, Completion, Device, Flags, Gather, Op, Request, Scatter, Status, Ticket,
};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

/// 0, 1, 2, ...: sectors of a block that lie one behind the other.
pub(in crate::log) const IN_ORDER: [u32; VECTOR_MAX] = {
    let mut a = [0; VECTOR_MAX];
    let mut i = 0;
    while i < VECTOR_MAX {
        a[i] = i as u32;
        i += 1;
    }
    a
};

/// How often recovery reads again what it can't read: as often as NAND has levels to try (eight in
/// most tables of read retry). Only what power cuts tore costs that much.
pub(in crate::log) const RETRIES: u32 = 7;

pub(in crate::log) type Records = [[u8; OOB_BYTES]; VECTOR_MAX];

/// See the module's head. A chunk is `pu × chunks per PU + chunk`.
#[derive(Clone)]
pub(in crate::log) struct Flash {
    pub(in crate::log) device: Arc<dyn Device>,
    pub(in crate::log) geo: Geometry,
    pub(in crate::log) format: PpaFormat,
    /// Address of sector 0 of each chunk of the target.
    pub(in crate::log) chunk_base: Arc<[Ppa]>,
    /// The first sector, (chunk, sector), that the host could not give or take.
    host_failed: Arc<Mutex<Option<(u32, u32)>>>,
    /// Chunks of which a mount has waited for a read in vain.
    hopeless: Arc<Mutex<BTreeSet<u32>>>,
    /// Chunks that did not take all of a mount's padding: what can't be read there says nothing.
    unpadded: Arc<Mutex<BTreeSet<u32>>>,
}

impl Flash {
    pub(in crate::log) fn new(device: Arc<dyn Device>) -> Flash {
        let (geo, format) = (*device.geometry(), *device.format());
        let base = |chunk: u32| {
            let (pu, chunk) = (chunk / geo.chunks_per_pu, chunk % geo.chunks_per_pu);
            format.pack(Location { pu, chunk, sector: 0 })
        };
        let chunk_base = (0..geo.chunks()).map(base).collect();
        let (host_failed, hopeless, unpadded) = Default::default();
        Flash { chunk_base, device, geo, format, host_failed, hopeless, unpadded }
    }

    /// A mount need not wait for reads of this chunk: it has done so, or for two others of its PU.
    pub(in crate::log) fn is_hopeless(&self, chunk: u32) -> bool {
        let hopeless = self.hopeless.lock();
        let first = chunk / self.geo.chunks_per_pu * self.geo.chunks_per_pu;
        let of_pu = hopeless.range(first..first + self.geo.chunks_per_pu);
        hopeless.contains(&chunk) || of_pu.count() > 1
    }

    /// A mount has waited for reads of this chunk in vain, or it is offline.
    pub(in crate::log) fn give_up_on(&self, chunk: u32) {
        self.hopeless.lock().insert(chunk);
    }

    /// The first sector, (chunk, sector), that the host could not give or take.
    pub(in crate::log) fn host_failed(&self) -> Option<(u32, u32)> {
        *self.host_failed.lock()
    }

    /// Addresses of `n` sectors from `sector` of a chunk.
    #[inline]
    pub(in crate::log) fn addresses(&self, chunk: u32, sector: u32, n: usize) -> [Ppa; VECTOR_MAX] {
        let base = self.chunk_base[chunk as usize];
        let mut out = [Ppa(0); VECTOR_MAX];
        for (i, a) in out[..n].iter_mut().enumerate() {
            *a = self.format.in_chunk(base, sector + i as u32);
        }
        out
    }

    /// Submits one write unit of metadata: whole sectors typed `lba`, stamped with `stamp`.
    pub(in crate::log) fn submit_meta(
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
        // Most of a small block is padding, which costs a comparison with the sector before.
        let mut last: Option<(&[u8], u32)> = None;
        for (o, content) in oob.iter_mut().zip(bytes.chunks_exact(SECTOR_BYTES)) {
            let crc = match last {
                Some((same, crc)) if same == content => crc,
                _ => Oob::content_crc(content),
            };
            last = Some((content, crc));
            *o = Oob::encode_raw(lba, stamp, crc);
        }
        let content = Gather::new(bytes, &IN_ORDER[..n], SECTOR_BYTES);
        let causes = [cause; VECTOR_MAX];
        // What order rests on is on the medium when it completes, whatever buffer the device has.
        let flags = Flags { fua: !mutant!("log.metadata-buffered"), ..Flags::DEFAULT };
        let request = Request::write(&addrs[..n], content, &oob[..n], &causes[..n]);
        self.device.submit(cx, request.with(flags).whole(true))
    }

    /// Reads up to 64 sectors into `content`, `unit` bytes each: 4096 (`whole` as metadata is kept),
    /// the store's unit of user data, or 0 for the out-of-band records alone. No user waits for any of
    /// them: `cause` is for whom they are read.
    pub(in crate::log) async fn read(
        &self,
        cx: &Cx,
        addrs: &[Ppa],
        content: &mut [u8],
        (unit, whole): (usize, bool),
        oob: &mut Records,
        cause: Cause,
    ) -> Completion {
        let n = addrs.len();
        let content = Scatter::new(content, &IN_ORDER[..n], unit);
        let flags = Flags { cause, ..Flags::default() };
        let request = Request::read(addrs, content, &mut oob[..n]).with(flags).whole(whole);
        let done = self.device.io(cx, request).await;
        if done.failed != 0
            && let Some(k) = (0..n).find(|k| done.status(*k) == Status::HostFault)
            && let Some(at) = self.format.unpack(addrs[k])
        {
            let chunk = at.pu * self.geo.chunks_per_pu + at.chunk;
            self.note_host_failure((chunk, at.sector));
        }
        done
    }

    /// The host could not give this sector, (chunk, sector), or did not take a mount's padding for
    /// it.
    pub(in crate::log) fn note_host_failure(&self, at: (u32, u32)) {
        self.host_failed.lock().get_or_insert(at);
    }

    /// A program of a mount's padding in this chunk has failed.
    pub(in crate::log) fn note_failed_padding(&self, chunk: u32) {
        self.unpadded.lock().insert(chunk);
    }

    pub(in crate::log) fn has_failed_padding(&self, chunk: u32) -> bool {
        self.unpadded.lock().contains(&chunk) && !mutant!("log.failed-padding-is-witness")
    }

    /// Reads whole sectors of one chunk into `bytes` and verifies each. False when any of them is not
    /// what was written there under this type.
    pub(in crate::log) async fn read_meta(
        &self,
        cx: &Cx,
        (chunk, sector): (u32, u32),
        lba: u64,
        bytes: &mut [u8],
    ) -> bool {
        let cause = match lba {
            LBA_LOG | LBA_ANCHOR => Cause::Log,
            _ => Cause::Metadata,
        };
        let mut at = sector;
        for part in bytes.chunks_mut(VECTOR_MAX * SECTOR_BYTES) {
            let n = part.len() / SECTOR_BYTES;
            let addrs = self.addresses(chunk, at, n);
            let mut oob = [[0u8; OOB_BYTES]; VECTOR_MAX];
            let kind = (SECTOR_BYTES, true);
            let done = self.read(cx, &addrs[..n], part, kind, &mut oob, cause).await;
            let sectors = part.chunks_exact(SECTOR_BYTES).zip(&oob).enumerate();
            let good = |(i, (content, oob)): (usize, (&[u8], &[u8; OOB_BYTES]))| {
                let verified = Oob::verify_for(oob, lba, content);
                done.status(i).is_ok() && (verified || mutant!("log.meta-crc-skipped"))
            };
            if !sectors.into_iter().all(good) {
                return false;
            }
            at += n as u32;
        }
        true
    }

    /// [`Flash::read_meta`], again where it fails: what recovery can't read is lost for good.
    pub(in crate::log) async fn read_meta_again(
        &self,
        cx: &Cx,
        at: (u32, u32),
        lba: u64,
        bytes: &mut [u8],
    ) -> bool {
        let retries = if mutant!("log.meta-read-once") { 0 } else { RETRIES };
        for _ in 0..=retries {
            if self.read_meta(cx, at, lba, bytes).await {
                return true;
            }
        }
        false
    }

    /// [`Flash::read_meta_again`], and over time where it fails: a mount decides by it.
    pub(in crate::log) async fn read_meta_over_time(
        &self,
        cx: &Cx,
        at: (u32, u32),
        lba: u64,
        bytes: &mut [u8],
    ) -> bool {
        if self.read_meta_again(cx, at, lba, bytes).await {
            return true;
        }
        if self.is_hopeless(at.0) || mutant!("log.metadata-read-at-once") {
            return false;
        }
        let left = read_again(cx, vec![()], async |left| {
            match self.read_meta_again(cx, at, lba, bytes).await {
                true => Vec::new(),
                false => left,
            }
        });
        let is_good = left.await.is_empty();
        if !is_good {
            self.give_up_on(at.0);
        }
        is_good
    }

    pub(in crate::log) async fn reset(&self, cx: &Cx, chunk: u32) -> Completion {
        let addrs = [self.chunk_base[chunk as usize]];
        self.device.io(cx, Request::plain(Op::Reset, &addrs)).await
    }
}
