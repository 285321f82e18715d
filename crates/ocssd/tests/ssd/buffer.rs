//! The write buffer: when a write is acknowledged, what is read from it, what a flush, a failed program,
//! a full buffer and a power cut make of it (D9, D8).

use crate::common::*;
use flashlane_ocssd::BufferCount;

/// Transfer and program of one unit of `tiny`: 4 sectors at 400 MB/s, then 500 us.
const PROGRAM: Ns = Ns::from_ns(40_960 + 500_000);
const SENSE: Ns = Ns::from_ns(50_000 + 40_960);

/// `tiny` with a buffer of some units, where everything below the pointer can be read.
fn buffered(units: u64, change: impl FnOnce(&mut DeviceSpec)) -> DeviceSpec {
    tiny(|s| {
        s.geometry.mw_cunits = 0;
        s.limits.write_buffer = Some(Bytes::new(units * 4 * 4096));
        change(s);
    })
}

fn bench(spec: &DeviceSpec, faults: &str) -> (Bench, Arc<Ssd>) {
    Bench::of(spec, failing(faults))
}

fn count(ssd: &Ssd) -> BufferCount {
    ssd.counters().buffer.expect("it has a buffer")
}

fn flush(b: &Bench) -> Completion {
    b.plain(Op::Flush, Vec::new(), Flags::default())
}

/// Submits one-unit writes at once; how long after that each was acknowledged.
fn ends(b: &Bench, units: &[(u32, u32, u32)]) -> Vec<Ns> {
    let at: Vec<_> = units.iter().map(|(pu, c, s)| b.at(&[(*pu, *c, *s, 4)])).collect();
    b.run(|cx, dev| async move {
        let (from, filled) = (cx.now(), Filled::new(4, 4096, 5));
        let submit = |at| dev.submit(&cx, filled.request(at, false));
        let tickets: Vec<_> = at.iter().map(|at| submit(at)).collect();
        let mut ends = Vec::new();
        for ticket in tickets {
            let done = dev.wait(&cx, ticket).await;
            assert_eq!(done.failed, 0);
            let b = done.breakdown;
            let parts = b.link + b.command + b.die_program + b.channel + b.transfer + b.array;
            assert_eq!(parts, done.finished - from, "{b:?}");
            ends.push(parts);
        }
        ends
    })
}

/// A write is over when its payload has arrived; a read of it takes no time of a die; a flush waits for the
/// program; afterwards a read senses.
#[test]
fn a_write_is_acknowledged_from_the_buffer() {
    let (b, ssd) = bench(
        &buffered(4, |s| {
            s.timing.command = Ns::from_us(3);
            s.timing.controller_write = Some(Bytes::new(1_638_400_000)); // 10 us for a unit
        }),
        "",
    );
    assert_eq!(ends(&b, &[(0, 0, 0)]), [Ns::from_us(13)]);
    assert_eq!(b.info(0, 0).write_pointer, 4);
    let got = b.read(&[(0, 0, 0, 4)]);
    assert!(got.holds(0, 5) && got.holds(3, 5) && got.done.finished == Ns::from_us(16));
    assert_eq!(flush(&b).finished, Ns::from_us(13) + PROGRAM);
    let before = b.now();
    assert_eq!(b.read(&[(0, 0, 0, 4)]).done.finished, before + Ns::from_us(3) + SENSE);
    assert_eq!(flush(&b).finished, b.now(), "nothing to flush");
    assert_eq!(count(&ssd), BufferCount { accepted: 4, hits: 4, waits: 0, kept: 0 });
    assert_eq!(ssd.counters().programmed_total(), 4);
}

/// Without a buffer nothing of this happens.
#[test]
fn without_a_buffer_a_write_ends_with_its_program() {
    let (b, ssd) = bench(&tiny(|_| {}), "");
    assert_eq!(ends(&b, &[(0, 0, 0)]), [PROGRAM]);
    assert!(ssd.counters().buffer.is_none() && !ssd.traits().buffered);
    assert_eq!(flush(&b).finished, PROGRAM);
}

