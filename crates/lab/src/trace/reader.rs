//! A trace as a stream of records, whatever its format.
//!
//! Owns: recognition by content, the choice among a request's events, what was passed over.
//! Promises: one line in memory at a time; the first line that is not understood ends the stream
//! with an error that shows it. Never: reorders; a trace out of order comes out of order.

use super::lines::{LINE_BYTES_MAX, LineError, Lines};
use super::{DeviceId, TraceError, TraceRecord, TraceSource, blkparse, mqsim, shown};
use std::collections::BTreeMap;
use std::fmt;
use std::io::BufRead;

/// A format of traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// Text of blkparse.
    Blkparse,
    /// ASCII of MQSim and DiskSim.
    Mqsim,
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Blkparse => "blkparse text",
            Format::Mqsim => "MQSim/DiskSim ASCII",
        })
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

/// What was read so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines, of any kind.
    pub lines: u64,
    /// Lines that are no requests, by the letter of their kind (`p` passed-through command, `n` no
    /// data, `m` note, `s` summary or empty).
    pub passed_over: BTreeMap<char, u64>,
}

/// A trace being read.
pub struct Reader {
    file: String,
    format: Format,
    lines: Lines,
    /// The line in `lines` has been read, but not parsed: recognition looked at it.
    held: bool,
    counts: Counts,
    notes: Vec<(u64, String)>,
    last_ns: u64,
}

/// Notes kept; a trace may hold millions (every `cfq` message is one).
const NOTES_MAX: usize = 1000;

impl Reader {
    /// Opens a trace and recognizes its format.
    pub fn open(source: &TraceSource) -> Result<Reader, TraceError> {
        let file = source.name();
        let mut input = source.open()?;
        let head = input.fill_buf().map_err(|source| TraceError::Read {
            file: file.clone(),
            lines: 0,
            source,
        })?;
        if let Some(why) = binary(head) {
            return Err(TraceError::Unrecognized {
                file,
                why,
                first: shown(&head[..head.len().min(64)]),
            });
        }
        let mut reader = Reader {
            file,
            format: Format::Blkparse,
            lines: Lines::new(input),
            held: true,
            counts: Counts::default(),
            notes: Vec::new(),
            last_ns: 0,
        };
        reader.recognize()?;
        Ok(reader)
    }

    fn recognize(&mut self) -> Result<(), TraceError> {
        while self.advance()? {
            let line = self.lines.line();
            let skip = line.trim_ascii().is_empty() || line.starts_with(b"#");
            if skip || line.starts_with(b"Input file ") {
                self.pass_over('s');
                continue;
            }
            self.format = if blkparse::looks_like(line) {
                Format::Blkparse
            } else if mqsim::looks_like(line) {
                Format::Mqsim
            } else {
                return Err(TraceError::Unrecognized {
                    file: self.file.clone(),
                    why: resemblance(line),
                    first: shown(line),
                });
            };
            return Ok(());
        }
        Err(TraceError::Unrecognized {
            file: self.file.clone(),
            why: "The file is empty.",
            first: String::new(),
        })
    }

    /// The format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Name for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// What was read so far.
    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Notes written into the trace so far, with their times; the first thousand.
    pub fn notes(&self) -> &[(u64, String)] {
        &self.notes
    }

    /// The next event of any kind of request.
    pub fn next_event(&mut self) -> Result<Option<(Action, TraceRecord)>, TraceError> {
        loop {
            if !self.held && !self.advance()? {
                return Ok(None);
            }
            self.held = false;
            if let Some(event) = self.parse()? {
                self.last_ns = event.1.ts_ns;
                return Ok(Some(event));
            }
        }
    }

    /// The next record of one action, on one device or all.
    pub fn next_of(
        &mut self,
        action: Action,
        device: Option<DeviceId>,
    ) -> Result<Option<TraceRecord>, TraceError> {
        while let Some((a, record)) = self.next_event()? {
            if a == action && device.is_none_or(|d| d == record.device) {
                return Ok(Some(record));
            }
        }
        Ok(None)
    }

