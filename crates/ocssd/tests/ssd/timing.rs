//! When things are over: dies, buses, registers, policies, limits (D6, facts D22), and the presets
//! against the tables they are derived from (D11).

use crate::common::*;
use flashlane_ocssd::link::LinkedDevice;
use flashlane_ocssd::spec::LinkSpec;

/// tiny with round numbers: sense 50 us, program 500 us, erase 3 ms, 10 us on the bus per row of
/// four sectors.
fn round(change: impl FnOnce(&mut DeviceSpec)) -> DeviceSpec {
    tiny(|s| {
        s.timing.channel_bandwidth = None;
        s.timing.page_transfer = Some(Ns::from_us(5));
        s.geometry.mw_cunits = 0;
        change(s);
    })
}

fn us(n: u64) -> Ns {
    Ns::from_us(n)
}

#[derive(Clone, Copy)]
enum Do {
    /// Row of a chunk, at a time.
    Write(u32, u32, u32),
    Read(u32, u32, u32),
    Erase(u32, u32),
}

/// Submits each command at its time, in list order where times are equal; returns what came of
/// them, times counted from the first.
fn play(b: &Bench, plan: &[(u64, Do)]) -> Vec<Completion> {
    let mut plan: Vec<(usize, u64, Do)> =
        plan.iter().enumerate().map(|(i, (at, what))| (i, *at, *what)).collect();
    plan.sort_by_key(|(i, at, _)| (*at, *i));
    let start = b.now();
    b.run(|cx, dev| async move {
        let mut waits = Vec::new();
        for (i, at, what) in plan {
            cx.sleep_until(start + us(at)).await;
            let ticket = submit(&cx, &*dev, what);
            let (cx2, dev) = (cx.clone(), dev.clone());
            waits.push((i, cx.spawn_join(async move { heard(&cx2, &*dev, ticket).await })));
        }
        let mut done = Vec::new();
        for (i, w) in waits {
            let mut c = w.await;
            c.finished -= start;
            done.push((i, c));
        }
        done.sort_by_key(|(i, _)| *i);
        done.into_iter().map(|(_, c)| c).collect()
    })
}

async fn heard(cx: &Cx, dev: &dyn Device, ticket: Ticket) -> Completion {
    let done = dev.wait(cx, ticket).await;
    assert_eq!(done.finished, cx.now(), "nobody hears of it early or late");
    assert_eq!(done.failed, 0);
    done
}

fn submit(cx: &Cx, dev: &dyn Device, what: Do) -> Ticket {
    let flags = Flags { suspend: true, ..Flags::default() };
    match what {
        Do::Write(pu, chunk, row) => {
            let at = addrs(dev, &[(pu, chunk, row * 4, 4)]);
            let filled = Filled::new(4, 8, 1);
            dev.submit(cx, filled.request(&at, false))
        }
        Do::Read(pu, chunk, row) => {
            let at = addrs(dev, &[(pu, chunk, row * 4, 4)]);
            let (mut data, mut oob) = ([0; 32], [[0; 16]; 4]);
            let content = Scatter::new(&mut data, &[0, 1, 2, 3], 8);
            dev.submit(cx, Request::read(&at, content, &mut oob).with(flags))
        }
        Do::Erase(pu, chunk) => {
            let at = addrs(dev, &[(pu, chunk, 0, 1)]);
            dev.submit(cx, Request::plain(Op::Reset, &at).with(flags))
        }
    }
}

fn ends(done: &[Completion]) -> Vec<u64> {
    done.iter().map(|c| c.finished.as_ns() / 1000).collect()
}

fn bench_of(spec: &DeviceSpec) -> (Bench, Arc<Ssd>) {
    Bench::of(spec, SsdOptions::default())
}

/// A bench whose chunk 0 of every PU is full.
fn filled(spec: &DeviceSpec) -> (Bench, Arc<Ssd>) {
    let (b, ssd) = bench_of(spec);
    for pu in 0..b.dev.geometry().pus() {
        b.write_up_to(pu, 0, 64, 1);
    }
    (b, ssd)
}

