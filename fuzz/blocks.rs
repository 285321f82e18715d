//! Blocks that FTLs write on the medium, and fault plans: bytes as they are, then behind checksums
//! that are right.
//!
//! Owns: one function per kind of block, and how its checksums are made right. Promises: what is
//! decoded is written and read back as the same; what is refused is refused with words. Never:
//! knows where bytes come from, or mounts anything (`mount.rs`).

use super::said;
use flashlane_base::Ns;
use flashlane_ftl::log::format::{
    Anchor, ClosingHeader, ClosingView, FormatError, LBA_LIMIT, LBA_MASK, LineFirst, LogBlock,
    LogBlockBuilder, Oob, OobLba, Runs, SECTION_ENTRIES, SECTOR_BYTES, STAMP_MAX, Section,
    ShardEntry, ShardView, Stripes, closing_sectors, decode_record, encode_record, identify,
};
use flashlane_media::fault::{FaultPlan, Faults, Hit};

pub(crate) const NAMES: [&str; 8] =
    ["line-first", "line-closing", "oob", "record", "log-block", "anchor", "shard", "fault-plan"];

/// Bytes of the envelope that every block begins with.
const ENVELOPE: usize = 32;
/// Bytes of a log block's header, which alone its checksum covers.
const LOG_HEADER: usize = 64;
/// Bytes of a record before its payload.
const RECORD: usize = 24;
/// Bytes of a closing header that are in use; entries follow in an input.
const CLOSING: usize = 176;

/// Does with `bytes` what the target does, if it is one of these.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    Some(match target {
        "line-first" => line_first(bytes) | line_first(&whole(b"FLlf", bytes)),
        "line-closing" => line_closing(bytes) | line_closing(&closing(bytes)),
        "oob" => oob(bytes),
        "record" => record(bytes) | record(&sealed_record(bytes)),
        "log-block" => log_block(bytes) | log_block(&sealed_log(bytes)),
        "anchor" => anchor(bytes) | anchor(&whole(b"FLan", bytes)),
        "shard" => shard(bytes) | shard(&whole(b"FLcs", bytes)),
        "fault-plan" => fault_plan(bytes),
        _ => return None,
    })
}

/// The number at a place; bytes that are not there are zeros.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let there = bytes.get(at..).unwrap_or_default().iter().take(4);
    there.rev().fold(0, |n, b| n << 8 | u32::from(*b))
}

/// Makes length and checksum of the block at the beginning of `bytes` right: its own length where
/// that is possible, all there is otherwise.
pub(crate) fn seal(bytes: &mut [u8]) {
    let length = match identify(bytes) {
        _ if bytes.len() < ENVELOPE => return,
        Some(Section::LogBlock) => LOG_HEADER.min(bytes.len()),
        _ => Some(u32_at(bytes, 8) as usize)
            .filter(|n| (ENVELOPE..=bytes.len()).contains(n))
            .unwrap_or(bytes.len()),
    };
    bytes[8..12].copy_from_slice(&(length as u32).to_le_bytes());
    let crc = flashlane_base::crc32c(&bytes[8..length]);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    if identify(bytes) == Some(Section::LogBlock) {
        seal_records(&mut bytes[length..]);
    }
}

/// Makes the checksums of records that follow each other right, up to the first that has no end.
fn seal_records(mut rest: &mut [u8]) {
    loop {
        let length = u32_at(rest, 4) as usize;
        if !(RECORD..=rest.len()).contains(&length) {
            return;
        }
        let (record, behind) = rest.split_at_mut(length);
        let crc = flashlane_base::crc32c(&record[4..]);
        record[..4].copy_from_slice(&crc.to_le_bytes());
        rest = behind;
    }
}

/// A block of this kind with the input as what is in it.
fn whole(magic: &[u8; 4], bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(block.len().max(ENVELOPE), 0);
    block[..4].copy_from_slice(magic);
    seal(&mut block);
    block
}

fn line_first(bytes: &[u8]) -> bool {
    let line = LineFirst::decode(bytes);
    if let Ok(line) = &line {
        assert_eq!(LineFirst::decode(&line.encode()).as_ref(), Ok(line));
    }
    said(line)
}

