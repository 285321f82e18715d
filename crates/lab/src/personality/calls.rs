//! Kinds of calls, and what came of those of each.
//!
//! Owns: their names ([`CallKind`]), what is counted of them ([`CallRecord`]). Never: does one.

use crate::histogram::Latencies;
use flashlane_files::Kind;
use flashlane_ftl::block::BlockOp;

/// A kind of call that results count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallKind {
    /// By Filebench's words.
    Files(Kind),
    /// Part of a file, or a record.
    Read,
    Write,
    /// Of records.
    Update,
    Insert,
    Scan,
    ReadModifyWrite,
    /// What a store does to its files; these are no calls of its users.
    PageRead,
    PageWrite,
    DoubleWrite,
    RedoWrite,
    RedoSync,
    PageSync,
    /// To a rollback journal or a WAL.
    JournalWrite,
    JournalSync,
}

/// Those that are not Filebench's, with their words.
const OTHERS: [(CallKind, &str); 14] = [
    (CallKind::Read, "read"),
    (CallKind::Write, "write"),
    (CallKind::Update, "update"),
    (CallKind::Insert, "insert"),
    (CallKind::Scan, "scan"),
    (CallKind::ReadModifyWrite, "readmodifywrite"),
    (CallKind::PageRead, "pageread"),
    (CallKind::PageWrite, "pagewrite"),
    (CallKind::DoubleWrite, "doublewrite"),
    (CallKind::RedoWrite, "redowrite"),
    (CallKind::RedoSync, "redosync"),
    (CallKind::PageSync, "pagesync"),
    (CallKind::JournalWrite, "journalwrite"),
    (CallKind::JournalSync, "journalsync"),
];
const KINDS: usize = Kind::ALL.len() + OTHERS.len();

impl CallKind {
    /// In the order of results.
    pub const ALL: [CallKind; KINDS] = {
        let mut all = [CallKind::Read; KINDS];
        let mut i = 0;
        while i < KINDS {
            all[i] = match i < Kind::ALL.len() {
                true => CallKind::Files(Kind::ALL[i]),
                false => OTHERS[i - Kind::ALL.len()].0,
            };
            i += 1;
        }
        all
    };

    pub fn word(self) -> &'static str {
        match self {
            CallKind::Files(kind) => kind.word(),
            other => OTHERS[other.index() - Kind::ALL.len()].1,
        }
    }

    pub(super) fn index(self) -> usize {
        CallKind::ALL.iter().position(|kind| *kind == self).expect("all are listed")
    }

    /// Whether it is a program's own, and no call of its users.
    pub fn is_inner(self) -> bool {
        use CallKind::{
            DoubleWrite, JournalSync, JournalWrite, PageRead, PageSync, PageWrite, RedoSync,
            RedoWrite,
        };
        matches!(
            self,
            PageRead
                | PageWrite
                | PageSync
                | DoubleWrite
                | RedoWrite
                | RedoSync
                | JournalWrite
                | JournalSync
        )
    }

    /// What it is for those who count requests.
    pub(super) fn op(self) -> Option<BlockOp> {
        match self {
            CallKind::Files(Kind::ReadWhole) | CallKind::Read | CallKind::Scan => {
                Some(BlockOp::Read)
            }
            CallKind::Files(Kind::WriteWhole | Kind::Append | Kind::AppendLog)
            | CallKind::Write
            | CallKind::Update
            | CallKind::Insert
            | CallKind::ReadModifyWrite => Some(BlockOp::Write),
            CallKind::Files(Kind::Fsync) => Some(BlockOp::Flush),
            _ => None,
        }
    }
}

impl From<Kind> for CallKind {
    fn from(kind: Kind) -> CallKind {
        CallKind::Files(kind)
    }
}

/// Calls of one kind.
#[derive(Clone, Default)]
pub struct CallRecord {
    /// Of those that ended well.
    pub latency: Latencies,
    /// Read or written.
    pub bytes: u64,
    pub failed: u64,
    /// That found no file.
    pub skipped: u64,
}

/// By kind, in the order of [`CallKind::ALL`].
pub type Calls = [CallRecord; CallKind::ALL.len()];
