//! Tables of a check that stay small: a million nodes fit into some tens of megabytes.
//!
//! Owns: [`Nodes`], [`Owners`], [`Bits`]. Promises: memory follows the size of the medium, whatever
//! its bytes claim; tables are gone over in ascending order. Never: holds the content of a node.

use crate::format::{Addr, Layout, Nid, Owner, Share};

/// A node that was found whole, without its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) ino: Nid,
    /// Its number in its file's tree.
    pub(crate) ofs: u32,
    /// The last checkpoint before it was written.
    pub(super) version: u64,
    /// Of an inode: the names and pages that it counts. Pages are at most `u32::MAX` here.
    pub(super) links: u32,
    pub(super) pages: u32,
    /// Of an inode: type and permissions.
    pub(super) mode: u16,
    /// Words of an unchanged node that name a page, or say that one is kept or lost.
    pub(super) words: u16,
    pub(super) flags: u16,
    /// Of the page that it lies in, at least.
    pub(super) share: Share,
}

impl Found {
    /// There is a node of this number.
    const PRESENT: u16 = 1;
    /// The node address table has none of this number; the segment table says that it is one.
    pub(super) const DOUBTFUL: u16 = 2;
    /// The content of its file lies in it.
    pub(super) const INLINE: u16 = 4;
    /// It is an inode that names nodes.
    pub(super) const HAS_CHILDREN: u16 = 8;
    /// One of its words names a page.
    pub(super) const NAMES: u16 = 16;
    /// One of its words says that a page is kept, or lost.
    pub(super) const NO_PAGES: u16 = 32;
    /// Its fields, or the extended attributes in it, can't be as they are.
    pub(super) const SUSPECT: u16 = 64;

    pub(super) fn is(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    pub(super) fn set(&mut self, flag: u16, to: bool) {
        self.flags = if to { self.flags | flag } else { self.flags & !flag };
    }

    pub(crate) fn is_inode(&self) -> bool {
        self.ofs == 0
    }
}

/// Nodes of a piece of [`Nodes`].
const PIECE: usize = 512;

/// Nodes by their numbers. A piece of the table is there when one of its numbers is in use.
pub(crate) struct Nodes {
    pieces: Vec<Option<Box<[Found]>>>,
    count: usize,
}

impl Nodes {
    pub(super) fn new(layout: &Layout) -> Nodes {
        Nodes { pieces: vec![None; (layout.nids as usize).div_ceil(PIECE)], count: 0 }
    }

    pub(crate) fn get(&self, nid: Nid) -> Option<&Found> {
        let piece = self.pieces.get(nid as usize / PIECE)?.as_ref()?;
        piece.get(nid as usize % PIECE).filter(|found| found.is(Found::PRESENT))
    }

    pub(super) fn get_mut(&mut self, nid: Nid) -> Option<&mut Found> {
        let piece = self.pieces.get_mut(nid as usize / PIECE)?.as_mut()?;
        piece.get_mut(nid as usize % PIECE).filter(|found| found.is(Found::PRESENT))
    }

    pub(super) fn contains(&self, nid: Nid) -> bool {
        self.get(nid).is_some()
    }

    /// Puts a node in the place of one with the same number. The number is one of the file
    /// system's.
    pub(super) fn insert(&mut self, nid: Nid, mut found: Found) {
        found.set(Found::PRESENT, true);
        self.count += usize::from(!self.contains(nid));
        let piece = &mut self.pieces[nid as usize / PIECE];
        let piece = piece.get_or_insert_with(|| vec![Found::default(); PIECE].into());
        piece[nid as usize % PIECE] = found;
    }

    pub(super) fn remove(&mut self, nid: Nid) -> Option<Found> {
        let found = self.get_mut(nid).map(std::mem::take)?;
        self.count -= 1;
        Some(found)
    }

    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Nid, &Found)> {
        let pieces = self.pieces.iter().enumerate();
        let there = pieces.filter_map(|(at, piece)| Some((at * PIECE, piece.as_ref()?)));
        let all = there.flat_map(|(first, piece)| (first as Nid..).zip(piece.iter()));
        all.filter(|(_, found)| found.is(Found::PRESENT))
    }
}

