//! What vanishes at a mount of a drive's FTL: dies, chunks, the first seconds of reads.
//!
//! Owns: the claim that what can't be read is unknown, never empty, for the block SSD and the
//! SLC/TLC SSD. Promises: each test plants one fault in a device at rest and mounts it, more than
//! once where the verdict must stay. Never: draws a fault at random (that is `flashlane torture`).

use crate::prelude::*;
use flashlane_ftl::kit::{DriveConfig, MountError as KitError, Recovery};
use flashlane_ftl::layer::LostCause;
use flashlane_ftl::pftl::Victim;
use flashlane_ftl::slc::{Scheme, SlcConfig};
use flashlane_ocssd::Device;
use flashlane_ocssd::device::{ChunkState, Op, Request, Scatter, Status};
use flashlane_ocssd::wrap::{Script, ScriptedDevice};

/// Logical sectors that are written, twice each.
const USED: u64 = 600;

/// A device and how its FTL is built.
#[derive(Clone)]
struct Drive {
    name: &'static str,
    spec: DeviceSpec,
    config: DriveConfig,
}

const LIMITS: &str = "[limits]\nreset_free = true\nreset_open = true\n";

/// Four PUs, short chunks, a window or none.
fn block_ssd(name: &'static str, window: u32) -> Drive {
    let mut spec = DeviceSpec::preset("tiny").expect("a preset").with_chunks_per_pu(40);
    spec.geometry.mw_cunits = window;
    let config =
        PftlConfig { over_provisioning_percent: 40, capacitors: false, ..PftlConfig::default() };
    Drive { name, spec, config: config.into() }
}

fn slc_tlc() -> Drive {
    let text = format!(
        "name = \"slc\"\nppa = \"2.0\"\n[geometry]\nchannels = 2\npus_per_channel = 2\n\
         planes = 2\nchunks_per_pu = 40\npages_per_block = 24\nsectors_per_page = 2\nws_min = 4\n\
         ws_opt = 4\nmw_cunits = 8\n[timing]\nread = [\"50us\"]\nprogram = [\"1ms\"]\n\
         erase = \"3ms\"\nchannel_bandwidth = \"400MB\"\n[cells]\nbits = 3\n\
         slc = {{ read = \"20us\", program = \"200us\", erase = \"2ms\", ws_min = 2 }}\n{LIMITS}"
    );
    let spec = DeviceSpec::from_toml(&text).expect("a device");
    let config = SlcConfig {
        scheme: Scheme::Conventional,
        slc_chunks: Some(6),
        over_provisioning_percent: 50,
        ..SlcConfig::default()
    };
    Drive { name: "slc", spec, config: config.into() }
}

/// The same where a line is a single chunk.
fn by_chunk() -> Drive {
    let drive = block_ssd("block, chunk by chunk", 0);
    let config = PftlConfig {
        over_provisioning_percent: 40,
        capacitors: false,
        victim: Victim::Block,
        ..PftlConfig::default()
    };
    Drive { config: config.into(), ..drive }
}

fn drives() -> [Drive; 4] {
    [block_ssd("block", 8), block_ssd("block, no window", 0), slc_tlc(), by_chunk()]
}

/// How the first life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Stop,
    /// The same with so many units more.
    StopBehind(u64),
    /// Behind a flush, with nothing under way.
    Kill,
    /// While sectors are programmed that nobody has flushed.
    Cut,
    /// Behind a flush and so many units more, while one unit is programmed that nobody has flushed.
    Torn(u64),
    /// After a flush. Then the host writes so many sectors and flushes after each one.
    Flushed(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Got {
    Good,
    Older,
    Zeros,
    Error,
}

async fn put(ftl: &Pftl, cx: &Cx, lba: u64, version: u64) {
    let mut buf = (lba << 32 | version).to_le_bytes();
    let io = Io::of(BlockOp::Write, Lba::new(lba), 1, false, &mut buf);
    ftl.start(cx, io).await.expect("a write");
}

async fn flush(ftl: &Pftl, cx: &Cx) {
    let io = Io::of(BlockOp::Flush, Lba::new(0), 0, false, &mut []);
    ftl.start(cx, io).await.expect("a flush");
}

async fn look(ftl: &Pftl, cx: &Cx) -> Vec<Got> {
    let mut all = Vec::new();
    for lba in 0..USED {
        let mut buf = [0xee; 8];
        let io = Io::of(BlockOp::Read, Lba::new(lba), 1, false, &mut buf);
        let read = ftl.start(cx, io).await;
        let word = u64::from_le_bytes(buf);
        all.push(match (read, word & 0xffff_ffff) {
            (Err(_), _) => Got::Error,
            (Ok(()), _) if word == 0 => Got::Zeros,
            (Ok(()), 2) if word >> 32 == lba => Got::Good,
            // Written after the last flush: as good.
            (Ok(()), 3) if word >> 32 == lba => Got::Good,
            _ => Got::Older,
        });
    }
    all
}

/// A new device. A line of its plan never strikes: what a test adds later strikes only where there
/// is a plan.
fn blank(drive: &Drive, faults: &str) -> Arc<Ssd> {
    let plan =
        format!("{faults}[[fault]]\nkind = \"read_uncorrectable\"\ncount = {}\n", 1u64 << 50);
    let faults = FaultPlan::from_toml(&plan).expect("a plan");
    let options = SsdOptions { faults, ..SsdOptions::default() };
    Ssd::new(&drive.spec, options).expect("a device")
}

/// A device at rest, with a life behind it.
fn lived(drive: &Drive, faults: &str, end: End) -> Arc<Ssd> {
    let ssd = blank(drive, faults);
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
    run.run(async move {
        let ftl = Pftl::create(&cx, device, config).expect("fits");
        cx.sleep(Ns::from_ms(100)).await;
        for version in [1, 2] {
            for lba in 0..USED {
                put(&ftl, &cx, lba, version).await;
                if lba % 50 == 0 {
                    flush(&ftl, &cx).await;
                }
            }
        }
        flush(&ftl, &cx).await;
        match end {
            End::Stop => ftl.stop(&cx).await,
            End::StopBehind(units) => {
                for lba in 200..200 + 4 * units {
                    put(&ftl, &cx, lba, 3).await;
                }
                ftl.stop(&cx).await;
            }
            End::Kill => {}
            End::Flushed(sectors) => {
                for lba in 0..sectors {
                    put(&ftl, &cx, lba, 4).await;
                    flush(&ftl, &cx).await;
                }
            }
            End::Cut => {
                for lba in 0..40 {
                    put(&ftl, &cx, lba, 3).await;
                }
                cx.sleep(Ns::from_us(700)).await;
            }
            End::Torn(units) => {
                for lba in 0..4 * units {
                    put(&ftl, &cx, lba, 3).await;
                }
                flush(&ftl, &cx).await;
                cx.sleep(Ns::from_ms(10)).await;
                for lba in 100..104 {
                    put(&ftl, &cx, lba, 3).await;
                }
                cx.sleep(Ns::from_us(300)).await;
            }
        }
    })
    .expect("no stall");
    cut(&ssd, run);
    ssd
}

fn cut(ssd: &Ssd, run: Virtual) {
    let now = run.now();
    drop(run);
    ssd.power_cut(now, PowerOn::ClockRestarts);
    assert_eq!(ssd.counters().violations, 0, "{:?}", ssd.violations().first());
}

/// What a life found: each sector, and what the mount says.
type Found = (Vec<Got>, Recovery);

/// Mounts it, has `look` look at it, and stops it or cuts its power.
fn life<T: 'static>(
    drive: &Drive,
    ssd: &Arc<Ssd>,
    (accept, stops): (bool, bool),
    look: impl AsyncFnOnce(&Pftl, &Cx) -> T + 'static,
) -> Result<T, KitError> {
    let run = Virtual::new(1, 2, CostTable::zero());
    let (cx, device) = (run.cx(), ssd.clone());
    let config = DriveConfig { accept_lost_sectors: accept, ..drive.config.clone() };
    let found = run.run(async move {
        let ftl = Pftl::mount(&cx, device, config, None).await?;
        ftl.walk().expect("consistent");
        let got = look(&ftl, &cx).await;
        if stops {
            ftl.stop(&cx).await;
        }
        Ok(got)
    });
    cut(ssd, run);
    found.expect("no stall")
}

