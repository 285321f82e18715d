//! A mounted file system: how operations run, and how they get what they lack.
//!
//! Owns: [`Fs`], [`Fs::with`]. Promises: an operation is done whole, between two others, or not at
//! all; what comes from the medium is compared with what is wanted by then; nobody waits with
//! the state locked. Never: knows what an operation does.

use crate::channels::{Channels, Kind, Schedule};
use crate::error::{FsError, Result};
use crate::format::shared::{self, Lying};
use crate::format::{
    Addr, NAT_ENTRIES, NatSector, Nid, Owner, SECTOR, SUMMARY_ENTRIES, SummarySector, Superblock,
    WINDOW_WORDS, WindowSector,
};
use crate::medium::Medium;
use crate::mount::in_sector;
use crate::nodes::{Dirty, is_dir};
use crate::segments::{Allocation, Heat};
use crate::state::{Need, State, Step, Stop};
use crate::stats::Stats;
use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::{Mutex, MutexGuard};
use flashlane_rt::{Cx, Notify};
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages and nodes that an operation may need at a time: caches are larger.
pub(crate) const AT_A_TIME: usize = 32;

/// What a file system may use of the host. Caches of less than 64 pages and nodes count as such.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Pages of files in memory, beside the dirty ones.
    pub cache_pages: usize,
    /// Nodes in memory, beside the dirty ones.
    pub cache_nodes: usize,
    /// From so many dirty pages on, writers write themselves.
    pub dirty_pages: usize,
    /// From so many dirty nodes on, a checkpoint is taken.
    pub dirty_nodes: usize,
    /// So many changed nodes and a tenth as many segments are kept in checkpoints before the tables are
    /// written; a checkpoint has room for 680.
    pub journal: usize,
    /// Where pages go (ParaFS paper, 3.2).
    pub allocation: Allocation,
    /// Who cleans when room is short (3.3).
    pub cleaners: Cleaners,
    /// Segments that one cleaner empties before a checkpoint frees them. F2FS goes on until it has
    /// enough, which is mostly one to three.
    pub victims: u32,
    /// An fsync flushes what it has written before it writes nodes that name it, and then these. Without
    /// the first flush, as F2FS, a power cut may leave nodes whose pages are not there.
    pub ordered_fsync: bool,
    /// Which request of a channel goes out next (3.4).
    pub schedule: Schedule,
    /// Nobody has asked for anything for so long: segments are cleaned in the background (3.3). Zero
    /// is never.
    pub idle: Ns,
    /// How often what is dirty is written, whoever asks for it or not. Zero is never.
    pub commit: Ns,
}

/// Who cleans when room is short.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cleaners {
    /// Whoever needs room cleans one segment after the other.
    One,
    /// One for each region, all at a time, and one checkpoint for all of them: the paper's
    /// multi-threaded GC.
    #[default]
    PerRegion,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            cache_pages: 65_536,
            cache_nodes: 65_536,
            dirty_pages: 16_384,
            dirty_nodes: 16_384,
            journal: 640,
            allocation: Allocation::default(),
            cleaners: Cleaners::default(),
            victims: 4,
            ordered_fsync: true,
            schedule: Schedule::default(),
            // Ours: F2FS sleeps half a minute at least between two background cleanings, and asks
            // then whether the device is idle.
            idle: Ns::from_ms(500),
            // As the kernel's page cache does with what is dirty.
            commit: Ns::from_secs(30),
        }
    }
}

impl Options {
    /// These options with caches of about `memory` bytes: a quarter each for clean pages and clean
    /// nodes, an eighth each for dirty ones. Tables of segments and nodes come on top.
    pub(crate) fn within(self, memory: u64, page_bytes: usize) -> Options {
        let pages = |share: u64| (memory / share / page_bytes as u64).max(64) as usize;
        Options {
            cache_pages: pages(4),
            cache_nodes: pages(4),
            dirty_pages: pages(8),
            dirty_nodes: pages(8),
            ..self
        }
    }
}

