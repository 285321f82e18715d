//! The paper's examples and what needs a look inside: the release of a slot (Figure 4), semaphores
//! (Figure 5), channels without room (Q12), the limiters of many channels (Q16, Q17), and what
//! waits for whom where programs fail, lines close and targets stop.
//!
//! Owns: the tests. The rest of Q01 to Q25 goes through the public interface (`tests/targets/qblk`).

use super::*;
use crate::block::{BlockDev, BlockOp, Io};
use crate::log::format::Record;
use crate::log::pool::LineState;
use crate::log::{LogConfig, MountOptions};
use flashlane_base::{Lba, Ns};
use flashlane_ocssd::device::Status;
use flashlane_ocssd::wrap::{Script, ScriptedDevice};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{CoreId, CostTable, Credits, Stalled, Virtual};
use std::cell::Cell;
use std::rc::Rc;

/// QBLK on `tiny` with so many channels of so many PUs, GC by hand.
fn target(run: &Virtual, channels: u32, per_channel: u32, config: LogConfig) -> Arc<HostFtl> {
    let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(60);
    let spec = spec.with_parallelism(channels, per_channel);
    let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
    let (cx, ssd) = (run.cx(), ssd.expect("a device"));
    let config = LogConfig { over_provisioning_percent: 60, gc: false, ..config };
    run.run(async move {
        let ftl = HostFtl::create(&cx, ssd, config).await.expect("fits");
        cx.sleep(Ns::from_ms(10)).await;
        ftl
    })
    .expect("no stall")
}

async fn write(cx: &Cx, ftl: &HostFtl, lba: u64, sectors: u32) {
    let mut buf = vec![7; sectors as usize * ftl.info.content_bytes];
    let io = Io::of(BlockOp::Write, Lba::new(lba), sectors, false, &mut buf);
    ftl.start(cx, io).await.expect("a write");
}

fn slot_of(ftl: &HostFtl, lba: u64) -> u32 {
    match ftl.map.get(lba) {
        Entry::Slot(slot) => slot,
        other => panic!("{other:?}"),
    }
}

/// The paper's Figure 4: what is in `slots` is on flash page 21 and the following now.
fn released(ftl: &HostFtl, slots: &[u32]) -> Unit {
    ftl.lines.set_line(0, 0);
    let heads = slots.iter().map(|slot| ftl.slab.head(*slot)).collect();
    Unit { first: 21, slots: slots.to_vec(), heads, ..Unit::default() }
}

/// Figure 4, Q02: LPN 6 is in entry (a), whose data is on flash page 21. Nobody has written it since: the map
/// goes on to page 21, which is valid.
#[test]
fn q02_figure_4_a_release_moves_the_map_on() {
    let run = Virtual::new(4, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 2, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        write(&cx, &ftl, 6, 1).await;
        let a = slot_of(&ftl, 6);
        ftl.publish_among_others(&cx, &released(&ftl, &[a]));
        assert_eq!(ftl.map.get(6), Entry::Media(21));
        assert!(ftl.lines.is_valid(21));
    })
    .expect("no stall");
}

/// Figure 4, Q02: LPN 6 is written on CPU 2, into entry (d) of its ring, just before (a) is released: the map
/// keeps (d), page 21 is invalid. It is known to be the durable copy below (d), of (a)'s stamp.
#[test]
fn q02_figure_4_a_rewritten_sector_keeps_its_new_slot() {
    let run = Virtual::new(4, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 2, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        write(&cx, &ftl, 6, 1).await;
        let a = slot_of(&ftl, 6);
        write(&cx.on_core(CoreId(2)), &ftl, 6, 1).await;
        let d = slot_of(&ftl, 6);
        assert_eq!((ftl.slab.head(a).ring(), ftl.slab.head(d).ring()), (0, 2));
        ftl.publish_among_others(&cx, &released(&ftl, &[a]));
        assert_eq!(ftl.map.get(6), Entry::Slot(d));
        assert!(!ftl.lines.is_valid(21));
        assert_eq!(ftl.slab.prev(d), (21 + 1, ftl.slab.stamp(a)));
    })
    .expect("no stall");
}

