//! Devices put out as bytes and taken in again.

use crate::common::*;

fn spec() -> DeviceSpec {
    tiny(|s| s.limits.factory_bad_ppm = 60_000)
}

fn saved(ssd: &Ssd, now: Ns) -> Vec<u8> {
    let mut bytes = Vec::new();
    ssd.save(now, &mut bytes).expect("it can be saved");
    bytes
}

fn options(store: StoreKind) -> SsdOptions {
    SsdOptions { store, seed: 11, ..memory() }
}

/// A write unit of user data or of whole sectors.
fn program(bench: &Bench, (pu, chunk): (u32, u32), (fill, whole): (u8, bool)) {
    let (geo, from) = (*bench.dev.geometry(), bench.info(pu, chunk).write_pointer);
    if bench.info(pu, chunk).state == ChunkState::Offline || from == geo.sectors_per_chunk() {
        return;
    }
    let at = bench.at(&[(pu, chunk, from, geo.ws_min)]);
    let unit = if whole { 4096 } else { bench.dev.traits().content_bytes };
    let done = bench.run(move |cx, dev| async move {
        let filled = Filled::new(at.len(), unit, fill);
        dev.io(&cx, filled.request(&at, whole)).await
    });
    assert_eq!(done.failed, 0, "{done:?}");
}

/// Random programs, resets and reads, of user data and of whole sectors: what was taken in has the same
/// chunk report, contents and counters, goes on from there, and puts out the same bytes.
#[test]
fn what_is_taken_in_is_what_was_put_out() {
    for store in [StoreKind::Stamps, StoreKind::Memory] {
        for seed in 0..12 {
            let mut rng = Rng::stream(seed, "test.save", 0);
            let ssd = Ssd::new(&spec(), options(store)).expect("a device");
            let bench = Bench::new(ssd.clone());
            let chunks = bench.dev.geometry().chunks_per_pu as u64;
            for _ in 0..rng.below(300) {
                let at = (rng.below(4) as u32, rng.below(chunks.min(5)) as u32);
                match rng.below(12) {
                    0 => drop(bench.reset(at.0, at.1)),
                    1 => drop(bench.read(&[(at.0, at.1, 0, 4)])),
                    n => program(&bench, at, (rng.below(255) as u8, n < 4)),
                }
            }
            let bytes = saved(&ssd, bench.now());
            let again = Ssd::load(&spec(), options(store), &mut &bytes[..]).expect("its own bytes");
            assert!(saved(&again, Ns::ZERO) == bytes, "{store:?}, seed {seed}");
            let other = Bench::new(again.clone());
            for pu in 0..4 {
                assert_eq!(again.bad_blocks(pu), ssd.bad_blocks(pu));
                assert_eq!(again.chunk_report(pu, 0, 64), ssd.chunk_report(pu, 0, 64));
                for chunk in 0..5 {
                    for sector in (0..bench.info(pu, chunk).write_pointer).step_by(8) {
                        let (a, b) = (
                            bench.read(&[(pu, chunk, sector, 8)]),
                            other.read(&[(pu, chunk, sector, 8)]),
                        );
                        assert_eq!((a.data, a.oob, a.done.failed), (b.data, b.oob, b.done.failed));
                    }
                }
            }
            assert_eq!(again.counters().programmed, ssd.counters().programmed);
            // Whole sectors were read as user data above, which is noted, by both.
            let noted = again.counters().violations;
            for (pu, chunk) in [(0, 0), (1, 1), (3, 4)] {
                program(&other, (pu, chunk), (9, false));
                other.reset(pu, chunk);
            }
            assert_eq!(again.counters().violations, noted, "{:?}", again.violations().last());
        }
    }
}

/// Whatever the bytes are, there is an answer.
#[test]
fn bytes_that_make_no_sense_are_refused() {
    refuses_noise(StoreKind::Stamps, 3000);
    refuses_noise(StoreKind::Memory, 300);
}

fn refuses_noise(store: StoreKind, times: u32) {
    let ssd = Ssd::new(&spec(), options(store)).expect("a device");
    let bench = Bench::new(ssd.clone());
    for chunk in 0..4 {
        for unit in 0..4 {
            program(&bench, (chunk % 2, chunk), (unit, unit == 2));
        }
    }
    let bytes = saved(&ssd, bench.now());
    let load = |bytes: &[u8]| Ssd::load(&spec(), options(store), &mut &bytes[..]).map(drop);
    assert!(load(&bytes).is_ok());
    for n in [0, 1, 63, 64, bytes.len() / 2, bytes.len() - 1] {
        assert!(load(&bytes[..n]).is_err(), "{n} bytes");
    }
    let mut rng = Rng::stream(1, "test.save.noise", 0);
    for _ in 0..times {
        let mut bytes = bytes.clone();
        for _ in 0..=rng.below(3) {
            let at = rng.below(bytes.len() as u64) as usize;
            bytes[at] = rng.next_u64() as u8;
        }
        let _ = load(&bytes); // a content may be anything; nothing panics
    }
    // Zeros are numbers: of records, and of full contents, where there is no place for them.
    for at in (0..bytes.len()).rev().step_by(4).filter(|at| bytes[*at] == 0).take(500) {
        let mut bytes = bytes.clone();
        bytes[at] = 1;
        let _ = load(&bytes);
    }
    let wider = spec().with_chunks_per_pu(spec().geometry().chunks_per_pu * 2);
    assert!(Ssd::load(&wider, options(store), &mut &bytes[..]).is_err());
}

/// Devices whose contents are elsewhere, or that have a buffer, say so.
#[test]
fn what_cannot_be_put_out_says_why() {
    let refused = |spec: &DeviceSpec, store| {
        let ssd: Arc<Ssd> = Ssd::new(spec, options(store)).expect("a device");
        ssd.save(Ns::ZERO, &mut Vec::new()).expect_err("refused").to_string()
    };
    assert!(refused(&spec(), StoreKind::Compact).contains("`memory` nor `stamps`"));
    let buffered = tiny(|s| s.limits.write_buffer = Some(flashlane_base::Bytes::new(1 << 20)));
    assert!(refused(&buffered, StoreKind::Stamps).contains("write buffer"));
}
