//! The holder's side of the socket, on threads of its own.
//!
//! Owns: who is connected and for how long, the question that the run's thread is to answer next.
//! Promises: a client is heard for a bounded time, with a bounded number of bytes; where more come
//! than fit, the one that is slowest to ask or to take its answer makes room; the run answers one
//! question at a time and then has as long for itself as the answer took; when it ends, the
//! socket's name is gone before the image is given to others. Never: looks at a drive.

use super::socket::listen_at;
use super::{ASK_MAX, Answer, Ask, ControlError, Greeting, NAME, Question, Reply, VERSION};
use flashlane_base::mutant;
use flashlane_rt::Bell;
use rustix::io::Errno;
use rustix::net::{RecvFlags, Shutdown, recv, shutdown};
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const CLIENTS_MAX: usize = 16;
/// Where more come, a client that has this process wait for so long makes room.
const PATIENCE: Duration = Duration::from_millis(100);
/// A client has so long to ask.
const TO_ASK: Duration = Duration::from_secs(5);
/// And so long to take the answer.
const TO_TAKE: Duration = Duration::from_secs(30);
/// How often a client that says nothing is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Answers under way when the holder closes get so long.
const TO_END: Duration = Duration::from_secs(2);

/// A question on its way to the run's thread.
pub(super) struct Job {
    pub(super) ask: Ask,
    reply: SyncSender<(Reply, Duration)>,
}

/// What the threads share.
#[derive(Default)]
struct Shared {
    /// Calls the run, which answers between two steps.
    bell: Bell,
    next: Mutex<Option<Job>>,
    /// Whoever has it may ask next, and when that may be.
    turn: Mutex<Option<Instant>>,
    closing: AtomicBool,
    clients: Mutex<BTreeMap<u64, Connected>>,
    gone: Condvar,
}

/// A client that is there.
struct Connected {
    stream: UnixStream,
    /// It is waited for since then; none while it waits.
    slow_since: Option<Instant>,
    /// Its question has come.
    has_asked: bool,
    /// It has made room.
    leaves: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Real time, for clients; nothing in a run depends on it.
pub(super) fn now() -> Instant {
    #[allow(clippy::disallowed_methods)]
    Instant::now()
}

/// The end at which questions arrive on the run's thread.
pub(super) struct Questions(Arc<Shared>);

impl Questions {
    /// The question that waits, if one does.
    pub(super) fn next(&self) -> Option<Job> {
        lock(&self.0.next).take()
    }
}

impl Job {
    pub(super) fn answer(self, with: impl FnOnce(&Ask) -> Result<Answer, String>) {
        let began = now();
        let answer = with(&self.ask);
        self.send(answer, now() - began);
    }

    /// Answers from elsewhere: the run was not kept from anything.
    pub(super) fn answer_beside(self, answer: Result<Answer, String>) {
        self.send(answer, Duration::ZERO);
    }

