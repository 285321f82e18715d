//! Media of which a whole failure unit vanishes: a die, a PU, a channel, a chunk, a run of reads.
//!
//! Owns: the units that vanish in each life of a seed, and the answers that a mount may give
//! ([`Vanishing`]); the same for the host's disk below an image ([`Troubled`]). Promises: a mount
//! that is refused is tried again, and fails the run if it is accepted while the fault lasts; when
//! the fault is over, the run fails unless the stack mounts and has everything that was flushed;
//! after a clean stop of which a layer says so only the sectors on the lost unit may fail. Never:
//! excuses content that is older than the flushed one.
//!
//! The faults of [`crate::devices::faults`] are rare and hit sectors one by one. Real media lose
//! dies, blocks and seconds. Only then does a layer show that takes an unreadable unit for one that
//! was never written.

use crate::disk::Trouble;
use crate::harness::{Boot, Done, Machine, Up};
use crate::oracle::Oracle;
use crate::stacks::{Layered, Unmounted};
use crate::swarm::Boxed;
use flashlane_base::{Geometry, Lba, Location, Ns, OOB_BYTES, Rng};
use flashlane_ftl::block::{BlockDev, Io};
use flashlane_ftl::layer::{MountHow, Refusal};
use flashlane_media::fault::{Fault, FaultKind};
use flashlane_ocssd::Ssd;
use flashlane_ocssd::device::{Device, Request, Scatter};
use flashlane_rt::Cx;
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

/// A failure unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    /// A die stops working for good: its PU's chunks are offline.
    Die(u32),
    /// Every read of this PU fails.
    Pu(u32),
    /// Every read of this channel's PUs fails.
    Channel(u32),
    /// Every read of one chunk fails.
    Chunk(u32, u32),
    /// So many reads in a row fail, wherever they are.
    Reads(u64),
}

/// A unit that vanishes, from its n-th command on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loss {
    pub(crate) unit: Unit,
    /// Counted from 1, over the commands that the unit would have failed.
    pub(crate) from: u64,
}

impl Unit {
    /// One for a medium of this geometry. A die is the only one that does not come back.
    pub(crate) fn draw(rng: &mut Rng, geo: &Geometry) -> Unit {
        let pu = rng.below(geo.pus().into()) as u32;
        match rng.below(8) {
            0 | 1 => Unit::Die(pu),
            2 => Unit::Pu(pu),
            3 => Unit::Channel(geo.channel_of(pu)),
            4 | 5 => Unit::Chunk(pu, rng.below(geo.chunks_per_pu.into()) as u32),
            // From a command to more than a whole mount reads.
            _ => Unit::Reads(1 << rng.below(15)),
        }
    }

    pub(crate) fn is_for_good(self) -> bool {
        matches!(self, Unit::Die(_))
    }

    /// True if a sector at this place can't be read any more.
    fn holds(self, at: Location, geo: &Geometry) -> bool {
        match self {
            Unit::Die(pu) | Unit::Pu(pu) => at.pu == pu,
            Unit::Channel(channel) => geo.channel_of(at.pu) == channel,
            Unit::Chunk(pu, chunk) => (at.pu, at.chunk) == (pu, chunk),
            Unit::Reads(_) => false,
        }
    }

    /// PUs that it reaches into.
    fn pus(self, geo: &Geometry) -> Vec<u32> {
        let all = 0..geo.pus();
        match self {
            Unit::Die(pu) | Unit::Pu(pu) | Unit::Chunk(pu, _) => vec![pu],
            Unit::Channel(channel) => all.filter(|pu| geo.channel_of(*pu) == channel).collect(),
            Unit::Reads(_) => all.collect(),
        }
    }
}

