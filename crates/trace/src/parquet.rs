//! The own format: Parquet, to which everything converts.
//!
//! Owns: its columns and their meaning ([`COLUMNS`]), row groups of bounded size, the devices' names
//! in the file's metadata. Promises: every record of every format survives it (a discard of 4 GiB
//! and more as several); a file written by another program is read when it has these columns, as
//! integers of 32 or 64 bits, in any order, among others; memory is that of one row group's pages,
//! whatever the file's size. Never: trusts a length it has not compared with the file's.
//!
//! | column | type | is |
//! |---|---|---|
//! | `ts_ns` | u64 | when the request was made, ns |
//! | `op` | u8 | 0 read, 1 write, 2 discard, 3 flush |
//! | `stream` | u16 | device, an index into the names |
//! | `offset` | u64 | first byte |
//! | `len` | u32 | bytes; 0 for a flush |
//! | `flags` | u32 | 1 FUA, 2 a flush before it |
//! | `lat_ns` | u64, may be null | how long it took, ns |
//! | `content` | bytes, may be null; in recordings that were asked for it only | what a write wrote |

use super::contain::contained;
use super::device::{DEVICES_MAX, DeviceId, Devices};
use super::store::{Bounded, Store};
use crate::record::{Expected, TraceError, TraceOp, TraceRecord};
use ::parquet::basic::{Compression, Encoding};
use ::parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use ::parquet::data_type::{ByteArray, ByteArrayType, DataType, Int32Type, Int64Type};
use ::parquet::errors::{ParquetError, Result as ParquetResult};
use ::parquet::file::metadata::KeyValue;
use ::parquet::file::properties::{EnabledStatistics, WriterProperties};
use ::parquet::file::reader::{FileReader, Length, RowGroupReader};
use ::parquet::file::serialized_reader::SerializedFileReader;
use ::parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use ::parquet::schema::parser::parse_message_type;
use ::parquet::schema::types::ColumnPath;
use bytes::Bytes;
use std::io::Write;
use std::sync::Arc;

/// The columns by name, in the order in which they are written.
pub const COLUMNS: [&str; 7] = ["ts_ns", "op", "stream", "offset", "len", "flags", "lat_ns"];
const TS: usize = 0;
const OP: usize = 1;
const STREAM: usize = 2;
const LEN: usize = 4;
const FLAGS: usize = 5;
const LAT: usize = 6;

const SCHEMA: &str = "message trace {
  required int64 ts_ns (integer(64,false));
  required int32 op (integer(8,false));
  required int32 stream (integer(16,false));
  required int64 offset (integer(64,false));
  required int32 len (integer(32,false));
  required int32 flags (integer(32,false));
  optional int64 lat_ns (integer(64,false));
}";

/// The column of a recording that holds contents, too.
const CONTENT: &str = "content";

/// Key of the devices' names in the file's metadata: a JSON list, by `stream`.
const NAMES_KEY: &str = "flashlane.devices";
/// Rows of a row group: some 22 MiB while it is written; a file of 10^10 rows has 20,000.
const GROUP_ROWS: usize = 1 << 19;
/// Contents of a row group at most, in bytes.
const GROUP_BYTES: usize = 32 << 20;
/// Rows that are decoded at once.
const BATCH_ROWS: usize = 1 << 13;

const FUA: u64 = 1;
const PREFLUSH: u64 = 2;

/// The first four bytes of a file.
pub const MAGIC: &[u8; 4] = b"PAR1";

enum Ints {
    I32(ColumnReaderImpl<Int32Type>, Vec<i32>),
    I64(ColumnReaderImpl<Int64Type>, Vec<i64>),
}

/// One column of the row group that is read.
struct Column {
    ints: Ints,
    nullable: bool,
    /// 1 at the rows that have a value; of no length where all do.
    levels: Vec<i16>,
    /// By row of the batch; 0 where there is none.
    values: Vec<u64>,
}

impl Column {
    fn fill(&mut self) -> ParquetResult<()> {
        let Column { ints, nullable, levels, values } = self;
        levels.clear();
        let levels = nullable.then_some(levels);
        match ints {
            Ints::I32(reader, raw) => spread(reader, raw, levels, values, |v| *v as u32 as u64),
            Ints::I64(reader, raw) => spread(reader, raw, levels, values, |v| *v as u64),
        }
    }

