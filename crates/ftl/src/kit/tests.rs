//! What the device FTL does, against a naive model of it, against theory, and under faults.

mod cached;
mod double;
mod places;
mod reference;
mod room;

use super::*;
use crate::block::BlockError;
use crate::pftl::{MapKind, PftlConfig, Victim};
use double::{Double, Script};
use flashlane_base::{Geometry, Lba, Location, Ns, Rng};
use flashlane_ocssd::device::{Cause, Status};
use flashlane_rt::{CostTable, Fingerprint, Virtual};
use proptest::prelude::*;
use reference::Naive;
use std::future::Future;
use std::sync::atomic::{AtomicI64, Ordering};

/// 4 sectors per unit, 2 units per page row of 2 planes.
fn geometry(channels: u32, luns: u32, chunks: u32, pages: u32) -> Geometry {
    Geometry {
        channels,
        pus_per_channel: luns,
        planes: 2,
        chunks_per_pu: chunks,
        pages_per_block: pages,
        sectors_per_page: 2,
        ws_min: 2,
        ws_opt: 4,
        mw_cunits: 0,
    }
}

/// Times of a die that is slow to write and slower to erase.
const TIMES: (u64, u64, u64) = (50_000, 600_000, 3_000_000);

fn config(percent: u32) -> PftlConfig {
    PftlConfig { over_provisioning_percent: percent, ..PftlConfig::default() }
}

/// Builds an FTL on `device`, runs `main` with it, checks laws, rules and walk at the end.
fn with_ftl<T: 'static, F: Future<Output = T> + 'static>(
    device: Double,
    config: PftlConfig,
    main: impl FnOnce(Arc<DriveFtl>, Arc<Double>, Cx) -> F + 'static,
) -> (T, Arc<DriveFtl>, Arc<Double>, Fingerprint) {
    let device = Arc::new(device);
    let run = Virtual::new(1, 5, CostTable::zero());
    let (cx, dev) = (run.cx(), device.clone());
    let ended = run.run(async move {
        let ftl =
            DriveFtl::create(&cx, dev.clone(), config).expect("a device that is large enough");
        let value = main(ftl.clone(), dev, cx.clone()).await;
        (value, ftl)
    });
    let (value, ftl) = ended.expect("nobody waits for ever");
    check(&ftl, &device);
    (value, ftl, device, run.fingerprint())
}

/// Both laws, the walk, no broken rule.
fn check(ftl: &DriveFtl, device: &Double) {
    let stats = ftl.stats();
    stats.check_host_law().unwrap();
    device.seen(|seen| {
        stats.check_media_law(&seen.programmed).unwrap();
        assert!(seen.violations.is_empty(), "{:?}", seen.violations);
    });
    ftl.walk().unwrap();
}

async fn start(ftl: &DriveFtl, cx: &Cx, op: BlockOp, lba: u64, words: &mut [u64]) -> BlockResultOf {
    let sectors = words.len() as u32;
    let mut buf: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    let io = Io::of(op, Lba::new(lba), sectors, false, &mut buf);
    let result = ftl.start(cx, io).await;
    if op == BlockOp::Read {
        for (word, bytes) in words.iter_mut().zip(buf.chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().unwrap());
        }
    }
    result
}
type BlockResultOf = crate::block::BlockResult;

async fn write(ftl: &DriveFtl, cx: &Cx, lba: u64, value: u64) {
    let done = start(ftl, cx, BlockOp::Write, lba, &mut [value]).await;
    done.expect("a write");
}

async fn read(ftl: &DriveFtl, cx: &Cx, lba: u64) -> Result<u64, BlockError> {
    let mut word = [u64::MAX];
    start(ftl, cx, BlockOp::Read, lba, &mut word).await?;
    Ok(word[0])
}

/// Fills the device in order, then overwrites it `times` over at random, each write settled.
async fn overwrite(ftl: &DriveFtl, cx: &Cx, times: u64, seed: u64, mut see: impl FnMut(u64)) {
    let mut rng = Rng::new(seed);
    let capacity = ftl.info().capacity;
    for i in 0..capacity * (times + 1) {
        let lba = if i < capacity { i } else { rng.below(capacity) };
        see(lba);
        write(ftl, cx, lba, i + 1).await;
        cx.sleep(Ns::from_ns(1)).await;
    }
}