/// D22: commands to one die follow one another; two dies of a channel share only its bus; two
/// channels share nothing.
#[test]
fn d22_one_die_serialises_two_overlap() {
    let (b, _) = bench_of(&round(|_| {}));
    let done = play(&b, &[(0, Do::Write(0, 1, 0)), (0, Do::Write(0, 1, 1))]);
    assert_eq!(ends(&done), [510, 1020]);
    assert_eq!(done[1].breakdown.die_program, us(510));
    let done = play(&b, &[(0, Do::Write(0, 2, 0)), (0, Do::Write(1, 2, 0))]);
    assert_eq!(ends(&done), [510, 520], "the second transfer waits for the bus");
    assert_eq!(done[1].breakdown.channel, us(10));
    let done = play(&b, &[(0, Do::Write(0, 3, 0)), (0, Do::Write(2, 3, 0))]);
    assert_eq!(ends(&done), [510, 510]);
}

/// D22: a program has the bus before the array, a read after; an erase never has it.
#[test]
fn d22_order_of_die_and_channel() {
    let (b, _) = filled(&round(|_| {}));
    // The read of die 1 senses while die 0 erases, and finds the bus free.
    let done = play(&b, &[(0, Do::Erase(0, 0)), (0, Do::Read(1, 0, 0))]);
    assert_eq!(ends(&done), [3000, 60]);
    // Write at 45: transfer 45..55, the read senses until 50 and must wait for the bus until 55.
    let done = play(&b, &[(0, Do::Read(1, 0, 1)), (45, Do::Write(0, 0, 0))]);
    assert_eq!(ends(&done), [65, 555]);
    let r = &done[0].breakdown;
    assert_eq!((r.array, r.channel, r.transfer), (us(50), us(5), us(10)));
    // The bus goes to whoever asks first, not to whoever was submitted first.
    let done = play(&b, &[(0, Do::Read(1, 0, 2)), (10, Do::Write(0, 0, 1))]);
    assert_eq!(ends(&done), [60, 520]);
}

/// D22: FEMU's times for every page 0..=511, 511 included.
#[test]
fn d22_page_types_of_femu() {
    let mut spec = DeviceSpec::preset("femu-32ch").unwrap();
    spec = spec.with_parallelism(1, 1).with_chunks_per_pu(2);
    let (b, _) = bench_of(&spec);
    let lower = [0, 1, 2, 3, 4, 5, 7, 8, 502, 503, 506, 507, 509, 510];
    let upper = [6, 9, 504, 505, 508, 511];
    let is_upper = |page: u64| match page {
        p if lower.contains(&p) => false,
        p if upper.contains(&p) => true,
        p => (p - 10) / 2 % 2 == 1,
    };
    let transfer = Ns::from_ns(104_866);
    for page in 0..512u64 {
        let before = b.now();
        assert_eq!(b.write(&[(0, 0, page as u32 * 8, 8)], 1).failed, 0);
        let program = if is_upper(page) { us(2300) } else { us(850) };
        assert_eq!(b.now() - before, program + transfer, "page {page}");
    }
    for page in 0..512u64 {
        let before = b.now();
        b.read(&[(0, 0, page as u32 * 8, 8)]);
        let sense = if is_upper(page) { us(64) } else { us(48) };
        assert_eq!(b.now() - before, sense + transfer, "page {page}");
    }
}

/// The page register serves neighbouring sectors; it is per plane; programs and erases empty it.
#[test]
fn the_page_register_serves_neighbours() {
    let (b, _) = filled(&round(|_| {}));
    let time = |sector| {
        let before = b.now();
        b.read(&[(0, 0, sector, 1)]);
        (b.now() - before).as_ns()
    };
    assert_eq!(time(0), 52_500);
    assert_eq!(time(1), 2_500, "same page");
    assert_eq!(time(2), 52_500, "same row, other plane");
    assert_eq!(time(1), 2_500, "plane 0 still holds it");
    assert_eq!(time(4), 52_500);
    assert_eq!(time(0), 52_500);
    assert_eq!(b.reset(0, 5), Status::Ok);
    assert_eq!(time(0), 52_500);
    let before = b.now();
    b.read(&[(0, 0, 4, 16)]);
    assert_eq!(b.now() - before, us(240), "four rows, one after the other");
}

