//! Real bytes in little memory: what is alike is kept once, and what does not fit goes to a file.
//!
//! Owns: [`Pool`], the contents of a whole device. Promises: every byte comes back; a sector of
//! zeros, of one 8-byte pattern that is repeated (to its end, or up to zeros, as the last sector of
//! a file), or equal to another takes no room of its own, nor do zeros at both ends of any other;
//! contents in memory stay below the cap, the rest lies in a file without a name that goes with the
//! process. Never: takes two contents for one because their hashes are equal: bytes are compared.
//!
//! Names and counts take 24 bytes per sector and about 64 per different content beside the cap.

use crate::host::{DiskFile, HostFile};
use flashlane_base::{SECTOR_BYTES, mutant};
use hashbrown::HashTable;
use std::io;
use std::path::PathBuf;

/// The name of content. Zeros have the name 0, which untouched records have too.
pub type Name = u64;
/// A sector without content: its program failed. Nobody reads it.
const NOTHING: Name = u64::MAX;
/// Cap where none is given.
pub const CAP_DEFAULT: u64 = 1 << 30;

/// Where a content is.
enum Place {
    /// The same eight bytes over and over, for so many bytes; zeros behind them.
    Pattern([u8; 8], u16),
    /// In memory, from this byte on; zeros before and behind.
    Memory(u16, Box<[u8]>),
    /// In the file: which sector of it.
    Spilled(u32),
}

struct Content {
    hash: u64,
    /// Sectors that have it; 0 is a free entry.
    users: u32,
    place: Place,
}

/// Contents of a device, shared by its channels.
pub struct Pool {
    cap: u64,
    folder: PathBuf,
    /// Name minus one is the index.
    contents: Vec<Content>,
    free: Vec<u32>,
    /// Which contents have a hash. Nothing goes by the order in it.
    by_hash: HashTable<u32>,
    in_memory: u64,
    spill: Option<DiskFile>,
    spilled: u32,
    free_spilled: Vec<u32>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("in_memory", &self.in_memory).finish_non_exhaustive()
    }
}

impl Pool {
    /// A pool that keeps at most `cap` bytes of contents in memory; the rest goes to a file in
    /// `folder`, made when it is needed.
    pub fn new(cap: u64, folder: PathBuf) -> Pool {
        Pool {
            cap,
            folder,
            contents: Vec::new(),
            free: Vec::new(),
            by_hash: HashTable::new(),
            in_memory: 0,
            spill: None,
            spilled: 0,
            free_spilled: Vec::new(),
        }
    }

    /// Bytes of contents in memory.
    pub fn bytes(&self) -> u64 {
        self.in_memory
    }

    /// Bytes of contents in the file.
    pub fn spilled_bytes(&self) -> u64 {
        (self.spilled as u64 - self.free_spilled.len() as u64) * SECTOR_BYTES as u64
    }

    /// Keeps a sector's bytes for one more user.
    ///
    /// # Errors
    /// The file could not take them; nothing changed.
    pub fn keep(&mut self, bytes: &[u8; SECTOR_BYTES]) -> io::Result<Name> {
        let pattern = pattern_of(bytes);
        let hash = match pattern {
            Some(([0, 0, 0, 0, 0, 0, 0, 0], _)) => return Ok(0),
            Some((pattern, length)) => hash_of_pattern(pattern, length),
            None => hash(bytes),
        };
        let mut failed = None;
        let is_it = |id: &u32| {
            self.contents[*id as usize].hash == hash
                && self.equals(*id, bytes, pattern).unwrap_or_else(|e| {
                    // What can't be read may be it: the search ends here.
                    failed = Some(e);
                    true
                })
        };
        let found = self.by_hash.find(hash, is_it).copied();
        if let Some(e) = failed {
            return Err(e);
        }
        if let Some(id) = found {
            self.contents[id as usize].users += 1;
            return Ok(id as Name + 1);
        }
        let place = match pattern {
            Some((pattern, length)) => Place::Pattern(pattern, length),
            None => self.place(bytes)?,
        };
        let content = Content { hash, users: 1, place };
        let id = match self.free.pop() {
            Some(id) => {
                self.contents[id as usize] = content;
                id
            }
            None => {
                self.contents.push(content);
                (self.contents.len() - 1) as u32
            }
        };
        self.by_hash.insert_unique(hash, id, |id| self.contents[*id as usize].hash);
        Ok(id as Name + 1)
    }

