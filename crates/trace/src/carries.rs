//! What a format can say about a request, and what is lost when it can't.
//!
//! Owns: the description of a format's limits and the step that brings a record within them.
//! Promises: a record that has been brought within a format's limits is written and read back
//! exactly; whatever was changed is counted by kind. Never: drops a request without counting it.

use super::number::Clock;
use crate::record::{REQUEST_BYTES_MAX, TraceOp, TraceRecord};
use serde::Serialize;

/// Longest name of a device in a line of text; a path has 4,096 at most, but nobody names a device so.
pub(super) const NAME_BYTES_MAX: usize = 255;

/// How a format names devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Naming {
    /// Not at all: the trace is of one device.
    None,
    /// A decimal number below 2^32.
    Number,
    /// Major and minor number, `8,16`.
    MajorMinor,
    /// A host's name and a disk's number, `usr_0`.
    HostDisk,
    /// A word without blanks.
    Word,
    /// Any text.
    Any,
}

impl Naming {
    /// Whether the format can hold this name as it is.
    pub fn holds(self, name: &str) -> bool {
        let number = |text: &str| {
            text.parse::<u32>().is_ok_and(|n| n.to_string() == text) // no `+1`, no `01`
        };
        match self {
            Naming::None | Naming::Any => true,
            Naming::Number => number(name),
            Naming::MajorMinor => {
                // The kernel's dev_t: 12 bits and 20.
                let parts = name.split_once(',').filter(|(a, b)| number(a) && number(b));
                parts.is_some_and(|(a, b)| a.len() <= 4 && b.len() <= 7 && small(a, b))
            }
            Naming::HostDisk => name.rsplit_once('_').is_some_and(|(host, disk)| {
                let plain = |b: u8| b.is_ascii_graphic() && b != b',';
                let short = (1..=NAME_BYTES_MAX).contains(&host.len());
                short && host.bytes().all(plain) && number(disk)
            }),
            Naming::Word => {
                let short = (1..=NAME_BYTES_MAX).contains(&name.len());
                short && name.bytes().all(|b| b.is_ascii_graphic())
            }
        }
    }

    /// What device `index` is called where its own name can't be held.
    pub fn stands_for(self, index: usize) -> String {
        match self {
            Naming::None | Naming::Any | Naming::Number => index.to_string(),
            // 259 is the kernel's major for partitions and NVMe namespaces.
            Naming::MajorMinor => format!("259,{index}"),
            Naming::HostDisk => format!("disk_{index}"),
            Naming::Word => format!("disk{index}"),
        }
    }
}

fn small(major: &str, minor: &str) -> bool {
    let below = |text: &str, limit: u32| text.parse::<u32>().is_ok_and(|n| n < limit);
    below(major, 1 << 12) && below(minor, 1 << 20)
}

/// What a format can say about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Carries {
    /// Finest time, in ns.
    pub resolution_ns: u64,
    /// Times count from the trace's beginning; otherwise by a clock of the world.
    pub from_zero: bool,
    /// A record can't be earlier than the one before it.
    pub in_order: bool,
    /// Operations, in the order of [`TraceOp`].
    pub ops: [bool; 4],
    pub offset_unit: u64,
    pub len_unit: u64,
    /// Longest request.
    pub len_max: u64,
    pub devices: Naming,
    /// Finest latency in ns, where there is one.
    pub latency_ns: Option<u64>,
    /// FUA and a flush before a request.
    pub flags: bool,
}

impl Carries {
    pub const PARQUET: Carries = Carries {
        resolution_ns: 1,
        from_zero: false,
        in_order: false,
        ops: [true; 4],
        offset_unit: 1,
        len_unit: 1,
        // The column has 32 bits; whole sectors of 4 KiB, so that pieces stay aligned.
        len_max: (1 << 32) - 4096,
        devices: Naming::Any,
        latency_ns: Some(1),
        flags: true,
    };

    /// Whether something of a request may not come out.
    pub fn can_lose(&self) -> bool {
        let times = self.resolution_ns > 1 || self.in_order || self.latency_ns != Some(1);
        let units = self.offset_unit > 1 || self.len_unit > 1;
        times || units || self.ops.contains(&false) || !self.flags
    }

    /// blkparse's text and blktrace's records: 32 bits of bytes in a record.
    pub const BLKTRACE: Carries = Carries {
        from_zero: true,
        offset_unit: 512,
        len_unit: 512,
        devices: Naming::MajorMinor,
        ..Carries::PARQUET
    };
}

