//! A file in memory that remembers what was done to it, and what a power loss may leave of it.
//!
//! Owns: [`MemoryFile`], its log of operations, the crash images that follow from it. Promises: what
//! was synced is in every crash image; of the rest any piece of 512 bytes may be there or not, in
//! any version it had since the last sync, as disks and file systems do it. Never: touches a disk.

use super::HostFile;
use flashlane_base::Rng;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// What tears: a write's pieces of this many bytes are each there or not.
pub const TEAR_BYTES: u64 = 512;
/// A piece of a file.
type Piece = [u8; TEAR_BYTES as usize];

/// What was done to a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileOp {
    /// Bytes were written at an offset.
    Write(u64, Vec<u8>),
    /// A range (first byte, length) was given back.
    Punch(u64, u64),
    /// A range (first byte, length) was reserved.
    Allocate(u64, u64),
    /// The file got this length.
    SetLen(u64),
    /// Everything before became durable.
    Sync,
    /// A sync failed. The host shows what was written since the last one, and will never write it.
    SyncForgot,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    log: Vec<FileOp>,
    /// Operations that still succeed before one fails, and with what.
    fuse: Option<(u64, io::ErrorKind)>,
    /// Syncs that still succeed before one fails and forgets.
    forget: Option<u64>,
    /// The error stays until the fuse is taken out.
    room: Option<u64>,
    /// See [`MemoryFile::clear_free_slots`].
    is_clear: bool,
}

/// A file in memory.
#[derive(Debug, Default)]
pub struct MemoryFile {
    state: Mutex<State>,
}

