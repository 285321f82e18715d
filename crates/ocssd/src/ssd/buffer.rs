//! The write buffer: RAM of the controller in which a write is acknowledged before it is programmed.
//!
//! Owns: what of accepted writes is not on flash, the room it takes, who waits for room or for a flush.
//! Promises: writes enter in the order in which they came; a write that finds no room is acknowledged
//! when there is some, or when it is programmed, whichever is first (its payload goes past the buffer to
//! its die: a buffer full of what can't be programmed blocks nobody). A read of what lies in it takes
//! no time of a die or a channel. A flush ends when everything accepted before it is on flash. What the
//! host was told is good can be read until its chunk is erased, though its program fails. Never: changes
//! what may be read (`mw_cunits` and page pairs are about positions, not about time), nor the order of
//! programs: they are queued when the command comes, and ready when its payload has arrived.
//!
//! A program that fails behind its acknowledgement can't be told by the command any more. OCSSD 2.0 has the
//! chunk report for that, and the chunk notification log (asynchronous event D0h): the chunk is
//! closed early as F1h closes it, or goes on as behind F0h; the log names the sectors; they are served
//! from the buffer until the host has moved them and resets the chunk. Like the contents of a buffer on
//! capacitors they are kept in blocks that only the device knows, so a flush counts them as safe. They take
//! room in the buffer: what would not fit is not acknowledged early, and the command itself
//! reports the failure. Where nobody can read them any more, the chunk marked bad or its die dead, they are
//! given up, and their room comes back ([`Ssd::set_offline`], [`Ssd::die_dies`]).
//!
//! Lock order: the buffer, then a channel.

use super::admin::Event;
use super::decode::Run;
use super::rows::Job;
use super::write::Payload;
use super::{Chan, Command, Ssd, open_part};
use crate::device::Status;
use crate::spec::DeviceSpec;
use flashlane_base::{Ns, SECTOR_BYTES, mutant};
use flashlane_media::cells::LastOp;
use flashlane_media::counters::BufferCount;
use flashlane_media::store::HostFailed;
use flashlane_rt::sync::Mutex;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::atomic::{AtomicI64, Ordering};

pub(super) struct Buffer {
    /// Sectors that it holds.
    size: u64,
    /// Sectors in it whose program failed. Beside the state, since they may be given up by who has a
    /// channel and not the buffer; then also before who has the buffer has counted them.
    kept: AtomicI64,
    pub(super) state: Mutex<State>,
}

/// What is in it, and who waits. Entries have names, in the order in which they came.
#[derive(Default)]
pub(super) struct State {
    next: u64,
    /// Not programmed yet: in the buffer, or waiting for room.
    under_way: BTreeMap<u64, Entry>,
    /// The same by place: channel, chunk of the channel, first sector.
    places: BTreeMap<(u32, u32, u32), u64>,
    /// When it is worth asking whether a program is over: never later than that.
    ends: BinaryHeap<Reverse<(Ns, u64)>>,
    /// Sectors in it that are to be programmed.
    held: u64,
    /// Entries that wait for room, and flushes for what came before them.
    waiting: VecDeque<u64>,
    flushes: VecDeque<u64>,
    /// Since when what somebody waits for is so.
    answers: BTreeMap<u64, Ns>,
    count: BufferCount,
}

/// A run of sectors on its way to flash.
struct Entry {
    run: Run,
    /// Its programs' part on the channel.
    part: u32,
    /// It is in the buffer: it may be read there, and its room comes back.
    admitted: bool,
    failed: bool,
}

/// What a write command leaves behind its acknowledgement.
pub(super) struct Behind {
    entry: Entry,
    look_at: Ns,
}

impl Buffer {
    pub(super) fn of(spec: &DeviceSpec) -> Option<Box<Buffer>> {
        let size = spec.limits.write_buffer?.get() / SECTOR_BYTES as u64;
        Some(Box::new(Buffer { size, kept: AtomicI64::new(0), state: Mutex::default() }))
    }

    /// Sectors that take room, with those that are to be programmed.
    fn taken(&self, held: u64) -> u64 {
        held + self.kept.load(Ordering::Relaxed).max(0) as u64
    }

    /// So many sectors more are kept.
    fn keep(&self, sectors: u64) {
        self.kept.fetch_add(sectors as i64, Ordering::Relaxed);
    }

    /// So many are not any more; whoever waits for room looks again when the next program ends.
    pub(super) fn give_up(&self, sectors: u64) {
        self.kept.fetch_sub(sectors as i64, Ordering::Relaxed);
    }

    /// The power has gone, and come back: nothing is under way, `kept` sectors are still here.
    pub(super) fn restart(&self, state: &mut State, kept: u64) {
        *state = State { next: state.next, count: state.count, ..State::default() };
        self.kept.store(kept as i64, Ordering::Relaxed);
    }

    /// What it counted since the device was made or opened.
    pub(super) fn count(&self) -> BufferCount {
        self.state.lock().count
    }

