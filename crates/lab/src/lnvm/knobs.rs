//! The knobs of a target, by their names in sysfs: shown, set, kept.
//!
//! Owns: which attributes are knobs, which of them a target keeps and where. Promises: a value that is
//! refused changes nothing; a kept knob is durable when it is set and applies at every mount after; the
//! target decides what it takes, at rest too: it is mounted on a shadow of the image and asked. Never: has
//! a knob that the target has no attribute for.

use super::show::text_of;
use super::{Drive, LnvmError};
use crate::control::{Answer, Ask, Live, reach};
use crate::stack::{MountHow, StackError, mount_pblk};
use flashlane_ftl::log::{ATTRIBUTES, AttributeError, Pblk};
use flashlane_ocssd::{TargetInfo, TargetKind};
use flashlane_rt::{CostTable, Cx, Virtual};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

/// Kept knobs: the attribute, and the key of the target's settings that has it.
const KEPT: [(&str, &str); 3] =
    [("active_pus", "active_pus"), ("gc_enabled", "gc"), ("limiter", "limiter")];

/// Names of knobs: the attributes that can be written.
fn knob_names() -> impl Iterator<Item = &'static str> {
    ATTRIBUTES.iter().filter(|(_, writable)| *writable).map(|(name, _)| *name)
}

fn kept_as(name: &str) -> Option<&'static str> {
    KEPT.iter().find(|(knob, _)| *knob == name).map(|(_, key)| *key)
}

/// An attribute's text as the settings have it.
fn to_setting(name: &str, text: &str) -> Value {
    match name {
        "gc_enabled" => json!(text.trim() == "1"),
        "limiter" => json!(text.trim()),
        _ => text.trim().parse::<u32>().map_or(Value::Null, |n| json!(n)),
    }
}

