//! The host loses its power, or kills the process: an image is as at a commit, none older than the
//! last flush that completed, with all data of that commit.
//!
//! A history is played on a file in memory that remembers every operation. Then, for each moment of
//! it, files are made as a power loss may leave them: of what was not synced, every piece of 512
//! bytes is there or not, in any of its versions. All of them where there are few, seeded samples
//! where there are many.

use crate::common::*;
use flashlane_media::fault::kept::FaultState;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicU64;

const CHUNKS: u32 = 3;
const PUS: u32 = 2;
const SECTORS: u32 = 4;

fn spec() -> DeviceSpec {
    of_few_sectors(PUS, CHUNKS)
}

/// Everything that can be seen of a device.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    chunks: Vec<ChunkInfo>,
    status: Vec<Status>,
    /// First and last byte of each sector; whole sectors are compared against these.
    content: Vec<u8>,
    oob: Vec<[u8; OOB_BYTES]>,
    targets: Vec<u8>,
    marks: Vec<u8>,
    faults: Vec<FaultState>,
}

fn look(ssd: &Arc<Ssd>) -> Seen {
    look_by(&Bench::new(ssd.clone()), ssd)
}

fn look_by(bench: &Bench, ssd: &Ssd) -> Seen {
    let places: Vec<_> =
        (0..PUS).flat_map(|pu| (0..CHUNKS).map(move |c| (pu, c, 0, SECTORS))).collect();
    let got = bench.read(&places);
    let n = got.oob.len();
    for sector in got.data.chunks(4096) {
        assert!(sector.iter().all(|b| *b == sector[0]), "a sector of two writes");
    }
    let planes = |pu| ssd.bad_blocks(pu).expect("a PU").blocks;
    Seen {
        chunks: (0..PUS).flat_map(|pu| ssd.chunk_report(pu, 0, CHUNKS)).collect(),
        status: (0..n).map(|i| got.done.status(i)).collect(),
        content: got.data.chunks(4096).map(|s| s[0]).collect(),
        oob: got.oob,
        targets: ssd.targets(),
        marks: (0..PUS).flat_map(planes).collect(),
        faults: ssd.faults(),
    }
}

fn open_behind(file: Arc<dyn HostFile>) -> Arc<Ssd> {
    let options = OpenImage { commits_behind: true, ..OpenImage::default() };
    Ssd::open_on(file, &options).unwrap_or_else(|e| panic!("{e}"))
}

fn commits(ssd: &Ssd) -> u64 {
    ssd.image_info().expect("an image").commits
}

fn fresh() -> Arc<MemoryFile> {
    image_of(&spec())
}

/// A device in use, and what its commits looked like.
struct History {
    file: Arc<MemoryFile>,
    /// The file as the device has it.
    host: Arc<dyn HostFile>,
    /// The same, where a thread writes it; then another one commits.
    behind: Option<Arc<Behind>>,
    ssd: Arc<Ssd>,
    /// Whoever uses it; its clock goes on as long as the process lives.
    bench: Bench,
    /// Programs fail, and what has failed behind its acknowledgement was kept so often.
    failing: bool,
    kept: u64,
    rng: Rng,
    fill: u8,
    /// What each commit must look like.
    snapshots: BTreeMap<u64, Seen>,
    /// (operations of the file, commit that was durable then).
    durable: Vec<(usize, u64)>,
}

impl History {
    fn new(file: Arc<MemoryFile>, seed: u64) -> History {
        History::on(file.clone(), file, seed)
    }

    /// As `new`, with the writes behind.
    fn behind(file: Arc<MemoryFile>, seed: u64) -> History {
        let behind = Arc::new(Behind::new(file.clone()));
        let ssd = open_behind(behind.clone());
        History { behind: Some(behind.clone()), ..History::of(ssd, file, behind, seed) }
    }

    fn on(file: Arc<MemoryFile>, host: Arc<dyn HostFile>, seed: u64) -> History {
        History::of(open_on(host.clone()), file, host, seed)
    }

