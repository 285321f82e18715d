//! Runs side by side: is there a difference, and how sure is that?
//!
//! Owns: the samples of each series (a target under several seeds), means, confidence intervals.
//! Promises: intervals are of 95%, by Student's t over the samples; a difference is called one only
//! where Welch's interval around it leaves zero out; a series of one sample has no interval, and
//! says so. Never: calls an unsteady run steady, or hides that it was none.
//!
//! A simulation has no noise but its seed: with other seeds other places are written in another
//! order. What is left between seeds is what a difference must stand out from.

use crate::words::{aligned, row};
use flashlane_base::SECTOR_BYTES;
use serde::Serialize;
use serde_json::Value;

/// What is compared, and where it stands in the JSON of a run.
struct Metric {
    name: &'static str,
    unit: &'static str,
    of: fn(&Value) -> Option<f64>,
}

fn number(run: &Value, at: &str) -> Option<f64> {
    run.pointer(at)?.as_f64()
}

/// Per second of the run.
fn rate(run: &Value, at: &str, unit: f64) -> Option<f64> {
    let ns = number(run, "/runtime_ns").filter(|ns| *ns > 0.0)?;
    Some(number(run, at)? * 1e9 / ns / unit)
}

/// Microseconds of a latency, if there was any.
fn latency(run: &Value, op: &str, which: &str) -> Option<f64> {
    number(run, &format!("/latency_ns/{op}/count")).filter(|n| *n > 0.0)?;
    Some(number(run, &format!("/latency_ns/{op}/{which}"))? / 1e3)
}

const METRICS: &[Metric] = &[
    Metric { name: "requests", unit: "1/s", of: |r| rate(r, "/requests", 1.0) },
    Metric { name: "read", unit: "MB/s", of: |r| rate(r, "/bytes_read", 1e6) },
    Metric { name: "write", unit: "MB/s", of: |r| rate(r, "/bytes_written", 1e6) },
    Metric { name: "read mean", unit: "us", of: |r| latency(r, "read", "mean") },
    Metric { name: "read p99", unit: "us", of: |r| latency(r, "read", "p99") },
    Metric { name: "read p99.9", unit: "us", of: |r| latency(r, "read", "p99_9") },
    Metric { name: "write mean", unit: "us", of: |r| latency(r, "write", "mean") },
    Metric { name: "write p99", unit: "us", of: |r| latency(r, "write", "p99") },
    Metric { name: "write p99.9", unit: "us", of: |r| latency(r, "write", "p99_9") },
    Metric {
        name: "write amplification",
        unit: "ratio",
        of: |r| number(r, "/write_amplification_ratio"),
    },
    Metric { name: "erases", unit: "chunks", of: |r| number(r, "/erases") },
    // Of a file system: what it did, and what was written at each level.
    Metric { name: "calls", unit: "1/s", of: |r| number(r, "/files/calls_per_second") },
    Metric { name: "written by users", unit: "MiB", of: |r| traffic(r, "users") },
    Metric { name: "data", unit: "MiB", of: |r| traffic(r, "data") },
    Metric { name: "nodes", unit: "MiB", of: |r| traffic(r, "nodes") },
    Metric { name: "cleaning", unit: "MiB", of: |r| traffic(r, "cleaning") },
    Metric { name: "in place", unit: "MiB", of: |r| traffic(r, "in_place") },
    Metric { name: "by the file system", unit: "MiB", of: |r| traffic(r, "file_system") },
    Metric { name: "GC below", unit: "MiB", of: |r| traffic(r, "gc") },
    Metric { name: "padding, FTL", unit: "MiB", of: |r| traffic(r, "own") },
    Metric { name: "to the flash", unit: "MiB", of: |r| traffic(r, "flash") },
    Metric {
        name: "garbage in cleaned",
        unit: "ratio",
        of: |r| number(r, "/files/cleaned_invalid_ratio"),
    },
    Metric {
        name: "garbage in erased",
        unit: "ratio",
        of: |r| number(r, "/files/erased_invalid_ratio"),
    },
];

