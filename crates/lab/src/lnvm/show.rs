//! What the `lnvm` verbs print: nvme-cli's lines, sysfs's names, JSON.
//!
//! Owns: the texts. Promises: lines that nvme-cli prints look as they do there; attributes have the names
//! of `/sys/block/*/lightnvm` and `/sys/block/*/pblk`; to show a pblk target it is mounted on a shadow
//! of the image: nothing is written. Never: changes a drive.

use super::{Created, Drive, LnvmError, pu_of};
use crate::report::short;
use crate::stack::{StackError, mount_pblk};
use flashlane_base::{Bytes, Location, Ns, PpaStyle, SECTOR_BYTES};
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::log::{ATTRIBUTES, Recovery};
use flashlane_ocssd::core::uuid_text;
use flashlane_ocssd::device::{CellMode, ChunkInfo, ChunkState};
use flashlane_ocssd::ssd::Identify;
use flashlane_ocssd::{Device, TargetInfo, TargetKind, TargetState};
use flashlane_rt::{CostTable, Virtual};
use serde_json::{Map, Value, json};
use std::path::Path;

/// Types that `create` knows, with the version of what they keep on the medium.
const TYPES: [(&str, [u32; 3]); 3] = [("pblk", [1, 0, 0]), ("raw", [1, 0, 0]), ("pftl", [1, 0, 0])];

fn version(v: [u32; 3]) -> String {
    format!("({},{},{})", v[0], v[1], v[2])
}

fn text_of(value: &Value) -> String {
    format!("{value:#}\n")
}

/// State of a target in a word or two.
fn state(info: &TargetInfo) -> &'static str {
    match info.state {
        TargetState::Ready => "ready",
        TargetState::BeingCreated => "half created",
    }
}

fn target_json(info: &TargetInfo) -> Value {
    json!({
        "name": info.name,
        "type": info.kind.to_string(),
        "lun_begin": info.begin,
        "lun_end": info.end,
        "over_provisioning_percent": info.over_provisioning,
        "state": state(info),
        "uuid": info.uuid.as_ref().map(uuid_text),
        "settings": info.settings,
    })
}

/// `lnvm list`: drives, and the targets on each.
///
/// # Errors
/// One of them can't be opened.
pub fn list(paths: &[&Path]) -> Result<(String, String), LnvmError> {
    let mut text = format!("Number of devices: {}\n", paths.len());
    text += &format!("{:<12}\t{:<12}\tVersion\n", "Device", "Block manager");
    let mut devices = Vec::new();
    let mut targets = Vec::new();
    for path in paths {
        let drive = Drive::look(path)?;
        let shown = path.display().to_string();
        text += &format!("{shown:<12}\t{:<12}\t{}\n", "gennvm", version([0, 1, 0]));
        let all = drive.core.list();
        for t in &all {
            targets.push(format!(
                "{:<12}\t{:<8}\t{:<12}\t{:<9}\t{}\n",
                t.name,
                t.kind.to_string(),
                shown,
                format!("{}-{}", t.begin, t.end),
                state(t)
            ));
        }
        devices.push(json!({
            "device": shown,
            "block_manager": "gennvm",
            "targets": all.iter().map(target_json).collect::<Vec<_>>(),
        }));
    }
    text += &format!("\nNumber of targets: {}\n", targets.len());
    if !targets.is_empty() {
        text +=
            &format!("{:<12}\t{:<8}\t{:<12}\t{:<9}\tState\n", "Target", "Type", "Device", "LUNs");
        text += &targets.concat();
    }
    Ok((text, text_of(&json!({ "devices": devices }))))
}

