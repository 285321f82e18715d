//! Attacks on the codec: round trips, every single-bit flip, arbitrary bytes, and the worked
//! examples of `docs/FORMAT.md` byte for byte.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

pub(super) const UUID: Uuid = *b"flashlane-uuid-0";

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

// ---- values ----------------------------------------------------------------------------------

fn any_lba() -> impl Strategy<Value = u64> {
    prop_oneof![0..LBA_LIMIT, 0..64u64, (LBA_LIMIT - 4)..LBA_LIMIT]
}

fn any_stamp() -> impl Strategy<Value = u64> {
    prop_oneof![0..=STAMP_MAX, 0..1000u64, (STAMP_MAX - 4)..=STAMP_MAX]
}

fn any_extent() -> impl Strategy<Value = Extent> {
    any::<(u32, u32, u32)>().prop_map(|(chunk, sector, count)| Extent { chunk, sector, count })
}

fn any_pair() -> impl Strategy<Value = SegmentPair> {
    (1..=u64::MAX, any::<[u32; 2]>()).prop_map(|(id, chunks)| SegmentPair { id, chunks })
}

fn any_record() -> impl Strategy<Value = Record> {
    let line = any::<(u32, u64)>();
    let shard =
        (any::<(u64, u32, u32, u64, u64)>(), any_lba(), [any_extent(), any_extent()], any_stamp());
    // An older one, in half of the cases.
    let written = |checkpoint: u64, odd: bool| if odd { checkpoint / 2 } else { checkpoint };
    prop_oneof![
        Just(Record::Started),
        (line, vec(any::<u32>(), 0..200)).prop_map(|((line, sequence), chunks)| Record::Opened {
            line,
            sequence,
            chunks
        }),
        (line, vec(any_extent(), 0..60)).prop_map(|((line, sequence), places)| Record::Closed {
            line,
            sequence,
            places
        }),
        line.prop_map(|(line, sequence)| Record::Freed { line, sequence }),
        any::<u32>().prop_map(|chunk| Record::Retired { chunk }),
        (any_lba(), any::<u64>(), any_stamp()).prop_map(|(lba, count, stamp)| {
            Record::Discarded { lba, count: count % (LBA_LIMIT - lba + 1), stamp }
        }),
        (any_lba(), any_stamp()).prop_map(|(lba, stamp)| Record::Poisoned { lba, stamp }),
        any_stamp().prop_map(|stamp| Record::Ceiling { stamp }),
        shard.prop_map(
            move |((checkpoint, shard, count, position, open_sequence), lba, places, floor)| {
                Record::CheckpointShard {
                    checkpoint,
                    written: written(checkpoint, count % 2 == 1),
                    shard,
                    lba,
                    count,
                    places,
                    position,
                    floor,
                    open_sequence,
                }
            }
        ),
        any::<(u64, u32, u64)>().prop_map(|(checkpoint, shards, position)| {
            Record::CheckpointComplete { checkpoint, shards, position }
        }),
        vec(any::<u8>(), 0..=CONFIG_BYTES_MAX).prop_map(|bytes| Record::Config { bytes }),
        any_pair().prop_map(|next| Record::Segment { next }),
        any_pair().prop_map(|previous| Record::Follows { previous }),
        (any::<(u32, u64)>(), vec(any::<u32>(), 0..40))
            .prop_map(|((line, sequence), pointers)| Record::Frontier { line, sequence, pointers }),
        any::<u64>().prop_map(|checkpoint| Record::Stopped { checkpoint }),
        (line, any::<[u32; 2]>(), vec(any::<[u8; PACKED_BYTES]>(), 0..80)).prop_map(
            |((line, sequence), [chunk, sector], entries)| Record::Written {
                line,
                sequence,
                chunk,
                sector,
                entries
            }
        ),
    ]
}

fn any_first() -> impl Strategy<Value = LineFirst> {
    (any::<(Uuid, u32, u32, u64)>(), vec(any::<u32>(), 0..2100)).prop_map(
        |((uuid, line, generation, sequence), chunks)| LineFirst {
            uuid,
            line,
            generation,
            sequence,
            chunks,
        },
    )
}

fn any_entries() -> impl Strategy<Value = Vec<[u8; PACKED_BYTES]>> {
    let lba = prop_oneof![any_lba(), Just(LBA_PADDING), Just(LBA_NONE), Just(LBA_LINE_FIRST)];
    vec((lba, any_stamp()).prop_map(|(lba, stamp)| pack_entry(lba, stamp)), 0..1100)
}

