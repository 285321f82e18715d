//! File systems on targets, and the workloads for them.
//!
//! Owns: the keys of a file system ([`FileSystem`]) and of a personality of Filebench, by
//! Filebench's own words. Promises: a number that can't be is a complaint with its range. Never:
//! makes a file system, or a file.

use super::document::Section;
use super::policy::Policy;
use crate::files::{PAGE_SECTORS, SEGMENT_PAGES};
use crate::personality::{FileJob, Until};
use flashlane_base::{Bytes, Geometry, Ns};
use flashlane_files::{FILES_MAX, Personality, SIZE_MAX, Settings, THREADS_MAX};
use flashlane_parafs::{Allocation, Cleaners, Dispatch, Options, Schedule};
use serde_json::{Value, json};

/// The name of the file system: the type of a target that has one on S-FTL, and the key that puts
/// one on a target of another type.
pub const PARAFS: &str = "parafs";

/// A file system that is made on a target for each run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// What the keys that are not given follow from.
    pub policy: Policy,
    /// Pages of a segment on a block device; flash has its own.
    pub segment_pages: u32,
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
    /// What results say of it. An option without a key does not compile.
    pub(crate) fn described(&self) -> Value {
        let FileSystem { policy, segment_pages, options, spare_segments } = *self;
        let Options {
            cache_pages,
            cache_nodes,
            dirty_pages,
            dirty_nodes,
            journal,
            allocation,
            cleaners,
            schedule,
            idle,
            commit,
        } = options;
        let Schedule { dispatch, window, slice, weights, free_weight, erasing_weight } = schedule;
        json!({
            "kind": PARAFS,
            "policy": policy.word(),
            "segment_pages": segment_pages,
            "cache_pages": cache_pages,
            "cache_nodes": cache_nodes,
            "dirty_pages": dirty_pages,
            "dirty_nodes": dirty_nodes,
            "journal": journal,
            "allocation": name_of(&ALLOCATIONS, &allocation),
            "cleaners": name_of(&CLEANERS, &cleaners),
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

    /// Reads its keys. `on_flash` where the target gives it flash blocks.
    pub(super) fn read(s: &Section<'_>, on_flash: bool) -> FileSystem {
        let policy = s.word("policy", Policy::words(on_flash)).unwrap_or_default();
        let mut fs = FileSystem {
            policy,
            segment_pages: SEGMENT_PAGES,
            options: policy.options(),
            spare_segments: 0,
        };
        let o = &mut fs.options;
        let count = |key, least, most, into: &mut usize| {
            *into = s.number(key, least, most).map_or(*into, |n| n as usize);
        };
        count("cache_pages", CACHE_LEAST, CACHE_MOST, &mut o.cache_pages);
        count("cache_nodes", CACHE_LEAST, CACHE_MOST, &mut o.cache_nodes);
        count("dirty_pages", 1, CACHE_MOST, &mut o.dirty_pages);
        count("dirty_nodes", 1, CACHE_MOST, &mut o.dirty_nodes);
        count("journal", 0, JOURNAL_MOST, &mut o.journal);
        o.allocation = s.word("allocation", &ALLOCATIONS).unwrap_or(o.allocation);
        o.cleaners = s.word("cleaners", &CLEANERS).unwrap_or(o.cleaners);
        let time = |key, least: Ns, into: &mut Ns| {
            let Some(given) = s.parsed::<Ns>(key) else { return };
            match given >= least && given <= TIME_MAX {
                true => *into = given,
                false => s.complain(key, format!("`{key}` must be from {least} to {TIME_MAX}")),
            }
        };
        time("idle", Ns::ZERO, &mut o.idle);
        time("commit", Ns::ZERO, &mut o.commit);
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
        fs
    }
}

impl FileSystem {
    /// Takes from the flash below what its policy goes by.
    pub(super) fn lay_out(&mut self, flash: &Geometry) {
        if let Some(sectors) = self.policy.segment_sectors(flash) {
            self.segment_pages =
                u32::try_from(sectors / u64::from(PAGE_SECTORS)).unwrap_or(u32::MAX);
        }
    }
}

/// Longer times than this are never.
const TIME_MAX: Ns = Ns::from_secs(86_400);
/// Requests of a channel that are under way: no device has more at a time.
const WINDOW_MOST: u64 = 65_536;
const WEIGHT_MOST: u64 = 1_000_000;
/// Pages or nodes in memory: less than 64 count as such; more than 128 GiB of pages of 8 KiB no
/// host has.
const CACHE_LEAST: u64 = 64;
const CACHE_MOST: u64 = 1 << 24;
/// Nodes that a checkpoint has room for.
const JOURNAL_MOST: u64 = 680;
/// A year: longer runs are a mistake.
const RUNTIME_MAX: Ns = Ns::from_secs(365 * 86_400);

/// A workload of the shape `files = "fileserver"`.
pub(super) fn read_job(s: &Section<'_>, index: usize) -> Option<FileJob> {
    let known = Personality::ALL.map(|personality| (personality.word(), personality));
    // As `flashlane filebench` has it.
    let also = [("proxyserver", Personality::Webproxy)];
    let words: Vec<(&str, Personality)> = known.into_iter().chain(also).collect();
    let personality = s.word("files", &words);
    let of = Settings::of(personality.unwrap_or(Personality::Fileserver));
    let size = |key: &str, default: Bytes| {
        let given: Bytes = s.parsed(key).unwrap_or(default);
        if given.get() == 0 || given.get() > SIZE_MAX.get() {
            s.complain(key, format!("`{key}` is {given}, it must be from 1 byte to {SIZE_MAX}"));
            return default;
        }
        given
    };
    let settings = Settings {
        files: s.number("nfiles", 1, FILES_MAX).unwrap_or(of.files),
        mean: size("filesize", of.mean),
        width: s.number("meandirwidth", 1, WIDTH_MAX).unwrap_or(of.width),
        threads: s.number("nthreads", 1, THREADS_MAX.into()).map_or(of.threads, |n| n as u32),
        append: size("meanappendsize", of.append),
        io: size("iosize", of.io),
        there_percent: s.number("prealloc", 0, 100).unwrap_or(of.there_percent),
        ..of
    };
    let until = Until {
        ops: s.number("ops", 1, u64::MAX),
        runtime: s.parsed("runtime"),
        written: s.parsed("written"),
    };
    if !["ops", "runtime", "written"].iter().any(|key| s.has(key)) {
        s.complain(
            "files",
            "nothing says when it ends: give it `runtime = \"60s\"`, `written = \"1GiB\"` (by its \
             threads) or `ops = 100000`",
        );
    }
    if until.runtime.is_some_and(|time| time == Ns::ZERO || time > RUNTIME_MAX) {
        s.complain("runtime", format!("`runtime` is longer than 0 and at most {RUNTIME_MAX}"));
    }
    if until.written.is_some_and(|bytes| bytes.get() == 0) {
        s.complain("written", "`written = \"0\"` is reached at once: leave it out or give a size");
    }
    let name = s.text("name").map(str::to_string);
    let default = || match index {
        0 => settings.personality.word().to_string(),
        n => format!("{}{n}", settings.personality.word()),
    };
    let name = name.unwrap_or_else(default);
    Some(FileJob { name, settings: Settings { personality: personality?, ..settings }, until })
}

/// As wide as varmail's, whose files all lie in one folder.
const WIDTH_MAX: u64 = 1_000_000;
