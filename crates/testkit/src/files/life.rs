//! One seed of file operations on one medium, over several lives: what `flashlane torture` runs.
//!
//! Owns: the draw of a medium and of an actor, what is looked at in each life. Promises: before anybody
//! mounts, the last checkpoint by itself is sound; what a mount finds may be; what a clean unmount leaves is
//! sound, and all of it is there; no rule of the medium was broken. Never: decides when a life is cut.

use super::actor::{Actor, look};
use super::hurt::{self, Begun, Losses, Verdict};
use super::known::Known;
use super::small;
use super::world::{Booted, Store, Trouble, Units, make_of, problems};
use crate::devices::{Size, one_of};
use crate::harness::{Done, End, Living, Onlooker, OracleSlot, Span, Subject, quoted};
use crate::vanish::Loss;
use flashlane_base::{Ns, Rng};
use flashlane_parafs::{Allocation, Cleaners, Fs, FsError, Medium, Options, Policy, Schedule};
use flashlane_rt::sync::Mutex;
use flashlane_rt::{CostTable, Cx};
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Operations of a life of the usual effort.
const STEPS: u64 = 240;
/// The same on a tight medium.
const STEPS_TIGHT: u64 = 120;
/// Times that something is tried where reads fail: the medium says how often they do.
const TRIES: u32 = 12;
/// Pages that lie between the halves of a file, where there are any: more than an inode names.
const GAP: u64 = 2000;

/// A file system as a row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Files {
    pub name: &'static str,
    pub share: u64,
    /// Things go wrong on the medium.
    pub faulty: bool,
    /// Whole failure units of the medium vanish at mounts.
    pub vanishes: bool,
    /// What it does; without it the seed draws one.
    pub way: Option<Way>,
}

/// Who allocates, cleans and schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// ParaFS; whether pages or blocks go over the channels, how many cleaners there are and how many
    /// requests a PU has under way is drawn, each by itself.
    Parts,
    /// A policy of the ParaFS paper's comparison.
    Policy(Policy),
}

/// The word of [`Way::Parts`]; policies have their own.
const PARTS: &str = "parts";

impl Way {
    /// Each of them.
    pub fn all() -> impl Iterator<Item = Way> {
        std::iter::once(Way::Parts).chain(Policy::all().map(Way::Policy))
    }

    /// Its word, as `--policy` has it.
    pub fn word(self) -> &'static str {
        match self {
            Way::Parts => PARTS,
            Way::Policy(policy) => policy.word(),
        }
    }

    /// Half of all seeds have parts: they are the most ways to go wrong.
    fn draw(seed: u64) -> Way {
        let mut rng = Rng::stream(seed, "testkit.files.policy", 0);
        let policies: Vec<Way> = Policy::all().map(Way::Policy).collect();
        match rng.below(2) {
            0 => Way::Parts,
            _ => one_of(&mut rng, &policies),
        }
    }

    /// Whose segments and media it has.
    fn policy(self) -> Policy {
        match self {
            Way::Parts => Policy::ParaFs,
            Way::Policy(policy) => policy,
        }
    }
}

impl Files {
    /// The same with one way for all seeds.
    #[must_use]
    pub fn of(self, way: Way) -> Files {
        Files { way: Some(way), ..self }
    }

    fn way_of(&self, seed: u64) -> Way {
        self.way.unwrap_or_else(|| Way::draw(seed))
    }

    /// What a policy stands on: memory or flash by the seed, where it can have both; always flash
    /// where things go wrong on it.
    fn store(&self, policy: Policy, seed: u64, size: Size, r: &mut Rng) -> Store {
        if self.vanishes && policy.stands_on(true) {
            return Store::draw_vanishing(seed, size);
        }
        let on_flash = self.faulty || r.below(2) == 0;
        match (policy.stands_on(true), policy.stands_on(false)) {
            (true, linear) if on_flash || !linear => Store::draw_flash(seed, size, self.faulty),
            (false, _) if on_flash => Store::draw_block(seed, size, self.faulty, policy),
            _ => Store::in_memory(policy, one_of(r, &[7, 12]), seed),
        }
    }
}

/// What mounts have found in this process, over all lives: a test that cuts nothing shows nothing here.
#[derive(Debug)]
pub struct Seen {
    /// fsyncs behind the last checkpoint: whole ones, and ones that were cut short.
    pub batches: AtomicU64,
    pub torn: AtomicU64,
    /// Files without a name.
    pub orphans: AtomicU64,
    /// Media with faults that lost what nothing could be done without, and said so.
    pub lost: AtomicU64,
}

