//! What a personality works on.
//!
//! Owns: the calls that are needed ([`FileSystem`]), and a folder of this machine that has them
//! ([`Directory`]). Promises: nothing outside that folder is touched. Never: syncs by itself.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::PathBuf;

/// Paths are below its root, with `/` between folders.
pub trait FileSystem: Sync {
    /// An open file; dropped, it is closed.
    type File: Send;
    /// Makes a folder, whose own folder is there.
    fn make_folder(&self, path: &str) -> io::Result<()>;
    /// Makes an empty file and opens it.
    fn create(&self, path: &str) -> io::Result<Self::File>;
    fn open(&self, path: &str) -> io::Result<Self::File>;
    /// Reads all of it, as much at once as there is room for; says how much it was.
    fn read_whole(&self, file: &mut Self::File, room: &mut [u8]) -> io::Result<u64>;
    /// Writes behind its end.
    fn append(&self, file: &mut Self::File, bytes: &[u8]) -> io::Result<()>;
    fn fsync(&self, file: &mut Self::File) -> io::Result<()>;
    fn delete(&self, path: &str) -> io::Result<()>;
    /// Asks for what is known of it.
    fn stat(&self, path: &str) -> io::Result<()>;
}

/// A folder of this machine.
#[derive(Clone, Debug)]
pub struct Directory {
    root: PathBuf,
}

impl Directory {
    pub fn new(root: impl Into<PathBuf>) -> Directory {
        Directory { root: root.into() }
    }
}

impl FileSystem for Directory {
    type File = File;

    fn make_folder(&self, path: &str) -> io::Result<()> {
        fs::create_dir(self.root.join(path))
    }

    fn create(&self, path: &str) -> io::Result<File> {
        let path = self.root.join(path);
        OpenOptions::new().read(true).append(true).create_new(true).open(path)
    }

    fn open(&self, path: &str) -> io::Result<File> {
        OpenOptions::new().read(true).append(true).open(self.root.join(path))
    }

    fn read_whole(&self, file: &mut File, room: &mut [u8]) -> io::Result<u64> {
        file.rewind()?;
        let mut bytes = 0;
        loop {
            match file.read(room) {
                Ok(0) => return Ok(bytes),
                Ok(n) => bytes += n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    fn append(&self, file: &mut File, bytes: &[u8]) -> io::Result<()> {
        file.write_all(bytes)
    }

    fn fsync(&self, file: &mut File) -> io::Result<()> {
        file.sync_all()
    }

    fn delete(&self, path: &str) -> io::Result<()> {
        fs::remove_file(self.root.join(path))
    }

    fn stat(&self, path: &str) -> io::Result<()> {
        fs::metadata(self.root.join(path)).map(drop)
    }
}
