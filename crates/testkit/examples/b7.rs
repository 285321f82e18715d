//! B7 of the speed goals: what a file system costs a program, in a folder and in process.
//!
//! Owns: the measurement; a folder of this machine and [`Fs`] as places for it. Prints a row per kind of
//! operation: its name, a tab, operations per second. Usage: `b7 folder FOLDER` or `b7 process`, and
//! behind either a number of rounds (default 3): each does everything, a row is the best of them.
//! `bench/mount.sh` runs it on mounts in turns.
//!
//! One thread, one operation at a time. `create` makes a file, opens it and closes it; `stat` is the
//! first one behind that; `unlink` takes it away again. The file that is read and written is whole, and
//! was written before. A `direct` one is opened with `O_DIRECT`. Pages of the others leave the
//! kernel before they are read. In process there is no such difference, and the drive is in memory.

#![allow(clippy::disallowed_methods)] // this machine's time is what is measured

use flashlane_base::Rng;
use flashlane_ftl::sftl::{Sftl, SftlConfig};
use flashlane_ocssd::{DeviceSpec, Ssd, SsdOptions, StoreKind};
use flashlane_parafs::{Fs, Make, Medium, New, Nid, Options, ROOT, Time, mkfs};
use flashlane_rt::{Cx, Threads};
use rustix::fs::{Advice, OFlags, fadvise};
use std::fs::{self, File, OpenOptions};
use std::future::Future;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

/// Files that are made, looked at and removed, one after the other.
const FILES: u64 = 1_000;
/// Bytes of the file that is read and written.
const SET: u64 = 64 << 20;
/// Operations of 4 KiB.
const SMALL: u64 = 16_384;
const NAME: &str = "data";
/// Channels and blocks of each: 2 GiB, and four channels as in the tests of the mount.
const SHAPE: (u32, u32) = (4, 256);
const MODE: u16 = 0o100_644;

/// Where operations are done.
trait Place {
    fn create(&self, name: &str) -> impl Future<Output = ()>;
    /// Its size.
    fn stat(&self, name: &str) -> impl Future<Output = u64>;
    fn unlink(&self, name: &str) -> impl Future<Output = ()>;
    /// The file that is read and written.
    fn open(&mut self, direct: bool) -> impl Future<Output = ()>;
    fn write(&self, at: u64, data: &[u8]) -> impl Future<Output = ()>;
    fn read(&self, at: u64, into: &mut [u8]) -> impl Future<Output = ()>;
    /// What was written is nobody's work any more, and nothing of it is in the kernel.
    fn settle(&self) -> impl Future<Output = ()>;
}

struct Folder {
    at: PathBuf,
    file: Option<File>,
}

impl Folder {
    fn file(&self) -> &File {
        self.file.as_ref().expect("it was opened")
    }
}

impl Place for Folder {
    async fn create(&self, name: &str) {
        let made = OpenOptions::new().write(true).create_new(true).open(self.at.join(name));
        drop(made.expect("it is made"));
    }

    async fn stat(&self, name: &str) -> u64 {
        fs::metadata(self.at.join(name)).expect("it is there").size()
    }

    async fn unlink(&self, name: &str) {
        fs::remove_file(self.at.join(name)).expect("it is there");
    }

    async fn open(&mut self, direct: bool) {
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false);
        if direct {
            how.custom_flags(OFlags::DIRECT.bits() as i32);
        }
        self.file = Some(how.open(self.at.join(NAME)).expect("it is opened"));
    }

    async fn write(&self, at: u64, data: &[u8]) {
        self.file().write_all_at(data, at).expect("it is written");
    }

    async fn read(&self, at: u64, into: &mut [u8]) {
        self.file().read_exact_at(into, at).expect("it is read");
    }

    async fn settle(&self) {
        self.file().sync_all().expect("it is durable");
        fadvise(self.file(), 0, None, Advice::DontNeed).expect("the kernel forgets it");
    }
}

struct Process {
    cx: Cx,
    fs: Arc<Fs>,
    file: Nid,
}

impl Process {
    fn now(&self) -> Time {
        let ns = self.cx.now().as_ns();
        Time { seconds: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
    }

    async fn make(&self, name: &str) -> Nid {
        let new = New { mode: MODE, ..New::default() };
        let made = self.fs.create(&self.cx, ROOT, name.as_bytes(), &new, self.now()).await;
        made.expect("it is made").ino
    }
}

impl Place for Process {
    async fn create(&self, name: &str) {
        let ino = self.make(name).await;
        self.fs.open(&self.cx, ino).await.expect("it is there");
        self.fs.release(&self.cx, ino).await.expect("it is there");
    }

    async fn stat(&self, name: &str) -> u64 {
        let found = self.fs.lookup(&self.cx, ROOT, name.as_bytes()).await;
        found.expect("it is there").size
    }

    async fn unlink(&self, name: &str) {
        let gone = self.fs.unlink(&self.cx, ROOT, name.as_bytes(), self.now()).await;
        gone.expect("it is there");
    }

    async fn open(&mut self, _: bool) {
        if self.file == ROOT {
            self.file = self.make(NAME).await;
        }
    }

