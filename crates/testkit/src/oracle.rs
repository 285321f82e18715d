//! The oracle: what each sector of a block device may contain, now and after a power cut.
//!
//! Owns: every acknowledged, flushed and discarded sector, and every request that is under way.
//! Promises: it admits exactly what FORMAT.md admits: a sector has one of the values whose request
//! is not wholly before another's (two unordered writes end in either); a read that overlaps a
//! write may see old or new; what was read once with nothing under way stays; after a cut a sector
//! has its flushed content or something younger, never another sector's.
//! Never: looks at the device; it is told of begin and end of each request, in the order in which
//! they happen (which virtual time makes exact).

use crate::content::{self, Found, Version};
use flashlane_base::Lba;
use flashlane_ftl::block::{BlockError, BlockOp, BlockResult};
use flashlane_rt::sync::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Order of events: a counter over all begins and ends.
type Seq = u64;
/// The end of what has not ended.
const UNDER_WAY: Seq = Seq::MAX;
/// In a read's snapshot: several values are possible, look them up.
const SEVERAL: Version = Version(u32::MAX);

/// A write or discard under way. Hand it back to [`Oracle::end_update`].
#[derive(Debug)]
#[must_use = "an update that never ends leaves its sectors undecided"]
pub struct Update {
    op: BlockOp,
    lba: Lba,
    /// Version of the first sector, the others follow; zeros for a discard.
    first: Version,
    sectors: u32,
    /// Durable when it has ended well.
    fua: bool,
    begin: Seq,
}

impl Update {
    fn version(&self, i: u32) -> Version {
        match self.op {
            BlockOp::Write => Version(self.first.0 + i),
            _ => Version::ZEROS,
        }
    }
}

/// A read under way. Hand it back to [`Oracle::check_read`].
#[derive(Debug)]
#[must_use = "a read that is not checked proves nothing"]
pub struct Reading {
    id: u64,
}

/// A flush under way. Hand it back to [`Oracle::end_flush`].
#[derive(Debug)]
#[must_use = "a flush that does not end covers nothing"]
pub struct Flushing {
    begin: Seq,
}

/// A device that did not do what it promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// A read gave what the sector can't contain.
    Content {
        lba: Lba,
        /// What would have been right.
        admissible: Vec<Version>,
        found: Found,
    },
    /// A request failed that must not fail.
    Failed { op: BlockOp, lba: Lba, sectors: u32, error: BlockError },
    /// A read error for a sector whose medium was never damaged.
    Unreadable { lba: Lba },
    /// A request outside the device was not refused.
    Accepted { op: BlockOp, lba: Lba, sectors: u32 },
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Content { lba, admissible, found } => {
                let names: Vec<String> = admissible.iter().map(|v| v.to_string()).collect();
                write!(f, "{lba} holds {found}; admissible: {}", names.join(" or "))
            }
            Wrong::Failed { op, lba, sectors, error } => {
                write!(f, "{op:?} of {sectors} sectors at {lba} failed: {error}")
            }
            Wrong::Unreadable { lba } => {
                write!(f, "read error at {lba}, whose medium was never damaged")
            }
            Wrong::Accepted { op, lba, sectors } => {
                write!(f, "invalid {op:?} of {sectors} sectors at {lba} was accepted")
            }
        }
    }
}

/// A sector that may have several values now.
#[derive(Default)]
struct Busy {
    /// Values of ended updates, none wholly before another: (value, end of its update).
    settled: Vec<(Version, Seq)>,
    /// Updates under way: (value, begin).
    under_way: Vec<(Version, Seq)>,
    /// The last begin or end.
    changed: Seq,
}

/// An update in a sector's past, as a power cut sees it.
#[derive(Clone, Copy, Debug)]
struct Past {
    version: Version,
    begin: Seq,
    end: Seq,
    fua: bool,
    /// False for an update that failed: it may have happened or not.
    certain: bool,
    /// The value of an unordered update that a read, which began then, showed to have come after this one.
    beaten_by: Option<(Version, Seq)>,
}

