//! Mounts of a small drive on which some bytes are not what was written: metadata, out-of-band
//! records, logs, pages, user data, with checksums that are wrong and with some that are right.
//!
//! Owns: the drives (made once), what a change of theirs is, and what must hold whatever was changed.
//! Promises: a mount gives the target or a message, in bounded virtual time, and a read gives what
//! [`Right`] says. Without a change, or with one in one copy of metadata, nothing is refused or lost.
//! Never: knows where changes come from.

use super::blocks::{seal, seal_entries};
use flashlane_base::{Lba, Ns};
use flashlane_ftl::block::{BlockDev, BlockError, BlockOp, BlockResult, Io};
use flashlane_ftl::log::format::{
    LBA_ANCHOR, LBA_CHECKPOINT, LBA_LIMIT, LBA_LINE_CLOSING, LBA_LINE_FIRST, LBA_LOG, LBA_SNAPSHOT,
    Oob, SECTOR_BYTES, identify,
};
use flashlane_ftl::log::{LogConfig, MountOptions, Pblk};
use flashlane_ftl::pftl::{Pftl, PftlConfig};
use flashlane_media::host::HostFile;
use flashlane_media::host::memory::MemoryFile;
use flashlane_ocssd::image::{Header, UNCHECKED};
use flashlane_ocssd::{CreateImage, DeviceSpec, OpenImage, Ssd};
use flashlane_rt::{CostTable, Cx, Virtual};
use flashlane_testkit::content::{self, Found, Version};
use std::cell::RefCell;
use std::future::Future;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

pub(crate) const NAMES: [&str; 2] = ["mount-pblk", "mount-pftl"];

/// A mount with a look at every sector and some writes takes milliseconds.
const VIRTUAL_MAX: Ns = Ns::from_ms(60_000);
/// How a target was left: stopped, or while it worked with everything flushed.
const ENDINGS: usize = 2;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Layer {
    Pblk,
    Pftl,
}

/// Does with `bytes` what the target does, if it is one of these.
pub(crate) fn run(target: &str, bytes: &[u8]) -> Option<bool> {
    static MADE: OnceLock<[Drive; 2 * ENDINGS]> = OnceLock::new();
    let layer = match target {
        "mount-pblk" => Layer::Pblk,
        "mount-pftl" => Layer::Pftl,
        _ => return None,
    };
    let drives = MADE.get_or_init(|| {
        let of = |layer, stopped| Drive::make(layer, stopped);
        let (pblk, pftl) = (Layer::Pblk, Layer::Pftl);
        [of(pblk, true), of(pblk, false), of(pftl, true), of(pftl, false)]
    });
    let (ending, changes) = bytes.split_first().unwrap_or((&0, &[]));
    let drive = &drives[layer as usize * ENDINGS + *ending as usize % ENDINGS];
    Some(drive.changed(changes).mount(drive))
}

/// What a read may give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Right {
    /// What was written last.
    Newest,
    /// A content that this sector had at some time, zeros or an error.
    Own,
    /// Anything: a checksum of user data was forged.
    Any,
}

/// What each sector held, by address, oldest first; version 0 is zeros.
type Held = Vec<Vec<u32>>;

/// A drive as it was left.
struct Drive {
    layer: Layer,
    file: Vec<u8>,
    sectors: Vec<At>,
    held: Held,
}

/// A sector that was written: where its content and its out-of-band record are in the file.
#[derive(Clone, Copy)]
struct At {
    content: usize,
    oob: usize,
    /// Behind the last sector of its chunk.
    end: usize,
    kind: usize,
}

/// Kinds of sectors that a change can ask for: 0 is any, 7 what is none of the others.
fn kind_of(lba: u64, capacity: u64) -> usize {
    match lba {
        LBA_LOG => 1,
        LBA_ANCHOR => 2,
        LBA_LINE_FIRST => 3,
        LBA_LINE_CLOSING => 4,
        LBA_CHECKPOINT => 5,
        // What the block SSD leaves at a stop.
        LBA_SNAPSHOT => 1,
        user if user < capacity => USER,
        // The block SSD's pages have numbers behind its capacity.
        page if page < LBA_LIMIT => 5,
        _ => 7,
    }
}