/// A cache register lets the next sense run during the last transfer.
#[test]
fn a_cache_register_overlaps_sense_and_transfer() {
    for (cache, want) in [(false, [100, 200, 300]), (true, [100, 150, 200])] {
        let (b, _) = filled(&round(|s| {
            s.timing.cache_read = cache;
            s.timing.page_transfer = Some(us(25)); // 50 per row
        }));
        let reads = [Do::Read(0, 0, 0), Do::Read(0, 0, 1), Do::Read(0, 0, 2)].map(|r| (0, r));
        assert_eq!(ends(&play(&b, &reads)), want, "cache {cache}");
    }
    for (cache, want) in [(false, [600, 1200]), (true, [600, 1100])] {
        let (b, _) = bench_of(&round(|s| {
            s.timing.cache_program = cache;
            s.timing.page_transfer = Some(us(50)); // 100 per row
        }));
        let done = play(&b, &[(0, Do::Write(0, 1, 0)), (0, Do::Write(0, 1, 1))]);
        assert_eq!(ends(&done), want, "cache {cache}");
    }
}

/// Single-plane mode makes two operations of a row.
#[test]
fn plane_mode_splits_rows() {
    let (b, _) = bench_of(&round(|_| {}));
    let at = b.at(&[(0, 0, 0, 4)]);
    let done = b.run(|cx, dev| async move {
        let filled = Filled::new(4, 8, 1);
        let mut request = filled.request(&at, false);
        request.flags.planes = 1;
        dev.io(&cx, request).await
    });
    assert_eq!(done.finished, us(2 * 505));
}

/// The command overhead comes before the die; controller bandwidth is shared by all channels.
#[test]
fn overhead_and_controller_limits() {
    let (b, _) = filled(&round(|s| {
        s.timing.command = us(7);
        s.timing.controller_write = Some(flashlane_base::Bytes::new(16_384_000_000 / 20)); // 20 us
        s.timing.controller_read = Some(flashlane_base::Bytes::new(16_384_000_000 / 20));
    }));
    let done = play(&b, &[(0, Do::Write(0, 1, 0)), (0, Do::Write(2, 1, 0))]);
    assert_eq!(ends(&done), [537, 557]);
    assert_eq!(done[1].breakdown.link, us(40));
    let done = play(&b, &[(0, Do::Read(0, 0, 0)), (0, Do::Read(2, 0, 0)), (0, Do::Read(3, 0, 0))]);
    // Content streams out with the transfer: 57..67 takes 20 us of the controller, so from 47 on.
    assert_eq!(ends(&done), [67, 87, 107]);
    assert_eq!(done[1].breakdown.command, us(7));
}

/// At most `max_in_flight` operations are admitted to a channel.
#[test]
fn in_flight_limit_per_channel() {
    let (b, _) = bench_of(&round(|s| {
        s.timing.max_in_flight = 1;
        s.geometry.pus_per_channel = 4;
    }));
    let writes: Vec<_> = (0..4).map(|pu| (0, Do::Write(pu, 0, 0))).collect();
    assert_eq!(ends(&play(&b, &writes)), [510, 1020, 1530, 2040]);
    let (b, _) = bench_of(&round(|s| {
        s.timing.max_in_flight = 2;
        s.geometry.pus_per_channel = 4;
    }));
    assert_eq!(ends(&play(&b, &writes)), [510, 520, 1020, 1030]);
}

fn with(queue: DieQueue, change: impl FnOnce(&mut DeviceSpec)) -> DeviceSpec {
    round(|s| {
        s.timing.queue = queue;
        s.timing.suspend_cost = us(20);
        change(s);
    })
}

