//! What callers ask for.
//!
//! Owns: the operations of a file system, by numbers of files, as FUSE has them. Promises: each is
//! done whole or not at all; what it lacks comes before anything changes; a caller's mistake is an
//! error. Those that begin with `try_` are done on any thread, or say that something lacks. Never: knows who calls; checks permissions (the kernel does); reads a clock.

pub(crate) mod acl;
mod attributes;
mod content;
mod names;
mod xattr;

pub use attributes::{Attributes, Change, Space};
pub(crate) use content::given_up;
pub use content::{Fallocate, Seek};
pub use names::{Deleted, Entry, New, Rename};
pub use xattr::Set;
