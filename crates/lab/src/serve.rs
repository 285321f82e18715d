//! A target of a drive, used as a disk by kernels and programs.
//!
//! Owns: the addresses of doors, mount and stop of the target behind them. Promises: `ready` is said when
//! clients can connect; whatever ends it, what clients flushed is on the image, and a stop also leaves
//! everything else there and the target clean; a name is taken only where nobody uses it, and is given
//! back as long as it is its own. Never: knows a protocol (`flashlane_serve` does).

use crate::control::ControlError;
use crate::control::power::Switch;
use crate::control::socket::{connect_to, listen_at};
use crate::experiment::{DriveTarget, Target};
use crate::metrics::CONTENT_TYPE;
use crate::run::Monitor;
use crate::stack::{Stack, StackError, target_of_drive};
use crate::tap::TapError;
use crate::trace::{Recorded, Take};
use flashlane_base::{Bytes, Ns, SECTOR_BYTES};
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::SsdOptions;
use flashlane_rt::{Cx, Join, Stalled, Threads};
pub use flashlane_serve::SECTOR_SIZES;
use flashlane_serve::fuse::{self, Left, Place, PlaceError};
use flashlane_serve::{Export, Listener, Stop, http, nbd, vhost};
use std::fmt;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::str::FromStr;
use std::time::Duration;

/// How often somebody who wants it to end is looked for.
const LOOK_EVERY: Ns = Ns::from_ms(20);

/// Somebody who listens takes a client in by then.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where clients connect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket in the file system.
    Unix(PathBuf),
    /// Host and port.
    Tcp(String),
    /// A socket in the file system, for front ends of vhost-user.
    VhostUser(PathBuf),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Address, String> {
        match text.split_once(':') {
            Some(("unix", path)) if !path.is_empty() => Ok(Address::Unix(path.into())),
            Some(("tcp", at)) if at.contains(':') => Ok(Address::Tcp(at.into())),
            _ => Err("an address is unix:PATH or tcp:HOST:PORT".into()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Address::Unix(path) => write!(f, "unix:{}", path.display()),
            Address::Tcp(at) => write!(f, "tcp:{at}"),
            Address::VhostUser(path) => write!(f, "vhost-user:{}", path.display()),
        }
    }
}

/// Why a target could not be served, or not to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServeError {
    #[error("target {target}: {source}")]
    Stack { target: String, source: Box<StackError> },
    #[error(
        "target {target} has no block device: a target of type `none` is for programs that place their data \
         themselves"
    )]
    Raw { target: String },
    #[error("{0}: somebody listens there already; take another address, or end that process")]
    Taken(Address),
    #[error("cannot listen at {address}: {problem}")]
    Listen { address: Address, problem: String },
    #[error("fuse:{}: {source}", path.display())]
    Place { path: PathBuf, source: PlaceError },
    #[error("fuse:{}: {source}", path.display())]
    Fuse { path: PathBuf, source: std::io::Error },
    #[error("target {target}: {source}")]
    Stalled { target: String, source: Stalled },
    #[error("target {target}: {source}")]
    Record { target: String, source: TapError },
    #[error(
        "the power of {} was cut {at} into the run; what was not flushed may be lost", image.display()
    )]
    PowerCut { image: PathBuf, at: Ns },
}

/// What is served, and how.
#[derive(Clone, Debug)]
pub struct Serving {
    pub on: DriveTarget,
    /// By NBD, at each of these addresses.
    pub nbd: Vec<Address>,
    /// As a file by FUSE, in the place of this one, which is empty or does not exist yet.
    pub fuse: Option<PathBuf>,
    /// As a virtio disk, to front ends of vhost-user that connect to these sockets.
    pub vhost_user: Vec<PathBuf>,
    /// Metrics by HTTP, there.
    pub metrics: Option<Address>,
    /// What clients are told of sectors: one of [`SECTOR_SIZES`].
    pub sector_bytes: u32,
    /// Requests take the time that the device takes; otherwise none.
    pub timing: bool,
    /// What clients ask is recorded from the start.
    pub record: Option<Take>,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Served {
    pub target: String,
    pub stats: FtlStats,
    /// What was recorded until the end, and why not, if so.
    pub recorded: Option<Result<Recorded, String>>,
    /// What became of the file by FUSE, where somebody still had it open.
    pub left: Option<String>,
    /// Why the target could not make everything durable, if so.
    pub read_only: Option<String>,
    /// Counters and maps agree, or what does not.
    pub laws: Result<(), String>,
}

impl fmt::Display for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |sectors: u64| Bytes::new(sectors * SECTOR_BYTES as u64);
        let FtlStats { host_written: written, host_read: read, host_discarded, .. } = self.stats;
        write!(f, "{}: {} written, {} read", self.target, bytes(written), bytes(read))?;
        if host_discarded > 0 {
            write!(f, ", {} discarded", bytes(host_discarded))?;
        }
        match written {
            0 => Ok(()),
            _ => write!(f, ", WA {:.3}", self.stats.programmed_total() as f64 / written as f64),
        }
    }
}

