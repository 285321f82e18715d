//! What is fuzzed: every trace parser, fio's job files, experiments, fault plans, drive images, what
//! FTLs write on the medium ([`blocks`]) and how they mount it ([`mount`]), file systems ([`ext4`], [`parafs`]), what NBD clients say ([`nbd`]).
//!
//! Owns: one function per kind of input that does everything a user can do with such a file, and
//! what must hold whatever the bytes are. Promises: returns; an input is used or refused with a
//! message. Never: knows where bytes come from: libFuzzer (`fuzz/fuzz_targets`) or the seeded run
//! (`harness.rs`).

mod blocks;
mod client;
mod ext4;
mod fuse;
mod http;
mod mount;
mod nbd;
mod parafs;
mod vhost;

use flashlane_base::{Location, Ppa};
use flashlane_lab::experiment::{Base, Experiment};
use flashlane_lab::fio;
use flashlane_lab::run::Unwatched;
use flashlane_lab::trace::convert::{Conversion, convert};
use flashlane_lab::trace::info::Info;
use flashlane_lab::trace::{ConvertError, Format, Layout, Reading, TraceSource, scan};
use flashlane_media::host::memory::MemoryFile;
use flashlane_media::image::HEADER_BYTES;
use flashlane_media::image::table::{Row, Table};
use flashlane_ocssd::device::{
    Cause, ChunkInfo, ChunkState, Data, Device, Flags, Gather, Op, Request, Scatter, Status,
};
use flashlane_ocssd::image::{Header, MAGIC, layout};
use flashlane_ocssd::{CreateImage, DeviceSpec, ImageError, OpenImage, Ssd};
use flashlane_rt::{CostTable, Virtual};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Names of the targets: the formats of traces, `fio`, `toml`, parts of drive images, blocks, mounts, doors.
pub(crate) fn names() -> Vec<&'static str> {
    let mut names: Vec<&str> = Format::ALL.map(Format::word).to_vec();
    names.extend(["fio", "toml", "image", "image-header", "image-table"]);
    names.extend(
        blocks::NAMES.iter().chain(&mount::NAMES).chain(&ext4::NAMES).chain(&parafs::NAMES),
    );
    names.extend(nbd::NAMES.iter().chain(&http::NAMES).chain(&vhost::NAMES).chain(&fuse::NAMES));
    names
}

/// Does with `bytes` what the target does; true when they were accepted.
///
/// # Panics
/// When something that must hold does not, or there is no such target.
pub(crate) fn run(target: &str, bytes: &[u8]) -> bool {
    let text = || String::from_utf8_lossy(bytes);
    match target {
        "fio" => {
            let _ = fio::looks_like(&text());
            said(fio::parse("fuzz", &text()))
        }
        "toml" => {
            let base = Base::of(Path::new("fuzz.toml"));
            said(Experiment::parse("fuzz.toml", &text(), &base, &[]))
        }
        "image" => image(bytes),
        "image-header" => image_header(bytes),
        "image-table" => image_table(bytes),
        word => {
            let files = [ext4::run, parafs::run];
            let clients = [nbd::run, http::run, vhost::run, fuse::run];
            let parts = [&[blocks::run, mount::run][..], &files, &clients].concat();
            if let Some(done) = parts.iter().find_map(|run| run(word, bytes)) {
                return done;
            }
            let format = Format::named(word).unwrap_or_else(|| panic!("no target `{word}`"));
            // By its content first: any format may come of it.
            trace(bytes, None);
            trace(bytes, Some(format))
        }
    }
}

/// An error has words.
fn said<T, E: std::fmt::Display>(result: Result<T, E>) -> bool {
    if let Err(e) = &result {
        assert!(!e.to_string().trim().is_empty());
    }
    result.is_ok()
}

fn memory(bytes: Vec<u8>) -> TraceSource {
    TraceSource::Memory { name: "fuzz".into(), bytes: bytes.into() }
}

