//! The tables of `docs/FORMAT.md` against the bytes that the codec writes.
//!
//! Promises: every row of a layout names a field that is encoded where the row says, the rows leave
//! nothing out, and the numbered tables count without a gap. Found wanting: the text of hole 40
//! once stood in the first metadata's table, in place of the line sequence, and nobody noticed.

use super::tests::UUID;
use super::*;

const DOCUMENT: &str = include_str!("../../../../../../docs/FORMAT.md");

/// A table: the heading above it, the cells of its head, those of its rows.
struct Table {
    heading: String,
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

/// All tables. A row that belongs to none is an error: a blank line had ended its table.
fn tables() -> Vec<Table> {
    let cells = |line: &str| -> Vec<String> {
        let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
        inner.split('|').map(|cell| cell.trim().to_string()).collect()
    };
    let mut all: Vec<Table> = Vec::new();
    let (mut heading, mut inside) = (String::new(), false);
    let lines: Vec<&str> = DOCUMENT.lines().collect();
    let mut at = 0;
    while let Some(line) = lines.get(at) {
        at += 1;
        if !line.starts_with('|') {
            inside = false;
            if line.starts_with('#') {
                heading = line.trim_start_matches(['#', ' ']).to_string();
            }
        } else if inside {
            let table = all.last_mut().expect("a table has begun");
            let row = cells(line);
            assert_eq!(row.len(), table.head.len(), "FORMAT.md:{at}: cells\n{line}");
            table.rows.push(row);
        } else {
            let below = lines.get(at).copied().unwrap_or_default();
            assert!(below.starts_with("|---"), "FORMAT.md:{at}: a row outside a table\n{line}");
            (inside, at) = (true, at + 1);
            all.push(Table { heading: heading.clone(), head: cells(line), rows: Vec::new() });
        }
    }
    all
}

/// The only table below `heading` whose last column begins with `column`.
fn table<'a>(all: &'a [Table], heading: &str, column: &str) -> &'a Table {
    let fits = |t: &&Table| {
        t.heading.starts_with(heading) && t.head.last().is_some_and(|c| c.starts_with(column))
    };
    let mut found = all.iter().filter(fits);
    let first = found.next().unwrap_or_else(|| panic!("no table of `{column}` below `{heading}`"));
    assert!(found.next().is_none(), "two tables of `{column}` below `{heading}`");
    first
}

/// Checks a layout: field by field, `fields` names what a row begins with and the bytes that stand
/// there. Rows of nothing but zeros need no entry, those of the envelope and of a CRC neither.
fn check(table: &Table, bytes: &[u8], fields: &[(&str, Vec<u8>)]) {
    check_from(0, table, bytes, fields);
}

/// [`check`] of a layout that another has the beginning of.
fn check_from(mut end: usize, table: &Table, bytes: &[u8], fields: &[(&str, Vec<u8>)]) {
    let mut left: Vec<&(&str, Vec<u8>)> = fields.iter().collect();
    for row in &table.rows {
        let [offset, size, name] = row.as_slice() else { panic!("{row:?}") };
        let place = format!("FORMAT.md, {}: `{offset} | {size} | {name}`", table.heading);
        let offset = match offset.parse() {
            Ok(offset) => offset,
            Err(_) => end, // behind a list
        };
        assert_eq!(offset, end, "{place}: the row before ends at {end}");
        // The longest: `H` is no `H...`.
        let known = left.iter().enumerate().filter(|(_, (field, _))| name.starts_with(field));
        let known = known.max_by_key(|(_, (field, _))| field.len()).map(|(index, _)| index);
        let expected = match known {
            Some(index) => left.remove(index).1.clone(),
            None => {
                let length: usize = size.parse().unwrap_or_else(|_| panic!("{place}: no size"));
                assert!(
                    ["zero", "envelope", "CRC"].iter().any(|free| name.starts_with(free)),
                    "{place}: no such field is written"
                );
                match name.starts_with("zero") {
                    true => vec![0; length],
                    false => bytes[offset..offset + length].to_vec(),
                }
            }
        };
        if let Ok(size) = size.parse::<usize>() {
            assert_eq!(size, expected.len(), "{place}: size");
        }
        end = offset + expected.len();
        assert_eq!(bytes[offset..end], expected, "{place}: what is written there");
    }
    assert!(left.is_empty(), "FORMAT.md, {}: no row for {left:?}", table.heading);
    assert!(bytes[end..].iter().all(|b| *b == 0), "{}: more is written", table.heading);
}

