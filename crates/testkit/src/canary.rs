//! A block device that breaks one promise once: every harness must notice.
//!
//! Owns: four ways to cheat (a lost write, flush or discard, another sector's content) and the
//! search for a request at which cheating can be seen at all. Promises: its record says, also of
//! the cheating run itself, whether there was a witness. Never: cheats more than once.
//!
//! A lost write that is overwritten before anybody reads it is not wrong. So a canary first scouts:
//! it runs honestly and records which requests had a witness; then one of them is sabotaged. The
//! cheat may shift the times of what follows, so the second run keeps its own record.

use crate::ram::range;
use flashlane_base::Lba;
use flashlane_ftl::block::{
    BlockDev, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, SectorsMut, Started,
};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSliceMut;
use std::sync::Arc;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Cheat {
    /// Acknowledges a write that it did not do.
    LoseWrite,
    /// Acknowledges a discard that it did not do.
    LoseDiscard,
    /// Acknowledges a flush that it did not do.
    LoseFlush,
    /// Returns another sector's content.
    MixUp,
}

pub const CHEATS: [Cheat; 4] =
    [Cheat::LoseWrite, Cheat::LoseDiscard, Cheat::LoseFlush, Cheat::MixUp];

impl Cheat {
    fn on(self) -> BlockOp {
        match self {
            Cheat::LoseWrite => BlockOp::Write,
            Cheat::LoseDiscard => BlockOp::Discard,
            Cheat::LoseFlush => BlockOp::Flush,
            Cheat::MixUp => BlockOp::Read,
        }
    }
}

/// The last update of a sector, as far as a witness is concerned.
#[derive(Clone, Copy)]
struct Last {
    op: BlockOp,
    index: u64,
    /// Under way updates of the sector.
    under_way: u32,
    /// Nobody else's update overlapped it, and it changed what the sector holds.
    telling: bool,
}

#[derive(Default)]
struct Record {
    /// Requests begun, by operation.
    begun: BTreeMap<BlockOp, u64>,
    last: BTreeMap<u64, Last>,
    /// Requests whose loss somebody would have seen.
    witnessed: BTreeSet<(Cheat, u64)>,
    /// Updates acknowledged since the last flush: sector → number of the update.
    dirty: BTreeMap<u64, u64>,
    /// The last flush that had something to do, and for which sectors.
    flush: Option<(u64, BTreeSet<u64>)>,
    /// A sector with content, for a mix-up.
    other: Option<(u64, Vec<u8>)>,
    updates: u64,
    cheated: bool,
}

pub struct Canary {
    inner: Arc<dyn BlockDev>,
    cheat: Option<(Cheat, u64)>,
    record: Mutex<Record>,
}

impl Canary {
    /// Honest, and takes notes.
    pub fn scout(inner: Arc<dyn BlockDev>) -> Canary {
        Canary { inner, cheat: None, record: Mutex::default() }
    }

    /// Cheats at the `index`-th request of its operation.
    pub fn cheating(inner: Arc<dyn BlockDev>, cheat: Cheat, index: u64) -> Canary {
        Canary { cheat: Some((cheat, index)), ..Canary::scout(inner) }
    }

    /// Requests of this kind whose sabotage a checking host can't miss. For flushes: only with a
    /// power cut at the end of the recorded run that keeps no more than it must.
    pub fn witnessed(&self, cheat: Cheat) -> Vec<u64> {
        let r = self.record.lock();
        match (cheat, &r.flush) {
            (Cheat::LoseFlush, Some((index, sectors))) if !sectors.is_empty() => vec![*index],
            _ => {
                let all = r.witnessed.iter().filter(|(c, _)| *c == cheat);
                all.map(|(_, index)| *index).collect()
            }
        }
    }

    pub fn has_cheated(&self) -> bool {
        self.record.lock().cheated
    }

