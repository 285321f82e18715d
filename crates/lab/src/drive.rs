//! Drive images as a person handles them: make one, look at it, check it.
//!
//! Owns: the texts and JSON of `flashlane drive`. Promises: looking and checking write nothing; SMART
//! has only what the device counts, under the names that nvme-cli and OCP use. Never: knows the bytes
//! of an image (that is the device's).

mod endurance;
pub mod faults;

pub use endurance::{Endurance, Used};

use crate::control::{Answer, Ask};
use crate::experiment::document::Document;
use crate::experiment::{Base, Change, Complaint, ExperimentErrors, read_device};
use crate::verbs::{VerbError, ask};
use crate::words::{aligned, row, text_of};
use endurance::shares;
use flashlane_base::{Bytes, Location, Ns, Ppa, SECTOR_BYTES, VECTOR_MAX};
use flashlane_media::image::HEADER_BYTES;
pub use flashlane_ocssd::CopyKind;
use flashlane_ocssd::core::uuid_text;
use flashlane_ocssd::device::{ChunkInfo, ChunkState, Data, Flags, Op, Request, Scatter, Status};
use flashlane_ocssd::image::UNCHECKED;
use flashlane_ocssd::image::check_copy_of;
use flashlane_ocssd::ssd::ImageInfo;
use flashlane_ocssd::upgrade_image;
use flashlane_ocssd::{CreateImage, Device, DeviceSpec, ImageError, OpenImage, Ssd};
use flashlane_rt::{CostTable, Virtual};
use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a drive could not be made or looked at.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DriveError {
    #[error(transparent)]
    Image(#[from] ImageError),
    /// The device that was asked for; all that is wrong with it.
    #[error("{0}")]
    Device(String),
    /// A drive is to be made where a file is.
    #[error(
        "{}: the file exists: choose another name, or give --force to replace it, which gives up \
         what it holds", path.display()
    )]
    Exists { path: PathBuf },
    #[error("--{key} {problem}")]
    Word {
        key: &'static str,
        /// What is wrong and what would do.
        problem: String,
    },
    #[error("the fault plan has no [[fault]]: nothing would be injected")]
    NoFaults,
}

impl DriveError {
    /// Another process has the drive open.
    pub(crate) fn is_held(&self) -> bool {
        matches!(self, DriveError::Image(e) if e.is_held())
    }
}

/// The device of a preset with keys changed, `geometry.chunks_per_pu=64`.
///
/// # Errors
/// No such preset or key, or an impossible device.
pub fn device(preset: &str, sets: &[String]) -> Result<DeviceSpec, DriveError> {
    let mut changes = vec![Change::Device(preset.into())];
    changes.extend(sets.iter().map(|s| Change::Set(format!("device.{s}"))));
    // On this command line the options are shorter than those of an experiment.
    let as_typed = |c: Complaint| {
        let place = c.place.replacen("--set device.", "--set ", 1);
        Complaint { place: place.replacen("--device ", "--preset ", 1), ..c }
    };
    let wrong = |complaints: Vec<Complaint>| {
        let complaints = complaints.into_iter().map(as_typed).collect();
        DriveError::Device(ExperimentErrors(complaints).to_string())
    };
    let document =
        Document::of("drive", Default::default()).changed(&changes).map_err(|c| wrong(vec![c]))?;
    let (root, base) = (document.root(), Base::of(Path::new("")));
    let device = root.table("device").and_then(|section| {
        let device = read_device(&section, &document, &base);
        section.finish();
        device
    });
    root.finish();
    match (device, document.complaints()) {
        (Some(device), complaints) if complaints.is_empty() => Ok(device.spec),
        (_, complaints) => Err(wrong(complaints)),
    }
}

