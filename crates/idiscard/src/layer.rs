//! The way of a request, and the task in the background.
//!
//! Owns: [`Idiscard`]. Promises: a request goes on as it came, and its answer comes back as it was; one far
//! from any metadata costs a look at a bit, unless more than inodes is discarded; one that is looked at
//! waits for nothing but a discard at the same sector. After the start nothing is read but tables of
//! partitions and descriptors that have changed, and once all of a file system that was followed late,
//! while it is unmounted. It flushes at the start, behind that reading, and at the stop, where something
//! waits for that. Never: writes; discards what neither [`Shadow`] calls dead nor `pending.rs` gives out.
//!
//! [`Shadow`]: flashlane_ext4::Shadow

use crate::partitions::{HEAD as HEAD_BYTES, tables};
use crate::pending::Why;
use crate::state::{HEAD, State, Task, volume_bytes};
use crate::{Ghosts, IDISCARD};
use flashlane_base::{Lba, mutant};
use flashlane_ext4::{Content, Ext4Error, SECTOR, Shadow, Superblock};
use flashlane_ftl::block::{
    BlockDev, BlockError, BlockInfo, BlockOp, BlockResult, Extent, Io, Payload, Sectors,
    SectorsMut, Started,
};
use flashlane_ftl::layer::{Counted, Kind, Later, Layer, Saved, Seam, Settings, Stop};
use flashlane_ftl::stats::{FtlStats, Gauges};
use flashlane_rt::sync::{AtomicBool, AtomicU64, Mutex, Ordering};
use flashlane_rt::{Cx, Notify};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// Sectors that share a bit of what is looked at: 1 MiB.
const AREA: u64 = 256;
/// Sectors that are read at once.
const PIECE: u64 = 256;
/// Sectors that are discarded at once, at most.
const DISCARD_MOST: u64 = 1 << 14;
/// Logical partitions that are looked for.
const LOGICAL_MOST: usize = 64;

/// When a file system is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Before any request can come.
    Start,
    /// It has just begun: its descriptors only.
    InUse,
    /// Nobody uses it. Who mounts it writes its superblock first, and then nothing counts that was read.
    Unmounted,
}

/// See the crate.
pub struct Idiscard {
    below: Arc<dyn BlockDev>,
    info: BlockInfo,
    ghosts: Ghosts,
    /// A flush is looked at.
    awaits_flush: AtomicBool,
    /// How often what is looked at has changed.
    marks: AtomicU64,
    /// A bit per [`AREA`]: something in it is looked at.
    near: Box<[AtomicU64]>,
    state: Mutex<State>,
    /// For the task in the background, for requests that wait for a discard, for the stop.
    changed: Notify,
}

impl Idiscard {
    /// Reads what lies on the sectors below, and follows it.
    pub(crate) async fn start_on(
        cx: &Cx,
        below: Arc<dyn BlockDev>,
        ghosts: Ghosts,
    ) -> Arc<Idiscard> {
        let info = below.info().clone();
        let words = info.capacity.div_ceil(AREA).div_ceil(64);
        let layer = Arc::new(Idiscard {
            near: (0..words).map(|_| AtomicU64::new(0)).collect(),
            state: Mutex::new(State::new(info.capacity, ghosts)),
            awaits_flush: AtomicBool::new(false),
            marks: AtomicU64::new(0),
            changed: Notify::new(),
            below,
            info,
            ghosts,
        });
        layer.scan(cx, true).await;
        let (mine, clock) = (layer.clone(), cx.clone());
        cx.spawn(async move { mine.keep(&clock).await });
        layer
    }

    /// What there is to say since it was asked last.
    fn said(&self) -> Vec<String> {
        self.state.lock().said()
    }

    #[inline]
    fn is_near(&self, lba: Lba, sectors: u32) -> bool {
        if self.ghosts.follows_all() {
            return true;
        }
        let from = lba.get() / AREA;
        let to = (lba.get().saturating_add(u64::from(sectors.max(1))) - 1) / AREA;
        (from..=to).any(|area| {
            let word = self.near.get((area / 64) as usize);
            word.is_some_and(|word| word.load(Ordering::Relaxed) >> (area % 64) & 1 == 1)
        })
    }

    /// How often what is looked at has changed.
    pub(crate) fn marks(&self) -> u64 {
        self.marks.load(Ordering::Relaxed)
    }

    /// Sectors that are looked at.
    pub(crate) fn looked_at(&self) -> Vec<Range<u64>> {
        self.state.lock().watched_runs()
    }

