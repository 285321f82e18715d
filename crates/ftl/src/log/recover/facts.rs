//! What the log says: lines, checkpoints, discards, bad chunks, the ceiling.
//!
//! Owns: the fold over the log's records. Promises: the same records give the same facts however often
//! some of them are repeated (carried records); numbers that lie outside the target are damage, never
//! an index. Never: reads the medium.

use super::super::format::{COUNT_MAX, Extent, LogEntry, PACKED_BYTES, Record};
use super::super::pool::Shape;
use super::history::History;
use super::scan::Place;
use flashlane_base::mutant;
use std::collections::{BTreeMap, BTreeSet};

/// A line that was opened and not freed.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    pub(super) sequence: u64,
    pub(super) chunks: Vec<u32>,
    /// Where its closing metadata lies, once it is closed; empty: it could not be written.
    pub(super) closed: Option<Vec<Extent>>,
    /// Write pointers of its chunks at the first recovery that found it open.
    pub(super) frontier: Option<Vec<u32>>,
    /// No stamp in it is larger: the ceiling when it was closed, or when a life began that found
    /// it.
    pub(super) bound: Option<u64>,
}

/// One shard of a checkpoint, as its record names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardPlace {
    /// The checkpoint that wrote it, which says so itself.
    pub(super) written: u64,
    pub(super) lba: u64,
    pub(super) count: u32,
    pub(super) places: [Extent; 2],
    pub(super) position: u64,
    pub(super) floor: u64,
    pub(super) open_sequence: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Checkpoint {
    pub(super) id: u64,
    pub(super) position: u64,
    pub(super) shards: Vec<Option<ShardPlace>>,
}

impl Checkpoint {
    /// The chunks that it lies in.
    pub(super) fn chunks(&self) -> BTreeSet<u32> {
        let places = self.shards.iter().flatten().flat_map(|s| s.places);
        places.map(|p| p.chunk).collect()
    }

    /// Lowest line that was open or in flight when one of its shards began.
    pub(super) fn open_sequence(&self) -> u64 {
        self.shards.iter().flatten().map(|s| s.open_sequence).min().unwrap_or(0)
    }
}

/// A discard or a poisoned sector, with its place in the log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Event {
    pub(super) sequence: u64,
    pub(super) lba: u64,
    pub(super) count: u64,
    pub(super) stamp: u64,
}

/// The units of a line that the log tells: the place of each, with the entries of its sectors.
pub(super) type Written = BTreeMap<Place, Vec<[u8; PACKED_BYTES]>>;

#[derive(Default)]
pub(super) struct Facts {
    pub(super) lines: BTreeMap<u32, Told>,
    freed: BTreeSet<u64>,
    /// By the line's sequence: `opened` may have been cut off, and follow as a carried record.
    pub(super) written: BTreeMap<u64, Written>,
    pub(super) retired: BTreeSet<u32>,
    pub(super) ceiling: u64,
    pub(super) config: Vec<u8>,
    /// The two newest that are complete, newest first.
    pub(super) checkpoints: Vec<Checkpoint>,
    /// One above the largest id of a checkpoint that was ever begun.
    pub(super) next_checkpoint: u64,
    begun: BTreeMap<u64, BTreeMap<u32, ShardPlace>>,
    pub(super) discards: Vec<Event>,
    pub(super) poisons: Vec<Event>,
    /// Largest sequence of a line.
    pub(super) last_line: u64,
    /// The log begins with the target's first record.
    pub(super) is_whole: bool,
    /// The target was stopped, and nothing happened since.
    pub(super) stopped: bool,
    pub(super) damage: Option<String>,
}

impl Facts {
    pub(super) fn of(history: &History, shape: &Shape) -> Facts {
        let mut facts =
            Facts { next_checkpoint: 1, is_whole: history.is_whole(), ..Facts::default() };
        for entry in &history.entries {
            facts.take(entry, shape);
        }
        facts.begun.clear();
        // It was cut behind the older of two checkpoints (rule 16), never before there were two.
        let needed = facts.checkpoints.get(1).map_or(1, |older| older.position);
        let first = history.entries.first().map_or(1, |e| e.sequence);
        if first > needed && !mutant!("log.cut-log-unnoticed") {
            let what = format!("records {needed} to {} of the FTL log can't be read", first - 1);
            facts.damage.get_or_insert(what);
        }
        if !mutant!("log.first-metadata-unread") {
            facts.saw_line(history.last_line);
        }
        facts
    }

