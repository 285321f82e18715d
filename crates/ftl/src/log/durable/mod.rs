//! What of a target is on the medium beside data.
//!
//! [`journal`] is the log of lines and discards, [`checkpoint`] copies of the map, [`meta`] their programs in
//! chunks of their own, [`told`] has it tell what flushes program, [`mod@format`] their bytes
//! (`docs/FORMAT.md`), [`flash`] the vector commands below all of them.

pub(super) mod checkpoint;
pub(super) mod flash;
pub mod format;
pub(super) mod journal;
pub(super) mod meta;
pub(super) mod told;
