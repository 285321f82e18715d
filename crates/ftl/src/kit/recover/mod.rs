//! Mount: from what lies on the medium, and what capacitors saved, to a running device.
//!
//! Owns: [`DriveFtl::mount`] and its steps. Promises: whatever the power did, each sector is what was
//! durable, or younger; what was trimmed stays so; a mount that is cut itself changes nothing of
//! that, as often as it happens. Never: erases, or programs user data; all it programs are padding
//! and, without capacitors, pages.
//!
//! 0. After a stop that left a snapshot, behind which nothing was written, the snapshot is the state
//!    (`resume.rs`), and what follows is left out, up to 6. Otherwise:
//! 1. The chunk report. Without a dump, open chunks are padded from their write pointers: what lies
//!    in a read-back window or an open pair can be read behind that only.
//! 2. The records of all written sectors, PUs side by side. What fails is tried again, at once and over
//!    time (`sectors.rs`).
//! 3. The newest copy of each page (`pages.rs`); a dump's are newer than the medium's.
//! 4. Per logical sector the highest stamp counts, whether it is a copy's, a page's or a dump's. At
//!    equal stamps the contents are equal: a dump's, else a copy that verifies.
//! 5. What could not be read. It is no loss where a program was cut or had failed, or is behind
//!    everything that its chunk holds (a torn program), nor in a chunk that is bad or has been erased.
//!    Such units are marked void from now on, because data will be written behind them. Anything else
//!    once was good: nobody knows whose it was, so an older copy of it would pass for its content. The
//!    mount is refused ([`MountError::Lost`]) unless [`DriveConfig::accept_lost_sectors`]; then all that
//!    may be older is lost.
//! 6. Open lines are written on; what a dump holds of their windows stands there, unless a cut
//!    program may have harmed it, and is not programmed again; nor is what a chunk has that was full, or
//!    that a cut program has filled: it can be read. The stamps of this life are above
//!    all that were ever given out.
//! 7. Without capacitors: void units and the new life are made durable. Then the host may write.
//!
//! `scan.rs` has 2 and 4, `judge.rs` 3 and what fills the controller, `loss.rs` 5.

mod blind;
mod judge;
mod loss;
mod older;
mod resume;
mod scan;
mod sectors;

use flashlane_base::{Location, Ns, Ppa, mutant};
use flashlane_ocssd::device::{Cause, ChunkInfo, ChunkState, Completion, Device, Flags};
use flashlane_ocssd::device::{Gather, Request};
use flashlane_rt::Cx;

use std::collections::VecDeque;
use std::sync::Arc;

use super::buffer::{NIL, Sizes};
use super::dump::Dump;
use super::pages::Pages;
use super::place::{Layout, Place, Region, Stock};
use super::snapshot::Shape;
use super::{
    Controller, CreateError, DriveConfig, DriveFtl, Frame, LIFE_SHIFT, Parts, Phase, Room, read,
    sync,
};
use crate::layer::LostSectors;
use crate::log::format::{LBA_LIMIT, LBA_PADDING, Oob};
use blind::Blind;
use older::Older;
use sectors::Medium;