/// A listener, and the name that it has to give back.
struct Door {
    listener: Listener,
    named: Named,
}

/// The name of a socket, until it is dropped, with the device and number of its file: once nobody listens
/// any more, while the last clients are waited for, another process may take the name.
struct Named(Option<(PathBuf, Option<(u64, u64)>)>);

impl Named {
    fn file(path: &Path) -> Option<(u64, u64)> {
        std::fs::symlink_metadata(path).map(|there| (there.dev(), there.ino())).ok()
    }

    fn new(path: PathBuf) -> Named {
        let file = Named::file(&path);
        Named(Some((path, file)))
    }
}

impl Drop for Named {
    fn drop(&mut self) {
        if let Some((path, file)) = &self.0
            && Named::file(path) == *file
        {
            let _ = std::fs::remove_file(path); // nobody can be told any more
        }
    }
}

fn open_door(address: &Address) -> Result<Door, ServeError> {
    let refuse = |problem: String| ServeError::Listen { address: address.clone(), problem };
    match address {
        Address::Unix(path) | Address::VhostUser(path) => {
            let path = std::path::absolute(path).map_err(|e| refuse(e.to_string()))?;
            if !matches!(connect_to(&path, PATIENCE), Err(ControlError::Nobody { .. })) {
                return Err(ServeError::Taken(address.clone()));
            }
            let listener = listen_at(&path).map_err(|e| match e {
                ControlError::Listen { problem, .. } => refuse(problem),
                other => refuse(other.to_string()),
            })?;
            Ok(Door { listener: Listener::Unix(listener), named: Named::new(path) })
        }
        Address::Tcp(at) => {
            let listener = TcpListener::bind(at).map_err(|e| match e.kind() {
                std::io::ErrorKind::AddrInUse => ServeError::Taken(address.clone()),
                _ => refuse(e.to_string()),
            })?;
            Ok(Door { listener: Listener::Tcp(listener), named: Named(None) })
        }
    }
}

/// The address at which a drive's metrics are to be had by HTTP.
pub(crate) struct Watch {
    door: Door,
    address: Address,
}

impl Watch {
    /// Takes it.
    ///
    /// # Errors
    /// It can't be had.
    pub(crate) fn open(address: &Address) -> Result<Watch, ServeError> {
        let door = open_door(address)?;
        // Whoever asks for port 0 wants to know which one it is.
        let address = match &door.listener {
            Listener::Tcp(socket) => socket
                .local_addr()
                .map_or_else(|_| address.clone(), |at| Address::Tcp(at.to_string())),
            Listener::Unix(_) => address.clone(),
        };
        Ok(Watch { door, address })
    }

    /// Where it really is.
    pub(crate) fn address(&self) -> Address {
        self.address.clone()
    }

    /// Answers until the stop.
    pub(crate) fn serve(
        self,
        cx: &Cx,
        stack: &Stack,
        stop: &Rc<Stop>,
    ) -> Join<Result<(), ServeError>> {
        let (theirs, stop, stack) = (cx.clone(), stop.clone(), stack.clone());
        let make = Box::new(move |cx: &Cx| stack.metrics(cx).unwrap_or_default());
        let page = http::Page { path: "/metrics", content_type: CONTENT_TYPE, make };
        cx.spawn_join(async move {
            let Watch { door: Door { listener, named }, address } = self;
            let ended = http::serve(&theirs, listener, page, stop).await;
            drop(named);
            ended.map_err(|e| ServeError::Listen { address, problem: e.to_string() })
        })
    }
}

fn take_place(path: &Path) -> Result<(PathBuf, Place), ServeError> {
    match Place::take(path) {
        Ok(place) => Ok((path.into(), place)),
        Err(source) => Err(ServeError::Place { path: path.into(), source }),
    }
}

/// What is to be said of a file that could not simply be unmounted.
fn parting_words(path: &Path, left: Left) -> Option<String> {
    let path = path.display();
    match left {
        Left::Free => None,
        Left::InUse { loops } => {
            let who = match loops.is_empty() {
                true => "a program has it open: end that".into(),
                false => {
                    let loops: Vec<String> =
                        loops.iter().map(|l| l.display().to_string()).collect();
                    let loops = loops.join(" ");
                    format!("unmount what is on {loops}, then losetup -d {loops}")
                }
            };
            Some(format!(
                "{path} was still in use, and fails for its users from now on; what they had flushed is on \
                 the drive ({who})"
            ))
        }
        Left::Stays { why } => {
            Some(format!("{path} could not be unmounted: {why} (fusermount3 -uz detaches it)"))
        }
    }
}