fn any_closing() -> impl Strategy<Value = (ClosingHeader, Vec<[u8; PACKED_BYTES]>)> {
    (any_entries(), any::<(Uuid, u32, u32, u64, [u32; CAUSES])>()).prop_map(
        |(entries, (uuid, line, generation, sequence, causes))| {
            let mut header = ClosingHeader::of(uuid, line, sequence, &entries);
            header.generation = generation;
            header.causes = causes;
            (header, entries)
        },
    )
}

type AnyShard = (ShardHeader, Vec<ShardEntry>, Vec<(u64, u64)>);

fn any_shard() -> impl Strategy<Value = AnyShard> {
    let fields = any::<(Uuid, u64, u32, bool, u64, u64, u32)>();
    let entry = prop_oneof![
        Just(ShardEntry::Unmapped),
        Just(ShardEntry::Poisoned),
        any::<u64>().prop_map(ShardEntry::Media)
    ];
    let entries = vec((entry, any_stamp()), 0..600);
    (fields, 0..LBA_LIMIT - 600, any_stamp(), entries).prop_map(|(fields, lba, floor, drawn)| {
        let (uuid, checkpoint, shard, wide, position, open_sequence, generation) = fields;
        let width = if wide { EntryWidth::Eight } else { EntryWidth::Four };
        let header = ShardHeader {
            uuid,
            checkpoint,
            shard,
            width,
            lba,
            position,
            floor,
            open_sequence,
            generation,
        };
        let mut stamps = Vec::new();
        let mut entries = Vec::new();
        for (index, (entry, stamp)) in drawn.into_iter().enumerate() {
            entries.push(match entry {
                ShardEntry::Media(address) => {
                    ShardEntry::Media(address % (width.address_max().saturating_add(1)))
                }
                other => other,
            });
            let pending = entry == ShardEntry::Unmapped && stamp % 2 == 0;
            if pending || entry == ShardEntry::Poisoned {
                stamps.push((lba + index as u64, stamp));
            }
        }
        (header, entries, stamps)
    })
}

fn block(first_sequence: u64, generation: u32, sectors: u32, records: &[Record]) -> Vec<u8> {
    let (uuid, segment, tells) = (UUID, 7, false);
    let header = LogBlockHeader { uuid, generation, sectors, first_sequence, segment, tells };
    let mut builder = LogBlockBuilder::new(header);
    for record in records {
        builder.push(record).expect("the test's records fit");
    }
    builder.finish()
}