impl Loss {
    /// The lines of a fault plan that make it happen, not before `after` of device time.
    pub(crate) fn faults(self, geo: &Geometry, after: Ns) -> Vec<Fault> {
        let Loss { unit, from } = self;
        let kind = match unit {
            Unit::Die(_) => FaultKind::DieFail,
            _ => FaultKind::ReadUncorrectable,
        };
        let (pus, chunk, times) = match unit {
            Unit::Die(pu) => (vec![Some(pu)], None, 1),
            Unit::Reads(times) => (vec![None], None, times),
            Unit::Chunk(pu, chunk) => (vec![Some(pu)], Some(chunk), u64::MAX),
            Unit::Pu(_) | Unit::Channel(_) => {
                (unit.pus(geo).into_iter().map(Some).collect(), None, u64::MAX)
            }
        };
        let line =
            |pu| Fault { kind, pu, chunk, sector: None, count: from, after, chance: None, times };
        pus.into_iter().map(line).collect()
    }
}

/// Reads a sector of a PU. A die that fails at its first command is dead after this, so the chunk
/// report that a mount takes says so.
pub(crate) async fn touch(cx: &Cx, ssd: Arc<Ssd>, pu: u32) {
    let at = [ssd.format().pack(Location { pu, chunk: 0, sector: 0 })];
    let mut oob = [[0; OOB_BYTES]];
    let content = Scatter::new(&mut [], &[0], 0);
    let device: Arc<dyn Device> = ssd;
    device.io(cx, Request::read(&at, content, &mut oob)).await;
}

/// The events of a run and their outcomes, over all its lives.
#[derive(Default)]
struct Events {
    /// Times that the power came on.
    lives: u64,
    /// As [`Done::vanished`], [`Done::refused`], [`Done::ended`].
    vanished: u64,
    refused: u64,
    ended: u64,
    /// The losses and troubles so far, each with the number of its life.
    said: Vec<String>,
    /// A die is dead: from then on reads of anything may fail.
    is_hurt: bool,
    /// After a clean stop: the place of each logical sector.
    stopped_at: Option<Vec<Option<Location>>>,
    /// A mount found a device that takes no writes, so it recorded nothing: a loss accepted later
    /// may be of versions younger than the records.
    is_unrecorded: bool,
    /// No mount is left to be tried.
    is_over: bool,
}

impl Events {
    /// The power comes on: the number of this life, from 1.
    fn power_on(&mut self) -> u64 {
        self.lives += 1;
        self.lives
    }

    /// Notes a loss in this life.
    fn happened(&mut self, what: String) {
        self.vanished += 1;
        self.said.push(format!("life {}: {what}", self.lives));
    }
}

/// Layers on a medium of which units vanish, between lives and in them.
pub(crate) struct Vanishing {
    inner: Rc<Layered>,
    seed: u64,
    events: RefCell<Events>,
}

impl Vanishing {
    pub(crate) fn over(inner: Rc<Layered>, seed: u64) -> Rc<dyn Machine> {
        Rc::new(Vanishing { inner, seed, events: RefCell::default() })
    }

    fn rng(&self, life: u64) -> Rng {
        Rng::stream(self.seed, "testkit.vanish", life)
    }

    fn geometry(&self) -> Option<Geometry> {
        self.inner.medium().map(|ssd| *ssd.geometry())
    }

    /// Has `loss` happen to the medium.
    fn strike(&self, loss: Loss, after: Ns) {
        let (Some(ssd), Some(geo)) = (self.inner.medium(), self.geometry()) else { return };
        loss.faults(&geo, after).into_iter().for_each(|fault| ssd.fail(fault));
        self.events.borrow_mut().happened(format!("{loss:?} after {after}"));
    }

    /// Ends all losses but those of dies.
    fn heal(&self) {
        self.inner.medium().iter().for_each(|ssd| ssd.forgive());
    }

    /// The place of each logical sector on the medium, where it has one.
    fn places(&self) -> Vec<Option<Location>> {
        let Some(layers) = self.inner.layers() else { return Vec::new() };
        let capacity = layers.block().info().capacity;
        (0..capacity).map(|lba| layers.target().locate(lba)).collect()
    }

    /// How many sectors GC could not read when it was to move them. It may have moved them to the
    /// lost unit itself; they have no place any more.
    fn lost_moves(&self) -> u64 {
        let stats = self.inner.layers().and_then(|layers| layers.target().stats());
        stats.map_or(0, |stats| stats.gc_read_failures)
    }

