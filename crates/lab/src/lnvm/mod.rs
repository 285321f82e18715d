//! Targets on drive images: the `lnvm` verbs of nvme-cli, with an image for the device.
//!
//! Owns: opening an image with its targets ([`Drive`]), what create, remove, factory and the bad-block
//! verbs do and in which order. Promises: a target's entry is durable before anything of it is written,
//! and gone before anything else may take its PUs; what is refused has changed nothing; looking writes
//! nothing. Never: formats ([`show`] does), or knows the bytes of a table or of a target.
//!
//! Without `factory` a create finds the pblk that is on its PUs and recovers it, as the kernel did;
//! where there is none it makes one.

pub(crate) mod bad_blocks;
mod error;
pub(crate) mod knobs;
mod shadow;
pub mod show;

pub use bad_blocks::{Block, bad_blocks, set_bad_block};
pub use error::LnvmError;
pub use knobs::knobs;

pub use flashlane_ftl::log::{LimiterKind, Scrub, ScrubConfig, WearConfig, WearLeveling};
pub use flashlane_ocssd::TargetKind;

use crate::control::{Answer, Ask, reach};
use crate::experiment::{DriveTarget, Experiment, Target};
use crate::run::Fill;
pub use crate::stack::MountHow;
use crate::stack::{StackError, mount_pblk, mount_pftl, target_of_drive};
use crate::suggest;
use bad_blocks::set_mark;
pub use flashlane_base::Ns;
use flashlane_base::{Geometry, Location};
use flashlane_ftl::block::BlockDev;
use flashlane_ftl::log::{LogConfig, MountError, Pblk, Recovery};
use flashlane_ftl::pftl::{Pftl, PftlConfig};
use flashlane_media::image::ImageFault;
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Data, Flags, Op, Request};
use flashlane_ocssd::ssd::{GROWN_BAD, HOST_RESERVED};
use flashlane_ocssd::{
    Core, CoreError, Device, ImageError, OpenImage, Partition, Ssd, TargetInfo, TargetSpec,
    TargetState,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use shadow::Shadow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A drive with its targets, open.
#[derive(Clone)]
pub struct Drive {
    /// The image.
    pub path: PathBuf,
    /// The device in it.
    pub ssd: Arc<Ssd>,
    /// Its targets.
    pub core: Arc<Core>,
}

impl Drive {
    /// Opens an image.
    ///
    /// # Errors
    /// It is no image, in use, to be changed and of a newer minor version, or its table of targets can't be
    /// used.
    pub fn open(path: &Path, how: &OpenImage) -> Result<Drive, LnvmError> {
        let ssd = match how.read_only {
            true => Ssd::open_image(path, how)?,
            false => open_to_change(path, how)?,
        };
        let core = Core::on_image(ssd.clone()).map_err(|e| core_error(path, e))?;
        Ok(Drive { path: path.into(), ssd, core: Arc::new(core) })
    }

    /// Opens an image for reading, however many others read it.
    ///
    /// # Errors
    /// As [`Drive::open`].
    pub fn look(path: &Path) -> Result<Drive, LnvmError> {
        Drive::open(path, &OpenImage { read_only: true, ..OpenImage::default() })
    }

    /// Opens an image, changes something, and closes it.
    ///
    /// # Errors
    /// As [`Drive::open`], those of `change`, or the host failed.
    pub(crate) fn change<T>(
        path: &Path,
        change: impl FnOnce(&Drive) -> Result<T, LnvmError>,
    ) -> Result<T, LnvmError> {
        let drive = Drive::open(path, &OpenImage::default())?;
        let done = change(&drive);
        let closed = drive.close();
        let done = done?; // why it could not be done matters more
        closed.map(|()| done)
    }

    /// An error with the image's name in front.
    pub(crate) fn at(&self, e: ImageError) -> LnvmError {
        LnvmError::Image(ImageError::At { path: self.path.clone(), problem: Box::new(e) })
    }

    /// Opens an image so that it can be written to, and what is written goes nowhere. Hold the drive
    /// that was opened for reading as long.
    fn shadow(&self) -> Result<Drive, LnvmError> {
        let at = |e: ImageError| self.at(e);
        let file = Shadow::of(&self.path).map_err(|e| at(ImageFault::io("open")(e).into()))?;
        // Nothing that happens here has happened, so no fault is met either.
        let how = OpenImage { quiet: true, ..OpenImage::default() };
        let ssd = Ssd::open_on(Arc::new(file), &how).map_err(at)?;
        let core = Core::on_image(ssd.clone()).map_err(|e| core_error(&self.path, e))?;
        Ok(Drive { path: self.path.clone(), ssd, core: Arc::new(core) })
    }

    /// A target that can be used, and its part of the device.
    ///
    /// # Errors
    /// There is none of that name, or it is half created.
    pub fn target(&self, name: &str) -> Result<(TargetInfo, Arc<Partition>), LnvmError> {
        let all = self.core.list();
        let Some(info) = all.iter().find(|t| t.name == name) else {
            return Err(no_target(&self.path, name, &all));
        };
        if info.state == TargetState::BeingCreated {
            return Err(LnvmError::HalfCreated { path: self.path.clone(), name: name.into() });
        }
        let part = self.core.open(name).map_err(|e| core_error(&self.path, e))?;
        Ok((info.clone(), part))
    }

    fn geometry(&self) -> Geometry {
        *self.ssd.geometry()
    }

    /// Commits, and gives the file to others.
    ///
    /// # Errors
    /// The host failed.
    pub fn close(&self) -> Result<(), LnvmError> {
        self.ssd.close().map_err(|e| self.at(e))
    }

    /// A seed that no earlier moment of any drive has had: names of targets are drawn from it.
    fn fresh_seed(&self) -> u64 {
        let info = self.ssd.image_info();
        let (uuid, commits) = info.map_or(([0; 16], 0), |i| (i.uuid, i.commits));
        uuid.into_iter().chain(commits.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        })
    }
}