/// Q02: the entry changes between the look and the exchange (here: the unit names one slot twice, so its first
/// page wins): whoever loses the exchange makes its own page garbage, once.
#[test]
fn q02_the_loser_of_the_exchange_invalidates_its_page() {
    let run = Virtual::new(4, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 2, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        write(&cx, &ftl, 6, 1).await;
        let a = slot_of(&ftl, 6);
        let before = ftl.lines.total_valid();
        ftl.publish_among_others(&cx, &released(&ftl, &[a, a]));
        assert_eq!(ftl.map.get(6), Entry::Media(21));
        assert!(ftl.lines.is_valid(21) && !ftl.lines.is_valid(22));
        assert_eq!(ftl.lines.total_valid(), before + 1);
    })
    .expect("no stall");
}

/// QBLK, II-C: while a unit is published, whatever slot another core would fill next is none that the map still names.
#[test]
#[cfg(debug_assertions)] // others' steps can be taken in such builds only
fn a_slot_is_free_when_the_map_names_its_copy() {
    use flashlane_rt::sync::rehearse;
    let run = Virtual::new(1, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 1, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        fill(&ftl, 0);
        let unit = u64::from(ftl.shape.unit);
        for lba in 0..unit {
            write(&cx, &ftl, lba, 1).await;
        }
        let mut units = ftl.take_units(&cx, ftl.rings.of(&cx), 1);
        assert_eq!(units[0].slots.len() as u64, unit);
        ftl.lines.set_line(0, 0);
        units[0].first = unit;
        let looks = Rc::new(Cell::new(0));
        let (other, their_cx, looked) = (ftl.clone(), cx.clone(), looks.clone());
        rehearse(move || {
            let mut next = [0];
            other.rings.of(&their_cx).state.enter(|r| r.offer(&mut next));
            for lba in 0..unit {
                let named = other.map.get(lba);
                looked.set(looked.get() + u64::from(matches!(named, Entry::Slot(_))));
                assert_ne!(named, Entry::Slot(next[0]), "sector {lba}");
            }
            true
        });
        ftl.publish_media(&cx, units.into_iter().collect()).await;
        rehearse(|| false);
        assert_eq!(looks.get(), unit, "once, before the map moves on");
        assert!((0..unit).all(|lba| ftl.map.get(lba) == Entry::Media(unit + lba)));
    })
    .expect("no stall");
}

/// What the drainer took and did not program is buffered, counted once, whether it waits in the ring again, for
/// company, in the drainer's hands for a place, or for ever: the target became read-only.
#[test]
fn what_is_taken_and_not_programmed_is_still_buffered() {
    let run = Virtual::new(1, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 1, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        fill(&ftl, 0);
        let unit = u64::from(ftl.shape.unit);
        let ring = ftl.rings.of(&cx);
        let law = || ftl.stats().check_host_law().unwrap_or_else(|e| panic!("{e}"));
        for lba in (0..unit - 1).chain([0]) {
            write(&cx, &ftl, lba, 1).await;
        }
        // A unit, but the first of it is dead, and is dropped.
        assert!(ftl.take_units(&cx, ring, 1).is_empty());
        law();
        write(&cx, &ftl, unit, 1).await;
        let units = ftl.take_units(&cx, ring, 1);
        assert_eq!(units[0].slots.len() as u64, unit);
        // It waits for a place, and the host asks for nothing meanwhile.
        let waits = async {
            law();
            assert_eq!(ftl.stats().buffered_now, unit);
        };
        ftl.while_in_hand(ring, &units, waits).await;
        ftl.leave_unprogrammed(&ring.state, &units);
        law();
        assert_eq!(ftl.stats().buffered_now, unit);
    })
    .expect("no stall");
}

