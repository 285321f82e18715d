//! The file system as a directory of this machine, by FUSE.
//!
//! Owns: the mount, what the kernel asks, in its terms. The way of a request: a thread of `fuser`
//! reads it ([`Calls`]) and does it at once, if nothing lacks. Else a port brings it to the core that
//! has the file system, and a task there does it and answers. Promises: the kernel keeps names,
//! attributes and pages, because only this mount changes them; it hands each `write(2)` on at once,
//! so that on a full file system this call fails, unless the mount asks for its writeback cache;
//! the kernel checks permissions and access control lists, but this module clears set-user and
//! set-group bits when the content or the owner of a file changes; an unmount loses nothing that
//! the kernel kept. Never: waits on a thread that reads, or reads a clock of its own.

use crate::ops::acl::is_acl;
use crate::ops::{Attributes, Change, Deleted, Fallocate, New, Rename, Seek, Set};
use crate::{Fs, FsError, Nid, ROOT, Time};
use flashlane_base::{Ns, mutant};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{Bell, Cx, Idle, Opened, Port};
use fuser::{
    BackgroundSession, BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, MountOption,
    Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, Session, SessionACL, TimeOrNow, WriteFlags,
};
use rustix::process::{Signal, getpid, kill_process};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::mem::ManuallyDrop;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, mpsc};
use std::time::{Duration, SystemTime};

/// How long the kernel may keep names and attributes: nobody else changes them.
const KEPT: Duration = Duration::from_secs(86_400);
/// In the number of a file that a listing can't read: no request about it is answered.
const NOBODYS: u64 = 1 << 32;
/// Longest read or write: what the kernel allows.
const BYTES_MAX: u32 = 1 << 20;
/// Requests of the kernel for callers who do not wait, at most.
const BACKGROUND: u16 = 64;
/// How often the end of a thread is looked for.
const LOOK_EVERY: Ns = Ns::from_ms(1);
/// Threads that read requests.
const READERS: usize = 2;
/// Entries that are read of a directory at a time.
const ENTRIES: usize = 256;
/// What `fallocate(2)` asks for.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
/// What `lseek(2)` asks for.
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;
/// The most files that [`Written`] lists; beyond that it takes every file for one of them.
const WRITTEN_MAX: usize = 1 << 16;
/// The access mode in the flags of `open(2)`: 0 if the file is opened only for reading.
const ACCESS_MODE: i32 = 0x03;
/// What `setxattr(2)` asks for.
const XATTR_CREATE: i32 = 1;
const XATTR_REPLACE: i32 = 2;
/// Ends a file system at once (`godown` of xfstests): the same number on ext4, XFS, F2FS and Btrfs.
const SHUTDOWN: u32 = 0x8004_587d;
/// The group of a directory is that of what is made in it.
const SETGID: u16 = 0o2000;
const DIRECTORY: u16 = 0o040_000;
const SYMLINK: u16 = 0o120_777;

/// What time it is.
pub type Clock = fn() -> Time;

type Done = Pin<Box<dyn Future<Output = ()>>>;
type Call = Box<dyn FnOnce(Arc<Fs>, Cx) -> Done + Send>;

/// Requests of the kernel.
#[derive(Default)]
struct Queue {
    /// Those that no task has begun.
    waiting: Mutex<Vec<Call>>,
    /// Those that are not answered.
    open: AtomicUsize,
    bell: Bell,
}

impl Queue {
    fn put(&self, call: Call) {
        self.open.fetch_add(1, Ordering::AcqRel);
        self.waiting.lock().push(call);
        self.bell.ring();
    }
}

thread_local! {
    /// What a thread that reads requests has read of a file.
    static READ: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// How a file system is mounted on a directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct How {
    pub read_only: bool,
    /// The kernel keeps writes in its cache and hands them on half a minute later, so small ones
    /// are faster. On a full file system `write` succeeds then; only `fsync` and `close` fail.
    pub writeback: bool,
    /// Set-user and set-group bits of programs have no effect (`nosuid` of mount(8)).
    pub nosuid: bool,
    /// Device nodes can't be opened (`nodev` of mount(8)).
    pub nodev: bool,
    /// Programs can't be executed (`noexec` of mount(8)).
    pub noexec: bool,
    /// Users other than the one who mounts it may use it, within the permissions of its files. If
    /// root mounts it, they always may.
    pub allow_other: bool,
}

/// What the kernel asks, on a thread that reads it.
struct Calls {
    how: How,
    fs: Arc<Fs>,
    queue: Arc<Queue>,
    clock: Clock,
    kernel: Kernel,
    /// The kernel enforces access control lists.
    has_acl: bool,
    written: Arc<Written>,
    /// Sends `SEEK_DATA` and `SEEK_HOLE` calls to the thread that first makes the kernel hand on
    /// the changed pages of the file ([`Kernel::hand_on`]).
    seeks: mpsc::Sender<(Nid, Call)>,
}

