//! Checks a file system that nobody has mounted, and knows what would mend it.
//!
//! Owns: [`Model`], the structures on the medium as they are and as they should be; each rule with the
//! place where it is broken ([`tables`], [`trees`], [`names`]). Promises: looks at everything that a
//! checkpoint names; reads only; a medium full of lies ends in a list of them; what is mended breaks
//! no rule ([`crate::repair`] writes it). Never: shares code with what is checked but the bytes of
//! structures.
//!
//! Who is believed where two structures disagree: a node is covered by its checksum, so it counts
//! more than the table that leads to it; what two of a node, the segment table and the summary say
//! counts more than the third.

mod compact;
mod lost;
mod names;
mod scrub;
mod tables;
mod trees;

use crate::error::{FsError, Result};
use crate::format::{
    Addr, Dentry, Footer, HEADS, Inode, Layout, NO_NODE, NatEntry, Nid, NodeKind, NodePage, Owner,
    Pack, PageRef, SECTOR, SegmentEntry, Share, Slots, Superblock, Tree, shared,
};
use crate::medium::{Medium, sector_of};
use crate::mount;
use flashlane_base::mutant;
use flashlane_rt::Cx;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub(crate) use compact::{Found, Nodes, Owners};

/// What a check has found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// It was unmounted: otherwise fsyncs behind the checkpoint are no part of what was looked at.
    pub clean: bool,
    pub files: u64,
    pub directories: u64,
    pub nodes: u64,
    /// Pages of contents.
    pub pages: u64,
    /// Pages of files have checksums.
    pub data_checksums: bool,
    /// Pages of regular files that were read and compared ([`Depth::Contents`]).
    pub contents_read: u64,
    /// What is broken, in sentences; the first ones where there are very many.
    pub problems: Vec<String>,
    /// How many there are.
    pub found: u64,
    /// What a repair does about them, and for how many it does so.
    pub cures: BTreeMap<&'static str, u64>,
    /// What a power cut leaves, and is no damage.
    pub notes: Vec<String>,
    /// Places that the medium could not give: what hangs on them may be there.
    pub unread: u64,
    /// The things that a repair would give up, as they can't be read now: a count for each kind
    /// ("nodes", "pages of files"). Empty if a repair gives up nothing.
    pub lost: BTreeMap<&'static str, u64>,
}

/// The most problems, and the most notes, whose text a [`Report`] keeps.
const SAID: usize = 1000;
/// A kind of [`Report::lost`].
const PAGES_OF_DIRECTORIES: &str = "pages of directories";
/// A kind of [`Report::lost`].
const PAGES_BEHIND: &str = "pages written after the last checkpoint, which may hold fsyncs";

/// What a repair does about a problem.
pub(crate) mod cure {
    pub(crate) const SUPERBLOCK: &str = "write the other copy of the superblock anew";
    pub(crate) const PACK: &str = "write a checkpoint";
    pub(crate) const SEGMENTS: &str = "write the segment table anew, by what nodes name";
    pub(crate) const NAT: &str = "write the node address table anew, by what nodes say";
    pub(crate) const SUMMARY: &str = "write a summary anew, by what nodes name";
    pub(crate) const NODE_LOST: &str =
        "give up a node that is nowhere in the log, and what it named";
    pub(crate) const NODE_FOUND: &str = "have a node named by its file again";
    pub(crate) const NODE_DELETED: &str = "delete a node that no file can use";
    pub(crate) const LOST: &str =
        "give up pages of files, with --accept-lost only: reading them becomes an error";
    pub(crate) const LOST_NAMES: &str = "give up pages of directories, with --accept-lost only: \
                                         the names are those that inodes hold";
    pub(crate) const FSYNCS: &str = "give up fsyncs that can't be read, with --accept-lost only: \
                                     their files may be as before them";
    pub(crate) const OLDER: &str =
        "take the newest nodes that can be read, with --accept-lost only: they may be older";
    pub(crate) const HOLE: &str = "make a hole of a page that is not the file's";
    pub(crate) const PAGE_OF_NAMES: &str =
        "make a hole of a page of a directory: its files get the names that their inodes hold";
    pub(crate) const INODE: &str = "set fields of an inode to what they must be";
    pub(crate) const COUNT: &str = "count again";
    pub(crate) const XATTRS: &str = "keep the extended attributes that are whole";
    pub(crate) const NAME_GONE: &str = "take out an entry that leads nowhere";
    pub(crate) const NAME_PUT: &str = "enter a name anew where it is looked for";
    pub(crate) const NAME_FIXED: &str = "write an entry anew by the file that it names";
    pub(crate) const FOUND: &str = "give a file without a name the one that it had in a damaged \
                                    directory, or one in /lost+found";
    pub(crate) const ORPHAN: &str = "take a file out of the list of those to be deleted";
    pub(crate) const DELETED: &str = "delete a file that came back and has no name";
    pub(crate) const ROOT: &str = "make a root directory";
    pub(crate) const WINDOW: &str = "look for fsyncs in the whole log";
    pub(crate) const NEWER: &str = "take it as it is";
}