/// Mounts it, looks at each sector, and stops or is cut.
fn mount(drive: &Drive, ssd: &Arc<Ssd>, accept: bool, stops: bool) -> Result<Found, KitError> {
    life(drive, ssd, (accept, stops), async |ftl, cx| {
        (look(ftl, cx).await, ftl.recovery().expect("it was mounted"))
    })
}

fn plant(ssd: &Ssd, fault: &str) {
    let plan = FaultPlan::from_toml(&format!("[[fault]]\n{fault}\n")).expect("a plan");
    ssd.fail(plan.faults[0].clone());
}

fn count(got: &[Got], what: Got) -> usize {
    got.iter().filter(|got| **got == what).count()
}

/// Nothing older and no zeros; how many are good.
fn honest(got: &[Got], what: &str) -> usize {
    assert_eq!(count(got, Got::Older), 0, "{what}: older");
    assert_eq!(count(got, Got::Zeros), 0, "{what}: zeros");
    count(got, Got::Good)
}

/// Open chunks that hold at most two units.
fn short(ssd: &Ssd) -> Vec<(u32, u32)> {
    chunks(ssd, |info| info.state == ChunkState::Open && info.write_pointer <= 8)
}

/// Chunks that hold more than two units. A mount may take up to two units at the end of a chunk for
/// torn ones.
fn written(ssd: &Ssd) -> Vec<(u32, u32)> {
    let used = |info: &ChunkInfo| matches!(info.state, ChunkState::Open | ChunkState::Closed);
    chunks(ssd, |info| used(info) && info.write_pointer > 8)
}

/// The chunks whose report fulfils `is`, each as (PU, chunk).
fn chunks(ssd: &Ssd, is: impl Fn(&ChunkInfo) -> bool) -> Vec<(u32, u32)> {
    let geo = *ssd.geometry();
    let report = |pu: u32| (0..).zip(ssd.chunk_report(pu, 0, geo.chunks_per_pu));
    let all = (0..geo.pus()).flat_map(|pu| report(pu).map(move |(chunk, info)| (pu, chunk, info)));
    all.filter(|(.., info)| is(info)).map(|(pu, chunk, _)| (pu, chunk)).collect()
}

/// After a clean stop a dead die costs what was on it, which is an error, exactly listed, at the
/// first mount and at each one that follows, whether that life is stopped or cut.
#[test]
fn a_clean_stop_outlives_a_die() {
    for drive in drives() {
        for (pu, stops) in (0..4).flat_map(|pu| [(pu, true), (pu, false)]) {
            let what = format!("{}, PU {pu} dead, stops {stops}", drive.name);
            let ssd = lived(&drive, "", End::Stop);
            plant(&ssd, &format!("kind = \"die_fail\"\npu = {pu}"));
            let mut first: Option<Vec<Got>> = None;
            for _ in 0..3 {
                let (got, did) =
                    mount(&drive, &ssd, false, stops).unwrap_or_else(|e| panic!("{what}: {e}"));
                let good = honest(&got, &what);
                assert!(good >= USED as usize * 7 / 10, "{what}: {good} good");
                let lost = did.lost_sectors.iter().flat_map(|l| l.first..l.first + l.count);
                let lost: Vec<u64> = lost.filter(|lba| *lba < USED).collect();
                let errors = (0..USED).filter(|lba| got[*lba as usize] == Got::Error);
                assert_eq!(lost, errors.collect::<Vec<_>>(), "{what}");
                if first.is_none() {
                    assert!(did.from_snapshot, "{what}: {:?}", did.no_snapshot);
                    let dead =
                        |l: &flashlane_ftl::layer::LostSectors| l.cause == LostCause::DeadPu(pu);
                    assert!(did.lost_sectors.iter().all(dead), "{what}: {:?}", did.lost_sectors);
                }
                assert_eq!(first.get_or_insert(got.clone()), &got, "{what}: another answer");
            }
        }
    }
}

