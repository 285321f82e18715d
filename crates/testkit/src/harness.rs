//! One seed, one stack, from an empty medium to the last sector read back, over several lives.
//!
//! Owns: the run: bring up, drive, check, cut or stop, and again; the span of a life ([`Span`]),
//! whoever lives it ([`Living`]). Promises: a failure of any kind
//! (wrong content, refusal, broken counter law, panic, stall, hang) comes back as [`Failed`], which
//! prints the one command that replays it. Never: knows which stack it drives ([`Machine`] does).

use crate::aim::Aim;
use crate::devices::Size;
use crate::host::Host;
use crate::moments::Moments;
use crate::oracle::Oracle;
use crate::swarm::{self, Boxed, Knob, Options};
use crate::torture::SHARE;
use flashlane_base::{Lba, Ns, Rng};
use flashlane_ftl::block::BlockDev;
use flashlane_ocssd::Ssd;
use flashlane_rt::sync::Notify;
use flashlane_rt::{Bell, CostTable, Cx, Idle, Port, Virtual};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::{Future, poll_fn};
use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Once, OnceLock};
use std::task::Poll;

/// Virtual time without any request ending after which a run counts as hung. The longest wait of a
/// correct stack is some collections of a tiny device, far below a second.
const HUNG_AFTER: Ns = Ns::from_secs(60);

/// Where the oracle will be, once the capacity is known.
pub type OracleSlot = Arc<OnceLock<Arc<Oracle>>>;

/// A check that costs no virtual time.
pub type Check = Box<dyn Fn() -> Result<(), String>>;

/// A stack while the power is on.
pub struct Up {
    pub dev: Arc<dyn BlockDev>,
    pub knob: Option<Knob>,
    /// What holds whenever no request is under way.
    pub check_idle: Check,
    /// It may become read-only.
    pub may_give_up: bool,
    /// A part of the medium is gone, or will be in this life: any read may fail.
    pub reads_may_fail: bool,
    /// What it acknowledges survives a power cut, flushed or not.
    pub ack_is_durable: bool,
    /// Its state in a line, for whoever looks at a hang.
    pub state: Box<dyn Fn() -> String>,
    /// Ends its background tasks, with everything durable.
    pub stop: Boxed<'static, Result<(), String>>,
    /// What holds after that, with nothing under way at all.
    pub check_stopped: Check,
}

/// What a machine is given when the power comes on.
#[derive(Clone)]
pub struct Boot {
    /// Core 0 of the run.
    pub cx: Cx,
    /// The oracle, once there is one.
    pub oracle: OracleSlot,
    /// Where to note when device commands begin and end, if somebody wants to know.
    pub moments: Option<Moments>,
    /// Whom to tell of commands, where a cut is aimed at one.
    pub aim: Option<Arc<Aim>>,
    /// Where to put the medium, so that the faults that struck can be counted.
    pub medium: MediumSlot,
}

/// The medium of a life, and how many faults had struck it before.
#[derive(Clone, Default)]
pub struct MediumSlot(Rc<RefCell<Option<Medium>>>);

/// The medium, how often faults had struck it, and who wants to know when its dies were at work.
type Medium = (Arc<Ssd>, u64, Option<Moments>);

/// Programs and erases whose times are noted.
const SPANS: usize = 1_000_000;

impl MediumSlot {
    /// This is the medium from now on. Where it acknowledges from a buffer, completions don't say when
    /// its dies are at work: it notes that itself.
    pub fn put(&self, ssd: &Arc<Ssd>, moments: &Option<Moments>) {
        let moments = moments.clone().filter(|_| ssd.spec().limits.write_buffer.is_some());
        if moments.is_some() {
            ssd.keep_spans(SPANS);
        }
        *self.0.borrow_mut() = Some((ssd.clone(), struck(ssd), moments));
    }

    /// Faults that struck since; it is let go.
    fn take(&self) -> u64 {
        let Some((ssd, before, moments)) = self.0.take() else { return 0 };
        if let Some(moments) = moments {
            for (_, span) in ssd.take_spans().spans {
                moments.note(span.from);
                moments.note(span.to);
            }
        }
        struck(&ssd) - before
    }
}

