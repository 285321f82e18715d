//! Swarm testing: each seed draws its own kind of workload and drives a device against the oracle.
//!
//! Owns: the options of a seed, the phases, the workers. Promises: options and requests are a
//! function of the seed alone; every request is checked and at the end every sector is read.
//! Never: knows what the device is made of.
//!
//! Random testing with one fixed mix keeps finding the same states. A seed that never flushes, one
//! that does nothing but flush and one that hammers a single sector reach states that an average of
//! the three never sees (Groce et al., "Swarm Testing", ISSTA 2012; TigerBeetle's VOPR).

use crate::host::Host;
use crate::oracle::Wrong;
use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::BlockOp;
use flashlane_rt::{CoreId, CostTable, Cx};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

/// A future on its way, boxed: set-up and knobs, never the data path.
pub type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Turns some knob of the stack; the number says which and how far.
pub type Knob = Rc<dyn Fn(Cx, u64) -> Boxed<'static, ()>>;

/// What a phase does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Every sector once, in order, by all workers together (a part of them at small effort).
    Fill,
    /// The seed's own mix.
    Mix,
    /// One sector, over and over, with a flush now and then.
    Hammer,
    /// Random overwrites and nothing else: what garbage collection fears.
    Overwrite,
    /// The whole device is discarded, in large pieces.
    DiscardAll,
    /// One request at a time with pauses: tails below a write unit, idle timers.
    Trickle,
}

const KINDS: [Kind; 6] =
    [Kind::Fill, Kind::Mix, Kind::Hammer, Kind::Overwrite, Kind::DiscardAll, Kind::Trickle];

/// One phase: a kind and a budget in sectors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Phase {
    pub kind: Kind,
    /// Sectors to touch; a request without sectors counts as one.
    pub sectors: u64,
}

/// What a seed has drawn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub seed: u64,
    /// Simulated cores; workers are spread over them.
    pub cores: u32,
    /// Workers: requests under way at once.
    pub depth: u32,
    /// Longest request in sectors.
    pub sectors_max: u32,
    /// Requests of one sector, in percent; the others have 1 to `sectors_max`.
    pub single: u64,
    /// Weights of read, write, discard, flush, nonsense.
    pub mix: [u64; 5],
    /// Writes with FUA, in percent.
    pub fua: u64,
    /// Requests that go to the hot set, in percent, and its size in sectors.
    pub hot: (u64, u64),
    /// Each worker keeps to a part of its own: no two requests ever overlap.
    pub apart: bool,
    /// Pauses before a request: chance in percent, longest.
    pub idle: (u64, Ns),
    /// A knob is turned before a request, in 1/1000.
    pub knob: u64,
    /// CPU work costs time.
    pub priced: bool,
    /// What happens, in order.
    pub phases: Vec<Phase>,
}

impl Options {
    /// Draws the options of `seed` for a device of `capacity` sectors. `effort` scales how much is
    /// written: 100 is about twice the capacity, but no more than 40,000 sectors.
    pub fn draw(seed: u64, capacity: u64, effort: u64) -> Options {
        let mut rng = Rng::stream(seed, "swarm.options", 0);
        let r = &mut rng;
        let one_of = |r: &mut Rng, of: &[u64]| of[r.below(of.len() as u64) as usize];
        let total = ((1 + r.below(4)) * capacity).min(40_000) * effort / 100;
        let phases = 1 + r.below(6);
        let kinds = (0..phases).map(|_| KINDS[r.below(KINDS.len() as u64) as usize]);
        let kinds: Vec<Kind> = kinds.collect();
        let phase = |kind| Phase {
            kind,
            sectors: match kind {
                Kind::Fill | Kind::DiscardAll => (capacity * effort.min(100) / 100).max(1),
                Kind::Mix | Kind::Overwrite => (total / phases).max(1),
                Kind::Hammer | Kind::Trickle => (total / phases / 8).clamp(1, 1_000),
            },
        };
        let sectors_max = one_of(r, &[1, 2, 8, 33, 64, 64, 200]).min(capacity) as u32;
        Options {
            seed,
            cores: one_of(r, &[1, 1, 2, 4]) as u32,
            depth: one_of(r, &[1, 2, 4, 8, 16, 32, 64]) as u32,
            sectors_max,
            single: one_of(r, &[0, 30, 70, 100]),
            mix: [
                one_of(r, &[0, 2, 8, 20]),
                one_of(r, &[1, 8, 20]),
                one_of(r, &[0, 0, 1, 8]),
                one_of(r, &[0, 0, 1, 8]),
                one_of(r, &[0, 0, 1]),
            ],
            fua: one_of(r, &[0, 0, 2, 20, 100]),
            hot: (one_of(r, &[0, 50, 90]), 1 + r.below(capacity / 4 + 1)),
            apart: r.below(3) == 0,
            idle: (one_of(r, &[0, 0, 1, 20]), Ns::from_us(one_of(r, &[1, 100, 20_000]))),
            knob: one_of(r, &[0, 1, 20]),
            priced: r.below(4) == 0,
            phases: kinds.into_iter().map(phase).collect(),
        }
    }

