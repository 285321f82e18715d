//! Whoever uses a file system and knows what each operation promises.
//!
//! Owns: operations ([`Op`]), what each does to what is known, the draw of one. Promises: an operation that
//! may be done is done, or there is no room; one that may not be done is refused; what is read is what was
//! written; what an operation will do is known before it begins, so that a cut in its middle finds both.
//! Never: has two operations under way.

use super::known::{BYTES, Found, HALF, Kind, Known, Versions, parts};
use super::world::Trouble;
use super::{DIR, FILE, LINK, new, now};
use crate::aim::Aim;
use flashlane_base::Rng;
use flashlane_ftl::block::BlockOp;
use flashlane_parafs::{Change, Fallocate, Fs, FsError, New, ROOT, Rename, Set};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;

/// Operations that are said of a failure: the last ones.
const SAID: usize = 16;
/// Names that a wide directory has.
const WIDE: u64 = 160;
/// A file that is as full of extended attributes as a page lets it.
const VALUE_MAX: u64 = 1200;

/// A file by a path, or by its number where it may have no name any more.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Of {
    Path(String),
    Ino(u32),
}

/// Something that a file system is asked for. Places are those of [`super::known`]: the second half of a
/// file really lies further behind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    Create(String),
    Mkdir(String),
    /// A symbolic link, and how long its target is.
    Symlink(String, usize),
    Link(Of, String),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, Rename),
    /// From a place on so many bytes of this value.
    Write(Of, usize, usize, u8),
    Truncate(Of, usize),
    /// From a place on so many bytes; whether the file keeps its size.
    Allocate(Of, usize, usize, Fallocate, bool),
    Mode(Of, u16),
    /// This attribute has so many bytes.
    SetXattr(Of, u8, usize),
    RemoveXattr(Of, u8),
    /// With `true` as `fdatasync(2)`.
    Fsync(Of, bool),
    Sync,
    Checkpoint,
    Open(Of),
    Release(u32),
    /// It is read, and compared.
    Read(Of),
    /// So many files, one after the other, named by a path and a number.
    Many(String, u64),
}

impl Op {
    /// It makes durable what was done before.
    fn is_durable(&self) -> bool {
        matches!(self, Op::Fsync(..) | Op::Sync | Op::Checkpoint)
    }
}

/// As a path is said: a long name by its start and how long it is.
struct Short<'a>(&'a str);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for name in self.0.split('/').skip(1) {
            match name.len() > 12 {
                true => write!(f, "/{}~{}", &name[..2], &name[name.len() - 3..])?,
                false => write!(f, "/{name}")?,
            }
        }
        Ok(())
    }
}

impl fmt::Display for Of {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Of::Path(path) => Short(path).fmt(f),
            Of::Ino(ino) => write!(f, "#{ino}"),
        }
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let s = |path: &'_ str| Short(path).to_string();
        match self {
            Op::Create(path) => write!(f, "create {}", s(path)),
            Op::Mkdir(path) => write!(f, "mkdir {}", s(path)),
            Op::Symlink(path, bytes) => write!(f, "symlink {} ({bytes})", s(path)),
            Op::Link(of, to) => write!(f, "link {of} {}", s(to)),
            Op::Unlink(path) => write!(f, "unlink {}", s(path)),
            Op::Rmdir(path) => write!(f, "rmdir {}", s(path)),
            Op::Rename(from, to, how) => write!(f, "rename {} {} {how:?}", s(from), s(to)),
            Op::Write(of, at, bytes, value) => write!(f, "write {of} {at}+{bytes} of {value}"),
            Op::Truncate(of, size) => write!(f, "truncate {of} {size}"),
            Op::Allocate(of, at, bytes, what, keep) => {
                let size = if *keep { " keep-size" } else { "" };
                write!(f, "fallocate {of} {at}+{bytes} {what:?}{size}")
            }
            Op::Mode(of, mode) => write!(f, "chmod {of} {mode:o}"),
            Op::SetXattr(of, which, bytes) => write!(f, "setxattr {of} {which} ({bytes})"),
            Op::RemoveXattr(of, which) => write!(f, "removexattr {of} {which}"),
            Op::Fsync(of, true) => write!(f, "fdatasync {of}"),
            Op::Fsync(of, false) => write!(f, "fsync {of}"),
            Op::Sync => write!(f, "sync"),
            Op::Checkpoint => write!(f, "checkpoint"),
            Op::Open(of) => write!(f, "open {of}"),
            Op::Release(ino) => write!(f, "release #{ino}"),
            Op::Read(of) => write!(f, "read {of}"),
            Op::Many(path, many) => write!(f, "create {}0 to {many}", s(path)),
        }
    }
}