    fn get(&self, row: usize) -> Option<u64> {
        let there = self.levels.is_empty() || self.levels[row] == 1;
        there.then(|| self.values[row])
    }
}

/// Decodes a batch, and puts values at the rows that have one: all, where there are no levels.
fn spread<T: DataType>(
    reader: &mut ColumnReaderImpl<T>,
    raw: &mut Vec<T::T>,
    mut levels: Option<&mut Vec<i16>>,
    out: &mut Vec<u64>,
    value: impl Fn(&T::T) -> u64,
) -> ParquetResult<()> {
    raw.clear();
    out.clear();
    let (rows, ..) =
        contained(|| reader.read_records(BATCH_ROWS, levels.as_deref_mut(), None, raw))?;
    let mut values = raw.iter().map(value);
    match levels {
        None => out.extend(values),
        Some(levels) => {
            let each = |level: &i16| if *level == 1 { values.next() } else { Some(0) };
            out.extend(levels.iter().map_while(each));
        }
    }
    match out.len() == rows {
        true => Ok(()),
        false => Err(ParquetError::General("fewer values than rows".into())),
    }
}

/// Reads a file's records.
pub struct Rows {
    file: String,
    reader: SerializedFileReader<Bounded>,
    file_bytes: u64,
    streams: Streams,
    groups_read: usize,
    columns: Vec<Column>,
    /// What the columns hold, up to what is wrong with the row behind.
    batch: Vec<TraceRecord>,
    failed: Option<TraceError>,
    /// The next of them.
    at: usize,
    /// Records given out so far.
    rows: u64,
    /// Contents are wanted.
    wants: bool,
    contents: Option<Contents>,
    /// What the record wrote that was given out last.
    content: Option<Bytes>,
}

/// The column of contents of the row group that is read: row by row, as each may be large.
struct Contents {
    reader: ColumnReaderImpl<ByteArrayType>,
    nullable: bool,
    levels: Vec<i16>,
    values: Vec<ByteArray>,
}

impl Contents {
    fn next(&mut self) -> ParquetResult<Option<Bytes>> {
        let Contents { reader, nullable, levels, values } = self;
        levels.clear();
        values.clear();
        let levels = nullable.then_some(levels);
        let (rows, ..) = contained(|| reader.read_records(1, levels, None, values))?;
        match rows {
            1 => Ok(values.pop().map(|bytes| Bytes::copy_from_slice(bytes.data()))),
            _ => Err(ParquetError::General("fewer contents than rows".into())),
        }
    }
}

impl Rows {
    /// Opens a file; `file` is its name for messages. With `contents` these are read, too.
    pub fn new(file: &str, store: Store, contents: bool) -> Result<Rows, TraceError> {
        let file_bytes = store.len();
        let reader = contained(|| SerializedFileReader::new(Bounded::new(store)))
            .map_err(|e| damaged(file, 0, e))?;
        let metadata = reader.metadata().file_metadata();
        for name in &COLUMNS[..LAT] {
            find(&reader, name).ok_or_else(|| TraceError::Columns {
                file: file.into(),
                missing: name,
                known: COLUMNS.join(", "),
            })?;
        }
        let mut names = None;
        for pair in metadata.key_value_metadata().into_iter().flatten() {
            if pair.key == NAMES_KEY {
                let list = pair.value.as_deref().map(serde_json::from_str::<Vec<String>>);
                names = list.and_then(Result::ok).filter(|n| n.len() <= DEVICES_MAX);
                if names.is_none() {
                    let what = format!("`{NAMES_KEY}` is no JSON list of names");
                    return Err(damaged(file, 0, ParquetError::General(what)));
                }
            }
        }
        let file = file.to_string();
        Ok(Rows {
            file,
            reader,
            file_bytes,
            streams: Streams { names, ids: Vec::new() },
            groups_read: 0,
            columns: Vec::new(),
            batch: Vec::new(),
            failed: None,
            at: 0,
            rows: 0,
            wants: contents,
            contents: None,
            content: None,
        })
    }

    /// Whether it has contents.
    pub fn has_contents(&self) -> bool {
        find(&self.reader, CONTENT).is_some()
    }

    /// What the record wrote that was given out last, where that is wanted and known.
    pub fn content(&mut self) -> Option<Bytes> {
        self.content.take()
    }

