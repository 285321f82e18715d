//! Moves data before it can't be read any more.
//!
//! Owns: what reads met in each line, the patrol that reads what nobody asks for, how often lines are
//! moved for it. Promises: a line in which a read needed heavy correction is collected as soon as
//! there is room, a line whose reads needed retries or failed without asking how often that happened;
//! the patrol looks at every chunk with valid sectors once in its interval, right after a mount without
//! pauses, since nobody knows how long the medium lay; nobody waits for it, and it keeps no virtual
//! run alive. Never: moves anything itself (that is `gc`), or touches the medium's format.
//!
//! Why reads: what a chunk has been through (age, reads of it, wear) is the device's to know, and its
//! verdict on a read is all of it in one. Age and reads count for a whole chunk, so that a unit of it
//! tells of the others.

use crate::log::config::worded;
use crate::log::lines::NO_LINE;
use crate::log::map::Entry;
use crate::log::pool::{LineState, PoolState};
use crate::log::{HostFtl, add};
use flashlane_base::{Ns, OOB_BYTES, Ppa, VECTOR_MAX};
use flashlane_ocssd::device::{Cause, ChunkState, Completion, Status};
use flashlane_rt::sync::{Mutex, Ordering};
use flashlane_rt::{Cx, Notify};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::sync::Arc;

worded! {
    /// Who looks for data that decays.
    pub enum Scrub {
        /// Nobody.
        #[default]
        Off = "off",
        /// Reads that are made anyway.
        Reads = "reads",
        Patrol = "patrol",
    }
}

/// Settings of scrubbing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ScrubConfig {
    pub mode: Scrub,
    /// Every chunk is looked at once in this time, and as many lines are moved in it for heavy
    /// correction as there are.
    pub interval: Ns,
    /// Heavily corrected sectors that have a line moved.
    pub sectors: u32,
}

impl Default for ScrubConfig {
    fn default() -> ScrubConfig {
        ScrubConfig { mode: Scrub::Off, interval: Ns::from_secs(7 * 24 * 3600), sectors: 1 }
    }
}

/// Shortest interval: shorter ones read all the time.
const INTERVAL_MIN: Ns = Ns::from_ms(1);
/// Shortest pause between two lines.
const PAUSE_MIN: Ns = Ns::from_us(10);

impl ScrubConfig {
    pub(in crate::log) fn check(self) -> Result<(), &'static str> {
        if self.interval < INTERVAL_MIN {
            return Err("a scrub interval below 1 ms would read all the time: give a longer one");
        }
        match self.sectors {
            0 => Err("scrubbing lines without a heavily corrected sector: at least 1"),
            _ => Ok(()),
        }
    }
}

/// What reads of a line met since it was opened.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct Decay {
    /// Sectors that needed heavy correction.
    heavy: u32,
    /// It is to be moved.
    pub(in crate::log) due: bool,
}

impl Decay {
    pub(in crate::log) const NONE: Decay = Decay { heavy: 0, due: false };
}

pub(in crate::log) struct Scrubber {
    config: ScrubConfig,
    /// Lines of the target: as many are moved for heavy correction in an interval.
    lines: u64,
    budget: Mutex<Budget>,
    /// The patrol waits here.
    pub(in crate::log) work: Notify,
}

/// Lines that may still be moved, and the time up to which more were granted.
struct Budget {
    lines: u64,
    to: Ns,
}

impl Budget {
    /// Takes a line out of what `config` grants up to `now`.
    fn take(&mut self, all: u64, interval: Ns, now: Ns) -> bool {
        let pause = (interval.as_ns() / all.max(1)).max(1);
        let granted = now.saturating_sub(self.to).as_ns() / pause;
        self.lines = self.lines.saturating_add(granted).min(all);
        self.to += Ns::from_ns(granted * pause);
        let had = self.lines > 0;
        self.lines -= u64::from(had);
        had
    }
}

impl Scrubber {
    pub(in crate::log) fn new(config: ScrubConfig, now: Ns, lines: u64) -> Scrubber {
        let budget = Mutex::new(Budget { lines, to: now });
        Scrubber { config, lines, budget, work: Notify::new() }
    }

    #[inline]
    pub(in crate::log) fn is_on(&self) -> bool {
        self.config.mode != Scrub::Off
    }
}

