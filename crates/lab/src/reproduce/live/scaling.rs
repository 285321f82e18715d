//! QBLK on real threads, beside pblk and beside what a copy of the same bytes gains from more cores.
//!
//! Owns: the threads, what each does in a piece of a round, what counts as a fair round. Promises: every
//! thread writes, and each of QBLK's drains its own ring, so writers and drainers are counted; for each
//! number of threads one and all of them are measured in turns within one run, so a factor compares
//! neighbours in time; a round in which others had the CPUs counts only where no other is left.
//! Never: sends more threads than the machine has cores, unless told so by a test.
//!
//! A piece: all threads begin, a tenth of the time passes until rings are full, what each does in the rest
//! is counted by its own clock, and a flush lets what was buffered leave before the next piece.

use super::copy::Copy;
use super::{
    FigureFile, Machine, Measured, Null, Plan, Point, Points, ReproduceError, Sign, Spent, Verdict,
    Way, attended, median,
};
use flashlane_base::{Ns, Rng, SECTOR_BYTES};
use flashlane_ftl::block::BlockOp;
use flashlane_ftl::log::LogConfig;
use flashlane_ocssd::StoreKind;
use flashlane_ocssd::device::Device;
use flashlane_rt::sync::{AtomicU32, AtomicU64, Mutex, Ordering};
use flashlane_rt::{Cx, Notify, Threads};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::Arc;

const FIGURE: &str = "qblk-scaling";
/// More threads than this were never tried.
const THREADS_MAX: u32 = 64;
/// Requests between two looks at the clock.
const BATCH: u64 = 64;
/// Of the time that threads wanted, what others may have had in a round that counts.
const TAKEN_MAX: f64 = 0.05;
/// So many fair rounds are enough to leave the others out.
const FAIR_ROUNDS: usize = 3;

#[derive(Clone)]
enum What {
    /// Write random sectors.
    Write(Null),
    /// Move the same bytes.
    Copy,
    /// Go home.
    End,
}

#[derive(Clone)]
struct Piece {
    what: What,
    threads: u32,
    /// What is done between these times counts.
    from: Ns,
    until: Ns,
}

/// What a thread did in a piece.
#[derive(Clone, Copy, Default)]
struct Done {
    /// Requests per second.
    rate: f64,
    wall: u64,
    spent: Spent,
}

#[derive(Clone, Copy)]
struct Sum {
    rate: f64,
    /// CPU time over wall time of the threads.
    busy: f64,
    /// Of the time in which they could run, what others had.
    taken: f64,
}

impl Sum {
    fn of(parts: &[Done]) -> Sum {
        let (cpu, waited, wall) = parts.iter().fold((0, 0, 0), |(cpu, waited, wall), part| {
            (cpu + part.spent.cpu, waited + part.spent.waited, wall + part.wall)
        });
        Sum {
            rate: parts.iter().map(|part| part.rate).sum(),
            busy: cpu as f64 / wall.max(1) as f64,
            taken: waited as f64 / (cpu + waited).max(1) as f64,
        }
    }
}

/// The three that are compared.
const KINDS: [&str; 3] = ["pblk", "qblk", "copy"];