/// Where a byte, or an end, of a file really is.
pub fn real(at: usize, gap: u64) -> u64 {
    at as u64 + if at > HALF { gap } else { 0 }
}

fn xattr(which: u8) -> Vec<u8> {
    format!("user.{which}").into_bytes()
}

/// What an operation has come to.
pub type Acted = Result<(), String>;

pub struct Actor {
    pub cx: Cx,
    pub fs: Arc<Fs>,
    pub known: Arc<Mutex<Known>>,
    /// How much further the second half of a file lies.
    pub gap: u64,
    /// Of ten operations so many are not about names.
    pub contents: u64,
    /// Names that there are in a directory.
    pub names: u64,
    /// Things go wrong on the medium: an operation may fail.
    pub faulty: bool,
    /// Who is told of operations.
    pub aim: Option<Arc<Aim>>,
    /// The last operations.
    pub said: Arc<Mutex<VecDeque<String>>>,
    /// It can't go on: the medium has failed in the middle of something.
    pub ends: bool,
    /// Whether an operation was refused, or had no room.
    pub refused: bool,
    read_only: bool,
    /// It does not know what a file holds.
    blind: bool,
    open: BTreeMap<u32, u32>,
    rng: Rng,
}

/// What a file holds, without what lies between its halves.
pub(crate) async fn halves(cx: &Cx, fs: &Arc<Fs>, ino: u32, gap: u64) -> Result<Vec<u8>, FsError> {
    let size = fs.attributes(cx, ino).await?.size;
    let size = if size > HALF as u64 { size.saturating_sub(gap) } else { size };
    let mut all = vec![0xee; size.min(BYTES as u64 + 1) as usize];
    let first = all.len().min(HALF);
    let (one, two) = all.split_at_mut(first);
    let mut read = fs.read(cx, ino, 0, one).await?;
    read += fs.read(cx, ino, HALF as u64 + gap, two).await?;
    if read != all.len() {
        return Err(FsError::Damaged(format!("{read} bytes of file {ino}, which has {size}")));
    }
    Ok(all)
}

