//! The block SSD's snapshot: what it gives, when it is taken, and power cuts around it.
//!
//! Owns: the claims of `pftl/rest.rs` and `pftl/recover/resume.rs`, on small devices of several kinds
//! with and without capacitors. Promises: every cut is at a moment of its own run, so it replays by
//! its message. Never: draws a device (that is the swarm).

use super::rules::{LENIENT, PAIRS, rig};
use flashlane_base::{Lba, Location, Ns, OOB_BYTES, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, BlockResult, Io};
use flashlane_ftl::log::format::{LBA_SNAPSHOT, Oob};
use flashlane_ftl::pftl::{Dump, MountError, Pftl, PftlConfig, Recovery};
use flashlane_media::host::HostFile;
use flashlane_media::host::memory::MemoryFile;
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Data, Flags, Op, Request, Scatter};
use flashlane_ocssd::image::{Header, UNCHECKED};
use flashlane_ocssd::{
    CreateImage, Device, DeviceSpec, FaultPlan, OpenImage, PowerOn, Ssd, SsdOptions,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::moments::{Moments, NotingDevice};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// Cuts per kind of device, evenly spread over the moments.
const CUTS: usize = 40;

/// A device and how its FTL is built.
#[derive(Clone, Debug)]
struct Kind {
    name: &'static str,
    spec: DeviceSpec,
    config: PftlConfig,
}

fn kinds() -> Vec<Kind> {
    let mut all = Vec::new();
    for (name, capacitors, window, cells, limits) in [
        ("plain, capacitors", true, 0, "", ""),
        ("plain, volatile", false, 0, "", ""),
        ("a window, capacitors", true, 8, "", ""),
        ("a window, volatile", false, 8, "", ""),
        ("pairs, volatile", false, 20, PAIRS, ""),
        ("pairs, capacitors", true, 20, PAIRS, ""),
        ("erases not counted", false, 0, "", "erase_ignored = true"),
    ] {
        let rig = rig(capacitors, window, cells, &format!("{LENIENT}\n{limits}"));
        all.push(Kind { name, spec: rig.spec, config: rig.config });
    }
    all
}

pub(super) async fn ask(dev: &Pftl, cx: &Cx, op: BlockOp, lba: u64, buf: &mut [u8]) -> BlockResult {
    let sectors = if op == BlockOp::Flush { 0 } else { 1 };
    dev.start(cx, Io::of(op, Lba::new(lba), sectors, false, buf)).await
}

pub(super) async fn put(dev: &Pftl, cx: &Cx, lba: u64, version: u64) {
    let mut buf = (lba << 32 | version).to_le_bytes().repeat(dev.info().content_bytes / 8);
    ask(dev, cx, BlockOp::Write, lba, &mut buf).await.expect("a write");
}

/// The version that a sector holds, 0 for zeros.
pub(super) async fn get(dev: &Pftl, cx: &Cx, lba: u64) -> u64 {
    let mut buf = vec![0xee; dev.info().content_bytes];
    ask(dev, cx, BlockOp::Read, lba, &mut buf).await.unwrap_or_else(|e| panic!("{lba}: {e}"));
    let word = u64::from_le_bytes(buf[..8].try_into().expect("8 bytes"));
    assert!(word == 0 || word >> 32 == lba, "sector {lba} is another one");
    word & 0xffff_ffff
}

async fn flush(dev: &Pftl, cx: &Cx) {
    ask(dev, cx, BlockOp::Flush, 0, &mut []).await.expect("a flush");
}

/// Fills the device, overwrites and discards at random until GC has worked, flushes. Returns the
/// versions.
async fn play(dev: &Pftl, cx: &Cx) -> Vec<u64> {
    let capacity = dev.info().capacity;
    let mut held = vec![0; capacity as usize];
    let mut rng = Rng::new(4);
    for version in 1.. {
        if version > capacity && dev.stats().erases > 12 {
            break;
        }
        let lba = if version <= capacity { version - 1 } else { rng.below(capacity) };
        if version > capacity && rng.below(8) == 0 {
            ask(dev, cx, BlockOp::Discard, lba, &mut []).await.expect("a discard");
            held[lba as usize] = 0;
            continue;
        }
        put(dev, cx, lba, version).await;
        held[lba as usize] = version;
    }
    flush(dev, cx).await;
    held
}

/// A device between two lives.
struct Off {
    ssd: Arc<Ssd>,
    held: Vec<u64>,
    dump: Option<Dump>,
}

/// The first life: created, used, stopped; the power goes when the stop has ended, or at `cut`.
/// Also when the stop began, and whether it ended.
fn first_life(kind: &Kind, cut: Option<Ns>, moments: &Moments) -> (Off, Ns, bool) {
    // A line that never strikes: what a test adds later strikes only where there is a plan.
    let plan = format!("[[fault]]\nkind = \"read_uncorrectable\"\ncount = {}\n", 1u64 << 50);
    let faults = FaultPlan::from_toml(&plan).expect("a plan");
    let options = SsdOptions { faults, ..SsdOptions::default() };
    let ssd = Ssd::new(&kind.spec, options).expect("a device");
    let device: Arc<dyn Device> = Arc::new(NotingDevice::new(ssd.clone(), moments.clone()));
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, config) = (run.cx(), kind.config.clone());
    let (ftl, held, began, ended) = run
        .run(async move {
            let ftl = Pftl::create(&cx, device, config).expect("fits");
            let held = play(&ftl, &cx).await;
            let began = cx.now();
            let ended = Rc::new(Cell::new(false));
            let (cx2, ftl2, ended2) = (cx.clone(), ftl.clone(), ended.clone());
            let stop = cx.spawn_join(async move {
                ftl2.stop(&cx2).await;
                ended2.set(true);
            });
            match cut {
                Some(at) => cx.sleep(at.saturating_sub(cx.now())).await,
                None => stop.await,
            }
            (ftl, held, began, ended.get())
        })
        .expect("no stall");
    let mut off = Off { ssd, held, dump: None };
    off.cut(run, Some(ftl));
    (off, began, ended)
}

