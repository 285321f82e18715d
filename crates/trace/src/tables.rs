//! The formats that are tables, column by column, with their traps.
//!
//! Owns: nothing but descriptions; [`super::table`] reads and writes by them. Promises: each says
//! where its columns are documented. Never: holds code for one format.
//!
//! **Traps**: a 0 is a *write* for MQSim, SSDSim and FEMU's replayer, and a *read* for Tencent.
//! Offsets are sectors of 512 bytes for MQSim, DiskSim, SSDSim, Tencent and SPC (whose lengths are
//! bytes), bytes for all others. Times are ticks of 100 ns (MSR), seconds (SYSTOR, Tencent, SPC,
//! wiscsee), milliseconds (FEMU, DiskSim), microseconds (Alibaba, fio), nanoseconds (SSDSim; MQSim
//! by default).

use super::number::{MS, NS, S, TICKS, US, WHOLE_S};
use super::table::{Cell, Column, Means, Separator, Table};
use crate::format::Format;
use crate::record::TraceOp;

const READ: Means = Means::Op(TraceOp::Read);
const WRITE: Means = Means::Op(TraceOp::Write);
const DISCARD: Means = Means::Op(TraceOp::Discard);
const FLUSH: Means = Means::Op(TraceOp::Flush);

const fn column(names: &'static [&'static str], expects: &'static str, cell: Cell) -> Column {
    Column { names, expects, cell }
}

const OFFSET: Column = column(&["Offset"], "the offset in bytes", Cell::Offset(1));
const SIZE: Column = column(&["Size"], "the size in bytes, 1 GiB at most", Cell::Length(1));
const SECTOR_SIZE: &str = "the size in sectors of 512 B, up to 2097152 (1 GiB)";

/// DiskSim's reference manual, section "Format of the ASCII traces": `time devno blkno size flags`.
const DISKSIM: [Column; 5] = [
    column(&["time"], "the time in milliseconds", Cell::Time(MS)),
    column(&["devno"], "the device, a number below 2^32", Cell::DeviceNumber),
    column(&["blkno"], "the first block (of 512 B), below 2^55", Cell::Offset(512)),
    column(&["size", "bcount"], SECTOR_SIZE, Cell::Length(512)),
    column(&["flags"], "the flags in hexadecimal, whose last bit is a read's", Cell::ReadBit),
];

/// `arrival device lba size type`: MQSim's README, "ASCII trace".
const MQSIM: [Column; 5] = [
    column(&["arrival"], "the arrival time", Cell::Time(NS)),
    column(&["device"], "the device, a number below 2^32", Cell::DeviceNumber),
    column(&["lba"], "the first sector (of 512 B), below 2^55", Cell::Offset(512)),
    column(&["size"], SECTOR_SIZE, Cell::Length(512)),
    column(&["type"], "the type, 0 write or 1 read", Cell::Op(&[("0", WRITE), ("1", READ)])),
];

/// README of the MSR Cambridge traces (SNIA IOTTA).
const MSR: [Column; 7] = [
    column(&["Timestamp"], "the time in ticks of 100 ns since 1601", Cell::Time(TICKS)),
    column(&["Hostname"], "the name of a host", Cell::Host),
    column(&["DiskNumber"], "the number of a disk", Cell::Disk),
    column(&["Type"], "`Read` or `Write`", Cell::Op(&[("Read", READ), ("Write", WRITE)])),
    OFFSET,
    SIZE,
    column(&["ResponseTime"], "the response time in ticks of 100 ns", Cell::Latency(TICKS)),
];

/// README of the SYSTOR '17 traces (SNIA IOTTA). An empty type is neither read nor write.
const SYSTOR: [Column; 6] = [
    column(&["Timestamp"], "the time in seconds", Cell::Time(S)),
    column(&["Response"], "the response time in seconds, or nothing", Cell::Latency(S)),
    column(
        &["IOType"],
        "`R`, `W` or nothing",
        Cell::Op(&[("R", READ), ("W", WRITE), ("", Means::PassedOver('b'))]),
    ),
    column(&["LUN"], "the number of a LUN", Cell::DeviceNumber),
    OFFSET,
    SIZE,
];