/// Makes an image, and says what it is.
///
/// # Errors
/// As [`Ssd::create_image`].
pub fn create(
    path: &Path,
    spec: &DeviceSpec,
    seed: u64,
    replace: bool,
) -> Result<String, DriveError> {
    let made = Ssd::create_image(path, spec, &CreateImage { seed, replace, uuid: None });
    made.map_err(|e| match e {
        ImageError::At { path, problem } if matches!(*problem, ImageError::Exists) => {
            DriveError::Exists { path }
        }
        other => other.into(),
    })?;
    Ok(Look::at(path)?.to_text())
}

pub fn presets() -> String {
    let mut rows = vec![row(["preset", "raw", "channels x PUs", "chunk", "cells"])];
    for name in DeviceSpec::preset_names() {
        let Ok(spec) = DeviceSpec::preset(name) else { continue };
        let geo = spec.geometry();
        let bytes = |sectors: u64| Bytes::new(sectors * SECTOR_BYTES as u64).to_string();
        rows.push(row([
            name,
            &bytes(geo.sectors()),
            &format!("{} x {}", geo.channels, geo.pus_per_channel),
            &bytes(geo.sectors_per_chunk() as u64),
            &format!("{} bit", spec.cells.bits),
        ]));
    }
    aligned(&rows)
}

/// `drive snapshot` and `drive clone`: what the copy is.
///
/// # Errors
/// As [`ask`].
pub fn copy(from: &Path, to: &Path, kind: CopyKind) -> Result<String, VerbError> {
    ask(from, &Ask::copy(to, kind)?)?;
    Ok(Look::at(to)?.to_text())
}

/// `drive check`. A drive in use is checked as a snapshot that is taken for it beside the image, and
/// removed: reading every sector of the drive itself would disturb who uses it.
///
/// # Errors
/// As [`copy`].
pub fn check(path: &Path) -> Result<Checked, VerbError> {
    match Look::at(path) {
        Err(e) if e.is_held() => {}
        looked => return Ok(looked?.check(path, sound_headers(path))),
    }
    let copied = Removed(check_copy_of(path));
    copy(path, &copied.0, CopyKind::Snapshot)?;
    let (look, headers) = (Look::at(&copied.0)?, sound_headers(&copied.0));
    // It has no name while it is read: a check that is killed then leaves nothing, and one that is killed
    // before, what the next one removes.
    drop(copied);
    Ok(Checked { snapshot: true, ..look.check(path, headers) })
}

/// A file that goes when this does.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// `drive upgrade`: what was done.
///
/// # Errors
/// It is no image, damaged, newer, in use, or the host failed.
pub fn upgrade(path: &Path) -> Result<String, DriveError> {
    let before = sound_headers(path);
    let (from, to) = upgrade_image(path)?;
    let text = |v: (u16, u16)| format!("{}.{}", v.0, v.1);
    Ok(match from == to {
        true if before != [true; 2] => {
            format!("{}: the damaged copy of the header is whole again\n", path.display())
        }
        true => format!("{}: format {}, there is nothing to do\n", path.display(), text(to)),
        false => format!(
            "{}: format {} is now {}: it keeps faults (`flashlane drive inject`), and tells damage from a loss of \
             power; older programs open it for reading only\n",
            path.display(),
            text(from),
            text(to)
        ),
    } + match to <= UNCHECKED {
        true => "checksums of contents are in new drives only\n",
        false => "",
    })
}

/// A drive that is looked at.
pub struct Look {
    ssd: Arc<Ssd>,
    info: ImageInfo,
    /// The targets that this process has in use.
    in_use: Vec<String>,
}

impl Look {
    /// Opens an image for reading.
    ///
    /// # Errors
    /// As [`Ssd::open_image`].
    pub fn at(path: &Path) -> Result<Look, DriveError> {
        let how = OpenImage { read_only: true, timing: false, ..OpenImage::default() };
        Look::of(Ssd::open_image(path, &how)?, Vec::new())
    }

    /// Looks at a device that is open, with the targets that this process has in use.
    ///
    /// # Errors
    /// It lives in memory.
    pub(crate) fn of(ssd: Arc<Ssd>, in_use: Vec<String>) -> Result<Look, DriveError> {
        let info = ssd.image_info().ok_or(ImageError::InMemory)?;
        Ok(Look { ssd, info, in_use })
    }