/// How much a check reads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Depth {
    /// All structures, and no contents of files.
    #[default]
    Structures,
    /// Contents of all files as well: those that can't be read, or do not match their checksums,
    /// are problems.
    Contents,
}

/// Hears how far a check is: what it does now, how much of that is done, and how much there is.
pub type Progress<'a> = &'a dyn Fn(&'static str, u64, u64);

/// The content of a node as it was read last, with its place.
type Last = RefCell<Option<(Nid, Arc<Vec<u8>>)>>;

/// A file system as it should be.
pub(crate) struct Model<'a> {
    cx: &'a Cx,
    medium: &'a Medium,
    progress: Progress<'a>,
    pub(crate) sb: Superblock,
    pub(crate) layout: Layout,
    tree: Tree,
    slots: Slots,
    pub(crate) pack: Pack,
    /// A later checkpoint than the one that counts was there.
    pub(crate) later: bool,
    /// There is no checkpoint.
    pub(crate) pack_lost: bool,
    /// A copy of the superblock is not what the other one says.
    pub(crate) superblock_lost: bool,
    /// As the medium has it; of segments that are not known nothing is valid.
    pub(crate) segments: Vec<SegmentEntry>,
    pub(crate) segments_known: Vec<bool>,
    /// What each segment should be for a head.
    pub(crate) kinds: BTreeMap<u32, u8>,
    /// Sectors of the node address table that can't be read.
    pub(crate) nat_lost: BTreeSet<u32>,
    pub(crate) nat: Vec<NatEntry>,
    /// Numbers whose entries in the table are wrong.
    pub(crate) nat_wrong: BTreeSet<Nid>,
    /// Entries that lead to no such node.
    led_nowhere: BTreeSet<Nid>,
    /// Nodes that the node address table lists in places that can't be read.
    listed_unread: BTreeSet<Nid>,
    /// Nodes, with their files before them, that the node address table lists and that were not
    /// found on the medium. A node leaves the set when it is found elsewhere, or when its parent is
    /// mended.
    lost_nodes: BTreeSet<(Nid, Nid)>,
    /// Indirect nodes (file, number in its tree) that are lost.
    lost_above: BTreeSet<(Nid, u32)>,
    /// Nodes that were made for lost ones.
    made_for_lost: usize,
    /// Numbers from here on are not given to new nodes.
    free_below: Nid,
    /// Of each segment whose its pages are, by its summary.
    summaries: Vec<Option<Box<[Owner]>>>,
    pub(crate) nodes: Nodes,
    /// Contents of nodes that are not on the medium like this. Others are read again when they are
    /// needed.
    pub(crate) changed: BTreeMap<Nid, Arc<Vec<u8>>>,
    last: Last,
    /// Nodes of files, by their numbers there. An inode with the number of its file is not in it:
    /// it is found by that.
    files: BTreeMap<(Nid, u32), Nid>,
    /// Whose each page is.
    pub(crate) owners: Owners,
    /// Pages of files are in `owners`; before, nodes alone.
    has_claimed: bool,
    /// Segments whose summaries are to be written.
    pub(crate) unsummed: BTreeSet<u32>,
    pub(crate) kept: u64,
    pub(crate) orphans: BTreeSet<Nid>,
    /// Pages of directories that are to be written.
    pub(crate) dir_pages: BTreeMap<(Nid, u64), Vec<u8>>,
    /// Entries that go elsewhere in their directory.
    pub(crate) entering: Vec<(Nid, Dentry)>,
    /// Segments that may hold what fsyncs have written behind the checkpoint.
    pub(crate) window: BTreeSet<u32>,
    /// Sectors of the window that can't be read, and those behind its end.
    pub(crate) window_lost: Vec<u64>,
    pub(crate) window_spoiled: Vec<u64>,
    /// Entries of damaged pages of directories that count, with their directories.
    pub(crate) again: Vec<(Nid, Dentry)>,
    /// Directories of which pages were lost: names that inodes hold are entered again there.
    pub(crate) holed: BTreeSet<Nid>,
    /// Files in `adopted` whose inodes hold the same name. The repair does not trust that name: an
    /// older program left names in inodes that were removed.
    pub(crate) alike: BTreeSet<Nid>,
    /// Files that get a name again, in such a directory or in /lost+found.
    pub(crate) adopted: Vec<Nid>,
    pub(crate) report: Report,
    unread: Cell<u64>,
    /// How many sectors of the segment table and the node address table can't be read.
    tables_unread: u64,
    /// Pages that can't be read and are, or may be, nodes.
    nodes_unread: BTreeSet<Addr>,
    /// A read has failed over time: later ones are not waited for as long.
    waited: Cell<bool>,
    /// What flash blocks hold that can't be read is given up.
    pub(crate) gives_up: bool,
}

