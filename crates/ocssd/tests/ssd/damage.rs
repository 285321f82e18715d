//! Damaged images: what opens is exactly what was promised, or an error says what is damaged. Never an
//! older commit.
//!
//! A trial is a history by seed (writes, erases, flushes, faults, settings, cuts, kills, losses of the
//! host's power, closes; the journal's halves turn) and one hurt of the file. 1,000 trials here; more by
//! `FLASHLANE_DAMAGE=0..20000`, where each is its number: that is how one is played again.

use crate::common::Bench;
use crate::common::*;
use flashlane_media::host::damage::{Damage, What};
use flashlane_media::image::{HOLDER_AT, Layout};
use flashlane_ocssd::image::{Header, layout};
use std::ops::Range;

const PUS: u32 = 2;
const CHUNKS: u32 = 3;
const SECTORS: u32 = 4;
const PER_HISTORY: u64 = 16;

fn spec(buffered: bool) -> DeviceSpec {
    crate::common::tiny(|s| {
        let g = &mut s.geometry;
        (g.channels, g.pus_per_channel, g.planes, g.chunks_per_pu) = (PUS, 1, 1, CHUNKS);
        (g.pages_per_block, g.sectors_per_page, g.ws_min, g.ws_opt) = (2, 2, 2, 2);
        g.mw_cunits = 0;
        s.limits.write_buffer = buffered.then(|| Bytes::new(3 * 2 * 4096));
    })
}

/// Writes sectors with an out-of-band record as an FTL makes one: who it is, and a checksum over the
/// content and that.
fn write(bench: &Bench, (pu, chunk): (u32, u32), sector: u32, n: u32, stamp: u64) {
    let at = bench.at(&[(pu, chunk, sector, n)]);
    bench.run(move |cx, dev| async move {
        let mut base = Vec::new();
        let mut oob = Vec::new();
        for i in 0..n as u64 {
            let mut rng = Rng::stream(stamp, "content", i);
            let content: Vec<u8> = (0..512).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
            let mut record = [0; OOB_BYTES];
            record[..8].copy_from_slice(&stamp.to_le_bytes());
            record[8..12].copy_from_slice(&(i as u32).to_le_bytes());
            let crc =
                flashlane_base::crc32c_append(flashlane_base::crc32c(&content), &record[..12]);
            record[12..].copy_from_slice(&crc.to_le_bytes());
            base.extend(content);
            oob.push(record);
        }
        let (index, cause) = ((0..n).collect::<Vec<u32>>(), vec![Cause::User; n as usize]);
        let content = Gather::new(&base, &index, 4096);
        let request = Request::write(&at, content, &oob, &cause);
        let _ = dev.io(&cx, request).await; // programs may fail: whatever is there then is promised
    });
}

/// What an image promises.
#[derive(PartialEq, Eq)]
struct Seen {
    /// Everything but contents, as text.
    state: String,
    commits: u64,
    sectors: Vec<Sector>,
    erases: Vec<u32>,
}

/// A sector as it is read.
#[derive(Debug, PartialEq, Eq)]
struct Sector {
    status: Status,
    /// Checksum of the content.
    crc: u32,
    record: [u8; OOB_BYTES],
    /// The record is right for the content.
    right: bool,
    /// Read without the content.
    alone: (Status, [u8; OOB_BYTES]),
}

/// Out-of-band records alone, as a mount reads them.
fn records(bench: &Bench, places: &[(u32, u32, u32, u32)]) -> Vec<(Status, [u8; OOB_BYTES])> {
    let at = bench.at(places);
    bench.run(move |cx, dev| async move {
        let index: Vec<u32> = (0..at.len() as u32).collect();
        let mut oob = vec![[0; OOB_BYTES]; at.len()];
        let content = Scatter::new(&mut [], &index, 0);
        let done = dev.io(&cx, Request::read(&at, content, &mut oob)).await;
        oob.into_iter().enumerate().map(|(i, record)| (done.status(i), record)).collect()
    })
}

