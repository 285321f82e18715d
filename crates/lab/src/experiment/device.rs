//! `[device]`: a preset or a file, and what is changed about it.
//!
//! Owns: the keys of the table, the merge of overrides into a preset. Promises: the merged spec is
//! checked by the device's own rules; `capacity` is met to the byte. Never: changes a number that was
//! not named.

use super::Base;
use super::document::{At, Document, Item, Section, Value};
use crate::bounded;
use flashlane_base::{Bytes, GeometryError, SECTOR_BYTES};
use flashlane_ocssd::{DeviceSpec, DieQueue, FaultPlan, SpecError, SsdOptions, StoreKind};
pub use flashlane_stack::DeviceChoice;

/// What a trace or a job file runs on when no device is named: small enough to simulate quickly,
/// known from the comparison with other simulators.
pub fn default_preset() -> &'static str {
    "peers-16g"
}

/// Devices that come with the program.
pub fn preset_names() -> Vec<&'static str> {
    DeviceSpec::preset_names()
}

/// Tables of a spec that may be overridden.
pub(super) const TABLES: &[&str] = &["geometry", "timing", "cells", "limits", "ecc", "link"];

/// Reads the table; complaints go to the document.
pub(super) fn read(
    section: Option<&Section<'_>>,
    document: &Document,
    base: &Base,
) -> Option<DeviceChoice> {
    let Some(s) = section else {
        document.complain(
            At::File(0),
            format!(
                "no [device]: name one, `[device]` with `preset = \"{}\"` (presets: {})",
                default_preset(),
                DeviceSpec::preset_names().join(", ")
            ),
        );
        return None;
    };
    let mut options = read_options(s);
    options.faults = read_faults(s, base);
    let capacity = s.parsed::<Bytes>("capacity");
    let spec = sized(s, read_spec(s, base)?, capacity)?;
    let geo = spec.geometry();
    let places = options.faults.check(geo.pus(), geo.chunks_per_pu, geo.sectors_per_chunk());
    if let Err(e) = places {
        s.complain("faults", e);
    }
    Some(DeviceChoice { spec, options })
}

/// With as many chunks as make up `capacity`, where it is given.
fn sized(s: &Section<'_>, spec: DeviceSpec, capacity: Option<Bytes>) -> Option<DeviceSpec> {
    let Some(capacity) = capacity else { return Some(spec) };
    let geo = spec.geometry();
    let row = u64::from(geo.pus()) * u64::from(geo.sectors_per_chunk()) * SECTOR_BYTES as u64;
    let chunks = capacity.get() / row;
    let is_given = s.table("geometry").is_some_and(|table| table.has("chunks_per_pu"));
    let says = match u32::try_from(chunks) {
        _ if is_given => "`geometry.chunks_per_pu` says it already: give one".to_string(),
        Ok(1..) if capacity.get().is_multiple_of(row) => {
            let name = match spec.name.ends_with("(changed)") {
                true => spec.name.clone(),
                false => format!("{} (changed)", spec.name),
            };
            let spec = DeviceSpec { name, ..spec.with_chunks_per_pu(chunks as u32) };
            return match spec.check() {
                Ok(()) => Some(spec),
                Err(e) => {
                    s.complain("capacity", e.to_string());
                    None
                }
            };
        }
        _ => format!(
            "`capacity` is {capacity}, no whole number of chunks for each PU: those of one chunk each are {}",
            Bytes::new(row)
        ),
    };
    s.complain("capacity", says);
    None
}

fn read_options(s: &Section<'_>) -> SsdOptions {
    let mut options = SsdOptions::default();
    let stores = [
        ("stamps", StoreKind::Stamps),
        ("memory", StoreKind::Memory),
        ("compact", StoreKind::Compact),
    ];
    options.store = s.word("store", &stores).unwrap_or(options.store);
    let queues = [
        ("fifo", DieQueue::Fifo),
        ("read_first", DieQueue::ReadFirst),
        ("suspend", DieQueue::Suspend),
    ];
    options.queue = s.word("queue", &queues);
    options.timing = !s.flag("null").unwrap_or(false);
    options.dulbe = s.flag("dulbe").unwrap_or(false);
    options.limited_retry = s.flag("limited_retry").unwrap_or(false);
    options
}

