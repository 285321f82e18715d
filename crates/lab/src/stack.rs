//! Builds the stacks: a fresh device, a layer on it; or a drive image, and the target that is mounted
//! from it. The only place that knows how.
//!
//! Owns: construction, mount, drain and stop of every kind of target, the check of both counter laws.
//! Promises: a target that does not fit its device is an error with the layer's own reason; a target
//! of a drive is stopped cleanly, and its image closed, however a run ends. Never: drives a stack.

use crate::control::live::Attending;
use crate::control::power::Switch;
use crate::control::{ControlError, Live};
use crate::experiment::{DeviceChoice, DriveTarget, Target, TargetKind};
use crate::lnvm::{Account, Drive, LnvmError, Lost, Mounted, knobs};
use crate::run::{Probe, Sample, Subject, Watch};
use flashlane_base::{Geometry, Ns};
use flashlane_ftl::block::{BlockDev, BlockError};
use flashlane_ftl::contention::Contention;
use flashlane_ftl::link::LinkedBlock;
use flashlane_ftl::log::format::Uuid;
use flashlane_ftl::log::{MountError, MountOptions, Pblk};
use flashlane_ftl::pftl::{Pftl, PftlConfig};
use flashlane_ftl::stats::{FtlStats, Gauges};
use flashlane_ocssd::link::LinkedDevice;
use flashlane_ocssd::spec::LinkSpec;
use flashlane_ocssd::{
    Device, MediaCounters, OpenImage, Partition, SpecError, Ssd, SsdOptions, StoreKind, TargetInfo,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use serde::Serialize;
use std::rc::Rc;
use std::sync::Arc;

/// Why a stack could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The device.
    #[error(transparent)]
    Device(#[from] SpecError),
    /// PUs that the device does not have.
    #[error("`pus` names PU {end}, the device has 0 to {last}")]
    Pus {
        /// What was asked for.
        end: u32,
        /// What there is.
        last: u32,
    },
    /// Lines of so few PUs hold too little.
    #[error("{pus} active PUs need {lines} more spare lines than there are")]
    Narrow {
        /// What was asked for.
        pus: u32,
        /// What is missing.
        lines: u64,
    },
    /// The host FTL.
    #[error("{0}")]
    Pblk(#[from] flashlane_ftl::log::CreateError),
    /// The device FTL.
    #[error("{0}")]
    Pftl(#[from] flashlane_ftl::pftl::CreateError),
    /// The drive that the target lives on.
    #[error("{0}")]
    Drive(Box<LnvmError>),
    /// The host FTL on it.
    #[error("{}{}", .0, remedy_pblk(.0))]
    MountPblk(#[from] MountError),
    /// The device FTL on it.
    #[error("{}{}", .0, remedy_pftl(.0))]
    MountPftl(#[from] flashlane_ftl::pftl::MountError),
    /// A way to mount that only a host FTL has.
    #[error("`{flag}` is for pblk and qblk targets, this one is of type {kind}")]
    HowPblk {
        /// As it is given.
        flag: &'static str,
        /// Its type.
        kind: flashlane_ocssd::TargetKind,
    },
    /// Nobody could ask this process while it has the drive open.
    #[error("{0}")]
    Control(#[from] ControlError),
    /// Its settings in the drive's table of targets.
    #[error("its settings in the drive's table of targets can't be used: {0}")]
    Settings(String),
    /// It could not be stopped.
    #[error("it could not be stopped: {0}")]
    Stop(BlockError),
    /// A new one that nothing can be written to, though no chunk has failed.
    #[error(
        "a block SSD on so small a device has no spare, and takes no writes: give the device more chunks \
         (`flashlane drive create --set geometry.chunks_per_pu=128`)"
    )]
    NoSpare,
    /// It can't make anything durable.
    #[error("it is read-only: {0}")]
    ReadOnly(&'static str),
}

impl From<LnvmError> for StackError {
    fn from(e: LnvmError) -> StackError {
        StackError::Drive(Box::new(e))
    }
}

impl StackError {
    /// What is on the medium is in the way.
    pub(crate) fn is_mount(&self) -> bool {
        matches!(self, StackError::MountPblk(_) | StackError::MountPftl(_))
    }
}

/// What of a target on a drive is mounted that is not sound, as the options of the commands say it that mount
/// for good: `run --drive` and `lnvm create`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountHow {
    /// `--accept-lost`: what can't be read is lost; older copies of it may come back.
    pub accept_lost: bool,
    /// `--undo-discards`: the map is rebuilt without its checkpoints; discarded sectors may come back.
    pub undo_discards: bool,
}

impl MountHow {
    /// Refuses what a target of this type does not have.
    pub(crate) fn check(self, kind: flashlane_ocssd::TargetKind) -> Result<(), StackError> {
        use flashlane_ocssd::TargetKind::{Pblk, Pftl, Qblk, Raw};
        let wrong = match kind {
            Pblk | Qblk => None,
            Pftl => self.undo_discards.then_some("--undo-discards"),
            Raw if self.accept_lost => Some("--accept-lost"),
            Raw => self.undo_discards.then_some("--undo-discards"),
        };
        wrong.map_or(Ok(()), |flag| Err(StackError::HowPblk { flag, kind }))
    }
}

fn with(flag: &str) -> String {
    format!("; with `{flag}`, `run --drive` and `lnvm create` mount it anyway")
}

/// What would do where a pblk can't be mounted.
fn remedy_pblk(e: &MountError) -> String {
    match e {
        MountError::LostUnits { .. } | MountError::Host { .. } => with("--accept-lost"),
        MountError::CheckpointsLost { .. } => with("--undo-discards"),
        _ => String::new(),
    }
}

/// The same of a device FTL.
fn remedy_pftl(e: &flashlane_ftl::pftl::MountError) -> String {
    use flashlane_ftl::pftl::MountError;
    match e {
        MountError::Lost { .. } | MountError::Host { .. } => with("--accept-lost"),
        _ => String::new(),
    }
}

/// Mounts the pblk on these PUs.
pub(crate) async fn mount_pblk(
    cx: &Cx,
    device: Arc<dyn Device>,
    uuid: Option<Uuid>,
    how: MountHow,
) -> Result<Arc<Pblk>, StackError> {
    let MountHow { accept_lost, undo_discards } = how;
    let options = MountOptions { uuid, accept_lost, undo_discards, ..MountOptions::default() };
    Ok(Pblk::mount(cx, device, options).await?)
}

/// Mounts the device FTL on this device; an empty device is an empty one.
pub(crate) async fn mount_pftl(
    cx: &Cx,
    device: Arc<dyn Device>,
    config: PftlConfig,
    how: MountHow,
) -> Result<Arc<Pftl>, StackError> {
    let accept_lost_sectors = config.accept_lost_sectors || how.accept_lost;
    Ok(Pftl::mount(cx, device, PftlConfig { accept_lost_sectors, ..config }, None).await?)
}

#[derive(Clone)]
enum Layer {
    Pblk(Arc<Pblk>),
    Pftl(Arc<Pftl>),
}

/// A device with a layer on it.
#[derive(Clone)]
pub struct Stack {
    ssd: Arc<Ssd>,
    layer: Layer,
    /// What the host sees: the layer, behind the host's bus where the layer is inside the device.
    block: Arc<dyn BlockDev>,
    raw_sectors: u64,
    /// Sectors that the medium had programmed before, by cause.
    programmed: [u64; 10],
    /// Sectors that it had not been able to give before.
    uncorrectable: u64,
    /// The drive that it was mounted from.
    home: Option<Rc<Home>>,
}

/// Where a mounted stack came from.
struct Home {
    drive: Drive,
    live: Rc<Live>,
    /// Until the image is closed.
    attended: Attending,
    mounted: Mounted,
    /// Commits of the image before: a number that no earlier run had.
    life: u64,
}

/// How a host FTL's lines are divided, in lines at the width that it was created with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lines {
    /// Lines for data.
    pub all: u64,
    /// Of those, kept free in steady state: the reserve (what is in the buffer, a victim), the room
    /// of the limiter, the line opened beforehand.
    pub kept_free: u64,
    /// Spare that garbage collection has: the share of the other lines' room above the logical
    /// capacity. Theory's write amplification is of this spare.
    pub effective_spare_ratio: f64,
}

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
            return Stack::mount(cx, target, on, switch).await;
        }
        let (ssd, part) = medium(target, seed)?;
        let raw_sectors = part.geometry().sectors();
        let (layer, block): (Layer, Arc<dyn BlockDev>) = match &target.kind {
            TargetKind::Pblk(config) => {
                let pblk = Pblk::create(cx, behind_link(part, target), config.clone()).await?;
                (Layer::Pblk(pblk.clone()), pblk)
            }
            TargetKind::Raw => unreachable!("raw targets have no layer; `raw::run` drives them"),
            TargetKind::Pftl(config) => {
                let pftl = Pftl::create(cx, part, config.clone())?;
                (Layer::Pftl(pftl.clone()), behind_bus(pftl, target))
            }
        };
        Ok(Stack {
            ssd,
            layer,
            block,
            raw_sectors,
            programmed: [0; 10],
            uncorrectable: 0,
            home: None,
        })
    }

    /// Mounts a target that was put away ([`Stack::put_away`]) on a device that was taken in since.
    pub(crate) async fn on_shelved(
        cx: &Cx,
        target: &Target,
        ssd: Arc<Ssd>,
    ) -> Result<Stack, StackError> {
        let part = part_of(target, &ssd)?;
        let raw_sectors = part.geometry().sectors();
        let MediaCounters { programmed, uncorrectable, .. } = ssd.counters();
        let how = MountHow::default();
        let (layer, block) = mount_kind(cx, target, part, None, how).await?;
        Ok(Stack { ssd, layer, block, raw_sectors, programmed, uncorrectable, home: None })
    }

    /// Mounts a target of a drive.
    async fn mount(
        cx: &Cx,
        target: &Target,
        on: &DriveTarget,
        switch: Option<Rc<Switch>>,
    ) -> Result<Stack, StackError> {
        let drive = open_drive(target, on)?;
        let live = Live::new(drive.clone(), &on.name, switch);
        let attended = match live.attend(cx) {
            Ok(attended) => attended,
            Err(e) => {
                let _ = drive.close(); // nothing has happened to it
                return Err(e.into());
            }
        };
        let ssd = drive.ssd.clone();
        let MediaCounters { programmed, uncorrectable, .. } = ssd.counters();
        let life = ssd.image_info().map_or(0, |i| i.commits);
        let began = cx.now();
        let found = match drive.target(&on.name) {
            Ok((info, part)) => {
                let raw_sectors = part.geometry().sectors();
                let layer = mount_layer(cx, target, &info, part, on.how).await;
                layer.map(|(layer, block)| (info, layer, block, raw_sectors))
            }
            Err(e) => Err(e.into()),
        };
        let (info, layer, block, raw_sectors) = match found {
            Ok(found) => found,
            Err(e) => {
                attended.take();
                let _ = drive.close(); // why it could not be mounted matters more
                return Err(e);
            }
        };
        let recovery = match &layer {
            Layer::Pblk(l) => {
                for refused in knobs::apply(cx, l, &info.settings) {
                    live.note(format!("a kept knob: {refused}"));
                }
                live.set_pblk(l.clone());
                l.recovery().map(Account::Pblk)
            }
            Layer::Pftl(l) => l.recovery().map(Account::Pftl),
        };
        let time = cx.now() - began;
        let lost = recovery.as_ref().map(|r| Lost::of(r, info.begin, ssd.geometry().chunks_per_pu));
        let (path, lost, notes) = (on.image.clone(), lost.unwrap_or_default(), Vec::new());
        let mounted = Mounted { path, info, recovery, lost, time, notes };
        let home = Some(Rc::new(Home { drive, live, attended, mounted, life }));
        Ok(Stack { ssd, layer, block, raw_sectors, programmed, uncorrectable, home })
    }

    /// Sectors that the medium could not give since, whoever asked for them: the host, the layer,
    /// its mount.
    pub fn uncorrectable(&self) -> u64 {
        self.ssd.counters().uncorrectable - self.uncorrectable
    }

    /// How the target was found on its drive, if it lives on one, and what did not go as its knobs say.
    pub fn mounted(&self) -> Option<Mounted> {
        let home = self.home.as_ref()?;
        Some(Mounted { notes: home.live.notes(), ..home.mounted.clone() })
    }

    /// Closes the image of a stopped target that lives on one.
    ///
    /// # Errors
    /// The host failed: what was not flushed may be lost.
    pub fn close(&self) -> Result<(), StackError> {
        match &self.home {
            Some(home) => {
                // Nobody listens any more when another process may open the image.
                home.attended.take();
                Ok(home.drive.close()?)
            }
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

    /// What a workload sees.
    pub fn block(&self) -> Arc<dyn BlockDev> {
        self.block.clone()
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
        let probe: Probe =
            Rc::new(move |now| Sample::new(&watched.ssd.counters_at(now), watched.gauges()));
        let begin: Rc<dyn Fn()> = match &self.layer {
            Layer::Pblk(l) => {
                let l = l.clone();
                Rc::new(move || {
                    l.forget_peaks();
                    begin();
                })
            }
            Layer::Pftl(_) => begin,
        };
        let contention: Option<Rc<dyn Fn(Ns) -> Contention>> = match &self.layer {
            Layer::Pblk(l) => {
                let l = l.clone();
                Some(Rc::new(move |now| l.contention(now)))
            }
            Layer::Pftl(_) => None,
        };
        Subject {
            device: self.block(),
            stats: Rc::new(move || me.stats()),
            begin,
            contention,
            watch: Watch { probe: Some(probe), intervals },
            used: self.home.as_ref().map(|h| h.life),
        }
    }

    /// Where the layer stands.
    fn gauges(&self) -> Gauges {
        match &self.layer {
            Layer::Pblk(l) => l.gauges(),
            Layer::Pftl(l) => l.gauges(),
        }
    }

    /// How pblk's lines are divided; `None` where the layer says nothing of its own.
    pub fn lines(&self) -> Option<Lines> {
        let Layer::Pblk(pblk) = &self.layer else {
            return None;
        };
        let l = pblk.layout();
        // Garbage collection keeps `start_lines` free; one more is the spare, opened beforehand.
        let kept = l.start_lines + 1;
        let room = l.lines.saturating_sub(kept) * l.line_data;
        let spare = 1.0 - l.capacity as f64 / room.max(1) as f64;
        Some(Lines { all: l.lines, kept_free: kept, effective_spare_ratio: spare.max(0.0) })
    }

    /// Counters of the layer.
    pub fn stats(&self) -> FtlStats {
        match &self.layer {
            Layer::Pblk(l) => l.stats(),
            Layer::Pftl(l) => l.stats(),
        }
    }

    /// New data goes to so many PUs at a time from now on (pblk); 0 is all.
    pub fn set_active_pus(&self, cx: &Cx, pus: u32) -> Result<(), StackError> {
        match &self.layer {
            Layer::Pblk(pblk) => {
                pblk.set_active_pus(cx, pus).map_err(|lines| StackError::Narrow { pus, lines })
            }
            Layer::Pftl(_) => Ok(()),
        }
    }

    /// The medium below.
    pub fn ssd(&self) -> &Arc<Ssd> {
        &self.ssd
    }

    /// Has everything that was acknowledged programmed, after a flush. A device FTL takes no writes
    /// afterwards: its flush ends with the data in its power-safe buffer.
    pub async fn drain(&self, cx: &Cx) {
        if let Layer::Pftl(l) = &self.layer {
            l.drain(cx).await;
        }
    }

    /// Ends the layer's tasks, then checks that counters agree: the host's law, the medium's law,
    /// and, on devices that are not too large, the maps against a walk.
    pub async fn stop(&self, cx: &Cx) -> Stopped {
        let read_only = match (&self.layer, &self.home) {
            (Layer::Pblk(l), Some(home)) => {
                home.live.take_pblk();
                why_read_only(l.stop(cx).await)
            }
            (Layer::Pblk(l), None) => why_read_only(l.quiesce(cx).await),
            (Layer::Pftl(l), home) => {
                match home {
                    // A snapshot is for who comes back.
                    Some(_) => l.stop(cx).await,
                    None => l.quiesce(cx).await,
                }
                l.read_only().map(str::to_string)
            }
        };
        Stopped { read_only, laws: self.check() }
    }

    /// Stops a target of a fresh device cleanly, for a mount that comes later, and checks as
    /// [`Stack::stop`] does.
    pub(crate) async fn put_away(&self, cx: &Cx) -> Result<(), String> {
        let stopped = match &self.layer {
            Layer::Pblk(l) => l.stop(cx).await,
            Layer::Pftl(l) => {
                l.stop(cx).await;
                l.read_only().map_or(Ok(()), |why| Err(BlockError::ReadOnly(why)))
            }
        };
        stopped.map_err(|e| StackError::Stop(e).to_string())?;
        self.check()
    }

    /// Counters agree with each other and with the medium's, the maps with a walk.
    fn check(&self) -> Result<(), String> {
        let walk = match &self.layer {
            _ if self.raw_sectors > WALK_SECTORS_MAX => Ok(()),
            Layer::Pblk(l) => l.check_consistency(),
            Layer::Pftl(l) => l.walk(),
        };
        let stats = self.stats();
        let mut medium: MediaCounters = self.ssd.counters();
        // The layer has counted since it was mounted, the medium since it was new.
        for (now, before) in medium.programmed.iter_mut().zip(self.programmed) {
            *now -= before;
        }
        stats.check_host_law().and_then(|()| stats.check_media_law(&medium.programmed)).and(walk)
    }
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
        return medium(target, seed).map(|(ssd, part)| (ssd, part, None));
    };
    let drive = open_drive(target, on)?;
    let open = || {
        let (info, part) = drive.target(&on.name)?;
        on.how.check(info.kind)?;
        let part: Arc<dyn Device> = part;
        Ok::<_, StackError>((
            part,
            Live::new(drive.clone(), &on.name, Some(switch.clone())).attend(cx)?,
        ))
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
    let o = &target.device.options;
    let how = OpenImage {
        read_only: false,
        queue: o.queue,
        faults: o.faults.clone(),
        quiet: false,
        timing: o.timing,
        dulbe: o.dulbe,
    };
    Ok(Drive::open(&on.image, &how)?)
}

async fn mount_layer(
    cx: &Cx,
    target: &Target,
    info: &TargetInfo,
    part: Arc<Partition>,
    how: MountHow,
) -> Result<(Layer, Arc<dyn BlockDev>), StackError> {
    how.check(info.kind)?;
    mount_kind(cx, target, part, info.uuid, how).await
}

async fn mount_kind(
    cx: &Cx,
    target: &Target,
    part: Arc<dyn Device>,
    uuid: Option<Uuid>,
    how: MountHow,
) -> Result<(Layer, Arc<dyn BlockDev>), StackError> {
    match &target.kind {
        TargetKind::Pblk(_) => {
            let pblk = mount_pblk(cx, behind_link(part, target), uuid, how).await?;
            Ok((Layer::Pblk(pblk.clone()), pblk))
        }
        TargetKind::Pftl(config) => {
            let pftl = mount_pftl(cx, part, config.clone(), how).await?;
            Ok((Layer::Pftl(pftl.clone()), behind_bus(pftl, target)))
        }
        TargetKind::Raw => unreachable!("raw targets have no layer; `raw::run` drives them"),
    }
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
    Ok(Target {
        pus: Some((info.begin, info.end)),
        drive: Some(on.clone()),
        ..Target::new(&on.name, kind_of(&info)?, device)
    })
}

/// What an entry of the table stands for.
fn kind_of(info: &TargetInfo) -> Result<TargetKind, StackError> {
    use flashlane_ocssd::TargetKind as Kind;
    let wrong = |e: serde_json::Error| StackError::Settings(e.to_string());
    let settings = info.settings.clone();
    Ok(match info.kind {
        Kind::Raw => TargetKind::Raw,
        Kind::Pblk | Kind::Qblk => {
            TargetKind::Pblk(serde_json::from_value(settings).map_err(wrong)?)
        }
        Kind::Pftl => TargetKind::Pftl(serde_json::from_value(settings).map_err(wrong)?),
    })
}

/// A fresh device, and the part of it that a target has.
pub(crate) fn medium(
    target: &Target,
    seed: u64,
) -> Result<(Arc<Ssd>, Arc<dyn Device>), StackError> {
    let options = SsdOptions { seed, ..target.device.options.clone() };
    let ssd = Ssd::new(&target.device.spec, options)?;
    let part = part_of(target, &ssd)?;
    Ok((ssd, part))
}

/// The part of a device that a target has.
fn part_of(target: &Target, ssd: &Arc<Ssd>) -> Result<Arc<dyn Device>, StackError> {
    let geo: Geometry = *ssd.geometry();
    match target.pus {
        None => Ok(ssd.clone()),
        Some((_, end)) if end >= geo.pus() => Err(StackError::Pus { end, last: geo.pus() - 1 }),
        Some((begin, end)) => Ok(Arc::new(Partition::new(ssd.clone(), begin, end))),
    }
}

/// The host's bus, unless the device is one that takes no time.
fn link_of(target: &Target) -> Option<&LinkSpec> {
    target.device.spec.link.as_ref().filter(|_| target.device.options.timing)
}

/// A layer inside the device as the host reaches it.
fn behind_bus(pftl: Arc<Pftl>, target: &Target) -> Arc<dyn BlockDev> {
    match link_of(target) {
        Some(link) => Arc::new(LinkedBlock::new(pftl, link)),
        None => pftl,
    }
}

/// A device as the host reaches it.
pub(crate) fn behind_link(device: Arc<dyn Device>, target: &Target) -> Arc<dyn Device> {
    match link_of(target) {
        Some(link) => Arc::new(LinkedDevice::new(device, link)),
        None => device,
    }
}
