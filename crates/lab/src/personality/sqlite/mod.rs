//! Mobibench's SQLite mode: rows of databases are read and updated at random, by a real SQLite.
//!
//! Owns: its numbers ([`Sqlite`]), what a thread does next, what SQLite asks of the file system,
//! the check of the databases at the end. Promises: each thread has a database of its own and one
//! connection, as the program has it; a call is a transaction, durable as `synchronous` says; every
//! row that is read is compared with what was committed; what SQLite can't do says the file, the
//! statement and the cause. Never: charges for what SQLite computes: in virtual time a call costs
//! what its files cost, and `host.submit`.
//!
//! `client.rs` has the connection, `vfs.rs` its way to files, `baton.rs` the thread that it is on.
//! In memory a connection has 2 MB of pages (SQLite's default `cache_size`), its stack and its WAL
//! index; of each row there are 16 bytes to compare with.

mod baton;
mod client;
mod vfs;

use super::blocks::Blocks;
use super::{Bench, CallKind, End, FILE, Job, now};
use baton::{Answer, Ask, FileKind, Session};
use client::{Command, Failure};
use flashlane_base::{Bytes, Ns, Rng, mix64, mutant};
use flashlane_parafs::{FsError, New, Nid};
use flashlane_rt::Cx;
use libsqlite3_sys as ffi;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};

/// SQLite's words for its rollback journal or log, in small letters.
pub const JOURNAL_MODES: [(&str, &str); 6] = [
    ("delete", "delete"),
    ("truncate", "truncate"),
    ("persist", "persist"),
    ("wal", "wal"),
    ("memory", "memory"),
    ("off", "off"),
];
/// SQLite's words for when it waits for the medium.
pub const SYNCHRONOUS: [(&str, &str); 4] =
    [("off", "off"), ("normal", "normal"), ("full", "full"), ("extra", "extra")];
/// As in Mobibench: each has a thread of the system, too.
pub const THREADS_MAX: u64 = 100;
/// Of a row's value: Mobibench's text has 100.
const VALUE: usize = 104;
/// Bytes of a row beside its value, in a page, at most: its length, key and types, and its place.
const ROW_HEAD: u64 = 16;
/// Rows of a transaction while databases are made, and rows that are compared at a time.
const AT_ONCE: u64 = 500;
/// Pages of a WAL when SQLite writes them back (its default `wal_autocheckpoint`), and as many for
/// the last transactions before it is.
const WAL_PAGES: u64 = 1_000 + 200;

const CREATE: &str = "CREATE TABLE tblMyList (id INTEGER PRIMARY KEY, Value BLOB NOT NULL)";
const INSERT: &str = "INSERT INTO tblMyList (id, Value) VALUES (?1, ?2)";
const UPDATE: &str = "UPDATE tblMyList SET Value = ?2 WHERE id = ?1";
const SELECT: &str = "SELECT id, Value FROM tblMyList WHERE id = ?1";
const SELECT_FROM: &str = "SELECT id, Value FROM tblMyList WHERE id >= ?1 ORDER BY id LIMIT 500";
const INTEGRITY: &str = "PRAGMA integrity_check";

/// Its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sqlite {
    pub threads: u32,
    /// Of each database.
    pub rows: u64,
    /// Of a page of SQLite's.
    pub io: Bytes,
    /// Percent of the calls that read.
    pub read_percent: u64,
    pub journal_mode: &'static str,
    pub synchronous: &'static str,
}

impl Default for Sqlite {
    fn default() -> Sqlite {
        // ParaFS paper, Table 2: 4 KB, 10 threads, reads to writes 1 to 99. It does not say how
        // many rows there are, nor which journal.
        Sqlite {
            threads: 10,
            rows: 10_000,
            io: Bytes::from_kib(4),
            read_percent: 1,
            journal_mode: "wal",
            synchronous: "full",
        }
    }
}

impl Sqlite {
    pub(super) fn first_pages(&self, page: u64) -> u64 {
        let io = self.io.get();
        let leaves = self.rows.div_ceil((io - 12) / (VALUE as u64 + ROW_HEAD));
        // Above the leaves there is a page for a few dozen of them, and the schema has one.
        let database = (leaves + leaves.div_ceil(20) + 3) * io;
        let of = |bytes: u64| 2 + bytes.div_ceil(page) + bytes.div_ceil(page).div_ceil(1_000);
        u64::from(self.threads) * (of(database) + of(WAL_PAGES * io)) + 2
    }