/// What was changed on the way into a format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Losses {
    /// Requests that were left out, by operation: read, write, discard, flush.
    pub left_out: [u64; 4],
    /// Requests that were widened (discards shrunk) to the format's unit.
    pub resized: u64,
    /// Requests that lost "durable when acknowledged" or a flush before them.
    pub flags: u64,
    pub rounded: u64,
    /// Latencies that were left out or rounded down.
    pub latencies: u64,
    /// Requests that were given the time of the one before them, since times can't go back.
    pub reordered: u64,
    /// Further requests that long discards were split into.
    pub split: u64,
}

impl Losses {
    /// Whether something can't be had back: requests, their flags, their times, how long they took. A
    /// discard in several pieces is still there.
    pub fn any(&self) -> bool {
        let times = self.rounded + self.latencies + self.reordered;
        self.left_out.iter().sum::<u64>() + self.resized + self.flags + times > 0
    }

    /// In words, one per kind of loss.
    pub fn describe(&self, format: crate::format::Format) -> Vec<String> {
        let c = format.carries();
        let mut all = Vec::new();
        for (n, what) in self.left_out.iter().zip(["reads", "writes", "discards", "flushes"]) {
            if *n > 0 {
                all.push(format!("{n} {what} left out: {format} has no {what}"));
            }
        }
        let unit = c.offset_unit;
        for (n, what) in [
            (self.resized, format!("requests resized to whole units of {unit} bytes")),
            (self.flags, "requests without their FUA or their flush before them".to_string()),
            (self.rounded, format!("times rounded down to {} ns", c.resolution_ns)),
            (self.latencies, "latencies left out or rounded down".to_string()),
            (self.reordered, "requests moved to the time of the one before them".to_string()),
            (self.split, "requests more, since long discards were split".to_string()),
        ] {
            if n > 0 {
                all.push(format!("{n} {what}"));
            }
        }
        all
    }
}

/// Brings records within a format's limits, in the order of the trace.
#[derive(Clone, Debug)]
pub struct Shaper {
    carries: Carries,
    zero_ns: u64,
    previous_ns: u64,
    /// What was changed so far.
    pub losses: Losses,
}

impl Shaper {
    /// For a format, and a trace whose earliest record is at `first_ns`.
    pub fn new(carries: Carries, first_ns: u64) -> Shaper {
        let zero_ns = if carries.from_zero { first_ns } else { 0 };
        Shaper { carries, zero_ns, previous_ns: 0, losses: Losses::default() }
    }

    /// Appends what becomes of a record: nothing, itself changed or not, or several.
    pub fn shape(&mut self, record: &TraceRecord, out: &mut Vec<TraceRecord>) {
        let (c, losses) = (self.carries, &mut self.losses);
        let mut r = *record;
        if !c.ops[r.op as usize] {
            losses.left_out[r.op as usize] += 1;
            return;
        }
        r.ts_ns = r.ts_ns.saturating_sub(self.zero_ns);
        losses.rounded += !r.ts_ns.is_multiple_of(c.resolution_ns) as u64;
        r.ts_ns -= r.ts_ns % c.resolution_ns;
        if c.in_order && r.ts_ns < self.previous_ns {
            losses.reordered += 1;
            r.ts_ns = self.previous_ns;
        }
        self.previous_ns = r.ts_ns;
        let kept = c.latency_ns.and_then(|unit| r.latency_ns.map(|l| l - l % unit));
        losses.latencies += (kept != r.latency_ns) as u64;
        r.latency_ns = kept;
        if !c.flags && (r.fua || r.preflush) {
            losses.flags += 1;
            (r.fua, r.preflush) = (false, false);
        }
        if r.op == TraceOp::Flush {
            out.push(r);
            return;
        }
        if !resize(&mut r, c.offset_unit, c.len_unit) {
            losses.resized += 1;
            if r.len_bytes == 0 {
                return;
            }
        }
        let (end, mut pieces) = (r.offset_bytes + r.len_bytes, 0);
        while r.offset_bytes < end {
            r.len_bytes = (end - r.offset_bytes).min(c.len_max);
            out.push(r);
            (r.offset_bytes, pieces) = (r.offset_bytes + r.len_bytes, pieces + 1);
        }
        losses.split += pieces - 1;
    }
}

/// Widens a read or write to whole units, shrinks a discard to them (it must not take a neighbour's
/// data along); true when nothing changed.
fn resize(r: &mut TraceRecord, offset_unit: u64, len_unit: u64) -> bool {
    if r.offset_bytes.is_multiple_of(offset_unit) && r.len_bytes.is_multiple_of(len_unit) {
        return true;
    }
    let end = r.offset_bytes + r.len_bytes;
    if r.op == TraceOp::Discard {
        let start = r.offset_bytes.checked_next_multiple_of(offset_unit).unwrap_or(end);
        let len = end.saturating_sub(start);
        (r.offset_bytes, r.len_bytes) = (start, len - len % len_unit);
    } else {
        r.offset_bytes -= r.offset_bytes % offset_unit;
        // Behind the last unit there is none: a request there keeps its whole units.
        let len = (end - r.offset_bytes).checked_next_multiple_of(len_unit);
        let len = len.filter(|len| r.offset_bytes.checked_add(*len).is_some());
        r.len_bytes = len.unwrap_or(end - r.offset_bytes - (end - r.offset_bytes) % len_unit);
        r.len_bytes = r.len_bytes.min(REQUEST_BYTES_MAX);
    }
    false
}