/// A full buffer makes writes wait for room, first come first served; a flush ends with the last program
/// of what came before it, and not with what came behind it.
#[test]
fn a_full_buffer_makes_writes_wait() {
    for queue in [DieQueue::Fifo, DieQueue::ReadFirst, DieQueue::Suspend] {
        let (b, ssd) = bench(&buffered(2, |s| s.timing.queue = queue), "");
        let writes = [(0, 0, 0), (0, 0, 4), (0, 0, 8), (0, 0, 12), (0, 0, 16)];
        let [second, third] = [PROGRAM.times(2), PROGRAM.times(3)];
        assert_eq!(ends(&b, &writes), [Ns::ZERO, Ns::ZERO, PROGRAM, second, third], "{queue:?}");
        assert_eq!(flush(&b).finished, PROGRAM.times(5));
        assert_eq!(count(&ssd), BufferCount { accepted: 20, waits: 3, ..BufferCount::default() });
        // Of a vector over two channels that does not fit, the whole vector waits.
        let at = b.at(&[(0, 1, 0, 4), (2, 1, 0, 8)]);
        let (now, done) = (b.now(), b.write_to(at, 1));
        assert!(done.finished > now + PROGRAM.times(1) - Ns::from_us(41), "{:?}", done.finished);
        assert!(done.finished <= now + PROGRAM.times(2));
    }
    let (b, _) = bench(&buffered(8, |_| {}), "");
    let (first, behind) = (b.at(&[(0, 0, 0, 4)]), b.at(&[(0, 0, 4, 4)]));
    b.run(|cx, dev| async move {
        write(&cx, &*dev, &first, 1).await;
        let request = || Request::plain(Op::Flush, &[]);
        let flush = dev.submit(&cx, request());
        write(&cx, &*dev, &behind, 1).await;
        assert_eq!(dev.wait(&cx, flush).await.finished, PROGRAM);
        assert_eq!(dev.io(&cx, request()).await.finished, PROGRAM.times(2));
    });
}

/// A write for another die does not wait for the die that has filled the buffer.
#[test]
fn what_finds_no_room_goes_past_the_buffer() {
    let (b, _) = bench(&buffered(1, |_| {}), "");
    let done = ends(&b, &[(0, 0, 0), (0, 0, 4), (0, 0, 8), (2, 0, 0)]);
    assert_eq!(done, [Ns::ZERO, PROGRAM, PROGRAM.times(2), PROGRAM]);
}

/// FUA: over when it is programmed, unless capacitors make what was accepted durable.
#[test]
fn fua_goes_through() {
    for capacitors in [false, true] {
        let (b, ssd) = bench(&buffered(4, |s| s.limits.capacitors = capacitors), "");
        assert_eq!(ssd.traits().buffered, !capacitors);
        let at = b.at(&[(0, 0, 0, 4)]);
        let done = b.run(|cx, dev| async move {
            let filled = Filled::new(4, 4096, 5);
            dev.io(&cx, filled.request(&at, false).with(Flags::DURABLE)).await
        });
        assert_eq!(done.finished, if capacitors { Ns::ZERO } else { PROGRAM });
    }
}

/// What may be read is a matter of positions: what waits for its pair is early in the buffer, too.
#[test]
fn the_buffer_does_not_change_what_may_be_read() {
    let (b, ssd) = bench(&buffered(8, |s| s.geometry.mw_cunits = 8), "");
    b.write(&[(0, 0, 0, 12)], 1);
    let got = b.read(&[(0, 0, 0, 12)]);
    assert!(got.holds(3, 1) && got.empty(4) && got.empty(11));
    assert_eq!((count(&ssd).hits, ssd.counters().early_reads), (4, 8));
}

/// Commands one after the other give the same with and without a buffer, in no more time.
#[test]
fn a_buffer_changes_only_times() {
    for seed in 0..40 {
        let mut rng = Rng::stream(seed, "buffer.same", 0);
        let units = 1 + rng.below(6);
        let change = |s: &mut DeviceSpec| {
            s.geometry.mw_cunits = 8 * (seed % 2) as u32;
            s.limits.reset_free = false;
        };
        let (with, _) = bench(&buffered(units, change), "");
        let (without, _) = bench(&tiny(change), "");
        for step in 0..300u64 {
            let (pu, chunk) = (rng.below(4) as u32, rng.below(2) as u32);
            let wp = without.info(pu, chunk).write_pointer;
            let fill = step as u8;
            match rng.below(8) {
                0 => assert_eq!(with.reset(pu, chunk), without.reset(pu, chunk)),
                1..=4 => {
                    let n = 4 * (1 + rng.below(4) as u32);
                    let run = [(pu, chunk, wp.min(60), n.min(64 - wp.min(60)))];
                    let (a, b) = (with.write(&run, fill), without.write(&run, fill));
                    assert_eq!((a.failed, a.status), (b.failed, b.status));
                }
                _ => {
                    let run = [(pu, chunk, rng.below(48) as u32, 16), (pu ^ 2, chunk, 0, 8)];
                    let (a, b) = (with.read(&run), without.read(&run));
                    assert_eq!((a.done.failed, a.data, a.oob), (b.done.failed, b.data, b.oob));
                }
            }
            assert_eq!(with.info(pu, chunk), without.info(pu, chunk));
        }
        assert!(flush(&with).finished <= without.now(), "seed {seed}");
    }
}