    /// Sectors that find room at once.
    pub(super) fn room(&self, state: &State) -> u64 {
        match state.waiting.is_empty() {
            true if mutant!("device.buffer-without-end") => u64::MAX >> 1,
            true => self.size.saturating_sub(self.taken(state.held)),
            false => 0,
        }
    }

    /// Lets in who waits, as far as there is room.
    fn admit(&self, state: &mut State, at: Ns) {
        while let Some(name) = state.waiting.front().copied() {
            let Some(entry) = state.under_way.get_mut(&name) else {
                state.waiting.pop_front();
                continue;
            };
            let n = entry.run.n as u64;
            if self.taken(state.held) + n > self.size {
                return;
            }
            entry.admitted = true;
            state.held += n;
            state.count.accepted += n;
            state.answers.insert(name, at);
            state.waiting.pop_front();
        }
    }
}

impl State {
    /// A flush: the name to wait for, unless there is nothing to flush.
    pub(super) fn flush(&mut self) -> Option<u64> {
        if self.under_way.is_empty() || mutant!("device.flush-waits-for-nothing") {
            return None;
        }
        let name = self.take_name();
        self.flushes.push_back(name);
        Some(name)
    }

    /// Sectors that a read found here.
    pub(super) fn note_hits(&mut self, sectors: u64) {
        self.count.hits += sectors;
    }

    /// A chunk was reset: nothing of it is read here.
    pub(super) fn was_reset(&mut self, channel: u32, index: u32) {
        let chunk = (channel, index, 0)..=(channel, index, u32::MAX);
        let places: Vec<_> = self.places.range(chunk).map(|(place, _)| *place).collect();
        for place in places {
            self.places.remove(&place);
        }
    }

    /// Whether a sector is read from here.
    pub(super) fn has(&self, chan: &Chan, channel: u32, index: u32, sector: u32) -> bool {
        let before = (channel, index, 0)..=(channel, index, sector);
        let entry = self.places.range(before).next_back();
        let entry = entry.and_then(|((.., first), name)| Some((first, self.under_way.get(name)?)));
        entry.is_some_and(|(first, e)| e.admitted && sector - first < e.run.n)
            || chan.cells.keeps(index, sector)
    }

    fn take_name(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn place(entry: &Entry) -> (u32, u32, u32) {
        (entry.run.channel, entry.run.index, entry.run.sector)
    }

    /// A program is over.
    fn ended(&mut self, buffer: &Buffer, name: u64, entry: &Entry, at: Ns) {
        let place = State::place(entry);
        if self.places.get(&place) == Some(&name) {
            self.places.remove(&place);
        }
        match entry.admitted {
            // What is kept was counted as such when it came.
            true => self.held -= if entry.failed { 0 } else { entry.run.n as u64 },
            false => {
                self.waiting.retain(|waits| *waits != name);
                self.answers.insert(name, at);
            }
        }
        buffer.admit(self, at);
        let oldest = match mutant!("device.flush-waits-for-one") {
            true => u64::MAX,
            false => self.under_way.first_key_value().map_or(u64::MAX, |(name, _)| *name),
        };
        while let Some(flush) = self.flushes.front().copied().filter(|flush| *flush < oldest) {
            self.answers.insert(flush, at);
            self.flushes.pop_front();
        }
    }
}

impl Ssd {
    /// Takes out what is programmed by `now`, in the order in which that happened.
    pub(super) fn settle_buffer(&self, buffer: &Buffer, state: &mut State, now: Ns) {
        while let Some(Reverse((at, name))) = state.ends.peek().copied()
            && at <= now
        {
            state.ends.pop();
            let entry = &state.under_way[&name];
            let (channel, part) = (entry.run.channel, entry.part);
            let mut chan = self.channels[channel as usize].lock();
            chan.time.settle(now);
            chan.sweep();
            let p = chan.time.part(part);
            let end = p.end;
            if p.left > 0 || end > at {
                // Others may have ended before it.
                let ask = if p.left > 0 { chan.time.ask_at(part, now) } else { end };
                state.ends.push(Reverse((ask, name)));
                continue;
            }
            chan.time.close_part(part);
            drop(chan);
            let Some(entry) = state.under_way.remove(&name) else { continue };
            state.ended(buffer, name, &entry, end);
            if entry.failed && !mutant!("device.failure-not-told") {
                self.notify(&entry.run, Event::ProgramFailed, end);
            }
        }
    }

    /// Queues the program of a run that breaks no rule: on the command's own part, or, where the device
    /// acknowledges from its buffer, behind it. `failed`: it is known to fail, which it then does
    /// behind the acknowledgement.
    #[inline]
    pub(super) fn queue_program(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        run: &Run,
        job: Job,
        failed: bool,
    ) {
        match cmd.room {
            None => self.queue_rows(chan, cmd, run, job),
            Some(room) => self.queue_behind(chan, cmd, run, (job, room, failed)),
        }
    }

