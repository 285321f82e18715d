//! Who may still look at a slot or an address that is no longer in the map.
//!
//! Owns: per core whether it is inside a section, and since which epoch. A section is a straight line
//! of code without an await that begins with a look at the map: load … compare-exchange, load … copy.
//! Promises: what was taken out of the map before `retired` was asked is unreachable once `passed`
//! says so; sections are not nested and never wait, so everybody passes soon. Where one thread does
//! everything, or the map has a lock, there is nothing to count and nothing is.
//! Never: waits for device commands (that is `epoch`).
//!
//! The algorithm is epoch-based reclamation (K. Fraser, Practical lock-freedom, 2004, 5.2.3): a core
//! announces the epoch that it sees; the epoch moves on when every announced one is the present; what
//! was retired two epochs ago is seen by nobody.

use flashlane_base::mutant;
use flashlane_rt::sync::{AtomicU64, Ordering, fence};
use flashlane_rt::{CoreId, Cx};

/// Not inside a section.
const OUTSIDE: u64 = 0;

#[repr(align(128))]
struct Announced(AtomicU64);

pub(in crate::log) struct Sections {
    epoch: AtomicU64,
    /// Empty where nothing need be counted.
    cores: Box<[Announced]>,
}

/// Inside a section until dropped.
pub(in crate::log) struct Inside<'a>(Option<&'a AtomicU64>);

impl Drop for Inside<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(announced) = self.0 {
            let order = match mutant!("qblk.leave-relaxed") {
                false => Ordering::Release,
                true => Ordering::Relaxed,
            };
            announced.store(OUTSIDE, order);
        }
    }
}

impl Sections {
    /// `cores` real ones that share the map without a lock; 0 where nothing need be counted.
    pub(in crate::log) fn new(cores: u32) -> Sections {
        let announced = |_| Announced(AtomicU64::new(OUTSIDE));
        Sections { epoch: AtomicU64::new(1), cores: (0..cores).map(announced).collect() }
    }

    #[inline]
    pub(in crate::log) fn are_counted(&self) -> bool {
        !self.cores.is_empty()
    }

    /// The core begins a section.
    #[inline]
    pub(in crate::log) fn enter(&self, cx: &Cx) -> Inside<'_> {
        self.enter_on(cx.core())
    }

    #[inline]
    pub(in crate::log) fn enter_on(&self, core: CoreId) -> Inside<'_> {
        let Some(Announced(mine)) = self.cores.get(core.0 as usize) else {
            debug_assert!(!self.are_counted(), "a core that nobody told of");
            return Inside(None);
        };
        debug_assert_eq!(mine.load(Ordering::Relaxed), OUTSIDE, "sections are not nested");
        mine.store(self.epoch.load(Ordering::Relaxed), Ordering::Relaxed);
        // Announced before anything is looked at; pairs with the one in `advance`.
        if !mutant!("qblk.enter-unfenced") {
            fence(Ordering::SeqCst);
        }
        Inside(Some(mine))
    }

    /// The epoch in which something was taken out of the map, just now.
    #[inline]
    pub(in crate::log) fn retired(&self) -> u64 {
        if !mutant!("qblk.retire-unfenced") {
            fence(Ordering::SeqCst);
        }
        self.epoch.load(Ordering::Relaxed)
    }

    /// Has everybody who may have seen what was retired in that epoch left?
    #[inline]
    pub(in crate::log) fn passed(&self, epoch: u64) -> bool {
        let epochs = if mutant!("qblk.short-grace") { 1 } else { 2 };
        !self.are_counted() || self.epoch.load(Ordering::Acquire) >= epoch + epochs
    }

    /// Moves the epoch on if nobody lags behind.
    pub(in crate::log) fn advance(&self) {
        let now = self.epoch.load(Ordering::Relaxed);
        if !mutant!("qblk.advance-unfenced") {
            fence(Ordering::SeqCst);
        }
        let lags = |at: u64| at != OUTSIDE && at != now && !mutant!("qblk.advance-past-laggards");
        if !self.cores.iter().any(|core| lags(core.0.load(Ordering::Relaxed))) {
            if !mutant!("qblk.advance-unacquired") {
                fence(Ordering::Acquire);
            }
            let _ = self.epoch.compare_exchange(now, now + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// Waits until every section that has begun by now has ended.
    pub(in crate::log) async fn synchronize(&self, cx: &Cx) {
        if !self.are_counted() {
            return;
        }
        let epoch = self.retired();
        while !self.passed(epoch) {
            self.advance();
            cx.yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use flashlane_rt::{CostTable, Threads, Virtual};
    use std::sync::Arc;

    /// What was retired while a core was in a section has passed when that has ended, not before, however
    /// often somebody asks; sections that began later delay nobody.
    #[test]
    fn an_epoch_passes_when_its_sections_have_ended() {
        let run = Virtual::new(3, 1, CostTable::zero());
        let sections = Sections::new(3);
        let early = sections.enter(&run.cx().on_core(CoreId(1)));
        let retired = sections.retired();
        for _ in 0..10 {
            sections.advance();
            assert!(!sections.passed(retired));
        }
        let late = sections.enter(&run.cx().on_core(CoreId(2)));
        drop(early);
        sections.advance();
        assert!(sections.passed(retired), "the late one saw the new epoch");
        drop(late);
        assert!(Sections::new(0).passed(retired), "nothing is counted");
    }

    const NEVER: u64 = u64::MAX;

    struct Shared {
        sections: Sections,
        slots: [AtomicU64; 4],
        current: AtomicU64,
        done: AtomicU64,
    }

    async fn core(cx: Cx, s: Arc<Shared>) {
        if cx.core() != CoreId(0) {
            while s.done.load(Ordering::SeqCst) == 0 {
                let _inside = s.sections.enter(&cx);
                let at = s.current.load(Ordering::Acquire) as usize;
                for _ in 0..20 {
                    assert_ne!(s.slots[at].load(Ordering::Relaxed), NEVER, "reused under a reader");
                }
            }
            return;
        }
        for i in 1..if cfg!(miri) { 20 } else { 3000u64 } {
            let (old, new) = ((i - 1) % 4, i % 4);
            s.slots[new as usize].store(i, Ordering::Relaxed);
            s.current.store(new, Ordering::Release);
            let retired = s.sections.retired();
            while !s.sections.passed(retired) {
                s.sections.advance();
                std::thread::yield_now();
            }
            s.slots[old as usize].store(NEVER, Ordering::Relaxed);
        }
        s.done.store(1, Ordering::SeqCst);
    }

    /// On real threads: a slot is scribbled over as soon as it has passed, and no reader sees that.
    #[test]
    fn nothing_is_reused_under_a_reader() {
        let s = Arc::new(Shared {
            sections: Sections::new(3),
            slots: Default::default(),
            current: AtomicU64::new(0),
            done: AtomicU64::new(0),
        });
        Threads::new(3, 1).run(|cx| core(cx, s.clone()));
    }
}
