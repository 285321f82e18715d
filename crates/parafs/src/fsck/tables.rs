//! What lies in the in-place region, and nodes in the log.
//!
//! Owns: which sectors can be read, where each node really lies. Promises: a node that is whole,
//! counts as valid and is not where the table says is found; of several the newest one counts. Never:
//! takes a page of a file for a node: the summary of its segment, or the head that filled it, says
//! which it is.

use super::{Found, Model, Owners, PAGES_BEHIND, cure};
use crate::error::{FsError, Result};
use crate::format::shared::{self, Lying};
use crate::format::{
    Addr, Footer, FormatError, HEADS, Inode, NAT_ENTRIES, NatEntry, Nid, NodePage, Owner,
    SegmentEntry, Share, SitSector, SummarySector, WindowSector,
};
use crate::fs::bit;
use crate::segments::Heat;
use crate::{mount, recover};
use flashlane_base::mutant;
use std::collections::{BTreeMap, BTreeSet};

/// A node that the log has, and the table does not lead to.
struct Candidate {
    /// Higher for the one that counts: it counts as valid, the checkpoint before it, the fsync (none is
    /// the checkpoint behind all fsyncs), its place.
    rank: (bool, u64, u32, u32),
    node: Found,
    /// Whose its page is.
    owner: Owner,
}

fn is_node_head(kind: u8) -> bool {
    Heat::ALL.get(usize::from(kind)).is_some_and(|heat| heat.is_node())
}

