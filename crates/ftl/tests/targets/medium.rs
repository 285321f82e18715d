//! A medium over several lives: cuts, mounts, damage, the place of each structure.
//!
//! Owns: bringing a target up and switching it off ([`Medium::mount_until`], [`Bench::cut`]), the place of each
//! structure on the medium ([`Medium::log`] and its neighbours, decoded from what was written).
//! Promises: damage stays until its chunk is erased; what was written before a cut is told by the chunk
//! report. Never: looks into pblk other than through its public interface.

use crate::face::Truth;
pub(crate) use crate::face::{Spot, Stop, Wrote};
use crate::prelude::*;
use flashlane_ftl::log::format::{Anchor, LogBlock, LogBlockHeader, LogEntry};
use flashlane_ocssd::device::Device;
use std::future::poll_fn;
use std::pin::pin;

/// The medium, while the power is off and while it is on.
#[derive(Clone)]
pub(crate) struct Medium {
    pub(crate) setup: Setup,
    pub(crate) ssd: Arc<Ssd>,
    truth: Arc<Mutex<Truth>>,
    /// Version of each sector that is not zeros, as acknowledged.
    pub(crate) held: Rc<RefCell<BTreeMap<u64, u64>>>,
}

/// A block of the log with its place.
#[derive(Clone)]
pub(crate) struct LogAt {
    pub(crate) at: Spot,
    pub(crate) segment: u64,
    pub(crate) first_sequence: u64,
    pub(crate) header: LogBlockHeader,
    pub(crate) entries: Vec<LogEntry>,
}

/// A line as the log has it.
#[derive(Clone, Debug)]
pub(crate) struct LineAt {
    pub(crate) sequence: u64,
    pub(crate) chunks: Vec<u32>,
    /// Where its closing metadata lies.
    pub(crate) closed: Option<Vec<Extent>>,
}

/// How an attempt to mount ended.
#[allow(clippy::large_enum_variant)] // one at a time, in tests
pub(crate) enum Up {
    /// The power went off first.
    Cut,
    Running(Box<Bench>),
    Refused(MountError),
}

impl Medium {
    pub(crate) fn new(setup: Setup) -> Medium {
        let ssd = Ssd::new(&setup.spec, setup.options.clone()).expect("a device");
        Medium { setup, ssd, truth: Arc::default(), held: Rc::default() }
    }

    pub(crate) fn face(&self, stop: Option<Stop>) -> Arc<Face> {
        Arc::new(Face::new(self.ssd.clone(), self.truth.clone(), stop))
    }

    /// A new target on whatever is on it.
    pub(crate) fn create(&self) -> Bench {
        match self.create_until(None) {
            Up::Running(bench) => *bench,
            _ => unreachable!("nobody cuts, create has other errors"),
        }
    }

    pub(crate) fn create_until(&self, stop: Option<Stop>) -> Up {
        let config = self.setup.config.clone();
        let made = |cx: Cx, device| async move { create(cx, device, config).await };
        let Up::Running(bench) = self.power_on(stop, made) else { return Up::Cut };
        self.held.borrow_mut().clear();
        let cx = bench.cx.clone();
        // The first lines are opened meanwhile.
        if bench.works_until_off(async move { cx.sleep(Ns::from_ms(100)).await }) {
            bench.cut();
            return Up::Cut;
        }
        Up::Running(bench)
    }

    pub(crate) fn mounted(&self) -> Bench {
        self.mount(MountOptions::default()).unwrap_or_else(|e| panic!("{e}"))
    }

    pub(crate) fn mount(&self, options: MountOptions) -> Result<Bench, MountError> {
        match self.mount_until(options, None) {
            Up::Running(bench) => Ok(*bench),
            Up::Refused(error) => Err(error),
            Up::Cut => unreachable!("nobody cuts"),
        }
    }

    pub(crate) fn refused(&self, options: MountOptions) -> MountError {
        match self.mount(options) {
            Err(error) => error,
            Ok(bench) => panic!("it mounted: {:?}", bench.dev.recovery()),
        }
    }

    pub(crate) fn read_only(&self) -> Bench {
        let options = MountOptions { read_only: true, ..MountOptions::default() };
        self.mount(options).unwrap_or_else(|e| panic!("{e}"))
    }

    pub(crate) fn mount_until(&self, options: MountOptions, stop: Option<Stop>) -> Up {
        self.power_on(stop, |cx, device| async move { Pblk::mount(&cx, device, options).await })
    }