/// Looks through a file system.
///
/// # Errors
/// There is none, or the medium can't be read: not even a part of it, or a node at one time and not
/// at another.
pub async fn check(cx: &Cx, medium: &Medium) -> Result<Report> {
    check_with(cx, medium, Depth::Structures, &|_, _, _| ()).await
}

/// As [`check`], as deep as is said, and says how far it is.
///
/// # Errors
/// As [`check`].
pub async fn check_with(
    cx: &Cx,
    medium: &Medium,
    depth: Depth,
    progress: Progress<'_>,
) -> Result<Report> {
    Ok(Model::look(cx, medium, depth, progress).await?.report)
}

/// A page of the log that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsedPage {
    pub segment: u32,
    /// In its segment.
    pub page: u32,
    /// The first of its sectors where the file system is on a block device.
    pub sector: u64,
    /// The file whose content or node it is.
    pub file: Nid,
}

/// As [`check`], with the areas of the file system and all pages that a checkpoint names, in their order.
///
/// # Errors
/// As [`check`].
pub async fn check_pages(cx: &Cx, medium: &Medium) -> Result<(Report, Layout, Vec<UsedPage>)> {
    let model = Model::look(cx, medium, Depth::Structures, &|_, _, _| ()).await?;
    let used = model.owners.iter().map(|(addr, owner)| {
        let (segment, page) = model.layout.segment_of(addr);
        let file = model.nodes.get(owner.nid).map_or(owner.nid, |found| found.ino);
        UsedPage { segment, page, sector: sector_of(&model.layout, addr), file }
    });
    let used = used.collect();
    Ok((model.report, model.layout, used))
}

fn is_file(mode: u16) -> bool {
    mode & 0o170_000 == 0o100_000
}

fn is_dir(mode: u16) -> bool {
    mode & 0o170_000 == 0o040_000
}

