//! The cold side of a layer: what it is called, how it is made, found again, asked and stopped.
//!
//! Owns: [`Kind`], a way to build a layer; [`Layer`], one that stands; [`Seam`], what lies between
//! two of them. Promises: who builds, runs, shows or tortures a stack needs nothing else of a layer,
//! so a new one is a folder with both traits, and a row in the table of `flashlane-stack`; a method
//! has a default only where that says "it has none", so nothing is lost that somebody forgot.
//! Never: on the way of a request, which goes through [`BlockDev`] and [`Device`].

use crate::block::{BlockDev, BlockError};
use crate::contention::Contention;
use crate::sftl::Sftl;
use crate::stats::{FtlStats, Gauges};
use flashlane_base::{Location, Ns};
use flashlane_ocssd::Device;
pub use flashlane_ocssd::Pus;
use flashlane_rt::Cx;
use serde::Serialize;
use serde_json::{Map, Value};
use std::any::Any;
use std::error::Error;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// What a layer does over some time.
pub type Later<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// What lies between two layers.
#[derive(Clone)]
pub enum Seam {
    /// Flash with its rules.
    Device(Arc<dyn Device>),
    /// Logical sectors.
    Block(Arc<dyn BlockDev>),
    /// Flash blocks with fixed names, for a file system that knows the flash.
    Segments(Arc<Sftl>),
}

impl Seam {
    /// The device that a layer stands on.
    ///
    /// # Panics
    /// It is none: whoever puts layers together looks at [`Kind::stands`] first.
    pub fn device(self) -> Arc<dyn Device> {
        match self {
            Seam::Device(device) => device,
            _ => unreachable!("a stack is put together by what its layers need"),
        }
    }

    /// The segments that a file system stands on.
    ///
    /// # Panics
    /// As [`Seam::device`].
    pub fn segments(self) -> Arc<Sftl> {
        match self {
            Seam::Segments(sftl) => sftl,
            _ => unreachable!("a stack is put together by what its layers need"),
        }
    }

    /// The logical sectors that a layer stands on; of segments, their face.
    ///
    /// # Panics
    /// As [`Seam::device`].
    pub fn block(self) -> Arc<dyn BlockDev> {
        match self {
            Seam::Block(block) => block,
            Seam::Segments(sftl) => sftl.face(),
            Seam::Device(_) => unreachable!("a stack is put together by what its layers need"),
        }
    }
}

/// What a layer stands on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// A device, or PUs of one.
    Device,
    /// Logical sectors: it stands on another layer.
    Block,
    /// Segments: it stands on S-FTL.
    Segments,
}

impl Needs {
    /// Whether this seam has what is needed. Segments have a face of logical sectors.
    pub fn are_met_by(self, seam: &Seam) -> bool {
        matches!(
            (self, seam),
            (Needs::Device, Seam::Device(_))
                | (Needs::Block, Seam::Block(_) | Seam::Segments(_))
                | (Needs::Segments, Seam::Segments(_))
        )
    }
}

/// On which side of the host's link a layer works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// In the drive's controller.
    Drive,
    /// On the host's cores.
    Host,
}

/// Where layers of a kind stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stands {
    pub on: Needs,
    pub side: Side,
    /// Which PUs of a drive they may have.
    pub pus: Pus,
    /// They are created on erased chunks only.
    pub needs_blank: bool,
}

/// Settings of a layer: a JSON object, as a drive keeps them with its target.
pub type Settings = Value;

