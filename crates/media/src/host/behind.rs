//! A host file whose writes are done by a thread of their own, behind whoever asked for them.
//!
//! Owns: [`Behind`]: the queue, its bound, the thread, what is known of a write that failed. Promises: a read
//! finds what was written before it; `sync` covers everything that was written before it; what overlaps is
//! written in the order in which it was given; the queue is bounded; a failed write is told by the next sync
//! and by every change after it, and by reads of what was lost; dropping it waits for the queue. Never: knows
//! what is stored, has a full disk found out late (room is there before it is used).
//!
//! Writes go into a batch, which is a piece of memory that is used again and again. The thread takes a batch
//! when it is half full, when somebody waits for it, or after some time. Meanwhile the next one fills. Within a
//! batch the thread writes by place, and what lies side by side in one go: between two syncs the host promises no
//! order anyhow. So a write costs its caller one copy, which it would also have cost in the kernel.

use super::HostFile;
use flashlane_base::mutant;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Bytes of a batch at most; there are two of them.
const BATCH_BYTES: usize = 1 << 20;
/// The thread is woken when a batch has so many.
const WAKE_BYTES: usize = BATCH_BYTES / 2;
/// A batch with less is taken after this time, too.
const LINGER: Duration = Duration::from_millis(50);
/// Pieces that are written in one go at most.
const PIECES_MAX: usize = 256;
/// Bytes of the file that share a bit of [`Batch::places`].
const PLACE_BYTES: u64 = 64 << 10;

/// A file whose writes are behind.
pub struct Behind {
    shared: Arc<Shared>,
    /// Once something was written.
    writer: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    file: Arc<dyn HostFile>,
    state: Mutex<State>,
    /// There is something for the thread to do.
    work: Condvar,
    /// The thread has ended a batch.
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// What is written comes in here.
    filling: Batch,
    /// Its number; batches end in order.
    number: u64,
    /// What the thread is at.
    writing: Option<Arc<Batch>>,
    /// An empty one, to be filled next.
    spare: Batch,
    thread: Thread,
    /// Somebody waits for the batch that is being filled.
    wanted: bool,
    closing: bool,
    failed: Option<Failure>,
    /// Room that was asked for ahead and not yet in earnest.
    rooms: Vec<Room>,
    /// Number of the next of them.
    next_room: u64,
}

/// Room of the file that somebody will want.
struct Room {
    number: u64,
    at: u64,
    len: u64,
    /// The host has reserved it.
    is_there: bool,
}

/// What the thread does.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Thread {
    /// It has not begun.
    #[default]
    None,
    /// It is at work, and looks at what has come before it waits.
    Works,
    /// It waits for a while.
    Lingers,
    /// It waits for the first write.
    Sleeps,
}

/// What the host could not write.
struct Failure {
    kind: io::ErrorKind,
    said: String,
    /// Ranges (first byte, end) of the file that may not be as they were written.
    lost: Vec<(u64, u64)>,
}

/// Changes of a file that wait.
#[derive(Default)]
struct Batch {
    bytes: Vec<u8>,
    changes: Vec<Change>,
    punches: u32,
    /// A bit for each place of [`PLACE_BYTES`], which places far apart share.
    places: [u64; 16],
}

#[derive(Clone, Copy)]
struct Change {
    at: u64,
    len: u64,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum What {
    /// The bytes of the batch from here on are written.
    Bytes(usize),
    /// The range is given back to the host.
    Punch,
    /// Room of this number is reserved, unless somebody has taken it by then.
    Room(u64),
}

impl What {
    /// Whether the range reads as before: room does.
    fn is_room(self) -> bool {
        matches!(self, What::Room(_))
    }
}

impl Change {
    fn end(&self) -> u64 {
        self.at + self.len
    }
}

/// What a batch says of a range.
enum Found<'a> {
    /// Nothing.
    Nothing,
    /// All of it.
    Bytes(&'a [u8]),
    /// Some of it, or it was given back.
    Parts,
}

impl Batch {
    fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.changes.clear();
        self.punches = 0;
        self.places = [0; 16];
    }

    /// The bits of a range; all of them for a long one.
    fn bits(at: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
        let (first, last) = (at / PLACE_BYTES, at.saturating_add(len.max(1) - 1) / PLACE_BYTES);
        let more = (last - first).min(1023);
        (0..=more).map(move |n| {
            let spread = first.wrapping_add(n).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 54;
            let bit = if more == 1023 { n } else { spread };
            ((bit / 64) as usize, 1 << (bit % 64))
        })
    }

