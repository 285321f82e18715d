//! The block SSD's snapshot: what it gives, when it is taken, and power cuts around it.
//!
//! Owns: the claims of `pftl/rest.rs` and `pftl/recover/resume.rs`, on small devices of several kinds
//! with and without capacitors. Promises: every cut is at a moment of its own run, so it replays by
//! its message. Never: draws a device (that is the swarm).

use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::{BlockDev, BlockOp, BlockResult, Io};
use flashlane_ftl::log::format::{LBA_SNAPSHOT, Oob};
use flashlane_ftl::pftl::{Dump, Pftl, PftlConfig, Recovery};
use flashlane_media::host::HostFile;
use flashlane_media::host::memory::MemoryFile;
use flashlane_ocssd::device::ChunkInfo;
use flashlane_ocssd::image::{Header, UNCHECKED};
use flashlane_ocssd::{CreateImage, Device, DeviceSpec, OpenImage, PowerOn, Ssd, SsdOptions};
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
        ("pairs, volatile", false, 20, "bits = 2\npairing = \"mlc\"\npair_damage = true", ""),
        ("pairs, capacitors", true, 20, "bits = 2\npairing = \"mlc\"\npair_damage = true", ""),
        ("erases not counted", false, 0, "", "erase_ignored = true"),
    ] {
        let text = format!(
            "name = \"{name}\"\nppa = \"2.0\"\n[geometry]\nchannels = 2\npus_per_channel = 1\n\
             planes = 2\nchunks_per_pu = 40\npages_per_block = 16\nsectors_per_page = 2\n\
             ws_min = 4\nws_opt = 4\nmw_cunits = {window}\n[timing]\nread = [\"50us\"]\n\
             program = [\"500us\"]\nerase = \"3ms\"\nchannel_bandwidth = \"400MB\"\n\
             [cells]\n{cells}\n[limits]\nreset_free = true\nreset_open = true\n{limits}\n"
        );
        let spec = DeviceSpec::from_toml(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let over_provisioning_percent = if capacitors { 40 } else { 75 };
        let config = PftlConfig { over_provisioning_percent, capacitors, ..PftlConfig::default() };
        all.push(Kind { name, spec, config });
    }
    all
}

pub(super) async fn ask(dev: &Pftl, cx: &Cx, op: BlockOp, lba: u64, buf: &mut [u8]) -> BlockResult {
    let sectors = if op == BlockOp::Flush { 0 } else { 1 };
    dev.start(cx, Io { op, lba: Lba::new(lba), sectors, fua: false, buf }).await
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
    let ssd = Ssd::new(&kind.spec, SsdOptions::default()).expect("a device");
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
    let dump = ftl.power_lost();
    let now = run.now();
    drop((run, ftl));
    ssd.power_cut(now, PowerOn::ClockRestarts);
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations());
    (Off { ssd, held, dump }, began, ended)
}

/// What a life found.
struct Mounted {
    did: Recovery,
    free_lines: u32,
}

impl Off {
    /// Mounts it, compares every sector; then the power goes without a stop.
    fn look(&mut self, kind: &Kind, what: &str) -> Mounted {
        let run = Virtual::new(1, 2, CostTable::zero());
        let (cx, device, config) = (run.cx(), self.ssd.clone(), kind.config.clone());
        let (dump, held, whose) = (self.dump.clone(), self.held.clone(), what.to_string());
        let ftl = run.run(async move {
            let ftl = Pftl::mount(&cx, device, config, dump.as_ref()).await?;
            ftl.walk().expect("consistent");
            for (lba, held) in (0..).zip(held) {
                assert_eq!(get(&ftl, &cx, lba).await, held, "sector {lba}, {whose}");
            }
            Ok::<_, flashlane_ftl::pftl::MountError>(ftl)
        });
        let ftl = ftl.expect("no stall").unwrap_or_else(|e| panic!("{}: {what}: {e}", kind.name));
        let did = ftl.recovery().expect("it was mounted");
        let found = Mounted { did, free_lines: ftl.details().free_lines };
        self.dump = ftl.power_lost();
        let now = run.now();
        drop((run, ftl));
        self.ssd.power_cut(now, PowerOn::ClockRestarts);
        assert_eq!(self.ssd.counters().violations, 0, "{:?}", self.ssd.violations());
        found
    }

