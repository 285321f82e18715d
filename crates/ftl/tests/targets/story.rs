//! A short story of requests, told again and again with the power going off at each of its commands.
//!
//! Owns: what each sector may hold after a cut ([`Telling::may_hold`]), the enumeration of cuts
//! ([`cut_at_each`]). Promises: the story up to the cut is the same each time; what was flushed is asked
//! for exactly, what was not may be old or new, per sector. Never: samples where it can enumerate.

/// A step. The n-th step writes version n, counted from 1.
use crate::prelude::*;

#[derive(Clone, Copy, Debug)]
pub(crate) enum Do {
    Write(u64, u32),
    /// A write with FUA.
    Fua(u64, u32),
    Discard(u64, u32),
    Flush,
    Gc,
    /// A clean stop; the last step.
    Stop,
    /// Nothing, for so many microseconds.
    Rest(u64),
}

/// What happened to the sectors so far. A version of 0 is zeros.
#[derive(Default)]
pub(crate) struct Telling {
    /// Versions that a sector may have after a cut: what was durable last, and everything since.
    states: BTreeMap<u64, Vec<u64>>,
    version: u64,
}

impl Telling {
    fn set(&mut self, lba: u64, sectors: u32, version: u64) {
        for l in lba..lba + u64::from(sectors) {
            self.states.entry(l).or_insert_with(|| vec![0]).push(version);
        }
    }

    fn durable(&mut self, lba: u64) {
        if let Some(states) = self.states.get_mut(&lba) {
            states.drain(..states.len() - 1);
        }
    }

    fn all_durable(&mut self) {
        self.states.values_mut().for_each(|states| drop(states.drain(..states.len() - 1)));
    }

    /// The versions that a sector may have after a cut now.
    pub(crate) fn may_hold(&self, lba: u64) -> Vec<u64> {
        self.states.get(&lba).cloned().unwrap_or_else(|| vec![0])
    }
}

/// Tells a story to a target. Steps follow each other; a version becomes durable when the flush behind
/// it has returned.
pub(crate) async fn tell(cx: Cx, dev: Arc<Pblk>, steps: Vec<Do>, so_far: Rc<RefCell<Telling>>) {
    let unit = dev.info().content_bytes;
    for step in steps {
        let version = {
            let mut t = so_far.borrow_mut();
            t.version += 1;
            t.version
        };
        let (op, lba, sectors, fua) = match step {
            Do::Write(lba, sectors) => (BlockOp::Write, lba, sectors, false),
            Do::Fua(lba, sectors) => (BlockOp::Write, lba, sectors, true),
            Do::Discard(lba, sectors) => (BlockOp::Discard, lba, sectors, false),
            Do::Flush => (BlockOp::Flush, 0, 0, false),
            Do::Gc => {
                dev.gc_once(&cx).await;
                continue;
            }
            Do::Stop => {
                dev.stop(&cx).await.expect("everything is durable");
                so_far.borrow_mut().all_durable();
                continue;
            }
            Do::Rest(us) => {
                cx.sleep(Ns::from_us(us)).await;
                continue;
            }
        };
        let mut buf = Vec::new();
        match op {
            BlockOp::Write => {
                so_far.borrow_mut().set(lba, sectors, version);
                let each = lba..lba + u64::from(sectors);
                buf = each.flat_map(|l| content(l, version, unit)).collect();
            }
            BlockOp::Discard => so_far.borrow_mut().set(lba, sectors, 0),
            _ => {}
        }
        let io = Io::of(op, Lba::new(lba), sectors, fua, &mut buf);
        dev.start(&cx, io).await.expect("a request");
        let mut t = so_far.borrow_mut();
        if op == BlockOp::Flush {
            t.all_durable();
        }
        if fua {
            (lba..lba + u64::from(sectors)).for_each(|l| t.durable(l));
        }
    }
}

impl Bench {
    /// Tells a story to its end.
    pub(crate) fn told(&self, steps: &[Do], so_far: &Rc<RefCell<Telling>>) {
        self.wait(tell(self.cx.clone(), self.dev.clone(), steps.to_vec(), so_far.clone()));
    }

