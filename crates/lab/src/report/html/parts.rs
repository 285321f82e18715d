//! Figures of parts: where the time went, and what each channel and die did.
//!
//! Owns: latency breakdown, erases and wear, occupancy. Promises and never: as in [`super::figures`].

use super::charts::{self, Bar};
use super::figures::{Figure, both, half, longest, panel};
use super::page::{self, Table};
use super::svg::{Axis, Size, escape, time, time_unit};
use crate::report::numbers::{Part, Report, RunReport};
use crate::words::grouped;
use std::fmt::Write;

/// Rows of the table of dies at most; with more, a row is a channel.
const DIE_ROWS_MAX: usize = 64;
/// Ends of the colours of the occupancy, in ten-thousandths.
const HEAT_TOPS: [u16; 6] = [500, 1_000, 2_000, 4_000, 6_000, 10_000];
/// Bars of chunk erases at most.
const WEAR_BARS_MAX: usize = 24;

pub(super) fn breakdown(report: &Report) -> Option<Figure> {
    let mut body = String::new();
    let mut table = Table::of_runs("part", report);
    for reads in [true, false] {
        let parts = |r: &RunReport| -> Vec<Part> {
            let b = &r.latency_breakdown_ns;
            if reads { b.read.0.clone() } else { b.write.0.clone() }
        };
        let count = |r: &RunReport| match reads {
            true => r.latency_ns.read.count,
            false => r.latency_ns.write.count,
        };
        let side = if reads { "read" } else { "write" };
        // Of a call on a file system no part but the host's own work is known.
        let is_known = |r: &&RunReport| count(r) > 0 && r.files.is_none();
        let counted: Vec<&RunReport> = report.runs.iter().filter(is_known).collect();
        if counted.is_empty() {
            continue;
        }
        let mean = |r: &RunReport, part: &Part| part.ns as f64 / count(r).max(1) as f64;
        let bars: Vec<Bar> = counted
            .iter()
            .map(|r| {
                let part = |p: &Part| {
                    let mean = mean(r, p);
                    (class_of(p.key), format!("{}: {}", p.head, time(mean)), mean)
                };
                let parts: Vec<_> = parts(r).iter().map(part).collect();
                let sum: f64 = parts.iter().map(|p| p.2).sum();
                Bar { name: r.name.clone(), parts, total: time(sum) }
            })
            .collect();
        let sum = |b: &Bar| b.parts.iter().map(|p| p.2).sum::<f64>();
        let high = bars.iter().map(sum).fold(0.0, f64::max);
        let draw = |size: &Size| {
            let (factor, unit) = time_unit(high);
            let title = format!("mean per {side} ({unit})");
            let mut x = Axis::linear(high / factor, size.x_ticks - 1, &title, "");
            x.ticks.iter_mut().for_each(|(v, _)| *v *= factor);
            x.high *= factor;
            charts::bars(size, &x, &bars, &format!("Mean time of a {side} by part, per stack"))
        };
        let used = parts(counted[0]).into_iter().enumerate().filter_map(|(i, p)| {
            let any = counted.iter().any(|r| mean(r, &parts(r)[i]) > 0.0005 * high);
            any.then(|| (class_of(p.key).to_string(), p.what.to_string()))
        });
        let legend = page::legend(used);
        body += &panel(&format!("Mean {side}"), &(legend + &both(0.0, 0.0, draw)));
        for (i, part) in parts(&report.runs[0]).iter().enumerate() {
            if report.runs.iter().all(|r| parts(r)[i].ns == 0) {
                continue;
            }
            let mut row = vec![format!("{side}: {}", part.what)];
            row.extend(report.runs.iter().map(|r| match count(r) {
                0 => "–".into(),
                _ => time(mean(r, &parts(r)[i])),
            }));
            table.rows.push(row);
        }
    }
    (!body.is_empty()).then(|| Figure {
        title: "Where the time went",
        caption: "Mean latency, split by what a request waited for (warm colours) and by its own work \
                  (cool ones). Parts of requests that several vector commands serve overlap; the part \
                  that ended last is the one that counts."
            .into(),
        body,
        tables: vec![table],
    })
}

