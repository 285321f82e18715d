//! A file system that is made for a run, and looked at when that has ended.
//!
//! Owns: [`Files`]; why there is none ([`FileError`]). Promises: it is checked behind its unmount, and what
//! was not as it should be is an error. Never: knows a program.

use super::FileJob;
use super::levels::{self, FILE_SYSTEM};
use crate::experiment::{FileSystem, Target};
use crate::room::{self, Reader, Tight};
use crate::run::{Probe, Watch};
use flashlane_base::{Bytes, Ns, SECTOR_BYTES};
use flashlane_parafs::{Fs, FsError, Layout, Medium, Report, Time, UsedPage, check_pages, mkfs};
use flashlane_rt::Cx;
use serde::Serialize;
use std::rc::Rc;
use std::sync::Arc;

/// Why files could not be worked on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A file system does not fit, for a reason that somebody who knows the device has to explain.
    #[error("{0}")]
    Tight(Tight),
    /// The same, with what would do.
    #[error("{0}")]
    NoRoom(String),
    #[error("{what}: {source}")]
    Fs { what: String, source: FsError },
    #[error(
        "the files of `{job}` take {wanted} at first, and the file system has room for {there}: make \
         them fewer or smaller ({keys}), or the device larger (`[device.geometry] chunks_per_pu`, or \
         `capacity` under [device])"
    )]
    Room { job: String, wanted: Bytes, there: Bytes, keys: &'static str },
    #[error(
        "{calls} calls of `{job}` took no time at all, so it would never end: let the host's work cost \
         something (`costs` under [run]), or end it by `ops`"
    )]
    NoTime { job: String, calls: u64 },
    #[error(
        "{calls} calls of `{job}` failed, and none has written anything meanwhile ({why}): make its \
         files fewer or smaller ({keys}), or the device larger"
    )]
    Full { job: String, calls: u64, why: String, keys: &'static str },
    #[error(
        "no thread of `{job}` has found a file for {since}, so it would never end: give it more files \
         (`nfiles`) than threads (`nthreads`)"
    )]
    NoFile { job: String, since: Ns },
    #[error(
        "{calls} calls of `{job}` in a row have written nothing, so it would never have `written` what it is \
         to: give it more files (`nfiles`) than threads (`nthreads`), or end it by `ops` or `runtime`"
    )]
    NoWrite { job: String, calls: u64 },
}

impl FileError {
    /// As whoever made this target is told it.
    pub(crate) fn on(self, target: &Target, like: &FileSystem, seed: u64) -> FileError {
        match self {
            FileError::Tight(tight) => {
                let (wanted, to) = (like.wanted(), (seed, Reader::Experiment));
                let says = || room::says(&tight, &target.stack, &wanted, to);
                FileError::NoRoom(room::meanwhile(says))
            }
            other => other,
        }
    }
}

pub(super) fn failed(what: &str) -> impl Fn(FsError) -> FileError {
    move |source| FileError::Fs { what: what.into(), source }
}

/// A mounted file system, made for a run.
pub(crate) struct Files {
    pub(super) fs: Arc<Fs>,
    medium: Medium,
}

impl Files {
    /// Makes a file system on a medium, and mounts it.
    ///
    /// # Errors
    /// The medium can't have one.
    pub(crate) async fn make(
        cx: &Cx,
        medium: Medium,
        like: &FileSystem,
    ) -> Result<Files, FileError> {
        let layout = room::plan(&medium, &like.wanted()).map_err(FileError::Tight)?;
        let made = mkfs(cx, medium.clone(), layout, &like.wanted().make(), now(cx)).await;
        made.map_err(failed("making a file system"))?;
        let mounted = Fs::mount(cx, medium.clone(), like.options).await;
        let (fs, _) = mounted.map_err(failed("mounting a new file system"))?;
        Ok(Files { fs, medium })
    }

    /// Sectors that files and nodes can have, and those that they have.
    pub(crate) fn sectors(&self) -> (u64, u64) {
        let space = self.fs.space();
        let sectors = self.page_sectors();
        (space.pages * sectors, (space.pages - space.free) * sectors)
    }

    pub(super) fn page_sectors(&self) -> u64 {
        u64::from(self.fs.space().page_bytes) / SECTOR_BYTES as u64
    }

    /// A look at the stack sees what the file system has written, too.
    pub(super) fn watch(&self, stack: &Watch) -> Watch {
        let (fs, page) = (self.fs.clone(), self.page_sectors());
        let probe = stack.probe.clone().map(|below| -> Probe {
            Rc::new(move |now| {
                let mut sample = below(now);
                sample.counted.push((FILE_SYSTEM, levels::counted(&fs.stats(), page)));
                sample
            })
        });
        Watch { probe, ..stack.clone() }
    }

    /// Whether the first files of all jobs have room, each with an inode, and folders.
    ///
    /// # Errors
    /// They have not.
    pub(crate) fn fits(&self, jobs: &[&FileJob], seed: u64) -> Result<(), FileError> {
        let space = self.fs.space();
        let page = u64::from(space.page_bytes);
        let mut free = space.free;
        for (index, job) in jobs.iter().enumerate() {
            let pages = job.first_pages(seed, index, page);
            if pages > free {
                let (wanted, there) = (Bytes::new(pages * page), Bytes::new(free * page));
                let (job, keys) = (job.name.clone(), job.program.keys_of_size());
                return Err(FileError::Room { job, wanted, there, keys });
            }
            free -= pages;
        }
        Ok(())
    }

    /// Looks through the tables in memory, unmounts, and checks what is on the medium then: what that has
    /// looked at, and what lies where.
    ///
    /// # Errors
    /// Something is not as it must be.
    pub(crate) async fn end(&self, cx: &Cx) -> Result<(Checked, Layout, Vec<UsedPage>), String> {
        let walked = self.fs.walk().map_err(|why| format!("the file system in memory: {why}"));
        self.fs.unmount(cx).await.map_err(|e| format!("unmounting the file system: {e}"))?;
        walked?;
        let report = check_pages(cx, &self.medium).await;
        let (report, layout, used) =
            report.map_err(|e| format!("checking the file system: {e}"))?;
        match (report.problems.first(), report.clean) {
            (Some(first), _) => {
                Err(format!("the file system has {} faults: {first}", report.found))
            }
            (None, false) => Err("the file system was unmounted, and does not say so".into()),
            (None, true) => Ok((Checked::of(&report), layout, used)),
        }
    }
}

/// Seconds since the run began; it begins in 1970.
pub(super) fn now(cx: &Cx) -> Time {
    let ns = cx.now().as_ns();
    Time { seconds: (ns / 1_000_000_000) as i64, nanos: (ns % 1_000_000_000) as u32 }
}

/// What the check at the end has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub files: u64,
    pub directories: u64,
    pub nodes: u64,
    pub pages: u64,
}

impl Checked {
    fn of(report: &Report) -> Checked {
        let Report { files, directories, nodes, pages, .. } = *report;
        Checked { files, directories, nodes, pages }
    }
}
