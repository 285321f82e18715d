//! The command line of `lnvm`, as clap reads it.
//!
//! Owns: names, help texts, examples. Never: checks what a value means; that is where it is used.

use super::HowMounted;
use super::values::{AsJson, one_of, time_of};
use clap::{Args as ClapArgs, Subcommand, ValueHint};
use flashlane_lab::lnvm::{LimiterKind, Ns, Scrub, TargetType, WearLeveling};
use std::path::PathBuf;

#[derive(Subcommand)]
pub(crate) enum Lnvm {
    /// List drives and their targets
    #[command(after_help = "\
Examples:
  flashlane lnvm list my.img
  flashlane lnvm list *.img --json -

State is what the drive's table says of a target: created, or half created. `list` mounts no
target. `info` tries to, and says why one can't be mounted.")]
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

pub(super) fn knob(word: &str) -> Result<(String, String), String> {
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

pub(super) fn limiter_of(word: &str) -> Result<LimiterKind, String> {
    let names = || LimiterKind::ALL.map(|(name, _)| name).join(", ");
    LimiterKind::named(word).ok_or_else(|| format!("there are {}", names()))
}

pub(super) fn leveling_of(word: &str) -> Result<WearLeveling, String> {
    one_of(&WearLeveling::NAMES, word)
}

pub(super) fn scrub_of(word: &str) -> Result<Scrub, String> {
    one_of(&Scrub::NAMES, word)
}

/// -1 or a number that is not negative.
pub(super) fn or_minus_one() -> clap::builder::RangedI64ValueParser<i64> {
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
    /// Record on two dies what each flush makes durable, so that a dead die costs no more than what
    /// was on it; all types but raw [default: true if the target has room for it]
    #[arg(long, value_name = "BOOL")]
    pub(crate) flush_records: Option<bool>,
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