    pub(crate) fn described(&self) -> Value {
        let Sqlite { threads, rows, io, read_percent, journal_mode, synchronous } = *self;
        json!({
            "program": "mobibench",
            "mode": "sqlite",
            "nthreads": threads,
            "rows": rows,
            "iosize_bytes": io.get(),
            "read_percent": read_percent,
            "journal_mode": journal_mode,
            "synchronous": synchronous,
        })
    }

    fn settings(&self) -> Vec<String> {
        vec![
            format!("PRAGMA page_size = {}", self.io.get()),
            format!("PRAGMA journal_mode = {}", self.journal_mode),
            format!("PRAGMA synchronous = {}", self.synchronous),
            "PRAGMA temp_store = memory".into(),
        ]
    }
}

/// The databases, and what is in them.
pub(super) struct Set {
    settings: Sqlite,
    /// The folder that they are in.
    top: Cell<Nid>,
    rows: RefCell<Blocks>,
    /// Of each thread, while nobody uses it.
    sessions: RefCell<Vec<Option<Session>>>,
    /// What SQLite does to its files counts.
    counts: Cell<bool>,
}

impl Set {
    pub(super) fn new(settings: &Sqlite, seed: u64) -> Set {
        let count = settings.rows * u64::from(settings.threads);
        Set {
            settings: settings.clone(),
            top: Cell::default(),
            rows: Blocks::new(seed, VALUE, count as usize).into(),
            sessions: RefCell::default(),
            counts: Cell::new(false),
        }
    }

    /// A row's place among those of all databases.
    fn place(&self, number: u32, id: u64) -> usize {
        (u64::from(number) * self.settings.rows + id) as usize
    }

    /// What a row is to be from now on. The caller says how that ended.
    fn next(&self, number: u32, id: u64) -> (i64, Vec<u8>) {
        let mut value = vec![0; VALUE];
        self.rows.borrow_mut().begin_write(self.place(number, id), &mut value);
        (id as i64, value)
    }

    fn ended(&self, number: u32, id: u64, ok: bool) {
        self.rows.borrow_mut().end_write(self.place(number, id), ok);
    }
}

fn name_of(number: u32) -> String {
    format!("test.db{number}")
}

/// A run that serves a connection.
struct Server<'a> {
    bench: &'a Bench,
    cx: &'a Cx,
    job: &'a Job,
    set: &'a Set,
    number: u32,
}

type Rows = Vec<(i64, Vec<u8>)>;

