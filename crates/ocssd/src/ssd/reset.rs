//! Resets: the state table of OCSSD 2.0, the wear, the erase.
//!
//! Owns: what a reset of a chunk does. Promises: the five results of the standard (closed, open,
//! free, offline, nonexistent); data and pointer are gone when it succeeds, nothing changes when it
//! is refused. Never: looks at the sector part of an address.

use super::admin::Event;
use super::{Chan, Command, Ssd, describe};
use crate::device::{CellMode, ChunkState, Status, Ticket};
use crate::rules::Rule;
use crate::ssd::decode::Run;
use flashlane_base::{Ns, mutant};
use flashlane_media::cells::Chunk;
use flashlane_media::fault::{FaultKind, Hit};
use flashlane_media::timing::{ArrayOp, Kind};

impl Ssd {
    pub(super) fn reset(&self, cmd: &mut Command<'_>, mode: CellMode) -> Ticket {
        if mode == CellMode::Slc && self.times.slc.is_none() {
            return self.malformed(cmd);
        }
        let mut buffered = self.buffer.as_deref().map(|buffer| {
            let mut state = buffer.state.lock();
            self.settle_buffer(buffer, &mut state, cmd.now);
            state
        });
        let mut held = None;
        let mut before: Option<(u32, u32, u32)> = None;
        for i in 0..cmd.addrs.len() {
            let Some(run) = self.decoder.run(&cmd.addrs[..=i], i) else {
                self.refuse_hole(cmd, i, Status::InvalidReset);
                continue;
            };
            // 1.2 names one block per plane: with a plane mode they are one erase.
            let chunk = (run.channel, run.die, run.chunk);
            if cmd.planes > 1 && before == Some(chunk) {
                if cmd.failed >> (i - 1) & 1 == 1 {
                    cmd.fail(i, cmd.status[i - 1]);
                }
                continue;
            }
            before = Some(chunk);
            let mut chan = self.enter(cmd, held.take(), run.channel);
            self.reset_chunk(&mut chan, cmd, &run, mode);
            let gone =
                matches!(chan.cells.chunk(run.index).state, ChunkState::Free | ChunkState::Offline);
            if let Some(state) = buffered.as_mut().filter(|_| gone)
                && !mutant!("device.reset-chunk-read-from-buffer")
            {
                state.was_reset(run.channel, run.index);
            }
            held = Some(chan);
        }
        self.seal_held(held, cmd)
    }

    fn reset_chunk(&self, chan: &mut Chan, cmd: &mut Command<'_>, run: &Run, mode: CellMode) {
        let index = run.index;
        let state = chan.cells.chunk(index).state;
        // Before the rules: a program that a dead die did not take left the chunk free or open, and
        // the caller may know no more than that it failed.
        let dead = chan.dead[run.die as usize] && state != ChunkState::Offline;
        if dead && !mutant!("device.dead-die-reset-judged") {
            return cmd.fail(run.first, Status::OfflineChunk);
        }
        let refused = match state {
            ChunkState::Free => (!self.spec.limits.reset_free).then_some(Rule::ResetFree),
            ChunkState::Open => (!self.spec.limits.reset_open).then_some(Rule::ResetOpen),
            ChunkState::Closed => None,
            ChunkState::Offline => Some(Rule::ResetOffline),
        };
        if let Some(rule) = refused.filter(|_| !mutant!("device.reset-unchecked")) {
            let seen = describe(&chan.cells, index);
            let status = rule.status();
            match chan.cells.chunk(index).failed {
                true => cmd.fail(run.first, status),
                false => self.refuse(cmd, run.first, rule, status, seen),
            }
            return;
        }
        if dead {
            return cmd.fail(run.first, Status::OfflineChunk);
        }
        let open = chan.cells.open_on(run.die);
        let at = self.device_time(cmd.now);
        let ignored = self.spec.limits.erase_ignored;
        let Chunk { mode: from, erases, slc_erases, .. } = *chan.cells.chunk(index);
        chan.count.erases += !ignored as u64;
        chan.slc.erases += (!ignored && from == CellMode::Slc) as u64;
        let token = match !ignored && self.erase_fails(chan, cmd, run) {
            false => {
                if let Some(buffer) = &self.buffer {
                    buffer.give_up(chan.cells.kept_of(index));
                }
                let token = chan.cells.erase(index, mode, at);
                if ignored {
                    let chunk = chan.cells.chunk_mut(index);
                    (chunk.erases, chunk.slc_erases) = (erases, slc_erases);
                }
                token
            }
            true => {
                self.give_up_kept(chan, index);
                chan.cells.retire(index, at);
                chan.count.erase_failures += 1;
                cmd.fail(run.first, Status::OfflineChunk);
                if !mutant!("device.grown-bad-not-marked") {
                    self.mark_grown_bad(run);
                }
                self.notify(run, Event::Retired, cmd.now);
                u32::MAX
            }
        };
        self.note_open(chan, run.die, open);
        let op = ArrayOp {
            kind: Kind::Erase,
            suspend: false,
            die: run.die,
            part: cmd.part,
            chunk: run.chunk,
            sector: 0,
            count: 0,
            row: 0,
            planes: 0,
            token,
            ready: cmd.now + self.command,
            transfer: Ns::ZERO,
            array: if ignored { Ns::ZERO } else { self.times.erase(mode) },
            retry: Ns::ZERO,
        };
        self.queue_op(chan, op, cmd.now);
        chan.sweep();
    }

    /// Whether an erase that breaks no rule fails.
    fn erase_fails(&self, chan: &mut Chan, cmd: &Command<'_>, run: &Run) -> bool {
        if chan.cells.chunk(run.index).doomed && !mutant!("device.doomed-chunk-erased") {
            return true;
        }
        if !self.fragile {
            return false;
        }
        match self.strike(Hit::Erase, run, cmd.now) {
            Some(FaultKind::DieFail) => {
                self.die_dies(chan, run.die);
                return true;
            }
            Some(_) => return true,
            None => {}
        }
        let Some(model) = &self.errors else {
            return false;
        };
        let (erases, rated) = chan.cells.wear(run.index);
        model.erase_fails(erases, rated, &mut chan.wear_rng[run.die as usize])
    }
}
