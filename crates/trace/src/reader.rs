//! A trace as a stream of records, whatever its format.
//!
//! Owns: recognition by content, the choice among a request's events, what was passed over.
//! Promises: one line, record or page in memory at a time; the first one that is not understood
//! ends the stream with an error that shows it. Never: reorders; a trace out of order comes out of
//! order.

use super::blkparse;
use super::blktrace::{self, Event, Merge};
use super::device::Devices;
use super::lines::{Fields, LINE_BYTES_MAX, LineError, Lines, decimal};
use super::number::{Clock, S};
use super::parquet::{self, Rows};
use super::table::{Context, Line, Table, Unwrap, Wrong};
use super::tables::{self, TABLES};
use crate::device::DeviceId;
use crate::format::Format;
use crate::record::{Action, Expected, TraceError, TraceRecord, shown};
use crate::source::TraceSource;
use bytes::Bytes;
use flashlane_base::mutant;
use std::collections::BTreeMap;
use std::io::BufRead;

/// What a user says about a trace, beyond its content.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// The format; recognized by content when absent.
    pub format: Option<Format>,
    /// Which event of a request is replayed; chosen by content when absent.
    pub action: Option<Action>,
    /// Unit of the column of times, in place of the format's own. MQSim's is set by its own
    /// configuration.
    pub time_unit: Option<Clock>,
    /// Times are those of a 32-bit clock, which goes on counting where it begins anew.
    pub unwrap: bool,
    /// What is implausible is no error: times with a fraction where the format has none, requests
    /// faster than any device.
    pub take_as_is: bool,
    /// fio's `wait` counts from the log's beginning (axboe/fio#756), not from the wait before
    /// (fio's HOWTO).
    pub wait_from_start: bool,
    /// Contents are read, too, where there are any ([`Reader::content`]).
    pub contents: bool,
}

/// What was read so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines, of any kind; records of a binary format.
    pub lines: u64,
    /// Lines that are no requests, by the letter of their kind (`p` passed-through command, `n` no
    /// data, `m` note, `s` summary, header or empty, `o` a file opened, `w` a wait, `b` no type).
    pub passed_over: BTreeMap<char, u64>,
    /// The last line has no end: if the file was cut there, what it says may be wrong.
    pub unended: bool,
}

enum Input {
    Blkparse(Lines),
    Table(Lines, &'static Table),
    /// blktrace's records.
    Blktrace(Merge),
    /// The own format.
    Parquet(Box<Rows>),
}

/// A trace being read.
pub struct Reader {
    file: String,
    input: Input,
    /// A line has been read, but not parsed: recognition looked at it.
    held: bool,
    /// See [`Reader::is_guessed`].
    guessed: bool,
    context: Context,
    counts: Counts,
    notes: Vec<(u64, String)>,
    last_ns: u64,
}

/// Notes kept; a trace may hold millions (every `cfq` message is one).
const NOTES_MAX: usize = 1000;

impl Reader {
    /// Opens a trace, and recognizes its format unless `reading` names it.
    pub fn open(source: &TraceSource, reading: &Reading) -> Result<Reader, TraceError> {
        let file = source.name();
        let mut raw = source.open()?;
        let read_error = |source| TraceError::Read { file: file.clone(), lines: 0, source };
        let head = raw.fill_buf().map_err(read_error)?;
        let head = head[..head.len().min(HEAD_BYTES)].to_vec();
        let mut context = Context {
            time_unit: reading.time_unit,
            wait_from_start: reading.wait_from_start,
            unwrap: reading.unwrap.then(Unwrap::default),
            take_as_is: reading.take_as_is,
            ..Context::default()
        };
        let input = match reading.format.or_else(|| binary_format(&head)) {
            Some(Format::Parquet) if head.starts_with(parquet::MAGIC) => {
                Input::Parquet(Box::new(Rows::new(&file, source.store()?, reading.contents)?))
            }
            Some(Format::Blktrace) if blktrace::looks_like(&head) == Some(true) => {
                drop(raw);
                Input::Blktrace(Merge::new(source.siblings()?, &mut context.devices)?)
            }
            _ => match unreadable(&head, reading.format) {
                Some(why) => {
                    let first = shown(&head[..head.len().min(64)]);
                    return Err(TraceError::Unrecognized { file, why, first });
                }
                None => Input::Blkparse(Lines::new(raw)),
            },
        };
        let notes = Vec::new();
        let counts = Counts::default();
        let (held, guessed, last_ns) = (false, false, 0);
        let mut reader = Reader { file, input, held, guessed, context, counts, notes, last_ns };
        if let Input::Blkparse(_) = reader.input {
            reader.recognize(reading.format)?;
        }
        reader.check(reading)?;
        Ok(reader)
    }

