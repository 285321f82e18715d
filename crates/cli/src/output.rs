//! Where results go: standard output, or files that appear whole.
//!
//! Owns: printing that survives a closed pipe, files that are complete or not there
//! (`flashlane_base::fresh`), pipes and character devices that are written to.
//! Promises: a file that a result is to go to is known to be writable before anything runs, and an
//! older one stays as it is until the new one is complete; one result that can't be written takes
//! no other with it. Never: prints anything but results on standard output, replaces what is no
//! regular file.

use crate::Ending;
use crate::args::AsJson;
use anyhow::{Context, Result, bail};
use flashlane_base::fresh::{Fresh, only_files};
use flashlane_lab::control::{Answer, Ask};
use flashlane_lab::verbs;
use std::fs::{self, File, FileType};
use std::io::{self, Write};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

pub(crate) fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Says that clients can connect. Nobody who reads it is no reason to end.
pub(crate) fn ready(address: &dyn std::fmt::Display) {
    let _ = print(&format!("ready {address}\n"));
}

/// Prints all that a command comes to: text for people, or bytes for programs.
pub(crate) fn done(result: impl AsRef<[u8]>) -> Result<Ending> {
    print_bytes(result.as_ref())?;
    Ok(Ending::Good)
}

fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    let written = out.write_all(bytes).and_then(|()| out.flush());
    written.context("cannot write standard output")
}

impl AsJson {
    /// Prints what a verb came to, or writes it as JSON.
    pub(crate) fn give(
        &self,
        inputs: &[PathBuf],
        get: impl FnOnce() -> Result<Answer>,
    ) -> Result<Ending> {
        let json = self.open(inputs)?;
        let answer = get()?;
        Results::of(json, &answer.json, &answer.text).end(Ending::Good)
    }

    /// Has a verb done to a drive, whoever has it open, and prints the answer or writes it as JSON.
    pub(crate) fn ask(&self, drive: &Path, ask: &Ask) -> Result<Ending> {
        self.give(&[drive.into()], || Ok(verbs::ask(drive, ask)?))
    }

    /// The place for the JSON, which is none of these inputs.
    pub(crate) fn open(&self, inputs: &[PathBuf]) -> Result<Sink> {
        json_beside(inputs, self.json.as_ref())
    }
}

/// The place that `--json` names, which is none of these inputs.
pub(crate) fn json_beside(inputs: &[PathBuf], json: Option<&PathBuf>) -> Result<Sink> {
    keep_inputs(inputs, &given(&[("--json", json)]))?;
    Sink::open(json.map(PathBuf::as_path))
}

/// The results of one command: each is tried, whatever became of those before it.
#[derive(Default)]
pub(crate) struct Results {
    failed: Vec<anyhow::Error>,
}

impl Results {
    /// A result as JSON, where that is wanted, and for people, unless the JSON is printed.
    pub(crate) fn of(json: Sink, as_json: &str, text: &str) -> Results {
        let (quiet, mut results) = (json.is_stdout(), Results::default());
        results.tried(json.put(as_json));
        if !quiet {
            results.tried(print(text));
        }
        results
    }

    /// One was written, or could not be.
    pub(crate) fn tried(&mut self, written: Result<()>) {
        self.failed.extend(written.err());
    }

    /// Whether one could not be written.
    pub(crate) fn lack_one(&self) -> bool {
        !self.failed.is_empty()
    }

    /// What the command came to, if all are written; else each that is not is said. A bad result
    /// stays one.
    pub(crate) fn end(self, ending: Ending) -> Result<Ending> {
        let (closed, failed): (Vec<_>, Vec<_>) = self.failed.into_iter().partition(is_closed_pipe);
        if failed.is_empty() {
            return closed.into_iter().next().map_or(Ok(ending), Err);
        }
        failed.iter().for_each(complain);
        remark(
            "flashlane: all else is done, and written or printed: make room there, or name another \
             place\n",
        );
        Ok(if ending == Ending::Bad { ending } else { Ending::Unusable })
    }
}