/// Closing metadata with the input's first bytes as its header and the rest as packed entries.
fn closing(bytes: &[u8]) -> Vec<u8> {
    let (header, entries) = bytes.split_at(bytes.len().min(CLOSING));
    let mut all = whole(b"FLlc", header);
    all.resize(SECTOR_BYTES, 0);
    seal(&mut all);
    for (index, packed) in entries.chunks(SECTION_ENTRIES * 12).enumerate() {
        let start = all.len();
        all.extend([0; 4]);
        all.extend((index as u32).to_le_bytes());
        all.extend_from_within(40..48);
        all.extend(packed);
        all.resize(start + SECTOR_BYTES, 0);
        seal_entries(&mut all, start);
    }
    all
}

/// Makes the checksum of the entries at `at` right, behind the header at the beginning.
pub(crate) fn seal_entries(closing: &mut [u8], at: usize) {
    let uuid = flashlane_base::crc32c(&closing[16..32]);
    let crc = flashlane_base::crc32c_append(uuid, &closing[at + 4..at + SECTOR_BYTES]);
    closing[at..at + 4].copy_from_slice(&crc.to_le_bytes());
}

fn line_closing(bytes: &[u8]) -> bool {
    said(ClosingHeader::decode(bytes));
    let decoded = ClosingView::decode(bytes);
    let Ok((header, view)) = decoded else { return said(decoded) };
    assert_eq!(closing_sectors(view.len()), 1 + view.sections());
    for section in 0..=view.sections() {
        said(view.check_section(section));
        let (first, entries) = view.section(section);
        assert!(entries.is_empty() || first + entries.len() <= view.len());
    }
    let all: Vec<[u8; 12]> = (0..view.len() + 1).filter_map(|i| view.packed(i)).copied().collect();
    assert_eq!(all.len(), view.len());
    if view.check().is_err() {
        return false;
    }
    assert!(view.is_in_place());
    let again = header.encode(&all);
    let (header_again, again) = ClosingView::decode(&again).expect("what was written is read");
    assert_eq!(header_again, header);
    assert!((0..all.len()).all(|i| again.packed(i) == Some(&all[i])));
    // What a line is counted as makes no difference to what its entries are.
    ClosingHeader::of(header.uuid, header.line, header.sequence, &all);
    true
}

/// A record, then the content it is of.
fn oob(bytes: &[u8]) -> bool {
    let Some((record, content)) = bytes.split_first_chunk::<{ Oob::BYTES }>() else {
        return false;
    };
    let (lba, stamp, _) = Oob::decode_raw(record);
    assert!(lba <= LBA_MASK && stamp <= STAMP_MAX);
    assert_eq!(OobLba::from_raw(lba).raw(), lba);
    assert_eq!(matches!(OobLba::from_raw(lba), OobLba::User(_)), lba < LBA_LIMIT);
    let sealed = Oob::encode_raw(lba, stamp, Oob::content_crc(content));
    assert!(Oob::verify_for(&sealed, lba, content));
    assert_eq!(Oob::verify(record, content), *record == sealed);
    // One wrong bit, wherever it is, is noticed.
    for bit in 0..8 * record.len() {
        let mut wrong = sealed;
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert!(!Oob::verify(&wrong, content), "bit {bit}");
    }
    *record == sealed
}

fn record(bytes: &[u8]) -> bool {
    let decoded = decode_record(bytes);
    if let Ok((entry, length)) = &decoded {
        assert!(*length <= bytes.len());
        let mut again = Vec::new();
        encode_record(&entry.record, entry.generation, entry.sequence, &mut again);
        assert_eq!(decode_record(&again).as_ref(), Ok(&(entry.clone(), again.len())));
        assert_eq!((again.len(), entry.record.encoded_len()), (*length, *length));
    }
    said(decoded)
}

/// The record with its length and checksum right.
fn sealed_record(bytes: &[u8]) -> Vec<u8> {
    let mut record = bytes.to_vec();
    record.resize(record.len().max(RECORD), 0);
    if !(RECORD..=record.len()).contains(&(u32_at(&record, 4) as usize)) {
        let length = record.len() as u32;
        record[4..8].copy_from_slice(&length.to_le_bytes());
    }
    seal_records(&mut record);
    record
}

/// A log block with the input as header and records.
fn sealed_log(bytes: &[u8]) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(block.len().max(LOG_HEADER), 0);
    whole(b"FLlg", &block)
}