    /// Refuses what was said about a trace that is none of the kind.
    fn check(&self, reading: &Reading) -> Result<(), TraceError> {
        let format = self.format();
        let why = match () {
            _ if reading.time_unit.is_some() && self.clock().is_none() => {
                "a unit of time is for tables with a column of times; this format's is fixed"
            }
            _ if reading.unwrap && self.clock().is_none() => {
                "a clock of 32 bits is for tables with a column of times; this format's has 64"
            }
            _ if reading.wait_from_start && format != Format::Fio2 => {
                "waits are in version 2 of fio's I/O log; this trace has times"
            }
            _ => return Ok(()),
        };
        Err(TraceError::Reading { file: self.file.clone(), format, why })
    }

    /// Goes to the first line that says what the file is, and reads by it from there.
    fn recognize(&mut self, want: Option<Format>) -> Result<(), TraceError> {
        while self.advance()? {
            let line = self.line();
            let skip = line.trim_ascii().is_empty() || line.starts_with(b"#");
            if skip || line.starts_with(b"Input file ") {
                self.pass_over('s');
                continue;
            }
            let table = match want {
                Some(format) => tables::of(format),
                None if blkparse::looks_like(line) => None,
                None => Some(TABLES.iter().find(|t| t.looks_like(line)).ok_or_else(|| {
                    TraceError::Unrecognized {
                        file: self.file.clone(),
                        why: resemblance(line),
                        first: shown(line),
                    }
                })?),
            };
            let header = table.is_some_and(|t| t.is_header(line));
            self.held = true;
            self.guessed = want.is_none()
                && !header
                && table.is_some_and(Table::is_of_numbers)
                && !mutant!("trace.sure");
            let Some(table) = table else { return Ok(()) };
            if table.magic.is_some() && !header {
                let expected = "the first line of a log, `fio version 2 iolog` or 3";
                return Err(self.wrong((1, Expected::Text(expected))));
            }
            if header {
                self.held = false;
                self.pass_over('s');
            }
            let empty = Input::Blkparse(Lines::new(Box::new(std::io::empty())));
            if let Input::Blkparse(lines) = std::mem::replace(&mut self.input, empty) {
                self.input = Input::Table(lines, table);
            }
            return Ok(());
        }
        Err(TraceError::Unrecognized {
            file: self.file.clone(),
            why: "The file is empty.",
            first: String::new(),
        })
    }

    pub fn format(&self) -> Format {
        match &self.input {
            Input::Blkparse(_) => Format::Blkparse,
            Input::Table(_, table) => table.format,
            Input::Blktrace(_) => Format::Blktrace,
            Input::Parquet(_) => Format::Parquet,
        }
    }

    /// The format was told by numbers alone, which other formats have, too, and the user did not
    /// name it.
    pub fn is_guessed(&self) -> bool {
        self.guessed
    }

    /// The unit of its column of times, where it has one.
    pub fn clock(&self) -> Option<Clock> {
        match &self.input {
            Input::Table(_, table) => {
                table.clock().map(|own| self.context.time_unit.unwrap_or(own))
            }
            _ => None,
        }
    }

