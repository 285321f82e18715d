//! The superblock: what the file system is, and is for good.
//!
//! Owns: its bytes. Promises: the places of the areas follow from it alone. Never: changes after
//! mkfs.

use super::layout::{Layout, Shape};
use super::{FormatError, SECTOR, Slots, Tree, VERSION_MAX, get32, get64, head, put, put32, put64};
use flashlane_base::{crc32c, crc32c_append, mutant};

const MAGIC: u32 = u32::from_le_bytes(*b"pSUP");
/// The newest major version. Older ones can be read and written, too, and stay what they are.
pub(crate) const MAJOR: u32 = 4;
/// From this major version on sums of nodes begin with the identity.
const SEEDED: u32 = 2;
/// From this major version on pages of directories have a seal.
const SEALED: u32 = 3;
/// From this major version on the superblock says which features the file system has.
const FEATURES: u32 = 4;
/// Of the word with the features the bit that says that the medium is a block device.
const LINEAR: u32 = 1;
/// The feature that small nodes share pages.
const SHARED: u32 = 2;
/// The feature that pages of files have checksums.
const SUMMED: u32 = 4;
const MINOR: u32 = 0;
const WHAT: &str = "the superblock";
const FIRST_VERSION: usize = 136;
/// Bytes of a label.
pub(crate) const LABEL: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Superblock {
    pub(crate) layout: Layout,
    pub(crate) major: u32,
    /// No in-place region: the first sectors of a block device are it.
    pub(crate) linear: bool,
    /// Pages of files have checksums.
    pub(crate) sums: bool,
    pub(crate) uuid: [u8; 16],
    pub(crate) label: String,
    /// Segments that users' data can't have: what cleaning works with.
    pub(crate) reserved_segments: u32,
    /// Bytes of a sector of a file: 4096, or 8 where contents are stamps.
    pub(crate) content_bytes: u32,
    /// Checkpoints count from here on: what is older on the medium is of another file system. A multiple
    /// of [`Superblock::VERSIONS`].
    pub(crate) first_version: u64,
}

impl Superblock {
    /// Between the first versions of two file systems, at least.
    pub(crate) const VERSIONS: u64 = 1 << 20;

    /// What the sum of each node begins with: a page of a file that looks like a node, and a node of
    /// another file system, have other sums.
    pub(crate) fn node_seed(&self) -> u32 {
        match self.major {
            _ if mutant!("parafs.nodes-of-anybody") => 0,
            ..SEEDED => 0,
            SEEDED..FEATURES => crc32c(&self.uuid),
            // Nodes look different with each feature: by a superblock that lies of features there
            // are none.
            FEATURES.. => crc32c_append(crc32c(&self.uuid), &self.features().to_le_bytes()),
        }
    }

    /// The features that it has.
    fn features(&self) -> u32 {
        let shared = if self.layout.shared { SHARED } else { 0 };
        shared | if self.sums { SUMMED } else { 0 }
    }

    /// The major version of a file system that is made with these features. Without any it is one
    /// that older programs know.
    pub(crate) fn major_with(shared: bool, sums: bool) -> u32 {
        if shared || sums { MAJOR } else { FEATURES - 1 }
    }

    /// How nodes are divided.
    pub(crate) fn tree(&self) -> Tree {
        let sums = self.sums.then(|| self.node_seed());
        Tree::of(self.layout.shape.page_bytes(), sums)
    }

