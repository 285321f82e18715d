//! Reads: from slots, from the medium, or zeros.
//!
//! Owns: looking sectors up, the vector reads, verification. Promises: what a reader gets is a
//! content that was written to that very sector, or an error for exactly the sectors that could not
//! be read (FORMAT.md rule 10: every read of the medium verifies address and CRC).
//! Never: retries what the device gave up on (pblk: read errors go up).

use crate::block::{BlockError, BlockResult, SectorsMut, Started};
use crate::log::epoch::Operation;
use crate::log::format::Oob;
use crate::log::map::Entry;
use crate::log::{HostFtl, add};
use flashlane_base::{Lba, Ns, OOB_BYTES, Ppa, VECTOR_MAX, mutant};
use flashlane_ocssd::device::{Completion, Data, Flags, Op, Request, Status, Ticket};
use flashlane_rt::Cx;
use flashlane_rt::sync::{AtomicU64, AtomicUsize, Ordering, hesitate};
use smallvec::SmallVec;

/// A vector read in flight for up to 64 sectors of a request.
struct Piece {
    ticket: Option<Ticket>,
    /// First sector of the piece within the request.
    first: u32,
    /// Which sectors from `first` on are in the vector.
    media: u64,
    /// Which addresses of the vector gave something that was never written to their sector.
    foreign: u64,
    /// Which sectors from `first` on are known to be lost.
    poisoned: u64,
}

/// What was submitted of a request.
type Pieces = SmallVec<[Piece; 1]>;

/// Reads that are expected: what is known of a sector comes in two looks, the second at what the first
/// found, and the first takes as long as some requests.
pub(in crate::log) struct Expected {
    next: AtomicUsize,
    lbas: [AtomicU64; LOOKS_APART],
}

/// So many expected reads are between both looks.
const LOOKS_APART: usize = 4;

impl Default for Expected {
    fn default() -> Expected {
        Expected {
            next: AtomicUsize::new(0),
            lbas: std::array::from_fn(|_| AtomicU64::new(u64::MAX)),
        }
    }
}

impl Expected {
    /// Notes a sector; the one that was noted [`LOOKS_APART`] times ago. Whoever notes at the same time may
    /// take another's: it is a hint.
    fn note(&self, lba: u64) -> u64 {
        let at = self.next.load(Ordering::Relaxed) % LOOKS_APART;
        self.next.store(at + 1, Ordering::Relaxed);
        let before = self.lbas[at].load(Ordering::Relaxed);
        self.lbas[at].store(lba, Ordering::Relaxed);
        before
    }
}

impl HostFtl {
    /// A read of a sector comes soon, whose map entry was just asked for: now for what the entry of an
    /// earlier one names.
    #[inline]
    pub(in crate::log) fn expect_read(&self, lba: u64) {
        let map = self.map.view();
        match map.decode(map.peek(self.expected.note(lba))) {
            Entry::Media(addr) => {
                let (chunk, sector) = self.lines.chunk_of(addr);
                let base = self.flash.chunk_base[chunk as usize];
                self.flash.device.expect(self.flash.format.in_chunk(base, sector), 1);
            }
            Entry::Slot(slot) => self.slab.prefetch(slot),
            Entry::Unmapped | Entry::Poisoned => {}
        }
    }

