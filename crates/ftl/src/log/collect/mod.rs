//! How room comes back.
//!
//! [`victim`] chooses a line when [`limiter`] wants room, or [`scrub`] found data that decays; [`gc`] moves what
//! is valid in it and has it erased. [`verdict`] says when a target gives up for want of room.

pub(super) mod gc;
pub mod limiter;
pub(super) mod scrub;
pub(super) mod verdict;
pub(super) mod victim;