/// Who says how a layer is to be: a table of an experiment, options of a command.
///
/// A key that is not asked for is unknown to the layer, which its owner says.
pub trait Asked {
    /// Whether there is such a key.
    fn has(&self, key: &str) -> bool;
    /// A whole number within these bounds, both included.
    fn number(&self, key: &str, least: u64, most: u64) -> Option<u64>;
    /// True or false.
    fn flag(&self, key: &str) -> Option<bool>;
    /// One of these words, by its place.
    fn word(&self, key: &str, words: &[&'static str]) -> Option<usize>;
    /// A time, as `10 ms`.
    fn time(&self, key: &str) -> Option<Ns>;
    /// Something is wrong with a key.
    fn complain(&self, key: &str, says: String);
}

impl dyn Asked + '_ {
    /// What one of these words stands for.
    pub fn choice<T: Copy>(&self, key: &str, words: &[(&'static str, T)]) -> Option<T> {
        let names: Vec<&'static str> = words.iter().map(|(name, _)| *name).collect();
        self.word(key, &names).map(|at| words[at].1)
    }

    /// A number that fits 32 bits.
    pub fn small(&self, key: &str, least: u32, most: u32) -> Option<u32> {
        self.number(key, least.into(), most.into()).map(|n| n as u32)
    }
}

/// What is mounted that is not sound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MountHow {
    /// `--accept-lost`: what can't be read is lost. Reads of sectors that it may have held fail.
    pub accept_lost: bool,
    /// `--undo-discards`: the map is rebuilt without its checkpoints; discarded sectors may come
    /// back.
    pub undo_discards: bool,
}

/// What a layer keeps of itself while the power is off, beside what is on the medium.
pub type Saved = Arc<dyn Any + Send + Sync>;

/// Which layer is to be found on the medium, and how.
#[derive(Clone, Default)]
pub struct Find {
    /// Its name among targets; whichever was there last without it.
    pub uuid: Option<[u8; 16]>,
    /// What of it is mounted that is not sound.
    pub how: MountHow,
    /// What it saved when the power went ([`Layer::power_lost`]).
    pub saved: Option<Saved>,
}

/// Why a layer could not be built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The device is too small for it.
    TooSmall,
    /// Its settings make no sense, or not on this device.
    Settings,
    /// The device is not as it must be for a new one.
    Device,
    /// There is none to be mounted.
    Nothing,
    /// There is none to be mounted, or its making was cut short.
    HalfMade,
    /// [`MountHow::accept_lost`] mounts it all the same.
    Lost,
    /// [`MountHow::undo_discards`] mounts it all the same.
    DiscardsLost,
    /// It can't be mounted.
    Damaged,
}

/// A layer that could not be built: the reason, in the layer's own words.
#[derive(Debug)]
pub struct LayerError {
    /// What kind of reason it is.
    pub refusal: Refusal,
    /// It was to be found on the medium, not to be created.
    pub mounting: bool,
    source: Box<dyn Error + Send + Sync>,
}

impl LayerError {
    /// A new layer could not be created.
    pub fn create(refusal: Refusal, why: impl Into<Box<dyn Error + Send + Sync>>) -> LayerError {
        LayerError { refusal, mounting: false, source: why.into() }
    }

    /// One that was to be on the medium could not be mounted.
    pub fn mount(refusal: Refusal, why: impl Into<Box<dyn Error + Send + Sync>>) -> LayerError {
        LayerError { refusal, mounting: true, source: why.into() }
    }
}

impl fmt::Display for LayerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        match self.refusal {
            Refusal::Lost => write!(
                f,
                "; nothing has been given up yet: if the fault may pass, mount again after that; \
                 with `--accept-lost`, `serve`, `run --drive`, `lnvm create` and `fsck --repair` \
                 mount it anyway"
            ),
            Refusal::DiscardsLost => write!(
                f,
                "; with `--undo-discards`, `serve`, `run --drive` and `lnvm create` mount it anyway"
            ),
            _ => Ok(()),
        }
    }
}

impl Error for LayerError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        Some(&*self.source)
    }
}

pub type Built = Result<Arc<dyn Layer>, LayerError>;

