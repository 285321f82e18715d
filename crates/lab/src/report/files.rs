//! What was done on a file system: calls by kind, and what the file system did for them.
//!
//! Owns: the numbers, their keys, their tables. Promises: every counter of the file system is in
//! JSON and CSV under its own name. Never: adds up what different layers count.

use super::numbers::{Report, RunReport};
use crate::histogram::LatencyNs;
use crate::personality::{CallKind, Checked, Work, levels};
use crate::together::Together;
use crate::words::{aligned, aligned_left, grouped, row, short};
use flashlane_base::counters::Counters;
use flashlane_base::{Bytes, Ns, SECTOR_BYTES};
use flashlane_parafs::Stats;
use serde::Serialize;
use std::collections::BTreeMap;

/// What was done on a file system in the measured part.
#[derive(Clone, Debug, Serialize)]
pub struct FilesReport {
    /// Calls per second, skips and what a store does to its files apart.
    pub calls_per_second: f64,
    /// By word, those that its programs have.
    pub calls: BTreeMap<&'static str, CallReport>,
    /// Files that were made before, and their bytes.
    pub prepared_files: u64,
    pub prepared_bytes: u64,
    /// What the file system wrote to the layers below, with all that was waiting in memory at the
    /// end, and read from there.
    pub written_below_sectors: u64,
    pub read_below_sectors: u64,
    /// Sectors that it wrote over sectors that its users wrote; null where they wrote nothing.
    pub amplification_ratio: Option<f64>,
    /// Sectors that the medium programmed over sectors that the file system wrote.
    pub amplification_below_ratio: Option<f64>,
    /// What was written at each level.
    pub traffic_sectors: Traffic,
    /// Share of the segments that the file system cleaned that was garbage; null where it cleaned none.
    pub cleaned_invalid_ratio: Option<f64>,
    /// Share of the flash blocks that were erased for data that was garbage when they were taken: GC
    /// efficiency (ParaFS paper, 2.2 and 4.3). Null where none was.
    pub erased_invalid_ratio: Option<f64>,
    /// When cleaning began, as far as was looked; null where it did not.
    pub cleaning_began_ns: Option<u64>,
    /// What the file system counts.
    pub file_system: BTreeMap<&'static str, u64>,
    /// What the check behind the run has looked at, all of it sound; null where it found faults, or
    /// the file system was read-only.
    pub checked: Option<Checked>,
    /// What lay together in flash blocks at the end; null where its FTL does not say where sectors lie, or the
    /// device is too large to look at each.
    pub together: Option<Together>,
    /// The first call that found no room: file, statement, cause; null where there was none, or its
    /// program has no words for it.
    pub refused: Option<String>,
    #[serde(skip)]
    pub(super) stats: Stats,
}

/// Sectors that were written at each level: by users, by the file system to what is below it, by that to
/// the medium (ParaFS paper, Figure 7, c and d).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Traffic {
    /// Written to files.
    pub users: u64,
    /// Of what the file system wrote: pages of files and folders, nodes, what cleaning has moved of both,
    /// tables in place.
    pub data: u64,
    pub nodes: u64,
    pub cleaning: u64,
    pub in_place: u64,
    /// All that it wrote to what is below it.
    pub file_system: u64,
    /// Of what was programmed: moved by the garbage collection below the file system.
    pub gc: u64,
    /// Of what was programmed: padding, and what the FTL below keeps for itself.
    pub own: u64,
    /// All that was programmed. Short of the sum by what is still in a buffer, or was written again there.
    pub flash: u64,
}

/// What is below a file system, as far as its report needs to know.
pub(super) struct Below {
    pub(super) segment_sectors: u64,
    /// Segments are flash blocks, and a trim is an erase.
    pub(super) on_flash: bool,
    /// What its own garbage collection took, and what of that was garbage.
    pub(super) victim_sectors: u64,
    pub(super) victim_invalid: u64,
    /// Programmed in all, and of that moved by garbage collection.
    pub(super) programmed: u64,
    pub(super) gc: u64,
    /// Neither users' nor moved.
    pub(super) own: u64,
}

/// Calls of one kind.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct CallReport {
    /// That ended, well or not.
    pub count: u64,
    pub failed: u64,
    /// That found no file to do it to.
    pub skipped: u64,
    pub bytes: u64,
    /// Of those that ended well.
    pub latency_ns: LatencyNs,
}

fn ratio(part: u64, of: u64) -> Option<f64> {
    (of > 0).then(|| part as f64 / of as f64)
}