/// What a life found.
struct Mounted {
    did: Recovery,
    free_lines: u32,
}

impl Off {
    /// Mounts it and does that.
    fn up<T: 'static>(
        &self,
        kind: &Kind,
        what: &str,
        work: impl AsyncFnOnce(&Pftl, &Cx) -> T + 'static,
    ) -> (T, Arc<Pftl>, Virtual) {
        let run = Virtual::new(1, 2, CostTable::zero());
        let (cx, device, config) = (run.cx(), self.ssd.clone(), kind.config.clone());
        let dump = self.dump.clone();
        let lived = run.run(async move {
            let ftl = Pftl::mount(&cx, device, config, dump.as_ref()).await?;
            Ok::<_, MountError>((work(&ftl, &cx).await, ftl))
        });
        let lived = lived.expect("no stall");
        let (done, ftl) = lived.unwrap_or_else(|e| panic!("{}: {what}: {e}", kind.name));
        (done, ftl, run)
    }

    /// The power goes without a stop.
    fn cut(&mut self, run: Virtual, ftl: Option<Arc<Pftl>>) {
        // Where the mount itself was cut the dump of before is all there is.
        if let Some(ftl) = ftl {
            self.dump = ftl.power_lost();
        }
        let now = run.now();
        drop(run);
        self.ssd.power_cut(now, PowerOn::ClockRestarts);
        assert_eq!(self.ssd.counters().violations, 0, "{:?}", self.ssd.violations());
    }

    /// Mounts it and does that; then the power goes without a stop.
    fn life<T: 'static>(
        &mut self,
        kind: &Kind,
        what: &str,
        work: impl AsyncFnOnce(&Pftl, &Cx) -> T + 'static,
    ) -> (T, Mounted) {
        let (done, ftl, run) = self.up(kind, what, work);
        let did = ftl.recovery().expect("it was mounted");
        let found = Mounted { did, free_lines: ftl.details().free_lines };
        self.cut(run, Some(ftl));
        (done, found)
    }

    /// Mounts it, compares every sector.
    fn look(&mut self, kind: &Kind, what: &str) -> Mounted {
        let (held, whose) = (self.held.clone(), what.to_string());
        let compare = async move |ftl: &Pftl, cx: &Cx| {
            ftl.walk().expect("consistent");
            for (lba, held) in (0..).zip(held) {
                assert_eq!(get(ftl, cx, lba).await, held, "sector {lba}, {whose}");
            }
        };
        self.life(kind, what, compare).1
    }

    /// Mounts it, writes a good part of it and flushes.
    fn write_on(&mut self, kind: &Kind) {
        let mut held = self.held.clone();
        let write = async move |ftl: &Pftl, cx: &Cx| {
            for version in 200_000..200_100u64 {
                let lba = version * 11 % held.len() as u64;
                put(ftl, cx, lba, version).await;
                held[lba as usize] = version;
            }
            flush(ftl, cx).await;
            held
        };
        self.held = self.life(kind, "writing on", write).0;
    }

    /// The state of every chunk: what programs and erases change.
    fn chunks(&self) -> Vec<ChunkInfo> {
        let geo = *self.ssd.geometry();
        let report = |pu| self.ssd.chunk_report(pu, 0, geo.chunks_per_pu);
        (0..geo.pus()).flat_map(report).collect()
    }
}