/// Whose each page of the log is. A segment of which nothing is named takes no room.
pub(crate) struct Owners {
    layout: Layout,
    segments: Vec<Option<Box<[Owner]>>>,
    /// Where nodes share pages, how many units of each are in use.
    units: Vec<Option<Box<[u8]>>>,
}

impl Owners {
    pub(super) fn new(layout: Layout) -> Owners {
        let segments = layout.shape.segments() as usize;
        Owners { layout, segments: vec![None; segments], units: vec![None; segments] }
    }

    /// Owners of all pages of a segment, where it has any. A page of none has node 0.
    pub(crate) fn of_segment(&self, segment: u32) -> Option<&[Owner]> {
        self.segments.get(segment as usize)?.as_deref()
    }

    pub(super) fn get(&self, addr: Addr) -> Option<Owner> {
        if !self.layout.has(addr) {
            return None;
        }
        let (segment, page) = self.layout.segment_of(addr);
        let owner = *self.of_segment(segment)?.get(page as usize)?;
        (owner.nid != 0).then_some(owner)
    }

    pub(super) fn contains(&self, addr: Addr) -> bool {
        self.get(addr).is_some()
    }

    fn put(&mut self, addr: Addr, owner: Owner, units: u8) {
        if self.layout.has(addr) {
            let (segment, page) = self.layout.segment_of(addr);
            let pages = self.layout.shape.segment_pages as usize;
            let owners = self.segments[segment as usize]
                .get_or_insert_with(|| vec![Owner::default(); pages].into());
            owners[page as usize] = owner;
            if self.layout.shared {
                let of = self.units[segment as usize].get_or_insert_with(|| vec![0; pages].into());
                of[page as usize] = units;
            }
        }
    }

    /// Units of a page of the log that are in use.
    pub(crate) fn units(&self, addr: Addr) -> u8 {
        if !self.layout.shared {
            return if self.contains(addr) { Share::PAGE } else { 0 };
        }
        let (segment, page) = self.layout.segment_of(addr);
        let of = self.units.get(segment as usize).and_then(|of| of.as_deref());
        of.and_then(|of| of.get(page as usize)).copied().unwrap_or(0)
    }

    /// A node has a share of a page, which is its own or others', too.
    pub(super) fn add_node(&mut self, addr: Addr, owner: Owner, share: Share) {
        let units = self.units(addr).saturating_add(share.units()).min(Share::PAGE);
        self.put(addr, owner, units);
    }

    /// A node has its share of a page no more.
    pub(super) fn remove_node(&mut self, addr: Addr, share: Share) {
        let owner = self.get(addr).unwrap_or_default();
        match self.units(addr).saturating_sub(share.units()) {
            0 => self.remove(addr),
            units => self.put(addr, owner, units),
        }
    }

    /// Sets the owner of a page of the log.
    pub(super) fn insert(&mut self, addr: Addr, owner: Owner) {
        self.put(addr, owner, Share::PAGE);
    }

    pub(super) fn remove(&mut self, addr: Addr) {
        if self.contains(addr) {
            self.put(addr, Owner::default(), 0);
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Addr, Owner)> {
        let segments = (0..).zip(&self.segments);
        let there = segments.filter_map(|(segment, owners)| Some((segment, owners.as_ref()?)));
        let all = there.flat_map(move |(segment, owners)| {
            (0..)
                .zip(owners.iter())
                .map(move |(page, owner)| (self.layout.addr(segment, page), *owner))
        });
        all.filter(|(_, owner)| owner.nid != 0)
    }
}

/// A set of numbers of nodes.
#[derive(Default)]
pub(super) struct Bits(Vec<u64>);

impl Bits {
    pub(super) fn contains(&self, nid: Nid) -> bool {
        self.0.get(nid as usize / 64).is_some_and(|word| word >> (nid % 64) & 1 == 1)
    }

    /// False if it was there. The number is one of the file system's.
    pub(super) fn insert(&mut self, nid: Nid) -> bool {
        let (at, bit) = (nid as usize / 64, 1 << (nid % 64));
        if self.0.len() <= at {
            self.0.resize(at + 1, 0);
        }
        let is_new = self.0[at] & bit == 0;
        self.0[at] |= bit;
        is_new
    }

    pub(super) fn remove(&mut self, nid: Nid) {
        if let Some(word) = self.0.get_mut(nid as usize / 64) {
            *word &= !(1 << (nid % 64));
        }
    }
}
