//! What a FILE given to `run` and `check` is: an experiment, a fio job file or a trace.
//!
//! Owns: telling them apart by content, and the experiment that a job file or a trace stands for.
//! Promises: the message about a file that is none of them says so for all three.
//! Never: looks at a file's name.

use crate::experiment::{
    At, Base, Change, Document, Experiment, ExperimentErrors, Item, Value, default_preset,
};
use crate::fio;
use crate::trace::reader::byte_order_mark;
use crate::trace::{Reader, Reading, TraceError, TraceSource};
use crate::{bounded, bundled};
use std::path::{Path, PathBuf};

/// What a file turned out to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An experiment in TOML.
    Experiment,
    /// A fio job file.
    Fio,
    Trace,
    /// No file: the bundled experiment.
    Bundled,
}

/// Why a file can't be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    #[error("cannot read {file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error(
        "{file} is neither an experiment (TOML with [device], [[target]], [[workload]]) nor a fio \
         job file ([job] with options); as a trace: {trace}"
    )]
    Unknown {
        file: String,
        /// What the trace reader said.
        trace: TraceError,
    },
    /// It is an experiment with errors (or stands for one).
    #[error(transparent)]
    Experiment(#[from] ExperimentErrors),
}

/// Loads what a file stands for; without one the bundled experiment.
pub fn load(file: Option<&Path>, changes: &[Change]) -> Result<(Kind, Experiment), InputError> {
    let Some(path) = file else {
        let base = Base::of(Path::new(""));
        let name = "the bundled experiments/quickstart.toml";
        let e = Experiment::parse(name, bundled::QUICKSTART, &base, changes)?;
        return Ok((Kind::Bundled, e));
    };
    let shown = path.display().to_string();
    let (kind, text) = recognize(path, &shown)?;
    let standing = |key, own| {
        standing_for(path, key, changes).map_err(|errors| places_in_file(errors, &shown, own))
    };
    let e = match kind {
        Kind::Fio => standing("fio", OWN_OF_JOB)?,
        Kind::Trace => standing("trace", "")?,
        Kind::Experiment | Kind::Bundled => {
            Experiment::parse(&shown, &text, &Base::of(path), changes)?
        }
    };
    Ok((kind, e))
}

/// What a file is, and its text, where it has one.
fn recognize(path: &Path, shown: &str) -> Result<(Kind, String), InputError> {
    let source = TraceSource::File(path.to_path_buf());
    let read_error = |source| InputError::Read { file: shown.into(), source };
    let trace = match Reader::open(&source, &Reading::default()) {
        Ok(_) => return Ok((Kind::Trace, String::new())),
        Err(TraceError::Open { source, .. }) => return Err(read_error(source)),
        Err(e) => e,
    };
    let text = bounded::bytes(path, bounded::TEXT_MAX).map_err(read_error)?;
    let unknown = |trace| InputError::Unknown { file: shown.into(), trace };
    if byte_order_mark(&text).is_some() {
        return Err(unknown(trace));
    }
    let Ok(text) = String::from_utf8(text) else {
        return Err(unknown(trace));
    };
    if fio::looks_like(&text) {
        return Ok((Kind::Fio, text));
    }
    // A line like `key = value` or `[table]` makes it somebody's TOML, with its own errors.
    let toml = text.lines().map(str::trim).any(|l| {
        l.starts_with('[')
            || l.split_once('=').is_some_and(|(key, _)| {
                let key = key.trim();
                let word = |c: char| c.is_ascii_alphanumeric() || "_-.\"".contains(c);
                !key.is_empty() && key.chars().all(word)
            })
    });
    if toml { Ok((Kind::Experiment, text)) } else { Err(unknown(trace)) }
}

/// What a change of a key that an experiment does not have may have meant, on a job file.
const OWN_OF_JOB: &str = "; options of a job file itself can't be set or varied: change the file, or \
                          write its jobs as `[[workload]]` of an experiment";

/// Complaints about an experiment that nobody wrote: their places are those in the job file, where
/// they have one. `own` is what there is to say about a key that the experiment does not have.
fn places_in_file(mut errors: ExperimentErrors, shown: &str, own: &str) -> ExperimentErrors {
    for c in &mut errors.0 {
        if c.place != shown {
            if c.message.contains("unknown key") {
                c.message += own;
            }
            continue;
        }
        let own = c.message.strip_prefix("[[workload]] 0: ").unwrap_or(&c.message);
        let (place, message) = match own.split_once(": ") {
            Some((place, message)) if place.starts_with(shown) => (place, message),
            _ => (shown, own),
        };
        (c.place, c.message) = (place.to_string(), message.to_string());
    }
    errors
}

