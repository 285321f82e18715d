//! Directories, and what is without a name.
//!
//! Owns: what a page of entries can be, where a name is looked for, how many names a file has.
//! Promises: a file that an entry leads to keeps it, where the name can be one; a file that none leads
//! to is in the list of those to be deleted, or gets a name again, in a damaged directory that it was
//! in or in /lost+found; directories are a tree.

use super::compact::Bits;
use super::{Found, Model, PAGES_OF_DIRECTORIES, cure, is_dir};
use crate::error::{FsError, Result};
use crate::format::{
    Addr, Dentries, Dentry, FormatError, Inode, LEVELS_MAX, NAME_MAX, Nid, Owner, ROOT, Slots,
    name_hash,
};
use flashlane_base::mutant;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// A kind of [`super::Report::lost`].
const NAMES: &str = "names of files";

/// The check keeps so many pages of a directory in memory. It reads the others twice.
const PAGES_HELD: usize = 64;

/// What a walk over the names knows so far.
#[derive(Default)]
struct Walk {
    /// Names of files that are no directories, by their numbers.
    names: Vec<u32>,
    /// Directories that have been reached.
    seen: Bits,
    /// How many have been looked at.
    looked_at: u64,
    /// Entries (directory, entry) of pages with a wrong seal, by the file that they name.
    doubted: BTreeMap<Nid, Vec<(Nid, Dentry)>>,
}

/// What tells a name from others of its directory: its hash there, and another one.
type NameKey = (u32, u64);

fn key_of(name: &[u8]) -> NameKey {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    (name_hash(name), hasher.finish())
}

/// A page of a directory that can be read.
struct PageOfNames {
    addr: Addr,
    /// Its bytes, if they are held. Room that is only kept has none.
    held: Option<Vec<u8>>,
}

impl Walk {
    /// A file has one name more.
    fn name(&mut self, ino: Nid) {
        let at = ino as usize;
        if self.names.len() <= at {
            self.names.resize(at + 1, 0);
        }
        self.names[at] += 1;
    }

    fn names_of(&self, ino: Nid) -> u32 {
        self.names.get(ino as usize).copied().unwrap_or(0)
    }

    /// Notes the entries of a page of a directory with a wrong seal.
    fn doubt(&mut self, dir: Nid, slots: Slots, bytes: &[u8]) {
        let page = Dentries::new(slots, bytes);
        let is_whole = |(slot, entry): &(u32, Dentry)| {
            can_be(&entry.name) && page.says(*slot).0 == name_hash(&entry.name)
        };
        for (_, entry) in entries(slots, bytes).into_iter().filter(is_whole) {
            self.doubted.entry(entry.ino).or_default().push((dir, entry));
        }
    }

    /// The noted entries that name a file, if they are as many as the names that it is `short_of`.
    /// An entry whose name the inode of another file without a name holds (`held`) is none of them.
    fn missing_names(
        &mut self,
        ino: Nid,
        inode: &Inode,
        short_of: u32,
        held: &BTreeMap<(Nid, Vec<u8>), Nid>,
    ) -> Vec<(Nid, Dentry)> {
        let mut doubted = self.doubted.remove(&ino).unwrap_or_default();
        doubted.retain(|(dir, entry)| {
            let holder = held.get(&(*dir, entry.name.clone()));
            u16::from(entry.kind) == inode.mode >> 12 && holder.is_none_or(|holder| *holder == ino)
        });
        if doubted.len() != short_of as usize {
            doubted.clear();
        }
        doubted
    }
}

fn can_be(name: &[u8]) -> bool {
    let length = (1..=NAME_MAX).contains(&name.len());
    length && name != b"." && name != b".." && !name.iter().any(|b| [b'/', 0].contains(b))
}

/// Levels of a directory of which this is the last page.
fn levels_for(last: Option<u64>) -> u32 {
    let Some(last) = last else { return 0 };
    (1..LEVELS_MAX).find(|levels| Slots::pages(*levels) > last).unwrap_or(LEVELS_MAX)
}

/// A name of this hash is looked for in this page.
fn is_place(hash: u32, page: u64, levels: u32) -> bool {
    (0..levels).any(|level| {
        let (first, count) = Slots::bucket(level, hash);
        (first..first + count).contains(&page)
    })
}