/// README of alibaba/block-traces, which spells one of its own columns `timestmap`.
const ALIBABA: [Column; 5] = [
    column(&["device_id"], "the number of a device", Cell::DeviceNumber),
    column(&["opcode"], "`R` or `W`", Cell::Op(&[("R", READ), ("W", WRITE)])),
    column(&["offset"], "the offset in bytes", Cell::Offset(1)),
    column(&["length"], "the length in bytes, 1 GiB at most", Cell::Length(1)),
    column(&["timestamp", "timestmap"], "the time in microseconds", Cell::Time(US)),
];

/// README of Tencent's CBS traces (SNIA IOTTA).
const TENCENT: [Column; 5] = [
    column(&["Timestamp"], "the time in seconds since 1970", Cell::Time(WHOLE_S)),
    column(&["Offset"], "the first sector (of 512 B), below 2^55", Cell::Offset(512)),
    column(&["Size"], SECTOR_SIZE, Cell::Length(512)),
    column(&["IOType"], "the type, 0 read or 1 write", Cell::Op(&[("0", READ), ("1", WRITE)])),
    column(&["VolumeID"], "the number of a volume", Cell::DeviceNumber),
];

/// SPC Trace File Format Specification 1.0.1, section 2; blocks of 512 bytes as in the UMass traces.
const SPC: [Column; 5] = [
    column(&["ASU"], "the number of an ASU", Cell::DeviceNumber),
    column(&["LBA"], "the first block (of 512 B), below 2^55", Cell::Offset(512)),
    column(&["Size"], "the size in bytes, 1 GiB at most", Cell::Length(1)),
    column(&["Opcode"], "`R` or `W`", Cell::Op(&[("R", READ), ("W", WRITE)])),
    column(&["Timestamp"], "the time in seconds", Cell::Time(S)),
];

const FIO2_WORDS: &[(&str, Means)] = &[
    ("read", READ),
    ("write", WRITE),
    ("trim", DISCARD),
    ("sync", FLUSH),
    ("datasync", FLUSH),
    // Starts writing back; promises nothing about durability (sync_file_range(2)).
    ("sync_file_range", Means::PassedOver('r')),
    ("add", Means::Ends('o')),
    ("open", Means::Ends('o')),
    ("close", Means::Ends('o')),
    ("wait", Means::Wait),
];
/// "`wait` is not allowed" in version 3, whose lines have their times.
const FIO3_WORDS: &[(&str, Means)] = match FIO2_WORDS.split_last() {
    Some((_, words)) => words,
    None => &[],
};
const FIO2_ACTION: Column = column(
    &["action"],
    "read, write, trim, sync, datasync, wait, add, open or close",
    Cell::Op(FIO2_WORDS),
);
const FIO3_ACTION: Column = column(
    &["action"],
    "read, write, trim, sync, datasync, add, open or close",
    Cell::Op(FIO3_WORDS),
);
const FIO_FILE: Column = column(&["filename"], "the name of a file", Cell::DeviceWord);
const FIO_OFFSET: Column = column(&["offset"], "the offset in bytes", Cell::Offset(1));
const FIO_LENGTH: Column = column(
    &["length"],
    "the length in bytes, 1 GiB in a read or write, 64 TiB in a discard",
    Cell::Length(1),
);

/// fio's HOWTO, "Trace file format v2".
const FIO2: [Column; 4] = [FIO_FILE, FIO2_ACTION, FIO_OFFSET, FIO_LENGTH];

/// fio's HOWTO, "Trace file format v3"; the unit is that of `utime_since_now` in its iolog.c.
const FIO3: [Column; 5] = [
    column(&["timestamp"], "the time in microseconds", Cell::Time(US)),
    FIO_FILE,
    FIO3_ACTION,
    FIO_OFFSET,
    FIO_LENGTH,
];

