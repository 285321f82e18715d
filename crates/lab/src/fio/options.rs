//! fio's options, each with what it does to a job here.
//!
//! Owns: three tables. [`MEANINGFUL`] is applied, [`WITHOUT_MEANING`] is accepted because it says
//! how the kernel is driven and there is none, [`UNSUPPORTED`] is known and refused with the
//! reason.
//! Promises: a name is in exactly one table (test below). Never: applies an option silently
//! different from fio's manual; a deviation is in the table's text.

use super::values::{Units, three, time};
use super::{Problem, unknown};
use crate::suggest;
use crate::workload::{Distribution, Job, Mix, Pace};
use flashlane_base::Ns;

/// What became of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It changed the job.
    Set,
    /// It means nothing here.
    WithoutMeaning,
}

type Setter = fn(&mut Job, &mut Units, &str) -> Option<()>;

/// Options that are applied: names, what they take (for messages), how.
pub const MEANINGFUL: &[(&[&str], &str, Setter)] = &[
    (&["rw", "readwrite"], RW, set_rw),
    (&["rwmixread"], "0 to 100 (percent of reads)", |j, _, v| set(&mut j.rwmixread, percent(v)?)),
    (&["rwmixwrite"], "0 to 100 (percent of writes)", |j, _, v| {
        set(&mut j.rwmixread, 100 - percent(v)?)
    }),
    (&["bs", "blocksize"], BS, |j, u, v| {
        j.bs = three(v, |t| u.request(t).map(crate::workload::Sizes::fixed))?;
        Some(())
    }),
    (&["bsrange", "blocksize_range"], BSRANGE, |j, u, v| {
        j.bs = three(v, |t| u.range(t))?;
        Some(())
    }),
    (&["bssplit"], BSSPLIT, |j, u, v| {
        j.bs = three(v, |t| u.split(t))?;
        Some(())
    }),
    (&["size"], AMOUNT, |j, u, v| set(&mut j.size, Some(u.amount(v)?))),
    (&["io_size", "io_limit"], IO_SIZE, |j, u, v| {
        set(&mut j.io_size, Some(u.amount_up_to(v, 1_000_000)?))
    }),
    (&["offset"], AMOUNT, |j, u, v| set(&mut j.offset, u.amount(v)?)),
    (&["offset_increment"], AMOUNT, |j, u, v| set(&mut j.offset_increment, u.amount(v)?)),
    (&["number_ios"], "a number of requests", |j, _, v| {
        set(&mut j.number_ios, Some(count(v, u64::MAX)?))
    }),
    (&["iodepth"], "1 to 65536 requests in flight", |j, _, v| {
        set(&mut j.iodepth, count(v, 65536)? as u32)
    }),
    (&["numjobs"], "1 to 4096 copies", |j, _, v| set(&mut j.numjobs, count(v, 4096)? as u32)),
    (&["runtime", "timeout"], TIME_S, |j, _, v| {
        set(&mut j.runtime, Some(time(v, Ns::from_secs(1))?).filter(|t| *t > Ns::ZERO))
    }),
    (&["time_based"], BOOL, |j, _, v| set(&mut j.time_based, boolean(v)?)),
    (&["ramp_time"], TIME_S, |j, _, v| set(&mut j.ramp_time, time(v, Ns::from_secs(1))?)),
    (&["startdelay"], TIME_S, |j, _, v| set(&mut j.startdelay, time(v, Ns::from_secs(1))?)),
    (&["stonewall", "wait_for_previous"], BOOL, |j, _, v| set(&mut j.stonewall, boolean(v)?)),
    (&["loops"], "1 to 1000000", |j, _, v| set(&mut j.loops, count(v, 1_000_000)? as u32)),
    (&["thinktime"], "a time, microseconds without a unit", |j, _, v| {
        set(&mut j.thinktime, time(v, Ns::from_us(1))?)
    }),
    (&["thinktime_blocks"], "a number of requests", |j, _, v| {
        set(&mut j.thinktime_blocks, count(v, 1 << 30)? as u32)
    }),
    (&["rate"], "bytes per second, `10m` or `10m,5m`", |j, u, v| {
        set_rate(j, v, |t| u.bytes(t).filter(|n| *n > 0).map(Pace::BytesPerSecond))
    }),
    (&["rate_iops"], "requests per second, `1000` or `1000,500`", |j, _, v| {
        set_rate(j, v, |t| count(t, 1 << 40).map(Pace::Iops))
    }),
    (&["rate_process"], "`linear` or `poisson`", |j, _, v| match v {
        "linear" => set(&mut j.poisson, false),
        "poisson" => set(&mut j.poisson, true),
        _ => None,
    }),
    (&["random_distribution"], "`random`, `zipf:1.2` or `pareto:0.3`", set_distribution),
    (&["norandommap"], BOOL, |j, _, v| set(&mut j.norandommap, boolean(v)?)),
    (&["percentage_random"], "0 to 100", |j, _, v| {
        set(&mut j.percentage_random, three(v, percent)?[0])
    }),
    (&["fsync", "fdatasync"], "a number of writes, 0 for never", |j, _, v| {
        set(&mut j.fsync, v.parse().ok()?)
    }),
    (&["end_fsync", "fsync_on_close"], BOOL, |j, _, v| set(&mut j.end_fsync, boolean(v)?)),
    (&["sync"], "`none`, `sync` or `dsync` (each write is FUA)", |j, _, v| match v {
        "none" | "0" => set(&mut j.sync, false),
        "sync" | "dsync" | "1" => set(&mut j.sync, true),
        _ => None,
    }),
    (&["verify"], VERIFY, set_verify),
    (&["do_verify"], BOOL, |j, _, v| {
        let verify = j.verify && boolean(v)?;
        set(&mut j.verify, verify)
    }),
    (&["randseed"], "a number", |j, _, v| set(&mut j.randseed, Some(v.parse().ok()?))),
    (&["kb_base"], "1024 or 1000", |_, u, v| match v {
        "1024" => set(&mut u.kb_base, 1024),
        "1000" => set(&mut u.kb_base, 1000),
        _ => None,
    }),
];

