//! The control socket of a drive in use: who has it open answers the verbs of those who can't open it.
//!
//! Owns: what can be asked ([`Ask`]), and the messages; [`crate::verbs`] has the answers. Promises: the
//! socket is `DRIVE.ctl` beside the image, for its owner only; another version of the protocol is refused in
//! words; a question is answered between two steps of the holder's run; no client can crash it, hang it,
//! take more than half of its time (but for copies of a drive, each of which is followed by half a minute),
//! or have it keep more than a bounded number of bytes. Never: decides who has a drive; the lock on the
//! image does.
//!
//! A message is a line of JSON. The holder begins: `{"flashlane":"drive control","version":1,"process":7}`.
//! The client asks once: `{"version":1,"ask":"smart"}`. The holder answers
//! `{"answer":{"text":..,"json":..}}` or `{"refused":".."}` and closes. [`server`] listens on threads of its
//! own, [`live`] answers on the run's thread, [`power`] ends the run where its drive loses power, [`client`] asks.

mod client;
pub(crate) mod live;
pub(crate) mod power;
mod server;
pub(crate) mod socket;

pub(crate) use server::Listening;
pub use socket::path_of;

use crate::trace::Take;
use flashlane_ocssd::CopyKind;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub const VERSION: u32 = 1;
/// What the holder calls itself.
const NAME: &str = "drive control";
/// Longest question in bytes: a fault plan of some thousand lines.
pub const ASK_MAX: usize = 256 << 10;
/// Longest answer in bytes: the chunk log of a million chunks.
const ANSWER_MAX: u64 = 512 << 20;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// `drive info`.
    Info,
    /// `drive smart`.
    Smart,
    /// The state of the drive and the target in use: text for Prometheus, and JSON (`top`).
    Metrics,
    /// `drive snapshot` and `drive clone`.
    Copy {
        /// Where to, from the root.
        to: PathBuf,
        /// It gets a uuid of its own.
        clone: bool,
    },
    /// `drive inject`: adds lines.
    Inject { plan: String },
    /// `drive inject --list`.
    Faults,
    /// `drive inject --clear`.
    ClearFaults,
    /// `drive inject power_cut`.
    PowerCut,
    /// `lnvm list`, of this drive.
    List,
    /// `lnvm info`.
    LnvmInfo {
        /// Only this one.
        target: Option<String>,
    },
    /// `lnvm id-ns`.
    IdNs {
        namespace: u32,
        /// Say what bits mean.
        human: bool,
    },
    /// `lnvm chunk-log`.
    ChunkLog,
    /// `lnvm diag-bbtbl`.
    BadBlocks { namespace: u32, channel: u32, lun: u32 },
    /// `lnvm diag-set-bbtbl`.
    SetBadBlock { channel: u32, lun: u32, plane: u32, block: u32, mark: u32 },
    /// `trace record`: what the target in use is asked from now on.
    Record {
        /// It must be this one.
        target: Option<String>,
        take: Take,
    },
    /// The end of that: what was recorded.
    StopRecording { target: Option<String> },
    /// `lnvm remove`.
    Remove { target: String },
    /// `lnvm knobs`.
    Knobs {
        target: String,
        /// Names and values, in this order; none to show them.
        set: Vec<(String, String)>,
    },
}

/// Asks the process that has a drive open.
///
/// # Errors
/// Nobody has it open, or does not answer, or refuses.
pub(crate) fn ask_holder(image: &Path, ask: &Ask) -> Result<Answer, ControlError> {
    client::ask(image, ask)
}

/// True if a process listens at the control socket of a drive.
pub(crate) fn listens(image: &Path) -> bool {
    let socket = path_of(image).ok();
    let connected = socket.map(|path| socket::connect_to(&path, Duration::from_secs(1)));
    connected.is_some_and(|connected| !matches!(connected, Err(ControlError::Nobody { .. })))
}

impl Ask {
    /// A copy of a drive; `to` may be relative.
    ///
    /// # Errors
    /// The name can't be sent.
    pub fn copy(to: &Path, kind: CopyKind) -> Result<Ask, ControlError> {
        let to = std::path::absolute(to).map_err(|source| io_error("name", to, source))?;
        if to.to_str().is_none() {
            return Err(ControlError::Name { path: to });
        }
        Ok(Ask::Copy { to, clone: kind == CopyKind::Clone })
    }
}

/// What a verb came to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub text: String,
    #[serde(default)]
    pub json: String,
    /// For programs that read structures.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bytes: Vec<u8>,
}

impl Answer {
    /// Text, and the same as JSON.
    pub fn new((text, json): (String, String)) -> Answer {
        Answer { text, json, bytes: Vec::new() }
    }
}

/// The holder's first line.
#[derive(Serialize, Deserialize)]
struct Greeting {
    flashlane: String,
    version: u32,
    process: u32,
}

/// A client's line.
#[derive(Serialize, Deserialize)]
struct Question {
    version: u32,
    ask: Ask,
}

/// The holder's last line.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Reply {
    Answer(Answer),
    Refused(String),
}

/// Why a holder could not be asked, or could not begin to listen.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    #[error("{}: nobody listens", path.display())]
    Nobody { path: PathBuf },
    #[error("{0}")]
    Refused(String),
    #[error(
        "{}: process {process} has the drive open and speaks version {version} of the control protocol, \
         this program {VERSION}: use the flashlane that it was started from", path.display()
    )]
    Version { path: PathBuf, process: u32, version: u32 },
    /// What listens there is no holder of ours, or ended in the middle.
    #[error("{}: {problem}", path.display())]
    Answer { path: PathBuf, problem: String },
    #[error("cannot {action} {}: {source}", path.display())]
    Io { action: &'static str, path: PathBuf, source: io::Error },
    #[error("cannot listen at {}, the drive's control socket: {problem}", path.display())]
    Listen {
        path: PathBuf,
        /// Why, and what would do.
        problem: String,
    },
    #[error("{}: the process that has the drive open can't be told this name; use one in UTF-8", path.display())]
    Name { path: PathBuf },
}

fn io_error(action: &'static str, path: &Path, source: io::Error) -> ControlError {
    ControlError::Io { action, path: path.into(), source }
}
