//! What valid pages are to the file system above, over time.
//!
//! Owns: which kinds are drawn together. Promises and never: as in [`super::figures`].

use super::charts::{self, Layer};
use super::figures::{
    Figure, both, columns, course_table, ends, groups, longest, panel, time_axis,
};
use super::page;
use super::svg::{Axis, Size};
use crate::report::numbers::{Report, RunReport};
use flashlane_base::SECTOR_BYTES;
use flashlane_ext4::Holds;
use std::ops::Range;

/// Kinds that are drawn as one, with its class and name: what is needed first, ghost pages behind.
const PARTS: [(&str, &str, &[Holds]); 8] = [
    ("c-user", "files", &[Holds::Data, Holds::Files, Holds::Directory, Holds::Tree]),
    ("c-metadata", "metadata", &[Holds::Superblock, Holds::Bitmap, Holds::Inodes]),
    ("c-fold", "not known yet", &[Holds::Unknown]),
    ("c-log", "journal", &[Holds::Journal]),
    ("c-retry", "ghosts: dead inodes", &[Holds::DeadInodes]),
    ("c-padding_flush", "ghosts: zeros", &[Holds::ZeroInodes, Holds::ZeroBitmap]),
    ("c-gc", "ghosts: log of the journal", &[Holds::DeadJournal]),
    ("c-dead", "ghosts: free blocks", &[Holds::Freed]),
];

/// A part's sectors at the end of each span.
fn part(r: &RunReport, kinds: &[Holds]) -> Vec<u64> {
    let mut sum = vec![0; r.timeline.pages.values().next().map_or(0, Vec::len)];
    for kind in kinds {
        let each = r.timeline.pages.get(&*format!("{}_sectors", kind.name()));
        let each = each.into_iter().flatten();
        sum.iter_mut().zip(each).for_each(|(sum, n)| *sum += n);
    }
    sum
}

pub(super) fn figure(report: &Report) -> Option<Figure> {
    let total = longest(report);
    let with: Vec<&RunReport> =
        report.runs.iter().filter(|r| !r.timeline.pages.is_empty()).collect();
    let used: Vec<_> = PARTS
        .iter()
        .filter(|(.., kinds)| with.iter().any(|r| part(r, kinds).iter().any(|n| *n > 0)))
        .collect();
    if used.is_empty() {
        return None;
    }
    let names = used.iter().map(|(class, name, _)| (class.to_string(), name.to_string()));
    let mut body = page::legend(names);
    let high = with.iter().flat_map(|r| r.timeline.pages.get("held_sectors")).flatten();
    let high = high.copied().max().unwrap_or(1) as f64 * SECTOR_BYTES as f64 / 1e6;
    for r in &with {
        let draw = |size: &Size| {
            let (x, factor) = time_axis(total, size);
            let of_spans = ends(r);
            let groups = groups(of_spans.len(), size.points / 2);
            let layers: Vec<Layer> = used
                .iter()
                .map(|(class, name, kinds)| {
                    let sectors = part(r, kinds);
                    // A state: what is so at the end of the group.
                    let mb = |g: &Range<usize>| {
                        sectors.get(g.end - 1).copied().unwrap_or(0) as f64 * SECTOR_BYTES as f64
                            / 1e6
                    };
                    let values = groups.iter().map(mb).collect();
                    Layer { name: name.to_string(), class: class.to_string(), values }
                })
                .collect();
            let y = Axis::linear(high, 3, "", "MB");
            let ends: Vec<f64> = groups.iter().map(|g| of_spans[g.end - 1] / factor).collect();
            let alt = format!("{}: valid pages by what they hold over time, in MB", r.name);
            charts::areas(size, &x, &y, &ends, &layers, &[], &alt)
        };
        body += &panel(&format!("{}: valid pages, MB", r.name), &both(190.0, 190.0, draw));
    }
    let courses = columns(report, [()], |r, ()| {
        if r.timeline.pages.is_empty() {
            return None;
        }
        let names: Vec<&str> = used.iter().map(|part| part.1).collect();
        let all: Vec<Vec<u64>> = used.iter().map(|(.., kinds)| part(r, kinds)).collect();
        let text = move |range: Range<usize>| {
            let at = range.end.saturating_sub(1);
            let each = all.iter().map(|part| part.get(at).copied().unwrap_or(0).to_string());
            each.collect::<Vec<_>>().join(" + ")
        };
        Some((format!("{}, sectors", names.join(" + ")), Box::new(text)))
    });
    Some(Figure {
        title: "What the valid pages hold",
        caption: "Sectors that the stack keeps, by what they are to the ext4 file system on it. Of ghost pages \
                  it needs nothing any more, and the drive does not know. It is told by what was written to \
                  the metadata so far. MB is 10<sup>6</sup> bytes."
            .into(),
        body,
        tables: vec![course_table(report, courses)],
    })
}
