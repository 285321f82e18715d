//! Flash whose pages take others along: a torn program may harm pages that were programmed before.
//!
//! Owns: files that grow older over many lives, each ended by a power cut at a drawn moment. Promises:
//! what an fsync or a sync has acknowledged is there, or something newer; every preset has a file system.
//! Never: looks into the file system.

use flashlane_base::{Ns, Rng};
use flashlane_ftl::sftl::{Sftl, SftlConfig};
use flashlane_ocssd::device::Device;
use flashlane_ocssd::{DeviceSpec, FaultPlan, PowerOn, Ssd, SsdOptions, StoreKind};
use flashlane_parafs::{Fs, FsError, Make, Medium, ROOT, Stats, can_be_made, check, mkfs};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::files::{FILE, create, now, seeds, small};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

const FILES: usize = 12;
const BYTES: usize = 6_000;

/// What is known of a file: versions of its content, each a byte.
#[derive(Clone, Copy, Debug, Default)]
struct File {
    /// It, or a later one, is there for sure.
    durable: u8,
    /// In this life.
    now: u8,
    /// The last one of any life.
    last: u8,
}

type Files = Rc<RefCell<[File; FILES]>>;

/// A device of this spec with an empty file system, and what is known of its files.
struct Aging {
    ssd: Arc<Ssd>,
    lives: u64,
    files: Files,
    /// Pages of padding so far.
    padded: u64,
}

fn config() -> SftlConfig {
    SftlConfig { meta_percent: 25, flush_records: true, ..SftlConfig::default() }
}

/// Makes a file system there if it is large enough.
async fn make(cx: &Cx, ssd: Arc<Ssd>) -> Option<()> {
    let sftl = Sftl::create(cx, ssd, config()).await.ok()?;
    let medium = Medium::from(sftl);
    let layout = medium.plan(0, 0).ok()?;
    match can_be_made(&medium, &layout, &Make::default()) {
        Err(FsError::NoSpace) => return None,
        can => can.expect("every flash can have one"),
    }
    mkfs(cx, medium, layout, &Make::default(), now(cx)).await.expect("it is made");
    Some(())
}

impl Aging {
    /// With as few chunks as a file system needs.
    fn new(spec: &DeviceSpec, faults: &str, seed: u64) -> Aging {
        let mut chunks = 12;
        loop {
            let spec = spec.clone().with_chunks_per_pu(chunks);
            let faults = FaultPlan::from_toml(faults).expect("a plan");
            let store = StoreKind::Memory;
            let options = SsdOptions { faults, seed, store, ..SsdOptions::default() };
            let ssd = Ssd::new(&spec, options).expect("a device");
            let clock = Virtual::new(1, 1, CostTable::zero());
            let (cx, its) = (clock.cx(), ssd.clone());
            let made = clock.run(async move { make(&cx, its).await }).expect("it goes on");
            ssd.power_cut(clock.now(), PowerOn::ClockRestarts);
            if made.is_some() {
                return Aging { ssd, lives: 0, files: Rc::default(), padded: 0 };
            }
            chunks += chunks / 2;
            assert!(chunks < 1_000, "{} has no room for a file system", spec.name);
        }
    }

    /// Mounts it, looks at all files, and writes to them until the power goes `after` the mount.
    fn life(&mut self, after: Ns) {
        self.lives += 1;
        let (lives, ssd, files) = (self.lives, self.ssd.clone(), self.files.clone());
        let clock = Virtual::new(1, lives, CostTable::zero());
        let cx = clock.cx();
        let stats = clock.run(async move {
            let sftl = Sftl::mount(&cx, ssd, config()).await.expect("it is mounted");
            let medium = Medium::from(sftl);
            if lives > 1 {
                let report = check(&cx, &medium).await.expect("it can be read");
                assert!(report.found == 0, "life {lives}: {report:?}");
            }
            let (fs, found) = Fs::mount(&cx, medium, small()).await.expect("it is mounted");
            assert_eq!((found.read_only, found.unread), (None, 0), "life {lives}");
            look(&cx, &fs, &files, lives).await;
            let (its, theirs) = (fs.clone(), cx.clone());
            cx.spawn(async move { write(&theirs, &its, &files, lives).await });
            cx.sleep(after).await;
            fs.stats()
        });
        let stats: Stats = stats.expect("it goes on");
        self.padded += stats.padding_pages;
        let at = clock.now();
        drop(clock);
        self.ssd.power_cut(at, PowerOn::ClockRestarts);
        assert_eq!(self.ssd.counters().violations, 0, "{:?}", self.ssd.violations().first());
    }

