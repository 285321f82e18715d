//! Plain sector numbers (design id D2), and a medium that needs no erase (D3).

use crate::common::*;
use flashlane_base::Lba;
use flashlane_ocssd::Device;
use flashlane_ocssd::device::{ChunkState, Status};
use flashlane_ocssd::scalar::{Scalar, ScalarError};

/// D2: every sector number has an address of its own, the sectors of a chunk are one range.
#[test]
fn d2_sector_numbers_go_chunk_by_chunk() {
    let dev = ssd(&tiny(|_| {}), memory());
    let (scalar, geo) = (Scalar::new(dev.clone()), *dev.geometry());
    let per_chunk = geo.sectors_per_chunk() as u64;
    for lba in 0..scalar.capacity() {
        let at = dev.format().unpack(scalar.address(Lba::new(lba)).unwrap()).unwrap();
        let chunk = at.pu as u64 * geo.chunks_per_pu as u64 + at.chunk as u64;
        assert_eq!(chunk * per_chunk + at.sector as u64, lba);
    }
    assert_eq!(scalar.address(Lba::new(scalar.capacity())), None);
    assert_eq!(scalar.address(Lba::new(u64::MAX)), None);
}

/// D2: writes in order over the end of a chunk, reads, and a trim of a whole chunk, which is its
/// erase; what breaks the rules of the medium or names no whole chunk is refused.
#[test]
fn d2_read_write_and_trim_by_sector_number() {
    let b = Bench::new(ssd(&tiny(|_| {}), memory()));
    let per_chunk = b.dev.geometry().sectors_per_chunk() as u64;
    b.run(move |cx, dev| async move {
        let scalar = Scalar::new(dev.clone());
        let sectors = 2 * per_chunk as usize;
        let written: Vec<u8> = (0..sectors * 4096).map(|i| (i / 4096) as u8).collect();
        scalar.write(&cx, Lba::new(0), &written).await.expect("in order");
        let mut read = vec![0; written.len()];
        scalar.read(&cx, Lba::new(0), &mut read).await.expect("written");
        assert!(read == written);
        let again = scalar.write(&cx, Lba::new(0), &written[..4 * 4096]).await;
        assert!(
            matches!(again, Err(ScalarError::Device { lba, .. }) if lba.get() == 0),
            "{again:?}"
        );
        let part = scalar.trim(&cx, Lba::new(0), per_chunk - 4).await;
        assert!(matches!(part, Err(ScalarError::Partial { .. })), "{part:?}");
        scalar.trim(&cx, Lba::new(0), per_chunk).await.expect("a whole chunk");
        let report = dev.chunk_report(0, 0, 2);
        assert_eq!((report[0].state, report[0].erases), (ChunkState::Free, 1));
        assert_eq!((report[1].state, report[1].erases), (ChunkState::Closed, 0));
        scalar.write(&cx, Lba::new(0), &written[..4 * 4096]).await.expect("erased");
        let end = Lba::new(scalar.capacity());
        let outside = scalar.read(&cx, end, &mut read[..4096]).await;
        assert!(matches!(outside, Err(ScalarError::Range { .. })), "{outside:?}");
        let odd = scalar.write(&cx, Lba::new(4), &written[..4097]).await;
        assert!(matches!(odd, Err(ScalarError::Buffer { .. })), "{odd:?}");
    });
}

/// D3: where the medium needs no erase, a reset takes no time, wears nothing and never fails; the
/// chunk can be written again.
#[test]
fn d3_an_erase_that_is_not_needed_is_ignored() {
    let spec = tiny(|s| s.limits.erase_ignored = true);
    let plan = "[[fault]]\nkind = \"erase_fail\"\nprobability = \"1\"";
    let ssd = ssd(&spec, failing(plan));
    assert!(ssd.identify().erase_ignored);
    let b = Bench::new(ssd.clone());
    for round in 1..4 {
        b.write_up_to(0, 0, 64, round);
        assert!(b.read(&[(0, 0, 60, 1)]).holds(0, round));
        let before = b.now();
        assert_eq!(b.reset(0, 0), Status::Ok);
        assert!(b.now() - before < Ns::from_us(20), "{}", b.now() - before);
    }
    assert_eq!((b.info(0, 0).erases, b.info(0, 0).wear_index), (0, 0));
    assert_eq!((ssd.counters().erases, ssd.counters().violations), (0, 0));
}
