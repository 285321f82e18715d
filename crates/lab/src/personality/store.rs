//! A B-tree of records in one file with a redo log in another, which writes as InnoDB does.
//!
//! Owns: the table file's pages of 16 KiB, the buffer pool, the redo log's ring, checkpoints, the
//! doublewrite file. Promises: what a transaction changed is durable in the redo log before it is
//! answered (`innodb_flush_log_at_trx_commit` of 1), those that wait share an fsync; no page is
//! written before the log of its changes; the ring never runs over what a page that is not written
//! needs; each page that is read must be the one that was written last. Never: recovers: a run ends
//! in one piece.
//!
//! An operation looks at pages in memory and does all or nothing at one instant; where it lacks a
//! page it reads that, and begins anew. So nothing has to be latched.

use super::{Bench, CallKind, FILE, Job, PIECE, now};
use flashlane_base::{Ns, crc32c, crc32c_append, mix64, mutant};
use flashlane_parafs::{FsError, New, Nid};
use flashlane_rt::{Cx, Notify};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const PAGE: usize = 16 << 10;
/// Number, level, count, lsn, next leaf, checksum.
const HEAD: usize = 40;
/// An entry of a page that is no leaf, and the head of a record.
const ENTRY: usize = 16;
/// The log is written in blocks of so many bytes; the first four hold checkpoints.
const BLOCK: u64 = 512;
const LOG_HEAD: u64 = 4 * BLOCK;
/// Pages that are written at a time: what InnoDB's doublewrite file has room for, about.
const BATCH: usize = 64;
pub(super) const DOUBLEWRITE: u64 = (BATCH * PAGE) as u64;
/// No page: the tree's first is 1.
const NONE: u32 = 0;

/// What a store may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) record: usize,
    /// Pages of the pool.
    pub(super) pool: usize,
    /// Bytes of the ring.
    pub(super) log: u64,
    pub(super) doublewrite: bool,
}

impl Shape {
    fn per_leaf(&self) -> usize {
        (PAGE - HEAD) / (ENTRY + self.record)
    }

    /// Pages of a tree of so many records, as it is made.
    pub(super) fn pages(&self, records: u64) -> u64 {
        let mut level = records.div_ceil(self.filled(0) as u64);
        let mut all = 1 + level;
        while level > 1 {
            level = level.div_ceil(self.filled(1) as u64);
            all += level;
        }
        all
    }

    /// Entries that a page gets at first: a sixteenth stays free, as InnoDB leaves it.
    fn filled(&self, level: u8) -> usize {
        (self.room(level) * 15 / 16).max(1)
    }

    fn room(&self, level: u8) -> usize {
        if level == 0 { self.per_leaf() } else { (PAGE - HEAD) / ENTRY }
    }
}

/// A page in memory: of a leaf the keys and the numbers of its records, else of its pages.
#[derive(Clone, Debug, Default)]
struct Page {
    level: u8,
    next: u32,
    entries: Vec<(u64, u32)>,
}

struct Frame {
    page: Page,
    /// The oldest change that is not in the table file, and the newest of all.
    oldest: Option<u64>,
    newest: u64,
    /// A copy is on its way; the first change since it was made.
    writing: bool,
    again: Option<u64>,
    used: u64,
}

#[derive(Default)]
struct State {
    frames: BTreeMap<u32, Frame>,
    /// Those that are in the table file as they are, by when they were used.
    clean: BTreeMap<u64, u32>,
    ticks: u64,
    /// The others, by the oldest change that is not in the table file.
    dirty: BTreeSet<(u64, u32)>,
    loading: BTreeSet<u32>,
    /// Of each page that is in the table file the lsn that it was written with.
    written: Vec<u64>,
    root: u32,
    /// How often each record was written.
    versions: Vec<u32>,
    /// Where the log ends; up to where it is durable; from where the buffer holds it.
    lsn: u64,
    durable: u64,
    buffered: u64,
    buffer: Vec<u8>,
    log_busy: bool,
    pages_busy: bool,
    checkpoint: u64,
    /// Records whose transaction is not answered yet.
    locked: BTreeSet<u32>,
    failed: Option<FsError>,
}

