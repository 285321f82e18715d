//! Each key of `[device]` and `[[target]]`, on each type of target: it acts, or it is refused.
//!
//! The keys are those that the readers ask for, so a new one is tried without being named here. A
//! key acts when another value of it changes the fingerprint of a tiny run, or the reason why that
//! can't be. What other value there is follows from the kind of key, or stands in [`ROWS`]. What
//! such a run can't show is in [`EXEMPT`], each with the reason.

use super::*;
use crate::execute::{How, execute};
use crate::experiment::document::{Change, Document};
use crate::experiment::files::FileSystem;
use crate::experiment::{Base, DeviceChoice, Experiment, device, target};
use crate::run::{Monitor, Unwatched};
use flashlane_base::Ns;
use flashlane_ftl::layer::Asked;
use flashlane_ocssd::{DeviceSpec, SsdOptions};
use serde_json::Value as Json;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::rc::Rc;

/// A used drive of 64 MiB, which collects garbage, under reads, writes and flushes of two jobs.
const BLOCKS: &str = r#"
[device]
preset = "tiny"
geometry.chunks_per_pu = 64
[[target]]
kind = "KIND"
over_provisioning_percent = 30
[[workload]]
rw = "randrw"
rwmixread = 30
bs = "4KiB"
iodepth = 16
numjobs = 2
io_size = "6MiB"
fsync = 64
[run]
fill = "100%"
host_cores = 2
allow_errors = true
"#;

/// 24 MiB of flash, and a host with little memory.
const FILES: &str = r#"
[device]
preset = "parafs"
geometry.chunks_per_pu = 96
geometry.channels = 2
geometry.pages_per_block = 16
[[target]]
kind = "parafs"
meta_percent = 20
cache_pages = 256
cache_nodes = 256
dirty_pages = 128
[[workload]]
files = "varmail"
nfiles = 150
filesize = "32KiB"
nthreads = 8
written = "1MiB"
[run]
host_cores = 2
allow_errors = true
"#;

/// The same on a block SSD.
const FILES_ON_BLOCKS: &str = r#"
[device]
preset = "parafs"
geometry.chunks_per_pu = 120
geometry.channels = 2
geometry.pages_per_block = 32
[[target]]
kind = "pftl"
[target.parafs]
cache_pages = 256
cache_nodes = 256
dirty_pages = 128
[[workload]]
files = "varmail"
nfiles = 100
filesize = "32KiB"
nthreads = 8
written = "6MiB"
[run]
host_cores = 2
allow_errors = true
"#;

/// One writer that goes round, one that does not and has several commands under way, and a reader.
const PUS: &str = r#"
[device]
preset = "tiny"
geometry.chunks_per_pu = 12
[[target]]
kind = "raw"
[[workload]]
name = "round"
rw = "write"
bs = "16KiB"
pus = "0-0"
size = "13%"
io_size = "100%"
[[workload]]
name = "once"
rw = "write"
bs = "16KiB"
pus = "1-1"
size = "25%"
iodepth = 4
[[workload]]
name = "reader"
rw = "randread"
bs = "4KiB"
pus = "2-3"
size = "13%"
io_size = "50%"
iodepth = 4
[run]
host_cores = 2
allow_errors = true
"#;

const FILES_TYPE: &str = "pftl with parafs";

/// What keys are tried on.
struct Type {
    name: &'static str,
    /// The experiment.
    text: String,
    /// Its one target has a file system in a table of its own: only the keys of that are tried.
    has_table: bool,
}

/// Every type of target. What is only written in order is tried below the file system for it.
fn types() -> Vec<Type> {
    let plain = |name, text: &str| Type { name, text: text.to_string(), has_table: false };
    let blocks = kinds::targets().filter(|kind| !kind.in_order());
    let blocks = blocks.map(|kind| {
        // A drive's FTL begins to collect garbage when less is free.
        let io_size = if kind.stands().side == Side::Drive { "16MiB" } else { "6MiB" };
        let text = BLOCKS.replace("KIND", kind.name()).replace("6MiB", io_size);
        plain(kind.name(), &text)
    });
    let table = Type { has_table: true, ..plain(FILES_TYPE, FILES_ON_BLOCKS) };
    blocks.chain([plain(PARAFS, FILES), table, plain(kinds::RAW, PUS)]).collect()
}

/// How a key is tried. Keys are `device.KEY`, `target.KEY` and, of a file system, `parafs.KEY`.
struct Row {
    key: &'static str,
    /// On these types; on all without any.
    on: &'static [&'static str],
    /// What must be so that it can act, as `--set` has it.
    with: &'static [&'static str],
    /// Other values, each perhaps with further changes behind ` & `; without any as its kind has
    /// them.
    to: &'static [&'static str],
}

const fn row(
    key: &'static str,
    on: &'static [&'static str],
    with: &'static [&'static str],
    to: &'static [&'static str],
) -> Row {
    Row { key, on, with, to }
}

