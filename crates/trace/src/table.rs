//! Formats that are tables: a line per request, a field per column.
//!
//! Owns: one description of a format's columns ([`Table`]), from which lines are parsed and
//! written and from which it is known what the format can carry. The descriptions themselves are in
//! [`super::tables`]. Promises: the first field that is wrong is named with its column; a line that
//! was written is parsed to the same record. Never: guesses a unit.

use super::carries::{self, Carries, NAME_BYTES_MAX, Naming};
use super::device::Devices;
use super::lines::decimal;
use super::number::Clock;
use crate::format::Format;
use crate::record::Action;
use crate::record::{Expected, TraceOp, TraceRecord};
use flashlane_base::mutant;

/// Position and expectation of the first field that is wrong.
pub type Wrong = (usize, Expected);

/// What stands between fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Separator {
    /// One comma; a field may be empty.
    Comma,
    Blanks,
}

/// What a word in the column of operations means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Means {
    /// A request.
    Op(TraceOp),
    /// A line that is no request, counted under this letter.
    PassedOver(char),
    /// The same, and the line ends here.
    Ends(char),
    /// The trace's clock moves by what stands in the column of offsets, in microseconds.
    Wait,
}

/// What a column holds.
#[derive(Clone, Copy, Debug)]
pub enum Cell {
    /// When the request was made.
    Time(Clock),
    /// How long it took; may be empty.
    Latency(Clock),
    /// Flags in hexadecimal: a read where the last bit is set, else a write.
    ReadBit,
    /// What it asks for; the first word of a meaning is the one that is written. Case is ignored.
    Op(&'static [(&'static str, Means)]),
    /// First byte, in units of so many bytes.
    Offset(u64),
    /// Length, in units of so many bytes.
    Length(u64),
    DeviceNumber,
    DeviceWord,
    /// The host of a device; the disk's number follows in [`Cell::Disk`].
    Host,
    /// See [`Cell::Host`].
    Disk,
    /// Which event of the request: `D` issued, `C` completed.
    Event,
    /// Of no interest; this is written.
    Any(&'static str),
}

#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// What the format calls it; other spellings behind the first. A first line of these names is a
    /// header.
    pub names: &'static [&'static str],
    /// What is expected there, for messages.
    pub expects: &'static str,
    pub cell: Cell,
}

/// A format that is a table.
#[derive(Debug)]
pub struct Table {
    pub format: Format,
    /// Its columns in words, for messages about their number.
    pub shape: &'static str,
    /// Between fields.
    pub separator: Separator,
    /// The first line has to be this.
    pub magic: Option<&'static str>,
    /// A line of the columns' names is written first. One that is there is always understood.
    pub header: bool,
    pub columns: &'static [Column],
    /// More fields may follow; these are written.
    pub more: Option<&'static str>,
    /// Times count from the trace's beginning.
    pub from_zero: bool,
    /// Beyond its columns, what makes a record one of this format when it is recognized.
    pub told_by: fn(&TraceRecord) -> bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// A request.
    Event(Action, TraceRecord),
    /// None, counted under this letter.
    Other(char),
}

/// What parsing carries from line to line.
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Names seen so far.
    pub devices: Devices,
    /// Time so far, for formats with waits.
    pub clock_ns: u64,
    /// Replaces the unit of the column of times.
    pub time_unit: Option<Clock>,
    /// Waits count from the log's beginning, not from the wait before.
    pub wait_from_start: bool,
    /// The clock has 32 bits, and goes on counting where it begins anew.
    pub unwrap: Option<Unwrap>,
    /// What is implausible is taken as it is.
    pub take_as_is: bool,
    /// Where names of several fields are put together.
    pub name: String,
}

impl Context {
    /// A time has a fraction, and the format's times are whole.
    fn fraction(&self, clock: Clock) -> Result<(), Expected> {
        if self.take_as_is || mutant!("trace.fraction-of-whole") {
            return Ok(());
        }
        Err(Expected::Fraction(clock.name))
    }
}

/// A clock of 32 bits that begins anew.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwrap {
    high_ns: u64,
    before_ns: u64,
}