fn struck(ssd: &Ssd) -> u64 {
    ssd.faults_happened().iter().sum()
}

/// A stack as something that power cuts happen to: what is left when a run is dropped.
pub trait Machine {
    /// Brings the stack up: creates it the first time, mounts it later.
    fn up(self: Rc<Self>, boot: Boot) -> Boxed<'static, Result<Up, String>>;
    /// The power went off at this time of the run, which has been dropped already.
    fn cut(&self, at: Ns, seed: u64);
    /// The power went off after a stop; nothing was under way.
    fn off(&self, _at: Ns) {}
    /// True if it did not come up for a reason that is no defect, and will not come up again.
    fn is_over(&self) -> bool {
        false
    }
    /// Adds what it has counted over all lives so far.
    fn count(&self, _done: &mut Done) {}
    fn describe(&self) -> String;
}

/// A row of the table of stacks.
#[derive(Clone, Copy)]
pub struct Stack {
    /// Name on the command line.
    pub name: &'static str,
    /// Seeds of a default test run.
    pub seeds: u64,
    /// Lives at most: 1 for what can't come back yet.
    pub lives: u64,
    /// In so many of [`SHARE`] seeds torture has it beside the others.
    pub share: u64,
    /// A new machine for a seed.
    pub machine: fn(u64, Size) -> Rc<dyn Machine>,
}

/// What can be tortured: anything that lives several lives by a seed. It is shared by threads; what
/// it begins stays on the thread that began it.
pub trait Subject: Sync {
    /// Name, as `--target` has it.
    fn name(&self) -> &str;
    /// Lives at most.
    fn lives(&self) -> u64;
    /// In so many of [`SHARE`] seeds torture has it beside the others, and so much of a full share in each.
    fn share(&self) -> u64 {
        SHARE
    }
    /// The flags that name it and what it is for a seed, whatever a later version draws.
    fn flags(&self, _seed: u64) -> String {
        format!("--target {}", quoted(self.name()))
    }
    /// What a seed starts with.
    fn begin(&self, seed: u64, size: Size) -> Rc<dyn Living>;
}

/// What one seed has: it keeps over its lives what the power leaves, and what must be there.
pub trait Living {
    /// One life, up to its end, its cut, or a defect.
    fn live(&self, span: &Span, done: &mut Done) -> Result<(), String>;
    fn describe(&self) -> String;
}

/// A stack of layers that gives a block device: a row of the table, or somebody's own. A machine
/// stays on the thread that made it.
pub trait Source: Sync {
    /// Name, as `--target` has it.
    fn name(&self) -> &str;
    fn lives(&self) -> u64;
    /// In so many of [`SHARE`] seeds torture has it beside the others, and so much of a full share in each.
    fn share(&self) -> u64 {
        SHARE
    }
    /// A new machine for a seed.
    fn machine(&self, seed: u64, size: Size) -> Rc<dyn Machine>;
}

impl Source for Stack {
    fn name(&self) -> &str {
        self.name
    }
    fn lives(&self) -> u64 {
        self.lives
    }
    fn share(&self) -> u64 {
        self.share
    }
    fn machine(&self, seed: u64, size: Size) -> Rc<dyn Machine> {
        (self.machine)(seed, size)
    }
}

impl<S: Source> Subject for S {
    fn name(&self) -> &str {
        Source::name(self)
    }
    fn lives(&self) -> u64 {
        Source::lives(self)
    }
    fn share(&self) -> u64 {
        Source::share(self)
    }
    fn begin(&self, seed: u64, size: Size) -> Rc<dyn Living> {
        Rc::new(Blocks { machine: self.machine(seed, size), oracle: OracleSlot::default() })
    }
}

/// Puts something between the stack and the host: a canary.
pub type Wrap = Rc<dyn Fn(Arc<dyn BlockDev>) -> Arc<dyn BlockDev>>;