const ALL: &[&str] = &[];
const HOST_FTLS: &[&str] = &["pblk", "qblk"];
const ON_BLOCKS: &[&str] = &["pblk", "qblk", "pftl", "slc-tlc"];

/// A read in forty or so needs a retry.
const ECC: &str = "device.ecc={ codeword_bytes = 2048, correctable_bits = 24, high_bits = 20, \
                   rber_fresh = 1000000000, rber_worn = 0, retries = 2 }";
/// Nearly each read needs a retry, and some another one.
const ECC_BAD: &str = "device.ecc={ codeword_bytes = 2048, correctable_bits = 24, high_bits = 20, \
                       rber_fresh = 2000000000, rber_worn = 0, retries = 2 }";
/// One wrong bit is too many, and there is none.
const ECC_FRAGILE: &str = "device.ecc={ codeword_bytes = 4096, correctable_bits = 0, \
                           high_bits = 0, rber_fresh = 0, rber_worn = 0, retries = 1 }";
/// Erases fail at the rated erases.
const ECC_ERASES: &str = "device.ecc={ codeword_bytes = 2048, correctable_bits = 24, \
                          high_bits = 20, rber_fresh = 0, rber_worn = 0, erase_fail_ppm = 300000 }";
const WORN: &str = "device.cells.rated_erases=1";
const LINK: &str = "device.link={ to_device = \"1GB\", to_host = \"1GB\", command = \"1us\", \
                    queue_depth = 0 }";
const BUFFER: &str = "device.limits.write_buffer=256KiB";
const CAPACITORS: &str = "device.limits.capacitors=true";
/// So much is written that chunks of a block SSD are erased again and again.
const LONG: &str = "workload.0.io_size=64MiB";
const COSTS: &str = "run.costs=linux-4.16-femu";
const RINGS: &str = "target.0.rings=per_core";
const REST: &str = "run.rest=2s";
/// So much is written that segments are cleaned, on flash and on a block SSD.
const CLEANED: &str = "workload.0.written=16MiB";
const CLEANED_ON_BLOCKS: &str = "workload.0.written=48MiB";
/// The rest of a table of single-bit mode, on a device that has none.
const NO_SLC: &str = "\"70us\" & device.cells.slc.read=\"70us\" & \
                      device.cells.slc.program=\"300us\" & device.cells.slc.erase=\"2ms\"";
const NO_SLC_NUMBER: &str = "2 & device.cells.slc.read=\"70us\" & \
                             device.cells.slc.program=\"300us\" & device.cells.slc.erase=\"2ms\"";