/// Files that were opened for writing since the mount: the kernel's cache may hold newer pages of
/// them than ParaFS has. After [`WRITTEN_MAX`] such files every file counts as one.
#[derive(Default)]
struct Written(Mutex<Ever>);

#[derive(Default)]
struct Ever {
    files: BTreeSet<Nid>,
    all: bool,
}

impl Written {
    fn note_open(&self, ino: Nid, flags: i32) {
        if flags & ACCESS_MODE == 0 {
            return;
        }
        let mut ever = self.0.lock();
        if ever.files.len() >= WRITTEN_MAX {
            *ever = Ever { all: true, ..Ever::default() };
        }
        if !ever.all {
            ever.files.insert(ino);
        }
    }

    fn may_have(&self, ino: Nid) -> bool {
        let ever = self.0.lock();
        ever.all || ever.files.contains(&ino)
    }
}

/// What the kernel is told unasked, once it is mounted.
#[derive(Clone, Default)]
struct Kernel(Arc<OnceLock<Notifier>>);

impl Kernel {
    /// It asks for the attributes of a file anew, as these have changed without its knowing: by an old
    /// mode it would run a file as its owner.
    fn forget_attributes(&self, ino: Nid) {
        if let Some(notifier) = self.0.get() {
            // An offset below 0 leaves pages alone. What fails here is a file that it does not know.
            let _ = notifier.inval_inode(INodeNo(ino.into()), -1, 0);
        }
    }

    /// Makes the kernel write its changed pages of a file to ParaFS and drop its cache of the file,
    /// and returns after that. The kernel's writes are requests that must be answered meanwhile,
    /// so a thread that answers requests must not call this.
    fn hand_on(&self, ino: Nid) {
        if let Some(notifier) = self.0.get() {
            // It fails if the kernel does not know the file, or could not write a page: `fsync`
            // and `close` report the latter.
            let _ = notifier.inval_inode(INodeNo(ino.into()), 0, 0);
        }
    }
}

/// Where requests arrive on the core.
struct Intake {
    queue: Arc<Queue>,
    fs: Arc<Fs>,
    came: Vec<Call>,
}

impl Port for Intake {
    fn serve(&mut self, cx: &Cx) {
        self.came.append(&mut self.queue.waiting.lock());
        for call in self.came.drain(..) {
            let (done, queue) = (call(self.fs.clone(), cx.clone()), self.queue.clone());
            cx.spawn(async move {
                done.await;
                queue.open.fetch_sub(1, Ordering::AcqRel);
            });
        }
    }

    fn bound(&self) -> Ns {
        Ns::MAX
    }

    fn idle(&mut self, _: &Cx) -> Idle {
        Idle::Waits
    }
}

/// A file system that is mounted on a directory.
pub struct Mounted {
    /// The threads that answer the kernel. This is never dropped: a drop unmounts whatever is
    /// mounted on the directory by then, also another file system.
    session: ManuallyDrop<BackgroundSession>,
    queue: Arc<Queue>,
    _port: Opened,
}

impl Mounted {
    /// Mounts `fs` on a directory.
    ///
    /// # Errors
    /// The kernel or `fusermount3` does not mount there.
    pub fn mount(
        cx: &Cx,
        fs: Arc<Fs>,
        at: &Path,
        source: &str,
        how: How,
        clock: Clock,
    ) -> io::Result<Mounted> {
        let queue = Arc::<Queue>::default();
        let kernel = Kernel::default();
        let (queued, told) = (queue.clone(), kernel.clone());
        let (seeks, asked) = mpsc::channel();
        let seeker = std::thread::Builder::new().name("parafs-seek".into());
        let (theirs, answers) = (kernel.clone(), queue.clone());
        seeker.spawn(move || {
            for (ino, call) in asked {
                theirs.hand_on(ino);
                answers.put(call);
            }
        })?;
        let written = Arc::default();
        let calls = Calls {
            how,
            fs: fs.clone(),
            queue: queued,
            clock,
            kernel: told,
            has_acl: false,
            written,
            seeks,
        };
        let mut config = Config::default();
        (config.n_threads, config.clone_fd) = (Some(READERS), true);
        config.mount_options = vec![
            MountOption::FSName(source.into()),
            // `MountOption::Subtype` is lost where root mounts without fusermount.
            MountOption::CUSTOM("subtype=parafs".into()),
            MountOption::DefaultPermissions,
            if how.read_only { MountOption::RO } else { MountOption::RW },
        ];
        // Root's are everybody's, and have what any other file system has.
        let is_root = rustix::process::geteuid().is_root();
        config.acl = if is_root || how.allow_other { SessionACL::All } else { SessionACL::Owner };
        if is_root {
            config.mount_options.extend([
                if how.nodev { MountOption::NoDev } else { MountOption::Dev },
                if how.nosuid { MountOption::NoSuid } else { MountOption::Suid },
            ]);
        }
        if how.noexec {
            config.mount_options.push(MountOption::NoExec);
        }
        let intake = Intake { queue: queue.clone(), fs, came: Vec::new() };
        let port = cx.open_port(&queue.bell, intake);
        let session = Session::new(calls, at, &config)?;
        let _ = kernel.0.set(session.notifier()); // it is empty
        let session = ManuallyDrop::new(session.spawn()?);
        Ok(Mounted { session, queue, _port: port })
    }

