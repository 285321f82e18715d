//! Nodes in memory, and the way from a file to its pages.
//!
//! Owns: [`Node`]; addresses of pages, nodes that are made and given back, the room that dirty
//! nodes take. Promises: a node that was changed is in the list of dirty ones; nodes on the way to
//! a page are looked at before one is made. Never: writes a node.

use crate::error::FsError;
use crate::format::shared::{self, Lying};
use crate::format::{
    Addr, Footer, Inode, NO_NODE, NatEntry, Nid, NodeKind, NodePage, PageRef, Position, Share,
};
use crate::segments::Heat;
use crate::state::{Need, State, Step, Stop};
use flashlane_base::mutant;
use std::sync::Arc;

/// What of a node is not on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Dirty {
    Clean,
    /// Times of an inode: fdatasync leaves them.
    Times,
    Changed,
}

#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) ino: Nid,
    /// Its number in its file's tree.
    pub(crate) ofs: u32,
    /// Addresses and children; what an inode says besides is in `inode`.
    pub(crate) bytes: Arc<Vec<u8>>,
    pub(crate) inode: Option<Box<Inode>>,
    pub(crate) dirty: Dirty,
    /// When it was changed last, by [`State::changes`].
    pub(crate) changed: u64,
    /// Units of a page that a dirty node takes when it is written next: a whole page until it is
    /// measured.
    pub(crate) units: u8,
    /// Units that a dirty node has on the medium now, and gives back then.
    pub(crate) gives_back: u8,
    /// Writes of it under way.
    pub(crate) in_flight: u32,
    pub(crate) touched: u64,
}

impl Node {
    /// A node as it is on the medium.
    pub(crate) fn clean(
        ino: Nid,
        ofs: u32,
        bytes: Vec<u8>,
        (touched, changed): (u64, u64),
    ) -> Node {
        let inode = (ofs == 0).then(|| Box::new(Inode::decode(&bytes)));
        let (bytes, dirty) = (Arc::new(bytes), Dirty::Clean);
        let (units, gives_back, in_flight) = (0, 0, 0);
        Node { ino, ofs, bytes, inode, dirty, changed, units, gives_back, in_flight, touched }
    }

    pub(crate) fn is_inode(&self) -> bool {
        self.ofs == 0
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.dirty > Dirty::Clean
    }

    /// Its bytes, to be changed: what is on its way to the medium stays as it was.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        Arc::make_mut(&mut self.bytes).as_mut_slice()
    }
}

impl State {
    /// Keeps nodes in memory that were read from a page: those that the node address table has
    /// there and that are not in memory yet. They go first when nodes are forgotten.
    pub(crate) fn admit(&mut self, addr: Addr, read: Vec<Lying>) {
        for Lying { footer, content, .. } in read {
            let Footer { nid, ino, ofs, .. } = footer;
            let lies = |entry: NatEntry| (entry.addr, entry.ino) == (addr, ino);
            if self.nat.get(nid).is_ok_and(lies) && !self.nodes.contains_key(&nid) {
                self.nodes.insert(nid, Node::clean(ino, ofs, content, (0, self.changes)));
            }
        }
    }

    /// A node, looked at.
    pub(crate) fn node(&mut self, nid: Nid) -> Step<&Node> {
        if !self.nodes.contains_key(&nid) {
            return Err(self.lacks(nid));
        }
        let now = self.tick();
        let node = self.nodes.get_mut(&nid).expect("it is there");
        node.touched = now;
        Ok(node)
    }

    fn lacks(&self, nid: Nid) -> Stop {
        match self.nat.get(nid) {
            Ok(entry) if entry.addr.is_page() => Stop::Need(Need::Node(nid)),
            // Whoever asks for it has its number from before it was given back.
            Ok(_) => Stop::Fail(FsError::Stale),
            Err(stop) => stop,
        }
    }

    /// A node that is about to be changed.
    pub(crate) fn node_mut(&mut self, nid: Nid) -> Step<&mut Node> {
        self.dirtied(nid, Dirty::Changed)
    }

    pub(crate) fn dirtied(&mut self, nid: Nid, how: Dirty) -> Step<&mut Node> {
        self.node(nid)?;
        self.nat.get(nid)?;
        self.changes += 1;
        self.cold_nodes.remove(&nid);
        self.charge(nid, how);
        let node = self.nodes.get_mut(&nid).expect("it was looked at");
        node.changed = self.changes;
        Ok(node)
    }

