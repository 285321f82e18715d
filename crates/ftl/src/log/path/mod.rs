//! The path of a request: from the host into a ring, out of it into a program, and back from the medium.
//!
//! In the order of a write: [`front`] admits it and puts its sectors into [`slab`] and a [`ring`] (one, or one
//! per core: [`rings`]), [`map`] then names their slots, and [`drain`] programs them, one [`mod@unit`] after the
//! other. [`read`] is the way back. [`sections`] and [`epoch`] say when nobody looks at a slot or holds an
//! address any more, [`contention`] counts what cores wait for.

pub(super) mod contention;
pub(super) mod drain;
pub(super) mod epoch;
pub(super) mod front;
pub mod map;
pub(super) mod read;
pub(super) mod ring;
pub(super) mod rings;
pub(super) mod sections;
pub(super) mod slab;
pub(super) mod unit;