/// The store.
pub(super) struct Store {
    shape: Shape,
    s: RefCell<State>,
    changed: Notify,
    /// The table, the log, the doublewrite file.
    files: Cell<[Nid; 3]>,
}

/// The key of a record: YCSB hashes its numbers, too.
pub(super) fn key_of(n: u32) -> u64 {
    mix64(u64::from(n) + 1)
}

fn put(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

fn get(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]))
}

/// Of all of a page but its checksum's place.
fn checksum(bytes: &[u8]) -> u64 {
    crc32c_append(crc32c(&bytes[..32]), &bytes[HEAD..]).into()
}

fn fill_record(n: u32, version: u32, into: &mut [u8]) {
    let word = mix64(u64::from(n) << 32 | u64::from(version)).to_le_bytes();
    into.chunks_mut(8).for_each(|part| part.copy_from_slice(&word[..part.len()]));
}

impl State {
    fn encode(&self, shape: &Shape, number: u32, page: &Page, lsn: u64) -> Vec<u8> {
        let mut bytes = vec![0; PAGE];
        put(&mut bytes, 0, number.into());
        put(&mut bytes, 8, u64::from(page.level) << 32 | page.entries.len() as u64);
        put(&mut bytes, 16, lsn);
        put(&mut bytes, 24, page.next.into());
        let each = if page.level == 0 { ENTRY + shape.record } else { ENTRY };
        for (i, (key, of)) in page.entries.iter().enumerate() {
            let at = HEAD + i * each;
            put(&mut bytes, at, *key);
            let version = if page.level == 0 { self.versions[*of as usize] } else { 0 };
            put(&mut bytes, at + 8, u64::from(version) << 32 | u64::from(*of));
            if page.level == 0 {
                fill_record(*of, version, &mut bytes[at + ENTRY..at + each]);
            }
        }
        let sum = checksum(&bytes);
        put(&mut bytes, 32, sum);
        bytes
    }

    /// The page of these bytes, if they are what was written last.
    fn decode(&self, shape: &Shape, number: u32, bytes: &[u8]) -> Result<Page, String> {
        let (found, lsn) = (get(bytes, 0), get(bytes, 16));
        let wanted = self.written[number as usize];
        if get(bytes, 32) != checksum(bytes) {
            return Err("its checksum is wrong".into());
        }
        if (found, lsn) != (number.into(), wanted) {
            return Err(format!("it is page {found} of lsn {lsn}, and lsn {wanted} was written"));
        }
        let level = (get(bytes, 8) >> 32) as u8;
        let each = if level == 0 { ENTRY + shape.record } else { ENTRY };
        let mut page = Page { level, next: get(bytes, 24) as u32, entries: Vec::new() };
        let mut record = vec![0; shape.record];
        for i in 0..get(bytes, 8) as u32 as usize {
            let at = HEAD + i * each;
            let (key, of) = (get(bytes, at), get(bytes, at + 8));
            let (n, version) = (of as u32, (of >> 32) as u32);
            if level == 0 {
                fill_record(n, self.versions[n as usize], &mut record);
                if (key, version) != (key_of(n), self.versions[n as usize])
                    || record != bytes[at + ENTRY..at + each]
                {
                    return Err(format!("record {n} is not what was committed"));
                }
            }
            page.entries.push((key, n));
        }
        Ok(page)
    }

    fn touch(&mut self, number: u32) {
        self.ticks += 1;
        if let Some(frame) = self.frames.get_mut(&number) {
            self.clean.remove(&frame.used);
            frame.used = self.ticks;
            if frame.oldest.is_none() {
                self.clean.insert(self.ticks, number);
            }
        }
    }

    fn add(&mut self, number: u32, page: Page, lsn: u64) {
        let frame = Frame { page, oldest: None, newest: lsn, writing: false, again: None, used: 0 };
        self.frames.insert(number, frame);
        self.touch(number);
    }

