//! Targets on drive images: the `lnvm` verbs of nvme-cli, with an image for the device.
//!
//! Owns: opening an image with its targets ([`Drive`]), what create, remove, factory and the bad-block
//! verbs do and in which order. Promises: a target's entry is durable before anything of it is written,
//! and gone before anything else may take its PUs; what is refused has changed nothing; looking writes
//! nothing. Never: formats ([`show`] does), or knows the bytes of a table or of a target.
//!
//! Without `factory` a create finds the pblk that is on its PUs and recovers it, as the kernel did;
//! where there is none it makes one.

mod shadow;
pub mod show;

pub use flashlane_ftl::log::{LimiterKind, Scrub, ScrubConfig, WearConfig, WearLeveling};
pub use flashlane_ocssd::TargetKind;

use crate::experiment::{DriveTarget, Experiment};
use crate::run::Fill;
use crate::stack::{StackError, mount_pblk, mount_pftl, target_of_drive};
use crate::suggest;
pub use flashlane_base::Ns;
use flashlane_base::{Geometry, Location, PpaStyle};
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
use flashlane_rt::{CostTable, Cx, Stalled, Virtual};
use shadow::Shadow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why something about targets could not be done. Nothing has changed, unless it says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LnvmError {
    /// The image.
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Its table of targets, or what was asked of it.
    #[error("{}: {source}", path.display())]
    Core {
        /// The image.
        path: PathBuf,
        /// Why.
        source: Box<CoreError>,
    },
    /// No such target on this drive.
    #[error("{}: there is no target `{name}`{hint} ({known})", path.display())]
    NoTarget {
        /// The image.
        path: PathBuf,
        /// What was asked for.
        name: String,
        /// A name like it.
        hint: String,
        /// What there is.
        known: String,
    },
    /// A target that was never finished.
    #[error(
        "{}: target `{name}` is only half created: create it again (`flashlane lnvm create`), or \
         remove it", path.display()
    )]
    HalfCreated {
        /// The image.
        path: PathBuf,
        /// The target.
        name: String,
    },
    /// The target itself.
    #[error("{}: target `{name}`: {source}", path.display())]
    Target {
        /// The image.
        path: PathBuf,
        /// The target.
        name: String,
        /// Why.
        source: Box<StackError>,
    },
    /// What is on the PUs can't be taken over.
    #[error(
        "{}: what is on PUs {begin} to {end} can't be taken over: {source}; -f makes a new target \
         there, and gives that up", path.display()
    )]
    TakeOver {
        /// The image.
        path: PathBuf,
        /// First PU.
        begin: u32,
        /// Last PU.
        end: u32,
        /// Why.
        source: Box<StackError>,
    },
    /// The target that was found has another over-provisioning than asked for.
    #[error(
        "{}: the target on these PUs was created with over-provisioning of {found}: leave -o out to \
         take it over, or give -f to make a new one, which gives its data up", path.display()
    )]
    OtherSpare {
        /// The image.
        path: PathBuf,
        /// As it was created.
        found: String,
    },
    /// A run on a drive that names none of several targets, or more than one.
    #[error("{}: a run on a drive is on one target: name it with --target ({known})", path.display())]
    WhichTarget {
        /// The image.
        path: PathBuf,
        /// What there is.
        known: String,
    },
    /// Types that this program can't run on an image.
    #[error("targets of type {0} are not in this version; there are pblk, raw and pftl")]
    NotYet(TargetKind),
    /// Something that must not happen under a target.
    #[error("{}: PU {pu} belongs to target `{owner}`; remove it first", path.display())]
    Owned {
        /// The image.
        path: PathBuf,
        /// Which.
        pu: u32,
        /// Whose.
        owner: String,
    },
    /// A number that names nothing on this device.
    #[error("there is no {what} {found}: the device has 0 to {last}")]
    Place {
        /// Channel, LUN, block or plane.
        what: &'static str,
        /// What was asked for.
        found: u32,
        /// The last one.
        last: u32,
    },
    /// A mark that is none.
    #[error(
        "{0} is no mark: 0 (good), 1 (factory), 2 (grown), 4 (device), 8 (host), 16 (media manager), \
         or a sum of them"
    )]
    Mark(u32),
    /// Namespaces: there is one.
    #[error("there is no namespace {0}: a drive has one, number 1")]
    Namespace(u32),
    /// Tables per PU are of the 1.2 interface.
    #[error("`{verb}` is for devices of the 1.2 interface, this is one of 2.0: use chunk-log")]
    Style {
        /// What was asked for.
        verb: &'static str,
    },
    /// A bug of ours.
    #[error("{0}")]
    Stalled(#[from] Stalled),
}

/// A drive with its targets, open.
pub struct Drive {
    /// The image.
    pub path: PathBuf,
    /// The device in it.
    pub ssd: Arc<Ssd>,
    /// Its targets.
    pub core: Core,
}