/// How to run a seed.
#[derive(Clone)]
pub struct Plan {
    /// How much to write, 100 is normal.
    pub effort: u64,
    /// Print what happens to this sector.
    pub watched: Option<Lba>,
    /// What to put on top.
    pub wrap: Option<Wrap>,
    /// Cut the power at the end of the last life too, when all is done but the clean stop, and look
    /// what is left.
    pub cut_at_end: bool,
    /// Turn knobs, where the stack has any and the seed says so.
    pub knobs: bool,
    /// Cut the power at these times, one per life, and live once more; empty: as the seed says.
    pub cuts: Vec<Ns>,
    /// How many lives, where no cuts are given; `None`: as the seed says.
    pub lives: Option<u64>,
    /// On a tight device, with the power cut at moments that matter ([`Aim`]); at no others.
    pub aimed: bool,
    /// Note when something happened in the last life.
    pub moments: Option<Moments>,
    /// Whoever sets it, from any thread, has the run end where it is: it is then [`Done::left`], and
    /// clears it. Nothing that a run comes to depends on it until then.
    pub leave: Option<Arc<AtomicBool>>,
}

impl Default for Plan {
    fn default() -> Plan {
        Plan {
            effort: 100,
            watched: None,
            wrap: None,
            cut_at_end: false,
            knobs: true,
            cuts: Vec::new(),
            lives: None,
            aimed: false,
            moments: None,
            leave: None,
        }
    }
}

/// What a good run did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub requests: u64,
    pub sectors_written: u64,
    /// Events simulated.
    pub polls: u64,
    pub fingerprint: u64,
    /// Virtual time of all lives.
    pub span: Ns,
    pub lives: u64,
    /// Power cuts among their ends.
    pub cuts: u64,
    /// Faults of the fault plan that struck.
    pub faults: u64,
    /// Faults that were aimed at a command.
    pub aimed: u64,
    /// Failure units of the medium that vanished, or times that the host's disk failed.
    pub vanished: u64,
    /// Mounts that were refused meanwhile.
    pub refused: u64,
    /// Runs that such a refusal ended: no option mounts what is left.
    pub ended: u64,
    /// Sectors of the device.
    pub capacity: u64,
    /// It became read-only.
    pub gave_up: bool,
    /// What it acknowledged was durable: a flush makes no difference.
    pub durable_acks: bool,
    /// It was left in the middle of a life: what there is so far was good.
    pub left: bool,
}

/// A run that showed a defect.
#[derive(Clone)]
pub struct Failed {
    pub stack: String,
    /// The flags that name it ([`Subject::flags`]).
    pub target: String,
    pub seed: u64,
    /// How it was run.
    pub plan: Box<Plan>,
    /// Device, life and what was wrong.
    pub what: String,
}

impl Plan {
    /// The flags that name this way to run a seed, for `flashlane torture` and for the example.
    pub fn flags(&self) -> String {
        let mut flags = String::new();
        if self.effort != Plan::default().effort {
            flags += &format!(" --effort {}", self.effort);
        }
        if !self.knobs {
            flags += " --no-knobs";
        }
        if self.aimed {
            flags += " --aimed";
        }
        if let Some(lives) = self.lives.filter(|_| self.cuts.is_empty()) {
            flags += &format!(" --lives {lives}");
        }
        for at in &self.cuts {
            flags += &format!(" --cut {}", at.as_ns());
        }
        flags
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, seed {}: {}", self.stack, self.seed, self.what)?;
        let command = "cargo run --release -p flashlane-testkit --example swarm --";
        write!(f, "\n  replay: {command} {} --seed {}", self.target, self.seed)?;
        write!(f, "{}", self.plan.flags())
    }
}

impl fmt::Debug for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// How a life ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With everything durable.
    Stopped,
    /// The power went off.
    Cut,
    /// Somebody wanted the run to end.
    Left,
    /// The stack did not come up, for a reason that is no defect ([`Machine::is_over`]).
    Over,
}