/// A mount after a stop reads no records, finds what a scan finds, and is not taken twice.
#[test]
fn a_snapshot_is_what_a_scan_finds() {
    for kind in kinds() {
        let (mut off, ..) = first_life(&kind, None, &Moments::default());
        let before = off.chunks();
        let quick = off.look(&kind, "the snapshot");
        // On capacitors nothing else is programmed: this is the mark.
        assert!(off.chunks() != before, "{}: no mark", kind.name);
        assert!(quick.did.from_snapshot, "{}: {:?}", kind.name, quick.did);
        assert_eq!(quick.did.scanned_sectors, 0);
        let slow = off.look(&kind, "the scan");
        assert!(!slow.did.from_snapshot && slow.did.scanned_sectors > 0, "{}", kind.name);
        // What each life programs when it begins may have opened a line in between.
        assert!(quick.free_lines.abs_diff(slow.free_lines) <= 1, "{}", kind.name);
    }
}

/// Whatever of a stop a power cut leaves, the next two mounts find what was flushed.
#[test]
fn a_cut_in_a_stop_costs_nothing() {
    for kind in kinds() {
        let moments = Moments::default();
        let (_, began, _) = first_life(&kind, None, &moments);
        let cuts: Vec<Ns> = moments.places().into_iter().filter(|at| *at >= began).collect();
        let step = cuts.len().div_ceil(CUTS);
        let (mut taken, mut tried) = (0, 0);
        for cut in cuts.iter().step_by(step) {
            let (mut off, _, ended) = first_life(&kind, Some(*cut), &Moments::default());
            let what = format!("{}, cut at {cut} of a stop from {began}", kind.name);
            let before = off.chunks();
            let did = off.look(&kind, &what).did;
            assert!(!ended || did.from_snapshot, "{what}: {did:?}");
            assert!(!did.from_snapshot || off.chunks() != before, "{what}: no mark");
            assert!(!off.look(&kind, &what).did.from_snapshot, "{what}: taken twice");
            // What was torn lies behind data now.
            let (mut off, ..) = first_life(&kind, Some(*cut), &Moments::default());
            off.write_on(&kind);
            off.look(&kind, &what);
            (taken, tried) = (taken + did.from_snapshot as u32, tried + 1);
        }
        println!("{}: {tried} cuts in a stop, {taken} snapshots taken", kind.name);
        assert!(tried > 20, "{}: {tried}", kind.name);
    }
}

/// Versions that the life after a stop has written, and whether they are durable.
#[derive(Clone, Default)]
struct Written {
    begun: BTreeMap<u64, u64>,
    acknowledged: BTreeMap<u64, u64>,
    flushed: BTreeMap<u64, u64>,
}