    fn send(self, answer: Result<Answer, String>, took: Duration) {
        let reply = match answer {
            Ok(answer) => Reply::Answer(answer),
            Err(why) => Reply::Refused(why),
        };
        // A client that has gone meanwhile needs no answer.
        let _ = self.reply.send((reply, took));
    }
}

/// A socket that is listened at, until it is dropped.
pub(crate) struct Listening {
    path: PathBuf,
    /// Which file it is: the name may be another's by the time this one goes.
    inode: u64,
    listener: UnixListener,
    shared: Arc<Shared>,
    acceptor: Option<JoinHandle<()>>,
}

impl Listening {
    /// Listens at the socket of an image that is locked: the socket, the bell that rings when somebody has
    /// asked, and where the questions arrive.
    ///
    /// # Errors
    /// The place can't be had.
    pub(super) fn begin(path: &Path) -> Result<(Listening, Bell, Questions), ControlError> {
        let refuse =
            |e: io::Error| ControlError::Listen { path: path.into(), problem: e.to_string() };
        let listener = listen_at(path)?;
        let inode = std::fs::symlink_metadata(path).map_err(refuse)?.ino();
        let shared = Arc::new(Shared::default());
        let (theirs, ours) = (shared.clone(), listener.try_clone().map_err(refuse)?);
        let acceptor = std::thread::Builder::new()
            .name("drive control".into())
            .spawn(move || accept(&ours, &theirs));
        let acceptor = acceptor.map_err(|e| {
            let _ = std::fs::remove_file(path);
            refuse(e)
        })?;
        let (bell, questions) = (shared.bell.clone(), Questions(shared.clone()));
        let (path, acceptor) = (path.into(), Some(acceptor));
        Ok((Listening { path, inode, listener, shared, acceptor }, bell, questions))
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        if std::fs::symlink_metadata(&self.path).is_ok_and(|there| there.ino() == self.inode) {
            let _ = std::fs::remove_file(&self.path);
        }
        {
            let mut next = lock(&self.shared.next);
            self.shared.closing.store(true, Ordering::SeqCst);
            // Its client hears that nobody answers any more.
            *next = None;
        }
        let _ = shutdown(&self.listener, Shutdown::Both);
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        let mut clients = lock(&self.shared.clients);
        for client in clients.values() {
            let _ = client.stream.shutdown(std::net::Shutdown::Read);
        }
        let end = now() + TO_END;
        while !clients.is_empty() {
            let left = end.saturating_duration_since(now());
            if left.is_zero() {
                return;
            }
            let waited = self.shared.gone.wait_timeout(clients, left);
            clients = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// Takes clients in until the socket is shut down.
fn accept(listener: &UnixListener, shared: &Arc<Shared>) {
    for number in 0.. {
        let accepted = listener.accept();
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let kept = accepted.and_then(|(stream, _)| Ok((stream.try_clone()?, stream)));
        let Ok((kept, stream)) = kept else {
            // No descriptors left, most likely: clients that go give some back.
            let clients = lock(&shared.clients);
            let _ = shared.gone.wait_timeout(clients, LOOK_EVERY);
            continue;
        };
        let mut clients = wait_for_room(shared);
        if shared.closing.load(Ordering::SeqCst) {
            return;
        }
        let slow_since = Some(now());
        let client = Connected { stream: kept, slow_since, has_asked: false, leaves: false };
        clients.insert(number, client);
        drop(clients);
        let theirs = shared.clone();
        let thread = std::thread::Builder::new().name("drive control client".into());
        let spawned = thread.spawn(move || {
            serve(&stream, number, &theirs);
            lock(&theirs.clients).remove(&number);
            theirs.gone.notify_all();
        });
        if spawned.is_err() {
            lock(&shared.clients).remove(&number);
        }
    }
}

/// Waits until there is room for one more client, or the socket is shut down: the one that is
/// waited for longest makes room.
fn wait_for_room(shared: &Shared) -> MutexGuard<'_, BTreeMap<u64, Connected>> {
    let mut clients = lock(&shared.clients);
    while clients.len() >= CLIENTS_MAX && !shared.closing.load(Ordering::SeqCst) {
        let now = now();
        let slow = clients.values_mut().filter_map(|c| Some((c.slow_since?, c)));
        let wait = match slow.filter(|(_, c)| !c.leaves).min_by_key(|(since, _)| *since) {
            Some((since, client)) if !mutant!("lab.control-waits-for-silent") => {
                let left = PATIENCE.saturating_sub(now - since);
                if left.is_zero() {
                    client.leaves = true;
                    // Its thread finds that nothing comes, or goes, any more; one that has not
                    // asked is told so.
                    let how = match client.has_asked {
                        true => std::net::Shutdown::Both,
                        false => std::net::Shutdown::Read,
                    };
                    let _ = client.stream.shutdown(how);
                }
                left.max(LOOK_EVERY / 10)
            }
            _ => LOOK_EVERY,
        };
        let waited = shared.gone.wait_timeout(clients, wait);
        clients = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
    clients
}

/// One client: greets, hears, has it answered, says so.
fn serve(stream: &UnixStream, number: u64, shared: &Shared) {
    let greeting =
        Greeting { flashlane: NAME.into(), version: VERSION, process: std::process::id() };
    if say(stream, &greeting, TO_ASK).is_err() {
        return;
    }
    let reply = match hear(stream, number, shared) {
        Ok(Some(line)) => match parse(&line) {
            Ok(ask) => {
                change(number, shared, |client| {
                    (client.slow_since, client.has_asked) = (None, true)
                });
                match have_answered(ask, stream, shared) {
                    Some(reply) => reply,
                    None => return,
                }
            }
            Err(why) => Reply::Refused(why),
        },
        Ok(None) => return,
        Err(why) => Reply::Refused(why),
    };
    change(number, shared, |client| client.slow_since = Some(now()));
    let _ = say(stream, &reply, TO_TAKE);
    // What it has sent beyond its question is read off, so that closing does not take the answer back.
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let _ = stream.set_nonblocking(true);
    let mut rest = [0; 4096];
    let mut reader = stream;
    for _ in 0..ASK_MAX / rest.len() {
        if !matches!(reader.read(&mut rest), Ok(1..)) {
            break;
        }
    }
}

/// Notes something of a client.
fn change(number: u64, shared: &Shared, what: impl FnOnce(&mut Connected)) {
    if let Some(client) = lock(&shared.clients).get_mut(&number) {
        what(client);
    }
}

fn leaves(number: u64, shared: &Shared) -> bool {
    lock(&shared.clients).get(&number).is_some_and(|client| client.leaves)
}

/// A question; `None` when the client has gone.
fn hear(stream: &UnixStream, number: u64, shared: &Shared) -> Result<Option<Vec<u8>>, String> {
    let end = now() + TO_ASK;
    let _ = stream.set_read_timeout(Some(LOOK_EVERY));
    let mut line = Vec::new();
    let mut part = [0; 4096];
    let mut reader = stream;
    loop {
        match reader.read(&mut part) {
            Ok(0) if shared.closing.load(Ordering::SeqCst) => return Err(CLOSING.into()),
            Ok(0) if leaves(number, shared) => {
                return Err("no question came, and others wait to ask theirs".into());
            }
            Ok(0) => return Ok(None),
            Ok(n) => match part[..n].iter().position(|b| *b == b'\n') {
                Some(at) => {
                    line.extend_from_slice(&part[..at]);
                    return match line.len() <= ASK_MAX {
                        true => Ok(Some(line)),
                        false => Err(too_long()),
                    };
                }
                None => line.extend_from_slice(&part[..n]),
            },
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => return Ok(None),
        }
        if line.len() > ASK_MAX {
            return Err(too_long());
        }
        if now() >= end {
            return Err(format!("no question came within {} s", TO_ASK.as_secs()));
        }
    }
}

fn too_long() -> String {
    format!("a question is one line of at most {ASK_MAX} bytes")
}

const CLOSING: &str = "the process that had the drive open is closing it; try again";

fn parse(line: &[u8]) -> Result<Ask, String> {
    let value: serde_json::Value = serde_json::from_slice(line).map_err(|_| {
        format!("this is no question: send one line of JSON, {{\"version\":{VERSION},\"ask\":\"smart\"}}")
    })?;
    let version = value.get("version").and_then(serde_json::Value::as_u64);
    if version != Some(VERSION.into()) {
        let said = version.map_or("no version".into(), |v| format!("version {v}"));
        return Err(format!(
            "the question has {said} of the control protocol, the process that has the drive open speaks \
             {VERSION}: use the flashlane that it was started from"
        ));
    }
    let question: Question =
        serde_json::from_value(value).map_err(|e| format!("this can't be asked: {e}"))?;
    Ok(question.ask)
}

/// Has the client closed its end? Who gave up waiting must not find later that it was done.
fn has_gone(stream: &UnixStream) -> bool {
    let mut one = [0; 1];
    match recv(stream, &mut one, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, n)) => n == 0,
        Err(e) => !matches!(e, Errno::AGAIN | Errno::INTR),
    }
}

/// Has the run's thread answer; `None` when the client has gone before its turn came.
fn have_answered(ask: Ask, stream: &UnixStream, shared: &Shared) -> Option<Reply> {
    let mut turn = lock(&shared.turn);
    // The run has as long for itself as it was kept from it, however many ask.
    if let Some(left) = turn.and_then(|at| at.checked_duration_since(now())) {
        #[allow(clippy::disallowed_methods)] // clients wait in real time
        std::thread::sleep(left);
    }
    let (reply, answer) = sync_channel(1);
    {
        let mut next = lock(&shared.next);
        if shared.closing.load(Ordering::SeqCst) {
            return Some(Reply::Refused(CLOSING.into()));
        }
        if has_gone(stream) {
            return None;
        }
        *next = Some(Job { ask, reply });
    }
    shared.bell.ring();
    let Ok((answer, took)) = answer.recv() else {
        return Some(Reply::Refused(CLOSING.into()));
    };
    *turn = now().checked_add(took.min(TO_TAKE));
    Some(answer)
}

/// Sends a line, as far as the client takes it in time.
fn say(stream: &UnixStream, message: &impl serde::Serialize, within: Duration) -> io::Result<()> {
    let mut text = serde_json::to_vec(message).map_err(io::Error::other)?;
    text.push(b'\n');
    let end = now() + within;
    let (mut writer, mut rest) = (stream, &text[..]);
    while !rest.is_empty() {
        let left = end.saturating_duration_since(now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_write_timeout(Some(left))?;
        match writer.write(rest) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(n) => rest = &rest[n..],
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As many clients as fit are connected and ask nothing, and one more comes: the one that is
    /// waited for longest makes room.
    #[test]
    fn who_asks_nothing_makes_room() {
        const FIRST: u64 = 3;
        let shared = Arc::new(Shared::default());
        let mut ends = Vec::new();
        for number in 0..CLIENTS_MAX as u64 {
            let (near, far) = UnixStream::pair().unwrap();
            let before = if number == FIRST { 3 * PATIENCE } else { 2 * PATIENCE };
            let slow_since = Some(now().checked_sub(before).unwrap());
            ends.push((near.try_clone().unwrap(), far));
            let client = Connected { stream: near, slow_since, has_asked: false, leaves: false };
            lock(&shared.clients).insert(number, client);
        }
        let theirs = shared.clone();
        let waiter = std::thread::spawn(move || wait_for_room(&theirs).len());
        // What its thread would hear: nothing comes any more.
        let mut near = &ends[FIRST as usize].0;
        near.set_read_timeout(Some(TO_ASK)).unwrap();
        let heard = near.read(&mut [0]);
        let left = lock(&shared.clients).remove(&FIRST).unwrap().leaves;
        shared.gone.notify_all();
        assert_eq!(waiter.join().unwrap(), CLIENTS_MAX - 1);
        assert_eq!((heard.unwrap(), left), (0, true));
    }
}
