//! Pages of stamps: which version of each logical sector was flushed last.
//!
//! Owns: the stamps of the versions that the device has accepted, and the bytes of the pages that
//! say so. Promises: a page that a flush has written names, for each of its sectors, the version
//! that counted when the flush began. So a mount that has lost a die knows of each copy that it can
//! read whether it is the flushed version, a younger one, or an older one. Never: decides when a
//! page is programmed (`sync.rs`), or what is lost (`recover/older.rs`).
//!
//! Each page is on the medium twice, on two PUs. Garbage collection moves sectors without their
//! pages of stamps: a copy keeps its stamp. A device has such pages from its creation on, or never
//! ([`super::DriveConfig::flush_records`]). So if a page is nowhere, no flush has covered any of
//! its sectors.
//!
//! After a mount from a snapshot the stamps are still on the medium. A barrier reads a page back
//! before it writes that page for the first time ([`Stamps::unread`]).

use super::pages::{HEADER, PAGE_BYTES};

/// Logical sectors that a page of stamps speaks of, with 64 bits each.
pub(super) const STAMP_SPAN: u32 = ((PAGE_BYTES - HEADER) / 8) as u32;

/// The stamp of a sector of which the page can't say which version counts.
pub(super) const UNKNOWN: u64 = u64::MAX;

/// One page.
#[derive(Default)]
struct Page {
    /// Per sector, the stamp of the version that counts: 0 if it reads as zeros, [`UNKNOWN`] if it
    /// is not known or not yet read from the medium. `None`: all 0, or if `unread` all `UNKNOWN`.
    stamps: Option<Box<[u64]>>,
    /// The copies that a snapshot has named, as long as none was read. They stay on the medium
    /// until a barrier has written the page.
    unread: Vec<u32>,
    /// A stamp has changed since the page was made last.
    behind: bool,
    /// Physical sector of its second copy.
    second: Option<u32>,
    /// Copies of the version before, which count until both copies of this one are programmed.
    before: Vec<u32>,
    /// Stamp at which its newest copy is true, as a mount has found it.
    true_at: Option<u64>,
}

/// The pages of stamps of a device; none, where flushes leave no records.
pub(super) struct Stamps {
    /// Logical sectors that they speak of.
    sectors: u32,
    pages: Vec<Page>,
    behind: u32,
}

impl Stamps {
    /// For so many logical sectors, all of which read as zeros.
    pub(super) fn new(sectors: u32) -> Stamps {
        let pages = (0..sectors.div_ceil(STAMP_SPAN)).map(|_| Page::default()).collect();
        Stamps { sectors, pages, behind: 0 }
    }

    pub(super) fn sectors(&self) -> u32 {
        self.sectors
    }

