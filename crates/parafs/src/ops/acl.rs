//! Access control lists: their bytes, and the permissions that go with them.
//!
//! Owns: a list as Linux has it in the extended attributes [`ACCESS`] and [`DEFAULT`]. Promises: the
//! permissions of a file always say what its list says of the owner, of the group (where there is a
//! mask: the mask) and of others. Never: decides who may do what; the kernel does, by these lists.

use super::New;
use super::xattr::Attrs;
use crate::error::{FsError, Result};
use crate::format::{NO_NODE, Nid, Time};
use crate::fs::Fs;
use crate::nodes::{is_dir, is_symlink};
use crate::state::{State, Step, Stop};
use flashlane_base::mutant;
use flashlane_rt::Cx;
use std::sync::Arc;

/// The list of a file.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that a directory gives to what is made in it.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";

const VERSION: u32 = 2;
const HEAD_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// Whom an entry is about. The entries of a list are in this order.
const OWNER: u16 = 1;
const USER: u16 = 2;
const GROUP: u16 = 4;
const OTHER_GROUP: u16 = 8;
const MASK: u16 = 16;
const OTHERS: u16 = 32;
/// Read, write, execute.
const PERMISSIONS: u16 = 0o7;
const SET_GROUP: u16 = 0o2_000;

/// The name of an attribute that holds a list.
pub(crate) fn is_acl(name: &[u8]) -> bool {
    name == ACCESS || name == DEFAULT
}

/// A list whose entries make sense together.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Acl(Vec<Entry>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    tag: u16,
    permissions: u16,
    /// Which user or group.
    id: u32,
}

impl Acl {
    /// A list of these bytes, if they are one.
    fn decode(bytes: &[u8]) -> Option<Acl> {
        let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        if u32::from_le_bytes(*head) != VERSION || rest.len() % ENTRY_BYTES != 0 {
            return None;
        }
        let entries: Vec<Entry> = rest
            .chunks_exact(ENTRY_BYTES)
            .map(|e| Entry {
                tag: u16::from_le_bytes([e[0], e[1]]),
                permissions: u16::from_le_bytes([e[2], e[3]]),
                id: u32::from_le_bytes([e[4], e[5], e[6], e[7]]),
            })
            .collect();
        let count = |tag| entries.iter().filter(|e| e.tag == tag).count();
        let has_named = count(USER) + count(OTHER_GROUP) > 0;
        let known = [OWNER, USER, GROUP, OTHER_GROUP, MASK, OTHERS];
        let fits = [OWNER, GROUP, OTHERS].iter().all(|tag| count(*tag) == 1)
            && count(MASK) <= 1
            && (!has_named || count(MASK) == 1)
            && entries.iter().all(|e| known.contains(&e.tag) && e.permissions <= PERMISSIONS)
            && entries.is_sorted_by_key(|e| e.tag);
        fits.then_some(Acl(entries))
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for e in &self.0 {
            bytes.extend(e.tag.to_le_bytes());
            bytes.extend(e.permissions.to_le_bytes());
            bytes.extend(e.id.to_le_bytes());
        }
        bytes
    }

    /// The tag of the entry that the group's bits of the mode stand for.
    fn group_tag(&self) -> u16 {
        match self.0.iter().any(|e| e.tag == MASK) {
            true => MASK,
            false => GROUP,
        }
    }

    /// The permission bits of a mode that agrees with this list. The bits of the group are those of
    /// the mask, if the list has one.
    fn permissions(&self) -> u16 {
        let of = |tag| self.0.iter().find(|e| e.tag == tag).map_or(0, |e| e.permissions);
        of(OWNER) << 6 | of(self.group_tag()) << 3 | of(OTHERS)
    }

    /// The list after a `chmod`.
    fn with_permissions(mut self, mode: u16) -> Acl {
        let group = self.group_tag();
        for e in &mut self.0 {
            let shift = match e.tag {
                OWNER => 6,
                OTHERS => 0,
                tag if tag == group => 3,
                _ => continue,
            };
            e.permissions = mode >> shift & PERMISSIONS;
        }
        self
    }

    /// True if the list says no more than a mode does.
    fn is_minimal(&self) -> bool {
        self.0.len() == 3
    }
}

/// `mode` with the permissions of `list`.
fn agreeing(mode: u16, list: &Acl) -> u16 {
    mode & !0o777 | list.permissions()
}