/// What was written at a level of a file system.
fn traffic(run: &Value, level: &str) -> Option<f64> {
    let sectors = number(run, &format!("/files/traffic_sectors/{level}"))?;
    Some(sectors * SECTOR_BYTES as f64 / f64::from(1 << 20))
}

/// Runs of one thing that differ in nothing but the seed.
#[derive(Clone, Debug)]
pub struct Series {
    pub name: String,
    /// Each run, as `run --json` writes it in `runs`.
    pub samples: Vec<Value>,
}

/// Why a file gives no series.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompareError {
    #[error("{0}: no result of `flashlane run --json` or `flashlane sweep --json`")]
    NoResult(String),
    #[error("one series (`{0}`) is nothing to compare: give another run, or another target")]
    Alone(String),
}

/// Points of a result of `sweep` that failed: they are in no series.
pub fn failed(result: &Value) -> u64 {
    result.get("failed").and_then(Value::as_u64).unwrap_or(0)
}

/// What a result of `run` or `sweep` lacks, in words: part of it is in no series.
pub fn lacks(result: &Value) -> Option<String> {
    let count = |key: &str| result.get(key).and_then(Value::as_u64).filter(|n| *n > 0);
    let missing = count("missing").map(|n| format!("{n} points were not run"));
    let failed = count("failed").map(|n| format!("{n} points failed"));
    let cut = (result.get("interrupted") == Some(&Value::Bool(true)))
        .then(|| "it was interrupted".into());
    let all: Vec<String> = [cut, missing, failed].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join(", "))
}

/// What two results of `run` have that is not alike, in words, beside what they are compared for: a
/// difference may be of that. A sweep says in the names of its series what it varies.
pub fn unlike((first, a): (&str, &Value), (other, b): (&str, &Value)) -> Vec<String> {
    [
        ("workload", "/configuration/workloads"),
        ("fill", "/configuration/fill"),
        ("device", "/configuration/targets/0/device"),
    ]
    .into_iter()
    .filter(|(_, at)| matches!((a.pointer(at), b.pointer(at)), (Some(a), Some(b)) if a != b))
    .map(|(what, _)| {
        format!("{other} has another {what} than {first}: a difference may be of that alone")
    })
    .collect()
}

/// The series in a result of `run` or `sweep`: one per target, and per point of a sweep but for its
/// seed.
pub fn series_of(file: &str, result: &Value) -> Result<Vec<Series>, CompareError> {
    let none = || CompareError::NoResult(file.into());
    let mut all: Vec<Series> = Vec::new();
    let mut add = |name: String, run: &Value| match all.iter_mut().find(|s| s.name == name) {
        Some(series) => series.samples.push(run.clone()),
        None => all.push(Series { name, samples: vec![run.clone()] }),
    };
    let target = |run: &Value| Some(run.get("name")?.as_str()?.to_string());
    if let Some(runs) = result.get("runs").and_then(Value::as_array) {
        for run in runs {
            add(format!("{file}: {}", target(run).ok_or_else(none)?), run);
        }
    } else if let Some(points) = result.get("points").and_then(Value::as_array) {
        let keys = result.get("keys").and_then(Value::as_array).ok_or_else(none)?;
        for point in points {
            let values = point.get("values").and_then(Value::as_array).ok_or_else(none)?;
            let pairs = keys.iter().zip(values).filter(|(key, _)| *key != "run.seed");
            let text = |v: &Value| v.as_str().unwrap_or("").to_string();
            let at: String = pairs.map(|(k, v)| format!(" {}={}", text(k), text(v))).collect();
            let runs = point.pointer("/result/runs").and_then(Value::as_array);
            for run in runs.into_iter().flatten() {
                add(format!("{file}: {}{at}", target(run).ok_or_else(none)?), run);
            }
        }
    }
    if all.is_empty() { Err(none()) } else { Ok(all) }
}