    /// Somebody has unmounted it.
    pub fn is_over(&self) -> bool {
        self.session.guard.is_finished()
    }

    /// Runs `take_off`, which unmounts the file system and returns true if it did. Requests of the
    /// kernel are answered meanwhile. Returns true after the mount has ended, and false if
    /// `take_off` returned false (a file is open there): the file system stays mounted then.
    ///
    /// # Errors
    /// `take_off` failed, and the file system is still mounted.
    pub async fn unmount(
        &self,
        cx: &Cx,
        take_off: impl FnOnce() -> io::Result<bool> + Send + 'static,
    ) -> io::Result<bool> {
        if !self.is_over() {
            // The kernel hands on what it kept: this core must go on.
            let thread = std::thread::spawn(take_off);
            while !thread.is_finished() {
                cx.sleep(LOOK_EVERY).await;
            }
            let is_off = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            // Somebody else may have unmounted it meanwhile.
            if !self.is_over() && !is_off? {
                return Ok(false);
            }
        }
        while !self.is_over() {
            cx.sleep(LOOK_EVERY).await;
        }
        Ok(true)
    }

    /// Waits until everything is answered that was asked before it was over.
    pub async fn drained(&self, cx: &Cx) {
        while self.queue.open.load(Ordering::Acquire) > 0 {
            cx.sleep(LOOK_EVERY).await;
        }
    }
}

fn time_of(time: Time) -> SystemTime {
    let nanos = Duration::from_nanos(time.nanos.into());
    let whole = Duration::from_secs(time.seconds.unsigned_abs());
    let base = match time.seconds < 0 {
        true => SystemTime::UNIX_EPOCH.checked_sub(whole),
        false => SystemTime::UNIX_EPOCH.checked_add(whole),
    };
    base.and_then(|base| base.checked_add(nanos)).unwrap_or(SystemTime::UNIX_EPOCH)
}

/// The same the other way round.
pub fn time_from(time: SystemTime) -> Time {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => Time { seconds: since.as_secs() as i64, nanos: since.subsec_nanos() },
        Err(before) => {
            let before = before.duration();
            let (seconds, nanos) = (before.as_secs() as i64, before.subsec_nanos());
            match nanos {
                0 => Time { seconds: -seconds, nanos: 0 },
                _ => Time { seconds: -seconds - 1, nanos: 1_000_000_000 - nanos },
            }
        }
    }
}

fn kind_of(kind: u8) -> FileType {
    match kind {
        4 => FileType::Directory,
        10 => FileType::Symlink,
        6 => FileType::BlockDevice,
        2 => FileType::CharDevice,
        1 => FileType::NamedPipe,
        12 => FileType::Socket,
        _ => FileType::RegularFile,
    }
}

fn attr(a: &Attributes, page_bytes: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(a.ino.into()),
        size: a.size,
        blocks: a.blocks,
        atime: time_of(a.atime),
        mtime: time_of(a.mtime),
        ctime: time_of(a.ctime),
        crtime: time_of(a.created),
        kind: kind_of((a.mode >> 12) as u8),
        perm: a.mode & 0o7777,
        nlink: a.links,
        uid: a.uid,
        gid: a.gid,
        rdev: a.rdev,
        blksize: page_bytes,
        flags: 0,
    }
}

fn errno(e: &FsError) -> Errno {
    Errno::from_i32(e.errno())
}

/// The number of a file: ours have 32 bits.
fn nid(ino: INodeNo) -> Nid {
    u32::try_from(u64::from(ino)).unwrap_or(0)
}

/// Answers that are an error or something else.
trait Answers {
    fn fails(self, errno: Errno);
}

macro_rules! answers {
    ($($reply:ty),*) => {
        $(impl Answers for $reply {
            fn fails(self, errno: Errno) {
                self.error(errno);
            }
        })*
    };
}

answers!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyDirectoryPlus,
    ReplyEmpty,
    ReplyEntry,
    ReplyLseek,
    ReplyOpen,
    ReplyWrite,
    ReplyXattr
);

impl Calls {
    /// Has a task on the core do something and answer.
    fn go<R, T, F, W>(
        &self,
        reply: R,
        work: W,
        answer: impl FnOnce(R, T, &Arc<Fs>) + Send + 'static,
    ) where
        R: Answers + Send + 'static,
        T: 'static,
        F: Future<Output = Result<T, FsError>> + 'static,
        W: FnOnce(Arc<Fs>, Cx) -> F + Send + 'static,
    {
        self.queue.put(call(reply, work, answer));
    }

