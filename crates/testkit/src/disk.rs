//! The host's disk under an image: what is left of a file when the process or the host goes.
//!
//! Owns: [`Disk`], a file in memory that knows what of it is synced. Promises: what was synced is
//! there after any loss; of the rest each piece of 512 bytes is there or not, in any version that it
//! had since the last sync; after a kill of the process everything written is there. It keeps no
//! history behind a sync, so a long run takes little memory. Never: fails.

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

#[derive(Debug, Default)]
pub struct Disk(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// As of the last sync.
    durable: Vec<u8>,
    /// As the process sees it; its log is what was done since the last sync.
    live: MemoryFile,
}

impl Disk {
    /// A disk with this file on it, all of it durable.
    pub fn new(bytes: Vec<u8>) -> Disk {
        Disk(Mutex::new(State { live: MemoryFile::new(bytes.clone()), durable: bytes }))
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

impl HostFile for Disk {
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<()> {
        self.state().live.read_at(at, into)
    }
    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.state().live.write_at(at, bytes)
    }
    fn punch(&self, at: u64, len: u64) -> io::Result<()> {
        self.state().live.punch(at, len)
    }
    fn allocate(&self, at: u64, len: u64) -> io::Result<()> {
        self.state().live.allocate(at, len)
    }
    fn sync(&self) -> io::Result<()> {
        let state = &mut *self.state();
        for op in state.live.take_log() {
            op.play_on(&mut state.durable);
        }
        Ok(())
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
}
