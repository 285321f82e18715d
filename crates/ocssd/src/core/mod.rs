//! The LightNVM core: who owns which PUs, and which chunks of them, of which device.
//!
//! Owns: [`Core`], its devices and the targets on them. Promises: two targets never share a chunk; a
//! name is used once over all devices; a create that fails at any step leaves nothing behind; a
//! removed target's handle reaches the device no more; on an image ([`Core::on_image`]) every change
//! of the table is durable before it counts. Never: knows what a target does with its
//! PUs (pblk and QBLK are started by their own crate on the [`Partition`] given here).
//!
//! On an image a target is made in three steps: an entry "being created", then whatever lies on its
//! PUs, then the entry with its uuid. A process that dies in between leaves an entry that says so; it
//! can be removed, or created again. Removing takes the entry first.
//!
//! Requirements L1, L2, L4; hard cases L01 to L12 of the facts sheet.

mod partition;
mod stream;
mod table;

pub use partition::Partition;
pub use stream::{Stream, StreamError};
pub use table::{TableError, Version, uuid_text};

use crate::device::Device;
use crate::ssd::Ssd;
use flashlane_base::{Geometry, mutant};
use flashlane_rt::sync::Mutex;
use serde_json::Value;
use std::fmt;
use std::sync::Arc;

/// Which PUs of a device a target may have: what runs on them says it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pus {
    /// Any in a row.
    Any,
    /// As many of each channel that they are on.
    Balanced,
    Whole,
}

/// How far a target has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TargetState {
    /// Its making began and has not ended, or never will.
    BeingCreated,
    /// It can be used.
    Ready,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// Device; the first one when it is left out.
    pub device: Option<String>,
    /// Name, unique over all devices.
    pub name: String,
    /// What runs on it, by name; nothing but an application on a raw one.
    pub kind: String,
    pub pus: Pus,
    /// First PU; the device's first when it is left out.
    pub begin: Option<u32>,
    /// Last PU; the device's last when it is left out.
    pub end: Option<u32>,
    /// First and last chunk of each of them; all when it is left out.
    pub chunks: Option<(u32, u32)>,
    /// Over-provisioning in percent, 3 to 80; the target's default when it is left out.
    pub over_provisioning: Option<u32>,
    /// Ignore what is on the medium.
    pub factory: bool,
    /// What else its kind wants to be told; kept with the target.
    pub settings: Value,
}

impl TargetSpec {
    /// A target of the whole first device with defaults for the rest.
    pub fn new(name: impl Into<String>, kind: impl Into<String>, pus: Pus) -> TargetSpec {
        TargetSpec {
            device: None,
            name: name.into(),
            kind: kind.into(),
            pus,
            begin: None,
            end: None,
            chunks: None,
            over_provisioning: None,
            factory: false,
            settings: Value::Null,
        }
    }

    /// On these PUs only.
    pub fn on(mut self, begin: u32, end: u32) -> TargetSpec {
        (self.begin, self.end) = (Some(begin), Some(end));
        self
    }

    /// On these chunks of its PUs only, first and last.
    pub fn on_chunks(mut self, first: u32, last: u32) -> TargetSpec {
        self.chunks = Some((first, last));
        self
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    pub device: String,
    pub name: String,
    /// What runs on it, by name; perhaps nothing that this program knows.
    pub kind: String,
    /// First PU of the device.
    pub begin: u32,
    /// Last PU of the device.
    pub end: u32,
    /// First and last chunk of each of them, where not all.
    pub chunks: Option<(u32, u32)>,
    /// Over-provisioning in percent, where one was asked for.
    pub over_provisioning: Option<u32>,
    /// What is on the medium was to be ignored.
    pub factory: bool,
    /// How far it has come.
    pub state: TargetState,
    /// What lies on its PUs calls itself so.
    pub uuid: Option<[u8; 16]>,
    /// What else its kind was told.
    pub settings: Value,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    #[error(
        "`{0}` is no name for a target: 1 to 31 letters, digits, `-`, `_` or `.`, and neither `.` nor \
         `..`"
    )]
    Name(String),
    #[error("the name `{name}` is taken by a target on device `{device}`")]
    Taken { name: String, device: String },
    #[error("there is no device `{name}` (there are: {known})")]
    Device { name: String, known: String },
    #[error("there is a device `{0}` already")]
    DeviceTaken(String),
    #[error("PUs {begin} to {end} are no range of the device's 0 to {last}")]
    Range { begin: u32, end: u32, last: u32 },
    #[error("chunks {begin} to {end} are no range of a PU's 0 to {last}")]
    Chunks {
        begin: u32,
        end: u32,
        /// The last chunk of a PU.
        last: u32,
    },
    /// A PU, or a chunk of it, belongs to another target.
    #[error("PU {pu} is busy: it belongs to target `{owner}`")]
    Busy { pu: u32, owner: String },
    /// Over-provisioning outside 3 to 80 percent.
    #[error("over-provisioning of {0} % is not between 3 and 80 %")]
    OverProvisioning(u32),
    #[error(
        "PUs {begin} to {end} cover channels unevenly, which a {kind} target cannot use; end on a \
         channel boundary or stay inside one channel"
    )]
    Unbalanced {
        begin: u32,
        end: u32,
        /// What was to run there.
        kind: String,
    },
    /// A kind that takes the whole device, on a part of it.
    #[error("a {kind} target takes the whole device, PUs 0 to {last} with all their chunks")]
    Whole {
        /// What was to run there.
        kind: String,
        last: u32,
    },
    #[error("there is no target `{0}`")]
    NoTarget(String),
    #[error(transparent)]
    Table(#[from] TableError),
    /// The table could not be written; it is as before.
    #[error("the table of targets could not be written: {problem}")]
    Save { problem: String },
    #[error("target `{name}` has {commands} commands under way; wait for them, then remove it")]
    InFlight { name: String, commands: u64 },
    #[error("target `{name}` did not start: {problem}")]
    Init { name: String, problem: String },
}