    /// The pages from the root to the leaf that a key belongs to, or the one that is not in memory.
    fn path(&mut self, key: u64) -> Result<Vec<u32>, u32> {
        let mut path = vec![self.root];
        loop {
            let number = path[path.len() - 1];
            let Some(frame) = self.frames.get(&number) else { return Err(number) };
            let page = &frame.page;
            if page.level == 0 {
                break;
            }
            let at = page.entries.partition_point(|(first, _)| *first <= key).max(1) - 1;
            path.push(page.entries[at].1);
        }
        path.iter().for_each(|number| self.touch(*number));
        Ok(path)
    }

    /// A change of a page is in the log up to here.
    fn changed(&mut self, number: u32, from: u64) {
        let lsn = self.lsn;
        let frame = self.frames.get_mut(&number).expect("it is in memory");
        frame.newest = lsn;
        if frame.writing {
            frame.again.get_or_insert(from);
        }
        if frame.oldest.is_none() {
            frame.oldest = Some(from);
            self.clean.remove(&frame.used);
            self.dirty.insert((from, number));
        }
    }

    /// A copy of a page is in the table file.
    fn is_written(&mut self, copy: &Copy) {
        self.written[copy.number as usize] = copy.lsn;
        let frame = self.frames.get_mut(&copy.number).expect("it was kept");
        if let Some(lsn) = frame.oldest {
            self.dirty.remove(&(lsn, copy.number));
        }
        (frame.writing, frame.oldest) = (false, frame.again.take());
        match frame.oldest {
            Some(lsn) => {
                self.dirty.insert((lsn, copy.number));
            }
            None => {
                self.clean.insert(frame.used, copy.number);
            }
        }
    }

    /// Puts so many bytes for a record into the log.
    fn log(&mut self, n: u32, record: usize) {
        let at = self.buffer.len();
        self.buffer.resize(at + ENTRY + record, 0);
        put(&mut self.buffer, at, self.lsn);
        let version = self.versions[n as usize];
        put(&mut self.buffer, at + 8, u64::from(version) << 32 | u64::from(n));
        fill_record(n, version, &mut self.buffer[at + ENTRY..]);
        self.lsn += (ENTRY + record) as u64;
    }

    /// Puts an entry into the last page of a path; pages that are full are divided.
    fn insert(&mut self, shape: &Shape, mut path: Vec<u32>, mut entry: (u64, u32), from: u64) {
        while let Some(number) = path.pop() {
            let fresh = self.written.len() as u32;
            let frame = self.frames.get_mut(&number).expect("it is in memory");
            let page = &mut frame.page;
            let at = page.entries.partition_point(|(key, _)| *key < entry.0);
            page.entries.insert(at, entry);
            let (full, level) = (page.entries.len() > shape.room(page.level), page.level);
            if !full {
                return self.changed(number, from);
            }
            let half = page.entries.split_off(page.entries.len() / 2);
            let next = std::mem::replace(&mut page.next, if level == 0 { fresh } else { NONE });
            entry = (half[0].0, fresh);
            self.written.push(0);
            self.add(fresh, Page { level, next, entries: half }, 0);
            self.changed(number, from);
            self.changed(fresh, from);
            if path.is_empty() {
                let root = self.written.len() as u32;
                self.written.push(0);
                let entries = vec![(0, number), entry];
                self.add(root, Page { level: level + 1, next: NONE, entries }, 0);
                self.changed(root, from);
                self.root = root;
                return;
            }
        }
    }
}

/// A page of a batch.
struct Copy {
    number: u32,
    lsn: u64,
    bytes: Vec<u8>,
}

impl Store {
    pub(super) fn new(shape: Shape) -> Store {
        let (s, changed) = (RefCell::default(), Notify::new());
        Store { shape, s, changed, files: Cell::new([0; 3]) }
    }

    pub(super) fn records(&self) -> u32 {
        self.s.borrow().versions.len() as u32
    }

