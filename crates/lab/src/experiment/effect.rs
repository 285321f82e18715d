//! Keys that change nothing on some types of target.
//!
//! Owns: which keys of `[device]` and of a target's host act on which types of target. Promises: a
//! key that acts on no target of its experiment is a complaint that names the key, the types and
//! the remedy; a key that acts on one of several targets is none. Never: judges what a preset or a
//! device's own file says: they describe a device, whoever uses it. Keys of a layer that need
//! another key of it are the layer's own ([`Kind::settings`]).

use super::document::Section;
use super::files::PARAFS;
use super::target::Target;
use flashlane_base::mutant;
use flashlane_ftl::layer::{Kind, Side};
use flashlane_ftl::slc::SLC;
use flashlane_stack::kinds;

/// A key of `[device]` that does not act on every type of target.
struct Rule {
    /// `key`, or `table.key`.
    key: &'static str,
    /// Whether it acts on a target.
    acts_on: fn(&Target) -> bool,
    /// What it acts on, and why that is not there.
    why: &'static str,
}

/// Every key of `[device]` that does not act on every type of target.
const RULES: &[Rule] = &[
    Rule { key: "cells.bits", acts_on: has_slc_part, why: NO_SLC_PART },
    Rule { key: "cells.slc", acts_on: has_slc_part, why: NO_SLC_PART },
    Rule {
        key: "timing.cache_program",
        acts_on: has_program_behind_program,
        why: "programs of a PU overlap, and a block SSD sends none before the last has ended",
    },
    Rule {
        key: "timing.max",
        acts_on: |_| false,
        why: "a drive tells its host these longest times (identify), and no target asks for them",
    },
    Rule {
        key: "dulbe",
        acts_on: has_layers,
        why: "it is about reads of sectors that nobody has written, and a raw target makes none",
    },
    Rule { key: "queue", acts_on: has_order, why: NO_READ_WAITS },
    Rule { key: "timing.queue", acts_on: has_order, why: NO_READ_WAITS },
    Rule { key: "timing.read_burst", acts_on: has_layers, why: NO_READ_WAITS },
    Rule { key: "timing.suspend_cost", acts_on: has_layers, why: NO_READ_WAITS },
    Rule { key: "cells.pair_damage", acts_on: has_layers, why: NO_POWER_CUT },
    Rule {
        key: "limits.write_buffer",
        acts_on: is_buffered,
        why: "an FTL in a drive writes through it, unless `limits.capacitors` makes it durable",
    },
    Rule { key: "limits.capacitors", acts_on: has_layers, why: NO_POWER_CUT },
    Rule {
        key: "limits.reset_free",
        acts_on: has_layers,
        why: "a raw target resets no chunk that is free",
    },
];

const NO_SLC_PART: &str =
    "it is about chunks in single-bit mode, and only a target of type `slc-tlc` has those";
const NO_READ_WAITS: &str = "it is about reads that wait for a program or an erase of their PU, \
                             and no job of a raw target reads a PU that another one writes";
const NO_POWER_CUT: &str =
    "it is about power cuts and what a flush does against them, and a raw target has neither";

/// Chunks of its device are in single-bit mode.
fn has_slc_part(target: &Target) -> bool {
    target.stack.layers.iter().any(|layer| layer.kind.name() == SLC.name())
}

/// A PU may get a program while another one runs: an FTL in a drive that takes writes anywhere
/// waits until the PU is idle, which a write buffer of the device pretends.
fn has_program_behind_program(target: &Target) -> bool {
    let waits = |kind: &dyn Kind| kind.stands().side == Side::Drive && !kind.in_order();
    let lowest = target.stack.layers.first();
    let has_buffer = target.stack.device.spec.limits.write_buffer.is_some();
    has_buffer && is_buffered(target) || lowest.is_none_or(|lowest| !waits(lowest.kind))
}

/// A buffer of the device would hold what is written: an FTL in a drive lets it only where it is
/// durable.
fn is_buffered(target: &Target) -> bool {
    let lowest = target.stack.layers.first();
    target.stack.device.spec.limits.capacitors
        || lowest.is_none_or(|lowest| lowest.kind.stands().side == Side::Host)
}

fn has_layers(target: &Target) -> bool {
    !target.stack.is_raw()
}

/// The order in which a die serves what waits for it makes a difference: reads may wait for
/// programs, or programs overlap, which they do not under `suspend`.
fn has_order(target: &Target) -> bool {
    has_layers(target) || target.stack.device.spec.timing.cache_program
}

/// Its type, as `kind` names it.
fn type_of(target: &Target) -> &'static str {
    match target.stack.layers.first() {
        Some(lowest) if target.fs.is_some() && lowest.kind.in_order() => PARAFS,
        Some(lowest) => lowest.kind.name(),
        None => kinds::RAW,
    }
}

/// Refuses keys of `[device]` that act on none of the targets.
pub(super) fn check_device(root: &Section<'_>, targets: &[Target]) {
    // Of a target that could not be read nobody knows what acts on it; what acts on one that
    // `--target` has left out is no mistake of the file.
    let are_all_read = !targets.is_empty() && root.tables("target").len() == targets.len();
    let are_all_here = are_all_read && !root.document().is_picked();
    if !are_all_here || !root.has("device") || mutant!("lab.idle-keys-pass") {
        return;
    }
    let Some(device) = root.table("device") else { return };
    let mut types: Vec<&str> = targets.iter().map(type_of).collect();
    types.sort_unstable();
    types.dedup();
    let on = match types[..] {
        [one] => format!("a target of type `{one}`"),
        _ => format!("targets of the types `{}`", types.join("`, `")),
    };
    for rule in RULES.iter().filter(|rule| !targets.iter().any(rule.acts_on)) {
        let says = format!("`{}` has no effect on {on}: {}; leave it out", rule.key, rule.why);
        match rule.key.split_once('.') {
            Some((table, key)) if device.has(table) => {
                if let Some(section) = device.table(table).filter(|section| section.has(key)) {
                    section.complain(key, says);
                }
            }
            None if device.has(rule.key) => device.complain(rule.key, says),
            _ => {}
        }
    }
}

/// Refuses keys of the host that do not act on a target of this type, whose lowest layer is `kind`.
pub(super) fn check_host(s: &Section<'_>, named: &str, kind: Option<&dyn Kind>) {
    let refuse = |key: &str, why: &str| {
        if s.has(key) && !mutant!("lab.idle-keys-pass") {
            let says = "has no effect on a target of type";
            s.complain(key, format!("`{key}` {says} `{named}`: {why}; leave it out"));
        }
    };
    let Some(kind) = kind else {
        for key in ["host_cores", "costs", "handoff_per_waiter"] {
            refuse(key, "its jobs send vector commands from one core, and pay no host work");
        }
        return;
    };
    if kind.stands().side == Side::Drive {
        refuse("handoff_per_waiter", "only pblk and QBLK hold locks that cost time");
    }
}

#[cfg(test)]
mod tests;