pub static SEEN: Seen = Seen {
    batches: AtomicU64::new(0),
    torn: AtomicU64::new(0),
    orphans: AtomicU64::new(0),
    lost: AtomicU64::new(0),
};

/// Every file system that is tortured: ParaFS on a block device that keeps what it promises and no more, or on
/// flash with the simplified FTL, and F2FS on such a device or on a block SSD; with faults always on flash.
/// The last one is ParaFS on S-FTL, on flash of which dies, PUs, channels, chunks and reads vanish
/// at mounts.
pub const FILES: &[Files] = &[
    Files { name: "parafs", share: 10, faulty: false, vanishes: false, way: None },
    Files { name: "parafs-faults", share: 10, faulty: true, vanishes: false, way: None },
    Files {
        name: "parafs-vanish",
        share: 10,
        faulty: false,
        vanishes: true,
        way: Some(Way::Parts),
    },
];

impl Subject for Files {
    fn name(&self) -> &str {
        self.name
    }
    fn lives(&self) -> u64 {
        // A loss that lasts is looked at in two lives, and what is left in a third one.
        if self.vanishes { 10 } else { 5 }
    }
    fn share(&self) -> u64 {
        self.share
    }
    fn flags(&self, seed: u64) -> String {
        format!("--target {} --policy {}", quoted(self.name), self.way_of(seed).word())
    }
    fn begin(&self, seed: u64, size: Size) -> Rc<dyn Living> {
        let way = self.way_of(seed);
        let policy = way.policy();
        let mut rng = Rng::stream(seed, "testkit.files", 0);
        let r = &mut rng;
        let store = self.store(policy, seed, size, r);
        let units = store.units(policy, 1 << r.below(2), seed);
        let pages = one_of(r, &[0, GAP, GAP, GAP]);
        let mut options = Options {
            dirty_pages: one_of(r, &[2, 16, 48, 1000]),
            dirty_nodes: one_of(r, &[16, 48, 48, 1000]),
            journal: one_of(r, &[1, 20, 20, 200]),
            allocation: one_of(r, &[Allocation::Pages, Allocation::Pages, Allocation::Blocks]),
            cleaners: one_of(r, &[Cleaners::PerRegion, Cleaners::PerRegion, Cleaners::One]),
            schedule: Schedule { window: one_of(r, &[1, 4]), ..Schedule::default() },
            idle: Ns::from_us(one_of(r, &[0, 300, 500_000])),
            commit: Ns::from_us(one_of(r, &[0, 1_000, 30_000_000])),
            ..small()
        };
        if let Way::Policy(policy) = way {
            let Options { allocation, cleaners, schedule, .. } = policy.options();
            (options.allocation, options.cleaners) = (allocation, cleaners);
            options.schedule.dispatch = schedule.dispatch;
        }
        let faulty = store.fails();
        let losses = store.ssd().filter(|_| self.vanishes);
        let losses = losses.map(|ssd| Losses::new(ssd.clone(), seed));
        Rc::new(Handle(Rc::new(Alive {
            way,
            store,
            units,
            gap: pages * u64::from(units.page) * 4096,
            contents: r.below(10),
            names: one_of(r, &[8, 8, 40]),
            options,
            steps: if size == Size::Tight { STEPS_TIGHT } else { STEPS },
            faulty,
            losses,
            made: Cell::new(false),
            lost: Cell::new(false),
            known: Arc::default(),
            said: Arc::default(),
            ended: Cell::new(0),
            mounted: RefCell::default(),
        })))
    }
}

/// One seed's file system.
struct Alive {
    way: Way,
    store: Store,
    units: Units,
    gap: u64,
    contents: u64,
    names: u64,
    options: Options,
    steps: u64,
    /// The medium may fail for good.
    faulty: bool,
    /// What vanishes at its mounts.
    losses: Option<Losses>,
    /// It was made, for all that is known.
    made: Cell<bool>,
    /// The medium has lost what nothing can be done without.
    lost: Cell<bool>,
    known: Arc<Mutex<Known>>,
    said: Arc<Mutex<VecDeque<String>>>,
    /// Operations that have ended.
    ended: Cell<u64>,
    mounted: RefCell<Option<Arc<Fs>>>,
}