/// Keys that need company, or have no other value by their kind. The first that fits counts.
const ROWS: &[Row] = &[
    row("device.capacity", &[PARAFS], &["device.capacity=24MiB", CLEANED], &["26MiB"]),
    row("device.geometry.chunks_per_pu", &[PARAFS], &[CLEANED], &["192"]),
    row("device.capacity", &[kinds::RAW], &["device.capacity=12MiB"], &["24MiB"]),
    row("device.capacity", ALL, &["device.capacity=64MiB"], &["72MiB"]),
    row("device.queue", ALL, &[], &["read_first", "suspend"]),
    row("device.null", ALL, &[], &["true"]),
    row("device.dulbe", ALL, &[], &["true"]),
    row("device.limited_retry", ALL, &[ECC], &["true"]),
    row("device.timing.erase", &[PARAFS], &[CLEANED], &["9ms"]),
    row("device.limits.erase_ignored", &[PARAFS], &[CLEANED], &["true"]),
    row("device.timing.command", ALL, &[], &["5us"]),
    row("device.timing.max", ALL, &[], &["{ read = \"1ms\", program = \"9ms\", erase = \"9ms\" }"]),
    row("device.timing.channel_bandwidth", ALL, &[], &["100MB"]),
    row("device.timing.controller_write", ALL, &[], &["20MB"]),
    row("device.timing.controller_read", ALL, &[], &["20MB"]),
    row("device.timing.max_in_flight", ALL, &[], &["1"]),
    row("device.timing.cache_program", &["pblk"], &["target.0.pu_budget=4"], &[]),
    row("device.timing.queue", ALL, &[], &["read_first", "suspend"]),
    row("device.timing.read_burst", &[kinds::RAW], &[], &["1"]),
    row(
        "device.timing.read_burst",
        &[PARAFS],
        &[
            "device.queue=read_first",
            "parafs.dispatch=fifo",
            "parafs.window=64",
            "parafs.cache_pages=64",
            "workload.0.nthreads=64",
        ],
        &["0"],
    ),
    row("device.timing.read_burst", ALL, &["device.queue=read_first"], &["1", "0"]),
    row("device.timing.suspend_cost", &[kinds::RAW], &[], &["200us"]),
    row("device.timing.suspend_cost", ALL, &["device.queue=suspend"], &["200us"]),
    row("device.cells.bits", ALL, &[], &["2"]),
    row(
        "device.cells.pairing",
        ALL,
        &["device.geometry.mw_cunits=16"],
        &["mlc & device.timing.read=[\"40us\", \"60us\"]"],
    ),
    row("device.cells.pair_damage", &["pftl"], &["target.0.capacitors=false"], &[]),
    row("device.cells.pair_damage", &[PARAFS], &["device.geometry.mw_cunits=4"], &[]),
    row("device.cells.rated_erases", ON_BLOCKS, &[ECC_ERASES, LONG], &["1"]),
    row("device.cells.rated_erases", &[PARAFS], &[ECC_ERASES, CLEANED], &["1"]),
    row("device.cells.rated_erases", ALL, &[ECC_ERASES], &["1"]),
    row("device.cells.slc.ws_min", &["slc-tlc"], &[], &["2"]),
    row("device.cells.slc.rated_erases", &[PARAFS], &[], &[NO_SLC_NUMBER]),
    row("device.cells.slc.ws_min", &[PARAFS], &[], &[NO_SLC_NUMBER]),
    row("device.cells.slc.read", &[PARAFS], &[], &[NO_SLC]),
    row("device.cells.slc.program", &[PARAFS], &[], &[NO_SLC]),
    row("device.cells.slc.erase", &[PARAFS], &[], &[NO_SLC]),
    row("device.cells.slc.ws_min", ALL, &[], &["4"]),
    row("device.limits.max_open", ALL, &[], &["1", "4", "8"]),
    row("device.limits.max_open_per_pu", ALL, &[], &["1", "2"]),
    row("device.limits.factory_bad_ppm", ALL, &[], &["100000", "400000"]),
    row("device.limits.capacitors", &[kinds::RAW], &[], &["true"]),
    row("device.limits.capacitors", ALL, &[BUFFER], &["true"]),
    row("device.limits.write_buffer", &[kinds::RAW], &[], &["256KiB"]),
    row("device.limits.write_buffer", HOST_FTLS, &[], &["256KiB"]),
    row("device.limits.write_buffer", ALL, &[CAPACITORS], &["256KiB"]),
    row("device.ecc.codeword_bytes", ALL, &[ECC], &["1024"]),
    row("device.ecc.correctable_bits", ALL, &[ECC], &["20"]),
    row("device.ecc.high_bits", ALL, &[ECC, "target.0.scrub=reads"], &["24", "10"]),
    row("device.ecc.rber_fresh", ALL, &[ECC], &["1300000000"]),
    row("device.ecc.rber_worn", &[PARAFS], &[ECC, WORN, CLEANED], &["3000000000"]),
    row("device.ecc.rber_worn", ALL, &[ECC, WORN], &["3000000000"]),
    row("device.ecc.rber_per_day", ON_BLOCKS, &[ECC_FRAGILE, REST], &["1000000000000"]),
    row("device.ecc.rber_per_day", ALL, &[ECC_FRAGILE], &["1000000000000"]),
    row("device.ecc.rber_per_1000_reads", ALL, &[ECC_FRAGILE], &["1000000000000"]),
    row("device.ecc.retries", ALL, &[ECC], &["0"]),
    row("device.ecc.retry_gain", ALL, &[ECC_BAD], &["4"]),
    row("device.ecc.program_fail_ppm", &[PARAFS], &[ECC, WORN, CLEANED], &["200000"]),
    row("device.ecc.program_fail_ppm", ALL, &[ECC, WORN], &["200000"]),
    row("device.ecc.erase_fail_ppm", &[PARAFS], &[ECC, WORN, CLEANED], &["200000"]),
    row("device.ecc.erase_fail_ppm", ON_BLOCKS, &[ECC, WORN, LONG], &["200000"]),
    row("device.ecc.erase_fail_ppm", ALL, &[ECC, WORN], &["200000"]),
    row("device.link.to_device", ALL, &[LINK], &["50MB"]),
    row("device.link.to_host", ALL, &[LINK], &["50MB"]),
    row("device.link.command", ALL, &[LINK], &["9us"]),
    row("device.link.queue_depth", ALL, &[LINK], &["1"]),
    row("target.device", ALL, &[], &["tiny"]),
    row("target.pus", ALL, &[], &["0-1", "0-0"]),
    row("target.host_cores", ALL, &[], &["1"]),
    row("target.costs", ALL, &[], &["zero"]),
    row("target.handoff_per_waiter", ALL, &[COSTS], &["9us"]),
    row("target.over_provisioning_percent", &[PARAFS], &[], &["20"]),
    row("target.over_provisioning_percent", ALL, &[], &["40"]),
    row("target.wear_leveling", HOST_FTLS, &["workload.0.io_size=16MiB"], &[]),
    row("target.map", HOST_FTLS, &[COSTS], &[]),
    row("target.scrub_interval", HOST_FTLS, &["target.0.scrub=patrol"], &["2ms"]),
    row("target.scrub_sectors", HOST_FTLS, &[ECC, "target.0.scrub=reads"], &["8", "64"]),
    row("target.cores", &["pblk"], &[RINGS], &["1"]),
    row("target.cores", &["qblk"], &[], &["1"]),
    row("target.drainers", &["pblk"], &[RINGS, COSTS], &[]),
    row("target.drainers", &["qblk"], &[COSTS], &[]),
    row("target.borrow", &["pblk"], &[RINGS], &[]),
    row("target.channel_choice", &["pblk"], &["target.0.pools=per_channel"], &[]),
    row("target.completion_cores", HOST_FTLS, &[COSTS], &["1"]),
    row("target.map_cache", &["pftl"], &["target.0.map=cached"], &["1", "2"]),
    row("target.dirty_pages", &["pftl"], &["workload.0.rw=randtrim"], &["0"]),
    row("target.idle", &["slc-tlc"], &[REST], &["100s"]),
    row("target.migration_mib_per_s", &["slc-tlc"], &[REST], &["1"]),
    row("parafs.policy", &[PARAFS], &[], &["base", "mgc"]),
    row("parafs.policy", ALL, &[], &["f2fs"]),
    row("parafs.page", ALL, &[], &["4KiB"]),
    row("parafs.cache_pages", ALL, &[], &["64"]),
    row("parafs.dirty_pages", ALL, &[], &["16"]),
    row("parafs.dirty_nodes", ALL, &[], &["1", "8"]),
    row("parafs.journal", ALL, &[], &["0", "680"]),
    row("parafs.victims", &[PARAFS], &[CLEANED, "parafs.cleaners=one"], &["1", "64"]),
    row("parafs.ordered_fsync", &[PARAFS], &[], &["false"]),
    row("parafs.ordered_fsync", ALL, &["target.0.capacitors=false"], &["false"]),
    row("parafs.allocation", ALL, &[], &["blocks"]),
    row("parafs.cleaners", &[PARAFS], &[CLEANED], &["one"]),
    row("parafs.cleaners", ALL, &[CLEANED_ON_BLOCKS], &["one"]),
    row("parafs.idle", ALL, &[], &["100us"]),
    row("parafs.commit", ALL, &[], &["1ms"]),
    row("parafs.dispatch", ALL, &[], &["fifo"]),
    row("parafs.slice", ALL, &[], &["1us", "100ms"]),
    row("parafs.window", ALL, &[], &["1", "64"]),
    row("parafs.read_weight", ALL, &[], &["1000 & parafs.write_weight=1"]),
    row(
        "parafs.write_weight",
        ALL,
        &[],
        &["1000 & parafs.read_weight=1", "1 & parafs.read_weight=1000"],
    ),
    row("parafs.free_weight", ALL, &[CLEANED], &["1000000", "0"]),
    row("parafs.erasing_weight", ALL, &[CLEANED], &["1000000", "0"]),
    row("parafs.spare_segments", &[PARAFS], &[CLEANED], &["4"]),
    row("parafs.spare_segments", ALL, &[CLEANED_ON_BLOCKS], &["4"]),
];