/// A mounted file system.
pub struct Fs {
    pub(crate) medium: Medium,
    pub(crate) sb: Superblock,
    pub(crate) options: Options,
    pub(crate) channels: Arc<Channels>,
    /// A torn program may take pages along that were there before.
    pub(crate) has_pairs: bool,
    pub(crate) state: Mutex<State>,
    /// Something has changed that somebody may wait for.
    pub(crate) changed: Notify,
}

impl Fs {
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Does an operation, as often as it lacks something; at last all at once.
    pub(crate) async fn with<R>(
        self: &Arc<Fs>,
        cx: &Cx,
        mut operation: impl FnMut(&mut State) -> Step<R>,
    ) -> Result<R> {
        loop {
            let need = {
                let mut s = self.lock();
                s.measure();
                let changes = s.changes;
                match operation(&mut s) {
                    Ok(done) => return Ok(done),
                    Err(Stop::Fail(e)) => return Err(e),
                    Err(Stop::Need(need)) => {
                        debug_assert_eq!(changes, s.changes, "changed, then lacked {need:?}");
                        need
                    }
                }
            };
            self.bring(cx, need).await?;
        }
    }

    /// Does an operation on the thread of whoever asks, if it lacks nothing; one that changes something
    /// also only if nobody has to make room first.
    pub(crate) fn at_once<R>(
        &self,
        changes: bool,
        operation: impl FnOnce(&mut State) -> Step<R>,
    ) -> Option<Result<R>> {
        let mut s = self.lock();
        s.measure();
        if changes && !s.has_room_at_once(&self.options) {
            return None;
        }
        s.asks += 1;
        let before = s.changes;
        match operation(&mut s) {
            Ok(done) => Some(Ok(done)),
            Err(Stop::Fail(e)) => Some(Err(e)),
            Err(Stop::Need(need)) => {
                debug_assert_eq!(before, s.changes, "changed, then lacked {need:?}");
                None
            }
        }
    }

    /// Reads a page of the log, when it is its turn.
    async fn read_page(&self, cx: &Cx, addr: Addr, into: &mut [u8]) -> Result<()> {
        let turn = self.channels.enter(cx, Kind::Read, self.segment_of(addr)).await;
        let mounting = self.lock().recovering;
        let read = match mounting {
            true => self.medium.read_again(cx, &self.sb.layout, addr, into).await,
            false => self.medium.read(cx, &self.sb.layout, addr, into).await,
        };
        self.channels.leave(cx, turn);
        self.lock().stats.read_pages += 1;
        read
    }

    /// Writes a page of the log, when it is its turn.
    pub(crate) async fn write_page(&self, cx: &Cx, addr: Addr, content: &[u8]) -> Result<()> {
        let turn = self.channels.write(cx, addr).await;
        let written = self.medium.write(cx, &self.sb.layout, addr, content).await;
        self.channels.leave(cx, turn);
        if self.has_pairs {
            self.note_programmed(cx, addr, written.is_ok());
        }
        written
    }

    /// Trims a segment, when it is its turn.
    pub(crate) async fn trim_segment(&self, cx: &Cx, segment: u32) -> Result<()> {
        let turn = self.channels.enter(cx, Kind::Erase, segment).await;
        let trimmed = self.medium.trim(cx, &self.sb.layout, segment).await;
        self.channels.leave(cx, turn);
        trimmed
    }

    /// Writes in place, all at a time.
    pub(crate) async fn write_in_place(
        self: &Arc<Fs>,
        cx: &Cx,
        sectors: impl Iterator<Item = (u64, Vec<u8>)>,
    ) -> Result<()> {
        let mut writes = VecDeque::new();
        let mut outcome = Ok(());
        for (at, content) in sectors {
            self.lock().stats.meta_sectors += (content.len() / SECTOR) as u64;
            let (fs, theirs) = (self.clone(), cx.clone());
            writes.push_back(
                cx.spawn_join(async move { fs.medium.write_meta(&theirs, at, &content).await }),
            );
            if writes.len() > AT_A_TIME
                && let Some(first) = writes.pop_front()
            {
                outcome = outcome.and(first.await);
            }
        }
        for write in writes {
            outcome = outcome.and(write.await);
        }
        outcome
    }

