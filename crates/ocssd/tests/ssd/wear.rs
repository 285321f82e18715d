//! Bit errors, wear and dead dies (D7): what a layer above gets to see.

use crate::common::*;

fn ecc() -> EccSpec {
    EccSpec {
        codeword_bytes: 1024,
        correctable_bits: 40,
        high_bits: 20,
        rber_fresh: 0,
        rber_worn: 1_000_000_000,
        rber_per_day: 0,
        rber_per_1000_reads: 0,
        retries: 3,
        retry_gain: 2,
        program_fail_ppm: 0,
        erase_fail_ppm: 0,
    }
}

fn bench(ecc: EccSpec, store: StoreKind) -> (Bench, Arc<Ssd>) {
    let spec = tiny(|s| {
        s.ecc = Some(ecc);
        s.cells.rated_erases = 100;
        s.geometry.mw_cunits = 0;
    });
    let options = SsdOptions { store, ..SsdOptions::default() };
    Bench::of(&spec, options)
}

fn wear_out(b: &Bench, erases: u32) {
    for _ in 0..erases {
        b.reset(0, 0);
    }
    b.write_up_to(0, 0, 64, 1);
}

/// A fresh device reads clean; a worn one corrects, then retries, then fails with flipped bits.
#[test]
fn wear_shows_in_reads() {
    for store in [StoreKind::Memory, StoreKind::Stamps] {
        let (b, ssd) = bench(ecc(), store);
        wear_out(&b, 0);
        assert_eq!(b.read(&[(0, 0, 0, 64)]).done.failed, 0);
        assert_eq!(ssd.counters().corrected_bits, 0);
        // 10^-3 at 100 erases: 33 errors per sector, 8 per codeword.
        b.reset(0, 0);
        wear_out(&b, 99);
        let got = b.read(&[(0, 0, 0, 64)]);
        assert!((0..64).all(|i| got.done.status(i).is_ok() && got.holds(i, 1)));
        let corrected = ssd.counters().corrected_bits;
        assert!((1500..2700).contains(&corrected), "{corrected}");
        // Four times the erases, sixteen times the errors: 131 per codeword.
        b.reset(0, 0);
        wear_out(&b, 300);
        let before = b.now();
        let got = b.read(&[(0, 0, 0, 4)]);
        assert!(got.done.breakdown.retry > Ns::ZERO, "{:?}", got.done);
        assert!(b.now() - before > Ns::from_us(100));
        assert!((0..4).all(|i| got.done.status(i) == Status::HighEcc && got.holds(i, 1)));
        b.reset(0, 0);
        wear_out(&b, 600);
        let got = b.read(&[(0, 0, 0, 4)]);
        assert!((0..4).all(|i| got.done.status(i) == Status::Uncorrectable));
        assert!((0..4).all(|i| !got.holds(i, 1)), "the bits are really wrong");
        let c = ssd.counters();
        assert!(c.retries > 0 && c.uncorrectable == 4 && c.high_ecc == 4 && c.violations == 0);
    }
}

/// A chunk is worn by what the mode is rated for whose data each erase took out: 30 of 100 in the native mode, and
/// one of 3000 in SLC mode.
#[test]
fn the_wear_index_counts_by_the_rating_of_the_cell_mode() {
    let index = |rated_slc: u32| {
        let spec = tiny(|s| {
            s.cells.rated_erases = 100;
            s.cells.slc.as_mut().unwrap().rated_erases = rated_slc;
        });
        let b = Bench::new(ssd(&spec, memory()));
        (0..29).for_each(|_| assert_eq!(b.reset(0, 0), Status::Ok));
        let slc = Flags { cell: CellMode::Slc, ..Flags::default() };
        b.plain(Op::Reset, b.at(&[(0, 0, 0, 1)]), slc);
        let in_slc = b.info(0, 0);
        assert_eq!((in_slc.erases, in_slc.cell), (30, CellMode::Slc));
        b.reset(0, 0);
        (in_slc.wear_index, b.info(0, 0).wear_index)
    };
    assert_eq!(index(3000), (76, 76), "30 of 100, then one of 3000 more, of 255");
    assert_eq!(index(0), (76, 79), "without a rating of its own: the native one");
}

#[test]
fn limited_retry_fails_fast() {
    let (b, _) = bench(ecc(), StoreKind::Stamps);
    wear_out(&b, 400);
    let at = b.at(&[(0, 0, 0, 4)]);
    let flags = Flags { limited_retry: true, ..Flags::default() };
    let got = b.run(|cx, dev| async move { read(&cx, &*dev, &at, flags).await });
    assert_eq!(got.done.status(0), Status::Uncorrectable);
    assert_eq!(got.done.breakdown.retry, Ns::ZERO);
}

