//! One line of `blkparse`'s default text output.
//!
//! Owns: `%D %2c %8s %5T.%9t %5p %2a %3d`, then what each action prints (blkparse(1), and
//! `blk_fill_rwbs` of the kernel for the letters). Promises: every action of blkparse is known, so
//! a line is either understood, passed over by kind, or an error with its column.
//! Never: merges actions; which one is replayed is the reader's choice.
//!
//! The letters: an `F` before the operation is a flush that goes first, an `F` behind it is FUA.
//! `FWFS` is therefore flush, then write with FUA; `FN` and a `FWS` without sectors are flushes
//! alone. Sectors are 512 bytes.

use super::device::{DEVICES_MAX, Devices};
use super::lines::{Fields, decimal};
use super::number::S;
use super::table::Wrong;
use crate::record::{Expected, TraceOp, TraceRecord};
use std::borrow::Cow;
use std::io::Write;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// A request event of this action: `Q`, `D` or `C`.
    Event(u8, TraceRecord),
    /// An event of a kind that is never replayed (merges, plugs, remaps, ...), by its first letter.
    Other(u8),
    /// A note that was written into the trace.
    Note(String),
    /// Part of the summary that blkparse prints at the end, or of its head.
    Summary,
}

/// Actions other than Q, D, C and m: blkparse(1), section "TRACE ACTIONS".
const PASSED_OVER: &[u8] = b"ABFGIMPRSTUX";

/// Whether the line can be the first of a blkparse output; decides between formats.
pub fn looks_like(line: &[u8]) -> bool {
    let mut fields = Fields::new(line);
    let mut next = || fields.next().map(|(_, f)| f).unwrap_or_default();
    let device = device_of(next());
    let numbers = decimal(next()).is_some() && decimal(next()).is_some();
    device.is_some() && numbers && next().contains(&b'.')
}

/// `8,16`: the device as it is named everywhere else.
fn device_of(field: &[u8]) -> Option<Cow<'_, str>> {
    let comma = field.iter().position(|b| *b == b',')?;
    let (major, minor) = (&field[..comma], &field[comma + 1..]);
    let number = |f: &[u8]| decimal(f).and_then(|n| u32::try_from(n).ok());
    let (a, b) = (number(major)?, number(minor)?);
    let plain = |f: &[u8]| f.len() == 1 || f[0] != b'0';
    Some(match std::str::from_utf8(field) {
        Ok(text) if plain(major) && plain(minor) => Cow::Borrowed(text),
        _ => Cow::Owned(format!("{a},{b}")),
    })
}

/// Seconds with up to nine decimals, in nanoseconds.
fn time_of(field: &[u8]) -> Option<u64> {
    let dot = field.iter().position(|b| *b == b'.')?;
    (field.len() - dot <= 10).then(|| S.read(field))?
}

/// What the letters of the RWBS field say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Letters {
    /// `None`: no data direction (`N`).
    pub(super) op: Option<TraceOp>,
    /// A flush goes first.
    pub(super) preflush: bool,
    /// Durable when acknowledged.
    pub(super) fua: bool,
}

impl Letters {
    /// The request that these letters, a place and a length make; `None` when there is nothing for
    /// a device to do (no data and no flush: a completion of an empty flush prints so too).
    pub(super) fn request(self, offset_bytes: u64, len_bytes: u64) -> Option<TraceRecord> {
        let op = match self.op {
            _ if len_bytes == 0 && self.preflush => TraceOp::Flush,
            Some(TraceOp::Flush) => TraceOp::Flush,
            Some(op) if len_bytes > 0 => op,
            _ => return None,
        };
        let flush = op == TraceOp::Flush;
        Some(TraceRecord {
            op,
            offset_bytes: if flush { 0 } else { offset_bytes },
            len_bytes: if flush { 0 } else { len_bytes },
            fua: self.fua && op == TraceOp::Write,
            preflush: self.preflush && !flush,
            ..TraceRecord::EMPTY
        })
    }

    pub(super) fn of(r: &TraceRecord) -> Letters {
        let flush = r.op == TraceOp::Flush;
        Letters {
            op: (!flush).then_some(r.op),
            preflush: r.preflush || flush,
            fua: r.fua && r.op == TraceOp::Write,
        }
    }