    fn power_on<F>(&self, stop: Option<Stop>, work: impl FnOnce(Cx, Arc<dyn Device>) -> F) -> Up
    where
        F: Future<Output = Result<Arc<Pblk>, MountError>> + 'static,
    {
        let before = self.ssd.counters().programmed;
        let face = self.face(stop);
        let run = Virtual::new(self.setup.cores, self.setup.seed, self.setup.costs.clone());
        let cx = run.cx();
        let (watched, work) = (face.clone(), work(cx.clone(), face.clone()));
        let (their_cx, join) = (cx.clone(), cx.spawn_join(work));
        let ended = run.run(async move { until_off(&their_cx, &watched, join).await });
        let ended = ended.expect("it ends");
        match ended {
            Some(Ok(dev)) => Up::Running(Box::new(Bench::on(self.clone(), face, run, dev, before))),
            ended => {
                let at = run.now();
                drop((run, cx));
                self.ssd.power_cut(at, PowerOn::ClockRestarts);
                ended.and_then(Result::err).map_or(Up::Cut, Up::Refused)
            }
        }
    }

    // Damage.

    /// The device says something else of itself from the next power-on.
    pub(crate) fn pretend(&self, change: impl FnOnce(&mut Geometry)) {
        let mut geometry = *self.ssd.geometry();
        change(&mut geometry);
        self.truth.lock().geometry = Some(geometry);
    }

    /// These sectors can't be read any more, neither content nor record.
    pub(crate) fn wreck(&self, spots: impl IntoIterator<Item = Spot>) {
        self.truth.lock().unreadable.extend(spots);
    }

    /// The same from the n-th command of the next life on, counted from 0.
    pub(crate) fn wreck_from(&self, command: u64, spots: impl IntoIterator<Item = Spot>) {
        self.truth.lock().fades = Some((command, spots.into_iter().collect()));
    }

    /// Decayed, so that the device does not notice, or does.
    pub(crate) fn spoil(&self, unnoticed: bool, spots: impl IntoIterator<Item = Spot>) {
        match unnoticed {
            true => self.flip(spots),
            false => self.wreck(spots),
        }
    }

    /// A bit of their content is wrong, and the device does not notice.
    pub(crate) fn flip(&self, spots: impl IntoIterator<Item = Spot>) {
        self.truth.lock().flipped.extend(spots);
    }

    /// The next read of each of these sectors fails, and no other.
    pub(crate) fn fail_once(&self, spots: impl IntoIterator<Item = Spot>) {
        self.truth.lock().fails_once.extend(spots);
    }

    /// So many of the next reads of each of these sectors fail, and no other.
    pub(crate) fn fail_often(&self, spots: impl IntoIterator<Item = Spot>, times: u64) {
        self.truth.lock().fails_often.extend(spots.into_iter().map(|spot| (spot, times)));
    }

    /// So many sectors fail that are read next, whichever they are.
    pub(crate) fn fail_next(&self, reads: u64) {
        self.truth.lock().next_fail = reads;
    }

    /// A die stops working at the next command that reaches it.
    pub(crate) fn kill_die(&self, pu: u32) {
        let plan = format!("[[fault]]\nkind = \"die_fail\"\nat = \"pu {pu}\"\n");
        let plan = FaultPlan::from_toml(&plan).expect("a plan");
        plan.faults.into_iter().for_each(|fault| self.ssd.fail(fault));
    }

    /// Other content in a sector of metadata, which its record does not vouch for.
    pub(crate) fn replace_content(&self, spot: Spot, content: &[u8]) {
        let mut truth = self.truth.lock();
        let wrote = Wrote { bytes: content.to_vec(), ..truth.written[&spot].clone() };
        truth.replaced.insert(spot, wrote);
    }

    /// They are well again.
    pub(crate) fn heal(&self) {
        let mut truth = self.truth.lock();
        truth.unreadable.clear();
        truth.fades = None;
        truth.flipped.clear();
        truth.fails_once.clear();
        truth.fails_often.clear();
        truth.next_fail = 0;
        truth.replaced.clear();
    }

    /// Other content in metadata, with the record that fits it; the rest of the sector's record stays.
    pub(crate) fn rewrite(&self, spot: Spot, change: impl FnOnce(&mut Vec<u8>)) {
        let mut truth = self.truth.lock();
        let mut wrote = truth.written[&spot].clone();
        change(&mut wrote.bytes);
        let (lba, stamp, _) = Oob::decode_raw(&wrote.oob);
        wrote.oob = Oob::encode_raw(lba, stamp, Oob::content_crc(&wrote.bytes));
        truth.replaced.insert(spot, wrote);
    }