fn log_block(bytes: &[u8]) -> bool {
    let decoded = LogBlock::decode(bytes);
    let Ok(block) = decoded else { return said(decoded) };
    let header = *block.header();
    let (counted, mut entries, mut error) = (block.records_left(), Vec::new(), None);
    for taken in block {
        assert!(error.is_none(), "a record behind {error:?}");
        match taken {
            Ok(entry) => entries.push(entry),
            Err(e) => error = Some(e),
        }
    }
    assert!(entries.len() * RECORD <= bytes.len() && entries.len() <= counted as usize);
    if let Some(error) = error {
        said::<(), FormatError>(Err(error));
        return false;
    }
    let room = LogBlockBuilder::capacity(header.sectors);
    let needed: usize = entries.iter().map(|e| e.record.encoded_len()).sum();
    assert!(needed <= room, "{needed} bytes of records in {room}");
    if header.sectors > 64 {
        return true;
    }
    let mut builder = LogBlockBuilder::new(header);
    for entry in &entries {
        assert_eq!(builder.push(&entry.record), Ok(entry.sequence));
    }
    let again = builder.finish();
    let again = LogBlock::decode(&again).expect("what was written is read");
    assert_eq!(again.header(), &header);
    assert!(again.map(|e| e.expect("a record")).eq(entries));
    true
}

fn anchor(bytes: &[u8]) -> bool {
    let anchor = Anchor::decode(bytes);
    if let Ok(anchor) = &anchor {
        assert_eq!(Anchor::decode(&anchor.encode()).as_ref(), Ok(anchor));
    }
    said(anchor)
}

fn shard(bytes: &[u8]) -> bool {
    let decoded = ShardView::decode(bytes);
    let Ok(view) = &decoded else { return said(decoded) };
    let header = view.header();
    assert_eq!(view.entries().count(), view.len());
    // Of runs there may be more, but no more than a vector holds.
    assert!(view.len() <= bytes.len().max(65536));
    assert_eq!(view.entry(view.len()), None);
    let stamps: Vec<(u64, u64)> = view.stamps().collect();
    for index in 0..view.len() {
        let lba = header.lba + index as u64;
        let stamp = view.stamp(index);
        assert!(stamp == header.floor || stamps.contains(&(lba, stamp)), "stamp of {lba}");
    }
    let word = |entry: ShardEntry| match entry {
        ShardEntry::Unmapped => 0,
        ShardEntry::Poisoned => u64::MAX,
        // What the width can't hold a mount takes for damage.
        ShardEntry::Media(address) => address.min(header.width.address_max()) + 1,
    };
    let held = |entry: ShardEntry| match entry {
        ShardEntry::Media(address) => ShardEntry::Media(address.min(header.width.address_max())),
        entry => entry,
    };
    let words: Vec<u8> = view
        .entries()
        .flat_map(|entry| word(entry).to_le_bytes()[..header.width.bytes()].to_vec())
        .collect();
    let again = header.encode_words(&words, &stamps);
    let again = ShardView::decode(&again).expect("what was written is read");
    assert_eq!(again.header(), header);
    assert!(again.entries().eq(view.entries().map(held)));
    assert!(again.stamps().eq(stamps.iter().copied()));
    let stripes = Stripes { unit: 4, chunk_sectors: 64 };
    let runs = Runs::find(&words, header.width, stripes, usize::MAX, |c| Some(vec![c, c ^ 1]));
    if let Some(runs) = runs {
        let again = header.encode_runs(&runs, &stamps);
        let again = ShardView::decode(&again).expect("what was written is read");
        assert!(again.entries().eq(view.entries().map(held)) && again.stamps().eq(stamps));
    }
    true
}

fn fault_plan(bytes: &[u8]) -> bool {
    let plan = FaultPlan::from_toml(&String::from_utf8_lossy(bytes));
    let Ok(plan) = plan else { return said(plan) };
    said(plan.check(4, 16, 64));
    let mut live = Faults::new(&plan, 1);
    for (i, hit) in [Hit::Program, Hit::Read, Hit::Erase].iter().cycle().take(99).enumerate() {
        let i = i as u32;
        live.strike(*hit, i % 4, i % 16, i % 64, 4, Ns::from_ms(u64::from(i)));
    }
    let times = plan.faults.iter().map(|fault| fault.times);
    assert!(live.happened().into_iter().zip(times).all(|(happened, most)| happened <= most));
    true
}