    /// A node in memory is dirty. While it is, it counts with what it will take in place of what it
    /// takes on the medium.
    pub(crate) fn charge(&mut self, nid: Nid, how: Dirty) {
        let Some(node) = self.nodes.get_mut(&nid) else { return };
        if node.dirty == Dirty::Clean {
            // A node in memory has its entry there.
            let entry = self.nat.get(nid).unwrap_or_default();
            node.gives_back = if entry.addr.is_page() { entry.share.units() } else { 0 };
            node.units = Share::PAGE;
            self.dirty_units += u64::from(node.units);
            self.units_back += u64::from(node.gives_back);
        }
        node.dirty = node.dirty.max(how);
        self.dirty_nodes.insert((node.ino, node.ofs), nid);
        if self.layout.shared && self.unmeasured.last() != Some(&nid) {
            self.unmeasured.push(nid);
        }
    }

    /// A node is not dirty any more, or is gone.
    fn discharge(&mut self, nid: Nid) {
        let Some(node) = self.nodes.get_mut(&nid) else { return };
        if node.dirty > Dirty::Clean {
            self.dirty_units -= u64::from(std::mem::take(&mut node.units));
            self.units_back -= u64::from(std::mem::take(&mut node.gives_back));
        }
        node.dirty = Dirty::Clean;
        self.dirty_nodes.remove(&(node.ino, node.ofs));
    }

    /// The share of a page that a node takes when it is written. `at_least` bytes of its body are
    /// in use by then.
    pub(crate) fn share_of(&self, node: &Node, at_least: usize) -> Share {
        self.share_of_body(&node.bytes, node.is_inode(), at_least)
    }

    /// As [`State::share_of`], of a node with this content.
    pub(crate) fn share_of_body(&self, bytes: &[u8], is_inode: bool, at_least: usize) -> Share {
        match self.layout.shared {
            true => {
                let body = shared::body_length(bytes, is_inode).max(at_least);
                Share::of(body, bytes.len())
            }
            false => Share::WHOLE,
        }
    }

    /// Inodes of empty files that a page has.
    pub(crate) fn most_nodes_of_page(&self) -> u64 {
        let bytes = self.layout.shape.page_bytes();
        match self.layout.shared {
            true => u64::from(Share::PAGE / Share::of(NodePage::end_of_inline(0), bytes).units()),
            false => 1,
        }
    }

    /// There is room for a node that is about to have a body of so many bytes.
    pub(crate) fn room_to_grow(&mut self, nid: Nid, body: usize) -> Step<()> {
        if !self.layout.shared {
            return Ok(());
        }
        self.node(nid)?;
        let entry = self.nat.get(nid)?;
        let node = &self.nodes[&nid];
        let has = if node.is_dirty() { node.units } else { entry.share.units() };
        match self.share_of(node, body).units() > has && !mutant!("parafs.grows-without-room") {
            true => self.room_for(1),
            false => Ok(()),
        }
    }

    /// Measures nodes that have changed since the last operation.
    pub(crate) fn measure(&mut self) {
        for nid in std::mem::take(&mut self.unmeasured) {
            let Some(node) = self.nodes.get(&nid).filter(|node| node.dirty > Dirty::Clean) else {
                continue;
            };
            let (before, now) = (node.units, self.share_of(node, 0).units());
            self.dirty_units = self.dirty_units + u64::from(now) - u64::from(before);
            self.nodes.get_mut(&nid).expect("it is there").units = now;
        }
    }

    /// Pages that dirty nodes take when they are written, at most.
    pub(crate) fn pages_of_dirty(&self) -> u64 {
        let each = self.dirty_nodes.len() as u64;
        match self.layout.shared {
            // Best fit with the largest node first needs at most 11/9 of the least number of pages,
            // and a page more; each of the three heats has pages of its own.
            true => each.min(self.dirty_units * 5 / (4 * u64::from(Share::PAGE)) + 6),
            false => each,
        }
    }

    /// What a new node is written as, and old ones are moved as.
    pub(crate) fn heat_of(&mut self, nid: Nid) -> Step<Heat> {
        let (ino, ofs) = self.node(nid).map(|node| (node.ino, node.ofs))?;
        let is_indirect = matches!(self.tree.kind(ofs), Some((NodeKind::Indirect, _)));
        if is_indirect || self.cold_nodes.contains(&nid) {
            return Ok(Heat::ColdNode);
        }
        let is_dir = self.inode(ino).is_ok_and(|inode| is_dir(inode.mode));
        Ok(if is_dir { Heat::HotNode } else { Heat::WarmNode })
    }