/// What is there: names, and what each file holds.
///
/// # Errors
/// It can't be read, or a count of links is wrong.
pub async fn look(cx: &Cx, fs: &Arc<Fs>, gap: u64) -> Result<Found, Trouble> {
    let said = |e: FsError| Trouble::of("it can't be read", &e);
    let mut found = Found::default();
    found.kinds.insert(ROOT, Kind::Dir);
    let mut links: BTreeMap<u32, u32> = BTreeMap::from([(ROOT, 2)]);
    let mut waiting = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = waiting.pop() {
        let mut at = 0;
        loop {
            let some = fs.read_dir(cx, dir, at, 100).await.map_err(said)?;
            let Some(last) = some.last() else { break };
            at = last.next;
            for entry in some {
                let name = String::from_utf8(entry.name).map_err(|e| e.to_string())?;
                let (name, ino) = (format!("{path}/{name}"), entry.ino);
                let of = fs.attributes(cx, ino).await.map_err(said)?;
                if u16::from(entry.kind) != of.mode >> 12 {
                    let why = format!("{name} is of kind {}, mode {:o}", entry.kind, of.mode);
                    return Err(Trouble::Wrong(why));
                }
                if found.moment.names.insert(name.clone(), ino).is_some() {
                    return Err(Trouble::Wrong(format!("{name} is there twice")));
                }
                *links.entry(ino).or_insert(0) += 1;
                let kind = match of.mode >> 12 {
                    4 => Kind::Dir,
                    10 => Kind::Link(fs.read_link(cx, ino).await.map_err(said)?),
                    _ => Kind::File,
                };
                if kind == Kind::Dir {
                    *links.entry(ino).or_insert(0) += 1;
                    *links.entry(dir).or_insert(0) += 1;
                    waiting.push((name, ino));
                } else if kind == Kind::File && !found.files.contains_key(&ino) {
                    let content = halves(cx, fs, ino, gap).await.map_err(said)?;
                    found.files.insert(ino, (content, of.mode));
                }
                found.kinds.insert(ino, kind);
                for attr in fs.xattr_names(cx, ino).await.map_err(said)? {
                    let value = fs.xattr(cx, ino, &attr).await.map_err(said)?;
                    found.moment.xattrs.entry(ino).or_default().insert(attr, value);
                }
            }
        }
    }
    for (ino, links) in links {
        let is = fs.attributes(cx, ino).await.map_err(said)?.links;
        if is != links {
            let why = format!("{ino} has {is} links, and {links} names and directories");
            return Err(Trouble::Wrong(why));
        }
    }
    Ok(found)
}

impl Actor {
    /// `known` is of what is mounted.
    pub fn new(cx: &Cx, fs: Arc<Fs>, known: Arc<Mutex<Known>>, rng: Rng) -> Actor {
        Actor {
            cx: cx.clone(),
            fs,
            known,
            gap: 0,
            contents: 0,
            names: 8,
            faulty: false,
            aim: None,
            said: Arc::default(),
            ends: false,
            refused: false,
            read_only: false,
            blind: false,
            open: BTreeMap::new(),
            rng,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n.max(1))
    }

    fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// The number of a file.
    fn ino(&self, of: &Of) -> Option<u32> {
        match of {
            Of::Ino(ino) => Some(*ino),
            Of::Path(path) => self.known.lock().ino(path),
        }
    }

    /// One that may be written to: a file of which the number is known.
    fn file(&self, of: &Of) -> Option<u32> {
        self.ino(of).filter(|ino| self.known.lock().is_file(*ino))
    }

    /// The directory of a path, if it is one, and the name in it.
    fn place(&self, path: &str) -> Option<(u32, Vec<u8>)> {
        let (dir, name) = parts(path);
        let known = self.known.lock();
        let dir = known.ino(dir).filter(|ino| known.is_dir(*ino))?;
        Some((dir, name.as_bytes().to_vec()))
    }

    /// What the file system says of an operation that may not be done.
    fn refused(&mut self, op: &Op, done: Result<(), FsError>) -> Acted {
        self.refused = true;
        match done {
            Err(FsError::Damaged(why)) => Err(format!("{op}: damaged: {why}")),
            Err(_) => Ok(()),
            Ok(()) => Err(format!("{op} was done, and may not be")),
        }
    }

    /// What it says of one that may be done: true if it was.
    fn told(&mut self, op: &Op, done: &Result<(), FsError>) -> Result<bool, String> {
        match done {
            Ok(()) => Ok(true),
            // What was taken has room.
            Err(FsError::NoSpace | FsError::AttributeSpace) if !op.is_durable() => {
                self.refused = true;
                Ok(false)
            }
            Err(e @ (FsError::Io(_) | FsError::ReadOnly(_))) if self.faulty => {
                self.ends = true;
                self.read_only |= matches!(e, FsError::ReadOnly(_));
                Ok(false)
            }
            Err(e) => Err(format!("{op}: {e}")),
        }
    }

