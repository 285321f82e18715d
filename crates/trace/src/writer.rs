//! Writes a trace in any format.
//!
//! Owns: what stands before, between and behind the records of each format: headers, fio's files
//! and waits, completions as events of their own. Promises: bounded memory; the same records are
//! the same bytes. Never: changes a record; [`super::carries::Shaper`] has brought it within the
//! format's limits.

use super::carries::Naming;
use super::pair::WINDOW_MAX;
use super::parquet::RowWriter;
use super::table::{Table, header_of};
use super::{blkparse, blktrace, tables};
use crate::format::Format;
use crate::record::TraceRecord;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{self, BufWriter, Write};

/// Names under which a format writes a trace's devices: their own where it holds all of them,
/// otherwise others for all, so that no two devices become one.
pub fn names_for(naming: Naming, names: &[String]) -> Vec<String> {
    if names.iter().all(|n| naming.holds(n)) {
        return names.to_vec();
    }
    (0..names.len()).map(|index| naming.stands_for(index)).collect()
}

/// A completion that is due: time, then the order in which it was announced.
type Due = Reverse<(u64, u64)>;

/// Events of requests and of their completions, in order of time.
struct Events {
    format: Format,
    table: Option<&'static Table>,
    sequence: u64,
    due: BinaryHeap<Due>,
    /// Requests that complete later, by the number in `due`; every one is used once.
    waiting: std::collections::BTreeMap<u64, TraceRecord>,
}

impl Events {
    fn put(&mut self, event: u8, r: &TraceRecord, name: &str, out: &mut Vec<u8>) {
        self.sequence += 1;
        match (self.format, self.table) {
            (_, Some(table)) => table.write(event, r, name, out),
            (Format::Blktrace, None) => blktrace::write(event, self.sequence, r, name, out),
            _ => blkparse::write(event, self.sequence, r, name, out),
        }
    }

    /// Writes what completes until `now`, and what is too much to remember.
    fn complete(&mut self, now: u64, names: &[String], out: &mut Vec<u8>) {
        while let Some(Reverse((ns, number))) = self.due.peek().copied() {
            if ns > now && self.due.len() < WINDOW_MAX {
                return;
            }
            self.due.pop();
            if let Some(r) = self.waiting.remove(&number) {
                let done = TraceRecord { ts_ns: ns, ..r };
                self.put(b'C', &done, &names[r.device.index()], out);
            }
        }
    }
}

enum Kind<W: Write + Send> {
    /// A line per request.
    Table(BufWriter<W>, &'static Table),
    /// fio's log with waits between the lines.
    Waits(BufWriter<W>, &'static Table, u64),
    /// Requests and completions.
    Events(BufWriter<W>, Events),
    /// The own format.
    Parquet(Box<RowWriter<W>>),
}

/// A trace being written.
pub struct Writer<W: Write + Send> {
    kind: Kind<W>,
    names: Vec<String>,
    line: Vec<u8>,
}

impl<W: Write + Send> Writer<W> {
    /// Begins a trace of devices with these names.
    pub fn new(out: W, format: Format, names: &[String]) -> io::Result<Writer<W>> {
        Writer::with_contents(out, format, names, false)
    }

    /// The same, with room for contents, which only the own format has.
    pub fn with_contents(
        out: W,
        format: Format,
        names: &[String],
        contents: bool,
    ) -> io::Result<Writer<W>> {
        let names = names_for(format.carries().devices, names);
        let table = tables::of(format);
        let events = || Events {
            format,
            table,
            sequence: 0,
            due: BinaryHeap::new(),
            waiting: Default::default(),
        };
        let mut line = Vec::new();
        let kind = match (format, table) {
            (Format::Parquet, _) => Kind::Parquet(Box::new(RowWriter::new(out, &names, contents)?)),
            (_, Some(table)) if !table.has_events() => {
                let mut out = BufWriter::new(out);
                if table.header {
                    line.extend_from_slice(header_of(table).as_bytes());
                }
                if let Some(magic) = table.magic {
                    open_files(table, magic, &names, &mut line);
                }
                out.write_all(&line)?;
                match format {
                    Format::Fio2 => Kind::Waits(out, table, 0),
                    _ => Kind::Table(out, table),
                }
            }
            _ => Kind::Events(BufWriter::new(out), events()),
        };
        Ok(Writer { kind, names, line })
    }

    /// Names under which the devices are written.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Adds a record. Devices are numbered as the names given at the beginning.
    pub fn write(&mut self, r: &TraceRecord) -> io::Result<()> {
        self.write_with(r, None)
    }

    /// The same, with what it wrote, where there is room for it.
    pub fn write_with(&mut self, r: &TraceRecord, content: Option<&[u8]>) -> io::Result<()> {
        let name = &self.names[r.device.index()];
        self.line.clear();
        let out = match &mut self.kind {
            Kind::Parquet(rows) => return rows.write(r, content),
            Kind::Table(out, table) => {
                table.write(b'D', r, name, &mut self.line);
                out
            }
            Kind::Waits(out, table, clock_ns) => {
                let wait_us = (r.ts_ns - *clock_ns) / 1000;
                if wait_us > 0 {
                    *clock_ns += wait_us * 1000;
                    writeln!(self.line, "{name} wait {wait_us} 0")?;
                }
                table.write(b'D', r, name, &mut self.line);
                out
            }
            Kind::Events(out, events) => {
                events.complete(r.ts_ns, &self.names, &mut self.line);
                events.put(b'D', r, name, &mut self.line);
                if let Some(latency) = r.latency_ns {
                    let number = events.sequence;
                    events.due.push(Reverse((r.ts_ns.saturating_add(latency), number)));
                    events.waiting.insert(number, *r);
                }
                out
            }
        };
        out.write_all(&self.line)
    }

    /// Writes what is left and gives the place back.
    pub fn finish(mut self) -> io::Result<W> {
        self.line.clear();
        let out = match self.kind {
            Kind::Parquet(rows) => return rows.finish(),
            Kind::Table(out, _) | Kind::Waits(out, ..) => out,
            Kind::Events(mut out, mut events) => {
                events.complete(u64::MAX, &self.names, &mut self.line);
                out.write_all(&self.line)?;
                out
            }
        };
        out.into_inner().map_err(|e| e.into_error())
    }
}

/// fio opens every file before the first request.
fn open_files(table: &Table, magic: &str, names: &[String], out: &mut Vec<u8>) {
    let time = if table.format == Format::Fio3 { "0 " } else { "" };
    let mut text = format!("{magic}\n");
    for what in ["add", "open"] {
        for name in names {
            text += &format!("{time}{name} {what}\n");
        }
    }
    out.extend_from_slice(text.as_bytes());
}
