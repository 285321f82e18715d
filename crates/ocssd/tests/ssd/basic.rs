//! The device does what its commands say: the shortest path through write, read and reset.

use flashlane_base::{Location, Ns, Ppa};
use flashlane_ocssd::device::*;
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_rt::{CostTable, Virtual};
use std::sync::Arc;

fn addrs(dev: &dyn Device, pu: u32, chunk: u32, sector: u32, n: u32) -> Vec<Ppa> {
    let at = |k| Location { pu, chunk, sector: sector + k };
    (0..n).map(|k| dev.format().pack(at(k))).collect()
}

fn run<T: 'static, F>(
    dev: Arc<dyn Device>,
    body: impl FnOnce(flashlane_rt::Cx, Arc<dyn Device>) -> F,
) -> T
where
    F: std::future::Future<Output = T> + 'static,
{
    let v = Virtual::new(1, 7, CostTable::zero());
    v.run(body(v.cx(), dev)).unwrap()
}

async fn write(cx: &flashlane_rt::Cx, dev: &dyn Device, at: &[Ppa], fill: u8) -> Completion {
    let unit = dev.traits().content_bytes;
    let base = vec![fill; unit];
    let index = vec![0u32; at.len()];
    let oob = vec![[fill; 16]; at.len()];
    let cause = vec![Cause::User; at.len()];
    dev.io(
        cx,
        Request {
            op: Op::Write,
            flags: Flags::default(),
            addrs: at,
            data: Data::Write {
                content: Gather::new(&base, &index, unit),
                oob: &oob,
                cause: &cause,
            },
            whole_sectors: false,
        },
    )
    .await
}

async fn read(
    cx: &flashlane_rt::Cx,
    dev: &dyn Device,
    at: &[Ppa],
) -> (Completion, Vec<u8>, Vec<[u8; 16]>) {
    let unit = dev.traits().content_bytes;
    let mut base = vec![0; unit * at.len()];
    let index: Vec<u32> = (0..at.len() as u32).collect();
    let mut oob = vec![[0; 16]; at.len()];
    let done = dev
        .io(
            cx,
            Request {
                op: Op::Read,
                flags: Flags::default(),
                addrs: at,
                data: Data::Read { content: Scatter::new(&mut base, &index, unit), oob: &mut oob },
                whole_sectors: false,
            },
        )
        .await;
    (done, base, oob)
}

/// What is written is read back with its out-of-band record, after its time, until a reset.
#[test]
fn write_read_reset() {
    for store in [StoreKind::Stamps, StoreKind::Memory] {
        for name in DeviceSpec::preset_names() {
            let spec = DeviceSpec::preset(name).unwrap();
            let options = SsdOptions { store, ..SsdOptions::default() };
            let ssd = Ssd::new(&spec, options).unwrap();
            let dev: Arc<dyn Device> = ssd.clone();
            run(dev, |cx, dev| async move {
                let geo = *dev.geometry();
                let pu = geo.pus() - 1;
                let unit = geo.ws_opt;
                for k in 0..geo.sectors_per_chunk() / unit {
                    let at = addrs(&*dev, pu, 3, k * unit, unit);
                    let before = cx.now();
                    let done = write(&cx, &*dev, &at, k as u8 | 1).await;
                    assert_eq!((done.failed, done.finished), (0, cx.now()), "{name}");
                    assert!(cx.now() > before);
                }
                let info = dev.chunk_report(pu, 3, 1)[0];
                assert_eq!(info.state, ChunkState::Closed);
                let at = addrs(&*dev, pu, 3, unit, unit);
                let (done, data, oob) = read(&cx, &*dev, &at).await;
                assert_eq!(done.failed, 0);
                assert!(data.iter().all(|b| *b == 1), "{name}");
                assert!(oob.iter().all(|o| *o == [1; 16]));
                let reset = Request {
                    op: Op::Reset,
                    flags: Flags::default(),
                    addrs: &at[..1],
                    data: Data::None,
                    whole_sectors: false,
                };
                let done = dev.io(&cx, reset).await;
                assert_eq!(done.failed, 0);
                let (done, data, oob) = read(&cx, &*dev, &at).await;
                assert_eq!(done.failed, 0);
                assert!(data.iter().all(|b| *b == 0) && oob.iter().all(|o| *o == [0xff; 16]));
                assert!(cx.now() > Ns::from_ms(1));
            });
            let c = ssd.counters();
            assert_eq!(c.violations, 0, "{:?}", ssd.violations());
            assert_eq!(c.programmed_total(), spec.geometry().sectors_per_chunk() as u64);
        }
    }
}