impl State {
    /// The mode and the extended attributes of a new file. If its directory has a default list, the
    /// file gets that list, and of the mode what the list allows. If not, the umask is taken off.
    pub(crate) fn inherited(&mut self, dir: Nid, new: &New) -> Step<(u16, Attrs)> {
        let mut attrs = Attrs::new();
        if is_symlink(new.mode) {
            return Ok((new.mode, attrs));
        }
        let given = match self.inode(dir)?.xattrs {
            NO_NODE => None,
            _ => self.xattrs(dir)?.remove(DEFAULT),
        };
        let list = given.as_deref().and_then(Acl::decode);
        let (Some(given), Some(list)) = (given, list) else {
            return Ok((new.mode & !(new.umask & 0o777), attrs));
        };
        if mutant!("parafs.acl-not-inherited") {
            return Ok((new.mode, attrs));
        }
        let mode = new.mode & (!0o777 | list.permissions());
        let list = list.with_permissions(mode);
        if !list.is_minimal() {
            attrs.insert(ACCESS.to_vec(), list.encode());
        }
        if is_dir(new.mode) {
            attrs.insert(DEFAULT.to_vec(), given);
        }
        Ok((mode, attrs))
    }

    /// The permissions of a file become those of `mode`: so do those of its list.
    pub(crate) fn change_acl(&mut self, ino: Nid, mode: u16, now: Time) -> Step<()> {
        if self.inode(ino)?.xattrs == NO_NODE || mutant!("parafs.acl-behind-chmod") {
            return Ok(());
        }
        let mut attrs = self.xattrs(ino)?;
        match attrs.get(ACCESS).and_then(|bytes| Acl::decode(bytes)) {
            Some(list) => {
                let list = list.with_permissions(mode);
                attrs.insert(ACCESS.to_vec(), list.encode());
                self.set_xattrs(ino, &attrs, now)
            }
            None => Ok(()),
        }
    }

    fn set_acl(
        &mut self,
        ino: Nid,
        (name, value): (&[u8], &[u8]),
        drops_set_group: bool,
        now: Time,
    ) -> Step<()> {
        self.writable()?;
        let invalid = || Stop::Fail(FsError::Invalid("an access control list"));
        let list = Acl::decode(value).ok_or_else(invalid)?;
        let mode = self.inode(ino)?.mode;
        if is_symlink(mode) || name == DEFAULT && !is_dir(mode) {
            return Err(invalid());
        }
        let is_access = name == ACCESS;
        let mut attrs = self.xattrs(ino)?;
        match is_access && list.is_minimal() {
            true => drop(attrs.remove(name)),
            false => drop(attrs.insert(name.to_vec(), value.to_vec())),
        }
        self.set_xattrs(ino, &attrs, now)?;
        if is_access {
            let dropped = if drops_set_group { SET_GROUP } else { 0 };
            let inode = self.inode_mut(ino)?;
            inode.ctime = now;
            if !mutant!("parafs.acl-without-mode") {
                inode.mode = agreeing(mode, &list) & !dropped;
            }
        }
        Ok(())
    }
}

impl Fs {
    /// Sets the access control list of a file, or the default list of a directory (`name`), from the
    /// bytes of an extended attribute. The permissions of a file follow its list; a list that says no
    /// more than permissions do is not kept. With `drops_set_group` the file loses its set-group bit,
    /// as it does if the caller is not in its group.
    ///
    /// # Errors
    /// As [`Fs::set_xattr`]; it is no list; only a directory gives one.
    pub async fn set_acl(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        (name, value): (&[u8], &[u8]),
        drops_set_group: bool,
        now: Time,
    ) -> Result<()> {
        self.balance(cx).await?;
        self.with(cx, |s| s.set_acl(ino, (name, value), drops_set_group, now)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(entries: &[(u16, u16)]) -> Vec<u8> {
        let entries = entries.iter().map(|&(tag, permissions)| Entry { tag, permissions, id: 7 });
        Acl(entries.collect()).encode()
    }

    #[test]
    fn lists_that_make_no_sense_are_refused() {
        let small = [(OWNER, 7), (GROUP, 5), (OTHERS, 4)];
        let large = [(OWNER, 7), (USER, 6), (GROUP, 5), (OTHER_GROUP, 1), (MASK, 2), (OTHERS, 4)];
        for (entries, permissions) in [(&small[..], 0o754), (&large, 0o724)] {
            let found = Acl::decode(&list(entries)).expect("a list");
            assert_eq!((found.encode(), found.permissions()), (list(entries), permissions));
            for without in 0..entries.len() {
                let mut less = entries.to_vec();
                let (tag, _) = less.remove(without);
                let is_whole = tag == USER || tag == OTHER_GROUP;
                assert_eq!(Acl::decode(&list(&less)).is_some(), is_whole, "without {tag}");
            }
        }
        let bad = [
            list(&[(OWNER, 7), (GROUP, 5), (OTHERS, 4), (OTHERS, 4)]),
            list(&[(OWNER, 8), (GROUP, 5), (OTHERS, 4)]),
            list(&[(GROUP, 5), (OWNER, 7), (OTHERS, 4)]),
            list(&[(OWNER, 7), (GROUP, 5), (OTHERS, 4), (64, 4)]),
            list(&small)[..11].to_vec(),
            [&[1, 0, 0, 0], &list(&small)[4..]].concat(),
            vec![],
        ];
        for bytes in bad {
            assert_eq!(Acl::decode(&bytes), None, "{bytes:?}");
        }
    }
}
