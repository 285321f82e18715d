//! Names: files that are made, linked, renamed, unlinked; directories that are read.
//!
//! Owns: the rules of names, and which of their changes an fsync can't restore ([`State::bound`]).

use super::Attributes;
use super::xattr::encode;
use crate::dir::{Found, check_name};
use crate::error::{FsError, Result};
use crate::format::{Dentry, Inode, NO_NODE, Nid, NodePage, ORPHANS_MAX, Time};
use crate::fs::Fs;
use crate::nodes::{is_dir, is_symlink};
use crate::state::{State, Step, Stop};
use flashlane_base::mutant;
use flashlane_rt::Cx;
use std::sync::Arc;

/// Links of a file, at most: as many as F2FS allows.
const LINKS_MAX: u32 = 65_000;

/// A file that is to be made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct New {
    /// Type and permissions: a file, a directory, a symbolic link, a device, a pipe, a socket.
    pub mode: u16,
    /// Permissions that it does not get, unless its directory has a default access control list.
    pub umask: u16,
    pub uid: u32,
    pub gid: u32,
    pub rdev: u32,
    /// Where a symbolic link leads.
    pub target: Vec<u8>,
}

/// In a position: pages before it could not be read.
const SKIPPED: u64 = 1 << 61;
/// Pages that one call of [`Fs::read_dir`] passes over at most.
const SKIPS_MAX: u32 = 4096;

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub name: Vec<u8>,
    pub ino: Nid,
    /// The type, as `d_type` has it.
    pub kind: u8,
    /// Where to go on behind it.
    pub next: u64,
}

/// How a file gets another name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rename {
    /// What has the name already loses it.
    #[default]
    Replace,
    /// Nothing may have the name.
    NoReplace,
    /// Both change places.
    Exchange,
}

/// `d_type` of a mode.
fn kind_of(mode: u16) -> u8 {
    (mode >> 12) as u8
}

impl State {
    fn child(&mut self, dir: Nid, name: &[u8]) -> Step<Found> {
        self.lookup(dir, name)?.ok_or(Stop::Fail(FsError::NotFound))
    }

    /// The file of this name. The entry and the inode agree on its type, or one of them is damaged.
    fn look_up(&mut self, dir: Nid, name: &[u8]) -> Step<Attributes> {
        let Found { ino, kind, .. } = self.child(dir, name)?;
        let attributes = self.attributes(ino)?;
        if kind_of(attributes.mode) != kind && !mutant!("parafs.types-not-compared") {
            let name = String::from_utf8_lossy(name);
            let why = format!("\"{name}\" in directory {dir} is of another type than file {ino}");
            return Err(FsError::Damaged(why).into());
        }
        Ok(attributes)
    }

    /// A directory that still has a name, so that entries of it can be found.
    fn living(&mut self, dir: Nid) -> Step<()> {
        match self.inode(dir)? {
            inode if !is_dir(inode.mode) => Err(Stop::Fail(FsError::NotDirectory)),
            inode if inode.links == 0 => Err(Stop::Fail(FsError::NotFound)),
            _ => Ok(()),
        }
    }

