//! What the `lnvm` verbs print: nvme-cli's lines, sysfs's names, JSON.
//!
//! Owns: the texts. Promises: lines that nvme-cli prints look as they do there; attributes have the names
//! of `/sys/block/*/lightnvm` and `/sys/block/*/pblk`; to show a pblk target it is mounted on a shadow
//! of the image: nothing is written. Never: changes a drive.

mod identify;

pub(crate) use identify::id_ns_of;

use super::{Created, Drive, LnvmError, Lost, knobs};
use crate::contention::ContentionReport;
use crate::control::live::InUse;
use crate::control::{Answer, Ask};
use crate::verbs::{VerbError, ask};
use crate::words::{short, text_of};
use flashlane_base::counters::Counters;
use flashlane_base::{Bytes, Location, Ns, SECTOR_BYTES};
use flashlane_ftl::layer::{Layer, LostSectors, Recovered, Side};
use flashlane_ocssd::core::uuid_text;
use flashlane_ocssd::device::{CellMode, ChunkInfo, ChunkState};
use flashlane_ocssd::{Device, TargetInfo, TargetState};
use flashlane_stack::kinds;
use identify::device_attributes;
use serde_json::{Map, Value, json};
use std::path::Path;

/// Version of what a target of any type keeps on the medium.
const TYPE_VERSION: [u32; 3] = [1, 0, 0];

fn version(v: [u32; 3]) -> String {
    format!("({},{},{})", v[0], v[1], v[2])
}

pub(super) fn one_namespace(namespace: u32) -> Result<(), LnvmError> {
    match namespace {
        1 => Ok(()),
        other => Err(LnvmError::Namespace(other)),
    }
}

/// State of a target in the drive's table, in a word or two. Only a mount can tell if the target
/// can be used, and [`list`] mounts nothing, so the word must not promise that.
fn state(info: &TargetInfo) -> &'static str {
    match info.state {
        TargetState::Ready => "created",
        TargetState::BeingCreated => "half created",
    }
}

fn target_json(info: &TargetInfo) -> Value {
    let mut json = json!({
        "name": info.name,
        "type": info.kind.to_string(),
        "lun_begin": info.begin,
        "lun_end": info.end,
        "over_provisioning_percent": info.over_provisioning,
        "state": state(info),
        "uuid": info.uuid.as_ref().map(uuid_text),
        "settings": info.settings,
    });
    if let Some((first, last)) = info.chunks {
        json["chunks"] = json!([first, last]);
    }
    json
}

/// `lnvm list`: drives, and the targets on each.
///
/// # Errors
/// One of them can't be opened.
pub fn list(paths: &[&Path]) -> Result<Answer, VerbError> {
    let mut text = format!("Number of devices: {}\n", paths.len());
    text += &format!("{:<12}\t{:<12}\tVersion\n", "Device", "Block manager");
    let mut devices = Vec::new();
    let mut targets = Vec::new();
    for path in paths {
        let answer = ask(path, &Ask::List)?;
        let shown = path.display().to_string();
        text += &format!("{shown:<12}\t{:<12}\t{}\n", "gennvm", version([0, 1, 0]));
        let all: Value = serde_json::from_str(&answer.json).unwrap_or_default();
        for t in all.as_array().into_iter().flatten() {
            let of = |key: &str| plain(&t[key]);
            let luns = format!("{}-{}", of("lun_begin"), of("lun_end"));
            let (name, kind, state) = (of("name"), of("type"), of("state"));
            targets.push(format!("{name:<12}\t{kind:<8}\t{shown:<12}\t{luns:<9}\t{state}\n"));
        }
        devices.push(json!({ "device": shown, "block_manager": "gennvm", "targets": all }));
    }
    text += &format!("\nNumber of targets: {}\n", targets.len());
    if !targets.is_empty() {
        text +=
            &format!("{:<12}\t{:<8}\t{:<12}\t{:<9}\tState\n", "Target", "Type", "Device", "LUNs");
        text += &targets.concat();
    }
    Ok(Answer::new((text, text_of(&json!({ "devices": devices })))))
}

/// The targets of a drive that is open; [`list`] makes lines of them.
///
/// # Errors
/// The table of targets can't be used.
pub(crate) fn list_of(drive: &Drive) -> Result<Answer, LnvmError> {
    let all: Vec<Value> = drive.core()?.list().iter().map(target_json).collect();
    Ok(Answer { json: text_of(&json!(all)), ..Answer::default() })
}