/// Opens an image to change it: one that can only be read is refused.
pub(crate) fn open_to_change(path: &Path, how: &OpenImage) -> Result<Arc<Ssd>, ImageError> {
    let ssd = Ssd::open_image(path, how)?;
    match ssd.image_info().filter(|info| info.read_only) {
        None => Ok(ssd),
        Some(info) => {
            let problem = Box::new(ImageError::NewerMinor { version: info.version });
            Err(ImageError::At { path: path.into(), problem })
        }
    }
}

fn core_error(path: &Path, source: CoreError) -> LnvmError {
    LnvmError::Core { path: path.into(), source: Box::new(source) }
}

fn no_target(path: &Path, name: &str, all: &[TargetInfo]) -> LnvmError {
    let names: Vec<&str> = all.iter().map(|t| &*t.name).collect();
    let known = match names.is_empty() {
        true => "the drive has none; `flashlane lnvm create` makes one".to_string(),
        false => format!("there are: {}", names.join(", ")),
    };
    let hint = suggest::hint(name, names);
    LnvmError::NoTarget { path: path.into(), name: name.into(), hint, known }
}

/// The target that a run on a drive is on, of those that its command line names, and its type: the
/// drive's only one where it names none.
///
/// # Errors
/// There is no such drive or target, or none or several are meant.
pub fn choose(
    path: &Path,
    names: &[String],
    how: MountHow,
) -> Result<(DriveTarget, TargetKind), LnvmError> {
    let drive = Drive::look(path)?;
    let all = drive.core.list();
    let name = match (names, &all[..]) {
        ([name], _) => name.clone(),
        ([], [one]) => one.name.clone(),
        (_, []) => return Err(no_target(path, names.first().map_or("", |n| n), &all)),
        _ => {
            let known: Vec<&str> = all.iter().map(|t| &*t.name).collect();
            let known = format!("there are: {}", known.join(", "));
            return Err(LnvmError::WhichTarget { path: path.into(), known });
        }
    };
    let (info, _) = drive.target(&name)?;
    Ok((DriveTarget { image: path.into(), name, how }, info.kind))
}

