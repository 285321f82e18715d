//! File systems on flash of which a whole failure unit vanishes at a mount: a die, a PU, a channel,
//! a chunk, a run of reads.
//!
//! Owns: which unit vanishes in which life ([`Losses`]), what a mount may come to ([`Verdict`]),
//! what it may give meanwhile ([`look`]). Promises: what is read is what was durable, or an error;
//! while a loss lasts, the next mount comes to the same verdict, in the same words. Never: mounts,
//! or judges a life in which everything can be read: in that nothing may be missing (`life.rs`).
//!
//! Behind an unmount the checkpoint names every page that counts, so any unit may vanish. Behind a
//! power cut S-FTL takes one block of a PU that can't be read for torn (FORMAT.md, section 15, the
//! accepted loss), so there all reads fail, or none.

use super::actor::real;
use super::known::{HALF, Kind, Known, PIECE, parts};
use crate::harness::{Done, End};
use crate::vanish::{Loss, Unit, touch};
use flashlane_base::{Ns, Rng};
use flashlane_ocssd::{Device, Ssd};
use flashlane_parafs::{Fs, FsError, ROOT};
use flashlane_rt::Cx;
use flashlane_rt::sync::Mutex;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Every read fails.
const ALL: Loss = Loss { unit: Unit::Reads(u64::MAX), from: 1 };

/// What a mount came to while something had vanished.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    /// There is no mount, and why.
    Refused(String),
    /// Nothing is written, and why; so many lookups and reads failed.
    ReadOnly(String, u64),
    /// It is mounted for writing.
    Mounted,
}

impl Verdict {
    /// True if both verdicts are the same. Two refusals may differ in how many sectors and chunks
    /// are lost, because the first mount has programmed padding that the next one can't read
    /// either. They must name the same first place.
    fn agrees(&self, other: &Verdict) -> bool {
        let kind = |why: &str| {
            let (before, behind) = why.split_once("up to ").unwrap_or((why, ""));
            let first = behind.split_once(" sectors").map_or(behind, |(_, rest)| rest);
            let first = first.split('(').next().unwrap_or_default();
            (before.to_owned(), first.to_owned())
        };
        match (self, other) {
            (Verdict::Refused(why), Verdict::Refused(other)) => kind(why) == kind(other),
            (Verdict::ReadOnly(why, errors), Verdict::ReadOnly(other, others)) => {
                (why, errors) == (other, others)
            }
            (Verdict::Mounted, Verdict::Mounted) => true,
            _ => false,
        }
    }
}

/// How a life begins.
pub(crate) enum Begun {
    /// Everything can be read.
    Whole,
    /// This is gone; with the verdict of the mount before, if that met the same loss.
    Lost(Loss, Option<Verdict>),
    /// A die is dead, and both verdicts are known: nothing is left to be tried.
    Over,
}

/// What vanishes over the lives of a seed.
pub(crate) struct Losses {
    ssd: Arc<Ssd>,
    seed: u64,
    /// Lives that have begun.
    lives: Cell<u64>,
    /// The file system was unmounted, and no mount has changed anything since.
    clean: Cell<bool>,
    /// As `clean` was when this life began.
    was_clean: Cell<bool>,
    /// A die is dead.
    has_dead_die: Cell<bool>,
    /// What still lasts, and what the mount of the last life came to.
    again: RefCell<Option<(Loss, Verdict)>>,
    /// As [`Done::vanished`] and [`Done::refused`], since they were counted last.
    vanished: Cell<u64>,
    refused: Cell<u64>,
    /// The losses so far, each with the number of its life.
    said: RefCell<Vec<String>>,
}

impl Loss {
    /// It is there from the first command on, until somebody ends it: two mounts meet the same.
    fn lasts(self) -> bool {
        self == ALL || self.from == 1 && !matches!(self.unit, Unit::Reads(_))
    }
}

impl Losses {
    /// Nothing has vanished so far.
    pub(crate) fn new(ssd: Arc<Ssd>, seed: u64) -> Losses {
        Losses {
            ssd,
            seed,
            lives: Cell::new(0),
            clean: Cell::new(false),
            was_clean: Cell::new(false),
            has_dead_die: Cell::new(false),
            again: RefCell::default(),
            vanished: Cell::new(0),
            refused: Cell::new(0),
            said: RefCell::default(),
        }
    }

