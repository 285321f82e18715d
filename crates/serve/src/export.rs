//! What is exported: a block device in bytes.
//!
//! Owns: bytes against sectors, what is too long for one request below, zeros, what a failure is called.
//! Promises: a request lies inside the device, or is refused before anything is done; one that begins or
//! ends within a sector of 4096 bytes changes nothing beside it, whoever else changes the rest of that
//! sector meanwhile; a discarded and a zeroed range read as zeros; a flush covers what was acknowledged
//! before it, to whichever client, on whichever core. Never: keeps a request.

use crate::ranges::Ranges;
use flashlane_base::{Lba, SECTOR_BYTES, mutant};
use flashlane_ftl::block::{
    BlockDev, BlockError, BlockOp, BlockResult, Extent, Hint, Io, Payload, Sectors,
};
use flashlane_rt::Cx;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Longest read or write of one request below; a longer one goes in pieces.
const PIECE_SECTORS: usize = (16 << 20) / SECTOR_BYTES;
/// Bytes of zeros that are written before anybody asks whether they are still wanted.
const ZEROS_AT_ONCE: u64 = 32 << 20;
/// Sectors of a discard below at most.
const DISCARD_SECTORS: u64 = 1 << 20;
/// Zeros that are written again and again.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
/// A sector, in bytes as offsets are.
const SECTOR: u64 = SECTOR_BYTES as u64;

/// Why a request failed, for a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    #[error("not a multiple of {0} bytes")]
    Unaligned(u32),
    #[error("beyond the end of the device")]
    Beyond,
    #[error("{0}")]
    Device(BlockError),
}

/// The sizes of a sector that clients may be told: that of the device, and what old programs expect.
pub const SECTOR_SIZES: [u32; 2] = [SECTOR_BYTES as u32, 512];

/// A device that clients may use.
pub struct Export {
    /// By which clients ask for it.
    pub name: String,
    device: Arc<dyn BlockDev>,
    /// What clients are told of sectors.
    sector_bytes: u32,
    /// Clients may change nothing.
    is_read_only: bool,
    changing: Arc<Ranges>,
}

/// Bytes of a request, and the sectors that they lie in.
struct Span {
    bytes: Range<u64>,
    sectors: Range<u64>,
}

impl Span {
    fn of(offset: u64, bytes: u64) -> Span {
        let bytes = offset..offset + bytes;
        let sectors = bytes.start / SECTOR..bytes.end.div_ceil(SECTOR);
        Span { bytes, sectors }
    }

    /// It begins and ends where sectors do.
    fn is_whole(&self) -> bool {
        self.bytes.start.is_multiple_of(SECTOR) && self.bytes.end.is_multiple_of(SECTOR)
    }

    /// The sectors that it has all of.
    fn inner(&self) -> Range<u64> {
        let (start, end) = (self.bytes.start.div_ceil(SECTOR), self.bytes.end / SECTOR);
        start..end.max(start)
    }

    /// The sectors at its ends that it has a part of, and which bytes of them.
    fn edges(&self) -> impl Iterator<Item = (u64, Range<usize>)> {
        let Span { bytes: Range { start, end }, sectors } = self;
        let part = |sector: u64| {
            let of = sector * SECTOR;
            let from = start.saturating_sub(of) as usize;
            (sector, from..(end - of).min(SECTOR) as usize)
        };
        let (first, last) = (part(sectors.start), part(sectors.end.saturating_sub(1)));
        let is_second = last.0 != first.0;
        [Some(first), is_second.then_some(last)]
            .into_iter()
            .flatten()
            .filter(|(_, part)| !part.is_empty() && part.len() < SECTOR_BYTES)
    }

    /// Where its bytes begin in its first sector.
    fn cut(&self) -> usize {
        (self.bytes.start % SECTOR) as usize
    }
}

impl Export {
    /// # Panics
    /// The device keeps stamps in place of contents.
    pub fn new(name: &str, device: Arc<dyn BlockDev>) -> Export {
        assert_eq!(device.info().content_bytes, SECTOR_BYTES, "clients want their contents back");
        let (sector_bytes, changing) = (SECTOR_BYTES as u32, Arc::default());
        Export { name: name.into(), device, sector_bytes, is_read_only: false, changing }
    }

    /// The same device by another way, for another door: who changes a part of a sector here has it alone
    /// there, too.
    pub fn through(&self, device: Arc<dyn BlockDev>) -> Export {
        let name = self.name.clone();
        let changing = match mutant!("serve.doors-apart") {
            true => Arc::default(),
            false => self.changing.clone(),
        };
        Export { name, device, changing, ..*self }
    }

    /// Clients that speak in sectors are told of another size: one of [`SECTOR_SIZES`].
    pub fn with_sectors_of(self, sector_bytes: u32) -> Export {
        assert!(SECTOR_SIZES.contains(&sector_bytes), "{sector_bytes} bytes are no sector");
        Export { sector_bytes, ..self }
    }

