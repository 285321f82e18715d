//! Contents of files and directories in memory.
//!
//! Owns: pages, which of them are dirty. Promises: a page that is dirty or on its way to the medium
//! stays; a page that was dropped and came again is another one. Never: knows where a page lies.

use crate::format::Nid;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The id and the version of a page ([`Page`]).
pub(crate) type PageIs = (u64, u64);

#[derive(Clone, Debug)]
pub(crate) struct Page {
    pub(crate) content: Arc<Vec<u8>>,
    /// Of this page in memory, and no other one.
    pub(crate) id: u64,
    /// Counts its changes.
    pub(crate) version: u64,
    /// Writes of it under way.
    pub(crate) in_flight: u32,
    pub(crate) touched: u64,
}

/// The dirty pages of a file.
struct Dirty {
    /// When it got the first of them.
    since: u64,
    /// It was one of [`Pages::dirs`] then.
    of_directory: bool,
    pages: BTreeSet<u64>,
}

pub(crate) struct Pages {
    files: BTreeMap<Nid, BTreeMap<u64, Page>>,
    dirty: BTreeMap<Nid, Dirty>,
    /// Files with dirty pages, by the time since when.
    since: BTreeMap<u64, Nid>,
    dirty_count: usize,
    /// Directories of which pages were changed here, and how many of their pages are dirty.
    dirs: BTreeSet<Nid>,
    dirty_entries: usize,
    count: usize,
    clock: u64,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages {
            files: BTreeMap::new(),
            dirty: BTreeMap::new(),
            since: BTreeMap::new(),
            dirty_count: 0,
            dirs: BTreeSet::new(),
            dirty_entries: 0,
            count: 0,
            clock: 0,
        }
    }

    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    pub(crate) fn get(&mut self, ino: Nid, index: u64) -> Option<&Page> {
        let now = self.tick();
        let page = self.files.get_mut(&ino)?.get_mut(&index)?;
        page.touched = now;
        Some(page)
    }

    pub(crate) fn has(&self, ino: Nid, index: u64) -> bool {
        self.files.get(&ino).is_some_and(|pages| pages.contains_key(&index))
    }

    /// A page that has come from the medium, unless it is there already.
    pub(crate) fn bring(&mut self, ino: Nid, index: u64, content: Vec<u8>) {
        if !self.has(ino, index) {
            self.insert(ino, index, content);
        }
    }

    fn insert(&mut self, ino: Nid, index: u64, content: Vec<u8>) {
        let id = self.tick();
        let page = Page { content: Arc::new(content), id, version: 0, in_flight: 0, touched: id };
        self.count += 1;
        self.files.entry(ino).or_default().insert(index, page);
    }

    /// The content of a page that is about to be changed; zeros, `bytes` of them, where it was not
    /// there.
    pub(crate) fn change(&mut self, ino: Nid, index: u64, bytes: usize) -> &mut Vec<u8> {
        if !self.has(ino, index) {
            self.insert(ino, index, vec![0; bytes]);
        }
        self.soil(ino, index);
        let now = self.tick();
        let page = self.files.get_mut(&ino).and_then(|pages| pages.get_mut(&index));
        let page = page.expect("it was put there");
        (page.version, page.touched) = (now, now);
        Arc::make_mut(&mut page.content)
    }

    /// The same of a directory.
    pub(crate) fn change_entries(&mut self, dir: Nid, index: u64, bytes: usize) -> &mut Vec<u8> {
        self.dirs.insert(dir);
        self.change(dir, index, bytes)
    }

    fn soil(&mut self, ino: Nid, index: u64) {
        let now = self.tick();
        let (since, of_directory) = (&mut self.since, self.dirs.contains(&ino));
        let dirty = self.dirty.entry(ino).or_insert_with(|| {
            since.insert(now, ino);
            Dirty { since: now, of_directory, pages: BTreeSet::new() }
        });
        let more = usize::from(dirty.pages.insert(index));
        self.dirty_count += more;
        self.dirty_entries += if dirty.of_directory { more } else { 0 };
    }

    /// The bytes of a page, for its seal. The page stays as clean or dirty as it is.
    pub(crate) fn bytes_mut(&mut self, ino: Nid, index: u64) -> Option<&mut Vec<u8>> {
        let page = self.files.get_mut(&ino)?.get_mut(&index)?;
        Some(Arc::make_mut(&mut page.content))
    }

    /// Its write begins.
    pub(crate) fn begin(&mut self, ino: Nid, index: u64) {
        if let Some(page) = self.files.get_mut(&ino).and_then(|pages| pages.get_mut(&index)) {
            page.in_flight += 1;
        }
    }

    /// The write of a page has ended; with `written` the page that had this number and version is
    /// clean. False where that page is not there any more.
    pub(crate) fn end(
        &mut self,
        ino: Nid,
        index: u64,
        (id, version): (u64, u64),
        written: bool,
    ) -> bool {
        let page = self.files.get_mut(&ino).and_then(|pages| pages.get_mut(&index));
        let Some(page) = page.filter(|page| page.id == id) else { return false };
        page.in_flight -= 1;
        if written && page.version == version {
            self.clean(ino, index);
        }
        true
    }

    /// A page that counted as clean could not be written.
    pub(crate) fn again(&mut self, ino: Nid, index: u64, id: u64) {
        let page = self.files.get(&ino).and_then(|pages| pages.get(&index));
        if page.is_some_and(|page| page.id == id) {
            self.soil(ino, index);
        }
    }

    /// It is on the medium, or on its way there for good.
    pub(crate) fn clean(&mut self, ino: Nid, index: u64) {
        let Some(dirty) = self.dirty.get_mut(&ino) else { return };
        let less = usize::from(dirty.pages.remove(&index));
        self.dirty_count -= less;
        self.dirty_entries -= if dirty.of_directory { less } else { 0 };
        if dirty.pages.is_empty() {
            self.since.remove(&dirty.since);
            self.dirty.remove(&ino);
        }
    }

    /// Forgets a page, dirty or not.
    pub(crate) fn drop_page(&mut self, ino: Nid, index: u64) {
        self.clean(ino, index);
        let Some(pages) = self.files.get_mut(&ino) else { return };
        self.count -= usize::from(pages.remove(&index).is_some());
        if pages.is_empty() {
            self.files.remove(&ino);
            self.dirs.remove(&ino);
        }
    }

    /// Forgets all pages of a file from `from` on.
    pub(crate) fn cut(&mut self, ino: Nid, from: u64) {
        let Some(pages) = self.files.get(&ino) else { return };
        let gone: Vec<u64> = pages.range(from..).map(|(index, _)| *index).collect();
        gone.into_iter().for_each(|index| self.drop_page(ino, index));
    }

    /// Dirty pages of a file in a range.
    pub(crate) fn dirty_of(&self, ino: Nid, range: std::ops::Range<u64>) -> Vec<u64> {
        let dirty = self.dirty.get(&ino).map(|dirty| dirty.pages.range(range).copied().collect());
        dirty.unwrap_or_default()
    }

    pub(crate) fn is_dirty(&self, ino: Nid, index: u64) -> bool {
        self.dirty.get(&ino).is_some_and(|dirty| dirty.pages.contains(&index))
    }

    /// All dirty pages.
    pub(crate) fn dirty(&self) -> Vec<(Nid, u64)> {
        self.dirty.iter().flat_map(|(ino, dirty)| in_order(*ino, dirty)).collect()
    }

    /// Up to `most` dirty pages that are not on their way, those first whose files have had dirty pages
    /// for longest.
    pub(crate) fn oldest(&self, most: usize) -> Vec<(Nid, u64)> {
        let files = self.since.values().filter_map(|ino| Some((ino, self.dirty.get(ino)?)));
        let pages = files.flat_map(|(ino, dirty)| in_order(*ino, dirty));
        pages.filter(|(ino, index)| !self.is_on_its_way(*ino, *index)).take(most).collect()
    }

    pub(crate) fn is_on_its_way(&self, ino: Nid, index: u64) -> bool {
        let page = self.files.get(&ino).and_then(|pages| pages.get(&index));
        page.is_some_and(|page| page.in_flight > 0)
    }

    /// Files with dirty pages.
    pub(crate) fn dirty_files(&self) -> Vec<Nid> {
        self.dirty.keys().copied().collect()
    }

    pub(crate) fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// Those of directories.
    pub(crate) fn dirty_entries(&self) -> usize {
        self.dirty_entries
    }

    /// Pages that are not dirty.
    pub(crate) fn clean_count(&self) -> usize {
        self.count - self.dirty_count
    }

    /// Forgets the pages that were used longest ago of those that are on the medium, until there are
    /// `most` of them.
    pub(crate) fn shrink(&mut self, most: usize) {
        let mut found: Vec<(u64, Nid, u64)> = Vec::with_capacity(self.count);
        for (ino, pages) in &self.files {
            for (index, page) in pages {
                if page.in_flight == 0 && !self.is_dirty(*ino, *index) {
                    found.push((page.touched, *ino, *index));
                }
            }
        }
        found.sort_unstable();
        let gone = found.len().saturating_sub(most);
        found.into_iter().take(gone).for_each(|(_, ino, index)| self.drop_page(ino, index));
    }
}

fn in_order(ino: Nid, dirty: &Dirty) -> impl Iterator<Item = (Nid, u64)> {
    dirty.pages.iter().map(move |index| (ino, *index))
}