/// Attributes of the device, by sysfs's names for its interface.
fn device_attributes(id: &Identify) -> Vec<(&'static str, Value)> {
    let g = &id.geometry;
    let ns = |t: Ns| json!(t.as_ns());
    let both = |v: &'static str, caps: u64| {
        vec![
            ("version", json!(v)),
            ("capabilities", json!(caps)),
            ("read_typ", ns(id.read.0)),
            ("read_max", ns(id.read.1)),
        ]
    };
    match id.style {
        PpaStyle::V12 => {
            let format: Vec<String> =
                id.format.iter().map(|(name, bits)| format!("{name}:{bits}")).collect();
            let mut all = both("1", 1);
            all.extend([
                ("device_mode", json!(0)),
                ("media_manager", json!("gennvm")),
                ("ppa_format", json!(format.join(","))),
                ("media_type", json!(0)),
                ("flash_media_type", json!(id.flash_media_type)),
                ("num_channels", json!(g.channels)),
                ("num_luns", json!(g.pus_per_channel)),
                ("num_planes", json!(g.planes)),
                ("num_blocks", json!(g.chunks_per_pu)),
                ("num_pages", json!(g.pages_per_block)),
                ("page_size", json!(id.page_bytes)),
                ("hw_sector_size", json!(id.sector_bytes)),
                ("oob_sector_size", json!(id.oob_bytes)),
                ("prog_typ", ns(id.program.0)),
                ("prog_max", ns(id.program.1)),
                ("erase_typ", ns(id.erase.0)),
                ("erase_max", ns(id.erase.1)),
                ("multiplane_modes", json!(plane_modes(id))),
                ("media_capabilities", json!(media_capabilities(id))),
                ("max_phys_secs", json!(id.vector_max)),
            ]);
            all
        }
        PpaStyle::V20 => {
            let mut all = both("2.0", capabilities(id));
            all.extend([
                ("groups", json!(g.channels)),
                ("punits", json!(g.pus_per_channel)),
                ("chunks", json!(g.chunks_per_pu)),
                ("clba", json!(g.sectors_per_chunk())),
                ("ws_min", json!(g.ws_min)),
                ("ws_opt", json!(g.ws_opt)),
                ("maxoc", json!(id.max_open.0)),
                ("maxocpu", json!(id.max_open.1)),
                ("mw_cunits", json!(g.mw_cunits)),
                ("write_typ", ns(id.program.0)),
                ("write_max", ns(id.program.1)),
                ("reset_typ", ns(id.erase.0)),
                ("reset_max", ns(id.erase.1)),
            ]);
            all
        }
    }
}

/// 2.0 media and controller capabilities: vector copy, resets of free chunks.
fn capabilities(id: &Identify) -> u64 {
    u64::from(id.vector_copy) | u64::from(id.reset_free) << 1
}

/// 1.2 `mpos`: planes at once for reads, programs and erases.
fn plane_modes(id: &Identify) -> u32 {
    let modes = id.plane_modes.iter().fold(0, |bits, n| bits | 1 << n.trailing_zeros());
    modes | modes << 8 | modes << 16
}

/// 1.2 `mccap`: single-bit mode, suspend.
fn media_capabilities(id: &Identify) -> u32 {
    u32::from(id.slc_mode) | u32::from(id.suspend) << 1
}