    /// As [`Options::draw`], for a life of many that are cut: the first one fills the device most of the
    /// time, the others change a part of it. Something is flushed in most of them, and the longest has two
    /// hundred times the sectors of the shortest.
    pub fn aimed(seed: u64, capacity: u64, effort: u64, first: bool) -> Options {
        let usual = Options::draw(seed, capacity, effort);
        let mut rng = Rng::stream(seed, "swarm.aimed", 0);
        let r = &mut rng;
        let one_of = |r: &mut Rng, of: &[u64]| of[r.below(of.len() as u64) as usize];
        let most = if first { 1 } else { 8 };
        let total = 2 * capacity.min(2_000) * effort / 100;
        let total = (total >> r.below(most)).max(16);
        let mut kinds = Vec::new();
        if first && r.below(4) > 0 {
            kinds.push(Kind::Fill);
        }
        for _ in 0..1 + r.below(2) {
            use Kind::{DiscardAll, Hammer, Mix, Overwrite, Trickle};
            let of = [Mix, Mix, Mix, Mix, Overwrite, Overwrite, Hammer, Trickle, DiscardAll];
            kinds.push(of[r.below(of.len() as u64) as usize]);
        }
        let phase = |kind| Phase {
            kind,
            sectors: match kind {
                Kind::Fill => (capacity * effort.min(100) / 100).max(1),
                Kind::DiscardAll => (capacity / 2).max(1),
                Kind::Mix | Kind::Overwrite => total,
                Kind::Hammer | Kind::Trickle => (total / 8).clamp(1, 500),
            },
        };
        let longest: &[u64] = if first { &[8, 33, 64] } else { &[1, 2, 8, 8, 33, 64] };
        Options {
            sectors_max: one_of(r, longest).min(capacity) as u32,
            mix: [
                one_of(r, &[0, 1, 4]),
                one_of(r, &[8, 20]),
                one_of(r, &[0, 1, 4, 8]),
                one_of(r, &[0, 1, 1, 4, 8]),
                one_of(r, &[0, 0, 0, 1]),
            ],
            fua: one_of(r, &[0, 0, 5, 20, 100]),
            hot: (one_of(r, &[0, 50, 90]), 1 + r.below(capacity / 4 + 1)),
            phases: kinds.into_iter().map(phase).collect(),
            ..usual
        }
    }

    /// What CPU work costs in this run.
    pub fn costs(&self) -> CostTable {
        if !self.priced {
            return CostTable::zero();
        }
        let mut rng = Rng::stream(self.seed, "swarm.costs", 0);
        let stages = flashlane_rt::cost::STAGES.iter();
        let stages: String =
            stages.map(|(name, _)| format!("\"{name}\" = \"{}ns\"\n", rng.below(2_000))).collect();
        let text = format!("name = \"swarm\"\nhandoff_per_waiter = \"20ns\"\n[stages]\n{stages}");
        CostTable::from_toml(&text).unwrap_or_else(|_| CostTable::zero())
    }
}

/// Why a run ended early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub at: Ns,
    pub phase: Option<Phase>,
    pub wrong: Wrong,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at {} ns", self.at.as_ns())?;
        match self.phase {
            Some(phase) => write!(f, ", phase {:?}", phase.kind)?,
            None => write!(f, ", reading everything back")?,
        }
        write!(f, ": {}", self.wrong)
    }
}

/// What the workers of a phase share.
struct Shared {
    host: Rc<Host>,
    options: Options,
    knob: Option<Knob>,
    phase: Phase,
    number: u64,
    /// Sectors left to touch, and, for ordered phases, the next sector.
    left: Cell<u64>,
    next: Cell<u64>,
    broken: RefCell<Option<Broken>>,
}

