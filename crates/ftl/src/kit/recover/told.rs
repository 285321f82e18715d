//! What an accepted loss costs, by pages of records ([`super::super::records`]).
//!
//! Owns: what these pages list, and the verdict on each logical sector. Promises: a sector whose
//! newest durable copy was on the lost PU is lost, and never taken for what an older copy says; the
//! others are not lost as long as a page tells of them, or nothing tells that they were lost.
//! Never: programs.
//!
//! Of all places that are listed for a sector the one with the highest stamp counts. If that place
//! is lost, and nothing was found whose stamp is as high, the sector is lost. A lost page of trims
//! takes along what nothing that is newer tells of its range.
//!
//! Pages of records speak of other PUs than the one they are on. So this holds for losses on one PU,
//! and where the notes say that records are complete. Else everything may be older ([`Older`]).

use flashlane_base::{VECTOR_MAX, mutant};
use flashlane_rt::sync::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::LIFE_SHIFT;
use super::super::buffer::NIL;
use super::super::pages::{Pages, TRIM_SPAN};
use super::super::place::Layout;
use super::super::records::each_of;
use super::Mount;
use super::loss::Losses;
use super::scan::Found;
use super::sectors::{read_page, read_pages};
use crate::patience::read_again;

/// Which sectors are lost, whatever was found of them.
pub(super) struct Older {
    /// What was found below this stamp may be older.
    pub(super) stamp: u64,
    /// Logical sectors of the host.
    pub(super) host: u32,
    /// A bit per logical sector that is; none where each may be.
    pub(super) only: Option<Vec<u64>>,
}

impl Older {
    /// A sector, whose newest copy that was found has this stamp, is lost.
    pub(super) fn has(&self, lba: u32, stamp: u64) -> bool {
        let told = |bits: &Vec<u64>| {
            bits.get(lba as usize / 64).is_some_and(|word| word >> (lba % 64) & 1 == 1)
        };
        match &self.only {
            Some(bits) => told(bits),
            None => lba < self.host && stamp < self.stamp,
        }
    }
}

/// What pages of records on the medium say.
pub(super) struct Told {
    /// Per physical sector the logical one, or a page, + 1; 0: none.
    pub(super) listed: Vec<u32>,
}