/// The requests of Figure 5, in the order in which they were mapped.
const FIGURE_5: [&[u32]; 3] = [&[0, 1], &[2, 3, 0], &[1, 2]];

/// Takes and gives back, `rounds` times, each after a moment in which the others run.
async fn compete(cx: Cx, ftl: Arc<HostFtl>, pus: &'static [u32], rounds: u64) {
    let chunks: Vec<(usize, u32)> = pus.iter().map(|pu| (*pu as usize, *pu)).collect();
    for _ in 0..rounds {
        ftl.acquire_pus(&cx, &chunks).await;
        cx.yield_now().await;
        ftl.release_pus(&cx, &chunks);
    }
}

/// Figure 5, Q08: requests A (LUNs 0, 1), B (2, 3, 0), C (1, 2) of one channel, 10^6 of them at a budget of
/// one, fewer at others: nobody waits for ever; also beside metadata that takes all of a LUN's budget, one
/// LUN after the other.
#[test]
fn q08_figure_5_does_not_deadlock() {
    for (budget, rounds) in [(1, 333_334), (2, 20_000), (8, 5_000)] {
        let run = Virtual::new(4, budget.into(), CostTable::zero());
        let ftl = target(&run, 1, 4, LogConfig { pu_budget: budget, ..LogConfig::qblk() });
        let (cx, them) = (run.cx(), ftl.clone());
        let ended = run.run(async move {
            let mut joins = Vec::new();
            for i in 0..3 * budget {
                let cx = cx.on_core(CoreId(i % 4));
                let pus = FIGURE_5[i as usize % 3];
                joins.push(cx.clone().spawn_join(compete(cx, them.clone(), pus, rounds)));
            }
            let (cx, me) = (cx.clone(), them.clone());
            joins.push(cx.clone().spawn_join(async move {
                for i in 0..rounds {
                    let pu = &me.pu[i as usize % 4];
                    pu.acquire(&cx, me.pu_budget).await;
                    cx.yield_now().await;
                    pu.release(&cx, me.pu_budget);
                }
            }));
            for join in joins {
                join.await;
            }
        });
        assert_eq!(ended, Ok(()), "budget {budget}");
        assert!(ftl.pu.iter().all(|pu| pu.free() == u64::from(budget)));
    }
}

/// And the example is one: in the order of mapping the three stall, A with LUN 0, B with 2 and 3, C with 1.
#[test]
fn q08_figure_5_in_the_order_of_mapping_is_a_deadlock() {
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    let stalled = run.run(async move {
        let luns: Rc<Vec<Credits>> = Rc::new((0..4).map(|_| Credits::new(1)).collect());
        let take = |pus: &'static [u32]| {
            let (luns, cx) = (luns.clone(), cx.clone());
            cx.clone().spawn_join(async move {
                for pu in pus {
                    luns[*pu as usize].acquire(&cx, 1).await;
                    cx.sleep(Ns::from_us(1)).await;
                }
                pus.iter().for_each(|pu| luns[*pu as usize].release(&cx, 1));
            })
        };
        for join in FIGURE_5.map(take) {
            join.await;
        }
    });
    assert!(matches!(stalled, Err(Stalled { .. })), "{stalled:?}");
}

/// Takes a channel's open lines away, so that it has no room; returns them.
fn fill(ftl: &HostFtl, pool: usize) -> (Option<u32>, Option<u32>) {
    let mut p = ftl.pools.get(pool).lock();
    p.opens = false;
    (p.current.take(), p.spare.take())
}

fn refill(ftl: &HostFtl, cx: &Cx, pool: usize, lines: (Option<u32>, Option<u32>)) {
    let mut p = ftl.pools.get(pool).lock();
    (p.current, p.spare) = lines;
    drop(p);
    ftl.pool_changed.wake(cx);
}

