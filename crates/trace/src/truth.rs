//! Where a trace's journals and logs really lie, and how well the detector has found them.
//!
//! Owns: the file that says so ([`Truth`]: a line `FIRST + COUNT NAME` per range, in blocks of 4 KiB),
//! and the measures ([`Judged`]). Promises: what is wrong with the file is said with its line; memory
//! is bounded. Never: asks the detector anything but what it says of each write.
//!
//! *Precision* is how much of what was called a journal's is one, *recall* how much of what is one was
//! called so, in blocks written. *Cold* counts from the start of the trace. *Warm* counts each log
//! from when it was gone round once: when the trace has written all its blocks, to a hundredth. Of a
//! log of which less than nine tenths are ever written there is no lap, and no warm recall.

use super::bounded;
use serde::Serialize;
use std::ops::Range;
use std::path::Path;

/// A file system's journal is called so; other names are other logs.
pub const JOURNAL: &str = "journal";

/// Blocks of all ranges: 256 GiB, a bit each.
const BLOCKS_MAX: u64 = 1 << 26;
/// What of a log's blocks, of a hundred, is a lap; and what of its room makes it one that is gone round.
const LAP_PERCENT: u64 = 99;
const USED_PERCENT: u64 = 90;

/// The true places of journals and logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Truth {
    names: Vec<String>,
    /// By place: blocks, name, and where its first bit is.
    ranges: Vec<(Range<u64>, usize, u64)>,
    blocks: u64,
}

/// Why a file is none that says where journals lie.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TruthError {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error(
        "{file}:{line}: {what}: write `FIRST + COUNT NAME` there, in blocks of 4 KiB, as \
         traces/record.sh does"
    )]
    Line { file: String, line: usize, what: &'static str },
}

impl Truth {
    /// Reads such a file.
    pub fn read(path: &Path) -> Result<Truth, TruthError> {
        let file = path.display().to_string();
        match bounded::text(path, bounded::TEXT_MAX) {
            Ok(text) => Truth::parse(&text, &file),
            Err(source) => Err(TruthError::Read { file, source }),
        }
    }

    /// Its text; `file` is for messages.
    pub fn parse(text: &str, file: &str) -> Result<Truth, TruthError> {
        let mut truth = Truth::default();
        let mut lines = Vec::new();
        for (line, content) in text.lines().enumerate() {
            let wrong = |what| TruthError::Line { file: file.into(), line: line + 1, what };
            let fields: Vec<&str> = content.split_whitespace().collect();
            let (first, count, name) = match fields[..] {
                [] => continue,
                [first, ..] if first.starts_with('#') => continue,
                [first, "+", count, name] => (first.parse::<u64>(), count.parse::<u64>(), name),
                _ => return Err(wrong("four fields are wanted")),
            };
            let (Ok(first), Ok(count @ 1..)) = (first, count) else {
                return Err(wrong("two numbers are wanted, the second one above 0"));
            };
            truth.blocks = truth.blocks.saturating_add(count);
            if truth.blocks > BLOCKS_MAX || first > u64::MAX - count {
                return Err(wrong("that is more than 256 GiB in all, or past the last block"));
            }
            let known = truth.names.iter().position(|known| known == name);
            let name = known.unwrap_or_else(|| {
                truth.names.push(name.into());
                truth.names.len() - 1
            });
            truth.ranges.push((first..first + count, name, 0));
            lines.push((first, line + 1));
        }
        truth.ranges.sort_by_key(|(blocks, ..)| blocks.start);
        let mut bit = 0;
        for (blocks, _, first_bit) in &mut truth.ranges {
            *first_bit = bit;
            bit += blocks.end - blocks.start;
        }
        match truth.ranges.windows(2).find(|two| two[0].0.end > two[1].0.start) {
            None => Ok(truth),
            Some(two) => {
                let line = lines.iter().filter(|(first, _)| *first == two[1].0.start).map(|l| l.1);
                let (line, what) = (line.max().unwrap_or(1), "it overlaps another range");
                Err(TruthError::Line { file: file.into(), line, what })
            }
        }
    }

    /// Whether any of some blocks is a file system's journal's ([`JOURNAL`]).
    pub fn is_journal(&self, blocks: Range<u64>) -> bool {
        self.parts(blocks).any(|(name, ..)| self.names[name] == JOURNAL)
    }

