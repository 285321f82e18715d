//! fio job files, as far as they make sense for a block device.
//!
//! Owns: the file's shape (sections, `[global]`, comments), errors with line and text. The options
//! are in [`options`], numbers with fio's own units in [`values`].
//! Promises: an option is understood, accepted as meaningless here (a documented list, and said),
//! or an error; all errors of a file are found at once; a job means what fio's manual (HOWTO.rst,
//! 3.x) says. Never: runs a command, reads the environment or opens another file, whatever the job
//! file asks.

pub mod options;
pub mod values;

use crate::suggest;
use crate::workload::Job;
use std::collections::BTreeSet;

/// Largest job file; real ones have a page.
pub const FILE_BYTES_MAX: usize = 1 << 20;

#[derive(Clone, Debug, PartialEq)]
pub struct JobFile {
    pub jobs: Vec<Job>,
    /// Options that were there but mean nothing for an emulated device, each once.
    pub without_meaning: Vec<String>,
}

impl JobFile {
    /// Which options change nothing here, in words; none where there are none.
    pub fn remark(&self, file: &str) -> Option<String> {
        let options = self.without_meaning.join(", ");
        let remark = format!(
            "{file}: these options of fio change nothing here, where there is no kernel and no \
             file: {options}"
        );
        (!options.is_empty()).then_some(remark)
    }
}

/// What is wrong with a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Problem {
    /// No section has begun.
    OutsideSection,
    /// `[` without `]`, or an empty name.
    Section,
    /// An option fio does not have.
    Unknown {
        option: String,
        /// `; did you mean ...`, or nothing.
        hint: String,
    },
    /// An option of fio that is not supported here.
    Unsupported {
        option: String,
        /// Why, or what to do instead.
        why: &'static str,
    },
    /// Another file than the job before, where there is one device.
    Files { first: String },
    /// A value that is none.
    Value { option: String, expected: String },
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Problem::OutsideSection => write!(f, "an option before the first `[section]`"),
            Problem::Section => write!(f, "a section is written `[name]`"),
            Problem::Unknown { option, hint } => {
                write!(f, "unknown fio option `{option}`{hint}")
            }
            Problem::Unsupported { option, why } => {
                write!(f, "fio's option `{option}` is not supported here: {why}")
            }
            Problem::Files { first } => write!(
                f,
                "another file than `{first}`: all jobs run on one block device; give each its own \
                 region of it, with `offset` and `size`, and no `filename`"
            ),
            Problem::Value { option, expected } => write!(f, "`{option}` takes {expected}"),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadLine {
    pub file: String,
    /// Line number from 1.
    pub line: usize,
    pub problem: Problem,
    pub text: String,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}: {}\n  {}", self.file, self.line, self.problem, self.text)
    }
}

fn joined(lines: &[BadLine]) -> String {
    lines.iter().map(BadLine::to_string).collect::<Vec<_>>().join("\n")
}

/// Why a job file was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FioError {
    #[error("{}", joined(lines))]
    Lines { lines: Vec<BadLine> },
    /// Only `[global]`, or nothing.
    #[error("{file}: no job: a job file needs at least one section besides [global]")]
    NoJob { file: String },
    #[error("{file}: too large for a fio job file ({bytes} bytes)")]
    TooLarge { file: String, bytes: usize },
}

/// Whether a text is a job file rather than TOML: both have sections, but TOML's strings are quoted
/// and its tables here are called `device`, `target`, `workload`, `run`.
pub fn looks_like(text: &str) -> bool {
    let mut sections = 0;
    for line in text.lines().map(str::trim).take(10_000) {
        if line.starts_with("[[") || line.starts_with(';') {
            return line.starts_with(';');
        }
        if let Some(name) = line.strip_prefix('[').and_then(|l| l.split(']').next()) {
            let head = name.split('.').next().unwrap_or(name).trim();
            if ["device", "target", "workload", "run"].contains(&head) {
                return false;
            }
            sections += 1;
        }
        let key = line.split('=').next().unwrap_or(line).trim();
        if sections > 0 && options::is_known(key) && !line.contains('"') {
            return true;
        }
    }
    sections > 0 && !text.contains('"')
}

