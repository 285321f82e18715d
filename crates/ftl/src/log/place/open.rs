//! Opening lines: the spare line that is always ready before it is needed.
//!
//! Owns: the background task that erases chunks, records the line and writes its first metadata.
//! Promises: all chunks are erased before `opened` is written, `opened` is durable before the first
//! program (FORMAT.md rule 10), and one spare line is kept ready (rule 23).
//! Never: takes the chunks that metadata reserves.

use crate::log::HostFtl;
use crate::log::format::{LBA_LINE_FIRST, LineFirst, Record};
use crate::log::limiter::Shares;
use crate::log::pool::PoolState;
use crate::log::pools::Pool;
use crate::log::unit::Released;
use flashlane_base::{SECTOR_BYTES, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::Cx;
use smallvec::SmallVec;
use std::sync::Arc;

impl HostFtl {
    /// Keeps a pool's spare line ready until the target stops.
    pub(in crate::log) async fn open_loop(self: Arc<Self>, cx: Cx, pool: usize) {
        loop {
            let me = &self;
            let wanted = || me.is_stopping() || me.read_only() || me.can_open(pool);
            self.pool_changed.wait(&cx, wanted).await;
            if self.is_stopping() || self.read_only() {
                return;
            }
            self.open_line(&cx, pool).await;
            self.pool_moved(&cx);
        }
    }

    fn can_open(&self, pool: usize) -> bool {
        let is_cornered = self.is_cornered(pool);
        self.pools.get(pool).lock().may_open(is_cornered)
    }

    /// Nothing takes data in any pool: what is free in this one has to do, however narrow.
    fn is_cornered(&self, pool: usize) -> bool {
        self.pools.get(pool).lock().is_cornered() && self.pools.all(|p| p.is_cornered())
    }

    /// Opens one line: choose, erase, record, first metadata.
    async fn open_line(self: &Arc<Self>, cx: &Cx, pool: usize) {
        if self.wait_for_log(cx).await.is_err() {
            return;
        }
        let begun = {
            let cornered = self.is_cornered(pool);
            let mut p = self.pools.get(pool).lock();
            // A stop may have come while this waited.
            if p.opens { p.begin_line(cornered) } else { None }
        };
        let Some((line, chunks)) = begun else { return };
        let is_late = mutant!("log.erased-behind-opened");
        let good = match is_late {
            true => chunks.iter().map(|chunk| chunk.0).collect(),
            false => self.erase_all(cx, &chunks).await,
        };
        if self.shape.line_data(good.len() as u32) == 0 {
            let mut p = self.pools.get(pool).lock();
            good.iter().for_each(|c| p.put_chunk(*c, false));
            p.give_up_opening(line);
            return;
        }
        let (sequence, at) = {
            // One step: what cuts the log behind the record carries it (FORMAT.md, hole 40).
            let mut p = self.pools.get(pool).lock();
            let l = p.line_mut(line);
            l.chunks.clone_from(&good);
            let record = Record::Opened { line, sequence: l.sequence, chunks: good.clone() };
            (l.sequence, self.journal.append(record))
        };
        if !mutant!("log.opened-later") && self.commit(cx, at).await.is_err() {
            return;
        }
        if is_late {
            self.erase_all(cx, &chunks).await;
        }
        good.iter().for_each(|c| self.lines.set_line(*c, line));
        self.lines.reset(line);
        self.pools.get(pool).lock().opened(line);
        if self.write_first(cx, line, sequence, good).await {
            let mut p = self.pools.get(pool).lock();
            if p.line(line).state == crate::log::LineState::Open {
                p.spare = Some(line);
            }
        } else {
            self.pools.get(pool).lock().stop_filling(line);
        }
        self.close_if_ready(cx, line);
    }

    /// Erases the chunks that need it, in parallel; returns the good ones in order.
    async fn erase_all(self: &Arc<Self>, cx: &Cx, chunks: &[(u32, bool)]) -> Vec<u32> {
        let erases: Vec<_> = chunks
            .iter()
            .map(|(chunk, dirty)| {
                let (me, cx2, chunk, dirty) = (self.clone(), cx.clone(), *chunk, *dirty);
                cx.spawn_join(async move { (chunk, !dirty || me.erase(&cx2, chunk).await) })
            })
            .collect();
        let mut good = Vec::with_capacity(chunks.len());
        for erase in erases {
            match erase.await {
                (chunk, true) => good.push(chunk),
                (chunk, false) => self.retire(chunk),
            }
        }
        good
    }

    /// First metadata at the start of the stripe.
    async fn write_first(
        self: &Arc<Self>,
        cx: &Cx,
        line: u32,
        sequence: u64,
        chunks: Vec<u32>,
    ) -> bool {
        let first = LineFirst {
            uuid: self.journal.uuid,
            line,
            generation: self.journal.generation,
            sequence,
            chunks,
        };
        let mut bytes = first.encode();
        let unit = self.shape.unit as usize * SECTOR_BYTES;
        bytes.resize(bytes.len().next_multiple_of(unit), 0);
        for part in bytes.chunks(unit) {
            let Some(spot) = self.spot_in(cx, line, 0).await else {
                return false;
            };
            let tag = (LBA_LINE_FIRST, sequence);
            let at = (spot.chunk, spot.sector);
            let ticket = self.submit_meta(cx, at, part, tag, Cause::Metadata);
            let done = self.flash.device.wait(cx, ticket).await;
            self.note_entries(&spot, &[tag; 64][..self.shape.unit as usize], Cause::Metadata);
            let mut none = Released::default();
            if done.failed != 0 {
                self.note_meta_failure(cx, spot.chunk, &done, Cause::Metadata);
                let mut p = self.pools.of_line(line).lock();
                p.unit_failed(&spot, None, done.failed, &mut none);
            } else {
                self.pools.of_line(line).lock().completed(&spot, None, &mut none);
            }
            self.pools.of_line(line).lock().published(line);
            self.pu[spot.pu as usize].release(cx, 1);
            if done.failed != 0 {
                return false;
            }
        }
        true
    }

    /// Records what a unit holds for the line's closing metadata.
    pub(in crate::log) fn note_entries(
        &self,
        spot: &crate::log::pool::Spot,
        entries: &[(u64, u64)],
        of: Cause,
    ) {
        let mut p = self.pools.of_line(spot.line).lock();
        p.note_entries(spot, entries, &[of; 64][..entries.len()]);
    }

    /// The number of free chunks changed: new shares, and whoever waits for a line looks again.
    pub(in crate::log) fn pool_moved(&self, cx: &Cx) {
        // One at a time: shares are not replaced by older ones.
        let turn = self.sharing.lock();
        let (mut free, mut reserve) = (0, 0);
        let mut shares: SmallVec<[Shares; 1]> = self
            .pools
            .iter()
            .map(|pool| {
                let mine = pool.lock().free_chunks();
                let mut limiter = pool.limiter.lock();
                (free, reserve) = (free + mine, reserve + limiter.levels().reserve);
                let is_known =
                    self.pools.len() > 1 && pool.shared.lock().is_some_and(|s| s.0 == mine);
                // A controller steps when its own pool moves.
                match is_known.then(|| *pool.shared.lock()).flatten() {
                    Some((_, shares)) => shares,
                    None => {
                        let shares = limiter.update(mine);
                        *pool.shared.lock() = Some((mine, shares));
                        shares
                    }
                }
            })
            .collect();
        if free <= reserve && !mutant!("log.users-in-reserve") {
            // What is admitted goes to any pool: the reserves cover it together, however they are spread.
            let none = Shares { users: 0, gc: self.layout.ring_sectors, collect: true };
            shares.fill(none);
        }
        // Every limiter divides the whole buffer; the budget is what they come to on average.
        let mean =
            |of: fn(&Shares) -> u64| shares.iter().map(of).sum::<u64>() / shares.len() as u64;
        self.rings.set_shares(cx, mean(|s| s.users), mean(|s| s.gc));
        for (pool, shares) in self.pools.iter().zip(shares) {
            pool.collector.set_shares(cx, shares);
        }
        drop(turn);
        self.press(cx);
        self.pool_changed.wake(cx);
        self.scrub.work.wake(cx);
    }

    /// Tells the drainer whether an erase barrier may be padded for: when no line can be opened
    /// without what is behind it, when GC waits for those chunks and brings no company, or when users
    /// are held back: then nobody else need come to fill the last unit of a ring. One caller after the other: whoever looked before something changed must not
    /// have the last word.
    pub(in crate::log) fn press(&self, cx: &Cx) {
        let _alone = self.gc.pressing.lock();
        let short = |p: &mut PoolState| p.spare.is_none() && p.free_chunks() < p.width() as u64;
        let pressed = |pool: &Pool| short(&mut pool.lock()) || pool.collector.is_pressed();
        let held_back = self.shares().users == 0;
        self.rings.set_starving(cx, held_back || self.pools.iter().any(pressed));
    }

    /// A drainer found no place in any pool: barriers may be padded for.
    pub(in crate::log) fn starve(&self, cx: &Cx) {
        let _alone = self.gc.pressing.lock();
        self.rings.set_starving(cx, true);
    }
}
