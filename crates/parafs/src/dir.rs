//! Names.
//!
//! Owns: where an entry of a directory is, where there is room for one. Promises: looks at all pages
//! in question before anything is changed. Never: changes a file that an entry names.

use crate::error::FsError;
use crate::format::{
    Addr, Dentries, Dentry, LEVELS_MAX, NAME_MAX, Nid, PageRef, Slots, Time, name_hash,
};
use crate::nodes::is_dir;
use crate::ops::given_up;
use crate::state::{Need, State, Step, Stop};

/// An entry, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) page: u64,
    pub(crate) slot: u32,
    pub(crate) ino: Nid,
    pub(crate) kind: u8,
}

/// Where an entry can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Room {
    page: u64,
    slot: u32,
    /// The directory has so many levels then.
    levels: u32,
}

/// A name that a file can have.
pub(crate) fn check_name(name: &[u8]) -> Step<()> {
    let why = match name {
        [] => FsError::NotFound,
        b"." | b".." => FsError::Invalid("the name"),
        _ if name.len() > NAME_MAX => FsError::NameTooLong,
        _ if name.contains(&b'/') || name.contains(&0) => FsError::Invalid("the name"),
        _ => return Ok(()),
    };
    Err(Stop::Fail(why))
}

impl State {
    /// The levels of a directory.
    fn levels(&mut self, dir: Nid) -> Step<u32> {
        let inode = self.inode(dir)?;
        match is_dir(inode.mode) {
            true => Ok(inode.levels.min(LEVELS_MAX)),
            false => Err(Stop::Fail(FsError::NotDirectory)),
        }
    }

    /// A page of a directory; nothing where it has none there.
    fn dir_page(&mut self, dir: Nid, index: u64) -> Step<Option<&[u8]>> {
        if !self.pages.has(dir, index) {
            return match self.addr_of(dir, index)? {
                Addr::LOST => Err(given_up(dir, index)),
                addr if addr.is_page() => Err(Stop::Need(Need::Pages(dir, vec![index]))),
                _ => Ok(None),
            };
        }
        Ok(self.pages.get(dir, index).map(|page| &page.content[..]))
    }

    /// The pages that may have a name, with the level of each.
    fn places(levels: u32, hash: u32) -> impl Iterator<Item = (u32, u64)> {
        (0..levels).flat_map(move |level| {
            let (first, count) = Slots::bucket(level, hash);
            (first..first + count).map(move |page| (level, page))
        })
    }

    pub(crate) fn lookup(&mut self, dir: Nid, name: &[u8]) -> Step<Option<Found>> {
        if name.len() > NAME_MAX {
            return Err(Stop::Fail(FsError::NameTooLong));
        }
        let (levels, hash, slots) = (self.levels(dir)?, name_hash(name), self.slots);
        for (_, page) in State::places(levels, hash) {
            let Some(bytes) = self.dir_page(dir, page)? else { continue };
            let entries = Dentries::new(slots, bytes);
            if let Some(slot) = entries.find(name, hash) {
                let Dentry { ino, kind, .. } = entries.get(slot);
                return Ok(Some(Found { page, slot, ino, kind }));
            }
        }
        Ok(None)
    }

    /// Where a name that is not there can go.
    pub(crate) fn room_in(&mut self, dir: Nid, name: &[u8]) -> Step<Room> {
        let (levels, hash, slots) = (self.levels(dir)?, name_hash(name), self.slots);
        for (_, page) in State::places(levels, hash) {
            let slot = match self.dir_page(dir, page)? {
                Some(bytes) => Dentries::new(slots, bytes).room(name.len()),
                None => Some(0),
            };
            if let Some(slot) = slot {
                return self.with_pages(dir, Room { page, slot, levels });
            }
        }
        if levels == LEVELS_MAX {
            return Err(Stop::Fail(FsError::NoSpace));
        }
        let (page, _) = Slots::bucket(levels, hash);
        self.with_pages(dir, Room { page, slot: 0, levels: levels + 1 })
    }

    /// There is room on the medium, too, where the page is a new one.
    fn with_pages(&mut self, dir: Nid, room: Room) -> Step<Room> {
        if self.addr_of(dir, room.page)? == Addr::NONE {
            let missing = self.missing_nodes(dir, room.page)?;
            self.room_for(1 + missing)?;
            self.nat.pick(missing as usize)?;
        }
        Ok(room)
    }

    /// Adds an entry where there is room for it.
    pub(crate) fn enter(&mut self, dir: Nid, room: Room, entry: &Dentry, now: Time) -> Step<()> {
        let (slots, bytes) = (self.slots, self.layout.shape.page_bytes());
        if self.addr_of(dir, room.page)? == Addr::NONE {
            self.set_page(dir, room.page, PageRef::KEPT)?;
        }
        let inode = self.inode_mut(dir)?;
        inode.levels = room.levels;
        inode.entries += 1;
        inode.size = Slots::pages(room.levels) * bytes as u64;
        (inode.mtime, inode.ctime) = (now, now);
        let page = self.pages.change_entries(dir, room.page, bytes);
        Dentries::new(slots, &mut page[..]).insert(room.slot, entry, name_hash(&entry.name));
        Ok(())
    }

    /// Takes an entry out.
    pub(crate) fn leave(&mut self, dir: Nid, found: &Found, now: Time) -> Step<()> {
        let (slots, bytes) = (self.slots, self.layout.shape.page_bytes());
        let inode = self.inode_mut(dir)?;
        inode.entries = inode.entries.saturating_sub(1);
        (inode.mtime, inode.ctime) = (now, now);
        let page = self.pages.change_entries(dir, found.page, bytes);
        Dentries::new(slots, &mut page[..]).remove(found.slot);
        Ok(())
    }

    /// Has an entry name another file.
    pub(crate) fn point(
        &mut self,
        dir: Nid,
        found: &Found,
        (ino, kind): (Nid, u8),
        now: Time,
    ) -> Step<()> {
        let (slots, bytes) = (self.slots, self.layout.shape.page_bytes());
        let inode = self.inode_mut(dir)?;
        (inode.mtime, inode.ctime) = (now, now);
        let page = self.pages.change_entries(dir, found.page, bytes);
        Dentries::new(slots, &mut page[..]).replace(found.slot, ino, kind);
        Ok(())
    }

    /// Entries from a position on, so many at most, each with the position after it. `from` becomes
    /// the position that they were looked for at last: if a page can't be read, a position in it.
    pub(crate) fn entries(
        &mut self,
        dir: Nid,
        from: &mut u64,
        most: usize,
    ) -> Step<Vec<(u64, Dentry)>> {
        let (levels, slots) = (self.levels(dir)?, self.slots);
        let per = u64::from(slots.count);
        let mut found = Vec::new();
        let (mut page, mut slot) = (*from / per, (*from % per) as u32);
        let pages = Slots::pages(levels);
        while page < pages && found.len() < most {
            *from = page * per + u64::from(slot);
            // What was found is an answer; what lacks is asked for the next time.
            let bytes = match self.dir_page(dir, page) {
                Ok(bytes) => bytes,
                Err(_) if !found.is_empty() => break,
                Err(stop) => return Err(stop),
            };
            if let Some(bytes) = bytes {
                let entries = Dentries::new(slots, bytes);
                while let Some(at) = entries.next(slot) {
                    if found.len() == most {
                        return Ok(found);
                    }
                    let entry = entries.get(at);
                    slot = at + Slots::taken(entry.name.len());
                    found.push((page * per + u64::from(slot), entry));
                }
            }
            (page, slot) = (page + 1, 0);
        }
        Ok(found)
    }
}