fn look(ssd: &Arc<Ssd>) -> Seen {
    let bench = Bench::new(ssd.clone());
    let chunks: Vec<_> = (0..PUS).flat_map(|pu| ssd.chunk_report(pu, 0, CHUNKS)).collect();
    let marks: Vec<_> = (0..PUS).map(|pu| ssd.bad_blocks(pu).expect("a PU").blocks).collect();
    let (counters, targets, faults) = (ssd.counters(), ssd.targets(), ssd.faults());
    let info = ssd.image_info().expect("an image");
    let life = (info.uuid, info.seed, info.clock, info.power_cuts, info.unsafe_shutdowns);
    // A reader does not count itself.
    let cycles = info.power_cycles - !info.read_only as u64;
    let places: Vec<_> =
        (0..PUS).flat_map(|pu| (0..CHUNKS).map(move |c| (pu, c, 0, SECTORS))).collect();
    let (got, alone) = (bench.read(&places), records(&bench, &places));
    let contents = got.data.chunks(4096).zip(&got.oob).zip(alone).enumerate();
    let sectors = contents.map(|(i, ((content, record), alone))| {
        let crc = flashlane_base::crc32c(content);
        let right = flashlane_base::crc32c_append(crc, &record[..12]).to_le_bytes() == record[12..];
        Sector { status: got.done.status(i), crc, record: *record, right, alone }
    });
    let sectors: Vec<Sector> = sectors.collect();
    if sectors.iter().any(|s| s.status == Status::HostFault || s.alone.0 == Status::HostFault) {
        let says = ssd.host_trouble().expect("a reason");
        assert!(says.contains("the image is damaged: sector"), "{says}");
    }
    let erases = chunks.iter().map(|c| c.erases).collect();
    let commits = info.commits;
    let life = (life.0, life.1, life.2, life.3, cycles);
    Seen {
        state: format!("{chunks:?}{marks:?}{counters:?}{targets:?}{faults:?}{life:?}"),
        commits,
        sectors,
        erases,
    }
}

fn open(bytes: Vec<u8>, read_only: bool) -> (Arc<MemoryFile>, Result<Arc<Ssd>, ImageError>) {
    let file = Arc::new(MemoryFile::new(bytes));
    let how = OpenImage { read_only, quiet: true, ..OpenImage::default() };
    (file.clone(), Ssd::open_on(file, &how))
}

/// An image with its past.
struct History {
    file: Arc<MemoryFile>,
    ssd: Arc<Ssd>,
    bench: Bench,
    rng: Rng,
    stamp: u64,
    /// The file when it was last opened: durable.
    start: Vec<u8>,
    /// The file at moments before now.
    older: Vec<Vec<u8>>,
    /// Operations of this life's file when they were copied.
    copied: Vec<usize>,
    /// By stamp, what was written where: chunk, first sector, erases of the chunk.
    written: BTreeMap<u64, (u32, u32, u32)>,
}