/// `read_first`: a waiting read goes before waiting programs, not before a running one.
#[test]
fn read_first_passes_what_waits() {
    let plan = [
        (0, Do::Write(0, 1, 0)),
        (1, Do::Write(0, 1, 1)),
        (2, Do::Erase(0, 2)),
        (3, Do::Read(0, 0, 0)),
        (4, Do::Read(0, 0, 5)),
    ];
    let (b, _) = filled(&with(DieQueue::Fifo, |_| {}));
    assert_eq!(ends(&play(&b, &plan)), [510, 1020, 4020, 4080, 4140]);
    let (b, _) = filled(&with(DieQueue::ReadFirst, |_| {}));
    let done = play(&b, &plan);
    assert_eq!(ends(&done), [510, 1140, 4140, 570, 630]);
    assert_eq!(done[3].breakdown.die_program, us(507));
    assert_eq!(done[1].breakdown.die_read, us(120));
}

/// A waiting program is passed by `read_burst` reads that came after it, then it goes.
#[test]
fn read_first_starves_nobody() {
    let (b, _) = filled(&with(DieQueue::ReadFirst, |s| s.timing.read_burst = 3));
    let mut plan = vec![(0, Do::Erase(0, 2)), (1, Do::Write(0, 1, 0))];
    plan.extend((0..8).map(|row| (2, Do::Read(0, 0, row))));
    let done = play(&b, &plan);
    assert_eq!(done[1].finished, us(3000 + 3 * 60 + 510));
    let last = done.iter().map(|c| c.finished).max();
    assert_eq!(last, Some(us(3000 + 8 * 60 + 510)));
}

/// Operations on one chunk keep their order: a read of what is being written waits for it.
#[test]
fn a_read_waits_for_the_program_it_depends_on() {
    for queue in [DieQueue::ReadFirst, DieQueue::Suspend] {
        let (b, _) = filled(&with(queue, |_| {}));
        let plan = [(0, Do::Write(0, 1, 0)), (1, Do::Write(0, 1, 1)), (2, Do::Read(0, 1, 1))];
        assert_eq!(ends(&play(&b, &plan)), [510, 1020, 1080], "{queue:?}");
    }
}

/// `suspend`: a read interrupts a program in the array; it goes on afterwards, at a cost.
#[test]
fn suspend_interrupts_and_resumes() {
    let (b, ssd) = filled(&with(DieQueue::Suspend, |_| {}));
    let before = ssd.counters_at(b.now()).dies[0];
    // Program: transfer 0..10, array 10..510. Read at 100: 100..150 sense, 150..160 transfer.
    let done = play(&b, &[(0, Do::Write(0, 1, 0)), (100, Do::Read(0, 0, 0))]);
    assert_eq!(ends(&done), [510 + 60 + 20, 160]);
    let after = ssd.counters_at(b.now()).dies[0];
    assert_eq!(after.program - before.program, us(530));
    assert_eq!(after.read - before.read, us(60));
    // During the transfer the read waits for the array phase; a second one follows the first.
    let plan = [(0, Do::Write(0, 1, 1)), (5, Do::Read(0, 0, 1)), (6, Do::Read(0, 0, 2))];
    assert_eq!(ends(&play(&b, &plan)), [510 + 120 + 20, 70, 130]);
    // An erase is interrupted as well, again and again, until the burst is used up.
    let (b, _) = filled(&with(DieQueue::Suspend, |s| s.timing.read_burst = 2));
    let plan = [
        (0, Do::Erase(0, 2)),
        (100, Do::Read(0, 0, 0)),
        (300, Do::Read(0, 0, 1)),
        (500, Do::Read(0, 0, 2)),
    ];
    assert_eq!(ends(&play(&b, &plan)), [3000 + 2 * 80, 160, 360, 3160 + 60]);
    // Without the flag nothing is interrupted.
    let (b, _) = filled(&with(DieQueue::Suspend, |_| {}));
    let at = b.at(&[(0, 0, 0, 4)]);
    let end = b.run(|cx, dev| async move {
        let from = cx.now();
        let ticket = submit(&cx, &*dev, Do::Write(0, 1, 0));
        cx.sleep(us(100)).await;
        read(&cx, &*dev, &at, Flags::default()).await;
        let end = cx.now() - from;
        dev.wait(&cx, ticket).await;
        end
    });
    assert_eq!(end, us(570));
}

