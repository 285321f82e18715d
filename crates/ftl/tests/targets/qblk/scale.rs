//! What cores cost each other (Q24, Q25): lock waits by threads, and a writer alone with its ring.
//!
//! Owns: the tests, in virtual time under a table of CPU costs made up here. What a real host costs is
//! measured by the lab, not here.

use crate::prelude::*;
use crate::qblk::cores::qblk;
use flashlane_ftl::log::{Drainers, LimiterKind};

/// Costs in the order of a real host's: what is done under a lock is a third of a write.
fn costs() -> CostTable {
    let text = "name = \"q24\"\nhandoff_per_waiter = \"40ns\"\n[stages]\n\"front.write\" = \"600ns\"\n\
                \"ring.reserve\" = \"150ns\"\n\"copy.sector\" = \"300ns\"\n\"map.update\" = \"150ns\"\n\
                \"drain.unit\" = \"300ns\"\n\"pool.take\" = \"100ns\"\n\"complete.unit\" = \"300ns\"\n";
    CostTable::from_toml(text).expect("a table")
}

/// A wide device whose commands take no time: host code is all that happens.
fn host_only(cores: u32, config: LogConfig) -> Setup {
    let mut setup = qblk(16, 2, cores).untimed().untraced();
    setup.config = LogConfig { over_provisioning_percent: 60, ..config };
    // pblk's one ring is as large as all of QBLK's.
    setup.config.ring_sectors = Some(128 * cores.max(8));
    setup.costs = costs();
    setup
}

/// Sectors per virtual second, and the share of the cores' time that was spent spinning.
fn hammered(b: &Bench) -> (f64, f64) {
    let sum = |b: &Bench| {
        b.run
            .core_busy()
            .iter()
            .fold((0, 0), |(busy, spun), (b, s)| (busy + b.as_ns(), spun + s.as_ns()))
    };
    let (from, before) = (b.run.now(), sum(b));
    let written = b.stats().host_written;
    b.overwrite_on_all(2, 150, 9);
    let after = sum(b);
    let seconds = (b.run.now() - from).as_ns() as f64 / 1e9;
    let busy = (after.0 - before.0) as f64;
    ((b.stats().host_written - written) as f64 / seconds, (after.1 - before.1) as f64 / busy)
}

/// A request completes on the core that submitted it, the one whose ring it drains, however many PUs it
/// goes to: who writes alone serves all of its interrupts, who writes together as many as the others.
/// Where the device has fewer queues, cores share them.
#[test]
fn q24_a_core_completes_what_it_submitted() {
    let served = |completion_cores: u32| {
        let mut setup = qblk(8, 4, 8).untimed();
        setup.config.completion_cores = completion_cores;
        let table = "name = \"q24\"\n[stages]\n\"complete.unit\" = \"1us\"\n";
        setup.costs = CostTable::from_toml(table).expect("a table");
        let b = setup.build();
        let busy = |write: &dyn Fn()| {
            let before = b.run.core_busy();
            write();
            b.sleep(Ns::from_ms(1));
            let after = b.run.core_busy().into_iter().zip(before);
            after.map(|((now, _), (then, _))| (now - then).as_ns()).collect::<Vec<_>>()
        };
        // Units of 4 sectors.
        let alone = busy(&|| b.write_on(5, 0, 64, 1));
        assert!(b.requests_of(5).iter().any(|units| units.len() == 4), "and some are large");
        let write = |core| b.write_on(core, 64 + u64::from(core) * 64, 64, 1);
        let together = busy(&|| (0..8).for_each(write));
        b.settled();
        (alone, together)
    };
    let own = vec![0, 0, 0, 0, 0, 16_000, 0, 0];
    for cores in [0, 8, 100] {
        assert_eq!(served(cores), (own.clone(), vec![16_000; 8]));
    }
    let shared = (vec![0, 16_000, 0, 0, 0, 0, 0, 0], vec![64_000, 64_000, 0, 0, 0, 0, 0, 0]);
    assert_eq!(served(2), shared);
}

/// A drainer that nobody binds does its work where there is room, and leaves its ring's core to the writer.
#[test]
fn q24_a_drainer_that_floats_leaves_its_core() {
    let drained = |drainers: Drainers| {
        let mut setup = qblk(8, 4, 8).untimed();
        setup.config.drainers = drainers;
        let table =
            "name = \"q24\"\n[stages]\n\"front.write\" = \"1us\"\n\"drain.unit\" = \"1us\"\n";
        setup.costs = CostTable::from_toml(table).expect("a table");
        let b = setup.build();
        let before = b.run.core_busy();
        b.write_on(5, 0, 64, 1);
        b.sleep(Ns::from_ms(1));
        let after = b.run.core_busy().into_iter().zip(before);
        let busy: Vec<u64> = after.map(|((now, _), (then, _))| (now - then).as_ns()).collect();
        b.settled();
        (busy[5], busy.iter().sum::<u64>())
    };
    // One request, 16 units of 4 sectors.
    assert_eq!(drained(Drainers::Bound), (17_000, 17_000));
    assert_eq!(drained(Drainers::Floating), (1_000, 17_000));
}

