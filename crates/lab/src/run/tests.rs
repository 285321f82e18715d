//! Tests of the runner on a block device in memory.

use super::*;
use crate::trace::{
    Format, Reading, Recording, Take, TraceOp, TraceRecord, TraceSource, scan, scan::scan_to_replay,
};
use crate::workload::{Amount, Mix, Pace, Sizes};
use flashlane_ftl::block::{BlockInfo, Extent, Payload, Sectors, SectorsMut, Started};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Virtual};
use flashlane_testkit::Ram;

#[derive(Default)]
struct Inside {
    content: Vec<u8>,
    log: Vec<(BlockOp, u64, u32, bool, u64)>,
    writes: u64,
    in_flight: u32,
    deepest: u32,
}

/// 10 us per request, any number at once.
struct Memory {
    info: BlockInfo,
    inside: Mutex<Inside>,
    /// This write (from 1) is acknowledged and lost.
    lose: u64,
    /// Reads of this sector fail.
    unreadable: Option<u64>,
    /// Read-only from this write on.
    dies_at: u64,
}

impl Memory {
    fn new(capacity: u64) -> Memory {
        Memory {
            info: BlockInfo { capacity, content_bytes: 8, layer: "memory" },
            inside: Mutex::new(Inside {
                content: vec![0; capacity as usize * 8],
                ..Inside::default()
            }),
            lose: 0,
            unreadable: None,
            dies_at: u64::MAX,
        }
    }

    fn apply(&self, io: &mut Io<'_>) -> Result<(), BlockError> {
        let mut inside = self.inside.lock();
        let range = io.lba.get() as usize * 8..(io.lba.get() + io.sectors as u64) as usize * 8;
        match &mut io.payload {
            Payload::Read(SectorsMut::One(to)) => {
                to.copy_from_slice(&inside.content[range]);
                let bad = self.unreadable.map(Lba::new).filter(|l| {
                    (io.lba.get()..io.lba.get() + io.sectors as u64).contains(&l.get())
                });
                if let Some(bad) = bad {
                    let at = (bad.get() - io.lba.get()) as usize * 8;
                    to[at..at + 8].fill(0xee);
                    return Err(BlockError::Uncorrectable(vec![bad]));
                }
            }
            Payload::Write(Sectors::One(from)) => {
                inside.writes += 1;
                if inside.writes >= self.dies_at {
                    return Err(BlockError::ReadOnly("the test says so"));
                }
                if inside.writes != self.lose {
                    inside.content[range].copy_from_slice(from);
                }
            }
            Payload::None if io.op == BlockOp::Discard => inside.content[range].fill(0),
            Payload::None => {}
            other => panic!("a run has one piece of memory: {other:?}"),
        }
        Ok(())
    }
}

impl BlockDev for Memory {
    fn info(&self) -> &BlockInfo {
        &self.info
    }
    fn start<'a>(&'a self, cx: &'a Cx, mut io: Io<'a>) -> Started<'a> {
        Started::later(async move {
            {
                let mut inside = self.inside.lock();
                inside.log.push((io.op, io.lba.get(), io.sectors, io.fua, cx.now().as_ns()));
                inside.in_flight += 1;
                inside.deepest = inside.deepest.max(inside.in_flight);
            }
            cx.sleep(Ns::from_us(10)).await;
            self.inside.lock().in_flight -= 1;
            self.apply(&mut io)
        })
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        Extent::of(&self.info, lba, most, |_| true)
    }
}

fn subject(device: Arc<Memory>) -> Subject {
    Subject {
        device,
        stats: Rc::new(FtlStats::default),
        begin: Rc::new(|| ()),
        watch: Watch::default(),
        contention: None,
        used: None,
        discards: false,
    }
}

