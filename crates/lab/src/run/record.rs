//! What is kept of a run while it goes on.
//!
//! Owns: latencies by operation, sums, the course over time in buckets that grow. Promises: memory
//! does not grow with the length of a run; nothing that a job did before the end of its own ramp is
//! in the results.
//! Never: decides what a number means ([`super::steady`], `report`).

use super::intervals::Intervals;
use super::jobs::JobRecord;
use super::sample::{Probe, Sample, Watch};
use crate::histogram::Latencies;
use flashlane_base::Ns;
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::device::Cause;
use std::fmt::Display;
use std::rc::Rc;

/// Buckets of the course of a run; when they are full, neighbours are joined.
const BUCKETS_MAX: usize = 512;
const FIRST_WIDTH: Ns = Ns::from_us(100);
/// Mismatches kept for the report; all are counted.
const MISMATCHES_SHOWN: usize = 5;

/// What a layer had done by the end of a span, since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Sectors that the host had written.
    pub host_written: u64,
    pub programmed: u64,
    /// Of those, by cause, in the order of [`Cause::ALL`].
    pub causes: [u64; Cause::ALL.len()],
    /// Lines or blocks collected.
    pub collected: u64,
}

impl From<FtlStats> for State {
    fn from(stats: FtlStats) -> State {
        State {
            host_written: stats.host_written,
            programmed: stats.programmed_total(),
            causes: stats.programmed,
            collected: stats.gc_victims + stats.gc_free_rides,
        }
    }
}

/// One span of the course of a run: sums within it, and the state at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bucket {
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    pub requests: u64,
    /// Longest latency of a read.
    pub read_max_ns: u64,
    /// Longest latency of a write.
    pub write_max_ns: u64,
    pub state: State,
}

impl Bucket {
    fn join(&mut self, later: &Bucket) {
        self.read_bytes += later.read_bytes;
        self.write_bytes += later.write_bytes;
        self.requests += later.requests;
        self.read_max_ns = self.read_max_ns.max(later.read_max_ns);
        self.write_max_ns = self.write_max_ns.max(later.write_max_ns);
        self.state = later.state;
    }

    /// An empty span behind this one: the states go on.
    fn next(&self) -> Bucket {
        Bucket { state: self.state, ..Bucket::default() }
    }
}

/// The course of a run: buckets of equal width from the start of the measured part.
#[derive(Clone, Default)]
pub struct Timeline {
    start: Ns,
    width: Ns,
    buckets: Vec<Bucket>,
    /// The first sample is taken at the start, the others at the end of each bucket; buckets that
    /// are found to have ended together share one. Empty when nobody looks.
    samples: Vec<Rc<Sample>>,
    probe: Option<Probe>,
    current: Bucket,
    /// End of the current bucket.
    end: Ns,
}

impl Timeline {
    /// Starts at `start`; `probe` is asked then and whenever a bucket ends.
    pub fn new(start: Ns, probe: Option<Probe>) -> Timeline {
        Timeline {
            start,
            width: FIRST_WIDTH,
            samples: probe.iter().map(|look| Rc::new(look(start))).collect(),
            probe,
            end: start + FIRST_WIDTH,
            ..Timeline::default()
        }
    }

    pub fn width(&self) -> Ns {
        self.width
    }

    /// The buckets that are complete, in order.
    pub fn buckets(&self) -> &[Bucket] {
        &self.buckets
    }

    /// States at the start and at the end of each bucket, if anybody looked.
    pub fn samples(&self) -> &[Rc<Sample>] {
        &self.samples
    }

    /// Closes the buckets that ended before `now`; `stats` is asked at most once.
    #[inline]
    fn advance(&mut self, now: Ns, stats: &dyn Fn() -> FtlStats) {
        if now < self.end {
            return;
        }
        self.current.state = stats().into();
        let sample = self.probe.as_ref().map(|look| Rc::new(look(now)));
        // A long pause closes many at once: join first, so that there are few to close.
        while now >= self.end {
            let left = (now - self.end).as_ns() / self.width.as_ns();
            if self.buckets.len() + 1 + left as usize >= BUCKETS_MAX || left > BUCKETS_MAX as u64 {
                self.halve();
                continue;
            }
            let next = self.current.next();
            self.buckets.push(std::mem::replace(&mut self.current, next));
            self.samples.extend(sample.clone());
            self.end += self.width;
        }
    }

    /// Doubles the width.
    fn halve(&mut self) {
        let mut joined = Vec::with_capacity(BUCKETS_MAX);
        for pair in self.buckets.chunks(2) {
            let mut bucket = pair[0];
            match pair.get(1) {
                Some(later) => bucket.join(later),
                // The open bucket is the second half of this one.
                None => {
                    let mut open = bucket;
                    open.join(&self.current);
                    self.current = open;
                    break;
                }
            }
            joined.push(bucket);
        }
        self.buckets = joined;
        if let Some((first, ends)) = self.samples.split_first() {
            let of_pairs = ends.chunks_exact(2).map(|pair| &pair[1]);
            self.samples = std::iter::once(first).chain(of_pairs).cloned().collect();
        }
        self.width = self.width.times(2);
        self.end = self.start + self.width.times(self.buckets.len() as u64 + 1);
    }