/// Runs all phases, flushes, and reads everything back.
pub async fn drive(
    cx: Cx,
    host: Rc<Host>,
    options: Options,
    knob: Option<Knob>,
) -> Result<(), Broken> {
    for (number, phase) in options.phases.clone().into_iter().enumerate() {
        host.now_doing(format!("phase {}, {:?}", number + 1, phase.kind));
        let shared = Rc::new(Shared {
            host: host.clone(),
            options: options.clone(),
            knob: knob.clone(),
            phase,
            number: number as u64,
            left: Cell::new(phase.sectors),
            next: Cell::new(0),
            broken: RefCell::new(None),
        });
        let workers = match phase.kind {
            Kind::Trickle => 1,
            _ => options.depth,
        };
        let joins: Vec<_> = (0..workers)
            .map(|worker| {
                let cx = core_of(&cx, worker);
                cx.clone().spawn_join(work(cx, shared.clone(), worker))
            })
            .collect();
        for join in joins {
            join.await;
        }
        if let Some(broken) = shared.broken.take() {
            return Err(broken);
        }
    }
    let here = |wrong| Broken { at: cx.now(), phase: None, wrong };
    host.now_doing("last flush".into());
    host.flush(&cx).await.map_err(here)?;
    read_back(cx.clone(), host.clone()).await
}

/// Simulated cores share the workers out; a real core keeps its own.
fn core_of(cx: &Cx, worker: u32) -> Cx {
    match cx.is_virtual() {
        true => cx.on_core(CoreId(worker % cx.cores())),
        false => cx.clone(),
    }
}

/// Reads every sector, several requests at a time.
pub async fn read_back(cx: Cx, host: Rc<Host>) -> Result<(), Broken> {
    const PIECE: u64 = 64;
    host.now_doing("reading everything back".into());
    let next = Rc::new(Cell::new(0));
    let joins: Vec<_> = (0..8u32)
        .map(|worker| {
            let (cx, host) = (core_of(&cx, worker), host.clone());
            let next = next.clone();
            cx.clone().spawn_join(async move {
                let (capacity, mut buf) = (host.oracle().capacity(), Vec::new());
                while next.get() < capacity {
                    let at = next.get();
                    let sectors = PIECE.min(capacity - at);
                    next.set(at + sectors);
                    let read = host.read(&cx, Lba::new(at), sectors as u32, &mut buf).await;
                    read.map_err(|wrong| Broken { at: cx.now(), phase: None, wrong })?;
                }
                Ok(())
            })
        })
        .collect();
    let mut result = Ok(());
    for join in joins {
        result = result.and(join.await);
    }
    result
}

async fn work(cx: Cx, shared: Rc<Shared>, worker: u32) {
    let stream = shared.number << 32 | worker as u64;
    let mut rng = Rng::stream(shared.options.seed, "swarm.worker", stream);
    let mut buf = Vec::new();
    while shared.broken.borrow().is_none() {
        let Some(request) = shared.draw(&mut rng, worker) else {
            return;
        };
        shared.rest(&cx, &mut rng).await;
        let Request { op, lba, sectors } = request;
        let host = &shared.host;
        let result = match op {
            Op::Read => host.read(&cx, lba, sectors, &mut buf).await,
            Op::Write(fua) => host.write(&cx, lba, sectors, fua, &mut buf).await,
            Op::Discard => host.discard(&cx, lba, sectors).await,
            Op::Flush => host.flush(&cx).await,
            Op::Nonsense(op) => host.ask_nonsense(&cx, op, rng.below(2) == 0).await,
        };
        if let Err(wrong) = result {
            let mut broken = shared.broken.borrow_mut();
            broken.get_or_insert(Broken { at: cx.now(), phase: Some(shared.phase), wrong });
        }
    }
}

#[derive(Clone, Copy)]
enum Op {
    Read,
    Write(bool),
    Discard,
    Flush,
    Nonsense(BlockOp),
}

struct Request {
    op: Op,
    lba: Lba,
    sectors: u32,
}

