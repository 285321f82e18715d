//! `flashlane mkfs`, `mount`, `fsck`, `dump`: ParaFS on a target of a drive.

use crate::args::{Dump, Fsck, Mkfs, MountFs, MountOption};
use crate::watch::{Interrupt, Phases, Terminal};
use crate::{Ending, output};
use anyhow::{Context, Result, bail};
use flashlane_lab::files::{
    self, Depth, How, Making, Mounting, Recovered, Repaired, Report, Time, Unread, What, time_from,
};
use std::fmt::Display;
use std::rc::Rc;
use std::time::SystemTime;

/// What programs see as the time of their files.
#[expect(clippy::disallowed_methods, reason = "files have the time of this machine")]
fn clock() -> Time {
    time_from(SystemTime::now())
}

/// Who runs this.
fn owner() -> (u32, u32) {
    (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw())
}

pub(crate) fn mkfs(args: Mkfs) -> Result<Ending> {
    let Mkfs { drive: image, target, label, data_checksums, force } = args;
    if label.len() > 64 {
        bail!("--label: it has {} bytes, at most 64 will do", label.len());
    }
    let uuid = uuid();
    let owner = owner();
    let making = Making { image, target, label, uuid, data_checksums, force, owner };
    let made = files::make(&making, clock())?;
    output::done(format!("{made}\n"))
}

/// A name of its own: of this moment and this process.
fn uuid() -> [u8; 16] {
    let now = clock();
    let mut bytes = [0; 16];
    bytes[..8].copy_from_slice(&now.seconds.to_le_bytes());
    bytes[8..12].copy_from_slice(&now.nanos.to_le_bytes());
    bytes[12..].copy_from_slice(&std::process::id().to_le_bytes());
    bytes
}

pub(crate) fn mount(args: MountFs) -> Result<Ending> {
    let MountFs {
        drive: image,
        directory,
        target,
        read_only,
        options,
        writeback,
        commit,
        memory,
        null_latency,
    } = args;
    std::fs::metadata(&image).with_context(|| image.display().to_string())?;
    // A mount that was killed has left the directory so that nobody can look at it.
    files::clear_directory(&directory).with_context(|| directory.display().to_string())?;
    let about = std::fs::metadata(&directory).with_context(|| {
        let at = directory.display();
        format!("{at}: it must be a directory that is there: mkdir {at}")
    })?;
    if !about.is_dir() {
        bail!("{}: this is no directory", directory.display());
    }
    let at = std::fs::canonicalize(&directory)?;
    let timing = !null_latency;
    let mut how = How { read_only, writeback, ..How::default() };
    for option in options {
        match option {
            MountOption::ReadOnly(on) => how.read_only = on || read_only,
            MountOption::NoSuid(on) => how.nosuid = on,
            MountOption::NoDev(on) => how.nodev = on,
            MountOption::NoExec(on) => how.noexec = on,
            MountOption::AllowOther => how.allow_other = true,
            MountOption::Nothing => {}
        }
    }
    let mounting = Mounting { image, target, at: at.clone(), timing, how, commit, memory, clock };
    let interrupt = Interrupt::listen()?;
    let monitor = Rc::new(Terminal::new(&interrupt, &at.display().to_string()));
    let say = |what: &dyn Display| output::remark(&format!("flashlane: {what}\n"));
    let ready = move |found: &Recovered| {
        if !found.clean {
            let Recovered { batches, torn_batches, orphans, .. } = found;
            say(&format_args!(
                "it was not unmounted: {batches} fsyncs after the last checkpoint were found \
                 whole, {torn_batches} were cut short; {orphans} files without a name are deleted"
            ));
        }
        if let Some(why) = &found.read_only {
            say(&format_args!(
                "read-only: {why}. Nothing on the drive is changed: what can be read again at a later \
                 mount is there. What can't is an error; `flashlane fsck` names the files, and with \
                 --repair --accept-lost it gives up what they have lost"
            ));
        }
        output::ready(&at.display());
    };
    files::mount(&mounting, monitor, ready, say)?;
    Ok(Ending::Good)
}

pub(crate) fn fsck(args: &Fsck) -> Result<Ending> {
    let unread = if args.accept_lost { Unread::GiveUp } else { Unread::Refuse };
    let mends = args.repair.then(|| (clock(), unread));
    let phases = Phases::new("fsck");
    let progress = Rc::new(move |what: &'static str, done, of| phases.at(what, done, of));
    let depth = if args.scrub { Depth::Contents } else { Depth::Structures };
    let (done, losses) = files::fsck(&args.drive, args.target.as_deref(), mends, depth, progress)?;
    let Repaired { before, after, recovered, found, named } = &done;
    let mut text: String = losses.iter().map(|line| format!("{line}\n")).collect();
    for problem in before.problems.iter().chain(&before.notes) {
        text += &format!("{problem}\n");
    }
    let more = before.found - before.problems.len() as u64;
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    let would = if args.repair { "done: " } else { "--repair would " };
    for (cure, times) in &before.cures {
        text += &match times {
            1 => format!("{would}{cure}\n"),
            n => format!("{would}{cure} ({n} times)\n"),
        };
    }
    if !before.clean {
        text += &match args.repair {
            true => format!(
                "it was not unmounted: {} fsyncs after the last checkpoint were found and kept\n",
                recovered.batches
            ),
            false => {
                "it was not unmounted: the next mount, or --repair, keeps the fsyncs behind its \
                      last checkpoint\n"
                    .to_string()
            }
        };
    }
    if *named > 0 {
        text += &format!("{named} names of damaged directories are there again\n");
    }
    if *found > 0 {
        text += &format!("{found} files and directories have names in /lost+found now\n");
    }
    if before.found > 0 && after.found > 0 && args.repair {
        after.problems.iter().for_each(|problem| text += &format!("still: {problem}\n"));
    }
    text += &format!(
        "{} files, {} directories, {} nodes, {} pages of contents: {}\n",
        after.files,
        after.directories,
        after.nodes,
        after.pages,
        match (after.found, before.found) {
            (0, 0) if args.scrub => format!("nothing wrong found; {}", scrubbed(after)),
            (0, 0) => "nothing wrong found; contents of files are not read".to_string(),
            (0, 1) => "1 problem is mended".to_string(),
            (0, n) => format!("{n} problems are mended"),
            (1, _) => "1 problem".to_string(),
            (n, _) => format!("{n} problems"),
        }
    );
    output::done(text)?;
    Ok(if after.found == 0 { Ending::Good } else { Ending::Bad })
}

/// What a scrub has looked at.
fn scrubbed(report: &Report) -> String {
    let pages = report.contents_read;
    match report.data_checksums {
        true => format!("{pages} pages of files match their checksums"),
        false => format!("{pages} pages of files can be read; they have no checksums"),
    }
}

pub(crate) fn dump(args: &Dump) -> Result<Ending> {
    let what = What::parse(&args.what).map_err(anyhow::Error::msg)?;
    output::done(files::dump(&args.drive, args.target.as_deref(), what)?)
}
