//! What cores wait for is counted, where it is waited for: rings, exchanges, semaphores, locks.
//!
//! Owns: the tests, each with a run in which a number must not be zero, and one in which it must be. Virtual
//! time; on real threads the counters are read in `threads.rs`.

use crate::prelude::*;
use crate::qblk::cores::qblk;
use flashlane_ftl::contention::Exchanges;
use flashlane_rt::{LockStats, Waits};

fn look(b: &Bench) -> Contention {
    b.dev.contention(b.run.now())
}

fn costs(stages: &str) -> CostTable {
    let text = format!("name = \"counted\"\nhandoff_per_waiter = \"20ns\"\n[stages]\n{stages}\n");
    CostTable::from_toml(&text).expect("a table")
}

/// Every part of a sum is a ring's or a pool's, and what the layer's other counters say is the same.
fn adds_up(b: &Bench) {
    let (c, s) = (look(b), b.stats());
    assert_eq!((c.full().time, c.limited().time), (s.ring_full, s.limited));
    let each =
        |of: fn(&flashlane_ftl::contention::Queue) -> u64| c.queues.iter().map(of).sum::<u64>();
    assert_eq!(each(|q| q.full.times), c.full().times);
    assert_eq!(each(|q| q.lock.acquired), c.locks()[0].acquired);
    for q in &c.queues {
        assert!(q.depth <= q.depth_max && q.depth_mean(c.time) <= q.depth_max as f64, "{q:?}");
        assert!((q.full.times > 0) || q.full.time == Ns::ZERO, "{q:?}");
    }
    for lock in c.locks() {
        assert!(lock.contended <= lock.acquired && (lock.contended > 0) == (lock.spun > Ns::ZERO));
    }
}

/// One writer with one ring of its own that is never full, on a medium that is never busy: nobody waits for
/// anything, however much everything costs.
#[test]
fn one_writer_alone_waits_for_nothing() {
    let mut setup = qblk(2, 2, 1).untimed();
    setup.costs = costs(
        "\"front.write\" = \"100ns\"\n\"ring.own\" = \"50ns\"\n\"map.exchange\" = \"50ns\"\n\
         \"pool.take\" = \"50ns\"\n\"drain.unit\" = \"50ns\"",
    );
    let b = setup.build();
    for lba in 0..500 {
        b.write_on(0, lba, 1, 1);
        b.sleep(Ns::from_us(5));
    }
    let c = look(&b);
    assert_eq!(c.exchanges, Exchanges::default());
    assert_eq!((c.full(), c.limited(), c.semaphores()), Default::default());
    assert!(c.locks().iter().all(|l| (l.contended, l.spun) == (0, Ns::ZERO)), "{:?}", c.locks());
    assert!(c.locks()[0].acquired >= 500, "but the ring was taken");
    assert_eq!(c.map.acquired, 0, "and no map lock: there is none");
    adds_up(&b);
    b.settled();
}

/// Two cores write one sector again and again. Who pays for an exchange while the other's is done would have to
/// try again; with a lock around the map nobody can.
#[test]
fn two_writers_of_one_sector_try_again_unless_there_is_a_lock() {
    let fought = |config: LogConfig, apart: bool| {
        let mut setup = qblk(2, 2, 2).untimed();
        setup.config = LogConfig { over_provisioning_percent: 60, ..config };
        setup.costs = costs("\"map.exchange\" = \"90ns\"\n\"map.update\" = \"90ns\"");
        let b = setup.build();
        for i in 0..100 {
            let at = |core: u64| if apart { core } else { 0 };
            let writes = [0, 1].map(|core| b.begin_write_on(core, at(core.into()), 1, 1 + i));
            for write in writes {
                b.wait(write).expect("a write");
            }
        }
        let c = look(&b);
        adds_up(&b);
        b.settled();
        c
    };
    let c = fought(LogConfig::qblk(), false);
    assert!((1..=100).contains(&c.exchanges.user_retries), "{:?}", c.exchanges);
    assert_eq!(c.map, LockStats::default());
    assert_eq!(fought(LogConfig::qblk(), true).exchanges.user_retries, 0, "each its own sector");
    let pblk = fought(LogConfig::default(), false);
    assert_eq!(pblk.exchanges, Exchanges::default());
    assert!(pblk.map.contended > 0 && pblk.map.spun > Ns::ZERO, "{:?}", pblk.map);
}

/// `each` writes per core at once; a look before them, and the waits that the writers themselves saw.
fn burst(setup: Setup, each: u64) -> (Bench, Contention, Vec<Waits>) {
    let b = setup.build();
    let before = look(&b);
    let seen = Rc::new(RefCell::new(vec![Waits::default(); b.cores() as usize]));
    let joins: Vec<_> = (0..each * u64::from(b.cores()))
        .map(|i| {
            let core = (i % u64::from(b.cores())) as usize;
            let (cx, dev, seen) = (b.at(core as u32), b.dev.clone(), seen.clone());
            let bytes = dev.info().content_bytes;
            b.held.borrow_mut().insert(i, 1);
            cx.clone().spawn_join(async move {
                let buf = content(i, 1, bytes);
                let from = cx.now();
                dev.start(&cx, Io::write(Lba::new(i), 1, false, &buf)).await.expect("a write");
                let waited = cx.now() - from;
                if waited > Ns::ZERO {
                    seen.borrow_mut()[core].times += 1;
                    seen.borrow_mut()[core].time += waited;
                }
            })
        })
        .collect();
    b.wait_all(joins);
    let seen = seen.borrow().clone();
    (b, before, seen)
}

