//! Checks a file system that nobody has mounted.
//!
//! Owns: what must be true of the structures on the medium, each rule with the place where it is
//! broken. Promises: looks at everything that a checkpoint names, and at nothing else; reads only;
//! a medium full of lies ends in a list of them. Never: shares code with what is checked but the
//! bytes of structures.

use crate::error::{FsError, Result};
use crate::format::{
    Addr, Dentries, Dentry, Inode, Layout, NAT_ENTRIES, NO_NODE, NatEntry, Nid, NodeKind, NodePage,
    Owner, Pack, ROOT, SECTOR, SegmentEntry, Slots, SummarySector, Tree, XATTRS, name_hash,
};
use crate::fs::bit;
use crate::medium::Medium;
use crate::mount;
use flashlane_rt::Cx;
use std::collections::{BTreeMap, BTreeSet};

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
    /// What is broken, in sentences; the first ones where there are very many.
    pub problems: Vec<String>,
    /// How many there are.
    pub found: u64,
}

/// Problems that are kept in words.
const SAID: usize = 1000;

/// A node that was found whole.
struct Found {
    ino: Nid,
    ofs: u32,
    bytes: Vec<u8>,
}

struct Check<'a> {
    cx: &'a Cx,
    medium: &'a Medium,
    layout: Layout,
    tree: Tree,
    slots: Slots,
    pack: Pack,
    segments: Vec<SegmentEntry>,
    nat: Vec<NatEntry>,
    /// Whole nodes, without their contents but for inodes and indirect nodes.
    nodes: BTreeMap<Nid, Found>,
    /// Whose each page is.
    owners: BTreeMap<Addr, Owner>,
    kept: u64,
    report: Report,
}

/// Looks through a file system.
///
/// # Errors
/// There is none, no checkpoint of it is whole, or the medium can't be read.
pub async fn check(cx: &Cx, medium: &Medium) -> Result<Report> {
    let sb = mount::superblock(cx, medium).await?;
    let layout = sb.layout;
    let pack = mount::newest_pack(cx, medium, &layout).await?;
    let segments = mount::segment_table(cx, medium, &layout, &pack).await?;
    let page_bytes = layout.shape.page_bytes();
    let mut c = Check {
        cx,
        medium,
        layout,
        tree: Tree::of(page_bytes),
        slots: Slots::of(page_bytes),
        segments,
        nat: Vec::new(),
        nodes: BTreeMap::new(),
        owners: BTreeMap::new(),
        kept: 0,
        report: Report { clean: pack.clean, ..Report::default() },
        pack,
    };
    c.read_nat().await?;
    c.read_nodes().await?;
    c.walk_trees();
    c.compare_segments();
    c.compare_summaries().await?;
    c.walk_names().await?;
    c.compare_counts();
    Ok(c.report)
}