    /// `drive info`.
    pub(crate) fn info(&self) -> Answer {
        Answer::new((self.to_text(), self.to_json()))
    }

    /// `drive smart`.
    pub(crate) fn smart_answer(&self) -> Answer {
        Answer::new((self.smart_text(), self.smart_json()))
    }

    /// Chunk reports of all PUs.
    fn reports(&self) -> Vec<Vec<ChunkInfo>> {
        let pus = 0..self.ssd.geometry().pus();
        pus.map(|pu| self.ssd.chunk_report(pu, 0, u32::MAX)).collect()
    }

    /// What is used up by cell mode, on a device that has two.
    fn endurance(&self) -> Option<Endurance> {
        Endurance::of(&self.ssd, &self.reports())
    }

    /// Chunks per state: free, open, closed, offline.
    fn states(&self) -> [u64; 4] {
        let all = [ChunkState::Free, ChunkState::Open, ChunkState::Closed, ChunkState::Offline];
        let mut count = [0; 4];
        for pu in 0..self.ssd.geometry().pus() {
            for chunk in self.ssd.chunk_report(pu, 0, u32::MAX) {
                let state = all.iter().position(|s| *s == chunk.state);
                state.into_iter().for_each(|s| count[s] += 1);
            }
        }
        count
    }

    /// What it is, for people.
    pub fn to_text(&self) -> String {
        let (geo, info) = (self.ssd.geometry(), &self.info);
        let [free, open, closed, offline] = self.states();
        let raw = Bytes::new(geo.sectors() * SECTOR_BYTES as u64);
        let rows = vec![
            ("device", self.ssd.spec().name.clone()),
            ("uuid", uuid_text(&self.info.uuid)),
            ("raw capacity", raw.to_string()),
            (
                "geometry",
                format!(
                    "{} channels x {} PUs x {} chunks of {} sectors",
                    geo.channels,
                    geo.pus_per_channel,
                    geo.chunks_per_pu,
                    geo.sectors_per_chunk()
                ),
            ),
            ("chunks", format!("{free} free, {open} open, {closed} closed, {offline} offline")),
            ("on the host's disk", Bytes::new(info.slot_bytes).to_string()),
            ("target settings", Bytes::new(self.ssd.targets().len() as u64).to_string()),
            ("device time", info.clock.to_string()),
            ("commits", info.commits.to_string()),
            ("seed", info.seed.to_string()),
            ("faults", self.ssd.faults().len().to_string()),
            ("format", format!("{}.{}", info.version.0, info.version.1)),
        ];
        let in_use = (!self.in_use.is_empty()).then(|| {
            let targets: Vec<String> = self.in_use.iter().map(|t| format!("`{t}`")).collect();
            let many = if targets.len() == 1 { "" } else { "s" };
            let by = format!("by process {}, target{many}", std::process::id());
            ("in use", format!("{by} {}", targets.join(", ")))
        });
        let limits = &self.ssd.spec().limits;
        let buffer = limits.write_buffer.map(|size| {
            let on = if limits.capacitors { " on capacitors" } else { "" };
            ("write buffer", format!("{size}{on}"))
        });
        let (before, after) = rows.split_at(4);
        let endurance = self.endurance().map(|used| ("endurance used", used.to_string()));
        let rows = before.iter().cloned().chain(buffer).chain(after.iter().cloned());
        let rows: Vec<_> = rows.chain(endurance).chain(in_use).collect();
        rows.iter().map(|(name, value)| format!("{name:<20}{value}\n")).collect()
    }

