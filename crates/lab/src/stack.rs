//! A stack to be driven: on a fresh device, on one from a shelf, or mounted from a drive image.
//!
//! Owns: which device a stack stands on, mount, drain and stop, the check of both counter laws.
//! Promises: a target that does not fit its device is an error with the layer's own reason; a target
//! of a drive is stopped cleanly, and its image closed, however a run ends. Never: drives a stack,
//! knows which layers there are (`flashlane_stack::kinds` does).

use crate::control::live::Attending;
use crate::control::live::Live;
use crate::control::power::Switch;
use crate::experiment::{DriveTarget, Experiment, Target};
pub use crate::lnvm::StackError;
use crate::lnvm::{Drive, Lost, Mounted, check_how, knobs, layers_of};
use crate::room::{self, Reader};
use crate::run::{Fill, Probe, Sample, Subject, Watch};
use crate::tap::{Tap, TapError};
use crate::trace::{Recorded, Take};
use flashlane_base::{Location, Ns, mutant};
use flashlane_ftl::block::{BlockDev, BlockError};
use flashlane_ftl::contention::Contention;
use flashlane_ftl::layer::{Find, LayerError, Refusal, Seam, Stop};
pub use flashlane_ftl::layer::{Lines, MountHow};
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::ssd::ImagePlace;
use flashlane_ocssd::{Device, OpenImage, Partition, Ssd, SsdOptions, StoreKind, TargetInfo};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_stack::{Description, DeviceChoice, Layers, Make, Programmed, kinds, raise};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

/// A device with layers on it.
#[derive(Clone)]
pub struct Stack {
    ssd: Arc<Ssd>,
    layers: Layers,
    /// Where what the top is asked can be recorded.
    tap: Arc<Tap>,
    raw_sectors: u64,
    /// Sectors that the medium had programmed before, by cause.
    programmed: Programmed,
    /// Sectors that it had not been able to give before.
    uncorrectable: u64,
    /// The drive that it was mounted from.
    home: Option<Rc<Home>>,
}

/// Where a mounted stack came from.
struct Home {
    opened: Rc<Opened>,
    mounted: Mounted,
    /// Commits of the image before: a number that no earlier run had.
    life: u64,
}

/// A drive that this process has open for one or several targets. The last one that closes it closes its
/// image.
pub(crate) struct Opened {
    drive: Drive,
    live: Rc<Live>,
    /// Until the image is closed.
    attended: Attending,
    /// Targets that have it open.
    users: Cell<usize>,
    /// Targets that are mounted, or are being mounted.
    running: Cell<usize>,
    /// Sectors by cause: what the medium had programmed before, and what targets have that were stopped.
    programmed: Cell<Programmed>,
}

impl Opened {
    /// Opens the drive of a target with the options of its device, and listens for those who ask about it.
    ///
    /// # Errors
    /// It can't be opened, or its control socket can't be had.
    pub(crate) fn open(
        cx: &Cx,
        target: &Target,
        on: &DriveTarget,
        switch: Option<Rc<Switch>>,
    ) -> Result<Rc<Opened>, StackError> {
        let drive = open_drive(target, on)?;
        let live = Live::new(drive.clone(), switch);
        match live.attend(cx) {
            Ok(attended) => {
                let programmed = Cell::new(drive.ssd.counters().programmed);
                let (users, running) = (Cell::new(0), Cell::new(0));
                Ok(Rc::new(Opened { drive, live, attended, users, running, programmed }))
            }
            Err(e) => {
                let _ = drive.close(); // nothing has happened to it
                Err(e.into())
            }
        }
    }

