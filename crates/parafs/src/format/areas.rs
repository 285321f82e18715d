//! Sectors of the tables in the in-place region: nodes, segments, summaries, window.
//!
//! Owns: the bytes of each. Promises: a sector says which one it is, so that one in the wrong place
//! is found. Never: knows which of two copies is valid; a checkpoint says that.

use super::layout::{Layout, NAT_ENTRIES, SIT_ENTRY, SUMMARY_ENTRIES, WINDOW_WORDS};
use super::pack::{NatEntry, Owner, SegmentEntry};
use super::{FormatError, SECTOR, Share, get16, get32, get64, head, put, put16, put32, put64};

const NAT: u32 = u32::from_le_bytes(*b"pNAT");
const SIT: u32 = u32::from_le_bytes(*b"pSIT");
const SUMMARY: u32 = u32::from_le_bytes(*b"pSUM");
const WINDOW: u32 = u32::from_le_bytes(*b"pWIN");

/// Magic, checksum, which sector, and 16 bytes more.
pub(super) const AREA_HEAD: usize = 32;

/// A sector of one of the areas that says which one it is.
fn begin(number: u64) -> Vec<u8> {
    let mut bytes = vec![0; SECTOR];
    put64(&mut bytes, 8, number);
    bytes
}

fn check(bytes: &[u8], magic: u32, what: &'static str, number: u64) -> Result<(), FormatError> {
    head::check(bytes, magic, what)?;
    match get64(bytes, 8) {
        found if found == number => Ok(()),
        value => Err(FormatError::Value { what, field: "its number", value }),
    }
}

/// Nodes from `number` × 508 on: where each lies, and whose it is.
pub(crate) struct NatSector(pub(crate) Vec<NatEntry>);

impl NatSector {
    pub(crate) fn encode(&self, number: u32) -> Vec<u8> {
        let mut bytes = begin(number.into());
        for (i, entry) in self.0.iter().enumerate() {
            let [file, addr] = entry.words();
            put32(&mut bytes, AREA_HEAD + 8 * i, file);
            put32(&mut bytes, AREA_HEAD + 8 * i + 4, addr);
        }
        head::seal(&mut bytes, NAT);
        bytes
    }

    pub(crate) fn decode(
        bytes: &[u8],
        number: u32,
        shared: bool,
    ) -> Result<NatSector, FormatError> {
        check(bytes, NAT, "a sector of the node address table", number.into())?;
        let at = |i: usize| AREA_HEAD + 8 * i;
        let entries = (0..NAT_ENTRIES as usize)
            .map(|i| NatEntry::of([get32(bytes, at(i)), get32(bytes, at(i) + 4)], shared));
        Ok(NatSector(entries.collect()))
    }
}

/// What is valid in some segments.
pub(crate) struct SitSector(pub(crate) Vec<SegmentEntry>);

impl SegmentEntry {
    pub(super) fn put(&self, bytes: &mut [u8], at: usize) {
        put16(bytes, at, self.kind.into());
        put64(bytes, at + 8, self.changed);
        put(bytes, at + SIT_ENTRY, self.pages());
    }

    /// What it says of pages: where nodes share them units in use, else bits.
    fn pages(&self) -> &[u8] {
        if self.units.is_empty() { &self.valid } else { &self.units }
    }

    /// Bytes of it on the medium.
    pub(super) fn bytes(&self) -> usize {
        SIT_ENTRY + self.pages().len()
    }

    pub(super) fn get(bytes: &[u8], at: usize, layout: &Layout) -> SegmentEntry {
        let mut entry = SegmentEntry::empty(layout);
        (entry.kind, entry.changed) = (get16(bytes, at) as u8, get64(bytes, at + 8));
        let found = bytes.get(at + SIT_ENTRY..at + layout.sit_entry()).unwrap_or_default();
        match layout.shared {
            true => {
                for (page, units) in (0..).zip(found) {
                    entry.set(page, (*units).min(Share::PAGE));
                }
            }
            false if !found.is_empty() => entry.valid.copy_from_slice(found),
            false => {}
        }
        entry
    }
}

impl SitSector {
    pub(crate) fn encode(&self, number: u32) -> Vec<u8> {
        let mut bytes = begin(number.into());
        let mut at = AREA_HEAD;
        for entry in &self.0 {
            entry.put(&mut bytes, at);
            at += entry.bytes();
        }
        head::seal(&mut bytes, SIT);
        bytes
    }

    /// `count` entries.
    pub(crate) fn decode(
        bytes: &[u8],
        number: u32,
        count: u32,
        layout: &Layout,
    ) -> Result<SitSector, FormatError> {
        check(bytes, SIT, "a sector of the segment table", number.into())?;
        let at = |i: u32| AREA_HEAD + i as usize * layout.sit_entry();
        Ok(SitSector((0..count).map(|i| SegmentEntry::get(bytes, at(i), layout)).collect()))
    }
}

/// Whose the pages of a segment are, from some page on.
pub(crate) struct SummarySector(pub(crate) Vec<Owner>);

