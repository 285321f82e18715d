//! What is known of a file beside its content, and of the file system.

use crate::error::{FsError, Result};
use crate::format::{Inode, Nid, Time};
use crate::fs::Fs;
use crate::nodes::{is_dir, is_file};
use crate::state::{State, Step};
use flashlane_base::mutant;
use flashlane_rt::Cx;
use std::sync::Arc;

/// Whoever executes the file becomes its user, or its group; the group may execute it.
const SET_USER: u16 = 0o4_000;
const SET_GROUP: u16 = 0o2_000;
const GROUP_EXECUTES: u16 = 0o0_010;

/// What `stat(2)` says of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    pub ino: Nid,
    /// Tells files apart that had the same number, one after the other.
    pub generation: u32,
    /// Type and permissions.
    pub mode: u16,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Bytes.
    pub size: u64,
    /// Blocks of 512 bytes: contents, nodes, and pages that room is kept for.
    pub blocks: u64,
    pub atime: Time,
    pub mtime: Time,
    pub ctime: Time,
    pub created: Time,
}

impl Attributes {
    fn of(ino: Nid, inode: &Inode, page_bytes: usize) -> Attributes {
        Attributes {
            ino,
            generation: inode.generation,
            mode: inode.mode,
            links: inode.links,
            uid: inode.uid,
            gid: inode.gid,
            rdev: inode.rdev,
            size: inode.size,
            blocks: inode.pages * (page_bytes as u64 / 512),
            atime: inode.atime,
            mtime: inode.mtime,
            ctime: inode.ctime,
            created: inode.created,
        }
    }
}

/// What `chmod(2)`, `chown(2)`, `truncate(2)`, `utimensat(2)` change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Permissions; the type stays.
    pub mode: Option<u16>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<Time>,
    pub mtime: Option<Time>,
    /// The new change time; without it the time of the call. A kernel with a writeback cache keeps
    /// change times and sends them.
    pub ctime: Option<Time>,
    /// See [`Fs::drop_set_ids`].
    pub drops_set_ids: bool,
}

/// A mode without what [`Fs::drop_set_ids`] takes from it.
fn without_set_ids(mode: u16) -> u16 {
    match (is_dir(mode), mode & GROUP_EXECUTES != 0) {
        (true, _) => mode,
        (_, true) => mode & !(SET_USER | SET_GROUP),
        _ => mode & !SET_USER,
    }
}

/// What `statvfs(2)` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Space {
    pub page_bytes: u32,
    /// Pages that files and nodes may have, and those that nobody has.
    pub pages: u64,
    pub free: u64,
    /// Pages that a new file may have: the rest of the free ones is for the nodes that name them.
    pub available: u64,
    /// Files that there can be, and numbers that no file and no node has.
    pub files: u64,
    pub files_free: u64,
}

impl State {
    pub(crate) fn attributes(&mut self, ino: Nid) -> Step<Attributes> {
        let bytes = self.layout.shape.page_bytes();
        Ok(Attributes::of(ino, self.inode(ino)?, bytes))
    }

    fn change(&mut self, ino: Nid, change: &Change, now: Time) -> Step<()> {
        self.writable()?;
        if let Some(mode) = change.mode {
            self.change_acl(ino, mode, now)?;
        }
        let inode = self.inode_mut(ino)?;
        if let Some(mode) = change.mode {
            inode.mode = inode.mode & 0o170_000 | mode & 0o7_777;
        }
        if change.drops_set_ids {
            inode.mode = without_set_ids(inode.mode);
        }
        inode.uid = change.uid.unwrap_or(inode.uid);
        inode.gid = change.gid.unwrap_or(inode.gid);
        inode.atime = change.atime.unwrap_or(inode.atime);
        inode.mtime = change.mtime.unwrap_or(inode.mtime);
        inode.ctime = change.ctime.unwrap_or(now);
        Ok(())
    }

    fn drop_set_ids(&mut self, ino: Nid, now: Time) -> Step<bool> {
        let mode = self.inode(ino)?.mode;
        if without_set_ids(mode) == mode {
            return Ok(false);
        }
        self.writable()?;
        let inode = self.inode_mut(ino)?;
        (inode.mode, inode.ctime) = (without_set_ids(mode), now);
        Ok(true)
    }
}

impl Fs {
    /// # Errors
    /// There is no such file, or it can't be read.
    pub async fn attributes(self: &Arc<Fs>, cx: &Cx, ino: Nid) -> Result<Attributes> {
        self.with(cx, |s| s.attributes(ino)).await
    }

    /// As [`Fs::attributes`], on any thread, if nothing has to be waited for.
    pub fn try_attributes(&self, ino: Nid) -> Option<Result<Attributes>> {
        self.at_once(false, |s| s.attributes(ino))
    }

    /// As [`Fs::change`], on any thread, if the size stays and nothing has to be waited for.
    pub fn try_change(&self, ino: Nid, change: &Change, now: Time) -> Option<Result<Attributes>> {
        match change.size {
            Some(_) => None,
            None => self.at_once(true, |s| {
                s.change(ino, change, now)?;
                s.attributes(ino)
            }),
        }
    }

    /// Changes what is asked for, and what the file is then. A new size comes first.
    ///
    /// # Errors
    /// As [`Fs::attributes`]; a directory has no size that can be set; there is no room.
    pub async fn change(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        change: &Change,
        now: Time,
    ) -> Result<Attributes> {
        self.balance(cx).await?;
        if let Some(size) = change.size {
            let mode = self.with(cx, |s| Ok(s.inode(ino)?.mode)).await?;
            match (is_dir(mode), is_file(mode)) {
                (true, _) => return Err(FsError::IsDirectory),
                (_, false) => return Err(FsError::Invalid("the size of what is no file")),
                _ => self.truncate(cx, ino, size, now).await?,
            }
        }
        self.with(cx, |s| {
            s.change(ino, change, now)?;
            s.attributes(ino)
        })
        .await
    }

    /// Somebody without privileges changes what a file holds, or its owner changes: the set-user bit
    /// goes, and the set-group bit where the group may execute it. Directories keep theirs. True if
    /// it had one.
    ///
    /// # Errors
    /// As [`Fs::attributes`]; nothing may be written.
    pub async fn drop_set_ids(self: &Arc<Fs>, cx: &Cx, ino: Nid, now: Time) -> Result<bool> {
        self.balance(cx).await?;
        self.with(cx, |s| s.drop_set_ids(ino, now)).await
    }

    /// Whether [`Fs::drop_set_ids`] would change anything: on any thread, if nothing has to be waited for.
    pub fn try_has_set_ids(&self, ino: Nid) -> Option<Result<bool>> {
        self.at_once(false, |s| {
            let mode = s.inode(ino)?.mode;
            Ok(without_set_ids(mode) != mode)
        })
    }

    /// What there is, and what is free.
    pub fn space(&self) -> Space {
        let mut s = self.lock();
        s.measure();
        let free = s.capacity().saturating_sub(s.used());
        let available = match mutant!("parafs.nodes-promised") {
            true => free,
            false => free.saturating_sub(s.tree.nodes_for(free)),
        };
        let nids = u64::from(s.nat.nids() - 1);
        let numbers = nids - u64::from(s.nat.used).min(nids);
        Space {
            page_bytes: s.layout.shape.page_bytes() as u32,
            pages: s.capacity(),
            free,
            available,
            files: nids,
            // An empty file takes a node.
            files_free: numbers.min(free * s.most_nodes_of_page()),
        }
    }
}