/// And back.
fn from_setting(value: &Value) -> String {
    match value {
        Value::Bool(on) => u8::from(*on).to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Turns a target that was mounted to where its settings have its knobs: what it did not take.
pub(crate) fn apply(cx: &Cx, pblk: &Pblk, settings: &Value) -> Vec<AttributeError> {
    let now = serde_json::to_value(pblk.settings()).unwrap_or_default();
    let set = |(name, key): (&str, &str)| {
        let wanted = settings.get(key).filter(|wanted| now.get(key) != Some(wanted))?;
        pblk.set_attribute(cx, name, &from_setting(wanted)).err()
    };
    KEPT.into_iter().filter_map(set).collect()
}

/// `lnvm knobs`: shows a target's knobs, after setting those that are given.
///
/// # Errors
/// No such drive, target or knob, a value that it does not take, or the host failed.
pub fn knobs(path: &Path, target: &str, set: &[(String, String)]) -> Result<Answer, LnvmError> {
    let ask = || Ok(Ask::Knobs { target: target.into(), set: set.to_vec() });
    reach(path, ask, || match set {
        [] => at_rest(&Drive::look(path)?, target, set),
        _ => Drive::change(path, |drive| at_rest(drive, target, set)),
    })
}

/// A target that has knobs, none of which is to be set twice.
fn pblk_of(drive: &Drive, target: &str, set: &[(String, String)]) -> Result<TargetInfo, LnvmError> {
    let (info, _) = drive.target(target)?;
    if info.kind != TargetKind::Pblk {
        let (path, name) = (drive.path.clone(), target.into());
        return Err(LnvmError::NoKnobs { path, name, kind: info.kind });
    }
    // So there is no more to do than there are knobs.
    let names: BTreeSet<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
    match names.len() == set.len() {
        true => Ok(info),
        false => Err(LnvmError::KnobTwice),
    }
}

/// Of a target that is not in use.
pub(crate) fn at_rest(
    drive: &Drive,
    target: &str,
    set: &[(String, String)],
) -> Result<Answer, LnvmError> {
    let info = pblk_of(drive, target, set)?;
    let (path, name) = (drive.path.clone(), target.to_string());
    for knob in knob_names().filter(|knob| kept_as(knob).is_none()) {
        if set.iter().any(|(name, _)| name == knob) {
            return Err(LnvmError::AtRest { path, name, knob });
        }
    }
    let (_, part) = drive.shadow()?.target(target)?;
    let vm = Virtual::new(1, 0, CostTable::zero());
    let (cx, before, uuid, asked) = (vm.cx(), info.settings.clone(), info.uuid, set.to_vec());
    let tried = vm.run(async move {
        let pblk = mount_pblk(&cx, part, uuid, MountHow::default()).await?;
        let _ = apply(&cx, &pblk, &before); // said by who mounts it to use it
        let set = set_all(&cx, &pblk, &asked);
        Ok(set.map(|()| values(&pblk)))
    })?;
    let values = match tried {
        Ok(Ok(values)) => values,
        Ok(Err(source)) => return Err(LnvmError::Knob { path, name, source }),
        Err(source) => {
            let source: Box<StackError> = Box::new(source);
            return Err(LnvmError::Target { path, name, source });
        }
    };
    keep(drive, &info, set)?;
    Ok(said(target, &values, false))
}

/// Of the target that `live` runs.
pub(crate) fn in_use(
    cx: &Cx,
    live: &Live,
    pblk: &Arc<Pblk>,
    set: &[(String, String)],
) -> Result<Answer, LnvmError> {
    let drive = live.drive();
    let info = pblk_of(drive, live.target(), set)?;
    let (path, name) = (drive.path.clone(), info.name.clone());
    let before = Before::of(pblk, set);
    set_all(cx, pblk, set).map_err(|source| LnvmError::Knob { path, name, source })?;
    if let Err(e) = keep(drive, &info, set) {
        before.restore(cx, pblk); // what is said to have failed has changed nothing
        return Err(e);
    }
    Ok(said(&info.name, &values(pblk), true))
}

/// Of the target in use while it has no knobs: it is being mounted, or of a type without.
pub(crate) fn of_unmounted(drive: &Drive, target: &str) -> Result<Answer, LnvmError> {
    pblk_of(drive, target, &[])?;
    Err(LnvmError::Mounting { path: drive.path.clone(), name: target.into() })
}

/// All or none: where the target refuses one, those before it are taken back.
fn set_all(cx: &Cx, pblk: &Pblk, set: &[(String, String)]) -> Result<(), AttributeError> {
    let before = Before::of(pblk, set);
    let done = set.iter().try_for_each(|(name, value)| pblk.set_attribute(cx, name, value));
    if done.is_err() {
        before.restore(cx, pblk);
    }
    done
}

/// Where knobs stood, in the order in which they are turned back.
struct Before(Vec<(&'static str, String)>);

impl Before {
    /// Those that setting these turns: forcing collection switches it on and off, too. What a knob resets
    /// is not kept anywhere.
    fn of(pblk: &Pblk, set: &[(String, String)]) -> Before {
        let is_set = |knob: &str| set.iter().any(|(name, _)| name == knob);
        let collection = is_set("gc_force") || is_set("gc_enabled");
        let turned = [
            ("active_pus", is_set("active_pus")),
            ("limiter", is_set("limiter")),
            ("gc_force", collection),
            ("gc_enabled", collection),
        ];
        let of = |name| Some((name, pblk.attribute(name).ok()?));
        let turned = turned.into_iter().filter(|(_, turned)| *turned);
        Before(turned.filter_map(|(name, _)| of(name)).collect())
    }

    fn restore(self, cx: &Cx, pblk: &Pblk) {
        for (name, was) in self.0 {
            // It was there before, so it can be had.
            let _: Result<(), AttributeError> = pblk.set_attribute(cx, name, &was);
        }
    }
}

fn values(pblk: &Pblk) -> Vec<(&'static str, String)> {
    knob_names().map(|name| (name, pblk.attribute(name).unwrap_or_default())).collect()
}

/// Writes kept knobs into the target's settings, if they differ.
fn keep(drive: &Drive, info: &TargetInfo, set: &[(String, String)]) -> Result<(), LnvmError> {
    let mut settings = match info.settings.clone() {
        Value::Object(settings) => settings,
        _ => Map::new(),
    };
    for (name, value) in set {
        if let Some(key) = kept_as(name) {
            settings.insert(key.into(), to_setting(name, value));
        }
    }
    let settings = Value::Object(settings);
    if settings == info.settings || set.is_empty() {
        return Ok(());
    }
    let set = drive.core.set_settings(&info.name, settings);
    set.map_err(|e| super::core_error(&drive.path, e))
}

fn said(target: &str, values: &[(&'static str, String)], in_use: bool) -> Answer {
    let mut text = String::new();
    let mut json = Map::new();
    for (name, value) in values {
        let kept = if kept_as(name).is_some() { "kept" } else { "for this use" };
        text += &format!("{name:<20}{kept:<14}{value}\n");
        json.insert((*name).into(), json!(value));
    }
    let json = json!({ "target": target, "in_use": in_use, "knobs": json });
    Answer::new((text, text_of(&json)))
}

#[cfg(test)]
mod tests {
    use super::super::{Create, create_on};
    use super::*;
    use flashlane_media::host::memory::MemoryFile;
    use flashlane_ocssd::{Core, CreateImage, OpenImage, Ssd};
    use std::io::ErrorKind;

    fn open(file: &Arc<MemoryFile>) -> Drive {
        let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).unwrap();
        let core = Arc::new(Core::on_image(ssd.clone()).unwrap());
        Drive { path: "memory".into(), ssd, core }
    }

    /// What was refused has changed nothing, also when the host refuses to keep it.
    #[test]
    fn a_knob_that_can_not_be_kept_is_turned_back() {
        let sets = ["geometry.chunks_per_pu=64".to_string()];
        let spec = crate::drive::device("tiny", &sets).unwrap();
        let file = Arc::new(MemoryFile::default());
        Ssd::create_on(file.clone(), &spec, &CreateImage::default()).unwrap();
        let drive = open(&file);
        let ask = Create {
            name: "db".into(),
            kind: TargetKind::Pblk,
            begin: None,
            end: None,
            over_provisioning: Some(40),
            factory: false,
            how: MountHow::default(),
            active_pus: None,
            limiter: None,
            wear_leveling: None,
            wear_spread: None,
            scrub: None,
            scrub_interval: None,
        };
        create_on(&drive, &ask).unwrap();
        drive.close().unwrap();
        let drive = open(&file);
        let (info, part) = drive.target("db").unwrap();
        let vm = Virtual::new(1, 1, CostTable::zero());
        let (cx, theirs) = (vm.cx(), vm.cx());
        let mounted =
            vm.run(async move { mount_pblk(&theirs, part, info.uuid, MountHow::default()).await });
        let pblk = mounted.unwrap().unwrap();
        let live = Live::new(drive, "db", None);
        let stand = || {
            let knobs = ["active_pus", "limiter", "gc_force", "gc_enabled"];
            knobs.map(|knob| pblk.attribute(knob).unwrap())
        };
        let set = [("gc_force", "1"), ("active_pus", "2"), ("limiter", "off")];
        let set = set.map(|(name, value)| (name.to_string(), value.to_string()));
        let before = stand();
        assert_eq!(before, ["4", "pid", "0", "1"]);
        file.fail_after(0, ErrorKind::Other);
        let said = in_use(&cx, &live, &pblk, &set).unwrap_err().to_string();
        assert!(said.contains("could not be written"), "{said}");
        assert_eq!(stand(), before);
        file.heal();
    }
}
