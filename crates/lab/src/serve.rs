//! Targets of a drive, used as disks by kernels and programs.
//!
//! Owns: the addresses of doors, mount and stop of the targets behind them. Promises: `ready` is said when
//! clients can connect; whatever ends it, what clients flushed is on the image, and a stop also leaves
//! everything else there and the targets clean; a name is taken only where nobody uses it, and is given
//! back as long as it is its own. Never: knows a protocol (`flashlane_serve` does).

use crate::control::ControlError;
use crate::control::power::Switch;
use crate::control::socket::{connect_to, listen_at};
use crate::experiment::{DriveTarget, Target};
use crate::lnvm::show;
use crate::metrics::CONTENT_TYPE;
use crate::run::Monitor;
use crate::stack::{Opened, Stack, StackError, target_of_drive};
use crate::tap::TapError;
use crate::trace::{Recorded, Take};
use flashlane_base::{Bytes, Ns, SECTOR_BYTES, mutant};
use flashlane_ftl::stats::FtlStats;
use flashlane_ocssd::SsdOptions;
pub use flashlane_rt::Lateness;
use flashlane_rt::threads::cpus_for;
use flashlane_rt::{CoreId, Cx, Join, Stalled, Threads};
pub use flashlane_serve::SECTOR_SIZES;
use flashlane_serve::fuse::{self, Left, Place, PlaceError};
use flashlane_serve::{Export, Listener, Stop, http, nbd, vhost};
use flashlane_stack::LayerSpec;
pub use flashlane_stack::kinds::{Ghosts, Wanted, idiscard};
use std::collections::BTreeSet;
use std::fmt;
use std::future::Future;
use std::net::TcpListener;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// How often somebody who wants it to end is looked for.
const LOOK_EVERY: Ns = Ns::from_ms(20);
/// And at which of these looks it is seen whether the image still has its name: some microseconds
/// each.
const LOOKS_PER_PLACE: u64 = 10;

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

/// A place for one of the targets: `PATH`, or `TARGET=PATH` where several are served. A path whose name has
/// a `=` is one with a `/` before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetPath {
    pub target: Option<String>,
    pub path: PathBuf,
}

impl From<&Path> for TargetPath {
    fn from(whole: &Path) -> TargetPath {
        let named = whole.to_str().and_then(|text| text.split_once('='));
        match named.filter(|(target, path)| !target.contains('/') && !path.is_empty()) {
            Some((target, path)) => TargetPath { target: Some(target.into()), path: path.into() },
            None => TargetPath { target: None, path: whole.into() },
        }
    }
}

impl FromStr for TargetPath {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<TargetPath, Self::Err> {
        Ok(Path::new(text).into())
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
    #[error(
        "{}: of which target? Say TARGET={} ({known})", path.display(), path.display()
    )]
    Which { path: PathBuf, known: String },
    #[error("{}: this place is named twice: give each door one of its own", path.display())]
    Twice { path: PathBuf },
    #[error("{target}={}: target `{target}` is not served ({known})", path.display())]
    NotServed { target: String, path: PathBuf, known: String },
    #[error("{0}: somebody listens there already; take another address, or end that process")]
    Taken(Address),
    #[error("cannot listen at {address}: {problem}")]
    Listen { address: Address, problem: String },
    #[error("fuse:{}: {source}", path.display())]
    Place { path: PathBuf, source: PlaceError },
    #[error("fuse:{}: {source}", path.display())]
    Fuse { path: PathBuf, source: std::io::Error },
    #[error("--pin: {source}")]
    Pin { source: std::io::Error },
    #[error("{source}")]
    Stalled { source: Stalled },
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
    /// Targets of one drive, at least one.
    pub on: Vec<DriveTarget>,
    /// All of them by NBD, each under its name, at each of these addresses.
    pub nbd: Vec<Address>,
    /// As files by FUSE, in the place of these, which are empty or do not exist yet.
    pub fuse: Vec<TargetPath>,
    /// As virtio disks, to front ends of vhost-user that connect to these sockets.
    pub vhost_user: Vec<TargetPath>,
    /// Metrics by HTTP, there.
    pub metrics: Option<Address>,
    /// What clients are told of sectors: one of [`SECTOR_SIZES`].
    pub sector_bytes: u32,
    /// Clients may change nothing.
    pub read_only: bool,
    /// What stands on each of them.
    pub filters: Vec<LayerSpec>,
    /// Requests take the time that the device takes; otherwise none.
    pub timing: bool,
    /// Cores that clients are spread over, at least one.
    pub cores: u32,
    /// Each core stays on a CPU of its own.
    pub pinned: bool,
    /// What clients ask of this target, or of the only one, is recorded from the start.
    pub record: Option<(Option<String>, Take)>,
}