    fn segment_of(&self, addr: Addr) -> u32 {
        self.sb.layout.segment_of(addr).0
    }

    /// What it has done since it was mounted.
    pub fn stats(&self) -> Stats {
        self.lock().stats
    }

    /// Brings what an operation lacks.
    pub(crate) async fn bring(self: &Arc<Fs>, cx: &Cx, need: Need) -> Result<()> {
        match need {
            Need::Nat(sector) => self.bring_nat(cx, sector).await,
            Need::Node(nid) => self.bring_node(cx, nid).await,
            Need::Pages(ino, indexes) => self.bring_pages(cx, ino, indexes).await,
            Need::Summary(segment) => self.bring_summary(cx, segment).await,
            Need::Segments { region, heat, each } => self.assign(cx, region, heat, each).await,
            Need::Cut(ino) => {
                self.changed.wait(cx, || !self.lock().cuts.contains(&ino)).await;
                Ok(())
            }
            Need::Quiet => {
                self.changed.wait(cx, || self.lock().is_quiet()).await;
                Ok(())
            }
            Need::Numbers => Box::pin(self.checkpoint(cx)).await,
            // Cleaning would need a checkpoint, and that may be who asks.
            Need::Room { kept } => Box::pin(self.make_room(cx, kept)).await,
        }
    }

    async fn bring_nat(&self, cx: &Cx, sector: u32) -> Result<()> {
        let layout = self.sb.layout;
        let copy = bit(&self.lock().nat_copies, sector);
        let mut bytes = vec![0; SECTOR];
        let (at, mounting) = (layout.nat_at(sector, copy), self.lock().recovering);
        match mounting {
            true => self.medium.read_meta_again(cx, at, &mut bytes).await?,
            false => self.medium.read_meta(cx, at, &mut bytes).await?,
        }
        let entries = NatSector::decode(&bytes, sector, layout.shared);
        let entries = entries.map_err(|e| in_sector(sector, e))?.0;
        let mut s = self.lock();
        // A checkpoint has written the other copy meanwhile: only of sectors that are in memory.
        s.nat.bring(sector, entries);
        Ok(())
    }

    async fn bring_node(self: &Arc<Fs>, cx: &Cx, nid: Nid) -> Result<()> {
        let looked = self.lock().nat.get(nid);
        let entry = match looked {
            Ok(entry) => entry,
            Err(Stop::Need(Need::Nat(sector))) => return self.bring_nat(cx, sector).await,
            Err(Stop::Need(_)) => return Ok(()),
            Err(Stop::Fail(e)) => return Err(e),
        };
        if !self.sb.layout.has(entry.addr) {
            let why = format!("node {nid} lies at {}, nowhere", entry.addr.0);
            return Err(FsError::Damaged(why));
        }
        let mut bytes = vec![0; self.sb.layout.shape.page_bytes()];
        let read = self.read_page(cx, entry.addr, &mut bytes).await;
        let mut s = self.lock();
        if s.nodes.contains_key(&nid) || s.nat.get(nid) != Ok(entry) {
            return Ok(());
        }
        read?;
        let said = |e| FsError::Damaged(format!("node {nid} at page {}: {e}", entry.addr.0));
        let lying = shared::lying(&bytes, self.sb.node_seed(), |_| true).map_err(said)?;
        let is_it = |lying: &Lying| (lying.footer.nid, lying.footer.ino) == (nid, entry.ino);
        if !lying.iter().any(is_it) {
            let found =
                |lying: &Lying| format!("{} of file {}", lying.footer.nid, lying.footer.ino);
            let found: Vec<String> = lying.iter().map(found).collect();
            let (found, wanted) = (found.join(", "), format!("node {nid} of file {}", entry.ino));
            return Err(FsError::Damaged(format!("node {found} lies where {wanted} should be")));
        }
        s.admit(entry.addr, lying);
        let touched = s.tick();
        if let Some(node) = s.nodes.get_mut(&nid) {
            node.touched = touched;
        }
        self.shrink_nodes(&mut s);
        Ok(())
    }

