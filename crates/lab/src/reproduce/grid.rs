//! Points of experiments: each target at each place of a grid.
//!
//! Owns: the order of the points, the metrics of one. Promises: each point is run as `flashlane run` would run
//! it, by itself, so the numbers are the same on any number of threads; a run that broke a rule or read wrong
//! data is an error, not a point. Never: shares anything between points.

use super::file::{Course, FigureFile, Grid};
use super::points::{Placed, Point, Points, Values};
use super::{ReproduceError, Way};
use crate::execute::{How, Outcome, RunOutcome, execute};
use crate::experiment::Experiment;
use crate::naming;
use crate::report::Report;
use crate::run::record::Bucket;
use crate::words::mb_per_s;
use flashlane_base::Ns;

/// One run.
pub(super) struct Part {
    series: String,
    at: Vec<(String, String)>,
    pub(super) experiment: Experiment,
    course: Course,
}

impl Part {
    /// All that decides its values, where that can be said.
    fn description(&self) -> Option<String> {
        let decides = naming::experiment(&self.experiment)?;
        Some(format!("{:?} {decides}", self.course))
    }

    pub(super) fn name(&self) -> String {
        let places = self.at.iter().map(|(axis, value)| format!(", {axis} {value}"));
        self.series.clone() + &places.collect::<String>()
    }
}

/// Adds all points of a figure's grids.
pub(super) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    points: &mut Points,
) -> Result<(), ReproduceError> {
    let parts = parts(file)?;
    let values =
        way.each(&parts, |part| way.known.get(part.description(), way.watch, || run(part, way)))?;
    for (part, found) in parts.into_iter().zip(values) {
        for (on, values) in found.unwrap_or_else(|| vec![Placed::default()]) {
            let at = part.at.iter().cloned().chain(on).collect();
            points.add(Point { series: part.series.clone(), at, values });
        }
    }
    Ok(())
}

/// All runs of a figure's grids.
pub(super) fn parts(file: &FigureFile) -> Result<Vec<Part>, ReproduceError> {
    let mut parts = Vec::new();
    for grid in &file.grids {
        parts_of(file, grid, &mut parts)?;
    }
    Ok(parts)
}

fn parts_of(file: &FigureFile, grid: &Grid, parts: &mut Vec<Part>) -> Result<(), ReproduceError> {
    for point in 0..file.points(grid) {
        let experiment = file.experiment(grid, point)?;
        for target in experiment.targets.iter().filter(|target| grid.takes(&target.name)) {
            let one = Experiment { targets: vec![target.clone()], ..experiment.clone() };
            let series = grid.series_of(&target.name);
            let (at, course) = (file.place(&grid.axes, point), grid.course);
            parts.push(Part { series, at, experiment: one, course });
        }
    }
    Ok(())
}

/// What was found; `None` when it was interrupted.
fn run(part: &Part, way: &Way<'_>) -> Result<Option<Vec<Placed>>, ReproduceError> {
    let name = part.name();
    let outcome = execute(&part.experiment, How::default(), &|_| way.watch.part(&name))?;
    if outcome.is_bad() {
        let allowed = outcome.experiment.run.allow_errors;
        let of = |run: &RunOutcome| run.bad_because(allowed);
        let what = outcome.runs.iter().flat_map(of).collect::<Vec<_>>().join("; ");
        return Err(ReproduceError::Bad { figure: name, what });
    }
    if outcome.interrupted {
        return Ok(None);
    }
    let found = match part.course {
        Course::Whole => Ok(vec![(None, values(&outcome))]),
        Course::Every(span) => course(&outcome, span),
        Course::Percentiles => percentiles(&outcome),
        Course::Chunks => Ok(chunks(&outcome)),
    };
    found.map(Some).map_err(|what| ReproduceError::Bad { figure: name, what })
}

/// Points of one course at most.
const SPANS_MAX: u64 = 4096;

/// Rates span by span, where each ends; the last one may be shorter.
fn course(outcome: &Outcome, span: Ns) -> Result<Vec<Placed>, String> {
    let Some(run) = outcome.runs.first() else { return Ok(vec![Placed::default()]) };
    let timeline = &run.measured.recorder.timeline;
    let (width, buckets) = (timeline.width(), timeline.buckets());
    let whole = width.times(buckets.len() as u64);
    if whole == Ns::ZERO {
        return Err("it ended before there was a course".into());
    }
    if span < width || whole.as_ns() / span.as_ns() >= SPANS_MAX {
        return Err(format!(
            "`every` is {span}, for a run of {whole} it is {width} at least and no more than {SPANS_MAX} spans"
        ));
    }
    let placed = |(i, [read, write, requests]): (usize, &[f64; 3])| {
        let (begin, end) = (i as u64 * span.as_ns(), (i as u64 + 1) * span.as_ns());
        let time = (end.min(whole.as_ns()) - begin) as f64 / 1e9;
        let rate = |bytes: f64| bytes / f64::from(1 << 20) / time;
        let values = [
            ("read_mib_per_s", rate(*read)),
            ("write_mib_per_s", rate(*write)),
            ("requests_per_s", requests / time),
        ];
        let values = values.map(|(name, value)| (name.to_string(), value));
        (Some(("seconds".to_string(), (end as f64 / 1e9).to_string())), Values::from(values))
    };
    Ok(by_span(buckets, width, span).iter().enumerate().map(placed).collect())
}