    fn place(&mut self, bytes: &[u8; SECTOR_BYTES]) -> io::Result<Place> {
        let start = bytes.iter().take_while(|byte| **byte == 0).count();
        let end = SECTOR_BYTES - bytes.iter().rev().take_while(|byte| **byte == 0).count();
        let kept = &bytes[start.min(end)..end];
        if self.in_memory + kept.len() as u64 <= self.cap {
            self.in_memory += kept.len() as u64;
            return Ok(Place::Memory(start as u16, kept.into()));
        }
        let file = match &mut self.spill {
            Some(file) => file,
            none => none.insert(DiskFile::scratch(&self.folder)?),
        };
        let sector = self.free_spilled.last().copied().unwrap_or(self.spilled);
        file.write_at(sector as u64 * SECTOR_BYTES as u64, bytes)?;
        let stays_free = mutant!("device.spilled-place-shared") && sector < self.spilled;
        if !stays_free && self.free_spilled.pop().is_none() {
            self.spilled += 1;
        }
        Ok(Place::Spilled(sector))
    }

    /// A sector, and what it repeats, are this content.
    fn equals(
        &self,
        id: u32,
        bytes: &[u8; SECTOR_BYTES],
        pattern: Option<([u8; 8], u16)>,
    ) -> io::Result<bool> {
        Ok(match &self.contents[id as usize].place {
            // What repeats anything is never kept as something else.
            Place::Pattern(kept, length) => pattern == Some((*kept, *length)),
            _ if pattern.is_some() => false,
            Place::Memory(start, kept) => {
                let (before, rest) = bytes.split_at(usize::from(*start));
                let (same, behind) = rest.split_at(kept.len());
                **kept == *same && is_zero(before) && is_zero(behind)
            }
            Place::Spilled(_) => {
                let mut kept = [0; SECTOR_BYTES];
                self.get(id as Name + 1, &mut kept)?;
                kept == *bytes
            }
        })
    }

    /// Copies content out. The name must be in use.
    ///
    /// # Errors
    /// The file could not give it.
    pub fn get(&self, name: Name, into: &mut [u8]) -> io::Result<()> {
        let Some(content) = known(name).map(|id| &self.contents[id as usize]) else {
            into.fill(0);
            return Ok(());
        };
        match (&content.place, &self.spill) {
            (Place::Pattern(pattern, length), _) => {
                let (of_pattern, zeros) = into.split_at_mut(usize::from(*length));
                let (words, rest) = of_pattern.as_chunks_mut::<8>();
                words.fill(*pattern);
                rest.copy_from_slice(&pattern[..rest.len()]);
                zeros.fill(0);
            }
            (Place::Memory(start, kept), _) => {
                let (before, rest) = into.split_at_mut(usize::from(*start));
                let (same, behind) = rest.split_at_mut(kept.len());
                before.fill(0);
                same.copy_from_slice(kept);
                behind.fill(0);
            }
            (Place::Spilled(sector), Some(file)) => {
                file.read_at(*sector as u64 * SECTOR_BYTES as u64, into)?;
            }
            (Place::Spilled(_), None) => unreachable!("spilled content without a file"),
        }
        Ok(())
    }

    /// One user less.
    pub fn leave(&mut self, name: Name) {
        let Some(id) = known(name) else { return };
        let content = &mut self.contents[id as usize];
        assert!(content.users > 0, "content {name} has no users");
        content.users -= 1;
        if content.users > 0 {
            return;
        }
        let hash = content.hash;
        match std::mem::replace(&mut content.place, Place::Pattern([0; 8], 0)) {
            Place::Memory(_, kept) => self.in_memory -= kept.len() as u64,
            Place::Spilled(sector) => self.free_spilled.push(sector),
            Place::Pattern(..) => {}
        }
        if let Ok(entry) = self.by_hash.find_entry(hash, |other| *other == id) {
            entry.remove();
        }
        self.free.push(id);
    }
}