/// Has an experiment run on a target of a drive. What is there is what it finds: nothing is filled
/// unless the experiment says how much.
///
/// # Errors
/// There is no such drive or target, or its settings make no sense.
pub fn put_on_drive(experiment: &mut Experiment, on: &DriveTarget) -> Result<(), StackError> {
    let Some(like) = experiment.targets.first() else { return Ok(()) };
    let (host, only) = (like.host.clone(), like.only.clone());
    let target = target_of_drive(on, &like.device.options)?;
    experiment.targets = vec![Target { host, only, ..target }];
    if experiment.run.fill == Fill::Auto {
        experiment.run.fill = Fill::None;
    }
    Ok(())
}

/// A target to be created.
#[derive(Clone, Debug)]
pub struct Create {
    /// Name.
    pub name: String,
    /// `pblk`, `raw` or `pftl`.
    pub kind: TargetKind,
    /// First PU; the device's first without it.
    pub begin: Option<u32>,
    /// Last PU; the device's last without it.
    pub end: Option<u32>,
    /// Over-provisioning in percent; the type's default without it.
    pub over_provisioning: Option<u32>,
    /// Ignore what is on the PUs.
    pub factory: bool,
    /// What of a target that is there is taken over though it is not sound.
    pub how: MountHow,
    /// PUs that take new data at a time (pblk and qblk); 0 is all.
    pub active_pus: Option<u32>,
    /// Rings of a new qblk: for as many cores; one without it.
    pub cores: Option<u32>,
    /// How pblk's ring is shared between users and GC.
    pub limiter: Option<LimiterKind>,
    /// How pblk spreads wear.
    pub wear_leveling: Option<WearLeveling>,
    /// What static leveling calls cold.
    pub wear_spread: Option<u32>,
    /// Whether pblk moves data before it decays.
    pub scrub: Option<Scrub>,
    /// Time in which a patrol looks at every chunk.
    pub scrub_interval: Option<Ns>,
}

/// What a create came to.
#[derive(Clone, Debug)]
pub struct Created {
    /// The target.
    pub info: TargetInfo,
    /// Logical sectors of 4 KiB; a raw target has none.
    pub capacity: Option<u64>,
    /// The target was there, and this is how it was found.
    pub recovery: Option<Recovery>,
    /// What of it was taken over as lost.
    pub lost: Lost,
}