    pub(super) fn count(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Pages of which a stamp has changed since they were made.
    pub(super) fn behind(&self) -> u32 {
        self.behind
    }

    pub(super) fn is_behind(&self, page: u32) -> bool {
        self.pages[page as usize].behind
    }

    /// The version of this sector that counts from now on has this stamp; 0: it reads as zeros.
    #[inline]
    pub(super) fn set(&mut self, lba: u32, stamp: u64) {
        let Some(page) = self.pages.get_mut((lba / STAMP_SPAN) as usize) else {
            return;
        };
        let unread = !page.unread.is_empty();
        let stamps = page.stamps.get_or_insert_with(|| blank(unread));
        stamps[(lba % STAMP_SPAN) as usize] = stamp;
        self.behind += u32::from(!std::mem::replace(&mut page.behind, true));
    }

    /// The stamp that the page has for this sector.
    pub(super) fn get(&self, lba: u32) -> u64 {
        let page = &self.pages[(lba / STAMP_SPAN) as usize];
        let stamps = page.stamps.as_ref();
        stamps.map_or(if page.unread.is_empty() { 0 } else { UNKNOWN }, |s| {
            s[(lba % STAMP_SPAN) as usize]
        })
    }

    /// Stamp of the newest copy of this sector's page that was read from the medium; `None`: none.
    pub(super) fn true_at(&self, lba: u32) -> Option<u64> {
        self.pages[(lba / STAMP_SPAN) as usize].true_at
    }

    /// The page is made, and will be programmed.
    pub(super) fn made(&mut self, page: u32) {
        self.behind -= u32::from(std::mem::take(&mut self.pages[page as usize].behind));
    }

    /// Physical sector of the second copy of a page.
    pub(super) fn second(&self, page: u32) -> Option<u32> {
        self.pages[page as usize].second
    }

    pub(super) fn set_second(&mut self, page: u32, at: Option<u32>) -> Option<u32> {
        std::mem::replace(&mut self.pages[page as usize].second, at)
    }

    /// A mount has found these copies of the page, and has not read them.
    pub(super) fn leave_unread(&mut self, page: u32, copies: Vec<u32>) {
        self.pages[page as usize].unread = copies;
    }

    /// The copies of a page that nobody has read.
    pub(super) fn unread(&self, page: u32) -> &[u32] {
        &self.pages[page as usize].unread
    }

    /// Copies of the version of a page before the newest one, which count still.
    pub(super) fn before(&self, page: u32) -> &[u32] {
        &self.pages[page as usize].before
    }

    pub(super) fn before_mut(&mut self, page: u32) -> &mut Vec<u32> {
        &mut self.pages[page as usize].before
    }

    /// No copy of this page can be read: its stamps are unknown, but for those that this life has
    /// set.
    pub(super) fn give_up(&mut self, page: u32) {
        let page = &mut self.pages[page as usize];
        page.stamps.get_or_insert_with(|| blank(true));
        page.unread.clear();
        self.behind += u32::from(!std::mem::replace(&mut page.behind, true));
    }

    /// The first logical sector that a page speaks of.
    pub(super) fn first(page: u32) -> u32 {
        page * STAMP_SPAN
    }

    /// Writes the stamps of this page to `out`, the 4,032 bytes after its header.
    pub(super) fn write(&self, page: u32, out: &mut [u8]) {
        let page = &self.pages[page as usize];
        let nothing = if page.unread.is_empty() { 0 } else { UNKNOWN };
        for (i, to) in out.chunks_exact_mut(8).enumerate() {
            let stamp = page.stamps.as_ref().map_or(nothing, |stamps| stamps[i]);
            to.copy_from_slice(&stamp.to_le_bytes());
        }
    }

    /// Takes in a page of the medium, true at `stamp`; what has changed since stays.
    pub(super) fn read(&mut self, page: u32, stamp: u64, bytes: &[u8]) {
        let page = &mut self.pages[page as usize];
        page.unread.clear();
        page.true_at = Some(stamp);
        let stamps = page.stamps.get_or_insert_with(|| blank(true));
        let found =
            bytes.chunks_exact(8).filter_map(|b| Some(u64::from_le_bytes(*b.first_chunk()?)));
        let left = stamps.iter_mut().zip(found).filter(|(to, _)| **to == UNKNOWN);
        left.for_each(|(to, found)| *to = found);
    }
}

fn blank(unknown: bool) -> Box<[u64]> {
    vec![if unknown { UNKNOWN } else { 0 }; STAMP_SPAN as usize].into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A page that was not read takes from the medium what has not changed since.
    #[test]
    fn a_page_keeps_what_changed_before_it_was_read() {
        let mut old = Stamps::new(2 * STAMP_SPAN);
        old.set(0, 5);
        old.set(1, 6);
        let mut bytes = vec![0xaa; PAGE_BYTES - HEADER];
        old.write(0, &mut bytes);
        let mut new = Stamps::new(2 * STAMP_SPAN);
        new.leave_unread(0, vec![40, 50]);
        assert_eq!((new.get(1), new.get(STAMP_SPAN)), (UNKNOWN, 0));
        new.set(1, 9);
        assert_eq!((new.behind(), !new.unread(0).is_empty(), new.is_behind(0)), (1, true, true));
        new.read(0, 7, &bytes);
        assert!(new.unread(0).is_empty());
        assert_eq!((new.get(0), new.get(1), new.get(2)), (5, 9, 0));
        assert_eq!((new.true_at(2), new.true_at(STAMP_SPAN)), (Some(7), None));
        new.made(0);
        assert_eq!((new.behind(), new.is_behind(0)), (0, false));
        new.leave_unread(1, vec![60]);
        new.give_up(1);
        assert_eq!((new.get(STAMP_SPAN), !new.unread(1).is_empty()), (UNKNOWN, false));
    }
}