/// Colour of a part of a latency.
fn class_of(key: &str) -> &'static str {
    match key {
        "queue" => "p-queue",
        "host_cpu" => "p-cpu",
        "link" => "p-link",
        "command" => "p-command",
        "channel" => "p-channel",
        "die_read" => "p-dieread",
        "die_program" | "ring_full" => "p-dieprogram",
        "die_erase" | "limited" => "p-dieerase",
        "array" => "p-array",
        "transfer" => "p-transfer",
        "retry" => "p-retry",
        "fua" => "p-fua",
        _ => "p-rest",
    }
}

pub(super) fn erases(report: &Report) -> Figure {
    let by_channel = report.runs.iter().flat_map(|r| r.wear.channel_erases.iter().copied());
    let channel_top = by_channel.max().unwrap_or(0) as f64;
    let mut body = String::new();
    let mut table = Table::new(&["", "erases", "least worn chunk", "most worn chunk"]);
    for (i, r) in report.runs.iter().enumerate() {
        let class = format!("f{}", i % page::COLOURS);
        let channels = r.wear.channel_erases.iter().enumerate();
        let channels: Vec<_> = channels.map(|(c, n)| (c.to_string(), *n as f64)).collect();
        let wear = wear_bars(r);
        let top = wear.iter().map(|w| w.1).fold(0.0, f64::max);
        let columns = |title: String, x: &str, top: f64, bars: &[(String, f64)], what: &str| {
            let alt = format!("{}: {what}", r.name);
            let draw = |size: &Size| {
                charts::columns(size, &Axis::linear(top, 3, "", ""), x, bars, &class, &alt)
            };
            panel(&format!("{}: {title}", r.name), &half(150.0, draw))
        };
        let mut pair = String::new();
        if r.work.erases > 0 {
            let title = format!("{} erases, by channel", grouped(r.work.erases));
            pair += &columns(title, "channel", channel_top, &channels, "erases per channel");
        }
        if wear.len() > 1 {
            let (x, what) =
                ("erases of a chunk since it was new", "chunks by their number of erases");
            pair += &columns("chunks by erases".into(), x, top, &wear, what);
        }
        let _ = match pair.is_empty() {
            true => writeln!(
                body,
                "<p class=\"none\">{}: no chunk was erased in the measured part, and all are equally worn.</p>",
                escape(&r.name)
            ),
            false => writeln!(body, "<div class=\"pair\">{pair}</div>"),
        };
        for (c, n) in r.wear.channel_erases.iter().enumerate() {
            let (least, most) = r.wear.channel_min_max.get(c).copied().unwrap_or_default();
            let name = format!("{}: channel {c}", r.name);
            table.rows.push(vec![name, grouped(*n), least.to_string(), most.to_string()]);
        }
        for (erases, chunks) in &wear {
            let name = format!("{}: chunks erased {erases} times", r.name);
            table.rows.push(vec![name, format!("{} chunks", grouped(*chunks as u64))]);
        }
    }
    Figure {
        title: "Erases and wear",
        caption:
            "Erases of chunks in the measured part, by channel; and how often each chunk of the \
                  target was erased since the device was new, preparation included."
                .into(),
        body,
        tables: vec![table],
    }
}

/// Chunks by erases, in at most [`WEAR_BARS_MAX`] classes of equal width.
fn wear_bars(r: &RunReport) -> Vec<(String, f64)> {
    let (Some(first), Some(last)) = (r.wear.erases.first(), r.wear.erases.last()) else {
        return Vec::new();
    };
    let each = (last - first + 1).div_ceil(WEAR_BARS_MAX as u32);
    let mut bars: Vec<(String, f64)> = (*first..=*last)
        .step_by(each as usize)
        .map(|from| match each {
            1 => (from.to_string(), 0.0),
            _ => (format!("{from}–{}", from + each - 1), 0.0),
        })
        .collect();
    for (erases, chunks) in r.wear.erases.iter().zip(&r.wear.chunks) {
        bars[((erases - first) / each) as usize].1 += *chunks as f64;
    }
    bars
}