    /// The same, where it can't be done at once on this thread.
    fn go_at_once<R, T, F, W>(
        &self,
        reply: R,
        at_once: impl FnOnce(&Fs) -> Option<Result<T, FsError>>,
        work: W,
        answer: impl FnOnce(R, T, &Arc<Fs>) + Send + 'static,
    ) where
        R: Answers + Send + 'static,
        T: 'static,
        F: Future<Output = Result<T, FsError>> + 'static,
        W: FnOnce(Arc<Fs>, Cx) -> F + Send + 'static,
    {
        match at_once(&self.fs) {
            Some(Ok(done)) => answer(reply, done, &self.fs),
            Some(Err(e)) => reply.fails(errno(&e)),
            None => self.go(reply, work, answer),
        }
    }

    /// Answers, when what is left of a deletion is done.
    fn end_delete(&self, reply: ReplyEmpty, what: Result<Deleted, FsError>) {
        match what {
            Ok(deleted) if deleted.is_done() => reply.ok(),
            Ok(left) => {
                let work = move |fs: Arc<Fs>, cx| async move { fs.end_delete(&cx, left).await };
                self.go(reply, work, done);
            }
            Err(e) => reply.error(errno(&e)),
        }
    }

    fn make(&self, dir: INodeNo, name: &OsStr, new: New, reply: ReplyEntry) {
        let (dir, now) = (nid(dir), (self.clock)());
        let (of, owned) = (new.clone(), name.as_bytes().to_vec());
        self.go_at_once(
            reply,
            |fs| {
                let new = in_group(fs.try_attributes(dir)?.ok()?, new);
                fs.try_create(dir, name.as_bytes(), &new, now, false)
            },
            move |fs, cx| async move { create(&fs, &cx, dir, &owned, of, now).await },
            entry,
        );
    }
}

/// Makes a [`Call`]: a task that runs `work` and passes its result to `answer`, or its error to
/// `reply`.
fn call<R, T, F, W>(reply: R, work: W, answer: impl FnOnce(R, T, &Arc<Fs>) + Send + 'static) -> Call
where
    R: Answers + Send + 'static,
    T: 'static,
    F: Future<Output = Result<T, FsError>> + 'static,
    W: FnOnce(Arc<Fs>, Cx) -> F + Send + 'static,
{
    Box::new(move |fs, cx| {
        Box::pin(async move {
            match work(fs.clone(), cx).await {
                Ok(done) => answer(reply, done, &fs),
                Err(e) => reply.fails(errno(&e)),
            }
        })
    })
}

fn done(reply: ReplyEmpty, (): (), _: &Arc<Fs>) {
    reply.ok();
}

fn attributes(reply: ReplyAttr, of: Attributes, fs: &Arc<Fs>) {
    reply.attr(&KEPT, &attr(&of, fs.page_bytes()));
}

fn entry(reply: ReplyEntry, of: Attributes, fs: &Arc<Fs>) {
    reply.entry(&KEPT, &attr(&of, fs.page_bytes()), generation(&of));
}

fn generation(a: &Attributes) -> Generation {
    Generation(a.generation.into())
}

/// Makes a file, with the group that its directory says.
async fn create(
    fs: &Arc<Fs>,
    cx: &Cx,
    dir: Nid,
    name: &[u8],
    new: New,
    now: Time,
) -> Result<Attributes, FsError> {
    let new = in_group(fs.attributes(cx, dir).await?, new);
    fs.create(cx, dir, name, &new, now).await
}

/// With the group that its directory says.
fn in_group(parent: Attributes, mut new: New) -> New {
    if parent.mode & SETGID != 0 {
        new.gid = parent.gid;
        if new.mode & 0o170_000 == DIRECTORY {
            new.mode |= SETGID;
        }
    }
    new
}

fn new(req: &Request, mode: u32, umask: u32) -> New {
    let (mode, umask) = (mode as u16, umask as u16);
    New { mode, umask, uid: req.uid(), gid: req.gid(), ..New::default() }
}

/// True if the caller belongs to this group, or is root. A request names only the first group of
/// the calling process; its other groups are read from `/proc`.
fn is_member(req: &Request, gid: u32) -> bool {
    let further = || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", req.pid())).ok()?;
        let groups = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
        Some(groups.split_whitespace().any(|group| group.parse() == Ok(gid)))
    };
    is_privileged(req) || req.gid() == gid || further().unwrap_or(false)
}

/// Who keeps set-user and set-group bits of a file that they cut or allocate for. The protocol says it
/// (`FATTR_KILL_SUIDGID`), and `fuser` hands that on for a write only.
fn is_privileged(req: &Request) -> bool {
    req.uid() == 0
}

impl Fs {
    pub(crate) fn page_bytes(&self) -> u32 {
        self.sb.layout.shape.page_bytes() as u32
    }
}