    /// Does it, and tells who aims.
    ///
    /// # Errors
    /// The file system does not do what it should.
    pub async fn act(&mut self, op: &Op) -> Acted {
        {
            let mut said = self.said.lock();
            if said.len() == SAID {
                said.pop_front();
            }
            said.push_back(op.to_string());
        }
        self.refused = false;
        let asked = match op {
            op if op.is_durable() => BlockOp::Flush,
            Op::Write(..) | Op::Truncate(..) | Op::Allocate(..) => BlockOp::Write,
            Op::Read(_) => BlockOp::Read,
            _ => BlockOp::Discard,
        };
        let fua = matches!(op, Op::Sync | Op::Checkpoint);
        self.aim.iter().for_each(|aim| aim.host(&self.cx, asked, fua, false));
        self.apply(op).await?;
        // What was asked for is not done; what is known of it holds.
        let names = matches!(asked, BlockOp::Discard);
        self.ends &= names || self.read_only || self.blind;
        self.aim.iter().for_each(|aim| aim.host(&self.cx, asked, fua, true));
        Ok(())
    }

    async fn apply(&mut self, op: &Op) -> Acted {
        match op {
            Op::Create(path) => self.make(op, path, FILE, &[]).await,
            Op::Mkdir(path) => self.make(op, path, DIR, &[]).await,
            Op::Symlink(path, bytes) => self.make(op, path, LINK, &vec![b't'; *bytes]).await,
            Op::Link(of, to) => self.link(op, of, to).await,
            Op::Unlink(path) => self.unlink(op, path, false).await,
            Op::Rmdir(path) => self.unlink(op, path, true).await,
            Op::Rename(from, to, how) => self.rename(op, from, to, *how).await,
            Op::Write(of, at, bytes, value) => self.write(op, of, *at, *bytes, *value).await,
            Op::Truncate(of, size) => self.truncate(op, of, *size).await,
            Op::Allocate(of, at, bytes, what, keep) => {
                self.allocate(op, of, (*at, *bytes), *what, *keep).await
            }
            Op::Mode(of, mode) => self.mode(op, of, *mode).await,
            Op::SetXattr(of, which, bytes) => self.set_xattr(op, of, *which, Some(*bytes)).await,
            Op::RemoveXattr(of, which) => self.set_xattr(op, of, *which, None).await,
            Op::Fsync(of, data_only) => self.fsync(op, of, *data_only).await,
            Op::Sync => {
                let done = self.fs.sync(&self.cx).await;
                if self.told(op, &done)? {
                    self.known.lock().all_durable();
                }
                Ok(())
            }
            Op::Checkpoint => {
                let done = self.fs.checkpoint(&self.cx).await;
                if self.told(op, &done)? {
                    self.known.lock().checkpointed();
                }
                Ok(())
            }
            Op::Open(of) => {
                let Some(ino) = self.file(of) else { return Ok(()) };
                let done = self.fs.open(&self.cx, ino).await;
                if self.told(op, &done)? {
                    *self.open.entry(ino).or_insert(0) += 1;
                }
                Ok(())
            }
            Op::Release(ino) => {
                let Some(times) = self.open.get_mut(ino) else { return Ok(()) };
                *times -= 1;
                if *times == 0 {
                    self.open.remove(ino);
                }
                let done = self.fs.release(&self.cx, *ino).await;
                self.told(op, &done).map(drop)
            }
            Op::Read(of) => self.read(op, of).await,
            Op::Many(path, many) => {
                for i in 0..*many {
                    // Most of them are of middle length.
                    let path = format!("{path}{i:0>width$}", width = 3 + (i as usize * 7) % 60);
                    self.make(&Op::Create(path.clone()), &path, FILE, &[]).await?;
                    if self.ends || self.refused {
                        break;
                    }
                }
                Ok(())
            }
        }
    }