    /// These targets of it will be mounted: nobody removes one meanwhile.
    pub(crate) fn expect<'a>(&self, targets: impl Iterator<Item = &'a str>) {
        targets.for_each(|name| self.live.add_target(name));
    }

    /// What a knob holds up goes on.
    pub(crate) fn unstick(&self, cx: &Cx) {
        self.live.unstick(cx);
    }

    /// What is to be seen of it, as text for Prometheus.
    pub(crate) fn metrics(&self, cx: &Cx) -> String {
        self.live.metrics(cx).to_text()
    }

    /// What is to be said of its image, if its path does not lead to it any more.
    pub(crate) fn misplaced(&self) -> Option<String> {
        let image = self.drive.path.display();
        match self.drive.ssd.image_place(&self.drive.path) {
            ImagePlace::There => None,
            ImagePlace::Moved => Some(format!(
                "{image} was moved while it was in use: the drive is under its other name, with all that \
                 was flushed"
            )),
            ImagePlace::Removed => Some(format!(
                "{image} was removed or replaced while it was in use: everything on the drive is lost when \
                 this ends, and flushes fail until then; copy what you need to another disk first"
            )),
        }
    }

    /// A target was stopped that has programmed so much. For the last one: what the medium says that it
    /// has, as all but it are known by then.
    fn stopped(&self, by_it: &[u64]) -> Option<Programmed> {
        self.running.set(self.running.get().saturating_sub(1));
        let known = self.programmed.get();
        let left = since(self.drive.ssd.counters().programmed, known);
        self.programmed.set(std::array::from_fn(|cause| {
            known[cause] + by_it.get(cause).copied().unwrap_or(0)
        }));
        (self.running.get() == 0).then_some(left)
    }

    /// Stops listening at the control socket, as this process is about to close the drive. Another
    /// process that wants the drive sees that by the socket, and waits instead of giving up.
    pub(crate) fn stop_listening(&self) {
        self.attended.take();
    }

    /// One of its targets is done with it.
    ///
    /// # Errors
    /// The host failed: what was not flushed may be lost.
    pub(crate) fn close(&self) -> Result<(), StackError> {
        self.users.set(self.users.get().saturating_sub(1));
        if self.users.get() > 0 && !mutant!("serve.closed-by-the-first") {
            return Ok(());
        }
        // Nobody listens any more when another process may open the image.
        self.attended.take();
        Ok(self.drive.close()?)
    }
}

/// Sectors up to which what they hold is looked at over time: some nanoseconds each, at every look.
const PAGES_SECTORS_MAX: u64 = 1 << 22;
/// Sectors up to which it is looked at where each of them lies, after a run.
const VALID_SECTORS_MAX: u64 = 1 << 24;
/// Sectors up to which the maps are walked after a run: some hundred bytes and 100 ns each.
const WALK_SECTORS_MAX: u64 = 1 << 21;

impl Stack {
    /// Builds a target on a fresh device, or mounts it from its drive; its background tasks start on
    /// the core of `cx`.
    pub async fn build(cx: &Cx, target: &Target, seed: u64) -> Result<Stack, StackError> {
        Stack::powered(cx, target, seed, None).await
    }

    /// As [`Stack::build`]; the power of its drive, if it lives on one, is behind a switch.
    pub(crate) async fn powered(
        cx: &Cx,
        target: &Target,
        seed: u64,
        switch: Option<Rc<Switch>>,
    ) -> Result<Stack, StackError> {
        if let Some(on) = &target.drive {
            return Stack::mount(cx, target, &Opened::open(cx, target, on, switch)?).await;
        }
        let (ssd, part) = medium(&target.stack, seed)?;
        Ok(Stack::on(cx, &target.stack, ssd, part, &Make::Create).await?)
    }

    /// Puts the layers of a description on a device that is not a drive's.
    async fn on(
        cx: &Cx,
        stack: &Description,
        ssd: Arc<Ssd>,
        part: Arc<dyn Device>,
        make: &Make,
    ) -> Result<Stack, LayerError> {
        let raw_sectors = part.geometry().sectors();
        let count = ssd.counters();
        let (programmed, uncorrectable) = (count.programmed, count.uncorrectable);
        let layers = raise(cx, part, &stack.layers, stack.link(), make).await?;
        let tap = Tap::new(layers.block());
        Ok(Stack { ssd, layers, tap, raw_sectors, programmed, uncorrectable, home: None })
    }

    /// Mounts a target that was put away ([`Stack::put_away`]) on a device that was taken in since.
    pub(crate) async fn on_shelved(
        cx: &Cx,
        target: &Target,
        ssd: Arc<Ssd>,
    ) -> Result<Stack, StackError> {
        let part = target.stack.part_of(&ssd)?;
        Ok(Stack::on(cx, &target.stack, ssd, part, &Make::mount()).await?)
    }