fn trace(bytes: &[u8], format: Option<Format>) -> bool {
    let reading = Reading { format, ..Reading::default() };
    let scanned = match scan(&memory(bytes.to_vec()), &reading) {
        Ok(scanned) => scanned,
        Err(e) => {
            assert!(e.to_string().contains("fuzz"), "the file is not named: {e}");
            return false;
        }
    };
    let info = Info::of(&scanned);
    assert!(info.to_text().contains("fuzz") && info.to_json().ends_with('\n'));
    assert_eq!(info.verdict().contains(": good: "), !info.guessed, "a guess is never called good");
    // A layout of any trace fits when it may be packed.
    assert!(said(Layout::plan(&scanned, 1 << 20, None, true)));
    for to in [Format::Parquet, scanned.format] {
        let what = Conversion { to, device: None, lossy: true };
        match convert(&scanned, &what, &Unwatched, || Ok(Vec::new())) {
            Ok((written, done)) => {
                let again = Reading { format: Some(to), ..Reading::default() };
                let read = scan(&memory(written), &again).expect("what was written is read");
                assert_eq!(read.chosen().requests(), done.written, "{to}");
            }
            Err(e @ (ConvertError::Nothing { .. } | ConvertError::Devices { .. })) => {
                assert!(!e.to_string().is_empty());
            }
            Err(e) => panic!("a trace that was read can't be converted: {e}"),
        }
    }
    true
}

/// An image of two chunks, in memory.
fn small_image() -> Vec<u8> {
    let mut spec = DeviceSpec::preset("tiny").expect("a preset");
    let g = &mut spec.geometry;
    (g.channels, g.pus_per_channel, g.planes, g.chunks_per_pu) = (1, 1, 1, 2);
    (g.pages_per_block, g.sectors_per_page, g.ws_min, g.ws_opt) = (4, 1, 1, 1);
    g.mw_cunits = 0;
    let file = Arc::new(MemoryFile::default());
    Ssd::create_on(file.clone(), &spec, &CreateImage::default()).expect("created");
    file.bytes()
}

fn open(file: Arc<MemoryFile>) -> Result<Arc<Ssd>, ImageError> {
    Ssd::open_on(file, &OpenImage::default())
}

/// The bytes as a file; then as changes to a good image: its length where they begin with one that
/// is not 0, then (place, how many, what) each in 4, 1 and that many bytes.
fn image(bytes: &[u8]) -> bool {
    drive(MemoryFile::new(bytes.to_vec()));
    let mut file = small_image();
    let (len, mut patches) = bytes.split_at(bytes.len().min(4));
    let len = len.iter().rev().fold(0usize, |n, b| n << 8 | *b as usize);
    if len != 0 {
        file.resize(len.min(1 << 20), 0);
    }
    while let Some((head, rest)) = patches.split_at_checked(5) {
        let at = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (what, rest) = rest.split_at(rest.len().min(head[4] as usize));
        file.iter_mut().skip(at).zip(what).for_each(|(to, b)| *to = *b);
        patches = rest;
    }
    drive(MemoryFile::new(file))
}

/// The bytes as a header behind magic, checksum and length, with a checksum that is right.
fn image_header(bytes: &[u8]) -> bool {
    let room = HEADER_BYTES as usize - 12;
    let body = &bytes[..bytes.len().min(room)];
    let mut file = MAGIC.to_vec();
    let mut sealed = ((12 + body.len()) as u32).to_le_bytes().to_vec();
    sealed.extend(body.iter().skip(4));
    file.extend(flashlane_base::crc32c(&sealed).to_le_bytes());
    file.extend(sealed);
    file.resize(2 * HEADER_BYTES as usize, 0);
    let read = Header::read(&MemoryFile::new(file));
    if let Ok(header) = &read {
        let again = header.to_bytes().map(MemoryFile::new).and_then(|f| Header::read(&f));
        assert_eq!(
            format!("{:?}", again.expect("what was read is written")),
            format!("{header:?}")
        );
    }
    said(read)
}

