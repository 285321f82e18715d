//! What the sectors below hold, by what they are to the file systems that are followed.
//!
//! Owns: the count over all file systems, the cache that a census reads through. Promises: what the shadow knows is
//! counted without a read; a census reads what it asks for, until nothing is missing. Never: writes.

use crate::layer::Idiscard;
use flashlane_base::{Lba, Runs};
use flashlane_ext4::{Holds, Pages, SECTOR, Superblock, Volume};
use flashlane_ftl::layer::Counted;
use flashlane_rt::Cx;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;

/// Sectors that a census may read, 256 MiB: of a file system with more metadata the shadow's count stands.
const READ_MAX: usize = 1 << 16;
/// Times that it begins anew: once per level of what leads to a block, and the deepest trees have five.
const PASSES_MAX: usize = 16;

/// The name under which sectors of a kind are counted.
fn name(kind: Holds) -> &'static str {
    match kind {
        Holds::Superblock => "superblock_sectors",
        Holds::Bitmap => "bitmap_sectors",
        Holds::ZeroBitmap => "zero_bitmap_sectors",
        Holds::Inodes => "inodes_sectors",
        Holds::DeadInodes => "dead_inodes_sectors",
        Holds::ZeroInodes => "zero_inodes_sectors",
        Holds::Journal => "journal_sectors",
        Holds::DeadJournal => "dead_journal_sectors",
        Holds::Directory => "directory_sectors",
        Holds::Tree => "tree_sectors",
        Holds::Data => "data_sectors",
        Holds::Files => "files_sectors",
        Holds::Unknown => "unknown_sectors",
        Holds::Freed => "freed_sectors",
    }
}

/// In sectors, with all that is held, and all of it that nobody needs.
fn counted(pages: &Pages, all: u64) -> Vec<Counted> {
    let sectors = |bytes: u64| bytes.div_ceil(SECTOR as u64);
    let each = pages.iter().map(|(kind, share)| (name(kind), sectors(share.held)));
    let known = pages.all().held;
    let outside = all.saturating_sub(sectors(known));
    let sums = [
        ("outside_sectors", outside),
        ("ghost_sectors", sectors(pages.ghosts().held)),
        ("held_sectors", all),
    ];
    each.chain(sums).map(|(name, value)| Counted { name, value }).collect()
}

/// Bytes of these that are held, of a file system that begins at sector `first`.
fn held_of(held: &Runs, first: u64, bytes: Range<u64>) -> u64 {
    let unit = SECTOR as u64;
    let (start, end) = (bytes.start + first * unit, bytes.end + first * unit);
    let runs = held.meeting(start / unit..end.div_ceil(unit));
    runs.map(|run| (run.end * unit).min(end) - (run.start * unit).max(start)).sum()
}

/// What was read of a file system, and what is to be read.
#[derive(Default)]
struct Cache {
    first: u64,
    bytes: u64,
    sectors: BTreeMap<u64, Vec<u8>>,
    missing: RefCell<BTreeSet<u64>>,
}

impl Volume for Cache {
    fn read_at(&self, at: u64, buf: &mut [u8]) -> io::Result<()> {
        let end = at + buf.len() as u64;
        let (mut done, mut all) = (0, true);
        for sector in at / SECTOR as u64..end.div_ceil(SECTOR as u64) {
            let Some(bytes) = self.sectors.get(&sector) else {
                self.missing.borrow_mut().insert(sector);
                all = false;
                continue;
            };
            let from = (at.max(sector * SECTOR as u64) - sector * SECTOR as u64) as usize;
            let n = (SECTOR - from).min(buf.len() - done);
            buf[done..done + n].copy_from_slice(&bytes[from..from + n]);
            done += n;
        }
        all.then_some(()).ok_or_else(|| io::ErrorKind::WouldBlock.into())
    }

    fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Idiscard {
    /// Sectors that the drive holds: one look at each.
    fn held(&self) -> Runs {
        let (mut at, end) = (0, self.below().info().capacity);
        let mut held = Runs::default();
        while at < end {
            let extent = self.below().extent(Lba::new(at), end - at);
            let to = at + extent.sectors.clamp(1, end - at);
            if extent.holds {
                held.insert(at..to);
            }
            at = to;
        }
        held
    }

    /// By what writes have said; nothing where no file system is followed.
    pub(crate) fn count_pages(&self) -> Vec<Counted> {
        if self.followed().is_empty() {
            return Vec::new();
        }
        let (mut pages, held) = (Pages::default(), self.held());
        self.each_shadow(|first, shadow| {
            pages.append(&shadow.pages(&mut |bytes| held_of(&held, first, bytes)));
        });
        counted(&pages, held.sum())
    }

    /// By what lies there, which nobody changes meanwhile.
    pub(crate) async fn read_pages(&self, cx: &Cx) -> Vec<Counted> {
        let volumes = self.followed();
        if volumes.is_empty() {
            return Vec::new();
        }
        let (mut pages, held) = (Pages::default(), self.held());
        for (sectors, sb) in &volumes {
            let Some((of, _)) = self.census(cx, sectors, sb, &held).await else {
                return self.count_pages();
            };
            pages.append(&of);
        }
        counted(&pages, held.sum())
    }

    /// Sectors that say what the file systems hold, as they lie there now.
    pub(crate) async fn census_reads(&self, cx: &Cx) -> Vec<u64> {
        let mut all = Vec::new();
        for (sectors, sb) in self.followed() {
            let census = self.census(cx, &sectors, &sb, &Runs::default()).await;
            all.extend(census.into_iter().flat_map(|(_, read)| read));
        }
        all
    }

    /// Which file systems are followed, and in which sectors they lie.
    fn followed(&self) -> Vec<(Range<u64>, Superblock)> {
        let mut all = Vec::new();
        self.each_shadow(|first, shadow| {
            let sb = shadow.superblock().clone();
            all.push((first..first + sb.bytes().div_ceil(SECTOR as u64), sb));
        });
        all
    }

    /// What a file system holds, and the sectors that were read for it; `None` where there would be too many.
    async fn census(
        &self,
        cx: &Cx,
        sectors: &Range<u64>,
        sb: &Superblock,
        held: &Runs,
    ) -> Option<(Pages, Vec<u64>)> {
        let first = sectors.start;
        let bytes = (sectors.end - first) * SECTOR as u64;
        let mut cache = Cache { first, bytes, ..Cache::default() };
        for _ in 0..PASSES_MAX {
            let pages = Pages::count(&cache, sb, &mut |bytes| held_of(held, first, bytes));
            let missing = std::mem::take(&mut *cache.missing.borrow_mut());
            if missing.is_empty() {
                let read = cache.sectors.into_keys().map(|sector| first + sector);
                return Some((pages, read.collect()));
            }
            if cache.sectors.len() + missing.len() > READ_MAX {
                return None;
            }
            for sector in missing {
                // What can't be read is zeros, of which nothing is made.
                let at = cache.first + sector;
                let bytes = self.read(cx, at..at + 1).await.unwrap_or_else(|_| vec![0; SECTOR]);
                cache.sectors.insert(sector, bytes);
            }
        }
        None
    }
}