    /// Mounts a target of a drive that is open. Where it can't be mounted it has left the drive.
    ///
    /// # Errors
    /// There is no such target, or it can't be mounted.
    pub(crate) async fn mount(
        cx: &Cx,
        target: &Target,
        opened: &Rc<Opened>,
    ) -> Result<Stack, StackError> {
        opened.users.set(opened.users.get() + 1);
        opened.running.set(opened.running.get() + 1);
        let mounted = Stack::mount_on(cx, target, opened).await;
        if mounted.is_err() {
            let _ = opened.close(); // why it could not be mounted matters more
        }
        mounted
    }

    async fn mount_on(cx: &Cx, target: &Target, opened: &Rc<Opened>) -> Result<Stack, StackError> {
        let Opened { drive, live, .. } = &**opened;
        let on = target.drive.as_ref();
        let (name, how) = on.map_or((&target.name, MountHow::default()), |on| (&on.name, on.how));
        let life = drive.ssd.image_info().map_or(0, |i| i.commits);
        let began = cx.now();
        let (info, part) = drive.target(name)?;
        live.add_target(name);
        let stack = Stack::on_drive(cx, target, &info, drive.ssd.clone(), part, how).await?;
        let layer = stack.layers.target();
        for refused in knobs::apply(cx, &**layer, &info.settings) {
            live.note(name, format!("a kept knob: {refused}"));
        }
        stack.tap.time();
        live.set_mounted(name, stack.layers.clone(), stack.tap.clone());
        let recovery = layer.recovered();
        let time = cx.now() - began;
        let first = info.chunks.map_or(0, |(first, _)| first);
        let lost = recovery.as_ref().map(|r| Lost::of(r, info.begin, first));
        let (path, lost, notes) = (drive.path.clone(), lost.unwrap_or_default(), Vec::new());
        let mounted = Mounted { path, info, recovery, lost, time, notes };
        let home = Some(Rc::new(Home { opened: opened.clone(), mounted, life }));
        Ok(Stack { home, ..stack })
    }

    /// Mounts what is on a target's PUs.
    async fn on_drive(
        cx: &Cx,
        target: &Target,
        info: &TargetInfo,
        ssd: Arc<Ssd>,
        part: Arc<Partition>,
        how: MountHow,
    ) -> Result<Stack, StackError> {
        check_how(how, kinds::find(&info.kind))?;
        let find = Find { uuid: info.uuid, how, saved: None };
        let make = Make::Mount { find, saved: Vec::new() };
        Ok(Stack::on(cx, &target.stack, ssd, part, &make).await?)
    }

    /// Sectors that the medium could not give since, whoever asked for them: the host, the layer,
    /// its mount.
    pub fn uncorrectable(&self) -> u64 {
        self.ssd.counters().uncorrectable - self.uncorrectable
    }

    /// How the target was found on its drive, if it lives on one, and what did not go as its knobs say.
    pub fn mounted(&self) -> Option<Mounted> {
        let home = self.home.as_ref()?;
        let notes = home.opened.live.notes(&home.mounted.info.name);
        Some(Mounted { notes, ..home.mounted.clone() })
    }

    /// Closes the image of a stopped target that lives on one.
    ///
    /// # Errors
    /// The host failed: what was not flushed may be lost.
    pub fn close(&self) -> Result<(), StackError> {
        match &self.home {
            Some(home) => home.opened.close(),
            None => Ok(()),
        }
    }

    /// For a run that could not be done: a target of a drive is put back as it was found.
    pub async fn leave(&self, cx: &Cx) {
        if self.home.is_some() {
            self.drain(cx).await;
            let _ = self.stop(cx).await; // what kept the run from being done matters more
            let _ = self.close();
        }
    }

    /// What is to be seen of the drive that it was mounted from, as text for Prometheus.
    pub(crate) fn metrics(&self, cx: &Cx) -> Option<String> {
        Some(self.home.as_ref()?.opened.metrics(cx))
    }

    /// What a workload sees.
    pub fn block(&self) -> Arc<dyn BlockDev> {
        self.layers.block()
    }

    /// The same for somebody whom recordings name so.
    pub(crate) fn door(&self, name: &str) -> Arc<dyn BlockDev> {
        self.tap.door(name)
    }