impl Unwrap {
    /// The time that a reading of the clock stands for. One that is lower by more than half of what
    /// the clock can count is of the next round.
    fn next(&mut self, ns: u64, clock: Clock) -> u64 {
        let round = (1u128 << 32) * u128::from(clock.ns) / u128::from(clock.per);
        let round = u64::try_from(round).unwrap_or(u64::MAX);
        let half = round / 2;
        if ns.saturating_add(half) < self.before_ns {
            self.high_ns = self.high_ns.saturating_add(round);
        } else if ns > self.before_ns.saturating_add(half) && self.high_ns > 0 {
            // It was late in the round before, and came late to the file.
            return (self.high_ns - round).saturating_add(ns);
        }
        self.before_ns = ns;
        self.high_ns.saturating_add(ns)
    }
}

fn read_bit(field: &[u8]) -> Option<bool> {
    let digits = field.strip_prefix(b"0x").unwrap_or(field);
    let text = std::str::from_utf8(digits).ok().filter(|text| !text.starts_with('+'))?;
    u32::from_str_radix(text, 16).ok().map(|flags| flags & 1 == 1)
}

/// Cuts a line at its separators.
struct Cut<'a> {
    line: &'a [u8],
    at: usize,
    separator: Separator,
    /// A comma stood behind the last field, so another one follows, maybe empty.
    open: bool,
}

impl<'a> Cut<'a> {
    fn new(line: &'a [u8], separator: Separator) -> Cut<'a> {
        Cut { line, at: 0, separator, open: true }
    }

    /// Column (from 1) behind what was taken so far.
    fn column(&self) -> usize {
        self.at + 1
    }

    #[inline]
    fn next(&mut self) -> Option<(usize, &'a [u8])> {
        let blank = |b: &u8| matches!(*b, b' ' | b'\t');
        let rest = &self.line[self.at..];
        let skip = rest.iter().position(|b| !blank(b)).unwrap_or(rest.len());
        let (start, rest) = (self.at + skip, &rest[skip..]);
        match self.separator {
            Separator::Blanks => {
                let len = rest.iter().position(blank).unwrap_or(rest.len());
                self.at = start + len;
                (len > 0).then_some((start + 1, &rest[..len]))
            }
            Separator::Comma => {
                if !self.open {
                    return None;
                }
                let len = rest.iter().position(|b| *b == b',');
                self.open = len.is_some();
                let field = &rest[..len.unwrap_or(rest.len())];
                self.at = start + field.len() + self.open as usize;
                Some((start + 1, field.trim_ascii_end()))
            }
        }
    }
}

impl Table {
    /// Whether the line is the format's first one or names its columns.
    pub fn is_header(&self, line: &[u8]) -> bool {
        if let Some(magic) = self.magic {
            return line.trim_ascii() == magic.as_bytes();
        }
        let mut cut = Cut::new(line, self.separator);
        let same = |column: &Column, field: &[u8]| {
            column.names.iter().any(|n| field.eq_ignore_ascii_case(n.as_bytes()))
        };
        self.columns.iter().all(|c| cut.next().is_some_and(|(_, field)| same(c, field)))
    }

    /// Whether the line can be the first of this format; decides between formats.
    pub fn looks_like(&self, line: &[u8]) -> bool {
        if self.is_header(line) {
            return true;
        }
        let mut context = Context::default();
        self.magic.is_none()
            && match self.parse(line, &mut context) {
                Ok(Line::Event(_, record)) => (self.told_by)(&record),
                Ok(Line::Other(_)) => true,
                Err(_) => false,
            }
    }

