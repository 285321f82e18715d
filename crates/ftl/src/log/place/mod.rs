//! Where data goes: which chunks make a line, and where in it the next unit goes.
//!
//! [`pool`] has the lines of all PUs, or of a channel ([`pools`]); [`lines`] is what others may know of a line
//! without its lock; [`open`] and [`close`] begin and end one.

pub(super) mod close;
pub(super) mod lines;
pub(super) mod open;
pub(super) mod pool;
pub(super) mod pools;
