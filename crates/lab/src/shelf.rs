//! Prepared devices on a shelf: filled and overwritten once, taken by every run that prepares alike.
//!
//! Owns: a folder of files, each a device as it was after its preparation and what its sectors hold,
//! named by everything that decides about them. Promises: a run gives the same results whether it made
//! the file or found it, since both load it and mount what is on it; a file is there whole or not at
//! all; one that is damaged, of another version or not ours is made anew; what a killed process left of one goes
//! when it is made again; where there can be no file there is no run. Never: deletes anything else, keeps
//! what was interrupted or went wrong.
//!
//! A file, numbers little-endian: magic (8 bytes), version (4), name (32 digits), length of and the
//! preparation's numbers as JSON (4 + n), the oracle's words ([`Oracle::save`]), the device
//! ([`Ssd::save`](flashlane_ocssd::Ssd::save)), CRC32C of all before (4).

use crate::experiment::{Experiment, Target};
use crate::naming;
use crate::run::oracle::Oracle;
use crate::run::{self, Fill, Monitor, Overwrite, Prepared, RunPlan, Start};
use crate::stack::Stack;
use flashlane_base::Ns;
use flashlane_base::fresh::{Fresh, only_files};
use flashlane_ocssd::{Ssd, SsdOptions, StoreKind};
use flashlane_rt::Virtual;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const MAGIC: &[u8; 8] = b"FLPREPD\n";
const VERSION: u32 = 1;
/// The preparation's numbers as JSON take some hundred bytes.
const NUMBERS_MAX: u32 = 1 << 16;

/// A folder of prepared devices.
#[derive(Clone, Debug)]
pub struct Shelf {
    folder: PathBuf,
    program: String,
    /// Files that somebody of this process makes, or has made: one at a time each.
    making: Arc<Mutex<BTreeMap<PathBuf, Arc<Mutex<()>>>>>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A prepared device.
pub(crate) struct Shelved {
    pub(crate) path: PathBuf,
    pub(crate) ssd: Arc<Ssd>,
    pub(crate) start: Start,
}

/// Why there is none.
pub(crate) enum Untaken {
    /// The preparation did not come to its end: the run prepares its own device, and shows why.
    Unprepared(String),
    /// The shelf can't hold it. A run on a device of its own would come to other numbers.
    Shelf(String),
}

/// Counts and sums up what passes.
struct Summed<T> {
    inner: T,
    crc: u32,
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.inner.read(buf)?;
        self.crc = flashlane_base::crc32c_append(self.crc, &buf[..n]);
        Ok(n)
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let n = self.inner.write(buf)?;
        self.crc = flashlane_base::crc32c_append(self.crc, &buf[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

fn wrong(what: impl ToString) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_string())
}

impl Shelf {
    /// A shelf in a folder, which is made if need be, and in which files can be made.
    ///
    /// # Errors
    /// They can't.
    pub fn in_folder(folder: &Path) -> io::Result<Shelf> {
        naming::make_folder(folder)?;
        let (program, making) = (naming::program()?, Arc::default());
        Ok(Shelf { folder: folder.to_path_buf(), program, making })
    }

    /// Whether an experiment's devices can be prepared on a shelf: what is wrong, and what to do.
    ///
    /// # Errors
    /// A target is not on a fresh device, or that is of a kind that can't be put away.
    pub fn check(experiment: &Experiment) -> Result<(), String> {
        if !experiment.warm_up.is_empty() || experiment.run.rest > Ns::ZERO {
            return Err(
                "[[warm_up]] and `rest` leave things in the drive's memory that can't be put on a \
                        shelf: leave --prepared out"
                    .into(),
            );
        }
        for target in &experiment.targets {
            let (name, device) = (&target.name, &target.stack.device);
            if target.fs.is_some() {
                return Err(format!(
                    "target `{name}` has a file system, whose files are made by each run: leave --prepared \
                     out"
                ));
            }
            let why_not = [
                (
                    !device.options.faults.is_empty(),
                    "meets faults, which would begin again behind it",
                ),
                (device.spec.limits.write_buffer.is_some(), "has a write buffer"),
                (device.options.store == StoreKind::Compact, "has the `compact` store"),
            ];
            if let Some((_, why)) = why_not.into_iter().find(|(is, _)| *is) {
                return Err(format!(
                    "the device of target `{name}` {why}, so it can't be kept after its preparation: leave \
                     --prepared out"
                ));
            }
            if target.drive.is_some() {
                return Err(format!(
                    "target `{name}` lives on a drive, which is prepared once by running on it: leave \
                     --prepared out"
                ));
            }
            if target.stack.is_raw() {
                return Err(format!(
                    "target `{name}` is raw, and raw runs prepare their chunks themselves: leave --prepared \
                     out"
                ));
            }
        }
        Ok(())
    }

    /// The file of a target's device.
    fn path(&self, experiment: &Experiment, target: &Target) -> PathBuf {
        let run = &experiment.run;
        let alike = Target { name: String::new(), only: None, ..target.clone() };
        let mut all = format!("{VERSION} {} {alike:?} {run:?}", self.program);
        if run.fill == Fill::Auto {
            let works = experiment.workloads.iter().enumerate();
            let mine = works.filter(|(i, _)| target.takes(*i));
            mine.for_each(|(_, workload)| all += &naming::workload(workload));
        }
        self.folder.join(format!("{}.device", naming::digits(&all)))
    }

