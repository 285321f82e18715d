//! Asks the process that has a drive open.
//!
//! Owns: one question and its answer. Promises: whatever listens there, it ends: with an answer, or with
//! words that name the socket. Never: opens an image.

use super::socket::{connect_to, path_of};
use super::{
    ANSWER_MAX, Answer, Ask, ControlError, Greeting, NAME, Question, Reply, VERSION, io_error,
};
use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

/// Whoever takes longer than this to greet, or to answer, does not answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// A copy of a whole drive may take longer.
const LONG_PATIENCE: Duration = Duration::from_secs(3600);
/// A greeting is shorter.
const GREETING_MAX: u64 = 4096;

/// Asks whoever has the image open.
pub(super) fn ask(image: &Path, ask: &Ask) -> Result<Answer, ControlError> {
    let path = path_of(image).map_err(|e| io_error("find", image, e))?;
    let stream = connect_to(&path, PATIENCE)?;
    let failed = |source: std::io::Error| match source {
        // A timeout of a socket is "would block".
        e if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => wrong(
            &path,
            "the process that has the drive open does not answer; try again, or end it",
        ),
        e => io_error("ask the holder of the drive at", &path, e),
    };
    let times = stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)));
    times.map_err(failed)?;
    let mut reader = BufReader::new(&stream);
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
    if matches!(ask, Ask::Copy { .. }) {
        stream.set_read_timeout(Some(LONG_PATIENCE)).map_err(failed)?;
    }
    let question = Question { version: VERSION, ask: ask.clone() };
    let mut text = serde_json::to_vec(&question).map_err(|e| wrong(&path, &e.to_string()))?;
    text.push(b'\n');
    let mut to: &UnixStream = &stream;
    // Who refuses before it has read everything says why, so that is read in any case.
    let sent = to.write_all(&text);
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

/// A line without its end; nothing when the other side closed before.
fn line(reader: &mut impl BufRead, most: u64) -> std::io::Result<Vec<u8>> {
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