    /// What it is, as one JSON object with units in its keys.
    pub fn to_json(&self) -> String {
        let (geo, info) = (self.ssd.geometry(), &self.info);
        let [free, open, closed, offline] = self.states();
        let mut info = json!({
            "device": self.ssd.spec().name,
            "uuid": uuid_text(&self.info.uuid),
            "raw_bytes": geo.sectors() * SECTOR_BYTES as u64,
            "geometry": {
                "channels": geo.channels,
                "pus_per_channel": geo.pus_per_channel,
                "planes": geo.planes,
                "chunks_per_pu": geo.chunks_per_pu,
                "sectors_per_chunk": geo.sectors_per_chunk(),
                "ws_min": geo.ws_min,
                "ws_opt": geo.ws_opt,
                "mw_cunits": geo.mw_cunits,
            },
            "chunks": { "free": free, "open": open, "closed": closed, "offline": offline },
            "write_buffer_bytes": self.ssd.spec().limits.write_buffer.map_or(0, |size| size.get()),
            "host_disk_bytes": info.slot_bytes,
            "target_settings_bytes": self.ssd.targets().len(),
            "device_time_ns": info.clock.as_ns(),
            "commits": info.commits,
            "seed": info.seed,
            "faults": self.ssd.faults().len(),
            "format": format!("{}.{}", info.version.0, info.version.1),
            "in_use": (!self.in_use.is_empty()).then(|| json!({
                "process": std::process::id(),
                "targets": self.in_use,
            })),
        });
        if let Some(used) = self.endurance() {
            info["endurance_used"] = json!(used);
        }
        text_of(&info)
    }

    /// The drive's health: keys of `nvme smart-log -o json` (128-bit values are strings there), and
    /// below `ocp` those of the OCP extended log. What is not modelled (temperature, host
    /// commands) is not there. Of a device with SLC mode there is more below `cell_modes`.
    pub fn smart(&self) -> Value {
        let (info, count) = (&self.info, self.ssd.counters());
        let [free, _, _, offline] = self.states();
        let reports = self.reports();
        let erases: Vec<u64> = reports.iter().flatten().map(|c| c.erases as u64).collect();
        let chunks = erases.len().max(1) as u64;
        let sum: u64 = erases.iter().sum();
        // In millionths; the shares of both cell modes add up.
        let used: u64 = reports.iter().flatten().flat_map(|c| shares(&self.ssd, c)).sum();
        let units = |bytes: u64| bytes.div_ceil(512_000).to_string();
        let dead = reports.iter().filter(|r| r.iter().all(|c| c.state == ChunkState::Offline));
        let bytes = |sectors: u64| json!({ "hi": 0, "lo": sectors * SECTOR_BYTES as u64 });
        let good = 100 * (chunks - offline) / chunks;
        let mut smart = json!({
            "critical_warning": 0,
            "avail_spare": good,
            "spare_thresh": 10,
            "percent_used": (used / chunks / 10_000).min(255),
            "data_units_read": units(count.host_read_bytes()),
            "data_units_written": units(count.host_write_bytes()),
            "power_cycles": info.power_cycles.to_string(),
            "power_on_hours": (info.clock.as_ns() / Ns::from_secs(3600).as_ns()).to_string(),
            "unsafe_shutdowns": (info.unsafe_shutdowns + info.power_cuts).to_string(),
            "media_errors": count.uncorrectable.to_string(),
            "ocp": {
                "Physical media units written": bytes(count.programmed_total()),
                "Physical media units read": bytes(count.read_sectors),
                "Bad user nand blocks - Raw": offline,
                "Bad user nand blocks - Normalized": good,
                "Uncorrectable read error count": count.uncorrectable,
                "Soft ecc error count": count.high_ecc,
                "Max User data erase counts": erases.iter().max(),
                "Min User data erase counts": erases.iter().min(),
                "Nand avg erase count": sum / chunks,
                "Percent free blocks": 100 * free / chunks,
                "Media dies offline": dead.count(),
            },
        });
        if let (Some(used), Some(slc)) = (Endurance::of(&self.ssd, &reports), count.slc) {
            let mut modes = Map::new();
            for (mode, used) in used.modes() {
                modes.insert(format!("{mode}_endurance_used_mean_ppm"), used.mean_ppm.into());
                modes.insert(format!("{mode}_endurance_used_most_ppm"), used.most_ppm.into());
            }
            modes.insert("slc_media_units_written".into(), bytes(slc.programmed_sectors));
            modes.insert("slc_erases".into(), slc.erases.into());
            smart["cell_modes"] = modes.into();
        }
        smart
    }

