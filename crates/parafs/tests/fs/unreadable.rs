//! Flash that can't be read at a mount: what it holds is unknown, and never gone, older or zeros.

use flashlane_ftl::sftl::{Sftl, SftlConfig};
use flashlane_ocssd::device::{ChunkState, Device};
use flashlane_ocssd::{DeviceSpec, FaultPlan, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_parafs::{
    Fallocate, Fs, FsError, Make, Medium, ROOT, Recovered, Repaired, Report, Seek, Unread, What,
    check, dump, mkfs, repair,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::files::{FILE, create, now, small};
use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;

const FILES: u8 = 12;
const PAGES: u8 = 9;
const PAGE: usize = 8192;
const ALWAYS: u64 = 1 << 40;

const LOST_FSYNCS: &str = "fsyncs after the last checkpoint may be lost";

/// Flash over several lives, each ended by a power cut.
#[derive(Clone)]
struct Flash(Arc<Ssd>);

fn config() -> SftlConfig {
    SftlConfig { meta_percent: 25, flush_records: true, ..SftlConfig::default() }
}

impl Flash {
    /// Two channels of two PUs.
    fn new() -> Flash {
        let spec = DeviceSpec::from_toml(
            "name = \"small\"\nppa = \"2.0\"\n\
             [geometry]\nchannels = 2\npus_per_channel = 2\nplanes = 1\n\
             chunks_per_pu = 60\npages_per_block = 16\nsectors_per_page = 2\n\
             ws_min = 2\nws_opt = 2\nmw_cunits = 0\n\
             [timing]\nread = [\"50us\"]\nprogram = [\"500us\"]\nerase = \"3ms\"\n\
             channel_bandwidth = \"400MB\"\n[cells]\n[limits]\nreset_free = true\n\
             reset_open = true\n",
        );
        // One that may fail, though nothing does so far.
        let faults = "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n";
        let faults = FaultPlan::from_toml(faults).expect("a plan");
        let options = SsdOptions { faults, store: StoreKind::Memory, ..SsdOptions::default() };
        Flash(Ssd::new(&spec.expect("a device"), options).expect("a device"))
    }

    fn life<T: 'static, F: Future<Output = T> + 'static>(
        &self,
        work: impl FnOnce(Cx, Arc<Ssd>) -> F,
    ) -> T {
        let clock = Virtual::new(1, 1, CostTable::zero());
        let cx = clock.cx();
        let done = clock.run(work(cx.clone(), self.0.clone())).expect("it goes on");
        let at = clock.now();
        drop((clock, cx));
        self.0.power_cut(at, PowerOn::ClockRestarts);
        assert_eq!(self.0.counters().violations, 0, "{:?}", self.0.violations().first());
        done
    }

    fn fail(&self, fault: &str) {
        let plan = FaultPlan::from_toml(&format!("[[fault]]\n{fault}")).expect("a plan");
        plan.faults.into_iter().for_each(|fault| self.0.fail(fault));
    }

    fn fail_chunk(&self, (pu, chunk): (u32, u32)) {
        let kind = "kind = \"read_uncorrectable\"";
        self.fail(&format!("{kind}\npu = {pu}\nchunk = {chunk}\ntimes = {ALWAYS}\n"));
    }

    /// Chunks of segments that were written.
    fn written(&self) -> Vec<(u32, u32)> {
        self.pointers().into_keys().collect()
    }

    /// The same, with the write pointer of each.
    fn pointers(&self) -> BTreeMap<(u32, u32), u32> {
        let geo = *self.0.geometry();
        let meta = (geo.chunks_per_pu * config().meta_percent).div_ceil(100);
        let mut all = BTreeMap::new();
        for pu in 0..geo.pus() {
            let report = self.0.chunk_report(pu, 0, geo.chunks_per_pu);
            let is_written = |(chunk, info): &(u32, _)| {
                let info: &flashlane_ocssd::device::ChunkInfo = info;
                *chunk >= meta && matches!(info.state, ChunkState::Open | ChunkState::Closed)
            };
            let of_pu = (0..).zip(report).filter(is_written);
            all.extend(of_pu.map(|(chunk, info)| ((pu, chunk), info.write_pointer)));
        }
        all
    }
}

async fn medium(cx: &Cx, ssd: Arc<Ssd>) -> Result<Medium, String> {
    Ok(Medium::from(Sftl::mount(cx, ssd, config()).await.map_err(|e| e.to_string())?))
}

/// A page of a file, unlike any other.
fn page(file: u8, index: u8) -> Vec<u8> {
    [file + 1, index + 1].repeat(PAGE / 2)
}

async fn fill(cx: &Cx, fs: &Arc<Fs>, files: std::ops::Range<u8>, fsync: bool) {
    for file in files {
        let ino = create(cx, fs, ROOT, &format!("f{file}"), FILE).await.ino;
        for index in 0..PAGES {
            let at = u64::from(index) * PAGE as u64;
            fs.write(cx, ino, at, &page(file, index), now(cx)).await.expect("room");
        }
        if fsync {
            fs.fsync(cx, ino, false).await.expect("it is written");
        }
    }
}

/// A file system with files, unmounted.
fn unmounted() -> Flash {
    let flash = Flash::new();
    flash.life(|cx, ssd| async move {
        let sftl = Sftl::create(&cx, ssd, config()).await.expect("it is large enough");
        let medium = Medium::from(sftl);
        let layout = medium.plan(0, 0).expect("a shape");
        mkfs(&cx, medium.clone(), layout, &Make::default(), now(&cx)).await.expect("it is made");
        let (fs, _) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
        fill(&cx, &fs, 0..FILES, false).await;
        fs.unmount(&cx).await.expect("it is written");
    });
    flash
}

/// Mounts it, makes so many files more durable by fsync alone, and cuts the power.
fn fsynced(flash: &Flash, files: u8) {
    flash.life(move |cx, ssd| async move {
        let medium = medium(&cx, ssd).await.expect("it is mounted");
        let (fs, _) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
        fill(&cx, &fs, FILES..FILES + files, true).await;
    });
}

/// Reads every page of the test files and returns how many can't be read. Panics if one that can
/// be read has other content. After a repair (`repaired`) a file's name may be gone, and each read
/// error must say that a repair gave the page up.
async fn lost(cx: &Cx, fs: &Arc<Fs>, files: u8, repaired: bool) -> u32 {
    let mut lost = 0;
    for file in 0..files {
        let ino = match fs.lookup(cx, ROOT, format!("f{file}").as_bytes()).await {
            Ok(found) => found.ino,
            Err(FsError::Io(_)) => {
                lost += u32::from(PAGES);
                continue;
            }
            // Its name was given up.
            Err(FsError::NotFound) if repaired => {
                lost += u32::from(PAGES);
                continue;
            }
            Err(e) => panic!("file {file}: {e}"),
        };
        for index in 0..PAGES {
            let mut got = vec![0xa5; PAGE];
            match fs.read(cx, ino, u64::from(index) * PAGE as u64, &mut got).await {
                Ok(n) => assert!(n == PAGE && got == page(file, index), "{file} {index}"),
                Err(FsError::Io(why)) => {
                    assert!(!repaired || why.contains("a repair gave it up"), "{why}");
                    lost += 1;
                }
                Err(e) => panic!("page {index} of file {file}: {e}"),
            }
        }
    }
    lost
}

/// A mount, what it says, and how many pages of files it can't give; why it is refused.
fn mounted(flash: &Flash, files: u8) -> Result<(Recovered, u32), String> {
    mounted_while(flash, files, None)
}

/// The same while this fails, from when S-FTL is there until it is mounted.
fn mounted_while(
    flash: &Flash,
    files: u8,
    faults: Option<Vec<String>>,
) -> Result<(Recovered, u32), String> {
    let its = flash.clone();
    flash.life(move |cx, ssd| async move {
        let medium = medium(&cx, ssd).await?;
        faults.iter().flatten().for_each(|fault| its.fail(fault));
        let mounted = Fs::mount(&cx, medium, small()).await;
        if faults.is_some() {
            its.0.forgive();
        }
        let (fs, found) = mounted.map_err(|e| e.to_string())?;
        let lost = lost(&cx, &fs, files, false).await;
        if found.read_only.is_some() {
            let f = fs.lookup(&cx, ROOT, b"f0").await;
            if let Ok(f) = f {
                let refused = fs.write(&cx, f.ino, 0, &[1; 10], now(&cx)).await;
                assert!(matches!(refused, Err(FsError::ReadOnly(_))), "{refused:?}");
            }
        }
        fs.unmount(&cx).await.map_err(|e| e.to_string())?;
        Ok((found, lost))
    })
}

fn checked(flash: &Flash) -> Report {
    flash.life(|cx, ssd| async move {
        let medium = medium(&cx, ssd).await.expect("it is mounted");
        check(&cx, &medium).await.expect("there is one")
    })
}

/// Each flash block that holds data, one after the other: what can't be had is an error, nothing is
/// changed, and all is there when it can be read again.
#[test]
fn a_block_that_can_not_be_read_is_not_gone() {
    let flash = unmounted();
    let chunks = flash.written();
    assert!(chunks.len() > 8, "{chunks:?}");
    let mut missing = 0;
    for (pu, chunk) in chunks {
        flash.fail_chunk((pu, chunk));
        let first = mounted(&flash, FILES);
        if let Ok((found, lost)) = &first
            && let Some(why) = &found.read_only
        {
            missing += 1;
            assert!(why.contains(&format!("chunk {chunk} on PU {pu}")), "{why}");
            assert!(found.missing.0 == 1 && found.missing.1 > 0 && *lost > 0, "{found:?}, {lost}");
            assert_eq!(mounted(&flash, FILES), first, "a mount changes no verdict");
            let report = checked(&flash);
            assert!(report.found > 0 && report.unread > 0, "{report:?}");
            let named = report.problems.iter().any(|p| p.contains(&format!("on PU {pu}")));
            assert!(named, "{:?}", report.problems);
        } else {
            let (found, lost) = first.expect("it is mounted");
            assert_eq!((found.missing, lost), ((0, 0), 0), "what nobody needs is no loss");
        }
        flash.0.forgive();
        let (found, lost) = mounted(&flash, FILES).expect("it is mounted");
        assert_eq!((found.read_only, found.clean, lost), (None, true, 0), "{chunk} on {pu}");
        assert_eq!(checked(&flash).problems, Vec::<String>::new());
    }
    assert!(missing > 4, "{missing}");
}

/// Reads that fail for the first part of a mount decide nothing: it is mounted all the same, or
/// refused, and mounted later.
#[test]
fn reads_of_a_mount_are_repeated() {
    for times in [1, 3, 9, 20, 60, 200, 600] {
        let flash = unmounted();
        let fault = format!("kind = \"read_uncorrectable\"\ntimes = {times}\n");
        let first = mounted_while(&flash, FILES, Some(vec![fault]));
        assert!(first.is_ok() || times > 9, "{times}: {first:?}");
        let (found, lost) = mounted(&flash, FILES).expect("it is mounted");
        assert_eq!((found.read_only, lost), (None, 0), "{times}");
        assert_eq!(checked(&flash).problems, Vec::<String>::new());
    }
}

/// Behind a cut: files that were made durable by fsync alone, in blocks of which reads fail for a
/// while.
#[test]
fn fsyncs_outlive_reads_that_fail_for_a_while() {
    for times in [9, 100, 300] {
        let flash = unmounted();
        let before = flash.pointers();
        fsynced(&flash, 3);
        let mut faults = Vec::new();
        for ((pu, chunk), end) in flash.pointers() {
            let from = before.get(&(pu, chunk)).copied().unwrap_or(0);
            faults.extend((from..end).map(|sector| {
                let at = format!("pu = {pu}\nchunk = {chunk}\nsector = {sector}");
                format!("kind = \"read_uncorrectable\"\n{at}\ntimes = {times}\n")
            }));
        }
        let mounted = mounted_while(&flash, FILES + 3, Some(faults));
        let (found, lost) = mounted.expect("it is mounted");
        assert_eq!((found.read_only, lost), (None, 0), "{times}");
        assert!(!found.clean && found.batches > 0 && found.unread == 0);
    }
}

/// Behind a cut nobody but the blocks themselves says what fsyncs have written. More of them than a
/// cut can have torn: it is not known whether fsyncs are missing.
#[test]
fn blocks_behind_the_checkpoint_that_can_not_be_read_stop_writing() {
    let flash = unmounted();
    let before = flash.written();
    fsynced(&flash, 12);
    let new: Vec<(u32, u32)> =
        flash.written().into_iter().filter(|at| !before.contains(at)).collect();
    assert!(new.len() > 3, "{new:?}");
    new.iter().for_each(|at| flash.fail_chunk(*at));
    let problems = checked(&flash).problems;
    assert!(problems.iter().any(|p| p.contains(LOST_FSYNCS)), "{problems:?}");
    for _ in 0..2 {
        let (found, _) = mounted(&flash, FILES).expect("it is mounted");
        assert!(found.read_only.is_some(), "{found:?}");
    }
    flash.0.forgive();
    let (found, lost) = mounted(&flash, FILES + 12).expect("it is mounted");
    assert_eq!((found.read_only, lost), (None, 0));
}

/// A file system whose power was cut while six more files were durable by fsync alone, and the
/// pages (two sectors each) written since the unmount: PU, chunk, first sector, and number of
/// later pages in that chunk.
fn cut() -> (Flash, Vec<(u32, u32, u32, u32)>) {
    let flash = unmounted();
    let before = flash.pointers();
    fsynced(&flash, 6);
    let mut pages = Vec::new();
    for ((pu, chunk), end) in flash.pointers() {
        let from = before.get(&(pu, chunk)).copied().unwrap_or(0);
        pages.extend((from..end).step_by(2).map(|s| (pu, chunk, s, (end - s) / 2 - 1)));
    }
    (flash, pages)
}

/// After a cut a page of the log can't be read, and later ones of its flash block can. So it was
/// written, and may hold an fsync: a mount and a repair change nothing unasked. The last page of a
/// block may have been torn.
#[test]
fn an_fsync_that_can_not_be_read_is_not_given_up_unasked() {
    let (mut stopped, mut torn) = (0, 0);
    for (pu, chunk, sector, follow) in cut().1 {
        if follow > 2 {
            continue;
        }
        let (flash, _) = cut();
        let at = format!("pu = {pu}\nchunk = {chunk}\nsector = {sector}");
        flash.fail(&format!("kind = \"read_uncorrectable\"\n{at}\ntimes = {ALWAYS}\n"));
        let report = checked(&flash);
        let unasked = repaired(&flash, Unread::Refuse);
        if follow == 0 || report.lost.is_empty() {
            torn += u32::from(follow == 0);
            assert!(report.lost.is_empty() && unasked.is_ok(), "{report:?} {unasked:?}");
            continue;
        }
        stopped += 1;
        assert!(matches!(unasked, Err(FsError::Unread(_))), "{unasked:?}");
        let (found, _) = mounted(&flash, FILES).expect("it is mounted");
        assert!(found.read_only.is_some() && found.unread == 1, "{found:?}");
        // The fault may pass.
        if stopped % 2 == 0 {
            flash.0.forgive();
            let (found, lost) = mounted(&flash, FILES + 6).expect("it is mounted");
            assert_eq!((found.read_only, found.unread, lost), (None, 0, 0));
            continue;
        }
        let done = repaired(&flash, Unread::GiveUp).expect("it is mended");
        assert!(done.recovered.batches > 3 && done.after.found == 0, "{done:?}");
        let (found, lost) = mounted(&flash, FILES).expect("it is mounted");
        assert_eq!((found.read_only, lost), (None, 0));
    }
    assert!(stopped > 3 && torn > 1, "{stopped} and {torn}");
}

/// A program fails, whichever it is, and the page is written again elsewhere. After a cut its
/// remains are no lost fsync. Each fsync has three nodes, which are written at a time.
#[test]
fn the_page_of_a_failed_program_is_not_lost() {
    const INDEXES: [u64; 3] = [0, 3_000, 5_000];
    for count in 1..120 {
        let flash = unmounted();
        let kind = "kind = \"write_next_unit\"";
        flash.fail(&format!("{kind}\ncount = {count}\ntimes = 1\n"));
        flash.life(|cx, ssd| async move {
            let medium = medium(&cx, ssd).await.expect("it is mounted");
            let (fs, _) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
            for file in 0..8 {
                let ino = create(&cx, &fs, ROOT, &format!("g{file}"), FILE).await.ino;
                for index in INDEXES {
                    let content = page(file, index as u8);
                    fs.write(&cx, ino, index * PAGE as u64, &content, now(&cx))
                        .await
                        .expect("room");
                }
                fs.fsync(&cx, ino, false).await.expect("it is written");
            }
        });
        flash.0.forgive();
        flash.life(move |cx, ssd| async move {
            let medium = medium(&cx, ssd).await.expect("it is mounted");
            let (fs, found) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
            assert_eq!((found.read_only, found.unread), (None, 0), "program {count}");
            for file in 0..8 {
                let name = format!("g{file}");
                let ino = fs.lookup(&cx, ROOT, name.as_bytes()).await.expect("a name").ino;
                for index in INDEXES {
                    let mut got = vec![0; PAGE];
                    let read = fs.read(&cx, ino, index * PAGE as u64, &mut got).await;
                    assert!(read.is_ok() && got == page(file, index as u8), "program {count}");
                }
            }
        });
    }
}

fn repaired(flash: &Flash, unread: Unread) -> Result<Repaired, FsError> {
    flash.life(move |cx, ssd| async move {
        let medium = medium(&cx, ssd).await.expect("it is mounted");
        repair(&cx, &medium, now(&cx), unread).await
    })
}

/// Each flash block that holds data fails in turn. A repair that may not give anything up either
/// loses nothing or changes nothing: after the fault every page of every file can be read.
#[test]
fn a_repair_gives_up_nothing_unasked() {
    let flash = unmounted();
    let mut refused = 0;
    for (pu, chunk) in flash.written() {
        flash.fail_chunk((pu, chunk));
        let report = checked(&flash);
        match repaired(&flash, Unread::Refuse) {
            Ok(done) => assert!(report.lost.is_empty() && done.after.found == 0, "{done:?}"),
            Err(e @ FsError::Unread(_)) => {
                refused += 1;
                let says = e.to_string();
                assert!(!report.lost.is_empty() && says.contains("`--accept-lost`"), "{says}");
                assert!(says.contains(&format!("on PU {pu}")), "{says}");
            }
            Err(e) => panic!("{chunk} on {pu}: {e}"),
        }
        flash.0.forgive();
        let (found, lost) = mounted(&flash, FILES).expect("it is mounted");
        assert_eq!((found.read_only, found.clean, lost), (None, true, 0), "{chunk} on {pu}");
        assert_eq!(checked(&flash).problems, Vec::<String>::new());
    }
    assert!(refused > 4, "{refused}");
}

/// Files with a page that can't be read: number in the name, inode number, first such page.
async fn given_up(cx: &Cx, fs: &Arc<Fs>) -> Vec<(u8, u32, u8)> {
    let mut found = Vec::new();
    for file in 0..FILES {
        let ino = fs.lookup(cx, ROOT, format!("f{file}").as_bytes()).await.expect("a name").ino;
        for index in 0..PAGES {
            let mut got = vec![0; PAGE];
            if fs.read(cx, ino, u64::from(index) * PAGE as u64, &mut got).await.is_err() {
                found.push((file, ino, index));
                break;
            }
        }
    }
    found
}

/// A page that a repair gave up is an error until it is written as a whole, punched, or cut off.
#[test]
fn what_a_repair_gave_up_reads_as_an_error() {
    let mut tried = 0;
    for at in unmounted().written() {
        let flash = unmounted();
        flash.fail_chunk(at);
        let lost = checked(&flash).lost;
        // Names and nodes stay.
        if lost.keys().ne(["pages of files"].iter()) {
            continue;
        }
        let done = repaired(&flash, Unread::GiveUp).expect("it is mended");
        assert!(done.before.found > 0 && done.after.found == 0, "{done:?}");
        flash.0.forgive();
        let report = checked(&flash);
        assert_eq!((report.problems, report.lost.len()), (vec![], 0));
        let noted = report.notes.iter().filter(|note| note.contains("were given up")).count();
        tried += u32::from(is_an_error(&flash, noted));
    }
    assert!(tried > 0);
}

/// Tries, on files with pages that a repair gave up, seeks, reads, writes, punches and cuts.
/// Returns false if there are fewer than four such files.
fn is_an_error(flash: &Flash, files: usize) -> bool {
    let done = flash.life(move |cx, ssd| async move {
        let medium = medium(&cx, ssd).await.expect("it is mounted");
        let (fs, _) = Fs::mount(&cx, medium.clone(), small()).await.expect("it is mounted");
        let all = given_up(&cx, &fs).await;
        assert_eq!(all.len(), files, "a note for each");
        if files < 4 {
            return None;
        }
        let (at, t) = (|index: u8| u64::from(index) * PAGE as u64, now(&cx));
        let mut got = vec![0; PAGE];
        for (file, ino, index) in &all {
            let from = at(*index);
            assert_eq!(fs.seek(&cx, *ino, from, Seek::Data).await, Ok(Some(from)));
            let part = fs.write(&cx, *ino, from + 5, &[1; 10], t).await;
            assert!(matches!(part, Err(FsError::Io(_))), "{part:?}");
            let keep = fs.fallocate(&cx, *ino, (from, PAGE as u64), Fallocate::Keep, true, t).await;
            assert_eq!(keep, Ok(()));
            assert!(fs.read(&cx, *ino, from, &mut got).await.is_err(), "{file}: it is not zeros");
        }
        let (_, punched, index) = all[0];
        let range = (at(index), PAGE as u64);
        fs.fallocate(&cx, punched, range, Fallocate::Punch, true, t).await.expect("a hole");
        assert_eq!(fs.read(&cx, punched, range.0, &mut got).await, Ok(PAGE));
        assert!(got == [0; PAGE]);
        let (_, cut, index) = all[1];
        fs.truncate(&cx, cut, at(index), t).await.expect("it is shorter");
        fs.truncate(&cx, cut, at(PAGES), t).await.expect("it is longer");
        assert_eq!(fs.read(&cx, cut, at(index), &mut got).await, Ok(PAGE));
        assert!(got == [0; PAGE]);
        // The checkpoint writes the page; the life ends with a power cut after that.
        let (file, written, index) = all[2];
        fs.write(&cx, written, at(index), &page(file, index), t).await.expect("room");
        fs.checkpoint(&cx).await.expect("it is written");
        let path = What::parse(&[format!("/f{}", all[3].0)]).expect("a path");
        let dumped = dump(&cx, &medium, &path).await.expect("it is there");
        assert!(dumped.contains("lost, a repair gave it up"), "{dumped}");
        Some((all[2], all[3]))
    });
    let Some(((file, written, index), (_, other, of_other))) = done else { return false };
    flash.life(move |cx, ssd| async move {
        let medium = medium(&cx, ssd).await.expect("it is mounted");
        let (fs, _) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
        let mut got = vec![0; PAGE];
        let read = fs.read(&cx, written, u64::from(index) * PAGE as u64, &mut got).await;
        assert!(read == Ok(PAGE) && got == page(file, index), "{read:?}, {}", got[0]);
        let read = fs.read(&cx, other, u64::from(of_other) * PAGE as u64, &mut got).await;
        assert!(matches!(read, Err(FsError::Io(_))), "{read:?}");
        fs.unmount(&cx).await.expect("it is written");
    });
    assert_eq!(checked(flash).problems, Vec::<String>::new());
    true
}

/// A repair gives up what is lost, for good: it does not come back as something old.
#[test]
fn a_repair_gives_up_what_can_not_be_read() {
    for comes_back in [false, true] {
        let flash = unmounted();
        let lost_first = flash.written().into_iter().rev().find_map(|at| {
            flash.fail_chunk(at);
            let lost = mounted(&flash, FILES).map_or(0, |(_, lost)| lost);
            if lost == 0 {
                flash.0.forgive();
            }
            (lost > 0).then_some(lost)
        });
        assert!(lost_first.is_some());
        let done = repaired(&flash, Unread::GiveUp).expect("it is mended");
        assert!(done.before.found > 0 && done.after.found == 0, "{done:?}");
        if comes_back {
            flash.0.forgive();
        }
        assert_eq!(checked(&flash).problems, Vec::<String>::new());
        let lost = flash.life(|cx, ssd| async move {
            let medium = medium(&cx, ssd).await.expect("it is mounted");
            let (fs, found) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
            assert_eq!(found.read_only, None);
            let lost = lost(&cx, &fs, FILES, true).await;
            fill(&cx, &fs, FILES..FILES + 1, true).await;
            lost
        });
        assert!(lost > 0);
    }
}

/// A die is dead behind an unmount: as much as can be read is there and right, or there is no
/// mount; the cause is named, and the second try says the same.
#[test]
fn a_dead_die_is_named_and_nothing_is_older() {
    for pu in 0..4 {
        let flash = unmounted();
        flash.fail(&format!("kind = \"die_fail\"\npu = {pu}\n"));
        let first = mounted(&flash, FILES);
        let says = match &first {
            Ok((found, lost)) => {
                assert!(*lost > 0, "a quarter of all pages was there");
                found.read_only.clone().unwrap_or_default()
            }
            Err(why) => why.clone(),
        };
        assert!(says.contains(&format!("PU {pu} is dead")), "{says}");
        assert_eq!(mounted(&flash, FILES), first);
    }
}

/// After a cut a die is dead. Nothing is mounted unasked. With `--accept-lost` a repair says that
/// fsyncs may be lost, and of files that the checkpoint had each page is as it was, or an error.
#[test]
fn a_die_that_is_dead_after_a_cut_is_given_up_on_request() {
    let mut mended = 0;
    for pu in 0..4 {
        let (flash, _) = cut();
        flash.fail(&format!("kind = \"die_fail\"\npu = {pu}\n"));
        for _ in 0..2 {
            let refused = mounted(&flash, FILES).expect_err("older copies may be there");
            assert!(refused.contains(&format!("PU {pu} is dead")), "{refused}");
        }
        let done = flash.life(|cx, ssd| async move {
            let config = SftlConfig { accept_lost_sectors: true, ..config() };
            let sftl = Sftl::mount(&cx, ssd, config).await.map_err(|e| e.to_string())?;
            let done = repair(&cx, &Medium::from(sftl), now(&cx), Unread::GiveUp).await;
            done.map_err(|e| e.to_string())
        });
        // Both copies of the superblock may have been there.
        let Ok(done) = done else { continue };
        let says = &done.before.problems;
        assert!(says.iter().any(|p| p.contains(LOST_FSYNCS) && p.contains("is dead")), "{says:?}");
        let lost = flash.life(|cx, ssd| async move {
            let medium = medium(&cx, ssd).await.expect("it is mounted");
            let (fs, found) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
            assert_eq!(found.read_only, None);
            lost(&cx, &fs, FILES, true).await
        });
        mended += u32::from(lost < u32::from(FILES) * u32::from(PAGES));
    }
    assert!(mended > 1, "{mended}");
}
