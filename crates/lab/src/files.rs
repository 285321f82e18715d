//! ParaFS on a target of a drive: made, mounted, checked.
//!
//! Owns: which target has the file system, its way from the drive's image to a directory. Promises:
//! what was there is not overwritten unasked; whatever ends a mount, what programs had made durable
//! is on the image, and a clean end leaves everything there. Never: knows what the file system does.

use crate::control::Ask;
use crate::control::power::Switch;
use crate::experiment::{DriveTarget, Target};
use crate::lnvm::show::mount_lines;
use crate::lnvm::{self, Create, Drive, LnvmError, TargetType};
use crate::room::{self, Reader, Tight, Wanted};
use crate::run::Monitor;
use crate::stack::{Opened, Stack, StackError, medium_of, target_of_drive};
use crate::verbs;
use flashlane_base::{Bytes, Lba, Ns, SECTOR_BYTES, mutant};
use flashlane_ftl::block::{BlockDev, Extent, Io};
use flashlane_ftl::layer::{Kind as _, MountHow};
use flashlane_ftl::sftl::SFTL;
use flashlane_ocssd::SsdOptions;
use flashlane_parafs::fuse::Mounted;
pub use flashlane_parafs::fuse::{Clock, How, time_from};
pub use flashlane_parafs::{Depth, Recovered, Repaired, Report, Time, Unread, What};
use flashlane_parafs::{
    Fs, FsError, Make, Medium, Options, Shape, check_with, mkfs, repair_with, segments_for_files,
};
use flashlane_rt::{CostTable, Cx, Stalled, Threads, Virtual};
use flashlane_serve::fuse::{Ours, PlaceError, Unmounted};
use flashlane_stack::{Description, DeviceChoice, LayerSpec};
use std::cell::OnceCell;
use std::fmt;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

/// Pages of a segment where the target is a block device, and sectors of a page: as on the flash of
/// the paper, 2 MiB and 8 KiB.
pub(crate) const SEGMENT_PAGES: u32 = 256;
pub(crate) const PAGE_SECTORS: u32 = 2;
const WANTED: Wanted =
    Wanted { page_sectors: PAGE_SECTORS, segment_pages: SEGMENT_PAGES, spare_segments: 0 };
/// Of devices in memory that are tried.
const SEED: u64 = 1;
/// The target that is made for a file system.
const NAME: &str = "parafs";
/// How often somebody who wants it to end is looked for.
const LOOK_EVERY: Ns = Ns::from_ms(20);

/// Why a file system could not be made, mounted or checked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FilesError {
    #[error(transparent)]
    Lnvm(#[from] LnvmError),
    #[error(transparent)]
    Verb(#[from] verbs::VerbError),
    #[error("target {target}: {source}")]
    Stack { target: String, source: Box<StackError> },
    #[error("target {target} is of type `none`: a file system needs one of another type")]
    Raw { target: String },
    #[error(
        "target {target} has a ParaFS file system already ({label}); `--force` makes a new one, and \
         what is in the old one is lost"
    )]
    Exists { target: String, label: String },
    #[error(
        "target {target} holds {found}; `--force` makes a file system all the same, and what is there is \
         lost"
    )]
    Occupied { target: String, found: String },
    #[error("{target}: there is no ParaFS file system; `flashlane mkfs` makes one")]
    None { target: String },
    #[error("{target}: there is no {what} in its file system")]
    Nothing { target: String, what: What },
    /// There is no room for a file system, and what would do.
    #[error("{place}: {says}")]
    Room { place: String, says: String },
    #[error("target {target}: {source}")]
    Fs { target: String, source: FsError },
    #[error("{}: it can't be mounted there: {source}", at.display())]
    Fuse { at: PathBuf, source: std::io::Error },
    #[error(
        "{}: the drive lost its power {at} into the mount: what was not synced may be lost",
        image.display()
    )]
    PowerCut { image: PathBuf, at: Ns },
    #[error("{source}")]
    Stalled { source: Stalled },
}