// ---- round trips -----------------------------------------------------------------------------

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// What is packed into 12 bytes comes back, whatever the 96 bits are.
    #[test]
    fn packed_entries_round_trip(lba in 0..=LBA_MASK, stamp in any_stamp()) {
        prop_assert_eq!(unpack_entry(&pack_entry(lba, stamp)), (lba, stamp));
        prop_assert_eq!(OobLba::from_raw(lba).raw(), lba);
    }

    /// An out-of-band record verifies with its own content and gives back lba and stamp.
    #[test]
    fn oob_round_trips(lba in 0..=LBA_MASK, stamp in any_stamp(), content: Vec<u8>) {
        let oob = Oob::encode_raw(lba, stamp, Oob::content_crc(&content));
        prop_assert_eq!(Oob::decode_raw(&oob).0, lba);
        prop_assert_eq!(Oob::decode_raw(&oob).1, stamp);
        prop_assert_eq!(Oob::decode(&oob).0, OobLba::from_raw(lba));
        prop_assert!(Oob::verify(&oob, &content));
        prop_assert!(Oob::verify_for(&oob, lba, &content));
        prop_assert!(!Oob::verify_for(&oob, lba ^ 1, &content));
    }

    /// The short CRC of the data path is the CRC32C that everyone computes.
    #[test]
    fn oob_crc_is_crc32c(lba in 0..=LBA_MASK, stamp in any_stamp(), content: u64, crc: u32) {
        let oob = Oob::encode_raw(lba, stamp, crc);
        let expected = flashlane_base::crc32c_append(crc, &pack_entry(lba, stamp));
        prop_assert_eq!(Oob::decode_raw(&oob).2, expected);
        prop_assert_eq!(Oob::content_crc_word(content), Oob::content_crc(&content.to_le_bytes()));
    }

    #[test]
    fn line_first_round_trips(first in any_first()) {
        let bytes = first.encode();
        prop_assert_eq!(bytes.len(), LineFirst::sectors_needed(first.chunks.len()) * SECTOR_BYTES);
        prop_assert_eq!(LineFirst::decode(&bytes), Ok(first));
    }

    #[test]
    fn line_closing_round_trips((header, entries) in any_closing()) {
        let bytes = header.encode(&entries);
        prop_assert_eq!(bytes.len(), closing_sectors(entries.len()) * SECTOR_BYTES);
        let (read, view) = ClosingView::decode(&bytes).expect("decodes");
        prop_assert_eq!(read, header);
        prop_assert_eq!(view.check(), Ok(()));
        prop_assert_eq!(view.len(), entries.len());
        for (index, entry) in entries.iter().enumerate() {
            prop_assert_eq!(view.entry(index), unpack_entry(entry));
        }
        let sections = (0..view.sections()).flat_map(|index| view.section(index).1.iter().copied());
        prop_assert_eq!(sections.collect::<Vec<_>>(), entries);
    }

    #[test]
    fn records_round_trip(record in any_record(), generation: u32, sequence: u64) {
        let mut bytes = vec![0xaa; 5];
        encode_record(&record, generation, sequence, &mut bytes);
        prop_assert_eq!(bytes.len(), 5 + record.encoded_len());
        let length = record.encoded_len();
        bytes.extend_from_slice(&[0x55; 9]);
        let entry = LogEntry { generation, sequence, record };
        prop_assert_eq!(decode_record(&bytes[5..]), Ok((entry, length)));
    }

    #[test]
    fn log_blocks_round_trip(records in vec(any_record(), 0..9), generation: u32) {
        let bytes = block(1000, generation, 16, &records);
        prop_assert_eq!(bytes.len(), 16 * SECTOR_BYTES);
        let read = LogBlock::decode(&bytes).expect("decodes");
        prop_assert_eq!(read.header().first_sequence, 1000);
        prop_assert_eq!(read.header().generation, generation);
        let read: Result<Vec<_>, _> = read.collect();
        let expected = records.into_iter().zip(1000..);
        let expected = expected.map(|(record, sequence)| LogEntry { generation, sequence, record });
        prop_assert_eq!(read, Ok(expected.collect::<Vec<_>>()));
    }

    #[test]
    fn anchors_round_trip(
        counter: u64,
        generation: u32,
        current in any_pair(),
        oldest in any_pair(),
    ) {
        let (oldest, current) = (oldest.min(current), oldest.max(current));
        let anchor = Anchor { uuid: UUID, counter, generation, current, oldest };
        prop_assert_eq!(Anchor::decode(&anchor.encode()), Ok(anchor));
    }

    #[test]
    fn shards_round_trip((header, entries, stamps) in any_shard()) {
        let bytes = header.encode(&entries, &stamps);
        let length = ShardHeader::encoded_len(header.width, entries.len(), stamps.len());
        prop_assert_eq!(bytes.len(), length);
        let view = ShardView::decode(&bytes).expect("decodes");
        prop_assert_eq!(view.header(), &header);
        prop_assert_eq!(view.entries().collect::<Vec<_>>(), entries.clone());
        prop_assert_eq!(view.stamps().collect::<Vec<_>>(), stamps.clone());
        for index in 0..entries.len() {
            let listed = stamps.iter().find(|(lba, _)| *lba == header.lba + index as u64);
            prop_assert_eq!(view.stamp(index), listed.map_or(header.floor, |(_, stamp)| *stamp));
        }
        prop_assert_eq!(view.entry(view.len()), None);
    }

    /// A shard of runs says what the one of its entries says, whatever is said of the order of its chunks.
    #[test]
    fn shards_of_runs_round_trip(
        (header, pieces, stamps) in any_runs(),
        (unit, rows) in (1..9u32, 1..9u32),
        lists in vec(vec(0..24u32, 1..6), 0..4),
    ) {
        let stripes = Stripes { unit, chunk_sectors: unit * rows };
        let entries = entries_of(stripes, &pieces);
        let stamps: Vec<_> = stamps
            .into_iter()
            .filter(|(at, _)| entries.get(*at as usize).is_some_and(|e| *e == ShardEntry::Unmapped))
            .map(|(at, stamp)| (header.lba + at, stamp))
            .collect();
        let words: Vec<u8> = entries
            .iter()
            .flat_map(|entry| match entry {
                ShardEntry::Unmapped => [0; 8],
                ShardEntry::Poisoned => [0xff; 8],
                ShardEntry::Media(address) => (address + 1).to_le_bytes(),
            })
            .collect();
        let words: Vec<u8> = match header.width {
            EntryWidth::Eight => words,
            EntryWidth::Four => words.chunks(8).flat_map(|word| word[..4].to_vec()).collect(),
        };
        let of = |chunk: u32| lists.iter().find(|list| list.contains(&chunk)).cloned();
        let runs = Runs::find(&words, header.width, stripes, usize::MAX, of);
        let runs = runs.expect("however many bytes");
        let bytes = header.encode_runs(&runs, &stamps);
        prop_assert_eq!(bytes.len(), ShardHeader::encoded_runs_len(&runs, stamps.len()));
        let view = ShardView::decode(&bytes).expect("decodes");
        prop_assert_eq!(view.header(), &header);
        prop_assert_eq!((view.len(), view.is_empty()), (entries.len(), entries.is_empty()));
        prop_assert_eq!(view.entries().collect::<Vec<_>>(), entries.clone());
        prop_assert_eq!(view.stamps().collect::<Vec<_>>(), stamps);
        for index in 0..=entries.len() {
            prop_assert_eq!(view.entry(index), entries.get(index).copied());
        }
        let least = bytes.len() - SECTOR_BYTES;
        prop_assert!(Runs::find(&words, header.width, stripes, least / 64, of).is_none_or(
            |shorter| shorter == runs
        ));
    }
}

