//! The command line, as clap reads it.
//!
//! Owns: names, help texts, examples. Promises: `--help` of each command has examples that work.
//! Never: checks what a value means; that is where it is used.

use clap::{Args as ClapArgs, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use flashlane_lab::experiment::{Change, default_preset, preset_names};
use std::path::PathBuf;

const EXIT_CODES: &str = "\
Exit codes:
  0    done
  1    the result is bad: a rule of the medium was broken, data was wrong, a verdict is not what
       its experiment expects
  2    not done: wrong usage or input, a file that can't be read or written
  130  interrupted (Ctrl-C); what was done so far has been printed";

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
  flashlane run                 pblk, pblk on 4 PUs and a block SSD under the bundled trace
  flashlane run experiment.toml --json -
  flashlane run job.fio --device peers-16g --target pblk --target pftl
  flashlane run trace.txt.gz --device peers-64g --target pblk:4 --scale-to-device
  flashlane run --set target.0.over_provisioning_percent=20 --seed 7
  flashlane run job.fio --target pblk --target pftl --report job-report
  flashlane run job.fio --html report.html --perfetto trace.json --fio-json fio.json

The whole experiment format is shown by the comments in experiments/*.toml.
Exit codes: 0 done, 1 bad result, 2 not done, 130 interrupted with a partial result.")]
    Run(Run),
    /// Say everything that is wrong with an experiment, and what it amounts to
    #[command(after_help = "\
Examples:
  flashlane check experiment.toml
  flashlane check job.fio --device westlake
  flashlane check trace.txt --device peers-16g --scale-to-device")]
    Check(Check),
    /// Reproduce a figure or table of a paper: paper and here side by side, with a verdict
    #[command(after_help = "\
Examples:
  flashlane reproduce           list what there is
  flashlane reproduce lightnvm-table1
  flashlane reproduce all --json -

Exit code 1 when a verdict is not the one that the experiment's file expects.")]
    Reproduce(Reproduce),
    /// Look at a trace
    #[command(subcommand)]
    Trace(Trace),
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
    /// Target to run on, `pblk`, `pblk:4` (4 active PUs) or `pftl` (block SSD); may be repeated; a
    /// job file or a trace runs on `pblk` without it
    #[arg(long, value_name = "TARGET")]
    target: Vec<String>,
    /// What is kept of contents: `stamps` (8 checked bytes per sector) or `memory` (all 4096)
    #[arg(long, value_name = "STORE")]
    store: Option<String>,
    /// Seed of every random stream, 0 to 2^63 - 1; 1 where nothing names another
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    seed: Option<u64>,
    /// Pack the places that a trace touches when it is larger than the device
    #[arg(long)]
    scale_to_device: bool,
    /// Change a key of the experiment, `run.fill=100%` or `target.0.active_pus=4`; may be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl What {
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

#[derive(ClapArgs, Default)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) what: What,
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
    /// Write all of these but the Perfetto trace into a folder, made if need be: report.html,
    /// results.json, .csv and .parquet, timeline.csv and .parquet, fio.json, latency.hlog
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) report: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) what: What,
}

#[derive(ClapArgs)]
pub(crate) struct Reproduce {
    /// Name of a figure, or `all`; without it the list
    pub(crate) name: Option<String>,
    /// Write the result as JSON (an object, for `all` a list); `-` prints it in place of the table
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
    /// The paper's own sizes, however long it takes
    #[arg(long)]
    pub(crate) full: bool,
}

#[derive(Subcommand)]
pub(crate) enum Trace {
    /// Say what is in a trace: format, operations, devices, ranges, order, latencies
    #[command(after_help = "\
Examples:
  flashlane trace info traces/ext4-sqlite-git.blkparse.zst
  blkparse -i sda -o - > sda.txt; flashlane trace info sda.txt --json -")]
    Info(TraceInfo),
    /// Check every line of a trace, and that it fits a device
    #[command(after_help = "\
Examples:
  flashlane trace validate trace.txt
  flashlane trace validate trace.txt --device peers-16g

Exit code 2, with the first bad line and column, when it can't be used.")]
    Validate(TraceValidate),
}

#[derive(ClapArgs)]
pub(crate) struct TraceInfo {
    /// Trace; .gz and .zst are unpacked
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Write it as JSON; `-` prints it in place of the text
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) json: Option<PathBuf>,
}

#[derive(ClapArgs)]
pub(crate) struct TraceValidate {
    /// Trace; .gz and .zst are unpacked
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Device preset that it is to be replayed on
    #[arg(long, value_name = "PRESET")]
    pub(crate) device: Option<String>,
}