/// The entry that a name means, where it means one.
fn known(name: Name) -> Option<u32> {
    (name != 0 && name != NOTHING).then(|| (name - 1) as u32)
}

/// The eight bytes that a sector repeats, and up to where; behind that it has zeros only.
fn pattern_of(bytes: &[u8; SECTOR_BYTES]) -> Option<([u8; 8], u16)> {
    let (words, _) = bytes.as_chunks::<8>();
    let first = words[0];
    // Each word is the one before it.
    if bytes[8..] == bytes[..SECTOR_BYTES - 8] {
        return Some((first, SECTOR_BYTES as u16));
    }
    let whole = 8 * words.iter().take_while(|word| **word == first).count();
    let part = bytes[whole..].iter().zip(&first).take_while(|(byte, of)| byte == of).count();
    is_zero(&bytes[whole + part..]).then_some((first, (whole + part) as u16))
}

/// A part of a sector has zeros only.
fn is_zero(part: &[u8]) -> bool {
    *part == [0; SECTOR_BYTES][..part.len()]
}

const ODD: u64 = 0x9e37_79b1_85eb_ca87;

/// A hash of a sector that repeats these eight bytes, so far.
fn hash_of_pattern(pattern: [u8; 8], length: u16) -> u64 {
    let all = (u64::from_le_bytes(pattern) ^ u64::from(length).rotate_left(48)).wrapping_mul(ODD);
    all ^ all >> 32
}