    /// Parses a line that is not empty.
    pub fn parse(&self, line: &[u8], context: &mut Context) -> Result<Line, Wrong> {
        let mut cut = Cut::new(line, self.separator);
        let (mut r, mut action) = (TraceRecord::EMPTY, Action::Only);
        let mut means = Means::PassedOver('?');
        let mut named = false;
        for column in self.columns {
            let Some((at, field)) = cut.next() else {
                return Err((cut.column(), Expected::Fields(self.shape)));
            };
            let wrong = (at, Expected::Text(column.expects));
            match column.cell {
                Cell::Time(clock) => {
                    if context.time_unit.is_none() && clock.is_whole() && field.contains(&b'.') {
                        context.fraction(clock).map_err(|expected| (at, expected))?;
                    }
                    let clock = context.time_unit.unwrap_or(clock);
                    r.ts_ns = clock.read(field).ok_or(wrong)?;
                    if let Some(unwrap) = &mut context.unwrap {
                        r.ts_ns = unwrap.next(r.ts_ns, clock);
                    }
                }
                Cell::ReadBit => {
                    let op =
                        if read_bit(field).ok_or(wrong)? { TraceOp::Read } else { TraceOp::Write };
                    (r.op, means) = (op, Means::Op(op));
                }
                Cell::Latency(_) if field.is_empty() => {}
                Cell::Latency(clock) => r.latency_ns = Some(clock.read(field).ok_or(wrong)?),
                Cell::Op(words) => {
                    means = meaning(words, field).ok_or(wrong)?;
                    match means {
                        Means::Op(op) => r.op = op,
                        Means::Ends(letter) => return self.end(cut, Line::Other(letter)),
                        Means::PassedOver(_) | Means::Wait => {}
                    }
                }
                Cell::Offset(unit) => {
                    r.offset_bytes =
                        decimal(field).and_then(|n| n.checked_mul(unit)).ok_or(wrong)?;
                }
                Cell::Length(unit) => {
                    let fits = |len: &u64| r.offset_bytes.checked_add(*len).is_some();
                    let len = decimal(field).and_then(|n| n.checked_mul(unit)).filter(fits);
                    let short = |len: &u64| match means {
                        Means::Op(op) => *len <= op.len_max(),
                        _ => true,
                    };
                    r.len_bytes = len.filter(short).ok_or(wrong)?;
                }
                Cell::DeviceNumber | Cell::DeviceWord | Cell::Host => {
                    context.name.clear();
                    push_name(&mut context.name, field, column.cell).ok_or(wrong)?;
                    named = true;
                }
                Cell::Disk => {
                    context.name.push('_');
                    push_name(&mut context.name, field, Cell::DeviceNumber).ok_or(wrong)?;
                }
                Cell::Event => {
                    action = match field {
                        b"D" => Action::Issued,
                        b"C" => Action::Completed,
                        _ => return Err(wrong),
                    }
                }
                Cell::Any(_) => {}
            }
        }
        match means {
            Means::PassedOver(letter) | Means::Ends(letter) => {
                return self.end(cut, Line::Other(letter));
            }
            Means::Wait => {
                let moved = (context.clock_ns, r.offset_bytes.checked_mul(1000));
                context.clock_ns = match moved {
                    (_, Some(to)) if context.wait_from_start => to,
                    (now, Some(by)) => now.saturating_add(by),
                    (_, None) => return Err((1, Expected::Text("a wait of less than 500 years"))),
                };
                return self.end(cut, Line::Other('w'));
            }
            Means::Op(TraceOp::Flush) => (r.offset_bytes, r.len_bytes) = (0, 0),
            // No data: nothing for a device to do. SPC allows it in so many words.
            Means::Op(_) if r.len_bytes == 0 => return self.end(cut, Line::Other('n')),
            Means::Op(op) if r.len_bytes > op.len_max() => {
                return Err((1, Expected::Text(TOO_LONG)));
            }
            Means::Op(_) => {}
        }
        if !self.has_time() {
            r.ts_ns = context.clock_ns;
        }
        let name = if named { context.name.as_str() } else { "0" };
        let many = (1, Expected::Text("at most 65536 devices; a column was misread"));
        r.device = context.devices.id(name).ok_or(many)?;
        self.end(cut, Line::Event(action, r))
    }

    fn end(&self, mut cut: Cut<'_>, line: Line) -> Result<Line, Wrong> {
        match cut.next() {
            Some((at, _)) if self.more.is_none() => {
                Err((at, Expected::Fields("nothing behind the last field of this format")))
            }
            _ => Ok(line),
        }
    }

    fn has_time(&self) -> bool {
        self.clock().is_some()
    }

    /// The unit of its times.
    pub fn clock(&self) -> Option<Clock> {
        self.columns.iter().find_map(|c| match c.cell {
            Cell::Time(clock) => Some(clock),
            _ => None,
        })
    }

    /// No word of it says what it is: any table of as many numbers looks the same.
    pub fn is_of_numbers(&self) -> bool {
        let is_number = |(word, _): &(&str, Means)| word.bytes().all(|b| b.is_ascii_digit());
        self.magic.is_none()
            && self.columns.iter().all(|c| match c.cell {
                Cell::Op(words) => words.iter().all(is_number),
                Cell::DeviceWord | Cell::Host | Cell::Event => false,
                _ => true,
            })
    }

