//! What files hold, so that every read is checked.
//!
//! Owns: the content of each file, as a function of the seed, the file, how often it has been made
//! anew, and the place in it; which parts of it are being written. Promises: a byte that was
//! written before a read began, and is not being written, is compared; a sector repeats eight
//! bytes, so a `compact` store keeps it in some bytes. Never: keeps contents.

use flashlane_base::{SECTOR_BYTES, mix64, mutant};
use std::ops::Range;

/// A file of a set.
#[derive(Clone, Debug, Default)]
struct File {
    /// How often it was made.
    version: u32,
    /// Where the next append goes.
    end: u64,
    /// What is being written, or could not be: there, or zeros.
    loose: Vec<Range<u64>>,
}

/// What all files of a set hold.
#[derive(Clone, Debug)]
pub(super) struct Contents {
    seed: u64,
    files: Vec<File>,
}

/// What a read will have to find.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    version: u32,
    /// Bytes that the file had.
    end: u64,
    loose: Vec<Range<u64>>,
}

impl Seen {
    /// Bytes that a read of the whole file gives at least.
    pub(super) fn least(&self) -> u64 {
        let mut least = self.end;
        while let Some(at) = self.loose.iter().find(|r| r.start < least && r.end >= least) {
            least = at.start;
        }
        least
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    fn is_loose(&self, at: u64) -> bool {
        at >= self.end || self.loose.iter().any(|range| range.contains(&at))
    }
}

impl Contents {
    pub(super) fn new(seed: u64, files: usize) -> Contents {
        Contents { seed, files: vec![File::default(); files] }
    }

    /// One more file, that is not there yet.
    pub(super) fn add(&mut self) -> usize {
        self.files.push(File::default());
        self.files.len() - 1
    }

    /// A file is made anew, and empty.
    pub(super) fn create(&mut self, file: usize) {
        let file = &mut self.files[file];
        *file = File { version: file.version + 1, ..File::default() };
    }

    /// So many bytes are about to be written behind its end.
    pub(super) fn begin_append(&mut self, file: usize, bytes: u64) -> Range<u64> {
        let file = &mut self.files[file];
        let range = file.end..file.end + bytes;
        file.end = range.end;
        file.loose.extend(Some(range.clone()).filter(|range| !range.is_empty()));
        range
    }

    /// That is done. What failed may have been written in part.
    pub(super) fn end_append(&mut self, file: usize, range: &Range<u64>, ok: bool) {
        if ok {
            self.files[file].loose.retain(|r| r != range);
        }
    }

    pub(super) fn begin_read(&self, file: usize) -> Seen {
        let File { version, end, ref loose } = self.files[file];
        Seen { version, end, loose: loose.clone() }
    }

    /// The bytes of a file from `at` on.
    pub(super) fn fill(&self, file: usize, at: u64, into: &mut [u8]) {
        let version = self.files[file].version;
        for (sector, place, part) in parts(at, into.len()) {
            let sector = self.sector(file, version, sector);
            into[part.clone()].copy_from_slice(&sector.as_flattened()[place..place + part.len()]);
        }
    }

    /// How many of these sectors are not what they must be: what a read that began when it was
    /// `seen` got from `at` on. Nothing can have made the file anew since.
    pub(super) fn wrong(&self, file: usize, seen: &Seen, at: u64, got: &[u8]) -> u64 {
        let mut wrong = 0;
        for (sector, place, part) in parts(at, got.len()) {
            let expected = self.sector(file, seen.version, sector);
            let expected = &expected.as_flattened()[place..place + part.len()];
            let first = at + part.start as u64;
            let found = &got[part];
            let good = |(i, (byte, of)): (usize, (&u8, &u8))| {
                byte == of || *byte == 0 && seen.is_loose(first + i as u64)
            };
            if found != expected && !found.iter().zip(expected).enumerate().all(good) {
                wrong += 1;
            }
        }
        wrong
    }

