//! ParaFS: a log-structured file system that knows the channels of the flash below it.
//!
//! After "ParaFS: A Log-Structured File System to Exploit the Internal Parallelism of Flash Devices"
//! (USENIX ATC '16), on the structures of F2FS (FAST '15).
//!
//! Owns: what lies on the medium ([`mod@format`], docs/PARAFS.md), a mounted file system ([`Fs`]) and its
//! operations, mkfs, recovery, cleaning. Promises: what fsync and sync have acknowledged is there
//! behind a crash; an operation on names is there whole or not at all; damage is an error with its
//! place. Never: knows who calls (FUSE, a workload, a test); reads a wall clock: callers say what time
//! it is. The runtime's clock tells how long something took, and when nobody has asked for long.
//!
//! Start reading at `state.rs` (what is in memory, and how an operation is done), then `fs.rs`,
//! `ops`, `write.rs`, `checkpoint.rs`, `recover.rs`, `clean.rs`. The paper's three techniques are in
//! `segments.rs` (2-D allocation), `clean.rs` (coordinated GC) and `channels.rs` (scheduling).

mod channels;
mod checkpoint;
mod clean;
mod dir;
mod dump;
mod error;
pub mod format;
mod fs;
mod fsck;
pub mod fuse;
mod idle;
mod medium;
mod mkfs;
mod mount;
mod nat;
mod nodes;
mod ops;
mod pages;
mod pairs;
mod policy;
mod recover;
mod repair;
mod segments;
mod state;
mod stats;
mod write;

pub use channels::{Dispatch, Schedule};
pub use dump::{DUMP_WORDS, What, dump};
pub use error::FsError;
pub use format::{Layout, LayoutError, Nid, ROOT, Shape, Time};
pub use fs::{Cleaners, Fs, Options};
pub use fsck::{Depth, Progress, Report, UsedPage, check, check_pages, check_with};
pub use medium::{Flash, Medium};
pub use mkfs::{Kept, Make, Reserve, can_be_made, division, mkfs, spare_most};
pub use mount::{Recovered, label};
pub use ops::{Attributes, Change, Deleted, Entry, Fallocate, New, Rename, Seek, Set, Space};
pub use policy::Policy;
pub use repair::{Repaired, Unread, repair, repair_with};
pub use segments::Allocation;
pub use stats::Stats;
