//! Where a trace's bytes come from: a file or the program itself, plain, gzip or zstd.
//!
//! Owns: opening and unpacking, both recognized by content. Promises: streams; the decoders' own
//! windows are the only memory. Never: looks at a file's name to decide what is in it; names only
//! say which files of blktrace belong together.

use super::parquet::MAGIC;
use super::store::Store;
use crate::record::TraceError;
use bytes::Bytes;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::path::{Path, PathBuf};

/// A file's name for messages, and its content.
pub(super) type NamedInput = (String, Box<dyn BufRead>);

/// A trace that can be opened as often as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    File(PathBuf),
    /// Bytes that were compiled in.
    Bundled {
        name: &'static str,
        /// Content, maybe compressed.
        bytes: &'static [u8],
    },
    /// Bytes made by a program: a test, a fuzzer.
    Memory {
        name: String,
        /// Content, maybe compressed.
        bytes: Bytes,
    },
}

impl TraceSource {
    /// Name for messages and reports.
    pub fn name(&self) -> String {
        match self {
            TraceSource::File(path) => path.display().to_string(),
            TraceSource::Bundled { name, .. } => format!("{name} (bundled)"),
            TraceSource::Memory { name, .. } => name.clone(),
        }
    }

    pub fn open(&self) -> Result<Box<dyn BufRead>, TraceError> {
        let open_error = |source| TraceError::Open { file: self.name(), source };
        match self {
            TraceSource::File(path) => {
                regular(path).map_err(open_error)?;
                let file = File::open(path).map_err(open_error)?;
                unpacked(file).map_err(open_error)
            }
            TraceSource::Bundled { bytes, .. } => unpacked(Cursor::new(*bytes)).map_err(open_error),
            TraceSource::Memory { bytes, .. } => {
                unpacked(Cursor::new(bytes.clone())).map_err(open_error)
            }
        }
    }

    /// For formats that are not read from front to back.
    pub(super) fn store(&self) -> Result<Store, TraceError> {
        let open_error = |source| TraceError::Open { file: self.name(), source };
        let memory = |bytes: &[u8]| Store::Memory(Bytes::copy_from_slice(bytes));
        let store = match self {
            TraceSource::File(path) => {
                let file = File::open(path).map_err(open_error)?;
                Store::of_file(file).map_err(open_error)?
            }
            TraceSource::Bundled { bytes, .. } => memory(bytes),
            TraceSource::Memory { bytes, .. } => Store::Memory(bytes.clone()),
        };
        let mut head = [0; 4];
        let magic = store.get_read_at(0).read_exact(&mut head).is_ok_and(|()| &head == MAGIC);
        if !magic {
            let why = "a packed Parquet file can't be read from its end: unpack it first";
            return Err(open_error(io::Error::other(why)));
        }
        Ok(store)
    }

    /// All files of a trace that is kept in a file per CPU, `NAME.blktrace.CPU`, maybe packed, by CPU;
    /// itself alone when it is not called so, and none where it is no file. Of a CPU that is there plain
    /// and packed the one counts that was named, else the plain one.
    pub fn files(&self) -> Result<Vec<PathBuf>, TraceError> {
        let TraceSource::File(own) = self else { return Ok(Vec::new()) };
        let mut paths = Vec::new();
        if let Some(stem) = blktrace_stem(own) {
            let open_error = |source| TraceError::Open { file: self.name(), source };
            let folder = own.parent().filter(|p| !p.as_os_str().is_empty());
            let entries = std::fs::read_dir(folder.unwrap_or(Path::new(".")));
            for entry in entries.map_err(open_error)? {
                let other = own.with_file_name(entry.map_err(open_error)?.file_name());
                if blktrace_stem(&other).is_some_and(|(s, _)| s == stem.0) {
                    paths.extend(blktrace_stem(&other).map(|(_, cpu)| (cpu, other)));
                }
            }
            paths.sort_by_key(|(cpu, path)| (*cpu, path != own, path.clone()));
            paths.dedup_by_key(|(cpu, _)| *cpu);
        }
        match paths.len() {
            0 => Ok(vec![own.clone()]),
            _ => Ok(paths.into_iter().map(|(_, path)| path).collect()),
        }
    }

    /// [`TraceSource::files`], opened; itself where it is no file.
    pub(super) fn siblings(&self) -> Result<Vec<NamedInput>, TraceError> {
        let files = self.files()?;
        if files.len() < 2 {
            return Ok(vec![(self.name(), self.open()?)]);
        }
        let one = |path: PathBuf| {
            let source = TraceSource::File(path);
            source.open().map(|input| (source.name(), input))
        };
        files.into_iter().map(one).collect()
    }
}