impl Living for Handle {
    fn live(&self, span: &Span, done: &mut Done) -> Result<(), String> {
        let alive = &self.0;
        alive.said.lock().clear();
        let before = alive.ended.get();
        let (ended, hung) = (alive.clone(), alive.clone());
        let onlooker = Onlooker {
            ended: move || ended.ended.get(),
            hung: move |since: Ns| {
                let mounted = hung.mounted.borrow();
                let standing = mounted.as_ref().map_or("it never came up".into(), |f| f.standing());
                format!("hung since {since}: {standing}")
            },
        };
        let lived = |cx: Cx| alive.clone().lived(cx, span.clone());
        let outcome = span.run((1, CostTable::zero()), lived, onlooker, done);
        alive.mounted.take();
        alive.losses.iter().for_each(|losses| losses.count(done));
        let (end, at) = outcome?;
        done.requests += alive.ended.get() - before;
        match end {
            End::Left | End::Over => Ok(()),
            End::Cut => alive.store.cut(at, &mut Rng::stream(span.seed, "left", 0)),
            End::Stopped => alive.store.off(at, &mut Rng::stream(span.seed, "left", 0)),
        }
    }

    fn describe(&self) -> String {
        let alive = &self.0;
        let of = format!(
            "{}, policy {}, pages of {} sectors, segments of {}, checksums {}, shared pages {}, \
             gap {}, {:?}",
            alive.store.describe(),
            alive.way.word(),
            alive.units.page,
            alive.units.segment,
            alive.units.data_checksums,
            alive.units.shares_pages,
            alive.gap,
            alive.options
        );
        let of = alive.losses.iter().fold(of, |of, losses| of + &losses.describe());
        let said: Vec<String> = alive.said.lock().iter().cloned().collect();
        format!("{of}, behind [{}]", said.join(", "))
    }
}

/// Shared by a run and by who looks on.
struct Handle(Rc<Alive>);

impl Alive {
    /// Does something until it is good, as often as a medium may fail to be read.
    async fn tried<T, F: Future<Output = Result<T, Trouble>>>(
        &self,
        mut work: impl FnMut() -> F,
    ) -> Result<T, Trouble> {
        let mut tries = if self.faulty { TRIES } else { 1 };
        loop {
            tries -= 1;
            match work().await {
                Err(Trouble::Medium(_)) if tries > 0 => {}
                done => return done,
            }
        }
    }

    async fn mount(&self, cx: &Cx, medium: &Medium) -> Result<Arc<Fs>, Trouble> {
        let mount = || async {
            let mounted = Fs::mount(cx, medium.clone(), self.options).await;
            mounted.map_err(|e| Trouble::of("it can't be mounted", &e))
        };
        let (fs, found) = self.tried(mount).await?;
        SEEN.batches.fetch_add(found.batches.into(), Ordering::Relaxed);
        SEEN.torn.fetch_add(found.torn_batches.into(), Ordering::Relaxed);
        SEEN.orphans.fetch_add(found.orphans.into(), Ordering::Relaxed);
        *self.mounted.borrow_mut() = Some(fs.clone());
        Ok(fs)
    }

    async fn sound(&self, cx: &Cx, medium: &Medium) -> Result<(), Trouble> {
        self.tried(|| problems(cx, medium)).await
    }

    /// What a mount finds is what may be there; nothing else can come from now on.
    async fn found(&self, cx: &Cx, fs: &Arc<Fs>) -> Result<(), Trouble> {
        let found = self.tried(|| look(cx, fs, self.gap)).await?;
        let mut known = self.known.lock();
        known.allows(&found)?;
        known.is_durable(found);
        Ok(())
    }

    /// Makes it. A cut in its middle leaves nothing, or an empty one.
    async fn make(&self, cx: &Cx, medium: &Medium, first: bool) -> Result<(), Trouble> {
        if !first
            && let Ok((fs, _)) = Fs::mount(cx, medium.clone(), self.options).await
            && !look(cx, &fs, 0).await?.moment.names.is_empty()
        {
            let why = "names in a file system that is being made";
            return Err(Trouble::Wrong(why.into()));
        }
        let make = || async {
            let made = make_of(cx, medium.clone(), self.units).await;
            made.map_err(|e| Trouble::of("it can't be made", &e))
        };
        self.tried(make).await?;
        self.made.set(true);
        Ok(())
    }

