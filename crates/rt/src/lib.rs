//! The runtime: one explicit per-core context, two clocks.
//!
//! Owns: [`Cx`], the virtual-time executor ([`Virtual`]), the thread-per-core executor
//! ([`Threads`]), what both let in from outside ([`Port`], [`Remote`], [`Watched`]), timers, the
//! blocking primitives of the data path ([`Lock`], [`Credits`], [`Notify`], [`Join`]), CPU cost
//! tables, memory for futures ([`Pooled`]) and the fingerprint of a run.
//! Promises: under [`Virtual`] a run is a function of its seed: same seed, same order of polls,
//! same fingerprint. Layers written against `Cx` run unchanged under both.
//! Never: knows flash; never cancels a future that runs.
//!
//! Leaf futures take `&Cx` and register the *current task* with it; the standard waker is not
//! used, which saves a reference count per wait. So a future of another runtime will not wake here.
//! Every leaf tolerates a spurious poll.
//!
//! Start reading at [`cx`], then [`virt`] (60 lines of executor), then [`sync`] and [`outside`].

pub mod cost;
pub mod cx;
pub mod lateness;
mod local;
#[cfg_attr(any(feature = "shuttle", feature = "loom"), allow(dead_code, unreachable_pub))]
mod mutex;
pub mod outside;
mod platform;
mod pooled;
pub mod reactor;
mod reply;
pub mod sync;
pub mod threads;
mod timers;
pub mod virt;

pub use cost::{CostError, CostTable, STAGES};
pub use cx::{CoreId, Cx, Join, Waiter};
pub use lateness::Lateness;
pub use outside::{Bell, Gone, Idle, Opened, Pending, Port, Remote};
pub use pooled::Pooled;
pub use reactor::Watched;
pub use sync::{Contended, Credits, Lock, LockStats, Notify, Waits};
pub use threads::Threads;
pub use virt::{CoreTime, Fingerprint, Stalled, Virtual};