/// Says on standard error what went wrong.
pub(crate) fn complain(error: &anyhow::Error) {
    let mut text = format!("flashlane: {error}");
    for cause in error.chain().skip(1) {
        // Libraries often repeat their source in their own text.
        let cause = cause.to_string();
        if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    let _ = writeln!(io::stderr().lock(), "{text}");
}

/// Says on standard error what was done, beside a result on standard output.
pub(crate) fn remark(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// Whether an error is only that nobody reads on (`flashlane ... | head`).
pub(crate) fn is_closed_pipe(error: &anyhow::Error) -> bool {
    let kind = error.downcast_ref::<io::Error>().map(io::Error::kind);
    kind == Some(io::ErrorKind::BrokenPipe)
}

/// A place for a result, whole or piece by piece.
pub(crate) enum Sink {
    /// Not wanted.
    None,
    /// Standard output, in place of the text for people.
    Stdout,
    /// A pipe, a character device or an open descriptor (`/dev/null`, `>(program)`).
    Stream { path: PathBuf, file: File },
    /// A file that is being prepared.
    File(Pending),
}

impl Sink {
    /// Opens the place that an option names; `-` is standard output, and so is `/dev/stdout`.
    pub(crate) fn open(path: Option<&Path>) -> Result<Sink> {
        let Some(path) = path else { return Ok(Sink::None) };
        refuse_packed(path)?;
        if is_stdout(path) {
            return Ok(Sink::Stdout);
        }
        let place = path.display();
        Ok(match stream(path).with_context(|| format!("cannot write {place}"))? {
            Some(file) => Sink::Stream { path: path.into(), file },
            None => Sink::File(Pending::open(path)?),
        })
    }

    pub(crate) fn is_stdout(&self) -> bool {
        matches!(self, Sink::Stdout)
    }

    pub(crate) fn put(self, result: &str) -> Result<()> {
        self.make(|| result)
    }

    /// As `put`, of a result that is only made if it is wanted.
    pub(crate) fn make<T: AsRef<[u8]>>(self, result: impl FnOnce() -> T) -> Result<()> {
        match self {
            Sink::None => Ok(()),
            Sink::Stdout => print_bytes(result().as_ref()),
            Sink::Stream { path, mut file } => {
                let written = file.write_all(result().as_ref());
                written.with_context(|| format!("cannot write {}", path.display()))
            }
            Sink::File(pending) => pending.write(result().as_ref()),
        }
    }

    /// What was written piece by piece is complete: a file appears.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.flush().context("cannot write the result")?;
        match self {
            Sink::None | Sink::Stdout | Sink::Stream { .. } => Ok(()),
            Sink::File(pending) => pending.commit(),
        }
    }

    pub(crate) fn is_wanted(&self) -> bool {
        !matches!(self, Sink::None)
    }
}

/// Piece by piece, until [`Sink::commit`].
impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Sink::None => Ok(bytes.len()),
            Sink::Stdout => io::stdout().write(bytes),
            Sink::Stream { file, .. } => file.write(bytes),
            Sink::File(pending) => pending.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::None => Ok(()),
            Sink::Stdout => io::stdout().flush(),
            Sink::Stream { file, .. } => file.flush(),
            Sink::File(pending) => pending.file.flush(),
        }
    }
}

/// Two results cannot both go to standard output, nor to one file: who wants it, and the place.
pub(crate) fn all_apart(wanted: &[(&str, &Path)]) -> Result<()> {
    for (i, (option, path)) in wanted.iter().enumerate() {
        if let Some((other, _)) = wanted[..i].iter().find(|(_, place)| same_place(place, path)) {
            let place = match is_stdout(path) {
                true => "standard output".into(),
                false => path.display().to_string(),
            };
            bail!("{other} and {option} both want {place}: give one of them another file");
        }
    }
    Ok(())
}

/// A result may not replace what it is made from: who wants it, and the place.
pub(crate) fn keep_inputs(inputs: &[PathBuf], wanted: &[(&str, &Path)]) -> Result<()> {
    let whole = |p: &Path| fs::canonicalize(p).ok();
    for (option, path) in wanted {
        let is = |input: &&PathBuf| {
            same_place(input, path) || whole(input).is_some_and(|i| whole(path) == Some(i))
        };
        if let Some(input) = inputs.iter().find(is).filter(|i| i.is_file()) {
            let input = input.display();
            bail!("{option} would replace {input}, which is read: give it another file");
        }
    }
    Ok(())
}