    fn queue_behind(
        &self,
        chan: &mut Chan,
        cmd: &mut Command<'_>,
        run: &Run,
        (job, room, failed): (Job, u64, bool),
    ) {
        chan.time.not_before(cmd.part, job.ready);
        let behind = open_part(chan, cmd.now + self.command);
        if chan.time.keeps_spans() {
            chan.time.set_cause(behind, cmd.cause);
        }
        let part = std::mem::replace(&mut cmd.part, behind);
        self.queue_rows(chan, cmd, run, job);
        cmd.part = part;
        let left = room.checked_sub(run.n as u64);
        cmd.room = Some(left.unwrap_or(0));
        let entry = Entry { run: *run, part: behind, admitted: left.is_some(), failed };
        cmd.behind.push(Behind { entry, look_at: chan.time.ask_at(behind, cmd.now) });
    }

    /// What a command left behind enters the buffer, or waits for room.
    pub(super) fn enter_buffer(&self, buffer: &Buffer, state: &mut State, cmd: &mut Command<'_>) {
        for Behind { entry, look_at } in cmd.behind.drain(..) {
            let name = state.take_name();
            let n = entry.run.n as u64;
            match (entry.admitted, entry.failed) {
                (true, true) => buffer.keep(n),
                (true, false) => state.held += n,
                (false, _) => {
                    state.waiting.push_back(name);
                    cmd.waits.push(name);
                }
            }
            state.count.accepted += if entry.admitted { n } else { 0 };
            state.count.kept += if entry.failed { n } else { 0 };
            state.places.insert(State::place(&entry), name);
            state.ends.push(Reverse((look_at, name)));
            state.under_way.insert(name, entry);
        }
        state.count.waits += !cmd.waits.is_empty() as u64;
    }

    /// True when the program of a unit that fails does so behind the acknowledgement.
    pub(super) fn fails_behind(cmd: &Command<'_>, unit: &Run, status: Status) -> bool {
        let told = matches!(status, Status::WriteNextUnit | Status::ChunkEarlyClose);
        told && cmd.room.is_some_and(|room| room >= unit.n as u64)
    }

    /// State and counters of a program that fails behind its acknowledgement: the pointer has moved, and
    /// the device keeps the content.
    pub(super) fn fail_behind(
        &self,
        chan: &mut Chan,
        cmd: &Command<'_>,
        piece: &Run,
        payload: &Payload<'_>,
        status: Status,
    ) -> Result<(), HostFailed> {
        self.program(chan, cmd, piece, payload)?;
        chan.count.program_failures += piece.n as u64;
        if mutant!("device.failed-content-not-kept") {
            chan.cells.mark_damaged(piece.index, piece.sector, piece.sector + piece.n);
        } else {
            chan.cells.keep(piece.index, piece.sector, piece.sector + piece.n);
        }
        match status {
            Status::ChunkEarlyClose => self.close_early(chan, cmd.now, piece),
            _ => chan.cells.chunk_mut(piece.index).last = LastOp::FailedProgram,
        }
        Ok(())
    }

    /// Whether everything that a command waits for is so: since when, or when to ask again.
    pub(super) fn answered(&self, now: Ns, waits: &mut Vec<u64>, since: &mut Ns) -> Result<(), Ns> {
        let Some(buffer) = &self.buffer else { return Ok(()) };
        let mut state = buffer.state.lock();
        self.settle_buffer(buffer, &mut state, now);
        waits.retain(|name| match state.answers.remove(name) {
            Some(at) => {
                *since = at.max(*since);
                false
            }
            None => true,
        });
        let next = state.ends.peek().map_or(now, |Reverse((at, _))| *at);
        match waits.is_empty() {
            true => Ok(()),
            false => Err(next.max(now + Ns::from_ns(1))),
        }
    }

    /// The die stops working: nothing on it can be read, also what is kept of it.
    pub(super) fn die_dies(&self, chan: &mut Chan, die: u32) {
        chan.dead[die as usize] = true;
        let chunks = chan.cells.index(die, 0)..chan.cells.index(die, self.geo.chunks_per_pu);
        let kept: Vec<u32> = chan.cells.kept().map(|(index, ..)| index).collect();
        for index in kept.into_iter().filter(|index| chunks.contains(index)) {
            self.give_up_kept(chan, index);
        }
    }

    /// The host marks a chunk bad: it says that it does not need it.
    pub(super) fn set_offline(&self, chan: &mut Chan, index: u32) {
        self.give_up_kept(chan, index);
        chan.cells.set_offline(index);
    }

    pub(super) fn give_up_kept(&self, chan: &mut Chan, index: u32) {
        let kept = chan.cells.lose_kept(index);
        if mutant!("device.kept-room-never-back") {
            return;
        }
        if let Some(buffer) = &self.buffer {
            buffer.give_up(kept);
        }
    }

    /// Sectors that the device keeps for programs that failed, from its chunks.
    pub(super) fn count_kept(&self) -> u64 {
        let kept = |chan: &Chan| chan.cells.kept().map(|(_, from, end)| (end - from) as u64).sum();
        self.channels.iter().map(|channel| -> u64 { kept(&channel.lock()) }).sum()
    }
}