    /// Reads a page that nodes share, keeps those of them in memory that lie there, and returns the
    /// numbers of all that the page has. If nothing in the page is valid any more there are none.
    pub(crate) async fn bring_shared(self: &Arc<Fs>, cx: &Cx, addr: Addr) -> Result<Vec<Nid>> {
        let mut bytes = vec![0; self.sb.layout.shape.page_bytes()];
        let read = self.read_page(cx, addr, &mut bytes).await;
        let mut s = self.lock();
        if !s.segments.is_valid(addr) {
            return Ok(Vec::new());
        }
        read?;
        let said = |e| FsError::Damaged(format!("the nodes of page {}: {e}", addr.0));
        let lying = shared::lying(&bytes, self.sb.node_seed(), |_| true).map_err(said)?;
        let nids = lying.iter().map(|lying| lying.footer.nid).collect();
        s.admit(addr, lying);
        self.shrink_nodes(&mut s);
        Ok(nids)
    }

    /// Forgets nodes that were used longest ago and are on the medium.
    pub(crate) fn shrink_nodes(&self, s: &mut State) {
        // A checkpoint needs all at once that its pages are named by.
        let clean = s.nodes.len() - s.dirty_nodes.len();
        if clean <= self.options.cache_nodes || s.has_checkpointer {
            return;
        }
        let mut found: Vec<(u64, Nid)> = s
            .nodes
            .iter()
            .filter(|(_, node)| node.dirty == Dirty::Clean && node.in_flight == 0)
            .map(|(nid, node)| (node.touched, *nid))
            .collect();
        found.sort_unstable();
        // What was used last stays: an operation needs several at a time.
        let gone = found.len().saturating_sub(self.options.cache_nodes * 7 / 8);
        found.into_iter().take(gone).for_each(|(_, nid)| drop(s.nodes.remove(&nid)));
    }

    async fn bring_pages(self: &Arc<Fs>, cx: &Cx, ino: Nid, indexes: Vec<u64>) -> Result<()> {
        let mut reads = Vec::with_capacity(indexes.len());
        for index in indexes {
            let (fs, theirs) = (self.clone(), cx.clone());
            reads.push(cx.spawn_join(async move { fs.bring_page(&theirs, ino, index).await }));
        }
        let mut all = Ok(());
        for read in reads {
            all = all.and(read.await);
        }
        self.shrink_pages();
        all
    }

    /// Forgets pages that were used longest ago, where there are too many.
    pub(crate) fn shrink_pages(&self) {
        let mut s = self.lock();
        if s.pages.clean_count() > self.options.cache_pages {
            s.pages.shrink(self.options.cache_pages * 7 / 8);
        }
    }

    async fn bring_page(&self, cx: &Cx, ino: Nid, index: u64) -> Result<()> {
        // Whoever asks has looked at what leads there; if it is gone they look again.
        let Ok(page) = self.lock().page_of(ino, index) else { return Ok(()) };
        let addr = page.addr;
        if !addr.is_page() {
            return Ok(());
        }
        let mut bytes = vec![0; self.sb.layout.shape.page_bytes()];
        let read = self.read_page(cx, addr, &mut bytes).await;
        // Nobody waits for the state while a checksum is computed.
        let tree = self.sb.tree();
        let checked = read.is_err() || tree.check((ino, index), page, &bytes).is_ok();
        let mut s = self.lock();
        // It may have been moved, and the place given to somebody else.
        let same = s.page_of(ino, index) == Ok(page) || mutant!("parafs.read-not-compared");
        if same && !s.pages.has(ino, index) {
            let place = |e| match e {
                FsError::Io(why) => FsError::Io(format!("page {index} of file {ino}: {why}")),
                e => e,
            };
            read.map_err(place)?;
            if s.inode(ino).is_ok_and(|inode| is_dir(inode.mode)) {
                let damaged = |e| format!("page {index} of directory {ino}: {e}");
                let checked = s.slots.check(&bytes, ino, index);
                checked.map_err(|e| FsError::Damaged(damaged(e)))?;
            } else if !checked {
                s.mismatch(ino, index, addr)?;
            }
            s.pages.bring(ino, index, bytes);
        }
        Ok(())
    }