const RW: &str = "read, write, randread, randwrite, rw (readwrite), randrw, trim or randtrim";
const BS: &str = "a multiple of 4 KiB up to 64 MiB, one size or `reads,writes`";
const AMOUNT: &str = "a multiple of 4 KiB or a percentage of the device (`50%`)";
const IO_SIZE: &str = "a multiple of 4 KiB or a percentage of the job's region (`200%`)";
const SIZES: &[&str] = &[BS, BSRANGE, BSSPLIT, AMOUNT, IO_SIZE];
const BSRANGE: &str = "a range in multiples of 4 KiB, low-high";
const BSSPLIT: &str = "sizes with shares that add up to 100, size/60:size/40";
const TIME_S: &str = "a time, seconds without a unit (`30`, `2m`, `500ms`)";
const BOOL: &str = "0 or 1";
const VERIFY: &str = "0 or a method of fio (md5, crc32c, xxhash, ...); content is checked by \
                      stamps whatever the method";

/// Options that say how a kernel is to be driven, how statistics are shown, or how a file is made.
/// There is no kernel and no file here, and all statistics are always there.
pub const WITHOUT_MEANING: &[&str] = &[
    "allow_file_create",
    "allrandrepeat",
    "atomic",
    "buffered",
    "clat_percentiles",
    "clocksource",
    "cpus_allowed",
    "cpus_allowed_policy",
    "create_on_open",
    "create_only",
    "create_serialize",
    "description",
    "direct",
    "directory",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "disk_util",
    "fallocate",
    "file_service_type",
    "filename",
    "filename_format",
    "fixedbufs",
    "group_reporting",
    "gtod_cpu",
    "gtod_reduce",
    "hipri",
    "invalidate",
    "ioengine",
    "iodepth_batch",
    "iodepth_batch_complete",
    "iodepth_batch_complete_max",
    "iodepth_batch_complete_min",
    "iodepth_batch_submit",
    "iodepth_low",
    "ioscheduler",
    "iomem",
    "lat_percentiles",
    "log_avg_msec",
    "mem",
    "name",
    "new_group",
    "nonvectored",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "overwrite",
    "percentile_list",
    "prio",
    "prioclass",
    "random_generator",
    "randrepeat",
    "refill_buffers",
    "registerfiles",
    "scramble_buffers",
    "slat_percentiles",
    "softrandommap",
    "sqthread_poll",
    "thread",
    "unified_rw_reporting",
    "unit_base",
    "unlink",
    "userspace_reap",
    "verify_async",
    "verify_backlog",
    "verify_fatal",
    "zero_buffers",
];

