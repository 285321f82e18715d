//! The command line of `trace`, and what else records or reads one, as clap reads it.
//!
//! Owns: names, help texts, examples. Never: checks what a value means; that is where it is used.

use super::ghosts_of;
use super::values::{AsJson, no_such, time_of};
use clap::{Args as ClapArgs, Subcommand, ValueHint};
use flashlane_lab::lnvm::Ns;
use flashlane_lab::serve::Ghosts;
use flashlane_lab::tap::contents_of;
use flashlane_lab::trace::convert::check_name;
use flashlane_lab::trace::number::Clock;
use flashlane_lab::trace::{Action, Format, Reading, Take};
use std::path::{Path, PathBuf};

#[derive(Subcommand)]
pub(crate) enum Trace {
    /// Say what is in a trace: format, operations, devices, ranges, order, latencies, and which writes go
    /// round a journal or log
    #[command(after_help = "\
Examples:
  flashlane trace info traces/ext4-sqlite-git.blkparse.zst
  flashlane trace info web_0.csv.gz
  blkparse -i sda -o - > sda.txt; flashlane trace info sda.txt --json -
  flashlane trace info traces/detect/xfs-fsync.parquet --truth traces/detect/xfs-fsync.truth --plot xfs.svg")]
    Info(TraceInfo),
    /// Check every line of a trace, and that it fits a device
    #[command(after_help = "\
Examples:
  flashlane trace validate trace.txt
  flashlane trace validate trace.csv --format tencent
  flashlane trace validate trace.txt --device peers-16g

Exit code 2, with the first bad line and column, when it can't be used.")]
    Validate(TraceValidate),
    /// Write a trace in another format
    #[command(after_help = "\
Examples:
  flashlane trace convert web_0.csv.gz web_0.parquet
  flashlane trace convert sda.blktrace.0 sda.iolog --to fio-iolog3 --lossy
  flashlane trace convert web_0.parquet - --to mqsim --lossy | zstd > web_0.trace.zst

What a format can't carry (flushes, bytes that are no whole sectors, latencies, fractions of its unit of
time) is an error without --lossy.
OUT appears when it is complete; what was there stays until then.")]
    Convert(TraceConvert),
    /// Add to a recording the discards that iDiscard would have sent
    #[command(after_help = "\
Examples:
  flashlane serve my.img --target db --fuse-file disk --record db.parquet --record-content all
  flashlane trace idiscard db.parquet with.parquet
  flashlane run with.parquet --device disksim --target pftl
  flashlane trace idiscard db.parquet with.parquet --ghosts all
  flashlane trace idiscard db.parquet meta.parquet --ghosts watch     only cuts the contents

What is dead is told by what was written to the metadata of ext4, so the recording must have
contents. OUT has those of metadata only: it can be replayed under iDiscard, and shows nothing of
files.")]
    Idiscard(TraceIdiscard),
    /// Record what a drive's target is asked, while it is in use (`serve`, `run --drive`)
    #[command(after_help = "\
Examples:
  flashlane trace record my.img db.parquet                   until Ctrl-C
  flashlane trace record my.img db.parquet --for 10s
  flashlane trace record my.img db.blkparse --to blkparse --for 10s
  flashlane trace record my.img meta.parquet --content 0B+64MiB
  flashlane trace record my.img --stop                       a recording that somebody else began
  flashlane run db.parquet --device peers-16g --target pblk  replays it

Every request has the times of its issue and its end, and who asked: `nbd`, `fuse`, `vhost-user`, `run`. `serve` and `run`
record from the start with --record. Times count from the start of the recording.")]
    Record(TraceRecord),
}

#[derive(ClapArgs)]
pub(crate) struct TraceInfo {
    /// Trace; .gz and .zst are unpacked
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) how: HowRead,
    /// Where its journals and logs really lie (lines `FIRST + COUNT NAME`, in blocks of 4 KiB): how
    /// well they were found
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) truth: Option<PathBuf>,
    /// Draw its writes by address and time as SVG; `-` prints it in place of the text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) plot: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct TraceValidate {
    /// Trace; .gz and .zst are unpacked
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    #[command(flatten)]
    pub(crate) how: HowRead,
    /// Device preset that it is to be replayed on
    #[arg(long, value_name = "PRESET")]
    pub(crate) device: Option<String>,
}

#[derive(ClapArgs)]
pub(crate) struct TraceConvert {
    /// Trace; .gz and .zst are unpacked
    #[arg(value_name = "IN", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Where to; `-` is standard output
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    #[command(flatten)]
    pub(crate) how: HowRead,
    /// Format to write; a suffix of OUT that names another one is refused
    #[arg(long, value_name = "FORMAT", default_value = "parquet", value_parser = format_of)]
    pub(crate) to: Format,
    /// Only this device of it, as `trace info` names it
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// Leave out or change what the format can't carry, and say how much
    #[arg(long)]
    pub(crate) lossy: bool,
    /// Write what was done as JSON; `-` prints it in place of the text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct TraceIdiscard {
    /// Recording with contents
    #[arg(value_name = "IN", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Where to, as Parquet; it appears when it is complete
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath)]
    pub(crate) out: PathBuf,
    /// What is discarded beside blocks of dead inodes, with commas between: zeros, bitmaps, journal, freed, or
    /// all; `watch`: nothing is
    #[arg(long, value_name = "ALSO", value_parser = ghosts_of)]
    pub(crate) ghosts: Option<Ghosts>,
    /// Device of the recording, where it has several
    #[arg(long, value_name = "NAME")]
    pub(crate) device: Option<String>,
    /// OUT begins with this time of IN; what came before is played all the same
    #[arg(long, value_name = "TIME", default_value = "0s", value_parser = time_of)]
    pub(crate) from: Ns,
    /// OUT ends before this time of IN
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    pub(crate) until: Option<Ns>,
    /// Contents that OUT has
    #[arg(long, value_name = "WHICH", value_enum, default_value = "metadata")]
    pub(crate) content: Contents,
    #[command(flatten)]
    pub(crate) json: AsJson,
}

