//! The host's disk under an image: what is left of a file when the process or the host goes.
//!
//! Owns: [`Disk`], a file in memory that knows what of it is synced. Promises: what was synced is
//! there after any loss; of the rest each piece of 512 bytes is there or not, in any version that it
//! had since the last sync; after a kill of the process everything written is there. It keeps no
//! history after a sync, so a long run takes little memory. Never: fails, unless it was told to
//! ([`Trouble`]).

use flashlane_base::Rng;
use flashlane_media::host::HostFile;
use flashlane_media::host::memory::{MemoryFile, Moment};
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// How a life on a disk ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// The process is killed; the host keeps what it wrote.
    Process,
    /// The host loses its power.
    Host,
}

/// The operations of a host's disk that fail, and how.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// Reads fail: EIO.
    Read,
    /// Writes fail, and nothing of them is written: EIO.
    Write,
    /// Writes fail after a part of them, which may end within a piece of 512 bytes.
    Short,
    /// The file can't grow, and gets no room for holes: ENOSPC.
    Full,
    /// Syncs fail, and the host forgets what it had not written: the next sync is a success.
    Sync,
}

/// How long a host's disk works, and how often it fails then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trouble {
    pub fault: DiskFault,
    /// Operations that succeed before the first one fails.
    pub after: u64,
    /// Operations that fail; then the disk works again.
    pub times: u64,
}

impl Trouble {
    pub fn draw(rng: &mut Rng) -> Trouble {
        let all =
            [DiskFault::Read, DiskFault::Write, DiskFault::Short, DiskFault::Full, DiskFault::Sync];
        let fault = all[rng.below(all.len() as u64) as usize];
        let (after, times) = (rng.below(9), rng.below(8));
        let times = if times == 0 { u64::MAX } else { 1 << (2 * times) };
        Trouble { fault, after: rng.below(1 << after), times }
    }
}

#[derive(Debug, Default)]
pub struct Disk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    trouble: Option<Trouble>,
    /// As of the last sync.
    durable: Vec<u8>,
    /// As the process sees it; its log is what was done since the last sync.
    live: MemoryFile,
}

impl Disk {
    /// A disk with this file on it, all of it durable.
    pub fn new(bytes: Vec<u8>) -> Disk {
        let live = MemoryFile::new(bytes.clone());
        Disk(Mutex::new(State { live, durable: bytes, trouble: None }))
    }

    /// Sets how the disk fails from now on; `None`: it works.
    pub fn set_trouble(&self, trouble: Option<Trouble>) {
        self.state().trouble = trouble;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The file that the next process finds.
    pub fn after(&self, loss: Loss, rng: &mut Rng) -> Disk {
        let state = self.state();
        let log = state.live.log();
        Disk::new(match loss {
            Loss::Process => state.live.bytes(),
            Loss::Host => {
                // From almost nothing to almost all of what was not synced.
                let keep = 1 + rng.below(7);
                Moment::new(&state.durable, &log, log.len()).sample(rng, keep)
            }
        })
    }
}

impl State {
    /// True if the operation under way fails by this fault.
    fn fails(&mut self, fault: DiskFault) -> bool {
        let Some(trouble) = self.trouble.as_mut().filter(|t| t.fault == fault) else {
            return false;
        };
        if trouble.after > 0 {
            trouble.after -= 1;
            return false;
        }
        let fails = trouble.times > 0;
        trouble.times = trouble.times.saturating_sub(1);
        fails
    }
}

fn eio() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error())
}

fn enospc() -> io::Error {
    io::Error::from_raw_os_error(rustix::io::Errno::NOSPC.raw_os_error())
}

impl HostFile for Disk {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        let mut state = self.state();
        match state.fails(DiskFault::Read) {
            true => Err(eio()),
            false => state.live.read_at(at, into),
        }
    }
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut state = self.state();
        let grows = at + bytes.len() as u64 > state.live.len()?;
        if grows && state.fails(DiskFault::Full) {
            return Err(enospc());
        }
        if state.fails(DiskFault::Write) {
            return Err(eio());
        }
        if state.fails(DiskFault::Short) {
            state.live.write_at(at, &bytes[..bytes.len() / 3])?;
            return Err(enospc());
        }
        state.live.write_at(at, bytes)
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.state().live.punch(at, len)
    }
    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        let mut state = self.state();
        match state.fails(DiskFault::Full) {
            true => Err(enospc()),
            false => state.live.allocate(at, len),
        }
    }
    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.state();
        let failed = state.fails(DiskFault::Sync);
        for op in state.live.take_log() {
            if !failed {
                op.play_on(&mut state.durable);
            }
        }
        if failed { Err(eio()) } else { Ok(()) }
    }
    fn len(&self) -> io::Result<u64> {
        self.state().live.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.state().live.set_len(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_synced_is_there_and_the_rest_may_be() {
        let disk = Disk::default();
        disk.write_at(0, &[1; 2048]).expect("written");
        disk.sync().expect("synced");
        disk.write_at(512, &[2; 1024]).expect("written");
        disk.write_at(512, &[3; 512]).expect("written");
        let bytes = |disk: &Disk| disk.state().live.bytes();
        let killed = bytes(&disk.after(Loss::Process, &mut Rng::new(1)));
        assert_eq!((killed[512], killed[1024], killed[1536]), (3, 2, 1));
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let lost = bytes(&disk.after(Loss::Host, &mut Rng::new(seed)));
            assert!((lost.len(), lost[0], lost[1536]) == (2048, 1, 1), "synced");
            seen.insert((lost[512], lost[1024]));
        }
        assert_eq!(seen.len(), 6, "each piece by itself, in any version: {seen:?}");
    }

    /// A failed sync makes nothing durable, and neither does the good one after it.
    #[test]
    fn a_failed_sync_forgets() {
        let disk = Disk::new(vec![0; 1024]);
        disk.set_trouble(Some(Trouble { fault: DiskFault::Sync, after: 1, times: 1 }));
        disk.write_at(0, &[1; 512]).expect("written");
        disk.sync().expect("the first is good");
        disk.write_at(512, &[2; 512]).expect("written");
        assert!(disk.sync().is_err());
        disk.sync().expect("the host has given up");
        assert_eq!(disk.state().live.bytes()[512], 2, "the process still sees it");
        let lost = disk.after(Loss::Host, &mut Rng::new(1)).state().live.bytes();
        assert_eq!((lost[0], lost[512]), (1, 0));
    }

    /// A short write leaves a part, which ends within a piece.
    #[test]
    fn a_short_write_leaves_a_part() {
        let disk = Disk::new(vec![0; 2048]);
        disk.set_trouble(Some(Trouble { fault: DiskFault::Short, after: 0, times: 1 }));
        assert!(disk.write_at(0, &[7; 2048]).is_err());
        let bytes = disk.state().live.bytes();
        assert_eq!((bytes[681], bytes[682]), (7, 0));
        disk.write_at(0, &[7; 2048]).expect("it was once");
    }
}