    /// Records what its top is asked by those who are named so, from [`Stack::begin_recording`] on.
    ///
    /// # Errors
    /// The file can't be had.
    pub(crate) fn prepare_recording(&self, take: Take, by: &[&str]) -> Result<(), TapError> {
        by.iter().for_each(|name| drop(self.door(name)));
        self.tap.prepare(take)
    }

    /// What was prepared begins.
    pub(crate) fn begin_recording(&self, now: Ns) {
        self.tap.begin(now);
    }

    /// Ends what is recorded, if anything is.
    ///
    /// # Errors
    /// The file could not be written.
    pub(crate) fn end_recording(&self) -> Result<Option<Recorded>, TapError> {
        match self.tap.end() {
            Err(TapError::Idle) => Ok(None),
            ended => ended.map(Some),
        }
    }

    /// Sectors of the PUs that the target has.
    pub fn raw_sectors(&self) -> u64 {
        self.raw_sectors
    }

    /// What the runner drives; `begin` is called when the measured part begins.
    ///
    /// With `intervals` latencies are also kept over time.
    pub fn subject(&self, begin: Rc<dyn Fn()>, intervals: bool) -> Subject {
        let (me, watched) = (self.clone(), self.clone());
        let probe: Probe = Rc::new(move |now| {
            let layers = &watched.layers;
            let pages =
                if watched.raw_sectors > PAGES_SECTORS_MAX { Vec::new() } else { layers.pages() };
            let sample =
                Sample::new(&watched.ssd.counters_at(now), layers.gauges(), layers.counted());
            Sample { pages, ..sample }
        });
        let layers = self.layers.clone();
        let begin: Rc<dyn Fn()> = Rc::new(move || {
            layers.measure();
            begin();
        });
        let layers = self.layers.clone();
        let contention = self.layers.contention(Ns::ZERO).map(|_| {
            let at = move |now| layers.contention(now).unwrap_or_default();
            Rc::new(at) as Rc<dyn Fn(Ns) -> Contention>
        });
        let is_tapped = self.home.is_some() || self.tap.is_prepared();
        Subject {
            device: if is_tapped { self.door("run") } else { self.block() },
            stats: Rc::new(move || me.stats()),
            begin,
            contention,
            watch: Watch { probe: Some(probe), intervals },
            used: self.home.as_ref().map(|h| h.life),
            discards: self.layers.discards(),
        }
    }

    /// The layers.
    pub fn layers(&self) -> &Layers {
        &self.layers
    }

    /// How many sectors' newest contents lie in which chunk of its part of the device; nothing where there are too
    /// many to look at each.
    pub fn valid_by_chunk(&self) -> BTreeMap<(u32, u32), u32> {
        match self.raw_sectors > VALID_SECTORS_MAX {
            true => BTreeMap::new(),
            false => self.layers.valid_by_chunk(),
        }
    }

    /// Its target gives flash blocks that are written in order.
    pub(crate) fn is_in_order(&self) -> bool {
        matches!(self.layers.target().clone().above(), Seam::Segments(_))
    }

    /// Where the newest content of a sector lies, as far as its target says.
    pub(crate) fn locate(&self, lba: u64) -> Option<Location> {
        self.layers.target().locate(lba)
    }

    /// There are few enough sectors to look at each.
    pub(crate) fn may_be_looked_through(&self) -> bool {
        self.raw_sectors <= VALID_SECTORS_MAX
    }

    /// Sectors of a flash block.
    pub(crate) fn block_sectors(&self) -> u32 {
        self.ssd().geometry().sectors_per_chunk()
    }

    /// How the target's lines are divided; `None` where it says nothing of that.
    pub fn lines(&self) -> Option<Lines> {
        self.layers.all().iter().find_map(|layer| layer.lines())
    }

    /// Counters of the layer that programs flash.
    pub fn stats(&self) -> FtlStats {
        self.layers.stats()
    }

    /// Turns a knob of the target.
    ///
    /// # Errors
    /// It has none of that name, or does not take the value.
    pub fn set_attribute(&self, cx: &Cx, name: &str, value: &str) -> Result<(), StackError> {
        Ok(self.layers.target().set_attribute(cx, name, value)?)
    }

    /// The medium below.
    pub fn ssd(&self) -> &Arc<Ssd> {
        &self.ssd
    }