fn go_watched(device: Arc<Memory>, plan: &RunPlan, monitor: Rc<dyn Monitor>) -> (Measured, u64) {
    let vm = Virtual::new(2, plan.seed, CostTable::zero());
    let (cx, plan) = (vm.cx(), plan.clone());
    let subject = subject(device);
    let measured = vm
        .run(async move { run(&cx, subject, &plan, monitor).await })
        .expect("nothing stalls")
        .expect("the plan fits");
    (measured, vm.fingerprint().0)
}

fn go(device: Arc<Memory>, plan: &RunPlan) -> Measured {
    go_watched(device, plan, Rc::new(Unwatched)).0
}

fn plan_of(work: Vec<Work>) -> RunPlan {
    RunPlan {
        seed: 3,
        fill: Fill::Auto,
        overwrite: Overwrite::None,
        warm_up: Vec::new(),
        rest: Ns::ZERO,
        work,
    }
}

fn job(name: &str, mix: Mix, random: bool) -> Job {
    let mut j = Job::new(name);
    (j.rw, j.random) = (mix, random);
    j
}

fn trace(text: &'static str, replay: Replay) -> Work {
    Work::Trace(trace_job(text, replay))
}

fn trace_job(text: &'static str, replay: Replay) -> TraceJob {
    let source = TraceSource::Bundled { name: "t", bytes: text.as_bytes() };
    TraceJob {
        scan: Rc::new(scan(&source, &Reading { take_as_is: true, ..Reading::default() }).unwrap()),
        device: None,
        scale: false,
        replay,
        loops: 1,
        truth: None,
        hint: false,
    }
}

#[test]
fn a_closed_loop_keeps_its_depth_and_counts_everything() {
    let device = Arc::new(Memory::new(4096));
    let mut j = job("w", Mix::Mixed, true);
    j.iodepth = 8;
    let m = go(device.clone(), &plan_of(vec![Work::Job(j.into())]));
    assert_eq!(m.recorder.requests, 4096);
    assert_eq!(m.recorder.bytes_read + m.recorder.bytes_written, 4096 * 4096);
    assert_eq!((m.recorder.wrong_sectors, m.recorder.failed), (0, 0));
    assert_eq!(m.recorder.latencies(BlockOp::Read).percentile_ns(99.0), 10_000);
    // 4096 requests, 8 at a time, 10 us each.
    assert_eq!(m.recorder.end - m.recorder.start, Ns::from_us(5120));
    assert_eq!(m.prepared.filled_sectors, 4096, "what is read was laid out first");
    assert_eq!(m.mapped, (4096, 4096));
    assert!(m.steady.reason.contains("no garbage collection"), "{:?}", m.steady);
}

/// The canary: a device that loses one write is caught, whichever write it is.
#[test]
fn a_lost_write_is_caught() {
    for lose in [1, 57, 128] {
        let mut memory = Memory::new(128);
        memory.lose = lose;
        let mut w = job("w", Mix::Write, true);
        w.verify = true;
        let mut plan = plan_of(vec![Work::Job(w.into())]);
        plan.fill = Fill::None;
        let m = go(Arc::new(memory), &plan);
        assert_eq!(m.recorder.wrong_sectors, 1, "write {lose}");
        assert_eq!(m.recorder.mismatches.len(), 1);
    }
}

#[test]
fn unreadable_sectors_are_errors_but_not_wrong_data() {
    let mut memory = Memory::new(64);
    memory.unreadable = Some(5);
    let m = go(Arc::new(memory), &plan_of(vec![Work::Job(job("r", Mix::Read, false).into())]));
    assert_eq!((m.recorder.uncorrectable, m.recorder.wrong_sectors), (1, 0));
    assert_eq!(m.recorder.failed, 1);
}

#[test]
fn a_device_that_turns_read_only_ends_the_run_with_what_is_done() {
    let mut memory = Memory::new(64);
    memory.dies_at = 20;
    let mut plan = plan_of(vec![Work::Job(job("w", Mix::Write, false).into())]);
    plan.fill = Fill::None;
    let m = go(Arc::new(memory), &plan);
    assert_eq!(m.read_only.as_deref(), Some("the test says so"));
    assert_eq!((m.recorder.requests, m.recorder.failed), (20, 1));
}