impl History {
    fn play(seed: u64) -> History {
        let mut rng = Rng::stream(seed, "damage.history", 0);
        let file = Arc::new(MemoryFile::default());
        let create = CreateImage { seed, ..CreateImage::default() };
        Ssd::create_on(file.clone(), &spec(rng.below(3) == 0), &create).expect("created");
        let start = file.bytes();
        let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).expect("new");
        let bench = Bench::new(ssd.clone());
        let (stamp, older, copied, written) = (1, Vec::new(), Vec::new(), BTreeMap::new());
        let mut history = History { file, ssd, bench, rng, stamp, start, older, copied, written };
        let steps = 5 + history.rng.below(120);
        let settings = [300, 3_000, 20_000][history.rng.below(3) as usize];
        for step in 0..steps {
            if step.is_multiple_of(steps.div_ceil(8)) || history.rng.below(30) == 0 {
                history.older.push(history.file.bytes());
                history.copied.push(history.file.ops());
            }
            history.step(settings);
        }
        match history.rng.below(4) {
            0 => history.ssd.close().expect("closed"),
            1 => drop(history.bench.plain(Op::Flush, vec![], Flags::default())),
            2 => history.lose_power(),
            _ => {} // killed, with whatever was not flushed
        }
        history
    }

    fn below(&mut self, n: u64) -> u32 {
        self.rng.below(n) as u32
    }

    fn step(&mut self, settings: u64) {
        let place = (self.below(PUS as u64), self.below(CHUNKS as u64));
        let info = self.bench.info(place.0, place.1);
        self.stamp += 1;
        match self.below(20) {
            0..7 if matches!(info.state, ChunkState::Free | ChunkState::Open) => {
                let n = 2.max(2 * self.below(3)).min(SECTORS - info.write_pointer);
                let at = (place.0 * CHUNKS + place.1, info.write_pointer, info.erases);
                self.written.insert(self.stamp, at);
                write(&self.bench, place, info.write_pointer, n, self.stamp);
            }
            0..9 if info.state == ChunkState::Offline => {}
            0..9 => drop(self.bench.reset(place.0, place.1)),
            9..14 => drop(self.bench.plain(Op::Flush, vec![], Flags::default())),
            14..16 => {
                let bytes = vec![self.stamp as u8; self.rng.below(settings) as usize];
                self.ssd.set_targets(&bytes).expect("kept");
            }
            16 => {
                let kind = ["early_close", "erase_fail", "bit_flip"][self.below(3) as usize];
                let plan = format!("[[fault]]\nkind = \"{kind}\"\nat = \"pu {}\"", place.0);
                self.ssd.inject(&FaultPlan::from_toml(&plan).expect("a plan")).expect("kept");
            }
            17 => {
                let at = self.bench.at(&[(place.0, place.1, 0, 1)]);
                let mark = [GROWN_BAD, 0, 0, 0][self.below(4) as usize];
                assert!(self.ssd.set_bad_blocks(&at, mark));
            }
            18 => {
                let _ = self.ssd.power_cut(self.bench.now(), PowerOn::ClockGoesOn);
            }
            _ => match self.below(3) {
                0 => {
                    self.ssd.close().expect("closed");
                    self.restart(self.file.bytes());
                }
                1 => self.restart(self.file.bytes()),
                _ => self.lose_power(),
            },
        }
    }

    /// The host loses its power, now or a few operations ago.
    fn lose_power(&mut self) {
        let ops = self.file.ops();
        let at = ops - (self.rng.below(6) as usize).min(ops);
        let moment = Moment::new(&self.start, &self.file.log(), at);
        // What came after that moment never was.
        let kept = self.copied.partition_point(|ops| *ops <= at);
        self.older.truncate(kept);
        self.copied.truncate(kept);
        let keep = self.rng.below(9);
        let left = moment.sample(&mut self.rng, keep);
        self.restart(left);
    }

    fn restart(&mut self, bytes: Vec<u8>) {
        self.start = bytes.clone();
        self.copied.fill(0);
        self.file = Arc::new(MemoryFile::new(bytes));
        let opened = Ssd::open_on(self.file.clone(), &OpenImage::default());
        self.ssd = opened.unwrap_or_else(|e| panic!("no damage yet: {e}"));
        self.bench = Bench::new(self.ssd.clone());
    }
}

/// Where what lies, twice where it is small or matters most.
fn regions(layout: &Layout, len: u64) -> Vec<Range<u64>> {
    let (table, journal) = (layout.table_at(), layout.journal_at());
    let (half, slots) = (layout.frame_at(1, 0), layout.slots_at());
    let of_chunks = table + layout.extra_row() as u64 * 64;
    let mut all = vec![0..2 * HEADER_BYTES, HOLDER_AT..table, table..of_chunks, table..journal];
    all.extend([journal..half, half..slots, journal..half, half..slots, journal..slots]);
    if len > slots {
        all.extend([slots..len, 0..len]);
    }
    all
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    /// Refused: the damage is named.
    Refused,
    /// Exactly as promised.
    Whole,
    /// As promised but for sectors that are errors, each of which is named.
    Named,
    /// Sectors that came along whole from an earlier time, when a kill or a cut took their program back
    /// and the chunk was programmed again without an erase. IMAGE.md, section 5.
    Rewritten,
    /// The last commit is gone, and the mark did not name it: it was so young that the mark had not
    /// been written, or went back together with it. IMAGE.md, section 5.
    Unmarked,
}