impl Shared {
    /// The next request, or `None` when the phase's budget is used up.
    fn draw(&self, rng: &mut Rng, worker: u32) -> Option<Request> {
        let left = self.left.get();
        if left == 0 {
            return None;
        }
        let request = match self.phase.kind {
            Kind::Fill | Kind::DiscardAll => self.draw_in_order(rng),
            Kind::Hammer => self.draw_hammer(rng),
            Kind::Overwrite => self.draw_of(rng, worker, 1),
            Kind::Mix | Kind::Trickle => {
                let which = weighted(rng, &self.options.mix);
                self.draw_of(rng, worker, which)
            }
        };
        let ordered = matches!(self.phase.kind, Kind::Fill | Kind::DiscardAll);
        // A large discard is one cheap request: it must not eat the budget of many writes.
        let price = match request.op {
            Op::Discard if !ordered => 1 + request.sectors as u64 / 16,
            _ => request.sectors.max(1) as u64,
        };
        self.left.set(left.saturating_sub(price));
        Some(request)
    }

    fn draw_in_order(&self, rng: &mut Rng) -> Request {
        let (at, capacity) = (self.next.get(), self.host.oracle().capacity());
        let (op, longest) = match self.phase.kind {
            Kind::Fill => (Op::Write(false), self.options.sectors_max as u64),
            _ => (Op::Discard, 1 + capacity / 3),
        };
        let sectors = (1 + rng.below(longest)).min(capacity - at);
        self.next.set(at + sectors);
        Request { op, lba: Lba::new(at), sectors: sectors as u32 }
    }

    fn draw_hammer(&self, rng: &mut Rng) -> Request {
        let hot = self.options.seed.wrapping_mul(0x9e37_79b9) % self.host.oracle().capacity();
        let op = match rng.below(16) {
            0 => Op::Flush,
            1 | 2 => Op::Read,
            _ => Op::Write(rng.below(100) < self.options.fua),
        };
        let sectors = !matches!(op, Op::Flush) as u32;
        Request { op, lba: Lba::new(hot), sectors }
    }

    fn draw_of(&self, rng: &mut Rng, worker: u32, which: usize) -> Request {
        let op = match which {
            0 => Op::Read,
            1 => Op::Write(rng.below(100) < self.options.fua),
            2 => Op::Discard,
            3 => Op::Flush,
            _ => Op::Nonsense(match rng.below(3) {
                0 => BlockOp::Read,
                1 => BlockOp::Write,
                _ => BlockOp::Discard,
            }),
        };
        if let Op::Flush | Op::Nonsense(_) = op {
            return Request { op, lba: Lba::new(0), sectors: 0 };
        }
        let (lba, sectors) = self.draw_place(rng, worker, matches!(op, Op::Discard));
        Request { op, lba, sectors }
    }

    /// Where a request goes and how long it is.
    fn draw_place(&self, rng: &mut Rng, worker: u32, discard: bool) -> (Lba, u32) {
        let o = &self.options;
        let capacity = self.host.oracle().capacity();
        let (mut from, mut to) = (0, capacity);
        if o.apart && capacity >= o.depth as u64 {
            from = capacity * worker as u64 / o.depth as u64;
            to = capacity * (worker as u64 + 1) / o.depth as u64;
        }
        if rng.below(100) < o.hot.0 {
            to = to.min(from + o.hot.1);
        }
        let longest = match discard {
            true => o.sectors_max as u64 * 4,
            false => o.sectors_max as u64,
        };
        let sectors = match rng.below(100) < o.single {
            true => 1,
            false => 1 + rng.below(longest),
        };
        let sectors = sectors.min(to - from);
        let lba = from + rng.below(to - from - sectors + 1);
        (Lba::new(lba), sectors as u32)
    }

    /// Pauses and knobs between requests.
    async fn rest(&self, cx: &Cx, rng: &mut Rng) {
        let trickle = self.phase.kind == Kind::Trickle;
        let (chance, longest) = match trickle {
            true => (50, Ns::from_ms(2)),
            false => self.options.idle,
        };
        if rng.below(100) < chance {
            cx.sleep(Ns::from_ns(rng.below(longest.as_ns() + 1))).await;
        }
        if rng.below(1000) < self.options.knob
            && let Some(knob) = &self.knob
        {
            knob(cx.clone(), rng.next_u64()).await;
        }
    }
}

/// An index, drawn by weight; the second one (a write) when all weights are zero.
fn weighted(rng: &mut Rng, weights: &[u64]) -> usize {
    let total: u64 = weights.iter().sum();
    let mut at = rng.below(total.max(1));
    for (i, weight) in weights.iter().enumerate() {
        if at < *weight {
            return i;
        }
        at -= weight;
    }
    1
}
