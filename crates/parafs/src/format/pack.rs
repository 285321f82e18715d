//! A checkpoint: what a mount begins with.
//!
//! Owns: its bytes. Promises: head, body and foot count together or not at all, so one that was cut
//! short is none; what is decoded fits its layout. Never: knows what is behind it.

use super::layout::{
    HEADS, LANES_MAX, Layout, NAT_JOURNAL, ORPHANS_MAX, SIT_JOURNAL, bitmap_bytes,
};
use super::node::COUNT_MAX;
use super::{
    Addr, FormatError, Nid, SECTOR, Share, VERSION_MAX, get32, get64, head, put, put32, put64,
};
use flashlane_base::crc32c;

const HEAD: u32 = u32::from_le_bytes(*b"pCPH");
const FOOT: u32 = u32::from_le_bytes(*b"pCPF");
const WHAT: &str = "a checkpoint";

/// Where a node lies, and whose it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NatEntry {
    /// 0 for a number that no node has.
    pub(crate) ino: Nid,
    /// [`Addr::NONE`] for a node that was not written yet.
    pub(crate) addr: Addr,
    /// The part of the page at `addr` that the node takes.
    pub(crate) share: Share,
}

/// Numbers of nodes are below this where nodes share pages: four bits of the number of a file in
/// the node address table are for the share.
pub(super) const SHARED_NIDS: u32 = 1 << 28;

impl NatEntry {
    /// The words of the table: the file, with the share where nodes share pages; the address.
    pub(super) fn words(&self) -> [u32; 2] {
        [self.ino | u32::from(self.share.code()) << 28, self.addr.0]
    }

    /// The entry with these words. A share that can't be counts as a whole page.
    pub(super) fn of([ino, addr]: [u32; 2], shared: bool) -> NatEntry {
        let (ino, share) = match shared {
            true => (ino % SHARED_NIDS, Share::from_code((ino / SHARED_NIDS) as u8)),
            false => (ino, None),
        };
        NatEntry { ino, addr: Addr(addr), share: share.unwrap_or_default() }
    }
}

/// What is valid in a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SegmentEntry {
    /// For which head it was filled.
    pub(crate) kind: u8,
    /// When it was written to last, in seconds of the file system's life.
    pub(crate) changed: u64,
    /// A bit for each page.
    pub(crate) valid: Box<[u8]>,
    /// Where nodes share pages, of each page how many of its [`Share::PAGE`] units are in use.
    /// Otherwise it is empty.
    pub(crate) units: Box<[u8]>,
}

impl SegmentEntry {
    pub(crate) fn empty(layout: &Layout) -> SegmentEntry {
        let pages = layout.shape.segment_pages;
        let units = if layout.shared { pages as usize } else { 0 };
        let valid = vec![0; bitmap_bytes(pages)].into();
        SegmentEntry { kind: 0, changed: 0, valid, units: vec![0; units].into() }
    }

    /// So many units of a page are in use.
    pub(crate) fn set(&mut self, page: u32, units: u8) {
        let (byte, bit) = (page as usize / 8, 1 << (page % 8));
        if let Some(place) = self.valid.get_mut(byte) {
            *place = if units > 0 { *place | bit } else { *place & !bit };
        }
        if let Some(place) = self.units.get_mut(page as usize) {
            *place = units;
        }
    }

    /// How many units of a page are in use: all of it, or nothing, where nodes do not share pages.
    pub(crate) fn units(&self, page: u32) -> u8 {
        let bit = || crate::fs::bit(&self.valid, page);
        let whole = || if bit() { Share::PAGE } else { 0 };
        self.units.get(page as usize).copied().unwrap_or_else(whole)
    }

    /// Of all pages.
    pub(crate) fn all_units(&self) -> u64 {
        match self.units.is_empty() {
            true => {
                let pages = self.valid.iter().map(|b| u64::from(b.count_ones())).sum::<u64>();
                pages * u64::from(Share::PAGE)
            }
            false => self.units.iter().map(|units| u64::from(*units)).sum(),
        }
    }
}

/// Who names a page: a node, and which word of it; a page that is a node names itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) nid: Nid,
    pub(crate) slot: u32,
}

impl Owner {
    /// The word of a page that is a node.
    pub(crate) const NODE: u32 = u32::MAX;
    /// Several nodes share the page. Which ones they are stands in it.
    pub(crate) const SHARED: Owner = Owner { nid: u32::MAX, slot: Owner::NODE };

    pub(crate) fn node(nid: Nid) -> Owner {
        Owner { nid, slot: Owner::NODE }
    }
}

/// Segments that a head has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heads {
    /// The segment that it fills, and the next page in it.
    pub(crate) open: Vec<(u32, u32)>,
    /// Those that come next.
    pub(crate) next: Vec<u32>,
}

