//! What happened between two looks at a drive.
//!
//! Owns: rates, shares and latencies of a span of time. Promises: a look at another mount of the drive
//! counts as the first one; no division by nothing. Never: formats.

use super::{Latency, Snapshot, TargetSnapshot};
use flashlane_base::SECTOR_BYTES;

/// A span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    pub seconds: f64,
    /// Since the mount: there was no earlier look.
    pub since_mount: bool,
    pub ops: Vec<OpRate>,
    /// Programmed over written; nothing where nothing was written.
    pub write_amplification_ratio: Option<f64>,
    /// Bytes per second that the target programmed, by cause.
    pub programmed: Vec<(String, f64)>,
    /// Bytes per second that garbage collection moved.
    pub gc_moved: f64,
    /// Lines per second that it took.
    pub gc_victims: f64,
    /// Erases per second.
    pub erases: f64,
    /// Of the time, how much each die read, programmed and erased; in the order of PUs.
    pub dies: Vec<[f64; 3]>,
    /// Of the time, how much each channel's bus was busy.
    pub channels: Vec<f64>,
}

/// One operation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OpRate {
    pub requests: f64,
    /// Bytes per second; nothing for flushes.
    pub bytes: Option<f64>,
    /// Requests that ended, and how long they took.
    pub latency: Latency,
}

/// What came between `earlier` and `now` on a drive and to one of its targets; without an earlier look, since
/// the mount.
pub fn rates(earlier: Option<&Snapshot>, now: &Snapshot, target: &TargetSnapshot) -> Rates {
    let same = |e: &&Snapshot| e.process == now.process && e.time_ns < now.time_ns;
    let earlier = earlier.filter(same).and_then(|e| Some((e, e.target(&target.name)?)));
    let none = (&Snapshot::default(), &TargetSnapshot::default());
    let (before, from) = earlier.unwrap_or(none);
    let ns = now.time_ns - before.time_ns;
    let seconds = ns as f64 / 1e9;
    let per_second = |n: u64| if ns == 0 { 0.0 } else { n as f64 / seconds };
    let share = |busy: u64| if ns == 0 { 0.0 } else { (busy as f64 / ns as f64).min(1.0) };
    let stat = |name: &str| target.stat(name).saturating_sub(from.stat(name));
    let bytes = |sectors: u64| per_second(sectors) * SECTOR_BYTES as f64;
    let none = Latency::default();
    let op = |latency: &Latency| {
        let before = from.requests.iter().find(|r| r.op == latency.op).unwrap_or(&none);
        let latency = latency.since(before);
        let sectors = match &*latency.op {
            "read" => Some("host_read"),
            "write" => Some("host_written"),
            "discard" => Some("host_discarded"),
            _ => None,
        };
        OpRate {
            requests: per_second(latency.ended),
            bytes: sectors.map(|name| bytes(stat(name))),
            latency,
        }
    };
    let programmed = |(cause, n): (&String, &u64)| {
        (cause.clone(), bytes(n.saturating_sub(from.programmed.get(cause).copied().unwrap_or(0))))
    };
    let (written, all) = (stat("host_written"), stat("programmed"));
    let die = |(pu, busy): (usize, &[u64; 3])| {
        let before = before.medium.dies_ns.get(pu).copied().unwrap_or_default();
        std::array::from_fn(|i| share(busy[i].saturating_sub(before[i])))
    };
    let channel = |(c, busy): (usize, &u64)| {
        share(busy.saturating_sub(before.medium.channels_ns.get(c).copied().unwrap_or(0)))
    };
    Rates {
        seconds,
        since_mount: earlier.is_none(),
        ops: target.requests.iter().map(op).collect(),
        write_amplification_ratio: (written > 0).then(|| all as f64 / written as f64),
        programmed: target.programmed.iter().map(programmed).collect(),
        gc_moved: bytes(stat("gc_moved")),
        gc_victims: per_second(stat("gc_victims")),
        erases: per_second(stat("erases")),
        dies: now.medium.dies_ns.iter().enumerate().map(die).collect(),
        channels: now.medium.channels_ns.iter().enumerate().map(channel).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::Numbers;

    fn at(time_ns: u64, written: u64, programmed: u64) -> Snapshot {
        let stats = [("host_written", written), ("programmed", programmed), ("gc_moved", written)];
        let stats: Numbers = stats.map(|(name, n)| (name.to_string(), n)).into();
        let write = Latency {
            op: "write".into(),
            ended: written,
            sum_ns: written * 1_000,
            buckets: vec![written],
            ..Latency::default()
        };
        let programmed = [("user".to_string(), programmed)].into();
        let t = TargetSnapshot {
            stats,
            requests: vec![write],
            programmed,
            ..TargetSnapshot::default()
        };
        let mut s = Snapshot { time_ns, targets: vec![t], ..Snapshot::default() };
        s.medium.dies_ns = vec![[time_ns / 4, time_ns / 2, 0]];
        s.medium.channels_ns = vec![time_ns / 10];
        s
    }

    fn rates(earlier: Option<&Snapshot>, now: &Snapshot) -> Rates {
        super::rates(earlier, now, &now.targets[0])
    }

    #[test]
    fn rates_are_of_the_time_between_two_looks() {
        let (first, second) = (at(1_000_000_000, 100, 100), at(3_000_000_000, 300, 500));
        let r = rates(Some(&first), &second);
        assert_eq!((r.seconds, r.since_mount), (2.0, false));
        assert_eq!((r.ops[0].requests, r.ops[0].bytes), (100.0, Some(409_600.0)));
        assert_eq!(r.ops[0].latency.mean_ns(), Some(1_000));
        assert_eq!(r.write_amplification_ratio, Some(2.0));
        assert_eq!(r.programmed, [("user".to_string(), 200.0 * 4096.0)]);
        assert_eq!((r.dies, r.channels), (vec![[0.25, 0.5, 0.0]], vec![0.1]));
        assert_eq!(r.gc_moved, 409_600.0);
    }

    #[test]
    fn without_an_earlier_look_they_are_since_the_mount() {
        let now = at(2_000_000_000, 100, 100);
        assert!(rates(None, &now).since_mount);
        assert_eq!(rates(None, &now).ops[0].requests, 50.0);
        // Another process, a mount that is younger, no time at all.
        let other = Snapshot { process: 7, ..at(1_000_000_000, 50, 50) };
        for earlier in [other, at(9_000_000_000, 50, 50), now.clone()] {
            assert_eq!(rates(Some(&earlier), &now), rates(None, &now));
        }
        let nothing = super::rates(None, &Snapshot::default(), &TargetSnapshot::default());
        assert_eq!((nothing.seconds, nothing.write_amplification_ratio), (0.0, None));
    }
}