/// Without a stop nobody knows what was on a dead die: the mount is refused, in the same words the
/// second time; accepted, what may be older is an error, and stays one.
#[test]
fn a_die_that_is_dead_after_a_cut_is_no_empty_one() {
    for drive in drives() {
        for (pu, end) in (0..4).flat_map(|pu| [(pu, End::Kill), (pu, End::Cut)]) {
            let what = format!("{}, PU {pu} dead, {end:?}", drive.name);
            let ssd = lived(&drive, "", end);
            plant(&ssd, &format!("kind = \"die_fail\"\npu = {pu}"));
            let why = mount(&drive, &ssd, false, false).err();
            assert!(matches!(why, Some(KitError::Lost { .. })), "{what}: {why:?}");
            let text = why.as_ref().map(ToString::to_string).unwrap_or_default();
            assert!(text.contains(&format!("PU {pu} is dead")), "{text}");
            assert_eq!(mount(&drive, &ssd, false, false).err(), why, "{what}");
            for stops in [false, false, true] {
                let (got, did) = mount(&drive, &ssd, true, stops).expect("accepted");
                honest(&got, &what);
                assert!(!did.lost_sectors.is_empty(), "{what}");
            }
        }
    }
}

/// The newest that is left of a sector may have the highest stamp of all that is left, and be older
/// than what is lost: where a loss is accepted it is an error like all others.
#[test]
fn the_newest_that_is_left_may_be_older_than_what_is_lost() {
    const LBA: u64 = 5;
    for drive in drives() {
        let mut errors = 0;
        for pu in 0..4 {
            let ssd = blank(&drive, "");
            let run = Virtual::new(1, 1, CostTable::zero());
            let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
            run.run(async move {
                let ftl = Pftl::create(&cx, device, config).expect("fits");
                cx.sleep(Ns::from_ms(100)).await;
                for version in [1, 2] {
                    put(&ftl, &cx, LBA, version).await;
                    flush(&ftl, &cx).await;
                }
            })
            .expect("no stall");
            cut(&ssd, run);
            plant(&ssd, &format!("kind = \"die_fail\"\npu = {pu}"));
            let (got, _) = mount(&drive, &ssd, true, false).expect("accepted");
            let got = got[LBA as usize];
            let what = format!("{}, PU {pu} dead: {got:?}", drive.name);
            assert!(matches!(got, Got::Good | Got::Error), "{what}");
            errors += u32::from(got == Got::Error);
        }
        assert!(errors > 0, "{}: nothing was lost", drive.name);
    }
}

/// A chunk whose reads fail is refused, as often as it is tried; when the fault is over all is
/// good.
#[test]
fn a_chunk_that_can_not_be_read_is_no_torn_erase() {
    for drive in drives() {
        let chunks = written(&lived(&drive, "", End::Kill));
        let mut refused = 0;
        for (pu, chunk) in chunks {
            let what = format!("{}, chunk {chunk} of PU {pu}", drive.name);
            let ssd = lived(&drive, "", End::Kill);
            plant(
                &ssd,
                &format!(
                    "kind = \"read_uncorrectable\"\npu = {pu}\nchunk = {chunk}\ntimes = 100000000"
                ),
            );
            for _ in 0..2 {
                match mount(&drive, &ssd, false, false) {
                    Err(KitError::Lost { .. }) => refused += 1,
                    Err(other) => panic!("{what}: {other}"),
                    // It held nothing that counted, or one unit that might be torn, which was not
                    // flushed.
                    Ok((got, _)) => {
                        let held = honest(&got, &what) + count(&got, Got::Error);
                        assert_eq!(held, USED as usize, "{what}");
                    }
                }
            }
            ssd.forgive();
            let (got, _) =
                mount(&drive, &ssd, false, false).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(honest(&got, &what), USED as usize, "{what}");
        }
        assert!(refused > 8, "{}: {refused} refused", drive.name);
    }
}

/// Two PUs can't be read, and no chunk has more units than cut mounts may have torn. Each mount
/// calls that a loss.
#[test]
fn chunks_of_three_units_are_not_torn_as_a_whole() {
    let mut drive = block_ssd("block, short chunks", 0);
    let per_page = drive.spec.geometry.planes * drive.spec.geometry.sectors_per_page;
    drive.spec.geometry.pages_per_block = 3 * drive.spec.geometry.ws_opt / per_page;
    drive.spec = drive.spec.with_chunks_per_pu(120);
    for end in [End::Kill, End::Cut] {
        let ssd = lived(&drive, "", end);
        for pu in [0, 1] {
            plant(&ssd, &format!("kind = \"read_uncorrectable\"\npu = {pu}\ntimes = 100000000"));
        }
        for _ in 0..2 {
            let why = mount(&drive, &ssd, false, false).err();
            assert!(matches!(why, Some(KitError::Lost { .. })), "{end:?}: {why:?}");
        }
        ssd.forgive();
        let (got, _) = mount(&drive, &ssd, false, false).expect("the fault is over");
        assert_eq!(honest(&got, drive.name), USED as usize, "{end:?}");
    }
}

/// A chunk with one or two flushed units goes bad: none of its sectors can be read, and the next
/// program closes it. A mount must not take the units for torn ones.
#[test]
fn a_chunk_that_goes_bad_with_one_unit_is_no_torn_one() {
    for drive in drives() {
        let mut refused = 0;
        for sectors in 1..10 {
            let end = End::Flushed(sectors);
            let chunks = short(&lived(&drive, "", end));
            for (pu, chunk) in chunks {
                let what = format!("{}, {end:?}, chunk {chunk} of PU {pu}", drive.name);
                let ssd = lived(&drive, "", end);
                let place = format!("pu = {pu}\nchunk = {chunk}\ntimes = 100000000");
                plant(&ssd, &format!("kind = \"read_uncorrectable\"\n{place}"));
                plant(&ssd, &format!("kind = \"early_close\"\n{place}"));
                for _ in 0..2 {
                    let newest = async move |ftl: &Pftl, cx: &Cx| newest(ftl, cx, sectors).await;
                    match life(&drive, &ssd, (false, false), newest) {
                        Err(KitError::Lost { .. }) => refused += 1,
                        Err(other) => panic!("{what}: {other}"),
                        Ok(found) => assert_eq!(found, sectors, "{what}"),
                    }
                }
            }
        }
        assert!(refused > 8, "{}: {refused} refused", drive.name);
    }
}

