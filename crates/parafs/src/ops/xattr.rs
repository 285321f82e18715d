//! Extended attributes: all of a file lie in one node.
//!
//! Owns: the bytes of that node. Promises: names and values from anywhere stay in it.

use super::acl::is_acl;
use crate::error::{FsError, Result};
use crate::format::{NO_NODE, Nid, NodePage, Time, XATTRS};
use crate::fs::Fs;
use crate::state::{State, Step, Stop};
use flashlane_rt::Cx;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Names and values.
pub(crate) type Attrs = BTreeMap<Vec<u8>, Vec<u8>>;

/// Longest name, as in Linux.
const NAME_MAX: usize = 255;

/// What `setxattr(2)` asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    Any,
    /// There is none yet.
    Create,
    /// There is one.
    Replace,
}

/// A count, then each: length of the name, of the value, both.
fn decode(body: &[u8]) -> Attrs {
    let number = |at: usize| {
        let bytes = body.get(at..at + 2)?;
        Some(usize::from(u16::from_le_bytes(bytes.try_into().ok()?)))
    };
    let mut found = Attrs::new();
    let mut at = 2;
    for _ in 0..number(0).unwrap_or(0) {
        let (Some(name), Some(value)) = (number(at), number(at + 2)) else { break };
        let Some(bytes) = body.get(at + 4..at + 4 + name + value) else { break };
        found.insert(bytes[..name].to_vec(), bytes[name..].to_vec());
        at += 4 + name + value;
    }
    found
}

/// The bytes, if they fit into so many.
pub(crate) fn encode(attrs: &Attrs, room: usize) -> Option<Vec<u8>> {
    let mut bytes = (attrs.len() as u16).to_le_bytes().to_vec();
    for (name, value) in attrs {
        bytes.extend((name.len() as u16).to_le_bytes());
        bytes.extend((value.len() as u16).to_le_bytes());
        bytes.extend(name);
        bytes.extend(value);
    }
    (bytes.len() <= room).then_some(bytes)
}

impl State {
    pub(crate) fn xattrs(&mut self, ino: Nid) -> Step<Attrs> {
        match self.inode(ino)?.xattrs {
            NO_NODE => Ok(Attrs::new()),
            nid => Ok(decode(NodePage::body(&self.node(nid)?.bytes))),
        }
    }

    pub(crate) fn set_xattrs(&mut self, ino: Nid, attrs: &Attrs, now: Time) -> Step<()> {
        let mut nid = self.inode(ino)?.xattrs;
        let room = NodePage::body(&self.node(ino)?.bytes).len();
        let bytes = encode(attrs, room).ok_or(Stop::Fail(FsError::AttributeSpace))?;
        if nid == NO_NODE {
            if attrs.is_empty() {
                return Ok(());
            }
            self.room_for(1)?;
            nid = self.nat.pick(1)?[0];
            self.make_node(nid, ino, XATTRS, None);
            let inode = self.inode_mut(ino)?;
            inode.xattrs = nid;
            inode.pages += 1;
        } else {
            self.room_to_grow(nid, bytes.len())?;
        }
        let node = self.node_mut(nid)?;
        let body = NodePage::body_mut(node.bytes_mut());
        body.fill(0);
        body[..bytes.len()].copy_from_slice(&bytes);
        self.inode_mut(ino)?.ctime = now;
        self.bound.insert(ino);
        Ok(())
    }

    fn set_xattr(&mut self, ino: Nid, name: &[u8], value: &[u8], how: Set, now: Time) -> Step<()> {
        self.writable()?;
        if name.is_empty() || name.len() > NAME_MAX {
            return Err(Stop::Fail(FsError::Invalid("the name of an attribute")));
        }
        if value.len() > usize::from(u16::MAX) {
            return Err(Stop::Fail(FsError::AttributeSpace));
        }
        let mut attrs = self.xattrs(ino)?;
        match (how, attrs.contains_key(name)) {
            (Set::Create, true) => return Err(Stop::Fail(FsError::Exists)),
            (Set::Replace, false) => return Err(Stop::Fail(FsError::NoAttribute)),
            _ => {}
        }
        attrs.insert(name.to_vec(), value.to_vec());
        self.set_xattrs(ino, &attrs, now)
    }
}

impl Fs {
    /// # Errors
    /// There is none of this name.
    pub async fn xattr(self: &Arc<Fs>, cx: &Cx, ino: Nid, name: &[u8]) -> Result<Vec<u8>> {
        let mut attrs = self.with(cx, |s| s.xattrs(ino)).await?;
        attrs.remove(name).ok_or(FsError::NoAttribute)
    }

    /// As [`Fs::xattr`], on any thread, if nothing has to be waited for.
    pub fn try_xattr(&self, ino: Nid, name: &[u8]) -> Option<Result<Vec<u8>>> {
        self.at_once(false, |s| s.xattrs(ino)?.remove(name).ok_or(Stop::Fail(FsError::NoAttribute)))
    }

    /// Names of all attributes, in order.
    ///
    /// # Errors
    /// There is no such file.
    pub async fn xattr_names(self: &Arc<Fs>, cx: &Cx, ino: Nid) -> Result<Vec<Vec<u8>>> {
        Ok(self.with(cx, |s| s.xattrs(ino)).await?.into_keys().collect())
    }

    /// # Errors
    /// It is there, or is not, against what was asked for; there is no room: all attributes of a
    /// file have one page.
    pub async fn set_xattr(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        (name, value): (&[u8], &[u8]),
        how: Set,
        now: Time,
    ) -> Result<()> {
        self.balance(cx).await?;
        self.with(cx, |s| s.set_xattr(ino, name, value, how, now)).await
    }

    /// # Errors
    /// There is none of this name. A list of access control need not be there.
    pub async fn remove_xattr(
        self: &Arc<Fs>,
        cx: &Cx,
        ino: Nid,
        name: &[u8],
        now: Time,
    ) -> Result<()> {
        self.balance(cx).await?;
        self.with(cx, |s| {
            s.writable()?;
            let mut attrs = s.xattrs(ino)?;
            match (attrs.remove(name), is_acl(name)) {
                (Some(_), _) => {}
                // As on other file systems: there may be no list before, either.
                (None, true) => return Ok(()),
                (None, false) => return Err(Stop::Fail(FsError::NoAttribute)),
            }
            s.set_xattrs(ino, &attrs, now)
        })
        .await
    }
}