/// Pieces of a shard: how many entries, what of, from where on.
type Pieces = Vec<(u32, u8, u32)>;

fn any_runs() -> impl Strategy<Value = (ShardHeader, Pieces, Vec<(u64, u64)>)> {
    let pieces = vec((1..40u32, 0..6u8, 0..1000u32), 0..12);
    let stamps = vec((0..300u64, any_stamp()), 0..5).prop_map(|mut stamps| {
        stamps.sort_unstable();
        stamps.dedup_by_key(|stamp| stamp.0);
        stamps
    });
    (any_shard(), pieces, stamps)
        .prop_map(|((header, ..), pieces, stamps)| (header, pieces, stamps))
}

/// The entries of pieces: unmapped, poisoned, ascending sectors, and sectors that go round three chunks.
fn entries_of(Stripes { unit, chunk_sectors }: Stripes, pieces: &Pieces) -> Vec<ShardEntry> {
    let mut entries = Vec::new();
    for (n, kind, from) in pieces.iter().copied() {
        let round = |i: u32| {
            let (at, rest) = ((from + i) / unit, (from + i) % unit);
            let sector = at / 3 * unit + rest;
            u64::from([2, 17, 5][(at % 3) as usize] * chunk_sectors + sector % chunk_sectors)
        };
        entries.extend((0..n).map(|i| match kind {
            0 => ShardEntry::Unmapped,
            1 => ShardEntry::Poisoned,
            2 | 3 => ShardEntry::Media(u64::from(from + i)),
            _ => ShardEntry::Media(round(i)),
        }));
    }
    entries
}

/// What is filled in order is a run, however its line goes round the chunks; a few bytes that claim to be more
/// entries than a vector holds are refused, and so are runs of too few entries, or beyond their stripe.
#[test]
fn a_shard_that_was_filled_in_order_is_one_run() {
    let stripes = Stripes { unit: 16, chunk_sectors: 256 };
    let chunks: Vec<u32> = (0..64).map(|pu| pu * 256 + pu % 7).collect();
    let address = |at: u64| {
        let (unit, row) = (at / 16, at / 16 / 64);
        u64::from(chunks[(unit % 64) as usize]) * 256 + row * 16 + at % 16
    };
    let words: Vec<u8> =
        (40..16_000).flat_map(|at| (address(at) as u32 + 1).to_le_bytes()).collect();
    let header = golden_shard().0;
    let find = |most| {
        let of = |chunk| chunks.contains(&chunk).then(|| chunks.clone());
        Runs::find(&words, EntryWidth::Four, stripes, most, of)
    };
    assert!(find(4 * 65 + 11).is_none() && find(4 * 65 + 12).is_some());
    let bytes = header.encode_runs(&find(usize::MAX).expect("one run"), &[]);
    assert_eq!(bytes.len(), SECTOR_BYTES);
    let entries: Vec<_> = ShardView::decode(&bytes).expect("a shard").entries().collect();
    let expected: Vec<_> = (40..16_000).map(|at| ShardEntry::Media(address(at))).collect();
    assert_eq!(entries, expected);
    // Entries of the shard; of the run; where it begins.
    let run = 128 + 4 * 65;
    for (at, word) in
        [(56, u32::MAX), (56, 15_959), (run, 15_961), (run, 0), (run + 4, 1), (run + 8, 430)]
    {
        let mut forged = bytes.clone();
        forged[at..at + 4].copy_from_slice(&word.to_le_bytes());
        seal(&mut forged, SECTOR_BYTES);
        assert!(
            matches!(ShardView::decode(&forged), Err(FormatError::Field { .. })),
            "{at}: {word}"
        );
    }
}