    /// Clients may change nothing, where `only`.
    pub fn read_only(self, only: bool) -> Export {
        Export { is_read_only: only, ..self }
    }

    pub fn is_read_only(&self) -> bool {
        self.is_read_only && !mutant!("serve.read-only-written")
    }

    pub fn sector_bytes(&self) -> u32 {
        self.sector_bytes
    }

    pub fn bytes(&self) -> u64 {
        self.device.info().capacity * SECTOR
    }

    /// # Errors
    /// The range is no whole sectors, as clients are told of them, of this device.
    pub(crate) fn check(&self, offset: u64, bytes: u64) -> Result<(), Failure> {
        let sector = u64::from(self.sector_bytes);
        if !offset.is_multiple_of(sector) || !bytes.is_multiple_of(sector) {
            return Err(Failure::Unaligned(self.sector_bytes));
        }
        let end = offset.checked_add(bytes).filter(|end| *end <= self.bytes());
        end.map(|_| ()).ok_or(Failure::Beyond)
    }

    /// Reads from `offset` on.
    pub(crate) async fn read(&self, cx: &Cx, offset: u64, to: &mut [u8]) -> BlockResult {
        let span = Span::of(offset, to.len() as u64);
        if span.is_whole() {
            return self.read_sectors(cx, span.sectors.start, to).await;
        }
        let mut whole = vec![0; (span.sectors.end - span.sectors.start) as usize * SECTOR_BYTES];
        self.read_sectors(cx, span.sectors.start, &mut whole).await?;
        to.copy_from_slice(&whole[span.cut()..][..to.len()]);
        Ok(())
    }

    async fn read_sectors(&self, cx: &Cx, lba: u64, to: &mut [u8]) -> BlockResult {
        for (lba, piece) in pieces(lba).zip(to.chunks_mut(PIECE_SECTORS * SECTOR_BYTES)) {
            let sectors = (piece.len() / SECTOR_BYTES) as u32;
            self.device.start(cx, Io::read(lba, sectors, piece)).await?;
        }
        Ok(())
    }

    /// Writes from `offset` on; with `fua` it is durable at the end.
    pub(crate) async fn write(&self, cx: &Cx, offset: u64, from: &[u8], fua: bool) -> BlockResult {
        let span = Span::of(offset, from.len() as u64);
        let _held = self.changing.take(cx, span.sectors.clone(), !span.is_whole()).await;
        if span.is_whole() {
            return self.write_sectors(cx, span.sectors.start, from, fua).await;
        }
        let first = span.sectors.start;
        let mut whole = vec![0; (span.sectors.end - first) as usize * SECTOR_BYTES];
        for (sector, _) in span.edges() {
            let at = (sector - first) as usize * SECTOR_BYTES;
            self.read_sectors(cx, sector, &mut whole[at..at + SECTOR_BYTES]).await?;
        }
        whole[span.cut()..][..from.len()].copy_from_slice(from);
        self.write_sectors(cx, first, &whole, fua).await
    }

    async fn write_sectors(&self, cx: &Cx, lba: u64, from: &[u8], fua: bool) -> BlockResult {
        let fua = fua && !mutant!("serve.fua-ignored");
        let count = from.len().div_ceil(PIECE_SECTORS * SECTOR_BYTES);
        let all = pieces(lba).zip(from.chunks(PIECE_SECTORS * SECTOR_BYTES));
        for (n, (lba, piece)) in all.enumerate() {
            let sectors = (piece.len() / SECTOR_BYTES) as u32;
            let fua = fua && (n + 1 == count || !mutant!("serve.fua-of-the-last-piece"));
            self.device.start(cx, Io::write(lba, sectors, fua, piece)).await?;
        }
        Ok(())
    }

    /// The content of these bytes is not needed any more; they read as zeros.
    pub(crate) async fn discard(&self, cx: &Cx, offset: u64, bytes: u64) -> BlockResult {
        if mutant!("serve.discard-kept") {
            return Ok(());
        }
        let span = Span::of(offset, bytes);
        let _held = self.changing.take(cx, span.sectors.clone(), !span.is_whole()).await;
        self.clear_edges(cx, &span).await?;
        let Range { start: mut lba, end } = span.inner();
        while lba < end {
            let sectors = (end - lba).min(DISCARD_SECTORS);
            self.device.start(cx, Io::discard(Lba::new(lba), sectors as u32)).await?;
            lba += sectors;
        }
        Ok(())
    }