/// What a cut at `at` leaves of twelve units on three chunks, of which four were flushed: per chunk, the
/// pointer and the good units in front of it.
fn cut_at(spec: &DeviceSpec, at: Ns, seed: u64) -> Vec<(u32, u32)> {
    let (b, ssd) = Bench::of(spec, SsdOptions { seed, ..memory() });
    for pu in [0, 2] {
        assert_eq!(b.write(&[(pu, 0, 0, 8)], 1).failed, 0);
    }
    flush(&b);
    let (device, units) = (ssd.clone(), [(0, 0, 8), (0, 1, 0), (2, 0, 8), (0, 0, 12), (0, 1, 4)]);
    let units: Vec<_> = units.iter().map(|(pu, c, s)| b.at(&[(*pu, *c, *s, 8)])).collect();
    b.run(|cx, dev| async move {
        let from = cx.now();
        let filled = Filled::new(8, 4096, 1);
        for at in &units[..3] {
            let _ = dev.submit(&cx, filled.request(at, false));
        }
        cx.sleep_until(from + at).await;
        device.power_cut(cx.now(), PowerOn::ClockRestarts);
    });
    let b = Bench::new(ssd.clone());
    let look = |(pu, chunk): (u32, u32)| {
        let info = b.info(pu, chunk);
        let is = match info.write_pointer {
            0 => ChunkState::Free,
            64 => ChunkState::Closed,
            _ => ChunkState::Open,
        };
        assert_eq!(info.state, is);
        let got = b.read(&[(pu, chunk, 0, info.write_pointer.max(1))]);
        let good = (0..info.write_pointer as usize).take_while(|i| got.holds(*i, 1)).count();
        for i in good..info.write_pointer as usize {
            assert_eq!(got.done.status(i), Status::Uncorrectable, "neither good nor lost");
        }
        // And it goes on from there.
        b.write_up_to(pu, chunk, 64, 2);
        (info.write_pointer, good as u32)
    };
    let left = [(0, 0), (2, 0), (0, 1)].map(look).to_vec();
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
    left
}

/// A cut at every phase of every program: what was flushed is there, what was acknowledged is there as
/// far as it was programmed, the pointer says how far; on capacitors all of it is there.
#[test]
fn a_cut_takes_what_was_only_buffered() {
    for queue in [DieQueue::Fifo, DieQueue::ReadFirst, DieQueue::Suspend] {
        let mut seen = std::collections::BTreeSet::new();
        for at in (0..3_000).step_by(19) {
            let at = Ns::from_us(at);
            let left = cut_at(&buffered(8, |s| s.timing.queue = queue), at, 1);
            for (pointer, good) in &left[..2] {
                assert!((8..=16).contains(good) && pointer - good <= 4, "{at:?}: {left:?}");
            }
            assert!(left[2].0 - left[2].1 <= 4);
            seen.insert(left);
            let safe = buffered(8, |s| {
                s.timing.queue = queue;
                s.limits.capacitors = true;
            });
            assert_eq!(cut_at(&safe, at, 1), [(16, 16), (16, 16), (8, 8)]);
        }
        assert!(seen.len() >= 7, "the cut hits several phases: {seen:?}");
        assert!(seen.contains(&vec![(16, 16), (16, 16), (8, 8)]), "at the end nothing is lost");
    }
}

const EARLY: &str = "[[fault]]\nkind = \"early_close\"\nat = \"pu 0 chunk 0 sector 4\"\ntimes = 1";
const SOFT: &str =
    "[[fault]]\nkind = \"write_next_unit\"\nat = \"pu 0 chunk 0 sector 4\"\ntimes = 1";

