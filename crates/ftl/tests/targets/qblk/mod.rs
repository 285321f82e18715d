//! QBLK through its public interface: the hard cases Q01 to Q25, by id, and the paper's examples.
//!
//! Owns: one claim per test, with the id of the case it answers. Every test ends as those of pblk do
//! (`bench.rs::Bench::settled`): contents read back, no violation, both laws, a clean walk.
//!
//! Elsewhere, because they look inside: Figures 4 and 5, full channels and the limiters of many (Q02, Q05,
//! Q08, Q12, Q16, Q17) in `log/path/drain/tests.rs`; slots between rings and epochs (Q05) in `log/path/rings.rs`,
//! `log/path/sections.rs`; encodings of map entries (Q15) in `log/path/map.rs`.

mod collect;
mod contention;
pub(crate) mod cores;
mod flush;
mod order;
mod places;
mod races;
mod restart;
mod scale;
mod threads;
