//! The pools of a target: one over all PUs (pblk), or one per channel (QBLK, section II-B).
//!
//! Owns: which pool a chunk or a line belongs to, and what is asked of all of them: sums, the lowest
//! sequence, a chunk for metadata. Promises: a pool's lock is never taken while another's is held, so
//! drainers of different channels do not meet. Never: knows what a pool does inside (that is `pool`).

use crate::log::gc::Collector;
use crate::log::limiter::{Levels, Limiter, Shares};
use crate::log::pool::{Line, LineState, PoolState, Shape};
use flashlane_base::FastDiv;
use flashlane_ocssd::device::Cause;
use flashlane_rt::sync::{AtomicU64, Mutex, MutexGuard, Ordering};
use flashlane_rt::{Contended, Lock, LockStats};
use std::cmp::Reverse;
use std::sync::Arc;

/// One pool: its chunks and lines under their own lock, its garbage collection, its limiter.
pub(in crate::log) struct Pool {
    state: Mutex<PoolState>,
    contended: Contended,
    /// Held while positions are taken: what drainers of one channel compete for (QBLK, II-B).
    pub(in crate::log) taking: Lock<()>,
    pub(in crate::log) limiter: Mutex<Limiter>,
    /// Free chunks at which the limiter was last asked, and what it said.
    pub(in crate::log) shared: Mutex<Option<(u64, Shares)>>,
    pub(in crate::log) collector: Collector,
}

impl Pool {
    pub(in crate::log) fn new(state: PoolState, limiter: Limiter) -> Pool {
        Pool {
            state: Mutex::new(state),
            contended: Contended::new(),
            taking: Lock::new(()),
            limiter: Mutex::new(limiter),
            shared: Mutex::new(None),
            collector: Collector::default(),
        }
    }

    #[inline]
    pub(in crate::log) fn lock(&self) -> MutexGuard<'_, PoolState> {
        self.contended.lock(&self.state)
    }

    /// What was waited for at the pool: in virtual time while positions are taken, on real threads
    /// whenever its state was looked at.
    pub(in crate::log) fn waits(&self) -> LockStats {
        self.taking.stats().and(self.contended.stats(0))
    }
}

pub(in crate::log) struct Pools {
    each: Box<[Pool]>,
    /// Chunks of a pool, and as many line ids.
    chunks: FastDiv,
    next_sequence: Arc<AtomicU64>,
}

impl Pools {
    /// Of a target that begins with line `next_sequence`.
    pub(in crate::log) fn new(
        shape: &Shape,
        next_sequence: Arc<AtomicU64>,
        pools: impl Iterator<Item = Pool>,
    ) -> Pools {
        let each: Box<[Pool]> = pools.collect();
        assert_eq!(each.len(), shape.pools as usize);
        Pools { each, chunks: FastDiv::new(shape.pool_lines()), next_sequence }
    }

    #[inline]
    fn at(&self, id: u32) -> usize {
        match self.each.len() {
            1 => 0,
            _ => self.chunks.div_rem(id).0 as usize,
        }
    }

    /// The pool that a line belongs to.
    #[inline]
    pub(in crate::log) fn of_line(&self, line: u32) -> &Pool {
        &self.each[self.at(line)]
    }

    /// The pool that a chunk belongs to.
    #[inline]
    pub(in crate::log) fn of_chunk(&self, chunk: u32) -> &Pool {
        &self.each[self.at(chunk)]
    }

    #[inline]
    pub(in crate::log) fn get(&self, pool: usize) -> &Pool {
        &self.each[pool]
    }

    #[inline]
    pub(in crate::log) fn len(&self) -> usize {
        self.each.len()
    }

    /// Their places, round from `first` on.
    #[inline]
    pub(in crate::log) fn from(&self, first: usize) -> impl Iterator<Item = usize> + use<> {
        (first..self.len()).chain(0..first)
    }