impl Serving {
    /// Which of the targets a path is for.
    fn index_of(&self, target: Option<&str>, path: &Path) -> Result<usize, ServeError> {
        let names: Vec<&str> = self.on.iter().map(|on| &*on.name).collect();
        let (known, path) = (format!("served: {}", names.join(", ")), path.to_path_buf());
        match (target, &names[..]) {
            (None, [_]) => Ok(0),
            (None, _) => Err(ServeError::Which { path, known }),
            (Some(target), names) => {
                let index = names.iter().position(|name| *name == target);
                let target = target.to_string();
                index.ok_or(ServeError::NotServed { target, path, known })
            }
        }
    }

    fn places<'a>(&self, paths: &'a [TargetPath]) -> Result<Vec<(usize, &'a PathBuf)>, ServeError> {
        let place =
            |at: &'a TargetPath| Ok((self.index_of(at.target.as_deref(), &at.path)?, &at.path));
        paths.iter().map(place).collect()
    }
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Served {
    /// In the order in which they were named.
    pub targets: Vec<ServedTarget>,
    /// What became of files by FUSE that somebody still had open.
    pub left: Vec<String>,
    /// How late the device's times were kept, where requests take them.
    pub lateness: Option<Lateness>,
    /// What became of the image, if its path does not lead to it any more.
    pub misplaced: Option<String>,
}

/// A target that was served.
#[derive(Clone, Debug)]
pub struct ServedTarget {
    pub name: String,
    pub stats: FtlStats,
    /// What was recorded until the end, whoever began it, and why not, if so.
    pub recorded: Option<Result<Recorded, String>>,
    /// Why the target could not make everything durable, if so.
    pub read_only: Option<String>,
    /// Counters and maps agree, or what does not.
    pub laws: Result<(), String>,
}