/// What lies on a target's PUs now.
#[derive(Default)]
struct Made {
    uuid: Option<[u8; 16]>,
    capacity: Option<u64>,
    recovery: Option<Recovery>,
    lost: Lost,
    settings: serde_json::Value,
    /// A setting that was asked for and that what was found does not have.
    differs: Option<(&'static str, String)>,
    /// What was found is of another type.
    other_type: Option<&'static str>,
}

fn word<T: PartialEq>(names: &[(&'static str, T)], of: T) -> String {
    names.iter().find(|(_, value)| *value == of).map_or("", |(name, _)| name).into()
}

impl Create {
    /// A host FTL that nobody says anything of.
    fn new_host_ftl(&self) -> LogConfig {
        match self.kind {
            TargetKind::Qblk => LogConfig { cores: self.cores.unwrap_or(1), ..LogConfig::qblk() },
            _ => LogConfig::default(),
        }
    }

    /// A new host FTL, or one that is like `found` but for what was asked for.
    fn host_ftl(&self, found: LogConfig) -> LogConfig {
        let (wear, scrub) = (found.wear, found.scrub);
        LogConfig {
            over_provisioning_percent: self
                .over_provisioning
                .unwrap_or(found.over_provisioning_percent),
            active_pus: self.active_pus.unwrap_or(found.active_pus),
            limiter: self.limiter.unwrap_or(found.limiter),
            wear: WearConfig {
                leveling: self.wear_leveling.unwrap_or(wear.leveling),
                spread: self.wear_spread.unwrap_or(wear.spread),
            },
            scrub: ScrubConfig {
                mode: self.scrub.unwrap_or(scrub.mode),
                interval: self.scrub_interval.unwrap_or(scrub.interval),
                ..scrub
            },
            ..found
        }
    }

    /// Of a pblk that is there: the first setting that was asked for and that it does not have, as its option
    /// and what it has.
    fn differs(&self, found: &LogConfig, pus: u32) -> Option<(&'static str, String)> {
        let asked = self.host_ftl(found.clone());
        let width = |active: u32| if active == 0 { pus } else { active };
        if width(asked.active_pus) != width(found.active_pus) {
            return Some(("--active-pus", width(found.active_pus).to_string()));
        }
        if asked.limiter != found.limiter {
            return Some(("--limiter", word(&LimiterKind::ALL, found.limiter)));
        }
        if asked.wear.leveling != found.wear.leveling {
            return Some(("--wear-leveling", word(&WearLeveling::NAMES, found.wear.leveling)));
        }
        if asked.wear.spread != found.wear.spread {
            return Some(("--wear-spread", found.wear.spread.to_string()));
        }
        if asked.scrub.mode != found.scrub.mode {
            return Some(("--scrub", word(&Scrub::NAMES, found.scrub.mode)));
        }
        // As it would be typed.
        let interval = found.scrub.interval.to_string().replace(' ', "");
        (asked.scrub.interval != found.scrub.interval).then_some(("--scrub-interval", interval))
    }

    /// An option that was given and that targets of this type do not have.
    fn misplaced(&self) -> Option<&'static str> {
        let given = [
            ("--active-pus", self.active_pus.is_some()),
            ("--limiter", self.limiter.is_some()),
            ("--wear-leveling", self.wear_leveling.is_some()),
            ("--wear-spread", self.wear_spread.is_some()),
            ("--scrub", self.scrub.is_some()),
            ("--scrub-interval", self.scrub_interval.is_some()),
        ];
        let wrong = given.into_iter().filter(|_| !self.kind.is_host_ftl());
        wrong.filter(|(_, given)| *given).map(|(flag, _)| flag).next()
    }

    /// Capacitors end with the process: on an image a flush programs.
    fn pftl(&self) -> PftlConfig {
        let default = PftlConfig::default();
        let percent = self.over_provisioning.unwrap_or(default.over_provisioning_percent);
        PftlConfig { over_provisioning_percent: percent, capacitors: false, ..default }
    }
}

/// Creates a target on a drive.
///
/// # Errors
/// Name, type or PUs can't be had, the target does not fit, or what is on the PUs can't be taken over.
pub fn create(path: &Path, ask: &Create) -> Result<Created, LnvmError> {
    if let Some(flag) = ask.misplaced() {
        return Err(LnvmError::ForPblk { flag, kind: ask.kind });
    }
    Drive::change(path, |drive| create_on(drive, ask))
}

fn create_on(drive: &Drive, ask: &Create) -> Result<Created, LnvmError> {
    let settings = match ask.kind {
        TargetKind::Pblk | TargetKind::Qblk => {
            serde_json::to_value(ask.host_ftl(ask.new_host_ftl()))
        }
        TargetKind::Pftl => serde_json::to_value(ask.pftl()),
        TargetKind::Raw => Ok(serde_json::Value::Null),
    };
    let spec = TargetSpec {
        device: None,
        name: ask.name.clone(),
        kind: ask.kind,
        begin: ask.begin,
        end: ask.end,
        over_provisioning: ask.over_provisioning,
        factory: ask.factory,
        settings: settings.unwrap_or_default(),
    };
    let in_core = |e| core_error(&drive.path, e);
    let seed = drive.fresh_seed();
    let part = drive.core.begin(&spec).map_err(|e| match e {
        CoreError::Taken { name, .. } => LnvmError::Taken { path: drive.path.clone(), name },
        other => in_core(other),
    })?;
    let (begin, end) = part.range();
    let vm = Virtual::new(1, seed, CostTable::zero());
    let (cx, owned) = (vm.cx(), ask.clone());
    let made = vm.run(async move { bring_up(&cx, part, &owned).await });
    let path = drive.path.clone();
    let failed = match made {
        Ok(Ok(made)) => {
            let spare = made.settings.get("over_provisioning_percent");
            let found = spare.and_then(serde_json::Value::as_u64).filter(|p| *p != 0);
            let asked = ask.over_provisioning.map(u64::from);
            if let Some(found) = made.other_type {
                LnvmError::OtherType { path, begin, end, found }
            } else if made.recovery.is_some() && asked.is_some() && asked != found {
                let found = found.map_or("its default".into(), |p| format!("{p} %"));
                LnvmError::OtherSpare { path, found }
            } else if let Some((flag, found)) = made.differs {
                LnvmError::OtherSetting { path, flag, found }
            } else {
                drive.core.complete(&ask.name, made.uuid, made.settings).map_err(in_core)?;
                let all = drive.core.list();
                let Some(info) = all.into_iter().find(|t| t.name == ask.name) else {
                    return Err(no_target(&drive.path, &ask.name, &[]));
                };
                let Made { capacity, recovery, lost, .. } = made;
                return Ok(Created { info, capacity, recovery, lost });
            }
        }
        Ok(Err(source)) if source.is_mount() && !ask.factory => {
            let host = drive.ssd.host_trouble();
            LnvmError::TakeOver { path, begin, end, source: Box::new(source), host }
        }
        Ok(Err(source)) => {
            LnvmError::Target { path, name: ask.name.clone(), source: Box::new(source) }
        }
        Err(stalled) => stalled.into(),
    };
    drive.core.abandon(&ask.name).map_err(in_core)?;
    Err(failed)
}

/// Finds or makes what the target is, and stops it.
async fn bring_up(cx: &Cx, part: Arc<Partition>, ask: &Create) -> Result<Made, StackError> {
    let (begin, _) = part.range();
    let device: Arc<dyn Device> = part;
    ask.how.check(ask.kind)?;
    let (pus, chunks) = (device.geometry().pus(), device.geometry().chunks_per_pu);
    let lost = |account: Account| Lost::of(&account, begin, chunks);
    match ask.kind {
        TargetKind::Raw => {
            if ask.factory {
                erase(cx, &device, |_, _, _| true).await;
            }
            let settings = serde_json::Value::Null;
            Ok(Made { settings, ..Made::default() })
        }
        TargetKind::Pblk | TargetKind::Qblk => {
            let found = match ask.factory {
                true => None,
                false => match mount_pblk(cx, device.clone(), None, ask.how).await {
                    Ok(found) => Some(found),
                    Err(StackError::MountPblk(MountError::NoTarget)) => None,
                    Err(e) => return Err(e),
                },
            };
            let pblk = match found {
                Some(pblk) => pblk,
                None => Pblk::create(cx, device, ask.host_ftl(ask.new_host_ftl())).await?,
            };
            let made = Made {
                uuid: Some(pblk.uuid()),
                capacity: Some(pblk.info().capacity),
                recovery: pblk.recovery(),
                lost: pblk.recovery().map(|r| lost(Account::Pblk(r))).unwrap_or_default(),
                settings: serde_json::to_value(pblk.settings()).unwrap_or_default(),
                differs: match pblk.recovery() {
                    Some(_) => ask.differs(&pblk.settings(), pus),
                    None => None,
                },
                other_type: Some(pblk.settings().layer()).filter(|l| *l != ask.kind.to_string()),
            };
            pblk.stop(cx).await.map_err(StackError::Stop)?;
            Ok(made)
        }
        TargetKind::Pftl => {
            let config = ask.pftl();
            let pftl = if ask.factory {
                erase(cx, &device, |_, _, _| true).await;
                Pftl::create(cx, device.clone(), config.clone())?
            } else {
                mount_pftl(cx, device.clone(), config.clone(), ask.how).await?
            };
            let capacity = Some(pftl.info().capacity);
            let lost = pftl.recovery().map(|r| lost(Account::Pftl(r))).unwrap_or_default();
            pftl.stop(cx).await;
            if let Some(why) = pftl.read_only() {
                let all = |pu| device.chunk_report(pu, 0, u32::MAX);
                let failed = (0..pus).flat_map(all).any(|c| c.state == ChunkState::Offline);
                return Err(if failed { StackError::ReadOnly(why) } else { StackError::NoSpare });
            }
            let settings = serde_json::to_value(config).unwrap_or_default();
            Ok(Made { capacity, lost, settings, ..Made::default() })
        }
    }
}

/// Takes a target off a drive; what is on its PUs stays.
///
/// # Errors
/// There is none of that name.
pub fn remove(path: &Path, name: &str) -> Result<Answer, LnvmError> {
    let ask = || Ok(Ask::Remove { target: name.into() });
    reach(path, ask, || Drive::change(path, |drive| remove_of(drive, name)))
}

/// [`remove`] on a drive that is open.
pub(crate) fn remove_of(drive: &Drive, name: &str) -> Result<Answer, LnvmError> {
    let removed = drive.core.remove(name).map_err(|e| match e {
        CoreError::NoTarget(_) => no_target(&drive.path, name, &drive.core.list()),
        other => core_error(&drive.path, other),
    })?;
    Ok(show::removed(&removed))
}

/// What `factory` is to do, as nvme-cli's flags say it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Factory {
    /// Erase only blocks with the host's mark; all without it.
    pub only_marked: bool,
    /// Take the host's marks off.
    pub clear_host: bool,
    /// Take the marks of blocks that went bad in use off.
    pub clear_grown: bool,
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Erased {
    /// Chunks erased.
    pub chunks: u64,
    /// Chunks whose erase failed.
    pub failed: u64,
    /// Chunks that had marks taken off.
    pub unmarked: u64,
}

/// Erases a drive that has no targets, and takes marks off.
///
/// # Errors
/// There are targets.
pub fn factory(path: &Path, ask: Factory) -> Result<Erased, LnvmError> {
    Drive::change(path, |drive| factory_on(drive, ask))
}

fn factory_on(drive: &Drive, ask: Factory) -> Result<Erased, LnvmError> {
    if let Some(t) = drive.core.list().first() {
        let (path, owner) = (drive.path.clone(), t.name.clone());
        return Err(LnvmError::Owned { path, pu: t.begin, owner });
    }
    let geo = drive.geometry();
    let marks_of = |pu: u32| drive.ssd.bad_blocks(pu).map_or_else(Vec::new, |t| t.blocks);
    let mut marked = Vec::new();
    let mut done = Erased::default();
    for pu in 0..geo.pus() {
        for (chunk, planes) in (0..).zip(marks_of(pu).chunks(geo.planes as usize)) {
            if planes.iter().any(|m| m & HOST_RESERVED != 0) {
                marked.push((pu, chunk));
            }
            let mut off = 0;
            off |= if ask.clear_host { HOST_RESERVED } else { 0 };
            off |= if ask.clear_grown { GROWN_BAD } else { 0 };
            if planes.iter().any(|m| m & off != 0) {
                done.unmarked += 1;
                for (plane, mark) in (0..).zip(planes) {
                    set_mark(drive, (pu, plane, chunk), mark & !off);
                }
            }
        }
    }
    let device: Arc<dyn Device> = drive.ssd.clone();
    let vm = Virtual::new(1, drive.fresh_seed(), CostTable::zero());
    let cx = vm.cx();
    let (chunks, failed) = vm.run(async move {
        let wanted = |pu, chunk, _: &ChunkInfo| !ask.only_marked || marked.contains(&(pu, chunk));
        erase(&cx, &device, wanted).await
    })?;
    Ok(Erased { chunks, failed, ..done })
}

/// Erases what is neither free nor bad; how many chunks, and how many would not.
async fn erase(
    cx: &Cx,
    device: &Arc<dyn Device>,
    wanted: impl Fn(u32, u32, &ChunkInfo) -> bool,
) -> (u64, u64) {
    let geo = *device.geometry();
    let (mut good, mut failed) = (0, 0);
    for pu in 0..geo.pus() {
        for (chunk, info) in (0..).zip(device.chunk_report(pu, 0, u32::MAX)) {
            let used = matches!(info.state, ChunkState::Open | ChunkState::Closed);
            if !used || !wanted(pu, chunk, &info) {
                continue;
            }
            let request = Request {
                op: Op::Reset,
                flags: Flags::default(),
                addrs: &[device.format().pack(Location { pu, chunk, sector: 0 })],
                data: Data::None,
                whole_sectors: false,
            };
            match device.io(cx, request).await.failed {
                0 => good += 1,
                _ => failed += 1,
            }
        }
    }
    (good, failed)
}

/// What a layer says of its mount.
#[derive(Clone, Debug)]
pub enum Account {
    /// pblk.
    Pblk(Recovery),
    /// The block SSD's FTL.
    Pftl(flashlane_ftl::pftl::Recovery),
}

/// What a mount could not read, and went on without.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Sectors in a row, by place on the drive: the first, and how many.
    pub runs: Vec<(Location, u32)>,
    /// The first sector that the host could not give.
    pub host: Option<Location>,
}

impl Lost {
    /// Of a target on PUs from `begin` on.
    pub(crate) fn of(account: &Account, begin: u32, chunks_per_pu: u32) -> Lost {
        let on_drive = |(chunk, sector): (u32, u32)| Location {
            pu: begin + chunk / chunks_per_pu,
            chunk: chunk % chunks_per_pu,
            sector,
        };
        let (mut all, host): (Vec<_>, _) = match account {
            Account::Pblk(r) => {
                let units = r.lost_units.iter().map(|unit| (on_drive(*unit), r.unit));
                (units.collect(), r.host_failed.map(on_drive))
            }
            // The whole drive is its own.
            Account::Pftl(r) => (r.lost.iter().map(|at| (*at, 1)).collect(), r.host_failed),
        };
        all.sort();
        let mut runs: Vec<(Location, u32)> = Vec::new();
        for (at, n) in all {
            match runs.last_mut() {
                Some((first, len)) if Location { sector: first.sector + *len, ..*first } == at => {
                    *len += n;
                }
                _ => runs.push((at, n)),
            }
        }
        Lost { runs, host }
    }

