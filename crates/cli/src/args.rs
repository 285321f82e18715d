//! The command line, as clap reads it.
//!
//! Owns: names, help texts, examples. Promises: `--help` of each command has examples that work.
//! Never: checks what a value means; that is where it is used.

use crate::args_files::{self, Dump, Fsck};
use crate::commands::top::every_of;
use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use flashlane_files::{Bytes, Personality};
use flashlane_lab::drive::faults::{FaultKind, POWER_CUT};
use flashlane_lab::experiment::{Change, default_preset, preset_names};
use flashlane_lab::lnvm::{LimiterKind, MountHow, Ns, Scrub, TargetType, WearLeveling};
use flashlane_lab::serve::{Address, Ghosts, SECTOR_SIZES, TargetPath, Wanted};
use flashlane_lab::suggest;
use flashlane_lab::tap::contents_of;
use flashlane_lab::trace::convert::check_name;
use flashlane_lab::trace::number::Clock;
use flashlane_lab::trace::{Action, Format, Reading, Take};
use flashlane_testkit::Mode;
use flashlane_testkit::files::Way;
use flashlane_testkit::stacks::subjects;
use std::path::{Path, PathBuf};

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the result is bad: a rule of the medium was broken, data was wrong, a verdict is not what
       its experiment expects
  2    not done: wrong usage or input, a file that can't be read or written
  130  interrupted (Ctrl-C, SIGTERM, SIGHUP); what was done so far has been printed; or the power of
       the drive that a run was on was cut (`drive inject DRIVE power_cut`)";

/// A host-managed flash storage stack: emulated Open-Channel SSDs and the layers on them, in
/// virtual time.
#[derive(Parser)]
#[command(name = "flashlane", version, after_help = EXIT_CODES, subcommand_required = false)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Run an experiment, a fio job file or a trace
    #[command(after_help = "\
Examples:
  flashlane run                 pblk, QBLK and a block SSD on used drives; a recorded trace
  flashlane run experiment.toml --json -
  flashlane run job.fio --device peers-16g --target pblk --target pftl
  flashlane run trace.txt.gz --device peers-64g --target pblk:4 --scale-to-device
  flashlane run --set target.0.over_provisioning_percent=20 --seed 7
  flashlane run job.fio --target pblk --target pftl --report job-report
  flashlane run job.fio --html report.html --perfetto trace.json --fio-json fio.json
  flashlane run job.fio --drive my.img --target db      on a target of a drive; its data stays
  flashlane run experiment.toml --prepared shelf        fills its devices once and keeps copies