    /// Everything that is looked at has its bit.
    fn mark(&self, state: &State) {
        self.marks.fetch_add(1, Ordering::Relaxed);
        let mut words = vec![0u64; self.near.len()];
        for run in state.watched_runs().into_iter().filter(|run| !run.is_empty()) {
            for area in run.start / AREA..=(run.end - 1) / AREA {
                if let Some(word) = words.get_mut((area / 64) as usize) {
                    *word |= 1 << (area % 64);
                }
            }
        }
        for (near, word) in self.near.iter().zip(words) {
            near.store(word, Ordering::Relaxed);
        }
    }

    /// A request is at what is looked at of these sectors from now on; not while a discard is.
    ///
    /// One that waits has what it had when it came: it decides from then on.
    fn enter(&self, op: BlockOp, sectors: &Range<u64>, waits: bool) -> Result<Vec<u64>, Vec<u64>> {
        let mut state = self.state.lock();
        let watched = state.watched(sectors);
        if state.is_discarding(&watched) {
            state.counts.waits += 1;
            if !waits && op != BlockOp::Read {
                state.begin_deciding();
            }
            return Err(watched);
        }
        state.begin(op, sectors, &watched);
        Ok(watched)
    }

    /// A request in an area where something is looked at.
    async fn look<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> BlockResult {
        let (op, lba) = (io.op, io.lba.get());
        let sectors = lba..lba.saturating_add(io.sectors.into());
        let content: Option<Sectors<'a>> = match &io.payload {
            Payload::Write(content) => Some(*content),
            _ => None,
        };
        // What can't be done changes nothing.
        if io.check(&self.info).is_err() {
            return self.below.start(cx, io).await;
        }
        let mut waits = false;
        let watched = loop {
            match self.enter(op, &sectors, waits) {
                Ok(watched) => break watched,
                Err(taken) => {
                    waits = true;
                    let is_free = || !self.state.lock().is_discarding(&taken);
                    self.changed.wait(cx, is_free).await;
                }
            }
        };
        let result = self.below.start(cx, io).await;
        if watched.is_empty() && !self.ghosts.follows_all() {
            return result;
        }
        let mut state = self.state.lock();
        if waits && op != BlockOp::Read {
            state.end_deciding();
        }
        let moved = state.end(op, &sectors, &watched, |sector| match (&result, content) {
            (Err(_), _) => Content::Unsure,
            (Ok(()), None) => Content::Gone,
            (Ok(()), Some(content)) => {
                let mut from = content.from((sector - lba) as u32, SECTOR);
                from.next().map_or(Content::Unsure, Content::Written)
            }
        });
        if moved {
            self.mark(&state);
        }
        self.awaits_flush.store(state.waits_for_flush(), Ordering::Relaxed);
        drop(state);
        self.changed.wake(cx);
        result
    }

    /// A flush for which something waits.
    async fn flush<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> BlockResult {
        let begins = self.state.lock().begin_flush();
        let result = self.below.start(cx, io).await;
        if begins {
            let mut state = self.state.lock();
            state.end_flush(result.is_ok());
            self.awaits_flush.store(state.waits_for_flush(), Ordering::Relaxed);
            drop(state);
            self.changed.wake(cx);
        }
        result
    }

    /// The task in the background.
    async fn keep(&self, cx: &Cx) {
        loop {
            let mut task = None;
            self.changed
                .wait(cx, || {
                    task = self.state.lock().next(DISCARD_MOST);
                    task.is_some()
                })
                .await;
            match task {
                Some(Task::Scan) => self.scan(cx, false).await,
                Some(Task::Learn(volume)) => self.take_in(cx, &volume, Reading::InUse).await,
                Some(Task::Complete(volume)) => {
                    self.take_in(cx, &volume, Reading::Unmounted).await;
                    self.state.lock().end_deciding();
                }
                Some(Task::Discard(sectors)) => {
                    self.discard(cx, sectors).await;
                    self.state.lock().end_discard();
                    self.changed.wake(cx);
                }
                Some(Task::Flush) => _ = self.flush(cx, Io::flush()).await,
                Some(Task::End) | None => break,
            }
        }
        self.state.lock().end_all();
        self.changed.wake(cx);
    }

    /// Discards what these sectors hold.
    async fn discard(&self, cx: &Cx, sectors: Range<u64>) {
        let mut at = sectors.start;
        while at < sectors.end {
            let most = sectors.end - at;
            let Extent { sectors, holds } = self.below.extent(Lba::new(at), most);
            let to = at + sectors.clamp(1, most);
            if holds {
                let io = Io::discard(Lba::new(at), (to - at) as u32);
                let done = self.below.start(cx, io).await;
                self.state.lock().discarded(at..to, done.is_ok());
            }
            at = to;
        }
    }

    pub(crate) fn below(&self) -> &dyn BlockDev {
        &*self.below
    }

    /// Each file system that is followed, with its first sector. Requests that are looked at wait meanwhile.
    pub(crate) fn each_shadow(&self, mut look: impl FnMut(u64, &Shadow)) {
        let state = self.state.lock();
        for volume in &state.volumes {
            if let Some(shadow) = &volume.shadow {
                look(volume.sectors.start, shadow);
            }
        }
    }

    pub(crate) async fn read(&self, cx: &Cx, sectors: Range<u64>) -> Result<Vec<u8>, BlockError> {
        let n = (sectors.end - sectors.start) as u32;
        let mut bytes = vec![0; n as usize * SECTOR];
        let payload = Payload::Read(SectorsMut::One(&mut bytes));
        let io = Io { payload, ..Io::read(Lba::new(sectors.start), n, &mut []) };
        self.below.start(cx, io).await?;
        Ok(bytes)
    }

    /// Looks for partitions and file systems. At the start nobody else is here, and everything is read.
    async fn scan(&self, cx: &Cx, at_start: bool) {
        let drive = self.info.capacity * SECTOR as u64;
        let head = self.read(cx, 0..HEAD.min(self.info.capacity)).await.unwrap_or_default();
        let whole = head.get(1024..2048).and_then(|b| b.try_into().ok());
        let is_whole =
            whole.is_some_and(|b| !matches!(Superblock::parse(b, drive), Err(Ext4Error::None(_))));
        let tables = if is_whole { None } else { Some(self.tables(cx, &head, drive).await) };
        let volumes: Vec<(Range<u64>, u64)> = {
            let mut state = self.state.lock();
            state.divide(tables);
            self.mark(&state);
            let new = state.volumes.iter().filter(|volume| volume.shadow.is_none());
            new.map(|volume| (volume.sectors.clone(), volume_bytes(volume))).collect()
        };
        for (sectors, bytes) in volumes {
            let first = sectors.start;
            let Ok(sector) = self.read(cx, first..first + 1).await else { continue };
            let Ok(sb) = sector[1024..2048].try_into() else { continue };
            let parsed = Superblock::parse(sb, bytes);
            {
                let mut state = self.state.lock();
                let at = state.volumes.iter().position(|v| v.sectors == sectors);
                let Some(at) = at.filter(|at| state.volumes[*at].shadow.is_none()) else {
                    continue;
                };
                match parsed {
                    Ok(sb) => state.follow(at, sb, !at_start),
                    Err(why) => {
                        state.cannot(first, &why);
                        continue;
                    }
                }
                self.mark(&state);
            }
            if at_start {
                self.take_in(cx, &sectors, Reading::Start).await;
            }
        }
        self.state.lock().say_if_none(at_start);
    }

    /// Tables of partitions, and the sectors in which they are.
    async fn tables(
        &self,
        cx: &Cx,
        head: &[u8],
        drive: u64,
    ) -> (crate::partitions::Tables, BTreeSet<u64>) {
        let mut at: BTreeSet<u64> = (0..HEAD.min(self.info.capacity)).collect();
        let mut found = tables(&head[..head.len().min(HEAD_BYTES)], drive);
        for (extended, block) in found.extended.clone() {
            let mut next = Some(extended.start);
            for _ in 0..LOGICAL_MOST {
                let Some(byte) = next.filter(|byte| byte + 512 <= drive) else { break };
                let sector = byte / SECTOR as u64;
                at.insert(sector);
                let Ok(bytes) = self.read(cx, sector..sector + 1).await else { break };
                let within = (byte % SECTOR as u64) as usize;
                let table = &bytes[within..within + 512];
                next = found.add_logical((&extended, block), byte, table, drive);
            }
        }
        (found, at)
    }

    /// Reads the descriptors of a file system, and what follows from them and nobody has seen. What is written
    /// meanwhile counts.
    async fn take_in(&self, cx: &Cx, volume: &Range<u64>, when: Reading) {
        for descriptors in [true, false] {
            let runs = match self.state.lock().shadow(volume) {
                Some(shadow) if descriptors => shadow.descriptors(),
                Some(shadow) if when != Reading::InUse => shadow.unseen(),
                _ => break,
            };
            for run in runs {
                let run = volume.start + run.start..volume.start + run.end;
                if !self.take_run(cx, volume, run, descriptors, when).await {
                    return;
                }
            }
        }
        let mut state = self.state.lock();
        match when {
            Reading::InUse => {
                if let Some(shadow) = state.shadow(volume) {
                    shadow.forget_unused();
                }
            }
            Reading::Start => state.completed(volume),
            Reading::Unmounted if state.is_quiet(volume) => state.completed(volume),
            Reading::Unmounted => {}
        }
    }

    /// Reads these sectors. False if that is over: somebody uses the file system now, or the drive ends.
    async fn take_run(
        &self,
        cx: &Cx,
        volume: &Range<u64>,
        run: Range<u64>,
        descriptors: bool,
        when: Reading,
    ) -> bool {
        let mut at = run.start;
        while at < run.end {
            self.state.lock().begin_reading();
            let most = (run.end - at).min(PIECE);
            let Extent { sectors, holds } = self.below.extent(Lba::new(at), most);
            let to = at + sectors.clamp(1, most);
            let bytes = match holds || descriptors {
                true => self.read(cx, at..to).await.map(Some),
                false => Ok(None),
            };
            let mut state = self.state.lock();
            let over = match when {
                Reading::Start => false,
                Reading::InUse => state.stops,
                Reading::Unmounted => !state.is_quiet(volume) && !mutant!("idiscard.reads-in-use"),
            };
            if over {
                return false;
            }
            if let Ok(bytes) = bytes
                && state.was_read(volume, at..to, bytes.as_deref())
            {
                self.mark(&state);
            }
            at = to;
        }
        true
    }
}