    pub(crate) fn create(
        &mut self,
        dir: Nid,
        name: &[u8],
        new: &New,
        now: Time,
    ) -> Step<Attributes> {
        self.writable()?;
        check_name(name)?;
        self.living(dir)?;
        if self.lookup(dir, name)?.is_some() {
            return Err(Stop::Fail(FsError::Exists));
        }
        let directory = is_dir(new.mode);
        if directory && self.inode(dir)?.links >= LINKS_MAX {
            return Err(Stop::Fail(FsError::TooManyLinks));
        }
        if new.target.len() > self.tree.inline {
            return Err(Stop::Fail(FsError::NameTooLong));
        }
        let (mode, attrs) = self.inherited(dir, new)?;
        let body_bytes = NodePage::body(&self.node(dir)?.bytes).len();
        if encode(&attrs, body_bytes).is_none() {
            return Err(Stop::Fail(FsError::AttributeSpace));
        }
        let room = self.room_in(dir, name)?;
        let nodes = if attrs.is_empty() { 1 } else { 2 };
        self.room_for(nodes)?;
        // Numbers for its nodes, and as many as a new page of the directory can take.
        let ino = self.nat.pick(3 + nodes as usize)?[0];

        let inode = Inode {
            mode,
            // What is small lies in the inode.
            inline: !directory,
            links: if directory { 2 } else { 1 },
            uid: new.uid,
            gid: new.gid,
            size: new.target.len() as u64,
            pages: 1,
            atime: now,
            mtime: now,
            ctime: now,
            created: now,
            generation: self.generation,
            parent: dir,
            name: name.to_vec(),
            rdev: new.rdev,
            ..Inode::default()
        };
        self.generation = self.generation.wrapping_add(1);
        self.make_node(ino, ino, 0, Some(inode));
        if !new.target.is_empty() {
            let node = self.node_mut(ino)?;
            let room = NodePage::inline_mut(node.bytes_mut());
            room[..new.target.len()].copy_from_slice(&new.target);
        }
        if !attrs.is_empty() {
            self.set_xattrs(ino, &attrs, now)?;
        }
        let entry = Dentry { name: name.to_vec(), ino, kind: kind_of(new.mode) };
        self.enter(dir, room, &entry, now)?;
        if directory {
            self.inode_mut(dir)?.links += 1;
        }
        self.files += 1;
        self.young.insert(ino);
        self.attributes(ino)
    }

    fn link(&mut self, ino: Nid, dir: Nid, name: &[u8], now: Time) -> Step<Attributes> {
        self.writable()?;
        check_name(name)?;
        self.living(dir)?;
        if self.lookup(dir, name)?.is_some() {
            return Err(Stop::Fail(FsError::Exists));
        }
        let inode = self.inode(ino)?;
        let mode = inode.mode;
        match (is_dir(mode), inode.links) {
            (true, _) => return Err(Stop::Fail(FsError::IsDirectory)),
            (_, 0) => return Err(Stop::Fail(FsError::NotFound)),
            (_, LINKS_MAX..) => return Err(Stop::Fail(FsError::TooManyLinks)),
            _ => {}
        }
        let room = self.room_in(dir, name)?;
        let entry = Dentry { name: name.to_vec(), ino, kind: kind_of(mode) };
        self.enter(dir, room, &entry, now)?;
        let inode = self.inode_mut(ino)?;
        inode.links += 1;
        inode.ctime = now;
        self.bound.insert(ino);
        self.attributes(ino)
    }

    /// A name of a file is gone: true if that was the last one, and nobody has it open.
    fn lost_name(&mut self, (dir, name): (Nid, &[u8]), ino: Nid, now: Time) -> Step<bool> {
        let inode = self.inode_mut(ino)?;
        if (inode.parent, &inode.name[..]) == (dir, name) && !mutant!("parafs.old-names-stay") {
            // A repair would give the file this name back, though another one may have it by then.
            inode.name.clear();
        }
        let directory = is_dir(inode.mode);
        inode.links = if directory { 0 } else { inode.links.saturating_sub(1) };
        inode.ctime = now;
        let links = inode.links;
        self.bound.insert(ino);
        if directory && !mutant!("parafs.rmdir-unbound") {
            // What had been in it may have no other name on the medium yet, either.
            self.bound.insert(dir);
        }
        if links > 0 {
            // A new file may take the name, and its fsync would take it from this one, which may
            // have no other name on the medium yet.
            self.bound.insert(dir);
            return Ok(false);
        }
        if !mutant!("parafs.orphans-forgotten") {
            self.orphans.insert(ino);
        }
        Ok(!self.opens.contains_key(&ino))
    }

    /// There is room in a checkpoint for one more file without a name.
    pub(crate) fn room_for_orphan(&self) -> Step<()> {
        match self.orphans.len() < ORPHANS_MAX as usize {
            true => Ok(()),
            false => Err(Stop::Fail(FsError::NoSpace)),
        }
    }