const USER: usize = 6;

fn spec() -> DeviceSpec {
    let mut spec = DeviceSpec::preset("tiny").expect("a preset");
    let g = &mut spec.geometry;
    (g.channels, g.pus_per_channel, g.planes, g.chunks_per_pu) = (2, 1, 1, 40);
    (g.pages_per_block, g.sectors_per_page, g.ws_min, g.ws_opt) = (16, 1, 1, 2);
    g.mw_cunits = 2;
    spec
}

fn open(file: &Arc<MemoryFile>) -> Arc<Ssd> {
    Ssd::open_on(file.clone(), &OpenImage::default()).expect("the image itself is good")
}

/// Runs to the end, which must come.
fn run_bounded<T: 'static, F: Future<Output = T> + 'static>(work: impl FnOnce(Cx) -> F) -> T {
    let clock = Virtual::new(1, 1, CostTable::zero());
    let cx = clock.cx();
    let late = cx.clone();
    cx.spawn(async move {
        late.sleep(VIRTUAL_MAX).await;
        panic!("no end in {VIRTUAL_MAX} of virtual time");
    });
    clock.run(work(cx)).expect("nothing stalls")
}

async fn ask(
    cx: &Cx,
    dev: &dyn BlockDev,
    op: BlockOp,
    lba: u64,
    sectors: u32,
    buf: &mut [u8],
) -> BlockResult {
    dev.start(cx, Io::of(op, Lba::new(lba), sectors, false, buf)).await
}

/// A target of either layer.
#[derive(Clone)]
enum Target {
    Pblk(Arc<Pblk>),
    Pftl(Arc<Pftl>),
}

impl Target {
    fn dev(&self) -> &dyn BlockDev {
        match self {
            Target::Pblk(ftl) => &**ftl,
            Target::Pftl(ftl) => &**ftl,
        }
    }

    async fn create(cx: &Cx, layer: Layer, ssd: Arc<Ssd>) -> Target {
        match layer {
            Layer::Pblk => {
                let config = LogConfig::default();
                Target::Pblk(Pblk::create(cx, ssd, config).await.expect("a target"))
            }
            Layer::Pftl => Target::Pftl(Pftl::create(cx, ssd, pftl_config()).expect("a target")),
        }
    }

    async fn mount(cx: &Cx, layer: Layer, ssd: Arc<Ssd>, way: Way) -> Result<Target, String> {
        let (read_only, accept) = (way == Way::ReadOnly, way == Way::Accepting);
        match layer {
            Layer::Pblk => {
                let options = MountOptions {
                    uuid: None,
                    read_only,
                    accept_lost: accept,
                    undo_discards: accept,
                };
                let ftl = Pblk::mount(cx, ssd, options).await;
                ftl.map(Target::Pblk).map_err(|e| e.to_string())
            }
            Layer::Pftl => {
                let config = PftlConfig { accept_lost_sectors: accept, ..pftl_config() };
                let ftl = Pftl::mount(cx, ssd, config, None).await;
                ftl.map(Target::Pftl).map_err(|e| e.to_string())
            }
        }
    }

    async fn stop(&self, cx: &Cx) {
        match self {
            Target::Pblk(ftl) => drop(ftl.stop(cx).await),
            Target::Pftl(ftl) => ftl.stop(cx).await,
        }
    }

    async fn collect(&self, cx: &Cx) {
        if let Target::Pblk(ftl) = self {
            ftl.gc_once(cx).await;
        }
    }
}

fn pftl_config() -> PftlConfig {
    PftlConfig { over_provisioning_percent: 70, ..PftlConfig::default() }
}

/// How a target is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Plain,
    ReadOnly,
    /// What is lost is lost.
    Accepting,
}