/// Every wait has a reason: the parts of a breakdown add up to the time it took.
#[test]
fn breakdowns_add_up() {
    for queue in [DieQueue::Fifo, DieQueue::ReadFirst] {
        let (b, _) = filled(&with(queue, |s| {
            s.timing.command = us(3);
            s.timing.cache_read = true;
        }));
        let mut plan = vec![(1, Do::Erase(0, 2)), (1, Do::Erase(1, 2))];
        plan.extend((0..16).map(|r| (r as u64 * 40, Do::Read((r % 3) as u32, 0, r as u32))));
        plan.extend((0..16).map(|r| (r as u64 * 30, Do::Write((r % 2) as u32, 1, r as u32 / 2))));
        for (c, (at, _)) in play(&b, &plan).iter().zip(&plan) {
            let d = &c.breakdown;
            let parts = [
                d.link,
                d.command,
                d.die_read,
                d.die_program,
                d.die_erase,
                d.channel,
                d.transfer,
                d.array,
                d.retry,
            ];
            let sum = parts.iter().fold(Ns::ZERO, |a, b| a + *b);
            assert_eq!(sum, c.finished - us(*at), "{queue:?} {c:?}");
        }
    }
}

/// Busy times: no die is busy for longer than there was time; the bus for what was sent.
#[test]
fn occupancy_is_measured() {
    for cache in [false, true] {
        let (b, ssd) = filled(&round(|s| {
            s.timing.cache_read = cache;
            s.timing.cache_program = cache;
        }));
        let (from, before) = (b.now(), ssd.counters_at(b.now()));
        let mut plan: Vec<_> = (0..16).map(|r| (0, Do::Read(0, 0, r))).collect();
        plan.extend((0..16).map(|r| (0, Do::Write(0, 1, r))));
        play(&b, &plan);
        let after = ssd.counters_at(b.now());
        let die = |c: &flashlane_ocssd::MediaCounters| {
            c.dies[0].read + c.dies[0].program + c.dies[0].erase
        };
        let busy = die(&after) - die(&before);
        assert_eq!(busy, b.now() - from, "the die was never idle");
        assert_eq!(after.channels[0] - before.channels[0], us(320));
    }
}

/// A vector over channels is over when its last part is.
#[test]
fn a_vector_ends_with_its_last_part() {
    let (b, _) = filled(&round(|_| {}));
    play(&b, &[(0, Do::Write(2, 1, 0))]);
    let from = b.now();
    let at = b.at(&[(0, 1, 0, 4), (2, 1, 4, 4), (3, 1, 0, 4), (1, 1, 0, 4)]);
    let done = b.write_to(at, 1);
    assert_eq!(done.failed, 0);
    assert_eq!(done.finished - from, us(520));
    let at = b.at(&[(0, 0, 0, 4), (2, 0, 0, 8), (1, 0, 0, 4)]);
    let from = b.now();
    assert_eq!(b.read_from(at).done.finished - from, us(120));
}

/// SLC chunks have their own times.
#[test]
fn cell_mode_has_its_own_times() {
    let (b, _) = bench_of(&round(|s| s.cells.bits = 2));
    let slc = Flags { cell: CellMode::Slc, ..Flags::default() };
    let from = b.now();
    b.plain(Op::Reset, b.at(&[(0, 3, 0, 1)]), slc);
    assert_eq!(b.now() - from, us(2000));
    let from = b.now();
    b.write(&[(0, 3, 0, 4)], 1);
    assert_eq!(b.now() - from, us(210));
    let from = b.now();
    assert!(b.read(&[(0, 3, 0, 4)]).holds(0, 1), "readable at once");
    assert_eq!(b.now() - from, us(35));
}