/// A pblk target as a mount finds it.
struct Shown {
    bytes: u64,
    recovery: Option<Recovery>,
    /// What sysfs showed.
    attributes: Vec<(&'static str, String)>,
}

fn pblk_attributes(drive: &Drive, info: &TargetInfo) -> Result<Shown, LnvmError> {
    let (_, part) = drive.shadow()?.target(&info.name)?;
    let vm = Virtual::new(1, 0, CostTable::zero());
    let (cx, uuid) = (vm.cx(), info.uuid);
    let shown = vm.run(async move {
        let pblk = mount_pblk(&cx, part, uuid).await?;
        let of = |name: &str| pblk.attribute(name).unwrap_or_default();
        Ok(Shown {
            bytes: pblk.info().capacity * SECTOR_BYTES as u64,
            recovery: pblk.recovery(),
            attributes: ATTRIBUTES.iter().map(|(name, _)| (*name, of(name))).collect(),
        })
    })?;
    shown.map_err(|source: StackError| LnvmError::Target {
        path: drive.path.clone(),
        name: info.name.clone(),
        source: Box::new(source),
    })
}

/// `lnvm info`: types, the device's attributes, and each target's, or only that one's.
///
/// # Errors
/// No such drive or target.
pub fn info(path: &Path, only: Option<&str>) -> Result<(String, String), LnvmError> {
    let drive = Drive::look(path)?;
    let id = drive.ssd.identify();
    let mut text = format!("LightNVM (0,1,0). {} target type(s) registered.\n", TYPES.len());
    text += "Type\tVersion\n";
    for (name, v) in TYPES {
        text += &format!("{name}\t{}\n", version(v));
    }
    text += &format!("\nDevice {} ({}):\n", path.display(), id.name);
    let attributes = device_attributes(&id);
    for (name, value) in &attributes {
        text += &line(name, &plain(value));
    }
    let mut targets = Vec::new();
    let all = drive.core.list();
    if let Some(name) = only
        && !all.iter().any(|t| t.name == name)
    {
        drive.target(name)?;
    }
    for t in all.iter().filter(|t| only.is_none_or(|name| t.name == name)) {
        let (said, json) = target(&drive, t);
        text += &said;
        targets.push(json);
    }
    let device: Map<String, Value> =
        attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let types: Vec<Value> =
        TYPES.iter().map(|(name, v)| json!({ "type": name, "version": v })).collect();
    let json = json!({
        "types": types,
        "device": { "path": path.display().to_string(), "name": id.name, "lightnvm": device },
        "targets": targets,
    });
    Ok((text, text_of(&json)))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

fn line(name: &str, value: &str) -> String {
    format!("  {name:<20} {}\n", value.trim_end().replace('\n', "\n                       "))
}

/// A target; one that can't be mounted is shown with the reason.
fn target(drive: &Drive, t: &TargetInfo) -> (String, Value) {
    let mut json = target_json(t);
    let mut text = format!("\nTarget {}:\n", t.name);
    text += &line("type", &t.kind.to_string());
    text += &line("luns", &format!("{}-{}", t.begin, t.end));
    text += &line("state", state(t));
    if let Some(uuid) = &t.uuid {
        text += &line("uuid", &uuid_text(uuid));
    }
    if t.kind != TargetKind::Pblk || t.state != TargetState::Ready {
        if let Some(settings) = t.settings.as_object() {
            for (name, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
                text += &line(name, &plain(value));
            }
        }
        return (text, json);
    }
    match pblk_attributes(drive, t) {
        Ok(Shown { bytes, recovery, attributes }) => {
            text += &line("capacity", &Bytes::new(bytes).to_string());
            let clean = recovery.as_ref().is_some_and(|r| r.clean);
            text += &line("stopped", if clean { "cleanly" } else { "NOT cleanly" });
            for (name, value) in &attributes {
                text += &line(name, value);
            }
            let sysfs: Map<String, Value> = attributes
                .into_iter()
                .map(|(name, value)| (name.to_string(), json!(value)))
                .collect();
            json["capacity_bytes"] = json!(bytes);
            json["stopped_cleanly"] = json!(clean);
            json["pblk"] = Value::Object(sysfs);
        }
        Err(why) => {
            text += &line("problem", &why.to_string());
            json["problem"] = json!(why.to_string());
        }
    }
    (text, json)
}

/// `lnvm id-ns`: the identify page of 1.2 or the geometry page of 2.0.
///
/// # Errors
/// No such drive or namespace.
pub fn id_ns(path: &Path, namespace: u32, human: bool) -> Result<(String, String), LnvmError> {
    if namespace != 1 {
        return Err(LnvmError::Namespace(namespace));
    }
    let drive = Drive::look(path)?;
    let id = drive.ssd.identify();
    let attributes: Map<String, Value> =
        device_attributes(&id).into_iter().map(|(n, v)| (n.to_string(), v)).collect();
    let text = match id.style {
        PpaStyle::V12 => id12(&id, human),
        PpaStyle::V20 => id20(&id, human),
    };
    Ok((text, text_of(&Value::Object(attributes))))
}

fn id12(id: &Identify, human: bool) -> String {
    let g = &id.geometry;
    let say = |text: &str| if human { format!("           {text}\n") } else { String::new() };
    let mut text = "verid    : 0x1\nvmnt     : 0\n".to_string();
    text += &say("Generic/Enable opcodes as found in this spec.");
    text += "cgrps    : 1\ncap      : 0x1\n";
    text += &say("[0]: Bad block table management");
    text += "dom      : 0x2\n";
    text += &say("[1]: Error Code Correction(ECC) mode");
    text += "ppaf     :\n";
    let mut at = 0;
    let mut fields: Vec<String> = Vec::new();
    for (name, bits) in &id.format {
        let short = match *name {
            "channel" => "ch",
            "pu" | "lun" => "lun",
            "plane" => "pl",
            "block" | "chunk" => "blk",
            "page" => "pg",
            _ => "sec",
        };
        fields.push(format!(
            " {:<8}: {at} {:<9}: {bits}\n",
            format!("{short} offs"),
            format!("{short} bits")
        ));
        at += bits;
    }
    fields.reverse();
    text += &fields.concat();
    text += "grp      : 0\n mtype   : 0\n";
    text += &say("NAND Flash Memory");
    let kinds = ["slc", "mlc", "tlc"];
    let kind = kinds.iter().position(|k| *k == id.flash_media_type);
    text += &format!(" fmtype  : {}\n", kind.unwrap_or(kinds.len()));
    text += &say(match kind {
        Some(0) => "Single bit Level Cell flash (SLC)",
        Some(1) => "Two bit Level Cell flash (MLC)",
        Some(2) => "Three bit Level Cell flash (TLC)",
        _ => "Reserved",
    });
    let rows = [
        ("chnls", g.channels as u64),
        ("luns", g.pus_per_channel as u64),
        ("plns", g.planes as u64),
        ("blks", g.chunks_per_pu as u64),
        ("pgs", g.pages_per_block as u64),
        ("fpg_sz", id.page_bytes as u64),
        ("csecs", id.sector_bytes as u64),
        ("sos", id.oob_bytes as u64),
        ("trdt", id.read.0.as_ns()),
        ("trdm", id.read.1.as_ns()),
        ("tprt", id.program.0.as_ns()),
        ("tprm", id.program.1.as_ns()),
        ("tbet", id.erase.0.as_ns()),
        ("tbem", id.erase.1.as_ns()),
    ];
    for (name, value) in rows {
        text += &format!(" {name:<8}: {value}\n");
    }
    text +=
        &format!(" mpos    : {:#x}\n mccap   : {:#x}\n", plane_modes(id), media_capabilities(id));
    text + " cpar    : 0\n"
}

fn id20(id: &Identify, human: bool) -> String {
    let g = &id.geometry;
    let mut text = "ver_major     : 0x2\nver_minor     : 0\n".to_string();
    text += &format!("mccap         : {:#x}\n", capabilities(id));
    if human && id.vector_copy {
        text += "           [0]: Vector copy support\n";
    }
    if human && id.reset_free {
        text += "           [1]: Multiple resets support\n";
    }
    text += "wit           : 0\nlba format\n";
    let bits = |name: &str| id.format.iter().find(|(n, _)| *n == name).map_or(0, |(_, b)| *b);
    let rows =
        [("grp len", "group"), ("pu len", "pu"), ("chk len", "chunk"), ("clba len", "sector")];
    for (name, field) in rows {
        text += &format!(" {name:<13}: {}\n", bits(field));
    }
    let parts: [(&str, Vec<(&str, u64)>); 3] = [
        (
            "geometry",
            vec![
                ("num_grp", g.channels as u64),
                ("num_pu", g.pus_per_channel as u64),
                ("num_chk", g.chunks_per_pu as u64),
                ("clba", g.sectors_per_chunk() as u64),
            ],
        ),
        (
            "write req",
            vec![
                ("ws_min", g.ws_min as u64),
                ("ws_opt", g.ws_opt as u64),
                ("mw_cunits", g.mw_cunits as u64),
                ("maxoc", id.max_open.0 as u64),
                ("maxocpu", id.max_open.1 as u64),
            ],
        ),
        (
            "perf metrics",
            vec![
                ("trdt (ns)", id.read.0.as_ns()),
                ("trdm (ns)", id.read.1.as_ns()),
                ("twrt (ns)", id.program.0.as_ns()),
                ("twrm (ns)", id.program.1.as_ns()),
                ("tcrst (ns)", id.erase.0.as_ns()),
                ("tcrsm (ns)", id.erase.1.as_ns()),
            ],
        ),
    ];
    for (head, rows) in parts {
        text += &format!("{head}\n");
        for (name, value) in rows {
            text += &format!(" {name:<13}: {value}\n");
        }
    }
    text
}

/// A chunk's state as a bit, and in a word.
fn chunk_state(state: ChunkState) -> (u8, &'static str) {
    match state {
        ChunkState::Free => (1, "FREE"),
        ChunkState::Closed => (2, "CLOSED"),
        ChunkState::Open => (4, "OPEN"),
        _ => (8, "OFFLINE"),
    }
}

/// All chunks with their first sector's address, in the order of the log.
fn chunks(drive: &Drive) -> Vec<(u64, ChunkInfo)> {
    let ssd = &drive.ssd;
    let mut all = Vec::new();
    for pu in 0..ssd.geometry().pus() {
        for (chunk, info) in (0..).zip(ssd.chunk_report(pu, 0, u32::MAX)) {
            all.push((ssd.format().pack(Location { pu, chunk, sector: 0 }).0, info));
        }
    }
    all
}

/// `lnvm chunk-log`: all chunks, in order.
///
/// # Errors
/// No such drive.
pub fn chunk_log(path: &Path) -> Result<(String, String), LnvmError> {
    let all = chunks(&Drive::look(path)?);
    let mut text = format!("Total chunks in namespace: {}\n", all.len());
    let mut json = Vec::new();
    for (i, (slba, c)) in all.iter().enumerate() {
        let name = chunk_state(c.state).1;
        text += &format!(
            " [{i:5}] {{ SLBA: 0x{slba:016x}, WP: 0x{:016x}, CNLB: 0x{:016x}, State: {name:<8}, \
             Type: {:<20}, Attr: {:<8}, WLI: {:4} }}\n",
            c.write_pointer, c.length, "SEQWRITE_REQ", "NONE", c.wear_index
        );
        json.push(json!({
            "slba": slba, "wp": c.write_pointer, "cnlb": c.length, "state": name.to_lowercase(),
            "wear_index": c.wear_index, "erases": c.erases,
            "cell_mode": match c.cell { CellMode::Slc => "slc", _ => "native" },
        }));
    }
    Ok((text, text_of(&json!({ "chunks": json }))))
}

/// `lnvm chunk-log -o binary`: the descriptors of 32 bytes each (OCSSD 2.0, 2.3).
///
/// # Errors
/// No such drive.
pub fn chunk_log_binary(path: &Path) -> Result<Vec<u8>, LnvmError> {
    let mut out = Vec::new();
    for (slba, c) in chunks(&Drive::look(path)?) {
        out.extend([chunk_state(c.state).0, 1, c.wear_index, 0, 0, 0, 0, 0]);
        out.extend(slba.to_le_bytes());
        out.extend(u64::from(c.length).to_le_bytes());
        out.extend(u64::from(c.write_pointer).to_le_bytes());
    }
    Ok(out)
}

/// `lnvm diag-bbtbl`: the counts of a PU's bad-block table, as JSON too, and its bytes.
///
/// # Errors
/// No such drive, channel or LUN, or it is a device of 2.0.
pub fn bad_blocks(
    path: &Path,
    namespace: u32,
    channel: u32,
    lun: u32,
) -> Result<(String, String, Vec<u8>), LnvmError> {
    if namespace != 1 {
        return Err(LnvmError::Namespace(namespace));
    }
    let drive = Drive::look(path)?;
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
    Ok((text, text_of(&Value::Object(json)), table.blocks))
}

/// What a mount did, in a line: clean or not, the time of each step.
pub fn recovery_text(r: &Recovery) -> String {
    let steps: Vec<String> =
        r.steps.iter().map(|(name, time)| format!("{name} {}", short(time.as_ns()))).collect();
    let total = r.steps.iter().fold(0, |sum, (_, time)| sum + time.as_ns());
    let mut text = match r.clean {
        true => "it had been stopped cleanly".to_string(),
        false => format!(
            "it had NOT been stopped: {} lines replayed, {} looked through sector by sector",
            r.lines_replayed, r.lines_scanned
        ),
    };
    for (count, what) in [
        (r.torn_units.len() as u64, "torn write units"),
        (r.lost_units.len() as u64, "LOST write units"),
        (r.astray, "sectors astray"),
    ] {
        if count > 0 {
            text += &format!(", {count} {what}");
        }
    }
    text + &format!("; life {}, {} in all ({})", r.generation, short(total), steps.join(", "))
}

/// What a mount did, as JSON.
pub fn recovery_json(r: &Recovery) -> Value {
    let steps: Vec<Value> = r
        .steps
        .iter()
        .map(|(name, time)| json!({ "step": name, "time_ns": time.as_ns() }))
        .collect();
    json!({
        "clean": r.clean,
        "generation": r.generation,
        "log_records": r.records,
        "lines_replayed": r.lines_replayed,
        "lines_scanned": r.lines_scanned,
        "torn_units": r.torn_units.len(),
        "lost_units": r.lost_units.len(),
        "astray_sectors": r.astray,
        "padded_sectors": r.padded_sectors,
        "steps": steps,
    })
}

/// What a create came to.
pub fn created(c: &Created) -> (String, String) {
    let i = &c.info;
    let mut text = format!("target {}: {} on LUNs {} to {}", i.name, i.kind, i.begin, i.end);
    if let Some(sectors) = c.capacity {
        text += &format!(", {}", Bytes::new(sectors * SECTOR_BYTES as u64));
    }
    text.push('\n');
    if let Some(r) = &c.recovery {
        text += &format!("it was there: {}\n", recovery_text(r));
    }
    let mut json = target_json(i);
    json["capacity_bytes"] = json!(c.capacity.map(|s| s * SECTOR_BYTES as u64));
    json["recovery"] = json!(c.recovery.as_ref().map(recovery_json));
    (text, text_of(&json))
}

/// A target that was taken off.
pub fn removed(i: &TargetInfo) -> (String, String) {
    let text = format!(
        "target {} is removed; what is on LUNs {} to {} stays until something is created there\n",
        i.name, i.begin, i.end
    );
    (text, text_of(&target_json(i)))
}
