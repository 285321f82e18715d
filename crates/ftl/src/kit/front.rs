//! What the host asks for: write, discard, flush.
//!
//! Owns: checking a request, admitting sectors to the buffer, taking sectors away. Promises: a
//! write is acknowledged when all of it is in the buffer; on capacitors it is durable then, so flush
//! and FUA have nothing to wait for, without they wait for a barrier (`sync.rs`); writers that find the buffer full get room in the order they
//! came; a write that is refused has changed nothing, or whole sectors from its start. Never: waits
//! for the medium except through the buffer's room.
//!
//! A sector that is overwritten while it waits takes the new content in its old place: the old one
//! is never programmed (`absorbed`). One that is discarded while it waits leaves the buffer
//! (`discarded_in_buffer`), unless a barrier covers it. A sector already in a program command is past that: it is programmed
//! and garbage when it lands.

use flashlane_base::{Ns, mutant};
use flashlane_ocssd::device::Cause;
use flashlane_rt::Cx;

use super::buffer::{Kind, NIL, Stage, copy_sector};
use super::map::Entry;
use super::{Controller, DriveFtl, Phase, Room};
use crate::block::{BlockError, BlockResult, Each, Sectors, Started};

/// Why a stopped device takes nothing more.
const STOPPED: &str = "the device was stopped";

/// Sectors discarded under one hold of the controller.
const DISCARD_PIECE: u32 = 4096;

/// Whose sectors are that come in.
#[derive(Clone, Copy)]
enum Whose {
    /// It is asked for now; `journal`: the host says that they are a journal's.
    Asked {
        journal: bool,
    },
    Known(Kind),
}