/// One PU, no time: programs, moves, erases and absorbed writes are those of the naive model.
#[test]
fn one_pu_without_time_does_what_the_naive_model_does() {
    for (chunks, percent, low_water) in [(12, 30, 2), (40, 12, 2), (40, 12, 4), (100, 7, 3)] {
        let device = Double::new(geometry(1, 1, chunks, 8), (0, 0, 0), Script::default());
        let config =
            PftlConfig { gc_low_water_lines: low_water, gc_reads: Some(1), ..config(percent) };
        let (naive, ftl, ..) = with_ftl(device, config, move |ftl, _, cx| async move {
            let capacity = ftl.info().capacity;
            let mut naive = Naive::new(capacity, chunks as usize, 32, 4, low_water as usize);
            overwrite(&ftl, &cx, 20, 9, |lba| naive.write(lba)).await;
            naive
        });
        let s = ftl.stats();
        let ours = (s.programmed_total(), s.gc_moved, s.erases, s.absorbed);
        let theirs = (naive.programmed, naive.moved, naive.erases, naive.absorbed);
        assert_eq!(ours, theirs, "{chunks} chunks, {percent}%, low water {low_water}");
        assert!(s.gc_moved > 1000, "the test reaches steady state");
    }
}

/// Write amplification of a greedy collector under uniform writes, from the share of the space that
/// is used: u = -(1 - p) / ln p gives the valid share p of a victim, 1 / (1 - p) the amplification.
fn theory(used: f64) -> f64 {
    let (mut low, mut high) = (0.0f64, 1.0 - 1e-9);
    for _ in 0..60 {
        let p = (low + high) / 2.0;
        if -(1.0 - p) / p.ln() < used { low = p } else { high = p }
    }
    1.0 / (1.0 - low)
}

/// 600 lines on 4 PUs, or as many lines of a single block as that makes: steady state amplifies as
/// theory says, once the lines that are never full of data (two half-open, one free for the host,
/// one for GC) are taken off the spare.
#[test]
fn write_amplification_is_that_of_theory() {
    let both = |percent| [(percent, Victim::Line), (percent, Victim::Block)];
    for (percent, victim) in [10, 20, 35].into_iter().flat_map(both) {
        // Of the same size: what is small has victims that are better by chance.
        let pages = if victim == Victim::Block { 16 } else { 4 };
        let device = Double::new(geometry(2, 2, 600, pages), (0, 0, 0), Script::default());
        let config = PftlConfig { victim, ..config(percent) };
        let ((waf, used), ftl, ..) = with_ftl(device, config, |ftl, _, cx| async move {
            overwrite(&ftl, &cx, 3, 1, |_| ()).await;
            let before = ftl.stats();
            let mut rng = Rng::new(2);
            let capacity = ftl.info().capacity;
            for i in 0..2 * capacity {
                write(&ftl, &cx, rng.below(capacity), i).await;
                cx.sleep(Ns::from_ns(1)).await;
            }
            let after = ftl.stats();
            let programmed = after.programmed_total() - before.programmed_total();
            let written = after.host_written - before.host_written;
            let line = ftl.layout.main().stripe_sectors() as u64;
            let used = capacity as f64 / ((600 - 3) * line) as f64;
            (programmed as f64 / written as f64, used)
        });
        let expected = theory(used);
        println!("{percent}% spare, {victim:?}: amplification {waf:.3}, theory {expected:.3}");
        assert!((waf / expected - 1.0).abs() < 0.10, "{percent}%: {waf} against {expected}");
        let s = ftl.stats();
        assert_eq!(s.gc_victim_sectors, s.gc_victims * 64, "{victim:?}");
        assert_eq!(s.gc_victim_sectors - s.gc_victim_invalid, s.gc_moved, "{victim:?}");
        let erases = if victim == Victim::Block { 1 } else { 4 };
        assert!(s.erases.abs_diff(s.gc_victims * erases) <= erases, "{victim:?}");
    }
}

/// Requests of several tasks, each with a part of the device of its own, against a plain table.
#[derive(Clone, Debug)]
struct Step {
    op: BlockOp,
    lba: u64,
    sectors: u64,
    pause_us: u64,
}

fn any_step(span: u64) -> impl Strategy<Value = Step> {
    let op = prop_oneof![
        5 => Just(BlockOp::Write),
        3 => Just(BlockOp::Read),
        1 => Just(BlockOp::Discard),
        1 => Just(BlockOp::Flush),
    ];
    let sectors = prop_oneof![4 => 1u64..=4, 1 => 1u64..=70];
    (op, 0..span, sectors, prop_oneof![3 => Just(0u64), 1 => 0u64..2000]).prop_map(
        move |(op, lba, sectors, pause_us)| Step {
            op,
            lba,
            sectors: sectors.min(span - lba),
            pause_us,
        },
    )
}