/// All that a checkpoint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pack {
    /// Each is one higher than the one before.
    pub(crate) version: u64,
    /// It was left by an unmount: nothing comes behind it.
    pub(crate) clean: bool,
    /// Seconds of the file system's life.
    pub(crate) age: u64,
    /// Where to look first for a number that no node has.
    pub(crate) next_nid: Nid,
    /// Numbers in use.
    pub(crate) nodes: u32,
    /// Files.
    pub(crate) files: u32,
    /// The generation of the next file.
    pub(crate) generation: u32,
    /// Pages that room is kept for ([`Addr::KEPT`]).
    pub(crate) kept: u64,
    /// Which copy of a sector of the node address table is valid: a bit each.
    pub(crate) nat_copies: Vec<u8>,
    /// The same of the segment table.
    pub(crate) sit_copies: Vec<u8>,
    /// Entries that are newer than the tables.
    pub(crate) nat: Vec<(Nid, NatEntry)>,
    pub(crate) sit: Vec<(u32, SegmentEntry)>,
    /// Of each region, its six.
    pub(crate) heads: Vec<Heads>,
    /// Files without a name that are not deleted yet.
    pub(crate) orphans: Vec<Nid>,
}

/// Writes numbers one after the other.
#[derive(Default)]
struct Writer(Vec<u8>);

impl Writer {
    fn u32(&mut self, value: u32) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn u64(&mut self, value: u64) {
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    fn all(&mut self, values: &[u32]) {
        values.iter().for_each(|value| self.u32(*value));
    }
}

/// Reads them; behind the end they are zeros, and it is said that they were not there.
struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn u32(&mut self) -> u32 {
        self.at += 4;
        get32(self.bytes, self.at - 4)
    }

    fn u64(&mut self) -> u64 {
        self.at += 8;
        get64(self.bytes, self.at - 8)
    }

    fn bytes(&mut self, n: usize) -> &'a [u8] {
        self.at += n;
        self.bytes.get(self.at - n..self.at).unwrap_or(&[])
    }

    /// How many of something there are.
    fn count(&mut self, field: &'static str, most: u32) -> Result<u32, FormatError> {
        let value = self.u32();
        match value <= most {
            true => Ok(value),
            false => Err(FormatError::Value { what: WHAT, field, value: value.into() }),
        }
    }
}

impl Pack {
    fn body(&self) -> Vec<u8> {
        let mut w = Writer::default();
        w.u64(self.age);
        w.u64(self.kept);
        w.all(&[self.next_nid, self.nodes, self.files, self.generation]);
        w.u32(u32::from(self.clean));
        w.0.extend_from_slice(&self.nat_copies);
        w.0.extend_from_slice(&self.sit_copies);
        w.u32(self.nat.len() as u32);
        for (nid, entry) in &self.nat {
            w.u32(*nid);
            w.all(&entry.words());
        }
        w.u32(self.sit.len() as u32);
        for (segment, entry) in &self.sit {
            w.u32(*segment);
            let mut bytes = vec![0; entry.bytes()];
            entry.put(&mut bytes, 0);
            w.0.extend_from_slice(&bytes);
        }
        for heads in &self.heads {
            w.all(&[heads.open.len() as u32, heads.next.len() as u32]);
            heads.open.iter().for_each(|(segment, page)| w.all(&[*segment, *page]));
            w.all(&heads.next);
        }
        w.u32(self.orphans.len() as u32);
        w.all(&self.orphans);
        w.0
    }

    /// The sectors of it: all but the last are written first, and that one when they are durable.
    pub(crate) fn encode(&self) -> (Vec<u8>, Vec<u8>) {
        let body = self.body();
        let sectors = body.len().div_ceil(SECTOR);
        let mut all = vec![0; (1 + sectors) * SECTOR];
        put(&mut all, SECTOR, &body);
        let first = &mut all[..SECTOR];
        put64(first, 8, self.version);
        put64(first, 16, body.len() as u64);
        put32(first, 24, crc32c(&body));
        head::seal(first, HEAD);
        let sum = get32(first, 4);
        let mut foot = vec![0; SECTOR];
        put64(&mut foot, 8, self.version);
        put32(&mut foot, 16, sum);
        head::seal(&mut foot, FOOT);
        (all, foot)
    }

    /// How long the body is of which this is the head, in bytes, and the version.
    pub(crate) fn length(first: &[u8], layout: &Layout) -> Result<(u64, u64), FormatError> {
        head::check(first, HEAD, WHAT)?;
        let (version, bytes) = (get64(first, 8), get64(first, 16));
        if version > VERSION_MAX {
            return Err(FormatError::Value { what: WHAT, field: "its number", value: version });
        }
        match bytes.div_ceil(SECTOR as u64) + 2 <= layout.pack_sectors {
            true => Ok((version, bytes)),
            false => Err(FormatError::Value { what: WHAT, field: "its length", value: bytes }),
        }
    }