/// Which contents a recording keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Contents {
    /// Of the file system's metadata; what else a write has is zeros then
    Metadata,
    /// All that IN has
    All,
    /// None
    None,
}

#[derive(ClapArgs)]
pub(crate) struct TraceRecord {
    /// Image of a drive that is in use
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// Where to; it appears when it is complete
    #[arg(value_name = "OUT", value_hint = ValueHint::FilePath, required_unless_present = "stop")]
    pub(crate) out: Option<PathBuf>,
    /// Target in use; the only one without it
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Format to write: `parquet` or `blkparse`
    #[arg(long, value_name = "FORMAT", default_value = "parquet", value_parser = format_of)]
    pub(crate) to: Format,
    /// Also what is written to these bytes: `all`, or OFFSET+LENGTH, more of them behind commas
    #[arg(long, value_name = "RANGES", value_parser = ranges)]
    pub(crate) content: Option<Ranges>,
    /// End after this time; on Ctrl-C without it
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    pub(crate) r#for: Option<Ns>,
    /// End a recording that somebody else began
    #[arg(long, conflicts_with_all = ["out", "for", "content"])]
    pub(crate) stop: bool,
}

impl TraceRecord {
    pub(crate) fn take(&self) -> anyhow::Result<Option<Take>> {
        let contents = self.content.clone().unwrap_or_default();
        self.out.as_ref().map(|to| take_of(to, self.to, contents.clone())).transpose()
    }
}

/// How a trace is read.
#[derive(ClapArgs)]
pub(crate) struct HowRead {
    #[arg(long, value_name = "FORMAT", value_parser = format_of, help = format!(
        "Format, recognized by content without it: {}", Format::words()))]
    format: Option<Format>,
    /// Unit of the column of times, in place of the format's own: `ps`, `ns`, `us`, `ms`, `s`
    #[arg(long, value_name = "UNIT", value_parser = ["ps", "ns", "us", "ms", "s"])]
    time_unit: Option<String>,
    /// Times are those of a 32-bit clock: where it begins anew, it goes on counting
    #[arg(long)]
    unwrap: bool,
    /// Don't ask about what is implausible (all at one time, faster than any device, a fraction of
    /// a whole unit)
    #[arg(long)]
    take_as_is: bool,
    /// What `wait` in a fio log of version 2 counts from: the `previous` wait (fio's manual), or the
    /// `start` of the log
    #[arg(long, value_name = "FROM", value_parser = ["previous", "start"])]
    wait: Option<String>,
    /// Which event of a request is taken from a trace of events: `queued` or `issued`; queued ones
    /// where there are any without it
    #[arg(long, value_name = "EVENT", value_parser = ["queued", "issued"])]
    action: Option<String>,
}

pub(super) fn format_of(word: &str) -> Result<Format, String> {
    Format::named(word).ok_or_else(|| no_such("format", word, &Format::ALL.map(Format::word)))
}

impl HowRead {
    pub(crate) fn reading(&self) -> Reading {
        Reading {
            format: self.format,
            action: self.action.as_deref().map(|word| match word {
                "issued" => Action::Issued,
                _ => Action::Queued,
            }),
            time_unit: self.time_unit.as_deref().and_then(Clock::named),
            contents: false,
            unwrap: self.unwrap,
            take_as_is: self.take_as_is,
            wait_from_start: self.wait.as_deref() == Some("start"),
        }
    }
}

/// A recording from the start.
#[derive(ClapArgs, Default)]
pub(crate) struct Record {
    /// Record what the target is asked as a trace, for `run` to replay
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) record: Option<PathBuf>,
    /// Format of the recording: `parquet` (without it) or `blkparse`
    #[arg(long, value_name = "FORMAT", value_parser = format_of, requires = "record")]
    pub(crate) record_as: Option<Format>,
    /// Also what is written to these bytes: `all`, or OFFSET+LENGTH, more of them behind commas
    #[arg(long, value_name = "RANGES", value_parser = ranges, requires = "record")]
    pub(crate) record_content: Option<Ranges>,
}

impl Record {
    /// What is to be recorded, if anything is.
    pub(crate) fn take(&self) -> anyhow::Result<Option<Take>> {
        let contents = self.record_content.clone().unwrap_or_default();
        let format = self.record_as.unwrap_or(Format::Parquet);
        let take = |to: &PathBuf| take_of(to, format, contents.clone());
        self.record.as_ref().map(take).transpose()
    }
}

/// Ranges of bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ranges(Vec<std::ops::Range<u64>>);

pub(super) fn ranges(text: &str) -> Result<Ranges, String> {
    contents_of(text).map(Ranges)
}

/// A recording, wherever the process that makes it has its folder.
pub(super) fn take_of(to: &Path, format: Format, Ranges(contents): Ranges) -> anyhow::Result<Take> {
    check_name(to, format)?;
    let to = std::path::absolute(to)?;
    Ok(Take { to, format, contents })
}