    /// [`Look::smart`] as JSON text.
    pub fn smart_json(&self) -> String {
        text_of(&self.smart())
    }

    /// [`Look::smart`] for people.
    pub fn smart_text(&self) -> String {
        const PARTS: [&str; 2] = ["ocp", "cell_modes"];
        let smart = self.smart();
        let mut text = String::new();
        let mut lines = |of: &Map<String, Value>| {
            for (key, value) in of {
                let shown = match value {
                    Value::String(s) => s.clone(),
                    Value::Object(wide) => wide.get("lo").unwrap_or(value).to_string(),
                    other => other.to_string(),
                };
                if !PARTS.contains(&key.as_str()) {
                    text += &format!("{key:<36}{shown}\n");
                }
            }
        };
        std::iter::once(Some(&smart))
            .chain(PARTS.map(|part| smart.get(part)))
            .flatten()
            .filter_map(Value::as_object)
            .for_each(&mut lines);
        text
    }

    /// Reads everything that the drive holds; what opening it has checked goes without saying. It is called
    /// `file`, and these copies of its header are sound.
    fn check(&self, file: &Path, copies: [bool; 2]) -> Checked {
        let mut checked = Checked { file: file.into(), copies, ..Checked::default() };
        checked.unchecked = self.info.version <= UNCHECKED;
        checked.dead = self.ssd.dead_dies();
        let geo = *self.ssd.geometry();
        for pu in 0..geo.pus() {
            for (info, chunk) in self.ssd.chunk_report(pu, 0, u32::MAX).iter().zip(0..) {
                let (mut sector, mut failed) = (0, false);
                while sector < info.write_pointer {
                    let n = (info.write_pointer - sector).min(VECTOR_MAX as u32);
                    let place = |s| self.ssd.format().pack(Location { pu, chunk, sector: s });
                    let at: Vec<Ppa> = (sector..sector + n).map(place).collect();
                    checked.sectors += n as u64;
                    for status in read(&self.ssd, &at) {
                        match status {
                            Status::HostFault => failed = true,
                            Status::Uncorrectable => checked.lost += 1,
                            _ => {}
                        }
                    }
                    sector += n;
                }
                // The end of an open chunk can't be read by commands yet.
                if failed || info.state == ChunkState::Open {
                    let room = SHOWN.saturating_sub(checked.unreadable.len());
                    let (unsound, first) = self.ssd.unsound_sectors(pu, chunk, room);
                    // A host that fails only now and then has failed.
                    checked.unsound += unsound.max(failed as u64);
                    let named = |(sector, says)| (Location { pu, chunk, sector }, says);
                    checked.unreadable.extend(first.into_iter().map(named));
                }
            }
        }
        checked
    }
}

/// Unsound sectors that a check names at most.
const SHOWN: usize = 16;

#[derive(Clone, Debug, Default)]
pub struct Checked {
    /// The image, as it was named.
    pub file: PathBuf,
    /// Which copies of the header are intact.
    pub copies: [bool; 2],
    pub sectors: u64,
    /// Sectors that the simulated medium has lost: no fault of the image.
    pub lost: u64,
    /// Sectors that are damaged, or that the host could not give.
    pub unsound: u64,
    /// The first of them, with what is wrong.
    pub unreadable: Vec<(Location, String)>,
    /// Dies of the simulated medium that have stopped working: the PU, and the sectors that lie there. No
    /// fault of the image either.
    pub dead: Vec<(u32, u64)>,
    /// The format has no checksums of contents.
    pub unchecked: bool,
    /// The drive is in use: this is of a snapshot.
    pub snapshot: bool,
}