    /// Records read so far.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn next(&mut self, devices: &mut Devices) -> Result<Option<TraceRecord>, TraceError> {
        while self.at == self.batch.len() {
            if let Some(failed) = self.failed.take() {
                return Err(failed);
            }
            if !self.fill().map_err(|e| damaged(&self.file, self.rows, e))? {
                return Ok(None);
            }
            self.failed = self.decode(devices).err();
        }
        let record = self.batch[self.at];
        self.content = None;
        if let Some(contents) = &mut self.contents {
            let content = contents.next().map_err(|e| damaged(&self.file, self.rows, e))?;
            let fits =
                |c: &Bytes| record.op == TraceOp::Write && c.len() as u64 == record.len_bytes;
            if content.as_ref().is_some_and(|content| !fits(content)) {
                let (file, row) = (self.file.clone(), self.rows + 1);
                let expected = Expected::Text("the bytes of a write, as many as `len` says");
                return Err(TraceError::Row { file, row, column: CONTENT, expected });
            }
            self.content = content;
        }
        self.at += 1;
        self.rows += 1;
        Ok(Some(record))
    }

    /// Decodes the columns of the next rows; false when there are none.
    fn fill(&mut self) -> ParquetResult<bool> {
        let ended = match self.columns.first_mut() {
            None => true,
            Some(first) => {
                first.fill()?;
                first.values.is_empty()
            }
        };
        if ended {
            if self.groups_read == self.reader.num_row_groups() {
                // The last one is kept until here: its columns must end together.
                self.columns.clear();
                return Ok(false);
            }
            self.columns = self.open_group(self.groups_read)?;
            self.contents = match self.wants {
                true => self.open_contents(self.groups_read)?,
                false => None,
            };
            self.groups_read += 1;
            self.columns[0].fill()?;
        }
        let rows = self.columns[0].values.len();
        for column in &mut self.columns[1..] {
            column.fill()?;
            if column.values.len() != rows {
                return Err(ParquetError::General("columns of different lengths".into()));
            }
        }
        Ok(true)
    }

    fn open_group(&self, group: usize) -> ParquetResult<Vec<Column>> {
        let group = contained(|| self.reader.get_row_group(group))?;
        let mut columns = Vec::new();
        for name in COLUMNS {
            // Only the last one may be missing.
            let Some(index) = find(&self.reader, name) else { continue };
            let ints = match self.checked(&*group, index)? {
                ColumnReader::Int32ColumnReader(reader) => Ints::I32(reader, Vec::new()),
                ColumnReader::Int64ColumnReader(reader) => Ints::I64(reader, Vec::new()),
                _ => return Err(ParquetError::General(format!("`{name}` holds no integers"))),
            };
            let nullable = group.metadata().schema_descr().column(index).max_def_level() > 0;
            columns.push(Column { ints, nullable, levels: Vec::new(), values: Vec::new() });
        }
        Ok(columns)
    }

    fn open_contents(&self, group: usize) -> ParquetResult<Option<Contents>> {
        let group = contained(|| self.reader.get_row_group(group))?;
        let Some(index) = find(&self.reader, CONTENT) else { return Ok(None) };
        let ColumnReader::ByteArrayColumnReader(reader) = self.checked(&*group, index)? else {
            return Err(ParquetError::General(format!("`{CONTENT}` holds no bytes")));
        };
        let nullable = group.metadata().schema_descr().column(index).max_def_level() > 0;
        Ok(Some(Contents { reader, nullable, levels: Vec::new(), values: Vec::new() }))
    }

    /// The reader of a column whose place has been compared with the file: the library asserts it.
    fn checked(&self, group: &dyn RowGroupReader, index: usize) -> ParquetResult<ColumnReader> {
        let column = group.metadata().column(index);
        let first = match column.dictionary_page_offset() {
            Some(dictionary) => dictionary.min(column.data_page_offset()),
            None => column.data_page_offset(),
        };
        let end = first.checked_add(column.compressed_size());
        let inside = |at: i64| u64::try_from(at).is_ok_and(|at| at <= self.file_bytes);
        let good = inside(first)
            && column.compressed_size() >= 0
            && end.is_some_and(inside)
            && column.num_values() >= 0;
        if !good {
            return Err(ParquetError::General("a column that lies outside the file".into()));
        }
        contained(|| group.get_column_reader(index))
    }

    /// Makes records of the rows, up to the first that is none.
    fn decode(&mut self, devices: &mut Devices) -> Result<(), TraceError> {
        self.at = 0;
        self.batch.clear();
        let rows = self.columns[0].values.len();
        let nowhere = |column: usize| self.columns[column].levels.iter().position(|l| *l != 1);
        let missing = (TS..LAT).filter_map(|column| Some((nowhere(column)?, column))).min();
        let complete = missing.map_or(rows, |(row, _)| row);
        let [ts, op, stream, offset, len, flags] =
            std::array::from_fn(|column| &self.columns[column].values[..complete]);
        let latency = self.columns.get(LAT);
        for row in 0..complete {
            let wrong =
                |column, expected| wrong(&self.file, self.rows + row as u64, column, expected);
            let op = TraceOp::ALL.get(op[row] as usize).copied();
            let op = op.ok_or_else(|| wrong(OP, "0 read, 1 write, 2 discard or 3 flush"))?;
            let flush = op == TraceOp::Flush;
            let (offset_bytes, len_bytes, flags) = (offset[row], len[row], flags[row]);
            let fits = offset_bytes.checked_add(len_bytes).is_some()
                && (len_bytes == 0) == flush
                && len_bytes <= op.len_max();
            if !fits {
                return Err(wrong(LEN, "1 byte to 1 GiB for a read or write, 0 for a flush"));
            }
            if flags & !(FUA | PREFLUSH) != 0 {
                return Err(wrong(FLAGS, "1 (FUA), 2 (a flush before it), both or none"));
            }
            let device = self.streams.device(stream[row], devices);
            let device =
                device.ok_or_else(|| wrong(STREAM, "the number of a device that has a name"))?;
            self.batch.push(TraceRecord {
                ts_ns: ts[row],
                op,
                device,
                offset_bytes: if flush { 0 } else { offset_bytes },
                len_bytes,
                fua: flags & FUA != 0 && op == TraceOp::Write,
                preflush: flags & PREFLUSH != 0 && !flush,
                latency_ns: latency.and_then(|column| column.get(row)),
            });
        }
        match missing {
            None => Ok(()),
            Some((row, column)) => {
                Err(wrong(&self.file, self.rows + row as u64, column, "a value in every row"))
            }
        }
    }
}

