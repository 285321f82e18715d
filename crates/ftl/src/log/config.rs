//! Settings of a target: pblk, QBLK, and everything between.
//!
//! Owns: the switches and their names. Promises: a switch that is off is left out where settings are
//! written down, so that what was written before there were any reads the same. Never: plans room
//! (that is `create`).

use super::limiter::LimiterKind;
use super::scrub::ScrubConfig;
use super::victim::WearConfig;
use serde::{Deserialize, Serialize};

/// A setting that is one of several words: an enum with the word of each variant, in files and options.
macro_rules! worded {
    ($(#[$attr:meta])* pub enum $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$attr])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name {
            $($(#[$doc])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// Names in files and options.
            pub const NAMES: [(&'static str, $name); [$($word),*].len()] =
                [$(($word, $name::$variant)),*];

            pub fn name(self) -> &'static str {
                $name::NAMES[self as usize].0
            }
        }
    };
}
pub(crate) use worded;

worded! {
    /// How many write buffers a target has (QBLK, section II-A).
    pub enum RingSet {
        /// pblk: one, which all cores share.
        #[default]
        One = "one",
        /// QBLK: one per core of the host that creates the target, each with a drainer of its own.
        PerCore = "per_core",
    }
}

worded! {
    /// How a target's PUs are divided into pools, each with its own lines, free chunks, lock and garbage
    /// collection (QBLK, section II-B).
    pub enum PoolSet {
        /// pblk: one, a line spans all PUs.
        #[default]
        All = "all",
        /// QBLK: one per channel.
        PerChannel = "per_channel",
    }
}

worded! {
    /// How entries of the map change (QBLK, section II-C).
    pub enum MapAccess {
        /// pblk: under one lock around the whole map.
        #[default]
        Locked = "locked",
        /// QBLK: each by itself, by compare-exchange.
        Atomic = "atomic",
    }
}

worded! {
    /// How much a drainer sends to the device in one request (QBLK, section II-D).
    pub enum Drain {
        /// pblk: one write unit of one PU.
        #[default]
        Minimum = "minimum",
        /// QBLK: as many units as there are, one for each PU of a line at most, 64 sectors at most.
        Large = "large",
    }
}

worded! {
    /// Where a ring's drainer runs, in virtual time. The one of pblk's single ring runs wherever there is
    /// room.
    pub enum Drainers {
        /// On the core whose ring it drains.
        #[default]
        Bound = "bound",
        /// Wherever there is room, as a kernel thread that nobody has bound.
        Floating = "floating",
    }
}

worded! {
    /// Which channel a drainer's next request goes to, and whether it waits for a busy one (QBLK,
    /// section II-B2). Each reading begins where the last request left off, and goes on to the next
    /// channel when one has no room at all.
    pub enum ChannelChoice {
        /// Ours: from the channel of the ring's own pointer on, the first whose PUs have nothing to
        /// wait for.
        #[default]
        PassBusy = "pass_busy",
        /// The paper's text: the channel of the ring's own pointer P. The drainer waits for it.
        Turn = "turn",
        /// The released source: the channel of one counter over all rings. The drainer waits for it.
        Shared = "shared",
    }
}

/// QBLK's budget: programs in flight per PU (section II-D).
pub const QBLK_PU_BUDGET: u32 = 8;
/// No device queues more per PU than this.
pub(super) const PU_BUDGET_MAX: u32 = 64;

/// Settings of a target. pblk is the default: one ring, one pool, a locked map, minimum requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LogConfig {
    /// Share of the good chunks kept from the host, percent, 3..=80. 0 is the default: the kernel's
    /// 11, or the smallest that leaves room for the reserves where 11 does not (as pblk adjusts its
    /// default, and only its default).
    pub over_provisioning_percent: u32,
    /// PUs that take new data at a time; 0 is all (LightNVM 4.2.1).
    pub active_pus: u32,
    /// Slots of the write buffer, over all rings; `None` is pblk's: sectors to write before readable ×
    /// PUs. A ring has its part of them, and at least max(128, 4 × ws_opt).
    pub ring_sectors: Option<u32>,
    /// How the ring is shared between users and GC.
    pub limiter: LimiterKind,
    /// Garbage collection runs by itself.
    pub gc: bool,
    /// How wear is spread over the chunks.
    #[serde(skip_serializing_if = "is_default")]
    pub wear: WearConfig,
    /// Whether data is moved before it can't be read any more.
    #[serde(skip_serializing_if = "is_default")]
    pub scrub: ScrubConfig,
    /// Write buffers.
    #[serde(skip_serializing_if = "is_default")]
    pub rings: RingSet,
    /// Cores that have a ring each; 0: those of the host that creates the target. More cores share rings,
    /// fewer leave some alone.
    #[serde(skip_serializing_if = "is_default")]
    pub cores: u32,
    #[serde(skip_serializing_if = "is_default")]
    pub pools: PoolSet,
    #[serde(skip_serializing_if = "is_default")]
    pub map: MapAccess,
    /// Size of requests.
    #[serde(skip_serializing_if = "is_default")]
    pub drain: Drain,
    /// Programs in flight per PU, 1..=64 (the initial count of pblk's and QBLK's semaphores).
    #[serde(skip_serializing_if = "is_one")]
    pub pu_budget: u32,
    /// How drainers choose a channel.
    #[serde(skip_serializing_if = "is_default")]
    pub channel_choice: ChannelChoice,
    /// Room of a ring comes back in the order of the ring, as in pblk's and QBLK's source: what has
    /// been programmed keeps its room until everything before it has been. Else room comes back as
    /// programs end.
    #[serde(skip_serializing_if = "is_default")]
    pub in_ring_order: bool,
    /// A writer whose ring is full tries again after 3 ms, as Linux 4.16 does for the released QBLK;
    /// else it is let in as soon as there is room.
    #[serde(skip_serializing_if = "is_default")]
    pub full_ring_retry: bool,
    #[serde(skip_serializing_if = "is_default")]
    pub drainers: Drainers,
    /// Cores that complete the device's requests, as a device with so many interrupts has it; 0: each
    /// request is completed by the core that submitted it, as with a queue per core. In virtual time.
    #[serde(skip_serializing_if = "is_default")]
    pub completion_cores: u32,
    /// A writer whose ring is full takes room that idle cores' rings have (QBLK's future work, section
    /// II-A2).
    #[serde(skip_serializing_if = "is_default")]
    pub borrow: bool,
    /// A flush tells in the log, on two dies, what it has programmed. After a power cut the loss of
    /// a die costs what was told of it then, and no other sector. Costs a log block for each flush.
    #[serde(skip_serializing_if = "is_default")]
    pub flush_records: bool,
    /// Most entries of the map in a shard of a checkpoint; 0: as many as one vector holds. For tests: small
    /// targets have many shards then.
    #[serde(skip_serializing_if = "is_default")]
    pub shard_entries: u32,
}

fn is_default<T: Default + PartialEq>(setting: &T) -> bool {
    *setting == T::default()
}

fn is_one(setting: &u32) -> bool {
    *setting == 1
}

impl Default for LogConfig {
    fn default() -> LogConfig {
        LogConfig {
            over_provisioning_percent: 0,
            active_pus: 0,
            ring_sectors: None,
            limiter: LimiterKind::Pid,
            gc: true,
            wear: WearConfig::default(),
            scrub: ScrubConfig::default(),
            rings: RingSet::One,
            cores: 0,
            pools: PoolSet::All,
            map: MapAccess::Locked,
            drain: Drain::Minimum,
            pu_budget: 1,
            channel_choice: ChannelChoice::PassBusy,
            in_ring_order: false,
            full_ring_retry: false,
            drainers: Drainers::Bound,
            completion_cores: 0,
            borrow: false,
            flush_records: false,
            shard_entries: 0,
        }
    }
}

impl LogConfig {
    /// QBLK: its four techniques on, its limiter.
    pub fn qblk() -> LogConfig {
        LogConfig {
            limiter: LimiterKind::ChannelStates,
            rings: RingSet::PerCore,
            pools: PoolSet::PerChannel,
            map: MapAccess::Atomic,
            drain: Drain::Large,
            pu_budget: QBLK_PU_BUDGET,
            ..LogConfig::default()
        }
    }

    /// What such a target calls itself: QBLK has at least one of the four techniques.
    pub fn layer(&self) -> &'static str {
        let pblk = LogConfig::default();
        let same = (self.rings, self.pools, self.map, self.drain)
            == (pblk.rings, pblk.pools, pblk.map, pblk.drain);
        if same { "pblk" } else { "qblk" }
    }

    pub(super) fn check(&self) -> Result<(), &'static str> {
        if !(1..=PU_BUDGET_MAX).contains(&self.pu_budget) {
            return Err("a budget of programs per PU is 1..=64");
        }
        self.wear.check().and(self.scrub.check())
    }
}