/// How many of the first `sectors` sectors are as [`End::Flushed`] left them.
async fn newest(ftl: &Pftl, cx: &Cx, sectors: u64) -> u64 {
    let mut found = 0;
    for lba in 0..sectors {
        let mut buf = [0; 8];
        let io = Io::of(BlockOp::Read, Lba::new(lba), 1, false, &mut buf);
        let read = ftl.start(cx, io).await;
        found += u64::from(read.is_ok() && u64::from_le_bytes(buf) == (lba << 32 | 4));
    }
    found
}

/// Times that [`lived_with_gc`] writes all: enough for GC to have erased chunks.
const ROUNDS: u64 = 40;

/// A life in which GC has erased chunks and opened them again, with trims at its end: sectors 500
/// .. are discarded.
fn lived_with_gc(drive: &Drive) -> Arc<Ssd> {
    let ssd = blank(drive, "");
    let run = Virtual::new(1, 1, CostTable::zero());
    let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
    run.run(async move {
        let ftl = Pftl::create(&cx, device, config).expect("fits");
        cx.sleep(Ns::from_ms(100)).await;
        for round in 0..ROUNDS {
            for lba in 0..USED {
                put(&ftl, &cx, lba, if round < ROUNDS - 1 { 1 } else { 2 }).await;
            }
            flush(&ftl, &cx).await;
        }
        let mut none = [];
        let io = Io::of(BlockOp::Discard, Lba::new(500), USED as u32 - 500, false, &mut none);
        ftl.start(&cx, io).await.expect("a discard");
        flush(&ftl, &cx).await;
    })
    .expect("no stall");
    cut(&ssd, run);
    ssd
}

/// Fails if a sector is neither as it was flushed in [`lived_with_gc`] nor an error.
fn honest_with_trims(got: &[Got], what: &str) {
    let (written, trimmed) = got.split_at(500);
    honest(written, what);
    let back = trimmed.iter().filter(|got| !matches!(got, Got::Zeros | Got::Error)).count();
    assert_eq!(back, 0, "{what}: trimmed sectors are back");
}

/// A chunk that was erased, opened again and flushed is lost.
#[test]
fn a_chunk_that_was_opened_again_is_no_torn_erase() {
    for drive in drives() {
        let ssd = lived_with_gc(&drive);
        let erases = |(pu, chunk): &(u32, u32)| ssd.chunk_report(*pu, *chunk, 1)[0].erases;
        let again: Vec<_> = written(&ssd).into_iter().filter(|at| erases(at) > 0).collect();
        assert!(again.len() > 4, "{}: {} chunks", drive.name, again.len());
        for (pu, chunk) in again.into_iter().take(16) {
            let what = format!("{}, chunk {chunk} of PU {pu}", drive.name);
            let ssd = lived_with_gc(&drive);
            let place = format!("pu = {pu}\nchunk = {chunk}\ntimes = 100000000");
            plant(&ssd, &format!("kind = \"read_uncorrectable\"\n{place}"));
            if let Ok((got, _)) = mount(&drive, &ssd, false, false) {
                honest_with_trims(&got, &what);
            }
        }
    }
}

/// A PU can't be read any more from some moment of a mount on, also shortly before the mount's
/// last read: the mount is refused, or the next one, when all can be read again, misses nothing,
/// trims neither.
#[test]
fn a_pu_that_goes_in_the_middle_of_a_mount_takes_nothing_along() {
    let drives = [block_ssd("block", 0), by_chunk()];
    for (drive, pu) in drives.iter().flat_map(|drive| (0..4).map(move |pu| (drive, pu))) {
        let from_on = |count: u64| {
            let ssd = lived_with_gc(drive);
            let from = format!("pu = {pu}\ncount = {count}\ntimes = 100000000");
            plant(&ssd, &format!("kind = \"read_uncorrectable\"\n{from}"));
            match mount(drive, &ssd, false, false) {
                Ok(_) => {
                    ssd.forgive();
                    let what = format!("{}, PU {pu} from read {count} on", drive.name);
                    let (got, _) =
                        mount(drive, &ssd, false, false).unwrap_or_else(|e| panic!("{what}: {e}"));
                    honest_with_trims(&got, &what);
                    true
                }
                Err(KitError::Lost { .. }) => false,
                Err(other) => panic!("{}, PU {pu} from read {count} on: {other}", drive.name),
            }
        };
        let mut last = 1;
        while !from_on(last) {
            last *= 2;
        }
        let mut first = last / 2;
        while first + 1 < last {
            let middle = first.midpoint(last);
            if from_on(middle) { last = middle } else { first = middle }
        }
        let mounted = (last.saturating_sub(16).max(1)..last + 4).filter(|n| from_on(*n)).count();
        assert!(mounted >= 4, "{}: {mounted} mounts around read {last}", drive.name);
    }
}

/// The records in a chunk, without tags: (place, logical sector, stamp).
async fn records(ssd: &dyn Device, cx: &Cx, pu: u32, chunk: u32) -> Vec<(Location, u64, u64)> {
    let info = ssd.chunk_report(pu, chunk, 1)[0];
    let sectors: Vec<u32> = (0..info.write_pointer).collect();
    let mut found = Vec::new();
    for sectors in sectors.chunks(16) {
        let at: Vec<Location> =
            sectors.iter().map(|sector| Location { pu, chunk, sector: *sector }).collect();
        let addrs: Vec<Ppa> = at.iter().map(|at| ssd.format().pack(*at)).collect();
        let mut oob = vec![[0; Oob::BYTES]; addrs.len()];
        let index: Vec<u32> = (0..addrs.len() as u32).collect();
        let content = Scatter::new(&mut [], &index, 0);
        ssd.io(cx, Request::read(&addrs, content, &mut oob)).await;
        let records = oob.iter().map(Oob::decode_raw);
        let untagged = records.map(|(raw, stamp, _)| (Oob::split_tag(raw).0, stamp));
        found.extend(at.into_iter().zip(untagged).map(|(at, (lba, stamp))| (at, lba, stamp)));
    }
    found
}

