//! A file that is read in pieces, from anywhere: what Parquet needs.
//!
//! Owns: the two kinds (an open file, bytes in memory) and the limits under which the Parquet library
//! reads them. Promises: nothing beyond the file's end is asked for, and no piece larger than a page
//! may be. Never: keeps what it has read.

use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::reader::{ChunkReader, Length};
use bytes::Bytes;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::{Arc, Mutex};

/// Largest page; writers aim at 1 MiB.
const PAGE_BYTES_MAX: usize = 1 << 26;

/// A file or bytes in memory.
pub enum Store {
    /// An open file.
    File(Mutex<File>, u64),
    /// Bytes.
    Memory(Bytes),
}

impl Store {
    /// Of an open file.
    pub fn of_file(file: File) -> std::io::Result<Store> {
        let len = file.metadata()?.len();
        Ok(Store::File(Mutex::new(file), len))
    }
}

impl Store {
    /// The bytes from a place on, for a look at them.
    pub fn get_read_at(&self, at: u64) -> impl Read + '_ {
        At { store: self, at }
    }
}

/// See [`Store::get_read_at`].
struct At<'a> {
    store: &'a Store,
    at: u64,
}

impl Read for At<'_> {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = read_at(self.store, self.at, out)?;
        self.at += n as u64;
        Ok(n)
    }
}

fn read_at(store: &Store, at: u64, out: &mut [u8]) -> std::io::Result<usize> {
    match store {
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

impl Length for Store {
    fn len(&self) -> u64 {
        match self {
            Store::File(_, len) => *len,
            Store::Memory(bytes) => bytes.len() as u64,
        }
    }
}

/// Reads a piece after another, each at its own place.
pub struct Part {
    store: Arc<Store>,
    at: u64,
}

impl Read for Part {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        let n = read_at(&self.store, self.at, out)?;
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
    type T = std::io::BufReader<Part>;

    fn get_read(&self, start: u64) -> ParquetResult<Self::T> {
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
