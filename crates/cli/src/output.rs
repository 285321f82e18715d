//! Where results go: standard output, or files that appear whole.
//!
//! Owns: printing that survives a closed pipe, files written beside their name and renamed.
//! Promises: a file that a result is to go to is known to be writable before anything runs, and an
//! older one stays as it is until the new one is complete; one result that can't be written takes
//! no other with it. Never: prints anything but results on standard output.

use crate::Ending;
use crate::args::AsJson;
use anyhow::{Context, Result, bail};
use flashlane_lab::control::{Answer, Ask};
use flashlane_lab::verbs;
use std::fs::{self, File};
use std::io::{self, Write};
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
    /// A file that is being prepared.
    File(Pending),
}

impl Sink {
    /// Opens the place that an option names; `-` is standard output.
    pub(crate) fn open(path: Option<&Path>) -> Result<Sink> {
        if let Some(path) = path {
            refuse_packed(path)?;
        }
        Ok(match path {
            None => Sink::None,
            Some(p) if p == Path::new("-") => Sink::Stdout,
            Some(p) => Sink::File(Pending::open(p)?),
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
            Sink::File(pending) => pending.write(result().as_ref()),
        }
    }

    /// What was written piece by piece is complete: a file appears.
    pub(crate) fn commit(mut self) -> Result<()> {
        self.flush().context("cannot write the result")?;
        match self {
            Sink::None | Sink::Stdout => Ok(()),
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
            Sink::File(pending) => pending.file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Sink::None => Ok(()),
            Sink::Stdout => io::stdout().flush(),
            Sink::File(pending) => pending.file.flush(),
        }
    }
}

/// Two results cannot both go to standard output, nor to one file: who wants it, and the place.
pub(crate) fn all_apart(wanted: &[(&str, &Path)]) -> Result<()> {
    for (i, (option, path)) in wanted.iter().enumerate() {
        if let Some((other, _)) = wanted[..i].iter().find(|(_, place)| same_place(place, path)) {
            let place = match *path == Path::new("-") {
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
    if a == Path::new("-") || b == Path::new("-") {
        return a == b;
    }
    let folder = |p: &Path| {
        let parent = p.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
        fs::canonicalize(parent).unwrap_or_else(|_| parent.into())
    };
    let special = fs::metadata(a).is_ok_and(|m| !m.is_file());
    let (a, b) = (&behind_links(a), &behind_links(b));
    !special && a.file_name() == b.file_name() && folder(a) == folder(b)
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

/// Symbolic links that lead to a file at most, as in Linux.
const LINKS_MAX: usize = 40;

/// What a path leads to through symbolic links, whether it is there or not: that is replaced, and
/// the links stay.
fn behind_links(path: &Path) -> PathBuf {
    let mut at = path.to_path_buf();
    for _ in 0..LINKS_MAX {
        match fs::read_link(&at) {
            Ok(to) => at = at.parent().unwrap_or(Path::new("")).join(to),
            Err(_) => break,
        }
    }
    at
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
    /// Beside it; `None` for something that is no regular file (`/dev/null`, a pipe).
    beside: Option<PathBuf>,
    file: File,
}

impl Pending {
    fn open(path: &Path) -> Result<Pending> {
        let describe = || format!("cannot write {}", path.display());
        let special = fs::metadata(path).is_ok_and(|m| !m.is_file());
        if special {
            let file = fs::OpenOptions::new().write(true).open(path).with_context(describe)?;
            return Ok(Pending { path: path.into(), beside: None, file });
        }
        let path = &behind_links(path);
        if path.is_symlink() {
            bail!("cannot write {}: its symbolic links lead nowhere", path.display());
        }
        let name = path.file_name().with_context(describe)?.to_string_lossy();
        let beside = path.with_file_name(format!(".{name}.{}.partial", std::process::id()));
        let file = File::create(&beside).with_context(describe)?;
        Ok(Pending { path: path.into(), beside: Some(beside), file })
    }

    fn write(mut self, text: &[u8]) -> Result<()> {
        let describe = || format!("cannot write {}", self.path.display());
        self.file.write_all(text).with_context(describe)?;
        self.commit()
    }

    /// What was written is complete: the file appears under its name.
    fn commit(mut self) -> Result<()> {
        let describe = || format!("cannot write {}", self.path.display());
        if let Some(beside) = &self.beside {
            self.file.sync_all().with_context(describe)?;
            fs::rename(beside, &self.path).with_context(describe)?;
        }
        self.beside = None;
        Ok(())
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if let Some(beside) = &self.beside {
            let _ = fs::remove_file(beside);
        }
    }
}