/// The logical sectors that the records in a chunk name.
async fn named(ssd: &dyn Device, cx: &Cx, pu: u32, chunk: u32) -> BTreeSet<u64> {
    let found = records(ssd, cx, pu, chunk).await;
    found.into_iter().map(|(_, lba, _)| lba).filter(|lba| *lba < USED).collect()
}

/// Returns the place of the newest copy of the first page of trims. That page has the lowest logical
/// address above the host's sectors.
async fn page_of_trims(ssd: &dyn Device, cx: &Cx) -> Location {
    let geo = *ssd.geometry();
    let mut pages = Vec::new();
    for (pu, chunk) in (0..geo.pus()).flat_map(|pu| (0..geo.chunks_per_pu).map(move |c| (pu, c))) {
        let found = records(ssd, cx, pu, chunk).await;
        pages.extend(found.into_iter().filter(|(_, lba, _)| (USED..LBA_LIMIT).contains(lba)));
    }
    let first = pages.iter().map(|(_, lba, _)| *lba).min();
    let copies = pages.into_iter().filter(|(_, lba, _)| Some(*lba) == first);
    copies.max_by_key(|(.., stamp)| *stamp).expect("a page").0
}

/// The newest page of trims has wrong content and a whole record, so its program has ended: no
/// power cut has torn it. A mount that took it for torn would give back what was discarded.
#[test]
fn a_page_with_a_whole_record_is_no_torn_one() {
    for drive in [block_ssd("block, no window", 0), by_chunk()] {
        let ssd = blank(&drive, "");
        let run = Virtual::new(1, 1, CostTable::zero());
        let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
        let page = run.run(async move {
            let ftl = Pftl::create(&cx, device.clone(), config).expect("fits");
            for lba in 0..USED {
                put(&ftl, &cx, lba, 2).await;
            }
            flush(&ftl, &cx).await;
            let mut none = [];
            let io = Io::of(BlockOp::Discard, Lba::new(500), USED as u32 - 500, false, &mut none);
            ftl.start(&cx, io).await.expect("a discard");
            flush(&ftl, &cx).await;
            page_of_trims(&*device, &cx).await
        });
        let page = page.expect("no stall");
        cut(&ssd, run);
        let what = format!("{}, the page at {page}", drive.name);
        let place = format!("pu = {}\nchunk = {}\nsector = {}", page.pu, page.chunk, page.sector);
        plant(&ssd, &format!("kind = \"bit_flip\"\n{place}\ntimes = 100000000"));
        for _ in 0..2 {
            let why = mount(&drive, &ssd, false, false).err();
            let named = matches!(
                why,
                Some(KitError::Lost { sectors: 1, pu, chunk, sector, .. })
                    if (Location { pu, chunk, sector }) == page
            );
            assert!(named, "{what}: {why:?}");
        }
        ssd.forgive();
        let (got, _) = mount(&drive, &ssd, false, false).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!((count(&got, Got::Good), count(&got, Got::Zeros)), (500, 100), "{what}");
    }
}

/// A chunk is lost in a line of whose other chunks each sector was written again since, so that
/// nothing which can be read counts there. It holds the newest copies of its own sectors, and it
/// was not being erased.
#[test]
fn a_lost_chunk_between_garbage_is_no_torn_erase() {
    for drive in drives() {
        let run_life = |seen: Arc<Mutex<Vec<(u32, u32)>>>| {
            let plan =
                format!("[[fault]]\nkind = \"read_uncorrectable\"\ncount = {}\n", 1u64 << 50);
            let faults = FaultPlan::from_toml(&plan).expect("a plan");
            let ssd = Ssd::new(&drive.spec, SsdOptions { faults, ..SsdOptions::default() });
            let ssd = ssd.expect("a device");
            let run = Virtual::new(1, 1, CostTable::zero());
            let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
            run.run(async move {
                let ftl = Pftl::create(&cx, device.clone(), config).expect("fits");
                for version in [1, 2] {
                    for lba in 0..USED {
                        put(&ftl, &cx, lba, version).await;
                    }
                    flush(&ftl, &cx).await;
                }
                let geo = *device.geometry();
                // Of the lines that are full the one with most sectors of its own on PU 1.
                let mut most: Option<(BTreeSet<u64>, u32)> = None;
                for chunk in 0..geo.chunks_per_pu {
                    if device.chunk_report(1, chunk, 1)[0].state != ChunkState::Closed {
                        continue;
                    }
                    let own = named(&*device, &cx, 1, chunk).await;
                    if most.as_ref().is_none_or(|(most, _)| own.len() >= most.len()) {
                        most = Some((own, chunk));
                    }
                }
                let (own, chunk) = most.expect("a full chunk");
                for pu in [0, 2, 3] {
                    for lba in named(&*device, &cx, pu, chunk).await.difference(&own) {
                        put(&ftl, &cx, *lba, 3).await;
                    }
                }
                flush(&ftl, &cx).await;
                seen.lock().push((1, chunk));
            })
            .expect("no stall");
            cut(&ssd, run);
            ssd
        };
        let seen = Arc::new(Mutex::new(Vec::new()));
        let ssd = run_life(seen.clone());
        let (pu, chunk) = seen.lock()[0];
        let what = format!("{}, chunk {chunk} of PU {pu}", drive.name);
        plant(
            &ssd,
            &format!(
                "kind = \"read_uncorrectable\"\npu = {pu}\nchunk = {chunk}\ntimes = 100000000"
            ),
        );
        for _ in 0..2 {
            match mount(&drive, &ssd, false, false) {
                Err(KitError::Lost { .. }) => {}
                Err(other) => panic!("{what}: {other}"),
                Ok((got, _)) => {
                    honest(&got, &what);
                    panic!("{what}: its sectors are missed by nobody");
                }
            }
        }
        ssd.forgive();
        let (got, _) = mount(&drive, &ssd, false, false).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(honest(&got, &what), USED as usize, "{what}");
    }
}