    fn take(&mut self, entry: &LogEntry, shape: &Shape) {
        if !is_inside(&entry.record, shape) && !mutant!("log.numbers-unchecked") {
            let at = entry.sequence;
            self.damage
                .get_or_insert(format!("record {at} of the FTL log names what is not there"));
            return;
        }
        // Links between segments say nothing about the target.
        if !matches!(entry.record, Record::Segment { .. } | Record::Follows { .. }) {
            let is_stopped = matches!(entry.record, Record::Stopped { .. });
            self.stopped = is_stopped || self.stopped && mutant!("log.stopped-for-ever");
        }
        let event = |lba, count, stamp| Event { sequence: entry.sequence, lba, count, stamp };
        match entry.record.clone() {
            Record::Opened { line, sequence, chunks } => self.opened(line, sequence, chunks),
            Record::Closed { line, sequence, places } => {
                let ceiling = self.ceiling;
                if let Some(told) = self.line(line, sequence) {
                    told.closed = Some(places);
                    told.bound.get_or_insert(ceiling);
                }
            }
            Record::Frontier { line, sequence, pointers } => {
                if let Some(told) = self.line(line, sequence) {
                    match mutant!("log.frontier-of-last") {
                        true => told.frontier = Some(pointers),
                        false => drop(told.frontier.get_or_insert(pointers)),
                    }
                }
            }
            Record::Freed { line, sequence } => {
                self.saw_line(sequence);
                self.freed.insert(sequence);
                self.written.remove(&sequence);
                if self.line(line, sequence).is_some() {
                    self.lines.remove(&line);
                }
            }
            Record::Written { sequence, chunk, sector, entries, .. } => {
                let unit = shape.unit as usize;
                let units = (sector..).step_by(unit).zip(entries.chunks(unit));
                let written = self.written.entry(sequence).or_default();
                written.extend(units.map(|(sector, unit)| ((chunk, sector), unit.to_vec())));
            }
            Record::Retired { .. } if mutant!("log.retired-forgotten") => {}
            Record::Retired { chunk } => drop(self.retired.insert(chunk)),
            Record::Discarded { lba, count, stamp } => {
                self.discards.push(event(lba, count, stamp));
            }
            Record::Poisoned { lba, stamp } => self.poisons.push(event(lba, 1, stamp)),
            Record::Ceiling { stamp } => self.ceiling = self.ceiling.max(stamp),
            Record::CheckpointShard {
                checkpoint,
                written,
                shard,
                lba,
                count,
                places,
                position,
                floor,
                open_sequence,
            } => {
                self.next_checkpoint = self.next_checkpoint.max(checkpoint.saturating_add(1));
                if !mutant!("log.line-sequences-restart") {
                    self.saw_line(open_sequence.saturating_sub(1));
                }
                let place =
                    ShardPlace { written, lba, count, places, position, floor, open_sequence };
                self.begun.entry(checkpoint).or_default().insert(shard, place);
            }
            Record::CheckpointComplete { checkpoint, shards, position } => {
                self.completed(checkpoint, shards, position);
            }
            Record::Config { bytes } => self.config = bytes,
            Record::Started => {
                let lines = self.lines.values_mut();
                lines.for_each(|told| told.bound = told.bound.or(Some(self.ceiling)));
            }
            Record::Segment { .. } | Record::Stopped { .. } | Record::Follows { .. } => {}
        }
    }

    fn opened(&mut self, line: u32, sequence: u64, chunks: Vec<u32>) {
        self.saw_line(sequence);
        let known = self.lines.get(&line).is_some_and(|told| told.sequence >= sequence);
        // `freed` is final for a sequence, wherever it stands: carried records may repeat `opened`.
        let is_freed = self.freed.contains(&sequence) && !mutant!("log.freed-undone");
        if !known && !is_freed {
            self.lines.insert(line, Told { sequence, chunks, ..Told::default() });
        }
    }

    /// Sequences of lines are never used again, whichever record is the last to name one (hole 22).
    pub(super) fn saw_line(&mut self, sequence: u64) {
        self.last_line = self.last_line.max(sequence);
    }

    fn line(&mut self, line: u32, sequence: u64) -> Option<&mut Told> {
        self.lines.get_mut(&line).filter(|told| told.sequence == sequence)
    }

    fn completed(&mut self, id: u64, shards: u32, position: u64) {
        let mut named = self.begun.remove(&id).unwrap_or_default();
        // The log was read from the older of two on; a third is not kept.
        let count = shards.min(named.keys().next_back().map_or(0, |last| last + 1));
        let shards = (0..count).map(|shard| named.remove(&shard)).collect();
        self.checkpoints.insert(0, Checkpoint { id, position, shards });
        self.checkpoints.truncate(2);
        self.next_checkpoint = self.next_checkpoint.max(id.saturating_add(1));
        self.begun.retain(|other, _| *other > id);
    }

    /// The line that each chunk belongs to.
    pub(super) fn owners(&self) -> BTreeMap<u32, u32> {
        let chunks = |(id, told): (&u32, &Told)| {
            let id = *id;
            told.chunks.clone().into_iter().map(move |chunk| (chunk, id))
        };
        self.lines.iter().flat_map(chunks).collect()
    }
}

