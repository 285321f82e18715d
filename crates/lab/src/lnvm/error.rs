//! What can be wrong when targets are handled.
//!
//! Owns: [`LnvmError`] and its words. Promises: each names the image, and what would do. Never: decides
//! anything.

use super::TargetType;
use crate::control::{ControlError, MayBeHeld};
use crate::stack::StackError;
use flashlane_ftl::layer::AttributeError;
use flashlane_ocssd::{CoreError, ImageError};
use flashlane_rt::Stalled;
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
        "{}: what is on PUs {begin} to {end} can't be taken over: {source}{}", path.display(),
        remedy(host.as_deref())
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
        /// What the host could not do.
        host: Option<String>,
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
    /// The target that was found has another setting than asked for.
    #[error(
        "{}: the target on these PUs has {flag} {found}: leave {flag} out to take it over{}, or give -f to \
         make a new one, which gives its data up", path.display(), if *later { LATER } else { "" }
    )]
    OtherSetting {
        /// The image.
        path: PathBuf,
        /// The option.
        flag: String,
        /// What it would be for what was found.
        found: String,
        /// It is a knob.
        later: bool,
    },
    /// What was found is of another type.
    #[error(
        "{}: the target on PUs {begin} to {end} is of type {found}: give `-t {found}` to take it over, or \
         -f to make a new one, which gives its data up",
        path.display()
    )]
    OtherType {
        /// The image.
        path: PathBuf,
        /// Its first PU.
        begin: u32,
        /// Its last PU.
        end: u32,
        /// Its type.
        found: &'static str,
    },
    /// An option of another type of target.
    #[error("{flag} is for pblk targets, not for {kind}")]
    Misplaced {
        /// The option.
        flag: String,
        /// The type that was asked for.
        kind: TargetType,
    },
    /// Options that do not go together.
    #[error("a {kind} target can't be so: {says}")]
    Option {
        /// The type that was asked for.
        kind: TargetType,
        /// Why.
        says: String,
    },
    /// The name of a target that is there.
    #[error(
        "{}: there is a target `{name}` already: give the new one another name, or remove that one \
         (`flashlane lnvm remove`)", path.display()
    )]
    Taken {
        /// The image.
        path: PathBuf,
        /// The name.
        name: String,
    },
    /// A run on a drive that names none of several targets, or more than one.
    #[error("{}: a run on a drive is on one target: name it with --target ({known})", path.display())]
    WhichTarget {
        /// The image.
        path: PathBuf,
        /// What there is.
        known: String,
    },
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
    /// Media managers: there is one.
    #[error("there is no media manager `{0}`; the kernel had one, gennvm")]
    MediaManager(String),
    /// Namespaces: there is one.
    #[error("there is no namespace {0}: a drive has one, number 1")]
    Namespace(u32),
    /// Tables per PU are of the 1.2 interface.
    #[error("`{verb}` is for devices of the 1.2 interface, this is one of 2.0: use chunk-log")]
    Style {
        /// What was asked for.
        verb: &'static str,
    },
    /// A knob that its target does not have, or a value that it does not take.
    #[error("{}: target `{name}`: {source}", path.display())]
    Knob {
        /// The image.
        path: PathBuf,
        /// The target.
        name: String,
        /// Why.
        source: AttributeError,
    },
    /// A knob that is to be set to two values.
    #[error("a knob is given twice: each has one value")]
    KnobTwice,
    /// A target of a type without knobs.
    #[error("{}: target `{name}` is of type {kind}, which has no knobs", path.display())]
    NoKnobs {
        /// The image.
        path: PathBuf,
        /// The target.
        name: String,
        /// Its type.
        kind: String,
    },
    /// A target that is just being mounted.
    #[error("{}: target `{name}` is being mounted; try again", path.display())]
    Mounting {
        /// The image.
        path: PathBuf,
        /// The target.
        name: String,
    },
    /// A knob that does something once.
    #[error(
        "{}: `{knob}` does something to target `{name}` once, while it is in use; now it is not",
        path.display()
    )]
    AtRest {
        /// The image.
        path: PathBuf,
        /// The target.
        name: String,
        /// The knob.
        knob: &'static str,
    },
    /// The process that has the drive open.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A bug of ours.
    #[error("{0}")]
    Stalled(#[from] Stalled),
}

/// A setting that is a knob can be turned later.
const LATER: &str = " (`flashlane lnvm knobs` turns it afterwards)";

impl MayBeHeld for LnvmError {
    fn is_held(&self) -> bool {
        matches!(self, LnvmError::Image(e) if e.is_held())
    }
}