/// What is wrong in a row that so many others come before.
fn wrong(file: &str, before: u64, column: usize, expected: &'static str) -> TraceError {
    let (row, column) = (before + 1, COLUMNS[column]);
    TraceError::Row { file: file.into(), row, column, expected: Expected::Text(expected) }
}

/// The devices of a file, by `stream`.
struct Streams {
    names: Option<Vec<String>>,
    /// As far as they were seen.
    ids: Vec<Option<DeviceId>>,
}

impl Streams {
    /// The device of a stream; its name is looked up once.
    #[inline]
    fn device(&mut self, stream: u64, devices: &mut Devices) -> Option<DeviceId> {
        let index = usize::try_from(stream).ok().filter(|index| *index < DEVICES_MAX)?;
        match self.ids.get(index) {
            Some(Some(known)) => Some(*known),
            _ => self.first(index, devices),
        }
    }

    #[cold]
    fn first(&mut self, index: usize, devices: &mut Devices) -> Option<DeviceId> {
        let id = match &self.names {
            Some(names) => devices.id(names.get(index)?),
            None => devices.id(&index.to_string()),
        };
        if self.ids.len() <= index {
            self.ids.resize(index + 1, None);
        }
        self.ids[index] = id;
        id
    }
}

/// The place of a flat column.
fn find(reader: &SerializedFileReader<Bounded>, name: &str) -> Option<usize> {
    let schema = reader.metadata().file_metadata().schema_descr();
    (0..schema.num_columns()).find(|index| {
        let column = schema.column(*index);
        column.path().string() == name && column.max_rep_level() == 0 && column.max_def_level() < 2
    })
}

fn damaged(file: &str, rows: u64, error: ParquetError) -> TraceError {
    TraceError::Read { file: file.into(), lines: rows, source: std::io::Error::other(error) }
}

pub struct RowWriter<W: Write + Send> {
    writer: SerializedFileWriter<W>,
    /// There is a column of contents.
    contents: bool,
    group: Group,
}