pub(super) fn occupancy(report: &Report, part: &str) -> Option<Figure> {
    let total = longest(report);
    let cells = || report.runs.iter().flat_map(|r| r.figures.heat.rows.iter().flatten());
    let most = cells().copied().max().unwrap_or(0);
    let top = HEAT_TOPS.into_iter().find(|top| *top >= most).unwrap_or(10_000);
    let mut body = String::new();
    let mut table = Table::new(&["", "reading", "programming", "erasing", "idle"]);
    for (i, r) in report.runs.iter().enumerate() {
        let heat = &r.figures.heat;
        let (rows, columns) = (heat.rows.len(), heat.rows.first().map_or(0, Vec::len));
        if rows == 0 || columns == 0 {
            continue;
        }
        let id = format!("{part}-heat{i}");
        let each = r.figures.pus_per_channel.max(1) as usize;
        // The last column may end a little behind the longest run: it is drawn to the run's end.
        let share = (heat.column_ns as f64 * columns as f64 / total).min(1.0);
        let draw = |size: &Size| {
            let (factor, unit) = time_unit(total);
            let x =
                Axis::exact(total / factor, size.x_ticks, &format!("virtual time ({unit})"), unit);
            let alt = format!("{}: share of time that each die was busy, over time", r.name);
            charts::heat(size, &x, &id, (rows, columns, share), (each, "ch "), &alt)
        };
        let height = (rows as f64 * 1.6).clamp(96.0, 240.0) + 50.0;
        let shared = format!(
            "<svg class=\"defs\" aria-hidden=\"true\" width=\"0\" height=\"0\"><defs><g id=\"{id}\">{}\
             </g></defs></svg>\n",
            charts::cells(&heat.rows, top)
        );
        body += &panel(&r.name, &(shared + &both(height, height, draw)));
        die_rows(r, each, &mut table);
    }
    let mut key = String::from("<p class=\"key\">busy <i class=\"b0\"></i>0% ");
    for l in 1..=charts::LEVELS {
        let _ = write!(key, "<i class=\"b{l}\"></i>");
        if l % 2 == 0 {
            let upto = top as f64 / 100.0 * l as f64 / charts::LEVELS as f64;
            let _ = write!(key, "up to {upto}% ");
        }
    }
    key += "</p>\n";
    (!body.is_empty()).then(|| Figure {
        title: "Occupancy of the dies",
        caption:
            "Share of time that each die read, programmed or erased; a row per die, dies of a \
                  channel together, time to the right."
                .into(),
        body: key + &body,
        tables: vec![table],
    })
}

fn die_rows(r: &RunReport, each: usize, table: &mut Table) {
    let d = &r.die_busy_ratio;
    let n = d.read_ratio.len();
    let (step, what) = if n > DIE_ROWS_MAX { (each, "channel") } else { (1, "die") };
    for (at, from) in (0..n).step_by(step.max(1)).enumerate() {
        let to = (from + step).min(n);
        let mean = |list: &[f64]| list[from..to].iter().sum::<f64>() / (to - from) as f64 * 100.0;
        let shares = [mean(&d.read_ratio), mean(&d.program_ratio), mean(&d.erase_ratio)];
        let idle = (100.0 - shares.iter().sum::<f64>()).max(0.0);
        let mut row = vec![format!("{}: {what} {at}", r.name)];
        row.extend(shares.iter().chain([&idle]).map(|s| format!("{s:.2}%")));
        table.rows.push(row);
    }
}
