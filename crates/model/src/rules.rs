//! The order rules of `docs/FORMAT.md` as switches, so that each can be taken out.
//!
//! A rule with several parts has a switch per part (1a, 1b, ...): each part has to earn its place.
//! Rules 17 to 23 keep the machine moving and are not in this model. H1 to H9 close holes that the
//! rules 1 to 16 left open when this model was built.

use std::fmt;

/// The rules, and a list of all of them in the order of the document.
macro_rules! rules {
    ($($(#[$doc:meta])* $rule:ident,)*) => {
        /// One switchable rule, or part of one.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Rule {
            $($(#[$doc])* $rule,)*
        }

        impl Rule {
            /// All rules, in the order of the document.
            pub const ALL: [Rule; [$(stringify!($rule)),*].len()] = [$(Rule::$rule),*];
        }
    };
}

rules! {
    /// 1a: a line is erased only after every operation of the epoch of its last invalidation ended.
    EraseEpoch,
    /// 1b: ... and after the slots then in the rings are programmed.
    EraseRings,
    /// 2: a slot that a flush or barrier covers is programmed even if overwritten meanwhile.
    CoveredSlot,
    /// 3: a shard stores the durable address of a buffered entry, never 0.
    ShardPrev,
    /// 4: a write re-reads the discard floor after its compare-exchange.
    FloorCheck,
    /// 5a: an entry 0 in a shard is a tombstone at H.
    Tombstone,
    /// 6a: stamps start above the durable ceiling after a crash.
    Ceiling,
    /// 6b: recovery closes the open lines before the first user write.
    RecoveryCloses,
    /// 7a: behind the frontier a sector with bad content still takes part in the order.
    DecayTakesPart,
    /// 7b: at the frontier a sector with bad content is no copy.
    TornIsNone,
    /// 8: closing metadata is programmed after every unit of the line has completed.
    ClosingLast,
    /// 9: slots in the window of a chunk closed early go back to a ring.
    WindowReturns,
    /// 10a: `opened` is durable before the first program.
    OpenedFirst,
    /// 10b: `freed` is durable before the erase.
    FreedFirst,
    /// 10c: a checkpoint entry into a line freed after its shard began is void.
    VoidEntry,
    /// 11a: replay compares stamps.
    ReplayStamps,
    /// 11b: replay begins at the lowest line open when the shard began.
    ReplayOpen,
    /// 12: slot ids are recycled only after the operations that may know them ended.
    SlotEpoch,
    /// 13: a slot is drainable only after its compare-exchange, its stamp fixed from then on.
    PublishedFirst,
    /// 14: an unreadable live sector is logged as poisoned before its line is erased.
    Poison,
    /// 15: `started` is durable before the first program after a start.
    Started,
    /// 16: the log is cut behind the older of two complete checkpoints.
    CutOlder,
    /// H1: when a superseded slot becomes durable, the slots above it take its address as `prev`.
    PrevFollows,
    /// H2: a discard's record is appended after the entries are cleared, before it is acknowledged.
    RecordAfterClear,
    /// H3: a shard reads its log position before H.
    PositionFirst,
    /// H4: a buffered entry with nothing durable below is a tombstone below its slots, not at H.
    TombstoneBelow,
    /// H5: a clean stop is a record of its own, not "the checkpoint is the last record".
    StoppedRecord,
    /// H6: a write that the floor overtook publishes anew from another slot.
    FreshSlot,
    /// H7: `prev` can say poisoned.
    PrevPoison,
    /// H8: the tombstone of H4 lies below the lowest slot not yet durable, not below the topmost.
    TombstoneLowest,
    /// H9: a superseded slot is dropped only after the operation that superseded it has ended.
    DropEpoch,
    /// H10: a shard waits for a published slot until it is in a ring, and only slots that were
    /// there count for its tombstone.
    ShardWaits,
    /// H11: a discard that finds an entry unmapped takes the floor as its predecessor bound.
    DiscardFloor,
    /// H12: a checkpoint completes only after the operations at work when its last shard was taken
    /// have ended.
    CompleteEpoch,
}

/// A set of rules in force.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Rules(u64);

impl Rules {
    pub fn all() -> Rules {
        Rules(Rule::ALL.iter().fold(0, |bits, rule| bits | 1 << *rule as u8))
    }

    /// The same set with one rule taken out.
    #[must_use]
    pub fn without(self, rule: Rule) -> Rules {
        Rules(self.0 & !(1 << rule as u8))
    }

    pub fn has(self, rule: Rule) -> bool {
        self.0 & (1 << rule as u8) != 0
    }
}

impl fmt::Debug for Rules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let out: Vec<_> = Rule::ALL.iter().filter(|rule| !self.has(**rule)).collect();
        write!(f, "all rules but {out:?}")
    }
}