/// By (kind, all threads and not one of them).
type Round = BTreeMap<(&'static str, bool), Sum>;

/// Where threads meet.
#[derive(Default)]
struct Board {
    pieces: AtomicU64,
    piece: Mutex<Option<Piece>>,
    done: Mutex<Vec<Done>>,
    /// Threads that are through with the piece.
    through: AtomicU32,
    changed: Notify,
}

/// With fewer cores nothing can be said of how a thing scales.
const CORES_MIN: u32 = 4;
/// Of all cores, what the copy loop has to gain from them, or the machine itself does not scale.
const COPY_GAIN_MIN: f64 = 0.5;

/// Series `copy`, `pblk` and `qblk` over `threads`.
pub(in crate::reproduce) fn measure(
    file: &FigureFile,
    way: &Way<'_>,
    machine: &Machine,
) -> Result<Measured, ReproduceError> {
    let plan = Plan::of(FIGURE, file);
    let span = Ns::from_ms(file.parameter("piece_ms"));
    let cores = machine.cores.clamp(1, THREADS_MAX);
    let (mut points, mut notes) = (Points::default(), Vec::new());
    let mut interrupted = false;
    let all = threads(cores);
    for (i, n) in all.iter().copied().enumerate() {
        way.watch.done(i, all.len());
        let found = match interrupted {
            true => None,
            false => {
                let monitor = way.watch.part(&format!("{n} threads"));
                Some(attended(&*monitor, |sign| session(&plan, n, span, sign))?)
            }
        };
        let rounds = found.filter(|rounds| rounds.len() as u64 == plan.rounds);
        interrupted |= rounds.is_none();
        points_of(n, rounds.as_deref(), &mut points, &mut notes);
    }
    let verdict = (!interrupted).then(|| cannot_show(cores, &points, &mut notes)).flatten();
    Ok(Measured { points, notes, verdict })
}

/// The verdict of a machine that can't show how anything scales.
fn cannot_show(cores: u32, points: &Points, notes: &mut Vec<String>) -> Option<Verdict> {
    let all = format!("copy factor threads={cores}").parse().expect("a choice of points");
    let gain = points.choose(&all).and_then(|all| Some(all.first()?.1)).unwrap_or(0.0);
    let why = match cores {
        1 => "one core: there is nothing to scale".to_string(),
        2..CORES_MIN => format!("{cores} cores: with fewer than {CORES_MIN} nothing can be said"),
        _ if gain < COPY_GAIN_MIN * f64::from(cores) => {
            format!(
                "the copy loop itself gains {gain:.2} of {cores} cores: the machine does not scale"
            )
        }
        _ => return None,
    };
    notes.push(why);
    Some(Verdict::Inconclusive)
}

/// The powers of two up to the cores, and all cores.
fn threads(cores: u32) -> Vec<u32> {
    let powers = (0..32).map(|i| 1 << i).take_while(|n| *n < cores);
    powers.chain([cores]).collect()
}

/// Adds the points for `n` threads; without values where they were not measured.
fn points_of(n: u32, rounds: Option<&[Round]>, points: &mut Points, notes: &mut Vec<String>) {
    let fair = rounds.map(|rounds| fair(n, rounds, notes)).unwrap_or_default();
    let value = |kind: &str, all: bool, of: fn(&Sum) -> f64| {
        let values = fair.iter().flat_map(|round| round.iter());
        let values = values.filter(|((k, a), _)| *k == kind && *a == all);
        median(values.map(|(_, sum)| of(sum)))
    };
    for kind in KINDS {
        let rate = |all: bool| value(kind, all, |sum| sum.rate);
        let factor = || match n {
            1 => Some(1.0),
            _ => Some(rate(true)? / rate(false)?),
        };
        let mut point = Point::new(kind, [("threads", n.to_string())]);
        if let (Some(all), Some(factor)) = (rate(n > 1), factor()) {
            let busy = value(kind, n > 1, |sum| sum.busy).unwrap_or_default();
            point = point.with("rate_k_per_s", all / 1e3).with("factor", factor);
            point = point.with("busy_percent", 100.0 * busy);
        }
        points.add(point);
    }
}

fn fair<'a>(n: u32, rounds: &'a [Round], notes: &mut Vec<String>) -> Vec<&'a Round> {
    let taken = |round: &Round| round.values().map(|sum| sum.taken).fold(0.0, f64::max);
    let fair: Vec<&Round> = rounds.iter().filter(|round| taken(round) <= TAKEN_MAX).collect();
    if fair.len() == rounds.len() {
        return fair;
    }
    let most = 100.0 * rounds.iter().map(taken).fold(0.0, f64::max);
    let disturbed = rounds.len() - fair.len();
    let few = fair.len() < FAIR_ROUNDS;
    let what = match few {
        true => "all count all the same: repeat it on an idle machine",
        false => "they are left out",
    };
    notes.push(format!(
        "threads {n}: in {disturbed} of {} rounds other programs had the CPUs (up to {most:.0}% of what \
         was asked for); {what}",
        rounds.len()
    ));
    if few { rounds.iter().collect() } else { fair }
}

/// All rounds with `n` threads; fewer when it was interrupted.
fn session(plan: &Plan, n: u32, span: Ns, sign: Arc<Sign>) -> Result<Vec<Round>, ReproduceError> {
    let board = Arc::new(Board::default());
    let geo = *plan.null_device(StoreKind::Memory)?.geometry();
    let main = |cx: Cx| {
        let (plan, board, sign) = (plan.clone(), board.clone(), sign.clone());
        async move {
            let copy = Copy::new(&geo, cx.cores());
            let mine = Mine { rng: Rng::stream(1, FIGURE, cx.core().0.into()), copy };
            match cx.core().0 {
                0 => {
                    let rounds = lead(&cx, &plan, span, &board, &sign, mine).await;
                    // However that ended: the others wait.
                    board.publish(
                        &cx,
                        Piece { what: What::End, threads: 0, from: cx.now(), until: cx.now() },
                    );
                    rounds
                }
                _ => follow(&cx, &plan, &board, &sign, mine).await,
            }
        }
    };
    let mut ended = Threads::new(n, 1).run(main).into_iter();
    ended.next().expect("at least one core")
}