struct ActiveRead {
    lba: u64,
    begin: Seq,
    /// The value of each sector when the read began, or [`SEVERAL`].
    at_begin: Vec<Version>,
    /// Further admissible values: of several, or begun since.
    also: Vec<(u64, Version)>,
    /// Sectors whose medium was damaged before the read or while it was under way.
    damaged: BTreeSet<u64>,
}

struct State {
    seq: Seq,
    versions: u32,
    reads: u64,
    /// The one value of each sector that is not in `busy`.
    stable: Vec<Version>,
    busy: BTreeMap<u64, Busy>,
    active: BTreeMap<u64, ActiveRead>,
    /// Sectors whose medium was damaged at this time: a read error is admissible.
    damaged: BTreeMap<u64, Seq>,
    /// Versions whose medium was ever damaged: a cut may bring one back.
    hurt: BTreeMap<u64, BTreeSet<Version>>,
    /// What a cut leaves at least of each sector that is not in `past`.
    durable: Vec<Version>,
    past: BTreeMap<u64, Vec<Past>>,
    /// Begin of the last flush, by begin, that ended well: it covers every update ended before.
    flushed: Seq,
    /// A read error is admissible for every sector.
    any_error: bool,
}

pub struct Oracle {
    capacity: u64,
    content_bytes: usize,
    /// What is acknowledged is durable, as if every update were a FUA write.
    ack_is_durable: bool,
    state: Mutex<State>,
}

impl Oracle {
    /// For an empty device of `capacity` sectors, each of `content_bytes` (8 or 4096).
    pub fn new(capacity: u64, content_bytes: usize) -> Oracle {
        assert!(capacity < 1 << 32, "content names a sector in 32 bits");
        Oracle {
            capacity,
            content_bytes,
            ack_is_durable: false,
            state: Mutex::new(State {
                seq: 0,
                versions: 0,
                reads: 0,
                stable: vec![Version::ZEROS; capacity as usize],
                busy: BTreeMap::new(),
                active: BTreeMap::new(),
                damaged: BTreeMap::new(),
                hurt: BTreeMap::new(),
                durable: vec![Version::ZEROS; capacity as usize],
                past: BTreeMap::new(),
                flushed: 0,
                any_error: false,
            }),
        }
    }

    /// For a device whose buffer outlives a power cut: what it has acknowledged is durable.
    pub fn with_durable_acks(self, ack_is_durable: bool) -> Oracle {
        Oracle { ack_is_durable, ..self }
    }

    /// Is what was acknowledged durable, flushed or not?
    pub fn acks_are_durable(&self) -> bool {
        self.ack_is_durable
    }

    /// Sectors of the device.
    pub fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Bytes of content per sector.
    pub fn content_bytes(&self) -> usize {
        self.content_bytes
    }

    /// A write begins: fills `buf` with new content for `buf.len() / content_bytes` sectors.
    pub fn begin_write(&self, lba: Lba, fua: bool, buf: &mut [u8]) -> Update {
        let sectors = (buf.len() / self.content_bytes) as u32;
        let mut s = self.state.lock();
        let first = Version(s.versions + 1);
        s.versions += sectors;
        let durable = fua || self.ack_is_durable;
        let update = s.begin(BlockOp::Write, lba, first, sectors, durable);
        drop(s);
        for (i, sector) in buf.chunks_exact_mut(self.content_bytes).enumerate() {
            content::fill(Lba::new(lba.get() + i as u64), update.version(i as u32), sector);
        }
        update
    }

    pub fn begin_discard(&self, lba: Lba, sectors: u32) -> Update {
        let mut s = self.state.lock();
        s.begin(BlockOp::Discard, lba, Version::ZEROS, sectors, self.ack_is_durable)
    }

    /// An update has ended. One that failed may have happened or not, sector by sector.
    pub fn end_update(&self, update: Update, done: bool) {
        let mut s = self.state.lock();
        s.seq += 1;
        for i in 0..update.sectors {
            s.end_sector(update.lba.get() + i as u64, update.version(i), &update, done);
        }
    }

    pub fn begin_flush(&self) -> Flushing {
        let mut s = self.state.lock();
        s.seq += 1;
        Flushing { begin: s.seq }
    }

