//! The node address table: where each node lies, and whose it is.
//!
//! Owns: the table in memory, numbers of nodes. Promises: a number that was given back is not given
//! out again before a checkpoint has seen that it is free. Never: reads the medium; what it lacks it
//! names.

use crate::error::FsError;
use crate::format::{Layout, NAT_ENTRIES, NatEntry, Nid};
use crate::state::{Need, Step, Stop};
use flashlane_base::mutant;
use std::collections::BTreeSet;

pub(crate) struct Nat {
    nids: u32,
    sectors: Vec<Option<Box<[NatEntry]>>>,
    /// Entries that the sectors on the medium lack.
    pub(crate) changed: BTreeSet<Nid>,
    /// Numbers that were given back since the last checkpoint.
    pub(crate) freed: BTreeSet<Nid>,
    /// Where to look first for a free one.
    pub(crate) next: Nid,
    /// Numbers in use.
    pub(crate) used: u32,
    /// Entries of a checkpoint, for sectors that have not come yet.
    journal: Vec<(Nid, NatEntry)>,
}

impl Nat {
    /// Nothing is in memory yet but what the checkpoint has.
    pub(crate) fn new(layout: &Layout, journal: Vec<(Nid, NatEntry)>) -> Nat {
        Nat {
            nids: layout.nids,
            sectors: vec![None; layout.nat_sectors as usize],
            changed: journal.iter().map(|(nid, _)| *nid).collect(),
            freed: BTreeSet::new(),
            next: 1,
            used: 0,
            journal,
        }
    }

    /// A sector has come from the medium.
    pub(crate) fn bring(&mut self, sector: u32, mut entries: Vec<NatEntry>) {
        let place = &mut self.sectors[sector as usize];
        if place.is_some() {
            return;
        }
        let first = sector * NAT_ENTRIES;
        for (nid, entry) in &self.journal {
            if let Some(i) = nid.checked_sub(first).filter(|i| *i < NAT_ENTRIES) {
                entries[i as usize] = *entry;
            }
        }
        *place = Some(entries.into());
    }

    pub(crate) fn get(&self, nid: Nid) -> Step<NatEntry> {
        if nid >= self.nids {
            return Err(Stop::Fail(FsError::Damaged(format!("there can't be a node {nid}"))));
        }
        let (sector, i) = (nid / NAT_ENTRIES, nid % NAT_ENTRIES);
        match &self.sectors[sector as usize] {
            Some(entries) => Ok(entries[i as usize]),
            None => Err(Stop::Need(Need::Nat(sector))),
        }
    }

    /// Its sector is in memory: it was looked at ([`Nat::get`]).
    pub(crate) fn set(&mut self, nid: Nid, entry: NatEntry) {
        let (sector, i) = (nid / NAT_ENTRIES, nid % NAT_ENTRIES);
        let entries = self.sectors[sector as usize].as_mut();
        entries.expect("it was looked at")[i as usize] = entry;
        self.changed.insert(nid);
    }

    /// Numbers that no node has, so many.
    pub(crate) fn pick(&self, count: usize) -> Step<Vec<Nid>> {
        let mut found = Vec::with_capacity(count);
        let order = (self.next..self.nids).chain(1..self.next);
        for nid in order {
            if found.len() == count {
                break;
            }
            let freed = self.freed.contains(&nid) && !mutant!("parafs.numbers-reused");
            if self.get(nid)?.ino == 0 && !freed {
                found.push(nid);
            }
        }
        match found.len() == count {
            true => Ok(found),
            // Those that were given back since the checkpoint come with the next one.
            false if !self.freed.is_empty() => Err(Stop::Need(Need::Numbers)),
            false => Err(Stop::Fail(FsError::NoSpace)),
        }
    }

    /// A picked number has an owner.
    pub(crate) fn take(&mut self, nid: Nid, ino: Nid) {
        self.set(nid, NatEntry { ino, ..NatEntry::default() });
        self.next = if nid + 1 < self.nids { nid + 1 } else { 1 };
        self.used += 1;
    }

    /// A number has none any more.
    pub(crate) fn give_back(&mut self, nid: Nid) {
        self.set(nid, NatEntry::default());
        self.freed.insert(nid);
        self.used = self.used.saturating_sub(1);
    }

    /// A sector as it is now.
    pub(crate) fn sector(&self, sector: u32) -> Step<Vec<NatEntry>> {
        match &self.sectors[sector as usize] {
            Some(entries) => Ok(entries.to_vec()),
            None => Err(Stop::Need(Need::Nat(sector))),
        }
    }

    pub(crate) fn nids(&self) -> u32 {
        self.nids
    }
}