    fn add(&mut self, at: u64, parts: &[&[u8]]) {
        let from = self.bytes.len();
        parts.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let len = (self.bytes.len() - from) as u64;
        self.note(Change { at, len, what: What::Bytes(from) });
    }

    fn note(&mut self, change: Change) {
        self.punches += u32::from(change.what == What::Punch);
        let range = if change.what.is_room() { None } else { Some(change) };
        for (word, bit) in range.into_iter().flat_map(|c| Batch::bits(c.at, c.len)) {
            self.places[word] |= bit;
        }
        self.changes.push(change);
    }

    /// The last that was done to a range.
    fn find(&self, at: u64, len: u64) -> Found<'_> {
        if !Batch::bits(at, len).any(|(word, bit)| self.places[word] & bit != 0) {
            return Found::Nothing;
        }
        let touches =
            |change: &&Change| !change.what.is_room() && change.at < at + len && at < change.end();
        match self.changes.iter().rev().find(touches) {
            None => Found::Nothing,
            Some(Change { at: begin, len: all, what: What::Bytes(from) })
                if *begin <= at && at + len <= begin + all =>
            {
                let from = from + (at - begin) as usize;
                Found::Bytes(&self.bytes[from..from + len as usize])
            }
            Some(_) => Found::Parts,
        }
    }

    /// Whether a range, or a part of it, is given back.
    fn punches(&self, at: u64, len: u64) -> bool {
        let punches = |change: &Change| {
            change.what == What::Punch && change.at < at + len && at < change.end()
        };
        self.punches > 0 && self.changes.iter().any(punches)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // Each change below is one step: a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the batches that hold something by now have ended.
    fn drained<'a>(&'a self, mut state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let last = state.number - u64::from(state.filling.is_empty());
        // Batch `n` has ended when a later one is being filled, and the thread is at none up to it.
        let is_under_way =
            |s: &State| s.number <= last || s.writing.is_some() && s.number <= last + 1;
        while is_under_way(&state) && state.thread != Thread::None {
            if state.number <= last {
                state.wanted = true;
                self.wake(&mut state);
            }
            state = self.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state
    }

    /// Reserves room that nobody has taken by now.
    fn reserve(&self, number: u64, at: u64, len: u64) {
        let is_wanted = self.state().rooms.iter().any(|room| room.number == number);
        if !is_wanted && !mutant!("image.behind-room-twice") {
            return;
        }
        // Who asks for it in earnest hears why it is not there.
        if self.file.allocate(at, len).is_ok() || mutant!("image.behind-room-imagined") {
            let mut state = self.state();
            state.rooms.iter_mut().filter(|r| r.number == number).for_each(|r| r.is_there = true);
        }
    }

    /// Wakes the thread where it waits, once.
    fn wake(&self, state: &mut State) {
        if matches!(state.thread, Thread::Lingers | Thread::Sleeps) {
            state.thread = Thread::Works;
            self.work.notify_one();
        }
    }
}

impl State {
    /// What every change after a failed write says.
    fn check(&self) -> io::Result<()> {
        match &self.failed {
            Some(failure) if !mutant!("image.behind-error-lost") => Err(failure.again()),
            _ => Ok(()),
        }
    }
}

impl State {
    /// The last that was done to a range and is not with the host yet.
    fn find(&self, at: u64, len: u64) -> Found<'_> {
        let batches = [Some(&self.filling), self.writing.as_deref()];
        let found = batches.into_iter().flatten().map(|batch| batch.find(at, len));
        let mut there = found.filter(|found| !matches!(found, Found::Nothing));
        let last = there.next().filter(|_| !mutant!("image.behind-reads-old"));
        last.unwrap_or(Found::Nothing)
    }
}

impl Failure {
    fn again(&self) -> io::Error {
        io::Error::new(self.kind, format!("an earlier write failed: {}", self.said))
    }
}

impl Behind {
    /// The file, with its writes behind from now on. The thread begins with the first of them.
    pub fn new(file: Arc<dyn HostFile>) -> Behind {
        let state = State { number: 1, ..State::default() };
        let shared =
            Shared { file, state: Mutex::new(state), work: Condvar::new(), ended: Condvar::new() };
        Behind { shared: Arc::new(shared), writer: Mutex::new(None) }
    }