impl Server<'_> {
    /// Has the connection do something, and does what it asks for meanwhile.
    async fn call(&self, command: Command) -> Result<Rows, FsError> {
        let taken = self.set.sessions.borrow_mut()[self.number as usize].take();
        let Some(mut session) = taken else { return Err(self.broken("", "its thread has ended")) };
        let mut cause = None;
        let mut asked = session.command(command);
        let reply = loop {
            let answer = match asked {
                Some(Ask::Done(reply)) => break reply,
                Some(ask) => self.serve(ask).await,
                None => return Err(self.broken("", "its thread has ended")),
            };
            let answer = answer.unwrap_or_else(|e| {
                let full = e == FsError::NoSpace;
                cause.get_or_insert(e);
                if full { Answer::Full } else { Answer::Failed }
            });
            asked = session.answer(answer);
        };
        self.set.sessions.borrow_mut()[self.number as usize] = Some(session);
        reply.map_err(|failure| self.failed(failure, cause))
    }

    /// What a failure is for the run: the file system's, or else something that must not be.
    fn failed(&self, failure: Failure, cause: Option<FsError>) -> FsError {
        let Failure { sql, code, says } = failure;
        match cause {
            Some(FsError::NoSpace) if code & 0xff == ffi::SQLITE_FULL => {
                let words = || format!("{}: {sql}: {says}", self.name());
                self.bench.refused.borrow_mut().get_or_insert_with(words);
                FsError::NoSpace
            }
            Some(FsError::Io(why)) => FsError::Io(format!("{}: {sql}: {says}: {why}", self.name())),
            Some(e @ FsError::ReadOnly(_)) => e,
            Some(e) => self.broken(&sql, &format!("{says} (code {code}): {e}")),
            None => self.broken(&sql, &format!("{says} (code {code})")),
        }
    }

    /// Nothing more is done: what SQLite says must not come about.
    fn broken(&self, sql: &str, why: &str) -> FsError {
        let what = format!("{}: {sql}: {why}", self.name());
        self.bench.over(End::Broken(what.clone()));
        FsError::Io(what)
    }

    fn name(&self) -> String {
        format!("{}/{}", self.job.asked.name, name_of(self.number))
    }

    fn inner(&self, kind: CallKind, bytes: u64, start: Ns) {
        if self.set.counts.get() {
            self.bench.inner(self.cx, kind, bytes, start);
        }
    }

    /// Does to files what SQLite asks for.
    async fn serve(&self, ask: Ask) -> Result<Answer, FsError> {
        let Server { bench, cx, job, set, .. } = *self;
        let (fs, top, start) = (&bench.fs, set.top.get(), cx.now());
        match ask {
            Ask::Open { name, create } => {
                let ino = match fs.lookup(cx, top, name.as_bytes()).await {
                    Err(FsError::NotFound) if create => {
                        let new = New { mode: FILE, ..New::default() };
                        fs.create(cx, top, name.as_bytes(), &new, now(cx)).await?.ino
                    }
                    found => found?.ino,
                };
                fs.open(cx, ino).await?;
                Ok(Answer::File(ino))
            }
            Ask::Close(ino) => fs.release(cx, ino).await.map(|()| Answer::Done),
            Ask::Delete { name, sync } => {
                match fs.unlink(cx, top, name.as_bytes(), now(cx)).await {
                    Err(FsError::NotFound) => return Ok(Answer::Missing),
                    done => done?,
                }
                if sync {
                    fs.fsync(cx, top, false).await?;
                    self.inner(CallKind::JournalSync, 0, start);
                }
                Ok(Answer::Done)
            }
            Ask::Exists { name } => match fs.lookup(cx, top, name.as_bytes()).await {
                Err(FsError::NotFound) => Ok(Answer::Missing),
                found => found.map(|_| Answer::Done),
            },
            Ask::Read { ino, kind, at, bytes } => {
                let mut room = vec![0; bytes];
                let n = fs.read(cx, ino, at, &mut room).await?;
                room.truncate(n);
                if kind == FileKind::Database {
                    self.inner(CallKind::PageRead, n as u64, start);
                }
                Ok(Answer::Bytes(room))
            }
            Ask::Write { ino, kind, at, data } => {
                let lost = kind == FileKind::Database && set.counts.get();
                if !(lost && mutant!("lab.sqlite-stale-page")) {
                    fs.write(cx, ino, at, &data, now(cx)).await?;
                }
                let bytes = data.len() as u64;
                bench.wrote(job, bytes);
                let database = kind == FileKind::Database;
                let kind = if database { CallKind::PageWrite } else { CallKind::JournalWrite };
                self.inner(kind, bytes, start);
                Ok(Answer::Done)
            }
            Ask::Truncate { ino, size } => {
                fs.truncate(cx, ino, size, now(cx)).await.map(|()| Answer::Done)
            }
            Ask::Sync { ino, kind, data_only } => {
                fs.fsync(cx, ino, data_only).await?;
                let database = kind == FileKind::Database;
                let kind = if database { CallKind::PageSync } else { CallKind::JournalSync };
                self.inner(kind, 0, start);
                Ok(Answer::Done)
            }
            Ask::Size(ino) => Ok(Answer::Number(fs.attributes(cx, ino).await?.size)),
            Ask::Sleep(microseconds) => {
                cx.sleep(Ns::from_us(microseconds)).await;
                Ok(Answer::Done)
            }
            Ask::Time => Ok(Answer::Number(cx.now().as_ns())),
            Ask::Done(_) => Ok(Answer::Failed),
        }
    }

    async fn open(&self) -> Result<(), FsError> {
        let settings = self.set.settings.settings();
        self.call(Command::Open { name: name_of(self.number), settings }).await.map(drop)
    }

    async fn query(&self, sql: &'static str, id: i64, value: Vec<u8>) -> Result<Rows, FsError> {
        self.call(Command::Query { sql, id, value }).await
    }

    async fn update(&self, id: u64) -> Result<u64, FsError> {
        let (key, value) = self.set.next(self.number, id);
        let done = self.query(UPDATE, key, value).await;
        self.set.ended(self.number, id, done.is_ok());
        done?;
        Ok(VALUE as u64)
    }

    async fn select(&self, id: u64) -> Result<u64, FsError> {
        let place = self.set.place(self.number, id);
        let oldest = self.set.rows.borrow().begin_read(place);
        let rows = self.query(SELECT, id as i64, Vec::new()).await?;
        self.compare(id, oldest, rows.first());
        Ok(VALUE as u64)
    }

    /// A row has to be what was committed.
    fn compare(&self, id: u64, oldest: u32, row: Option<&(i64, Vec<u8>)>) {
        let place = self.set.place(self.number, id);
        let good = row.is_some_and(|(found, value)| {
            *found == id as i64 && !self.set.rows.borrow().is_wrong(place, oldest, value)
        });
        if !good && !mutant!("lab.reads-not-compared") {
            self.mismatch(format!("row {id} is not what was committed"), 1);
        }
    }

    fn mismatch(&self, what: String, sectors: u64) {
        let what = format!("{}: {what}", self.name());
        self.bench.recorder.borrow_mut().mismatch(what, sectors);
    }

    /// Makes the database and its rows.
    async fn fill(&self) -> Result<(), FsError> {
        let Server { bench, set, number, .. } = *self;
        self.open().await?;
        self.query(CREATE, 0, Vec::new()).await?;
        let all = set.settings.rows;
        for from in (0..all).step_by(AT_ONCE as usize) {
            let ids = from..all.min(from + AT_ONCE);
            let rows = ids.clone().map(|id| set.next(number, id)).collect();
            let done = self.call(Command::Each { sql: INSERT, rows }).await;
            ids.for_each(|id| set.ended(number, id, done.is_ok()));
            done?;
            bench.look("files", Some(set.settings.threads.into()));
            if bench.is_over() {
                break;
            }
        }
        Ok(())
    }

    /// Looks at the database with a new connection: nothing comes from the old one's pages.
    async fn check(&self) -> Result<(), FsError> {
        let Server { bench, set, number, .. } = *self;
        self.open().await?;
        for (_, says) in self.query(INTEGRITY, 0, Vec::new()).await? {
            if says != b"ok" {
                let says = String::from_utf8_lossy(&says);
                self.mismatch(format!("{INTEGRITY}: {says}"), 1);
            }
        }
        for from in (0..set.settings.rows).step_by(AT_ONCE as usize) {
            bench.look("check", None);
            if bench.is_over() {
                break;
            }
            let rows = self.query(SELECT_FROM, from as i64, Vec::new()).await?;
            for (at, id) in (from..set.settings.rows.min(from + AT_ONCE)).enumerate() {
                let oldest = set.rows.borrow().begin_read(set.place(number, id));
                self.compare(id, oldest, rows.get(at));
            }
        }
        self.call(Command::Close).await.map(drop)
    }
}

