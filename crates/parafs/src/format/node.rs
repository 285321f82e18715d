//! Nodes: inodes, and pages of addresses.
//!
//! Owns: the bytes of a node, the tree of a file's nodes. Promises: a node says whose it is, which
//! one in its file's tree, since which checkpoint, and of which fsync it is a part; its checksum
//! covers all of it. Never: knows where a node lies.
//!
//! As in F2FS a file's pages are named by its inode, by two direct nodes, by two indirect ones and
//! by one doubly indirect one (Lee et al., FAST '15, 2.3). A node is found by its number in the node
//! address table, so a node that moves changes nothing in its parent.

use super::{
    Addr, FormatError, Nid, PageRef, VERSION_MAX, get16, get32, get64, put, put16, put32, put64,
};
use flashlane_base::{crc32c_append, mutant};
use smallvec::SmallVec;

const MAGIC: u32 = u32::from_le_bytes(*b"pNOD");
const WHAT: &str = "a node";
/// Bytes at the end of each node.
pub(super) const FOOTER: usize = 48;
/// Bytes of an inode before its addresses, or what lies inline in their place.
pub(super) const FIXED: usize = 384;
/// Nodes that an inode names itself.
pub(crate) const INODE_NIDS: usize = 5;
/// Where they stand in it.
const NIDS_AT: usize = 360;
/// Its name lies before them; the last bytes of the longest names behind them.
const NAME_AT: usize = 108;
const NAME_ROOM: usize = NIDS_AT - NAME_AT;
const NAME_REST_AT: usize = NIDS_AT + 4 * INODE_NIDS;
/// Longest name of a file, in bytes.
pub(crate) const NAME_MAX: usize = 255;
/// The number, in its file's tree, of the node that holds extended attributes.
pub(crate) const XATTRS: u32 = u32::MAX;

/// More than any counter of an inode comes to.
pub(crate) const COUNT_MAX: u64 = 1 << 48;

/// What a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NodeKind {
    Inode,
    /// Addresses of pages.
    Direct,
    /// Numbers of nodes.
    Indirect,
    Xattrs,
}

/// An fsync: nodes that count together or not at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Batch {
    /// Which one since the checkpoint; 0 is none: a checkpoint wrote it, or cleaning.
    pub(crate) number: u32,
    /// How many nodes it has.
    pub(crate) nodes: u32,
}

/// What every node says of itself, and a page that several nodes share ([`super::shared`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Footer {
    /// [`Footer::SHARED`] for a shared page.
    pub(crate) nid: Nid,
    pub(crate) ino: Nid,
    /// Its number in the tree; of a shared page how many nodes it has.
    pub(crate) ofs: u32,
    /// The last checkpoint before it was written.
    pub(crate) version: u64,
    pub(crate) batch: Batch,
}

impl Footer {
    /// In the place of a node's number: several nodes share the page.
    pub(crate) const SHARED: Nid = u32::MAX;
}

/// The bytes of a node. Those of a page in memory that is not written yet have no footer.
pub(crate) struct NodePage;

impl NodePage {
    /// Writes footer and checksum, which begins with `seed` ([`super::Superblock::node_seed`]).
    pub(crate) fn seal(bytes: &mut [u8], footer: &Footer, seed: u32) {
        let at = bytes.len() - FOOTER;
        put32(bytes, at, footer.nid);
        put32(bytes, at + 4, footer.ino);
        put32(bytes, at + 8, footer.ofs);
        put32(bytes, at + 12, footer.batch.number);
        put64(bytes, at + 16, footer.version);
        put32(bytes, at + 24, footer.batch.nodes);
        put32(bytes, at + 40, MAGIC);
        let sum = sum(bytes, seed);
        put32(bytes, at + 44, sum);
    }