impl<'a> Model<'a> {
    /// Everything is read, compared, and mended in memory.
    pub(crate) async fn look(
        cx: &'a Cx,
        medium: &'a Medium,
        depth: Depth,
        progress: Progress<'a>,
    ) -> Result<Model<'a>> {
        let mut unread = Cell::new(0);
        let (sb, pack) = match mount::open(cx, medium).await {
            Ok((sb, newest)) => (sb, Some(newest.pack)),
            Err(e) => {
                unread = Cell::new(u64::from(matches!(e, FsError::Io(_))));
                (mount::superblock(cx, medium).await?, None)
            }
        };
        let layout = sb.layout;
        let (tree, slots) = (sb.tree(), sb.slots());
        let segments = layout.shape.segments() as usize;
        let lost = pack.is_none();
        let pack = pack.unwrap_or_else(|| Model::no_pack(&layout));
        let mut m = Model {
            cx,
            medium,
            progress,
            layout,
            sb,
            tree,
            slots,
            later: false,
            pack_lost: lost,
            superblock_lost: false,
            segments: vec![SegmentEntry::empty(&layout); segments],
            segments_known: vec![!lost; segments],
            kinds: BTreeMap::new(),
            nat_lost: BTreeSet::new(),
            nat: vec![NatEntry::default(); layout.nids as usize],
            nat_wrong: BTreeSet::new(),
            led_nowhere: BTreeSet::new(),
            listed_unread: BTreeSet::new(),
            lost_nodes: BTreeSet::new(),
            lost_above: BTreeSet::new(),
            made_for_lost: 0,
            free_below: layout.nids,
            summaries: vec![None; segments],
            nodes: Nodes::new(&layout),
            changed: BTreeMap::new(),
            last: Last::default(),
            files: BTreeMap::new(),
            owners: Owners::new(layout),
            has_claimed: false,
            unsummed: BTreeSet::new(),
            kept: 0,
            orphans: BTreeSet::new(),
            dir_pages: BTreeMap::new(),
            entering: Vec::new(),
            window: BTreeSet::new(),
            window_lost: Vec::new(),
            window_spoiled: Vec::new(),
            again: Vec::new(),
            holed: BTreeSet::new(),
            alike: BTreeSet::new(),
            adopted: Vec::new(),
            report: Report {
                clean: pack.clean,
                data_checksums: tree.has_sums(),
                ..Report::default()
            },
            pack,
            unread,
            tables_unread: 0,
            nodes_unread: BTreeSet::new(),
            waited: Cell::new(false),
            gives_up: false,
        };
        m.compare_superblocks().await;
        if lost {
            m.would_lose("checkpoints", m.unread.get());
            m.wrong(cure::PACK, "no checkpoint is whole: all is looked for in the log".into());
            m.nat_lost = (0..layout.nat_sectors).collect();
        } else {
            m.compare_packs().await;
            m.read_segments().await;
            m.read_nat().await;
            m.read_window().await;
        }
        m.read_summaries().await;
        m.read_nodes().await?;
        m.find_nodes().await?;
        m.look_at_inodes().await?;
        m.walk_trees().await?;
        m.claim_pages().await?;
        m.miss_pages().await?;
        if depth == Depth::Contents {
            m.scrub().await?;
        }
        m.walk_names().await?;
        m.compare_counts().await?;
        m.compare_segments();
        m.compare_summaries();
        m.report.unread = m.unread.get();
        Ok(m)
    }

    /// What stands for a checkpoint where none is whole: nothing but the log is known.
    fn no_pack(layout: &Layout) -> Pack {
        Pack {
            version: u64::MAX,
            clean: true,
            age: 0,
            next_nid: 1,
            nodes: 0,
            files: 0,
            generation: 1,
            kept: 0,
            nat_copies: vec![0; (layout.nat_sectors as usize).div_ceil(8)],
            sit_copies: vec![0; (layout.sit_sectors as usize).div_ceil(8)],
            nat: Vec::new(),
            sit: Vec::new(),
            heads: vec![Default::default(); (layout.shape.regions * HEADS) as usize],
            orphans: Vec::new(),
        }
    }

    fn wrong(&mut self, cure: &'static str, what: String) {
        self.report.found += 1;
        *self.report.cures.entry(cure).or_default() += 1;
        if self.report.problems.len() < SAID {
            self.report.problems.push(what);
        }
    }

    fn note(&mut self, what: String) {
        if self.report.notes.len() < SAID {
            self.report.notes.push(what);
        }
    }

    /// Adds to [`Report::lost`]: a repair would give up `count` more things of this kind.
    fn would_lose(&mut self, kind: &'static str, count: u64) {
        if count > 0 {
            *self.report.lost.entry(kind).or_default() += count;
        }
    }

    /// A file in words: its number, and the name in its inode.
    async fn who(&self, ino: Nid) -> Result<String> {
        let name = self.inode(ino).await?.map(|inode| inode.name).unwrap_or_default();
        Ok(match String::from_utf8_lossy(&name) {
            name if name.is_empty() => format!("file {ino}"),
            name => format!("file {ino} ({name})"),
        })
    }

    /// Says how far it is with something, each few hundred steps.
    fn says(&self, what: &'static str, done: u64, of: u64) {
        if done.is_multiple_of(256) || done == of {
            (self.progress)(what, done, of);
        }
    }

    /// Counts what the medium could not give.
    fn heard<T>(&self, read: Result<T>) -> Result<T> {
        let unread = u64::from(matches!(read, Err(FsError::Io(_))));
        self.waited.set(self.waited.get() || unread > 0);
        self.unread.set(self.unread.get() + unread);
        read
    }

    /// A page of the log, or why not.
    async fn read_page(&self, addr: Addr) -> Result<Vec<u8>> {
        if !self.layout.has(addr) {
            return Err(FsError::Io(format!("there is no page {}", addr.0)));
        }
        let mut bytes = vec![0; self.layout.shape.page_bytes()];
        let read = match self.waited.get() {
            false => self.medium.read_again(self.cx, &self.layout, addr, &mut bytes).await,
            true => self.medium.read(self.cx, &self.layout, addr, &mut bytes).await,
        };
        self.heard(read).map(|()| bytes)
    }

    /// A sector of the in-place region, or why not.
    async fn read_sector(&self, at: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; SECTOR];
        let read = match self.waited.get() {
            false => self.medium.read_meta_again(self.cx, at, &mut bytes).await,
            true => self.medium.read_meta(self.cx, at, &mut bytes).await,
        };
        self.heard(read).map(|()| bytes)
    }

    /// What the summary of its segment says of a page, if there is one.
    fn summed(&self, addr: Addr) -> Option<Owner> {
        let (segment, page) = self.layout.segment_of(addr);
        let owners = self.summaries.get(segment as usize)?.as_ref()?;
        owners.get(page as usize).copied()
    }

    /// A page counts as valid, where that is known.
    fn counted(&self, addr: Addr) -> Option<bool> {
        let (segment, page) = self.layout.segment_of(addr);
        let known = *self.segments_known.get(segment as usize)?;
        known.then(|| crate::fs::bit(&self.segments[segment as usize].valid, page))
    }

    fn put_node(&mut self, nid: Nid, node: Found) {
        if (node.ino, node.ofs) != (nid, 0) {
            self.files.insert((node.ino, node.ofs), nid);
        }
        self.nodes.insert(nid, node);
    }

    /// The node with this number in the tree of a file.
    fn node_of(&self, ino: Nid, ofs: u32) -> Option<Nid> {
        let is_inode = |found: &&Found| ofs == 0 && (found.ino, found.ofs) == (ino, 0);
        let by_number = || self.nodes.get(ino).filter(is_inode).map(|_| ino);
        self.files.get(&(ino, ofs)).copied().or_else(by_number)
    }

    /// A node is gone, and names nothing any more.
    async fn drop_node(&mut self, nid: Nid) -> Result<()> {
        if !self.nodes.contains(nid) {
            return Ok(());
        }
        // Before pages of files are claimed it has none.
        let content = match self.has_claimed {
            true => Some(self.content(nid).await?),
            false => None,
        };
        let Some(node) = self.nodes.remove(nid) else { return Ok(()) };
        self.changed.remove(&nid);
        if self.files.get(&(node.ino, node.ofs)) == Some(&nid) {
            self.files.remove(&(node.ino, node.ofs));
        }
        let NatEntry { addr, share, .. } = self.nat[nid as usize];
        self.owners.remove_node(addr, share);
        self.set_nat(nid, NatEntry::default());
        let Some(content) = content else { return Ok(()) };
        for slot in 0..self.tree.slots.max(self.tree.inode_addrs) as u32 {
            let addr = self.tree.addr(&content, node.is_inode(), slot);
            if self.owners.get(addr) == Some(Owner { nid, slot }) {
                self.owners.remove(addr);
            }
        }
        Ok(())
    }

    async fn drop_file(&mut self, ino: Nid) -> Result<()> {
        let nids: Vec<Nid> = self.nodes_of(ino).collect();
        for nid in nids {
            self.drop_node(nid).await?;
        }
        self.dir_pages.retain(|(dir, _), _| *dir != ino);
        self.entering.retain(|(dir, _)| *dir != ino);
        self.orphans.remove(&ino);
        Ok(())
    }

    fn nodes_of(&self, ino: Nid) -> impl Iterator<Item = Nid> {
        let is_inode = |found: &Found| (found.ino, found.ofs) == (ino, 0);
        let inode = self.nodes.get(ino).is_some_and(is_inode).then_some(ino);
        let others = self.files.range((ino, 0)..=(ino, u32::MAX)).map(|(_, nid)| *nid);
        inode.into_iter().chain(others)
    }

    fn set_nat(&mut self, nid: Nid, entry: NatEntry) {
        self.nat[nid as usize] = entry;
        self.nat_wrong.insert(nid);
    }

    /// The content of a node that was found: as it was mended, or as it is read again.
    ///
    /// # Errors
    /// The medium gave it once, and does not any more.
    async fn content(&self, nid: Nid) -> Result<Arc<Vec<u8>>> {
        if let Some(changed) = self.changed.get(&nid)
            && (!mutant!("parafs.mended-node-read-again")
                || self.nat[nid as usize].addr == Addr::NONE)
        {
            return Ok(changed.clone());
        }
        let addr = self.nat[nid as usize].addr;
        let last = self.last.borrow().as_ref().filter(|(of, _)| *of == nid).cloned();
        if let Some((_, content)) = last {
            return Ok(content);
        }
        let mut bytes = vec![0; self.layout.shape.page_bytes()];
        let mut why = String::new();
        // It may be spoiled on its way.
        for _ in 0..2 {
            let read = self.medium.read_again(self.cx, &self.layout, addr, &mut bytes).await;
            match read
                .and_then(|()| Ok(self.lying(&bytes, |other| other == nid)?.into_iter().next()))
            {
                Ok(Some(lying)) => {
                    let content = Arc::new(lying.content);
                    self.last.replace(Some((nid, content.clone())));
                    return Ok(content);
                }
                Ok(None) => why = "there is another one now".into(),
                Err(e) => why = e.why(),
            }
        }
        if mutant!("parafs.node-read-again-is-empty") {
            return Ok(Arc::new(vec![0; self.layout.shape.page_bytes()]));
        }
        Err(FsError::Io(format!("node {nid} was read, and can't be read again: {why}")))
    }

    /// The content of a node that is about to be mended.
    async fn mend(&mut self, nid: Nid) -> Result<&mut [u8]> {
        let content = self.content(nid).await?;
        Ok(Arc::make_mut(self.changed.entry(nid).or_insert(content)).as_mut_slice())
    }

    /// The type and permissions of a file that is there.
    fn mode(&self, ino: Nid) -> Option<u16> {
        self.nodes.get(ino).filter(|node| node.is_inode()).map(|node| node.mode)
    }

    async fn inode(&self, ino: Nid) -> Result<Option<Inode>> {
        Ok(match self.mode(ino) {
            Some(_) => Some(Inode::decode(&self.content(ino).await?)),
            None => None,
        })
    }

    async fn set_inode(&mut self, ino: Nid, inode: &Inode) -> Result<()> {
        inode.encode(self.mend(ino).await?);
        if let Some(found) = self.nodes.get_mut(ino) {
            fields(found, inode);
        }
        Ok(())
    }

    /// Files and directories.
    fn inodes(&self) -> Vec<Nid> {
        self.nodes.iter().filter(|(_, node)| node.is_inode()).map(|(nid, _)| nid).collect()
    }

    /// The first page that a node names, and how many it can name; nothing for one that names none.
    fn names_pages(&self, nid: Nid) -> Option<(u64, u32)> {
        let node = self.nodes.get(nid)?;
        match self.tree.kind(node.ofs)? {
            (NodeKind::Inode, _) if node.is(Found::INLINE) => None,
            (NodeKind::Inode, first) => Some((first, self.tree.inode_addrs as u32)),
            (NodeKind::Direct, first) => Some((first, self.tree.slots as u32)),
            (NodeKind::Indirect | NodeKind::Xattrs, _) => None,
        }
    }

    /// Pages of a file, and where each lies.
    async fn pages_of(&self, ino: Nid) -> Result<BTreeMap<u64, (Addr, Owner)>> {
        let mut found = BTreeMap::new();
        for nid in self.nodes_of(ino) {
            let Some((first, count)) = self.names_pages(nid) else { continue };
            let (content, is_inode) = (self.content(nid).await?, self.is_inode(nid));
            for slot in 0..count {
                let addr = self.tree.addr(&content, is_inode, slot);
                if addr != Addr::NONE {
                    found.insert(first + u64::from(slot), (addr, Owner { nid, slot }));
                }
            }
        }
        Ok(found)
    }

    fn is_inode(&self, nid: Nid) -> bool {
        self.nodes.get(nid).is_some_and(Found::is_inode)
    }

    /// A page of a file is a hole from now on.
    async fn make_hole(&mut self, owner: Owner) -> Result<()> {
        self.set_page(owner, PageRef::NONE).await
    }

    async fn set_page(&mut self, owner: Owner, page: PageRef) -> Result<()> {
        let Some(Found { ino, ofs, .. }) = self.nodes.get(owner.nid).copied() else {
            return Ok(());
        };
        if page == PageRef::NONE {
            self.holed.insert(ino);
        }
        let tree = self.tree;
        tree.set_page(self.mend(owner.nid).await?, ofs == 0, owner.slot, page);
        Ok(())
    }

    /// Notes of a node all that the check needs later without its content.
    fn digest(&self, footer: &Footer, content: &[u8]) -> Found {
        let Footer { nid, ino, ofs, version, .. } = *footer;
        let is_inode = ofs == 0;
        let body = || shared::body_length(content, is_inode);
        let share = match self.layout.shared {
            true => Share::of(body(), content.len()),
            false => Share::WHOLE,
        };
        let mut found = Found { ino, ofs, version, share, ..Found::default() };
        if is_inode {
            let inode = Inode::decode(content);
            fields(&mut found, &inode);
            let names = (0..5).any(|slot| NodePage::child(content, true, slot) != NO_NODE);
            found.set(Found::HAS_CHILDREN, names || inode.xattrs != NO_NODE);
            found.set(Found::SUSPECT, ino == nid && !self.inode_is_sound(nid, content, &inode));
        }
        let count = match self.tree.kind(ofs) {
            Some((NodeKind::Inode, _)) if !found.is(Found::INLINE) => self.tree.inode_addrs,
            Some((NodeKind::Direct, _)) => self.tree.slots,
            Some((NodeKind::Xattrs, _)) => {
                found.set(Found::SUSPECT, !trees::xattrs_are_sound(content));
                0
            }
            _ => 0,
        };
        for slot in 0..count as u32 {
            match self.tree.addr(content, is_inode, slot) {
                Addr::NONE => continue,
                Addr::KEPT | Addr::LOST => found.set(Found::NO_PAGES, true),
                _ => found.set(Found::NAMES, true),
            }
            found.words += 1;
        }
        found
    }
}

/// What is kept of an inode.
fn fields(found: &mut Found, inode: &Inode) {
    (found.mode, found.links) = (inode.mode, inode.links);
    found.pages = u32::try_from(inode.pages).unwrap_or(u32::MAX);
    found.set(Found::INLINE, inode.inline);
}