    /// A flush has ended; a failed one covers nothing.
    pub fn end_flush(&self, flushing: Flushing, done: bool) {
        let mut s = self.state.lock();
        s.seq += 1;
        if done {
            s.flushed = s.flushed.max(flushing.begin);
        }
    }

    pub fn begin_read(&self, lba: Lba, sectors: u32) -> Reading {
        let mut s = self.state.lock();
        let state = &mut *s;
        let (from, to) = (lba.get(), lba.get() + sectors as u64);
        let mut at_begin = state.stable[from as usize..to as usize].to_vec();
        let mut also = Vec::new();
        for (at, busy) in state.busy.range(from..to) {
            at_begin[(at - from) as usize] = SEVERAL;
            let values = busy.settled.iter().chain(&busy.under_way);
            also.extend(values.map(|(version, _)| (*at, *version)));
        }
        state.seq += 1;
        state.reads += 1;
        let damaged = state.damaged.range(from..to).map(|(at, _)| *at).collect();
        let read = ActiveRead { lba: from, begin: state.seq, at_begin, also, damaged };
        state.active.insert(state.reads, read);
        Reading { id: state.reads }
    }

    /// A read has ended with `result` and this in its buffer.
    pub fn check_read(
        &self,
        reading: Reading,
        buf: &[u8],
        result: &BlockResult,
    ) -> Result<(), Wrong> {
        let mut s = self.state.lock();
        let Some(read) = s.active.remove(&reading.id) else {
            return Ok(()); // a power cut came between
        };
        s.seq += 1;
        let failed = self.failed_sectors(&s, &read, result)?;
        for (i, sector) in buf.chunks_exact(self.content_bytes).enumerate() {
            let at = read.lba + i as u64;
            if failed.contains(&at) {
                continue;
            }
            let version = judge(&read, i, sector)?;
            s.settle(at, version, read.begin);
        }
        Ok(())
    }

    /// Which sectors the device says it could not read, if it may say so.
    fn failed_sectors(
        &self,
        s: &State,
        read: &ActiveRead,
        result: &BlockResult,
    ) -> Result<BTreeSet<u64>, Wrong> {
        let lbas = match result {
            Ok(()) => return Ok(BTreeSet::new()),
            Err(BlockError::Uncorrectable(lbas)) => lbas,
            Err(error) => {
                return Err(Wrong::Failed {
                    op: BlockOp::Read,
                    lba: Lba::new(read.lba),
                    sectors: read.at_begin.len() as u32,
                    error: error.clone(),
                });
            }
        };
        let admitted =
            |lba: u64| s.any_error || s.damaged.contains_key(&lba) || read.damaged.contains(&lba);
        match lbas.iter().find(|l| !admitted(l.get())) {
            Some(lba) => Err(Wrong::Unreadable { lba: *lba }),
            None => Ok(lbas.iter().map(|l| l.get()).collect()),
        }
    }

    /// The medium under this version of a sector was damaged: read errors are admissible until it
    /// is written or discarded again, and for reads under way that could have seen that version.
    pub fn admit_error(&self, lba: Lba, version: Version) {
        let mut s = self.state.lock();
        s.seq += 1;
        let (at, now) = (lba.get(), s.seq);
        s.hurt.entry(at).or_default().insert(version);
        for read in s.active.values_mut() {
            let i = at.wrapping_sub(read.lba) as usize;
            let seen = read.at_begin.get(i) == Some(&version) || read.also.contains(&(at, version));
            if seen {
                read.damaged.insert(at);
            }
        }
        let current = match s.busy.get(&at) {
            None => s.stable.get(at as usize) == Some(&version),
            Some(busy) => {
                let mut values = busy.settled.iter().chain(&busy.under_way);
                values.any(|(v, _)| *v == version)
            }
        };
        if current {
            s.damaged.insert(at, now);
        }
    }

    /// From now on read errors are admissible for these sectors, until they are written or
    /// discarded again.
    pub fn admit_errors(&self, lbas: impl Iterator<Item = Lba>) {
        for lba in lbas {
            let versions = [self.admissible(lba), self.admissible_after_cut(lba)].concat();
            versions.into_iter().for_each(|version| self.admit_error(lba, version));
        }
    }