    /// Brings the stack up in a life after its first one, most of the time with a loss.
    async fn again(self: &Rc<Self>, boot: &Boot, life: u64) -> Result<Up, String> {
        self.heal();
        let (mut rng, geo) = (self.rng(life), self.geometry().ok_or("no medium")?);
        let clean = self.events.borrow_mut().stopped_at.take();
        let hurt = self.events.borrow().is_hurt;
        if rng.below(4) == 0 {
            return match self.mount(boot).await {
                Err(e) if hurt && e.refusal.is_some() => self.accepted(boot).await,
                up => up.map_err(|e| e.what),
            };
        }
        // Most of the time from the first command on; else in the middle of the mount.
        let (at_once, magnitude) = (rng.below(3) > 0, rng.below(9));
        let from = if at_once { 1 } else { 1 + rng.below(1 << magnitude) };
        let loss = Loss { unit: Unit::draw(&mut rng, &geo), from };
        let for_good = loss.unit.is_for_good();
        self.events.borrow_mut().is_hurt |= for_good;
        self.strike(loss, Ns::ZERO);
        if let (Unit::Die(pu), 1) = (loss.unit, from)
            && let Some(ssd) = self.inner.medium()
        {
            touch(&boot.cx, ssd, pu).await;
        }
        let up = match self.mount(boot).await {
            Ok(up) => up,
            Err(first) => return self.refused(boot, loss, first, clean.is_some() && !hurt).await,
        };
        if let Some(oracle) = boot.oracle.get() {
            if let (Some(places), false) = (clean.filter(|_| from == 1), hurt) {
                let gone = |at: &Option<Location>| at.is_some_and(|at| loss.unit.holds(at, &geo));
                let on_unit = |places: &[Option<Location>]| -> BTreeSet<u64> {
                    (0u64..).zip(places).filter(|(_, at)| gone(at)).map(|(lba, _)| lba).collect()
                };
                let mut lost = on_unit(&places);
                loop {
                    oracle.admit_errors(lost.iter().map(|lba| Lba::new(*lba)));
                    let Err(e) = read_all(&boot.cx, &*up.dev, oracle).await else { break };
                    // GC may have moved sectors there since: what can't be read can be written to.
                    let now = self.places();
                    let mut moved = on_unit(&now);
                    let gone = (0u64..).zip(places.iter().zip(&now));
                    let gone = gone.filter(|(_, (at, now))| at.is_some() && now.is_none());
                    let gone: Vec<u64> = gone.map(|(lba, _)| lba).collect();
                    if gone.iter().filter(|lba| !lost.contains(lba)).count() as u64
                        <= self.lost_moves()
                    {
                        moved.extend(gone);
                    }
                    if moved.is_subset(&lost) {
                        return Err(format!("after a clean stop, then {loss:?}: {e}"));
                    }
                    lost.extend(moved);
                }
            }
            oracle.admit_any_error();
        }
        Ok(up)
    }

    async fn mount(&self, boot: &Boot) -> Result<Up, Unmounted> {
        self.inner.raised(boot, MountHow::default()).await
    }