#[test]
fn a_flush_waits_for_what_is_before_it_and_holds_what_is_behind() {
    let device = Arc::new(Memory::new(64));
    let mut j = job("w", Mix::Write, false);
    (j.iodepth, j.fsync) = (4, 3);
    j.size = Some(Amount::Bytes(9 * 4096));
    go(device.clone(), &plan_of(vec![Work::Job(j.into())]));
    let inside = device.inside.lock();
    let flushes: Vec<u64> =
        inside.log.iter().filter(|e| e.0 == BlockOp::Flush).map(|e| e.4).collect();
    assert_eq!(flushes[..3], [10_000, 30_000, 50_000]);
    for (op, _, _, _, at) in &inside.log {
        let during = flushes.iter().any(|f| (f + 1..f + 10_000).contains(at));
        assert!(*op == BlockOp::Flush || !during, "a write at {at} during a flush");
    }
}

#[test]
fn pace_pause_runtime_and_delay_are_kept() {
    let ended = |set: &dyn Fn(&mut Job)| {
        let mut j = job("w", Mix::Write, true);
        j.norandommap = true;
        set(&mut j);
        let m = go(Arc::new(Memory::new(64)), &plan_of(vec![Work::Job(j.into())]));
        (m.recorder.requests, (m.recorder.end - m.recorder.start).as_ns() / 1000)
    };
    assert_eq!(ended(&|j| j.rate = [Pace::Iops(1000); 2]), (64, 63_010));
    assert_eq!(ended(&|j| j.rate = [Pace::BytesPerSecond(4_096_000); 2]), (64, 63_010));
    assert_eq!(
        ended(&|j| (j.thinktime, j.thinktime_blocks) = (Ns::from_us(90), 2)),
        (64, 64 * 10 + 31 * 90)
    );
    assert_eq!(ended(&|j| j.startdelay = Ns::from_ms(1)), (64, 1640));
    let timed =
        |j: &mut Job| (j.time_based, j.runtime, j.iodepth) = (true, Some(Ns::from_ms(3)), 2);
    assert_eq!(ended(&timed), (600, 3000));
    let (n, _) = ended(&|j| {
        timed(j);
        (j.rate, j.poisson) = ([Pace::Iops(10_000); 2], true);
    });
    assert!((10..50).contains(&n), "{n} of 30 expected");
}

#[test]
fn a_ramp_is_not_measured_and_a_stonewall_waits() {
    let mut j = job("w", Mix::Write, true);
    (j.time_based, j.runtime, j.ramp_time) = (true, Some(Ns::from_ms(2)), Ns::from_ms(1));
    let m = go(Arc::new(Memory::new(64)), &plan_of(vec![Work::Job(j.into())]));
    assert_eq!(m.recorder.requests, 200);
    let device = Arc::new(Memory::new(64));
    let mut second = job("b", Mix::Discard, false);
    second.stonewall = true;
    go(
        device.clone(),
        &plan_of(vec![Work::Job(job("a", Mix::Write, false).into()), Work::Job(second.into())]),
    );
    let inside = device.inside.lock();
    let kinds: Vec<BlockOp> = inside.log.iter().map(|e| e.0).take(128).collect();
    assert!(kinds[..64].iter().all(|k| *k == BlockOp::Write));
    assert!(kinds[64..].iter().all(|k| *k == BlockOp::Discard));
}