    /// As the end of the process: what has not reached the host by now never does. For tests.
    pub fn abandon(&self) {
        let mut state = self.shared.state();
        state.filling.clear();
        state.closing = true;
        self.shared.wake(&mut state);
        drop(state);
        self.join();
    }

    fn join(&self) {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(writer) = writer {
            // It ends with a panic only where the file's implementation panicked.
            let _ = writer.join();
        }
    }

    fn begin(&self, state: &mut State) -> io::Result<()> {
        if state.closing {
            return Err(io::Error::other("the file is being closed"));
        }
        let shared = self.shared.clone();
        let thread = std::thread::Builder::new().name("image writer".into());
        let thread = thread.spawn(move || write_behind(&shared))?;
        *self.writer.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        state.thread = Thread::Works;
        Ok(())
    }

    /// Has the thread do something, when there is room for so many bytes.
    fn push(&self, bytes: usize, add: impl FnOnce(&mut Batch)) -> io::Result<()> {
        let mut state = self.shared.state();
        if state.thread == Thread::None {
            self.begin(&mut state)?;
        }
        while !state.filling.is_empty()
            && state.filling.bytes.len() + bytes > BATCH_BYTES
            && !mutant!("image.behind-unbounded")
        {
            state.wanted = true;
            self.shared.wake(&mut state);
            state = self.shared.ended.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.check()?;
        add(&mut state.filling);
        if state.thread == Thread::Sleeps || state.filling.bytes.len() >= WAKE_BYTES {
            self.shared.wake(&mut state);
        }
        Ok(())
    }
}

impl Drop for Behind {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        state.closing = true;
        if mutant!("image.behind-dropped-early") {
            state.filling.clear();
        }
        self.shared.wake(&mut state);
        drop(state);
        self.join();
    }
}

impl HostFile for Behind {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let len = into.len() as u64;
        let state = self.shared.state();
        if let Some(failure) = &state.failed
            && failure.lost.iter().any(|(begin, end)| *begin < at + len && at < *end)
        {
            return Err(failure.again());
        }
        match state.find(at, len) {
            Found::Bytes(bytes) => {
                into.copy_from_slice(bytes);
                Ok(())
            }
            Found::Parts => {
                drop(self.shared.drained(state));
                self.read_at(at, into)
            }
            Found::Nothing => {
                drop(state);
                self.shared.file.read_at(at, into)
            }
        }
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.write_parts(at, &[bytes])
    }

    fn write_parts(&self, at: u64, parts: &[&[u8]]) -> io::Result<()> {
        let bytes = parts.iter().map(|part| part.len()).sum();
        self.push(bytes, |batch| batch.add(at, parts))
    }

    fn write_through(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.shared.state();
        state.check()?;
        let len = bytes.len() as u64;
        if !matches!(state.find(at, len), Found::Nothing) {
            state = self.shared.drained(state);
            state.check()?;
        }
        drop(state);
        self.shared.file.write_at(at, bytes)
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.push(0, |batch| batch.note(Change { at, len, what: What::Punch }))
    }

    fn keeps_room(&self) -> bool {
        self.shared.file.keeps_room()
    }

    fn expect_room(&self, at: u64, len: u64) -> bool {
        let number = {
            let mut state = self.shared.state();
            state.next_room += 1;
            let number = state.next_room;
            state.rooms.push(Room { number, at, len, is_there: false });
            number
        };
        let change = Change { at, len, what: What::Room(number) };
        let is_asked = self.push(0, |batch| batch.note(change)).is_ok();
        if !is_asked {
            self.shared.state().rooms.retain(|room| room.number != number);
        }
        is_asked
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        let mut state = self.shared.state();
        state.check()?;
        if let Some(n) = state.rooms.iter().position(|room| (room.at, room.len) == (at, len))
            && state.rooms.swap_remove(n).is_there
        {
            return Ok(());
        }
        let punches = |batch: &Batch| batch.punches(at, len);
        let overtakes = punches(&state.filling) || state.writing.as_deref().is_some_and(punches);
        if overtakes && !mutant!("image.behind-room-taken-back") {
            state = self.shared.drained(state);
            state.check()?;
        }
        drop(state);
        match self.shared.file.allocate(at, len) {
            // What waits may give room back.
            Err(e) if e.kind() == io::ErrorKind::StorageFull => {
                self.drain()?;
                self.shared.file.allocate(at, len)
            }
            done => done,
        }
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.shared.state();
        if !mutant!("image.behind-sync-early") {
            state = self.shared.drained(state);
        }
        let told = state.check();
        if mutant!("image.behind-error-told-once") {
            state.failed = None;
        }
        drop(state);
        told?;
        self.shared.file.sync()
    }

    fn drain(&self) -> io::Result<()> {
        self.shared.drained(self.shared.state()).check()
    }

    fn len(&self) -> io::Result<u64> {
        self.drain()?;
        self.shared.file.len()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.drain()?;
        self.shared.file.set_len(len)
    }
}