/// A mean and how sure it is.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    pub mean: f64,
    /// Half of the 95% interval; null with one sample.
    pub half_width: Option<f64>,
}

impl Estimate {
    /// A difference that is not `+0.000%`: one in 200,000 or more. A runtime of a minute that ends
    /// 10 ns later under every seed is no finding, and a sum of floating point rounds.
    fn shows(&self) -> bool {
        (self.mean * 1000.0).round() != 0.0
    }
}

/// One metric of one series.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    pub metric: &'static str,
    pub unit: &'static str,
    pub value: Estimate,
    /// Difference to the first series in percent of its mean; null for the first itself.
    pub difference_percent: Option<Estimate>,
    /// Whether the interval of the difference leaves zero out, and there is a difference at all
    /// that the table's three decimals of a percent show; null where there is no interval.
    pub differs: Option<bool>,
}

/// A series, compared with the first.
#[derive(Clone, Debug, Serialize)]
pub struct SeriesReport {
    pub name: String,
    pub samples: usize,
    pub steady: usize,
    pub metrics: Vec<Compared>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Share of intervals that hold the true value.
    pub confidence: f64,
    /// In the order in which they were given.
    pub series: Vec<SeriesReport>,
    /// What is in no series: points of results that failed or were not run, in words.
    pub lacks: Vec<String>,
    /// What the results have that is not alike, in words.
    pub unlike: Vec<String>,
}

/// Compares all series with the first.
pub fn compare(series: &[Series]) -> Result<Comparison, CompareError> {
    if let [alone] = series {
        return Err(CompareError::Alone(alone.name.clone()));
    }
    let values = |s: &Series, m: &Metric| s.samples.iter().filter_map(m.of).collect::<Vec<f64>>();
    let report = |(i, s): (usize, &Series)| {
        let metrics = METRICS.iter().filter_map(|m| {
            let (own, first) = (values(s, m), values(&series[0], m));
            if own.len() < s.samples.len() {
                return None; // no reads, say
            }
            // The first may lack what this one has.
            let whole = first.len() == series[0].samples.len();
            let difference = if i == 0 || !whole { None } else { difference(&own, &first) };
            Some(Compared {
                metric: m.name,
                unit: m.unit,
                value: estimate(&own),
                difference_percent: difference,
                differs: difference.and_then(|d| Some(d.mean.abs() > d.half_width? && d.shows())),
            })
        });
        SeriesReport {
            name: s.name.clone(),
            samples: s.samples.len(),
            steady: s
                .samples
                .iter()
                .filter(|r| r.get("steady") == Some(&Value::Bool(true)))
                .count(),
            metrics: metrics.collect(),
        }
    };
    let series = series.iter().enumerate().map(report).collect();
    Ok(Comparison { confidence: 0.95, series, lacks: Vec::new(), unlike: Vec::new() })
}

/// Samples that are alike come back as they are: a sum would round.
fn mean(samples: &[f64]) -> f64 {
    match samples.iter().all(|x| *x == samples[0]) {
        true => samples[0],
        false => samples.iter().sum::<f64>() / samples.len() as f64,
    }
}

/// Variance of the mean; `None` with one sample.
fn variance_of_mean(samples: &[f64]) -> Option<f64> {
    let n = samples.len() as f64;
    let m = mean(samples);
    let squares: f64 = samples.iter().map(|x| (x - m) * (x - m)).sum();
    (samples.len() > 1).then(|| squares / (n - 1.0) / n)
}

/// Mean of one sample at least, and half of its 95% interval.
pub(crate) fn estimate(samples: &[f64]) -> Estimate {
    let half_width =
        variance_of_mean(samples).map(|v| student_t(samples.len() as f64 - 1.0) * v.sqrt());
    Estimate { mean: mean(samples), half_width }
}