/// Why a device can't be mounted. Nothing on it was changed but padding behind open chunks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MountError {
    /// The device or the configuration would not do for a new one either.
    #[error(transparent)]
    Create(#[from] CreateError),
    /// What lies there is not of a device FTL of this capacity.
    #[error(
        "sector {sector} of chunk {chunk} on PU {pu} holds logical sector {lba}, the device \
         has {capacity} and {pages} pages: it was created with another configuration"
    )]
    OtherDevice {
        pu: u32,
        chunk: u32,
        sector: u32,
        lba: u64,
        /// Logical sectors, by the configuration.
        capacity: u64,
        pages: u32,
    },
    /// A host FTL has written there.
    #[error(
        "sector {sector} of chunk {chunk} on PU {pu} holds metadata of a pblk or QBLK target: give that \
         type (`-t`), or `-f` to make a new target, which gives its data up"
    )]
    OtherType { pu: u32, chunk: u32, sector: u32 },
    /// A chunk with data is in another cell mode than the configuration gives it.
    #[error(
        "chunk {chunk} of PU {pu} holds data in another cell mode: the drive was created with other \
         regions"
    )]
    OtherRegions { pu: u32, chunk: u32 },
    /// The dump is of a device of another capacity or with a larger buffer.
    #[error("the dump is not of a device of {capacity} logical sectors with this buffer")]
    OtherDump {
        /// Logical sectors, by the configuration.
        capacity: u64,
    },
    /// The host could not give a sector of the device's image, or did not take one of padding,
    /// without which others can't be read. What these hold may be younger than what can be read.
    /// [`DriveConfig::accept_lost_sectors`] mounts it all the same.
    #[error(
        "the host can't give or take sector {sector} of chunk {chunk} on PU {pu}: the image is \
         damaged, or its disk is full or fails; older copies of what it holds would be taken for it"
    )]
    Host { pu: u32, chunk: u32, sector: u32 },
    /// Sectors that were good once can't be read, and nothing says whose they were.
    /// [`DriveConfig::accept_lost_sectors`] mounts it all the same.
    #[error(
        "up to {sectors} sectors are lost, the first is sector {sector} of chunk {chunk} on PU {pu} \
         ({places}); older copies of what they held would be taken for it"
    )]
    Lost {
        sectors: u64,
        pu: u32,
        chunk: u32,
        sector: u32,
        /// Dead PUs and chunks, in words.
        places: String,
    },
    /// All units can be read that seem to have been programmed, but not the flushed version of some
    /// sectors. [`DriveConfig::accept_lost_sectors`] mounts it all the same.
    #[error(
        "{sectors} sectors are lost, the first is logical sector {first}: only versions are left that \
         are older than what a flush has recorded"
    )]
    Superseded { sectors: u64, first: u32 },
}

/// What a mount did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recovery {
    /// The state is that of a clean stop, read from its snapshot; nothing was scanned.
    pub from_snapshot: bool,
    pub no_snapshot: Option<&'static str>,
    /// Sectors whose records were read.
    pub scanned_sectors: u64,
    /// Sectors that were good once and can't be read, where [`DriveConfig::accept_lost_sectors`]
    /// has the device mounted all the same: the first of each place, and how many.
    pub lost: Vec<(Location, u32)>,
    /// Logical sectors that are lost.
    pub lost_sectors: Vec<LostSectors>,
    /// Units that count as torn by a power cut.
    pub torn_units: u64,
    /// Nothing says which chunks were erased or bad when the device was used last.
    pub unnoted: bool,
    /// The first that the host could not give, likewise.
    pub host_failed: Option<Location>,
    pub padded_sectors: u64,
    /// The steps with the time each took.
    pub steps: Vec<(&'static str, Ns)>,
}

/// What all steps need.
struct Mount<'a> {
    cx: &'a Cx,
    device: Arc<dyn Device>,
    medium: Medium,
    layout: Layout,
    capacity: u64,
    capacitors: bool,
    /// Logical sectors of whose flushed versions the device keeps records.
    recorded: u32,
    /// Units behind a root, as [`super::rest`] programs them.
    reach: u32,
    content_bytes: usize,
    chunks: Vec<ChunkInfo>,
    /// Padding programmed, in sectors: in the native mode, and in SLC mode.
    padded: (u64, u64),
    /// Sectors of padding whose program failed.
    failed: Vec<u32>,
    /// Positions that nothing is programmed to before the host may write.
    aside: Vec<u32>,
    /// Chunks of which a readable record in another chunk speaks, or that hold nothing that counts:
    /// (line, position).
    heard: Vec<(u32, u32)>,
    report: Recovery,
    /// When the step began that is under way.
    began: Ns,
}