    fn of(ssd: Arc<Ssd>, file: Arc<MemoryFile>, host: Arc<dyn HostFile>, seed: u64) -> History {
        let bench = Bench::new(ssd.clone());
        let snapshots = BTreeMap::from([(commits(&ssd), look_by(&bench, &ssd))]);
        let durable = vec![(file.ops(), commits(&ssd))];
        let failing = ssd.spec().limits.write_buffer.is_some();
        let (rng, fill, kept, behind) = (Rng::new(seed), 1, 0, None);
        History { file, host, behind, ssd, bench, failing, kept, rng, fill, snapshots, durable }
    }

    fn look(&self) -> Seen {
        look_by(&self.bench, &self.ssd)
    }

    fn below(&mut self, n: u64) -> u32 {
        self.rng.below(n) as u32
    }

    /// Does something; what a commit during it may look like is as before it or as after it.
    fn step(&mut self) {
        let before = self.look();
        let first = commits(&self.ssd);
        let what = self.below(16);
        match what {
            0..7 => self.write(),
            7..9 => self.erase(),
            9..12 => {
                let done = self.bench.plain(Op::Flush, vec![], Flags::default());
                assert_eq!(done.failed, 0);
            }
            12 => self.cut(),
            13 if self.below(2) == 0 => self.inject(),
            13 => {
                let len = self.below(300) as usize;
                let byte = self.fill;
                self.ssd.set_targets(&vec![byte; len]).expect("kept");
            }
            14 => self.mark(),
            _ => self.kill(),
        }
        if what < 15 {
            self.note(first, before, (9..14).contains(&what));
        }
    }

    fn note(&mut self, first: u64, before: Seen, changed_first: bool) {
        let now = commits(&self.ssd);
        assert!(now <= first + 1, "one commit per step");
        if now > first {
            let seen = if changed_first { self.look() } else { before };
            self.snapshots.insert(now, seen);
            self.durable.push((self.file.ops(), now));
        }
    }

    fn chunk(&mut self) -> (u32, u32) {
        (self.below(PUS as u64), self.below(CHUNKS as u64))
    }

    fn write(&mut self) {
        let (pu, chunk) = self.chunk();
        let bench = &self.bench;
        let info = bench.info(pu, chunk);
        if !matches!(info.state, ChunkState::Free | ChunkState::Open) {
            return self.erase();
        }
        self.fill = self.fill % 250 + 1;
        let n = 2.max(2 * self.below(3)).min(SECTORS - info.write_pointer);
        let done = self.bench.write(&[(pu, chunk, info.write_pointer, n)], self.fill);
        assert!(done.failed == 0 || self.failing, "{done:?}");
    }

    fn erase(&mut self) {
        let (pu, chunk) = self.chunk();
        let bench = &self.bench;
        if bench.info(pu, chunk).state != ChunkState::Offline {
            let done = bench.reset(pu, chunk);
            assert!(done == Status::Ok || self.failing, "{done:?}");
        }
    }

    /// The simulated power goes while commands are under way.
    fn cut(&mut self) {
        self.fill = self.fill % 250 + 1;
        let (pu, chunk) = self.chunk();
        let info = self.bench.info(pu, chunk);
        let fill = self.fill;
        let ssd = self.ssd.clone();
        let after = Ns::from_us(200 * self.below(40) as u64);
        let writable = matches!(info.state, ChunkState::Free | ChunkState::Open);
        self.bench.run(move |cx, dev| async move {
            let filled = Filled::new(2, 4096, fill);
            let at = addrs(&*dev, &[(pu, chunk, 0, 2)]);
            let behind = addrs(&*dev, &[(pu, chunk, info.write_pointer.min(SECTORS - 2), 2)]);
            if writable {
                let _ = dev.submit(&cx, filled.request(&behind, false));
            }
            if info.state != ChunkState::Offline {
                let _ = dev.submit(&cx, Request::plain(Op::Reset, &at));
                // Over an erase that may not have begun when the power goes.
                let _ = dev.submit(&cx, filled.request(&at, false));
            }
            ssd.power_cut(cx.now() + after, PowerOn::ClockGoesOn);
        });
    }