    /// How pages of directories are divided.
    pub(crate) fn slots(&self) -> Slots {
        let seed = (self.major >= SEALED).then(|| self.node_seed());
        Slots::of(self.layout.shape.page_bytes(), seed)
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; SECTOR];
        let shape = &self.layout.shape;
        put32(&mut bytes, 8, self.major);
        put32(&mut bytes, 12, MINOR);
        put(&mut bytes, 16, &self.uuid);
        put32(&mut bytes, 32, shape.regions);
        put32(&mut bytes, 36, shape.region_segments);
        put32(&mut bytes, 40, shape.segment_pages);
        put32(&mut bytes, 44, shape.page_sectors);
        put64(&mut bytes, 48, shape.meta_sectors);
        put32(&mut bytes, 56, self.reserved_segments);
        put32(&mut bytes, 60, self.content_bytes);
        put32(&mut bytes, 64, u32::from(self.linear) | self.features());
        let label = &self.label.as_bytes()[..self.label.len().min(LABEL)];
        put32(&mut bytes, 68, label.len() as u32);
        put(&mut bytes, 72, label);
        put64(&mut bytes, FIRST_VERSION, self.first_version);
        head::seal(&mut bytes, MAGIC);
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Superblock, FormatError> {
        head::check(bytes, MAGIC, WHAT)?;
        let major = get32(bytes, 8);
        if !(1..=MAJOR).contains(&major) {
            return Err(FormatError::Version { what: WHAT, found: major, known: MAJOR });
        }
        let shape = Shape {
            regions: get32(bytes, 32),
            region_segments: get32(bytes, 36),
            segment_pages: get32(bytes, 40),
            page_sectors: get32(bytes, 44),
            meta_sectors: get64(bytes, 48),
        };
        let wrong = |field, value| FormatError::Value { what: WHAT, field, value };
        let words = get32(bytes, 64);
        let features = words & !LINEAR;
        let known = if major >= FEATURES { SHARED | SUMMED } else { 0 };
        if features & !known != 0 {
            return Err(wrong("its features", features.into()));
        }
        let layout = Layout::plan_with(shape, features & SHARED != 0)
            .map_err(|_| wrong("the number of segments", shape.region_segments.into()))?;
        let reserved_segments = get32(bytes, 56);
        if reserved_segments >= shape.segments() {
            return Err(wrong("the number of reserved segments", reserved_segments.into()));
        }
        let content_bytes = get32(bytes, 60);
        if content_bytes != 8 && content_bytes != SECTOR as u32 {
            return Err(wrong("the bytes of a sector", content_bytes.into()));
        }
        let label = (get32(bytes, 68) as usize).min(LABEL);
        Ok(Superblock {
            layout,
            major,
            linear: words & LINEAR != 0,
            sums: features & SUMMED != 0,
            uuid: bytes[16..32].try_into().unwrap_or_default(),
            label: String::from_utf8_lossy(&bytes[72..72 + label]).into(),
            reserved_segments,
            content_bytes,
            first_version: match get64(bytes, FIRST_VERSION) {
                first if first < VERSION_MAX => first,
                first => return Err(wrong("the first version", first)),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn any() -> Superblock {
        Superblock {
            layout: Layout::plan_linear_with(65_536, 1, 64, true).expect("it fits"),
            major: MAJOR,
            linear: true,
            sums: true,
            uuid: [7; 16],
            label: "home".into(),
            reserved_segments: 20,
            content_bytes: 4096,
            first_version: 5 << 20,
        }
    }

    #[test]
    fn it_comes_back_and_lies_are_found() {
        let s = any();
        let bytes = s.encode();
        assert_eq!(Superblock::decode(&bytes), Ok(s));
        for major in 1..MAJOR {
            let layout = Layout::plan_linear_with(65_536, 1, 64, false).expect("it fits");
            let older = Superblock { major, layout, sums: false, ..any() };
            assert_eq!(Superblock::decode(&older.encode()), Ok(older));
        }
        for (at, value) in [(8, MAJOR + 1), (32, 0), (44, 3), (56, u32::MAX), (60, 9), (64, 8)] {
            let mut bad = bytes.clone();
            put32(&mut bad, at, value);
            assert_eq!(Superblock::decode(&bad), Err(FormatError::Checksum(WHAT)));
            head::seal(&mut bad, MAGIC);
            let why = Superblock::decode(&bad).expect_err("it can't be");
            assert!(!matches!(why, FormatError::Checksum(_)), "{at}: {why}");
        }
        assert_eq!(Superblock::decode(&[]), Err(FormatError::Magic(WHAT)));
    }
}