    /// Sectors in all.
    pub fn sectors(&self) -> u64 {
        self.runs.iter().map(|(_, n)| *n as u64).sum()
    }
}

/// What was found when a target was mounted for a run.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The image.
    pub path: PathBuf,
    /// The target.
    pub info: TargetInfo,
    /// The layer's own account.
    pub recovery: Option<Account>,
    /// What of it could not be read.
    pub lost: Lost,
    /// Device time that it took.
    pub time: Ns,
    /// What did not go as its knobs say.
    pub notes: Vec<String>,
}

/// `lnvm init`: nvme-cli has a device found and given a media manager; on an image both are there, so
/// all that is left is to see that it is sound.
///
/// # Errors
/// No such drive, or another media manager than the one there is.
pub fn init(path: &Path, media_manager: &str) -> Result<Answer, LnvmError> {
    if media_manager != "gennvm" {
        return Err(LnvmError::MediaManager(media_manager.into()));
    }
    reach(path, || Ok(Ask::List), || Ok::<_, LnvmError>(show::list_of(&Drive::look(path)?)))?;
    let text = format!("Successfully initialized device: {} ({media_manager})\n", path.display());
    Ok(Answer { text, ..Answer::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{create, device, faults};
    use flashlane_media::image::HEADER_BYTES;

    /// An image that a newer program wrote is looked at, and what would change it says so.
    #[test]
    fn an_image_of_a_newer_minor_version_is_only_looked_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.img");
        let sets = ["geometry.chunks_per_pu=8".to_string()];
        create(&path, &device("tiny", &sets).unwrap(), 1, false).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        for copy in bytes[..2 * HEADER_BYTES as usize].chunks_mut(HEADER_BYTES as usize) {
            copy[18] = 9;
            let end = u32::from_le_bytes(copy[12..16].try_into().unwrap()) as usize;
            let crc = crc32c::crc32c(&copy[12..end]).to_le_bytes();
            copy[8..12].copy_from_slice(&crc);
        }
        std::fs::write(&path, &bytes).unwrap();
        show::list(&[&path]).unwrap();
        faults::list_faults(&path).unwrap();
        let plan = "[[fault]]\nkind = \"bit_flip\"";
        let said = [
            remove(&path, "db").unwrap_err().to_string(),
            factory(&path, Factory::default()).unwrap_err().to_string(),
            faults::inject(&path, plan).unwrap_err().to_string(),
            crate::drive::upgrade(&path).unwrap_err().to_string(),
        ];
        for said in said {
            assert!(said.contains("a.img") && said.contains("format 2.9"), "{said}");
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "untouched");
    }
}