    /// Takes a name away; the file, if it is to be deleted.
    fn unlink(&mut self, dir: Nid, name: &[u8], rmdir: bool, now: Time) -> Step<Option<Nid>> {
        self.writable()?;
        self.room_for_orphan()?;
        let found = self.child(dir, name)?;
        let inode = self.inode(found.ino)?;
        let (directory, entries) = (is_dir(inode.mode), inode.entries);
        match (rmdir, directory) {
            (false, true) => return Err(Stop::Fail(FsError::IsDirectory)),
            (true, false) => return Err(Stop::Fail(FsError::NotDirectory)),
            (true, true) if entries > 0 => return Err(Stop::Fail(FsError::NotEmpty)),
            _ => {}
        }
        self.inode(dir)?;
        self.leave(dir, &found, now)?;
        if directory {
            let parent = self.inode_mut(dir)?;
            parent.links = parent.links.saturating_sub(1);
        }
        let gone = self.lost_name((dir, name), found.ino, now)?;
        Ok(gone.then_some(found.ino))
    }

    /// `dir` is `of` or lies somewhere below it.
    fn is_below(&mut self, mut dir: Nid, of: Nid) -> Step<bool> {
        // No way up is longer than there are directories.
        for _ in 0..=self.nat.used {
            if dir == of {
                return Ok(true);
            }
            let parent = self.inode(dir)?.parent;
            if parent == dir || parent == NO_NODE {
                return Ok(false);
            }
            dir = parent;
        }
        Err(FsError::Damaged(format!("directory {dir} lies in itself")).into())
    }