// ---- damage ----------------------------------------------------------------------------------

/// Every decoder over the same bytes: none may panic. Returns how many accepted them.
fn decode_all(bytes: &[u8]) -> usize {
    let mut accepted = 0;
    accepted += usize::from(LineFirst::decode(bytes).is_ok());
    if let Ok((_, view)) = ClosingView::decode(bytes) {
        accepted += 1;
        let _ = view.check();
        let _ = (0..view.len().min(5000)).map(|index| view.entry(index).1).max();
    }
    accepted += usize::from(decode_record(bytes).is_ok());
    if let Ok(block) = LogBlock::decode(bytes) {
        accepted += 1;
        block.for_each(drop);
    }
    accepted += usize::from(Anchor::decode(bytes).is_ok());
    if let Ok(view) = ShardView::decode(bytes) {
        accepted += 1;
        view.entries().for_each(drop);
        view.stamps().for_each(drop);
        let _ = (view.stamp(0), view.stamp(usize::MAX >> 1));
    }
    let _ = (identify(bytes), is_newer_minor(bytes));
    accepted
}

/// Gives a block whose body is anything a correct envelope, so that the body's parser is reached.
fn sealed(section: Section, body: &[u8], length: usize) -> Vec<u8> {
    let mut bytes = open_block(section, &UUID, length);
    bytes.extend_from_slice(body);
    bytes.resize(length.max(bytes.len()), 0);
    let length = length.clamp(ENVELOPE_BYTES, bytes.len());
    seal(&mut bytes, length);
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 0..9000)) {
        prop_assert_eq!(decode_all(&bytes), 0);
    }

    /// The same behind a correct magic, length and CRC: the inner checks stand alone.
    #[test]
    fn arbitrary_bodies_never_panic(body in vec(any::<u8>(), 0..300), length in 0..9000usize) {
        for section in [
            Section::LineFirst,
            Section::LineClosing,
            Section::LogBlock,
            Section::Anchor,
            Section::Shard,
        ] {
            decode_all(&sealed(section, &body, length));
        }
    }

    /// Any record body behind a correct CRC is an error or a record that encodes back.
    #[test]
    fn arbitrary_record_bodies_are_refused_or_exact(kind: u8, payload in vec(any::<u8>(), 0..120)) {
        let mut bytes = vec![0; 4];
        put_u32(&mut bytes, 24 + payload.len() as u32);
        put_u32(&mut bytes, 3);
        bytes.extend_from_slice(&[kind, 0, 0, 0]);
        put_u64(&mut bytes, 9);
        bytes.extend_from_slice(&payload);
        let crc = flashlane_base::crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        match decode_record(&bytes) {
            Ok((entry, length)) => {
                let mut again = Vec::new();
                encode_record(&entry.record, entry.generation, entry.sequence, &mut again);
                prop_assert_eq!(length, bytes.len());
                prop_assert_eq!(again, bytes);
            }
            Err(FormatError::UnknownRecord { kind: found, .. }) => {
                prop_assert!(kind == 0 || kind > 16);
                prop_assert_eq!(found, kind);
            }
            Err(error) => prop_assert!(!error.to_string().is_empty()),
        }
    }
}