    /// The parts of some blocks that lie in its ranges: name, first bit, blocks.
    fn parts(&self, blocks: Range<u64>) -> impl Iterator<Item = (usize, u64, u64)> + '_ {
        let from = self.ranges.partition_point(|(range, ..)| range.end <= blocks.start);
        self.ranges[from..].iter().take_while(move |(range, ..)| range.start < blocks.end).map(
            move |(range, name, bit)| {
                let first = range.start.max(blocks.start);
                (*name, bit + (first - range.start), range.end.min(blocks.end) - first)
            },
        )
    }
}

/// Bits that are set once.
#[derive(Clone, Debug)]
struct Bits(Vec<u64>);

impl Bits {
    fn new(blocks: u64) -> Bits {
        Bits(vec![0; blocks.div_ceil(64) as usize])
    }

    /// Sets some; how many were not.
    fn set(&mut self, bits: Range<u64>) -> u64 {
        let mut new = 0;
        for bit in bits {
            let (word, mask) = (&mut self.0[(bit / 64) as usize], 1 << (bit % 64));
            new += u64::from(*word & mask == 0);
            *word |= mask;
        }
        new
    }
}

/// How well it was found, in blocks written.
#[derive(Clone, Copy, Debug, Default, Serialize, PartialEq, Eq)]
pub struct Score {
    /// A journal's, and called so.
    pub hits: u64,
    /// A journal's, and not called so.
    pub misses: u64,
    /// None of a journal's, and called so.
    pub false_alarms: u64,
}

impl Score {
    fn share(part: u64, rest: u64) -> Option<f64> {
        (part + rest > 0).then(|| part as f64 / (part + rest) as f64)
    }

    /// None where nothing was called a journal's.
    pub fn precision(&self) -> Option<f64> {
        Score::share(self.hits, self.false_alarms)
    }

    /// None where nothing was a journal's.
    pub fn recall(&self) -> Option<f64> {
        Score::share(self.hits, self.misses)
    }
}

/// One journal or log.
#[derive(Clone, Debug, Serialize)]
pub struct JudgedLog {
    pub name: String,
    /// Its blocks.
    pub blocks: u64,
    /// Blocks written in it, also again and again.
    pub written_blocks: u64,
    /// Bytes written on the device when it was gone round once; none where it was not.
    pub lap_bytes: Option<u64>,
    /// Bytes written on the device when the first write in it was called a journal's.
    pub detected_bytes: Option<u64>,
    pub cold: Score,
    pub warm: Score,
}

/// What came of all.
#[derive(Clone, Debug, Serialize)]
pub struct Judged {
    /// Blocks written that are no journal's.
    pub other_blocks: u64,
    pub cold: Score,
    /// False alarms count from the first lap of any log.
    pub warm: Score,
    pub logs: Vec<JudgedLog>,
}

/// Judges as writes go by: first all of them by [`Judge::count`], then all again by [`Judge::judge`].
#[derive(Clone, Debug)]
pub(super) struct Judge {
    truth: Truth,
    /// Blocks that the trace ever writes, and those that it has written; by name how many.
    ever: Bits,
    ever_blocks: Vec<u64>,
    so_far: Bits,
    so_far_blocks: Vec<u64>,
    bytes: u64,
    judged: Judged,
}

impl Judge {
    pub(super) fn new(truth: Truth) -> Judge {
        let none = |name: &String| JudgedLog {
            name: name.clone(),
            blocks: 0,
            written_blocks: 0,
            lap_bytes: None,
            detected_bytes: None,
            cold: Score::default(),
            warm: Score::default(),
        };
        let mut logs: Vec<JudgedLog> = truth.names.iter().map(none).collect();
        for (blocks, name, _) in &truth.ranges {
            logs[*name].blocks += blocks.end - blocks.start;
        }
        let (bits, none) = (Bits::new(truth.blocks), vec![0; logs.len()]);
        let (cold, warm) = (Score::default(), Score::default());
        let judged = Judged { other_blocks: 0, cold, warm, logs };
        let (ever, so_far, ever_blocks, so_far_blocks) = (bits.clone(), bits, none.clone(), none);
        Judge { truth, ever, ever_blocks, so_far, so_far_blocks, bytes: 0, judged }
    }

    pub(super) fn count(&mut self, blocks: Range<u64>) {
        for (name, bit, count) in self.truth.parts(blocks) {
            self.ever_blocks[name] += self.ever.set(bit..bit + count);
        }
    }

