//! File systems on targets, and the workloads for them.
//!
//! Owns: the keys of a file system ([`FileSystem`]), and those of the programs that work on files, by
//! their own words. Promises: a number that can't be is a complaint with its range. Never:
//! makes a file system, or a file.

use super::document::Section;
use crate::files::{PAGE_SECTORS, SEGMENT_PAGES};
use crate::personality::mobibench::Mobibench;
use crate::personality::postmark::Postmark;
use crate::personality::sqlite::{self, Sqlite};
use crate::personality::ycsb::{Mix, Ycsb};
use crate::personality::{FileJob, Program, Until};
use crate::room::Wanted;
use flashlane_base::{Bytes, Geometry, Ns, SECTOR_BYTES};
use flashlane_files::{FILES_MAX, Personality, SIZE_MAX, Settings, THREADS_MAX};
use flashlane_parafs::{Allocation, Cleaners, Dispatch, Options, Policy, Reserve, Schedule};
use serde_json::{Value, json};

/// The name of the file system: the type of a target that has one on S-FTL, and the key that puts
/// one on a target of another type.
pub const PARAFS: &str = "parafs";

/// A file system that is made on a target for each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// What the keys that are not given follow from.
    pub policy: Policy,
    /// Pages of a segment on a block device, and sectors of a page; flash has its own.
    pub segment_pages: u32,
    pub page_sectors: u32,
    /// What it may use of the host.
    pub options: Options,
    /// Segments that files can't have, beside the least that cleaning needs.
    pub spare_segments: u32,
}

const ALLOCATIONS: [(&str, Allocation); 2] =
    [("pages", Allocation::Pages), ("blocks", Allocation::Blocks)];
const CLEANERS: [(&str, Cleaners); 2] =
    [("one", Cleaners::One), ("per-region", Cleaners::PerRegion)];
const DISPATCHES: [(&str, Dispatch); 2] = [("fifo", Dispatch::Fifo), ("aware", Dispatch::Aware)];

