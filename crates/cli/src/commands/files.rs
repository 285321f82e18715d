//! `flashlane mkfs`, `mount`, `fsck`: ParaFS on a target of a drive.

use crate::args::{Fsck, Mkfs, MountFs};
use crate::watch::{Interrupt, Terminal};
use crate::{Ending, output};
use anyhow::{Context, Result, bail};
use flashlane_lab::files::{self, Making, Mounting, Recovered, Time, time_from};
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
    let Mkfs { drive: image, target, label, force } = args;
    if label.len() > 64 {
        bail!("--label: it has {} bytes, at most 64 will do", label.len());
    }
    let uuid = uuid();
    let making = Making { image, target, label, uuid, force, owner: owner() };
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
    let MountFs { drive: image, directory, target, read_only, null_latency } = args;
    let about = std::fs::metadata(&directory).with_context(|| directory.display().to_string())?;
    if !about.is_dir() {
        bail!("{}: this is no directory", directory.display());
    }
    let at = std::fs::canonicalize(&directory)?;
    let timing = !null_latency;
    let mounting = Mounting { image, target, at: at.clone(), timing, read_only, clock };
    let interrupt = Interrupt::listen()?;
    let monitor = Rc::new(Terminal::new(&interrupt, &at.display().to_string()));
    let say = |what: &dyn Display| output::remark(&format!("flashlane: {what}\n"));
    let ready = move |found: &Recovered| {
        if !found.clean {
            let Recovered { batches, torn_batches, orphans, .. } = found;
            say(&format_args!(
                "it was not unmounted: {batches} fsyncs behind the last checkpoint were found whole, \
                 {torn_batches} were cut short; {orphans} files without a name are deleted"
            ));
        }
        output::ready(&at.display());
    };
    files::mount(&mounting, monitor, ready, say)?;
    Ok(Ending::Good)
}

pub(crate) fn fsck(args: &Fsck) -> Result<Ending> {
    let (report, recovered) = files::fsck(&args.drive, args.target.as_deref())?;
    let mut text = String::new();
    if let Some(found) = recovered {
        text += &format!("it was not unmounted: {} fsyncs were found and kept\n", found.batches);
    }
    for problem in &report.problems {
        text += &format!("{problem}\n");
    }
    let more = report.found - report.problems.len() as u64;
    if more > 0 {
        text += &format!("and {more} more\n");
    }
    text += &format!(
        "{} files, {} directories, {} nodes, {} pages of contents: {}\n",
        report.files,
        report.directories,
        report.nodes,
        report.pages,
        match report.found {
            0 => "nothing wrong found".to_string(),
            1 => "1 problem".to_string(),
            n => format!("{n} problems"),
        }
    );
    output::done(text)?;
    Ok(if report.found == 0 { Ending::Good } else { Ending::Bad })
}