/// The thread.
fn write_behind(shared: &Shared) {
    let mut order = Vec::new();
    let mut state = shared.state();
    let mut waited = false;
    loop {
        let some = !state.filling.is_empty();
        let is_due = state.filling.bytes.len() >= WAKE_BYTES || state.wanted || waited;
        if !(some && (is_due || state.closing)) {
            if state.closing {
                break;
            }
            // After a while without a write it sleeps until the next.
            let sleeps = waited && !some;
            state.thread = if sleeps { Thread::Sleeps } else { Thread::Lingers };
            (state, waited) = match sleeps {
                true => {
                    let state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    (state, false)
                }
                false => {
                    let woken = shared.work.wait_timeout(state, LINGER);
                    let (state, how) = woken.unwrap_or_else(PoisonError::into_inner);
                    (state, how.timed_out())
                }
            };
            state.thread = Thread::Works;
            continue;
        }
        let spare = std::mem::take(&mut state.spare);
        let batch = Arc::new(std::mem::replace(&mut state.filling, spare));
        (state.wanted, waited) = (false, false);
        state.number += 1;
        state.writing = Some(batch.clone());
        let given_up = state.failed.is_some() && !mutant!("image.behind-goes-on");
        drop(state);
        // Who waits for room goes on with the other batch.
        shared.ended.notify_all();
        let done = match given_up {
            true => Ok(()),
            false => write_batch(shared, &batch, &mut order),
        };
        state = shared.state();
        state.writing = None;
        if let Err(e) = done {
            let lost = |batch: &Batch| -> Vec<(u64, u64)> {
                batch.changes.iter().map(|change| (change.at, change.end())).collect()
            };
            // What has come since is not written either.
            let lost = [lost(&batch), lost(&state.filling)].concat();
            state.failed = Some(Failure { kind: e.kind(), said: e.to_string(), lost });
        }
        // Nobody else has it now: it was lent out under the lock only.
        if let Some(mut batch) = Arc::into_inner(batch) {
            batch.clear();
            state.spare = batch;
        }
        shared.ended.notify_all();
    }
    state.thread = Thread::None;
    shared.ended.notify_all();
}

/// Carries a batch out; `order` is memory that is used again.
fn write_batch(shared: &Shared, batch: &Batch, order: &mut Vec<Change>) -> io::Result<()> {
    let file = &*shared.file;
    let writes = |change: &Change| matches!(change.what, What::Bytes(_));
    for changes in batch.changes.chunk_by(|a, b| writes(a) && writes(b)) {
        match changes {
            [Change { at, len, what: What::Punch }] => {
                // The host keeps the room: that is no loss.
                let _ = file.punch(*at, *len);
                continue;
            }
            [Change { at, len, what: What::Room(number) }] => {
                shared.reserve(*number, *at, *len);
                continue;
            }
            _ => {}
        }
        order.clear();
        order.extend_from_slice(changes);
        order.sort_unstable_by_key(|change| change.at);
        let overlap = order.windows(2).any(|pair| pair[0].end() > pair[1].at);
        if overlap && !mutant!("image.behind-sorts-overlaps") {
            order.copy_from_slice(changes);
        }
        for run in order.chunk_by(|a, b| a.end() == b.at) {
            run.chunks(PIECES_MAX).try_for_each(|run| write_run(file, batch, run))?;
        }
    }
    Ok(())
}

/// Writes that lie side by side in the file, as one.
fn write_run(file: &dyn HostFile, batch: &Batch, run: &[Change]) -> io::Result<()> {
    let bytes = |change: &Change| {
        let from = if let What::Bytes(from) = change.what { from } else { 0 };
        &batch.bytes[from..from + change.len as usize]
    };
    match run {
        [one] => file.write_at(one.at, bytes(one)),
        _ => {
            let parts: Vec<&[u8]> = run.iter().map(bytes).collect();
            file.write_parts(run[0].at, &parts)
        }
    }
}

#[cfg(test)]
mod tests;
