//! Vector copy: sectors move inside the device.
//!
//! Owns: what a copy does. The list holds pairs: source, destination, source, destination, ...
//! Promises: the rules of writes hold for the destinations, unit by unit in list order; out-of-band
//! records travel along; no byte crosses the host's bus. A source that gives no data fails its
//! whole unit: the source says why, the destinations say `InvalidField`. Copied sectors count under
//! `Cause::Gc`: a device moves data for no other reason.
//! Never: corrects what it copies beyond what a read would.
//!
//! The programs of a unit start when its reads are expected to end, as known at submission.

use super::rows::{Job, flush_read};
use super::write::{Payload, count_programmed};
use super::{Chan, Command, Ssd, describe};
use crate::device::{Cause, Gather, Status, Ticket};
use crate::rules::Rule;
use crate::ssd::decode::Run;
use flashlane_base::{Ns, OOB_BYTES, Ppa, SECTOR_BYTES, VECTOR_MAX};
use flashlane_media::cells::Found;
use flashlane_media::store::HostFailed;
use flashlane_media::timing::Kind;
use flashlane_rt::sync::MutexGuard;

/// A sector on its way.
struct Moved {
    content: Box<[u8; SECTOR_BYTES]>,
    unit: usize,
    whole: bool,
    oob: [u8; OOB_BYTES],
}

/// The source and destination lists of a copy.
struct Lists {
    from: Vec<Ppa>,
    to: Vec<Ppa>,
}

impl Ssd {
    pub(super) fn copy(&self, cmd: &mut Command<'_>) -> Ticket {
        if !cmd.addrs.len().is_multiple_of(2) {
            return self.malformed(cmd);
        }
        let lists = Lists {
            from: cmd.addrs.iter().step_by(2).copied().collect(),
            to: cmd.addrs.iter().skip(1).step_by(2).copied().collect(),
        };
        let mut held = None;
        let mut i = 0;
        while i < lists.to.len() {
            let Some(run) = self.decoder.run(&lists.to, i) else {
                self.refuse_hole(cmd, 2 * i + 1, Status::WriteFault);
                i += 1;
                continue;
            };
            let mut done = 0;
            while done < run.n {
                let mut unit = self.ws_min;
                if unit != self.slc_ws_min {
                    let chan = self.enter(cmd, held.take(), run.channel);
                    unit = self.write_unit_in(chan.cells.chunk(run.index).mode);
                    held = Some(chan);
                }
                let piece = run.piece(done, unit.divisor());
                done += piece.n;
                held = self.copy_unit(cmd, &lists, &piece, held);
            }
            i += run.n as usize;
        }
        self.seal_held(held, cmd)
    }

