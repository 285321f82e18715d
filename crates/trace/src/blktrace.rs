//! blktrace's binary records, a file per CPU.
//!
//! Owns: `struct blk_io_trace` version 7 (include/uapi/linux/blktrace_api.h) in either byte order,
//! the merge of a trace's per-CPU files by time, the notes among the records.
//! Promises: one record of each CPU in memory; the first record that is not understood is named
//! with its number and place. Never: reads version 8, whose layout `blkparse` turns into text.
//!
//! blktrace(8) writes `DEVICE.blktrace.CPU` for each CPU, and no file is a trace by itself: opening
//! any of them opens all of them, as `blkparse -i DEVICE` does.

use super::blkparse::Letters;
use super::device::Devices;
use super::source::NamedInput;
use crate::record::{Expected, REQUEST_BYTES_MAX, TraceError, TraceOp, TraceRecord};
use std::io::{self, BufRead, Read, Write};

/// Bytes of a record without what follows it.
const RECORD_BYTES: usize = 48;
/// Magic and version 7.
const MAGIC: u32 = 0x6561_7407;
/// Upper bits of the magic, without the version.
const MAGIC_KIND: u32 = 0x6561_7400;

// Categories: the upper half of `action`.
const READ: u32 = 1 << 16;
const WRITE: u32 = 1 << 17;
const FLUSH: u32 = 1 << 18;
const QUEUE: u32 = 1 << 20;
const ISSUE: u32 = 1 << 22;
const COMPLETE: u32 = 1 << 23;
const PASSED_THROUGH: u32 = 1 << 25;
const NOTIFY: u32 = 1 << 26;
const DISCARD: u32 = 1 << 29;
const FUA: u32 = 1 << 31;
/// Low half: set where the number of a control group follows the record.
const CGROUP: u32 = 1 << 8;
const CGROUP_BYTES: usize = 8;
/// Low half of a note written into the trace.
const MESSAGE: u32 = 2;

/// Letters of the actions 1 to 19: as blkparse prints them, then a driver's data and zones.
const LETTERS: &[u8; 20] = b"?QMFGSRDCPUTIXBAAdzz";

/// Whether a file begins like one of blktrace; `Some(false)` for a version that is not read.
pub fn looks_like(head: &[u8]) -> Option<bool> {
    let four = head.first_chunk::<4>()?;
    [u32::from_le_bytes(*four), u32::from_be_bytes(*four)]
        .into_iter()
        .find(|magic| magic & !0xff == MAGIC_KIND)
        .map(|magic| magic == MAGIC)
}

/// What a record is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A request: `Q`, `D` or `C`.
    Request(u8, TraceRecord),
    /// Another action, by its letter.
    Other(u8),
    Note(String),
}

struct Cpu {
    file: String,
    input: Box<dyn BufRead>,
    big_endian: bool,
    records: u64,
    at_bytes: u64,
    next: Option<(u64, Event)>,
}

/// Reads a trace's per-CPU files in order of time.
pub struct Merge {
    cpus: Vec<Cpu>,
    records: u64,
}

impl Merge {
    /// Begins; each file is given with its name for messages.
    pub fn new(inputs: Vec<NamedInput>, devices: &mut Devices) -> Result<Merge, TraceError> {
        let mut cpus = Vec::new();
        for (file, input) in inputs {
            let mut cpu =
                Cpu { file, input, big_endian: false, records: 0, at_bytes: 0, next: None };
            cpu.advance(devices)?;
            cpus.push(cpu);
        }
        Ok(Merge { cpus, records: 0 })
    }

    /// Records given out so far.
    pub fn records(&self) -> u64 {
        self.records
    }

    pub fn files(&self) -> usize {
        self.cpus.len()
    }

    /// The next record of all CPUs, with its time; of two at one time that of the lower CPU first.
    pub fn next(&mut self, devices: &mut Devices) -> Result<Option<(u64, Event)>, TraceError> {
        let waiting = |(index, cpu): (usize, &Cpu)| cpu.next.as_ref().map(|(ns, _)| (*ns, index));
        let Some((_, first)) = self.cpus.iter().enumerate().filter_map(waiting).min() else {
            return Ok(None);
        };
        let cpu = &mut self.cpus[first];
        let event = cpu.next.take();
        cpu.advance(devices)?;
        self.records += 1;
        Ok(event)
    }
}

