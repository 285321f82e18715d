//! What a file system does when nobody asks for anything.
//!
//! Owns: when something is done unasked, which segments are cleaned in idle time. Promises: what is
//! dirty does not stay so for longer than [`Options::commit`] where the medium takes it; it ends
//! with the mount, and keeps no run alive. Never: goes on when somebody asks for something.
//!
//! The ParaFS paper, 3.3: "The background paraGC uses cost-benefit algorithm that selects victim
//! segments not only based on the number of invalid data pages, but also their age"; its valid
//! pages "are considered to be cold, and striped to the allocator heads with low hotness"; it
//! "exits after the migration", without a checkpoint and without erases of its own.
//!
//! [`Options::commit`]: crate::Options

use crate::format::Share;
use crate::fs::Fs;
use crate::state::State;
use crate::write::By;
use flashlane_base::{Ns, mutant};
use flashlane_rt::{Cx, Notify};
use std::collections::BTreeSet;
use std::sync::{Arc, Weak};

/// Segments are cleaned in idle time until so much of what is not valid is free: F2FS sleeps longer
/// from there on. In hundredths.
const FREE_SHARE: u64 = 40;

impl State {
    /// How old it is: what is written from now on is as old.
    pub(crate) fn grow_older(&mut self, now: Ns) {
        self.segments.age = self.age_before + now.saturating_sub(self.mounted_at).as_ns() / SECOND;
    }

    /// The segment that is cleaned next in idle time, if it is worth it; none of those that were. What is
    /// taken out of it must have room, with all that is dirty: there is no checkpoint in between.
    fn idle_victim(&self, cleaned: &BTreeSet<u32>) -> Option<u32> {
        let pages = u64::from(self.layout.shape.segment_pages);
        // What the next checkpoint frees is as good as free.
        let free = u64::from(self.segments.unwritten() + self.segments.empty()) * pages;
        let used = self.segments.units().div_ceil(u64::from(Share::PAGE));
        let invalid = (self.layout.shape.pages() - used).saturating_sub(free);
        match free * 100 < FREE_SHARE * (free + invalid) {
            true => {
                self.segments.victim_by_cost(cleaned).filter(|victim| self.has_room_for(*victim))
            }
            false => None,
        }
    }

    /// What is valid in a segment can be moved while others have what they need.
    fn has_room_for(&self, segment: u32) -> bool {
        u64::from(self.segments.cost(segment)) <= self.movable(self.free_min())
            || mutant!("parafs.moves-without-checkpoint")
    }
}

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;

impl Fs {
    /// Begins to look after it in idle time.
    pub(crate) fn look_after(self: &Arc<Fs>, cx: &Cx) {
        let (idle, commit) = (self.options.idle, self.options.commit);
        let Some(every) = [idle, commit].into_iter().filter(|time| *time > Ns::ZERO).min() else {
            return;
        };
        let (fs, theirs) = (Arc::downgrade(self), cx.clone());
        cx.spawn(async move { look(fs, theirs, every).await });
    }

    /// Does one round of what is due.
    async fn tidy(self: &Arc<Fs>, cx: &Cx, commit: bool, idle: bool, cleaned: &mut BTreeSet<u32>) {
        // Whoever asks for what failed here is told why.
        if commit && self.has_dirty() {
            let _ = self.sync(cx).await;
        }
        let asks = self.lock().asks;
        let is_idle = || {
            let s = self.lock();
            let wanted = !s.ending && !s.cleaning && s.read_only.is_none();
            idle && wanted && s.asks == asks && self.channels.is_idle()
        };
        while is_idle() {
            let Some(victim) = self.lock().idle_victim(cleaned) else { break };
            if !mutant!("parafs.idle-again") {
                cleaned.insert(victim);
            }
            if self.empty(cx, victim, By::IdleCleaner).await.is_err() {
                return;
            }
            self.lock().stats.background_victims += 1;
        }
        for region in 0..self.sb.layout.shape.regions {
            let lagging = self.medium.lags(&self.sb.layout, region).filter(|_| is_idle());
            // A head that is hardly used may have had it for long.
            let lagging = lagging.filter(|segment| {
                let mut s = self.lock();
                !cleaned.contains(segment)
                    && s.has_room_for(*segment)
                    && s.segments.end_use(*segment)
            });
            let Some(segment) = lagging else { continue };
            cleaned.insert(segment);
            if self.empty(cx, segment, By::IdleCleaner).await.is_err() {
                return;
            }
            self.lock().stats.wear_victims += 1;
        }
    }

    fn has_dirty(&self) -> bool {
        let s = self.lock();
        let dirty = s.pages.dirty_count() > 0 || !s.dirty_nodes.is_empty();
        s.read_only.is_none() && (dirty || s.batches > 0)
    }
}

/// Looks every so often whether something is due, as long as the file system is mounted.
async fn look(fs: Weak<Fs>, cx: Cx, every: Ns) {
    let never = Notify::new();
    let mut committed = cx.now();
    let (mut asks, mut asked_at) = (0, cx.now());
    // Nodes that were taken out stay valid where they are until a checkpoint has them elsewhere.
    let (mut cleaned, mut version) = (BTreeSet::new(), 0);
    loop {
        let next = cx.now() + every;
        cx.arm_idle(next);
        never.wait(&cx, || cx.now() >= next).await;
        let Some(fs) = fs.upgrade() else { return };
        {
            let mut s = fs.lock();
            if s.ending || s.unmounted {
                return;
            }
            s.tidying = true;
            if s.version != version {
                version = s.version;
                cleaned.clear();
            }
            s.grow_older(cx.now());
            if s.asks != asks {
                (asks, asked_at) = (s.asks, cx.now());
            }
        }
        let (idle, commit) = (fs.options.idle, fs.options.commit);
        let is_idle = idle > Ns::ZERO && cx.now() >= asked_at + idle;
        let is_due = commit > Ns::ZERO && cx.now() >= committed + commit;
        fs.tidy(&cx, is_due, is_idle, &mut cleaned).await;
        if is_due {
            committed = cx.now();
        }
        fs.lock().tidying = false;
        fs.changed.wake(&cx);
    }
}