    pub(super) fn judge(&mut self, blocks: Range<u64>, is_journal: bool) {
        let count = blocks.end - blocks.start;
        self.bytes = self.bytes.saturating_add(count * flashlane_base::SECTOR_BYTES as u64);
        let mut of_logs = 0;
        for (name, bit, count) in self.truth.parts(blocks) {
            of_logs += count;
            let log = &mut self.judged.logs[name];
            log.written_blocks += count;
            let is_warm = log.lap_bytes.is_some();
            let scores = [(&mut log.cold, true), (&mut log.warm, is_warm)];
            let all = [(&mut self.judged.cold, true), (&mut self.judged.warm, is_warm)];
            for (score, _) in scores.into_iter().chain(all).filter(|(_, counts)| *counts) {
                *(if is_journal { &mut score.hits } else { &mut score.misses }) += count;
            }
            if is_journal && log.detected_bytes.is_none() {
                log.detected_bytes = Some(self.bytes);
            }
            self.so_far_blocks[name] += self.so_far.set(bit..bit + count);
            let (so_far, ever) = (self.so_far_blocks[name], self.ever_blocks[name]);
            let is_lap = so_far * 100 >= ever * LAP_PERCENT;
            if !is_warm && is_lap && ever * 100 >= log.blocks * USED_PERCENT {
                log.lap_bytes = Some(self.bytes);
            }
        }
        let others = count - of_logs;
        self.judged.other_blocks += others;
        if is_journal {
            self.judged.cold.false_alarms += others;
            let is_warm = self.judged.logs.iter().any(|log| log.lap_bytes.is_some());
            self.judged.warm.false_alarms += if is_warm { others } else { 0 };
        }
    }

    /// What was judged so far counts as a lap, and in nothing else.
    pub(super) fn begin_again(&mut self) {
        self.bytes = 0;
        self.judged.other_blocks = 0;
        (self.judged.cold, self.judged.warm) = Default::default();
        for log in &mut self.judged.logs {
            (log.cold, log.warm, log.written_blocks) = Default::default();
            log.lap_bytes = log.lap_bytes.map(|_| 0);
        }
    }

    pub(super) fn end(self) -> Judged {
        self.judged
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let said = |text: &str| Truth::parse(text, "t").unwrap_err().to_string();
        for (text, says) in [
            ("# a\n1 + 2", "t:2: four fields"),
            ("1 - 2 a", "t:1: four fields"),
            ("\nx + 2 a", "t:2: two numbers"),
            ("1 + 0 a", "above 0"),
            ("1 + 99999999999 a", "256 GiB"),
            ("18446744073709551615 + 1 a", "past the last block"),
            ("5 + 5 a\n1 + 4 a\n9 + 1 b", "t:3: it overlaps"),
        ] {
            assert!(said(text).contains(says), "{text}: {}", said(text));
        }
        assert!(Truth::parse("", "t").unwrap().ranges.is_empty());
    }

    /// A log of 10 blocks in two ranges, gone round once, and a block beside it.
    #[test]
    fn laps_precision_and_recall_are_as_they_say() {
        let truth = Truth::parse("100 + 4 log\n200 + 6 log\n500 + 8 other", "t").unwrap();
        let mut judge = Judge::new(truth);
        let writes = [
            (100..104, false),
            (198..206, false),
            (100..104, true),
            (102..103, false),
            (300..302, true),
        ];
        for (blocks, _) in &writes {
            judge.count(blocks.clone());
        }
        for (blocks, is_journal) in writes {
            judge.judge(blocks, is_journal);
        }
        let judged = judge.end();
        assert_eq!(judged.cold, Score { hits: 4, misses: 11, false_alarms: 2 });
        assert_eq!(judged.warm, Score { hits: 4, misses: 1, false_alarms: 2 });
        assert_eq!(judged.warm.precision().map(|p| (p * 100.0) as u64), Some(66));
        assert_eq!(judged.warm.recall(), Some(0.8));
        assert_eq!(judged.other_blocks, 4);
        let [log, other] = &judged.logs[..] else { panic!("{judged:?}") };
        assert_eq!((log.blocks, log.written_blocks), (10, 15));
        assert_eq!((log.lap_bytes, log.detected_bytes), (Some(12 * 4096), Some(16 * 4096)));
        assert_eq!(
            (other.lap_bytes, other.cold.recall(), other.cold.precision()),
            (None, None, None)
        );
    }
}