/// The life after a stop: mounts by the snapshot, writes, flushes, and is cut.
fn second_life(kind: &Kind, off: &mut Off, cut: Option<Ns>, moments: &Moments) -> Written {
    let run = Virtual::new(1, 3, CostTable::zero());
    let device: Arc<dyn Device> = Arc::new(NotingDevice::new(off.ssd.clone(), moments.clone()));
    let (cx, config, dump) = (run.cx(), kind.config.clone(), off.dump.clone());
    let written = Rc::new(RefCell::new(Written::default()));
    let up: Rc<RefCell<Option<Arc<Pftl>>>> = Rc::default();
    let (note, up2) = (written.clone(), up.clone());
    run.run(async move {
        let cx2 = cx.clone();
        let life = cx.spawn_join(async move {
            let ftl = Pftl::mount(&cx2, device, config, dump.as_ref()).await.expect("a mount");
            assert!(ftl.recovery().is_some_and(|did| did.from_snapshot), "nothing was written");
            *up2.borrow_mut() = Some(ftl.clone());
            let capacity = ftl.info().capacity;
            for version in 100_000..100_040u64 {
                let lba = version * 7 % capacity;
                note.borrow_mut().begun.insert(lba, version);
                put(&ftl, &cx2, lba, version).await;
                note.borrow_mut().acknowledged.insert(lba, version);
                if version % 10 == 9 {
                    flush(&ftl, &cx2).await;
                    let mut note = note.borrow_mut();
                    note.flushed = note.acknowledged.clone();
                }
            }
        });
        match cut {
            Some(at) => cx.sleep(at).await,
            None => life.await,
        }
    })
    .expect("no stall");
    off.cut(run, up.take());
    written.take()
}

/// Rule 15, and cuts at every command of the mount itself: what the life after a stop has made
/// durable is there, so a snapshot that something follows is never taken.
#[test]
fn a_cut_in_the_life_after_a_stop_never_brings_the_snapshot_back() {
    for kind in kinds() {
        let moments = Moments::default();
        let (mut off, ..) = first_life(&kind, None, &Moments::default());
        second_life(&kind, &mut off, None, &moments);
        let cuts = moments.places();
        let step = cuts.len().div_ceil(CUTS);
        let mut taken = 0;
        for cut in cuts.iter().step_by(step) {
            let (mut off, ..) = first_life(&kind, None, &Moments::default());
            let what = format!("{}, cut at {cut} of the life after a stop", kind.name);
            let before = off.chunks();
            let written = second_life(&kind, &mut off, Some(*cut), &Moments::default());
            let durable = match kind.config.capacitors {
                true => &written.acknowledged,
                false => &written.flushed,
            };
            // An unflushed write may be there or not: what it is, the mount says; then it stays.
            let untouched = before == off.chunks();
            let found = settle(&kind, &mut off, &written, durable, &what);
            assert!(!found.from_snapshot || untouched, "{what}: something is behind it");
            taken += found.from_snapshot as u32;
            off.look(&kind, &what);
        }
        println!("{}: {} cuts, {taken} snapshots taken again", kind.name, cuts.len() / step);
    }
}

/// Mounts and reads each sector: durable, or one of what was begun; notes what it is.
fn settle(
    kind: &Kind,
    off: &mut Off,
    written: &Written,
    durable: &BTreeMap<u64, u64>,
    what: &str,
) -> Recovery {
    let capacity = off.held.len() as u64;
    let read = async move |ftl: &Pftl, cx: &Cx| {
        ftl.walk().expect("consistent");
        let mut got = Vec::new();
        for lba in 0..capacity {
            got.push(get(ftl, cx, lba).await);
        }
        flush(ftl, cx).await;
        got
    };
    let (got, found) = off.life(kind, what, read);
    for (lba, got) in (0u64..).zip(got) {
        let held = &mut off.held[lba as usize];
        if let Some(durable) = durable.get(&lba) {
            assert!(got >= *durable, "{what}: sector {lba} is {got}, {durable} was durable");
        }
        let begun = written.begun.get(&lba) == Some(&got);
        assert!(got == *held || begun, "{what}: sector {lba} is {got}, not {held}");
        *held = got;
    }
    found.did
}

/// Open chunks whose last unit is a root, on a device where the last unit can be read.
fn roots(ssd: &Arc<Ssd>) -> usize {
    let last = |at: &(Location, [u8; 4], u64)| {
        let info = ssd.chunk_report(at.0.pu, at.0.chunk, 1)[0];
        info.state == ChunkState::Open && at.0.sector + 4 == info.write_pointer
    };
    snapshot_places(ssd).iter().filter(|at| at.1 == *b"FLpr" && last(at)).count()
}