    /// As blkparse prints them.
    fn text(self) -> &'static str {
        match (self.op, self.preflush, self.fua) {
            (Some(TraceOp::Read), false, _) => "R",
            (Some(TraceOp::Read), true, _) => "FR",
            (Some(TraceOp::Write), false, false) => "W",
            (Some(TraceOp::Write), false, true) => "WF",
            (Some(TraceOp::Write), true, false) => "FW",
            (Some(TraceOp::Write), true, true) => "FWF",
            (Some(TraceOp::Discard), false, _) => "D",
            (Some(TraceOp::Discard), true, _) => "FD",
            (Some(TraceOp::Flush) | None, _, _) => "FN",
        }
    }
}

fn letters_of(field: &[u8]) -> Option<Letters> {
    let is_op = |b: u8| b"RWDNF".contains(&b);
    let (preflush, rest) = match field {
        [b'F', next, ..] if is_op(*next) => (true, &field[1..]),
        _ => (false, field),
    };
    let (first, mut modifiers) = rest.split_first()?;
    let op = match first {
        b'R' => Some(TraceOp::Read),
        // Write zeroes: afterwards the sectors read as zeros, which is what a discard promises
        // here.
        b'W' if modifiers.first() == Some(&b'Z') => {
            modifiers = &modifiers[1..];
            Some(TraceOp::Discard)
        }
        b'W' => Some(TraceOp::Write),
        b'D' | b'E' => Some(TraceOp::Discard),
        b'F' => Some(TraceOp::Flush),
        b'N' => None,
        _ => return None,
    };
    // F FUA, A read ahead, S synchronous, M metadata, E secure erase, B barrier, U untorn, P
    // polled.
    let known = modifiers.iter().all(|b| b"FASMEBUP".contains(b));
    known.then_some(Letters { op, preflush, fua: modifiers.contains(&b'F') })
}

/// Parses a line; its device gets its number from `devices`.
pub fn parse(line: &[u8], devices: &mut Devices) -> Result<Line, Wrong> {
    let mut fields = Fields::new(line);
    let Some((column, first)) = fields.next() else {
        return Ok(Line::Summary);
    };
    let Some(device) = device_of(first) else {
        return match is_summary(line) {
            true => Ok(Line::Summary),
            false => Err((column, Expected::Text("a device like `8,16`"))),
        };
    };
    number(&mut fields, "the CPU")?;
    number(&mut fields, "the sequence number")?;
    let (column, time) = field(&mut fields)?;
    let ts_ns = time_of(time)
        .ok_or((column, Expected::Number("seconds with nanoseconds, `1.427376394`")))?;
    number(&mut fields, "the process id")?;
    let (column, action) = field(&mut fields)?;
    match action {
        b"Q" | b"D" | b"C" => {}
        b"m" => return Ok(Line::Note(note_text(&mut fields))),
        b"UT" => return Ok(Line::Other(b'U')),
        [one] if PASSED_OVER.contains(one) => return Ok(Line::Other(*one)),
        _ => {
            let what = "an action of blkparse (Q, D, C, G, I, M, F, P, U, A, X, m, ...)";
            return Err((column, Expected::Text(what)));
        }
    }
    let (column, rwbs) = field(&mut fields)?;
    let letters = letters_of(rwbs)
        .ok_or((column, Expected::Text("operation letters like R, WS, FWFS, DS or FN")))?;
    let Some((offset_bytes, len_bytes)) = extent(action[0], letters, &mut fields)? else {
        return Ok(Line::Other(b'p'));
    };
    let Some(record) = letters.request(offset_bytes, len_bytes) else {
        return Ok(Line::Other(b'n'));
    };
    let device = devices.id(&device).ok_or((1, Expected::Number(TOO_MANY)))?;
    Ok(Line::Event(action[0], TraceRecord { ts_ns, device, ..record }))
}

const TOO_MANY: &str = "at most 65536 devices; a column was misread";
const _: () = assert!(DEVICES_MAX == 65536);