/// A job's ramp is its own, as in fio: what others do meanwhile, or did before, counts.
#[test]
fn a_ramp_leaves_the_numbers_of_other_jobs_alone() {
    let timed = |name: &str, ramp: u64, stonewall: bool| {
        let mut j = job(name, Mix::Write, true);
        (j.time_based, j.runtime, j.ramp_time) = (true, Some(Ns::from_ms(2)), Ns::from_ms(ramp));
        j.stonewall = stonewall;
        Work::Job(j.into())
    };
    let counted = |works: Vec<Work>| {
        let jobs = works.len();
        let m = go(Arc::new(Memory::new(64)), &plan_of(works));
        let of = |job| {
            let record = m.recorder.job(Some(job)).and_then(|j| j.op(BlockOp::Write));
            record.map_or(0, |r| r.latency.count())
        };
        let all: Vec<u64> = (0..jobs).map(of).collect();
        assert_eq!(m.recorder.requests, all.iter().sum::<u64>(), "the sum is that of the jobs");
        let span = m.recorder.end - m.recorder.start;
        (all, span.as_ns() / 1000, m.ended_in_ramp)
    };
    // One request takes 10 us: 64 of them, 1 ms that does not count, 2 ms that do.
    let once = || Work::Job(job("a", Mix::Write, false).into());
    assert_eq!(counted(vec![once(), timed("b", 1, true)]), (vec![64, 200], 3640, false));
    assert_eq!(counted(vec![once(), timed("b", 1, false)]), (vec![64, 200], 3000, false));
    assert_eq!(counted(vec![timed("a", 1, false), timed("b", 1, true)]).0, [200, 200]);
    // The first has ended when its ramp would: the measured part begins with the second's.
    let mut early = job("a", Mix::Write, false);
    early.ramp_time = Ns::from_ms(1);
    let early = || Work::Job(early.clone().into());
    assert_eq!(counted(vec![early(), timed("b", 1, true)]), (vec![0, 200], 2000, false));
    assert_eq!(counted(vec![early()]), (vec![0], 0, true));
    // It begins with the job, and a job that begins late is no exception.
    let mut late = job("a", Mix::Write, true);
    (late.time_based, late.runtime) = (true, Some(Ns::from_ms(2)));
    (late.ramp_time, late.startdelay) = (Ns::from_ms(1), Ns::from_ms(5));
    assert_eq!(counted(vec![Work::Job(late.into())]), (vec![200], 2000, false));
}

/// What was written is read back, in the pieces in which it was written, at the job's depth.
#[test]
fn verify_reads_what_was_written_as_it_was_written() {
    let reads = |set: &dyn Fn(&mut Job)| {
        let mut j = job("w", Mix::Write, false);
        j.verify = true;
        set(&mut j);
        let device = Arc::new(Memory::new(4096));
        let mut plan = plan_of(vec![Work::Job(j.into())]);
        plan.fill = Fill::None;
        let m = go(device.clone(), &plan);
        let inside = device.inside.lock();
        let of = |op| inside.log.iter().filter(move |e| e.0 == op).map(|e| (e.1, e.2));
        let (mut writes, reads): (Vec<_>, Vec<_>) =
            (of(BlockOp::Write).collect(), of(BlockOp::Read).collect());
        writes.sort_unstable();
        assert_eq!(m.recorder.requests, (writes.len() + reads.len()) as u64);
        assert_eq!(m.recorder.wrong_sectors, 0);
        (reads.len(), reads == writes, inside.deepest)
    };
    // 16 MiB: fio reads 4096 pieces of 4 KiB, 256 of 64 KiB.
    assert_eq!(reads(&|_| ()), (4096, true, 1));
    assert_eq!(reads(&|j| (j.random, j.iodepth) = (true, 8)), (4096, true, 8));
    assert_eq!(reads(&|j| j.bs[1] = Sizes::fixed(16)), (256, true, 1));
    let split = Sizes(vec![(1, 1), (3, 1), (16, 1)]);
    assert!(reads(&|j| j.bs[1] = split.clone()).1, "pieces of several sizes");
    assert_eq!(reads(&|j| j.number_ios = Some(100)), (100, true, 1));
    // A reader's reads are checked as they come.
    assert_eq!(reads(&|j| j.rw = Mix::Read).0, 4096);
}

