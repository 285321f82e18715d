//! Inodes, the trees of files' nodes, and the pages that they name.
//!
//! Owns: what fields of an inode can be, which node names which. Promises: each node is named once,
//! by the node that should; a page is one file's; a page of a regular file that a lost node may
//! have named is [`Addr::LOST`]; what else is lost of a tree is a hole, and the rest stays. Never:
//! reads the medium, but for nodes that were found there.

use super::compact::Bits;
use super::{Found, Model, cure, is_dir, is_file};
use crate::error::Result;
use crate::format::{
    Addr, Inode, LEVELS_MAX, NAT_ENTRIES, NO_NODE, NatEntry, Nid, NodeKind, NodePage, Owner,
    PageRef, Slots, XATTRS,
};
use flashlane_base::mutant;
use std::sync::Arc;

/// Most empty places below one lost indirect node that a repair fills with nodes of lost pages. If
/// there are more, it fills none of them and reports a problem.
const LOST_NODES_MAX: usize = 64;
/// Types of files, as the upper four bits of a mode have them.
const TYPES: [u16; 7] = [0o10, 0o04, 0o12, 0o01, 0o02, 0o06, 0o14];

fn with_type(mode: u16, kind: u16) -> u16 {
    mode & 0o7_777 | kind << 12
}

/// An inode names nodes of its file's tree.
fn names_nodes(content: &[u8]) -> bool {
    (0..5).any(|slot| NodePage::child(content, true, slot) != NO_NODE)
}

/// Of a node of extended attributes: how many are whole, how many it says that there are, where the
/// whole ones end. Names ascend, and values end within the page.
fn whole_xattrs(content: &[u8]) -> (u16, usize, usize) {
    let body = NodePage::body(content);
    let number = |at: usize| usize::from(crate::format::get16(body, at));
    let (mut at, mut count) = (2, 0u16);
    let mut last: &[u8] = &[];
    while usize::from(count) < number(0) {
        let (name, value) = (number(at), number(at + 2));
        let Some(found) = body.get(at + 4..at + 4 + name) else { break };
        let ascends = found > last && (1..=255).contains(&name);
        if !ascends || at + 4 + name + value > body.len() {
            break;
        }
        (last, count, at) = (found, count + 1, at + 4 + name + value);
    }
    (count, number(0), at)
}

/// All attributes of a node are whole, and nothing is behind them.
pub(super) fn xattrs_are_sound(content: &[u8]) -> bool {
    let (count, says, end) = whole_xattrs(content);
    usize::from(count) == says && NodePage::body(content)[end..].iter().all(|b| *b == 0)
}