    /// Ends the course at `now`: the open bucket is kept if it has anything in it.
    fn close(&mut self, now: Ns, stats: &dyn Fn() -> FtlStats) {
        self.advance(now, stats);
        self.current.state = stats().into();
        if self.current.requests > 0 {
            self.buckets.push(self.current);
            self.samples.extend(self.probe.as_ref().map(|look| Rc::new(look(now))));
        }
    }
}

/// How late requests of a replayed trace were issued.
#[derive(Clone, Debug, Default)]
pub struct Slip {
    /// Requests that were issued later than the trace says.
    pub late: u64,
    pub by: Latencies,
    /// Requests that are not in `by` yet, late by nothing: most of a trace.
    in_time: u64,
}

/// Everything recorded about the measured part of a run. A new one records nothing until [`Recorder::begin`].
#[derive(Default)]
pub struct Recorder {
    measuring: bool,
    /// When the measured part began.
    pub start: Ns,
    /// When its last request ended.
    pub end: Ns,
    /// What each part of the plan did: first everything that is no job's, then job by job.
    jobs: Vec<JobRecord>,
    /// When their ramps end; nothing for those without one.
    ramps: Vec<Ns>,
    /// Latencies over time, where somebody asked for them.
    pub intervals: Option<Intervals>,
    pub bytes_read: u64,
    pub bytes_written: u64,
    pub bytes_discarded: u64,
    /// Requests of the workload that ended (a trace's record is one, whatever it was split into).
    pub requests: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Sectors reported as unreadable.
    pub uncorrectable: u64,
    /// Sectors with wrong content; whatever the part of the run, ramp included.
    pub wrong_sectors: u64,
    /// Of the requests that failed, calls of a file system that was full.
    pub no_room: u64,
    /// The first of them.
    pub mismatches: Vec<String>,
    /// Time that reads waited for the host's core before they were submitted, summed.
    pub read_queue: Ns,
    pub write_queue: Ns,
    /// Lateness of replayed requests.
    pub slip: Slip,
    /// How long a journal's writes of a trace took until they were durable.
    pub journal: Latencies,
    pub timeline: Timeline,
}

impl Recorder {
    /// The measured part begins.
    pub fn begin(&mut self, now: Ns, watch: &Watch) {
        self.measuring = true;
        (self.start, self.end) = (now, now);
        self.timeline = Timeline::new(now, watch.probe.clone());
        self.intervals = watch.intervals.then(|| Intervals::new(now));
    }

    /// Whether the measured part has begun.
    pub fn is_measuring(&self) -> bool {
        self.measuring
    }

    /// What this job starts before `until` does not count, whatever else is measured by then.
    pub fn ramp(&mut self, job: usize, until: Ns) {
        if self.ramps.len() < job + 2 {
            self.ramps.resize(job + 2, Ns::ZERO);
        }
        self.ramps[job + 1] = until;
    }

    /// What a job did; `None` is everything that is no job's.
    pub fn job(&self, job: Option<usize>) -> Option<&JobRecord> {
        self.jobs.get(job.map_or(0, |job| job + 1))
    }

    /// Latencies of one operation, over all jobs.
    pub fn latencies(&self, op: BlockOp) -> Latencies {
        let mut all = Latencies::default();
        for record in self.jobs.iter().filter_map(|job| job.op(op)) {
            all.merge(&record.latency);
        }
        all
    }

    /// Whether what this job started at `start` is to be recorded.
    #[inline]
    fn counts(&self, job: Option<usize>, start: Ns) -> bool {
        let ramp = self.ramps.get(job.map_or(0, |job| job + 1));
        self.measuring && start >= self.start && ramp.is_none_or(|until| start >= *until)
    }

    /// One operation of so many bytes (0 for a flush) ended, of this job if it is one's.
    #[inline]
    pub fn operation(
        &mut self,
        job: Option<usize>,
        op: BlockOp,
        bytes: u64,
        start: Ns,
        now: Ns,
        stats: &dyn Fn() -> FtlStats,
    ) {
        if !self.counts(job, start) {
            return;
        }
        let took = (now - start).as_ns();
        self.timeline.advance(now, stats);
        let job = job.map_or(0, |job| job + 1);
        if job >= self.jobs.len() {
            self.jobs.resize_with(job + 1, JobRecord::default);
        }
        self.jobs[job].record(op, bytes, start, now);
        if let Some(intervals) = &mut self.intervals {
            intervals.record(op, now - start, now);
        }
        let bucket = &mut self.timeline.current;
        match op {
            BlockOp::Read => {
                self.bytes_read += bytes;
                bucket.read_bytes += bytes;
                bucket.read_max_ns = bucket.read_max_ns.max(took);
            }
            BlockOp::Write => {
                self.bytes_written += bytes;
                bucket.write_bytes += bytes;
                bucket.write_max_ns = bucket.write_max_ns.max(took);
            }
            BlockOp::Discard => {
                self.bytes_discarded += bytes;
            }
            BlockOp::Flush => {}
        }
        bucket.requests += 1;
        self.end = self.end.max(now);
    }