impl Cpu {
    fn wrong(&self, expected: &'static str) -> TraceError {
        TraceError::Record {
            file: self.file.clone(),
            record: self.records + 1,
            at_bytes: self.at_bytes,
            expected: Expected::Text(expected),
        }
    }

    fn failed(&self, source: io::Error) -> TraceError {
        if source.kind() == io::ErrorKind::UnexpectedEof {
            return self.wrong("48 bytes and what belongs to them, but the file ends (truncated?)");
        }
        TraceError::Read { file: self.file.clone(), lines: self.records, source }
    }

    fn advance(&mut self, devices: &mut Devices) -> Result<(), TraceError> {
        let ended = self.input.fill_buf().map(<[u8]>::is_empty);
        if ended.map_err(|e| self.failed(e))? {
            return Ok(());
        }
        let mut bytes = [0; RECORD_BYTES];
        self.input.read_exact(&mut bytes).map_err(|e| self.failed(e))?;
        let magic = bytes[..4].try_into().expect("four bytes");
        self.big_endian = u32::from_be_bytes(magic) == MAGIC;
        if !self.big_endian && u32::from_le_bytes(magic) != MAGIC {
            let other = "a record of blktrace version 7 (use `blkparse` for other versions)";
            return Err(self.wrong(other));
        }
        let raw = Raw::of(&bytes, self.big_endian);
        let behind = self.behind(raw.pdu_len as usize).map_err(|e| self.failed(e))?;
        let event = self.event(&raw, &behind, devices)?;
        self.next = Some((raw.time_ns, event));
        self.records += 1;
        self.at_bytes += (RECORD_BYTES + behind.len()) as u64;
        Ok(())
    }