/// A way to build a layer.
pub trait Kind: Send + Sync {
    /// As users write it.
    fn name(&self) -> &'static str;
    /// What a layer with these settings is called where results are shown.
    fn title(&self, settings: &Settings) -> String {
        let _ = settings;
        self.name().into()
    }
    fn stands(&self) -> Stands;
    /// `base`, its defaults or a layer that is there, with what is asked for in its place.
    fn settings(&self, asked: &dyn Asked, base: &Settings) -> Settings;
    /// Settings that nobody says anything of.
    fn defaults(&self) -> Settings;
    /// The same for a drive in an image, which has no memory that outlives its process.
    fn on_image(&self, settings: Settings) -> Settings;
    /// Settings that need less room: they lack what [`Kind::on_image`] had added and a small drive
    /// can do without. `None` if it had added nothing like that.
    fn on_small_image(&self, _settings: &Settings) -> Option<Settings> {
        None
    }
    /// Whether it can read these settings.
    ///
    /// # Errors
    /// It can't, and why.
    fn check(&self, settings: &Settings) -> Result<(), String>;
    /// What a report says of the settings that a run was with.
    fn described(&self, settings: &Settings) -> Value;
    /// The first key by which settings that were asked for differ from those of a layer that was
    /// found on so many PUs, and what the latter has.
    fn differs(
        &self,
        asked: &Settings,
        found: &Settings,
        pus: u32,
    ) -> Option<(&'static str, String)>;
    /// Its logical sectors are written in order, segment by segment: not for who writes anywhere.
    fn in_order(&self) -> bool {
        false
    }
    fn lacks(&self, how: MountHow) -> Option<&'static str> {
        match how {
            MountHow { accept_lost: true, .. } => Some("--accept-lost"),
            MountHow { undo_discards: true, .. } => Some("--undo-discards"),
            MountHow { .. } => None,
        }
    }
    /// Attributes of its layers, by the names that sysfs had for them.
    fn attributes(&self) -> &'static [Attribute] {
        &[]
    }
    /// What the folder is called in which sysfs shows them.
    fn folder(&self) -> &'static str {
        self.name()
    }
    /// Builds a new one, whose background tasks start on the core of `cx`.
    fn create<'a>(&'a self, cx: &'a Cx, below: Seam, settings: &'a Settings) -> Later<'a, Built>;
    /// Builds the one that is on the medium, with what lives there, or on an erased one a new one if
    /// the medium can't tell them apart.
    fn mount<'a>(
        &'a self,
        cx: &'a Cx,
        below: Seam,
        settings: &'a Settings,
        find: &'a Find,
    ) -> Later<'a, Built>;
}

impl fmt::Debug for dyn Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl PartialEq for dyn Kind {
    fn eq(&self, other: &dyn Kind) -> bool {
        self.name() == other.name()
    }
}

impl Eq for dyn Kind {}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute {
    pub name: &'static str,
    /// Whether it is a knob, and what becomes of it when it was turned.
    pub knob: Knob,
}

/// What setting an attribute does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Knob {
    /// It can't be set.
    No,
    /// Something happens, and that is all.
    Acts,
    /// It stays as long as the layer is in use.
    Stays,
    /// It is kept with the target, under this key of its settings.
    Kept(&'static str),
}

impl Attribute {
    /// One that only shows something.
    pub const fn shown(name: &'static str) -> Attribute {
        Attribute { name, knob: Knob::No }
    }

    pub const fn knob(name: &'static str, knob: Knob) -> Attribute {
        Attribute { name, knob }
    }
}

/// Why an attribute could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttributeError {
    #[error("no attribute `{name}`; there are {known}")]
    Unknown { name: String, known: String },
    #[error("`{0}` is read-only")]
    ReadOnly(String),
    #[error("`{name}` can't be set to `{value}`: {remedy}")]
    Value { name: &'static str, value: String, remedy: String },
}

impl AttributeError {
    /// There is no such attribute among these.
    pub fn unknown(name: &str, all: &[Attribute]) -> AttributeError {
        let known: Vec<&str> = all.iter().map(|a| a.name).collect();
        AttributeError::Unknown { name: name.into(), known: known.join(", ") }
    }
}

/// How a layer is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// So that the next mount finds everything at once.
    Clean,
    /// Nobody is going to mount it: everything is durable, and no more.
    Quiet,
}

/// How a layer was found on the medium.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovered {
    /// There was one; else the medium was empty.
    pub found: bool,
    /// Whether it had been stopped cleanly, where a stop leaves a mark.
    pub clean: Option<bool>,
    /// How it was found, in words.
    pub how: String,
    /// The same in numbers, by name.
    pub numbers: Map<String, Value>,
    /// The steps of the mount with the time that each took.
    pub steps: Vec<(&'static str, Ns)>,
    /// Sectors that could not be read, by place on what is below: the first, and how many.
    pub lost: Vec<(Location, u32)>,
    /// The first sector that the host could not give.
    pub host_failed: Option<Location>,
    /// Logical sectors whose content is lost: reads of them fail until they are written or
    /// discarded. In ascending order, without overlaps.
    pub lost_sectors: Vec<LostSectors>,
    /// Units at the end of an open chunk that can't be read. The mount takes each for a program
    /// that the power cut tore; a flushed unit that decayed there looks the same (FORMAT.md,
    /// section 9).
    pub torn_units: u64,
}

