//! The LightNVM core: who owns which PUs of which device.
//!
//! Owns: [`Core`], its devices and the targets on them. Promises: two targets never share a PU; a
//! name is used once over all devices; a create that fails at any step leaves nothing behind; a
//! removed target's handle reaches the device no more. Never: knows what a target does with its
//! PUs (pblk and QBLK are started by their own crate on the [`Partition`] given here).
//!
//! Requirements L1, L2, L4; hard cases L01 to L12 of the facts sheet.

mod partition;
mod stream;

pub use partition::Partition;
pub use stream::{Stream, StreamError};

use crate::device::Device;
use flashlane_rt::sync::Mutex;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// What runs on a target's PUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TargetKind {
    /// Nothing: an application manages the flash itself.
    Raw,
    /// The host FTL of the LightNVM paper.
    Pblk,
    /// QBLK.
    Qblk,
}

impl TargetKind {
    /// All kinds, by name.
    pub const ALL: [(&'static str, TargetKind); 3] =
        [("raw", TargetKind::Raw), ("pblk", TargetKind::Pblk), ("qblk", TargetKind::Qblk)];
}

impl FromStr for TargetKind {
    type Err = CoreError;
    fn from_str(s: &str) -> Result<TargetKind, CoreError> {
        let found = TargetKind::ALL.iter().find(|(name, _)| *name == s);
        found.map(|(_, kind)| *kind).ok_or_else(|| CoreError::Kind(s.into()))
    }
}

impl fmt::Display for TargetKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = TargetKind::ALL.iter().find(|(_, kind)| kind == self);
        f.write_str(name.map_or("", |(name, _)| name))
    }
}

/// A target to be created.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSpec {
    /// Device; the first one when it is left out.
    pub device: Option<String>,
    /// Name, unique over all devices.
    pub name: String,
    /// What runs on it.
    pub kind: TargetKind,
    /// First PU; the device's first when it is left out.
    pub begin: Option<u32>,
    /// Last PU; the device's last when it is left out.
    pub end: Option<u32>,
    /// Over-provisioning in percent, 3 to 80; the target's default when it is left out.
    pub over_provisioning: Option<u32>,
    /// Ignore what is on the medium.
    pub factory: bool,
}

impl TargetSpec {
    /// A target of the whole first device with defaults for the rest.
    pub fn new(name: impl Into<String>, kind: TargetKind) -> TargetSpec {
        TargetSpec {
            device: None,
            name: name.into(),
            kind,
            begin: None,
            end: None,
            over_provisioning: None,
            factory: false,
        }
    }

    /// On these PUs only.
    pub fn on(mut self, begin: u32, end: u32) -> TargetSpec {
        (self.begin, self.end) = (Some(begin), Some(end));
        self
    }
}

/// A target that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetInfo {
    /// Device.
    pub device: String,
    /// Name.
    pub name: String,
    /// What runs on it.
    pub kind: TargetKind,
    /// First PU of the device.
    pub begin: u32,
    /// Last PU of the device.
    pub end: u32,
    /// Over-provisioning in percent, where one was asked for.
    pub over_provisioning: Option<u32>,
    /// What is on the medium was to be ignored.
    pub factory: bool,
}