impl Drive {
    fn make(layer: Layer, stopped: bool) -> Drive {
        let file = Arc::new(MemoryFile::default());
        let spec = spec();
        Ssd::create_on(file.clone(), &spec, &CreateImage::default()).expect("an image");
        // Of a format that does not check contents: the layer has to.
        let header = Header { version: UNCHECKED, ..Header::read(&*file).expect("a header") };
        file.write_at(0, &header.to_bytes().expect("it fits")).expect("written");
        let ssd = open(&file);
        let held = run_bounded(|cx| lived(cx, layer, ssd, stopped));
        let file = file.bytes();
        let capacity = held.len() as u64;
        let sectors = sectors(&file, &spec, capacity);
        Drive { layer, file, sectors, held }
    }

    /// The drive with some bytes changed. A change is a head of 6 bytes and what is written over:
    /// what kind of sector (3 bits) and how ([`RECORD`], [`SEALED`], [`EVERYWHERE`]), which one of
    /// them (2 bytes), from which byte on (2), how many bytes (1).
    fn changed(&self, mut changes: &[u8]) -> Changed {
        let mut file = self.file.clone();
        let mut out = Changed { file: Vec::new(), forged: false, metadata: 0, others: 0 };
        while let Some((head, rest)) = changes.split_first_chunk::<6>() {
            let [how, which, which_high, from, from_high, len] = head.map(usize::from);
            let (with, rest) = rest.split_at(rest.len().min(len));
            changes = rest;
            let kind = how & 7;
            let of = || self.sectors.iter().filter(|at| kind == 0 || at.kind == kind);
            let Some(at) = of().nth((which | which_high << 8) % of().count().max(1)) else {
                continue;
            };
            let same = |other: &&At| {
                let of = |at: &At| &self.file[at.content..at.content + SECTOR_BYTES];
                other.content == at.content || how & EVERYWHERE != 0 && of(other) == of(at)
            };
            for at in self.sectors.iter().filter(same) {
                out.note(at, how);
                let range = match how & RECORD {
                    0 => at.content..at.content + SECTOR_BYTES,
                    _ => at.oob..at.oob + Oob::BYTES,
                };
                let place = &mut file[range];
                let from = (from | from_high << 8) % place.len();
                place[from..].iter_mut().zip(with).for_each(|(to, b)| *to = *b);
                if how & SEALED != 0 {
                    reseal(&mut file, at);
                }
            }
        }
        out.file = file;
        out
    }
}

/// The change is to the sector's out-of-band record.
const RECORD: usize = 8;
/// Checksums are made right afterwards.
const SEALED: usize = 16;
/// All sectors with this content are changed: both copies of what is mirrored.
const EVERYWHERE: usize = 32;

/// Makes the checksums of a sector right: of the block that it belongs to, and its record's.
fn reseal(file: &mut [u8], at: &At) {
    let begins = |file: &[u8], at: usize| identify(&file[at..]).is_some();
    let content = at.content..at.content + SECTOR_BYTES;
    // A page of the block SSD, or a sector of its snapshot.
    let is_page = file[content.clone()].starts_with(b"FLp");
    // Closing metadata and the blocks of a log are longer than a sector.
    let first = (0..16).filter_map(|n| at.content.checked_sub(n * SECTOR_BYTES));
    let first = first.take_while(|at| *at > 0).find(|at| begins(file, *at));
    match first {
        _ if is_page => {
            let page = &mut file[content.clone()];
            let crc = flashlane_base::crc32c(&page[8..]);
            page[4..8].copy_from_slice(&crc.to_le_bytes());
        }
        Some(first) if first != at.content && at.kind == 4 => {
            seal_entries(&mut file[first..content.end], at.content - first);
        }
        Some(first) if at.kind < USER => seal(&mut file[first..at.end]),
        _ => {}
    }
    let (lba, stamp, _) = Oob::decode_raw(file[at.oob..].first_chunk().expect("a record"));
    let record = Oob::encode_raw(lba, stamp, Oob::content_crc(&file[content]));
    file[at.oob..at.oob + Oob::BYTES].copy_from_slice(&record);
}