/// Whether nothing in a file that was hurt can tell that commits behind `found` are gone, up to `last`:
/// the hurt took frames of the last one, and the mark says less, or was made to.
fn unmarked(damage: &Damage, bytes: &[u8], layout: &Layout, found: u64, last: u64) -> bool {
    let word = |at: u64| u64::from_le_bytes(bytes[at as usize..][..8].try_into().unwrap());
    let marked = word(MARK_AT + 8);
    let frames = (layout.journal_at()..layout.slots_at()).step_by(512);
    let mut frames = frames.filter(|at| word(at + 8) == last).map(|at| at..at + 512);
    let with_mark = matches!(damage.what, What::Old(_)) && damage.hits(&(MARK_AT..MARK_AT + 512));
    (marked <= found || with_mark) && frames.any(|frame| damage.hits(&frame))
}

/// Whether what is read at the `i`-th sector was written just there, in the life that its chunk is in.
fn rewritten(history: &History, promised: &Seen, i: usize, record: &[u8; OOB_BYTES]) -> bool {
    let stamp = u64::from_le_bytes(record[..8].try_into().expect("8 bytes"));
    let nth = u32::from_le_bytes(record[8..12].try_into().expect("4 bytes"));
    let (chunk, sector) = (i as u32 / SECTORS, i as u32 % SECTORS);
    let here = (chunk, sector.wrapping_sub(nth), promised.erases[chunk as usize]);
    history.written.get(&stamp) == Some(&here)
}

/// An error that says what is wrong with the file. Without both magics it is no image.
fn names_it(e: &ImageError) -> bool {
    matches!(e, ImageError::NotAnImage { .. }) || e.to_string().contains("damaged")
}

fn trial(
    history: &History,
    now: &[u8],
    promised: &Seen,
    damage: Damage,
) -> Result<Outcome, String> {
    let layout = layout(&Header::read(&*history.file).expect("a header").spec);
    let mut hurt = now.to_vec();
    damage.apply(&mut hurt, &history.older);
    let mut outcomes = Vec::new();
    for read_only in [true, false] {
        let (file, opened) = open(hurt.clone(), read_only);
        let ssd = match opened {
            Err(e) if !names_it(&e) => return Err(format!("says {e}")),
            Err(_) if file.bytes() != hurt => return Err("refused, and written to".into()),
            Err(_) => {
                outcomes.push(Outcome::Refused);
                continue;
            }
            Ok(ssd) => ssd,
        };
        let seen = look(&ssd);
        outcomes.push(match seen.commits.cmp(&promised.commits) {
            std::cmp::Ordering::Less => {
                let (found, last) = (seen.commits, promised.commits);
                let admitted = unmarked(&damage, now, &layout, found, last);
                match admitted {
                    true => Outcome::Unmarked,
                    false => return Err(format!("commit {}, silently", seen.commits)),
                }
            }
            _ if seen.commits > promised.commits || seen.state != promised.state => {
                return Err(format!("another state:\n{}\n{}", seen.state, promised.state));
            }
            _ => {
                let mut outcome = Outcome::Whole;
                for (i, (found, wanted)) in seen.sectors.iter().zip(&promised.sectors).enumerate() {
                    let named = |status| status == Status::HostFault;
                    let alone = named(found.alone.0) || found.alone == wanted.alone;
                    let whole = Sector { alone: wanted.alone, ..*found } == *wanted;
                    let old = |record| {
                        matches!(damage.what, What::Old(_))
                            && rewritten(history, promised, i, record)
                    };
                    outcome = outcome.max(match () {
                        () if found == wanted => Outcome::Whole,
                        () if (named(found.status) || whole) && alone => Outcome::Named,
                        () if found.right && old(&found.record) => Outcome::Rewritten,
                        () if named(found.status) && old(&found.alone.1) => Outcome::Rewritten,
                        () => return Err(format!("sector {i}: {found:?}, not {wanted:?}")),
                    });
                }
                outcome
            }
        });
        if !read_only {
            goes_on(&ssd, &file)?;
        }
    }
    outcomes.dedup();
    match outcomes[..] {
        [both] => Ok(both),
        _ => Err(format!("a reader and a writer differ: {outcomes:?}")),
    }
}