    fn copy_unit<'s>(
        &'s self,
        cmd: &mut Command<'_>,
        lists: &Lists,
        piece: &Run,
        held: Option<MutexGuard<'s, Chan>>,
    ) -> Option<MutexGuard<'s, Chan>> {
        let mut moved = Vec::with_capacity(piece.n as usize);
        let (mut held, ready) = self.fetch(cmd, lists, piece, held, &mut moved);
        let mut chan = self.enter(cmd, held.take(), piece.channel);
        if moved.len() < piece.n as usize {
            piece.addresses().for_each(|i| cmd.fail(2 * i + 1, Status::InvalidField));
            return Some(chan);
        }
        let open = chan.cells.open_on(piece.die);
        self.place(&mut chan, cmd, piece, ready, &moved);
        self.note_open(&chan, piece.die, open);
        Some(chan)
    }

    /// Reads the sources of a unit; `moved` stays short when one gives no data.
    fn fetch<'s>(
        &'s self,
        cmd: &mut Command<'_>,
        lists: &Lists,
        piece: &Run,
        mut held: Option<MutexGuard<'s, Chan>>,
        moved: &mut Vec<Moved>,
    ) -> (Option<MutexGuard<'s, Chan>>, Ns) {
        let end = piece.addresses().end;
        let mut ready = cmd.now + self.command;
        let mut i = piece.first;
        while i < end {
            let Some(run) = self.decoder.run(&lists.from[..end], i) else {
                self.refuse_hole(cmd, 2 * i, Status::Empty);
                return (held, ready);
            };
            let mut chan = self.enter(cmd, held.take(), run.channel);
            chan.count.read_sectors += run.n as u64;
            for k in 0..run.n {
                match self.fetch_one(&chan, &run, run.sector + k) {
                    Ok(sector) => moved.push(sector),
                    Err(status @ (Status::Uncorrectable | Status::HostFault)) => {
                        cmd.fail(2 * (i + k as usize), status);
                        return (Some(chan), ready);
                    }
                    Err(status) => {
                        let seen = describe(&chan.cells, run.index);
                        self.refuse(cmd, 2 * (i + k as usize), Rule::Copy, status, seen);
                        return (Some(chan), ready);
                    }
                }
            }
            let job = Job { kind: Kind::Read, ready: cmd.now + self.command, retries: 0 };
            self.queue_rows(&mut chan, cmd, &run, job);
            flush_read(&mut chan, cmd);
            let p = chan.time.part(cmd.part);
            ready = ready.max(p.bound).max(p.end);
            i += run.n as usize;
            held = Some(chan);
        }
        (held, ready)
    }

    fn fetch_one(&self, chan: &Chan, run: &Run, sector: u32) -> Result<Moved, Status> {
        match chan.cells.look(run.index, sector) {
            Found::Data if !chan.dead[run.die as usize] => {}
            Found::Data | Found::Damaged => return Err(Status::Uncorrectable),
            Found::Nothing | Found::Early => return Err(Status::InvalidField),
        }
        let mut content = Box::new([0; SECTOR_BYTES]);
        let (unit, whole, oob) = match chan.cells.extract(run.index, sector, &mut content) {
            Ok(kept) => kept,
            Err(_) => return Err(Status::HostFault),
        };
        Ok(Moved { content, unit, whole, oob })
    }

    /// Programs a unit that was read.
    fn place(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        piece: &Run,
        ready: Ns,
        moved: &[Moved],
    ) {
        let places = piece.addresses().map(|k| 2 * k + 1);
        if let Err(rule) = self.may_write(chan, piece) {
            let seen = describe(&chan.cells, piece.index);
            for i in places {
                self.refuse(cmd, i, rule, rule.status(), seen);
            }
            return;
        }
        let status = self.program_outcome(chan, cmd, piece);
        if status == Status::Ok {
            if self.program_moved(chan, cmd, piece, moved).is_err() {
                return places.for_each(|i| cmd.fail(i, Status::HostFault));
            }
        } else {
            if status == Status::WriteNextUnit {
                count_programmed(chan, piece.index, &[Cause::Gc; VECTOR_MAX][..piece.n as usize]);
            }
            self.program_failed(chan, cmd.now, piece, status);
            for i in places {
                cmd.fail(i, status);
            }
        }
        let job = Job { kind: Kind::Program, ready, retries: 0 };
        self.queue_rows(chan, cmd, piece, job);
    }

    /// Programs what was read: neighbours of one kind of content at once, so that a host which
    /// fails, where all are of one kind, leaves no half unit.
    fn program_moved(
        &self,
        chan: &mut Chan,
        cmd: &Command<'_>,
        piece: &Run,
        moved: &[Moved],
    ) -> Result<(), HostFailed> {
        let mut sector = piece.sector;
        for alike in moved.chunk_by(|a, b| a.whole == b.whole) {
            let n = alike.len();
            let unit = alike[0].unit;
            let base: Vec<u8> = alike.iter().flat_map(|m| &m.content[..unit]).copied().collect();
            let places: Vec<u32> = (0..n as u32).collect();
            let oob: Vec<[u8; OOB_BYTES]> = alike.iter().map(|m| m.oob).collect();
            let payload = Payload {
                content: Gather::new(&base, &places, unit),
                oob: &oob,
                cause: &[Cause::Gc; VECTOR_MAX][..n],
                whole: alike[0].whole,
            };
            let run = Run { sector, first: 0, n: n as u32, ..*piece };
            self.program(chan, cmd, &run, &payload)?;
            sector += n as u32;
        }
        Ok(())
    }
}