    /// Makes the three files, and a tree of so many records.
    pub(super) async fn make(
        &self,
        bench: &Bench,
        cx: &Cx,
        job: &Job,
        top: Nid,
        records: u32,
    ) -> Result<(), FsError> {
        let mut files = [0; 3];
        for (file, name) in files.iter_mut().zip(["table", "redo", "doublewrite"]) {
            let new = New { mode: FILE, ..New::default() };
            *file = bench.fs.create(cx, top, name.as_bytes(), &new, now(cx)).await?.ino;
            bench.fs.open(cx, *file).await?;
            job.places.borrow_mut().push((top, name.into()));
        }
        self.files.set(files);
        let zeros = vec![0; PIECE as usize];
        let double = if self.shape.doublewrite { DOUBLEWRITE } else { 0 };
        for (file, bytes) in [(files[1], LOG_HEAD + self.shape.log), (files[2], double)] {
            for at in (0..bytes).step_by(zeros.len()) {
                let n = (bytes - at).min(PIECE);
                bench.fs.write(cx, file, at, &zeros[..n as usize], now(cx)).await?;
                bench.wrote(job, n);
            }
        }
        let pages = self.plant(records);
        for (i, batch) in pages.chunks(BATCH).enumerate() {
            let images = {
                let s = self.s.borrow();
                let number = |at: usize| (1 + i * BATCH + at) as u32;
                let each = batch.iter().enumerate();
                let image = |(at, page)| s.encode(&self.shape, number(at), page, 0);
                each.map(image).collect::<Vec<_>>().concat()
            };
            let at = ((1 + i * BATCH) * PAGE) as u64;
            bench.fs.write(cx, files[0], at, &images, now(cx)).await?;
            bench.wrote(job, images.len() as u64);
            bench.look("files", Some(3));
            if bench.is_over() {
                return Ok(());
            }
        }
        bench.done.set(bench.done.get() + 3);
        Ok(())
    }

    /// The pages of a new tree, the first of which has number 1.
    fn plant(&self, records: u32) -> Vec<Page> {
        let mut entries: Vec<(u64, u32)> = (0..records).map(|n| (key_of(n), n)).collect();
        entries.sort_unstable();
        let mut pages: Vec<Page> = Vec::new();
        for level in 0.. {
            let first = pages.len();
            for part in entries.chunks(self.shape.filled(level)) {
                let next = if level == 0 { pages.len() as u32 + 2 } else { NONE };
                pages.push(Page { level, next, entries: part.to_vec() });
            }
            let last = pages.len();
            pages[last - 1].next = NONE;
            if last - first == 1 {
                break;
            }
            // What is smaller than all of them belongs to the first, too.
            let key = |at: usize| if at == first { 0 } else { pages[at].entries[0].0 };
            let of = |at: usize| (key(at), at as u32 + 1);
            entries = (first..last).map(of).collect();
        }
        let mut s = self.s.borrow_mut();
        s.versions = vec![1; records as usize];
        s.written = vec![0; pages.len() + 1];
        s.root = pages.len() as u32;
        pages
    }

    pub(super) async fn close(&self, bench: &Bench, cx: &Cx) -> Result<(), FsError> {
        for file in self.files.get() {
            bench.fs.release(cx, file).await?;
        }
        Ok(())
    }

    /// Waits until something holds, or the store has failed.
    async fn wait(&self, cx: &Cx, mut until: impl FnMut(&State) -> bool) -> Result<(), FsError> {
        let ready = || {
            let s = self.s.borrow();
            s.failed.is_some() || until(&s)
        };
        self.changed.wait(cx, ready).await;
        self.s.borrow().failed.clone().map_or(Ok(()), Err)
    }

    /// What failed ends the store: nobody waits for it any more.
    fn seen<T>(&self, cx: &Cx, result: Result<T, FsError>) -> Result<T, FsError> {
        if let Err(e) = &result {
            self.s.borrow_mut().failed.get_or_insert(e.clone());
            self.changed.wake(cx);
        }
        result
    }