/// Reads that fail for a while at a mount cost time; whatever the mount says, what was flushed is
/// good when the medium is.
#[test]
fn a_burst_at_a_mount_costs_nothing_for_good() {
    for drive in drives() {
        for end in [End::Stop, End::Kill, End::Cut] {
            let mut refused = 0;
            for times in [1, 10, 100, 400, 1000, 3000, 8000, 30_000] {
                let what = format!("{}, {end:?}, the first {times} reads fail", drive.name);
                let ssd = lived(&drive, "", end);
                plant(&ssd, &format!("kind = \"read_uncorrectable\"\ntimes = {times}"));
                match mount(&drive, &ssd, false, false) {
                    Ok((got, _)) => assert_eq!(honest(&got, &what), USED as usize, "{what}"),
                    Err(_) => refused += 1,
                }
                ssd.forgive();
                let (got, _) =
                    mount(&drive, &ssd, false, true).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(honest(&got, &what), USED as usize, "{what}");
            }
            assert!(refused <= 1, "{}, {end:?}: {refused} refused", drive.name);
        }
    }
}

/// A unit that can't be read, with others behind it that can, was whole once: no power cut has torn
/// it. The mount is refused, and names the place.
#[test]
fn a_unit_in_front_of_others_is_no_torn_one() {
    for drive in drives() {
        let mut refused = 0;
        for (pu, chunk) in written(&lived(&drive, "", End::Kill)).into_iter().take(2) {
            let what = format!("{}, chunk {chunk} of PU {pu}", drive.name);
            let ssd = lived(&drive, "", End::Kill);
            plant(
                &ssd,
                &format!(
                    "kind = \"read_uncorrectable\"\npu = {pu}\nchunk = {chunk}\nsector = 1\n\
                     times = 1000000"
                ),
            );
            match mount(&drive, &ssd, false, false) {
                Err(why) => {
                    let place = (pu, chunk, 1);
                    let named = matches!(
                        why,
                        KitError::Lost { sectors: 1, pu, chunk, sector, .. }
                            if (pu, chunk, sector) == place
                    );
                    assert!(named, "{what}: {why}");
                    refused += 1;
                }
                // It held pages.
                Ok((got, _)) => assert_eq!(honest(&got, &what), USED as usize, "{what}"),
            }
        }
        assert!(refused > 0, "{}: nothing was missed", drive.name);
    }
}

/// Two units at the end of what a chunk holds can't be torn both: one program is under way on a PU.
#[test]
fn more_than_one_unit_at_the_end_of_a_chunk_is_a_loss() {
    let drive = block_ssd("block, no window", 0);
    let open = |ssd: &Ssd| {
        let chunks = written(ssd).into_iter();
        let info = |(pu, chunk)| ssd.chunk_report(pu, chunk, 1)[0];
        chunks.filter(|at| info(*at).state == ChunkState::Open).collect::<Vec<_>>()
    };
    let mut tried = 0;
    for (pu, chunk) in open(&lived(&drive, "", End::Kill)) {
        for units in [2, 3] {
            let ssd = lived(&drive, "", End::Kill);
            let end = ssd.chunk_report(pu, chunk, 1)[0].write_pointer;
            if end < 4 * units {
                continue;
            }
            for sector in end - 4 * units..end {
                plant(
                    &ssd,
                    &format!(
                        "kind = \"read_uncorrectable\"\npu = {pu}\nchunk = {chunk}\nsector = {sector}\n\
                     times = 1000000"
                    ),
                );
            }
            let what = format!("{units} units of chunk {chunk} on PU {pu}");
            match mount(&drive, &ssd, false, false) {
                Err(why) => assert!(matches!(why, KitError::Lost { .. }), "{what}: {why}"),
                // They were padding and pages.
                Ok((got, _)) => assert_eq!(honest(&got, &what), USED as usize, "{what}"),
            }
            tried += 1;
        }
    }
    assert!(tried > 2, "{tried} tried");
}

/// Chunks that were bad from the start, and those whose erase has failed, are missed by nobody.
#[test]
fn a_bad_chunk_is_missed_by_nobody() {
    for drive in drives() {
        let plan = "[[fault]]\nkind = \"erase_fail\"\nprobability = \"5e-2\"\ntimes = 4\n";
        for end in [End::Stop, End::Kill, End::Cut] {
            let ssd = lived(&drive, plan, end);
            for stops in [false, true, false] {
                let what = format!("{}, {end:?}", drive.name);
                let (got, _) =
                    mount(&drive, &ssd, false, stops).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(honest(&got, &what), USED as usize, "{what}");
            }
        }
    }
}

/// A mount that is cut, at any time and several times in a row, loses nothing, and the next one is
/// not refused.
#[test]
fn cut_mounts_change_no_verdict() {
    for drive in drives() {
        for end in [End::Kill, End::Cut, End::Stop] {
            for us in (100..9000).step_by(450) {
                let ssd = lived(&drive, "", end);
                let what = format!("{}, {end:?}, mounts cut after {us} us", drive.name);
                for i in 0..3u64 {
                    let run = Virtual::new(1, 2, CostTable::zero());
                    let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
                    run.run(async move {
                        let life = cx.clone();
                        let _mount = cx.spawn_join(async move {
                            Pftl::mount(&life, device, config, None).await.map(|_| ())
                        });
                        cx.sleep(Ns::from_us(us + 130 * i)).await;
                    })
                    .expect("no stall");
                    cut(&ssd, run);
                }
                let (got, _) =
                    mount(&drive, &ssd, false, false).unwrap_or_else(|e| panic!("{what}: {e}"));
                assert_eq!(honest(&got, &what), USED as usize, "{what}");
            }
        }
    }
}