    /// So many lives, each as long as some programs of this length take.
    fn lives(&mut self, of: std::ops::Range<u64>, program: Ns) {
        for seed in of {
            let mut rng = Rng::stream(seed, "test.pairs", 0);
            self.life(Ns::from_ns(rng.below(60 * program.as_ns())));
        }
    }
}

/// Every file is as it was acknowledged, or newer.
async fn look(cx: &Cx, fs: &Arc<Fs>, files: &Files, lives: u64) {
    for file in 0..FILES {
        let File { durable, last, .. } = files.borrow()[file];
        let name = format!("f{file}");
        let version = match fs.lookup(cx, ROOT, name.as_bytes()).await {
            Err(FsError::NotFound) => 0,
            found => {
                let mut got = vec![0; BYTES];
                let ino = found.expect("a name").ino;
                let n = fs.read(cx, ino, 0, &mut got).await;
                let n = n.unwrap_or_else(|e| panic!("life {lives}: {name}: {e}"));
                assert!(n == BYTES || durable == 0, "life {lives}: {name} has {n} bytes");
                // A file of several pages has each as it was or as it became.
                got.iter().take(n).copied().min().unwrap_or(0)
            }
        };
        let range = u16::from(durable)..=u16::from(last);
        assert!(range.contains(&version.into()), "life {lives}: {name}: {version} of {range:?}");
        // The mount has made it durable.
        files.borrow_mut()[file] = File { durable: version, now: version, last };
    }
}

/// Writes one file after the other, and has each durable: mostly by itself, now and then with a sync.
async fn write(cx: &Cx, fs: &Arc<Fs>, files: &Files, lives: u64) {
    let mut rng = Rng::stream(lives, "test.pairs.write", 0);
    loop {
        let file = rng.below(FILES as u64) as usize;
        let version = files.borrow()[file].last.saturating_add(1);
        files.borrow_mut()[file].last = version;
        let name = format!("f{file}");
        let ino = match fs.lookup(cx, ROOT, name.as_bytes()).await {
            Ok(found) => found.ino,
            Err(_) => create(cx, fs, ROOT, &name, FILE).await.ino,
        };
        fs.write(cx, ino, 0, &[version; BYTES], now(cx)).await.expect("room");
        files.borrow_mut()[file].now = version;
        if rng.below(4) == 0 {
            fs.sync(cx).await.expect("it is written");
            files.borrow_mut().iter_mut().for_each(|file| file.durable = file.now);
        } else {
            fs.fsync(cx, ino, false).await.expect("it is written");
            files.borrow_mut()[file].durable = version;
        }
    }
}

/// Two channels, pages of two bits: 0 and 2 share cells, then 1 and 4, 3 and 6.
fn paired() -> DeviceSpec {
    DeviceSpec::from_toml(
        "name = \"paired\"\nppa = \"2.0\"\n\
         [geometry]\nchannels = 2\npus_per_channel = 1\nplanes = 1\n\
         chunks_per_pu = 60\npages_per_block = 32\nsectors_per_page = 2\n\
         ws_min = 2\nws_opt = 2\nmw_cunits = 10\n\
         [timing]\nread = [\"50us\"]\nprogram = [\"500us\"]\nerase = \"3ms\"\n\
         channel_bandwidth = \"400MB\"\n[cells]\nbits = 2\npairing = \"mlc\"\n\
         pair_damage = true\n[limits]\nreset_free = true\nreset_open = true\n",
    )
    .expect("a device")
}

#[test]
fn no_torn_program_takes_along_what_is_durable() {
    let mut aging = Aging::new(&paired(), "", 1);
    aging.lives(seeds(0..300), Ns::from_us(500));
    assert!(aging.padded > 100, "{} pages of padding", aging.padded);
}

/// A block in which a program failed takes no more pages. What it holds is in open pairs, and the next mount
/// pads it.
#[test]
fn nor_where_programs_fail() {
    for seed in 0..4 {
        let faults = "[[fault]]\nkind = \"write_next_unit\"\nprobability = \"3e-2\"\ntimes = 6\n";
        Aging::new(&paired(), faults, seed).lives(seeds(0..20), Ns::from_us(500));
    }
}