    /// What it says of itself, if it is whole, and one of this file system.
    pub(crate) fn check(bytes: &[u8], seed: u32) -> Result<Footer, FormatError> {
        let Some(at) = bytes.len().checked_sub(FOOTER) else {
            return Err(FormatError::Magic(WHAT));
        };
        if get32(bytes, at + 40) != MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if get32(bytes, at + 44) != sum(bytes, seed) {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = get64(bytes, at + 16);
        if version > VERSION_MAX {
            let (what, field) = (WHAT, "its checkpoint");
            return Err(FormatError::Value { what, field, value: version });
        }
        Ok(Footer {
            nid: get32(bytes, at),
            ino: get32(bytes, at + 4),
            ofs: get32(bytes, at + 8),
            version,
            batch: Batch { number: get32(bytes, at + 12), nodes: get32(bytes, at + 24) },
        })
    }

    /// The number of a child: of one of the five of an inode, or in an indirect node.
    pub(crate) fn child(bytes: &[u8], is_inode: bool, slot: u32) -> Nid {
        get32(bytes, Self::child_at(is_inode, slot))
    }

    pub(crate) fn set_child(bytes: &mut [u8], is_inode: bool, slot: u32, nid: Nid) {
        put32(bytes, Self::child_at(is_inode, slot), nid);
    }

    fn child_at(is_inode: bool, slot: u32) -> usize {
        let first = if is_inode { NIDS_AT } else { 0 };
        first + 4 * slot as usize
    }

    /// The bytes of an inode up to the end of so many that it holds in place of addresses.
    pub(crate) fn end_of_inline(bytes: usize) -> usize {
        FIXED + bytes
    }

    /// What an inode holds in place of addresses.
    pub(crate) fn inline(bytes: &[u8]) -> &[u8] {
        &bytes[FIXED..bytes.len() - FOOTER]
    }

    pub(crate) fn inline_mut(bytes: &mut [u8]) -> &mut [u8] {
        let end = bytes.len() - FOOTER;
        &mut bytes[FIXED..end]
    }

    /// What a node of extended attributes holds.
    pub(crate) fn body(bytes: &[u8]) -> &[u8] {
        &bytes[..bytes.len() - FOOTER]
    }

    pub(crate) fn body_mut(bytes: &mut [u8]) -> &mut [u8] {
        let end = bytes.len() - FOOTER;
        &mut bytes[..end]
    }
}

fn sum(bytes: &[u8], seed: u32) -> u32 {
    crc32c_append(seed, &bytes[..bytes.len() - 4])
}

/// A time: seconds since 1970, and nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    pub seconds: i64,
    pub nanos: u32,
}

/// What an inode says of its file, without its pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inode {
    /// Type and permissions, as `stat(2)` has them.
    pub(crate) mode: u16,
    /// Its content lies in the inode.
    pub(crate) inline: bool,
    pub(crate) links: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) size: u64,
    /// Pages that it takes: its content, its nodes, the inode.
    pub(crate) pages: u64,
    pub(crate) atime: Time,
    pub(crate) mtime: Time,
    pub(crate) ctime: Time,
    pub(crate) created: Time,
    /// Tells files apart that had the same number, one after the other.
    pub(crate) generation: u32,
    /// A directory that has a name of it, and that name: an fsync restores them.
    pub(crate) parent: Nid,
    pub(crate) name: Vec<u8>,
    /// The node of its extended attributes.
    pub(crate) xattrs: Nid,
    pub(crate) rdev: u32,
    /// Levels of a directory's hash table.
    pub(crate) levels: u32,
    /// Entries of a directory.
    pub(crate) entries: u64,
}