/// Runs one task's steps in `base..base + span`, several rounds of them, and compares every read.
async fn play(ftl: Arc<DriveFtl>, cx: Cx, base: u64, span: u64, steps: Vec<Step>, rounds: u64) {
    let mut model = vec![0u64; span as usize];
    for round in 0..rounds {
        for (i, step) in steps.iter().enumerate() {
            // Rounds shift, so that the device is written several times over everywhere.
            let sectors = step.sectors.min(span);
            let lba = (step.lba + round * 7) % (span - sectors + 1);
            let range = lba as usize..(lba + sectors) as usize;
            let value = base << 32 | round << 16 | (i as u64 + 1);
            let mut words = vec![value; sectors as usize];
            match step.op {
                BlockOp::Flush => words.clear(),
                BlockOp::Write => model[range.clone()].fill(value),
                BlockOp::Discard => model[range.clone()].fill(0),
                BlockOp::Read => {}
            }
            start(&ftl, &cx, step.op, base + lba, &mut words).await.unwrap();
            if step.op == BlockOp::Read {
                assert_eq!(words, model[range], "round {round}, step {i}: {step:?}");
            }
            cx.sleep(Ns::from_us(step.pause_us)).await;
        }
    }
    for (lba, expected) in model.iter().enumerate() {
        assert_eq!(read(&ftl, &cx, base + lba as u64).await, Ok(*expected));
    }
}

const TASKS: u64 = 4;

#[derive(Clone, Debug)]
struct Case {
    geo: Geometry,
    times: (u64, u64, u64),
    bad: Vec<(u32, u32)>,
    limits: (u32, u32),
    programs: Vec<(u64, bool)>,
    erases: Vec<u64>,
    buffer: Option<u32>,
    victim: Victim,
    map_cache: Option<u32>,
    steps: Vec<Vec<Step>>,
}