fn name_of<T: PartialEq>(words: &[(&'static str, T)], value: &T) -> &'static str {
    words.iter().find(|(_, of)| of == value).map_or("", |(word, _)| word)
}

impl FileSystem {
    /// How much room it takes.
    pub(crate) fn wanted(&self) -> Wanted {
        let FileSystem { page_sectors, segment_pages, spare_segments, .. } = *self;
        let reserve = Reserve::Full;
        // The paper's file systems have a page for each node.
        Wanted { page_sectors, segment_pages, spare_segments, reserve, shares_pages: false }
    }

    /// What results say of it. An option without a key does not compile.
    pub(crate) fn described(&self) -> Value {
        let FileSystem { policy, segment_pages, page_sectors, options, spare_segments } = *self;
        let Options {
            cache_pages,
            cache_nodes,
            dirty_pages,
            dirty_nodes,
            journal,
            allocation,
            cleaners,
            victims,
            ordered_fsync,
            schedule,
            idle,
            commit,
        } = options;
        let Schedule { dispatch, window, slice, weights, free_weight, erasing_weight } = schedule;
        json!({
            "kind": PARAFS,
            "policy": policy.word(),
            "segment_pages": segment_pages,
            "page_sectors": page_sectors,
            "cache_pages": cache_pages,
            "cache_nodes": cache_nodes,
            "dirty_pages": dirty_pages,
            "dirty_nodes": dirty_nodes,
            "journal": journal,
            "allocation": name_of(&ALLOCATIONS, &allocation),
            "cleaners": name_of(&CLEANERS, &cleaners),
            "victims": victims,
            "ordered_fsync": ordered_fsync,
            "dispatch": name_of(&DISPATCHES, &dispatch),
            "window": window,
            "slice_ns": slice.as_ns(),
            "weights": weights,
            "free_weight": free_weight,
            "erasing_weight": erasing_weight,
            "idle_ns": idle.as_ns(),
            "commit_ns": commit.as_ns(),
            "spare_segments": spare_segments,
        })
    }

    /// Takes from the flash below what its policy goes by.
    pub(super) fn lay_out(&mut self, flash: &Geometry) {
        if let Some(sectors) = self.policy.segment_sectors(flash) {
            self.segment_pages =
                u32::try_from(sectors / u64::from(self.page_sectors)).unwrap_or(u32::MAX);
        }
    }

    /// Reads its keys. `on_flash` where the target gives it flash blocks.
    pub(super) fn read(s: &Section<'_>, on_flash: bool) -> FileSystem {
        let elsewhere =
            |word: &str| Policy::all().any(|p| p.word() == word && !p.stands_on(on_flash));
        let policy = match s.text("policy") {
            Some(word) if elsewhere(word) => {
                let stands = match on_flash {
                    true => "stands on a block SSD: `kind = \"pftl\"` and [target.parafs] with it",
                    false => "needs flash blocks: `kind = \"parafs\"` and it in [[target]]",
                };
                s.complain("policy", format!("`policy` is `{word}`, which {stands}"));
                Policy::default()
            }
            _ => s.word("policy", Policy::words(on_flash)).unwrap_or_default(),
        };
        let mut fs = FileSystem {
            policy,
            segment_pages: SEGMENT_PAGES,
            page_sectors: PAGE_SECTORS,
            options: policy.options(),
            spare_segments: 0,
        };
        if !on_flash && let Some(page) = s.parsed::<Bytes>("page") {
            let sectors = page.get() / SECTOR_BYTES as u64;
            let whole = page.get() % SECTOR_BYTES as u64 == 0 && sectors.is_power_of_two();
            match whole && sectors <= PAGE_MOST {
                true => fs.page_sectors = sectors as u32,
                false => s.complain("page", "`page` must be 4, 8 or 16KiB"),
            }
            // A segment is as large with pages of any size.
            fs.segment_pages = SEGMENT_PAGES * PAGE_SECTORS / fs.page_sectors;
        }
        let o = &mut fs.options;
        let count = |key, least, most, into: &mut usize| {
            *into = s.number(key, least, most).map_or(*into, |n| n as usize);
        };
        count("cache_pages", CACHE_LEAST, CACHE_MOST, &mut o.cache_pages);
        count("cache_nodes", CACHE_LEAST, CACHE_MOST, &mut o.cache_nodes);
        count("dirty_pages", 1, CACHE_MOST, &mut o.dirty_pages);
        count("dirty_nodes", 1, CACHE_MOST, &mut o.dirty_nodes);
        count("journal", 0, JOURNAL_MOST, &mut o.journal);
        o.victims = s.number("victims", 1, VICTIMS_MOST).map_or(o.victims, |n| n as u32);
        o.ordered_fsync = s.flag("ordered_fsync").unwrap_or(o.ordered_fsync);
        o.allocation = s.word("allocation", &ALLOCATIONS).unwrap_or(o.allocation);
        o.cleaners = s.word("cleaners", &CLEANERS).unwrap_or(o.cleaners);
        let time = |key, least: Ns, into: &mut Ns| {
            let Some(given) = s.parsed::<Ns>(key) else { return };
            match given >= least && given <= TIME_MAX {
                true => *into = given,
                false => s.complain(key, format!("`{key}` must be from {least} to {TIME_MAX}")),
            }
        };
        for (key, into) in [("idle", &mut o.idle), ("commit", &mut o.commit)] {
            match s.parsed::<Ns>(key) {
                // Never.
                Some(Ns::ZERO) => *into = Ns::ZERO,
                // Whoever looks more often does nothing else.
                Some(_) => time(key, IDLE_LEAST, into),
                None => {}
            }
        }
        let schedule = &mut o.schedule;
        schedule.dispatch = s.word("dispatch", &DISPATCHES).unwrap_or(schedule.dispatch);
        time("slice", Ns::from_ns(1), &mut schedule.slice);
        let small = |key, most, into: &mut u32| {
            *into = s.number(key, 0, most).map_or(*into, |n| n as u32);
        };
        small("window", WINDOW_MOST, &mut schedule.window);
        small("free_weight", WEIGHT_MOST, &mut schedule.free_weight);
        small("erasing_weight", WEIGHT_MOST, &mut schedule.erasing_weight);
        let weight = |key| s.number(key, 1, WEIGHT_MOST);
        schedule.weights = match (weight("read_weight"), weight("write_weight")) {
            (Some(read), Some(write)) => Some((read, write)),
            (None, None) => None,
            _ => {
                let says =
                    "`read_weight` and `write_weight` are weighed against each other: give both";
                let given = if s.has("read_weight") { "read_weight" } else { "write_weight" };
                s.complain(given, says);
                None
            }
        };
        small("spare_segments", u32::MAX.into(), &mut fs.spare_segments);
        for key in OF_CHANNELS.iter().filter(|key| !on_flash && s.has(key)) {
            let says = "has no effect on a block SSD: its FTL places pages and schedules them";
            s.complain(key, format!("`{key}` {says}"));
        }
        if fs.options.cleaners == Cleaners::PerRegion && s.has("victims") {
            s.complain("victims", "`victims` is for `cleaners = \"one\"`");
        }
        if on_flash && fs.options.schedule.dispatch == Dispatch::Fifo {
            for key in OF_AWARE.iter().filter(|key| s.has(key)) {
                s.complain(key, format!("`{key}` is for `dispatch = \"aware\"`"));
            }
        }
        fs
    }
}

/// Longer times than this are never.
const TIME_MAX: Ns = Ns::from_secs(86_400);
/// Sectors of a page: of larger ones the small blocks of the figures have too few.
const PAGE_MOST: u64 = 4;
/// Requests of a channel that are under way: no device has more at a time.
const WINDOW_MOST: u64 = 65_536;
const WEIGHT_MOST: u64 = 1_000_000;
/// Pages or nodes in memory: less than 64 count as such; more than 128 GiB of pages of 8 KiB no
/// host has.
const CACHE_LEAST: u64 = 64;
const CACHE_MOST: u64 = 1 << 24;
/// Keys of what only flash blocks have.
const OF_CHANNELS: [&str; 8] = [
    "allocation",
    "dispatch",
    "slice",
    "window",
    "read_weight",
    "write_weight",
    "free_weight",
    "erasing_weight",
];
/// Keys of a dispatch that looks at what each channel has to do.
const OF_AWARE: [&str; 5] =
    ["slice", "read_weight", "write_weight", "free_weight", "erasing_weight"];
/// Segments that are emptied before a checkpoint: more than any device has at a time.
const VICTIMS_MOST: u64 = 4096;
/// The shortest time after which something is done unasked.
const IDLE_LEAST: Ns = Ns::from_us(100);
/// Nodes that a checkpoint has room for.
const JOURNAL_MOST: u64 = 680;
/// A year: longer runs are a mistake.
const RUNTIME_MAX: Ns = Ns::from_secs(365 * 86_400);

/// A program, as `files` names it.
#[derive(Clone, Copy)]
enum Word {
    Filebench(Personality),
    Postmark,
    Mobibench,
    Ycsb,
}

/// Programs that a workload of the shape `files = "fileserver"` runs at a time, at most.
const COPIES_MAX: u64 = 256;

/// A workload of the shape `files = "fileserver"`: so many programs as `numjobs` says, each with files of
/// its own.
pub(super) fn read_jobs(s: &Section<'_>, index: usize) -> Vec<FileJob> {
    let copies = s.number("numjobs", 1, COPIES_MAX).unwrap_or(1);
    let Some(job) = read_job(s, index) else { return Vec::new() };
    let named = |copy: u64| match copy {
        0 => job.name.clone(),
        n => format!("{}.{n}", job.name),
    };
    (0..copies).map(|copy| FileJob { name: named(copy), ..job.clone() }).collect()
}

fn read_job(s: &Section<'_>, index: usize) -> Option<FileJob> {
    let known =
        Personality::ALL.map(|personality| (personality.word(), Word::Filebench(personality)));
    let more = [
        // As `flashlane filebench` has it.
        ("proxyserver", Word::Filebench(Personality::Webproxy)),
        ("postmark", Word::Postmark),
        ("mobibench", Word::Mobibench),
        ("ycsb", Word::Ycsb),
    ];
    let words: Vec<(&str, Word)> = known.into_iter().chain(more).collect();
    let word = s.word("files", &words);
    let (default, program, until) =
        read_program(s, word.unwrap_or(Word::Filebench(Personality::Fileserver)));
    for (named, other) in &words {
        s.elsewhere("files", named, |s| read_program(s, *other));
    }
    let name = s.text("name").map(str::to_string);
    let default = || match index {
        0 => default.to_string(),
        n => format!("{default}{n}"),
    };
    let name = name.unwrap_or_else(default);
    word.map(|_| FileJob { name, program, until })
}

/// What it is called, what it does and when it ends.
fn read_program(s: &Section<'_>, word: Word) -> (&'static str, Program, Until) {
    let (name, program) = match word {
        Word::Filebench(personality) => {
            (personality.word(), Program::Filebench(read_filebench(s, personality)))
        }
        Word::Postmark => ("postmark", Program::Postmark(read_postmark(s))),
        Word::Mobibench => ("mobibench", read_mobibench(s)),
        Word::Ycsb => ("ycsb", Program::Ycsb(read_ycsb(s))),
    };
    let own = matches!(program, Program::Postmark(_)).then_some("transactions");
    let until = read_until(s, own);
    (name, program, until)
}

/// A size from `least` to `most`.
fn size(s: &Section<'_>, key: &str, default: Bytes, least: Bytes, most: Bytes) -> Bytes {
    let given: Bytes = s.parsed(key).unwrap_or(default);
    if given < least || given > most {
        s.complain(key, format!("`{key}` is {given}, it must be from {least} to {most}"));
        return default;
    }
    given
}

const BYTE: Bytes = Bytes::new(1);

/// By Filebench's words.
fn read_filebench(s: &Section<'_>, personality: Personality) -> Settings {
    let of = Settings::of(personality);
    let size = |key: &str, default: Bytes| size(s, key, default, BYTE, SIZE_MAX);
    Settings {
        files: s.number("nfiles", 1, FILES_MAX).unwrap_or(of.files),
        mean: size("filesize", of.mean),
        width: s.number("meandirwidth", 1, WIDTH_MAX).unwrap_or(of.width),
        threads: s.number("nthreads", 1, THREADS_MAX.into()).map_or(of.threads, |n| n as u32),
        append: size("meanappendsize", of.append),
        io: size("iosize", of.io),
        there_percent: s.number("prealloc", 0, 100).unwrap_or(of.there_percent),
        ..of
    }
}

/// By Postmark's words: `set bias read` is `bias_read` here.
fn read_postmark(s: &Section<'_>) -> Postmark {
    let of = Postmark::default();
    let size = |key: &str, default: Bytes| size(s, key, default, BYTE, SIZE_MAX);
    let mut read = Postmark {
        number: s.number("number", 1, FILES_MAX).unwrap_or(of.number),
        size_low: size("size_low", of.size_low),
        size_high: size("size_high", of.size_high),
        subdirectories: s.number("subdirectories", 0, FOLDERS_MAX).unwrap_or(of.subdirectories),
        bias_read: s.number("bias_read", 0, 10).unwrap_or(of.bias_read),
        bias_create: s.number("bias_create", 0, 10).unwrap_or(of.bias_create),
        read: size("read", of.read),
        write: size("write", of.write),
        fsync: s.flag("fsync").unwrap_or(of.fsync),
        transactions: s.number("transactions", 1, u64::MAX),
    };
    if read.size_low > read.size_high {
        let says = format!(
            "`size_low` is {}, more than `size_high`, {}: give both",
            read.size_low, read.size_high
        );
        s.complain(if s.has("size_low") { "size_low" } else { "size_high" }, says);
        read.size_low = read.size_high;
    }
    read
}

/// What Mobibench works on.
#[derive(Clone, Copy)]
enum Mode {
    File,
    Sqlite,
}

/// By words like Filebench's and SQLite's: Mobibench's own are letters.
fn read_mobibench(s: &Section<'_>) -> Program {
    s.elsewhere("mode", "file", read_mobibench_file);
    s.elsewhere("mode", "sqlite", read_mobibench_sqlite);
    match s.word("mode", &[("file", Mode::File), ("sqlite", Mode::Sqlite)]) {
        None | Some(Mode::File) => Program::Mobibench(read_mobibench_file(s)),
        Some(Mode::Sqlite) => Program::Sqlite(read_mobibench_sqlite(s)),
    }
}

fn read_mobibench_sqlite(s: &Section<'_>) -> Sqlite {
    let of = Sqlite::default();
    let mut read = Sqlite {
        threads: s.number("nthreads", 1, sqlite::THREADS_MAX).map_or(of.threads, |n| n as u32),
        rows: s.number("rows", 1, ROWS_MAX).unwrap_or(of.rows),
        io: size(s, "iosize", of.io, Bytes::new(512), Bytes::from_kib(64)),
        read_percent: s.number("read_percent", 0, 100).unwrap_or(of.read_percent),
        journal_mode: s.word("journal_mode", &sqlite::JOURNAL_MODES).unwrap_or(of.journal_mode),
        synchronous: s.word("synchronous", &sqlite::SYNCHRONOUS).unwrap_or(of.synchronous),
    };
    if !read.io.get().is_power_of_two() {
        let says = format!("`iosize` is {}, and SQLite's pages are a power of two", read.io);
        s.complain("iosize", says);
        read.io = of.io;
    }
    read
}

fn read_mobibench_file(s: &Section<'_>) -> Mobibench {
    let of = Mobibench::default();
    let mut read = Mobibench {
        threads: s.number("nthreads", 1, THREADS_MAX.into()).map_or(of.threads, |n| n as u32),
        size: size(s, "filesize", of.size, BYTE, SIZE_MAX),
        io: size(s, "iosize", of.io, Bytes::new(512), Bytes::from_kib(64)),
        read_percent: s.number("read_percent", 0, 100).unwrap_or(of.read_percent),
        fsync: s.number("fsync", 0, u64::MAX).unwrap_or(of.fsync),
    };
    if !read.io.get().is_multiple_of(512) {
        s.complain("iosize", format!("`iosize` is {}, no multiple of 512 bytes", read.io));
        read.io = of.io;
    }
    if !read.size.get().is_multiple_of(read.io.get()) {
        let says = format!("`filesize` is {}, no multiple of `iosize`, {}", read.size, read.io);
        s.complain(if s.has("filesize") { "filesize" } else { "iosize" }, says);
        read.size = of.size;
        read.io = of.io;
    }
    read
}

/// By YCSB's words, and InnoDB's for the store.
fn read_ycsb(s: &Section<'_>) -> Ycsb {
    let of = Ycsb::default();
    let mut read = Ycsb {
        mix: s.word("workload", &Mix::ALL).unwrap_or(of.mix),
        records: s.number("recordcount", 2, RECORDS_MAX).unwrap_or(of.records),
        record: size(s, "recordsize", of.record, Bytes::new(8), Bytes::from_kib(4)),
        threads: s.number("nthreads", 1, THREADS_MAX.into()).map_or(of.threads, |n| n as u32),
        // Fewer pages might not do for all threads; less log not for what they write at a time.
        pool: size(s, "buffer_pool", of.pool, Bytes::from_mib(4), Bytes::from_gib(16)),
        log: size(s, "redo_log", of.log, Bytes::from_mib(4), SIZE_MAX),
        doublewrite: s.flag("doublewrite").unwrap_or(of.doublewrite),
        ..of
    };
    if let Some(constant) = s.float("zipfian_constant") {
        let milli = (constant * 1_000.0).round();
        match (1.0..1_000.0).contains(&milli) {
            true => read.zipfian_milli = milli as u32,
            false => s.complain("zipfian_constant", "`zipfian_constant` is from 0.001 to 0.999"),
        }
    }
    let least = Bytes::from_kib(128 * u64::from(read.threads));
    if read.pool < least {
        let says = format!(
            "`buffer_pool` is {}, and {} threads need {least}: 8 pages each",
            read.pool, read.threads
        );
        s.complain(if s.has("buffer_pool") { "buffer_pool" } else { "nthreads" }, says);
        read.pool = least;
    }
    if !read.record.get().is_multiple_of(8) {
        let says = format!("`recordsize` is {}, no multiple of 8 bytes", read.record);
        s.complain("recordsize", says);
        read.record = of.record;
    }
    if !read.log.get().is_multiple_of(512) {
        s.complain("redo_log", format!("`redo_log` is {}, no multiple of 512 bytes", read.log));
        read.log = of.log;
    }
    read
}

/// Each is remembered.
const RECORDS_MAX: u64 = 100_000_000;

/// When it is over; a program may have a key of its own for that.
fn read_until(s: &Section<'_>, own: Option<&str>) -> Until {
    let mut until = Until {
        ops: s.number("ops", 1, u64::MAX),
        runtime: s.parsed("runtime"),
        ..Until::default()
    };
    match s.text("written").and_then(|text| text.strip_suffix('%')) {
        Some(percent) => match percent.trim().parse() {
            Ok(percent @ 1..=WRITTEN_MAX) => until.written_percent = Some(percent),
            _ => s.complain(
                "written",
                format!(
                    "`written` is a size like \"1GiB\", or from 1% to {WRITTEN_MAX}% of what files can \
                     have"
                ),
            ),
        },
        None => until.written = s.parsed("written"),
    }
    if !["ops", "runtime", "written"].into_iter().chain(own).any(|key| s.has(key)) {
        let or = own.map_or(String::new(), |own| format!(", `{own} = 100000`"));
        s.complain(
            "files",
            format!(
                "nothing says when it ends: give it `runtime = \"60s\"`, `written = \"1GiB\"` (by its \
                 threads){or} or `ops = 100000`"
            ),
        );
    }
    if until.runtime.is_some_and(|time| time == Ns::ZERO || time > RUNTIME_MAX) {
        s.complain("runtime", format!("`runtime` is longer than 0 and at most {RUNTIME_MAX}"));
    }
    if until.written.is_some_and(|bytes| bytes.get() == 0) {
        s.complain("written", "`written = \"0\"` is reached at once: leave it out or give a size");
    }
    until
}

/// A thousand times over.
const WRITTEN_MAX: u64 = 100_000;
/// Of a database: each is remembered, for each of 100 threads.
const ROWS_MAX: u64 = 1_000_000;
/// Each is remembered.
const FOLDERS_MAX: u64 = 100_000;
/// As wide as varmail's, whose files all lie in one folder.
const WIDTH_MAX: u64 = 1_000_000;