impl DriveFtl {
    /// A write, answered at once where the buffer has room for all of it and its acknowledgement is all
    /// that is asked for.
    pub(super) fn write<'a>(
        &'a self,
        cx: &'a Cx,
        lba: u32,
        sectors: u32,
        content: Sectors<'a>,
        (fua, journal): (bool, bool),
    ) -> Started<'a> {
        if sectors > self.piece || fua || !self.room.try_acquire(sectors.into()) {
            return Started::later(self.write_in_pieces(cx, lba, sectors, content, (fua, journal)));
        }
        let content = content.from(0, self.unit());
        let whose = Whose::Asked { journal };
        Started::Done(self.admit_piece(cx, lba, sectors, content, Ns::ZERO, whose))
    }

    /// Writes sectors from `lba`, in pieces that the buffer can take.
    async fn write_in_pieces(
        &self,
        cx: &Cx,
        lba: u32,
        sectors: u32,
        content: Sectors<'_>,
        (fua, journal): (bool, bool),
    ) -> BlockResult {
        // Whose it is depends on what came before it, so it is told before anything waits.
        let whose = match mutant!("slc.told-piece-by-piece") {
            true => Whose::Asked { journal },
            false => Whose::Known(self.controller.lock().kind_of(lba, sectors, journal)),
        };
        let mut at = 0;
        while at < sectors {
            let n = self.piece.min(sectors - at);
            let mut waited = Ns::ZERO;
            if !self.room.try_acquire(n.into()) {
                let from = cx.now();
                self.wait_for_room(cx, lba + at, n).await;
                waited = cx.now() - from;
            }
            self.admit_piece(cx, lba + at, n, content.from(at, self.unit()), waited, whose)?;
            at += n;
        }
        if fua && !mutant!("kit.fua-ignored") { self.flush(cx).await } else { Ok(()) }
    }

    /// Takes `sectors` sectors into the buffer, whose room was waited for `waited` long.
    #[inline]
    fn admit_piece(
        &self,
        cx: &Cx,
        lba: u32,
        sectors: u32,
        content: Each<'_>,
        waited: Ns,
        whose: Whose,
    ) -> BlockResult {
        let mut c = self.controller.lock();
        if let Some(why) = c.refusal() {
            drop(c);
            self.room.release(cx, sectors.into());
            return Err(BlockError::ReadOnly(why));
        }
        c.note_request(cx);
        c.note_admitted(sectors);
        let kind = match whose {
            Whose::Asked { journal } => c.kind_of(lba, sectors, journal),
            Whose::Known(kind) => kind,
        };
        let mut left = Room::default();
        for (lba, content) in (lba..lba + sectors).zip(content) {
            c.admit(kind, lba, content, &mut left);
        }
        if waited != Ns::ZERO {
            c.stats.ftl.ring_full += waited;
            c.stats.ring_full_waits += 1;
        }
        self.go_on(cx, c, None, left);
        Ok(())
    }

    /// Bytes of a sector's content.
    #[inline]
    pub(super) fn unit(&self) -> usize {
        self.info.content_bytes
    }

    /// Waits until the buffer has room for `sectors` sectors from `lba`.
    pub(super) async fn wait_for_room(&self, cx: &Cx, lba: u32, sectors: u32) {
        {
            let mut c = self.controller.lock();
            c.map.prefetch(lba);
            c.hosts_wait.push(sectors);
            if !self.capacitors && !mutant!("kit.waits-without-verdict") {
                // That somebody waits may be what a verdict for want of room was waiting for.
                self.go_on(cx, c, None, Room::default());
            }
        }
        self.room.acquire(cx, sectors as u64).await;
        let waits = &mut self.controller.lock().hosts_wait;
        let at = waits.iter().position(|n| *n == sectors);
        waits.swap_remove(at.expect("it waited"));
    }

    /// Forgets `sectors` sectors from `lba`.
    pub(super) fn discard(&self, cx: &Cx, lba: u32, sectors: u32) -> BlockResult {
        let end = lba + sectors;
        let mut at = lba;
        while at < end {
            let until = end.min(at.saturating_add(DISCARD_PIECE));
            let mut c = self.controller.lock();
            let mut left = Room::default();
            let unmapped = (at..until).filter(|lba| c.forget(*lba, &mut left)).count() as u32;
            let changed = unmapped > 0;
            c.note_unmapped(unmapped);
            c.note_request(cx);
            c.note_discard(at, until - at);
            c.at_rest &= !changed;
            if changed && !mutant!("kit.trim-not-noted") {
                c.pages.touch_trims(at, until);
            }
            c.stats.ftl.host_discarded += (until - at) as u64;
            self.go_on(cx, c, None, left);
            at = until;
        }
        Ok(())
    }

    /// A flush. On capacitors everything acknowledged is durable already: counted, not waited for.
    pub(super) fn flush_all<'a>(&'a self, cx: &'a Cx) -> Started<'a> {
        match self.capacitors {
            true => {
                self.controller.lock().stats.ftl.flushes += 1;
                Started::Done(Ok(()))
            }
            false => Started::later(self.flush(cx)),
        }
    }

    /// Makes everything acknowledged durable.
    pub(super) async fn flush(&self, cx: &Cx) -> BlockResult {
        {
            let mut c = self.controller.lock();
            c.stats.ftl.flushes += 1;
            c.note_request(cx);
        }
        if self.capacitors {
            return Ok(());
        }
        let from = cx.now();
        if !mutant!("kit.flush-without-barrier") {
            self.sync(cx).await;
        }
        let survives = mutant!("kit.flush-not-passed-on") || self.device.flush(cx).await;
        let mut c = self.controller.lock();
        c.note_request(cx);
        if !survives {
            c.read_only.get_or_insert(super::HOST_TROUBLE);
            // No barrier ends any more: this tells other flushes that wait for one.
            if !mutant!("kit.host-trouble-untold") {
                self.go_on(cx, c, None, Room::default());
                c = self.controller.lock();
            }
        }
        c.stats.ftl.flush_wait += cx.now() - from;
        // A stop that ended meanwhile has ended the barrier, too.
        let left = c.phase == Phase::Stopped && !c.pages.is_saved();
        let why = c.read_only.or(left.then_some(STOPPED));
        why.map_or(Ok(()), |why| Err(BlockError::ReadOnly(why)))
    }
}