The whole experiment format is shown by the comments in experiments/*.toml.
Exit codes: 0 done, 1 bad result, 2 not done, 130 interrupted with a partial result.")]
    Run(Box<Run>),
    /// Run an experiment over a grid of parameters, on all cores
    #[command(after_help = "\
Examples:
  flashlane sweep experiments/sweep-spare.toml
  flashlane sweep job.fio --device peers-16g --vary target.0.over_provisioning_percent=12,20 --csv -
  flashlane sweep experiment.toml --vary run.seed=1,2,3,4,5 --keep points/

An axis is `[[vary]]` with `key` and `values` in the experiment, or `--vary KEY=V1,V2`; the last one
varies fastest. A point that fails is a row with its error. With `--keep FOLDER` points that are done
stay in that folder, and the same command goes on where it was interrupted.
Exit codes: 0 done, 1 a point failed or is bad, 2 not done, 130 interrupted with a partial result.")]
    Sweep(Sweep),
    /// Compare runs, with confidence intervals over seeds
    #[command(after_help = "\
Examples:
  flashlane compare a.toml b.toml
  flashlane compare job.fio --seeds 10        its targets with each other
  flashlane run a.toml --json a.json; flashlane run b.toml --json b.json; flashlane compare a.json b.json

A RUN is an experiment, a fio job file or a trace, which runs under seeds 1 to N, or the JSON of an
earlier `run` or `sweep`. All are compared with the first. Intervals are of 95% (Student's t; Welch's
for differences); with one sample there is none.
Exit codes: 0 done, 1 a run failed or is bad, 2 not done, 130 interrupted.")]
    Compare(Compare),
    /// Say everything that is wrong with an experiment, and what it amounts to
    #[command(after_help = "\
Examples:
  flashlane check experiment.toml
  flashlane check job.fio --device westlake
  flashlane check trace.txt --device peers-16g --scale-to-device")]
    Check(What),
    /// Reproduce a figure or table of a paper: paper and here side by side, with a verdict
    #[command(after_help = "\
Examples:
  flashlane reproduce           list what there is
  flashlane reproduce lightnvm-table1
  flashlane reproduce all --report figures
  flashlane reproduce parafs-fig6 --full --only workload=postmark --only channels=8,32     a part of it

Exit code 1 when a verdict is not the one that the experiment's file expects; those marked `live` are
measured on this machine: no two runs give the same numbers, and their verdict changes no exit code.")]
    Reproduce(Reproduce),
    /// Cut the power again and again, and look whether everything promised is still there
    #[command(after_help = "\
Examples:
  flashlane torture                          all stacks on small devices, 10 seconds
  flashlane torture --target pblk --seeds 20 --mode linear --cuts 2
  flashlane torture --seconds 60 --target pblk --json -
  flashlane torture --target parafs --policy f2fs-sb --seeds 100
  flashlane torture experiments/torture.toml --seeds 2
  flashlane torture --target pblk --seed 7 --effort 5 --cut 1200000      one run, as a failure names it

A seed draws a small device, its faults and a workload; an EXPERIMENT brings its own device, fault plan
and targets, and the seed only the workload. The power goes off while the device works (`--mode`), comes
back, and every sector is compared with what was acknowledged, flushed and discarded.
  mixed       all of it in turn, most of it aimed (the default)
  aimed       lives that end at moments that matter: a flush, a checkpoint, an erase, a retry
  drawn       each seed draws: lives that end anywhere, linear or log, one cut or two
  none        no cut
  linear      32 places, evenly spread over the run
  log         32 places, dense at the beginning
  exhaustive  every place: around each begin and end of a device command, and in between
With `--seeds` the output is the same on any number of cores.
Exit codes: 0 done, 1 a failure was found, 2 not done, 130 interrupted with a partial result.")]
    Torture(Torture),
    /// Measure what the host's own work takes on this machine
    #[command(after_help = "\
Examples:
  flashlane bench --calibrate                           the cost table on standard output
  flashlane bench --calibrate -o ours.toml              into a file, and a summary
  flashlane run job.fio --set run.costs=ours.toml       pays for CPU work what was measured

A run in virtual time charges what a cost table says for each stage of the host's work (`costs` in
`[run]`: a table's name or file). This makes such a table from the code of this very program on real
threads: its own build matters, so measure with the one that is optimized. Takes some seconds; on a
machine that has other work a value may be off, and the price of a contended lock be missing.
Exit codes: 0 done, 2 not done.")]
    Bench(Bench),
    /// Do what Filebench's file, mail, web and proxy servers do, in a folder
    #[command(after_help = "\
Examples:
  flashlane filebench varmail mnt --for 30s
  flashlane filebench fileserver mnt --files 1250 --prepare-only
  flashlane filebench fileserver mnt --files 1250 --reuse --until-written 160MiB --of loop0 --for 90s
  flashlane filebench webserver mnt --loops 100 --json -

The numbers are Filebench's own where nothing else is said. The set of files and the threads' random
numbers come from the seed. A set that is used again must have been made with the same settings.
Exit codes: 0 done, 2 not done, 130 interrupted with a partial result.")]
    Filebench(Filebench),
    /// Discard the blocks of ext4's inode tables in which nothing lives any more
    #[command(after_help = "\
Examples:
  flashlane idiscard disk.img               what there is; nothing is written
  flashlane idiscard disk.img --list
  flashlane idiscard /dev/loop0 --apply
  flashlane idiscard /dev/loop0 --apply --journal
  flashlane idiscard disk.img --json -

ext4 tells a drive of removed files' data, and never of their inodes. A block of inodes is dead when no
inode in it is used: the kernel takes it as zeros then, without reading it. Behind an unmount the journal is
empty: what it holds was written to its place. A file system that is mounted, was not unmounted or has errors
is refused.
Exit codes: 0 done, 2 not done, 130 interrupted with a partial result.")]
    Idiscard(Idiscard),
    /// Look at a trace, check it, convert it
    #[command(subcommand)]
    Trace(Trace),
    /// Make a drive image, look at it, check it, copy it
    #[command(subcommand)]
    Drive(Drive),
    /// Use a target of a drive as a disk, from kernels and programs
    #[command(after_help = "\
Examples:
  flashlane serve my.img --target db --nbd unix:/tmp/db.sock
  flashlane serve my.img --nbd unix:db.sock --nbd tcp:127.0.0.1:10809 --null-latency
  nbdinfo 'nbd+unix:///?socket=/tmp/db.sock'
  fio --name=x --ioengine=nbd --uri='nbd+unix:///?socket=/tmp/db.sock' --rw=randwrite --bs=4k --size=64M
  flashlane serve my.img --fuse-file disk
  losetup -f --show --direct-io=on --sector-size 4096 disk      # as root: a block device
  flashlane serve my.img --vhost-user disk.sock                 # docs/COOKBOOK.md has QEMU's options

It says `ready ADDRESS` on standard output when clients can connect. Ctrl-C or SIGTERM ends it: requests
under way end, everything is written to the drive, and the target is stopped cleanly. What was flushed
is on the drive whatever happens. Meanwhile `flashlane drive` and `flashlane lnvm` verbs work on it.
Exit codes: 0 done, 1 the target became read-only or its counters disagree, 2 not done, 130 its power was cut.")]
    Serve(Serve),
    /// Make a ParaFS file system on a drive: log-structured, it knows the channels of the flash
    #[command(after_help = "\
Examples:
  flashlane drive create my.img --preset parafs --set geometry.chunks_per_pu=64
  flashlane mkfs my.img
  flashlane mount my.img /mnt

A drive without targets gets one of type `sftl`, on which the file system places, cleans and erases by
itself. On a target of another type it is a log-structured file system on a block device.
Exit codes: 0 done, 2 not done.")]
    Mkfs(Mkfs),
    /// Mount a ParaFS file system on a directory, until it is unmounted or Ctrl-C
    #[command(after_help = "\
Examples:
  flashlane mount my.img /mnt
  flashlane mount my.img /mnt --null-latency     as fast as this machine goes

It says `ready DIRECTORY` on standard output when it can be used. `umount`, Ctrl-C or SIGTERM end it.
What programs have made durable (fsync, sync) is on the drive whatever happens.
Exit codes: 0 done, 2 not done.")]
    Mount(MountFs),
    /// Check a ParaFS file system that is not mounted, and repair it
    #[command(after_help = args_files::FSCK)]
    Fsck(Fsck),
    /// Show what lies on the medium of a ParaFS file system
    #[command(after_help = args_files::DUMP)]
    Dump(Dump),
    /// Watch a drive in use: requests, latencies, write amplification, dies, garbage collection
    #[command(after_help = "\
Examples:
  flashlane top my.img
  flashlane top my.img --once                a text, and no terminal
  flashlane top my.img --once --json -       all that there is to be seen
  flashlane top my.img --prometheus          the same for Prometheus, as `--metrics` of serve and run has it

It asks the process that has the drive open (`serve`, `run --drive`), and ends when that ends. Keys: 1 to 4
and Tab change the view, p holds the picture, + and - look more and less often, h helps, q ends it.
Exit codes: 0 done, 2 not done, 130 ended by SIGTERM or SIGHUP.")]
    Top(Top),
    /// Targets on a drive image: the verbs and options of nvme-cli's lnvm plugin
    #[command(subcommand)]
    Lnvm(Lnvm),
    /// Print completions for a shell
    #[command(after_help = "\
Examples:
  flashlane completions bash > ~/.local/share/bash-completion/completions/flashlane
  flashlane completions zsh > ~/.zfunc/_flashlane")]
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// More than any machine that this was tried on.
const CORES_MAX: u32 = 256;

fn cores_of(text: &str) -> Result<u32, String> {
    let cores = text.parse().ok().filter(|cores| (1..=CORES_MAX).contains(cores));
    cores.ok_or_else(|| format!("from 1 to {CORES_MAX}"))
}

/// What `--idiscard` discards beside blocks of dead inodes.
fn ghosts_of(text: &str) -> Result<Ghosts, String> {
    let words = text.split(',').map(str::trim).filter(|word| !matches!(*word, "" | "inodes"));
    words.into_iter().try_fold(Ghosts::default(), |ghosts, word| match word {
        "all" => Ok(Ghosts { wanted: Wanted::ALL, ..ghosts }),
        _ => ghosts.with(word, true).ok_or_else(|| {
            format!("`{word}` is none of inodes, {}, all", Ghosts::keys().join(", "))
        }),
    })
}

fn sector_size(text: &str) -> Result<u32, String> {
    let known = SECTOR_SIZES.iter().find(|bytes| text == bytes.to_string());
    known.copied().ok_or_else(|| "a sector has 4096 or 512 bytes".into())
}

/// A seed that TOML can hold as well.
fn run_seed_of(text: &str) -> Result<u64, String> {
    let seed = text.parse().ok().filter(|seed| i64::try_from(*seed).is_ok());
    seed.ok_or_else(|| "a seed is a whole number from 0 to 2^63 - 1".into())
}

fn seed_of(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "a seed is a whole number from 0 to 2^64 - 1".into())
}

fn device_help() -> String {
    format!(
        "Device preset to run on: {}; a job file or a trace runs on {} without it",
        preset_names().join(", "),
        default_preset()
    )
}

/// What is run, and what is changed about it.
#[derive(ClapArgs, Default)]
pub(crate) struct What {
    /// Experiment (TOML), fio job file or trace, told apart by content; without one the bundled
    /// experiment
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    #[arg(long, value_name = "PRESET", help = device_help())]
    device: Option<String>,
    /// Target to run on, `pblk`, `pblk:4` (4 active PUs), `qblk`, `pftl` (block SSD), `slc-tlc` or `sftl`, or
    /// one of the experiment's by its name, or by its type where it has none; may be repeated; a job file or
    /// a trace runs on `pblk` without it; of an experiment whose workloads name their targets another one
    /// runs what the first is a part of
    #[arg(long, value_name = "TARGET")]
    target: Vec<String>,
    /// What is kept of contents: `stamps` (8 checked bytes per sector), `memory` (all 4096) or
    /// `compact` (all 4096, equal sectors once)
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Seed of every random stream, 0 to 2^63 - 1; 1 where nothing names another
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = run_seed_of)]
    seed: Option<u64>,
    /// Pack the places that a trace touches when it is larger than the device
    #[arg(long)]
    scale_to_device: bool,
    /// Change a key of the experiment, `run.fill=100%` or `target.0.active_pus=4`; may be repeated; targets
    /// count as in the file, also where --target picks some of them
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl What {
    /// Names given with `--target`.
    pub(crate) fn targets(&self) -> &[String] {
        &self.target
    }

    /// The changes with this one target in place of those asked for.
    pub(crate) fn changes_on(&self, target: &str) -> Vec<Change> {
        let mut changes = self.changes();
        changes.retain(|change| !matches!(change, Change::Targets(_)));
        changes.insert(0, Change::OnDrive(target.into()));
        changes
    }

    /// The changes, in the order in which they are applied: whole tables first, single keys last.
    pub(crate) fn changes(&self) -> Vec<Change> {
        let mut changes = Vec::new();
        changes.extend(self.device.clone().map(Change::Device));
        if !self.target.is_empty() {
            changes.push(Change::Targets(self.target.clone()));
        }
        changes.extend(self.store.clone().map(Change::Store));
        changes.extend(self.seed.map(Change::Seed));
        if self.scale_to_device {
            changes.push(Change::ScaleToDevice);
        }
        changes.extend(self.set.iter().cloned().map(Change::Set));
        changes
    }
}

#[derive(ClapArgs)]
pub(crate) struct Bench {
    /// Measure the stages of the cost model and make a cost table
    #[arg(long)]
    pub(crate) calibrate: bool,
    /// Write the table to this file, `-` for standard output
    #[arg(short = 'o', long, value_name = "FILE", value_hint = ValueHint::FilePath, requires = "calibrate")]
    pub(crate) output: Option<PathBuf>,
    /// Rounds that each median is taken over
    #[arg(long, value_name = "N", default_value_t = 400, requires = "calibrate",
          value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub(crate) rounds: u32,
}

/// What of a target on a drive is mounted that is not sound.
#[derive(ClapArgs, Default)]
pub(crate) struct HowMounted {
    /// Mount a target of which sectors can't be read: they are lost, and older copies of what was in
    /// them may come back
    #[arg(long)]
    pub(crate) accept_lost: bool,
    /// Mount a pblk target whose checkpoints can't be read: sectors that were discarded may come back
    #[arg(long)]
    pub(crate) undo_discards: bool,
}

impl HowMounted {
    /// The first of them that was given, and what they amount to.
    pub(crate) fn get(&self) -> (Option<&'static str>, MountHow) {
        let HowMounted { accept_lost, undo_discards } = *self;
        let given = [("--accept-lost", accept_lost), ("--undo-discards", undo_discards)];
        let first = given.iter().find(|(_, given)| *given).map(|(flag, _)| *flag);
        (first, MountHow { accept_lost, undo_discards })
    }
}

/// As [`Clock`](flashlane_lab::execute::Clock).
#[derive(Clone, Copy, Default, ValueEnum)]
pub(crate) enum ClockArg {
    #[default]
    #[value(help = "time jumps from event to event")]
    Virtual,
    #[value(help = "the machine's")]
    Real,
}

impl From<ClockArg> for flashlane_lab::execute::Clock {
    fn from(clock: ClockArg) -> Self {
        match clock {
            ClockArg::Virtual => Self::Virtual,
            ClockArg::Real => Self::Real,
        }
    }
}

#[derive(ClapArgs, Default)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) what: What,
    /// Run on a target of this drive image; `--target` names it if there are several. It is mounted
    /// as it was left and stopped cleanly; nothing is filled unless `run.fill` says so
    #[arg(long, value_name = "DRIVE", value_hint = ValueHint::FilePath,
        conflicts_with_all = ["device", "store"])]
    pub(crate) drive: Option<PathBuf>,
    /// Which time the run goes by: `virtual`, in which the same seed gives the same run, or `real`: the
    /// drive takes the time that it would take, and the host's work what it takes here, on one core
    #[arg(
        long,
        value_name = "CLOCK",
        value_enum,
        default_value = "virtual",
        requires = "drive",
        hide_default_value = true
    )]
    pub(crate) clock: ClockArg,
    /// Answer HTTP there with metrics for Prometheus, `/metrics`: `tcp:HOST:PORT` or `unix:PATH`; with
    /// `--clock real`
    #[arg(long, value_name = "ADDRESS", requires = "drive")]
    pub(crate) metrics: Option<Address>,
    #[command(flatten)]
    pub(crate) how: HowMounted,
    /// Cache each device in this folder after its fill and overwrite phases (`run.fill`,
    /// `run.overwrite`); a later run with the same settings starts from the cached copy and gets the
    /// same results
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath, conflicts_with = "drive")]
    pub(crate) prepared: Option<PathBuf>,
    /// Write the result as one JSON object; `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Write one line per stack as CSV; `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
    /// Write a report with figures as one HTML file that needs nothing else
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
    /// Write one row per stack as Parquet, with the columns of the CSV
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) parquet: Option<PathBuf>,
    /// Write the results per job as fio's --output-format=json+ has them
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) fio_json: Option<PathBuf>,
    /// Write latencies over time as an HdrHistogram log
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) hdr: Option<PathBuf>,
    /// Write what each channel and die did as a trace for ui.perfetto.dev
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) perfetto: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) recording: Record,
    /// Write all of these but the Perfetto trace into a folder, made if need be: report.html,
    /// results.json, .csv and .parquet, timeline.csv and .parquet, channels.csv and .parquet, fio.json,
    /// latency.hlog
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct Sweep {
    #[command(flatten)]
    pub(crate) what: What,
    /// An axis: a key of the experiment and its values; may be repeated
    #[arg(long, value_name = "KEY=V1,V2,...")]
    pub(crate) vary: Vec<String>,
    /// Points that run at a time; all cores without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Keep points that are done in this folder, and take those that are there
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) keep: Option<PathBuf>,
    /// Cache each device in this folder after its fill and overwrite phases; points with the same
    /// settings share one preparation
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) prepared: Option<PathBuf>,
    /// Write the result as one JSON object; `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// Write one line per point and target as CSV; `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) csv: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct Compare {
    /// Experiments, job files, traces, or results of earlier runs (JSON)
    #[arg(value_name = "RUN", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) runs: Vec<PathBuf>,
    /// Seeds that each experiment runs under; 5 without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    pub(crate) seeds: Option<u16>,
    #[arg(long, value_name = "PRESET", help = device_help())]
    pub(crate) device: Option<String>,
    /// Target to run on, as for `run`; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub(crate) target: Vec<String>,
    /// Runs at a time; all cores without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Write the result as one JSON object; `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

#[derive(ClapArgs)]
#[command(group(ArgGroup::new("doors").required(true).multiple(true)))]
pub(crate) struct Serve {
    /// Drive image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// Target of the drive, the only one without it; may be repeated: NBD clients choose one by its name
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Vec<String>,
    /// Listen for NBD clients there, `unix:PATH` (for your own user) or `tcp:HOST:PORT` (for everybody
    /// who can connect); may be repeated
    #[arg(long, value_name = "ADDRESS", group = "doors")]
    pub(crate) nbd: Vec<Address>,
    /// Be a file of the target's size, by FUSE: an empty file, or a name that does not exist yet;
    /// `losetup` makes a block device of it; may be repeated, of several targets each says which
    #[arg(long, value_name = "[TARGET=]PATH", group = "doors", value_hint = ValueHint::FilePath)]
    pub(crate) fuse_file: Vec<TargetPath>,
    /// Be a virtio disk: a socket that QEMU (vhost-user-blk-pci) or user-mode Linux connects to, one at
    /// a time; may be repeated, of several targets each says which
    #[arg(long, value_name = "[TARGET=]PATH", group = "doors", value_hint = ValueHint::FilePath)]
    pub(crate) vhost_user: Vec<TargetPath>,
    /// Answer HTTP there with metrics for Prometheus, `/metrics`: `tcp:HOST:PORT` or `unix:PATH`
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) metrics: Option<Address>,
    /// Bytes of a sector that NBD clients and guests are told: 4096, or 512 for those that need it; then
    /// a write of a part of 4096 bytes reads the rest first
    #[arg(long, value_name = "BYTES", default_value = "4096", value_parser = sector_size)]
    pub(crate) sector_size: u32,
    /// Discard what the ext4 file system on a target forgot to: blocks of inodes that are all removed, and
    /// what is named behind it, with commas between: `zeros` (blocks of zeros in inode tables), `bitmaps`
    /// (bitmaps of zeros), `journal` (what recovery does not need any more), `freed` (free blocks), or
    /// `all`; `watch` discards nothing, and counts
    #[arg(long, value_name = "ALSO", num_args = 0..=1, require_equals = true, default_missing_value = "",
        value_parser = ghosts_of)]
    pub(crate) idiscard: Option<Ghosts>,
    /// Requests take no device time: as fast as this machine goes
    #[arg(long)]
    pub(crate) null_latency: bool,
    /// Cores that serve clients, each a thread: NBD connections are spread over them, a guest has one
    #[arg(long, value_name = "N", default_value = "1", value_parser = cores_of)]
    pub(crate) cores: u32,
    /// Keep each core on a CPU of its own
    #[arg(long)]
    pub(crate) pin: bool,
    #[command(flatten)]
    pub(crate) recording: Record,
    #[command(flatten)]
    pub(crate) how: HowMounted,
}

#[derive(ClapArgs)]
pub(crate) struct Mkfs {
    /// Drive image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// Target of the drive: the only one without it, or a new one where there is none
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// What it is called, at most 64 bytes
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) label: String,
    /// Replace a file system that is there: what is in it is lost
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(ClapArgs)]
pub(crate) struct MountFs {
    /// Drive image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// Where to mount it
    #[arg(value_name = "DIRECTORY", value_hint = ValueHint::DirPath)]
    pub(crate) directory: PathBuf,
    /// Target of the drive, the only one without it
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Nothing can be changed there
    #[arg(long)]
    pub(crate) read_only: bool,
    /// Requests take no device time: as fast as this machine goes
    #[arg(long)]
    pub(crate) null_latency: bool,
}

#[derive(ClapArgs)]
pub(crate) struct Top {
    /// Drive image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// Time between two looks, from 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = every_of)]
    pub(crate) every: Ns,
    /// Print what there is to be seen now, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Print the metrics as Prometheus reads them, and end
    #[arg(long, conflicts_with_all = ["once", "json"])]
    pub(crate) prometheus: bool,
    /// Target in use to look at first; key `t` goes to the next one
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    #[command(flatten)]
    pub(crate) out: AsJson,
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

fn ranges(text: &str) -> Result<Ranges, String> {
    contents_of(text).map(Ranges)
}

/// A recording, wherever the process that makes it has its folder.
fn take_of(to: &Path, format: Format, Ranges(contents): Ranges) -> anyhow::Result<Take> {
    check_name(to, format)?;
    let to = std::path::absolute(to)?;
    Ok(Take { to, format, contents })
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

#[derive(ClapArgs)]
pub(crate) struct Reproduce {
    /// Name of a figure, `all`, or a file of your own (.toml); without it the list
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) name: Option<String>,
    /// The list
    #[arg(long, conflicts_with = "name")]
    pub(crate) list: bool,
    /// Write a page with all plots, rows and verdicts; `all` writes figures.html without it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
    /// Write everything into a folder, made if need be: figures.html, and of each figure its plots (.svg and .png)
    /// and its points (.csv and .parquet)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
    /// Write the result as JSON (an object, for `all` a list); `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// The paper's own sizes, however long it takes
    #[arg(long)]
    pub(crate) full: bool,
    /// The smallest sizes: everything is done, in seconds
    #[arg(long, conflicts_with = "full")]
    pub(crate) ci: bool,
    /// Only points that have one of these values on this axis, `channels=8,32`; more than once for more axes. There is
    /// no verdict then
    #[arg(long, value_name = "AXIS=VALUES", requires = "name")]
    pub(crate) only: Vec<String>,
    /// Keep what is done of a figure's grids in this folder, and take what is there: after an
    /// interruption the same command goes on; not of figures that are all code, as LightNVM's
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    pub(crate) keep: Option<PathBuf>,
    /// Simulations at a time, each with the memory of a device; changes no number; all cores without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
}

#[derive(ClapArgs)]
pub(crate) struct Idiscard {
    /// File or block device with an ext4 file system
    #[arg(value_name = "IMAGE-OR-BLOCKDEV", value_hint = ValueHint::FilePath)]
    pub(crate) medium: PathBuf,
    /// Discard the dead blocks; without it nothing is written
    #[arg(long)]
    pub(crate) apply: bool,
    /// Discard the blocks of the empty journal, too
    #[arg(long)]
    pub(crate) journal: bool,
    /// Discard what holds zeros, too: it reads the same, and takes no page of flash
    #[arg(long)]
    pub(crate) zeros: bool,
    /// Say where the dead blocks are
    #[arg(long)]
    pub(crate) list: bool,
    #[command(flatten)]
    pub(crate) json: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct Filebench {
    #[arg(value_name = "PERSONALITY", value_parser = personality_of,
        help = "What to do: fileserver, varmail, webserver or webproxy (also: proxyserver)")]
    pub(crate) personality: Personality,
    /// Folder to do it in; it must be empty without --reuse
    #[arg(value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) folder: PathBuf,
    /// Files that there is room for; four fifths of them are there at first, all of the web server's
    #[arg(long, value_name = "N")]
    pub(crate) files: Option<u64>,
    /// Mean size of a file, `128KiB`
    #[arg(long, value_name = "SIZE", value_parser = bytes_of)]
    pub(crate) mean_size: Option<Bytes>,
    /// Threads
    #[arg(long, value_name = "N")]
    pub(crate) threads: Option<u32>,
    /// Most that is appended at once, `16KiB`; half of it on average
    #[arg(long, value_name = "SIZE", value_parser = bytes_of)]
    pub(crate) append_size: Option<Bytes>,
    /// Of the set of files and of what threads do
    #[arg(long, value_name = "SEED", default_value_t = 0, allow_negative_numbers = true,
        value_parser = seed_of)]
    pub(crate) seed: u64,
    /// Make the files and end
    #[arg(long, conflicts_with_all = ["reuse", "for", "loops", "until_written"])]
    pub(crate) prepare_only: bool,
    /// Go on with the files that are there, made with the same settings
    #[arg(long)]
    pub(crate) reuse: bool,
    /// End after this time
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    pub(crate) r#for: Option<Ns>,
    /// End when each thread has gone through its list so often
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) loops: Option<u64>,
    /// End when the block device under the folder has had so much written
    #[arg(long, value_name = "SIZE", value_parser = bytes_of, requires = "of")]
    pub(crate) until_written: Option<Bytes>,
    /// The block device of --until-written, `loop0`
    #[arg(long, value_name = "DEVICE", requires = "until_written")]
    pub(crate) of: Option<String>,
    #[command(flatten)]
    pub(crate) json: AsJson,
}

fn personality_of(word: &str) -> Result<Personality, String> {
    let names = Personality::ALL.map(Personality::word);
    Personality::named(word).ok_or_else(|| no_such("personality", word, &names))
}

#[derive(ClapArgs)]
pub(crate) struct Torture {
    /// Experiment (TOML) with a device and targets of your own; without one small devices of many
    /// shapes, drawn by the seed
    #[arg(value_name = "EXPERIMENT", value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,
    #[arg(long, value_name = "TARGET", help = format!(
        "Stack: {} or all; with an EXPERIMENT the name of one of its targets", stack_names()))]
    pub(crate) target: Option<String>,
    #[arg(long, value_name = "POLICY", conflicts_with = "file", value_parser = way_of, help = format!(
        "Of a file system, who allocates, cleans and schedules: {}; with `parts` the seed draws each of \
         these, without a policy which one", ways()))]
    pub(crate) policy: Option<Way>,
    /// Go on for so many seconds, then leave the runs under way where they are; 0 is until Ctrl-C; 10
    /// where nothing says how long
    #[arg(long, value_name = "N", conflicts_with = "seeds")]
    pub(crate) seconds: Option<u64>,
    /// Go through so many seeds, each on every target; of several, stacks that take long have some
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seeds: Option<u64>,
    /// First seed
    #[arg(long, value_name = "SEED", default_value_t = 0)]
    pub(crate) from: u64,
    /// Where the power goes off: mixed, aimed, drawn, none, linear, log or exhaustive
    #[arg(long, value_name = "MODE", default_value = "mixed", value_parser = mode_of)]
    pub(crate) mode: Mode,
    /// Cuts in a row, 1 or 2; the second one hits the recovery from the first, or what follows
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2))]
    pub(crate) cuts: Option<u32>,
    /// How much is written before the first cut, 100 is twice the capacity; as mode and seed say
    /// without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub(crate) effort: Option<u64>,
    /// Threads; all cores without it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub(crate) jobs: Option<u16>,
    /// Change a key of the experiment, `device.geometry.chunks_per_pu=64`; may be repeated
    #[arg(long, value_name = "KEY=VALUE", requires = "file")]
    pub(crate) set: Vec<String>,
    /// Only this seed; with --cut or --lives only that one run of it
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seconds", "seeds", "from"],
        allow_negative_numbers = true, value_parser = seed_of)]
    pub(crate) seed: Option<u64>,
    /// Cut the power at this time of a life, in ns; may be repeated, one per life
    #[arg(long, value_name = "NS", requires = "seed",
        conflicts_with_all = ["mode", "cuts", "seconds", "seeds"])]
    pub(crate) cut: Vec<u64>,
    /// Lives that the run has, where no --cut says it
    #[arg(long, value_name = "N", requires = "seed",
        conflicts_with_all = ["mode", "cuts", "cut", "seconds", "seeds"],
        value_parser = clap::value_parser!(u64).range(1..=16))]
    pub(crate) lives: Option<u64>,
    /// The lives that --lives says, on a tight device, cut at moments that matter
    #[arg(long, requires = "lives", conflicts_with_all = ["mode", "seconds", "seeds"])]
    pub(crate) aimed: bool,
    /// Stop at the first failure, and say it as it was found
    #[arg(long, conflicts_with_all = ["cut", "lives"])]
    pub(crate) first: bool,
    /// Write the result as one JSON object; `-` prints it in place of the text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

/// The policies of a file system under torture.
fn ways() -> String {
    Way::all().map(Way::word).collect::<Vec<_>>().join(", ")
}

fn way_of(word: &str) -> Result<Way, String> {
    let words: Vec<&str> = Way::all().map(Way::word).collect();
    let named = Way::all().find(|way| way.word() == word);
    named.ok_or_else(|| no_such("policy", word, &words))
}

fn stack_names() -> String {
    subjects().map(|subject| subject.name()).collect::<Vec<_>>().join(", ")
}

fn mode_of(word: &str) -> Result<Mode, String> {
    let named = Mode::ALL.iter().find(|(name, _)| *name == word);
    named.map(|(_, mode)| *mode).ok_or_else(|| no_such("mode", word, &Mode::ALL.map(|(n, _)| n)))
}

/// There is nothing of that name, but there is this.
fn no_such(what: &str, word: &str, names: &[&str]) -> String {
    let hint = suggest::hint(word, names.iter().copied());
    format!("no such {what}{hint}; there are: {}", names.join(", "))
}

/// Where a text for people goes as JSON.
#[derive(ClapArgs)]
pub(crate) struct AsJson {
    /// Write it as JSON; `-` prints it in place of the text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

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

#[derive(Subcommand)]
pub(crate) enum Drive {
    /// Make an image: a drive that lives in a sparse file
    #[command(after_help = "\
Examples:
  flashlane drive create my.img --preset peers-16g
  flashlane drive create small.img --preset tiny --set geometry.chunks_per_pu=64 --seed 7

FILE appears when it is complete. It takes room on the disk as it is written to.")]
    Create(DriveCreate),
    /// Say what a drive is and what it holds
    #[command(after_help = "\
Examples:
  flashlane drive info my.img
  flashlane drive info my.img --json -
  flashlane drive info --presets")]
    Info(DriveInfo),
    /// Print a drive's health, with the names that nvme-cli and OCP use
    #[command(after_help = "\
Examples:
  flashlane drive smart my.img
  flashlane drive smart my.img --json -")]
    Smart(DriveSmart),
    /// Check an image: its header, its table and journal, and that all of it can be read
    #[command(after_help = "\
Examples:
  flashlane drive check my.img

Exit codes: 0 good, 1 something is wrong with it but it can be used, 2 it can't be used.")]
    Check(DriveFile),
    /// Copy a drive as it is now; the copy keeps the uuid
    #[command(after_help = "\
Examples:
  flashlane drive snapshot my.img before-the-test.img

The copy shares its blocks with the drive where the file system can. Of a drive in use it is what was
flushed, and what the device has taken since.")]
    Snapshot(DriveCopy),
    /// Make another drive with the same content and a uuid of its own
    #[command(after_help = "\
Examples:
  flashlane drive clone my.img second.img")]
    Clone(DriveCopy),
    /// Put faults into a drive, show them, take them away
    #[command(after_help = "\
Examples:
  flashlane drive inject my.img read_uncorrectable --at \"pu 3 chunk 17\" --times 2
  flashlane drive inject my.img early_close --probability 1e-4 --after 3ms
  flashlane drive inject my.img --plan faults.toml
  flashlane drive inject my.img --list
  flashlane drive inject my.img --clear
  flashlane drive inject my.img power_cut     while a run uses it

A fault in a drive in use counts from now on. All are kept in the image, with what of them has happened, and
the next who opens the drive meets those that are left. power_cut ends the run that uses the drive as a power
cut at that moment would, and is no fault that is kept.")]
    Inject(DriveInject),
    /// Bring an image to the format of this program
    #[command(after_help = "\
Examples:
  flashlane drive upgrade old.img

What the drive holds stays as it is. An upgrade that is cut off, by whatever, leaves an image that opens.")]
    Upgrade(DriveFile),
}

#[derive(ClapArgs)]
#[command(group(clap::ArgGroup::new("what").required(true).args(["kind", "plan", "list", "clear"])))]
pub(crate) struct DriveInject {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    #[arg(value_name = "KIND", value_parser = fault_kind, help = format!(
        "What happens: {}", fault_kinds().join(", ")))]
    pub(crate) kind: Option<String>,
    /// Where: `pu 3 chunk 17 sector 32`; what is left out matches
    #[arg(long, value_name = "PLACE", requires = "kind", conflicts_with_all = NO_LINE)]
    pub(crate) at: Option<String>,
    /// From the N-th operation on that matches
    #[arg(long, value_name = "N", requires = "kind", conflicts_with_all = NO_LINE)]
    pub(crate) count: Option<u64>,
    /// Not before so much device time from now: `3ms`
    #[arg(long, value_name = "TIME", requires = "kind", conflicts_with_all = NO_LINE)]
    pub(crate) after: Option<String>,
    /// Chance of each match: `1e-4`
    #[arg(long, value_name = "P", requires = "kind", conflicts_with_all = NO_LINE)]
    pub(crate) probability: Option<String>,
    /// How often at most; once without it, with --probability without end
    #[arg(long, value_name = "N", requires = "kind", conflicts_with_all = NO_LINE)]
    pub(crate) times: Option<u64>,
    /// All lines of a fault plan, a TOML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) plan: Option<PathBuf>,
    /// Show the faults, and what of them has happened
    #[arg(long)]
    pub(crate) list: bool,
    /// Take all faults away
    #[arg(long)]
    pub(crate) clear: bool,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

/// With these no line is given.
const NO_LINE: [&str; 3] = ["plan", "list", "clear"];

fn fault_kinds() -> Vec<&'static str> {
    FaultKind::ALL.iter().map(|(name, _)| *name).chain([POWER_CUT]).collect()
}

fn fault_kind(word: &str) -> Result<String, String> {
    match fault_kinds().contains(&word) {
        true => Ok(word.into()),
        false => {
            let hint = suggest::hint(word, fault_kinds());
            Err(format!("no such fault{hint}; there are {}", fault_kinds().join(", ")))
        }
    }
}

/// A drive that is no more than a file.
#[derive(ClapArgs)]
pub(crate) struct DriveFile {
    /// Image
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
}

#[derive(ClapArgs)]
pub(crate) struct DriveCreate {
    #[command(flatten)]
    pub(crate) on: DriveFile,
    #[arg(long, value_name = "PRESET", default_value = default_preset(), help = format!(
        "Device: {}", preset_names().join(", ")))]
    pub(crate) preset: String,
    /// Change a key of the device, `geometry.chunks_per_pu=64`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,
    /// Seed of bad blocks and errors
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub(crate) seed: u64,
    /// Replace a file of that name
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(ClapArgs)]
pub(crate) struct DriveInfo {
    /// Image
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath, required_unless_present = "presets")]
    pub(crate) file: Option<PathBuf>,
    /// List the devices that images can be made of
    #[arg(long, conflicts_with_all = ["file", "json"])]
    pub(crate) presets: bool,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct DriveSmart {
    #[command(flatten)]
    pub(crate) on: DriveFile,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct DriveCopy {
    /// Image
    #[arg(value_name = "FROM", value_hint = ValueHint::FilePath)]
    pub(crate) from: PathBuf,
    /// Where the copy goes; nothing may be there
    #[arg(value_name = "TO", value_hint = ValueHint::FilePath)]
    pub(crate) to: PathBuf,
}

#[derive(Subcommand)]
pub(crate) enum Lnvm {
    /// List drives and their targets
    #[command(after_help = "\
Examples:
  flashlane lnvm list my.img
  flashlane lnvm list *.img --json -")]
    List(LnvmList),
    /// Create a target on a range of LUNs
    #[command(after_help = "\
Examples:
  flashlane lnvm create my.img -n db -t pblk -f
  flashlane lnvm create -d my.img -n db -t pblk -b 0 -e 31 -o 20
  flashlane lnvm create my.img -n log -t raw -b 32 -e 63

A LUN is counted over all channels: channel x LUNs per channel + LUN. Without -f a pblk that is on these
LUNs is recovered, with its data and its settings (others are refused); where there is none, one is made.
With -f whatever is there is given up. A create that was cut off is shown by `list` as half created: create it again, or remove it.
Types: pblk (host FTL), qblk (the same with a ring per core and a pool per channel), pftl (block SSD; the
whole drive), slc-tlc (SSD with an SLC buffer and a journal region; the whole drive, which needs SLC mode),
sftl (flash blocks under fixed names, for file systems that know the flash; the whole drive),
raw (vector I/O on the PUs).")]
    Create(LnvmCreate),
    /// Remove a target; its data stays on the LUNs until something else is created there
    #[command(after_help = "\
Examples:
  flashlane lnvm remove my.img -n db")]
    Remove(LnvmRemove),
    /// Show target types, the drive's attributes and each target's, by their names in sysfs
    #[command(after_help = "\
Examples:
  flashlane lnvm info my.img
  flashlane lnvm info my.img -n db --json -

Nothing is written: a pblk target is mounted in memory above the image, and shown as a mount finds it.")]
    Info(LnvmInfo),
    /// Show the identify page (1.2) or geometry page (2.0)
    #[command(
        visible_alias = "geometry",
        after_help = "\
Examples:
  flashlane lnvm id-ns my.img -H
  flashlane lnvm id-ns my.img -b > page.bin"
    )]
    IdNs(LnvmIdNs),
    /// Show the state of every chunk
    #[command(after_help = "\
Examples:
  flashlane lnvm chunk-log my.img
  flashlane lnvm chunk-log my.img -o binary > chunks.bin")]
    ChunkLog(LnvmChunkLog),
    /// Show a LUN's bad-block table (devices of 1.2)
    #[command(after_help = "\
Examples:
  flashlane lnvm diag-bbtbl my.img -c 0 -l 1")]
    DiagBbtbl(LnvmBbtbl),
    /// Mark a block, or take its mark off
    #[command(after_help = "\
Examples:
  flashlane lnvm diag-set-bbtbl my.img -c 0 -l 1 -b 7 -v 8
  flashlane lnvm diag-set-bbtbl my.img -c 0 -l 1 -b 7 -v 0

Marks: 0 good, 1 factory, 2 grown, 4 device, 8 host, 16 media manager. A marked block is offline.
Blocks of a target are refused.")]
    DiagSetBbtbl(LnvmSetBbtbl),
    /// Erase a drive that has no targets, and take marks off
    #[command(after_help = "\
Examples:
  flashlane lnvm factory my.img
  flashlane lnvm factory -d my.img -e -s      only blocks with the host's mark, and take that off

Marks that blocks have from the factory stay.")]
    Factory(LnvmFactory),
    /// See that a drive can be used; it has its media manager from the start
    #[command(after_help = "\
Examples:
  flashlane lnvm init my.img
  flashlane lnvm init -d my.img -m gennvm")]
    Init(LnvmInit),
    /// Show a pblk target's knobs, by their names in sysfs, or set them
    #[command(after_help = "\
Examples:
  flashlane lnvm knobs my.img -n db
  flashlane lnvm knobs my.img -n db active_pus=2 limiter=kernel_table
  flashlane lnvm knobs my.img -n db gc_enabled=0
  flashlane lnvm knobs my.img -n db gc_force=1      while it is in use

active_pus, gc_enabled and limiter are kept with the target, and apply at once where it is in use. gc_enabled:
1 collects when the limiter says, 0 does not, until nothing else makes room. gc_force=1 collects without end,
gc_force=0 stops that. limiter: pid, kernel_table, channel_states, off.")]
    Knobs(LnvmKnobs),
}

#[derive(ClapArgs)]
pub(crate) struct LnvmInit {
    #[command(flatten)]
    pub(crate) drive: OneDrive,
    /// Media manager
    #[arg(short = 'm', long, value_name = "NAME", default_value = "gennvm")]
    pub(crate) mediamgr_name: String,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmKnobs {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    /// Name of the target
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) target_name: String,
    /// Knobs to set, in this order
    #[arg(value_name = "KNOB=VALUE", value_parser = knob)]
    pub(crate) set: Vec<(String, String)>,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

fn knob(word: &str) -> Result<(String, String), String> {
    let (name, value) = word.split_once('=').ok_or("write KNOB=VALUE, active_pus=2")?;
    Ok((name.trim().into(), value.trim().into()))
}

/// A drive, as the first word or with -d.
#[derive(ClapArgs)]
pub(crate) struct OneDrive {
    /// Image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: Option<PathBuf>,
    /// The same, as nvme-cli has it
    #[arg(short, long, value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) device_name: Option<PathBuf>,
}

/// A drive, as the first word.
#[derive(ClapArgs)]
pub(crate) struct OfDrive {
    /// Image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
}

/// A namespace of it.
#[derive(ClapArgs)]
pub(crate) struct OneNamespace {
    /// Namespace; a drive has one
    #[arg(short = 'n', long, value_name = "NUM", default_value_t = 1)]
    pub(crate) namespace_id: u32,
}

/// A LUN of it.
#[derive(Clone, Copy, ClapArgs)]
pub(crate) struct OneLun {
    /// Channel
    #[arg(short = 'c', long, value_name = "NUM", default_value_t = 0)]
    pub(crate) channel_id: u32,
    /// LUN in the channel
    #[arg(short = 'l', long, value_name = "NUM", default_value_t = 0)]
    pub(crate) lun_id: u32,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmList {
    /// Images
    #[arg(value_name = "DRIVE", required = true, value_hint = ValueHint::FilePath)]
    pub(crate) drives: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

fn limiter_of(word: &str) -> Result<LimiterKind, String> {
    let names = || LimiterKind::ALL.map(|(name, _)| name).join(", ");
    LimiterKind::named(word).ok_or_else(|| format!("there are {}", names()))
}

/// One of a few words.
fn one_of<T: Copy>(names: &[(&str, T)], word: &str) -> Result<T, String> {
    let known = || names.iter().map(|(name, _)| *name);
    let found = names.iter().find(|(name, _)| *name == word);
    found.map(|(_, value)| *value).ok_or_else(|| {
        let hint = suggest::hint(word, known());
        format!("there are {}{hint}", known().collect::<Vec<_>>().join(", "))
    })
}

fn leveling_of(word: &str) -> Result<WearLeveling, String> {
    one_of(&WearLeveling::NAMES, word)
}

fn scrub_of(word: &str) -> Result<Scrub, String> {
    one_of(&Scrub::NAMES, word)
}

fn time_of(text: &str) -> Result<Ns, String> {
    text.parse::<Ns>().map_err(|e| e.to_string())
}

fn bytes_of(text: &str) -> Result<Bytes, String> {
    text.parse::<Bytes>().map_err(|e| e.to_string())
}

/// -1 or a number that is not negative.
fn or_minus_one() -> clap::builder::RangedI64ValueParser<i64> {
    clap::value_parser!(i64).range(-1..=i64::from(u32::MAX))
}

#[derive(ClapArgs)]
pub(crate) struct LnvmCreate {
    #[command(flatten)]
    pub(crate) drive: OneDrive,
    /// Name of the target
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) target_name: String,
    /// Type: `pblk`, `qblk`, `pftl`, `slc-tlc`, `sftl` or `raw`
    #[arg(short = 't', long, value_name = "TYPE")]
    pub(crate) target_type: TargetType,
    /// First LUN; -1 is the drive's first
    #[arg(short = 'b', long, value_name = "NUM", default_value_t = -1,
        allow_negative_numbers = true, value_parser = or_minus_one())]
    pub(crate) lun_begin: i64,
    /// Last LUN; -1 is the drive's last
    #[arg(short = 'e', long, value_name = "NUM", default_value_t = -1,
        allow_negative_numbers = true, value_parser = or_minus_one())]
    pub(crate) lun_end: i64,
    /// Over-provisioning in percent, 3 to 80; -1 is the type's default
    #[arg(short = 'o', long, value_name = "NUM", default_value_t = -1,
        allow_negative_numbers = true, value_parser = or_minus_one())]
    pub(crate) over_prov: i64,
    /// Factory mode: do not recover what is there, give it up
    #[arg(short = 'f', long)]
    pub(crate) factory: bool,
    #[command(flatten)]
    pub(crate) how: HowMounted,
    /// Cores that a new qblk has a ring and a drainer for [default: this machine's]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub(crate) cores: Option<u32>,
    /// PUs of a new pblk that take new data at a time; 0 is all [default: 0]
    #[arg(long, value_name = "N")]
    pub(crate) active_pus: Option<u32>,
    /// Limiter of a new pblk: `pid`, `kernel_table`, `channel_states` or `off` [default: pid]
    #[arg(long, value_name = "NAME", value_parser = limiter_of)]
    pub(crate) limiter: Option<LimiterKind>,
    /// Wear leveling of a new pblk: `off`, `dynamic` or `static` [default: dynamic]
    #[arg(long, value_name = "NAME", value_parser = leveling_of)]
    pub(crate) wear_leveling: Option<WearLeveling>,
    /// `static` moves what lies on chunks erased so many times less than the average [default: 32]
    #[arg(long, value_name = "ERASES", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) wear_spread: Option<u32>,
    /// Moves data of a new pblk before it decays: `off`, at `reads`, or with a `patrol`, too [default: off]
    #[arg(long, value_name = "NAME", value_parser = scrub_of)]
    pub(crate) scrub: Option<Scrub>,
    /// Time in which a patrol looks at every chunk, like `24h` [default: a week]
    #[arg(long, value_name = "TIME", value_parser = time_of)]
    pub(crate) scrub_interval: Option<Ns>,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmRemove {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    /// Name of the target
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) target_name: String,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmInfo {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    /// Only this target
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) target_name: Option<String>,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmIdNs {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    #[command(flatten)]
    pub(crate) ns: OneNamespace,
    /// Print the page's 4096 bytes
    #[arg(short = 'b', long, conflicts_with_all = ["human_readable", "json"])]
    pub(crate) raw_binary: bool,
    /// Say what bits mean
    #[arg(short = 'H', long)]
    pub(crate) human_readable: bool,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmChunkLog {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    /// `normal`, or `binary`: descriptors of 32 bytes
    #[arg(short = 'o', long, value_name = "FMT", default_value = "normal",
        value_parser = ["normal", "binary"])]
    pub(crate) output_format: String,
    /// As `normal` is anyway
    #[arg(short = 'H', long)]
    pub(crate) human_readable: bool,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmBbtbl {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    #[command(flatten)]
    pub(crate) ns: OneNamespace,
    #[command(flatten)]
    pub(crate) lun: OneLun,
    /// Print the table's bytes
    #[arg(short = 'b', long)]
    pub(crate) raw_binary: bool,
    #[command(flatten)]
    pub(crate) out: AsJson,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmSetBbtbl {
    #[command(flatten)]
    pub(crate) on: OfDrive,
    #[command(flatten)]
    pub(crate) ns: OneNamespace,
    #[command(flatten)]
    pub(crate) lun: OneLun,
    /// Plane; on devices of 2.0 all planes get the mark
    #[arg(short = 'p', long, value_name = "NUM", default_value_t = 0)]
    pub(crate) plane_id: u32,
    /// Block
    #[arg(short = 'b', long, value_name = "NUM", default_value_t = 0)]
    pub(crate) block_id: u32,
    /// Mark
    #[arg(short = 'v', long, value_name = "NUM", default_value_t = 0)]
    pub(crate) value: u32,
}

#[derive(ClapArgs)]
pub(crate) struct LnvmFactory {
    #[command(flatten)]
    pub(crate) drive: OneDrive,
    /// Erase only blocks with the host's mark; all without it
    #[arg(short = 'e', long)]
    pub(crate) erase_only_marked: bool,
    /// Take the host's marks off
    #[arg(short = 's', long)]
    pub(crate) clear_host_side_blks: bool,
    /// Take the marks of blocks that went bad in use off
    #[arg(short = 'b', long)]
    pub(crate) clear_bb_blks: bool,
}

/// How a trace is read.
#[derive(ClapArgs)]
pub(crate) struct HowRead {
    #[arg(long, value_name = "FORMAT", value_parser = format_of, help = format!(
        "Format, recognized by content without it: {}", Format::words()))]
    format: Option<Format>,
    /// Unit of the times of an MQSim trace, as its configuration has it: `ps`, `ns` (default), `us`
    #[arg(long, value_name = "UNIT", value_parser = ["ps", "ns", "us"])]
    time_unit: Option<String>,
    /// What `wait` in a fio log of version 2 counts from: the `previous` wait (fio's manual), or the
    /// `start` of the log
    #[arg(long, value_name = "FROM", value_parser = ["previous", "start"])]
    wait: Option<String>,
    /// Which event of a request is taken from a trace of events: `queued` or `issued`; queued ones
    /// where there are any without it
    #[arg(long, value_name = "EVENT", value_parser = ["queued", "issued"])]
    action: Option<String>,
}

fn format_of(word: &str) -> Result<Format, String> {
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
            wait_from_start: self.wait.as_deref() == Some("start"),
        }
    }
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