impl Inode {
    /// Writes all but addresses, children and what is inline.
    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        put16(bytes, 0, self.mode);
        let name = &self.name[..self.name.len().min(NAME_MAX)];
        put(bytes, 2, &[u8::from(self.inline), name.len() as u8]);
        put32(bytes, 4, self.links);
        put32(bytes, 8, self.uid);
        put32(bytes, 12, self.gid);
        put64(bytes, 16, self.size);
        put64(bytes, 24, self.pages);
        let times = [self.atime, self.mtime, self.ctime, self.created];
        for (i, time) in times.iter().enumerate() {
            put64(bytes, 32 + 8 * i, time.seconds as u64);
            put32(bytes, 64 + 4 * i, time.nanos);
        }
        put32(bytes, 80, self.generation);
        put32(bytes, 84, self.parent);
        put32(bytes, 88, self.xattrs);
        put32(bytes, 92, self.rdev);
        put32(bytes, 96, self.levels);
        put64(bytes, 100, self.entries);
        let (first, rest) = name.split_at(name.len().min(NAME_ROOM));
        bytes[NAME_AT..NIDS_AT].fill(0);
        put(bytes, NAME_AT, first);
        put(bytes, NAME_REST_AT, rest);
    }

    /// What it says. Counters that can't be are so large that this is seen, and can be counted on.
    pub(crate) fn decode(bytes: &[u8]) -> Inode {
        let time = |i: usize| Time {
            seconds: get64(bytes, 32 + 8 * i) as i64,
            nanos: get32(bytes, 64 + 4 * i).min(999_999_999),
        };
        let length = bytes.get(3).copied().unwrap_or(0) as usize;
        let first = length.min(NAME_ROOM);
        let mut name = bytes[NAME_AT..NAME_AT + first].to_vec();
        name.extend_from_slice(&bytes[NAME_REST_AT..NAME_REST_AT + length - first]);
        Inode {
            mode: get16(bytes, 0),
            inline: bytes.get(2).is_some_and(|flags| flags & 1 == 1),
            links: get32(bytes, 4).min(1 << 30),
            uid: get32(bytes, 8),
            gid: get32(bytes, 12),
            size: get64(bytes, 16),
            pages: get64(bytes, 24).min(COUNT_MAX),
            atime: time(0),
            mtime: time(1),
            ctime: time(2),
            created: time(3),
            generation: get32(bytes, 80),
            parent: get32(bytes, 84),
            name,
            xattrs: get32(bytes, 88),
            rdev: get32(bytes, 92),
            levels: get32(bytes, 96),
            entries: get64(bytes, 100).min(COUNT_MAX),
        }
    }
}

/// How many words nodes have, and which node names which page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tree {
    /// Pages that an inode names itself.
    pub(crate) inode_addrs: u64,
    /// Pages that a direct node names.
    pub(crate) slots: u64,
    /// Nodes that an indirect node names.
    pub(crate) children: u64,
    /// Bytes that fit into an inode.
    pub(crate) inline: usize,
    /// Checksums of the pages of files begin with it. `None`: these pages have no checksums.
    sums: Option<u32>,
}

/// A node on the way to a page: which word of the one before names it, and its number in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step {
    pub(crate) slot: u32,
    pub(crate) ofs: u32,
}

/// The way from an inode to a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Position {
    /// Nodes below the inode, the first one first.
    pub(crate) steps: SmallVec<[Step; 3]>,
    /// Which word of the last node, or of the inode, is the page's.
    pub(crate) slot: u32,
}

impl Tree {
    /// Divides nodes of this size. With `sums` a node has a checksum for each page that it names,
    /// and these checksums begin with that number.
    pub(crate) fn of(page_bytes: usize, sums: Option<u32>) -> Tree {
        let inline = page_bytes - FIXED - FOOTER;
        let named = |bytes: usize| (bytes / if sums.is_some() { 8 } else { 4 }) as u64;
        let (inode_addrs, slots) = (named(inline), named(page_bytes - FOOTER));
        let children = ((page_bytes - FOOTER) / 4) as u64;
        Tree { inode_addrs, slots, children, inline, sums }
    }

    /// Pages of files have checksums.
    pub(crate) fn has_sums(&self) -> bool {
        self.sums.is_some()
    }

    /// The checksum of page `index` of a file, of these bytes. It is 0 where pages have none.
    ///
    /// It covers the number of the file and of the page, so a page that lies where another one
    /// should be does not match.
    pub(crate) fn sum_of(&self, ino: Nid, index: u64, bytes: &[u8]) -> u32 {
        let Some(seed) = self.sums else { return 0 };
        let mut place = [0; 12];
        if !mutant!("parafs.crc-without-place") {
            put32(&mut place, 0, ino);
            put64(&mut place, 4, index);
        }
        crc32c_append(crc32c_append(seed, &place), bytes)
    }