    /// A fault for a time that never comes, or none at all; where programs fail, one that comes.
    fn inject(&mut self) {
        if self.below(4) == 0 {
            self.ssd.clear_faults().expect("cleared");
        } else {
            let (pu, chunk) = self.chunk();
            let (kind, line) = match self.failing {
                true => {
                    let kind = ["early_close", "write_next_unit", "erase_fail"];
                    (kind[self.below(3) as usize], format!("pu = {pu}\ntimes = 2"))
                }
                false => {
                    let after = format!("after = \"{}s\"", 1000 + self.below(9));
                    ("die_fail", format!("pu = {pu}\nchunk = {chunk}\n{after}"))
                }
            };
            let plan = format!("[[fault]]\nkind = \"{kind}\"\n{line}");
            self.ssd.inject(&FaultPlan::from_toml(&plan).expect("a plan")).expect("kept");
        }
    }

    fn mark(&mut self) {
        let (pu, chunk) = self.chunk();
        let at = addrs(&*self.ssd, &[(pu, chunk, 0, 1)]);
        let mark = [GROWN_BAD, 0, 0][self.below(3) as usize];
        assert!(self.ssd.set_bad_blocks(&at, mark));
    }

    /// The process is killed, at rest or in the middle of a commit; the host's cache survives.
    fn kill(&mut self) {
        let before = self.look();
        let last = commits(&self.ssd);
        if self.below(2) == 0 {
            let n = self.below(4) as u64;
            self.file.fail_after(n, ErrorKind::Other);
            let done = self.bench.plain(Op::Flush, vec![], Flags::default());
            self.file.heal();
            if done.failed == 0 && commits(&self.ssd) > last {
                self.snapshots.insert(commits(&self.ssd), before.clone());
                self.durable.push((self.file.ops(), commits(&self.ssd)));
            }
        }
        let last = commits(&self.ssd);
        self.kept += self.ssd.counters().buffer.map_or(0, |b| b.kept);
        self.end_process();
        self.ssd = match self.behind {
            Some(_) => open_behind(self.host.clone()),
            None => open_on(self.host.clone()),
        };
        self.bench = Bench::new(self.ssd.clone());
        let found = commits(&self.ssd);
        assert!(found == last || found == last + 1, "{found} after {last}");
        let seen = self.look();
        let wanted = self.snapshots.entry(found).or_insert(before);
        assert_eq!(seen, *wanted, "commit {found}");
        self.durable.push((self.file.ops(), found));
    }

    /// Of what waits for the thread the host gets all, or nothing more.
    fn end_process(&mut self) {
        let Some(behind) = self.behind.take() else { return };
        match self.below(2) {
            0 => behind.abandon(),
            // It may have failed before.
            _ => drop(behind.drain()),
        }
        let behind = Arc::new(Behind::new(self.file.clone()));
        self.host = behind.clone();
        self.behind = Some(behind);
    }

    /// What a power loss before operation `at` may leave: how many images were looked at.
    fn lose_power(&self, start: &[u8], from: usize, at: usize, rng: &mut Rng) -> u64 {
        let log = self.file.log();
        let moment = Moment::new(start, &log[from..], at - from);
        let safe = self.durable.iter().filter(|(ops, _)| *ops <= at).map(|(_, c)| *c).max();
        let check = |bytes: Vec<u8>| self.check(bytes, safe.unwrap_or(0), at);
        match moment.count() {
            n if n <= 128 => {
                (0..n).for_each(|image| check(moment.nth(image)));
                n
            }
            _ => {
                (0..16).for_each(|k| check(moment.sample(rng, k % 9)));
                16
            }
        }
    }

    fn check(&self, bytes: Vec<u8>, safe: u64, at: usize) {
        let ssd = open_on(Arc::new(MemoryFile::new(bytes)));
        let found = commits(&ssd);
        assert!(found >= safe, "before operation {at}: commit {found}, but {safe} was durable");
        let wanted = self.snapshots.get(&found);
        let wanted = wanted.unwrap_or_else(|| panic!("before operation {at}: commit {found}?"));
        assert_eq!(look(&ssd), *wanted, "before operation {at}: commit {found}");
    }
}

