//! The common record of all formats, and what can be wrong with a trace.
//!
//! Owns: [`TraceRecord`], [`TraceError`] and its words. Never: reads.

use crate::device::DeviceId;
use crate::format::Format;
use std::fmt;

/// What a record asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum TraceOp {
    Read,
    Write,
    /// Discard (trim, also secure erase).
    Discard,
    /// A flush without data.
    Flush,
}

impl TraceOp {
    pub const ALL: [TraceOp; 4] = [TraceOp::Read, TraceOp::Write, TraceOp::Discard, TraceOp::Flush];

    /// In results.
    pub fn name(self) -> &'static str {
        ["read", "write", "discard", "flush"][self as usize]
    }
}

/// Which event of a request a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// `Q`: the file system or application handed it to the block layer.
    Queued,
    /// `D`: the block layer handed it to the driver, merged and split.
    Issued,
    /// `C`: done. Gives latencies, is never replayed.
    Completed,
    /// The format has one line per request.
    Only,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Queued => "Q (queued)",
            Action::Issued => "D (issued)",
            Action::Completed => "C (completed)",
            Action::Only => "request",
        })
    }
}

/// One request of a trace, in the units of no particular format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// When it was made, nanoseconds from the trace's own zero.
    pub ts_ns: u64,
    /// What it asks for.
    pub op: TraceOp,
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

impl TraceRecord {
    /// A read of nothing at the beginning of the first device: what parsers fill in.
    pub const EMPTY: TraceRecord = TraceRecord {
        ts_ns: 0,
        op: TraceOp::Read,
        device: DeviceId(0),
        offset_bytes: 0,
        len_bytes: 0,
        fua: false,
        preflush: false,
        latency_ns: None,
    };
}

/// Longest read or write that a trace may hold. Kernels split at a few MiB.
pub const REQUEST_BYTES_MAX: u64 = 1 << 30;
/// Longest discard: it may cover a device. A limit, because formats of 32 bits split it: without one
/// a single line could become 2^32 records.
pub const DISCARD_BYTES_MAX: u64 = 1 << 46;

impl TraceOp {
    /// Longest request of this kind.
    pub fn len_max(self) -> u64 {
        match self {
            TraceOp::Read | TraceOp::Write => REQUEST_BYTES_MAX,
            TraceOp::Discard | TraceOp::Flush => DISCARD_BYTES_MAX,
        }
    }
}

/// What is wrong with a field, for [`TraceError::Line`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expected {
    Fields(&'static str),
    /// A number in this range, called so.
    Number(&'static str),
    /// Something else, said in words.
    Text(&'static str),
    /// A whole number of this unit of time, and there is a fraction of it.
    Fraction(&'static str),
}

impl fmt::Display for Expected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expected::Fields(what) | Expected::Text(what) => write!(f, "expected {what}"),
            Expected::Number(what) => write!(f, "expected a number: {what}"),
            Expected::Fraction(unit) => write!(
                f,
                "expected a time in whole {unit}, and this has a fraction: say its unit (`--time-unit s`, `ms`, `us`), or \
                 that it is another format (`--format disksim` has times in ms), or `--take-as-is`"
            ),
        }
    }
}

/// Why a trace can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    #[error("cannot open trace {file}: {source}")]
    Open { file: String, source: std::io::Error },
    /// The file stops being readable: a disk error, or a compressed file that ends early.
    #[error(
        "{file}: cannot read on behind line or record {lines}: {source} (a damaged or truncated \
         file? copy it again)"
    )]
    Read {
        file: String,
        lines: u64,
        /// What the system or the decompressor said.
        source: std::io::Error,
    },
    #[error(
        "{file}: its requests span {years} years, from {first} s to {last} s by its own clock, so a \
         time in it is wrong: correct or remove that line"
    )]
    Times {
        file: String,
        /// Between the earliest and the latest.
        years: u64,
        /// The earliest, seconds.
        first: u64,
        last: u64,
    },
    #[error(
        "{file}:{line}:{column}: {expected}\n  {text}\n  {marker}^",
        marker = " ".repeat(column.saturating_sub(1))
    )]
    Line {
        file: String,
        /// Line number from 1.
        line: u64,
        /// Column from 1, within `text`.
        column: usize,
        expected: Expected,
        /// The line, shortened.
        text: String,
    },
    /// The last line has no end and does not parse.
    #[error(
        "{file}:{line}: the file ends in the middle of a line (truncated? copy it again)\n  {text}"
    )]
    Truncated {
        file: String,
        /// Line number from 1.
        line: u64,
        text: String,
    },
    /// A record of a binary file that is not understood.
    #[error("{file}: record {record} (byte {at_bytes}): {expected}")]
    Record {
        file: String,
        /// Number of the record from 1.
        record: u64,
        at_bytes: u64,
        expected: Expected,
    },
    /// A row of a Parquet file that is not understood.
    #[error("{file}: row {row}, column `{column}`: {expected}")]
    Row {
        file: String,
        /// Number of the row from 1.
        row: u64,
        column: &'static str,
        expected: Expected,
    },
    #[error("{file}: a Parquet file without an integer column `{missing}`; a trace has: {known}")]
    Columns { file: String, missing: &'static str, known: String },
    /// What was said about a trace does not suit its format.
    #[error("{file} is {format}: {why}")]
    Reading { file: String, format: Format, why: &'static str },
    /// It could be read, but what came out can't be.
    #[error(
        "{file}: read as {format}, but {why}. If that is how it is, say `--take-as-is` (beside the trace in an \
         experiment: `take_as_is = true`)"
    )]
    Implausible {
        file: String,
        format: Format,
        /// What came out, why it can't be, and what it may be.
        why: String,
    },
    #[error("{file}: interrupted")]
    Interrupted { file: String },
    #[error("{file}:{line}: the line is longer than {max} bytes; this is no trace")]
    LongLine {
        file: String,
        /// Line number from 1.
        line: u64,
        max: usize,
    },
    #[error(
        "{file}: not a trace in a format known here. {why}\n  first line: {first}\n  known: {}; .gz \
         and .zst are unpacked",
        Format::words()
    )]
    Unrecognized {
        file: String,
        why: &'static str,
        /// First line, shortened.
        first: String,
    },
    #[error("{file}: 0 of {lines} lines matched: {why}")]
    NothingMatched {
        file: String,
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