/// A link costs its fixed time and its bandwidth, each way, in order, and bounds what is in flight.
#[test]
fn a_link_takes_its_time() {
    let link = |depth| LinkSpec {
        to_device: flashlane_base::Bytes::new(512_000_000), // 32 us per row
        to_host: flashlane_base::Bytes::new(1_024_000_000),
        command: us(2),
        queue_depth: depth,
    };
    let (b, ssd) = filled(&round(|_| {}));
    let now = b.now();
    let linked = Bench { clock: b.clock, dev: Arc::new(LinkedDevice::new(ssd.clone(), &link(0))) };
    assert_eq!(linked.now(), now);
    let done = play(&linked, &[(0, Do::Write(0, 1, 0)), (0, Do::Write(2, 1, 0))]);
    assert_eq!(ends(&done), [34 + 510, 66 + 510]);
    assert_eq!(done[1].breakdown.link, us(66));
    let done = play(&linked, &[(0, Do::Read(0, 0, 0)), (0, Do::Read(2, 0, 0))]);
    let mut both = ends(&done); // done at one time: either may cross first
    both.sort_unstable();
    assert_eq!(both, [2 + 60 + 16, 2 + 60 + 32]);
    let one = Bench { clock: linked.clock, dev: Arc::new(LinkedDevice::new(ssd, &link(1))) };
    let done = play(&one, &[(0, Do::Write(0, 1, 1)), (0, Do::Write(2, 1, 1))]);
    assert_eq!(ends(&done), [544, 544 + 34 + 510]);
}

fn table_1(qd: usize, op: Op, random: bool, sectors: u32) -> f64 {
    let spec = DeviceSpec::preset("westlake").unwrap();
    let (b, _) = bench_of(&spec);
    b.write_up_to(0, 0, 1024, 1);
    let from = b.now();
    let n = 256u32;
    let rng = std::rc::Rc::new(std::cell::RefCell::new(flashlane_base::Rng::new(5)));
    let next = std::rc::Rc::new(std::cell::Cell::new(0u32));
    b.run(|cx, dev| async move {
        let joins: Vec<_> = (0..qd)
            .map(|_| {
                let (dev, rng, next) = (dev.clone(), rng.clone(), next.clone());
                let task = cx.clone();
                cx.spawn_join(async move {
                    while next.get() < n {
                        let k = next.replace(next.get() + 1);
                        let slots = 768 / sectors;
                        let slot = if random {
                            rng.borrow_mut().below(slots as u64) as u32
                        } else {
                            k % slots
                        };
                        let chunk = if op == Op::Write { 1 } else { 0 };
                        let at = if op == Op::Write { k } else { slot };
                        let at = addrs(&*dev, &[(0, chunk, at * sectors, sectors)]);
                        let failed = match op {
                            Op::Write => write(&task, &*dev, &at, 1).await.failed,
                            _ => read(&task, &*dev, &at, Flags::default()).await.done.failed,
                        };
                        assert_eq!(failed, 0);
                    }
                })
            })
            .collect();
        for j in joins {
            j.await;
        }
    });
    let bytes = n as f64 * sectors as f64 * 4096.0;
    bytes / (b.now() - from).as_secs_f64() / 1e6
}

/// D11: LightNVM Table 1, one PU: 47 MB/s sequential writes of 64 KiB; reads of 4 KiB one at a
/// time, of 64 KiB two at a time (the next sense overlaps the last transfer). Within 10 %.
#[test]
fn westlake_gives_table_1() {
    let rows = [
        (1, Op::Write, false, 16, 47.0),
        (1, Op::Read, false, 1, 105.0),
        (2, Op::Read, false, 16, 280.0),
        (1, Op::Read, true, 1, 56.0),
        (2, Op::Read, true, 16, 273.0),
    ];
    for (qd, op, random, sectors, want) in rows {
        let got = table_1(qd, op, random, sectors);
        println!("{op:?} random {random} {sectors} sectors: {got:.1} MB/s, paper {want}");
        assert!((got / want - 1.0).abs() < 0.1, "{op:?} {random} {sectors}: {got} {want}");
    }
}