impl DriveFtl {
    /// Brings up the FTL that was created on `device` with this configuration, after a stop or a
    /// power cut. `dump` is what the capacitors saved at that cut ([`DriveFtl::power_lost`]); after a
    /// stop, and for a device without capacitors, there is none. A blank device is an empty one.
    ///
    /// The future may be dropped at any time, as a power cut does; mount again with the same dump.
    pub async fn mount(
        cx: &Cx,
        device: Arc<dyn Device>,
        config: impl Into<DriveConfig>,
        dump: Option<&Dump>,
    ) -> Result<Arc<DriveFtl>, MountError> {
        let traits = *device.traits();
        let Frame { config, plan, sizes, capacity, host } = Frame::of(&*device, config.into())?;
        let layout = plan.layout.clone();
        check_dump(dump, capacity, &sizes)?;
        let mut mount = Mount {
            cx,
            reach: super::reach(&*device, &layout),
            content_bytes: traits.content_bytes,
            chunks: Vec::new(),
            padded: (0, 0),
            failed: Vec::new(),
            aside: Vec::new(),
            heard: Vec::new(),
            device: device.clone(),
            medium: Medium::new(device.clone(), layout.clone()),
            layout: layout.clone(),
            capacity,
            capacitors: config.capacitors,
            recorded: config.recorded(host),
            report: Recovery::default(),
            began: cx.now(),
        };
        mount.take_stock();
        mount.check_modes()?;
        let grains = layout.grains();
        let mut pages = mount.new_pages();
        // Of a device that was stopped all is on the medium, and a dump says no more than that.
        let last_stamp = dump.map_or(0, |d| d.stamp);
        let dump = dump.filter(|d| !d.stopped);
        if dump.is_some() && !mutant!("kit.snapshot-despite-dump") {
            mount.report.no_snapshot = Some("the power went while the device was in use");
        } else {
            let shape = Shape::new(capacity as u32, &pages, &layout);
            let rest = mount.find_rest(shape).await;
            mount.check_host(&config)?;
            match rest {
                Ok(rest) => {
                    let stamp = rest.stamp().max(last_stamp);
                    rest.tell_pages(&mut pages, grains, &layout);
                    // A mark whose program failed: data will be written behind it.
                    let failed =
                        mount.failed.iter().filter(|_| !mutant!("kit.failed-mark-not-void"));
                    failed.for_each(|at| pages.set_void(layout.grain_of(*at), true));
                    mount.forget_erased_voids(&mut pages);
                    let place = rest.place(&mount, plan);
                    let parts = Parts { sizes, place, capacity, host };
                    let fill = |c: &mut Controller| c.take_rest(rest, layout.sectors.into());
                    return Ok(mount.bring_up(&config, parts, (pages, stamp), fill, None).await);
                }
                Err(why) => mount.report.no_snapshot = Some(why),
            }
            mount.step("look for a snapshot");
        }
        mount.close_windows(dump).await;
        if dump.is_none() && !mutant!("kit.roots-not-outdated") {
            mount.outdate_roots().await;
        }
        mount.check_host(&config)?;
        mount.step("pad open chunks");
        let mut found = mount.scan(pages.count(), dump).await;
        mount.check_host(&config)?;
        if let Some((at, lba)) = found.foreign {
            let place = layout.location(at);
            let (pu, chunk, sector) = (place.pu, place.chunk, place.sector);
            let pages = pages.count();
            if lba >= LBA_LIMIT && !mutant!("kit.host-ftl-taken-over") {
                return Err(MountError::OtherType { pu, chunk, sector });
            }
            return Err(MountError::OtherDevice { pu, chunk, sector, lba, capacity, pages });
        }
        let blind = match dump {
            None => {
                let mut notes = (0..pages.count()).filter(|page| pages.is_notes(*page));
                let nowhere = |page| found.newest[pages.lba(page) as usize].at == NIL;
                let unnoted = notes.all(nowhere);
                mount.find_blind(&mut found, unnoted).await
            }
            Some(_) => Blind::default(),
        };
        mount.step("scan records");
        // A die may have died under the reads.
        mount.take_stock();
        mount.choose_equal(&mut found).await;
        let lost = mount.read_pages(&mut pages, &mut found, dump).await;
        mount.forget_discarded(&mut pages, &mut found);
        mount.step("read pages");
        let readable = mount.readable_of(&found, dump).await;
        mount.check_host(&config)?;
        let stamp = mount.last_stamp(&found, dump).max(last_stamp);
        let accept = config.accept_lost_sectors;
        let losses = mount.judge_unreadable(&mut pages, (&found, &blind), dump, accept)?;
        mount.report.lost = mount.lost_places(&losses);
        // Without a dump what is lost may be younger than all that was found.
        let youngest = match dump.is_some() || mutant!("kit.youngest-is-newest") {
            true => stamp.max(1),
            false => stamp + 1,
        };
        let older = (!losses.is_empty() && !mutant!("kit.accepted-loss-is-older")).then(|| {
            let of = (host as u32, youngest);
            mount.older(&mut pages, &found, &losses, dump.is_some(), of)
        });
        let stock = Stock {
            chunks: &mount.chunks,
            open: dump.map(|d| &d.open),
            leaving: dump.map(|d| &d.leaving),
            stamps: &found.stamp_of_line,
        };
        let place = Place::adopt(plan, stock);
        let standing = mount.standing(&place, dump);
        mount.void_the_rest(&mut pages, dump, &standing);
        mount.forget_erased_voids(&mut pages);
        if !config.capacitors {
            mount.aside = mount.torn_ends(&found, &place);
        }
        let lost = (&lost[..], older.as_ref());
        let fill = |c: &mut Controller| c.take_in(&found, lost, (dump, &readable), &standing);
        let parts = Parts { sizes, place, capacity, host };
        let why = older.as_ref();
        Ok(mount.bring_up(&config, parts, (pages, stamp), fill, why).await)
    }
}