/// What a tiny run can't show: the key, the types (all without any), the reason.
const EXEMPT: &[(&str, &[&str], &str)] = &[
    ("device.preset", ALL, "names the device; its numbers are tried"),
    ("device.spec", ALL, "names the device; its numbers are tried"),
    ("device.store", ALL, "says what is kept of contents; no time depends on it"),
    ("device.faults", ALL, "is a file of errors: `faults_and_ranges_of_pus_are_checked`, torture"),
    ("device.dulbe", ON_BLOCKS, "reads of what nobody has written are those of a mount: torture"),
    ("device.dulbe", &[PARAFS], "reads of what nobody has written are those of a mount: torture"),
    ("device.timing.page_transfer", ALL, "says `channel_bandwidth` in another way, which is tried"),
    ("device.geometry.mw_cunits", &[kinds::RAW], "must fit `cells.pairing`, which acts"),
    ("device.geometry.sectors_per_page", &[PARAFS], "must fit `ws_min`"),
    ("device.cells.slc.ws_min", &["slc-tlc"], "bounds what may be written; units are whole there"),
    ("device.geometry.ws_min", ALL, "bounds what may be written; most layers write `ws_opt`"),
    ("device.limits.reset_free", &["pblk", "qblk", "pftl", PARAFS], "a mount resets: torture"),
    ("device.limits.reset_open", ALL, "a mount resets: torture"),
    ("device.limits.early_close_offline_ppm", ALL, "follows a fault that closes a chunk: torture"),
    (
        "device.ecc.high_bits",
        &["pftl", "slc-tlc", PARAFS, kinds::RAW],
        "is counted (`high_ecc`), and only scrubbing acts by it",
    ),
    ("device.ecc.rber_worn", &[kinds::RAW], "every ecc has it; chunks that are read are new there"),
    ("device.limits.max_open_per_pu", &[kinds::RAW], "one is open, until a write of it fails"),
    ("device.cells.slc.rated_erases", &["slc-tlc"], "needs hundreds of erases: `ssd::wear`"),
    ("parafs.cache_nodes", ALL, "needs more nodes than a tiny run has"),
    ("parafs.victims", &[FILES_TYPE], "needs more cleaning than a tiny run has; tried on flash"),
    ("target.name", ALL, "is shown"),
    ("target.kind", ALL, "is the type"),
    ("target.parafs", ALL, "is a type"),
    ("target.wear_spread", HOST_FTLS, "needs hundreds of erases: `runs::care`"),
    ("target.detect", &["slc-tlc"], "needs a journal: experiments/slc/fig10.toml"),
    ("target.meter", ALL, "counts what passes, and changes no time"),
    ("target.idiscard", ALL, "needs an ext4 and its contents: crates/idiscard"),
];

