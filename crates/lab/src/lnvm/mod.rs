//! Targets on drive images: the `lnvm` verbs of nvme-cli, with an image for the device.
//!
//! Owns: opening an image with its targets ([`Drive`]), what create, remove, factory and the bad-block
//! verbs do and in which order. Promises: a target's entry is durable before anything of it is written,
//! and gone before anything else may take its PUs; what is refused has changed nothing, but for a
//! create on a large device ([`create`]); looking writes nothing. Never: formats ([`show`] does),
//! or knows the bytes of a table or of a target.
//!
//! Without `factory` a create finds the pblk that is on its PUs and recovers it, as the kernel did;
//! where there is none it makes one.

pub(crate) mod bad_blocks;
mod error;
pub(crate) mod knobs;
mod options;
mod shadow;
pub mod show;

pub use bad_blocks::Block;
pub use error::{LnvmError, StackError};
pub(crate) use error::{check_how, layers_of};
pub use options::{Options, TargetType};

pub use flashlane_base::Ns;
pub use flashlane_ftl::layer::MountHow;
pub use flashlane_ftl::log::{LimiterKind, Scrub, WearLeveling};

use crate::control::{Answer, Ask, listens};
use crate::experiment::DriveTarget;
use crate::room;
use crate::suggest;
use crate::verbs::{VerbError, ask};
use bad_blocks::set_mark;
use flashlane_base::{Geometry, Location, mutant};
use flashlane_ftl::layer::{
    Find, Kind, Layer, LostSectors, Recovered, Refusal, Seam, Settings, Side, Stop,
};
use flashlane_media::image::ImageFault;
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Data, Flags, Op, Request};
use flashlane_ocssd::ssd::{GROWN_BAD, HOST_RESERVED};
use flashlane_ocssd::{
    Core, CoreError, Device, ImageError, OpenImage, Partition, Pus, Ssd, TargetInfo, TargetSpec,
    TargetState,
};
use flashlane_rt::{CostTable, Cx, Virtual};
use options::{WrongOption, flag};
use shadow::Shadow;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// A drive with its targets, open.
#[derive(Clone)]
pub struct Drive {
    /// The image.
    pub path: PathBuf,
    /// The device in it.
    pub ssd: Arc<Ssd>,
    /// Its targets, once somebody asks for them.
    core: Arc<OnceLock<Arc<Core>>>,
}

impl Drive {
    /// Opens an image.
    ///
    /// # Errors
    /// It is no image, in use, or to be changed and of a newer minor version.
    pub fn open(path: &Path, how: &OpenImage) -> Result<Drive, LnvmError> {
        let ssd = match how.read_only {
            true => Ssd::open_image(path, how)?,
            false => open_to_change(path, how)?,
        };
        Ok(Drive::on(path, ssd))
    }

    fn on(path: &Path, ssd: Arc<Ssd>) -> Drive {
        Drive { path: path.into(), ssd, core: Arc::default() }
    }

    /// Opens an image for reading, however many others read it.
    ///
    /// # Errors
    /// As [`Drive::open`].
    pub fn look(path: &Path) -> Result<Drive, LnvmError> {
        let how = OpenImage { read_only: true, timing: false, ..OpenImage::default() };
        Drive::open(path, &how)
    }

    /// Its targets.
    ///
    /// # Errors
    /// Its table of targets can't be used.
    pub fn core(&self) -> Result<&Arc<Core>, LnvmError> {
        if let Some(core) = self.core.get() {
            return Ok(core);
        }
        let core = Core::on_image(self.ssd.clone()).map_err(|e| core_error(&self.path, e))?;
        Ok(self.core.get_or_init(|| Arc::new(core)))
    }

    /// Opens an image, changes something, and closes it.
    ///
    /// # Errors
    /// As [`Drive::open`], those of `change`, or the host failed.
    pub(crate) fn change<T, E: From<LnvmError>>(
        path: &Path,
        change: impl FnOnce(&Drive) -> Result<T, E>,
    ) -> Result<T, E> {
        let drive = Drive::open(path, &OpenImage::default())?;
        let done = change(&drive);
        let closed = drive.close();
        let done = done?; // why it could not be done matters more
        Ok(closed.map(|()| done)?)
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
        Ok(Drive::on(&self.path, ssd))
    }