/// Makes all databases.
pub(super) async fn prepare(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &Set,
    top: Nid,
) -> Result<(), FsError> {
    set.top.set(top);
    for number in 0..set.settings.threads {
        let session = Session::start(mix64(job.seed ^ u64::from(number)));
        let session = session.map_err(|e| FsError::Io(format!("a thread for SQLite: {e}")))?;
        set.sessions.borrow_mut().push(Some(session));
        Server { bench, cx, job, set, number }.fill().await?;
        if !bench.made(set.settings.threads.into()) {
            break;
        }
    }
    set.counts.set(true);
    Ok(())
}

/// Reads and updates rows.
pub(super) async fn thread(
    bench: &Bench,
    cx: &Cx,
    job: &Job,
    set: &Set,
    number: u32,
    end: Option<Ns>,
) {
    let server = Server { bench, cx, job, set, number };
    let mut rng = Rng::stream(job.seed, "sqlite", number.into());
    while bench.goes_on(cx, job, end) {
        let id = rng.below(set.settings.rows);
        match rng.below(100) < set.settings.read_percent {
            true => bench.record(cx, job, CallKind::Read, server.select(id)).await,
            false => bench.record(cx, job, CallKind::Update, server.update(id)).await,
        };
        cx.yield_now().await;
    }
}

/// Closes all connections, which writes their logs back, and looks at what is in the files then.
pub(super) async fn check(bench: &Bench, cx: &Cx, job: &Job, set: &Set) {
    set.counts.set(false);
    let server = |number| Server { bench, cx, job, set, number };
    let all = 0..set.settings.threads;
    // First all of them: a full file system gets room for the next one's log.
    for number in all.clone() {
        if let Err(e) = server(number).call(Command::Close).await {
            bench.over(End::of(e, "close"));
        }
    }
    for number in all.take_while(|_| !bench.is_over()) {
        if let Err(e) = server(number).check().await {
            bench.over(End::of(e, "checking a database"));
        }
    }
    set.sessions.borrow_mut().clear();
}
