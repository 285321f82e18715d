//! The power goes, and comes back.
//!
//! Owns: what a cut leaves of the commands in flight. Promises: what had ended is there; a program
//! that had not begun never was; one under way is a torn unit that reads as uncorrectable and,
//! where the device has `pair_damage`, may take the programmed pages of its word line with it; an erase
//! under way leaves a chunk that must be erased again; one that had not begun never was. Half a
//! write unit never survives. That a buffer had acknowledged a program changes none of this. On capacitors everything accepted is completed. States, pointers and
//! wear survive as the chunk report shows them. Never: waits.
//!
//! Tickets from before the cut complete as failed. On an image what the cut left is committed, since
//! what it took back may be programmed again over bytes that the last commit names.

use super::{Chan, Extra, Ssd};
use crate::device::ChunkState;
use flashlane_base::{Ns, Rng, mutant};
use flashlane_media::timing::{Kind, Struck};
use std::sync::atomic::Ordering;

/// What the caller's clock does over a power cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerOn {
    /// The next run counts from zero; the device's own time goes on.
    ClockRestarts,
    /// The same run goes on.
    ClockGoesOn,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    /// Programs under way: torn.
    pub torn_programs: u32,
    pub lost_programs: u32,
    pub torn_erases: u32,
    pub lost_erases: u32,
}

impl Ssd {
    /// Cuts the power at `at` and turns it on again. Callers of before must be gone.
    pub fn power_cut(&self, at: Ns, then: PowerOn) -> Cut {
        let mut cut = Cut::default();
        let number = self.cuts.fetch_add(1, Ordering::Relaxed);
        let mut rng = Rng::stream(self.options.seed, "media.power_cut", number);
        let mut open = 0;
        let mut buffered = self.buffer.as_ref().map(|buffer| buffer.state.lock());
        for channel in &self.channels {
            let mut guard = channel.lock();
            let chan = &mut *guard;
            let struck = chan.time.power_cut(at);
            chan.sweep();
            chan.extra.iter_mut().for_each(|e| *e = Extra::default());
            for s in struck {
                match self.spec.limits.capacitors && !mutant!("device.capacitors-empty") {
                    true => complete(chan, &s),
                    false if mutant!("device.cut-spares-buffer") => complete(chan, &s),
                    false => self.strike_op(chan, &s, at, &mut rng, &mut cut),
                }
            }
            open += (0..self.geo.pus_per_channel)
                .map(|die| chan.cells.open_on(die) as u64)
                .sum::<u64>();
        }
        self.open.store(open, Ordering::Relaxed);
        if let (Some(buffer), Some(state)) = (&self.buffer, &mut buffered) {
            let kept = if mutant!("device.kept-room-forgotten") { 0 } else { self.count_kept() };
            buffer.restart(state, kept);
        }
        drop(buffered);
        self.forget_hazards();
        self.write_pipe.reset();
        self.read_pipe.reset();
        if then == PowerOn::ClockRestarts {
            self.epoch.fetch_add(at.as_ns(), Ordering::Relaxed);
        }
        self.settle_image();
        cut
    }

    /// What is left of one operation.
    fn strike_op(&self, chan: &mut Chan, s: &Struck, at: Ns, rng: &mut Rng, cut: &mut Cut) {
        let index = chan.cells.index(s.die, s.chunk);
        let at = self.device_time(at);
        if chan.dead[s.die as usize] || chan.cells.chunk(index).state == ChunkState::Offline {
            return;
        }
        // A program of one plane is part of a write unit: the unit shares its fate.
        let unit = match mutant!("device.cut-tears-native-units") {
            true => self.geo.ws_min,
            false => self.write_unit_in(chan.cells.chunk(index).mode).divisor(),
        };
        let from = s.sector / unit * unit;
        let end = (s.sector + s.count).div_ceil(unit) * unit;
        match (s.kind, s.begun) {
            (Kind::Program, true) => {
                cut.torn_programs += 1;
                let pairs = self.spec.cells.pair_damage && rng.below(2) == 0;
                chan.cells.tear_program(index, from, end, pairs, at);
            }
            (Kind::Program, false) => {
                cut.lost_programs += 1;
                chan.cells.undo_program(index, from, at);
            }
            (Kind::Erase, true) => {
                cut.torn_erases += 1;
                chan.cells.tear_erase(index, at);
            }
            (Kind::Erase, false) => {
                cut.lost_erases += 1;
                chan.cells.undo_erase(s.token);
            }
            (Kind::Read, _) => {}
        }
    }
}

/// Capacitors: the operation takes place after all.
fn complete(chan: &mut Chan, s: &Struck) {
    if s.kind == Kind::Erase && !s.begun {
        chan.cells.drop_shelved(s.token);
    }
}