pub fn parse(file: &str, text: &str) -> Result<JobFile, FioError> {
    if text.len() > FILE_BYTES_MAX {
        return Err(FioError::TooLarge { file: file.into(), bytes: text.len() });
    }
    let mut bad: Vec<BadLine> = Vec::new();
    let mut fail = |line: usize, text: &str, problem| {
        let text = text.chars().take(160).collect();
        bad.push(BadLine { file: file.into(), line, problem, text });
    };
    let mut global = Job::new("global");
    let mut units = values::Units::default();
    let mut jobs: Vec<Job> = Vec::new();
    let mut without_meaning = BTreeSet::new();
    let mut filename: Option<&str> = None;
    // `None` before the first section, then whether the section is [global].
    let mut in_global = None;
    for (index, raw) in text.lines().enumerate() {
        let (number, line) = (index + 1, raw.trim());
        if line.is_empty() || line.starts_with(['#', ';']) {
            continue;
        }
        if let Some(rest) = line.strip_prefix('[') {
            let name = rest.split_once(']').map(|(name, _)| name.trim());
            let name = name.filter(|n| !n.is_empty()).unwrap_or_else(|| {
                fail(number, raw, Problem::Section);
                rest // its options are looked at all the same
            });
            in_global = Some(name == "global");
            if name != "global" {
                let mut job = global.clone();
                job.name = name.into();
                jobs.push(job);
            }
            continue;
        }
        let job = match in_global {
            None => {
                fail(number, raw, Problem::OutsideSection);
                // Once; the lines that follow have no other fault.
                in_global = Some(true);
                &mut global
            }
            Some(true) => &mut global,
            Some(false) => jobs.last_mut().expect("a section has begun"),
        };
        let (key, value) = match line.split_once('=') {
            Some((key, value)) => (key.trim(), Some(strip_comment(value))),
            None => (strip_comment(line), None),
        };
        match options::apply(job, &mut units, key, value) {
            Ok(options::Applied::Set) => {}
            Ok(options::Applied::WithoutMeaning) => {
                without_meaning.insert(key.to_string());
            }
            Err(problem) => fail(number, raw, problem),
        }
        if let ("filename", Some(name)) = (key, value)
            && *filename.get_or_insert(name) != name
        {
            fail(number, raw, Problem::Files { first: filename.unwrap_or(name).into() });
        }
    }
    if !bad.is_empty() {
        return Err(FioError::Lines { lines: bad });
    }
    if jobs.is_empty() {
        return Err(FioError::NoJob { file: file.into() });
    }
    Ok(JobFile { jobs, without_meaning: without_meaning.into_iter().collect() })
}

/// fio takes a `;` or `#` behind a blank as the start of a comment.
fn strip_comment(text: &str) -> &str {
    let end = text.find(" ;").into_iter().chain(text.find(" #")).min();
    text[..end.unwrap_or(text.len())].trim()
}

