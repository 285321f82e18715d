//! Doors: how kernels and programs use a stack's block device as a disk.
//!
//! Owns: what is exported ([`Export`]), a folder per door ([`nbd`], [`fuse`], [`vhost`]), and a
//! page for who watches ([`http`]). Promises: a client that misbehaves, hangs or dies harms nobody
//! else: what a client may have in flight is bounded, and so is what it, or all clients of a door
//! together, may make this process keep. A stop takes no more requests, ends those under way, and
//! returns when every client is gone. Never: opens an image or mounts a target (the lab does), or
//! hands a client from core to core: it is tasks on one of the run's cores.
//!
//! Start reading at [`nbd::serve`].

mod buffers;
mod export;
pub mod fuse;
pub mod http;
mod listener;
pub mod nbd;
#[cfg(test)]
mod noting;
mod ranges;
mod room;
mod seats;
mod stop;
pub mod vhost;

pub use export::{Export, Failure, SECTOR_SIZES};
pub use listener::{Client, Listener};
pub use stop::Stop;