/// Technique 4 saves what a request costs beside its units: four units in one request are submitted and
/// completed for one request's price and four units'.
#[test]
fn q24_a_request_of_many_units_is_paid_once() {
    let mut setup = qblk(2, 4, 2).untimed();
    let text = "name = \"q24\"\n[stages]\n\"ring.own\" = \"1ns\"\n\"drain.request\" = \"10us\"\n\
                \"drain.unit\" = \"1us\"\n\"complete.request\" = \"20us\"\n\"complete.unit\" = \"2us\"\n";
    setup.costs = CostTable::from_toml(text).expect("a table");
    let b = setup.build();
    let before = b.run.core_busy()[1].0;
    // Units of 4 sectors; what comes while the first is built makes larger requests.
    b.write_on(1, 0, 64, 1);
    b.sleep(Ns::from_ms(1));
    let requests = b.requests_of(1);
    let units: usize = requests.iter().map(Vec::len).sum();
    assert!(units == 16 && requests.len() < 16, "{requests:?}");
    let busy = b.run.core_busy()[1].0 - before;
    // And a nanosecond for the way into the ring.
    let pieces = busy.as_ns() % 1000;
    let spent = Ns::from_us((30 * requests.len() + 3 * units) as u64);
    assert_eq!(busy, spent + Ns::from_ns(pieces));
    b.settled();
}

/// Q24: with QBLK's rings, pools and map the share of time spent waiting for locks stays small from 1 to 64
/// threads, one to a core, and throughput grows with them; pblk's one ring and one map lock eat the cores.
#[test]
fn q24_locks_are_not_waited_for_however_many_threads() {
    let mut alone = 0.0;
    for cores in [1, 4, 16, 64] {
        let b = host_only(cores, LogConfig::qblk()).build();
        let (speed, spun) = hammered(&b);
        assert!(spun < 0.06, "{cores} threads: {spun:.3} of the time is spun");
        if cores == 1 {
            alone = speed;
        }
        let grown = speed / alone;
        assert!(grown > 0.5 * f64::from(cores), "{cores} threads: {grown:.1} times one");
        b.settled();
    }
    let pblk =
        host_only(16, LogConfig { limiter: LimiterKind::ChannelStates, ..LogConfig::default() });
    let b = pblk.build();
    let (speed, spun) = hammered(&b);
    assert!(spun > 0.3, "pblk with 16 threads spins {spun:.3} of the time");
    assert!(speed / alone < 8.0, "{:.1} times one", speed / alone);
    b.settled();
}

/// Time to take `sectors` from one core, one sector at a time, on a device with more PUs than one ring can
/// keep busy.
fn one_writer(config: LogConfig) -> Ns {
    let mut setup = qblk(8, 4, 8).untraced();
    setup.config = LogConfig { over_provisioning_percent: 60, ring_sectors: Some(1024), ..config };
    let b = setup.build();
    let from = b.run.now();
    for lba in 0..3000 {
        b.write_on(2, lba, 1, 1);
    }
    let took = b.run.now() - from;
    b.settled();
    took
}

/// Q25: a writer alone has one ring of eight, so it is slower than on pblk's whole buffer (as the paper
/// says); with `borrow` it takes half of what the idle rings have, and is nearly as fast.
#[test]
fn q25_a_writer_alone_is_bounded_by_its_ring_unless_it_borrows() {
    let pblk = one_writer(LogConfig::default());
    let qblk = one_writer(LogConfig::qblk());
    let borrows = one_writer(LogConfig { borrow: true, ..LogConfig::qblk() });
    assert!(qblk.as_ns() > pblk.as_ns() * 5 / 4, "own ring {qblk}, pblk {pblk}");
    assert!(borrows.as_ns() < qblk.as_ns() * 4 / 5, "borrowing {borrows}, own ring {qblk}");
}

/// Q25: what a writer borrows it leaves to the owners in part: half of every other ring stays free, and who
/// works on all cores is not slowed.
#[test]
fn q25_borrowing_leaves_half_to_the_owners() {
    let b = qblk(8, 4, 8).untraced().with(|s| s.config.borrow = true).build();
    let writes: Vec<_> = (0..20).map(|i| b.begin_write_on(0, i * 100, 100, 1)).collect();
    b.sleep(Ns::from_us(1));
    let held: Vec<u64> = b.of_rings("mem");
    assert!(held[0] > 64 && held[1..].iter().all(|n| (1..=64 + 32).contains(n)), "{held:?}");
    let from = b.run.now();
    (1..8).for_each(|core| b.write_on(core, 4000 + u64::from(core) * 40, 32, 1));
    assert_eq!(b.run.now(), from, "the owners have room at once");
    for write in writes {
        b.wait(write).expect("a write");
    }
    b.drained();
    b.settled();
}