/// Appends an event as a line, in blkparse's default format: `D` issued or `C` completed.
pub fn write(event: u8, sequence: u64, r: &TraceRecord, device: &str, out: &mut Vec<u8>) {
    let (major, minor) = device.split_once(',').unwrap_or((device, "0"));
    let letters = Letters::of(r).text();
    let (event, seconds, ns) = (event as char, r.ts_ns / 1_000_000_000, r.ts_ns % 1_000_000_000);
    // A vector takes everything.
    let _ = write!(
        out,
        "{major:>3},{minor:<3} {:>2} {sequence:>8} {seconds:>5}.{ns:09} {:>5} {event:>2} \
         {letters:>3} ",
        0, 0
    );
    let (sector, count) = (r.offset_bytes / 512, r.len_bytes / 512);
    let _ = match (r.op, event) {
        (TraceOp::Flush, 'C') => writeln!(out, "0 [0]"),
        (TraceOp::Flush, _) => writeln!(out, "[flashlane]"),
        (_, 'C') => writeln!(out, "{sector} + {count} [0]"),
        _ => writeln!(out, "{sector} + {count} [flashlane]"),
    };
}

/// `sector + count`, `sector [error]` of an empty completion, or only `[process]`. `None`: a
/// passed-through command, which prints its bytes in brackets.
fn extent(
    action: u8,
    letters: Letters,
    fields: &mut Fields<'_>,
) -> Result<Option<(u64, u64)>, Wrong> {
    let Some((column, first)) = fields.next() else {
        return Ok(Some((0, 0)));
    };
    if first.starts_with(b"[") {
        return Ok(Some((0, 0)));
    }
    if first.starts_with(b"(") {
        return Ok(None);
    }
    let sector = decimal(first).ok_or((column, Expected::Number("the first sector (of 512 B)")))?;
    match fields.next() {
        Some((_, b"+")) => {}
        Some((_, f)) if f.starts_with(b"(") => return Ok(None),
        // An empty completion: `C FN 0 [0]`.
        Some((_, f)) if f.starts_with(b"[") => return Ok(Some((0, 0))),
        None if action == b'C' => return Ok(Some((0, 0))),
        Some((column, _)) => return Err((column, Expected::Text("`+` and a number of sectors"))),
        None => return Err((fields.column(), Expected::Text("`+` and a number of sectors"))),
    }
    let (column, count) = field(fields)?;
    let range = Expected::Number("sectors of 512 B, 1 GiB in a read or write, 64 TiB in a discard");
    let extent = decimal(count).and_then(|count| {
        let (offset, len) = (sector.checked_mul(512)?, count.checked_mul(512)?);
        offset.checked_add(len)?;
        let max = letters.op.unwrap_or(TraceOp::Flush).len_max();
        (len <= max).then_some((offset, len))
    });
    extent.map(Some).ok_or((column, range))
}

fn field<'a>(fields: &mut Fields<'a>) -> Result<(usize, &'a [u8]), Wrong> {
    let what = "device, CPU, sequence, time, process, action, operation, then sector + count";
    fields.next().ok_or((fields.column(), Expected::Fields(what)))
}

fn number(fields: &mut Fields<'_>, what: &'static str) -> Result<u64, Wrong> {
    let (column, text) = field(fields)?;
    decimal(text).ok_or((column, Expected::Number(what)))
}

fn note_text(fields: &mut Fields<'_>) -> String {
    let rest = fields.rest();
    let text = rest.strip_prefix(b"N ").unwrap_or(rest);
    String::from_utf8_lossy(text).trim().to_string()
}

