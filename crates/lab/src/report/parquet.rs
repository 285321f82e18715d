//! Rows as Parquet.
//!
//! Owns: the schema that rows have, the file. Promises: the columns and values of the CSV, typed
//! (INT64, DOUBLE, BOOLEAN, UTF8; a number that is not there is null); the same rows give the same
//! bytes. Never: writes anywhere but into memory.

use super::columns::{Cell, Named};
use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DoubleType, Int64Type};
use parquet::errors::Result;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::types::Type;
use std::sync::Arc;

/// Rows that all have the columns of the first as a Parquet file. Without rows: no column.
pub(crate) fn parquet(rows: &[Vec<Named>]) -> Vec<u8> {
    write(rows).expect("columns of one type, written to memory in the order of the schema")
}

fn write(rows: &[Vec<Named>]) -> Result<Vec<u8>> {
    let first = rows.first().map_or(&[][..], |row| row);
    let fields: Result<Vec<Arc<Type>>> =
        first.iter().map(|(name, cell)| field(name, cell)).collect();
    let schema = Type::group_type_builder("flashlane").with_fields(fields?).build()?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_created_by(concat!("flashlane ", env!("CARGO_PKG_VERSION")).into())
        .build();
    let mut file = Vec::new();
    let mut writer = SerializedFileWriter::new(&mut file, Arc::new(schema), Arc::new(properties))?;
    if !rows.is_empty() {
        let mut group = writer.next_row_group()?;
        let mut at = 0;
        while let Some(mut column) = group.next_column()? {
            let cells = rows.iter().map(|row| &row[at].1);
            match &first[at].1 {
                Cell::Int(_) => {
                    // Counters and times of a run stay far below 2^63.
                    let of =
                        |c: &Cell| if let Cell::Int(n) = c { n.map(|n| n as i64) } else { None };
                    let (there, values) = present(cells.map(of));
                    column.typed::<Int64Type>().write_batch(&values, Some(&there), None)?;
                }
                Cell::Ratio(_) => {
                    let of = |c: &Cell| if let Cell::Ratio(r) = c { *r } else { None };
                    let (there, values) = present(cells.map(of));
                    column.typed::<DoubleType>().write_batch(&values, Some(&there), None)?;
                }
                Cell::Text(_) => {
                    let of = |c: &Cell| match c {
                        Cell::Text(t) => ByteArray::from(t.as_str()),
                        _ => ByteArray::from(""),
                    };
                    let values: Vec<ByteArray> = cells.map(of).collect();
                    column.typed::<ByteArrayType>().write_batch(&values, None, None)?;
                }
                Cell::Bool(_) => {
                    let values: Vec<bool> = cells.map(|c| *c == Cell::Bool(true)).collect();
                    column.typed::<BoolType>().write_batch(&values, None, None)?;
                }
            }
            column.close()?;
            at += 1;
        }
        group.close()?;
    }
    writer.close()?;
    Ok(file)
}

/// Which values are there, and those.
fn present<T>(all: impl Iterator<Item = Option<T>>) -> (Vec<i16>, Vec<T>) {
    let (mut there, mut values) = (Vec::new(), Vec::new());
    for value in all {
        there.push(i16::from(value.is_some()));
        values.extend(value);
    }
    (there, values)
}

fn field(name: &str, cell: &Cell) -> Result<Arc<Type>> {
    let (physical, repetition) = match cell {
        Cell::Int(_) => (Physical::INT64, Repetition::OPTIONAL),
        Cell::Ratio(_) => (Physical::DOUBLE, Repetition::OPTIONAL),
        Cell::Text(_) => (Physical::BYTE_ARRAY, Repetition::REQUIRED),
        Cell::Bool(_) => (Physical::BOOLEAN, Repetition::REQUIRED),
    };
    let mut builder = Type::primitive_type_builder(name, physical).with_repetition(repetition);
    if physical == Physical::BYTE_ARRAY {
        builder = builder.with_logical_type(Some(LogicalType::String));
    }
    Ok(Arc::new(builder.build()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use parquet::file::reader::{FileReader, SerializedFileReader};
    use std::io::Write;

    fn file_of(bytes: &[u8]) -> std::fs::File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn row(name: &str, n: u64, ratio: Option<f64>, steady: bool) -> Vec<Named> {
        vec![
            ("name".into(), Cell::Text(name.into())),
            ("requests".into(), Cell::Int((n < 8).then_some(n))),
            ("write_amplification_ratio".into(), Cell::Ratio(ratio)),
            ("steady".into(), Cell::Bool(steady)),
        ]
    }

    #[test]
    fn what_was_written_is_read_back_by_the_library() {
        let rows = [row("pblk", 7, Some(1.25), true), row("block \"SSD\"", 8, None, false)];
        let file = parquet(&rows);
        assert_eq!(file, parquet(&rows), "the same rows, the same bytes");
        let reader = SerializedFileReader::new(file_of(&file)).unwrap();
        let read: Vec<String> =
            reader.get_row_iter(None).unwrap().map(|r| r.unwrap().to_string()).collect();
        let want = [
            "{name: \"pblk\", requests: 7, write_amplification_ratio: 1.25, steady: true}",
            "{name: \"block \"SSD\"\", requests: null, write_amplification_ratio: null, steady: false}",
        ];
        assert_eq!(read, want);
    }

    #[test]
    fn a_run_without_rows_is_still_a_file() {
        let reader = SerializedFileReader::new(file_of(&parquet(&[]))).unwrap();
        assert_eq!(reader.metadata().file_metadata().num_rows(), 0);
    }
}
