//! pblk through its public interface: the hard cases of P and G, by id.
//!
//! Owns: one claim per test, with the id of the case it answers. Every test ends settled
//! ([`crate::bench::Bench::settled`]): contents read back, no violation, both laws, a clean walk.
//!
//! Elsewhere or not at all:
//! - P19 (packed metadata mode): every device has 16 bytes out of band, the engine has no such mode;
//!   P26's statistics by class: there are none.
//! - P21 (map encodings) is in `log/path/map.rs`, G09 (limiter's table) in `log/collect/limiter.rs`, G10 (idle
//!   users) in `log/path/ring.rs`, the golden example of active PUs in `log/place/pool.rs`.
//! - P15, P20, G01 and G10's formulas differ from the kernel by design; the tests say how.

mod again;
mod buffer;
pub(crate) mod damage;
mod decay;
mod faults;
mod gc;
mod gone;
mod log;
mod model;
mod reading;
mod recover;
mod restart;
mod ring;
mod rules;
mod scrub;
mod settled;
mod shards;
mod steady;
mod wear;