    /// These bytes read as zeros, and have a place on the medium.
    pub(crate) async fn write_zeros(&self, cx: &Cx, offset: u64, bytes: u64) -> BlockResult {
        let span = Span::of(offset, bytes);
        let _held = self.changing.take(cx, span.sectors.clone(), !span.is_whole()).await;
        self.clear_edges(cx, &span).await?;
        let Range { start: mut lba, end } = span.inner();
        let each = ZEROS.len() / SECTOR_BYTES;
        let all = [IoSlice::new(&ZEROS); PIECE_SECTORS * SECTOR_BYTES / ZEROS.len()];
        while lba < end {
            // Whole pieces of zeros as long as there are, and then what is left of one.
            let left = (end - lba) as usize;
            let payload = match (left / each).min(all.len()) {
                0 => Sectors::One(&ZEROS[..left * SECTOR_BYTES]),
                n => Sectors::Many(&all[..n]),
            };
            let sectors = if left < each { left } else { (left / each).min(all.len()) * each };
            let (op, hint, payload) = (BlockOp::Write, Hint::default(), Payload::Write(payload));
            let at = Lba::new(lba);
            let io = Io { op, lba: at, sectors: sectors as u32, fua: false, hint, payload };
            self.device.start(cx, io).await?;
            lba += sectors as u64;
        }
        Ok(())
    }

    /// What a request has of the sectors at its ends reads as zeros. It has them alone.
    async fn clear_edges(&self, cx: &Cx, span: &Span) -> BlockResult {
        for (sector, part) in span.edges() {
            if mutant!("serve.edges-kept") {
                continue;
            }
            let mut whole = vec![0; SECTOR_BYTES];
            self.read_sectors(cx, sector, &mut whole).await?;
            whole[part].fill(0);
            self.write_sectors(cx, sector, &whole, false).await?;
        }
        Ok(())
    }

    /// How many of `most` sectors from `lba` on are alike, and whether they hold anything.
    pub(crate) fn extent(&self, lba: u64, most: u64) -> Extent {
        self.device.extent(Lba::new(lba), most)
    }

    /// Everything acknowledged so far becomes durable.
    pub(crate) async fn flush(&self, cx: &Cx) -> BlockResult {
        if mutant!("serve.flush-at-once") {
            return Ok(());
        }
        self.device.start(cx, Io::flush()).await
    }
}

/// Zeros may be as long as the device. In pieces whoever asked for them may have been heard of meanwhile.
pub(crate) fn zero_pieces(offset: u64, bytes: u64) -> impl Iterator<Item = Range<u64>> {
    let (mut at, end) = (offset, offset + bytes);
    std::iter::from_fn(move || {
        let from = at;
        at = ((from / ZEROS_AT_ONCE + 1) * ZEROS_AT_ONCE).min(end);
        (from < end).then_some(from..at)
    })
}