/// A program that fails hard behind its acknowledgement: the write was good and its data can be read; the
/// chunk is closed and takes no more, which is nobody's fault; a notice says what to move, when the
/// program has failed and not before; the reset gives the room back.
#[test]
fn a_failure_behind_the_acknowledgement_is_a_notice() {
    for capacitors in [false, true] {
        let (b, ssd) = bench(&buffered(3, |s| s.limits.capacitors = capacitors), EARLY);
        ssd.set_notices(true);
        assert_eq!(b.write(&[(0, 0, 0, 8)], 1).failed, 0);
        assert!(ssd.take_notices().is_empty());
        let info = b.info(0, 0);
        assert_eq!((info.state, info.write_pointer), (ChunkState::Closed, 8));
        let refused = b.write(&[(0, 0, 8, 4)], 1);
        assert_eq!((refused.failed, refused.status(0)), (0xf, Status::WriteFault));
        assert_eq!(flush(&b).failed, 0);
        let notices = ssd.take_notices();
        let at = Location { pu: 0, chunk: 0, sector: 4 };
        assert_eq!(notices.len(), 1);
        let said = (notices[0].event, notices[0].at, notices[0].sectors, notices[0].time);
        assert_eq!(said, (Event::ProgramFailed, at, 4, PROGRAM.times(2)));
        // Two cuts change nothing of it.
        for _ in 0..2 {
            ssd.power_cut(b.now(), PowerOn::ClockGoesOn);
            let got = b.read(&[(0, 0, 0, 8)]);
            assert!((0..8).all(|i| got.holds(i, 1)));
            assert_eq!(b.info(0, 0), info);
        }
        // Room for two units is left.
        let rest = ends(&b, &[(2, 0, 0), (2, 0, 4), (2, 0, 8)]);
        assert_eq!(rest, [Ns::ZERO, Ns::ZERO, PROGRAM]);
        flush(&b);
        assert_eq!(b.reset(0, 0), Status::Ok);
        assert!(b.read(&[(0, 0, 4, 1)]).empty(0));
        let rest = ends(&b, &[(2, 0, 12), (2, 0, 16), (2, 0, 20)]);
        assert_eq!(rest, [Ns::ZERO; 3]);
        let c = ssd.counters();
        assert_eq!((c.program_failures, c.violations, c.programmed_total()), (4, 0, 8 + 24));
    }
}

/// A soft failure: the chunk goes on behind it, and its data is served all the same.
#[test]
fn a_soft_failure_goes_on() {
    let (b, ssd) = bench(&buffered(4, |_| {}), SOFT);
    b.write_up_to(0, 0, 64, 3);
    flush(&b);
    let got = b.read(&[(0, 0, 0, 64)]);
    assert!((0..64).all(|i| got.holds(i, 3)));
    assert_eq!((count(&ssd).kept, ssd.counters().violations), (4, 0));
    assert_eq!(ssd.counters().programmed_total(), 64, "the pointer moved over all of them");
}

/// Where there is no room to keep it, the command itself says that its program failed.
#[test]
fn without_room_the_command_reports_the_failure() {
    let (b, ssd) = bench(&buffered(1, |_| {}), EARLY);
    let at: Vec<_> = [0, 4].iter().map(|s| b.at(&[(0, 0, *s, 4)])).collect();
    let done = b.run(|cx, dev| async move {
        let filled = Filled::new(4, 4096, 5);
        let first = dev.submit(&cx, filled.request(&at[0], false));
        let second = dev.submit(&cx, filled.request(&at[1], false));
        assert_eq!(dev.wait(&cx, first).await.failed, 0);
        dev.wait(&cx, second).await
    });
    assert_eq!((done.status(0), done.finished), (Status::ChunkEarlyClose, PROGRAM.times(2)));
    assert_eq!((b.info(0, 0).write_pointer, count(&ssd).kept), (4, 0));
}