/// Difference of two means in percent of the second, with Welch's interval. `None` where there is
/// nothing to be a share of.
fn difference(own: &[f64], first: &[f64]) -> Option<Estimate> {
    if own.is_empty() || first.is_empty() {
        return None;
    }
    let base = Some(mean(first)).filter(|m| *m != 0.0)?;
    let half_width = variance_of_mean(own).zip(variance_of_mean(first)).map(|(a, b)| {
        let n = |samples: &[f64]| samples.len() as f64 - 1.0;
        let freedom = (a + b) * (a + b) / (a * a / n(own) + b * b / n(first));
        // Without any spread there is no doubt.
        let t = if a + b == 0.0 { 0.0 } else { student_t(freedom) };
        100.0 * t * (a + b).sqrt() / base.abs()
    });
    Some(Estimate { mean: 100.0 * (mean(own) - base) / base, half_width })
}

/// Student's t for a two-sided interval of 95%, by degrees of freedom rounded down (so the interval
/// is rather too wide): the usual table, and above 30 the normal distribution's value with its first
/// correction (Abramowitz and Stegun 26.7.5).
fn student_t(freedom: f64) -> f64 {
    const TABLE: [f64; 30] = [
        12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
        2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
        2.052, 2.048, 2.045, 2.042,
    ];
    match TABLE.get((freedom.max(1.0) as usize) - 1) {
        Some(t) => *t,
        None => 1.960 + (1.960_f64.powi(3) + 1.960) / (4.0 * freedom),
    }
}

impl Compared {
    fn is(&self, metric: &Metric) -> bool {
        self.metric == metric.name && self.value.mean != 0.0
    }
}