    /// A life begins: with the loss of the last one if that is to be met again, else with a new one
    /// or with none, and what had vanished before is back, but for dies.
    pub(crate) fn begin(&self) -> Begun {
        self.lives.set(self.lives.get() + 1);
        // Until it is known how this life ends.
        self.was_clean.set(self.clean.replace(false));
        if let Some((loss, verdict)) = self.again.take() {
            return Begun::Lost(loss, Some(verdict));
        }
        if self.has_dead_die.get() {
            return Begun::Over;
        }
        self.ssd.forgive();
        let Some(loss) = self.draw() else { return Begun::Whole };
        let geo = *self.ssd.geometry();
        loss.faults(&geo, Ns::ZERO).into_iter().for_each(|fault| self.ssd.fail(fault));
        self.has_dead_die.set(loss.unit.is_for_good());
        self.vanished.set(self.vanished.get() + 1);
        self.said.borrow_mut().push(format!("life {}: {loss:?}", self.lives.get()));
        Begun::Lost(loss, None)
    }

    fn draw(&self) -> Option<Loss> {
        let mut rng = Rng::stream(self.seed, "testkit.files.vanish", self.lives.get());
        if !self.was_clean.get() {
            return (rng.below(4) == 0).then_some(ALL);
        }
        if rng.below(3) == 0 {
            return None;
        }
        // A dead die is the end of the run: few of them.
        let unit = match Unit::draw(&mut rng, self.ssd.geometry()) {
            Unit::Die(pu) if rng.below(4) > 0 => Unit::Pu(pu),
            unit => unit,
        };
        // Most of the time from the first command on; else in the middle of the mount.
        let (at_once, magnitude) = (rng.below(3) > 0, rng.below(9));
        Some(Loss { unit, from: if at_once { 1 } else { 1 + rng.below(1 << magnitude) } })
    }

    /// A die that fails at its first command fails before the mount looks.
    pub(crate) async fn touch(&self, cx: &Cx, loss: Loss) {
        if let (Unit::Die(pu), 1) = (loss.unit, loss.from) {
            touch(cx, self.ssd.clone(), pu).await;
        }
    }

    /// Whether a mount may come to anything but a refusal. Where all reads fail it may not.
    pub(crate) fn may_be_mounted(&self) -> bool {
        self.was_clean.get()
    }

    /// Judges what a mount came to, with the verdict of the one before where that met the same
    /// loss. Says how the life ends.
    ///
    /// # Errors
    /// The two differ.
    pub(crate) fn judge(
        &self,
        loss: Loss,
        before: Option<Verdict>,
        now: Verdict,
    ) -> Result<End, String> {
        if let Some(before) = &before
            && !before.agrees(&now)
        {
            return Err(format!("a mount came to {before:?}, the next one to {now:?}"));
        }
        if matches!(now, Verdict::Mounted) {
            // Whatever is being written is cut.
            return Ok(End::Cut);
        }
        self.refused.set(self.refused.get() + 1);
        // A mount that met the loss in its middle may have begun to write before it gave up.
        if loss.lasts() || matches!(now, Verdict::ReadOnly(..)) {
            self.clean.set(self.was_clean.get());
        }
        if loss.lasts() && before.is_none() {
            *self.again.borrow_mut() = Some((loss, now));
        }
        Ok(End::Stopped)
    }

    /// The file system was unmounted.
    pub(crate) fn unmounted(&self) {
        self.clean.set(true);
    }

    /// Adds what has happened since this was asked last.
    pub(crate) fn count(&self, done: &mut Done) {
        done.vanished += self.vanished.take();
        done.refused += self.refused.take();
    }

    /// For people.
    pub(crate) fn describe(&self) -> String {
        format!(", of which units vanish ({})", self.said.borrow().join("; "))
    }
}

