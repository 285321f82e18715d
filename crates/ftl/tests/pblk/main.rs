//! pblk through its public interface: the hard cases of `facts/pblk-qblk.md`, 8.3 and 8.4, by id.
//!
//! Owns: one claim per test, with the id of the case it answers. Every test ends settled
//! ([`bench::Bench::settled`]): contents read back, no violation, both laws, a clean walk.
//!
//! Elsewhere or not at all:
//! - P03 (slow producer): a slot's content is complete before the section that makes it drainable
//!   (rule 13), so there is no flag to wait for; the slab's tests cover the states.
//! - P19 (packed metadata mode), P26's statistics by class: the engine has no such mode.
//! - P21 (map encodings) is in `log/map.rs`, G09 (limiter's table) in `log/limiter.rs`, the golden
//!   example of active PUs in `log/pool.rs`.
//! - G07 (half-prepared victim): preparing a victim is one read, which G06 lets fail.
//! - G10 (idle users): GC's share depends on free chunks alone; there is no idle rule.
//! - P15, P20, G01 and G10's formulas differ from the kernel by design; the tests say how.

mod bench;
mod faults;
mod gc;
mod model;
mod ring;
mod steady;
