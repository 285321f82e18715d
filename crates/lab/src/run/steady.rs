//! Whether a run was steady, and if not, why not.
//!
//! Owns: the criterion, after SNIA's Performance Test Specification (five windows; excursion within
//! 20% of the mean, slope within 10%), applied to write amplification and, where the workload is
//! not paced by a trace, to throughput. Promises: a run in which garbage collection was not needed
//! is never called steady when it wrote; the reason is in words. Never: drops a slow window.

use super::record::{Bucket, State};

/// Windows of equal length that the measured part is cut into.
const WINDOWS: usize = 5;
/// Least and largest value may differ by this share of the mean (SNIA PTS: 20%).
const EXCURSION: f64 = 0.20;
/// The line through the windows may rise or fall by this share of the mean (SNIA PTS: 10%).
const SLOPE: f64 = 0.10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Steady {
    pub steady: bool,
    /// Why, or why not.
    pub reason: String,
}

fn no(reason: impl Into<String>) -> Steady {
    Steady { steady: false, reason: reason.into() }
}

/// Judges a course. `at_start` is the state when it began; `paced` says that throughput is the
/// trace's, not the device's.
pub fn judge(buckets: &[Bucket], at_start: &State, paced: bool, interrupted: bool) -> Steady {
    if interrupted {
        return no("interrupted");
    }
    if buckets.len() < 4 * WINDOWS {
        return no("too short to tell");
    }
    let windows = cut(buckets, at_start);
    if windows.iter().all(|w| w.bytes == 0) {
        return no("nothing was read or written");
    }
    let wrote = windows.iter().any(|w| w.host_written > 0 || w.write_bytes > 0);
    if wrote {
        if windows.iter().all(|w| w.collected == 0) {
            return no("no garbage collection was needed: the device had room to the end");
        }
        if windows[0].collected == 0 {
            return no("garbage collection began during the run");
        }
        if windows.iter().any(|w| w.host_written == 0) {
            return no("nothing was written in a fifth of the run");
        }
        let amplification: Vec<f64> =
            windows.iter().map(|w| w.programmed as f64 / w.host_written as f64).collect();
        if let Some(why) = unsettled("write amplification", &amplification) {
            return no(why);
        }
    }
    if !paced {
        let throughput: Vec<f64> = windows.iter().map(|w| w.bytes as f64).collect();
        if let Some(why) = unsettled("throughput", &throughput) {
            return no(why);
        }
    }
    let what = match (wrote, paced) {
        (true, false) => "write amplification and throughput",
        (true, true) => "write amplification",
        (false, false) => "throughput (nothing was written)",
        (false, true) => return no("nothing was written and the trace sets the pace"),
    };
    Steady {
        steady: true,
        reason: format!("{what} within {:.0}% over {WINDOWS} windows", EXCURSION * 100.0),
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct Window {
    bytes: u64,
    write_bytes: u64,
    host_written: u64,
    programmed: u64,
    collected: u64,
}

fn cut(buckets: &[Bucket], at_start: &State) -> Vec<Window> {
    let each = buckets.len() / WINDOWS;
    // What does not divide is left out at the front.
    let skip = buckets.len() - each * WINDOWS;
    let mut before = if skip == 0 { *at_start } else { buckets[skip - 1].state };
    buckets[skip..]
        .chunks(each)
        .map(|chunk| {
            let last = chunk[chunk.len() - 1].state;
            let window = Window {
                bytes: chunk.iter().map(|b| b.read_bytes + b.write_bytes).sum(),
                write_bytes: chunk.iter().map(|b| b.write_bytes).sum(),
                host_written: last.host_written - before.host_written,
                programmed: last.programmed - before.programmed,
                collected: last.collected - before.collected,
            };
            before = last;
            window
        })
        .collect()
}

/// Why a series has not settled.
fn unsettled(what: &str, series: &[f64]) -> Option<String> {
    let n = series.len() as f64;
    let mean = series.iter().sum::<f64>() / n;
    if mean == 0.0 {
        return Some(format!("{what} is zero"));
    }
    let (low, high) = series.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    // Least squares over the window numbers; rise from the first window to the last.
    let middle = (n - 1.0) / 2.0;
    let (mut over, mut under) = (0.0, 0.0);
    for (i, v) in series.iter().enumerate() {
        let x = i as f64 - middle;
        over += x * (v - mean);
        under += x * x;
    }
    let rise = over / under * (n - 1.0) / mean;
    let verb = if rise > 0.0 { "rises" } else { "falls" };
    if rise.abs() > SLOPE {
        return Some(format!("{what} still {verb}: {:.0}% over the run", rise.abs() * 100.0));
    }
    let excursion = (high - low) / mean;
    (excursion > EXCURSION)
        .then(|| format!("{what} varies by {:.0}% between windows", excursion * 100.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course(n: u64, of: impl Fn(u64) -> (u64, u64, u64)) -> Vec<Bucket> {
        let mut sum = Bucket::default();
        (0..n)
            .map(|i| {
                let (written, programmed, collected) = of(i);
                sum.write_bytes = written * 4096;
                sum.state.host_written += written;
                sum.state.programmed += programmed;
                sum.state.collected += collected;
                sum.requests = 1;
                sum
            })
            .collect()
    }

    fn reason(buckets: &[Bucket]) -> String {
        let s = judge(buckets, &State::default(), false, false);
        format!("{} {}", s.steady, s.reason)
    }

    #[test]
    fn only_a_settled_run_is_steady() {
        assert!(reason(&course(100, |_| (10, 30, 1))).starts_with("true"));
        assert!(reason(&course(100, |_| (10, 10, 0))).contains("had room to the end"));
        assert!(reason(&course(100, |i| (10, 30, (i > 50) as u64))).contains("began during"));
        assert!(reason(&course(100, |i| (10, 10 + i, 1))).contains("still rises"));
        assert!(
            reason(&course(100, |i| (200 - i, 600 - 3 * i, 1))).contains("throughput still falls")
        );
        assert!(reason(&course(10, |_| (10, 30, 1))).contains("too short"));
        assert!(reason(&course(100, |_| (0, 0, 0))).contains("nothing was read or written"));
        let swings = course(100, |i| if i / 20 % 2 == 0 { (10, 30, 1) } else { (10, 45, 1) });
        assert!(reason(&swings).contains("varies"), "{}", reason(&swings));
    }

    #[test]
    fn a_paced_or_interrupted_run_is_judged_as_such() {
        let bursts = course(100, |i| if i % 20 < 3 { (30, 90, 1) } else { (1, 3, 1) });
        assert!(judge(&bursts, &State::default(), true, false).steady);
        assert!(!judge(&bursts, &State::default(), true, true).steady);
    }
}