fn play(seed: u64, begin: impl Fn(Arc<MemoryFile>, u64) -> History) -> (u64, u64) {
    let (images, commits, _) = play_on(&spec(), seed, begin);
    (images, commits)
}

/// Images looked at, commits, sectors that the device kept.
fn play_on(
    spec: &DeviceSpec,
    seed: u64,
    begin: impl Fn(Arc<MemoryFile>, u64) -> History,
) -> (u64, u64, u64) {
    let file = image_of(spec);
    // What is given back too early shows at once where nothing stays in a free slot; the other half keeps it.
    if seed.is_multiple_of(2) {
        file.clear_free_slots();
    }
    let start = file.bytes();
    let from = file.ops();
    let mut history = begin(file, seed);
    (0..40).for_each(|_| history.step());
    if let Some(behind) = &history.behind {
        behind.drain().expect("nothing fails");
    }
    let mut rng = Rng::new(seed);
    let images =
        (from..=history.file.ops()).map(|at| history.lose_power(&start, from, at, &mut rng)).sum();
    let kept = history.kept + history.ssd.counters().buffer.map_or(0, |b| b.kept);
    (images, commits(&history.ssd), kept)
}

/// Writes, erases, flushes, cuts of the simulated power, bad blocks, target settings and kills, by
/// seed; power lost before every operation on the file.
#[test]
fn a_power_loss_of_the_host_leaves_a_commit() {
    all_leave_a_commit(History::new);
}

/// The same with a thread that writes the file, which a kill may find at any place of its queue.
#[test]
fn a_power_loss_of_the_host_behind_leaves_a_commit() {
    all_leave_a_commit(History::behind);
}

fn all_leave_a_commit(begin: impl Fn(Arc<MemoryFile>, u64) -> History) {
    let mut images = 0;
    for seed in 1..=12 {
        let (n, commits) = play(seed, &begin);
        assert!(commits > 3, "seed {seed}: {commits} commits");
        images += n;
    }
    println!("{images} images");
    assert!(images > 4_000, "{images}");
}

/// A commit names a program that waits for its die, and a power cut takes that back. What is programmed in its place
/// goes over the bytes that the commit names: before that the device as the cut left it is committed (IMAGE.md,
/// section 6).
#[test]
fn what_a_cut_took_back_is_programmed_over_behind_a_commit() {
    for begin in [History::new, History::behind] {
        let file = fresh();
        let (start, from) = (file.bytes(), file.ops());
        let mut history = begin(file, 1);
        let settled = |history: &History| {
            let written = history.behind.as_ref().map_or(Ok(()), |behind| behind.drain());
            written.expect("nothing fails");
        };
        history.bench.write(&[(0, 0, 0, 2)], 1);
        let ssd = history.ssd.clone();
        let filled = Filled::new(2, 4096, 2);
        let now = history.bench.run(move |cx, dev| async move {
            let _ = dev.submit(&cx, filled.request(&addrs(&*dev, &[(0, 0, 2, 2)]), false));
            ssd.set_targets(b"a commit").expect("kept");
            cx.now()
        });
        settled(&history);
        let named = open_on(Arc::new(MemoryFile::new(history.file.bytes())));
        let commit = commits(&named);
        assert_eq!(named.chunk_report(0, 0, 1)[0].write_pointer, 4, "it is named");
        history.snapshots.insert(commit, look(&named));
        history.durable.push((history.file.ops(), commit));
        let cut = history.ssd.power_cut(now, PowerOn::ClockGoesOn);
        assert_eq!((cut.torn_programs, cut.lost_programs), (0, 1));
        assert_eq!(history.bench.info(0, 0).write_pointer, 2, "it is taken back");
        let before = history.look();
        history.note(commit, before, true);
        let done = history.bench.write(&[(0, 0, 2, 2)], 3);
        assert_eq!(done.failed, 0);
        settled(&history);
        let mut rng = Rng::new(1);
        for at in from..=history.file.ops() {
            history.lose_power(&start, from, at, &mut rng);
        }
    }
}