impl Model<'_> {
    /// Words of an inode, taken as addresses: how many name a page that is theirs, and how many can't
    /// be addresses of this file.
    fn as_addresses(&self, ino: Nid, bytes: &[u8]) -> (u32, u32) {
        let (mut good, mut bad) = (0, 0);
        for slot in 0..self.tree.inode_addrs as u32 {
            let addr = NodePage::addr(bytes, true, slot);
            let owner = Some(Owner { nid: ino, slot });
            match addr {
                Addr::NONE | Addr::KEPT | Addr::LOST => {}
                addr if self.layout.has(addr) && self.summed(addr) == owner => good += 1,
                addr if self.layout.has(addr) && self.summed(addr).is_none() => {}
                _ => bad += 1,
            }
        }
        (good, bad)
    }

    /// The fields are those of a file of the type that it says.
    fn fits(&self, inode: &Inode) -> bool {
        let room = self.tree.inline as u64;
        let small = inode.inline && inode.levels == 0 && inode.entries == 0;
        match inode.mode >> 12 {
            0o04 => {
                let size = Slots::pages(inode.levels.min(LEVELS_MAX)) * self.page_bytes();
                !inode.inline && inode.levels <= LEVELS_MAX && inode.size == size
            }
            0o10 => {
                let most = if inode.inline { room } else { self.size_max() };
                inode.levels == 0 && inode.entries == 0 && inode.size <= most
            }
            0o12 => small && inode.size <= room,
            0o01 | 0o02 | 0o06 | 0o14 => small && inode.size == 0,
            _ => false,
        }
    }

    fn page_bytes(&self) -> u64 {
        self.layout.shape.page_bytes() as u64
    }

    fn size_max(&self) -> u64 {
        self.tree.pages_max().saturating_mul(self.page_bytes()).min(i64::MAX as u64)
    }

    /// An inode with fields as they can be. Addresses show whether they are some.
    fn sound_inode(&self, nid: Nid, content: &[u8], says: &Inode) -> Inode {
        let mut inode = says.clone();
        let no_child = !names_nodes(content);
        let (good, bad) = self.as_addresses(nid, content);
        inode.inline = match inode.inline {
            true => !(good > 0 && bad == 0),
            false => {
                let nodes = 1 + u64::from(inode.xattrs != NO_NODE);
                let small = no_child && inode.size <= self.tree.inline as u64;
                small && good == 0 && bad > 0 && inode.pages == nodes
            }
        };
        if !self.fits(&inode) {
            inode = self.closest(inode);
        }
        if inode.parent == NO_NODE || u64::from(inode.parent) >= u64::from(self.layout.nids) {
            inode.parent = crate::format::ROOT;
        }
        inode
    }

    /// Its fields can be as they are.
    pub(super) fn inode_is_sound(&self, nid: Nid, content: &[u8], says: &Inode) -> bool {
        let sound = self.sound_inode(nid, content, says);
        sound == *says && !(sound.inline && names_nodes(content))
    }

    /// Fields that can't be as they are.
    pub(super) async fn look_at_inodes(&mut self) -> Result<()> {
        for nid in self.inodes() {
            let Some(found) = self.nodes.get(nid).copied() else { continue };
            if found.ino != nid {
                let said = format!("node {nid} is the inode of file {}", found.ino);
                self.wrong(cure::NODE_DELETED, said);
                self.drop_node(nid).await?;
                continue;
            }
            if !found.is(Found::SUSPECT) {
                continue;
            }
            let content = self.content(nid).await?;
            let before = Inode::decode(&content);
            let inode = self.sound_inode(nid, &content, &before);
            if inode.inline && names_nodes(&content) {
                // They are walked, and found to be nobody's.
                self.mend_children(nid).await?;
            }
            if inode != before {
                let fields = self.differ(&before, &inode);
                self.wrong(cure::INODE, format!("file {nid} can't have {fields}"));
                self.set_inode(nid, &inode).await?;
            }
        }
        Ok(())
    }

    async fn mend_children(&mut self, nid: Nid) -> Result<()> {
        self.wrong(cure::HOLE, format!("file {nid} lies in its inode, and names nodes"));
        let bytes = self.mend(nid).await?;
        (0..5).for_each(|slot| NodePage::set_child(bytes, true, slot, NO_NODE));
        Ok(())
    }

    /// Of an inode whose fields do not fit its type: another type that they fit, or fields that fit
    /// the type. A directory has levels and entries, and nothing else has.
    fn closest(&self, inode: Inode) -> Inode {
        let kind = inode.mode >> 12;
        let looks_dir = inode.levels > 0 && inode.entries > 0;
        let types = [0o10, 0o04, 0o12].map(|kind| with_type(inode.mode, kind)).into_iter();
        let mut others = types.map(|mode| Inode { mode, ..inode.clone() });
        let keeps = TYPES.contains(&kind) && (kind == 0o04) == looks_dir;
        if !keeps && let Some(other) = others.find(|other| self.fits(other)) {
            return other;
        }
        let mut found = inode;
        if !TYPES.contains(&kind) {
            found.mode = with_type(found.mode, if looks_dir { 0o04 } else { 0o10 });
        }
        let room = self.tree.inline as u64;
        match found.mode >> 12 {
            0o04 => {
                found.inline = false;
                found.levels = found.levels.min(LEVELS_MAX);
                found.size = Slots::pages(found.levels) * self.page_bytes();
            }
            0o10 => {
                (found.levels, found.entries) = (0, 0);
                let most = if found.inline { room } else { self.size_max() };
                found.size = found.size.min(most);
            }
            0o12 => {
                (found.inline, found.levels, found.entries) = (true, 0, 0);
                found.size = found.size.min(room);
            }
            _ => (found.inline, found.levels, found.entries, found.size) = (true, 0, 0, 0),
        }
        found
    }

    fn differ(&self, a: &Inode, b: &Inode) -> String {
        let fields = [
            ("mode", u64::from(a.mode), u64::from(b.mode)),
            ("inline", a.inline.into(), b.inline.into()),
            ("size", a.size, b.size),
            ("levels", a.levels.into(), b.levels.into()),
            ("entries", a.entries, b.entries),
            ("parent", a.parent.into(), b.parent.into()),
        ];
        let said = fields.into_iter().filter(|(_, a, b)| a != b);
        let said: Vec<String> = said.map(|(what, a, _)| format!("{what} {a}")).collect();
        said.join(", ")
    }

    /// Goes over the nodes of all files.
    pub(super) async fn walk_trees(&mut self) -> Result<()> {
        let mut named = Bits::default();
        let inodes = self.inodes();
        for (at, ino) in inodes.iter().copied().enumerate() {
            self.says("trees of files", at as u64, inodes.len() as u64);
            named.insert(ino);
            let Some(found) = self.nodes.get(ino) else { continue };
            if !found.is(Found::HAS_CHILDREN) && !self.changed.contains_key(&ino) {
                continue;
            }
            let inode = Inode::decode(&self.content(ino).await?);
            if inode.xattrs != NO_NODE && !self.child(ino, inode.xattrs, XATTRS, &mut named) {
                self.is_named_by_its_file(ino, inode.xattrs);
                self.set_inode(ino, &Inode { xattrs: NO_NODE, ..inode }).await?;
            }
            let n = self.tree.children as u32;
            let first = [1, 2, 3, 3 + (n + 1), 3 + 2 * (n + 1)];
            for (slot, ofs) in first.into_iter().enumerate() {
                self.subtree(ino, (ino, slot as u32), ofs, &mut named).await?;
            }
        }
        let strays: Vec<(Nid, u32, Nid)> = self
            .files
            .iter()
            .filter(|(_, nid)| !named.contains(**nid))
            .map(|((ino, ofs), nid)| (*ino, *ofs, *nid))
            .collect();
        for (ino, ofs, nid) in strays {
            if named.contains(nid) {
                continue; // another one names it now
            }
            let said = format!("node {nid}, number {ofs} of file {ino}, is named by nothing");
            match self.attach(ino, ofs, nid, &mut named).await? {
                true => self.wrong(cure::NODE_FOUND, said),
                false => {
                    self.wrong(cure::NODE_DELETED, said);
                    self.drop_node(nid).await?;
                }
            }
        }
        self.fill_below_lost(&mut named).await?;
        self.look_at_xattrs().await
    }

    /// A node is there, is the one that it should be, and was not named before.
    fn child(&mut self, ino: Nid, nid: Nid, ofs: u32, named: &mut Bits) -> bool {
        let why = match self.nodes.get(nid) {
            None => format!("file {ino} names node {nid}, which is not there"),
            Some(node) if (node.ino, node.ofs) != (ino, ofs) => {
                let is = format!("number {} of file {}", node.ofs, node.ino);
                format!("file {ino} names node {nid} as number {ofs}; it is {is}")
            }
            Some(_) if !named.insert(nid) => format!("node {nid} of file {ino} is named twice"),
            Some(_) => return true,
        };
        self.wrong(cure::NODE_LOST, why);
        false
    }

    /// What word `slot` of node `above` names, and what is below that.
    async fn subtree(
        &mut self,
        ino: Nid,
        (above, slot): (Nid, u32),
        ofs: u32,
        named: &mut Bits,
    ) -> Result<()> {
        let is_inode = self.is_inode(above);
        let nid = NodePage::child(&self.content(above).await?, is_inode, slot);
        if nid == NO_NODE {
            return Ok(());
        }
        if !self.child(ino, nid, ofs, named) {
            self.holed.insert(ino);
            let instead = self.instead_of(ino, nid, ofs, named).await?.unwrap_or(NO_NODE);
            NodePage::set_child(self.mend(above).await?, is_inode, slot, instead);
            return Ok(());
        }
        if !matches!(self.tree.kind(ofs), Some((NodeKind::Indirect, _))) {
            return Ok(());
        }
        // Below the root of the last tree there are indirect nodes, each with its own.
        let n = self.tree.children as u32;
        let width = if ofs == 3 + 2 * (n + 1) { n + 1 } else { 1 };
        for slot in 0..n {
            Box::pin(self.subtree(ino, (nid, slot), ofs + 1 + slot * width, named)).await?;
        }
        Ok(())
    }

    /// Makes a node in place of lost direct node `ofs` of a regular file, and returns its number.
    /// Its pages, up to the end of the file, are [`Addr::LOST`]. Returns None for an indirect node,
    /// which [`Model::fill_below_lost`] handles, and if node `ofs` of the file was found under
    /// another number.
    async fn instead_of(
        &mut self,
        ino: Nid,
        nid: Nid,
        ofs: u32,
        named: &mut Bits,
    ) -> Result<Option<Nid>> {
        self.is_named_by_its_file(ino, nid);
        if !matches!(self.tree.kind(ofs), Some((NodeKind::Direct, _))) {
            self.lost_above.insert((ino, ofs));
            return Ok(None);
        }
        match self.node_of(ino, ofs) {
            Some(_) => Ok(None),
            None => self.lost_node(ino, (nid, ofs), named).await,
        }
    }

    /// The place of a lost node in its file is known.
    fn is_named_by_its_file(&mut self, ino: Nid, nid: Nid) {
        self.lost_nodes.remove(&(ino, nid));
    }

    /// Makes direct node `ofs` of a file, whose pages are lost, with number `nid` if no other node
    /// has it. There is a bound for all such nodes: a damaged parent may name thousands that never
    /// were.
    async fn lost_node(
        &mut self,
        ino: Nid,
        (nid, ofs): (Nid, u32),
        named: &mut Bits,
    ) -> Result<Option<Nid>> {
        let inode = self.inode(ino).await?;
        let Some(inode) = inode.filter(|inode| is_file(inode.mode) && !inode.inline) else {
            return Ok(None);
        };
        let Some((NodeKind::Direct, first)) = self.tree.kind(ofs) else { return Ok(None) };
        let pages = inode.size.div_ceil(self.page_bytes()).saturating_sub(first);
        let pages = pages.min(self.tree.slots) as u32;
        // Each entry of a sector of the table that is lost may have been one.
        let tables = match mutant!("parafs.lost-tables-had-no-nodes") {
            true => 0,
            false => self.nat_lost.len() * NAT_ENTRIES as usize,
        };
        let were_lost = self.led_nowhere.len() + self.nodes_unread.len() + tables;
        let is_mutant = mutant!("parafs.lost-node-is-hole");
        if pages == 0 || self.made_for_lost >= LOST_NODES_MAX * were_lost || is_mutant {
            return Ok(None);
        }
        let is_free = (1..self.layout.nids).contains(&nid)
            && self.nat[nid as usize] == NatEntry::default()
            && !self.nodes.contains(nid);
        let made = match is_free {
            true => Some(self.make_node(nid, ino, ofs)),
            false => self.new_node(ino, ofs),
        };
        let Some(nid) = made else { return Ok(None) };
        self.made_for_lost += 1;
        let tree = self.tree;
        let bytes = self.mend(nid).await?;
        (0..pages).for_each(|slot| tree.set_page(bytes, false, slot, PageRef::LOST));
        named.insert(nid);
        Ok(Some(nid))
    }

    /// Puts nodes of [`Addr::LOST`] pages into the empty places below lost indirect nodes. It does
    /// so only if direct nodes may have been lost there: the table lists a node that neither was
    /// found nor is named, or sectors of the table are lost. It reports a problem if the places are
    /// too many or can't be filled.
    async fn fill_below_lost(&mut self, named: &mut Bits) -> Result<()> {
        let tables_lost = !self.nat_lost.is_empty();
        for (ino, above) in std::mem::take(&mut self.lost_above) {
            let lost = self.lost_nodes.range((ino, 0)..=(ino, Nid::MAX)).next().is_some();
            if !lost && !tables_lost {
                continue;
            }
            let Some(inode) = self.inode(ino).await? else { continue };
            let pages = inode.size.div_ceil(self.page_bytes());
            let absent = self.absent_below(ino, above, pages);
            let mut filled = absent.len() <= LOST_NODES_MAX;
            for (_, ofs) in &absent {
                filled = filled && self.fill(ino, *ofs, named).await?;
            }
            if !filled {
                let (who, from) = (self.who(ino).await?, absent[0].0);
                let said = "may be lost: those that can't be found read as zeros";
                self.wrong(cure::NODE_LOST, format!("pages of {who} from {from} on {said}"));
            }
        }
        Ok(())
    }

    /// Puts direct node `ofs` of [`Addr::LOST`] pages into its empty place.
    async fn fill(&mut self, ino: Nid, ofs: u32, named: &mut Bits) -> Result<bool> {
        let lost = self.lost_nodes.range((ino, 0)..=(ino, Nid::MAX)).next_back().copied();
        if let Some(lost) = &lost {
            self.lost_nodes.remove(lost);
        }
        let nid = lost.map_or(NO_NODE, |(_, nid)| nid);
        let Some(made) = self.lost_node(ino, (nid, ofs), named).await? else { return Ok(false) };
        named.remove(made);
        self.attach(ino, ofs, made, named).await
    }

    /// Direct nodes that a file of so many pages may have below an indirect one, and that are not
    /// there: the first page that each names, and its number in the tree. One more than
    /// [`LOST_NODES_MAX`] at most.
    fn absent_below(&self, ino: Nid, above: u32, pages: u64) -> Vec<(u64, u32)> {
        let mut found = Vec::new();
        let Some(first) = self.first_below(above) else { return found };
        for at in (first..pages).step_by(self.tree.slots as usize) {
            let Some(position) = self.tree.position(at) else { break };
            let is_below = position.steps.iter().any(|step| step.ofs == above);
            let Some(last) = position.steps.last().filter(|_| is_below) else { break };
            if self.node_of(ino, last.ofs).is_none() {
                found.push((at, last.ofs));
            }
            if found.len() > LOST_NODES_MAX {
                break;
            }
        }
        found
    }

    /// The first page that a node of a tree leads to.
    fn first_below(&self, ofs: u32) -> Option<u64> {
        // The first direct node below an indirect one follows it, or one more indirect node.
        (ofs..ofs.checked_add(3)?).find_map(|ofs| match self.tree.kind(ofs) {
            Some((NodeKind::Direct, first)) => Some(first),
            _ => None,
        })
    }

    /// Where node `ofs` of a tree hangs: words on the way from the inode, each with the number of the
    /// node that it names.
    fn way_to(&self, ofs: u32) -> Option<Vec<(u32, u32)>> {
        let steps = self.tree.position(self.first_below(ofs)?)?.steps;
        let mut way: Vec<(u32, u32)> = steps.iter().map(|step| (step.slot, step.ofs)).collect();
        let end = way.iter().position(|(_, step)| *step == ofs)?;
        way.truncate(end + 1);
        Some(way)
    }

    /// Has a node that nothing names named again, by the place that it says. Indirect nodes that are
    /// lost on the way are made anew.
    async fn attach(&mut self, ino: Nid, ofs: u32, nid: Nid, named: &mut Bits) -> Result<bool> {
        let Some(inode) = self.inode(ino).await? else { return Ok(false) };
        if ofs == XATTRS {
            let free = inode.xattrs == NO_NODE;
            if free {
                self.set_inode(ino, &Inode { xattrs: nid, ..inode }).await?;
                named.insert(nid);
            }
            return Ok(free);
        }
        let Some(way) = self.way_to(ofs).filter(|_| !inode.inline) else { return Ok(false) };
        let mut above = ino;
        for (slot, step) in way {
            let is_inode = above == ino;
            let below = NodePage::child(&self.content(above).await?, is_inode, slot);
            let there = self.node_of(ino, step);
            let below = match (below, there) {
                (NO_NODE, Some(there)) if !named.contains(there) => there,
                (NO_NODE, None) => match self.new_node(ino, step) {
                    Some(made) => made,
                    None => return Ok(false),
                },
                (NO_NODE, Some(_)) => return Ok(false),
                (below, _) if step == ofs => return Ok(below == nid),
                (below, _) => {
                    above = below;
                    continue;
                }
            };
            NodePage::set_child(self.mend(above).await?, is_inode, slot, below);
            self.subtree(ino, (above, slot), step, named).await?;
            above = below;
        }
        Ok(above == nid)
    }

    /// A node with a number that no other one has.
    pub(super) fn new_node(&mut self, ino: Nid, ofs: u32) -> Option<Nid> {
        let free = |nid: &Nid| {
            self.nat[*nid as usize] == NatEntry::default()
                && !self.nat_wrong.contains(nid)
                && !self.nat_lost.contains(&(nid / NAT_ENTRIES))
        };
        let nid = if ofs == 0 { ino } else { (1..self.free_below).rev().find(free)? };
        if ofs != 0 {
            self.free_below = nid;
        }
        Some(self.make_node(nid, ino, ofs))
    }

    fn make_node(&mut self, nid: Nid, ino: Nid, ofs: u32) -> Nid {
        let ino = if ofs == 0 { nid } else { ino };
        self.put_node(nid, Found { ino, ofs, ..Found::default() });
        self.changed.insert(nid, Arc::new(vec![0; self.layout.shape.page_bytes()]));
        self.set_nat(nid, NatEntry { ino, addr: Addr::NONE });
        nid
    }

    async fn look_at_xattrs(&mut self) -> Result<()> {
        let suspect = |(_, node): &(Nid, &Found)| node.ofs == XATTRS && node.is(Found::SUSPECT);
        let all: Vec<(Nid, Nid)> =
            self.nodes.iter().filter(suspect).map(|(nid, node)| (nid, node.ino)).collect();
        for (nid, of) in all {
            let content = self.content(nid).await?;
            let (count, said, end) = whole_xattrs(&content);
            let said = format!("{count} of {said} are whole");
            self.wrong(cure::XATTRS, format!("extended attributes of file {of}: {said}"));
            let body = NodePage::body_mut(self.mend(nid).await?);
            body[..2].copy_from_slice(&count.to_le_bytes());
            body[end..].fill(0);
        }
        Ok(())
    }

    /// Whose each page is. Where two files name one page, or one that counts as garbage, the summary
    /// says whose it is.
    pub(super) async fn claim_pages(&mut self) -> Result<()> {
        self.has_claimed = true;
        let mut order: Vec<(bool, Nid)> =
            self.nodes.iter().map(|(nid, node)| (node.is(Found::DOUBTFUL), nid)).collect();
        order.sort_unstable();
        let all = order.len() as u64;
        for (at, (_, nid)) in (0..).zip(order) {
            self.says("pages of files", at, all);
            let Some((first, count)) = self.names_pages(nid) else { continue };
            let Some(node) = self.nodes.get(nid).copied() else { continue };
            if !node.is(Found::NAMES) && !self.changed.contains_key(&nid) {
                continue;
            }
            let (ino, content) = (node.ino, self.content(nid).await?);
            // A hole that is made below is in a slot that was looked at before.
            for slot in 0..count {
                let addr = NodePage::addr(&content, node.is_inode(), slot);
                if addr.is_page() {
                    self.claim(Owner { nid, slot }, addr, (ino, first + u64::from(slot))).await?;
                }
            }
        }
        Ok(())
    }

    /// Has a page of a file belong to the word that names it, or makes a hole of it.
    async fn claim(&mut self, owner: Owner, addr: Addr, (ino, page): (Nid, u64)) -> Result<()> {
        let who = || format!("page {page} of file {ino}");
        let lies = || format!("{} lies at page {}", who(), addr.0);
        let other = self.owners.get(addr);
        let summed = self.layout.has(addr).then(|| self.summed(addr)).flatten();
        let theirs = summed.is_some_and(|said| said != owner);
        let why = match other {
            _ if !self.layout.has(addr) => format!("{} lies at {}, nowhere", who(), addr.0),
            Some(other) if other.slot != Owner::NODE && summed == Some(owner) => {
                self.wrong(cure::HOLE, format!("{}, as does one of node {}", lies(), other.nid));
                self.make_hole(other).await?;
                self.owners.insert(addr, owner);
                return Ok(());
            }
            Some(other) => format!("{}, as does one of node {}", lies(), other.nid),
            None if theirs && self.counted(addr) == Some(false) => {
                format!("{}, which counts as garbage of somebody else", lies())
            }
            None => {
                self.owners.insert(addr, owner);
                return Ok(());
            }
        };
        self.wrong(cure::HOLE, why);
        self.make_hole(owner).await
    }

    /// How many words of a node name a page, say that one is kept, or say that one is lost.
    async fn words(&self, nid: Nid) -> Result<[u64; 3]> {
        let mut words = [0; 3];
        let Some((_, count)) = self.names_pages(nid) else { return Ok(words) };
        let Some(node) = self.nodes.get(nid).copied() else { return Ok(words) };
        if !node.is(Found::NO_PAGES) && !self.changed.contains_key(&nid) {
            return Ok([u64::from(node.words), 0, 0]);
        }
        let content = self.content(nid).await?;
        for slot in 0..count {
            match NodePage::addr(&content, node.is_inode(), slot) {
                Addr::NONE => {}
                Addr::KEPT => words[1] += 1,
                Addr::LOST => words[2] += 1,
                _ => words[0] += 1,
            }
        }
        Ok(words)
    }

    /// Pages that each file takes, and what the checkpoint counts.
    pub(super) async fn compare_counts(&mut self) -> Result<()> {
        let inodes = self.inodes();
        let (mut kept, mut pages) = (0, 0);
        for ino in inodes.iter().copied() {
            let nids: Vec<Nid> = self.nodes_of(ino).collect();
            let mut words = [0; 3];
            for nid in &nids {
                let its = self.words(*nid).await?;
                words.iter_mut().zip(its).for_each(|(sum, its)| *sum += its);
            }
            if words[2] > 0 {
                let (lost, who) = (words[2], self.who(ino).await?);
                self.note(format!("{lost} pages of {who} were given up: reading them is an error"));
            }
            pages += words[0];
            kept += words[1];
            let Some(node) = self.nodes.get(ino).copied() else { continue };
            let found = words.iter().sum::<u64>() + nids.len() as u64;
            if u64::from(node.pages) != found || node.pages == u32::MAX {
                let says = self.inode(ino).await?.filter(|inode| inode.pages != found);
                if let Some(mut inode) = says {
                    let says = inode.pages;
                    let said = format!("file {ino} counts {says} pages, and has {found}");
                    self.wrong(cure::COUNT, said);
                    inode.pages = found;
                    self.set_inode(ino, &inode).await?;
                }
            }
            match is_dir(node.mode) {
                true => self.report.directories += 1,
                false => self.report.files += 1,
            }
        }
        (self.report.nodes, self.report.pages) = (self.nodes.len() as u64, pages);
        self.kept = kept;
        let pack = [
            ("nodes", u64::from(self.pack.nodes), self.nodes.len() as u64),
            ("files", u64::from(self.pack.files), inodes.len() as u64),
            ("pages that room is kept for", self.pack.kept, kept),
        ];
        for (what, says, found) in pack {
            if says != found {
                let said = format!("the checkpoint counts {says} {what}; there are {found}");
                self.wrong(cure::COUNT, said);
            }
        }
        if !(1..self.layout.nids).contains(&self.pack.next_nid) {
            let said = format!("the next node would have number {}", self.pack.next_nid);
            self.wrong(cure::COUNT, said);
        }
        Ok(())
    }
}