/// A range of logical sectors of which a mount knows that it has lost their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostSectors {
    pub first: u64,
    pub count: u64,
    pub cause: LostCause,
}

/// Why the content of logical sectors is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum LostCause {
    /// Their newest copy is on this PU, all chunks of which are offline.
    DeadPu(u32),
    /// Their newest copy is in this chunk of this PU, which is offline.
    OfflineChunk { pu: u32, chunk: u32 },
    /// Their newest copy can't be read, although its chunk is in use.
    Unreadable { pu: u32, chunk: u32 },
    /// They may have been written to a unit of which neither content nor records can be read. It is
    /// not known to which sectors that unit belonged, so every sector that may be older counts.
    MayBeOlder,
    /// An earlier mount or garbage collection found them lost, and noted it.
    Noted,
}

impl LostCause {
    /// Names of all kinds of causes, as [`LostCause::name`] gives them.
    pub const NAMES: [&'static str; 5] =
        ["dead_pu", "offline_chunk", "unreadable_chunk", "may_be_older", "noted"];

    /// Which kind of cause it is, without the place.
    pub fn name(self) -> &'static str {
        LostCause::NAMES[match self {
            LostCause::DeadPu(_) => 0,
            LostCause::OfflineChunk { .. } => 1,
            LostCause::Unreadable { .. } => 2,
            LostCause::MayBeOlder => 3,
            LostCause::Noted => 4,
        }]
    }

    /// This cause with PU and chunk numbers of the drive. The layer's first PU has the number
    /// `begin` there, and its first chunk `first`.
    pub fn on_drive(self, begin: u32, first: u32) -> LostCause {
        match self {
            LostCause::DeadPu(pu) => LostCause::DeadPu(begin + pu),
            LostCause::OfflineChunk { pu, chunk } => {
                LostCause::OfflineChunk { pu: begin + pu, chunk: first + chunk }
            }
            LostCause::Unreadable { pu, chunk } => {
                LostCause::Unreadable { pu: begin + pu, chunk: first + chunk }
            }
            LostCause::MayBeOlder | LostCause::Noted => self,
        }
    }
}

impl std::fmt::Display for LostCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            LostCause::DeadPu(pu) => write!(f, "PU {pu} is dead"),
            LostCause::OfflineChunk { pu, chunk } => {
                write!(f, "chunk {chunk} of PU {pu} is offline")
            }
            LostCause::Unreadable { pu, chunk } => {
                write!(f, "chunk {chunk} of PU {pu} can't be read there")
            }
            LostCause::MayBeOlder => f.write_str("a newer copy may be in units that can't be read"),
            LostCause::Noted => f.write_str("an earlier life found it lost"),
        }
    }
}

/// How a host FTL's lines are divided, in lines at the width that it was created with.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Lines {
    pub all: u64,
    /// Of those, kept free in steady state: the reserve (what is in the buffer, a victim), the room
    /// of the limiter, the line opened beforehand.
    pub kept_free: u64,
    /// Spare that garbage collection has: the share of the other lines' room above the logical
    /// capacity. Theory's write amplification is of this spare.
    pub effective_spare_ratio: f64,
}

/// A number that a report shows of a layer, beside what all layers have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Name, with its unit behind the last underscore where it has one.
    pub name: &'static str,
    pub value: u64,
}