/// The events that wiscsee's workload runner writes: `pid D|C operation offset size timestamp`, then
/// the pause before it and whether it is synchronous.
const WISCSEE: [Column; 6] = [
    column(&["pid"], "the process id", Cell::Any("0")),
    column(&["action"], "`D` issued or `C` completed", Cell::Event),
    column(
        &["operation"],
        "read, write or discard",
        Cell::Op(&[("read", READ), ("write", WRITE), ("discard", DISCARD)]),
    ),
    column(&["offset"], "the offset in bytes", Cell::Offset(1)),
    column(
        &["size"],
        "the size in bytes, 1 GiB in a read or write, 64 TiB in a discard",
        Cell::Length(1),
    ),
    column(&["timestamp"], "the time in seconds", Cell::Time(S)),
];

/// huaicheng/replayer, the replayer of FEMU's authors.
const FEMU: [Column; 5] = [
    column(&["ms"], "the time in milliseconds", Cell::Time(MS)),
    column(&["disk"], "the number of a disk", Cell::DeviceNumber),
    column(&["offset"], "the offset in bytes", Cell::Offset(1)),
    column(&["size"], "the size in bytes, 1 GiB at most", Cell::Length(1)),
    column(&["type"], "the type, 0 write or 1 read", Cell::Op(&[("0", WRITE), ("1", READ)])),
];

const PLAIN: Table = Table {
    format: Format::Mqsim,
    shape: "",
    separator: Separator::Comma,
    magic: None,
    header: false,
    columns: &MQSIM,
    more: None,
    from_zero: false,
    told_by: |_| true,
};

/// A table of fields between commas.
const fn commas(format: Format, shape: &'static str, columns: &'static [Column]) -> Table {
    Table { format, shape, columns, ..PLAIN }
}

/// A table of fields between blanks, whose times count from its beginning.
const fn blanks(format: Format, shape: &'static str, columns: &'static [Column]) -> Table {
    Table { format, shape, columns, separator: Separator::Blanks, from_zero: true, ..PLAIN }
}

/// All tables. MQSim comes before SSDSim, which looks the same and means the same as long as
/// MQSim's times are in ns. DiskSim looks the same and means something else, so its numbers are no
/// evidence.
pub static TABLES: [Table; 12] = [
    blanks(
        Format::Mqsim,
        "five numbers: arrival (ns), device, lba, size (512 B sectors), type",
        &MQSIM,
    ),
    Table {
        told_by: |_| false,
        ..blanks(
            Format::Disksim,
            "five numbers: time (ms), devno, blkno (of 512 B), size (in blocks), flags",
            &DISKSIM,
        )
    },
    blanks(Format::Ssdsim, "five numbers: time (ns), ldn, lsn, size (512 B sectors), op", &MQSIM),
    commas(Format::Msr, "Timestamp,Hostname,DiskNumber,Type,Offset,Size,ResponseTime", &MSR),
    Table {
        header: true,
        ..commas(Format::Systor, "Timestamp,Response,IOType,LUN,Offset,Size", &SYSTOR)
    },
    commas(Format::Alibaba, "device_id,opcode,offset,length,timestamp", &ALIBABA),
    commas(Format::Tencent, "Timestamp,Offset,Size,IOType,VolumeID", &TENCENT),
    Table {
        // "Optional fields": section 2 of the specification.
        more: Some(""),
        from_zero: true,
        ..commas(Format::Spc, "ASU,LBA,Size,Opcode,Timestamp", &SPC)
    },
    Table {
        magic: Some("fio version 2 iolog"),
        ..blanks(Format::Fio2, "filename action [offset length]", &FIO2)
    },
    Table {
        magic: Some("fio version 3 iolog"),
        ..blanks(Format::Fio3, "timestamp filename action [offset length]", &FIO3)
    },
    Table {
        more: Some("0 False"),
        ..blanks(Format::Wiscsee, "pid D|C operation offset size timestamp", &WISCSEE)
    },
    Table {
        from_zero: true,
        // Tencent's fourth column is 0 or 1, which is no size that a disk was ever asked for.
        told_by: |r| r.len_bytes >= 512,
        ..commas(Format::Femu, "ms,disk,offset,size,type", &FEMU)
    },
];

pub fn of(format: Format) -> Option<&'static Table> {
    TABLES.iter().find(|t| t.format == format)
}
