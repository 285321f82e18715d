//! Damaged images under pblk and under the block SSD: what was flushed is read as it was written, or an
//! error says that it is not there. Never as it was before, nor as something else.
//!
//! A trial is a history of a layer on an image, by seed, and one hurt of the file (its parts by
//! themselves: `crates/ocssd/tests/ssd/damage.rs`). Half of the histories end in a kill, half in a stop.
//! `FLASHLANE_DAMAGE=0..20000` plays those numbers of both layers.

use flashlane_base::{Lba, Rng};
use flashlane_ftl::block::{BlockDev, BlockError, BlockOp, Io};
use flashlane_ftl::layer::{Find, Kind, Layer, Seam, Settings, Stop};
use flashlane_ftl::log::PBLK;
use flashlane_ftl::pftl::{PFTL, PftlConfig};
use flashlane_media::host::damage::Damage;
use flashlane_media::host::memory::MemoryFile;
use flashlane_media::image::{HEADER_BYTES, HOLDER_AT};
use flashlane_ocssd::image::layout;
use flashlane_ocssd::{CreateImage, DeviceSpec, OpenImage, Ssd};
use flashlane_rt::{CostTable, Cx, Virtual};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

const PER_HISTORY: u64 = 25;
/// Sectors of the layer that are used.
const USED: u64 = 160;

fn spec() -> DeviceSpec {
    let mut spec = DeviceSpec::preset("tiny").expect("a preset");
    let g = &mut spec.geometry;
    (g.pages_per_block, g.sectors_per_page, g.planes) = (8, 2, 1);
    (g.ws_min, g.ws_opt, g.mw_cunits) = (2, 2, 0);
    spec.with_chunks_per_pu(24)
}

fn open(bytes: Vec<u8>) -> Result<(Arc<MemoryFile>, Arc<Ssd>), String> {
    let file = Arc::new(MemoryFile::new(bytes));
    let ssd = Ssd::open_on(file.clone(), &OpenImage { timing: false, ..OpenImage::default() });
    ssd.map(|ssd| (file, ssd)).map_err(|e| e.to_string())
}

/// What a layer is made and mounted with. The device is small for what a block SSD keeps back.
fn settings(kind: &'static dyn Kind) -> Settings {
    match kind == &PFTL as &dyn Kind {
        true => PftlConfig { over_provisioning_percent: 50, ..PftlConfig::default() }.to_settings(),
        false => kind.defaults(),
    }
}

/// What a write of a sector leaves: its number and the write's, and more of the same.
fn content(lba: u64, stamp: u64) -> Vec<u8> {
    let mut rng = Rng::stream(stamp, "content", lba);
    let mut bytes: Vec<u8> = (0..512).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    bytes[..8].copy_from_slice(&lba.to_le_bytes());
    bytes[8..16].copy_from_slice(&stamp.to_le_bytes());
    bytes
}

/// Writes to each sector: what the last flush covers, 0 for nothing, and what came behind it.
#[derive(Clone, Default)]
struct Promised {
    flushed: BTreeMap<u64, u64>,
    last: BTreeMap<u64, u64>,
}

async fn io(
    cx: &Cx,
    dev: &dyn BlockDev,
    op: BlockOp,
    lba: u64,
    buf: &mut [u8],
) -> Result<(), BlockError> {
    let sectors = (buf.len() / 4096) as u32;
    dev.start(cx, Io::of(op, Lba::new(lba), sectors, false, buf)).await
}

/// Writes and flushes; the file at moments of it.
async fn play(
    cx: Cx,
    layer: Arc<dyn Layer>,
    file: Arc<MemoryFile>,
    mut rng: Rng,
) -> (Promised, Vec<Vec<u8>>) {
    let (mut promised, mut older) = (Promised::default(), Vec::new());
    let steps = 200 + rng.below(800);
    let dev = layer.clone().above().block();
    for stamp in 1..=steps {
        let lba = rng.below(USED);
        let wrote = io(&cx, &*dev, BlockOp::Write, lba, &mut content(lba, stamp)).await;
        wrote.expect("written");
        promised.last.insert(lba, stamp);
        if rng.below(12) == 0 {
            io(&cx, &*dev, BlockOp::Flush, 0, &mut []).await.expect("flushed");
            promised.flushed = promised.last.clone();
        }
        if rng.below(steps / 6) == 0 {
            older.push(file.bytes());
        }
    }
    if rng.below(2) == 0 {
        drop(layer.stop(&cx, Stop::Clean).await);
        promised.flushed = promised.last.clone();
    }
    (promised, older)
}

/// What became of a trial: refused, errors of reads, all as promised.
const OUTCOMES: [&str; 4] = ["the image is refused", "the layer is refused", "reads fail", "whole"];