struct Attached {
    name: String,
    device: Arc<dyn Device>,
}

#[derive(Clone)]
struct Target {
    info: TargetInfo,
    part: Arc<Partition>,
    /// Somebody in this process is making it.
    in_the_making: bool,
}

/// The image that keeps a table.
struct Kept {
    ssd: Arc<Ssd>,
    /// The table's version, if that is a newer one.
    newer: Option<table::Version>,
}

#[derive(Default)]
struct State {
    devices: Vec<Attached>,
    targets: Vec<Target>,
    /// Who keeps the table.
    image: Option<Kept>,
}

impl State {
    /// Has the image keep `targets`, then has them in place of the ones before.
    fn set(&mut self, targets: Vec<Target>) -> Result<(), CoreError> {
        if let Some(Kept { ssd, newer }) = &self.image {
            if let Some(version) = *newer {
                return Err(TableError::NewerMinor { version }.into());
            }
            let entries: Vec<_> = targets.iter().map(|t| entry(&t.info)).collect();
            ssd.set_targets(&table::encode(&entries))
                .map_err(|e| CoreError::Save { problem: e.to_string() })?;
        }
        self.targets = targets;
        Ok(())
    }
}

fn entry(info: &TargetInfo) -> table::Entry {
    table::Entry {
        name: info.name.clone(),
        kind: info.kind.clone(),
        begin: info.begin,
        end: info.end,
        chunks: info.chunks,
        over_provisioning: info.over_provisioning,
        state: table::Entry::state(info.state),
        uuid: info.uuid.as_ref().map(uuid_text),
        settings: info.settings.clone(),
    }
}

/// Devices and the targets on them.
#[derive(Default)]
pub struct Core {
    state: Mutex<State>,
}

impl Core {
    /// A core with one device, called `flash0`.
    pub fn new(device: Arc<dyn Device>) -> Core {
        let core = Core::default();
        core.state.lock().devices.push(Attached { name: "flash0".into(), device });
        core
    }

    /// A core with one device, `flash0`, that lives in an image: its targets are those in the image's
    /// table, and every change is durable when it returns.
    ///
    /// # Errors
    /// The table is damaged, newer, or makes no sense on this device.
    pub fn on_image(ssd: Arc<Ssd>) -> Result<Core, CoreError> {
        let device: Arc<dyn Device> = ssd.clone();
        let Geometry { chunks_per_pu, .. } = *device.geometry();
        let (pus, all) = (device.geometry().pus(), (0, chunks_per_pu - 1));
        let (entries, newer) = table::decode(&ssd.targets(), pus, chunks_per_pu)?;
        let core = Core::new(device.clone());
        {
            let mut state = core.state.lock();
            for e in entries {
                let (how_far, uuid) = e.parse(pus, chunks_per_pu)?;
                let info = TargetInfo {
                    device: "flash0".into(),
                    name: e.name,
                    kind: e.kind,
                    begin: e.begin,
                    end: e.end,
                    chunks: e.chunks,
                    over_provisioning: e.over_provisioning,
                    factory: false,
                    state: how_far,
                    uuid,
                    settings: e.settings,
                };
                let (pus, chunks) = ((e.begin, e.end), e.chunks.unwrap_or(all));
                let part = Arc::new(Partition::of_chunks(device.clone(), pus, chunks));
                state.targets.push(Target { info, part, in_the_making: false });
            }
            state.image = Some(Kept { ssd, newer });
        }
        Ok(core)
    }