/// Looks at everything that was there at the unmount, while some of it can't be read: how many
/// lookups and reads fail. `ended` is told of each file.
///
/// # Errors
/// A name or a file is not what it was, is gone, or fails in another way than by the medium.
pub(crate) async fn look(
    cx: &Cx,
    fs: &Arc<Fs>,
    known: &Mutex<Known>,
    gap: u64,
    ended: impl Fn(),
) -> Result<u64, String> {
    let known = known.lock().clone();
    let (mut errors, mut entries, mut inos) = (0, BTreeMap::new(), BTreeSet::from([ROOT]));
    for (path, ino) in known.names() {
        let (dir, name) = parts(path);
        let dir = known.ino(dir).ok_or_else(|| format!("{path} is in no directory"))?;
        inos.insert(*ino);
        entries.insert((dir, name.as_bytes().to_vec()), *ino);
    }
    for ((dir, name), ino) in &entries {
        let said = || format!("`{}` in directory {dir}", String::from_utf8_lossy(name));
        match fs.lookup(cx, *dir, name).await {
            Ok(found) if found.ino == *ino => {}
            Ok(found) => return Err(format!("{} is {}, not {ino}", said(), found.ino)),
            Err(FsError::Io(_)) => errors += 1,
            Err(e) => return Err(format!("{}: {e}", said())),
        }
    }
    for ino in inos {
        errors += match known.kinds.get(&ino) {
            Some(Kind::Dir) => names_of(cx, fs, ino, &entries).await?,
            Some(Kind::Link(to)) => match fs.read_link(cx, ino).await {
                Ok(found) if found == *to => 0,
                Err(FsError::Io(_)) => 1,
                other => return Err(format!("link {ino} leads to {other:?}, not {to:?}")),
            },
            _ => content_of(cx, fs, ino, &known, gap).await?,
        };
        ended();
    }
    Ok(errors)
}

/// Lists a directory: 1 if it can't be read to its end.
async fn names_of(
    cx: &Cx,
    fs: &Arc<Fs>,
    dir: u32,
    entries: &BTreeMap<(u32, Vec<u8>), u32>,
) -> Result<u64, String> {
    let mut at = 0;
    loop {
        let some = match fs.read_dir(cx, dir, at, 100).await {
            Ok(some) => some,
            Err(FsError::Io(_)) => return Ok(1),
            Err(e) => return Err(format!("directory {dir}: {e}")),
        };
        let Some(last) = some.last() else { return Ok(0) };
        at = last.next;
        for entry in some {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            let wanted = entries.get(&(dir, entry.name));
            if wanted != Some(&entry.ino) {
                return Err(format!("`{name}` in {dir} is {}, not {wanted:?}", entry.ino));
            }
        }
    }
}

/// Reads a file piece by piece: how many reads fail.
async fn content_of(
    cx: &Cx,
    fs: &Arc<Fs>,
    ino: u32,
    known: &Known,
    gap: u64,
) -> Result<u64, String> {
    let file = known.files.get(&ino).ok_or_else(|| format!("nobody knows file {ino}"))?;
    let (size, mode) = (real(file.now.len(), gap), file.mode());
    match fs.attributes(cx, ino).await {
        Ok(of) if (of.size, of.mode) == (size, mode) => {}
        Ok(of) => {
            let is = (of.size, of.mode);
            return Err(format!("file {ino} is {is:?}, not {:?} (bytes, mode)", (size, mode)));
        }
        Err(FsError::Io(_)) => return Ok(1),
        Err(e) => return Err(format!("file {ino}: {e}")),
    }
    let mut errors = 0;
    for (piece, at) in file.now.chunks(PIECE).zip((0..).step_by(PIECE)) {
        let from = at as u64 + if at >= HALF { gap } else { 0 };
        let mut got = vec![0xa5; piece.len()];
        match fs.read(cx, ino, from, &mut got).await {
            Ok(n) if n == piece.len() && got == piece => {}
            Ok(n) => {
                let differs = got.iter().zip(piece).position(|(is, wanted)| is != wanted);
                let differs = differs.map(|i| (i, got[i], piece[i]));
                return Err(format!(
                    "file {ino} at {at}: {n} bytes of {}, not what is durable: {differs:?} (place, \
                     found, wanted)",
                    piece.len()
                ));
            }
            Err(FsError::Io(_)) => errors += 1,
            Err(e) => return Err(format!("file {ino} at {at}: {e}")),
        }
    }
    Ok(errors)
}