impl HostFtl {
    /// A read of sectors of the map met something: the lines in which they are have decayed. Sector
    /// `i` of `sectors` is lba `lba + i`, and the `k`-th of them the `k`-th address of the command.
    #[cold]
    pub(in crate::log) fn note_host_read(
        &self,
        cx: &Cx,
        lba: u64,
        sectors: u64,
        done: &Completion,
    ) {
        if !self.scrub.is_on() {
            return;
        }
        let each = (0..64).filter(|i| sectors >> i & 1 != 0).enumerate();
        for (k, i) in each.filter(|(k, _)| done.status(*k) != Status::Ok) {
            // Where it has been moved or overwritten since, nothing is to be saved.
            if let Entry::Media(addr) = self.map.get(lba + i) {
                self.note_decay(cx, self.lines.line_of(addr), done, k);
            }
        }
    }

    /// The `k`-th sector of a command, in `line`, was not simply good.
    fn note_decay(&self, cx: &Cx, line: u32, done: &Completion, k: usize) {
        let status = done.status(k);
        // Anything else says nothing of the cells.
        let decays = matches!(status, Status::HighEcc | Status::Uncorrectable);
        if line == NO_LINE || !decays {
            return;
        }
        // The code alone does not do any more.
        let urgent = status == Status::Uncorrectable || done.breakdown.retry > Ns::ZERO;
        let pool = self.pools.of_line(line);
        let mut p = pool.lock();
        let l = p.line_mut(line);
        use LineState::{Closed, Closing, Open};
        if l.decay.due || !matches!(l.state, Open | Closing | Closed) {
            return;
        }
        l.decay.heavy = l.decay.heavy.saturating_add(1);
        let Scrubber { config, lines, budget, .. } = &self.scrub;
        let take = || budget.lock().take(*lines, config.interval, cx.now());
        l.decay.due = urgent || l.decay.heavy >= config.sectors && take();
        if l.decay.due {
            drop(p);
            pool.collector.work.wake(cx);
            self.scrub.work.wake(cx);
        }
    }

    /// Looks at line after line, and closes the line that is filled where it decays, until the target
    /// stops or is read-only.
    pub(in crate::log) async fn scrub_loop(self: Arc<Self>, cx: Cx) {
        let patrols = self.scrub.config.mode == Scrub::Patrol;
        // Nobody knows how long what was mounted had lain.
        let mut hurry = self.recovery.lock().is_some();
        let mut at = if hurry { cx.now() } else { cx.now() + self.pause() };
        let (mut cursor, mut pass, mut armed) = (0, 0, Ns::ZERO);
        loop {
            if patrols && armed != at {
                armed = at;
                cx.arm_idle(at);
            }
            let ended = || self.is_stopping() || self.read_only();
            let due = || patrols && cx.now() >= at;
            let wanted = || ended() || due() || self.decayed_open_line().is_some();
            self.scrub.work.wait(&cx, wanted).await;
            if ended() {
                return;
            }
            if let Some(line) = self.decayed_open_line() {
                self.pools.of_line(line).lock().stop_filling(line);
                self.close_if_ready(&cx, line);
                self.pool_changed.wake(&cx);
            }
            if due() {
                let looked = self.look_from(&cx, cursor, pass).await;
                if looked.is_none() {
                    self.look_at_metadata(&cx).await;
                    (pass, hurry) = (pass + 1, false);
                }
                cursor = looked.map_or(0, |line| line + 1);
                at = if hurry { cx.now() } else { cx.now() + self.pause() };
            }
        }
    }

    /// Between two lines, so that all are looked at in an interval.
    fn pause(&self) -> Ns {
        let in_use = |p: &PoolState| p.lines().filter(|(_, l)| l.state != LineState::Free).count();
        let in_use = self.pools.sum(|p| in_use(p) as u64) + 1;
        Ns::from_ns(self.scrub.config.interval.as_ns() / in_use).max(PAUSE_MIN)
    }

    /// The line that is filled, where it decays: it has to be closed to be moved. Not under GC's
    /// levels, where lines fill by themselves: the padding is no part of the reserve.
    fn decayed_open_line(&self) -> Option<u32> {
        // Without collection nobody would move what is in there.
        if !self.gc.enabled.load(Ordering::Acquire) {
            return None;
        }
        let decayed = |p: &PoolState| {
            let decays = |line: &u32| p.line(*line).decay.due;
            p.current.filter(decays).filter(|_| p.spare.is_some())
        };
        let mut pools = self.pools.iter().filter(|pool| !pool.collector.is_wanted());
        pools.find_map(|pool| decayed(&pool.lock()))
    }