/// A target as a mount finds it.
struct Shown {
    bytes: u64,
    recovery: Option<Recovered>,
    /// What sysfs showed.
    attributes: Vec<(&'static str, String)>,
}

fn shown(layer: &std::sync::Arc<dyn Layer>) -> Shown {
    let all = layer.kind().attributes().iter();
    Shown {
        bytes: layer.clone().above().block().info().capacity * SECTOR_BYTES as u64,
        recovery: layer.recovered(),
        attributes: all.map(|a| (a.name, layer.attribute(a.name).unwrap_or_default())).collect(),
    }
}

/// `lnvm info`: types, the device's attributes, and each target's, or only that one's.
///
/// # Errors
/// No such target.
pub(crate) fn info_of(
    drive: &Drive,
    only: Option<&str>,
    in_use: Option<InUse<'_>>,
) -> Result<Answer, LnvmError> {
    let id = drive.ssd.identify();
    // Types that `create` knows.
    let types: Vec<_> =
        kinds::target_names().into_iter().map(|name| (name, TYPE_VERSION)).collect();
    let mut text = format!("LightNVM (0,1,0). {} target type(s) registered.\n", types.len());
    text += "Type\tVersion\n";
    for (name, v) in &types {
        text += &format!("{name}\t{}\n", version(*v));
    }
    text += &format!("\nDevice {} ({}):\n", drive.path.display(), id.name);
    let attributes = device_attributes(&id);
    for (name, value) in &attributes {
        text += &line(name, &plain(value));
    }
    let mut targets = Vec::new();
    let all = drive.core()?.list();
    if let Some(name) = only
        && !all.iter().any(|t| t.name == name)
    {
        drive.target(name)?;
    }
    for t in all.iter().filter(|t| only.is_none_or(|name| t.name == name)) {
        let (said, json) = target(drive, t, in_use);
        text += &said;
        targets.push(json);
    }
    let device: Map<String, Value> =
        attributes.into_iter().map(|(name, value)| (name.to_string(), value)).collect();
    let types: Vec<Value> =
        types.iter().map(|(name, v)| json!({ "type": name, "version": v })).collect();
    let json = json!({
        "types": types,
        "device": { "path": drive.path.display().to_string(), "name": id.name, "lightnvm": device },
        "targets": targets,
    });
    Ok(Answer::new((text, text_of(&json))))
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_string)
}

fn line(name: &str, value: &str) -> String {
    format!("  {name:<20} {}\n", value.trim_end().replace('\n', "\n                       "))
}

/// A target; one that can't be mounted is shown with the reason.
fn target(drive: &Drive, t: &TargetInfo, in_use: Option<InUse<'_>>) -> (String, Value) {
    let mut json = target_json(t);
    let mut text = format!("\nTarget {}:\n", t.name);
    text += &line("type", &t.kind.to_string());
    text += &line("luns", &format!("{}-{}", t.begin, t.end));
    text += &line("state", state(t));
    if let Some(uuid) = &t.uuid {
        text += &line("uuid", &uuid_text(uuid));
    }
    let used = in_use.filter(|used| used.live.uses(&t.name));
    let in_use = used.is_some();
    if in_use {
        text += &line("in use", &format!("by process {}", std::process::id()));
        json["in_use_by"] = json!(std::process::id());
    }
    let running = used.and_then(|used| Some((used.live.layer(&t.name)?, used.cx.now())));
    let kind = kinds::find(&t.kind).filter(|kind| !kind.attributes().is_empty());
    let settings = || {
        let all = t.settings.as_object().into_iter().flatten();
        let all = all.filter(|(_, value)| !value.is_null());
        all.map(|(name, value)| line(name, &plain(value))).collect::<String>()
    };
    let Some(kind) = kind.filter(|_| t.state == TargetState::Ready) else {
        return (text + &settings(), json);
    };
    // What is inside a drive is told nowhere else.
    if kind.stands().side == Side::Drive {
        text += &settings();
    }
    if in_use && running.is_none() {
        return (text, json); // it is being mounted
    }
    let found = match &running {
        Some((layer, _)) => Ok(shown(layer)),
        None => knobs::on_shadow(drive, t, |_, layer| shown(layer)),
    };
    match found {
        Ok(Shown { bytes, recovery, attributes }) => {
            text += &line("capacity", &Bytes::new(bytes).to_string());
            let clean = recovery.as_ref().map_or(Some(false), |r| r.clean);
            if !in_use && let Some(clean) = clean {
                text += &line("stopped", if clean { "cleanly" } else { "NOT cleanly" });
            }
            let first = t.chunks.map_or(0, |(first, _)| first);
            let lost = recovery.as_ref().map(|r| Lost::of(r, t.begin, first)).unwrap_or_default();
            for said in mount_lines(&lost) {
                text += &line("at the mount", &said);
            }
            json["lost"] = lost_json(&lost);
            for (name, value) in &attributes {
                text += &line(name, value);
            }
            let sysfs: Map<String, Value> = attributes
                .into_iter()
                .map(|(name, value)| (name.to_string(), json!(value)))
                .collect();
            json["capacity_bytes"] = json!(bytes);
            json["stopped_cleanly"] = json!(clean);
            json[kind.folder()] = Value::Object(sysfs);
            if let Some(layers) = used.and_then(|used| used.live.layers(&t.name)) {
                for (layer, counted) in layers.counted_above() {
                    let numbers: Map<String, Value> =
                        counted.iter().map(|c| (c.name.to_string(), c.value.into())).collect();
                    let some = counted.iter().filter(|c| c.value > 0);
                    let said = some.map(|c| format!("{}:{}", c.name, c.value));
                    text += &line(layer, &said.collect::<Vec<_>>().join(" "));
                    json["layers"][layer] = Value::Object(numbers);
                }
            }
            if let Some(waits) = running.and_then(|(layer, now)| layer.contention(now)) {
                let waited = ContentionReport::of(&waits);
                text += &contention_text(&waited);
                json["contention"] = json!(waited);
            }
        }
        Err(why) => {
            text += &line("problem", &why.to_string());
            json["problem"] = json!(why.to_string());
        }
    }
    (text, json)
}

