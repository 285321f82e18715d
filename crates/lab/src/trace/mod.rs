//! Block traces: read, checked, laid out on a device.
//!
//! Owns: the common record ([`TraceRecord`]), recognition of a file by its content
//! ([`Reader::open`]), the formats (`blkparse` text, MQSim/DiskSim ASCII), the scan that says what
//! a trace holds ([`mod@scan`]) and the placement of its devices on ours ([`layout`]).
//! Promises: a file of any size is read in bounded memory; the first line that is not understood is
//! shown with its number, column and text; nothing is skipped without being counted.
//! Never: guesses. A trace without a usable line is an error, not an empty run.
//!
//! The life of a trace: [`source`] opens and decompresses, [`lines`] cuts, a format parses,
//! [`mod@scan`] looks at everything once (range, devices, order), [`layout`] maps to our sectors,
//! `run` replays.

pub mod blkparse;
pub mod info;
pub mod layout;
pub mod lines;
pub mod mqsim;
pub mod reader;
pub mod scan;
pub mod source;

pub use layout::{Layout, LayoutError, Piece};
pub use reader::{Action, Format, Reader};
pub use scan::{Scan, scan};
pub use source::TraceSource;

use std::fmt;

/// What a record asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceOp {
    /// Read.
    Read,
    /// Write.
    Write,
    /// Discard (trim, also secure erase).
    Discard,
    /// A flush without data.
    Flush,
}

/// A device as a trace names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DeviceId {
    /// A plain number (MQSim).
    Number(u32),
    /// Major and minor number (blkparse).
    MajorMinor(u32, u32),
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceId::Number(n) => write!(f, "{n}"),
            DeviceId::MajorMinor(major, minor) => write!(f, "{major},{minor}"),
        }
    }
}

/// One request of a trace, in the units of no particular format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// When it was made, nanoseconds from the trace's own zero.
    pub ts_ns: u64,
    /// What it asks for.
    pub op: TraceOp,
    /// Of which device.
    pub device: DeviceId,
    /// First byte.
    pub offset_bytes: u64,
    /// Length; 0 for a flush.
    pub len_bytes: u64,
    /// A write that is to be durable when acknowledged.
    pub fua: bool,
    /// A flush is to be done before it.
    pub preflush: bool,
    /// How long it took when it was recorded, where the format says so in the same line.
    pub latency_ns: Option<u64>,
}

/// Longest request that a trace may hold. Kernels split at a few MiB; a discard may cover a device.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;

/// What is wrong with a field, for [`TraceError::Line`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    /// This many fields.
    Fields(&'static str),
    /// A number in this range, called so.
    Number(&'static str),
    /// Something else, said in words.
    Text(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Fields(what) | Expected::Text(what) => write!(f, "expected {what}"),
            Expected::Number(what) => write!(f, "expected a number: {what}"),
        }
    }
}

/// Why a trace can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The file can't be opened.
    #[error("cannot open trace {file}: {source}")]
    Open {
        /// File.
        file: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file stops being readable: a disk error, or a compressed file that ends early.
    #[error(
        "{file}: cannot read on behind line {lines}: {source} (a damaged or truncated file? copy it \
         again)"
    )]
    Read {
        /// File.
        file: String,
        /// Lines read so far.
        lines: u64,
        /// What the system or the decompressor said.
        source: std::io::Error,
    },
    /// A line that is not understood.
    #[error(
        "{file}:{line}:{column}: {expected}\n  {text}\n  {marker}^",
        marker = " ".repeat(column.saturating_sub(1))
    )]
    Line {
        /// File.
        file: String,
        /// Line number from 1.
        line: u64,
        /// Column from 1, within `text`.
        column: usize,
        /// What should stand there.
        expected: Expected,
        /// The line, shortened.
        text: String,
    },
    /// The last line has no end and does not parse.
    #[error(
        "{file}:{line}: the file ends in the middle of a line (truncated? copy it again)\n  {text}"
    )]
    Truncated {
        /// File.
        file: String,
        /// Line number from 1.
        line: u64,
        /// What is there of it.
        text: String,
    },
    /// A line longer than any trace has.
    #[error("{file}:{line}: the line is longer than {max} bytes; this is no trace")]
    LongLine {
        /// File.
        file: String,
        /// Line number from 1.
        line: u64,
        /// The limit.
        max: usize,
    },
    /// None of our formats.
    #[error(
        "{file}: not a trace in a format known here. {why}\n  first line: {first}\n  known: blkparse \
         text (`blkparse -i DEV`), MQSim/DiskSim ASCII (`time device sector sectors type`); .gz and \
         .zst are unpacked"
    )]
    Unrecognized {
        /// File.
        file: String,
        /// What it looks like.
        why: &'static str,
        /// First line, shortened.
        first: String,
    },
    /// Nothing to replay.
    #[error("{file}: 0 of {lines} lines matched: {why}")]
    NothingMatched {
        /// File.
        file: String,
        /// Lines read.
        lines: u64,
        /// What was looked for and what was there.
        why: String,
    },
}

/// A line as an error shows it: printable and not wider than a screen.
pub(crate) fn shown(line: &[u8]) -> String {
    const SHOWN_MAX: usize = 160;
    let text: String = String::from_utf8_lossy(line)
        .chars()
        .take(SHOWN_MAX)
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    if line.len() > SHOWN_MAX { format!("{text} ...") } else { text }
}
