//! The file system through its public interface.

mod basic;
mod crash;
mod crowd;
mod every;
mod fuzz;
mod image;
mod lost;
mod model;
mod moments;
mod mounts;
mod pairs;
mod parallel;
mod planted;
mod room;
mod scale;
mod shared;
mod slow;
mod sums;
mod unreadable;