impl Check<'_> {
    fn wrong(&mut self, what: String) {
        self.report.found += 1;
        if self.report.problems.len() < SAID {
            self.report.problems.push(what);
        }
    }

    async fn read_nat(&mut self) -> Result<()> {
        for sector in 0..self.layout.nat_sectors {
            let read = mount::nat_sector(self.cx, self.medium, &self.layout, &self.pack, sector);
            match read.await {
                Ok(found) => self.nat.extend(found.0),
                Err(FsError::Damaged(why)) => {
                    self.wrong(format!("sector {sector} of the node address table: {why}"));
                    self.nat.extend(vec![NatEntry::default(); NAT_ENTRIES as usize]);
                }
                Err(e) => return Err(e),
            }
        }
        for (nid, entry) in &self.pack.nat {
            self.nat[*nid as usize] = *entry;
        }
        self.nat.truncate(self.layout.nids as usize);
        Ok(())
    }

    /// A page of the log, or why not.
    async fn read_page(&self, addr: Addr) -> std::result::Result<Vec<u8>, String> {
        let mut bytes = vec![0; self.layout.shape.page_bytes()];
        let read = self.medium.read(self.cx, &self.layout, addr, &mut bytes).await;
        read.map(|()| bytes).map_err(|e| e.to_string())
    }

    /// Page `addr` is named by `owner`, and by nobody else.
    fn own(&mut self, addr: Addr, owner: Owner, who: &str) {
        if !self.layout.has(addr) {
            return self.wrong(format!("{who} lies at {}, nowhere", addr.0));
        }
        if let Some(other) = self.owners.insert(addr, owner) {
            self.wrong(format!("{who} lies at page {}, as does one of node {}", addr.0, other.nid));
        }
        let (segment, page) = self.layout.segment_of(addr);
        if !bit(&self.segments[segment as usize].valid, page) {
            self.wrong(format!("{who} lies at page {}, which counts as garbage", addr.0));
        }
    }

    async fn read_nodes(&mut self) -> Result<()> {
        for nid in 0..self.nat.len() as u32 {
            let entry = self.nat[nid as usize];
            match (entry.ino, entry.addr.is_page()) {
                (0, false) => continue,
                (0, true) => {
                    self.wrong(format!("node {nid} has a page, and no file"));
                    continue;
                }
                (_, false) => {
                    self.wrong(format!("node {nid} of file {} has no page", entry.ino));
                    continue;
                }
                (_, true) => {}
            }
            self.report.nodes += 1;
            self.own(entry.addr, Owner::node(nid), &format!("node {nid}"));
            if !self.layout.has(entry.addr) {
                continue;
            }
            let bytes = match self.read_page(entry.addr).await {
                Ok(bytes) => bytes,
                Err(why) => {
                    self.wrong(format!("node {nid} can't be read: {why}"));
                    continue;
                }
            };
            match NodePage::check(&bytes) {
                Err(e) => self.wrong(format!("node {nid}: {e}")),
                Ok(footer) if (footer.nid, footer.ino) != (nid, entry.ino) => {
                    let said = format!("node {} of file {}", footer.nid, footer.ino);
                    self.wrong(format!("node {nid} of file {} says it is {said}", entry.ino));
                }
                Ok(footer) => {
                    let found = Found { ino: entry.ino, ofs: footer.ofs, bytes };
                    self.nodes.insert(nid, found);
                }
            }
        }
        Ok(())
    }

    /// Goes over the nodes of all files: each is named once, by the node that should, and names
    /// pages of its own.
    fn walk_trees(&mut self) {
        let inodes: Vec<Nid> =
            self.nodes.iter().filter(|(_, n)| n.ofs == 0).map(|(nid, _)| *nid).collect();
        let mut named = BTreeSet::new();
        for ino in inodes {
            let (inode, bytes) = {
                let node = &self.nodes[&ino];
                (Inode::decode(&node.bytes), node.bytes.clone())
            };
            named.insert(ino);
            if self.nodes[&ino].ino != ino {
                let other = self.nodes[&ino].ino;
                self.wrong(format!("node {ino} is the inode of file {other}"));
            }
            let mut pages = 1;
            if inode.xattrs != NO_NODE {
                pages += 1;
                self.child(ino, inode.xattrs, XATTRS, &mut named);
            }
            if !inode.inline {
                for slot in 0..self.tree.inode_addrs as u32 {
                    pages += self.data(ino, (ino, slot), NodePage::addr(&bytes, true, slot));
                }
            }
            let n = self.tree.slots as u32;
            let first = [1, 2, 3, 3 + (n + 1), 3 + 2 * (n + 1)];
            for (slot, ofs) in first.into_iter().enumerate() {
                let child = NodePage::child(&bytes, true, slot as u32);
                pages += self.subtree(ino, child, ofs, &mut named);
            }
            if pages != inode.pages {
                self.wrong(format!("file {ino} counts {} pages, and has {pages}", inode.pages));
            }
        }
        let lost: Vec<(Nid, Nid)> = self
            .nodes
            .iter()
            .filter(|(nid, _)| !named.contains(nid))
            .map(|(nid, node)| (*nid, node.ino))
            .collect();
        for (nid, ino) in lost {
            self.wrong(format!("node {nid} of file {ino} is named by nothing"));
        }
    }

    /// A node is there, is the one that it should be, and was not named before.
    fn child(&mut self, ino: Nid, nid: Nid, ofs: u32, named: &mut BTreeSet<Nid>) -> bool {
        match self.nodes.get(&nid) {
            None => self.wrong(format!("file {ino} names node {nid}, which is not there")),
            Some(node) if (node.ino, node.ofs) != (ino, ofs) => {
                let is = format!("number {} of file {}", node.ofs, node.ino);
                self.wrong(format!("file {ino} names node {nid} as number {ofs}; it is {is}"));
            }
            Some(_) if !named.insert(nid) => {
                self.wrong(format!("node {nid} of file {ino} is named twice"));
            }
            Some(_) => return true,
        }
        false
    }

    /// Pages of a node and of what is below it.
    fn subtree(&mut self, ino: Nid, nid: Nid, ofs: u32, named: &mut BTreeSet<Nid>) -> u64 {
        if nid == NO_NODE {
            return 0;
        }
        if !self.child(ino, nid, ofs, named) {
            return 1;
        }
        let bytes = self.nodes[&nid].bytes.clone();
        let n = self.tree.slots as u32;
        let mut pages = 1;
        match self.tree.kind(ofs) {
            Some((NodeKind::Direct, _)) => {
                for slot in 0..n {
                    pages += self.data(ino, (nid, slot), NodePage::addr(&bytes, false, slot));
                }
            }
            Some((NodeKind::Indirect, _)) => {
                // Below the root of the last tree there are indirect nodes, each with its own.
                let root = 3 + 2 * (n + 1);
                let width = if ofs == root { n + 1 } else { 1 };
                for slot in 0..n {
                    let child = NodePage::child(&bytes, false, slot);
                    pages += self.subtree(ino, child, ofs + 1 + slot * width, named);
                }
            }
            _ => self.wrong(format!("node {nid} of file {ino} has number {ofs}, which can't be")),
        }
        pages
    }

    /// A page of a file.
    fn data(&mut self, ino: Nid, (nid, slot): (Nid, u32), addr: Addr) -> u64 {
        match addr {
            Addr::NONE => return 0,
            Addr::KEPT => self.kept += 1,
            addr => {
                self.report.pages += 1;
                self.own(addr, Owner { nid, slot }, &format!("a page of file {ino}"));
            }
        }
        1
    }

    /// What counts as valid is named by something.
    fn compare_segments(&mut self) {
        for segment in 0..self.layout.shape.segments() {
            for page in 0..self.layout.shape.segment_pages {
                let addr = self.layout.addr(segment, page);
                let valid = bit(&self.segments[segment as usize].valid, page);
                if valid && !self.owners.contains_key(&addr) {
                    self.wrong(format!(
                        "page {page} of segment {segment} counts as valid, and nothing names it"
                    ));
                }
            }
        }
        let mut heads = BTreeSet::new();
        let pack = self.pack.heads.clone();
        for segment in pack.iter().flat_map(|h| h.open.iter().map(|(s, _)| s).chain(h.next.iter()))
        {
            if !heads.insert(*segment) {
                self.wrong(format!("segment {segment} has two heads"));
            }
        }
        for (segment, from) in pack.iter().flat_map(|heads| heads.open.iter().copied()) {
            let valid = &self.segments[segment as usize].valid;
            let behind = (from..self.layout.shape.segment_pages).find(|page| bit(valid, *page));
            if let Some(page) = behind {
                self.wrong(format!(
                    "page {page} of segment {segment} is valid before it was written"
                ));
            }
        }
    }

    /// Cleaning finds whose each valid page is.
    async fn compare_summaries(&mut self) -> Result<()> {
        let mut by_segment: BTreeMap<u32, Vec<(u32, Owner)>> = BTreeMap::new();
        for (addr, owner) in &self.owners {
            if self.layout.has(*addr) {
                let (segment, page) = self.layout.segment_of(*addr);
                by_segment.entry(segment).or_default().push((page, *owner));
            }
        }
        for (segment, pages) in by_segment {
            let mut owners = Vec::new();
            for part in 0..self.layout.summary_sectors {
                let mut bytes = vec![0; SECTOR];
                let at = self.layout.summary_at(segment) + u64::from(part);
                self.medium.read_meta(self.cx, at, &mut bytes).await?;
                match SummarySector::decode(&bytes, segment, part) {
                    Ok(found) => owners.extend(found.0),
                    Err(e) => self.wrong(format!("segment {segment}: {e}")),
                }
            }
            for (page, owner) in pages {
                let said = owners.get(page as usize).copied().unwrap_or_default();
                if said != owner {
                    self.wrong(format!(
                        "the summary of segment {segment} has page {page} as word {} of node {}; it \
                         is word {} of node {}",
                        said.slot, said.nid, owner.slot, owner.nid
                    ));
                }
            }
        }
        Ok(())
    }

    /// Entries of a directory.
    async fn entries(&mut self, dir: Nid, inode: &Inode) -> Vec<Dentry> {
        let mut found = Vec::new();
        let mut counted = 0;
        for page in 0..Slots::pages(inode.levels.min(crate::format::LEVELS_MAX)) {
            let Some(addr) = self.addr_of(dir, page) else { continue };
            if !addr.is_page() || !self.layout.has(addr) {
                continue;
            }
            let bytes = match self.read_page(addr).await {
                Ok(bytes) => bytes,
                Err(why) => {
                    self.wrong(format!("page {page} of directory {dir} can't be read: {why}"));
                    continue;
                }
            };
            let entries = Dentries::new(self.slots, &bytes[..]);
            let mut slot = 0;
            let mut bad = Vec::new();
            while let Some(at) = entries.next(slot) {
                let entry = entries.get(at);
                slot = at + Slots::taken(entry.name.len());
                counted += 1;
                let hash = name_hash(&entry.name);
                let levels = inode.levels.min(crate::format::LEVELS_MAX);
                let here = (0..levels).any(|level| {
                    let (first, count) = Slots::bucket(level, hash);
                    (first..first + count).contains(&page)
                });
                if !here || entries.find(&entry.name, hash) != Some(at) {
                    bad.push(String::from_utf8_lossy(&entry.name).into_owned());
                }
                found.push(entry);
            }
            for name in bad {
                self.wrong(format!("\"{name}\" in directory {dir} can't be found by its name"));
            }
        }
        if counted != inode.entries {
            let says = inode.entries;
            self.wrong(format!("directory {dir} counts {says} entries, and has {counted}"));
        }
        found
    }

    /// Where a page of a file lies, as far as the nodes that lead there are.
    fn addr_of(&self, ino: Nid, index: u64) -> Option<Addr> {
        let position = self.tree.position(index)?;
        let mut nid = ino;
        for step in &position.steps {
            let node = self.nodes.get(&nid)?;
            nid = NodePage::child(&node.bytes, node.ofs == 0, step.slot);
        }
        let node = self.nodes.get(&nid)?;
        Some(NodePage::addr(&node.bytes, node.ofs == 0, position.slot))
    }

    fn inode(&self, ino: Nid) -> Option<Inode> {
        let node = self.nodes.get(&ino).filter(|node| node.ofs == 0)?;
        Some(Inode::decode(&node.bytes))
    }

    /// From the root on every name leads to a file, and every file has as many as it counts.
    async fn walk_names(&mut self) -> Result<()> {
        let mut names: BTreeMap<Nid, u32> = BTreeMap::new();
        let mut waiting = vec![ROOT];
        let mut seen = BTreeSet::from([ROOT]);
        if self.inode(ROOT).is_none_or(|root| root.mode & 0o170_000 != 0o040_000) {
            self.wrong("there is no root directory".into());
            return Ok(());
        }
        while let Some(dir) = waiting.pop() {
            let Some(inode) = self.inode(dir) else { continue };
            self.report.directories += 1;
            let mut subdirs = 0;
            let mut here = BTreeSet::new();
            for entry in self.entries(dir, &inode).await {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if !here.insert(entry.name) {
                    self.wrong(format!("\"{name}\" is twice in directory {dir}"));
                }
                let Some(child) = self.inode(entry.ino) else {
                    self.wrong(format!(
                        "\"{name}\" in directory {dir} is file {}, which is not there",
                        entry.ino
                    ));
                    continue;
                };
                if (child.mode >> 12) as u8 != entry.kind {
                    self.wrong(format!("\"{name}\" in directory {dir} has another type"));
                }
                if child.mode & 0o170_000 == 0o040_000 {
                    subdirs += 1;
                    if child.parent != dir {
                        self.wrong(format!("directory {} does not know its parent", entry.ino));
                    }
                    match seen.insert(entry.ino) {
                        true => waiting.push(entry.ino),
                        false => self.wrong(format!("directory {} has two names", entry.ino)),
                    }
                } else {
                    *names.entry(entry.ino).or_default() += 1;
                }
            }
            if inode.links != 2 + subdirs {
                self.wrong(format!(
                    "directory {dir} counts {} links, and has {}",
                    inode.links,
                    2 + subdirs
                ));
            }
        }
        let inodes: Vec<Nid> =
            self.nodes.iter().filter(|(_, n)| n.ofs == 0).map(|(nid, _)| *nid).collect();
        for ino in inodes {
            let Some(inode) = self.inode(ino) else { continue };
            let orphan = self.pack.orphans.contains(&ino);
            if inode.mode & 0o170_000 == 0o040_000 {
                match (seen.contains(&ino), inode.links, orphan) {
                    (true, ..) | (false, 0, true) => {}
                    _ => self.wrong(format!("directory {ino} is in no directory")),
                }
                continue;
            }
            self.report.files += 1;
            let found = names.get(&ino).copied().unwrap_or(0);
            if found != inode.links {
                self.wrong(format!("file {ino} counts {} names, and has {found}", inode.links));
            }
            if found == 0 && !orphan {
                self.wrong(format!("file {ino} has no name, and is not to be deleted"));
            }
        }
        Ok(())
    }

    fn compare_counts(&mut self) {
        let (nodes, files) = (self.report.nodes, self.report.files + self.report.directories);
        let orphan_dirs = self
            .pack
            .orphans
            .iter()
            .filter(|ino| self.inode(**ino).is_some_and(|i| i.mode & 0o170_000 == 0o040_000))
            .filter(|ino| self.inode(**ino).is_some_and(|i| i.links == 0))
            .count() as u64;
        let pack = [
            ("nodes", u64::from(self.pack.nodes), nodes),
            ("files", u64::from(self.pack.files), files + orphan_dirs),
            ("pages that room is kept for", self.pack.kept, self.kept),
        ];
        for (what, says, found) in pack {
            if says != found {
                self.wrong(format!("the checkpoint counts {says} {what}; there are {found}"));
            }
        }
        for ino in self.pack.orphans.clone() {
            if self.inode(ino).is_none() {
                self.wrong(format!("file {ino} is to be deleted, and is not there"));
            }
        }
    }
}
