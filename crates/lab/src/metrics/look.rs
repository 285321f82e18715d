//! A look at a drive in use.
//!
//! Owns: what of a device and its layer goes into a [`Snapshot`]. Promises: it asks what reports ask, and
//! nothing that makes an event. Never: waits.

use super::{Medium, MountLost, Numbers, Ring, Room, Snapshot, TargetSnapshot, Waits};
use crate::control::live::Target;
use crate::drive::{Endurance, Look};
use crate::lnvm::Drive;
use flashlane_base::counters::Counters;
use flashlane_base::{Ns, SECTOR_BYTES};
use flashlane_ftl::contention::{Contention, LOCKS};
use flashlane_ftl::layer::{Counted, Knob, Layer, LostCause, Recovered};
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::device::{Cause, CellMode, ChunkState};
use flashlane_ocssd::{Device, Ssd};
use std::sync::Arc;

/// Sectors up to which what they hold is looked at, 64 GiB: some milliseconds.
const PAGES_SECTORS_MAX: u64 = 1 << 24;

fn numbers(of: &impl Counters) -> Numbers {
    let named = std::iter::zip(schema(of), of.numbers());
    named.map(|(counter, n)| (counter.name.to_string(), n)).collect()
}

fn schema<C: Counters>(_: &C) -> &'static [flashlane_base::counters::Counter] {
    C::SCHEMA
}

fn named(counted: Vec<Counted>) -> Numbers {
    counted.into_iter().map(|c| (c.name.to_string(), c.value)).collect()
}

/// Sectors by the names of causes.
fn by_cause(sectors: &[u64]) -> Numbers {
    let named = Cause::ALL.into_iter().zip(sectors);
    named.map(|(cause, n)| (cause.name().to_string(), *n)).collect()
}

/// A drive, and those of its targets that are in use.
pub(crate) fn look(drive: &Drive, targets: &[Target], now: Ns) -> Snapshot {
    let device = drive.path.file_name().unwrap_or(drive.path.as_os_str());
    let smart = Look::of(drive.ssd.clone(), Vec::new()).map(|look| look.smart());
    Snapshot {
        time_ns: now.as_ns(),
        device: device.to_string_lossy().into_owned(),
        process: std::process::id(),
        targets: targets.iter().map(|target| target_at(target, now)).collect(),
        medium: medium(&drive.ssd, now),
        smart: smart.unwrap_or_default(),
    }
}

fn target_at(target: &Target, now: Ns) -> TargetSnapshot {
    let mut to = TargetSnapshot { name: target.name.clone(), ..TargetSnapshot::default() };
    if let Some(layers) = target.layers() {
        add_layer(&mut to, layers.target(), now);
        let above = layers.counted_above().into_iter();
        to.layers = above.map(|(name, counted)| (name.into(), named(counted))).collect();
        if layers.block().info().capacity <= PAGES_SECTORS_MAX {
            to.pages = named(layers.pages());
        }
    }
    to.requests = target.tap().map_or_else(Vec::new, |tap| tap.requests());
    to
}

fn add_layer(to: &mut TargetSnapshot, layer: &Arc<dyn Layer>, now: Ns) {
    to.layer = layer.kind().name().into();
    to.capacity_bytes = layer.clone().above().block().info().capacity * SECTOR_BYTES as u64;
    to.read_only = layer.read_only().map(str::to_string);
    to.lost = Some(mount_lost(layer.recovered()));
    to.lines = layer.line_states().into_iter().collect();
    to.counted = named(layer.counted());
    if let Some(stats) = layer.stats() {
        add_stats(to, &stats);
    }
    if let Some(gauges) = layer.gauges() {
        to.room = Room { free: gauges.free, of: gauges.of, user_slots: gauges.user_slots };
    }
    if let Some(contention) = layer.contention(now) {
        add_contention(to, &contention);
    }
    let knobs = layer.kind().attributes().iter().filter(|a| a.knob != Knob::No);
    let value = |name: &str| layer.attribute(name).unwrap_or_default();
    to.knobs = knobs.map(|knob| (knob.name.to_string(), value(knob.name))).collect();
}