    /// Has everything that was acknowledged programmed, after a flush. A device FTL takes no writes
    /// afterwards: its flush ends with the data in its power-safe buffer.
    pub async fn drain(&self, cx: &Cx) {
        self.layers.drain(cx).await;
    }

    /// Ends the layers' tasks, then checks that counters agree: the host's law, the medium's law,
    /// and, on devices that are not too large, the maps against a walk.
    pub async fn stop(&self, cx: &Cx) -> Stopped {
        let how = match &self.home {
            // Somebody comes back.
            Some(home) => {
                home.opened.live.take_mounted(&home.mounted.info.name);
                Stop::Clean
            }
            None => Stop::Quiet,
        };
        let stopped = self.layers.stop(cx, how).await;
        let why = why_read_only(stopped).or(self.layers.read_only().map(str::to_string));
        Stopped { read_only: why, laws: self.check() }
    }

    /// Stops a target of a fresh device cleanly, for a mount that comes later, and checks as
    /// [`Stack::stop`] does.
    pub(crate) async fn put_away(&self, cx: &Cx) -> Result<(), String> {
        let stopped = self.layers.stop(cx, Stop::Clean).await;
        let read_only = self.layers.read_only().map_or(Ok(()), |w| Err(BlockError::ReadOnly(w)));
        stopped.and(read_only).map_err(|e| StackError::Stop(e).to_string())?;
        self.check()
    }

    /// Counters agree with each other and with the medium's, the maps with a walk.
    fn check(&self) -> Result<(), String> {
        // The layer has counted since it was mounted, the medium since it was new.
        let programmed = match &self.home {
            Some(home) => home.opened.stopped(&self.stats().programmed),
            None => Some(since(self.ssd.counters().programmed, self.programmed)),
        };
        match programmed {
            Some(programmed) => self.layers.check_laws(&programmed)?,
            None => self.layers.check_host_law()?,
        }
        match self.raw_sectors > WALK_SECTORS_MAX {
            true => Ok(()),
            false => self.layers.walk(),
        }
    }
}

fn since(now: Programmed, before: Programmed) -> Programmed {
    std::array::from_fn(|cause| now[cause].saturating_sub(before[cause]))
}

/// What came of stopping a layer.
pub struct Stopped {
    /// Why it could not make everything durable, if so.
    pub read_only: Option<String>,
    /// Whether counters and maps agree.
    pub laws: Result<(), String>,
}

fn why_read_only(stopped: Result<(), BlockError>) -> Option<String> {
    match stopped {
        Ok(()) => None,
        Err(BlockError::ReadOnly(why)) => Some(why.to_string()),
        Err(other) => Some(other.to_string()),
    }
}

/// Sectors that a layer offers: it is really built, and thrown away.
pub(crate) fn capacity(target: &Target, seed: u64, costs: CostTable) -> Result<u64, StackError> {
    let vm = Virtual::new(1, seed, costs);
    let (cx, owned) = (vm.cx(), target.clone());
    let built = vm.run(async move { Stack::build(&cx, &owned, seed).await });
    // A stall while creating would be a bug; the run itself reports it with its seed.
    let stack = built.unwrap_or_else(|stalled| unreachable!("creating a target: {stalled}"))?;
    Ok(stack.block().info().capacity)
}

/// The drive of a target without a layer, open and attended.
pub(crate) struct RawHome {
    drive: Drive,
    attended: Attending,
}

impl RawHome {
    /// As [`Stack::close`].
    pub(crate) fn close(self) -> Result<(), StackError> {
        self.attended.take();
        Ok(self.drive.close()?)
    }
}

/// A target of a drive without a layer: its device, its part of it, who closes it.
pub(crate) type Medium = (Arc<Ssd>, Arc<dyn Device>, Option<RawHome>);

