//! Write amplification by cause over time.
//!
//! Owns: the steps of that figure. Promises and never: as in [`super::figures`].

use super::charts::{self, Layer};
use super::figures::{Figure, both, columns, course_table, ends, longest, panel, time_axis};
use super::page::{self, Table};
use super::svg::{Axis, Size};
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

pub(super) fn amplification(report: &Report) -> Option<Figure> {
    let mut stacks: Vec<(&RunReport, Vec<f64>, Vec<Layer>)> = Vec::new();
    for r in &report.runs {
        let t = &r.timeline;
        let steps = write_steps(&t.host_written_sectors);
        let ends = ends(r);
        let layers: Vec<Layer> = Cause::ALL
            .iter()
            .filter_map(|cause| {
                let key = cause.name();
                let programmed = t.programmed_by_cause_sectors.get(key)?;
                let share = |g: &Range<usize>| {
                    let sum = |list: &[u64]| list[g.clone()].iter().sum::<u64>() as f64;
                    sum(programmed) / sum(&t.host_written_sectors).max(1.0)
                };
                let values = steps.iter().map(share).collect();
                Some(Layer { name: cause.title().into(), class: format!("c-{key}"), values })
            })
            .collect();
        if !steps.is_empty() && !layers.is_empty() {
            stacks.push((r, steps.iter().map(|g| ends[g.end - 1]).collect(), layers));
        }
    }
    let total = longest(report);
    let top = |layers: &[Layer]| {
        let n = layers.first().map_or(0, |l| l.values.len());
        (0..n).map(|i| layers.iter().map(|l| l.values[i]).sum::<f64>()).fold(0.0, f64::max)
    };
    let high = stacks.iter().map(|(.., layers)| top(layers)).fold(1.0, f64::max);
    // One step with what was written before it must not hide all the others: it is cut, and says so.
    let whole = |r: &RunReport| r.write_amplification_ratio.unwrap_or(0.0);
    let usual = report.runs.iter().map(whole).fold(0.5, f64::max);
    let high = high.min(CUT_ABOVE * usual);
    let mut body = page::legend(Cause::ALL.iter().filter_map(|cause| {
        let class = format!("c-{}", cause.name());
        let used = stacks.iter().any(|s| s.2.iter().any(|l| l.class == class));
        used.then(|| (class, cause.title().to_string()))
    }));
    let mut table = Table::new(&["cause"]);
    for (r, ends, layers) in &stacks {
        let whole = r.write_amplification_ratio.unwrap_or(0.0);
        let draw = |size: &Size| {
            let (x, factor) = time_axis(total, size);
            let y = Axis::linear(high, 3, "", "");
            let ends: Vec<f64> = ends.iter().map(|e| e / factor).collect();
            let note = ["whole run".to_string(), format!("{whole:.2}")];
            let alt = format!("{}: write amplification by cause over time", r.name);
            charts::areas(size, &x, &y, &ends, layers, &note, &alt)
        };
        body += &panel(&r.name, &both(190.0, 190.0, draw));
        table.head.push(r.name.clone());
    }
    for cause in Cause::ALL {
        let share = |r: &RunReport| {
            let written = r.buffer_sectors.host_written.max(1) as f64;
            r.programmed_sectors.of(cause) as f64 / written
        };
        if stacks.iter().any(|(r, ..)| share(r) > 0.0) {
            let mut row = vec![cause.title().to_string()];
            row.extend(stacks.iter().map(|(r, ..)| format!("{:.4}", share(r))));
            table.rows.push(row);
        }
    }
    let mut row = vec!["write amplification".to_string()];
    let whole = |r: &RunReport| format!("{:.4}", r.write_amplification_ratio.unwrap_or(0.0));
    row.extend(stacks.iter().map(|(r, ..)| whole(r)));
    table.rows.push(row);
    let columns = columns(report, [()], |r, ()| {
        let ratio = |range: Range<usize>| {
            let sum = |list: &[u64]| list[range.clone()].iter().sum::<u64>();
            match sum(&r.timeline.host_written_sectors) {
                0 => "–".into(),
                n => format!("{:.3}", sum(&r.timeline.programmed_sectors) as f64 / n as f64),
            }
        };
        Some(("programmed per sector written".into(), Box::new(ratio)))
    });
    (!stacks.is_empty()).then(|| Figure {
        title: "Write amplification by cause",
        caption: "Sectors programmed per sector that the host wrote. A step is as long as it takes \
                  the host to write a sixtieth of all it wrote, so that a quiet time has no ratio of \
                  its own; what was written in a step may be programmed in the next. The flush that \
                  ends a run is in the table and in the number at the right, not in the course. A step \
                  that is cut at the top has its height beside it."
            .into(),
        body,
        tables: vec![table, course_table(report, columns)],
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