    /// Reads a page into the pool.
    async fn bring(&self, bench: &Bench, cx: &Cx, job: &Job, number: u32) -> Result<(), FsError> {
        if self.s.borrow().loading.contains(&number) {
            return self.wait(cx, |s| !s.loading.contains(&number)).await;
        }
        self.s.borrow_mut().loading.insert(number);
        let read = self.read(bench, cx, job, number).await;
        self.s.borrow_mut().loading.remove(&number);
        self.changed.wake(cx);
        self.seen(cx, read)
    }

    async fn read(&self, bench: &Bench, cx: &Cx, job: &Job, number: u32) -> Result<(), FsError> {
        {
            let mut s = self.s.borrow_mut();
            while s.frames.len() + s.loading.len() > self.shape.pool {
                evict(&mut s);
            }
        }
        let start = cx.now();
        let mut bytes = vec![0; PAGE];
        let at = u64::from(number) * PAGE as u64;
        let n = bench.fs.read(cx, self.files.get()[0], at, &mut bytes).await?;
        bench.inner(cx, CallKind::PageRead, n as u64, start);
        let mut s = self.s.borrow_mut();
        match s.decode(&self.shape, number, &bytes) {
            Ok(page) => {
                let lsn = s.written[number as usize];
                s.add(number, page, lsn);
                Ok(())
            }
            Err(why) => {
                let what = format!("{}/table: page {number}: {why}", job.asked.name);
                bench.recorder.borrow_mut().mismatch(what, (PAGE / 4_096) as u64);
                Err(FsError::Io("a page of the table is not what was written".into()))
            }
        }
    }

    /// Reads a record.
    pub(super) async fn get(
        &self,
        bench: &Bench,
        cx: &Cx,
        job: &Job,
        n: u32,
    ) -> Result<u64, FsError> {
        self.scan(bench, cx, job, n, 1).await
    }

    /// Reads records from one on, in the order of keys.
    pub(super) async fn scan(
        &self,
        bench: &Bench,
        cx: &Cx,
        job: &Job,
        n: u32,
        count: usize,
    ) -> Result<u64, FsError> {
        let key = key_of(n);
        let (mut found, mut next) = (0, None);
        while found < count && next != Some(NONE) {
            let leaf = match next {
                None => self.s.borrow_mut().path(key).map(|path| path[path.len() - 1]),
                Some(leaf) => Ok(leaf),
            };
            let lacks = {
                let s = self.s.borrow();
                match leaf {
                    Ok(leaf) => match s.frames.get(&leaf) {
                        Some(frame) => {
                            let entries = &frame.page.entries;
                            let at = entries.partition_point(|(first, _)| *first < key);
                            if next.is_none() && entries.get(at) != Some(&(key, n)) {
                                let what = format!("{}/table: no record {n}", job.asked.name);
                                bench.recorder.borrow_mut().mismatch(what, 1);
                            }
                            found += (entries.len() - at).min(count - found);
                            next = Some(frame.page.next);
                            None
                        }
                        None => Some(leaf),
                    },
                    Err(number) => Some(number),
                }
            };
            if let Some(number) = lacks {
                self.bring(bench, cx, job, number).await?;
            }
        }
        Ok((found * self.shape.record) as u64)
    }

    /// Writes a record anew, or a new one, and commits that.
    pub(super) async fn put(
        &self,
        bench: &Bench,
        cx: &Cx,
        job: &Job,
        n: Option<u32>,
    ) -> Result<u64, FsError> {
        // A new record has its number, and nobody asks for it before it is there.
        let n = match n {
            Some(n) => {
                self.wait(cx, |s| !s.locked.contains(&n)).await?;
                n
            }
            None => u32::MAX,
        };
        if n != u32::MAX {
            self.s.borrow_mut().locked.insert(n);
        }
        let done = self.change(bench, cx, job, n).await;
        self.s.borrow_mut().locked.remove(&n);
        self.changed.wake(cx);
        self.seen(cx, done)?;
        Ok(self.shape.record as u64)
    }