/// The same with a write buffer, and programs that fail behind their acknowledgement: what the device keeps
/// for them is in the commit with the faults that have happened, or neither is.
#[test]
fn a_power_loss_of_the_host_leaves_what_was_kept() {
    let mut buffered = spec();
    buffered.limits.write_buffer = Some(Bytes::new(3 * 2 * 4096));
    for begin in [History::new, History::behind] {
        let (mut images, mut kept) = (0, 0);
        for seed in 1..=12 {
            let (n, commits, k) = play_on(&buffered, seed, begin);
            assert!(commits > 5, "seed {seed} commits");
            (images, kept) = (images + n, kept + k);
        }
        println!("{images} images, {kept} sectors kept");
        assert!(images > 4_000 && kept >= 16, "{images} images, {kept} kept");
    }
}

/// The journal's halves take turns: rows go to their places in between.
#[test]
fn a_power_loss_while_the_journal_turns_over_leaves_a_commit() {
    let file = fresh();
    let mut history = History::new(file, 99);
    let mut turned = 0;
    let mut rng = Rng::new(5);
    for round in 0..450u32 {
        // Losses are looked at around the turns only.
        let (start, from) = (history.file.bytes(), history.file.ops());
        history.durable.retain(|(_, c)| *c + 1 >= commits(&history.ssd));
        history.durable.iter_mut().for_each(|(ops, _)| *ops = (*ops).min(from));
        let before = history.look();
        let first = commits(&history.ssd);
        history.ssd.set_targets(&round.to_le_bytes().repeat(40)).expect("kept");
        history.note(first, before, true);
        let ops = history.file.ops();
        if ops - from > 4 {
            turned += 1;
            for at in from..=ops {
                history.lose_power(&start, from, at, &mut rng);
            }
        }
    }
    assert!(turned >= 2, "{turned} turns");
}

/// A host that calls a sync done without doing it: every other one, the first or the second.
struct Careless {
    file: Arc<MemoryFile>,
    syncs: AtomicU64,
    skips: u64,
}

impl HostFile for Careless {
    flashlane_media::host_file_as_below!(file: read_at write_at punch allocate len set_len);

    fn sync(&self) -> io::Result<()> {
        match self.syncs.fetch_add(1, Ordering::Relaxed) % 2 == self.skips {
            true => Ok(()),
            false => self.file.sync(),
        }
    }
}

/// The tests above can fail: each of a commit's syncs is missed.
#[test]
fn a_host_that_does_not_sync_is_noticed() {
    for skips in 0..2 {
        let careless = |file: Arc<MemoryFile>, seed| {
            let host = Careless { file: file.clone(), syncs: AtomicU64::new(0), skips };
            History::on(file, Arc::new(host), seed)
        };
        let noticed =
            (1..=12).any(|seed| catch_unwind(AssertUnwindSafe(|| play(seed, careless))).is_err());
        assert!(noticed, "sync {skips} of a commit is missed by nobody");
    }
}

/// A flush after nothing, or after reads, does nothing to the file.
#[test]
fn a_flush_without_a_change_costs_nothing() {
    let file = fresh();
    let bench = Bench::new(open_on(file.clone()));
    let flush = || {
        let before = file.ops();
        assert_eq!(bench.flush(), Status::Ok);
        file.ops() - before
    };
    assert_eq!(flush(), 0);
    bench.write(&[(0, 0, 0, 2)], 7);
    assert!(flush() > 0);
    bench.read(&[(0, 0, 0, 2)]);
    assert_eq!(flush(), 0);
}

/// A commit that a power loss tore, and one at the same place that the next loss tears: what is
/// there afterwards is one of them or what was before, never parts of both.
#[test]
fn frames_of_two_torn_commits_do_not_mix() {
    frames_do_not_mix(fresh());
    // Without sums the sequence alone keeps them apart.
    let old = unpacked(include_bytes!("../data/image-v1.1.img.gz"));
    frames_do_not_mix(Arc::new(MemoryFile::new(old)));
}