const FEW: &str = "8,0 0 1 1.000000 9 Q W 8 + 8 [a]\n8,0 0 2 1.000100 9 Q FWFS 16 + 16 [a]\n\
                   8,0 0 3 1.000050 9 Q FN [a]\n8,0 0 4 1.000300 9 Q R 8 + 8 [a]\n\
                   8,0 0 5 1.000400 9 Q DS 8 + 24 [a]\n8,0 0 6 1.000500 9 Q R 100 + 3 [a]\n";

#[test]
fn a_trace_runs_at_its_own_times_or_as_fast_as_it_can() {
    let device = Arc::new(Memory::new(64));
    let open = Replay::Open { speed_percent: 100, depth: 64 };
    let m = go(device.clone(), &plan_of(vec![trace(FEW, open)]));
    let log: Vec<_> = device.inside.lock().log.clone();
    // Sector 12 (byte 51200) is read and never written: laid out first, then flushed.
    assert_eq!(log[0].0, BlockOp::Write);
    assert_eq!((log[0].1, log[0].2), (12, 1));
    let base = log[2].4;
    let rest: Vec<_> = log[2..].iter().map(|e| (e.0, e.1, e.2, e.3, (e.4 - base) / 1000)).collect();
    assert_eq!(
        rest[..7],
        [
            (BlockOp::Write, 1, 1, false, 0),
            (BlockOp::Flush, 0, 0, false, 100),
            (BlockOp::Flush, 0, 0, false, 100),
            (BlockOp::Write, 2, 2, true, 110),
            (BlockOp::Read, 1, 1, false, 300),
            (BlockOp::Discard, 1, 3, false, 400),
            (BlockOp::Read, 12, 1, false, 500),
        ]
    );
    assert_eq!(m.recorder.requests, 6);
    assert_eq!(m.recorder.wrong_sectors, 0);
    let r = &m.replayed[0];
    assert_eq!((r.requests, r.widened, r.backwards), (6, 1, 1));
    assert_eq!((m.recorder.slip.by.count(), m.recorder.slip.late), (6, 0));
    let m = go(Arc::new(Memory::new(64)), &plan_of(vec![trace(FEW, Replay::Closed { depth: 1 })]));
    assert_eq!(m.recorder.end - m.recorder.start, Ns::from_us(70));
}

/// Times in ticks of 100 ns. When it was recorded the first took 5 us, the second was made 1 us and
/// the third 3 us after it had ended; here it takes 10 us, and the two keep their distances from its
/// end. The fourth waited for all of them.
#[test]
fn a_dependent_replay_keeps_the_pauses_behind_what_was_waited_for() {
    let text = "0,a,0,Write,4096,4096,50\n60,a,0,Write,8192,4096,1000\n80,a,0,Write,12288,4096,10\n\
                2060,a,0,Write,16384,4096,10\n";
    let starts_with = |text, max_pause, cut| {
        let device = Arc::new(Memory::new(64));
        let dependent = Replay::Dependent { depth: 64, max_pause };
        let m = go(device.clone(), &plan_of(vec![trace(text, dependent)]));
        assert_eq!((m.recorder.requests, m.replayed[0].pauses_cut), (4, cut));
        let log = &device.inside.lock().log;
        let base = log[0].4;
        log.iter().take(4).map(|e| (e.4 - base) / 1000).collect::<Vec<_>>()
    };
    let starts = |text| starts_with(text, None, 0);
    // The last end in the trace is the second's, at 106 us; the fourth came 100 us later.
    assert_eq!(starts(text), [0, 11, 13, 23 + 100]);
    // A pause of 2 us at most: the third comes as late as that behind the first's end, too.
    assert_eq!(starts_with(text, Some(Ns::from_us(2)), 2), [0, 11, 12, 22 + 2]);
    let decades = "0,a,0,Write,4096,4096,1\n10000000000000000,a,0,Write,4096,4096,1\n\
                     20000000000000000,a,0,Write,4096,4096,1\n31000000000000000,a,0,Write,4096,4096,1\n";
    assert_eq!(starts(decades).len(), 4, "the clock does not wrap");
}

