//! What can be wrong when targets are handled.
//!
//! Owns: [`LnvmError`], [`StackError`] and their words, and which layers an entry of a drive's table stands for. Promises: each names the image, and what would do. Never: decides
//! anything.

use super::TargetType;
use super::options::kinds_with;
use crate::control::ControlError;
use flashlane_ftl::block::BlockError;
use flashlane_ftl::layer::{AttributeError, Kind, LayerError, MountHow, Refusal};
use flashlane_ocssd::{CoreError, ImageError, SpecError, TargetInfo};
use flashlane_rt::Stalled;
use flashlane_stack::{LayerSpec, PusError, kinds};
use std::path::PathBuf;

/// What would do. Where the host failed, nothing may be wrong with what is there.
fn remedy(host: Option<&str>) -> String {
    match host {
        Some(trouble) => format!(
            " ({trouble}): make room for the image or mend the disk, and try again; -f would give up \
             what is there"
        ),
        None => "; -f makes a new target there, and gives that up".into(),
    }
}

/// Why something about targets could not be done. Nothing has changed, unless it says so.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LnvmError {
    #[error(transparent)]
    Image(#[from] ImageError),
    /// Its table of targets, or what was asked of it.
    #[error("{}: {source}", path.display())]
    Core { path: PathBuf, source: Box<CoreError> },
    #[error("{}: there is no target `{name}`{hint} ({known})", path.display())]
    NoTarget { path: PathBuf, name: String, hint: String, known: String },
    #[error(
        "{}: target `{name}` is only half created: create it again (`flashlane lnvm create`), or \
         remove it", path.display()
    )]
    HalfCreated { path: PathBuf, name: String },
    #[error("{}: target `{name}`: {source}", path.display())]
    Target { path: PathBuf, name: String, source: Box<StackError> },
    #[error(
        "{}: what is on PUs {begin} to {end} can't be taken over: {source}{}", path.display(),
        remedy(host.as_deref())
    )]
    TakeOver {
        path: PathBuf,
        begin: u32,
        end: u32,
        source: Box<StackError>,
        /// What the host could not do.
        host: Option<String>,
    },
    /// The target that was found has another over-provisioning than asked for.
    #[error(
        "{}: the target on these PUs was created with over-provisioning of {found}: leave -o out to \
         take it over, or give -f to make a new one, which gives its data up", path.display()
    )]
    OtherSpare { path: PathBuf, found: String },
    /// The target that was found has another setting than asked for.
    #[error(
        "{}: the target on these PUs has {flag} {found}: leave {flag} out to take it over{}, or give -f to \
         make a new one, which gives its data up", path.display(), if *later { LATER } else { "" }
    )]
    OtherSetting { path: PathBuf, flag: String, found: String, later: bool },
    #[error(
        "{}: the target on PUs {begin} to {end} is of type {found}: give `-t {found}` to take it over, or \
         -f to make a new one, which gives its data up",
        path.display()
    )]
    OtherType { path: PathBuf, begin: u32, end: u32, found: &'static str },
    #[error("{flag} is for targets of type {}, not for {kind}", kinds_with(flag))]
    Misplaced {
        flag: String,
        /// The type that was asked for.
        kind: TargetType,
    },
    #[error("a {kind} target can't be so: {says}")]
    Option {
        /// The type that was asked for.
        kind: TargetType,
        says: String,
    },
    #[error(
        "{}: there is a target `{name}` already: give the new one another name, or remove that one \
         (`flashlane lnvm remove`)", path.display()
    )]
    Taken { path: PathBuf, name: String },
    /// None of several targets was named, or more than one where one is meant.
    #[error("{}: name one target of it with --target ({known})", path.display())]
    WhichTarget { path: PathBuf, known: String },
    #[error("{}: target `{name}` is named twice", path.display())]
    Twice { path: PathBuf, name: String },
    #[error("{}: PU {pu} belongs to target `{owner}`; remove it first", path.display())]
    Owned { path: PathBuf, pu: u32, owner: String },
    #[error("there is no {what} {found}: the device has 0 to {last}")]
    Place {
        /// Channel, LUN, block or plane.
        what: &'static str,
        found: u32,
        last: u32,
    },
    #[error(
        "{0} is no mark: 0 (good), 1 (factory), 2 (grown), 4 (device), 8 (host), 16 (media manager), \
         or a sum of them"
    )]
    Mark(u32),
    #[error("there is no media manager `{0}`; the kernel had one, gennvm")]
    MediaManager(String),
    #[error("there is no namespace {0}: a drive has one, number 1")]
    Namespace(u32),
    /// Tables per PU are of the 1.2 interface.
    #[error("`{verb}` is for devices of the 1.2 interface, this is one of 2.0: use chunk-log")]
    Style { verb: &'static str },
    /// A knob that its target does not have, or a value that it does not take.
    #[error("{}: target `{name}`: {source}", path.display())]
    Knob { path: PathBuf, name: String, source: AttributeError },
    /// A knob that is to be set to two values.
    #[error("a knob is given twice: each has one value")]
    KnobTwice,
    #[error("{}: target `{name}` is of type {kind}, which has no knobs", path.display())]
    NoKnobs { path: PathBuf, name: String, kind: String },
    #[error("{}: target `{name}` is being mounted; try again", path.display())]
    Mounting { path: PathBuf, name: String },
    #[error(
        "{}: `{knob}` does something to target `{name}` once, while it is in use; now it is not",
        path.display()
    )]
    AtRest { path: PathBuf, name: String, knob: &'static str },
    #[error("{0}")]
    Stalled(#[from] Stalled),
}

/// A setting that is a knob can be turned later.
const LATER: &str = " (`flashlane lnvm knobs` turns it afterwards)";

impl LnvmError {
    /// Another process has the drive open.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, LnvmError::Image(e) if e.is_held())
    }
}