/// Opens what is left, and reads all of it.
fn look(kind: &'static dyn Kind, bytes: Vec<u8>, promised: &Promised) -> Result<usize, String> {
    let Ok((_, ssd)) = open(bytes) else { return Ok(0) };
    let run = Virtual::new(1, 2, CostTable::zero());
    let (cx, promised) = (run.cx(), promised.clone());
    let looked = run.run(async move {
        let (settings, find) = (settings(kind), Find::default());
        let mounted = kind.mount(&cx, Seam::Device(ssd), &settings, &find).await;
        let Ok(layer) = mounted else { return Ok(1) };
        let dev = layer.above().block();
        let mut outcome = 3;
        for lba in 0..USED {
            let mut buf = vec![0; 4096];
            match io(&cx, &*dev, BlockOp::Read, lba, &mut buf).await {
                Err(_) => outcome = 2,
                Ok(()) => {
                    let of = |map: &BTreeMap<u64, u64>| map.get(&lba).copied().unwrap_or(0);
                    let (flushed, last) = (of(&promised.flushed), of(&promised.last));
                    let stamp = u64::from_le_bytes(buf[8..16].try_into().expect("8 bytes"));
                    let wanted = if stamp == 0 { vec![0; 4096] } else { content(lba, stamp) };
                    if buf != wanted || !(flushed..=last).contains(&stamp) {
                        return Err(format!(
                            "sector {lba}: write {stamp}, not {flushed} to {last}"
                        ));
                    }
                }
            }
        }
        Ok(outcome)
    });
    looked.map_err(|e| e.to_string())?
}

struct History {
    now: Vec<u8>,
    older: Vec<Vec<u8>>,
    promised: Promised,
}

fn history(kind: &'static dyn Kind, seed: u64) -> History {
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &spec(), &CreateImage::default()).expect("created");
    let (file, ssd) = open(file.bytes()).expect("new");
    let run = Virtual::new(1, seed, CostTable::zero());
    let (cx, device, played) = (run.cx(), ssd.clone(), file.clone());
    let rng = Rng::stream(seed, "damage.layers", 0);
    let done = run.run(async move {
        let layer = kind.create(&cx, Seam::Device(device), &settings(kind)).await;
        play(cx, layer.expect("made"), played, rng).await
    });
    let (promised, older) = done.expect("no stall");
    // Killed here.
    History { now: file.bytes(), older, promised }
}

fn trials(kind: &'static dyn Kind, range: Range<u64>) -> [u64; 4] {
    let layout = layout(&spec());
    let mut count = [0u64; 4];
    let mut at: Option<(u64, History)> = None;
    for n in range {
        let seed = n / PER_HISTORY;
        if at.as_ref().is_none_or(|(of, _)| *of != seed) {
            let history = history(kind, seed);
            assert_eq!(look(kind, history.now.clone(), &history.promised), Ok(3));
            at = Some((seed, history));
        }
        let history = &at.as_ref().expect("made").1;
        let (slots, len) = (layout.slots_at(), history.now.len() as u64);
        // What is in front of the slots, and the slots, more often.
        let regions = [0..2 * HEADER_BYTES, HOLDER_AT..slots, slots..len, slots..len, slots..len];
        let mut rng = Rng::stream(n, "damage.layers.trial", 0);
        let damage = Damage::draw(&mut rng, &history.now, &history.older, &regions);
        let mut hurt = history.now.clone();
        damage.apply(&mut hurt, &history.older);
        match look(kind, hurt, &history.promised) {
            Ok(outcome) => count[outcome] += 1,
            Err(says) => panic!(
                "{kind:?}, trial {n}, {damage}: {says}\nagain: FLASHLANE_DAMAGE={n}..{} cargo test -p \
                 flashlane-ftl --test damaged_images -- --nocapture",
                n + 1
            ),
        }
    }
    println!("{kind:?} {:?}", OUTCOMES.iter().zip(count).collect::<Vec<_>>());
    count
}

/// The trials that `FLASHLANE_DAMAGE` asks for (`from..end`), else the first thousand.
#[allow(clippy::disallowed_methods)] // which trials: for people
fn all_of(kind: &'static dyn Kind) {
    let asked = std::env::var("FLASHLANE_DAMAGE").ok();
    let range: Range<u64> = asked.as_deref().map_or(0..1000, |asked| {
        let (from, end) = asked.split_once("..").expect("from..end");
        from.parse().expect("a number")..end.parse().expect("a number")
    });
    let count = trials(kind, range);
    if asked.is_none() {
        assert!(count.iter().all(|n| *n > 20), "one-sided: {count:?}");
    }
}

#[test]
fn what_was_flushed_to_pblk_is_read_or_an_error() {
    all_of(&PBLK);
}

#[test]
fn what_was_flushed_to_the_block_ssd_is_read_or_an_error() {
    all_of(&PFTL);
}