/// Limits of a table with these columns; see [`super::table`].
pub(super) fn of_table(
    clock: Option<Clock>,
    latency: Option<Clock>,
    ops: [bool; 4],
    (offset_unit, len_unit): (u64, u64),
    devices: Naming,
    from_zero: bool,
) -> Carries {
    Carries {
        // Without a column of times they are in lines of their own, in microseconds.
        resolution_ns: clock.map_or(1000, |c| c.resolution_ns()),
        from_zero,
        in_order: clock.is_none(),
        ops,
        offset_unit,
        len_unit,
        len_max: u64::MAX,
        devices,
        latency_ns: latency.map(|c| c.resolution_ns()),
        flags: false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceId;
    use crate::format::Format;

    fn record(op: TraceOp, offset_bytes: u64, len_bytes: u64) -> TraceRecord {
        TraceRecord {
            ts_ns: 1_234_567,
            op,
            device: DeviceId(0),
            offset_bytes,
            len_bytes,
            fua: false,
            preflush: false,
            latency_ns: Some(1_234),
        }
    }

    fn shaped(format: Format, r: &TraceRecord) -> (Vec<(u64, u64)>, Losses) {
        let mut shaper = Shaper::new(format.carries(), 0);
        let mut out = Vec::new();
        shaper.shape(r, &mut out);
        (out.iter().map(|r| (r.offset_bytes, r.len_bytes)).collect(), shaper.losses)
    }

    #[test]
    fn what_a_format_cannot_say_is_counted() {
        let (out, losses) = shaped(Format::Mqsim, &record(TraceOp::Flush, 0, 0));
        assert_eq!((out.len(), losses.left_out), (0, [0, 0, 0, 1]));
        let (out, losses) = shaped(Format::Mqsim, &record(TraceOp::Write, 100, 1000));
        assert_eq!((out, losses.resized), (vec![(0, 1536)], 1));
        let (out, losses) = shaped(Format::Blkparse, &record(TraceOp::Discard, 100, 1000));
        assert_eq!((out, losses.resized), (vec![(512, 512)], 1));
        let (out, losses) = shaped(Format::Blkparse, &record(TraceOp::Discard, 100, 500));
        assert_eq!((out, losses.resized), (vec![], 1));
        let (_, losses) = shaped(Format::Msr, &record(TraceOp::Read, 0, 512));
        assert_eq!((losses.rounded, losses.latencies), (1, 1));
        let mut fua = record(TraceOp::Write, 0, 512);
        fua.fua = true;
        assert_eq!(shaped(Format::Fio3, &fua).1.flags, 1);
        assert!(shaped(Format::Tencent, &record(TraceOp::Write, 0, 512)).1.any());
        assert!(!shaped(Format::Parquet, &fua).1.any());
        assert!(Format::ALL.iter().all(|f| f.carries().can_lose() == (*f != Format::Parquet)));
    }

    #[test]
    fn a_discard_longer_than_32_bits_becomes_several() {
        let (out, losses) = shaped(Format::Parquet, &record(TraceOp::Discard, 4096, 1 << 33));
        assert_eq!((out.len(), losses.split), (3, 2));
        assert_eq!(out[0], (4096, (1 << 32) - 4096));
        assert_eq!(out.iter().map(|(_, len)| len).sum::<u64>(), 1 << 33);
        assert_eq!(out[1].0, out[0].0 + out[0].1);
    }

    #[test]
    fn names_are_held_or_replaced() {
        for (naming, good, bad) in [
            (Naming::Number, "16", "016"),
            (Naming::MajorMinor, "8,16", "8"),
            (Naming::MajorMinor, "259,1048575", "4096,0"),
            (Naming::HostDisk, "web_1_0", "usr"),
            (Naming::Word, "/dev/sda", "a b"),
            (Naming::Word, &"a".repeat(255), &"a".repeat(256)),
            (Naming::HostDisk, &("a".repeat(255) + "_0"), &("a".repeat(256) + "_0")),
        ] {
            assert!(naming.holds(good) && !naming.holds(bad), "{naming:?}");
            assert!(naming.holds(&naming.stands_for(7)), "{naming:?}");
        }
    }
}