fn failed(target: &str) -> impl Fn(StackError) -> FilesError {
    move |source| FilesError::Stack { target: target.into(), source: source.into() }
}

fn of_fs(target: &str) -> impl Fn(FsError) -> FilesError {
    move |source| match source {
        FsError::NotFound => FilesError::None { target: target.into() },
        source => FilesError::Fs { target: target.into(), source },
    }
}

/// The medium that a target is.
pub(crate) fn medium(stack: &Stack) -> Medium {
    medium_of(stack.layers())
}

/// A target that is mounted, for a file system on it.
struct Ready {
    cx: Cx,
    medium: Medium,
    sectors: Arc<dyn BlockDev>,
    opened: Rc<Opened>,
    /// A line for people about each loss that its mount has found.
    losses: Vec<String>,
}

/// Mounts a target, has `work` done with it, and closes the drive.
async fn with_target<T, F>(
    cx: &Cx,
    target: Target,
    switch: Option<Rc<Switch>>,
    work: impl FnOnce(Ready) -> F,
) -> Result<T, FilesError>
where
    F: Future<Output = Result<T, FilesError>>,
{
    let on = target.drive.clone().expect("it is of a drive");
    let opened = Opened::open(cx, &target, &on, switch).map_err(failed(&on.name))?;
    opened.expect(std::iter::once(&*on.name));
    let stack = Stack::mount(cx, &target, &opened).await.map_err(failed(&on.name))?;
    let lines = stack.mounted().map_or(Vec::new(), |m| mount_lines(&m.lost));
    let ready = Ready {
        cx: cx.clone(),
        medium: medium(&stack),
        sectors: stack.layers().block(),
        opened,
        losses: lines.iter().map(|line| format!("{}: {line}", on.name)).collect(),
    };
    let done = work(ready).await;
    stack.drain(cx).await;
    let stopped = stack.stop(cx).await;
    let closed = stack.close().map_err(failed(&on.name));
    let done = done?;
    closed?;
    match stopped.read_only {
        None => Ok(done),
        Some(why) => Err(of_fs(&on.name)(FsError::ReadOnly(why))),
    }
}

fn target(on: &DriveTarget, timing: bool) -> Result<Target, FilesError> {
    let options = SsdOptions { timing, ..SsdOptions::default() };
    let target = target_of_drive(on, &options).map_err(failed(&on.name))?;
    match target.stack.is_raw() {
        true => Err(FilesError::Raw { target: on.name.clone() }),
        false => Ok(target),
    }
}

/// Does something with a target as fast as this machine goes.
fn at_once<T: 'static, F>(
    target: Target,
    work: impl FnOnce(Ready) -> F + 'static,
) -> Result<T, FilesError>
where
    F: Future<Output = Result<T, FilesError>> + 'static,
{
    let clock = Virtual::new(1, 0, CostTable::zero());
    let cx = clock.cx();
    let done = clock.run(async move { with_target(&cx, target, None, work).await });
    done.map_err(|source| FilesError::Stalled { source })?
}

/// A file system that is to be made.
#[derive(Clone, Debug)]
pub struct Making {
    pub image: PathBuf,
    /// The target; without it the only one of the drive, or a new one of type `sftl` where there is
    /// none.
    pub target: Option<String>,
    pub label: String,
    pub uuid: [u8; 16],
    /// Pages of files have checksums.
    pub data_checksums: bool,
    /// Whatever is there is lost.
    pub force: bool,
    pub owner: (u32, u32),
}

/// What was made.
#[derive(Clone, Debug)]
pub struct Made {
    pub target: String,
    pub kind: String,
    /// The target was made for it.
    pub new_target: bool,
    pub bytes: u64,
    /// What files and their nodes can have of them.
    pub for_files: u64,
    pub page_bytes: u64,
    pub regions: u32,
    pub segments: u32,
}

