//! Bad-block tables: shown, and changed by hand.
//!
//! Owns: places by channel, LUN, plane and block, and their marks. Promises: blocks of a target are not
//! marked; a mark is durable when it is set. Never: erases anything.

use super::show::one_namespace;
use super::{Drive, LnvmError};
use crate::control::Answer;
use crate::words::text_of;
use flashlane_base::{Geometry, Location, PpaStyle};
use flashlane_ocssd::Device;
use serde_json::{Map, Value, json};

/// `lnvm diag-bbtbl`: the counts of a PU's bad-block table, as JSON too, and its bytes.
///
/// # Errors
/// No such channel or LUN, or it is a device of 2.0.
pub(crate) fn bad_blocks_of(
    drive: &Drive,
    namespace: u32,
    channel: u32,
    lun: u32,
) -> Result<Answer, LnvmError> {
    one_namespace(namespace)?;
    if drive.ssd.format().style() == PpaStyle::V20 {
        return Err(LnvmError::Style { verb: "diag-bbtbl" });
    }
    let pu = pu_of(drive.ssd.geometry(), channel, lun)?;
    let Some(table) = drive.ssd.bad_blocks(pu) else {
        return Err(LnvmError::Place { what: "PU", found: pu, last: 0 });
    };
    let rows = [
        ("verid", 1),
        ("tblks", table.blocks.len() as u64),
        ("tfact", table.factory_bad.into()),
        ("tgrown", table.grown_bad.into()),
        ("tdresv", table.device_reserved.into()),
        ("thresv", table.host_reserved.into()),
    ];
    let mut text = "LightNVM Bad Block Stats:\n".to_string();
    for (name, value) in rows {
        let value = if name == "verid" { format!("{value:#x}") } else { value.to_string() };
        text += &format!("{name:<9}: {value}\n");
    }
    text += "Use raw output to retrieve table.\n";
    let mut json: Map<String, Value> =
        rows.iter().map(|(name, value)| (name.to_string(), json!(value))).collect();
    json.insert("blk".into(), json!(table.blocks));
    Ok(Answer { text, json: text_of(&Value::Object(json)), bytes: table.blocks })
}

/// Where a mark goes: channel, LUN in it, plane, block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub channel: u32,
    pub lun: u32,
    /// Plane; a 2.0 device names none, all get the mark.
    pub plane: u32,
    pub block: u32,
}

fn within(what: &'static str, found: u32, count: u32) -> Result<(), LnvmError> {
    match found < count {
        true => Ok(()),
        false => Err(LnvmError::Place { what, found, last: count - 1 }),
    }
}

fn pu_of(geo: &Geometry, channel: u32, lun: u32) -> Result<u32, LnvmError> {
    within("channel", channel, geo.channels)?;
    within("LUN", lun, geo.pus_per_channel)?;
    Ok(channel * geo.pus_per_channel + lun)
}

/// `lnvm diag-set-bbtbl`: gives a block a mark in place of the one it has, durable when it returns.
///
/// # Errors
/// There is no such block or mark, or the block belongs to a target.
pub(crate) fn set_bad_block_of(drive: &Drive, at: Block, mark: u32) -> Result<Answer, LnvmError> {
    let bits = u8::try_from(mark).ok().filter(|m| *m < 32).ok_or(LnvmError::Mark(mark))?;
    let geo = drive.geometry();
    let pu = pu_of(&geo, at.channel, at.lun)?;
    within("plane", at.plane, geo.planes)?;
    within("block", at.block, geo.chunks_per_pu)?;
    if let Some(owner) = drive.core()?.owner("flash0", pu, at.block) {
        return Err(LnvmError::Owned { path: drive.path.clone(), pu, owner });
    }
    set_mark(drive, (pu, at.plane, at.block), bits);
    drive.ssd.make_durable().map_err(|e| drive.at(e))?;
    let Block { channel, lun, plane, block } = at;
    let text =
        format!("Updating: Ch.: {channel} LUN: {lun} Plane: {plane} Block: {block} -> {mark}\n");
    Ok(Answer { text, ..Answer::default() })
}

pub(super) fn set_mark(drive: &Drive, (pu, plane, chunk): (u32, u32, u32), mark: u8) {
    let geo = drive.geometry();
    // The first sector of the plane's first page.
    let sector = match drive.ssd.format().style() {
        PpaStyle::V12 => plane * geo.sectors_per_page,
        PpaStyle::V20 => 0,
    };
    let at = drive.ssd.format().pack(Location { pu, chunk, sector });
    let done = drive.ssd.set_bad_blocks(&[at], mark);
    assert!(done, "the place and the mark were checked");
}
