//! The command line of `drive`, as clap reads it.
//!
//! Owns: names, help texts, examples. Never: checks what a value means; that is where it is used.

use super::lnvm::OfDrive;
use super::values::AsJson;
use clap::{Args as ClapArgs, Subcommand, ValueHint};
use flashlane_lab::drive::faults::{FaultKind, POWER_CUT};
use flashlane_lab::experiment::{default_preset, preset_names};
use flashlane_lab::suggest;
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Drive {
    /// Make an image: a drive that lives in a sparse file
    #[command(after_help = "\
Examples:
  flashlane drive create my.img --preset peers-16g
  flashlane drive create small.img --preset tiny --set geometry.chunks_per_pu=64 --seed 7

FILE appears when it is complete. It takes room on the disk as it is written to; with up to some 65,000 chunks
about 250 bytes for each at once, so that no commit lacks room. Of more chunks it has format 3.0, which older
programs refuse.")]
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
cut at that moment would, and is no fault that is kept.

--plan reads a fault plan in TOML: one [[fault]] for each fault. `kind` is required. `at`, `count`,
`after`, `times` and `probability` mean what the options of these names mean. power_cut can't be in
a plan:

  [[fault]]
  kind = \"read_uncorrectable\"
  at = \"pu 3 chunk 17\"       # or pu = 3, chunk = 17, sector = 32; leave out what may be any
  times = 2                  # then no more

  [[fault]]
  kind = \"early_close\"
  count = 5                  # from the fifth operation on that matches
  after = \"3ms\"            # of device time from now
  probability = \"1e-4\"     # of each match; a number in quotes")]
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
pub(super) const NO_LINE: [&str; 3] = ["plan", "list", "clear"];

pub(super) fn fault_kinds() -> Vec<&'static str> {
    FaultKind::ALL.iter().map(|(name, _)| *name).chain([POWER_CUT]).collect()
}

pub(super) fn fault_kind(word: &str) -> Result<String, String> {
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
