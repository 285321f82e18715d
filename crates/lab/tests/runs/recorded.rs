//! What a run asked, recorded and replayed: the same requests, the same work for the stack.

use flashlane_lab::execute::{How, Outcome, execute};
use flashlane_lab::experiment::{Base, Experiment, Target};
use flashlane_lab::run::{Monitor, Unwatched};
use flashlane_lab::trace::{Format, Take};
use std::path::Path;
use std::rc::Rc;

const DEVICE: &str = "[device]\npreset = \"tiny\"\ngeometry.chunks_per_pu = 400\n\
                      [run]\nseed = 5\ncosts = \"zero\"\n";

fn run(text: &str, record: Option<&Take>) -> Outcome {
    let base = Base::of(Path::new(""));
    let parsed = Experiment::parse("recorded.toml", text, &base, &[]);
    let experiment = parsed.map_err(|e| e.to_string()).expect("a good experiment");
    let watch = |_: &Target| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    let outcome = execute(&experiment, How { record, ..How::default() }, &watch);
    let outcome = outcome.map_err(|e| e.to_string()).expect("it runs");
    assert!(!outcome.is_bad(), "laws, rules and contents");
    outcome
}

/// What the host asked of a layer, and what that cost on the medium.
fn counted(outcome: &Outcome) -> Vec<([u64; 5], u64)> {
    let of = |run: &flashlane_lab::execute::RunOutcome| {
        let (before, after) = (&run.measured.before, &run.measured.after);
        let host = [
            after.host_written - before.host_written,
            after.host_read - before.host_read,
            after.host_discarded - before.host_discarded,
            after.flushes - before.flushes,
            after.gc_moved - before.gc_moved,
        ];
        (host, after.programmed_total() - before.programmed_total())
    };
    outcome.runs.iter().map(of).collect()
}

/// Each target's requests are in a file with its name, and a replay at their times has the stack do the
/// same: what was recorded is what was asked, and when. Whoever is recorded does not feel it.
#[test]
fn a_recording_replayed_has_the_same_counters() {
    let folder = tempfile::tempdir().expect("a folder");
    let to = folder.path().join("all.parquet");
    let take = Take { to, format: Format::Parquet, contents: Vec::new() };
    let targets = "[[target]]\nkind = \"pblk\"\n[[target]]\nkind = \"pftl\"\n";
    let jobs = format!(
        "{DEVICE}{targets}[[workload]]\nrw = \"randrw\"\nbs = \"8KiB\"\niodepth = 8\nio_size = \"48MiB\"\nfsync = 64\n"
    );
    let recorded = run(&jobs, Some(&take));
    let plain = run(&jobs, None);
    assert_eq!(recorded.fingerprint, plain.fingerprint, "a recording takes no time");
    for ((target, name), (asked, run_of)) in [("pblk", "pblk"), ("pftl", "block-SSD-pftl")]
        .iter()
        .zip(counted(&recorded).iter().zip(&recorded.runs))
    {
        let file = folder.path().join(format!("all-{name}.parquet"));
        let sums = run_of.recorded.as_ref().expect("it was asked for");
        assert_eq!((&sums.to, sums.unended), (&file, 0));
        let requests: u64 = run_of.measured.recorder.requests;
        assert!(sums.requests >= requests, "{} of {requests}", sums.requests);
        let replay = format!(
            "{DEVICE}[[target]]\nkind = \"{target}\"\n[[workload]]\ntrace = \"{}\"\n",
            file.display()
        );
        let replayed = run(&replay, None);
        let (host, programmed) = counted(&replayed)[0];
        assert_eq!(host[..3], asked.0[..3], "{target}: written, read, discarded");
        let apart = |a: u64, b: u64| a.abs_diff(b) as f64 / a.max(1) as f64;
        assert!(apart(asked.1, programmed) < 0.02, "{target}: {} and {programmed}", asked.1);
    }
}

/// A device that keeps stamps has no contents, and a file that can't be made is said before the run.
#[test]
fn what_cannot_be_recorded_is_refused() {
    let base = Base::of(Path::new(""));
    let text = format!(
        "{DEVICE}[[target]]\nkind = \"pblk\"\n[[workload]]\nrw = \"write\"\nio_size = \"1MiB\"\n"
    );
    let experiment = Experiment::parse("x.toml", &text, &base, &[]).map_err(|e| e.to_string());
    let experiment = experiment.expect("a good experiment");
    let watch = |_: &Target| -> Rc<dyn Monitor> { Rc::new(Unwatched) };
    let folder = tempfile::tempdir().expect("a folder");
    let take = |name: &str, contents| Take {
        to: folder.path().join(name),
        format: Format::Parquet,
        contents,
    };
    for (take, why) in [
        (take("x.parquet", std::iter::once(0..4096).collect()), "stamps"),
        (take("no/such/x.parquet", Vec::new()), "No such file"),
    ] {
        let how = How { record: Some(&take), ..How::default() };
        let refused = execute(&experiment, how, &watch).map(|_| ());
        let said = refused.map_err(|e| e.to_string()).expect_err("it is refused");
        assert!(said.contains(why), "{said}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0);
}