/// The options of a command with the places that were given.
pub(crate) fn given<'a>(
    all: &[(&'static str, Option<&'a PathBuf>)],
) -> Vec<(&'static str, &'a Path)> {
    all.iter().filter_map(|(option, path)| Some((*option, path.as_ref()?.as_path()))).collect()
}

/// Whether two paths name one file. What is no regular file (`/dev/null`, a pipe) takes several.
fn same_place(a: &Path, b: &Path) -> bool {
    if is_stdout(a) || is_stdout(b) {
        return is_stdout(a) == is_stdout(b);
    }
    let folder = |p: &Path| {
        let parent = p.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::canonicalize(parent).unwrap_or_else(|_| parent.into())
    };
    let special = fs::metadata(a).is_ok_and(|m| !m.is_file());
    !special && a.file_name() == b.file_name() && folder(a) == folder(b)
}

/// Standard output, by one of its names.
fn is_stdout(path: &Path) -> bool {
    let names = ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"];
    names.iter().any(|name| path == Path::new(name))
}

/// What is written to in place, and not replaced: a pipe, a character device, or a descriptor that
/// this process was started with (`/dev/stderr`, `/dev/fd/63`). A pipe is waited for until it is
/// read.
fn stream(path: &Path) -> io::Result<Option<File>> {
    let Ok(there) = fs::metadata(path) else { return Ok(None) };
    let is_stream = |kind: FileType| kind.is_fifo() || kind.is_char_device();
    let folders = ["/dev/fd", "/proc/self/fd"].map(Path::new);
    let is_descriptor = path == Path::new("/dev/stderr")
        || path.parent().is_some_and(|folder| folders.contains(&folder));
    if !is_stream(there.file_type()) && !is_descriptor {
        return Ok(None);
    }
    let file = fs::OpenOptions::new().append(true).open(path)?;
    if !is_descriptor && !is_stream(file.metadata()?.file_type()) {
        return Err(io::Error::other("another file took its place meanwhile"));
    }
    Ok(Some(file))
}

/// Nothing here packs what it writes: a name that says so would be wrong.
fn refuse_packed(path: &Path) -> Result<()> {
    let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("");
    let program = match ending {
        "gz" => "gzip",
        "zst" => "zstd",
        _ => return Ok(()),
    };
    let (path, plain) = (path.display(), path.with_extension(""));
    bail!(
        "{path}: results are not written packed: write {}, then `{program}` it, or write to `-` and \
         pipe that into `{program} > {path}`",
        plain.display()
    );
}

/// A folder for files that will be there once they are complete.
pub(crate) struct Folder {
    path: PathBuf,
    /// It was not there before; without results it goes again.
    made: bool,
}

impl Folder {
    /// The folder at this place, made if it is not there; what it is in must be.
    pub(crate) fn open(path: &Path) -> Result<Folder> {
        let describe = || {
            let path = path.display();
            format!("cannot make the folder {path} (only the last folder of a path is made)")
        };
        if path == Path::new("-") {
            bail!("--report writes several files: name a folder, not `-`");
        }
        match fs::metadata(path) {
            Ok(m) if m.is_dir() => return Ok(Folder { path: path.into(), made: false }),
            Ok(_) => {
                bail!("{} is no folder: --report writes several files into one", path.display())
            }
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).with_context(describe),
            Err(_) => {}
        }
        fs::create_dir(path).with_context(describe)?;
        Ok(Folder { path: path.into(), made: true })
    }

    pub(crate) fn place(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.made {
            // Refused while anything is in it.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// A file that will be there once it is complete.
pub(crate) struct Pending {
    path: PathBuf,
    file: Fresh,
}

impl Pending {
    fn open(path: &Path) -> Result<Pending> {
        let file = Fresh::begin(path, only_files);
        let file = file.with_context(|| format!("cannot write {}", path.display()))?;
        Ok(Pending { path: path.into(), file })
    }

    fn write(mut self, text: &[u8]) -> Result<()> {
        let written = self.file.write_all(text);
        written.with_context(|| format!("cannot write {}", self.path.display()))?;
        self.commit()
    }

    /// What was written is complete: the file appears under its name.
    fn commit(self) -> Result<()> {
        let Pending { path, file } = self;
        file.commit(only_files).with_context(|| format!("cannot write {}", path.display()))
    }
}