/// Where pieces begin.
fn pieces(lba: u64) -> impl Iterator<Item = Lba> {
    (lba..).step_by(PIECE_SECTORS).map(Lba::new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noting::Noting;
    use flashlane_base::{Ns, Rng};
    use flashlane_rt::{CostTable, Virtual};
    use flashlane_testkit::Ram;
    use std::cell::RefCell;
    use std::rc::Rc;

    const SECTORS: u64 = 16;

    fn export(seed: u64) -> Export {
        Export::new("ram", Arc::new(Ram::new(SECTORS, SECTOR_BYTES, Ns::from_us(50), seed)))
    }

    #[test]
    fn a_request_lies_in_sectors_and_has_parts_of_some() {
        let look = |offset, bytes| {
            let span = Span::of(offset, bytes);
            (span.sectors.clone(), span.inner(), span.edges().collect::<Vec<_>>())
        };
        assert_eq!(look(4096, 8192), (1..3, 1..3, vec![]));
        assert_eq!(look(512, 512), (0..1, 1..1, vec![(0, 512..1024)]));
        assert_eq!(look(4000, 200), (0..2, 1..1, vec![(0, 4000..4096), (1, 0..104)]));
        assert_eq!(look(4095, 4098), (0..3, 1..2, vec![(0, 4095..4096), (2, 0..1)]));
        assert_eq!(look(8192, 4097), (2..4, 2..3, vec![(3, 0..1)]));
        assert_eq!(look(4097, 4095), (1..2, 2..2, vec![(1, 1..4096)]));
        assert_eq!(look(0, 0).2, vec![]);
        assert_eq!(look(100, 0).2, vec![]);
        let pieces: Vec<_> = zero_pieces(ZEROS_AT_ONCE - 512, ZEROS_AT_ONCE + 1024).collect();
        let [first, second] = [ZEROS_AT_ONCE, 2 * ZEROS_AT_ONCE];
        assert_eq!(pieces, [first - 512..first, first..second, second..second + 512]);
        assert_eq!(zero_pieces(5, 0).next(), None);
    }

    #[test]
    fn requests_are_whole_sectors_as_clients_are_told_of_them() {
        let big = export(1);
        let end = big.bytes();
        assert_eq!(big.check(512, 4096), Err(Failure::Unaligned(4096)));
        assert_eq!((big.check(end - 4096, 4096), big.check(end, 0)), (Ok(()), Ok(())));
        assert_eq!(big.check(end, 4096), Err(Failure::Beyond));
        assert_eq!(big.check(u64::MAX - 4095, 4096), Err(Failure::Beyond));
        let small = big.with_sectors_of(512);
        assert_eq!((small.check(512, 1024), small.check(end - 512, 512)), (Ok(()), Ok(())));
        assert_eq!(small.check(100, 512), Err(Failure::Unaligned(512)));
        assert_eq!(small.check(end - 512, 1024), Err(Failure::Beyond));
    }

    /// A long write goes below in pieces, each of which is durable by itself.
    #[test]
    fn every_piece_of_a_write_is_as_durable_as_the_write() {
        let long = 2 * PIECE_SECTORS + 3;
        let disk = Noting::new(long as u64 + 1);
        let virt = Virtual::new(1, 1, CostTable::zero());
        let (cx, noting) = (virt.cx(), disk.clone());
        let main = async move {
            let export = Export::new("noting", noting.clone());
            for fua in [true, false] {
                for (offset, bytes) in [(0, long * SECTOR_BYTES), (512, 4096), (0, 100)] {
                    let data = vec![1; bytes];
                    export.write(&cx, offset, &data, fua).await.expect("it writes");
                    let notes = noting.notes();
                    let writes: Vec<_> =
                        notes.iter().filter(|note| note.op == BlockOp::Write).collect();
                    assert_eq!(writes.len(), bytes.div_ceil(PIECE_SECTORS * SECTOR_BYTES));
                    assert!(writes.iter().all(|note| note.fua == fua), "{fua}: {writes:?}");
                }
            }
        };
        virt.run(main).expect("it ends");
    }

    /// Many at a time, each on bytes of its own, so that what must come out is known, while sectors are
    /// shared by several of them.
    #[test]
    fn changes_of_parts_of_a_sector_lose_nothing_of_others() {
        const EACH: u64 = 256;
        for seed in 0..40 {
            let export = Rc::new(export(seed).with_sectors_of(512));
            // Half of them come by another door.
            let other = Rc::new(export.through(export.device.clone()));
            let mut rng = Rng::stream(seed, "changes", 0);
            let slots = export.bytes() / EACH;
            let want = Rc::new(RefCell::new(vec![0; export.bytes() as usize]));
            let mut changes = Vec::new();
            let mut slot = rng.below(4);
            while slot < slots {
                // Mostly parts; here and there whole sectors and more.
                let many = if rng.below(4) == 0 { 1 + rng.below(40) } else { 1 + rng.below(8) };
                let many = many.min(slots - slot);
                changes.push((slot * EACH, (many * EACH) as usize, rng.below(5)));
                slot += many + rng.below(3);
            }
            let (theirs, wanted) = (export.clone(), want.clone());
            let virt = Virtual::new(1, seed, CostTable::zero());
            let cx = virt.cx();
            let main = async move {
                // Something is there before.
                let before: Vec<u8> = (0..theirs.bytes()).map(|i| (i / 64) as u8 | 1).collect();
                theirs.write(&cx, 0, &before, false).await.expect("it writes");
                *wanted.borrow_mut() = before;
                let mut tasks = Vec::new();
                for (offset, bytes, what) in changes {
                    let data = vec![(offset / EACH) as u8 | 0x80; bytes];
                    let part = offset as usize..offset as usize + bytes;
                    match what {
                        0 | 1 => wanted.borrow_mut()[part].fill(0),
                        _ => wanted.borrow_mut()[part].copy_from_slice(&data),
                    }
                    let by = if rng.below(2) == 0 { &theirs } else { &other };
                    let (export, theirs) = (by.clone(), cx.clone());
                    tasks.push(cx.spawn_join(async move {
                        let (cx, bytes) = (&theirs, bytes as u64);
                        match what {
                            0 => export.discard(cx, offset, bytes).await,
                            1 => export.write_zeros(cx, offset, bytes).await,
                            _ => export.write(cx, offset, &data, what == 2).await,
                        }
                    }));
                }
                for task in tasks {
                    task.await.expect("it is done");
                }
                let mut after = vec![0; theirs.bytes() as usize];
                theirs.read(&cx, 0, &mut after).await.expect("it reads");
                let wrong = after.iter().zip(&*wanted.borrow()).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "seed {seed}: the first wrong byte");
                let mut part = vec![0; 1000];
                theirs.read(&cx, 777, &mut part).await.expect("it reads");
                assert_eq!(part, after[777..1777]);
            };
            virt.run(main).expect("it ends");
            assert!(export.changing.is_idle(), "seed {seed}: nobody holds a sector");
        }
    }
}
