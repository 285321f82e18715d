//! The device through its public interface, one subject to a file.

mod basic;
mod buffer;
mod committing;
mod common;
mod core;
mod damage;
mod hazards;
mod host_power;
mod image;
mod inject;
mod kept;
mod model;
mod power;
mod rules;
mod save;
mod scalar;
mod slc;
mod timing;
mod wear;
mod wrap;
