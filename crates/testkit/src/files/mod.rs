//! File systems under torture: what they may hold behind a cut, and a world that can be cut.
//!
//! Owns: [`known`] (the oracle: what is durable, and what may be), [`actor`] (who uses a file
//! system and knows), [`world`] (the media that lose their power), [`life`] (one seed, as
//! `flashlane torture` has it), `hurt` (failure units that vanish at a mount), [`tape`] and
//! [`every`] (all short sequences, cut at every command). Promises: as the crate. Never: looks into
//! the file system.

pub mod actor;
pub mod every;
mod hurt;
pub mod known;
pub mod life;
pub mod tape;
pub mod world;

pub use actor::{Actor, Of, Op, look};
pub use known::{Found, Known};
pub use life::{FILES, Files, SEEN, Way};
pub use world::{
    DIR, FILE, LINK, Store, content, create, make, make_on, make_summed, mount, mount_with, new,
    now, ram, run, seeds, small, sound, sound_on,
};