impl DriveFtl {
    /// The bytes of a page of this number, from the first of these physical sectors that has it
    /// whole.
    pub(super) async fn read_page_copy(
        &self,
        cx: &Cx,
        page: u32,
        copies: &[u32],
    ) -> Option<Vec<u8>> {
        let medium = Medium::new(self.device.clone(), self.layout.clone());
        for at in copies {
            let bytes = sectors::read_page(cx, &medium, *at).await;
            let is_page =
                |bytes: &Vec<u8>| self.controller.lock().pages.check(page, bytes).is_some();
            if let Some(bytes) = bytes.filter(is_page) {
                return Some(bytes);
            }
        }
        None
    }
}

/// Sectors behind which one can be read in an open chunk, in whole units.
fn window_of(region: &Region) -> u32 {
    region.window.next_multiple_of(region.unit)
}

fn check_dump(dump: Option<&Dump>, capacity: u64, sizes: &Sizes) -> Result<(), MountError> {
    let Some(dump) = dump else {
        return Ok(());
    };
    let fits = |host, room: u32| {
        let of = || dump.sectors.iter().filter(|s| s.kind.is_host() == host);
        let held = of().filter(|s| s.holds_room).count();
        held <= room as usize && of().count() <= (room + sizes.windows) as usize
    };
    let all = fits(true, sizes.user_room) && fits(false, sizes.gc_room);
    if dump.capacity == capacity && all {
        return Ok(());
    }
    Err(MountError::OtherDump { capacity })
}