    /// What it can say about a request.
    pub fn carries(&self) -> Carries {
        let (mut clock, mut latency, mut ops, mut units) = (None, None, [false; 4], (1, 1));
        let mut devices = Naming::None;
        for column in self.columns {
            match column.cell {
                Cell::Time(c) => clock = Some(c),
                Cell::Latency(c) => latency = Some(c),
                Cell::Op(words) => {
                    for (_, means) in words {
                        if let Means::Op(op) = means {
                            ops[*op as usize] = true;
                        }
                    }
                }
                Cell::ReadBit => {
                    (ops[TraceOp::Read as usize], ops[TraceOp::Write as usize]) = (true, true);
                }
                Cell::Offset(unit) => units.0 = unit,
                Cell::Length(unit) => units.1 = unit,
                Cell::DeviceNumber => devices = Naming::Number,
                Cell::DeviceWord => devices = Naming::Word,
                Cell::Host => devices = Naming::HostDisk,
                // The completion is a line of its own, at its own time.
                Cell::Event => latency = clock.or(Some(super::number::S)),
                Cell::Disk | Cell::Any(_) => {}
            }
        }
        carries::of_table(clock, latency, ops, units, devices, self.from_zero)
    }

    /// Whether requests and their completions are lines of their own.
    pub fn has_events(&self) -> bool {
        self.columns.iter().any(|c| matches!(c.cell, Cell::Event))
    }

    /// Appends a record as a line. `name` is its device's, of a kind that the format holds.
    pub fn write(&self, event: u8, r: &TraceRecord, name: &str, out: &mut Vec<u8>) {
        for (index, column) in self.columns.iter().enumerate() {
            if index > 0 {
                out.push(self.between());
            }
            let number =
                |n: u64, out: &mut Vec<u8>| out.extend_from_slice(n.to_string().as_bytes());
            match column.cell {
                Cell::Time(clock) => clock.write(r.ts_ns, out),
                Cell::Latency(clock) => {
                    if let Some(ns) = r.latency_ns {
                        clock.write(ns, out);
                    }
                }
                Cell::Op(words) => out.extend_from_slice(word_for(words, r.op).as_bytes()),
                Cell::ReadBit => number(u64::from(r.op == TraceOp::Read), out),
                Cell::Offset(unit) => number(r.offset_bytes / unit, out),
                Cell::Length(unit) => number(r.len_bytes / unit, out),
                Cell::DeviceNumber | Cell::DeviceWord => out.extend_from_slice(name.as_bytes()),
                Cell::Host => out.extend_from_slice(host_and_disk(name).0.as_bytes()),
                Cell::Disk => out.extend_from_slice(host_and_disk(name).1.as_bytes()),
                Cell::Event => out.push(event),
                Cell::Any(text) => out.extend_from_slice(text.as_bytes()),
            }
        }
        if let Some(more) = self.more.filter(|m| !m.is_empty()) {
            out.push(self.between());
            out.extend_from_slice(more.as_bytes());
        }
        out.push(b'\n');
    }

    fn between(&self) -> u8 {
        if self.separator == Separator::Comma { b',' } else { b' ' }
    }
}

/// A line that names the columns.
pub fn header_of(table: &Table) -> String {
    table.columns.iter().map(|c| c.names[0]).collect::<Vec<_>>().join(",") + "\n"
}

fn meaning(words: &[(&str, Means)], field: &[u8]) -> Option<Means> {
    let found = words.iter().find(|(word, _)| field.eq_ignore_ascii_case(word.as_bytes()));
    found.map(|(_, means)| *means)
}

fn word_for(words: &[(&'static str, Means)], op: TraceOp) -> &'static str {
    let found = words.iter().find(|(_, means)| *means == Means::Op(op));
    found.map_or("", |(word, _)| word)
}

/// For formats whose operation stands behind the length.
const TOO_LONG: &str = "a read or write of 1 GiB at most, a discard of 64 TiB";

fn push_name(name: &mut String, field: &[u8], cell: Cell) -> Option<()> {
    if matches!(cell, Cell::DeviceNumber) {
        // `01` and `1` are the same number.
        let number = decimal(field).and_then(|n| u32::try_from(n).ok())?;
        use std::fmt::Write;
        return write!(name, "{number}").ok();
    }
    let plain = !field.is_empty()
        && field.len() <= NAME_BYTES_MAX
        && field.iter().all(u8::is_ascii_graphic);
    name.push_str(std::str::from_utf8(field).ok().filter(|_| plain)?);
    Some(())
}

fn host_and_disk(name: &str) -> (&str, &str) {
    name.rsplit_once('_').unwrap_or((name, "0"))
}