    /// An operation that started at `start` waited so long for the host's core.
    #[inline]
    pub fn queued(&mut self, job: Option<usize>, op: BlockOp, start: Ns, waited: Ns) {
        match op {
            _ if !self.counts(job, start) => {}
            BlockOp::Read => self.read_queue += waited,
            BlockOp::Write => self.write_queue += waited,
            BlockOp::Discard | BlockOp::Flush => {}
        }
    }

    /// A request of the workload ended, with all its operations.
    #[inline]
    pub fn request(&mut self, job: Option<usize>, start: Ns, ok: bool) {
        if self.counts(job, start) {
            self.requests += 1;
            self.failed += !ok as u64;
        }
    }

    /// A journal's write that began at `start` is durable.
    pub fn durable(&mut self, start: Ns, now: Ns) {
        if self.counts(None, start) {
            self.journal.record((now - start).as_ns());
        }
    }

    /// Wrong content was read.
    pub fn mismatch(&mut self, first: impl Display, sectors: u64) {
        self.wrong_sectors += sectors;
        if self.mismatches.len() < MISMATCHES_SHOWN {
            self.mismatches.push(first.to_string());
        }
    }

    /// A replayed request was issued this much later than the trace says.
    pub fn slipped(&mut self, start: Ns, by: Ns) {
        if self.counts(None, start) {
            match by {
                Ns::ZERO => self.slip.in_time += 1,
                by => {
                    self.slip.late += 1;
                    self.slip.by.record(by.as_ns());
                }
            }
        }
    }

    /// The workload has ended.
    pub fn close(&mut self, stats: &dyn Fn() -> FtlStats) {
        let end = self.end;
        self.timeline.close(end, stats);
        self.slip.by.record_many(0, std::mem::take(&mut self.slip.in_time));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_ftl::stats::Gauges;
    use proptest::prelude::{prop, prop_assert, prop_assert_eq, proptest};

    proptest! {
        /// However long a run is and however it pauses, buckets stay few and sums stay whole.
        #[test]
        fn joining_buckets_loses_nothing(gaps in prop::collection::vec(0u64..40_000_000, 1..400)) {
            let stats = FtlStats::default;
            let mut r = Recorder::default();
            // Each sample says when it was taken.
            let probe: Probe = Rc::new(|now: Ns| {
                let gauges = Gauges { free: now.as_ns(), ..Gauges::default() };
                Sample { gauges, ..Sample::default() }
            });
            r.begin(Ns::from_us(7), &Watch { probe: Some(probe), intervals: false });
            let mut now = Ns::from_us(7);
            for (i, gap) in gaps.iter().enumerate() {
                now += Ns::from_ns(*gap);
                r.operation(None, BlockOp::Write, i as u64 % 7, now, now, &stats);
            }
            r.close(&stats);
            let t = &r.timeline;
            prop_assert!(t.buckets().len() <= BUCKETS_MAX);
            let bytes: u64 = t.buckets().iter().map(|b| b.write_bytes).sum();
            prop_assert_eq!(bytes, r.bytes_written);
            let n: u64 = t.buckets().iter().map(|b| b.requests).sum();
            prop_assert_eq!(n, gaps.len() as u64);
            prop_assert_eq!(t.samples().len(), t.buckets().len() + 1);
            let ends: Vec<u64> = t.samples().iter().map(|s| s.gauges.free).collect();
            prop_assert!(ends.is_sorted() && ends.last() == Some(&(now.as_ns())), "{ends:?}");
            let span = t.width().times(t.buckets().len() as u64);
            prop_assert!(span >= now.saturating_sub(Ns::from_us(7)));
            prop_assert!(span <= now + t.width().times(2));
        }
    }

    #[test]
    fn a_pause_of_a_year_costs_nothing() {
        let stats = FtlStats::default;
        let mut r = Recorder::default();
        r.begin(Ns::ZERO, &Watch::default());
        for at in [Ns::from_us(1), Ns::from_secs(365 * 86_400)] {
            r.operation(None, BlockOp::Read, 1, at, at, &stats);
        }
        r.close(&stats);
        assert!(r.timeline.buckets().len() <= BUCKETS_MAX);
        assert_eq!(r.timeline.buckets().iter().map(|b| b.requests).sum::<u64>(), 2);
    }

    #[test]
    fn what_started_before_the_measured_part_is_not_in_it() {
        let stats = FtlStats::default;
        let mut r = Recorder::default();
        r.operation(None, BlockOp::Read, 1, Ns::ZERO, Ns::from_us(5), &stats);
        r.begin(Ns::from_us(4), &Watch::default());
        r.operation(None, BlockOp::Read, 1, Ns::from_us(3), Ns::from_us(5), &stats);
        r.request(None, Ns::from_us(3), true);
        assert_eq!((r.latencies(BlockOp::Read).count(), r.requests), (0, 0));
        r.operation(None, BlockOp::Read, 1, Ns::from_us(4), Ns::from_us(5), &stats);
        assert_eq!(r.latencies(BlockOp::Read).count(), 1);
    }
}
