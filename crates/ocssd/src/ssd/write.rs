//! Writes: rules, outcome, content, row operations.
//!
//! Owns: what a write of a run does. Promises: addresses are taken in list order, write unit by
//! write unit; a unit is programmed whole or not at all, and its addresses share a status; a
//! refused unit changes nothing. So of two units of one chunk in the wrong order the first is out
//! of order and the second may still be written (facts D04), and a write that crosses the end of a
//! chunk is split there (D08). The sectors of a unit stand side by side in the list.
//! Never: decides when a program is over.

use super::rows::Job;
use super::{Chan, Command, Ssd, bytes, describe};
use crate::device::{CAUSES_MAX, Cause, CellMode, ChunkState, Gather, Status, Ticket};
use crate::rules::Rule;
use crate::ssd::decode::Run;
use flashlane_base::{Ns, OOB_BYTES, mutant};
use flashlane_media::fault::{FaultKind, Hit};
use flashlane_media::store::HostFailed;
use flashlane_media::timing::Kind;
use std::sync::atomic::Ordering;

/// What a write carries.
pub(super) struct Payload<'a> {
    pub(super) content: Gather<'a>,
    pub(super) oob: &'a [[u8; OOB_BYTES]],
    pub(super) cause: &'a [Cause],
    pub(super) whole: bool,
}

impl Ssd {
    #[inline]
    pub(super) fn write(&self, cmd: &mut Command<'_>, payload: Payload<'_>, fua: bool) -> Ticket {
        let n = cmd.addrs.len();
        let Payload { content, oob, cause, whole } = &payload;
        let unit = match whole {
            true => flashlane_base::SECTOR_BYTES,
            false => self.traits.content_bytes,
        };
        let fits = content.unit() == unit && oob.len() >= n && cause.len() >= n && content.holds(n);
        if !fits {
            return self.malformed(cmd);
        }
        let received = self.write_pipe.pass(cmd.now, bytes(n));
        cmd.link = received - cmd.now;
        let ready = received + self.command;
        // On capacitors what is in the buffer is durable.
        let durable = fua && !self.spec.limits.capacitors && !mutant!("device.fua-ignored");
        let buffer = self.buffer.as_deref().filter(|_| !durable);
        let mut buffered = buffer.map(|buffer| {
            let mut state = buffer.state.lock();
            self.settle_buffer(buffer, &mut state, cmd.now);
            cmd.room = Some(buffer.room(&state));
            state
        });
        let mut held = None;
        let mut i = 0;
        while i < n {
            let Some(run) = self.decoder.run(cmd.addrs, i) else {
                self.refuse_hole(cmd, i, Status::WriteFault);
                i += 1;
                continue;
            };
            let mut chan = self.enter(cmd, held.take(), run.channel);
            chan.count.received_sectors += run.n as u64;
            self.write_run(&mut chan, cmd, &run, ready, &payload);
            i += run.n as usize;
            held = Some(chan);
        }
        if let (Some(buffer), Some(state)) = (buffer, &mut buffered) {
            self.enter_buffer(buffer, state, cmd);
        }
        self.seal_held(held, cmd)
    }

    #[inline]
    fn write_run(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        run: &Run,
        ready: Ns,
        payload: &Payload<'_>,
    ) {
        let job = Job { kind: Kind::Program, ready, retries: 0 };
        let open = chan.cells.open_on(run.die);
        if !self.fragile && self.may_write(chan, run).is_ok() {
            if self.program(chan, cmd, run, payload).is_err() {
                chan.cells.chunk_mut(run.index).refused = true;
                return self.host_failed(cmd, run.addresses());
            }
            self.note_open(chan, run.die, open);
            return self.queue_program(chan, cmd, run, job, false);
        }
        let unit = self.write_unit_in(chan.cells.chunk(run.index).mode).divisor();
        let (mut done, mut row) = (0, None);
        while done < run.n {
            let piece = run.piece(done, unit);
            done += piece.n;
            let open = chan.cells.open_on(run.die);
            let taken = self.write_unit(chan, cmd, &piece, (job, &mut row), payload);
            self.note_open(chan, run.die, open);
            if taken.is_err() {
                chan.cells.chunk_mut(piece.index).refused = true;
                self.queue_units(chan, cmd, &mut row, job);
                // What follows would be out of order, which is not the caller's doing.
                return self.host_failed(cmd, piece.first..run.addresses().end);
            }
            if chan.dead[run.die as usize] && done < run.n {
                // Nor is it here: the die took nothing of this command.
                let rest = run.piece(done, run.n - done);
                rest.addresses().for_each(|i| cmd.fail(i, Status::WriteFault));
                break;
            }
        }
        self.queue_units(chan, cmd, &mut row, job);
    }

