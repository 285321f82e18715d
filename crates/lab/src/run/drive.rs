//! Issues the requests of jobs: closed loop, with pauses, paces and flushes.
//!
//! Owns: the order of a plan's parts (`stonewall`), a job's copies, its barrier at a flush.
//! Promises: at most `iodepth` requests of a copy in flight; a flush is issued when everything
//! before it is acknowledged, and nothing behind it before it ends (fio's `fsync`).
//! Never: overtakes `runtime`: what is in flight then ends, nothing new begins.

use super::replay::{PlannedTrace, Replayed};
use super::{Host, RunError, RunPlan, Scratch, Work, replay};
use crate::workload::{Job, Pace, Planned, Stream};
use flashlane_base::{Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_rt::{CoreId, Cx, Join, Notify};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

/// A part of a plan that fits the device.
pub(crate) enum Part {
    /// A job with one stream per copy.
    Job(Rc<Job>, Vec<Stream>),
    /// A trace laid out.
    Trace(Rc<PlannedTrace>),
}

/// Fits a part of a plan onto a device of `capacity` sectors.
pub(crate) fn fit(work: &Work, seed: u64, capacity: u64) -> Result<Part, RunError> {
    Ok(match work {
        Work::Job(job) => {
            let streams: Result<Vec<Stream>, _> =
                (0..job.numjobs).map(|copy| Stream::new(job, copy, seed, capacity)).collect();
            Part::Job(Rc::new((**job).clone()), streams?)
        }
        Work::Trace(trace) => Part::Trace(Rc::new(PlannedTrace::new(trace, capacity)?)),
        Work::Files(job) => return Err(RunError::NoFiles { job: job.name.clone() }),
    })
}

/// Runs all parts. Returns how traces were replayed.
pub(crate) async fn drive(
    cx: &Cx,
    host: &Rc<Host>,
    plan: &RunPlan,
    works: Vec<Part>,
) -> Result<Vec<Replayed>, RunError> {
    host.begin_stage("run", total(&works));
    let mut jobs: Vec<Join<()>> = Vec::new();
    let mut traces: Vec<Join<Result<Replayed, RunError>>> = Vec::new();
    let mut replayed = Vec::new();
    let mut core = 0;
    for (part, work) in works.into_iter().enumerate() {
        match work {
            Part::Job(job, streams) => {
                if job.stonewall {
                    wait_for(&mut jobs, &mut traces, &mut replayed).await?;
                }
                let running = begin(cx, host, part, &job, streams.len());
                for (copy, stream) in streams.into_iter().enumerate() {
                    let cx = cx.on_core(CoreId(core % cx.cores()));
                    core += 1;
                    let copy = Rc::new(
                        Copy::new(&cx, host, &job, copy as u64, stream, plan.seed).of(part),
                    );
                    let running = running.clone();
                    jobs.push(cx.clone().spawn_join(async move {
                        copy.run(&cx).await;
                        running.set(running.get() - 1);
                    }));
                }
            }
            Part::Trace(trace) => {
                host.measure(cx);
                let cx = cx.on_core(CoreId(core % cx.cores()));
                core += 1;
                let host = host.clone();
                traces.push(
                    cx.clone().spawn_join(async move { replay::replay(&cx, &host, &trace).await }),
                );
            }
        }
    }
    wait_for(&mut jobs, &mut traces, &mut replayed).await?;
    Ok(replayed)
}

async fn wait_for(
    jobs: &mut Vec<Join<()>>,
    traces: &mut Vec<Join<Result<Replayed, RunError>>>,
    replayed: &mut Vec<Replayed>,
) -> Result<(), RunError> {
    for job in jobs.drain(..) {
        job.await;
    }
    for trace in traces.drain(..) {
        replayed.push(trace.await?);
    }
    Ok(())
}

/// A job of so many copies begins: it is measured from the end of its own ramp, as in fio, and so
/// is the run, if nothing else is measured by then. Returns the number of copies that still run.
fn begin(cx: &Cx, host: &Rc<Host>, part: usize, job: &Job, copies: usize) -> Rc<Cell<usize>> {
    let running = Rc::new(Cell::new(copies));
    if job.ramp_time == Ns::ZERO {
        host.measure(cx);
        return running;
    }
    let until = cx.now() + job.startdelay + job.ramp_time;
    host.recorder.borrow_mut().ramp(part, until);
    if !host.recorder.borrow().is_measuring() {
        let (cx, host, running) = (cx.clone(), host.clone(), running.clone());
        cx.clone().spawn(async move {
            cx.sleep_until(until).await;
            // A job that ended within its ramp has nothing to measure.
            if running.get() > 0 {
                host.measure(&cx);
            }
        });
    }
    running
}

/// Operations to be expected, for the monitor; `None` when only the clock ends it.
fn total(works: &[Part]) -> Option<u64> {
    let of = |work: &Part| match work {
        Part::Job(job, streams) => {
            let sectors = job.bs[if job.rw.reads() { 0 } else { 1 }].min().max(1) as u64;
            let each: Option<u64> = streams.iter().map(Stream::sectors_total).sum();
            Some(each? / sectors)
        }
        Part::Trace(trace) => Some(trace.requests()),
    };
    works.iter().map(of).sum()
}

/// Runs the copies of a job at once, as [`drive`] does, and begins no measured part.
pub(crate) async fn run_copies(
    cx: &Cx,
    host: &Rc<Host>,
    job: &Rc<Job>,
    seed: u64,
) -> Result<(), RunError> {
    let mut running = Vec::new();
    for copy in 0..job.numjobs {
        let stream = Stream::new(job, copy, seed, host.capacity)?;
        let cx = cx.on_core(CoreId(copy % cx.cores()));
        let copy = Rc::new(Copy::new(&cx, host, job, copy as u64, stream, seed));
        running.push(cx.clone().spawn_join(async move { copy.run(&cx).await }));
    }
    for copy in running {
        copy.await;
    }
    Ok(())
}

/// Runs one job with nothing recorded beside what the recorder already does.
pub(crate) async fn run_job(cx: &Cx, host: &Rc<Host>, job: Job, seed: u64) -> Result<(), RunError> {
    let job = Rc::new(job);
    for copy in 0..job.numjobs {
        let stream = Stream::new(&job, copy, seed, host.capacity)?;
        let copy = Rc::new(Copy::new(cx, host, &job, copy as u64, stream, seed));
        copy.run(cx).await;
    }
    Ok(())
}

/// One copy of a job while it runs.
struct Copy {
    host: Rc<Host>,
    job: Rc<Job>,
    /// Where the plan has it; none while preparing.
    part: Option<usize>,
    stream: RefCell<Stream>,
    /// What comes next, told to the device as long before as a queue of this depth knows it.
    ahead: RefCell<VecDeque<Planned>>,
    ends_at: Cell<Ns>,
    /// When the next read and the next write may be issued.
    next_at: [Cell<Ns>; 2],
    arrivals: RefCell<Rng>,
    in_flight: Cell<u32>,
    /// A flush waits or runs: nothing else is issued.
    flushing: Cell<bool>,
    changed: Notify,
    since_pause: Cell<u32>,
    /// What is to be read back.
    written: Option<RefCell<Written>>,
}

/// What a copy wrote to its region, in which pieces: two bits per sector.
struct Written {
    /// First sector of the region.
    first: u64,
    /// Written, and where a request began.
    bits: [Vec<u64>; 2],
    /// No request was longer.
    longest: u64,
}

impl Written {
    fn new((first, length): (u64, u64), longest: u32) -> Written {
        let words = length.div_ceil(64) as usize;
        Written { first, bits: [vec![0; words], vec![0; words]], longest: u64::from(longest) }
    }

    fn is(&self, what: usize, at: u64) -> bool {
        let word = self.bits[what].get((at / 64) as usize);
        word.is_some_and(|word| word >> (at % 64) & 1 == 1)
    }

    fn set(&mut self, what: usize, at: u64, value: bool) {
        if let Some(word) = self.bits[what].get_mut((at / 64) as usize) {
            *word = *word & !(1 << (at % 64)) | u64::from(value) << (at % 64);
        }
    }

    fn add(&mut self, lba: u64, sectors: u32) {
        let (start, end) = (lba - self.first, lba - self.first + u64::from(sectors));
        for at in start..end {
            self.set(0, at, true);
            self.set(1, at, at == start);
        }
        // What is left of a longer one begins anew.
        self.set(1, end, true);
    }

    /// The first piece at or behind `from`, both counted within the region.
    fn piece(&self, from: u64) -> Option<(u64, u32)> {
        let words = self.bits[0].len() as u64;
        let mut start = from;
        while !self.is(0, start) {
            // Nothing in the rest of this word: on to the next.
            let rest = *self.bits[0].get((start / 64) as usize)? >> (start % 64);
            start = if rest == 0 { (start / 64 + 1) * 64 } else { start + 1 };
        }
        let mut end = start + 1;
        let most = (start + self.longest).min(words * 64);
        while end < most && self.is(0, end) && !self.is(1, end) {
            end += 1;
        }
        Some((start, (end - start) as u32))
    }
}

impl Copy {
    fn new(cx: &Cx, host: &Rc<Host>, job: &Rc<Job>, copy: u64, stream: Stream, seed: u64) -> Copy {
        let name = format!("{}.arrivals", job.name);
        let written = (job.verify && job.rw.writes())
            .then(|| RefCell::new(Written::new(stream.region(), job.bs[1].max())));
        Copy {
            written,
            host: host.clone(),
            job: job.clone(),
            part: None,
            stream: RefCell::new(stream),
            ahead: RefCell::new(VecDeque::new()),
            ends_at: Cell::new(Ns::MAX),
            next_at: [Cell::new(cx.now()), Cell::new(cx.now())],
            arrivals: RefCell::new(Rng::stream(seed, &name, copy)),
            in_flight: Cell::new(0),
            flushing: Cell::new(false),
            changed: Notify::new(),
            since_pause: Cell::new(0),
        }
    }

    /// The copy of a part of the plan.
    fn of(self, part: usize) -> Copy {
        Copy { part: Some(part), ..self }
    }

    fn scratch(&self) -> Scratch {
        Scratch { job: self.part, ..Scratch::default() }
    }

    async fn run(self: Rc<Copy>, cx: &Cx) {
        if self.job.startdelay > Ns::ZERO {
            cx.sleep(self.job.startdelay).await;
        }
        let start = cx.now();
        self.next_at.iter().for_each(|at| at.set(start));
        if let Some(runtime) = self.job.runtime {
            // fio adds the ramp to the runtime.
            self.ends_at.set(start + runtime + self.job.ramp_time);
        }
        let slots: Vec<Join<()>> = (0..self.job.iodepth)
            .map(|_| {
                let (me, cx) = (self.clone(), cx.clone());
                cx.clone().spawn_join(async move { me.slot(&cx).await })
            })
            .collect();
        for slot in slots {
            slot.await;
        }
        self.read_back(cx).await;
    }

    /// One of `iodepth` request slots.
    async fn slot(&self, cx: &Cx) {
        let mut scratch = self.scratch();
        loop {
            if self.flushing.get() {
                self.changed.wait(cx, || !self.flushing.get()).await;
            }
            if self.host.stopped() || cx.now() >= self.ends_at.get() {
                return;
            }
            // A slot that waited may find another one flushing again.
            if self.flushing.get() {
                continue;
            }
            match self.plan() {
                Planned::End => return,
                Planned::Flush => self.flush(cx, &mut scratch).await,
                Planned::Io(request) => {
                    self.in_flight.set(self.in_flight.get() + 1);
                    let due = self.due(request.op, request.sectors);
                    if due > cx.now() {
                        cx.sleep_until(due.min(self.ends_at.get())).await;
                    }
                    if cx.now() < self.ends_at.get() {
                        let start = cx.now();
                        let (lba, n) = (request.lba.get(), request.sectors);
                        let ok = self
                            .host
                            .operation(cx, request.op, lba, n, request.fua, &mut scratch)
                            .await;
                        self.host.recorder.borrow_mut().request(self.part, start, ok);
                        if let (BlockOp::Write, Some(written)) = (request.op, &self.written) {
                            written.borrow_mut().add(lba, n);
                        }
                    }
                    self.in_flight.set(self.in_flight.get() - 1);
                    if self.flushing.get() {
                        self.changed.wake(cx);
                    }
                    self.pause(cx).await;
                }
            }
        }
    }

    /// What the job does next.
    fn plan(&self) -> Planned {
        let (mut ahead, mut stream) = (self.ahead.borrow_mut(), self.stream.borrow_mut());
        loop {
            let planned = stream.plan();
            if let Planned::Io(request) = &planned {
                self.host.expect(request.op, request.lba);
            }
            ahead.push_back(planned);
            if ahead.len() > self.job.iodepth as usize {
                return ahead.pop_front().unwrap_or(Planned::End);
            }
        }
    }

    async fn flush(&self, cx: &Cx, scratch: &mut Scratch) {
        self.flushing.set(true);
        self.changed.wait(cx, || self.in_flight.get() == 0).await;
        let start = cx.now();
        let ok = self.host.operation(cx, BlockOp::Flush, 0, 0, false, scratch).await;
        self.host.recorder.borrow_mut().request(self.part, start, ok);
        self.flushing.set(false);
        self.changed.wake(cx);
    }

    /// When a request may be issued under the job's pace.
    fn due(&self, op: BlockOp, sectors: u32) -> Ns {
        let direction = (op != BlockOp::Read) as usize;
        let interval = match self.job.rate[direction] {
            Pace::Unlimited => return Ns::ZERO,
            Pace::BytesPerSecond(rate) => {
                Ns::of_transfer(sectors as u64 * SECTOR_BYTES as u64, rate)
            }
            Pace::Iops(rate) => Ns::of_transfer(1, rate),
        };
        let interval = if self.job.poisson {
            let u = 1.0 - self.arrivals.borrow_mut().unit_f64();
            Ns::from_ns((interval.as_ns() as f64 * -u.ln()) as u64)
        } else {
            interval
        };
        let due = self.next_at[direction].get();
        self.next_at[direction].set(due + interval);
        due
    }

    async fn pause(&self, cx: &Cx) {
        if self.job.thinktime == Ns::ZERO {
            return;
        }
        self.since_pause.set(self.since_pause.get() + 1);
        if self.since_pause.get() >= self.job.thinktime_blocks {
            self.since_pause.set(0);
            cx.sleep(self.job.thinktime).await;
        }
    }

    /// fio's verify phase: what was written is read once, in order and at the job's depth, in the
    /// pieces in which it was written.
    async fn read_back(self: Rc<Copy>, cx: &Cx) {
        if self.written.is_none() {
            return;
        }
        let next = Rc::new(Cell::new(0));
        let readers: Vec<Join<()>> = (0..self.job.iodepth)
            .map(|_| {
                let (me, cx, next) = (self.clone(), cx.clone(), next.clone());
                cx.clone().spawn_join(async move { me.reader(&cx, &next).await })
            })
            .collect();
        for reader in readers {
            reader.await;
        }
    }

    /// Reads pieces back from `next` on, which all readers share, until there are none.
    async fn reader(&self, cx: &Cx, next: &Cell<u64>) {
        let Some(written) = &self.written else { return };
        let mut scratch = self.scratch();
        let first = written.borrow().first;
        while !self.host.stopped() {
            let piece = written.borrow().piece(next.get());
            let Some((at, n)) = piece else { return };
            next.set(at + u64::from(n));
            let (lba, start) = (first + at, cx.now());
            let ok = self.host.operation(cx, BlockOp::Read, lba, n, false, &mut scratch).await;
            self.host.recorder.borrow_mut().request(self.part, start, ok);
        }
    }
}