    /// Makes a node with a number that was picked.
    pub(crate) fn make_node(&mut self, nid: Nid, ino: Nid, ofs: u32, inode: Option<Inode>) {
        let bytes = Arc::new(vec![0; self.layout.shape.page_bytes()]);
        let touched = self.tick();
        let inode = inode.map(Box::new);
        self.changes += 1;
        let changed = self.changes;
        let (dirty, units, gives_back, in_flight) = (Dirty::Clean, 0, 0, 0);
        let node =
            Node { ino, ofs, bytes, inode, dirty, changed, units, gives_back, in_flight, touched };
        self.nat.take(nid, ino);
        self.nodes.insert(nid, node);
        self.charge(nid, Dirty::Changed);
    }

    /// A node is not needed any more.
    pub(crate) fn drop_node(&mut self, nid: Nid) -> Step<()> {
        let entry = self.nat.get(nid)?;
        self.changes += 1;
        self.segments.release(entry.addr, entry.share);
        self.nat.give_back(nid);
        self.cold_nodes.remove(&nid);
        self.discharge(nid);
        self.nodes.remove(&nid);
        Ok(())
    }

    /// A node has a place now, on its way to the medium: a share of a page. `as_it_is`: it is clean
    /// from now on; otherwise it has changed since, and is still to be written.
    pub(crate) fn place_node(
        &mut self,
        nid: Nid,
        addr: Addr,
        share: Share,
        as_it_is: bool,
    ) -> Step<()> {
        let before = self.nat.get(nid)?;
        self.segments.release(before.addr, before.share);
        self.nat.set(nid, NatEntry { addr, share, ..before });
        self.segments.add_share(addr, share);
        if as_it_is {
            self.discharge(nid);
        } else if let Some(node) = self.nodes.get_mut(&nid)
            && node.dirty > Dirty::Clean
        {
            self.units_back =
                self.units_back + u64::from(share.units()) - u64::from(node.gives_back);
            node.gives_back = share.units();
        }
        Ok(())
    }

    fn position(&self, index: u64) -> Step<Position> {
        self.tree.position(index).ok_or(Stop::Fail(FsError::TooLarge))
    }

    /// The node that names page `index` of a file, as far as there is one, and which word of it.
    pub(crate) fn find_slot(&mut self, ino: Nid, index: u64) -> Step<Option<(Nid, u32)>> {
        Ok(self.find_slot_or_gap(ino, index)?.ok())
    }

    /// The node that names page `index` of a file, and which word of it. If it does not exist, the
    /// error is the number of pages from `index` on that the missing part of the tree would name.
    pub(crate) fn find_slot_or_gap(
        &mut self,
        ino: Nid,
        index: u64,
    ) -> Step<Result<(Nid, u32), u64>> {
        let position = self.position(index)?;
        let (d, n, mut at) = (self.tree.slots, self.tree.children, ino);
        for (i, step) in position.steps.iter().enumerate() {
            let node = self.node(at)?;
            at = NodePage::child(&node.bytes, node.is_inode(), step.slot);
            if at == NO_NODE {
                let below = &position.steps[i + 1..];
                let inside = below.iter().fold(0, |inside, step| inside * n + u64::from(step.slot));
                let named = d * n.pow(below.len() as u32);
                return Ok(Err(named - (inside * d + u64::from(position.slot))));
            }
        }
        Ok(Ok((at, position.slot)))
    }

    /// Where page `index` of a file lies.
    pub(crate) fn addr_of(&mut self, ino: Nid, index: u64) -> Step<Addr> {
        self.page_of(ino, index).map(|page| page.addr)
    }

    /// Where page `index` of a file lies, and its checksum.
    pub(crate) fn page_of(&mut self, ino: Nid, index: u64) -> Step<PageRef> {
        if self.inode(ino)?.inline {
            return Ok(PageRef::NONE);
        }
        let Some((nid, slot)) = self.find_slot(ino, index)? else { return Ok(PageRef::NONE) };
        let tree = self.tree;
        let node = self.node(nid)?;
        let page = tree.page(&node.bytes, node.is_inode(), slot);
        match !page.addr.is_page() || self.layout.has(page.addr) {
            true => Ok(page),
            false => {
                let why = format!("page {index} of file {ino} lies at {}, nowhere", page.addr.0);
                Err(Stop::Fail(FsError::Damaged(why)))
            }
        }
    }