/// A life marks the snapshot that it begins with as taken, on two dies. One die can't be read then,
/// so its root is not marked. It comes back when the other one dies, with all that this life has
/// written: the snapshot is of before, and no mount may believe it.
#[test]
fn a_snapshot_is_marked_as_taken_on_two_dies() {
    const LBAS: [u64; 4] = [0, 4, 8, 12];
    let drive = block_ssd("block", 8);
    let mut lives = 0;
    // The snapshot lies on other dies each time; the first unit of a life goes to PU 0.
    for (units, away) in (0..4).flat_map(|units| (1..4).map(move |away| (units, away))) {
        let what = format!("stopped behind {units} units, PU {away} away, PU 0 dead");
        let ssd = lived(&drive, "", End::StopBehind(units));
        plant(&ssd, &format!("kind = \"read_uncorrectable\"\npu = {away}\ntimes = 100000000"));
        let run = Virtual::new(1, 2, CostTable::zero());
        let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
        let wrote = run.run(async move {
            let ftl = Pftl::mount(&cx, device, config, None).await?;
            for lba in LBAS {
                put(&ftl, &cx, lba, 3).await;
            }
            flush(&ftl, &cx).await;
            Ok::<_, KitError>(())
        });
        cut(&ssd, run);
        if wrote.expect("no stall").is_err() {
            continue;
        }
        lives += 1;
        ssd.forgive();
        plant(&ssd, "kind = \"die_fail\"\npu = 0");
        let run = Virtual::new(1, 2, CostTable::zero());
        let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
        let older = run.run(async move {
            let ftl = Pftl::mount(&cx, device, config, None).await?;
            let mut older = Vec::new();
            for lba in LBAS {
                let mut buf = [0xee; 8];
                let io = Io::of(BlockOp::Read, Lba::new(lba), 1, false, &mut buf);
                let read = ftl.start(&cx, io).await;
                older.extend((read.is_ok() && buf != (lba << 32 | 3).to_le_bytes()).then_some(lba));
            }
            Ok::<_, KitError>(older)
        });
        cut(&ssd, run);
        match older.expect("no stall") {
            Ok(older) => assert!(older.is_empty(), "{what}: {older:?} are older"),
            Err(KitError::Lost { .. }) => {}
            Err(other) => panic!("{what}: {other}"),
        }
    }
    assert!(lives > 3, "{lives} lives of 12 with a die away");
}

/// Without a read-back window nothing pads a torn unit. A mount programs on other dies: when it is
/// cut, a second torn unit behind the first one would look like a loss to the next mount.
#[test]
fn a_mount_that_is_cut_tears_nothing_behind_a_torn_unit() {
    let drive = block_ssd("block, no window", 0);
    // The stripe goes on at another die each time.
    for units in 0..4 {
        for us in (100..6000).step_by(300) {
            let what = format!("torn behind {units} units, a mount cut after {us} us");
            let ssd = lived(&drive, "", End::Torn(units));
            let run = Virtual::new(1, 2, CostTable::zero());
            let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
            let life = run.cx();
            let mounts = async move { Pftl::mount(&life, device, config, None).await.map(drop) };
            run.run(async move {
                let _mount = cx.spawn_join(mounts);
                cx.sleep(Ns::from_us(us)).await;
            })
            .expect("no stall");
            cut(&ssd, run);
            let (got, _) =
                mount(&drive, &ssd, false, false).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(honest(&got, &what), USED as usize, "{what}");
        }
    }
}

/// Padding that the host does not take is missing: what lies in front of it can't be read. The
/// mount is refused, and finds everything when the host takes it.
#[test]
fn a_host_that_takes_no_padding_refuses_a_mount() {
    for drive in [block_ssd("block", 8), slc_tlc()] {
        let ssd = lived(&drive, "", End::Kill);
        let run = Virtual::new(1, 2, CostTable::zero());
        let script = Arc::new(ScriptedDevice::new(ssd.clone()));
        let status = Status::HostFault;
        script.add(Script { op: Op::Write, nth: 0, addrs: u64::MAX, status, delay: Ns::ZERO });
        let (cx, config) = (run.cx(), drive.config.clone());
        let mounted =
            run.run(async move { Pftl::mount(&cx, script, config, None).await.map(drop) });
        let why = mounted.expect("no stall").err();
        assert!(matches!(why, Some(KitError::Host { .. })), "{}: {why:?}", drive.name);
        cut(&ssd, run);
        let (got, _) = mount(&drive, &ssd, false, true).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(honest(&got, drive.name), USED as usize, "{}", drive.name);
    }
}

/// For each sector the versions that a read may give: the flushed one and all younger ones. 0 is
/// zeros.
type Book = Vec<Vec<u64>>;

/// A device that loses its power while the host writes at random: in its first life, or in the life
/// after a clean stop. An even seed also discards; an odd one never writes 200 sectors again.
fn worn(drive: &Drive, seed: u64, stopped: bool) -> (Arc<Ssd>, Book) {
    let ssd = match stopped {
        true => lived(drive, "", End::Stop),
        false => blank(drive, ""),
    };
    let run = Virtual::new(1, 2, CostTable::zero());
    let (cx, device, config) = (run.cx(), ssd.clone(), drive.config.clone());
    let book = run.run(async move {
        let ftl = match stopped {
            true => Pftl::mount(&cx, device, config, None).await.expect("it was stopped"),
            false => Pftl::create(&cx, device, config).expect("fits"),
        };
        cx.sleep(Ns::from_ms(100)).await;
        let (mut rng, mut book) =
            (Rng::new(seed), vec![vec![2 * u64::from(stopped)]; USED as usize]);
        let discards = seed.is_multiple_of(2);
        let (cold, last) = if discards { (0, 8 * USED) } else { (200, 20 * USED) };
        let mut recent = [0; 12];
        for version in 10..10 + last {
            let fill = version - 10;
            let lba = if fill < USED { fill } else { cold + rng.below(USED - cold) };
            recent.rotate_left(1);
            recent[11] = lba;
            if discards && fill >= USED && rng.below(50) == 0 {
                let io = Io::of(BlockOp::Discard, Lba::new(lba), 1, false, &mut []);
                ftl.start(&cx, io).await.expect("a discard");
                book[lba as usize].push(0);
            } else {
                put(&ftl, &cx, lba, version).await;
                book[lba as usize].push(version);
            }
            if rng.below(100) == 0 || fill == last - 20 {
                // What the host writes while a flush is under way may or may not be covered.
                let (dev, task) = (ftl.clone(), cx.clone());
                let before: Vec<usize> = book.iter().map(|all| all.len() - 1).collect();
                let flushing = cx.spawn_join(async move { flush(&dev, &task).await });
                if rng.below(2) == 0 {
                    cx.sleep(Ns::from_us(rng.below(900))).await;
                    for beside in recent.iter().copied().step_by(2) {
                        put(&ftl, &cx, beside, 1_000_000 + version).await;
                        book[beside as usize].push(1_000_000 + version);
                    }
                }
                flushing.await;
                let all = book.iter_mut().zip(before);
                all.for_each(|(now, before)| drop(now.drain(..before)));
            }
        }
        cx.sleep(Ns::from_us(rng.below(2000))).await;
        book
    });
    cut(&ssd, run);
    (ssd, book.expect("no stall"))
}