    async fn write(&self, at: u64, data: &[u8]) {
        let written = self.fs.write(&self.cx, self.file, at, data, self.now()).await;
        written.expect("it is written");
    }

    async fn read(&self, at: u64, into: &mut [u8]) {
        let n = self.fs.read(&self.cx, self.file, at, into).await.expect("it is read");
        assert_eq!(n, into.len());
    }

    async fn settle(&self) {
        self.fs.fsync(&self.cx, self.file, false).await.expect("it is durable");
    }
}

/// Rows in their order, each with the best that it came to.
#[derive(Default)]
struct Rows(Vec<(String, f64)>);

impl Rows {
    /// So many operations took the time since then.
    fn note(&mut self, name: &str, count: u64, began: Instant) {
        let rate = count as f64 / began.elapsed().as_secs_f64();
        match self.0.iter_mut().find(|(row, _)| row == name) {
            Some((_, best)) => *best = best.max(rate),
            None => self.0.push((name.into(), rate)),
        }
    }
}

async fn names(place: &impl Place, rows: &mut Rows) {
    let names: Vec<String> = (0..FILES).map(|i| format!("file-{i}")).collect();
    let began = Instant::now();
    for name in &names {
        place.create(name).await;
    }
    rows.note("create", FILES, began);
    let began = Instant::now();
    for name in &names {
        assert_eq!(place.stat(name).await, 0);
    }
    rows.note("stat", FILES, began);
    let began = Instant::now();
    for name in &names {
        place.unlink(name).await;
    }
    rows.note("unlink", FILES, began);
}

/// Reads and writes of so many bytes, as the file is opened, at places that `next` names.
async fn content(
    place: &impl Place,
    rows: &mut Rows,
    (name, count): (&str, u64),
    buffer: &mut [u8],
    mut next: impl FnMut() -> u64,
) {
    let began = Instant::now();
    for _ in 0..count {
        place.write(next(), buffer).await;
    }
    rows.note(&format!("{name} write"), count, began);
    place.settle().await;
    let began = Instant::now();
    for _ in 0..count {
        place.read(next(), buffer).await;
    }
    rows.note(&format!("{name} read"), count, began);
}

async fn measure(mut place: impl Place, rounds: u32) -> Rows {
    // Direct requests want whole pages of memory.
    let mut memory = vec![0x5a; (1 << 20) + 4096];
    let skip = memory.as_ptr().align_offset(4096);
    let large = &mut memory[skip..skip + (1 << 20)];
    let mut rows = Rows::default();
    // All of it is there before anything is measured.
    place.open(true).await;
    for at in 0..SET >> 20 {
        place.write(at << 20, large).await;
    }
    place.settle().await;
    for _ in 0..rounds {
        names(&place, &mut rows).await;
        for (direct, word) in [(true, "direct"), (false, "buffered")] {
            place.open(direct).await;
            let mut at = 0;
            let forwards = || {
                at = (at + (1 << 20)) % SET;
                at
            };
            let what = format!("1 MiB sequential {word}");
            content(&place, &mut rows, (&what, SET >> 20), large, forwards).await;
            let mut rng = Rng::stream(7, "b7", 0);
            let anywhere = || rng.below(SET >> 12) << 12;
            let what = format!("4 KiB random {word}");
            content(&place, &mut rows, (&what, SMALL), &mut large[..4096], anywhere).await;
            place.settle().await;
        }
    }
    rows
}

async fn in_process(cx: Cx, rounds: u32) -> Rows {
    let spec = DeviceSpec::preset("parafs").expect("there is one");
    let spec = spec.with_parallelism(SHAPE.0, 1).with_chunks_per_pu(SHAPE.1);
    let options = SsdOptions { store: StoreKind::Memory, timing: false, ..SsdOptions::default() };
    let ssd = Ssd::new(&spec, options).expect("a device");
    let sftl = Sftl::create(&cx, ssd, SftlConfig::default()).await.expect("it is large enough");
    let medium = Medium::from(sftl);
    let layout = medium.plan(0, 0).expect("it is large enough");
    mkfs(&cx, medium.clone(), layout, &Make::default(), Time::default()).await.expect("it is made");
    let (fs, _) = Fs::mount(&cx, medium, Options::default()).await.expect("it is mounted");
    let place = Process { cx: cx.clone(), fs: fs.clone(), file: ROOT };
    let rows = measure(place, rounds).await;
    fs.unmount(&cx).await.expect("it is unmounted");
    rows
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let rounds = |text: Option<&String>| text.map_or(3, |text| text.parse().expect("a number"));
    let threads = Threads::new(1, 0);
    let rows = match &args[..] {
        [kind, at, more @ ..] if kind == "folder" => {
            let (place, rounds) = (Folder { at: at.into(), file: None }, rounds(more.first()));
            threads.run_here(|_| measure(place, rounds))
        }
        [kind, more @ ..] if kind == "process" => {
            let rounds = rounds(more.first());
            threads.run_here(|cx| in_process(cx, rounds))
        }
        _ => panic!("b7 folder FOLDER [ROUNDS], or b7 process [ROUNDS]"),
    };
    for (name, rate) in rows.expect("it goes on").0 {
        println!("{name}\t{rate:.0}");
    }
}