    /// Which version a sector has; 0 is zeros, `None` an error. Another content is no version of it.
    pub(crate) fn version(&self, lba: u64, candidates: &[u64]) -> Option<u64> {
        let unit = self.dev.info().content_bytes;
        let (read, got) =
            self.wait(self.request(0, (BlockOp::Read, lba, 1, false), vec![0xa5; unit]));
        read.ok()?;
        let is = |version: &&u64| match **version {
            0 => got.iter().all(|b| *b == 0),
            version => got == content(lba, version, unit),
        };
        let found = candidates.iter().find(is).copied();
        let all: Vec<u64> = (0..200).filter(|v| is(&v)).collect();
        Some(found.unwrap_or_else(|| panic!("sector {lba} has {all:?}, not {candidates:?}")))
    }

    /// Every sector of the story is what it may be.
    pub(crate) fn agrees_with(&self, telling: &Telling) -> BTreeMap<u64, u64> {
        let sector = |lba: &u64| {
            let version = self.version(*lba, &telling.may_hold(*lba));
            (*lba, version.unwrap_or_else(|| panic!("sector {lba} can't be read")))
        };
        telling.states.keys().map(sector).collect()
    }
}

/// Tells `before` undisturbed, then `story` with the power going off at each of its commands, before and
/// within; what is found then is what it may be, twice, and the target works on. Returns the cuts.
pub(crate) fn cut_at_each(setup: &Setup, before: &[Do], story: &[Do], every: u64) -> usize {
    cut_at(setup, before, story, Every::Command(every))
}

/// As [`cut_at_each`], at erases only.
pub(crate) fn cut_at_erases(setup: &Setup, before: &[Do], story: &[Do]) -> usize {
    cut_at(setup, before, story, Every::Erase)
}

#[derive(Clone, Copy)]
enum Every {
    Command(u64),
    Erase,
}

fn cut_at(setup: &Setup, before: &[Do], story: &[Do], every: Every) -> usize {
    let (bench, telling) = setup.told(before);
    let first = bench.face.commands();
    bench.told(story, &telling);
    let asked = bench.face.everything().split_off(first as usize);
    bench.cut();
    let wanted = |(i, (op, _)): &(u64, (Op, Vec<Spot>))| match every {
        Every::Command(n) => i.is_multiple_of(n),
        Every::Erase => *op == Op::Reset,
    };
    let wanted = (0..).zip(asked).filter(wanted).map(|(i, _)| first + i);
    let cuts = wanted
        .flat_map(|n| stops(n..n + 1))
        .map(|stop| cut_once(setup, before, story, stop, Ns::ZERO));
    cuts.count()
}

/// Tells `before` undisturbed, then `story` with the power going off then, `until` then at the latest.
fn cut_once(setup: &Setup, before: &[Do], story: &[Do], stop: Stop, until: Ns) {
    let Up::Running(bench) = Medium::new(setup.clone()).create_until(Some(stop)) else {
        panic!("the power goes off in the story");
    };
    let telling = Rc::new(RefCell::new(Telling::default()));
    bench.told(before, &telling);
    let cx = bench.cx.clone();
    let work = tell(cx.clone(), bench.dev.clone(), story.to_vec(), telling.clone());
    bench.works_until_off(async move {
        work.await;
        cx.sleep_until(until).await;
    });
    check(&bench.cut(), &telling.borrow(), stop);
}

/// Tells `before` undisturbed, then `story` with the power going off `every` so often from its beginning
/// until `after` its end; as [`cut_at_each`] otherwise.
pub(crate) fn cut_at_times(
    setup: &Setup,
    before: &[Do],
    story: &[Do],
    (every, after): (Ns, Ns),
) -> usize {
    let (bench, telling) = setup.told(before);
    let mut at = bench.cx.now() + Ns::from_ns(1);
    bench.told(story, &telling);
    let end = bench.cx.now() + after;
    bench.cut();
    let mut cuts = 0;
    while at < end {
        cut_once(setup, before, story, Stop::At(at), end);
        at += every;
        cuts += 1;
    }
    cuts
}

/// What the story may have left is there, in two lives; then everything still works.
fn check(medium: &Medium, telling: &Telling, stop: Stop) {
    let mounted = |medium: &Medium| match medium.mount(MountOptions::default()) {
        Ok(bench) => bench,
        Err(error) => panic!("{stop:?}: {error}"),
    };
    let bench = mounted(medium);
    let found = bench.agrees_with(telling);
    bench.agrees();
    let bench = mounted(&bench.cut());
    assert_eq!(bench.agrees_with(telling), found, "{stop:?}");
    bench.write(0, 8, 1000);
    bench.flush();
    bench.read(0, 8);
    bench.agrees();
}