/// What was opened for writing takes a commit, and opens again with it.
fn goes_on(ssd: &Arc<Ssd>, file: &MemoryFile) -> Result<(), String> {
    for n in 1..=3u8 {
        let settings = vec![n; 700 * n as usize];
        ssd.set_targets(&settings).map_err(|e| format!("takes no commit: {e}"))?;
        let again = open(file.bytes(), true).1.map_err(|e| format!("does not go on: {e}"))?;
        if again.targets() != settings {
            return Err("a commit behind the damage is gone".into());
        }
    }
    Ok(())
}

fn trials(range: Range<u64>) -> BTreeMap<Outcome, u64> {
    let mut count = BTreeMap::new();
    let mut at: Option<(u64, History, Vec<u8>, Seen)> = None;
    for n in range {
        let seed = n / PER_HISTORY;
        if at.as_ref().is_none_or(|(of, ..)| *of != seed) {
            let history = History::play(seed);
            let now = history.file.bytes();
            let promised = look(&open(now.clone(), true).1.expect("sound"));
            at = Some((seed, history, now, promised));
        }
        let (_, history, now, promised) = at.as_ref().expect("made");
        let mut rng = Rng::stream(n, "damage.trial", 0);
        let spec = Header::read(&*history.file).expect("a header").spec;
        let regions = regions(&layout(&spec), now.len() as u64);
        let damage = Damage::draw(&mut rng, now, &history.older, &regions);
        match trial(history, now, promised, damage) {
            Ok(outcome) => *count.entry(outcome).or_insert(0) += 1,
            Err(says) => panic!(
                "trial {n}, {damage}: {says}\nagain: FLASHLANE_DAMAGE={n}..{} cargo test -p flashlane-ocssd \
                 --test ssd damage -- --nocapture",
                n + 1
            ),
        }
    }
    count
}

/// The trials that `FLASHLANE_DAMAGE` asks for (`from..end`), else the first thousand.
#[test]
#[allow(clippy::disallowed_methods)] // which trials: for people
fn a_damaged_image_is_refused_or_as_promised() {
    let asked = std::env::var("FLASHLANE_DAMAGE").ok();
    let range = asked.as_deref().map_or(0..1000, |asked| {
        let (from, end) = asked.split_once("..").expect("from..end");
        from.parse().expect("a number")..end.parse().expect("a number")
    });
    let count = trials(range);
    println!("{count:?}");
    if asked.is_none() {
        let of = |outcome| count.get(&outcome).copied().unwrap_or(0);
        let many = [Outcome::Refused, Outcome::Whole, Outcome::Named].map(of);
        assert!(many.iter().all(|n| *n > 50), "one-sided: {count:?}");
        assert!(of(Outcome::Unmarked) < 20 && of(Outcome::Rewritten) < 5, "{count:?}");
    }
}