/// The experiment that a job file or a trace stands for.
fn standing_for(
    path: &Path,
    key: &str,
    changes: &[Change],
) -> Result<Experiment, ExperimentErrors> {
    let text = |text: &str| Value::Text(text.into());
    let one = |entry| Value::List(vec![Item { at: At::Whole, value: Value::table([entry]) }]);
    let name = path.file_stem().map_or("run".into(), |s| s.to_string_lossy().into_owned());
    let root = Value::entries([
        ("name", text(&name)),
        ("device", Value::table([("preset", text(default_preset()))])),
        ("target", one(("kind", text("pblk")))),
        ("workload", one((key, text(&path.to_string_lossy())))),
    ]);
    let document = Document::of(&path.display().to_string(), root).changed(changes);
    let base = Base { folder: PathBuf::new() };
    Experiment::read(document, &base)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn kind_of(text: &str) -> Result<Kind, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        load(Some(file.path()), &[]).map(|(k, _)| k).map_err(|e| e.to_string())
    }

    /// What changes nothing is said where it is written, not found out by a reader of results.
    #[test]
    fn options_without_a_meaning_are_remarked() {
        let mut job = tempfile::NamedTempFile::new().unwrap();
        job.write_all(b"[j]\nioengine=libaio\ndirect=1\nrw=read\nsize=1m\n").unwrap();
        let experiment = load(Some(job.path()), &[]).unwrap().1;
        let found = crate::check::check(&experiment);
        assert!(found.summary.contains("change nothing here"), "{}", found.summary);
        assert!(found.summary.contains(": direct, ioengine\nnothing wrong"), "{}", found.summary);
    }

    #[test]
    fn files_are_told_apart_by_content() {
        assert_eq!(kind_of("0 0 0 8 0\n"), Ok(Kind::Trace));
        assert_eq!(kind_of("[j]\nrw=randread\nsize=1m\n"), Ok(Kind::Fio));
        let toml =
            "[device]\npreset = \"tiny\"\n[target]\nkind = \"pftl\"\n[workload]\nrw = \"read\"\n";
        assert_eq!(kind_of(toml), Ok(Kind::Experiment));
        assert!(kind_of("name = \"x\"\n").unwrap_err().contains("no [device]"));
        let said = kind_of("once upon a time\n").unwrap_err();
        assert!(said.contains("neither an experiment") && said.contains("as a trace"), "{said}");
        let set = [Change::Set("workload.0.bs=8k".into())];
        let mut job = tempfile::NamedTempFile::new().unwrap();
        job.write_all(b"[j]\nrw=randread\nsize=1m\n").unwrap();
        let said = load(Some(job.path()), &set).map(|_| ()).unwrap_err().to_string();
        assert!(
            said.contains("unknown key `bs`") && said.contains("of a job file itself"),
            "{said}"
        );
        // The text that stands for a job file or a trace is nobody's: it has no place in a message.
        let said = kind_of("[j]\nrw=randread\nbs=4q\n").unwrap_err();
        assert!(said.contains(":3: `bs` takes") && !said.contains("[[workload]]"), "{said}");
        assert!(said.ends_with("bs=4q"), "{said}");
        let lines = "bs=4q\n".repeat(30);
        let said = kind_of(&format!("[j]\nrw=randread\n{lines}")).unwrap_err();
        let places: Vec<usize> = said
            .lines()
            .filter_map(|l| l.split_once(": `bs` takes")?.0.rsplit(':').next()?.parse().ok())
            .collect();
        assert_eq!(places, (3..23).collect::<Vec<_>>(), "{said}");
        assert!(said.ends_with(": 10 more lines like these"), "{said}");
        let said = load(Some(Path::new("/dev/null")), &[]).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("no regular file"), "{said}");
        for marked in
            ["\u{feff}[j]\nrw=randread\n", "\u{feff}name = \"x\"\n", "\u{feff}0 0 0 8 0\n"]
        {
            let said = kind_of(marked).unwrap_err();
            assert!(said.contains("byte order mark"), "{said}");
        }
        let said = load(Some(Path::new("-")), &[]).map(|_| ()).unwrap_err().to_string();
        assert!(said.contains("no regular file"), "{said}");
        assert!(kind_of("").unwrap_err().contains("empty"));
        assert!(kind_of("\0\0\0").unwrap_err().contains("binary"));
        let said =
            load(Some(Path::new("/does/not/exist")), &[]).map(|_| ()).unwrap_err().to_string();
        assert!(said.starts_with("cannot read /does/not/exist:"), "{said}");
    }

    /// The experiment inside the program is a good one.
    #[test]
    fn without_a_file_the_bundled_experiment_is_loaded() {
        let (kind, e) = load(None, &[]).map_err(|e| e.to_string()).unwrap();
        assert_eq!((kind, e.targets.len()), (Kind::Bundled, 5));
    }
}