/// Content and records of sectors of one chunk, `unit` bytes of content each.
async fn look_at(
    cx: &Cx,
    device: &dyn Device,
    at: &[Location],
    unit: usize,
) -> (Vec<u8>, Vec<[u8; OOB_BYTES]>) {
    let addrs: Vec<_> = at.iter().map(|at| device.format().pack(*at)).collect();
    let index: Vec<u32> = (0..at.len() as u32).collect();
    let (mut bytes, mut oob) = (vec![0; unit * at.len()], vec![[0; OOB_BYTES]; at.len()]);
    let content = Scatter::new(&mut bytes, &index, unit);
    let request = Request {
        op: Op::Read,
        flags: Flags::default(),
        addrs: &addrs,
        data: Data::Read { content, oob: &mut oob },
        whole_sectors: unit == 4096,
    };
    let ticket = device.submit(cx, request);
    device.wait(cx, ticket).await;
    (bytes, oob)
}

/// The sectors of snapshots on a device, with their magic and stamp.
fn snapshot_places(ssd: &Arc<Ssd>) -> Vec<(Location, [u8; 4], u64)> {
    let run = Virtual::new(1, 6, CostTable::zero());
    let (cx, device, geo) = (run.cx(), ssd.clone(), *ssd.geometry());
    let found = run.run(async move {
        let mut found = Vec::new();
        for i in 0..geo.pus() * geo.chunks_per_pu {
            let (pu, chunk) = (i / geo.chunks_per_pu, i % geo.chunks_per_pu);
            let written = device.chunk_report(pu, chunk, 1)[0].write_pointer;
            let at: Vec<_> = (0..written).map(|sector| Location { pu, chunk, sector }).collect();
            if at.is_empty() {
                continue;
            }
            let (_, oob) = look_at(&cx, &*device, &at, 0).await;
            for (at, oob) in at.iter().zip(oob) {
                let (lba, stamp, _) = Oob::decode_raw(&oob);
                if lba == LBA_SNAPSHOT {
                    let (bytes, _) = look_at(&cx, &*device, &[*at], 4096).await;
                    found.push((*at, *bytes.first_chunk().expect("a magic"), stamp));
                }
            }
        }
        found
    });
    found.expect("no stall")
}

/// A life that begins writes behind the root before anything else, whether it takes the snapshot or not: the
/// chunks of a device that does not count erases can be again what they were, with other contents.
#[test]
fn no_root_is_left_when_a_life_begins() {
    for kind in kinds() {
        if kind.spec.geometry.mw_cunits > 0 {
            continue;
        }
        for readable in [true, false] {
            let (mut off, ..) = first_life(&kind, None, &Moments::default());
            assert_eq!(roots(&off.ssd), 2, "{}", kind.name);
            let places = snapshot_places(&off.ssd);
            let newest = places.iter().map(|at| at.2).max().expect("a snapshot");
            let bodies = places.iter().filter(|at| at.1 == *b"FLps" && at.2 == newest);
            for body in bodies.filter(|_| !readable).map(|at| at.0) {
                // Eight tries at once, and in each round over time. Where it may be a root it is
                // looked at for that first.
                let end = off.ssd.chunk_report(body.pu, body.chunk, 1)[0].write_pointer;
                let times = if body.sector + 4 == end { 48 } else { 40 };
                let plan = format!(
                    "[[fault]]\nkind = \"read_uncorrectable\"\ntimes = {times}\n\
                     at = \"pu {} chunk {} sector {}\"\n",
                    body.pu, body.chunk, body.sector
                );
                let plan = FaultPlan::from_toml(&plan).expect("a plan");
                off.ssd.fail(plan.faults[0].clone());
            }
            // The power goes as soon as the host may write.
            let did = off.life(&kind, "a life that begins", async |_: &Pftl, _: &Cx| ()).1.did;
            assert_eq!(did.from_snapshot, readable, "{}: {did:?}", kind.name);
            assert_eq!(roots(&off.ssd), 0, "{}: {did:?}", kind.name);
        }
    }
}

/// An image in memory, of a format that does not check contents: the layer has to.
fn unchecked_image(kind: &Kind) -> Arc<MemoryFile> {
    let file = Arc::new(MemoryFile::default());
    // What is found in the bytes is somebody's.
    file.clear_free_slots();
    Ssd::create_on(file.clone(), &kind.spec, &CreateImage::default()).expect("an image");
    let header = Header { version: UNCHECKED, ..Header::read(&*file).expect("a header") };
    file.write_at(0, &header.to_bytes().expect("it fits")).expect("written");
    file
}