/// Why a stack could not be built.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StackError {
    /// The device.
    #[error(transparent)]
    Device(#[from] SpecError),
    /// PUs that the device does not have.
    #[error("`pus` names PU {}, the device has 0 to {}", .0.end, .0.last)]
    Pus(PusError),
    /// A layer.
    #[error("{0}")]
    Layer(#[from] LayerError),
    /// A knob of a layer.
    #[error("{0}")]
    Knob(#[from] AttributeError),
    /// The drive that the target lives on.
    #[error("{0}")]
    Drive(Box<LnvmError>),
    /// A way to mount that its type does not have.
    #[error("`{flag}` is for {} targets, this one is of type {kind}", owners(flag))]
    How {
        /// As it is given.
        flag: &'static str,
        /// Its type.
        kind: String,
    },
    /// A type of target that this program does not have.
    #[error(
        "it is of type `{0}`, which this program does not have: use the flashlane that made it"
    )]
    Type(String),
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
    /// An experiment with a file system.
    #[error(
        "the experiment makes a file system of its own, and what is on the drive would be lost: leave \
         --drive out, or use the drive's with `flashlane mount`"
    )]
    NewFiles,
    /// A file system does not fit, with what would do.
    #[error("{0}")]
    NoRoom(String),
    /// It can't make anything durable.
    #[error("it is read-only: {0}")]
    ReadOnly(&'static str),
}

impl From<LnvmError> for StackError {
    fn from(e: LnvmError) -> StackError {
        StackError::Drive(Box::new(e))
    }
}

impl From<PusError> for StackError {
    fn from(e: PusError) -> StackError {
        StackError::Pus(e)
    }
}

impl StackError {
    /// The device has too little room for the layer with these settings.
    pub(crate) fn is_too_small(&self) -> bool {
        matches!(self, StackError::Layer(e) if e.refusal == Refusal::TooSmall)
    }

    /// What is on the medium is in the way. On a device that is too small nothing can be.
    pub(crate) fn is_mount(&self) -> bool {
        matches!(self, StackError::Layer(e) if e.mounting && e.refusal != Refusal::TooSmall)
    }
}

/// Types of targets that have this way to mount.
fn owners(flag: &str) -> String {
    let all = MountHow { accept_lost: true, undo_discards: true };
    let ways = [MountHow { undo_discards: false, ..all }, MountHow { accept_lost: false, ..all }];
    let has = |kind: &&dyn Kind| ways.iter().all(|how| kind.lacks(*how) != Some(flag));
    let names: Vec<&str> = kinds::targets().filter(has).map(|kind| kind.name()).collect();
    names.join(" and ")
}

/// Refuses what a target of this type does not have; one of no type is raw.
pub(crate) fn check_how(how: MountHow, kind: Option<&dyn Kind>) -> Result<(), StackError> {
    let lacks = match kind {
        Some(kind) => kind.lacks(how),
        None if how.accept_lost => Some("--accept-lost"),
        None => how.undo_discards.then_some("--undo-discards"),
    };
    let name = kind.map_or(kinds::RAW, |kind| kind.name());
    lacks.map_or(Ok(()), |flag| Err(StackError::How { flag, kind: name.into() }))
}

/// The layers that an entry of the table stands for.
pub(crate) fn layers_of(info: &TargetInfo) -> Result<Vec<LayerSpec>, StackError> {
    if info.kind == kinds::RAW {
        return Ok(Vec::new());
    }
    let found = kinds::targets().find(|kind| kind.name() == info.kind);
    let kind = found.ok_or_else(|| StackError::Type(info.kind.clone()))?;
    kind.check(&info.settings).map_err(StackError::Settings)?;
    Ok(vec![LayerSpec::with(kind, info.settings.clone())])
}