/// A fresh device, or that of a drive, and the part of it that a target has.
pub(crate) fn raw_medium(
    cx: &Cx,
    target: &Target,
    seed: u64,
    switch: &Rc<Switch>,
) -> Result<Medium, StackError> {
    let Some(on) = &target.drive else {
        return medium(&target.stack, seed).map(|(ssd, part)| (ssd, part, None));
    };
    let drive = open_drive(target, on)?;
    let open = || {
        let (info, part) = drive.target(&on.name)?;
        check_how(on.how, kinds::find(&info.kind))?;
        let part: Arc<dyn Device> = part;
        let live = Live::new(drive.clone(), Some(switch.clone()));
        live.add_target(&on.name);
        Ok::<_, StackError>((part, live.attend(cx)?))
    };
    match open() {
        Ok((part, attended)) => {
            let ssd = drive.ssd.clone();
            Ok((ssd, part, Some(RawHome { drive, attended })))
        }
        Err(e) => {
            let _ = drive.close(); // nothing has happened to it
            Err(e)
        }
    }
}

/// Opens a drive with the options of the experiment's device.
fn open_drive(target: &Target, on: &DriveTarget) -> Result<Drive, StackError> {
    let o = &target.stack.device.options;
    let how = OpenImage {
        read_only: false,
        queue: o.queue,
        faults: o.faults.clone(),
        quiet: false,
        timing: o.timing,
        dulbe: o.dulbe,
        limited_retry: o.limited_retry,
        commits_behind: true,
    };
    Ok(Drive::open(&on.image, &how)?)
}

/// Has an experiment run on a target of a drive. What is there is what it finds: nothing is filled
/// unless the experiment says how much.
///
/// # Errors
/// There is no such drive or target, or its settings make no sense.
pub fn put_on_drive(experiment: &mut Experiment, on: &DriveTarget) -> Result<(), StackError> {
    let Some(like) = experiment.targets.first() else { return Ok(()) };
    if experiment.targets.iter().any(|target| target.fs.is_some()) {
        return Err(StackError::NewFiles);
    }
    let (host, only) = (like.host.clone(), like.only.clone());
    let mut target = target_of_drive(on, &like.stack.device.options)?;
    // What stands on a target is the run's; a raw one has nothing to stand on.
    if !target.stack.is_raw() {
        target.stack.layers.extend(like.stack.layers.iter().skip(1).cloned());
    }
    experiment.targets = vec![Target { host, only, ..target }];
    if experiment.run.fill == Fill::Auto {
        experiment.run.fill = Fill::None;
    }
    Ok(())
}

/// A target of a drive, to be run on: the drive's device with these options, what its table says of
/// the target.
///
/// # Errors
/// There is no such drive or target, or its settings make no sense.
pub fn target_of_drive(on: &DriveTarget, options: &SsdOptions) -> Result<Target, StackError> {
    let drive = Drive::look(&on.image)?;
    let (info, _) = drive.target(&on.name)?;
    let options = SsdOptions { store: StoreKind::File, ..options.clone() };
    let device = DeviceChoice { spec: drive.ssd.spec().clone(), options };
    let stack = Description {
        device,
        pus: Some((info.begin, info.end)),
        chunks: info.chunks,
        layers: layers_of(&info)?,
    };
    Ok(Target { drive: Some(on.clone()), ..Target::new(&on.name, stack) })
}

impl StackError {
    /// As whoever made this target is told it: where that is for a file system, how large the device must be
    /// for both.
    pub(crate) fn on(self, target: &Target, seed: u64) -> StackError {
        match (&self, &target.fs) {
            (StackError::Layer(e), Some(fs)) if e.refusal == Refusal::TooSmall => {
                let (wanted, to) = (fs.wanted(), (seed, Reader::Experiment));
                let says = || room::says_below(&target.stack, &wanted, to);
                room::meanwhile(says).map_or(self, StackError::NoRoom)
            }
            _ => self,
        }
    }
}

/// The medium of a file system on these layers.
pub(crate) fn medium_of(layers: &Layers) -> flashlane_parafs::Medium {
    match layers.target().clone().above() {
        Seam::Segments(sftl) => flashlane_parafs::Medium::from(sftl),
        _ => flashlane_parafs::Medium::Linear(layers.block()),
    }
}

/// A fresh device, and the part of it that a stack has.
pub(crate) fn medium(
    stack: &Description,
    seed: u64,
) -> Result<(Arc<Ssd>, Arc<dyn Device>), StackError> {
    let options = SsdOptions { seed, ..stack.device.options.clone() };
    let ssd = Ssd::new(&stack.device.spec, options)?;
    let part = stack.part_of(&ssd)?;
    Ok((ssd, part))
}