fn open(file: &Arc<MemoryFile>) -> Arc<Ssd> {
    Ssd::open_on(file.clone(), &OpenImage::default()).expect("the image itself is good")
}

/// A new FTL in an image, and what is done with it.
fn created<T: 'static>(
    kind: &Kind,
    file: &Arc<MemoryFile>,
    work: impl AsyncFnOnce(&Pftl, &Cx) -> T + 'static,
) -> T {
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device, config) = (run.cx(), open(file), kind.config.clone());
    let done = run.run(async move {
        let ftl = Pftl::create(&cx, device, config).expect("fits");
        work(&ftl, &cx).await
    });
    done.expect("no stall")
}

async fn play_and_stop(ftl: &Pftl, cx: &Cx) -> Vec<u64> {
    let held = play(ftl, cx).await;
    ftl.stop(cx).await;
    held
}

/// What an image holds, as a device between two lives.
fn off(image: Vec<u8>, held: &[u64]) -> Off {
    Off { ssd: open(&Arc::new(MemoryFile::new(image))), held: held.to_vec(), dump: None }
}

fn kind(name: &str) -> Kind {
    kinds().into_iter().find(|kind| kind.name == name).expect("a row of the table")
}

/// Sectors of an image with the record's logical sector or type, and its stamp: (content, record, lba, stamp).
fn records(file: &[u8]) -> Vec<(usize, usize, u64, u64)> {
    let layout = Header::read(&MemoryFile::new(file.to_vec())).expect("a header").layout();
    let (sectors, slot_bytes) = (layout.sectors as usize, layout.slot_bytes() as usize);
    let slots = (layout.slots_at() as usize..file.len()).step_by(slot_bytes);
    let of_slot = |slot: usize| {
        (0..sectors).map(move |i| (slot + i * 4096, slot + sectors * 4096 + i * Oob::BYTES))
    };
    let all = slots.filter(|slot| slot + slot_bytes <= file.len()).flat_map(of_slot);
    all.map(|(content, oob)| {
        let (lba, stamp, _) = Oob::decode_raw(file[oob..].first_chunk().expect("a record"));
        (content, oob, Oob::split_tag(lba).0, stamp)
    })
    .collect()
}

/// Lists and body of a snapshot are of that snapshot: with a sector of the one before in its place, by a
/// misdirected write, it is not taken.
#[test]
fn a_sector_of_another_snapshot_is_not_taken() {
    let kind = kind("plain, volatile");
    let file = unchecked_image(&kind);
    let mut held = created(&kind, &file, play_and_stop);
    let second = Off { ssd: open(&file), held: held.clone(), dump: None };
    second.up(&kind, "the second life", async |ftl: &Pftl, cx: &Cx| {
        for lba in 0..20 {
            put(ftl, cx, lba, 900_000 + lba).await;
        }
        ftl.stop(cx).await;
    });
    held[..20].iter_mut().zip(900_000..).for_each(|(held, version)| *held = version);
    let bytes = file.bytes();
    let all: Vec<_> = records(&bytes).into_iter().filter(|r| r.2 == LBA_SNAPSHOT).collect();
    let newest = all.iter().map(|r| r.3).max().expect("a snapshot");
    // The root's unit holds copies of it that nobody reads.
    let all = all.into_iter().filter(|r| bytes[r.0..r.0 + 4] != *b"FLpr");
    // Infos are read only where a chunk has gone offline.
    let all = all.filter(|r| bytes[r.0..r.0 + 4] != *b"FLpi");
    let (new, old): (Vec<_>, Vec<_>) = all.partition(|r| r.3 == newest);
    let mut tried = 0;
    for (content, ..) in &new {
        // Magic, number and capacity, as the sector that is to be there, in all its copies.
        let like = |at: usize| (bytes[at..at + 4].to_vec(), bytes[at + 12..at + 24].to_vec());
        for (other, record, ..) in old.iter().filter(|r| like(r.0) == like(*content)) {
            let mut changed = bytes.clone();
            for (copy, oob, ..) in new.iter().filter(|r| like(r.0) == like(*content)) {
                changed.copy_within(*other..other + 4096, *copy);
                changed.copy_within(*record..record + Oob::BYTES, *oob);
            }
            let did = off(changed, &held).look(&kind, "a sector of another snapshot").did;
            assert!(!did.from_snapshot, "{did:?}");
            tried += 1;
        }
    }
    assert!(tried > 1, "{tried} sectors changed places");
}