    /// Nodes that lack for page `index` to have a name: how many, none of them made yet.
    pub(crate) fn missing_nodes(&mut self, ino: Nid, index: u64) -> Step<u64> {
        let position = self.position(index)?;
        let mut at = ino;
        for (i, step) in position.steps.iter().enumerate() {
            let node = self.node(at)?;
            at = NodePage::child(&node.bytes, node.is_inode(), step.slot);
            if at == NO_NODE {
                return Ok((position.steps.len() - i) as u64);
            }
        }
        self.node(at)?;
        Ok(0)
    }

    /// The node that names page `index`, made where it is not there, and which word of it.
    pub(crate) fn slot_for(&mut self, ino: Nid, index: u64) -> Step<(Nid, u32)> {
        let position = self.position(index)?;
        let missing = self.missing_nodes(ino, index)? as usize;
        let mut picked = self.nat.pick(missing)?.into_iter();
        let mut at = ino;
        for step in &position.steps {
            let node = self.node(at)?;
            let is_inode = node.is_inode();
            let mut child = NodePage::child(&node.bytes, is_inode, step.slot);
            if child == NO_NODE {
                child = picked.next().expect("as many as lack");
                let node = self.node_mut(at)?;
                let bytes = node.bytes_mut();
                NodePage::set_child(bytes, is_inode, step.slot, child);
                self.make_node(child, ino, step.ofs, None);
                self.inode_mut(ino)?.pages += 1;
            }
            at = child;
        }
        Ok((at, position.slot))
    }

    /// Page `index` of a file lies elsewhere now: where it lay before.
    pub(crate) fn set_page(&mut self, ino: Nid, index: u64, page: PageRef) -> Step<Addr> {
        let (tree, addr) = (self.tree, page.addr);
        if addr == Addr::NONE && self.find_slot(ino, index)?.is_none() {
            return Ok(Addr::NONE);
        }
        let (nid, slot) = self.slot_for(ino, index)?;
        let node = self.node(nid)?;
        let is_inode = node.is_inode();
        let there = tree.page(&node.bytes, is_inode, slot);
        let before = there.addr;
        if there == page {
            return Ok(before);
        }
        let node = self.node_mut(nid)?;
        tree.set_page(node.bytes_mut(), is_inode, slot, page);
        self.kept += u64::from(addr == Addr::KEPT);
        self.kept = self.kept.saturating_sub(u64::from(before == Addr::KEPT));
        let inode = self.inode_mut(ino)?;
        match (before == Addr::NONE, addr == Addr::NONE) {
            (true, false) => inode.pages += 1,
            (false, true) => inode.pages = inode.pages.saturating_sub(1),
            _ => {}
        }
        Ok(before)
    }

    /// The last node of a file's tree that names pages from `from` on, with what leads there from
    /// the inode (node, word of it); nothing where the inode alone does.
    pub(crate) fn last_node(&mut self, ino: Nid, from: u64) -> Step<Option<Vec<(Nid, u32)>>> {
        let (d, n) = (self.tree.slots, self.tree.children);
        let first = self.tree.inode_addrs;
        // Of each child of the inode the page from which on it names, and how many levels it has.
        let starts =
            [first, first + d, first + 2 * d, first + (2 + n) * d, first + 2 * (1 + n) * d];
        for slot in (0..5).rev() {
            let node = self.node(ino)?;
            let child = NodePage::child(&node.bytes, true, slot as u32);
            if child == NO_NODE {
                continue;
            }
            let levels = [0, 0, 1, 1, 2][slot];
            let end = starts[slot] + d * n.pow(levels);
            if end <= from {
                return Ok(None);
            }
            let mut way = vec![(ino, slot as u32)];
            self.descend(child, levels, &mut way)?;
            return Ok(Some(way));
        }
        Ok(None)
    }

    /// To the last child of the last child.
    fn descend(&mut self, nid: Nid, levels: u32, way: &mut Vec<(Nid, u32)>) -> Step<()> {
        if levels == 0 {
            return Ok(());
        }
        let n = self.tree.children as u32;
        let node = self.node(nid)?;
        let last = (0..n).rev().find(|slot| NodePage::child(&node.bytes, false, *slot) != NO_NODE);
        let Some(slot) = last else { return Ok(()) };
        let child = NodePage::child(&node.bytes, false, slot);
        way.push((nid, slot));
        self.descend(child, levels - 1, way)
    }