impl Mount<'_> {
    /// Reads the newest pages of records, PUs side by side. One that can't be read counts as any
    /// sector that can't. `None` where they are not kept, or not complete.
    pub(super) async fn read_records(&self, pages: &mut Pages, found: &mut Found) -> Option<Told> {
        let life = |stamp: u64| stamp >> LIFE_SHIFT;
        let newest = pages.noted().is_some_and(|stamp| life(stamp) >= life(found.host_stamp));
        if !pages.has_records() || !pages.was_complete() || !newest {
            return None;
        }
        let mut per_position = vec![Vec::new(); self.layout.positions as usize];
        for page in pages.all_records() {
            let at = found.newest[pages.lba(page) as usize].at;
            if at != NIL {
                per_position[self.layout.in_chunk(at).1 as usize].push((page, at));
            }
        }
        let listed = Arc::new(Mutex::new(vec![0u32; self.layout.sectors as usize]));
        let mut joins = Vec::new();
        for places in per_position.into_iter().filter(|places| !places.is_empty()) {
            let (cx, medium, listed) = (self.cx.clone(), self.medium.clone(), listed.clone());
            let known = pages.bare();
            joins.push(self.cx.spawn_join(async move {
                let (mut good, mut left) = (Vec::new(), Vec::new());
                for some in places.chunks(VECTOR_MAX) {
                    let ats: Vec<u32> = some.iter().map(|(_, at)| *at).collect();
                    let read = read_pages(&cx, &medium, &ats).await;
                    for ((page, at), bytes) in some.iter().zip(read) {
                        match bytes.filter(|bytes| known.check(*page, bytes).is_some()) {
                            Some(bytes) => {
                                list(&medium.layout, &known, *page, &bytes, &mut listed.lock());
                                good.push((*page, *at));
                            }
                            None => left.push(*page),
                        }
                    }
                }
                (good, left)
            }));
        }
        let (mut good, mut left) = (Vec::new(), Vec::new());
        for join in joins {
            let (some, failed) = join.await;
            good.extend(some);
            left.extend(failed);
        }
        let left = read_again(self.cx, left, async |left: Vec<u32>| {
            let mut still = Vec::new();
            for page in left {
                let lba = pages.lba(page);
                let claim = found.newest[lba as usize];
                let equal = found.equal.iter().filter(|e| (e.0, e.1) == (lba, claim.stamp));
                let mut read = false;
                for at in std::iter::once(claim.at).chain(equal.map(|e| e.2)) {
                    let bytes = read_page(self.cx, &self.medium, at).await;
                    if let Some(bytes) = bytes.filter(|b| pages.check(page, b).is_some()) {
                        list(&self.layout, pages, page, &bytes, &mut listed.lock());
                        good.push((page, at));
                        read = true;
                        break;
                    }
                }
                if !read {
                    still.push(page);
                }
            }
            still
        });
        let left = left.await;
        for (page, at) in good {
            pages.found(page, at);
            found.newest[pages.lba(page) as usize].at = at;
        }
        for page in left {
            found.unreadable.insert(found.newest[pages.lba(page) as usize].at);
        }
        let listed = Arc::into_inner(listed).expect("all readers have ended");
        Some(Told { listed: listed.into_inner() })
    }

    /// A bit per logical sector that is lost; `None` if more than one PU is concerned, so pages that
    /// would tell may be lost, too.
    pub(super) fn lost_as_told(
        &self,
        told: &Told,
        pages: &Pages,
        found: &Found,
        losses: &Losses,
    ) -> Option<Vec<u64>> {
        let sectors: BTreeSet<u32> = losses.sectors.iter().copied().collect();
        let chunks: BTreeSet<(u32, u32)> = losses.chunks.iter().copied().collect();
        let of_sectors = sectors.iter().map(|at| self.layout.in_chunk(*at).1);
        let positions: BTreeSet<u32> = of_sectors.chain(chunks.iter().map(|c| c.1)).collect();
        let one = positions.len() == 1 || mutant!("kit.records-of-two-dies");
        if !one || self.medium.host_failed().is_some() {
            return None;
        }
        let lost_at = |at: u32| {
            let (line, position, _) = self.layout.in_chunk(at);
            sectors.contains(&at) || chunks.contains(&(line, position))
        };
        let capacity = self.capacity as u32;
        // Per logical sector and page of trims: the highest stamp it is told at, and whether that place
        // can be read.
        let known = (self.capacity + u64::from(pages.count_before_records())) as usize;
        let mut newest = vec![(0u64, true); known];
        for page in pages.all_records().filter(|page| pages.at(*page).is_some()) {
            let stamp = found.newest[pages.lba(page) as usize].stamp;
            each_of(&self.layout, pages.chunk_of_record(page), |_, at| {
                let lba = told.listed[at as usize].checked_sub(1);
                if let Some(newest) = lba.and_then(|lba| newest.get_mut(lba as usize)) {
                    *newest = (*newest).max((stamp, !lost_at(at)));
                }
            });
        }
        let is_lost = |lba: u32| {
            let ((stamp, readable), claim) = (newest[lba as usize], found.newest[lba as usize]);
            !readable && claim.stamp < stamp && !mutant!("kit.told-loss-ignored")
        };
        let mut lost = vec![0u64; self.capacity.div_ceil(64) as usize];
        let mut lose = |lba: u32| lost[lba as usize / 64] |= 1 << (lba % 64);
        (0..capacity).filter(|lba| is_lost(*lba)).for_each(&mut lose);
        for page in (0..pages.count_before_records()).filter(|page| pages.is_trims(*page)) {
            if !is_lost(pages.lba(page)) || mutant!("kit.lost-trims-ignored") {
                continue;
            }
            let (since, _) = newest[pages.lba(page) as usize];
            let range = page * TRIM_SPAN..capacity.min((page + 1) * TRIM_SPAN);
            let untold = |lba: &u32| {
                let known = found.newest[*lba as usize].stamp.max(newest[*lba as usize].0);
                known < since
            };
            range.filter(untold).for_each(&mut lose);
        }
        Some(lost)
    }
}

/// Takes in what a page of records lists.
fn list(layout: &Layout, pages: &Pages, page: u32, bytes: &[u8], listed: &mut [u32]) {
    let lbas: Vec<u32> = Pages::listed(bytes).collect();
    each_of(layout, pages.chunk_of_record(page), |i, at| {
        listed[at as usize] = lbas[i].wrapping_add(1);
    });
}