    /// From now on read errors are admissible for every sector, because a part of the medium is
    /// gone. Content that is older than the flushed one stays inadmissible.
    pub fn admit_any_error(&self) {
        self.state.lock().any_error = true;
    }

    /// What the sector may contain now.
    pub fn admissible(&self, lba: Lba) -> Vec<Version> {
        let s = self.state.lock();
        match s.busy.get(&lba.get()) {
            None => vec![s.stable[lba.get() as usize]],
            Some(busy) => unique(busy.settled.iter().chain(&busy.under_way).map(|(v, _)| *v)),
        }
    }

    /// What a power cut now could leave of the sector.
    pub fn admissible_after_cut(&self, lba: Lba) -> Vec<Version> {
        self.state.lock().survivors(lba.get())
    }

    /// The power was cut and the device has come back: requests under way are gone, each sector
    /// has one of the values that a cut could leave, and which one the first read tells for good.
    pub fn power_cut(&self) {
        let mut s = self.state.lock();
        s.seq += 1;
        let now = s.seq;
        let back = |(at, hurt): (&u64, &BTreeSet<Version>)| {
            s.survivors(*at).iter().any(|v| hurt.contains(v)).then_some((*at, now))
        };
        let back: Vec<(u64, Seq)> = s.hurt.iter().filter_map(back).collect();
        s.damaged.extend(back);
        let sectors: Vec<u64> = s.past.keys().copied().collect();
        s.busy.clear();
        s.active.clear();
        for at in sectors {
            let left = s.survivors(at);
            if let [one] = left[..] {
                s.stable[at as usize] = one;
                s.durable[at as usize] = one;
                s.past.remove(&at);
                continue;
            }
            let past = |version: &Version| Past {
                version: *version,
                begin: now,
                end: now,
                fua: false,
                certain: true,
                beaten_by: None,
            };
            s.past.insert(at, left.iter().map(past).collect());
            let busy = Busy {
                settled: left.iter().map(|v| (*v, now)).collect(),
                under_way: Vec::new(),
                changed: now,
            };
            s.busy.insert(at, busy);
        }
        // What recovery found is durable: a second cut must find the same.
        s.flushed = now;
    }

    /// Versions drawn so far: one per sector written.
    pub fn sectors_written(&self) -> u64 {
        self.state.lock().versions as u64
    }
}

/// The version that a read found in its `i`-th sector, if it is one of the admissible ones.
fn judge(read: &ActiveRead, i: usize, sector: &[u8]) -> Result<Version, Wrong> {
    let lba = Lba::new(read.lba + i as u64);
    let at_begin = read.at_begin[i];
    if at_begin != SEVERAL && content::is(lba, at_begin, sector) {
        return Ok(at_begin);
    }
    let also = read.also.iter().filter(|(at, _)| *at == lba.get());
    let admissible = also.map(|(_, v)| *v);
    let admissible = match at_begin {
        SEVERAL => unique(admissible),
        one => unique(std::iter::once(one).chain(admissible)),
    };
    let found = admissible.iter().find(|v| content::is(lba, **v, sector));
    found.copied().ok_or_else(|| Wrong::Content {
        lba,
        admissible: admissible.clone(),
        found: content::name(sector),
    })
}

fn unique(versions: impl Iterator<Item = Version>) -> Vec<Version> {
    versions.collect::<BTreeSet<_>>().into_iter().collect()
}

impl State {
    fn begin(&mut self, op: BlockOp, lba: Lba, first: Version, sectors: u32, fua: bool) -> Update {
        self.seq += 1;
        let update = Update { op, lba, first, sectors, fua, begin: self.seq };
        for i in 0..sectors {
            self.begin_sector(lba.get() + i as u64, update.version(i), fua);
        }
        update
    }

