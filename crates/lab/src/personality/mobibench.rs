//! Mobibench's file mode: random reads and writes of records of files that were written before.
//!
//! Owns: its numbers ([`Mobibench`]), where a thread reads or writes next. Promises: each thread has
//! a file of its own, as the program has it; every record of it is as likely as every other. Never:
//! makes a file longer, or waits for the medium where `fsync` is 0.
//!
//! The ParaFS paper's Figure 8 has it write twice the capacity: `written = "200%"`.

use super::blocks::Blocks;
use super::{Bench, CallKind, FILE, Job, PIECE, now};
use flashlane_base::{Bytes, Ns, Rng, mutant};
use flashlane_files::Kind;
use flashlane_parafs::{FsError, New, Nid};
use flashlane_rt::Cx;
use serde_json::{Value, json};
use std::cell::RefCell;

/// Its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mobibench {
    pub threads: u32,
    /// Of each thread's file: whole records.
    pub size: Bytes,
    /// Of a record.
    pub io: Bytes,
    /// Percent of the calls that read.
    pub read_percent: u64,
    /// A thread's file is synced after so many writes to it; 0 is never.
    pub fsync: u64,
}

impl Default for Mobibench {
    fn default() -> Mobibench {
        // ParaFS paper, Table 2: 4 KB, 10 threads, reads to writes 1 to 99. It does not say how
        // large the files of Figure 8 are.
        Mobibench {
            threads: 10,
            size: Bytes::from_mib(64),
            io: Bytes::from_kib(4),
            read_percent: 1,
            fsync: 0,
        }
    }
}

impl Mobibench {
    fn records(&self) -> u64 {
        self.size.get() / self.io.get()
    }

    pub(super) fn first_pages(&self, page: u64) -> u64 {
        let pages = self.size.get().div_ceil(page);
        // Each has an inode and what leads to its pages: a node for a thousand of them, nearly.
        u64::from(self.threads) * (2 + pages + pages.div_ceil(1_000)) + 2
    }

    pub(crate) fn described(&self) -> Value {
        let Mobibench { threads, size, io, read_percent, fsync } = *self;
        json!({
            "program": "mobibench",
            "nthreads": threads,
            "filesize_bytes": size.get(),
            "iosize_bytes": io.get(),
            "read_percent": read_percent,
            "fsync": fsync,
        })
    }
}

/// The files, and what is in them.
pub(super) struct Set {
    settings: Mobibench,
    files: Vec<Nid>,
    blocks: Blocks,
}

impl Set {
    pub(super) fn new(settings: &Mobibench, seed: u64) -> Set {
        let count = settings.records() * u64::from(settings.threads);
        let blocks = Blocks::new(seed, settings.io.get() as usize, count as usize);
        Set { settings: settings.clone(), files: Vec::new(), blocks }
    }
}

/// Writes all files from their beginnings to their ends.
pub(super) async fn prepare(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &RefCell<Set>,
    top: Nid,
) -> Result<(), FsError> {
    let settings = set.borrow().settings.clone();
    let io = settings.io.get() as usize;
    let at_once = (PIECE as usize / io).max(1);
    let mut room = Vec::new();
    for thread in 0..settings.threads {
        let name = thread.to_string();
        let new = New { mode: FILE, ..New::default() };
        let ino = bench.fs.create(cx, top, name.as_bytes(), &new, now(cx)).await?.ino;
        bench.fs.open(cx, ino).await?;
        job.places.borrow_mut().push((top, name));
        set.borrow_mut().files.push(ino);
        let records = settings.records() as usize;
        let first = thread as usize * records;
        for from in (0..records).step_by(at_once) {
            let n = at_once.min(records - from);
            room.resize(n * io, 0);
            for (i, record) in room.chunks_mut(io).enumerate() {
                set.borrow_mut().blocks.begin_write(first + from + i, record);
            }
            bench.fs.write(cx, ino, (from * io) as u64, &room, now(cx)).await?;
            (0..n).for_each(|i| set.borrow_mut().blocks.end_write(first + from + i, true));
            job.written.set(job.written.get() + room.len() as u64);
            bench.look("files", Some(settings.threads.into()));
            if bench.is_over() {
                return Ok(());
            }
        }
        bench.made(settings.threads.into());
    }
    Ok(())
}

/// Reads and writes records.
pub(super) async fn thread(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &RefCell<Set>,
    number: u32,
    end: Option<Ns>,
) {
    let settings = set.borrow().settings.clone();
    let Some(ino) = set.borrow().files.get(number as usize).copied() else { return };
    let worker = Worker { bench, cx, job, set, number, ino };
    let mut rng = Rng::stream(job.seed, "mobibench", number.into());
    let mut room = vec![0; settings.io.get() as usize];
    let mut writes = 0;
    while bench.goes_on(cx, job, end) {
        let record = rng.below(settings.records());
        if rng.below(100) < settings.read_percent {
            bench.record(cx, job, CallKind::Read, worker.read(record, &mut room)).await;
        } else {
            let write = worker.write(record, &mut room);
            writes += u64::from(bench.record(cx, job, CallKind::Write, write).await);
            let due = settings.fsync > 0 && writes >= settings.fsync;
            if due && bench.goes_on(cx, job, end) {
                writes = 0;
                let fsync = async { bench.fs.fsync(cx, ino, false).await.map(|()| 0) };
                bench.record(cx, job, Kind::Fsync.into(), fsync).await;
            }
        }
        cx.yield_now().await;
    }
    if let Err(e) = bench.fs.release(cx, ino).await {
        bench.over(super::End::of(e, "closefile"));
    }
}

/// A thread and its file.
struct Worker<'a> {
    bench: &'a Bench,
    cx: &'a Cx,
    job: &'a Job,
    set: &'a RefCell<Set>,
    number: u32,
    ino: Nid,
}

impl Worker<'_> {
    fn block(&self, record: u64) -> usize {
        (u64::from(self.number) * self.set.borrow().settings.records() + record) as usize
    }

    async fn write(&self, record: u64, room: &mut [u8]) -> Result<u64, FsError> {
        let Worker { bench, cx, set, .. } = *self;
        let block = self.block(record);
        set.borrow_mut().blocks.begin_write(block, room);
        let bytes = room.len() as u64;
        let done = bench.fs.write(cx, self.ino, record * bytes, room, now(cx)).await;
        set.borrow_mut().blocks.end_write(block, done.is_ok());
        done?;
        bench.wrote(self.job, bytes);
        Ok(bytes)
    }

    async fn read(&self, record: u64, room: &mut [u8]) -> Result<u64, FsError> {
        let Worker { bench, cx, set, number, .. } = *self;
        let block = self.block(record);
        let oldest = set.borrow().blocks.begin_read(block);
        let n = bench.fs.read(cx, self.ino, record * room.len() as u64, room).await?;
        let wrong = set.borrow().blocks.is_wrong(block, oldest, &room[..n]);
        if wrong && !mutant!("lab.reads-not-compared") {
            let what = format!("mobibench/{number}: record {record} is not what was written");
            bench.recorder.borrow_mut().mismatch(what, (room.len() as u64).div_ceil(4_096));
        }
        Ok(n as u64)
    }
}
