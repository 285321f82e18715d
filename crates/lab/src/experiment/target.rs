//! `[[target]]`: the stacks that are compared.
//!
//! Owns: the keys of a target; those of its layers are the layers' own. Promises: a key that a kind does not have is a complaint,
//! not ignored. Never: builds a stack; whether it fits the device is found by building it
//! (`stack`).

use super::device::{DeviceChoice, on_preset};
use super::document::{Section, Value};
use super::effect;
use super::files::{FileSystem, PARAFS};
use super::{Base, HostSpec, read_host};
use flashlane_base::Ns;
use flashlane_ftl::layer::MountHow;
use flashlane_ftl::layer::{Asked, Kind};
use flashlane_ftl::sftl::SFTL;
use flashlane_ocssd::StoreKind;
use flashlane_stack::{Description, LayerSpec, kinds};
use std::path::PathBuf;

/// A stack under a name, with what runs on it.
#[derive(Clone, Debug)]
pub struct Target {
    pub name: String,
    /// Its device, and the layers on that.
    pub stack: Description,
    /// The file system on it, which its workloads use then.
    pub fs: Option<FileSystem>,
    /// The drive that it lives on, in place of a fresh device.
    pub drive: Option<DriveTarget>,
    /// The host that it runs on.
    pub host: HostSpec,
    /// Of the experiment's workloads those that run on it, by their places; all without it.
    pub only: Option<Vec<usize>>,
}

impl Target {
    /// On a fresh device, under all workloads, on a host whose work costs nothing.
    pub fn new(name: &str, stack: Description) -> Target {
        let (name, host) = (name.to_string(), HostSpec::default());
        Target { name, stack, fs: None, drive: None, host, only: None }
    }

    /// One layer on all of a fresh device.
    pub fn of(name: &str, layer: impl Into<LayerSpec>, device: DeviceChoice) -> Target {
        Target::new(name, Description::new(device, vec![layer.into()]))
    }

    /// Whether the experiment's workload in this place runs on it.
    pub fn takes(&self, workload: usize) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&workload))
    }

    /// What it gives to workloads.
    pub(crate) fn gives(&self) -> Gives {
        match (&self.fs, self.stack.is_raw()) {
            (Some(_), _) => Gives::Files,
            (None, true) => Gives::Pus,
            (None, false) => Gives::Sectors,
        }
    }
}

/// What a target gives, and what a workload takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gives {
    /// PUs, to an application that places its own data.
    Pus,
    /// A block device.
    Sectors,
    /// A file system.
    Files,
}

/// A target of a drive image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveTarget {
    pub image: PathBuf,
    pub name: String,
    /// What of it is mounted that is not sound.
    pub how: MountHow,
}

/// Reads all targets; complaints go to the document.
pub(super) fn read_all(
    root: &Section<'_>,
    device: Option<&DeviceChoice>,
    host: &HostSpec,
    base: &Base,
) -> Vec<Target> {
    let sections = root.tables("target");
    if sections.is_empty() && !root.has("target") {
        root.complain("target", "no [[target]]: name one, `[[target]]` with `kind = \"pblk\"`");
    }
    let store_is_said = root.table("device").is_some_and(|device| device.has("store"));
    let mut targets: Vec<Target> = Vec::new();
    for s in sections {
        if let Some(target) = read(&s, device, host, base, store_is_said) {
            if targets.iter().any(|t| t.name == target.name) {
                let says = format!("two targets are called `{}`: give each a `name`", target.name);
                s.complain("name", says);
            }
            targets.push(target);
        }
        s.finish();
    }
    targets
}