/// Bytes read, bytes written and requests, span by span; a bucket that lies in two is divided by time.
fn by_span(buckets: &[Bucket], width: Ns, span: Ns) -> Vec<[f64; 3]> {
    let whole = width.times(buckets.len() as u64);
    let mut spans = vec![[0.0; 3]; whole.as_ns().div_ceil(span.as_ns()) as usize];
    for (i, bucket) in buckets.iter().enumerate() {
        let begin = width.times(i as u64).as_ns();
        let at = begin / span.as_ns();
        let here = ((at + 1) * span.as_ns() - begin).min(width.as_ns());
        let share = here as f64 / width.as_ns() as f64;
        let sums = [bucket.read_bytes, bucket.write_bytes, bucket.requests];
        for (kind, n) in sums.into_iter().enumerate() {
            spans[at as usize][kind] += n as f64 * share;
            if share < 1.0 {
                spans[at as usize + 1][kind] += n as f64 * (1.0 - share);
            }
        }
    }
    spans
}

/// How long a journal's writes took until they were durable, percent by percent.
fn percentiles(outcome: &Outcome) -> Result<Vec<Placed>, String> {
    let Some(run) = outcome.runs.first() else { return Ok(vec![Placed::default()]) };
    let journal = &run.measured.recorder.journal;
    if journal.count() == 0 {
        return Err("`percentiles` is about a journal's writes, and there were none that became \
                    durable: give the trace its `truth`"
            .into());
    }
    let placed = |percent: u32| {
        let us = journal.percentile_ns(f64::from(percent)) as f64 / 1e3;
        let values = Values::from([("journal_durable_us".to_string(), us)]);
        (Some(("percent".to_string(), percent.to_string())), values)
    };
    Ok((5..=95).step_by(5).chain([99]).map(placed).collect())
}

/// Valid sectors of each chunk that has some, the first ones of the device first.
fn chunks(outcome: &Outcome) -> Vec<Placed> {
    let runs = outcome.runs.iter();
    let placed = runs.flat_map(|run| {
        let per_pu = u64::from(run.geometry.chunks_per_pu);
        run.valid.iter().map(move |((pu, chunk), valid)| {
            let number = u64::from(*pu) * per_pu + u64::from(*chunk);
            let values = Values::from([("valid_sectors".to_string(), f64::from(*valid))]);
            (Some(("chunk".to_string(), number.to_string())), values)
        })
    });
    placed.collect()
}

/// Every number that `run --csv` writes, and rates, latencies in microseconds, shares of the host's CPUs in percent.
fn values(outcome: &Outcome) -> Values {
    let report = Report::of(outcome);
    let mut values = Values::new();
    let (columns, rows) = report.cells();
    for (column, cell) in columns.iter().zip(rows.iter().flatten()) {
        let number = match cell.as_str() {
            "true" => Some(1.0),
            "false" => Some(0.0),
            number => number.parse().ok(),
        };
        let Some(value) = number else { continue };
        values.insert(column.clone(), value);
        if let Some(latency) = column.strip_suffix("_ns") {
            values.insert(format!("{latency}_us"), value / 1e3);
        }
        if let Some(share) = column.strip_suffix("_ratio").filter(|c| c.starts_with("cpu_")) {
            values.insert(format!("{share}_percent"), 100.0 * value);
        }
    }
    for run in &report.runs {
        for (op, bytes) in [("read", run.bytes_read), ("write", run.bytes_written)] {
            let rate = mb_per_s(bytes, run.runtime_ns);
            values.insert(format!("{op}_mb_per_s"), rate);
            values.insert(format!("{op}_mib_per_s"), rate * 1e6 / f64::from(1 << 20));
        }
        for (layer, numbers) in &run.layers {
            let each = numbers.iter().map(|(name, n)| (format!("{layer}_{name}"), *n as f64));
            values.extend(each);
        }
        values.extend(run.pages.iter().map(|(kind, n)| (format!("pages_{kind}"), *n as f64)));
        values.insert("runtime_s".into(), run.runtime_ns as f64 / 1e9);
        let victims = ["foreground", "background", "wear"].map(|kind| format!("fs_{kind}_victims"));
        let victims = victims.iter().filter_map(|name| values.get(name)).sum();
        values.insert("fs_victims".into(), victims);
        values.insert("cpu_idle_percent".into(), 100.0 * run.cpu.idle_ratio);
        media(outcome, &mut values);
        periods(outcome, &mut values);
        cleaning(outcome, &mut values);
    }
    values
}