    /// Reads it, of a head, a body and a foot.
    pub(crate) fn decode(
        first: &[u8],
        body: &[u8],
        foot: &[u8],
        layout: &Layout,
    ) -> Result<Pack, FormatError> {
        let (version, bytes) = Pack::length(first, layout)?;
        head::check(foot, FOOT, WHAT)?;
        if get64(foot, 8) != version || get32(foot, 16) != get32(first, 4) {
            return Err(FormatError::Value { what: WHAT, field: "its foot", value: version });
        }
        let body = body.get(..bytes as usize).ok_or(FormatError::Checksum(WHAT))?;
        if crc32c(body) != get32(first, 24) {
            return Err(FormatError::Checksum(WHAT));
        }
        let mut r = Reader { bytes: body, at: 0 };
        let shape = &layout.shape;
        // Counters that can't be are counted on.
        let (age, kept) = (r.u64().min(COUNT_MAX), r.u64().min(COUNT_MAX));
        let [next_nid, nodes, files, generation] = [(); 4].map(|()| r.u32());
        let (nodes, files) = (nodes.min(layout.nids), files.min(layout.nids));
        let clean = r.u32() & 1 == 1;
        let nat_copies = r.bytes((layout.nat_sectors as usize).div_ceil(8)).to_vec();
        let sit_copies = r.bytes((layout.sit_sectors as usize).div_ceil(8)).to_vec();
        let in_segments = |segment: u32| match segment < shape.segments() {
            true => Ok(segment),
            false => {
                Err(FormatError::Value { what: WHAT, field: "a segment", value: segment.into() })
            }
        };
        let mut nat = Vec::new();
        for _ in 0..r.count("the number of its nodes", NAT_JOURNAL)? {
            let (nid, words) = (r.u32(), [r.u32(), r.u32()]);
            if nid >= layout.nids {
                let value = nid.into();
                return Err(FormatError::Value { what: WHAT, field: "a node", value });
            }
            nat.push((nid, NatEntry::of(words, layout.shared)));
        }
        let mut sit = Vec::new();
        for _ in 0..r.count("the number of its segments", SIT_JOURNAL)? {
            let segment = in_segments(r.u32())?;
            let bytes = r.bytes(layout.sit_entry());
            sit.push((segment, SegmentEntry::get(bytes, 0, layout)));
        }
        let mut heads = Vec::new();
        for _ in 0..shape.regions * HEADS {
            let lanes = r.count("the open segments of a head", LANES_MAX)?;
            let count = r.count("the segments of a head", shape.region_segments)?;
            let mut open = Vec::new();
            for _ in 0..lanes {
                let (segment, page) = (in_segments(r.u32())?, r.u32());
                if page >= shape.segment_pages {
                    let (field, value) = ("a page of a head", page.into());
                    return Err(FormatError::Value { what: WHAT, field, value });
                }
                open.push((segment, page));
            }
            let next = (0..count).map(|_| in_segments(r.u32())).collect::<Result<_, _>>()?;
            heads.push(Heads { open, next });
        }
        let count = r.count("the number of its orphans", ORPHANS_MAX)?;
        let orphans = (0..count).map(|_| r.u32()).collect();
        if r.at > body.len() {
            return Err(FormatError::Value { what: WHAT, field: "its length", value: bytes });
        }
        Ok(Pack {
            version,
            clean,
            age,
            next_nid,
            nodes,
            files,
            generation,
            kept,
            nat_copies,
            sit_copies,
            nat,
            sit,
            heads,
            orphans,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any(layout: &Layout) -> Pack {
        Pack {
            version: 77,
            clean: true,
            age: 1 << 40,
            next_nid: 5,
            nodes: 6,
            files: 4,
            generation: 9,
            kept: 1 << 33,
            nat_copies: vec![0x5a; (layout.nat_sectors as usize).div_ceil(8)],
            sit_copies: vec![0xa5; (layout.sit_sectors as usize).div_ceil(8)],
            nat: (0..NAT_JOURNAL).map(|i| (i, NatEntry::of([i, i * 3], layout.shared))).collect(),
            sit: (0..SIT_JOURNAL)
                .map(|i| (i, SegmentEntry { changed: i.into(), ..SegmentEntry::empty(layout) }))
                .collect(),
            heads: (0..HEADS * layout.shape.regions)
                .map(|i| Heads {
                    open: (0..i % 3).map(|n| (i + n, 3)).collect(),
                    next: (i..i + i % 3).collect(),
                })
                .collect(),
            orphans: (0..ORPHANS_MAX).collect(),
        }
    }

    #[test]
    fn the_largest_one_fits_and_comes_back() {
        for shared in [false, true] {
            largest(shared);
        }
    }

    fn largest(shared: bool) {
        let layout = Layout::plan_linear_with(1 << 20, 1, 64, shared).expect("it fits");
        let pack = any(&layout);
        let (all, foot) = pack.encode();
        assert!((all.len() / SECTOR + 1) as u64 <= layout.pack_sectors);
        let (first, body) = all.split_at(SECTOR);
        assert_eq!(Pack::decode(first, body, &foot, &layout), Ok(pack.clone()));
        for at in [9, SECTOR + 1, all.len() / 2] {
            let mut torn = all.clone();
            torn[at] ^= 1;
            let (first, body) = torn.split_at(SECTOR);
            assert!(Pack::decode(first, body, &foot, &layout).is_err(), "{at}");
        }
        // The foot of the one before does not make it whole.
        let (_, old) = Pack { version: 76, ..pack }.encode();
        assert!(Pack::decode(first, body, &old, &layout).is_err());
        assert!(Pack::decode(first, &body[..100], &foot, &layout).is_err());
    }
}