fn base() -> Base {
    Base::of(Path::new(""))
}

/// What comes of an experiment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Came {
    /// It is refused where it is read, by `check` as by `run`.
    Refused(String),
    /// It ran, with this fingerprint.
    Ran(u64),
    /// It could not be run.
    Failed(String),
}

fn came(ty: &Type, sets: &[String]) -> Came {
    let changes: Vec<Change> = sets.iter().map(|set| Change::Set(set.clone())).collect();
    // A capacity and a number of chunks say the same thing.
    let is_sized = sets.iter().any(|set| set.starts_with("device.capacity="));
    let is_kept = |line: &&str| !(is_sized && line.starts_with("geometry.chunks_per_pu"));
    let text: Vec<&str> = ty.text.lines().filter(is_kept).collect();
    let experiment = match Experiment::parse("keys.toml", &text.join("\n"), &base(), &changes) {
        Ok(experiment) => experiment,
        Err(errors) => return Came::Refused(errors.to_string()),
    };
    let watch = |_: &Target| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    match execute(&experiment, How::default(), &watch) {
        Ok(outcome) => Came::Ran(outcome.fingerprint),
        Err(error) => Came::Failed(error.to_string()),
    }
}

/// Records which keys a kind of layer asks for, and which values each takes.
#[derive(Default)]
struct Keys(RefCell<BTreeMap<String, Takes>>);

#[derive(Clone, Debug)]
enum Takes {
    Number(u64, u64),
    Flag,
    Word(Vec<&'static str>),
    Time,
}

impl Asked for Keys {
    fn has(&self, _: &str) -> bool {
        false
    }

    fn number(&self, key: &str, least: u64, most: u64) -> Option<u64> {
        self.0.borrow_mut().insert(key.into(), Takes::Number(least, most));
        None
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.0.borrow_mut().insert(key.into(), Takes::Flag);
        None
    }