    async fn bring_summary(&self, cx: &Cx, segment: u32) -> Result<()> {
        let layout = self.sb.layout;
        let mut owners: Vec<Owner> = Vec::new();
        for part in 0..layout.summary_sectors {
            let mut bytes = vec![0; SECTOR];
            let at = layout.summary_at(segment) + u64::from(part);
            let mounting = self.lock().recovering;
            match mounting {
                true => self.medium.read_meta_again(cx, at, &mut bytes).await?,
                false => self.medium.read_meta(cx, at, &mut bytes).await?,
            }
            let decoded = SummarySector::decode(&bytes, segment, part);
            let said = |e| FsError::Damaged(format!("segment {segment}: {e}"));
            owners.extend(decoded.map_err(said)?.0);
        }
        owners.truncate(layout.shape.segment_pages as usize);
        self.lock().segments.bring_owners(segment, owners);
        Ok(())
    }

    /// Gives heads segments, which the window names before they are used (ParaFS paper, 3.2:
    /// "Before a set of segments are assigned to allocator heads, their addresses are recorded
    /// first"). An fsync in one of them flushes that, too. All heads of that heat that have none
    /// beside those they fill get some.
    async fn assign(self: &Arc<Fs>, cx: &Cx, region: u32, heat: Heat, each: u64) -> Result<()> {
        // A window belongs to a checkpoint, and its last sector is written again and again.
        let free = || {
            let s = self.lock();
            !s.checkpointing && !s.assigning
        };
        let waited = !free();
        self.changed.wait(cx, free).await;
        if waited {
            return Ok(()); // there may be some now
        }
        let Some(Promised { chosen, number, sector }) = self.promise(region, heat, each)? else {
            let none = self.lock().choose(region, heat, each, self.options.cleaners).is_empty();
            return match none {
                true => Ok(()),
                false => {
                    let sectors = self.sb.layout.window_sectors;
                    let is_full = move |s: &State| s.window_used + 1 >= sectors;
                    Box::pin(self.checkpoint_if(cx, is_full)).await
                }
            };
        };
        let bytes = sector.encode(number);
        let mut recorded = Ok(());
        if !mutant!("parafs.window-unwritten") {
            recorded = self.medium.write_meta(cx, self.sb.layout.window + number, &bytes).await;
        }
        let mut s = self.lock();
        s.assigning = false;
        s.stats.meta_sectors += 1;
        s.segments.assign(heat, &chosen, recorded.is_ok());
        drop(s);
        self.changed.wake(cx);
        recorded
    }

    /// Segments for heads, and the sector of the window that will name them; nothing where there are none, or
    /// the window is full.
    fn promise(&self, region: u32, heat: Heat, each: u64) -> Result<Option<Promised>> {
        let mut s = self.lock();
        let mut chosen = s.choose(region, heat, each, self.options.cleaners);
        if chosen.is_empty() {
            return Ok(None);
        }
        // As many as a sector of the window names, those of this head first.
        chosen.sort_by_key(|(_, other)| *other != region);
        chosen.truncate(WINDOW_WORDS);
        s.next_window(chosen.len());
        // Whoever takes a checkpoint can't wait for one: the last sector is theirs.
        let sectors = self.sb.layout.window_sectors;
        match s.window_used {
            used if used >= sectors => return Err(FsError::NoSpace),
            used if used + 1 == sectors && !s.has_checkpointer => return Ok(None),
            _ => {}
        }
        let named = chosen.iter().map(|(segment, _)| (*segment, heat as u8)).collect();
        s.assigning = true;
        // They are nobody else's meanwhile.
        s.segments.promise(&chosen);
        let sector = s.window_with(named);
        Ok(Some(Promised { chosen, number: s.window_used, sector }))
    }