/// What a thread has for itself.
struct Mine {
    rng: Rng,
    copy: Copy,
}

impl Board {
    fn publish(&self, cx: &Cx, piece: Piece) {
        *self.piece.lock() = Some(piece);
        self.through.store(0, Ordering::SeqCst);
        self.pieces.fetch_add(1, Ordering::SeqCst);
        self.changed.wake(cx);
    }

    /// Does one's part of a piece.
    async fn take_part(&self, cx: &Cx, plan: &Plan, sign: &Sign, piece: &Piece, mine: &mut Mine) {
        if cx.core().0 < piece.threads {
            let done = work(cx, plan, piece, mine, sign).await;
            self.done.lock().push(done);
        }
        self.through.fetch_add(1, Ordering::SeqCst);
        self.changed.wake(cx);
    }
}

/// The first thread: says what is done, and does it too.
async fn lead(
    cx: &Cx,
    plan: &Plan,
    span: Ns,
    board: &Board,
    sign: &Sign,
    mut mine: Mine,
) -> Result<Vec<Round>, ReproduceError> {
    let qblk = |cores| LogConfig { cores, ..LogConfig::qblk() };
    let pblk = Null::new(cx, plan, (LogConfig::default(), StoreKind::Memory), sign).await?;
    let one = Null::new(cx, plan, (qblk(1), StoreKind::Memory), sign).await?;
    let all = match cx.cores() {
        1 => one.clone(),
        n => Null::new(cx, plan, (qblk(n), StoreKind::Memory), sign).await?,
    };
    let mut rounds = Vec::new();
    while (rounds.len() as u64) < plan.rounds && !sign.stopped() {
        let mut round = Round::new();
        for threads in if cx.cores() == 1 { vec![1] } else { vec![1, cx.cores()] } {
            for kind in KINDS {
                let dev = match (kind, threads) {
                    ("pblk", _) => Some(&pblk),
                    ("qblk", 1) => Some(&one),
                    ("qblk", _) => Some(&all),
                    _ => None,
                };
                let what = dev.map_or(What::Copy, |dev| What::Write(dev.clone()));
                // A tenth until rings are full; and threads that sleep have to wake first.
                let from = cx.now() + Ns::from_ns(span.as_ns() / 10);
                let piece = Piece { what, threads, from, until: from + span };
                board.publish(cx, piece.clone());
                board.take_part(cx, plan, sign, &piece, &mut mine).await;
                let all_through = || board.through.load(Ordering::SeqCst) == cx.cores();
                board.changed.wait(cx, all_through).await;
                let sum = Sum::of(&std::mem::take(&mut *board.done.lock()));
                round.insert((kind, threads > 1), sum);
                if let Some(dev) = dev {
                    dev.settle(cx).await;
                }
            }
        }
        rounds.push(round);
    }
    let once = (cx.cores() > 1).then_some(&all);
    for dev in [&pblk, &one].into_iter().chain(once) {
        dev.stop(cx, plan).await?;
    }
    Ok(rounds)
}

async fn follow(
    cx: &Cx,
    plan: &Plan,
    board: &Board,
    sign: &Sign,
    mut mine: Mine,
) -> Result<Vec<Round>, ReproduceError> {
    for seen in 0.. {
        board.changed.wait(cx, || board.pieces.load(Ordering::SeqCst) > seen).await;
        // The next one is published when all are through with this one.
        let piece = board.piece.lock().clone().expect("published");
        if matches!(piece.what, What::End) {
            break;
        }
        board.take_part(cx, plan, sign, &piece, &mut mine).await;
    }
    Ok(Vec::new())
}

/// Requests until the piece is over.
async fn work(cx: &Cx, plan: &Plan, piece: &Piece, mine: &mut Mine, sign: &Sign) -> Done {
    let mut buf = vec![1u8; SECTOR_BYTES];
    let mut began: Option<(Ns, Spent)> = None;
    let mut requests = 0;
    loop {
        for _ in 0..BATCH {
            let lba = mine.rng.below(plan.set);
            match &piece.what {
                What::Write(dev) => dev.request(cx, BlockOp::Write, lba, &mut buf).await,
                What::Copy | What::End => {
                    black_box(lba);
                    mine.copy.write(&buf);
                }
            }
        }
        let now = cx.now();
        match began {
            None if now >= piece.from => began = Some((now, Spent::now())),
            None => {}
            Some((from, before)) => {
                requests += BATCH;
                if now >= piece.until {
                    sign.count(requests);
                    let wall = (now - from).as_ns();
                    let rate = requests as f64 * 1e9 / wall.max(1) as f64;
                    return Done { rate, wall, spent: Spent::since(before) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