impl FilesReport {
    /// With the sectors that its users wrote, and the time that it took.
    pub(super) fn of(work: &Work, written: u64, below: &Below, time: Ns) -> FilesReport {
        let calls = CallKind::ALL.into_iter().zip(&work.calls).map(|(kind, record)| {
            let report = CallReport {
                count: record.latency.count() + record.failed,
                failed: record.failed,
                skipped: record.skipped,
                bytes: record.bytes,
                latency_ns: (&record.latency).into(),
            };
            (kind.word(), report)
        });
        let calls: BTreeMap<_, _> = calls.filter(|(_, r)| r.count + r.skipped > 0).collect();
        let asked = CallKind::ALL.into_iter().filter(|kind| !kind.is_inner());
        let all: u64 = asked.filter_map(|kind| calls.get(kind.word())).map(|call| call.count).sum();
        let seconds = time.as_ns() as f64 / 1e9;
        let (s, page) = (&work.stats, work.page_sectors);
        let cleaned =
            (s.foreground_victims + s.background_victims + s.wear_victims) * below.segment_sectors;
        let trimmed = if below.on_flash { s.trims * below.segment_sectors } else { 0 };
        let of_trimmed = trimmed.saturating_sub(s.victim_valid_pages * page);
        let [data, nodes, cleaning, in_place] = levels(s, page);
        FilesReport {
            calls_per_second: if seconds > 0.0 { all as f64 / seconds } else { 0.0 },
            calls,
            prepared_files: work.prepared_files,
            prepared_bytes: work.prepared_bytes,
            written_below_sectors: work.written_below,
            read_below_sectors: work.read_below,
            amplification_ratio: ratio(work.written_below, written),
            amplification_below_ratio: ratio(below.programmed, work.written_below),
            traffic_sectors: Traffic {
                users: written,
                data,
                nodes,
                cleaning,
                in_place,
                file_system: work.written_below,
                gc: below.gc,
                own: below.own,
                flash: below.programmed,
            },
            cleaned_invalid_ratio: ratio(
                cleaned.saturating_sub(s.victim_valid_pages * page),
                cleaned,
            ),
            erased_invalid_ratio: ratio(
                of_trimmed + below.victim_invalid,
                trimmed + below.victim_sectors,
            ),
            cleaning_began_ns: work.cleaning.map(Ns::as_ns),
            file_system: named(&work.stats).collect(),
            checked: work.checked,
            together: work.together.clone(),
            refused: work.refused.clone(),
            stats: work.stats,
        }
    }

    /// Calls of a kind.
    pub fn call(&self, kind: CallKind) -> CallReport {
        self.calls.get(kind.word()).copied().unwrap_or_default()
    }
}

/// The counters of a file system by name.
pub(super) fn named(stats: &Stats) -> impl Iterator<Item = (&'static str, u64)> {
    Stats::SCHEMA.iter().map(|counter| counter.name).zip(stats.numbers())
}

/// A row per kind of call and stack, below a head; nothing where there is no file system.
pub(super) fn calls(report: &Report) -> Option<Vec<Vec<String>>> {
    let head =
        ["call", "", "calls", "per s", "mean", "p50", "p99", "p99.9", "max", "failed", "skipped"];
    let mut rows = vec![row(head)];
    for kind in CallKind::ALL {
        for r in &report.runs {
            let call = r.files.as_ref().map(|files| files.call(kind)).unwrap_or_default();
            if call.count + call.skipped == 0 {
                continue;
            }
            let l = call.latency_ns;
            let per_second = call.count as f64 * 1e9 / r.runtime_ns.max(1) as f64;
            let mut cells = vec![kind.word().to_string(), r.name.clone()];
            cells.extend([grouped(call.count), grouped(per_second as u64)]);
            cells.extend([l.mean, l.p50, l.p99, l.p99_9, l.max].map(short));
            cells.extend([grouped(call.failed), grouped(call.skipped)]);
            rows.push(cells);
        }
    }
    // A column of nothing but zeros says nothing.
    for column in [10, 9] {
        if rows[1..].iter().all(|cells| cells[column] == "0") {
            rows.iter_mut().for_each(|cells| drop(cells.remove(column)));
        }
    }
    (rows.len() > 1).then_some(rows)
}

