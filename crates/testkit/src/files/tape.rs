//! A device in memory whose every command is kept, so that it can be had as it was behind each.
//!
//! Owns: [`Disk`] (sectors that are shared until they change), [`Tape`] (the device), what a cut leaves.
//! Promises: a copy of a disk costs nothing; commands end in the order of the tape; what was flushed
//! is on every disk that a cut leaves, and of the rest any part may be. Never: fails.

use flashlane_base::{Lba, Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::block::{
    BlockDev, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Started,
};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;

type Sector = Arc<[u8]>;

/// What lies on a device: sectors that nobody has written are zeros.
#[derive(Clone, Default)]
pub struct Disk {
    /// Shared by all copies.
    base: Arc<BTreeMap<u64, Sector>>,
    over: BTreeMap<u64, Sector>,
}

impl Disk {
    fn read(&self, at: u64, into: &mut [u8]) {
        match self.over.get(&at).or_else(|| self.base.get(&at)) {
            Some(sector) => into.copy_from_slice(sector),
            None => into.fill(0),
        }
    }

    /// Tells it from others of the same tape: which content each sector has.
    pub fn identity(&self) -> Vec<(u64, usize)> {
        self.over.iter().map(|(at, sector)| (*at, sector.as_ptr() as usize)).collect()
    }

    /// The same, of which copies cost nothing.
    pub fn settled(self) -> Disk {
        let mut base = Arc::unwrap_or_clone(self.base);
        base.extend(self.over);
        Disk { base: Arc::new(base), over: BTreeMap::new() }
    }
}

/// What a command did.
#[derive(Clone)]
enum Step {
    Write(u64, Sector),
    /// What had been written before so many steps is durable: the flush began then.
    Flush(usize),
}

/// Which part of what was not flushed a cut leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    All,
    None,
    /// Of each sector any content since the flush, or the one before.
    Drawn(u64),
}

/// Who is told of each command, when it has ended: how many there are.
type Told = Arc<dyn Fn(usize) + Send + Sync>;

struct State {
    told: Told,
    disk: Disk,
    steps: Vec<Step>,
    /// Ends of commands: how many steps there were then.
    ends: Vec<usize>,
    rng: Rng,
}

/// A device that keeps its commands.
pub struct Tape {
    info: BlockInfo,
    first: Disk,
    state: Mutex<State>,
}

/// Steps of a request take this long at most, so that requests overlap in other orders with each seed.
const LATENCY_MAX: Ns = Ns::from_us(20);

impl Tape {
    pub fn new(disk: Disk, capacity: u64, seed: u64) -> Tape {
        let rng = Rng::stream(seed, "tape", 0);
        let (steps, ends, told): (_, _, Told) = (Vec::new(), Vec::new(), Arc::new(|_| {}));
        let state = State { told, disk: disk.clone(), steps, ends, rng };
        let info = BlockInfo { capacity, content_bytes: SECTOR_BYTES, layer: "tape" };
        Tape { info, first: disk, state: Mutex::new(state) }
    }

    /// Tells somebody of each command from now on.
    pub fn tell(&self, told: impl Fn(usize) + Send + Sync + 'static) {
        self.state.lock().told = Arc::new(told);
    }

    /// Commands that have ended: writes and flushes.
    pub fn commands(&self) -> usize {
        self.state.lock().ends.len()
    }

    /// What a cut behind so many commands leaves.
    pub fn cut(&self, commands: usize, left: Left) -> Disk {
        let s = self.state.lock();
        let steps = commands.checked_sub(1).map_or(0, |last| s.ends[last]);
        let mut disk = self.first.clone();
        let mut rng = match left {
            Left::Drawn(seed) => Rng::stream(seed, "tape.cut", 0),
            _ => Rng::new(0),
        };
        // Sectors since the last flush, with all that they were, and when.
        let mut open: BTreeMap<u64, Vec<(usize, Sector)>> = BTreeMap::new();
        for (number, step) in s.steps[..steps].iter().enumerate() {
            match step {
                Step::Write(at, sector) => {
                    open.entry(*at).or_default().push((number, sector.clone()));
                }
                Step::Flush(before) => {
                    for (at, all) in &mut open {
                        let durable = all.partition_point(|(number, _)| number < before);
                        let last = all.drain(..durable).next_back();
                        disk.over.extend(last.map(|(_, sector)| (*at, sector)));
                    }
                    open.retain(|_, all| !all.is_empty());
                }
            }
        }
        for (at, all) in open {
            let which = match left {
                Left::All => all.len(),
                Left::None => 0,
                Left::Drawn(_) => rng.below(all.len() as u64 + 1) as usize,
            };
            let kept = which.checked_sub(1).map(|i| (at, all[i].1.clone()));
            disk.over.extend(kept);
        }
        disk
    }

    async fn serve(&self, cx: &Cx, mut io: Io<'_>) -> BlockResult {
        io.check(&self.info)?;
        if io.op == BlockOp::Read {
            let s = self.state.lock();
            if let Payload::Read(to) = &mut io.payload {
                for i in 0..io.sectors {
                    s.disk.read(io.lba.get() + u64::from(i), to.sector(i, SECTOR_BYTES));
                }
            }
            return Ok(());
        }
        let (span, before) = {
            let mut s = self.state.lock();
            (s.rng.below(LATENCY_MAX.as_ns() + 1), s.steps.len())
        };
        cx.sleep(Ns::from_ns(span)).await;
        let mut s = self.state.lock();
        let zeros: Sector = vec![0; SECTOR_BYTES].into();
        for i in 0..io.sectors {
            let at = io.lba.get() + u64::from(i);
            let sector: Sector = match &io.payload {
                Payload::Write(from) => from.from(i, SECTOR_BYTES).next().unwrap_or(&[]).into(),
                _ => zeros.clone(),
            };
            s.disk.over.insert(at, sector.clone());
            s.steps.push(Step::Write(at, sector));
        }
        if io.op == BlockOp::Flush {
            s.steps.push(Step::Flush(before));
        }
        let end = s.steps.len();
        s.ends.push(end);
        let (told, commands) = (s.told.clone(), s.ends.len());
        drop(s);
        told(commands);
        Ok(())
    }
}

impl BlockDev for Tape {
    fn info(&self) -> &BlockInfo {
        &self.info
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(self.serve(cx, io))
    }
    fn expect(&self, _: BlockOp, _: Lba) {}
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        Extent::of(&self.info, lba, most, |_| true)
    }
}