/// Why the core refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// A name that cannot be.
    #[error("`{0}` is no name for a target: 1 to 31 letters, digits, `-`, `_` or `.`")]
    Name(String),
    /// The name is in use.
    #[error("the name `{name}` is taken by a target on device `{device}`")]
    Taken {
        /// The name.
        name: String,
        /// Where it is used.
        device: String,
    },
    /// No such kind of target.
    #[error("there is no target type `{0}` (raw, pblk, qblk)")]
    Kind(String),
    /// No such device.
    #[error("there is no device `{name}` (there are: {known})")]
    Device {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The name of a device is in use.
    #[error("there is a device `{0}` already")]
    DeviceTaken(String),
    /// A range that is none.
    #[error("PUs {begin} to {end} are no range of the device's 0 to {last}")]
    Range {
        /// First PU.
        begin: u32,
        /// Last PU.
        end: u32,
        /// The device's last PU.
        last: u32,
    },
    /// A PU belongs to another target.
    #[error("PU {pu} is busy: it belongs to target `{owner}`")]
    Busy {
        /// First PU in question.
        pu: u32,
        /// Whose it is.
        owner: String,
    },
    /// Over-provisioning outside 3 to 80 percent.
    #[error("over-provisioning of {0} % is not between 3 and 80 %")]
    OverProvisioning(u32),
    /// Channels with unequal numbers of PUs.
    #[error(
        "PUs {begin} to {end} cover channels unevenly, which a {kind} target cannot use; end on a \
         channel boundary or stay inside one channel"
    )]
    Unbalanced {
        /// First PU.
        begin: u32,
        /// Last PU.
        end: u32,
        /// What was to run there.
        kind: TargetKind,
    },
    /// No such target.
    #[error("there is no target `{0}`")]
    NoTarget(String),
    /// Commands are under way.
    #[error("target `{name}` has {commands} commands under way; wait for them, then remove it")]
    InFlight {
        /// The target.
        name: String,
        /// How many.
        commands: u64,
    },
    /// The target itself could not start.
    #[error("target `{name}` did not start: {problem}")]
    Init {
        /// The target.
        name: String,
        /// What it said.
        problem: String,
    },
}

struct Attached {
    name: String,
    device: Arc<dyn Device>,
}

struct Target {
    info: TargetInfo,
    part: Arc<Partition>,
}

#[derive(Default)]
struct State {
    devices: Vec<Attached>,
    targets: Vec<Target>,
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

    /// Adds a device.
    pub fn add_device(&self, name: &str, device: Arc<dyn Device>) -> Result<(), CoreError> {
        let mut state = self.state.lock();
        if state.devices.iter().any(|d| d.name == name) {
            return Err(CoreError::DeviceTaken(name.into()));
        }
        state.devices.push(Attached { name: name.into(), device });
        Ok(())
    }

    /// Names of the devices.
    pub fn devices(&self) -> Vec<String> {
        let state = self.state.lock();
        state.devices.iter().map(|d| d.name.clone()).collect()
    }

    /// A device by name.
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
        let part = self.reserve(spec)?;
        // Not under the lock: a target's start may ask the core.
        match init(&part) {
            Ok(()) => Ok(part),
            Err(e) => {
                part.close();
                self.state.lock().targets.retain(|t| t.info.name != spec.name);
                Err(CoreError::Init { name: spec.name.clone(), problem: e.to_string() })
            }
        }
    }

    /// All checks, then the reservation, in one go: nothing is set before everything is right.
    fn reserve(&self, spec: &TargetSpec) -> Result<Arc<Partition>, CoreError> {
        let mut state = self.state.lock();
        check_name(&spec.name)?;
        if let Some(t) = state.targets.iter().find(|t| t.info.name == spec.name) {
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
        let overlap = |t: &&Target| {
            let i = &t.info;
            i.device == attached.name && i.begin <= end && begin <= i.end
        };
        if let Some(t) = state.targets.iter().find(overlap) {
            return Err(CoreError::Busy {
                pu: begin.max(t.info.begin),
                owner: t.info.name.clone(),
            });
        }
        let part = Arc::new(Partition::new(attached.device.clone(), begin, end));
        if !part.balanced() && spec.kind != TargetKind::Raw {
            return Err(CoreError::Unbalanced { begin, end, kind: spec.kind });
        }
        let info = TargetInfo {
            device: attached.name.clone(),
            name: spec.name.clone(),
            kind: spec.kind,
            begin,
            end,
            over_provisioning: spec.over_provisioning,
            factory: spec.factory,
        };
        state.targets.push(Target { info, part: part.clone() });
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
        state.targets[at].part.close();
        Ok(state.targets.remove(at).info)
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

    /// Which target owns a PU of a device.
    pub fn owner(&self, device: &str, pu: u32) -> Option<String> {
        let state = self.state.lock();
        let owns =
            |t: &&Target| t.info.device == device && (t.info.begin..=t.info.end).contains(&pu);
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

/// 31 characters, as a disk name of Linux has.
fn check_name(name: &str) -> Result<(), CoreError> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    match (1..=31).contains(&name.len()) && name.bytes().all(good) {
        true => Ok(()),
        false => Err(CoreError::Name(name.into())),
    }
}