    fn word(&self, key: &str, words: &[&'static str]) -> Option<usize> {
        self.0.borrow_mut().insert(key.into(), Takes::Word(words.to_vec()));
        None
    }

    fn time(&self, key: &str) -> Option<Ns> {
        self.0.borrow_mut().insert(key.into(), Takes::Time);
        None
    }

    fn complain(&self, key: &str, says: String) {
        panic!("nothing is asked for, and `{key}` is wrong: {says}");
    }
}

/// Other numbers than `n`, within bounds.
fn numbers(n: Option<u64>, least: u64, most: u64) -> Vec<String> {
    let of = match n {
        Some(n) => vec![n.saturating_mul(2), n / 2, n + 1, n + 2, 4, 8, 64],
        None => vec![least, least + 1, 2 * least + 2, 64, 1024],
    };
    let other = of.into_iter().filter(|m| Some(*m) != n && (least..=most).contains(m));
    other.map(|m| m.to_string()).collect()
}

/// Other values of a layer's key that is `now` so.
fn of_takes(takes: &Takes, now: Option<&Json>) -> Vec<String> {
    match takes {
        Takes::Number(least, most) => numbers(now.and_then(Json::as_u64), *least, *most),
        Takes::Flag => match now.and_then(Json::as_bool) {
            Some(on) => vec![(!on).to_string()],
            None => vec!["true".into(), "false".into()],
        },
        Takes::Word(words) => {
            let now = now.and_then(Json::as_str);
            words.iter().filter(|word| Some(**word) != now).map(|word| word.to_string()).collect()
        }
        Takes::Time => vec!["\"1ms\"".into(), "\"1s\"".into()],
    }
}

/// Another value in place of one of a device.
fn of_value(value: &Json) -> Vec<String> {
    match value {
        Json::Bool(on) => vec![(!on).to_string()],
        Json::Number(n) => numbers(n.as_u64(), 0, u64::MAX),
        Json::String(text) => {
            let time = text.parse::<Ns>().ok().filter(|time| *time > Ns::ZERO);
            time.map(|time| format!("\"{}ns\"", 2 * time.as_ns())).into_iter().collect()
        }
        Json::Array(list) => {
            let each: Vec<String> = list.iter().flat_map(of_value).collect();
            vec![format!("[{}]", each.join(", "))]
        }
        Json::Null | Json::Object(_) => Vec::new(),
    }
}

/// The keys of what is no table.
fn leaves(at: &str, value: &Json, into: &mut Vec<String>) {
    match value {
        Json::Object(table) => {
            table.iter().for_each(|(key, value)| leaves(&format!("{at}.{key}"), value, into));
        }
        _ => into.push(at.into()),
    }
}

/// A device of whose tables none is absent.
fn whole_device() -> DeviceSpec {
    let tiny = DeviceSpec::preset_text("tiny").expect("a preset");
    let rest = "[ecc]\ncodeword_bytes = 2048\ncorrectable_bits = 24\nhigh_bits = 20\n\
                rber_fresh = 0\nrber_worn = 0\n[link]\nto_device = \"1GB\"\nto_host = \"1GB\"\ncommand = \"1us\"\n\
                queue_depth = 0\n";
    let mut spec = DeviceSpec::from_toml(&format!("{tiny}\n{rest}")).expect("a good device");
    spec.cells.slc.as_mut().expect("the preset has it").ws_min = Some(4);
    spec
}

/// Every key of `[device]`.
fn device_keys() -> Vec<String> {
    let nothing = Document::of("", BTreeMap::new());
    let section = nothing.root();
    let _ = device::read(Some(&section), &nothing, &base());
    let own = section.asked().into_iter().filter(|key| !device::TABLES.contains(&key.as_str()));
    let mut keys: Vec<String> = own.map(|key| format!("device.{key}")).collect();
    let all = serde_json::to_value(whole_device()).expect("plain values");
    for table in device::TABLES {
        leaves(&format!("device.{table}"), &all[*table], &mut keys);
    }
    keys
}

/// Every key of a file system.
fn file_keys(on_flash: bool) -> BTreeSet<String> {
    let nothing = Document::of("", BTreeMap::new());
    let section = nothing.root();
    FileSystem::read(&section, on_flash);
    section.asked().into_iter().collect()
}

/// Every key that a target of a type may have.
fn target_keys(ty: &Type) -> Vec<String> {
    if ty.has_table {
        return file_keys(false).iter().map(|key| format!("parafs.{key}")).collect();
    }
    let document = Document::parse("keys.toml", &ty.text, &[]).unwrap_or_else(|e| panic!("{e}"));
    let choice = DeviceChoice { spec: whole_device(), options: SsdOptions::default() };
    let keys = target::keys_of(&document.root(), &choice, &base());
    let of_files = if ty.name == PARAFS { file_keys(true) } else { BTreeSet::new() };
    let named = |key: String| match of_files.contains(&key) {
        true => format!("parafs.{key}"),
        false => format!("target.{key}"),
    };
    keys.into_iter().map(named).collect()
}

/// As `--set` has a key on the one target of a type.
fn path(ty: &Type, key: &str) -> String {
    match (key.split_once('.'), ty.has_table) {
        (Some(("target", key)), _) if !key.starts_with("0.") => format!("target.0.{key}"),
        (Some((PARAFS, key)), true) => format!("target.0.parafs.{key}"),
        (Some((PARAFS, key)), false) => format!("target.0.{key}"),
        _ => key.to_string(),
    }
}

/// Each key of one type of target.
struct Trial {
    ty: Type,
    /// The device of its text.
    spec: Json,
    /// What its layer asks for, and what that is without being said.
    layer: BTreeMap<String, Takes>,
    defaults: Json,
    /// What came of it before a key was changed, by what was set.
    before: RefCell<BTreeMap<Vec<String>, Came>>,
}

impl Trial {
    fn of(ty: Type) -> Trial {
        let experiment = Experiment::parse("keys.toml", &ty.text, &base(), &[]);
        let experiment = experiment.unwrap_or_else(|e| panic!("{}: {e}", ty.name));
        let stack = &experiment.targets[0].stack;
        let spec = serde_json::to_value(&stack.device.spec).expect("plain values");
        let keys = Keys::default();
        let mut defaults = Json::Null;
        if let Some(lowest) = stack.layers.first() {
            lowest.kind.settings(&keys, &lowest.kind.defaults());
            defaults = lowest.settings.clone();
        }
        let before = RefCell::default();
        Trial { ty, spec, layer: keys.0.into_inner(), defaults, before }
    }

    /// Other values of a key by its kind.
    fn others(&self, key: &str) -> Vec<String> {
        if let Some(path) = key.strip_prefix("device.") {
            let value = self.spec.pointer(&format!("/{}", path.replace('.', "/")));
            return value.map(of_value).unwrap_or_default();
        }
        let own = key.strip_prefix("target.").unwrap_or(key);
        let takes = self.layer.get(own);
        takes.map(|takes| of_takes(takes, self.defaults.get(own))).unwrap_or_default()
    }