/// Channels of the media copies of `n` sectors.
fn channels(ftl: &HostFtl, n: u64) -> Vec<u64> {
    let per_channel = u64::from(ftl.shape.pool_lines() * ftl.shape.chunk_sectors);
    let channel = |lba| match ftl.map.get(lba) {
        Entry::Media(at) => at / per_channel,
        other => panic!("sector {lba}: {other:?}"),
    };
    (0..n).map(channel).collect()
}

/// Q12: a full channel is skipped, in whichever order the pointers come to it; with all channels full writers
/// are acknowledged while their rings have room and flushes wait, without spinning, until one has a line
/// again.
#[test]
fn q12_full_channels_are_skipped_and_waited_for() {
    let run = Virtual::new(4, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 3, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        let lines = [fill(&ftl, 0), fill(&ftl, 1), fill(&ftl, 2)];
        refill(&ftl, &cx, 1, lines[1]);
        for i in 0..9 {
            write(&cx.on_core(CoreId(i as u32 % 4)), &ftl, 4 * i, 4).await;
        }
        ftl.flush(&cx).await.expect("channel 1 has room");
        // What the window keeps in slots comes when the next units are programmed.
        write(&cx, &ftl, 100, 16).await;
        ftl.flush(&cx).await.expect("channel 1 has room");
        assert_eq!(channels(&ftl, 36), [1; 36]);

        fill(&ftl, 1);
        for core in 0..4 {
            write(&cx.on_core(CoreId(core)), &ftl, 36 + u64::from(core), 1).await;
        }
        let ended = Rc::new(Cell::new(false));
        let (their_cx, them, over) = (cx.clone(), ftl.clone(), ended.clone());
        let flush = cx.spawn_join(async move {
            them.flush(&their_cx).await.expect("in the end");
            over.set(true);
        });
        cx.sleep(Ns::from_secs(5)).await;
        assert!(!ended.get() && !ftl.read_only(), "nowhere to go");
        refill(&ftl, &cx, 2, lines[2]);
        flush.await;
        write(&cx, &ftl, 100, 16).await;
        ftl.flush(&cx).await.expect("channel 2 has room");
        assert_eq!(channels(&ftl, 40)[36..], [2; 4]);
        ftl.check_consistency().expect("valid once");
    })
    .expect("waiting is no spinning");
}

/// Q16, Q17: each of 66 channels is heard when it runs short, the ninth and the last, too: it collects and
/// users have less; the share is never negative nor above the buffer, nothing is left of it when all are
/// short, and all of it comes back.
#[test]
fn q16_q17_every_channel_counts_in_the_budget() {
    let run = Virtual::new(2, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 66, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        let ring = ftl.layout.ring_sectors;
        let whole = |ftl: &HostFtl| (ftl.shares().users, ftl.shares().collect) == (ring, false);
        assert!(whole(&ftl));
        let short = |pool: usize, leaves: u64| {
            let mut p = ftl.pools.get(pool).lock();
            let take = p.free_chunks() - leaves;
            p.meta_reserve += take;
            take
        };
        let give = |pool: usize, taken: u64| ftl.pools.get(pool).lock().meta_reserve -= taken;
        for pool in [0, 7, 8, 31, 63, 64, 65] {
            let taken = short(pool, 0);
            ftl.pool_moved(&cx);
            let wanted = |i: &usize| ftl.pools.get(*i).collector.is_wanted();
            assert_eq!((0..66).filter(wanted).collect::<Vec<_>>(), [pool]);
            let shares = ftl.shares();
            assert!(shares.collect && shares.users < ring && shares.users > 0, "{shares:?}");
            give(pool, taken);
            ftl.pool_moved(&cx);
            assert!(whole(&ftl), "channel {pool} left its low state");
        }
        let taken: Vec<u64> = (0..66).map(|pool| short(pool, 0)).collect();
        ftl.pool_moved(&cx);
        assert_eq!((ftl.shares().users, ftl.shares().gc), (0, ring));
        (0..66).zip(taken).for_each(|(pool, taken)| give(pool, taken));
        ftl.pool_moved(&cx);
        assert!(whole(&ftl));
    })
    .expect("no stall");
}

