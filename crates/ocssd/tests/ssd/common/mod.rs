//! A device on a bench: one command at a time, in virtual time, from a test's point of view; and the names that
//! more than one test takes from elsewhere.
#![allow(dead_code, unreachable_pub)] // every test file uses its own part of this

pub use flashlane_base::{Bytes, Location, Ns, OOB_BYTES, Ppa, PpaStyle, Rng};
pub use flashlane_media::host::HostFile;
pub use flashlane_media::host::behind::Behind;
pub use flashlane_media::host::memory::{MemoryFile, Moment};
pub use flashlane_media::image::{HEADER_BYTES, MARK_AT};
pub use flashlane_ocssd::device::*;
pub use flashlane_ocssd::rules::Rule;
pub use flashlane_ocssd::spec::EccSpec;
pub use flashlane_ocssd::ssd::{Event, GROWN_BAD, PowerOn};
pub use flashlane_ocssd::{
    CreateImage, DeviceSpec, DieQueue, FaultPlan, ImageError, OpenImage, Ssd, SsdOptions, StoreKind,
};
pub use flashlane_rt::{CostTable, Cx, Threads, Virtual};
pub use std::collections::BTreeMap;
pub use std::io::{ErrorKind, Read};
pub use std::path::PathBuf;
pub use std::sync::atomic::Ordering;
pub use std::sync::{Arc, Mutex};

/// A device and its clock.
pub struct Bench {
    pub clock: Virtual,
    pub dev: Arc<dyn Device>,
}

/// What a read gave.
pub struct Got {
    pub done: Completion,
    pub data: Vec<u8>,
    pub oob: Vec<[u8; OOB_BYTES]>,
    pub unit: usize,
}

impl Got {
    /// Status, first byte of content, first byte of out-of-band record of address `i`.
    pub fn at(&self, i: usize) -> (Status, u8, u8) {
        (self.done.status(i), self.data[i * self.unit], self.oob[i][0])
    }
    /// The sector holds what `write` wrote with `fill`, in every byte.
    pub fn holds(&self, i: usize, fill: u8) -> bool {
        let content = &self.data[i * self.unit..(i + 1) * self.unit];
        content.iter().all(|b| *b == fill) && self.oob[i] == [fill; OOB_BYTES]
    }
    /// The sector reads as unwritten.
    pub fn empty(&self, i: usize) -> bool {
        let content = &self.data[i * self.unit..(i + 1) * self.unit];
        content.iter().all(|b| *b == 0) && self.oob[i] == [0xff; OOB_BYTES]
    }
}

/// The `tiny` preset, changed.
pub fn tiny(change: impl FnOnce(&mut DeviceSpec)) -> DeviceSpec {
    let mut spec = DeviceSpec::preset("tiny").expect("preset");
    change(&mut spec);
    spec
}

/// `tiny` with so many PUs and chunks of two rows, two sectors each, that can be read at once.
pub fn of_few_sectors(pus: u32, chunks: u32) -> DeviceSpec {
    tiny(|s| {
        let g = &mut s.geometry;
        (g.channels, g.pus_per_channel, g.planes, g.chunks_per_pu) = (pus, 1, 1, chunks);
        (g.pages_per_block, g.sectors_per_page, g.ws_min, g.ws_opt) = (2, 2, 2, 2);
        g.mw_cunits = 0;
    })
}

/// Options with the memory store, so that content is looked at in full.
pub fn memory() -> SsdOptions {
    SsdOptions { store: StoreKind::Memory, ..SsdOptions::default() }
}

pub fn ssd(spec: &DeviceSpec, options: SsdOptions) -> Arc<Ssd> {
    Ssd::new(spec, options).unwrap_or_else(|e| panic!("{e}"))
}

/// The same, with this fault plan.
pub fn failing(plan: &str) -> SsdOptions {
    SsdOptions { faults: FaultPlan::from_toml(plan).expect("a plan"), ..memory() }
}

/// A new image in memory.
pub fn image_of(spec: &DeviceSpec) -> Arc<MemoryFile> {
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), spec, &CreateImage::default()).expect("created");
    file
}