/// Rows that are not written yet, by column.
#[derive(Default)]
struct Group {
    ts: Vec<i64>,
    op: Vec<i32>,
    stream: Vec<i32>,
    offset: Vec<i64>,
    len: Vec<i32>,
    flags: Vec<i32>,
    lat: Vec<i64>,
    lat_levels: Vec<i16>,
    content: Vec<ByteArray>,
    content_levels: Vec<i16>,
    content_bytes: usize,
}

impl<W: Write + Send> RowWriter<W> {
    /// Begins a file of a trace whose devices have these names, with room for contents or without.
    pub fn new(out: W, names: &[String], contents: bool) -> std::io::Result<RowWriter<W>> {
        let more = if contents { format!("  optional binary {CONTENT};\n}}") } else { "}".into() };
        let schema = SCHEMA.trim_end_matches('}').to_string() + &more;
        let schema = parse_message_type(&schema).expect("the schema is a constant");
        let names = serde_json::to_string(names).expect("strings");
        let properties = WriterProperties::builder()
            .set_created_by("flashlane".into())
            .set_compression(Compression::SNAPPY)
            .set_statistics_enabled(EnabledStatistics::None)
            .set_offset_index_disabled(true)
            .set_key_value_metadata(Some(vec![KeyValue::new(NAMES_KEY.into(), names)]))
            // Times grow by little, so their differences need few bits.
            .set_column_dictionary_enabled(ColumnPath::from("ts_ns"), false)
            .set_column_encoding(ColumnPath::from("ts_ns"), Encoding::DELTA_BINARY_PACKED)
            .set_column_dictionary_enabled(ColumnPath::from(CONTENT), false);
        let properties = match contents {
            // The size of a page is looked at behind each value, so none has more than one beyond 1 MiB.
            true => properties.set_write_batch_size(1),
            false => properties,
        };
        let properties = properties.build();
        let writer = SerializedFileWriter::new(out, Arc::new(schema), Arc::new(properties))?;
        Ok(RowWriter { writer, contents, group: Group::default() })
    }

