//! A file that is read in pieces, from anywhere: what Parquet needs.
//!
//! Owns: the two kinds (an open file, bytes in memory) and the limits under which the Parquet library
//! reads them. Promises: nothing beyond the file's end is asked for, no piece larger than a page may
//! be, and no page that claims to unpack to more than its bytes can. Never: keeps what it has read.

use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::ops::Deref;
use std::sync::{Arc, Mutex};

/// Largest page, packed and unpacked; writers aim at 1 MiB.
const PAGE_BYTES_MAX: usize = 1 << 26;
/// Times that a page may grow when it is unpacked: a copy of Snappy has 3 bytes and gives 64, and
/// there is no other codec here (Snappy's format description, 2.2).
const GROWTH_MAX: u64 = 22;
/// Bytes in which a page's header says its type and both sizes: three tags, three numbers of 32 bits.
const SIZES_BYTES: usize = 3 * (1 + 5);

/// A file or bytes in memory.
pub enum Store {
    /// An open file.
    File(Mutex<File>, u64),
    Memory(Bytes),
}

impl Store {
    pub fn of_file(file: File) -> std::io::Result<Store> {
        let len = file.metadata()?.len();
        Ok(Store::File(Mutex::new(file), len))
    }

    /// The bytes from a place on, for a look at them.
    pub fn get_read_at(&self, at: u64) -> impl Read + '_ {
        Part { store: self, at }
    }

    fn read_at(&self, at: u64, out: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Store::Memory(bytes) => {
                let from = (bytes.len() as u64).min(at) as usize;
                (&bytes[from..]).read(out)
            }
            Store::File(file, _) => {
                let mut file = file.lock().map_err(|_| std::io::ErrorKind::Other)?;
                file.seek(SeekFrom::Start(at))?;
                file.read(out)
            }
        }
    }
}

impl Length for Store {
    fn len(&self) -> u64 {
        match self {
            Store::File(_, len) => *len,
            Store::Memory(bytes) => bytes.len() as u64,
        }
    }
}

/// Reads a piece after another, each at its own place.
pub struct Part<S> {
    store: S,
    at: u64,
}

impl<S: Deref<Target = Store>> Read for Part<S> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = self.store.read_at(self.at, out)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// What the library reads through: nothing beyond the file, no piece beyond a page's limit.
pub(super) struct Bounded(Arc<Store>);

impl Bounded {
    pub(super) fn new(store: Store) -> Bounded {
        Bounded(Arc::new(store))
    }
}

impl Length for Bounded {
    fn len(&self) -> u64 {
        self.0.len()
    }
}

impl ChunkReader for Bounded {
    type T = std::io::BufReader<Part<Arc<Store>>>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
        let mut head = Vec::with_capacity(SIZES_BYTES);
        self.0.get_read_at(start).take(SIZES_BYTES as u64).read_to_end(&mut head)?;
        if let Some((unpacked, packed)) = page_sizes(&head) {
            let most = (packed.saturating_mul(GROWTH_MAX)).min(PAGE_BYTES_MAX as u64);
            if unpacked > most {
                let what = format!(
                    "a page of {packed} bytes at byte {start} that claims to unpack to {unpacked}, \
                     where {most} are the most"
                );
                return Err(ParquetError::General(what));
            }
        }
        let part = Part { store: self.0.clone(), at: start };
        Ok(std::io::BufReader::with_capacity(1 << 16, part))
    }

    fn get_bytes(&self, start: u64, length: usize) -> ParquetResult<Bytes> {
        let end = start.checked_add(length as u64);
        if length > PAGE_BYTES_MAX || end.is_none_or(|end| end > self.len()) {
            let what = format!("a piece of {length} bytes at {start} that is not there");
            return Err(ParquetError::General(what));
        }
        let mut bytes = vec![0; length];
        Part { store: self.0.clone(), at: start }.read_exact(&mut bytes)?;
        Ok(bytes.into())
    }
}

/// The sizes, unpacked and packed, in what a page's header begins with: its type, then these (Thrift's
/// compact protocol: each a tag of a 32-bit number that follows the one before, and the number).
/// Nothing for what is no header; negative sizes are the library's to refuse.
fn page_sizes(mut head: &[u8]) -> Option<(u64, u64)> {
    const NEXT_I32: u8 = 0x15;
    let mut next = || {
        let (tag, rest) = head.split_first()?;
        let end = rest.iter().position(|b| *b < 0x80).filter(|_| *tag == NEXT_I32)?;
        let (number, rest) = rest.split_at(end + 1);
        head = rest;
        let bits = number.iter().rev().fold(0u64, |n, b| n << 7 | u64::from(b & 0x7f));
        // Zigzag: the lowest bit is the sign.
        (bits & 1 == 0).then_some(bits >> 1)
    };
    next()?;
    Some((next()?, next()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a number as Thrift's compact protocol has it.
    fn number(n: i32) -> Vec<u8> {
        let mut bits = ((n << 1) ^ (n >> 31)) as u32;
        let mut out = Vec::new();
        while bits >= 0x80 {
            out.push(bits as u8 | 0x80);
            bits >>= 7;
        }
        out.push(bits as u8);
        out
    }

    #[test]
    fn a_page_unpacks_to_no_more_than_it_can() {
        let page = |unpacked: i32, packed: i32| {
            let fields = [0, unpacked, packed].map(|n| [vec![0x15], number(n)].concat());
            let bytes = [vec![7; 4], fields.concat(), vec![0; 100]].concat();
            Bounded::new(Store::Memory(bytes.into())).get_read(4).map(|_| ())
        };
        for (unpacked, packed) in [(0, 0), (100, 100), (2200, 100), (1 << 26, 1 << 25), (-1, 5)] {
            assert!(page(unpacked, packed).is_ok(), "{unpacked} from {packed}");
        }
        for (unpacked, packed) in [(1, 0), (2201, 100), (i32::MAX, 100), ((1 << 26) + 1, 1 << 26)] {
            let said = page(unpacked, packed).unwrap_err().to_string();
            assert!(said.contains(&format!("claims to unpack to {unpacked}")), "{said}");
            assert!(said.contains("at byte 4"), "{said}");
        }
        assert_eq!(page_sizes(b"PAR1"), None);
        assert_eq!(page_sizes(&[0x15, 0x80]), None);
    }
}