/// The device in an image.
pub fn open_on(file: Arc<dyn HostFile>) -> Arc<Ssd> {
    Ssd::open_on(file, &OpenImage::default()).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs of neighbouring sectors: (pu, chunk, first sector, sectors).
pub fn addrs(dev: &dyn Device, runs: &[(u32, u32, u32, u32)]) -> Vec<Ppa> {
    let mut all = Vec::new();
    for &(pu, chunk, sector, n) in runs {
        all.extend(
            (sector..sector + n).map(|sector| dev.format().pack(Location { pu, chunk, sector })),
        );
    }
    all
}

impl Bench {
    pub fn new(dev: Arc<dyn Device>) -> Bench {
        Bench { clock: Virtual::new(1, 7, CostTable::zero()), dev }
    }

    /// A new device, and its bench.
    pub fn of(spec: &DeviceSpec, options: SsdOptions) -> (Bench, Arc<Ssd>) {
        let ssd = ssd(spec, options);
        (Bench::new(ssd.clone()), ssd)
    }

    /// The device in an image, and its bench.
    pub fn on(file: Arc<dyn HostFile>) -> (Bench, Arc<Ssd>) {
        let ssd = open_on(file);
        (Bench::new(ssd.clone()), ssd)
    }

    /// Runs a task to its end.
    pub fn run<T, F>(&self, body: impl FnOnce(Cx, Arc<dyn Device>) -> F) -> T
    where
        T: 'static,
        F: Future<Output = T> + 'static,
    {
        self.clock.run(body(self.clock.cx(), self.dev.clone())).expect("nothing stalls")
    }

    pub fn at(&self, runs: &[(u32, u32, u32, u32)]) -> Vec<Ppa> {
        addrs(&*self.dev, runs)
    }

    pub fn write_to(&self, at: Vec<Ppa>, fill: u8) -> Completion {
        self.run(|cx, dev| async move { write(&cx, &*dev, &at, fill).await })
    }

    pub fn write(&self, runs: &[(u32, u32, u32, u32)], fill: u8) -> Completion {
        self.write_to(self.at(runs), fill)
    }

    /// Writes whole units from the write pointer to `end`.
    pub fn write_up_to(&self, pu: u32, chunk: u32, end: u32, fill: u8) {
        let unit = self.dev.geometry().ws_min;
        let mut at = self.info(pu, chunk).write_pointer;
        while at < end {
            let done = self.write(&[(pu, chunk, at, unit)], fill);
            assert_eq!(done.failed, 0, "{done:?}");
            at += unit;
        }
    }

    pub fn read_from(&self, at: Vec<Ppa>) -> Got {
        self.run(|cx, dev| async move { read(&cx, &*dev, &at, Flags::default()).await })
    }

    pub fn read(&self, runs: &[(u32, u32, u32, u32)]) -> Got {
        self.read_from(self.at(runs))
    }

    pub fn plain(&self, op: Op, at: Vec<Ppa>, flags: Flags) -> Completion {
        self.run(|cx, dev| async move { dev.io(&cx, Request::plain(op, &at).with(flags)).await })
    }

    pub fn reset(&self, pu: u32, chunk: u32) -> Status {
        let at = self.at(&[(pu, chunk, 0, 1)]);
        self.plain(Op::Reset, at, Flags::default()).status(0)
    }

    pub fn flush(&self) -> Status {
        self.plain(Op::Flush, Vec::new(), Flags::default()).status(0)
    }

    pub fn info(&self, pu: u32, chunk: u32) -> ChunkInfo {
        self.dev.chunk_report(pu, chunk, 1)[0]
    }

    pub fn now(&self) -> Ns {
        self.clock.now()
    }
}

/// A write request's arrays.
pub struct Filled {
    base: Vec<u8>,
    index: Vec<u32>,
    oob: Vec<[u8; OOB_BYTES]>,
    cause: Vec<Cause>,
    unit: usize,
}

impl Filled {
    pub fn new(n: usize, unit: usize, fill: u8) -> Filled {
        Filled {
            base: vec![fill; unit],
            index: vec![0; n],
            oob: vec![[fill; OOB_BYTES]; n],
            cause: vec![Cause::User; n],
            unit,
        }
    }

    pub fn request<'a>(&'a self, addrs: &'a [Ppa], whole: bool) -> Request<'a> {
        let content = Gather::new(&self.base, &self.index, self.unit);
        Request::write(addrs, content, &self.oob, &self.cause).whole(whole)
    }
}

pub async fn write(cx: &Cx, dev: &dyn Device, at: &[Ppa], fill: u8) -> Completion {
    let filled = Filled::new(at.len(), dev.traits().content_bytes, fill);
    dev.io(cx, filled.request(at, false)).await
}

pub async fn read(cx: &Cx, dev: &dyn Device, at: &[Ppa], flags: Flags) -> Got {
    let unit = dev.traits().content_bytes;
    let mut data = vec![0x55; unit * at.len()];
    let index: Vec<u32> = (0..at.len() as u32).collect();
    let mut oob = vec![[0x55; OOB_BYTES]; at.len()];
    let content = Scatter::new(&mut data, &index, unit);
    let done = dev.io(cx, Request::read(at, content, &mut oob).with(flags)).await;
    Got { done, data, oob, unit }
}