impl SummarySector {
    /// Part `part` of the summary of `segment`.
    pub(crate) fn encode(&self, segment: u32, part: u32) -> Vec<u8> {
        let mut bytes = begin(number(segment, part));
        for (i, owner) in self.0.iter().take(SUMMARY_ENTRIES as usize).enumerate() {
            put32(&mut bytes, AREA_HEAD + 8 * i, owner.nid);
            put32(&mut bytes, AREA_HEAD + 8 * i + 4, owner.slot);
        }
        head::seal(&mut bytes, SUMMARY);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], segment: u32, part: u32) -> Result<Self, FormatError> {
        check(bytes, SUMMARY, "a segment's summary", number(segment, part))?;
        let at = |i: usize| AREA_HEAD + 8 * i;
        let owners = (0..SUMMARY_ENTRIES as usize)
            .map(|i| Owner { nid: get32(bytes, at(i)), slot: get32(bytes, at(i) + 4) });
        Ok(SummarySector(owners.collect()))
    }
}

fn number(segment: u32, part: u32) -> u64 {
    u64::from(part) << 32 | u64::from(segment)
}

/// The last segment, or fsync, that the window can name: four bits of a word are for the head.
pub(crate) const WINDOW_NUMBER_MAX: u32 = (1 << 28) - 1;

/// Words of the window that are no segment's, in the place of a head: a mount has taken the fsyncs up to
/// this one, but those that it has not.
pub(crate) const TAKEN_TO: u8 = 14;
pub(crate) const NOT_TAKEN: u8 = 15;

/// Segments that heads were given since a checkpoint (paper, 3.2: the update window), in the order of that,
/// and which fsyncs a mount has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WindowSector {
    /// Of the checkpoint since which.
    pub(crate) version: u64,
    /// (segment, whose head it went to), or (fsync, [`TAKEN_TO`] or [`NOT_TAKEN`])
    pub(crate) words: Vec<(u32, u8)>,
}

impl WindowSector {
    /// Segments that it names, and of which head each is.
    pub(crate) fn segments(&self) -> impl Iterator<Item = (u32, u8)> {
        self.words.iter().copied().filter(|(_, head)| ![TAKEN_TO, NOT_TAKEN].contains(head))
    }

    pub(crate) fn encode(&self, number: u64) -> Vec<u8> {
        let mut bytes = begin(number);
        put64(&mut bytes, 16, self.version);
        put32(&mut bytes, 24, self.words.len() as u32);
        for (i, (what, head)) in self.words.iter().take(WINDOW_WORDS).enumerate() {
            put32(&mut bytes, AREA_HEAD + 4 * i, what << 4 | u32::from(*head));
        }
        head::seal(&mut bytes, WINDOW);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], number: u64) -> Result<WindowSector, FormatError> {
        check(bytes, WINDOW, "a sector of the update window", number)?;
        let count = (get32(bytes, 24) as usize).min(WINDOW_WORDS);
        let word = |i: usize| get32(bytes, AREA_HEAD + 4 * i);
        let words = (0..count).map(|i| (word(i) >> 4, (word(i) & 15) as u8)).collect();
        Ok(WindowSector { version: get64(bytes, 16), words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_come_back_and_tell_where_they_belong() {
        let plan = |shared| Layout::plan_linear_with(65_536, 1, 64, shared).expect("it fits");
        for layout in [plan(false), plan(true)] {
            let file = |i| if layout.shared { ((i % 12) << 28) | (i / 2) } else { i << 20 };
            let nodes: Vec<NatEntry> =
                (0..NAT_ENTRIES).map(|i| NatEntry::of([file(i), i * 7], layout.shared)).collect();
            let bytes = NatSector(nodes.clone()).encode(3);
            let decoded = |number| NatSector::decode(&bytes, number, layout.shared);
            assert_eq!(decoded(3).expect("whole").0, nodes);
            assert!(matches!(decoded(4), Err(FormatError::Value { .. })));
            let segments = SitSector::decode(&bytes, 3, 1, &layout);
            assert!(matches!(segments, Err(FormatError::Magic(_))));

            let segment = |kind: u8| {
                let mut entry = SegmentEntry::empty(&layout);
                (entry.kind, entry.changed) = (kind, u64::from(kind) << 40);
                (0..64).filter(|page| page % 9 < kind).for_each(|page| {
                    entry.set(
                        page as u32,
                        if layout.shared { page + 1 } else { Share::PAGE }.min(60),
                    );
                });
                entry
            };
            let segments: Vec<SegmentEntry> = (0..9u8).map(segment).collect();
            let bytes = SitSector(segments.clone()).encode(0);
            assert_eq!(SitSector::decode(&bytes, 0, 9, &layout).expect("whole").0, segments);
        }

        let owners: Vec<Owner> =
            (0..SUMMARY_ENTRIES).map(|i| Owner { nid: i, slot: u32::MAX - i }).collect();
        let bytes = SummarySector(owners.clone()).encode(7, 1);
        assert_eq!(SummarySector::decode(&bytes, 7, 1).expect("whole").0, owners);
        assert!(SummarySector::decode(&bytes, 7, 0).is_err());

        let window = WindowSector {
            version: 9,
            words: (0..WINDOW_WORDS as u32).map(|i| (i << 10, (i % 16) as u8)).collect(),
        };
        let bytes = window.encode(5);
        assert_eq!(WindowSector::decode(&bytes, 5), Ok(window));
        let mut torn = bytes;
        torn[4000] ^= 1;
        let what = "a sector of the update window";
        assert_eq!(WindowSector::decode(&torn, 5), Err(FormatError::Checksum(what)));
    }
}