/// A hash of any other sector: four multiply-and-rotate lanes, as xxHash has them. Equal hashes only cost
/// a comparison.
fn hash(bytes: &[u8; SECTOR_BYTES]) -> u64 {
    let mut lanes = [1u64, 2, 3, 4].map(|n| n.wrapping_mul(ODD));
    let (fours, _) = bytes.as_chunks::<32>();
    for four in fours {
        let (words, _) = four.as_chunks::<8>();
        for i in 0..4 {
            let mixed = lanes[i].wrapping_add(u64::from_le_bytes(words[i]).wrapping_mul(ODD));
            lanes[i] = mixed.rotate_left(31).wrapping_mul(ODD);
        }
    }
    let all = lanes.iter().fold(0, |h: u64, l| (h ^ l).rotate_left(27).wrapping_mul(ODD));
    all ^ all >> 32
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_base::Rng;

    fn noise(seed: u64) -> Box<[u8; SECTOR_BYTES]> {
        let mut rng = Rng::new(seed);
        let mut bytes = Box::new([0; SECTOR_BYTES]);
        bytes.chunks_exact_mut(8).for_each(|w| w.copy_from_slice(&rng.next_u64().to_le_bytes()));
        bytes
    }

    fn pool(cap: u64) -> Pool {
        Pool::new(cap, std::env::temp_dir())
    }

    /// Zeros, patterns and duplicates take no memory; the last user's leaving frees the bytes.
    #[test]
    fn what_is_alike_is_kept_once() {
        let mut pool = pool(1 << 20);
        let mut back = [7; SECTOR_BYTES];
        assert_eq!(pool.keep(&[0; SECTOR_BYTES]).unwrap(), 0);
        let repeated: [u8; SECTOR_BYTES] = std::array::from_fn(|i| b"flashlan"[i % 8]);
        let name = pool.keep(&repeated).unwrap();
        pool.get(name, &mut back).unwrap();
        assert_eq!((back, pool.bytes()), (repeated, 0));
        // As much of it as a file had, down to a part of the pattern.
        for length in [4095, 4000, 13, 8, 5] {
            let cut = std::array::from_fn(|i| if i < length { repeated[i] } else { 0 });
            let name = pool.keep(&cut).unwrap();
            pool.get(name, &mut back).unwrap();
            assert_eq!((back, pool.bytes()), (cut, 0), "{length}");
            assert_eq!(pool.keep(&cut).unwrap(), name);
        }
        // One byte behind the zeros is no such sector.
        let mut other = std::array::from_fn(|i| if i < 100 { repeated[i] } else { 0 });
        other[4000] = 1;
        let name = pool.keep(&other).unwrap();
        pool.get(name, &mut back).unwrap();
        // Of others the zeros at both ends take none.
        assert_eq!((back, pool.bytes()), (other, 4001));
        assert_eq!(pool.keep(&other).unwrap(), name);
        (0..2).for_each(|_| pool.leave(name));
        let footer = std::array::from_fn(|i| if i < 4048 { 0 } else { i as u8 | 1 });
        let name = pool.keep(&footer).unwrap();
        pool.get(name, &mut back).unwrap();
        assert_eq!((back, pool.bytes()), (footer, 48));
        other = footer;
        other[4047] = 1;
        assert_ne!(pool.keep(&other).unwrap(), name);
        pool.leave(name);
        pool.leave(name + 1);
        assert_eq!(pool.bytes(), 0);
        let (a, b) = (pool.keep(&noise(1)).unwrap(), pool.keep(&noise(2)).unwrap());
        assert_eq!(pool.keep(&noise(1)).unwrap(), a);
        assert_eq!(pool.bytes(), 2 * SECTOR_BYTES as u64);
        pool.leave(a);
        pool.get(a, &mut back).unwrap();
        assert_eq!(back, *noise(1));
        pool.leave(a);
        assert_eq!(pool.bytes(), SECTOR_BYTES as u64);
        pool.get(b, &mut back).unwrap();
        assert_eq!(back, *noise(2));
    }

    /// Beyond the cap contents go to the file and come back, duplicates of spilled ones too.
    #[test]
    fn beyond_the_cap_contents_are_spilled() {
        let mut pool = pool(3 * SECTOR_BYTES as u64);
        let names: Vec<Name> = (0..10).map(|n| pool.keep(&noise(n)).unwrap()).collect();
        assert_eq!((pool.bytes(), pool.spilled_bytes()), (3 * 4096, 7 * 4096));
        assert_eq!(pool.keep(&noise(9)).unwrap(), names[9]);
        let mut back = [0; SECTOR_BYTES];
        for (name, n) in names.iter().zip(0..) {
            pool.get(*name, &mut back).unwrap();
            assert_eq!(back, *noise(n), "{n}");
        }
        pool.leave(names[9]);
        names.iter().for_each(|name| pool.leave(*name));
        assert_eq!((pool.bytes(), pool.spilled_bytes()), (0, 0));
    }

    /// A place in the file that has become free goes to one content; the next content has another.
    #[test]
    fn a_place_in_the_file_has_one_content() {
        let mut pool = pool(0);
        let first: Vec<Name> = (0..4).map(|n| pool.keep(&noise(n)).unwrap()).collect();
        first[1..3].iter().for_each(|name| pool.leave(*name));
        let later: Vec<Name> = (4..8).map(|n| pool.keep(&noise(n)).unwrap()).collect();
        let kept = [(first[0], 0), (first[3], 3)].into_iter().chain(later.into_iter().zip(4..));
        let mut back = [0; SECTOR_BYTES];
        for (name, n) in kept {
            pool.get(name, &mut back).unwrap();
            assert_eq!(back, *noise(n), "content {n}");
        }
        assert_eq!((pool.bytes(), pool.spilled_bytes()), (0, 6 * 4096));
    }

    /// Contents with one hash are told apart.
    #[test]
    fn equal_hashes_are_compared() {
        let mut pool = pool(1 << 20);
        let a = pool.keep(&noise(1)).unwrap();
        // As if the second content had the first one's hash.
        let other = hash(&noise(2));
        pool.contents[0].hash = other;
        pool.by_hash.clear();
        pool.by_hash.insert_unique(other, (a - 1) as u32, |_| other);
        let b = pool.keep(&noise(2)).unwrap();
        assert_ne!(a, b);
    }

    #[test]
    fn a_folder_that_takes_nothing_is_an_error_and_changes_nothing() {
        let mut pool = Pool::new(0, PathBuf::from("/nonexistent/folder"));
        assert!(pool.keep(&noise(1)).is_err());
        assert_eq!((pool.bytes(), pool.spilled_bytes(), pool.contents.len()), (0, 0, 0));
    }
}