/// A file can be read more than once, as everything here is: not a folder, a pipe or a terminal.
///
/// # Errors
/// What the system says, or what to do instead.
pub fn regular(path: &Path) -> io::Result<()> {
    let once = "it is no regular file, and is read more than once: save it to a file first";
    match std::fs::metadata(path) {
        Ok(m) if m.is_file() => Ok(()),
        // Opening a folder succeeds on Linux and fails only when read.
        Ok(m) if m.is_dir() => Err(io::ErrorKind::IsADirectory.into()),
        Ok(_) => Err(io::Error::other(once)),
        Err(_) if path == Path::new("-") => Err(io::Error::other(once)),
        Err(e) => Err(e),
    }
}

/// `sda` and 3 of `sda.blktrace.3`: how blktrace(8) calls the file of a CPU; packed it has one ending
/// more.
fn blktrace_stem(path: &Path) -> Option<(String, u32)> {
    let (stem, cpu) = path.file_name()?.to_str()?.rsplit_once(".blktrace.")?;
    let cpu = cpu.strip_suffix(".gz").or(cpu.strip_suffix(".zst")).unwrap_or(cpu);
    Some((stem.to_string(), cpu.parse().ok()?))
}

const GZIP: [u8; 2] = [0x1f, 0x8b];
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
/// Large reads keep the decoders busy; one of these per open trace.
const BUFFER_BYTES: usize = 1 << 16;

/// Content of `raw`, unpacked when its first bytes say that it is packed.
pub(crate) fn unpacked<R: Read + 'static>(mut raw: R) -> io::Result<Box<dyn BufRead>> {
    let mut head = [0u8; 4];
    let mut have = 0;
    while have < head.len() {
        match raw.read(&mut head[have..])? {
            0 => break,
            n => have += n,
        }
    }
    let whole = Cursor::new(head[..have].to_vec()).chain(raw);
    Ok(if head[..have].starts_with(&GZIP) {
        let plain = flate2::bufread::MultiGzDecoder::new(BufReader::new(whole));
        Box::new(BufReader::with_capacity(BUFFER_BYTES, plain))
    } else if head[..have] == ZSTD {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, Zstd::new(whole)))
    } else {
        Box::new(BufReader::with_capacity(BUFFER_BYTES, whole))
    })
}

type Whole<R> = Chain<Cursor<Vec<u8>>, R>;
type Frame<R> =
    ruzstd::decoding::StreamingDecoder<BufReader<Whole<R>>, ruzstd::decoding::FrameDecoder>;

/// Frames one after the other, as `zstd` and `cat a.zst b.zst` write them; the decoder of the
/// library ends behind the first.
enum Zstd<R: Read> {
    Between(BufReader<Whole<R>>),
    Inside(Box<Frame<R>>),
    Ended,
}

impl<R: Read> Zstd<R> {
    fn new(raw: Whole<R>) -> Zstd<R> {
        Zstd::Between(BufReader::new(raw))
    }
}

impl<R: Read> Read for Zstd<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        loop {
            match std::mem::replace(self, Zstd::Ended) {
                Zstd::Ended => return Ok(0),
                Zstd::Between(mut raw) => {
                    if raw.fill_buf()?.is_empty() {
                        return Ok(0);
                    }
                    let frame = Frame::new(raw).map_err(io::Error::other)?;
                    *self = Zstd::Inside(Box::new(frame));
                }
                Zstd::Inside(mut frame) => match frame.read(out)? {
                    0 if !out.is_empty() => *self = Zstd::Between(frame.into_inner()),
                    n => {
                        *self = Zstd::Inside(frame);
                        return Ok(n);
                    }
                },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The files of a trace belong together whether they are packed or not.
    #[test]
    fn a_packed_file_of_a_cpu_finds_its_siblings() {
        let folder = tempfile::tempdir().unwrap();
        let all =
            ["sda.blktrace.0.gz", "sda.blktrace.1", "sda.blktrace.1.zst", "sda.blktrace.10.gz"];
        for name in all.iter().chain(&["sdb.blktrace.0", "sda.blktrace.x", "sda.blktrace.2.txt"]) {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        let files = |name: &str| {
            let files = TraceSource::File(folder.path().join(name)).files().unwrap();
            let name = |path: &PathBuf| path.file_name().unwrap().to_str().unwrap().to_string();
            files.iter().map(name).collect::<Vec<_>>()
        };
        assert_eq!(files(all[0]), [all[0], all[1], all[3]]);
        assert_eq!(files(all[1]), [all[0], all[1], all[3]]);
        assert_eq!(files(all[2]), [all[0], all[2], all[3]], "the one that was named");
        assert_eq!(files("sdb.blktrace.0"), ["sdb.blktrace.0"]);
        assert_eq!(files("sda.blktrace.2.txt"), ["sda.blktrace.2.txt"]);
    }
}
