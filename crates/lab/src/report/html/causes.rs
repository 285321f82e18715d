//! Write amplification over time: by cause on the medium, by level of a file system.
//!
//! Owns: the steps of these figures. Promises and never: as in [`super::figures`].

use super::charts::{self, Layer};
use super::figures::{Figure, both, columns, course_table, ends, longest, panel, time_axis};
use super::page::{self, Table};
use super::svg::{Axis, Size};
use crate::personality::{FILE_SYSTEM, LEVELS};
use crate::report::numbers::{Report, RunReport};
use flashlane_ocssd::device::Cause;
use std::ops::Range;

/// Share of all host writes that a step of the write amplification covers at least.
const STEP_SHARE: f64 = 1.0 / 60.0;
/// A step of the write amplification is cut above so many times the whole run's.
const CUT_ABOVE: f64 = 4.0;

/// Ranges of buckets that each cover a share of what the host wrote.
fn write_steps(written: &[u64]) -> Vec<Range<usize>> {
    let total: u64 = written.iter().sum();
    let least = ((total as f64 * STEP_SHARE) as u64).max(1);
    let mut list: Vec<Range<usize>> = Vec::new();
    let (mut from, mut sum) = (0, 0);
    for (i, n) in written.iter().enumerate() {
        sum += n;
        if sum >= least {
            list.push(from..i + 1);
            (from, sum) = (i + 1, 0);
        }
    }
    // The rest is no step of its own.
    match list.last_mut() {
        Some(last) => last.end = written.len(),
        None if total > 0 => list.push(0..written.len()),
        None => {}
    }
    list
}

/// What is written for one reason, over time and in all.
struct Part<'a> {
    title: &'static str,
    class: String,
    /// Nothing where none of it falls into a step.
    each: Option<&'a [u64]>,
    total: u64,
}

/// The parts of what is written for what users or hosts write.
struct Parts<'a> {
    of: Vec<Part<'a>>,
    /// All that users or hosts wrote.
    written: u64,
    /// All parts over that.
    ratio: f64,
}

/// What is said of a figure of parts.
struct Words {
    title: &'static str,
    caption: String,
    /// Names the part, a row of the table.
    part: &'static str,
    /// Names the sum of them over what was written.
    ratio: &'static str,
    /// Names what is over what, in the table of the course.
    step: &'static str,
}

pub(super) fn amplification(report: &Report) -> Option<Figure> {
    let words = Words {
        title: "Write amplification by cause",
        caption: format!(
            "Sectors programmed per sector that the host wrote. {STEP} The flush that ends a run is in \
             the table and in the number at the right, not in the course. {CUT}"
        ),
        part: "cause",
        ratio: "write amplification",
        step: "programmed per sector written",
    };
    figure(report, words, |r| {
        let parts = Cause::ALL.into_iter().map(|cause| {
            let each = r.timeline.programmed_by_cause_sectors.get(cause.name());
            let (class, total) = (format!("c-{}", cause.name()), r.programmed_sectors.of(cause));
            Part { title: cause.title(), class, each: each.map(Vec::as_slice), total }
        });
        Some(Parts {
            of: parts.collect(),
            written: r.buffer_sectors.host_written,
            ratio: r.write_amplification_ratio.unwrap_or(0.0),
        })
    })
}

/// The same of a file system: what it writes to the layers below it, cleaning apart.
pub(super) fn of_file_system(report: &Report) -> Option<Figure> {
    let words = Words {
        title: "What the file system writes, by level",
        caption: format!(
            "Sectors that the file system wrote to what is below it, per sector that its users wrote: \
             the garbage collection below it is in the write amplification. {STEP} What is in memory \
             at the end and written then is in the table and in the number at the right. {CUT}"
        ),
        part: "level",
        ratio: "write amplification of the file system",
        step: "written below per sector of users",
    };
    figure(report, words, |r| {
        let (files, course) = (r.files.as_ref()?, r.timeline.layers.get(FILE_SYSTEM)?);
        let t = files.traffic_sectors;
        let levels = [
            (LEVELS[0], "users' pages, and folders", "user", t.data),
            (LEVELS[1], "nodes", "log", t.nodes),
            (LEVELS[2], "cleaning", "gc", t.cleaning),
            (LEVELS[3], "in place", "metadata", t.in_place),
        ];
        let parts = levels.into_iter().map(|(name, title, class, total)| {
            let each = course.get(name).map(Vec::as_slice);
            Part { title, class: format!("c-{class}"), each, total }
        });
        let ratio = files.amplification_ratio.unwrap_or(0.0);
        Some(Parts { of: parts.collect(), written: t.users, ratio })
    })
}

const STEP: &str = "A step is as long as it takes to write a sixtieth of all that was written, so that \
                    a quiet time has no ratio of its own; what was written in a step may reach the \
                    layers below in the next.";
const CUT: &str = "A step that is cut at the top has its height beside it.";

