//! The detector of journals on recordings of file systems and databases (`traces/detect`).
//!
//! Owns: which recordings judge (those whose name has an odd CRC-32C; the others have tuned the thresholds), what they
//! must reach, the table of all. Promises: a recording that is not there is skipped by its name. Never: sets a
//! threshold.

use flashlane_base::crc32c;
use flashlane_lab::trace::journals::{Journals, share_text};
use flashlane_lab::trace::progress::Unwatched;
use flashlane_lab::trace::scan::scan_kept;
use flashlane_lab::trace::truth::{Judged, Truth};
use flashlane_lab::trace::{Reading, TraceSource};
use flashlane_testkit::skip;
use std::path::PathBuf;

/// Every recording that there is to be.
const RECORDINGS: [&str; 32] = [
    "append-direct",
    "append-log",
    "copies",
    "copy-big",
    "copy-tree",
    "ext4-128-data",
    "ext4-128-ordered",
    "ext4-16-data",
    "ext4-16-ordered",
    "ext4-300-ordered",
    "ext4-512-data",
    "ext4-512-ordered",
    "ext4-64-ordered",
    "ext4-none",
    "mariadb-insert",
    "mariadb-update",
    "postgres",
    "postgres-insert",
    "postgres-update",
    "rewrite-direct",
    "rewrite-once",
    "rsync",
    "rsync-again",
    "rsync-tree",
    "sqlite-wal",
    "sqlite-wal-full",
    "sqlite-wal-large",
    "tar",
    "tar-backup",
    "xfs-fsync",
    "xfs-large",
    "xfs-mixed",
];

/// Warm precision and recall of a recording in which a log goes round.
const LEAST: f64 = 0.95;
/// Of a hundred blocks that are no log's, those that may be taken for one, where none goes round.
const WRONG_PERCENT: u64 = 5;
fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../traces/detect")
}

fn judges(name: &str) -> bool {
    crc32c(name.as_bytes()) % 2 == 1
}

/// None where the recording is missing.
fn judged(name: &str) -> Option<Judged> {
    let path = |suffix| folder().join(format!("{name}.{suffix}"));
    if !path("parquet").exists() || !path("truth").exists() {
        skip(&format!("detector-{name}"), "traces/detect does not have it (traces/record.sh)");
        return None;
    }
    let source = TraceSource::File(path("parquet"));
    let scan = scan_kept(&source, &Reading::default(), &Unwatched).unwrap();
    let truth = Truth::read(&path("truth")).unwrap();
    let found =
        Journals::of(None, &scan, Some(&truth), &Unwatched).unwrap().expect("it has writes");
    found.judged
}

/// A line of the table.
fn line(name: &str, judged: &Judged) -> String {
    let mib = |bytes: Option<u64>| {
        bytes.map_or("-".into(), |b| format!("{:.1}", b as f64 / (1 << 20) as f64))
    };
    let rounds = judged.logs.iter().filter(|log| log.lap_bytes.is_some());
    let logs: Vec<String> = rounds
        .map(|log| {
            format!("{} round {} found {}", log.name, mib(log.lap_bytes), mib(log.detected_bytes))
        })
        .collect();
    format!(
        "{name:<17} {:<6} {:>6} {:>6} {:>6} {:>6} {:>7} of {:>7}  {}\n",
        if judges(name) { "judges" } else { "tunes" },
        share_text(judged.cold.precision()),
        share_text(judged.cold.recall()),
        share_text(judged.warm.precision()),
        share_text(judged.warm.recall()),
        judged.cold.false_alarms,
        judged.other_blocks,
        logs.join("; ")
    )
}

/// Prints the table with `--nocapture`.
#[test]
fn recordings_that_judge_are_told_from_their_addresses() {
    let mut table = String::from(
        "recording         half     cold   cold   warm   warm   false   other  logs that go round: MiB written until\n\
         \x20                         prec.  recall prec.  recall alarms  blocks the first round ends, it is found\n",
    );
    let mut bad = Vec::new();
    for name in RECORDINGS {
        let Some(judged) = judged(name) else { continue };
        table += &line(name, &judged);
        let warm = [judged.warm.precision(), judged.warm.recall()];
        let wrong = match judged.logs.iter().any(|log| log.lap_bytes.is_some()) {
            true => warm.iter().any(|share| share.is_none_or(|share| share < LEAST)),
            false => judged.cold.false_alarms * 100 > judged.other_blocks * WRONG_PERCENT,
        };
        if judges(name) && wrong {
            bad.push(name);
        }
    }
    println!("{table}");
    assert!(bad.is_empty(), "{bad:?} of\n{table}");
}

/// The halves are what the recipes say, and each has logs and what is none.
#[test]
fn half_of_the_recordings_judge() {
    let count = |half: bool| RECORDINGS.iter().filter(|name| judges(name) == half).count();
    assert_eq!((count(true), count(false)), (13, 19));
    let recipes = folder().join("../recipes/detector.sh");
    let recipes = std::fs::read_to_string(recipes).unwrap();
    for name in RECORDINGS {
        assert!(recipes.contains(name), "{name} has no recipe");
    }
}