/// Age and reads of the chunk count, too; an erase makes both good.
#[test]
fn retention_and_read_disturb() {
    let (b, ssd) =
        bench(EccSpec { rber_worn: 0, rber_per_day: 100_000_000, ..ecc() }, StoreKind::Stamps);
    wear_out(&b, 0);
    b.read(&[(0, 0, 0, 64)]);
    assert_eq!(ssd.counters().corrected_bits, 0);
    b.run(|cx, _| async move { cx.sleep(Ns::from_secs(86_400 * 5)).await });
    b.read(&[(0, 0, 0, 64)]);
    let aged = ssd.counters().corrected_bits;
    assert!((700..1400).contains(&aged), "5 x 10^-4 x 64 sectors: {aged}");
    b.reset(0, 0);
    b.write_up_to(0, 0, 64, 1);
    b.read(&[(0, 0, 0, 64)]);
    assert_eq!(ssd.counters().corrected_bits, aged);

    let disturbed = EccSpec { rber_worn: 0, rber_per_1000_reads: 100_000_000, ..ecc() };
    let (b, ssd) = bench(disturbed, StoreKind::Stamps);
    wear_out(&b, 0);
    for _ in 0..100 {
        b.read(&[(0, 0, 0, 64)]);
    }
    assert!(ssd.counters().corrected_bits > 1000);
}

/// Programs and erases fail beyond the rated erases; the chunk closes or goes offline, and a layer
/// that reacts breaks no rule.
#[test]
fn worn_chunks_fail() {
    let (b, ssd) = bench(
        EccSpec { rber_worn: 0, program_fail_ppm: 200_000, erase_fail_ppm: 5_000, ..ecc() },
        StoreKind::Stamps,
    );
    for _ in 0..99 {
        assert_eq!(b.reset(0, 0), Status::Ok);
    }
    let mut closed = 0;
    while b.reset(0, 0) == Status::Ok {
        let done = b.write(&[(0, 0, 0, 64)], 1);
        closed += u32::from(done.failed != 0);
    }
    assert!(closed > 3, "{closed}");
    let c = ssd.counters();
    assert_eq!((c.erase_failures, c.violations), (1, 0));
    assert_eq!(b.info(0, 0).state, ChunkState::Offline);
    assert_eq!(b.info(0, 0).wear_index, 255);
}

/// A die stops: every command on it completes with an error, others go on; the report says so.
#[test]
fn a_dead_die_answers_with_errors() {
    let plan = "[[fault]]\nkind = \"die_fail\"\nat = \"pu 1\"\nafter = \"100ms\"";
    let (b, ssd) = Bench::of(&tiny(|s| s.geometry.mw_cunits = 0), failing(plan));
    b.write_up_to(1, 0, 64, 1);
    b.write_up_to(0, 0, 64, 1);
    assert!(b.now() < Ns::from_ms(100));
    b.run(|cx, _| async move { cx.sleep_until(Ns::from_ms(100)).await });
    let done = b.write(&[(0, 1, 0, 4), (1, 1, 0, 4)], 2);
    assert_eq!((done.failed, done.status(4)), (0xf0, Status::WriteFault));
    let got = b.read(&[(1, 0, 0, 1), (0, 0, 0, 1)]);
    assert_eq!(got.done.status(0), Status::Uncorrectable);
    assert!(got.holds(1, 1));
    assert_eq!(b.reset(1, 0), Status::OfflineChunk);
    assert_eq!(b.reset(0, 0), Status::Ok);
    assert!(ssd.chunk_report(1, 0, 16).iter().all(|c| c.state == ChunkState::Offline));
    assert_eq!(ssd.counters().violations, 0);
}

/// A dead die takes no erase, and judges none: a layer whose program it did not take can't know
/// whether the chunk is free, open or closed.
#[test]
fn an_erase_on_a_dead_die_breaks_no_rule() {
    let plan = "[[fault]]\nkind = \"die_fail\"\nat = \"pu 1\"\nafter = \"100ms\"";
    let strict = |s: &mut DeviceSpec| {
        s.geometry.mw_cunits = 0;
        (s.limits.reset_free, s.limits.reset_open) = (false, false);
    };
    let (b, ssd) = Bench::of(&tiny(strict), failing(plan));
    assert_eq!(b.write(&[(1, 1, 0, 4)], 1).failed, 0);
    b.write_up_to(1, 2, 64, 1);
    assert!(b.now() < Ns::from_ms(100));
    b.run(|cx, _| async move { cx.sleep_until(Ns::from_ms(100)).await });
    assert_eq!(b.write(&[(1, 3, 0, 4)], 2).status(0), Status::WriteFault, "it is dead");
    // A free chunk, an open one, a closed one, and the one that the dead die did not take.
    for chunk in 0..4 {
        assert_eq!(b.reset(1, chunk), Status::OfflineChunk, "chunk {chunk}");
    }
    assert_eq!(ssd.counters().violations, 0);
}

/// A silent flip: wrong content, status good. This is what record checksums are for.
#[test]
fn a_bit_flip_is_silent() {
    let plan = "[[fault]]\nkind = \"bit_flip\"\nat = \"sector 3\"";
    let (b, _) = Bench::of(&tiny(|s| s.geometry.mw_cunits = 0), failing(plan));
    b.write_up_to(0, 0, 4, 1);
    let got = b.read(&[(0, 0, 0, 4)]);
    assert_eq!(got.done.failed, 0);
    assert!(got.holds(2, 1) && !got.holds(3, 1));
    assert!(b.read(&[(0, 0, 3, 1)]).holds(0, 1), "once, and only on the way out");
}