impl Comparison {
    /// One JSON object, with a newline.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data") + "\n"
    }

    /// The table: a block per metric, a line per series.
    pub fn to_text(&self) -> String {
        let mut rows = vec![row(["metric", "run", "mean", "95%", "against the first", ""])];
        for metric in METRICS {
            if self.series.iter().all(|s| !s.metrics.iter().any(|m| m.is(metric))) {
                continue;
            }
            let mut title = format!("{} {}", metric.name, metric.unit);
            let found =
                |s: &SeriesReport| s.metrics.iter().find(|m| m.metric == metric.name).cloned();
            for series in &self.series {
                let Some(m) = found(series) else { continue };
                let (difference, verdict) = match (m.difference_percent, m.differs) {
                    (None, _) => (String::new(), ""),
                    (Some(d), None) => (format!("{:+.2}%", d.mean), "no interval: one sample"),
                    (Some(d), Some(differs)) => (
                        format!("{:+.3}% +- {:.3}%", d.mean, d.half_width.unwrap_or(0.0)),
                        if differs { "differs" } else { "no difference shown" },
                    ),
                };
                rows.push(vec![
                    std::mem::take(&mut title),
                    series.name.clone(),
                    format!("{:.2}", m.value.mean),
                    match m.value.half_width {
                        None => "-".into(),
                        Some(0.0) => "same under every seed".into(),
                        Some(h) => format!("+- {h:.2}"),
                    },
                    difference,
                    verdict.into(),
                ]);
            }
        }
        let mut text = aligned(&rows);
        for s in &self.series {
            text += &format!("\n{}: {} samples, {} steady", s.name, s.samples, s.steady);
        }
        for lack in self.lacks.iter().chain(&self.unlike) {
            text += &format!("\n{lack}");
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn series(name: &str, erases: &[u64]) -> Series {
        let run = |n: &u64| json!({ "name": name, "erases": n, "steady": true });
        Series { name: name.into(), samples: erases.iter().map(run).collect() }
    }

    /// Against values worked out by hand (mean 10, s 1, n 4: t(3) = 3.182, 3.182 x 0.5 = 1.591).
    #[test]
    fn intervals_are_students() {
        let e = estimate(&[9.0, 10.0, 11.0, 10.0]);
        assert_eq!(e.mean, 10.0);
        assert!((e.half_width.unwrap() - 3.182 * (2.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-9);
        assert_eq!(estimate(&[3.0]), Estimate { mean: 3.0, half_width: None });
        assert!((student_t(120.0) - 1.980).abs() < 0.001 && student_t(1.9) == 12.706);
    }

    #[test]
    fn a_difference_is_one_where_its_interval_leaves_zero_out() {
        let differs = |a: &[u64], b: &[u64]| {
            let c = compare(&[series("a", a), series("b", b)]).unwrap();
            c.series[1].metrics[0].differs
        };
        assert_eq!(differs(&[100, 101, 102], &[110, 111, 112]), Some(true));
        assert_eq!(differs(&[90, 101, 112], &[95, 104, 120]), Some(false));
        assert_eq!(differs(&[100, 100], &[100, 100]), Some(false), "no spread, no difference");
        assert_eq!(differs(&[100, 100], &[101, 101]), Some(true), "no spread, a difference");
        assert_eq!(differs(&[100], &[110]), None, "one sample says nothing");
    }

    /// Without spread any difference leaves zero out; one that is printed as nothing is none.
    #[test]
    fn a_difference_of_nothing_is_none() {
        let compared = |b: u64| {
            let series = [series("a", &[1_000_000_000; 2]), series("b", &[b; 2])];
            let c = compare(&series).unwrap();
            (c.series[1].metrics[0].differs, c.to_text())
        };
        let (differs, text) = compared(1_000_000_001);
        assert_eq!(differs, Some(false), "{text}");
        let nothing = "+0.000% +- 0.000%  no difference shown";
        assert!(text.contains(nothing) && !text.contains("differs"), "{text}");
        let one = compare(&[series("a", &[100]), series("b", &[100])]).unwrap();
        assert_eq!(one.series[1].metrics[0].differs, None, "one sample still says nothing");
        let (differs, text) = compared(1_000_010_000);
        assert_eq!(differs, Some(true), "{text}");
        assert!(text.contains("+0.001% +- 0.000%  differs"), "{text}");
    }

    /// What a file system writes is compared where there is one.
    #[test]
    fn levels_of_a_file_system_are_compared() {
        let with = |name: &str, nodes: u64| {
            let levels = json!({ "nodes": nodes, "flash": 512 });
            let files = json!({ "calls_per_second": 10.0, "traffic_sectors": levels });
            let run = json!({ "name": name, "erases": 1, "files": files });
            Series { name: name.into(), samples: vec![run] }
        };
        let c = compare(&[with("a", 256), with("b", 512)]).unwrap();
        let nodes = c.series[1].metrics.iter().find(|m| m.metric == "nodes").unwrap();
        assert_eq!((nodes.value.mean, nodes.unit), (2.0, "MiB"));
        assert_eq!(nodes.difference_percent.unwrap().mean, 100.0);
        assert!(c.to_text().contains("calls 1/s"), "{}", c.to_text());
        let none = compare(&[series("a", &[1]), series("b", &[2])]).unwrap();
        assert_eq!(none.series[1].metrics.len(), 1);
    }

    #[test]
    fn series_are_found_in_results() {
        let run = json!({ "runs": [{ "name": "pblk" }, { "name": "pftl" }] });
        let names = |v: &Value| {
            let found = series_of("f", v).unwrap();
            found.into_iter().map(|s| (s.name, s.samples.len())).collect::<Vec<_>>()
        };
        assert_eq!(names(&run), [("f: pblk".into(), 1), ("f: pftl".into(), 1)]);
        let point = |seed: &str, op: &str| json!({ "values": [op, seed], "result": { "runs": [{ "name": "pblk" }] } });
        let sweep = json!({ "keys": ["op", "run.seed"], "points":
            [point("1", "20"), point("2", "20"), point("1", "30"), { "values": ["30", "2"], "result": null }] });
        assert_eq!(names(&sweep), [("f: pblk op=20".into(), 2), ("f: pblk op=30".into(), 1)]);
        for none in [json!({}), json!([]), json!({ "runs": [] }), json!({ "runs": [{}] })] {
            assert!(series_of("f", &none).is_err(), "{none}");
        }
        assert!(compare(&[series("a", &[1])]).is_err());
    }
}