    /// In the place of a sector of user data the device gives this version of another one.
    pub(crate) fn misplace(&self, spot: Spot, lba: u64, version: u64, stamp: Option<u64>) {
        let mut truth = self.truth.lock();
        let bytes = content(lba, version, 8);
        let stamp = stamp.unwrap_or(truth.written[&spot].stamp());
        let oob = Oob::encode_raw(lba, stamp, Oob::content_crc(&bytes));
        truth.replaced.insert(spot, Wrote { oob, bytes });
    }

    // What lies where.

    pub(crate) fn info(&self, chunk: u32) -> ChunkInfo {
        let per_pu = self.ssd.geometry().chunks_per_pu;
        self.ssd.chunk_report(chunk / per_pu, chunk % per_pu, 1)[0]
    }

    /// A chunk as the errors of a mount name it.
    pub(crate) fn place_of(&self, chunk: u32) -> (u32, Option<u32>) {
        let per_pu = self.ssd.geometry().chunks_per_pu;
        (chunk / per_pu, Some(chunk % per_pu))
    }

    pub(crate) fn chunks(&self) -> u32 {
        self.ssd.geometry().pus() * self.ssd.geometry().chunks_per_pu
    }

    /// Everything that is below its chunk's write pointer, in the order of places.
    pub(crate) fn written(&self) -> Vec<(Spot, Wrote)> {
        let truth = self.truth.lock();
        let there = |(at, _): &(&Spot, &Wrote)| at.1 < self.info(at.0).write_pointer;
        truth.written.iter().filter(there).map(|(at, w)| (*at, w.clone())).collect()
    }

    pub(crate) fn typed(&self, lba: u64) -> Vec<(Spot, Wrote)> {
        self.written().into_iter().filter(|(_, w)| lba_of(&w.oob) == lba).collect()
    }

    /// Where the sectors of a type are.
    pub(crate) fn spots(&self, lba: u64) -> Vec<Spot> {
        self.typed(lba).into_iter().map(|(at, _)| at).collect()
    }

    /// The anchors, highest counter last.
    pub(crate) fn anchors(&self) -> Vec<(Spot, Anchor)> {
        let decoded = |(at, w): (Spot, Wrote)| Some((at, Anchor::decode(&w.bytes).ok()?));
        let mut all: Vec<_> = self.typed(LBA_ANCHOR).into_iter().filter_map(decoded).collect();
        all.sort_by_key(|(_, a)| a.counter);
        all
    }

    pub(crate) fn newest_anchor(&self) -> Anchor {
        self.anchors().last().expect("an anchor").1
    }

    /// The blocks of the newest target's log, each copy of each, oldest first.
    pub(crate) fn log(&self) -> Vec<LogAt> {
        let anchor = self.newest_anchor();
        let sectors = self.typed(LBA_LOG);
        let mut blocks = Vec::new();
        for (at, wrote) in &sectors {
            let mut bytes = wrote.bytes.clone();
            let behind = sectors.iter().filter(|(s, _)| s.0 == at.0 && s.1 > at.1);
            behind.for_each(|(_, w)| bytes.extend(&w.bytes));
            let Ok(block) = LogBlock::decode(&bytes) else { continue };
            let h = *block.header();
            let ours = h.uuid == anchor.uuid && h.segment >= anchor.oldest.id;
            if ours {
                let entries = block.map(|e| e.expect("an intact record")).collect();
                let (segment, first_sequence) = (h.segment, h.first_sequence);
                blocks.push(LogAt { at: *at, segment, first_sequence, header: h, entries });
            }
        }
        blocks.sort_by_key(|b| (b.segment, b.first_sequence, b.at));
        blocks
    }

    /// The records of the log, each once.
    pub(crate) fn records(&self) -> Vec<LogEntry> {
        let mut all: BTreeMap<u64, LogEntry> = BTreeMap::new();
        for entry in self.log().into_iter().flat_map(|b| b.entries) {
            all.insert(entry.sequence, entry);
        }
        all.into_values().collect()
    }

