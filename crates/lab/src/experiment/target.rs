//! `[[target]]`: the stacks that are compared.
//!
//! Owns: the keys of each kind of target. Promises: a key that a kind does not have is a complaint,
//! not ignored. Never: builds a stack; whether it fits the device is found by building it
//! (`stack`).

use super::device::{DeviceChoice, on_preset};
use super::document::Section;
use super::{Base, HostSpec, read_host};
use crate::stack::MountHow;
use flashlane_base::Ns;
use flashlane_ftl::log::{
    Drain, LimiterKind, LogConfig, MapAccess, PoolSet, RingSet, Scrub, ScrubConfig, WearConfig,
    WearLeveling,
};
use flashlane_ftl::pftl::PftlConfig;
use std::path::PathBuf;

/// What a target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// A host FTL: pblk, QBLK, or something between.
    Pblk(LogConfig),
    /// A block SSD: the page-mapped FTL inside the device.
    Pftl(PftlConfig),
    /// Vector commands on PUs that the workload names.
    Raw,
}

/// A stack.
#[derive(Clone, Debug)]
pub struct Target {
    /// Name in reports.
    pub name: String,
    /// What it is.
    pub kind: TargetKind,
    /// On which device.
    pub device: DeviceChoice,
    /// On which of its PUs, first and last; all without it.
    pub pus: Option<(u32, u32)>,
    /// The drive that it lives on, in place of a fresh device.
    pub drive: Option<DriveTarget>,
    /// The host that it runs on.
    pub host: HostSpec,
    /// Of the experiment's workloads those that run on it, by their places; all without it.
    pub only: Option<Vec<usize>>,
}

impl Target {
    /// On a fresh device and all its PUs, under all workloads, on a host whose work costs nothing.
    pub fn new(name: &str, kind: TargetKind, device: DeviceChoice) -> Target {
        let (name, host) = (name.to_string(), HostSpec::default());
        Target { name, kind, device, pus: None, drive: None, host, only: None }
    }

    /// Whether the experiment's workload in this place runs on it.
    pub fn takes(&self, workload: usize) -> bool {
        self.only.as_ref().is_none_or(|only| only.contains(&workload))
    }
}