    /// Adds a record within the limits of [`super::carries::Carries::PARQUET`].
    pub fn write(&mut self, r: &TraceRecord, content: Option<&[u8]>) -> std::io::Result<()> {
        let g = &mut self.group;
        if self.contents {
            g.content_levels.push(content.is_some() as i16);
            g.content_bytes += content.map_or(0, <[u8]>::len);
            g.content.extend(content.map(|bytes| ByteArray::from(bytes.to_vec())));
        }
        g.ts.push(r.ts_ns as i64);
        g.op.push(r.op as i32);
        g.stream.push(r.device.0 as i32);
        g.offset.push(r.offset_bytes as i64);
        assert!(r.len_bytes <= u32::MAX as u64, "a record was not split: {r:?}");
        g.len.push(r.len_bytes as u32 as i32);
        let flags = (r.fua as u64 * FUA) | (r.preflush as u64 * PREFLUSH);
        g.flags.push(flags as i32);
        g.lat_levels.push(r.latency_ns.is_some() as i16);
        g.lat.extend(r.latency_ns.map(|ns| ns as i64));
        let is_full = g.ts.len() == GROUP_ROWS || g.content_bytes >= GROUP_BYTES;
        if is_full { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> std::io::Result<()> {
        let (mut group, g) = (self.writer.next_row_group()?, &mut self.group);
        column::<Int64Type, W>(&mut group, &mut g.ts, None)?;
        column::<Int32Type, W>(&mut group, &mut g.op, None)?;
        column::<Int32Type, W>(&mut group, &mut g.stream, None)?;
        column::<Int64Type, W>(&mut group, &mut g.offset, None)?;
        column::<Int32Type, W>(&mut group, &mut g.len, None)?;
        column::<Int32Type, W>(&mut group, &mut g.flags, None)?;
        column::<Int64Type, W>(&mut group, &mut g.lat, Some(&g.lat_levels))?;
        g.lat_levels.clear();
        if self.contents {
            column::<ByteArrayType, W>(&mut group, &mut g.content, Some(&g.content_levels))?;
            g.content_levels.clear();
            g.content_bytes = 0;
        }
        group.close()?;
        Ok(())
    }

    /// Ends the file.
    pub fn finish(mut self) -> std::io::Result<W> {
        if !self.group.ts.is_empty() {
            self.flush()?;
        }
        Ok(self.writer.into_inner()?)
    }
}

fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &mut Vec<T::T>,
    levels: Option<&[i16]>,
) -> ParquetResult<()> {
    let next = group.next_column()?;
    let mut column = next.ok_or_else(|| ParquetError::General("too many columns".into()))?;
    column.typed::<T>().write_batch(values, levels, None)?;
    values.clear();
    column.close()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::DeviceId;

    fn written(records: &[TraceRecord], names: &[&str]) -> Vec<u8> {
        let names: Vec<String> = names.iter().map(|n| n.to_string()).collect();
        let mut writer = RowWriter::new(Vec::new(), &names, false).unwrap();
        for r in records {
            writer.write(r, None).unwrap();
        }
        writer.finish().unwrap()
    }

    fn read(bytes: Vec<u8>) -> Result<(Vec<TraceRecord>, Devices), TraceError> {
        let mut devices = Devices::default();
        let mut rows = Rows::new("t", Store::Memory(bytes.into()), false)?;
        let mut all = Vec::new();
        while let Some(r) = rows.next(&mut devices)? {
            all.push(r);
        }
        Ok((all, devices))
    }

    fn some(n: u64) -> Vec<TraceRecord> {
        let one = |i: u64| {
            let op = TraceOp::ALL[(i % 4) as usize];
            let flush = op == TraceOp::Flush;
            TraceRecord {
                ts_ns: u64::MAX - n + i,
                op,
                device: DeviceId((i % 2) as u16),
                offset_bytes: if flush { 0 } else { i * 4096 },
                len_bytes: if flush { 0 } else { 512 + i },
                fua: op == TraceOp::Write,
                preflush: op == TraceOp::Write && i % 8 == 1,
                latency_ns: (!i.is_multiple_of(3)).then_some(i),
            }
        };
        (0..n).map(one).collect()
    }

    #[test]
    fn every_record_survives_also_beyond_a_batch() {
        for n in [0, 1, 7, BATCH_ROWS as u64, BATCH_ROWS as u64 + 1] {
            let records = some(n);
            let (read, devices) = read(written(&records, &["sda", "8,16"])).unwrap();
            assert_eq!(read, records);
            assert_eq!(devices.names(), &["sda", "8,16"].map(String::from)[..n.min(2) as usize]);
        }
    }

    #[test]
    fn the_same_records_are_the_same_bytes() {
        assert_eq!(written(&some(100), &["a", "b"]), written(&some(100), &["a", "b"]));
    }

    #[test]
    fn what_is_wrong_is_said_with_row_and_column() {
        let said =
            |r: TraceRecord| read(written(&[some(1)[0], r], &["a"])).unwrap_err().to_string();
        let none = TraceRecord { len_bytes: 0, ..some(1)[0] };
        assert!(said(none).contains("row 2, column `len`"), "{}", said(none));
        let nobody = TraceRecord { device: DeviceId(5), ..some(1)[0] };
        assert!(said(nobody).contains("row 2, column `stream`"));
    }

    /// The size that a page claims is not believed: the library would make room for all of it.
    #[test]
    fn a_page_that_claims_too_much_is_refused() {
        let whole = written(&vec![some(1)[0]; 4000], &["a"]);
        assert!(read(whole.clone()).is_ok());
        // A page header: tag, type (data or dictionary), tag, a size of two bytes, tag.
        let is_header =
            |w: &[u8]| matches!(w, [0x15, 0 | 4, 0x15, a, b, 0x15, ..] if *a > 0x7f && *b < 0x80);
        let at = whole.windows(6).position(is_header).expect("a page of 64 bytes and more");
        let mut bytes = whole.clone();
        (bytes[at + 3], bytes[at + 4]) = (0xfe, 0x7f);
        let said = read(bytes).unwrap_err().to_string();
        assert!(said.contains("claims to unpack to 8191"), "{said}");
    }

    #[test]
    fn a_file_that_ends_early_is_refused() {
        let whole = written(&some(100), &["a", "b"]);
        for cut in [4, whole.len() / 2, whole.len() - 1] {
            let said = read(whole[..cut].to_vec()).unwrap_err().to_string();
            assert!(said.contains("damaged or truncated"), "{said}");
        }
    }
}