/// Does a record name only chunks and sectors that there are, and numbers that others can follow?
fn is_inside(record: &Record, shape: &Shape) -> bool {
    let chunks = shape.pus * shape.chunks_per_pu;
    let chunk = |c: &u32| *c < chunks;
    let extent = |e: &Extent| {
        let end = e.sector.checked_add(e.count);
        chunk(&e.chunk) && end.is_some_and(|end| end <= shape.chunk_sectors)
    };
    // A line has an id below the number of chunks, since it has one at least.
    match record {
        Record::Opened { line, sequence, chunks: of } => {
            let distinct: BTreeSet<&u32> = of.iter().collect();
            let all = !of.is_empty() && distinct.len() == of.len() && of.iter().all(chunk);
            chunk(line) && all && *sequence <= COUNT_MAX
        }
        Record::Closed { line, places, .. } => chunk(line) && places.iter().all(extent),
        Record::Freed { line, sequence } => chunk(line) && *sequence <= COUNT_MAX,
        Record::Frontier { line, .. } => chunk(line),
        Record::Retired { chunk: c } => chunk(c),
        Record::Written { line, sequence, chunk: c, sector, entries } => {
            let count = entries.len() as u32;
            let units = sector.is_multiple_of(shape.unit) && count.is_multiple_of(shape.unit);
            let at = Extent { chunk: *c, sector: *sector, count };
            chunk(line) && *sequence <= COUNT_MAX && units && extent(&at)
        }
        Record::Ceiling { stamp }
        | Record::Discarded { stamp, .. }
        | Record::Poisoned { stamp, .. } => *stamp <= COUNT_MAX,
        // What it names as its writer is older.
        Record::CheckpointShard { places, checkpoint, open_sequence, .. } => {
            places.iter().all(extent) && *checkpoint.max(open_sequence) <= COUNT_MAX
        }
        Record::CheckpointComplete { checkpoint, .. } => *checkpoint <= COUNT_MAX,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(records: Vec<Record>) -> Facts {
        let entry = |(sequence, record)| LogEntry { generation: 1, sequence, record };
        let history = History {
            uuid: [7; 16],
            generation: 1,
            last_pair: 1,
            last_line: 0,
            parts: Vec::new(),
            entries: (1..).zip(records).map(entry).collect(),
            superseded: Vec::new(),
            named: None,
            anchor_counter: 0,
            is_newer: false,
            damage: None,
            is_torn: false,
        };
        let (pus, chunks_per_pu, chunk_sectors) = (2, 8, 64);
        let (channels, pools, unit) = (1, 1, 4);
        let (window, behind, pair_pads) = (0, 0, 0);
        let shape = Shape {
            pus,
            channels,
            pools,
            chunks_per_pu,
            chunk_sectors,
            unit,
            window,
            behind,
            pair_pads,
        };
        Facts::of(&history, &shape)
    }

    fn opened(line: u32, sequence: u64) -> Record {
        Record::Opened { line, sequence, chunks: vec![line, line + 8] }
    }

    /// Records that a checkpoint carried say again what was said, and bring nothing back.
    #[test]
    fn carried_records_change_nothing() {
        let frontier = |end| Record::Frontier { line: 2, sequence: 5, pointers: vec![end, 8] };
        let facts = facts(vec![
            Record::Started,
            opened(1, 4),
            opened(2, 5),
            frontier(12),
            Record::Freed { line: 1, sequence: 4 },
            opened(1, 4),
            opened(2, 5),
            frontier(16),
            Record::Retired { chunk: 3 },
        ]);
        assert_eq!(facts.lines.keys().copied().collect::<Vec<_>>(), [2], "`freed` is final");
        assert_eq!(facts.lines[&2].frontier, Some(vec![12, 8]), "the first recovery knew it");
        assert_eq!(facts.retired, BTreeSet::from([3]));
    }

    /// Hole 22: no record of a line is left, but a shard says how far sequences had come.
    #[test]
    fn sequences_of_lines_go_on_above_what_shards_say() {
        let extent = Extent { chunk: 1, sector: 0, count: 4 };
        let shard = Record::CheckpointShard {
            checkpoint: 1,
            written: 1,
            shard: 0,
            lba: 0,
            count: 100,
            places: [extent; 2],
            position: 1,
            floor: 0,
            open_sequence: 40,
        };
        assert_eq!(facts(vec![Record::Started, opened(1, 4), shard]).last_line, 39);
    }

    /// Hole 5, rule 15: `stopped` counts as the last record alone.
    #[test]
    fn whatever_follows_stopped_makes_a_start_unclean() {
        let stopped = || vec![Record::Started, Record::Stopped { checkpoint: 1 }];
        assert!(facts(stopped()).stopped);
        assert!(!facts([stopped(), vec![Record::Started]].concat()).stopped);
    }
}
