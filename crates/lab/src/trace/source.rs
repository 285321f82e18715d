//! Where a trace's bytes come from: a file or the program itself, plain, gzip or zstd.
//!
//! Owns: opening and unpacking, both recognized by content. Promises: streams; the decoders' own
//! windows are the only memory. Never: looks at a file's name to decide what is in it.

use super::TraceError;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Chain, Cursor, Read};
use std::path::PathBuf;

/// A trace that can be opened as often as needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceSource {
    /// A file.
    File(PathBuf),
    /// Bytes that were compiled in.
    Bundled {
        /// Name for messages.
        name: &'static str,
        /// Content, maybe compressed.
        bytes: &'static [u8],
    },
}

impl TraceSource {
    /// Name for messages and reports.
    pub fn name(&self) -> String {
        match self {
            TraceSource::File(path) => path.display().to_string(),
            TraceSource::Bundled { name, .. } => format!("{name} (bundled)"),
        }
    }

    /// Opens and unpacks.
    pub fn open(&self) -> Result<Box<dyn BufRead>, TraceError> {
        let open_error = |source| TraceError::Open { file: self.name(), source };
        match self {
            TraceSource::File(path) => {
                let file = File::open(path).map_err(open_error)?;
                // Opening a folder succeeds on Linux and fails only when read.
                if file.metadata().map_err(open_error)?.is_dir() {
                    return Err(open_error(io::ErrorKind::IsADirectory.into()));
                }
                unpacked(file).map_err(open_error)
            }
            TraceSource::Bundled { bytes, .. } => unpacked(Cursor::new(*bytes)).map_err(open_error),
        }
    }
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