/// Why a life ends in its middle.
#[derive(Default)]
struct Leaver {
    leaves: Cell<bool>,
    /// Events went on, and time did not.
    stands: Cell<bool>,
    changed: Notify,
}

/// Is served once per step of a run, and again and again in one that does not end.
struct Lookout {
    leaver: Rc<Leaver>,
    /// It has itself served again and again.
    bell: Bell,
    /// Somebody wants the run to end.
    leave: Option<Arc<AtomicBool>>,
    /// How often in a row time was the same.
    now: Ns,
    times: u32,
}

/// So often a lookout is served at one time before the run counts as one that goes round in circles: some
/// million events, many times those of the longest run on a medium that takes no time.
const SERVED_MAX: u32 = 1_000;

impl Port for Lookout {
    fn serve(&mut self, cx: &Cx) {
        self.bell.ring();
        self.times = if cx.now() == self.now { self.times + 1 } else { 0 };
        self.now = cx.now();
        let leaves = self.leave.as_ref().is_some_and(|leave| leave.swap(false, Ordering::SeqCst));
        if leaves || self.times > SERVED_MAX {
            self.leaver.leaves.set(true);
            self.leaver.stands.set(!leaves);
            self.leaver.changed.wake(cx);
        }
    }

    fn bound(&self) -> Ns {
        Ns::MAX
    }

    fn idle(&mut self, _: &Cx) -> Idle {
        // Who waits for the outside world does not go round in circles.
        self.times = 0;
        Idle::Stalled
    }

    fn looks_on(&self) -> bool {
        true
    }
}

/// The stream that lives and their ends are drawn from.
const LIVES: &str = "swarm.lives";

/// Lives that `seed` has where nobody says how many.
pub fn drawn_lives(stack: &dyn Subject, seed: u64) -> u64 {
    1 + Rng::stream(seed, LIVES, 0).below(stack.lives())
}

pub fn run_seed(stack: &dyn Subject, seed: u64, plan: &Plan) -> Result<Done, Failed> {
    let failed = |what: String| Failed {
        stack: stack.name().into(),
        target: stack.flags(seed),
        seed,
        plan: Box::new(plan.clone()),
        what,
    };
    let size = if plan.aimed { Size::Tight } else { Size::Usual };
    let living = stack.begin(seed, size);
    let aim = plan.aimed.then(|| Aim::new(seed));
    let mut rng = Rng::stream(seed, LIVES, 0);
    let drawn = 1 + rng.below(stack.lives());
    let lives = match plan.cuts.len() as u64 {
        0 => plan.lives.unwrap_or(drawn),
        cuts => cuts + 1,
    };
    let mut done = Done::default();
    for number in 0..lives {
        let last = number + 1 == lives;
        // From a microsecond, in the middle of bringing it up, to a minute, when all is done.
        let magnitude = 10 + rng.below(26);
        let drawn = Ns::from_ns(rng.below(1 << magnitude));
        let cut_at = plan.cuts.get(number as usize).copied().unwrap_or(drawn);
        let mut plan = plan.clone();
        if !last {
            plan.moments = None;
        }
        if number > 0 {
            // After a cut that somebody chose, what is found counts; a little work suffices.
            plan.effort = if plan.cuts.is_empty() { plan.effort } else { 2 };
        }
        let aimed = aim.as_ref().map(|aim| (aim.clone(), aim.begin(!last)));
        let cut_at_end = last && plan.cut_at_end;
        let span = Span {
            plan,
            seed: seed ^ number << 48,
            first: number == 0,
            last,
            cut_at: (!last && aimed.is_none()).then_some(cut_at),
            aimed,
            cut_at_end,
            medium: MediumSlot::default(),
            leaver: Rc::default(),
        };
        let outcome = caught(|| living.live(&span, &mut done));
        done.faults += span.medium.take();
        outcome.map_err(|what| {
            let device = living.describe();
            failed(format!("life {} of {lives} on {device}: {what}", number + 1))
        })?;
        if done.left {
            break;
        }
        done.lives += 1;
        if done.ended > 0 {
            break;
        }
    }
    done.aimed = aim.map_or(0, |aim| aim.struck());
    Ok(done)
}

