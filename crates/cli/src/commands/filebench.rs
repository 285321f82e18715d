//! `flashlane filebench`.

use crate::Ending;
use crate::args::Filebench;
use crate::output::Results;
use crate::watch::Interrupt;
use anyhow::{Context, Result, bail};
use flashlane_files::{
    Bytes, Count, Counts, Directory, FilesError, Kind, Settings, Tree, found, prepare, run,
};
use serde_json::json;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Between two looks at the clock, the device and Ctrl-C: a fast device takes some 100 KiB meanwhile.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// What `mkfs.ext4` leaves in an empty file system.
const NOTHING: &str = "lost+found";
/// Bytes of a sector in `/sys/class/block/NAME/stat`, whatever the device's are.
const SECTOR: u64 = 512;

pub(crate) fn filebench(args: &Filebench) -> Result<Ending> {
    let settings = settings(args)?;
    let ends = args.r#for.is_some() || args.loops.is_some() || args.until_written.is_some();
    if !ends && !args.prepare_only {
        bail!(
            "nothing says when to end: give it `--for 30s`, `--loops 100`, `--until-written 1GiB --of \
             loop0`, or `--prepare-only`"
        );
    }
    let device = args.of.as_deref().map(Device::of).transpose()?;
    look_at(&args.folder, args.reuse)?;
    let json = args.json.open(&[])?;
    let interrupt = Interrupt::listen()?;
    let system = Directory::new(&args.folder);
    let tree = Tree::draw(&settings);
    let stop = AtomicBool::new(false);
    let there = match args.reuse {
        true => found(&system, &tree).map_err(|e| explained(e, &args.folder))?,
        false => {
            let made = while_watched(
                &stop,
                || interrupt.happened(),
                || prepare(&system, &tree, &settings, &stop),
            );
            made.map_err(|e| explained(e, &args.folder))?;
            tree.files.iter().map(|file| file.there).collect()
        }
    };
    let mut report = Report {
        args,
        settings: &settings,
        files: there.iter().filter(|there| **there).count(),
        bytes: tree.bytes(),
        counts: Counts::default(),
        took: Duration::ZERO,
        device_bytes: None,
        partial: interrupt.happened(),
    };
    if !args.prepare_only && !report.partial {
        stop.store(false, Ordering::Relaxed);
        if args.until_written.is_some() {
            // What the preparation left to be written is none of the work's.
            sync(&args.folder)?;
        }
        let before = device.as_ref().map(Device::written).transpose()?;
        let begun = now();
        let long = args.r#for.map(|time| Duration::from_nanos(time.as_ns()));
        let most = args.until_written.map_or(u64::MAX, Bytes::get);
        let had = || {
            let now = device.as_ref().and_then(|device| device.written().ok());
            now.zip(before).map(|(now, before)| now.saturating_sub(before))
        };
        // A device that went away writes no more.
        let is_gone = || device.is_some() && had().is_none();
        let enough = || {
            interrupt.happened()
                || long.is_some_and(|long| begun.elapsed() >= long)
                || had().is_some_and(|bytes| bytes >= most)
                || is_gone()
        };
        let done = while_watched(&stop, enough, || {
            run(&system, &tree, &settings, there, args.loops, &stop)
        });
        report.took = begun.elapsed();
        if let Some(device) = device.as_ref().filter(|_| is_gone()) {
            device.written()?;
        }
        report.device_bytes = had();
        report.counts = done.map_err(|e| explained(e, &args.folder))?;
        report.partial = interrupt.happened();
    }
    let results = Results::of(json, &report.to_json(), &report.to_text());
    results.end(if report.partial { Ending::Interrupted } else { Ending::Good })
}

/// Writes back what waits in the file system of a folder.
fn sync(folder: &Path) -> Result<()> {
    let failed = |e: std::io::Error| anyhow::anyhow!("{}: cannot sync: {e}", folder.display());
    let file = std::fs::File::open(folder).map_err(failed)?;
    rustix::fs::syncfs(&file).map_err(|e| failed(e.into()))
}