    /// A life in which something has vanished: a mount, and a look at what it gives.
    async fn hurt(
        &self,
        cx: &Cx,
        span: &Span,
        losses: &Losses,
        (loss, before): (Loss, Option<Verdict>),
    ) -> Result<End, Trouble> {
        losses.touch(cx, loss).await;
        let wrong = |why: String| Trouble::Wrong(format!("{loss:?}: {why}"));
        let booted = self.store.booted(&span.boot(cx, &OracleSlot::default())).await;
        let now = match booted {
            Err(why) => Verdict::Refused(why.to_string()),
            Ok(Booted { medium, .. }) => match Fs::mount(cx, medium, self.options).await {
                Err(FsError::NotFound) => {
                    return Err(wrong("a mount says that there is no file system".into()));
                }
                Err(e) => Verdict::Refused(e.to_string()),
                Ok((fs, found)) => {
                    *self.mounted.borrow_mut() = Some(fs.clone());
                    if !losses.may_be_mounted() {
                        return Err(wrong("no read succeeds, and it is mounted".into()));
                    }
                    let ended = || self.ended.set(self.ended.get() + 1);
                    let look = hurt::look(cx, &fs, &self.known, self.gap, ended).await;
                    let errors = look.map_err(wrong)?;
                    match found.read_only {
                        Some(why) => Verdict::ReadOnly(why, errors),
                        None => Verdict::Mounted,
                    }
                }
            },
        };
        losses.judge(loss, before, now).map_err(wrong)
    }

    async fn lived(self: Rc<Self>, cx: Cx, span: Span) -> Result<End, String> {
        match self.clone().lives(cx, span).await {
            Err(Trouble::Medium(_)) if self.faulty => {
                self.lost.set(true);
                SEEN.lost.fetch_add(1, Ordering::Relaxed);
                Ok(End::Stopped)
            }
            done => done.map_err(|why| why.to_string()),
        }
    }

    async fn lives(self: Rc<Self>, cx: Cx, span: Span) -> Result<End, Trouble> {
        if self.lost.get() {
            return Ok(End::Stopped);
        }
        if let Some(losses) = self.losses.as_ref().filter(|_| self.made.get()) {
            match losses.begin() {
                Begun::Whole => {}
                Begun::Over => return Ok(End::Stopped),
                Begun::Lost(loss, before) => {
                    return self.hurt(&cx, &span, losses, (loss, before)).await;
                }
            }
        }
        let booted = self.store.booted(&span.boot(&cx, &OracleSlot::default())).await?;
        let Booted { medium, stop } = booted;
        match self.made.get() {
            false => self.make(&cx, &medium, span.first).await?,
            // The checkpoint by itself is one, whatever is behind it.
            true => self.sound(&cx, &medium).await?,
        }
        let fs = self.mount(&cx, &medium).await?;
        self.found(&cx, &fs).await?;
        span.aim().iter().for_each(|aim| aim.is_up());
        let mut actor = Actor::new(
            &cx,
            fs.clone(),
            self.known.clone(),
            Rng::stream(span.seed, "testkit.files.actor", 0),
        );
        (actor.gap, actor.contents, actor.names) = (self.gap, self.contents, self.names);
        (actor.faulty, actor.said) = (self.faulty, self.said.clone());
        actor.aim = span.aim().cloned();
        let mut rng = Rng::stream(span.seed, "testkit.files.idle", 0);
        for _ in 0..(self.steps * span.plan.effort / 100).max(3) {
            actor.step().await?;
            if rng.below(16) == 0 {
                // Nobody asks for anything for a while.
                cx.sleep(Ns::from_us(one_of(&mut rng, &[100, 1_000, 3_000]))).await;
            }
            self.ended.set(self.ended.get() + 1);
            if actor.ends {
                return Ok(End::Cut);
            }
        }
        fs.walk()?;
        if span.missed() {
            return Ok(End::Cut);
        }
        match fs.unmount(&cx).await {
            Ok(()) => {}
            Err(FsError::Io(_) | FsError::ReadOnly(_)) if self.faulty => return Ok(End::Cut),
            Err(e) => return Err(Trouble::of("it can't be unmounted", &e)),
        }
        self.known.lock().all_durable();
        self.sound(&cx, &medium).await?;
        if span.last {
            let again = self.mount(&cx, &medium).await?;
            self.found(&cx, &again).await?;
        }
        if let Some((stop, check)) = stop {
            // A block SSD on failing flash may have become read-only.
            match stop.await {
                Err(_) if self.faulty => return Ok(End::Cut),
                stopped => stopped?,
            }
            check()?;
        }
        self.losses.iter().for_each(|losses| losses.unmounted());
        Ok(End::Stopped)
    }
}