    /// Has a unit that was programmed wait for those behind it: units of one row are one operation.
    fn join_row(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        (job, row): (Job, &mut Option<Run>),
        unit: &Run,
    ) {
        let row_of = |sector| self.row.div_rem(sector).0;
        if let Some(units) = row
            && units.sector + units.n == unit.sector
            && row_of(units.sector) == row_of(unit.sector)
            && !mutant!("device.units-programmed-apart")
        {
            units.n += unit.n;
            return;
        }
        self.queue_units(chan, cmd, row, job);
        *row = Some(*unit);
    }

    /// Queues the program of the units that waited for each other.
    fn queue_units(&self, chan: &mut Chan, cmd: &mut Command<'_>, row: &mut Option<Run>, job: Job) {
        if let Some(units) = row.take() {
            self.queue_program(chan, cmd, &units, job, false);
        }
    }

    /// The host did not take these addresses' content: nothing happened to them.
    #[cold]
    pub(super) fn host_failed(&self, cmd: &mut Command<'_>, range: std::ops::Range<usize>) {
        range.for_each(|i| cmd.fail(i, Status::HostFault));
    }

    /// Keeps the device-wide count of open chunks, when there is a limit.
    #[inline]
    pub(super) fn note_open(&self, chan: &Chan, die: u32, before: u32) {
        if self.spec.limits.max_open != 0 {
            let change = (chan.cells.open_on(die) as u64).wrapping_sub(before as u64);
            self.open.fetch_add(change, Ordering::Relaxed);
        }
    }

    /// One write unit, with everything that can happen to it; an error when the host did not take
    /// it and nothing happened. `row` has units before it whose program is not queued yet.
    fn write_unit(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        piece: &Run,
        (job, row): (Job, &mut Option<Run>),
        payload: &Payload<'_>,
    ) -> Result<(), HostFailed> {
        if let Err(rule) = self.may_write(chan, piece) {
            let chunk = chan.cells.chunk(piece.index);
            let (failed, refused) = (chunk.failed, chunk.refused && rule == Rule::WriteOrder);
            // Nor of the program before this one, which the host or a dead die did not take.
            let refused = refused && !mutant!("device.refused-in-order");
            let dead = chan.dead[piece.die as usize] && rule == Rule::WriteOrder;
            let dead = dead && !mutant!("device.dead-die-in-order");
            let seen = describe(&chan.cells, piece.index);
            for i in piece.addresses() {
                // The caller may not have heard yet of the failure that closed the chunk.
                match failed && matches!(rule, Rule::EraseFirst | Rule::Offline) || dead || refused
                {
                    true if dead => cmd.fail(i, Status::WriteFault),
                    true if refused => cmd.fail(i, Status::HostFault),
                    true => cmd.fail(i, rule.status()),
                    false => self.refuse(cmd, i, rule, rule.status(), seen),
                }
            }
            return Ok(());
        }
        let outcome = self.program_outcome(chan, cmd, piece);
        if outcome == Status::Ok {
            self.program(chan, cmd, piece, payload)?;
            self.join_row(chan, cmd, (job, row), piece);
            return Ok(());
        }
        self.queue_units(chan, cmd, row, job);
        match outcome {
            status if Ssd::fails_behind(cmd, piece, status) => {
                self.fail_behind(chan, cmd, piece, payload, status)?;
                self.queue_program(chan, cmd, piece, job, true);
            }
            status => {
                let range = piece.addresses();
                if status == Status::WriteNextUnit {
                    count_programmed(chan, piece.index, &payload.cause[range.clone()]);
                }
                self.program_failed(chan, cmd.now, piece, status);
                range.for_each(|i| cmd.fail(i, status));
                self.queue_rows(chan, cmd, piece, job);
            }
        }
        Ok(())
    }

    /// How a program that breaks no rule ends.
    pub(super) fn program_outcome(
        &self,
        chan: &mut Chan,
        cmd: &Command<'_>,
        piece: &Run,
    ) -> Status {
        if chan.dead[piece.die as usize] {
            return Status::WriteFault;
        }
        match self.strike(Hit::Program, piece, cmd.now) {
            Some(FaultKind::WriteNextUnit) => return Status::WriteNextUnit,
            Some(FaultKind::DieFail) => {
                self.die_dies(chan, piece.die);
                return Status::WriteFault;
            }
            Some(_) => return Status::ChunkEarlyClose,
            None => {}
        }
        let Some(model) = &self.errors else {
            return Status::Ok;
        };
        let (erases, rated) = chan.cells.wear(piece.index);
        let rng = &mut chan.wear_rng[piece.die as usize];
        match model.program_fails(erases, rated, rng) {
            true => Status::ChunkEarlyClose,
            false => Status::Ok,
        }
    }