/// A cut before the program has failed: it never was, or is torn. A cut before the erase of what is kept
/// brings it back.
#[test]
fn what_is_kept_lives_and_dies_with_its_chunk() {
    for (at, pointer, good) in [(20, 4, 4), (100, 8, 4), (560, 8, 8)] {
        let (b, ssd) = bench(&buffered(4, |_| {}), EARLY);
        b.write(&[(0, 0, 0, 4)], 1);
        flush(&b);
        let (device, unit) = (ssd.clone(), b.at(&[(0, 0, 4, 4)]));
        b.run(|cx, dev| async move {
            write(&cx, &*dev, &unit, 1).await;
            cx.sleep(Ns::from_us(at)).await;
            device.power_cut(cx.now(), PowerOn::ClockGoesOn);
        });
        let got = b.read(&[(0, 0, 0, 8)]);
        let read = (0..8).take_while(|i| got.holds(*i, 1)).count();
        assert_eq!((b.info(0, 0).write_pointer, read), (pointer, good), "cut at {at}");
    }
    // An erase that waits behind a read has not begun.
    let (b, ssd) = bench(&buffered(4, |_| {}), EARLY);
    b.write(&[(0, 0, 0, 8)], 1);
    b.write(&[(0, 1, 0, 4)], 1);
    flush(&b);
    let (device, other, chunk) = (ssd.clone(), b.at(&[(0, 1, 0, 4)]), b.at(&[(0, 0, 0, 1)]));
    b.run(|cx, dev| async move {
        let reading = read(&cx, &*dev, &other, Flags::default());
        let mut reading = std::pin::pin!(reading);
        std::future::poll_fn(|context| {
            let _ = reading.as_mut().poll(context);
            std::task::Poll::Ready(())
        })
        .await;
        let _ = dev.submit(&cx, Request::plain(Op::Reset, &chunk));
        device.power_cut(cx.now(), PowerOn::ClockGoesOn);
        reading.await;
    });
    let got = b.read(&[(0, 0, 0, 8)]);
    assert!((0..8).all(|i| got.holds(i, 1)), "{:?}", b.info(0, 0));
}

/// A reset of a chunk whose last sectors are still in the buffer: they are programmed, then erased; what is
/// written there next is what is read.
#[test]
fn a_reset_of_buffered_sectors() {
    let (b, ssd) = bench(&buffered(32, |_| {}), "");
    b.write(&[(0, 0, 0, 64)], 1);
    let now = b.now();
    assert_eq!(b.reset(0, 0), Status::Ok);
    assert_eq!(b.now() - now, PROGRAM.times(16) + Ns::from_ms(3));
    assert!(b.read(&[(0, 0, 0, 1)]).empty(0));
    b.write(&[(0, 0, 0, 64)], 2);
    let at = b.at(&[(0, 0, 0, 1)]);
    let (device, addrs) = (ssd.clone(), b.at(&[(0, 0, 0, 8)]));
    b.run(|cx, dev| async move {
        let reset = dev.submit(&cx, Request::plain(Op::Reset, &at));
        write(&cx, &*dev, &addrs, 3).await;
        let got = read(&cx, &*dev, &addrs, Flags::default()).await;
        assert!(got.holds(0, 3) && got.holds(7, 3) && got.done.finished == cx.now());
        device.power_cut(cx.now(), PowerOn::ClockGoesOn);
        dev.wait(&cx, reset).await;
    });
    // The cut took the writes, the reset, and what was only buffered before it.
    assert_eq!((b.info(0, 0).write_pointer, b.info(0, 0).state), (0, ChunkState::Free));
    assert_eq!(b.info(0, 0).erases, 1);
    assert_eq!(ssd.counters().violations, 0);
}

/// What stood in the buffer when its chunk was reset is not what is written there next: a read of what has
/// found no room in the buffer waits for the medium.
#[test]
fn a_read_behind_a_reset_is_not_answered_from_before_it() {
    let (b, ssd) = bench(&buffered(2, |_| {}), "");
    let (low, high) = (b.at(&[(0, 0, 0, 4)]), b.at(&[(0, 0, 4, 4)]));
    let (both, one) = (b.at(&[(0, 0, 0, 8)]), b.at(&[(0, 0, 4, 1)]));
    let (got, began) = b.run(|cx, dev| async move {
        write(&cx, &*dev, &low, 1).await;
        write(&cx, &*dev, &high, 1).await;
        let (began, reset) = (cx.now(), dev.submit(&cx, Request::plain(Op::Reset, &low[..1])));
        let filled = Filled::new(8, 4096, 2);
        let again = dev.submit(&cx, filled.request(&both, false));
        let got = read(&cx, &*dev, &one, Flags::default()).await;
        dev.wait(&cx, reset).await;
        dev.wait(&cx, again).await;
        (got, began)
    });
    let hits = count(&ssd).hits;
    assert!(got.holds(0, 2) && hits == 0, "{hits} read from the buffer");
    assert!(got.done.finished > began + PROGRAM, "{:?}", got.done.finished);
}