/// An unknown name among known ones.
pub(crate) fn unknown(option: &str) -> Problem {
    Problem::Unknown { option: option.into(), hint: suggest::hint(option, options::names()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::{Amount, Distribution, Mix, Pace, Sizes};
    use flashlane_base::Ns;
    use proptest::prelude::{any, prop, prop_assert, proptest};

    fn ok(text: &str) -> JobFile {
        parse("j.fio", text).unwrap_or_else(|e| panic!("{e}"))
    }

    fn said(text: &str) -> String {
        parse("j.fio", text).unwrap_err().to_string()
    }

    #[test]
    fn a_job_inherits_from_global_and_overrides() {
        let f = ok("; comment\n[global]\nioengine=libaio\ndirect=1\nbs=8k\niodepth = 32\n\n\
                    [r]\nrw=randread\n[w]\nstonewall\nrw=randrw\nrwmixread=70 # share\nbs=4k,64k\n");
        assert_eq!(f.without_meaning, ["direct", "ioengine"]);
        assert_eq!(f.jobs.len(), 2);
        assert_eq!((f.jobs[0].iodepth, f.jobs[0].rw, f.jobs[0].random), (32, Mix::Read, true));
        assert_eq!(f.jobs[0].bs[0], Sizes::fixed(2));
        assert!(f.jobs[1].stonewall && !f.jobs[0].stonewall);
        assert_eq!((f.jobs[1].rw, f.jobs[1].rwmixread), (Mix::Mixed, 70));
        assert_eq!(f.jobs[1].bs, [Sizes::fixed(1), Sizes::fixed(16), Sizes::fixed(16)]);
    }

    #[test]
    fn numbers_have_fios_units() {
        let f = ok("[a]\nrw=write\nsize=1g\noffset=25%\nio_size=3m\nruntime=2m\nthinktime=5\n\
                    startdelay=100ms\nrate=10m\nbs=128K\nrandom_distribution=zipf:1.2\nfsync=16\n");
        let j = &f.jobs[0];
        assert_eq!(j.size, Some(Amount::Bytes(1 << 30)));
        assert_eq!(j.offset, Amount::Percent(25));
        assert_eq!(j.io_size, Some(Amount::Bytes(3 << 20)));
        assert_eq!(j.runtime, Some(Ns::from_secs(120)));
        assert_eq!((j.thinktime, j.startdelay), (Ns::from_us(5), Ns::from_ms(100)));
        assert_eq!(j.rate, [Pace::BytesPerSecond(10 << 20); 2]);
        assert_eq!(j.bs[1], Sizes::fixed(32));
        assert_eq!((j.random_distribution, j.fsync), (Distribution::Zipf(1.2), 16));
    }

    /// fio's default has it backwards: `4k` is 4096 and `4ki` is 4000 unless kb_base=1000.
    #[test]
    fn kb_base_swaps_the_prefixes() {
        let size = |text: &str| ok(text).jobs[0].size;
        assert_eq!(size("[a]\nsize=4096kib\n"), Some(Amount::Bytes(4_096_000)));
        assert_eq!(size("[a]\nkb_base=1000\nsize=4kib\n"), Some(Amount::Bytes(4096)));
        assert!(said("[a]\nbs=4KiB\n").contains("4 KiB"), "{}", said("[a]\nbs=4KiB\n"));
    }

    #[test]
    fn errors_name_line_text_and_remedy() {
        let e = said("[a]\nrw=randread\nio_depth=4\n");
        assert!(e.contains("j.fio:3") && e.contains("did you mean `iodepth`"), "{e}");
        assert!(said("rw=read\n").contains("before the first"));
        assert!(said("[global]\nrw=read\n").contains("no job"));
        assert!(said("[a\n").contains("[name]"));
        assert!(said("[a]\nbs=512\n").contains("4 KiB"));
        assert!(said("[a]\nrw=randtrimwrite2\n").contains("randread"));
        assert!(said("[a]\niodepth=0\n").contains("iodepth"));
        assert!(said("[a]\nsize=10x\n").contains("size"));
        assert!(said("[a]\nread_iolog=x\n").contains("flashlane run TRACE"));
        assert!(said("[a]\nsize=${SIZE}\n").contains("environment"));
        assert!(said("[a]\nexec_prerun=rm -rf /\n").contains("not supported"));
        assert!(said("[a]\nrandom_distribution=zipf:-1\n").contains("zipf"));
    }

    /// All that is wrong is said at once, each with its line; that lines are in the wrong place is
    /// said once.
    #[test]
    fn all_errors_of_a_file_are_said() {
        let e = said("[a]\nio_depth=4\nrw=read\nbs=512\n[b\nsize=10x\n");
        for says in ["j.fio:2: unknown", "j.fio:4: `bs`", "j.fio:5: a section", "j.fio:6: `size`"] {
            assert!(e.contains(says), "{says}: {e}");
        }
        assert!(!e.contains("j.fio:3"), "{e}");
        assert_eq!(said("rw=read\nbs=4k\nsize=1m\n").matches("j.fio:").count(), 1);
    }

    #[test]
    fn an_engine_is_one_of_fios() {
        assert!(said("[a]\nioengine=nosuchengine\n").contains("`ioengine` takes"));
        assert!(said("[a]\nioengine=libaoi\n").contains("libaio"));
        assert_eq!(ok("[a]\nioengine=io_uring\n").without_meaning, ["ioengine"]);
        assert_eq!(ok("[a]\nioengine=external:./mine.o\n").without_meaning, ["ioengine"]);
    }

    /// In fio two files are two places; here they would be one region that both write.
    #[test]
    fn two_files_are_not_one_region() {
        let e = said("[a]\nfilename=/dev/sda\n[b]\nfilename=/dev/sdb\n");
        assert!(
            e.contains("j.fio:4: another file than `/dev/sda`") && e.contains("`offset`"),
            "{e}"
        );
        let one = ok("[global]\nfilename=/dev/sda\n[a]\nfilename=/dev/sda\n");
        assert_eq!(one.without_meaning, ["filename"]);
        let e = said("[a]\nfilename=/dev/sda:/dev/sdb\n");
        assert!(e.contains("`filename` takes one file"), "{e}");
    }

    #[test]
    fn job_files_are_told_from_experiments() {
        assert!(looks_like("[global]\nrw=randread\n[a]\n"));
        assert!(looks_like("; x\n[a]\nrw=read"));
        assert!(looks_like("[a]\nstonewall\nrw=read"));
        assert!(!looks_like("[device]\npreset = \"x\"\n"));
        assert!(!looks_like("name = \"x\"\n[[workload]]\nrw = \"randread\"\n"));
        assert!(!looks_like("hello\n"));
    }

    proptest! {
        /// Whatever a file holds, the answer is jobs or an error.
        #[test]
        fn arbitrary_text_never_panics(
            lines in prop::collection::vec("(\\[[a-z]*\\]?|[a-z_]{1,12}(=[-0-9a-z%:,/.$]{0,14})?|.{0,20})", 0..12),
            key in any::<prop::sample::Index>(), value in "[-0-9kmgKib%:,/.]{0,24}",
        ) {
            let names: Vec<&str> = options::names().collect();
            let text = format!("[a]\n{}={value}\n{}", key.get(&names), lines.join("\n"));
            if let Ok(f) = parse("j.fio", &text) {
                prop_assert!(!f.jobs.is_empty());
            }
            let _ = looks_like(&text);
        }
    }
}