    /// Looks at the first line from `cursor` on that holds data; `None` when there is none.
    async fn look_from(&self, cx: &Cx, cursor: u32, pass: u32) -> Option<u32> {
        use LineState::{Closed, Closing, Open};
        // Until the reads have ended nobody erases what was chosen.
        let operation = self.epochs.begin(cx);
        let holds = |l: &crate::log::pool::Line| matches!(l.state, Open | Closing | Closed);
        let first = |p: &PoolState| {
            let mut lines = p.lines().filter(|(id, _)| *id >= cursor);
            lines.find(|(_, l)| holds(l) && !l.decay.due).map(|(id, l)| (id, l.chunks.clone()))
        };
        let found = self.pools.iter().find_map(|pool| first(&pool.lock()));
        if let Some((line, chunks)) = &found {
            let mut sectors = Vec::new();
            chunks.iter().for_each(|chunk| self.choose(*chunk, pass, &mut sectors));
            self.look_at(cx, *line, &sectors).await;
        }
        self.epochs.end(cx, operation);
        found.map(|(line, _)| line)
    }

    /// Adds the valid sectors of one unit of a chunk: of another one in every pass, if it has any.
    fn choose(&self, chunk: u32, pass: u32, out: &mut Vec<u64>) {
        let (unit, len) = (self.shape.unit, self.shape.chunk_sectors);
        let base = u64::from(chunk) * u64::from(len);
        let rows = len / unit;
        let row = |i: u32| base + u64::from((pass + i) % rows * unit);
        let valid = |i: u32| Some((row(i), self.lines.bits(row(i), unit))).filter(|r| r.1 != 0);
        if let Some((first, bits)) = (0..rows).find_map(valid) {
            let sectors = (0..u64::from(unit)).filter(|i| bits >> i & 1 != 0);
            out.extend(sectors.map(|i| first + i));
        }
    }

    async fn look_at(&self, cx: &Cx, line: u32, sectors: &[u64]) {
        for part in sectors.chunks(VECTOR_MAX) {
            let done = self.sense(cx, part).await;
            for k in (0..part.len()).filter(|k| done.status(*k) != Status::Ok) {
                self.note_decay(cx, line, &done, k);
            }
        }
    }

    /// Reads up to 64 sectors for their status alone.
    async fn sense(&self, cx: &Cx, sectors: &[u64]) -> Completion {
        let mut addrs = [Ppa(0); VECTOR_MAX];
        for (ppa, addr) in addrs.iter_mut().zip(sectors) {
            let (chunk, sector) = self.lines.chunk_of(*addr);
            *ppa = self.flash.format.in_chunk(self.flash.chunk_base[chunk as usize], sector);
        }
        let mut oob = [[0u8; OOB_BYTES]; VECTOR_MAX];
        let n = sectors.len();
        add(&self.counters.patrol_reads, n as u64);
        let kind = (0, false);
        self.flash.read(cx, &addrs[..n], &mut [], kind, &mut oob, Cause::Gc).await
    }

    /// Looks at log, anchor and checkpoints, once a pass. Where they decay the log goes on in fresh
    /// chunks, and two checkpoints make what was before unneeded: the first of them names nothing of it.
    async fn look_at_metadata(&self, cx: &Cx) {
        // Nobody cuts the log, or gives a checkpoint up, while its chunks are read.
        self.checkpoints.turn.acquire(cx, 1).await;
        let decays = self.with_log_at_rest(cx, self.metadata_decays(cx)).await;
        self.checkpoints.turn.release(cx, 1);
        // What can't be written any more makes the target read-only, and ends this.
        if decays && self.move_log(cx).await.is_ok() && self.checkpoint_anew(cx).await.is_ok() {
            let _ = self.checkpoint(cx).await;
        }
    }

    async fn metadata_decays(&self, cx: &Cx) -> bool {
        let (unit, len) = (self.shape.unit, self.shape.chunk_sectors);
        let kept: BTreeSet<u32> =
            self.checkpoints.kept.lock().iter().flat_map(|c| c.chunks.clone()).collect();
        let readable = |chunk: &u32| {
            let info = self.chunk_info(*chunk);
            info.state == ChunkState::Closed && info.write_pointer >= unit
                || info.write_pointer >= unit + self.shape.window
        };
        let chunks = self.journal.chunks().into_iter().chain(kept).filter(readable);
        let first = |chunk: u32| u64::from(chunk) * u64::from(len);
        let sectors: Vec<u64> = chunks.flat_map(|c| first(c)..first(c) + u64::from(unit)).collect();
        let mut decays = false;
        for part in sectors.chunks(VECTOR_MAX) {
            let done = self.sense(cx, part).await;
            let worse =
                |k: usize| matches!(done.status(k), Status::HighEcc | Status::Uncorrectable);
            decays |= (0..part.len()).any(worse);
        }
        decays
    }
}