/// A word of a command line.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:".contains(c);
    match !word.is_empty() && word.chars().all(plain) {
        true => word.into(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

thread_local! {
    /// Where the last panic of this thread was; `None` outside a seed.
    static PANICKED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// From now on a panic inside a seed prints nothing: it is that seed's result, with its place.
pub(crate) fn say_where_it_panicked() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let noted = PANICKED.with_borrow_mut(|place| match place {
                Some(place) => {
                    *place = info.location().map(|l| format!(" at {l}")).unwrap_or_default();
                    true
                }
                None => false,
            });
            if !noted {
                usual(info);
            }
        }));
    });
}

/// What `life` comes to; a panic is a broken invariant of the stack, a result like any other.
fn caught(life: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    PANICKED.set(Some(String::new()));
    let outcome = catch_unwind(AssertUnwindSafe(life));
    let place = PANICKED.take().unwrap_or_default();
    outcome.unwrap_or_else(|panic| Err(format!("panic{place}: {}", text_of(&*panic))))
}

pub(crate) fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| s.to_string());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    text.unwrap_or_else(|| "of no text".into())
}

/// The time between power-on and power-off: how long it is, and how it ends.
#[derive(Clone)]
pub struct Span {
    pub plan: Plan,
    pub seed: u64,
    pub first: bool,
    pub last: bool,
    /// The power goes off at this time, if the life is not over by then.
    cut_at: Option<Ns>,
    cut_at_end: bool,
    /// Who says at what time else, and wakes whom when it is known.
    aimed: Option<(Arc<Aim>, Arc<Notify>)>,
    medium: MediumSlot,
    leaver: Rc<Leaver>,
}

/// Of a life: who looks on.
pub struct Onlooker<E, H> {
    /// How many requests have ended: where none does for long, it hangs.
    pub ended: E,
    /// What is said of a life that hangs since a time.
    pub hung: H,
}

impl Span {
    /// Who aims cuts and faults, if somebody does.
    pub fn aim(&self) -> Option<&Arc<Aim>> {
        self.aimed.as_ref().map(|(aim, _)| aim)
    }

    /// What a medium is brought up with.
    pub fn boot(&self, cx: &Cx, oracle: &OracleSlot) -> Boot {
        Boot {
            cx: cx.clone(),
            oracle: oracle.clone(),
            moments: self.plan.moments.clone(),
            aim: self.aim().cloned(),
            medium: self.medium.clone(),
        }
    }

    /// What was aimed at has not come: the end of the work is as good a moment, every second time.
    pub fn missed(&self) -> bool {
        !self.last && self.aim().is_some() && self.seed.count_ones().is_multiple_of(2)
    }