impl Mount<'_> {
    /// Pages that say nothing yet.
    fn new_pages(&self) -> Pages {
        Pages::of(self.capacity as u32, &self.layout, self.recorded)
    }

    fn chunk_index(&self, line: u32, position: u32) -> usize {
        self.layout.chunk_index(line, position)
    }

    /// A sector that the host could not give is not torn, nor gone: what it holds counts, and
    /// nobody knows it. Without the padding that it did not take, what lies in front of that can't
    /// be read.
    fn check_host(&self, config: &DriveConfig) -> Result<(), MountError> {
        let failed = self.medium.host_failed().filter(|_| !config.accept_lost_sectors);
        let Some(at) = failed.filter(|_| !mutant!("kit.host-fault-is-torn")) else {
            return Ok(());
        };
        let place = self.layout.location(at);
        Err(MountError::Host { pu: place.pu, chunk: place.chunk, sector: place.sector })
    }

    /// Each chunk that holds anything is in the mode of its region.
    fn check_modes(&self) -> Result<(), MountError> {
        let wrong = |(line, position): &(u32, u32)| {
            let info = &self.chunks[self.chunk_index(*line, *position)];
            let used = matches!(info.state, ChunkState::Open | ChunkState::Closed);
            used && !self.layout.of(*line).is_mode_of(info)
        };
        match self.layout.chunks().find(wrong).filter(|_| !mutant!("slc.modes-unchecked")) {
            Some((line, position)) => {
                let place = self.layout.chunk(line, position);
                Err(MountError::OtherRegions { pu: place.pu, chunk: place.chunk })
            }
            None => Ok(()),
        }
    }

    fn take_stock(&mut self) {
        let numbers = self.layout.chunk_numbers();
        let report = |pu: u32| self.device.chunk_report(pu, 0, numbers);
        self.chunks = self.layout.by_number(report);
    }

    /// Pads open chunks: to the end of a unit whose program was cut in parts and, without a dump,
    /// until everything in them can be read.
    async fn close_windows(&mut self, dump: Option<&Dump>) {
        // Per position: (line, from sector, to sector) of each chunk.
        let mut work = vec![VecDeque::new(); self.layout.positions as usize];
        for (line, position) in self.layout.chunks() {
            let region = self.layout.of(line);
            let info = self.chunks[self.chunk_index(line, position)];
            let resumed = dump.is_none_or(|d| d.open.contains(&line));
            if info.state != ChunkState::Open || !resumed {
                continue;
            }
            let padded = dump.is_none() && !mutant!("kit.window-not-padded");
            let window = if padded { window_of(region) } else { 0 };
            let end = info.write_pointer.next_multiple_of(region.grain) + window;
            let end = end.min(region.chunk_sectors);
            if end > info.write_pointer {
                work[position as usize].push_back((line, info.write_pointer, end));
            }
        }
        // The chunks of a line at the same time: so a mount that is cut leaves the same in all of
        // them.
        while let Some(next) = work.iter().filter_map(|w| w.front()).map(|w| w.0).min() {
            let single = self.layout.of(next).width == 1;
            let mut joins = Vec::new();
            for (position, work) in (0..).zip(&mut work) {
                let due = work.front().is_some_and(|w| single || w.0 == next);
                if !due {
                    continue;
                }
                joins.extend(work.pop_front().map(|due| {
                    let job = pad_chunk(self.cx.clone(), self.medium.clone(), position, due);
                    self.cx.spawn_join(job)
                }));
            }
            for join in joins {
                let (padded, failed) = join.await;
                self.padded = (self.padded.0 + padded.0, self.padded.1 + padded.1);
                self.failed.extend(failed);
            }
        }
        self.take_stock();
    }

    /// Notes the time of a step that has ended.
    fn step(&mut self, name: &'static str) {
        let now = self.cx.now();
        self.report.steps.push((name, now - self.began));
        self.began = now;
    }

    /// The device, with what `fill` puts into its controller; the host may write when this returns.
    async fn bring_up(
        mut self,
        config: &DriveConfig,
        mut parts: Parts,
        (pages, stamp): (Pages, u64),
        fill: impl FnOnce(&mut Controller) -> Room,
        older: Option<&Older>,
    ) -> Arc<DriveFtl> {
        let cx = self.cx;
        if !config.capacitors {
            let reserve = sync::reserve(&parts.place.layout, &parts.sizes, self.recorded);
            parts.place.set_reserve(reserve);
        }
        let (ftl, movers) = parts.assemble(self.device.clone(), config);
        {
            let mut c = ftl.controller.lock();
            c.stamp = match mutant!("kit.life-not-raised") {
                true => stamp,
                false => ((stamp >> LIFE_SHIFT) + 1) << LIFE_SHIFT,
            };
            c.pages = pages;
            let padding = Cause::PaddingPair as usize;
            c.stats.ftl.programmed[padding] = self.padded.0 + self.padded.1;
            c.stats.slc_programmed[padding] = self.padded.1;
            c.stats.ftl.program_failures = self.failed.len() as u64;
            let room = fill(&mut c);
            c.relearn();
            let taken = ftl.room.try_acquire(room.user as u64);
            assert!(taken, "the dump was checked against the buffer");
            c.check_spare();
            self.report.lost_sectors = c.lost_sectors(|lba| older.and_then(|older| older.why(lba)));
            if !config.capacitors {
                c.phase = Phase::Mounting;
                c.place.forget_erases();
                c.pages.touch_notes();
                let position = |at: u32| self.layout.in_chunk(at).1;
                c.pages.complete_stamps(|a, b| position(a) != position(b));
                c.place.set_aside(std::mem::take(&mut self.aside));
                c.place.note_heard(&self.heard);
                // What is lost is noted before the chunks where it was.
                c.barriers.notes_along = self.report.lost_sectors.is_empty();
            }
        }
        self.step("fill the map");
        let ftl = Arc::new(ftl);
        ftl.start_tasks(cx, movers);
        if !config.capacitors && !mutant!("kit.life-not-durable") {
            ftl.sync(cx).await;
            ftl.rest_without_spare(cx).await;
            self.step("begin a life");
        }
        let mut c = ftl.controller.lock();
        c.phase = Phase::Running;
        c.place.use_again();
        self.report.padded_sectors = self.padded.0 + self.padded.1;
        let failed = self.medium.host_failed();
        self.report.host_failed = failed.map(|at| self.layout.location(at));
        c.recovery = Some(self.report);
        ftl.go_on(cx, c, None, Room::default());
        ftl
    }
}

