//! Asks the process that has a drive open.
//!
//! Owns: one question and its answer, how long a holder is waited for, what is said of one that does not
//! answer. Promises: whatever listens there, it ends, in a time that counts from the question and not from
//! the last byte: with an answer, or with words that name the socket, and the process if it can be seen.
//! Never: opens an image.

use super::server::now;
use super::socket::{connect_to, path_of};
use super::{
    ANSWER_MAX, Answer, Ask, ControlError, Greeting, NAME, Question, Reply, VERSION, io_error,
};
use rustix::net::sockopt::socket_peercred;
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

/// Whoever takes longer than this to take us in does not.
const TO_CONNECT: Duration = Duration::from_secs(10);
/// A holder may have other clients, and a run that is in the middle of something.
const PATIENCE: Duration = Duration::from_secs(60);
/// A copy of a whole drive may take longer.
const LONG_PATIENCE: Duration = Duration::from_secs(3600);
/// A holder that is stopped answers nothing: it has so long to be continued.
const STOPPED_PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether it is.
const LOOK_EVERY: Duration = Duration::from_millis(250);
const GREETING_MAX: u64 = 4096;

/// Asks whoever has the image open.
pub(super) fn ask(image: &Path, ask: &Ask) -> Result<Answer, ControlError> {
    let path = path_of(image).map_err(|e| io_error("find", image, e))?;
    let stream = connect_to(&path, TO_CONNECT)?;
    let patience = match ask {
        Ask::Copy { .. } => LONG_PATIENCE,
        _ => PATIENCE,
    };
    let mut reader = BufReader::new(Waiting::new(&stream, patience));
    let holder = reader.get_ref().holder;
    let failed = |source: io::Error| match source.kind() {
        ErrorKind::TimedOut => wrong(&path, &silent(holder, patience)),
        _ => io_error("ask the holder of the drive at", &path, source),
    };
    let greeting = line(&mut reader, GREETING_MAX).map_err(failed)?;
    if greeting.is_empty() {
        return Err(ControlError::Nobody { path }); // it closed before it took us in
    }
    let Ok(Greeting { flashlane, version, process }) = serde_json::from_slice(&greeting) else {
        return Err(wrong(&path, "what listens there is not the holder of a drive"));
    };
    if flashlane != NAME {
        return Err(wrong(&path, "what listens there is not the holder of a drive"));
    }
    if version != VERSION {
        return Err(ControlError::Version { path, process, version });
    }
    let question = Question { version: VERSION, ask: ask.clone() };
    let mut text = serde_json::to_vec(&question).map_err(|e| wrong(&path, &e.to_string()))?;
    text.push(b'\n');
    // Who refuses before it has read everything says why, so that is read in any case.
    let sent = reader.get_mut().write_all(&text);
    let said = line(&mut reader, ANSWER_MAX).map_err(failed)?;
    if said.is_empty() {
        sent.map_err(failed)?;
        let says =
            format!("process {process} ended, or closed the drive, before it answered; try again");
        return Err(wrong(&path, &says));
    }
    match serde_json::from_slice(&said) {
        Ok(Reply::Answer(answer)) => Ok(answer),
        Ok(Reply::Refused(why)) => Err(ControlError::Refused(why)),
        Err(_) => Err(wrong(&path, &format!("process {process} answered what makes no sense"))),
    }
}

fn wrong(path: &Path, problem: &str) -> ControlError {
    ControlError::Answer { path: path.into(), problem: problem.into() }
}

/// The other side of a connection, waited for until a time; `TimedOut` says that it has come, or that the
/// process there has been stopped for long.
struct Waiting<'a> {
    stream: &'a UnixStream,
    end: Instant,
    /// Who listens there, if it can be seen from here.
    holder: Option<u32>,
    stopped_since: Option<Instant>,
}

impl<'a> Waiting<'a> {
    fn new(stream: &'a UnixStream, patience: Duration) -> Waiting<'a> {
        let holder = socket_peercred(stream).ok();
        let holder = holder.and_then(|of| u32::try_from(of.pid.as_raw_nonzero().get()).ok());
        Waiting { stream, end: now() + patience, holder, stopped_since: None }
    }

    /// Does a part of it, as soon as the other side lets it be done.
    fn part(
        &mut self,
        mut part: impl FnMut(&UnixStream, Duration) -> io::Result<usize>,
    ) -> io::Result<usize> {
        loop {
            let at = now();
            let stopped = matches!(self.holder.and_then(state_of), Some('T' | 't'));
            let since = *self.stopped_since.get_or_insert(at);
            if !stopped {
                self.stopped_since = None;
            } else if at.saturating_duration_since(since) >= STOPPED_PATIENCE {
                return Err(ErrorKind::TimedOut.into());
            }
            let left = self.end.saturating_duration_since(at);
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            match part(self.stream, left.min(LOOK_EVERY)) {
                // A timeout of a socket is "would block".
                Err(e)
                    if matches!(
                        e.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                done => return done,
            }
        }
    }
}

impl Read for Waiting<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.part(|mut stream, within| {
            stream.set_read_timeout(Some(within))?;
            stream.read(into)
        })
    }
}

impl Write for Waiting<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.part(|mut stream, within| {
            stream.set_write_timeout(Some(within))?;
            stream.write(bytes)
        })
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The letter that the system has for what a process does.
fn state_of(process: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // Behind its name, which may hold anything, in brackets.
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Why a holder that says nothing may say nothing, and what would do.
fn silent(holder: Option<u32>, patience: Duration) -> String {
    let seconds = patience.as_secs();
    let Some(process) = holder else {
        return format!(
            "the process that has the drive open has not answered for {seconds} s; try again, or end it"
        );
    };
    let does = match state_of(process) {
        Some('T' | 't') => {
            return format!(
                "process {process}, which has the drive open, is stopped and answers nothing: `kill -CONT \
                 {process}` has it go on"
            );
        }
        Some('D') => "it waits for its disk",
        Some('R') => "it is at work",
        Some('Z' | 'X') => "it has ended",
        _ => "it does nothing",
    };
    format!(
        "process {process}, which has the drive open, has not answered for {seconds} s ({does}); try again, \
         or end it"
    )
}

/// A line without its end; nothing when the other side closed before.
fn line(reader: &mut impl BufRead, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = reader.take(most).read_until(b'\n', &mut bytes);
    match read {
        Ok(_) => {}
        Err(e) if e.kind() == ErrorKind::ConnectionReset => return Ok(Vec::new()),
        Err(e) => return Err(e),
    }
    match bytes.pop() {
        Some(b'\n') => Ok(bytes),
        _ => Ok(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Who sends a byte now and then is not waited for any longer.
    #[test]
    fn patience_is_for_the_whole_answer() {
        let (near, far) = UnixStream::pair().unwrap();
        let drip = std::thread::spawn(move || {
            while (&far).write_all(b"x").is_ok() {
                #[allow(clippy::disallowed_methods)]
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let mut reader = BufReader::new(Waiting::new(&near, Duration::from_millis(400)));
        let error = line(&mut reader, GREETING_MAX).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        drop(reader);
        drop(near);
        drip.join().unwrap();
        let me = std::process::id();
        assert!(silent(Some(me), PATIENCE).contains(&format!("process {me}")));
    }
}
