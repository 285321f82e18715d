//! The device does what its commands say: the shortest path through write, read and reset.

use crate::common::*;

/// What is written is read back with its out-of-band record, after its time, until a reset.
#[test]
fn write_read_reset() {
    for store in [StoreKind::Stamps, StoreKind::Memory] {
        for name in DeviceSpec::preset_names() {
            let spec = DeviceSpec::preset(name).unwrap();
            let (b, ssd) = Bench::of(&spec, SsdOptions { store, ..SsdOptions::default() });
            let geo = spec.geometry();
            let (pu, unit) = (geo.pus() - 1, geo.ws_opt);
            for k in 0..geo.sectors_per_chunk() / unit {
                let before = b.now();
                let done = b.write(&[(pu, 3, k * unit, unit)], k as u8 | 1);
                assert_eq!((done.failed, done.finished), (0, b.now()), "{name}");
                assert!(b.now() > before);
            }
            assert_eq!(b.info(pu, 3).state, ChunkState::Closed);
            let second = [(pu, 3, unit, unit)];
            let got = b.read(&second);
            assert_eq!(got.done.failed, 0);
            assert!((0..unit as usize).all(|i| got.holds(i, 1)), "{name}");
            assert_eq!(b.reset(pu, 3), Status::Ok);
            let got = b.read(&second);
            assert_eq!(got.done.failed, 0);
            assert!((0..unit as usize).all(|i| got.empty(i)));
            assert!(b.now() > Ns::from_ms(1));
            let c = ssd.counters();
            assert_eq!(c.violations, 0, "{:?}", ssd.violations());
            assert_eq!(c.programmed_total(), geo.sectors_per_chunk() as u64);
        }
    }
}