    async fn make(&mut self, op: &Op, path: &str, mode: u16, target: &[u8]) -> Acted {
        let (cx, fs, t) = (self.cx.clone(), self.fs.clone(), now(&self.cx));
        let Some((dir, name)) = self.place(path) else {
            self.refused = true;
            return Ok(());
        };
        let new = New { target: target.to_vec(), ..new(mode) };
        // What it is called is not known before: it may be there without having been
        // acknowledged, and only then.
        let made = fs.create(&cx, dir, &name, &new, t).await;
        if self.known.lock().ino(path).is_some() {
            return self.refused(op, made.map(drop));
        }
        if !self.told(op, &made.clone().map(drop))? {
            return Ok(());
        }
        let Ok(made) = made else { return Ok(()) };
        let mut known = self.known.lock();
        let kind = match mode {
            DIR => Kind::Dir,
            LINK => Kind::Link(target.to_vec()),
            _ => {
                known.files.insert(made.ino, Versions::new(mode));
                Kind::File
            }
        };
        known.kinds.insert(made.ino, kind);
        known.become_moment(|moment| {
            moment.names.insert(path.into(), made.ino);
            // Another file may have had the number.
            moment.xattrs.remove(&made.ino);
        });
        Ok(())
    }

    /// An operation on names has ended, that was known before it began.
    fn named(&mut self, op: &Op, done: Result<(), FsError>) -> Acted {
        if !self.told(op, &done)? && !self.ends {
            self.known.lock().take_back();
        }
        Ok(())
    }

    async fn link(&mut self, op: &Op, of: &Of, to: &str) -> Acted {
        let (cx, fs, t) = (self.cx.clone(), self.fs.clone(), now(&self.cx));
        let (Some(ino), Some((dir, name))) = (self.ino(of), self.place(to)) else {
            self.refused = true;
            return Ok(());
        };
        let may = {
            let known = self.known.lock();
            let named = known.names().values().any(|i| *i == ino);
            !known.is_dir(ino) && named && known.ino(to).is_none()
        };
        if !may {
            let done = fs.link(&cx, ino, dir, &name, t).await.map(drop);
            return self.refused(op, done);
        }
        self.known.lock().become_moment(|moment| {
            moment.names.insert(to.into(), ino);
        });
        let done = fs.link(&cx, ino, dir, &name, t).await;
        self.named(op, done.map(drop))
    }

    async fn unlink(&mut self, op: &Op, path: &str, rmdir: bool) -> Acted {
        let (cx, fs, t) = (self.cx.clone(), self.fs.clone(), now(&self.cx));
        let Some((dir, name)) = self.place(path) else {
            self.refused = true;
            return Ok(());
        };
        let may = {
            let known = self.known.lock();
            let is = known.ino(path).filter(|_| !path.is_empty());
            is.is_some_and(|ino| known.is_dir(ino) == rmdir) && !(rmdir && known.has_below(path))
        };
        if may {
            self.known.lock().become_moment(|moment| {
                moment.names.remove(path);
            });
        }
        let done = match rmdir {
            true => fs.rmdir(&cx, dir, &name, t).await,
            false => fs.unlink(&cx, dir, &name, t).await,
        };
        if may { self.named(op, done) } else { self.refused(op, done) }
    }

    async fn rename(&mut self, op: &Op, from: &str, to: &str, how: Rename) -> Acted {
        let (cx, fs, t) = (self.cx.clone(), self.fs.clone(), now(&self.cx));
        let (Some((dir, name)), Some((to_dir, to_name))) = (self.place(from), self.place(to))
        else {
            self.refused = true;
            return Ok(());
        };
        let (may, same) = {
            let known = self.known.lock();
            let (is, there) = (known.ino(from), known.ino(to));
            let dir = |ino: Option<u32>| ino.is_some_and(|ino| known.is_dir(ino));
            let below = |path: &str, of: &str| path.starts_with(&format!("{of}/"));
            let may = is.is_some()
                && !(dir(is) && below(to, from))
                && match (there, how) {
                    (None, how) => how != Rename::Exchange,
                    (Some(_), Rename::NoReplace) => false,
                    (Some(_), Rename::Exchange) => !(dir(there) && below(from, to)),
                    (Some(_), Rename::Replace) => {
                        there == is || dir(is) == dir(there) && !(dir(there) && known.has_below(to))
                    }
                };
            (may, is == there)
        };
        if may && !same {
            self.known.lock().become_moment(|moment| match how {
                Rename::Exchange => Known::exchanged(&mut moment.names, from, to),
                _ => {
                    moment.names.remove(to);
                    Known::moved(&mut moment.names, from, to);
                }
            });
        }
        let done = fs.rename(&cx, (dir, &name), (to_dir, &to_name), how, t).await;
        match (may, same) {
            (true, false) => self.named(op, done),
            (true, true) => self.told(op, &done).map(drop),
            _ => self.refused(op, done),
        }
    }

