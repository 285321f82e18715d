//! A single file, as the kernel asks for it.
//!
//! Owns: which calls there are, their errors, what needs no device. Promises: runs on the thread that reads
//! requests, and waits for nothing but room in the queue; whatever is not known here is refused with the
//! error that callers expect. Never: touches the stack.

use super::queue::Queue;
use flashlane_base::{SECTOR_BYTES, mutant};
use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, INodeNo,
    InitFlags, KernelConfig, LockOwner, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty, ReplyOpen,
    ReplyStatfs, ReplyWrite, Request, TimeOrNow, WriteFlags,
};
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Longest read or write: what the kernel allows.
const BYTES_MAX: u32 = 1 << 20;
/// Requests that the kernel has under way for callers who do not wait, at most.
const BACKGROUND: u16 = 64;
/// Attributes are asked for whenever they are needed: the only sign that a server is gone.
const KEPT: Duration = Duration::ZERO;

/// What a caller of fallocate(2) may ask for.
const KEEP_SIZE: i32 = 0x01;
const PUNCH_HOLE: i32 = 0x02;
const ZERO_RANGE: i32 = 0x10;
/// A write is durable when it is answered (O_DSYNC, which O_SYNC includes).
const DSYNC: i32 = rustix::fs::OFlags::DSYNC.bits() as i32;

/// A request for the device. Its bytes lie inside it, and are at least one.
pub(super) enum Work {
    Read { offset: u64, bytes: u32, reply: ReplyData },
    Write { offset: u64, data: Vec<u8>, durable: bool, reply: ReplyWrite },
    Flush { reply: ReplyEmpty },
    Discard { offset: u64, bytes: u64, reply: ReplyEmpty },
    Zero { offset: u64, bytes: u64, reply: ReplyEmpty },
}

impl Work {
    pub(super) fn refuse(self, errno: Errno) {
        match self {
            Work::Read { reply, .. } => reply.error(errno),
            Work::Write { reply, .. } => reply.error(errno),
            Work::Flush { reply } => reply.error(errno),
            Work::Discard { reply, .. } | Work::Zero { reply, .. } => reply.error(errno),
        }
    }
}

pub(super) struct File {
    queue: Arc<Queue<Work>>,
    attributes: FileAttr,
    /// The mount refuses all changes of the file, those of root too.
    is_read_only: bool,
}

impl File {
    pub(super) fn new(
        queue: Arc<Queue<Work>>,
        bytes: u64,
        changed: SystemTime,
        is_read_only: bool,
    ) -> File {
        let attributes = FileAttr {
            ino: INodeNo::ROOT,
            size: bytes,
            blocks: bytes / 512,
            atime: changed,
            mtime: changed,
            ctime: changed,
            crtime: changed,
            kind: FileType::RegularFile,
            perm: if is_read_only { 0o400 } else { 0o600 },
            nlink: 1,
            uid: rustix::process::getuid().as_raw(),
            gid: rustix::process::getgid().as_raw(),
            rdev: 0,
            blksize: SECTOR_BYTES as u32,
            flags: 0,
        };
        File { queue, attributes, is_read_only }
    }

    /// How many of `bytes` from `offset` on the file has.
    fn inside(&self, offset: u64, bytes: u64) -> u64 {
        self.attributes.size.saturating_sub(offset).min(bytes)
    }

    /// Has the core do it. The door is closing where that takes nothing more.
    fn put(&self, work: Work, bytes: u64) {
        if let Err(work) = self.queue.put(work, bytes) {
            work.refuse(Errno::ENODEV);
        }
    }
}

impl Filesystem for File {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        for wish in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_BIG_WRITES,
            InitFlags::FUSE_MAX_PAGES,
        ] {
            // An old kernel has less, and is slower.
            let _ = config.add_capabilities(wish);
        }
        let refused = |what| io::Error::other(format!("the kernel does not take {what}"));
        config.set_max_write(BYTES_MAX).map_err(|_| refused("writes of 1 MiB"))?;
        config.set_max_background(BACKGROUND).map_err(|_| refused("64 requests"))?;
        Ok(())
    }

    fn getattr(&self, _: &Request, _: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&KEPT, &self.attributes);
    }

    /// It has the size that it has, as a disk does.
    fn setattr(
        &self,
        _: &Request,
        _: INodeNo,
        mode: Option<u32>,
        user: Option<u32>,
        group: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = size.is_some_and(|size| size != self.attributes.size)
            || mode.is_some()
            || user.is_some()
            || group.is_some();
        match changes {
            true => reply.error(Errno::EPERM),
            false => reply.attr(&KEPT, &self.attributes),
        }
    }

    /// The kernel keeps nothing of it: other doors write to the same device.
    fn open(&self, _: &Request, _: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let access = rustix::fs::OFlags::ACCMODE.bits() as i32;
        if self.is_read_only && flags.0 & access != rustix::fs::OFlags::RDONLY.bits() as i32 {
            return reply.error(Errno::EROFS);
        }
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        match self.inside(offset, bytes.into()) as u32 {
            0 => reply.data(&[]),
            bytes => self.put(Work::Read { offset, bytes, reply }, bytes.into()),
        }
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if self.is_read_only {
            return reply.error(Errno::EROFS);
        }
        let bytes = self.inside(offset, data.len() as u64);
        let data = data[..bytes as usize].to_vec();
        // The kernel sends no fsync behind a write to a file that it keeps nothing of.
        let durable = flags.0 & DSYNC != 0 && !mutant!("serve.dsync-ignored");
        match bytes {
            0 => reply.error(Errno::ENOSPC),
            _ => self.put(Work::Write { offset, data, durable, reply }, bytes),
        }
    }

    /// Somebody closes it.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        self.put(Work::Flush { reply }, 0);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        if mutant!("serve.fsync-at-once") {
            return reply.ok();
        }
        self.put(Work::Flush { reply }, 0);
    }

    fn fallocate(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        if self.is_read_only {
            return reply.error(Errno::EROFS);
        }
        let inside = self.inside(offset, bytes);
        match mode & !KEEP_SIZE {
            // Behind the end there is nothing but holes.
            PUNCH_HOLE if inside == 0 => reply.ok(),
            PUNCH_HOLE => self.put(Work::Discard { offset, bytes: inside, reply }, 0),
            0 | ZERO_RANGE if inside < bytes => reply.error(Errno::ENOSPC),
            // Every byte has its place already.
            0 => reply.ok(),
            ZERO_RANGE => self.put(Work::Zero { offset, bytes, reply }, 0),
            _ => reply.error(Errno::EOPNOTSUPP),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        // A loop device takes the size of a block for that of a discard.
        let block = SECTOR_BYTES as u32;
        reply.statfs(self.attributes.size / u64::from(block), 0, 0, 1, 0, block, 255, block);
    }
}