/// fio's engines, of all systems and versions (HOWTO.rst, `ioengine`).
const ENGINES: &[&str] = &[
    "cpuio",
    "dev-dax",
    "dfs",
    "dircreate",
    "dirdelete",
    "dirstat",
    "e4defrag",
    "exec",
    "external",
    "falloc",
    "filecreate",
    "filedelete",
    "fileoperations",
    "filestat",
    "ftruncate",
    "gfapi",
    "gfapi_async",
    "guasi",
    "http",
    "ime_aio",
    "ime_psync",
    "ime_psyncv",
    "io_uring",
    "io_uring_cmd",
    "libaio",
    "libblkio",
    "libcufile",
    "libhdfs",
    "libiscsi",
    "libpmem",
    "libzbc",
    "mmap",
    "mtd",
    "nbd",
    "net",
    "netsplice",
    "nfs",
    "null",
    "pmemblk",
    "posixaio",
    "psync",
    "pvsync",
    "pvsync2",
    "rados",
    "rbd",
    "rdma",
    "sg",
    "solarisaio",
    "splice",
    "sync",
    "syslet-rw",
    "vsync",
    "windowsaio",
    "xnvme",
];

const LOGS: &str = "no log files are written; take the results from --json and --csv";
const FILES: &str = "jobs run on one block device, not on files";
const COMMANDS: &str = "no commands are run";
const TRACES: &str = "replay a trace with `flashlane run TRACE`";
const CONTENT: &str = "the content is made of checked stamps";
const LATER: &str = "this version does not have it";

/// Options of fio that are refused, each with the reason.
pub const UNSUPPORTED: &[(&str, &str)] = &[
    ("buffer_compress_percentage", CONTENT),
    ("buffer_pattern", CONTENT),
    ("dedupe_percentage", CONTENT),
    ("exec_postrun", COMMANDS),
    ("exec_prerun", COMMANDS),
    ("file_append", FILES),
    ("filesize", FILES),
    ("fill_device", LATER),
    ("flow", LATER),
    ("include", "put all jobs into one file"),
    ("latency_target", LATER),
    ("nrfiles", FILES),
    ("openfiles", FILES),
    ("rate_cycle", LATER),
    ("rate_min", LATER),
    ("read_iolog", TRACES),
    ("replay_no_stall", TRACES),
    ("replay_redirect", TRACES),
    ("replay_scale", TRACES),
    ("rw_sequencer", LATER),
    ("serialize_overlap", LATER),
    ("steadystate", "say how to reach it with [run] in an experiment"),
    ("trim_percentage", LATER),
    ("verify_pattern", CONTENT),
    ("wait_for", LATER),
    ("write_bw_log", LOGS),
    ("write_hist_log", LOGS),
    ("write_iolog", LOGS),
    ("write_iops_log", LOGS),
    ("write_lat_log", LOGS),
    ("zonemode", "there are no zones here"),
];

/// All names that do not end in "unknown option".
pub fn names() -> impl Iterator<Item = &'static str> {
    MEANINGFUL
        .iter()
        .flat_map(|(names, _, _)| names.iter().copied())
        .chain(WITHOUT_MEANING.iter().copied())
        .chain(UNSUPPORTED.iter().map(|(name, _)| *name))
}

/// Whether fio has the option.
pub fn is_known(name: &str) -> bool {
    names().any(|n| n == name)
}

/// Applies an option; without a value it is a switch turned on.
pub fn apply(
    job: &mut Job,
    units: &mut Units,
    key: &str,
    value: Option<&str>,
) -> Result<Applied, Problem> {
    if WITHOUT_MEANING.contains(&key) {
        check_meaningless(key, value.unwrap_or_default())?;
        return Ok(Applied::WithoutMeaning);
    }
    if let Some((name, why)) = UNSUPPORTED.iter().find(|(name, _)| *name == key) {
        return Err(Problem::Unsupported { option: (*name).into(), why });
    }
    let found = MEANINGFUL.iter().find(|(names, _, _)| names.contains(&key));
    let Some((_, takes, setter)) = found else {
        return Err(unknown(key));
    };
    let kb_base = units.kb_base;
    let wrong = |expected: &str| {
        // What `k` is depends on where it is written.
        let units = match kb_base {
            _ if !SIZES.contains(&expected) => "",
            1024 => " (`4k` is 4096 bytes, `4ki` 4000)",
            _ => " (`4KiB` is 4096 bytes, `4k` 4000)",
        };
        Problem::Value { option: key.into(), expected: format!("{expected}{units}") }
    };
    let value = match value {
        Some(v) if v.contains("${") => {
            return Err(wrong("no variables here: the environment is not read"));
        }
        Some(v) => v,
        None if *takes == BOOL => "1",
        None => return Err(wrong(takes)),
    };
    setter(job, units, value).ok_or_else(|| wrong(takes))?;
    Ok(Applied::Set)
}