/// Entries of a page, with their places.
fn entries(slots: Slots, bytes: &[u8]) -> Vec<(u32, Dentry)> {
    let page = Dentries::new(slots, bytes);
    let mut found = Vec::new();
    let mut slot = 0;
    while let Some(at) = page.next(slot) {
        let (hash, length) = page.says(at);
        let is = |name: &&[u8]| name_hash(name) == hash;
        let says = page.text(at, length).filter(|name| name.len() <= NAME_MAX);
        // A length that is wrong is found by the hash.
        let name = says.filter(is).or_else(|| {
            let others = (1..=NAME_MAX).map_while(|length| page.text(at, length));
            others.into_iter().find(is)
        });
        slot = at + 1;
        if let Some(name) = name.or(says) {
            slot = at + Slots::taken(name.len());
            found.push((at, Dentry { name: name.to_vec(), ..page.get(at) }));
        }
    }
    found
}

impl Model<'_> {
    /// From the root on every name leads to a file, and every file has as many as it counts.
    pub(super) async fn walk_names(&mut self) -> Result<()> {
        if self.mode(ROOT).is_none_or(|mode| !is_dir(mode)) {
            self.wrong(cure::ROOT, "there is no root directory".into());
            self.drop_file(ROOT).await?;
            self.new_node(ROOT, 0);
            self.holed.insert(ROOT);
            let root = Inode { mode: 0o040_755, links: 2, parent: ROOT, ..Inode::default() };
            self.set_inode(ROOT, &root).await?;
        }
        // Directories that lost a node have lost the pages that it named.
        self.holed.extend(self.lost_nodes.iter().map(|(ino, _)| *ino));
        let mut walk = Walk::default();
        self.walk_from(ROOT, ROOT, &mut walk).await?;
        self.list_orphans(&walk);
        // What no directory leads to, beginning with those that lie in none of them.
        let is_lost =
            |m: &Self, ino: Nid| !walk.seen.contains(ino) && m.mode(ino).is_some_and(is_dir);
        let mut all = Bits::default();
        let mut lost = self.inodes();
        lost.retain(|ino| is_lost(self, *ino));
        for ino in &lost {
            all.insert(*ino);
        }
        let mut first = Vec::new();
        for ino in lost {
            let above = self.inode(ino).await?.map_or(ino, |inode| inode.parent);
            first.push((above != ino && all.contains(above), ino));
        }
        first.sort_unstable();
        for (_, ino) in first {
            if walk.seen.contains(ino) {
                continue;
            }
            let Some(inode) = self.inode(ino).await? else { continue };
            if self.orphans.contains(&ino) && inode.links == 0 && inode.entries == 0 {
                walk.seen.insert(ino);
                continue;
            }
            if self.nodes.get(ino).is_some_and(|node| node.is(Found::DOUBTFUL)) {
                self.wrong(cure::DELETED, format!("directory {ino} is in no directory"));
                self.drop_file(ino).await?;
                continue;
            }
            self.wrong(cure::FOUND, format!("directory {ino} is in no directory"));
            self.orphans.remove(&ino);
            self.adopted.push(ino);
            self.walk_from(ino, inode.parent, &mut walk).await?;
        }
        self.count_names(walk).await?;
        let mut by_name: BTreeMap<(Nid, Vec<u8>), Vec<Nid>> = BTreeMap::new();
        for ino in &self.adopted {
            let Some(inode) = self.inode(*ino).await? else { continue };
            by_name.entry((inode.parent, inode.name)).or_default().push(*ino);
        }
        let alike = by_name.into_values().filter(|inos| inos.len() > 1);
        self.alike = alike.flatten().collect();
        Ok(())
    }

    /// Files that are to be deleted, as far as they are there.
    fn list_orphans(&mut self, walk: &Walk) {
        for ino in self.pack.orphans.clone() {
            let why = match self.mode(ino) {
                None => "it is not there",
                Some(_) if walk.seen.contains(ino) => "it is a directory that has a name",
                Some(_) if !self.orphans.insert(ino) => "it is listed twice",
                Some(_) if self.pack.clean && mutant!("parafs.none-is-left") => {
                    self.orphans.remove(&ino);
                    "an unmount leaves none"
                }
                Some(_) => {
                    if self.pack.clean {
                        // A node of it could not be read then.
                        let said =
                            format!("file {ino} is to be deleted, or cut short, by the next mount");
                        self.note(said);
                    }
                    continue;
                }
            };
            self.wrong(cure::ORPHAN, format!("file {ino} is to be deleted: {why}"));
        }
    }

    async fn walk_from(&mut self, dir: Nid, parent: Nid, walk: &mut Walk) -> Result<()> {
        let dirs = |(_, node): &(Nid, &Found)| node.is_inode() && is_dir(node.mode);
        let all = self.nodes.iter().filter(dirs).count() as u64;
        walk.seen.insert(dir);
        let mut waiting = vec![(dir, parent)];
        while let Some((dir, parent)) = waiting.pop() {
            self.says("directories", walk.looked_at.min(all), all);
            walk.looked_at += 1;
            let subdirs = self.walk_dir(dir, walk).await?;
            waiting.extend(subdirs.iter().map(|ino| (*ino, dir)));
            let Some(mut inode) = self.inode(dir).await? else { continue };
            let before = inode.clone();
            if inode.parent != parent {
                self.wrong(cure::INODE, format!("directory {dir} does not know its parent"));
                inode.parent = parent;
            }
            let links = 2 + subdirs.len() as u32;
            if inode.links != links {
                let says = inode.links;
                let said = format!("directory {dir} counts {says} links, and has {links}");
                self.wrong(cure::COUNT, said);
                inode.links = links;
            }
            if inode != before {
                self.set_inode(dir, &inode).await?;
            }
        }
        Ok(())
    }

    /// A page of a directory, or why it can't be read.
    async fn page_of_names(&self, dir: Nid, index: u64, addr: Addr) -> Result<Vec<u8>> {
        let mut read = self.read_page(addr).await;
        if read.as_ref().is_ok_and(|bytes| self.slots.check(bytes, dir, index).is_err()) {
            // It may have been spoiled on its way.
            read = self.read_page(addr).await;
        }
        read
    }

    /// Looks at a directory; those that lie in it.
    async fn walk_dir(&mut self, dir: Nid, walk: &mut Walk) -> Result<Vec<Nid>> {
        let mut pages = self.pages_of(dir).await?;
        for (index, (_, owner)) in pages.split_off(&Slots::pages(LEVELS_MAX)) {
            self.wrong(cure::HOLE, format!("directory {dir} has a page {index}"));
            self.lose_page(owner).await?;
        }
        let Some(mut inode) = self.inode(dir).await? else { return Ok(Vec::new()) };
        let mut contents: BTreeMap<u64, PageOfNames> = BTreeMap::new();
        for (index, (addr, owner)) in pages {
            if addr == Addr::KEPT {
                contents.insert(index, PageOfNames { addr, held: Some(Vec::new()) });
                continue;
            }
            let why = match self.page_of_names(dir, index, addr).await {
                Ok(bytes) => match self.slots.check(&bytes, dir, index) {
                    Ok(()) => {
                        let held = (contents.len() < PAGES_HELD).then_some(bytes);
                        contents.insert(index, PageOfNames { addr, held });
                        continue;
                    }
                    Err(e) => {
                        if let FormatError::Checksum(_) = e {
                            walk.doubt(dir, self.slots, &bytes);
                        }
                        e.to_string()
                    }
                },
                Err(e) => {
                    if self.layout.has(addr) {
                        self.would_lose(PAGES_OF_DIRECTORIES, 1);
                    }
                    e.why()
                }
            };
            let said = format!("page {index} of directory {dir} can't be read: {why}");
            self.wrong(cure::PAGE_OF_NAMES, said);
            self.lose_page(owner).await?;
        }
        let levels = levels_for(contents.last_key_value().map(|(index, _)| *index));
        if inode.levels != levels {
            let says = inode.levels;
            self.wrong(cure::COUNT, format!("directory {dir} counts {says} levels, not {levels}"));
        }
        let mut subdirs = Vec::new();
        let mut here: BTreeSet<NameKey> = BTreeSet::new();
        let (mut counted, mut stay) = (0, 0);
        for (index, PageOfNames { addr, held }) in contents {
            let bytes = match held {
                Some(held) => held,
                None => {
                    let bytes = self.page_of_names(dir, index, addr).await;
                    let again = bytes.and_then(|bytes| {
                        self.slots.check(&bytes, dir, index)?;
                        Ok(bytes)
                    });
                    again.map_err(|e| {
                        let said = format!("page {index} of directory {dir} was read");
                        FsError::Io(format!("{said}, and can't be read again: {}", e.why()))
                    })?
                }
            };
            if bytes.is_empty() {
                continue;
            }
            let mut page = vec![0; bytes.len()];
            let mut whole = true;
            for (slot, mut entry) in entries(self.slots, &bytes) {
                counted += 1;
                let said = |name: &[u8]| {
                    format!("\"{}\" in directory {dir}", String::from_utf8_lossy(name))
                };
                let (child, key) = (self.mode(entry.ino), key_of(&entry.name));
                let why = match child {
                    _ if !can_be(&entry.name) => "can't be a name".to_string(),
                    _ if here.contains(&key) => "is there twice".into(),
                    None => format!("is file {}, which is not there", entry.ino),
                    Some(mode) if is_dir(mode) && !walk.seen.insert(entry.ino) => {
                        format!("is directory {}, which has another name", entry.ino)
                    }
                    Some(_) => String::new(),
                };
                let Some(mode) = child.filter(|_| why.is_empty()) else {
                    self.wrong(cure::NAME_GONE, format!("{} {why}", said(&entry.name)));
                    whole = false;
                    continue;
                };
                here.insert(key);
                let kind = (mode >> 12) as u8;
                if entry.kind != kind {
                    let said = said(&entry.name);
                    self.wrong(cure::NAME_FIXED, format!("{said} has another type than its file"));
                    (entry.kind, whole) = (kind, false);
                }
                match is_dir(mode) {
                    true => subdirs.push(entry.ino),
                    false => walk.name(entry.ino),
                }
                let hash = name_hash(&entry.name);
                if !is_place(hash, index, levels) {
                    let said = said(&entry.name);
                    self.wrong(cure::NAME_PUT, format!("{said} can't be found by its name"));
                    self.entering.push((dir, entry));
                    whole = false;
                    continue;
                }
                stay += 1;
                Dentries::new(self.slots, &mut page[..]).insert(slot, &entry, hash);
            }
            let same = Dentries::new(self.slots, &page[..]).heads()
                == Dentries::new(self.slots, &bytes[..]).heads();
            if !same && whole {
                let said =
                    format!("page {index} of directory {dir} has places that are no entry's");
                self.wrong(cure::NAME_FIXED, said);
            }
            if !same {
                self.dir_pages.insert((dir, index), page);
            }
        }
        if inode.entries != counted {
            let says = inode.entries;
            let said = format!("directory {dir} counts {says} entries, and has {counted}");
            self.wrong(cure::COUNT, said);
        }
        let size = Slots::pages(levels) * self.layout.shape.page_bytes() as u64;
        if (inode.entries, inode.levels, inode.size) != (stay, levels, size) {
            (inode.entries, inode.levels, inode.size) = (stay, levels, size);
            self.set_inode(dir, &inode).await?;
        }
        Ok(subdirs)
    }

    /// A page of a directory that can't be one.
    async fn lose_page(&mut self, owner: Owner) -> Result<()> {
        let (content, is_inode) = (self.content(owner.nid).await?, self.is_inode(owner.nid));
        let addr = self.tree.addr(&content, is_inode, owner.slot);
        if self.owners.get(addr) == Some(owner) {
            self.owners.remove(addr);
        }
        self.make_hole(owner).await
    }

    async fn count_names(&mut self, mut walk: Walk) -> Result<()> {
        let inodes = self.inodes();
        let mut held: BTreeMap<(Nid, Vec<u8>), Nid> = BTreeMap::new();
        if !walk.doubted.is_empty() {
            for ino in inodes.iter().copied().filter(|ino| walk.names_of(*ino) == 0) {
                if let Some(inode) = self.inode(ino).await? {
                    held.insert((inode.parent, inode.name), ino);
                }
            }
        }
        let is_damaged = self.holed.iter().any(|ino| self.mode(*ino).is_some_and(is_dir));
        for ino in inodes {
            let Some(node) = self.nodes.get(ino).copied().filter(|node| !is_dir(node.mode)) else {
                continue;
            };
            let (found, says) = (walk.names_of(ino), node.links);
            if found == says && found > 0 {
                continue;
            }
            let Some(mut inode) = self.inode(ino).await? else { continue };
            // One that was being cut short stays in the list: only its end is cut.
            let is_deleted = self.orphans.contains(&ino) && says == 0;
            if found == 0 && !is_deleted {
                let said = format!("file {ino} has no name, and is not to be deleted");
                if node.is(Found::DOUBTFUL) {
                    self.wrong(cure::DELETED, said);
                    self.drop_file(ino).await?;
                    continue;
                }
                self.wrong(cure::FOUND, said);
                let again = walk.missing_names(ino, &inode, says, &held);
                // If no entry of a damaged page names it, the repair looks at its inode.
                if again.is_empty() {
                    self.adopted.push(ino);
                }
                inode.links = again.len().max(1) as u32;
                self.again.extend(again);
            } else {
                if says != found {
                    let said = format!("file {ino} counts {says} names, and has {found}");
                    self.wrong(cure::COUNT, said);
                }
                let again = walk.missing_names(ino, &inode, says.saturating_sub(found), &held);
                inode.links = found + again.len() as u32;
                self.again.extend(again);
            }
            // Names that were in damaged directories. If no directory is, the count is wrong.
            if is_damaged && !mutant!("parafs.names-given-up-unasked") {
                self.would_lose(NAMES, says.saturating_sub(inode.links).into());
            }
            if inode.links != says {
                self.set_inode(ino, &inode).await?;
            }
        }
        Ok(())
    }
}