/// The losses that a mount found; none for a layer that was created and not mounted.
pub(super) fn mount_lost(recovered: Option<Recovered>) -> MountLost {
    let found = recovered.unwrap_or_default();
    let mut lost = MountLost { torn_units: found.torn_units, ..MountLost::default() };
    lost.sectors.extend(LostCause::NAMES.map(|cause| (cause.to_string(), 0)));
    for range in &found.lost_sectors {
        *lost.sectors.entry(range.cause.name().to_string()).or_default() += range.count;
    }
    lost.medium_sectors = found.lost.iter().map(|(_, n)| u64::from(*n)).sum();
    lost
}

pub(super) fn add_stats(to: &mut TargetSnapshot, stats: &FtlStats) {
    to.write_amplification_ratio = stats.write_amplification();
    to.stats = numbers(stats);
    to.programmed = by_cause(&stats.programmed);
    to.read_time = numbers(&stats.read_breakdown);
}

pub(super) fn add_contention(to: &mut TargetSnapshot, contention: &Contention) {
    to.exchanges = numbers(&contention.exchanges);
    to.channels_passed = contention.passed;
    to.rings = contention
        .queues
        .iter()
        .map(|q| Ring {
            slots: q.capacity,
            used: q.depth,
            full_waits: q.full.times,
            full_wait_ns: q.full.time.as_ns(),
            limited_waits: q.limited.times,
            limited_wait_ns: q.limited.time.as_ns(),
        })
        .collect();
    let lock = |(name, l): (&str, flashlane_rt::LockStats)| Waits {
        name: name.into(),
        taken: l.acquired,
        waits: l.contended,
        wait_ns: l.spun.as_ns(),
    };
    to.locks = LOCKS.into_iter().zip(contention.locks()).map(lock).collect();
    let waits = contention.semaphores();
    to.semaphores = Waits {
        name: "semaphore".into(),
        taken: 0,
        waits: waits.times,
        wait_ns: waits.time.as_ns(),
    };
}

fn medium(ssd: &Arc<Ssd>, now: Ns) -> Medium {
    let (geo, count) = (*ssd.geometry(), ssd.counters_at(now));
    let states = [
        (ChunkState::Free, "free"),
        (ChunkState::Open, "open"),
        (ChunkState::Closed, "closed"),
        (ChunkState::Offline, "offline"),
    ];
    let (mut chunks, mut slc, mut pu_erases) = ([0; 4], 0, Vec::new());
    let (mut least, mut most, mut all) = (u64::MAX, 0, 0u64);
    let reports: Vec<_> = (0..geo.pus()).map(|pu| ssd.chunk_report(pu, 0, u32::MAX)).collect();
    for report in &reports {
        let mut erases = 0;
        for chunk in report {
            let state = states.iter().position(|(state, _)| *state == chunk.state);
            state.into_iter().for_each(|s| chunks[s] += 1);
            slc += u64::from(chunk.cell == CellMode::Slc);
            let n = chunk.erases as u64;
            (least, most, all, erases) = (least.min(n), most.max(n), all + 1, erases + n);
        }
        pu_erases.push(erases);
    }
    let mean = pu_erases.iter().sum::<u64>() / all.max(1);
    let named = states.iter().zip(chunks).map(|((_, name), n)| (name.to_string(), n));
    Medium {
        name: ssd.spec().name.clone(),
        raw_bytes: geo.sectors() * SECTOR_BYTES as u64,
        pus_per_channel: geo.pus_per_channel,
        counters: numbers(&count.all),
        programmed: by_cause(&count.programmed),
        buffer: count.buffer.as_ref().map(numbers),
        slc: count.slc.as_ref().map(numbers),
        dies_ns: count.dies.iter().map(|d| [d.read, d.program, d.erase].map(Ns::as_ns)).collect(),
        channels_ns: count.channels.iter().map(|busy| busy.as_ns()).collect(),
        pu_erases,
        chunks: named.collect(),
        slc_chunks: ssd.spec().cells.slc.as_ref().map(|_| slc),
        wear: [least.min(most), mean, most],
        endurance: Endurance::of(ssd, &reports),
        violations: count.violations,
        store_bytes: count.store_bytes,
        faults: ssd.faults().len() as u64,
        faults_happened: ssd.faults_happened().iter().sum(),
    }
}