    /// Has `live` run under a clock of its own until its end, its cut, or until nothing happens any
    /// more: how it ended, and when. Nothing of the run is left then.
    pub fn run<F: Future<Output = Result<End, String>> + 'static>(
        &self,
        (cores, costs): (u32, CostTable),
        live: impl FnOnce(Cx) -> F,
        onlooker: Onlooker<impl Fn() -> u64 + 'static, impl Fn(Ns) -> String + 'static>,
        done: &mut Done,
    ) -> Result<(End, Ns), String> {
        let run = Virtual::new(cores, self.seed, costs);
        let bell = Bell::default();
        bell.ring();
        let (leaver, leave) = (self.leaver.clone(), self.plan.leave.clone());
        let lookout = Lookout { leaver, bell: bell.clone(), leave, now: Ns::ZERO, times: 0 };
        let port = run.cx().open_port(&bell, lookout);
        let watched = self.clone().watch(run.cx(), live(run.cx()), onlooker);
        let end = run.run(watched).map_err(|stalled| stalled.to_string())??;
        drop(port);
        done.polls += run.polls();
        done.span += run.now();
        done.fingerprint = done.fingerprint.rotate_left(1) ^ run.fingerprint().0;
        let now = run.now();
        drop(run);
        match end {
            End::Left => done.left = true,
            End::Cut => done.cuts += 1,
            End::Stopped | End::Over => {}
        }
        Ok((end, now))
    }

    async fn watch(
        self,
        cx: Cx,
        live: impl Future<Output = Result<End, String>> + 'static,
        onlooker: Onlooker<impl Fn() -> u64, impl Fn(Ns) -> String>,
    ) -> Result<End, String> {
        let Onlooker { ended, hung } = onlooker;
        let mut life = pin!(cx.spawn_join(live));
        let mut left = pin!(self.leaver.changed.wait(&cx, || self.leaver.leaves.get()));
        let (mut look_at, mut seen) = (HUNG_AFTER, 0);
        cx.arm(look_at);
        let mut cut_at = self.cut_at;
        cx.arm(cut_at.unwrap_or(Ns::MAX));
        let (aim, changed) = self.aimed.clone().unzip();
        let changed = changed.unwrap_or_default();
        let aimed_at = || aim.as_ref().and_then(|aim| aim.cut_at());
        let mut aimed = pin!(changed.wait(&cx, || aimed_at().is_some()));
        poll_fn(|context| {
            if let Poll::Ready(result) = life.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            if aim.is_some() && cut_at.is_none() && aimed.as_mut().poll(context).is_ready() {
                cut_at = aimed_at();
                cx.arm(cut_at.unwrap_or(Ns::MAX));
            }
            if cut_at.is_some_and(|at| cx.now() >= at) {
                return Poll::Ready(Ok(End::Cut));
            }
            if left.as_mut().poll(context).is_ready() {
                return Poll::Ready(match self.leaver.stands.get() {
                    true => Err(hung(cx.now())),
                    false => Ok(End::Left),
                });
            }
            if cx.now() >= look_at {
                let ended = ended();
                if ended == seen {
                    return Poll::Ready(Err(hung(look_at - HUNG_AFTER)));
                }
                (look_at, seen) = (cx.now() + HUNG_AFTER, ended);
                cx.arm(look_at);
            }
            Poll::Pending
        })
        .await
    }
}

/// A stack with a block device on top, and what each of its sectors may hold.
struct Blocks {
    machine: Rc<dyn Machine>,
    oracle: OracleSlot,
}

impl Living for Blocks {
    fn live(&self, span: &Span, done: &mut Done) -> Result<(), String> {
        let life = Life {
            span: span.clone(),
            machine: self.machine.clone(),
            oracle: self.oracle.clone(),
            host: Rc::default(),
            state: Rc::default(),
        };
        life.run(done)
    }
    fn describe(&self) -> String {
        self.machine.describe()
    }
}

/// A life of a stack.
#[derive(Clone)]
struct Life {
    span: Span,
    machine: Rc<dyn Machine>,
    oracle: OracleSlot,
    host: Rc<RefCell<Option<Rc<Host>>>>,
    #[allow(clippy::type_complexity)]
    state: Rc<RefCell<Option<Box<dyn Fn() -> String>>>>,
}

impl Life {
    fn run(&self, done: &mut Done) -> Result<(), String> {
        // The capacity is known only when the stack is up; cores and costs don't depend on it.
        let options = self.options(1);
        let (ended, hung) = (self.clone(), self.clone());
        let onlooker = Onlooker { ended: move || ended.ended(), hung: move |at| hung.hung(at) };
        let of = (options.cores, options.costs());
        let (end, now) = self.span.run(of, |cx| self.clone().live(cx), onlooker, done)?;
        done.requests += self.ended();
        done.gave_up |= self.host.borrow().as_ref().is_some_and(|h| h.has_given_up());
        // Whoever still holds a part of the stack must not keep the medium busy.
        self.host.take();
        self.state.take();
        self.machine.count(done);
        match end {
            End::Left | End::Over => return Ok(()),
            End::Cut => {
                self.machine.cut(now, self.span.seed);
                if let Some(oracle) = self.oracle.get() {
                    oracle.power_cut();
                }
            }
            End::Stopped => self.machine.off(now),
        }
        if let Some(oracle) = self.oracle.get() {
            done.capacity = oracle.capacity();
            done.durable_acks = oracle.acks_are_durable();
            done.sectors_written = oracle.sectors_written();
        }
        match self.span.cut_at_end {
            true => self.look_again(),
            false => Ok(()),
        }
    }