    pub fn add_device(&self, name: &str, device: Arc<dyn Device>) -> Result<(), CoreError> {
        let mut state = self.state.lock();
        if state.devices.iter().any(|d| d.name == name) {
            return Err(CoreError::DeviceTaken(name.into()));
        }
        state.devices.push(Attached { name: name.into(), device });
        Ok(())
    }

    pub fn devices(&self) -> Vec<String> {
        let state = self.state.lock();
        state.devices.iter().map(|d| d.name.clone()).collect()
    }

    pub fn device(&self, name: &str) -> Option<Arc<dyn Device>> {
        let state = self.state.lock();
        let found = state.devices.iter().find(|d| d.name == name);
        found.map(|d| d.device.clone())
    }

    /// Creates a target and gives its part of the device.
    pub fn create(&self, spec: &TargetSpec) -> Result<Arc<Partition>, CoreError> {
        self.create_with(spec, |_| Ok::<(), std::convert::Infallible>(()))
    }

    /// Creates a target that starts something on its part; when that fails, nothing remains.
    pub fn create_with<E: fmt::Display>(
        &self,
        spec: &TargetSpec,
        init: impl FnOnce(&Arc<Partition>) -> Result<(), E>,
    ) -> Result<Arc<Partition>, CoreError> {
        let part = self.begin(spec)?;
        // Not under the lock: a target's start may ask the core.
        match init(&part) {
            Ok(()) => self.complete(&spec.name, None, spec.settings.clone()).map(|()| part),
            Err(e) => {
                self.abandon(&spec.name)?;
                Err(CoreError::Init { name: spec.name.clone(), problem: e.to_string() })
            }
        }
    }

    /// The first step of a create: the PUs are taken, the entry says "being created". An entry of
    /// that name whose making never ended is replaced. End it with [`Core::complete`] or
    /// [`Core::abandon`].
    ///
    /// # Errors
    /// What was asked for cannot be, or the image could not be written: nothing has changed.
    pub fn begin(&self, spec: &TargetSpec) -> Result<Arc<Partition>, CoreError> {
        self.reserve(spec)
    }

    /// The last step of a create: the target can be used.
    ///
    /// # Errors
    /// No such target, or the image could not be written: it stays in the making.
    pub fn complete(
        &self,
        name: &str,
        uuid: Option<[u8; 16]>,
        settings: Value,
    ) -> Result<(), CoreError> {
        let mut state = self.state.lock();
        let mut targets = state.targets.clone();
        let found = targets.iter_mut().find(|t| t.info.name == name);
        let target = found.ok_or_else(|| CoreError::NoTarget(name.into()))?;
        target.in_the_making = false;
        (target.info.state, target.info.uuid) = (TargetState::Ready, uuid);
        target.info.settings = settings;
        state.set(targets)
    }

    /// Keeps other settings for a target; its kind says what they mean, and when they count.
    ///
    /// # Errors
    /// No such target, or the image could not be written: the old ones stay.
    pub fn set_settings(&self, name: &str, settings: Value) -> Result<(), CoreError> {
        let mut state = self.state.lock();
        let mut targets = state.targets.clone();
        let found = targets.iter_mut().find(|t| t.info.name == name);
        found.ok_or_else(|| CoreError::NoTarget(name.into()))?.info.settings = settings;
        state.set(targets)
    }

    /// The end of a create that failed: its entry goes, its part of the device is closed.
    ///
    /// # Errors
    /// The image could not be written: the entry stays, "being created".
    pub fn abandon(&self, name: &str) -> Result<(), CoreError> {
        let mut state = self.state.lock();
        let (gone, kept) = state.targets.clone().into_iter().partition(|t| t.info.name == name);
        let gone: Vec<Target> = gone;
        gone.iter().for_each(|t| t.part.close());
        state.set(kept)
    }