    /// Judges a mount that was refused while `loss` lasts: tries it once more, then without the
    /// loss, or, if a die is dead, with `accept_lost`.
    async fn refused(
        &self,
        boot: &Boot,
        loss: Loss,
        first: Unmounted,
        clean: bool,
    ) -> Result<Up, String> {
        if first.refusal.is_none() {
            return Err(first.what);
        }
        self.events.borrow_mut().refused += 1;
        let geo = self.geometry().ok_or("no medium")?;
        if clean && loss.from == 1 && loss.unit.pus(&geo).len() == 1 && geo.pus() > 2 {
            return Err(format!("a clean stop, then {loss:?}, and no mount: {}", first.what));
        }
        // Of one that began in the middle of the first mount, that one may have ended in no
        // verdict: its log could not go on.
        let is_verdict = loss.from == 1 || first.refusal != Some(Refusal::Damaged);
        let lasts = is_verdict && !matches!(loss.unit, Unit::Reads(_));
        match self.mount(boot).await {
            Ok(_) if lasts => {
                let why = first.what;
                return Err(format!("{loss:?}: refused ({why}), then accepted unchanged"));
            }
            Ok(up) => {
                // Its reads may go on failing.
                boot.oracle.get().iter().for_each(|oracle| oracle.admit_any_error());
                return Ok(up);
            }
            Err(e) if e.refusal.is_none() => return Err(e.what),
            Err(_) => {}
        }
        if !loss.unit.is_for_good() {
            self.heal();
            match self.mount(boot).await {
                Err(e) if e.refusal.is_some() && self.events.borrow().is_hurt => {}
                up => {
                    return up.map_err(|e| {
                        format!("{loss:?} is over, and it does not mount: {}", e.what)
                    });
                }
            }
        }
        self.accepted(boot).await
    }

    /// Mounts with `accept_lost`, since a die is dead. If even that is refused the run is over.
    async fn accepted(&self, boot: &Boot) -> Result<Up, String> {
        if self.events.borrow().is_unrecorded {
            self.events.borrow_mut().is_over = true;
            return Err("a mount could record nothing, and now a loss must be accepted".into());
        }
        boot.oracle.get().iter().for_each(|oracle| oracle.admit_any_error());
        let how = MountHow { accept_lost: true, undo_discards: false };
        match self.inner.raised(boot, how).await {
            Err(e) if e.refusal.is_some() => {
                let mut events = self.events.borrow_mut();
                (events.is_over, events.ended) = (true, events.ended + 1);
                Err(e.what)
            }
            up => up.map_err(|e| e.what),
        }
    }

    /// In half of the lives a unit vanishes while the stack is in use. True if one will.
    fn strike_later(&self, boot: &Boot, life: u64) -> bool {
        let mut rng = self.rng(life | 1 << 32);
        let (Some(geo), true) = (self.geometry(), rng.below(2) == 0) else { return false };
        let loss = Loss { unit: Unit::draw(&mut rng, &geo), from: 1 };
        let magnitude = 14 + rng.below(14);
        let after = boot.cx.now() + Ns::from_ns(rng.below(1 << magnitude));
        self.events.borrow_mut().is_hurt |= loss.unit.is_for_good();
        self.strike(loss, after);
        true
    }
}

impl Machine for Vanishing {
    fn up(self: Rc<Self>, boot: Boot) -> Boxed<'static, Result<Up, String>> {
        Box::pin(async move {
            let life = self.events.borrow_mut().power_on();
            let up = match self.inner.medium().is_some() && boot.oracle.get().is_some() {
                true => self.again(&boot, life).await?,
                false => self.mount(&boot).await.map_err(|e| e.what)?,
            };
            if let Some(layers) = self.inner.layers() {
                self.events.borrow_mut().is_unrecorded |= layers.target().read_only().is_some();
            }
            let strikes = self.strike_later(&boot, life);
            // A life in which a die died may have been cut before its mount came to an end.
            let reads_may_fail = strikes || self.events.borrow().is_hurt;
            let (me, check) = (self.clone(), up.check_stopped);
            let check_stopped = Box::new(move || {
                check()?;
                let layers = me.inner.layers();
                if layers.is_some_and(|layers| layers.target().outlives_a_pu()) {
                    me.events.borrow_mut().stopped_at = Some(me.places());
                }
                Ok(())
            });
            Ok(Up { check_stopped, may_give_up: true, reads_may_fail, ..up })
        })
    }
    fn cut(&self, at: Ns, seed: u64) {
        self.events.borrow_mut().stopped_at = None;
        self.inner.cut(at, seed);
    }
    fn off(&self, at: Ns) {
        self.inner.off(at);
    }
    fn is_over(&self) -> bool {
        self.events.borrow().is_over
    }
    fn count(&self, done: &mut Done) {
        let events = self.events.borrow();
        (done.vanished, done.refused, done.ended) = (events.vanished, events.refused, events.ended);
    }
    fn describe(&self) -> String {
        let events = self.events.borrow().said.join("; ");
        format!("{}, of which units vanish ({events})", self.inner.describe())
    }
}