    async fn change(&self, bench: &Bench, cx: &Cx, job: &Job, n: u32) -> Result<(), FsError> {
        let bytes = (ENTRY + self.shape.record) as u64;
        loop {
            let lacks = {
                let mut s = self.s.borrow_mut();
                // What the log has beyond the last checkpoint has to stay. Half of the pool is for
                // pages that are read, or threads would take them from each other for ever.
                if s.lsn + bytes - s.checkpoint > self.shape.log * 7 / 8
                    || s.dirty.len() >= self.shape.pool / 2
                {
                    None
                } else {
                    let new = n == u32::MAX;
                    let n = if new { s.versions.len() as u32 } else { n };
                    match s.path(key_of(n)) {
                        Err(number) => Some(number),
                        Ok(path) => {
                            let from = s.lsn;
                            match new {
                                true => s.versions.push(1),
                                false => s.versions[n as usize] += 1,
                            }
                            s.log(n, self.shape.record);
                            match new {
                                true => s.insert(&self.shape, path, (key_of(n), n), from),
                                false => s.changed(path[path.len() - 1], from),
                            }
                            break;
                        }
                    }
                }
            };
            match lacks {
                Some(number) => self.bring(bench, cx, job, number).await?,
                None => self.write_pages(bench, cx, job).await?,
            }
        }
        let lsn = self.s.borrow().lsn;
        self.commit(bench, cx, job, lsn).await
    }

    /// Has the log durable up to here: whoever comes while it is written shares the next fsync.
    async fn commit(&self, bench: &Bench, cx: &Cx, job: &Job, lsn: u64) -> Result<(), FsError> {
        loop {
            if self.s.borrow().durable >= lsn {
                return Ok(());
            }
            if self.s.borrow().log_busy {
                self.wait(cx, |s| !s.log_busy || s.durable >= lsn).await?;
                continue;
            }
            self.s.borrow_mut().log_busy = true;
            let done = self.write_log(bench, cx, job).await;
            self.s.borrow_mut().log_busy = false;
            self.changed.wake(cx);
            self.seen(cx, done)?;
        }
    }

    async fn write_log(&self, bench: &Bench, cx: &Cx, job: &Job) -> Result<(), FsError> {
        let (from, to, mut bytes) = {
            let s = self.s.borrow();
            (s.buffered, s.lsn, s.buffer.clone())
        };
        let file = self.files.get()[1];
        bytes.resize(bytes.len().next_multiple_of(BLOCK as usize), 0);
        let mut at = 0;
        while at < bytes.len() {
            let start = cx.now();
            let place = (from + at as u64) % self.shape.log;
            let n = (bytes.len() - at).min((self.shape.log - place) as usize);
            let part = &bytes[at..at + n];
            bench.fs.write(cx, file, LOG_HEAD + place, part, now(cx)).await?;
            bench.wrote(job, n as u64);
            bench.inner(cx, CallKind::RedoWrite, n as u64, start);
            at += n;
        }
        let start = cx.now();
        if !mutant!("lab.commit-without-fsync") {
            bench.fs.fsync(cx, file, true).await?;
            bench.inner(cx, CallKind::RedoSync, 0, start);
        }
        let mut s = self.s.borrow_mut();
        s.durable = to;
        // The last block is written again when it is fuller.
        let kept = to / BLOCK * BLOCK;
        s.buffer.drain(..(kept - from) as usize);
        s.buffered = kept;
        Ok(())
    }

    /// Writes the pages with the oldest changes. One at a time does that; whoever comes meanwhile
    /// waits for it.
    async fn write_pages(&self, bench: &Bench, cx: &Cx, job: &Job) -> Result<(), FsError> {
        if self.s.borrow().pages_busy {
            return self.wait(cx, |s| !s.pages_busy).await;
        }
        self.s.borrow_mut().pages_busy = true;
        let done = self.write_batch(bench, cx, job).await;
        self.s.borrow_mut().pages_busy = false;
        self.changed.wake(cx);
        self.seen(cx, done)
    }

