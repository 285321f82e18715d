//! The command line of `mkfs`, `mount`, `fsck` and `dump`, as clap reads it.
//!
//! Owns: names and help texts. Never: checks what a value means; that is where it is used.

use super::values::{bytes_of, one_of, time_of};
use clap::{Args as ClapArgs, ValueHint};
use flashlane_lab::lnvm::Ns;
use std::path::PathBuf;

pub(crate) const FSCK: &str = "\
Examples:
  flashlane fsck my.img
  flashlane fsck my.img --repair
  flashlane fsck my.img --repair --accept-lost
  flashlane fsck my.img --scrub

Without --repair nothing is changed, and it says what --repair would do. With it names that lead
nowhere are taken out. A file whose name was in a damaged page of a directory gets it back from its
inode; other files without a name get one in /lost+found. Counters and tables are written anew by
what nodes say, and fsyncs after the last checkpoint are kept. All of that is one checkpoint:
a power cut leaves the old state or the new one.
If --repair would have to give up data that can't be read, it changes nothing, as the data may be
readable later. --accept-lost gives it up for good: reading such a page of a file is an error until
the page is written as a whole, punched or cut off.
--scrub reads the contents of all files, too. It names each page that can't be read or does not match
its checksum; with --repair --accept-lost these pages are given up. Without --scrub contents of files
are not read: such a page is an error when it is read.
Exit codes: 0 nothing wrong found, or all of it mended; 1 it is damaged; 2 not done.";

pub(crate) const DUMP: &str = "\
Examples:
  flashlane dump my.img                    superblock, checkpoints, heads, files to be deleted
  flashlane dump my.img segment 3          which of its pages are valid, and whose they are
  flashlane dump my.img node 1             where it lies and what it says
  flashlane dump my.img /dir/file          its inode, and where each of its pages lies

It reads only, and shows what there is; `flashlane fsck` says what is wrong with it.
Exit codes: 0 done, 2 not done.";

#[derive(ClapArgs)]
pub(crate) struct Fsck {
    /// Drive image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// Target of the drive, the only one without it
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
    /// Mend what is wrong
    #[arg(long)]
    pub(crate) repair: bool,
    /// Let --repair give up, for good, data that can't be read, and mount a target that has sectors
    /// which can't be read. Without this option --repair changes nothing if it would give data up
    #[arg(long, requires = "repair")]
    pub(crate) accept_lost: bool,
    /// Read the contents of all files, and compare them with their checksums
    #[arg(long)]
    pub(crate) scrub: bool,
}

#[derive(ClapArgs)]
pub(crate) struct Dump {
    /// Drive image
    #[arg(value_name = "DRIVE", value_hint = ValueHint::FilePath)]
    pub(crate) drive: PathBuf,
    /// What to show: superblock, checkpoints, heads, orphans, segment NUMBER, node NUMBER, or a path in
    /// the file system
    #[arg(value_name = "WHAT", num_args = 0..=2)]
    pub(crate) what: Vec<String>,
    /// Target of the drive, the only one without it
    #[arg(long, value_name = "NAME")]
    pub(crate) target: Option<String>,
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
    /// Whether each page of a file has a checksum, so that other bytes than those that were written
    /// are an error: on or off
    #[arg(long, value_name = "on|off", default_value = "on", value_parser = on_or_off,
          action = clap::ArgAction::Set)]
    pub(crate) data_checksums: bool,
    /// Replace a file system that is there: what is in it is lost
    #[arg(long)]
    pub(crate) force: bool,
}

/// An option of mount(8), as this program understands it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MountOption {
    ReadOnly(bool),
    NoSuid(bool),
    NoDev(bool),
    NoExec(bool),
    AllowOther,
    Nothing,
}

fn on_or_off(word: &str) -> Result<bool, String> {
    one_of(&[("on", true), ("off", false)], word)
}

/// Less than this holds too few nodes to work with.
const MEMORY_MIN: u64 = 16 << 20;

fn memory_of(text: &str) -> Result<u64, String> {
    let bytes = bytes_of(text)?.get();
    match bytes >= MEMORY_MIN {
        true => Ok(bytes),
        false => Err("it must be 16MiB or more".into()),
    }
}

fn option_of(word: &str) -> Result<MountOption, String> {
    use MountOption::{AllowOther, NoDev, NoExec, NoSuid, Nothing, ReadOnly};
    let known = [
        ("ro", ReadOnly(true)),
        ("rw", ReadOnly(false)),
        ("nosuid", NoSuid(true)),
        ("suid", NoSuid(false)),
        ("nodev", NoDev(true)),
        ("dev", NoDev(false)),
        ("noexec", NoExec(true)),
        ("exec", NoExec(false)),
        ("allow_other", AllowOther),
        ("defaults", Nothing),
        ("default_permissions", Nothing),
        ("async", Nothing),
        ("noatime", Nothing),
        ("nodiratime", Nothing),
        ("relatime", Nothing),
        ("auto", Nothing),
        ("noauto", Nothing),
        ("nofail", Nothing),
        ("_netdev", Nothing),
    ];
    let is_for_others = ["x-", "subtype=", "fsname=", "comment="];
    match is_for_others.iter().any(|begin| word.starts_with(begin)) {
        true => Ok(Nothing),
        false => one_of(&known, word),
    }
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
    /// Options of mount(8), separated by commas: ro, rw, nosuid, nodev, noexec, allow_other. Common
    /// words of fstab without an effect here (defaults, noatime, nofail, x-...) are ignored
    #[arg(short, long, value_name = "OPTIONS", value_delimiter = ',', value_parser = option_of)]
    pub(crate) options: Vec<MountOption>,
    /// Let the kernel keep writes for half a minute before it hands them on: small ones are faster.
    /// On a full file system `write` succeeds then, and `fsync` or `close` fails
    #[arg(long)]
    pub(crate) writeback: bool,
    /// Make durable what the kernel has handed on, so long after that, though no program asks; 0s never
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = time_of)]
    pub(crate) commit: Ns,
    /// Memory for cached pages and inodes, 16MiB or more. The process uses more than that: its
    /// tables grow with the drive
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = memory_of)]
    pub(crate) memory: u64,
    /// Requests take no device time: as fast as this machine goes
    #[arg(long)]
    pub(crate) null_latency: bool,
}