/// A target of a drive image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DriveTarget {
    /// The image.
    pub image: PathBuf,
    /// The target's name there.
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
    let mut targets: Vec<Target> = Vec::new();
    for s in sections {
        if let Some(target) = read(&s, device, host, base) {
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
) -> Option<Target> {
    #[derive(Clone, Copy)]
    enum Kind {
        Pblk,
        Qblk,
        Pftl,
        Raw,
    }
    let kinds =
        [("pblk", Kind::Pblk), ("qblk", Kind::Qblk), ("pftl", Kind::Pftl), ("raw", Kind::Raw)];
    let name = s.text("name");
    if !s.has("kind") {
        s.complain("kind", "needs `kind` (pblk, qblk, pftl or raw)");
    }
    let own_device = s.text("device");
    let pus = read_pus(s);
    let host = read_host(s, host, base);
    let Some(kind) = s.word("kind", &kinds) else {
        // Which of its other keys are known depends on the kind.
        for key in s.keys() {
            let _ = s.item(key);
        }
        return None;
    };
    let kind = match kind {
        Kind::Pblk => TargetKind::Pblk(read_host_ftl(s, LogConfig::default())),
        Kind::Qblk => TargetKind::Pblk(read_host_ftl(s, LogConfig::qblk())),
        Kind::Pftl => TargetKind::Pftl(read_pftl(s)),
        Kind::Raw => TargetKind::Raw,
    };
    let device = match own_device {
        None => device?.clone(),
        Some(preset) => match on_preset(device?, preset) {
            Ok(choice) => choice,
            Err(e) => {
                s.complain("device", e);
                return None;
            }
        },
    };
    let default = match &kind {
        TargetKind::Pblk(c) if c.active_pus == 0 => c.layer().to_string(),
        TargetKind::Pblk(c) => format!("{}, {} active PUs", c.layer(), c.active_pus),
        TargetKind::Pftl(_) => "block SSD (pftl)".to_string(),
        TargetKind::Raw => "raw".to_string(),
    };
    Some(Target { pus, host, ..Target::new(name.unwrap_or(&default), kind, device) })
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

/// Keys of pblk and QBLK: what one leaves out is as `c` has it.
fn read_host_ftl(s: &Section<'_>, mut c: LogConfig) -> LogConfig {
    if let Some(percent) = s.number("over_provisioning_percent", 3, 80) {
        c.over_provisioning_percent = percent as u32;
    }
    c.active_pus = s.number("active_pus", 0, u32::MAX as u64).unwrap_or(0) as u32;
    c.ring_sectors = s.number("ring_sectors", 1, u32::MAX as u64).map(|n| n as u32);
    c.limiter = s.word("limiter", &LimiterKind::ALL).unwrap_or(c.limiter);
    c.gc = s.flag("gc").unwrap_or(c.gc);
    c.wear = read_wear(s);
    c.scrub = read_scrub(s);
    c.rings = s.word("rings", &RingSet::NAMES).unwrap_or(c.rings);
    c.cores = s.number("cores", 1, 65_535).unwrap_or(0) as u32;
    c.pools = s.word("pools", &PoolSet::NAMES).unwrap_or(c.pools);
    c.map = s.word("map", &MapAccess::NAMES).unwrap_or(c.map);
    c.drain = s.word("drain", &Drain::NAMES).unwrap_or(c.drain);
    if let Some(budget) = s.number("pu_budget", 1, 64) {
        c.pu_budget = budget as u32;
    }
    c.in_turn = s.flag("in_turn").unwrap_or(c.in_turn);
    c.borrow = s.flag("borrow").unwrap_or(c.borrow);
    c
}

fn read_wear(s: &Section<'_>) -> WearConfig {
    let default = WearConfig::default();
    let spread = s.number("wear_spread", 1, u32::MAX as u64).map(|n| n as u32);
    let leveling = s.word("wear_leveling", &WearLeveling::NAMES).unwrap_or(default.leveling);
    if spread.is_some() && leveling != WearLeveling::Static {
        s.complain("wear_spread", "`wear_spread` is for `wear_leveling = \"static\"`");
    }
    WearConfig { leveling, spread: spread.unwrap_or(default.spread) }
}

fn read_scrub(s: &Section<'_>) -> ScrubConfig {
    let default = ScrubConfig::default();
    let mode = s.word("scrub", &Scrub::NAMES).unwrap_or(default.mode);
    let interval: Option<Ns> = s.parsed("scrub_interval");
    let sectors = s.number("scrub_sectors", 1, u32::MAX as u64).map(|n| n as u32);
    if mode == Scrub::Off {
        for key in ["scrub_interval", "scrub_sectors"].into_iter().filter(|key| s.has(key)) {
            let says = format!("`{key}` needs `scrub`: \"reads\" or \"patrol\"");
            s.complain(key, says);
        }
    }
    ScrubConfig {
        mode,
        interval: interval.unwrap_or(default.interval),
        sectors: sectors.unwrap_or(default.sectors),
    }
}

fn read_pftl(s: &Section<'_>) -> PftlConfig {
    let mut c = PftlConfig::default();
    if let Some(percent) = s.number("over_provisioning_percent", 1, 90) {
        c.over_provisioning_percent = percent as u32;
    }
    let most = u32::MAX as u64;
    c.buffer_sectors = s.number("buffer_sectors", 1, most).map(|n| n as u32);
    if let Some(lines) = s.number("gc_low_water_lines", 1, most) {
        c.gc_low_water_lines = lines as u32;
    }
    c.gc_reads = s.number("gc_reads", 1, most).map(|n| n as u32);
    c.capacitors = s.flag("capacitors").unwrap_or(c.capacitors);
    c.dirty_pages = s.number("dirty_pages", 0, most).map(|n| n as u32);
    c
}
