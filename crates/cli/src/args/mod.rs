//! The command line, as clap reads it.
//!
//! Owns: names, help texts, examples. Promises: `--help` of each command has examples that work.
//! Never: checks what a value means; that is where it is used.

mod drive;
mod files;
mod lnvm;
mod torture;
mod trace;
mod values;

pub(crate) use drive::*;
pub(crate) use files::*;
pub(crate) use lnvm::*;
pub(crate) use torture::*;
pub(crate) use trace::*;
pub(crate) use values::AsJson;

use crate::commands::top::every_of;
use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;
use flashlane_files::{Bytes, Personality};
use flashlane_lab::experiment::{Change, default_preset, preset_names};
use flashlane_lab::lnvm::{MountHow, Ns};
use flashlane_lab::serve::{Address, Ghosts, SECTOR_SIZES, TargetPath, Wanted};
use std::path::PathBuf;
use values::{bytes_of, no_such, seed_of, time_of};

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
  flashlane reproduce parafs    all figures of a paper; points that two have are measured once
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
  flashlane mount my.img /mnt --writeback        small writes are faster; see --writeback

It says `ready DIRECTORY` on standard output when it can be used. `umount` ends it. After Ctrl-C or
SIGTERM it ends once no file is open there.
Data that a program has synced with fsync is on the drive whatever happens. Other data is durable
some time (--commit) after the kernel has handed it on. The kernel hands on a `write` at once, and
changes to files that are mapped to memory half a minute later. With --writeback it hands on every
change half a minute later. `sync` alone makes nothing durable: the kernel does not tell a file
system in user space of it. `sync FILE` does, by fsync.
Exit codes: 0 done, 2 not done.")]
    Mount(MountFs),
    /// Check a ParaFS file system that is not mounted, and repair it
    #[command(after_help = files::FSCK)]
    Fsck(Fsck),
    /// Show what lies on the medium of a ParaFS file system
    #[command(after_help = files::DUMP)]
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
    /// Mount a target of which sectors can't be read. They are lost: reads of all that they may
    /// have held fail until it is written or discarded
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
    /// Clients may read, and change nothing; the target is mounted as ever, which may write what
    /// belongs to it
    #[arg(long, conflicts_with = "idiscard")]
    pub(crate) read_only: bool,
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

#[derive(ClapArgs)]
pub(crate) struct Reproduce {
    /// Name of a figure, a paper (lightnvm, qblk, slc, idiscard, parafs) for all of its figures, `all`, or a file of your
    /// own (.toml); without it the list
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) name: Option<String>,
    /// The list
    #[arg(long, conflicts_with = "name")]
    pub(crate) list: bool,
    /// Write a page with all plots, rows and verdicts; of several figures figures.html is written without it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) html: Option<PathBuf>,
    /// Write everything into a folder, made if need be: figures.html, and of each figure its plots (.svg and .png)
    /// and its points (.csv and .parquet)
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
    /// Write the result as JSON (an object, of several figures a list); `-` prints it in place of the table
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