impl fmt::Display for ServedTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = |sectors: u64| Bytes::new(sectors * SECTOR_BYTES as u64);
        let FtlStats { host_written: written, host_read: read, host_discarded, .. } = self.stats;
        write!(f, "{}: {} written, {} read", self.name, bytes(written), bytes(read))?;
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
        stop: &Arc<Stop>,
        metrics: impl Fn(&Cx) -> String + 'static,
    ) -> Join<Result<(), ServeError>> {
        let (theirs, stop) = (cx.clone(), stop.clone());
        let make = Box::new(metrics);
        let page = http::Page { path: "/metrics", content_type: CONTENT_TYPE, make };
        cx.spawn_join(async move {
            let Watch { door: Door { listener, named }, address } = self;
            let ended = http::serve(&theirs, listener, page, stop).await;
            drop(named);
            ended.map_err(|e| ServeError::Listen { address, problem: e.to_string() })
        })
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

/// Serves targets until the monitor says that it is to end. `ready` is told every address when clients can
/// connect, `say` what layers have to say.
///
/// # Errors
/// There is no such drive or target, one can't be mounted, or an address can't be had. The drive is as it was
/// then, apart from the mounts.
pub fn serve(
    serving: &Serving,
    monitor: Rc<dyn Monitor>,
    ready: impl Fn(&dyn fmt::Display) + 'static,
    say: impl Fn(&dyn fmt::Display) + 'static,
) -> Result<Served, ServeError> {
    if !serving.fuse.is_empty() {
        // Where it is not permitted there is a risk, which docs/COOKBOOK.md names.
        fuse::keep_out_of_reclaim();
    }
    let options = SsdOptions { timing: serving.timing, ..SsdOptions::default() };
    let target = |on: &DriveTarget| {
        let target = target_of_drive(on, &options).map_err(failed(&on.name))?;
        match target.stack.is_raw() {
            true => Err(ServeError::Raw { target: on.name.clone() }),
            false => {
                let mut target = target;
                target.stack.layers.extend(serving.filters.iter().cloned());
                Ok(target)
            }
        }
    };
    let targets = serving.on.iter().map(target).collect::<Result<Vec<_>, _>>()?;
    if serving.pinned {
        cpus_for(serving.cores).map_err(|source| ServeError::Pin { source })?;
    }
    let switch = Rc::new(Switch::default());
    let (owned, power) = (serving.clone(), switch.clone());
    let main = |cx: Cx| async move {
        let steps = steps(&cx, &owned, &targets, monitor, &power, (ready, say));
        power.unless_off(&cx, steps).await
    };
    // Nothing that another core saw ended is torn by a cut: that comes behind them all.
    let ended = Threads::new(serving.cores.max(1), 0).run_here_until(main);
    let (served, at) = ended.map_err(|source| ServeError::Stalled { source })?;
    served.unwrap_or_else(|| {
        let image = switch.cut(at).map_err(|e| failed(&serving.on[0].name)(e.into()))?;
        Err(ServeError::PowerCut { image, at })
    })
}

fn failed(target: &str) -> impl Fn(StackError) -> ServeError {
    move |source| ServeError::Stack { target: target.into(), source: source.into() }
}

/// What clients can find, taken before anything is mounted: a place that can't be had changes nothing.
struct Places {
    nbd: Vec<(Address, Door)>,
    /// Of which target each is.
    disks: Vec<(usize, Address, Door)>,
    files: Vec<(usize, PathBuf, Place)>,
    watch: Option<Watch>,
}

impl Places {
    fn take(serving: &Serving) -> Result<Places, ServeError> {
        check_apart(serving)?;
        let watch = serving.metrics.as_ref().map(Watch::open).transpose()?;
        let door = |address: Address| open_door(&address).map(|door| (address, door));
        let disk = |(index, path): (usize, &PathBuf)| {
            let (address, door) = door(Address::VhostUser(path.clone()))?;
            Ok((index, address, door))
        };
        let file = |(index, path): (usize, &PathBuf)| match Place::take(path) {
            Ok(place) => Ok((index, path.clone(), place)),
            Err(source) => Err(ServeError::Place { path: path.clone(), source }),
        };
        Ok(Places {
            nbd: serving.nbd.iter().cloned().map(door).collect::<Result<_, _>>()?,
            disks: serving
                .places(&serving.vhost_user)?
                .into_iter()
                .map(disk)
                .collect::<Result<_, ServeError>>()?,
            files: serving
                .places(&serving.fuse)?
                .into_iter()
                .map(file)
                .collect::<Result<_, _>>()?,
            watch,
        })
    }
}

/// Where a path leads, also one to a file that does not exist yet. What can't be found is said by who takes it.
fn behind_links(path: &Path) -> PathBuf {
    // As many as the kernel follows.
    const LINKS_MAX: usize = 40;
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.into());
    for _ in 0..LINKS_MAX {
        let Ok(to) = std::fs::read_link(&path) else { break };
        path = path.parent().unwrap_or(Path::new("/")).join(to);
    }
    match (path.parent().map(std::fs::canonicalize), path.file_name()) {
        (Some(Ok(folder)), Some(name)) => folder.join(name),
        _ => path,
    }
}

/// No place is named twice. Whoever looked at a file by FUSE that is not answered yet would wait for itself.
fn check_apart(serving: &Serving) -> Result<(), ServeError> {
    let sockets = serving.nbd.iter().chain(&serving.metrics).filter_map(|address| match address {
        Address::Unix(path) | Address::VhostUser(path) => Some(path),
        Address::Tcp(_) => None,
    });
    let disks = serving.vhost_user.iter().chain(&serving.fuse).map(|at| &at.path);
    let mut seen = BTreeSet::new();
    for path in sockets.chain(disks) {
        if !seen.insert(behind_links(path)) {
            return Err(ServeError::Twice { path: path.clone() });
        }
    }
    Ok(())
}

/// Targets of one drive, mounted.
struct Stacks(Vec<Stack>);