/// Another number for every `n`, none of its bytes zero for small ones.
fn word(n: u32) -> u32 {
    n * 0x0408_1020 + 0x0102_0304
}

fn long(n: u32) -> u64 {
    u64::from(word(n + 1)) << 32 | u64::from(word(n + 2))
}

fn le4(value: u32) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn le8(value: u64) -> Vec<u8> {
    value.to_le_bytes().to_vec()
}

fn joined(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

fn pair(n: u32) -> (SegmentPair, Vec<u8>) {
    let pair = SegmentPair { id: long(n), chunks: [word(n + 3), word(n + 4)] };
    (pair, [le8(pair.id), joined(&pair.chunks)].concat())
}

fn first() -> (LineFirst, Vec<(&'static str, Vec<u8>)>) {
    let chunks: Vec<u32> = (10..15).map(word).collect();
    let fields = vec![
        ("line id", le4(word(1))),
        ("generation", le4(word(2))),
        ("line sequence", le8(long(3))),
        ("n, number of chunks", le4(5)),
        ("chunks, in stripe order", joined(&chunks)),
    ];
    let (line, generation, sequence) = (word(1), word(2), long(3));
    (LineFirst { uuid: UUID, line, generation, sequence, chunks }, fields)
}

#[test]
fn the_envelope_is_written_as_documented() {
    let all = tables();
    let bytes = first().0.encode();
    let mut end = bytes.clone();
    end.truncate(ENVELOPE_BYTES);
    let fields = [
        ("magic", b"FLlf".to_vec()),
        ("length", le4(SECTOR_BYTES as u32)),
        ("major version, 2", MAJOR.to_le_bytes().to_vec()),
        ("minor version, 0", vec![0; 2]),
        ("uuid", UUID.to_vec()),
    ];
    let envelope = table(&all, "Envelope", "field");
    check(envelope, &end, &fields);
    let magics = [
        (Section::LineFirst, "line first"),
        (Section::LineClosing, "line closing"),
        (Section::LogBlock, "log block"),
        (Section::Anchor, "anchor"),
        (Section::Shard, "checkpoint shard"),
    ];
    for (section, name) in magics {
        let magic = section.magic().to_le_bytes();
        let said = format!("`{}` {name}", String::from_utf8_lossy(&magic));
        assert!(envelope.rows[0][2].contains(&said), "{said}");
    }
}

#[test]
fn line_metadata_is_written_as_documented() {
    let all = tables();
    let (first, fields) = first();
    check(table(&all, "First metadata", "field"), &first.encode(), &fields);

    let entries: Vec<[u8; PACKED_BYTES]> =
        (0..SECTION_ENTRIES as u64 + 7).map(|n| pack_entry(3 * n + 1, 5 * n + 1)).collect();
    let causes: [u32; CAUSES] = std::array::from_fn(|n| word(20 + n as u32));
    let header = ClosingHeader {
        generation: word(2),
        stamp_max: long(6),
        causes,
        user: word(7),
        padding: word(8),
        metadata: word(9),
        none: word(10),
        ..ClosingHeader::of(UUID, word(1), long(3), &entries)
    };
    let bytes = header.encode(&entries);
    let fields = [
        ("line id", le4(word(1))),
        ("generation", le4(word(2))),
        ("line sequence", le8(long(3))),
        ("largest stamp", le8(long(6))),
        ("number of entries", le4(entries.len() as u32)),
        ("sectors per cause", joined(&causes[..10])),
        ("entries that are user data", joined(&[word(7), word(8), word(9), word(10)])),
        ("sectors of further causes", joined(&causes[10..])),
    ];
    let of_header = table(&all, "Closing metadata", "field of the header sector");
    check(of_header, &bytes[..SECTOR_BYTES], &fields);
    // The second entry sector is the one with a number and with unused room.
    let (filled, tail) = entries.split_at(SECTION_ENTRIES);
    let unused = vec![pack_entry(LBA_NONE, 0); SECTION_ENTRIES - tail.len()];
    let of_entries = table(&all, "Closing metadata", "field of an entry sector");
    for (number, entries) in [(0, filled.to_vec()), (1, [tail.to_vec(), unused].concat())] {
        let start = (1 + number as usize) * SECTOR_BYTES;
        let fields = [
            ("which entry sector", le4(number)),
            ("line sequence", le8(long(3))),
            ("entries", entries.into_flattened()),
        ];
        check(of_entries, &bytes[start..start + SECTOR_BYTES], &fields);
    }
}

#[test]
fn the_log_is_written_as_documented() {
    let all = tables();
    let (generation, sectors, first_sequence, segment) = (word(1), 2, long(2), long(3));
    let (uuid, tells) = (UUID, true);
    let header = LogBlockHeader { uuid, generation, sectors, first_sequence, segment, tells };
    let mut builder = LogBlockBuilder::new(header);
    let record = Record::Ceiling { stamp: long(4) };
    builder.push(&record).expect("it fits");
    let bytes = builder.finish();
    assert_eq!(bytes[MINOR_AT], MINOR_TELLS as u8, "of such a target");
    let used = 64 + record.encoded_len();
    let of_block = table(&all, "Blocks", "field of a block");
    let mut fields = vec![
        ("generation", le4(generation)),
        ("sectors of the block", le4(sectors)),
        ("sequence of the first record", le8(first_sequence)),
        ("bytes in use", le4(used as u32)),
        ("number of records", le4(1)),
        ("id of the segment pair", le8(segment)),
        ("records, back to back", bytes[64..used].to_vec()),
    ];
    check(of_block, &bytes, &fields);
    fields = vec![
        ("length, header included", le4(record.encoded_len() as u32)),
        ("generation", le4(generation)),
        ("type", vec![8]),
        ("sequence", le8(first_sequence)),
        ("payload", le8(long(4))),
    ];
    check(table(&all, "Blocks", "field of a record"), &bytes[64..used], &fields);

    let ((current, of_current), (oldest, of_oldest)) = (pair(5), pair(9));
    let anchor = Anchor { uuid: UUID, counter: long(1), generation, current, oldest };
    let fields = [
        ("counter", le8(long(1))),
        ("generation", le4(generation)),
        ("pair the log was in", of_current),
        ("oldest pair still needed", of_oldest),
    ];
    let of_anchor = table(&all, "Segments and the anchor", "field of an anchor");
    check(of_anchor, &anchor.encode(), &fields);
}

#[test]
fn a_shard_is_written_as_documented() {
    let all = tables();
    let lba = long(4) % 1000;
    for (width, poison) in [(EntryWidth::Four, vec![0xff; 4]), (EntryWidth::Eight, vec![0xff; 8])] {
        let header = ShardHeader {
            uuid: UUID,
            checkpoint: long(1),
            shard: word(2),
            width,
            lba,
            position: long(5),
            floor: long(6),
            open_sequence: long(7),
            generation: word(8),
        };
        let address = |n: u32| ShardEntry::Media(u64::from(word(n)));
        let entries = [ShardEntry::Poisoned, address(10), ShardEntry::Unmapped];
        let bytes = header.encode(&entries, &[(lba, 77), (lba + 2, 99)]);
        let mut mapped = u64::from(word(10) + 1).to_le_bytes().to_vec();
        mapped.truncate(width.bytes());
        let words = [poison, mapped, vec![0; width.bytes()]].concat();
        let fields = [
            ("checkpoint id", le8(long(1))),
            ("shard index", le4(word(2))),
            ("bytes per entry, 4 or 8", vec![width.bytes() as u8]),
            ("0: entries", vec![0]),
            ("first logical sector", le8(lba)),
            ("n, number of entries", le4(3)),
            ("p, number of listed stamps", le4(2)),
            ("log position", le8(long(5))),
            ("H: discard floor", le8(long(6))),
            ("lowest line sequence", le8(long(7))),
            ("generation", le4(word(8))),
            ("entries", words),
            ("listed (lba, stamp)", [pack_entry(lba, 77), pack_entry(lba + 2, 99)].concat()),
        ];
        check(table(&all, "5. Checkpoint shard", "field of a shard"), &bytes, &fields);

        // The same as runs, in a stripe of two chunks.
        let stripes = Stripes { unit: 1, chunk_sectors: word(12) };
        let chunks = |_| Some(vec![7, 0]);
        let runs = Runs::find(&words_of(&bytes, width), width, stripes, usize::MAX, chunks);
        let bytes = header.encode_runs(&runs.expect("runs"), &[(lba, 77), (lba + 2, 99)]);
        let at = 2 * word(10) + 1;
        let expected = [[1, u32::MAX - 1, 0], [1, 0, at], [1, u32::MAX, 0]];
        let fields = [
            ("sectors of a write unit", le4(1)),
            ("sectors of a chunk", le4(word(12))),
            ("w, words of stripes", le4(3)),
            ("r, number of runs", le4(3)),
            ("stripes, each", joined(&[2, 7, 0])),
            ("runs, each", joined(expected.as_flattened())),
            ("listed (lba, stamp)", [pack_entry(lba, 77), pack_entry(lba + 2, 99)].concat()),
        ];
        let of_runs = table(&all, "5. Checkpoint shard", "field instead, of a shard of runs");
        check_from(92, of_runs, &bytes, &fields);
        assert_eq!(bytes[45], 1);
    }
}

fn words_of(bytes: &[u8], width: EntryWidth) -> Vec<u8> {
    bytes[128..128 + 3 * width.bytes()].to_vec()
}

/// Out-of-band records: bits, and the types that a lba can be.
#[test]
fn out_of_band_records_are_written_as_documented() {
    let all = tables();
    let oob = |lba, stamp| u128::from_le_bytes(Oob::encode_raw(lba, stamp, 0));
    let record = oob(LBA_MASK, 0) & ((1 << 96) - 1);
    let bits = |set: u128| (set.trailing_zeros(), 128 - set.leading_zeros(), set.count_ones());
    let of = |from: u32, to: u32| (from, to, to - from);
    assert_eq!(bits(record), of(0, LBA_BITS));
    assert_eq!(bits(oob(0, STAMP_MAX) & ((1 << 96) - 1)), of(LBA_BITS, LBA_BITS + STAMP_BITS));
    let rows: Vec<&str> = all
        .iter()
        .find(|t| t.head[0] == "bits")
        .expect("a table of bits")
        .rows
        .iter()
        .map(|row| row[0].as_str())
        .collect();
    let stamp_end = LBA_BITS + STAMP_BITS;
    let expected = [(0, LBA_BITS), (LBA_BITS, stamp_end), (stamp_end, 128)];
    assert_eq!(rows, expected.map(|(from, to)| format!("{from} .. {to}")));

    let types = table(&all, "2. Out-of-band record", "type");
    let expected = [
        (LBA_NONE, "nothing"),
        (LBA_PADDING, "padding"),
        (LBA_LINE_FIRST, "line first metadata"),
        (LBA_LINE_CLOSING, "line closing metadata"),
        (LBA_LOG, "FTL log"),
        (LBA_ANCHOR, "anchor"),
        (LBA_CHECKPOINT, "checkpoint shard"),
        (LBA_SNAPSHOT, "a sector of a block SSD's snapshot"),
    ];
    for (row, (lba, name)) in types.rows.iter().zip(expected) {
        assert_eq!(row[0], format!("2^36 − {}", (1u64 << LBA_BITS) - lba), "{name}");
        assert!(row[1].starts_with(name), "{row:?}: {name}");
    }
    assert_eq!(types.rows.len(), expected.len() + 1, "and the others");
}

/// Each record's type, and the bytes of its payload: `line 4, sequence 8, n 4, chunk 4 × n`.
#[test]
fn records_are_written_as_documented() {
    let all = tables();
    let next = SegmentPair::default();
    let (line, sequence, lba, stamp, checkpoint) = (1, 2, 3, 4, 5);
    let shard = |written| Record::CheckpointShard {
        checkpoint,
        written,
        shard: 1,
        lba,
        count: 1,
        places: [Extent::default(); 2],
        position: 1,
        floor: 1,
        open_sequence: 1,
    };
    let records = [
        ("started", Record::Started),
        ("opened", Record::Opened { line, sequence, chunks: vec![] }),
        ("closed", Record::Closed { line, sequence, places: vec![] }),
        ("freed", Record::Freed { line, sequence }),
        ("retired", Record::Retired { chunk: 1 }),
        ("discarded", Record::Discarded { lba, count: 1, stamp }),
        ("poisoned", Record::Poisoned { lba, stamp }),
        ("ceiling", Record::Ceiling { stamp }),
        ("checkpoint shard", shard(checkpoint)),
        ("checkpoint complete", Record::CheckpointComplete { checkpoint, shards: 1, position: 1 }),
        ("config", Record::Config { bytes: vec![] }),
        ("segment", Record::Segment { next }),
        ("stopped", Record::Stopped { checkpoint }),
        ("follows", Record::Follows { previous: next }),
        ("frontier", Record::Frontier { line, sequence, pointers: vec![] }),
        ("checkpoint shard, older", shard(checkpoint - 1)),
        ("written", Record::Written { line, sequence, chunk: 1, sector: 1, entries: vec![] }),
    ];
    let rows = &table(&all, "Blocks", "payload (bytes)").rows;
    assert_eq!(rows.len(), records.len());
    for (row, (name, record)) in rows.iter().zip(records) {
        let mut bytes = Vec::new();
        encode_record(&record, 1, 1, &mut bytes);
        assert_eq!((&row[0], &row[1]), (&bytes[12].to_string(), &name.to_string()));
        if matches!(record, Record::Config { .. }) {
            assert!(row[2].contains(&format!("at most {CONFIG_BYTES_MAX} bytes")), "{row:?}");
            continue;
        }
        // Words that end in a number are fields; what is multiplied has no elements here.
        let payload = row[2].split([';', '(']).next().unwrap_or_default();
        let fields = payload.split([',', ':']).filter(|field| !field.contains('×'));
        let size = |field: &str| field.split_whitespace().last()?.parse::<usize>().ok();
        let said: usize = fields.filter_map(size).sum();
        assert_eq!(said, bytes.len() - 24, "FORMAT.md: {row:?}");
    }
}

/// Order rules and holes count from 1, each once, in one table: what one of them says elsewhere has
/// overwritten something, and a blank line ends a table.
#[test]
fn rules_and_holes_are_numbered_without_a_gap() {
    let all = tables();
    for (heading, column, count) in [("8. Order rules", "rule", 24), ("9. Holes", "closed by", 40)]
    {
        let rows = &table(&all, heading, column).rows;
        let numbers: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
        let expected: Vec<String> = (1..=count.max(rows.len())).map(|n| n.to_string()).collect();
        assert_eq!(numbers, expected, "{heading}");
    }
}