pub trait Layer: Send + Sync {
    fn kind(&self) -> &'static dyn Kind;
    fn above(self: Arc<Self>) -> Seam;
    /// Its name among targets, where it has one.
    fn uuid(&self) -> Option<[u8; 16]> {
        None
    }
    /// The settings that it runs with.
    fn settings(&self) -> Settings;
    /// How it was found; nothing for one that was created.
    fn recovered(&self) -> Option<Recovered> {
        None
    }
    /// Counters, of a layer that programs flash.
    fn stats(&self) -> Option<FtlStats>;
    /// Where it stands, of a layer that programs flash.
    fn gauges(&self) -> Option<Gauges>;
    /// What cores have waited for, where they share anything.
    fn contention(&self, now: Ns) -> Option<Contention> {
        let _ = now;
        None
    }
    /// How its room is divided, where it is in lines.
    fn lines(&self) -> Option<Lines> {
        None
    }
    /// How many lines are in which state, where its room is in lines.
    fn line_states(&self) -> Vec<(String, u64)> {
        Vec::new()
    }
    /// What a report shows of it alone.
    fn counted(&self) -> Vec<Counted> {
        Vec::new()
    }
    /// What the sectors that it holds are to the file system on it, by kind, in sectors; nothing where it does not
    /// look at what it holds. It is a look at each sector: not for every moment.
    fn pages(&self) -> Vec<Counted> {
        Vec::new()
    }
    /// The same of a file system that nobody changes meanwhile: what is read tells more.
    fn pages_read<'a>(&'a self, cx: &'a Cx) -> Later<'a, Vec<Counted>> {
        let _ = cx;
        Box::pin(std::future::ready(self.pages()))
    }
    /// Where on its part of the device the newest content of a logical sector lies; nothing where it does not
    /// lie there, or the layer does not place sectors.
    fn locate(&self, lba: u64) -> Option<Location> {
        let _ = lba;
        None
    }
    /// The measured part of a run begins: largest values are of what comes now.
    fn measure(&self) {}
    /// What it has to say to people since it was asked last, in sentences.
    fn said(&self) -> Vec<String> {
        Vec::new()
    }
    /// The text of an attribute.
    ///
    /// # Errors
    /// There is none of that name.
    fn attribute(&self, name: &str) -> Result<String, AttributeError> {
        Err(AttributeError::unknown(name, self.kind().attributes()))
    }
    /// Writes an attribute. What is refused has changed nothing.
    ///
    /// # Errors
    /// There is none of that name, it can't be written, or does not take the value.
    fn set_attribute(&self, cx: &Cx, name: &str, value: &str) -> Result<(), AttributeError> {
        let _ = (cx, value);
        Err(AttributeError::unknown(name, self.kind().attributes()))
    }
    /// Nothing goes on any more. If a knob holds it up, that is turned back, and what it was is said.
    fn unstick(&self, cx: &Cx) -> Option<String> {
        let _ = cx;
        None
    }
    /// What somebody may do to a layer in use that is not a request, chosen by a number: a torture
    /// does it at any time.
    fn meddle<'a>(self: Arc<Self>, cx: &'a Cx, draw: u64) -> Later<'a, ()> {
        let _ = (cx, draw);
        Box::pin(std::future::ready(()))
    }
    /// It discards sectors that the host has not discarded.
    fn discards(&self) -> bool {
        false
    }
    /// What it acknowledges is durable.
    fn acks_are_durable(&self) -> bool;
    /// Each power cut may take room from it, so that in the end it has none.
    fn cuts_take_room(&self) -> bool;
    /// Of a layer that was stopped: the next mount knows what was where although one PU has died
    /// since.
    fn outlives_a_pu(&self) -> bool {
        true
    }
    /// Nothing can be made durable any more, and why.
    fn read_only(&self) -> Option<&'static str>;
    /// Has everything that was acknowledged on what is below, after a flush. Where a flush does not
    /// do that, no writes are taken afterwards.
    fn drain<'a>(&'a self, cx: &'a Cx) -> Later<'a, ()>;
    /// Makes everything durable and ends the background tasks. It takes no request afterwards.
    ///
    /// # Errors
    /// What was acknowledged could not all be made durable.
    fn stop<'a>(self: Arc<Self>, cx: &'a Cx, how: Stop) -> Later<'a, Result<(), BlockError>>;
    /// Looks through its tables, with no request under way: whether they agree with each other.
    ///
    /// # Errors
    /// They do not, and where.
    fn walk(&self) -> Result<(), String>;
    /// Its state in a line, for who looks at a hang.
    fn state(&self) -> String;
    /// The power goes: what it keeps of itself.
    fn power_lost(&self) -> Option<Saved>;
}
