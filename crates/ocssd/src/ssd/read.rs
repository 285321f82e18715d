//! Reads: what lies there, what it costs.
//!
//! Owns: what a read of a run does. Promises: a read never fails for its position: what is not
//! written, not readable yet or bad reads as zeros with an all-ones out-of-band record, or as
//! `Empty` when the device reports unwritten data (DULBE), exactly at those addresses.
//! Never: changes content.
//!
//! A destination unit of zero bytes asks for the out-of-band records alone, which is what recovery
//! wants: it takes the time of the read and fits sectors of either kind of content.

use super::admin::Event;
use super::buffer::State;
use super::rows::Job;
use super::{Chan, Command, Ssd, bytes, describe};
use crate::device::{Scatter, Status, Ticket};
use crate::rules::Rule;
use crate::ssd::decode::{RowPart, Run};
use flashlane_base::{OOB_BYTES, SECTOR_BYTES, mutant};
use flashlane_media::cells::Found;
use flashlane_media::errors::{History, Sensed, flip_bits};
use flashlane_media::fault::{FaultKind, Hit};
use flashlane_media::store::Unread;
use flashlane_media::timing::Kind;
use flashlane_rt::sync::MutexGuard;

/// Where a read goes to.
pub(super) struct Target<'a> {
    content: Scatter<'a>,
    oob: &'a mut [[u8; OOB_BYTES]],
    whole: bool,
    /// What can't be read at once is tried again.
    retry: bool,
}

impl Ssd {
    #[inline]
    pub(super) fn read(
        &self,
        cmd: &mut Command<'_>,
        content: Scatter<'_>,
        oob: &mut [[u8; OOB_BYTES]],
        whole: bool,
        retry: bool,
    ) -> Ticket {
        let n = cmd.addrs.len();
        let unit = match whole {
            true => SECTOR_BYTES,
            false => self.traits.content_bytes,
        };
        let fits = (content.unit == unit || content.unit == 0) && oob.len() >= n;
        if !fits || !content.holds(n) {
            return self.malformed(cmd);
        }
        cmd.bytes_out = bytes(n);
        let mut to = Target { content, oob, whole, retry };
        let mut buffered = self.buffer.as_deref().map(|buffer| {
            let mut state = buffer.state.lock();
            self.settle_buffer(buffer, &mut state, cmd.now);
            state
        });
        let held = self.read_in_order(cmd, &mut to, buffered.as_deref());
        if let Some(state) = &mut buffered {
            state.note_hits(cmd.hits);
        }
        self.seal_held(held, cmd)
    }