    #[inline]
    pub(in crate::log) fn iter(&self) -> std::slice::Iter<'_, Pool> {
        self.each.iter()
    }

    pub(in crate::log) fn any(&self, holds: impl Fn(&mut PoolState) -> bool) -> bool {
        self.iter().any(|pool| holds(&mut pool.lock()))
    }

    /// Does it hold for every pool?
    pub(in crate::log) fn all(&self, holds: impl Fn(&mut PoolState) -> bool) -> bool {
        self.iter().all(|pool| holds(&mut pool.lock()))
    }

    pub(in crate::log) fn sum(&self, of: impl Fn(&PoolState) -> u64) -> u64 {
        self.iter().map(|pool| of(&pool.lock())).sum()
    }

    pub(in crate::log) fn count(&self, state: LineState) -> u64 {
        self.sum(|p| p.count(state) as u64)
    }

    pub(in crate::log) fn any_line(&self, holds: impl Fn(&Line) -> bool) -> bool {
        self.any(|p| p.lines().any(|(_, line)| holds(line)))
    }

    /// Sectors programmed, by cause.
    pub(in crate::log) fn programmed(&self) -> [u64; Cause::ALL.len()] {
        let mut sum = [0; Cause::ALL.len()];
        for pool in self.iter() {
            let p = pool.lock();
            sum.iter_mut().zip(p.programmed).for_each(|(sum, n)| *sum += n);
        }
        sum
    }

    /// Erases of the least worn chunk, of the average one (rounded down) and of the most worn.
    pub(in crate::log) fn wear_range(&self) -> [u64; 3] {
        let (mut least, mut most, mut total, mut chunks) = (u64::MAX, 0, 0, 0);
        for pool in self.iter() {
            for erases in pool.lock().wear().iter().copied().map(u64::from) {
                (least, most) = (least.min(erases), most.max(erases));
                (total, chunks) = (total + erases, chunks + 1);
            }
        }
        [least.min(most), total / chunks.max(1), most]
    }

    pub(in crate::log) fn next_sequence(&self) -> u64 {
        self.next_sequence.load(Ordering::SeqCst)
    }

    /// Lowest sequence of a line that is being opened or not closed in the log: a replay that begins
    /// there misses nothing that is in flight.
    pub(in crate::log) fn lowest_open_sequence(&self) -> u64 {
        // First: a line that begins while the pools are looked at has this sequence or a later one.
        let next = self.next_sequence();
        self.iter().map(|pool| pool.lock().lowest_open_sequence()).min().unwrap_or(next).min(next)
    }

    /// A free chunk for metadata, of the pool with the largest reserve for it, on another PU than `not`
    /// where there is one: two copies on one die are better than none. (chunk, needs an erase).
    pub(in crate::log) fn take_meta_chunk(&self, not: Option<u32>) -> Option<(u32, bool)> {
        let rank = |pool: &Pool, at: usize| {
            let p = pool.lock();
            let has = [p.has_chunk_off(not), p.has_chunk_off(None)];
            (has, p.meta_reserve, p.free_chunks(), Reverse(at))
        };
        let best = self.iter().enumerate().max_by_key(|(at, pool)| rank(pool, *at));
        best?.1.lock().take_meta_chunk(not)
    }

    /// Keeps `chunks` in all from the lines, for metadata.
    pub(in crate::log) fn reserve_meta(&self, chunks: u64) {
        let pools = self.len() as u64;
        for (i, pool) in self.iter().enumerate() {
            pool.lock().meta_reserve = chunks / pools + u64::from((i as u64) < chunks % pools);
        }
    }

    /// The controllers of all pools, from their beginning.
    pub(in crate::log) fn set_levels(&self, levels: Levels) {
        for pool in self.iter() {
            pool.limiter.lock().set_levels(levels);
            *pool.shared.lock() = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::log::limiter::LimiterKind;

    /// Three channels of two PUs, all chunks free.
    fn three() -> Pools {
        let shape = Shape {
            pus: 6,
            channels: 3,
            pools: 3,
            chunks_per_pu: 4,
            chunk_sectors: 64,
            unit: 4,
            window: 0,
            behind: 0,
            pair_pads: 0,
        };
        let sequence = Arc::new(AtomicU64::new(1));
        let levels = Levels { start: 6, reserve: 4, line: 2 };
        let each = (0..3).map(|pool| {
            let mut state = PoolState::new(shape, pool, 2, true, sequence.clone());
            (pool * 8..pool * 8 + 8).for_each(|chunk| state.put_chunk(chunk, false));
            Pool::new(state, Limiter::new(LimiterKind::ChannelStates, levels, 256, 4))
        });
        Pools::new(&shape, sequence.clone(), each)
    }

    /// Every chunk and line id belongs to the channel that it is on.
    #[test]
    fn chunks_and_lines_belong_to_their_channel() {
        let pools = three();
        for chunk in 0..24 {
            assert!(std::ptr::eq(pools.of_chunk(chunk), pools.get(chunk as usize / 8)));
        }
        for pool in 0..3 {
            let (line, chunks) = pools.get(pool).lock().begin_line(false).expect("free chunks");
            assert!(std::ptr::eq(pools.of_line(line), pools.get(pool)));
            assert!(chunks.iter().all(|(chunk, _)| *chunk as usize / 8 == pool), "{chunks:?}");
        }
    }

    /// Q23: sequences go over all channels, so that lines of any two have an order.
    #[test]
    fn sequences_are_one_for_all_channels() {
        let pools = three();
        let begin = |pool: usize| {
            let mut p = pools.get(pool).lock();
            let (line, _) = p.begin_line(false).expect("free chunks");
            p.line(line).sequence
        };
        assert_eq!([2, 0, 1, 1, 0].map(begin), [1, 2, 3, 4, 5]);
        assert_eq!((pools.lowest_open_sequence(), pools.next_sequence()), (1, 6));
    }

    /// The reserve for metadata is divided without a rest; what is taken for it comes from who has most, the
    /// copies from two PUs.
    #[test]
    fn metadata_takes_from_every_channel_in_turn() {
        let pools = three();
        pools.reserve_meta(7);
        let kept = |pools: &Pools| pools.iter().map(|p| p.lock().meta_reserve).collect::<Vec<_>>();
        assert_eq!(kept(&pools), [3, 2, 2]);
        let mut not = None;
        for left in (0..7).rev() {
            let (chunk, _) = pools.take_meta_chunk(not).expect("reserved");
            assert_ne!(Some(chunk / 4), not, "another PU");
            not = Some(chunk / 4);
            assert_eq!(kept(&pools).iter().sum::<u64>(), left);
            assert!(kept(&pools).iter().max() <= kept(&pools).iter().min().map(|n| n + 1).as_ref());
        }
    }
}