    /// A sector of a file: eight bytes over and over, none of them 0.
    fn sector(&self, file: usize, version: u32, sector: u64) -> [[u8; 8]; SECTOR_BYTES / 8] {
        let version = if mutant!("lab.versions-alike") { 1 } else { version };
        let x = mix64(self.seed ^ (file as u64) << 40 ^ u64::from(version) << 20 ^ sector);
        [(x | 0x0101_0101_0101_0101).to_le_bytes(); SECTOR_BYTES / 8]
    }
}

/// A range cut at sectors: the sector, where in it the piece begins, and its place in the range.
fn parts(at: u64, length: usize) -> impl Iterator<Item = (u64, usize, Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let here = at + done as u64;
        let place = (here % SECTOR_BYTES as u64) as usize;
        let n = (SECTOR_BYTES - place).min(length - done);
        let part = done..done + n;
        done += n;
        (n > 0).then_some((here / SECTOR_BYTES as u64, place, part))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file_of(contents: &Contents, bytes: usize) -> Vec<u8> {
        let mut all = vec![0; bytes];
        contents.fill(0, 0, &mut all);
        all
    }

    #[test]
    fn each_byte_that_is_not_what_was_written_is_found() {
        let mut contents = Contents::new(7, 2);
        contents.create(0);
        let range = contents.begin_append(0, 9_000);
        contents.end_append(0, &range, true);
        let good = file_of(&contents, 9_000);
        let seen = contents.begin_read(0);
        assert_eq!((seen.least(), contents.wrong(0, &seen, 0, &good)), (9_000, 0));
        // In pieces that are cut anywhere, too.
        let mut cut = vec![0; 5_003];
        contents.fill(0, 3_997, &mut cut);
        assert_eq!(cut, good[3_997..]);
        assert_eq!(contents.wrong(0, &seen, 3_997, &cut), 0);
        for at in [0, 4_095, 4_096, 8_999] {
            for value in [0, good[at] ^ 1] {
                let mut bad = good.clone();
                bad[at] = value;
                assert_eq!(contents.wrong(0, &seen, 0, &bad), 1, "byte {at} is {value}");
            }
        }
        // Another place, another file, an older one.
        assert_eq!(contents.wrong(0, &seen, 4_096, &good[..4_096]), 1);
        assert_eq!(contents.wrong(1, &seen, 0, &good), 3);
        contents.create(0);
        let range = contents.begin_append(0, 9_000);
        contents.end_append(0, &range, true);
        assert_eq!(contents.wrong(0, &contents.begin_read(0), 0, &good), 3);
    }

    #[test]
    fn what_is_being_written_is_there_or_zeros_and_nothing_else() {
        let mut contents = Contents::new(7, 1);
        contents.create(0);
        let first = contents.begin_append(0, 6_000);
        contents.end_append(0, &first, true);
        let (second, third) = (contents.begin_append(0, 100), contents.begin_append(0, 100));
        contents.end_append(0, &third, true);
        let seen = contents.begin_read(0);
        // The third has come about, so the file is that long.
        assert_eq!((seen.least(), seen.end()), (6_200, 6_200));
        let mut got = file_of(&contents, 6_200);
        got[6_000..6_100].fill(0);
        assert_eq!(contents.wrong(0, &seen, 0, &got), 0);
        for (at, byte) in [(5_999, 0), (6_100, 0), (6_050, 0xaa)] {
            let mut bad = got.clone();
            bad[at] = byte;
            assert_eq!(contents.wrong(0, &seen, 0, &bad), 1, "byte {at}");
        }
        // It failed: some of it may be there. Behind it nothing is known to be.
        contents.end_append(0, &second, false);
        assert_eq!(contents.wrong(0, &contents.begin_read(0), 0, &got), 0);
        let last = contents.begin_append(0, 50);
        contents.end_append(0, &last, false);
        assert_eq!(contents.begin_read(0).least(), 6_200);
    }
}
