//! An image of each format version is kept, and opens for ever.
//!
//! `tests/data/image-v1.img.gz` was written by version 1.0, `image-v1.1.img.gz` by 1.1, `image-v1.2.img.gz`
//! by 1.2, `image-v2.0.img.gz` by 2.0, `image-v2.1.img.gz` by 2.1, `image-v2.2.img.gz` by 2.2, and they are never written again. `cargo test -p flashlane-ocssd --test ssd kept -- --ignored --nocapture` writes one like them
//! elsewhere, for the next.

use crate::common::*;
use flashlane_ocssd::SlcCount;
use std::io::Write;

fn kept(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    let mut bytes = Vec::new();
    let packed = std::fs::File::open(path).unwrap();
    flate2::read::GzDecoder::new(packed).read_to_end(&mut bytes).unwrap();
    bytes
}

/// Two faults: one that has happened once of two times, one that waits.
const FAULTS: &str = "[[fault]]\nkind = \"read_high_ecc\"\nat = \"pu 0 chunk 0 sector 5\"\ntimes = 2\n\
                      [[fault]]\nkind = \"erase_fail\"\nat = \"pu 1\"\nprobability = \"0.25\"\nafter = \"9s\"";

/// Writes images with something of everything, to the folder of temporary files: one of few chunks,
/// and one of so many that its table has holes.
#[test]
#[ignore = "writes files that are kept: by hand, when the format gets a version"]
fn write_it() {
    write_one(4, "image-of-this-version.img.gz");
    write_one(40_000, "image-of-this-version-with-holes.img.gz");
}

fn write_one(chunks: u32, name: &str) {
    let spec = tiny(|s| {
        let g = &mut s.geometry;
        (g.channels, g.pus_per_channel, g.chunks_per_pu, g.mw_cunits) = (2, 1, chunks, 0);
        s.cells.slc.as_mut().unwrap().ws_min = Some(2);
    });
    let file = Arc::new(MemoryFile::default());
    let create = CreateImage { seed: 11, uuid: Some(*b"kept-by-version1"), replace: false };
    Ssd::create_on(file.clone(), &spec, &create).unwrap();
    let (bench, ssd) = Bench::on(file.clone());
    bench.write_up_to(0, 0, 64, 21);
    bench.write_up_to(0, 1, 24, 22);
    bench.write_up_to(1, 2, 64, 23);
    assert_eq!(bench.reset(1, 2), Status::Ok);
    for _ in 0..2 {
        let slc = Flags { cell: CellMode::Slc, ..Flags::default() };
        assert_eq!(bench.plain(Op::Reset, bench.at(&[(0, 3, 0, 1)]), slc).failed, 0);
    }
    assert_eq!(bench.write(&[(0, 3, 0, 2)], 26).failed, 0);
    let late = bench.at(&[(1, 3, 0, 4)]);
    let cut = ssd.clone();
    bench.run(move |cx, dev| async move {
        let filled = crate::common::Filled::new(4, 4096, 24);
        let _ = dev.submit(&cx, filled.request(&late, false));
        // In the middle of its program.
        cut.power_cut(cx.now() + Ns::from_us(300), PowerOn::ClockGoesOn);
    });
    assert!(ssd.set_bad_blocks(&bench.at(&[(1, 0, 0, 1)]), GROWN_BAD));
    ssd.inject(&FaultPlan::from_toml(FAULTS).unwrap()).unwrap();
    bench.read(&[(0, 0, 0, 8)]);
    ssd.set_targets(b"targets of version 1").unwrap();
    // Programmed, and never flushed.
    bench.write_up_to(0, 1, 32, 25);
    let path = std::env::temp_dir().join(name);
    println!("{}", path.display());
    let out = std::fs::File::create(path).unwrap();
    let mut packed = flate2::write::GzEncoder::new(out, flate2::Compression::best());
    packed.write_all(&file.bytes()).unwrap();
    packed.finish().unwrap();
}

/// What version 1.0 wrote and left without closing is read as it was at its last commit.
#[test]
fn an_image_of_version_1_opens() {
    let file = Arc::new(MemoryFile::new(kept("image-v1.img.gz")));
    let ssd = open_on(file);
    assert_eq!(ssd.image_info().unwrap().version, (1, 0));
    assert!(ssd.faults().is_empty());
    as_it_was_left(&ssd);
}

/// So is what version 1.1 wrote, with its faults.
#[test]
fn an_image_of_version_1_1_opens() {
    one_with_faults_opens("image-v1.1.img.gz", (1, 1));
}

/// So is what version 1.2 wrote, with its mark.
#[test]
fn an_image_of_version_1_2_opens() {
    one_with_faults_opens("image-v1.2.img.gz", (1, 2));
    let mut bytes = kept("image-v1.2.img.gz");
    bytes[MARK_AT as usize + 8] += 1;
    let file = Arc::new(MemoryFile::new(bytes));
    let refused = Ssd::open_on(file, &OpenImage::default()).err().expect("refused");
    assert!(refused.to_string().contains("mark"), "{refused}");
}

/// So is what version 2.1 wrote.
#[test]
fn an_image_of_version_2_1_opens() {
    one_with_faults_opens("image-v2.1.img.gz", (2, 1));
}

/// So is what version 2.2 wrote, with its chunk in SLC mode.
#[test]
fn an_image_of_version_2_2_opens() {
    one_with_faults_opens("image-v2.2.img.gz", (2, 2));
}