impl BlockDev for Idiscard {
    fn info(&self) -> &BlockInfo {
        &self.info
    }

    #[inline]
    fn start<'a>(&'a self, cx: &'a Cx, io: Io<'a>) -> Started<'a> {
        match io.op {
            BlockOp::Flush if self.awaits_flush.load(Ordering::Relaxed) => {
                Started::later(self.flush(cx, io))
            }
            BlockOp::Flush => self.below.start(cx, io),
            _ if !self.is_near(io.lba, io.sectors) => self.below.start(cx, io),
            _ => Started::later(self.look(cx, io)),
        }
    }

    fn expect(&self, op: BlockOp, lba: Lba) {
        self.below.expect(op, lba);
    }

    fn extent(&self, lba: Lba, most: u64) -> Extent {
        self.below.extent(lba, most)
    }
}

impl Layer for Idiscard {
    fn kind(&self) -> &'static dyn Kind {
        &IDISCARD
    }

    fn above(self: Arc<Self>) -> Seam {
        Seam::Block(self)
    }

    fn settings(&self) -> Settings {
        self.ghosts.to_settings()
    }

    fn stats(&self) -> Option<FtlStats> {
        None
    }

    fn gauges(&self) -> Option<Gauges> {
        None
    }

    fn counted(&self) -> Vec<Counted> {
        let state = self.state.lock();
        let counts = state.counts;
        let followed = state.volumes.iter().filter(|v| v.shadow.is_some()).count() as u64;
        let of = |why: Why| counts.others[why as usize];
        let numbers = [
            ("file_systems", followed),
            ("discards", counts.discards),
            ("discarded_sectors", counts.discarded_sectors),
            ("discarded_freed_sectors", of(Why::Freed)),
            ("discarded_journal_sectors", of(Why::Passed)),
            ("discarded_bitmap_sectors", of(Why::ZeroBitmap)),
            ("failed_discards", counts.failed),
            ("seen_sectors", counts.seen_sectors),
            ("waits", counts.waits),
        ];
        numbers.map(|(name, value)| Counted { name, value }).to_vec()
    }

    fn pages(&self) -> Vec<Counted> {
        self.count_pages()
    }

    fn pages_read<'a>(&'a self, cx: &'a Cx) -> Later<'a, Vec<Counted>> {
        Box::pin(self.read_pages(cx))
    }

    fn said(&self) -> Vec<String> {
        self.said()
    }

    fn discards(&self) -> bool {
        !self.ghosts.watch
    }

    /// As what it stands on.
    fn acks_are_durable(&self) -> bool {
        true
    }

    fn cuts_take_room(&self) -> bool {
        false
    }

    fn read_only(&self) -> Option<&'static str> {
        None
    }

    fn drain<'a>(&'a self, _: &'a Cx) -> Later<'a, ()> {
        Box::pin(std::future::ready(()))
    }

    /// What is dead by now is discarded first.
    fn stop<'a>(self: Arc<Self>, cx: &'a Cx, _: Stop) -> Later<'a, Result<(), BlockError>> {
        Box::pin(async move {
            self.state.lock().stops = true;
            self.changed.wake(cx);
            self.changed.wait(cx, || self.state.lock().ended).await;
            Ok(())
        })
    }

    fn walk(&self) -> Result<(), String> {
        Ok(())
    }

    fn state(&self) -> String {
        let counts = self.counted();
        let shown: Vec<String> = counts.iter().map(|c| format!("{} {}", c.name, c.value)).collect();
        shown.join(", ")
    }

    fn power_lost(&self) -> Option<Saved> {
        None
    }
}
