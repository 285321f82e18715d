//! Translation layers: from flash with its rules to a block device without them.
//!
//! Owns: the [`block::BlockDev`] seam and the cold side of every layer ([`layer`]), the counters
//! every layer keeps ([`stats`]), what cores waited for in a host FTL ([`contention`]), the host FTL
//! engine ([`log`]: pblk, QBLK), the drive's FTL ([`kit`]) and what stands on it (the block SSD,
//! [`pftl`], and the SLC/TLC SSD, [`slc`]), the simplified FTL of ParaFS ([`sftl`]), the host link
//! ([`link`]), a layer that only counts ([`meter`]).
//! Promises: no layer breaks a rule of the medium. Never: knows exports, file systems or files.
//!
//! Start reading at [`block`], then [`log`].

pub mod block;
pub mod contention;
pub mod kit;
pub mod layer;
pub mod link;
pub mod log;
pub mod meter;
pub mod patience;
pub mod pftl;
pub mod sftl;
pub mod slc;
pub mod stats;