fn frames_do_not_mix(file: Arc<MemoryFile>) {
    let settings = |byte: u8| vec![byte; 1200];
    open_on(file.clone()).set_targets(&settings(1)).expect("kept");
    let (start, from) = (file.bytes(), file.ops());
    open_on(file.clone()).set_targets(&settings(2)).expect("kept");
    let first = file.log()[from..].to_vec();
    let mut images = 0;
    for at in 0..=first.len() {
        let moment = Moment::new(&start, &first, at);
        for n in 0..moment.count() {
            let torn = moment.nth(n);
            let file = Arc::new(MemoryFile::new(torn.clone()));
            let ssd = open_on(file.clone());
            let found = ssd.targets();
            ssd.set_targets(&settings(3)).expect("kept");
            let second = file.log();
            for at in 0..=second.len() {
                let moment = Moment::new(&torn, &second, at);
                for n in 0..moment.count() {
                    let again = open_on(Arc::new(MemoryFile::new(moment.nth(n)))).targets();
                    assert!(again == found || again == settings(3), "{again:?}");
                    images += 1;
                }
            }
        }
    }
    assert!(images > 100, "{images}");
}

fn unpacked(mut packed: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    flate2::read::GzDecoder::new(&mut packed).read_to_end(&mut bytes).expect("an image");
    bytes
}

/// The host loses its power in an upgrade: before each write and sync, with each part of what was not
/// synced. What is left opens, is of the one format or the other, and is otherwise as it was; the next
/// upgrade ends what this one had begun.
#[test]
fn a_power_loss_in_an_upgrade_leaves_an_image() {
    let old = || unpacked(include_bytes!("../data/image-v1.img.gz"));
    let newer = unpacked(include_bytes!("../data/image-v1.1.img.gz"));
    let content = |ssd: &Arc<Ssd>| {
        let bench = Bench::new(ssd.clone());
        let states: Vec<_> = (0..2).flat_map(|pu| ssd.chunk_report(pu, 0, 4)).collect();
        (states, bench.read(&[(0, 0, 0, 64)]).data, ssd.targets(), ssd.faults())
    };
    let version = |ssd: &Ssd| ssd.image_info().expect("an image").version;
    let damaged = |at: usize| {
        let mut bytes = old();
        bytes[at] ^= 1;
        bytes
    };
    // The device's text as another program wrote it: all of it changes.
    let other_text = |damaged: Option<usize>| {
        let mut bytes = old();
        for copy in bytes[..2 * HEADER_BYTES as usize].chunks_mut(HEADER_BYTES as usize) {
            let end = u32::from_le_bytes(copy[12..16].try_into().expect("4 bytes")) as usize;
            let text = copy[128..end].to_vec();
            copy[128..136].copy_from_slice(b"# older\n");
            copy[136..end + 8].copy_from_slice(&text);
            copy[12..16].copy_from_slice(&(end as u32 + 8).to_le_bytes());
            let crc = flashlane_base::crc32c(&copy[12..end + 8]);
            copy[8..12].copy_from_slice(&crc.to_le_bytes());
        }
        damaged.into_iter().for_each(|at| bytes[at] ^= 1);
        bytes
    };
    // Both copies of the header sound, and either one of them not.
    let starts = [
        old(),
        damaged(30),
        damaged((16 << 10) + 30),
        other_text(None),
        other_text(Some(30)),
        other_text(Some((16 << 10) + 30)),
    ];
    let starts = starts.map(|bytes| ((1, 0), bytes));
    for (from, start) in starts.into_iter().chain([((1, 1), newer)]) {
        let wanted = content(&open_on(Arc::new(MemoryFile::new(start.clone()))));
        let file = Arc::new(MemoryFile::new(start.clone()));
        assert_eq!(Ssd::upgrade_on(file.clone()).unwrap(), (from, (1, 2)));
        let log = file.log();
        let (mut images, mut seen) = (0, BTreeMap::new());
        for at in 0..=log.len() {
            let moment = Moment::new(&start, &log, at);
            let mut rng = Rng::new(at as u64);
            let all = moment.count() <= 128;
            for n in 0..moment.count().min(128) {
                let left = if all { moment.nth(n) } else { moment.sample(&mut rng, n % 9) };
                let ssd = open_on(Arc::new(MemoryFile::new(left.clone())));
                *seen.entry(version(&ssd)).or_insert(0) += 1;
                assert_eq!(content(&ssd), wanted, "before operation {at}");
                let again = Arc::new(MemoryFile::new(left));
                Ssd::upgrade_on(again.clone()).unwrap_or_else(|e| panic!("{e}"));
                let ops = again.ops();
                assert_eq!(Ssd::upgrade_on(again.clone()).unwrap(), ((1, 2), (1, 2)));
                assert_eq!(again.ops(), ops, "nothing more to do, nothing written");
                let bytes = again.bytes();
                let (one, other) = bytes[..32 << 10].split_at(16 << 10);
                assert!(one == other, "both copies are of the new format");
                assert_eq!(version(&open_on(again)), (1, 2));
                images += 1;
            }
        }
        assert!(images >= 4 && seen.len() == 2, "{images} images: {seen:?}");
    }
}