    /// Cuts a piece off the end of a file's tree: all that one node names from page `from` on. True
    /// when nothing is left there. Pages in memory are no business of this.
    pub(crate) fn cut_piece(&mut self, ino: Nid, from: u64) -> Step<bool> {
        let Some(way) = self.last_node(ino, from)? else {
            return self.cut_inode(ino, from);
        };
        let (parent, slot) = *way.last().expect("at least the inode");
        let parent_node = self.node(parent)?;
        let is_inode = parent_node.is_inode();
        let nid = NodePage::child(&parent_node.bytes, is_inode, slot);
        let ofs = self.node(nid)?.ofs;
        let tree = self.tree;
        let Some((kind, first)) = tree.kind(ofs) else {
            let why = format!("node {nid} of file {ino} has a number that can't be");
            return Err(Stop::Fail(FsError::Damaged(why)));
        };
        let node = self.node(nid)?;
        let bytes = node.bytes.clone();
        let mut addrs = Vec::new();
        let mut keeps = false;
        if kind == NodeKind::Direct {
            let keep = from.saturating_sub(first).min(self.tree.slots) as u32;
            keeps = keep > 0;
            let slots = keep..self.tree.slots as u32;
            let of = |slot: u32| (slot, self.tree.addr(&bytes, false, slot));
            addrs = slots.map(of).filter(|(_, addr)| *addr != Addr::NONE).collect();
        }
        self.node(ino)?;
        self.nat.get(nid)?;
        if keeps {
            if !addrs.is_empty() {
                let node = self.node_mut(nid)?;
                let bytes = node.bytes_mut();
                addrs.iter().for_each(|(s, _)| tree.set_page(bytes, false, *s, PageRef::NONE));
            }
        } else {
            let node = self.node_mut(parent)?;
            NodePage::set_child(node.bytes_mut(), is_inode, slot, NO_NODE);
            self.drop_node(nid)?;
            // A batch has the nodes that there are, and says of none that it is gone.
            if !mutant!("parafs.cut-unbound") {
                self.bound.insert(ino);
            }
        }
        addrs.iter().for_each(|(_, addr)| self.unname(*addr));
        let gone = addrs.len() as u64 + u64::from(!keeps);
        if gone > 0 {
            let inode = self.inode_mut(ino)?;
            inode.pages = inode.pages.saturating_sub(gone);
        }
        // A node that keeps something is the last one that there is.
        Ok(keeps)
    }

    /// What the inode itself names from page `from` on.
    fn cut_inode(&mut self, ino: Nid, from: u64) -> Step<bool> {
        let node = self.node(ino)?;
        if node.inode.as_ref().is_none_or(|inode| inode.inline) {
            return Ok(true);
        }
        let bytes = node.bytes.clone();
        let tree = self.tree;
        let slots = from.min(tree.inode_addrs) as u32..tree.inode_addrs as u32;
        let of = |slot: u32| (slot, self.tree.addr(&bytes, true, slot));
        let addrs: Vec<_> = slots.map(of).filter(|(_, addr)| *addr != Addr::NONE).collect();
        if !addrs.is_empty() {
            let node = self.node_mut(ino)?;
            let bytes = node.bytes_mut();
            addrs.iter().for_each(|(s, _)| tree.set_page(bytes, true, *s, PageRef::NONE));
            addrs.iter().for_each(|(_, addr)| self.unname(*addr));
            let inode = self.inode_mut(ino)?;
            inode.pages = inode.pages.saturating_sub(addrs.len() as u64);
        }
        Ok(true)
    }

    /// No file names this page any more.
    pub(crate) fn unname(&mut self, addr: Addr) {
        self.kept = self.kept.saturating_sub(u64::from(addr == Addr::KEPT));
        self.segments.invalidate(addr);
    }
}

pub(crate) fn is_dir(mode: u16) -> bool {
    mode & 0o170_000 == 0o040_000
}

pub(crate) fn is_file(mode: u16) -> bool {
    mode & 0o170_000 == 0o100_000
}

pub(crate) fn is_symlink(mode: u16) -> bool {
    mode & 0o170_000 == 0o120_000
}