    /// Copies of the pages that are to be written.
    fn copies(&self) -> Vec<Copy> {
        let mut s = self.s.borrow_mut();
        let chosen: Vec<u32> = s.dirty.iter().take(BATCH).map(|(_, number)| *number).collect();
        let mut copies = Vec::with_capacity(chosen.len());
        for number in chosen {
            let frame = &s.frames[&number];
            let (lsn, bytes) =
                (frame.newest, s.encode(&self.shape, number, &frame.page, frame.newest));
            copies.push(Copy { number, lsn, bytes });
            s.frames.get_mut(&number).expect("it is in memory").writing = true;
        }
        copies.sort_unstable_by_key(|copy| copy.number);
        copies
    }

    async fn write_batch(&self, bench: &Bench, cx: &Cx, job: &Job) -> Result<(), FsError> {
        let copies = self.copies();
        let lsn = copies.iter().map(|copy| copy.lsn).max().unwrap_or(0);
        if !mutant!("lab.page-before-log") {
            self.commit(bench, cx, job, lsn).await?;
        }
        let [table, log, double] = self.files.get();
        if self.shape.doublewrite && !copies.is_empty() {
            let images: Vec<&[u8]> = copies.iter().map(|copy| &copy.bytes[..]).collect();
            let all = images.concat();
            let start = cx.now();
            bench.fs.write(cx, double, 0, &all, now(cx)).await?;
            bench.fs.fsync(cx, double, true).await?;
            bench.wrote(job, all.len() as u64);
            bench.inner(cx, CallKind::DoubleWrite, all.len() as u64, start);
        }
        for copy in &copies {
            let start = cx.now();
            if copy.lsn > self.s.borrow().durable {
                let what = format!("{}: page {} before its log", job.asked.name, copy.number);
                bench.recorder.borrow_mut().mismatch(what, (PAGE / 4_096) as u64);
            }
            let at = u64::from(copy.number) * PAGE as u64;
            bench.fs.write(cx, table, at, &copy.bytes, now(cx)).await?;
            bench.wrote(job, PAGE as u64);
            bench.inner(cx, CallKind::PageWrite, PAGE as u64, start);
        }
        bench.fs.fsync(cx, table, false).await?;
        let mut head = vec![0; BLOCK as usize];
        let (at, checkpoint) = {
            let mut s = self.s.borrow_mut();
            for copy in &copies {
                s.is_written(copy);
            }
            let oldest = s.dirty.first().map_or(s.lsn, |(lsn, _)| *lsn);
            (s.checkpoint / BLOCK % 2, oldest)
        };
        put(&mut head, 0, checkpoint);
        let start = cx.now();
        bench.fs.write(cx, log, at * 2 * BLOCK, &head, now(cx)).await?;
        bench.fs.fsync(cx, log, true).await?;
        bench.wrote(job, BLOCK);
        bench.inner(cx, CallKind::RedoWrite, BLOCK, start);
        self.s.borrow_mut().checkpoint = checkpoint;
        Ok(())
    }

    /// Writes pages in the background, before somebody has to wait for that.
    pub(super) async fn clean(
        &self,
        bench: &Bench,
        cx: &Cx,
        job: &Job,
        goes_on: impl Fn() -> bool,
    ) -> Result<(), FsError> {
        while goes_on() && self.s.borrow().failed.is_none() {
            let due = {
                let s = self.s.borrow();
                // Before those who change something have to wait.
                s.lsn - s.checkpoint > self.shape.log / 2 || s.dirty.len() > self.shape.pool * 3 / 8
            };
            match due {
                true => self.write_pages(bench, cx, job).await?,
                false => cx.sleep(CLEAN_EVERY).await,
            }
        }
        Ok(())
    }
}

/// How often the cleaner looks.
const CLEAN_EVERY: Ns = Ns::from_ms(1);

/// Forgets the page that was used longest ago, of those that are in the table file.
fn evict(s: &mut State) {
    let oldest = s.clean.pop_first();
    let (_, number) =
        oldest.expect("half of the pool is clean, and there are fewer threads than that");
    s.frames.remove(&number);
}