    /// Nothing is written any more: what is on the medium is all that there will be.
    pub(crate) fn stop_writing(&self, why: &FsError) {
        let mut s = self.lock();
        if s.read_only.is_none() {
            s.read_only = Some(why.to_string());
        }
    }
}

impl State {
    /// A page of a file does not match its checksum: nobody gets it, and no cleaner moves it with a
    /// checksum of these bytes.
    fn mismatch(&self, ino: Nid, index: u64, addr: Addr) -> Result<()> {
        let cleans = self.cleaning || self.tidying;
        if mutant!("parafs.data-unchecked") || cleans && mutant!("parafs.cleaner-renews-crc") {
            return Ok(());
        }
        Err(FsError::Io(said_of_mismatch(ino, index, addr)))
    }

    /// The sector of the window that has room for so many words is the current one.
    pub(crate) fn next_window(&mut self, words: usize) {
        if self.window.len() + words > WINDOW_WORDS {
            self.window.clear();
            self.window_used += 1;
        }
    }

    /// The current sector of the window with more words.
    pub(crate) fn window_with(&mut self, words: Vec<(u32, u8)>) -> WindowSector {
        self.window.extend(words);
        WindowSector { version: self.version, words: self.window.clone() }
    }

    /// Free segments that a head gets next.
    fn choose(&self, region: u32, heat: Heat, each: u64, cleaners: Cleaners) -> Vec<(u32, u32)> {
        let keep = (self.takes_back_below(cleaners), self.free_min());
        self.segments.choose((region, heat, each), self.has_checkpointer, keep)
    }
}

/// What is said of a page of a file that does not match its checksum.
pub(crate) fn said_of_mismatch(ino: Nid, index: u64, addr: Addr) -> String {
    format!("page {index} of file {ino}, at page {}, does not match its checksum", addr.0)
}

/// Segments that heads get when the window names them.
struct Promised {
    /// (segment, region)
    chosen: Vec<(u32, u32)>,
    /// The sector of the window, and what it has then.
    number: u64,
    sector: WindowSector,
}

pub(crate) fn bit(bytes: &[u8], at: u32) -> bool {
    bytes.get(at as usize / 8).is_some_and(|byte| byte >> (at % 8) & 1 == 1)
}

pub(crate) fn flip(bytes: &mut [u8], at: u32) {
    if let Some(byte) = bytes.get_mut(at as usize / 8) {
        *byte ^= 1 << (at % 8);
    }
}

/// Sectors of the node address table that have these nodes.
pub(crate) fn nat_sectors<'a>(nids: impl Iterator<Item = &'a Nid>) -> Vec<u32> {
    let mut sectors: Vec<u32> = nids.map(|nid| nid / NAT_ENTRIES).collect();
    sectors.dedup();
    sectors
}

/// The summary of a segment, in sectors.
pub(crate) fn summary(segment: u32, owners: &[Owner], parts: u32) -> Vec<u8> {
    let mut all = Vec::new();
    for part in 0..parts {
        let from = (part * SUMMARY_ENTRIES) as usize;
        let of = owners.iter().skip(from).take(SUMMARY_ENTRIES as usize).copied().collect();
        all.extend(SummarySector(of).encode(segment, part));
    }
    all
}

/// A page that is on its way to the medium.
pub(crate) struct Sent {
    pub(crate) addr: Addr,
    pub(crate) content: Arc<Vec<u8>>,
}
