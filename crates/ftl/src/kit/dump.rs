//! What the capacitors save when the power goes.
//!
//! Owns: [`Dump`]. Promises: with it and the medium a mount finds everything that was accepted:
//! each buffered sector with its stamp, each page of trims that the medium does not hold safely,
//! which programs and erases were cut, which lines were open. Never: waits, or touches the medium:
//! it is taken when nothing runs any more.
//!
//! A real controller programs this to a few reserved blocks with what the capacitors hold. Here it
//! is a value that the machine keeps from one life to the next, as it keeps the medium. It is
//! bounded by what the buffer holds and by `dirty_pages`, a few MiB.

use flashlane_base::mutant;
use std::collections::BTreeSet;

use super::buffer::{Kind, Stage};
use super::pages::PAGE_BYTES;
use super::place::LineState;
use super::{Controller, DriveFtl, Phase};
use crate::log::format::Oob;

/// A buffered sector.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Saved {
    pub(super) kind: Kind,
    pub(super) lba: u32,
    pub(super) stamp: u64,
    /// It counts against the room of its pool.
    pub(super) holds_room: bool,
    /// Physical sector of its programmed copy that could not be read back yet.
    pub(super) at: Option<u32>,
    pub(super) content: Vec<u8>,
}

/// What a device with capacitors saves when the power goes ([`DriveFtl::power_lost`]). Opaque: hand it
/// to [`DriveFtl::mount`], as often as that is cut again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Dump {
    pub(super) capacity: u64,
    /// The device was stopped and has left a snapshot: everything is on the medium.
    pub(super) stopped: bool,
    /// Of the last write.
    pub(super) stamp: u64,
    /// In the order of their stamps.
    pub(super) sectors: Vec<Saved>,
    /// (number, bytes).
    pub(super) pages: Vec<(u32, Vec<u8>)>,
    /// Grains whose program was under way, counted over the device.
    pub(super) cut: BTreeSet<u32>,
    pub(super) open: BTreeSet<u32>,
    /// Lines without anything live that wait for their erase or were being erased.
    pub(super) leaving: BTreeSet<u32>,
    /// Chunks in which nothing is missed, a bit each ([`super::place::Place::unmissed`]).
    pub(super) unmissed: Vec<u64>,
}

impl Dump {
    /// Sectors of the host that it holds.
    pub fn sectors(&self) -> usize {
        self.sectors.len()
    }

    /// Bytes that a controller would have to program.
    pub fn bytes(&self) -> usize {
        let sectors = self.sectors.len() * flashlane_base::SECTOR_BYTES;
        sectors + self.pages.len() * PAGE_BYTES
    }
}

impl DriveFtl {
    /// The power is gone: what the capacitors save. `None` for a device without. To be called when
    /// the run is over; whoever holds the device keeps the result for the next [`DriveFtl::mount`].
    pub fn power_lost(&self) -> Option<Dump> {
        self.capacitors.then(|| self.controller.lock().dump())
    }
}

impl Controller {
    fn dump(&mut self) -> Dump {
        let mut dump = Dump {
            capacity: self.map.capacity() as u64,
            open: self.place.lines_in(LineState::Open),
            leaving: match mutant!("kit.dump-without-leaving") {
                true => BTreeSet::new(),
                false => self.place.lines_in(LineState::Leaving),
            },
            cut: match mutant!("kit.dump-without-cut") {
                true => BTreeSet::new(),
                false => self.grains_under_way(),
            },
            unmissed: self.place.unmissed(),
            ..Dump::default()
        };
        dump.sectors = self.live_slots().map(|slot| self.save(slot)).collect();
        dump.sectors.sort_by_key(|saved| saved.stamp);
        self.stamp += 1;
        dump.stamp = self.stamp;
        // What is open was sealed then: it can be read.
        let at_rest = self.at_rest && self.phase == Phase::Stopped;
        for page in 0..self.pages.count() {
            // A copy in an open line may not be readable yet.
            let open = self.pages.at(page).is_some_and(|at| !self.place.is_closed_at(at));
            let open = open && !at_rest && !mutant!("kit.dump-without-open-pages");
            let flying = self.pages.is_flying(page) && !mutant!("kit.dump-without-flying-pages");
            let dirty = self.pages.is_dirty(page) && !mutant!("kit.dump-without-dirty-pages");
            if open || dirty || flying {
                let mut bytes = vec![0; PAGE_BYTES];
                self.build_page(page, &mut bytes);
                dump.pages.push((page, bytes));
            }
        }
        dump.stopped = at_rest && dump.sectors.is_empty() && dump.pages.is_empty();
        dump
    }

    /// Slots that the map names.
    fn live_slots(&self) -> impl Iterator<Item = u32> {
        let mut free = vec![false; self.buffer.slots()];
        self.buffer.free_slots().for_each(|slot| free[slot as usize] = true);
        free[self.buffer.padding() as usize] = true;
        let slots = (0u32..).zip(free).filter(|(_, free)| !free).map(|(slot, _)| slot);
        // A slot that a move is read into is not live yet, and may say so of a life before.
        slots.filter(|slot| self.map_names(*slot))
    }

    fn map_names(&self, slot: u32) -> bool {
        let s = self.buffer.slot(slot);
        let named = s.lba < self.map.capacity();
        let kept = self.buffer.is_host(slot) || !mutant!("kit.dump-without-moves");
        let kept = kept && (s.stage != Stage::Window || !mutant!("kit.dump-without-windows"));
        kept && s.live && named && self.map.get(s.lba) == super::map::Entry::Slot(slot)
    }

    fn save(&self, slot: u32) -> Saved {
        let (kind, s) = (self.buffer.kind(slot), self.buffer.slot(slot));
        let sealed = s.sealed && !mutant!("kit.dump-with-slot-stamps");
        let stamp = if sealed { Oob::decode_raw(&s.oob).1 } else { s.stamp };
        let holds_room = s.holds_room && s.stage != Stage::Window;
        let at = (s.stage == Stage::Window).then_some(s.at);
        let content = self.buffer.content(slot).to_vec();
        Saved { kind, lba: s.lba, stamp, holds_room, at, content }
    }
}