    /// Reads row by row where nothing fails by itself and rows are sensed whole, else run by run;
    /// in list order.
    #[inline]
    fn read_in_order<'s>(
        &'s self,
        cmd: &mut Command<'_>,
        to: &mut Target<'_>,
        buffered: Option<&State>,
    ) -> Option<MutexGuard<'s, Chan>> {
        let by_rows = self.decoder.has_rows() && !self.fragile && cmd.planes == 0 && !to.whole;
        let by_rows = by_rows && buffered.is_none();
        let mut held = None;
        let mut i = 0;
        while i < cmd.addrs.len() {
            if by_rows && let Some(row) = self.decoder.row_part(cmd.addrs, i) {
                let mut chan = self.enter(cmd, held.take(), row.channel);
                let done = self.read_row(&mut chan, cmd, &row, to);
                held = Some(chan);
                if done {
                    i += row.n;
                    continue;
                }
            }
            let Some(run) = self.decoder.run(cmd.addrs, i) else {
                self.read_hole(cmd, i, to);
                i += 1;
                continue;
            };
            let mut chan = self.enter(cmd, held.take(), run.channel);
            match buffered {
                Some(state) => self.read_both(&mut chan, cmd, &run, to, state),
                None => self.read_run(&mut chan, cmd, &run, to),
            }
            held = Some(chan);
            i += run.n as usize;
        }
        held
    }

    /// Sectors of one row that all give data; false, and nothing done, when one may not.
    #[inline]
    fn read_row(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        row: &RowPart,
        to: &mut Target<'_>,
    ) -> bool {
        let index = chan.cells.index(row.die, row.chunk);
        let (lowest, span) = row.span();
        if chan.dead[row.die as usize] || !chan.cells.plain(index, lowest, span) {
            return false;
        }
        // The misses of scattered sectors pass side by side, while the row is queued.
        chan.cells.prefetch(index, lowest, span);
        chan.count.read_sectors += row.n as u64;
        chan.count.sent_sectors += row.n as u64;
        chan.cells.note_reads(index, row.n as u32);
        self.queue_row(chan, cmd, row, index);
        let addrs = &cmd.addrs[row.first..row.first + row.n];
        let all = (row.sector, self.geo.sectors_per_row());
        self.copy_to(chan, cmd, index, all, |k| row.place(addrs[k]), row.first, row.n, to);
        true
    }

    /// An address that names nothing: predefined data where the standard says so.
    #[cold]
    fn read_hole(&self, cmd: &mut Command<'_>, i: usize, to: &mut Target<'_>) {
        predefined(to, i);
        let status = if self.traits.dulbe { Status::Empty } else { Status::Ok };
        self.refuse_hole(cmd, i, status);
        if cmd.status[i] == Status::Ok {
            cmd.failed &= !(1 << i); // a violation to count, but not an error to the caller
        }
    }

    /// A run of which some may lie in the buffer.
    fn read_both(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        run: &Run,
        to: &mut Target<'_>,
        state: &State,
    ) {
        let mut k = 0;
        while k < run.n {
            let has = |m: u32| state.has(chan, run.channel, run.index, run.sector + m);
            cmd.in_buffer = has(k);
            let same = |m: &u32| has(*m) == cmd.in_buffer;
            let n = 1 + (k + 1..run.n).take_while(same).count() as u32;
            self.read_run(chan, cmd, &run.piece(k, n), to);
            k += n;
        }
        cmd.in_buffer = false;
    }

    #[inline]
    fn read_run(&self, chan: &mut Chan, cmd: &mut Command<'_>, run: &Run, to: &mut Target<'_>) {
        chan.count.read_sectors += run.n as u64;
        chan.count.sent_sectors += run.n as u64;
        chan.cells.note_reads(run.index, run.n);
        if chan.dead[run.die as usize] && !mutant!("device.dead-die-reads") {
            return self.read_lost(chan, cmd, run, to);
        }
        match chan.cells.plain(run.index, run.sector, run.n) {
            true => self.sense(chan, cmd, run, to),
            false => self.read_apart(chan, cmd, run, to),
        }
    }

    /// A run of which not every sector gives data.
    fn read_apart(&self, chan: &mut Chan, cmd: &mut Command<'_>, run: &Run, to: &mut Target<'_>) {
        let mut k = 0;
        while k < run.n {
            let found = chan.cells.look(run.index, run.sector + k);
            let same = |m: &u32| chan.cells.look(run.index, run.sector + m) == found;
            let n = 1 + (k + 1..run.n).take_while(same).count() as u32;
            let piece = run.piece(k, n);
            k += n;
            match found {
                Found::Data => self.sense(chan, cmd, &piece, to),
                Found::Damaged => self.read_lost(chan, cmd, &piece, to),
                Found::Nothing | Found::Early => {
                    if found == Found::Early {
                        chan.count.early_reads += n as u64;
                    }
                    for i in piece.addresses() {
                        predefined(to, i);
                        if self.traits.dulbe {
                            cmd.fail(i, Status::Empty);
                        }
                    }
                }
            }
        }
    }

    /// Sectors whose data is lost: the sense takes its time and gives nothing.
    fn read_lost(&self, chan: &mut Chan, cmd: &mut Command<'_>, piece: &Run, to: &mut Target<'_>) {
        for i in piece.addresses() {
            predefined(to, i);
            cmd.fail(i, Status::Uncorrectable);
        }
        chan.count.uncorrectable += piece.n as u64;
        self.notify(piece, Event::Unrecoverable, cmd.now);
        self.queue_read(chan, cmd, piece, 0);
    }

    /// Sectors that hold data.
    #[inline]
    fn sense(&self, chan: &mut Chan, cmd: &mut Command<'_>, piece: &Run, to: &mut Target<'_>) {
        let span = (piece.sector, piece.n);
        self.copy_to(chan, cmd, piece.index, span, |k| k, piece.first, piece.n as usize, to);
        if cmd.in_buffer {
            cmd.hits += piece.n as u64;
            return; // nothing is sensed
        }
        let retries = match self.fragile {
            true => self.meet_errors(chan, cmd, piece, to),
            false => 0,
        };
        self.queue_read(chan, cmd, piece, retries);
    }

    /// Content and out-of-band records of `n` addresses from `first` on, the `k`-th at `place(k)`
    /// of `span` (first sector, sectors).
    #[inline]
    fn copy_to(
        &self,
        chan: &Chan,
        cmd: &mut Command<'_>,
        index: u32,
        span: (u32, u32),
        place: impl Fn(usize) -> usize,
        first: usize,
        n: usize,
        to: &mut Target<'_>,
    ) {
        let oob = &mut to.oob[first..first + n];
        if !to.whole && chan.cells.copy_places(index, span, &place, &mut to.content, first, oob) {
            return;
        }
        for (k, oob) in oob.iter_mut().enumerate() {
            let (i, sector) = (first + k, span.0 + place(k) as u32);
            let content = to.content.sector(i);
            match chan.cells.copy_out(index, sector, to.whole, content, oob) {
                Ok(()) => {}
                Err(Unread::WrongUnit) => {
                    let seen = describe(&chan.cells, index);
                    self.refuse(cmd, i, Rule::Content, Status::InvalidField, seen);
                }
                Err(Unread::Host) => {
                    content.fill(0);
                    *oob = [0xff; OOB_BYTES];
                    cmd.fail(i, Status::HostFault);
                }
            }
        }
    }

    /// Faults and bit errors of sectors that were read; returns the retries of the worst.
    fn meet_errors(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        piece: &Run,
        to: &mut Target<'_>,
    ) -> u32 {
        let mean = self.mean_errors(chan, cmd, piece.index);
        let mut worst = 0;
        for k in 0..piece.n {
            let i = piece.first + k as usize;
            if cmd.failed >> i & 1 == 1 {
                continue; // there is nothing to have errors
            }
            let one = piece.piece(k, 1);
            let mut sensed = match &self.errors {
                Some(model) => model.sense(mean, &mut chan.read_rng[piece.die as usize], to.retry),
                None => Sensed::default(),
            };
            let mut silent = 0;
            match self.strike(Hit::Read, &one, cmd.now) {
                Some(FaultKind::ReadUncorrectable) => sensed.wrong = sensed.wrong.max(1),
                Some(FaultKind::ReadHighEcc) => sensed.heavy = true,
                Some(FaultKind::BitFlip) => silent = 1,
                Some(FaultKind::DieFail) => {
                    self.die_dies(chan, piece.die);
                    sensed.wrong = sensed.wrong.max(1);
                }
                _ => {}
            }
            worst = worst.max(sensed.retries);
            self.report_errors(chan, cmd, &one, &sensed);
            let flips = sensed.wrong.max(silent);
            if flips != 0 {
                let rng = &mut chan.read_rng[piece.die as usize];
                flip_bits(to.content.sector(i), flips, rng);
            }
        }
        chan.count.retries += worst as u64;
        worst
    }

    /// Mean raw errors per sector of a chunk as it is now.
    fn mean_errors(&self, chan: &Chan, cmd: &Command<'_>, index: u32) -> u64 {
        let Some(model) = &self.errors else {
            return 0;
        };
        let (erases, rated) = chan.cells.wear(index);
        let chunk = chan.cells.chunk(index);
        model.mean(&History {
            erases,
            rated,
            age: self.device_time(cmd.now).saturating_sub(chunk.since),
            reads: chunk.reads,
        })
    }

    /// Status, counters and notification of what a sector's read met.
    fn report_errors(&self, chan: &mut Chan, cmd: &mut Command<'_>, one: &Run, sensed: &Sensed) {
        chan.count.corrected_bits += sensed.corrected as u64;
        if sensed.wrong != 0 && !mutant!("device.uncorrectable-passes") {
            chan.count.uncorrectable += 1;
            cmd.fail(one.first, Status::Uncorrectable);
            self.notify(one, Event::Unrecoverable, cmd.now);
        } else if sensed.heavy {
            chan.count.high_ecc += 1;
            cmd.fail(one.first, Status::HighEcc);
            self.notify(one, Event::HighEcc, cmd.now);
        }
    }

    #[inline]
    fn queue_read(&self, chan: &mut Chan, cmd: &mut Command<'_>, piece: &Run, retries: u32) {
        let job = Job { kind: Kind::Read, ready: cmd.now + self.command, retries };
        self.queue_rows(chan, cmd, piece, job);
    }
}

/// What unwritten sectors read as.
fn predefined(to: &mut Target<'_>, i: usize) {
    to.content.sector(i).fill(0);
    to.oob[i] = [0xff; OOB_BYTES];
}