/// An fsync's first pages: the node of a block that holds nothing else but padding, too. Where one can't be read
/// it was written for sure, as padding follows it: the mount says so, and changes nothing.
#[test]
fn what_padding_follows_was_not_torn() {
    let mut stopped = 0;
    for at in 0.. {
        let aging =
            Aging::new(&paired(), "[[fault]]\nkind = \"read_high_ecc\"\ncount = 1000000000\n", 1);
        let fresh = |ssd: &Arc<Ssd>| -> Vec<(u32, u32)> {
            let geo = *ssd.geometry();
            let begun = |pu: u32| {
                let report = ssd.chunk_report(pu, 0, geo.chunks_per_pu);
                let used = (0..).zip(report).filter(|(_, info)| info.write_pointer > 0);
                used.map(|(chunk, _)| (pu, chunk)).collect::<Vec<_>>()
            };
            (0..geo.pus()).flat_map(begun).collect()
        };
        let before = fresh(&aging.ssd);
        one_life(&aging.ssd, 1, async |cx, fs| {
            let ino = create(cx, fs, ROOT, "f", FILE).await.ino;
            fs.write(cx, ino, 0, &[7; BYTES], now(cx)).await.expect("room");
            fs.fsync(cx, ino, false).await.expect("it is written");
        });
        let meta = aging.ssd.geometry().chunks_per_pu.div_ceil(4);
        let new = fresh(&aging.ssd).into_iter().filter(|place| !before.contains(place));
        let Some((pu, chunk)) = new.filter(|(_, chunk)| *chunk >= meta).nth(at) else { break };
        let place = format!("pu = {pu}\nchunk = {chunk}\nsector = 0\ntimes = 1099511627776\n");
        let fault = format!("[[fault]]\nkind = \"read_uncorrectable\"\n{place}");
        let plan = FaultPlan::from_toml(&fault).expect("a plan");
        plan.faults.into_iter().for_each(|fault| aging.ssd.fail(fault));
        let found = one_life(&aging.ssd, 2, async |cx, fs| fs.lookup(cx, ROOT, b"f").await.is_ok());
        stopped += u32::from(found.1);
        assert!(
            found.0 || found.1,
            "chunk {chunk} of PU {pu}: the file is gone, and nothing says so"
        );
    }
    assert!(stopped > 0);
}

/// A life in which this is done; what it returns, and whether nothing may be written.
fn one_life<T: 'static>(
    ssd: &Arc<Ssd>,
    seed: u64,
    act: impl AsyncFnOnce(&Cx, &Arc<Fs>) -> T + 'static,
) -> (T, bool) {
    let (clock, its) = (Virtual::new(1, seed, CostTable::zero()), ssd.clone());
    let cx = clock.cx();
    let done = clock.run(async move {
        let sftl = Sftl::mount(&cx, its, config()).await.expect("it is mounted");
        let mounted = Fs::mount(&cx, Medium::from(sftl), small()).await;
        let (fs, found) = mounted.expect("it is mounted");
        (act(&cx, &fs).await, found.read_only.is_some())
    });
    let done = done.expect("it goes on");
    ssd.power_cut(clock.now(), PowerOn::ClockRestarts);
    done
}

/// On flash without pairs, and on a block device, nothing is padded.
#[test]
fn without_pairs_nothing_is_padded() {
    let mut spec = paired();
    spec.cells.pair_damage = false;
    let mut aging = Aging::new(&spec, "", 1);
    aging.lives(0..4, Ns::from_us(500));
    assert_eq!(aging.padded, 0);
}

/// mkfs, and cuts at drawn moments, on every preset; FLASHLANE_SEED=0..500 for as many cuts of each.
#[test]
#[allow(clippy::disallowed_methods)] // presets are files
fn every_preset_has_files_behind_cuts() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../presets/devices");
    let mut presets: Vec<_> =
        std::fs::read_dir(dir).expect("presets").map(|entry| entry.expect("one").path()).collect();
    presets.sort();
    assert!(presets.len() >= 12, "{presets:?}");
    for preset in presets {
        let text = std::fs::read_to_string(&preset).expect("a preset");
        let spec = DeviceSpec::from_toml(&text).expect("a device");
        let program = spec.timing.program.iter().copied().max().expect("a time");
        let damage = spec.cells.pair_damage;
        let mut aging = Aging::new(&spec, "", 1);
        aging.lives(seeds(0..3), program);
        let (lives, chunks) = (aging.lives, aging.ssd.geometry().chunks_per_pu);
        println!("{}: {lives} cuts, {chunks} chunks, padded {}", spec.name, aging.padded);
        assert!(lives < 10 || (aging.padded > 0) == damage, "{}: {}", spec.name, aging.padded);
    }
}