    async fn serve(&self, cx: &Cx, mut io: Io<'_>) -> BlockResult {
        let (op, lba, sectors, fua) = (io.op, io.lba, io.sectors, io.fua);
        let (index, seen, covered) = {
            let mut r = self.record.lock();
            let index = r.begin(op, lba, sectors);
            let seen = r.seen_by_read(op, lba, sectors);
            let covered = match op {
                BlockOp::Flush => r.dirty.clone(),
                _ => BTreeMap::new(),
            };
            (index, seen, covered)
        };
        let cheat = self.cheat.filter(|(c, at)| c.on() == op && *at == index);
        let lose = cheat.is_some_and(|(c, _)| c != Cheat::MixUp);
        let result = if lose {
            self.record.lock().cheated = true;
            cx.yield_now().await;
            Ok(())
        } else {
            // What was read is looked at afterwards, so the memory is only lent.
            let mut pieces: Vec<IoSliceMut<'_>>;
            let payload = match &mut io.payload {
                Payload::Read(SectorsMut::One(bytes)) => Payload::Read(SectorsMut::One(bytes)),
                Payload::Read(SectorsMut::Many(theirs)) => {
                    pieces = theirs.iter_mut().map(|piece| IoSliceMut::new(piece)).collect();
                    Payload::Read(SectorsMut::Many(&mut pieces))
                }
                Payload::Write(from) => Payload::Write(*from),
                Payload::None => Payload::None,
            };
            self.inner.start(cx, Io { op, lba, sectors, fua, hint: io.hint, payload }).await
        };
        let mut r = self.record.lock();
        match op {
            BlockOp::Read => {
                if let (Ok(()), Payload::Read(to)) = (&result, &mut io.payload) {
                    r.end_read(&seen);
                    let first = to.sector(0, self.inner.info().content_bytes);
                    r.mix_up(index, lba, first, cheat.is_some());
                }
            }
            BlockOp::Write | BlockOp::Discard => r.end_update(op, lba, sectors, fua),
            BlockOp::Flush => r.end_flush(index, covered),
        }
        result
    }
}

impl Record {
    fn begin(&mut self, op: BlockOp, lba: Lba, sectors: u32) -> u64 {
        let count = self.begun.entry(op).or_default();
        let index = *count;
        *count += 1;
        if !matches!(op, BlockOp::Write | BlockOp::Discard) {
            return index;
        }
        for at in range(lba, sectors) {
            let before = self.last.get(&at).copied();
            let others = before.map_or(0, |b| b.under_way);
            let was_content = before.is_some_and(|b| b.op == BlockOp::Write && b.telling);
            let last = Last {
                op,
                index,
                under_way: others + 1,
                telling: others == 0 && (op == BlockOp::Write || was_content),
            };
            self.last.insert(at, last);
        }
        index
    }

    /// Sectors of a read whose last update has ended and would be missed: (sector, update).
    fn seen_by_read(&self, op: BlockOp, lba: Lba, sectors: u32) -> Vec<(u64, BlockOp, u64)> {
        if op != BlockOp::Read {
            return Vec::new();
        }
        let told = |(at, l): (&u64, &Last)| {
            (l.telling && l.under_way == 0).then_some((*at, l.op, l.index))
        };
        self.last.range(range(lba, sectors)).filter_map(told).collect()
    }

    fn end_read(&mut self, seen: &[(u64, BlockOp, u64)]) {
        for (at, op, index) in seen {
            let unchanged = |l: &Last| (l.op, l.index) == (*op, *index);
            if self.last.get(at).is_some_and(unchanged) {
                let cheat = match op {
                    BlockOp::Write => Cheat::LoseWrite,
                    _ => Cheat::LoseDiscard,
                };
                self.witnessed.insert((cheat, *index));
            }
        }
    }

    /// Remembers a sector with content, and has the chosen read return it in place of its own.
    fn mix_up(&mut self, index: u64, lba: Lba, first: &mut [u8], now: bool) {
        if let Some((_, content)) = self.other.as_ref().filter(|(at, _)| *at != lba.get()) {
            self.witnessed.insert((Cheat::MixUp, index));
            if now {
                self.cheated = true;
                first.copy_from_slice(content);
                return;
            }
        }
        if first.iter().any(|b| *b != 0) {
            self.other = Some((lba.get(), first.to_vec()));
        }
    }

    fn end_update(&mut self, op: BlockOp, lba: Lba, sectors: u32, fua: bool) {
        self.updates += 1;
        for at in range(lba, sectors) {
            if let Some(last) = self.last.get_mut(&at) {
                last.under_way -= 1;
                // Overlapped updates settle in either order: none of them can be missed.
                last.telling &= last.under_way == 0;
            }
            // A discard of what is zeros anyway has no witness; a FUA write needs no flush.
            if !fua && op == BlockOp::Write {
                self.dirty.insert(at, self.updates);
                continue;
            }
            self.dirty.remove(&at);
            if let Some((_, sectors)) = &mut self.flush {
                sectors.remove(&at);
            }
        }
    }

    fn end_flush(&mut self, index: u64, covered: BTreeMap<u64, u64>) {
        self.dirty.retain(|at, update| covered.get(at) != Some(update));
        // A later flush would do what the lost one did not, so only the last one counts.
        self.flush = Some((index, covered.into_keys().collect()));
    }
}

impl BlockDev for Canary {
    fn info(&self) -> &BlockInfo {
        self.inner.info()
    }
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        Started::later(self.serve(cx, io))
    }
    fn expect(&self, op: BlockOp, lba: Lba) {
        self.inner.expect(op, lba);
    }
    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.inner.extent(lba, most)
    }
}