    fn options(&self, capacity: u64) -> Options {
        let Span { plan, seed, first, .. } = &self.span;
        match self.span.aim() {
            Some(_) => Options::aimed(*seed, capacity, plan.effort, *first),
            None => Options::draw(*seed, capacity, plan.effort),
        }
    }

    /// One more life, in which everything is read and nothing else happens.
    fn look_again(&self) -> Result<(), String> {
        let run = Virtual::new(1, self.span.seed, CostTable::zero());
        let (cx, life) = (run.cx(), self.clone());
        let look = async move {
            let up = life.machine.clone().up(life.span.boot(&cx, &life.oracle)).await?;
            let host = life.host_of(up.dev.clone(), &up);
            swarm::read_back(cx, host).await.map_err(|b| b.to_string())
        };
        run.run(look).map_err(|stalled| stalled.to_string())?
    }

    fn ended(&self) -> u64 {
        self.host.borrow().as_ref().map_or(0, |host| host.ended())
    }

    fn host_of(&self, dev: Arc<dyn BlockDev>, up: &Up) -> Rc<Host> {
        let info = dev.info();
        let new = || {
            let oracle = Oracle::new(info.capacity, info.content_bytes);
            Arc::new(oracle.with_durable_acks(up.ack_is_durable))
        };
        let oracle = self.oracle.get_or_init(new).clone();
        if up.reads_may_fail {
            oracle.admit_any_error();
        }
        let plan = &self.span.plan;
        let host = Host::new(dev, oracle, plan.watched, up.may_give_up);
        let host = host.noting(plan.moments.clone()).aimed(self.span.aim().cloned());
        let host = Rc::new(host);
        *self.host.borrow_mut() = Some(host.clone());
        host
    }

    fn hung(&self, since: Ns) -> String {
        let host = self.host.borrow().as_ref().map(|host| host.state());
        let stack = self.state.borrow().as_ref().map(|state| state());
        format!(
            "hung since {since}: {}; {}",
            host.unwrap_or_else(|| "it never came up".into()),
            stack.unwrap_or_default()
        )
    }

    async fn live(self, cx: Cx) -> Result<End, String> {
        let up = match self.machine.clone().up(self.span.boot(&cx, &self.oracle)).await {
            Err(_) if self.machine.is_over() => return Ok(End::Over),
            up => up?,
        };
        let dev = match &self.span.plan.wrap {
            Some(wrap) => wrap(up.dev.clone()),
            None => up.dev.clone(),
        };
        let host = self.host_of(dev, &up);
        *self.state.borrow_mut() = Some(up.state);
        self.span.aim().inspect(|aim| aim.is_up());
        let said = |broken: swarm::Broken| broken.to_string();
        if !self.span.first {
            swarm::read_back(cx.clone(), host.clone()).await.map_err(said)?;
        }
        let options = self.options(host.oracle().capacity());
        let knob = up.knob.clone().filter(|_| self.span.plan.knobs);
        swarm::drive(cx.clone(), host.clone(), options, knob).await.map_err(said)?;
        (up.check_idle)()?;
        if self.span.cut_at_end || self.span.missed() {
            return Ok(End::Cut);
        }
        host.now_doing("stopping".into());
        // A device that has given up can't make the rest durable: the end is as good as a cut.
        let end = match up.stop.await {
            Err(_) if up.may_give_up => End::Cut,
            stopped => stopped.map(|()| End::Stopped)?,
        };
        (up.check_stopped)()?;
        Ok(end)
    }
}