    /// Mounts it, writes a good part of it and flushes; then the power goes.
    fn write_on(&mut self, kind: &Kind) {
        let run = Virtual::new(1, 5, CostTable::zero());
        let (cx, device, config) = (run.cx(), self.ssd.clone(), kind.config.clone());
        let (dump, mut held) = (self.dump.clone(), self.held.clone());
        let ended = run.run(async move {
            let ftl = Pftl::mount(&cx, device, config, dump.as_ref()).await.expect("a mount");
            for version in 200_000..200_100u64 {
                let lba = version * 11 % held.len() as u64;
                put(&ftl, &cx, lba, version).await;
                held[lba as usize] = version;
            }
            flush(&ftl, &cx).await;
            (ftl, held)
        });
        let (ftl, held) = ended.expect("no stall");
        (self.held, self.dump) = (held, ftl.power_lost());
        let now = run.now();
        drop((run, ftl));
        self.ssd.power_cut(now, PowerOn::ClockRestarts);
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
        assert_eq!(quick.free_lines, slow.free_lines, "{}", kind.name);
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
    // Where the mount itself was cut the dump of before is all there is.
    if let Some(ftl) = up.borrow_mut().take() {
        off.dump = ftl.power_lost();
    }
    let now = run.now();
    drop(run);
    off.ssd.power_cut(now, PowerOn::ClockRestarts);
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
    let run = Virtual::new(1, 4, CostTable::zero());
    let (cx, device, config) = (run.cx(), off.ssd.clone(), kind.config.clone());
    let dump = off.dump.clone();
    let capacity = off.held.len() as u64;
    let (ftl, got) = run
        .run(async move {
            let ftl = Pftl::mount(&cx, device, config, dump.as_ref()).await.expect("a mount");
            ftl.walk().expect("consistent");
            let mut got = Vec::new();
            for lba in 0..capacity {
                got.push(get(&ftl, &cx, lba).await);
            }
            flush(&ftl, &cx).await;
            (ftl, got)
        })
        .expect("no stall");
    for (lba, got) in (0u64..).zip(got) {
        let held = &mut off.held[lba as usize];
        if let Some(durable) = durable.get(&lba) {
            assert!(got >= *durable, "{what}: sector {lba} is {got}, {durable} was durable");
        }
        let begun = written.begun.get(&lba) == Some(&got);
        assert!(got == *held || begun, "{what}: sector {lba} is {got}, not {held}");
        *held = got;
    }
    let did = ftl.recovery().expect("it was mounted");
    off.dump = ftl.power_lost();
    let now = run.now();
    drop((run, ftl));
    off.ssd.power_cut(now, PowerOn::ClockRestarts);
    did
}

/// Where the sectors of snapshots are in an image: (content, record).
fn snapshot_sectors(file: &[u8], spec: &DeviceSpec) -> Vec<(usize, usize)> {
    let layout = Header::read(&MemoryFile::new(file.to_vec())).expect("a header").layout();
    assert_eq!(spec.geometry().sectors_per_chunk(), layout.sectors);
    let (sectors, slot_bytes) = (layout.sectors as usize, layout.slot_bytes() as usize);
    let slots = (layout.slots_at() as usize..file.len()).step_by(slot_bytes);
    let mut all = Vec::new();
    for slot in slots.filter(|slot| slot + slot_bytes <= file.len()) {
        for i in 0..sectors {
            let (content, oob) = (slot + i * 4096, slot + sectors * 4096 + i * Oob::BYTES);
            let record = file[oob..].first_chunk().expect("a record");
            if Oob::decode_raw(record).0 == LBA_SNAPSHOT {
                all.push((content, oob));
            }
        }
    }
    all
}

/// A byte of a snapshot that is not what was written: the mount scans, and loses nothing.
#[test]
fn a_damaged_snapshot_is_not_taken() {
    let kind = kinds().into_iter().find(|kind| kind.name == "a window, volatile");
    let kind = kind.expect("a row of the table");
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &kind.spec, &CreateImage::default()).expect("an image");
    // Of a format that does not check contents: the layer has to.
    let header = Header { version: UNCHECKED, ..Header::read(&*file).expect("a header") };
    file.write_at(0, &header.to_bytes().expect("it fits")).expect("written");
    let open = |file: &Arc<MemoryFile>| {
        Ssd::open_on(file.clone(), &OpenImage::default()).expect("the image itself is good")
    };
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device, config) = (run.cx(), open(&file), kind.config.clone());
    let held = run.run(async move {
        let ftl = Pftl::create(&cx, device, config).expect("fits");
        let held = play(&ftl, &cx).await;
        ftl.stop(&cx).await;
        held
    });
    let held = held.expect("no stall");
    let bytes = file.bytes();
    let sectors = snapshot_sectors(&bytes, &kind.spec);
    assert!(sectors.len() > 6, "{sectors:?}");
    let mut refused = BTreeMap::new();
    let changes = sectors.iter().flat_map(|(content, oob)| [content + 70, content + 5, oob + 7]);
    for at in changes.map(Some).chain([None]) {
        let mut bytes = bytes.clone();
        if let Some(at) = at {
            bytes[at] ^= 0x10;
        }
        let ssd = open(&Arc::new(MemoryFile::new(bytes)));
        let mut off = Off { ssd, held: held.clone(), dump: None };
        let did = off.look(&kind, &format!("byte {at:?} changed")).did;
        assert!(at.is_some() || did.from_snapshot, "without a change: {did:?}");
        *refused.entry(did.no_snapshot).or_insert(0) += 1;
    }
    println!("{refused:?}");
    // Of the root one copy is read, the others are spare: the padding behind it.
    let scans: u32 = refused.iter().filter(|(why, _)| why.is_some()).map(|(_, n)| n).sum();
    assert!(scans >= 9 && refused.contains_key(&Some("there is none")), "{refused:?}");
}