impl Controller {
    /// Why host data can't be taken any more.
    fn refusal(&self) -> Option<&'static str> {
        match self.phase {
            Phase::Mounting | Phase::Running => self.read_only,
            Phase::Draining | Phase::Stopped => Some(STOPPED),
        }
    }

    /// Takes a sector of the host, or of the map, into the buffer, which has room for it; what is not
    /// used of the room is added to `left`.
    #[inline]
    pub(super) fn admit(&mut self, kind: Kind, lba: u32, content: &[u8], left: &mut Room) {
        let of_map = self.cache.as_ref().is_some_and(|cache| lba >= cache.first);
        let cause = if of_map { Cause::Metadata } else { Cause::User };
        self.stats.ftl.host_written += u64::from(!of_map);
        self.stamp += 1;
        let slot = match self.map.get(lba) {
            Entry::Slot(slot) if self.may_overwrite(slot, kind) => {
                match of_map {
                    true => self.buffer.slot_mut(slot).cause = cause,
                    false => self.overwrite(slot),
                }
                left.user += 1;
                slot
            }
            entry => {
                self.retire_copy(entry, left);
                let slot = self.buffer.alloc(kind);
                let s = self.buffer.slot_mut(slot);
                (s.lba, s.at, s.cause, s.kind) = (lba, NIL, cause, kind);
                (s.live, s.discarded, s.holds_room) = (true, false, true);
                self.map.set(lba, Entry::Slot(slot));
                self.buffer.push_back(slot);
                self.stats.ftl.buffered_now += u64::from(!of_map);
                slot
            }
        };
        let s = self.buffer.slot_mut(slot);
        s.stamp = self.stamp;
        s.sealed = false;
        if !of_map {
            self.pages.set_stamp(lba, self.stamp);
        }
        copy_sector(self.buffer.content_mut(slot), content);
    }

    /// Its content has not been sent, and its place in the queue is the host's.
    #[inline]
    fn may_overwrite(&self, slot: u32, kind: Kind) -> bool {
        let waits = self.buffer.slot(slot).stage == Stage::Waiting;
        let flies = || self.buffer.slot(slot).stage == Stage::Flying;
        let here = waits || mutant!("kit.overwrite-in-flight") && flies();
        self.buffer.kind(slot) == kind && here
    }

    /// The waiting content of a slot is replaced.
    fn overwrite(&mut self, slot: u32) {
        let s = self.buffer.slot_mut(slot);
        if s.cause == Cause::User {
            self.stats.ftl.absorbed += 1;
        } else {
            // The old content was programmed once and counted then; the new one is to be counted.
            s.cause = Cause::User;
            self.stats.ftl.buffered_now += 1;
        }
    }

    /// The sector's content is not needed any more. False if it had none.
    fn forget(&mut self, lba: u32, left: &mut Room) -> bool {
        let entry = self.map.get(lba);
        if entry == Entry::Unmapped {
            return false;
        }
        if let Entry::Slot(slot) = entry {
            let s = self.buffer.slot_mut(slot);
            s.discarded = true;
            if s.stage == Stage::Waiting && s.cause == Cause::User {
                self.stats.ftl.discarded_in_buffer += 1;
                self.stats.ftl.buffered_now -= 1;
            }
        }
        self.retire_copy(entry, left);
        self.map.set(lba, Entry::Unmapped);
        self.pages.set_stamp(lba, 0);
        if let Some(cache) = &mut self.cache {
            cache.changed(lba, Cause::User);
        }
        true
    }

    /// The copy that `entry` names is garbage: it leaves the queue, is not kept when its program
    /// ends, or is no valid sector of its line any more.
    #[inline]
    fn retire_copy(&mut self, entry: Entry, left: &mut Room) {
        match entry {
            Entry::Unmapped | Entry::Poisoned => {}
            Entry::Media(at) => self.forget_copy(at),
            Entry::Slot(slot) => match self.buffer.slot(slot).stage {
                Stage::Waiting if self.buffer.is_kept(slot) => {
                    let s = self.buffer.slot_mut(slot);
                    s.live = false;
                    if s.cause == Cause::User {
                        s.cause = Cause::Dead;
                    }
                }
                Stage::Waiting => {
                    self.buffer.unlink(slot);
                    let kind = self.buffer.kind(slot);
                    if std::mem::take(&mut self.buffer.slot_mut(slot).holds_room) {
                        left.add(kind);
                    }
                    self.buffer.free(slot);
                }
                Stage::Flying => {
                    self.buffer.slot_mut(slot).live = false;
                    if mutant!("kit.slot-freed-in-flight") {
                        self.buffer.free(slot);
                    }
                }
                Stage::Window => {
                    let s = self.buffer.slot_mut(slot);
                    s.live = false;
                    let at = s.at;
                    self.forget_copy(at);
                }
            },
        }
    }
}
