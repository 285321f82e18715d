//! What a thread does next, and to which file.
//!
//! Owns: the place of a thread in its loop ([`Actor`]), which files are there and whose turn it is
//! ([`Rotation`]). Promises: no input or output, so whoever drives an actor may do it in threads or in
//! tasks; a file that somebody has in hand is not deleted. Never: waits: a step that finds no file is
//! skipped, and with it those that would need it.
//!
//! Files are picked as Filebench does where `rotatefd` is not set: the next one that is there, of all that
//! threads ask for, or the next one that is not.

use crate::personality::{Kind, Settings, Step};
use crate::tree::Tree;
use flashlane_base::{Rng, mutant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Gone,
    There,
    /// Being made or deleted.
    Busy,
}

/// Which files are there. All actors of a set share one.
#[derive(Clone, Debug)]
pub struct Rotation {
    /// And by how many it is held.
    files: Vec<(State, u32)>,
    /// Where the search for one that is there, or is not, begins.
    there: usize,
    gone: usize,
}

impl Rotation {
    /// One whose files are there or not, in the order of the tree.
    pub fn new(there: impl IntoIterator<Item = bool>) -> Rotation {
        let state = |there| (if there { State::There } else { State::Gone }, 0);
        Rotation { files: there.into_iter().map(state).collect(), there: 0, gone: 0 }
    }

    /// Files that are there and not about to go.
    pub fn count(&self) -> usize {
        self.files.iter().filter(|(state, _)| *state == State::There).count()
    }

    fn next(&self, from: usize, good: impl Fn(State, u32) -> bool) -> Option<usize> {
        let n = self.files.len();
        let fits = |i: &usize| good(self.files[*i].0, self.files[*i].1);
        (from..n).chain(0..from.min(n)).find(fits)
    }

    fn take_there(&mut self) -> Option<usize> {
        let file = self.next(self.there, |state, _| state == State::There)?;
        self.there = file + 1;
        self.files[file].1 += 1;
        Some(file)
    }

    fn take_unheld(&mut self) -> Option<usize> {
        let file = self.next(self.there, |state, held| state == State::There && held == 0)?;
        self.there = file + 1;
        self.files[file].0 = State::Busy;
        Some(file)
    }

    fn take_gone(&mut self) -> Option<usize> {
        let file = self.next(self.gone, |state, _| state == State::Gone)?;
        self.gone = file + 1;
        self.files[file].0 = State::Busy;
        Some(file)
    }
}

/// What is to be done. A file is its number in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Call {
    Create(usize),
    Open(usize),
    Delete(usize),
    Stat(usize),
    /// To the open file, as this, or to the log.
    Write(Kind, u64),
    Read,
    Fsync,
    Close,
    /// There is no file to do this to.
    Skip(Kind),
}

impl Call {
    pub fn kind(self) -> Kind {
        match self {
            Call::Create(_) => Kind::Create,
            Call::Open(_) => Kind::Open,
            Call::Delete(_) => Kind::Delete,
            Call::Stat(_) => Kind::Stat,
            Call::Read => Kind::ReadWhole,
            Call::Fsync => Kind::Fsync,
            Call::Close => Kind::Close,
            Call::Write(kind, _) | Call::Skip(kind) => kind,
        }
    }
}

/// A thread of a personality.
#[derive(Clone, Debug)]
pub struct Actor {
    steps: &'static [Step],
    at: usize,
    rng: Rng,
    append: u64,
    open: Option<usize>,
    /// Loops that it has ended.
    pub loops: u64,
}

impl Actor {
    /// The thread of this number.
    pub fn new(settings: &Settings, number: u32) -> Actor {
        Actor {
            steps: settings.personality.steps(),
            at: 0,
            rng: Rng::stream(settings.seed, "thread", number.into()),
            append: settings.append.get(),
            open: None,
            loops: 0,
        }
    }

    /// What it does now. It has to be told when that is [`Actor::done`], or has [`Actor::failed`].
    pub fn next(&mut self, tree: &Tree, files: &mut Rotation) -> Call {
        let step = self.steps[self.at];
        let call = match step {
            Kind::Create => files.take_gone().map(Call::Create),
            Kind::Open => files.take_there().map(Call::Open),
            Kind::Delete => files.take_unheld().map(Call::Delete),
            Kind::Stat => files.take_there().map(Call::Stat),
            Kind::WriteWhole => self.open.map(|file| Call::Write(step, tree.files[file].bytes)),
            Kind::AppendLog => Some(Call::Write(step, self.drawn())),
            Kind::Append => self.open.map(|_| Call::Write(step, self.drawn())),
            Kind::ReadWhole => self.open.map(|_| Call::Read),
            Kind::Fsync => self.open.map(|_| Call::Fsync),
            Kind::Close => self.open.map(|_| Call::Close),
        };
        call.unwrap_or(Call::Skip(step))
    }

    /// Up to `meanappendsize`, each as likely; `appendfilerand` draws like this, whatever the name says.
    fn drawn(&mut self) -> u64 {
        self.rng.below(self.append + 1)
    }

    /// That was done.
    pub fn done(&mut self, call: Call, files: &mut Rotation) {
        match call {
            Call::Create(file) => {
                files.files[file] = (State::There, 1);
                self.open = Some(file);
            }
            Call::Open(file) => self.open = Some(file),
            Call::Delete(file) => files.files[file] = (State::Gone, 0),
            Call::Stat(file) => files.files[file].1 -= 1,
            Call::Close => {
                if let Some(file) = self.open.take() {
                    files.files[file].1 -= 1;
                }
            }
            Call::Write(..) | Call::Read | Call::Fsync | Call::Skip(_) => {}
        }
        self.step();
    }

    /// That could not be done: the file is as it was before, and what would need it is skipped.
    pub fn failed(&mut self, call: Call, files: &mut Rotation) {
        match call {
            Call::Create(_) if mutant!("files.made-all-the-same") => return self.done(call, files),
            Call::Create(file) => files.files[file] = (State::Gone, 0),
            Call::Open(file) => files.files[file].1 -= 1,
            Call::Delete(file) => files.files[file] = (State::There, 0),
            // The file is let go all the same.
            Call::Stat(_) | Call::Close => return self.done(call, files),
            Call::Write(..) | Call::Read | Call::Fsync | Call::Skip(_) => {}
        }
        self.step();
    }

    fn step(&mut self) {
        self.at = (self.at + 1) % self.steps.len();
        self.loops += (self.at == 0) as u64;
    }
}