/// An upgrade does not touch an image that is damaged: neither its header, where that is all there is to do.
#[test]
fn an_upgrade_leaves_a_damaged_image_alone() {
    let file = fresh();
    let layout = flashlane_ocssd::image::layout(&spec());
    let mut bytes = file.bytes();
    bytes[30] ^= 1;
    bytes[layout.table_at() as usize] ^= 1;
    let hurt = Arc::new(MemoryFile::new(bytes.clone()));
    let refused = Ssd::upgrade_on(hurt.clone()).expect_err("damaged").to_string();
    assert!(refused.contains("row 0") && hurt.bytes() == bytes, "{refused}");
}

/// The host loses its power in a create: what is left is no image, or a whole one.
#[test]
fn a_power_loss_in_a_create_leaves_no_image_or_all_of_it() {
    let log = fresh().log();
    let mut rng = Rng::new(1);
    let (mut none, mut whole) = (0, 0);
    for at in 0..=log.len() {
        let moment = Moment::new(&[], &log, at);
        for n in 0..moment.count().min(64) {
            let left = Arc::new(MemoryFile::new(moment.sample(&mut rng, n % 9)));
            match Ssd::open_on(left, &OpenImage::default()) {
                Ok(ssd) => {
                    assert_eq!(look(&ssd), look(&open_on(fresh())));
                    whole += 1;
                }
                Err(e) => {
                    let header = e.to_string();
                    let unborn = header.contains("not a drive image") || header.contains("header");
                    assert!(unborn, "before operation {at}: {e}");
                    none += 1;
                }
            }
        }
    }
    assert!(none > 50 && whole >= 3, "{none} without, {whole} with");
}

/// A commit that a simulated cut needs and the host refused is made up for before the next program.
#[test]
fn a_cut_that_could_not_be_committed_is_before_the_next_program() {
    let file = fresh();
    let ssd = open_on(file.clone());
    let bench = Bench::new(ssd.clone());
    bench.write(&[(0, 0, 0, 2)], 1);
    assert_eq!(bench.flush(), Status::Ok);
    let before = commits(&ssd);
    file.fail_after(1, ErrorKind::StorageFull);
    let _ = ssd.power_cut(bench.now(), PowerOn::ClockGoesOn);
    file.heal();
    assert_eq!(commits(&ssd), before, "refused");
    bench.write(&[(1, 0, 0, 2)], 2);
    assert!(commits(&ssd) > before);
}

/// A host on which a chunk is erased while a commit that names its content is being written.
struct Meanwhile {
    file: Arc<MemoryFile>,
    erase: Mutex<Option<(Arc<Ssd>, Vec<Ppa>)>>,
}

impl HostFile for Meanwhile {
    flashlane_media::host_file_as_below!(file: read_at write_at punch allocate len set_len);

    fn keeps_room(&self) -> bool {
        false // what is given back too early is gone
    }

    fn sync(&self) -> io::Result<()> {
        if let Some((ssd, addrs)) = self.erase.lock().expect("no panic").take() {
            let bench = Bench::new(ssd);
            assert_eq!(bench.plain(Op::Reset, addrs.clone(), Flags::default()).failed, 0);
            // Over it: the old content is gone for good.
            let filled = Filled::new(2, 4096, 9);
            let at = [addrs[0], addrs[1]];
            bench.run(|cx, dev| async move {
                assert_eq!(dev.io(&cx, filled.request(&at, false)).await.failed, 0);
            });
        }
        self.file.sync()
    }
}