/// Small devices with spare for all that fails, and every peculiarity: windows, bad chunks, limits
/// on open chunks, failures.
fn any_case() -> impl Strategy<Value = Case> {
    let shape = (1u32..3, 1u32..3, 12u32..18, prop_oneof![Just(0u32), Just(4), Just(10)]);
    let times = prop_oneof![Just((0, 0, 0)), Just(TIMES), Just((TIMES.0, 1000, 1000))];
    let bad = prop::collection::vec((0u32..4, 0u32..10), 0..3);
    let faults = (
        prop::collection::vec((0u64..800, any::<bool>()), 0..4),
        prop::collection::vec(0u64..60, 0..2),
    );
    let limits = prop_oneof![Just(0u32), Just(1), Just(2), Just(3)];
    let steps = prop::collection::vec(prop::collection::vec(any_step(40), 1..40), TASKS as usize);
    let buffer = prop_oneof![Just(None), Just(Some(16u32)), Just(Some(64))];
    let victim = prop_oneof![Just(Victim::Line), Just(Victim::Block)];
    let map = prop_oneof![Just(None), Just(Some(1)), Just(Some(100))];
    (shape, times, bad, faults, limits, (buffer, victim, map), steps).prop_map(
        |(
            (channels, luns, chunks, mw_cunits),
            times,
            bad,
            (programs, erases),
            limit,
            (buffer, victim, map_cache),
            steps,
        )| {
            let geo = Geometry { mw_cunits, ..geometry(channels, luns, chunks, 8) };
            let pus = geo.pus();
            Case {
                geo,
                times,
                bad: bad.into_iter().map(|(pu, c)| (pu % pus, c)).collect(),
                limits: (limit * pus, limit),
                programs,
                erases,
                buffer,
                victim,
                map_cache,
                steps,
            }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Whatever several tasks do at once on whatever device: what they read is what they wrote, no
    /// rule is broken, the counters add up, and the maps agree with each other.
    #[test]
    fn several_tasks_read_what_they_wrote(case in any_case()) {
        let script = Script {
            programs: case.programs.iter().map(|(n, early)| {
                (*n, if *early { Status::ChunkEarlyClose } else { Status::WriteNextUnit })
            }).collect(),
            erases: case.erases.iter().map(|n| (*n, ())).collect(),
            ..Script::default()
        };
        let mut device = Double::new(case.geo, case.times, script)
            .with_open_limits(case.limits.0, case.limits.1);
        for (pu, chunk) in &case.bad {
            device = device.bad(*pu, *chunk);
        }
        let config = PftlConfig { buffer_sectors: case.buffer, victim: case.victim,
            map: if case.map_cache.is_some() { MapKind::Cached } else { MapKind::Whole },
            map_cache: case.map_cache,
            ..config(80) };
        let steps = case.steps.clone();
        let (_, ftl, device, _) = with_ftl(device, config, |ftl, _, cx| async move {
            let span = ftl.info().capacity / TASKS;
            let tasks: Vec<_> = (0..TASKS).zip(steps)
                .map(|(t, steps)| {
                    let play = play(ftl.clone(), cx.clone(), t * span, span, steps, 12);
                    cx.spawn_join(play)
                })
                .collect();
            for task in tasks {
                task.await;
            }
            ftl.stop(&cx).await;
        });
        prop_assert_eq!(ftl.stats().buffered_now, 0);
        if case.limits.0 > 0 {
            let most = device.seen(|s| s.open_most);
            prop_assert!(most <= case.limits.0 as i64, "{} chunks open", most);
        }
    }
}

/// A device full to the last logical sector keeps taking writes, with a fast and with a slow host.
#[test]
fn a_full_device_never_stalls() {
    let both = |(pause, chunks)| [(pause, chunks, Victim::Line), (pause, chunks, Victim::Block)];
    let cases = [(0, 10), (300_000, 10), (0, 24)].into_iter().flat_map(both);
    for (pause, chunks, victim) in cases {
        let geo = Geometry { mw_cunits: 8, ..geometry(2, 2, chunks, 8) };
        let device = Double::new(geo, TIMES, Script::default());
        // As little spare as is accepted: three lines.
        let percent = (300 / chunks) + 1;
        let config = PftlConfig { victim, ..config(percent) };
        let (_, ftl, ..) = with_ftl(device, config, move |ftl, _, cx| async move {
            let capacity = ftl.info().capacity;
            let tasks: Vec<_> = (0..8u64)
                .map(|t| {
                    let (ftl, task) = (ftl.clone(), cx.clone());
                    cx.spawn_join(async move {
                        let mut rng = Rng::new(t);
                        for i in 0..capacity * 20 / 8 {
                            let fill = i * 8 + t;
                            let random = rng.below(capacity);
                            let lba = if fill < capacity { fill } else { random };
                            write(&ftl, &task, lba, i).await;
                            task.sleep(Ns::from_ns(pause)).await;
                        }
                    })
                })
                .collect();
            for task in tasks {
                task.await;
            }
        });
        let details = ftl.details();
        assert!(details.ftl.gc_victims > 20 && details.ftl.ring_full > Ns::ZERO);
        let share = details.ftl.victim_invalid_share().unwrap();
        assert!(share > 0.0 && share < 1.0, "{share}");
    }
}

/// Same seed, same polls; the random order of ready tasks is part of the run.
#[test]
fn the_same_seed_gives_the_same_fingerprint() {
    let once = || {
        let device = Double::new(geometry(2, 2, 20, 8), TIMES, Script::default());
        let (_, ftl, _, fingerprint) = with_ftl(device, config(30), |ftl, _, cx| async move {
            overwrite(&ftl, &cx, 4, 3, |_| ()).await;
            ftl.stop(&cx).await;
        });
        (ftl.details(), fingerprint)
    };
    assert_eq!(once(), once());
}

/// While the dies are busy the buffer works: overwrites are absorbed, discards leave, reads hit.
#[test]
fn the_buffer_absorbs_overwrites_and_discards() {
    let device = Double::new(geometry(1, 1, 20, 8), TIMES, Script::default());
    let (_, ftl, ..) = with_ftl(device, config(30), |ftl, _, cx| async move {
        for lba in 0..8 {
            write(&ftl, &cx, lba, 1).await;
        }
        // The first unit is with the die; sectors 4 to 7 wait.
        write(&ftl, &cx, 5, 2).await;
        write(&ftl, &cx, 5, 3).await;
        start(&ftl, &cx, BlockOp::Discard, 6, &mut [0]).await.unwrap();
        write(&ftl, &cx, 0, 4).await;
        start(&ftl, &cx, BlockOp::Flush, 0, &mut []).await.unwrap();
        let s = ftl.stats();
        assert_eq!((s.absorbed, s.discarded_in_buffer, s.flushes), (2, 1, 1));
        for (lba, value) in [(0, 4), (1, 1), (5, 3), (6, 0), (7, 1), (9, 0)] {
            assert_eq!(read(&ftl, &cx, lba).await, Ok(value));
        }
        assert_eq!(ftl.stats().read_from_buffer, 4);
        ftl.quiesce(&cx).await;
        for (lba, value) in [(0, 4), (1, 1), (5, 3), (6, 0), (7, 1), (9, 0)] {
            assert_eq!(read(&ftl, &cx, lba).await, Ok(value));
        }
        let refused = start(&ftl, &cx, BlockOp::Write, 1, &mut [1]).await;
        assert!(matches!(refused, Err(BlockError::ReadOnly(_))));
    });
    let s = ftl.stats();
    // 11 written, 2 absorbed, 1 discarded: 8 programmed in two units, no padding. The stop has
    // programmed the page that says what was discarded, with 3 sectors of padding.
    assert_eq!((s.programmed_for(Cause::User), s.programmed_for(Cause::Metadata)), (8, 1));
    assert_eq!(s.programmed_for(Cause::PaddingFlush), 3);
}

/// Discards that are never followed by a whole unit must not fill the buffer with the dead.
#[test]
fn discarded_slots_leave_the_buffer_at_once() {
    let device = Double::new(geometry(1, 1, 20, 8), TIMES, Script::default());
    with_ftl(device, config(30), |ftl, _, cx| async move {
        for i in 0..10_000 {
            write(&ftl, &cx, i % 50, i).await;
            start(&ftl, &cx, BlockOp::Discard, i % 50, &mut [0]).await.unwrap();
        }
        assert_eq!(ftl.stats().programmed_total(), 0);
    });
}

/// A record counts for its own sector and its own content only.
#[test]
fn a_record_is_of_its_sector_and_its_content() {
    let (content, other) = ([7u8; 8], [8u8; 8]);
    let record = crate::log::format::Oob::encode_raw(5, 1, read::content_crc(&content));
    assert!(read::is_of(&record, 5, &content));
    assert!(!read::is_of(&record, 6, &content), "another sector's");
    assert!(!read::is_of(&record, 5, &other), "other content");
}

/// Fails the `n`-th program in either way, for many `n`, on a medium with windows: every sector
/// reads back, at once and after the chunk has been collected, and the chunk is retired.
#[test]
fn a_failed_program_loses_nothing_and_retires_the_chunk() {
    for status in [Status::WriteNextUnit, Status::ChunkEarlyClose] {
        for n in (0..40).chain([100, 333]) {
            let geo = Geometry { mw_cunits: 8, ..geometry(2, 1, 14, 8) };
            let script = Script { programs: [(n, status)].into(), ..Script::default() };
            let device = Double::new(geo, TIMES, script);
            let (_, ftl, device, _) = with_ftl(device, config(45), |ftl, _, cx| async move {
                let capacity = ftl.info().capacity;
                for pass in 0..6u64 {
                    for lba in 0..capacity {
                        write(&ftl, &cx, lba, pass << 32 | lba).await;
                    }
                    for lba in 0..capacity {
                        assert_eq!(read(&ftl, &cx, lba).await, Ok(pass << 32 | lba));
                    }
                }
                ftl.stop(&cx).await;
            });
            let s = ftl.stats();
            assert_eq!(s.program_failures, 4, "{status:?} at {n}");
            // F0h: the unit again. F1h: the unit was never programmed, its window was.
            let retried = s.programmed_for(Cause::Retry);
            match status {
                Status::WriteNextUnit => assert_eq!(retried, 4, "at {n}"),
                _ => assert!(retried <= 12, "at {n}: {retried} retried"),
            }
            assert_eq!(ftl.details().retired_chunks, 1, "{status:?} at {n}");
            device.seen(|seen| assert_eq!(s.erases, seen.erases));
        }
    }
}

/// A program that is under way when the device stops, and fails, is none in the counters: the stop
/// waits for its end.
#[test]
fn a_stop_waits_for_programs_that_fail() {
    let script = Script { programs: [(0, Status::ChunkEarlyClose)].into(), ..Script::default() };
    let device = Double::new(geometry(1, 1, 14, 8), TIMES, script);
    let (_, ftl, ..) = with_ftl(device, config(45), |ftl, _, cx| async move {
        for lba in 0..4 {
            write(&ftl, &cx, lba, lba).await;
        }
        cx.sleep(Ns::from_us(1)).await;
        assert!(ftl.controller.lock().workers.iter().any(Worker::is_awaited), "nothing flies");
        ftl.end(&cx).await;
    });
    assert_eq!(ftl.stats().programmed_total(), 0);
}

/// An erase that fails takes the chunk out; the rest of its line is used on.
#[test]
fn a_failed_erase_retires_the_chunk() {
    let script = Script { erases: [(3, ()), (8, ())].into(), ..Script::default() };
    let device = Double::new(geometry(2, 2, 14, 8), TIMES, script);
    let (_, ftl, ..) = with_ftl(device, config(45), |ftl, _, cx| async move {
        overwrite(&ftl, &cx, 6, 4, |_| ()).await;
        ftl.stop(&cx).await;
    });
    assert_eq!(ftl.stats().erase_failures, 2);
    assert_eq!(ftl.details().retired_chunks, 2);
}

/// A live sector that GC can't read is lost, and says so until it is written again; a sector that
/// the host can't read is an error for that sector only.
#[test]
fn lost_sectors_are_errors_until_rewritten() {
    let device = Double::new(geometry(1, 1, 20, 8), TIMES, Script::default());
    let (_, ftl, ..) = with_ftl(device, config(40), |ftl, device, cx| async move {
        for lba in 0..64 {
            write(&ftl, &cx, lba, lba + 1).await;
        }
        cx.sleep(Ns::from_ms(100)).await;
        let at = |sector| Location { pu: 0, chunk: 0, sector };
        let bad = |sector| device.format().pack(at(sector));
        device.fail_reads_of(vec![bad(3), bad(5)]);
        let mut words = [0; 8];
        let lost = start(&ftl, &cx, BlockOp::Read, 0, &mut words).await;
        let lbas = vec![Lba::new(3), Lba::new(5)];
        assert_eq!(lost, Err(BlockError::Uncorrectable(lbas.clone())));
        assert_eq!(words, [1, 2, 3, 0, 5, 0, 7, 8]);
        // Cold data stays in line 0 until nothing better is left; then it is moved.
        let capacity = ftl.info().capacity;
        let mut rng = Rng::new(1);
        while ftl.stats().gc_read_failures < 2 {
            write(&ftl, &cx, 8 + rng.below(capacity - 8), 1).await;
            cx.sleep(Ns::from_us(1)).await;
        }
        let lost = start(&ftl, &cx, BlockOp::Read, 0, &mut words).await;
        assert_eq!(lost, Err(BlockError::Uncorrectable(lbas)));
        write(&ftl, &cx, 3, 33).await;
        start(&ftl, &cx, BlockOp::Discard, 5, &mut [0]).await.unwrap();
        start(&ftl, &cx, BlockOp::Read, 0, &mut words).await.unwrap();
        assert_eq!(words, [1, 2, 3, 33, 5, 0, 7, 8]);
    });
    assert_eq!(ftl.details().poisoned, 2);
    assert_eq!(ftl.stats().read_failures, 4);
}

/// Chunks die until nothing is left to work with: writers are refused, not left waiting, and what
/// was acknowledged is still read.
#[test]
fn a_device_out_of_spare_becomes_read_only() {
    for status in [Status::WriteNextUnit, Status::ChunkEarlyClose] {
        let script = Script {
            programs: (0..100_000).filter(|n| n % 40 == 7).map(|n| (n, status)).collect(),
            ..Script::default()
        };
        let device = Double::new(geometry(2, 2, 20, 8), TIMES, script);
        with_ftl(device, config(40), |ftl, _, cx| async move {
            let capacity = ftl.info().capacity;
            let tasks: Vec<_> = (0..4u64)
                .map(|t| {
                    let (ftl, task) = (ftl.clone(), cx.clone());
                    cx.spawn_join(async move {
                        let mut model = std::collections::BTreeMap::new();
                        let mut rng = Rng::new(t);
                        loop {
                            let lba = rng.below(capacity / 4) * 4 + t;
                            let value = rng.next_u64();
                            match start(&ftl, &task, BlockOp::Write, lba, &mut [value]).await {
                                Ok(()) => model.insert(lba, value),
                                Err(BlockError::ReadOnly(_)) => return model,
                                Err(other) => panic!("{other}"),
                            };
                        }
                    })
                })
                .collect();
            for task in tasks {
                for (lba, value) in task.await {
                    assert_eq!(read(&ftl, &cx, lba).await, Ok(value), "{lba}");
                }
            }
            ftl.stop(&cx).await;
        });
    }
}

/// What is asked for but can't be had is refused with the number that is wrong.
#[test]
fn impossible_devices_and_requests_are_refused() {
    let refused = |geo, limits: (u32, u32), config: PftlConfig| {
        let device = Double::new(geo, (0, 0, 0), Script::default());
        let device = Arc::new(device.with_open_limits(limits.0, limits.1));
        let run = Virtual::new(1, 1, CostTable::zero());
        DriveFtl::create(&run.cx(), device, config).err().map(|e| e.to_string())
    };
    let said = |text: Option<String>, part: &str| {
        let text = text.expect("it is refused");
        assert!(text.contains(part), "{text}");
    };
    said(refused(geometry(1, 1, 10, 8), (0, 0), config(12)), "GC needs 96");
    said(refused(geometry(2, 2, 20, 8), (3, 0), config(30)), "open chunks");
    said(refused(geometry(1, 1, 20, 8), (0, 0), config(0)), "over_provisioning_percent is 0");
    let small = PftlConfig { buffer_sectors: Some(15), ..config(30) };
    said(refused(geometry(1, 1, 20, 8), (0, 0), small), "buffer_sectors is 15");
    let device = Double::new(geometry(1, 1, 20, 8), (0, 0, 0), Script::default());
    with_ftl(device, config(30), |ftl, _, cx| async move {
        let capacity = ftl.info().capacity;
        for (lba, n) in [(capacity, 1), (capacity - 1, 2), (u64::MAX, 1)] {
            let outside = start(&ftl, &cx, BlockOp::Read, lba, &mut vec![0; n]).await;
            assert!(matches!(outside, Err(BlockError::Invalid { .. })), "{lba}");
        }
    });
}

/// A sequential write reaches every channel before a second die of one, and a device that holds
/// data is refused.
#[test]
fn stripes_run_over_the_channels_first() {
    for victim in [Victim::Line, Victim::Block] {
        stripes_run(PftlConfig { victim, ..config(30) });
    }
}

fn stripes_run(config: PftlConfig) {
    let device = Double::new(geometry(3, 2, 20, 8), TIMES, Script::default());
    let (first, _, device, _) = with_ftl(device, config.clone(), |ftl, device, cx| async move {
        let mut order = Vec::new();
        for unit in 0..6 {
            for lba in 0..4 {
                write(&ftl, &cx, unit * 4 + lba, 1).await;
            }
            cx.sleep(Ns::from_ns(1)).await;
            let pointer = |pu: &u32| device.chunk_report(*pu, 0, 1)[0].write_pointer > 0;
            let new = (0..6).find(|pu| pointer(pu) && !order.contains(pu));
            order.push(new.expect("one more PU is written"));
        }
        order
    });
    assert_eq!(first, [0, 2, 4, 1, 3, 5]);
    let run = Virtual::new(1, 5, CostTable::zero());
    let again = DriveFtl::create(&run.cx(), device, config).err();
    assert_eq!(again, Some(CreateError::NotBlank { chunks: 6 }));
}

/// Whatever the host and GC do, GC has room for what its victims still hold before any of them is erased,
/// also when several are read at once: else all of them could be half read for ever.
#[test]
fn the_host_leaves_room_for_all_victims_at_once() {
    let most = [(4, 12, 26), (4, 16, 20), (8, 10, 31)].map(least_outlook);
    assert!(most.iter().all(|most| *most > 2), "{most:?} victims at once");
}

/// Looks at a full device of so many channels and chunks per PU; returns how many victims were read at once.
fn least_outlook((channels, chunks, percent): (u32, u32, u32)) -> usize {
    let geo = geometry(channels, 2, chunks, 16);
    let chunk = 64;
    let config = PftlConfig { victim: Victim::Block, ..config(percent) };
    let device = Double::new(geo, (TIMES.0, 1000, TIMES.2), Script::default());
    let (most, ..) = with_ftl(device, config, move |ftl, _, cx| async move {
        let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let look = move |c: &Controller, most: &std::sync::atomic::AtomicUsize| {
            let begun = c.victims_begun();
            let outlook = c.place.outlook(MAIN, c.moving());
            assert!(outlook >= chunk * begun.max(1) as i64, "{begun} victims, {outlook} sectors");
            most.fetch_max(begun, std::sync::atomic::Ordering::Relaxed);
        };
        let capacity = ftl.info().capacity;
        let tasks: Vec<_> = (0..8u64)
            .map(|t| {
                let (ftl, task, most) = (ftl.clone(), cx.clone(), most.clone());
                cx.spawn_join(async move {
                    let mut rng = Rng::new(t);
                    for i in 0..capacity * 6 / 8 {
                        let fill = i * 8 + t;
                        let lba = if fill < capacity { fill } else { rng.below(capacity) };
                        write(&ftl, &task, lba, i).await;
                        look(&ftl.controller.lock(), &most);
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await;
        }
        ftl.stop(&cx).await;
        most.load(std::sync::atomic::Ordering::Relaxed)
    });
    most
}

/// GC of single blocks reads several of them at once, on several dies, and erases them together: with
/// one at a time the host would wait for one die.
#[test]
fn blocks_on_several_dies_are_collected_side_by_side() {
    let device = Double::new(geometry(4, 2, 40, 16), TIMES, Script::default());
    let config = PftlConfig { victim: Victim::Block, ..config(20) };
    let (most, ftl, ..) = with_ftl(device, config, |ftl, _, cx| async move {
        let most = Arc::new(std::sync::atomic::AtomicUsize::new(0));
        let (looker, clock, found) = (ftl.clone(), cx.clone(), most.clone());
        cx.spawn(async move {
            while looker.controller.lock().phase != Phase::Stopped {
                let begun = looker.controller.lock().victims_begun();
                found.fetch_max(begun, std::sync::atomic::Ordering::Relaxed);
                clock.sleep(Ns::from_us(20)).await;
            }
        });
        let capacity = ftl.info().capacity;
        let mut rng = Rng::new(6);
        for i in 0..capacity * 4 {
            let lba = if i < capacity { i } else { rng.below(capacity) };
            write(&ftl, &cx, lba, i + 1).await;
        }
        ftl.stop(&cx).await;
        most.load(std::sync::atomic::Ordering::Relaxed)
    });
    assert!(most > 2, "{most} victims at once");
    assert!(ftl.stats().gc_moved > 1000);
}

/// So many threads write a device once, then twice as much at random.
async fn overwrite_by(ftl: &Arc<DriveFtl>, cx: &Cx, threads: u64) {
    let capacity = ftl.info().capacity;
    let tasks = (0..threads).map(|t| {
        let (ftl, task) = (ftl.clone(), cx.clone());
        cx.spawn_join(async move {
            let mut rng = Rng::new(t);
            for i in 0..capacity * 3 / threads {
                let fill = i * threads + t;
                let lba = if fill < capacity { fill } else { rng.below(capacity) };
                write(&ftl, &task, lba, i).await;
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await;
    }
}

/// Eight threads overwrite a device whose victims are blocks, and one flushes; returns how long that took, in
/// virtual time.
fn blocks_beside_flushes(config: PftlConfig, flush_every: Ns) -> Ns {
    let device = Double::new(geometry(4, 2, 64, 16), TIMES, Script::default());
    let config = PftlConfig { victim: Victim::Block, ..config };
    let (time, ftl, ..) = with_ftl(device, config, move |ftl, _, cx| async move {
        let (flusher, clock) = (ftl.clone(), cx.clone());
        cx.spawn(async move {
            while flusher.controller.lock().phase == Phase::Running {
                start(&flusher, &clock, BlockOp::Flush, 0, &mut []).await.expect("a flush");
                clock.sleep(flush_every).await;
            }
        });
        overwrite_by(&ftl, &cx, 8).await;
        let time = cx.now();
        ftl.stop(&cx).await;
        time
    });
    assert_eq!(ftl.read_only(), None);
    time
}

/// Barriers that begin one behind the other take from the room of GC before any line is erased behind the
/// last of them: victims leave room for all of them.
#[test]
fn victims_leave_room_for_a_barrier_behind_a_barrier() {
    for (percent, lines, us) in [(12, 2, 1_000), (15, 4, 5_000), (15, 8, 20_000)] {
        let config = PftlConfig { gc_low_water_lines: lines, capacitors: false, ..config(percent) };
        blocks_beside_flushes(config, Ns::from_us(us));
    }
}

/// GC of blocks begins before the host is at the reserve: else the host would stop for each block's garbage.
/// What the reserve takes from so small a device costs about half of its speed.
#[test]
fn without_capacitors_gc_of_blocks_begins_before_the_host_stops() {
    let time = |capacitors: bool| {
        let config = PftlConfig { capacitors, ..config(20) };
        blocks_beside_flushes(config, Ns::from_ms(100)).as_secs_f64()
    };
    let (with, without) = (time(true), time(false));
    assert!(without < 2.2 * with, "{without:.1} s, with capacitors {with:.1} s");
}

/// Chunks that lie abreast are opened one by one, each where GC will not need it.
#[test]
fn the_host_leaves_gc_of_blocks_its_reserve() {
    let device = Double::new(geometry(4, 2, 64, 16), TIMES, Script::default());
    let config = PftlConfig { victim: Victim::Block, capacitors: false, ..config(12) };
    let (least, ..) = with_ftl(device, config, |ftl, _, cx| async move {
        let least = Arc::new(AtomicI64::new(i64::MAX));
        let (seen, watched, clock) = (least.clone(), ftl.clone(), cx.clone());
        let beyond = move || {
            let c = watched.controller.lock();
            let left = c.place.outlook(MAIN, c.moving()) - i64::from(c.place.reserve());
            (c.phase == Phase::Running).then_some(left)
        };
        cx.spawn(async move {
            while let Some(left) = beyond() {
                seen.fetch_min(left, Ordering::Relaxed);
                clock.sleep(Ns::from_us(20)).await;
            }
        });
        overwrite_by(&ftl, &cx, 64).await;
        ftl.stop(&cx).await;
        least.load(Ordering::Relaxed)
    });
    assert!(least >= 0, "{} sectors of the reserve were the host's", -least);
}

/// GC of blocks keeps up where the spare is small, too: victims that are all garbage cost nearly
/// nothing. A low water behind the reserve gave the host one block for each that was erased. Chunks
/// are short here, so most of the time is that of notes: the block with their page is collected
/// again and again, and each time a barrier writes them anew.
#[test]
fn gc_of_garbage_keeps_up_on_little_spare() {
    let time = |capacitors: bool| {
        let device = Double::new(geometry(8, 2, 32, 16), TIMES, Script::default());
        let config = PftlConfig { victim: Victim::Block, capacitors, ..config(21) };
        let (time, ..) = with_ftl(device, config, |ftl, _, cx| async move {
            let sectors = ftl.info().capacity;
            for i in 0..sectors * 4 {
                write(&ftl, &cx, i % sectors, i).await;
            }
            let time = cx.now();
            ftl.stop(&cx).await;
            time
        });
        time.as_secs_f64()
    };
    let (with, without) = (time(true), time(false));
    assert!(without < 5.0 * with, "{without:.1} s, with capacitors {with:.1} s");
}