    fn parse(&mut self) -> Result<Option<(Action, TraceRecord)>, TraceError> {
        let line = self.lines.line();
        if self.format == Format::Mqsim {
            return match mqsim::parse(line) {
                Ok(Some(record)) => Ok(Some((Action::Only, record))),
                Ok(None) => {
                    self.pass_over('s');
                    Ok(None)
                }
                Err(wrong) => Err(self.wrong(wrong)),
            };
        }
        match blkparse::parse(line) {
            Ok(blkparse::Line::Event(action, record)) => {
                let action = match action {
                    b'Q' => Action::Queued,
                    b'D' => Action::Issued,
                    _ => Action::Completed,
                };
                return Ok(Some((action, record)));
            }
            Ok(blkparse::Line::Other(kind)) => self.pass_over(kind as char),
            Ok(blkparse::Line::Note(text)) => {
                self.pass_over('m');
                if self.notes.len() < NOTES_MAX {
                    self.notes.push((self.last_ns, text));
                }
            }
            Ok(blkparse::Line::Summary) => self.pass_over('s'),
            Err(wrong) => return Err(self.wrong(wrong)),
        }
        Ok(None)
    }

    fn pass_over(&mut self, kind: char) {
        *self.counts.passed_over.entry(kind).or_default() += 1;
    }

    fn wrong(&self, (column, expected): blkparse::Wrong) -> TraceError {
        let (file, line) = (self.file.clone(), self.lines.number());
        let text = shown(self.lines.line());
        if !self.lines.complete() && self.counts.lines > 1 {
            return TraceError::Truncated { file, line, text };
        }
        TraceError::Line { file, line, column, expected, text }
    }

    fn advance(&mut self) -> Result<bool, TraceError> {
        let more = self.lines.advance().map_err(|e| match e {
            LineError::Io(source) => {
                TraceError::Read { file: self.file.clone(), lines: self.counts.lines, source }
            }
            LineError::TooLong => TraceError::LongLine {
                file: self.file.clone(),
                line: self.lines.number(),
                max: LINE_BYTES_MAX,
            },
        })?;
        self.counts.lines += more as u64;
        Ok(more)
    }
}

/// What kind of binary file this is, if it is one.
fn binary(head: &[u8]) -> Option<&'static str> {
    // struct blk_io_trace: magic 0x65617400 | version 7, in either byte order.
    if matches!(head, [7, b't', b'a', b'e', ..] | [b'e', b'a', b't', 7, ..]) {
        return Some(
            "It is a binary blktrace file: convert it with `blkparse -i FILE > FILE.txt`.",
        );
    }
    if head.starts_with(b"PAR1") {
        return Some("It is a Parquet file, which this version does not read.");
    }
    if head.iter().take(512).any(|b| *b == 0) {
        return Some("It is a binary file.");
    }
    None
}

/// What a first line of no known format looks like.
fn resemblance(line: &[u8]) -> &'static str {
    let commas = line.iter().filter(|b| **b == b',').count();
    if line.starts_with(b"fio version") {
        return "It is a fio I/O log, which this version does not read.";
    }
    if (4..=6).contains(&commas) {
        return "It looks like CSV (MSR, SYSTOR, Alibaba, ...), which this version does not read.";
    }
    if line.starts_with(b"[") || line.contains(&b'=') {
        return "It looks like a configuration file.";
    }
    "Its first line is of no known shape."
}

/// Whether a file starts like a trace, for telling the kinds of input apart.
pub fn is_trace(source: &TraceSource) -> bool {
    match Reader::open(source) {
        Ok(_) => true,
        // Packed or binary: no other kind of input is, so its error is the one to show.
        Err(TraceError::Unrecognized { why, .. }) => why.contains("binary"),
        Err(_) => false,
    }
}
