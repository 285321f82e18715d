//! A layer that counts what passes, and nothing else.
//!
//! Owns: [`Meter`]. Promises: a request goes on as it came, an answer comes back as it was; what is
//! above behaves as if it were not there, to the nanosecond. Never: looks at content.
//!
//! It stands on another layer's logical sectors and shows what a host asks of that: with a file
//! system or a filter above, what reaches the drive.

use crate::block::{BlockDev, BlockError, BlockInfo, BlockOp, Extent, Io, Started};
use crate::layer::{
    Asked, Built, Counted, Find, Kind, Later, Layer, Needs, Pus, Saved, Seam, Settings, Side,
    Stands, Stop,
};
use crate::stats::{FtlStats, Gauges};
use flashlane_base::Lba;
use flashlane_rt::Cx;
use flashlane_rt::sync::{AtomicU64, Ordering};
use serde_json::{Value, json};
use std::sync::Arc;

pub struct MeterKind;

/// Counts requests and sectors between two layers.
pub static METER: MeterKind = MeterKind;

/// What is counted of one operation: requests, sectors of 4 KiB.
const COUNTS: [(BlockOp, &str, Option<&str>); 4] = [
    (BlockOp::Read, "reads", Some("read_sectors")),
    (BlockOp::Write, "writes", Some("written_sectors")),
    (BlockOp::Discard, "discards", Some("discarded_sectors")),
    (BlockOp::Flush, "flushes", None),
];

pub struct Meter {
    below: Arc<dyn BlockDev>,
    info: BlockInfo,
    /// Requests and sectors since it was made, by operation.
    counts: [[AtomicU64; 2]; COUNTS.len()],
}

impl Meter {
    /// On these logical sectors.
    pub fn new(below: Arc<dyn BlockDev>) -> Meter {
        Meter { info: below.info().clone(), below, counts: Default::default() }
    }
}

impl BlockDev for Meter {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        let [requests, sectors] = &self.counts[io.op as usize];
        requests.fetch_add(1, Ordering::Relaxed);
        sectors.fetch_add(io.sectors.into(), Ordering::Relaxed);
        self.below.start(cx, io)
    }

    fn expect(&self, op: BlockOp, lba: Lba) {
        self.below.expect(op, lba);
    }

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.below.extent(lba, most)
    }
}

impl Kind for MeterKind {
    fn name(&self) -> &'static str {
        "meter"
    }

    fn stands(&self) -> Stands {
        let (on, side, pus) = (Needs::Block, Side::Host, Pus::Balanced);
        Stands { on, side, pus, needs_blank: false }
    }

    fn settings(&self, _: &dyn Asked, _: &Settings) -> Settings {
        self.defaults()
    }

    fn defaults(&self) -> Settings {
        json!({})
    }

    fn on_image(&self, settings: Settings) -> Settings {
        settings
    }

    fn check(&self, _: &Settings) -> Result<(), String> {
        Ok(())
    }

    fn described(&self, _: &Settings) -> Value {
        json!({ "kind": "meter" })
    }

    fn differs(&self, _: &Settings, _: &Settings, _: u32) -> Option<(&'static str, String)> {
        None
    }

    fn create<'a>(&'a self, _: &'a Cx, below: Seam, _: &'a Settings) -> Later<'a, Built> {
        Box::pin(async move { Ok(Arc::new(Meter::new(below.block())) as Arc<dyn Layer>) })
    }

    /// There is nothing of it on the medium.
    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        _: &'a Find,
    ) -> Later<'a, Built> {
        self.create(cx, below, settings)
    }
}

impl Layer for Meter {
    fn kind(&self) -> &'static dyn Kind {
        &METER
    }

    fn above(self: Arc<Self>) -> Seam {
        Seam::Block(self)
    }

    fn settings(&self) -> Settings {
        METER.defaults()
    }

    fn stats(&self) -> Option<FtlStats> {
        None
    }

    fn gauges(&self) -> Option<Gauges> {
        None
    }

    fn counted(&self) -> Vec<Counted> {
        let of = |op: BlockOp, at: usize| self.counts[op as usize][at].load(Ordering::Relaxed);
        let counts = COUNTS.iter().flat_map(|(op, requests, sectors)| {
            let requests = Counted { name: requests, value: of(*op, 0) };
            let sectors = sectors.map(|name| Counted { name, value: of(*op, 1) });
            [Some(requests), sectors]
        });
        counts.flatten().collect()
    }

    /// As what it stands on.
    fn acks_are_durable(&self) -> bool {
        true
    }

    fn cuts_take_room(&self) -> bool {
        false
    }

    fn read_only(&self) -> Option<&'static str> {
        None
    }

    fn drain<'a>(&'a self, _: &'a Cx) -> Later<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    fn stop<'a>(self: Arc<Self>, _: &'a Cx, _: Stop) -> Later<'a, Result<(), BlockError>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn walk(&self) -> Result<(), String> {
        Ok(())
    }

    fn state(&self) -> String {
        let counts = self.counted();
        let shown: Vec<String> = counts.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
        shown.join(", ")
    }

    fn power_lost(&self) -> Option<Saved> {
        None
    }
}