    /// Name for messages.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Files that are read as one: more than one for a trace in a file per CPU.
    pub fn files(&self) -> usize {
        if let Input::Blktrace(merge) = &self.input { merge.files() } else { 1 }
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// The devices seen so far.
    pub fn devices(&self) -> &Devices {
        &self.context.devices
    }

    /// Whether it is a recording with contents.
    pub fn has_contents(&self) -> bool {
        matches!(&self.input, Input::Parquet(rows) if rows.has_contents())
    }

    /// What the request wrote that was read last, where [`Reading::contents`] asks for it and it was
    /// recorded. It is given once.
    pub fn content(&mut self) -> Option<Bytes> {
        match &mut self.input {
            Input::Parquet(rows) => rows.content(),
            _ => None,
        }
    }

    /// Notes written into the trace so far, with their times; the first thousand.
    pub fn notes(&self) -> &[(u64, String)] {
        &self.notes
    }

    /// The next event of any kind of request.
    pub fn next_event(&mut self) -> Result<Option<(Action, TraceRecord)>, TraceError> {
        loop {
            let more = match &mut self.input {
                Input::Parquet(rows) => {
                    let record = rows.next(&mut self.context.devices)?;
                    self.counts.lines = rows.rows();
                    return Ok(record.map(|r| (Action::Only, r)));
                }
                Input::Blktrace(merge) => {
                    let next = merge.next(&mut self.context.devices)?;
                    self.counts.lines = merge.records();
                    match next {
                        None => false,
                        Some((ns, event)) => {
                            self.last_ns = ns;
                            if let Some(found) = self.blktrace_event(event) {
                                return Ok(Some(found));
                            }
                            true
                        }
                    }
                }
                Input::Blkparse(_) | Input::Table(..) => {
                    let more = self.held || self.advance()?;
                    self.held = false;
                    if more && let Some(found) = self.parse()? {
                        self.last_ns = found.1.ts_ns;
                        return Ok(Some(found));
                    }
                    more
                }
            };
            if !more {
                return Ok(None);
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

    fn blktrace_event(&mut self, event: Event) -> Option<(Action, TraceRecord)> {
        match event {
            Event::Request(letter, record) => return Some((action_of(letter), record)),
            Event::Other(letter) => self.pass_over(letter as char),
            Event::Note(text) => self.note(text),
        }
        None
    }

    fn parse(&mut self) -> Result<Option<(Action, TraceRecord)>, TraceError> {
        let parsed = match &self.input {
            Input::Table(lines, table) => {
                let line = lines.line();
                if line.first().is_none_or(|b| *b == b'#') || line.trim_ascii().is_empty() {
                    self.pass_over('s');
                    return Ok(None);
                }
                match table.parse(line, &mut self.context) {
                    Ok(Line::Event(action, record)) => return Ok(Some((action, record))),
                    Ok(Line::Other(letter)) => Ok(Some(letter)),
                    // Files that were put behind each other keep their headers.
                    Err(_) if table.is_header(line) => Ok(Some('s')),
                    Err(wrong) => Err(wrong),
                }
            }
            Input::Blkparse(lines) => {
                match blkparse::parse(lines.line(), &mut self.context.devices) {
                    Ok(blkparse::Line::Event(letter, record)) => {
                        return Ok(Some((action_of(letter), record)));
                    }
                    Ok(blkparse::Line::Other(kind)) => Ok(Some(kind as char)),
                    Ok(blkparse::Line::Note(text)) => {
                        self.note(text);
                        Ok(None)
                    }
                    Ok(blkparse::Line::Summary) => Ok(Some('s')),
                    Err(wrong) => Err(wrong),
                }
            }
            Input::Blktrace(_) | Input::Parquet(_) => Ok(None),
        };
        if let Some(letter) = parsed.map_err(|wrong| self.wrong(wrong))? {
            self.pass_over(letter);
        }
        Ok(None)
    }

    fn note(&mut self, text: String) {
        self.pass_over('m');
        if self.notes.len() < NOTES_MAX {
            self.notes.push((self.last_ns, text));
        }
    }

    fn pass_over(&mut self, kind: char) {
        *self.counts.passed_over.entry(kind).or_default() += 1;
    }

    fn lines(&self) -> Option<&Lines> {
        match &self.input {
            Input::Blkparse(lines) | Input::Table(lines, _) => Some(lines),
            Input::Blktrace(_) | Input::Parquet(_) => None,
        }
    }

    fn line(&self) -> &[u8] {
        self.lines().map_or(&[], Lines::line)
    }

    fn wrong(&self, (column, expected): Wrong) -> TraceError {
        let line = self.lines().map_or(0, Lines::number);
        let (file, text) = (self.file.clone(), shown(self.line()));
        if self.lines().is_some_and(|l| !l.complete()) && self.counts.lines > 1 {
            return TraceError::Truncated { file, line, text };
        }
        TraceError::Line { file, line, column, expected, text }
    }

    fn advance(&mut self) -> Result<bool, TraceError> {
        let (Input::Blkparse(lines) | Input::Table(lines, _)) = &mut self.input else {
            return Ok(false);
        };
        let more = lines.advance().map_err(|e| match e {
            LineError::Io(source) => {
                TraceError::Read { file: self.file.clone(), lines: self.counts.lines, source }
            }
            LineError::TooLong => TraceError::LongLine {
                file: self.file.clone(),
                line: lines.number(),
                max: LINE_BYTES_MAX,
            },
        })?;
        self.counts.unended = if more { !lines.complete() } else { self.counts.unended };
        self.counts.lines += more as u64;
        Ok(more)
    }
}

fn action_of(letter: u8) -> Action {
    match letter {
        b'Q' => Action::Queued,
        b'D' => Action::Issued,
        _ => Action::Completed,
    }
}

/// Bytes at the beginning that are looked at.
const HEAD_BYTES: usize = 512;

fn binary_format(head: &[u8]) -> Option<Format> {
    if head.starts_with(parquet::MAGIC) {
        return Some(Format::Parquet);
    }
    blktrace::looks_like(head).map(|_| Format::Blktrace)
}

/// Why a file can't be read as lines.
fn unreadable(head: &[u8], want: Option<Format>) -> Option<&'static str> {
    if blktrace::looks_like(head) == Some(false) {
        return Some(
            "It is a binary blktrace file of another version than 7: convert it with `blkparse -i \
             FILE > FILE.txt`.",
        );
    }
    match want {
        Some(Format::Parquet) => return Some("It is no Parquet file (binary, begins with PAR1)."),
        Some(Format::Blktrace) => return Some("It is no binary file of blktrace."),
        _ => {}
    }
    byte_order_mark(head).or(head.contains(&0).then_some("It is a binary file."))
}

/// What to do about a byte order mark at the beginning of a text, if there is one.
pub fn byte_order_mark(head: &[u8]) -> Option<&'static str> {
    match head {
        [0xef, 0xbb, 0xbf, ..] => {
            Some("It begins with a byte order mark: save it as UTF-8 without one.")
        }
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => {
            Some("It begins with the byte order mark of UTF-16: save it as UTF-8.")
        }
        _ => None,
    }
}

/// Whether it could be of MQSim, but for a fraction in its time.
fn is_five_numbers(line: &[u8]) -> bool {
    let fields: Vec<&[u8]> = Fields::new(line).map(|(_, field)| field).collect();
    let [time, rest @ ..] = &fields[..] else { return false };
    let is_time = time.contains(&b'.') && S.read(time).is_some();
    is_time && rest.len() == 4 && rest.iter().all(|field| decimal(field).is_some())
}

/// What a first line of no known format looks like.
fn resemblance(line: &[u8]) -> &'static str {
    let commas = line.iter().filter(|b| **b == b',').count();
    if line.starts_with(b"fio version") {
        return "It is a fio I/O log of another version than 2 and 3.";
    }
    if line.starts_with(b"[") || line.contains(&b'=') {
        return "It looks like a configuration file.";
    }
    if is_five_numbers(line) {
        return "It has five numbers with a fraction in the first, a time. DiskSim's are `time(ms) devno blkno size \
                flags`: `--format disksim`. MQSim's and SSDSim's times are whole: `--format mqsim --time-unit s` (or \
                ms, us) reads others. MiDAS's, `time(s) type block size stream`, are not read.";
    }
    match commas {
        6 => "It has seven fields like MSR's; `--format msr` shows which one is wrong.",
        5 => "It has six fields like SYSTOR's; `--format systor17` shows which one is wrong.",
        4 => {
            "It has five fields like Alibaba's, Tencent's, SPC's and FEMU's; `--format` with one of \
             them shows which field is wrong."
        }
        _ => "Its first line is of no known shape.",
    }
}