fn read_faults(s: &Section<'_>, base: &Base) -> FaultPlan {
    let Some(file) = s.text("faults") else {
        return FaultPlan::default();
    };
    let path = base.path(file);
    let shown = path.display();
    let plan = bounded::text(&path, bounded::TEXT_MAX)
        .map_err(|e| format!("cannot read fault plan {shown}: {e}"))
        .and_then(|text| FaultPlan::from_toml(&text).map_err(|e| format!("{shown}: {e}")));
    plan.unwrap_or_else(|why| {
        s.complain("faults", why);
        FaultPlan::default()
    })
}

fn read_spec(s: &Section<'_>, base: &Base) -> Option<DeviceSpec> {
    // Known keys, whatever is wrong with the device's name.
    let overrides: Vec<&str> = TABLES.iter().copied().filter(|t| s.item(t).is_some()).collect();
    let (key, name, text) = match (s.text("preset"), s.text("spec")) {
        (Some(_), Some(_)) => {
            s.complain("spec", "`preset` and `spec` both name a device: give one");
            return None;
        }
        (None, None) => {
            let known = DeviceSpec::preset_names().join(", ");
            s.complain("preset", format!("needs `preset` (one of {known}) or `spec` (a file)"));
            return None;
        }
        (Some(preset), None) => match DeviceSpec::preset_text(preset) {
            Some(text) => ("preset", preset.to_string(), text.to_string()),
            None => {
                let names = DeviceSpec::preset_names();
                let hint = crate::suggest::hint(preset, names.iter().copied());
                let known = names.join(", ");
                s.complain(
                    "preset",
                    format!("no device preset `{preset}`{hint} (there are: {known})"),
                );
                return None;
            }
        },
        (None, Some(file)) => {
            let path = base.path(file);
            match bounded::text(&path, bounded::TEXT_MAX) {
                Ok(text) => ("spec", path.display().to_string(), text),
                Err(e) => {
                    s.complain("spec", format!("cannot read device spec {}: {e}", path.display()));
                    return None;
                }
            }
        }
    };
    let mut given = Vec::new();
    for table in &overrides {
        given.extend(s.item(table).into_iter().flat_map(|item| values_below(table, item)));
    }
    let overridden = |base: &toml::Table| {
        let mut merged = base.clone();
        for table in &overrides {
            let item = s.item(table).expect("an override is there");
            merge(&mut merged, table, item.value.to_toml());
        }
        merged
    };
    let is_sound = |spec: &toml::Table| {
        toml::to_string(spec).is_ok_and(|text| DeviceSpec::from_toml(&text).is_ok())
    };
    // The `--set` to blame: the last one without which the device would be sound. If no single one
    // is to blame, the last `--set`. None if the named device itself is unsound.
    let culprit = || {
        let base: toml::Table = text.parse().ok().filter(is_sound)?;
        let is_changed = |(_, at): &&(String, At)| matches!(at, At::Change(_));
        let mut changed: Vec<&(String, At)> = given.iter().filter(is_changed).collect();
        changed.sort_by_key(|(_, at)| *at);
        let is_one = |(path, _): &&&(String, At)| {
            let mut merged = overridden(&base);
            reset(&mut merged, Some(&base), path);
            is_sound(&merged)
        };
        changed.iter().rev().find(is_one).or(changed.last()).copied()
    };
    // Blames the value that was given for the key `of`, or for a key below it. Where there is none,
    // it blames the culprit.
    let complain = |of: &str, said: String| {
        let is_meant = |(path, _): &&(String, At)| {
            let below = |rest: &str| rest.is_empty() || rest.starts_with('.');
            path.strip_prefix(of).is_some_and(below)
        };
        let named = given.iter().filter(is_meant).max_by_key(|(_, at)| *at);
        let table = |path: &str| {
            let (table, _) = path.split_once('.')?;
            overrides.contains(&table).then(|| s.table(table))?
        };
        match named.or_else(culprit) {
            Some((path, at)) => match table(path) {
                Some(section) => section.complain_at(*at, said),
                None => s.complain_at(*at, said),
            },
            None => match table(of) {
                Some(section) => section.complain("", said),
                None => s.complain(key, said),
            },
        }
    };
    let fail = |e: SpecError| match &e {
        // A message of the TOML parser points into the merged text, which nobody has seen.
        SpecError::Syntax(e) => {
            s.complain(key, format!("device `{name}`: {}", e.message().trim()));
        }
        SpecError::Value { key, .. } => complain(key, e.to_string()),
        SpecError::Geometry { source: GeometryError::Zero(zero), .. } => {
            complain(&format!("geometry.{zero}"), e.to_string());
        }
        // Several keys together: there is none of this name.
        SpecError::Geometry { .. } => complain("geometry.", e.to_string()),
        other => s.complain(key, other.to_string()),
    };
    if overrides.is_empty() {
        return DeviceSpec::from_toml(&text).map_err(fail).ok();
    }
    let base: toml::Table = match text.parse() {
        Ok(table) => table,
        Err(e) => {
            fail(SpecError::Syntax(e));
            return None;
        }
    };
    let text = toml::to_string(&overridden(&base)).expect("a parsed table can be written");
    match DeviceSpec::from_toml(&text) {
        // Its numbers are no longer those that the name stands for.
        Ok(spec) => Some(DeviceSpec { name: format!("{} (changed)", spec.name), ..spec }),
        Err(SpecError::Syntax(e)) => {
            // The parser's line is one of the merged text; its key leads back to the override.
            let begin = e.span().map_or(0, |span| span.start.min(text.len()));
            let line = text[..begin].rfind('\n').map_or(0, |at| at + 1);
            let line = text[line..].lines().next().unwrap_or("");
            let named = line.split('=').next().unwrap_or("").trim();
            let header = |line: &str| Some(line.strip_prefix('[')?.strip_suffix(']')?.to_string());
            let path = header(named).unwrap_or_else(|| {
                match text[..begin].lines().rev().find_map(header) {
                    Some(table) => format!("{table}.{named}"),
                    None => named.into(),
                }
            });
            let said = format!("device `{name}`: `{path}`: {}", e.message().trim());
            complain(&path, said);
            None
        }
        Err(e) => {
            fail(e);
            None
        }
    }
}

