//! Whom a line waits for before it is freed: FORMAT.md rule 17.
//!
//! Owns: the tests. What is collected, and when, is tested through the public interface (`tests/targets`).

use super::HostFtl;
use crate::log::LogConfig;
use flashlane_base::Ns;
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions};
use flashlane_rt::{CoreId, CostTable, Cx, Threads, Virtual};
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

async fn target(cx: &Cx) -> Arc<HostFtl> {
    let spec = DeviceSpec::preset("tiny").expect("built in").with_chunks_per_pu(60);
    let ssd = Ssd::new(&spec, SsdOptions { timing: false, ..SsdOptions::default() });
    let config = LogConfig { over_provisioning_percent: 60, gc: false, ..LogConfig::qblk() };
    HostFtl::create(cx, ssd.expect("a device"), config).await.expect("fits")
}

/// Nothing is freed before `held`, which somebody has looked an address up in, has ended; then it is.
async fn freed_behind<T>(cx: &Cx, ftl: &Arc<HostFtl>, held: T, end: impl FnOnce(T)) {
    let freed = Rc::new(Cell::new(false));
    let (their_cx, them, over) = (cx.clone(), ftl.clone(), freed.clone());
    let freeing = cx.spawn_join(async move {
        them.free_lines(&their_cx, &[]).await.expect("nothing fails");
        over.set(true);
    });
    cx.sleep(Ns::from_ms(100)).await;
    assert!(!freed.get(), "freed while somebody may go to what was looked up");
    end(held);
    freeing.await;
}

/// A read goes from the look-up of an address to the end of its command.
#[test]
fn lines_are_not_freed_under_an_operation() {
    let run = Virtual::new(2, 1, CostTable::zero());
    let cx = run.cx();
    run.run(async move {
        let (ftl, reader) = (target(&cx).await, cx.on_core(CoreId(1)));
        let operation = ftl.epochs.begin(&reader);
        freed_behind(&cx, &ftl, operation, |operation| ftl.epochs.end(&reader, operation)).await;
    })
    .expect("no stall");
}

/// A discard, which is no operation, looks at the line of an address that it has found in the map. Sections are
/// counted on real cores.
#[test]
fn lines_are_not_freed_under_a_section() {
    Threads::new(2, 1).run(async |cx| {
        if cx.core().0 == 0 {
            let ftl = target(&cx).await;
            let inside = ftl.sections.enter_on(CoreId(1));
            freed_behind(&cx, &ftl, inside, drop).await;
        }
    });
}