    /// Nothing, where the key acts or is refused; else what is wrong.
    fn wrong_with(&self, key: &str) -> Option<String> {
        let fits = |on: &[&str]| on.is_empty() || on.contains(&self.ty.name);
        if EXEMPT.iter().any(|(exempt, on, _)| *exempt == key && fits(on)) {
            return None;
        }
        let row = ROWS.iter().find(|row| row.key == key && fits(row.on));
        let others: Vec<String> = match row.filter(|row| !row.to.is_empty()) {
            Some(row) => row.to.iter().map(|to| to.to_string()).collect(),
            None => self.others(key),
        };
        if others.is_empty() {
            return Some("no other value is known: give it a row, or a reason".into());
        }
        let written = |set: &str| match set.split_once('=') {
            Some((key, value)) => format!("{}={value}", path(&self.ty, key)),
            None => set.to_string(),
        };
        let with: Vec<String> =
            row.map_or(&[][..], |row| row.with).iter().map(|set| written(set)).collect();
        let known = self.before.borrow().get(&with).cloned();
        let before = known.unwrap_or_else(|| {
            let before = came(&self.ty, &with);
            self.before.borrow_mut().insert(with.clone(), before.clone());
            before
        });
        let mut said = Vec::new();
        for other in &others {
            let changed = format!("{key}={other}");
            let mut sets = with.clone();
            sets.extend(changed.split(" & ").map(|set| written(set.trim())));
            let after = came(&self.ty, &sets);
            match (&before, &after) {
                (_, Came::Refused(says)) if is_refusal(says, key) => return None,
                // The layer, or the run, says that it can't be: it has been heard.
                (Came::Ran(_), Came::Failed(_)) => return None,
                (Came::Ran(one), Came::Ran(other)) if one != other => return None,
                // What it comes with has no effect without it.
                (Came::Refused(says), Came::Ran(_)) if is_named_in(says, key) => return None,
                _ => said.push(format!("{other}: {after:?}")),
            }
        }
        Some(format!("with {with:?} {before:?}; {}", said.join("; ")))
    }
}

/// A message that refuses another key because it would do nothing without this one.
fn is_named_in(says: &str, key: &str) -> bool {
    let own = key.split_once('.').map_or(key, |(_, own)| own);
    says.contains("has no effect on") && says.contains(&format!("`{own}`"))
}

/// A message that refuses a key because it would do nothing.
fn is_refusal(says: &str, key: &str) -> bool {
    let own = key.split_once('.').map_or(key, |(_, own)| own);
    // A whole table may be meant.
    let mut named = own.split('.').chain([own]);
    let is_named = named.any(|part| says.contains(&format!("`{part}`")))
        || own.rsplit_once('.').is_some_and(|(table, _)| says.contains(&format!("`{table}`")));
    is_named && (says.contains("has no effect on") || says.contains(" is for `"))
}

fn every_key_acts_or_is_refused_on(name: &str) {
    let ty = types().into_iter().find(|ty| ty.name == name).expect("a type");
    let mut keys = target_keys(&ty);
    if !ty.has_table {
        keys.extend(device_keys());
    }
    let trial = Trial::of(ty);
    assert!(matches!(came(&trial.ty, &[]), Came::Ran(_)), "{name}: {:?}", came(&trial.ty, &[]));
    let wrong = keys.iter().filter_map(|key| Some((key, trial.wrong_with(key)?)));
    let wrong: Vec<String> = wrong.map(|(key, why)| format!("{key}: {why}")).collect();
    assert!(wrong.is_empty(), "{name}: {} of {}:\n{}", wrong.len(), keys.len(), wrong.join("\n"));
}

/// A test for each type, so that they run beside each other.
macro_rules! tried {
    ($($test:ident: $name:expr,)*) => {
        $(#[test]
        fn $test() {
            every_key_acts_or_is_refused_on($name);
        })*

        const TRIED: &[&str] = &[$($name),*];
    };
}

tried! {
    each_key_acts_on_pblk_or_is_refused: "pblk",
    each_key_acts_on_qblk_or_is_refused: "qblk",
    each_key_acts_on_pftl_or_is_refused: "pftl",
    each_key_acts_on_slc_tlc_or_is_refused: "slc-tlc",
    each_key_acts_on_parafs_or_is_refused: PARAFS,
    each_key_acts_on_files_on_blocks_or_is_refused: FILES_TYPE,
    each_key_acts_on_raw_or_is_refused: kinds::RAW,
}

#[test]
fn each_type_is_tried_and_each_row_is_of_a_key() {
    let types = types();
    let names: Vec<&str> = types.iter().map(|ty| ty.name).collect();
    let (tried, there) = (BTreeSet::from_iter(TRIED), BTreeSet::from_iter(&names));
    assert_eq!(tried, there);
    let keys = types.iter().flat_map(target_keys).chain(device_keys());
    let keys: BTreeSet<String> = keys.collect();
    let rows = ROWS.iter().map(|row| (row.key, row.on));
    for (key, on) in rows.chain(EXEMPT.iter().map(|(key, on, _)| (*key, *on))) {
        assert!(keys.contains(key), "no key is called `{key}`");
        assert!(on.iter().all(|name| names.contains(name)), "{key}: {on:?}");
    }
    for rule in RULES {
        let key = format!("device.{}", rule.key);
        let is_known = |known: &String| *known == key || known.starts_with(&format!("{key}."));
        assert!(keys.iter().any(is_known), "a rule without a key: `{key}`");
    }
}

fn said(text: &str, sets: &[&str]) -> String {
    let changes: Vec<Change> = sets.iter().map(|set| Change::Set(set.to_string())).collect();
    let parsed = Experiment::parse("e.toml", text, &base(), &changes);
    parsed.err().map(|errors| errors.to_string()).unwrap_or_default()
}

/// The message names key, type and remedy, at the place where the key stands.
#[test]
fn what_acts_on_no_target_is_refused() {
    let blocks = |kind: &str| BLOCKS.replace("KIND", kind);
    for (text, set, parts) in [
        (PUS.to_string(), "device.queue=suspend", ["`queue` has no effect", "type `raw`", "out"]),
        (
            PUS.to_string(),
            "device.timing.queue=read_first",
            ["`timing.queue` has no effect", "type `raw`", "leave it out"],
        ),
        (PUS.to_string(), "device.dulbe=true", ["`dulbe` has no effect", "type `raw`", "out"]),
        (
            PUS.to_string(),
            "device.timing.suspend_cost=9us",
            ["[device][timing]: `timing.suspend_cost` has no", "type `raw`", "leave it out"],
        ),
        (PUS.to_string(), "target.0.costs=zero", ["`costs` has no effect", "type `raw`", "out"]),
        (
            PUS.to_string(),
            "target.0.host_cores=4",
            ["`host_cores` has no effect", "type `raw`", "leave it out"],
        ),
        (
            blocks("pftl"),
            "target.0.handoff_per_waiter=9ns",
            ["`handoff_per_waiter` has no effect", "type `pftl`", "leave it out"],
        ),
        (
            blocks("pblk"),
            "target.0.borrow=true",
            ["[[target]] 0: `borrow` is for", "`rings = \"per_core\"`", "QBLK"],
        ),
        (
            blocks("pblk"),
            "target.0.channel_choice=turn",
            ["`channel_choice` is for", "`pools = \"per_channel\"`", "QBLK"],
        ),
        (
            FILES.to_string(),
            "target.0.handoff_per_waiter=9ns",
            ["`handoff_per_waiter` has no effect", "type `parafs`", "leave it out"],
        ),
        (
            blocks("pblk"),
            "device.cells.slc.read=\"30us\"",
            ["`cells.slc` has no effect", "type `pblk`", "`slc-tlc`"],
        ),
        (
            blocks("slc-tlc"),
            "device.timing.cache_program=true",
            ["`timing.cache_program` has no effect", "type `slc-tlc`", "leave it out"],
        ),
        (
            blocks("slc-tlc"),
            "device.timing.max={ read = \"1ms\", program = \"9ms\", erase = \"9ms\" }",
            ["`timing.max` has no effect", "type `slc-tlc`", "identify"],
        ),
    ] {
        let says = said(&text, &[set]);
        assert!(parts.iter().all(|part| says.contains(part)), "{set}: {says}");
        assert!(says.starts_with(&format!("--set {set}: ")), "{says}");
    }
}

/// A device is for all targets of an experiment: one on which the key acts is enough.
#[test]
fn a_key_that_acts_on_one_of_several_targets_is_taken() {
    let both = BLOCKS.replace("KIND", "pftl") + "[[target]]\nkind = \"slc-tlc\"\n";
    assert_eq!(said(&both, &["device.cells.slc.read=\"30us\""]), "");
    let none = BLOCKS.replace("KIND", "pftl") + "[[target]]\nkind = \"pblk\"\n";
    let says = said(&none, &["device.cells.slc.read=\"30us\""]);
    assert!(says.contains("has no effect on targets of the types `pblk`, `pftl`"), "{says}");
    // What `--target` leaves out was meant as well.
    let sets = [
        Change::Targets(vec!["pftl".into()]),
        Change::Set("device.cells.slc.read=\"30us\"".into()),
    ];
    assert!(Experiment::parse("e.toml", &both, &base(), &sets).is_ok());
    // Under `suspend` no programs overlap, also those of a raw target.
    assert_eq!(said(PUS, &["device.queue=suspend", "device.timing.cache_program=true"]), "");
}