/// The bytes as rows of a commit, (number, row) each, with checksums that are right.
fn image_table(bytes: &[u8]) -> bool {
    let file = Arc::new(MemoryFile::new(small_image()));
    let layout = layout(&Header::read(&*file).expect("a header").spec);
    let mut table = Table::open(file.clone(), layout, true).expect("a table");
    let rows = bytes.chunks_exact(60).map(|numbered| {
        let number = u32::from_le_bytes([numbered[0], numbered[1], numbered[2], numbered[3]]);
        let mut row: Row = [0; 56];
        row.copy_from_slice(&numbered[4..]);
        (number % layout.rows(), row)
    });
    let rows: BTreeMap<u32, Row> = rows.collect();
    table.commit(rows.into_iter().collect()).expect("a commit");
    drive(MemoryFile::new(file.bytes()))
}

/// Opens an image and does with it what a drive is for; what was flushed is there again.
fn drive(file: MemoryFile) -> bool {
    let before = file.bytes();
    let file = Arc::new(file);
    let ssd = match open(file.clone()) {
        Ok(ssd) => ssd,
        Err(e) => {
            assert!(!e.to_string().trim().is_empty());
            assert!(file.bytes() == before, "refused, and written to: {e}");
            return false;
        }
    };
    let geo = *ssd.geometry();
    if geo.chunks() > 64 || geo.sectors_per_chunk() > 64 {
        return true;
    }
    for pu in 0..geo.pus() {
        for chunk in 0..geo.chunks_per_pu {
            use_chunk(&ssd, pu, chunk);
        }
    }
    command(&ssd, Op::Flush, Vec::new());
    let report = |ssd: &Ssd| -> Vec<ChunkInfo> {
        (0..geo.pus()).flat_map(|pu| ssd.chunk_report(pu, 0, u32::MAX)).collect()
    };
    let kept = report(&ssd);
    drop(ssd);
    assert_eq!(report(&open(file).expect("what was flushed is opened")), kept);
    true
}

/// Reads a chunk, writes a unit if it takes one, erases it if it is full.
fn use_chunk(ssd: &Arc<Ssd>, pu: u32, chunk: u32) {
    let geo = *ssd.geometry();
    let at = |sector: u32, n: u32| -> Vec<Ppa> {
        let place = |sector| ssd.format().pack(Location { pu, chunk, sector });
        (sector..sector + n).map(place).collect()
    };
    let info = ssd.chunk_report(pu, chunk, 1)[0];
    command(ssd, Op::Read, at(0, geo.sectors_per_chunk()));
    match info.state {
        ChunkState::Free | ChunkState::Open if info.write_pointer < info.length => {
            command(ssd, Op::Write, at(info.write_pointer, geo.ws_min));
        }
        ChunkState::Closed => drop(command(ssd, Op::Reset, at(0, 1))),
        _ => {}
    }
}

fn command(ssd: &Arc<Ssd>, op: Op, addrs: Vec<Ppa>) -> Status {
    let clock = Virtual::new(1, 1, CostTable::zero());
    let (cx, ssd) = (clock.cx(), ssd.clone());
    let done = clock.run(async move {
        let n = addrs.len();
        let mut content = vec![3; n * 4096];
        let index: Vec<u32> = (0..n as u32).collect();
        let mut oob = vec![[3; 16]; n];
        let cause = vec![Cause::User; n];
        let data = match op {
            Op::Write => Data::Write {
                content: Gather::new(&content, &index, 4096),
                oob: &oob,
                cause: &cause,
            },
            Op::Read => {
                Data::Read { content: Scatter::new(&mut content, &index, 4096), oob: &mut oob }
            }
            _ => Data::None,
        };
        let request =
            Request { op, flags: Flags::default(), addrs: &addrs, data, whole_sectors: false };
        let device: &dyn Device = &*ssd;
        device.io(&cx, request).await
    });
    done.expect("nothing stalls").status(0)
}