    /// Complete checkpoints, newest first: the two copies of each shard.
    pub(crate) fn checkpoints(&self) -> Vec<(u64, Vec<[Extent; 2]>)> {
        let records = self.records();
        let complete = |e: &LogEntry| match e.record {
            Record::CheckpointComplete { checkpoint, .. } => Some(checkpoint),
            _ => None,
        };
        let ids = records.iter().rev().filter_map(complete);
        let shards = |id: u64| {
            let of = |e: &LogEntry| match &e.record {
                Record::CheckpointShard { checkpoint, places, .. } if *checkpoint == id => {
                    Some(*places)
                }
                _ => None,
            };
            (id, records.iter().filter_map(of).collect())
        };
        ids.map(shards).collect()
    }

    /// Lines that were opened and not freed, by sequence.
    pub(crate) fn lines(&self) -> Vec<LineAt> {
        let mut lines: BTreeMap<u64, LineAt> = BTreeMap::new();
        let mut freed = BTreeSet::new();
        for entry in self.records() {
            match entry.record {
                Record::Opened { sequence, chunks, .. } => {
                    let new = LineAt { sequence, chunks, closed: None };
                    lines.entry(sequence).or_insert(new);
                }
                Record::Closed { sequence, places, .. } => {
                    if let Some(line) = lines.get_mut(&sequence) {
                        line.closed = Some(places);
                    }
                }
                Record::Freed { sequence, .. } => drop(freed.insert(sequence)),
                _ => {}
            }
        }
        lines.into_values().filter(|l| !freed.contains(&l.sequence)).collect()
    }

    /// The copies of a sector, newest stamp last.
    pub(crate) fn copies(&self, lba: u64) -> Vec<(Spot, u64)> {
        assert!(lba < LBA_LIMIT);
        let mut all: Vec<_> =
            self.typed(lba).into_iter().map(|(at, wrote)| (at, wrote.stamp())).collect();
        all.sort_by_key(|(_, stamp)| *stamp);
        all
    }

    /// The newest copy of a sector.
    pub(crate) fn newest(&self, lba: u64) -> Spot {
        self.copies(lba).last().expect("a copy").0
    }

    /// The unit that a sector lies in.
    pub(crate) fn unit_of(&self, (chunk, sector): Spot) -> Vec<Spot> {
        let unit = self.ssd.geometry().ws_opt;
        let first = sector / unit * unit;
        (first..first + unit).map(|s| (chunk, s)).collect()
    }
}

pub(crate) fn spots(e: &Extent) -> Vec<Spot> {
    (e.sector..e.sector + e.count).map(|s| (e.chunk, s)).collect()
}

async fn create(
    cx: Cx,
    device: Arc<dyn Device>,
    config: LogConfig,
) -> Result<Arc<Pblk>, MountError> {
    let made: Result<_, CreateError> = Pblk::create(&cx, device, config).await;
    made.map_err(MountError::Layout)
}

/// Runs `work`, until the power goes off.
pub(crate) async fn until_off<T>(cx: &Cx, face: &Face, work: impl Future<Output = T>) -> Option<T> {
    let mut work = pin!(work);
    let off = || face.off_at();
    let mut stopped = pin!(face.stopped.wait(cx, || off().is_some()));
    let mut is_stopped = false;
    poll_fn(|context| {
        if !is_stopped && stopped.as_mut().poll(context).is_ready() {
            is_stopped = true;
            cx.arm(off().expect("just seen"));
        }
        if is_stopped && off().is_some_and(|at| at <= cx.now()) {
            return Poll::Ready(None);
        }
        work.as_mut().poll(context).map(Some)
    })
    .await
}

impl Bench {
    /// The bench, its run over, and what is under it: the power goes off now.
    pub(crate) fn cut(self) -> Medium {
        let medium = self.medium.clone();
        let at = self.run.now();
        // The tasks hold the target, which must be gone when the power comes back.
        let Bench { run, .. } = self;
        drop(run);
        medium.ssd.power_cut(at, PowerOn::ClockRestarts);
        medium
    }

    /// Stopped cleanly, then switched off.
    pub(crate) fn shut_down(self) -> Medium {
        self.stop().expect("everything is durable");
        self.rest();
        self.agrees();
        self.cut()
    }

    /// Works until the power goes off by itself (made with a [`Stop`]); false when it stays on.
    pub(crate) fn works_until_off(&self, work: impl Future<Output = ()> + 'static) -> bool {
        let (cx, face) = (self.cx.clone(), self.face.clone());
        let join = cx.spawn_join(work);
        let ended = self.run.run(async move { until_off(&cx, &face, join).await });
        ended.expect("it ends").is_none()
    }

    pub(crate) fn recovery(&self) -> flashlane_ftl::log::Recovery {
        self.dev.recovery().expect("it was mounted")
    }
}