    /// A target that can be used, and its part of the device.
    ///
    /// # Errors
    /// There is none of that name, or it is half created.
    pub fn target(&self, name: &str) -> Result<(TargetInfo, Arc<Partition>), LnvmError> {
        let core = self.core()?;
        let all = core.list();
        let Some(info) = all.iter().find(|t| t.name == name) else {
            return Err(no_target(&self.path, name, &all));
        };
        if info.state == TargetState::BeingCreated {
            return Err(LnvmError::HalfCreated { path: self.path.clone(), name: name.into() });
        }
        let part = core.open(name).map_err(|e| core_error(&self.path, e))?;
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
    changeable(path, Ssd::open_image(path, how)?)
}

/// The device of an image that was opened to change it, unless the image can only be read.
fn changeable(path: &Path, ssd: Arc<Ssd>) -> Result<Arc<Ssd>, ImageError> {
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

/// Opens an image for reading. If another process has it and does not listen at its control socket
/// any more, that process is about to close it and is waited for: for as long as it takes to write
/// what it buffers. A process that listens gets a moment, in which it may notice that it is to end.
fn look_when_left(path: &Path) -> Result<Drive, LnvmError> {
    const NOTICES: Duration = Duration::from_millis(300);
    const CLOSES: Duration = Duration::from_secs(30);
    const BETWEEN: Duration = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    loop {
        let looked = Drive::look(path);
        let most = match &looked {
            Err(held) if !held.is_held() => return looked,
            Ok(_) => return looked,
            Err(_) if listens(path) => NOTICES,
            Err(_) => CLOSES,
        };
        if waited >= most || mutant!("lab.held-at-once") {
            return looked;
        }
        #[allow(clippy::disallowed_methods)] // for another process
        std::thread::sleep(BETWEEN);
        waited += BETWEEN;
    }
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
) -> Result<(DriveTarget, String), LnvmError> {
    let mut chosen = choose_all(path, names, how)?;
    match (chosen.pop(), &chosen[..]) {
        (Some(only), []) => Ok(only),
        _ => {
            let known = format!("here are: {}", names.join(", "));
            Err(LnvmError::WhichTarget { path: path.into(), known })
        }
    }
}

/// The targets of a drive that are to be used side by side, as [`choose`] does: at least one.
///
/// # Errors
/// There is no such drive or target, one is named twice, or none of several is named.
pub fn choose_all(
    path: &Path,
    names: &[String],
    how: MountHow,
) -> Result<Vec<(DriveTarget, String)>, LnvmError> {
    let drive = look_when_left(path)?;
    let all = drive.core()?.list();
    let names = match (names, &all[..]) {
        ([], [only]) => vec![only.name.clone()],
        ([], []) => return Err(no_target(path, "", &all)),
        ([], several) => {
            let known: Vec<&str> = several.iter().map(|t| &*t.name).collect();
            let known = format!("there are: {}", known.join(", "));
            return Err(LnvmError::WhichTarget { path: path.into(), known });
        }
        (names, _) => names.to_vec(),
    };
    let mut chosen: Vec<(DriveTarget, String)> = Vec::new();
    for name in names {
        let (info, _) = drive.target(&name)?;
        if chosen.iter().any(|(on, _)| on.name == name) {
            return Err(LnvmError::Twice { path: path.into(), name });
        }
        if TargetType::of(&info.kind).is_none() {
            let source = Box::new(StackError::Type(info.kind));
            return Err(LnvmError::Target { path: path.into(), name, source });
        }
        chosen.push((DriveTarget { image: path.into(), name, how }, info.kind));
    }
    Ok(chosen)
}

/// A target to be created.
#[derive(Clone, Debug)]
pub struct Create {
    /// Name.
    pub name: String,
    /// What it is to be.
    pub kind: TargetType,
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
    /// What else its type is told.
    pub options: Options,
}

/// What a create came to.
#[derive(Clone, Debug)]
pub struct Created {
    /// The target.
    pub info: TargetInfo,
    /// Logical sectors of 4 KiB; a raw target has none.
    pub capacity: Option<u64>,
    /// The target was there, and this is how it was found.
    pub recovery: Option<Recovered>,
    /// What of it was taken over as lost.
    pub lost: Lost,
}

/// What lies on a target's PUs now.
#[derive(Default)]
struct Made {
    uuid: Option<[u8; 16]>,
    capacity: Option<u64>,
    recovery: Option<Recovered>,
    lost: Lost,
    settings: Settings,
    /// A setting that was asked for and that what was found does not have.
    differs: Option<(&'static str, String)>,
    /// What was found is of another type.
    other_type: Option<&'static str>,
}

impl Create {
    /// The settings of a new one, or of one that is like `found` but for what was asked for.
    fn settings(&self, found: Option<&Settings>) -> Result<Settings, LnvmError> {
        let kind = self.kind;
        let misplaced = |flag| Err(LnvmError::Misplaced { flag, kind });
        let Some(layer) = kind.kind() else {
            return self.options.leftover().map_or(Ok(Settings::Null), misplaced);
        };
        let base = found.cloned().unwrap_or_else(|| layer.on_image(layer.defaults()));
        self.applied(layer, &base)
    }

    /// Settings that need less room than `settings`, without what [`Kind::on_image`] had added.
    /// `None` if there are none, or the user asked for what would be left out.
    fn smaller(&self, settings: &Settings) -> Option<Settings> {
        let layer = self.kind.kind()?;
        let base = layer.on_small_image(&layer.on_image(layer.defaults()))?;
        self.applied(layer, &base).ok().filter(|smaller| smaller != settings)
    }

    /// `base` with what was asked for in its place.
    fn applied(&self, layer: &'static dyn Kind, base: &Settings) -> Result<Settings, LnvmError> {
        let kind = self.kind;
        let misplaced = |flag| Err(LnvmError::Misplaced { flag, kind });
        let options = self.options.clone().number(OVER_PROVISIONING, self.over_provisioning);
        match options.settings(layer, base) {
            Ok(settings) => Ok(settings),
            Err(WrongOption::Misplaced(flag)) => misplaced(flag),
            Err(WrongOption::Says(says)) => Err(LnvmError::Option { kind, says }),
        }
    }
}

/// The setting that nvme-cli has an option of its own for.
const OVER_PROVISIONING: &str = "over_provisioning_percent";

/// Creates a target on a drive. A refused create leaves a drive of up to 32 GiB as it was.
///
/// # Errors
/// Name, type or PUs can't be had, the target does not fit, or what is on the PUs can't be taken over.
pub fn create(path: &Path, ask: &Create) -> Result<Created, LnvmError> {
    let settings = ask.settings(None)?;
    let looked = Drive::look(path)?;
    if room::is_small(&looked.geometry()) {
        // Some refusals come after erases and programs. So the first try is on a shadow of the
        // image. A large device is not tried: it has room, and the shadow would take gigabytes of
        // memory.
        let shadow = looked.shadow()?;
        changeable(path, shadow.ssd.clone())?;
        create_fitting(&shadow, ask, &settings)?;
    }
    drop(looked);
    Drive::change(path, |drive| create_fitting(drive, ask, &settings))
}

/// Creates a target with `settings`, or with smaller ones where these do not fit.
fn create_fitting(drive: &Drive, ask: &Create, settings: &Settings) -> Result<Created, LnvmError> {
    match (create_on(drive, ask, settings), ask.smaller(settings)) {
        (Err(LnvmError::Target { source, .. }), Some(smaller)) if source.is_too_small() => {
            create_on(drive, ask, &smaller)
        }
        (created, _) => created,
    }
}

fn create_on(drive: &Drive, ask: &Create, settings: &Settings) -> Result<Created, LnvmError> {
    let spec = TargetSpec {
        device: None,
        name: ask.name.clone(),
        kind: ask.kind.name().into(),
        pus: ask.kind.kind().map_or(Pus::Any, |kind| kind.stands().pus),
        begin: ask.begin,
        end: ask.end,
        chunks: None,
        over_provisioning: ask.over_provisioning,
        factory: ask.factory,
        settings: settings.clone(),
    };
    let in_core = |e| core_error(&drive.path, e);
    let (core, seed) = (drive.core()?, drive.fresh_seed());
    let part = core.begin(&spec).map_err(|e| match e {
        CoreError::Taken { name, .. } => LnvmError::Taken { path: drive.path.clone(), name },
        other => in_core(other),
    })?;
    let (begin, end) = part.range();
    let vm = Virtual::new(1, seed, CostTable::zero());
    let (cx, owned, settings) = (vm.cx(), ask.clone(), settings.clone());
    let made = vm.run(async move { bring_up(&cx, part, &owned, settings).await });
    let path = drive.path.clone();
    let failed = match made {
        Ok(Ok(made)) => {
            let spare = made.settings.get(OVER_PROVISIONING);
            let found = spare.and_then(serde_json::Value::as_u64).filter(|p| *p != 0);
            let asked = ask.over_provisioning.map(u64::from);
            if let Some(found) = made.other_type {
                LnvmError::OtherType { path, begin, end, found }
            } else if made.recovery.is_some() && asked.is_some() && asked != found {
                let found = found.map_or("its default".into(), |p| format!("{p} %"));
                LnvmError::OtherSpare { path, found }
            } else if let Some((key, found)) = made.differs {
                let later = ask.kind.kind().is_some_and(|kind| knobs::is_kept(kind, key));
                LnvmError::OtherSetting { path, flag: flag(key), found, later }
            } else {
                core.complete(&ask.name, made.uuid, made.settings).map_err(in_core)?;
                let all = core.list();
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
    core.abandon(&ask.name).map_err(in_core)?;
    Err(failed)
}

/// Finds or makes what the target is, and stops it.
async fn bring_up(
    cx: &Cx,
    part: Arc<Partition>,
    ask: &Create,
    settings: Settings,
) -> Result<Made, StackError> {
    let ((begin, _), (first, _)) = (part.range(), part.chunks());
    let device: Arc<dyn Device> = part;
    check_how(ask.how, ask.kind.kind())?;
    let needs_blank = ask.kind.kind().is_none_or(|kind| kind.stands().needs_blank);
    if ask.factory && needs_blank {
        erase(cx, &device, |_, _, _| true).await;
    }
    let Some(kind) = ask.kind.kind() else { return Ok(Made::default()) };
    let below = || Seam::Device(device.clone());
    let layer = match find(cx, kind, below(), &settings, ask).await? {
        Some(found) => found,
        None => kind.create(cx, below(), &settings).await?,
    };
    let recovery = layer.recovered().filter(|recovered| recovered.found);
    let (has, pus) = (layer.settings(), device.geometry().pus());
    let differs = match &recovery {
        Some(_) => ask.settings(Some(&has)).map(|asked| kind.differs(&asked, &has, pus)),
        None => Ok(None),
    };
    let mut made = Made {
        uuid: layer.uuid(),
        capacity: Some(layer.clone().above().block().info().capacity),
        lost: recovery.as_ref().map(|r| Lost::of(r, begin, first)).unwrap_or_default(),
        recovery,
        settings: has,
        differs: None,
        other_type: Some(layer.kind().name()).filter(|name| *name != kind.name()),
    };
    let stopped = layer.clone().stop(cx, Stop::Clean).await;
    made.differs = differs?;
    let side = kind.stands().side;
    let all = |pu| device.chunk_report(pu, 0, u32::MAX);
    let has_failed = || (0..pus).flat_map(all).any(|c| c.state == ChunkState::Offline);
    match layer.read_only() {
        Some(why) if side == Side::Drive && has_failed() => Err(StackError::ReadOnly(why)),
        Some(_) if side == Side::Drive => Err(StackError::NoSpare),
        _ => stopped.map(|()| made).map_err(StackError::Stop),
    }
}

/// The target that is on the PUs, unless that is to be given up.
async fn find(
    cx: &Cx,
    kind: &'static dyn Kind,
    below: Seam,
    settings: &Settings,
    ask: &Create,
) -> Result<Option<Arc<dyn Layer>>, StackError> {
    if ask.factory {
        return Ok(None);
    }
    let find = Find { how: ask.how, ..Find::default() };
    match kind.mount(cx, below, settings, &find).await {
        Ok(found) => Ok(Some(found)),
        Err(e) if e.refusal == Refusal::Nothing => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// `lnvm remove`: takes a target off a drive that is open; what is on its PUs stays.
///
/// # Errors
/// There is none of that name.
pub(crate) fn remove(drive: &Drive, name: &str) -> Result<Answer, LnvmError> {
    let core = drive.core()?;
    let removed = core.remove(name).map_err(|e| match e {
        CoreError::NoTarget(_) => no_target(&drive.path, name, &core.list()),
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
    if let Some(t) = drive.core()?.list().first() {
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

/// The losses of a mount that was accepted all the same.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Sectors of the medium that can't be read, by place on the drive: the first of a row, and how
    /// many.
    pub runs: Vec<(Location, u32)>,
    /// The first sector that the host could not give.
    pub host: Option<Location>,
    /// Logical sectors whose content is lost; the PUs and chunks of causes are the drive's.
    pub sectors: Vec<LostSectors>,
    /// Units at the ends of open chunks that the mount takes for torn by the power cut.
    pub torn_units: u64,
}

impl Lost {
    /// Of a target on PUs from `begin` on, with their chunks from `first` on.
    pub(crate) fn of(recovered: &Recovered, begin: u32, first: u32) -> Lost {
        let on_drive = |at: Location| Location { pu: begin + at.pu, chunk: first + at.chunk, ..at };
        let mut all: Vec<_> = recovered.lost.iter().map(|(at, n)| (on_drive(*at), *n)).collect();
        let host = recovered.host_failed.map(on_drive);
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
        let sectors = recovered.lost_sectors.iter();
        let sectors = sectors.map(|l| LostSectors { cause: l.cause.on_drive(begin, first), ..*l });
        Lost { runs, host, sectors: sectors.collect(), torn_units: recovered.torn_units }
    }

    /// Sectors of the medium, in all.
    pub fn on_medium(&self) -> u64 {
        self.runs.iter().map(|(_, n)| *n as u64).sum()
    }

    /// Logical sectors, in all.
    pub fn logical(&self) -> u64 {
        self.sectors.iter().map(|l| l.count).sum()
    }
}

/// What was found when a target was mounted for a run.
#[derive(Clone, Debug)]
pub struct Mounted {
    /// The image.
    pub path: PathBuf,
    /// The target.
    pub info: TargetInfo,
    /// How the layer was found.
    pub recovery: Option<Recovered>,
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
pub fn init(path: &Path, media_manager: &str) -> Result<Answer, VerbError> {
    if media_manager != "gennvm" {
        return Err(LnvmError::MediaManager(media_manager.into()).into());
    }
    ask(path, &Ask::List)?;
    let text = format!("Successfully initialized device: {} ({media_manager})\n", path.display());
    Ok(Answer { text, ..Answer::default() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::drive::{create, device};
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
            let crc = flashlane_base::crc32c(&copy[12..end]).to_le_bytes();
            copy[8..12].copy_from_slice(&crc);
        }
        std::fs::write(&path, &bytes).unwrap();
        show::list(&[&path]).unwrap();
        ask(&path, &Ask::Faults).unwrap();
        let plan = "[[fault]]\nkind = \"bit_flip\"";
        let target = Create {
            name: "db".into(),
            kind: "pblk".parse().unwrap(),
            begin: None,
            end: None,
            over_provisioning: None,
            factory: false,
            how: MountHow::default(),
            options: Options::default(),
        };
        let said = [
            super::create(&path, &target).unwrap_err().to_string(),
            ask(&path, &Ask::Remove { target: "db".into() }).unwrap_err().to_string(),
            factory(&path, Factory::default()).unwrap_err().to_string(),
            ask(&path, &Ask::Inject { plan: plan.into() }).unwrap_err().to_string(),
            crate::drive::upgrade(&path).unwrap_err().to_string(),
        ];
        for said in said {
            assert!(said.contains("a.img") && said.contains("format 2.9"), "{said}");
        }
        assert!(std::fs::read(&path).unwrap() == bytes, "untouched");
    }
}