/// Spans into which the time with cleaning is divided: as many for a fast run as for a slow one.
const CLEANING_SPANS: u64 = 64;

/// A file system before its cleaning began, and behind that: requests per second, and how far those of a
/// span lie from their mean (coefficient of variation).
fn cleaning(outcome: &Outcome, values: &mut Values) {
    let Some(run) = outcome.runs.first() else { return };
    let timeline = &run.measured.recorder.timeline;
    let (buckets, width) = (timeline.buckets(), timeline.width());
    let began = run.measured.files.as_ref().and_then(|work| work.cleaning);
    let Some(began) = began.filter(|_| width > Ns::ZERO) else { return };
    // The bucket in which it began is part of neither.
    let at = (began.as_ns() / width.as_ns()) as usize;
    let (before, behind) =
        (&buckets[..at.min(buckets.len())], buckets.get(at + 1..).unwrap_or(&[]));
    values.insert("cleaning_began_s".into(), began.as_secs_f64());
    for (name, part) in [("before_cleaning", before), ("cleaning", behind)] {
        let requests: u64 = part.iter().map(|bucket| bucket.requests).sum();
        let time = width.as_secs_f64() * part.len() as f64;
        if time > 0.0 {
            values.insert(format!("{name}_requests_per_s"), requests as f64 / time);
        }
    }
    let whole = width.times(behind.len() as u64);
    let span = Ns::from_ns(whole.as_ns() / CLEANING_SPANS);
    // Finer than a bucket nothing is known.
    if span < width {
        return;
    }
    let spans = by_span(behind, width, span);
    let rates: Vec<f64> = spans[..CLEANING_SPANS as usize].iter().map(|sums| sums[2]).collect();
    let mean = rates.iter().sum::<f64>() / rates.len() as f64;
    let variance = rates.iter().map(|rate| (rate - mean).powi(2)).sum::<f64>() / rates.len() as f64;
    if mean > 0.0 {
        values.insert("cleaning_variation_percent".into(), 100.0 * variance.sqrt() / mean);
    }
}

/// A drive with an SLC buffer before and after the buffer was full for the first time.
fn periods(outcome: &Outcome, values: &mut Values) {
    let sum = |names: [&str; 2]| -> f64 {
        names.iter().filter_map(|name| values.get(&format!("slc_part_{name}_sectors"))).sum()
    };
    let to_tlc = sum(["direct", "migrated"]) * flashlane_base::SECTOR_BYTES as f64;
    values.insert("to_tlc_mib".into(), to_tlc / f64::from(1 << 20));
    let Some(sectors) = values.get("slc_part_before_direct_sectors").copied() else { return };
    let (Some(run), true) = (outcome.runs.first(), sectors > 0.0) else { return };
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let period = sectors as u64 * flashlane_base::SECTOR_BYTES as u64;
    values.insert("slc_period_mib".into(), mib(period));
    let timeline = &run.measured.recorder.timeline;
    let (mut bytes, mut spans) = ([0u64; 2], [0u64; 2]);
    for bucket in timeline.buckets() {
        let at = usize::from(bytes[0] >= period);
        bytes[at] += bucket.write_bytes;
        spans[at] += 1;
    }
    for (name, at) in [("slc", 0), ("tlc", 1)] {
        let time = timeline.width().as_secs_f64() * spans[at] as f64;
        if time > 0.0 {
            values.insert(format!("{name}_period_mib_per_s"), mib(bytes[at]) / time);
        }
    }
}

/// What the medium did.
fn media(outcome: &Outcome, values: &mut Values) {
    for run in &outcome.runs {
        let (m, media) = (&run.measured, &run.media);
        let bytes = (m.after.programmed_total() - m.before.programmed_total())
            * flashlane_base::SECTOR_BYTES as u64;
        values.insert("programmed_mb_per_s".into(), mb_per_s(bytes, media.time.as_ns()));
        let whole = |of: u64| (media.time.as_ns() * of).max(1) as f64;
        let [read, program, erase] = media.die_busy;
        let busy = [
            ("channels_busy_percent", media.channel_busy, media.channels),
            ("dies_reading_percent", read, media.dies),
            ("dies_programming_percent", program, media.dies),
            ("dies_erasing_percent", erase, media.dies),
        ];
        for (name, time, of) in busy {
            values.insert(name.into(), 100.0 * time.as_ns() as f64 / whole(of));
        }
    }
}