    /// A read, answered at once where nothing costs time and nothing has to come from the medium.
    pub(in crate::log) fn read<'a>(
        &'a self,
        cx: &'a Cx,
        lba: u64,
        n: u32,
        mut to: SectorsMut<'a>,
    ) -> Started<'a> {
        if !self.costs.sections_are_free || self.costs.front_read != Ns::ZERO {
            return Started::later(self.read_at_a_cost(cx, lba, n, to));
        }
        add(&self.counters.host_read, n as u64);
        let operation = self.epochs.begin(cx);
        let pieces = match self.map.is_exclusive() {
            true => self.map.lock.enter(|_| self.look_up_and_submit(cx, lba, n, &mut to)),
            false => self.look_up_among_others(cx, lba, n, &mut to),
        };
        if pieces.is_empty() {
            self.epochs.end(cx, operation);
            return Started::Done(Ok(()));
        }
        Started::later(self.finish_read(cx, lba, pieces, operation))
    }

    /// The same, on the core's time.
    async fn read_at_a_cost(
        &self,
        cx: &Cx,
        lba: u64,
        n: u32,
        mut to: SectorsMut<'_>,
    ) -> BlockResult {
        cx.cpu(self.costs.front_read).await;
        add(&self.counters.host_read, n as u64);
        let cost = self.costs.map_lookup.times(n as u64);
        let operation = self.epochs.begin(cx);
        let submit = |_: &mut ()| self.look_up_and_submit(cx, lba, n, &mut to);
        let pieces = match self.map.is_exclusive() {
            true => self.map.lock.with(cx, cost, submit).await,
            false => {
                cx.cpu(cost).await;
                self.look_up_among_others(cx, lba, n, &mut to)
            }
        };
        self.finish_read(cx, lba, pieces, operation).await
    }

    /// What was looked up is true until the end of a section.
    fn look_up_among_others(&self, cx: &Cx, lba: u64, n: u32, to: &mut SectorsMut<'_>) -> Pieces {
        let _inside = (!mutant!("qblk.read-outside")).then(|| self.sections.enter(cx));
        self.look_up_and_submit(cx, lba, n, to)
    }

    /// Waits for what was submitted. From the lookup to here, an operation, nobody may erase what was
    /// looked up.
    async fn finish_read(
        &self,
        cx: &Cx,
        lba: u64,
        pieces: Pieces,
        operation: Operation,
    ) -> BlockResult {
        let mut lost = Vec::new();
        for piece in pieces {
            let mut failed = piece.poisoned;
            if let Some(ticket) = piece.ticket {
                let done = self.flash.device.wait(cx, ticket).await;
                self.note_read(cx, lba + piece.first as u64, piece.media, &done);
                failed |= failed_sectors(piece.media, piece.foreign, &done);
            }
            if failed != 0 {
                let first = lba + piece.first as u64;
                lost.extend((0..64).filter(|i| failed >> i & 1 != 0).map(|i| Lba::new(first + i)));
            }
        }
        self.epochs.end(cx, operation);
        if lost.is_empty() {
            return Ok(());
        }
        lost.sort_unstable();
        add(&self.counters.read_failures, lost.len() as u64);
        Err(BlockError::Uncorrectable(lost))
    }

    /// Fills what the buffer and the map can answer and submits vector reads for the rest, all in
    /// one section: an address is used while it is true.
    fn look_up_and_submit(&self, cx: &Cx, lba: u64, n: u32, to: &mut SectorsMut<'_>) -> Pieces {
        if n == 1 {
            return self.submit_piece::<1>(cx, lba, 0, 1, to).into_iter().collect();
        }
        let pieces = (0..n).step_by(VECTOR_MAX).filter_map(|first| {
            match (n - first).min(VECTOR_MAX as u32) {
                count @ 0..=8 => self.submit_piece::<8>(cx, lba, first, count, to),
                count => self.submit_piece::<VECTOR_MAX>(cx, lba, first, count, to),
            }
        });
        pieces.collect()
    }

    /// `count` sectors, `N` at most: the lists of a vector take as long to clear as the rest of a short
    /// read.
    #[inline]
    fn submit_piece<const N: usize>(
        &self,
        cx: &Cx,
        lba: u64,
        first: u32,
        count: u32,
        to: &mut SectorsMut<'_>,
    ) -> Option<Piece> {
        let unit = self.info.content_bytes;
        let mut addrs = [Ppa(0); N];
        let mut index = [0u32; N];
        let (mut media, mut poisoned, mut k) = (0u64, 0u64, 0);
        for i in 0..count {
            let room = to.sector(first + i, unit);
            match self.map.get(lba + (first + i) as u64) {
                Entry::Media(addr) => {
                    let (chunk, sector) = self.lines.chunk_of(addr);
                    addrs[k] =
                        self.flash.format.in_chunk(self.flash.chunk_base[chunk as usize], sector);
                    index[k] = first + i;
                    media |= 1 << i;
                    k += 1;
                }
                Entry::Slot(slot) => {
                    self.slab.read(slot, room);
                    add(&self.counters.read_from_buffer, 1);
                }
                Entry::Unmapped => {
                    room.fill(0);
                    add(&self.counters.read_unmapped, 1);
                }
                Entry::Poisoned => {
                    room.fill(0);
                    poisoned |= u64::from(!mutant!("log.poison-reads")) << i;
                }
            }
        }
        if k == 0 {
            let nothing = Piece { ticket: None, first, media: 0, foreign: 0, poisoned };
            return (poisoned != 0).then_some(nothing);
        }
        hesitate();
        let mut oob = [[0u8; OOB_BYTES]; N];
        let content = to.scatter(&index[..k], unit);
        let request = Request {
            op: Op::Read,
            flags: Flags::READ,
            addrs: &addrs[..k],
            data: Data::Read { content, oob: &mut oob[..k] },
            whole_sectors: false,
        };
        let ticket = self.flash.device.submit(cx, request);
        // Content is there since the submission; whether the medium vouches for it comes later.
        let mut foreign = 0;
        for i in 0..k {
            let content = to.sector(index[i], unit);
            let (found, _, _) = Oob::decode_raw(&oob[i]);
            let is_its = found == lba + index[i] as u64 || mutant!("log.read-ignores-lba");
            let good = is_its
                && (whole_sectors(&oob[i..=i], content, unit) == 1
                    || mutant!("log.read-crc-skipped"));
            foreign |= (!good as u64) << i;
        }
        Some(Piece { ticket: Some(ticket), first, media, foreign, poisoned })
    }

    fn note_read(&self, cx: &Cx, lba: u64, sectors: u64, done: &Completion) {
        let heavy = done.status.iter().filter(|s| **s == Status::HighEcc).count();
        if heavy > 0 {
            add(&self.counters.high_ecc, heavy as u64);
        }
        if done.failed != 0 {
            self.note_host_read(cx, lba, sectors, done);
        }
        *self.counters.read_breakdown.lock() += done.breakdown;
    }
}

/// Which of up to 64 sectors are what their out-of-band records say, whichever way the store keeps
/// content: 4096 bytes a sector, or 8 (`stamps`).
#[inline]
pub(in crate::log) fn whole_sectors(oob: &[[u8; OOB_BYTES]], content: &[u8], unit: usize) -> u64 {
    if unit == 8 {
        return Oob::verify_words(oob, content);
    }
    let sectors = oob.iter().zip(content.chunks_exact(unit)).enumerate();
    sectors.fold(0, |whole, (i, (oob, content))| whole | (Oob::verify(oob, content) as u64) << i)
}

/// Sectors of a piece that the device could not read, or read as something else. Address `k` of the
/// vector is the `k`-th sector of `media`.
fn failed_sectors(media: u64, foreign: u64, done: &Completion) -> u64 {
    if done.failed == 0 && foreign == 0 {
        return 0;
    }
    let sectors = (0..64).filter(|i| media >> i & 1 != 0).enumerate();
    let bad = sectors.filter(|(k, _)| foreign >> k & 1 != 0 || !done.status(*k).is_ok());
    bad.fold(0, |mask, (_, i)| mask | 1 << i)
}