    /// All checks, then the reservation, in one go: nothing is set before everything is right.
    fn reserve(&self, spec: &TargetSpec) -> Result<Arc<Partition>, CoreError> {
        let mut state = self.state.lock();
        check_new_name(&spec.name)?;
        let mut targets = state.targets.clone();
        let left = |t: &Target| t.info.state == TargetState::BeingCreated && !t.in_the_making;
        targets.retain(|t| t.info.name != spec.name || !left(t));
        if let Some(t) = targets.iter().find(|t| t.info.name == spec.name) {
            return Err(CoreError::Taken {
                name: spec.name.clone(),
                device: t.info.device.clone(),
            });
        }
        if let Some(op) = spec.over_provisioning.filter(|op| !(3..=80).contains(op)) {
            return Err(CoreError::OverProvisioning(op));
        }
        let attached = find_device(&state.devices, spec.device.as_deref())?;
        let last = attached.device.geometry().pus() - 1;
        let (begin, end) = (spec.begin.unwrap_or(0), spec.end.unwrap_or(last));
        if begin > end || end > last {
            return Err(CoreError::Range { begin, end, last });
        }
        let last_chunk = attached.device.geometry().chunks_per_pu - 1;
        let all_chunks = (0, last_chunk);
        let chunks = spec.chunks.unwrap_or(all_chunks);
        if chunks.0 > chunks.1 || chunks.1 > last_chunk {
            let (begin, end) = chunks;
            return Err(CoreError::Chunks { begin, end, last: last_chunk });
        }
        let overlap = |t: &&Target| {
            let i = &t.info;
            let theirs = t.part.chunks();
            let both = theirs.0 <= chunks.1 && chunks.0 <= theirs.1;
            let both = both && !(mutant!("image.targets-share-chunks") && spec.chunks.is_some());
            i.device == attached.name && i.begin <= end && begin <= i.end && both
        };
        if let Some(t) = targets.iter().find(overlap) {
            return Err(CoreError::Busy {
                pu: begin.max(t.info.begin),
                owner: t.info.name.clone(),
            });
        }
        let part = Arc::new(Partition::of_chunks(attached.device.clone(), (begin, end), chunks));
        let kind = spec.kind.clone();
        match spec.pus {
            Pus::Balanced if !part.balanced() => {
                return Err(CoreError::Unbalanced { begin, end, kind });
            }
            Pus::Whole if (begin, end, chunks) != (0, last, all_chunks) => {
                return Err(CoreError::Whole { kind, last });
            }
            Pus::Any | Pus::Balanced | Pus::Whole => {}
        }
        let info = TargetInfo {
            device: attached.name.clone(),
            name: spec.name.clone(),
            kind,
            begin,
            end,
            chunks: Some(chunks).filter(|chunks| *chunks != all_chunks),
            over_provisioning: spec.over_provisioning,
            factory: spec.factory,
            state: match mutant!("image.target-ready-early") {
                true => TargetState::Ready,
                false => TargetState::BeingCreated,
            },
            uuid: None,
            settings: spec.settings.clone(),
        };
        targets.push(Target { info, part: part.clone(), in_the_making: true });
        match mutant!("image.target-unentered") {
            true => state.targets = targets,
            false => state.set(targets)?,
        }
        Ok(part)
    }

    /// Removes a target. Commands under way refuse it: wait for them first.
    pub fn remove(&self, name: &str) -> Result<TargetInfo, CoreError> {
        let mut state = self.state.lock();
        let found = state.targets.iter().position(|t| t.info.name == name);
        let Some(at) = found else {
            return Err(CoreError::NoTarget(name.into()));
        };
        let commands = state.targets[at].part.in_flight();
        if commands != 0 {
            return Err(CoreError::InFlight { name: name.into(), commands });
        }
        let mut targets = state.targets.clone();
        let gone = targets.remove(at);
        match mutant!("image.target-removed-late") {
            true => state.targets = targets,
            false => state.set(targets)?,
        }
        gone.part.close();
        Ok(gone.info)
    }

    /// All targets, in the order in which they were created.
    pub fn list(&self) -> Vec<TargetInfo> {
        let state = self.state.lock();
        state.targets.iter().map(|t| t.info.clone()).collect()
    }

    /// A target's part of its device.
    pub fn open(&self, name: &str) -> Result<Arc<Partition>, CoreError> {
        let state = self.state.lock();
        let found = state.targets.iter().find(|t| t.info.name == name);
        found.map(|t| t.part.clone()).ok_or_else(|| CoreError::NoTarget(name.into()))
    }

    /// Which target owns a chunk of a PU of a device.
    pub fn owner(&self, device: &str, pu: u32, chunk: u32) -> Option<String> {
        let state = self.state.lock();
        let owns = |t: &&Target| {
            let ((begin, end), (first, last)) = (t.part.range(), t.part.chunks());
            let ours = (begin..=end).contains(&pu) && (first..=last).contains(&chunk);
            t.info.device == device && ours
        };
        state.targets.iter().find(owns).map(|t| t.info.name.clone())
    }
}

fn find_device<'a>(all: &'a [Attached], name: Option<&str>) -> Result<&'a Attached, CoreError> {
    let found = match name {
        None => all.first(),
        Some(name) => all.iter().find(|d| d.name == name),
    };
    found.ok_or_else(|| CoreError::Device {
        name: name.unwrap_or("").into(),
        known: all.iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(", "),
    })
}

/// No target is made under a name that stands for a folder in a path. An older image may have one.
fn check_new_name(name: &str) -> Result<(), CoreError> {
    match name {
        "." | ".." => Err(CoreError::Name(name.into())),
        name => check_name(name),
    }
}

/// 31 characters, as a disk name of Linux has.
fn check_name(name: &str) -> Result<(), CoreError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    match (1..=31).contains(&name.len()) && name.bytes().all(good) {
        true => Ok(()),
        false => Err(CoreError::Name(name.into())),
    }
}