/// Writes, overwrites, discards, flushes; then a stop, or not.
async fn lived(cx: Cx, layer: Layer, ssd: Arc<Ssd>, stopped: bool) -> Held {
    let target = Target::create(&cx, layer, ssd).await;
    let capacity = target.dev().info().capacity;
    let mut held: Held = vec![vec![0]; capacity as usize];
    let mut version = 0;
    let all = capacity as u32;
    // What is written: (first, sectors), each in a version of its own; no length is a flush.
    let mut story = vec![(0, all / 2), (all / 2, all - all / 2), (0, 0)];
    story.extend((0..6).flat_map(|i| [(i * 7 % (all / 2), 5), (all / 3, 9), (i * 3, 0)]));
    for (lba, sectors) in story {
        if sectors == 0 {
            // Discards what was overwritten, too.
            let gone = (all - 12 + lba % 8, 3);
            ask(&cx, target.dev(), BlockOp::Discard, gone.0.into(), gone.1, &mut [])
                .await
                .expect("discarded");
            (gone.0..gone.0 + gone.1).for_each(|lba| held[lba as usize].push(0));
            ask(&cx, target.dev(), BlockOp::Flush, 0, 0, &mut []).await.expect("flushed");
            continue;
        }
        version += 1;
        write(&cx, &target, (lba.into(), sectors), version, &mut held).await.expect("written");
    }
    if layer == Layer::Pblk {
        target.collect(&cx).await;
    }
    ask(&cx, target.dev(), BlockOp::Flush, 0, 0, &mut []).await.expect("flushed");
    if stopped {
        target.stop(&cx).await;
    }
    held
}

async fn write(
    cx: &Cx,
    target: &Target,
    (lba, sectors): (u64, u32),
    version: u32,
    held: &mut Held,
) -> BlockResult {
    let mut bytes = vec![0; sectors as usize * SECTOR_BYTES];
    for (lba, sector) in (lba..).zip(bytes.chunks_mut(SECTOR_BYTES)) {
        content::fill(Lba::new(lba), Version(version), sector);
        held[lba as usize].push(version);
    }
    ask(cx, target.dev(), BlockOp::Write, lba, sectors, &mut bytes).await
}

/// The sectors of an image that hold anything.
fn sectors(file: &[u8], spec: &DeviceSpec, capacity: u64) -> Vec<At> {
    let layout = Header::read(&MemoryFile::new(file.to_vec())).expect("a header").layout();
    assert_eq!(spec.geometry().sectors_per_chunk(), layout.sectors);
    let (per_slot, slots_at) = (layout.sectors as usize, layout.slots_at() as usize);
    let slot_bytes = layout.slot_bytes() as usize;
    let slots = (slots_at..file.len()).step_by(slot_bytes);
    let mut all = Vec::new();
    for slot in slots.filter(|slot| slot + slot_bytes <= file.len()) {
        let end = slot + per_slot * SECTOR_BYTES;
        for i in 0..per_slot {
            let (content, oob) = (slot + i * SECTOR_BYTES, end + i * Oob::BYTES);
            let record: &[u8; Oob::BYTES] = file[oob..].first_chunk().expect("a record");
            if *record != [0; Oob::BYTES] {
                let kind = kind_of(Oob::split_tag(Oob::decode_raw(record).0).0, capacity);
                all.push(At { content, oob, end, kind });
            }
        }
    }
    all
}

struct Changed {
    file: Vec<u8>,
    /// A checksum of user data was made right: no content can be told from another.
    forged: bool,
    /// Sectors of metadata changed once each, in one copy, under checksums that tell.
    metadata: u32,
    others: u32,
}

impl Changed {
    fn note(&mut self, at: &At, how: usize) {
        // An out-of-band record can make user data of anything, and the other way round.
        self.forged |= how & SEALED != 0 && (at.kind >= USER || how & RECORD != 0);
        // A line's metadata without its record may have been user data.
        let spare = at.kind < USER && !(how & RECORD != 0 && (3..5).contains(&at.kind));
        match spare && how & (SEALED | EVERYWHERE) == 0 {
            true => self.metadata += 1,
            false => self.others += 1,
        }
    }