/// A row per stack, below a head: what its file system did; nothing where there is none.
pub(super) fn done(report: &Report) -> Option<Vec<Vec<String>>> {
    let head = [
        "file system",
        "data pages",
        "moved",
        "nodes",
        "in place (4K)",
        "checkpoints",
        "segments cleaned",
        "valid in them",
        "erased",
    ];
    let mut rows = vec![row(head)];
    for r in &report.runs {
        let Some(FilesReport { stats: s, .. }) = &r.files else { continue };
        let cleaned = s.foreground_victims + s.background_victims + s.wear_victims;
        let nodes = s.fsync_nodes + s.checkpoint_nodes;
        let mut cells = vec![r.name.clone()];
        cells.extend([s.data_pages, s.moved_pages, nodes, s.meta_sectors].map(grouped));
        cells.extend([s.checkpoints, cleaned].map(grouped));
        cells.push(match cleaned {
            0 => "-".into(),
            n => format!("{:.1} pages", s.victim_valid_pages as f64 / n as f64),
        });
        cells.push(grouped(s.trims));
        rows.push(cells);
    }
    (rows.len() > 1).then_some(rows)
}

/// A row per stack, below a head: what was written at each level, and what was garbage in what was cleaned
/// and erased; nothing where there is no file system.
pub(super) fn traffic(report: &Report) -> Option<Vec<Vec<String>>> {
    let head = [
        "written, MiB",
        "by users",
        "data",
        "nodes",
        "cleaning",
        "in place",
        "= file system",
        "GC below",
        "padding, FTL",
        "= flash",
        "garbage in cleaned",
        "in erased",
    ];
    let mut rows = vec![row(head)];
    for r in &report.runs {
        let Some(files) = &r.files else { continue };
        let t = &files.traffic_sectors;
        let all =
            [t.users, t.data, t.nodes, t.cleaning, t.in_place, t.file_system, t.gc, t.own, t.flash];
        let mut cells = vec![r.name.clone()];
        cells.extend(all.map(|sectors| grouped((sectors * SECTOR_BYTES as u64) >> 20)));
        let shares = [files.cleaned_invalid_ratio, files.erased_invalid_ratio];
        cells
            .extend(shares.map(|s| s.map_or("-".into(), |share| format!("{:.1}%", 100.0 * share))));
        rows.push(cells);
    }
    (rows.len() > 1).then_some(rows)
}

/// A row per stack, below a head: what lay together in its flash blocks at the end; nothing where that is not
/// known.
pub(super) fn together(report: &Report) -> Option<Vec<Vec<String>>> {
    let head =
        ["lies together", "flash blocks", "segments in each", "files in each", "unused sectors"];
    let mut rows = vec![row(head)];
    for r in &report.runs {
        let Some(t) = r.files.as_ref().and_then(|files| files.together.as_ref()) else { continue };
        let mut cells = vec![r.name.clone(), grouped(t.blocks)];
        cells.extend([t.segments_mean, t.files_mean].map(|mean| format!("{mean:.2}")));
        cells.push(format!("{:.1}%", 100.0 * t.unused_ratio));
        rows.push(cells);
    }
    (rows.len() > 1).then_some(rows)
}

/// All of them, for a terminal.
pub(super) fn tables(report: &Report) -> String {
    let mut calls = calls(report).unwrap_or_default();
    let mut last = String::new();
    for cells in &mut calls {
        match cells[0] == last {
            true => cells[0].clear(),
            false => last.clone_from(&cells[0]),
        }
    }
    let shown = |text: String| if text.is_empty() { text } else { text + "\n" };
    let tables = [done(report), traffic(report), together(report)].map(Option::unwrap_or_default);
    tables.iter().fold(shown(aligned_left(&calls, 2)), |text, table| text + &shown(aligned(table)))
}

/// What was there at first, and what the check found at the end.
pub(super) fn note(r: &RunReport) -> Option<String> {
    let files = r.files.as_ref()?;
    let mut text = format!(
        "{}: {} files of {} at first",
        r.name,
        grouped(files.prepared_files),
        Bytes::new(files.prepared_bytes)
    );
    if let Some(c) = &files.checked {
        text += &format!(
            "; checked at the end: {} files, {} folders, {} pages, nothing wrong",
            grouped(c.files),
            grouped(c.directories),
            grouped(c.pages + c.nodes)
        );
    }
    Some(text)
}

/// Where the sectors came from that the medium programmed.
pub(super) fn amplification(r: &RunReport) -> Option<String> {
    let files = r.files.as_ref()?;
    let (above, below) = (files.amplification_ratio?, files.amplification_below_ratio?);
    let mut text = format!(
        "The file system wrote {above:.2} sectors per sector that was written to its files, and each \
         was programmed {below:.2} times."
    );
    let page = files.stats;
    let moved = page.moved_pages as f64 / page.data_pages.max(1) as f64;
    if moved > 0.0 {
        text += &format!(" Per page that was written, cleaning moved {moved:.2}.");
    }
    if above < 1.0 {
        text += " What was deleted or written again in memory was never written to it.";
    }
    Some(text)
}