impl Model<'_> {
    pub(super) async fn compare_superblocks(&mut self) {
        for copy in 0..mount::SUPERBLOCKS {
            let copy_is = mount::superblock_copy(self.cx, self.medium, copy).await;
            let why = match self.heard(copy_is) {
                Ok(sb) if sb == self.sb => continue,
                Ok(_) => "it says something else than the other one".into(),
                Err(FsError::NotFound) => "it is none".into(),
                Err(e) => e.why(),
            };
            self.superblock_lost = true;
            self.wrong(cure::SUPERBLOCK, format!("copy {copy} of the superblock: {why}"));
        }
    }

    /// The checkpoint before the one that counts.
    pub(super) async fn compare_packs(&mut self) {
        let version = self.pack.version;
        let place = (version as usize + 1) % self.layout.packs.len();
        let why = match self.heard(mount::pack(self.cx, self.medium, &self.layout, place).await) {
            Ok(pack) if pack.version + 1 == version => return,
            Ok(pack) => format!("it is number {}, and the other one {version}", pack.version),
            Err(e) => e.why(),
        };
        let read = self.read_sector(self.layout.packs[place]).await;
        let said = format!("the checkpoint in place {place} can't be used: {why}");
        match &read {
            // The first one of all.
            Ok(head) if head.iter().all(|b| *b == 0) && version <= self.sb.first_version + 1 => {}
            // A head is written whole, the rest may be cut short.
            Ok(head) if mount::is_pack_head(head, &self.layout) => {
                self.note(format!("{said}; number {version} counts"));
            }
            _ => self.wrong(cure::PACK, said),
        }
    }

    pub(super) async fn read_segments(&mut self) {
        let (per, all) = (self.layout.sit_entries(), self.layout.shape.segments());
        for sector in 0..self.layout.sit_sectors {
            let first = sector * per;
            let count = per.min(all - first);
            let at = self.layout.sit_at(sector, bit(&self.pack.sit_copies, sector));
            let read = self.read_sector(at).await;
            match read.and_then(|bytes| Ok(SitSector::decode(&bytes, sector, count, &self.layout)?))
            {
                Ok(found) => {
                    for (i, entry) in found.0.into_iter().enumerate() {
                        self.segments[first as usize + i] = entry;
                    }
                }
                Err(e) => {
                    self.tables_unread += u64::from(matches!(e, FsError::Io(_)));
                    let said = format!("sector {sector} of the segment table: {}", e.why());
                    self.wrong(cure::SEGMENTS, said);
                    let known = &mut self.segments_known[first as usize..];
                    known.iter_mut().take(count as usize).for_each(|known| *known = false);
                }
            }
        }
        for (segment, entry) in &self.pack.sit {
            self.segments[*segment as usize] = entry.clone();
            self.segments_known[*segment as usize] = true;
        }
    }

    pub(super) async fn read_nat(&mut self) {
        for sector in 0..self.layout.nat_sectors {
            let read = mount::nat_sector(self.cx, self.medium, &self.layout, &self.pack, sector);
            match self.heard(read.await) {
                Ok(found) => {
                    let first = (sector * NAT_ENTRIES) as usize;
                    let room = self.nat.iter_mut().skip(first);
                    room.zip(found.0).for_each(|(to, entry)| *to = entry);
                }
                Err(e) => {
                    self.tables_unread += u64::from(matches!(e, FsError::Io(_)));
                    self.nat_lost.insert(sector);
                    self.wrong(cure::NAT, format!("the node address table: {}", e.why()));
                }
            }
        }
        for (nid, entry) in &self.pack.nat {
            self.nat[*nid as usize] = *entry;
        }
    }

    pub(super) async fn read_summaries(&mut self) {
        let all = self.layout.shape.segments();
        for segment in 0..all {
            self.says("summaries", segment.into(), all.into());
            let mut owners = Vec::new();
            for part in 0..self.layout.summary_sectors {
                let read = self.read_sector(self.layout.summary_at(segment) + u64::from(part));
                let read = read.await;
                let read = read.and_then(|bytes| Ok(SummarySector::decode(&bytes, segment, part)?));
                match read {
                    Ok(found) => owners.extend(found.0),
                    Err(_) => break,
                }
            }
            let pages = self.layout.shape.segment_pages as usize;
            if owners.len() >= pages {
                owners.truncate(pages);
                self.summaries[segment as usize] = Some(owners.into());
            }
        }
    }

    /// What a page of nodes says of itself, if it is whole.
    fn footer(&self, bytes: &[u8]) -> std::result::Result<Footer, FormatError> {
        NodePage::check(bytes, self.sb.node_seed())
    }

    /// The nodes that lie in a page, as far as they are `wanted`.
    pub(super) fn lying(
        &self,
        page: &[u8],
        wanted: impl Fn(Nid) -> bool,
    ) -> std::result::Result<Vec<Lying>, FormatError> {
        shared::lying(page, self.sb.node_seed(), wanted)
    }

    /// Nodes where the table has them.
    pub(super) async fn read_nodes(&mut self) -> Result<()> {
        let all = self.nat.len() as u32;
        // Nodes that share a page mostly follow each other.
        let mut last = (Addr::NONE, Vec::new());
        for nid in 0..all {
            self.says("nodes", nid.into(), all.into());
            let entry = self.nat[nid as usize];
            if entry == NatEntry::default() {
                continue;
            }
            let read = match last.0 == entry.addr {
                true => Ok(()),
                false => self.read_page(entry.addr).await.map(|page| last = (entry.addr, page)),
            };
            let why = match read {
                _ if nid == 0 => "there can't be a node 0".into(),
                Err(e) => {
                    if self.layout.has(entry.addr) {
                        self.nodes_unread.insert(entry.addr);
                        self.listed_unread.insert(nid);
                    }
                    format!("node {nid} can't be read: {}", e.why())
                }
                Ok(()) => match self.lying(&last.1, |_| true) {
                    Err(e) => format!("node {nid} at page {}: {e}", entry.addr.0),
                    Ok(lying) => {
                        let is = |l: &&Lying| (l.footer.nid, l.footer.ino) == (nid, entry.ino);
                        if let Some(lying) = lying.iter().find(is) {
                            if lying.footer.version >= self.pack.version {
                                let said = format!("node {nid} is newer than the checkpoint");
                                self.wrong(cure::NEWER, said);
                            }
                            let node = self.digest(&lying.footer, &lying.content);
                            self.place(nid, entry.addr, node, lying.owner).await?;
                            continue;
                        }
                        let said = lying.first().map(|lying| lying.footer).unwrap_or_default();
                        let others = if lying.len() > 1 { ", or another one" } else { "" };
                        let said = format!("node {} of file {}{others}", said.nid, said.ino);
                        format!("node {nid} of file {} is {said} by itself", entry.ino)
                    }
                },
            };
            self.wrong(cure::NAT, why);
            self.set_nat(nid, NatEntry::default());
            self.led_nowhere.insert(nid);
            self.lost_nodes.insert((entry.ino, nid));
        }
        Ok(())
    }

    async fn place(&mut self, nid: Nid, addr: Addr, node: Found, owner: Owner) -> Result<()> {
        let entry = self.nat[nid as usize];
        if entry.share.units() < node.share.units() {
            let said = format!("node {nid} at page {} takes more of it than is listed", addr.0);
            self.wrong(cure::NAT, said);
            self.set_nat(nid, NatEntry { share: node.share, ..entry });
        }
        let share = self.nat[nid as usize].share;
        self.owners.add_node(addr, owner, share);
        let Found { ino, ofs, version, .. } = node;
        // Of two with one number in a file the one that was written later counts.
        if let Some(other) = self.node_of(ino, ofs) {
            let older = self.nodes.get(other).is_some_and(|before| before.version < version);
            let said = format!("nodes {other} and {nid} of file {ino} are both number {ofs}");
            self.wrong(cure::NODE_DELETED, said);
            if !older {
                self.owners.remove_node(addr, share);
                self.set_nat(nid, NatEntry::default());
                return Ok(());
            }
            self.drop_node(other).await?;
        }
        self.put_node(nid, node);
        Ok(())
    }

    /// Nodes that lie where no entry leads: of sectors of the table that are lost, of entries that are
    /// wrong, and pages that count as valid.
    pub(super) async fn find_nodes(&mut self) -> Result<()> {
        let lacks = !self.nat_lost.is_empty() || !self.led_nowhere.is_empty();
        let mut found: BTreeMap<Nid, Candidate> = BTreeMap::new();
        let all = self.layout.shape.segments();
        for segment in 0..all {
            self.says("nodes that no table names", segment.into(), all.into());
            let known = self.segments_known[segment as usize];
            if !known && !lacks {
                continue;
            }
            for page in 0..self.layout.shape.segment_pages {
                let addr = self.layout.addr(segment, page);
                let may = match (self.counted(addr), self.summed(addr)) {
                    (Some(false), _) => false,
                    (_, Some(owner)) => {
                        owner.slot == Owner::NODE || mutant!("parafs.pages-taken-for-nodes")
                    }
                    (Some(true), None) => is_node_head(self.segments[segment as usize].kind),
                    (None, None) => true,
                };
                // A page that nodes share may have others that are not listed.
                let owner = self.owners.get(addr);
                if !may || owner.is_some_and(|owner| owner != Owner::SHARED || !lacks) {
                    continue;
                }
                let Ok(bytes) = self.read_page(addr).await else {
                    if known || self.may_be_there(segment, page) {
                        self.nodes_unread.insert(addr);
                    }
                    continue;
                };
                let Ok(lying) = self.lying(&bytes, |_| true) else { continue };
                for Lying { footer, content, owner: its } in lying {
                    let Footer { nid, version, batch, .. } = footer;
                    let sector = self.nat_lost.contains(&(nid / NAT_ENTRIES));
                    let wanted =
                        sector || self.led_nowhere.contains(&nid) || known && owner.is_none();
                    let is_older = version < self.sb.first_version;
                    // The table says where the newest one is, and that place can't be read.
                    let has_newer = !known && self.listed_unread.contains(&nid);
                    if nid == 0
                        || has_newer && !mutant!("parafs.older-node-counts")
                        || is_older && !mutant!("parafs.older-file-system-counts")
                        || nid >= self.layout.nids
                        || version >= self.pack.version
                        || self.nodes.contains(nid)
                        || !wanted
                    {
                        continue;
                    }
                    let fsync = if batch.number == 0 { u32::MAX } else { batch.number };
                    let rank = (known, version, fsync, addr.0);
                    if found.get(&nid).is_none_or(|other| other.rank < rank) {
                        let node = self.digest(&footer, &content);
                        found.insert(nid, Candidate { rank, node, owner: its });
                    }
                }
            }
        }
        self.would_lose("nodes", self.nodes_unread.len() as u64);
        // Either table, the segment table or the node address table, says which nodes count. If
        // both have damaged sectors, the repair has to guess by the versions of nodes.
        if !self.nat_lost.is_empty() && self.segments_known.contains(&false) {
            self.would_lose("sectors of tables", self.tables_unread);
        }
        let may_lack_nodes = !self.nodes_unread.is_empty() || self.medium.has_lost_blocks();
        if !self.nat_lost.is_empty() && may_lack_nodes {
            let said = "nodes that are found instead may be older than those that can't be read";
            self.wrong(
                cure::OLDER,
                format!("{} sectors of the table of nodes are lost: {said}", self.nat_lost.len()),
            );
            self.would_lose("sectors of the node address table", self.nat_lost.len() as u64);
        }
        for (nid, Candidate { rank, mut node, owner }) in found {
            let addr = Addr(rank.3);
            let sector = self.nat_lost.contains(&(nid / NAT_ENTRIES));
            let doubtful = !sector && !self.led_nowhere.contains(&nid);
            if !sector {
                let of = format!("node {nid} of file {}", node.ino);
                self.wrong(cure::NAT, format!("{of} lies at page {}, and is not listed", addr.0));
            }
            self.set_nat(nid, NatEntry { ino: node.ino, addr, share: node.share });
            self.lost_nodes.remove(&(node.ino, nid));
            node.set(Found::DOUBTFUL, doubtful);
            self.place(nid, addr, node, owner).await?;
        }
        if self.pack.version == u64::MAX {
            // No checkpoint: this one follows all that was found.
            let versions = self.nodes.iter().map(|(_, node)| node.version + 1);
            self.pack.version = versions.max().unwrap_or(self.sb.first_version) + 1;
            let mut newest = 0;
            for ino in self.inodes() {
                newest = newest.max(Inode::decode(&self.content(ino).await?).generation);
            }
            self.pack.generation = newest.wrapping_add(1);
        }
        Ok(())
    }

    /// What counts as valid is named by something, and what is named counts as valid.
    pub(super) fn compare_segments(&mut self) {
        let shape = self.layout.shape;
        for segment in 0..shape.segments() {
            let SegmentEntry { kind, .. } = self.segments[segment as usize];
            let (mut nodes, mut pages) = (false, false);
            for page in 0..shape.segment_pages {
                let addr = self.layout.addr(segment, page);
                let owner = self.owners.get(addr);
                nodes |= owner.is_some_and(|owner| owner.slot == Owner::NODE);
                pages |= owner.is_some_and(|owner| owner.slot != Owner::NODE);
                let what = match (self.counted(addr), owner) {
                    (Some(true), None) => "counts as valid, and nothing names it".to_string(),
                    (Some(false), Some(owner)) => {
                        let who = match owner == Owner::SHARED {
                            true => "nodes lie in it".into(),
                            false => format!("node {} names it", owner.nid),
                        };
                        format!("counts as garbage, and {who}")
                    }
                    (Some(true), Some(_)) => {
                        let counted = self.segments[segment as usize].units(page);
                        let named = self.owners.units(addr);
                        if counted == named || mutant!("parafs.units-not-compared") {
                            continue;
                        }
                        let of = Share::PAGE;
                        format!("counts {counted} of {of} units in use, and nodes have {named}")
                    }
                    _ => continue,
                };
                self.wrong(cure::SEGMENTS, format!("page {page} of segment {segment} {what}"));
            }
            let is = is_node_head(kind);
            if (nodes || pages) && (usize::from(kind) >= Heat::ALL.len() || is != nodes) {
                let should = if nodes { Heat::WarmNode } else { Heat::WarmData };
                self.kinds.insert(segment, should as u8);
                if self.segments_known[segment as usize] {
                    let what = if nodes { "nodes" } else { "pages of files" };
                    let said = format!("segment {segment} is of head {kind}, and holds {what}");
                    self.wrong(cure::SEGMENTS, said);
                }
            }
        }
        self.compare_heads();
    }

    fn compare_heads(&mut self) {
        let mut seen = BTreeSet::new();
        let heads = self.pack.heads.clone();
        for (at, head) in heads.iter().enumerate() {
            let open = head.open.iter().map(|(segment, page)| (*segment, *page, true));
            let next = head.next.iter().map(|segment| (*segment, 0, false));
            for (segment, from, is_open) in open.chain(next) {
                if !seen.insert(segment) {
                    self.wrong(cure::PACK, format!("segment {segment} has two heads"));
                }
                if self.layout.region_of(segment) != at as u32 / HEADS {
                    self.wrong(cure::PACK, format!("segment {segment} has a head elsewhere"));
                }
                let kind = self.segments[segment as usize].kind;
                let known = self.segments_known[segment as usize];
                if is_open && known && u32::from(kind) != at as u32 % HEADS {
                    let said = format!("segment {segment} is of head {kind}");
                    self.wrong(cure::PACK, format!("{said}, and is open for another one"));
                }
                let named = |page| self.owners.contains(self.layout.addr(segment, page));
                let behind = (from..self.layout.shape.segment_pages).find(|page| named(*page));
                if let Some(page) = behind {
                    let said = format!("page {page} of segment {segment}");
                    self.wrong(cure::PACK, format!("{said} is named, and a head would fill it"));
                }
            }
        }
    }

    /// Cleaning finds whose each valid page is.
    pub(super) fn compare_summaries(&mut self) {
        let mut damaged = BTreeSet::new();
        let none = Owners::new(self.layout);
        let owners = std::mem::replace(&mut self.owners, none);
        for (addr, owner) in owners.iter() {
            let (segment, page) = self.layout.segment_of(addr);
            let said = match self.summed(addr) {
                Some(said) if said == owner => continue,
                None if !damaged.insert(segment) => continue,
                None => format!("the summary of segment {segment} can't be read"),
                Some(said) => format!(
                    "the summary of segment {segment} has page {page} as word {} of node {}; it is \
                     word {} of node {}",
                    said.slot, said.nid, owner.slot, owner.nid
                ),
            };
            self.unsummed.insert(segment);
            self.wrong(cure::SUMMARY, said);
        }
        self.owners = owners;
    }

    /// Sectors of the update window. Each is written whole, so one that is not was damaged.
    pub(super) async fn read_window(&mut self) {
        let (mut goes_on, mut given) = (true, Vec::new());
        for number in 0..self.layout.window_sectors {
            let read = self.read_sector(self.layout.window + number).await;
            let unwritten = read.as_ref().is_ok_and(|bytes| bytes.iter().all(|b| *b == 0));
            match read.and_then(|bytes| Ok(WindowSector::decode(&bytes, number)?)) {
                Ok(window) if window.version > self.pack.version => {
                    self.later = true;
                    self.window_lost.push(number);
                    let said = format!("checkpoint {} was there, and is lost", window.version);
                    self.wrong(cure::WINDOW, format!("{said}, with what was done since"));
                }
                Ok(window) => {
                    goes_on &= window.version == self.pack.version;
                    let all = self.layout.shape.segments();
                    let named = window.segments().filter(|(segment, _)| goes_on && *segment < all);
                    given.extend(named);
                }
                Err(_) if unwritten => goes_on = false,
                Err(e) => {
                    let counts = goes_on && !self.pack.clean;
                    let unread = u64::from(counts && matches!(e, FsError::Io(_)));
                    if !mutant!("parafs.window-given-up-unasked") {
                        self.would_lose("sectors of the update window", unread);
                    }
                    // Behind its end there is nothing to lose.
                    match goes_on || mutant!("parafs.window-ends-nowhere") {
                        true => self.window_lost.push(number),
                        false => self.window_spoiled.push(number),
                    }
                    let said = format!("sector {number} of the update window: {}", e.why());
                    self.wrong(cure::WINDOW, said);
                }
            }
        }
        self.window.extend(given.iter().map(|(segment, _)| *segment));
        let heads = self.pack.heads.iter();
        self.window.extend(heads.flat_map(|head| {
            let open = head.open.iter().map(|(segment, _)| *segment);
            open.chain(head.next.iter().copied())
        }));
        match self.window_lost.is_empty() {
            false => self.find_fsyncs().await,
            true => self.find_lost(&given).await,
        }
    }

    /// Scans the segments in which a mount looks for nodes of fsyncs: those that heads had at the
    /// checkpoint, and those `given` to heads since. Reports a node of a later checkpoint than the
    /// one that counts; if there is none, pages that were written and can't be read.
    async fn find_lost(&mut self, given: &[(u32, u8)]) {
        let given = if mutant!("parafs.lost-in-heads-only") { &[] } else { given };
        let all = self.layout.shape.segments();
        let mut unread = 0;
        for (segment, from) in recover::with_nodes(&self.pack.heads, given, all) {
            let mut failed = Vec::new();
            for page in from..self.layout.shape.segment_pages {
                let read = self.read_page(self.layout.addr(segment, page)).await;
                failed.extend(read.is_err().then_some(page));
                let footer = read.ok().and_then(|bytes| self.footer(&bytes).ok());
                let later = footer.filter(|footer| footer.version > self.pack.version);
                if let Some(footer) = later {
                    self.later = true;
                    let said = format!("checkpoint {} was there, and is lost", footer.version);
                    return self.wrong(cure::PACK, format!("{said}, with what was done since"));
                }
            }
            unread += self.medium.lost_pages(&self.layout, segment, &failed);
        }
        self.would_lose_fsyncs(unread);
    }

    /// So many pages were written after the checkpoint, and can't be read.
    fn would_lose_fsyncs(&mut self, pages: u64) {
        if pages > 0 && !self.pack.clean && !mutant!("parafs.unread-fsyncs-given-up") {
            let said = "written after the last checkpoint can't be read; they may hold fsyncs";
            self.wrong(cure::FSYNCS, format!("{pages} pages {said}"));
            self.would_lose(PAGES_BEHIND, pages);
        }
    }

    /// Segments with what fsyncs have written behind the checkpoint, where the window does not say.
    async fn find_fsyncs(&mut self) {
        let mut unread = 0;
        for segment in 0..self.layout.shape.segments() {
            let mut failed = Vec::new();
            for page in 0..self.layout.shape.segment_pages {
                let addr = self.layout.addr(segment, page);
                let Ok(bytes) = self.read_page(addr).await else {
                    failed.extend((self.counted(addr) != Some(true)).then_some(page));
                    // What an fsync has written may be there, and be readable another time.
                    if self.may_be_there(segment, page) {
                        self.window.insert(segment);
                    }
                    continue;
                };
                let Ok(footer) = self.footer(&bytes) else { continue };
                self.later |= footer.version > self.pack.version;
                if footer.version != self.pack.version || footer.batch.number == 0 {
                    continue;
                }
                self.window.insert(segment);
                for slot in 0..self.tree.slots as u32 {
                    let addr = self.tree.addr(&bytes, footer.ofs == 0, slot);
                    if self.layout.has(addr) {
                        self.window.insert(self.layout.segment_of(addr).0);
                    }
                }
            }
            unread += self.medium.lost_pages(&self.layout, segment, &failed);
        }
        self.would_lose_fsyncs(unread);
    }
}
