//! Garbage collection of many channels (Q16, Q18, Q19, and Q12 of the case where all are nearly full).
//!
//! Owns: the tests. What a limiter of one channel makes of the whole budget: `log/path/drain/tests.rs`.

use crate::prelude::*;
use crate::qblk::cores::qblk;

/// Q16: several channels collect at once; their limiters' budgets come to no more than the ring, and when
/// none collects any more users have all of it again.
#[test]
fn q16_channels_collect_at_once_and_give_the_budget_back() {
    let b = qblk(4, 1, 4).build();
    b.fill_on_all(1);
    let ring = b.dev.layout().ring_sectors;
    let (least, end) = (Rc::new(Cell::new(ring)), Rc::new(Cell::new(false)));
    let (cx, dev, watched, over) = (b.cx.clone(), b.dev.clone(), least.clone(), end.clone());
    b.cx.spawn(async move {
        while !over.get() {
            let shares = dev.shares();
            // A ring's part is rounded up to a unit.
            assert!(shares.users <= ring && shares.users + shares.gc <= 2 * ring, "{shares:?}");
            watched.set(watched.get().min(shares.users));
            cx.sleep(Ns::from_us(50)).await;
        }
    });
    b.overwrite_on_all(4, 400, 2);
    b.drained();
    end.set(true);
    assert!(least.get() < ring, "users were held back");
    // Reads of victims on different channels overlap.
    let entries = b.trace.entries();
    let gc = |e: &&flashlane_ocssd::wrap::Traced| e.op == Op::Read && e.flags.cause == Cause::Gc;
    let reads: Vec<_> = entries.iter().filter(gc).collect();
    let channel = |e: &flashlane_ocssd::wrap::Traced| b.channel_of(&b.place(e.addrs[0]));
    let channels: BTreeSet<u32> = reads.iter().map(|e| channel(e)).collect();
    assert_eq!(channels.len(), 4, "each channel collects");
    let overlaps = reads
        .windows(2)
        .filter(|w| channel(w[0]) != channel(w[1]) && Some(w[1].submitted) < w[0].finished);
    assert!(overlaps.count() > 5, "channels collect at the same time");
    // What is moved from one channel goes to any.
    let moved = entries.iter().filter(|e| is_data(e) && e.causes.contains(&Cause::Gc));
    let channels: BTreeSet<u32> = moved.map(channel).collect();
    assert_eq!(channels.len(), 4, "{channels:?}");
    // Without users, collection gets each channel above its level.
    b.discard(0, b.capacity() * 3 / 4);
    b.sleep(Ns::from_secs(20));
    let shares = b.dev.shares();
    assert_eq!((shares.users, shares.collect), (ring, false), "{}", b.attribute("rate_limiter"));
    b.settled();
}

/// Q18: lines without anything valid are freed without a move, of every channel and as often as they come;
/// afterwards each channel still collects those that hold something.
#[test]
fn q18_free_rides_do_not_keep_a_channel_from_collecting() {
    let b = qblk(3, 1, 3).build();
    for round in 1..6 {
        b.fill_on_all(2 * round);
        b.drained();
        let rides = b.stats().gc_free_rides;
        b.discard(0, b.capacity());
        b.write_on(0, 0, 64, 2 * round + 1); // lines move, so GC looks
        b.drained();
        assert!(b.stats().gc_free_rides >= rides + 9, "round {round}");
    }
    b.fill_on_all(90);
    let before = b.trace.entries().len();
    b.overwrite_on_all(3, 400, 91);
    b.drained();
    let entries = b.trace.entries();
    let gc = entries[before..].iter().filter(|e| e.op == Op::Read && e.flags.cause == Cause::Gc);
    let channels: BTreeSet<u32> = gc.map(|e| b.channel_of(&b.place(e.addrs[0]))).collect();
    assert_eq!(channels.len(), 3, "{channels:?}");
    b.settled();
}

/// Q19, Q12: rings full of users' sectors on every core while every channel must collect, batches of 64
/// into rings of 128: everybody gets on, users wait for room, not for ever.
#[test]
fn q19_collection_into_full_rings_never_deadlocks() {
    for op in [25, 60] {
        let b = qblk(3, 2, 4).op(op).untraced().build();
        b.fill_on_all(1);
        b.overwrite_on_all(40, 100, 2);
        b.drained();
        let s = b.stats();
        assert!(s.ring_full > Ns::ZERO && s.gc_moved > 1000, "{} moved", s.gc_moved);
        b.settled();
    }
}