fn now() -> Instant {
    #[allow(clippy::disallowed_methods)] // what is measured is this machine
    Instant::now()
}

/// Does something on a thread of its own, and has it stop when that is enough.
fn while_watched<T: Send>(
    stop: &AtomicBool,
    enough: impl Fn() -> bool,
    act: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let thread = scope.spawn(act);
        while !thread.is_finished() {
            if enough() {
                stop.store(true, Ordering::Relaxed);
            }
            #[allow(clippy::disallowed_methods)] // the others work on the machine's clock
            thread::sleep(LOOK_EVERY);
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

fn settings(args: &Filebench) -> Result<Settings> {
    let of = Settings::of(args.personality);
    let settings = Settings {
        files: args.files.unwrap_or(of.files),
        mean: args.mean_size.unwrap_or(of.mean),
        threads: args.threads.unwrap_or(of.threads),
        append: args.append_size.unwrap_or(of.append),
        seed: args.seed,
        ..of
    };
    settings.check()?;
    if args.until_written.is_some_and(|bytes| bytes.get() == 0) {
        bail!("--until-written 0 has been reached: give it a size, as `160MiB`");
    }
    if args.r#for.is_some_and(|time| time.as_ns() == 0) {
        bail!("--for 0 is over: give it a time, as `30s`");
    }
    Ok(settings)
}

/// The folder is there, and as empty as it must be.
fn look_at(folder: &Path, reuse: bool) -> Result<()> {
    let shown = folder.display();
    match fs::metadata(folder) {
        Ok(m) if m.is_dir() => {}
        Ok(_) => bail!("{shown} is no folder: name one, as where a file system is mounted"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            bail!("there is no folder {shown}: make it first, `mkdir {shown}`")
        }
        Err(e) => return Err(e).with_context(|| format!("cannot look at {shown}")),
    }
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot read the folder {shown}"))?;
    for entry in entries {
        let name = entry.with_context(|| format!("cannot read the folder {shown}"))?.file_name();
        if !reuse && name != NOTHING {
            let name = name.display();
            bail!(
                "{shown} is not empty, it has `{name}`: name an empty folder, or give it `--reuse` \
                 if the files there were made with these settings"
            );
        }
    }
    Ok(())
}

/// With what to do about it.
fn explained(error: FilesError, folder: &Path) -> anyhow::Error {
    let folder = folder.display();
    let kind = match &error {
        FilesError::Call { source, .. } => Some(source.kind()),
        _ => None,
    };
    let remedy = match kind {
        Some(io::ErrorKind::StorageFull) => {
            "there is no more room: fewer or smaller files, \
                                             `--files`, `--mean-size`"
        }
        Some(io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem) => {
            "nothing can be written there: name another folder, or make this one writable"
        }
        Some(io::ErrorKind::NotFound) => {
            "the files are not those of these settings: prepare them \
                                          again, in an empty folder"
        }
        _ => return anyhow::Error::new(error).context(format!("in {folder}")),
    };
    anyhow::anyhow!("in {folder}: {error}: {remedy}")
}

/// A block device whose writes are counted by the kernel.
struct Device {
    stat: PathBuf,
}

impl Device {
    fn of(name: &str) -> Result<Device> {
        let short = name.strip_prefix("/dev/").unwrap_or(name);
        let stat = Path::new("/sys/class/block").join(short).join("stat");
        if short.is_empty() || short.contains('/') || !stat.is_file() {
            let all = fs::read_dir("/sys/class/block").into_iter().flatten().flatten();
            let mut all: Vec<String> =
                all.map(|entry| entry.file_name().to_string_lossy().into()).collect();
            all.sort();
            bail!("--of {name}: there is no such block device; there are: {}", all.join(", "));
        }
        Ok(Device { stat })
    }

    /// Bytes since the machine was started.
    fn written(&self) -> Result<u64> {
        let path = self.stat.display();
        let text = fs::read_to_string(&self.stat).with_context(|| format!("cannot read {path}"))?;
        let sectors = text.split_whitespace().nth(6).and_then(|field| field.parse::<u64>().ok());
        let sectors = sectors.with_context(|| format!("{path} has no seventh number"))?;
        Ok(sectors.saturating_mul(SECTOR))
    }
}

const READS: &[Kind] = &[Kind::ReadWhole];
const WRITES: &[Kind] = &[Kind::WriteWhole, Kind::Append, Kind::AppendLog];

/// What came of it.
struct Report<'a> {
    args: &'a Filebench,
    settings: &'a Settings,
    /// At first.
    files: usize,
    bytes: u64,
    counts: Counts,
    took: Duration,
    /// What the device has had written.
    device_bytes: Option<u64>,
    /// Ended by Ctrl-C.
    partial: bool,
}