/// Flips each bit of `bytes` in turn and hands the damaged copy over.
fn each_flip(bytes: &[u8], mut check: impl FnMut(usize, &[u8])) {
    let mut damaged = bytes.to_vec();
    for bit in 0..bytes.len() * 8 {
        damaged[bit / 8] ^= 1 << (bit % 8);
        check(bit, &damaged);
        damaged[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn every_flip_of_oob_or_content_is_detected() {
    let content = [0x5a; 64];
    let oob = Oob::encode(OobLba::User(6), 21, Oob::content_crc(&content));
    let mut both = oob.to_vec();
    both.extend_from_slice(&content);
    each_flip(&both, |bit, damaged| {
        let (oob, content) = damaged.split_first_chunk().expect("16 bytes of OOB");
        assert!(!Oob::verify(oob, content), "bit {bit}");
    });
}

#[test]
fn every_flip_of_a_line_first_or_anchor_is_detected() {
    let first = LineFirst { uuid: UUID, line: 3, generation: 2, sequence: 9, chunks: vec![1, 2] };
    each_flip(&first.encode(), |bit, damaged| {
        assert!(LineFirst::decode(damaged).is_err(), "bit {bit}");
    });
    each_flip(&golden_anchor().encode(), |bit, damaged| {
        assert!(Anchor::decode(damaged).is_err(), "bit {bit}");
    });
}

#[test]
fn every_flip_of_closing_metadata_is_detected_where_it_is() {
    let entries = vec![pack_entry(5, 77); SECTION_ENTRIES + 1];
    let bytes = ClosingHeader::of(UUID, 3, 9, &entries).encode(&entries);
    each_flip(&bytes, |bit, damaged| match ClosingView::decode(damaged) {
        Err(_) => assert!(bit / 8 < SECTOR_BYTES, "bit {bit}"),
        Ok((_, view)) => {
            let hit = bit / 8 / SECTOR_BYTES;
            assert!(hit > 0, "bit {bit} of the header");
            for index in 0..view.sections() {
                assert_eq!(view.check_section(index).is_err(), index + 1 == hit, "bit {bit}");
            }
        }
    });
}

#[test]
fn every_flip_of_a_shard_is_detected() {
    let (header, entries, stamps) = golden_shard();
    each_flip(&header.encode(&entries, &stamps), |bit, damaged| {
        assert!(ShardView::decode(damaged).is_err(), "bit {bit}");
    });
}

/// A flip in a record ends the log there; one in the fill is nowhere; none changes a record.
#[test]
fn every_flip_of_a_log_block_leaves_a_prefix() {
    let records = golden_records();
    let bytes = block(100, 3, 1, &records);
    let end = 64 + records.iter().map(Record::encoded_len).sum::<usize>();
    let whole: Vec<_> = LogBlock::decode(&bytes).expect("intact").flatten().collect();
    assert_eq!(whole.len(), records.len());
    each_flip(&bytes, |bit, damaged| {
        let Ok(block) = LogBlock::decode(damaged) else {
            assert!(bit / 8 < 64, "bit {bit} is no header");
            return;
        };
        let read: Vec<_> = block.collect();
        let good = read.iter().take_while(|record| record.is_ok()).count();
        assert!(read.iter().flatten().eq(&whole[..good]), "bit {bit}");
        assert_eq!(good < whole.len(), bit / 8 < end, "bit {bit}");
        assert!(read.len() <= good + 1, "bit {bit}: something behind the first error");
    });
}

/// Cut after any byte, a log block gives the records that are whole.
#[test]
fn a_torn_log_block_gives_its_beginning() {
    let records = golden_records();
    let bytes = block(100, 3, 1, &records);
    for cut in 0..bytes.len() {
        let Ok(block) = LogBlock::decode(&bytes[..cut]) else {
            assert!(cut < 64);
            continue;
        };
        let mut end = 64;
        let whole = records.iter().take_while(|record| {
            end += record.encoded_len();
            end <= cut
        });
        assert_eq!(block.flatten().count(), whole.count(), "cut after {cut} bytes");
    }
}

/// A record of an earlier life, or out of order, ends the block even though it is intact.
#[test]
fn records_of_another_generation_or_sequence_end_the_block() {
    for (generation, sequence) in [(2, 101), (4, 101), (3, 100), (3, 102)] {
        let mut bytes = block(100, 3, 1, &[Record::Started, Record::Started]);
        let mut other = Vec::new();
        encode_record(&Record::Started, generation, sequence, &mut other);
        bytes[64 + 24..64 + 48].copy_from_slice(&other);
        let read: Vec<_> = LogBlock::decode(&bytes).expect("intact header").collect();
        assert!(matches!(read[..], [Ok(_), Err(FormatError::Field { .. })]), "{read:?}");
    }
}

/// Sections of another target or another line never pass for this line's.
#[test]
fn foreign_closing_sections_are_refused() {
    let entries = [pack_entry(5, 77)];
    let ours = ClosingHeader::of(UUID, 3, 9, &entries).encode(&entries);
    let foreign = [
        ClosingHeader::of(*b"flashlane-uuid-1", 3, 9, &entries).encode(&entries),
        ClosingHeader::of(UUID, 3, 8, &entries).encode(&entries),
    ];
    for other in foreign {
        let mixed = [&ours[..SECTOR_BYTES], &other[SECTOR_BYTES..]].concat();
        let (_, view) = ClosingView::decode(&mixed).expect("our header");
        assert!(view.check().is_err());
    }
}

/// An older section of the same place, whole in itself, is not in its place: GC looks at no more,
/// since the out-of-band records have vouched for the bytes.
#[test]
fn stale_closing_sections_are_not_in_place() {
    let entries = vec![pack_entry(5, 77); 2 * SECTION_ENTRIES];
    let ours = ClosingHeader::of(UUID, 3, 9, &entries).encode(&entries);
    let older = ClosingHeader::of(UUID, 3, 8, &entries).encode(&entries);
    let in_place = |bytes: &[u8]| ClosingView::decode(bytes).expect("our header").1.is_in_place();
    assert!(in_place(&ours));
    let (last, second) = (2 * SECTOR_BYTES, SECTOR_BYTES);
    assert!(!in_place(&[&ours[..last], &older[last..]].concat()));
    assert!(!in_place(&[&ours[..second], &ours[last..], &ours[second..last]].concat()));
}

// ---- versions --------------------------------------------------------------------------------

fn with_version(mut block: Vec<u8>, major: u16, minor: u16) -> Vec<u8> {
    block[12..14].copy_from_slice(&major.to_le_bytes());
    block[14..16].copy_from_slice(&minor.to_le_bytes());
    seal(&mut block, SECTOR_BYTES);
    block
}

/// A newer major is refused by name; a flipped version bit is damage, not a version.
#[test]
fn newer_versions_are_told_from_damage() {
    let anchor = golden_anchor().encode();
    let newer = with_version(anchor.clone(), 3, 0);
    let expected = FormatError::NewerMajor { section: Section::Anchor, found: 3, known: 2 };
    assert_eq!(Anchor::decode(&newer), Err(expected));
    assert!(expected.to_string().contains("major version 3 at byte 12"));
    let older = with_version(anchor.clone(), 1, 0);
    assert_eq!(Anchor::decode(&older), Ok(golden_anchor()));
    let minor = with_version(anchor.clone(), 2, 9);
    assert_eq!(Anchor::decode(&minor), Ok(golden_anchor()));
    assert!(is_newer_minor(&minor) && !is_newer_minor(&anchor));
    let zero = with_version(anchor.clone(), 0, 0);
    assert!(matches!(Anchor::decode(&zero), Err(FormatError::Field { offset: 12, .. })));
    let mut flipped = anchor;
    flipped[12] ^= 2;
    assert!(matches!(Anchor::decode(&flipped), Err(FormatError::Crc { .. })));
}

/// Predefined reads (all zeros) and erased cells (all ones) are nobody's sector.
#[test]
fn zeros_and_ones_are_not_sectors() {
    for content in [&[0; SECTOR_BYTES], &[0xff; SECTOR_BYTES]] {
        assert!(!Oob::verify(&[0; 16], content));
        assert!(!Oob::verify(&[0xff; 16], content));
        assert_eq!(decode_all(content), 0);
        assert_eq!(identify(content), None);
    }
    assert_eq!(Oob::decode(&[0xff; 16]).0, OobLba::None);
}

// ---- worked examples of docs/FORMAT.md ---------------------------------------------------------

fn golden_anchor() -> Anchor {
    Anchor {
        uuid: UUID,
        counter: 5,
        generation: 3,
        current: SegmentPair { id: 7, chunks: [12, 44] },
        oldest: SegmentPair { id: 6, chunks: [13, 45] },
    }
}

fn golden_records() -> Vec<Record> {
    let shard = |written, shard, (lba, count), sector| Record::CheckpointShard {
        checkpoint: 4,
        written,
        shard,
        lba,
        count,
        places: [1, 33].map(|chunk| Extent { chunk, sector, count: 1 }),
        position: 96,
        floor: 1_000_000_001,
        open_sequence: 9,
    };
    vec![
        Record::Follows { previous: SegmentPair { id: 6, chunks: [13, 45] } },
        Record::Started,
        Record::Opened { line: 3, sequence: 9, chunks: vec![3, 35] },
        Record::Closed {
            line: 3,
            sequence: 9,
            places: vec![Extent { chunk: 35, sector: 60, count: 4 }],
        },
        Record::Freed { line: 3, sequence: 9 },
        Record::Retired { chunk: 35 },
        Record::Discarded { lba: 6, count: 2, stamp: 1_000_000_001 },
        Record::Poisoned { lba: 6, stamp: 21 },
        Record::Ceiling { stamp: 2_000_000_000 },
        shard(4, 0, (0, 4), 8),
        shard(3, 1, (4, 2), 4),
        Record::CheckpointComplete { checkpoint: 4, shards: 2, position: 96 },
        Record::Config { bytes: b"op=11".to_vec() },
        Record::Stopped { checkpoint: 4 },
        Record::Written {
            line: 3,
            sequence: 9,
            chunk: 35,
            sector: 4,
            entries: vec![pack_entry(6, 21), pack_entry(LBA_PADDING, 9)],
        },
        Record::Segment { next: SegmentPair { id: 8, chunks: [14, 46] } },
    ]
}

fn golden_shard() -> AnyShard {
    let header = ShardHeader {
        uuid: UUID,
        checkpoint: 4,
        shard: 0,
        width: EntryWidth::Four,
        lba: 0,
        position: 96,
        floor: 1_000_000_001,
        open_sequence: 9,
        generation: 3,
    };
    let entries = vec![
        ShardEntry::Unmapped,
        ShardEntry::Media(4711),
        ShardEntry::Poisoned,
        ShardEntry::Unmapped,
    ];
    (header, entries, vec![(2, 21), (3, 999_999_999)])
}

/// The document shows these bytes, in groups; on a difference prints what to paste there.
#[track_caller]
fn assert_golden(bytes: &[u8]) {
    let document = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/FORMAT.md");
    let document = std::fs::read_to_string(document).expect("docs/FORMAT.md is in the tree");
    let shown = document.contains(dump(bytes).trim_end());
    assert!(shown, "docs/FORMAT.md does not show\n{}", dump(bytes));
}

fn dump(bytes: &[u8]) -> String {
    let groups = |line: &[u8]| line.chunks(4).map(hex).collect::<Vec<_>>().join(" ");
    bytes.chunks(16).map(|line| groups(line) + "\n").collect()
}

#[test]
fn golden_oob() {
    for (lba, stamp) in [(OobLba::User(6), 21), (OobLba::Padding, 9)] {
        assert_golden(&Oob::encode(lba, stamp, Oob::content_crc(&[0; SECTOR_BYTES])));
    }
}

#[test]
fn golden_line_first() {
    let chunks = vec![0, 32, 64, 96];
    let first = LineFirst { uuid: UUID, line: 3, generation: 3, sequence: 9, chunks };
    assert_golden(&first.encode()[..80]);
}

#[test]
fn golden_line_closing() {
    let entries = [
        pack_entry(LBA_LINE_FIRST, 9),
        pack_entry(6, 21),
        pack_entry(7, 1_000_000_002),
        pack_entry(LBA_PADDING, 9),
        pack_entry(LBA_NONE, 0),
    ];
    let mut header = ClosingHeader::of(UUID, 3, 9, &entries);
    header.generation = 3;
    (header.causes[0], header.causes[3], header.causes[6]) = (2, 1, 1);
    let bytes = header.encode(&entries);
    assert_golden(&bytes[..120]);
    assert_golden(&bytes[SECTOR_BYTES..SECTOR_BYTES + 16 + 5 * 12]);
}

/// 64 bytes of header and the sixteen records.
const GOLDEN_LOG_BYTES: usize = 829;

#[test]
fn golden_log_block() {
    assert_golden(&block(100, 3, 1, &golden_records())[..GOLDEN_LOG_BYTES]);
}

#[test]
fn golden_anchor_block() {
    assert_golden(&golden_anchor().encode()[..80]);
}

#[test]
fn golden_shard_block() {
    let (header, entries, stamps) = golden_shard();
    assert_golden(&header.encode(&entries, &stamps)[..168]);
}