    /// A file becomes something, sooner or later.
    fn becomes(&self, ino: u32, change: impl FnOnce(&mut Vec<u8>)) {
        let mut known = self.known.lock();
        if let Some(file) = known.files.get_mut(&ino) {
            let mut content = file.now.clone();
            change(&mut content);
            file.becomes(content);
        }
    }

    /// What was done to a file has ended: where there was no room, what it is now is looked up.
    async fn filled(&mut self, op: &Op, ino: u32, done: Result<(), FsError>) -> Acted {
        if self.told(op, &done)? {
            return Ok(());
        }
        match halves(&self.cx, &self.fs, ino, self.gap).await {
            Ok(now) => self.becomes(ino, |content| *content = now),
            Err(e) => {
                // What a later fsync would make durable is not known.
                self.blind = true;
                self.told(op, &Err(e))?;
            }
        }
        Ok(())
    }

    /// A range that lies in one half: where it really is, and its bytes.
    fn range(&self, at: usize, bytes: usize) -> (u64, usize) {
        let end = if at < HALF { HALF } else { BYTES };
        let bytes = bytes.clamp(1, end - at);
        (at as u64 + if at >= HALF { self.gap } else { 0 }, bytes)
    }

    async fn write(&mut self, op: &Op, of: &Of, at: usize, bytes: usize, value: u8) -> Acted {
        let Some(ino) = self.file(of) else {
            self.refused = true;
            return Ok(());
        };
        let (place, bytes) = self.range(at, bytes);
        let data = vec![value; bytes];
        self.becomes(ino, |content| {
            content.resize(content.len().max(at + bytes), 0);
            content[at..at + bytes].copy_from_slice(&data);
        });
        let done = self.fs.write(&self.cx, ino, place, &data, now(&self.cx)).await;
        self.filled(op, ino, done).await
    }

    async fn truncate(&mut self, op: &Op, of: &Of, size: usize) -> Acted {
        let Some(ino) = self.file(of) else {
            self.refused = true;
            return Ok(());
        };
        self.becomes(ino, |content| content.resize(size, 0));
        let done = self.fs.truncate(&self.cx, ino, real(size, self.gap), now(&self.cx)).await;
        self.filled(op, ino, done).await
    }

    async fn allocate(
        &mut self,
        op: &Op,
        of: &Of,
        (at, bytes): (usize, usize),
        what: Fallocate,
        keep: bool,
    ) -> Acted {
        let Some(ino) = self.file(of) else {
            self.refused = true;
            return Ok(());
        };
        let keep = keep || what == Fallocate::Punch;
        let (place, bytes) = self.range(at, bytes);
        // It is done in two steps: zeros, then the size.
        self.becomes(ino, |content| {
            let end = content.len().min(at + bytes);
            if what != Fallocate::Keep && at < end {
                content[at..end].fill(0);
            }
        });
        if !keep {
            self.becomes(ino, |content| content.resize(content.len().max(at + bytes), 0));
        }
        let range = (place, bytes as u64);
        let done = self.fs.fallocate(&self.cx, ino, range, what, keep, now(&self.cx)).await;
        self.filled(op, ino, done).await
    }

