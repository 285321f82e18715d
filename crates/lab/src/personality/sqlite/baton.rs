//! A run and a thread of SQLite, of which one works at a time.
//!
//! Owns: the thread of a connection ([`Session`]), the channel on which it asks the run ([`Line`]).
//! Promises: while the thread works the run waits, and the other way round, so that the order of
//! all is the run's alone; SQLite's random numbers follow from the seed; a session that is dropped
//! leaves no thread behind: what SQLite still asks for fails at once. Never: knows what is asked.
//!
//! SQLite has one generator of random numbers for the whole process. So [`TURN`] lets one run's thread
//! work at a time, and its generator is seeded for each turn.

use super::client::{Client, Command, Reply};
use super::vfs;
use flashlane_base::mix64;
use flashlane_parafs::Nid;
use libsqlite3_sys as ffi;
use std::ffi::c_int;
use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// Whose thread works, in this process.
static TURN: Mutex<()> = Mutex::new(());
/// Of a connection's thread. SQLite needs less than half of it.
const STACK_BYTES: usize = 512 << 10;

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileKind {
    Database,
    /// A rollback journal or a WAL.
    Journal,
}

/// What a thread asks of the run.
pub(super) enum Ask {
    Open {
        name: String,
        create: bool,
    },
    Close(Nid),
    /// `sync`: that it is gone has to be durable.
    Delete {
        name: String,
        sync: bool,
    },
    Exists {
        name: String,
    },
    Read {
        ino: Nid,
        kind: FileKind,
        at: u64,
        bytes: usize,
    },
    Write {
        ino: Nid,
        kind: FileKind,
        at: u64,
        data: Vec<u8>,
    },
    Truncate {
        ino: Nid,
        size: u64,
    },
    Sync {
        ino: Nid,
        kind: FileKind,
        data_only: bool,
    },
    Size(Nid),
    /// So many microseconds.
    Sleep(u64),
    /// Nanoseconds since the run began.
    Time,
    /// Nothing more: this came of the command.
    Done(Reply),
}

/// What the run answers.
pub(super) enum Answer {
    Done,
    File(Nid),
    Bytes(Vec<u8>),
    Number(u64),
    /// There is no such file.
    Missing,
    /// There is no room for it.
    Full,
    Failed,
}

/// What the run sends.
enum Letter {
    Command(Command),
    Answer(Answer),
}

/// A thread's end.
pub(super) struct Line {
    asks: Sender<Ask>,
    letters: std::rc::Rc<Receiver<Letter>>,
}

impl Line {
    /// Nothing where the run has ended.
    pub(super) fn ask(&mut self, what: Ask) -> Option<Answer> {
        self.asks.send(what).ok()?;
        match self.letters.recv() {
            Ok(Letter::Answer(answer)) => Some(answer),
            _ => None,
        }
    }
}

/// The run's end: a connection, and the thread that it is on.
pub(super) struct Session {
    letters: Option<Sender<Letter>>,
    asks: Receiver<Ask>,
    thread: Option<JoinHandle<()>>,
    seed: u64,
    turns: u64,
}

impl Session {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system has no more threads.
    pub(super) fn start(seed: u64) -> io::Result<Session> {
        let (letters, to_thread) = channel();
        let (to_run, asks) = channel();
        let thread = std::thread::Builder::new().name("sqlite".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || work(to_run, to_thread))?;
        Ok(Session { letters: Some(letters), asks, thread: Some(thread), seed, turns: 0 })
    }

    /// Gives a command, and waits for what the thread asks first. Nothing where the thread has ended.
    pub(super) fn command(&mut self, command: Command) -> Option<Ask> {
        self.turn(Letter::Command(command))
    }

    /// Answers, and waits for what the thread asks next.
    pub(super) fn answer(&mut self, answer: Answer) -> Option<Ask> {
        self.turn(Letter::Answer(answer))
    }

    fn turn(&mut self, letter: Letter) -> Option<Ask> {
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        self.turns += 1;
        // Its low 31 bits, and not 0: that would be no seed.
        let seed = (mix64(self.seed ^ self.turns) & 0x7fff_ffff) as c_int | 1;
        let none = std::ptr::null_mut::<ffi::sqlite3>();
        // SAFETY: this control takes a seed and a connection or NULL.
        unsafe { ffi::sqlite3_test_control(ffi::SQLITE_TESTCTRL_PRNG_SEED, seed, none) };
        self.letters.as_ref()?.send(letter).ok()?;
        self.asks.recv().ok()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // Closing asks for random numbers, which are another run's in its turn.
        let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever the thread waits for, it is told that nothing will come.
        self.letters = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a thread does: commands, as long as there are some.
fn work(asks: Sender<Ask>, letters: Receiver<Letter>) {
    let letters = std::rc::Rc::new(letters);
    vfs::belong_to(Line { asks: asks.clone(), letters: letters.clone() });
    let mut client = Client::default();
    while let Ok(Letter::Command(command)) = letters.recv() {
        let reply = client.execute(command);
        if asks.send(Ask::Done(reply)).is_err() {
            break;
        }
    }
}