impl Stacks {
    async fn mount(cx: &Cx, targets: &[Target], opened: &Rc<Opened>) -> Result<Stacks, ServeError> {
        let mut stacks = Stacks(Vec::new());
        for target in targets {
            match Stack::mount(cx, target, opened).await {
                Ok(stack) => stacks.0.push(stack),
                Err(e) => {
                    if !mutant!("serve.others-left-mounted") {
                        stacks.leave(cx).await;
                    }
                    return Err(failed(&target.name)(e));
                }
            }
        }
        Ok(stacks)
    }

    /// For what could not be served: they are put back as they were found.
    async fn leave(&self, cx: &Cx) {
        for stack in &self.0 {
            stack.leave(cx).await;
        }
    }
}

async fn steps(
    cx: &Cx,
    serving: &Serving,
    targets: &[Target],
    monitor: Rc<dyn Monitor>,
    power: &Rc<Switch>,
    (ready, say): (impl Fn(&dyn fmt::Display), impl Fn(&dyn fmt::Display)),
) -> Result<Served, ServeError> {
    let places = Places::take(serving)?;
    let recorded = match &serving.record {
        Some((target, take)) => Some((serving.index_of(target.as_deref(), &take.to)?, take)),
        None => None,
    };
    let opened = Opened::open(cx, &targets[0], &serving.on[0], Some(power.clone()));
    let opened = opened.map_err(failed(&targets[0].name))?;
    opened.expect(serving.on.iter().map(|on| &*on.name));
    let stacks = Stacks::mount(cx, targets, &opened).await?;
    for (stack, target) in stacks.0.iter().zip(targets) {
        let said = stack.mounted().map_or(Vec::new(), |m| show::mount_lines(&m.lost));
        said.iter().for_each(|line| say(&format_args!("{}: {line}", target.name)));
    }
    let begun = begin(cx, places, &stacks, serving, recorded, &opened);
    let (stop, open) = match begun {
        Ok(begun) => begun,
        Err(e) => {
            stacks.leave(cx).await;
            return Err(e);
        }
    };
    if serving.pinned
        && let Err(source) = cx.pin_cores().await
    {
        stop.raise(cx);
        let _ = open.close().await; // nobody could connect yet
        stacks.leave(cx).await;
        return Err(ServeError::Pin { source });
    }
    open.at.iter().for_each(|at| ready(at));
    let listen = || {
        for (stack, target) in stacks.0.iter().zip(targets) {
            let said = stack.layers().said();
            said.iter().for_each(|what| say(&format_args!("{}: {what}", target.name)));
        }
    };
    let misplaced = until_interrupted(cx, &*monitor, &opened, &listen, &say).await;
    stop.raise(cx);
    // A knob that holds writes up does not hold the end up.
    opened.unstick(cx);
    let (ended, left) = open.close().await;
    let lateness = serving.timing.then(|| cx.lateness());
    let mut all = Vec::new();
    for (stack, target) in stacks.0.iter().zip(targets) {
        let recorded = stack.end_recording().map_err(|e| e.to_string()).transpose();
        stack.drain(cx).await;
        let stats = stack.stats();
        let stopped = stack.stop(cx).await;
        listen();
        let (read_only, laws) = (stopped.read_only, stopped.laws);
        let name = target.name.clone();
        all.push(ServedTarget { name, stats, recorded, read_only, laws });
    }
    let misplaced = opened.misplaced().or(misplaced);
    for (stack, target) in stacks.0.iter().zip(targets) {
        match stack.close() {
            // What became of the image says more than what could not be done in it.
            Err(_) if misplaced.is_some() => {}
            closed => closed.map_err(failed(&target.name))?,
        }
    }
    ended?;
    Ok(Served { targets: all, left, lateness, misplaced })
}

/// Waits until somebody wants the end: what became of the image meanwhile, which is said at once.
async fn until_interrupted(
    cx: &Cx,
    monitor: &dyn Monitor,
    opened: &Opened,
    listen: impl Fn(),
    say: &impl Fn(&dyn fmt::Display),
) -> Option<String> {
    let mut misplaced = None;
    for look in 0u64.. {
        if monitor.interrupted() {
            break;
        }
        listen();
        if look % LOOKS_PER_PLACE == 0 && misplaced.is_none() {
            misplaced = opened.misplaced();
            misplaced.iter().for_each(|what| say(what));
        }
        cx.sleep(LOOK_EVERY).await;
    }
    misplaced
}