/// A slot that is left while a commit is under way waits for the next: this one names it.
#[test]
fn a_slot_left_during_a_commit_stays() {
    let file = fresh();
    let host = Arc::new(Meanwhile { file: file.clone(), erase: Mutex::default() });
    let ssd = open_on(host.clone());
    let bench = Bench::new(ssd.clone());
    bench.write(&[(0, 0, 0, 4)], 7);
    *host.erase.lock().expect("no panic") = Some((ssd.clone(), bench.at(&[(0, 0, 0, 2)])));
    assert_eq!(bench.flush(), Status::Ok);
    let again = Bench::new(open_on(Arc::new(MemoryFile::new(file.bytes()))));
    assert_eq!(again.info(0, 0).write_pointer, 4, "as of the commit");
    let got = again.read(&[(0, 0, 0, 4)]);
    assert!((0..4).all(|i| got.holds(i, 7)), "its content is there");
}

/// A commit that fails gives no slot back: the commit before it names them, and a killed process
/// leaves the image as of that commit.
#[test]
fn a_commit_that_failed_gives_no_slot_back() {
    for clear in [false, true] {
        let file = fresh();
        if clear {
            file.clear_free_slots();
        }
        let ssd = open_on(file.clone());
        let bench = Bench::new(ssd.clone());
        bench.write(&[(0, 0, 0, 4)], 7);
        assert_eq!(bench.flush(), Status::Ok);
        let named = commits(&ssd);
        assert_eq!(bench.reset(0, 0), Status::Ok);
        // Behind the erase on its die: the old content is gone for good.
        assert_eq!(bench.write(&[(0, 1, 0, 2)], 8).failed, 0);
        // The first sync of the commit goes well, its frames find no room.
        file.fail_after(1, ErrorKind::StorageFull);
        assert_eq!(bench.flush(), Status::HostFault);
        file.heal();
        assert_eq!(commits(&ssd), named, "it failed");
        // Each of these chunks takes a slot.
        let others = [(0, 2), (1, 0), (1, 1), (1, 2)];
        for (pu, chunk) in others {
            assert_eq!(bench.write(&[(pu, chunk, 0, 4)], 9).failed, 0);
        }
        let killed = || Bench::new(open_on(Arc::new(MemoryFile::new(file.bytes()))));
        let again = killed();
        assert_eq!(again.info(0, 0).write_pointer, 4, "as of the commit that went well");
        let got = again.read(&[(0, 0, 0, 4)]);
        assert!((0..4).all(|i| got.holds(i, 7)), "its content is there, clear {clear}");
        assert_eq!(bench.flush(), Status::Ok);
        let again = killed();
        assert_eq!(again.info(0, 0).write_pointer, 0, "erased");
        for (pu, chunk) in others {
            assert!(again.read(&[(pu, chunk, 0, 4)]).holds(3, 9), "chunk {chunk} of PU {pu}");
        }
    }
}

/// The mark of the last commit may be lost with the power, and comes back with the next sync; that of an
/// image which was closed is there.
#[test]
fn the_mark_follows_the_commits() {
    let marked = |bytes: &[u8]| {
        let at = MARK_AT as usize + 8;
        u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
    };
    let file = fresh();
    let (start, from) = (file.bytes(), file.ops());
    let ssd = open_on(file.clone());
    for n in 1..=3 {
        ssd.set_targets(&[n]).expect("kept");
        assert_eq!(marked(&file.bytes()), commits(&ssd));
        let durable = Moment::new(&start, &file.log()[from..], file.ops() - from).nth(0);
        assert_eq!(marked(&durable), commits(&ssd) - 1, "one commit later");
    }
    ssd.close().expect("closed");
    let durable = Moment::new(&start, &file.log()[from..], file.ops() - from).nth(0);
    assert_eq!(marked(&durable), commits(&ssd));
}