/// D11: the whole `westlake` device: 4.0 GB/s in, 4.5 GB/s out.
#[test]
fn westlake_limits_of_the_device() {
    let (b, _) = bench_of(&DeviceSpec::preset("westlake").unwrap());
    let from = b.now();
    b.run(|cx, dev| async move {
        let joins: Vec<_> = (0..128)
            .map(|pu| {
                let (cx2, dev) = (cx.clone(), dev.clone());
                cx.spawn_join(async move {
                    for row in 0..20 {
                        let at = addrs(&*dev, &[(pu, 0, row * 16, 16)]);
                        assert_eq!(write(&cx2, &*dev, &at, 1).await.failed, 0);
                    }
                })
            })
            .collect();
        for j in joins {
            j.await;
        }
    });
    let rate = 128.0 * 20.0 * 65536.0 / (b.now() - from).as_secs_f64() / 1e9;
    assert!((3.6..4.05).contains(&rate), "{rate} GB/s in");
    let from = b.now();
    b.run(|cx, dev| async move {
        let joins: Vec<_> = (0..256)
            .map(|k| {
                let (cx2, dev) = (cx.clone(), dev.clone());
                cx.spawn_join(async move {
                    for row in 0..10 {
                        let at = addrs(&*dev, &[(k % 128, 0, row * 16, 16)]);
                        read(&cx2, &*dev, &at, Flags::default()).await;
                    }
                })
            })
            .collect();
        for j in joins {
            j.await;
        }
    });
    let rate = 256.0 * 10.0 * 65536.0 / (b.now() - from).as_secs_f64() / 1e9;
    assert!((3.8..4.55).contains(&rate), "{rate} GB/s out");
}

/// D11: what the media of `p3700` give by themselves: 1.08 GB/s in, 450,000 random reads per second
/// at queue depth 128, 2.7 to 2.8 GB/s out. Within 10 %.
#[test]
fn p3700_media_give_the_data_sheet() {
    let (b, _) = bench_of(&DeviceSpec::preset("p3700").unwrap());
    let from = b.now();
    let all = |b: &Bench, tasks: u32, each: u32, random: bool, op: Op| {
        b.run(move |cx, dev| async move {
            let joins: Vec<_> = (0..tasks)
                .map(|task| {
                    let (cx2, dev) = (cx.clone(), dev.clone());
                    let mut rng = flashlane_base::Rng::new(task as u64);
                    cx.spawn_join(async move {
                        for row in 0..each {
                            let pu = if random { rng.below(36) as u32 } else { task % 36 };
                            let sector = rng.below(192) as u32;
                            let at = match (op, random) {
                                (_, true) => addrs(&*dev, &[(pu, 0, sector, 1)]),
                                (_, false) => addrs(&*dev, &[(pu, 0, row * 8, 8)]),
                            };
                            match op {
                                Op::Write => drop(write(&cx2, &*dev, &at, 1).await),
                                _ => drop(read(&cx2, &*dev, &at, Flags::default()).await),
                            }
                        }
                    })
                })
                .collect();
            for j in joins {
                j.await;
            }
        });
    };
    all(&b, 36, 64, false, Op::Write);
    let rate = 36.0 * 64.0 * 32768.0 / (b.now() - from).as_secs_f64() / 1e9;
    assert!((rate / 1.08 - 1.0).abs() < 0.1, "{rate} GB/s in");
    let from = b.now();
    all(&b, 128, 200, true, Op::Read);
    let iops = 128.0 * 200.0 / (b.now() - from).as_secs_f64();
    assert!((iops / 450e3 - 1.0).abs() < 0.1, "{iops} reads per second");
    let from = b.now();
    all(&b, 72, 32, false, Op::Read);
    let rate = 72.0 * 32.0 * 32768.0 / (b.now() - from).as_secs_f64() / 1e9;
    assert!((2.6..2.81).contains(&rate), "{rate} GB/s out");
}