fn figure<'a>(
    report: &'a Report,
    words: Words,
    parts: impl Fn(&'a RunReport) -> Option<Parts<'a>>,
) -> Option<Figure> {
    let mut stacks: Vec<(&RunReport, Parts<'_>, Vec<f64>, Vec<Layer>)> = Vec::new();
    for r in &report.runs {
        let Some(parts) = parts(r) else { continue };
        let written = &r.timeline.host_written_sectors;
        let steps = write_steps(written);
        let ends = ends(r);
        let layers = parts.of.iter().filter_map(|part| {
            let each = part.each?;
            let share = |g: &Range<usize>| {
                let sum = |list: &[u64]| list[g.clone()].iter().sum::<u64>() as f64;
                sum(each) / sum(written).max(1.0)
            };
            let values = steps.iter().map(share).collect();
            Some(Layer { name: part.title.into(), class: part.class.clone(), values })
        });
        let layers: Vec<Layer> = layers.collect();
        if !steps.is_empty() && !layers.is_empty() {
            let ends = steps.iter().map(|g| ends[g.end - 1]).collect();
            stacks.push((r, parts, ends, layers));
        }
    }
    let total = longest(report);
    let top = |layers: &[Layer]| {
        let n = layers.first().map_or(0, |l| l.values.len());
        (0..n).map(|i| layers.iter().map(|l| l.values[i]).sum::<f64>()).fold(0.0, f64::max)
    };
    let high = stacks.iter().map(|(.., layers)| top(layers)).fold(1.0, f64::max);
    // One step with what was written before it must not hide all the others: it is cut, and says so.
    let usual = stacks.iter().map(|(_, parts, ..)| parts.ratio).fold(0.5, f64::max);
    let high = high.min(CUT_ABOVE * usual);
    // Each that some stack has, as they come; the last says whether it is drawn.
    let mut used: Vec<(&str, &str, bool)> = Vec::new();
    for part in stacks.iter().flat_map(|(_, parts, ..)| &parts.of) {
        match used.iter_mut().find(|(title, ..)| *title == part.title) {
            Some((.., drawn)) => *drawn |= part.each.is_some(),
            None if part.total > 0 || part.each.is_some() => {
                used.push((part.title, &part.class, part.each.is_some()));
            }
            None => {}
        }
    }
    let drawn = used.iter().filter(|(.., drawn)| *drawn);
    let mut body = page::legend(drawn.map(|(title, class, _)| ((*class).into(), (*title).into())));
    let mut table = Table::new(&[words.part]);
    for (r, parts, ends, layers) in &stacks {
        let whole = parts.ratio;
        let draw = |size: &Size| {
            let (x, factor) = time_axis(total, size);
            let y = Axis::linear(high, 3, "", "");
            let ends: Vec<f64> = ends.iter().map(|e| e / factor).collect();
            let note = ["whole run".to_string(), format!("{whole:.2}")];
            let alt = format!("{}: {} over time", r.name, words.title.to_lowercase());
            charts::areas(size, &x, &y, &ends, layers, &note, &alt)
        };
        body += &panel(&r.name, &both(190.0, 190.0, draw));
        table.head.push(r.name.clone());
    }
    for (title, ..) in &used {
        let share = |parts: &Parts<'_>| {
            let part = parts.of.iter().find(|part| part.title == *title);
            part.map_or(0, |part| part.total) as f64 / parts.written.max(1) as f64
        };
        let mut row = vec![(*title).to_string()];
        row.extend(stacks.iter().map(|(_, parts, ..)| format!("{:.4}", share(parts))));
        table.rows.push(row);
    }
    let mut row = vec![words.ratio.to_string()];
    row.extend(stacks.iter().map(|(_, parts, ..)| format!("{:.4}", parts.ratio)));
    table.rows.push(row);
    let columns = columns(report, [()], |r, ()| {
        let (_, parts, ..) = stacks.iter().find(|(of, ..)| std::ptr::eq(*of, r))?;
        let ratio = |range: Range<usize>| {
            let sum = |list: &[u64]| list[range.clone()].iter().sum::<u64>();
            match sum(&r.timeline.host_written_sectors) {
                0 => "–".into(),
                n => {
                    let all: u64 = parts.of.iter().filter_map(|part| part.each).map(sum).sum();
                    format!("{:.3}", all as f64 / n as f64)
                }
            }
        };
        Some((words.step.into(), Box::new(ratio)))
    });
    let course = course_table(report, columns);
    (!stacks.is_empty()).then(|| Figure {
        title: words.title,
        caption: words.caption,
        body,
        tables: vec![table, course],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_covers_its_share_of_the_writes_and_none_is_lost() {
        let mut written = vec![0; 40];
        (written[3], written[4], written[39]) = (600, 1, 1);
        assert_eq!(write_steps(&written).as_slice(), std::slice::from_ref(&(0..40)));
        let steps = write_steps(&[100; 480]);
        assert_eq!((steps.len(), &steps[0], &steps[59]), (60, &(0..8), &(472..480)));
        assert!(write_steps(&[0; 9]).is_empty());
    }
}