    /// What belongs to a record: at most 64 KiB, its length has 16 bits.
    fn behind(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.input.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    fn event(&self, raw: &Raw, behind: &[u8], devices: &mut Devices) -> Result<Event, TraceError> {
        let act = raw.action & 0xff;
        if raw.action & NOTIFY != 0 {
            if act != MESSAGE {
                return Ok(Event::Other(b'm'));
            }
            let skip = if raw.action & CGROUP != 0 { CGROUP_BYTES } else { 0 };
            let text = String::from_utf8_lossy(behind.get(skip..).unwrap_or_default());
            return Ok(Event::Note(text.trim_end_matches('\0').trim().to_string()));
        }
        let letter = LETTERS.get(act as usize).copied().unwrap_or(b'?');
        match letter {
            b'?' => return Err(self.wrong("an action that blktrace knows")),
            b'Q' | b'D' | b'C' => {}
            other => return Ok(Event::Other(other)),
        }
        if raw.action & PASSED_THROUGH != 0 {
            return Ok(Event::Other(b'p'));
        }
        let op = match raw.action {
            a if a & DISCARD != 0 => Some(TraceOp::Discard),
            a if a & WRITE != 0 => Some(TraceOp::Write),
            _ if raw.bytes > 0 => Some(TraceOp::Read),
            _ => None,
        };
        let letters = Letters { op, preflush: raw.action & FLUSH != 0, fua: raw.action & FUA != 0 };
        let len = raw.bytes as u64;
        let data = matches!(op, Some(TraceOp::Read | TraceOp::Write));
        let offset = raw.sector.checked_mul(512).filter(|o| o.checked_add(len).is_some());
        let offset = match offset {
            Some(offset) if !data || len <= REQUEST_BYTES_MAX => offset,
            // A flush has no place: the kernel prints all ones.
            _ if len == 0 => 0,
            _ => return Err(self.wrong("a sector and a length within 64 bits, 1 GiB at most")),
        };
        let Some(record) = letters.request(offset, len) else {
            return Ok(Event::Other(b'n'));
        };
        // The kernel's dev_t: 12 bits of major and 20 of minor number.
        let name = format!("{},{}", raw.device >> 20, raw.device & 0xf_ffff);
        let device = devices.id(&name).ok_or_else(|| self.wrong("at most 65536 devices"))?;
        Ok(Event::Request(letter, TraceRecord { ts_ns: raw.time_ns, device, ..record }))
    }
}

/// The fields of a record that are looked at.
struct Raw {
    time_ns: u64,
    sector: u64,
    bytes: u32,
    action: u32,
    device: u32,
    pdu_len: u16,
}

impl Raw {
    fn of(bytes: &[u8; RECORD_BYTES], big_endian: bool) -> Raw {
        let u32_at = |at: usize| {
            let four = bytes[at..at + 4].try_into().expect("four bytes");
            if big_endian { u32::from_be_bytes(four) } else { u32::from_le_bytes(four) }
        };
        let u64_at = |at: usize| {
            let eight = bytes[at..at + 8].try_into().expect("eight bytes");
            if big_endian { u64::from_be_bytes(eight) } else { u64::from_le_bytes(eight) }
        };
        // magic, sequence, time, sector, bytes, action, pid, device, cpu, error, pdu_len
        let last = [bytes[46], bytes[47]];
        Raw {
            time_ns: u64_at(8),
            sector: u64_at(16),
            bytes: u32_at(24),
            action: u32_at(28),
            device: u32_at(36),
            pdu_len: if big_endian { u16::from_be_bytes(last) } else { u16::from_le_bytes(last) },
        }
    }
}

/// Writes an event (`D` or `C`) as a record of CPU 0, in little-endian order.
pub fn write(event: u8, sequence: u64, r: &TraceRecord, device: &str, out: &mut Vec<u8>) {
    let number = |text: &str| text.parse::<u32>().unwrap_or(0);
    let (major, minor) = device.split_once(',').map_or((0, 0), |(a, b)| (number(a), number(b)));
    let letters = Letters::of(r);
    let mut action = match event {
        b'C' => 8 | COMPLETE,
        b'Q' => 1 | QUEUE,
        _ => 7 | ISSUE,
    };
    action |= match r.op {
        TraceOp::Read => READ,
        TraceOp::Write => WRITE,
        TraceOp::Discard => DISCARD | WRITE,
        TraceOp::Flush => 0,
    };
    action |= if letters.preflush { FLUSH } else { 0 } | if letters.fua { FUA } else { 0 };
    let mut put = |bytes: &[u8]| {
        // A vector takes everything.
        let _ = out.write_all(bytes);
    };
    put(&MAGIC.to_le_bytes());
    put(&(sequence as u32).to_le_bytes());
    put(&r.ts_ns.to_le_bytes());
    put(&(r.offset_bytes / 512).to_le_bytes());
    put(&(r.len_bytes as u32).to_le_bytes());
    put(&action.to_le_bytes());
    put(&0u32.to_le_bytes()); // pid
    put(&(major << 20 | minor).to_le_bytes());
    put(&0u32.to_le_bytes()); // cpu
    put(&[0; 4]); // error, pdu_len
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    fn record(time: u64, sector: u64, bytes: u32, action: u32, behind: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        for word in [MAGIC, 1] {
            out.extend(word.to_le_bytes());
        }
        for long in [time, sector] {
            out.extend(long.to_le_bytes());
        }
        for word in [bytes, action, 77, 8 << 20 | 16, 0] {
            out.extend(word.to_le_bytes());
        }
        out.extend([0, 0]);
        out.extend((behind.len() as u16).to_le_bytes());
        out.extend(behind);
        assert_eq!(out.len(), RECORD_BYTES + behind.len());
        out
    }

    fn all(files: &[Vec<u8>]) -> Result<Vec<(u64, Event)>, TraceError> {
        let mut devices = Devices::default();
        let input = |b: &Vec<u8>| Box::new(Cursor::new(b.clone())) as Box<dyn BufRead>;
        let inputs = files.iter().map(|b| ("t".to_string(), input(b))).collect();
        let mut merge = Merge::new(inputs, &mut devices)?;
        let mut out = Vec::new();
        while let Some(event) = merge.next(&mut devices)? {
            out.push(event);
        }
        if out.iter().any(|(_, e)| matches!(e, Event::Request(..))) {
            assert_eq!(devices.names(), ["8,16"]);
        }
        Ok(out)
    }

    fn request(event: &Event) -> (u8, TraceOp, u64, u64, bool, bool) {
        match event {
            Event::Request(a, r) => (*a, r.op, r.offset_bytes, r.len_bytes, r.preflush, r.fua),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn records_of_all_cpus_come_in_order_of_time() {
        let one =
            [record(10, 8, 4096, 1 | QUEUE | WRITE, b""), record(30, 8, 4096, 7 | ISSUE, b"")];
        let two = [record(20, u64::MAX, 0, 1 | QUEUE | FLUSH | WRITE, b"")];
        let events = all(&[one.concat(), two.concat()]).unwrap();
        assert_eq!(events.iter().map(|e| e.0).collect::<Vec<_>>(), [10, 20, 30]);
        assert_eq!(request(&events[0].1), (b'Q', TraceOp::Write, 4096, 4096, false, false));
        assert_eq!(request(&events[1].1), (b'Q', TraceOp::Flush, 0, 0, false, false));
        assert_eq!(request(&events[2].1), (b'D', TraceOp::Read, 4096, 4096, false, false));
    }

    #[test]
    fn categories_are_the_letters_of_blkparse() {
        let of = |action: u32| all(&[record(1, 8, 512, action, b"")]).unwrap()[0].1.clone();
        let flags = QUEUE | FLUSH | WRITE | FUA;
        assert_eq!(request(&of(1 | flags)), (b'Q', TraceOp::Write, 4096, 512, true, true));
        assert_eq!(request(&of(8 | COMPLETE | DISCARD | WRITE)).1, TraceOp::Discard);
        assert_eq!(of(9), Event::Other(b'P'));
        assert_eq!(of(7 | ISSUE | PASSED_THROUGH), Event::Other(b'p'));
        let noted =
            |action, text: &[u8]| all(&[record(1, 0, 0, action, text)]).unwrap()[0].1.clone();
        assert_eq!(noted(MESSAGE | NOTIFY, b"phase one\0"), Event::Note("phase one".into()));
        let with_group = noted(MESSAGE | CGROUP | NOTIFY, b"\x01\0\0\0\0\0\0\0two");
        assert_eq!(with_group, Event::Note("two".into()));
        assert_eq!(noted(NOTIFY, b"fio\0"), Event::Other(b'm'));
    }

    #[test]
    fn the_other_byte_order_is_read_too() {
        let mut r = record(10, 8, 4096, 1 | QUEUE | WRITE, b"");
        for (at, len) in [
            (0, 4),
            (4, 4),
            (8, 8),
            (16, 8),
            (24, 4),
            (28, 4),
            (32, 4),
            (36, 4),
            (40, 4),
            (44, 2),
            (46, 2),
        ] {
            r[at..at + len].reverse();
        }
        assert_eq!(looks_like(&r), Some(true));
        let events = all(&[r]).unwrap();
        assert_eq!((events[0].0, request(&events[0].1).2), (10, 4096));
    }

    #[test]
    fn damage_is_named_with_record_and_place() {
        let good = record(10, 8, 4096, 1 | QUEUE, b"abc");
        let said = |files: &[Vec<u8>]| all(files).unwrap_err().to_string();
        let cut = [good.clone(), good[..40].to_vec()].concat();
        assert!(said(&[cut]).contains("record 2 (byte 51)"));
        let mut wrong = good.clone();
        wrong[0] = 8;
        assert_eq!(looks_like(&wrong), Some(false));
        assert!(said(&[[good.clone(), wrong].concat()]).contains("version 7"));
        assert!(said(&[record(1, 0, 512, 30, b"")]).contains("record 1 (byte 0)"));
        assert!(said(&[record(1, u64::MAX, 512, 1, b"")]).contains("64 bits"));
        assert_eq!(looks_like(b"PAR1"), None);
    }

    #[test]
    fn what_is_written_is_read_back() {
        let r = TraceRecord {
            ts_ns: 5,
            op: TraceOp::Write,
            offset_bytes: 512,
            len_bytes: 1024,
            fua: true,
            preflush: true,
            ..TraceRecord::EMPTY
        };
        let mut bytes = Vec::new();
        write(b'D', 1, &r, "8,16", &mut bytes);
        assert_eq!(all(&[bytes]).unwrap(), [(5, Event::Request(b'D', r))]);
    }
}