/// Mounts it and reads each sector: its version, or `None` for an error.
fn versions(
    drive: &Drive,
    ssd: &Arc<Ssd>,
    accept: bool,
    stops: bool,
) -> Result<Vec<Option<u64>>, KitError> {
    life(drive, ssd, (accept, stops), async |ftl, cx| {
        let mut all = Vec::new();
        for lba in 0..USED {
            let mut buf = [0xee; 8];
            let io = Io::of(BlockOp::Read, Lba::new(lba), 1, false, &mut buf);
            let read = ftl.start(cx, io).await;
            all.push(read.is_ok().then(|| u64::from_le_bytes(buf) & 0xffff_ffff));
        }
        all
    })
}

/// A mount that accepts a die lost in a cut loses only the die's sectors: no sector is older
/// than its flushed version, most are good, and later mounts give the same answer without being asked
/// to accept anything.
#[test]
fn an_accepted_die_costs_what_it_held() {
    let mut tight = block_ssd("block, tight", 8);
    tight.spec = tight.spec.with_chunks_per_pu(64);
    tight.config.over_provisioning_percent = 13;
    let [window, none, slc, by_chunk] = drives();
    let drives = [window, none, slc, by_chunk, tight].map(|drive| {
        let config = DriveConfig { flush_records: true, ..drive.config };
        Drive { config, ..drive }
    });
    for (drive, seed) in drives.iter().flat_map(|drive| (0..6).map(move |seed| (drive, seed))) {
        let (mut good, mut of) = (0, 0);
        for pu in 0..4 {
            let what = format!("{}, seed {seed}, PU {pu} dead", drive.name);
            let (ssd, mut book) = worn(drive, seed, seed >= 3);
            if seed % 3 == 1 {
                // What a mount has found is durable behind it.
                let found = versions(drive, &ssd, false, false).expect("nothing is lost");
                book = found.into_iter().flatten().map(|version| vec![version]).collect();
                assert_eq!(book.len(), USED as usize, "{what}: errors");
            }
            plant(&ssd, &format!("kind = \"die_fail\"\npu = {pu}"));
            let first = versions(drive, &ssd, true, seed.is_multiple_of(3))
                .unwrap_or_else(|e| panic!("{what}: {e}"));
            for (lba, (got, may_be)) in first.iter().zip(&book).enumerate() {
                of += 1;
                let Some(got) = got else { continue };
                good += 1;
                assert!(may_be.contains(got), "{what}: {lba} is {got}, none of {may_be:?}");
            }
            for _ in 0..2 {
                let again = versions(drive, &ssd, false, false);
                assert_eq!(again.as_ref(), Ok(&first), "{what}: another answer");
            }
        }
        assert!(good * 100 >= of * 55, "{}, seed {seed}: {good} of {of} good", drive.name);
    }
}

/// Records are on two dies. Where both are lost, what older records say is not believed: no sector
/// is older than what was flushed.
#[test]
fn two_accepted_dies_leave_nothing_older() {
    let drive = block_ssd("block", 8);
    let config = DriveConfig { flush_records: true, ..drive.config };
    let drive = Drive { config, ..drive };
    for (a, b) in [(0u32, 1u32), (0, 2), (1, 3), (2, 3)] {
        let what = format!("PUs {a} and {b} dead");
        let (ssd, book) = worn(&drive, u64::from(a + b), false);
        for pu in [a, b] {
            plant(&ssd, &format!("kind = \"die_fail\"\npu = {pu}"));
        }
        let got = versions(&drive, &ssd, true, true).unwrap_or_else(|e| panic!("{what}: {e}"));
        for (lba, (got, may_be)) in got.iter().zip(&book).enumerate() {
            let fits = got.is_none_or(|got| may_be.contains(&got));
            assert!(fits, "{what}: {lba} is {got:?}, none of {may_be:?}");
        }
    }
}

/// A flushed unit at the end of its chunk can't be read, and looks like one that a power cut tore.
/// The records of the flush name its versions, so the mount is refused.
#[test]
fn a_flushed_unit_that_decayed_is_missed() {
    let mut refused = 0;
    for drive in drives() {
        let config = DriveConfig { flush_records: true, ..drive.config };
        let drive = Drive { config, ..drive };
        let ends = |ssd: &Ssd| -> Vec<(u32, u32, u32)> {
            let end = |(pu, chunk)| (pu, chunk, ssd.chunk_report(pu, chunk, 1)[0].write_pointer);
            written(ssd).into_iter().map(end).collect()
        };
        let all = ends(&lived(&drive, "", End::Kill));
        let units = all.iter().flat_map(|(pu, chunk, end)| {
            [4, 8, 12].map(|before| (*pu, *chunk, end.saturating_sub(before)))
        });
        for (pu, chunk, from) in units {
            let what = format!("{}, unit {from} of chunk {chunk} of PU {pu}", drive.name);
            let ssd = lived(&drive, "", End::Kill);
            for sector in from..from + 4 {
                let place = format!("pu = {pu}\nchunk = {chunk}\nsector = {sector}");
                plant(&ssd, &format!("kind = \"read_uncorrectable\"\n{place}\ntimes = 100000000"));
            }
            match mount(&drive, &ssd, false, false) {
                Ok((got, _)) => drop(honest(&got, &what)),
                Err(KitError::Lost { .. }) => {}
                Err(KitError::Superseded { .. }) => refused += 1,
                Err(other) => panic!("{what}: {other}"),
            }
        }
    }
    assert!(refused > 4, "{refused} refused");
}