impl Drive {
    /// Opens an image.
    ///
    /// # Errors
    /// It is no image, in use, or its table of targets can't be used.
    pub fn open(path: &Path, how: &OpenImage) -> Result<Drive, LnvmError> {
        let ssd = Ssd::open_image(path, how)?;
        let core = Core::on_image(ssd.clone()).map_err(|e| core_error(path, e))?;
        Ok(Drive { path: path.into(), ssd, core })
    }

    /// Opens an image for reading, however many others read it.
    ///
    /// # Errors
    /// As [`Drive::open`].
    pub fn look(path: &Path) -> Result<Drive, LnvmError> {
        Drive::open(path, &OpenImage { read_only: true, ..OpenImage::default() })
    }

    /// Opens an image so that it can be written to, and what is written goes nowhere. Hold the drive
    /// that was opened for reading as long.
    fn shadow(&self) -> Result<Drive, LnvmError> {
        let at = |e: ImageError| {
            LnvmError::Image(ImageError::At { path: self.path.clone(), problem: Box::new(e) })
        };
        let file = Shadow::of(&self.path).map_err(|e| at(ImageFault::io("open")(e).into()))?;
        let ssd = Ssd::open_on(Arc::new(file), &OpenImage::default()).map_err(at)?;
        let core = Core::on_image(ssd.clone()).map_err(|e| core_error(&self.path, e))?;
        Ok(Drive { path: self.path.clone(), ssd, core })
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
        self.ssd.close().map_err(|e| {
            LnvmError::Image(ImageError::At { path: self.path.clone(), problem: Box::new(e) })
        })
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
pub fn choose(path: &Path, names: &[String]) -> Result<(DriveTarget, TargetKind), LnvmError> {
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
    Ok((DriveTarget { image: path.into(), name }, info.kind))
}

/// Has an experiment run on a target of a drive. What is there is what it finds: nothing is filled
/// unless the experiment says how much.
///
/// # Errors
/// There is no such drive or target, or its settings make no sense.
pub fn put_on_drive(experiment: &mut Experiment, on: &DriveTarget) -> Result<(), StackError> {
    let Some(like) = experiment.targets.first() else { return Ok(()) };
    experiment.targets = vec![target_of_drive(on, &like.device.options)?];
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
    /// PUs that take new data at a time (pblk); 0 is all.
    pub active_pus: u32,
    /// How pblk's ring is shared between users and GC.
    pub limiter: LimiterKind,
    /// How pblk spreads wear.
    pub wear: WearConfig,
    /// Whether pblk moves data before it decays.
    pub scrub: ScrubConfig,
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
}

/// What lies on a target's PUs now.
struct Made {
    uuid: Option<[u8; 16]>,
    capacity: Option<u64>,
    recovery: Option<Recovery>,
    settings: serde_json::Value,
}

impl Create {
    fn pblk(&self) -> LogConfig {
        LogConfig {
            over_provisioning_percent: self.over_provisioning.unwrap_or(0),
            active_pus: self.active_pus,
            limiter: self.limiter,
            wear: self.wear,
            scrub: self.scrub,
            ..LogConfig::default()
        }
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
    if ask.kind == TargetKind::Qblk {
        return Err(LnvmError::NotYet(ask.kind));
    }
    let drive = Drive::open(path, &OpenImage::default())?;
    let created = create_on(&drive, ask);
    let closed = drive.close();
    let created = created?;
    closed.map(|()| created)
}

fn create_on(drive: &Drive, ask: &Create) -> Result<Created, LnvmError> {
    let settings = match ask.kind {
        TargetKind::Pblk => serde_json::to_value(ask.pblk()),
        TargetKind::Pftl => serde_json::to_value(ask.pftl()),
        TargetKind::Raw | TargetKind::Qblk => Ok(serde_json::Value::Null),
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
    let part = drive.core.begin(&spec).map_err(in_core)?;
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
            if made.recovery.is_some() && asked.is_some() && asked != found {
                let found = found.map_or("its default".into(), |p| format!("{p} %"));
                LnvmError::OtherSpare { path, found }
            } else {
                drive.core.complete(&ask.name, made.uuid, made.settings).map_err(in_core)?;
                let all = drive.core.list();
                let Some(info) = all.into_iter().find(|t| t.name == ask.name) else {
                    return Err(no_target(&drive.path, &ask.name, &[]));
                };
                return Ok(Created { info, capacity: made.capacity, recovery: made.recovery });
            }
        }
        Ok(Err(source)) if source.is_mount() && !ask.factory => {
            LnvmError::TakeOver { path, begin, end, source: Box::new(source) }
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
    let device: Arc<dyn Device> = part;
    match ask.kind {
        TargetKind::Raw | TargetKind::Qblk => {
            if ask.factory {
                erase(cx, &device, |_, _, _| true).await;
            }
            let settings = serde_json::Value::Null;
            Ok(Made { uuid: None, capacity: None, recovery: None, settings })
        }
        TargetKind::Pblk => {
            let found = match ask.factory {
                true => None,
                false => match mount_pblk(cx, device.clone(), None).await {
                    Ok(found) => Some(found),
                    Err(StackError::MountPblk(MountError::NoTarget)) => None,
                    Err(e) => return Err(e),
                },
            };
            let pblk = match found {
                Some(pblk) => pblk,
                None => Pblk::create(cx, device, ask.pblk()).await?,
            };
            let made = Made {
                uuid: Some(pblk.uuid()),
                capacity: Some(pblk.info().capacity),
                recovery: pblk.recovery(),
                settings: serde_json::to_value(pblk.settings()).unwrap_or_default(),
            };
            pblk.stop(cx).await.map_err(StackError::Stop)?;
            Ok(made)
        }
        TargetKind::Pftl => {
            let config = ask.pftl();
            let pftl = if ask.factory {
                erase(cx, &device, |_, _, _| true).await;
                Pftl::create(cx, device, config.clone())?
            } else {
                mount_pftl(cx, device, config.clone()).await?
            };
            let capacity = Some(pftl.info().capacity);
            pftl.stop(cx).await;
            if let Some(why) = pftl.read_only() {
                return Err(StackError::ReadOnly(why));
            }
            let settings = serde_json::to_value(config).unwrap_or_default();
            Ok(Made { uuid: None, capacity, recovery: None, settings })
        }
    }
}

/// Takes a target off a drive; what is on its PUs stays.
///
/// # Errors
/// There is none of that name.
pub fn remove(path: &Path, name: &str) -> Result<TargetInfo, LnvmError> {
    let drive = Drive::open(path, &OpenImage::default())?;
    let removed = drive.core.remove(name).map_err(|e| match e {
        CoreError::NoTarget(_) => no_target(path, name, &drive.core.list()),
        other => core_error(path, other),
    });
    let closed = drive.close();
    let removed = removed?;
    closed.map(|()| removed)
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
    let drive = Drive::open(path, &OpenImage::default())?;
    let done = factory_on(&drive, ask);
    let closed = drive.close();
    let done = done?;
    closed.map(|()| done)
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

/// Where a mark goes: channel, LUN in it, plane, block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    /// Channel.
    pub channel: u32,
    /// LUN in the channel.
    pub lun: u32,
    /// Plane; a 2.0 device names none, all get the mark.
    pub plane: u32,
    /// Block.
    pub block: u32,
}

fn within(what: &'static str, found: u32, count: u32) -> Result<(), LnvmError> {
    match found < count {
        true => Ok(()),
        false => Err(LnvmError::Place { what, found, last: count - 1 }),
    }
}

/// The PU of a channel and a LUN in it.
pub(super) fn pu_of(geo: &Geometry, channel: u32, lun: u32) -> Result<u32, LnvmError> {
    within("channel", channel, geo.channels)?;
    within("LUN", lun, geo.pus_per_channel)?;
    Ok(channel * geo.pus_per_channel + lun)
}

/// Gives a block a mark in place of the one it has.
///
/// # Errors
/// There is no such block or mark, or the block belongs to a target.
pub fn set_bad_block(path: &Path, at: Block, mark: u32) -> Result<(), LnvmError> {
    let bits = u8::try_from(mark).ok().filter(|m| *m < 32).ok_or(LnvmError::Mark(mark))?;
    let drive = Drive::open(path, &OpenImage::default())?;
    let set = || {
        let geo = drive.geometry();
        let pu = pu_of(&geo, at.channel, at.lun)?;
        within("plane", at.plane, geo.planes)?;
        within("block", at.block, geo.chunks_per_pu)?;
        if let Some(owner) = drive.core.owner("flash0", pu) {
            return Err(LnvmError::Owned { path: path.into(), pu, owner });
        }
        set_mark(&drive, (pu, at.plane, at.block), bits);
        Ok(())
    };
    let done = set();
    let closed = drive.close();
    done?;
    closed
}

fn set_mark(drive: &Drive, (pu, plane, chunk): (u32, u32, u32), mark: u8) {
    let geo = drive.geometry();
    // The first sector of the plane's first page.
    let sector = match drive.ssd.format().style() {
        PpaStyle::V12 => plane * geo.sectors_per_page,
        PpaStyle::V20 => 0,
    };
    let at = drive.ssd.format().pack(Location { pu, chunk, sector });
    let done = drive.ssd.set_bad_blocks(&[at], mark);
    assert!(done, "the place and the mark were checked");
}

/// What was found when a target was mounted for a run.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The image.
    pub path: PathBuf,
    /// The target.
    pub info: TargetInfo,
    /// pblk's own account.
    pub recovery: Option<Recovery>,
    /// Device time that it took.
    pub time: Ns,
}