/// QBLK with one channel of two PUs, GC by hand, on a device that takes its time and can be told
/// how to answer.
async fn scripted(
    cx: &Cx,
    change: impl FnOnce(&mut DeviceSpec),
) -> (Arc<HostFtl>, Arc<ScriptedDevice>) {
    let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(60);
    let mut spec = spec.with_parallelism(1, 2);
    change(&mut spec);
    let ssd = Ssd::new(&spec, SsdOptions::default()).expect("a device");
    let script = Arc::new(ScriptedDevice::new(ssd));
    let config = LogConfig { over_provisioning_percent: 60, gc: false, ..LogConfig::qblk() };
    let ftl = HostFtl::create(cx, script.clone(), config).await.expect("fits");
    cx.sleep(Ns::from_ms(100)).await;
    (ftl, script)
}

/// The n-th write command from now on writes nothing and closes its chunk; its answer takes so
/// long.
fn fail_write(script: &ScriptedDevice, from_now: u64, delay: Ns) {
    let nth = script.seen(Op::Write) + from_now;
    let status = Status::ChunkEarlyClose;
    script.add(Script { op: Op::Write, nth, addrs: u64::MAX, status, delay });
}

/// A unit is done before its line may close: `verdict.rs` takes closed lines for a sign that every
/// unit has ended. While a program ends no other core finds the line ready to close and the unit
/// under way.
#[test]
#[cfg(debug_assertions)] // others' steps can be taken in such builds only
fn a_unit_is_done_before_its_line_may_close() {
    use flashlane_rt::sync::rehearse;
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let no_window = |spec: &mut DeviceSpec| spec.geometry.mw_cunits = 0;
        let (ftl, _) = scripted(&cx, no_window).await;
        write(&cx, &ftl, 0, ftl.shape.unit).await;
        cx.sleep(Ns::from_us(1)).await;
        let line = ftl.pools.get(0).lock().current.expect("a line is open");
        {
            let mut p = ftl.pools.get(0).lock();
            let in_flight = p.line(line).open.as_ref().map(|open| open.in_flight);
            assert_eq!(in_flight, Some(1), "the unit is being programmed");
            p.stop_filling(line);
        }
        let looks = Rc::new(Cell::new(0));
        let (other, looked) = (ftl.clone(), looks.clone());
        rehearse(move || {
            let works = |ring: &Ring| ring.state.now(|r| !r.all_ended());
            let is_under_way = other.rings.iter().any(works);
            let may_close = other.pools.of_line(line).lock().ready_to_close(line);
            assert!(!is_under_way || !may_close, "its line may close, and the unit is not done");
            looked.set(looked.get() + u32::from(is_under_way));
            true
        });
        cx.sleep(Ns::from_ms(100)).await;
        rehearse(|| false);
        assert!(looks.get() > 0, "another core has looked while the program ended");
        assert_eq!(ftl.pools.get(0).lock().line(line).state, LineState::Closed);
    })
    .expect("no stall");
}

/// Hole 35: a program fails, and no other line has room for its sectors yet. The line's closing
/// metadata does not name them, so the log does not call the line closed until they are programmed.
#[test]
fn a_line_is_logged_as_closed_after_its_failed_sectors_are_programmed() {
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let (ftl, script) = scripted(&cx, |_| ()).await;
        fail_write(&script, 0, Ns::from_ms(200));
        write(&cx, &ftl, 0, ftl.shape.unit).await;
        cx.sleep(Ns::from_ms(100)).await;
        let (current, next) = fill(&ftl, 0);
        let line = current.expect("its only unit is under way");
        assert!(next.is_some(), "another line is ready");
        ftl.pools.get(0).lock().stop_filling(line);
        let state = || {
            let p = ftl.pools.get(0).lock();
            let l = p.line(line);
            (l.state, l.logged)
        };
        cx.sleep(Ns::from_ms(500)).await;
        assert!(!ftl.rings.nothing_again(), "the sectors have nowhere to go");
        assert_eq!(state(), (LineState::Closed, false));
        refill(&ftl, &cx, 0, (next, None));
        cx.sleep(Ns::from_ms(500)).await;
        assert!(ftl.rings.nothing_again(), "the next line takes them");
        assert_eq!(state(), (LineState::Closed, true));
    })
    .expect("no stall");
}