    /// State and counters of a program that failed.
    pub(super) fn program_failed(&self, chan: &mut Chan, now: Ns, piece: &Run, status: Status) {
        chan.count.program_failures += piece.n as u64;
        let at = self.device_time(now);
        match status {
            Status::WriteNextUnit => chan.cells.program_lost(piece.index, piece.n, at),
            Status::ChunkEarlyClose => self.close_early(chan, now, piece),
            _ => {} // a dead die: nothing happens
        }
    }

    /// The chunk takes nothing any more; its next erase may fail.
    pub(super) fn close_early(&self, chan: &mut Chan, now: Ns, piece: &Run) {
        let ppm = self.spec.limits.early_close_offline_ppm as u64;
        let doomed = ppm != 0 && chan.wear_rng[piece.die as usize].below(1_000_000) < ppm;
        chan.cells.close_early(piece.index, self.device_time(now));
        chan.cells.chunk_mut(piece.index).doomed = doomed;
    }

    /// Content, state and counters of a program that succeeds, if the host takes the content.
    #[inline]
    pub(super) fn program(
        &self,
        chan: &mut Chan,
        cmd: &Command<'_>,
        run: &Run,
        payload: &Payload<'_>,
    ) -> Result<(), HostFailed> {
        let range = run.addresses();
        chan.cells.program(
            run.index,
            &payload.content,
            run.first,
            &payload.oob[range.clone()],
            payload.whole,
            self.device_time(cmd.now),
        )?;
        count_programmed(chan, run.index, &payload.cause[range]);
        Ok(())
    }

    /// The rules of a write, in the order of what they mean to the caller.
    #[inline]
    pub(super) fn may_write(&self, chan: &Chan, run: &Run) -> Result<(), Rule> {
        let chunk = chan.cells.chunk(run.index);
        match chunk.state {
            ChunkState::Open => {}
            ChunkState::Free => self.may_open(chan, run.die)?,
            ChunkState::Closed if mutant!("device.write-to-closed") => {}
            ChunkState::Closed => return Err(Rule::EraseFirst),
            ChunkState::Offline if mutant!("device.write-to-offline") => {}
            ChunkState::Offline => return Err(Rule::Offline),
        }
        let (unit, length) = match chunk.mode {
            CellMode::Native => (self.ws_min, self.geo.sectors_per_chunk()),
            CellMode::Slc => (self.slc_ws_min, chan.cells.length(run.index)),
        };
        let whole = unit.div_rem(run.n).1 == 0 && unit.div_rem(run.sector).1 == 0;
        let spared = mutant!("device.half-units")
            || chunk.mode == CellMode::Slc && mutant!("device.half-slc-units");
        if !whole && !spared {
            return Err(Rule::WriteUnit);
        }
        if run.sector + run.n > length {
            return Err(Rule::WriteEnd);
        }
        if run.sector != chunk.wp && !mutant!("device.write-pointer-unchecked") {
            return Err(Rule::WriteOrder);
        }
        Ok(())
    }

    /// Whether one more chunk may be opened on this die.
    #[inline]
    fn may_open(&self, chan: &Chan, die: u32) -> Result<(), Rule> {
        let (device, per_pu) = self.traits.max_open;
        let full = (per_pu != 0 && chan.cells.open_on(die) >= per_pu)
            || (device != 0 && self.open.load(Ordering::Relaxed) >= device as u64);
        let full = full && !mutant!("device.open-limit-unchecked");
        if full { Err(Rule::OpenLimit) } else { Ok(()) }
    }
}

/// Counts programmed sectors of a chunk.
#[inline]
pub(super) fn count_programmed(chan: &mut Chan, index: u32, causes: &[Cause]) {
    count_causes(&mut chan.count.programmed, causes);
    if chan.cells.chunk(index).mode == CellMode::Slc {
        chan.slc.programmed_sectors += causes.len() as u64;
    }
}

/// Counts programmed sectors by cause. Most units have one cause for all.
#[inline]
fn count_causes(programmed: &mut [u64; CAUSES_MAX], causes: &[Cause]) {
    let Some(first) = causes.first() else {
        return;
    };
    // Without an exit in the loop it becomes wide compares.
    let strays = causes.iter().fold(0, |s, c| s | (*c as u8 ^ *first as u8));
    if strays == 0 {
        programmed[*first as usize] += causes.len() as u64;
        return;
    }
    for cause in causes {
        programmed[*cause as usize] += 1;
    }
}