/// What means nothing here has to mean something to fio.
fn check_meaningless(key: &str, value: &str) -> Result<(), Problem> {
    let wrong = |expected: String| Err(Problem::Value { option: key.into(), expected });
    match key {
        // `a:b` are two files in fio; a colon of a name is written `\:`.
        "filename" if value.replace("\\:", "").contains(':') => {
            wrong("one file: all jobs run on one block device".into())
        }
        "ioengine" => {
            let name = value.split(':').next().unwrap_or(value);
            if ENGINES.contains(&name) {
                return Ok(());
            }
            let hint = suggest::hint(name, ENGINES.iter().copied());
            wrong(format!("an engine of fio (libaio, io_uring, psync, ...){hint}"))
        }
        _ => Ok(()),
    }
}

fn set<T>(field: &mut T, value: T) -> Option<()> {
    *field = value;
    Some(())
}

fn boolean(v: &str) -> Option<bool> {
    match v {
        "1" | "" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

fn percent(v: &str) -> Option<u8> {
    v.parse().ok().filter(|p| *p <= 100)
}

/// A number of at least 1.
fn count(v: &str, max: u64) -> Option<u64> {
    v.parse().ok().filter(|n| (1..=max).contains(n))
}

fn set_rw(job: &mut Job, _: &mut Units, v: &str) -> Option<()> {
    let (random, plain) = match v.strip_prefix("rand") {
        Some(plain) => (true, plain),
        None => (false, v),
    };
    let mix = match plain {
        "read" => Mix::Read,
        "write" => Mix::Write,
        "rw" => Mix::Mixed,
        "readwrite" if !random => Mix::Mixed,
        "trim" => Mix::Discard,
        _ => return None,
    };
    (job.rw, job.random) = (mix, random);
    Some(())
}

fn set_rate(job: &mut Job, v: &str, pace: impl Fn(&str) -> Option<Pace>) -> Option<()> {
    let [read, write, _] = three(v, pace)?;
    set(&mut job.rate, [read, write])
}

fn set_distribution(job: &mut Job, _: &mut Units, v: &str) -> Option<()> {
    let (name, input) = v.split_once(':').unwrap_or((v, ""));
    let number = |default: f64| match input {
        "" => Some(default),
        text => text.parse::<f64>().ok().filter(|n| n.is_finite()),
    };
    let distribution = match name {
        "random" => Distribution::Uniform,
        // fio's defaults: zipf 1.1, pareto 0.2. Its zipf may not be exactly 1; ours may.
        "zipf" => Distribution::Zipf(number(1.1).filter(|t| (0.01..=10.0).contains(t))?),
        "pareto" => Distribution::Pareto(number(0.2).filter(|h| (0.01..=0.99).contains(h))?),
        _ => return None,
    };
    set(&mut job.random_distribution, distribution)
}

fn set_verify(job: &mut Job, _: &mut Units, v: &str) -> Option<()> {
    const METHODS: &[&str] = &[
        "md5",
        "crc64",
        "crc32c",
        "crc32c-intel",
        "crc32",
        "crc16",
        "crc7",
        "xxhash",
        "sha512",
        "sha256",
        "sha1",
        "sha3-224",
        "sha3-256",
        "sha3-384",
        "sha3-512",
        "meta",
        "null",
    ];
    match v {
        "0" => set(&mut job.verify, false),
        v if METHODS.contains(&v) => set(&mut job.verify, true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_name_is_in_one_table_only() {
        let mut seen = BTreeSet::new();
        for name in names() {
            assert!(seen.insert(name), "{name} is listed twice");
        }
    }

    /// In fio the share belongs to mixed jobs only; naming it must not make a reader mixed.
    #[test]
    fn the_share_of_reads_does_not_turn_a_reader_into_a_mix() {
        let mut job = Job::new("a");
        let mut units = Units::default();
        apply(&mut job, &mut units, "rw", Some("randread")).unwrap();
        apply(&mut job, &mut units, "rwmixread", Some("70")).unwrap();
        assert_eq!((job.rw, job.rwmixread), (Mix::Read, 70));
    }
}