    async fn mode(&mut self, op: &Op, of: &Of, mode: u16) -> Acted {
        let Some(ino) = self.file(of) else {
            self.refused = true;
            return Ok(());
        };
        let mode = FILE & 0o170_000 | mode & 0o7_777;
        if let Some(file) = self.known.lock().files.get_mut(&ino) {
            file.is_given(mode);
        }
        let change = Change { mode: Some(mode), ..Change::default() };
        let done = self.fs.change(&self.cx, ino, &change, now(&self.cx)).await;
        self.told(op, &done.map(drop))?;
        if self.refused
            && let Some(file) = self.known.lock().files.get_mut(&ino)
        {
            file.is_not_given();
        }
        Ok(())
    }

    async fn set_xattr(&mut self, op: &Op, of: &Of, which: u8, bytes: Option<usize>) -> Acted {
        let named = |ino: &u32| self.known.lock().names().values().any(|i| i == ino);
        let Some(ino) = self.ino(of).filter(named) else {
            self.refused = true;
            return Ok(());
        };
        let (cx, fs, t, name) = (self.cx.clone(), self.fs.clone(), now(&self.cx), xattr(which));
        let value = bytes.map(|bytes| vec![which ^ bytes as u8; bytes]);
        let has = {
            let known = self.known.lock();
            known.now().xattrs.get(&ino).is_some_and(|all| all.contains_key(&name))
        };
        if value.is_none() && !has {
            let done = fs.remove_xattr(&cx, ino, &name, t).await;
            return self.refused(op, done);
        }
        self.known.lock().become_moment(|moment| {
            let all = moment.xattrs.entry(ino).or_default();
            match &value {
                Some(value) => all.insert(name.clone(), value.clone()),
                None => all.remove(&name),
            };
        });
        let done = match value {
            Some(value) => fs.set_xattr(&cx, ino, (&name, &value), Set::Any, t).await,
            None => fs.remove_xattr(&cx, ino, &name, t).await,
        };
        self.named(op, done)
    }

    async fn fsync(&mut self, op: &Op, of: &Of, data_only: bool) -> Acted {
        let Some(ino) = self.ino(of) else {
            self.refused = true;
            return Ok(());
        };
        if self.known.lock().is_dir(ino) {
            // All names of it are durable, and with them all that there are.
            let done = self.fs.fsync(&self.cx, ino, data_only).await;
            if self.told(op, &done)? {
                self.known.lock().checkpointed();
            }
            return Ok(());
        }
        self.known.lock().begin_fsync(ino);
        let done = self.fs.fsync(&self.cx, ino, data_only).await;
        if self.told(op, &done)? {
            self.known.lock().end_fsync(ino, data_only);
        }
        Ok(())
    }

    async fn read(&mut self, op: &Op, of: &Of) -> Acted {
        let Some(ino) = self.file(of) else { return Ok(()) };
        let is = halves(&self.cx, &self.fs, ino, self.gap).await;
        if !self.told(op, &is.clone().map(drop))? {
            return Ok(());
        }
        let known = self.known.lock();
        let wanted = known.files.get(&ino).map(|file| &file.now);
        match is.as_ref().ok() == wanted {
            true => Ok(()),
            false => {
                let (is, wanted) = (is.unwrap_or_default(), wanted.cloned().unwrap_or_default());
                let at = is.iter().zip(&wanted).position(|(is, wanted)| is != wanted);
                let of = (is.len(), wanted.len(), at.map(|at| (at, is[at], wanted[at])));
                Err(format!(
                    "{op}: file {ino} is not what was written: {of:?} (bytes, wanted, where)"
                ))
            }
        }
    }

    fn pick(&mut self, wanted: impl Fn(&Known, u32) -> bool) -> Option<String> {
        let all: Vec<String> = {
            let known = self.known.lock();
            let all = known.names().iter().filter(|(_, ino)| wanted(&known, **ino));
            all.map(|(name, _)| name.clone()).collect()
        };
        let i = self.below(all.len() as u64) as usize;
        all.get(i).cloned()
    }