    /// Checks that these bytes are page `index` of a file, as the node that names it says.
    pub(crate) fn check(
        &self,
        (ino, index): (Nid, u64),
        page: PageRef,
        bytes: &[u8],
    ) -> Result<(), FormatError> {
        match self.sum_of(ino, index, bytes) == page.crc {
            true => Ok(()),
            false => Err(FormatError::Checksum("a page of a file")),
        }
    }

    /// Bytes of a word: an address, and the checksum of that page behind it.
    fn word_bytes(&self) -> usize {
        if self.has_sums() { 8 } else { 4 }
    }

    /// Where the address of word `slot` stands in a node.
    fn word(&self, is_inode: bool, slot: u32) -> usize {
        let first = if is_inode { FIXED } else { 0 };
        first + self.word_bytes() * slot as usize
    }

    /// The bytes of a node up to the end of word `slot`.
    pub(crate) fn end_of_word(&self, is_inode: bool, slot: u32) -> usize {
        self.word(is_inode, slot) + self.word_bytes()
    }

    /// The address of the page that a word of a node names.
    pub(crate) fn addr(&self, bytes: &[u8], is_inode: bool, slot: u32) -> Addr {
        Addr(get32(bytes, self.word(is_inode, slot)))
    }

    /// The page that a word of a node names.
    pub(crate) fn page(&self, bytes: &[u8], is_inode: bool, slot: u32) -> PageRef {
        let addr = self.addr(bytes, is_inode, slot);
        let has_sum = self.has_sums() && addr.is_page();
        let crc = if has_sum { get32(bytes, self.word(is_inode, slot) + 4) } else { 0 };
        PageRef { addr, crc }
    }

    pub(crate) fn set_page(&self, bytes: &mut [u8], is_inode: bool, slot: u32, page: PageRef) {
        let at = self.word(is_inode, slot);
        put32(bytes, at, page.addr.0);
        if self.has_sums() {
            put32(bytes, at + 4, page.crc);
        }
    }

    /// The first page of a file that is not named by the node that names this one.
    pub(crate) fn first_of_next_node(&self, page: u64) -> u64 {
        match page.checked_sub(self.inode_addrs) {
            None => self.inode_addrs,
            Some(behind) => self.inode_addrs + (behind / self.slots + 1) * self.slots,
        }
    }

    /// Pages of the longest file.
    pub(crate) fn pages_max(&self) -> u64 {
        let (d, n) = (self.slots, self.children);
        self.inode_addrs + 2 * d + 2 * n * d + n * n * d
    }

    /// Nodes of a new file with so many pages, at most: its inode, and those below it.
    pub(crate) fn nodes_for(&self, pages: u64) -> u64 {
        let n = self.children;
        let below = pages.saturating_sub(self.inode_addrs);
        let direct = below.div_ceil(self.slots);
        // Without the two that the inode names, and with the one on top of the doubly indirect ones.
        let indirect = if direct > 2 { direct.div_ceil(n) + 2 } else { 0 };
        1 + direct + indirect
    }

    /// The way to page `index`; nothing for one behind the longest file.
    pub(crate) fn position(&self, index: u64) -> Option<Position> {
        let (d, n) = (self.slots, self.children);
        let mut steps = SmallVec::new();
        let mut at = index;
        if at < self.inode_addrs {
            return Some(Position { steps, slot: at as u32 });
        }
        at -= self.inode_addrs;
        if at < 2 * d {
            let which = (at / d) as u32;
            steps.push(Step { slot: which, ofs: 1 + which });
            return Some(Position { steps, slot: (at % d) as u32 });
        }
        at -= 2 * d;
        if at < 2 * n * d {
            let which = at / (n * d);
            let child = at / d % n;
            let first = 3 + which * (n + 1);
            steps.push(Step { slot: 2 + which as u32, ofs: first as u32 });
            steps.push(Step { slot: child as u32, ofs: (first + 1 + child) as u32 });
            return Some(Position { steps, slot: (at % d) as u32 });
        }
        at -= 2 * n * d;
        if at >= n * n * d {
            return None;
        }
        let (child, grandchild) = (at / (n * d), at / d % n);
        let root = 3 + 2 * (n + 1);
        let first = root + 1 + child * (n + 1);
        steps.push(Step { slot: 4, ofs: root as u32 });
        steps.push(Step { slot: child as u32, ofs: first as u32 });
        steps.push(Step { slot: grandchild as u32, ofs: (first + 1 + grandchild) as u32 });
        Some(Position { steps, slot: (at % d) as u32 })
    }