/// Of copies with one stamp, of which GC leaves two where a cut comes before an erase, a mount takes one that is
/// what its record says: damage of either costs nothing.
#[test]
fn of_equal_copies_one_that_is_good_is_taken() {
    let kind = kind("plain, volatile");
    let file = unchecked_image(&kind);
    let at = file.clone();
    let (held, bytes) = created(&kind, &file, async move |ftl: &Pftl, cx: &Cx| {
        let mut held = play(ftl, cx).await;
        let mut rng = Rng::new(8);
        for version in 500_000.. {
            let lba = rng.below(held.len() as u64);
            put(ftl, cx, lba, version).await;
            held[lba as usize] = version;
            if version % 64 == 0 {
                flush(ftl, cx).await;
                if doubles(&at.bytes()).len() > 3 {
                    break;
                }
            }
        }
        (held, at.bytes())
    });
    for (a, b) in doubles(&bytes) {
        for content in [a, b] {
            let mut bytes = bytes.clone();
            bytes[content] ^= 1;
            off(bytes, &held).look(&kind, &format!("byte {content} of one of two copies changed"));
        }
    }
}

/// The contents of newest copies of host sectors of which there are exactly two: where each lies.
fn doubles(file: &[u8]) -> Vec<(usize, usize)> {
    let mut newest: BTreeMap<u64, (u64, Vec<usize>)> = BTreeMap::new();
    for (content, _, lba, stamp) in records(file).into_iter().filter(|r| r.2 < 1 << 20) {
        let entry = newest.entry(lba).or_default();
        if stamp > entry.0 {
            *entry = (stamp, Vec::new());
        }
        if stamp == entry.0 {
            entry.1.push(content);
        }
    }
    let two = |(_, at): (u64, Vec<usize>)| Some((*at.first()?, *at.get(1)?));
    newest.into_values().filter_map(two).collect()
}

/// A byte of a snapshot that is not what was written: the mount takes the other copy, and where
/// that is changed as well it scans, and loses nothing.
#[test]
fn a_damaged_snapshot_is_not_taken() {
    let kind = kind("a window, volatile");
    let file = unchecked_image(&kind);
    let held = created(&kind, &file, play_and_stop);
    let bytes = file.bytes();
    let sectors: Vec<_> = records(&bytes).into_iter().filter(|r| r.2 == LBA_SNAPSHOT).collect();
    assert!(sectors.len() > 6, "{sectors:?}");
    let like = |at: usize| (bytes[at..at + 4].to_vec(), bytes[at + 12..at + 16].to_vec());
    let mut copies: BTreeMap<_, Vec<(usize, usize)>> = BTreeMap::new();
    for (content, oob, ..) in &sectors {
        copies.entry(like(*content)).or_default().push((*content, *oob));
    }
    let look = |changed: &[usize]| {
        let mut bytes = bytes.clone();
        changed.iter().for_each(|at| bytes[*at] ^= 0x10);
        off(bytes, &held).look(&kind, &format!("bytes {changed:?} changed")).did
    };
    assert!(look(&[]).from_snapshot, "without a change");
    let mut refused = BTreeMap::new();
    for ((magic, _), all) in copies {
        let one = look(&[all[0].0 + 70]);
        assert!(one.from_snapshot, "{all:?}: {one:?}");
        type Place = fn(&(usize, usize)) -> usize;
        let places: [Place; 3] = [|at| at.0 + 70, |at| at.0 + 5, |at| at.1 + 7];
        for place in places {
            let changed: Vec<usize> = all.iter().map(place).collect();
            let did = look(&changed);
            // Infos are read only where a chunk has gone offline.
            assert_eq!(did.from_snapshot, magic == *b"FLpi", "{magic:?}: {did:?}");
            *refused.entry(did.no_snapshot).or_insert(0) += 1;
        }
    }
    println!("{refused:?}");
    assert!(refused.contains_key(&Some("there is none")), "{refused:?}");
    assert!(refused.contains_key(&Some("it can't be read")), "{refused:?}");
}
