//! The policies of the ParaFS paper's comparison, on one core.
//!
//! Owns: [`Policy`]: its words, the media that each stands on, what each means for the core.
//! Promises: policies differ in nothing but what their line in [`Policy::options`] says, and in the
//! size of a segment. Never: places or cleans anything.

use crate::channels::{Dispatch, Schedule};
use crate::fs::{Cleaners, Options};
use crate::segments::Allocation;
use flashlane_base::{Geometry, Ns};

/// Who allocates, cleans and schedules, and in which units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// ParaFS with all its techniques; on a block device its core without what only flash has.
    #[default]
    ParaFs,
    /// 2-D allocation alone: one cleaner, first come first served (the paper's ParaFS_Base, 4.4).
    Base,
    /// And a cleaner for each region (ParaFS_MGC).
    Mgc,
    /// And parallelism-aware scheduling, with one cleaner (ParaFS_PS).
    Ps,
    /// As the base; a head fills one flash block, then the next channel's (3.2, Table 1).
    BlockStripe,
    /// F2FS on a block SSD, whose FTL stripes pages over channels: six logs over a linear space, a
    /// segment is as large as a flash block (4.1), one cleaner, trims behind a checkpoint.
    F2fs,
    /// F2FS_SB (4.1): "a super block consists of multiple adjacent segments", as many as there are
    /// channels, and is the unit of allocation and garbage collection.
    F2fsSb,
}

/// Those that know the flash.
const ON_FLASH: [(&str, Policy); 5] = [
    ("parafs", Policy::ParaFs),
    ("base", Policy::Base),
    ("mgc", Policy::Mgc),
    ("ps", Policy::Ps),
    ("block-stripe", Policy::BlockStripe),
];
/// Those on an FTL that places sectors as it likes.
const ON_SECTORS: [(&str, Policy); 3] =
    [("parafs", Policy::ParaFs), ("f2fs", Policy::F2fs), ("f2fs-sb", Policy::F2fsSb)];

/// F2FS waits so long at least between two background cleanings (`gc_min_sleep_time`).
const F2FS_IDLE: Ns = Ns::from_secs(30);

impl Policy {
    /// Its words, where a target gives flash blocks, or sectors.
    pub fn words(on_flash: bool) -> &'static [(&'static str, Policy)] {
        match on_flash {
            true => &ON_FLASH,
            false => &ON_SECTORS,
        }
    }

    pub fn word(self) -> &'static str {
        let mut all = ON_FLASH.iter().chain(&ON_SECTORS);
        all.find(|(_, policy)| *policy == self).map_or("", |(word, _)| word)
    }

    /// Each once.
    pub fn all() -> impl Iterator<Item = Policy> {
        let sectors = ON_SECTORS.iter().filter(|both| !ON_FLASH.contains(both));
        ON_FLASH.iter().chain(sectors).map(|(_, policy)| *policy)
    }

    /// Whether a target that gives flash blocks, or one that gives sectors, can have it.
    pub fn stands_on(self, flash: bool) -> bool {
        Policy::words(flash).iter().any(|(_, policy)| *policy == self)
    }

    /// What the core does by it, where no key says another thing.
    pub fn options(self) -> Options {
        let of = |allocation, cleaners, dispatch| Options {
            allocation,
            cleaners,
            schedule: Schedule { dispatch, ..Schedule::default() },
            ..Options::default()
        };
        use Allocation::{Blocks, Pages};
        use Cleaners::{One, PerRegion};
        use Dispatch::{Aware, Fifo};
        match self {
            Policy::ParaFs => of(Pages, PerRegion, Aware),
            Policy::Base => of(Pages, One, Fifo),
            Policy::Mgc => of(Pages, PerRegion, Fifo),
            Policy::Ps => of(Pages, One, Aware),
            Policy::BlockStripe => of(Blocks, One, Fifo),
            Policy::F2fs | Policy::F2fsSb => Options { idle: F2FS_IDLE, ..of(Pages, One, Fifo) },
        }
    }

    /// Sectors of a segment on a block device over flash of this shape; nothing where the policy
    /// knows nothing of it.
    pub fn segment_sectors(self, flash: &Geometry) -> Option<u64> {
        let block = u64::from(flash.pages_per_block) * u64::from(flash.sectors_per_page);
        let block = block * u64::from(flash.planes);
        match self {
            Policy::F2fs => Some(block),
            Policy::F2fsSb => Some(block * u64::from(flash.channels)),
            _ => None,
        }
    }
}