/// Lines that blkparse prints before and behind the events. The numbers in them are sums over what
/// was already read.
fn is_summary(line: &[u8]) -> bool {
    const STARTS: [&[u8]; 19] = [
        b"CPU",
        b"Total (",
        b"Reads Queued:",
        b"Read Dispatches:",
        b"Reads Requeued:",
        b"Reads Completed:",
        b"Read Merges:",
        b"Read depth:",
        b"PC Reads",
        b"PC Read",
        b"PC Disp",
        b"PC Merges",
        b"PC Writes",
        b"IO unplugs:",
        b"Allocation wait:",
        b"Dispatch wait:",
        b"Completion wait:",
        b"Throughput (R/W):",
        b"Input file ",
    ];
    let line = line.trim_ascii();
    STARTS.iter().any(|start| line.starts_with(start))
        || line.starts_with(b"Events (")
        || line.starts_with(b"Skips:")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event_of(line: &str) -> (u8, TraceRecord) {
        let mut devices = Devices::default();
        match parse(line.as_bytes(), &mut devices) {
            Ok(Line::Event(action, record)) => (action, record),
            other => panic!("{line}: {other:?}"),
        }
    }

    /// A line of `blkparse`, as its manual page shows one.
    #[test]
    fn the_example_of_the_manual_is_understood() {
        let line = "  8,16   1        1     1.427376394  5529  Q  WS 274432 + 8 [fio]";
        let (action, r) = event_of(line);
        assert_eq!(action, b'Q');
        let mut devices = Devices::default();
        parse(b"008,16 0 1 0.5 9 Q R 0 + 8 [a]", &mut devices).unwrap();
        assert_eq!(devices.names(), ["8,16"]);
        assert_eq!((r.ts_ns, r.op), (1_427_376_394, TraceOp::Write));
        assert_eq!((r.offset_bytes, r.len_bytes), (274432 * 512, 4096));
        assert!(!r.fua && !r.preflush);
    }

    #[test]
    fn flushes_fua_and_discards_are_told_apart() {
        let of = |rest: &str| event_of(&format!("7,0 0 1 0.5 9 Q {rest}")).1;
        let flags = |r: TraceRecord| (r.op, r.preflush, r.fua, r.len_bytes);
        assert_eq!(flags(of("FWFSM 8 + 8 [jbd2]")), (TraceOp::Write, true, true, 4096));
        assert_eq!(flags(of("WFSM 8 + 8 [jbd2]")), (TraceOp::Write, false, true, 4096));
        assert_eq!(flags(of("FWS [sqlite3]")), (TraceOp::Flush, false, false, 0));
        assert_eq!(flags(of("FN [kworker]")), (TraceOp::Flush, false, false, 0));
        assert_eq!(flags(of("FF 0 + 0 [x]")), (TraceOp::Flush, false, false, 0));
        assert_eq!(
            flags(of("DS 69944 + 192200 [fstrim]")),
            (TraceOp::Discard, false, false, 192200 * 512)
        );
        assert_eq!(flags(of("RAM 0 + 32 [x]")), (TraceOp::Read, false, false, 16384));
    }

    #[test]
    fn what_is_not_a_request_is_passed_over_by_kind() {
        let parse = |line: &[u8]| parse(line, &mut Devices::default());
        let of = |rest: &str| parse(format!("8,0 3 1 0.0 697 {rest}").as_bytes()).unwrap();
        assert_eq!(of("P   N [kworker/3:1]"), Line::Other(b'P'));
        assert_eq!(of("U   N [kworker/3:1] 1"), Line::Other(b'U'));
        assert_eq!(of("A   W 123 + 8 <- (8,1) 23"), Line::Other(b'A'));
        assert_eq!(of("Q   R 36 (12 00 00 00 24 00) [udevd]"), Line::Other(b'p'));
        assert_eq!(of("C  WS 0 [0]"), Line::Other(b'n'));
        assert_eq!(of("m   N phase mkfs"), Line::Note("phase mkfs".into()));
        for summary in ["CPU0 (sda):", " Reads Queued:  1,  4KiB\t Writes Queued: 0", "Skips: 0 x"]
        {
            assert_eq!(parse(summary.as_bytes()), Ok(Line::Summary), "{summary}");
        }
    }

    #[test]
    fn the_first_wrong_field_is_named_with_its_column() {
        let wrong = |line: &str| parse(line.as_bytes(), &mut Devices::default()).unwrap_err().0;
        assert_eq!(wrong("sda 1 1 0.0 1 Q R 0 + 8"), 1);
        assert_eq!(wrong("8,0 x 1 0.0 1 Q R 0 + 8"), 5);
        assert_eq!(wrong("8,0 1 1 0 1 Q R 0 + 8"), 9);
        assert_eq!(wrong("8,0 1 1 0.0 1 Y R 0 + 8"), 15);
        assert_eq!(wrong("8,0 1 1 0.0 1 Q K 0 + 8"), 17);
        assert_eq!(wrong("8,0 1 1 0.0 1 Q R x + 8"), 19);
        assert_eq!(wrong("8,0 1 1 0.0 1 Q R 0 - 8"), 21);
        assert_eq!(wrong("8,0 1 1 0.0 1 Q R 0 + 99999999999999999"), 23);
        assert_eq!(wrong("8,0 1 1"), 8);
    }
}