/// Serves a target until the monitor says that it is to end. `ready` is told every address when clients can
/// connect.
///
/// # Errors
/// There is no such drive or target, it can't be mounted, or an address can't be had. The drive is as it was
/// then, apart from the mount.
pub fn serve(
    serving: &Serving,
    monitor: Rc<dyn Monitor>,
    ready: impl Fn(&dyn fmt::Display) + 'static,
) -> Result<Served, ServeError> {
    let name = serving.on.name.clone();
    if serving.fuse.is_some() {
        // Where it is not permitted there is a risk, which docs/COOKBOOK.md names.
        fuse::keep_out_of_reclaim();
    }
    let failed =
        |source: StackError| ServeError::Stack { target: name.clone(), source: source.into() };
    let options = SsdOptions { timing: serving.timing, ..SsdOptions::default() };
    let target = target_of_drive(&serving.on, &options).map_err(failed)?;
    if target.stack.is_raw() {
        return Err(ServeError::Raw { target: name });
    }
    let switch = Rc::new(Switch::default());
    let (owned, power) = (serving.clone(), switch.clone());
    let main = |cx: Cx| async move {
        let steps = steps(&cx, &owned, &target, monitor, &power, ready);
        let served = power.unless_off(&cx, steps).await;
        (served, cx.now())
    };
    let ended = Threads::run_here(0, main);
    let (served, at) =
        ended.map_err(|source| ServeError::Stalled { target: name.clone(), source })?;
    served.unwrap_or_else(|| {
        let image = switch.cut(at).map_err(|e| failed(e.into()))?;
        Err(ServeError::PowerCut { image, at })
    })
}

async fn steps(
    cx: &Cx,
    serving: &Serving,
    target: &Target,
    monitor: Rc<dyn Monitor>,
    power: &Rc<Switch>,
    ready: impl Fn(&dyn fmt::Display),
) -> Result<Served, ServeError> {
    let failed = |source: StackError| ServeError::Stack {
        target: target.name.clone(),
        source: source.into(),
    };
    // Before the mount: an address that can't be had changes nothing.
    let disks = serving.vhost_user.iter().cloned().map(Address::VhostUser);
    let addresses: Vec<Address> = serving.nbd.iter().cloned().chain(disks).collect();
    let doors = addresses.iter().map(open_door).collect::<Result<Vec<_>, _>>()?;
    let watched = serving.metrics.as_ref().map(Watch::open).transpose()?;
    let place = serving.fuse.as_deref().map(take_place).transpose()?;
    let stack = Stack::powered(cx, target, 0, Some(power.clone())).await.map_err(failed)?;
    let export = Export::new(&target.name, stack.door("nbd")).with_sectors_of(serving.sector_bytes);
    let [file_export, disk] =
        ["fuse", "vhost-user"].map(|door| Rc::new(export.through(stack.door(door))));
    let exports: Rc<[_]> = [Rc::new(export)].into();
    if let Some(take) = &serving.record {
        if let Err(source) = stack.prepare_recording(take.clone(), &[]) {
            stack.leave(cx).await;
            return Err(ServeError::Record { target: target.name.clone(), source });
        }
        stack.begin_recording(cx.now());
    }
    let file = place.map(|(path, place)| match fuse::Door::open(cx, place, file_export) {
        Ok(door) => Ok((path, door)),
        Err(source) => Err(ServeError::Fuse { path, source }),
    });
    let file = match file.transpose() {
        Ok(file) => file,
        Err(e) => {
            stack.leave(cx).await;
            return Err(e);
        }
    };
    let (stop, mut open) = (Rc::new(Stop::default()), Vec::new());
    for (door, address) in doors.into_iter().zip(&addresses) {
        let (theirs, exports, stop, address) =
            (cx.clone(), exports.clone(), stop.clone(), address.clone());
        let disk = disk.clone();
        open.push(cx.spawn_join(async move {
            let Door { listener, named } = door;
            let ended = match address {
                Address::VhostUser(_) => vhost::serve(&theirs, listener, disk, stop).await,
                _ => nbd::serve(&theirs, listener, exports, stop).await,
            };
            drop(named);
            ended.map_err(|e| ServeError::Listen { address, problem: e.to_string() })
        }));
    }
    let file = file.map(|(path, door)| {
        let (theirs, stop) = (cx.clone(), stop.clone());
        (path, cx.spawn_join(async move { door.serve(&theirs, &stop).await }))
    });
    let metrics_at = watched.as_ref().map(Watch::address);
    let watched = watched.map(|watch| watch.serve(cx, &stack, &stop));
    addresses.iter().for_each(|address| ready(address));
    if let Some((path, _)) = &file {
        ready(&format_args!("fuse:{}", path.display()));
    }
    if let Some(address) = metrics_at {
        ready(&format_args!("metrics:{address}"));
    }
    while !monitor.interrupted() {
        cx.sleep(LOOK_EVERY).await;
    }
    stop.raise(cx);
    let mut ended = Ok(());
    for door in open.into_iter().chain(watched) {
        ended = ended.and(door.await);
    }
    let left = match file {
        Some((path, door)) => parting_words(&path, door.await),
        None => None,
    };
    let recorded = stack.end_recording().map_err(|e| e.to_string()).transpose();
    stack.drain(cx).await;
    let stats = stack.stats();
    let stopped = stack.stop(cx).await;
    stack.close().map_err(failed)?;
    ended?;
    let target = target.name.clone();
    let (read_only, laws) = (stopped.read_only, stopped.laws);
    Ok(Served { target, stats, recorded, left, read_only, laws })
}