#[test]
fn too_many_in_flight_slip_and_it_is_counted() {
    let device = Arc::new(Memory::new(64));
    let text = "0 0 0 8 0\n0 0 8 8 0\n0 0 16 8 0\n";
    let open = Replay::Open { speed_percent: 100, depth: 1 };
    let m = go(device, &plan_of(vec![trace(text, open)]));
    assert_eq!((m.recorder.slip.late, m.recorder.slip.by.max_ns()), (2, 20_000));
}

#[test]
fn a_trace_that_does_not_fit_is_refused_before_it_runs() {
    let vm = Virtual::new(1, 1, CostTable::zero());
    let (cx, device) = (vm.cx(), Arc::new(Memory::new(8)));
    let plan = plan_of(vec![trace("0 0 800 8 0\n", Replay::Closed { depth: 1 })]);
    let subject = subject(device.clone());
    let said =
        vm.run(async move { run(&cx, subject, &plan, Rc::new(Unwatched)).await.map(|_| ()) });
    let said = said.unwrap().unwrap_err().to_string();
    assert!(said.contains("--scale-to-device"), "{said}");
    assert!(device.inside.lock().log.is_empty());
}

struct After(Cell<u64>);

impl Progress for After {
    fn progress(&self, _: &str, _: u64, _: Option<u64>) {
        self.0.set(self.0.get() + 1);
    }
    fn interrupted(&self) -> bool {
        self.0.get() > 3
    }
}
impl Monitor for After {}

#[test]
fn an_interrupt_ends_the_run_with_what_is_done() {
    let mut j = job("w", Mix::Write, true);
    (j.time_based, j.runtime) = (true, Some(Ns::from_secs(1000)));
    let device = Arc::new(Memory::new(64));
    let (m, _) =
        go_watched(device, &plan_of(vec![Work::Job(j.into())]), Rc::new(After(Cell::new(0))));
    assert!(m.interrupted && !m.steady.steady);
    assert!(m.recorder.requests > 0);
}

#[test]
fn same_seed_same_run() {
    let mut plan = plan_of(vec![
        Work::Job(job("a", Mix::Mixed, true).into()),
        trace(FEW, Replay::Closed { depth: 2 }),
    ]);
    plan.overwrite = Overwrite::Percent(50);
    let of = |plan: &RunPlan| go_watched(Arc::new(Memory::new(512)), plan, Rc::new(Unwatched)).1;
    let first = of(&plan);
    assert_eq!(first, of(&plan));
    plan.seed += 1;
    assert_ne!(first, of(&plan));
}

/// What warms up runs first, part by part, and is in no number; then the host rests.
#[test]
fn a_warm_up_and_a_rest_come_before_what_is_measured() {
    let device = Arc::new(Memory::new(64));
    let small = |name: &str, mix| {
        let mut j = job(name, mix, false);
        j.size = Some(Amount::Bytes(16 * SECTOR_BYTES as u64));
        Work::Job(j.into())
    };
    let text = "0 0 160 8 0\n5 0 320 8 0\n";
    let mut plan = plan_of(vec![small("r", Mix::Read)]);
    plan.warm_up = vec![
        small("w", Mix::Write),
        trace(text, Replay::Closed { depth: 1 }),
        small("d", Mix::Discard),
    ];
    plan.rest = Ns::from_ms(7);
    let m = go(device.clone(), &plan);
    assert_eq!((m.recorder.requests, m.recorder.bytes_written), (16, 0));
    assert_eq!((m.prepared.warm_up_operations, m.prepared.rest_ns), (34, 7_000_000));
    let inside = device.inside.lock();
    // What is read was filled by sixteen writes; a flush is before the rest.
    let log = &inside.log[16..];
    let kinds = |range: std::ops::Range<usize>, op| log[range].iter().all(|e| e.0 == op);
    assert!(kinds(0..18, BlockOp::Write) && kinds(18..34, BlockOp::Discard), "{log:?}");
    assert!(kinds(34..35, BlockOp::Flush) && kinds(35..51, BlockOp::Read), "{log:?}");
    assert_eq!(log[35].4 - log[34].4, 7_000_000 + 10_000, "the flush, then the rest");
}