    /// What node `ofs` of a tree is, and the first page that it names if it names pages.
    pub(crate) fn kind(&self, ofs: u32) -> Option<(NodeKind, u64)> {
        let (d, n) = (self.slots, self.children);
        if ofs == XATTRS {
            return Some((NodeKind::Xattrs, 0));
        }
        let direct = |index| Some((NodeKind::Direct, index));
        let indirect = Some((NodeKind::Indirect, 0));
        let ofs = u64::from(ofs);
        match ofs {
            0 => return Some((NodeKind::Inode, 0)),
            1 | 2 => return direct(self.inode_addrs + (ofs - 1) * d),
            _ => {}
        }
        let before = self.inode_addrs + 2 * d;
        if ofs < 3 + 2 * (n + 1) {
            let (which, at) = ((ofs - 3) / (n + 1), (ofs - 3) % (n + 1));
            return match at {
                0 => indirect,
                _ => direct(before + (which * n + at - 1) * d),
            };
        }
        let root = 3 + 2 * (n + 1);
        if ofs == root {
            return indirect;
        }
        let (child, at) = ((ofs - root - 1) / (n + 1), (ofs - root - 1) % (n + 1));
        match (child < n, at) {
            (false, _) => None,
            (true, 0) => indirect,
            (true, _) => direct(before + 2 * n * d + (child * n + at - 1) * d),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_inode_comes_back() {
        for length in [0, 1, 252, 253, 255] {
            let time = |i: i64| Time { seconds: -i, nanos: 999_999_990 + i as u32 };
            let inode = Inode {
                mode: 0o100_644,
                inline: true,
                links: 3,
                uid: 1000,
                gid: 100,
                size: 1 << 41,
                pages: 77,
                atime: time(1),
                mtime: time(2),
                ctime: time(3),
                created: time(4),
                generation: 5,
                parent: 6,
                name: (0..length).map(|i| i as u8 | 1).collect(),
                xattrs: 8,
                rdev: 0x0103,
                levels: 9,
                entries: 1 << 33,
            };
            let mut page = vec![0xaa; 4096];
            let children = page[NIDS_AT..NIDS_AT + 20].to_vec();
            inode.encode(&mut page);
            assert_eq!(Inode::decode(&page), inode, "{length}");
            assert_eq!(page[NIDS_AT..NIDS_AT + 20], children);
            assert!(page[FIXED..].iter().all(|b| *b == 0xaa), "addresses are left as they were");
        }
    }

    #[test]
    fn a_node_is_whole_or_refused() {
        let footer = Footer {
            nid: 4,
            ino: 3,
            ofs: 2,
            version: 1 << 50,
            batch: Batch { number: 9, nodes: 2 },
        };
        let mut page = vec![1; 8192];
        NodePage::seal(&mut page, &footer, 7);
        assert_eq!(NodePage::check(&page, 7), Ok(footer));
        let other = NodePage::check(&page, 8);
        assert_eq!(other, Err(FormatError::Checksum(WHAT)), "of another file system");
        for at in [0, 100, 8191, 8150, 8160] {
            let mut torn = page.clone();
            torn[at] ^= 4;
            assert!(NodePage::check(&torn, 7).is_err(), "{at}");
        }
        assert_eq!(NodePage::check(&[0; 4096], 7), Err(FormatError::Magic(WHAT)));
        assert_eq!(NodePage::check(&[0; 7], 7), Err(FormatError::Magic(WHAT)));
    }

    #[test]
    fn a_tebibyte_can_be_addressed() {
        for page in [4096, 8192, 16_384] {
            for sums in [None, Some(7)] {
                let tree = Tree::of(page, sums);
                assert!(tree.pages_max() * page as u64 >= 1 << 40, "{page} {sums:?}");
            }
        }
    }

    /// A page and its checksum come back from each word; addresses lie where they lie without
    /// checksums, and nothing of it reaches the fields, the footer, or another word.
    #[test]
    fn a_page_has_its_checksum_beside_its_address() {
        for (page_bytes, sums) in [(4096, None), (4096, Some(9)), (8192, Some(9))] {
            let tree = Tree::of(page_bytes, sums);
            for (is_inode, count) in [(true, tree.inode_addrs), (false, tree.slots)] {
                let crc = |slot: u32| if sums.is_some() { !slot } else { 0 };
                let page = |slot: u32| PageRef { addr: Addr(slot + 1), crc: crc(slot) };
                let mut bytes = vec![0xaa; page_bytes];
                for slot in 0..count as u32 {
                    tree.set_page(&mut bytes, is_inode, slot, page(slot));
                }
                for slot in 0..count as u32 {
                    assert_eq!(tree.page(&bytes, is_inode, slot), page(slot));
                    assert_eq!(tree.addr(&bytes, is_inode, slot), Addr(slot + 1));
                }
                let first = if is_inode { FIXED } else { 0 };
                let around = bytes[..first].iter().chain(&bytes[page_bytes - FOOTER..]);
                assert!(around.copied().all(|b| b == 0xaa));
                tree.set_page(&mut bytes, is_inode, 3, PageRef::KEPT);
                assert_eq!(tree.page(&bytes, is_inode, 3), PageRef::KEPT);
            }
        }
    }

    #[test]
    fn a_checksum_is_of_the_bytes_and_of_their_place() {
        let tree = Tree::of(4096, Some(7));
        let mut bytes = vec![3; 4096];
        let page = PageRef { addr: Addr(1), crc: tree.sum_of(5, 9, &bytes) };
        assert_eq!(tree.check((5, 9), page, &bytes), Ok(()));
        for place in [(6, 9), (5, 8), (9, 5), (5, 9 + (1 << 32))] {
            assert!(tree.check(place, page, &bytes).is_err(), "{place:?}");
        }
        assert!(Tree::of(4096, Some(8)).check((5, 9), page, &bytes).is_err(), "another one's");
        for at in [0, 2000, 4095] {
            bytes[at] ^= 4;
            assert!(tree.check((5, 9), page, &bytes).is_err(), "{at}");
            bytes[at] ^= 4;
        }
        assert_eq!(Tree::of(4096, None).check((5, 9), PageRef::of(Addr(1)), &bytes), Ok(()));
    }

    proptest! {
        /// The way to a page and the number of its last node say the same.
        #[test]
        fn ways_and_numbers_agree(
            part in 0u64..5,
            raw in any::<u64>(),
            page in prop::sample::select(vec![4096, 8192]),
            sums in any::<Option<u32>>(),
        ) {
            let tree = Tree::of(page, sums);
            let (d, n) = (tree.slots, tree.children);
            let ends = [tree.inode_addrs, 2 * d, 2 * n * d, n * n * d];
            let from: u64 = ends.iter().take(part as usize).sum();
            let length = ends.get(part as usize).copied().unwrap_or(1 << 40);
            let index = from + raw % length;
            let Some(position) = tree.position(index) else {
                prop_assert!(index >= tree.pages_max());
                return Ok(());
            };
            prop_assert!(index < tree.pages_max());
            let ofs = position.steps.last().map_or(0, |step| step.ofs);
            let (kind, first) = tree.kind(ofs).expect("it is one");
            prop_assert_eq!(first + u64::from(position.slot), index);
            let is_inode = position.steps.is_empty();
            prop_assert_eq!(kind == NodeKind::Inode, is_inode);
            prop_assert_eq!(kind == NodeKind::Direct, !is_inode);
            let above = position.steps.len().saturating_sub(1);
            for step in &position.steps[..above] {
                prop_assert_eq!(tree.kind(step.ofs), Some((NodeKind::Indirect, 0)));
            }
        }
    }
}