/// A door that clients use, to its end.
type Serves = Pin<Box<dyn Future<Output = Result<(), ServeError>>>>;

/// Doors that clients use.
struct Open {
    doors: Vec<Serves>,
    files: Vec<(PathBuf, Join<Left>)>,
    /// Their addresses.
    at: Vec<String>,
}

impl Open {
    /// Waits for the ends of all, after the stop: why a door could not go on, what is to be said of files.
    async fn close(self) -> (Result<(), ServeError>, Vec<String>) {
        let (mut ended, mut left) = (Ok(()), Vec::new());
        for door in self.doors {
            ended = ended.and(door.await);
        }
        for (path, file) in self.files {
            left.extend(parting_words(&path, file.await));
        }
        (ended, left)
    }
}

/// Everything that clients may use begins, until the stop.
fn begin(
    cx: &Cx,
    places: Places,
    stacks: &Stacks,
    serving: &Serving,
    recorded: Option<(usize, &Take)>,
    opened: &Rc<Opened>,
) -> Result<(Arc<Stop>, Open), ServeError> {
    let by_nbd = |(stack, on): (&Stack, &DriveTarget)| {
        let export = Export::new(&on.name, stack.door("nbd"));
        Arc::new(export.with_sectors_of(serving.sector_bytes).read_only(serving.read_only))
    };
    let exports: Arc<[Arc<Export>]> = stacks.0.iter().zip(&serving.on).map(by_nbd).collect();
    let through =
        |index: usize, door: &str| Arc::new(exports[index].through(stacks.0[index].door(door)));
    let files = |(index, path, place): (usize, PathBuf, Place)| {
        let door = fuse::Door::open(cx, place, through(index, "fuse"));
        match door {
            Ok(door) => Ok((path, door)),
            Err(source) => Err(ServeError::Fuse { path, source }),
        }
    };
    let files = places.files.into_iter().map(files).collect::<Result<Vec<_>, _>>()?;
    if let Some((index, take)) = recorded {
        let stack = &stacks.0[index];
        // What recordings may name is known before one begins.
        ["fuse", "vhost-user"].into_iter().for_each(|door| drop(stack.door(door)));
        stack.prepare_recording(take.clone(), &[]).map_err(|source| {
            let target = serving.on[index].name.clone();
            ServeError::Record { target, source }
        })?;
        stack.begin_recording(cx.now());
    }
    let stop = Arc::new(Stop::default());
    let mut open = Open { doors: Vec::new(), files: Vec::new(), at: Vec::new() };
    let ended = |address: Address| {
        move |ended: std::io::Result<()>| {
            ended.map_err(|e| ServeError::Listen { address, problem: e.to_string() })
        }
    };
    for (address, Door { listener, named }) in places.nbd {
        let (theirs, exports, stop) = (cx.clone(), exports.clone(), stop.clone());
        open.at.push(address.to_string());
        open.doors.push(Box::pin(cx.spawn_join(async move {
            let _named = named;
            ended(address)(nbd::serve(&theirs, listener, exports, stop).await)
        })));
    }
    // Each has a core for all its queues; the last ones first, as the first core has all else.
    let cores = (0..cx.cores()).rev().map(CoreId).cycle();
    for ((index, address, Door { listener, named }), core) in places.disks.into_iter().zip(cores) {
        let (disk, stop) = (through(index, "vhost-user"), stop.clone());
        open.at.push(address.to_string());
        open.doors.push(Box::pin(cx.spawn_join_on(core, move |cx| async move {
            let _named = named;
            ended(address)(vhost::serve(&cx, listener, disk, stop).await)
        })));
    }
    for (path, door) in files {
        let (theirs, stop) = (cx.clone(), stop.clone());
        open.at.push(format!("fuse:{}", path.display()));
        let served = cx.spawn_join(async move { door.serve(&theirs, &stop).await });
        open.files.push((path, served));
    }
    if let Some(watch) = places.watch {
        open.at.push(format!("metrics:{}", watch.address()));
        let opened = opened.clone();
        open.doors.push(Box::pin(watch.serve(cx, &stop, move |cx| opened.metrics(cx))));
    }
    Ok((stop, open))
}
