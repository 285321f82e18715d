//! Verbs on a drive: each has one answer, whoever has the drive open.
//!
//! Owns: what each question ([`Ask`]) does on an open drive, at rest and in use ([`answer`]), and who is
//! asked ([`ask`]). Promises: a question that only looks writes nothing to a drive at rest, and changes
//! nothing of a run; what is refused has changed nothing; a target in use is not removed. Never: knows how
//! a question reaches the process that has the drive open (the control socket does), or prints.

use crate::control::live::InUse;
use crate::control::{Answer, Ask, ControlError, ask_holder};
use crate::drive::{DriveError, Look, faults};
use crate::lnvm::{Block, Drive, LnvmError, bad_blocks, knobs, remove, show};
use crate::tap::TapError;
use crate::trace::Recording;
use flashlane_ocssd::{CopyKind, ImageError, copy_image};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Why a verb was not done. Nothing has changed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbError {
    #[error(transparent)]
    Drive(#[from] DriveError),
    #[error(transparent)]
    Lnvm(#[from] LnvmError),
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A verb that is about a use, on a drive at rest.
    #[error("{}: nobody uses the drive{remedy}", path.display())]
    AtRest { path: PathBuf, remedy: &'static str },
    #[error("{}: process {process} can't go on without the drive's power", path.display())]
    NeedsPower { path: PathBuf, process: u32 },
    #[error(
        "{}: target `{target}` is in use by process {process}: it can be removed when that has ended",
        path.display()
    )]
    InUse { path: PathBuf, target: String, process: u32 },
    #[error("{}: target `{target}`: {source}", path.display())]
    Record { path: PathBuf, target: String, source: TapError },
    #[error("{}: {problem}", path.display())]
    Target { path: PathBuf, problem: String },
}

impl From<ImageError> for VerbError {
    fn from(e: ImageError) -> VerbError {
        DriveError::from(e).into()
    }
}

impl VerbError {
    /// Another process has the drive open.
    fn is_held(&self) -> bool {
        match self {
            VerbError::Drive(e) => e.is_held(),
            VerbError::Lnvm(e) => e.is_held(),
            _ => false,
        }
    }
}

/// How often an image is looked at whose holder does not listen, and the time between.
const TRIES: u32 = 10;
const BETWEEN: Duration = Duration::from_millis(50);

/// Does a verb on a drive, or has the process do it that has the drive open.
///
/// # Errors
/// There is no such drive, it can't be done, or it is in use and nobody answers.
pub fn ask(image: &Path, ask: &Ask) -> Result<Answer, VerbError> {
    for _ in 0..TRIES {
        match at_rest(image, ask) {
            Err(held) if held.is_held() => {}
            done => return done,
        }
        match ask_holder(image, ask) {
            // It is about to listen, or to give the image back; or it never listens.
            Err(ControlError::Nobody { .. }) => {}
            answered => return Ok(answered?),
        }
        #[allow(clippy::disallowed_methods)] // for another process
        std::thread::sleep(BETWEEN);
    }
    // Then the image says who has it.
    at_rest(image, ask)
}

/// Opens the image as the verb needs it, and answers.
fn at_rest(image: &Path, ask: &Ask) -> Result<Answer, VerbError> {
    let does_change = match ask {
        // The file is copied as it is, whatever state its tables are in.
        Ask::Copy { to, clone } => {
            copy_image(image, to, kind_of_copy(*clone))?;
            return Ok(Answer::default());
        }
        Ask::Inject { plan } => {
            // Not opened for writing before it is known that it can be done.
            faults::plan_of(plan)?;
            faults::check_kept(&Drive::look(image)?)?;
            true
        }
        Ask::Knobs { set, .. } => !set.is_empty(),
        Ask::ClearFaults | Ask::SetBadBlock { .. } | Ask::Remove { .. } => true,
        _ => false,
    };
    match does_change {
        true => Drive::change(image, |drive| answer(drive, ask, None)),
        false => answer(&Drive::look(image)?, ask, None),
    }
}

fn kind_of_copy(clone: bool) -> CopyKind {
    if clone { CopyKind::Clone } else { CopyKind::Snapshot }
}

/// Does a verb on a drive that is open: at rest, or in use by this process.
///
/// # Errors
/// It can't be done.
pub(crate) fn answer(
    drive: &Drive,
    ask: &Ask,
    used: Option<InUse<'_>>,
) -> Result<Answer, VerbError> {
    let process = std::process::id();
    let path = || drive.path.clone();
    let at_rest = |remedy| VerbError::AtRest { path: path(), remedy };
    // Targets that are not in use are shown on a shadow of the image: as at its last commit.
    let committed = || match used {
        Some(_) => drive.ssd.make_durable().map_err(|e| drive.at(e)),
        None => Ok(()),
    };
    let look = || {
        let targets = used.map_or_else(Vec::new, |used| used.live.targets());
        Look::of(drive.ssd.clone(), targets)
    };
    Ok(match ask {
        Ask::Info => look()?.info(),
        Ask::Smart => look()?.smart_answer(),
        Ask::Metrics => {
            let used = used.ok_or_else(|| at_rest(NOTHING_TO_SEE))?;
            let seen = used.live.metrics(used.cx);
            Answer::new((seen.to_text(), seen.to_json()))
        }
        Ask::Copy { to, clone } => {
            drive.ssd.copy_image_to(to, kind_of_copy(*clone))?;
            Answer::default()
        }
        Ask::Inject { plan } => {
            faults::inject_into(drive, &faults::plan_of(plan)?, used.is_some())?
        }
        Ask::Faults => faults::list_of(&drive.ssd),
        Ask::ClearFaults => faults::clear_of(drive)?,
        Ask::PowerCut => match used {
            Some(_) => return Err(VerbError::NeedsPower { path: path(), process }),
            None => return Err(at_rest(NO_POWER)),
        },
        Ask::List => show::list_of(drive)?,
        Ask::LnvmInfo { target } => {
            committed()?;
            show::info_of(drive, target.as_deref(), used)?
        }
        Ask::IdNs { namespace, human } => show::id_ns_of(drive, *namespace, *human)?,
        Ask::ChunkLog => show::chunk_log_of(drive),
        Ask::BadBlocks { namespace, channel, lun } => {
            bad_blocks::bad_blocks_of(drive, *namespace, *channel, *lun)?
        }
        Ask::SetBadBlock { channel, lun, plane, block, mark } => {
            let at = Block { channel: *channel, lun: *lun, plane: *plane, block: *block };
            bad_blocks::set_bad_block_of(drive, at, *mark)?
        }
        Ask::Remove { target } if used.is_some_and(|used| used.live.uses(target)) => {
            return Err(VerbError::InUse { path: path(), target: target.clone(), process });
        }
        Ask::Remove { target } => remove(drive, target)?,
        Ask::Record { target, take } => {
            let used = used.ok_or_else(|| at_rest(NOTHING_TO_RECORD))?;
            let (target, tap) = used.tap_of(target.as_deref())?;
            let begun = tap.prepare(take.clone()).map(|()| tap.begin(used.cx.now()));
            begun.map_err(|source| VerbError::Record { path: path(), target, source })?;
            Answer::default()
        }
        Ask::StopRecording { target } => {
            let used = used.ok_or_else(|| at_rest(NOTHING_TO_RECORD))?;
            let (target, recording) = used.take_recording(target.as_deref())?;
            recorded(&drive.path, &target, recording)?
        }
        Ask::Knobs { target, set } => match used.filter(|used| used.live.uses(target)) {
            Some(InUse { live, cx }) => match live.layer(target) {
                Some(layer) => knobs::in_use(cx, drive, target, &*layer, set)?,
                None => knobs::of_unmounted(drive, target)?,
            },
            None => {
                committed()?;
                knobs::at_rest(drive, target, set)?
            }
        },
    })
}

/// Ends a recording that was taken from its target: it waits for the file.
///
/// # Errors
/// The file could not be written.
pub(crate) fn recorded(
    path: &Path,
    target: &str,
    recording: Recording,
) -> Result<Answer, VerbError> {
    let recorded = recording.end().map_err(|e| VerbError::Record {
        path: path.into(),
        target: target.into(),
        source: e.into(),
    })?;
    let json = serde_json::to_string_pretty(&recorded).unwrap_or_default();
    Ok(Answer::new((format!("{recorded}\n"), json + "\n")))
}

/// What would do for a verb that is about a use.
const NOTHING_TO_SEE: &str =
    ": there is something to see while `flashlane serve` or `flashlane run --drive` has it";
const NO_POWER: &str = ", so there is no power to cut: start a run on it first";
const NOTHING_TO_RECORD: &str = ": begin `flashlane serve` or `flashlane run --drive` first; both record \
                                 from the start with --record";