/// An image of version 2.2 whose header says 3.0, and whose rows of zeros are gone, is the same.
#[test]
fn an_image_of_version_3_0_opens() {
    use flashlane_ocssd::image::Header;
    let file = Arc::new(MemoryFile::new(kept("image-v2.2.img.gz")));
    let header = Header { version: (3, 0), ..Header::read(&*file).unwrap() };
    let layout = header.layout();
    let mut holes = 0;
    for number in 0..u64::from(layout.rows()) {
        let at = layout.table_at() + 64 * number;
        let mut row = [0; 56];
        file.read_at(at, &mut row).unwrap();
        if row == [0; 56] {
            file.write_at(at, &[0; 64]).unwrap();
            holes += 1;
        }
    }
    assert!(holes > 1000, "{holes}");
    let refused = Ssd::open_on(file.clone(), &OpenImage::default()).err().expect("refused");
    assert!(refused.to_string().contains("table row"), "2.2 has no holes: {refused}");
    file.write_at(0, &header.to_bytes().unwrap()).unwrap();
    with_faults_opens(file, (3, 0));
}

/// So is what version 2.0 wrote, with its checksums: a damaged sector is an error.
#[test]
fn an_image_of_version_2_0_opens() {
    one_with_faults_opens("image-v2.0.img.gz", (2, 0));
    let mut bytes = kept("image-v2.0.img.gz");
    let file = Arc::new(MemoryFile::new(bytes.clone()));
    let header = flashlane_ocssd::image::Header::read(&*file).unwrap();
    let (content, record) = header.layout().sector_at(0, 9);
    for at in [content + 4095, record, record + 23] {
        bytes[at as usize] ^= 1;
        let file = Arc::new(MemoryFile::new(bytes.clone()));
        let ssd = open_on(file);
        let got = Bench::new(ssd).read(&[(0, 0, 0, 64)]);
        let failed: Vec<usize> =
            (0..64).filter(|i| got.done.status(*i) == Status::HostFault).collect();
        assert_eq!(failed, [9], "byte {at}");
        bytes[at as usize] ^= 1;
    }
}

fn one_with_faults_opens(name: &str, version: (u16, u16)) {
    with_faults_opens(Arc::new(MemoryFile::new(kept(name))), version);
}

fn with_faults_opens(file: Arc<MemoryFile>, version: (u16, u16)) {
    let ssd = open_on(file);
    assert_eq!(ssd.image_info().unwrap().version, version);
    let faults = ssd.faults();
    assert_eq!(faults.len(), 2);
    assert_eq!((faults[0].fault.sector, faults[0].matched, faults[0].happened), (Some(5), 1, 1));
    assert_eq!((faults[1].fault.chance, faults[1].happened), (Some(1 << 30), 0));
    assert!(faults[1].fault.after.as_ns() > 9_000_000_000, "from when it was injected");
    assert!(faults.iter().all(|f| f.injected && f.is_armed()));
    as_it_was_left(&ssd);
    assert_eq!(ssd.faults()[0].happened, 2, "the second time");
}

fn as_it_was_left(ssd: &Arc<Ssd>) {
    let info = ssd.image_info().unwrap();
    assert_eq!((&info.uuid, info.seed), (b"kept-by-version1", 11));
    assert_eq!((info.power_cuts, info.unsafe_shutdowns), (1, 1));
    assert_eq!(ssd.targets(), b"targets of version 1");
    let has_slc = info.version >= (2, 2);
    let slc = ssd.chunk_report(0, 3, 1)[0];
    assert_eq!((slc.cell == CellMode::Slc, slc.slc_erases), (has_slc, u32::from(has_slc)));
    assert_eq!(
        ssd.counters().slc,
        has_slc.then_some(SlcCount { programmed_sectors: 2, erases: 1 })
    );
    let bench = Bench::new(ssd.clone());
    let states: Vec<_> = (0..2)
        .flat_map(|pu| ssd.chunk_report(pu, 0, 4))
        .map(|c| (c.state, c.write_pointer, c.erases))
        .collect();
    use ChunkState::{Closed, Free, Offline, Open};
    let last = if has_slc { (Open, 2, 2) } else { (Free, 0, 0) };
    let pu0 = [(Closed, 64, 0), (Open, 24, 0), (Free, 0, 0), last];
    let pu1 = [(Offline, 0, 0), (Free, 0, 0), (Free, 0, 1), (Open, 4, 0)];
    assert_eq!(states, [pu0, pu1].concat());
    let got = bench.read(&[(0, 0, 0, 64)]);
    assert!((0..64).all(|i| got.holds(i, 21)));
    let got = bench.read(&[(0, 1, 0, 24), (1, 3, 0, 4)]);
    assert!((0..24).all(|i| got.holds(i, 22)));
    assert!((24..28).all(|i| got.done.status(i) == Status::Uncorrectable), "torn");
    let programmed: u64 = ssd.counters().programmed.iter().sum();
    assert_eq!(programmed, 64 + 24 + 64 + 4 + if has_slc { 2 } else { 0 });
    assert!(!has_slc || bench.read(&[(0, 3, 0, 2)]).holds(1, 26));
    assert_eq!(bench.write(&[(0, 1, 24, 4)], 9).failed, 0, "it goes on");
}
