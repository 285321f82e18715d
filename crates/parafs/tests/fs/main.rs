//! The file system through its public interface.

mod basic;
mod crash;
mod crowd;
mod fuzz;
mod image;
mod model;
mod moments;
mod planted;
mod world;