impl Report<'_> {
    fn per_second(&self, calls: u64) -> f64 {
        calls as f64 / self.took.as_secs_f64().max(1e-9)
    }

    /// Kinds that the personality has.
    fn kinds(&self) -> impl Iterator<Item = Kind> {
        let steps = self.settings.personality.steps();
        Kind::ALL.into_iter().filter(|kind| steps.contains(kind))
    }

    fn to_json(&self) -> String {
        let of = |count: Count| {
            json!({
                "count": count.calls,
                "read_bytes": count.read_bytes,
                "written_bytes": count.written_bytes,
                "per_second": self.per_second(count.calls),
                "skipped": count.skipped,
            })
        };
        let operations: serde_json::Map<String, serde_json::Value> =
            self.kinds().map(|kind| (kind.word().into(), of(self.counts.of(kind)))).collect();
        let s = self.settings;
        let result = json!({
            "personality": s.personality.word(),
            "settings": {
                "files": s.files,
                "mean_size_bytes": s.mean.get(),
                "dir_width": s.width,
                "threads": s.threads,
                "append_size_bytes": s.append.get(),
                "io_size_bytes": s.io.get(),
                "seed": s.seed,
            },
            "prepared": { "files": self.files, "bytes": self.bytes },
            "partial": self.partial,
            "seconds": self.took.as_secs_f64(),
            "loops": self.counts.loops,
            "operations": operations,
            "reads": of(self.counts.sum(READS)),
            "writes": of(self.counts.sum(WRITES)),
            "all": of(self.counts.sum(&Kind::ALL)),
            "device_written_bytes": self.device_bytes,
        });
        format!("{result:#}\n")
    }

    fn to_text(&self) -> String {
        let (s, folder) = (self.settings, self.args.folder.display());
        let partial = if self.partial { ", interrupted" } else { "" };
        let word = s.personality.word();
        if self.args.prepare_only || self.took.is_zero() {
            let (files, bytes) = (self.files, Bytes::new(self.bytes));
            return format!("{word} in {folder}: {files} files of {bytes} prepared{partial}\n");
        }
        let mut text = format!(
            "{word} in {folder}: {} threads, {} loops in {:.2} s{partial}\n\n{:<15} {:>10} {:>10} {:>12} {:>12}\n",
            s.threads,
            self.counts.loops,
            self.took.as_secs_f64(),
            "operation",
            "count",
            "per s",
            "read",
            "written",
        );
        let mut row = |name: &str, count: Count| {
            let (calls, rate) = (count.calls, self.per_second(count.calls));
            let (read, written) = (Bytes::new(count.read_bytes), Bytes::new(count.written_bytes));
            let (read, written) = (read.to_string(), written.to_string());
            text += &format!("{name:<15} {calls:>10} {rate:>10.0} {read:>12} {written:>12}\n");
        };
        self.kinds().for_each(|kind| row(kind.word(), self.counts.of(kind)));
        let all = self.counts.sum(&Kind::ALL);
        row("all", all);
        if all.skipped > 0 {
            text += &format!("{} operations found no file and were skipped\n", all.skipped);
        }
        if let (Some(bytes), Some(of)) = (self.device_bytes, &self.args.of) {
            text += &format!("{of} has had {} written\n", Bytes::new(bytes));
        }
        text
    }
}