    fn rename(
        &mut self,
        (dir, name): (Nid, &[u8]),
        (to_dir, to_name): (Nid, &[u8]),
        how: Rename,
        now: Time,
    ) -> Step<Option<Nid>> {
        self.writable()?;
        check_name(name)?;
        check_name(to_name)?;
        self.room_for_orphan()?;
        let from = self.child(dir, name)?;
        self.living(to_dir)?;
        let there = self.lookup(to_dir, to_name)?;
        let mode = self.inode(from.ino)?.mode;
        let directory = is_dir(mode);
        if directory && self.is_below(to_dir, from.ino)? {
            return Err(Stop::Fail(FsError::Invalid("a directory below itself")));
        }
        match (&there, how) {
            (Some(_), Rename::NoReplace) => return Err(Stop::Fail(FsError::Exists)),
            (None, Rename::Exchange) => return Err(Stop::Fail(FsError::NotFound)),
            (Some(there), _) if there.ino == from.ino => return Ok(None),
            (Some(there), Rename::Exchange) => {
                return self.exchange((dir, name, &from), (to_dir, to_name, there), now);
            }
            (Some(there), Rename::Replace) => {
                let inode = self.inode(there.ino)?;
                match (directory, is_dir(inode.mode)) {
                    (true, false) => return Err(Stop::Fail(FsError::NotDirectory)),
                    (false, true) => return Err(Stop::Fail(FsError::IsDirectory)),
                    (true, true) if inode.entries > 0 => {
                        return Err(Stop::Fail(FsError::NotEmpty));
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        let moves_up = directory && dir != to_dir;
        if moves_up && there.is_none() && self.inode(to_dir)?.links >= LINKS_MAX {
            return Err(Stop::Fail(FsError::TooManyLinks));
        }
        let kind = kind_of(mode);
        let mut gone = None;
        match &there {
            Some(there) => {
                self.inode(dir)?;
                self.point(to_dir, there, (from.ino, kind), now)?;
                if directory {
                    let parent = self.inode_mut(to_dir)?;
                    parent.links = parent.links.saturating_sub(1);
                }
                gone = self.lost_name((to_dir, to_name), there.ino, now)?.then_some(there.ino);
            }
            None => {
                let room = self.room_in(to_dir, to_name)?;
                self.inode(dir)?;
                let entry = Dentry { name: to_name.to_vec(), ino: from.ino, kind };
                self.enter(to_dir, room, &entry, now)?;
            }
        }
        self.leave(dir, &from, now)?;
        if moves_up {
            let parent = self.inode_mut(dir)?;
            parent.links = parent.links.saturating_sub(1);
            self.inode_mut(to_dir)?.links += 1;
        }
        self.moved(from.ino, (dir, to_dir), to_name, now)?;
        Ok(gone)
    }

    /// A file has another name now: no fsync says that, neither its own, nor that of a new file with
    /// its old name.
    fn moved(&mut self, ino: Nid, (dir, to): (Nid, Nid), name: &[u8], now: Time) -> Step<()> {
        let inode = self.inode_mut(ino)?;
        (inode.parent, inode.name, inode.ctime) = (to, name.to_vec(), now);
        self.bound.extend([ino, dir, to]);
        Ok(())
    }

    fn exchange(
        &mut self,
        (dir, name, from): (Nid, &[u8], &Found),
        (to_dir, to_name, there): (Nid, &[u8], &Found),
        now: Time,
    ) -> Step<Option<Nid>> {
        let [mode, to_mode] = [self.inode(from.ino)?.mode, self.inode(there.ino)?.mode];
        if is_dir(to_mode) && self.is_below(dir, there.ino)? {
            return Err(Stop::Fail(FsError::Invalid("a directory below itself")));
        }
        self.inode(dir)?;
        self.inode(to_dir)?;
        self.point(dir, from, (there.ino, kind_of(to_mode)), now)?;
        self.point(to_dir, there, (from.ino, kind_of(mode)), now)?;
        if dir != to_dir && is_dir(mode) != is_dir(to_mode) {
            let (less, more) = if is_dir(mode) { (dir, to_dir) } else { (to_dir, dir) };
            let parent = self.inode_mut(less)?;
            parent.links = parent.links.saturating_sub(1);
            self.inode_mut(more)?.links += 1;
        }
        self.moved(from.ino, (dir, to_dir), to_name, now)?;
        self.moved(there.ino, (to_dir, dir), name, now)?;
        Ok(None)
    }

    fn open(&mut self, ino: Nid) -> Step<()> {
        self.inode(ino)?;
        *self.opens.entry(ino).or_default() += 1;
        Ok(())
    }

    /// A file that is deleted now, if it was the last one who needed it.
    fn release(&mut self, ino: Nid) -> Step<Option<Nid>> {
        let Some(count) = self.opens.get(&ino).copied() else { return Ok(None) };
        if count > 1 {
            self.opens.insert(ino, count - 1);
            return Ok(None);
        }
        let gone = self.inode(ino)?.links == 0;
        self.opens.remove(&ino);
        Ok(gone.then_some(ino))
    }

    /// Deletes a file that nobody needs if it is short and its nodes are in memory; false where
    /// something of it is left, which nobody else touches from now on.
    fn delete_short(&mut self, ino: Nid) -> bool {
        self.pages.cut(ino, 0);
        for _ in 0..SHORT {
            match self.delete_piece(ino) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(_) => break,
            }
        }
        self.cuts.insert(ino);
        false
    }

    /// Deletes a piece of a file that nobody needs; true when nothing of it is left.
    pub(crate) fn delete_piece(&mut self, ino: Nid) -> Step<bool> {
        if !self.cut_piece(ino, 0)? {
            return Ok(false);
        }
        let xattrs = self.inode(ino)?.xattrs;
        self.nat.get(ino)?;
        if xattrs != NO_NODE {
            self.nat.get(xattrs)?;
            self.drop_node(xattrs)?;
        }
        self.drop_node(ino)?;
        self.pages.cut(ino, 0);
        self.files = self.files.saturating_sub(1);
        self.orphans.remove(&ino);
        self.cuts.remove(&ino);
        self.opens.remove(&ino);
        self.half_cut.remove(&ino);
        self.young.remove(&ino);
        self.bound.remove(&ino);
        self.along.retain(|(of, _)| *of != ino);
        Ok(true)
    }
}

/// Pieces of a file, the inode and what each direct node names, that are deleted in one step.
const SHORT: u32 = 4;

/// A file whose last name is gone; what is left of it is deleted by [`Fs::end_delete`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub struct Deleted(Option<Nid>);

impl Deleted {
    /// Nothing is left of it, or it stays.
    pub fn is_done(&self) -> bool {
        self.0.is_none()
    }
}

impl Fs {
    /// The file of this name.
    ///
    /// # Errors
    /// There is none, or it can't be read.
    pub async fn lookup(self: &Arc<Fs>, cx: &Cx, dir: Nid, name: &[u8]) -> Result<Attributes> {
        self.with(cx, |s| s.look_up(dir, name)).await
    }

    /// As [`Fs::lookup`], on any thread, if nothing has to be waited for.
    pub fn try_lookup(&self, dir: Nid, name: &[u8]) -> Option<Result<Attributes>> {
        self.at_once(false, |s| s.look_up(dir, name))
    }

    /// As [`Fs::create`], on any thread, if nothing has to be waited for. With `open` it is open then.
    pub fn try_create(
        &self,
        dir: Nid,
        name: &[u8],
        new: &New,
        now: Time,
        open: bool,
    ) -> Option<Result<Attributes>> {
        self.at_once(true, |s| {
            let made = s.create(dir, name, new, now)?;
            if open {
                *s.opens.entry(made.ino).or_default() += 1;
            }
            Ok(made)
        })
    }

    /// As [`Fs::unlink`], on any thread, if nothing has to be waited for and the file is short.
    pub fn try_unlink(&self, dir: Nid, name: &[u8], now: Time) -> Option<Result<Deleted>> {
        self.at_once(true, |s| {
            let Some(ino) = s.unlink(dir, name, false, now)? else { return Ok(Deleted(None)) };
            Ok(Deleted((!s.delete_short(ino)).then_some(ino)))
        })
    }

    /// As [`Fs::open`], on any thread, if nothing has to be waited for.
    pub fn try_open(&self, ino: Nid) -> Option<Result<()>> {
        self.at_once(false, |s| s.open(ino))
    }

    /// As [`Fs::release`], on any thread, if nothing has to be waited for and a file that goes with it
    /// is short.
    pub fn try_release(&self, ino: Nid) -> Option<Result<Deleted>> {
        self.at_once(false, |s| {
            let Some(ino) = s.release(ino)? else { return Ok(Deleted(None)) };
            Ok(Deleted((!s.delete_short(ino)).then_some(ino)))
        })
    }

    /// Does what is left of a deletion.
    ///
    /// # Errors
    /// It can't be read.
    pub async fn end_delete(self: &Arc<Fs>, cx: &Cx, deleted: Deleted) -> Result<()> {
        self.delete(cx, deleted.0).await
    }

    /// Makes a file of any type.
    ///
    /// # Errors
    /// The name is taken or can't be one; there is no room.
    pub async fn create(
        self: &Arc<Fs>,
        cx: &Cx,
        dir: Nid,
        name: &[u8],
        new: &New,
        now: Time,
    ) -> Result<Attributes> {
        self.balance(cx).await?;
        self.with(cx, |s| s.create(dir, name, new, now)).await
    }

    /// Gives a file another name beside those that it has.
    ///
    /// # Errors
    /// As [`Fs::create`]; directories have one name.
    pub async fn link(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        dir: Nid,
        name: &[u8],
        now: Time,
    ) -> Result<Attributes> {
        self.balance(cx).await?;
        self.with(cx, |s| s.link(ino, dir, name, now)).await
    }

    /// Takes a name from a file that is no directory. It is deleted with its last name, when nobody
    /// has it open.
    ///
    /// # Errors
    /// There is none, or it is a directory.
    pub async fn unlink(self: &Arc<Fs>, cx: &Cx, dir: Nid, name: &[u8], now: Time) -> Result<()> {
        self.balance(cx).await?;
        let gone = self.with(cx, |s| s.unlink(dir, name, false, now)).await?;
        self.delete(cx, gone).await
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// There is none, it is no directory, or it has entries.
    pub async fn rmdir(self: &Arc<Fs>, cx: &Cx, dir: Nid, name: &[u8], now: Time) -> Result<()> {
        self.balance(cx).await?;
        let gone = self.with(cx, |s| s.unlink(dir, name, true, now)).await?;
        self.delete(cx, gone).await
    }

    /// Gives a file another name in place of the one that it has.
    ///
    /// # Errors
    /// As `rename(2)`.
    pub async fn rename(
        self: &Arc<Fs>,
        cx: &Cx,
        from: (Nid, &[u8]),
        to: (Nid, &[u8]),
        how: Rename,
        now: Time,
    ) -> Result<()> {
        self.balance(cx).await?;
        let gone = self.with(cx, |s| s.rename(from, to, how, now)).await?;
        self.delete(cx, gone).await
    }

    /// Deletes what has no name and is not open.
    pub(crate) async fn delete(self: &Arc<Fs>, cx: &Cx, gone: Option<Nid>) -> Result<()> {
        let Some(ino) = gone else { return Ok(()) };
        {
            let mut s = self.lock();
            s.cuts.insert(ino);
            s.pages.cut(ino, 0);
        }
        let mut outcome = Ok(false);
        while let Ok(false) = outcome {
            outcome = self.with(cx, |s| s.delete_piece(ino)).await;
        }
        self.lock().cuts.remove(&ino);
        self.changed.wake(cx);
        match outcome {
            // Somebody else has done it.
            Err(FsError::Stale) => Ok(()),
            outcome => outcome.map(drop),
        }
    }

    /// Entries of a directory after a position, so many at most; 0 is the beginning. `.` and `..`
    /// are not among them. Pages that can't be read are passed over.
    ///
    /// # Errors
    /// It is no directory. If pages of it can't be read, the error comes after all entries.
    pub async fn read_dir(
        self: &Arc<Fs>,
        cx: &Cx,
        dir: Nid,
        from: u64,
        most: usize,
    ) -> Result<Vec<Entry>> {
        let (mut at, mut skipped, mut skips) = (from & !SKIPPED, from & SKIPPED, 0);
        loop {
            let found = match self.with(cx, |s| s.entries(dir, &mut at, most)).await {
                Ok(found) => found,
                Err(FsError::Io(_) | FsError::Damaged(_))
                    if !mutant!("parafs.listing-ends-at-bad-pages")
                        && skips < SKIPS_MAX
                        && self.with(cx, |s| s.inode(dir).map(drop)).await.is_ok() =>
                {
                    let per = u64::from(self.lock().slots.count);
                    let next = self.readable_after(cx, dir, at / per).await;
                    (at, skipped, skips) = (next * per, SKIPPED, skips + 1);
                    continue;
                }
                Err(e) => return Err(e),
            };
            if found.is_empty() && skipped != 0 {
                return Err(FsError::Io(format!("pages of directory {dir} can't be read")));
            }
            let entry = |(next, d): (u64, Dentry)| Entry {
                name: d.name,
                ino: d.ino,
                kind: d.kind,
                next: next | skipped,
            };
            return Ok(found.into_iter().map(entry).collect());
        }
    }

    /// The page to go on with after one that can't be read: the next one, or if that is because of
    /// the node that names it, the first one of the next node.
    async fn readable_after(self: &Arc<Fs>, cx: &Cx, dir: Nid, page: u64) -> u64 {
        match self.with(cx, |s| s.addr_of(dir, page)).await {
            Ok(_) => page + 1,
            Err(_) => self.lock().tree.first_of_next_node(page),
        }
    }

    /// The directory that a directory lies in.
    ///
    /// # Errors
    /// It is no directory.
    pub async fn parent(self: &Arc<Fs>, cx: &Cx, dir: Nid) -> Result<Nid> {
        self.with(cx, |s| {
            s.living(dir)?;
            Ok(s.inode(dir)?.parent)
        })
        .await
    }

    /// Where a symbolic link leads.
    ///
    /// # Errors
    /// It is none.
    pub async fn read_link(self: &Arc<Fs>, cx: &Cx, ino: Nid) -> Result<Vec<u8>> {
        self.with(cx, |s| {
            let node = s.node(ino)?;
            match &node.inode {
                Some(inode) if is_symlink(inode.mode) => {
                    let all = NodePage::inline(&node.bytes);
                    Ok(all[..(inode.size as usize).min(all.len())].to_vec())
                }
                _ => Err(Stop::Fail(FsError::Invalid("no symbolic link"))),
            }
        })
        .await
    }

    /// Somebody opens a file: it stays until it is released, whatever becomes of its names.
    ///
    /// # Errors
    /// There is no such file.
    pub async fn open(self: &Arc<Fs>, cx: &Cx, ino: Nid) -> Result<()> {
        self.with(cx, |s| s.open(ino)).await
    }

    /// Somebody who has opened a file does not need it any more.
    ///
    /// # Errors
    /// It was to be deleted, and that could not be begun.
    pub async fn release(self: &Arc<Fs>, cx: &Cx, ino: Nid) -> Result<()> {
        let gone = self.with(cx, |s| s.release(ino)).await?;
        self.delete(cx, gone).await
    }
}
