//! Has the medium below keep what it has accepted.
//!
//! Owns: [`flush_medium`]. Promises: costs nothing where the medium keeps everything anyway; an error
//! means that nothing is promised. Never: waits for programs (who flushes has done that).
//!
//! A drive image is as the device was at one moment, so what a layer relies on among its own writes
//! holds without it: whatever a kill leaves is what a cut of the power at that moment would have left.
//! What a host was promised does not: a flush, a FUA write and a stop end with this.

use crate::block::{BlockError, BlockResult};
use flashlane_ocssd::device::{Data, Device, Flags, Op, Request};
use flashlane_rt::Cx;

/// Everything that the device has accepted survives the process, and the host's power.
pub(crate) async fn flush_medium(cx: &Cx, device: &dyn Device) -> BlockResult {
    if !device.traits().volatile {
        return Ok(());
    }
    let request = Request {
        op: Op::Flush,
        flags: Flags::default(),
        addrs: &[],
        data: Data::None,
        whole_sectors: false,
    };
    match device.io(cx, request).await.failed {
        0 => Ok(()),
        _ => Err(BlockError::ReadOnly("the host could not write the drive's image")),
    }
}
