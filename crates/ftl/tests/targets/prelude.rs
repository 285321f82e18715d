//! What the tests of targets take from elsewhere, in one place: names that more than one of them uses.

pub(crate) use crate::bench::{Bench, Setup, content, filled, is_data, lba_of, of, ran, tiny};
pub(crate) use crate::face::{Face, stops};
pub(crate) use crate::medium::{LineAt, Medium, Spot, Stop, Up, spots};
pub(crate) use crate::story::{Do, Telling, cut_at_each, tell};
pub(crate) use flashlane_base::{Bytes, Geometry, Lba, Location, Ns, Ppa, Rng};
pub(crate) use flashlane_ftl::block::{BlockDev, BlockError, BlockOp, BlockResult, Io};
pub(crate) use flashlane_ftl::contention::Contention;
pub(crate) use flashlane_ftl::log::format::{
    Extent, LBA_ANCHOR, LBA_CHECKPOINT, LBA_LIMIT, LBA_LINE_CLOSING, LBA_LINE_FIRST, LBA_LOG,
    LogBlockBuilder, Oob, Record, Runs, ShardEntry, ShardView, Stripes,
};
pub(crate) use flashlane_ftl::log::{
    ChannelChoice, CreateError, LineState, LogConfig, MountError, MountOptions, Pblk, WearLeveling,
};
pub(crate) use flashlane_ftl::pftl::{Pftl, PftlConfig};
pub(crate) use flashlane_media::host::memory::MemoryFile;
pub(crate) use flashlane_ocssd::device::{Cause, ChunkInfo, Op, Status};
pub(crate) use flashlane_ocssd::wrap::Traced;
pub(crate) use flashlane_ocssd::{
    CreateImage, DeviceSpec, FaultPlan, OpenImage, PowerOn, Ssd, SsdOptions, StoreKind,
};
pub(crate) use flashlane_rt::sync::Mutex;
pub(crate) use flashlane_rt::{CoreId, CostTable, Cx, Join, Notify, Threads, Virtual};
pub(crate) use std::cell::{Cell, RefCell};
pub(crate) use std::collections::{BTreeMap, BTreeSet};
pub(crate) use std::future::Future;
pub(crate) use std::rc::Rc;
pub(crate) use std::sync::Arc;
pub(crate) use std::task::Poll;