/// Every value of a table, with its path: `geometry.channels`.
fn values_below(path: &str, item: &Item) -> Vec<(String, At)> {
    match &item.value {
        Value::Table(table) => {
            let all = table.iter();
            all.flat_map(|(key, item)| values_below(&format!("{path}.{key}"), item)).collect()
        }
        _ => vec![(path.into(), item.at)],
    }
}

/// Gives the value at `path` back what it is in `base`.
fn reset(merged: &mut toml::Table, base: Option<&toml::Table>, path: &str) {
    let (key, below) = path.split_once('.').map_or((path, None), |(key, rest)| (key, Some(rest)));
    let old = base.and_then(|base| base.get(key));
    match (below, merged.get_mut(key), old) {
        (Some(rest), Some(toml::Value::Table(table)), _) => {
            reset(table, old.and_then(toml::Value::as_table), rest);
        }
        (_, _, Some(old)) => {
            merged.insert(key.into(), old.clone());
        }
        _ => {
            merged.remove(key);
        }
    }
}

/// Tables are merged key by key, anything else is replaced.
fn merge(into: &mut toml::Table, key: &str, value: toml::Value) {
    match (into.get_mut(key), value) {
        (Some(toml::Value::Table(old)), toml::Value::Table(new)) => {
            for (key, value) in new {
                merge(old, &key, value);
            }
        }
        (_, value) => {
            into.insert(key.into(), value);
        }
    }
}

/// The same options on another preset, for targets that name a device of their own.
pub(super) fn on_preset(choice: &DeviceChoice, preset: &str) -> Result<DeviceChoice, SpecError> {
    Ok(DeviceChoice { spec: DeviceSpec::preset(preset)?, options: choice.options.clone() })
}