/// What the cores of a target in use have waited for since it was mounted, and how full its rings are.
pub(crate) fn contention_text(c: &ContentionReport) -> String {
    let waits = |n: u64, ns: u64| format!("{n} waits of {} in all", short(ns));
    let mut text = String::new();
    for l in &c.locks {
        let said =
            format!("{} of {} times contended, {}", l.contended, l.acquired, short(l.wait_ns));
        text += &line(&format!("{} lock", l.lock), &said);
    }
    let exchanges = c.exchanges.shown("info").into_iter().map(|(name, n)| format!("{name}:{n}"));
    text += &line("exchanges", &exchanges.collect::<Vec<_>>().join(" "));
    let passed = format!("; {} busy channels passed by", c.channels_passed);
    text += &line("semaphores", &(waits(c.semaphore_waits, c.semaphore_wait_ns) + &passed));
    for q in &c.queues {
        let depth = format!(
            "{} of {} slots, mean {:.1}, most {}; full: ",
            q.depth_now, q.slots, q.depth_mean, q.depth_max
        );
        text += &line(&format!("ring {}", q.ring), &(depth + &waits(q.full_waits, q.full_wait_ns)));
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

/// `lnvm chunk-log`: all chunks, in order; as bytes, the descriptors of 32 bytes each (OCSSD 2.0, 2.3).
pub(crate) fn chunk_log_of(drive: &Drive) -> Answer {
    let all = chunks(drive);
    let mut text = format!("Total chunks in namespace: {}\n", all.len());
    let mut json = Vec::new();
    for (i, (slba, c)) in all.iter().enumerate() {
        let name = chunk_state(c.state).1;
        text += &format!(
            " [{i:5}] {{ SLBA: 0x{slba:016x}, WP: 0x{:016x}, CNLB: 0x{:016x}, State: {name:<8}, \
             Type: {:<20}, Attr: {:<8}, WLI: {:4} }}\n",
            c.write_pointer, c.length, "SEQWRITE_REQ", "NONE", c.wear_index
        );
        let mut chunk = json!({
            "slba": slba, "wp": c.write_pointer, "cnlb": c.length, "state": name.to_lowercase(),
            "wear_index": c.wear_index, "erases": c.erases,
            "cell_mode": match c.cell { CellMode::Slc => "slc", _ => "native" },
        });
        if drive.ssd.traits().slc.is_some() {
            chunk["slc_erases"] = c.slc_erases.into();
        }
        json.push(chunk);
    }
    let json = text_of(&json!({ "chunks": json }));
    Answer { text, json, bytes: descriptors(&all) }
}

fn descriptors(all: &[(u64, ChunkInfo)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (slba, c) in all {
        out.extend([chunk_state(c.state).0, 1, c.wear_index, 0, 0, 0, 0, 0]);
        out.extend(slba.to_le_bytes());
        out.extend(u64::from(c.length).to_le_bytes());
        out.extend(u64::from(c.write_pointer).to_le_bytes());
    }
    out
}

/// Runs of lost sectors, or ranges of logical ones, that are named in a line, and in JSON.
const RUNS_SAID: usize = 8;
const RUNS_KEPT: usize = 1000;

/// The losses of a mount as one text that follows a sentence; empty if it lost nothing.
pub fn lost_text(lost: &Lost) -> String {
    mount_lines(lost).iter().map(|line| format!("; {line}")).collect()
}

/// The losses of a mount, and the units that it takes for torn, a line for each kind.
pub fn mount_lines(lost: &Lost) -> Vec<String> {
    let run = |(at, n): &(Location, u32)| match n {
        1 => at.to_string(),
        n => format!(
            "pu {} chunk {} sectors {} to {}",
            at.pu,
            at.chunk,
            at.sector,
            at.sector + n - 1
        ),
    };
    let mut lines = Vec::new();
    if !lost.sectors.is_empty() {
        let said = some(lost.sectors.iter().map(range_text), lost.sectors.len(), "ranges");
        let n = lost.logical();
        lines.push(format!(
            "LOST: {n} logical sectors: {said}; reads of them fail until they are written or \
             discarded"
        ));
    }
    if !lost.runs.is_empty() {
        let said = some(lost.runs.iter().map(run), lost.runs.len(), "places");
        lines.push(format!(
            "LOST: {} sectors can't be read ({said}); reads of all that they may have held fail \
             until it is written or discarded",
            lost.on_medium()
        ));
    }
    if let Some(at) = lost.host {
        lines.push(format!(
            "LOST: the host could not give {at}, the first of what may be more, and older copies \
             of it may have come back"
        ));
    }
    if lost.torn_units > 0 {
        lines.push(format!(
            "{} write units at the ends of open chunks can't be read: the mount takes each for one \
             that the power cut tore",
            lost.torn_units
        ));
    }
    lines
}

/// The first few of `of` items, then how many more there are.
fn some(said: impl Iterator<Item = String>, of: usize, what: &str) -> String {
    let mut said: Vec<String> = said.take(RUNS_SAID).collect();
    if let Some(more @ 1..) = of.checked_sub(RUNS_SAID) {
        said.push(format!("and {more} more {what}"));
    }
    said.join(", ")
}

fn range_text(l: &LostSectors) -> String {
    let LostSectors { first, count, cause } = l;
    match count {
        1 => format!("{first} ({cause})"),
        count => format!("{first} to {} ({cause})", first + count - 1),
    }
}

/// The same as JSON; null if nothing is lost and no unit was taken for torn.
pub fn lost_json(lost: &Lost) -> Value {
    let place = |at: &Location| json!({ "pu": at.pu, "chunk": at.chunk, "sector": at.sector });
    let run = |(at, n): &(Location, u32)| {
        let mut run = place(at);
        run["sectors"] = json!(n);
        run
    };
    let range = |l: &LostSectors| {
        let cause = l.cause.to_string();
        json!({ "first": l.first, "count": l.count, "cause": cause })
    };
    if *lost == Lost::default() {
        return Value::Null;
    }
    json!({
        "sectors": lost.on_medium(),
        "runs": lost.runs.iter().take(RUNS_KEPT).map(run).collect::<Vec<Value>>(),
        "runs_left_out": lost.runs.len().saturating_sub(RUNS_KEPT),
        "host_failed_first": lost.host.as_ref().map(place),
        "logical_sectors": lost.logical(),
        "ranges": lost.sectors.iter().take(RUNS_KEPT).map(range).collect::<Vec<Value>>(),
        "ranges_left_out": lost.sectors.len().saturating_sub(RUNS_KEPT),
        "torn_units": lost.torn_units,
    })
}

/// How a mount found a target, in a line.
pub fn recovery_text(r: &Recovered) -> String {
    let steps: Vec<String> =
        r.steps.iter().map(|(name, time)| format!("{name} {}", short(time.as_ns()))).collect();
    let total = r.steps.iter().fold(0, |sum, (_, time)| sum + time.as_ns());
    format!("{}, {} in all ({})", r.how, short(total), steps.join(", "))
}

pub fn recovery_json(r: &Recovered) -> Value {
    let step = |(name, time): &(&str, Ns)| json!({ "step": name, "time_ns": time.as_ns() });
    let mut all = r.numbers.clone();
    all.insert("steps".into(), r.steps.iter().map(step).collect());
    Value::Object(all)
}

pub fn created(c: &Created) -> Answer {
    let i = &c.info;
    let mut text = format!("target {}: {} on LUNs {} to {}", i.name, i.kind, i.begin, i.end);
    if let Some(sectors) = c.capacity {
        text += &format!(", {}", Bytes::new(sectors * SECTOR_BYTES as u64));
    }
    text.push('\n');
    if let Some(r) = &c.recovery {
        text += &format!("it was there: {}{}\n", recovery_text(r), lost_text(&c.lost));
    } else if c.lost != Lost::default() {
        text += &format!("it was there{}\n", lost_text(&c.lost));
    }
    let mut json = target_json(i);
    json["capacity_bytes"] = json!(c.capacity.map(|s| s * SECTOR_BYTES as u64));
    json["recovery"] = json!(c.recovery.as_ref().map(recovery_json));
    json["lost"] = lost_json(&c.lost);
    Answer::new((text, text_of(&json)))
}

/// A target that was taken off.
pub(crate) fn removed(i: &TargetInfo) -> Answer {
    let text = format!(
        "target {} is removed; what is on LUNs {} to {} stays until something is created there\n",
        i.name, i.begin, i.end
    );
    Answer::new((text, text_of(&target_json(i))))
}