/// Section 7, rule 9: a flush pads page pairs, and one of these programs fails: what the chunk's
/// window held goes out again, and the flush waits for that.
#[test]
fn a_flush_waits_for_what_its_padding_has_sent_out_again() {
    let mut sent_again = 0;
    for nth in 0..4 {
        let run = Virtual::new(1, 1, CostTable::zero());
        let cx = run.cx();
        let sent = run.run(async move {
            let (ftl, script) = scripted(&cx, |spec| spec.cells.pair_damage = true).await;
            write(&cx, &ftl, 0, 9).await;
            let to = ftl.rings.cover(true);
            ftl.rings.wait_durable(&cx, &to, true, || false).await;
            assert_eq!(ftl.rings.sent_again(), 0);
            // It ends last: nothing else gives what goes out again the time to be programmed.
            fail_write(&script, nth, Ns::from_ms(20));
            ftl.wait_safe(&cx, &to, true).await.expect("other chunks take it");
            assert!(ftl.rings.nothing_again(), "program {nth} of the padding fails");
            ftl.rings.sent_again()
        });
        sent_again += sent.expect("no stall");
    }
    assert!(sent_again > 0, "padding has failed in a chunk with something in its window");
}

/// A program that is under way when a read-only target stops, and fails, is none in the counters:
/// the stop waits for its end.
#[test]
fn a_stop_waits_for_programs_that_fail() {
    let run = Virtual::new(1, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let (ftl, script) = scripted(&cx, |_| ()).await;
        fail_write(&script, 0, Ns::from_ms(20));
        write(&cx, &ftl, 0, ftl.shape.unit).await;
        cx.sleep(Ns::from_us(1)).await;
        assert_eq!(ftl.stats().programmed_for(Cause::User), u64::from(ftl.shape.unit));
        ftl.give_up(&cx, "a test");
        ftl.stop(&cx).await.expect_err("it is read-only");
        assert_eq!(ftl.stats().programmed_for(Cause::User), 0, "the medium took nothing");
    })
    .expect("no stall");
}

/// Section 4, `stopped`: with a record behind it the next start would not be clean. What goes on in
/// the background and writes to the log, as a patrol does that moves it, ends first.
#[test]
fn a_target_that_stops_writes_no_record_behind_the_last_one() {
    let run = Virtual::new(1, 1, CostTable::zero());
    let (ftl, cx) = (target(&run, 2, 1, LogConfig::qblk()), run.cx());
    run.run(async move {
        write(&cx, &ftl, 6, 1).await;
        let (them, their_cx) = (ftl.clone(), cx.clone());
        ftl.background(&cx, async move {
            their_cx.sleep(Ns::from_secs(1)).await;
            let record = them.journal.append(Record::Ceiling { stamp: them.stamp_ceiling() });
            them.commit(&their_cx, record).await.expect("the log takes it");
        });
        ftl.stop(&cx).await.expect("everything is durable");
        let device = ftl.device().clone();
        let next = HostFtl::mount(&cx, device, MountOptions::default()).await;
        let next = next.expect("it was stopped");
        assert!(next.recovery().expect("it was mounted").clean, "the log ends with `stopped`");
        next.stop(&cx).await.expect("everything is durable");
    })
    .expect("no stall");
}
