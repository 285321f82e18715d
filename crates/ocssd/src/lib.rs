//! The Open-Channel SSD: vector commands over physical page addresses.
//!
//! Owns: the seam ([`device::Device`]), the emulated device ([`ssd::Ssd`]), its specs and presets.
//! Promises: every refusal names the rule and what was found. Never: translates logical addresses.
//!
//! Start reading at [`device`], then [`spec`], then [`ssd`].
pub mod core;
pub mod device;
pub mod image;
pub mod link;
mod pipe;
pub mod rules;
pub mod scalar;
pub mod spec;
pub mod ssd;
pub mod wrap;

pub use crate::core::{Core, CoreError, Partition, Pus, TargetInfo, TargetSpec, TargetState};
pub use device::Device;
pub use flashlane_media::counters::{BufferCount, DieBusy, MediaCounters, SlcCount};
pub use image::{CopyKind, CreateImage, ImageError, OpenImage, copy_image, upgrade_image};
pub use spec::{DeviceSpec, DieQueue, FaultPlan, SpecError, SsdOptions, StoreKind};
pub use ssd::{PowerOn, Ssd};