/// Layers on a device in an image, on a host's disk that fails now and then.
pub(crate) struct Troubled {
    inner: Rc<Layered>,
    seed: u64,
    events: RefCell<Events>,
}

impl Troubled {
    pub(crate) fn over(inner: Rc<Layered>, seed: u64) -> Rc<dyn Machine> {
        Rc::new(Troubled { inner, seed, events: RefCell::default() })
    }

    /// Brings the stack up in a later life, on a disk that may fail while its image is opened and
    /// mounted. When the disk works again the stack must come up.
    async fn again(&self, boot: &Boot, rng: &mut Rng) -> Result<Up, String> {
        let trouble = (rng.below(3) == 0).then(|| Trouble::draw(rng));
        self.inner.set_trouble(trouble);
        if let Some(trouble) = trouble {
            self.events.borrow_mut().happened(format!("{trouble:?} at the mount"));
        }
        let up = self.inner.raised(boot, MountHow::default()).await;
        if let (Some(trouble), Err(first)) = (trouble, &up) {
            self.events.borrow_mut().refused += 1;
            self.inner.restart(self.seed);
            let up = self.inner.raised(boot, MountHow::default()).await;
            let first = &first.what;
            return up.map_err(|e| {
                format!("{trouble:?} is over ({first}), and it does not come up: {}", e.what)
            });
        }
        if trouble.is_some() {
            boot.oracle.get().iter().for_each(|oracle| oracle.admit_any_error());
        }
        up.map_err(|e| e.what)
    }
}

impl Machine for Troubled {
    fn up(self: Rc<Self>, boot: Boot) -> Boxed<'static, Result<Up, String>> {
        Box::pin(async move {
            let life = self.events.borrow_mut().power_on();
            let mut rng = Rng::stream(self.seed, "testkit.trouble", life);
            let up = match boot.oracle.get().is_some() {
                true => self.again(&boot, &mut rng).await?,
                false => self.inner.raised(&boot, MountHow::default()).await.map_err(|e| e.what)?,
            };
            let reads_may_fail = rng.below(2) == 0;
            if reads_may_fail {
                let trouble = Trouble::draw(&mut rng);
                self.events.borrow_mut().happened(format!("{trouble:?}"));
                self.inner.set_trouble(Some(trouble));
            }
            Ok(Up { may_give_up: true, reads_may_fail, ..up })
        })
    }
    fn cut(&self, at: Ns, seed: u64) {
        self.inner.set_trouble(None);
        self.inner.cut(at, seed);
    }
    fn off(&self, at: Ns) {
        self.inner.set_trouble(None);
        self.inner.off(at);
    }
    fn count(&self, done: &mut Done) {
        let events = self.events.borrow();
        (done.vanished, done.refused) = (events.vanished, events.refused);
    }
    fn describe(&self) -> String {
        let events = self.events.borrow().said.join("; ");
        format!("{}, on a host's disk that fails ({events})", self.inner.describe())
    }
}

/// Reads every sector, and has the oracle judge it.
async fn read_all(cx: &Cx, dev: &dyn BlockDev, oracle: &Arc<Oracle>) -> Result<(), String> {
    const PIECE: u64 = 64;
    let bytes = oracle.content_bytes();
    for at in (0..oracle.capacity()).step_by(PIECE as usize) {
        let sectors = PIECE.min(oracle.capacity() - at) as u32;
        let mut buf = vec![0xa5; sectors as usize * bytes];
        let reading = oracle.begin_read(Lba::new(at), sectors);
        let result = dev.start(cx, Io::read(Lba::new(at), sectors, &mut buf)).await;
        oracle.check_read(reading, &buf, &result).map_err(|wrong| wrong.to_string())?;
    }
    Ok(())
}