/// A write to a journal is durable when the flush behind it has ended, or when it ends itself.
#[test]
fn a_journals_write_is_durable_with_the_next_flush() {
    let text = "  8,0 0 1 0.000000000 1 D WS 0 + 8 [a]\n  8,0 0 2 0.000001000 1 D WS 800 + 8 [a]\n  \
                8,0 0 3 0.000002000 1 D FN [a]\n  8,0 0 4 0.000003000 1 D WFS 8 + 8 [a]\n  \
                8,0 0 5 0.000004000 1 D WS 16 + 8 [a]\n";
    let mut work = trace(text, Replay::Closed { depth: 1 });
    let Work::Trace(job) = &mut work else { unreachable!() };
    job.truth = Some(Arc::new(crate::trace::truth::Truth::parse("0 + 4 journal", "t").unwrap()));
    let m = go(Arc::new(Memory::new(512)), &plan_of(vec![work]));
    let journal = &m.recorder.journal;
    // The first: two writes and a flush. The second has FUA. Nobody waits for the last.
    assert_eq!((journal.count(), journal.max_ns()), (2, 30_000));
    assert_eq!(journal.mean_ns(), 20_000);
}

/// Ready tasks run in any order; what a trace has in an order was submitted so.
#[test]
fn requests_of_one_instant_begin_in_the_order_of_the_trace() {
    let lines: String = (0..64).map(|i| format!("0 0 {} 8 0\n", i * 8)).collect();
    let text: &'static str = lines.leak();
    for replay in [Replay::Closed { depth: 64 }, Replay::Open { speed_percent: 100, depth: 64 }] {
        let device = Arc::new(Memory::new(64));
        go(device.clone(), &plan_of(vec![trace(text, replay)]));
        let inside = device.inside.lock();
        let places: Vec<u64> =
            inside.log.iter().filter(|e| e.0 == BlockOp::Write).map(|e| e.1).collect();
        assert!(places.len() == 64 && places.is_sorted(), "{replay:?}: {places:?}");
    }
}

/// A warm-up is as deep as it says, and draws other places than what is measured, under the same name too.
#[test]
fn a_warm_up_runs_its_copies_at_once_and_elsewhere() {
    let device = Arc::new(Memory::new(64));
    let mut j = job("same", Mix::Write, true);
    j.numjobs = 4;
    let mut plan = plan_of(vec![Work::Job(job("same", Mix::Write, true).into())]);
    plan.warm_up = vec![Work::Job(j.into())];
    go(device.clone(), &plan);
    let inside = device.inside.lock();
    assert_eq!(inside.deepest, 4);
    let writes: Vec<u64> =
        inside.log.iter().filter(|e| e.0 == BlockOp::Write).map(|e| e.1).collect();
    assert_eq!(writes.len(), 5 * 64);
    let mut alone = plan.clone();
    alone.warm_up.clear();
    let device = Arc::new(Memory::new(64));
    go(device.clone(), &alone);
    let measured: Vec<u64> = device.inside.lock().log.iter().take(64).map(|e| e.1).collect();
    assert_eq!(writes[256..], measured[..], "what is measured is what it would be alone");
    let first: Vec<u64> = writes[..256].iter().copied().step_by(4).collect();
    assert_ne!(first, measured);
}