impl Filesystem for Calls {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wish in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            // Else it asks for security.capability before each write.
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            // A file handle (`open_by_handle_at(2)`, NFS) is valid after the kernel forgot the
            // file.
            InitFlags::FUSE_EXPORT_SUPPORT,
        ] {
            // An old kernel has less, and is slower.
            let _ = config.add_capabilities(wish);
        }
        if self.how.writeback {
            let _ = config.add_capabilities(InitFlags::FUSE_WRITEBACK_CACHE);
        }
        // The umask comes with a request: it does not count below a default access control list.
        let acl = InitFlags::FUSE_POSIX_ACL | InitFlags::FUSE_DONT_MASK;
        self.has_acl = config.add_capabilities(acl).is_ok();
        let refused = |what| io::Error::other(format!("the kernel does not take {what}"));
        config.set_max_write(BYTES_MAX).map_err(|_| refused("writes of 1 MiB"))?;
        config.set_max_background(BACKGROUND).map_err(|_| refused("64 requests"))?;
        Ok(())
    }

    fn lookup(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let dir = nid(dir);
        let owned = name.as_bytes().to_vec();
        self.go_at_once(
            reply,
            |fs| match name.as_bytes() {
                b"." | b".." => None,
                name => fs.try_lookup(dir, name),
            },
            move |fs, cx| async move {
                match &owned[..] {
                    b"." => fs.attributes(&cx, dir).await,
                    b".." => {
                        let parent = fs.parent(&cx, dir).await?;
                        fs.attributes(&cx, parent).await
                    }
                    name => fs.lookup(&cx, dir, name).await,
                }
            },
            entry,
        );
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let ino = nid(ino);
        self.go_at_once(
            reply,
            |fs| fs.try_attributes(ino),
            move |fs, cx| async move { fs.attributes(&cx, ino).await },
            attributes,
        );
    }

    fn setattr(
        &self,
        req: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let (ino, now) = (nid(ino), (self.clock)());
        let time = |time: Option<TimeOrNow>| {
            time.map(|time| match time {
                TimeOrNow::SpecificTime(time) => time_from(time),
                TimeOrNow::Now => now,
            })
        };
        let mode = mode.map(|mode| mode as u16);
        let (atime, mtime, ctime) = (time(atime), time(mtime), ctime.map(time_from));
        let drops_set_ids = uid.is_some() || gid.is_some() || size.is_some() && !is_privileged(req);
        let change = Change { mode, uid, gid, size, atime, mtime, ctime, drops_set_ids };
        // The kernel keeps times, and may bring those of a file that is deleted meanwhile.
        let only_times = Change { atime, mtime, ctime, ..Change::default() };
        let forgive = move |changed: Result<Attributes, FsError>| match changed {
            Err(FsError::Stale) if change == only_times => {
                Ok(Attributes { ino, ..Attributes::default() })
            }
            other => other,
        };
        self.go_at_once(
            reply,
            |fs| fs.try_change(ino, &change, now).map(forgive),
            move |fs, cx| async move { forgive(fs.change(&cx, ino, &change, now).await) },
            attributes,
        );
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        let ino = nid(ino);
        self.go(
            reply,
            move |fs, cx| async move { fs.read_link(&cx, ino).await },
            |reply, target, _| reply.data(&target),
        );
    }

    fn mknod(
        &self,
        req: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        self.make(dir, name, New { rdev, ..new(req, mode, umask) }, reply);
    }

    fn mkdir(
        &self,
        req: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        self.make(dir, name, new(req, u32::from(DIRECTORY) | mode & 0o7777, umask), reply);
    }

    fn symlink(&self, req: &Request, dir: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let target = target.as_os_str().as_bytes().to_vec();
        self.make(dir, name, New { target, ..new(req, SYMLINK.into(), 0) }, reply);
    }

    fn unlink(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (dir, now) = (nid(dir), (self.clock)());
        match self.fs.try_unlink(dir, name.as_bytes(), now) {
            Some(unlinked) => self.end_delete(reply, unlinked),
            None => {
                let name = name.as_bytes().to_vec();
                let work =
                    move |fs: Arc<Fs>, cx| async move { fs.unlink(&cx, dir, &name, now).await };
                self.go(reply, work, done);
            }
        }
    }

    fn rmdir(&self, _: &Request, dir: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (dir, name, now) = (nid(dir), name.as_bytes().to_vec(), (self.clock)());
        self.go(reply, move |fs, cx| async move { fs.rmdir(&cx, dir, &name, now).await }, done);
    }

    fn rename(
        &self,
        _: &Request,
        dir: INodeNo,
        name: &OsStr,
        to_dir: INodeNo,
        to_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let how = match flags {
            flags if flags.is_empty() => Rename::Replace,
            RenameFlags::RENAME_NOREPLACE => Rename::NoReplace,
            RenameFlags::RENAME_EXCHANGE => Rename::Exchange,
            _ => return reply.error(Errno::EINVAL),
        };
        let (dir, name, now) = (nid(dir), name.as_bytes().to_vec(), (self.clock)());
        let (to_dir, to_name) = (nid(to_dir), to_name.as_bytes().to_vec());
        self.go(
            reply,
            move |fs, cx| async move {
                fs.rename(&cx, (dir, &name), (to_dir, &to_name), how, now).await
            },
            done,
        );
    }

    fn link(&self, _: &Request, ino: INodeNo, dir: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (ino, dir, name) = (nid(ino), nid(dir), name.as_bytes().to_vec());
        let now = (self.clock)();
        self.go(
            reply,
            move |fs, cx| async move { fs.link(&cx, ino, dir, &name, now).await },
            entry,
        );
    }

    fn open(&self, _: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let ino = nid(ino);
        self.written.note_open(ino, flags.0);
        self.go_at_once(
            reply,
            |fs| fs.try_open(ino),
            move |fs, cx| async move { fs.open(&cx, ino).await },
            |reply, (), _| reply.opened(FileHandle(0), FopenFlags::FOPEN_KEEP_CACHE),
        );
    }

    fn create(
        &self,
        req: &Request,
        dir: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let (dir, now) = (nid(dir), (self.clock)());
        let new = new(req, mode, umask);
        let (of, owned) = (new.clone(), name.as_bytes().to_vec());
        let written = self.written.clone();
        self.go_at_once(
            reply,
            |fs| {
                let new = in_group(fs.try_attributes(dir)?.ok()?, new);
                fs.try_create(dir, name.as_bytes(), &new, now, true)
            },
            move |fs, cx| async move {
                let made = create(&fs, &cx, dir, &owned, of, now).await?;
                fs.open(&cx, made.ino).await?;
                Ok(made)
            },
            move |reply, made, fs| {
                written.note_open(made.ino, flags);
                let attr = attr(&made, fs.page_bytes());
                let flags = FopenFlags::FOPEN_KEEP_CACHE;
                reply.created(&KEPT, &attr, generation(&made), FileHandle(0), flags);
            },
        );
    }

    fn release(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        let ino = nid(ino);
        match self.fs.try_release(ino) {
            Some(released) => self.end_delete(reply, released),
            None => self.go(reply, move |fs, cx| async move { fs.release(&cx, ino).await }, done),
        }
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let ino = nid(ino);
        let bytes = bytes.min(BYTES_MAX) as usize;
        READ.with_borrow_mut(|into| {
            // It stays: fresh memory of 1 MiB costs as much as the read.
            into.resize(into.len().max(bytes), 0);
            match self.fs.try_read(ino, offset, &mut into[..bytes]) {
                Some(Ok(n)) => reply.data(&into[..n]),
                Some(Err(e)) => reply.error(errno(&e)),
                None => self.go(
                    reply,
                    move |fs, cx| async move {
                        let mut data = vec![0; bytes];
                        let n = fs.read(&cx, ino, offset, &mut data).await?;
                        data.truncate(n);
                        Ok(data)
                    },
                    |reply, data, _| reply.data(&data),
                ),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        flags: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // Where the kernel keeps writes it keeps their times, too, and hands them on by `setattr`.
        let is_kept = self.how.writeback && flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let ino = nid(ino);
        let now = (self.clock)();
        let time = (!is_kept).then_some(now);
        let drops = flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // A file with such bits is rare enough for the way through the core.
        if (!drops || self.fs.try_has_set_ids(ino) == Some(Ok(false)))
            && let Some(written) = self.fs.try_write(ino, offset, data, time)
        {
            return match written {
                Ok(()) => reply.written(data.len() as u32),
                Err(e) => reply.error(errno(&e)),
            };
        }
        let (data, kernel) = (data.to_vec(), self.kernel.clone());
        self.go(
            reply,
            move |fs, cx| async move {
                if drops && fs.drop_set_ids(&cx, ino, now).await? {
                    kernel.forget_attributes(ino);
                }
                fs.write(&cx, ino, offset, &data, time).await?;
                Ok(data.len() as u32)
            },
            |reply, n, _| reply.written(n),
        );
    }

    /// Somebody closes it: nothing is promised by that, and the kernel need not ask again.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, data_only: bool, reply: ReplyEmpty) {
        let ino = nid(ino);
        self.go(reply, move |fs, cx| async move { fs.fsync(&cx, ino, data_only).await }, done);
    }

    /// A directory that is open outlives its name: `fstat(2)` says 0 links then.
    fn opendir(&self, _: &Request, dir: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let opened = |reply: ReplyOpen, (), _: &Arc<Fs>| {
            reply.opened(FileHandle(0), FopenFlags::empty());
        };
        if mutant!("parafs.directory-unheld") {
            return reply.opened(FileHandle(0), FopenFlags::empty());
        }
        let dir = nid(dir);
        self.go_at_once(
            reply,
            |fs| fs.try_open(dir),
            move |fs, cx| async move { fs.open(&cx, dir).await },
            opened,
        );
    }

    fn releasedir(
        &self,
        req: &Request,
        dir: INodeNo,
        handle: FileHandle,
        flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.release(req, dir, handle, flags, None, false, reply);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.go(reply, move |fs, cx| async move { fs.checkpoint(&cx).await }, done);
    }

    fn readdir(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let dir = nid(dir);
        self.go(
            reply,
            move |fs, cx| async move { listed(&fs, &cx, dir, offset, false).await },
            |mut reply, found, _| {
                for Listed { next, name, attributes: a, .. } in found {
                    let kind = kind_of((a.mode >> 12) as u8);
                    let name = OsStr::from_bytes(&name);
                    if reply.add(INodeNo(a.ino.into()), next, kind, name) {
                        break;
                    }
                }
                reply.ok();
            },
        );
    }

    fn readdirplus(
        &self,
        _: &Request,
        dir: INodeNo,
        _: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        let dir = nid(dir);
        self.go(
            reply,
            move |fs, cx| async move { listed(&fs, &cx, dir, offset, true).await },
            |mut reply, found, fs| {
                for Listed { next, name, attributes: a, is_known } in found {
                    let name = OsStr::from_bytes(&name);
                    let mut of = attr(&a, fs.page_bytes());
                    // The kernel keeps this one for no time, then asks for the name and gets the
                    // error. It may have the file itself open: this is another number.
                    if !is_known {
                        of.ino = INodeNo(NOBODYS | u64::from(a.ino));
                    }
                    let kept = if is_known { &KEPT } else { &Duration::ZERO };
                    if reply.add(of.ino, next, name, kept, &of, generation(&a)) {
                        break;
                    }
                }
                reply.ok();
            },
        );
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let call: Call = Box::new(move |fs, _| {
            Box::pin(async move {
                let s = fs.space();
                let (pages, free, available, bytes) = (s.pages, s.free, s.available, s.page_bytes);
                reply.statfs(pages, free, available, s.files, s.files_free, bytes, 255, bytes);
            })
        });
        self.queue.put(call);
    }

    fn setxattr(
        &self,
        req: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let is_acl = is_acl(name.as_bytes());
        if is_acl && !self.has_acl {
            return reply.error(Errno::EOPNOTSUPP);
        }
        let how = match flags {
            0 => Set::Any,
            XATTR_CREATE => Set::Create,
            XATTR_REPLACE => Set::Replace,
            _ => return reply.error(Errno::EINVAL),
        };
        let (ino, name, value) = (nid(ino), name.as_bytes().to_vec(), value.to_vec());
        let now = (self.clock)();
        if is_acl {
            // The kernel says that only where it is asked to, and `fuser` can't ask it.
            let drops = match self.fs.try_attributes(ino) {
                Some(Ok(of)) => !is_member(req, of.gid),
                _ => !is_privileged(req),
            };
            let work = move |fs: Arc<Fs>, cx| async move {
                fs.set_acl(&cx, ino, (&name, &value), drops, now).await
            };
            return self.go(reply, work, done);
        }
        self.go(
            reply,
            move |fs, cx| async move { fs.set_xattr(&cx, ino, (&name, &value), how, now).await },
            done,
        );
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let (ino, owned) = (nid(ino), name.as_bytes().to_vec());
        self.go_at_once(
            reply,
            |fs| fs.try_xattr(ino, name.as_bytes()),
            move |fs, cx| async move { fs.xattr(&cx, ino, &owned).await },
            move |reply, value, _| sized(reply, &value, size),
        );
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let ino = nid(ino);
        self.go(
            reply,
            move |fs, cx| async move {
                let names = fs.xattr_names(&cx, ino).await?;
                Ok(names.into_iter().flat_map(|name| [name, vec![0]].concat()).collect::<Vec<_>>())
            },
            move |reply, names, _| sized(reply, &names, size),
        );
    }

    fn removexattr(&self, _: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (ino, name, now) = (nid(ino), name.as_bytes().to_vec(), (self.clock)());
        self.go(
            reply,
            move |fs, cx| async move { fs.remove_xattr(&cx, ino, &name, now).await },
            done,
        );
    }

    fn fallocate(
        &self,
        req: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let what = match mode & !KEEP_SIZE {
            0 => Fallocate::Keep,
            PUNCH_HOLE if mode & KEEP_SIZE != 0 => Fallocate::Punch,
            ZERO_RANGE => Fallocate::Zero,
            _ => return reply.error(Errno::EOPNOTSUPP),
        };
        let (ino, keep_size, now) = (nid(ino), mode & KEEP_SIZE != 0, (self.clock)());
        let (drops, kernel) = (!is_privileged(req), self.kernel.clone());
        self.go(
            reply,
            move |fs, cx| async move {
                if drops && fs.drop_set_ids(&cx, ino, now).await? {
                    kernel.forget_attributes(ino);
                }
                fs.fallocate(&cx, ino, (offset, bytes), what, keep_size, now).await
            },
            done,
        );
    }

    /// As `kill -9` of the server: what is not durable is lost. Only root may do it.
    fn ioctl(
        &self,
        req: &Request,
        _: INodeNo,
        _: FileHandle,
        _: IoctlFlags,
        command: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        match (command, is_privileged(req)) {
            (SHUTDOWN, true) => {
                // Whoever asked goes on with the answer: nothing changes any more by then.
                let _state = self.fs.lock();
                reply.ioctl(0, &[]);
                let _ = kill_process(getpid(), Signal::KILL);
            }
            (SHUTDOWN, false) => reply.error(Errno::EPERM),
            _ => reply.error(Errno::ENOTTY),
        }
    }

    fn lseek(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let what = match whence {
            SEEK_DATA => Seek::Data,
            SEEK_HOLE => Seek::Hole,
            _ => return reply.error(Errno::EINVAL),
        };
        let Ok(offset) = u64::try_from(offset) else { return reply.error(Errno::ENXIO) };
        let ino = nid(ino);
        let call = call(
            reply,
            move |fs: Arc<Fs>, cx| async move { fs.seek(&cx, ino, offset, what).await },
            |reply: ReplyLseek, found, _| match found {
                Some(at) => reply.offset(at as i64),
                None => reply.error(Errno::ENXIO),
            },
        );
        // The kernel asks without a look at its own pages: there may be data where we have a hole.
        let is_behind = self.written.may_have(ino) && !mutant!("parafs.seek-behind");
        match is_behind {
            true => self.seeks.send((ino, call)).unwrap_or_else(|e| self.queue.put(e.0.1)),
            false => self.queue.put(call),
        }
    }
}

/// A value, or how long it is where the caller has no room yet.
fn sized(reply: ReplyXattr, value: &[u8], size: u32) {
    match (size, value.len() as u32) {
        (0, length) => reply.size(length),
        (size, length) if length > size => reply.error(Errno::ERANGE),
        _ => reply.data(value),
    }
}

/// An entry of a directory, as a listing has it.
struct Listed {
    /// The position after it.
    next: u64,
    name: Vec<u8>,
    attributes: Attributes,
    /// The attributes are the file's. If not, its type and number are right.
    is_known: bool,
}

/// Entries of a directory after a position: `.` and `..` come first. With `wanted` the attributes of
/// each file are read. A file whose inode can't be read is listed, too.
async fn listed(
    fs: &Arc<Fs>,
    cx: &Cx,
    dir: Nid,
    offset: u64,
    wanted: bool,
) -> Result<Vec<Listed>, FsError> {
    let mut found = Vec::new();
    let here = fs.attributes(cx, dir).await?;
    let mut from = offset.saturating_sub(2);
    if offset < 1 {
        let (name, attributes) = (b".".to_vec(), here.clone());
        found.push(Listed { next: 1, name, attributes, is_known: true });
    }
    if offset < 2 {
        let parent = if dir == ROOT { ROOT } else { fs.parent(cx, dir).await.unwrap_or(ROOT) };
        let of = fs.attributes(cx, parent).await;
        let is_known = of.is_ok();
        let attributes = of.unwrap_or_else(|_| Attributes { ino: parent, ..here.clone() });
        found.push(Listed { next: 2, name: b"..".to_vec(), attributes, is_known });
    }
    loop {
        let entries = match fs.read_dir(cx, dir, from, ENTRIES).await {
            Ok(entries) => entries,
            Err(e) if found.is_empty() => return Err(e),
            Err(_) => return Ok(found), // the next call has the error
        };
        let Some(last) = entries.last() else { return Ok(found) };
        from = last.next;
        for entry in entries {
            let mut of = Attributes { ino: entry.ino, ..here.clone() };
            of.mode = u16::from(entry.kind) << 12;
            let mut is_known = false;
            if wanted {
                match fs.attributes(cx, entry.ino).await {
                    Ok(attributes) => (of, is_known) = (attributes, true),
                    // It was deleted while this was read.
                    Err(FsError::Stale | FsError::NotFound) => continue,
                    Err(e) if mutant!("parafs.listing-ends-at-bad-inodes") => return Err(e),
                    Err(_) => {}
                }
            }
            let (next, name) = (entry.next + 2, entry.name);
            found.push(Listed { next, name, attributes: of, is_known });
        }
        // An empty answer is the end of a directory: all of these may have been deleted.
        if !found.is_empty() {
            return Ok(found);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_go_there_and_back() {
        for (seconds, nanos) in [(0, 0), (1, 5), (-1, 999_999_999), (-3, 0), (1 << 33, 7)] {
            let time = Time { seconds, nanos };
            assert_eq!(time_from(time_of(time)), time);
        }
    }
}
