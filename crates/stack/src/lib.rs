//! Stacks: from a description to layers that stand on a device.
//!
//! Owns: the table of kinds of layers ([`kinds`]), what describes a stack ([`Description`]), how one
//! is put together ([`raise`]), what is asked of all its layers at once ([`Layers`]). Promises: the
//! lab, drives and tortures build every stack here, from the bottom up, with the host's link where
//! the first layer of the host stands. Never: opens images, drives a stack, knows what a layer does.
//!
//! A new layer is a folder in `flashlane-ftl` and one row in [`kinds::KINDS`].

mod describe;
pub mod kinds;
mod layers;

pub use describe::{Description, DeviceChoice, LayerSpec, PusError};
pub use layers::{Layers, Make, Programmed, behind_link, raise};