impl fmt::Display for Made {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let new = if self.new_target { ", a new one" } else { "" };
        let over = match self.regions {
            1 => "one region".to_string(),
            n => format!("{n} regions, one for each channel"),
        };
        write!(
            f,
            "a file system of {}, {} of them for files, on target {} ({}{new}): pages of {}, {} segments \
             in {over}",
            Bytes::new(self.bytes),
            Bytes::new(self.for_files),
            self.target,
            self.kind,
            Bytes::new(self.page_bytes),
            self.segments,
        )
    }
}

/// The target that has the file system, or is to have one; nothing where the drive has none at all.
fn find(
    image: &Path,
    name: Option<&str>,
    how: MountHow,
) -> Result<Option<(DriveTarget, String)>, FilesError> {
    let names: Vec<String> = name.map(str::to_string).into_iter().collect();
    match lnvm::choose_all(image, &names, how) {
        Ok(found) => Ok(found.into_iter().next()),
        Err(LnvmError::NoTarget { .. }) if name.is_none() => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// Makes a file system, and a target for it where the drive has none.
///
/// # Errors
/// There is no such drive or target, there is a file system already, or there is no room for one.
pub fn make(making: &Making, now: Time) -> Result<Made, FilesError> {
    let found = find(&making.image, making.target.as_deref(), MountHow::default())?;
    let new_target = found.is_none();
    let (on, kind) = match found {
        Some(found) => found,
        None => {
            has_room(&making.image)?;
            make_target(making, making.target.as_deref().unwrap_or(NAME))?
        }
    };
    let mut made = make_on(&on, making, now);
    let is_unusable = |e: &FilesError| match e {
        FilesError::Stack { source, .. } => matches!(&**source, StackError::Layer(e) if e.mounting),
        _ => false,
    };
    if made.as_ref().is_err_and(is_unusable) && !new_target && making.force && kind == SFTL.name() {
        // The target can't be mounted, and `force` gives up its content: make the target anew.
        verbs::ask(&on.image, &Ask::Remove { target: on.name.clone() })?;
        make_target(making, &on.name)?;
        made = make_on(&on, making, now);
    }
    if made.is_err() && new_target {
        // Nobody asked for it but for the file system. What kept that from being made matters more.
        let _ = verbs::ask(&on.image, &Ask::Remove { target: on.name.clone() });
    }
    let (shape, for_files) = made?;
    let segment_bytes = u64::from(shape.segment_pages) * shape.page_bytes() as u64;
    Ok(Made {
        target: on.name,
        kind,
        new_target,
        bytes: shape.pages() * shape.page_bytes() as u64,
        for_files: u64::from(for_files) * segment_bytes,
        page_bytes: shape.page_bytes() as u64,
        regions: shape.regions,
        segments: shape.segments(),
    })
}

/// Creates the S-FTL target for a file system. With `making.force` it ignores what an earlier
/// target left on the PUs; without, it takes that over.
fn make_target(making: &Making, name: &str) -> Result<(DriveTarget, String), FilesError> {
    let ask = Create {
        name: name.into(),
        kind: TargetType::of(SFTL.name()).expect("it is one"),
        begin: None,
        end: None,
        over_provisioning: None,
        factory: making.force,
        how: MountHow::default(),
        options: lnvm::Options::default(),
    };
    let made = lnvm::create(&making.image, &ask)?;
    let (image, how) = (making.image.clone(), MountHow::default());
    Ok((DriveTarget { image, name: name.into(), how }, made.info.kind))
}

/// Whether a drive without targets has room for one with a file system. One that would take long to try is
/// not tried.
fn has_room(image: &Path) -> Result<(), FilesError> {
    let drive = Drive::look(image)?;
    let device = DeviceChoice { spec: drive.ssd.spec().clone(), options: SsdOptions::default() };
    let layer = LayerSpec::with(&SFTL, SFTL.on_image(SFTL.defaults()));
    let stack = Description::new(device, vec![layer]);
    let place = image.display().to_string();
    match room::can_be_tried(&stack).then(|| room::check(&stack, &WANTED, SEED)) {
        Some(Err(Tight::Below)) => {
            let says = room::says_below(&stack, &WANTED, (SEED, Reader::Drive));
            says.map_or(Ok(()), |says| Err(FilesError::Room { place, says }))
        }
        Some(Err(tight)) => Err(no_room(place, &tight, &stack)),
        _ => Ok(()),
    }
}

fn no_room(place: String, tight: &Tight, stack: &Description) -> FilesError {
    FilesError::Room { place, says: room::says(tight, stack, &WANTED, (SEED, Reader::Drive)) }
}

/// What is known of file systems and others by some bytes at a place of their own.
const KNOWN: [(usize, &[u8], &str); 12] = [
    (0x438, &[0x53, 0xef], "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x10040, b"_BHRfS_M", "a btrfs file system"),
    (0x400, &[0x10, 0x20, 0xf5, 0xf2], "an F2FS file system"),
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (3, b"NTFS    ", "an NTFS file system"),
    (54, b"FAT", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0x200, b"LABELONE", "a physical volume (LVM)"),
    (0x200, b"EFI PART", "a partition table"),
    (0x1fe, &[0x55, 0xaa], "a partition table or a boot sector"),
];
/// The sectors in which all of that lies.
const KNOWN_SECTORS: u64 = 17;

/// What is on a target, if anything is.
async fn occupied(cx: &Cx, sectors: &dyn BlockDev) -> Option<String> {
    let capacity = sectors.info().capacity;
    let (mut at, mut mapped) = (0, 0);
    while at < capacity {
        let Extent { sectors: n, holds } = sectors.extent(Lba::new(at), capacity - at);
        mapped += if holds { n } else { 0 };
        at += n.max(1);
    }
    if mapped == 0 {
        return None;
    }
    let first = KNOWN_SECTORS.min(capacity);
    let mut head = vec![0; first as usize * SECTOR_BYTES];
    let read = Io::read(Lba::new(0), first as u32, &mut head);
    // What can't be read is known by nothing, and is there all the same.
    let is_read = sectors.start(cx, read).await.is_ok();
    let known = KNOWN.iter().filter(|_| is_read).find(|(at, magic, _)| {
        head.get(*at..at + magic.len()).is_some_and(|there| there == *magic)
    });
    let bytes = Bytes::new(mapped * SECTOR_BYTES as u64);
    Some(match known {
        Some((.., what)) => format!("{what} ({bytes} written)"),
        None => format!("data of no kind that is known here ({bytes} written)"),
    })
}

/// What was made: its shape, and the segments for files.
fn make_on(on: &DriveTarget, making: &Making, now: Time) -> Result<(Shape, u32), FilesError> {
    let target = target(on, false)?;
    let stack = target.stack.clone();
    let (making, name) = (making.clone(), on.name.clone());
    let made = at_once(target, move |ready| async move {
        let Ready { cx, medium, sectors, .. } = ready;
        let layout = match room::plan(&medium, &WANTED) {
            Ok(layout) => layout,
            Err(tight) => return Ok(Err(tight)),
        };
        if !making.force
            && let Some(label) = flashlane_parafs::label(&cx, &medium).await
        {
            let label = if label.is_empty() { "no label".into() } else { label };
            return Err(FilesError::Exists { target: name, label });
        }
        if !making.force
            && !mutant!("lab.mkfs-over-anything")
            && let Some(found) = occupied(&cx, &*sectors).await
        {
            return Err(FilesError::Occupied { target: name, found });
        }
        let (uid, gid) = making.owner;
        let Making { uuid, label, data_checksums, .. } = making;
        let make = Make { uuid, label, data_checksums, uid, gid, ..Make::default() };
        let for_files = segments_for_files(&medium, &layout);
        mkfs(&cx, medium, layout, &make, now).await.map_err(of_fs(&name))?;
        Ok(Ok((layout.shape, for_files)))
    })?;
    made.map_err(|tight| no_room(format!("target {}", on.name), &tight, &stack))
}

/// A file system that is to be mounted.
#[derive(Clone, Debug)]
pub struct Mounting {
    pub image: PathBuf,
    pub target: Option<String>,
    pub at: PathBuf,
    /// Requests take the device's time.
    pub timing: bool,
    pub how: How,
    /// What is written is durable so long after that, though nobody asks for it.
    pub commit: Ns,
    /// Bytes of memory that its caches use.
    pub memory: u64,
    pub clock: Clock,
}

/// What the kernel calls a mounted one.
const MOUNTED: &str = "fuse.parafs";

/// Takes mounts off a directory that were left there as their process was killed. What else is there stays.
///
/// # Errors
/// There is one that can't be taken off.
pub fn clear_directory(at: &Path) -> Result<(), PlaceError> {
    match flashlane_serve::fuse::clear_directory(at, MOUNTED) {
        // That there is no such directory is said by whoever looks at it.
        Err(PlaceError::Io(_)) => Ok(()),
        done => done,
    }
}

/// Mounts a file system on a directory until somebody unmounts it, or the monitor says that it is to
/// end. `ready` is told when it can be used, with what the mount has found.
///
/// # Errors
/// There is no file system, it can't be mounted, or what was written could not be made durable.
pub fn mount(
    mounting: &Mounting,
    monitor: Rc<dyn Monitor>,
    ready: impl Fn(&Recovered) + 'static,
    say: impl Fn(&dyn fmt::Display) + 'static,
) -> Result<(), FilesError> {
    let image = &mounting.image;
    let Some((on, _)) = find(image, mounting.target.as_deref(), MountHow::default())? else {
        return Err(FilesError::None { target: image.display().to_string() });
    };
    flashlane_serve::fuse::keep_out_of_reclaim();
    let target = target(&on, mounting.timing)?;
    let (mounting, name) = (mounting.clone(), on.name.clone());
    let switch = Rc::new(Switch::default());
    let ours = Rc::new(OnceCell::new());
    let (power, theirs) = (switch.clone(), ours.clone());
    let main = move |cx: Cx| async move {
        let work = |on| use_it(on, theirs, mounting, name, monitor, (ready, say));
        power.unless_off(&cx, with_target(&cx, target, Some(power.clone()), work)).await
    };
    let ended = Threads::new(1, 0).run_here_until(main);
    let (done, when) = ended.map_err(|source| FilesError::Stalled { source })?;
    done.unwrap_or_else(|| {
        ours.get().into_iter().for_each(Ours::give_up);
        let image = switch.cut(when).map_err(|e| failed(&on.name)(e.into()))?;
        Err(FilesError::PowerCut { image, at: when })
    })
}

async fn use_it(
    on: Ready,
    ours: Rc<OnceCell<Ours>>,
    mounting: Mounting,
    name: String,
    monitor: Rc<dyn Monitor>,
    (ready, say): (impl Fn(&Recovered), impl Fn(&dyn fmt::Display)),
) -> Result<(), FilesError> {
    let Ready { cx, medium, opened, losses, .. } = on;
    losses.iter().for_each(|line| say(line));
    let options = Options { commit: mounting.commit, ..Options::default() };
    let mounted = Fs::mount_within(&cx, medium, options, Some(mounting.memory)).await;
    let (fs, found) = mounted.map_err(of_fs(&name))?;
    let Mounting { at, mut how, clock, .. } = mounting;
    // Where data is missing nothing is written, and the kernel says so at once.
    how.read_only |= found.read_only.is_some();
    let source = mounting.image.display().to_string();
    let mounted = Mounted::mount(&cx, fs.clone(), &at, &source, how, clock);
    let mounted = match mounted {
        Ok(mounted) => mounted,
        Err(source) => {
            fs.unmount(&cx).await.map_err(of_fs(&name))?;
            return Err(FilesError::Fuse { at, source });
        }
    };
    let mount = ours.get_or_init(|| Ours::on(&at));
    ready(&found);
    let mut told = false;
    loop {
        if mounted.is_over() {
            break;
        }
        if monitor.interrupted() {
            let mount = mount.clone();
            let take_off = move || Ok(mount.unmount()? == Unmounted::Done);
            let why = match mounted.unmount(&cx, take_off).await {
                Ok(true) => break,
                Ok(false) => "it is in use".to_string(),
                Err(e) => e.to_string(),
            };
            if !told {
                let at = at.display();
                say(&format_args!(
                    "{at} stays mounted ({why}): the mount ends when no file is open there"
                ));
                told = true;
                // What is there is durable, whatever happens now.
                if let Err(e) = fs.sync(&cx).await {
                    say(&format_args!("{at}: {e}"));
                }
            }
            cx.sleep(Ns::from_ms(200)).await;
        }
        cx.sleep(LOOK_EVERY).await;
    }
    opened.stop_listening();
    mounted.drained(&cx).await;
    fs.unmount(&cx).await.map_err(of_fs(&name))
}

/// Checks a file system. With `mends` it is repaired, at this time, and fsyncs of one that was not
/// unmounted are taken as by a mount; without it nothing is written. Returns what was found and
/// done, and a line for people about each loss that the mount of the target has found. `progress`
/// hears how far it is: what it looks at, how much of that is done, and how much there is.
///
/// # Errors
/// There is no file system, or it is too damaged to check; the repair could not be written; or the
/// repair would give up data that can't be read, and [`Unread::Refuse`] forbids it.
pub fn fsck(
    image: &Path,
    name: Option<&str>,
    mends: Option<(Time, Unread)>,
    depth: Depth,
    progress: Rc<dyn Fn(&'static str, u64, u64)>,
) -> Result<(Repaired, Vec<String>), FilesError> {
    let accept_lost = matches!(mends, Some((_, Unread::GiveUp)));
    let (target, name) = there(image, name, MountHow { accept_lost, ..MountHow::default() })?;
    at_once(target, move |ready| async move {
        let Ready { cx, medium, losses, .. } = ready;
        let Some((now, unread)) = mends else {
            let report = check_with(&cx, &medium, depth, &*progress).await.map_err(of_fs(&name))?;
            let done = Repaired { after: report.clone(), before: report, ..Repaired::default() };
            return Ok((done, losses));
        };
        let done = repair_with(&cx, &medium, now, unread, depth, &*progress).await;
        let mut done = done.map_err(of_fs(&name))?;
        if !done.after.clean && done.after.found == 0 {
            let mounted = Fs::mount(&cx, medium.clone(), Options::default()).await;
            let (fs, found): (Arc<Fs>, _) = mounted.map_err(of_fs(&name))?;
            fs.unmount(&cx).await.map_err(of_fs(&name))?;
            done.recovered = found;
            let after = check_with(&cx, &medium, depth, &*progress).await;
            done.after = after.map_err(of_fs(&name))?;
        }
        Ok((done, losses))
    })
}

/// A target that has a file system, and its name.
fn there(image: &Path, name: Option<&str>, how: MountHow) -> Result<(Target, String), FilesError> {
    let Some((on, _)) = find(image, name, how)? else {
        return Err(FilesError::None { target: image.display().to_string() });
    };
    Ok((target(&on, false)?, on.name))
}

/// What lies on the medium of a file system, as a text.
///
/// # Errors
/// There is none, or no such thing in it, or it can't be read.
pub fn dump(image: &Path, name: Option<&str>, what: What) -> Result<String, FilesError> {
    let (target, name) = there(image, name, MountHow::default())?;
    at_once(target, move |ready| async move {
        let Ready { cx, medium, .. } = ready;
        flashlane_parafs::dump(&cx, &medium, &what).await.map_err(|source| match source {
            FsError::NotFound if what != What::All => FilesError::Nothing { target: name, what },
            source => of_fs(&name)(source),
        })
    })
}
