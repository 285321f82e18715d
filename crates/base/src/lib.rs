//! Units, geometry, addresses, checksums and random numbers: what every other crate agrees on.
//!
//! Owns: the newtypes with their arithmetic ([`Ns`], [`Bytes`], [`Lba`]), the shape of a device
//! ([`Geometry`]), the physical page address ([`Ppa`], [`PpaFormat`]), the random generator
//! ([`Rng`]), a set of numbers as runs ([`Runs`]), a division by a constant known at run time
//! ([`FastDiv`]) and how counters and enums with names are declared ([`mod@counters`],
//! [`mod@listed`]). Promises: integers only, no clock, no environment, no allocation proportional
//! to input; of the system nothing but files, in [`mod@fresh`]. Never: knows what flash is beyond
//! its dimensions.
//!
//! Beside them: [`mod@mutant`], the switches that break a safety rule each in test builds, and
//! [`mod@fresh`], the one way in which this program makes a file.
//!
//! Start reading at [`geometry`], then [`ppa`].

pub mod counters;
mod crc;
pub mod fastdiv;
pub mod fresh;
pub mod geometry;
pub mod listed;
pub mod mutant;
pub mod ppa;
pub mod prefetch;
pub mod rng;
pub mod runs;
pub mod units;

pub use crc::{crc32c, crc32c_append};
pub use fastdiv::FastDiv;
pub use geometry::{Geometry, GeometryError};
pub use ppa::{Location, Ppa, PpaFormat, PpaStyle};
pub use prefetch::{prefetch, prefetch_at};
pub use rng::{Rng, mix64};
pub use runs::Runs;
pub use units::{Bytes, Lba, Ns, UnitError};

/// For [`counters!`].
#[doc(hidden)]
pub use serde;

/// Bytes in a sector, the unit of mapping and of every address here (pblk exposes 4 KiB sectors).
pub const SECTOR_BYTES: usize = 4096;
/// Bytes of out-of-band record per sector (64 B per 16 KiB page, LightNVM paper Table 1).
pub const OOB_BYTES: usize = 16;
/// Addresses in one vector command at most (OCSSD 1.2 and 2.0: 64 completion bits).
pub const VECTOR_MAX: usize = 64;