/// A host that costs nothing waits for room only: what a ring counts is what its writers saw, to the
/// nanosecond, and the depth is that of a ring that is full all the while.
#[test]
fn a_full_ring_counts_what_its_writers_waited() {
    let setup = qblk(2, 1, 2).with(|s| s.config.ring_sectors = Some(2 * 128));
    let (b, before, seen) = burst(setup, 500);
    let c = look(&b).since(&before);
    assert!(c.queues.iter().all(|q| q.full.times > 300 && q.full.time > Ns::ZERO), "{c:?}");
    assert_eq!(c.queues.iter().map(|q| q.full).collect::<Vec<_>>(), seen);
    assert_eq!(c.queues.iter().map(|q| q.depth_max).collect::<Vec<_>>(), [128, 128]);
    // While the burst is taken in the ring is full: then it is as deep as it can be, on the mean.
    assert!(c.queues.iter().all(|q| q.depth_mean(c.time) > 100.0), "{c:?}");
    adds_up(&b);
    b.drained();
    b.dev.forget_peaks();
    let later = look(&b);
    assert!(later.queues.iter().all(|q| (q.depth, q.depth_max) == (0, 0)), "{later:?}");
    // Nothing is in the rings any more: the sum over time stands still.
    b.sleep(Ns::from_secs(1));
    let rest = look(&b).since(&later);
    assert!(rest.queues.iter().all(|q| q.slot_ns == 0), "{rest:?}");
    b.settled();
}

/// The mean depth is the sum over time, exactly: so many sectors that stay for so long.
#[test]
fn the_mean_depth_is_exact() {
    let b = qblk(2, 1, 2).untimed().build();
    let from = look(&b);
    // Fewer than a unit, which nobody waits for: they stay.
    b.write_on(1, 0, 3, 1);
    b.sleep(Ns::from_us(30));
    let c = look(&b).since(&from);
    assert_eq!((c.queues[0].slot_ns, c.queues[1].slot_ns), (0, 3 * 30_000));
    b.flush_on(1);
    assert_eq!(look(&b).queues[1].depth, 0);
    b.settled();
}

/// A budget of one program per PU and drainers that must take the channel whose turn it is wait for
/// semaphores; with room for every program at once nobody does. Who may pass a busy channel by does.
#[test]
fn a_budget_of_one_makes_drainers_wait() {
    let with = |pu_budget: u32, channel_choice: ChannelChoice| {
        let config = |c| LogConfig { pu_budget, channel_choice, ..c };
        let setup = qblk(2, 1, 2).with(|s| s.config = config(s.config.clone()));
        let (b, ..) = burst(setup, 300);
        let c = look(&b);
        adds_up(&b);
        b.settled();
        c
    };
    for choice in [ChannelChoice::Turn, ChannelChoice::Shared] {
        let narrow = with(1, choice);
        assert!(narrow.semaphores().times > 10 && narrow.semaphores().time > Ns::from_us(100));
        assert_eq!(narrow.passed, 0);
        assert!(narrow.pools.iter().all(|p| p.semaphores.times > 0), "{narrow:?}");
        let wide = with(64, choice);
        assert_eq!(wide.semaphores(), Waits::default());
    }
    assert!(with(1, ChannelChoice::PassBusy).passed > 0);
}

/// Lower pages take less than half of upper ones: programs of one ring end out of order. Whose room comes
/// back in the order of the ring is longer without it than who gets it back as programs end.
#[test]
fn room_in_ring_order_comes_back_later() {
    let held = |in_ring_order: bool| {
        let setup = qblk(4, 1, 1).with(|s| {
            s.config = LogConfig { in_ring_order, ring_sectors: Some(128), ..s.config.clone() };
        });
        let (b, before, _) = burst(setup, 1000);
        let c = look(&b).since(&before);
        adds_up(&b);
        b.drained();
        assert_eq!(look(&b).queues[0].depth, 0, "all of it comes back");
        b.settled();
        c.full().time
    };
    let (as_they_end, in_order) = (held(false), held(true));
    assert!(in_order > as_they_end, "{in_order} and {as_they_end}");
}

/// A writer that tries again every 3 ms waits for a multiple of that, and what it waited is counted.
#[test]
fn a_writer_that_is_refused_tries_again_after_3_ms() {
    let setup = qblk(2, 1, 2).with(|s| {
        let ring_sectors = Some(2 * 128);
        s.config = LogConfig { full_ring_retry: true, ring_sectors, ..s.config.clone() };
    });
    let (b, before, seen) = burst(setup, 500);
    let c = look(&b).since(&before);
    assert!(c.full().times > 300, "{c:?}");
    assert_eq!(c.full().time.as_ns() % Ns::from_ms(3).as_ns(), 0);
    assert_eq!(c.queues.iter().map(|q| q.full).collect::<Vec<_>>(), seen);
    adds_up(&b);
    b.settled();
}

/// What drainers and garbage collection lose to writers is counted: sectors overwritten while they are
/// programmed, or read to be moved.
#[test]
fn sectors_overwritten_under_way_are_counted() {
    let b = qblk(2, 1, 2).build();
    b.fill_on_all(1);
    b.overwrite_on_all(4, 600, 3);
    let c = look(&b);
    assert!(b.stats().gc_moved > 0 && c.exchanges.gc_lost > 0, "{c:?}");
    assert!(c.exchanges.drain_lost > 0, "{c:?}");
    adds_up(&b);
    b.settled();
}

/// A look changes nothing, not even what the next look sees.
#[test]
fn a_look_changes_nothing() {
    let (b, ..) = burst(qblk(2, 2, 3), 200);
    let first = look(&b);
    for _ in 0..3 {
        b.stats();
        b.attribute("write_buffer");
        assert_eq!(look(&b), first);
    }
    b.settled();
}