impl Checked {
    /// True when nothing is wrong with the image.
    pub fn is_good(&self) -> bool {
        self.copies == [true; 2] && self.unsound == 0
    }

    /// The verdict for people.
    pub fn to_text(&self) -> String {
        let mut text = format!(
            "{} sectors read, {} of them lost by the simulated medium\n",
            self.sectors, self.lost
        );
        if self.snapshot {
            text += "the drive is in use: this is a snapshot of it, taken for the check\n";
        }
        let file = self.file.display();
        for (pu, sectors) in self.dead.iter().take(SHOWN) {
            text += &format!("{file}: the die of pu {pu} is dead, with {sectors} sectors on it\n");
        }
        for (copy, _) in self.copies.iter().enumerate().filter(|(_, sound)| !**sound) {
            text += &format!(
                "{file}: the header is damaged: one of the two copies of it, at byte {}; `flashlane drive \
                 upgrade` mends it, a clone has both\n",
                copy as u64 * HEADER_BYTES
            );
        }
        for (at, says) in &self.unreadable {
            text += &format!("{file}: {at}: {says}\n");
        }
        if self.unsound > 0 {
            text += &format!(
                "{file}: {} sectors are damaged, or the host can't read them{}: look at the disk, go \
                 back to a snapshot\n",
                self.unsound,
                match self.unsound > self.unreadable.len() as u64 {
                    true => format!(" ({} of them are named)", self.unreadable.len()),
                    false => String::new(),
                }
            );
        }
        if self.unchecked {
            text += "the image is of a format without checksums of contents: damage in them is not seen\n";
        }
        // What the simulated medium has lost is as it should be: the image keeps that, too.
        let dead = match self.dead.len() {
            0 => String::new(),
            1 => ", with a dead die".into(),
            n => format!(", with {n} dead dies"),
        };
        text + &format!("{}{dead}\n", if self.is_good() { "good" } else { "NOT good" })
    }
}

/// Which copies of the header are intact, each alone in front of an otherwise empty file.
fn sound_headers(path: &Path) -> [bool; 2] {
    use flashlane_media::host::memory::MemoryFile;
    use std::io::Read;
    if !std::fs::metadata(path).is_ok_and(|there| there.is_file()) {
        return [false; 2]; // a pipe would be waited for
    }
    let mut bytes = Vec::new();
    let both = std::fs::File::open(path)
        .and_then(|file| file.take(2 * HEADER_BYTES).read_to_end(&mut bytes));
    let sound =
        |copy: &[u8]| flashlane_ocssd::image::Header::read(&MemoryFile::new(copy.to_vec())).is_ok();
    let mut copies = bytes.chunks(HEADER_BYTES as usize).map(sound);
    both.map_or([false; 2], |_| [(); 2].map(|()| copies.next().unwrap_or(false)))
}

/// Reads sectors; a status each.
fn read(ssd: &Arc<Ssd>, at: &[Ppa]) -> Vec<Status> {
    let n = at.len();
    let clock = Virtual::new(1, 0, CostTable::zero());
    let (cx, ssd, at) = (clock.cx(), ssd.clone(), at.to_vec());
    let done = clock.run(async move {
        let index: Vec<u32> = (0..n as u32).collect();
        let mut base = vec![0; n * SECTOR_BYTES];
        let mut oob = vec![[0; 16]; n];
        let content = Scatter::new(&mut base, &index, SECTOR_BYTES);
        let request = Request {
            op: Op::Read,
            flags: Flags::default(),
            addrs: &at,
            data: Data::Read { content, oob: &mut oob },
            whole_sectors: false,
        };
        let device: &dyn Device = &*ssd;
        device.io(&cx, request).await
    });
    let failed = || vec![Status::HostFault; n];
    done.map_or_else(|_| failed(), |done| (0..n).map(|i| done.status(i)).collect())
}
