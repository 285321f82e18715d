//! The knobs of a target, by their names in sysfs: shown, set, kept.
//!
//! Owns: which attributes are knobs, which of them a target keeps and where. Promises: a value that is
//! refused changes nothing; a kept knob is durable when it is set and applies at every mount after; the
//! target decides what it takes, at rest too: it is mounted on a shadow of the image and asked. Never: has
//! a knob that the target has no attribute for.

use super::{Drive, LnvmError, StackError};
use crate::control::Answer;
use crate::words::text_of;
use flashlane_ftl::layer::{Attribute, AttributeError, Kind, Knob, Layer, LayerError, Settings};
use flashlane_ftl::layer::{Find, MountHow};
use flashlane_ocssd::{Device, TargetInfo};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_stack::{LayerSpec, Make, kinds, raise};
use serde_json::{Map, Value, json};
use std::collections::BTreeSet;
use std::sync::Arc;

fn knobs_of(kind: &dyn Kind) -> impl Iterator<Item = &'static Attribute> + use<> {
    kind.attributes().iter().filter(|a| a.knob != Knob::No)
}

/// The setting that keeps a knob.
fn kept_as(attribute: &Attribute) -> Option<&'static str> {
    match attribute.knob {
        Knob::Kept(key) => Some(key),
        Knob::No | Knob::Acts | Knob::Stays => None,
    }
}

/// Whether a knob turns this setting.
pub(super) fn is_kept(kind: &dyn Kind, key: &str) -> bool {
    knobs_of(kind).any(|knob| kept_as(knob) == Some(key))
}

/// An attribute's text as a setting has it that looks like this.
fn to_setting(like: &Value, text: &str) -> Value {
    match like {
        Value::Bool(_) => json!(text.trim() == "1"),
        Value::Number(_) => text.trim().parse::<u32>().map_or(Value::Null, |n| json!(n)),
        _ => json!(text.trim()),
    }
}