/// A write that failed, or whose flush did, is not durable.
#[test]
fn what_failed_is_not_durable() {
    let text = "  8,0 0 1 0.000000000 1 D WS 0 + 8 [a]\n  8,0 0 2 0.000002000 1 D FN [a]\n  \
                8,0 0 3 0.000003000 1 D WFS 8 + 8 [a]\n";
    let mut work = trace(text, Replay::Closed { depth: 1 });
    let Work::Trace(job) = &mut work else { unreachable!() };
    job.truth = Some(Arc::new(crate::trace::truth::Truth::parse("0 + 4 journal", "t").unwrap()));
    let device = Arc::new(Memory { dies_at: 1, ..Memory::new(64) });
    let m = go(device, &plan_of(vec![work]));
    assert_eq!(m.recorder.journal.count(), 0);
}

/// A recording that has contents is replayed with them, and what is read is compared with them.
#[test]
fn contents_are_written_as_recorded_and_checked() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("t.parquet");
    let take = Take {
        to: to.clone(),
        format: Format::Parquet,
        contents: std::iter::once(0..u64::MAX).collect(),
    };
    let mut recording = Recording::begin(take, &["d".into()]).expect("room");
    let sector = SECTOR_BYTES as u64;
    let content = |n: u8| -> Box<[u8]> { (0..2 * SECTOR_BYTES).map(|i| n ^ i as u8).collect() };
    for (n, op) in [TraceOp::Write, TraceOp::Write, TraceOp::Read, TraceOp::Read].iter().enumerate()
    {
        let ts_ns = n as u64 * 100_000;
        let record = TraceRecord {
            ts_ns,
            op: *op,
            offset_bytes: 5 * sector,
            len_bytes: 2 * sector,
            ..TraceRecord::EMPTY
        };
        let written = (*op == TraceOp::Write).then(|| content(n as u8));
        let ticket = recording.made(record, 0, written);
        recording.ended(ticket, Some(ts_ns + 1));
    }
    recording.end().expect("it is written");
    let go = |lies: bool, replay| {
        let device = Arc::new(Ram::new(64, SECTOR_BYTES, Ns::from_us(5), 1));
        let scan = scan_to_replay(&TraceSource::File(to.clone()), &Reading::default(), false);
        let scan = Rc::new(scan.expect("a trace"));
        let job = TraceJob { scan, ..trace_job("0 0 0 8 0\n", replay) };
        let plan = plan_of(vec![Work::Trace(job)]);
        let vm = Virtual::new(1, plan.seed, CostTable::zero());
        let cx = vm.cx();
        let mut subject = subject(Arc::new(Memory::new(64)));
        subject.device = device.clone();
        vm.run(async move {
            if lies {
                let (cx, device) = (cx.clone(), device.clone());
                cx.clone().spawn(async move {
                    cx.sleep(Ns::from_us(150)).await;
                    let io = Io::write(Lba::new(6), 1, false, &[9; SECTOR_BYTES]);
                    device.start(&cx, io).await.expect("a good device");
                });
            }
            let m = run(&cx, subject, &plan, Rc::new(Unwatched)).await.expect("it runs");
            let mut read = vec![0; 2 * SECTOR_BYTES];
            let io = Io::read(Lba::new(5), 2, &mut read);
            device.start(&cx, io).await.expect("a good device");
            (m.recorder.wrong_sectors, m.replayed[0].with_content, read)
        })
        .expect("it does not stall")
    };
    for replay in [
        Replay::Open { speed_percent: 100, depth: 4 },
        Replay::Closed { depth: 1 },
        Replay::Dependent { depth: 4, max_pause: None },
    ] {
        assert_eq!(go(false, replay), (0, 2, content(1).to_vec()), "{replay:?}");
    }
    let (wrong, ..) = go(true, Replay::Open { speed_percent: 100, depth: 4 });
    assert_eq!(wrong, 2, "one sector, read twice");
}