fn read(
    s: &Section<'_>,
    device: Option<&DeviceChoice>,
    host: &HostSpec,
    base: &Base,
    store_is_said: bool,
) -> Option<Target> {
    // ParaFS by itself is ParaFS on the FTL that was made for it.
    let short: &'static dyn Kind = &SFTL;
    let types: Vec<(&str, Option<&'static dyn Kind>)> = kinds::targets()
        .map(|kind| (kind.name(), Some(kind)))
        .chain([(PARAFS, Some(short)), (kinds::RAW, None)])
        .collect();
    let name = s.text("name");
    if name.is_some_and(|name| name.trim().is_empty()) {
        s.complain("name", "`name` is empty: say one, or leave the key out");
    }
    if !s.has("kind") {
        let names: Vec<&str> = types.iter().map(|(name, _)| *name).collect();
        s.complain("kind", format!("needs `kind`: one of {}", names.join(", ")));
    }
    let own_device = s.text("device");
    let pus = read_pus(s);
    let host = read_host(s, host, base);
    let Some(kind) = s.word("kind", &types) else {
        // Which of its other keys are known depends on the kind.
        for key in s.keys() {
            let _ = s.item(key);
        }
        return None;
    };
    let layers = read_layers(s, kind);
    let is_short =
        matches!(s.item("kind").map(|item| &item.value), Some(Value::Text(t)) if t == PARAFS);
    let on_flash = layers.first().is_some_and(|lowest| lowest.kind.in_order());
    let word = s.text("kind").unwrap_or(kinds::RAW);
    effect::check_host(s, word, kind);
    for (named, other) in &types {
        s.elsewhere("kind", named, |s| {
            read_layers(s, *other);
            if *named == PARAFS {
                FileSystem::read(s, true);
            }
        });
    }
    let mut fs = match is_short {
        true => Some(FileSystem::read(s, on_flash)),
        false => s.switched(PARAFS).map(|section| {
            let fs = FileSystem::read(&section, on_flash);
            let theirs = section.asked();
            section.finish();
            keys_of_files(s, &theirs);
            fs
        }),
    };
    let mut device = match own_device {
        None => device?.clone(),
        Some(preset) => match on_preset(device?, preset) {
            Ok(choice) => choice,
            Err(e) => {
                s.complain("device", e);
                return None;
            }
        },
    };
    if let Some(fs) = &mut fs {
        fs.lay_out(&device.spec.geometry());
        check_below(s, &layers);
        // Contents are checked by the byte, and stamps are no contents.
        match (device.options.store, store_is_said) {
            (StoreKind::Stamps, true) => s.complain(
                "kind",
                "a file system needs a medium that keeps contents: `store = \"compact\"` under \
                 [device], which is what it gets where nothing is said",
            ),
            (StoreKind::Stamps, false) => device.options.store = StoreKind::Compact,
            _ => {}
        }
    }
    let stack = Description { pus, ..Description::new(device, layers) };
    let default = match (is_short, &fs) {
        (true, _) => PARAFS.to_string(),
        (false, Some(_)) => format!("{} + {PARAFS}", stack.title()),
        (false, None) => stack.title(),
    };
    Some(Target { host, fs, ..Target::new(name.unwrap_or(&default), stack) })
}

/// Keys of a file system that stand on the target that it is on.
fn keys_of_files(s: &Section<'_>, theirs: &[String]) {
    let asked = s.asked();
    let misplaced = |key: &&str| theirs.iter().any(|their| their == key);
    for key in s.keys().filter(|key| !asked.iter().any(|own| own == key)).filter(misplaced) {
        let _ = s.item(key); // it is known
        s.complain(
            key,
            format!(
                "`{key}` is a key of the file system, not of what is below it: write it under \
                 [target.{PARAFS}], or `--set target.NUMBER.{PARAFS}.{key}=...`"
            ),
        );
    }
}

/// What a file system can stand on.
fn check_below(s: &Section<'_>, layers: &[LayerSpec]) {
    match layers {
        [] => s.complain(PARAFS, "`parafs` stands on a target that has a type, not on a raw one"),
        [lowest, filter, ..] if lowest.kind.in_order() => {
            let filter = filter.kind.name();
            let says = "counts and changes requests for sectors, and a file system on S-FTL makes \
                        none: leave it out";
            s.complain(filter, format!("`{filter}` {says}"));
        }
        _ => {}
    }
}

/// The layers of a target, the lowest first: the one that its type stands for, then the filters that
/// it names, each by a key of its own: `meter = true`, or a table of its settings.
fn read_layers(s: &Section<'_>, kind: Option<&'static dyn Kind>) -> Vec<LayerSpec> {
    let lowest = kind.map(|kind| LayerSpec::with(kind, kind.settings(s, &kind.defaults())));
    let mut layers: Vec<LayerSpec> = lowest.into_iter().collect();
    for filter in kinds::filters() {
        let Some(section) = s.switched(filter.name()) else { continue };
        let settings = filter.settings(&section, &filter.defaults());
        section.finish();
        if layers.is_empty() {
            let says = format!(
                "`{}` stands on a target with logical sectors, not on a raw one",
                filter.name()
            );
            s.complain(filter.name(), says);
        }
        layers.push(LayerSpec::with(filter, settings));
    }
    layers
}

impl Asked for Section<'_> {
    fn has(&self, key: &str) -> bool {
        Section::has(self, key)
    }

    fn number(&self, key: &str, least: u64, most: u64) -> Option<u64> {
        Section::number(self, key, least, most)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        Section::flag(self, key)
    }

    fn word(&self, key: &str, words: &[&'static str]) -> Option<usize> {
        let words: Vec<(&str, usize)> = words.iter().copied().zip(0..).collect();
        Section::word(self, key, &words)
    }

    fn time(&self, key: &str) -> Option<Ns> {
        self.parsed(key)
    }

    fn complain(&self, key: &str, says: String) {
        Section::complain(self, key, says);
    }
}

/// The key `pus` of a target or a workload.
pub(super) fn read_pus(s: &Section<'_>) -> Option<(u32, u32)> {
    let range = parse_pus(s.text("pus")?);
    if range.is_none() {
        s.complain("pus", "`pus` is a range of PUs like \"0-31\"");
    }
    range
}

/// `0-31`: first and last.
fn parse_pus(text: &str) -> Option<(u32, u32)> {
    let (begin, end) = text.split_once('-')?;
    let range = (begin.trim().parse().ok()?, end.trim().parse().ok()?);
    (range.0 <= range.1).then_some(range)
}

/// The keys that the first target of a text may have.
#[cfg(test)]
pub(super) fn keys_of(root: &Section<'_>, device: &DeviceChoice, base: &Base) -> Vec<String> {
    let sections = root.tables("target");
    let s = sections.first().expect("the text has a target");
    let _ = read(s, Some(device), &HostSpec::default(), base, false);
    s.asked()
}