    /// The device of a target, prepared: as it was found on the shelf, or as it is made now.
    pub(crate) fn take(
        &self,
        experiment: &Experiment,
        target: &Target,
        plan: &RunPlan,
        monitor: &Rc<dyn Monitor>,
    ) -> Result<Shelved, Untaken> {
        Shelf::check(experiment).map_err(Untaken::Shelf)?;
        if plan.fill == Fill::None && plan.overwrite == Overwrite::None {
            return Err(Untaken::Unprepared("there is nothing to prepare".into()));
        }
        let path = self.path(experiment, target);
        let find = || load(&path, target, plan.seed, "found");
        if let Ok(found) = find() {
            return Ok(found);
        }
        let mine = locked(&self.making).entry(path.clone()).or_default().clone();
        let _alone = locked(&mine);
        let made = match find() {
            Ok(found) => return Ok(found),
            Err(e) if e.kind() == io::ErrorKind::NotFound => "made".to_string(),
            Err(e) => format!("made (what was there can't be used: {e})"),
        };
        let (start, ssd, now) = prepare(target, plan, monitor).map_err(Untaken::Unprepared)?;
        let kept = keep(&path, &start, &ssd, now);
        let taken = kept.and_then(|()| load(&path, target, plan.seed, &made));
        taken.map_err(|e| Untaken::Shelf(format!("{}: {e}", path.display())))
    }
}

/// Prepares a device in a run of its own. Returns it with the time at which it was put away.
fn prepare(
    target: &Target,
    plan: &RunPlan,
    monitor: &Rc<dyn Monitor>,
) -> Result<(Start, Arc<Ssd>, Ns), String> {
    let vm = Virtual::new(target.host.cores, plan.seed, target.host.costs.clone());
    let (cx, owned, plan, monitor) = (vm.cx(), target.clone(), plan.clone(), monitor.clone());
    let made = vm.run(async move {
        let stack = Stack::build(&cx, &owned, plan.seed).await.map_err(|e| e.to_string())?;
        let subject = stack.subject(Rc::new(|| ()), false);
        let start = run::prepare_only(&cx, subject, &plan, monitor).await?;
        stack.drain(&cx).await;
        stack.put_away(&cx).await?;
        match stack.ssd().counters().violations {
            0 => Ok((start, stack.ssd().clone(), cx.now())),
            n => Err(format!("{n} rules of the medium were broken")),
        }
    });
    made.map_err(|e| e.to_string())?
}

/// Puts a device on the shelf: beside its place first, locked while it is being written.
fn keep(path: &Path, start: &Start, ssd: &Ssd, now: Ns) -> io::Result<()> {
    let file = Fresh::begin(path, only_files)?;
    let mut out = Summed { inner: BufWriter::with_capacity(1 << 20, file.file()), crc: 0 };
    let numbers = serde_json::to_vec(&start.prepared)?;
    out.write_all(MAGIC)?;
    out.write_all(&VERSION.to_le_bytes())?;
    out.write_all(stem(path))?;
    out.write_all(&(numbers.len() as u32).to_le_bytes())?;
    out.write_all(&numbers)?;
    start.oracle.save(&mut out)?;
    ssd.save(now, &mut out).map_err(wrong)?;
    let crc = out.crc;
    out.inner.write_all(&crc.to_le_bytes())?;
    out.flush()?;
    drop(out);
    Ok(file.commit(only_files)?)
}

/// The name of a file, which is inside, too: a file that was renamed is not what its name says.
fn stem(path: &Path) -> &[u8] {
    path.file_stem().map_or(&[], |stem| stem.as_encoded_bytes())
}

fn load(path: &Path, target: &Target, seed: u64, how: &str) -> io::Result<Shelved> {
    // Before it is opened, which would wait for somebody to write to a pipe.
    if !fs::metadata(path)?.is_file() {
        return Err(wrong("not a file"));
    }
    let file = File::open(path)?;
    let mut from = Summed { inner: BufReader::with_capacity(1 << 20, file), crc: 0 };
    let mut head = [0; 8 + 4 + 32];
    from.read_exact(&mut head)?;
    let same = head[..8] == *MAGIC && head[8..12] == VERSION.to_le_bytes();
    if !same || head[12..] != *stem(path) {
        return Err(wrong("not this prepared device"));
    }
    let mut len = [0; 4];
    from.read_exact(&mut len)?;
    let len = u32::from_le_bytes(len);
    if len > NUMBERS_MAX {
        return Err(wrong("too many numbers"));
    }
    let mut numbers = vec![0; len as usize];
    from.read_exact(&mut numbers)?;
    let prepared: Prepared = serde_json::from_slice(&numbers)?;
    let most = target.stack.device.spec.geometry().sectors();
    let oracle = Oracle::load(&mut from, most)?;
    let options = SsdOptions { seed, ..target.stack.device.options.clone() };
    let ssd = Ssd::load(&target.stack.device.spec, options, &mut from).map_err(wrong)?;
    let (crc, mut stored) = (from.crc, [0; 4]);
    from.inner.read_exact(&mut stored)?;
    if stored != crc.to_le_bytes() || from.inner.read(&mut [0])? != 0 {
        return Err(wrong("its checksum is wrong"));
    }
    let prepared = Prepared { shelf: Some(how.into()), ..prepared };
    Ok(Shelved { path: path.to_path_buf(), ssd, start: Start { oracle, prepared } })
}
