//! Finds the host's sectors of which a lost version was newer, when a mount accepts a loss.
//!
//! Owns: [`Older`]. Promises: a sector that is not in it has a version that no flush has
//! superseded. Never: reads or programs.
//!
//! **With records.** Each page of stamps (`stamps.rs`) is on two PUs. So if all losses are on one
//! PU, the newest page that a flush wrote is readable, and names the version that counted then. A
//! copy with that stamp or a higher one is not outdated. If the page says that the sector read as
//! zeros, a copy not younger than the page was discarded. Without a page, no flush has covered the
//! sector. All this holds only if the mount also found the notes of the last life.
//!
//! **Without records**, or with losses on more than one PU, the mount can't know what the lost
//! units held, so every sector may be older.

use flashlane_base::mutant;

use super::super::LIFE_SHIFT;
use super::super::pages::Pages;
use super::super::stamps::UNKNOWN;
use super::Mount;
use super::loss::{Losses, is_superseded};
use super::scan::{Claim, Found};
use crate::layer::LostCause;

/// The host's sectors whose found version is older than a lost one, or may be.
pub(super) struct Older {
    lost: Vec<bool>,
    why: LostCause,
}

impl Older {
    pub(super) fn has(&self, lba: u32) -> bool {
        self.lost.get(lba as usize).is_some_and(|lost| *lost)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = u32> {
        (0u32..).zip(&self.lost).filter(|(_, lost)| **lost).map(|(lba, _)| lba)
    }

    /// Why the version of this sector is lost; `None`: it is not.
    pub(super) fn why(&self, lba: u32) -> Option<LostCause> {
        self.has(lba).then_some(self.why)
    }
}

impl Mount<'_> {
    /// Finds out which of `host` sectors may be older than these losses. Without records, those are
    /// all whose stamp is below `youngest`. What a record says was discarded reads as zeros from
    /// now on.
    pub(super) fn older(
        &self,
        pages: &mut Pages,
        found: &Found,
        losses: &Losses,
        has_dump: bool,
        (host, youngest): (u32, u64),
    ) -> Older {
        let positions = losses.positions(&self.layout);
        let is_one = positions.len() <= 1 || mutant!("kit.records-of-two-pus");
        // The last life has written notes on two PUs, too. If they are missing, pages of stamps may
        // be missing as well.
        let of_life = |stamp: u64| stamp >> LIFE_SHIFT;
        let is_noted =
            pages.noted().is_some_and(|stamp| of_life(stamp) >= of_life(found.host_stamp));
        let is_whole = !has_dump && self.medium.host_failed().is_none();
        let recorded = pages.has_stamps() && is_noted && is_whole;
        if !recorded || !is_one || mutant!("kit.records-unread") {
            let may_be = |claim: &Claim| claim.stamp < youngest;
            let lost = found.newest[..host as usize].iter().map(may_be).collect();
            return Older { lost, why: LostCause::MayBeOlder };
        }
        let mut lost = vec![false; host as usize];
        for lba in 0..host {
            let claim = found.newest[lba as usize];
            let Some(true_at) = pages.stamps().true_at(lba) else {
                // No copy of the page could be read, or no flush has written it.
                lost[lba as usize] = pages.stamps().get(lba) == UNKNOWN;
                continue;
            };
            if claim.stamp > true_at {
                continue;
            }
            match pages.stamps().get(lba) {
                // Pages of trims note it: else a copy on the lost PU would come back with that PU.
                0 => pages.touch_trims(lba, lba + 1),
                stamp => {
                    lost[lba as usize] = stamp == UNKNOWN || is_superseded(pages, found, lba);
                }
            }
        }
        let dead = positions.into_iter().find(|p| self.is_dead(*p));
        let dead = dead.map(|position| LostCause::DeadPu(self.layout.pu(position)));
        Older { lost, why: dead.unwrap_or(LostCause::MayBeOlder) }
    }
}