/// A chunk's content is checked with its place and its erases: what was written to the same bytes of
/// the file at another time, or to another sector, is an error. What is sound beside it is read.
#[test]
fn content_from_elsewhere_is_an_error() {
    let file = Arc::new(MemoryFile::default());
    let spec = spec(false);
    Ssd::create_on(file.clone(), &spec, &CreateImage::default()).expect("created");
    let ssd = Ssd::open_on(file.clone(), &OpenImage::default()).expect("new");
    let bench = Bench::new(ssd.clone());
    let flush = || assert_eq!(bench.flush(), Status::Ok);
    let mut lives = Vec::new();
    for life in 0..3 {
        write(&bench, (0, 0), 0, SECTORS, 10 + life);
        flush();
        lives.push(file.bytes());
        if life < 2 {
            assert_eq!(bench.reset(0, 0), Status::Ok);
            flush();
        }
    }
    write(&bench, (1, 2), 0, SECTORS, 20);
    flush();
    let now = file.bytes();
    let layout = layout(&spec);
    let whole = look(&open(now.clone(), true).1.expect("sound"));
    let statuses = |bytes: Vec<u8>| {
        let seen = look(&open(bytes, true).1.expect("the table is sound"));
        for (found, wanted) in seen.sectors.iter().zip(&whole.sectors) {
            assert!(found == wanted || found.status == Status::HostFault, "{found:?}");
        }
        let faulty = |s: &Sector| s.status == Status::HostFault;
        (0..seen.sectors.len()).filter(|i| faulty(&seen.sectors[*i])).collect::<Vec<_>>()
    };
    assert_eq!(statuses(now.clone()), [0usize; 0]);
    // The first life's content lies where the third's does.
    let mut older = now.clone();
    let slot = layout.slot_at(0) as usize..layout.slot_at(1) as usize;
    assert!(lives[0][slot.clone()] != now[slot.clone()] && lives[0].len() >= slot.end);
    older[slot.clone()].copy_from_slice(&lives[0][slot.clone()]);
    assert_eq!(statuses(older), [0, 1, 2, 3]);
    // Two sectors of it change places, with their records.
    let mut swapped = now.clone();
    let at = |sector| layout.sector_at(0, sector);
    for i in 0..4096 {
        swapped.swap(at(1).0 as usize + i, at(3).0 as usize + i);
    }
    for i in 0..layout.record_bytes() {
        swapped.swap(at(1).1 as usize + i, at(3).1 as usize + i);
    }
    assert_eq!(statuses(swapped), [1, 3]);
    // One bit of the content, one of the record.
    for (at, sector) in [(at(2).0 + 77, 2), (at(0).1 + 3, 0), (at(1).1 + 17, 1), (at(3).1 + 20, 3)]
    {
        let mut bytes = now.clone();
        bytes[at as usize] ^= 4;
        assert_eq!(statuses(bytes.clone()), [sector]);
        let ssd = open(bytes, true).1.expect("the table is sound");
        let named: Vec<_> = (0..CHUNKS).flat_map(|c| ssd.unsound_sectors(0, c, 16).1).collect();
        let says = format!(
            "sector {sector} of chunk 0 on PU 0, at byte {}",
            layout.sector_at(0, sector as u32).0
        );
        assert!(matches!(&named[..], [(s, text)] if *s as usize == sector && text.contains(&says)));
    }
}

/// A program that failed behind its acknowledgement left nothing in the image, and there is nothing
/// wrong with it; nor where its sectors can't be read yet.
#[test]
fn what_the_medium_lost_is_no_damage() {
    let spec = crate::common::tiny(|s| s.geometry.mw_cunits = 2 * s.geometry.ws_min);
    let plan = "[[fault]]\nkind = \"write_next_unit\"\nat = \"pu 0\"\ncount = 1";
    let file = image_of(&spec);
    let faults = FaultPlan::from_toml(plan).expect("a plan");
    let how = OpenImage { faults, ..OpenImage::default() };
    let ssd = Ssd::open_on(file.clone(), &how).expect("new");
    let bench = Bench::new(ssd.clone());
    let unit = spec.geometry.ws_min;
    write(&bench, (0, 0), 0, unit, 1);
    assert_eq!(bench.info(0, 0).write_pointer, unit);
    ssd.close().expect("closed");
    let ssd = open(file.bytes(), true).1.expect("sound");
    assert_eq!(ssd.unsound_sectors(0, 0, 16), (0, vec![]));
}