    /// A file, now and then one that is open and may have no name.
    fn pick_file(&mut self) -> Option<Of> {
        if self.below(6) == 0 && !self.open.is_empty() {
            let i = self.below(self.open.len() as u64) as usize;
            return self.open.keys().nth(i).map(|ino| Of::Ino(*ino));
        }
        self.pick(Known::is_file).map(Of::Path)
    }

    /// A name in some directory.
    fn path(&mut self) -> String {
        let dir = match self.below(2) {
            0 => String::new(),
            _ => self.pick(Known::is_dir).unwrap_or_default(),
        };
        let number = self.below(self.names);
        // Names of all lengths, where there are many.
        let length = if self.names > 8 { (number as usize * 37) % 180 } else { 0 };
        format!("{dir}/{number}{}", "x".repeat(length))
    }

    /// A piece of a file: most are small.
    fn draw_range(&mut self) -> (usize, usize) {
        let at = self.below(BYTES as u64 - 9000) as usize;
        let bytes = if self.below(3) == 0 { 9000 } else { 1 + self.below(600) };
        (at, bytes as usize)
    }

    /// Something to do.
    pub fn draw(&mut self) -> Option<Op> {
        let about = match self.below(10) < self.contents {
            true => 17 + self.below(15),
            false => self.below(38),
        };
        Some(match about {
            0..=4 => Op::Create(self.path()),
            5 => Op::Mkdir(self.path()),
            6 => {
                let length = self.below(300) as usize;
                Op::Symlink(self.path(), 1 + length)
            }
            7..=9 => {
                let path = self.path();
                let known = self.known.lock();
                match known.ino(&path).is_some_and(|ino| known.is_dir(ino)) {
                    true => Op::Rmdir(path),
                    false => Op::Unlink(path),
                }
            }
            10..=14 => {
                let how = [
                    Rename::Replace,
                    Rename::Replace,
                    Rename::Replace,
                    Rename::NoReplace,
                    Rename::Exchange,
                ];
                let how = self.one_of(&how);
                Op::Rename(self.path(), self.path(), how)
            }
            15 | 16 => Op::Link(Of::Path(self.pick(|k, ino| !k.is_dir(ino))?), self.path()),
            17..=20 => {
                let (of, (at, bytes)) = (self.pick_file()?, self.draw_range());
                let value = self.below(255) as u8 + 1;
                Op::Write(of, at, bytes, value)
            }
            21 => Op::Truncate(self.pick_file()?, self.below(BYTES as u64) as usize),
            22 | 23 => {
                let (of, (at, bytes)) = (self.pick_file()?, self.draw_range());
                let what = self.one_of(&[Fallocate::Keep, Fallocate::Punch, Fallocate::Zero]);
                Op::Allocate(of, at, bytes, what, self.below(2) == 0)
            }
            24..=28 => Op::Fsync(self.pick_file()?, self.below(2) == 0),
            29 => Op::Read(self.pick_file()?),
            30 => Op::Mode(self.pick_file()?, self.below(0o1000) as u16),
            31 => match self.below(3) {
                0 => Op::RemoveXattr(Of::Path(self.pick(|_, _| true)?), self.below(3) as u8),
                _ => {
                    let bytes = self.below(VALUE_MAX) as usize;
                    let of = Of::Path(self.pick(|_, _| true)?);
                    Op::SetXattr(of, self.below(3) as u8, bytes)
                }
            },
            32 => Op::Sync,
            33 => Op::Open(self.pick_file()?),
            34 => {
                let i = self.below(self.open.len() as u64) as usize;
                Op::Release(*self.open.keys().nth(i)?)
            }
            35 => Op::Fsync(Of::Path(self.pick(|_, _| true)?), false),
            36 if self.names > 8 => {
                let path = self.path();
                Op::Many(path, 1 + self.rng.below(WIDE))
            }
            _ => Op::Checkpoint,
        })
    }

    /// Draws an operation and does it.
    ///
    /// # Errors
    /// As [`Actor::act`].
    pub async fn step(&mut self) -> Acted {
        match self.draw() {
            Some(op) => self.act(&op).await,
            None => Ok(()),
        }
    }
}