    fn begin_sector(&mut self, at: u64, version: Version, fua: bool) {
        let begin = self.seq;
        let stable = self.stable[at as usize];
        let busy = self
            .busy
            .entry(at)
            .or_insert_with(|| Busy { settled: vec![(stable, 0)], ..Busy::default() });
        busy.under_way.push((version, begin));
        busy.changed = begin;
        for read in self.active.values_mut() {
            if (read.lba..read.lba + read.at_begin.len() as u64).contains(&at) {
                read.also.push((at, version));
            }
        }
        let (durable, flushed) = (self.durable[at as usize], self.flushed);
        let past = self.past.entry(at).or_insert_with(|| vec![Past::before_all(durable)]);
        // A hot sector would collect its whole history: forget what can't come back, now and then.
        if past.len() >= 16 && past.len().is_power_of_two() {
            forget(past, flushed);
        }
        past.push(Past { version, begin, end: UNDER_WAY, fua, certain: true, beaten_by: None });
    }

    fn end_sector(&mut self, at: u64, version: Version, update: &Update, done: bool) {
        let now = self.seq;
        let begin = update.begin;
        let Some(busy) = self.busy.get_mut(&at) else {
            return; // a power cut came between
        };
        let Some(i) = busy.under_way.iter().position(|w| *w == (version, begin)) else {
            return;
        };
        busy.under_way.swap_remove(i);
        if done {
            busy.settled.retain(|(_, end)| *end >= begin);
        }
        busy.settled.push((version, now));
        busy.changed = now;
        if let ([(one, _)], []) = (&busy.settled[..], &busy.under_way[..]) {
            self.stable[at as usize] = *one;
            self.busy.remove(&at);
        }
        if done && self.damaged.get(&at).is_some_and(|since| *since < begin) {
            self.damaged.remove(&at);
        }
        let Some(past) = self.past.get_mut(&at) else {
            return;
        };
        if let Some(p) = past.iter_mut().find(|p| (p.version, p.begin) == (version, begin)) {
            p.end = now;
            p.certain = done;
        }
        if update.fua {
            forget(past, self.flushed);
        }
    }

    /// A read that began at `begin` saw `version`. With nothing under way since then, that is what
    /// the sector holds, and the other candidates came before it.
    fn settle(&mut self, at: u64, version: Version, begin: Seq) {
        let Some(busy) = self.busy.get(&at) else {
            return;
        };
        if busy.changed > begin || !busy.under_way.is_empty() {
            return;
        }
        let losers: Vec<Version> = busy.settled.iter().map(|(v, _)| *v).collect();
        self.busy.remove(&at);
        self.stable[at as usize] = version;
        let Some(past) = self.past.get_mut(&at) else {
            return;
        };
        // Zeros have no version of their own to tell one discard from another, but here all have lost.
        for p in past.iter_mut() {
            if p.version != version && losers.contains(&p.version) {
                p.beaten_by = Some((version, begin));
            }
        }
        forget(past, self.flushed);
    }

    fn survivors(&self, at: u64) -> Vec<Version> {
        let Some(past) = self.past.get(&at) else {
            return vec![self.durable[at as usize]];
        };
        let mut past = past.clone();
        forget(&mut past, self.flushed);
        unique(past.iter().map(|p| p.version))
    }
}

impl Past {
    fn before_all(version: Version) -> Past {
        Past { version, begin: 0, end: 0, fua: false, certain: true, beaten_by: None }
    }

    /// It must survive, or something that is not wholly before it.
    fn is_durable(&self, flushed: Seq) -> bool {
        self.certain && self.end != UNDER_WAY && (self.end <= flushed || self.fua)
    }
}

/// Drops what a durable update has replaced for good: what ended before that update began, or was
/// seen to have come before it. Zeros tell no discard from another: then every one that may have come
/// after must be durable.
fn forget(past: &mut Vec<Past>, flushed: Seq) {
    let durable = past.iter().filter(|p| p.is_durable(flushed));
    let Some(begin) = durable.map(|p| p.begin).max() else {
        return;
    };
    let all = past.clone();
    past.retain(|p| {
        let is_beaten = p.beaten_by.is_some_and(|(by, seen)| {
            let mut by = all
                .iter()
                .filter(|other| other.version == by && other.begin <= seen && other.end >= p.begin)
                .peekable();
            by.peek().is_some() && by.all(|other| other.is_durable(flushed))
        });
        p.end >= begin && !is_beaten
    });
}