/// Programs padding in a chunk of one PU, (line, from sector, to sector). Returns how many sectors
/// were programmed in the native mode and in SLC mode, and the physical sectors that failed.
async fn pad_chunk(
    cx: Cx,
    medium: Medium,
    position: u32,
    (line, from, end): (u32, u32, u32),
) -> ((u64, u64), Vec<u32>) {
    let (device, layout) = (&*medium.device, &medium.layout);
    let (mut padded, mut failed) = ((0, 0), Vec::new());
    let mut at = from;
    while at < end {
        let region = layout.of(line);
        let n = (region.unit - region.in_unit(at)).min(end - at);
        let done = pad(&cx, device, layout, line, position, at, n).await;
        let status = |i: u32| done.status(i as usize);
        let moved = (0..n).filter(|i| status(*i).moved_pointer()).count() as u64;
        match layout.is_slc(line) {
            true => padded.1 += moved,
            false => padded.0 += moved,
        }
        let place = |i: u32| layout.sector_at(line, position, at + i);
        if !mutant!("kit.refused-padding-is-torn") {
            medium.note_refusal(&done, &(0..n).map(place).collect::<Vec<_>>());
        }
        failed.extend((0..n).filter(|i| !status(*i).is_ok()).map(place));
        if !(0..n).all(|i| status(i).moved_pointer()) {
            break;
        }
        at += n;
    }
    (padded, failed)
}

/// Programs `n` sectors of padding at the write pointer of a chunk.
pub(super) async fn pad(
    cx: &Cx,
    device: &(dyn Device + 'static),
    layout: &Layout,
    line: u32,
    position: u32,
    from: u32,
    n: u32,
) -> Completion {
    let content_bytes = device.traits().content_bytes;
    let zeros = vec![0; content_bytes];
    let format = device.format();
    let chunk = format.pack(layout.chunk(line, position));
    let addrs: Vec<Ppa> = (from..from + n).map(|s| format.in_chunk(chunk, s)).collect();
    let oob = Oob::encode_raw(LBA_PADDING, 0, read::content_crc(&zeros));
    let (index, oob) = (vec![0; n as usize], vec![oob; n as usize]);
    let content = Gather::new(&zeros, &index, content_bytes);
    let cause = vec![Cause::PaddingPair; n as usize];
    let flags = Flags { fua: !mutant!("kit.padding-not-fua"), ..Flags::DEFAULT };
    let request = Request::write(&addrs, content, &oob, &cause);
    device.io(cx, request.with(flags)).await
}