impl MemoryFile {
    /// A file that holds these bytes.
    pub fn new(bytes: Vec<u8>) -> MemoryFile {
        MemoryFile { state: Mutex::new(State { bytes, ..State::default() }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What it holds now.
    pub fn bytes(&self) -> Vec<u8> {
        self.state().bytes.clone()
    }

    /// What was done to it so far, in order.
    pub fn log(&self) -> Vec<FileOp> {
        self.state().log.clone()
    }

    /// As [`MemoryFile::log`], which is empty then.
    pub fn take_log(&self) -> Vec<FileOp> {
        std::mem::take(&mut self.state().log)
    }

    /// Operations so far.
    pub fn ops(&self) -> usize {
        self.state().log.len()
    }

    /// From the `n`-th changing operation on (0 is the next) all fail with `kind`.
    pub fn fail_after(&self, n: u64, kind: io::ErrorKind) {
        self.state().fuse = Some((n, kind));
    }

    /// The `n`-th sync (0 is the next) fails, alone. As file systems do it: what it was to write stays in
    /// the host's memory and is written no more.
    pub fn forget_at_sync(&self, n: u64) {
        self.state().forget = Some(n);
    }

    /// A disk with room for a file of this length and no more; `None` is no limit.
    pub fn limit(&self, bytes: Option<u64>) {
        self.state().room = bytes;
    }

    /// From now on nothing lies in a free slot, for tests that search the bytes.
    pub fn clear_free_slots(&self) {
        self.state().is_clear = true;
    }

    /// Takes the failure of [`MemoryFile::fail_after`] out.
    pub fn heal(&self) {
        self.state().fuse = None;
    }

    /// The file as pieces of 512 bytes that are not zero: 8 bytes of length, then for each piece 4
    /// bytes of number and its bytes. Small for a sparse file.
    pub fn pack(bytes: &[u8]) -> Vec<u8> {
        let mut out = (bytes.len() as u64).to_le_bytes().to_vec();
        for (i, piece) in bytes.chunks(TEAR_BYTES as usize).enumerate() {
            if piece.iter().any(|b| *b != 0) {
                out.extend((i as u32).to_le_bytes());
                out.extend(piece);
                out.resize(out.len() + TEAR_BYTES as usize - piece.len(), 0);
            }
        }
        out
    }

    /// The bytes of a packed file, at most `most` of them; what makes no sense is left out.
    pub fn unpack(packed: &[u8], most: usize) -> Vec<u8> {
        let (len, pieces) = packed.split_at(packed.len().min(8));
        let len = len.iter().rev().fold(0usize, |n, b| n << 8 | *b as usize).min(most);
        let mut bytes = vec![0; len];
        for piece in pieces.chunks(4 + TEAR_BYTES as usize) {
            let (number, piece) = piece.split_at(piece.len().min(4));
            let number = number.iter().rev().fold(0usize, |n, b| n << 8 | *b as usize);
            let from = number.saturating_mul(TEAR_BYTES as usize);
            for (to, b) in bytes.iter_mut().skip(from).zip(piece) {
                *to = *b;
            }
        }
        bytes
    }
}

impl State {
    /// Notes an operation, or fails it.
    fn begin(&mut self, op: FileOp) -> io::Result<()> {
        if let Some((left, kind)) = &mut self.fuse {
            if *left == 0 {
                return Err(io::Error::from(*kind));
            }
            *left -= 1;
        }
        let end = match &op {
            FileOp::Write(at, bytes) => at + bytes.len() as u64,
            FileOp::Allocate(at, len) => at + len,
            _ => 0,
        };
        if self.room.is_some_and(|room| end > room) {
            return Err(io::Error::from(io::ErrorKind::StorageFull));
        }
        self.log.push(op);
        Ok(())
    }

    fn grow(&mut self, end: u64) {
        if self.bytes.len() < end as usize {
            self.bytes.resize(end as usize, 0);
        }
    }
}

impl HostFile for MemoryFile {
    fn keeps_room(&self) -> bool {
        !self.state().is_clear
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let state = self.state();
        let range = at as usize..(at as usize).saturating_add(into.len());
        let bytes = state.bytes.get(range).ok_or(io::ErrorKind::UnexpectedEof)?;
        into.copy_from_slice(bytes);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        state.begin(FileOp::Write(at, bytes.to_vec()))?;
        state.grow(at + bytes.len() as u64);
        state.bytes[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin(FileOp::Punch(at, len))?;
        let end = (at + len).min(state.bytes.len() as u64) as usize;
        if let Some(hole) = state.bytes.get_mut(at as usize..end) {
            hole.fill(0);
        }
        Ok(())
    }

    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin(FileOp::Allocate(at, len))?;
        state.grow(at + len);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.forget {
            Some(0) => {
                state.forget = None;
                state.begin(FileOp::SyncForgot)?;
                Err(io::Error::from_raw_os_error(5)) // EIO
            }
            left => {
                state.forget = left.map(|n| n - 1);
                state.begin(FileOp::Sync)
            }
        }
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.state().bytes.len() as u64)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut state = self.state();
        state.begin(FileOp::SetLen(len))?;
        state.bytes.resize(len as usize, 0);
        Ok(())
    }
}

/// A file at a moment of its log: what is durable, and what is not.
pub struct Moment {
    durable: Vec<u8>,
    len: u64,
    /// Versions of each piece since the last sync, oldest first.
    versions: BTreeMap<u64, Vec<Piece>>,
}

impl Moment {
    /// The moment before operation `at` of `log`, on a file that was `start` (durable) before it.
    pub fn new(start: &[u8], log: &[FileOp], at: usize) -> Moment {
        let is_end = |op: &FileOp| matches!(op, FileOp::Sync | FileOp::SyncForgot);
        let ended = log[..at].iter().rposition(is_end).map_or(0, |i| i + 1);
        let mut durable = Image { bytes: start.to_vec() };
        for ops in log[..ended].split_inclusive(is_end) {
            let forgot = ops.last() == Some(&FileOp::SyncForgot);
            let is_lost =
                |op: &&FileOp| forgot && matches!(op, FileOp::Write(..) | FileOp::Punch(..));
            ops.iter().filter(|op| !is_lost(op)).for_each(|op| durable.play(op));
        }
        let mut live = Image { bytes: durable.bytes.clone() };
        let mut versions: BTreeMap<u64, Vec<Piece>> = BTreeMap::new();
        let mut len = durable.bytes.len() as u64;
        for op in &log[ended..at] {
            live.play(op);
            len = len.max(live.bytes.len() as u64);
            for piece in op.pieces(live.bytes.len() as u64) {
                let now = live.piece(piece);
                let seen = versions.entry(piece).or_default();
                let before = seen.last().copied().unwrap_or_else(|| durable.piece(piece));
                if now != before {
                    seen.push(now);
                }
            }
        }
        versions.retain(|_, seen| !seen.is_empty());
        Moment { durable: durable.bytes, len, versions }
    }

    /// How many crash images there are, as far as 64 bits count.
    pub fn count(&self) -> u64 {
        self.versions.values().fold(1, |n: u64, v| n.saturating_mul(v.len() as u64 + 1))
    }

    /// The `n`-th crash image: a digit per piece says which version is there, 0 the durable one.
    pub fn nth(&self, mut n: u64) -> Vec<u8> {
        self.image(|versions| {
            let digit = n % (versions + 1);
            n /= versions + 1;
            digit
        })
    }

    /// A crash image by chance: each piece kept with `keep` of 8.
    pub fn sample(&self, rng: &mut Rng, keep: u64) -> Vec<u8> {
        self.image(|versions| match rng.below(8) < keep {
            true => 1 + rng.below(versions),
            false => 0,
        })
    }

    fn image(&self, mut choose: impl FnMut(u64) -> u64) -> Vec<u8> {
        let mut bytes = self.durable.clone();
        bytes.resize(self.len as usize, 0);
        for (piece, versions) in &self.versions {
            let choice = choose(versions.len() as u64);
            if let Some(version) = choice.checked_sub(1).map(|v| &versions[v as usize]) {
                let from = (piece * TEAR_BYTES) as usize;
                let end = (from + version.len()).min(bytes.len());
                bytes[from..end].copy_from_slice(&version[..end - from]);
            }
        }
        bytes
    }
}

impl FileOp {
    /// Does it to a file that holds these bytes.
    pub fn play_on(&self, bytes: &mut Vec<u8>) {
        let mut image = Image { bytes: std::mem::take(bytes) };
        image.play(self);
        *bytes = image.bytes;
    }

    /// The pieces that an operation changes, in a file of `len` bytes.
    fn pieces(&self, len: u64) -> std::ops::Range<u64> {
        let (from, end) = match self {
            FileOp::Write(at, bytes) => (*at, at + bytes.len() as u64),
            FileOp::Punch(at, n) => (*at, (at + n).min(len)),
            FileOp::Allocate(..) | FileOp::SetLen(_) | FileOp::Sync | FileOp::SyncForgot => (0, 0),
        };
        from / TEAR_BYTES..end.div_ceil(TEAR_BYTES)
    }
}

/// A file that operations are played on.
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn play(&mut self, op: &FileOp) {
        let end = match op {
            FileOp::Write(at, bytes) => *at as usize + bytes.len(),
            FileOp::Allocate(at, len) => (at + len) as usize,
            _ => 0,
        };
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
        match op {
            FileOp::Write(at, bytes) => self.bytes[*at as usize..end].copy_from_slice(bytes),
            FileOp::Punch(at, len) => {
                let end = ((at + len) as usize).min(self.bytes.len());
                self.bytes[*at as usize..end].fill(0);
            }
            FileOp::SetLen(len) => self.bytes.resize(*len as usize, 0),
            FileOp::Allocate(..) | FileOp::Sync | FileOp::SyncForgot => {}
        }
    }

    fn piece(&self, number: u64) -> Piece {
        let mut piece = [0; TEAR_BYTES as usize];
        let from = (number * TEAR_BYTES) as usize;
        let bytes = self.bytes.get(from..).unwrap_or(&[]);
        let n = bytes.len().min(piece.len());
        piece[..n].copy_from_slice(&bytes[..n]);
        piece
    }
}