fn from_setting(value: &Value) -> String {
    match value {
        Value::Bool(on) => u8::from(*on).to_string(),
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// Turns a target that was mounted to where its settings have its knobs: what it did not take.
pub(crate) fn apply(cx: &Cx, layer: &dyn Layer, settings: &Settings) -> Vec<AttributeError> {
    let now = layer.settings();
    let set = |knob: &Attribute| {
        let key = kept_as(knob)?;
        let wanted = settings.get(key).filter(|wanted| now.get(key) != Some(wanted))?;
        layer.set_attribute(cx, knob.name, &from_setting(wanted)).err()
    };
    knobs_of(layer.kind()).filter_map(set).collect()
}

/// Mounts a target on a shadow of its drive, where nothing that is written goes anywhere, with its
/// knobs where its settings have them; `look` at it.
pub(super) fn on_shadow<T: 'static>(
    drive: &Drive,
    info: &TargetInfo,
    look: impl FnOnce(&Cx, &Arc<dyn Layer>) -> T + 'static,
) -> Result<T, LnvmError> {
    let (_, part) = drive.shadow()?.target(&info.name)?;
    let failed = |source: StackError| LnvmError::Target {
        path: drive.path.clone(),
        name: info.name.clone(),
        source: Box::new(source),
    };
    let kind = kinds::targets().find(|kind| kind.name() == info.kind);
    let kind = kind.ok_or_else(|| failed(StackError::Type(info.kind.clone())))?;
    // What can't be read of its settings is not asked for here: most of them are on the medium.
    let layers = [LayerSpec::with(kind, info.settings.clone())];
    let part: Arc<dyn Device> = part;
    let vm = Virtual::new(1, 0, CostTable::zero());
    let (cx, uuid, settings) = (vm.cx(), info.uuid, info.settings.clone());
    let looked = vm.run(async move {
        let find = Find { uuid, how: MountHow::default(), saved: None };
        let make = Make::Mount { find, saved: Vec::new() };
        let layers = raise(&cx, part, &layers, None, &make).await?;
        let _ = apply(&cx, &**layers.target(), &settings); // said by who mounts it to use it
        Ok::<_, LayerError>(look(&cx, layers.target()))
    })?;
    looked.map_err(|e| failed(e.into()))
}

/// A target that has knobs, none of which is to be set twice.
fn target_of(
    drive: &Drive,
    target: &str,
    set: &[(String, String)],
) -> Result<(TargetInfo, &'static dyn Kind), LnvmError> {
    let (info, _) = drive.target(target)?;
    let kind = kinds::find(&info.kind).filter(|kind| knobs_of(*kind).next().is_some());
    let Some(kind) = kind else {
        let (path, name) = (drive.path.clone(), target.into());
        return Err(LnvmError::NoKnobs { path, name, kind: info.kind });
    };
    // So there is no more to do than there are knobs.
    let names: BTreeSet<&str> = set.iter().map(|(name, _)| name.as_str()).collect();
    match names.len() == set.len() {
        true => Ok((info, kind)),
        false => Err(LnvmError::KnobTwice),
    }
}

/// `lnvm knobs` of a target that is not in use: shows its knobs, after setting those that are given.
///
/// # Errors
/// No such target or knob, a value that it does not take, or the host failed.
pub(crate) fn at_rest(
    drive: &Drive,
    target: &str,
    set: &[(String, String)],
) -> Result<Answer, LnvmError> {
    let (info, kind) = target_of(drive, target, set)?;
    let (path, name) = (drive.path.clone(), target.to_string());
    for Attribute { name: knob, .. } in knobs_of(kind).filter(|knob| kept_as(knob).is_none()) {
        if set.iter().any(|(name, _)| name == knob) {
            return Err(LnvmError::AtRest { path, name, knob });
        }
    }
    let asked = set.to_vec();
    let tried = on_shadow(drive, &info, move |cx, layer| {
        set_all(cx, &**layer, &asked).map(|()| values(&**layer))
    })?;
    let values = tried.map_err(|source| LnvmError::Knob { path, name, source })?;
    keep(drive, &info, kind, set)?;
    Ok(said(target, kind, &values, false))
}

/// The same of a target that is in use, as this layer.
///
/// # Errors
/// As [`at_rest`].
pub(crate) fn in_use(
    cx: &Cx,
    drive: &Drive,
    target: &str,
    layer: &dyn Layer,
    set: &[(String, String)],
) -> Result<Answer, LnvmError> {
    let (info, kind) = target_of(drive, target, set)?;
    let (path, name) = (drive.path.clone(), info.name.clone());
    let before = Before::of(layer);
    set_all(cx, layer, set).map_err(|source| LnvmError::Knob { path, name, source })?;
    if let Err(e) = keep(drive, &info, kind, set) {
        before.restore(cx, layer); // what is said to have failed has changed nothing
        return Err(e);
    }
    Ok(said(&info.name, kind, &values(layer), true))
}

/// The same of a target in use while it has no knobs: it is being mounted, or of a type without.
pub(crate) fn of_unmounted(drive: &Drive, target: &str) -> Result<Answer, LnvmError> {
    target_of(drive, target, &[])?;
    Err(LnvmError::Mounting { path: drive.path.clone(), name: target.into() })
}

/// All or none: where the target refuses one, those before it are taken back.
fn set_all(cx: &Cx, layer: &dyn Layer, set: &[(String, String)]) -> Result<(), AttributeError> {
    let before = Before::of(layer);
    let done = set.iter().try_for_each(|(name, value)| layer.set_attribute(cx, name, value));
    if done.is_err() {
        before.restore(cx, layer);
    }
    done
}

/// Where knobs stood that stay where they are put, in the order in which they are turned back. What a
/// knob does once is not undone.
struct Before(Vec<(&'static str, String)>);

impl Before {
    fn of(layer: &dyn Layer) -> Before {
        let stays = |a: &&Attribute| matches!(a.knob, Knob::Stays | Knob::Kept(_));
        let of = |a: &Attribute| Some((a.name, layer.attribute(a.name).ok()?));
        Before(knobs_of(layer.kind()).filter(stays).filter_map(of).collect())
    }

    /// Turns back those that stand elsewhere now: turning one does something each time.
    fn restore(self, cx: &Cx, layer: &dyn Layer) {
        for (name, was) in self.0 {
            if layer.attribute(name).as_ref() != Ok(&was) {
                // It was there before, so it can be had.
                let _: Result<(), AttributeError> = layer.set_attribute(cx, name, &was);
            }
        }
    }
}

fn values(layer: &dyn Layer) -> Vec<(&'static str, String)> {
    let of = |a: &Attribute| (a.name, layer.attribute(a.name).unwrap_or_default());
    knobs_of(layer.kind()).map(of).collect()
}

/// Writes kept knobs into the target's settings, if they differ.
fn keep(
    drive: &Drive,
    info: &TargetInfo,
    kind: &dyn Kind,
    set: &[(String, String)],
) -> Result<(), LnvmError> {
    let mut settings = match info.settings.clone() {
        Value::Object(settings) => settings,
        _ => Map::new(),
    };
    let defaults = kind.defaults();
    for knob in knobs_of(kind) {
        let Some(key) = kept_as(knob) else { continue };
        for (_, value) in set.iter().filter(|(name, _)| name == knob.name) {
            settings.insert(key.into(), to_setting(&defaults[key], value));
        }
    }
    let settings = Value::Object(settings);
    if settings == info.settings || set.is_empty() {
        return Ok(());
    }
    let set = drive.core()?.set_settings(&info.name, settings);
    set.map_err(|e| super::core_error(&drive.path, e))
}

fn said(target: &str, kind: &dyn Kind, values: &[(&'static str, String)], in_use: bool) -> Answer {
    let mut text = String::new();
    let mut json = Map::new();
    for (name, value) in values {
        let is_kept = knobs_of(kind).any(|a| a.name == *name && kept_as(a).is_some());
        let kept = if is_kept { "kept" } else { "for this use" };
        text += &format!("{name:<20}{kept:<14}{value}\n");
        json.insert((*name).into(), json!(value));
    }
    let json = json!({ "target": target, "in_use": in_use, "knobs": json });
    Answer::new((text, text_of(&json)))
}

#[cfg(test)]
mod tests {
    use super::super::{Create, Options, TargetType, create_on};
    use super::*;
    use flashlane_media::host::memory::MemoryFile;
    use flashlane_ocssd::{CreateImage, OpenImage, Ssd};
    use std::io::ErrorKind;

    fn open(file: &Arc<MemoryFile>) -> Drive {
        let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).unwrap();
        Drive::on("memory".as_ref(), ssd)
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
            kind: TargetType::of("pblk").unwrap(),
            begin: None,
            end: None,
            over_provisioning: Some(40),
            factory: false,
            how: MountHow::default(),
            options: Options::default(),
        };
        create_on(&drive, &ask, &ask.settings(None).unwrap()).unwrap();
        drive.close().unwrap();
        let drive = open(&file);
        let (info, part) = drive.target("db").unwrap();
        let vm = Virtual::new(1, 1, CostTable::zero());
        let (cx, theirs) = (vm.cx(), vm.cx());
        let layers = super::super::layers_of(&info).unwrap();
        let mounted =
            vm.run(async move { raise(&theirs, part, &layers, None, &Make::mount()).await });
        let pblk = mounted.unwrap().unwrap().target().clone();
        let stand = || {
            let knobs = ["active_pus", "limiter", "gc_force", "gc_enabled"];
            knobs.map(|knob| pblk.attribute(knob).unwrap())
        };
        let set = [("gc_force", "1"), ("active_pus", "2"), ("limiter", "off")];
        let set = set.map(|(name, value)| (name.to_string(), value.to_string()));
        let before = stand();
        assert_eq!(before, ["4", "pid", "0", "1"]);
        file.fail_after(0, ErrorKind::Other);
        let said = in_use(&cx, &drive, "db", &*pblk, &set).unwrap_err().to_string();
        assert!(said.contains("could not be written"), "{said}");
        assert_eq!(stand(), before);
        file.heal();
    }
}
