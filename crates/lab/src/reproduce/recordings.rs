//! Points of recorded traces: what the host wrote, and what the detector of journals says of it.
//!
//! Owns: the metrics of a recording. Promises: what came before a recording teaches the detector and counts in
//! no metric; a trace that can't be read is an error. Never: runs a drive.

use super::file::{FigureFile, Recording};
use super::points::{Point, Points, Values};
use super::{ReproduceError, Way};
use crate::execute::ExecuteError;
use crate::trace::journals::Journals;
use crate::trace::scan::{Scan, scan_kept};
use crate::trace::truth::JOURNAL;
use crate::trace::{Reading, TraceError, TraceSource};

/// What its points are called.
const SERIES: &str = "recording";

/// Adds all points of a figure's recordings.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    points: &mut Points,
) -> Result<(), ReproduceError> {
    for recordings in &file.recordings {
        let all = file.recordings_of(recordings)?;
        let values = way.each(&all, |recording| match values(recording, way) {
            Err(TraceError::Interrupted { .. }) => Ok(None),
            other => Ok(Some(other.map_err(ExecuteError::from)?)),
        })?;
        for (recording, values) in all.into_iter().zip(values) {
            let (series, values) = (SERIES.to_string(), values.unwrap_or_default());
            points.add(Point { series, at: recording.at, values });
        }
    }
    Ok(())
}

fn values(recording: &Recording, way: &Way<'_>) -> Result<Values, TraceError> {
    let monitor = way.watch.part(&recording.trace.name());
    let read = |source: &TraceSource| scan_kept(source, &Reading::default(), &*monitor);
    let scan = read(&recording.trace)?;
    let before = recording.warm_up.as_ref().map(read).transpose()?;
    let mut values = host(&scan);
    if let Some([reads, writes]) = recording.application {
        values.insert("application_reads".into(), reads);
        values.insert("application_writes".into(), writes);
        values.insert("application_read_to_write_ratio".into(), reads / writes);
    }
    let found = Journals::of(before.as_ref(), &scan, recording.truth.as_ref(), &*monitor)?;
    if let Some(found) = found {
        let (journal, all) = (found.journal_bytes as f64, found.written_bytes as f64);
        values.insert("called_journal_percent".into(), 100.0 * journal / all);
        values.insert("loops".into(), found.loops.len() as f64);
        if let Some(judged) = found.judged {
            // A database's log is normal data: it is no file system's journal.
            let is_journal = |name: &str| name == JOURNAL;
            let [mut journal, mut normal] = [0, judged.other_blocks];
            for log in &judged.logs {
                *(if is_journal(&log.name) { &mut journal } else { &mut normal }) +=
                    log.written_blocks;
            }
            let (journal, normal) = (journal as f64, normal as f64);
            let shares = [
                ("journal_percent", 100.0 * journal / (journal + normal)),
                ("normal_percent", 100.0 * normal / (journal + normal)),
                ("journal_to_normal_ratio", journal / normal),
                ("normal_to_journal_ratio", normal / journal),
            ];
            values.extend(shares.map(|(name, value)| (name.to_string(), value)));
            let scores = [("precision", judged.warm.precision()), ("recall", judged.warm.recall())];
            let scores = scores.into_iter().filter_map(|(name, s)| Some((name.to_string(), s?)));
            values.extend(scores);
        }
    }
    // A share of nothing is none.
    values.retain(|_, value| value.is_finite());
    Ok(values)
}

/// What the host asked for.
fn host(scan: &Scan) -> Values {
    let [read, written] = [0, 1].map(|op| scan.chosen().ops[op].bytes);
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    Values::from([
        ("read_mib".into(), mib(read)),
        ("written_mib".into(), mib(written)),
        ("read_to_write_ratio".into(), read as f64 / written as f64),
    ])
}