/// D11: ParaFS Table 2: 49.84 and 6.55 MB/s per channel.
#[test]
fn parafs_gives_table_2() {
    let (b, _) = bench_of(&DeviceSpec::preset("parafs").unwrap());
    let rate = |from: Ns| 100.0 * 8192.0 / (b.now() - from).as_secs_f64() / 1e6;
    let from = b.now();
    for page in 0..100 {
        assert_eq!(b.write(&[(0, 0, page * 2, 2)], 1).failed, 0);
    }
    let wrote = rate(from);
    let from = b.now();
    for page in 0..100 {
        b.read(&[(0, 0, page * 2, 2)]);
    }
    let read = rate(from);
    assert!((wrote - 6.55).abs() < 0.01 && (read - 49.84).abs() < 0.05, "{wrote} {read}");
}

/// Same seed, same times: a mixed run gives the same fingerprint and the same device.
#[test]
fn a_run_repeats_itself() {
    let once = |queue| {
        let spec = with(queue, |s| s.timing.command = us(1));
        let (b, ssd) = filled(&spec);
        let mut plan: Vec<_> =
            (0..16).map(|r| (r as u64 * 13, Do::Read((r % 4) as u32, 0, r as u32))).collect();
        plan.extend((0..16).map(|r| (r as u64 * 7, Do::Write((r % 4) as u32, 1, r as u32 / 4))));
        let ends = ends(&play(&b, &plan));
        (ends, b.clock.fingerprint(), format!("{:?}", ssd.counters()))
    };
    for queue in [DieQueue::Fifo, DieQueue::ReadFirst, DieQueue::Suspend] {
        assert_eq!(once(queue), once(queue));
    }
}

/// A stale or foreign ticket completes as failed; it never hangs.
#[test]
fn a_foreign_ticket_does_not_hang() {
    let (b, _) = bench_of(&round(|_| {}));
    for id in [0, u64::MAX, 1 << 48, 7 << 32] {
        let done = b.run(|cx, dev| async move {
            let ticket = Ticket { id, ask_at: Ns::ZERO };
            dev.wait(&cx, ticket).await
        });
        assert_ne!(done.failed, 0);
    }
}

/// What a die and its bus did, as `suspend_interrupts_and_resumes` has it: one span for each piece.
#[test]
fn spans_show_every_piece_and_nothing_twice() {
    use flashlane_ocssd::ssd::spans::Phase::{Program, ReadTransfer, Sense, WriteTransfer};
    let (b, ssd) = filled(&with(DieQueue::Suspend, |_| {}));
    assert!(ssd.take_spans().spans.is_empty(), "nobody asked for any");
    let start = b.now();
    ssd.keep_spans(100);
    play(&b, &[(0, Do::Write(0, 1, 0)), (100, Do::Read(0, 0, 0))]);
    let kept = ssd.take_spans();
    let seen: Vec<_> = kept
        .spans
        .iter()
        .map(|(channel, s)| {
            let time = |at: Ns| (at - start).as_ns() / 1000;
            (*channel, s.die, s.phase, time(s.from), time(s.to), s.count)
        })
        .collect();
    let want = [
        (0, 0, WriteTransfer, 0, 10, 4),
        (0, 0, Program, 10, 100, 4),
        (0, 0, Sense, 100, 150, 4),
        (0, 0, ReadTransfer, 150, 160, 4),
        (0, 0, Program, 160, 590, 4),
    ];
    assert_eq!((seen.as_slice(), kept.cut), (&want[..], None));
    // The first write takes all the room: everything ends where the second one begins.
    let start = b.now();
    ssd.keep_spans(2);
    play(&b, &[(0, Do::Write(0, 1, 1)), (5, Do::Write(2, 1, 0))]);
    let kept = ssd.take_spans();
    assert_eq!(kept.cut, Some(start + us(5)));
    let phases: Vec<_> = kept.spans.iter().map(|(channel, s)| (*channel, s.phase)).collect();
    assert_eq!(phases, [(0, WriteTransfer)], "its program begins behind the cut");
}