    /// Mounts it in every way; true when the plain one went well.
    fn mount(self, drive: &Drive) -> bool {
        let ways = [Way::Plain, Way::ReadOnly, Way::Accepting];
        let plain = ways.map(|way| {
            let file = Arc::new(MemoryFile::new(self.file.clone()));
            let held = Rc::new(RefCell::new(drive.held.clone()));
            // Twice: what the first mount did is to be read again.
            let first = self.life(drive, &file, way, &held);
            if let Err(e) = &first {
                assert!(!e.trim().is_empty());
            } else if way != Way::ReadOnly {
                let again = self.life(drive, &file, way, &held);
                assert!(
                    self.right(drive.layer) != Right::Newest || again.is_ok(),
                    "what was mounted and stopped is refused: {again:?}"
                );
            }
            first
        });
        assert!(self.right(drive.layer) != Right::Newest || plain[0].is_ok(), "{:?}", plain[0]);
        plain[0].is_ok()
    }

    /// One copy of one sector of metadata is nothing that pblk needs.
    fn right(&self, layer: Layer) -> Right {
        match (self.metadata, self.others) {
            _ if self.forged => Right::Any,
            (0, 0) => Right::Newest,
            (1, 0) if layer == Layer::Pblk => Right::Newest,
            _ => Right::Own,
        }
    }

    /// One life: everything is read, some is written and collected, then it is stopped.
    fn life(
        &self,
        drive: &Drive,
        file: &Arc<MemoryFile>,
        way: Way,
        held: &Rc<RefCell<Held>>,
    ) -> Result<(), String> {
        let (layer, ssd, right) = (drive.layer, open(file), self.right(drive.layer));
        let held = held.clone();
        run_bounded(move |cx| async move {
            let target = Target::mount(&cx, layer, ssd, way).await?;
            let capacity = target.dev().info().capacity;
            let mut now = held.borrow().clone();
            let same = capacity as usize == now.len();
            assert!(right == Right::Any || same, "{capacity} sectors");
            read_all(&cx, &target, &now, right).await;
            if way == Way::ReadOnly {
                return Ok(());
            }
            let mut version = 100;
            for lba in (0..capacity.saturating_sub(4)).step_by(11) {
                version += 1;
                now.resize(capacity as usize, vec![0]);
                taken(write(&cx, &target, (lba, 4), version, &mut now).await, right);
            }
            target.collect(&cx).await;
            taken(ask(&cx, target.dev(), BlockOp::Flush, 0, 0, &mut []).await, right);
            read_all(&cx, &target, &now, right).await;
            *held.borrow_mut() = now;
            target.stop(&cx).await;
            Ok(())
        })
    }
}

/// A write or a flush is done, or the target has become read-only over its damage.
fn taken(result: BlockResult, right: Right) {
    match result {
        Ok(()) => {}
        Err(BlockError::ReadOnly(_)) if right != Right::Newest => {}
        Err(e) => panic!("a write or flush fails: {e}"),
    }
}

/// Each sector gives what is right.
async fn read_all(cx: &Cx, target: &Target, held: &Held, right: Right) {
    for lba in 0..target.dev().info().capacity {
        let mut sector = vec![0xa5; SECTOR_BYTES];
        match ask(cx, target.dev(), BlockOp::Read, lba, 1, &mut sector).await {
            Ok(()) if right == Right::Any => {}
            Ok(()) => {
                let (found, held) = (content::name(&sector), &held[lba as usize]);
                let version = match found {
                    Found::Zeros => Some(0),
                    Found::Sector(of, version) if of.get() == lba => Some(version.0),
                    _ => None,
                };
                let is_right = version.is_some_and(|version| match right {
                    Right::Newest => held.last() == Some(&version),
                    _ => version == 0 || held.contains(&version),
                });
                assert!(
                    is_right,
                    "sector {lba} holds {found}, where {right:?} of {held:?} is right"
                );
            }
            Err(BlockError::Uncorrectable(_)) if right != Right::Newest => {}
            Err(e) => panic!("a read of sector {lba} fails: {e}"),
        }
    }
}
