//! The command line of `torture`, as clap reads it.
//!
//! Owns: names, help texts, examples. Never: checks what a value means; that is where it is used.

use super::values::{no_such, seed_of};
use clap::{Args as ClapArgs, ValueHint};
use flashlane_testkit::Mode;
use flashlane_testkit::files::Way;
use flashlane_testkit::stacks::subjects;
use std::path::PathBuf;

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
pub(super) fn ways() -> String {
    Way::all().map(Way::word).collect::<Vec<_>>().join(", ")
}

pub(super) fn way_of(word: &str) -> Result<Way, String> {
    let words: Vec<&str> = Way::all().map(Way::word).collect();
    let named = Way::all().find(|way| way.word() == word);
    named.ok_or_else(|| no_such("policy", word, &words))
}

pub(super) fn stack_names() -> String {
    subjects().map(|subject| subject.name()).collect::<Vec<_>>().join(", ")
}

pub(super) fn mode_of(word: &str) -> Result<Mode, String> {
    let named = Mode::ALL.iter().find(|(name, _)| *name == word);
    named.map(|(_, mode)| *mode).ok_or_else(|| no_such("mode", word, &Mode::ALL.map(|(n, _)| n)))
}