/// On an image: a flush waits for the medium and for the host; after it a killed process has lost nothing;
/// what the device keeps is there after a restart, and takes room.
#[test]
fn an_image_has_what_was_flushed_and_kept() {
    for closed in [false, true] {
        let file = image_of(&buffered(2, |_| {}));
        let faults = FaultPlan::from_toml(EARLY).unwrap();
        let options = OpenImage { faults, ..OpenImage::default() };
        let ssd = Ssd::open_on(file.clone(), &options).unwrap();
        assert!(ssd.traits().volatile && ssd.traits().buffered);
        let b = Bench::new(ssd.clone());
        b.write(&[(0, 0, 0, 8)], 1);
        assert_eq!(flush(&b).finished, PROGRAM.times(2));
        if closed {
            ssd.close().unwrap();
        }
        drop((b, ssd));
        let (b, _) = Bench::on(file);
        let got = b.read(&[(0, 0, 0, 8)]);
        assert!((0..8).all(|i| got.holds(i, 1)));
        assert_eq!(b.info(0, 0).state, ChunkState::Closed);
        assert_eq!(ends(&b, &[(2, 0, 0), (2, 0, 4)]), [Ns::ZERO, PROGRAM], "one unit of room");
    }
}

/// What nobody can read any more takes no room: the host has marked its chunk bad, or its die is dead. A mark
/// that is taken back brings back what the medium has.
#[test]
fn what_is_given_up_takes_no_room() {
    let dies = format!("{EARLY}\n[[fault]]\nkind = \"die_fail\"\nat = \"pu 0\"\nafter = \"1s\"\n");
    for marked in [true, false] {
        let (b, ssd) = bench(&buffered(2, |_| {}), if marked { EARLY } else { &dies });
        b.write(&[(0, 0, 0, 8)], 1);
        flush(&b);
        assert_eq!(ends(&b, &[(2, 0, 0), (2, 0, 4)]), [Ns::ZERO, PROGRAM], "one unit of room");
        flush(&b);
        if marked {
            assert!(ssd.set_bad_blocks(&b.at(&[(0, 0, 0, 1)]), GROWN_BAD));
        } else {
            b.run(|cx, _| async move { cx.sleep(Ns::from_secs(1)).await });
            assert_eq!(b.read(&[(0, 1, 0, 1)]).done.failed, 0, "nothing is there to be lost");
            assert_eq!(b.write(&[(0, 1, 0, 4)], 1).status(0), Status::WriteFault);
        }
        assert_eq!(b.info(0, 0).state, ChunkState::Offline);
        assert_eq!(ends(&b, &[(2, 0, 8), (2, 0, 12)]), [Ns::ZERO; 2]);
        flush(&b);
        // And does not come back.
        ssd.power_cut(b.now(), PowerOn::ClockGoesOn);
        assert_eq!(ends(&b, &[(2, 0, 16), (2, 0, 20)]), [Ns::ZERO; 2]);
        if marked {
            assert!(ssd.set_bad_blocks(&b.at(&[(0, 0, 0, 1)]), 0));
            let got = b.read(&[(0, 0, 0, 8)]);
            assert!((0..4).all(|i| got.holds(i, 1)));
            assert!((4..8).all(|i| got.done.status(i) == Status::Uncorrectable));
        }
    }
}

/// Sizes that make no sense are refused with what would do.
#[test]
fn impossible_sizes_are_refused() {
    for (size, says) in [(4096, "ws_opt"), (1 << 40, "64 GiB")] {
        let spec = tiny(|s| s.limits.write_buffer = Some(Bytes::new(size)));
        let said = spec.check().unwrap_err().to_string();
        assert!(said.contains("limits.write_buffer") && said.contains(says), "{said}");
    }
    let spec = buffered(4, |_| {});
    let text = toml::to_string(&spec).unwrap();
    assert_eq!(DeviceSpec::from_toml(&text).unwrap().limits.write_buffer, spec.limits.write_buffer);
}

/// Who settles a device with a buffer waits for the programs; where all is on the medium, for nothing.
#[test]
fn settling_waits_for_what_is_buffered() {
    let (b, _) = bench(&buffered(4, |_| {}), "");
    assert_eq!(b.write(&[(0, 0, 0, 4)], 1).failed, 0);
    for _ in 0..2 {
        assert!(b.run(|cx, dev| async move { dev.settle(&cx).await }));
        assert_eq!(b.now(), PROGRAM);
    }
}
